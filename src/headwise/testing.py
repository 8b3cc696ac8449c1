"""Checks for tests, ours and yours: whether a vjp is that of its function.

Knows functions and differences; does not know attention.
"""

from __future__ import annotations  # numpy.random is loaded when it is used, not when it is named

import inspect
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from headwise.core.shapes import Array, Fault, Faults, array, broadcasts, generator, given_as, real, words

DIRECTIONS = 3  # random ones, for each argument
_LEVELS = 12  # steps, each half as long as the one before
_FLOOR = 2.0**-16  # of out over the longest reach: slopes below count as so large, else their noise would be judged
_SAME = 1e-9  # two runs may add in another order, but not draw other numbers


def check_vjp(
    f: Callable[..., tuple[Any, ...]],
    args: Sequence[ArrayLike],
    *,
    seed: int | np.random.Generator = 0,
    tolerance: float = 1e-7,
) -> float:
    """Compare a vjp with differences of its function: in random directions, for one argument after the other.

    Parameters
    ----------
    f : callable
        ``f(*args)`` returns ``(out, vjp)``, and ``vjp(d_out)`` the gradients of ``sum(out * d_out)`` in the order of
        ``args``: an array where there is one argument, else a tuple. Tuples and dicts in it are read in their order.
        None stands for a gradient that an argument does not have, which is not checked; where there are more gradients
        than arguments, those that are None are left out. With several outputs ``f`` returns ``(out, ..., vjp)``, and
        ``vjp`` takes one array for each. Anything that is not to be differentiated belongs into ``f``, by a lambda.
    args : list or tuple of array_like, each of any shape (...)
        Where to check. Floats, taken to float64. Entries that are NaN or infinite, as -inf in a bias, stay as they are;
        their gradient needs to be finite, no more.
    seed : int or numpy.random.Generator
        Where directions and ``d_out`` are drawn from.
    tolerance : float
        The largest relative error that is let through, above 0 and below 1.

    Returns
    -------
    float
        The worst relative error. For right gradients in float64 it is about 1e-12: ask for less where that matters.

    Raises
    ------
    AssertionError
        If a gradient is wrong, not finite, of another shape than its argument, or another one when ``vjp`` is called
        again. The text names argument, direction, expected, got, relative error.
    TypeError
        If ``f`` is no such function, or an argument does not hold floats.
    ValueError
        If there is nothing to check, or no verdict: ``f`` is random, not smooth, or coarser than ``tolerance``.

    Notes
    -----
    For an argument x with Jacobian J, a direction u and ``d_out``, ``<vjp(d_out), u>`` must be ``<d_out, J u>``. The
    slope ``J u`` comes from central differences, whose steps are halved and extrapolated until they agree [1]_; they
    begin at 1/64 of 1 or of the typical size of x, whichever is larger, and if that fails, whichever is smaller. The
    entries of u have random signs and sizes of 0.5 to 1.5. ``d_out`` is ``J u`` itself with half as much noise. The
    error is relative to ``|d_out| |J u|``, of which ``<d_out, J u>`` is thus never less than 0.86: a gradient that is
    too large by a share e as a whole shows about as large an error, however many entries there are.

    What cannot be seen: an error in one of N entries shows about 1/N as strongly, and less where that entry's gradient
    is small beside the others. With the default tolerance, one entry too large by 0.1 % is found as a rule among some
    hundred, one with the wrong sign among some hundred thousand: check small arrays. Slopes below 2^-16 of ``|out|``,
    or of ``|out|`` over the size of x if that is above 1, count as so large, since differences of ``out`` lose their
    digits there.

    References
    ----------
    .. [1] Ridders, "Accurate computation of F'(x) and F'(x) F''(x)", Advances in Engineering Software 4 (1982).

    Examples
    --------
    >>> def scaled(x, gain):
    ...     return x * gain, lambda d_out: (d_out * gain, (d_out * x).sum(axis=0))
    >>> x, gain = np.random.default_rng(0).standard_normal((5, 3)), np.array([0.5, 1.0, 2.0])
    >>> print(check_vjp(scaled, (x, gain)) < 1e-9)
    True
    >>> check_vjp(lambda x: (x * gain, lambda d_out: 1.001 * d_out * gain), [x])  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    AssertionError: check_vjp: args[0] (x): expected a slope of ... along direction ... of 3, ...
    """
    arrays, rng, tolerance = _checked(f, args, seed, tolerance)
    subject = _Subject(f, arrays)
    gradients = subject.repeated(rng)
    worst = 0.0
    for i, gradient in enumerate(gradients):
        if gradient is not None and np.isfinite(arrays[i]).any():
            worst = max(worst, _judged(subject, i, rng, tolerance))
    return worst


def _checked(f: Any, args: Any, seed: Any, tolerance: Any) -> tuple[list[Array], np.random.Generator, float]:
    faults = Faults("check_vjp")
    if not callable(f):
        faults.type("f", "a function that returns (out, vjp)", given_as(f), "pass the function, not what it returned")
    if not isinstance(args, tuple | list):
        faults.type("args", "a tuple or list of arrays", given_as(args), "one argument x alone is passed as (x,)")
    elif not args:
        faults.value("args", "at least one array", "none")
    given = args if isinstance(args, tuple | list) else ()
    arrays = [_floats(faults, name, value) for name, value in zip(_names(f, len(given)), given, strict=True)]
    rng = generator(faults, "seed", seed)
    limit = real(faults, "tolerance", tolerance, "a number above 0 and below 1")
    if limit is not None and not 0 < limit < 1:
        faults.value("tolerance", "a number above 0 and below 1", str(limit))
    faults.raise_any()
    assert rng is not None  # its absence is a fault
    assert limit is not None
    return [value for value in arrays if value is not None], rng, limit


def _floats(faults: Faults, name: str, value: Any) -> Array | None:
    given = array(faults, name, value)
    if given is not None and given.dtype.kind in "biu":
        remedy = "pass it as float64, or, if it is not to be differentiated, keep it inside f by a lambda"
        faults.type(name, "floats", f"dtype {given.dtype}", remedy)
        return None
    return None if given is None else given.astype(np.float64)


def _names(f: Any, count: int) -> list[str]:
    """What the arguments are called: ``args[0] (q)``, where f gives them names."""
    try:
        parameters = list(inspect.signature(f).parameters.values())
    except (TypeError, ValueError):  # not a function, or one that does not tell
        parameters = []
    names = [each.name for each in parameters if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)]
    return [f"args[{i}] ({names[i]})" if i < len(names) else f"args[{i}]" for i in range(count)]


def _wrong(name: str, expected: str, got: str, remedy: str = "") -> AssertionError:
    return AssertionError(f"check_vjp: {Fault(name, expected, got, remedy)}")


# ------------------------------------------------------------------------------------------ f and its vjp
class _Subject:
    """A function and its vjp at given arguments. All outputs together are one vector, and so is ``d_out``."""

    def __init__(self, f: Callable[..., Any], args: list[Array]) -> None:
        self.f, self.args, self.names = f, args, _names(f, len(args))
        outs, self.vjp = self._call(args)
        self.shapes = [out.shape for out in outs]
        self.out = _vector(outs)

    def _call(self, args: list[Array]) -> tuple[list[Array], Callable[..., Any]]:
        """The outputs of f, and its vjp. Every call gets its own copies: what f does with them is its own affair."""
        result, faults = self.f(*(arg.copy() for arg in args)), Faults("check_vjp")
        if not isinstance(result, tuple) or len(result) < 2 or not callable(result[-1]):
            kinds = ", ".join(type(each).__name__ for each in result) if isinstance(result, tuple) else ""
            got = f"a tuple of ({kinds})" if kinds else type(result).__name__
            faults.type("f", "a function that returns (out, vjp), vjp a function", got)
            faults.raise_any()
        *given, vjp = result
        outs = [array(faults, f"out {i}" if len(given) > 1 else "out", out) for i, out in enumerate(given)]
        faults.raise_any()
        return [out.astype(np.float64) for out in outs if out is not None], vjp

    def moved(self, i: int, value: Array) -> Array:
        """The outputs with another value of argument i."""
        outs, _ = self._call([*self.args[:i], value, *self.args[i + 1 :]])
        return _vector(outs)

    def gradients(self, d_out: Array) -> list[Array | None]:
        """What vjp says of each argument, once it has the right shape and is finite."""
        ends = np.cumsum([int(np.prod(shape)) for shape in self.shapes])[:-1]
        pieces = zip(np.split(d_out, ends), self.shapes, strict=True)
        got = _flat(self.vjp(*(piece.reshape(shape).copy() for piece, shape in pieces)))
        if len(got) > len(self.args):
            got = [each for each in got if each is not None]
        faults = Faults("check_vjp")
        if len(got) != len(self.args):
            expected = f"one gradient for each of {len(self.args)} arguments, in their order"
            faults.value("vjp", expected, f"{len(got)}", "None stands for the gradient of an argument that has none")
        faults.raise_any()
        return [None if each is None else self._gradient(i, each) for i, each in enumerate(got)]

    def _gradient(self, i: int, value: Any) -> Array:
        faults, name, arg = Faults("check_vjp"), self.names[i], self.args[i]
        given = array(faults, f"the gradient of {name}", value)
        faults.raise_any()
        assert given is not None  # its absence is a fault
        if given.shape != arg.shape:
            remedy = "the right numbers in another order?" if given.size == arg.size else ""
            if broadcasts(arg.shape, given.shape):
                remedy = "sum over the axes along which the argument is stretched"
            raise _wrong(name, f"a gradient of its shape {words(arg.shape)}", words(given.shape), remedy)
        gradient = given.astype(np.float64)
        if not np.isfinite(gradient).all():
            at = tuple(int(place) for place in np.argwhere(~np.isfinite(gradient))[0])
            got = f"{gradient[at]} at {list(at)}, where the argument is {arg[at]:.6g}"
            raise _wrong(name, "a gradient of finite numbers", got, "what is masked has gradient 0, not 0 * inf")
        return gradient

    def repeated(self, rng: np.random.Generator) -> list[Array | None]:
        """The gradients of a random d_out, once f and vjp both give again what they gave."""
        faults, again = Faults("check_vjp"), self.moved(0, self.args[0])
        if again.shape != self.out.shape or _apart(again, self.out):
            remedy = "a random f gets its seed inside: lambda q: f(q, rng=0)"
            faults.value("f", "the same output whenever the arguments are the same", "another one", remedy)
        d_out = np.where(np.isfinite(self.out), rng.standard_normal(self.out.shape), 0)
        first, second = self.gradients(d_out), self.gradients(d_out)
        if all(gradient is None for gradient in first):
            faults.value("vjp", "the gradient of at least one argument", "None for all of them")
        faults.raise_any()
        for name, one, other in zip(self.names, first, second, strict=True):
            if (one is None) != (other is None) or (one is not None and other is not None and _apart(one, other)):
                expected = "the same gradient when vjp is called again with the same d_out"
                raise _wrong(name, expected, "another one", "vjp must not change what it keeps")
        return first


def _flat(gradients: Any) -> list[Any]:
    """Gradients in order: those of tuples, lists and dicts one by one."""
    if isinstance(gradients, dict):
        gradients = tuple(gradients.values())
    if not isinstance(gradients, tuple | list):
        return [gradients]
    return [each for part in gradients for each in _flat(part)]


def _vector(outs: list[Array]) -> Array:
    return np.concatenate([out.ravel() for out in outs])


def _apart(a: Array, b: Array) -> bool:
    """Whether two arrays differ by more than the order of additions could do."""
    with np.errstate(all="ignore"):
        off = np.where((a == b) | (np.isnan(a) & np.isnan(b)), 0, a - b)
        return not _length(off) <= _SAME * _length(np.where(np.isfinite(a), a, 0))


def _length(vector: Array) -> float:
    """The norm, whose squares may neither overflow nor vanish."""
    largest = float(np.abs(vector).max(initial=0))
    return largest * float(np.linalg.norm(vector / largest)) if 0 < largest < np.inf else largest


# ----------------------------------------------------------------------------------------- one argument
class _Found(NamedTuple):
    """What one direction showed."""

    expected: float  # <d_out, J u>, by differences of f
    got: float  # <vjp(d_out), u>
    error: float  # relative to |d_out| |J u|


def _judged(subject: _Subject, i: int, rng: np.random.Generator, tolerance: float) -> float:
    """The worst relative error over the directions of one argument, if it is none to complain about."""
    found = [_along(subject, i, rng, tolerance) for _ in range(DIRECTIONS)]
    worst = max(range(DIRECTIONS), key=lambda j: found[j].error)
    expected, got, error = found[worst]
    if error <= tolerance:
        return error
    slope = f"a slope of {expected:.10g} along direction {worst + 1} of {DIRECTIONS}, by differences of f"
    what = f"{got:.10g}, relative error {error:.1e} above tolerance = {tolerance:.2g}"
    raise _wrong(subject.names[i], slope, what, _ratio(found))


def _ratio(found: list[_Found]) -> str:
    """A factor that all directions show is a sign, a scale or a sum that was forgotten."""
    ratios = [each.got / each.expected for each in found if each.expected]
    if len(ratios) < len(found) or max(ratios) - min(ratios) > abs(ratios[0] - 1) / 100:
        return ""
    return f"in every direction it is {ratios[0]:.6g} times what it should be"


def _along(subject: _Subject, i: int, rng: np.random.Generator, tolerance: float) -> _Found:
    """Compare in one random direction. d_out is mostly what comes out in that direction, so that no sum is near 0."""
    arg = subject.args[i]
    signed = rng.choice([-1.0, 1.0], arg.shape) * rng.uniform(0.5, 1.5, arg.shape)
    direction = np.where(np.isfinite(arg), signed, 0)
    slope, length = _slope(subject, i, direction, tolerance)
    noise = np.where(np.isfinite(subject.out), rng.standard_normal(subject.out.shape), 0)
    d_out = _unit(slope) + _unit(noise) / 2
    gradient = subject.gradients(d_out)[i]
    assert gradient is not None  # it was there before
    expected, got = float(d_out @ slope), float((gradient * direction).sum())
    off, whole = abs(got - expected), _length(d_out) * length
    return _Found(expected, got, off / whole if whole else np.inf * off if off else 0.0)


def _unit(vector: Array) -> Array:
    return vector / (_length(vector) or 1.0)


def _slope(subject: _Subject, i: int, direction: Array, tolerance: float) -> tuple[Array, float]:
    """``J u``, and its length with the floor below which rounding would be judged.

    Long steps come first, since short ones drown in the rounding of out. Beside the pole of a logarithm, or where much
    is added to what matters, only short ones settle.
    """
    arg, faults, reached = subject.args[i], Faults("check_vjp"), np.inf
    known = arg[np.isfinite(arg)]
    size = _length(known) / np.sqrt(known.size) or 1.0
    longest = max(size, 1.0)
    floor = _FLOOR * _length(subject.out[np.isfinite(subject.out)]) / longest

    def difference(step: float) -> Array:
        with np.errstate(all="ignore"):  # a step may lead out of where f is defined: it is not the last
            ahead, behind = (subject.moved(i, arg + side * step * direction) for side in (1, -1))
            return np.where(ahead == behind, 0, ahead - behind) / (2 * step)  # what stays infinite does not move

    for reach in sorted({longest, min(size, 1.0)}, reverse=True):
        slope, error = _extrapolated(difference, reach / 64, tolerance / 100, floor)
        length = _length(slope) + floor
        if error <= tolerance / 4 * length and (reach == longest or slope.any()):  # too short, nothing moves at all
            return slope, length
        reached = min(reached, error / length if length else np.inf)
    expected = f"differences that settle to tolerance / 4 = {tolerance / 4:.2g} of the slope"
    remedy = "f must be smooth around args and compute in float64: pass other args, or a larger tolerance"
    faults.value(subject.names[i], expected, f"{reached:.2g}" if reached < np.inf else "NaN or inf", remedy)
    faults.raise_any()
    raise AssertionError  # not reached: the fault was raised


def _extrapolated(
    difference: Callable[[float], Array], step: float, enough: float, floor: float
) -> tuple[Array, float]:
    """The limit of central differences for steps to 0, and how far its best estimates lie apart (Ridders).

    Their error is a series in step^2: two of them, of a step and of half of it, give one without its first term.
    """
    best, error, before = np.zeros(()), np.inf, list[Array]()
    for _ in range(_LEVELS):
        row = [difference(step)]
        with np.errstate(all="ignore"):
            for k, longer in enumerate(before):
                row.append(row[k] + (row[k] - longer) / (4.0 ** (k + 1) - 1))
                apart = max(_length(row[k + 1] - row[k]), _length(row[k + 1] - longer))
                best, error = (row[k + 1], apart) if apart < error else (best, error)
        if error <= enough * (_length(best) + floor):
            break
        before, step = row, step / 2
    return best, error
