"""Softmax, and the partial softmax that threads, tiles, caches and clusters share.

Softmax attention over any set of keys is a partial result ``(acc, total, peak)``: the sum of values weighted by
``exp(score - peak)``, the sum of those weights, and the reference that was taken off. ``part`` makes one, ``merge``
joins two, ``finish`` divides. The grouping does not matter: every way to split the keys gives the same answer.
"""

from __future__ import annotations  # help() then shows ArrayLike as it is written

from collections.abc import Iterable
from functools import reduce
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from headwise.core.shapes import (
    Array,
    Faults,
    array,
    broadcast_all,
    computing_dtype,
    integer,
    result_dtype,
    words,
)

_LONGEST = 512  # keys that the BLAS may add up: 2 to 3 eps of error
_ONES = {char: np.ones(_LONGEST, char) for char in "fd"}
_LOWEST = {char: np.finfo(char).min for char in "fd"}
_TINIEST = {char: np.finfo(char).tiny for char in "fd"}
_FLOOR: dict[str, Any] = {"f": np.float32(-60), "d": np.float64(-600)}
_TAME = {"f": 2.0**40, "d": 2.0**400}
_AT_FLOOR = {char: np.exp(np.full(64, floor))[0] for char, floor in _FLOOR.items()}


def exponentials(
    scores: Array, peak: Array | float | None = None, exp: Any = np.exp, out: Array | None = None
) -> tuple[Array, Any]:
    """``exp(scores - peak)`` over the last axis, and the peak: the row's maximum unless another reference is given.

    A row of ``-inf`` alone has exponentials 0, and peak ``-inf`` unless one is given; the rest is the plain formula,
    NaN and ``+inf`` too.
    """
    peak = np.maximum.reduce(scores, axis=-1, initial=-np.inf) if peak is None else np.asarray(peak, scores.dtype)
    # -inf - -inf would be NaN: the lowest finite number leaves a row of -inf as it is, and no other row has that peak
    reference = np.maximum(peak, _LOWEST[scores.dtype.char])
    shifted = np.subtract(scores, reference[..., None], out=out)
    return exp(shifted, out=shifted), peak


def floored_exp(x: Array, out: Array | None = None) -> Array:
    """``exp``, but never below ``exp(-60)``, in float64 ``exp(-600)``: the BLAS takes ten times as long over denormals.

    Harmless where one of a row's exponentials is at least 1, as what each of the others may gain is 1e-26 of that, and
    no value that a weight multiplies is far larger than others: see :func:`is_tame`.
    """
    result: Array = np.maximum(x, _FLOOR[x.dtype.char], out=out)
    np.exp(result, out=result)
    return result


def is_tame(v: Array) -> bool:
    """Whether values are finite and so small that the floor of :func:`floored_exp` times any of them is nothing."""
    most = _TAME.get(v.dtype.char, _TAME["f"])
    high, low = np.maximum.reduce(v, axis=None, initial=0), np.minimum.reduce(v, axis=None, initial=0)
    return bool(high <= most) and bool(low >= -most)


def vanishing_exp(x: Array, out: Array | None = None) -> Array:
    """:func:`floored_exp` less its floor: exactly 0 there, and nothing that the BLAS is slow to multiply by."""
    result = floored_exp(x, out)
    np.subtract(result, _AT_FLOOR[x.dtype.char], out=result)
    return result


# --------------------------------------------------------------------------------------- whole softmax
def softmax(x: ArrayLike, axis: int = -1) -> Array:
    """Exponentials that sum to 1 along an axis.

    Parameters
    ----------
    x : array_like
        Scores. Integers and bool count as float64; float16 and bfloat16 are computed in float32.
    axis : int
        The axis along which the result sums to 1.

    Returns
    -------
    ndarray
        Same shape as ``x``, its float type. A slice of ``-inf`` alone gives zeros, an empty axis an empty result.

    Raises
    ------
    TypeError
        If ``x`` does not hold real numbers or ``axis`` is not an integer.
    ValueError
        If ``x`` has no such axis.

    Notes
    -----
    ``exp(x - max x) / sum exp(x - max x)``: the maximum cancels, and nothing overflows [1]_.

    References
    ----------
    .. [1] Blanchard, Higham, Higham, "Accurately computing the log-sum-exp and softmax functions",
       IMA Journal of Numerical Analysis 41 (2021), section 3.

    Examples
    --------
    >>> print(softmax([2.0, 0.0]).round(3))
    [0.881 0.119]
    """
    weights, dtype = softmax_for("softmax", x, axis)
    with np.errstate(all="ignore"):
        return weights.astype(dtype, copy=False)


def softmax_for(function: str, x: ArrayLike, axis: int) -> tuple[Array, np.dtype[Any]]:
    """Softmax in the computing type, and the type of the result, for a function whose name errors are to give."""
    scores, axis, dtype = _scores(function, x, axis)
    with np.errstate(all="ignore"):
        exps, _ = exponentials(scores)
        total = exps.sum(axis=-1, keepdims=True)
        return np.moveaxis(_divide(exps, total, exps), -1, axis), dtype


def softmax_and_lse(scores: Array) -> tuple[Array, Array]:
    """:func:`softmax` and :func:`logsumexp` over the last axis of an array in a computing type, by one exponential.

    Examples
    --------
    >>> weights, lse = softmax_and_lse(np.log([[1.0, 3.0]]))
    >>> print(weights.round(9), np.exp(lse).round(9))
    [[0.25 0.75]] [4.]
    """
    exps, peak = exponentials(scores)
    total = exps.sum(axis=-1)
    return _divide(exps, total[..., None], exps), _log_total(total, peak)


def logsumexp(x: ArrayLike, axis: int = -1) -> Array:
    """Logarithm of the sum of exponentials along an axis, without overflow.

    Parameters
    ----------
    x : array_like
        Scores. Integers and bool count as float64; float16 and bfloat16 are computed in float32.
    axis : int
        The axis that is summed.

    Returns
    -------
    ndarray
        The shape of ``x`` without that axis, its float type; ``-inf`` for a slice of ``-inf`` alone or an empty one.

    Raises
    ------
    TypeError
        If ``x`` does not hold real numbers or ``axis`` is not an integer.
    ValueError
        If ``x`` has no such axis.

    Notes
    -----
    ``max x + log sum exp(x - max x)``; source as for :func:`softmax`.

    Examples
    --------
    >>> print(logsumexp([1000.0, 1000.0]).round(4))
    1000.6931
    """
    scores, _, dtype = _scores("logsumexp", x, axis)
    with np.errstate(all="ignore"):
        exps, peak = exponentials(scores)
        return _log_total(exps.sum(axis=-1), peak).astype(dtype, copy=False)


def _scores(function: str, x: Any, axis: Any) -> tuple[Array, int, np.dtype[Any]]:
    """x in its computing dtype with ``axis`` last, that axis, and the dtype of the result."""
    faults = Faults(function)
    given, number = array(faults, "x", x), integer(faults, "axis", axis)
    if given is not None and not faults.found and not -given.ndim <= number < given.ndim:
        faults.value(
            "axis",
            f"an axis of x {words(given.shape)}",
            str(number),
            "" if given.ndim else "x has none: pass x[None]",
        )
    faults.raise_any()
    assert given is not None  # its absence is a fault
    dtype = result_dtype(given.dtype)
    return np.moveaxis(given.astype(computing_dtype(dtype), copy=False), number, -1), number, dtype


def _divide(numerator: Array, total: Array, out: Array | None = None) -> Array:
    """``numerator / total``, 0 where the total is 0: a query without keys."""
    quotient: Array = np.divide(numerator, np.maximum(total, _TINIEST[total.dtype.char]), out=out)
    return quotient


def _log_total(total: Array, peak: Array) -> Array:
    """The log-sum-exp: log 0 is -inf, whatever the peak; +inf among the scores, whose exponentials are NaN, is +inf."""
    lse = np.log(np.where(total == 0, 1, total)) + peak
    lse = np.where(peak == np.inf, np.inf, np.where(total == 0, -np.inf, lse))
    return lse.astype(total.dtype, copy=False)


# -------------------------------------------------------------------------------------- partial softmax
class Partial(NamedTuple):
    """Attention over some of the keys, not yet divided."""

    acc: Array  # (..., n_q, d_v)  sum over these keys of exp(score - peak) * v
    total: Array  # (..., n_q)      sum over these keys of exp(score - peak)
    peak: Array  # (..., n_q)      the reference taken off; by default the maximum, -inf where nothing was seen


def part(
    scores: Array,
    v: Array,
    peak: Array | float | None = None,
    *,
    bits: Array | None = None,
    kept: Array | None = None,
    finite: bool = True,
    exp: Any = np.exp,
    into: Partial | None = None,
) -> Partial:
    """Attention over some of the keys, as a partial result.

    Parameters
    ----------
    scores : ndarray, shape (..., n_q, n_k)
        Scores, ``-inf`` where a query may not attend.
    v : ndarray, shape (..., n_k, d_v)
        Values.
    peak : ndarray, shape (..., n_q), or float, optional
        The reference to take off. By default each row's maximum. Any other finite one is as right as long as no row's
        exponentials all underflow or any overflows; 0 does where scores are known to be small in magnitude.
    bits : ndarray of unsigned words as wide as a score, broadcasting to (..., n_q, n_k), optional
        All bits set where a query may attend, none where it may not, whatever the score there.
    kept : ndarray of such words, shape (..., n_q, n_k), optional
        No bits where a weight is dropped once the weights are summed.
    finite : bool
        Whether values are finite wherever ``bits`` let no query attend. Where they may not be, it takes longer.
    exp : ufunc
        ``np.exp``, or ``np.exp2`` for scores (and a peak) in units of log 2.
    into : Partial, optional
        Arrays of the right shapes, which the result is written into; ``scores`` are overwritten too. A peak that is a
        number is not written: it is there already.

    Returns
    -------
    Partial
        ``acc`` (..., n_q, d_v), ``total`` (..., n_q), ``peak`` (..., n_q).

    Examples
    --------
    >>> halves = [part(np.log([[1.0, 2.0]]), np.array([[6.0], [12.0]])), part(np.log([[3.0]]), np.array([[18.0]]))]
    >>> print(finish(merge(*halves))[0].round(9))
    [[14.]]
    """
    mine, acc, total = (None, None, None) if into is None else (scores, into.acc, into.total)
    taken: Any = peak
    if peak.__class__ is float and peak == 0:  # nothing is subtracted
        weights = exp(scores, mine)
    else:
        if bits is not None and peak is None:  # a hidden score must not be the maximum
            scores = np.where(bits == 0, -np.inf, scores) if mine is None else _hidden(scores, bits)
        weights, taken = exponentials(scores, peak, exp, mine)
    if bits is not None:  # 0 where hidden, even over NaN and inf; there is no faster way
        word, bits_there = in_memory_order(weights.view(bits.dtype), bits)
        np.bitwise_and(word, bits_there, out=word)
    if weights.shape[-1] <= _LONGEST:  # by the BLAS, whose plain order of adding does no harm to so few
        total = np.matmul(weights, _ONES[weights.dtype.char][: weights.shape[-1]], total)
    else:
        total = weights.sum(axis=-1, out=total)
    if kept is not None:
        word, kept_there = in_memory_order(weights.view(kept.dtype), kept)
        np.bitwise_and(word, kept_there, out=word)
    visible = None if finite or bits is None else np.asarray(bits != 0)
    acc = np.matmul(weights, v, acc) if visible is None else weighted_sum(weights, v, visible, out=acc)
    if into is None:
        taken = np.asarray(taken, total.dtype)
        return Partial(acc, total, taken if taken.shape == total.shape else np.broadcast_to(taken, total.shape))
    if peak.__class__ is not float:
        into.peak[...] = taken
    return into


def weighted_sum(
    weights: Array, v: Array, visible: Array | None, product: Any = np.matmul, out: Array | None = None
) -> Array:
    """``weights v``, to which a key that a query may not attend to adds nothing: not even ``0 * nan``.

    ``visible`` broadcasts to the weights; None where all is visible or no value is NaN or infinite.
    """
    made: Array
    if visible is None or np.isfinite(v).all():
        made = product(weights, v) if out is None else product(weights, v, out=out)
        return made
    wild = ~np.isfinite(v).all(axis=-1, keepdims=True)  # (..., G, n_k, 1): keys whose value would spoil a row
    made = weighted_sum(weights, np.where(wild, 0, v), None, product, out)
    wild_values = np.where(wild, v, 0)
    for j in np.flatnonzero(wild.reshape(-1, v.shape[-2]).any(axis=0)):
        added = product(weights[..., j : j + 1], wild_values[..., j : j + 1, :])  # (..., H, n_q, d_v)
        made += np.where(visible[..., j : j + 1], added, 0)
    return made


def _hidden(scores: Array, bits: Array) -> Array:
    """The scores, overwritten by ``-inf`` where no query may attend."""
    there, bits = in_memory_order(scores, bits)
    np.copyto(there, -np.inf, where=bits == 0)
    return scores


def in_memory_order(scores: Array, tile: Array) -> tuple[Array, Array]:
    """Both with their last two axes swapped if the scores lie with their keys first: NumPy then reads them in a row."""
    if scores.strides[-2] >= scores.strides[-1]:
        return scores, tile
    return scores.swapaxes(-1, -2), tile.swapaxes(-1, -2)


def empty_part(rows: tuple[int, ...], d_v: int, dtype: Any = np.float64) -> Partial:
    """The partial result over no keys, which any other merges with unchanged: acc 0, total 0, peak -inf."""
    return Partial(np.zeros((*rows, d_v), dtype), np.zeros(rows, dtype), np.full(rows, -np.inf, dtype))


def merge(a: Partial, b: Partial) -> Partial:
    """Two partial results over different keys as one over all of them.

    Associative and commutative up to rounding. A part that saw nothing (total 0) changes nothing, on either side.

    Examples
    --------
    >>> nothing = empty_part((1,), 1)
    >>> print(merge(nothing, nothing).peak, merge(nothing, part(np.array([[0.0]]), np.array([[7.0]]))).acc)
    [-inf] [[7.]]
    """
    peak, scale_a, scale_b = _met(a, b)
    acc = a.acc * scale_a[..., None] + b.acc * scale_b[..., None]
    return Partial(acc, a.total * scale_a + b.total * scale_b, peak)


def merge_along(parts: Partial) -> Partial:
    """Merge partial results over different keys that lie along the first axis, in their order; ``acc`` is overwritten.

    Examples
    --------
    >>> halves = Partial(np.array([[[6.0]], [[18.0]]]), np.array([[2.0], [1.0]]), np.array([[0.0], [0.0]]))
    >>> print(finish(merge_along(halves))[0])
    [[8.]]
    """
    seen = np.where(parts.total == 0, -np.inf, parts.peak)
    if len(seen) == 1:
        return Partial(parts.acc[0], parts.total[0], seen[0])
    peak = np.maximum.reduce(seen)
    scales = np.exp(seen - np.where(peak == -np.inf, 0, peak))
    each = np.multiply(parts.acc, scales[..., None], out=parts.acc), parts.total * scales
    acc, total = (x[0] for x in each)
    for x, sums in zip(each, (acc, total), strict=True):
        for more in x[1:]:  # not by a reduction, whose order is another one for other shapes
            sums += more
    return Partial(acc, total, peak)


def _met(a: Partial, b: Partial) -> tuple[Array, Array, Array]:
    """The peak of two partial results together, and what each is multiplied by for it."""
    seen_a, seen_b = (np.where(side.total == 0, -np.inf, side.peak) for side in (a, b))
    peak = np.maximum(seen_a, seen_b)
    reference = np.where(peak == -np.inf, 0, peak)
    return peak, np.exp(seen_a - reference), np.exp(seen_b - reference)


def row_maximum(scores: Array, bits: Array | None) -> Array:
    """The largest score that each query may see; those that it may not see are overwritten by ``-inf``."""
    if bits is not None:
        _hidden(scores, bits)
    largest: Array = scores.max(axis=-1, initial=-np.inf)
    return largest


def add(whole: Partial, more: Partial, joint: tuple[Array, Array] | None = None) -> None:
    """Merge ``more`` into ``whole``, in place, where both have one reference: nothing is rescaled.

    ``joint`` are the arrays in which acc and total of each lie together, if they do: one call less.
    """
    if joint is not None:
        np.add(*joint, joint[0])
        return
    np.add(whole.acc, more.acc, out=whole.acc)
    np.add(whole.total, more.total, out=whole.total)


def absorb(whole: Partial, more: Partial) -> None:
    """Merge ``more`` into ``whole``, in place, as :func:`merge` does."""
    peak, mine, other = _met(whole, more)
    for each, added, column in ((whole.acc, more.acc, (..., None)), (whole.total, more.total, ...)):
        np.multiply(each, mine[column], out=each)
        np.add(each, added * other[column], out=each)
    whole.peak[...] = peak


def finish(whole: Partial) -> tuple[Array, Array]:
    """Divide: the output ``(..., n_q, d_v)`` and the log-sum-exp ``(..., n_q)``; 0 and ``-inf`` where nothing was seen.

    Examples
    --------
    >>> out, lse = finish(empty_part((2,), 1))
    >>> print(out.ravel(), lse)
    [0. 0.] [-inf -inf]
    """
    return divided(whole), log_total(whole)


def divided(whole: Partial, out: Array | None = None) -> Array:
    """The output of :func:`finish` alone."""
    return _divide(whole.acc, whole.total[..., None], out)


def log_total(whole: Partial) -> Array:
    """The log-sum-exp of :func:`finish` alone."""
    return _log_total(whole.total, whole.peak)


def recentred(total: Array, peak: Array) -> tuple[Array, Array]:
    """Total and peak of the same denominators with the log-sum-exp, rounded, for a peak: totals are 1 but for that.

    A total of 0 stays 0, and what is infinite or NaN stays so.
    """
    lse = _log_total(total, peak)
    new = np.where(np.isfinite(lse), lse, peak)
    return np.where(total == 0, 0, total * np.exp(peak - new)).astype(total.dtype, copy=False), new


# --------------------------------------------------------------------------- finished results, merged
def merge_attention(outs: Iterable[ArrayLike], lses: Iterable[ArrayLike]) -> tuple[Array, Array]:
    """Attention over the union of several sets of keys, from the results over each.

    Parameters
    ----------
    outs : sequence of array_like, each of shape (..., n_q, d_v)
        Output of attention over each set of keys; no key may be in two sets.
    lses : sequence of array_like, each of shape (..., n_q)
        Log-sum-exp of the same, as ``attention(..., return_lse=True)`` gives it. Where it is ``-inf`` the set held no
        key for that query, and its output is not read.
        With sinks, let one set alone carry them.

    Returns
    -------
    out : ndarray, shape (..., n_q, d_v)
        As one call over all keys gives, in the float type of ``outs``.
    lse : ndarray, shape (..., n_q)
        Its log-sum-exp, in the computing type.

    Raises
    ------
    TypeError
        If something holds no real numbers.
    ValueError
        If there is nothing to merge, or the shapes or counts do not fit.

    Notes
    -----
    ``lse = log sum exp(lse_i)``, ``out = sum out_i exp(lse_i - lse)``: the merge of online softmax [1]_.

    A mask by position must know where a set of keys begins: for keys that start at place s, causal over all of them is
    ``masks.causal(offset=n_k - n_q - s)`` with the n_k of all. ``causal=True`` would align each set anew.

    References
    ----------
    .. [1] Milakov, Gimelshein, "Online normalizer calculation for softmax", arXiv:1805.02867, section 3.1.

    Examples
    --------
    >>> out, lse = merge_attention([[[10.0]], [[18.0]]], [[np.log(3)], [np.log(3)]])
    >>> print(out.round(9), np.exp(lse).round(9))
    [[14.]] [6.]
    """
    with np.errstate(all="ignore"):
        parts, shrink, dtype = _finished_parts(outs, lses)
        whole = reduce(merge, parts)
        out, lse = divided(whole), log_total(whole._replace(total=whole.total / shrink))
        return out.astype(dtype, copy=False), lse.astype(parts[0].peak.dtype, copy=False)


def shares(lse_a: Array, lse_b: Array) -> tuple[Array, Array]:
    """How much of the result over two sets of keys each of them is: two numbers for each row, whose sum is 1.

    Examples
    --------
    >>> a, b = shares(np.log([3.0]), np.log([1.0]))
    >>> print(a.round(9), b.round(9))
    [0.75] [0.25]
    """
    with np.errstate(all="ignore"):  # where one is all, the other's exponential is infinite
        return 1 / (1 + np.exp(lse_b - lse_a)), 1 / (1 + np.exp(lse_a - lse_b))


def _finished_parts(outs: Any, lses: Any) -> tuple[list[Partial], float, np.dtype[Any]]:
    """Each finished result as a partial one: its peak is the lse, its total 1, or 0 where it saw nothing.

    Where values are so large that their sum could overflow, values and totals are multiplied by a power of two, which
    is returned too: at most one over the number of results, and else 1.
    """
    faults = Faults("merge_attention")
    pairs = {name: _sequence(faults, name, value) for name, value in (("outs", outs), ("lses", lses))}
    faults.raise_any()  # before they are counted: what could not be read is not missing
    if len(pairs["outs"]) != len(pairs["lses"]) or not pairs["outs"]:
        got = f"{len(pairs['outs'])} outs and {len(pairs['lses'])} lses"
        faults.value("outs and lses", "one lse for each of at least one out", got)
    faults.raise_any()
    if isinstance(outs, np.ndarray) and outs.ndim == 2:  # its rows would be merged, which are queries of one result
        faults.value("outs", "a list of results over different keys", f"one array {words(outs.shape)}", _BRACKETS)
    for i, (out, lse) in enumerate(zip(*pairs.values(), strict=True)):
        if not out.ndim:
            faults.value(f"outs[{i}]", "(..., n_q, d_v), one axis or more", "()")
        elif out.shape[:-1] != lse.shape:
            faults.value(
                f"lses[{i}]",
                f"(..., n_q) = {words(out.shape[:-1])} as outs[{i}] {words(out.shape)}",
                words(lse.shape),
            )
    tails = {out.shape[-2:] for out in pairs["outs"]}  # (n_q, d_v), which is never stretched
    if len(tails) > 1 or broadcast_all(*(out.shape for out in pairs["outs"])) is None:
        shapes = ", ".join(words(out.shape) for out in pairs["outs"])
        faults.value("outs", "one (n_q, d_v), and leading axes that broadcast", shapes)
    faults.raise_any()
    dtype = result_dtype(*(out.dtype for out in pairs["outs"]))
    computing = computing_dtype(result_dtype(dtype, *(lse.dtype for lse in pairs["lses"])))
    pieces = [(out.astype(computing), lse.astype(computing)) for out, lse in zip(*pairs.values(), strict=True)]
    most = float(np.finfo(pieces[0][0].dtype).max) / len(pieces)
    crowded = any((np.isfinite(out) & (np.abs(out) > most)).any() for out, _ in pieces)
    shrink = 0.5 ** (len(pieces) - 1).bit_length() if crowded else 1.0
    return [_finished_part(out, lse, lse.dtype.type(shrink)) for out, lse in pieces], shrink, dtype


_BRACKETS = "pass [out] and [lse] for one result, or those of several by zip(*results)"


def _sequence(faults: Faults, name: str, value: Any) -> list[Array]:
    try:
        items = None if isinstance(value, str | bytes) else list(value)
    except MemoryError:
        raise
    except Exception:  # no sequence, or one that fails when it is read
        items = None
    if items is None:
        one = isinstance(value, np.ndarray)
        faults.type(
            name, "a sequence of arrays", "one array" if one else type(value).__name__, _BRACKETS if one else ""
        )
        return []
    return [given for i, item in enumerate(items) if (given := array(faults, f"{name}[{i}]", item)) is not None]


def _finished_part(out: Array, lse: Array, shrink: Any) -> Partial:
    seen = lse != -np.inf
    return Partial(np.where(seen[..., None], out * shrink, 0), seen.astype(lse.dtype) * shrink, lse)
