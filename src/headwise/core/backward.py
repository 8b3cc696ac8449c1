"""Gradients of attention, tile by tile over a plan: weights are made again from each row's softmax, never stored.

Each tile takes five products. With ``p`` its weights, ``g = d_out`` and ``delta`` the row sums of ``g * out``:
scores ``q k^T`` again, ``d_p = g v^T``, ``d_s = p * (d_p - delta)``, and then ``d_v += p^T g``, ``d_k += d_s^T q`` and
``d_q += d_s k``. Letters besides those of shapes.py, for what one task holds: h of L key heads, r of R query heads to
each, m queries, M = m r rows of scores, w keys.
"""

from __future__ import annotations  # help() then shows ArrayLike as it is written

from collections.abc import Callable, Iterator
from itertools import count
from math import prod
from typing import Any, NamedTuple

import numpy as np

from headwise.core.call import Call
from headwise.core.dropout import Keep
from headwise.core.engine import Rows
from headwise.core.grid import Grid, Strip, Task
from headwise.core.paths import RAW, REFERENCE
from headwise.core.shapes import Array, Problem, Shape, product_dtype
from headwise.core.softmax import exponentials, in_memory_order, weighted_sum


# ------------------------------------------------------------------------------------- what a task holds
class Scratch:
    """What one worker writes into, made once."""

    def __init__(self, grid: Grid) -> None:
        p, computing = grid.p, grid.p.computing
        (h, r), (rows, cols, height) = grid.together, grid.tiling
        n_rows = h * r * rows * height
        self.sizes = {
            "weights": n_rows * cols,
            "d_scores": n_rows * cols,
            "tanh": n_rows * cols if p.softcap is not None else 0,
            "kept": n_rows * cols if p.dropout else 0,
            "scaled": n_rows * p.q.shape[-1],
            "g": n_rows * p.v.shape[-1],
            "g_turned": n_rows * p.v.shape[-1],
            "d_q": n_rows * p.q.shape[-1],
            "product": h * max(r * rows * height, cols) * max(p.q.shape[-1], p.v.shape[-1]),
            "k": 0 if grid.readable[0] else h * cols * p.k.shape[-1],
            "v": 0 if grid.readable[1] else h * cols * p.v.shape[-1],
        }
        kinds: dict[str, Any] = {"kept": np.dtype(f"i{computing.itemsize}"), "scaled": grid.product}
        self.flat = {name: np.empty(size, kinds.get(name, computing)) for name, size in self.sizes.items()}
        self.wide = None if grid.product == computing else np.empty(n_rows * cols, grid.product)

    def shaped(self, name: str, *shape: int) -> Array:
        return self.flat[name][: prod(shape)].reshape(shape)


class Queries(NamedTuple):
    """Some queries of the heads of a task, in rows (h, M): all r heads of the first query, then of the second, ..."""

    task: Task
    raw: bool
    finite: bool
    q: Array  # (h, M, d_k)
    scaled: Array  # (h, M, d_k), as the forward pass had them; lies turned
    g: Array  # (h, M, d_v)  d_out over the total of its row (and the probability of being kept)
    g_turned: Array  # the same, turned
    delta: Array  # (h, M)  what every d_p of a row is compared with, over the total of its row
    peak: Array  # (h, M)
    total: Array  # (h, M)
    dead: Array  # (h, M)  bool: sees no key


class Tile(NamedTuple):
    """A strip of scores: gradients of its scores, and its weights as they met the values."""

    strip: Strip
    rows: slice  # of M
    k: Array  # (h, w, d_k)
    bits: Array | None  # (h or 1, M, w)  words of who may attend to whom; None if everyone may to everyone
    visible: Array | None  # the same as bool, where some number is not finite
    weights: Array  # (h, M, w)  times the total of the row
    d_scores: Array  # (h, M, w)  before a bias
    tanh: Array | None  # (h, M, w)


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


class Backward(Call):
    """One call of a vjp."""

    def __init__(self, grid: Grid, p: Problem, keep: Keep | None, given: Given, sums: Sums) -> None:
        super().__init__(grid, p, keep)
        self.given, self.sums = given, sums
        self.kept_part = p.computing.type(keep.kept or 1 if keep is not None else 1)
        self.n_shares = _shares(p, grid)
        self.shares: dict[Any, Any] = {}

    # ------------------------------------------------------------------------------------- tasks
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
        task, share = item
        size = self.grid.size(task)
        return size // self.n_shares if share else size - (self.n_shares - 1) * (size // self.n_shares)

    def start(self) -> Callable[[tuple[Task, int]], None]:
        scratch = Scratch(self.grid)
        return lambda item: self.add_up(scratch, *item)

    def add_up(self, scratch: Scratch, task: Task, share: int) -> None:
        """The gradients of the queries in one share, and what they add to those of keys and values."""
        place: Any = (*task.outer, task.shared)
        d_k, d_v = self.sums.k[place], self.sums.v[place]
        if share:
            d_k, d_v = np.zeros_like(d_k), np.zeros_like(d_v)
        for part in self.parts(task, self.grid.spans())[share :: self.n_shares]:
            for some in self.alike(part):
                heads = slice(some.shared.start - task.shared.start, some.shared.stop - task.shared.start)
                self.sum_tiles(scratch, some, d_k[heads], d_v[heads])
        self.join(task, share, d_k, d_v)

    def join(self, task: Task, share: int, d_k: Array, d_v: Array) -> None:
        """The last share of a task to be done adds up all of them, in their order."""
        key = (*task.outer, task.shared.start)
        done, tickets = self.shares.setdefault(key, ({}, count(1)))
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

    def alike(self, part: Task) -> list[Task]:
        """As it is where all its heads take one path and hold finite numbers alone; else head by head."""
        heads, rows = part.heads, part.rows
        raw = self.given.rows.raw[heads][..., rows]
        finite = all(_finite(x[heads][..., rows, :]) for x in (self.q, self.given.d_out))
        finite = finite and all(_finite(x[heads[:-1]]) for x in (self.k, self.v))
        if part.shared.stop - part.shared.start == 1 or (finite and (raw.all() or not raw.any())):
            return [part]
        return [part._replace(shared=slice(i, i + 1)) for i in range(part.shared.start, part.shared.stop)]

    # --------------------------------------------------------------------------------------- queries
    def queries(self, scratch: Scratch, task: Task) -> Queries:
        """What is needed of some queries against every tile of keys."""
        p, given, rows = self.p, self.given, (*task.heads, task.rows)
        peak, total, raw = (_together(x[rows]) for x in given.rows)
        dead = total == 0
        weigh = np.divide(1, total, out=np.zeros_like(total), where=~dead)
        d_out, out = _together(given.d_out[rows]), _together(given.out[rows])
        g = np.multiply(d_out, weigh[..., None], out=scratch.shaped("g", *d_out.shape), casting="unsafe")
        delta = np.einsum("hmd,hmd->hm", g, out)
        if given.d_lse is not None:
            delta -= _together(given.d_lse[rows]) * weigh
        if p.dropout:
            g /= self.kept_part
        q = _together(self.q[rows])
        if q.dtype != p.computing or not q.dtype.isnative:
            q = q.astype(p.computing)
        if dead.any():  # whatever they hold
            q = np.where(dead[..., None], 0, q)
            g[dead], delta[dead] = 0, 0
        path = RAW if raw.all() else REFERENCE
        h, m, d = q.shape
        scale, _ = self.scales[path]
        scaled = scratch.shaped("scaled", h, d, m)
        np.multiply(q.swapaxes(-1, -2), scale, out=scaled, dtype=scaled.dtype, casting="unsafe")
        turned = scratch.shaped("g_turned", h, g.shape[-1], m)
        turned[...] = g.swapaxes(-1, -2)
        finite = _finite(scaled) and _finite(g) and _finite(delta) and self.keys_finite(task)
        scaled, turned = scaled.swapaxes(-1, -2), turned.swapaxes(-1, -2)
        self.sums.delta[rows] = (delta * total).reshape(h, -1, _n_grouped(task)).swapaxes(-1, -2)
        return Queries(task, path is RAW, finite, q, scaled, g, turned, delta, peak, total, dead)

    def keys_finite(self, task: Task) -> bool:
        return all(_finite(x[task.heads[:-1]]) for x in (self.k, self.v))

    # ----------------------------------------------------------------------------------------- tiles
    def tiles(self, scratch: Scratch, some: Queries) -> Iterator[Tile]:
        """The weights and the gradients of the scores, strip by strip."""
        task, p, r = some.task, self.p, _n_grouped(some.task)
        lead = self.grid.lead(task)
        for strip in self.grid.steps(lead, task.rows).strips:
            rows = slice((strip.rows.start - task.rows.start) * r, (strip.rows.stop - task.rows.start) * r)
            k, v = (self.keys(scratch, name, task, strip.cols) for name in "kv")
            shape = (k.shape[0], rows.stop - rows.start, k.shape[1])
            weights, d_scores = self.room(scratch, "weights", shape), self.room(scratch, "d_scores", shape)
            tanh = None if p.softcap is None else self.room(scratch, "tanh", shape)
            bits = self.weigh(scratch, some, strip, rows, k, lead, weights, tanh)
            np.matmul(some.g_turned[:, rows], v.swapaxes(-1, -2), d_scores)
            if p.dropout:
                kept = self.kept_words(scratch, task, strip, shape)
                _clear(d_scores, kept)
            np.subtract(d_scores, some.delta[:, rows, None], out=d_scores)
            np.multiply(d_scores, weights, out=d_scores)
            if bits is not None:  # 0 * inf
                _clear(d_scores, bits)
            if p.dropout:
                _clear(weights, kept)
            visible = None if some.finite or bits is None else np.asarray(bits != 0)
            yield Tile(strip, rows, k, bits, visible, weights, d_scores, tanh)

    def room(self, scratch: Scratch, name: str, shape: Shape) -> Array:
        """Room for a tile (h, M, w), which lies with its keys first unless a dense bias is to be read along."""
        h, m, w = shape
        return scratch.shaped(name, h, w, m).swapaxes(-1, -2) if self.keys_first else scratch.shaped(name, *shape)

    def keys(self, scratch: Scratch, name: str, task: Task, cols: slice) -> Array:
        """A tile of keys or values (h, w, d), as the BLAS can read it."""
        tile: Array = (self.k if name == "k" else self.v)[task.heads[:-1]][:, 0, cols]
        if not scratch.sizes[name]:
            return tile
        ready = scratch.shaped(name, *tile.shape)
        ready[...] = tile
        return ready

    def weigh(
        self,
        scratch: Scratch,
        some: Queries,
        strip: Strip,
        rows: slice,
        k: Array,
        lead: Shape,
        weights: Array,
        tanh: Any,
    ) -> Array | None:
        """Write a strip's weights, times the totals of their rows; returns the words of who may attend to whom."""
        p, grid, r, path = self.p, self.grid, _n_grouped(some.task), RAW if some.raw else REFERENCE
        if scratch.wide is None:
            np.matmul(some.scaled[:, rows], k.swapaxes(-1, -2), weights)
        else:
            weights[...] = np.matmul(some.scaled[:, rows], k.swapaxes(-1, -2).astype(scratch.wide.dtype))
        _, after = self.scales[path]
        if after is not None:
            np.multiply(weights, after, out=weights)
        if p.softcap is not None:
            self.cap(weights, path.unit, tanh)
        bits = grid.words(lead, strip, r) if strip.masked else None
        if p.bias is not None:
            tile = self.bias_tile(some.task.heads, lead, strip.rows, strip.cols, path.unit)
            tile = tile.swapaxes(-2, -3)  # (h or 1, n, r or 1, w)
            apart = weights.reshape(weights.shape[0], -1, r, weights.shape[-1])
            np.add(apart, tile, out=apart)
            seen = self.seen(tile, None if bits is None else bits.reshape(1, -1, r, bits.shape[-1]))
            if seen is not None:
                bits = np.broadcast_to(seen, (seen.shape[0], *apart.shape[1:])).reshape(
                    seen.shape[0], *weights.shape[1:]
                )
        if some.raw:
            path.exp(weights, weights)
        else:
            exponentials(weights, some.peak[:, rows], path.exp if some.finite else np.exp, weights)
            # scores that are large and rounded otherwise than before would make weights of more than 1
            np.minimum(weights, some.total[:, rows, None], out=weights)
        if bits is not None:
            _clear(weights, bits)
        return bits

    def kept_words(self, scratch: Scratch, task: Task, strip: Strip, shape: Shape) -> Array:
        h, m, w = shape
        r = _n_grouped(task)
        kept = scratch.shaped("kept", h, w, m).swapaxes(-1, -2)
        apart = kept.reshape(h, m // r, r, w)
        for i, j in np.ndindex(h, r):
            head = self.grid.flat(task.outer, task.shared.start + i, task.grouped.start + j)
            apart[i, :, j] = self.kept(head, strip.rows, strip.cols).T
        return kept.view(f"u{self.p.computing.itemsize}")

    # --------------------------------------------------------------------------------------- products
    def sum_tiles(self, scratch: Scratch, task: Task, d_k: Array, d_v: Array) -> None:
        """The products with queries and keys, of some queries against all keys that they see."""
        some = self.queries(scratch, task)
        d_q = scratch.shaped("d_q", *some.q.shape)
        d_q.fill(0)
        for tile in self.tiles(scratch, some):
            rows, cols, visible = tile.rows, tile.strip.cols, tile.visible
            if tile.tanh is not None:
                np.subtract(1, np.square(tile.tanh, out=tile.tanh), out=tile.tanh)
                np.multiply(tile.d_scores, tile.tanh, out=tile.d_scores)
                if tile.bits is not None:
                    _clear(tile.d_scores, tile.bits)
            seeing = None if visible is None else visible.swapaxes(-1, -2)
            self.add(scratch, d_v[:, cols], tile.weights.swapaxes(-1, -2), some.g[:, rows], seeing)
            self.add(scratch, d_k[:, cols], tile.d_scores.swapaxes(-1, -2), some.q[:, rows], seeing)
            self.add(scratch, d_q[:, rows], tile.d_scores, tile.k, visible)
        _scale(d_q, self.p.scale)
        if not some.finite:
            d_q[some.dead] = 0
        h, m, d = d_q.shape
        r = _n_grouped(task)
        self.sums.q[(*task.heads, task.rows)] = d_q.reshape(h, m // r, r, d).swapaxes(1, 2)

    def add(self, scratch: Scratch, total: Array, weights: Array, x: Array, visible: Array | None) -> None:
        made = scratch.shaped("product", *total.shape)
        if visible is None:
            np.matmul(weights, x, made)
        else:
            weighted_sum(weights, x, visible, out=made)
        np.add(total, made, out=total)


def _finite(x: Array) -> bool:
    return bool(np.isfinite(np.add.reduce(x, axis=None)))


def _n_grouped(task: Task) -> int:
    return int(task.grouped.stop - task.grouped.start)


def _together(x: Array) -> Array:
    """(h, r, m, ...) as (h, M, ...): no copy where r is 1."""
    h, r, m, *rest = x.shape
    return x.swapaxes(1, 2).reshape(h, m * r, *rest)


def _clear(x: Array, bits: Array) -> None:
    """Leave of each number the bits that are set."""
    there, beside = in_memory_order(x.view(bits.dtype), bits)
    np.bitwise_and(there, beside, out=there)


def _scale(x: Array, scale: float) -> None:
    """Multiply in place: in float64 where a scale would lose digits otherwise."""
    factor = product_dtype(x.dtype, scale).type(scale)
    np.multiply(x, factor, out=x, casting="unsafe")


def _shares(p: Problem, grid: Grid) -> int:
    """Into how many shares the queries of a head's keys go, so that few heads occupy many threads."""
    scores = prod(p.scores[-2:]) * grid.stacking.n_grouped
    parts = len(grid.spans()) * -(-grid.stacking.n_grouped // grid.together[1])
    return max(1, min(1 if scores < 2**22 else 2 if scores < 2**25 else 4, parts))
