"""T5's relative positions: a bias that is looked up in a learned table, by how far apart query and key are."""

from __future__ import annotations  # help() then shows ArrayLike as it is written

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from headwise.core.shapes import (
    Array,
    Faults,
    array,
    as_dtype,
    flag,
    integer,
    result_dtype,
    spread,
    words,
)

_MOST_BUCKETS = 2**20


class _Buckets(NamedTuple):
    """How T5 sorts distances into buckets, checked."""

    n_buckets: int
    bidirectional: bool
    max_distance: int

    def of(self, distance: Array) -> Array:
        """The bucket of each distance ``j - i`` of a key from its query: below the query first, above it last."""
        count, above = self.n_buckets, np.zeros((), np.int64)
        if self.bidirectional:
            count //= 2
            above = count * (distance > 0)
        away = np.abs(distance) if self.bidirectional else np.maximum(-distance, 0)
        return above + np.where(away < _exact(count), away, _logarithmic(count, self.max_distance, away))


def _exact(count: int) -> int:
    """How many buckets of one direction hold one distance each."""
    return count // 2


def _logarithmic(count: int, max_distance: int, away: Array) -> Array:
    """The bucket of distances beyond those: as many to each factor, the last one for all from ``max_distance`` on."""
    exact = _exact(count)
    if not exact:  # one bucket: it holds all
        return np.zeros_like(away)
    share = np.log(np.maximum(away, exact) / exact) / np.log(max_distance / exact)
    # 16 is exactly a quarter of the way from 8 to 128: logarithms that are rounded must not make it less
    steps = np.floor(np.round(share * (count - exact), 9)).astype(np.int64)
    bucket: Array = np.minimum(exact + steps, count - 1)
    return bucket


def _checked_buckets(faults: Faults, count: int, named: str, bidirectional: Any, max_distance: Any) -> _Buckets:
    """Buckets of which ``named`` says how many; 0 of them is a fault that was noted before."""
    both = flag(faults, "bidirectional", bidirectional)
    furthest = integer(faults, "max_distance", max_distance, 1, "a distance", most=2**53)
    if both and count % 2:
        remedy = "half of them are for keys after their query; a decoder has bidirectional=False"
        faults.value(named, "an even number of buckets with bidirectional", str(count), remedy)
    exact = _exact(count // 2 if both else count)
    if count and 0 < furthest <= exact:
        remedy = f"the first {exact} distances have a bucket each, the others go up to it"
        faults.value("max_distance", f"a distance above {exact}", str(furthest), remedy)
    return _Buckets(count, both, furthest)


def _bucket_diagonals(faults: Faults, buckets: _Buckets, n_q: int, n_k: int, offset: Any) -> Array:
    """The bucket of each diagonal of the scores, from the upper right corner to the lower left one; raises faults."""
    first = n_k - n_q if offset is None else integer(faults, "offset", offset, None, "an integer", most=2**53)
    faults.raise_any()
    return buckets.of(np.arange(n_k - 1, -n_q, -1) - first)


def _count_of(faults: Faults, name: str, value: Any) -> int:
    return integer(faults, name, value, 0, "a number of tokens", most=2**53)


def relative_position_bias(
    table: ArrayLike,
    n_q: int,
    n_k: int,
    *,
    bidirectional: bool = True,
    max_distance: int = 128,
    offset: int | None = None,
) -> Array:
    """T5's bias: a learned number for each head and each bucket of distances. Pass it as ``bias=``.

    Parameters
    ----------
    table : array_like, shape (n_buckets, H)
        A model's ``relative_attention_bias.weight``. With ``bidirectional`` n_buckets is even.
    n_q, n_k : int
        Numbers of queries and of keys.
    bidirectional : bool
        True, as in encoders: the first half of the buckets is for keys up to the query, the second for those after it.
        False, as in decoders: all are for keys up to the query, and those after it count as distance 0.
    max_distance : int
        Distances from here on share the last bucket.
    offset : int, optional
        Position of query 0 among the keys; by default ``n_k - n_q``, as in :func:`headwise.masks.causal`.

    Returns
    -------
    ndarray, shape (H, n_q, n_k)
        ``table[bucket of j - (i + offset), h]`` for query i and key j, in the float type of ``table``.

    Raises
    ------
    TypeError
        If an argument is of the wrong kind.
    ValueError
        If ``table`` has not two axes, a number is out of range, or ``n_buckets`` is odd with ``bidirectional``.

    Notes
    -----
    Of N buckets for one direction the first ``e = N // 2`` hold the distances 0 to e - 1, one each. A longer distance d
    has ``e + floor(log(d / e) / log(max_distance / e) * (N - e))``, at most N - 1 [1]_.

    T5 adds it with ``scale=1``, and all its layers share the table of the first.

    References
    ----------
    .. [1] Raffel et al., "Exploring the Limits of Transfer Learning with a Unified Text-to-Text Transformer", JMLR
       2020, section 2.1; the formula is ``_relative_position_bucket`` of the authors' Mesh TensorFlow.

    Examples
    --------
    >>> table = [[0.0], [1.0], [2.0], [3.0]]  # 0: the own key, 1: keys before it, 3: keys after it
    >>> print(relative_position_bias(table, 3, 3)[0])
    [[0. 3. 3.]
     [1. 0. 3.]
     [1. 1. 0.]]
    """
    faults = Faults("relative_position_bias")
    given = array(faults, "table", table)
    if given is not None and (given.ndim != 2 or not 1 <= len(given) <= _MOST_BUCKETS):
        faults.value("table", f"(n_buckets, H), with 1 to {_MOST_BUCKETS} buckets", words(given.shape))
        given = None
    counts = _count_of(faults, "n_q", n_q), _count_of(faults, "n_k", n_k)
    buckets = _checked_buckets(faults, 0 if given is None else len(given), "table", bidirectional, max_distance)
    diagonal = _bucket_diagonals(faults, buckets, *counts, offset)
    assert given is not None  # its absence is a fault
    values = given.astype(result_dtype(given.dtype), copy=False)
    if 0 in counts:
        return np.zeros((values.shape[1], *counts), values.dtype)
    return spread(values.T[:, diagonal], *counts).copy()


def relative_position_bias_vjp(
    d_bias: ArrayLike,
    n_buckets: int,
    *,
    bidirectional: bool = True,
    max_distance: int = 128,
    offset: int | None = None,
) -> Array:
    """Return the gradient of the table, from that of :func:`relative_position_bias`: the sums over each bucket.

    Parameters
    ----------
    d_bias : array_like, shape (H, n_q, n_k)
        As ``bias`` of :class:`headwise.AttentionGradients` or :class:`headwise.MultiHeadGradients`.
    n_buckets : int
        Rows of the table.
    bidirectional, max_distance, offset
        As for :func:`relative_position_bias`.

    Returns
    -------
    ndarray, shape (n_buckets, H)
        In the float type of ``d_bias``; summed in float64.

    Raises
    ------
    TypeError, ValueError
        As :func:`relative_position_bias` does.

    Examples
    --------
    >>> print(relative_position_bias_vjp(np.ones((1, 3, 3)), 4).T)  # how many pairs each bucket has
    [[3. 3. 0. 3.]]
    """
    faults = Faults("relative_position_bias_vjp")
    given = array(faults, "d_bias", d_bias)
    if given is not None and given.ndim != 3:
        faults.value("d_bias", "(H, n_q, n_k)", words(given.shape))
        given = None
    count = integer(faults, "n_buckets", n_buckets, 1, "a number of buckets", most=_MOST_BUCKETS)
    buckets = _checked_buckets(faults, count, "n_buckets", bidirectional, max_distance)
    n_heads, n_q, n_k = (0, 0, 0) if given is None else given.shape
    diagonal = _bucket_diagonals(faults, buckets, n_q, n_k, offset)
    assert given is not None  # its absence is a fault
    sums = np.zeros((buckets.n_buckets, n_heads))
    if given.size:
        pairs = spread(diagonal, n_q, n_k).reshape(-1)
        for head, numbers in enumerate(given):
            sums[:, head] = np.bincount(pairs, numbers.reshape(-1).astype(np.float64), buckets.n_buckets)
    return as_dtype(sums, result_dtype(given.dtype))
