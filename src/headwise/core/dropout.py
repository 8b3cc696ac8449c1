"""Which weights dropout keeps: a function of the key and of the place in the scores, of nothing else.

The scores of one item and head are divided into fixed cells of 256 queries x 128 keys. Each cell has its own stretch
of one random stream, so that neither the tile in which a score is computed, nor the thread, nor the direction can
change its fate.
"""

from __future__ import annotations  # numpy.random is loaded when it is used, not when it is named

import threading

import numpy as np

from headwise.core.shapes import Array, Shape

CELL_QUERIES, CELL_KEYS = 256, 128
_DRAWS = CELL_QUERIES * CELL_KEYS // 4  # numbers of 64 bits, four decisions of 16 bits in each
# How far apart in the stream two neighbouring heads, rows and columns of cells lie. Odd, and far from round: places a
# power of two apart in this generator would share their low bits.
_STRIDES = (0x9E3779B97F4A7C15F39CC0605CEDC835, 0xD1B54A32D192ED03ABC98388FB8FAC03, 0x8CB92BA72F3D8DD7E7037ED1A0B428DB)


class Keep:
    """Which weights are kept, for one call.

    Parameters
    ----------
    probability : float
        How likely a weight is dropped, in steps of 1/65536; above 0 and below 1 it never rounds to 1.
    rng : numpy.random.Generator
        One number is drawn from it: the key.

    Attributes
    ----------
    kept : float
        The true probability of being kept; kept weights are divided by it.
    """

    __slots__ = ("_mine", "_start", "kept", "threshold")

    def __init__(self, probability: float, rng: np.random.Generator) -> None:
        self.threshold = round(probability * 65536)
        if probability < 1:
            self.threshold = min(self.threshold, 65535)
        self.kept = 1 - self.threshold / 65536
        self._start = np.random.PCG64DXSM(int(rng.integers(2**63))).state
        self._mine = threading.local()  # a generator for each thread that asks

    def cell(self, lead: int, row: int, column: int) -> Array:
        """The cell in this row and column of cells, for the item and head of this flat index.

        Returns
        -------
        ndarray of bool, shape (CELL_KEYS, CELL_QUERIES)
            True where kept. Keys come first.
        """
        steps = sum(place * stride for place, stride in zip((lead, row, column), _STRIDES, strict=True))
        bits = getattr(self._mine, "bits", None)
        if bits is None:
            bits = self._mine.bits = np.random.PCG64DXSM(0)
        bits.state = self._start
        bits.advance(steps % 2**128)
        draws = np.asarray(bits.random_raw(_DRAWS)).astype("<u8", copy=False)
        return draws.view("<u2").reshape(CELL_KEYS, CELL_QUERIES) >= self.threshold

    def tile(self, lead: int, rows: slice, cols: slice) -> Array:
        """The cells under a tile: bool, shape (n_cols, n_rows), True where kept. Keys come first."""
        keep = np.empty((cols.stop - cols.start, rows.stop - rows.start), bool)
        for row in range(rows.start // CELL_QUERIES, -(-rows.stop // CELL_QUERIES)):
            for column in range(cols.start // CELL_KEYS, -(-cols.stop // CELL_KEYS)):
                there, here = _overlap(cols, column, CELL_KEYS), _overlap(rows, row, CELL_QUERIES)
                keep[there[0], here[0]] = self.cell(lead, row, column)[there[1], here[1]]
        return keep

    def dense(self, scores: Shape) -> Array:
        """All cells of a score shape (..., n_q, n_k): bool, True where kept."""
        whole = slice(0, scores[-2]), slice(0, scores[-1])
        keep = np.empty(scores, bool)
        for lead, place in enumerate(np.ndindex(*scores[:-2])):
            keep[place] = self.tile(lead, *whole).T
        return keep


def _overlap(span: slice, cell: int, size: int) -> tuple[slice, slice]:
    """What a span and a cell have in common, counted from the start of the span and from that of the cell."""
    first, stop = max(span.start, cell * size), min(span.stop, (cell + 1) * size)
    return slice(first - span.start, stop - span.start), slice(first - cell * size, stop - cell * size)
