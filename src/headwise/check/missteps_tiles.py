"""The steps of attention done wrong where keys are taken a tile at a time, as fast kernels take them.

Knows what a wrong tile makes of the weights; not what that is called, nor how it is told from others.
"""

from collections.abc import Callable

import numpy as np

from headwise.check.answers import Parts, hide
from headwise.core.shapes import Array

Weigh = Callable[[Parts, Array, Array | None], Array]

SIZES = (64, 128, 32, 16, 256, 8, 4, 2, 1)  # keys of a tile, the usual ones first


def not_rescaled(size: int, *, out: bool = True, total: bool = True, own: bool = False) -> Weigh:
    """What earlier tiles gave to out, to the sum, or to both stays as it was; ``own``: each by its tile's maximum."""

    def weigh(p: Parts, scores: Array, mask: Array | None) -> Array:
        scores = hide(p, scores, mask)
        most = _maxima(scores, size)
        kept = _exp(scores, most if own else np.maximum.accumulate(most, axis=-1))
        right = _exp(scores, most.max(axis=-1, keepdims=True))
        return np.asarray((kept if out else right) / (kept if total else right).sum(axis=-1, keepdims=True))

    return weigh


def last_dropped(size: int) -> Weigh:
    """Whole tiles alone are gone through."""

    def weigh(p: Parts, scores: Array, mask: Array | None) -> Array:
        n_k = scores.shape[-1]
        there = np.arange(n_k) < n_k // size * size
        return p.softmax(np.where(there, hide(p, scores, mask), -np.inf), -1)

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
