"""Tiles against brute force: what a mask says of them, which are visited, who does them, and what is stacked."""

import math
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import Ruled, build_rule, leads, rules, score_lead

from examples import fewer
from headwise import alibi, attention_plan, masks
from headwise.core.grid import Grid, Stacking, backward_grid, grid_of
from headwise.core.masks import ALL, NONE, SOME, UNSURE
from headwise.core.shapes import Problem, problem

Index = tuple[int, ...]
SURE = ("causal", "window", "lengths", "keys", "positions")  # kinds whose tiles always show by arithmetic
SEEDS = st.integers(0, 2**32 - 1)


def frozen(array: Any) -> Any:
    array.flags.writeable = False
    return array


def checked(q: Any, k: Any, v: Any, mask: Any = None, **options: Any) -> Problem:
    given = {"causal": False, "bias": None, "scale": None, "softcap": None, "sinks": None, "dropout": 0.0, "rng": None}
    return problem("test", q, k, v, mask, **(given | options))


def plan_grid(scores: Index, mask: Any = None, **options: Any) -> Grid:
    """The grid of a problem with these scores, whose arrays take no memory."""
    *lead, n_q, n_k = scores
    return attention_plan((*lead, n_q, 2), (*lead, n_k, 2), (*lead, n_k, 2), mask, **options).grid


def state_of(block: Any) -> int:
    return ALL if block.all() else SOME if block.any() else NONE


@st.composite
def edges(draw: st.DrawFn, n: int) -> Any:
    """Where tiles begin, and the end of the last: at least one tile, not always from the first one on."""
    return np.array(sorted(draw(st.sets(st.integers(0, n), min_size=2))))


# ---------------------------------------------------------------------------------- what a mask says of tiles
def assert_states(ruled: Ruled, at: Index, rows: Any, cols: Any, sure: bool) -> None:
    states = ruled.mask._states(ruled.scores, at, rows, cols)
    assert (states.shape, states.dtype) == ((len(rows) - 1, len(cols) - 1), np.int8)
    for i, j in np.ndindex(states.shape):
        block = ruled.dense[at][rows[i] : rows[i + 1], cols[j] : cols[j + 1]]
        assert states[i, j] == state_of(block) or (not sure and states[i, j] == UNSURE), (at, i, j)


@settings(max_examples=fewer(300))
@given(rules(), st.data())
def test_states_never_contradict_the_block(ruled: Ruled, data: st.DataObject) -> None:
    if 0 in ruled.scores:
        return
    rows, cols = (data.draw(edges(n)) for n in ruled.scores[-2:])
    for at in np.ndindex(ruled.scores[:-2]):
        assert_states(ruled, at, rows, cols, sure=False)


@pytest.mark.parametrize("negated", [False, True], ids=["as it is", "negated"])
@pytest.mark.parametrize("share", ["one", "items"])
@pytest.mark.parametrize("kind", SURE)
@settings(max_examples=fewer(25))
@given(data=st.data())
def test_these_kinds_are_always_sure(kind: str, share: str, negated: bool, data: st.DataObject) -> None:
    sizes = data.draw(st.tuples(*[st.sampled_from([1, 2, 5, 13])] * 2))
    rule = ("~", (kind, share)) if negated else (kind, share)
    ruled = build_rule(rule, (2, 2, *sizes), data.draw(SEEDS))
    rows, cols = (data.draw(edges(n)) for n in sizes)
    for at in np.ndindex(2, 2):
        assert_states(ruled, at, rows, cols, sure=True)


def test_segments_are_sure_where_all_or_nothing_shows() -> None:
    mask = masks.segments([0, 0, 1, 1], [0, 0, 1, 1])
    states = mask._states((4, 4), (), np.array([0, 2, 4]), np.array([0, 2, 4]))
    assert states.tolist() == [[ALL, NONE], [NONE, ALL]]


def test_one_part_that_decides_spares_the_block() -> None:
    """An array alone is unsure; where causal rules a tile out, no array can let it in again."""
    mask = np.ones((4, 4), bool) & masks.causal()
    states = mask._states((4, 4), (), np.array([0, 2, 4]), np.array([0, 2, 4]))
    assert states[0, 1] == NONE
    assert states[1, 0] == UNSURE


@settings(max_examples=fewer(300))
@given(rules(), st.sampled_from(["u4", "u8"]), st.data())
def test_bits_are_the_block_in_words(ruled: Ruled, word: str, data: st.DataObject) -> None:
    if 0 in ruled.scores:
        return
    rows, cols = (data.draw(edges(n)) for n in ruled.scores[-2:])
    rows, cols = slice(int(rows[0]), int(rows[-1])), slice(int(cols[0]), int(cols[-1]))
    for at in np.ndindex(ruled.scores[:-2]):
        bits = ruled.mask._bits(ruled.scores, at, rows, cols, np.dtype(word))
        assert bits.dtype == word
        wanted = [[int(np.iinfo(word).max) * int(seen) for seen in row] for row in ruled.dense[at][rows, cols]]
        assert bits.tolist() == wanted


# --------------------------------------------------------------------------------------- states and steps
@st.composite
def ruled_grids(draw: st.DrawFn) -> tuple[Ruled, Grid]:
    """A mask, and a grid of small tiles for it; sometimes with causal besides."""
    ruled, causal = draw(rules()), draw(st.booleans())
    tile, threads = draw(st.tuples(st.integers(1, 5), st.integers(1, 6))), draw(st.sampled_from([1, 3]))
    grid = plan_grid(ruled.scores, ruled.mask, causal=causal, tile=tile, threads=threads)
    if causal:
        n_q, n_k = ruled.scores[-2:]
        sees = ruled.sees
        ruled = replace(ruled, sees=lambda at, i, j: sees(at, i, j) and j <= i + n_k - n_q)
    return ruled, grid


def tile_slices(grid: Grid) -> list[slice]:
    return [slice(a, b) for a, b in pairwise(grid.edges().tolist())]


def blocks_of(grid: Grid, span: slice) -> list[slice]:
    step = grid.block(span)
    assert (span.stop - span.start) % step == 0
    return [slice(i, i + step) for i in range(span.start, span.stop, step)]


@settings(max_examples=fewer(200))
@given(ruled_grids())
def test_spans_and_edges_cut_all_queries_and_keys(drawn: tuple[Ruled, Grid]) -> None:
    _, grid = drawn
    n_q, n_k = grid.p.scores[-2:]
    assert [i for span in grid.spans() for i in range(span.start, span.stop)] == list(range(n_q))
    assert [j for cols in tile_slices(grid) for j in range(cols.start, cols.stop)] == list(range(n_k))
    assert all(cols.stop - cols.start <= grid.tiling.cols for cols in tile_slices(grid))
    assert all(
        len(range(grid.p.scores[-2])[block]) <= grid.tiling.rows for s in grid.spans() for block in blocks_of(grid, s)
    )


@settings(max_examples=fewer(300))
@given(ruled_grids())
def test_states_of_a_grid_are_exact(drawn: tuple[Ruled, Grid]) -> None:
    ruled, grid = drawn
    for at in np.ndindex(ruled.scores[:-2]):
        for span in grid.spans():
            wanted = [[state_of(ruled.dense[at][b, cols]) for cols in tile_slices(grid)] for b in blocks_of(grid, span)]
            assert grid.states(at, span).tolist() == wanted


@settings(max_examples=fewer(300))
@given(ruled_grids(), st.booleans())
def test_steps_visit_what_can_be_seen_once_and_in_order(drawn: tuple[Ruled, Grid], backwards: bool) -> None:
    ruled, grid = drawn
    for at in np.ndindex(ruled.scores[:-2]):
        for span in grid.spans():
            assert_steps(grid, ruled.dense[at], at, span, backwards)


def assert_steps(grid: Grid, dense: Any, at: Index, span: slice, backwards: bool) -> None:
    blocks, steps = blocks_of(grid, span), grid.steps(at, span, backwards)
    visited: dict[int, list[slice]] = {b: [] for b in range(len(blocks))}
    for strip in steps.strips:
        mine = range(len(blocks))[strip.blocks]
        assert len(mine) > 0
        assert strip.rows == slice(blocks[mine[0]].start, blocks[mine[-1]].stop)
        assert strip.kind == (mine[0], mine[-1] + 1, strip.cols.stop - strip.cols.start)
        first = tuple(b for b in mine if not visited[b])
        assert strip.fresh == (len(first) == len(mine))
        assert strip.blank == (() if strip.fresh else first)
        assert strip.masked == (not dense[strip.rows, strip.cols].all())
        bits = grid.bits(at, strip)
        if bits is None:
            assert not strip.masked
        else:
            seen = bits.reshape(-1, strip.cols.stop - strip.cols.start)
            assert set(np.unique(seen).tolist()) <= {0, int(np.iinfo(seen.dtype).max)}
            np.testing.assert_array_equal(seen != 0, dense[strip.rows, strip.cols])
            assert (bits.shape[:2], seen.dtype.itemsize) == ((len(mine), grid.block(span)), grid.p.computing.itemsize)
        for r in (1, 3):  # each query as often as it has heads
            words = grid.words(at, strip, r)
            assert (words is None) == (bits is None)
            if words is not None:
                assert words.dtype == seen.dtype
                np.testing.assert_array_equal(words != 0, np.repeat(dense[strip.rows, strip.cols], r, axis=0))
        for b in mine:
            visited[b].append(strip.cols)
    for one, other in pairwise(steps.strips):  # blocks that lie together are taken together
        assert one.cols != other.cols or one.blocks.stop < other.blocks.start
    for b, block in enumerate(blocks):
        wanted = [cols for cols in tile_slices(grid) if dense[block, cols].any()]
        assert visited[b] == (wanted[::-1] if backwards else wanted)
    assert list(steps.unseen) == [b for b in visited if not visited[b]]


@settings(max_examples=fewer(200))
@given(ruled_grids())
def test_alive_are_the_queries_that_see_a_key(drawn: tuple[Ruled, Grid]) -> None:
    ruled, grid = drawn
    for at in np.ndindex(ruled.scores[:-2]):
        for span in grid.spans():
            alive = grid.alive(at, span)
            assert alive.shape == (len(blocks_of(grid, span)), grid.block(span))
            np.testing.assert_array_equal(alive.ravel(), ruled.dense[at][span].any(axis=-1))


@pytest.mark.parametrize("n_k", [0, 3])
def test_without_a_mask_all_are_alive_that_have_a_key(n_k: int) -> None:
    grid = plan_grid((2, 5, n_k), tile=(2, 2))
    assert [bool(grid.alive((0,), span).all()) for span in grid.spans()] == [n_k > 0] * 2
    assert [bool(grid.alive((0,), span).any()) for span in grid.spans()] == [n_k > 0] * 2


# ------------------------------------------------------------------------------------------ tasks and stacks
def numbered(lead: Index, n: int) -> Any:
    """An array (*lead, n, 1) whose numbers are the places of its rows, in C order."""
    return frozen(np.arange(math.prod((*lead, n)), dtype=np.float64).reshape(*lead, n, 1))


@settings(max_examples=fewer(300))
@given(leads(), st.sampled_from([1, 2, 5, 0]), st.sampled_from([1, 2, 7]), st.integers(1, 3), st.integers(1, 3), SEEDS)
def test_tasks_cover_every_query_of_every_head_once(
    drawn: tuple[Index, Index, Index], n_q: int, n_k: int, rows: int, threads: int, seed: int
) -> None:
    lead_q, lead_k, lead_v = drawn
    scores = (*score_lead(*drawn), n_q, n_k)
    share = ("one", "items", "some")[seed % 3]
    ruled = build_rule((("array", "lengths", "segments")[seed % 5 % 3], share), scores, seed)
    q, k, v = numbered(lead_q, n_q), numbered(lead_k, n_k), numbered(lead_v, n_k)
    p = checked(q, k, v, ruled.mask)
    grid = grid_of(p, threads, (rows, 3))
    views = grid.views(p)
    done = np.zeros(scores[:-1], int)
    owners = [owner_rows(x, scores) for x in (q, k, v)]
    for task in grid.tasks():
        lead = grid.lead(task)
        for h in range(task.shared.start, task.shared.stop):
            for r in range(task.grouped.start, task.grouped.stop):
                at = tuple(int(i) for i in np.unravel_index(grid.flat(task.outer, h, r), scores[:-2]))
                done[at][task.rows] += 1
                place = (*task.outer, h, r)
                np.testing.assert_array_equal(views.q[place], owners[0][at])
                np.testing.assert_array_equal(views.k[(*place[:-1], 0)], owners[1][at])
                np.testing.assert_array_equal(views.v[(*place[:-1], 0)], owners[2][at])
                np.testing.assert_array_equal(ruled.dense[at], ruled.dense[lead])  # one mask holds for all of a task
    np.testing.assert_array_equal(done, 1)


def owner_rows(x: Any, scores: Index) -> Any:
    """x with the scores' own leading axes, each group written out."""
    if len(scores) < 3:
        return x
    n_heads, own = scores[-3], x.shape[-3] if x.ndim > 2 else 1
    if own not in (1, n_heads):
        x = np.repeat(x, n_heads // own, axis=-3)
    return np.broadcast_to(x, (*scores[:-2], *x.shape[-2:]))


def swapped(*shape: int) -> Any:
    """(B, H, n, d) that lies as (B, n, H, d)."""
    B, H, n, d = shape
    return frozen(np.zeros((B, n, H, d))).swapaxes(1, 2)


def zeros(*shape: int) -> Any:
    return frozen(np.zeros(shape))


LAYOUTS = {
    "contiguous": (zeros(3, 4, 5, 2), zeros(3, 4, 7, 2), zeros(3, 4, 7, 2)),
    "(B, n, H, d)": (swapped(3, 4, 5, 2), swapped(3, 4, 7, 2), swapped(3, 4, 7, 2)),
    "one of them (B, n, H, d)": (zeros(3, 4, 5, 2), zeros(3, 4, 7, 2), swapped(3, 4, 7, 2)),
    "grouped": (zeros(3, 6, 5, 2), zeros(3, 2, 7, 2), zeros(3, 2, 7, 2)),
    "grouped (B, n, H, d)": (swapped(3, 6, 5, 2), swapped(3, 2, 7, 2), swapped(3, 2, 7, 2)),
    "one key head": (zeros(3, 6, 5, 2), zeros(3, 1, 7, 2), zeros(3, 1, 7, 2)),
    "broadcast": (zeros(3, 4, 5, 2), np.broadcast_to(zeros(4, 7, 2), (3, 4, 7, 2)), zeros(7, 2)),
    "keys of one item": (zeros(3, 4, 5, 2), zeros(1, 4, 7, 2), zeros(4, 7, 2)),
    "one query head": (zeros(3, 1, 5, 2), zeros(3, 4, 7, 2), zeros(3, 4, 7, 2)),
    "2 axes": (zeros(5, 2), zeros(7, 2), zeros(7, 2)),
    "3 axes": (zeros(4, 5, 2), zeros(4, 7, 2), zeros(4, 7, 2)),
    "5 axes": (zeros(2, 3, 4, 5, 2), zeros(2, 1, 2, 7, 2), zeros(3, 2, 7, 2)),
    "strided": (zeros(6, 8, 10, 4)[::2, ::2, ::2, ::2], zeros(3, 4, 14, 2)[..., ::2, :], zeros(3, 4, 7, 2)[..., ::-1]),
}


@pytest.mark.parametrize("per", ["none", "item", "head"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_stacking_never_copies(layout: str, per: str) -> None:
    given = LAYOUTS[layout]
    p = checked(*given)
    if per != "none":
        lead = p.scores[:-2] if per == "head" else (*p.scores[:-3], *(1,) * (len(p.scores) > 2))
        p = p._replace(mask=np.ones((*lead, *p.scores[-2:]), bool))
    views = grid_of(p, 2).views(p)
    for name, view, array in zip("qkv", views[:3], given, strict=True):
        assert np.shares_memory(view, array), name


def test_a_dense_bias_is_not_copied_either() -> None:
    for bias in (zeros(3, 4, 5, 7), zeros(4, 5, 7), zeros(3, 1, 5, 7), zeros(1, 7)):
        p = checked(*LAYOUTS["contiguous"], bias=bias)
        view = grid_of(p, 2).views(p).bias
        assert view is not None
        assert np.shares_memory(view, bias)


@pytest.mark.parametrize(
    ("layout", "mask", "stacking"),
    [
        ("contiguous", None, Stacking((), 12, 1)),
        ("contiguous", masks.lengths([1, 2, 3]), Stacking((3,), 4, 1)),
        ("contiguous", masks.lengths([5]), Stacking((), 12, 1)),
        ("contiguous", masks.lengths(5), Stacking((), 12, 1)),
        ("contiguous", np.ones((4, 5, 7), bool), Stacking((3, 4, 1), 1, 1)),
        ("contiguous", np.ones((3, 1, 5, 7), bool), Stacking((3,), 4, 1)),
        ("(B, n, H, d)", None, Stacking((3,), 4, 1)),
        ("one of them (B, n, H, d)", None, Stacking((3,), 4, 1)),
        ("grouped", None, Stacking((), 6, 3)),
        ("grouped", masks.causal([0, 1, 2]) | masks.keys(np.ones(7, bool)), Stacking((3,), 2, 3)),
        ("one key head", None, Stacking((), 3, 6)),
        ("2 axes", None, Stacking((), 1, 1)),
        ("3 axes", None, Stacking((), 4, 1)),
        ("3 axes", masks.lengths([1, 2, 3, 4]), Stacking((4, 1), 1, 1)),
    ],
    ids=str,
)
def test_what_is_stacked(layout: str, mask: Any, stacking: Stacking) -> None:
    assert grid_of(checked(*LAYOUTS[layout], mask), 1).stacking == stacking


def test_offsets_of_alibi_keep_items_apart() -> None:
    bias = alibi(np.ones(4), offset=[0, 1, 2])
    assert grid_of(checked(*LAYOUTS["contiguous"], bias=bias), 1).stacking == Stacking((3,), 4, 1)


# ------------------------------------------------------------------------------------------------------ sizes
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal": {"causal": True},
    "dropout": {"dropout": 0.5},
    "alibi": {"softcap": 3.0},
}


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("sizes", [(1, 1, 1), (1, 513, 64), (70, 90, 8), (777, 512, 64), (2048, 2048, 128)], ids=str)
def test_sizes_do_not_depend_on_company(sizes: tuple[int, int, int], dtype: Any, options: str) -> None:
    n_q, n_k, d = sizes
    found = set()
    for lead, n_groups in (((), 1), ((1,), 1), ((8,), 8), ((1, 1), 1), ((3, 8), 8), ((3, 8), 2), ((40, 12), 1)):
        for threads in (None, 1, 2, 7):
            kv = (*lead[:-1], n_groups, n_k, d) if lead else (n_k, d)
            plan = attention_plan((*lead, n_q, d), kv, kv, threads=threads, dtype=dtype, **OPTIONS[options])
            found.add(plan.grid.tiling)
    assert len(found) == 1
    tiling = found.pop()
    assert 1 <= tiling.rows <= n_q
    assert 1 <= tiling.cols <= n_k
    assert tiling.rows * tiling.height <= n_q


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("sizes", [(1, 1, 1), (1, 513, 64), (70, 90, 8), (777, 512, 64), (2048, 4096, 128)], ids=str)
def test_sums_of_gradients_do_not_depend_on_company(sizes: tuple[int, int, int], options: str) -> None:
    """Tiles, and how many of the heads that share keys are taken together."""
    n_q, n_k, d = sizes
    found = set()
    for batch in (1, 3, 40):
        for threads in (None, 1, 2, 7):
            shapes = (batch, 8, n_q, d), (batch, 2, n_k, d), (batch, 2, n_k, d)
            q, k, v = (np.broadcast_to(np.float32(0), shape) for shape in shapes)
            grid = backward_grid(checked(q, k, v, **OPTIONS[options], rng=0), threads)
            found.add((grid.tiling, grid.together[1], grid.key_lead[1:]))
            assert grid.key_lead[0] == batch
            assert grid.together[0] >= 1
    ((tiling, r, (n_groups, apart)),) = found
    assert (n_groups, apart) == (2, 1)
    assert 1 <= r <= 4
    assert tiling.rows * tiling.height <= n_q
    assert tiling.cols <= n_k


def test_where_heads_are_gone_through_one_by_one_each_has_sums_of_its_own() -> None:
    q, k = np.zeros((3, 8, 20, 4)), np.zeros((3, 2, 30, 4))
    mask = np.arange(8)[:, None, None] > np.zeros((20, 30))
    assert backward_grid(checked(q, k, k, mask), 1).key_lead == (3, 2, 4)
    assert backward_grid(checked(q, k, k), 1).key_lead == (3, 2, 1)


def test_the_values_of_a_mask_do_not_change_sizes() -> None:
    """Else an item alone could be cut in other places than among others."""
    shape, found = (3, 2, 600, 16), set()
    for lengths in ([600], [1], [600, 1, 300], 7):
        found.add(attention_plan(shape, shape, shape, masks.lengths(lengths)).grid.tiling)
    assert len(found) == 1


def test_forced_sizes_are_taken_as_they_are() -> None:
    shape = (2, 100, 8)
    for tile, sizes in (((7, 11), (7, 11)), ((1, 1), (1, 1)), ((1000, 1000), (100, 100))):
        tiling = attention_plan(shape, shape, shape, tile=tile).grid.tiling
        assert (tiling.rows, tiling.cols) == sizes
