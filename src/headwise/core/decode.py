"""A few queries against many keys: these are cut into chunks, a few of which are a task; grouped heads read each once.

The chunks depend on the number of keys alone and are merged in their order, so the result is the same for any number of
threads, and for an item alone or in company. The softmax is that of partial results; there is no other here.
"""

from __future__ import annotations  # NamedTuple fields are shown as they are written

from collections.abc import Callable
from math import prod
from typing import Any, NamedTuple

import numpy as np

from headwise.core import workers
from headwise.core.call import Call, shaped
from headwise.core.dropout import Keep
from headwise.core.grid import MOST_CHUNKS, Grid, Run, Strip, Task
from headwise.core.paths import LAST, RAW, RUNNING, Path, out_of_range, spoilt
from headwise.core.shapes import Array, Problem
from headwise.core.softmax import (
    Partial,
    absorb,
    divided,
    empty_part,
    is_tame,
    log_total,
    merge_along,
    part,
    row_maximum,
)

_HIGH = {"f": 40.0, "d": 300.0}  # a sink beyond which the weights of raw scores become too small to hold


class _Piece(NamedTuple):
    """What one worker does at a time: a few key heads of one mask against a run of chunks."""

    task: Task
    places: slice  # the flat indices of their items and key heads
    path: Path  # which they try first
    run: Run


class _Scratch:
    """What one worker writes into, made once: room for the largest run."""

    def __init__(self, grid: Grid, n_rows: int) -> None:
        p = grid.p
        n_rows *= grid.together[0] * min(MOST_CHUNKS, len(grid.edges()) - 1)
        n_scores = n_rows * grid.tiling.cols
        self.product, self.scores = np.empty(n_scores, grid.product), np.empty(n_scores, p.computing)
        self.acc = np.empty(n_rows * p.v.shape[-1], p.computing)
        self.total, self.peak = np.empty(n_rows, p.computing), np.empty(n_rows, p.computing)


class FewQueries(Call):
    """One call, over a grid of chunks. Besides the letters of the engine: s chunks in a run, a place for a key head."""

    def __init__(self, grid: Grid, p: Problem, keep: Keep | None) -> None:
        super().__init__(grid, p, keep)
        self.n_rows = grid.stacking.n_grouped * p.scores[-2]  # queries of all heads that share a key head
        self.pieces = self._pieces()
        self.n_runs = max((piece.run.number + 1 for piece in self.pieces), default=1)
        n_places = prod(grid.stacking.outer) * grid.stacking.n_shared
        self.partials = empty_part((self.n_runs, n_places, self.n_rows), p.v.shape[-1], p.computing)

    def _pieces(self) -> list[_Piece]:
        (outer, n_shared, n_grouped), grid = self.grid.stacking, self.grid
        pieces: list[_Piece] = []
        runs: dict[Any, list[Run]] = {}  # of each mask
        for item, index in enumerate(np.ndindex(*outer)):
            for i in range(0, n_shared, grid.together[0]):
                shared = slice(i, min(n_shared, i + grid.together[0]))
                task = Task(index, shared, slice(0, n_grouped), slice(0, self.p.scores[-2]))
                lead, path = grid.lead(task), grid.path_of_few(self.views, task)
                if lead not in runs:
                    runs[lead] = grid.runs(lead)
                places = slice(item * n_shared + i, item * n_shared + shared.stop)
                pieces += [_Piece(task, places, path, run) for run in runs[lead]]
        return pieces

    def run(self, progress: Any) -> Partial:
        """All partial results, merged: (places, r n_q) and acc (places, r n_q, d_v)."""
        workers.run(self.start, self.pieces, self.grid.threads, progress, self.size)
        with np.errstate(all="ignore"):
            whole = merge_along(self.partials)
            for place in np.flatnonzero(self._suspicious(whole)).tolist():
                self._again(whole, place)
            blind = whole.peak == -np.inf
            if blind.any():
                whole.acc[blind] *= 0  # what the floor of exp has left; NaN where that met an infinite value
        return whole

    def size(self, piece: _Piece) -> int:
        """How much of the whole a piece is, in scores."""
        cols = piece.run.strip.cols
        return int((piece.places.stop - piece.places.start) * self.n_rows * (cols.stop - cols.start))

    def start(self) -> Callable[[_Piece], None]:
        """What a worker does with a piece: some chunks, by a maximum of their own."""
        scratch = _Scratch(self.grid, self.n_rows)

        def attend(piece: _Piece) -> None:
            into = Partial(*[each[piece.run.number, piece.places] for each in self.partials])
            self._part(piece, piece.path, into, scratch)

        return attend

    def _suspicious(self, whole: Partial) -> Array:
        """Which places are not finite, or raw and of a size at which something may have been lost."""
        raw = np.zeros(len(whole.total), bool)
        for piece in self.pieces:
            raw[piece.places] = piece.path is RAW
        wrong: Array = np.zeros(len(raw), bool) if raw.all() else ~_is_sound(whole)
        if raw.any():  # what is not finite shows in these checks too
            n_q, r = self.p.scores[-2], self.grid.stacking.n_grouped
            lost: Array = out_of_range(whole.total.reshape(-1, r, 1, n_q), lambda: np.ones((1, n_q), bool))
            out = divided(whole)
            lost |= spoilt(out.reshape(*lost.shape, 1, n_q, out.shape[-1]))
            if self.sinks is not None:  # beside which what a row sees is lost
                lost |= self.sinks.reshape(lost.shape) > _HIGH[self.p.computing.char]
            wrong |= lost.any(axis=-1) & raw
        return wrong

    def _again(self, whole: Partial, place: int) -> None:
        """One key head anew: by maxima, and if that is not finite, with care for values behind masks and for sums."""
        mine = [_alone(piece, place) for piece in self.pieces if piece.places.start <= place < piece.places.stop]
        if any(piece.path is RAW for piece in mine):
            self._by(RUNNING, mine, whole)
        if mine and not _is_sound(Partial(*(each[mine[0].places] for each in whole))).all():
            self._by(LAST, mine, whole)
            here = Partial(*(each[place] for each in whole))
            lse, seen = log_total(here), here.total > 0
            divided(here._replace(total=here.total * self._shrink), here.acc)  # a mean, which does not overflow
            here.total[...], here.peak[...] = np.where(seen | (here.total == 0), seen, here.total), lse

    def _by(self, path: Path, pieces: list[_Piece], whole: Partial) -> None:
        """The partial result of one key head, by another path."""
        parts = empty_part((self.n_runs, 1, self.n_rows), self.p.v.shape[-1], self.p.computing)
        scratch = _Scratch(self.grid, self.n_rows)
        for piece in pieces:
            self._part(piece, path, Partial(*(each[piece.run.number] for each in parts)), scratch)
        for each, more in zip(whole, merge_along(parts), strict=True):
            each[pieces[0].places] = more

    @property
    def _shrink(self) -> Any:
        """What values are multiplied by so that no sum of them overflows."""
        return self.p.computing.type(0.5 ** max(1, (self.p.scores[-1] - 1).bit_length()))

    def _part(self, piece: _Piece, path: Path, into: Partial, scratch: _Scratch) -> None:
        """Write the partial result of a piece: (h, r n_q), and acc (h, r n_q, d_v)."""
        task, (_, strip, w), p = piece.task, piece.run, self.p
        heads: Any = (*task.outer, task.shared, 0, strip.cols)
        s = (strip.cols.stop - strip.cols.start) // w
        k, v = self.k[heads], self.v[heads]  # (h, s w, d)
        k, v = (x.reshape(len(x), s, w, x.shape[-1]) for x in (k, v))  # (h, s, w, d), as they lie
        if not self.grid.readable[0]:
            k = np.ascontiguousarray(k, self.grid.product)
        if not self.grid.readable[1]:
            v = np.ascontiguousarray(v, p.computing)
        scores = self._scores(task, path, k, scratch)  # (h, s, r n_q, w)
        bits = self.grid.bits(self.grid.lead(task), strip) if strip.masked else None  # (1, n_q, s w)
        if p.bias is not None:
            tile = self.bias_tile(task.heads, self.grid.lead(task), strip.rows, strip.cols, path.unit)
            np.add(scores, self._apart(tile, w), out=scores)
            bits = self.seen(tile, bits)
        bits = None if bits is None else self._apart(bits, w)
        kept = self._apart(self._kept(task, strip), w) if p.dropout else None
        peak: Any = path.reference
        if path is not RAW:
            peak = np.maximum.reduce(row_maximum(scores, bits), axis=1, keepdims=True)  # (h, 1, r n_q)
        if path.shrunk:
            v = v * self._shrink
        shape, exp = scores.shape[:3], path.exp
        if path is LAST or (path is RUNNING and not is_tame(v)):
            exp = np.exp
        acc, total, peaks = scratch.acc, scratch.total, scratch.peak
        each = Partial(shaped(acc, *shape, v.shape[-1]), shaped(total, *shape), shaped(peaks, *shape))
        part(scores, v, peak, bits=bits, kept=kept, finite=path is not LAST, exp=exp, into=each)
        np.add.reduce(each.acc, axis=1, out=into.acc)  # all of one reference
        np.add.reduce(each.total, axis=1, out=into.total)
        into.peak[...] = peak if path is RAW else peak[:, 0]

    def _apart(self, x: Array, w: int) -> Array:
        """Tiles (..., r or 1, n_q, s w) as scores lie, (h or 1, s, r n_q, w)."""
        x = x.reshape(-1, *x.shape[-3:])
        tall = np.broadcast_to(x, (len(x), self.grid.stacking.n_grouped, *x.shape[-2:]))
        return tall.reshape(len(x), self.n_rows, -1, w).swapaxes(1, 2)

    def _scores(self, task: Task, path: Path, k: Array, scratch: _Scratch) -> Array:
        """Scores before any bias: keys first as the BLAS reads them best, then turned."""
        h, s, w, d = k.shape
        scale, after = self.scales[path]
        q = self.q[task.heads].reshape(h, 1, self.n_rows, d)
        some = np.multiply(q.swapaxes(-1, -2), scale, dtype=self.grid.product, casting="unsafe", order="C")
        made = np.matmul(k, some, out=shaped(scratch.product, h, s, w, self.n_rows))
        scores = shaped(scratch.scores, h, s, self.n_rows, w)
        scores[...] = made.swapaxes(-1, -2)
        if after is not None:
            np.multiply(scores, after, out=scores)
        if self.p.softcap is not None:
            self.cap(scores, path.unit)
        return scores

    def _kept(self, task: Task, strip: Strip) -> Array:
        """Words of which weights dropout keeps, (h, r, n_q, s w)."""
        heads = [
            [self.grid.flat(task.outer, i, r) for r in range(task.grouped.start, task.grouped.stop)]
            for i in range(task.shared.start, task.shared.stop)
        ]
        each = [[self.kept(head, strip.rows, strip.cols).T for head in some] for some in heads]
        size = self.p.computing.itemsize
        return np.ascontiguousarray(each, f"i{size}").view(f"u{size}")


def _alone(piece: _Piece, place: int) -> _Piece:
    """What a piece is for one of its key heads."""
    i = piece.task.shared.start + place - piece.places.start
    return piece._replace(task=piece.task._replace(shared=slice(i, i + 1)), places=slice(place, place + 1))


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
            each = call.sinks.reshape(len(whole.total), grid.stacking.n_grouped)
            sinks = np.repeat(each, p.scores[-2], axis=-1)  # (places, r n_q)
            absorb(whole, Partial(np.zeros((), p.computing), (sinks > -np.inf).astype(p.computing), sinks))
        if lse is not None:
            lse[...] = log_total(whole).reshape(lse.shape)
        if p.dropout and call.keep.kept:
            np.multiply(whole.total, p.computing.type(call.keep.kept), out=whole.total)
        out[...] = divided(whole).reshape(out.shape)
