"""The cache of keys and values: what it holds, whom its mask shows to whom, going back, copies, refusals."""

import copy
import pickle
import re
import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest

import headwise as hw
from headwise import masks

RNG = np.random.default_rng(0)


def filled(*lengths, capacity=8, **options):
    """A cache whose item b holds tokens numbered from 100 b on, each row equal to its number."""
    cache = hw.KVCache(len(lengths), 2, capacity, 3, d_v=1, dtype=np.float64, **options)
    cache.append(*numbered(np.zeros(len(lengths), int), max(lengths)), lengths=lengths)
    return cache


def numbered(first, n):
    """Keys and values of n rows for each item, each row equal to the number of its token; those of head 1 negative."""
    numbers = (100 * np.arange(len(first)) + first)[:, None] + np.arange(n)
    rows = numbers[:, None, :, None] * np.array([1.0, -1.0])[:, None, None]
    return np.repeat(rows, 3, axis=-1), rows


def held(cache, b):
    """The numbers of the tokens that an item holds."""
    n = int(cache.lengths[b] + cache.padding[b])
    np.testing.assert_array_equal(cache.k[b, 0], -cache.k[b, 1])
    np.testing.assert_array_equal(cache.k[b, :, :, :1], cache.v[b])
    return cache.v[b, 0, :n, 0].tolist()


def dense(cache, n_q, causal=True):
    """Rows of a mask as text, one for each item and query."""
    mask = cache.mask(n_q, causal).dense((cache.batch, 1, n_q, len(cache)))
    return [" ".join("".join(".#"[int(x)] for x in row) for row in item[0]) for item in mask]


# --------------------------------------------------------------------------------------- what is held
def test_a_new_cache_is_empty_and_true():
    cache = hw.KVCache(2, 4, 16, 8)
    assert len(cache) == 0
    assert cache
    assert (cache.k.shape, cache.v.shape) == ((2, 4, 0, 8), (2, 4, 0, 8))
    assert cache.k.dtype == cache.v.dtype == np.float32
    assert cache.nbytes == 2 * 2 * 4 * 16 * 8 * 4
    assert cache.lengths.tolist() == cache.padding.tolist() == [0, 0]
    assert cache.mask(0).dense((2, 4, 0, 0)).shape == (2, 4, 0, 0)


def test_rows_are_copied_behind_those_of_each_item():
    cache = filled(3, 1)
    k, v = numbered(np.array([3, 1]), 2)
    cache.append(k, v)
    k[:], v[:] = 0, 0
    assert held(cache, 0) == [0, 1, 2, 3, 4]
    assert held(cache, 1) == [100, 101, 102]
    assert cache.lengths.tolist() == [5, 3]
    assert cache.k.shape == (2, 2, 5, 3)
    assert len(cache) == 5


def test_views_are_read_only_and_cost_no_copy():
    cache = filled(3, 3)
    assert np.shares_memory(cache.k, cache.k)
    assert np.shares_memory(cache.v, cache.v)
    for array in (cache.k, cache.v, cache.lengths, cache.padding):
        with pytest.raises(ValueError, match="read-only"):
            array[...] = 0


def test_items_may_even_out_again():
    cache = filled(1, 3)
    cache.append(*numbered(np.array([1, 3]), 2), lengths=[2, 0])
    cache.append(*numbered(np.array([3, 3]), 1))
    assert held(cache, 0) == [0, 1, 2, 3]
    assert held(cache, 1) == [100, 101, 102, 103]
    assert repr(cache.mask(1)) == "causal()"


WITHOUT_ML_DTYPES = """
import sys
sys.modules["ml_dtypes"] = None
import headwise as hw
for call, sizes in ((hw.KVCache, (1, 1, 4, 2)), (hw.attention_plan, [(2, 2)] * 3)):
    try:
        call(*sizes, dtype="bfloat16")
    except TypeError as error:
        print(error)
"""


def test_bfloat16_by_name_says_what_it_needs():
    done = subprocess.run([sys.executable, "-c", WITHOUT_ML_DTYPES], capture_output=True, text=True, check=True)
    remedy = "got str 'bfloat16'; pip install ml-dtypes, and import ml_dtypes: NumPy knows the name then"
    assert done.stdout.splitlines() == [
        f"KVCache: dtype: expected a float type: float16, bfloat16, float32 or float64, {remedy}",
        f"attention_plan: dtype: expected a dtype of real numbers, {remedy}",
    ]
    assert hw.KVCache(1, 1, 4, 2, dtype="bfloat16").dtype == ml_dtypes.bfloat16  # which is imported here


@pytest.mark.parametrize("dtype", ["number", np.ones(3), [("a", int)]], ids=str)
def test_other_types_need_nothing_installed(dtype):
    with pytest.raises(TypeError, match="KVCache: dtype: expected a float type") as caught:
        hw.KVCache(1, 1, 4, 2, dtype=dtype)
    assert "install" not in str(caught.value)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, "float32", ">f8"], ids=str)
def test_rows_are_rounded_to_the_type_of_the_cache(dtype):
    cache, rows = hw.KVCache(1, 1, 4, 2, dtype=dtype), np.array([[[[1 / 3, 1e300]]]])
    with np.errstate(all="raise"):
        cache.append(rows, np.ones((1, 1, 1, 2), int))
    wanted = np.dtype(dtype).newbyteorder("=")
    assert cache.k.dtype == cache.v.dtype == wanted
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(cache.k, rows.astype(wanted))
    assert cache.v.tolist() == [[[[1, 1]]]]


def test_rows_that_are_not_an_items_own_need_no_slots():
    cache = filled(8, 6)
    cache.append(*numbered(np.array([50, 6]), 3), lengths=[0, 2])
    assert held(cache, 0) == list(range(8))
    assert held(cache, 1) == list(range(100, 108))


def test_no_rows_change_nothing():
    cache = filled(2, 1)
    cache.append(np.zeros((2, 2, 0, 3)), np.zeros((2, 2, 0, 1)))
    assert cache.lengths.tolist() == [2, 1]
    assert cache.k.shape == (2, 2, 2, 3)


# ------------------------------------------------------------------------------------------- positions
def test_positions_go_on_from_each_items_length():
    cache = filled(3, 1)
    positions = cache.next_positions(2)
    assert positions.dtype == np.int64
    assert positions.tolist() == [[3, 4], [1, 2]]
    cache.append(*numbered(np.array([3, 1]), 2))
    assert cache.next_positions(1).tolist() == [[5], [3]]
    assert cache.next_positions(0).shape == (2, 0)


def test_padding_has_position_0_and_is_not_counted():
    cache = hw.KVCache(2, 2, 8, 3, 1, np.float64)
    assert cache.next_positions(4, padding=[0, 3]).tolist() == [[0, 1, 2, 3], [0, 0, 0, 0]]
    cache.append(*numbered(np.zeros(2, int), 2), padding=[0, 3])  # one row of padding is still to come
    assert cache.lengths.tolist() == [2, 0]
    assert cache.padding.tolist() == [0, 3]
    assert cache.next_positions(3).tolist() == [[2, 3, 4], [0, 0, 1]]
    cache.append(*numbered(np.array([2, 2]), 3))
    assert cache.lengths.tolist() == [5, 2]
    assert dense(cache, 3) == ["###.. ####. #####", "..... ...#. ...##"]


def test_padding_may_be_announced_for_somebody_else_who_appends():
    cache = hw.KVCache(2, 2, 8, 3, 1, np.float64)
    cache.reset(padding=[2, 0])
    assert cache.next_positions(3).tolist() == [[0, 0, 0], [0, 1, 2]]
    cache.append(*numbered(np.zeros(2, int), 3))
    assert cache.lengths.tolist() == [1, 3]
    cache.reset()
    assert cache.padding.tolist() == [0, 0]


# ----------------------------------------------------------------------------------------------- masks
def test_the_mask_is_lower_right_for_each_item():
    assert dense(filled(3, 3), 2) == ["##. ###"] * 2
    cache = filled(3, 1)
    cache.append(*numbered(np.array([3, 1]), 2))
    assert dense(cache, 2) == ["####. #####", "##... ###.."]
    assert dense(cache, 1) == ["#####", "###.."]
    assert cache.offset(2).tolist() == [3, 1]
    assert cache.offset(1).tolist() == [4, 2]
    assert cache.offset(1).dtype == np.int64


def test_queries_stand_where_their_rows_were_given():
    """The first row of item 1 was kept, the second was not: it is the first query that stands at its place."""
    cache = filled(1, 2)
    cache.append(*numbered(np.array([1, 2]), 2), lengths=[2, 1])
    assert cache.offset(2).tolist() == [1, 2]
    assert dense(cache, 2) == ["##. ###", "### ###"]
    assert dense(filled(4, 2), 4)[1].split()[:2] == ["#...", "##.."]
    assert dense(filled(4, 2), 4)[1].split()[2:] == ["##..", "##.."]


def test_without_causal_all_keys_of_the_item_are_seen():
    cache = filled(3, 1)
    assert dense(cache, 2, causal=False) == ["### ###", "#.. #.."]
    cache.append(*numbered(np.array([3, 1]), 1))
    assert dense(cache, 1, causal=False) == ["####", "##.."]
    even = hw.KVCache(2, 2, 8, 3, 1)
    even.append(*numbered(np.zeros(2, int), 3), padding=[1, 0])
    assert dense(even, 2, causal=False) == [".## .##", "### ###"]


def test_the_mask_of_even_items_is_one_for_all():
    """So that the engine may stack them; one number for each item would keep them apart."""
    assert repr(filled(3, 3).mask(2)) == "causal()"
    assert repr(filled(3, 3).mask(2, causal=False)) == "window(None, None)"
    assert repr(filled(3, 3, window=2).mask(1)) == "window(2, 0)"


def test_masks_combine():
    cache = filled(3, 3)
    assert (cache.mask(1) & masks.keys([True, False, True])).dense((2, 1, 1, 3)).tolist() == [
        [[[True, False, True]]]
    ] * 2


# ---------------------------------------------------------------------------------------------- windows
@pytest.mark.parametrize("capacity", [3, 4, 5, 7, 20])
def test_a_window_shows_the_keys_before_and_forgets_no_sooner(capacity):
    cache = hw.KVCache(2, 2, capacity, 3, 1, np.float64, window=2)
    for i in range(12):
        cache.append(*numbered(np.full(2, i), 1))
        seen = cache.mask(1).dense((2, 1, 1, len(cache)))[:, 0, 0]
        for b in range(2):
            assert cache.v[b, 0, seen[b], 0].tolist() == list(range(100 * b + max(0, i - 2), 100 * b + i + 1))
        assert cache.lengths.tolist() == [i + 1] * 2
        assert cache.next_positions(1).tolist() == [[i + 1]] * 2
        assert len(cache) <= capacity


def test_a_window_over_uneven_items_padding_and_chunks():
    cache = hw.KVCache(3, 2, 6, 3, 1, np.float64, window=2)
    done = np.zeros(3, int)
    padding = np.array([0, 3, 1])
    cache.reset(padding=padding)
    for chunk in ([3, 1, 0], [2, 4, 1], [0, 4, 4], [1, 1, 1], [4, 0, 2], [2, 2, 2]):
        cache.append(*numbered(done, 4), lengths=chunk)
        seen = cache.mask(4).dense((3, 1, 4, len(cache)))[:, 0]
        for b in range(3):
            for row in range(chunk[b]):
                i = done[b] + row
                first = max(i - 2, padding[b])
                wanted = [100 * b + j for j in range(first, i + 1)]
                assert cache.v[b, 0, seen[b, row], 0].tolist() == wanted
        done += chunk
        assert cache.lengths.tolist() == np.maximum(done - padding, 0).tolist()


def test_a_window_without_causal_sees_what_comes_after():
    cache = filled(4, 4, window=1)
    assert dense(cache, 3, causal=False) == ["#### .### ..##"] * 2


def test_rows_that_are_views_of_the_cache_itself():
    """Slots move before the new rows are read."""
    cache = filled(3, 3, capacity=5, window=2)
    cache.append(*numbered(np.array([3, 3]), 2))
    cache.append(cache.k[:, :, 1:3], cache.v[:, :, 1:3])
    assert cache.v[0, 0, :, 0].tolist() == [3, 4, 1, 2]


# ------------------------------------------------------------------------------------------- going back
def test_truncate_forgets_rows_and_the_next_ones_take_their_places():
    cache = filled(4, 4)
    cache.truncate([3, 1])
    assert cache.lengths.tolist() == [3, 1]
    assert cache.k.shape == (2, 2, 3, 3)
    assert dense(cache, 1) == ["###", "#.."]
    cache.append(*numbered(np.array([50, 60]), 1))
    assert held(cache, 0) == [0, 1, 2, 50]
    assert held(cache, 1) == [100, 160]
    assert dense(cache, 1) == ["####", "##.."]
    assert dense(cache, 1, causal=False) == ["####", "##.."]
    cache.truncate(2)
    assert held(cache, 1) == [100, 160]
    cache.truncate(0)
    assert len(cache) == 0


def test_truncate_keeps_padding():
    cache = hw.KVCache(2, 2, 8, 3, 1, np.float64)
    cache.append(*numbered(np.zeros(2, int), 4), padding=[3, 1])
    cache.truncate([0, 1])
    assert cache.lengths.tolist() == [0, 1]
    assert cache.next_positions(2).tolist() == [[0, 1], [1, 2]]
    cache.append(*numbered(np.array([3, 2]), 1))
    assert dense(cache, 1) == ["...#", ".##."]


def test_truncate_within_padding_leaves_its_rows():
    cache = hw.KVCache(1, 2, 8, 3, 1, np.float64)
    cache.append(*numbered(np.zeros(1, int), 2), padding=[3])
    cache.truncate(0)
    assert len(cache) == 2
    assert cache.next_positions(2).tolist() == [[0, 0]]


def test_a_window_goes_back_as_far_as_its_keys():
    cache = hw.KVCache(1, 2, 6, 3, 1, np.float64, window=2)
    for i in range(7):  # 0 to 3 are dropped at the seventh
        cache.append(*numbered(np.array([i]), 1))
    assert cache.v[0, 0, :, 0].tolist() == [4, 5, 6]
    cache.truncate(6)
    assert cache.next_positions(1).tolist() == [[6]]
    assert cache.offset(0).tolist() == [2]
    with pytest.raises(ValueError, match="n_q: expected at most 0, got 1"):
        cache.mask(1)  # the row before does not find its own window any more
    cache.append(*numbered(np.array([56]), 1))
    assert cache.v[0, 0, :, 0].tolist() == [4, 5, 56]
    with pytest.raises(
        ValueError, match=r"lengths: expected 0 or at least \[6\], as the window dropped older keys, got \[5\]"
    ):
        cache.truncate(5)
    assert cache.lengths.tolist() == [7]


def test_reorder_copies_items_as_they_were():
    cache = filled(3, 1, 2)
    before = [held(cache, b) for b in range(3)]
    cache.reorder([2, 0, 0])
    assert [held(cache, b) for b in range(3)] == [before[2], before[0], before[0]]
    assert cache.lengths.tolist() == [2, 3, 3]
    cache.append(*numbered(np.array([2, 3, 13]), 1))
    assert [held(cache, b) for b in range(3)] == [[200, 201, 2], [0, 1, 2, 103], [0, 1, 2, 213]]


def test_reorder_takes_padding_windows_and_places_along():
    cache = hw.KVCache(2, 2, 4, 3, 1, np.float64, window=1)
    cache.append(*numbered(np.zeros(2, int), 3), padding=[0, 1], lengths=[3, 1])
    cache.reorder([1, 0])
    assert (cache.lengths.tolist(), cache.padding.tolist()) == ([0, 3], [1, 0])
    assert cache.offset(3).tolist() == [0, 0]
    cache.append(*numbered(np.array([1, 3]), 2))
    assert cache.lengths.tolist() == [2, 5]
    cache.reorder([1, 0])
    assert cache.next_positions(1).tolist() == [[5], [2]]


def test_reset_forgets_everything():
    cache = filled(4, 2)
    cache.reset()
    assert len(cache) == 0
    assert cache.lengths.tolist() == [0, 0]
    cache.append(*numbered(np.array([7, 7]), 1))
    assert held(cache, 0) == [7]
    assert dense(cache, 1) == ["#", "#"]


TWINS = [hw.KVCache.copy, copy.copy, copy.deepcopy, lambda cache: pickle.loads(pickle.dumps(cache))]


@pytest.mark.parametrize("twin_of", TWINS, ids=["copy", "copy.copy", "deepcopy", "pickle"])
def test_a_copy_is_one_of_its_own(twin_of):
    cache = filled(3, 1, window=4)
    twin = twin_of(cache)
    assert repr(twin) == repr(cache)
    assert twin.k.shape == cache.k.shape
    assert not np.shares_memory(twin._k, cache._k)
    for one, first in ((cache, 3), (twin, 53)):
        one.append(*numbered(np.array([first, first]), 1))
    assert held(cache, 1) == [100, 103]
    assert held(twin, 1) == [100, 153]
    twin.truncate(0)
    assert cache.lengths.tolist() == [4, 2]
    assert twin.nbytes == cache.nbytes


def test_a_pickle_holds_the_slots_that_are_held():
    cache = hw.KVCache(1, 1, 10_000, 64)
    cache.append(np.ones((1, 1, 3, 64)), np.ones((1, 1, 3, 64)))
    assert len(pickle.dumps(cache)) < 10_000


def test_the_print():
    text = "KVCache(batch=2, n_kv_heads=2, capacity=8, d_k=3, d_v=1, window=4, dtype=float64, lengths=[3, 1])"
    assert repr(filled(3, 1, window=4)) == text


# ---------------------------------------------------------------------------- whole and step by step, in a few lines
@pytest.mark.parametrize("attend", [hw.attention, lambda *args, **kw: hw.scaled_dot_product_attention(*args, **kw)[0]])
@pytest.mark.parametrize("window", [None, 3])
def test_steps_equal_the_whole(attend, window):
    """Rope, alibi, sinks, grouped heads, unequal lengths, a rollback; the property test draws all of that."""
    lengths, H, G = np.array([9, 6]), 4, 2
    q, k, v = (RNG.standard_normal((2, heads, 9, 4)) for heads in (H, G, G))
    sinks, slopes = RNG.standard_normal(H), hw.alibi_slopes(H)
    turned = [hw.rope(x, np.arange(9), style="half") for x in (q, k)]
    mask = masks.causal() if window is None else masks.window(window, 0)
    whole = attend(*turned, v, mask, bias=hw.alibi(slopes), sinks=sinks)
    cache, done = hw.KVCache(2, G, 16 if window is None else 6, 4, dtype=np.float64, window=window), np.zeros(2, int)
    for n in (2, 1, 3, 1, 2):
        cache.append(np.full((2, G, 2, 4), 9.0), np.full((2, G, 2, 4), 9.0))  # a guess that is taken back
        cache.truncate(done)
        rows = np.minimum(done[:, None] + np.arange(n), 8)
        positions = cache.next_positions(n)
        new_q, new_k, new_v = (np.take_along_axis(x, rows[:, None, :, None], axis=2) for x in (q, k, v))
        own = np.clip(lengths - done, 0, n)
        cache.append(hw.rope(new_k, positions, style="half"), new_v, lengths=own)
        bias = hw.alibi(slopes, offset=cache.offset(n))
        out = attend(hw.rope(new_q, positions, style="half"), cache.k, cache.v, cache.mask(n), bias=bias, sinks=sinks)
        for b in range(2):
            there = slice(done[b], done[b] + own[b])
            np.testing.assert_allclose(out[b, :, : own[b]], whole[b, :, there], rtol=0, atol=1e-13)
        done += own
    assert done.tolist() == lengths.tolist()


# -------------------------------------------------------------------------------------------- refusals
ROWS = np.ones((2, 2, 1, 3)), np.ones((2, 2, 1, 1))
MADE = {"batch": 2, "n_kv_heads": 2, "capacity": 8, "d_k": 3}
REFUSED = {
    "sizes": (ValueError, lambda c: hw.KVCache(**MADE | {"batch": 0}), "KVCache: batch: expected a number of items of"),
    "no slot": (
        ValueError,
        lambda c: hw.KVCache(**MADE, window=8),
        "KVCache: capacity: expected at least window + 1 = 9, got 8; slots hold the window and the rows",
    ),
    "a window below 0": (ValueError, lambda c: hw.KVCache(**MADE, window=-1), "KVCache: window: expected None (all"),
    "no integer": (TypeError, lambda c: hw.KVCache(**MADE | {"d_k": 3.0}), "KVCache: d_k: expected the width of a key"),
    "no float type": (
        TypeError,
        lambda c: hw.KVCache(**MADE, dtype=int),
        "KVCache: dtype: expected a float type: float16, bfloat16, float32 or float64, got type <class 'int'>",
    ),
    "no type": (TypeError, lambda c: hw.KVCache(**MADE, dtype="number"), "KVCache: dtype: expected a float type"),
    "too large": (
        ValueError,
        lambda c: hw.KVCache(2**20, 2**20, 2**20, 1),
        "KVCache: capacity: expected sizes whose product is at most 2**56, got (1048576, 1048576, 1048576, 1)",
    ),
    "another width": (
        ValueError,
        lambda c: c.append(ROWS[0], ROWS[0]),
        "KVCache.append: v: expected (B, G, n, d_v) = (2, 2, n, 1), got (2, 2, 1, 3)",
    ),
    "tokens before heads": (
        ValueError,
        lambda c: c.append(np.ones((2, 5, 2, 3)), np.ones((2, 2, 5, 1))),
        "got (2, 5, 2, 3); heads come before tokens: pass np.swapaxes(k, 1, 2)",
    ),
    "no items": (
        ValueError,
        lambda c: hw.KVCache(1, 2, 8, 3).append(np.ones((2, 1, 3)), np.ones((1, 2, 1, 3))),
        "got (2, 1, 3); give it an axis for the items: k[None]",
    ),
    "keys without values": (
        ValueError,
        lambda c: c.append(np.ones((2, 2, 2, 3)), ROWS[1]),
        "KVCache.append: v: expected n = 2 rows as in k (2, 2, 2, 3), got (2, 2, 1, 1); every key has one value",
    ),
    "no numbers": (TypeError, lambda c: c.append(None, ROWS[1]), "KVCache.append: k: expected an array, got None"),
    "lengths of rows": (
        ValueError,
        lambda c: c.append(*ROWS, lengths=[2, 1]),
        "KVCache.append: lengths: expected at most n = 1 rows, got [2, 1]",
    ),
    "one length": (
        ValueError,
        lambda c: c.append(*ROWS, lengths=1),
        "KVCache.append: lengths: expected one number for each item, shape (B,) = (2,), got a single number",
    ),
    "lengths that are no integers": (TypeError, lambda c: c.append(*ROWS, lengths=[1.0, 1]), "lengths: expected integ"),
    "late padding": (
        ValueError,
        lambda c: c.append(*ROWS, padding=[1, 0]),
        "KVCache.append: padding: expected None where the cache is not empty, got list [1, 0]; call reset first",
    ),
    "late padding of positions": (
        ValueError,
        lambda c: c.next_positions(1, padding=[1, 0]),
        "KVCache.next_positions: padding: expected None where the cache is not empty",
    ),
    "padding below 0": (ValueError, lambda c: c.reset(padding=[-1, 0]), "KVCache.reset: padding: expected integers of"),
    "full": (
        ValueError,
        lambda c: c.append(np.ones((2, 2, 6, 3)), np.ones((2, 2, 6, 1))),
        "KVCache.append: k: expected at most 5 more rows for item 0, got 6, with 3 of 8 slots held; make a cache",
    ),
    "one item full": (
        ValueError,
        lambda c: c.append(np.ones((2, 2, 8, 3)), np.ones((2, 2, 8, 1)), lengths=[5, 8]),
        "KVCache.append: k: expected at most 7 more rows for item 1, got 8, with 1 of 8 slots held",
    ),
    "a chunk too long for its window": (
        ValueError,
        lambda c: hw.KVCache(**MADE, window=6).append(np.ones((2, 2, 3, 3)), np.ones((2, 2, 3, 3))),
        "KVCache.append: k: expected at most capacity - window = 2 rows at a time, got n = 3; append shorter chunks",
    ),
    "a negative number of rows": (ValueError, lambda c: c.next_positions(-1), "KVCache.next_positions: n: expected a"),
    "queries that were never appended": (
        ValueError,
        lambda c: c.mask(4),
        "KVCache.mask: n_q: expected at most 3, got 4; queries are the rows that were appended last",
    ),
    "no number of queries": (TypeError, lambda c: c.mask(None), "KVCache.mask: n_q: expected a number of queries"),
    "no flag": (TypeError, lambda c: c.mask(1, causal=1), "KVCache.mask: causal: expected True or False, got int 1"),
    "queries to come": (ValueError, lambda c: c.offset(4), "KVCache.offset: n_q: expected at most 3, got 4"),
    "longer than it is": (
        ValueError,
        lambda c: c.truncate(2),
        "KVCache.truncate: lengths: expected at most the items' own, [3, 1], got 2",
    ),
    "lengths below 0": (
        ValueError,
        lambda c: c.truncate(-1),
        "KVCache.truncate: lengths: expected integers of at least",
    ),
    "no such item": (
        ValueError,
        lambda c: c.reorder([0, 2]),
        "KVCache.reorder: index: expected at most B - 1 = 1, got",
    ),
    "fewer beams": (
        ValueError,
        lambda c: c.reorder([0]),
        "KVCache.reorder: index: expected one number for each item, shape (B,) = (2,), got (1,)",
    ),
    "two faults at once": (
        ValueError,
        lambda c: c.append(*ROWS, lengths=[1, 9], padding=[0, 0]),
        "KVCache.append: 2 arguments do not fit\n  lengths: expected at most n = 1 rows, got [1, 9]\n  padding:",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_fit_is_refused_and_changes_nothing(name):
    error, call, text = REFUSED[name]
    cache = filled(3, 1)
    before = pickle.dumps(cache)
    with pytest.raises(error, match=re.escape(text)):
        call(cache)
    assert pickle.dumps(cache) == before


def test_rows_before_an_uneven_chunk_are_no_queries():
    cache = filled(3, 3)
    cache.append(*numbered(np.array([3, 3]), 2), lengths=[2, 1])
    assert dense(cache, 2) == ["####. #####", "####. ####."]
    cache.append(*numbered(np.array([5, 4]), 1))
    with pytest.raises(ValueError, match="n_q: expected at most 1, got 3"):
        cache.mask(3)
