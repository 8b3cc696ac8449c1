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
_TINY = 2**10  # scores of a head up to which its row maxima cost less than to check that none were needed
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


_EXP: tuple[Any, float] = (np.exp2, LOG2_E) if _fast_exp2() else (np.exp, 1.0)

RAW = Path("raw", 0.0, False, *_EXP)
REFERENCE = Path("reference", None, False, floored_exp, 1.0, backwards=True)
RUNNING = Path("running", None, True, floored_exp, 1.0)
PATHS = (RAW, REFERENCE, RUNNING)

# Totals of a row between which nothing was lost: what underflows is less than 2**-66 of the least (float32), a key.
_LEAST, _MOST = {"f": 2.0**-60, "d": 2.0**-500}, {"f": 2.0**100, "d": 2.0**900}
_EARLY = {"f": 2.0**64, "d": 2.0**600}  # a total over the first keys that bodes ill: to give up late costs most
_VALUE = {"f": 2.0**-40, "d": 2.0**-400}  # values from here on do not underflow when they are weighted by such totals


def first_path(p: Problem, steepness: float = 0.0) -> Path:
    """The path that a head tries first; ``steepness`` is the largest size of its alibi."""
    n_q, n_k = p.scores[-2:]
    if n_q * n_k <= _TINY:
        return RUNNING
    if isinstance(p.bias, np.ndarray) or not steepness * LOG2_E <= _STEEP:
        return REFERENCE  # a dense bias may hold -inf, and its scores anything
    return RAW


def overflowing(total: Array) -> Array:
    """Heads (h, r) whose totals (h, r, b, m) over the first keys are already half way beyond the most, or NaN."""
    highest = np.maximum.reduce(total, axis=(-1, -2))
    return np.asarray(~(highest <= _EARLY[total.dtype.char]))


def unsound(whole: Partial, alive: Callable[[], Array]) -> Array:
    """Heads (h, r) of a raw result (h, r, b, m) from which something may have been lost.

    A row's total must be neither so small that what underflowed counts, nor so large that more could overflow, and the
    largest output must show that values are not so small that their products underflow. ``alive()`` tells which
    queries (b, m) see a key at all: the others' totals are 0.
    """
    char, rows = whole.total.dtype.char, (-1, -2)
    low: Array = np.minimum.reduce(whole.total, axis=rows)
    if not np.all(low >= _LEAST[char]):
        low = np.where(alive(), whole.total, np.inf).min(axis=rows)
    high = np.maximum.reduce(whole.total, axis=rows)
    most = np.maximum.reduce(whole.acc, axis=(-1, -2, -3), initial=0)
    least = np.minimum.reduce(whole.acc, axis=(-1, -2, -3), initial=0)
    size = np.maximum(most, -least)
    lost = (low < _LEAST[char]) | (high > _MOST[char]) | ~np.isfinite(low + high + size)
    if whole.acc.shape[-1]:
        lost |= size < _VALUE[char] * high
    return np.asarray(lost)


def outgrown(whole: Partial) -> Array:
    """Blocks (h, r, b) of a result (h, r, b, m) by reference whose scores outgrew it, or hold NaN."""
    finite = np.isfinite(whole.total).all(axis=-1) & np.isfinite(whole.acc).all(axis=(-1, -2))
    return np.asarray(~finite)
