"""A few queries against many keys: the keys are cut into chunks, which are the tasks, and grouped heads read each once.

The chunks depend on the number of keys alone and are merged in their order, so the result is the same for any number of
threads, and for an item alone or in company. The softmax is that of partial results; there is no other here.
"""

from __future__ import annotations  # NamedTuple fields are shown as they are written

from typing import Any, NamedTuple

import numpy as np

from headwise.core import workers
from headwise.core.call import Call
from headwise.core.dropout import Keep
from headwise.core.grid import Grid, Strip, Task
from headwise.core.paths import EXACT, RUNNING
from headwise.core.shapes import Array, Problem
from headwise.core.softmax import Partial, absorb, divided, log_total, part, row_maximum


class _Piece(NamedTuple):
    """A task: one key head of one item against one chunk of keys."""

    task: Task
    strip: Strip
    place: int  # the flat index of the item and key head
    number: int  # of the chunk, among those that are not ruled out


class FewQueries(Call):
    """One call, over a grid of chunks."""

    def __init__(self, grid: Grid, p: Problem, keep: Keep | None) -> None:
        super().__init__(grid, p, keep)
        self.places = [(outer, i) for outer in np.ndindex(*grid.stacking.outer) for i in range(grid.stacking.n_shared)]
        self.pieces, most = self._pieces()
        r, n_q, d_v = grid.stacking.n_grouped, p.scores[-2], p.v.shape[-1]
        shape = (most, len(self.places), r, n_q)
        self.partials = Partial(
            np.zeros((*shape, d_v), p.computing), np.zeros(shape, p.computing), np.full(shape, -np.inf, p.computing)
        )

    def _task(self, place: int) -> Task:
        outer, i = self.places[place]
        return Task(outer, slice(i, i + 1), slice(0, self.grid.stacking.n_grouped), slice(0, self.p.scores[-2]))

    def _pieces(self) -> tuple[list[_Piece], int]:
        """What there is to do, and the most chunks that any key head has."""
        pieces, most = [], 1
        for place in range(len(self.places)):
            task = self._task(place)
            strips = self.grid.steps(self.grid.lead(task), task.rows).strips
            pieces += [_Piece(task, strip, place, number) for number, strip in enumerate(strips)]
            most = max(most, len(strips))
        return pieces, most

    def run(self, progress: Any) -> Partial:
        """All partial results, merged: (places, r, n_q) and acc (places, r, n_q, d_v)."""
        workers.run(lambda: self.attend, self.pieces, self.grid.threads, progress, self.size)
        with np.errstate(all="ignore"):
            whole = Partial(*(each[0] for each in self.partials))
            for more in zip(*(each[1:] for each in self.partials), strict=True):
                absorb(whole, Partial(*more))
            for place in np.flatnonzero(~_is_sound(whole)):
                self._again(whole, int(place))
            blind = whole.peak == -np.inf
            if blind.any():
                whole.acc[blind] *= 0  # what the floor of exp has left; NaN where that met an infinite value
        return whole

    def size(self, piece: _Piece) -> int:
        """How much of a run a piece is, in scores."""
        cols = piece.strip.cols
        return int(self.grid.stacking.n_grouped * self.p.scores[-2] * (cols.stop - cols.start))

    def attend(self, piece: _Piece) -> None:
        """One chunk, by a maximum of its own."""
        into = Partial(*(each[piece.number, piece.place] for each in self.partials))
        self._part(piece, into, exact=False, shrink=None)

    def _again(self, whole: Partial, place: int) -> None:
        """One key head with care: values that are not finite behind a mask, sums that overflow."""
        shrink = self.p.computing.type(0.5 ** max(1, (self.p.scores[-1] - 1).bit_length()))
        mine = Partial(*(each[place] for each in whole))
        mine.acc[...], mine.total[...], mine.peak[...] = 0, 0, -np.inf
        more = Partial(*(each.copy() for each in mine))
        for piece in self.pieces:
            if piece.place == place:
                more.acc[...], more.total[...], more.peak[...] = 0, 0, -np.inf
                self._part(piece, more, exact=True, shrink=shrink)
                absorb(mine, more)
        lse, seen = log_total(mine), mine.total > 0
        mine.acc[...] = divided(Partial(mine.acc, mine.total * shrink, mine.peak))  # a mean, which does not overflow
        mine.total[...], mine.peak[...] = np.where(seen | (mine.total == 0), seen, mine.total), lse

    def _part(self, piece: _Piece, into: Partial, exact: bool, shrink: Any) -> None:
        task, strip, p = piece.task, piece.strip, self.p
        lead = self.grid.lead(task)
        heads = (*task.outer, task.shared.start)
        k, v = (x[heads][0, strip.cols] for x in (self.k, self.v))  # (w, d)
        if not self.grid.readable[0]:
            k = np.ascontiguousarray(k, self.grid.product)
        if not self.grid.readable[1]:
            v = np.ascontiguousarray(v, p.computing)
        scores = self._scores(task, k)  # (r, n_q, w), rows of one piece of memory
        bits = self.grid.bits(lead, strip) if strip.masked else None  # (1, n_q, w)
        if p.bias is not None:
            tile = self.bias_tile(task.heads, lead, strip.rows, strip.cols, 1.0)[0]
            np.add(scores, tile, out=scores)
            bits = self.seen(tile, bits)
        kept = self._kept(task, strip) if p.dropout else None
        if bits is not None:
            bits = np.broadcast_to(bits, scores.shape)
        peak = row_maximum(scores, bits)
        if shrink is not None:
            v = v * shrink
        flat = Partial(into.acc.reshape(-1, into.acc.shape[-1]), into.total.reshape(-1), into.peak.reshape(-1))
        rows, wide = len(flat.total), scores.shape[-1]
        part(
            scores.reshape(rows, wide),
            v,
            peak.reshape(rows),
            bits=None if bits is None else bits.reshape(rows, wide),
            kept=None if kept is None else kept.reshape(rows, wide),
            finite=not exact,
            exp=np.exp if exact else RUNNING.exp,
            into=flat,
        )

    def _scores(self, task: Task, k: Array) -> Array:
        """Scores of one key head's queries, before any bias: keys first as the BLAS reads them best, then turned."""
        p, product = self.p, self.grid.product
        scale, after = self.scales[EXACT]
        q = self.q[task.heads][0]  # (r, n_q, d)
        some = np.multiply(q.reshape(-1, q.shape[-1]).T, scale, dtype=product, casting="unsafe", order="C")
        made = np.matmul(k, some)  # (w, r n_q)
        scores = np.ascontiguousarray(made.T, p.computing).reshape(*q.shape[:2], -1)
        if after is not None:
            np.multiply(scores, after, out=scores)
        if p.softcap is not None:
            self.cap(scores, 1.0)
        return scores

    def _kept(self, task: Task, strip: Strip) -> Array:
        """Words of which weights dropout keeps, (r, n_q, w)."""
        heads = range(task.grouped.start, task.grouped.stop)
        each = [self.kept(self.grid.flat(task.outer, task.shared.start, r), strip.rows, strip.cols).T for r in heads]
        size = self.p.computing.itemsize
        return np.ascontiguousarray(each, f"i{size}").view(f"u{size}")


def _is_sound(whole: Partial) -> Array:
    """Which key heads (places) have finite sums."""
    axes = tuple(range(1, whole.total.ndim))
    return np.asarray(np.isfinite(whole.total).all(axis=axes) & np.isfinite(whole.acc).all(axis=(*axes, -1)))


def attend(grid: Grid, p: Problem, keep: Keep | None, out: Array, lse: Array | None, progress: Any) -> None:
    """Fill ``out`` (..., H, n_q, d_v) and ``lse`` (..., H, n_q)."""
    call = FewQueries(grid, p, keep)
    whole = call.run(progress)
    with np.errstate(all="ignore"):
        if call.sinks is not None:
            sinks = call.sinks.reshape(whole.total.shape[:2])[..., None]  # (places, r, 1)
            absorb(whole, Partial(np.zeros((), p.computing), (sinks > -np.inf).astype(p.computing), sinks))
        if lse is not None:
            lse[...] = log_total(whole).reshape(lse.shape)
        if p.dropout and call.keep.kept:
            np.multiply(whole.total, p.computing.type(call.keep.kept), out=whole.total)
        out[...] = divided(whole).reshape(out.shape)
