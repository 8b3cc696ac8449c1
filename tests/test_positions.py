"""ALiBi: the slopes by the authors' rule written again here, the bias number by number, and what it refuses."""

import copy
import math
import pickle
import re
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import headwise as hw
from headwise.core.shapes import Fault

REAL = "real numbers (float16, bfloat16, float32, float64, integers or bool)"
ITEM_REMEDY = "it holds for items, never for heads; size 1 on a batch axis, or none, holds for all items"


def frozen(values: Any, dtype: Any = None) -> Any:
    """A read-only array: nothing here may write to its inputs."""
    array = np.array(values, dtype)
    array.flags.writeable = False
    return array


def exactly(text: str) -> str:
    return f"^{re.escape(text)}$"


# ---------------------------------------------------------------------------------------------- slopes
def authors_slopes(n_heads: int) -> list[float]:
    """Press, Smith, Lewis: a geometric series for powers of two, otherwise every other slope of the next one."""
    if math.log2(n_heads).is_integer():
        start = 2 ** (-(2 ** -(math.log2(n_heads) - 3)))
        return [start * start**i for i in range(n_heads)]
    below = 2 ** math.floor(math.log2(n_heads))
    return authors_slopes(below) + authors_slopes(2 * below)[0::2][: n_heads - below]


@pytest.mark.parametrize("n_heads", [*range(1, 18), 24, 31, 32, 33, 112])
def test_slopes_by_the_authors_rule(n_heads: int) -> None:
    slopes = hw.alibi_slopes(n_heads)
    assert slopes.dtype == np.float64
    assert slopes.shape == (n_heads,)
    np.testing.assert_allclose(slopes, authors_slopes(n_heads), rtol=1e-14)


@pytest.mark.parametrize(
    ("n_heads", "powers"),
    [
        (1, [8]),
        (2, [4, 8]),
        (3, [4, 8, 2]),
        (5, [2, 4, 6, 8, 1]),
        (7, [2, 4, 6, 8, 1, 3, 5]),
        (8, [1, 2, 3, 4, 5, 6, 7, 8]),
        (12, [1, 2, 3, 4, 5, 6, 7, 8, 0.5, 1.5, 2.5, 3.5]),
        (32, [h / 4 for h in range(1, 33)]),
    ],
)
def test_slopes_by_hand(n_heads: int, powers: list[float]) -> None:
    np.testing.assert_allclose(hw.alibi_slopes(n_heads), [2.0**-power for power in powers], rtol=1e-15)


def test_slopes_differ_and_lie_between_0_and_1() -> None:
    for n_heads in range(1, 130):
        slopes = hw.alibi_slopes(n_heads)
        assert np.unique(slopes).size == n_heads
        assert (slopes > 0).all()
        assert (slopes < 1).all()


def test_the_number_of_heads_may_be_any_integer() -> None:
    np.testing.assert_array_equal(hw.alibi_slopes(np.uint8(5)), hw.alibi_slopes(5))


@pytest.mark.parametrize(
    ("n_heads", "error", "text"),
    [
        (0, ValueError, "alibi_slopes: n_heads: expected a number of heads of at least 1, got 0"),
        (-3, ValueError, "alibi_slopes: n_heads: expected a number of heads of at least 1, got -3"),
        (8.0, TypeError, "alibi_slopes: n_heads: expected a number of heads, got float 8.0"),
        (True, TypeError, "alibi_slopes: n_heads: expected a number of heads, got bool True"),
        ("8", TypeError, "alibi_slopes: n_heads: expected a number of heads, got str '8'"),
        (None, TypeError, "alibi_slopes: n_heads: expected a number of heads, got NoneType None"),
    ],
)
def test_numbers_of_heads_that_are_none(n_heads: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=exactly(text)):
        hw.alibi_slopes(n_heads)


# ------------------------------------------------------------------------------------------------ bias
@pytest.mark.parametrize(
    ("slopes", "offset", "shape", "bias"),
    [
        ([0.5], None, (2, 2), [[0, -0.5], [-0.5, 0]]),
        ([0.5], None, (2, 3), [[-0.5, 0, -0.5], [-1, -0.5, 0]]),
        ([0.5], None, (3, 2), [[-0.5, -1], [0, -0.5], [-0.5, 0]]),
        ([0.5], 0, (2, 3), [[0, -0.5, -1], [-0.5, 0, -0.5]]),
        ([2], 3, (1, 5), [[-6, -4, -2, 0, -2]]),
        ([2], -1, (1, 3), [[-2, -4, -6]]),
        ([-1], 0, (2, 3), [[0, 1, 2], [1, 0, 1]]),
        ([0], None, (2, 3), [[0, 0, 0], [0, 0, 0]]),
        ([1, 10], 0, (2, 1, 3), [[[0, -1, -2]], [[0, -10, -20]]]),
        ([1], [0, 2], (2, 1, 1, 3), [[[[0, -1, -2]]], [[[-2, -1, 0]]]]),
        ([1, 10], [0, 2], (2, 2, 1, 3), [[[[0, -1, -2]], [[0, -10, -20]]], [[[-2, -1, 0]], [[-20, -10, 0]]]]),
        ([1, 10], [0, 2], (2, 1, 3), [[[0, -1, -2]], [[-20, -10, 0]]]),  # three axes: items and heads are one axis
    ],
    ids=str,
)
def test_bias_by_hand(slopes: list[float], offset: Any, shape: tuple[int, ...], bias: Any) -> None:
    dense = np.broadcast_to(hw.alibi(frozen(slopes), offset).dense(shape), shape)
    assert dense.dtype == np.float64
    np.testing.assert_array_equal(dense, bias)


SHAPES: list[tuple[tuple[int, ...], Any]] = [
    ((7, 11), None),
    ((11, 7), None),
    ((7, 11), 3),
    ((5, 7, 11), None),
    ((5, 7, 11), [3, -2, 0, 40, 1]),
    ((3, 5, 7, 11), None),
    ((3, 5, 7, 11), 2),
    ((3, 5, 7, 11), [3, -2, 40]),
    ((3, 5, 7, 11), [6]),
    ((2, 3, 5, 7, 11), [3, -2, 40]),
    ((2, 3, 5, 7, 11), [[3], [-2]]),
]


@pytest.mark.parametrize(("shape", "offset"), SHAPES, ids=str)
def test_every_number_is_the_formula(shape: tuple[int, ...], offset: Any) -> None:
    n_heads, batch = (shape[-3] if len(shape) > 2 else 1), (shape[:-3] if len(shape) > 3 else shape[:-2])
    slopes = hw.alibi_slopes(n_heads)
    offsets = np.broadcast_to(shape[-1] - shape[-2] if offset is None else offset, batch)
    dense = np.broadcast_to(hw.alibi(slopes, offset).dense(shape), shape)
    for place in np.ndindex(*shape):
        *lead, i, j = place
        slope = slopes[lead[-1]] if lead else slopes[0]
        assert dense[place] == -slope * abs(i + offsets[tuple(lead[: len(batch)])] - j)


@pytest.mark.parametrize(("shape", "offset"), SHAPES, ids=str)
def test_a_tile_is_a_part_of_the_whole(shape: tuple[int, ...], offset: Any) -> None:
    bias = hw.alibi(hw.alibi_slopes(shape[-3] if len(shape) > 2 else 1), offset)
    dense = np.broadcast_to(bias.dense(shape), shape)
    rows, cols = slice(2, 5), slice(1, 7)
    for lead in np.ndindex(*shape[:-2]):
        np.testing.assert_array_equal(bias.tile(shape, lead, rows, cols), dense[lead][rows, cols], strict=True)


def test_far_positions_stay_whole_numbers() -> None:
    bias = hw.alibi([1.0], offset=2**61)
    assert bias.dense((1, 1)).item() == -(2.0**61)
    n = 2**53
    assert hw.alibi([1.0]).tile((n, n), (), slice(n - 1, n), slice(n - 3, n)).tolist() == [[-2.0, -1.0, 0.0]]


@pytest.mark.parametrize("shape", [(0, 3), (2, 0), (5, 0, 3), (0, 5, 2, 3)], ids=str)
def test_empty_scores(shape: tuple[int, ...]) -> None:
    bias = hw.alibi(np.ones(5 if len(shape) > 2 else 1))
    assert np.broadcast_to(bias.dense(shape), shape).shape == shape


def test_attention_adds_it_to_the_scores() -> None:
    q, k, v = frozen(np.zeros((2, 3, 5, 2))), frozen(np.zeros((2, 3, 7, 2))), frozen(np.ones((2, 3, 7, 2)))
    bias = hw.alibi(hw.alibi_slopes(3), offset=[1, 4])
    steps = hw.attention_steps(q, k, v, bias=bias)
    np.testing.assert_array_equal(steps.biased, bias.dense((2, 3, 5, 7)))
    same = hw.attention_steps(q, k, v, bias=np.array(bias.dense((2, 3, 5, 7))))
    np.testing.assert_array_equal(same.weights, steps.weights)


def test_attention_in_float32_rounds_it_once() -> None:
    q = frozen(np.zeros((3, 5, 2)), np.float32)
    steps = hw.attention_steps(q, q, q, bias=hw.alibi(hw.alibi_slopes(3)))
    assert steps.biased.dtype == np.float32
    np.testing.assert_array_equal(steps.biased, hw.alibi(hw.alibi_slopes(3)).dense((3, 5, 5)).astype(np.float32))


# ------------------------------------------------------------------------------------- it never enlarges
@pytest.mark.parametrize(
    ("n_slopes", "shape", "n_heads"),
    [
        (3, (7, 11), 1),
        (3, (1, 7, 11), 1),
        (1, (3, 7, 11), 3),
        (2, (3, 7, 11), 3),
        (2, (2, 3, 7, 11), 3),
        (0, (7, 11), 1),
    ],
)
def test_slopes_that_do_not_fit(n_slopes: int, shape: tuple[int, ...], n_heads: int) -> None:
    fault = Fault("slopes", f"one number per head, shape (H,) = ({n_heads},)", f"({n_slopes},)")
    bias = hw.alibi(np.ones(n_slopes))
    assert bias.misfits(shape) == [fault]
    q, k = np.ones((*shape[:-1], 2)), np.ones((*shape[:-2], shape[-1], 2))
    with pytest.raises(ValueError, match=exactly(f"scaled_dot_product_attention: {fault}")):
        hw.scaled_dot_product_attention(q, k, k, bias=bias)


@pytest.mark.parametrize(
    ("offset", "shape", "expected"),
    [
        ([0], (7, 11), "(B) against the batch axes of the scores (7, 11): ()"),
        ([0, 1], (3, 7, 11), "(B) against the batch axes of the scores (3, 7, 11): (3,)"),
        ([0, 1, 2], (2, 3, 7, 11), "(B) against the batch axes of the scores (2, 3, 7, 11): (2,)"),
    ],
)
def test_offsets_that_do_not_fit(offset: list[int], shape: tuple[int, ...], expected: str) -> None:
    n_heads = shape[-3] if len(shape) > 2 else 1
    fault = Fault("offset", expected, f"({len(offset)},)", ITEM_REMEDY)
    assert hw.alibi(np.ones(n_heads), offset).misfits(shape) == [fault]


def test_a_bias_that_does_not_fit_is_not_built() -> None:
    with pytest.raises(ValueError, match=r"slopes: expected one number per head, shape \(H,\) = \(1,\), got \(2,\)"):
        hw.alibi([1.0, 2.0]).dense((7, 11))


def test_slopes_and_offset_are_both_named() -> None:
    names = [fault.argument for fault in hw.alibi([1.0, 2.0], [0, 1]).misfits((7, 11))]
    assert names == ["slopes", "offset"]


@pytest.mark.parametrize("shape", [(7, 11), (1, 7, 11), (2, 1, 7, 11)], ids=str)
def test_what_fits(shape: tuple[int, ...]) -> None:
    assert hw.alibi([0.5], 3).misfits(shape) == []


# ---------------------------------------------------------------------------------------------- errors
@pytest.mark.parametrize(
    ("slopes", "offset", "error", "text"),
    [
        (0.5, None, ValueError, "alibi: slopes: expected one number per head, shape (H,), got ()"),
        ([[0.5]], None, ValueError, "alibi: slopes: expected one number per head, shape (H,), got (1, 1)"),
        ([0.5, np.nan], None, ValueError, "alibi: slopes: expected finite numbers, got NaN or inf"),
        ([-np.inf], None, ValueError, "alibi: slopes: expected finite numbers, got NaN or inf"),
        (
            ["a"],
            None,
            TypeError,
            f"alibi: slopes: expected {REAL}, got dtype <U1; pass np.asarray(slopes, dtype=np.float64)",
        ),
        (
            None,
            None,
            TypeError,
            "alibi: slopes: expected an array, got None",
        ),
        (
            [1j],
            None,
            TypeError,
            (
                f"alibi: slopes: expected {REAL}, got dtype complex128; "
                "complex attention has no agreed meaning: pass slopes.real, or parts of it as more features"
            ),
        ),
        (
            [0.5],
            1.0,
            TypeError,
            "alibi: offset: expected integers, got dtype float64; pass np.asarray(offset, dtype=np.int64)",
        ),
        (
            [0.5],
            2**62 + 1,
            ValueError,
            f"alibi: offset: expected integers within 62 bits, got {2**62 + 1} to {2**62 + 1}",
        ),
        (
            0.5,
            [True],
            TypeError,
            (
                "alibi: 2 arguments do not fit\n"
                "  slopes: expected one number per head, shape (H,), got ()\n"
                "  offset: expected integers, got dtype bool"
            ),
        ),
    ],
)
def test_refusals(slopes: Any, offset: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=exactly(text)):
        hw.alibi(slopes, offset)


# ------------------------------------------------------------------------------------------- the object
@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32, ">f4", np.int8, bool], ids=str)
def test_slopes_of_every_type_are_float64(dtype: Any) -> None:
    bias = hw.alibi(frozen([1, 0], dtype))
    assert bias.slopes.dtype == np.float64
    assert bias.dense((2, 1, 3)).tolist() == [[[-2, -1, 0]], [[0, 0, 0]]]


def test_what_the_caller_changes_later_changes_nothing() -> None:
    slopes, offset = np.array([1.0, 2.0]), np.array([0, 1])
    bias = hw.alibi(slopes, offset)
    before = bias.dense((2, 2, 1, 3))
    slopes[:], offset[:] = 7, 7
    np.testing.assert_array_equal(bias.dense((2, 2, 1, 3)), before)


@pytest.mark.parametrize("offset", [None, 2, [0, 3]], ids=str)
def test_pickled_and_copied(offset: Any) -> None:
    bias = hw.alibi(hw.alibi_slopes(3), offset)
    for twin in (pickle.loads(pickle.dumps(bias)), copy.deepcopy(bias)):
        assert repr(twin) == repr(bias)
        np.testing.assert_array_equal(twin.dense((2, 3, 5, 7)), bias.dense((2, 3, 5, 7)))


@pytest.mark.parametrize(
    ("bias", "text"),
    [
        (hw.alibi([0.5]), "alibi([0.5])"),
        (hw.alibi([0.5, 0.25], 0), "alibi([0.5, 0.25], offset=0)"),
        (hw.alibi([0.5, 0.25], [1, 2]), "alibi([0.5, 0.25], offset=[1, 2])"),
        (hw.alibi(np.ones(8)), "alibi([1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0])"),
        (hw.alibi(np.ones(9)), "alibi(<float64 (9,)>)"),
    ],
)
def test_the_repr(bias: Any, text: str) -> None:
    assert repr(bias) == text


def test_the_repr_of_many_offsets_is_short() -> None:
    assert len(repr(hw.alibi([0.5], np.zeros(1000, int)))) < 80
