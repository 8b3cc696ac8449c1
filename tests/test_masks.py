"""Every kind of mask against its sentence evaluated pair by pair, tile by tile against the whole, and in pictures."""

import copy
import itertools
import pickle
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import headwise as hw
from headwise import masks
from headwise.core.shapes import Fault

Lead = tuple[int, ...]
Pair = Callable[[Lead, int, int], bool]  # of (item and head, query i, key j)

ITEM_REMEDY = "it holds for items, never for heads; size 1 on a batch axis, or none, holds for all items"
ARRAY_REMEDY = "size 1 or the full size on every axis; a mask never enlarges the scores"


def frozen(values: Any) -> Any:
    """A read-only array: nothing here may write to its inputs."""
    array = np.array(values)
    array.flags.writeable = False
    return array


def bools(*shape: int) -> Any:
    return frozen(np.random.default_rng(sum(shape)).random(shape) < 0.6)


def exactly(text: str) -> str:
    return f"^{re.escape(text)}$"


def digits(array: Any) -> list[str]:
    """Rows of a two-dimensional bool array as strings of 0 and 1."""
    return ["".join(str(int(cell)) for cell in row) for row in array]


# ------------------------------------------------------------------------------------------- by hand
@pytest.mark.parametrize(
    ("mask", "shape", "rows"),
    [
        (masks.causal(), (3, 3), ["100", "110", "111"]),
        (masks.causal(), (2, 5), ["11110", "11111"]),
        (masks.causal(), (5, 2), ["00", "00", "00", "10", "11"]),
        (masks.causal(offset=0), (2, 5), ["10000", "11000"]),
        (masks.causal(offset=0), (5, 2), ["10", "11", "11", "11", "11"]),
        (masks.causal(offset=1), (2, 5), ["11000", "11100"]),
        (masks.causal(offset=-1), (3, 3), ["000", "100", "110"]),
        (masks.causal(offset=np.int8(2)), (1, 5), ["11100"]),
        (masks.window(0, 0), (3, 3), ["100", "010", "001"]),
        (masks.window(1, 0), (4, 4), ["1000", "1100", "0110", "0011"]),
        (masks.window(0, 1), (4, 4), ["1100", "0110", "0011", "0001"]),
        (masks.window(1, 2), (4, 4), ["1110", "1111", "0111", "0011"]),
        (masks.window(None, 0), (3, 3), ["100", "110", "111"]),
        (masks.window(0, None), (3, 3), ["111", "011", "001"]),
        (masks.window(None, None), (2, 3), ["111", "111"]),
        (masks.window(1, 0), (2, 5), ["00110", "00011"]),
        (masks.window(1, 0), (5, 2), ["00", "00", "00", "10", "11"]),
        (masks.window(1, 0, offset=0), (2, 5), ["10000", "11000"]),
        (masks.window(0, 0, offset=3), (2, 5), ["00010", "00001"]),
        (masks.window(0, 0, offset=-1), (3, 2), ["00", "10", "01"]),
        (masks.lengths(2), (2, 3), ["110", "110"]),
        (masks.lengths(0), (2, 3), ["000", "000"]),
        (masks.lengths(3), (2, 3), ["111", "111"]),
        (masks.keys([True, False, True]), (2, 3), ["101", "101"]),
        (masks.segments([0, 0, 1], [0, 1, 1, 0]), (3, 4), ["1001", "1001", "0110"]),
        (masks.segments([-1, 7], [7, 7, -1]), (2, 3), ["001", "110"]),
        (masks.positions([0, 2, 1], [1, 0, 2]), (3, 3), ["010", "111", "110"]),
        (masks.positions([5, -5], [-5, 5, 4]), (2, 3), ["111", "100"]),
        (~masks.causal(), (3, 3), ["011", "001", "000"]),
        (~masks.lengths(1), (2, 3), ["011", "011"]),
        (masks.causal() & masks.window(1, None), (3, 3), ["100", "110", "011"]),
        (masks.causal() | masks.keys([False, False, True]), (3, 3), ["101", "111", "111"]),
        (masks.causal() & [True, False, True], (3, 3), ["100", "100", "101"]),
        (frozen([True, False, True]) | masks.window(0, 0), (3, 3), ["101", "111", "101"]),
        (~(masks.causal() & masks.keys([False, True, True])), (3, 3), ["111", "101", "100"]),
    ],
    ids=lambda value: str(value) if isinstance(value, hw.Mask | tuple) else "",
)
def test_every_kind_by_hand(mask: hw.Mask, shape: tuple[int, int], rows: list[str]) -> None:
    assert digits(mask.dense(shape)) == rows


@pytest.mark.parametrize(
    ("mask", "shape", "items"),
    [
        (masks.lengths([1, 3]), (2, 1, 3), [["100"], ["111"]]),
        (masks.causal(offset=[0, 2]), (2, 2, 3), [["100", "110"], ["111", "111"]]),
        (masks.window(0, 0, offset=[0, 1]), (2, 2, 3), [["100", "010"], ["010", "001"]]),
        (masks.keys([[True, False], [False, True]]), (2, 1, 2), [["10"], ["01"]]),
        (masks.segments([[0, 1], [1, 1]], [0, 1, 1]), (2, 2, 3), [["100", "011"], ["011", "011"]]),
        (masks.positions([2, 4], [[1, 3], [5, 2]]), (2, 2, 2), [["10", "11"], ["01", "01"]]),
    ],
    ids=str,
)
def test_per_item_by_hand(mask: hw.Mask, shape: tuple[int, ...], items: list[list[str]]) -> None:
    assert [digits(item) for item in mask.dense(shape)] == items


def test_a_ragged_cache() -> None:
    """One new query for each of three items, whose caches hold 2, 5 and 3 keys."""
    cached = frozen([2, 5, 3])
    mask = masks.causal(offset=cached - 1) & masks.lengths(cached)
    assert digits(mask.dense((3, 1, 5)).reshape(3, 5)) == ["11000", "11111", "11100"]


def test_causal_is_the_window_without_a_left_side() -> None:
    for shape in [(3, 3), (2, 5), (5, 2)]:
        np.testing.assert_array_equal(masks.causal().dense(shape), masks.window(None, 0).dense(shape))


# ------------------------------------------------------------ a table of masks, each with its own sentence
def causal_pairs(offset: int) -> Pair:
    return lambda lead, i, j: j <= i + offset


def window_pairs(left: int, right: int, offset: int) -> Pair:
    return lambda lead, i, j: -left <= j - (i + offset) <= right


LENGTHS, OFFSETS = [0, 7, 11], [-3, 2, 40]
VALID, HEADS = bools(3, 11), bools(3, 5, 7, 11)
Q_IDS, K_IDS = frozen([0, 0, 1, 1, 1, 4, 4]), frozen([0, 1, 1, 1, 2, 2, 4, 4, 4, 0, 9])
FIRST_ITEMS = frozen(np.arange(3)[:, None] < Q_IDS)

FLAT, HEADED, BATCHED, DEEP = (7, 11), (3, 7, 11), (3, 5, 7, 11), (2, 3, 5, 7, 11)
TABLE: dict[str, tuple[hw.Mask, tuple[int, ...], Pair]] = {
    "causal": (masks.causal(), FLAT, causal_pairs(4)),
    "causal, more queries than keys": (masks.causal(), (11, 7), causal_pairs(-4)),
    "causal, upper left": (masks.causal(offset=0), FLAT, causal_pairs(0)),
    "causal, nothing seen": (masks.causal(offset=-99), FLAT, causal_pairs(-99)),
    "causal, all seen": (masks.causal(offset=99), FLAT, causal_pairs(99)),
    "causal per item": (masks.causal(OFFSETS), BATCHED, lambda lead, i, j: j <= i + OFFSETS[lead[0]]),
    "causal per item, five axes": (masks.causal(OFFSETS), DEEP, lambda lead, i, j: j <= i + OFFSETS[lead[1]]),
    "window": (masks.window(2, 1), FLAT, window_pairs(2, 1, 4)),
    "window of one key": (masks.window(0, 0), FLAT, window_pairs(0, 0, 4)),
    "window, upper left": (masks.window(3, 0, offset=0), (11, 7), window_pairs(3, 0, 0)),
    "window to the right": (masks.window(0, None), FLAT, window_pairs(0, 99, 4)),
    "window without sides": (masks.window(None, None), FLAT, lambda lead, i, j: True),
    "window per item": (
        masks.window(1, 2, OFFSETS),
        HEADED,
        lambda lead, i, j: -1 <= j - i - OFFSETS[lead[0]] <= 2,
    ),
    "lengths, three axes": (masks.lengths(LENGTHS), HEADED, lambda lead, i, j: j < LENGTHS[lead[0]]),
    "lengths, four axes": (masks.lengths(LENGTHS), BATCHED, lambda lead, i, j: j < LENGTHS[lead[0]]),
    "lengths, five axes": (masks.lengths(LENGTHS), DEEP, lambda lead, i, j: j < LENGTHS[lead[1]]),
    "lengths on the first of two batch axes": (
        masks.lengths([[4], [9]]),
        DEEP,
        lambda lead, i, j: j < (4, 9)[lead[0]],
    ),
    "one length for all": (masks.lengths([5]), BATCHED, lambda lead, i, j: j < 5),
    "padding": (~masks.lengths(LENGTHS), BATCHED, lambda lead, i, j: j >= LENGTHS[lead[0]]),
    "keys": (masks.keys(VALID), BATCHED, lambda lead, i, j: bool(VALID[lead[0], j])),
    "segments": (masks.segments(Q_IDS, K_IDS), FLAT, lambda lead, i, j: bool(Q_IDS[i] == K_IDS[j])),
    "positions": (masks.positions(Q_IDS, K_IDS), BATCHED, lambda lead, i, j: bool(K_IDS[j] <= Q_IDS[i])),
    "array with heads": (
        HEADS & masks.window(None, None),
        BATCHED,
        lambda lead, i, j: bool(HEADS[(*lead, i, j)]),
    ),
    "causal and lengths": (
        masks.causal() & masks.lengths(LENGTHS),
        BATCHED,
        lambda lead, i, j: j <= i + 4 and j < LENGTHS[lead[0]],
    ),
    "window or first keys": (
        masks.window(2, 0) | masks.lengths(2),
        FLAT,
        lambda lead, i, j: -2 <= j - i - 4 <= 0 or j < 2,
    ),
    "neither": (
        ~(masks.causal() | masks.keys(VALID)),
        BATCHED,
        lambda lead, i, j: not (j <= i + 4 or VALID[lead[0], j]),
    ),
    "prefix and heads": (
        (masks.causal() | masks.lengths(LENGTHS)) & HEADS,
        BATCHED,
        lambda lead, i, j: bool((j <= i + 4 or j < LENGTHS[lead[0]]) and HEADS[(*lead, i, j)]),
    ),
    "array of items": (
        FIRST_ITEMS[:, None, :, None] | masks.causal(offset=0),
        BATCHED,
        lambda lead, i, j: bool(FIRST_ITEMS[lead[0], i] or j <= i),
    ),
}
ROWS = pytest.mark.parametrize(("mask", "shape", "pair"), TABLE.values(), ids=TABLE)


@ROWS
def test_dense_says_of_each_pair_what_the_sentence_says(mask: hw.Mask, shape: tuple[int, ...], pair: Pair) -> None:
    dense = mask.dense(shape)
    assert dense.shape == shape
    assert dense.dtype == np.bool_
    expected = [pair(place[:-2], *place[-2:]) for place in np.ndindex(*shape)]
    assert dense.ravel().tolist() == expected


@ROWS
@pytest.mark.parametrize("size", [(1, 1), (2, 3), (7, 2), (11, 11)], ids=str)
def test_a_tile_is_true_false_or_the_block(
    mask: hw.Mask, shape: tuple[int, ...], pair: Pair, size: tuple[int, int]
) -> None:
    dense = mask.dense(shape)
    (n_q, n_k), (high, wide) = shape[-2:], size
    leads = list(np.ndindex(*shape[:-2]))[:7]
    for lead, i, j in itertools.product(leads, range(0, n_q, high), range(0, n_k, wide)):
        rows, cols = (i, min(i + high, n_q)), (j, min(j + wide, n_k))
        block = dense[lead][slice(*rows), slice(*cols)]
        tile = mask.tile(shape, lead, rows, cols)
        if block.all() or not block.any():
            assert tile is bool(block.all())
        else:
            np.testing.assert_array_equal(tile, block, strict=True)


@ROWS
def test_pickled_and_copied_masks_are_the_same(mask: hw.Mask, shape: tuple[int, ...], pair: Pair) -> None:
    dense = mask.dense(shape)
    for twin in [pickle.loads(pickle.dumps(mask)), copy.deepcopy(mask), copy.copy(mask)]:
        assert repr(twin) == repr(mask)
        assert twin.words() == mask.words()
        np.testing.assert_array_equal(twin.dense(shape), dense)


@ROWS
def test_the_complement_and_both_sides(mask: hw.Mask, shape: tuple[int, ...], pair: Pair) -> None:
    dense = mask.dense(shape)
    np.testing.assert_array_equal((~mask).dense(shape), ~dense)
    np.testing.assert_array_equal((~~mask).dense(shape), dense)
    assert not (mask & ~mask).dense(shape).any()
    assert (mask | ~mask).dense(shape).all()


@ROWS
def test_attention_takes_it_as_it_takes_the_array(mask: hw.Mask, shape: tuple[int, ...], pair: Pair) -> None:
    rng = np.random.default_rng(0)
    lead, (n_q, n_k) = shape[:-2], shape[-2:]
    q, k, v = (rng.standard_normal((*lead, n, 2)) for n in (n_q, n_k, n_k))
    out, weights = hw.scaled_dot_product_attention(q, k, v, mask)
    out_array, weights_array = hw.scaled_dot_product_attention(q, k, v, mask.dense(shape))
    np.testing.assert_array_equal(out, out_array)
    np.testing.assert_array_equal(weights, weights_array)
    np.testing.assert_array_equal(weights > 0, mask.dense(shape))


# ---------------------------------------------------------------------------------------------- tiles
@pytest.mark.parametrize(
    ("mask", "rows", "cols", "tile"),
    [
        (masks.causal(), (0, 2), (2, 4), False),
        (masks.causal(), (0, 2), (1, 4), None),
        (masks.causal(), (2, 4), (0, 3), True),
        (masks.causal(), (2, 4), (0, 4), None),
        (masks.window(1, 0), (2, 3), (1, 3), True),
        (masks.window(1, 0), (3, 4), (0, 2), False),
        (masks.lengths(2), (0, 4), (0, 2), True),
        (masks.lengths(2), (0, 4), (2, 4), False),
        (masks.lengths(2), (0, 4), (1, 3), None),
        (masks.causal() & masks.lengths(2), (2, 4), (0, 2), True),
        (masks.causal() & masks.lengths(2), (2, 4), (2, 4), False),
        (masks.causal() & masks.lengths(2), (0, 1), (2, 4), False),
        (masks.causal() | masks.lengths(2), (0, 4), (0, 2), True),
        (masks.causal() | masks.lengths(2), (0, 2), (2, 4), False),
        (~masks.causal(), (0, 2), (2, 4), True),
        (~masks.causal(), (2, 4), (0, 3), False),
        (masks.keys([True, True, False, False]), (0, 4), (0, 2), True),
        (masks.keys([True, True, False, False]), (0, 4), (2, 4), False),
        (masks.causal(), (1, 1), (0, 4), False),  # an empty tile holds no pair
        (masks.window(None, None), (0, 4), (4, 4), False),
    ],
    ids=str,
)
def test_tiles_by_hand(mask: hw.Mask, rows: Any, cols: Any, tile: bool | None) -> None:
    found = mask.tile((4, 4), (), rows, cols)
    if tile is None:
        np.testing.assert_array_equal(found, mask.dense((4, 4))[slice(*rows), slice(*cols)])
    else:
        assert found is tile


@pytest.mark.parametrize(
    "span", [(1, 3), [1, 3], slice(1, 3), slice(1, 3, 1), range(1, 3), tuple(frozen([1, 3]))], ids=repr
)
@pytest.mark.parametrize(
    "mask", [masks.causal(), masks.lengths(3), masks.keys([True] * 3), masks.causal(offset=0)], ids=str
)
def test_spans(mask: hw.Mask, span: Any) -> None:
    assert mask.tile((3, 3), (), span, (0, 2)) is True
    assert mask.tile((3, 3), (), (2, 3), span) is True


@pytest.mark.parametrize("lead", [(1, 2), [1, 2], (np.int64(1), np.int64(2)), frozen([1, 2])], ids=repr)
def test_leads(lead: Any) -> None:
    shape = (2, 3, 1, 5)
    heads = np.zeros((2, 3, 1, 5), bool)
    heads[1, 2, 0, 3] = True
    mask = masks.lengths([1, 4]) & heads
    assert digits(mask.tile(shape, lead, (0, 1), (0, 5))) == ["00010"]


NO_SPAN = [(-1, 2), (2, 1), (0, 4), (4, 4), slice(0, 2, 2), range(2, 0, -1)]
ODD_SPAN = [5, None, (0, 1.5), ("a", "b"), (0, 1, 2), (0,), slice("a", "b"), slice(0.0, 2.0)]


@pytest.mark.parametrize("span", NO_SPAN, ids=repr)
@pytest.mark.parametrize("name", ["rows", "cols"])
def test_tiles_outside(name: str, span: Any) -> None:
    spans = {"rows": (0, 1), "cols": (0, 1)} | {name: span}
    text = f"Mask.tile: {name}: expected (first, stop) with 0 <= first <= stop <= 3, got {span}"
    with pytest.raises(ValueError, match=exactly(text)):
        masks.causal().tile((3, 3), (), **spans)


@pytest.mark.parametrize("span", ODD_SPAN, ids=repr)
@pytest.mark.parametrize("name", ["rows", "cols"])
def test_what_is_no_span(name: str, span: Any) -> None:
    spans = {"rows": (0, 1), "cols": (0, 1)} | {name: span}
    with pytest.raises((TypeError, ValueError), match=rf"^Mask\.tile: {name}: expected "):
        masks.causal().tile((3, 3), (), **spans)


@pytest.mark.parametrize(
    ("shape", "lead", "text"),
    [
        ((3, 3), (0,), "lead: expected an index into the leading axes (), got (0,)"),
        ((2, 3, 3), (), "lead: expected an index into the leading axes (2,), got ()"),
        ((2, 3, 3), (2,), "lead: expected an index into the leading axes (2,), got (2,)"),
        ((2, 3, 3), (-1,), "lead: expected an index into the leading axes (2,), got (-1,)"),
        ((2, 5, 3, 3), (1,), "lead: expected an index into the leading axes (2, 5), got (1,)"),
        ((2, 5, 3, 3), (1, 5), "lead: expected an index into the leading axes (2, 5), got (1, 5)"),
    ],
)
def test_leads_outside(shape: tuple[int, ...], lead: Lead, text: str) -> None:
    with pytest.raises(ValueError, match=exactly(f"Mask.tile: {text}")):
        masks.causal().tile(shape, lead, (0, 1), (0, 1))


@pytest.mark.parametrize("lead", [0, None, (0.5,), ("a",), "a"], ids=repr)
def test_what_is_no_lead(lead: Any) -> None:
    with pytest.raises((TypeError, ValueError), match=r"^Mask\.tile: lead: expected an index into the leading axes"):
        masks.lengths([1, 2]).tile((2, 3, 3), lead, (0, 3), (0, 3))


def test_everything_wrong_with_a_tile_is_named_at_once() -> None:
    text = """Mask.tile: 3 arguments do not fit
  rows: expected (first, stop) with 0 <= first <= stop <= 3, got (0, 4)
  cols: expected (first, stop) with 0 <= first <= stop <= 5, got (1, 0)
  lead: expected an index into the leading axes (), got (7,)"""
    with pytest.raises(ValueError, match=exactly(text)):
        masks.causal().tile((3, 5), (7,), (0, 4), (1, 0))


@pytest.mark.parametrize("ask", ["tile", "dense"])
@pytest.mark.parametrize(
    ("shape", "got"), [((2,), "(2,)"), ((), "()"), ((-1, 3), "(-1, 3)"), ((2, -3, 3), "(2, -3, 3)")], ids=str
)
def test_shapes_that_are_none(shape: Any, got: str, ask: str) -> None:
    args: tuple[Any, ...] = ((), (0, 1), (0, 1)) if ask == "tile" else ()
    with pytest.raises(
        ValueError, match=exactly(f"Mask.{ask}: shape: expected a score shape (..., n_q, n_k), got {got}")
    ):
        getattr(masks.causal(), ask)(shape, *args)


@pytest.mark.parametrize(
    ("shape", "got"),
    [(5, "int 5"), (None, "NoneType None"), ("ab", "str 'ab'"), ((2, 3.0), "tuple (2, 3.0)")],
)
def test_shapes_of_the_wrong_kind(shape: Any, got: str) -> None:
    with pytest.raises(TypeError, match=re.escape(f"shape: expected a score shape (..., n_q, n_k), got {got}")):
        masks.causal().dense(shape)


def test_a_shape_of_the_wrong_kind_is_the_only_fault() -> None:
    text = "Mask.dense: shape: expected a score shape (..., n_q, n_k), got int 5"
    with pytest.raises(TypeError, match=exactly(text)):
        masks.lengths([1, 2]).dense(5)


@pytest.mark.parametrize("shape", [(2, 3), [2, 3], frozen([2, 3]), (np.int64(2), np.uint8(3))], ids=repr)
def test_shapes_of_any_integers(shape: Any) -> None:
    assert digits(masks.causal().dense(shape)) == ["110", "111"]


@pytest.mark.parametrize("shape", [(0, 3), (2, 0), (0, 0), (0, 2, 3), (2, 0, 3, 5)], ids=str)
def test_empty_score_shapes(shape: tuple[int, ...]) -> None:
    assert masks.causal().dense(shape).shape == shape
    assert (masks.causal() & masks.window(1, 1) | masks.lengths(0)).dense(shape).shape == shape


# ---------------------------------------------------------------------------- items, never heads
@pytest.mark.parametrize(
    ("mask", "shape", "name", "expected", "got"),
    [
        (masks.lengths([1]), (2, 3), "lengths", "(B) against the batch axes of the scores (2, 3): ()", "(1,)"),
        (
            masks.lengths([1, 2]),
            (5, 2, 3),
            "lengths",
            "(B) against the batch axes of the scores (5, 2, 3): (5,)",
            "(2,)",
        ),
        (
            masks.lengths([1] * 5),  # one per head
            (7, 5, 2, 3),
            "lengths",
            "(B) against the batch axes of the scores (7, 5, 2, 3): (7,)",
            "(5,)",
        ),
        (
            masks.causal(offset=[[1] * 5] * 7),  # one per item and head
            (7, 5, 2, 3),
            "offset",
            "(B) against the batch axes of the scores (7, 5, 2, 3): (7,)",
            "(7, 5)",
        ),
        (
            masks.window(1, 1, offset=[0, 1]),
            (11, 7, 5, 2, 3),
            "offset",
            "(B) against the batch axes of the scores (11, 7, 5, 2, 3): (11, 7)",
            "(2,)",
        ),
        (
            masks.keys(bools(5, 3)),
            (7, 5, 2, 3),
            "valid",
            "(B, n_k) against the batch axes of the scores (7, 5, 2, 3): (7, 3)",
            "(5, 3)",
        ),
        (masks.keys(bools(1)), (2, 3), "valid", "(B, n_k) against the batch axes of the scores (2, 3): (3,)", "(1,)"),
        (
            masks.segments([0] * 3, [0] * 3),
            (2, 3),
            "q_ids",
            "(B, n_q) against the batch axes of the scores (2, 3): (2,)",
            "(3,)",
        ),
        (
            masks.positions([0] * 2, [0] * 2),
            (2, 3),
            "k_pos",
            "(B, n_k) against the batch axes of the scores (2, 3): (3,)",
            "(2,)",
        ),
    ],
    ids=str,
)
def test_per_item_arrays_that_do_not_fit(
    mask: hw.Mask, shape: tuple[int, ...], name: str, expected: str, got: str
) -> None:
    assert mask.misfits(shape) == [Fault(name, expected, got, ITEM_REMEDY)]
    with pytest.raises(ValueError, match=exactly(f"Mask.dense: {name}: expected {expected}, got {got}; {ITEM_REMEDY}")):
        mask.dense(shape)
    with pytest.raises(ValueError, match=f"^Mask.tile: {name}: expected "):
        mask.tile(shape, (0,) * (len(shape) - 2), (0, 1), (0, 1))


@pytest.mark.parametrize(
    ("array", "shape", "letters", "remedy"),
    [
        (bools(3, 2), (2, 3), "(n_q, n_k) = (2, 3)", ARRAY_REMEDY),
        (bools(1, 2, 3), (2, 3), "(n_q, n_k) = (2, 3)", ARRAY_REMEDY),
        (
            bools(5, 3),
            (5, 2, 3),
            "(H, n_q, n_k) = (5, 2, 3)",
            "one row of keys per item is masks.keys(valid), or as an array mask[..., None, :]",
        ),
        (
            bools(7, 2, 3),
            (7, 5, 2, 3),
            "(B, H, n_q, n_k) = (7, 5, 2, 3)",
            "give it an axis for the heads: mask[..., None, :, :]",
        ),
    ],
)
def test_arrays_in_a_combination_that_do_not_fit(array: Any, shape: tuple[int, ...], letters: str, remedy: str) -> None:
    text = f"mask: expected a shape that broadcasts to {letters}, got {array.shape}; {remedy}"
    with pytest.raises(ValueError, match=exactly(f"Mask.dense: {text}")):
        (~(masks.causal() & array)).dense(shape)


def test_both_sides_of_a_combination_are_named() -> None:
    with pytest.raises(
        ValueError, match=r"(?s)^Mask\.dense: 2 arguments do not fit\n  lengths: .*\n  valid: "
    ) as caught:
        (masks.lengths([1, 2]) | masks.keys([True])).dense((2, 3))
    assert str(caught.value).count("\n") == 2


@pytest.mark.parametrize("lengths", [4, [4], [2, 4]], ids=str)
def test_lengths_beyond_the_keys(lengths: Any) -> None:
    shape = (2, 3) if lengths == 4 else (np.size(lengths), 2, 3)
    text = "lengths: expected at most n_k = 3, got 4; a length counts the item's real keys"
    with pytest.raises(ValueError, match=exactly(f"Mask.dense: {text}")):
        masks.lengths(lengths).dense(shape)


def test_lengths_of_no_items() -> None:
    mask = masks.lengths(frozen(np.zeros(0, int)))
    assert mask.dense((0, 2, 3)).shape == (0, 2, 3)
    assert mask.misfits((0, 5, 2, 3)) == []


# ------------------------------------------------------------------------------------ errors of the makers
INTEGERS = "expected integers, got dtype {}; pass np.asarray({}, dtype=np.int64)"
MAKER_TYPES: list[tuple[Callable[[], Any], str]] = [
    (lambda: masks.causal(0.0), "masks.causal: offset: " + INTEGERS.format("float64", "offset")),
    (lambda: masks.causal([True]), "masks.causal: offset: " + "expected integers, got dtype bool"),
    (lambda: masks.causal("upper"), "masks.causal: offset: " + INTEGERS.format("<U5", "offset")),
    (lambda: masks.causal(10**30), "masks.causal: offset: " + INTEGERS.format("object", "offset")),
    (lambda: masks.window(1.0, 0), "masks.window: left: expected None (unlimited) or a number of keys, got float 1.0"),
    (
        lambda: masks.window(0, True),
        "masks.window: right: expected None (unlimited) or a number of keys, got bool True",
    ),
    (lambda: masks.window(0, 0, 0.5), "masks.window: offset: " + INTEGERS.format("float64", "offset")),
    (
        lambda: masks.window("a", -1, 0.5),
        "masks.window: 3 arguments do not fit\n"
        "  left: expected None (unlimited) or a number of keys, got str 'a'\n"
        "  right: expected None (unlimited) or a number of keys of at least 0, got -1\n"
        "  offset: " + INTEGERS.format("float64", "offset"),
    ),
    (lambda: masks.lengths([1.0]), "masks.lengths: lengths: " + INTEGERS.format("float64", "lengths")),
    (lambda: masks.lengths([True]), "masks.lengths: lengths: " + "expected integers, got dtype bool"),
    (lambda: masks.lengths(None), "masks.lengths: lengths: expected an array, got None"),
    (
        lambda: masks.lengths(np.ma.array([1])),
        (
            "masks.lengths: lengths: expected a plain array, got a numpy.ma masked array, "
            "whose hidden data would be used; "
            "pass lengths.filled(0), and say which keys count by mask=masks.keys(valid)"
        ),
    ),
    (
        lambda: masks.keys(np.array([1, 0], np.int64)),
        (
            "masks.keys: valid: expected bool, True = a real key, got dtype int64; "
            "pass valid.astype(bool) if nonzero means real"
        ),
    ),
    (lambda: masks.segments([0.0], [0]), "masks.segments: q_ids: " + INTEGERS.format("float64", "q_ids")),
    (lambda: masks.segments([0], ["a"]), "masks.segments: k_ids: " + INTEGERS.format("<U1", "k_ids")),
    (lambda: masks.positions([0.0], [0]), "masks.positions: q_pos: " + INTEGERS.format("float64", "q_pos")),
    (lambda: masks.positions([0], [None]), "masks.positions: k_pos: " + INTEGERS.format("object", "k_pos")),
    (lambda: hw.causal_mask(3.0), "causal_mask: n: expected a number of tokens, got float 3.0"),
    (lambda: hw.causal_mask(True), "causal_mask: n: expected a number of tokens, got bool True"),
    (lambda: hw.causal_mask((3, 3)), "causal_mask: n: expected a number of tokens, got tuple (3, 3)"),
]
MAKER_VALUES: list[tuple[Callable[[], Any], str]] = [
    (
        lambda: masks.causal(2**62 + 1),
        f"masks.causal: offset: expected integers within 62 bits, got {2**62 + 1} to {2**62 + 1}",
    ),
    (
        lambda: masks.window(-1, 0),
        "masks.window: left: expected None (unlimited) or a number of keys of at least 0, got -1",
    ),
    (
        lambda: masks.window(0, -2),
        "masks.window: right: expected None (unlimited) or a number of keys of at least 0, got -2",
    ),
    (lambda: masks.lengths([3, -1]), "masks.lengths: lengths: expected integers of at least 0, got -1 to 3"),
    (lambda: masks.keys(True), "masks.keys: valid: expected (B, n_k) or (n_k,), got a single number"),
    (lambda: masks.segments(0, [0]), "masks.segments: q_ids: expected (B, n_q) or (n_q,), got a single number"),
    (lambda: masks.segments([0], 0), "masks.segments: k_ids: expected (B, n_k) or (n_k,), got a single number"),
    (lambda: masks.positions(0, [0]), "masks.positions: q_pos: expected (B, n_q) or (n_q,), got a single number"),
    (lambda: hw.causal_mask(-1), "causal_mask: n: expected a number of tokens of at least 0, got -1"),
]


@pytest.mark.parametrize(("make", "text"), MAKER_TYPES, ids=[text[:60] for _, text in MAKER_TYPES])
def test_makers_given_the_wrong_kind(make: Callable[[], Any], text: str) -> None:
    with pytest.raises(TypeError, match=exactly(text)):
        make()


@pytest.mark.parametrize(("make", "text"), MAKER_VALUES, ids=[text[:60] for _, text in MAKER_VALUES])
def test_makers_given_the_wrong_value(make: Callable[[], Any], text: str) -> None:
    with pytest.raises(ValueError, match=exactly(text)):
        make()


@pytest.mark.parametrize("make", [masks.lengths, masks.keys, masks.causal], ids=["lengths", "keys", "causal"])
def test_what_numpy_cannot_read(make: Callable[[Any], Any]) -> None:
    with pytest.raises(TypeError, match=r"^masks\.\w+: \w+: expected an array, got list that NumPy cannot read"):
        make([[1], [2, 3]])


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (
            lambda: masks.window(10**30, 0),
            f"masks.window: left: expected None (unlimited) or a number of keys of at most 2**62, got {10**30}",
        ),
        (
            lambda: masks.lengths([3, 2**62 + 1]),
            f"masks.lengths: lengths: expected integers within 62 bits, got 3 to {2**62 + 1}",
        ),
        (
            lambda: hw.causal_mask(2**61),
            f"causal_mask: n: expected a number of tokens of at most 2**20, got {2**61}",
        ),
    ],
    ids=["window", "lengths", "causal_mask"],
)
def test_numbers_too_large_are_not_called_too_small(make: Callable[[], Any], text: str) -> None:
    with pytest.raises(ValueError, match=exactly(text)):
        make()


# ----------------------------------------------------------------------------------------- huge numbers
@pytest.mark.parametrize(
    ("mask", "full"),
    [
        (masks.causal(offset=2**61), True),
        (masks.causal(offset=-(2**61)), False),
        (masks.causal(offset=2**62), True),
        (masks.causal(offset=-(2**62)), False),
        (masks.window(2**61, 2**61), True),
        (masks.window(2**62, 2**62), True),
        (masks.window(None, None, offset=2**62), True),
        (masks.window(2**62, 0, offset=2**62 - 1), True),
        (masks.window(0, 2**62, offset=2 - 2**62), True),
        (masks.window(0, 0, offset=2**62), False),
        (masks.segments([2**61] * 2, [2**61] * 3), True),
        (masks.segments([2**61] * 2, [2**61 + 1] * 3), False),  # one float apart from nothing
        (masks.positions([2**62] * 2, [2**62] * 3), True),
        (masks.positions([2**62 - 1] * 2, [2**62] * 3), False),
    ],
    ids=str,
)
def test_huge_numbers(mask: hw.Mask, full: bool) -> None:
    dense = mask.dense((2, 3))
    assert dense.dtype == np.bool_
    assert (dense == full).all()
    assert mask.tile((2, 3), (), (0, 2), (0, 3)) is full


N, HALF = 2**61, 2**60


@pytest.mark.parametrize(
    ("mask", "rows", "cols", "tile"),
    [
        (masks.causal(), (HALF, N), (0, HALF + 1), True),
        (masks.causal(), (0, HALF), (HALF, N), False),
        (~masks.causal(), (0, HALF), (HALF, N), True),
        (masks.causal(offset=7), (HALF, N), (0, HALF + 8), True),
        (masks.causal(offset=7), (0, HALF), (HALF + 7, N), False),
        (masks.window(HALF, 0), (HALF, HALF + 1), (0, HALF + 1), True),
        (masks.window(5, 0), (HALF, N), (0, HALF - 5), False),
        (masks.window(0, 5), (0, HALF), (HALF + 5, N), False),
        (masks.window(HALF - 1, HALF - 1), (0, HALF), (0, HALF), True),
        (masks.window(None, None), (0, N), (0, N), True),
        (masks.lengths(HALF), (0, N), (0, HALF), True),
        (masks.lengths(HALF), (0, N), (HALF, N), False),
        (masks.causal() & masks.lengths(HALF), (HALF - 1, N), (0, HALF), True),
        (masks.causal() & masks.lengths(HALF), (0, N), (HALF, N), False),
        (masks.causal() | masks.lengths(HALF), (0, N), (0, HALF), True),
        (masks.causal() | masks.lengths(HALF), (0, HALF), (HALF, N), False),
    ],
    ids=str,
)
def test_full_and_empty_tiles_are_found_without_building_them(mask: hw.Mask, rows: Any, cols: Any, tile: bool) -> None:
    assert mask.tile((N, N), (), rows, cols) is tile  # 2**120 pairs


def test_a_tile_far_out_is_built_alone() -> None:
    assert digits(masks.window(1, 0).tile((N, N), (), (N - 3, N), (N - 3, N))) == ["100", "110", "011"]


# ------------------------------------------------------------------------------------------- the algebra
@pytest.mark.parametrize("operation", [lambda a, b: a & b, lambda a, b: a | b], ids=["and", "or"])
@pytest.mark.parametrize(
    "array", [bools(3, 5), bools(5), bools(5).tolist(), frozen(True)], ids=["full", "row", "list", "0-d"]
)
def test_arrays_join_from_either_side(operation: Callable[[Any, Any], Any], array: Any) -> None:
    expected = operation(np.asarray(array), masks.causal().dense((3, 5)))
    for joined in (operation(masks.causal(), array), operation(array, masks.causal())):
        assert isinstance(joined, hw.Mask)
        np.testing.assert_array_equal(joined.dense((3, 5)), expected)


CAUSAL, WINDOW, KEYS = masks.causal(), masks.window(1, 0), masks.keys([True, False, True])


@pytest.mark.parametrize(
    ("mask", "text"),
    [
        (CAUSAL, "causal()"),
        (masks.causal(0), "causal(offset=0)"),
        (masks.causal([1, 2]), "causal(offset=[1, 2])"),
        (masks.causal(list(range(8))), "causal(offset=[0, 1, 2, 3, 4, 5, 6, 7])"),
        (masks.causal(list(range(9))), "causal(offset=<int64 (9,)>)"),
        (WINDOW, "window(1, 0)"),
        (masks.window(None, 2), "window(None, 2)"),
        (masks.window(2, None, 5), "window(2, None, offset=5)"),
        (masks.window(2**62, None), f"window({2**62}, None)"),
        (masks.lengths(3), "lengths(3)"),
        (masks.lengths([3, 5]), "lengths([3, 5])"),
        (KEYS, "keys([True, False, True])"),
        (masks.keys(bools(3, 7)), "keys(<bool (3, 7)>)"),
        (masks.segments([0, 1], [0, 0, 1]), "segments([0, 1], [0, 0, 1])"),
        (masks.positions([0, 1], [0, 0, 1]), "positions([0, 1], [0, 0, 1])"),
        (~CAUSAL, "~causal()"),
        (~~CAUSAL, "causal()"),
        (CAUSAL & WINDOW, "causal() & window(1, 0)"),
        (CAUSAL | WINDOW, "causal() | window(1, 0)"),
        (CAUSAL & WINDOW & KEYS, "causal() & window(1, 0) & keys([True, False, True])"),
        (CAUSAL | WINDOW & KEYS, "causal() | (window(1, 0) & keys([True, False, True]))"),
        ((CAUSAL | WINDOW) & KEYS, "(causal() | window(1, 0)) & keys([True, False, True])"),
        (KEYS & (CAUSAL | WINDOW), "keys([True, False, True]) & (causal() | window(1, 0))"),
        (~CAUSAL & WINDOW, "~causal() & window(1, 0)"),
        (~(CAUSAL & WINDOW), "~(causal() & window(1, 0))"),
        (~(CAUSAL | WINDOW) & KEYS, "~(causal() | window(1, 0)) & keys([True, False, True])"),
        (CAUSAL & bools(2, 3), "causal() & <bool (2, 3)>"),
        (bools(2, 3) & CAUSAL, "<bool (2, 3)> & causal()"),
        (~(bools(2, 3) | CAUSAL), "~(<bool (2, 3)> | causal())"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_repr_is_the_expression(mask: hw.Mask, text: str) -> None:
    assert repr(mask) == text
    if "<" not in text:  # ... which can be run
        names = {
            name: getattr(masks, name) for name in ("causal", "window", "lengths", "keys", "segments", "positions")
        }
        assert repr(eval(text, names)) == text


def test_precedence_is_pythons() -> None:
    a, b, c = (mask.dense((3, 3)) for mask in (CAUSAL, WINDOW, KEYS))
    np.testing.assert_array_equal((CAUSAL | WINDOW & KEYS).dense((3, 3)), a | (b & c))
    np.testing.assert_array_equal(((CAUSAL | WINDOW) & KEYS).dense((3, 3)), (a | b) & c)
    np.testing.assert_array_equal((~CAUSAL & KEYS).dense((3, 3)), ~a & c)


QUESTION = (
    "Mask: expected no question of true or false, got bool(mask); a mask is a rule for pairs of query and key: "
    "test `mask is None`, and combine masks with & | ~ instead of and, or, not"
)


@pytest.mark.parametrize(
    "ask",
    [
        bool,
        lambda mask: mask and WINDOW,
        lambda mask: mask or WINDOW,
        lambda mask: not mask,
        lambda mask: 0 if mask else 1,
    ],
    ids=["bool", "and", "or", "not", "if"],
)
@pytest.mark.parametrize("mask", [CAUSAL, KEYS, ~CAUSAL, CAUSAL & KEYS], ids=str)
def test_a_mask_is_neither_true_nor_false(ask: Callable[[hw.Mask], Any], mask: hw.Mask) -> None:
    with pytest.raises(TypeError, match=exactly(QUESTION)):
        ask(mask)


OPERAND = "operand: expected a Mask or a bool array, True = may attend, got {}; convert it by astype(bool)"


@pytest.mark.parametrize(
    ("other", "got"),
    [
        (True, "True"),
        (None, "None"),
        (3, f"dtype {np.asarray(3).dtype}"),
        (1.5, "dtype float64"),
        (np.eye(3), "dtype float64"),
        (np.eye(3, dtype=np.uint8), "dtype uint8"),
        ("abc", "dtype <U3"),
    ],
    ids=lambda value: str(type(value).__name__),
)
@pytest.mark.parametrize("sign", ["&", "|"])
def test_operands_that_are_no_masks(sign: str, other: Any, got: str) -> None:
    join = (lambda a, b: a & b) if sign == "&" else (lambda a, b: a | b)
    for sides in ((CAUSAL, other), (other, CAUSAL)):
        with pytest.raises(TypeError, match=exactly(f"Mask {sign} Mask: " + OPERAND.format(got))):
            join(*sides)


@pytest.mark.parametrize("other", [[[True], [True, False]], np.ma.array([True])], ids=["ragged", "masked"])
def test_operands_that_cannot_be_read_are_one_fault(other: Any) -> None:
    with pytest.raises(TypeError, match=r"^Mask & Mask: operand: expected "):
        CAUSAL & other


def test_what_the_caller_changes_later_changes_no_mask() -> None:
    lengths, offset, valid, ids = (
        np.array([1, 2]),
        np.array([0, 1]),
        np.array([[True, False, True]] * 2),
        np.array([0, 1, 1]),
    )
    made = [
        masks.lengths(lengths),
        masks.causal(offset),
        masks.window(1, 0, offset),
        masks.keys(valid),
        masks.segments(ids, ids),
        masks.positions(ids, ids),
    ]
    before = [mask.dense((2, 3, 3)).copy() for mask in made]
    for array in (lengths, offset, valid, ids):
        array[...] = array[::-1].copy() if array.ndim == 1 else ~array
    for mask, dense in zip(made, before, strict=True):
        np.testing.assert_array_equal(mask.dense((2, 3, 3)), dense, err_msg=str(mask))


def test_what_the_caller_changes_later_changes_no_combination() -> None:
    array = np.ones((3, 3), bool)
    mask = masks.causal() & array
    array[:] = False
    assert digits(mask.dense((3, 3))) == ["100", "110", "111"]


def test_answers_cannot_be_used_to_change_the_mask() -> None:
    valid = bools(3, 5)
    for mask in (masks.keys(valid), masks.keys(valid) & bools(3, 2, 5), ~masks.keys(valid)):
        dense = mask.dense((3, 2, 5)).copy()
        for answer in (mask.dense((3, 2, 5)), mask.tile((3, 2, 5), (1,), (0, 2), (0, 5))):
            if isinstance(answer, np.ndarray) and answer.flags.writeable:
                answer[...] = True
        np.testing.assert_array_equal(mask.dense((3, 2, 5)), dense)


class Diagonal(hw.Mask):
    """A mask of one's own: the least that a kind has to answer."""

    def misfits(self, scores: tuple[int, ...]) -> list[Fault]:
        return []

    def _at(self, scores: tuple[int, ...], lead: Lead | None, rows: slice, cols: slice) -> Any:
        return np.equal.outer(np.arange(rows.start, rows.stop), np.arange(cols.start, cols.stop))

    def words(self) -> str:
        return "the diagonal"

    def __repr__(self) -> str:
        return "diagonal()"


def test_a_mask_of_ones_own() -> None:
    mask = Diagonal()
    assert digits(mask.dense((2, 3))) == ["100", "010"]
    assert mask.tile((5, 2, 3), (4,), (0, 1), (1, 3)) is False
    assert mask.tile((5, 2, 3), (4,), (1, 2), (1, 2)) is True
    assert digits((~mask & CAUSAL).dense((3, 3))) == ["000", "100", "110"]
    assert mask.show(2, 2) == "diagonal(): the diagonal\n    key 01\nquery 0 #.\n      1 .#"


@pytest.mark.parametrize(
    "ask",
    [
        lambda mask: mask.misfits((2, 3)),
        lambda mask: mask.words(),
        lambda mask: mask._at((2, 3), None, slice(0, 2), slice(0, 3)),
    ],
    ids=["misfits", "words", "_at"],
)
def test_the_bare_class_is_no_mask(ask: Callable[[hw.Mask], Any]) -> None:
    with pytest.raises(NotImplementedError, match=r"^$"):
        ask(hw.Mask())


def test_as_mask() -> None:
    assert masks.as_mask(CAUSAL) is CAUSAL
    assert digits(masks.as_mask([[True, False]]).dense((2, 2))) == ["10", "10"]


# --------------------------------------------------------------------------------------------- in words
OWN = "the query's own position"


@pytest.mark.parametrize(
    ("mask", "text"),
    [
        (masks.causal(), f"keys up to {OWN}"),
        (masks.causal(5), "keys up to position i + 5"),
        (masks.causal(0), "keys up to position i"),
        (masks.causal(-2), "keys up to position i - 2"),
        (masks.causal([1, 2]), "keys up to position i + the item's offset"),
        (masks.window(2, 1, offset=3), "keys from 2 before position i + 3 up to 1 after it"),
        (masks.window(None, None), "all keys"),
        (masks.window(None, 0), f"keys up to {OWN}"),
        (masks.window(None, 3), f"keys up to 3 after {OWN}"),
        (masks.window(0, None), f"keys from {OWN} on"),
        (masks.window(2, None), f"keys from 2 before {OWN} on"),
        (masks.window(2, 0), f"keys from 2 before {OWN} up to it"),
        (masks.window(2, 3), f"keys from 2 before {OWN} up to 3 after it"),
        (masks.window(0, 3), f"keys from {OWN} up to 3 after {OWN}"),
        (masks.window(0, 0), f"the key at {OWN}"),
        (masks.lengths(3), "keys before the item's length"),
        (KEYS, "keys that are valid"),
        (masks.segments([0], [0]), "keys of the query's own segment"),
        (masks.positions([0], [0]), "keys whose position is not after the query's"),
        (CAUSAL & KEYS, f"keys up to {OWN}, and keys that are valid"),
        (CAUSAL | KEYS, f"keys up to {OWN}, or keys that are valid"),
        (~KEYS, "not (keys that are valid)"),
        (~(CAUSAL & KEYS), f"not (keys up to {OWN}, and keys that are valid)"),
        (KEYS & bools(3), "keys that are valid, and pairs that are True in the given array"),
    ],
    ids=str,
)
def test_words(mask: hw.Mask, text: str) -> None:
    assert mask.words() == text


def test_words_tell_the_groupings_apart() -> None:
    a, b, c = masks.lengths(3), masks.keys([True]), masks.segments([0], [0])
    x, y, z = (mask.words() for mask in (a, b, c))
    assert ((a | b) & c).words() == f"({x}, or {y}), and {z}"
    assert (a | (b & c)).words() == f"{x}, or ({y}, and {z})"
    assert (a | b | c).words() == f"{x}, or {y}, or {z}"


# -------------------------------------------------------------------------------------------- pictures
PICTURES: dict[str, tuple[hw.Mask, int, int, str]] = {
    "window": (
        masks.window(1, 1),
        3,
        4,
        f"""\
window(1, 1): keys from 1 before {OWN} up to 1 after it
    key 0123
query 0 ###.
      1 .###
      2 ..##""",
    ),
    "per item": (
        masks.causal() & masks.lengths([1, 3]),
        2,
        3,
        f"""\
causal() & lengths([1, 3]): keys up to {OWN}, and keys before the item's length
item 0
    key 012
query 0 #..
      1 #..
item 1
    key 012
query 0 ##.
      1 ###""",
    ),
    "one item of a batch": (
        masks.lengths([2]),
        1,
        3,
        """\
lengths([2]): keys before the item's length
    key 012
query 0 ##.""",
    ),
    "two batch axes": (
        masks.lengths([[1], [2]]),
        1,
        2,
        """\
lengths([[1], [2]]): keys before the item's length
item 0, 0
    key 01
query 0 #.
item 1, 0
    key 01
query 0 ##""",
    ),
    "two batch axes and heads": (
        frozen([[[[[True, False]], [[False, True]]]], [[[[True, True]], [[False, False]]]]])
        & masks.lengths([[2], [1]]),
        1,
        2,
        """\
<bool (2, 1, 2, 1, 2)> & lengths([[2], [1]]): pairs that are True in the given array, and keys before the item's length
item 0, 0, head 0
    key 01
query 0 #.
item 0, 0, head 1
    key 01
query 0 .#
item 1, 0, head 0
    key 01
query 0 #.
item 1, 0, head 1
    key 01
query 0 ..""",
    ),
    "keys per item": (
        masks.keys([[True, False], [False, True]]),
        1,
        2,
        """\
keys([[True, False], [False, True]]): keys that are valid
item 0
    key 01
query 0 #.
item 1
    key 01
query 0 .#""",
    ),
    "per head": (
        frozen([[[[True, False]], [[False, True]]]]) & masks.window(None, None),
        1,
        2,
        """\
<bool (1, 2, 1, 2)> & window(None, None): pairs that are True in the given array, and all keys
item 0, head 0
    key 01
query 0 #.
item 0, head 1
    key 01
query 0 .#""",
    ),
    "items and heads from two sources": (
        masks.lengths([1, 2]) & frozen([[[[True, True]], [[False, True]]]]),
        1,
        2,
        """\
lengths([1, 2]) & <bool (1, 2, 1, 2)>: keys before the item's length, and pairs that are True in the given array
item 0, head 0
    key 01
query 0 #.
item 0, head 1
    key 01
query 0 ..
item 1, head 0
    key 01
query 0 ##
item 1, head 1
    key 01
query 0 .#""",
    ),
    "items, and heads without a batch": (
        frozen([[[True, True]], [[False, True]]]) & masks.lengths([1]),
        1,
        2,
        """\
<bool (2, 1, 2)> & lengths([1]): pairs that are True in the given array, and keys before the item's length
item 0, head 0
    key 01
query 0 #.
item 0, head 1
    key 01
query 0 ..""",
    ),
    "three axes are items": (
        ~frozen([[[True, False]], [[False, True]]]) & masks.window(None, None),
        1,
        2,
        """\
<bool (2, 1, 2)> & window(None, None): pairs that are True in the given array, and all keys
item 0
    key 01
query 0 .#
item 1
    key 01
query 0 #.""",
    ),
    "more than four items": (
        masks.lengths([0, 1, 1, 0, 1, 1]),
        1,
        1,
        """\
lengths([0, 1, 1, 0, 1, 1]): keys before the item's length
item 0
    key 0
query 0 .
item 1
    key 0
query 0 #
item 2
    key 0
query 0 #
item 3
    key 0
query 0 .
and 2 more""",
    ),
    "padding": (
        ~masks.lengths([1, 2]),
        1,
        3,
        """\
~lengths([1, 2]): not (keys before the item's length)
item 0
    key 012
query 0 .##
item 1
    key 012
query 0 ..#""",
    ),
    "no items": (masks.lengths(np.zeros(0, int)), 1, 1, "lengths([]): keys before the item's length"),
    "no queries": (masks.causal(), 0, 3, f"causal(): keys up to {OWN}\n    key 012"),
    "no keys": (masks.causal(), 2, 0, f"causal(): keys up to {OWN}\n    key\nquery 0\n      1"),
    "nothing at all": (masks.causal(), 0, 0, f"causal(): keys up to {OWN}\n    key"),
}


@pytest.mark.parametrize(("mask", "n_q", "n_k", "picture"), PICTURES.values(), ids=PICTURES)
def test_pictures(mask: hw.Mask, n_q: int, n_k: int, picture: str) -> None:
    assert mask.show(n_q, n_k) == picture


def test_a_picture_of_tiles() -> None:
    title, legend, *rows = masks.causal().show(130, 130).split("\n")
    assert title == f"causal(): keys up to {OWN}"
    assert legend == "one character is a tile of 3 x 3: # all may attend, + some, . none"
    assert len(rows) == 44
    assert rows[0] == "query   0 +" + "." * 43
    assert rows[1] == "        3 #+" + "." * 42
    assert rows[-1] == "      129 " + "#" * 44  # the last tile is one query and one key


@pytest.mark.parametrize(("n", "tile"), [(64, None), (65, 2), (128, 2), (129, 3)])
def test_tiles_begin_beyond_64(n: int, tile: int | None) -> None:
    for sizes in ((n, 5), (5, n)):
        picture = masks.window(None, None).show(*sizes)
        assert (f"a tile of {tile} x {tile}:" in picture) is (tile is not None)
        assert ("key 0" in picture) is (tile is None)


@pytest.mark.parametrize("n", [3, 10, 11, 64])
def test_the_numbers_of_the_keys_stand_above_their_columns(n: int) -> None:
    _, header, *rows = masks.causal().show(n, n).split("\n")
    assert header.index("0") == rows[0].index("#")
    assert len(header) == len(rows[0])
    assert rows[0].startswith("query 0 #" if n <= 10 else "query  0 #")


def test_keys_count_in_the_last_digit() -> None:
    assert masks.causal().show(1, 23).split("\n")[1] == "    key 01234567890123456789012"


@pytest.mark.parametrize(
    ("sizes", "error", "text"),
    [
        ((2.0, 3), TypeError, "Mask.show: n_q: expected an integer, got float 2.0"),
        ((2, True), TypeError, "Mask.show: n_k: expected an integer, got bool True"),
        ((-1, 3), ValueError, "Mask.show: n_q: expected an integer of at least 0, got -1"),
        (
            ("a", -1),
            TypeError,
            (
                "Mask.show: 2 arguments do not fit\n"
                "  n_q: expected an integer, got str 'a'\n"
                "  n_k: expected an integer of at least 0, got -1"
            ),
        ),
    ],
)
def test_sizes_that_cannot_be_shown(sizes: tuple[Any, Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=exactly(text)):
        masks.causal().show(*sizes)


def test_a_mask_that_does_not_fit_is_not_shown() -> None:
    text = "Mask.show: lengths: expected at most n_k = 3, got 5; a length counts the item's real keys"
    with pytest.raises(ValueError, match=exactly(text)):
        masks.lengths([2, 5]).show(2, 3)


@pytest.mark.parametrize(
    "mask",
    [
        masks.lengths([1, 2]) & masks.lengths([1, 2, 3]),
        masks.lengths([1, 2, 3]) & bools(2, 5, 3, 3),
        bools(2, 1, 3, 3) & masks.causal() | bools(3, 1, 3, 3),
    ],
    ids=str,
)
def test_parts_that_do_not_fit_each_other_are_not_shown(mask: hw.Mask) -> None:
    with pytest.raises(ValueError, match=r"(?s)^Mask\.show: .*expected "):
        mask.show(3, 3)


# ------------------------------------------------------------------------------------------ causal_mask
@pytest.mark.parametrize(("n", "rows"), [(0, []), (1, ["1"]), (3, ["100", "110", "111"])])
def test_causal_mask(n: int, rows: list[str]) -> None:
    mask = hw.causal_mask(n)
    assert type(mask) is np.ndarray
    assert mask.dtype == np.bool_
    assert mask.shape == (n, n)
    assert digits(mask) == rows


def test_causal_mask_takes_any_integer() -> None:
    np.testing.assert_array_equal(hw.causal_mask(np.uint8(7)), masks.causal().dense((7, 7)))


# ----------------------------------------------------------------------------------- long and deep chains
def test_a_long_chain_is_one_flat_row() -> None:
    mask = masks.causal()
    for _ in range(3000):
        mask = mask & masks.lengths(2)
    assert digits(mask.dense((3, 3))) == ["100", "110", "110"]
    assert repr(mask).count("&") == 3000
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(mask)).dense((3, 3)), mask.dense((3, 3)))
    assert mask.tile((3, 3), (), (0, 3), (2, 3)) is False


def test_a_mask_joined_with_itself_is_that_mask() -> None:
    mask = masks.causal()
    for _ in range(12):  # not so often that a doubling mask would eat the memory
        mask = mask & mask
    assert repr(mask) == "causal()"
    assert repr((mask | mask) & masks.lengths(1) & mask) == "causal() & lengths(1)"


def test_a_mask_refused_twice_is_that_mask() -> None:
    mask = masks.window(1, 0)
    for _ in range(4000):
        mask = ~mask
    assert repr(mask) == "window(1, 0)"


@pytest.mark.parametrize("make", [masks.keys, masks.lengths], ids=["keys", "lengths"])
def test_no_items_at_all(make: Callable[[Any], Any]) -> None:
    assert make([]).dense((0, 3, 0)).shape == (0, 3, 0)


def test_what_no_array_can_hold_is_refused_in_our_words() -> None:
    for shape in ((2, 10**30), (2**40, 2**40), (1,) * 65, (2**70, 0), (0, 2**63), (2**61, 0)):
        with pytest.raises(ValueError, match=r"^Mask\.dense: shape: expected at most 24 axes and 2\*\*59 scores, got "):
            masks.causal().dense(shape)
    with pytest.raises(ValueError, match=r"^Mask\.show: n_q: expected an integer of at most 2\*\*16, got 1000000"):
        masks.causal().show(10**6, 5)


@pytest.mark.parametrize("nest", [lambda m, x: (m & x) | x, lambda m, x: ~(m & x)], ids=["and or", "not and"])
def test_nesting_is_refused_where_it_is_built_before_it_is_too_deep(nest: Callable[[Any, Any], Any]) -> None:
    deepest, other = masks.causal(), masks.lengths(2)
    for _ in range(32):
        deepest = nest(deepest, other)
    with pytest.raises(ValueError, match=r"mask: expected at most 64 levels of &, \| and ~ inside each other, got 65"):
        nest(deepest, other)
    assert deepest.dense((3, 3)).shape == (3, 3)
    assert deepest.tile((3, 3), (), (0, 3), (0, 3)) is not None
    assert len(repr(deepest)) > 64
    pickle.loads(pickle.dumps(deepest))


def test_a_maker_that_was_not_called_is_no_operand() -> None:
    with pytest.raises(TypeError, match=r"operand: expected a Mask or a bool array.*, got function .*; call it$"):
        masks.causal() & masks.causal
