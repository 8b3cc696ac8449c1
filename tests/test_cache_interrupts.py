"""A cache that is interrupted anywhere is as before or as after, and so is one for which memory did not suffice."""

import copy
import pickle
import sys
from pathlib import Path

import numpy as np
import pytest
from layer_by_hand import ListCache

import headwise as hw
from headwise.layers import cache as cache_module
from headwise.layers import forward as forward_module
from headwise.layers.cache_state import Move

FOLDER = Path(cache_module.__file__).parent
WATCHED = {str(FOLDER / f"{name}.py") for name in ("cache", "cache_state", "cache_checks", "forward")}


def rows(batch, first, n):
    """Keys and values (B, 2, n, 3), each row equal to its number; item b has those from 100 b + first on."""
    numbers = 100.0 * np.arange(batch)[:, None] + first + np.arange(n)
    k = np.repeat(numbers[:, None, :, None], 2, axis=1) * np.ones(3)
    return k, -k


def made(*lengths, capacity=8, window=None, padding=None):
    cache = hw.KVCache(len(lengths), 2, capacity, 3, dtype=float, window=window)
    cache.reset(padding=padding)
    for i in range(max(lengths)):
        cache.append(*rows(len(lengths), i, 1), lengths=[int(i < length) for length in lengths])
    return cache


def seen(cache, n_q, causal=True):
    """For each item and query the keys and values that it sees."""
    shown = cache.mask(n_q, causal).dense((cache.batch, 1, n_q, len(cache)))[:, 0]
    held = np.concatenate([cache.k, cache.v], axis=-1)
    return [[held[b, :, row].tolist() for row in item] for b, item in enumerate(shown)]


def queries(cache):
    """How many of the last rows may be queries."""
    n = 0
    while True:
        try:
            cache.mask(n + 1)
        except ValueError:
            return n
        n += 1


def told(cache):
    """All that a cache can be asked now, and what it shows to rows that come later."""
    n = queries(cache)
    now = [len(cache), cache.offset(n).tolist(), seen(cache, n), seen(cache, n, causal=False)]
    later = [cache.lengths.tolist(), cache.padding.tolist(), cache.next_positions(2).tolist()]
    twin = cache.copy()
    if len(twin) < twin.capacity or twin.window is not None:
        twin.append(*rows(twin.batch, 70, 1))
        later.append(seen(twin, 1))
    return now, later


def interrupted(act, at):
    """Run act, and interrupt it at one of its steps in our files, a line or less; whether it came so far."""
    steps, before = 0, sys.gettrace()

    def trace(frame, event, argument):
        nonlocal steps
        if frame.f_code.co_filename not in WATCHED:
            return None
        frame.f_trace_opcodes = True
        if event in ("line", "opcode"):
            steps += 1
            if steps == at:
                raise KeyboardInterrupt
        return trace

    sys.settrace(trace)
    try:
        act()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False


LAYER = hw.MultiHeadAttention(6, 2, d_head=3)
X = np.random.default_rng(0).standard_normal((2, 2, 6))
ACTIONS = {
    "append": (made(3, 3), lambda c: c.append(*rows(2, 20, 2))),
    "append to uneven items": (made(3, 1), lambda c: c.append(*rows(2, 20, 2))),
    "append uneven rows": (made(3, 3), lambda c: c.append(*rows(2, 20, 2), lengths=[1, 2])),
    "append padding": (hw.KVCache(2, 2, 8, 3, dtype=float), lambda c: c.append(*rows(2, 20, 2), padding=[1, 3])),
    "append beyond a window": (made(5, 5, capacity=6, window=3), lambda c: c.append(*rows(2, 20, 2))),
    "append beyond a window of uneven items": (
        made(5, 4, capacity=6, window=3, padding=[1, 0]),
        lambda c: c.append(*rows(2, 20, 2), lengths=[2, 1]),
    ),
    "truncate": (made(5, 3), lambda c: c.truncate([2, 3])),
    "truncate a window": (made(5, 3, window=0), lambda c: c.truncate([2, 0])),
    "reorder": (made(5, 3, 4), lambda c: c.reorder([1, 0, 0])),
    "reset": (made(5, 3), lambda c: c.reset(padding=[1, 2])),
    "a layer": (made(3, 1), lambda c: LAYER(X, causal=True, cache=c)),
    "a layer with its weights": (made(3, 3), lambda c: LAYER(X, causal=True, cache=c, return_weights=True)),
    "a layer beyond a window": (made(5, 4, capacity=6, window=3), lambda c: LAYER(X, causal=True, cache=c)),
}


@pytest.mark.parametrize("name", ACTIONS)
def test_an_interrupt_anywhere_leaves_the_cache_as_before_or_as_after(name):
    first, act = ACTIONS[name]
    after = first.copy()
    act(after)
    before, after = told(first), told(after)
    assert before[1] != after[1]
    at = 0
    found = []
    while True:
        at, cache = at + 1, first.copy()
        if not interrupted(lambda cache=cache: act(cache), at):
            break
        now, later = told(cache)
        moved = first.window is not None and later == before[1]  # older keys dropped, and nothing else
        assert (now, later) in (before, after) or moved, f"at step {at}: {now}, {later}"
        found.append(later)
    assert len(found) > 20
    assert found[0] == before[1]
    if "layer" in name:  # the last steps are those of a call that is done, and returns
        assert all(later == before[1] for later in found[:-5])
    else:
        assert found[-1] == after[1]


def pending(name):
    """A cache whose rows were on their way to other slots when an interrupt came: keys arrived, values did not."""
    first, act = ACTIONS[name]
    for at in range(1, 10_000):
        cache = first.copy()
        assert interrupted(lambda cache=cache: act(cache), at)
        if isinstance(cache._state, Move) and not np.array_equal(cache._k, first._k):
            assert np.array_equal(cache._v, first._v)
            return cache
    raise AssertionError("no move was seen")


USES = {
    "k": lambda c: c.k.tolist(),
    "v": lambda c: c.v.tolist(),
    "len": len,
    "lengths": lambda c: c.lengths.tolist(),
    "padding": lambda c: c.padding.tolist(),
    "next_positions": lambda c: c.next_positions(1).tolist(),
    "mask": lambda c: repr(c.mask(0)),
    "offset": lambda c: c.offset(0).tolist(),
    "repr": repr,
    "append": lambda c: c.append(*rows(c.batch, 70, 1)),
    "truncate": lambda c: c.truncate(c.lengths - [1, 0, 2]),
    "truncate to one length": lambda c: c.truncate(3),
    "reorder": lambda c: c.reorder([2, 2, 1]),
    "reset": lambda c: c.reset(),
    "copy": lambda c: told(c.copy()),
    "copy.copy": lambda c: told(copy.copy(c)),
    "copy.deepcopy": lambda c: told(copy.deepcopy(c)),
    "pickle": lambda c: told(pickle.loads(pickle.dumps(c))),
}


@pytest.mark.parametrize("use", USES)
def test_whatever_comes_first_after_an_interrupted_move_finds_it_done(use):
    done = ACTIONS["reorder"][0].copy()
    ACTIONS["reorder"][1](done)
    cache = pending("reorder")
    assert USES[use](cache) == USES[use](done)
    assert told(cache) == told(done)


def test_a_move_may_be_interrupted_again_and_again():
    done = ACTIONS["reorder"][0].copy()
    ACTIONS["reorder"][1](done)
    cache, at = pending("reorder"), 1
    while interrupted(lambda: cache.k, at):
        at += 1
    assert at > 10
    assert told(cache) == told(done)


# ---------------------------------------------------------------------------------------------- no memory
class NoCopies(np.ndarray):
    """Slots of which no copy can be made."""

    def __getitem__(self, index):
        raise MemoryError


class NoWrites(np.ndarray):
    def __setitem__(self, index, rows):
        raise MemoryError


@pytest.mark.parametrize("slots", ["_k", "_v"])
@pytest.mark.parametrize("name", ["append beyond a window", "append beyond a window of uneven items", "reorder"])
def test_no_memory_for_the_copies_changes_nothing(name, slots):
    first, act = ACTIONS[name]
    cache = first.copy()
    whole = getattr(cache, slots)
    setattr(cache, slots, whole.view(NoCopies))
    with pytest.raises(MemoryError):
        act(cache)
    setattr(cache, slots, whole)
    assert told(cache) == told(first)


@pytest.mark.parametrize("slots", ["_k", "_v"])
@pytest.mark.parametrize(
    "name", ["append", "append to uneven items", "append uneven rows", "append padding", "a layer"]
)
def test_rows_of_which_a_half_was_written_do_not_show(name, slots):
    first, act = ACTIONS[name]
    cache = first.copy()
    whole = getattr(cache, slots)
    setattr(cache, slots, whole.view(NoWrites))
    with pytest.raises(MemoryError):
        act(cache)
    setattr(cache, slots, whole)
    assert told(cache) == told(first)
    act(cache)
    after = first.copy()
    act(after)
    assert told(cache) == told(after)


# ---------------------------------------------------------------------------------------------- a layer that fails
@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError, ValueError])
@pytest.mark.parametrize("return_weights", [False, True])
@pytest.mark.parametrize("name", ["a layer", "a layer beyond a window"])
def test_a_layer_that_fails_takes_its_rows_back(name, return_weights, error, monkeypatch):
    first, _ = ACTIONS[name]
    cache, other = first.copy(), first.copy()
    wanted = LAYER(X, causal=True, cache=other)

    def fail(*args, **options):
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(forward_module, "_by_definition" if return_weights else "attention", fail)
        with pytest.raises(error):
            LAYER(X, causal=True, cache=cache, return_weights=return_weights)
    assert told(cache)[1] == told(first)[1]
    if first.window is None:
        assert told(cache) == told(first)
    np.testing.assert_array_equal(LAYER(X, causal=True, cache=cache), wanted)
    assert told(cache) == told(other)


def test_a_cache_of_another_kind_keeps_its_rows(monkeypatch):
    def fail(*args, **options):
        raise MemoryError("no room")

    monkeypatch.setattr(forward_module, "attention", fail)
    cache = ListCache(2, 2, 3)
    with pytest.raises(MemoryError, match="no room"):
        LAYER(X, causal=True, cache=cache)
    assert cache.lengths.tolist() == [2, 2]
