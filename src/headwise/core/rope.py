"""Rope: queries and keys turned by their positions, so that their products depend on how far apart they are."""

from __future__ import annotations  # help() then shows ArrayLike as it is written

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from headwise.core.frequencies import Frequencies, plain_angles
from headwise.core.shapes import (
    Array,
    Faults,
    Shape,
    array,
    as_dtype,
    broadcasts,
    computing_dtype,
    given_as,
    gradient_of,
    integer,
    plain_array,
    real,
    result_dtype,
    words,
)

_FURTHEST = 2**53  # beyond it float64 does not hold every position
_STYLES = ("half", "interleaved")


class _Turn(NamedTuple):
    """A call of rope, checked: the array, and by what each pair turns."""

    x: Array
    cos: Array  # (..., n, dims / 2), with magnitude, shaped to broadcast against the heads
    sin: Array
    style: str
    dtype: np.dtype[Any]

    def of(self, x: Array, sin: Array) -> Array:
        """x in the computing type, its pairs turned."""
        pairs = self.cos.shape[-1]
        apart, step = (pairs, 1) if self.style == "half" else (1, 2)
        first, second = (np.s_[..., start : start + max((pairs - 1) * step + 1, 0) : step] for start in (0, apart))
        turned = x.astype(self.cos.dtype)  # a copy
        with np.errstate(all="ignore"):
            turned[first] = x[first] * self.cos - x[second] * sin
            turned[second] = x[second] * self.cos + x[first] * sin
        return turned


def rope(
    x: ArrayLike,
    positions: ArrayLike,
    *,
    style: str,
    base: float = 10_000.0,
    dims: int | None = None,
    frequencies: Frequencies | ArrayLike | None = None,
) -> Array:
    """Rotary position embedding: turn each pair of columns of queries or keys by an angle that grows with the position.

    A query and a key that are turned alike have a product that depends on the distance of their positions alone.

    Parameters
    ----------
    x : array_like, shape (..., n, d)
        Queries or keys.
    positions : array_like of int, shape (n,) or (B, n)
        Which position each row has; (B, n) for each item, against the batch axes of ``x``, never against heads.
        float64 is taken too; a shorter float is refused, as it does not hold every position.
    style : {"half", "interleaved"}
        Which columns make a pair: i and i + d/2 ("half": GPT-NeoX, Llama as Hugging Face stores it), or 2 i and
        2 i + 1 ("interleaved": the paper, GPT-J, Llama as Meta stores it).
    base : float
        Pair i turns by ``base ** (-2 i / dims)`` radians per position.
    dims : int, optional
        How many columns turn, an even number; the rest stay as they are. By default all.
    frequencies : Frequencies or array_like, shape (dims / 2,), optional
        What :mod:`headwise.frequencies` gives for models with stretched contexts, or radians per position. ``base`` is
        then not looked at.

    Returns
    -------
    ndarray, shape (..., n, d)
        In the float type of ``x``. Angles are computed in float64.

    Raises
    ------
    TypeError
        If an argument is of the wrong kind.
    ValueError
        If the width is odd, a style is unknown, positions or frequencies do not fit, or a position times a frequency
        is beyond float64.

    References
    ----------
    .. [1] Su et al., "RoFormer: Enhanced Transformer with Rotary Position Embedding", 2021, section 3.2.2.

    Examples
    --------
    >>> x = np.array([[1.0, 0.0], [1.0, 0.0]])
    >>> print(rope(x, [0, 1], style="half").round(4))  # the second row by one radian
    [[1.     0.    ]
     [0.5403 0.8415]]
    """
    turn = _checked_turn("rope", x, positions, style, base, dims, frequencies)
    return as_dtype(turn.of(turn.x, turn.sin), turn.dtype)


def rope_vjp(
    x: ArrayLike,
    positions: ArrayLike,
    *,
    style: str,
    base: float = 10_000.0,
    dims: int | None = None,
    frequencies: Frequencies | ArrayLike | None = None,
) -> tuple[Array, Callable[[ArrayLike], Array]]:
    """Rope, and the gradient of its result: the same turn, backwards.

    Parameters
    ----------
    x, positions, style, base, dims, frequencies
        As for :func:`rope`.

    Returns
    -------
    out : ndarray, shape (..., n, d)
        As :func:`rope` gives it.
    vjp : callable
        ``vjp(d_out)`` returns ``d_x``, of the shape and float type of ``x``, for ``d_out`` of the shape of ``out``.

    Raises
    ------
    TypeError, ValueError
        As :func:`rope` does, and the vjp if ``d_out`` does not fit.

    Examples
    --------
    >>> out, vjp = rope_vjp([[1.0, 0.0]], [1], style="half")
    >>> print(vjp(out))
    [[1. 0.]]
    """
    turn = _checked_turn("rope_vjp", x, positions, style, base, dims, frequencies)
    shape = turn.x.shape

    def vjp(d_out: ArrayLike) -> Array:
        faults = Faults("rope_vjp's vjp")
        given = gradient_of(faults, "d_out", d_out, "out", shape, "(..., n, d)")
        faults.raise_any()
        assert given is not None  # its absence is a fault
        return as_dtype(turn.of(as_dtype(given, turn.cos.dtype), -turn.sin), turn.dtype)

    return as_dtype(turn.of(turn.x, turn.sin), turn.dtype), vjp


def rope_permutation(d_head: int, *, to: str, n_heads: int = 1, dims: int | None = None) -> Array:
    """Return the order of columns that makes weights of one style of rope into weights of the other.

    Parameters
    ----------
    d_head : int
        Width of one head.
    to : {"half", "interleaved"}
        The style that is wanted of weights that have the other.
    n_heads : int
        How many heads lie side by side in the columns.
    dims : int, optional
        How many columns of each head turn, an even number; by default all.

    Returns
    -------
    ndarray of int, shape (n_heads * d_head,)
        ``w_q[:, order]`` and ``w_k[:, order]``, ``b_q[order]`` and ``b_k[order]``; values stay as they are.

    Raises
    ------
    TypeError, ValueError
        If an argument is of the wrong kind, or the number of columns that turn is odd.

    Examples
    --------
    >>> print(rope_permutation(6, to="half"), rope_permutation(4, to="interleaved", n_heads=2))
    [0 2 4 1 3 5] [0 2 1 3 4 6 5 7]
    """
    faults = Faults("rope_permutation")
    width = integer(faults, "d_head", d_head, 1, "the width of one head", most=2**20)
    heads = integer(faults, "n_heads", n_heads, 1, "a number of heads", most=2**20)
    _check_style(faults, "to", to)
    turning = _turning(faults, width, dims, "d_head") if width else 0
    faults.raise_any()
    pairs = np.arange(turning).reshape(-1, 2).T if to == "half" else np.arange(turning).reshape(2, -1).T
    order = np.concatenate([pairs.reshape(-1), np.arange(turning, width)])
    whole: Array = (np.arange(heads)[:, None] * width + order).reshape(-1)
    return whole


def check_rope_options(faults: Faults, style: Any, base: Any, dims: Any, frequencies: Any) -> Frequencies | None:
    """Check what can be checked of rope's options before there is an array; a copy of the frequencies, if any."""
    _check_style(faults, "style", style)
    seen = len(faults.found)
    turning = 2 if dims is None else _turning(faults, 2**20, dims, "the width")
    if frequencies is not None and dims is None:
        angles = frequencies.angles if isinstance(frequencies, Frequencies) else frequencies
        given = array(Faults("rope"), "frequencies", angles)  # what is wrong with it is said below
        turning = 0 if given is None else 2 * given.size
    if len(faults.found) > seen:
        return None
    known = _frequencies(faults, base, frequencies, turning)
    return None if frequencies is None else Frequencies(known.angles.copy(), known.magnitude)


def _checked_turn(function: str, x: Any, positions: Any, style: Any, base: Any, dims: Any, frequencies: Any) -> _Turn:
    faults = Faults(function)
    given, at = array(faults, "x", x), _positions(faults, positions)
    _check_style(faults, "style", style)
    turning = 0
    if given is not None and given.ndim < 2:
        faults.value("x", "(..., n, d)", words(given.shape))
    elif given is not None:
        turning = _turning(faults, given.shape[-1], dims, "the width of x")
        if at is not None:
            _check_rows(faults, at, given.shape)
    known = _frequencies(faults, base, frequencies, turning)
    if at is not None and not faults.found:
        _check_reach(faults, at, known.angles, "base" if frequencies is None else "frequencies")
    faults.raise_any()
    assert given is not None
    assert at is not None
    angles = at[..., None] * known.angles  # (..., n, dims / 2), float64
    if given.ndim >= 4 and at.ndim > 1:
        angles = angles[..., None, :, :]  # the same for all heads
    dtype = result_dtype(given.dtype)
    computing = computing_dtype(dtype)
    assert computing is not None  # of a result's type
    if abs(known.magnitude) > float(np.finfo(computing).max):
        faults.value("frequencies.magnitude", f"a number that is finite in {computing}", str(known.magnitude))
        faults.raise_any()
    cos, sin = (as_dtype(known.magnitude * part, computing) for part in (np.cos(angles), np.sin(angles)))
    return _Turn(given, cos, sin, style, dtype)


def _positions(faults: Faults, positions: Any) -> Array | None:
    """As float64, or None with the fault noted."""
    given = plain_array(faults, "positions", positions)
    if given is None:
        return None
    if given.dtype.kind not in "iu" and given.dtype != np.float64 and given.size:
        remedy = "a short float does not hold every position" if given.dtype.kind == "f" else ""
        faults.type("positions", "integers", f"dtype {given.dtype}", remedy)
        return None
    if given.ndim == 0:
        faults.value("positions", "(n,) or (B, n)", "a single number")
        return None
    if given.size and not (np.abs(given.astype(np.float64)) <= _FURTHEST).all():
        faults.value("positions", "numbers within 2**53", f"{given.min()} to {given.max()}")
        return None
    return given.astype(np.float64)


def _check_rows(faults: Faults, at: Array, shape: Shape) -> None:
    if _rows_fit(at.shape, shape):
        return
    expected, remedy = f"(n,) or (B, n) = {words(_rows(shape))} as x is {words(shape)}", ""
    if len(shape) >= 3 and _rows_fit(at.shape, (*shape[:-3], shape[-2], shape[-3], shape[-1])):
        remedy = f"; rows stand second to last: pass np.swapaxes(x, {len(shape) - 3}, {len(shape) - 2})"
    faults.value("positions", expected, words(at.shape), f"they hold for items, never for heads{remedy}")


def _rows(shape: Shape) -> Shape:
    """The batch axes of x, without heads, and its rows: (B, n)."""
    return (*(shape[:-3] if len(shape) >= 4 else shape[:-2]), shape[-2])


def _rows_fit(at: Shape, shape: Shape) -> bool:
    return at[-1] == shape[-2] and broadcasts(at, _rows(shape))


def _check_reach(faults: Faults, at: Array, angles: Array, source: str) -> None:
    """Note positions so far, and pairs so fast, that float64 does not hold the angle."""
    furthest, fastest = (float(np.abs(x).max(initial=0)) for x in (at, angles))
    if furthest * fastest == np.inf:
        got = f"position {furthest:.0f} at {fastest:g} radians per position"
        faults.value(f"positions and {source}", "angles (position times frequency) within float64", got)


def _check_style(faults: Faults, name: str, style: Any) -> None:
    if not isinstance(style, str):
        faults.type(name, "'half' or 'interleaved'", given_as(style))
    elif style not in _STYLES:
        faults.value(name, "'half' or 'interleaved'", repr(style))


def _turning(faults: Faults, width: int, dims: Any, of: str) -> int:
    """How many columns turn."""
    if dims is None:
        if width % 2:
            faults.value("dims", f"an even number, as {of} = {width} is odd", "None", "leave a column out: dims=")
        return width
    turning = integer(faults, "dims", dims, 0, "an even number")
    if turning % 2:
        faults.value("dims", "an even number, as columns turn in pairs", str(turning))
    elif turning > width:
        faults.value("dims", f"at most {of} = {width}", str(turning))
    return turning


def _frequencies(faults: Faults, base: Any, frequencies: Any, turning: int) -> Frequencies:
    if frequencies is None:
        number = real(faults, "base", base, "a finite number above 0")
        if number is not None and not 0 < number < np.inf:
            faults.value("base", "a finite number above 0", str(number))
        if faults.found or number is None:
            return Frequencies(np.zeros(0))
        return Frequencies(plain_angles(faults, turning, number))
    magnitude: float | None = 1.0
    if isinstance(frequencies, Frequencies):
        frequencies, magnitude = frequencies.angles, _magnitude(faults, frequencies.magnitude)
    angles = array(faults, "frequencies", frequencies)
    if angles is None or magnitude is None:
        return Frequencies(np.zeros(0))
    if angles.shape != (turning // 2,) and not faults.found:
        faults.value("frequencies", f"(dims / 2,) = {words((turning // 2,))}", words(angles.shape))
    angles = angles.astype(np.float64)
    if not np.isfinite(angles).all():
        faults.value("frequencies", "finite numbers", "NaN or inf")
    return Frequencies(angles, magnitude)


def _magnitude(faults: Faults, magnitude: Any) -> float | None:
    number = real(faults, "frequencies.magnitude", magnitude, "a finite number")
    if number is not None and not np.isfinite(number):
        faults.value("frequencies.magnitude", "a finite number", str(number))
    return number
