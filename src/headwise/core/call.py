"""What all workers of one call share: its arrays as tasks see them, scales, and a tile's cap, bias and dropout.

Nothing in it changes while they work. Knows no softmax.
"""

from __future__ import annotations  # help() then shows ArrayLike as it is written

from math import prod
from typing import Any

import numpy as np

from headwise.core.dropout import Keep
from headwise.core.grid import Grid
from headwise.core.paths import Path
from headwise.core.positions import Alibi
from headwise.core.shapes import Array, Problem, Shape


class _Scales(dict[Path, tuple[Any, Any]]):
    """What `_scales` says of each path, once it is asked for."""

    def __init__(self, p: Problem, product: Any) -> None:
        self.p, self.product = p, product

    def __missing__(self, path: Path) -> tuple[Any, Any]:
        self[path] = made = _scales(self.p, path, self.product)
        return made


class Call:
    """One call of attention, or of its gradient, over a grid."""

    def __init__(self, grid: Grid, p: Problem, keep: Keep | None) -> None:
        self.grid, self.p = grid, p
        self.views = views = grid.views(p)
        self.q, self.k, self.v, self.bias = views.q, views.k, views.v, views.bias  # leading axes (..., L, R or 1)
        self.slopes: Any = views.slopes
        self.sinks: Any = views.sinks
        self.keep: Any = keep  # which weights dropout keeps; None if all
        # whether a bias may hold -inf: a dense one, and alibi so steep that it does not fit the type
        steepest = p.bias.steepest(p.scores) if isinstance(p.bias, Alibi) else np.inf
        self.may_hide = not steepest < float(np.finfo(p.computing).max)
        self.keys_first = self.bias is None  # a dense bias would be read across its rows
        self.scales = _Scales(p, grid.product)

    def cap(self, scores: Array, unit: float, tanh: Array | None = None) -> None:
        """Softcap, in place: ``c tanh(s / c)``, in this unit; the ``tanh`` is kept where there is room for it."""
        cap = self.p.computing.type(self.p.softcap)
        tanh = scores if tanh is None else tanh
        np.tanh(np.divide(scores, cap, out=tanh), out=tanh)
        np.multiply(tanh, cap * self.p.computing.type(unit), out=scores)

    def bias_tile(self, heads: Any, lead: Shape, rows: slice, cols: slice, unit: float) -> Array:
        """The bias of some heads, (h or 1, r or 1, n_rows, n_cols), in this unit."""
        p = self.p
        if self.bias is not None:  # never raw, so that its unit is 1
            return _thin(self.bias[heads])[..., rows, cols].astype(p.computing, copy=False)
        # one number a diagonal: neither computed nor stored for each pair
        spread: Array = p.bias._spread(p.scores, lead, self.slopes[heads] * unit, p.computing, rows, cols)
        return spread

    def seen(self, tile: Array, bits: Array | None) -> Array | None:
        """Words of who may attend to whom, to which ``-inf`` in a bias belongs: ``tile`` and ``bits`` broadcast."""
        hidden = tile == -np.inf if self.may_hide else None
        if hidden is None or not hidden.any():
            return bits
        allowed: Array = hidden.astype(f"u{self.p.computing.itemsize}")
        allowed -= 1  # 0 where it was 1, all bits where it was 0
        return allowed if bits is None else allowed & bits

    def kept(self, head: int, rows: slice, cols: slice) -> Array:
        """Which weights of a head dropout keeps: -1 or 0, int8, which has all bits set in any width; keys first."""
        keep: Array = self.keep.tile(head, rows, cols).view(np.int8)
        return np.negative(keep, out=keep)


def shaped(flat: Array, *shape: int) -> Array:
    """As much of a worker's scratch as an array of this shape takes."""
    return flat[: prod(shape)].reshape(shape)


def _thin(x: Array) -> Array:
    """x (h, r, ...) with a size of 1 where these axes are only stretched."""
    return x[tuple(slice(0, 1) if stride == 0 else slice(None) for stride in x.strides[:2])]


def _scales(p: Problem, path: Path, product: Any) -> tuple[Any, Any]:
    """What queries are multiplied by, and what products with keys are, or None: so that none overflows on the way.

    Raw and by reference, a query that overflows shows in the result, unless a softcap makes it finite again.
    """
    late = (path.rescaled or p.softcap is not None) and abs(p.scale) > 1 and product == p.computing
    unit = path.unit if p.softcap is None else 1.0
    return product.type(1.0 if late else p.scale * unit), p.computing.type(p.scale) if late else None
