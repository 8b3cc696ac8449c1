"""Attention over a plan: tiles of scores on all cores, each a partial softmax, merged; memory linear in the sequence.

The contract is that of the definition, which it never calls. Letters besides those of shapes.py, for what one task
holds: h of L key heads, r of R query heads to each, b blocks of m queries, w keys.
"""

from __future__ import annotations  # help() then shows ArrayLike as it is written

from collections.abc import Callable
from math import isfinite, sqrt
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from headwise.core import decode, workers
from headwise.core.call import Call, shaped
from headwise.core.dropout import Keep
from headwise.core.grid import Grid, Strip, Task, grid_of
from headwise.core.masks import Mask
from headwise.core.paths import (
    LAST,
    RAW,
    REFERENCE,
    RUNNING,
    Path,
    moderate,
    out_of_range,
    outgrown,
    overflowing,
    spoilt,
)
from headwise.core.plan import MOST_THREADS, AttentionPlan, thread_count
from headwise.core.positions import Alibi
from headwise.core.shapes import MOST_AXES, Array, Faults, Problem, flag, given_as, problem, words
from headwise.core.softmax import (
    Partial,
    absorb,
    add,
    divided,
    floored_exp,
    in_memory_order,
    is_tame,
    log_total,
    part,
    recentred,
    row_maximum,
)


# ----------------------------------------------------------------------------------------- operands
class _Results(NamedTuple):
    """What one call writes, as the tasks see it: leading axes (..., L, R)."""

    out: Array  # (..., L, R, n_q, d_v)
    lse: Array | None  # (..., L, R, n_q)
    rows: Rows | None


class _Scratch:
    """What one worker writes into, made once: fresh memory costs more than the arithmetic on it."""

    def __init__(self, grid: Grid) -> None:
        p, computing = grid.p, grid.p.computing
        n_rows, n_cols, n_heads = grid.rows_together, grid.tiling.cols, grid.together[0]
        self.scores = np.empty(n_rows * n_cols, computing)
        self.product = self.scores if grid.product == computing else np.empty(n_rows * n_cols, grid.product)
        self.queries = np.empty(n_rows * p.q.shape[-1], grid.product)
        self.partials = [
            (np.empty(n_rows * (p.v.shape[-1] + 1), computing), np.empty(n_rows, computing)) for _ in range(2)
        ]
        self.k = None if grid.readable[0] else np.empty(n_heads * n_cols * p.k.shape[-1], grid.product)
        self.v = None if grid.readable[1] else np.empty(n_heads * n_cols * p.v.shape[-1], computing)
        self.kept = np.empty(n_rows * n_cols if p.dropout else 0, f"i{computing.itemsize}")

    def partial(self, which: int, shape: tuple[int, ...]) -> tuple[Partial, Array]:
        """Buffers for a partial result of shape (h, r, b, m, d_v), and the array in which acc and total lie."""
        (h, r, b, m, d_v), (flat, peak) = shape, self.partials[which]
        both = shaped(flat, h, r, b, m * (d_v + 1))
        acc = both[..., : m * d_v].reshape(h, r, b, m, d_v)
        return Partial(acc, both[..., m * d_v :], shaped(peak, h, r, b, m)), both


def as_readable(tile: Array, scratch: Array | None) -> Array:
    """Keys or values as the BLAS can read them."""
    if scratch is None:
        return tile
    ready = shaped(scratch, *tile.shape)
    ready[...] = tile
    return ready


# --------------------------------------------------------------------------------------- one task
class _Piece(NamedTuple):
    """Some blocks of a stack, against tiles of one width."""

    queries: Array  # (h, r, b, d_k, m)
    product: Array  # (h, r, b, w, m), keys first, or with a dense bias (h, r, b, m, w): what the BLAS writes
    scores: Array  # (h, r, b, m, w), in the computing type: a view of the product, or where it is cast to
    here: Partial  # of these blocks, so far
    more: Partial  # room for another of their shape
    joint: tuple[Array, Array]  # acc and total of both


class _Stack:
    """What a task stacks: a few blocks of queries of several heads that take one path."""

    def __init__(self, call: _Call, scratch: _Scratch, task: Task, path: Path) -> None:
        self.call, self.scratch, self.task, self.path = call, scratch, task, path
        self.grid, self.p, self.lead = call.grid, call.p, call.grid.lead(task)
        self.heads = task.heads
        self.k, self.v = (x[self.heads[:-1]][:, :, None] for x in (call.k, call.v))  # (h, 1, 1, n_k, d)
        self.queries = self._queries()  # (h, r, b, d_k, m)
        *lead, _, m = self.queries.shape
        shape = (*lead, m, self.v.shape[-1])
        (self.whole, joint), (self.spare, spare_joint) = scratch.partial(0, shape), scratch.partial(1, shape)
        self.joint = joint, spare_joint
        self.shrink = self.p.computing.type(0.5 ** max(1, (self.v.shape[-2] - 1).bit_length()))
        self.pieces: dict[Any, _Piece] = {}
        self.steps = self.grid.steps(self.lead, task.rows, path.backwards)

    def attend(self) -> None:
        """Gather and write; what a faster path got wrong is done again by the next one."""
        again = self.gather()
        raw = self.path is RAW
        if not (raw and again.all()):
            again |= self.write()
        if raw and again.all():  # the heads stay together
            self.redo(self.task, REFERENCE)
            return
        for h, r, *block in np.argwhere(again).tolist():
            head = _head_of(self.task, h, r)
            if raw:
                self.redo(head, REFERENCE)
            else:
                self.redo(
                    _block_of(head, block[0], self.queries.shape[-1]), RUNNING if self.path is REFERENCE else LAST
                )

    def redo(self, task: Task, path: Path) -> None:
        _Stack(self.call, self.scratch, task, path).attend()

    def gather(self) -> Array:
        """The inner loop: a partial softmax for each strip of keys, merged into that of its blocks.

        Returns which heads (h, r) of a raw result, or which blocks (h, r, b) of others, are known to be wrong.
        """
        path, p, scratch, whole = self.path, self.p, self.scratch, self.whole
        exp, kept, lost = path.exp, None, np.zeros(self.queries.shape[:2], bool)
        if exp is floored_exp and not self.call.is_tame(self.task):
            exp = np.exp  # 0 * inf is to be NaN, and 0 times what others have left in memory to be 0
        finite = not path.rescaled  # taken for granted where infinite values would show afterwards
        if path is RAW:
            whole.peak.fill(0)
        for strip in self.steps.strips:  # few lines and fewer calls: Python is slow while the cache holds scores
            piece = self.pieces.get(strip.kind) or self.piece(strip)
            scores, here = piece.scores, piece.here
            k, v = self.k[..., strip.cols, :], self.v[..., strip.cols, :]
            if scratch.k is not None or scratch.v is not None:
                k, v = as_readable(k, scratch.k), as_readable(v, scratch.v)
            if self.call.product_is_score:  # before a bias; keys first, so that neither operand is turned or copied
                np.matmul(k, piece.queries, piece.product)
            else:
                self.score(piece, k)
            bits = self.grid.bits(self.lead, strip) if strip.masked else None
            if p.bias is not None:
                bits = self.add_bias(strip, scores, bits)
            if p.dropout:
                kept = self.kept(strip, scores)
            if path.shrunk:
                v = v * self.shrink
            self.blank(strip.blank)
            into = here if strip.fresh else piece.more
            peak = _reference(here, scores, bits) if path is REFERENCE and not strip.fresh else path.reference
            part(scores, v, peak, bits=bits, kept=kept, finite=finite, exp=exp, into=into)
            if path.rescaled and not strip.fresh:
                absorb(here, into)
            elif not strip.fresh:
                add(here, into, piece.joint)
            if path is RAW and (strip.fresh or strip.blank):
                lost |= overflowing(here.total)
                if lost.all():
                    return lost
        self.blank(self.steps.unseen)
        if path is RAW:
            return lost | out_of_range(whole.total, self.alive)
        return self.settle()

    def alive(self) -> Array:
        """Which queries (b, m) may attend to a key at all."""
        return self.grid.alive(self.lead, self.task.rows)

    def settle(self) -> Array:
        """Empty rows that saw nothing but ``-inf``; return the blocks (h, r, b) that are wrong."""
        whole, path = self.whole, self.path
        wrong = np.zeros(whole.total.shape[:3], bool) if path is LAST else outgrown(whole)
        blind = whole.peak == -np.inf
        if blind.any():
            if path is REFERENCE and abs(self.p.scale) > 1:  # a scaled query that overflowed may have made it so
                wrong |= (blind & self.alive()).any(axis=-1)
            whole.acc[blind] *= 0  # the floor of exp; NaN where that met an infinite value
        return wrong

    def blank(self, blocks: tuple[int, ...]) -> None:
        """Make these blocks partial results over no keys, as they come from an earlier task."""
        nothing = (0, 0, 0 if self.path is RAW else -np.inf)
        for block in blocks:
            for each, value in zip(self.whole, nothing, strict=True):
                each[:, :, block] = value

    def piece(self, strip: Strip) -> _Piece:
        """The buffers of a strip, which it shares with all of its kind."""
        if strip.kind not in self.pieces:
            queries = self.queries[:, :, strip.blocks]
            here, more = (Partial(*[x[:, :, strip.blocks] for x in each]) for each in (self.whole, self.spare))
            joint = self.joint[0][:, :, strip.blocks], self.joint[1][:, :, strip.blocks]
            (*lead, _, m), (*_, w) = queries.shape, strip.kind
            shape = (*lead, w, m) if self.call.keys_first else (*lead, m, w)
            product, scores = shaped(self.scratch.product, *shape), shaped(self.scratch.scores, *shape)
            if self.call.keys_first:
                scores = scores.swapaxes(-1, -2)
            self.pieces[strip.kind] = _Piece(queries, product, scores, here, more, joint)
        return self.pieces[strip.kind]

    def _queries(self) -> Array:
        """The queries, scaled and turned."""
        some = self.call.q[(*self.heads, self.task.rows)]
        h, r, n, d = some.shape
        m = self.grid.block(self.task.rows)
        turned = shaped(self.scratch.queries, h, r, n // m, d, m)
        scale, _ = self.call.scales[self.path]
        tall = some.reshape(h, r, n // m, m, d).swapaxes(-1, -2)
        np.multiply(tall, scale, out=turned, dtype=turned.dtype, casting="unsafe")  # NumPy 1 would stay in float16
        return turned

    def score(self, piece: _Piece, k: Array) -> None:
        """Write the scores of a strip, before any bias, for its keys (h, 1, 1, w, d_k), step by step."""
        keys_first, scores = self.call.keys_first, piece.scores
        if keys_first:
            np.matmul(k, piece.queries, piece.product)
        else:
            np.matmul(piece.queries.swapaxes(-1, -2), k.swapaxes(-1, -2), piece.product)
        if self.grid.product != self.p.computing:
            scores[...] = piece.product.swapaxes(-1, -2) if keys_first else piece.product
        _, after = self.call.scales[self.path]
        if after is not None:
            np.multiply(scores, after, out=scores)
        if self.p.softcap is not None:
            self.call.cap(scores, self.path.unit)

    def add_bias(self, strip: Strip, scores: Array, bits: Array | None) -> Array | None:
        """Add the bias; return the bits of who may attend to whom, to which ``-inf`` in the bias belongs."""
        tile = self.call.bias_tile(self.heads, self.lead, strip.rows, strip.cols, self.path.unit)
        tile = tile.reshape(*tile.shape[:2], -1, *scores.shape[-2:])
        there, beside = in_memory_order(scores, tile)
        np.add(there, beside, out=there)
        return self.call.seen(tile, bits)

    def kept(self, strip: Strip, scores: Array) -> Array:
        """Which weights of a strip dropout keeps: words with all bits set, of the shape of its scores."""
        h, r, b, m, w = scores.shape
        kept = shaped(self.scratch.kept, h, r, b, w, m).swapaxes(-1, -2)
        for i, j in np.ndindex(h, r):
            head = self.grid.flat(self.task.outer, self.task.shared.start + i, self.task.grouped.start + j)
            kept[i, j] = self.call.kept(head, strip.rows, strip.cols).T.reshape(b, m, w)
        return kept.view(f"u{self.p.computing.itemsize}")

    def write(self) -> Array | bool:
        """Divide, and write the results; returns the heads of a raw one whose output tells that something was lost."""
        p, whole, rows = self.p, self.whole, (*self.heads, self.task.rows)
        out, lse, kept_rows = self.call.results
        blind = None if kept_rows is None else (whole.total == 0) | (whole.peak == -np.inf)
        if self.call.sinks is not None:  # one more part, whose value is nothing
            sinks = self.call.sinks[self.heads][..., None, None]  # (h, r, 1, 1)
            absorb(whole, Partial(np.zeros((), p.computing), (sinks > -np.inf).astype(p.computing), sinks))
        mine = out[rows].reshape(whole.acc.shape)
        if lse is not None:  # before the total becomes a mere divisor
            lse[rows].reshape(whole.total.shape)[...] = log_total(whole)
        if kept_rows is not None:
            self.remember(kept_rows, rows, blind)
        if self.path.shrunk:
            np.multiply(whole.total, self.shrink, out=whole.total)
        if p.dropout and self.call.keep.kept:  # not acc divided, which might overflow
            np.multiply(whole.total, p.computing.type(self.call.keep.kept), out=whole.total)
        if out.dtype == p.computing:
            done = divided(whole, mine)
        else:
            done = divided(whole, whole.acc)
            mine[...] = done.astype(out.dtype)
        return spoilt(done) if self.path is RAW and self.steps.strips else False

    def remember(self, kept: Rows, rows: Any, blind: Any) -> None:
        """Note what the weights can be made from again."""
        total, peak, raw = np.where(blind, 0, self.whole.total), self.whole.peak, self.path is RAW
        near = raw & (peak == 0) & moderate(total)  # by others a small gradient could not be divided without loss
        far_total, far_peak = recentred(total, peak)
        for each, value in zip(kept, (np.where(near, peak, far_peak), np.where(near, total, far_total)), strict=False):
            each[rows] = value.reshape(each[rows].shape)
        kept.raw[rows] = (near | (blind & raw)).reshape(kept.raw[rows].shape)


def _head_of(task: Task, h: int, r: int) -> Task:
    """The part of a task that is one head's."""
    shared, grouped = task.shared.start + h, task.grouped.start + r
    return task._replace(shared=slice(shared, shared + 1), grouped=slice(grouped, grouped + 1))


def _block_of(task: Task, b: int, m: int) -> Task:
    """The part of a task that is one block of m queries."""
    start = task.rows.start + b * m
    return task._replace(rows=slice(start, start + m))


def _reference(here: Partial, scores: Array, bits: Array | None) -> Array:
    """The references of some blocks; a query that has seen nothing so far takes the maximum of these scores."""
    blind = here.peak == -np.inf
    if blind.any():
        np.copyto(here.peak, row_maximum(scores, bits), where=blind)
    return here.peak


# --------------------------------------------------------------------------------------- one call
class _Call(Call):
    """One call of attention, with what it writes."""

    def __init__(self, grid: Grid, p: Problem, keep: Keep | None, results: _Results) -> None:
        super().__init__(grid, p, keep)
        self.results = results
        # whether the product of scaled queries and keys is a score, before alibi
        self.product_is_score = (
            self.keys_first and p.softcap is None and p.computing == grid.product and abs(p.scale) <= 1
        )

        self.tame: dict[Any, bool] = {}

    def is_tame(self, task: Task) -> bool:
        """Whether all values of a task's heads are, found once for all its queries."""
        heads: Any = (*task.outer, task.shared.start, task.shared.stop)
        if heads not in self.tame:
            self.tame[heads] = is_tame(self.v[task.heads[:-1]])
        return self.tame[heads]

    def start(self) -> Callable[[Task], None]:
        """What a worker does with a task."""
        scratch = _Scratch(self.grid)
        return lambda task: self.attend(scratch, task)

    def attend(self, scratch: _Scratch, task: Task) -> None:
        """One task: all heads at once if they try one path first, else one by one."""
        paths, n_grouped = self.grid.paths(self.views, task), task.grouped.stop - task.grouped.start
        if len(paths) == 1:
            _Stack(self, scratch, task, paths[0]).attend()
            return
        for head, path in enumerate(paths):
            _Stack(self, scratch, _head_of(task, *divmod(head, n_grouped)), path).attend()


class Rows(NamedTuple):
    """What each row of a softmax ended with: its weights are ``exp(score - peak) / total``, tile by tile."""

    peak: Array  # (..., L, R, n_q)  the reference taken off
    total: Array  # (..., L, R, n_q)  the denominator, sinks included; 0 for a query that sees no key
    raw: Array  # (..., L, R, n_q)  bool: whether nothing was taken off and scores were in raw's unit


def _compute(grid: Grid, p: Problem, return_lse: bool, progress: Any) -> Any:
    lead = p.scores[:-1]
    out = np.empty((*lead, p.v.shape[-1]), p.dtype)
    lse = np.empty(lead, p.computing) if return_lse else None
    if grid.few:
        decode.attend(grid, p, keep_of(p), out, lse, progress)
        return out if lse is None else (out, lse)
    _attend(grid, p, keep_of(p), _Results(out, lse, None), progress)
    return out if lse is None else (out, lse)


def attend_into(grid: Grid, p: Problem, out: Array, lse: Array | None) -> None:
    """Write output (..., H, n_q, d_v) and log-sum-exp (..., H, n_q) into views whose heads lie evenly in memory."""
    if grid.few:
        decode.attend(grid, p, None, out, lse, None)
    else:
        _attend(grid, p, None, _Results(out, lse, None), None)


def remembered(grid: Grid, p: Problem, keep: Keep | None, progress: Any) -> tuple[Array, Array, Rows]:
    """Output and log-sum-exp, both in the computing type, and what a gradient needs to make the weights again."""
    lead = p.scores[:-1]
    out, lse = np.empty((*lead, p.v.shape[-1]), p.computing), np.empty(lead, p.computing)
    rows = Rows(np.empty_like(lse), np.empty_like(lse), np.empty(lead, bool))
    return out, lse, _attend(grid, p, keep, _Results(out, lse, rows), progress)


def keep_of(p: Problem) -> Keep | None:
    """Which weights dropout keeps, if it drops any; draws from the generator."""
    return None if p.rng is None or p.dropout == 0 else Keep(p.dropout, p.rng)


def _attend(grid: Grid, p: Problem, keep: Keep | None, whole: _Results, progress: Any) -> Any:
    """Fill these results, of leading axes (..., H); returns the rows as tasks see them."""
    each = (*grid.stacking.outer, *grid.stacking[1:])

    def apart(x: Array | None) -> Any:
        return None if x is None else x.reshape(*each, *x.shape[len(p.scores) - 2 :])

    rows = None if whole.rows is None else Rows(*map(apart, whole.rows))
    call = _Call(grid, p, keep, _Results(apart(whole.out), apart(whole.lse), rows))
    workers.run(call.start, grid.tasks(), grid.threads, progress, grid.size)
    return rows


# -------------------------------------------------------------------------------- small and simple
_FEW, _SMALL = 32, 2**15  # sizes of a product, and numbers of q, so small that no BLAS shares them out among threads


def _at_once(q: Any, k: Any, v: Any) -> Partial | None:
    """Plain self-attention over few tokens by what `_Stack` would do, to the bit; None where it is not that simple.

    Checks and bookkeeping would take ten times as long as such a small computation.
    """
    if not (type(q) is type(k) is type(v) is np.ndarray and q.shape == k.shape == v.shape and 2 <= q.ndim <= MOST_AXES):
        return None
    n, d = q.shape[-2:]
    if not (0 < n <= _FEW and 0 < d <= _FEW and q.size <= _SMALL):
        return None
    dtype = q.dtype
    if not (dtype == k.dtype == v.dtype and dtype.char in "fd" and dtype.isnative):
        return None
    if not (q.flags.c_contiguous and k.flags.c_contiguous and v.flags.c_contiguous):
        return None
    turned = np.empty((*q.shape[:-2], d, n), dtype)
    np.multiply(q.swapaxes(-1, -2), dtype.type(1 / sqrt(d)), out=turned)
    whole = part(np.matmul(k, turned).swapaxes(-1, -2), v)
    return whole if isfinite(np.add.reduce(whole.acc, axis=None)) else None  # too large to add up, or not finite at all


# ------------------------------------------------------------------------------------------ public faces
def attention(
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    mask: Mask | ArrayLike | None = None,
    *,
    causal: bool = False,
    bias: Alibi | ArrayLike | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: ArrayLike | None = None,
    dropout: float = 0.0,
    rng: int | np.random.Generator | None = None,
    return_lse: bool = False,
    threads: int | None = None,
    progress: Callable[[int, int], object] | None = None,
) -> Any:
    """Scaled dot-product attention in memory linear in the sequence, on all cores.

    It means what :func:`headwise.scaled_dot_product_attention` means, in every option, and lies as close to the exact
    result; only it makes no weights.

    Parameters
    ----------
    q, k, v, mask, causal, bias, scale, softcap, sinks, dropout, rng
        As for :func:`headwise.scaled_dot_product_attention`. Tiles of scores that the mask rules out are not computed.
    return_lse : bool
        Whether to return the log-sum-exp too, which :func:`headwise.merge_attention` asks for.
    threads : int, optional
        Threads, the caller's among them; by default as many as NumPy's BLAS uses. The result is the same, to the bit.
    progress : callable, optional
        Called as ``progress(done, total)`` from the calling thread, after each of its tasks and at the end; counts are
        pairs of query and key, masked or not, of all heads (0 of 0 where there are none). What it raises ends the call.

    Returns
    -------
    out : ndarray, shape (..., H, n_q, d_v)
        As of the definition.
    lse : ndarray, shape (..., H, n_q)
        Natural logarithm of the softmax's denominator, sinks included, in the computing type; ``-inf`` for a query
        without keys. Only with ``return_lse``.

    Raises
    ------
    TypeError
        If an argument is of the wrong kind.
    ValueError
        If shapes or numbers do not fit. Everything that does not fit is named at once.

    Notes
    -----
    Each tile of scores becomes a partial softmax; partial ones are merged [1]_. A batch item gives the same bits alone
    and among others (dropout apart, which goes by an item's place). :func:`headwise.attention_plan` shows what a call
    will do.

    References
    ----------
    .. [1] Milakov, Gimelshein, "Online normalizer calculation for softmax", arXiv:1805.02867, section 3.1; Dao et al.,
       "FlashAttention", NeurIPS 2022, for the order of the tiles.

    Examples
    --------
    >>> q, k, v = [[1.0, 0.0]], [[1.0, 0.0], [0.0, 1.0]], [[6.0], [12.0]]
    >>> print(attention(q, k, v).round(4))
    [[7.9814]]
    """
    fits = threads is None or (type(threads) is int and 0 < threads <= MOST_THREADS)
    plain = mask is bias is scale is softcap is sinks is rng is None and progress is None
    if plain and fits and causal is return_lse is False and type(dropout) is float and dropout == 0:
        with np.errstate(all="ignore"):
            whole = _at_once(q, k, v)
            if whole is not None:
                return divided(whole)
    faults = Faults("attention")
    threads, progress = thread_count(faults, threads), callable_or_none(faults, progress)
    return_lse = flag(faults, "return_lse", return_lse)
    p = problem("attention", q, k, v, mask, causal, bias, scale, softcap, sinks, dropout, rng, faults)
    return _compute(grid_of(p, threads), p, return_lse, progress)


def run(
    plan: AttentionPlan,
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    *,
    rng: int | np.random.Generator | None = None,
    return_lse: bool = False,
    progress: Callable[[int, int], object] | None = None,
) -> Any:
    """Attention as it was planned: with the plan's mask and options, tiles and threads.

    Parameters
    ----------
    plan : AttentionPlan
        Of :func:`headwise.attention_plan`, for arrays of these shapes and types.
    q, k, v, rng, return_lse, progress
        As for :func:`attention`.

    Returns
    -------
    out : ndarray, shape (..., H, n_q, d_v)
    lse : ndarray, shape (..., H, n_q)
        Only with ``return_lse``.

    Raises
    ------
    TypeError, ValueError
        As :func:`attention` does, and if the arrays are not such as the plan was made for.

    Examples
    --------
    >>> from headwise.core.plan import attention_plan
    >>> q = np.eye(4, dtype=np.float32)
    >>> print(run(attention_plan(q, q, q, causal=True, tile=(2, 3)), q, q, q)[0])
    [1. 0. 0. 0.]
    """
    faults = Faults("run")
    if not isinstance(plan, AttentionPlan):
        faults.type("plan", "a plan of hw.attention_plan(...)", given_as(plan))
        faults.raise_any()
    progress, return_lse = callable_or_none(faults, progress), flag(faults, "return_lse", return_lse)
    was = plan.grid.p
    options = (was.mask, was.causal, was.bias, was.scale, was.softcap, was.sinks, was.dropout, rng)
    p = problem("run", q, k, v, *options, faults)
    for name, planned, given in (("q", was.q, p.q), ("k", was.k, p.k), ("v", was.v, p.v)):
        if (planned.shape, planned.dtype) != (given.shape, given.dtype):
            remedy = "make a plan for these arrays"
            expected = f"{words(planned.shape)} {planned.dtype}, as planned"
            faults.value(name, expected, f"{words(given.shape)} {given.dtype}", remedy)
    faults.raise_any()
    return _compute(plan.grid.for_arrays(p), p, return_lse, progress)


def callable_or_none(faults: Faults, progress: Any) -> Any:
    """``progress`` as a function, or None."""
    if progress is not None and not callable(progress):
        faults.type("progress", "None or a function of (done, total)", given_as(progress))
    return progress
