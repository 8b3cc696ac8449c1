"""Attention over sequences of many lengths, packed one after the other: each attends to itself, nothing is padded.

Segments are the tasks of the workers; what is computed in one is the engine's and the gradients' affair.
"""

from __future__ import annotations  # help() then shows ArrayLike as it is written

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from headwise.core import workers
from headwise.core.engine import attend_into, remembered
from headwise.core.gradients import AttentionGradients, Forward
from headwise.core.grid import Grid, grid_of, threads_for
from headwise.core.packed import Packed, Room, heads_first, packed
from headwise.core.plan import thread_count
from headwise.core.shapes import Array, Faults, Problem, flag, given_as, gradient_of, result_dtype

_LONG = 4  # a segment of more than this part of a thread's share is shared out among the threads itself


# ------------------------------------------------------------------------------------ who does what
def _run(call: Packed, threads: int, do: Callable[[range, Room, int], None]) -> None:
    """Do all segments, the longest first: ``do(run, room, threads)``.

    A run so long that others would wait for it has all threads to itself; the others are tasks of one thread each.
    """
    runs = sorted(call.runs(), key=call.pairs, reverse=True)
    most = sum(map(call.pairs, runs)) / (_LONG * threads) if threads > 1 else np.inf
    n_long, room = sum(call.pairs(run) > most for run in runs), Room()
    for run in runs[:n_long]:
        do(run, room, threads)

    def start() -> Callable[[range], None]:
        own = Room()
        return lambda run: do(run, own, 1)

    workers.run(start, runs[n_long:], threads)


def _grid(p: Problem, threads: int) -> Grid:
    return grid_of(p, threads, alone=threads == 1)


def _results(call: Packed) -> tuple[Array, Array]:
    tokens, n_heads, _ = call.q.shape
    return np.empty((tokens, n_heads, call.v.shape[-1]), call.p.dtype), np.empty((tokens, n_heads), call.p.computing)


def _forward(call: Packed, threads: int, return_lse: bool) -> tuple[Array, Array | None]:
    """Output (tokens_q, H, d_v) and log-sum-exp (tokens_q, H): the engine writes into views of them."""
    out, lse = _results(call)

    def do(run: range, room: Room, threads: int) -> None:
        p, rows = call.problem(run, room), call.queries(run)
        mine, mine_lse = heads_first(out[rows], run), heads_first(lse[rows], run)
        attend_into(_grid(p, threads), p, mine, mine_lse if return_lse else None)

    _run(call, threads, do)
    return out, lse if return_lse else None


# ----------------------------------------------------------------------------------------- gradients
def _remember(call: Packed, threads: int) -> tuple[Array, Array, dict[range, Forward]]:
    """Output, log-sum-exp, and what each run of segments remembers of its forward pass."""
    (out, lse), forwards = _results(call), {}

    def do(run: range, room: Room, threads: int) -> None:
        p, rows = call.problem(run, room), call.queries(run)
        forward = Forward(p, None, *remembered(_grid(p, threads), p, None, None), threads, None)
        heads_first(out[rows], run)[...], heads_first(lse[rows], run)[...] = forward.out, forward.lse
        forwards[run] = forward

    _run(call, threads, do)
    return out, lse, forwards


def _gradients(
    call: Packed, threads: int, forwards: dict[range, Forward], sinks: Array | None, d_out: Array, d_lse: Array | None
) -> AttentionGradients:
    """The gradients of all segments, packed; those of sinks are summed in the order of the segments."""
    wholes = [np.zeros(x.shape, result_dtype(x.dtype)) for x in (call.q, call.k, call.v)]
    of_sinks: dict[range, Array] = {}

    def do(run: range, _: Room, threads: int) -> None:
        rows, keys = call.queries(run), call.keys(run)
        of_lse = None if d_lse is None else heads_first(d_lse[rows], run)
        with np.errstate(all="ignore"):
            found = forwards[run]._replace(threads=threads).gradients(heads_first(d_out[rows], run), of_lse)
        for whole, span, gradient in zip(wholes, (rows, keys, keys), found[:3], strict=True):
            heads_first(whole[span], run)[...] = gradient
        if found.sinks is not None:
            of_sinks[run] = found.sinks

    _run(call, threads, do)
    d_q, d_k, d_v = wholes
    if sinks is None:
        return AttentionGradients(d_q, d_k, d_v)
    total = sum((of_sinks[run] for run in call.runs()), np.zeros(sinks.shape))
    return AttentionGradients(d_q, d_k, d_v, sinks=total.astype(result_dtype(sinks.dtype)))


# ------------------------------------------------------------------------------------------ public faces
def attention_varlen(
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    q_starts: ArrayLike,
    k_starts: ArrayLike | None,
    *,
    causal: bool = False,
    window: tuple[int | None, int | None] | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    slopes: ArrayLike | None = None,
    sinks: ArrayLike | None = None,
    return_lse: bool = False,
    threads: int | None = None,
    paged: tuple[ArrayLike, ArrayLike] | None = None,
) -> Any:
    """Attention over sequences of many lengths, packed one after the other without padding.

    Each segment of queries attends to the keys of the same segment, as :func:`headwise.attention` would alone; nothing
    is computed between segments.

    Parameters
    ----------
    q : array_like, shape (tokens_q, H, d_k)
        The queries of all segments. Query head h reads key head ``h // (H // G)``.
    k : array_like, shape (tokens_k, G, d_k), or (n_blocks, block_size, G, d_k) with ``paged``
    v : array_like, shape (tokens_k, G, d_v), or (n_blocks, block_size, G, d_v) with ``paged``
    q_starts : array_like of int, shape (segments + 1,)
        Where each segment begins, and the end of the last: 0 first, ``tokens_q`` last. Of lengths,
        ``np.cumsum([0, *lengths])``. A segment may be empty.
    k_starts : array_like of int, shape (segments + 1,), or None
        The same of keys, ``tokens_k`` last; None with ``paged``.
    causal : bool
        Whether a query sees only keys up to its own position, lower-right in each segment: its last query sees all of
        its keys.
    window : (int or None, int or None), optional
        How many keys before and after the own position are seen besides it, as for :func:`headwise.masks.window`.
    scale, softcap
        As for :func:`headwise.attention`.
    slopes : array_like, shape (H,), optional
        Of :func:`headwise.alibi`, with distances inside each segment.
    sinks : array_like, shape (H,), optional
        As for :func:`headwise.attention`.
    return_lse : bool
        Whether to return the log-sum-exp too.
    threads : int, optional
        As for :func:`headwise.attention`.
    paged : tuple (array_like of int, shape (segments, max_blocks); array_like of int, shape (segments,)), optional
        ``(block_table, k_lengths)``: ``k`` and ``v`` are pools of blocks, and the keys of segment i are the first
        ``k_lengths[i]`` in the blocks ``block_table[i]``, in this order. What the table holds beyond them is not looked
        at.

    Returns
    -------
    out : ndarray, shape (tokens_q, H, d_v)
        Zeros for a segment without keys.
    lse : ndarray, shape (tokens_q, H)
        In the computing type; ``-inf`` for a query without keys, or the sink. Only with ``return_lse``.

    Raises
    ------
    TypeError
        If an argument is of the wrong kind.
    ValueError
        If shapes or numbers do not fit. Everything that does not fit is named at once.

    Notes
    -----
    A segment gives the same bits alone and among others, and for any number of threads. Packed arrays are read as they
    lie. Blocks of a pool are gathered, one segment at a time in each thread.

    Examples
    --------
    >>> q = k = np.zeros((3, 1, 1))
    >>> v = np.array([6.0, 12.0, 18.0])[:, None, None]
    >>> attention_varlen(q, k, v, [0, 1, 3], [0, 1, 3])[:, 0, 0].tolist()
    [6.0, 15.0, 15.0]
    >>> attention_varlen(q, k, v, [0, 1, 3], [0, 1, 3], causal=True)[:, 0, 0].tolist()
    [6.0, 12.0, 15.0]
    """
    faults = Faults("attention_varlen")
    threads, return_lse = thread_count(faults, threads), flag(faults, "return_lse", return_lse)
    call = packed(
        "attention_varlen", q, k, v, q_starts, k_starts, causal, window, scale, softcap, slopes, sinks, paged, faults
    )
    out, lse = _forward(call, threads or threads_for(call.operations()), return_lse)
    return out if lse is None else (out, lse)


def attention_varlen_vjp(
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    q_starts: ArrayLike,
    k_starts: ArrayLike,
    *,
    causal: bool = False,
    window: tuple[int | None, int | None] | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    slopes: ArrayLike | None = None,
    sinks: ArrayLike | None = None,
    return_lse: bool = False,
    threads: int | None = None,
    paged: None = None,
) -> Any:
    """:func:`attention_varlen`, and the function that takes a gradient with regard to it back to its arguments.

    Parameters
    ----------
    q, k, v, q_starts, k_starts, causal, window, scale, softcap, slopes, sinks, return_lse, threads
        As for :func:`attention_varlen`; the arrays must not change until ``vjp`` is called for the last time.
    paged : None
        Blocks of a pool may serve several segments, and have no gradients here.

    Returns
    -------
    out : ndarray, shape (tokens_q, H, d_v)
    lse : ndarray, shape (tokens_q, H)
        Only with ``return_lse``.
    vjp : callable
        ``vjp(d_out, d_lse=None) -> AttentionGradients``, as of :func:`headwise.attention_vjp`: ``q``, ``k`` and ``v``
        packed as the arguments are, ``bias`` None, ``sinks`` summed over all segments. It may be called more than once.

    Raises
    ------
    TypeError, ValueError
        As :func:`attention_varlen` does, and with ``paged``; ``vjp`` if ``d_out`` or ``d_lse`` is not of the shape of
        what it belongs to.

    Examples
    --------
    >>> q = k = np.zeros((3, 1, 1))
    >>> out, vjp = attention_varlen_vjp(q, k, np.ones((3, 1, 1)), [0, 1, 3], [0, 1, 3], causal=True)
    >>> vjp(np.ones((3, 1, 1))).v[:, 0, 0].tolist()
    [1.0, 1.5, 0.5]
    """
    faults = Faults("attention_varlen_vjp")
    if paged is not None:
        remedy = "gather each segment's blocks yourself, or use attention_varlen for the output alone"
        faults.value("paged", "None: blocks of a pool have no gradients here", given_as(paged), remedy)
        faults.raise_any()
    threads, return_lse = thread_count(faults, threads), flag(faults, "return_lse", return_lse)
    call = packed(
        "attention_varlen_vjp", q, k, v, q_starts, k_starts, causal, window, scale, softcap, slopes, sinks, None, faults
    )
    given = call.p.sinks
    if given is not None:  # the parts of a gradient are rounded once, when they have been added up
        call = call._replace(p=call.p._replace(sinks=given.astype(np.float64)))
    n_threads = threads or threads_for(call.operations())
    out, lse, forwards = _remember(call, n_threads)
    shapes = out.shape, lse.shape

    def vjp(d_out: ArrayLike, d_lse: ArrayLike | None = None) -> AttentionGradients:
        """Gradients with regard to q, k, v and sinks of the number whose gradients these are."""
        faults = Faults("attention_varlen_vjp's vjp")
        of_out = gradient_of(faults, "d_out", d_out, "out", shapes[0], "(tokens_q, H, d_v)")
        of_lse = None if d_lse is None else gradient_of(faults, "d_lse", d_lse, "lse", shapes[1], "(tokens_q, H)")
        faults.raise_any()
        assert of_out is not None  # its absence is a fault
        return _gradients(call, n_threads, forwards, given, of_out, of_lse)

    return (out, lse, vjp) if return_lse else (out, vjp)
