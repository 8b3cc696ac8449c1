"""Positions: alibi, a bias that is evaluated where it is needed and never stored whole; T5's relative positions, a bias
that is looked up in a learned table; rope, which turns q and k."""

from __future__ import annotations  # help() then shows ArrayLike as it is written

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from headwise.core.frequencies import Frequencies, plain_angles
from headwise.core.shapes import (
    Array,
    Fault,
    Faults,
    PerItem,
    Shape,
    Span,
    array,
    brief,
    broadcasts,
    computing_dtype,
    diagonals,
    distances,
    flag,
    given_as,
    gradient_of,
    integer,
    item_integers,
    per_head_misfits,
    plain_array,
    real,
    result_dtype,
    score_shape,
    spread,
    tile_of,
    words,
)


def alibi_slopes(n_heads: int) -> Array:
    """The slopes of ALiBi for any number of heads.

    Parameters
    ----------
    n_heads : int
        Number of heads H, at least 1.

    Returns
    -------
    ndarray of float64, shape (H,)
        ``2 ** (-8 h / H)`` for h = 1 ... H where H is a power of two. Otherwise the slopes of the power of two below,
        then every other slope of the power of two above, as the authors' code has it.

    Raises
    ------
    TypeError
        If ``n_heads`` is not an integer.
    ValueError
        If it is below 1.

    References
    ----------
    .. [1] Press, Smith, Lewis, "Train Short, Test Long: Attention with Linear Biases Enables Input Length
       Extrapolation", ICLR 2022, section 3; for other counts the function ``get_slopes`` of the authors' repository.

    Examples
    --------
    >>> print(alibi_slopes(4))
    [0.25       0.0625     0.015625   0.00390625]
    >>> print(1 / alibi_slopes(6))
    [  4.  16.  64. 256.   2.   8.]
    """
    faults = Faults("alibi_slopes")
    count = integer(faults, "n_heads", n_heads, 1, "a number of heads", most=2**20)
    faults.raise_any()
    below = 2 ** (count.bit_length() - 1)
    slopes = np.exp2(-8.0 * np.arange(1, below + 1) / below)
    between = np.exp2(-8.0 * np.arange(1, 2 * below, 2) / (2 * below))
    return np.concatenate([slopes, between[: count - below]])


class Alibi:
    """The bias ``-slope * |i + offset - j|`` of one head. Made by :func:`alibi`."""

    __slots__ = ("offset", "slopes")
    role = "bias"

    def __init__(self, slopes: Array, offset: PerItem | None) -> None:
        self.slopes, self.offset = slopes, offset

    def misfits(self, scores: Shape) -> list[Fault]:
        """What keeps it from fitting a score shape."""
        items = self.offset.misfits(scores) if self.offset else []
        return per_head_misfits("slopes", self.slopes, scores) + items

    def _at(self, scores: Shape, lead: Shape | None, rows: slice, cols: slice) -> Array:
        """The bias of these queries and keys, for one item and head, or (lead None) broadcasting to all: float64."""
        distance = np.abs(distances(self.offset, scores, lead, rows, cols))
        if len(scores) == 2:
            slopes = self.slopes[0]
        else:
            slopes = self.slopes[:, None, None] if lead is None else self.slopes[lead[-1]]
        with np.errstate(all="ignore"):  # a slope so steep that the bias is -inf
            bias: Array = -slopes * distance
        return bias

    def _spread(self, scores: Shape, lead: Shape, slopes: Array, dtype: Any, rows: slice, cols: slice) -> Array:
        """The bias of a tile of one item, for the heads of these slopes (...): a view (..., n_rows, n_cols)."""
        values = -slopes[..., None] * np.abs(diagonals(self.offset, scores, lead, rows, cols))
        return spread(values.astype(dtype), rows.stop - rows.start, cols.stop - cols.start)

    def _largest(self, scores: Shape, lead: Shape) -> float:
        """The largest distance that any query and key of one item have."""
        n_q, n_k = scores[-2:]
        ends = [distances(self.offset, scores, lead, *corner) for corner in _corners(n_q, n_k)]
        return float(max(abs(int(end.item())) for end in ends))

    def steepest(self, scores: Shape) -> float:
        """A bound on the size of the bias, for all items and heads; infinite where it does not fit float64."""
        offset = 0 if self.offset is None else int(np.abs(self.offset.values).max(initial=0))
        slope = float(np.abs(self.slopes).max(initial=0))
        return slope * float(scores[-1] + scores[-2] + offset)

    def tile(self, shape: Shape, lead: Shape, rows: Span, cols: Span) -> Array:
        """The bias of a tile of one item and head: float64, shape (n_rows, n_cols). Arguments as of ``Mask.tile``."""
        return self._at(*tile_of("Alibi.tile", self, shape, lead, rows, cols))

    def dense(self, shape: Shape) -> Array:
        """The bias of all queries and keys, of that score shape: float64, read-only."""
        scores = score_shape("Alibi.dense", self, shape, whole=True)
        return np.broadcast_to(self._at(scores, None, slice(0, scores[-2]), slice(0, scores[-1])), scores)

    def __repr__(self) -> str:
        offset = f", offset={brief(self.offset.values)}" if self.offset else ""
        return f"alibi({brief(self.slopes)}{offset})"


def _corners(n_q: int, n_k: int) -> list[tuple[slice, slice]]:
    """The tiles of one query and one key in the corners where distances are largest."""
    return [(slice(0, 1), slice(n_k - 1, n_k)), (slice(n_q - 1, n_q), slice(0, 1))]


def checked_slopes(faults: Faults, slopes: Any) -> Array | None:
    """Slopes as a copy in float64, or None with the fault noted."""
    given, before = array(faults, "slopes", slopes), len(faults.found)
    if given is None:
        return None
    if given.ndim != 1:
        faults.value("slopes", "one number per head, shape (H,)", words(given.shape))
    elif not np.isfinite(np.asarray(given, np.float64)).all():
        faults.value("slopes", "finite numbers", "NaN or inf")
    return np.array(given, np.float64) if len(faults.found) == before else None


def alibi(slopes: ArrayLike, offset: ArrayLike | None = None) -> Alibi:
    """Attention with linear biases: the further a key, the lower its score. Pass it as ``bias=``.

    Parameters
    ----------
    slopes : array_like, shape (H,)
        How much the score of each head falls per position; see :func:`alibi_slopes`.
    offset : int or array_like of int, shape (B,), optional
        How many keys come before query 0's own, as for :func:`headwise.masks.causal`; by default ``n_k - n_q``.

    Returns
    -------
    Alibi
        ``-slope * |i + offset - j|`` for query i and key j, evaluated where it is needed.

    Raises
    ------
    TypeError
        If ``slopes`` are not real numbers or an offset is not an integer.
    ValueError
        If ``slopes`` are not finite, or not one row of numbers.

    References
    ----------
    .. [1] Press, Smith, Lewis, "Train Short, Test Long", ICLR 2022, section 3.

    Examples
    --------
    >>> print(alibi([0.5]).dense((2, 3)))
    [[-0.5 -0.  -0.5]
     [-1.  -0.5 -0. ]]
    """
    faults = Faults("alibi")
    given = checked_slopes(faults, slopes)
    items: Any = None if offset is None else item_integers(faults, "offset", offset)
    faults.raise_any()
    assert given is not None  # its absence is a fault
    return Alibi(given, items)


# ------------------------------------------------------------------------------------------- relative positions
_MOST_BUCKETS = 2**20


class _Buckets(NamedTuple):
    """How T5 sorts distances into buckets, checked."""

    n_buckets: int
    bidirectional: bool
    max_distance: int

    def of(self, distance: Array) -> Array:
        """The bucket of each distance ``j - i`` of a key from its query: below the query first, above it last."""
        count, above = self.n_buckets, np.zeros((), np.int64)
        if self.bidirectional:
            count //= 2
            above = count * (distance > 0)
        away = np.abs(distance) if self.bidirectional else np.maximum(-distance, 0)
        return above + np.where(away < _exact(count), away, _logarithmic(count, self.max_distance, away))


def _exact(count: int) -> int:
    """How many buckets of one direction hold one distance each."""
    return count // 2


def _logarithmic(count: int, max_distance: int, away: Array) -> Array:
    """The bucket of distances beyond those: as many to each factor, the last one for all from ``max_distance`` on."""
    exact = _exact(count)
    if not exact:  # one bucket: it holds all
        return np.zeros_like(away)
    share = np.log(np.maximum(away, exact) / exact) / np.log(max_distance / exact)
    # 16 is exactly a quarter of the way from 8 to 128: logarithms that are rounded must not make it less
    steps = np.floor(np.round(share * (count - exact), 9)).astype(np.int64)
    bucket: Array = np.minimum(exact + steps, count - 1)
    return bucket


def _checked_buckets(faults: Faults, count: int, named: str, bidirectional: Any, max_distance: Any) -> _Buckets:
    """Buckets of which ``named`` says how many; 0 of them is a fault that was noted before."""
    both = flag(faults, "bidirectional", bidirectional)
    furthest = integer(faults, "max_distance", max_distance, 1, "a distance", most=2**53)
    if both and count % 2:
        remedy = "half of them are for keys after their query; a decoder has bidirectional=False"
        faults.value(named, "an even number of buckets with bidirectional", str(count), remedy)
    exact = _exact(count // 2 if both else count)
    if count and 0 < furthest <= exact:
        remedy = f"the first {exact} distances have a bucket each, the others go up to it"
        faults.value("max_distance", f"a distance above {exact}", str(furthest), remedy)
    return _Buckets(count, both, furthest)


def _bucket_diagonals(faults: Faults, buckets: _Buckets, n_q: int, n_k: int, offset: Any) -> Array:
    """The bucket of each diagonal of the scores, from the upper right corner to the lower left one; raises faults."""
    first = n_k - n_q if offset is None else integer(faults, "offset", offset, None, "an integer", most=2**53)
    faults.raise_any()
    return buckets.of(np.arange(n_k - 1, -n_q, -1) - first)


def _count_of(faults: Faults, name: str, value: Any) -> int:
    return integer(faults, name, value, 0, "a number of tokens", most=2**53)


def relative_position_bias(
    table: ArrayLike,
    n_q: int,
    n_k: int,
    *,
    bidirectional: bool = True,
    max_distance: int = 128,
    offset: int | None = None,
) -> Array:
    """T5's bias: a learned number for each head and each bucket of distances. Pass it as ``bias=``.

    Parameters
    ----------
    table : array_like, shape (n_buckets, H)
        A model's ``relative_attention_bias.weight``. With ``bidirectional`` n_buckets is even.
    n_q, n_k : int
        Numbers of queries and of keys.
    bidirectional : bool
        True, as in encoders: the first half of the buckets is for keys up to the query, the second for those after it.
        False, as in decoders: all are for keys up to the query, and those after it count as distance 0.
    max_distance : int
        Distances from here on share the last bucket.
    offset : int, optional
        Position of query 0 among the keys; by default ``n_k - n_q``, as in :func:`headwise.masks.causal`.

    Returns
    -------
    ndarray, shape (H, n_q, n_k)
        ``table[bucket of j - (i + offset), h]`` for query i and key j, in the float type of ``table``.

    Raises
    ------
    TypeError
        If an argument is of the wrong kind.
    ValueError
        If ``table`` has not two axes, a number is out of range, or ``n_buckets`` is odd with ``bidirectional``.

    Notes
    -----
    Of N buckets for one direction the first ``e = N // 2`` hold the distances 0 to e - 1, one each. A longer distance d
    has ``e + floor(log(d / e) / log(max_distance / e) * (N - e))``, at most N - 1 [1]_.

    T5 adds it with ``scale=1``, and all its layers share the table of the first.

    References
    ----------
    .. [1] Raffel et al., "Exploring the Limits of Transfer Learning with a Unified Text-to-Text Transformer", JMLR
       2020, section 2.1; the formula is ``_relative_position_bucket`` of the authors' Mesh TensorFlow.

    Examples
    --------
    >>> table = [[0.0], [1.0], [2.0], [3.0]]  # 0: the own key, 1: keys before it, 3: keys after it
    >>> print(relative_position_bias(table, 3, 3)[0])
    [[0. 3. 3.]
     [1. 0. 3.]
     [1. 1. 0.]]
    """
    faults = Faults("relative_position_bias")
    given = array(faults, "table", table)
    if given is not None and (given.ndim != 2 or not 1 <= len(given) <= _MOST_BUCKETS):
        faults.value("table", f"(n_buckets, H), with 1 to {_MOST_BUCKETS} buckets", words(given.shape))
        given = None
    counts = _count_of(faults, "n_q", n_q), _count_of(faults, "n_k", n_k)
    buckets = _checked_buckets(faults, 0 if given is None else len(given), "table", bidirectional, max_distance)
    diagonal = _bucket_diagonals(faults, buckets, *counts, offset)
    assert given is not None  # its absence is a fault
    values = given.astype(result_dtype(given.dtype), copy=False)
    if 0 in counts:
        return np.zeros((values.shape[1], *counts), values.dtype)
    return spread(values.T[:, diagonal], *counts).copy()


def relative_position_bias_vjp(
    d_bias: ArrayLike,
    n_buckets: int,
    *,
    bidirectional: bool = True,
    max_distance: int = 128,
    offset: int | None = None,
) -> Array:
    """Return the gradient of the table, from that of :func:`relative_position_bias`: the sums over each bucket.

    Parameters
    ----------
    d_bias : array_like, shape (H, n_q, n_k)
        As ``bias`` of :class:`headwise.AttentionGradients` or :class:`headwise.MultiHeadGradients`.
    n_buckets : int
        Rows of the table.
    bidirectional, max_distance, offset
        As for :func:`relative_position_bias`.

    Returns
    -------
    ndarray, shape (n_buckets, H)
        In the float type of ``d_bias``; summed in float64.

    Raises
    ------
    TypeError, ValueError
        As :func:`relative_position_bias` does.

    Examples
    --------
    >>> print(relative_position_bias_vjp(np.ones((1, 3, 3)), 4).T)  # how many pairs each bucket has
    [[3. 3. 0. 3.]]
    """
    faults = Faults("relative_position_bias_vjp")
    given = array(faults, "d_bias", d_bias)
    if given is not None and given.ndim != 3:
        faults.value("d_bias", "(H, n_q, n_k)", words(given.shape))
        given = None
    count = integer(faults, "n_buckets", n_buckets, 1, "a number of buckets", most=_MOST_BUCKETS)
    buckets = _checked_buckets(faults, count, "n_buckets", bidirectional, max_distance)
    n_heads, n_q, n_k = (0, 0, 0) if given is None else given.shape
    diagonal = _bucket_diagonals(faults, buckets, n_q, n_k, offset)
    assert given is not None  # its absence is a fault
    sums = np.zeros((buckets.n_buckets, n_heads))
    if given.size:
        pairs = spread(diagonal, n_q, n_k).reshape(-1)
        for head, numbers in enumerate(given):
            sums[:, head] = np.bincount(pairs, numbers.reshape(-1).astype(np.float64), buckets.n_buckets)
    return _as_dtype(sums, result_dtype(given.dtype))


# ------------------------------------------------------------------------------------------- rope
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
    return _as_dtype(turn.of(turn.x, turn.sin), turn.dtype)


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
        return _as_dtype(turn.of(_as_dtype(given, turn.cos.dtype), -turn.sin), turn.dtype)

    return _as_dtype(turn.of(turn.x, turn.sin), turn.dtype), vjp


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
    cos, sin = (_as_dtype(known.magnitude * part, computing) for part in (np.cos(angles), np.sin(angles)))
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


def _as_dtype(x: Array, dtype: Any) -> Array:
    with np.errstate(all="ignore"):  # a float16 that is too large is inf
        return x.astype(dtype, copy=False)
