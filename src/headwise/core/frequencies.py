"""How fast each pair of columns turns with its position under rope, as models with stretched contexts have it.

Knows no arrays but these numbers; :func:`headwise.rope` takes them as ``frequencies=``.
"""

from __future__ import annotations  # help() then shows types as they are written

import math
import sys
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from headwise.core.shapes import Array, Faults, integer, real

_TURN = 2 * math.pi
_WIDEST = 2**20


class Frequencies(NamedTuple):
    """What rope needs to know of a model.

    Attributes
    ----------
    angles : ndarray of float64, shape (dims / 2,)
        How far each pair of columns turns from one position to the next, in radians.
    magnitude : float
        By what queries and keys are multiplied besides; the scores grow with its square.
    """

    angles: Array
    magnitude: float = 1.0


def plain(dims: int, *, base: float = 10_000.0) -> Frequencies:
    """Return the frequencies of the paper: ``base ** (-2 i / dims)`` for pair i.

    Parameters
    ----------
    dims : int
        How many columns turn, an even number.
    base : float
        Above 0; 10,000 in the paper, 500,000 in Llama 3.

    Returns
    -------
    Frequencies
        ``angles`` in radians per position, magnitude 1.

    Raises
    ------
    TypeError, ValueError
        If ``dims`` is no even number above 0, or ``base`` no finite number above 0 that gives such angles too.

    References
    ----------
    .. [1] Su et al., "RoFormer: Enhanced Transformer with Rotary Position Embedding", 2021, section 3.2.2.

    Examples
    --------
    >>> print(plain(4).angles)
    [1.   0.01]
    """
    faults = Faults("plain")
    width, base = _width(faults, dims), _above(faults, "base", base)
    angles = plain_angles(faults, width, base)
    faults.raise_any()
    return Frequencies(angles)


def linear(dims: int, factor: float, *, base: float = 10_000.0) -> Frequencies:
    """Return frequencies that make positions ``factor`` times denser: position interpolation.

    Parameters
    ----------
    dims : int
        How many columns turn, an even number.
    factor : float
        Above 0: by how much longer than in training sequences are.
    base : float
        Above 0.

    Returns
    -------
    Frequencies
        Those of :func:`plain`, divided by ``factor``.

    Raises
    ------
    TypeError, ValueError
        If an argument is no number of its range, or an angle would be 0 or infinite in float64.

    References
    ----------
    .. [1] Chen et al., "Extending Context Window of Large Language Models via Positional Interpolation", 2023.

    Examples
    --------
    >>> print(linear(4, 2.0).angles)
    [0.5   0.005]
    """
    faults = Faults("linear")
    width, base, factor = _width(faults, dims), _above(faults, "base", base), _above(faults, "factor", factor)
    angles = plain_angles(faults, width, base)
    faults.raise_any()
    with np.errstate(all="ignore"):  # what does not fit is refused
        stretched = angles / factor
    return _known(faults, stretched, base=base, factor=factor)


def ntk(
    dims: int, factor: float, *, base: float = 10_000.0, length: int | None = None, trained_length: int | None = None
) -> Frequencies:
    """Return frequencies of a larger base, so that fast pairs stay as they are and slow ones are stretched.

    Parameters
    ----------
    dims : int
        How many columns turn, an even number above 2.
    factor : float
        Above 0: by how much longer than in training sequences are.
    base : float
        Above 0.
    length, trained_length : int, optional
        Both or none. With them the stretch follows the length of the sequence ("dynamic"): none up to
        ``trained_length``, ``factor * length / trained_length - (factor - 1)`` beyond.

    Returns
    -------
    Frequencies
        Those of :func:`plain` with ``base * stretch ** (dims / (dims - 2))``.

    Raises
    ------
    TypeError, ValueError
        If an argument is no number of its range, one length is given without the other, or an angle would be 0 or
        infinite in float64.

    References
    ----------
    .. [1] bloc97, "NTK-Aware Scaled RoPE", 2023; the rule by length as in Hugging Face transformers, "dynamic".

    Examples
    --------
    >>> print(ntk(4, 2.0).angles)
    [1.    0.005]
    """
    faults = Faults("ntk")
    width, base, factor = _width(faults, dims, 4), _above(faults, "base", base), _above(faults, "factor", factor)
    stretch, given = factor, {"base": base, "factor": factor}
    if (length is None) != (trained_length is None):
        faults.value("length, trained_length", "both or none", "one of them")
    elif length is not None:
        now = integer(faults, "length", length, 1, "the length of the sequence")
        trained = integer(faults, "trained_length", trained_length, 1, "the length of sequences in training")
        stretch = factor * (max(now, trained) - trained) / max(trained, 1) + 1  # exactly 1 up to trained
        given |= {"length": now, "trained_length": trained}
    faults.raise_any()
    with np.errstate(all="ignore"):  # what does not fit is refused
        angles = _angles(width, base * np.float64(stretch) ** (width / (width - 2)))
    return _known(faults, angles, **given)


def yarn(
    dims: int,
    factor: float,
    trained_length: int,
    *,
    base: float = 10_000.0,
    fast: float = 32.0,
    slow: float = 1.0,
    magnitude: float | None = None,
) -> Frequencies:
    """Return frequencies that stretch slow pairs only: YaRN.

    Parameters
    ----------
    dims : int
        How many columns turn, an even number.
    factor : float
        At least 1: by how much longer than in training sequences are.
    trained_length : int
        The length of sequences in training.
    base : float
        Above 1.
    fast, slow : float
        Pairs that turn more than ``fast`` times over ``trained_length`` stay as they are, those that turn less than
        ``slow`` times are stretched by ``factor``, and those between by less, linearly from pair to pair.
    magnitude : float, optional
        By default ``0.1 ln(factor) + 1``, as the paper has it.

    Returns
    -------
    Frequencies
        ``angles`` in radians per position, and the magnitude.

    Raises
    ------
    TypeError, ValueError
        If an argument is no number of its range, or an angle would be 0 or infinite in float64.

    References
    ----------
    .. [1] Peng et al., "YaRN: Efficient Context Window Extension of Large Language Models", 2023, sections 3.2 and 3.4;
       the borders between pairs rounded outwards, as in the authors' code.

    Examples
    --------
    >>> print(yarn(8, 4.0, 2048).angles)
    [1.00e+00 1.00e-01 6.25e-03 2.50e-04]
    >>> print(round(yarn(8, 4.0, 2048).magnitude, 6))
    1.138629
    """
    faults = Faults("yarn")
    width, base, factor = _width(faults, dims), _above(faults, "base", base, 1), _at_least_1(faults, factor)
    length = integer(faults, "trained_length", trained_length, 1, "the length of sequences in training")
    fast, slow = _above(faults, "fast", fast), _above(faults, "slow", slow)
    if not faults.found and fast < slow:
        faults.value("fast", f"at least slow = {slow:g}", f"{fast:g}")
    scale = 0.1 * math.log(max(factor, 1.0)) + 1 if magnitude is None else _above(faults, "magnitude", magnitude)
    angles = plain_angles(faults, width, base)
    faults.raise_any()

    def pair_that_turns(times: float) -> float:
        ratio = max(length / (times * _TURN), sys.float_info.min)  # 0 has no logarithm
        return min(max(width * math.log(ratio) / (2 * math.log(base)), 0.0), width - 1.0)

    first, last = math.floor(pair_that_turns(fast)), math.ceil(pair_that_turns(slow))
    last_apart = last + 0.001 if first == last else last
    stretched = np.clip((np.arange(width // 2) - first) / (last_apart - first), 0, 1)
    with np.errstate(all="ignore"):  # what does not fit is refused
        mixed = angles * (1 - stretched) + angles / factor * stretched
    return _known(faults, mixed, scale, base=base, factor=factor)


def llama3(
    dims: int,
    factor: float = 8.0,
    *,
    base: float = 500_000.0,
    low: float = 1.0,
    high: float = 4.0,
    trained_length: int = 8192,
) -> Frequencies:
    """Return the frequencies of Llama 3.1 and later.

    Parameters
    ----------
    dims : int
        How many columns turn, an even number.
    factor : float
        At least 1: by what slow pairs are stretched; 8 in Llama 3.1, 32 in the small models of 3.2.
    base : float
        Above 0.
    low, high : float
        Pairs that turn fewer than ``low`` times over ``trained_length`` are stretched, those that turn more than
        ``high`` times are not, and those between are mixed by how often they turn.
    trained_length : int
        The length of sequences in the first training.

    Returns
    -------
    Frequencies
        ``angles`` in radians per position, magnitude 1.

    Raises
    ------
    TypeError, ValueError
        If an argument is no number of its range, or an angle would be 0 or infinite in float64.

    References
    ----------
    .. [1] Meta, "Llama 3.1 model card and code", 2024, function ``apply_scaling``.

    Examples
    --------
    >>> print(llama3(8).angles)
    [1.00000000e+00 3.76060309e-02 5.24846161e-04 6.64786987e-06]
    """
    faults = Faults("llama3")
    width, base, factor = _width(faults, dims), _above(faults, "base", base), _at_least_1(faults, factor)
    low, high = _above(faults, "low", low), _above(faults, "high", high)
    if not faults.found and high <= low:
        faults.value("high", f"above low = {low:g}", f"{high:g}")
    length = integer(faults, "trained_length", trained_length, 1, "the length of sequences in training")
    angles = plain_angles(faults, width, base)
    faults.raise_any()
    with np.errstate(all="ignore"):  # what does not fit is refused
        kept = np.clip((length * angles / _TURN - low) / (high - low), 0, 1)
        mixed = angles / factor * (1 - kept) + angles * kept
    return _known(faults, mixed, base=base, factor=factor)


# ------------------------------------------------------------------------------------------- pieces
def plain_angles(faults: Faults, dims: int, base: float) -> Array:
    """The angles of the paper, with the fault noted where float64 does not hold them."""
    with np.errstate(all="ignore"):
        angles = _angles(dims, base)
    _check_angles(faults, angles, base=base)
    return angles


def _angles(dims: int, base: float) -> Array:
    return np.asarray(base ** (-np.arange(0, dims, 2, dtype=np.float64) / dims))


def _check_angles(faults: Faults, angles: Array, **given: float) -> None:
    """Note what was given where an angle of it is 0 or infinite."""
    if not ((angles > 0) & (angles < math.inf)).all():
        what = "numbers that give" if len(given) > 1 else "a number that gives"
        got = f"{_listed(map(str, given.values()))}: angles from {angles.max():g} to {angles.min():g}"
        faults.value(_listed(given), f"{what} angles above 0 and finite in float64", got)


def _known(faults: Faults, angles: Array, magnitude: float = 1.0, **given: float) -> Frequencies:
    _check_angles(faults, angles, **given)
    faults.raise_any()
    return Frequencies(angles, magnitude)


def _listed(words: Iterable[str]) -> str:
    *most, last = words
    return f"{', '.join(most)} and {last}" if most else last


def _width(faults: Faults, dims: Any, low: int = 2) -> int:
    width = integer(faults, "dims", dims, low, "an even number", most=_WIDEST)
    if width % 2:
        faults.value("dims", "an even number, as columns turn in pairs", str(width))
    return width


def _above(faults: Faults, name: str, value: Any, low: float = 0) -> float:
    expected = f"a finite number above {low}"
    number = real(faults, name, value, expected)
    if number is not None and not low < number < math.inf:
        faults.value(name, expected, str(number))
    return 2.0 if number is None or not low < number < math.inf else number


def _at_least_1(faults: Faults, factor: Any) -> float:
    expected = "a finite number of at least 1"
    number = real(faults, "factor", factor, expected)
    if number is not None and not 1 <= number < math.inf:
        faults.value("factor", expected, str(number))
    return 1.0 if number is None else number
