"""The same bits for any number of threads and in any company; inputs that are read and nothing else; fresh results."""

import gc
import time
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from bits import bits
from definition import assert_right, forced, normal, qkv
from hypothesis import given, settings
from hypothesis import strategies as st
from ml_dtypes import bfloat16
from strategies import Case, problems

import headwise as hw
from examples import fewer
from headwise import masks
from headwise.core.paths import RAW, REFERENCE, RUNNING, Path

THREADS = (2, 3, 8)
DTYPES = {"float32": np.float32, "float64": np.float64, "float16": np.float16, "bfloat16": bfloat16}
PATHS = {path.name: path for path in (RAW, REFERENCE, RUNNING)}
SIZES = {"raw": 1.0, "reference": 60.0}


# ------------------------------------------------------------------------------- what differs by item, for some of them
class Batch:
    """Five items of four heads, and what an option is for some of these items alone."""

    def __init__(self, seed: int, n_q: int, n_k: int, d: int, groups: int, size: float, dtype: Any) -> None:
        rng = np.random.default_rng(seed)
        self.n_q, self.n_k, self.rng = n_q, n_k, rng
        self.q = (size * rng.standard_normal((5, 4, n_q, d))).astype(dtype)
        self.k, self.v = rng.standard_normal((2, 5, groups, n_k, d)).astype(dtype)
        self.lengths = rng.integers(0, n_k + 1, 5)
        self.offsets = rng.integers(-n_q, n_k + 1, 5)
        self.ids = rng.integers(0, 3, (5, n_k))
        self.whole = rng.random((5, 1, n_q, n_k)) < 0.5
        self.heads = rng.random((4, n_q, n_k)) < 0.5
        self.few = rng.random((5, 4, n_q, n_k)) < 2 / n_k
        self.bias = rng.standard_normal((5, 1, n_q, n_k))

    def call(self, items: slice, option: str, **more: Any) -> Any:
        options = OPTIONS[option](self, items)
        return hw.attention(self.q[items], self.k[items], self.v[items], **options, return_lse=True, **more)


SLOPES, SINKS = [1.0, 0.25, 0.0, 3.0], [0.5, -np.inf, 7.0, -1.0]
OPTIONS: dict[str, Callable[[Batch, slice], dict[str, Any]]] = {
    "plain": lambda b, items: {},
    "causal": lambda b, items: {"causal": True, "softcap": 30.0},
    "lengths": lambda b, items: {"mask": masks.lengths(b.lengths[items])},
    "offsets": lambda b, items: {"mask": masks.window(40, 7, offset=b.offsets[items])},
    "segments": lambda b, items: {"mask": masks.segments(b.ids[items][:, : b.n_q], b.ids[items])},
    "arrays of items": lambda b, items: {"mask": b.whole[items], "causal": True},
    "arrays of heads": lambda b, items: {"mask": b.heads},
    "arrays of both": lambda b, items: {"mask": b.few[items], "sinks": SINKS},
    "alibi": lambda b, items: {"bias": hw.alibi(SLOPES, offset=b.offsets[items]), "causal": True},
    "one alibi": lambda b, items: {"bias": hw.alibi(SLOPES), "sinks": SINKS},
    "sinks": lambda b, items: {"sinks": SINKS, "mask": masks.window(100, 0)},
    "bias": lambda b, items: {"bias": b.bias[items], "mask": masks.lengths(b.lengths[items])},
    "one bias": lambda b, items: {"bias": b.bias[0], "causal": True},
}


def assert_same_bits(batch: Batch, option: str, counts: tuple[int, ...] = THREADS) -> None:
    """For any number of threads, and for an item alone."""
    together = batch.call(slice(None), option, threads=1)
    for threads in counts:
        assert bits(batch.call(slice(None), option, threads=threads)) == bits(together), f"{threads} threads"
    for item in range(5):
        some = slice(item, item + 1)
        alone = batch.call(some, option, threads=1 + item % 2)
        assert bits(alone) == bits(result[some] for result in together), f"item {item} alone"
    pair = batch.call(slice(1, 3), option, threads=2)
    assert bits(pair) == bits(result[1:3] for result in together)


@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize("option", OPTIONS)
def test_the_same_bits_for_any_threads_and_company(option: str, size: float) -> None:
    """Several tasks, stacks and tiles, with ragged ends."""
    assert_same_bits(Batch(1, 130, 203, 8, 2, size, np.float32), option)


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("path", PATHS.values(), ids=PATHS)
def test_the_same_bits_on_every_path_in_every_type(path: Path, dtype: Any) -> None:
    batch = Batch(2, 75, 140, 8, 1, 1.0, dtype)
    with forced(path):
        for option in ("plain", "lengths", "one alibi"):
            assert_same_bits(batch, option, (2,))


@pytest.mark.parametrize("option", ["causal", "arrays of heads", "offsets"])
def test_the_same_bits_of_long_sequences(option: str) -> None:
    """Several spans to a head, each of several tiles."""
    assert_same_bits(Batch(3, 700, 650, 4, 4, 1.0, np.float32), option, (2, 3))


@settings(max_examples=fewer(40))
@given(
    st.integers(1, 700) | st.sampled_from([1, 63, 64, 65, 127, 128, 129, 512, 513]),
    st.integers(1, 300) | st.sampled_from([1, 64, 128, 129]),
    st.sampled_from([1, 2, 8, 17, 100]),
    st.sampled_from([1, 2, 4]),
    st.sampled_from(list(OPTIONS)),
    st.sampled_from(list(PATHS)),
    st.sampled_from(list(DTYPES)),
)
def test_the_same_bits_of_any_sizes(
    n_q: int, n_k: int, d: int, groups: int, option: str, path: str, dtype: str
) -> None:
    option = "plain" if option == "segments" and n_q > n_k else option
    batch = Batch(4, n_q, n_k, d, groups, 1.0, DTYPES[dtype])
    with forced(PATHS[path]):
        together = batch.call(slice(None), option, threads=1)
        assert bits(batch.call(slice(None), option, threads=3)) == bits(together)
        for some in (slice(2, 3), slice(3, 5)):
            assert bits(batch.call(some, option, threads=1)) == bits(result[some] for result in together)


@pytest.mark.parametrize("shape", [(2, 3, 2, 100, 8), (6, 1, 2, 100, 8), (1, 1, 12, 100, 8), (12, 100, 8)], ids=str)
def test_however_the_leading_axes_are_written(shape: tuple[int, ...]) -> None:
    q, k, v = qkv(5, 12, 100, 8)
    wanted = hw.attention(q[None], k[None], v[None], causal=True, return_lse=True)
    got = hw.attention(*(x.reshape(shape) for x in (q, k, v)), causal=True, return_lse=True)
    assert bits(got) == bits(wanted)


@pytest.mark.parametrize("threads", THREADS)
def test_dropout_is_the_same_for_any_threads(threads: int) -> None:
    q, k, v = qkv(6, 3, 2, 300, 8)
    one, more = (
        hw.attention(q, k, v, masks.lengths([300, 7, 150]), dropout=0.4, rng=3, threads=n, return_lse=True)
        for n in (1, threads)
    )
    assert bits(more) == bits(one)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e30, 1e-30, 1e4])
@pytest.mark.parametrize("name", "qkv")
@pytest.mark.parametrize("option", ["plain", "lengths", "one alibi", "arrays of heads"])
def test_a_bad_item_changes_no_bit_of_the_others(option: str, name: str, bad: float) -> None:
    batch = Batch(7, 90, 70, 8, 2, 1.0, np.float32)
    good = batch.call(slice(None), option, threads=2)
    getattr(batch, name)[2, 1, 3:7] *= np.float32(bad)
    spoilt = batch.call(slice(None), option, threads=2)
    for before, after in zip(good, spoilt, strict=True):
        assert bits([after[:2], after[3:]]) == bits([before[:2], before[3:]])
    assert bits(spoilt) != bits(good)
    others = [head for head in range(4) if (head if name == "q" else head // 2) != 1]
    for before, after in zip(good, spoilt, strict=True):  # nor of other heads
        assert bits(after[2, others]) == bits(before[2, others])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("n", [4, 40])
@pytest.mark.parametrize("hidden", [np.nan, np.inf])
def test_a_value_that_is_not_finite_changes_no_bit_of_items_with_far_scores(hidden: float, n: int, dtype: Any) -> None:
    """A key far below the others has a value so large that it shows whether its weight is 0 or next to nothing."""
    q, k, v = (np.ones((16, n, 1), dtype) for _ in range(3))
    k[:, -1], v[:, -1] = (-200, 1e24) if dtype is np.float32 else (-2000, 1e255)
    good = hw.attention(q, k, v, return_lse=True)
    v[1, 0] = hidden
    spoilt = hw.attention(q, k, v, return_lse=True)
    for before, after in zip(good, spoilt, strict=True):
        assert bits([before[:1], before[2:]]) == bits([after[:1], after[2:]])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_small_call_gives_the_bits_of_a_large_one(dtype: Any) -> None:
    """Items alone, so many that they are no small call any more, and with the lse: ordinary, far apart, not finite."""
    q, k, v = qkv(9, 2000, 5, 4, dtype=dtype)
    q[100:200] *= 1000
    v[100:200, 2] *= dtype(1e24)
    v[290:299] = 0.9 * np.finfo(dtype).max
    v[300:310, 1, 2], v[320:330, 3], k[340, 1, 2], q[350:, 1] = np.nan, np.inf, np.nan, -np.inf
    together = hw.attention(q, k, v)
    assert together.size > 2**15
    assert bits(together) == bits(hw.attention(q, k, v, return_lse=True)[0])
    for item in [*range(95, 205, 5), *range(288, 360)]:
        assert bits(hw.attention(q[item], k[item], v[item])) == bits(together[item]), item
        one = slice(item, item + 1)
        assert bits(hw.attention(q[one], k[one], v[one], return_lse=True)[0]) == bits(together[item]), item


# ------------------------------------------------------------------------------------------------------ layouts
LEADS: dict[str, Callable[[Any], Any]] = {
    "read-only": lambda x: read_only(x),
    "heads first": lambda x: np.ascontiguousarray(x.swapaxes(0, 1)).swapaxes(0, 1),
    "reversed": lambda x: np.ascontiguousarray(x[::-1, ::-1])[::-1, ::-1],
    "every second": lambda x: np.repeat(x, 2, axis=0)[::2],
}
WITHIN: dict[str, Callable[[Any], Any]] = {
    "Fortran": np.asfortranarray,
    "strided": lambda x: np.repeat(np.repeat(x, 2, axis=-1), 3, axis=-2)[..., ::3, ::2],
    "big-endian": lambda x: x.astype(x.dtype.newbyteorder(">")),
    "tokens first": lambda x: np.ascontiguousarray(x.swapaxes(1, 2)).swapaxes(1, 2),
}


def read_only(x: Any) -> Any:
    copy = x.copy()
    copy.flags.writeable = False
    return copy


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("lead", LEADS.values(), ids=LEADS)
def test_how_leading_axes_lie_changes_no_bit(lead: Any, dtype: Any) -> None:
    q, k, v = qkv(8, 3, 4, 150, 8, dtype=dtype)
    for options in ({}, {"mask": masks.lengths([9, 150, 70])}, {"bias": normal(9, 3, 1, 150, 150)}):
        wanted = hw.attention(q, k, v, **options, return_lse=True)
        assert bits(hw.attention(lead(q), lead(k), lead(v), **options, return_lse=True)) == bits(wanted)


def test_one_item_or_head_for_all_gives_the_bits_of_its_copies() -> None:
    q, k, v = qkv(8, 3, 4, 150, 8)
    for stretched in (k[:1], k[:, :1], k[:1, :1], k[0, 0]):
        copies = np.array(np.broadcast_to(stretched, k.shape))
        for mask in (None, masks.lengths([9, 150, 70])):
            short = hw.attention(q, stretched, v, mask, return_lse=True)
            assert bits(short) == bits(hw.attention(q, copies, v, mask, return_lse=True))


@pytest.mark.parametrize("path", PATHS.values(), ids=PATHS)
@pytest.mark.parametrize("layout", WITHIN.values(), ids=WITHIN)
def test_how_tokens_and_features_lie_changes_rounding_at_most(layout: Any, path: Path) -> None:
    q, k, v = qkv(10, 2, 3, 150, 8, dtype=np.float64)
    with forced(path):
        got = hw.attention(layout(q), layout(k), layout(v), causal=True, return_lse=True)
    assert_right(got, q, k, v, causal=True)


# ------------------------------------------------------------------------------------- nothing written, nothing kept
ARRAYS = {
    "q": normal(11, 2, 4, 150, 8),
    "k": normal(12, 2, 2, 150, 8),
    "v": normal(13, 2, 2, 150, 8),
    "mask": normal(14, 2, 4, 150, 150) > 0,
    "bias": normal(15, 4, 150, 150),
    "sinks": np.array([1.0, -np.inf, 3.0, 0.0], np.float32),
}


@pytest.mark.parametrize("writable", [True, False])
@pytest.mark.parametrize("path", PATHS.values(), ids=PATHS)
def test_inputs_are_read_and_nothing_else(path: Path, writable: bool) -> None:
    given = {name: array.copy() for name, array in ARRAYS.items()}
    for array in given.values():
        array.flags.writeable = writable
    with forced(path):
        hw.attention(**given, softcap=5.0, dropout=0.5, rng=1, causal=True, threads=2)
        hw.attention(given["q"], given["k"], given["v"], threads=2)
    for name, array in given.items():
        assert bits(array) == bits(ARRAYS[name]), name
        assert array.flags.writeable == writable


@settings(max_examples=fewer(150))
@given(problems(layouts=("writable", "writable", "writable")))
def test_no_input_of_any_kind_is_written_to(case: Case) -> None:
    inputs = [*case.args, case.options.get("bias"), case.options.get("sinks")]
    arrays = [given for given in inputs if isinstance(given, np.ndarray)]
    for array in arrays:
        array.flags.writeable = True
    before = bits(arrays)
    hw.attention(*case.args, **case.options)
    assert bits(arrays) == before


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("shape", [(2, 3, 150, 8), (150, 8), (3, 0, 8), (0, 3, 8)], ids=str)
def test_results_are_arrays_of_their_own(shape: tuple[int, ...], dtype: Any) -> None:
    q, k, v = qkv(16, *shape, dtype=dtype)
    results = hw.attention(q, k, v, return_lse=True)
    for result in results:
        assert result.base is None
        assert result.flags.owndata
        assert result.flags.writeable
        assert result.flags.c_contiguous
        assert not any(np.shares_memory(result, x) for x in (q, k, v))
    before = bits(results)
    for result in hw.attention(v, k, q, return_lse=True):
        result.fill(7)
    assert bits(results) == before


def test_a_single_key_does_not_lend_its_value() -> None:
    q, k, v = qkv(17, 1, 1, 4, dtype=np.float64)
    out = hw.attention(q, k, v)
    assert not np.shares_memory(out, v)
    np.testing.assert_allclose(out, v, rtol=1e-14)


@pytest.mark.parametrize("threads", [1, 3])
def test_nothing_is_kept_after_a_call(threads: int) -> None:
    """No worker, cache or plan holds on to inputs, masks or results."""
    q, k, v = qkv(18, 4, 300, 8)
    mask, bias = normal(19, 4, 300, 300) > 0, normal(20, 4, 300, 300)
    out = hw.attention(q, k, v, mask, bias=bias, threads=threads)
    kept = [weakref.ref(array) for array in (q, k, v, mask, bias, out)]
    del q, k, v, mask, bias, out
    end = time.monotonic() + 60
    while any(each() is not None for each in kept) and time.monotonic() < end:
        gc.collect()
        time.sleep(0.01)  # a worker lets go when it next runs, which may be after the call
    assert all(each() is None for each in kept)


@settings(max_examples=fewer(200))
@given(problems())
def test_error_state_and_warnings_of_the_caller_change_nothing(case: Case) -> None:
    usual = hw.attention(*case.args, **case.options, return_lse=True)
    with np.errstate(all="raise"), warnings.catch_warnings():
        warnings.simplefilter("error")
        strict = hw.attention(*case.args, **case.options, return_lse=True)
        hw.attention_plan(*case.args, **{name: x for name, x in case.options.items() if name != "rng"})
        assert set(np.geterr().values()) == {"raise"}
    assert bits(strict) == bits(usual)


@pytest.mark.parametrize("size", [1e-30, 1.0, 1e4, 1e19, 1e37])
@pytest.mark.parametrize("name", ["q", "v", "qkv"])
def test_numbers_out_of_range_raise_and_warn_nothing(name: str, size: float) -> None:
    arrays = dict(zip("qkv", qkv(21, 2, 200, 8), strict=True))
    for each in name:
        with np.errstate(over="ignore"):
            arrays[each] *= np.float32(size)
    calls: list[dict[str, Any]] = [
        {},
        {"causal": True, "bias": hw.alibi([1e37, 1.0])},
        {"sinks": [1e38, -1e38], "softcap": 1e-30},
        {"bias": np.full((1, 200, 200), 1e300), "scale": 1e200},
    ]
    with np.errstate(all="raise"), warnings.catch_warnings():
        warnings.simplefilter("error")
        for options in calls:
            hw.attention(**arrays, **options, threads=2, return_lse=True)
            hw.attention_plan(**arrays, **options)
