"""The tiles of a problem: how large they are, which of them a mask rules out, which heads are stacked, who does what.

Knows shapes, masks and memory layout; computes no score.
"""

from __future__ import annotations  # help() then shows ArrayLike as it is written

import operator
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, reduce
from itertools import groupby, pairwise
from math import prod
from typing import Any, NamedTuple

import numpy as np

from headwise.core.masks import ALL, NONE, SOME, UNSURE, Mask, as_mask, causal
from headwise.core.paths import RAW, RUNNING, Path, first_path
from headwise.core.positions import Alibi
from headwise.core.shapes import Array, Problem, Shape, batch_axes, product_dtype
from headwise.core.workers import default_threads

_PACKED = 1_000_000  # rows * cols * d up to which OpenBLAS multiplies without packing its operands first
_SCORES = 2**21  # bytes of scores that a worker holds at once: about its cache
_HELD = 5 * 2**20  # bytes of scores, queries and partial results together
_TASKS = 2  # that each worker should get at least, so that they end together; of more, Python takes too much
_TINY = 2**27  # operations below which a second thread costs more than it saves: it waits for the first one's Python
_TINY_OF_FEW = 48_000_000  # the same where reading the keys is what takes the time


# ----------------------------------------------------------------------------------------- sizes
class Tiling(NamedTuple):
    """Sizes that depend on one head's shape, its type and the options alone: never on batch or threads."""

    rows: int  # queries of a tile
    cols: int  # keys of a tile
    height: int  # tiles of queries that a task stacks


_ROWS = 32  # queries of all heads that share a key head, up to which they count as few
_FEWEST = 8  # keys below which the usual way has enough to do with each of them
_CHUNK = 256  # keys of a chunk, at most: what OpenBLAS multiplies with up to 30 rows of width 128 unpacked


_KEYS_OF_FEW = 2**14  # keys of a task, of all its key heads: there Python's share of the time is small
_TASKS_OF_FEW = 2  # that each worker should get at least
MOST_CHUNKS = 16  # multiplied in one call: with fewer calls workers wait less for each other's Python


def is_few(p: Problem) -> bool:
    """Whether so few queries meet so many keys that reading the keys is what takes the time."""
    n_q, n_k = p.scores[-2:]
    n_heads = p.scores[-3] if len(p.scores) > 2 else 1
    rows = n_q * (n_heads // _n_groups(p) if n_heads else 0)
    return 0 < rows <= _ROWS and n_k >= max(_FEWEST, 8 * rows)


def chunks(p: Problem) -> Tiling:
    """All queries against chunks of keys of nearly one size."""
    n_q, n_k = p.scores[-2:]
    step = 128 if p.dropout else 16  # dropout's cells are 128 keys wide
    cols = -(-n_k // -(-n_k // _CHUNK))
    return Tiling(n_q, min(n_k, -(-cols // step) * step), 1)


def tiling(p: Problem, rule: Mask | None, tile: tuple[int, int] | None = None) -> Tiling:
    """The sizes of tiles for a problem, or those that are asked for."""
    n_q, n_k = p.scores[-2:]
    d = max(p.q.shape[-1], p.v.shape[-1], 1)
    rows = 128 if d <= 16 else 64
    step = 128 if p.dropout else 16  # dropout's cells are 128 keys wide
    # Small tiles along the edge of a mask leave out more; without a mask fewer, larger ones cost less to begin.
    most = 128 if rule is None else max(64, min(128, n_k // 4))
    cols = max(step, min(_PACKED // (rows * d), most) // step * step)
    cols = -(-n_k // max(1, -(-n_k // cols) * step)) * step  # tiles of one size, or nearly
    rows, cols = tile or (rows, cols)
    rows, cols = max(1, min(rows, n_q)), max(1, min(cols, n_k))
    blocks = n_q // rows  # all of a short head in one task; a quarter of a longer one, so that there are tasks to share
    tall = blocks if n_q < 512 else max(blocks // 4, min(blocks // 2, 4))
    return Tiling(rows, cols, max(1, min(tall, 16)))


def backward_tiling(p: Problem, rule: Mask | None) -> Tiling:
    """The same for gradients: five products a tile, each of which adds up over a side of it, want larger ones."""
    n_q, n_k = p.scores[-2:]
    rows = max(1, min(64, n_q))
    step = 128 if p.dropout else 16  # dropout's cells are 128 keys wide
    cols = max(128, min(512, n_k // 2)) if rule is None else max(64, min(256, n_k // 4))
    cols = -(-n_k // max(1, -(-n_k // max(step, cols)) * step)) * step  # tiles of one size, or nearly
    return Tiling(rows, max(1, min(cols, n_k)), max(1, min(n_q // rows, 8)))


# ------------------------------------------------------------------------------- the leading axes
class Views(NamedTuple):
    """A problem's arrays as tasks see them, nothing copied; leading axes (..., L, R)."""

    q: Array  # (..., L, R, n_q, d_k)
    k: Array  # (..., L, 1, n_k, d_k)
    v: Array  # (..., L, 1, n_k, d_v)
    bias: Array | None  # (..., L, R, n_q, n_k), a dense one
    slopes: Array | None  # (..., L, R), those of alibi
    sinks: Array | None  # (..., L, R)


class Stacking(NamedTuple):
    """The leading axes as they are gone through: (..., L, R), of which the last two are stacked within a task.

    R query heads share a key head. L counts the heads and items that one mask holds for and that lie evenly in memory.
    """

    outer: Shape
    n_shared: int  # L
    n_grouped: int  # R


def rule_of(p: Problem) -> Mask | None:
    """Mask and causal in one; None where everything may be seen."""
    parts: list[Any] = [] if p.mask is None else [as_mask(p.mask)]
    parts += [causal()] if p.causal else []
    rule: Mask | None = reduce(operator.and_, parts) if parts else None
    return rule


def _n_groups(p: Problem) -> int:
    """The key heads of each item."""
    n_heads = p.scores[-3] if len(p.scores) > 2 else 1
    n_groups: int = max(x.shape[-3] if x.ndim > 2 else 1 for x in (p.k, p.v))
    return n_groups if 0 < n_groups <= n_heads else n_heads


def _grouped(p: Problem) -> tuple[Array, ...]:
    """q as (batch..., G, R, n_q, d_k), k and v as (batch..., G, 1, n_k, d), a dense bias as q: views."""
    lead, n_groups = p.scores[:-2], _n_groups(p)
    batch, n_heads = lead[:-1], lead[-1] if lead else 1
    apart = (*batch, n_groups, n_heads // n_groups if n_groups else 1)
    wide: tuple[Array, ...] = (_stretched(p.q, (*batch, n_heads)),)
    if isinstance(p.bias, np.ndarray):
        wide += (np.broadcast_to(p.bias, (*batch, n_heads, *p.scores[-2:])),)
    k, v = (x[..., :n_groups, :, :] if x.ndim > 2 else x for x in (p.k, p.v))  # there may be no heads at all
    k, v = (_stretched(x, (*batch, n_groups))[..., None, :, :] for x in (k, v))
    q, *bias = (x.reshape(*apart, *x.shape[-2:]) for x in wide)
    return (q, k, v, *bias)


def _stretched(x: Array, lead: Shape) -> Array:
    """x (..., n, d) with these leading axes: itself where it has them, which takes no time."""
    return x if x.shape[:-2] == lead else np.broadcast_to(x, (*lead, *x.shape[-2:]))


def _varies(p: Problem, rule: Mask | None) -> tuple[bool, ...]:
    """For each leading axis of the scores: whether the mask, or the offsets of a bias, differ along it."""
    lead, batch = p.scores[:-2], batch_axes(p.scores)
    held = rule._leads() if rule is not None else []
    offset = getattr(p.bias, "offset", None)
    held += [(offset.lead, False)] if offset is not None else []
    varies = [False] * len(lead)
    for shape, has_heads in held:
        last = len(lead) if has_heads else len(batch)
        for axis, size in enumerate(shape, last - len(shape)):
            varies[axis] |= size > 1
    return tuple(varies)


def _stacking(views: tuple[Array, ...], varies: tuple[bool, ...]) -> Stacking:
    """How the leading axes can be stacked without copying anything."""
    axes = views[0].shape[:-2]  # (batch..., G, R)
    if varies and varies[-1]:
        return Stacking(axes, 1, 1)
    first = len(axes) - 2  # of the axes that are joined to L
    while first > 0 and not varies[first - 1] and all(_lies_evenly(view, first - 1) for view in views):
        first -= 1
    return Stacking(axes[:first], prod(axes[first:-1]), axes[-1])


def _lies_evenly(x: Array, first: int) -> bool:
    """Whether the axes from this one to L can be taken as one without a copy."""
    sizes, strides = x.shape[first:-3], x.strides[first:-3]
    steps = [(size, stride) for size, stride in zip(sizes, strides, strict=True) if size != 1]
    return all(outer[1] == inner[0] * inner[1] for outer, inner in pairwise(steps))


def _readable(x: Array, dtype: Any) -> bool:
    """Whether the BLAS can read tiles of x as they lie. (NumPy 1.26 is 70 times slower where it cannot.)"""
    (step, unit), size = x.strides[-2:], x.itemsize
    lies = unit == size and step >= size * x.shape[-1] and step % size == 0
    return bool(x.dtype == dtype and x.dtype.isnative and x.flags.aligned and lies)


# ----------------------------------------------------------------------------------------- tasks
class Task(NamedTuple):
    """What one worker does at a time: a few blocks of queries of a few heads, against all keys."""

    outer: Shape
    shared: slice  # of L
    grouped: slice  # of R
    rows: slice

    @property
    def heads(self) -> tuple[Any, ...]:
        """The index of its heads into leading axes (..., L, R)."""
        return (*self.outer, self.shared, self.grouped)

    @property
    def n_heads(self) -> int:
        return int((self.shared.stop - self.shared.start) * (self.grouped.stop - self.grouped.start))


class Strip(NamedTuple):
    """Neighbouring blocks of queries against one tile of keys."""

    kind: tuple[int, int, int]  # first block and the one after the last, and how many keys: what buffers it needs
    blocks: slice  # of the task
    rows: slice  # the queries in them
    cols: slice
    fresh: bool  # whether these are the first keys that all of these blocks see
    blank: tuple[int, ...]  # else the blocks, of the task, for which they are
    masked: bool  # whether some of these pairs are ruled out


class Steps(NamedTuple):
    """What is done for a task: its strips in the order of their keys, and the blocks that see no key at all."""

    strips: tuple[Strip, ...]
    unseen: tuple[int, ...]


class Run(NamedTuple):
    """Neighbouring chunks of one width that few queries meet together: all seen whole, or all in part."""

    number: int  # among those of its key head
    strip: Strip  # all their keys
    width: int  # of a chunk


@dataclass(frozen=True, eq=False)
class Grid:
    """The tiles of a problem and the tasks that they are done in."""

    p: Problem
    rule: Mask | None
    tiling: Tiling
    stacking: Stacking
    varies: tuple[bool, ...]  # for each leading axis of the scores: whether the mask differs along it
    together: tuple[int, int]  # of L and R, in one task
    threads: int
    product: Any  # the type in which q k^T is multiplied
    readable: tuple[bool, bool]  # whether tiles of k and of v can be multiplied as they lie
    few: bool = False  # whether chunks of keys are the tasks, and not blocks of queries

    @property
    def rows_together(self) -> int:
        """The queries of all heads in a task."""
        return int(prod(self.together) * self.tiling.height * self.tiling.rows)

    def for_arrays(self, p: Problem) -> Grid:
        """The same grid for other arrays of the same shapes and types, which may lie otherwise in memory."""
        if self.few:
            return grid_of(p, self.threads)
        return grid_of(p, self.threads, (self.tiling.rows, self.tiling.cols))

    def size(self, task: Task) -> int:
        """How much of a run this task is, in scores (masked or not)."""
        return int(task.n_heads * (task.rows.stop - task.rows.start) * max(1, self.p.scores[-1]))

    def views(self, p: Problem) -> Views:
        """The arrays of a problem of these shapes."""
        axes, n_heads = self.stacking, p.scores[-3] if len(p.scores) > 2 else 1
        q, *others = _grouped(p)
        if len(axes.outer) == q.ndim - 2:  # heads are gone through one by one
            q, *others = (np.broadcast_to(x, (*axes.outer, *x.shape[-2:]))[..., None, :, :] for x in (q, *others))
        q, k, v, *bias = (x.reshape(*axes.outer, axes.n_shared, *x.shape[-3:]) for x in (q, *others))
        each = (*axes.outer, axes.n_shared, axes.n_grouped)
        slopes, sinks = (
            None if x is None else np.broadcast_to(x, (*p.scores[:-3], n_heads)).reshape(each)
            for x in (getattr(p.bias, "slopes", None), p.sinks)
        )
        with np.errstate(all="ignore"):  # a sink below the type is -inf
            sinks = None if sinks is None else sinks.astype(p.computing)
        return Views(q, k, v, bias[0] if bias else None, slopes, sinks)

    def paths(self, views: Views, task: Task) -> list[Path]:
        """The path that each head of a task tries first; only one where all try the same."""
        if views.slopes is None:
            return [first_path(self.p, checked=self.few)]
        distance = self.p.bias._largest(self.p.scores, self.lead(task))
        paths = [
            first_path(self.p, abs(slope) * distance, self.few) for slope in views.slopes[task.heads].ravel().tolist()
        ]
        return paths if len(set(paths)) > 1 else paths[:1]

    def path_of_few(self, views: Views, task: Task) -> Path:
        """The one that all heads of few queries try first: raw where all may, else by maxima."""
        return RAW if self.paths(views, task) == [RAW] else RUNNING

    def runs(self, lead: Shape) -> list[Run]:
        """The chunks of a key head under one mask, less those that nobody sees."""
        rows, edges = slice(0, self.p.scores[-2]), self.edges().tolist()
        (states,) = self.states(lead, rows).tolist()
        kinds = [(state, stop - first) for state, (first, stop) in zip(states, pairwise(edges), strict=True)]
        runs: list[Run] = []
        for (state, width), group in groupby(range(len(kinds)), key=kinds.__getitem__):
            js = list(group) if state != NONE else []
            for i in range(0, len(js), MOST_CHUNKS):
                some = js[i : i + MOST_CHUNKS]
                cols = slice(edges[some[0]], edges[some[-1] + 1])
                strip = Strip((0, 1, width), slice(0, 1), rows, cols, True, (), state == SOME)
                runs.append(Run(len(runs), strip, width))
        return runs

    @property
    def words_kept(self) -> int:
        """How many tiles of a mask's words are kept for the next heads under the same mask."""
        if self.rule is not None and self.rule.by_diagonals:
            return 256  # a few KiB each
        cols = self.tiling.cols * (MOST_CHUNKS if self.few else 1)
        one = self.tiling.height * self.tiling.rows * cols * self.p.computing.itemsize
        return max(2, min(16, 2**22 // one))

    @property
    def key_lead(self) -> Shape:
        """The axes (batch..., G, R or 1) of what is summed for keys: R where heads are gone through one by one."""
        n_groups, axes = _n_groups(self.p), self.stacking
        batch = self.p.scores[:-3]
        apart = len(axes.outer) == len(batch) + 2
        return (*batch, n_groups, axes.outer[-1] if apart else 1)

    def spans(self) -> list[slice]:
        """The queries of each task: whole tiles, then what is left over."""
        n_q, (rows, _, height) = self.p.scores[-2], self.tiling
        whole = n_q // rows * rows
        spans = [slice(i, min(whole, i + rows * height)) for i in range(0, whole, rows * height)]
        return spans + [slice(whole, n_q)] * (whole < n_q)

    def tasks(self) -> list[Task]:
        """In the order in which they are begun: those with most keys first, where a causal mask makes them differ."""
        (outer, n_shared, n_grouped), (h, r) = self.stacking, self.together
        shared = [slice(i, min(n_shared, i + h)) for i in range(0, n_shared, h)]
        grouped = [slice(i, min(n_grouped, i + r)) for i in range(0, n_grouped, r)]
        return [
            Task(place, some, group, rows)
            for rows in reversed(self.spans())
            for place in np.ndindex(*outer)
            for some in shared
            for group in grouped
        ]

    def block(self, rows: slice) -> int:
        """The queries of each block of a task."""
        return int(min(self.tiling.rows, rows.stop - rows.start))

    def lead(self, task: Task) -> Shape:
        """An item and head of the scores for which the mask is what it is for those of a task."""
        if not any(self.varies):
            return (0,) * (len(self.p.scores) - 2)
        flat = self.flat(task.outer, task.shared.start, task.grouped.start)
        place = np.unravel_index(flat, self.p.scores[:-2])
        return tuple(int(i) if varies else 0 for i, varies in zip(place, self.varies, strict=True))

    def flat(self, outer: Shape, shared: int, grouped: int) -> int:
        """The flat index of an item and head."""
        sizes, place = (*self.stacking.outer, *self.stacking[1:]), (*outer, shared, grouped)
        return int(np.ravel_multi_index(place, sizes))

    def states(self, lead: Shape, rows: slice) -> Array:
        """What each tile of these queries is to the mask: NONE, ALL or SOME, shape (n_blocks, n_tiles)."""
        n_k, step = self.p.scores[-1], self.block(rows)
        downs, acrosses = np.arange(rows.start, rows.stop + 1, step), self.edges()
        if self.rule is None:
            return np.full((len(downs) - 1, len(acrosses) - 1), ALL, np.int8)
        states = self.rule._states(self.p.scores, lead, downs, acrosses)
        unsure = np.flatnonzero((states == UNSURE).any(axis=0))
        if unsure.size:
            states = states.copy()
        for j in unsure:
            cols = slice(int(acrosses[j]), int(min(n_k, acrosses[j + 1])))
            block = self.rule._at(self.p.scores, lead, rows, cols)
            seen = np.broadcast_to(block, (rows.stop - rows.start, cols.stop - cols.start)).reshape(len(downs) - 1, -1)
            states[:, j] = np.where(seen.all(axis=1), ALL, np.where(seen.any(axis=1), SOME, NONE))
        return states

    def edges(self) -> Array:
        """Where tiles of keys begin, and the end of the last."""
        n_k, cols = self.p.scores[-1], self.tiling.cols
        edges = np.arange(0, n_k + cols, cols)
        edges[-1] = n_k
        return edges

    def steps(self, lead: Shape, rows: slice, backwards: bool = False) -> Steps:
        """What is done for a task; heads under one mask share it."""
        return self._steps(lead if self.rule is not None else (), rows.start, rows.stop, backwards)

    @cached_property
    def _steps(self) -> Callable[[Shape, int, int, bool], Steps]:
        few = max(1, min(8, 4096 // max(1, len(self.edges()))))  # strips of a long sequence take memory too
        return lru_cache(maxsize=few)(self._make_steps)  # as tasks are in order, only the last are asked for again

    def _make_steps(self, lead: Shape, start: int, stop: int, backwards: bool) -> Steps:
        rows = slice(start, stop)
        columns, step = self.states(lead, rows).T.tolist(), self.block(rows)
        strips, touched = [], 0  # a bit for each block
        shared: dict[Any, Any] = {}  # long sequences have many strips of few kinds
        order = range(len(columns))
        for j in reversed(order) if backwards else order:
            cols = self.cols[j]
            for a, b, masked in _runs(tuple(columns[j])):
                new = tuple(i for i in range(a, b) if not touched >> i & 1)
                touched |= (1 << b) - (1 << a)
                kind, fresh = (a, b, cols.stop - cols.start), len(new) == b - a
                if kind not in shared:
                    shared[kind] = kind, slice(a, b), slice(start + a * step, start + b * step)
                kind, blocks, span = shared[kind]
                strips.append(Strip(kind, blocks, span, cols, fresh, () if fresh else new, masked))
        return Steps(tuple(strips), tuple(i for i in range((stop - start) // step) if not touched >> i & 1))

    def words(self, lead: Shape, strip: Strip, repeated: int) -> Array | None:
        """Words as of `bits`, as (rows * repeated, cols) with neighbouring rows alike; None if all may attend."""
        if not strip.masked:
            return None
        return self._words(lead, strip.rows.start, strip.rows.stop, strip.cols.start, strip.cols.stop, repeated)

    @cached_property
    def _words(self) -> Callable[[Shape, int, int, int, int, int], Array]:
        return lru_cache(maxsize=self.words_kept if self.together[1] == 1 else 16)(self._make_words)

    def _make_words(self, lead: Shape, start: int, stop: int, first: int, last: int, repeated: int) -> Array:
        bits = self._tile_words(lead, slice(start, stop), slice(first, last))
        return bits if repeated == 1 else np.repeat(bits.swapaxes(-1, -2), repeated, axis=-1).swapaxes(-1, -2)

    @cached_property
    def cols(self) -> tuple[slice, ...]:
        """The keys of each tile."""
        return tuple(slice(first, stop) for first, stop in pairwise(self.edges().tolist()))

    def alive(self, lead: Shape, rows: slice) -> Array:
        """Which queries see a key at all: bool, (n_blocks, rows)."""
        return self._alive(lead, rows.start, rows.stop)

    @cached_property
    def _alive(self) -> Callable[[Shape, int, int], Array]:
        return lru_cache(maxsize=8)(self._find_alive)

    def _find_alive(self, lead: Shape, start: int, stop: int) -> Array:
        rows, n_k = slice(start, stop), self.p.scores[-1]
        alive = np.full(stop - start, self.rule is None and n_k > 0)
        for first in range(0, n_k if self.rule is not None else 0, self.tiling.cols):
            assert self.rule is not None
            block = self.rule._at(self.p.scores, lead, rows, slice(first, min(n_k, first + self.tiling.cols)))
            alive |= np.broadcast_to(block, (stop - start, block.shape[1])).any(axis=1)
        return alive.reshape(-1, self.block(rows))

    def bits(self, lead: Shape, strip: Strip) -> Array | None:
        """Words with all bits set where a query may attend: (n_blocks, rows, cols); None if all of them may."""
        if not strip.masked:
            return None
        return self._bits(lead, strip.rows.start, strip.rows.stop, strip.cols.start, strip.cols.stop)

    @cached_property
    def _bits(self) -> Callable[[Shape, int, int, int, int], Array]:
        return lru_cache(maxsize=self.words_kept)(self._make_bits)

    def _make_bits(self, lead: Shape, start: int, stop: int, first: int, last: int) -> Array:
        rows = slice(start, stop)
        return self._tile_words(lead, rows, slice(first, last)).reshape(-1, self.block(rows), last - first)

    def _tile_words(self, lead: Shape, rows: slice, cols: slice) -> Array:
        """Words of a tile, (n_rows, n_cols), in memory as scores lie: keys first."""
        assert self.rule is not None
        bits = self.rule._bits(self.p.scores, lead, rows, cols, np.dtype(f"u{self.p.computing.itemsize}"))
        return bits if self.rule.by_diagonals else np.ascontiguousarray(bits.swapaxes(-1, -2)).swapaxes(-1, -2)


@lru_cache(maxsize=1024)
def _runs(column: tuple[int, ...]) -> tuple[tuple[int, int, bool], ...]:
    """The runs of neighbouring blocks that see some key of a tile: first block, the one after the last, any masked."""
    found = []
    for seen, group in groupby(range(len(column)), key=lambda i: column[i] != NONE):
        blocks = list(group)
        if seen:
            found.append((blocks[0], blocks[-1] + 1, any(column[i] == SOME for i in blocks)))
    return tuple(found)


def grid_of(
    p: Problem,
    threads: int | None,
    tile: tuple[int, int] | None = None,
    contiguous: bool = False,
    few: bool = True,
    alone: bool = False,
) -> Grid:
    """The tiles and tasks of a problem; ``contiguous`` where its arrays only stand for such.

    Few queries against many keys are cut along the keys, unless tiles are asked for or ``few`` is False. ``alone``
    where it is itself a task of one worker: then nothing is gained by many small ones.
    """
    rule = rule_of(p)
    by_keys = few and tile is None and is_few(p)
    sizes = chunks(p) if by_keys else tiling(p, rule, tile)
    if threads is None:
        threads = threads_for(_operations(p), by_keys)
    wide = sizes.cols * (2 if p.dropout else 1) + p.q.shape[-1] + 2 * p.v.shape[-1]
    n_tasks = -(-p.scores[-2] // (sizes.height * sizes.rows))
    grid = _grid(p, rule, sizes, threads, (wide, n_tasks), contiguous, alone)
    return _by_keys(grid) if by_keys else grid


def _by_keys(grid: Grid) -> Grid:
    """A grid of chunks: a task has a run of them, of one key head or of several."""
    p, (outer, n_shared, n_grouped) = grid.p, grid.stacking
    run = min(p.scores[-1], MOST_CHUNKS * grid.tiling.cols)
    n_runs = prod(outer) * n_shared * -(-p.scores[-1] // run)
    fit = min(_KEYS_OF_FEW, _SCORES // (n_grouped * p.scores[-2] * p.computing.itemsize)) // run
    alone = isinstance(p.bias, Alibi)  # of a steepness of its own, which decides on its way to a softmax
    least = 1 if grid.threads == 1 else _TASKS_OF_FEW * grid.threads
    h = 1 if alone else max(1, min(fit, n_shared, n_runs // least))
    return replace(grid, few=True, together=(h, n_grouped))


def backward_grid(p: Problem, threads: int | None) -> Grid:
    """Tiles for the gradients of a problem: a task has all queries of some heads, or a share of them."""
    rule = rule_of(p)
    sizes = backward_tiling(p, rule)
    n_tiles = 2 + (p.softcap is not None) + (p.dropout > 0)
    wide = sizes.cols * n_tiles + 3 * (p.q.shape[-1] + p.v.shape[-1])
    grid = _grid(p, rule, sizes, threads, (wide, backward_shares(p)), False)
    # sums over heads that share keys are made r at a time, so that r is no matter of threads or company
    rows = sizes.height * sizes.rows
    r = max(1, min(_SCORES // (rows * sizes.cols * p.computing.itemsize), grid.stacking.n_grouped))
    return replace(grid, together=(max(1, prod(grid.together) // r), r))


def backward_shares(p: Problem) -> int:
    """Into how many shares the queries of a head's keys go, so that few heads occupy many threads."""
    scores = prod(p.scores[-2:]) * (p.scores[-3] // _n_groups(p) if len(p.scores) > 2 and p.scores[-3] else 1)
    return 1 if scores < 2**22 else 2 if scores < 2**25 else 4


def threads_for(operations: int, few: bool = False) -> int:
    """How many threads a call of so many operations is worth; ``few`` where few queries meet many keys."""
    return 1 if operations < (_TINY_OF_FEW if few else _TINY) else default_threads()


def _operations(p: Problem) -> int:
    return 2 * int(prod(p.scores)) * int(p.q.shape[-1] + p.v.shape[-1])


def _grid(
    p: Problem,
    rule: Mask | None,
    sizes: Tiling,
    threads: int | None,
    held: tuple[int, int],
    contiguous: bool,
    alone: bool = False,
) -> Grid:
    """A grid whose tasks hold so many numbers for each row, and of which each head has so many."""
    varies, views = _varies(p, rule), _grouped(p)
    axes, work = _stacking(views, varies), _operations(p)
    threads = threads_for(work) if threads is None else threads
    product = product_dtype(p.computing, p.scale)
    rows, (wide, n_tasks) = sizes.height * sizes.rows, held
    fit = min(_SCORES // (rows * sizes.cols), _HELD // (rows * wide)) // p.computing.itemsize
    least = 1 if alone or threads == 1 else min(_TASKS * threads, max(threads, work // _TINY))
    n_heads = prod(p.scores[:-2]) * n_tasks // least  # enough tasks for all, if there are that many
    n_heads = max(1, min(fit, n_heads))
    r = max(1, min(n_heads, axes.n_grouped))
    together = (max(1, min(n_heads // r, axes.n_shared)), r)
    lies = product == p.k.dtype, p.computing == p.v.dtype
    readable = lies if contiguous else (_readable(views[1], product), _readable(views[2], p.computing))
    return Grid(p, rule, sizes, axes, varies, together, threads, product, readable)
