"""Softmax and log-sum-exp by hand, and the algebra of partial results: merged in any grouping they are the whole."""

import itertools
import re
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import headwise as hw
from headwise.core.softmax import Partial, empty_part, exponentials, finish, merge, part

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
INF, NAN = np.inf, np.nan
REAL = "real numbers (float16, bfloat16, float32, float64, integers or bool)"
LN2, LN3 = np.log(2.0), np.log(3.0)
BOTH = pytest.mark.parametrize("function", [hw.softmax, hw.logsumexp], ids=["softmax", "logsumexp"])


def frozen(values: Any, dtype: Any = None) -> Any:
    """A read-only array: nothing here may write to its inputs."""
    array = np.array(values, dtype)
    array.flags.writeable = False
    return array


def exactly(text: str) -> str:
    return f"^{re.escape(text)}$"


# --------------------------------------------------------------------------------------- whole softmax
@pytest.mark.parametrize(
    ("x", "weights", "lse"),
    [
        ([5.0], [1], 5),
        ([0.0, LN3], [0.25, 0.75], np.log(4)),
        ([LN2, LN3, 0.0], [1 / 3, 1 / 2, 1 / 6], np.log(6)),
        ([7.0, 7.0, 7.0, 7.0, 7.0], [0.2] * 5, 7 + np.log(5)),
        ([1e300, 0.0], [1, 0], 1e300),
        ([1e300, 1e300], [0.5, 0.5], 1e300),
        ([-1e300, -1e300], [0.5, 0.5], -1e300),
        ([-1e308, 1e308], [0, 1], 1e308),  # their difference overflows
        ([1000.0, 1000.0 + LN3], [0.25, 0.75], 1000 + np.log(4)),
        ([-1000.0, -1000.0 + LN3], [0.25, 0.75], -1000 + np.log(4)),
        ([0.0, -1e-20], [0.5, 0.5], LN2),
        ([0.0, -800.0], [1, 0], 0),
        ([-INF, 0.0, LN3], [0, 0.25, 0.75], np.log(4)),
        ([-INF, 3.0], [0, 1], 3),
        ([-INF, -INF], [0, 0], -INF),
        ([], [], -INF),
        ([INF, 0.0], [NAN, NAN], INF),
        ([INF, INF], [NAN, NAN], INF),
        ([INF, -INF], [NAN, NAN], INF),
        ([INF, NAN], [NAN, NAN], NAN),
        ([NAN, 0.0], [NAN, NAN], NAN),
        ([NAN, -INF], [NAN, NAN], NAN),
    ],
    ids=str,
)
def test_by_hand(x: list[float], weights: list[float], lse: float) -> None:
    with np.errstate(all="raise"):  # the caller's error state never makes a right call fail
        np.testing.assert_allclose(hw.softmax(frozen(x)), weights, rtol=1e-13)
        np.testing.assert_allclose(hw.logsumexp(frozen(x)), lse, rtol=1e-13)


def test_a_row_of_infinities_keeps_to_itself() -> None:
    x = frozen([[INF, 0, 0], [0, LN3, -INF], [-INF, -INF, -INF], [0, NAN, 0]])
    np.testing.assert_allclose(hw.softmax(x), [[NAN] * 3, [0.25, 0.75, 0], [0, 0, 0], [NAN] * 3], rtol=1e-15)
    np.testing.assert_allclose(hw.logsumexp(x), [INF, np.log(4), -INF, NAN], rtol=1e-15)


@pytest.mark.parametrize("axis", [0, 1, 2, -1, -2, -3, np.int8(1), np.array(2)], ids=repr)
def test_every_axis(axis: Any) -> None:
    x = frozen(np.random.default_rng(0).standard_normal((2, 3, 5)))
    exps = np.exp(x)
    total = exps.sum(axis=int(axis), keepdims=True)
    np.testing.assert_allclose(hw.softmax(x, axis), exps / total, rtol=1e-14)
    np.testing.assert_allclose(hw.logsumexp(x, axis=axis), np.log(total).squeeze(int(axis)), rtol=1e-14)


def test_the_last_axis_is_the_default() -> None:
    x = frozen(np.random.default_rng(0).standard_normal((2, 3)))
    np.testing.assert_array_equal(hw.softmax(x), hw.softmax(x, axis=1))
    np.testing.assert_array_equal(hw.logsumexp(x), hw.logsumexp(x, axis=1))


@pytest.mark.parametrize(
    ("shape", "axis", "sums"),
    [((0,), 0, ()), ((2, 0), 1, (2,)), ((2, 0), 0, (0,)), ((0, 3), 1, (0,)), ((0, 3), 0, (3,))],
)
def test_empty_axes(shape: tuple[int, ...], axis: int, sums: tuple[int, ...]) -> None:
    weights, lse = hw.softmax(np.zeros(shape), axis), hw.logsumexp(np.zeros(shape), axis)
    assert weights.shape == shape
    assert lse.shape == sums
    assert (lse == -INF).all()


@pytest.mark.parametrize(
    "layout", [np.asfortranarray, lambda x: x[::-1, ::-1], lambda x: x.T], ids=["F", "reversed", "T"]
)
def test_any_layout(layout: Callable[[Any], Any]) -> None:
    x = layout(frozen([[0.0, LN3], [LN3, 0.0], [LN2, LN2]]))
    np.testing.assert_array_equal(hw.softmax(x), hw.softmax(np.ascontiguousarray(x)))
    np.testing.assert_array_equal(hw.logsumexp(x), hw.logsumexp(np.ascontiguousarray(x)))


@pytest.mark.parametrize(
    ("given", "result"),
    [
        (np.float64, np.float64),
        (np.float32, np.float32),
        (np.float16, np.float16),
        (BFLOAT16, BFLOAT16),
        (np.int64, np.float64),
        (np.uint8, np.float64),
        (bool, np.float64),
        (">f4", np.float32),
        (">f8", np.float64),
        (">f2", np.float16),
    ],
)
def test_dtypes(given: Any, result: Any) -> None:
    x = frozen([[0, 1, 1]], given)
    weights, lse = hw.softmax(x), hw.logsumexp(x)
    assert weights.dtype == lse.dtype == np.dtype(result)
    assert weights.dtype.isnative
    exact = np.exp([0, 1, 1]) / np.exp([0, 1, 1]).sum()
    half = np.dtype(result).itemsize == 2
    computing = np.float32 if half else result
    np.testing.assert_allclose(
        weights[0].astype(float), exact.astype(computing).astype(result).astype(float), rtol=4e-7
    )
    np.testing.assert_allclose(lse.astype(float), np.log(np.exp([0, 1, 1]).sum()), rtol=4e-3 if half else 4e-7)


def test_half_types_are_summed_in_float32() -> None:
    x = frozen(np.zeros(5000), np.float16)  # float16 sums end at 2048
    assert hw.logsumexp(x) == np.float16(np.log(5000))
    assert (hw.softmax(x) == np.float16(1 / 5000)).all()


def test_large_integers_are_float64() -> None:
    np.testing.assert_array_equal(hw.softmax(frozen([2**64 - 1, 0], np.uint64)), [1, 0])
    assert hw.logsumexp(frozen([-(2**63), -(2**63)], np.int64)) == -(2.0**63)


def test_lists_and_subclasses_are_arrays() -> None:
    assert hw.softmax([[0, 0]]).tolist() == [[0.5, 0.5]]
    assert type(hw.softmax(np.zeros(2).view(type("Sub", (np.ndarray,), {})))) is np.ndarray


# ---------------------------------------------------------------------------------------------- refusals
VALUES = [
    ([[1.0]], 2, "axis: expected an axis of x (1, 1), got 2"),
    ([[1.0]], -3, "axis: expected an axis of x (1, 1), got -3"),
    ([1.0], 1, "axis: expected an axis of x (1,), got 1"),
    (1.0, -1, "axis: expected an axis of x (), got -1; x has none: pass x[None]"),
    (1.0, 0, "axis: expected an axis of x (), got 0; x has none: pass x[None]"),
]
TYPES = [
    ("ab", -1, f"x: expected {REAL}, got dtype <U2; pass np.asarray(x, dtype=np.float64)"),
    (None, -1, "x: expected an array, got None"),
    (
        [1j],
        -1,
        (
            f"x: expected {REAL}, got dtype complex128; "
            "complex attention has no agreed meaning: pass x.real, or parts of it as more features"
        ),
    ),
    (
        np.ma.array([1.0]),
        -1,
        (
            "x: expected a plain array, got a numpy.ma masked array, whose hidden data would be used; "
            "pass x.filled(0), and say which keys count by mask=masks.keys(valid)"
        ),
    ),
    ([1.0], True, "axis: expected an integer, got bool True"),
    ([1.0], 0.0, "axis: expected an integer, got float 0.0"),
    ([1.0], None, "axis: expected an integer, got NoneType None"),
    ([1.0], (0,), "axis: expected an integer, got tuple (0,)"),
]


@BOTH
@pytest.mark.parametrize(("x", "axis", "text"), VALUES)
def test_axes_that_are_none(function: Callable[..., Any], x: Any, axis: Any, text: str) -> None:
    with pytest.raises(ValueError, match=exactly(f"{function.__name__}: {text}")):
        function(x, axis)


@BOTH
@pytest.mark.parametrize(("x", "axis", "text"), TYPES, ids=[text[:60] for *_, text in TYPES])
def test_arguments_of_the_wrong_kind(function: Callable[..., Any], x: Any, axis: Any, text: str) -> None:
    with pytest.raises(TypeError, match=exactly(f"{function.__name__}: {text}")):
        function(x, axis)


@BOTH
def test_both_arguments_are_named(function: Callable[..., Any]) -> None:
    text = (
        f"{function.__name__}: 2 arguments do not fit\n"
        f"  x: expected {REAL}, got dtype <U1; pass np.asarray(x, dtype=np.float64)\n"
        "  axis: expected an integer, got str 'b'"
    )
    with pytest.raises(TypeError, match=exactly(text)):
        function("a", "b")


@BOTH
@pytest.mark.parametrize("x", [[[1.0], [2.0, 3.0]]], ids=["ragged"])
def test_what_numpy_cannot_read(function: Callable[..., Any], x: Any) -> None:
    with pytest.raises(
        TypeError, match=rf"^{function.__name__}: x: expected an array, got list that NumPy cannot read"
    ):
        function(x)


# -------------------------------------------------------------------------------------- partial softmax
SCORES = frozen([[0.0, LN3, -INF], [-INF, -INF, -INF], [LN2, LN2, LN2]])  # n_q 3, n_k 3
V = frozen([[1.0, 10.0], [2.0, 20.0], [3.0, 30.0]])  # n_k 3, d_v 2


def test_exponentials() -> None:
    exps, peak = exponentials(SCORES)
    np.testing.assert_allclose(exps, [[1 / 3, 1, 0], [0, 0, 0], [1, 1, 1]], rtol=1e-15)
    np.testing.assert_array_equal(peak, [LN3, -INF, LN2])


def test_part_takes_the_rows_maximum() -> None:
    acc, total, peak = part(SCORES, V)
    np.testing.assert_allclose(acc, [[7 / 3, 70 / 3], [0, 0], [6, 60]], rtol=1e-14)
    np.testing.assert_allclose(total, [4 / 3, 0, 3], rtol=1e-14)
    np.testing.assert_array_equal(peak, [LN3, -INF, LN2])


@pytest.mark.parametrize("peak", [0, 0.0, np.zeros(3), frozen([0, 0, 0])], ids=repr)
def test_part_with_nothing_taken_off(peak: Any) -> None:
    acc, total, reference = part(SCORES, V, peak)
    np.testing.assert_allclose(acc, [[7, 70], [0, 0], [12, 120]], rtol=1e-14)
    np.testing.assert_allclose(total, [4, 0, 6], rtol=1e-14)
    np.testing.assert_array_equal(reference, [0, 0, 0])


def test_part_with_a_peak_for_each_row() -> None:
    acc, total, peak = part(SCORES, V, frozen([LN2, -INF, LN3]))
    np.testing.assert_allclose(acc, [[3.5, 35], [0, 0], [4, 40]], rtol=1e-14)
    np.testing.assert_allclose(total, [2, 0, 2], rtol=1e-14)
    np.testing.assert_array_equal(peak, [LN2, -INF, LN3])


@pytest.mark.parametrize("peak", [None, 0.0, -5.0, frozen([1.0, 2.0, 3.0]), frozen([LN3, -INF, 0.5])], ids=str)
def test_finish_does_not_see_the_peak(peak: Any) -> None:
    out, lse = finish(part(SCORES, V, peak))
    np.testing.assert_allclose(out, [[1.75, 17.5], [0, 0], [2, 20]], rtol=1e-14)
    np.testing.assert_allclose(lse, [np.log(4), -INF, np.log(6)], rtol=1e-14)


def test_part_keeps_float32() -> None:
    partial = part(SCORES.astype(np.float32), V.astype(np.float32), 0.5)
    assert {array.dtype for array in (*partial, *finish(partial), *merge(partial, partial))} == {np.dtype(np.float32)}


def test_part_of_many_heads() -> None:
    scores, v = np.zeros((2, 3, 5, 7)), np.ones((2, 3, 7, 11))
    acc, total, peak = part(scores, v)
    assert acc.shape == (2, 3, 5, 11)
    assert total.shape == peak.shape == (2, 3, 5)
    assert (acc == 7).all()
    assert part(scores, v, 0.0).peak.shape == (2, 3, 5)


def test_part_of_no_keys_is_the_empty_part() -> None:
    for found, expected in zip(part(np.zeros((3, 0)), np.zeros((0, 2))), empty_part((3,), 2), strict=True):
        np.testing.assert_array_equal(found, expected, strict=True)


def test_empty_part() -> None:
    acc, total, peak = empty_part((2, 3), 5, np.float32)
    assert acc.shape == (2, 3, 5)
    assert acc.dtype == total.dtype == peak.dtype == np.float32
    assert not acc.any()
    assert not total.any()
    assert (peak == -INF).all()
    assert empty_part((2,), 3).acc.dtype == np.float64


def some_parts(n: int, n_k: int = 7, scale: float = 1.0) -> list[Partial]:
    rng = np.random.default_rng(n)
    return [
        part(scale * rng.standard_normal((3, 5, n_k)), rng.standard_normal((3, n_k, 2)), None if i % 2 else 0.0)
        for i in range(n)
    ]


@pytest.mark.parametrize("index", [0, 1], ids=["given peak", "row maximum"])
def test_nothing_is_the_identity_of_merge(index: int) -> None:
    piece = some_parts(2)[index]
    nothing = empty_part((3, 5), 2)
    for merged in (merge(nothing, piece), merge(piece, nothing)):
        for found, expected in zip(merged, piece, strict=True):
            assert found.tobytes() == np.ascontiguousarray(expected).tobytes()  # bit for bit


@pytest.mark.parametrize("peak", [None, 0.0, 300.0], ids=str)
def test_a_part_that_saw_nothing_is_nothing_whatever_its_peak(peak: float | None) -> None:
    piece = some_parts(1)[0]
    blind = part(np.full((3, 5, 2), -INF), np.ones((3, 2, 2)), peak)
    for merged in (merge(blind, piece), merge(piece, blind)):
        for found, expected in zip(merged, piece, strict=True):
            np.testing.assert_array_equal(found, expected)


def test_nothing_merged_with_nothing_is_nothing() -> None:
    nothing = empty_part((3,), 2)
    for found, expected in zip(merge(nothing, nothing), nothing, strict=True):
        np.testing.assert_array_equal(found, expected)
    out, lse = finish(merge(nothing, nothing))
    np.testing.assert_array_equal(out, np.zeros((3, 2)))
    np.testing.assert_array_equal(lse, [-INF] * 3)


def test_merge_by_hand() -> None:
    acc, total, peak = merge(
        Partial(frozen([[6.0]]), frozen([2.0]), frozen([0.0])),
        Partial(frozen([[5.0]]), frozen([1.0]), frozen([LN2])),
    )
    np.testing.assert_allclose(acc, [[8]], rtol=1e-15)
    np.testing.assert_allclose(total, [2], rtol=1e-15)
    np.testing.assert_array_equal(peak, [LN2])


@pytest.mark.parametrize("scale", [1.0, 100.0])
def test_every_order_and_grouping_gives_the_whole(scale: float) -> None:
    rng = np.random.default_rng(0)
    scores, v = scale * rng.standard_normal((5, 11)), rng.standard_normal((11, 2))
    whole = finish(part(scores, v))
    pieces = [part(scores[:, cut], v[cut]) for cut in (slice(0, 2), slice(2, 3), slice(3, 8), slice(8, 11))]
    for a, b, c, d in itertools.permutations(pieces):
        for merged in (
            merge(merge(merge(a, b), c), d),
            merge(a, merge(b, merge(c, d))),
            merge(merge(a, b), merge(c, d)),
        ):
            for found, expected in zip(finish(merged), whole, strict=True):
                np.testing.assert_allclose(found, expected, rtol=1e-13, atol=1e-14)


def test_merge_is_commutative_bit_for_bit() -> None:
    a, b = some_parts(2)
    for one, other in zip(merge(a, b), merge(b, a), strict=True):
        np.testing.assert_array_equal(one, other)


def test_far_apart_parts_do_not_overflow() -> None:
    low, high = (part(frozen([[peak]]), frozen([[value]])) for peak, value in ((-1e308, 7.0), (1e308, 5.0)))
    with np.errstate(all="ignore"):
        out, lse = finish(merge(low, high))
    assert out.item() == 5.0
    assert lse.item() == 1e308


# --------------------------------------------------------------------------- finished results, merged
def halves(dtype: Any = np.float64, cuts: tuple[int, ...] = (3, 4)) -> tuple[Any, list[Any], list[Any]]:
    """Attention over all of 11 keys, and over the pieces between the cuts."""
    rng = np.random.default_rng(5)
    q, k, v = (rng.standard_normal((2, 3, n, d)).astype(dtype) for n, d in ((5, 7), (11, 7), (11, 13)))
    pieces = [slice(a, b) for a, b in itertools.pairwise((0, *cuts, 11))]
    steps = [hw.attention_steps(q, k[..., cut, :], v[..., cut, :]) for cut in pieces]
    return hw.attention_steps(q, k, v), [step.out for step in steps], [step.lse for step in steps]


@pytest.mark.parametrize("cuts", [(), (5,), (3, 4), (1, 2, 3, 7)], ids=str)
def test_merged_attention_is_attention(cuts: tuple[int, ...]) -> None:
    whole, outs, lses = halves(cuts=cuts)
    out, lse = hw.merge_attention(outs, lses)
    np.testing.assert_allclose(out, whole.out, rtol=1e-13, atol=1e-15)
    np.testing.assert_allclose(lse, whole.lse, rtol=1e-14)


@pytest.mark.parametrize(
    "given",
    [
        list,
        tuple,
        np.stack,
        lambda arrays: (array for array in arrays),
        iter,
        lambda arrays: [a.tolist() for a in arrays],
    ],
    ids=["list", "tuple", "stacked", "generator", "iterator", "nested lists"],
)
def test_every_kind_of_sequence(given: Callable[[Any], Any]) -> None:
    _, outs, lses = halves()
    expected = hw.merge_attention(outs, lses)
    for found, wanted in zip(hw.merge_attention(given(outs), given(lses)), expected, strict=True):
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize(
    ("out_dtypes", "lse_dtype", "result", "computing"),
    [
        ((np.float64, np.float64), np.float64, np.float64, np.float64),
        ((np.float32, np.float32), np.float32, np.float32, np.float32),
        ((np.float16, np.float16), np.float32, np.float16, np.float32),
        ((BFLOAT16, BFLOAT16), np.float32, BFLOAT16, np.float32),
        ((np.float16, np.float32), np.float32, np.float32, np.float32),
        ((np.float32, np.float32), np.float64, np.float32, np.float64),
        ((np.int64, np.int64), np.float64, np.float64, np.float64),
    ],
)
def test_merged_dtypes(out_dtypes: tuple[Any, Any], lse_dtype: Any, result: Any, computing: Any) -> None:
    outs = [frozen([[2]], dtype) for dtype in out_dtypes]
    out, lse = hw.merge_attention(outs, [frozen([0], lse_dtype)] * 2)
    assert out.dtype == np.dtype(result)
    assert lse.dtype == np.dtype(computing)
    assert out.item() == 2
    np.testing.assert_allclose(lse, [LN2], rtol=1e-7)


def test_merged_by_hand() -> None:
    out, lse = hw.merge_attention([[[10.0]], [[18.0]]], [[LN3], [0.0]])
    np.testing.assert_allclose(out, [[12]], rtol=1e-15)
    np.testing.assert_allclose(lse, [np.log(4)], rtol=1e-15)


@pytest.mark.parametrize("garbage", [NAN, INF, -INF, 1e308, 7.0])
def test_where_a_part_saw_nothing_its_output_is_not_read(garbage: float) -> None:
    outs, lses = [frozen([[garbage], [4.0]]), frozen([[6.0], [8.0]])], [frozen([-INF, 0.0]), frozen([LN2, 0.0])]
    with np.errstate(all="raise"):
        for order in (slice(None), slice(None, None, -1)):
            out, lse = hw.merge_attention(outs[order], lses[order])
            np.testing.assert_allclose(out, [[6], [6]], rtol=1e-15)
            np.testing.assert_allclose(lse, [LN2, LN2], rtol=1e-15)


def test_where_no_part_saw_anything() -> None:
    out, lse = hw.merge_attention([[[NAN]], [[INF]]], [[-INF], [-INF]])
    assert out.tolist() == [[0.0]]
    assert lse.tolist() == [-INF]


def test_a_visible_nan_stays_in_its_row() -> None:
    out, lse = hw.merge_attention([[[NAN], [1.0]], [[2.0], [3.0]]], [[0.0, 0.0], [0.0, 0.0]])
    np.testing.assert_array_equal(out, [[NAN], [2]])
    np.testing.assert_allclose(lse, [LN2, LN2], rtol=1e-15)


def test_an_infinite_lse_stays_in_its_row() -> None:
    for order in (slice(None), slice(None, None, -1)):
        out, lse = hw.merge_attention([[[1.0], [1.0]], [[2.0], [3.0]]][order], [[INF, 0.0], [0.0, 0.0]][order])
        np.testing.assert_array_equal(out, [[NAN], [2]])
        np.testing.assert_allclose(lse, [INF, LN2], rtol=1e-15)


def test_a_single_part_is_itself() -> None:
    out, lse = hw.merge_attention([frozen([[3.0], [NAN]])], [frozen([1.5, -INF])])
    assert out.tolist() == [[3.0], [0.0]]
    assert lse.tolist() == [1.5, -INF]


def test_huge_lses() -> None:
    out, lse = hw.merge_attention([[[3.0]], [[5.0]], [[11.0]]], [[1e300], [1e300], [-1e300]])
    assert out.tolist() == [[4.0]]
    assert lse.tolist() == [1e300]


def test_leading_axes_broadcast() -> None:
    out, lse = hw.merge_attention([np.ones((1, 3, 2)), np.full((5, 3, 2), 3.0)], [np.zeros((1, 3)), np.zeros((5, 3))])
    np.testing.assert_allclose(out, np.full((5, 3, 2), 2.0), rtol=1e-15)
    assert lse.shape == (5, 3)


def test_no_queries() -> None:
    out, lse = hw.merge_attention([np.ones((0, 3))] * 2, [np.ones(0)] * 2)
    assert out.shape == (0, 3)
    assert lse.shape == (0,)


OUT, LSE = np.ones((2, 3)), np.ones(2)
MERGE_VALUES = [
    ([], [], "outs and lses: expected one lse for each of at least one out, got 0 outs and 0 lses"),
    ([OUT], [], "outs and lses: expected one lse for each of at least one out, got 1 outs and 0 lses"),
    ([], [LSE], "outs and lses: expected one lse for each of at least one out, got 0 outs and 1 lses"),
    ([OUT] * 2, [LSE] * 3, "outs and lses: expected one lse for each of at least one out, got 2 outs and 3 lses"),
    ([OUT, OUT], [LSE, np.ones(3)], "lses[1]: expected (..., n_q) = (2,) as outs[1] (2, 3), got (3,)"),
    (
        [np.ones((5, 2, 3))],
        [np.ones(5)],
        "lses[0]: expected (..., n_q) = (5, 2) as outs[0] (5, 2, 3), got (5,)",
    ),
    ([OUT, OUT], [OUT, LSE], "lses[0]: expected (..., n_q) = (2,) as outs[0] (2, 3), got (2, 3)"),
    (
        [OUT, np.ones((2, 5))],
        [LSE, LSE],
        "outs: expected one (n_q, d_v), and leading axes that broadcast, got (2, 3), (2, 5)",
    ),
    (
        [OUT, np.ones((5, 3))],
        [LSE, LSE],
        (
            "2 arguments do not fit\n"
            "  lses[1]: expected (..., n_q) = (5,) as outs[1] (5, 3), got (2,)\n"
            "  outs: expected one (n_q, d_v), and leading axes that broadcast, got (2, 3), (5, 3)"
        ),
    ),
    ([1.0], [1.0], "outs[0]: expected (..., n_q, d_v), one axis or more, got ()"),
]
MERGE_TYPES = [
    ([OUT, "a"], [LSE, LSE], f"outs[1]: expected {REAL}, got dtype <U1; pass np.asarray(outs[1], dtype=np.float64)"),
    ([OUT], [[None, None]], f"lses[0]: expected {REAL}, got dtype object; pass np.asarray(lses[0], dtype=np.float64)"),
    (3, [LSE], "outs: expected a sequence of arrays, got int"),
    ([OUT], None, "lses: expected a sequence of arrays, got NoneType"),
]


@pytest.mark.parametrize(("outs", "lses", "text"), MERGE_VALUES, ids=[text[:50] for *_, text in MERGE_VALUES])
def test_results_that_do_not_fit(outs: Any, lses: Any, text: str) -> None:
    with pytest.raises(ValueError, match=exactly(f"merge_attention: {text}")):
        hw.merge_attention(outs, lses)


@pytest.mark.parametrize(("outs", "lses", "text"), MERGE_TYPES, ids=[text[:30] for *_, text in MERGE_TYPES])
def test_what_is_of_the_wrong_kind_is_not_counted_as_missing_too(outs: Any, lses: Any, text: str) -> None:
    with pytest.raises(TypeError, match=exactly(f"merge_attention: {text}")):
        hw.merge_attention(outs, lses)


def test_both_sequences_are_named() -> None:
    text = (
        "merge_attention: 2 arguments do not fit\n"
        "  outs: expected a sequence of arrays, got int\n"
        "  lses: expected a sequence of arrays, got NoneType"
    )
    with pytest.raises(TypeError, match=exactly(text)):
        hw.merge_attention(3, None)


@pytest.mark.parametrize("shape", [(2, 1), (1, 3)], ids=["d_v", "n_q"])
def test_queries_and_widths_are_never_stretched(shape: tuple[int, int]) -> None:
    text = f"outs: expected one (n_q, d_v), and leading axes that broadcast, got (2, 3), {shape}"
    with pytest.raises(ValueError, match=exactly(f"merge_attention: {text}")):
        hw.merge_attention([OUT, np.ones(shape)], [LSE, np.ones(shape[0])])


def test_leading_axes_that_do_not_broadcast() -> None:
    text = "outs: expected one (n_q, d_v), and leading axes that broadcast, got (5, 2, 3), (7, 2, 3)"
    with pytest.raises(ValueError, match=exactly(f"merge_attention: {text}")):
        hw.merge_attention([np.ones((5, 2, 3)), np.ones((7, 2, 3))], [np.ones((5, 2)), np.ones((7, 2))])


def test_merging_with_nothing_changes_no_bit_of_the_smallest_values() -> None:
    for dtype in (np.float32, np.float64):
        tiny = np.array([[np.finfo(dtype).smallest_subnormal]], dtype)
        empty = (np.zeros_like(tiny), np.array([-INF], dtype))
        out, lse = hw.merge_attention([tiny, empty[0], empty[0]], [np.zeros(1, dtype), empty[1], empty[1]])
        assert out == tiny
        assert lse == 0
        assert lse.dtype == dtype


def test_the_log_sum_of_a_single_query_keeps_its_type() -> None:
    three = [np.ones(3, np.float32)] * 3
    assert hw.merge_attention(three, [np.asarray(np.float32(1))] * 3)[1].dtype == np.float32
    assert hw.merge_attention(three[:1], [np.asarray(np.float32(1))])[1].dtype == np.float32
