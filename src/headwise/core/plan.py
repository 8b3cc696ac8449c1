"""What a call of attention will do, told before it is done: tiles, work, memory; printable.

Knows how to count a grid; computes no score.
"""

from __future__ import annotations  # help() then shows ArrayLike as it is written

from collections import Counter
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from headwise.core.grid import MOST_CHUNKS, Grid, grid_of
from headwise.core.masks import ALL, NONE, SOME, Mask
from headwise.core.paths import EXACT, first_path
from headwise.core.positions import Alibi
from headwise.core.shapes import (
    FLOAT64,
    Array,
    Faults,
    Problem,
    Shape,
    given_as,
    install_remedy,
    integer,
    letters,
    problem,
    words,
)

MOST_THREADS = 4096


@dataclass(frozen=True, repr=False, eq=False)
class AttentionPlan:
    """What a call of :func:`headwise.attention` will do; print it. Made by :func:`attention_plan`.

    Attributes
    ----------
    scores : tuple of int
        The shape (..., H, n_q, n_k) of the scores.
    tile : (int, int)
        Queries and keys of a tile; those at the end may be smaller.
    tiles, computed, partial, skipped : int
        Tiles of all items and heads; those computed, those of them in which a mask rules out some pairs, and those
        that are left out since it rules out all.
    heads_per_task, tasks, threads : int
        How many heads a task stacks, how many tasks there are, and the threads that share them.
    paths : dict of str to int
        How many heads try which softmax first: "raw", "reference" or "running". Where raw comes out wrong, reference
        is next, and then running, which always holds.
    flops : int
        Floating-point operations of the two products, in computed tiles.
    bytes : int
        The most memory that is in use besides inputs and results.
    """

    scores: Shape
    tile: tuple[int, int]
    tiles: int
    computed: int
    partial: int
    skipped: int
    heads_per_task: int
    tasks: int
    threads: int
    paths: dict[str, int]
    flops: int
    bytes: int
    grid: Grid = field(repr=False)

    def __repr__(self) -> str:
        return _described(self)

    def __reduce__(self) -> Any:
        p, nothing = self.grid.p, np.zeros(0)
        shapes = [(x.shape, x.dtype) for x in (p.q, p.k, p.v)]
        bare = p._replace(q=nothing, k=nothing, v=nothing)
        return _planned_again, (shapes, bare, self.grid.threads, (self.grid.tiling.rows, self.grid.tiling.cols))


def planned(grid: Grid) -> AttentionPlan:
    """The plan of a grid."""
    counts, flops = _counts(grid)
    n_tasks, paths = _n_runs(grid) if grid.few else len(grid.tasks()), _paths(grid)
    rows = sum(-(-(span.stop - span.start) // grid.block(span)) for span in grid.spans())
    tiles = prod(grid.p.scores[:-2]) * rows * (len(grid.edges()) - 1)
    threads = min(grid.threads, max(1, n_tasks))
    return AttentionPlan(
        scores=grid.p.scores,
        tile=(grid.tiling.rows, grid.tiling.cols),
        tiles=tiles,
        computed=counts[ALL] + counts[SOME],
        partial=counts[SOME],
        skipped=tiles - counts[ALL] - counts[SOME],
        heads_per_task=prod(grid.together),
        tasks=n_tasks,
        threads=threads,
        paths=dict(paths),
        flops=flops,
        bytes=_bytes(grid, threads, n_tasks),
        grid=grid,
    )


def _paths(grid: Grid) -> Counter[str]:
    """How many heads try which softmax first."""
    views, paths = grid.views(grid.p), Counter[str]()
    for task in grid.tasks():
        if task.rows.start == 0:  # each head once
            found = [grid.path_of_few(views, task)] if grid.few else grid.paths(views, task)
            for path in found:
                paths[path.name] += task.n_heads if len(found) == 1 else 1
    return paths


def _n_runs(grid: Grid) -> int:
    """How many tasks few queries are: runs of chunks for some key heads."""
    runs: dict[Any, int] = {}  # of each mask
    leads = [grid.lead(task) for task in grid.tasks()]
    for lead in leads:
        if lead not in runs:
            runs[lead] = len(grid.runs(lead))
    return sum(runs[lead] for lead in leads)


def _counts(grid: Grid) -> tuple[Counter[int], int]:
    """How many tiles of all heads are ALL and SOME, and the operations that they take."""
    p, counts, flops = grid.p, Counter[int](), 0
    varying = [size if varies else 1 for size, varies in zip(p.scores[:-2], grid.varies, strict=True)]
    alike = prod(p.scores[:-2]) // max(1, prod(varying))
    widths = np.diff(grid.edges())
    for lead in np.ndindex(*varying) if alike else ():  # no items or no heads: no tiles
        for span in grid.spans():
            states = grid.states(lead, span)
            counts.update({state: alike * int((states == state).sum()) for state in (ALL, SOME)})
            pairs = grid.block(span) * int(((states != NONE) * widths).sum())
            flops += alike * 2 * pairs * (p.q.shape[-1] + p.v.shape[-1])
    return counts, flops


def _bytes_of_chunks(grid: Grid, threads: int, n_tasks: int) -> int:
    """The partial results of all runs, and what a worker makes of one."""
    p, size = grid.p, grid.p.computing.itemsize
    rows, places = grid.stacking.n_grouped * p.scores[-2], max(1, prod(p.scores[:-2]) // grid.stacking.n_grouped)
    keys = min(p.scores[-1], MOST_CHUNKS * grid.tiling.cols)  # of a run
    runs, d_v = places * -(-p.scores[-1] // keys), p.v.shape[-1]
    copied = p.k.shape[-1] * (not grid.readable[0]) + d_v * (not grid.readable[1])
    each = grid.together[0] * (keys * (rows * 6 + copied) * 8 + rows * (p.q.shape[-1] + MOST_CHUNKS * (d_v + 2)) * 8)
    kept = 0 if grid.rule is None else 3 * grid.words_kept * p.scores[-2] * keys * size
    return int((runs + 3 * places) * rows * (d_v + 2) * size + threads * each + kept + 512 * n_tasks)


def _bytes(grid: Grid, threads: int, n_tasks: int) -> int:
    """Scratch of so many workers, and what NumPy makes on the way."""
    if grid.few:
        return _bytes_of_chunks(grid, threads, n_tasks)
    p, size, n_rows, cols = grid.p, grid.p.computing.itemsize, grid.rows_together, grid.tiling.cols
    d_k, d_v = p.q.shape[-1], p.v.shape[-1]
    wide = 0 if grid.product == p.computing else 8
    each = n_rows * (cols * (size + wide + size * bool(p.dropout)) + d_k * (wide or size) + 2 * d_v * size + 32 * size)
    each += grid.together[0] * cols * 8 * (d_k * (not grid.readable[0]) + d_v * (not grid.readable[1]))
    tile = grid.tiling.height * grid.tiling.rows * cols  # of one head
    words = grid.rule is not None and not grid.rule.by_diagonals
    each += 2 * (2 + size) * tile if words else 0  # words, and the numbers that they are made from
    hides = isinstance(p.bias, np.ndarray) or (p.bias is not None and not p.bias.steepest(p.scores) < 1e38)
    each += 3 * size * n_rows * cols if hides else 0  # a tile of it, and where it is -inf
    each += n_rows * d_v * (1 + 2 * (p.dtype != p.computing))  # what a check or a cast of the results takes
    each += n_rows * d_v * size if first_path(p) is EXACT else 0  # what is rescaled
    kept = grid.words_kept * (tile if words else grid.tiling.height * grid.tiling.rows + cols) * size
    kept = 0 if grid.rule is None else kept
    n_tiles = len(grid.edges())
    strips = 192 * (min(4096, 8 * n_tiles) + (threads + 2) * n_tiles)
    return int(threads * (each + 2**17) + kept + strips + 320 * n_tasks)


def _described(plan: AttentionPlan) -> str:
    percent = 100 * plan.skipped // max(1, plan.tiles)  # rounded down: 100 % only if nothing is computed
    n_bytes = prod(plan.scores) * plan.grid.p.computing.itemsize
    rule = "everything may be seen" if plan.grid.rule is None else str(plan.grid.rule)
    paths = ", ".join(f"{name} for {_count(count, 'head')}" for name, count in plan.paths.items())
    computed = f"{plan.computed} computed ({plan.partial} partly masked)"
    lines = [
        ("scores", f"{letters(plan.scores)} = {words(plan.scores)}, {n_bytes / 2**20:.4g} MiB if they were stored"),
        ("mask", rule),
        ("tile", f"{_count(plan.tile[0], 'quer', 'y', 'ies')} x {_count(plan.tile[1], 'key')}"),
        ("tiles", f"{plan.tiles}: {computed}, {plan.skipped} skipped ({percent}%)"),
        ("tasks", f"{plan.tasks}, of up to {_count(plan.heads_per_task, 'head')}, on {_count(plan.threads, 'thread')}"),
        ("softmax", paths or "no heads"),
        ("work", f"{plan.flops / 1e9:.4g} GFLOP"),
        ("memory", f"{plan.bytes / 2**20:.3g} MiB besides inputs and results"),
    ]
    return "\n".join(f"{name:8} {value}" for name, value in lines)


def _count(number: int, what: str, one: str = "", many: str = "s") -> str:
    return f"{number} {what}{one if number == 1 else many}"


def thread_count(faults: Faults, threads: Any) -> int | None:
    """``threads`` as a number, or None."""
    return (
        None
        if threads is None
        else integer(faults, "threads", threads, 1, "None or a number of threads", most=MOST_THREADS)
    )


def _tile_size(faults: Faults, tile: Any) -> tuple[int, int] | None:
    if tile is None:
        return None
    try:
        rows, cols = tile
    except (TypeError, ValueError):
        faults.type("tile", "None or (rows, cols)", given_as(tile))
        return None
    sizes = [integer(faults, f"tile[{i}]", size, 1, "a size", most=2**24) for i, size in enumerate((rows, cols))]
    return sizes[0], sizes[1]


def attention_plan(
    q: ArrayLike | Shape,
    k: ArrayLike | Shape,
    v: ArrayLike | Shape,
    mask: Mask | ArrayLike | None = None,
    *,
    causal: bool = False,
    bias: Alibi | ArrayLike | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: ArrayLike | None = None,
    dropout: float = 0.0,
    rng: int | np.random.Generator | None = None,
    threads: int | None = None,
    tile: tuple[int, int] | None = None,
    dtype: DTypeLike = np.float32,
) -> AttentionPlan:
    """What a call of :func:`headwise.attention` would do: tiles, work and memory, before anything is computed.

    Parameters
    ----------
    q : array_like, shape (..., H, n_q, d_k), or that shape
    k : array_like, shape (..., G, n_k, d_k), or that shape
    v : array_like, shape (..., G, n_k, d_v), or that shape
        The arrays, or tuples of int: their shapes, for arrays of type ``dtype``.
    mask, causal, bias, scale, softcap, sinks, dropout, rng, threads
        As for :func:`headwise.attention`; nothing is drawn from ``rng``.
    tile : (int, int), optional
        Queries and keys of a tile, to see what other sizes do; by default what is fast.
    dtype : dtype
        The type of arrays that are given by their shapes.

    Returns
    -------
    AttentionPlan
        Print it. ``plan.bytes`` is what it takes besides inputs and results; ``headwise.core.engine.run`` does it.

    Raises
    ------
    TypeError, ValueError
        As :func:`headwise.attention` does.

    Examples
    --------
    >>> plan = attention_plan((1, 8, 4096, 64), (1, 8, 4096, 64), (1, 8, 4096, 64), causal=True, threads=2)
    >>> plan.tiles, plan.computed, plan.partial, plan.skipped
    (16384, 8448, 512, 7936)
    """
    faults = Faults("attention_plan")
    threads, sizes = thread_count(faults, threads), _tile_size(faults, tile)
    before, kind = len(faults.found), _dtype(faults, dtype)
    shaped = [_of_shape(faults, name, x, kind) for name, x in (("q", q), ("k", k), ("v", v))]
    if len(faults.found) > before:  # what has no shape or type is not compared with the others
        faults.raise_any()
    given = [x if x is not None else array for x, array in zip(shaped, (q, k, v), strict=True)]
    rng = 0 if rng is None else rng  # a plan draws nothing, and needs none
    options = (mask, causal, bias, scale, softcap, sinks, dropout, rng)
    p = problem("attention_plan", given[0], given[1], given[2], *options, faults)
    grid = grid_of(p, threads, sizes, contiguous=all(x is not None for x in shaped))
    return planned(replace(grid, p=_kept(p)))


def _kept(p: Problem) -> Problem:
    """A problem that a plan may keep: without the arrays, and with masks that nobody changes later."""
    q, k, v = (np.broadcast_to(np.zeros((), x.dtype), x.shape) for x in (p.q, p.k, p.v))
    mask, bias, sinks = (x.copy() if isinstance(x, np.ndarray) else x for x in (p.mask, p.bias, p.sinks))
    return p._replace(q=q, k=k, v=v, mask=mask, bias=bias, sinks=sinks, rng=None)


def _planned_again(shapes: Any, p: Problem, threads: int, tile: tuple[int, int]) -> AttentionPlan:
    """A plan that was pickled or copied: without the arrays, which only stand for their shapes."""
    q, k, v = (np.broadcast_to(np.zeros((), dtype), shape) for shape, dtype in shapes)
    return planned(grid_of(p._replace(q=q, k=k, v=v), threads, tile, contiguous=True))


def _dtype(faults: Faults, dtype: Any) -> Any:
    try:
        return np.dtype(dtype)
    except Exception:  # NumPy raises one of several
        remedy = install_remedy(dtype) or 'for example np.float32 or "float64"'
        faults.type("dtype", "a dtype of real numbers", given_as(dtype), remedy)
        return FLOAT64


def _of_shape(faults: Faults, name: str, x: Any, dtype: Any) -> Array | None:
    """An array of this shape that takes no memory, where a shape was given."""
    if not isinstance(x, tuple) or not all(isinstance(n, int | np.integer) and not isinstance(n, bool) for n in x):
        return None
    if any(n < 0 for n in x):
        faults.value(name, "sizes of at least 0", words(x))
        return np.zeros((1, 1))
    try:
        return np.broadcast_to(np.zeros((), dtype), x)
    except (ValueError, OverflowError):  # more axes, or more bytes, than an array can have
        faults.value(name, "a shape that an array can have", words(x))
        return np.zeros((1, 1))
