"""The steps of attention done wrong where keys are taken a tile at a time, as fast kernels take them.

Knows what a wrong tile makes of the weights; not what that is called, nor how it is told from others.
"""

from collections.abc import Callable

import numpy as np

from headwise.check.answers import Parts, hide
from headwise.check.answers import rule as causal
from headwise.core.shapes import Array

Weigh = Callable[[Parts, Array, Array | None], Array]

SIZES = (64, 128, 32, 16, 256, 8, 4, 2, 1)  # keys of a tile, the usual ones first
OTHERS = tuple(n for n in (*range(16, 257, 16), 3, 5, 6, 7, 10, 12, 20, 24, 40, 50, 100, 200) if n not in SIZES)
"""Sizes that are tried where none of the usual ones explains a failure."""


def not_rescaled(size: int, *, out: bool = True, total: bool = True, own: bool = False) -> Weigh:
    """What earlier tiles gave to out, to the sum, or to both stays as it was; ``own``: each by its tile's maximum."""

    def weigh(p: Parts, scores: Array, mask: Array | None) -> Array:
        scores = hide(p, scores, mask)
        most = _maxima(scores, size)
        kept = _exp(scores, most if own else np.maximum.accumulate(most, axis=-1))
        right = _exp(scores, most.max(axis=-1, keepdims=True))
        return np.asarray((kept if out else right) / (kept if total else right).sum(axis=-1, keepdims=True))

    return weigh


def normalised_each(size: int, *, again: bool = False) -> Weigh:
    """Out is divided by the sum so far at each tile and never multiplied back; ``again``: at the end too."""

    def weigh(p: Parts, scores: Array, mask: Array | None) -> Array:
        scores = hide(p, scores, mask)
        n_k = scores.shape[-1]
        starts = np.arange(0, n_k, size)
        e = _exp(scores, scores.max(axis=-1, keepdims=True))
        now = np.maximum.accumulate(np.maximum.reduceat(scores, starts, axis=-1), axis=-1)  # (..., tiles)
        sums = np.cumsum(np.add.reduceat(e, starts, axis=-1), axis=-1) * _exp(now[..., -1:], now)
        sums = np.where(sums == 0, 1, sums)  # where nothing has been seen yet
        divisors = np.cumprod(sums[..., ::-1], axis=-1)[..., ::-1]
        divisors = divisors * sums[..., -1:] if again else divisors
        return np.asarray(e / np.repeat(divisors, np.diff([*starts, n_k]), axis=-1))

    return weigh


def _whole(n: int, size: int, guarded: bool) -> int:
    """How many of n lie in whole tiles; all where they are fewer than a tile holds, if ``guarded``."""
    return n if guarded and n < size else n // size * size


def last_dropped(size: int, *, guarded: bool = False) -> Weigh:
    """Whole tiles alone are gone through."""

    def weigh(p: Parts, scores: Array, mask: Array | None) -> Array:
        n_k = scores.shape[-1]
        there = np.arange(n_k) < _whole(n_k, size, guarded)
        return p.softmax(np.where(there, hide(p, scores, mask), -np.inf), -1)

    return weigh


def last_queries_dropped(size: int, *, missing: bool = False, guarded: bool = False) -> Weigh:
    """Whole tiles of queries alone are gone through: the rows after them are 0, or are not there."""

    def weigh(p: Parts, scores: Array, mask: Array | None) -> Array:
        weights = p.softmax(hide(p, scores, mask), -1)
        whole = _whole(weights.shape[-2], size, guarded)
        there = np.arange(weights.shape[-2]) < whole
        return weights[..., :whole, :] if missing else np.where(there[:, None], weights, 0)

    return weigh


def padding_seen(size: int, *, masked: bool) -> Weigh:
    """The last tile is filled up with keys and values of 0, which a mask hides if it is filled up as well."""

    def weigh(p: Parts, scores: Array, mask: Array | None) -> Array:
        n_k = scores.shape[-1]
        more = 0 if masked and mask is not None else -n_k % size
        filled = np.concatenate([hide(p, scores, mask), np.zeros((*scores.shape[:-1], more))], axis=-1)
        return p.softmax(filled, -1)[..., :n_k]

    return weigh


def offset_forgotten(size: int, *, queries: bool = False, keys: bool = False) -> Weigh:
    """The mask of the first tile for every tile."""

    def weigh(p: Parts, scores: Array, mask: Array | None) -> Array:
        if mask is None:
            return p.softmax(scores, -1)
        n_q, n_k = scores.shape[-2:]
        whole = np.broadcast_to(mask, (*mask.shape[:-2], n_q, n_k))
        i = np.arange(n_q) % size if queries else np.arange(n_q)
        j = np.arange(n_k) % size if keys else np.arange(n_k)
        return p.softmax(hide(p, scores, whole[..., i[:, None], j]), -1)

    return weigh


Rule = Callable[[Parts, int, int], Array]


def skipped(queries: int, keys: int, *, end: bool = False, offset: bool = True) -> Rule:
    """A tile of keys is left out by its first key: the last query of a tile, or n_k - n_q, does not enter the test."""

    def rule(p: Parts, n_q: int, n_k: int) -> Array:
        i, j = np.arange(n_q)[:, None] // queries * queries, np.arange(n_k) // keys * keys
        last = i + (queries - 1 if end else 0) + (n_k - n_q if offset else 0)
        return causal(p, n_q, n_k) & (j <= last)

    return rule


def local(queries: int, keys: int, *, skips: bool = False) -> Rule:
    """Each tile has a triangle of its own; those above the diagonal are left out if ``skips``."""

    def rule(p: Parts, n_q: int, n_k: int) -> Array:
        i, j = np.arange(n_q)[:, None], np.arange(n_k)
        seen = j % keys <= i % queries
        first_key, last_query = j // keys * keys, i // queries * queries + queries - 1 + n_k - n_q
        return seen & (first_key <= last_query) if skips else seen

    return rule


def local_triangle(size: int) -> Callable[[int], Array]:
    """Tiles above the diagonal are left out, all others have a triangle of their own."""

    def triangle(n: int) -> Array:
        i, j = np.arange(n)[:, None], np.arange(n)
        return (j // size <= i // size) & (j % size <= i % size)

    return triangle


def blind_at_first(size: int) -> Weigh:
    """Where nothing is seen in the first tile, -inf is subtracted from -inf, and NaN stays in the sums."""

    def weigh(p: Parts, scores: Array, mask: Array | None) -> Array:
        scores = hide(p, scores, mask)
        blind = np.isneginf(_maxima(scores, size)[..., :1])
        return np.where(blind, np.nan, p.softmax(scores, -1))

    return weigh


def _maxima(scores: Array, size: int) -> Array:
    """For each key the largest score of its tile."""
    n_k = scores.shape[-1]
    starts = np.arange(0, n_k, size)
    return np.repeat(np.maximum.reduceat(scores, starts, axis=-1), np.diff([*starts, n_k]), axis=-1)


def _exp(scores: Array, most: Array) -> Array:
    """exp(scores - most); 0 where nothing has been seen yet."""
    return np.asarray(np.exp(scores - np.where(np.isneginf(most), 0, most)))
