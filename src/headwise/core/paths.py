"""Which softmax a head takes: how large its scores can be decides how much care they need.

Knows bounds and the three ways to take a reference off; knows nothing of tiles.
"""

from __future__ import annotations  # NamedTuple fields are shown as they are written

import platform
from math import inf, isfinite, log2, sqrt
from typing import Any, NamedTuple

import numpy as np

from headwise.core.shapes import Array, Problem

LOG2_E = 1.4426950408889634
_CHUNK = 2**20  # numbers of q, k or v that are looked at together


def _fast_exp2() -> bool:
    """Whether NumPy's exp2 is vectorised here, and so faster than exp: AVX-512 on Linux. Never found by timing."""
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        return False
    try:
        config: Any = np.show_config(mode="dicts")
        found = config["SIMD Extensions"]["found"]
    except (TypeError, KeyError):
        return False
    return "AVX512_SKX" in found or "X86_V4" in found


class Path(NamedTuple):
    """One way to a softmax. Parts with one reference are added up; others are rescaled when they meet."""

    name: str
    reference: float | None  # taken off every score; None: a row maximum
    rescaled: bool  # whether each part takes its own maximum off
    exp: Any  # the ufunc
    unit: float  # what natural scores are multiplied by for it
    backwards: bool = False  # from the last keys to the first, so that the first part is the nearest


_EXP: tuple[Any, float] = (np.exp2, LOG2_E) if _fast_exp2() else (np.exp, 1.0)

RAW = Path("raw", 0.0, False, *_EXP)
REFERENCE = Path("reference", None, False, np.exp, 1.0, backwards=True)
RUNNING = Path("running", None, True, np.exp, 1.0)
PATHS = (RAW, REFERENCE, RUNNING)

_LIMIT = {"f": 120.0, "d": 1000.0}  # powers of two that stay clear of overflow and of denormals
_FINITE = {"f": 1e30, "d": 1e290}  # scores that stay finite while they are scaled
_SMALL = {"f": 1e-15, "d": 1e-140}  # norms from here on have squares that do not underflow


class Bounds(NamedTuple):
    """What is known of one head, or the worst of several. Norms are of rows."""

    query: float  # the largest norm of a query, once it is scaled
    score: float  # the largest size of a score: natural units, with bias and sinks
    least: float  # the largest norm of a value, in the head where it is least
    most: float  # and where it is most; NaN or inf if a value is, or is beyond squaring


def choose(p: Problem, known: Bounds) -> Path:
    """The path of a head. What is raw for the worst of several heads is raw for each of them.

    Nobody looks at a dense bias beforehand, which would take longer than the raw path saves.
    """
    char, n_k, d_v = p.computing.char, p.scores[-1], p.v.shape[-1]
    if not (known.query < _FINITE[char] and known.score < _FINITE[char] and known.most < inf):
        return RUNNING
    if isinstance(p.bias, np.ndarray) or known.least < _SMALL[char]:
        return REFERENCE
    size = max(abs(log2(known.least)), abs(log2(known.most))) + log2(max(1, d_v)) / 2
    return RAW if known.score * LOG2_E + size + log2(max(1, n_k)) <= _LIMIT[char] else REFERENCE


def looked_at(n_q: int, n_k: int, d_k: int, d_v: int) -> bool:
    """Whether to bound a head's scores saves more time, in its softmax, than it takes to read q, k and v once more."""
    return 5 * n_q * n_k >= 2 * ((n_q + n_k) * d_k + n_k * d_v)


def paths_of(p: Problem, q: Array, k: Array, v: Array, steep: Any, sinks: Any) -> list[tuple[Path, bool]]:
    """The path of each head, and whether its values are known to be finite; only one where it holds for all of them.

    For q (L, R, n_q, d_k), k (L, 1, n_k, d_k), v (L, 1, n_k, d_v), the largest size of the bias, and the sinks: numbers
    or (L, R). A head's path is its own, whatever its company.
    """
    n_q, n_k = p.scores[-2:]
    if not looked_at(n_q, n_k, p.q.shape[-1], p.v.shape[-1]):
        return [(RUNNING, False)]
    squares = [largest_squares(q, p.computing), largest_squares(k, p.computing)]
    squares.append(largest_squares(v, p.computing, np.maximum))
    sizes = np.where(np.isneginf(sinks), 0, np.abs(sinks)) if isinstance(sinks, np.ndarray) else 0.0
    q2, k2, v2, bias, sink = (np.broadcast_to(x, q.shape[:2]).ravel().tolist() for x in (*squares, steep, sizes))
    if choose(p, _bounds(p, max(q2), max(k2), min(v2), max(v2), max(bias), max(sink))) is RAW:
        return [(RAW, True)]
    paths = [(choose(p, _bounds(p, *head)), isfinite(head[3])) for head in zip(q2, k2, v2, v2, bias, sink, strict=True)]
    return paths if len(set(paths)) > 1 else paths[:1]


def _bounds(p: Problem, q: float, k: float, least: float, most: float, bias: float, sink: float) -> Bounds:
    """Bounds from the squares of the largest norms of q, k and v, the largest size of a bias, and that of a sink."""
    lost = 2 * sqrt(float(np.finfo(p.computing).tiny) * max(1, p.q.shape[-1]))  # squares that underflow
    query = (sqrt(q) * 1.001 + lost) * abs(p.scale)  # and what rounding took off
    score = query * (sqrt(k) * 1.001 + lost)
    if p.softcap is not None:
        score = min(score, p.softcap)
    return Bounds(query, max(score + bias, sink), sqrt(least), sqrt(most))


def largest_squares(x: Array, dtype: Any, highest: Any = np.fmax) -> Array:
    """The largest squared row norm of x (..., n, d); rows that hold NaN do not count, unless by np.maximum."""
    n, tops = x.shape[-2], []
    step = max(1, _CHUNK * n // max(1, x.size))
    for start in range(0, max(1, n), step):
        rows = x[..., start : start + step, :].astype(dtype, copy=False)
        tops.append(highest.reduce(np.einsum("...d,...d->...", rows, rows), axis=-1, initial=0))
    top: Array = tops[0] if len(tops) == 1 else highest.reduce(tops)
    return top
