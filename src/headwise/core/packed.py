"""Segments packed one after the other without padding: what is checked about them, and each as a problem of its own.

Knows where the tokens of a segment lie, in packed arrays or in blocks of a pool; computes no score.
"""

from __future__ import annotations  # help() then shows ArrayLike as it is written

from math import prod
from typing import Any, NamedTuple

import numpy as np

from headwise.core.masks import Mask, window
from headwise.core.positions import Alibi, checked_slopes
from headwise.core.shapes import Array, Faults, Problem, Shape, array, given_as, integer, plain_array, problem, words

_SWAPPED = "a block is (block_size, G, d): of (G, block_size, d), pass np.swapaxes(k, 1, 2) and np.swapaxes(v, 1, 2)"
_TOGETHER = 2**16  # pairs of query and key, of each head, up to which segments of one size are a batch


class Packed(NamedTuple):
    """A call over segments, checked."""

    p: Problem  # options and types; its arrays only stand for those of a segment
    q: Array  # (tokens_q, H, d_k)
    k: Array  # (tokens_k, G, d_k), or with pages (n_blocks, block_size, G, d_k)
    v: Array  # (tokens_k, G, d_v), or with pages (n_blocks, block_size, G, d_v)
    q_starts: list[int]  # where segments begin, and the end of the last
    k_starts: list[int]  # the same of keys; with pages it only counts them
    pages: Array | None  # (segments, max_blocks)  the blocks of each segment

    def queries(self, run: range) -> slice:
        """The tokens of neighbouring segments among the queries."""
        return slice(self.q_starts[run.start], self.q_starts[run.stop])

    def keys(self, run: range) -> slice:
        """The tokens of neighbouring segments among packed keys."""
        return slice(self.k_starts[run.start], self.k_starts[run.stop])

    def sizes(self, i: int) -> tuple[int, int]:
        """The queries and the keys of a segment."""
        return self.q_starts[i + 1] - self.q_starts[i], self.k_starts[i + 1] - self.k_starts[i]

    def pairs(self, run: range) -> int:
        """How many scores each head of a run has, masked or not."""
        n_q, n_k = self.sizes(run.start)
        return len(run) * n_q * n_k

    def operations(self) -> int:
        """Of the two products, for all heads of all segments."""
        pairs = sum(map(self.pairs, self.runs()))
        return int(2 * pairs * self.q.shape[1] * (self.q.shape[-1] + self.v.shape[-1]))

    def runs(self) -> list[range]:
        """All segments that have queries; short neighbours of one size together, as items of a batch.

        What is together depends on the sizes alone, never on threads.
        """
        found: list[range] = []
        for i in range(len(self.q_starts) - 1):
            sizes, last = self.sizes(i), found[-1] if found else range(0)
            few = (len(last) + 1) * prod(sizes) <= _TOGETHER
            if last.stop == i and len(last) and few and self.sizes(last.start) == sizes:
                found[-1] = range(last.start, i + 1)
            elif sizes[0]:
                found.append(range(i, i + 1))
        return found

    def problem(self, run: range, room: Room) -> Problem:
        """A run alone, of scores (segments, H, n_q, n_k): views of the packed arrays, or of what a room gathers."""
        if self.pages is None:
            k, v = (heads_first(x[self.keys(run)], run) for x in (self.k, self.v))
        else:
            k, v = (x.swapaxes(1, 2) for x in room.gather(self, run))
        q, scores = heads_first(self.q[self.queries(run)], run), (len(run), self.q.shape[1], *self.sizes(run.start))
        return self.p._replace(q=q, k=k, v=v, scores=scores)


def heads_first(x: Array, run: range) -> Array:
    """(segments * n, H, ...) as (segments, H, n, ...): a view."""
    return x.reshape(len(run), len(x) // len(run), *x.shape[1:]).swapaxes(1, 2)


class Room:
    """Where one worker gathers keys and values of a run from their blocks."""

    def __init__(self) -> None:
        self.k = self.v = np.empty(0)

    def gather(self, packed: Packed, run: range) -> tuple[Array, Array]:
        """Keys (segments, n_k, G, d_k) and values (segments, n_k, G, d_v) of a run, until the next is gathered."""
        assert packed.pages is not None
        _, n_keys = packed.sizes(run.start)
        blocks = packed.pages[run.start : run.stop, : -(-n_keys // max(1, packed.k.shape[1]))]
        self.k, self.v = (_enough(x, blocks.size, pool) for x, pool in ((self.k, packed.k), (self.v, packed.v)))
        k, v = (_gathered(x, pool, blocks, n_keys) for x, pool in ((self.k, packed.k), (self.v, packed.v)))
        return k, v


def _enough(held: Array, n_blocks: int, pool: Array) -> Array:
    """Room for so many blocks: what there is, if that is enough."""
    held_is_enough = held.ndim == pool.ndim and len(held) >= n_blocks
    return held if held_is_enough else np.empty((n_blocks, *pool.shape[1:]), pool.dtype)


def _gathered(held: Array, pool: Array, blocks: Array, n_keys: int) -> Array:
    """The first keys (segments, n_keys, G, d) of each row of blocks (segments, n)."""
    some = held[: blocks.size].reshape(*blocks.shape, *pool.shape[1:])
    if blocks.size and pool.flags.c_contiguous:
        np.take(pool, blocks, axis=0, out=some, mode="clip")  # ids are checked; by "raise" NumPy would copy twice
    elif blocks.size:  # of which take would copy all
        some[...] = pool[blocks]
    return some.reshape(len(blocks), blocks.shape[1] * pool.shape[1], *pool.shape[2:])[:, :n_keys]


# ------------------------------------------------------------------------------------------ what is checked
def packed(
    function: str,
    q: Any,
    k: Any,
    v: Any,
    q_starts: Any,
    k_starts: Any,
    causal: Any,
    reach: Any,
    scale: Any,
    softcap: Any,
    slopes: Any,
    sinks: Any,
    paged: Any,
    faults: Faults,
) -> Packed:
    """Check a call over segments before any work, and name everything about it that does not fit."""
    of_queries, of_keys = (
        "(tokens_q, H, d_k)",
        "(n_blocks, block_size, G, {})" if paged is not None else "(tokens_k, G, {})",
    )
    wanted = {"q": of_queries, "k": of_keys.format("d_k"), "v": of_keys.format("d_v")}
    arrays = [_of_axes(faults, name, x, wanted[name]) for name, x in (("q", q), ("k", k), ("v", v))]
    known = [x for x in arrays if x is not None]
    fitting = len(known) == 3 and _fit_each_other(faults, known[0], known[1], known[2], wanted)
    seen = len(faults.found)
    starts = _starts(faults, "q_starts", q_starts, arrays[0], "tokens_q")
    counted = starts if len(faults.found) == seen else None  # whose segments others are held to
    if paged is None:
        ends, pages = _starts(faults, "k_starts", k_starts, arrays[1], "tokens_k"), None
        if len(faults.found) == seen and counted is not None and ends is not None and len(counted) != len(ends):
            faults.value("k_starts", f"(segments + 1,) = ({len(counted)},) as q_starts", words(ends.shape))
    else:
        if k_starts is not None:
            faults.value("k_starts", "None with paged", given_as(k_starts), "paged says where the keys are")
        n_heads = 0 if arrays[0] is None else arrays[0].shape[1]
        ends, pages = _pages(faults, paged, counted, arrays[1], n_heads)
    if len(known) == 3:
        keys = None if paged is not None else ends
        _advise_tokens_first(faults, known, [starts, keys, keys])
    mask, bias = _window(faults, reach), _alibi(faults, slopes)
    p = _options(function, known if fitting else None, mask, causal, bias, scale, softcap, sinks, faults)
    assert starts is not None
    assert ends is not None  # where they are not known, a fault says why
    return Packed(p, known[0], known[1], known[2], starts.tolist(), ends.tolist(), pages)


def _options(
    function: str,
    known: list[Array] | None,
    mask: Mask | None,
    causal: Any,
    bias: Alibi | None,
    scale: Any,
    softcap: Any,
    sinks: Any,
    faults: Faults,
) -> Problem:
    """The options as those of a problem without tokens; raises whatever has been found."""
    if known is None:  # then nothing per head can be checked
        known, bias, sinks = [np.zeros((0, 1, 1))] * 3, None, None
    q, k, v = (np.broadcast_to(np.zeros((), x.dtype), (1, x.shape[-2], 0, x.shape[-1])) for x in known)
    return problem(function, q, k, v, mask, causal, bias, scale, softcap, sinks, 0.0, None, faults)


def _of_axes(faults: Faults, name: str, value: Any, axes: str) -> Array | None:
    """An array of these axes, or None with the fault noted."""
    given = array(faults, name, value)
    if given is None or given.ndim == axes.count(",") + 1:
        return given
    remedy = "segments stand one after the other along the first axis, heads come second" if given.ndim > 2 else ""
    faults.value(name, axes, words(given.shape), remedy)
    return None


def _fit_each_other(faults: Faults, q: Array, k: Array, v: Array, wanted: dict[str, str]) -> bool:
    """Whether widths, heads and tokens of q, k and v agree; what does not is noted."""
    before = len(faults.found)
    n_heads, n_groups = q.shape[1], k.shape[-2]
    if q.shape[-1] != k.shape[-1]:
        expected = f"{wanted['k']} with d_k = {q.shape[-1]} as in q {words(q.shape)}"
        faults.value("k", expected, words(k.shape), "queries and keys are compared by a dot product")
    if k.shape[:-1] != v.shape[:-1]:
        expected = f"{wanted['v']} = {words((*k.shape[:-1], v.shape[-1]))} as k {words(k.shape)}"
        faults.value("v", expected, words(v.shape), "every key has one value")
    if not _heads_fit(n_heads, n_groups):
        expected = f"a number of key/value heads (G) that divides the {n_heads} heads (H) of q {words(q.shape)}"
        swapped = k.ndim == 4 and _heads_fit(n_heads, k.shape[1])
        remedy = _SWAPPED if swapped else "query head h reads key head h // (H // G)"
        faults.value("k", expected, words(k.shape), remedy)
    return len(faults.found) == before


def _heads_fit(n_heads: int, n_groups: int) -> bool:
    return not n_heads or (n_groups > 0 and n_heads % n_groups == 0)


def _integers(faults: Faults, name: str, values: Any, axes: str) -> Array | None:
    """An array of integers of these axes, in the type it has, or None with the fault noted.

    As int64, numbers of uint64 from 2**63 on would be negative, and errors would say so.
    """
    given = plain_array(faults, name, values)
    if given is None:
        return None
    if given.dtype.kind not in "iu":
        faults.type(
            name,
            "integers",
            f"dtype {given.dtype}",
            f"pass np.asarray({name.strip(')').split('(')[-1]}, dtype=np.int64)",
        )
        return None
    if given.ndim != len([axis for axis in axes.strip("()").split(",") if axis]):
        faults.value(name, axes, words(given.shape))
        return None
    return given


def _starts(faults: Faults, name: str, values: Any, tokens: Array | None, letter: str) -> Array | None:
    """Where segments begin and the last one ends, or None with the fault noted."""
    starts = _integers(faults, name, values, "(segments + 1,)")
    if starts is None:
        return None
    if not len(starts) or starts[0] != 0:
        got = "no number" if not len(starts) else f"{starts[0]} first"
        remedy = "give where each segment begins, and the end of the last"
        if tokens is not None and len(starts) and starts.sum() == len(tokens):
            remedy = "these are lengths: pass np.cumsum([0, *lengths])"
        faults.value(name, "numbers that begin with 0", got, remedy)
        return None
    falls = np.flatnonzero(starts[1:] < starts[:-1])
    if falls.size:
        at = int(falls[0])
        got = f"{starts[at]} before {starts[at + 1]} at {name}[{at + 1}]"
        faults.value(name, "numbers that never fall", got, "from lengths: np.cumsum([0, *lengths])")
        return None
    if tokens is not None and starts[-1] != len(tokens):
        faults.value(name, f"{letter} = {len(tokens)} as its last number", str(starts[-1]))
        return starts
    return starts.astype(np.int64)


def _advise_tokens_first(faults: Faults, arrays: list[Array], ends: list[Array | None]) -> None:
    """Say which arrays have heads first, where all of them fit once these axes are swapped."""
    turned, fitting = [], []
    for name, x, end in zip("qkv", arrays, ends, strict=False):
        swap = end is not None and x.shape[0] != end[-1] == x.shape[1]
        turned += [name] if swap else []
        fitting.append(x.swapaxes(0, 1) if swap else x)
    q, k, v = fitting
    if turned and k.shape[:-1] == v.shape[:-1] and _heads_fit(q.shape[1], k.shape[-2]):
        swaps = " and ".join(f"np.swapaxes({name}, 0, 1)" for name in turned)
        theirs = {"q": "q_starts", "k": "k_starts", "v": "v"}
        faults.advise([theirs[name] for name in turned], f"tokens come first, then heads: pass {swaps}")


def _pages(
    faults: Faults, paged: Any, starts: Array | None, pool: Array | None, n_heads: int
) -> tuple[Array | None, Array | None]:
    """Where keys would begin and end if they were packed, and the blocks of each segment; None with faults noted."""
    try:
        table, lengths = paged
    except (TypeError, ValueError):
        faults.type("paged", "None or (block_table, k_lengths)", given_as(paged))
        return None, None
    blocks = _integers(faults, "paged[0] (block_table)", table, "(segments, max_blocks)")
    counts = _integers(faults, "paged[1] (k_lengths)", lengths, "(segments,)")
    if blocks is None or counts is None:
        return None, None
    n_segments, before = len(starts) - 1 if starts is not None else len(counts), len(faults.found)
    for name, given, axes in (
        ("paged[0] (block_table)", blocks, "segments, max_blocks"),
        ("paged[1] (k_lengths)", counts, "segments,"),
    ):
        if len(given) != n_segments:
            faults.value(name, f"({axes}) with segments = {n_segments}", words(given.shape))
    if pool is None or len(faults.found) > before:
        return None, None
    _check_blocks(faults, blocks, counts, pool.shape, n_heads)
    blocks, counts = blocks.astype(np.int64), counts.astype(np.int64)
    return np.append(0, np.cumsum(counts)), blocks


def _check_blocks(faults: Faults, blocks: Array, counts: Array, pool: Shape, n_heads: int) -> None:
    """Lengths that their blocks can hold, and blocks that are in the pool where a length reaches them."""
    n_blocks, block_size, n_groups = pool[:3]
    most = blocks.shape[1] * block_size
    wrong = counts[(counts < 0) | (counts > most)]
    if wrong.size:
        held = f"0 to {blocks.shape[1]} blocks of {block_size} = {most} keys"
        swapped = (wrong > 0).all() and wrong.max() <= blocks.shape[1] * n_groups and _heads_fit(n_heads, block_size)
        remedy = _SWAPPED if swapped else "k_lengths counts keys, not blocks"
        faults.value("paged[1] (k_lengths)", held, str(wrong[0]), remedy)
        return
    used = np.arange(blocks.shape[1]) * block_size < counts[:, None]  # (segments, max_blocks)
    outside = blocks[used & ((blocks < 0) | (blocks >= n_blocks))]
    if outside.size:
        expected = f"ids from 0 to {n_blocks - 1} of the {n_blocks} blocks where k_lengths reaches them"
        faults.value("paged[0] (block_table)", expected, str(outside[0]))


def _window(faults: Faults, reach: Any) -> Mask | None:
    """The mask of a window, lower-right in each segment."""
    if reach is None:
        return None
    try:
        left, right = reach
    except (TypeError, ValueError):
        faults.type("window", "None or (left, right)", given_as(reach), "(255, 0) are the own key and 255 before it")
        return None
    what, before = "None (unlimited) or a number of keys", len(faults.found)
    sides = [None if x is None else integer(faults, f"window[{i}]", x, 0, what) for i, x in enumerate((left, right))]
    return window(*sides) if len(faults.found) == before else None


def _alibi(faults: Faults, slopes: Any) -> Alibi | None:
    """The bias of these slopes, lower-right in each segment."""
    given = None if slopes is None else checked_slopes(faults, slopes)
    return None if given is None else Alibi(given, None)
