"""The mask algebra: which query may attend to which key, answered whole or one tile at a time.

A mask is a predicate of (item, query i, key j). True means *may attend*. Masks combine with ``&``, ``|`` and ``~``,
with each other and with bool arrays. Nothing is built before a score shape is known, and then only what is asked for.
"""

from __future__ import annotations  # help() then shows ArrayLike as it is written

from collections.abc import Callable
from functools import reduce
from typing import Any, NoReturn, TypeGuard

import numpy as np
from numpy.typing import ArrayLike

from headwise.core.shapes import (
    WIDEST_INT,
    Array,
    Fault,
    Faults,
    FitsScores,
    PerItem,
    Shape,
    Span,
    batch_axes,
    brief,
    broadcast_all,
    diagonals,
    distances,
    given_as,
    integer,
    item_integers,
    mask_misfits,
    plain_array,
    score_shape,
    spread,
    tile_of,
    words,
)

_DEEPEST = 64

# What a tile of a mask is. SOME: at least one pair may attend and at least one may not. UNSURE: only its block tells.
NONE, ALL, SOME, UNSURE = range(4)


class Mask:
    """A predicate of (item, query i, key j). Made by the functions of this module, combined by ``&``, ``|``, ``~``."""

    __array_ufunc__ = None  # so that `array & mask` asks the mask
    __slots__ = ()
    role = "mask"
    by_diagonals = False  # whether its words are one number a diagonal, and take no memory
    depth = 0  # how many joins and negations stand inside each other

    # What each kind of mask answers. `lead` is the index of one item and head, or None for all of them at once.
    def misfits(self, scores: Shape) -> list[Fault]:
        """What keeps this mask from fitting a score shape."""
        raise NotImplementedError

    def _at(self, scores: Shape, lead: Shape | None, rows: slice, cols: slice) -> Array:
        """The predicate on these queries and keys: bool, broadcasting to the tile (or to all tiles)."""
        raise NotImplementedError

    def _states(self, scores: Shape, lead: Shape, rows: Array, cols: Array) -> Array:
        """What the tiles between these edges of rows and of columns are, where that shows without building them.

        One of NONE, ALL, SOME, UNSURE for each tile, int8, shape (len(rows) - 1, len(cols) - 1); edges increase.
        """
        return np.full((len(rows) - 1, len(cols) - 1), UNSURE, np.int8)

    def _bits(self, scores: Shape, lead: Shape, rows: slice, cols: slice, word: Any) -> Array:
        """The predicate on a tile as words of this unsigned type: all bits set where a query may attend, else none.

        Shape (n_rows, n_cols).
        """
        block = np.broadcast_to(self._at(scores, lead, rows, cols), (rows.stop - rows.start, cols.stop - cols.start))
        signed = np.negative(block.view(np.int8))  # -1 has all bits set, in any width
        return signed.astype(np.dtype(word).str.replace("u", "i")).view(word)

    def _leads(self) -> list[tuple[Shape, bool]]:
        """The leading axes of the arrays it holds, and whether heads are among them."""
        return []

    def words(self) -> str:
        """The mask as an English phrase."""
        raise NotImplementedError

    # What all of them share.
    def tile(self, shape: Shape, lead: Shape, rows: Span, cols: Span) -> bool | Array:
        """The mask of a tile of one item and head.

        Parameters
        ----------
        shape : tuple of int
            A score shape (..., H, n_q, n_k).
        lead : tuple of int
            Index of the item and head: one number for each axis before the last two.
        rows, cols : (int, int), slice or range
            First query and the one after the last; the same for keys.

        Returns
        -------
        bool or ndarray, shape (n_rows, n_cols)
            True if every pair of the tile may attend, False if none may (or the tile is empty), else the bool block.

        Raises
        ------
        ValueError
            If the mask does not fit the shape, or the tile does not lie inside it.

        Examples
        --------
        >>> print(causal().tile((4, 4), (), (0, 2), (2, 4)), causal().tile((4, 4), (), (2, 4), (0, 2)))
        False True
        """
        return self._tile(*tile_of("Mask.tile", self, shape, lead, rows, cols))

    def _tile(self, scores: Shape, lead: Shape, rows: slice, cols: slice) -> bool | Array:
        size = (rows.stop - rows.start, cols.stop - cols.start)
        if 0 in size:
            return False
        known = self._states(scores, lead, np.array([rows.start, rows.stop]), np.array([cols.start, cols.stop]))[0, 0]
        if known in (NONE, ALL):
            return bool(known == ALL)
        block = self._at(scores, lead, rows, cols)
        if bool(block.all()):
            return True
        return np.broadcast_to(block, size) if block.any() else False

    def dense(self, shape: Shape) -> Array:
        """The whole mask for a score shape.

        Parameters
        ----------
        shape : tuple of int
            A score shape (..., H, n_q, n_k), e.g. ``(n_q, n_k)``.

        Returns
        -------
        ndarray of bool, of that shape
            True = may attend. Read-only: nothing is copied where axes are stretched.

        Raises
        ------
        ValueError
            If the mask does not fit the shape.

        Examples
        --------
        >>> print(window(1, 0).dense((3, 3)).astype(int))
        [[1 0 0]
         [1 1 0]
         [0 1 1]]
        """
        scores = score_shape("Mask.dense", self, shape, whole=True)
        return np.broadcast_to(self._at(scores, None, slice(0, scores[-2]), slice(0, scores[-1])), scores)

    def show(self, n_q: int, n_k: int) -> str:
        """A picture in characters: one row per query, one column per key, one picture per item.

        Parameters
        ----------
        n_q, n_k : int
            Numbers of queries and keys, at most 65,536. Above 64, one character stands for a square tile.

        Returns
        -------
        str
            The expression, what it says in words, and for each item (four at most) a picture of ``#`` (may attend),
            ``.`` (may not) and, for tiles, ``+`` (some may).

        Raises
        ------
        TypeError, ValueError
            If a number is not one, or the mask does not fit.

        Examples
        --------
        >>> print(causal().show(2, 4))
        causal(): keys up to the query's own position
            key 0123
        query 0 ###.
              1 ####
        """
        faults = Faults("Mask.show")
        sizes = (integer(faults, "n_q", n_q, 0, most=2**16), integer(faults, "n_k", n_k, 0, most=2**16))
        faults.raise_any()
        scores = score_shape("Mask.show", self, (*_own_lead(self), *sizes))
        return _picture(self, scores)

    def __and__(self, other: Any) -> Mask:
        return _join("&", self, other)

    def __rand__(self, other: Any) -> Mask:
        return _join("&", other, self)

    def __or__(self, other: Any) -> Mask:
        return _join("|", self, other)

    def __ror__(self, other: Any) -> Mask:
        return _join("|", other, self)

    def __invert__(self) -> Mask:
        return self.mask if isinstance(self, _Not) else _shallow("~Mask", _Not(self))

    def __bool__(self) -> NoReturn:
        raise TypeError(
            "Mask: expected no question of true or false, got bool(mask); a mask is a rule for pairs of query and key: "
            "test `mask is None`, and combine masks with & | ~ instead of and, or, not"
        )


# ------------------------------------------------------------------------------------------ the kinds
class _Rule(Mask):
    """A test of the query's and the key's numbers: place, length, validity, segment, position."""

    __slots__ = ("items", "name", "phrase", "test")

    def __init__(self, name: str, phrase: str, test: Callable[..., Array], *items: PerItem) -> None:
        self.name, self.phrase, self.test, self.items = name, phrase, test, items

    def misfits(self, scores: Shape) -> list[Fault]:
        return [fault for item in self.items for fault in item.misfits(scores)]

    def _at(self, scores: Shape, lead: Shape | None, rows: slice, cols: slice) -> Array:
        i, j = np.arange(rows.start, rows.stop)[:, None], np.arange(cols.start, cols.stop)
        return self.test(i, j, *(item.of(scores, lead, rows, cols) for item in self.items))

    def _leads(self) -> list[tuple[Shape, bool]]:
        return [(item.lead, False) for item in self.items]

    def words(self) -> str:
        return self.phrase

    def __repr__(self) -> str:
        return f"{self.name}({', '.join(brief(item.values) for item in self.items)})"


class _Lengths(_Rule):
    """Keys ``j < lengths[item]``: a rule whose full and empty tiles show at once."""

    __slots__ = ()

    def misfits(self, scores: Shape) -> list[Fault]:
        values, found = self.items[0].values, super().misfits(scores)
        if values.size and int(values.max()) > scores[-1]:
            most = f"at most n_k = {scores[-1]}"
            found.append(Fault("lengths", most, str(int(values.max())), "a length counts the item's real keys"))
        return found

    def _states(self, scores: Shape, lead: Shape, rows: Array, cols: Array) -> Array:
        length = int(self.items[0].of(scores, lead, slice(0, 1), slice(0, 1)).item())
        return _in_each_row(rows, _decided(cols[:-1] >= length, cols[1:] <= length))


class _Keys(_Rule):
    """Keys that are valid: a rule whose tiles show by counting."""

    __slots__ = ()

    def _states(self, scores: Shape, lead: Shape, rows: Array, cols: Array) -> Array:
        span = slice(int(cols[0]), int(cols[-1]))
        valid = self.items[0].of(scores, lead, slice(0, 1), span)[0]
        counts = np.add.reduceat(valid, cols[:-1] - cols[0], dtype=np.int64)
        return _in_each_row(rows, _decided(counts == 0, counts == np.diff(cols)))


class _Positions(_Rule):
    """Keys whose position is not after the query's: the extremes of a tile tell."""

    __slots__ = ()

    def _states(self, scores: Shape, lead: Shape, rows: Array, cols: Array) -> Array:
        (q_low, q_high), (k_low, k_high) = _extremes(self.items, scores, lead, rows, cols)
        return _decided(k_low > q_high, k_high <= q_low)


class _Segments(_Rule):
    """Keys of the query's own segment. Ids that overlap in range may still have none in common."""

    __slots__ = ()

    def _states(self, scores: Shape, lead: Shape, rows: Array, cols: Array) -> Array:
        (q_low, q_high), (k_low, k_high) = _extremes(self.items, scores, lead, rows, cols)
        one = (q_low == q_high) & (k_low == k_high)
        states = _decided((k_low > q_high) | (k_high < q_low), one & (q_low == k_low))
        states[states == SOME] = UNSURE
        return states


class _Band(_Rule):
    """Keys from ``left`` before to ``right`` after the query's position ``i + offset``: causal and window."""

    __slots__ = ("left", "right")
    by_diagonals = True

    def __init__(self, name: str, left: int | None, right: int | None, offset: PerItem | None) -> None:
        super().__init__(name, _reach(left, right, offset), _within, *([offset] if offset else []))
        self.left = WIDEST_INT * 4 if left is None else left
        self.right = WIDEST_INT * 4 if right is None else right

    @property
    def offset(self) -> PerItem | None:
        """How many keys come before query 0's own; None where that follows from n_q and n_k."""
        return self.items[0] if self.items else None

    def _at(self, scores: Shape, lead: Shape | None, rows: slice, cols: slice) -> Array:
        return self.test(distances(self.offset, scores, lead, rows, cols), self.left, self.right)

    def _states(self, scores: Shape, lead: Shape, rows: Array, cols: Array) -> Array:
        # Every whole number from lowest to highest is the distance of some pair of the tile, so this misses nothing.
        here = slice(0, 1)
        distance = cols + int(distances(self.offset, scores, lead, here, here).item())  # from query 0's own position
        lowest = distance[:-1] - (rows[1:, None] - 1)
        highest = distance[1:] - 1 - rows[:-1, None]
        return _decided(
            (highest < -self.left) | (lowest > self.right), (lowest >= -self.left) & (highest <= self.right)
        )

    def _bits(self, scores: Shape, lead: Shape, rows: slice, cols: slice, word: Any) -> Array:
        inside = self.test(diagonals(self.offset, scores, lead, rows, cols), self.left, self.right)
        return spread(-inside.astype(word), rows.stop - rows.start, cols.stop - cols.start)

    def __repr__(self) -> str:
        sides = [] if self.name == "causal" else [None if s > WIDEST_INT else s for s in (self.left, self.right)]
        offset = [f"offset={brief(item.values)}" for item in self.items]
        return f"{self.name}({', '.join([*map(str, sides), *offset])})"


class _Given(Mask):
    """A bool array, which may differ from head to head."""

    __slots__ = ("values",)

    def __init__(self, values: Array) -> None:
        self.values = values

    def misfits(self, scores: Shape) -> list[Fault]:
        return mask_misfits("mask", self.values, scores)

    def _at(self, scores: Shape, lead: Shape | None, rows: slice, cols: slice) -> Array:
        values = np.broadcast_to(self.values, scores)
        return values if lead is None else values[lead][rows, cols]

    def _leads(self) -> list[tuple[Shape, bool]]:
        return [(self.values.shape[:-2], True)]

    def words(self) -> str:
        return "pairs that are True in the given array"

    def __repr__(self) -> str:
        return f"<bool {words(self.values.shape)}>"


class _Joined(Mask):
    """All (``&``) or at least one (``|``) of several masks."""

    __slots__ = ("depth", "parts", "sign")

    def __init__(self, sign: str, *sides: Mask) -> None:
        # A long chain is one flat row, and a mask joined with itself is that mask: neither grows into a deep tree.
        flat = [part for side in sides for part in (side.parts if _is_joined(side, sign) else (side,))]
        self.sign = sign
        self.parts: tuple[Mask, ...] = tuple({id(part): part for part in flat}.values())
        self.depth = 1 + max(part.depth for part in self.parts)

    def misfits(self, scores: Shape) -> list[Fault]:
        return [fault for part in self.parts for fault in part.misfits(scores)]

    def _at(self, scores: Shape, lead: Shape | None, rows: slice, cols: slice) -> Array:
        join = np.logical_and if self.sign == "&" else np.logical_or
        return reduce(join, (part._at(scores, lead, rows, cols) for part in self.parts))

    def _states(self, scores: Shape, lead: Shape, rows: Array, cols: Array) -> Array:
        decides, yields = (NONE, ALL) if self.sign == "&" else (ALL, NONE)  # one NONE decides an and, one ALL an or
        states = np.array([part._states(scores, lead, rows, cols) for part in self.parts])
        open_ones = (states != yields).sum(axis=0)
        joined = np.full(states.shape[1:], UNSURE, np.int8)
        lonely = open_ones == 1  # only one part has a say
        joined[lonely] = states.max(axis=0, where=states != yields, initial=0)[lonely]
        joined[open_ones == 0] = yields
        joined[(states == decides).any(axis=0)] = decides
        return joined

    def _bits(self, scores: Shape, lead: Shape, rows: slice, cols: slice, word: Any) -> Array:
        edges = np.array([rows.start, rows.stop]), np.array([cols.start, cols.stop])
        yields = ALL if self.sign == "&" else NONE
        having_a_say = [part for part in self.parts if part._states(scores, lead, *edges)[0, 0] != yields]
        join = np.bitwise_and if self.sign == "&" else np.bitwise_or
        return reduce(join, (part._bits(scores, lead, rows, cols, word) for part in having_a_say or self.parts[:1]))

    def _leads(self) -> list[tuple[Shape, bool]]:
        return [lead for part in self.parts for lead in part._leads()]

    def words(self) -> str:
        sides = [f"({part.words()})" if isinstance(part, _Joined) else part.words() for part in self.parts]
        return (", and " if self.sign == "&" else ", or ").join(sides)

    def __repr__(self) -> str:
        return f" {self.sign} ".join(f"({part})" if isinstance(part, _Joined) else str(part) for part in self.parts)


def _is_joined(mask: Mask, sign: str) -> TypeGuard[_Joined]:
    return isinstance(mask, _Joined) and mask.sign == sign


class _Not(Mask):
    """The pairs that another mask refuses."""

    __slots__ = ("depth", "mask")

    def __init__(self, mask: Mask) -> None:
        self.mask, self.depth = mask, 1 + mask.depth

    def misfits(self, scores: Shape) -> list[Fault]:
        return self.mask.misfits(scores)

    def _at(self, scores: Shape, lead: Shape | None, rows: slice, cols: slice) -> Array:
        return ~self.mask._at(scores, lead, rows, cols)

    def _states(self, scores: Shape, lead: Shape, rows: Array, cols: Array) -> Array:
        return np.array([ALL, NONE, SOME, UNSURE], np.int8)[self.mask._states(scores, lead, rows, cols)]

    def _bits(self, scores: Shape, lead: Shape, rows: slice, cols: slice, word: Any) -> Array:
        return ~self.mask._bits(scores, lead, rows, cols, word)

    def _leads(self) -> list[tuple[Shape, bool]]:
        return self.mask._leads()

    def words(self) -> str:
        return f"not ({self.mask.words()})"

    def __repr__(self) -> str:
        return f"~({self.mask})" if isinstance(self.mask, _Joined) else f"~{self.mask}"


# The states of tiles.
def _decided(none: Array, all_: Array) -> Array:
    """NONE and ALL where these hold, SOME elsewhere."""
    return np.where(none, NONE, np.where(all_, ALL, SOME)).astype(np.int8)


def _in_each_row(rows: Array, states: Array) -> Array:
    return np.broadcast_to(states, (len(rows) - 1, *states.shape))


def _extremes(
    items: tuple[PerItem, ...], scores: Shape, lead: Shape, rows: Array, cols: Array
) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    """Lowest and highest number of the queries between each two edges, as a column; of the keys, as a row."""
    spans = slice(int(rows[0]), int(rows[-1])), slice(int(cols[0]), int(cols[-1]))
    queries, keys = (item.of(scores, lead, *spans) for item in items)  # (n_rows, 1), (1, n_cols)
    low, high = np.minimum.reduceat, np.maximum.reduceat
    starts = rows[:-1] - rows[0], cols[:-1] - cols[0]
    return (low(queries, starts[0]), high(queries, starts[0])), (low(keys, starts[1], 1), high(keys, starts[1], 1))


# The tests, as functions of the module so that a mask can be pickled.
def _within(distance: Array, left: int, right: int) -> Array:
    return (distance >= -left) & (distance <= right)


def _before(i: Array, j: Array, length: Array) -> Array:
    return j < length


def _valid(i: Array, j: Array, valid: Array) -> Array:
    return valid


def _same(i: Array, j: Array, query: Array, key: Array) -> Array:
    return np.equal(query, key)


def _not_after(i: Array, j: Array, query: Array, key: Array) -> Array:
    return key <= query


# --------------------------------------------------------------------------------------- their makers
def causal(offset: ArrayLike | None = None) -> Mask:
    """Query i sees key j when ``j <= i + offset``.

    Parameters
    ----------
    offset : int or array_like of int, shape (B,), optional
        How many keys come before query 0's own. By default ``n_k - n_q``: the last query sees every key (lower-right),
        so that a cached decode equals the full run. 0 aligns the first query with the first key (upper-left). An array
        holds one offset per item: a ragged cache has ``lengths - n_q``.

    Returns
    -------
    Mask

    Raises
    ------
    TypeError
        If an offset is not an integer.

    Examples
    --------
    >>> print(causal().dense((2, 3)).astype(int))
    [[1 1 0]
     [1 1 1]]
    >>> print(causal(offset=0).dense((2, 3)).astype(int))
    [[1 0 0]
     [1 1 0]]
    """
    faults = Faults("masks.causal")
    mask = _Band("causal", None, 0, _offset(faults, offset))
    faults.raise_any()
    return mask


def window(left: int | None, right: int | None, offset: ArrayLike | None = None) -> Mask:
    """Query i sees key j when ``-left <= j - (i + offset) <= right``.

    Parameters
    ----------
    left, right : int or None
        How many keys before and after the own position are seen besides it; None for all of them. ``window(256, 0)`` is
        the causal sliding window of 257 keys.
    offset : int or array_like of int, shape (B,), optional
        As for :func:`causal`.

    Returns
    -------
    Mask

    Raises
    ------
    TypeError
        If something is not an integer.
    ValueError
        If a count is negative.

    Examples
    --------
    >>> print(window(0, 1).dense((3, 3)).astype(int))
    [[1 1 0]
     [0 1 1]
     [0 0 1]]
    """
    faults = Faults("masks.window")
    what = "None (unlimited) or a number of keys"
    sides = [
        None if side is None else integer(faults, name, side, 0, what)
        for name, side in (("left", left), ("right", right))
    ]
    mask = _Band("window", sides[0], sides[1], _offset(faults, offset))
    faults.raise_any()
    return mask


def lengths(lengths: ArrayLike) -> Mask:
    """Key j is seen when ``j < lengths[item]``: the padding at the end is not.

    Parameters
    ----------
    lengths : array_like of int, shape (B,)
        Number of real keys of each item, from 0 to n_k. ``~lengths(x)`` is the padding itself.

    Returns
    -------
    Mask

    Raises
    ------
    TypeError
        If a length is not an integer.
    ValueError
        If a length is negative (at once) or above n_k (where the mask is used).

    Examples
    --------
    >>> print(lengths([1, 3]).dense((2, 1, 3)).astype(int).reshape(2, 3))
    [[1 0 0]
     [1 1 1]]
    """
    faults = Faults("masks.lengths")
    per_item = item_integers(faults, "lengths", lengths, low=0)
    faults.raise_any()
    return _Lengths("lengths", "keys before the item's length", _before, per_item)


def keys(valid: ArrayLike) -> Mask:
    """Key j is seen when ``valid[item, j]``: padding anywhere.

    Parameters
    ----------
    valid : array_like of bool, shape (B, n_k) or (n_k,)
        True for real keys.

    Returns
    -------
    Mask

    Raises
    ------
    TypeError
        If ``valid`` is not bool.
    ValueError
        If it has no axis.

    Examples
    --------
    >>> print(keys([False, True, True]).dense((2, 3)).astype(int))
    [[0 1 1]
     [0 1 1]]
    """
    faults = Faults("masks.keys")
    given = plain_array(faults, "valid", valid)
    if given is not None and given.dtype != np.bool_ and given.size:
        faults.type(
            "valid",
            "bool, True = a real key",
            f"dtype {given.dtype}",
            "pass valid.astype(bool) if nonzero means real",
        )
    elif given is not None and given.ndim == 0:
        faults.value("valid", "(B, n_k) or (n_k,)", "a single number")
    faults.raise_any()
    assert given is not None  # its absence is a fault
    return _Keys("keys", "keys that are valid", _valid, PerItem("valid", given.astype(bool), "n_k"))


def segments(q_ids: ArrayLike, k_ids: ArrayLike) -> Mask:
    """Query i sees key j when both belong to the same segment: packed documents do not see each other.

    Parameters
    ----------
    q_ids : array_like of int, shape (B, n_q) or (n_q,)
        Segment of each query.
    k_ids : array_like of int, shape (B, n_k) or (n_k,)
        Segment of each key.

    Returns
    -------
    Mask

    Raises
    ------
    TypeError
        If an id is not an integer.

    Examples
    --------
    >>> print(segments([0, 0, 1], [0, 0, 1]).dense((3, 3)).astype(int))
    [[1 1 0]
     [1 1 0]
     [0 0 1]]
    """
    return _pairs(_Segments, "segments", "keys of the query's own segment", _same, q_ids=q_ids, k_ids=k_ids)


def positions(q_pos: ArrayLike, k_pos: ArrayLike) -> Mask:
    """Query i sees key j when ``k_pos[j] <= q_pos[i]``: causal for tokens whose positions are not their places.

    Parameters
    ----------
    q_pos : array_like of int, shape (B, n_q) or (n_q,)
        Position of each query.
    k_pos : array_like of int, shape (B, n_k) or (n_k,)
        Position of each key.

    Returns
    -------
    Mask

    Raises
    ------
    TypeError
        If a position is not an integer.

    Examples
    --------
    >>> print(positions([5, 1], [1, 9, 5]).dense((2, 3)).astype(int))
    [[1 0 1]
     [1 0 0]]
    """
    phrase = "keys whose position is not after the query's"
    return _pairs(_Positions, "positions", phrase, _not_after, q_pos=q_pos, k_pos=k_pos)


def causal_mask(n: int) -> Array:
    """The causal mask as a plain array.

    Parameters
    ----------
    n : int
        Number of tokens.

    Returns
    -------
    ndarray of bool, shape (n, n)
        True exactly where ``j <= i``: on and below the diagonal.

    Raises
    ------
    TypeError
        If ``n`` is not an integer.
    ValueError
        If it is negative.

    Examples
    --------
    >>> print(causal_mask(3).astype(int))
    [[1 0 0]
     [1 1 0]
     [1 1 1]]
    """
    faults = Faults("causal_mask")
    size = integer(faults, "n", n, 0, "a number of tokens", most=2**20)
    faults.raise_any()
    mask = np.empty((size, size), bool)  # first of all, so that what memory does not hold fails at once
    i = np.arange(size)
    return np.less_equal(i, i[:, None], out=mask)


def as_mask(mask: Any) -> FitsScores:
    """A Mask as it is, a (checked) bool array as one."""
    return mask if isinstance(mask, FitsScores) else _Given(np.asarray(mask))


# -------------------------------------------------------------------------------------------- helpers
def _offset(faults: Faults, offset: Any) -> PerItem | None:
    return None if offset is None else item_integers(faults, "offset", offset)


def _reach(left: int | None, right: int | None, offset: PerItem | None) -> str:
    """A band in words."""
    if left is None and right is None:
        return "all keys"
    own = "the query's own position" if offset is None else "position i + the item's offset"
    if offset is not None and offset.values.ndim == 0:
        steps = int(offset.values)
        own = f"position i {'+' if steps > 0 else '-'} {abs(steps)}" if steps else "position i"
    if left == right == 0:
        return f"the key at {own}"
    start = "keys" if left is None else f"keys from {left} before {own}" if left else f"keys from {own}"
    if right is None:
        return f"{start} on"
    end = f"{right} after {own}" if right and not left else f"{right} after it" if right else own if not left else "it"
    return f"{start} up to {end}"


def _pairs(kind: type[_Rule], name: str, phrase: str, test: Callable[..., Array], **sides: ArrayLike) -> Mask:
    """A rule that compares a number of the key with one of the query."""
    faults = Faults(f"masks.{name}")
    (q_name, q_values), (k_name, k_values) = sides.items()
    queries = item_integers(faults, q_name, q_values, "n_q")
    keys = item_integers(faults, k_name, k_values, "n_k")
    faults.raise_any()
    return kind(name, phrase, test, queries, keys)


def _join(sign: str, left: Any, right: Any) -> Mask:
    faults = Faults(f"Mask {sign} Mask")
    sides = [_operand(faults, side) for side in (left, right)]
    faults.raise_any()
    joined = _Joined(sign, *sides)
    return _shallow(f"Mask {sign} Mask", joined) if len(joined.parts) > 1 else joined.parts[0]


def _shallow(function: str, mask: Mask) -> Mask:
    """The mask, if it is not nested beyond what can be evaluated: a chain of one sign is flat, however long."""
    if mask.depth > _DEEPEST:
        faults = Faults(function)
        faults.value("mask", f"at most {_DEEPEST} levels of &, | and ~ inside each other", str(mask.depth))
        faults.raise_any()
    return mask


def _operand(faults: Faults, side: Any) -> Mask:
    if isinstance(side, Mask):
        return side
    expected, remedy = "a Mask or a bool array, True = may attend", "convert it by astype(bool)"
    given = None
    if callable(side):
        faults.type("operand", expected, given_as(side), "call it")
    elif side is None or isinstance(side, bool | np.bool_):
        faults.type("operand", expected, str(side), remedy)
    else:
        given = plain_array(faults, "operand", side)
    if given is not None and given.dtype != np.bool_:
        faults.type("operand", expected, f"dtype {given.dtype}", remedy)
        given = None
    nothing = np.zeros((), bool)  # stands in until the fault is raised
    return _Given(nothing if given is None else given.copy())  # ours: a caller who changes theirs changes no mask


# ------------------------------------------------------------------------------------------- pictures
def _own_lead(mask: Mask) -> Shape:
    """The smallest leading axes on which the mask can be shown."""
    held = mask._leads()
    items = broadcast_all(*(lead for lead, has_heads in held if not has_heads)) or ()
    arrays = broadcast_all(*(lead for lead, has_heads in held if has_heads)) or ()
    if len(arrays) >= 2:  # (..., H): what comes before the heads are items
        return (*(broadcast_all(items, arrays[:-1]) or arrays[:-1]), arrays[-1])
    return (*items, *(arrays or (1,))) if items else arrays


def _picture(mask: Mask, scores: Shape) -> str:
    leads = list(np.ndindex(*scores[:-2]))
    step = max(1, -(-max(scores[-2:]) // 64))
    lines = [f"{mask}: {mask.words()}"]
    if step > 1:
        lines.append(f"one character is a tile of {step} x {step}: # all may attend, + some, . none")
    for lead in leads[:4]:
        if len(leads) > 1:
            lines.append(_title(scores, lead))
        lines += _grid(mask, scores, lead, step)
    if len(leads) > 4:
        lines.append(f"and {len(leads) - 4} more")
    return "\n".join(lines)


def _title(scores: Shape, lead: Shape) -> str:
    n_batch = len(batch_axes(scores))
    item = f"item {', '.join(map(str, lead[:n_batch]))}" if n_batch else ""
    return item + (f", head {lead[-1]}" if len(lead) > n_batch and scores[-3] > 1 else "")


def _grid(mask: Mask, scores: Shape, lead: Shape, step: int) -> list[str]:
    n_q, n_k = scores[-2:]
    width = max(1, len(str(max(n_q - 1, 0))))
    digits = "".join(str(j % 10) for j in range(n_k))
    lines = [f"{'key':>{width + 6}} {digits}"] if step == 1 else []
    for i in range(0, n_q, step):
        cells = (
            mask._tile(scores, lead, slice(i, min(i + step, n_q)), slice(j, min(j + step, n_k)))
            for j in range(0, n_k, step)
        )
        row = "".join("#" if cell is True else "." if cell is False else "+" for cell in cells)
        lines.append(f"{'query' if i == 0 else '':5} {i:>{width}} {row}")
    return [line.rstrip() for line in lines]
