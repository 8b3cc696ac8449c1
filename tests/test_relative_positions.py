"""T5's relative positions: buckets worked out by hand, the bias pair by pair, the gradient of its table, refusals."""

import math
import re

import ml_dtypes
import numpy as np
import pytest

import headwise as hw
from headwise.testing import check_vjp


def buckets_of(distances, n_buckets, max_distance=128, bidirectional=True):
    """The bucket of each distance j - i: a table that says its own row, one query, and the keys around it."""
    table = np.arange(n_buckets, dtype=float)[:, None]
    first, last = min(distances), max(distances)
    options = {"bidirectional": bidirectional, "max_distance": max_distance, "offset": -first}
    row = hw.relative_position_bias(table, 1, last - first + 1, **options)[0, 0]
    return [int(row[distance - first]) for distance in distances]


# 16 buckets of each direction, 8 of them exact: 8 + floor(8 log(d / 8) / log 16), so that 16 is 10, 32 is 12, 64 is 14
ENCODER = {0: 0, 1: 1, 7: 7, 8: 8, 11: 8, 12: 9, 15: 9, 16: 10, 22: 10, 23: 11, 31: 11, 32: 12, 45: 12, 46: 13, 63: 13}
ENCODER |= {64: 14, 90: 14, 91: 15, 127: 15, 128: 15, 129: 15, 5000: 15}
# 32 buckets, 16 of them exact: 16 + floor(16 log(d / 16) / log 8)
DECODER = {0: 0, 15: 15, 16: 16, 18: 16, 19: 17, 64: 26, 127: 31, 128: 31, 5000: 31}
# 4 of each direction, 2 exact, up to 20: 2 + floor(2 log(d / 2) / log 10), and 2 sqrt(10) lies between 6 and 7
SMALL = {0: 0, 1: 1, 2: 2, 6: 2, 7: 3, 19: 3, 20: 3, 21: 3}


@pytest.mark.parametrize(
    ("n_buckets", "max_distance", "bidirectional", "wanted"),
    [
        (32, 128, True, {-d: bucket for d, bucket in ENCODER.items()}),
        (32, 128, True, {d: 16 + bucket for d, bucket in ENCODER.items() if d}),
        (32, 128, False, {-d: bucket for d, bucket in DECODER.items()}),
        (32, 128, False, {0: 0, 1: 0, 5000: 0}),
        (8, 20, True, {-d: bucket for d, bucket in SMALL.items()} | {d: 4 + b for d, b in SMALL.items() if d}),
        (4, 128, True, {-200: 1, -1: 1, 0: 0, 1: 3, 200: 3}),
        (2, 128, True, {-200: 0, -1: 0, 0: 0, 1: 1, 200: 1}),
        (2, 1, True, {-2: 0, -1: 0, 0: 0, 1: 1, 2: 1}),
        (2, 128, False, {-200: 1, -128: 1, -127: 1, -1: 1, 0: 0, 1: 0}),
        (1, 128, False, {-200: 0, 0: 0, 200: 0}),
        (3, 9, False, {-200: 2, -9: 2, -3: 2, -2: 1, -1: 1, 0: 0, 1: 0}),  # 1 + floor(2 log d / log 9): 3 is half way
    ],
)
def test_buckets_by_hand(n_buckets, max_distance, bidirectional, wanted):
    assert buckets_of(list(wanted), n_buckets, max_distance, bidirectional) == list(wanted.values())


def test_the_last_bucket_begins_where_the_formula_says_and_holds_max_distance():
    """8 log(d / 8) / log 16 = 7 at d = 8 * 16**(7 / 8) = 90.5; with max_distance 129 a little later."""
    row = buckets_of(list(range(-200, 1)), 32)[::-1]
    assert row == sorted(row)
    assert row.index(15) == 91
    assert buckets_of([-90, -91], 32, max_distance=129) == [14, 14]


def test_borders_are_exact():
    """5 + floor(5 log(d / 5) / log(5**5)): a whole number at 25, 125, 625, 3125, which rounded logarithms miss."""
    wanted = {24: 5, 25: 6, 124: 6, 125: 7, 624: 7, 625: 8, 3124: 8, 3125: 9}
    assert buckets_of([-d for d in wanted], 10, 5**6, bidirectional=False) == list(wanted.values())


def in_float32(distance, n_buckets, max_distance, bidirectional):
    """The formula as models were trained with it: one distance, logarithms in float32."""
    bucket = 0
    if bidirectional:
        n_buckets //= 2
        bucket = n_buckets if distance > 0 else 0
        distance = abs(distance)
    else:
        distance = -min(distance, 0)
    exact = n_buckets // 2
    if distance < exact:
        return bucket + distance
    share = np.log(np.float32(distance) / np.float32(exact)) / np.float32(math.log(max_distance / exact))
    return bucket + min(exact + int(share * np.float32(n_buckets - exact)), n_buckets - 1)


@pytest.mark.parametrize(
    ("n_buckets", "max_distance", "bidirectional"),
    [(32, 128, True), (32, 128, False), (64, 256, True), (320, 800, True), (16, 64, False), (8, 20, True)],
)
def test_buckets_are_those_that_models_were_trained_with(n_buckets, max_distance, bidirectional):
    distances = list(range(-1000, 1001))
    wanted = [in_float32(distance, n_buckets, max_distance, bidirectional) for distance in distances]
    assert buckets_of(distances, n_buckets, max_distance, bidirectional) == wanted


# ------------------------------------------------------------------------------------------- the bias
def test_the_bias_of_each_pair_by_hand():
    """Four buckets: 0 the own position, 1 before it, 3 after it. Queries stand at the end of five keys."""
    table = np.array([[0.0, 10.0], [1.0, 11.0], [2.0, 12.0], [3.0, 13.0]])
    bias = hw.relative_position_bias(table, 2, 5)
    assert bias.tolist() == [
        [[1, 1, 1, 0, 3], [1, 1, 1, 1, 0]],
        [[11, 11, 11, 10, 13], [11, 11, 11, 11, 10]],
    ]
    assert hw.relative_position_bias(table, 2, 3, offset=0)[0].tolist() == [[0, 3, 3], [1, 0, 3]]
    assert hw.relative_position_bias(table, 2, 3, offset=-1)[0].tolist() == [[3, 3, 3], [0, 3, 3]]
    assert hw.relative_position_bias(table, 3, 2)[0].tolist() == [[3, 3], [0, 3], [1, 0]]
    assert hw.relative_position_bias(table, 1, 1, offset=2**53)[0].tolist() == [[1]]


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", ml_dtypes.bfloat16])
def test_the_bias_is_the_caller_s_in_the_float_type_of_the_table(dtype):
    table = np.arange(8.0).reshape(4, 2).astype(dtype)
    table.flags.writeable = False
    bias = hw.relative_position_bias(table, 3, 4)
    assert bias.dtype == table.dtype
    assert bias.shape == (2, 3, 4)
    bias[0, 0, 0] = 7
    assert (bias == 7).sum() == 1 + (hw.relative_position_bias(table, 3, 4) == 7).sum()
    assert hw.relative_position_bias_vjp(bias, 4).dtype == table.dtype
    assert hw.relative_position_bias([[1, 2], [3, 4]], 1, 1).dtype == np.float64


@pytest.mark.parametrize(("n_q", "n_k"), [(0, 3), (3, 0), (0, 0)])
def test_without_queries_or_keys_it_is_empty(n_q, n_k):
    bias = hw.relative_position_bias(np.ones((4, 2)), n_q, n_k)
    assert bias.shape == (2, n_q, n_k)
    assert hw.relative_position_bias_vjp(bias, 4).tolist() == [[0, 0]] * 4
    assert hw.relative_position_bias(np.ones((4, 0)), 2, 3).shape == (0, 2, 3)


def test_a_step_of_decoding_has_the_last_row_of_the_whole():
    table = np.random.default_rng(0).standard_normal((32, 3))
    whole = hw.relative_position_bias(table, 300, 300, bidirectional=False)
    step = hw.relative_position_bias(table, 1, 300, bidirectional=False)
    np.testing.assert_array_equal(step[:, 0], whole[:, -1])


@pytest.mark.parametrize(
    "options", [{}, {"bidirectional": False}, {"max_distance": 5, "offset": -2}, {"offset": 9}], ids=str
)
def test_the_gradient_of_the_table(options):
    def f(table):
        bias = hw.relative_position_bias(table, 7, 11, **options)
        return bias, lambda d_bias: (hw.relative_position_bias_vjp(d_bias, 8, **options),)

    assert check_vjp(f, (np.random.default_rng(1).standard_normal((8, 3)),)) < 1e-8


def test_the_gradient_goes_from_the_loss_through_a_layer_to_the_table():
    rng = np.random.default_rng(2)
    layer, x = hw.MultiHeadAttention(6, 3, scale=1.0), rng.standard_normal((2, 5, 6))

    def f(table):
        out, vjp = layer.vjp(x, bias=hw.relative_position_bias(table, 5, 5))
        return out, lambda d_out: (hw.relative_position_bias_vjp(vjp(d_out).bias, 8),)

    assert check_vjp(f, (rng.standard_normal((8, 3)),)) < 1e-8


def test_sums_of_many_small_numbers_keep_their_digits():
    d_bias = np.full((1, 1000, 1000), 1e-3, np.float32)
    sums = hw.relative_position_bias_vjp(d_bias, 2)
    np.testing.assert_allclose(sums[:, 0], [500.5, 499.5], rtol=1e-6)


# ------------------------------------------------------------------------------------------- what is refused
TABLE = np.ones((32, 2))
EVEN = (
    "expected an even number of buckets with bidirectional, got {}; half of them are for keys after their query; "
    "a decoder has bidirectional=False"
)
ABOVE = "max_distance: expected a distance above {0}, got {0}; the first {0} distances have a bucket each, "
ABOVE += "the others go up to it"


@pytest.mark.parametrize(
    ("arguments", "options", "error", "text"),
    [
        (
            (np.ones((31, 2)), 2, 3),
            {},
            ValueError,
            "table: " + EVEN.format(31),
        ),
        (
            (np.ones((0, 2)), 2, 3),
            {},
            ValueError,
            "table: expected (n_buckets, H), with 1 to 1048576 buckets, got (0, 2)",
        ),
        ((np.ones(32), 2, 3), {}, ValueError, "table: expected (n_buckets, H), with 1 to 1048576 buckets, got (32,)"),
        ((None, 2, 3), {}, TypeError, "table: expected an array, got None"),
        ((TABLE, -1, 3), {}, ValueError, "n_q: expected a number of tokens of at least 0, got -1"),
        ((TABLE, 2, 3.0), {}, TypeError, "n_k: expected a number of tokens, got float 3.0"),
        ((TABLE, 2, 3), {"bidirectional": 1}, TypeError, "bidirectional: expected True or False, got int 1"),
        ((TABLE, 2, 3), {"offset": 0.5}, TypeError, "offset: expected an integer, got float 0.5"),
        (
            (TABLE, 2, 3),
            {"max_distance": 8},
            ValueError,
            ABOVE.format(8),
        ),
        (
            (TABLE, 2, 3),
            {"max_distance": 16, "bidirectional": False},
            ValueError,
            ABOVE.format(16),
        ),
        ((TABLE, 2, 3), {"max_distance": 0}, ValueError, "max_distance: expected a distance of at least 1, got 0"),
    ],
)
def test_refusals(arguments, options, error, text):
    with pytest.raises(error, match=f"^relative_position_bias: {re.escape(text)}$"):
        hw.relative_position_bias(*arguments, **options)


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ((np.ones((5, 5)), 32), ValueError, "d_bias: expected (H, n_q, n_k), got (5, 5)"),
        ((np.ones((1, 5, 5)), 0), ValueError, "n_buckets: expected a number of buckets of at least 1, got 0"),
        ((np.ones((1, 5, 5)), "32"), TypeError, "n_buckets: expected a number of buckets, got str '32'"),
        (
            (np.ones((1, 5, 5)), 5),
            ValueError,
            "n_buckets: " + EVEN.format(5),
        ),
    ],
)
def test_refusals_of_the_gradient(arguments, error, text):
    with pytest.raises(error, match=f"^relative_position_bias_vjp: {re.escape(text)}$"):
        hw.relative_position_bias_vjp(*arguments)


def test_everything_that_does_not_fit_is_named():
    with pytest.raises(ValueError, match="relative_position_bias: 3 arguments do not fit") as caught:
        hw.relative_position_bias(np.ones(3), -1, 2, max_distance=-1)
    assert [line.split(":")[0].strip() for line in str(caught.value).splitlines()[1:]] == [
        "table",
        "n_q",
        "max_distance",
    ]
