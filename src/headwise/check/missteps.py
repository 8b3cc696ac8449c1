"""The steps of attention done wrong, and the traces of what no value shows.

Knows what stands in for a step; not what that is called, nor how it is told from others.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from headwise.check.answers import Parts, Sizes, attend, hide
from headwise.check.calls import Call, Result, same
from headwise.core.shapes import Array


def plain_softmax(x: Array, axis: Any) -> Array:
    """As often written: a row of -inf is NaN."""
    e = np.exp(x - x.max(axis=axis, keepdims=True))
    return np.asarray(e / e.sum(axis=axis, keepdims=True))


def no_max(x: Array, axis: Any) -> Array:
    e = np.exp(x)
    return np.asarray(e / e.sum(axis=axis, keepdims=True))


def with_epsilon(eps: float) -> Callable[[Array, Any], Array]:
    def softmax(x: Array, axis: Any) -> Array:
        e = np.exp(x - x.max(axis=axis, keepdims=True))
        return np.asarray(e / (e.sum(axis=axis, keepdims=True) + eps))

    return softmax


def clipped(most: float) -> Callable[[Array, Any], Array]:
    """Overflow kept away by a limit, in the place of the maximum."""

    def softmax(x: Array, axis: Any) -> Array:
        return no_max(np.clip(x, -most, most), axis)

    return softmax


def clipped_scores(most: float) -> Callable[[Parts, Array, Array | None], Array]:
    return lambda p, scores, mask: p.softmax(hide(p, np.clip(scores, -most, most), mask), -1)


def clipped_below(most: float) -> Callable[[Parts, Array, Array | None], Array]:
    return lambda p, scores, mask: p.softmax(np.clip(hide(p, scores, mask), -most, most), -1)


def nan_as_0(softmax: Callable[[Array, Any], Array]) -> Callable[[Array, Any], Array]:
    return lambda x, axis: np.nan_to_num(softmax(x, axis))


def one_max(x: Array, axis: Any) -> Array:
    e = np.exp(x - x.max())
    return np.asarray(e / e.sum(axis=axis, keepdims=True))


def max_from_0(x: Array, axis: Any) -> Array:
    """The largest number so far, which was 0 before the first."""
    return no_max(x - np.maximum(0, x.max(axis=axis, keepdims=True)), axis)


def sum_of_last(x: Array, axis: Any) -> Array:
    e = np.exp(x - x.max(axis=axis, keepdims=True))
    return np.asarray(e / e.sum(axis=axis))


def sum_of_all(x: Array, axis: Any) -> Array:
    e = np.exp(x - x.max(axis=axis, keepdims=True))
    return np.asarray(e / e.sum())


def along(axis: int) -> Callable[[Array, Any], Array]:
    """The library's, along this axis whatever is asked."""
    return lambda x, _: Parts().softmax(x, axis)


def not_normalised(x: Array, axis: Any) -> Array:
    return np.asarray(np.exp(x - x.max(axis=axis, keepdims=True)))


def folded(p: Parts, q: Array, k: Array, v: Array, mask: Array | None, d_model: int) -> tuple[Array, Array]:
    """All items as one long sequence."""
    lead, (n_q, n_k) = q.shape[0] if q.ndim > 2 else 1, (q.shape[-2], k.shape[-2])
    if lead == 1:
        return attend(p, q, k, v, mask, d_model)
    q, k, v = (items_in_a_row(x) for x in (q, k, v))
    if mask is not None:
        mask = np.tile(np.broadcast_to(mask, (*mask.shape[:-2], n_q, n_k)) if mask.ndim < 3 else mask[0], (lead, lead))
    out, weights = attend(p, q, k, v, mask, d_model)
    return np.moveaxis(out.reshape(*out.shape[:-2], lead, n_q, -1), -3, 0), weights


def items_in_a_row(x: Array) -> Array:
    moved = np.moveaxis(x, 0, -3)  # (..., B, n, d)
    return moved.reshape(*moved.shape[:-3], -1, x.shape[-1])


def with_scores(p: Parts, q: Array, k: Array, v: Array, mask: Array | None, d_model: int) -> tuple[Array, Array]:
    out, _ = attend(p, q, k, v, mask, d_model)
    q, k, v = p.inputs(q, k, v)
    return out, hide(p, p.scores(q, k) * p.scale(Sizes(q.shape, k.shape, v.shape, d_model)), mask)


def zero_hidden(p: Parts, scores: Array, mask: Array | None) -> Array:
    left = scores if mask is None else scores * mask
    return p.softmax(left if mask is None else np.where(left == 0, p.hidden, left), -1)


def fixed(d: int) -> Callable[[Sizes], float]:
    return lambda n: d**-0.5


def turned(mask: Array) -> Array:
    return np.swapaxes(mask, -1, -2) if mask.ndim > 1 else mask[:, None]


def mean_of_heads(heads: Array) -> Array:
    return np.concatenate([heads.mean(axis=-3)] * heads.shape[-3], axis=-1)


def straight(x: Array, n_heads: int) -> Array:
    return x.reshape(*x.shape[:-2], n_heads, x.shape[-2], -1)


def straight_back(heads: Array) -> Array:
    *lead, n_heads, n, d_head = heads.shape
    return heads.reshape(*lead, n, n_heads * d_head)


def tokens_first(x: Array, n_heads: int) -> Array:
    return x.reshape(*x.shape[:-1], n_heads, -1)


def side_by_side(heads: Array) -> Array:
    return heads.reshape(*heads.shape[:-2], -1)


def every_nth(x: Array, n_heads: int) -> Array:
    return np.moveaxis(x.reshape(*x.shape[:-1], -1, n_heads), -1, -3)


def woven(heads: Array) -> Array:
    moved = np.moveaxis(heads, -3, -1)
    return moved.reshape(*moved.shape[:-2], -1)


def triangle(k: int) -> Callable[[int], Array]:
    return lambda n: np.tril(np.ones((n, n), bool), k)


def additive(fill: float) -> Callable[[int], Array]:
    return lambda n: np.where(np.tril(np.ones((n, n), bool)), 0.0, fill)


def over(axis: Any) -> Callable[[Parts, Array, Array | None], Array]:
    return lambda p, scores, mask: p.softmax(hide(p, scores, mask), axis)


def all_axes(p: Parts, scores: Array, mask: Array | None) -> Array:
    return p.softmax(hide(p, scores, mask), tuple(range(scores.ndim)))


def sum_of_matrix(p: Parts, scores: Array, mask: Array | None) -> Array:
    scores = hide(p, scores, mask)
    e = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return np.asarray(e / e.sum(axis=(-2, -1), keepdims=True))


def times(weights: Array, mask: Array | None) -> Array:
    return weights if mask is None else weights * mask


def if_masked(scores: Array, mask: Array | None, change: Callable[[Array, Array], Array]) -> Array:
    return scores if mask is None else change(scores, mask)


# --------------------------------------------------------------------------------------- what no values show
def asked_for_truth(call: Call, result: Result, expected: Result) -> bool:
    masked = "mask" in call.args or bool(call.args.get("causal"))
    return masked and "truth value of an array" in result.error


def wrote_to_input(call: Call, result: Result, expected: Result) -> bool:
    return bool(set(result.changed) & set(call.args) - {"mask"})


def wrote_to_result(call: Call, result: Result, expected: Result) -> bool:
    return bool(set(result.changed) - set(call.args))


def wrote_to_mask(call: Call, result: Result, expected: Result) -> bool:
    return "mask" in result.changed


_FAR = 30  # beyond it a number that is rounded moves much


def rounded(dtype: type[np.floating[Any]]) -> Callable[[Call, Result, Result], bool]:
    """Whether a result is off by no more than a precision costs."""

    def close(got: Array | None, wanted: Array | None) -> bool:
        if got is None or wanted is None or got.shape != wanted.shape or got.dtype.kind != "f":
            return False
        most = 8 * float(np.finfo(dtype).eps) * np.abs(wanted).max(initial=0, where=np.isfinite(wanted))
        return np.allclose(got.astype(np.float64), wanted, rtol=0, atol=most)

    def detect(call: Call, result: Result, expected: Result) -> bool:
        if is_far(call):  # no evidence, unless it is no number
            return expected.out is None or (result.out is not None and _no_less_finite(result.out, expected.out))
        shown = result.weights is None or expected.weights is None or close(result.weights, expected.weights)
        return shown and close(result.out, expected.out)

    return detect


def trace_of(dtype: type[np.floating[Any]]) -> Callable[[Call, Result, Result], bool | None]:
    """Whether a result is off by about what a precision costs; None where it costs nothing."""

    def trace(call: Call, result: Result, expected: Result) -> bool | None:
        wanted, got = expected.out, result.out
        if wanted is None or got is None or got.shape != wanted.shape or is_far(call):
            return None
        there, weights = np.isfinite(wanted), wanted if expected.weights is None else expected.weights
        cost = np.abs(wanted.astype(dtype) - wanted)[there].max(initial=0)
        if cost < 1e-12 or np.abs(weights.astype(dtype) - weights).max(initial=0) < 1e-12:
            return None
        return bool(np.abs(got.astype(np.float64) - wanted)[there].max(initial=0) > cost / 32)

    return trace


def in_type(dtype: type[np.floating[Any]]) -> Callable[[Call, Result, Result], bool]:
    """Whether out or the weights hold numbers of a short type only, where what is right does not."""

    def held(call: Call, result: Result, expected: Result) -> bool:
        pairs = (result.out, expected.out), (result.weights, expected.weights)
        return any(_are(got, dtype) and not _are(wanted, dtype) for got, wanted in pairs)

    return held


def _are(x: Array | None, dtype: type[np.floating[Any]]) -> bool:
    """Whether rounding to a type changes nothing."""
    with np.errstate(all="ignore"):
        return x is not None and np.array_equal(x, x.astype(dtype), equal_nan=x.dtype.kind == "f")


def _no_less_finite(got: Array, wanted: Array) -> bool:
    return got.shape == wanted.shape and bool((np.isfinite(got) | ~np.isfinite(wanted)).all())


def is_far(call: Call) -> bool:
    """Whether numbers are so large that rounding one moves much."""
    return any(np.ndim(value) and np.abs(value).max(initial=0) > _FAR for value in call.args.values())


def to_decimals(call: Call, result: Result, expected: Result) -> bool:
    """Whether out or the weights are near, and have a few decimals."""
    pairs = [(result.out, expected.out), (result.weights, expected.weights)]
    return any(_has_decimals(got) and _near(got, wanted) for got, wanted in pairs)


def trace_of_decimals(call: Call, result: Result, expected: Result) -> bool | None:
    """Whether they have where what is right has not; None where it has."""
    if expected.out is None or _has_decimals(expected.out) or _has_decimals(expected.weights):
        return None
    return to_decimals(call, result, expected)


def _has_decimals(x: Array | None) -> bool:
    return x is not None and any(np.allclose(x, np.round(x, n), rtol=0, atol=1e-15) for n in range(1, 9))


def _near(got: Array | None, wanted: Array | None) -> bool:
    return got is not None and wanted is not None and got.shape == wanted.shape and np.allclose(got, wanted, 0, 0.05)


def one_seed(call: Call, result: Result, expected: Result) -> bool:
    first, *others = result.params.values() or [np.zeros(0)]
    return bool(others) and all(same(first, other) for other in others)


def shrunk(out: Array, weights: Array, q: Array) -> tuple[Array, Array]:
    factor = q.shape[-1] ** -0.5
    return out * factor, weights * factor
