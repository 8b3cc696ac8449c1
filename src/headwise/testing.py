"""Checks for tests, ours and yours: whether a vjp is that of its function, and whether attention is attention.

Knows functions and differences; what attention must do it asks of `check`.
"""

from __future__ import annotations  # numpy.random is loaded when it is used, not when it is named

import inspect
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from headwise.check.grade import grade
from headwise.check.report import FAILED, UNTAKEN, Report
from headwise.core.shapes import (
    Array,
    Fault,
    Faults,
    Shape,
    array,
    broadcasts,
    generator,
    given_as,
    integer,
    real,
    words,
)

_SCALES = (1.0, 2.0**10, 2.0**-10)  # of d_out, in one direction each: a vjp that clips shows in another size only
DIRECTIONS = len(_SCALES)  # random ones, for each argument
_LEVELS = 12  # steps, each half as long as the one before
_FLOOR = 2.0**-16  # of out over the longest reach, and of moves over steps: below, noise would be judged
_SAME = 1e-9  # two runs may add in another order, but not draw other numbers
_UNLIKE = 2.0**100  # the largest weight of an output: d_out beyond would overflow a vjp that computes in float32
_EPS = float(np.finfo(np.float64).eps)

_REMEDY_ARG = "pass a plain array of float64: real and imaginary part of a complex one as two arguments"
_REMEDY_OUT = "f must return plain arrays of float64: real and imaginary part of a complex one as two outputs"
_REMEDY_GRADIENT = "vjp must return plain arrays of float64: what f is given and returns is real, so its gradients are"


def assert_attention(
    fn: Any, *, exercise: str = "attention", seed: int = 0, hints: int = 1, partial: bool = False
) -> None:
    """Fail, with a report that names the mistake, if an implementation of attention is wrong.

    Parameters
    ----------
    fn : callable
        The implementation: ``fn(q, k, v, mask=None)`` that returns ``out`` or ``(out, weights)``, or what another
        exercise asks for. It runs in this process, without limits of time or memory.
    exercise : str
        ``softmax``, ``attention``, ``single_sequence``, ``causal_mask``, ``multi_head`` or ``layer``.
    seed : int
        From which the inputs are drawn.
    hints : int
        How much is said of a failure: 0 that it failed, 1 with the numbers and the mistake's name, 2 where to look,
        3 the formula.
    partial : bool
        Whether checks may be left out for which ``fn`` has no argument, as those of a mask.

    Returns
    -------
    None
        So that a grader which reads the last value of a cell finds none.

    Raises
    ------
    AssertionError
        If a check failed, or was left out that may not be; the text is the report. Also if ``fn`` is no function.
    ValueError, TypeError
        As :func:`headwise.check.grade` does.

    Examples
    --------
    >>> import headwise
    >>> assert_attention(headwise.scaled_dot_product_attention)
    >>> assert_attention(lambda q, k, v, mask=None: q @ k.T @ v)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    AssertionError: ...
    """
    __tracebackhide__ = True  # of this library's lines a grader need not show any
    faults = Faults("assert_attention")
    integer(faults, "hints", hints, 0, "a number of hints", most=3)
    faults.raise_any()
    if not callable(fn):  # as a learner's None is: a wrong answer, no misuse
        raise AssertionError(f"assert_attention: fn: expected a function or class, got {given_as(fn)}")
    report = grade(fn, exercise, seed=seed)
    untaken = [verdict for verdict in report.verdicts if verdict.status == UNTAKEN and verdict.weight]
    if not report.passed or (untaken and not partial):
        raise AssertionError(_summary(report, hints))


def _summary(report: Report, hints: int) -> str:
    """One line that says it, for graders that show no more; then the report."""
    failed = [verdict for verdict in report.verdicts if verdict.status == FAILED]
    names = dict.fromkeys(mistake.name for verdict in failed for mistake in verdict.mistakes)
    if not failed:
        untaken = [verdict for verdict in report.verdicts if verdict.status == UNTAKEN and verdict.weight]
        left_out = f"{len(untaken)} of {len(report.verdicts)} checks could not be made: {untaken[0].remarks[0]}"
        return f"{left_out}; add it, or pass partial=True\n{report.text(hints)}"
    known = f", known mistakes: {', '.join(names)}" if names and hints else ""
    return f"{len(failed)} of {len(report.verdicts)} checks failed{known}\n{report.text(hints)}"


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
        If ``f`` is no such function, or an argument does not hold floats. What ``f`` and ``vjp`` raise comes through.
    ValueError
        If there is nothing to check, as no argument that has a gradient, or no output, holds a finite number; or if
        there is no verdict: ``f`` is random, not smooth, or coarser than ``tolerance``.

    Notes
    -----
    For an argument x with Jacobian J, a direction u and ``d_out``, ``<vjp(d_out), u>`` must be ``<d_out, J u>``. The
    slope ``J u`` comes from central differences, whose steps are halved and extrapolated until they agree [1]_; they
    begin at 1/64 of 1 or of the typical size of x, whichever is larger, and if that shows little, whichever is smaller.
    The entries of u have random signs and sizes of 0.5 to 1.5. ``d_out`` is ``J u`` itself with half as much noise. The
    error is relative to ``|d_out| |J u|``, of which ``<d_out, J u>`` is thus never less than 0.86: a gradient that is
    too large by a share e as a whole shows about as large an error, however many entries there are. Several outputs
    count alike, unless their slopes are more than 2^100 apart: with n of them, an error of one shows 1/n as strongly.

    What cannot be seen: an error in one of N entries shows about 1/N as strongly, and less where that entry's gradient
    is small beside the others. With the default tolerance, one entry too large by 0.1 % is found as a rule among some
    hundred, one with the wrong sign among some hundred thousand: check small arrays. Slopes of an output below 2^-16 of
    ``|out|``, or of ``|out|`` over the size of x if that is above 1, count as so large, since differences of ``out``
    lose their digits there; so do those below 2^-16 of what a step moves ``out``, over that step, as where x^3 is flat.
    ``d_out`` is 1024 times as large in one direction, as small in another: a vjp that clips beyond that is not found.

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
    known = [i for i, gradient in enumerate(gradients) if gradient is not None and np.isfinite(arrays[i]).any()]
    _something(subject, known, gradients)
    return max(_judged(subject, i, rng, tolerance) for i in known)


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


def _something(subject: _Subject, known: list[int], gradients: list[Array | None]) -> None:
    """Where nothing can be checked, a pass would say too much."""
    faults = Faults("check_vjp")
    if not known:
        given = zip(subject.names, subject.args, gradients, strict=True)
        got = " and ".join(f"{name} of shape {words(x.shape)}" for name, x, gradient in given if gradient is not None)
        remedy = "pass arrays that are neither empty nor all NaN or infinite"
        faults.value("args", "a finite number to differentiate by", f"none in {got}", remedy)
    elif all(subject.sizes) and not np.isfinite(subject.out).any():  # an empty one has gradients: zeros
        got = f"{subject.out.size} that are NaN or infinite"
        faults.value("out", "a finite number to differentiate", got, "pass args at which f is finite")
    faults.raise_any()


def _array(faults: Faults, name: str, value: Any, remedy: str) -> Array | None:
    """As an array of real numbers; where it is none, with a remedy that suits what is differentiated."""
    own = Faults("check_vjp")
    given = array(own, name, value)
    faults.found += [fault._replace(remedy=remedy) for fault in own.found]
    return given


def _floats(faults: Faults, name: str, value: Any) -> Array | None:
    given = _array(faults, name, value, _REMEDY_ARG)
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


def _call(function: Any, name: str, given: list[Array], expected: str, remedy: str) -> Any:
    """What a function returns. That it takes another number of arguments is said in our words, nothing else is."""
    try:
        return function(*given)
    except TypeError as error:
        trace = error.__traceback__
        if trace is not None and trace.tb_next is not None and _binds(function, given):
            raise  # from within
        raise TypeError(f"check_vjp: {Fault(name, expected, f'TypeError: {error}', remedy)}") from error


def _binds(function: Any, given: list[Array]) -> bool:
    """Whether the signature takes so many arguments, or does not tell."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return True
    try:
        signature.bind(*given)
    except TypeError:
        return False
    return True


def _several(count: int, what: str) -> str:
    return f"a function of {count} argument{'s' * (count > 1)}, {what}"


def _wrong(name: str, expected: str, got: str, remedy: str = "") -> AssertionError:
    return AssertionError(f"check_vjp: {Fault(name, expected, got, remedy)}")


# ------------------------------------------------------------------------------------------ f and its vjp
class _Subject:
    """A function and its vjp at given arguments. Its outputs are pieces of one vector, and of ``d_out`` likewise."""

    def __init__(self, f: Callable[..., Any], args: list[Array]) -> None:
        self.f, self.args, self.names = f, args, _names(f, len(args))
        outs, self.vjp = self._call(args)
        self.shapes = [out.shape for out in outs]
        self.sizes = [out.size for out in outs]
        self.out = _vector(outs)

    def _call(self, args: list[Array]) -> tuple[list[Array], Callable[..., Any]]:
        """The outputs of f, and its vjp. Every call gets its own copies: what f does with them is its own affair."""
        faults, expected = Faults("check_vjp"), _several(len(args), "one for each of args")
        remedy = "args hold what is differentiated, all else belongs into f by a lambda"
        result = _call(self.f, "f", [arg.copy() for arg in args], expected, remedy)
        if not isinstance(result, tuple) or len(result) < 2 or not callable(result[-1]):
            kinds = ", ".join(type(each).__name__ for each in result) if isinstance(result, tuple) else ""
            got = f"a tuple of ({kinds})" if kinds else type(result).__name__
            faults.type("f", "a function that returns (out, vjp), vjp a function", got)
            faults.raise_any()
        *given, vjp = result
        names = [f"out {i}" if len(given) > 1 else "out" for i in range(len(given))]
        outs = [_array(faults, name, out, _REMEDY_OUT) for name, out in zip(names, given, strict=True)]
        faults.raise_any()
        return [out.astype(np.float64) for out in outs if out is not None], vjp

    def moved(self, i: int, value: Array) -> Array:
        """The outputs with another value of argument i."""
        outs, _ = self._call([*self.args[:i], value, *self.args[i + 1 :]])
        shapes, faults = [out.shape for out in outs], Faults("check_vjp")
        if shapes != self.shapes:
            expected = f"outputs of the same shape in every call, as the first time: {_listed(self.shapes)}"
            remedy = "shapes must not depend on the numbers in args, nor on chance"
            faults.value("f", expected, _listed(shapes), remedy)
        faults.raise_any()
        return _vector(outs)

    def pieces(self, vector: Array) -> list[Array]:
        """What belongs to each output."""
        return np.split(vector, np.cumsum(self.sizes)[:-1])

    def lengths(self, vector: Array) -> Array:
        """The norm of what belongs to each output."""
        return np.array([_length(piece) for piece in self.pieces(vector)])

    def spread(self, values: Array) -> Array:
        """A value for each output, as one for each number in it."""
        return np.repeat(values, self.sizes)

    def gradients(self, d_out: Array) -> list[Array | None]:
        """What vjp says of each argument, once it has the right shape and is finite."""
        given = [piece.reshape(shape).copy() for piece, shape in zip(self.pieces(d_out), self.shapes, strict=True)]
        expected = _several(len(given), f"a d_out for each output of f: {_listed(self.shapes)}")
        got = _flat(_call(self.vjp, "vjp", given, expected, "what f returns before vjp are its outputs"))
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
        given = _array(faults, f"the gradient of {name}", value, _REMEDY_GRADIENT)
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
            remedy = "" if np.isfinite(arg[at]) else "what is masked has gradient 0, not 0 * inf"
            raise _wrong(name, "a gradient of finite numbers", got, remedy)
        return gradient

    def repeated(self, rng: np.random.Generator) -> list[Array | None]:
        """The gradients of a random d_out, once f and vjp both give again what they gave."""
        faults, again = Faults("check_vjp"), self.moved(0, self.args[0])
        if _apart(again, self.out):
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


def _listed(shapes: list[Shape]) -> str:
    return ", ".join(words(shape) for shape in shapes)


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
    found = [_along(subject, i, rng, tolerance, scale) for scale in _SCALES]
    worst = max(range(DIRECTIONS), key=lambda j: found[j].error)
    expected, got, error = found[worst]
    if error <= tolerance:
        return error
    digits = _digits(error, 10)
    slope = f"a slope of {expected:.{digits}g} along direction {worst + 1} of {DIRECTIONS}, by differences of f"
    what = f"{got:.{digits}g}, relative error {error:.1e} above tolerance = {tolerance:.2g}"
    as_usual = "with d_out of about 1 it fits, with one 1024 times as large or small it does not: vjp must be linear"
    raise _wrong(subject.names[i], slope, what, as_usual if found[0].error <= tolerance else _ratio(found))


def _digits(share: float, least: int) -> int:
    """How many digits show a difference of this share."""
    return int(np.clip(2 - np.floor(np.log10(share)), least, 17)) if 0 < share < 1 else least


def _ratio(found: list[_Found]) -> str:
    """A factor that all directions show is a sign, a scale or a sum that was forgotten."""
    ratios = [each.got / each.expected for each in found if each.expected]
    if len(ratios) < len(found) or max(ratios) - min(ratios) > abs(ratios[0] - 1) / 100:
        return ""
    return f"in every direction it is {ratios[0]:.{_digits(abs(ratios[0] - 1), 6)}g} times what it should be"


def _along(subject: _Subject, i: int, rng: np.random.Generator, tolerance: float, scale: float) -> _Found:
    """Compare in one random direction. d_out is mostly what comes out in that direction, so that no sum is near 0."""
    arg = subject.args[i]
    signed = rng.choice([-1.0, 1.0], arg.shape) * rng.uniform(0.5, 1.5, arg.shape)
    direction = np.where(np.isfinite(arg), signed, 0)
    slope, lengths = _slope(subject, i, direction, tolerance)
    noise = np.where(np.isfinite(subject.out), rng.standard_normal(subject.out.shape), 0)
    pairs = zip(subject.pieces(slope), subject.pieces(noise), strict=True)
    d_out = np.concatenate([_unit(main) + _unit(other) / 2 for main, other in pairs])
    d_out *= scale * subject.spread(_weights(lengths))
    gradient = subject.gradients(d_out)[i]
    assert gradient is not None  # it was there before
    expected, got = float(d_out @ slope), float((gradient * direction).sum())
    off, whole = abs(got - expected), float(subject.lengths(d_out) @ lengths)
    return _Found(expected, got, off / whole if whole else np.inf * off if off else 0.0)


def _unit(vector: Array) -> Array:
    return vector / (_length(vector) or 1.0)


def _weights(lengths: Array) -> Array:
    """Factors that make all outputs count alike."""
    known = np.where(lengths > 0, lengths, lengths.max())
    with np.errstate(all="ignore"):
        return np.where(known > 0, np.minimum(known.max() / known, _UNLIKE), 1.0)


class _Estimate(NamedTuple):
    """What differences say of ``J u``."""

    slope: Array
    lengths: Array  # of each output's piece of it, and the floor
    floors: Array  # of each output: below, rounding would be judged
    errors: Array  # of each output, relative to lengths

    @property
    def sharp(self) -> Array:
        """For each output, whether more than the floor is seen of it."""
        return self.lengths >= 2 * self.floors


def _mixed(subject: _Subject, better: Array, new: _Estimate, old: _Estimate) -> _Estimate:
    """The new estimate for those outputs of which it is the better one."""
    slope = np.where(subject.spread(better), new.slope, old.slope)
    return _Estimate(slope, *(np.where(better, a, b) for a, b in zip(new[1:], old[1:], strict=True)))


def _nothing(subject: _Subject) -> _Estimate:
    zeros = np.zeros(len(subject.sizes))
    return _Estimate(np.zeros(subject.out.shape), zeros, zeros, zeros + np.inf)


def _slope(subject: _Subject, i: int, direction: Array, tolerance: float) -> tuple[Array, Array]:
    """``J u``, and for each output its length with the floor.

    Long steps come first, since short ones drown in the rounding of out. Beside the pole of a logarithm, where much is
    added to what matters, or where x is lost beside the step, only short ones settle or show more than the floor.
    """
    arg, reached = subject.args[i], np.inf
    known = arg[np.isfinite(arg)]
    size = _length(known) / np.sqrt(known.size) or 1.0
    longest = max(size, 1.0)
    best = _nothing(subject)
    for reach in sorted({longest, min(size, 1.0)}, reverse=True):
        differences = _Differences(subject, i, direction, longest)
        new = _extrapolated(differences, reach / 64, tolerance / 100)
        moves = (new.lengths > new.floors) | (reach == longest)  # too short, nothing moves at all
        settled = np.isfinite(best.errors)
        better = (new.errors <= tolerance / 4) & moves & (~settled | (new.sharp & ~best.sharp))
        best = _mixed(subject, better, new, best)
        reached = min(reached, np.where(moves, new.errors, np.inf).max())
        if (np.isfinite(best.errors) & best.sharp).all():
            break
    if not np.isfinite(best.errors).all():
        _unsettled(subject.names[i], tolerance, reached)
    return best.slope, best.lengths


def _unsettled(name: str, tolerance: float, reached: float) -> None:
    faults = Faults("check_vjp")
    expected = f"differences that settle to tolerance / 4 = {tolerance / 4:.2g} of the slope"
    remedy = "f must be smooth around args and compute in float64: pass other args, or a larger tolerance"
    faults.value(name, expected, f"{reached:.2g}" if reached < np.inf else "NaN or inf", remedy)
    faults.raise_any()


class _Differences(NamedTuple):
    """Central differences of f along a direction."""

    subject: _Subject
    i: int
    direction: Array
    longest: float

    def at(self, step: float) -> tuple[Array, Array, Array]:
        """The difference; for each output the floor, and what rounding may do to it.

        What is lost of x beside the step shifts the middle of both ends by a share eps of the step, and so changes the
        slope by about as much as rounding of what the ends move.
        """
        subject, arg = self.subject, self.subject.args[self.i]
        with np.errstate(all="ignore"):  # a step may lead out of where f is defined: it is not the last
            ahead, behind = (subject.moved(self.i, arg + side * step * self.direction) for side in (1, -1))
            slope = np.where(ahead == behind, 0, ahead - behind) / (2 * step)  # what stays infinite does not move
            far = _finite(np.fmax(np.abs(ahead - subject.out), np.abs(behind - subject.out)))
            rounded = np.where(far > 0, _finite(np.fmax(np.abs(ahead), np.abs(behind))), 0)
        floors = subject.lengths(_finite(subject.out)) / self.longest + subject.lengths(far) / step
        return slope, _FLOOR * floors, _EPS * subject.lengths(rounded) / step


def _finite(vector: Array) -> Array:
    return np.where(np.isfinite(vector), vector, 0)


def _extrapolated(differences: _Differences, step: float, enough: float) -> _Estimate:
    """The limit of central differences for steps to 0, and how far its best estimates lie apart (Ridders).

    Their error is a series in step^2: two of them, of a step and of half of it, give one without its first term.
    """
    subject, before = differences.subject, list[Array]()
    best = _nothing(subject)
    for _ in range(_LEVELS):
        slope, floors, rounding = differences.at(step)
        row = [slope]
        with np.errstate(all="ignore"):
            for k, longer in enumerate(before):
                row.append(row[k] + (row[k] - longer) / (4.0 ** (k + 1) - 1))
                apart = np.maximum(subject.lengths(row[k + 1] - row[k]), subject.lengths(row[k + 1] - longer))
                off, lengths = apart + rounding, subject.lengths(row[k + 1]) + floors
                new = _Estimate(row[k + 1], lengths, floors, np.where(off == 0, 0, off / lengths))
                best = _mixed(subject, new.errors < best.errors, new, best)
        if (best.errors <= enough).all():
            break
        before, step = row, step / 2
    return best
