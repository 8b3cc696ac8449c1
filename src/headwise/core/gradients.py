"""Gradients of attention and of softmax, as functions to call with the gradient of what came out.

Knows what is returned and in which shape; the arithmetic of a tile is in backward.py.
"""

from __future__ import annotations  # help() then shows ArrayLike as it is written

from collections.abc import Callable
from dataclasses import replace
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from headwise.core import workers
from headwise.core.backward import Backward, Given, Queries, Scratch, Sums, Tile
from headwise.core.dropout import Keep
from headwise.core.engine import Rows, callable_or_none, keep_of, remembered
from headwise.core.grid import Grid, backward_grid, grid_of
from headwise.core.masks import Mask
from headwise.core.plan import thread_count
from headwise.core.positions import Alibi
from headwise.core.shapes import (
    Array,
    Faults,
    Problem,
    Shape,
    flag,
    gradient_of,
    letters,
    problem,
    result_dtype,
)
from headwise.core.softmax import exponentials, softmax_for

Vjp = Callable[..., Any]


class AttentionGradients(NamedTuple):
    """Gradients with regard to what attention was given, each of the shape of that argument.

    Attributes
    ----------
    q, k, v : ndarray, shapes of q, k and v
        In the float type of each; float64 for integers.
    bias : ndarray, shape of bias, or None
        In its float type. None where no array was given: alibi's slopes count as constants.
    sinks : ndarray, shape (H,), or None
        In their float type. None where none were given.
    """

    q: Array
    k: Array
    v: Array
    bias: Array | None = None
    sinks: Array | None = None


# ------------------------------------------------------------------------------- bias, sinks, and shapes
class _BiasSums:
    """The gradient of a dense bias: the score's own, summed over the heads and items that share a number of it.

    A pass of its own, whose tasks are spans of queries: no two write to the same numbers.
    """

    def __init__(self, backward: Backward, wild: set[tuple[int, ...]]) -> None:
        self.backward, self.wild, p = backward, wild, backward.p
        self.shape = (*(1,) * (len(p.scores) - p.bias.ndim), *p.bias.shape)
        spans, self.one_row = backward.grid.spans(), self.shape[-2] == 1
        n_shares = min(4, len(spans)) if self.one_row else len(spans)  # with one row each has sums of its own
        self.shares = [spans[i::n_shares] for i in range(n_shares)]
        self.sums = np.zeros((n_shares if self.one_row else 1, *self.shape), p.computing)

    def size(self, share: int) -> int:
        """How much of a run a share is, in scores."""
        *lead, _, n_k = self.backward.p.scores
        return int(prod(lead) * n_k * sum(span.stop - span.start for span in self.shares[share]))

    def total(self, progress: Any) -> Array:
        workers.run(self.start, range(len(self.shares)), self.backward.grid.threads, progress, self.size)
        whole: Array = self.sums.sum(axis=0).reshape(self.backward.p.bias.shape)
        return whole

    def start(self) -> Callable[[int], None]:
        scratch = Scratch(self.backward.grid)
        return lambda share: self.add_up(scratch, share)

    def add_up(self, scratch: Scratch, share: int) -> None:
        sums, call = self.sums[share if self.one_row else 0], self.backward
        for task in call.heads():
            careful = call.careful or any(
                (*task.outer, i) in self.wild for i in range(task.shared.start, task.shared.stop)
            )
            keys = call.keys(scratch, task)
            for part in call.parts(task, self.shares[share]):
                for some, unsure in call.alike(part, keys, careful):
                    mine = keys.of(slice(some.shared.start - task.shared.start, some.shared.stop - task.shared.start))
                    steps = call.grid.steps(call.grid.lead(some), some.rows)
                    queries = call.queries(scratch, some, mine, steps, careful, unsure)
                    for tile in call.tiles(scratch, queries, mine, steps):
                        self.add(sums, queries, tile)

    def add(self, sums: Array, some: Queries, tile: Tile) -> None:
        task, d_biased = some.task, tile.d_biased
        n_grouped = task.grouped.stop - task.grouped.start
        apart = d_biased.reshape(len(d_biased), -1, n_grouped, d_biased.shape[-1])
        rows, cols = tile.strip.rows, tile.strip.cols
        for i, j in np.ndindex(apart.shape[0], n_grouped):
            flat = self.backward.grid.flat(task.outer, task.shared.start + i, task.grouped.start + j)
            lead = np.unravel_index(flat, self.backward.p.scores[:-2])
            place = tuple(at if size > 1 else 0 for at, size in zip(lead, self.shape[:-2], strict=True))
            here = sums[place]
            here = here[:, cols] if self.shape[-1] > 1 else here
            here = here if self.one_row else here[rows]
            here += _summed(apart[i, :, j], here.shape)


def _summed(x: Array, shape: Shape) -> Array:
    """x summed over the axes along which this shape was stretched to its own."""
    if x.ndim > len(shape):
        x = np.add.reduce(x, axis=tuple(range(x.ndim - len(shape))))
    stretched = tuple(i for i, (whole, own) in enumerate(zip(x.shape, shape, strict=True)) if whole != own)
    if stretched:
        x = np.add.reduce(x, axis=stretched, keepdims=True)
    return x


def _as_given(gradient: Array, x: Array) -> Array:
    """A gradient in the shape and float type of what it belongs to."""
    if not gradient.size:  # nothing was summed: there may be no query heads for the keys that there are
        return np.zeros(x.shape, result_dtype(x.dtype))
    return _summed(gradient, x.shape).astype(result_dtype(x.dtype), copy=False)


def _sinks_gradient(p: Problem, delta: Array, lse: Array, seen: Array, d_lse: Array | None) -> Array:
    """A sink takes weight from every value, and has none: ``-p_sink delta``, summed over items and queries.

    Where a query sees no key the sink is the log-sum-exp itself.
    """
    assert p.sinks is not None
    column = p.sinks[:, None] if len(p.scores) > 2 else p.sinks
    sinks = np.broadcast_to(column, lse.shape).astype(lse.dtype)
    weight, _ = exponentials(sinks[..., None], lse)
    alone = 0 if d_lse is None else d_lse
    given = np.where(sinks == -np.inf, 0, np.where(seen, -weight[..., 0] * delta, alone))
    total: Array = given.sum(axis=-1, dtype=np.float64)
    return _summed(total, p.sinks.shape) if len(p.scores) > 2 else total.reshape(p.sinks.shape)


# ------------------------------------------------------------------------------------------ one call of a vjp
class Forward(NamedTuple):
    """What a vjp remembers of the forward pass: linear in the sequence."""

    p: Problem
    keep: Keep | None
    out: Array  # (..., H, n_q, d_v), in the computing type
    lse: Array  # (..., H, n_q)
    rows: Rows
    threads: int | None
    progress: Any

    def gradients(self, d_out: Array, d_lse: Array | None) -> AttentionGradients:
        p = self.p
        grid = backward_grid(p, self.threads)
        backward = self.backward(grid, d_out, d_lse)
        dense = isinstance(p.bias, np.ndarray)
        first, second = _in_passes(self.progress, 2 if dense else 1)
        workers.run(backward.start, backward.tasks(), grid.threads, first, backward.size)
        d_q, d_k, d_v, delta = backward.sums
        *batch, n_groups, shared = grid.key_lead
        d_k, d_v = (x.reshape(*batch, n_groups, shared, *x.shape[-2:]) for x in (d_k, d_v))
        d_k, d_v = (x[..., 0, :, :] if shared == 1 else x.sum(axis=-3) for x in (d_k, d_v))
        if len(p.scores) == 2:
            d_k, d_v = d_k[0], d_v[0]
        bias = sinks = None
        if dense:
            low = replace(grid, tiling=grid.tiling._replace(height=min(2, grid.tiling.height)))
            bias = _as_given(_BiasSums(self.backward(low, d_out, d_lse), backward.wild).total(second), p.bias)
        if p.sinks is not None:
            delta, seen = (x.reshape(self.lse.shape) for x in (delta, self.rows.total != 0))
            sinks = _as_given(_sinks_gradient(p, delta, self.lse, seen, d_lse), p.sinks)
        d_q = d_q.reshape(*p.scores[:-1], d_q.shape[-1])
        return AttentionGradients(_as_given(d_q, p.q), _as_given(d_k, p.k), _as_given(d_v, p.v), bias, sinks)

    def backward(self, grid: Grid, d_out: Array, d_lse: Array | None) -> Backward:
        """A call over this grid, with room for what it sums."""
        p, axes = self.p, grid.stacking
        each, keys, computing = (*axes.outer, *axes[1:]), (*axes.outer, axes.n_shared), p.computing

        def apart(x: Array) -> Array:
            return x.reshape(*each, *x.shape[len(p.scores) - 2 :])

        rows = Rows(*(apart(x.reshape(self.lse.shape)) for x in self.rows))
        given = Given(apart(self.out), rows, apart(d_out), None if d_lse is None else apart(d_lse))
        n_q, n_k = p.scores[-2:]
        sums = Sums(
            np.empty((*each, n_q, p.q.shape[-1]), computing),
            np.zeros((*keys, n_k, p.k.shape[-1]), computing),
            np.zeros((*keys, n_k, p.v.shape[-1]), computing),
            np.zeros((*each, n_q), computing),
        )
        return Backward(grid, p, self.keep, given, sums)


def _in_passes(progress: Any, n_passes: int) -> tuple[Any, Any]:
    """What the first and the second of some equal passes call, so that progress is that of all."""
    if progress is None:
        return None, None
    return (
        lambda done, total: progress(done, n_passes * total),
        lambda done, total: progress(total + done, n_passes * total),
    )


# ------------------------------------------------------------------------------------------ public faces
def softmax_vjp(x: ArrayLike, axis: int = -1) -> tuple[Array, Vjp]:
    """Softmax, and the function that takes a gradient with regard to it back to ``x``.

    Parameters
    ----------
    x : array_like
        Scores, as for :func:`headwise.softmax`.
    axis : int
        The axis along which the result sums to 1.

    Returns
    -------
    y : ndarray, shape of x
        ``softmax(x, axis)``.
    vjp : callable
        ``vjp(d_y) -> d_x``: both of the shape of ``x``, the gradient in its float type. Where ``y`` is 0, as in slices
        that are all ``-inf``, so is the gradient, whatever ``d_y`` holds there. It may be called more than once.

    Raises
    ------
    TypeError, ValueError
        As :func:`headwise.softmax` does; ``vjp`` if ``d_y`` does not hold real numbers or is not of the shape of ``x``.

    Notes
    -----
    ``d_x = y * (d_y - sum(d_y * y))``, the sum along ``axis`` [1]_.

    References
    ----------
    .. [1] Bridle, "Training stochastic model recognition algorithms as networks can lead to maximum mutual information
       estimation of parameters", NeurIPS 1989.

    Examples
    --------
    >>> y, vjp = softmax_vjp([[0.0, 0.0], [np.log(3), 0.0]])
    >>> print(vjp([[1.0, 0.0], [1.0, 0.0]]).round(4).tolist())
    [[0.25, -0.25], [0.1875, -0.1875]]
    """
    given, dtype = softmax_for("softmax_vjp", x, axis)
    weights = given.copy()  # in the computing type, and the caller may change what they get

    def vjp(d_y: ArrayLike) -> Array:
        """The gradient with regard to x, of the number whose gradient with regard to y this is."""
        faults = Faults("softmax_vjp's vjp")
        of_y = gradient_of(faults, "d_y", d_y, "y", weights.shape)
        faults.raise_any()
        assert of_y is not None  # its absence is a fault
        with np.errstate(all="ignore"):
            moved = np.where(
                weights == 0, 0, of_y.astype(weights.dtype, copy=False)
            )  # what weighs nothing: not 0 * nan
            d_x: Array = weights * (moved - (weights * moved).sum(axis=axis, keepdims=True))
            return d_x.astype(dtype, copy=False)

    with np.errstate(all="ignore"):
        return given.astype(dtype, copy=False), vjp


def attention_vjp(
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
    """Attention, and the function that takes a gradient with regard to it back to its arguments.

    Both passes take memory linear in the sequence, and leave out the tiles that the mask rules out.

    Parameters
    ----------
    q, k, v, mask, causal, bias, scale, softcap, sinks, dropout, rng, return_lse, threads, progress
        As for :func:`headwise.attention`; threads and progress hold for every call of ``vjp`` too. The arrays are not
        copied, and must not change until ``vjp`` is called for the last time; results may.

    Returns
    -------
    out : ndarray, shape (..., H, n_q, d_v)
        As of :func:`headwise.attention`.
    lse : ndarray, shape (..., H, n_q)
        As there. Only with ``return_lse``.
    vjp : callable
        ``vjp(d_out, d_lse=None) -> AttentionGradients``: of the number whose gradients with regard to ``out`` and
        ``lse`` these are, the gradients with regard to ``q``, ``k``, ``v``, ``bias`` and ``sinks``, each of the shape
        of that argument (summed where it was stretched or shared). It may be called more than once. Where
        only ``lse`` is used ``d_out`` is zeros.

    Raises
    ------
    TypeError, ValueError
        As :func:`headwise.attention` does; ``vjp`` if ``d_out`` or ``d_lse`` does not hold real numbers or is not of
        the shape of what it belongs to.

    Notes
    -----
    With p the weights, g = d_out and delta the row sums of g * out, a score has the gradient ``p (g v^T - delta)``, as
    softmax gives it; q, k and v follow by products with it [1]_. Weights are made again, tile by tile, from each row's
    softmax, as the forward pass made them. docs/gradients.md derives it all.

    A query that may attend to nothing has gradient 0 and adds nothing to others, whatever it or ``d_out`` holds there;
    so have a key and a value that no query may attend to. The result is the same for any number of threads, to the bit.

    References
    ----------
    .. [1] Dao et al., "FlashAttention", NeurIPS 2022, appendix B.2; Rabe, Staats, "Self-attention does not need O(n^2)
       memory", arXiv:2112.05682.

    Examples
    --------
    >>> q, k, v = [[1.0]], [[0.0], [np.log(2)], [np.log(3)]], [[6.0], [12.0], [18.0]]
    >>> out, vjp = attention_vjp(q, k, v)
    >>> gradients = vjp(np.ones((1, 1)))
    >>> print(out.round(4), gradients.k.round(4).tolist(), gradients.v.round(4).tolist())
    [[14.]] [[-1.3333], [-0.6667], [2.0]] [[0.1667], [0.3333], [0.5]]
    """
    faults = Faults("attention_vjp")
    threads, progress = thread_count(faults, threads), callable_or_none(faults, progress)
    return_lse = flag(faults, "return_lse", return_lse)
    p = problem("attention_vjp", q, k, v, mask, causal, bias, scale, softcap, sinks, dropout, rng, faults)
    keep = keep_of(p)
    forward = Forward(p, keep, *remembered(grid_of(p, threads, few=False), p, keep, progress), threads, progress)
    # copies: users add to what they get in place
    with np.errstate(all="ignore"):
        out, lse, axes = forward.out.astype(p.dtype), forward.lse.copy(), letters(p.scores)

    def vjp(d_out: ArrayLike, d_lse: ArrayLike | None = None) -> AttentionGradients:
        """Gradients with regard to q, k, v, bias and sinks of the number whose gradients these are."""
        faults = Faults("attention_vjp's vjp")
        of_out = gradient_of(faults, "d_out", d_out, "out", forward.out.shape, axes.replace("n_k", "d_v"))
        of_lse = (
            None
            if d_lse is None
            else gradient_of(faults, "d_lse", d_lse, "lse", forward.lse.shape, axes.replace(", n_k", ""))
        )
        faults.raise_any()
        assert of_out is not None  # its absence is a fault
        with np.errstate(all="ignore"):
            return forward.gradients(of_out, of_lse)

    return (out, lse, vjp) if return_lse else (out, vjp)
