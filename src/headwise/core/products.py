"""Products with weights, on our workers: tokens times a matrix, and a bias on top. Knows nothing of heads.

A plain ``x @ w`` would wake the BLAS's own threads, which go on spinning for a tenth of a second and take a core from
the workers that attention uses next.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import ceil, prod
from typing import NamedTuple

import numpy as np

from headwise.core import workers
from headwise.core.shapes import Array

_ROWS = 256  # of a block at most
_COLUMNS = 512  # of a block at least, where a product is cut across its columns at all
_TASK = 2**27  # multiplications in a block: some milliseconds
_READ = 32  # rows whose multiplications take as long as reading the matrix
_TINY = 2**25  # multiplications in all, below which a second worker costs more than it takes over


class Product(NamedTuple):
    """One product, ``x w + b``; all three of one float type, float32 or float64."""

    x: Array  # (..., d_in)
    w: Array  # (d_in, d_out)
    b: Array | None = None  # (d_out,)


class _Block(NamedTuple):
    """What one task computes."""

    x: Array  # (m, d_in)
    w: Array  # (d_in, c)
    b: Array | None  # (c,)
    out: Array  # (m, c)


def project(x: Array, w: Array, b: Array | None = None, threads: int | None = None) -> Array:
    """``x w + b`` for tokens of any leading axes.

    Parameters
    ----------
    x : ndarray, shape (..., d_in)
        Tokens.
    w : ndarray, shape (d_in, d_out)
        Weights, of the type of ``x``: float32 or float64.
    b : ndarray, shape (d_out,), optional
        Bias, of that type.
    threads : int, optional
        Workers at most; by default as many as the BLAS would use. The result is the same, to the bit.

    Returns
    -------
    ndarray, shape (..., d_out)

    Examples
    --------
    >>> print(project(np.array([[1.0, 2.0]]), np.array([[3.0], [4.0]]), np.array([0.5])))
    [[11.5]]
    """
    return project_all([Product(x, w, b)], threads)[0]


def project_all(products: Sequence[Product], threads: int | None = None) -> list[Array]:
    """Several products at once, so that no worker waits for another between two of them.

    Parameters
    ----------
    products : sequence of Product
        Each as for :func:`project`.
    threads : int, optional
        As for :func:`project`.

    Returns
    -------
    list of ndarray, shape (..., d_out) each

    Examples
    --------
    >>> x = np.eye(2)
    >>> print([out.tolist() for out in project_all([Product(x, 2 * x), Product(x, x, np.ones(2))])])
    [[[2.0, 0.0], [0.0, 2.0]], [[2.0, 1.0], [1.0, 2.0]]]
    """
    flat = [Product(_readable(_rows(x)), _readable(w), b) for x, w, b in products]
    outs = [np.empty((len(x), w.shape[1]), x.dtype) for x, w, _ in flat]
    blocks = [block for product, out in zip(flat, outs, strict=True) for block in _blocks(product, out)]
    if threads is None:
        tiny = sum(_work(len(x), *w.shape) for x, w, _ in flat) < _TINY
        threads = 1 if tiny else workers.default_threads()
    workers.run(lambda: _multiply, blocks, threads)
    return [out.reshape(*given.x.shape[:-1], out.shape[1]) for given, out in zip(products, outs, strict=True)]


def _rows(x: Array) -> Array:
    return x.reshape(prod(x.shape[:-1]), x.shape[-1])  # not -1: there may be no numbers at all


def _readable(x: Array) -> Array:
    """A matrix as the BLAS reads it: rows or columns lie side by side. Otherwise a copy."""
    rows, columns = x.strides
    plain = columns == x.itemsize and rows >= x.shape[1] * x.itemsize
    turned = rows == x.itemsize and columns >= x.shape[0] * x.itemsize
    return x if plain or turned else np.ascontiguousarray(x)


def _work(n_rows: int, d_in: int, d_out: int) -> int:
    """Multiplications, and what reading the matrix costs."""
    return (n_rows + _READ) * d_in * d_out


def _blocks(product: Product, out: Array) -> list[_Block]:
    """Blocks of rows and columns, cut by the product's shape alone: the number of threads cannot change a bit."""
    x, w, b = product
    (n_rows, d_in), d_out = x.shape, w.shape[1]
    if not n_rows or not d_out:
        return []
    n_spans = ceil(n_rows / _ROWS)
    wanted = ceil(_work(n_rows // n_spans, d_in, d_out) / _TASK)
    n_cuts = max(1, min(wanted, d_out // _COLUMNS))
    if n_spans == n_cuts == 1:
        return [_Block(x, w, b, out)]
    rows, columns = _spans(n_rows, n_spans), _spans(d_out, n_cuts)
    return [_Block(x[i], w[:, j], None if b is None else b[j], out[i, j]) for i in rows for j in columns]


def _spans(length: int, n: int) -> list[slice]:
    """n spans of nearly one length."""
    edges = [length * i // n for i in range(n + 1)]
    return [slice(*edge) for edge in pairwise(edges)]


def _multiply(block: _Block) -> None:
    np.matmul(block.x, block.w, out=block.out)
    if block.b is not None:
        block.out[...] += block.b


def column_sums(x: Array) -> Product:
    """The product that sums x (..., d) over all axes but the last, as the gradient of a bias does: shape (1, d).

    Examples
    --------
    >>> print(project_all([column_sums(np.ones((2, 3, 4)))])[0])
    [[6. 6. 6. 6.]]
    """
    rows = _rows(x)
    return Product(np.ones((1, len(rows)), x.dtype), rows)


def over_tokens(x: Array, d_out: Array) -> Product:
    """The product that gives the gradient (d_in, d_out) of w in ``x w``: ``x^T d_out``, summed over all tokens.

    A token whose gradient is 0 adds nothing, whatever it holds: it may be one that nobody was allowed to see.

    Examples
    --------
    >>> print(project_all([over_tokens(np.array([[[1.0]], [[2.0]]]), np.array([[[3.0]], [[4.0]]]))])[0])
    [[11.]]
    """
    x, d_out = _rows(x), _rows(d_out)
    if not np.isfinite(x).all():
        x = np.where((d_out != 0).any(axis=1, keepdims=True), x, 0)  # 0 * nan
    return Product(x.T, d_out)
