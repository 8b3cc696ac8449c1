"""A cache of keys and values: what decoding keeps of the tokens so far, for each item of a batch.

Knows slots and positions; knows no weights and computes no attention, which takes ``cache.k``, ``cache.v``,
``cache.mask``.
"""

from __future__ import annotations  # help() then shows ArrayLike as it is written

import copy
import operator
from collections.abc import Callable
from functools import partial, reduce
from math import prod
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from headwise.core import masks
from headwise.core.masks import Mask
from headwise.core.shapes import Array, Faults, brief, flag, integer, words
from headwise.layers.cache_checks import (
    MOST,
    check_kept,
    check_room,
    checked_padding,
    checked_queries,
    checked_rows,
    float_type,
    per_item,
)
from headwise.layers.cache_state import Move, State


class KVCache:
    """Keys and values of the tokens so far, so that a new token costs its own row alone.

    Every item holds its rows in slots side by side, left padding first. An item may hold more than another. All memory
    is taken at once, but the system hands it out only as slots are filled. Methods change the cache: it is not for
    several threads at a time. One that is interrupted, or lacks memory, leaves the cache as it was or as it was to
    become; where append makes room in a window, older keys, which no later query sees, may have been dropped already.

    Parameters
    ----------
    batch : int
        Number of items B.
    n_kv_heads : int
        Number of key/value heads G.
    capacity : int
        Number of slots of each item. They hold tokens and left padding.
    d_k : int
        Width of a key.
    d_v : int, optional
        Width of a value; by default ``d_k``.
    dtype : dtype
        The float type that rows are kept in: float16, bfloat16, float32 or float64. Rows of another type are rounded to
        it.
    window : int, optional
        How many keys before its own position a query sees, as in ``masks.window(window, 0)``. Older ones are then
        dropped where slots run out, and a sequence may be of any length. Slots must hold the window and the rows that
        are appended at a time: ``capacity`` is at least ``window + 1``, and rows come in chunks of at most
        ``capacity - window``. Where the end is reached, the last ``window`` rows move to the front; with a capacity of
        twice the window that is one row moved for each one appended.

    Attributes
    ----------
    batch, n_kv_heads, capacity, d_k, d_v, dtype, window
        As given.

    Raises
    ------
    TypeError
        If a size is not an integer, or ``dtype`` is not a float type.
    ValueError
        If a size is too small, or the window leaves no slot for a new token.

    Examples
    --------
    A prompt of three tokens, then one token more; both see what a single causal run shows them.

    >>> from headwise import attention
    >>> q, k, v = np.random.default_rng(0).standard_normal((3, 1, 2, 4, 8))  # of one item, two heads, four tokens
    >>> cache, outs = KVCache(batch=1, n_kv_heads=2, capacity=16, d_k=8, dtype=np.float64), []
    >>> for rows in (slice(0, 3), slice(3, 4)):
    ...     cache.append(k[:, :, rows], v[:, :, rows])
    ...     n = rows.stop - rows.start
    ...     outs.append(attention(q[:, :, rows], cache.k, cache.v, cache.mask(n)))
    >>> print(np.allclose(np.concatenate(outs, axis=2), attention(q, k, v, causal=True)))
    True
    >>> print(cache)
    KVCache(batch=1, n_kv_heads=2, capacity=16, d_k=8, dtype=float64, lengths=[4])
    """

    def __init__(
        self,
        batch: int,
        n_kv_heads: int,
        capacity: int,
        d_k: int,
        d_v: int | None = None,
        dtype: DTypeLike = np.float32,
        window: int | None = None,
    ) -> None:
        faults = Faults("KVCache")
        self.batch = integer(faults, "batch", batch, 1, "a number of items", most=MOST)
        self.n_kv_heads = integer(faults, "n_kv_heads", n_kv_heads, 1, "a number of heads", most=MOST)
        self.capacity = integer(faults, "capacity", capacity, 1, "a number of slots", most=MOST)
        self.d_k = integer(faults, "d_k", d_k, 1, "the width of a key", most=MOST)
        self.d_v = self.d_k if d_v is None else integer(faults, "d_v", d_v, 1, "the width of a value", most=MOST)
        self.dtype = float_type(faults, dtype)
        what = "None (all keys) or a number of keys"
        self.window = None if window is None else integer(faults, "window", window, 0, what)
        if self.window is not None and not faults.found and self.capacity <= self.window:
            remedy = "slots hold the window and the rows that are appended at a time"
            faults.value("capacity", f"at least window + 1 = {self.window + 1}", str(self.capacity), remedy)
        sizes = self.batch, self.n_kv_heads, self.capacity, max(self.d_k, self.d_v)
        if prod(sizes) > 2**56:
            faults.value("capacity", "sizes whose product is at most 2**56", words(sizes))
        faults.raise_any()
        self._k, self._v = self._storage(self.d_k), self._storage(self.d_v)
        self._state: State | Move = State.empty(np.zeros(self.batch, np.int64))

    def _storage(self, width: int) -> Array:
        return np.zeros((self.batch, self.n_kv_heads, self.capacity, width), self.dtype)

    def _settled(self) -> State:
        """What is noted of the slots; a move of rows that was interrupted is done once more first."""
        state = self._state
        if isinstance(state, Move):
            self._k[state.to], self._v[state.to] = state.k, state.v
            self._state = state = state.after
        return state

    # ------------------------------------------------------------------------------------- what is held
    @property
    def k(self) -> Array:
        """The keys held, (B, G, n, d_k): a read-only view; n is the number of slots of the fullest item."""
        return _read_only(self._k[:, :, : self._settled().n])

    @property
    def v(self) -> Array:
        """The values held, (B, G, n, d_v): a read-only view; n is the number of slots of the fullest item."""
        return _read_only(self._v[:, :, : self._settled().n])

    @property
    def lengths(self) -> Array:
        """The number of tokens of each item, (B,): not padding, but those that a window dropped. A read-only copy."""
        return _read_only(self._settled().tokens)

    @property
    def padding(self) -> Array:
        """The number of rows of left padding of each item, (B,): a read-only copy."""
        return _read_only(self._settled().padding.copy())

    @property
    def nbytes(self) -> int:
        """The bytes of all slots, filled or not."""
        return self._k.nbytes + self._v.nbytes

    def __len__(self) -> int:
        """The number of slots that the fullest item holds."""
        return self._settled().n

    def __bool__(self) -> bool:
        return True  # an empty cache is one all the same: `cache or KVCache(...)` does not replace it

    def next_positions(self, n: int, *, padding: ArrayLike | None = None) -> Array:
        """Tell the positions that the next n rows will have: for rope, before they are appended.

        Parameters
        ----------
        n : int
            Number of rows.
        padding : array_like of int, shape (B,), optional
            What :meth:`append` is going to be given as ``padding``.

        Returns
        -------
        ndarray of int64, shape (B, n)
            Each item counts on from its own length. Rows of padding have position 0.

        Raises
        ------
        TypeError
            If a number is not an integer.
        ValueError
            If it is negative, or padding comes for a cache that is not empty.

        Examples
        --------
        >>> cache = KVCache(batch=2, n_kv_heads=1, capacity=8, d_k=4)
        >>> print(cache.next_positions(4, padding=[0, 2]))
        [[0 1 2 3]
         [0 0 0 1]]
        """
        faults = Faults("KVCache.next_positions")
        count = integer(faults, "n", n, 0, "a number of rows", most=MOST)
        state = self._settled()
        first = state.next if padding is None else -checked_padding(faults, padding, state)
        faults.raise_any()
        return np.maximum(first[:, None] + np.arange(count), 0)

    # ------------------------------------------------------------------------------------- new rows
    def append(
        self, k: ArrayLike, v: ArrayLike, *, lengths: ArrayLike | None = None, padding: ArrayLike | None = None
    ) -> None:
        """Copy the keys and values of n new rows into the cache, after those that each item holds.

        Parameters
        ----------
        k : array_like, shape (B, G, n, d_k)
            Keys.
        v : array_like, shape (B, G, n, d_v)
            Values.
        lengths : array_like of int, shape (B,), optional
            How many of the n rows are each item's own. They come first; the rest are not kept. By default all.
        padding : array_like of int, shape (B,), optional
            For an empty cache: how many of each item's first rows, of this chunk and the next ones, are left padding.
            They are kept, but never attended to, and not counted as tokens. :meth:`reset` takes it too, where somebody
            else appends.

        Returns
        -------
        None

        Raises
        ------
        TypeError
            If something is not an array of real numbers, or of integers where it counts.
        ValueError
            If shapes do not fit, rows do not fit into the slots left, or padding comes for a cache that is not empty.
            Nothing has changed then.

        Examples
        --------
        >>> cache, rows = KVCache(batch=2, n_kv_heads=1, capacity=8, d_k=1), np.ones((2, 1, 3, 1))
        >>> cache.append(rows, rows, lengths=[3, 1])
        >>> cache.append(rows[:, :, :1], rows[:, :, :1])
        >>> print(cache.lengths, cache.k.shape)
        [4 2] (2, 1, 4, 1)
        """
        faults, state = Faults("KVCache.append"), self._settled()
        k, v = checked_rows(faults, k, v, (self.batch, self.n_kv_heads), (self.d_k, self.d_v))
        faults.raise_any()
        n = k.shape[2]
        own = None if lengths is None else per_item(faults, "lengths", lengths, self.batch, n, f"n = {n} rows")
        announced = None if padding is None else checked_padding(faults, padding, state)
        check_room(faults, state, n, own, self.capacity, self.window)
        faults.raise_any()
        if announced is not None:
            state = State.empty(announced)
        if self.window is not None and state.n + n > self.capacity:
            k, v = k.copy(), v.copy()  # they may be views of the slots that move
            state = self._slide(state, self.window)
        if own is not None and bool((own == n).all()):
            own = None
        with np.errstate(all="ignore"):  # what is too large for a short float is inf in it
            self._store(state, k, v, own)
        self._state = state.appended(n, own)

    def _store(self, state: State, k: Array, v: Array, own: Array | None) -> None:
        """Write rows into slots that the state does not count: what is held stays as it is."""
        n = k.shape[2]
        if state.level and own is None:
            slots = slice(state.n, state.n + n)
            self._k[:, :, slots], self._v[:, :, slots] = k, v
        else:
            kept = np.full(self.batch, n) if own is None else own
            items, rows = np.nonzero(np.arange(n) < kept[:, None])
            places = state.held[items] + rows
            self._k[items, :, places], self._v[items, :, places] = k[items, :, rows], v[items, :, rows]

    def _slide(self, state: State, window: int) -> State:
        """Move the last ``window`` rows of each item to the front."""
        gone = np.maximum(state.held - window, 0)
        if state.level:
            last = slice(state.n - window, state.n)
            copies = [storage[:, :, last].copy() for storage in (self._k, self._v)]
            return self._move(copies, np.s_[:, :, :window], state.slid(gone))
        items, slots = np.nonzero(np.arange(window) < (state.held - gone)[:, None])
        copies = [storage[items, :, slots + gone[items]] for storage in (self._k, self._v)]
        return self._move(copies, (items, slice(None), slots), state.slid(gone))

    def _move(self, copies: list[Array], to: Any, after: State) -> State:
        """Write copies of rows into slots that are held. Noted first: an interrupted move is done once more."""
        k, v = copies
        self._state = Move(k, v, to, after)
        return self._settled()

    # ------------------------------------------------------------------------------------- who sees whom
    def mask(self, n_q: int, causal: bool = True) -> Mask:
        """Make the mask of the n_q rows that were appended last, as queries, against all slots that are held.

        Parameters
        ----------
        n_q : int
            Number of queries: the last rows given to :meth:`append`, whether or not an item's ``lengths`` left out some
            of them. What comes out for rows that were left out means nothing.
        causal : bool
            Query i sees keys up to its own position. Otherwise all keys of its item, with a window those from
            ``window`` before it on.

        Returns
        -------
        Mask
            Left padding, and slots beyond an item's own, are hidden. With a window, so are keys more than ``window``
            before a query's position.

        Raises
        ------
        TypeError
            If ``n_q`` is not an integer, or ``causal`` not True or False.
        ValueError
            If there are fewer such rows: before the last chunk of unequal lengths, items are not side by side, and a
            window may have dropped keys.

        Examples
        --------
        >>> cache, rows = KVCache(batch=2, n_kv_heads=1, capacity=8, d_k=1), np.ones((2, 1, 3, 1))
        >>> cache.append(rows, rows, padding=[0, 1])
        >>> print(cache.mask(2).dense((2, 1, 2, 3)).astype(int).reshape(2, 2, 3))
        [[[1 1 0]
          [1 1 1]]
        <BLANKLINE>
         [[0 1 0]
          [0 1 1]]]
        """
        faults, state = Faults("KVCache.mask"), self._settled()
        count = checked_queries(faults, n_q, state)
        causal = flag(faults, "causal", causal)
        faults.raise_any()
        own = None if state.level else state.before(count)  # None: n_k - n_q, for all items
        parts = [self._band(causal, own)]
        if not state.level and not (causal and not state.unstored.any()):
            parts.append(masks.lengths(state.held))
        if state.hides:
            parts.append(~masks.lengths(np.clip(state.padding - state.dropped, 0, state.n)))
        return reduce(operator.and_, parts)

    def _band(self, causal: bool, offset: Array | None) -> Mask:
        if causal and self.window is None:
            return masks.causal(offset)
        return masks.window(self.window, 0 if causal else None, offset)

    def offset(self, n_q: int) -> Array:
        """Tell how many slots come before the first of the n_q rows that were appended last: for alibi.

        Parameters
        ----------
        n_q : int
            Number of queries, as for :meth:`mask`.

        Returns
        -------
        ndarray of int64, shape (B,)
            For ``alibi(slopes, offset=cache.offset(n_q))``.

        Raises
        ------
        TypeError
            If ``n_q`` is not an integer.
        ValueError
            If there are fewer such rows.

        Examples
        --------
        >>> cache, rows = KVCache(batch=2, n_kv_heads=1, capacity=8, d_k=1), np.ones((2, 1, 3, 1))
        >>> cache.append(rows, rows, lengths=[3, 1])
        >>> cache.append(rows, rows)
        >>> print(cache.offset(3))
        [3 1]
        """
        faults, state = Faults("KVCache.offset"), self._settled()
        count = checked_queries(faults, n_q, state)
        faults.raise_any()
        return state.before(count)

    # ------------------------------------------------------------------------------------- going back
    def truncate(self, lengths: ArrayLike) -> None:
        """Forget all but the first tokens of each item: the next rows take the places of those that are forgotten.

        Parameters
        ----------
        lengths : int or array_like of int, shape (B,)
            How many tokens to keep, left padding not counted; one number holds for all items.

        Returns
        -------
        None

        Raises
        ------
        TypeError
            If a length is not an integer.
        ValueError
            If it is negative or above what the item has, or if keys that the next token sees were dropped by a window;
            0 keeps none, and needs none. Nothing has changed then.

        Examples
        --------
        >>> cache, rows = KVCache(batch=2, n_kv_heads=1, capacity=8, d_k=1), np.ones((2, 1, 3, 1))
        >>> cache.append(rows, rows)
        >>> cache.truncate([3, 1])
        >>> print(cache.lengths, cache.next_positions(1).ravel())
        [3 1] [3 1]
        """
        faults, state = Faults("KVCache.truncate"), self._settled()
        have = state.tokens
        of_what = f"the items' own, {brief(have)}"
        kept = per_item(faults, "lengths", lengths, self.batch, have, of_what, single=True)
        check_kept(faults, state, kept, self.window)
        faults.raise_any()
        self._state = state.truncated(kept, self.window)

    def reorder(self, index: ArrayLike) -> None:
        """Put other items in the items' places: for beam search, where a beam may end and another go on twice.

        Parameters
        ----------
        index : array_like of int, shape (B,)
            Item b becomes a copy of what item ``index[b]`` was.

        Returns
        -------
        None

        Raises
        ------
        TypeError
            If an index is not an integer.
        ValueError
            If there are not B of them, or one is no item. Nothing has changed then.

        Examples
        --------
        >>> cache, rows = KVCache(batch=2, n_kv_heads=1, capacity=8, d_k=1), np.ones((2, 1, 3, 1))
        >>> cache.append(rows, rows, lengths=[3, 1])
        >>> cache.reorder([1, 1])
        >>> print(cache.lengths)
        [1 1]
        """
        faults, state = Faults("KVCache.reorder"), self._settled()
        source = per_item(faults, "index", index, self.batch, self.batch - 1, f"B - 1 = {self.batch - 1}")
        faults.raise_any()
        moved = np.flatnonzero(source != np.arange(self.batch))
        copies = [storage[source[moved], :, : state.n] for storage in (self._k, self._v)]
        self._move(copies, np.s_[moved, :, : state.n], state.reordered(source))

    def reset(self, *, padding: ArrayLike | None = None) -> None:
        """Empty the cache; its memory is used again.

        Parameters
        ----------
        padding : array_like of int, shape (B,), optional
            How many of each item's next rows are left padding, as for :meth:`append`.

        Returns
        -------
        None

        Raises
        ------
        TypeError
            If padding is not integers.
        ValueError
            If it is negative, or not one number for each item. Nothing has changed then.

        Examples
        --------
        >>> cache, rows = KVCache(batch=2, n_kv_heads=1, capacity=8, d_k=1), np.ones((2, 1, 3, 1))
        >>> cache.append(rows, rows)
        >>> cache.reset(padding=[0, 1])
        >>> print(len(cache), cache.next_positions(3).tolist())
        0 [[0, 1, 2], [0, 0, 1]]
        """
        faults = Faults("KVCache.reset")
        none = State.empty(np.zeros(self.batch, np.int64))
        announced = none.padding if padding is None else checked_padding(faults, padding, none)
        faults.raise_any()
        self._state = State.empty(announced)

    def copy(self) -> KVCache:
        """Make a cache of its own with the same rows: what is done to one does not reach the other.

        Returns
        -------
        KVCache
            Of the same sizes. Only slots that are held are copied.

        Raises
        ------
        MemoryError
            If there is no room for it.

        Examples
        --------
        >>> cache, rows = KVCache(batch=1, n_kv_heads=1, capacity=8, d_k=1), np.ones((1, 1, 3, 1))
        >>> twin = cache.copy()
        >>> cache.append(rows, rows)
        >>> print(len(cache), len(twin))
        3 0
        """
        return copy.copy(self)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_state": self._settled(), "_k": self.k, "_v": self.v}  # the slots held

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._k, self._v = self._storage(self.d_k), self._storage(self.d_v)
        self._k[:, :, : len(self)], self._v[:, :, : len(self)] = state["_k"], state["_v"]

    def __repr__(self) -> str:
        given = {"batch": self.batch, "n_kv_heads": self.n_kv_heads, "capacity": self.capacity, "d_k": self.d_k}
        given |= {"d_v": self.d_v} if self.d_v != self.d_k else {}
        given |= {"window": self.window} if self.window is not None else {}
        sizes = ", ".join(f"{name}={value}" for name, value in given.items())
        return f"KVCache({sizes}, dtype={self.dtype}, lengths={brief(self.lengths)})"

    def _take_back(self, before: State) -> None:
        self._state = self._settled().taken_back(before)


def taking_back(cache: Any) -> Callable[[], None]:
    """What makes a cache forget the rows that it is given from now on; one of another kind keeps them."""
    if not isinstance(cache, KVCache):
        return lambda: None
    return partial(cache._take_back, cache._settled())


def _read_only(view: Array) -> Array:
    view.flags.writeable = False
    return view
