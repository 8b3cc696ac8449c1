"""Softmax and log-sum-exp by hand, and the algebra of partial results: merged in any grouping they are the whole."""

import functools
import itertools
import re
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from bits import bits

import headwise as hw
from headwise.core.softmax import (
    Partial,
    absorb,
    add,
    divided,
    empty_part,
    exponentials,
    finish,
    floored_exp,
    in_memory_order,
    log_total,
    merge,
    merge_along,
    part,
    row_maximum,
    weighted_sum,
)

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


@pytest.mark.parametrize(("dtype", "floor"), [(np.float32, -60), (np.float64, -600)])
def test_an_exponential_with_a_floor(dtype: Any, floor: float) -> None:
    x = np.array([0.0, -1.0, floor + 1, floor, floor - 1, -INF, NAN, INF, -30.5], dtype)
    wanted = np.exp(np.where(x < floor, dtype(floor), x))
    np.testing.assert_array_equal(floored_exp(x), wanted)
    assert floored_exp(x).dtype == dtype
    assert np.nanmin(wanted) > np.finfo(dtype).tiny
    out = np.empty_like(x)
    assert floored_exp(x, out=out) is out
    np.testing.assert_array_equal(out, wanted)


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
            assert bits(found) == bits(np.ascontiguousarray(expected))  # bit for bit


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
    (
        np.ones((5, 3)),
        np.ones(5),
        (
            "outs: expected a list of results over different keys, got one array (5, 3); pass [out] and [lse] for one "
            "result, or those of several by zip(*results)"
        ),
    ),
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


# --------------------------------------------------------------------------- parts as the engine makes them
Partials = tuple[Any, Any, Any]
FLOATS = [np.float32, np.float64]
ORDERS = ["queries first", "keys first"]  # in memory
EACH_WAY = pytest.mark.parametrize(("dtype", "order"), list(itertools.product(FLOATS, ORDERS)))


def in_order(values: Any, order: str) -> Any:
    """The same array, whose last two axes lie in this order in memory."""
    if order == "queries first":
        return np.ascontiguousarray(values)
    return np.ascontiguousarray(values.swapaxes(-1, -2)).swapaxes(-1, -2)


def words_of(seen: Any, dtype: Any, order: str = "queries first") -> Any:
    """A mask in words, read-only."""
    word = np.dtype(f"u{np.dtype(dtype).itemsize}")
    bits = in_order(seen.astype(word) * word.type(np.iinfo(word).max), order)
    bits.flags.writeable = False
    return bits


def scene(dtype: Any, order: str, n_k: int = 7, wild: bool = False) -> tuple[Any, Any, Any]:
    """Scores (2, 5, n_k), values and who sees whom; one query sees nothing, and NaN and inf are hidden where wild."""
    rng = np.random.default_rng(3)
    scores, v = rng.standard_normal((2, 5, n_k)), rng.standard_normal((2, n_k, 3))
    seen = rng.random((5, n_k)) < 0.6
    seen[3] = False
    seen[:, -1] = False
    if wild:
        scores[:, ~seen] = rng.choice([NAN, INF, -INF, 1e30], (2, int((~seen).sum())))
        v[:, -1] = NAN, INF, -INF
    return in_order(scores.astype(dtype), order), v.astype(dtype), seen


def by_formula(scores: Any, v: Any, seen: Any, peak: Any, kept: Any = 1.0, exp: Any = np.exp) -> Partials:
    """``(acc, total, peak)`` pair by pair, in float64; what is not seen is not read."""
    s, values = scores.astype(np.float64), v.astype(np.float64)
    seen, kept = np.broadcast_to(seen, s.shape), np.broadcast_to(kept, s.shape)
    if peak is None:
        peak = np.where(seen, s, -INF).max(axis=-1, initial=-INF)
    peak = np.broadcast_to(peak, s.shape[:-1])
    acc, total = np.zeros((*s.shape[:-1], v.shape[-1])), np.zeros(s.shape[:-1])
    for at in np.ndindex(*s.shape):
        if seen[at]:
            weight = exp(s[at] - peak[at[:-1]])
            total[at[:-1]] += weight
            acc[at[:-1]] += weight * kept[at] * values[(*at[:-2], at[-1])]
    return acc, total, peak


def assert_part(got: Partial, wanted: Partials, dtype: Any) -> None:
    for mine, plain in zip(got, wanted, strict=True):
        assert np.asarray(mine).dtype == dtype
        np.testing.assert_allclose(mine, plain, rtol=0, atol=64 * np.finfo(dtype).eps)


def room(scores: Any, d_v: int, dtype: Any) -> tuple[Partial, list[Any]]:
    """Arrays for a partial result inside larger ones, full of 7, which nobody may touch beside it."""
    rows = scores.shape[:-1]
    whole = [np.full([size + 2 for size in shape], 7, dtype) for shape in ((*rows, d_v), rows, rows)]
    return Partial(*(x[(slice(1, -1),) * x.ndim] for x in whole)), whole


def assert_nothing_beside(into: Partial, whole: list[Any]) -> None:
    for inside, x in zip(into, whole, strict=True):
        inside[...] = 7
        assert (x == 7).all()


@pytest.mark.parametrize("written", [False, True], ids=["new", "into"])
@pytest.mark.parametrize("wild", [False, True], ids=["tame", "wild"])
@pytest.mark.parametrize("peak", [None, 0.0, 0.5, "rows"])
@EACH_WAY
def test_part_with_bits(dtype: Any, order: str, peak: Any, wild: bool, written: bool) -> None:
    scores, v, seen = scene(dtype, order, wild=wild)
    taken = np.linspace(-1, 1, 10).reshape(2, 5).astype(dtype) if peak == "rows" else peak
    wanted = by_formula(scores, v, seen, taken)
    for bits_order in ORDERS:
        mine, bits = in_order(scores.copy(), order), words_of(seen, dtype, bits_order)
        into, whole = room(scores, 3, dtype) if written else (None, [])
        if into is not None and isinstance(peak, float):
            into.peak[...] = peak  # a number is there already
        if not written:
            mine.flags.writeable = False
        with np.errstate(all="ignore"):
            got = part(mine, v, taken, bits=bits, finite=not wild, into=into)
        assert_part(got, wanted, dtype)
        if into is not None:
            assert got is into
            assert_nothing_beside(into, whole)


@pytest.mark.parametrize("written", [False, True], ids=["new", "into"])
@pytest.mark.parametrize("masked", [False, True])
@EACH_WAY
def test_part_with_dropout_and_another_base(dtype: Any, order: str, masked: bool, written: bool) -> None:
    scores, v, seen = scene(dtype, order)
    kept = np.random.default_rng(4).random(scores.shape) < 0.5
    into = room(scores, 3, dtype)[0] if written else None
    bits = words_of(seen, dtype) if masked else None
    given = scores.copy("K")
    got = part(given, v, bits=bits, kept=words_of(kept, dtype, order), exp=np.exp2, into=into)
    assert_part(got, by_formula(scores, v, seen if masked else True, None, kept, np.exp2), dtype)
    if not written:
        np.testing.assert_array_equal(given, scores)  # only with `into` they are overwritten


@pytest.mark.parametrize("n_k", [1, 511, 512, 513, 1500])
@EACH_WAY
def test_part_of_many_keys(dtype: Any, order: str, n_k: int) -> None:
    """Rows are summed in one way while they are short, in another when they are long."""
    scores, v, seen = scene(dtype, order, n_k)
    into, _ = room(scores, 3, dtype)
    got = part(scores.copy("K"), v, 0.0, bits=words_of(seen, dtype), into=into._replace(peak=np.zeros((2, 5), dtype)))
    for mine, plain in zip(got, by_formula(scores, v, seen, 0.0), strict=True):
        np.testing.assert_allclose(mine, plain, rtol=64 * np.finfo(dtype).eps, atol=64 * n_k**0.5 * np.finfo(dtype).eps)


@EACH_WAY
def test_a_visible_nan_stays_visible_beside_hidden_ones(dtype: Any, order: str) -> None:
    scores, v, seen = scene(dtype, order, wild=True)
    v[0, 2, 1] = NAN
    with np.errstate(all="ignore"):
        acc = part(scores, v, 0.0, bits=words_of(seen, dtype), finite=False).acc
    wanted = np.zeros(acc.shape, bool)
    wanted[0, seen[:, 2], 1] = True
    np.testing.assert_array_equal(np.isnan(acc), wanted)


@EACH_WAY
def test_weighted_sum_leaves_out_what_is_not_seen(dtype: Any, order: str) -> None:
    scores, v, seen = scene(dtype, order, wild=True)
    weights = in_order(np.where(seen, 0.5, 0).astype(dtype) * np.ones((2, 1, 1), dtype), order)
    plain = by_formula(np.zeros(scores.shape), v, seen, 0.0, 0.5)[0]
    out = np.full((2, 5, 3), 9, dtype)
    for given in (None, out):
        with np.errstate(all="ignore"):
            got = weighted_sum(weights, v, seen, out=given)
        np.testing.assert_allclose(got, plain, rtol=0, atol=1e-6)
        assert got.dtype == dtype
    np.testing.assert_allclose(out, plain, rtol=0, atol=1e-6)
    tame = np.ones_like(v)
    np.testing.assert_allclose(
        weighted_sum(weights, tame, seen), weights.sum(-1, keepdims=True) * np.ones(3), atol=1e-6
    )
    np.testing.assert_allclose(
        weighted_sum(weights, tame, None), weights.sum(-1, keepdims=True) * np.ones(3), atol=1e-6
    )


@EACH_WAY
def test_row_maximum(dtype: Any, order: str) -> None:
    scores, _, seen = scene(dtype, order)
    np.testing.assert_array_equal(row_maximum(scores.copy("K"), None), scores.max(axis=-1))
    mine = scores.copy("K")
    mine[:, ~seen] = np.resize(np.array([NAN, INF, 1e30], dtype), int((~seen).sum()))
    got = row_maximum(mine, words_of(seen, dtype))
    np.testing.assert_array_equal(got, np.where(seen, scores, -INF).max(axis=-1))
    np.testing.assert_array_equal(mine, np.where(seen, scores, -INF))  # what is hidden is overwritten
    assert got.dtype == dtype
    assert (row_maximum(np.ones((3, 0), dtype), None) == -INF).all()


@pytest.mark.parametrize("shape", [(5, 7), (2, 5, 7), (2, 1, 5, 1), (1, 1), (3, 0, 4)], ids=str)
def test_memory_order_is_that_of_the_scores(shape: tuple[int, ...]) -> None:
    plain, beside = (
        np.arange(float(np.prod(shape))).reshape(shape),
        np.arange(float(np.prod(shape[-2:]))).reshape(shape[-2:]),
    )
    for order in ORDERS:
        scores = in_order(plain, order)
        one, other = in_memory_order(scores, beside)
        assert one.strides[-2] >= one.strides[-1]
        assert one is scores or np.shares_memory(one, scores) or not scores.size
        for got, given in ((one, scores), (other, beside)):  # both turned or neither
            np.testing.assert_array_equal(got, given if one is scores else given.swapaxes(-1, -2))


@pytest.mark.parametrize("dtype", FLOATS)
def test_add_is_merge_where_references_are_equal(dtype: Any) -> None:
    scores, v, _ = scene(dtype, "queries first", n_k=8)
    halves = [part(scores[..., keys], v[..., keys, :], 0.25) for keys in (slice(0, 3), slice(3, 8))]
    whole = Partial(*(np.array(field) for field in halves[0]))
    before = bits(halves[1])
    same, peak = whole.acc, bits(whole.peak)
    add(whole, halves[1])
    assert whole.acc is same
    assert bits(halves[1]) == before
    assert bits(whole.peak) == peak
    for mine, merged in zip(whole, merge(*halves), strict=True):
        np.testing.assert_allclose(mine, merged, rtol=8 * np.finfo(dtype).eps, atol=8 * np.finfo(dtype).eps)
    assert_part(whole, by_formula(scores, v, True, 0.25), dtype)


@pytest.mark.parametrize("dtype", FLOATS)
def test_absorb_is_merge_in_place(dtype: Any) -> None:
    scores, v, seen = scene(dtype, "queries first", n_k=8)
    scores[..., 5:] += 80  # outgrows the first part by far
    scores[..., 2, :5] = -INF
    cuts = (slice(0, 5), slice(5, 8))
    halves = [part(scores[..., keys], v[..., keys, :], bits=words_of(seen[:, keys], dtype)) for keys in cuts]
    for first, second in (halves, halves[::-1]):
        whole, wanted = Partial(*(np.array(field) for field in first)), merge(first, second)
        fields = tuple(whole)
        absorb(whole, second)
        for mine, field, merged in zip(whole, fields, wanted, strict=True):
            assert mine is field
            assert mine.dtype == dtype
            np.testing.assert_array_equal(mine, merged)


def test_absorb_by_hand() -> None:
    """Weights 1 + 2 of peak 0 and 3 of peak log 2: 1 + 2 + 6 = 9 in all."""
    whole = Partial(np.array([[3.0 * 6]]), np.array([3.0]), np.array([0.0]))
    absorb(whole, Partial(np.array([[3.0 * 9]]), np.array([3.0]), np.array([LN2])))
    np.testing.assert_allclose(divided(whole), [[(18 + 54) / 9]], rtol=1e-15)
    np.testing.assert_allclose(log_total(whole), [np.log(9)], rtol=1e-15)


def test_absorb_takes_parts_that_are_stretched() -> None:
    """As sinks are: one number for all queries, whose value is nothing."""
    whole = Partial(np.ones((2, 3, 4)), np.ones((2, 3)), np.zeros((2, 3)))
    sinks = np.array([[LN3], [-INF]])
    absorb(whole, Partial(np.zeros(()), np.where(sinks == -INF, 0.0, 1.0), sinks))
    np.testing.assert_allclose(divided(whole), np.array([0.25, 1.0])[:, None, None] * np.ones((2, 3, 4)), rtol=1e-15)
    np.testing.assert_allclose(log_total(whole), np.log([[4.0] * 3, [1.0] * 3]), atol=1e-15)


@pytest.mark.parametrize("dtype", FLOATS)
def test_divided_and_log_total_are_finish(dtype: Any) -> None:
    acc, total, peak = np.array([[6, 8], [0, 0], [5, NAN], [1, 1]]), np.array([2, 0, 1, NAN]), np.array([3, 7, -1, INF])
    whole = Partial(*(x.astype(dtype) for x in (acc, total, peak)))
    wanted, lses = [[3, 4], [0, 0], [5, NAN], [NAN, NAN]], [np.log(2) + 3, -INF, -1, INF]
    out = np.full((4, 2), 9, dtype)
    with np.errstate(all="ignore"):
        for got in (divided(whole), divided(whole, out), finish(whole)[0]):
            assert got.dtype == dtype
            np.testing.assert_array_equal(got, wanted)
        assert divided(whole, out) is out
        for lse in (log_total(whole), finish(whole)[1]):
            assert lse.dtype == dtype
            np.testing.assert_allclose(lse, lses, rtol=1e-6)
    assert bits(whole) == [bits(x.astype(dtype)) for x in (acc, total, peak)]


@pytest.mark.parametrize("n_parts", [1, 2, 5])
def test_parts_along_an_axis_merge_as_one_by_one(n_parts: int) -> None:
    """Parts that saw nothing too, whatever reference stands in them: the whole of nothing has the peak -inf."""
    rng = np.random.default_rng(n_parts)
    acc, total, peak = rng.random((n_parts, 6, 3)), rng.random((n_parts, 6)), 50 * rng.standard_normal((n_parts, 6))
    nothing = rng.random((n_parts, 6)) < 0.5
    nothing[:, 0] = True
    acc[nothing], total[nothing] = 0, 0
    one_by_one = functools.reduce(merge, map(Partial, acc.copy(), total, peak), empty_part((6,), 3))
    whole = merge_along(Partial(acc.copy(), total, peak))
    for got, expected in zip(whole, one_by_one, strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-12)
    assert whole.peak[0] == -np.inf
