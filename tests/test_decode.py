"""A few queries against many keys: every option against the definition, chunks, bits, what is not finite, the plan."""

import numpy as np
import pytest

import headwise as hw
from headwise import masks
from headwise.core import grid

N_K = 3000  # three chunks
EPS = {np.float16: 2.0**-10, np.float32: 2.0**-23, np.float64: 2.0**-52}


def qkv(dtype=np.float32, lead=(2, 8), groups=2, n_q=1, n_k=N_K, d=32, d_v=16, seed=0):
    rng = np.random.default_rng(seed)
    shapes = (*lead, n_q, d), (*lead[:-1], groups, n_k, d), (*lead[:-1], groups, n_k, d_v)
    return [rng.standard_normal(shape).astype(dtype) for shape in shapes]


def exact(q, k, v, **options):
    """The definition in float64."""
    steps = hw.attention_steps(*(x.astype(np.float64) for x in (q, k, v)), **options)
    return steps.out, steps.lse


def assert_close(q, k, v, most=64.0, **options):
    out, lse = hw.attention(q, k, v, return_lse=True, **options)
    wanted, lse_wanted = exact(q, k, v, **options)
    assert out.dtype == q.dtype
    computing = np.float64 if q.dtype == np.float64 else np.float32
    cost = most * (EPS[computing] + (EPS[np.float16] / 32 if q.dtype == np.float16 else 0))
    np.testing.assert_allclose(out.astype(np.float64), wanted, rtol=0, atol=cost)
    np.testing.assert_allclose(lse, lse_wanted, rtol=0, atol=most * EPS[computing] * 4)


OPTIONS = {
    "plain": {},
    "lengths": {"mask": masks.lengths([100, N_K - 1])},
    "nothing to see": {"mask": masks.lengths([0, 7])},
    "window": {"mask": masks.window(256, 0)},
    "array": {"mask": np.random.default_rng(1).random((2, 1, 1, N_K)) < 0.5},
    "array of heads": {"mask": np.random.default_rng(1).random((8, 1, N_K)) < 0.5},
    "alibi": {"bias": hw.alibi(hw.alibi_slopes(8))},
    "alibi of two ways": {"bias": hw.alibi(hw.alibi_slopes(8) / 8)},  # raw for one key head, by maxima for the other
    "alibi of items": {"bias": hw.alibi(hw.alibi_slopes(8), offset=[700, 20]), "mask": masks.causal([700, 20])},
    "sinks": {"sinks": np.linspace(-3, 9, 8)},
    "softcap": {"softcap": 3.0},
    "bias": {"bias": np.random.default_rng(2).standard_normal((2, 8, 1, N_K))},
    "bias that hides": {"bias": np.where(np.random.default_rng(2).random((8, 1, N_K)) < 0.5, -np.inf, 1.0)},
    "dropout": {"dropout": 0.3, "rng": 3},
    "scale": {"scale": -0.7},
}


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("name", OPTIONS)
def test_every_option_is_as_in_the_definition(name, dtype):
    q, k, v = qkv(dtype)
    assert hw.attention_plan(q, k, v, **OPTIONS[name]).grid.few, "not cut along the keys"
    assert_close(q, k, v, **OPTIONS[name])


@pytest.mark.parametrize("n_q", [1, 3, 8])
@pytest.mark.parametrize("groups", [1, 4, 8])
def test_a_few_queries_are_lower_right(n_q, groups):
    q, k, v = qkv(np.float64, groups=groups, n_q=n_q)
    assert_close(q, k, v, causal=True)
    assert_close(q[0, 0], k[0, 0], v[0, 0], causal=True)


def test_large_scores_and_a_scale_far_away():
    q, k, v = qkv(np.float64)
    assert_close(100 * q, k, v, most=2**12)
    assert_close(q, k, v, most=2**12, scale=40.0)
    q, k, v = qkv(np.float32)
    out = hw.attention(q, k, v, scale=1e20)
    best = np.argmax(q.astype(np.float64) @ np.repeat(k, 4, 1).swapaxes(-1, -2), axis=-1)[..., None]
    np.testing.assert_allclose(out, np.take_along_axis(np.repeat(v, 4, 1), best, 2), rtol=1e-6)


@pytest.mark.parametrize("size", [-300.0, -170.0, -60.0, 60.0, 170.0])
@pytest.mark.parametrize("groups", [2, 4])
def test_scores_that_all_lie_far_from_0(size, groups):
    """What nothing is taken off of under- or overflows: one head's, beside others whose scores are small."""
    q, k, v = qkv(groups=groups)
    k /= 100
    k[0, 1, :, 0], q[0, 8 // groups : 16 // groups, :, 0] = np.sqrt(32), size
    assert_close(q, k, v, most=2**12)
    assert_close(q, k, v, most=2**12, sinks=np.full(8, size))
    alone = hw.attention(q[1:], k[1:], v[1:])
    np.testing.assert_array_equal(hw.attention(q, k, v)[1:], alone)


@pytest.mark.parametrize("size", [1e-38, 1e-30, 1e-20, 1e20, 1e36])
def test_values_of_any_size(size):
    q, k, v = qkv(np.float32)
    wanted = exact(q, k, v)[0] * size
    out = hw.attention(4 * q, k, np.float32(size) * v) / np.float32(size)
    np.testing.assert_allclose(out, exact(4 * q, k, v)[0], rtol=0, atol=1e-5)
    np.testing.assert_allclose(hw.attention(q, k, np.float32(size) * v), wanted, rtol=0, atol=1e-5 * size)


@pytest.mark.parametrize(("r", "n_q", "d_v"), [(1, 1, 1), (1, 2, 1), (4, 1, 1), (1, 1, 3)])
def test_the_order_of_sums_is_the_same_in_company(r, n_q, d_v):
    """A reduction adds up in another order for other shapes."""
    q, k, v = qkv(lead=(6, 3 * r), groups=3, n_q=n_q, n_k=20_000, d=8, d_v=d_v)
    whole = hw.attention(q, k, v, threads=1)
    for item in range(6):
        here = slice(item, item + 1)
        np.testing.assert_array_equal(hw.attention(q[here], k[here], v[here], threads=3), whole[here])
        head = hw.attention(q[here, -r:], k[here, -1:], v[here, -1:])
        np.testing.assert_array_equal(head, whole[here, -r:])


@pytest.mark.parametrize("n_k", [32, 33, 48, 255, 256, 257, 511, 513])
@pytest.mark.parametrize("name", OPTIONS)
def test_a_few_keys_too(name, n_k):
    q, k, v = qkv(n_k=N_K)
    options = {
        key: value[..., :n_k] if isinstance(value, np.ndarray) and value.shape[-1] == N_K else value
        for key, value in OPTIONS[name].items()
    }
    if name in ("lengths", "alibi of items"):
        options = {"mask": masks.lengths([n_k // 2, n_k])}
    k, v = k[:, :, :n_k], v[:, :, :n_k]
    assert hw.attention_plan(q, k, v, **options).grid.few
    assert_close(q, k, v, **options)


@pytest.mark.parametrize(
    ("n_q", "groups", "n_heads", "n_k"), [(2, 1, 1, 777), (4, 2, 8, 1000), (1, 1, 1, 4096), (16, 1, 2, 700)]
)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_sink_far_above_all_scores(n_q, groups, n_heads, n_k, dtype):
    """The weights that it leaves are small, and right to their last digits as long as the type holds them."""
    size, far = (50, (60, 85, 100, 110)) if dtype == np.float32 else (500, (600, 750, 800, 1000))
    q = np.ones((1, n_heads, n_q, 1), dtype)
    k, v = np.full((1, groups, n_k, 1), size, dtype), np.ones((1, groups, n_k, 1), dtype)
    for sink in far:
        options = {"scale": 1.0, "sinks": np.linspace(sink, sink - 5, n_heads)}
        wanted, _ = exact(q, k, v, **options)
        np.testing.assert_allclose(
            hw.attention(q, k, v, **options), wanted, rtol=1e-4 if dtype == np.float32 else 1e-12
        )


@pytest.mark.parametrize("shape", [(1, 512), (40, 512), (300, 40), (1, 8)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_large_values_of_keys_without_weight(shape, dtype):
    """What others have left in memory, behind a bias of -1e9 or far away: it must not shine through."""
    n_q, n_k = shape
    rng = np.random.default_rng(5)
    q, k, v = (rng.standard_normal((n, 8)).astype(dtype) for n in (n_q, n_k, n_k))
    bias, huge = np.zeros((1, n_k)), np.finfo(dtype).max / 8
    bias[:, 1], v[1] = -1e9, huge
    for more in ({}, {"causal": True}):
        wanted = exact(q, k, v, bias=bias, **more)[0]
        np.testing.assert_allclose(hw.attention(q, k, v, bias=bias, **more), wanted, rtol=0, atol=1e-5)
    k[1], q[:, 0], k[:, 0] = 0, 8, 100
    k[1, 0] = -1000
    np.testing.assert_allclose(hw.attention(q, k, v), exact(q, k, v)[0], rtol=0, atol=1e-4)


@pytest.mark.parametrize(("d_k", "d_v"), [(0, 3), (2, 0), (0, 0)])
def test_no_width_at_all(d_k, d_v):
    q, k, v = np.ones((1, 2, 1, d_k)), np.ones((1, 1, 600, d_k)), np.arange(600.0 * d_v).reshape(1, 1, 600, d_v)
    wanted, lse = exact(q, k, v)
    out, got = hw.attention(q, k, v, return_lse=True)
    np.testing.assert_allclose(out, wanted)
    np.testing.assert_allclose(got, lse)


# ------------------------------------------------------------------------------------------- what is not finite
def test_what_is_masked_may_be_anything():
    q, k, v = qkv()
    mask = np.ones(N_K, bool)
    mask[[5, 1100, 2999]] = False
    wild_k, wild_v = k.copy(), v.copy()
    wild_k[..., ~mask, :], wild_v[..., ~mask, :] = np.nan, np.inf
    np.testing.assert_allclose(hw.attention(q, wild_k, wild_v, mask), hw.attention(q, k, v, mask), rtol=0, atol=1e-6)


def test_what_is_seen_shows_in_its_own_rows():
    q, k, v = qkv()
    v[1, 0, 1100] = np.nan
    out = hw.attention(q, k, v)
    assert np.isnan(out[1, :4]).all()
    assert np.isfinite(out[0]).all()
    assert np.isfinite(out[1, 4:]).all()
    np.testing.assert_array_equal(out[0], hw.attention(q[:1], k[:1], v[:1])[0])


def test_sums_of_values_do_not_overflow():
    q, k, v = qkv()
    v[0] = 3e38
    out = hw.attention(q, k, v)
    np.testing.assert_allclose(out[0], np.float32(3e38), rtol=1e-5)
    assert np.isfinite(out).all()


def test_a_score_of_plus_infinity_gives_nan_and_a_query_that_sees_minus_infinity_gives_0():
    q, k, v = qkv()
    bias = np.zeros((8, 1, N_K))
    bias[0, 0, 1500], bias[1] = np.inf, -np.inf
    out, lse = hw.attention(q, k, v, bias=bias, return_lse=True)
    assert np.isnan(out[:, 0]).all()
    assert (lse[:, 0] == np.inf).all()
    assert (out[:, 1] == 0).all()
    assert (lse[:, 1] == -np.inf).all()


# ------------------------------------------------------------------------------------------- bits and the plan
@pytest.mark.parametrize("name", ["plain", "lengths", "alibi", "alibi of two ways", "sinks", "bias"])
def test_the_bits_depend_neither_on_threads_nor_on_company(name):
    q, k, v = qkv()
    options = OPTIONS[name]
    outs = [hw.attention(q, k, v, threads=threads, **options) for threads in (1, 2, 5)]
    assert all(np.array_equal(outs[0], out) for out in outs)
    if name in ("plain", "alibi", "alibi of two ways", "sinks"):
        np.testing.assert_array_equal(outs[0][1:], hw.attention(q[1:], k[1:], v[1:], **options))


def test_a_view_of_a_longer_cache_gives_the_same_bits():
    q, k, v = qkv()
    long_k, long_v = (np.full((2, 2, 4096, x.shape[-1]), np.nan, x.dtype) for x in (k, v))
    long_k[:, :, :N_K], long_v[:, :, :N_K] = k, v
    np.testing.assert_array_equal(hw.attention(q, long_k[:, :, :N_K], long_v[:, :, :N_K]), hw.attention(q, k, v))
    turned = [np.asfortranarray(x) for x in (q, k, v)]
    np.testing.assert_array_equal(hw.attention(*turned), hw.attention(q, k, v))


def test_grouped_heads_are_one_task_with_a_run_of_chunks():
    shapes = (1, 32, 1, 128), (1, 8, 32768, 128), (1, 8, 32768, 128)
    plan = hw.attention_plan(*shapes, causal=True, threads=2)
    assert (plan.tile, plan.heads_per_task, plan.tasks) == ((1, 256), 4 * 4, 2 * 8)  # 4 key heads, 4096 keys
    assert plan.paths == {"raw": 32}
    window = hw.attention_plan(*shapes, masks.window(100, 0))
    assert (window.tasks, window.skipped) == (2, 32 * 127)
    steep = hw.attention_plan(*shapes, bias=hw.alibi([1.0] * 16 + [1e-6] * 16))
    assert (steep.heads_per_task, steep.paths) == (4, {"running": 16, "raw": 16})
    short = hw.attention_plan((8, 32, 1, 128), (8, 8, 512, 128), (8, 8, 512, 128), threads=2)
    assert (short.heads_per_task, short.tasks) == (16 * 4, 4), "items go together, two tasks for each worker"


def test_chunks_of_another_width_or_that_are_seen_in_part_are_runs_of_their_own():
    few = hw.attention_plan((1, 1, 1, 8), (1, 1, 9000, 8), (1, 1, 9000, 8), masks.window(8300, 0)).grid
    found = [(run.strip.cols.start, run.strip.cols.stop, run.width, run.strip.masked) for run in few.runs((0, 0))]
    assert found == [(512, 768, 256, True), (768, 4864, 256, False), (4864, 8960, 256, False), (8960, 9000, 40, False)]


@pytest.mark.parametrize(("n_q", "n_heads", "few"), [(1, 32, True), (8, 4, True), (9, 4, False), (1, 33, False)])
def test_few_is_few_rows_for_each_key_head(n_q, n_heads, few):
    plan = hw.attention_plan((1, n_heads, n_q, 8), (1, 1, 4096, 8), (1, 1, 4096, 8))
    assert plan.grid.few == few
    for n_k, enough in ((8 * n_heads * n_q, few), (8 * n_heads * n_q - 1, False)):
        assert hw.attention_plan((1, n_heads, n_q, 8), (1, 1, n_k, 8), (1, 1, n_k, 8)).grid.few == enough


def test_chunks_depend_on_the_number_of_keys_alone():
    for n_k in (512, 1024, 1025, 4096, 100_000):
        sizes = {
            hw.attention_plan((b, h, 1, d), (b, 1, n_k, d), (b, 1, n_k, d), threads=t).tile
            for b in (1, 3)
            for h in (1, 8)
            for d in (8, 128)
            for t in (1, 4)
        }
        ((_, cols),) = sizes
        assert cols <= grid._CHUNK + 16


def test_progress_counts_scores_to_the_end():
    q, k, v = qkv()
    told = []
    hw.attention(q, k, v, threads=1, progress=lambda done, total: told.append((done, total)))
    assert told[-1] == (2 * 8 * N_K, 2 * 8 * N_K)
