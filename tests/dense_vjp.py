"""Gradients of attention by the formulas, dense, in float64: what the engine's are held to, and how close is equal.

Nothing is left out and nothing is clever: every sum over keys or queries is written out with who may attend to whom, so
that what is hidden adds nothing, not even ``0 * nan``. Heads that share keys, and axes that were stretched, are summed
at the end.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import pytest
from closeness import assert_within
from definition import bounds, per_head

import headwise as hw
from headwise.core import backward, grid
from headwise.core.dropout import Keep

NAMES = ("q", "k", "v", "bias", "sinks")


def assert_as_wanted(got: Any, q: Any, k: Any, v: Any, mask: Any, *, computing: Any, **call: Any) -> None:
    """Of the shape and float type of each argument, and as close as rows of scores allow."""
    wanted = dense_vjp(q, k, v, mask, **call)
    allowed = allowed_errors(q, k, v, mask, eps=float(np.finfo(computing).eps), **call)
    arrays = {"q": q, "k": k, "v": v, "bias": call.get("bias"), "sinks": call.get("sinks")}
    for name, gradient in zip(NAMES, got, strict=True):
        if wanted[name] is None:
            assert gradient is None
            continue
        dtype = np.asarray(arrays[name]).dtype
        dtype = np.dtype(np.float64) if dtype.kind in "biu" else dtype.newbyteorder("=")
        assert gradient.flags.writeable
        largest = float(ml_dtypes.finfo(dtype).max)
        fits = ~(np.abs(wanted[name]) + allowed[name] > largest)  # else it may be infinite
        # a sum that is too small for the computing type, or rounded to a narrower one
        bound = allowed[name] + 100 * float(np.finfo(computing).tiny)
        if 2 < dtype.itemsize < computing.itemsize:
            bound += np.abs(np.where(fits, wanted[name], 0)) * 2.0**-24 + 2.0**-149
        assert_within(
            np.where(fits, gradient, np.zeros((), gradient.dtype)).astype(dtype),
            np.where(fits, wanted[name], 0),
            bound,
            dtype,
        )


@contextmanager
def in_tiles(rows: int, cols: int, height: int = 1, shares: int = 1, alone: bool = False) -> Iterator[None]:
    """Tiles of this size, and so many shares of a head's queries; ``alone``: no heads together in one."""

    def sizes(p: Any, _: Any) -> grid.Tiling:
        n_q, n_k = p.scores[-2:]
        few = max(1, min(rows, n_q))
        return grid.Tiling(few, max(1, min(cols, n_k)), max(1, min(height, n_q // few)))

    def few(_: Any, some: grid.Grid) -> int:
        return min(shares, max(1, len(some.spans())))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(grid, "backward_tiling", sizes)
        patch.setattr(backward, "_shares", few)
        if alone:
            patch.setattr(grid, "_SCORES", 1)
        yield


class Pairs(NamedTuple):
    """Everything about pairs of query and key, (..., H, n_q, n_k), and about queries."""

    steps: Any
    visible: Any
    factors: Any  # what dropout multiplies the weights by
    d_out: Any  # (..., H, n_q, d_v), 0 for a query that sees nothing
    d_lse: Any  # (..., H, n_q), likewise
    d_lse_alone: Any  # (..., H, n_q), of those that see nothing
    q: Any  # (..., H, n, d), every head's own
    k: Any
    v: Any
    scale: float


def dense_vjp(q: Any, k: Any, v: Any, mask: Any = None, *, d_out: Any, d_lse: Any = None, **options: Any) -> Any:
    """The gradients of ``sum(out * d_out) + sum(lse * d_lse)`` with regard to q, k, v, bias and sinks, by name."""
    return _gradients(_pairs(q, k, v, mask, d_out, d_lse, options), (q, k, v), options)


def allowed_errors(
    q: Any, k: Any, v: Any, mask: Any = None, *, d_out: Any, d_lse: Any = None, eps: float, **options: Any
) -> Any:
    """How far off each of them may be: the same sums, of the sizes of what is added.

    A weight is as good as its row of scores is, ``8 eps (1 + scale_bound + max|bias| + log n_k)``; so is a row of the
    output, compared with the largest value. Twice that, for the products that come after.
    """
    p = _pairs(q, k, v, mask, d_out, d_lse, options)
    wide = [np.asarray(x).astype(np.float64) for x in (q, k, v)]
    row, reach = bounds(p.steps, *wide, eps=eps, **{n: x for n, x in options.items() if n not in ("causal", "dropout")})
    with np.errstate(all="ignore"):
        capped = np.where(p.visible & np.isfinite(p.steps.capped), np.abs(p.steps.capped), 0).max(axis=-1, initial=0)
        row = row + 8 * eps * capped  # of an infinite query too
        size = np.nan_to_num(np.abs(p.d_out), nan=0, posinf=0)
        most = size.sum(axis=-1) * reach[..., 0] * p.factors.max(axis=-1, initial=1) + np.abs(p.d_lse)
        floor = 1e-25 if eps > 1e-10 else 1e-255  # below it no weight is told from another
        weights = np.nan_to_num(p.steps.weights) * 2 * row[..., None] + floor
        weights = np.where(p.visible, np.where(row[..., None] > 0.05, 1, weights), 0)  # where nothing is sure
        pair = size @ np.nan_to_num(np.abs(p.v), nan=0, posinf=0).swapaxes(-1, -2) * p.factors + most[..., None]
        p = p._replace(d_lse_alone=2 * row * p.d_lse_alone)
        of_v, of_scores = weights * p.factors, weights * pair
        return _summed_all(p, (q, k, v), options, of_v, of_scores, of_scores, 2 * row * most, np.abs)


def _pairs(q: Any, k: Any, v: Any, mask: Any, d_out: Any, d_lse: Any, options: dict[str, Any]) -> Pairs:
    q, k, v, d_out = (np.asarray(x).astype(np.float64) for x in (q, k, v, d_out))
    scale, nothing = options.get("scale"), [np.zeros_like(x) for x in (q, k, v)]
    with np.errstate(all="ignore"):
        steps = hw.attention_steps(q, k, v, mask, **options)
        only = {name: options[name] for name in ("causal", "bias") if name in options}
        visible = ~np.isneginf(hw.attention_steps(*nothing, mask, **only).masked)
    visible &= ~np.isneginf(steps.masked).all(axis=-1, keepdims=True)  # scores of -inf alone are as good as none
    seen = visible.any(axis=-1)
    return Pairs(
        steps,
        visible,
        _dropout_factors(visible.shape, options.get("dropout", 0.0), options.get("rng")),
        np.where(seen[..., None], d_out, 0),
        np.where(seen, 0 if d_lse is None else d_lse, 0),
        np.where(seen, 0, 0 if d_lse is None else d_lse),
        *(per_head(x, visible.shape) for x in (q, k, v)),
        1 / np.sqrt(max(1, q.shape[-1])) if scale is None else scale,
    )


def _gradients(p: Pairs, qkv: Any, options: dict[str, Any]) -> dict[str, Any]:
    cap = options.get("softcap")
    with np.errstate(all="ignore"):
        d_weights = np.where(p.factors > 0, p.d_out @ p.v.swapaxes(-1, -2) * p.factors, 0)
        delta = np.where(p.visible.any(axis=-1), (p.d_out * p.steps.out).sum(axis=-1), 0) - p.d_lse
        d_biased = np.where(p.visible, p.steps.weights * (d_weights - delta[..., None]), 0)
        slope = 1.0 if cap is None else 1 - np.tanh(p.steps.scores / cap) ** 2
        d_scores = np.where(p.visible, d_biased * slope, 0)
        return _summed_all(p, qkv, options, p.steps.weights * p.factors, d_biased, d_scores, -delta, lambda x: x)


def _summed_all(
    p: Pairs, qkv: Any, options: dict[str, Any], weights: Any, d_biased: Any, d_scores: Any, of_sinks: Any, size: Any
) -> dict[str, Any]:
    """From what belongs to pairs to what belongs to the arguments."""
    seeing, shape = p.visible.swapaxes(-1, -2), p.visible.shape
    sums = {
        "q": _sum(d_scores, size(p.k), p.visible) * size(p.scale),
        "k": _sum(d_scores.swapaxes(-1, -2), size(p.q), seeing) * size(p.scale),
        "v": _sum(weights.swapaxes(-1, -2), size(p.d_out), seeing),
    }
    done = {name: _as_given(sums[name], np.shape(x), shape) for name, x in zip("qkv", qkv, strict=True)}
    bias, sinks = options.get("bias"), options.get("sinks")
    dense = bias is not None and not isinstance(bias, hw.core.positions.Alibi)
    done["bias"] = _as_given(d_biased, np.shape(bias), shape) if dense else None
    done["sinks"] = None
    if sinks is not None:
        sinks = np.asarray(sinks, np.float64)
        column = np.broadcast_to(sinks[:, None] if len(shape) > 2 else sinks, p.steps.lse.shape)
        seen = p.visible.any(axis=-1)  # without a key the sink is the log-sum-exp
        given = np.where(seen, np.exp(column - p.steps.lse) * of_sinks, size(p.d_lse_alone))
        per_head_sum = np.where(np.isneginf(column), 0, given).sum(axis=-1)
        done["sinks"] = per_head_sum.sum(axis=tuple(range(per_head_sum.ndim - 1))).reshape(sinks.shape)
    return done


def _dropout_factors(scores: Any, dropout: float, rng: Any) -> Any:
    if not dropout:
        return np.ones(scores)
    keep = Keep(dropout, np.random.default_rng(rng))
    return keep.dense(scores) / (keep.kept or 1)


def _sum(weights: Any, x: Any, visible: Any) -> Any:
    """``weights @ x`` over pairs that are visible."""
    products = np.where(visible[..., None], weights[..., None] * x[..., None, :, :], 0)
    return products.sum(axis=-2)


def _as_given(gradient: Any, shape: Any, scores: Any) -> Any:
    """Summed over the heads that share one of its, and over the axes along which the input was stretched."""
    if len(scores) > 3 and len(shape) > 2 and shape[-3] not in (1, scores[-3]):
        *lead, n_heads, n, d = gradient.shape
        gradient = gradient.reshape(*lead, shape[-3], n_heads // shape[-3] if shape[-3] else 1, n, d).sum(axis=-3)
    gradient = gradient.sum(axis=tuple(range(gradient.ndim - len(shape))))
    stretched = tuple(i for i, (a, b) in enumerate(zip(gradient.shape, shape, strict=True)) if a != b)
    return gradient.sum(axis=stretched, keepdims=True) if stretched else gradient
