"""Three ways to a softmax, from the fastest to the one that always holds, and how to tell that one has come out right.

Knows partial results; knows nothing of tiles.
"""

from __future__ import annotations  # NamedTuple fields are shown as they are written

import platform
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from headwise.core.shapes import Array, Problem
from headwise.core.softmax import Partial, floored_exp

LOG2_E = 1.4426950408889634
_FEW = 2**10  # scores of a head up to which its row maxima cost less than to check that none were needed
_STEEP = 60.0  # powers of two that a bias may take off: far from where exp2 underflows, which is slow


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
    exp: Any  # (x, out=)
    unit: float  # what natural scores are multiplied by for it
    backwards: bool = False  # from the last keys to the first, so that the first part is the nearest
    shrunk: bool = False  # whether values are made smaller, so that no sum of them overflows


_EXP: tuple[Any, float] = (np.exp2, LOG2_E) if _fast_exp2() else (np.exp, 1.0)

RAW = Path("raw", 0.0, False, *_EXP)
REFERENCE = Path("reference", None, False, floored_exp, 1.0, backwards=True)
RUNNING = Path("running", None, True, floored_exp, 1.0)
EXACT = RUNNING._replace(exp=np.exp)  # the same for heads so small that denormals do not matter
LAST = RUNNING._replace(name="last", shrunk=True)
PATHS = (RAW, REFERENCE, RUNNING, EXACT, LAST)

# The least total of a row: what underflows is less than 2**-66 of it (float32) for each key.
_LEAST = {"f": 2.0**-60, "d": 2.0**-500}
_MOST = {"f": 2.0**100, "d": 2.0**900}  # and the largest, well below what overflows
_EARLY = {"f": 2.0**80, "d": 2.0**600}  # a total over the first keys beyond which more keys may well overflow
_NEAR = 2.0**-20, 2.0**24
_VALUE = {"f": 2.0**-40, "d": 2.0**-400}  # the largest value of a head from where on products with weights are kept


def first_path(p: Problem, steepness: float = 0.0, checked: bool = False) -> Path:
    """The path that a head tries first; ``steepness`` is the largest size of its alibi.

    ``checked`` where the checks are made for many heads at once, and so are cheap.
    """
    n_q, n_k = p.scores[-2:]
    if n_q * n_k <= _FEW and not checked:
        return EXACT
    if isinstance(p.bias, np.ndarray) or not steepness * LOG2_E <= _STEEP:
        return REFERENCE  # a dense bias may hold -inf, and its scores anything
    return RAW


def overflowing(total: Array) -> Array:
    """Heads (h, r) whose totals (h, r, b, m) over the first keys bode ill, or are NaN: to give up late costs most."""
    highest = np.maximum.reduce(total, axis=(-1, -2))
    return np.asarray(~(highest <= _EARLY[total.dtype.char]))


def out_of_range(total: Array, alive: Callable[[], Array]) -> Array:
    """Heads (h, r) of a raw result with a total (h, r, b, m) so small that what underflowed counts, too large, or NaN.

    ``alive()`` tells which queries (b, m) see a key at all: the others' totals are 0.
    """
    least, most = _LEAST[total.dtype.char], _MOST[total.dtype.char]
    lowest, highest = np.minimum.reduce(total, axis=(-1, -2)), np.maximum.reduce(total, axis=(-1, -2))
    if not np.all(lowest >= least):
        lowest = np.where(alive(), total, np.inf).min(axis=(-1, -2))
    return np.asarray(~((lowest >= least) & (highest <= most)))


def moderate(total: Array) -> Array:
    """Which totals a gradient may be divided by and multiplied by again, without under- or overflow on the way."""
    return np.asarray((total >= _NEAR[0]) & (total <= _NEAR[1]))


def spoilt(out: Array) -> Array:
    """Heads (h, r) of a raw result whose output (h, r, b, m, d_v) is not finite, or shows that products underflowed.

    An output is a mean of values: the largest of it is at most the largest value.
    """
    axes = (-1, -2, -3)
    high, low = np.maximum.reduce(out, axis=axes, initial=0), np.minimum.reduce(out, axis=axes, initial=0)
    size = np.maximum(high, -low)
    if not out.shape[-1]:
        return np.zeros(size.shape, bool)
    return np.asarray(~((size >= _VALUE[out.dtype.char]) & (size < np.inf)))


def outgrown(whole: Partial) -> Array:
    """Blocks (h, r, b) of a result (h, r, b, m) whose sums are infinite or NaN."""
    finite = np.isfinite(whole.total).all(axis=-1) & np.isfinite(whole.acc).all(axis=(-1, -2))
    return np.asarray(~finite)
