"""What a cache is given, checked: sizes, rows, numbers for each item, and whether the slots can do what is asked.

Notes faults; changes nothing.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from headwise.core.shapes import (
    Array,
    Faults,
    array,
    brief,
    computing_dtype,
    given_as,
    install_remedy,
    integer,
    item_integers,
    words,
)
from headwise.layers.cache_state import State

MOST = 2**40  # of each size; more would not fit any memory


def checked_rows(faults: Faults, k: Any, v: Any, lead: tuple[int, int], widths: tuple[int, int]) -> tuple[Array, Array]:
    """k and v as arrays (B, G, n, width), lead = (B, G); with a fault noted, anything."""
    batch, heads = lead
    given = [array(faults, name, value) for name, value in (("k", k), ("v", v))]
    for name, rows, width in zip("kv", given, widths, strict=True):
        if rows is not None and (rows.ndim != 4 or (*rows.shape[:2], rows.shape[3]) != (*lead, width)):
            remedy = ""
            if rows.ndim == 4 and (rows.shape[0], rows.shape[2], rows.shape[3]) == (*lead, width):
                remedy = f"heads come before tokens: pass np.swapaxes({name}, 1, 2)"
            elif rows.ndim == 3 and batch == 1:
                remedy = f"give it an axis for the items: {name}[None]"
            expected = f"(B, G, n, d_{name}) = ({batch}, {heads}, n, {width})"
            faults.value(name, expected, words(rows.shape), remedy)
    rows_k, rows_v = given
    if rows_k is None or rows_v is None:
        return np.zeros(0), np.zeros(0)
    if not faults.found and rows_k.shape[2] != rows_v.shape[2]:
        expected = f"n = {rows_k.shape[2]} rows as in k {words(rows_k.shape)}"
        faults.value("v", expected, words(rows_v.shape), "every key has one value")
    return rows_k, rows_v


def check_room(faults: Faults, state: State, n: int, own: Array | None, capacity: int, window: int | None) -> None:
    """Note rows that the slots do not hold."""
    if window is not None:
        most = capacity - window
        if n > most:
            expected = f"at most capacity - window = {most} rows at a time"
            faults.value("k", expected, f"n = {n}", "append shorter chunks, or make a cache of more capacity")
    elif state.n + n > capacity:
        after = state.held + (n if own is None else own)
        if int(after.max()) > capacity:
            b = int(after.argmax())
            held = int(state.held[b])
            expected = f"at most {capacity - held} more rows for item {b}"
            got = f"{int(after[b]) - held}, with {held} of {capacity} slots held"
            remedy = "make a cache of more capacity, or with a window; truncate and reset make room"
            faults.value("k", expected, got, remedy)


def check_kept(faults: Faults, state: State, kept: Array, window: int | None) -> None:
    """Note that of the last tokens that are kept, which the next one sees, a window has dropped some."""
    if window is None or faults.found:
        return
    first = np.maximum(state.dropped - state.padding, 0)  # the first token that is in a slot
    if (np.maximum(kept - first, 0) < np.minimum(window, kept)).any():
        expected = f"0 or at least {brief(np.where(first > 0, first + window, 0))}, as the window dropped older keys"
        faults.value("lengths", expected, brief(kept), "make a cache of more capacity to go back further")


def checked_padding(faults: Faults, padding: Any, state: State) -> Array:
    if state.n or state.tokens.any():
        faults.value("padding", "None where the cache is not empty", given_as(padding), "call reset first")
    return per_item(faults, "padding", padding, len(state.held), MOST, f"2**{MOST.bit_length() - 1}")


def checked_queries(faults: Faults, n_q: Any, state: State) -> int:
    count = integer(faults, "n_q", n_q, 0, "a number of queries")
    if count > state.rows:
        remedy = "queries are the rows that were appended last: ask after each append"
        faults.value("n_q", f"at most {state.rows}", str(count), remedy)
    return count


def per_item(
    faults: Faults, name: str, values: Any, batch: int, most: Any, of_what: str, *, single: bool = False
) -> Array:
    """Integers from 0 to ``most``, one for each item; zeros with the fault noted otherwise."""
    seen = len(faults.found)
    given = item_integers(faults, name, values, low=0).values
    if len(faults.found) == seen and not (given.shape == (batch,) or (single and given.ndim == 0)):
        expected = f"one number for each item, shape (B,) = ({batch},)"
        faults.value(name, expected, words(given.shape) if given.ndim else "a single number")
    elif len(faults.found) == seen and (given > most).any():
        faults.value(name, f"at most {of_what}", brief(given))
    if len(faults.found) > seen:
        return np.zeros(batch, np.int64)
    return np.broadcast_to(given, (batch,))


def float_type(faults: Faults, dtype: Any) -> np.dtype[Any]:
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
