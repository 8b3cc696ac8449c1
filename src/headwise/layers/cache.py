"""A cache of keys and values: what decoding keeps of the tokens so far, for each item of a batch.

Knows slots and positions; knows no weights and computes no attention, which takes ``cache.k``, ``cache.v``,
``cache.mask``.
"""

from __future__ import annotations  # help() then shows ArrayLike as it is written

import copy
import operator
from functools import reduce
from math import prod
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from headwise.core import masks
from headwise.core.masks import Mask
from headwise.core.shapes import (
    Array,
    Faults,
    array,
    brief,
    computing_dtype,
    flag,
    given_as,
    install_remedy,
    integer,
    item_integers,
    words,
)

_MOST = 2**40  # of each size; more would not fit any memory


class KVCache:
    """Keys and values of the tokens so far, so that a new token costs its own row alone.

    Every item holds its rows in slots side by side, left padding first. An item may hold more than another. All memory
    is taken at once, but the system hands it out only as slots are filled. Methods change the cache: it is not for
    several threads at a time.

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
        self.batch = integer(faults, "batch", batch, 1, "a number of items", most=_MOST)
        self.n_kv_heads = integer(faults, "n_kv_heads", n_kv_heads, 1, "a number of heads", most=_MOST)
        self.capacity = integer(faults, "capacity", capacity, 1, "a number of slots", most=_MOST)
        self.d_k = integer(faults, "d_k", d_k, 1, "the width of a key", most=_MOST)
        self.d_v = self.d_k if d_v is None else integer(faults, "d_v", d_v, 1, "the width of a value", most=_MOST)
        self.dtype = _float_type(faults, dtype)
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
        self._begin(np.zeros(self.batch, np.int64))

    def _storage(self, width: int) -> Array:
        return np.zeros((self.batch, self.n_kv_heads, self.capacity, width), self.dtype)

    # State: arrays (B,) that are replaced, never written to, so that copies may share them.
    def _begin(self, padding: Array) -> None:
        self._padding = padding  # announced left padding, whether or not its rows have come
        self._held = np.zeros(self.batch, np.int64)  # slots
        self._dropped = self._held  # rows that left a window's slots
        self._unstored = self._held  # rows given last that were not kept, at the end of their chunk
        self._rows = 0  # how many rows, the last ones, stand side by side in all items, and see all that they may
        self._settle()

    def _settle(self) -> None:
        """Note what is asked of every token: how many slots the fullest item holds, and whether all are alike."""
        self._n = int(self._held.max())
        self._level = int(self._held.min()) == self._n and not self._unstored.any()
        self._hides = bool((self._padding > self._dropped).any())

    # ------------------------------------------------------------------------------------- what is held
    @property
    def k(self) -> Array:
        """The keys held, (B, G, n, d_k): a read-only view; n is the number of slots of the fullest item."""
        return _read_only(self._k[:, :, : self._n])

    @property
    def v(self) -> Array:
        """The values held, (B, G, n, d_v): a read-only view; n is the number of slots of the fullest item."""
        return _read_only(self._v[:, :, : self._n])

    @property
    def lengths(self) -> Array:
        """The number of tokens of each item, (B,): not padding, but those that a window dropped. A read-only copy."""
        return _read_only(np.maximum(self._next, 0))

    @property
    def padding(self) -> Array:
        """The number of rows of left padding of each item, (B,): a read-only copy."""
        return _read_only(self._padding.copy())

    @property
    def nbytes(self) -> int:
        """The bytes of all slots, filled or not."""
        return self._k.nbytes + self._v.nbytes

    @property
    def _next(self) -> Array:
        """The position of each item's next row, (B,): below 0 where padding is still to come."""
        position: Array = self._held + self._dropped - self._padding
        return position

    def __len__(self) -> int:
        """The number of slots that the fullest item holds."""
        return self._n

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
        count = integer(faults, "n", n, 0, "a number of rows", most=_MOST)
        first = self._next if padding is None else -self._checked_padding(faults, padding)
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
        faults = Faults("KVCache.append")
        k, v = self._checked_rows(faults, k, v)
        faults.raise_any()
        n = k.shape[2]
        own = None if lengths is None else self._per_item(faults, "lengths", lengths, n, f"n = {n} rows")
        announced = None if padding is None else self._checked_padding(faults, padding)
        self._check_room(faults, n, own)
        faults.raise_any()
        if announced is not None:
            self._begin(announced)
        if self.window is not None and self._n + n > self.capacity:
            k, v = k.copy(), v.copy()  # they may be views of the slots that move
            self._slide()
        with np.errstate(all="ignore"):  # what is too large for a short float is inf in it
            self._store(k, v, n, own)

    def _store(self, k: Array, v: Array, n: int, own: Array | None) -> None:
        aligned = self._rows if self._level or not self._unstored.any() else 0
        if own is not None and bool((own == n).all()):
            own = None
        if self._level and own is None:
            end = self._n + n
            self._k[:, :, self._n : end], self._v[:, :, self._n : end] = k, v
            self._held, self._n = self._held + n, end
        else:
            kept = np.full(self.batch, n) if own is None else own
            items, rows = np.nonzero(np.arange(n) < kept[:, None])
            slots = self._held[items] + rows
            self._k[items, :, slots], self._v[items, :, slots] = k[items, :, rows], v[items, :, rows]
            self._held, self._unstored = self._held + kept, n - kept
            self._settle()
        self._rows = aligned + n

    def _slide(self) -> None:
        """Move the last ``window`` rows of each item to the front."""
        assert self.window is not None
        gone = np.maximum(self._held - self.window, 0)
        if self._level:
            last = slice(self._n - self.window, self._n)
            for storage in (self._k, self._v):
                storage[:, :, : self.window] = storage[:, :, last]
        else:
            items, slots = np.nonzero(np.arange(self.window) < (self._held - gone)[:, None])
            for storage in (self._k, self._v):
                storage[items, :, slots] = storage[items, :, slots + gone[items]]
        self._held, self._dropped, self._rows = self._held - gone, self._dropped + gone, 0
        self._settle()

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
        faults = Faults("KVCache.mask")
        count = self._checked_queries(faults, n_q)
        causal = flag(faults, "causal", causal)
        faults.raise_any()
        own = None if self._level else self._before(count)  # None: n_k - n_q, for all items
        parts = [self._band(causal, own)]
        if not self._level and not (causal and not self._unstored.any()):
            parts.append(masks.lengths(self._held))
        if self._hides:
            parts.append(~masks.lengths(np.clip(self._padding - self._dropped, 0, self._n)))
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
        faults = Faults("KVCache.offset")
        count = self._checked_queries(faults, n_q)
        faults.raise_any()
        return self._before(count)

    def _before(self, n_q: int) -> Array:
        before: Array = self._held + self._unstored - n_q
        return before

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
            If it is negative or above what the item has, or if keys that the next token sees were dropped by a window.
            Nothing has changed then.

        Examples
        --------
        >>> cache, rows = KVCache(batch=2, n_kv_heads=1, capacity=8, d_k=1), np.ones((2, 1, 3, 1))
        >>> cache.append(rows, rows)
        >>> cache.truncate([3, 1])
        >>> print(cache.lengths, cache.next_positions(1).ravel())
        [3 1] [3 1]
        """
        faults = Faults("KVCache.truncate")
        have = self.lengths
        kept = self._per_item(faults, "lengths", lengths, have, f"the items' own, {brief(have)}", single=True)
        held = np.minimum(self._held, kept + self._padding - self._dropped)
        seen = np.where(self._dropped > self._padding, self.window or 0, 0)  # slots that the next token needs
        if not faults.found and (held < seen).any():
            least = np.where(seen > 0, seen + self._dropped - self._padding, 0)
            expected = f"at least {brief(least)}, as the window dropped older keys"
            faults.value("lengths", expected, brief(kept), "make a cache of more capacity to go back further")
        faults.raise_any()
        self._held, self._unstored = held, np.zeros_like(held)
        self._rows = int((held - seen).min())
        self._settle()

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
        faults = Faults("KVCache.reorder")
        source = self._per_item(faults, "index", index, self.batch - 1, f"B - 1 = {self.batch - 1}")
        faults.raise_any()
        moved = np.flatnonzero(source != np.arange(self.batch))
        for storage in (self._k, self._v):
            storage[moved, :, : self._n] = storage[source[moved], :, : self._n]
        self._held, self._dropped = self._held[source], self._dropped[source]
        self._padding, self._unstored = self._padding[source], self._unstored[source]
        self._settle()

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
        none = np.zeros(self.batch, np.int64)
        announced = none if padding is None else self._checked_padding(faults, padding, empty=True)
        faults.raise_any()
        self._begin(announced)

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
        return {**vars(self), "_k": self.k, "_v": self.v}  # the slots held

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._k, self._v = self._storage(self.d_k), self._storage(self.d_v)
        self._k[:, :, : self._n], self._v[:, :, : self._n] = state["_k"], state["_v"]

    def __repr__(self) -> str:
        given = {"batch": self.batch, "n_kv_heads": self.n_kv_heads, "capacity": self.capacity, "d_k": self.d_k}
        given |= {"d_v": self.d_v} if self.d_v != self.d_k else {}
        given |= {"window": self.window} if self.window is not None else {}
        sizes = ", ".join(f"{name}={value}" for name, value in given.items())
        return f"KVCache({sizes}, dtype={self.dtype}, lengths={brief(self.lengths)})"

    # ------------------------------------------------------------------------------------- what does not fit
    def _checked_rows(self, faults: Faults, k: Any, v: Any) -> tuple[Array, Array]:
        """k and v as arrays; with a fault noted, anything."""
        lead = (self.batch, self.n_kv_heads)
        given = [array(faults, name, value) for name, value in (("k", k), ("v", v))]
        for name, rows, width in zip("kv", given, (self.d_k, self.d_v), strict=True):
            if rows is not None and (rows.ndim != 4 or (*rows.shape[:2], rows.shape[3]) != (*lead, width)):
                remedy = ""
                if rows.ndim == 4 and (rows.shape[0], rows.shape[2], rows.shape[3]) == (*lead, width):
                    remedy = f"heads come before tokens: pass np.swapaxes({name}, 1, 2)"
                elif rows.ndim == 3 and self.batch == 1:
                    remedy = f"give it an axis for the items: {name}[None]"
                expected = f"(B, G, n, d_{name}) = ({self.batch}, {self.n_kv_heads}, n, {width})"
                faults.value(name, expected, words(rows.shape), remedy)
        rows_k, rows_v = given
        if rows_k is None or rows_v is None:
            return np.zeros(0), np.zeros(0)
        if not faults.found and rows_k.shape[2] != rows_v.shape[2]:
            expected = f"n = {rows_k.shape[2]} rows as in k {words(rows_k.shape)}"
            faults.value("v", expected, words(rows_v.shape), "every key has one value")
        return rows_k, rows_v

    def _check_room(self, faults: Faults, n: int, own: Array | None) -> None:
        """Note rows that the slots do not hold."""
        if self.window is not None:
            most = self.capacity - self.window
            if n > most:
                expected = f"at most capacity - window = {most} rows at a time"
                faults.value("k", expected, f"n = {n}", "append shorter chunks, or make a cache of more capacity")
        elif self._n + n > self.capacity:
            after = self._held + (n if own is None else own)
            if int(after.max()) > self.capacity:
                b = int(after.argmax())
                expected = f"at most {self.capacity - int(self._held[b])} more rows for item {b}"
                got = f"{int(after[b] - self._held[b])}, with {int(self._held[b])} of {self.capacity} slots held"
                remedy = "make a cache of more capacity, or with a window; truncate and reset make room"
                faults.value("k", expected, got, remedy)

    def _checked_padding(self, faults: Faults, padding: Any, empty: bool = False) -> Array:
        if not empty and self._n:
            faults.value("padding", "None where the cache is not empty", given_as(padding), "call reset first")
        return self._per_item(faults, "padding", padding, _MOST, f"2**{_MOST.bit_length() - 1}")

    def _checked_queries(self, faults: Faults, n_q: Any) -> int:
        count = integer(faults, "n_q", n_q, 0, "a number of queries")
        if count > self._rows:
            remedy = "queries are the rows that were appended last: ask after each append"
            faults.value("n_q", f"at most {self._rows}", str(count), remedy)
        return count

    def _per_item(
        self, faults: Faults, name: str, values: Any, most: Any, of_what: str, *, single: bool = False
    ) -> Array:
        """Integers from 0 to ``most``, one for each item; zeros with the fault noted otherwise."""
        seen = len(faults.found)
        given = item_integers(faults, name, values, low=0).values
        if len(faults.found) == seen and not (given.shape == (self.batch,) or (single and given.ndim == 0)):
            expected = f"one number for each item, shape (B,) = ({self.batch},)"
            faults.value(name, expected, words(given.shape) if given.ndim else "a single number")
        elif len(faults.found) == seen and (given > most).any():
            faults.value(name, f"at most {of_what}", brief(given))
        if len(faults.found) > seen:
            return np.zeros(self.batch, np.int64)
        return np.broadcast_to(given, (self.batch,))


def _read_only(view: Array) -> Array:
    view.flags.writeable = False
    return view


def _float_type(faults: Faults, dtype: Any) -> np.dtype[Any]:
    """A float type that attention computes with; float32 with the fault noted otherwise."""
    expected = "a float type: float16, bfloat16, float32 or float64"
    try:
        given: np.dtype[Any] = np.dtype(dtype)
    except TypeError:
        faults.type("dtype", expected, given_as(dtype), install_remedy(dtype))
        return np.dtype(np.float32)
    if dtype is None or given.kind in "biu" or computing_dtype(given) is None:
        faults.type("dtype", expected, given_as(dtype))
        return np.dtype(np.float32)
    return given.newbyteorder("=")
