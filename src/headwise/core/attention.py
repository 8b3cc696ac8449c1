"""The definition: scaled dot-product attention, dense, one page, the oracle for everything else.

``softmax(q k^T / sqrt(d_k)) v``, with every rule about masks, caps, biases, sinks and dropout in its place. It knows
nothing of tiles, threads or speed.
"""

from __future__ import annotations  # numpy.random is loaded when it is used, not when it is named

from functools import reduce
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from headwise.core.describe import Line, describe
from headwise.core.dropout import Keep
from headwise.core.masks import Mask, as_mask
from headwise.core.masks import causal as causal_rule
from headwise.core.positions import Alibi
from headwise.core.shapes import Array, Problem, letters, problem, product_dtype
from headwise.core.softmax import softmax_and_lse, weighted_sum


class AttentionSteps(NamedTuple):
    """Every intermediate of attention, in the order in which it is computed. Print it.

    Attributes
    ----------
    scores : ndarray, shape (..., H, n_q, n_k)
        ``q k^T * scale``.
    capped : ndarray, shape (..., H, n_q, n_k)
        ``c tanh(scores / c)``; the scores themselves without softcap.
    biased : ndarray, shape (..., H, n_q, n_k)
        ``capped + bias``; what came before without bias.
    masked : ndarray, shape (..., H, n_q, n_k)
        ``-inf`` where a query may not attend, by mask, causal or ``-inf`` in the bias; else what came before.
    weights : ndarray, shape (..., H, n_q, n_k)
        Softmax over the keys, before dropout.
    out : ndarray, shape (..., H, n_q, d_v)
        Weights, after dropout, times v.
    lse : ndarray, shape (..., H, n_q)
        Natural logarithm of the softmax's denominator, sinks included.
    """

    scores: Array  # (..., H, n_q, n_k)  q k^T * scale
    capped: Array  # (..., H, n_q, n_k)  c tanh(scores / c)
    biased: Array  # (..., H, n_q, n_k)  + bias
    masked: Array  # (..., H, n_q, n_k)  -inf where a query may not attend
    weights: Array  # (..., H, n_q, n_k)  softmax over the keys; before dropout
    out: Array  # (..., H, n_q, d_v)  weights v
    lse: Array  # (..., H, n_q)  log of the softmax's denominator

    def __repr__(self) -> str:
        return _describe(self)


def _attention(p: Problem) -> AttentionSteps:
    """The arithmetic."""
    q, k, v = (array.astype(p.computing, copy=False) for array in (p.q, p.k, p.v))
    visible = _visible(p)  # (..., H, n_q, n_k), True = may attend; None = everything

    scores = _scaled(q, np.swapaxes(k, -1, -2), p.scale)  # (..., H, n_q, n_k)
    scores = np.broadcast_to(scores, p.scores)  # and so up to the weights: v may bring axes of its own
    capped = scores if p.softcap is None else p.softcap * np.tanh(scores / p.softcap)  # (..., H, n_q, n_k)
    biased = capped if p.bias is None else capped + _dense_bias(p)  # (..., H, n_q, n_k)
    masked = biased if visible is None else np.where(visible, biased, -np.inf)  # (..., H, n_q, n_k)

    if p.sinks is None:
        weights, lse = softmax_and_lse(masked)  # (..., H, n_q, n_k), (..., H, n_q)
    else:  # one more score a row, whose weight is thrown away
        sink = np.broadcast_to(_per_head_column(p), (*p.scores[:-1], 1))  # (..., H, n_q, 1)
        with_sink = np.concatenate([masked, sink], axis=-1)  # (..., H, n_q, n_k + 1)
        with_last, lse = softmax_and_lse(with_sink)
        weights = with_last[..., :-1]

    kept = weights if p.dropout == 0 else _dropped(weights, p)  # (..., H, n_q, n_k)
    out = weighted_sum(kept, v, visible, _per_head)  # (..., H, n_q, d_v)
    return AttentionSteps(scores, capped, biased, masked, _cast(weights, p), _cast(out, p), lse)


def _scaled(q: Array, k_t: Array, scale: float) -> Array:
    """``q k^T * scale``: the scale goes where it cannot make a finite score overflow on the way.

    One so far from 1 that float32 would lose digits on the way is applied in float64.
    """
    wide = product_dtype(q.dtype, scale)
    if wide != q.dtype:
        return _scaled(q.astype(wide), k_t.astype(wide), scale).astype(q.dtype)
    factor = q.dtype.type(scale)
    return _per_head(q * factor, k_t) if abs(scale) <= 1 else np.multiply(_per_head(q, k_t), factor)


def _per_head(a: Array, b: Array) -> Array:
    """``a @ b``, where head h of the H in ``a`` meets head ``h // (H // G)`` of the G in ``b``; nothing is copied."""
    n_heads, n_groups = (array.shape[-3] if array.ndim > 2 else 1 for array in (a, b))
    product: Array
    if n_groups in (1, n_heads) or n_heads == 1:
        product = a @ b
        return product
    grouped = a.reshape(*a.shape[:-3], n_groups, n_heads // n_groups, *a.shape[-2:])  # (..., G, H/G, n, d)
    product = grouped @ b[..., None, :, :]
    return product.reshape(*product.shape[:-4], n_heads, *product.shape[-2:])


def _visible(p: Problem) -> Array | None:
    """Where mask, causal and ``-inf`` in the bias all let a query attend."""
    parts = [as_mask(p.mask).dense(p.scores)] if p.mask is not None else []
    parts += [causal_rule().dense(p.scores)] if p.causal else []
    hidden = None if p.bias is None else _dense_bias(p) == -np.inf
    parts += [] if hidden is None or not hidden.any() else [np.broadcast_to(~hidden, p.scores)]
    return reduce(np.logical_and, parts) if parts else None


def _dense_bias(p: Problem) -> Array:
    dense = p.bias if isinstance(p.bias, np.ndarray) else p.bias.dense(p.scores)
    return np.asarray(dense, p.computing)


def _per_head_column(p: Problem) -> Array:
    sinks = np.asarray(p.sinks, p.computing)
    return sinks[:, None, None] if len(p.scores) > 2 else sinks[:, None]


def _dropped(weights: Array, p: Problem) -> Array:
    assert p.rng is not None  # its absence is a fault
    keep = Keep(p.dropout, p.rng)
    # where p = 1 nothing is kept, and there is nothing to divide by
    kept: Array = weights * keep.dense(p.scores) / weights.dtype.type(keep.kept or 1)
    return kept


def _cast(array: Array, p: Problem) -> Array:
    return array.astype(p.dtype, copy=False)


# ------------------------------------------------------------------------------------------ public faces
def attention_steps(
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
) -> AttentionSteps:
    """Scaled dot-product attention with every intermediate; print the result to see names, letters and shapes.

    Parameters
    ----------
    q, k, v, mask, causal, bias, scale, softcap, sinks, dropout, rng
        As for :func:`scaled_dot_product_attention`.

    Returns
    -------
    AttentionSteps
        ``scores``, ``capped``, ``biased``, ``masked``, ``weights`` (..., H, n_q, n_k), ``out`` (..., H, n_q, d_v) and
        ``lse`` (..., H, n_q), the natural logarithm of the softmax's denominator, sinks included. A step that was not
        asked for is the array before it. ``weights`` and ``out`` have the float type of q, k and v, the others the
        computing type. Some are read-only views.

    Raises
    ------
    TypeError, ValueError
        As :func:`scaled_dot_product_attention` does.

    Examples
    --------
    >>> steps = attention_steps([[1.0, 0.0]], [[1.0, 0.0], [0.0, 1.0]], [[6.0], [12.0]])
    >>> print(steps)
    scores   (n_q, n_k) = (1, 2)  q k^T / sqrt(d_k), or * scale
               [[0.707, 0.000]]
    capped   (n_q, n_k) = (1, 2)  as scores: no softcap
    biased   (n_q, n_k) = (1, 2)  as capped: no bias
    masked   (n_q, n_k) = (1, 2)  as biased: no mask
    weights  (n_q, n_k) = (1, 2)  softmax over the keys: rows sum to 1
               [[0.670, 0.330]]
    out      (n_q, d_v) = (1, 1)  weights v, after dropout if there is any
               [[7.981]]
    lse      (n_q) = (1,)         log of the softmax's denominator
               [1.108]
    """
    p = problem("attention_steps", q, k, v, mask, causal, bias, scale, softcap, sinks, dropout, rng)
    with np.errstate(all="ignore"):
        return _attention(p)


def scaled_dot_product_attention(
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
) -> tuple[Array, Array]:
    """Scaled dot-product attention by its definition: ``softmax(q k^T / sqrt(d_k)) v``.

    Parameters
    ----------
    q : array_like, shape (..., H, n_q, d_k)
        Queries. Two axes are enough: ``(n_q, d_k)``. Any leading axes that broadcast will do.
    k : array_like, shape (..., G, n_k, d_k)
        Keys. With four axes or more, G may divide H: query head h reads key head ``h // (H // G)``.
    v : array_like, shape (..., G, n_k, d_v)
        Values; ``d_v`` may differ from ``d_k``.
    mask : array_like of bool, broadcasting to (..., H, n_q, n_k), or Mask, optional
        True = may attend. See :mod:`headwise.masks`.
    causal : bool
        Query i sees key j when ``j <= i + n_k - n_q``; intersects with ``mask``.
    bias : array_like of float, broadcasting to (..., H, n_q, n_k), or :func:`headwise.alibi`, optional
        Added to the scores; ``-inf`` masks.
    scale : float, optional
        Multiplies the scores. By default ``1/sqrt(d_k)``; any finite number is taken as it is.
    softcap : float, optional
        ``c tanh(scores / c)``, before bias and mask.
    sinks : array_like, shape (H,), optional
        Logits that count in the denominator only.
    dropout : float
        Probability with which a weight is dropped; kept ones are divided by the probability of being kept.
    rng : int or numpy.random.Generator, optional
        Seed or source of the dropout, needed where ``dropout > 0``. One number is drawn.

    Returns
    -------
    out : ndarray, shape (..., H, n_q, d_v)
        0 for a query that may attend to nothing. In the float type of q, k and v together; float16 and bfloat16 are
        computed in float32, integers and bool count as float64.
    weights : ndarray, shape (..., H, n_q, n_k)
        What each query gives to each key, before dropout; a row sums to 1 (less with sinks, 0 without keys, NaN
        where a visible score is NaN or ``+inf``).

    Raises
    ------
    TypeError
        If an argument is of the wrong kind: complex, object or masked arrays, a mask that is not bool.
    ValueError
        If shapes or numbers do not fit. Everything that does not fit is named at once.

    Notes
    -----
    Order: scale, softcap, bias, mask, softmax (with sinks), dropout, times v [1]_. NaN and inf behind a mask, in keys
    or values, never reach the output; a visible one does, in its own rows.

    References
    ----------
    .. [1] Vaswani et al., "Attention Is All You Need", NeurIPS 2017, section 3.2.1, equation 1.

    Examples
    --------
    >>> q, k, v = [[1.0, 0.0]], [[1.0, 0.0], [0.0, 1.0]], [[6.0], [12.0]]
    >>> out, weights = scaled_dot_product_attention(q, k, v)
    >>> print(weights.round(4), out.round(4))
    [[0.6698 0.3302]] [[7.9814]]
    """
    p = problem("scaled_dot_product_attention", q, k, v, mask, causal, bias, scale, softcap, sinks, dropout, rng)
    with np.errstate(all="ignore"):
        steps = _attention(p)
    return steps.out, steps.weights


# ------------------------------------------------------------------------------------------- the print
def _describe(steps: AttentionSteps) -> str:
    scores = letters(steps.scores.shape)
    capped = "as scores: no softcap" if steps.capped is steps.scores else "c tanh(scores / c)"
    biased = "as capped: no bias" if steps.biased is steps.capped else "capped + bias"
    masked = "as biased: no mask" if steps.masked is steps.biased else "-inf where masked"
    return describe(
        [
            Line("scores", scores, steps.scores, "q k^T / sqrt(d_k), or * scale"),
            Line("capped", scores, steps.capped, capped),
            Line("biased", scores, steps.biased, biased),
            Line("masked", scores, steps.masked, masked),
            Line("weights", scores, steps.weights, f"softmax over the keys: {_row_sums(steps.weights, steps.lse)}"),
            Line("out", scores.replace("n_k", "d_v"), steps.out, "weights v, after dropout if there is any"),
            Line("lse", scores.replace(", n_k", ""), steps.lse, "log of the softmax's denominator", own_axes=1),
        ]
    )


def _row_sums(weights: Array, lse: Array) -> str:
    sums = weights.astype(np.float64).sum(axis=-1)
    if not sums.size:
        return "no rows"
    if not np.isfinite(sums).all():
        return "some rows NaN"
    tolerance = 1e-2 if weights.dtype.itemsize == 2 else 1e-5
    whole = np.isclose(sums, 1, rtol=0, atol=tolerance)
    if whole.all():
        return "rows sum to 1"
    if (whole | (np.isneginf(lse) & (sums == 0))).all():
        return "rows sum to 1, or to 0 where no key is seen"
    return f"rows sum to {sums.min():.3g} to {sums.max():.3g}, the rest is the sinks'"
