"""Alibi: a bias by distance, evaluated where it is needed and never stored whole."""

from __future__ import annotations  # help() then shows ArrayLike as it is written

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from headwise.core.shapes import (
    Array,
    Fault,
    Faults,
    PerItem,
    Shape,
    Span,
    array,
    brief,
    diagonals,
    distances,
    integer,
    item_integers,
    per_head_misfits,
    score_shape,
    spread,
    tile_of,
    words,
)


def alibi_slopes(n_heads: int) -> Array:
    """The slopes of ALiBi for any number of heads.

    Parameters
    ----------
    n_heads : int
        Number of heads H, at least 1.

    Returns
    -------
    ndarray of float64, shape (H,)
        ``2 ** (-8 h / H)`` for h = 1 ... H where H is a power of two. Otherwise the slopes of the power of two below,
        then every other slope of the power of two above, as the authors' code has it.

    Raises
    ------
    TypeError
        If ``n_heads`` is not an integer.
    ValueError
        If it is below 1.

    References
    ----------
    .. [1] Press, Smith, Lewis, "Train Short, Test Long: Attention with Linear Biases Enables Input Length
       Extrapolation", ICLR 2022, section 3; for other counts the function ``get_slopes`` of the authors' repository.

    Examples
    --------
    >>> print(alibi_slopes(4))
    [0.25       0.0625     0.015625   0.00390625]
    >>> print(1 / alibi_slopes(6))
    [  4.  16.  64. 256.   2.   8.]
    """
    faults = Faults("alibi_slopes")
    count = integer(faults, "n_heads", n_heads, 1, "a number of heads", most=2**20)
    faults.raise_any()
    below = 2 ** (count.bit_length() - 1)
    slopes = np.exp2(-8.0 * np.arange(1, below + 1) / below)
    between = np.exp2(-8.0 * np.arange(1, 2 * below, 2) / (2 * below))
    return np.concatenate([slopes, between[: count - below]])


class Alibi:
    """The bias ``-slope * |i + offset - j|`` of one head. Made by :func:`alibi`."""

    __slots__ = ("offset", "slopes")
    role = "bias"

    def __init__(self, slopes: Array, offset: PerItem | None) -> None:
        self.slopes, self.offset = slopes, offset

    def misfits(self, scores: Shape) -> list[Fault]:
        """What keeps it from fitting a score shape."""
        items = self.offset.misfits(scores) if self.offset else []
        return per_head_misfits("slopes", self.slopes, scores) + items

    def _at(self, scores: Shape, lead: Shape | None, rows: slice, cols: slice) -> Array:
        """The bias of these queries and keys, for one item and head, or (lead None) broadcasting to all: float64."""
        distance = np.abs(distances(self.offset, scores, lead, rows, cols))
        if len(scores) == 2:
            slopes = self.slopes[0]
        else:
            slopes = self.slopes[:, None, None] if lead is None else self.slopes[lead[-1]]
        with np.errstate(all="ignore"):  # a slope so steep that the bias is -inf
            bias: Array = -slopes * distance
        return bias

    def _spread(self, scores: Shape, lead: Shape, slopes: Array, dtype: Any, rows: slice, cols: slice) -> Array:
        """The bias of a tile of one item, for the heads of these slopes (...): a view (..., n_rows, n_cols)."""
        values = -slopes[..., None] * np.abs(diagonals(self.offset, scores, lead, rows, cols))
        return spread(values.astype(dtype), rows.stop - rows.start, cols.stop - cols.start)

    def _largest(self, scores: Shape, lead: Shape) -> float:
        """The largest distance that any query and key of one item have."""
        n_q, n_k = scores[-2:]
        ends = [distances(self.offset, scores, lead, *corner) for corner in _corners(n_q, n_k)]
        return float(max(abs(int(end.item())) for end in ends))

    def steepest(self, scores: Shape) -> float:
        """A bound on the size of the bias, for all items and heads; infinite where it does not fit float64."""
        offset = 0 if self.offset is None else int(np.abs(self.offset.values).max(initial=0))
        slope = float(np.abs(self.slopes).max(initial=0))
        return slope * float(scores[-1] + scores[-2] + offset)

    def tile(self, shape: Shape, lead: Shape, rows: Span, cols: Span) -> Array:
        """The bias of a tile of one item and head: float64, shape (n_rows, n_cols). Arguments as of ``Mask.tile``."""
        return self._at(*tile_of("Alibi.tile", self, shape, lead, rows, cols))

    def dense(self, shape: Shape) -> Array:
        """The bias of all queries and keys, of that score shape: float64, read-only."""
        scores = score_shape("Alibi.dense", self, shape, whole=True)
        return np.broadcast_to(self._at(scores, None, slice(0, scores[-2]), slice(0, scores[-1])), scores)

    def __repr__(self) -> str:
        offset = f", offset={brief(self.offset.values)}" if self.offset else ""
        return f"alibi({brief(self.slopes)}{offset})"


def _corners(n_q: int, n_k: int) -> list[tuple[slice, slice]]:
    """The tiles of one query and one key in the corners where distances are largest."""
    return [(slice(0, 1), slice(n_k - 1, n_k)), (slice(n_q - 1, n_q), slice(0, 1))]


def checked_slopes(faults: Faults, slopes: Any) -> Array | None:
    """Slopes as a copy in float64, or None with the fault noted."""
    given, before = array(faults, "slopes", slopes), len(faults.found)
    if given is None:
        return None
    if given.ndim != 1:
        faults.value("slopes", "one number per head, shape (H,)", words(given.shape))
    elif not np.isfinite(np.asarray(given, np.float64)).all():
        faults.value("slopes", "finite numbers", "NaN or inf")
    return np.array(given, np.float64) if len(faults.found) == before else None


def alibi(slopes: ArrayLike, offset: ArrayLike | None = None) -> Alibi:
    """Attention with linear biases: the further a key, the lower its score. Pass it as ``bias=``.

    Parameters
    ----------
    slopes : array_like, shape (H,)
        How much the score of each head falls per position; see :func:`alibi_slopes`.
    offset : int or array_like of int, shape (B,), optional
        How many keys come before query 0's own, as for :func:`headwise.masks.causal`; by default ``n_k - n_q``.

    Returns
    -------
    Alibi
        ``-slope * |i + offset - j|`` for query i and key j, evaluated where it is needed.

    Raises
    ------
    TypeError
        If ``slopes`` are not real numbers or an offset is not an integer.
    ValueError
        If ``slopes`` are not finite, or not one row of numbers.

    References
    ----------
    .. [1] Press, Smith, Lewis, "Train Short, Test Long", ICLR 2022, section 3.

    Examples
    --------
    >>> print(alibi([0.5]).dense((2, 3)))
    [[-0.5 -0.  -0.5]
     [-1.  -0.5 -0. ]]
    """
    faults = Faults("alibi")
    given = checked_slopes(faults, slopes)
    items: Any = None if offset is None else item_integers(faults, "offset", offset)
    faults.raise_any()
    assert given is not None  # its absence is a fault
    return Alibi(given, items)
