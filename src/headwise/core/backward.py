"""Gradients of attention, tile by tile over a plan: weights are made again from each row's softmax, never stored.

Each tile takes five products. With ``p`` its weights, ``g = d_out`` and ``delta`` the row sums of ``g * out``:
scores ``q k^T`` again, ``d_p = g v^T``, ``d_s = p * (d_p - delta)``, and then ``d_v += p^T g``, ``d_k += d_s^T q`` and
``d_q += d_s k``. Letters besides those of shapes.py, for what one task holds: h of L key heads, r of R query heads to
each, m queries, M = m r rows of scores, w keys.
"""

from __future__ import annotations  # help() then shows ArrayLike as it is written

from collections.abc import Callable, Iterator
from itertools import count
from typing import Any, NamedTuple

import numpy as np

from headwise.core.call import Call, shaped
from headwise.core.dropout import Keep
from headwise.core.engine import Rows, as_readable
from headwise.core.grid import Grid, Steps, Strip, Task, backward_shares
from headwise.core.paths import RAW, REFERENCE, Path
from headwise.core.shapes import Array, Problem, Shape, product_dtype
from headwise.core.softmax import (
    Partial,
    absorb,
    empty_part,
    exponentials,
    floored_exp,
    in_memory_order,
    part,
    recentred,
    vanishing_exp,
    weighted_sum,
)

# How far two ways of rounding may take a score: beyond, rows of weights that were made again would not sum to 1.
_APART = 2.0**-16


# ------------------------------------------------------------------------------------- what a task holds
class Scratch:
    """What one worker writes into, made once."""

    def __init__(self, grid: Grid) -> None:
        p, computing, (h, r), tiling = grid.p, grid.p.computing, grid.together, grid.tiling
        (d_k, d_v), tall, cols = (p.q.shape[-1], p.v.shape[-1]), r * tiling.rows * tiling.height, tiling.cols
        scores, unit = h * tall * cols, np.dtype(f"i{computing.itemsize}")
        self.flat = {
            "weights": np.empty(scores, computing),
            "d_scores": np.empty(scores, computing),
            "tanh": np.empty(scores if p.softcap is not None else 0, computing),
            "kept": np.empty(scores if p.dropout else 0, unit),
            "scaled": np.empty(h * tall * d_k, grid.product),
            "g": np.empty(h * tall * (d_v + 1), computing),
            "d_q": np.empty(h * tall * d_k if r > 1 else 0, computing),
            "product": np.empty(h * max(tall, cols) * max(d_k, d_v), computing),
            "k": np.empty(0 if grid.readable[0] else h * p.scores[-1] * d_k, computing),
            "v": np.empty(h * p.scores[-1] * (d_v + 1), computing),
        }
        self.keys_first = not isinstance(p.bias, np.ndarray)  # a dense bias would be read across its rows
        self.rooms: dict[Shape, tuple[Array, ...]] = {}
        self.products: dict[Shape, Array] = {}

    def shaped(self, name: str, *shape: int) -> Array:
        return shaped(self.flat[name], *shape)

    def room(self, h: int, m: int, w: int) -> tuple[Array, ...]:
        """Room for a tile: weights, gradients of scores, tanh and what dropout keeps, each (h, M, w) or empty."""
        found = self.rooms.get((h, m, w))
        if found is None:
            each = (self.flat[name] for name in ("weights", "d_scores", "tanh", "kept"))
            flat = [x[: h * m * w] for x in each]
            tall, wide = (h, m, w), (h, w, m)
            found = tuple(
                x if not x.size else x.reshape(wide).swapaxes(-1, -2) if self.keys_first else x.reshape(tall)
                for x in flat
            )
            self.rooms[h, m, w] = found
        return found

    def product(self, shape: Shape) -> Array:
        """Room for a product that is going to be added to another."""
        if shape not in self.products:
            self.products[shape] = self.shaped("product", *shape)
        return self.products[shape]


class Keys(NamedTuple):
    """Keys and values of some key heads, as the BLAS can read them."""

    k: Array  # (h, n_k, d_k)
    v: Array  # (h, n_k, d_v + 1), with a column of ones
    length: Array  # (h,)  the norm of the longest key

    def of(self, heads: slice) -> Keys:
        return Keys(*(x[heads] for x in self))


class Queries(NamedTuple):
    """Some queries of the heads of a task, in rows (h, M): all r heads of the first query, then of the second, ..."""

    task: Task
    raw: bool
    careful: bool  # whether there may be numbers that are not finite, or products of them
    q: Array  # (h, M, d_k)
    scaled: Array  # (h, M, d_k), as the forward pass had them
    g: Array  # (h, M, d_v)  d_out over the total of its row (and the probability of being kept)
    delta: Array  # (h, M)  what every d_p of a row is compared with, over the total of its row
    beside: Array  # (h, M, d_v + 1)  g, and -delta in a last column
    peak: Array  # (h, M)
    dead: Array  # (h, M)  bool: sees no key


class Tile(NamedTuple):
    """A strip of scores: the weights as they met the values, and the gradients of the scores."""

    strip: Strip
    rows: slice  # of M
    k: Array  # (h, w, d_k)
    visible: Array | None  # (h or 1, M, w)  bool, where products must leave out what is hidden
    weights: Array  # (h, M, w)  times the total of the row
    d_biased: Array  # (h, M, w)  before the bias was added, and after the softcap
    tanh: Array  # (h, M, w)  of the softcap; empty without one


class Given(NamedTuple):
    """What one call of a vjp has to start from, as tasks see it: leading axes (..., L, R)."""

    out: Array  # (..., L, R, n_q, d_v)
    rows: Rows
    d_out: Array  # (..., L, R, n_q, d_v)
    d_lse: Array | None  # (..., L, R, n_q)


class Sums(NamedTuple):
    """What one call of a vjp writes."""

    q: Array  # (..., L, R, n_q, d_k)
    k: Array  # (..., L, n_k, d_k)
    v: Array  # (..., L, n_k, d_v)
    delta: Array  # (..., L, R, n_q)


# ------------------------------------------------------------------------------------- one call of a vjp
class Backward(Call):
    """What all workers of a call share."""

    def __init__(self, grid: Grid, p: Problem, keep: Keep | None, given: Given, sums: Sums) -> None:
        super().__init__(grid, p, keep)
        self.given, self.sums = given, sums
        self.kept_part = p.computing.type(keep.kept or 1 if keep is not None else 1)
        self.n_shares = _shares(p, grid)
        self.shares: dict[Any, Any] = {}
        self.careful = not p.q.shape[-1]  # then nothing shows in gradients of queries and keys
        self.wild: set[tuple[int, ...]] = set()  # (..., L): the key heads whose sums came out infinite or NaN

    def heads(self) -> list[Task]:
        """All queries of the heads that are stacked."""
        whole = slice(0, self.p.scores[-2])
        (outer, n_shared, n_grouped), (h, _) = self.grid.stacking, self.grid.together
        shared = [slice(i, min(n_shared, i + h)) for i in range(0, n_shared, h)]
        return [Task(at, some, slice(0, n_grouped), whole) for at in np.ndindex(*outer) for some in shared]

    def tasks(self) -> list[tuple[Task, int]]:
        """Each with its share of the queries, of which a long head has several."""
        return [(task, share) for task in self.heads() for share in range(self.n_shares)]

    def size(self, item: tuple[Task, int]) -> int:
        """How much of a run a task is, in scores."""
        (task, share), n_shares = item, self.n_shares
        size = self.grid.size(task)
        return size // n_shares if share else size - (n_shares - 1) * (size // n_shares)

    def start(self) -> Callable[[tuple[Task, int]], None]:
        """What a worker does with a task."""
        scratch = Scratch(self.grid)
        return lambda item: self.add_up(scratch, *item)

    def add_up(self, scratch: Scratch, task: Task, share: int) -> None:
        """The gradients of the queries in one share, and what they add to those of keys and values.

        What comes out infinite or NaN is done again with care: products of ordinary numbers need none.
        """
        place: Any = (*task.outer, task.shared)
        d_k, d_v = self.sums.k[place], self.sums.v[place]
        if share:
            d_k, d_v = np.zeros_like(d_k), np.zeros_like(d_v)
        parts = self.parts(task, self.grid.spans())[share :: self.n_shares]
        keys = self.keys(scratch, task)
        lost = _Share(self, scratch, task.shared.start, keys, d_k, d_v).sum(parts, self.careful)
        for head in np.flatnonzero(lost).tolist():
            i, here = slice(head, head + 1), task.shared.start + head
            self.wild.add((*task.outer, here))
            d_k[i], d_v[i] = 0, 0
            alone = [each._replace(shared=slice(here, here + 1)) for each in parts]
            _Share(self, scratch, here, keys.of(i), d_k[i], d_v[i]).sum(alone, True)
        self.join(task, share, d_k, d_v)

    def join(self, task: Task, share: int, d_k: Array, d_v: Array) -> None:
        """The last share of a task to be done adds up all of them, in their order."""
        done, tickets = self.shares.setdefault((*task.outer, task.shared.start), ({}, count(1)))
        done[share] = d_k, d_v
        if next(tickets) < self.n_shares:
            return
        (d_k, d_v), *others = (done[i] for i in range(self.n_shares))
        for more_k, more_v in others:
            d_k += more_k
            d_v += more_v
        _scale(d_k, self.p.scale)
        done.clear()

    def parts(self, task: Task, spans: list[slice]) -> list[Task]:
        """Some spans of queries, for a few query heads each; those with most keys first under a causal mask."""
        step, n_grouped = self.grid.together[1], self.grid.stacking.n_grouped
        groups = [slice(i, min(n_grouped, i + step)) for i in range(0, n_grouped, step)]
        return [task._replace(grouped=group, rows=rows) for group in groups for rows in reversed(spans)]

    def alike(self, some: Task, keys: Keys, careful: bool) -> list[tuple[Task, bool]]:
        """As it is where all its heads are treated alike; else, and where care is needed, head by head.

        With each: whether the totals of its rows are to be added up again. ``keys`` are those of its heads.
        """
        heads, raw = range(some.shared.start, some.shared.stop), self.given.rows.raw[some.heads][..., some.rows]
        q = self.q[some.heads][..., some.rows, :].astype(self.p.computing, copy=False)
        longest = np.einsum("hrmd,hrmd->hrm", q, q).max(axis=(1, 2), initial=0)
        reach = np.sqrt(longest) * keys.length * abs(self.p.scale) * np.finfo(self.p.computing).eps
        unsure = ~(reach <= _APART)  # NaN too
        if len(heads) == 1 or not (careful or raw.any() != raw.all() or unsure.any() != unsure.all()):
            return [(some, bool(unsure.any()))]
        return [(some._replace(shared=slice(i, i + 1)), bool(unsure[i - heads.start])) for i in heads]

    # --------------------------------------------------------------------------------------- queries
    def queries(self, scratch: Scratch, task: Task, keys: Keys, steps: Steps, careful: bool, unsure: bool) -> Queries:
        """What is needed of some queries against every tile of keys."""
        p, given, rows = self.p, self.given, (*task.heads, task.rows)
        peak, total, raw = (_together(x[rows]) for x in given.rows)
        dead, path = total == 0, RAW if raw.all() and not unsure else REFERENCE
        q = _together(self.q[rows])
        q = q if q.dtype == p.computing and q.dtype.isnative else q.astype(p.computing)
        if dead.any():  # whatever they hold
            q = np.where(dead[..., None], 0, q)
        scaled, (scale, _) = scratch.shaped("scaled", *q.shape), self.scales[path]
        np.multiply(q, scale, out=scaled, dtype=scaled.dtype, casting="unsafe")
        if unsure:
            total, peak = self.sums_again(scratch, task, scaled, keys, steps)
        weigh = np.divide(1, total, out=np.zeros_like(total), where=total != 0)
        d_out = _together(given.d_out[rows])
        beside = scratch.shaped("g", *d_out.shape[:2], d_out.shape[2] + 1)
        g = np.multiply(d_out, weigh[..., None], out=beside[..., :-1], casting="unsafe")
        # a row that is NaN is so even where values have no width
        delta = np.einsum("hmd,hmd->hm", g, _together(given.out[rows])) if g.shape[-1] else 0 * weigh
        if given.d_lse is not None:
            delta -= _together(given.d_lse[rows]) * weigh
        if p.dropout:
            np.divide(g, self.kept_part, out=g)
        if dead.any():
            g[dead], delta[dead] = 0, 0
        np.negative(delta, out=beside[..., -1])
        if p.sinks is not None:
            self.sums.delta[rows] = _apart(delta * total, _n_grouped(task))
        return Queries(task, path is RAW, careful, q, scaled, g, delta, beside, peak, dead)

    def sums_again(self, scratch: Scratch, task: Task, scaled: Array, keys: Keys, steps: Steps) -> tuple[Array, Array]:
        """Totals and peaks (h, M) of the very scores that weights are going to be made from."""
        whole, r = empty_part(scaled.shape[:2], 0, self.p.computing), _n_grouped(task)
        for strip in steps.strips:
            rows, k = _rows_of(strip.rows, task, r), keys.k[:, strip.cols]
            scores, _, tanh, _ = scratch.room(len(k), rows.stop - rows.start, k.shape[1])
            bits = self.score(task, strip, scaled[:, rows], k, REFERENCE, scores, tanh)
            more = part(scores, keys.v[:, strip.cols, :0], bits=bits, exp=floored_exp)
            absorb(Partial(*(x[:, rows] for x in whole)), more)
        if self.sinks is not None:
            sinks = self.sinks[task.heads][..., None]  # (h, r, 1)
            sinks = _together(np.broadcast_to(sinks, (*sinks.shape[:2], scaled.shape[1] // r)))
            absorb(whole, Partial(np.zeros((), sinks.dtype), (sinks > -np.inf).astype(sinks.dtype), sinks))
        return recentred(whole.total, whole.peak)

    # ----------------------------------------------------------------------------------------- tiles
    def keys(self, scratch: Scratch, task: Task) -> Keys:
        """Keys and values of a task's heads, made ready once."""
        k, v = (x[task.heads[:-1]][:, 0] for x in (self.k, self.v))
        h, n_k, d_v = v.shape
        ready = scratch.shaped("v", h, n_k, d_v + 1)
        ready[..., :-1], ready[..., -1] = v, 1
        k = as_readable(k, None if self.grid.readable[0] else scratch.flat["k"])
        return Keys(k, ready, np.sqrt(np.einsum("hnd,hnd->hn", k, k).max(axis=1, initial=0)))

    def tiles(self, scratch: Scratch, some: Queries, keys: Keys, steps: Steps) -> Iterator[Tile]:
        """The weights and the gradients of the scores, strip by strip."""
        task, p, r, path = some.task, self.p, _n_grouped(some.task), RAW if some.raw else REFERENCE
        for strip in steps.strips:  # few lines and fewer calls: Python is slow while the cache holds scores
            rows = _rows_of(strip.rows, task, r)
            k, v = keys.k[:, strip.cols], keys.v[:, strip.cols]
            weights, d_scores, tanh, kept = scratch.room(len(k), rows.stop - rows.start, k.shape[1])
            bits = self.score(task, strip, some.scaled[:, rows], k, path, weights, tanh)
            if some.raw:
                path.exp(weights, weights)
            else:
                exponentials(weights, some.peak[:, rows], vanishing_exp, weights)
            if bits is not None:
                _clear(weights, bits)
            if p.dropout:
                dropped = self.kept_words(kept, task, strip)
                np.matmul(some.g[:, rows], v[..., :-1].swapaxes(-1, -2), d_scores)
                _clear(d_scores, dropped)
                np.subtract(d_scores, some.delta[:, rows, None], out=d_scores)
            else:  # the column of ones takes delta off: a pass less
                np.matmul(some.beside[:, rows], v.swapaxes(-1, -2), d_scores)
            np.multiply(d_scores, weights, out=d_scores)
            if p.dropout:
                _clear(weights, dropped)
            visible = None
            if some.careful and bits is not None:
                _clear(d_scores, bits)  # 0 * inf
                visible = np.asarray(bits != 0)
            yield Tile(strip, rows, k, visible, weights, d_scores, tanh)

    def score(
        self, task: Task, strip: Strip, scaled: Array, k: Array, path: Path, scores: Array, tanh: Array
    ) -> Array | None:
        """Write the scores of a strip, as the engine does; returns the words of who may attend to whom."""
        if scaled.dtype == scores.dtype:
            np.matmul(scaled, k.swapaxes(-1, -2), scores)
        else:
            scores[...] = scaled @ k.swapaxes(-1, -2).astype(scaled.dtype)
        _, after = self.scales[path]
        if after is not None:
            np.multiply(scores, after, out=scores)
        if self.p.softcap is not None:
            self.cap(scores, path.unit, tanh)
        bits = self.grid.words(self.grid.lead(task), strip, _n_grouped(task))
        return bits if self.p.bias is None else self.add_bias(task, strip, scores, bits, path.unit)

    def add_bias(self, task: Task, strip: Strip, scores: Array, bits: Array | None, unit: float) -> Array | None:
        """Add a tile of the bias; returns the words of who may attend to whom, to which ``-inf`` in it belongs."""
        (h, m, w), r = scores.shape, _n_grouped(task)
        tile = self.bias_tile(task.heads, self.grid.lead(task), strip.rows, strip.cols, unit).swapaxes(1, 2)
        apart = scores.reshape(h, m // r, r, w)
        np.add(apart, tile, out=apart)
        seen = self.seen(tile, None if bits is None else bits.reshape(1, m // r, r, w))
        return None if seen is None else np.broadcast_to(seen, (len(seen), *apart.shape[1:])).reshape(-1, m, w)

    def kept_words(self, kept: Array, task: Task, strip: Strip) -> Array:
        """Which weights (h, M, w) of a strip dropout keeps: words with all bits set, or none."""
        (h, m, w), r = kept.shape, _n_grouped(task)
        apart = kept.reshape(h, m // r, r, w)
        for i, j in np.ndindex(h, r):
            head = self.grid.flat(task.outer, task.shared.start + i, task.grouped.start + j)
            apart[i, :, j] = self.kept(head, strip.rows, strip.cols).T
        return kept.view(f"u{self.p.computing.itemsize}")


# -------------------------------------------------------------------------------------- one share of a task
class _Share:
    """What some queries add to the gradients of the keys and values that they see."""

    def __init__(self, call: Backward, scratch: Scratch, first: int, keys: Keys, d_k: Array, d_v: Array) -> None:
        self.call, self.scratch, self.first, self.keys = call, scratch, first, keys
        self.d_k, self.d_v = d_k, d_v  # (h, n_k, d), of the heads from the first on
        self.met = [0] * len(call.grid.cols)  # for each tile of keys a bit for each head that has added to it

    def sum(self, parts: list[Task], careful: bool) -> Array:
        """All parts; returns which heads (h,) came out infinite or NaN."""
        lost = np.zeros(len(self.d_k), bool)
        for some in parts:
            for task, unsure in self.call.alike(some, self.keys, careful):
                heads = slice(task.shared.start - self.first, task.shared.stop - self.first)
                lost[heads] |= self.sum_tiles(task, heads, careful, unsure)
        return lost | _wild(self.d_k) | _wild(self.d_v)

    def sum_tiles(self, task: Task, heads: slice, careful: bool, unsure: bool) -> Array:
        """The products with queries and keys, of some queries against all keys that they see."""
        call, r = self.call, _n_grouped(task)
        keys, d_k, d_v = self.keys.of(heads), self.d_k[heads], self.d_v[heads]
        steps, mine, width = call.grid.steps(call.grid.lead(task), task.rows), _bits_of(heads), call.grid.tiling.cols
        some = call.queries(self.scratch, task, keys, steps, careful, unsure)
        whole = call.sums.q[(*task.heads, task.rows)]  # (h, r, m, d_k)
        d_q = whole[:, 0] if r == 1 else self.scratch.shaped("d_q", *some.q.shape)
        self.blank(d_q, task, steps.unseen)
        for strip, rows, k, visible, weights, d_scores, tanh in call.tiles(self.scratch, some, keys, steps):
            if call.p.softcap is not None:
                _through_cap(d_scores, tanh, visible)
            turned, seeing = d_scores.swapaxes(-1, -2), None if visible is None else visible.swapaxes(-1, -2)
            place = strip.cols.start // width
            fresh = not self.met[place] & mine
            self.met[place] |= mine
            self.add(d_v[:, strip.cols], weights.swapaxes(-1, -2), some.g[:, rows], seeing, fresh)
            self.add(d_k[:, strip.cols], turned, some.q[:, rows], seeing, fresh)
            self.blank(d_q, task, strip.blank)
            self.add(d_q[:, rows], d_scores, k, visible, strip.fresh)
        _scale(d_q, call.p.scale)
        if careful:
            d_q[some.dead] = 0
        if r > 1:
            whole[...] = _apart(d_q, r)
        return _wild(d_q)

    def blank(self, d_q: Array, task: Task, blocks: tuple[int, ...]) -> None:
        """Begin these blocks of queries with nothing."""
        step, r = self.call.grid.block(task.rows), _n_grouped(task)
        for block in blocks:
            d_q[:, block * step * r : (block + 1) * step * r] = 0

    def add(self, total: Array, weights: Array, x: Array, visible: Array | None, fresh: bool) -> None:
        """Add a product, or write it where there is nothing yet."""
        made = total if fresh else self.scratch.product(total.shape)
        if visible is None:
            np.matmul(weights, x, made)
        else:
            weighted_sum(weights, x, visible, out=made)
        if not fresh:
            np.add(total, made, out=total)


def _through_cap(d_capped: Array, tanh: Array, visible: Array | None) -> None:
    """Gradients of scores before a softcap, in place: ``tanh' = 1 - tanh^2``."""
    slope = np.subtract(1, np.square(tanh, out=tanh), out=tanh)
    np.multiply(d_capped, slope, out=d_capped)
    if visible is not None:  # 0 * nan
        np.copyto(d_capped, 0, where=~visible)


def _bits_of(heads: slice) -> int:
    return int((1 << heads.stop) - (1 << heads.start))


def _wild(x: Array) -> Array:
    """Which heads (h,) of x (h, n, d) hold something that is infinite or NaN, or is too large to be added up."""
    return np.asarray(~np.isfinite(np.add.reduce(x, axis=(1, 2))))


def _n_grouped(task: Task) -> int:
    return int(task.grouped.stop - task.grouped.start)


def _rows_of(span: slice, task: Task, r: int) -> slice:
    """Some queries of a task as rows of M."""
    return slice((span.start - task.rows.start) * r, (span.stop - task.rows.start) * r)


def _together(x: Array) -> Array:
    """(h, r, m, ...) as (h, M, ...): no copy where r is 1."""
    h, r, m, *rest = x.shape
    return x.swapaxes(1, 2).reshape(h, m * r, *rest)


def _apart(x: Array, r: int) -> Array:
    """(h, M, ...) as (h, r, m, ...)."""
    h, m, *rest = x.shape
    return x.reshape(h, m // r, r, *rest).swapaxes(1, 2)


def _clear(x: Array, bits: Array) -> None:
    """Leave of each number the bits that are set."""
    there, beside = in_memory_order(x.view(bits.dtype), bits)
    np.bitwise_and(there, beside, out=there)


def _scale(x: Array, scale: float) -> None:
    """Multiply in place: in float64 where a scale would lose digits otherwise."""
    factor = product_dtype(x.dtype, scale).type(scale)
    np.multiply(x, factor, out=x, dtype=factor.dtype, casting="unsafe")  # NumPy 1 would stay in float32


def _shares(p: Problem, grid: Grid) -> int:
    """The shares of a head, of which none is empty."""
    parts = len(grid.spans()) * -(-grid.stacking.n_grouped // grid.together[1])
    return max(1, min(backward_shares(p), parts))
