"""One test for each row of the tables in DESIGN.md, where systems disagree about what attention means."""

import copy
import pickle
import tracemalloc

import ml_dtypes
import numpy as np
import pytest
from layer_by_hand import ListCache

import headwise as hw
from headwise import masks, transforms

sdpa = hw.scaled_dot_product_attention
BF16 = np.dtype(ml_dtypes.bfloat16)
L2, L3 = np.log(2.0), np.log(3.0)


def column(*numbers):
    return np.array(numbers, float)[:, None]


def qkv(*lead, n_q=5, n_k=7, d_k=3, d_v=2, seed=0):
    rng = np.random.default_rng(seed)
    return tuple(rng.standard_normal((*lead, *size)) for size in ((n_q, d_k), (n_k, d_k), (n_k, d_v)))


def stock():
    """One query of 1 on scores 0, ln 2, ln 3: weights 1/6, 2/6, 3/6; values 6, 12, 18: 14."""
    return column(1), column(0, L2, L3), column(6, 12, 18)


# ------------------------------------------------------------------------------------------------- masks
def test_boolean_mask_true_may_attend():
    out, weights = sdpa(*stock(), mask=np.array([[True, True, False]]))
    np.testing.assert_allclose(out, [[10]])
    np.testing.assert_allclose(weights, [[1 / 3, 2 / 3, 0]])
    assert np.array_equal(hw.attention_steps(*stock(), mask=[[True, True, False]]).weights, weights)


def test_boolean_mask_never_enlarges_the_scores():
    with pytest.raises(ValueError, match=r"mask: expected a shape that broadcasts to \(n_q, n_k\) = \(1, 3\), got"):
        sdpa(*stock(), mask=np.ones((2, 3), bool))


@pytest.mark.parametrize("dtype", [np.float64, np.int64, np.uint8, object])
def test_a_mask_of_another_dtype_is_an_error_that_gives_the_fix(dtype):
    with pytest.raises(TypeError, match=r"mask: expected bool.*mask\.astype\(bool\).*bias=mask"):
        sdpa(*stock(), mask=np.ones((1, 3), dtype))


@pytest.mark.parametrize("lead", [(2,), (2, 3), (2, 2)])
def test_per_item_arrays_go_with_the_batch_never_with_heads(lead):
    q, k, v = qkv(*lead)
    _, weights = sdpa(q, k, v, masks.lengths([3, 5]))
    for item, length in enumerate([3, 5]):
        assert (weights[item][..., length:] == 0).all()
        assert (weights[item][..., :length] > 0).all()


def test_per_item_arrays_of_the_heads_size_are_refused():
    with pytest.raises(ValueError, match=r"lengths: expected \(B\) against the batch axes .* \(2,\), got \(3,\)"):
        sdpa(*qkv(2, 3), masks.lengths([3, 5, 7]))


def test_bias_is_added_and_minus_inf_in_it_masks_exactly():
    q, k, v = stock()
    np.testing.assert_allclose(sdpa(q, 0 * k, v, bias=k.T)[0], [[14]])
    k[2], v[2] = np.nan, np.nan
    out, weights = sdpa(q, k, v, bias=[[0.0, 0.0, -np.inf]])
    np.testing.assert_allclose(out, [[10]])
    assert weights[0, 2] == 0


def test_constraints_intersect():
    q, k, v = qkv()
    mask = np.random.default_rng(1).random((5, 7)) < 0.7
    _, weights = sdpa(q, k, v, mask, causal=True)
    np.testing.assert_array_equal(weights > 0, mask & (np.arange(7) <= np.arange(5)[:, None] + 2))
    either = masks.window(1, 0) | masks.keys(np.arange(7) == 0)
    np.testing.assert_array_equal(sdpa(q, k, v, either & mask)[1] > 0, (either.dense((5, 7)) & mask))
    np.testing.assert_array_equal(sdpa(q, k, v, ~either)[1] > 0, ~either.dense((5, 7)))


def test_masking_selects_minus_inf_and_no_finite_number():
    q, k, v = column(1), column(-1e12, -1e12 + 1, 5), column(6, 12, 18)
    steps = hw.attention_steps(q, k, v, mask=[[True, True, False]])
    assert steps.masked.tolist() == [[-1e12, -1e12 + 1, -np.inf]]
    assert steps.weights[0, 2] == 0
    np.testing.assert_allclose(steps.out, [[6 + 6 * np.e / (1 + np.e)]])


def test_a_query_that_may_attend_to_nothing():
    q, k, v = qkv(2)
    with np.errstate(all="raise"):
        steps = hw.attention_steps(q, k, v, masks.lengths([0, 4]))
    assert (steps.out[0] == 0).all()
    assert (steps.weights[0] == 0).all()
    assert (steps.lse[0] == -np.inf).all()
    assert np.isfinite(steps.lse[1]).all()
    assert hw.softmax([-np.inf, -np.inf]).tolist() == [0, 0]


@pytest.mark.parametrize("wild", [np.nan, np.inf, -np.inf])
def test_nonfinite_behind_a_mask_never_leaks_and_a_visible_one_shows_in_its_rows_only(wild):
    q, k, v = qkv(2, 3)
    mask = np.ones((5, 7), bool)
    mask[:, 2] = mask[1:, 4] = False  # key 2 is seen by none, key 4 by query 0 alone
    clean, _ = sdpa(q, k, v, mask)
    k[:, :, 2], v[:, :, 2], v[:, 1, 4] = wild, wild, wild
    out, weights = sdpa(q, k, v, mask)
    np.testing.assert_array_equal(weights[..., 2], 0)
    np.testing.assert_allclose(out[:, :, 1:], clean[:, :, 1:], rtol=1e-14)
    np.testing.assert_allclose(out[:, [0, 2], 0], clean[:, [0, 2], 0], rtol=1e-14)
    np.testing.assert_array_equal(out[:, 1, 0], np.full((2, 2), wild))


def test_a_visible_nan_in_a_key_makes_its_rows_nan():
    q, k, v = column(1, 1), column(0, np.nan, L3), column(6, 12, 18)
    out, _ = sdpa(q, k, v, mask=[[True, True, True], [True, False, True]])
    np.testing.assert_allclose(out, [[np.nan], [15]])


@pytest.mark.parametrize(("n_q", "n_k"), [(2, 5), (5, 5), (5, 2), (1, 7)])
def test_causal_is_by_position_and_the_last_query_sees_everything(n_q, n_k):
    _, weights = sdpa(*qkv(n_q=n_q, n_k=n_k), causal=True)
    expected = np.arange(n_k) <= np.arange(n_q)[:, None] + n_k - n_q
    np.testing.assert_array_equal(weights > 0, expected)
    _, upper_left = sdpa(*qkv(n_q=n_q, n_k=n_k), masks.causal(offset=0))
    np.testing.assert_array_equal(upper_left > 0, np.arange(n_k) <= np.arange(n_q)[:, None])


def test_causal_with_a_ragged_cache():
    lengths = np.array([4, 7])
    mask = masks.causal(lengths - 2) & masks.lengths(lengths)
    q, k, v = qkv(2, 3, n_q=2)
    out, _ = sdpa(q, k, v, mask)
    for item, n in enumerate(lengths):
        alone, _ = sdpa(q[item], k[item, :, :n], v[item, :, :n], causal=True)
        np.testing.assert_allclose(out[item], alone, rtol=1e-13)


def test_a_cache_counts_tokens_and_shows_each_item_its_own():
    cache, rows = hw.KVCache(2, 1, 4, 1), np.ones((2, 1, 3, 1))
    cache.append(rows, rows, padding=[0, 1])
    assert cache.lengths.tolist() == [3, 2]
    assert cache.next_positions(1).tolist() == [[3], [2]]
    assert cache.offset(2).tolist() == [1, 1]
    seen = cache.mask(2).dense((2, 1, 2, 3))[:, 0].tolist()
    assert seen == [[[True, True, False], [True, True, True]], [[False, True, False], [False, True, True]]]
    with pytest.raises(ValueError, match="k: expected at most 1 more rows for item 0, got 3"):
        cache.append(rows, rows)
    assert cache.lengths.tolist() == [3, 2]


def test_a_cache_with_a_window_is_of_any_length():
    cache, row = hw.KVCache(1, 1, 3, 1, dtype=float, window=2), np.ones((1, 1, 1, 1))
    for i in range(10):
        cache.append(row, i * row)
    assert cache.lengths.tolist() == [10]
    assert cache.v.ravel().tolist() == [7, 8, 9]
    assert cache.mask(1).dense((1, 1, 1, 3)).all()
    with pytest.raises(
        ValueError, match=r"KVCache.truncate: lengths: expected 0 or at least \[9\], as the window dropped"
    ):
        cache.truncate(8)


def test_window_counts_keys_besides_the_own_position():
    assert masks.window(256, 0).dense((1, 1000)).sum() == 257
    expected = [[1, 1, 0, 0], [1, 1, 1, 0], [1, 1, 1, 1], [0, 1, 1, 1]]
    assert masks.window(2, 1).dense((4, 4)).astype(int).tolist() == expected
    assert masks.window(None, None).dense((3, 5)).all()
    np.testing.assert_array_equal(masks.window(None, 0).dense((3, 5)), masks.causal().dense((3, 5)))


def test_masks_are_predicates():
    padding = ~masks.lengths([1, 3])
    assert padding.dense((2, 1, 3)).astype(int).tolist() == [[[0, 1, 1]], [[0, 0, 0]]]
    with pytest.raises(TypeError, match="bool"):
        bool(padding)
    array = np.ones((2, 3), bool)
    assert isinstance(array & masks.causal(), hw.Mask)
    assert isinstance(masks.causal() | array, hw.Mask)
    assert repr(~(masks.causal() & masks.lengths([1, 3])) | masks.window(1, None)) == (
        "~(causal() & lengths([1, 3])) | window(1, None)"
    )


# ------------------------------------------------------------------------------------------------- heads
@pytest.mark.parametrize("lead", [(), (2,), (2, 3)])
def test_grouped_heads_read_their_key_head(lead):
    q, _, _ = qkv(*lead, 2, 6)
    _, k, v = qkv(*lead, 2, 3, seed=1)
    out, weights = sdpa(q, k, v, causal=True)
    for head in range(6):
        alone = sdpa(q[..., head, :, :], k[..., head // 2, :, :], v[..., head // 2, :, :], causal=True)
        np.testing.assert_allclose(out[..., head, :, :], alone[0], rtol=1e-13)
        np.testing.assert_allclose(weights[..., head, :, :], alone[1], rtol=1e-13)


def test_one_head_broadcasts_and_others_are_refused():
    q, k, v = qkv(2, 6)
    np.testing.assert_array_equal(sdpa(q, k[:, :1], v[:, :1])[0], sdpa(q, k[:, [0] * 6], v[:, [0] * 6])[0])
    with pytest.raises(ValueError, match=r"divides the 6 heads .*query head h reads key head h // \(H // G\)"):
        sdpa(q, k[:, :4], v[:, :4])
    with pytest.raises(ValueError, match=r"grouped heads need a batch axis: q\[None\]"):
        sdpa(q[0], k[0, :3], v[0, :3])


def test_grouped_heads_are_not_copied():
    q, k, v = np.zeros((1, 6, 1, 64)), np.zeros((1, 2, 8192, 64)), np.zeros((1, 2, 8192, 64))
    sdpa(q, k, v)
    tracemalloc.start()
    sdpa(q, k, v)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < k.nbytes / 2  # six heads of keys would be 3 k.nbytes


# ------------------------------------------------------------------------------------ scale, order, sinks
def test_scale_is_taken_literally():
    q, k, v = stock()
    np.testing.assert_allclose(sdpa(q, k, v, scale=0)[0], [[12]])
    np.testing.assert_allclose(sdpa(q, k, v, scale=-1)[0], [[(6 + 12 / 2 + 18 / 3) / (1 + 1 / 2 + 1 / 3)]])
    wide = np.concatenate([q, 0 * q, 0 * q, 0 * q], axis=1), np.concatenate([k, 0 * k, 0 * k, 0 * k], axis=1), v
    np.testing.assert_allclose(sdpa(*wide, scale=1)[0], [[14]])
    np.testing.assert_allclose(hw.attention_steps(*wide).scores, hw.attention_steps(*wide, scale=1).scores / 2)
    np.testing.assert_allclose(sdpa(np.zeros((2, 0)), np.zeros((3, 0)), v)[0], [[12], [12]])


def test_order_of_the_steps():
    q, k, v = column(1), column(10, 0, 3), column(6, 12, 18)
    steps = hw.attention_steps(q, k, v, [[True, True, False]], scale=0.5, softcap=2.0, bias=[[1.0, 0.0, 9.0]])
    np.testing.assert_allclose(steps.scores, [[5, 0, 1.5]])
    np.testing.assert_allclose(steps.capped, [[2 * np.tanh(2.5), 0, 2 * np.tanh(0.75)]])
    np.testing.assert_allclose(steps.biased, steps.capped + np.array([[1, 0, 9]]))
    np.testing.assert_array_equal(steps.masked[0, :2], steps.biased[0, :2])
    assert steps.masked[0, 2] == -np.inf
    exps = np.exp(steps.masked)
    np.testing.assert_allclose(steps.weights, exps / exps.sum())
    np.testing.assert_allclose(steps.out, steps.weights @ v)
    np.testing.assert_allclose(steps.lse, np.log(exps.sum(-1)))


def test_sinks_count_in_the_denominator_only():
    q, k, v = np.ones((1, 2, 1, 1)), column(0, L2)[None, None], column(6, 12)[None, None]
    steps = hw.attention_steps(q, k, v, sinks=[L3, -np.inf])
    np.testing.assert_allclose(steps.weights[0, :, 0], [[1 / 6, 2 / 6], [1 / 3, 2 / 3]])
    np.testing.assert_allclose(steps.out[0, :, 0], [[5], [10]])
    np.testing.assert_allclose(steps.lse[0, :, 0], [np.log(6), L3])
    dead = hw.attention_steps(q, k, v, np.zeros((1, 1, 1, 2), bool), sinks=[L3, -np.inf])
    assert (dead.out == 0).all()
    assert (dead.weights == 0).all()
    np.testing.assert_allclose(dead.lse[0, :, 0], [L3, -np.inf])


def test_when_merging_one_part_carries_the_sinks():
    q, k, v = qkv(2, 3)
    sinks = np.array([0.5, -1.0, 2.0])
    first = hw.attention_steps(q, k[:, :, :3], v[:, :, :3], sinks=sinks)
    second = hw.attention_steps(q, k[:, :, 3:], v[:, :, 3:])
    whole = hw.attention_steps(q, k, v, sinks=sinks)
    out, lse = hw.merge_attention([first.out, second.out], [first.lse, second.lse])
    np.testing.assert_allclose(out, whole.out, rtol=1e-13)
    np.testing.assert_allclose(lse, whole.lse, rtol=1e-13)


# ------------------------------------------------------------------------------------------------ dtypes
@pytest.mark.parametrize(
    ("dtypes", "result", "computing"),
    [
        (("f8", "f8", "f8"), "f8", "f8"),
        (("f4", "f4", "f4"), "f4", "f4"),
        (("f2", "f2", "f2"), "f2", "f4"),
        ((BF16, BF16, BF16), BF16, "f4"),
        ((BF16, "f2", "f2"), "f4", "f4"),
        (("f4", BF16, "f2"), "f4", "f4"),
        (("f4", "f4", "f8"), "f8", "f8"),
        (("i4", "i4", "i4"), "f8", "f8"),
        (("?", "?", "f2"), "f8", "f8"),
        ((">f4", ">f4", ">f4"), "f4", "f4"),
    ],
)
def test_dtypes(dtypes, result, computing):
    q, k, v = (array.astype(dtype) for array, dtype in zip(qkv(n_q=3), dtypes, strict=True))
    steps = hw.attention_steps(q, k, v, bias=np.zeros((3, 7), "f8"), scale=np.float64(0.5), softcap=np.float64(7))
    assert steps.out.dtype == steps.weights.dtype == np.dtype(result)
    assert steps.lse.dtype == steps.scores.dtype == steps.masked.dtype == np.dtype(computing)


def test_half_types_are_computed_in_float32():
    q = np.full((1, 4), 200, np.float16)
    k = np.array([[200] * 4, [199] * 4], np.float16)
    out, _ = sdpa(q, k, column(1, 2).astype(np.float16))  # scores of 80,000 do not fit float16
    assert out.tolist() == [[1]]
    flat, _ = sdpa(np.zeros((1, 1), "f2"), np.zeros((4096, 1), "f2"), np.ones((4096, 1), "f2"))
    np.testing.assert_allclose(flat.astype(float), [[1]], rtol=1e-3)


@pytest.mark.parametrize("kind", ["complex", "object", "longdouble", "masked"])
def test_other_kinds_are_refused(kind):
    q, k, v = stock()
    bad = {
        "complex": k + 0j,
        "object": k.astype(object),
        "longdouble": k.astype(np.longdouble),
        "masked": np.ma.masked_array(k, mask=k > 1),
    }[kind]
    if kind == "longdouble" and np.dtype(np.longdouble).itemsize == 8:
        assert sdpa(q, bad, v)[0].dtype == np.float64  # the same type by another name, on some platforms
        return
    with pytest.raises(TypeError, match=r"^scaled_dot_product_attention: k: expected"):
        sdpa(q, bad, v)


# ----------------------------------------------------------------------------------------------- dropout
def test_dropout_scales_what_it_keeps_and_returns_the_weights_before_it():
    q, k, v = np.zeros((200, 1)), np.zeros((1, 1)), np.ones((1, 1))
    out, weights = sdpa(q, k, v, dropout=0.25, rng=1)
    assert set(np.unique(out.round(12))) == {0, round(1 / 0.75, 12)}
    assert (weights == 1).all()
    assert (sdpa(q, k, v, dropout=1.0, rng=1)[0] == 0).all()
    assert (sdpa(q, k, v, dropout=0.0)[0] == 1).all()


def test_dropout_needs_an_rng_and_draws_one_number():
    with pytest.raises(ValueError, match=r"rng: expected a seed .* where dropout > 0, got None"):
        sdpa(*stock(), dropout=0.1)
    used, beside = np.random.default_rng(5), np.random.default_rng(5)
    sdpa(*stock(), dropout=0.1, rng=used)
    beside.integers(2**63)
    assert used.random() == beside.random()


def test_dropout_is_a_function_of_the_place():
    q, k, v = np.zeros((2, 3, 300, 1)), np.zeros((2, 3, 200, 1)), np.ones((2, 3, 200, 1))
    keep = hw.core.dropout.Keep(0.5, np.random.default_rng(3)).dense((2, 3, 300, 200))
    out, _ = sdpa(q, k, v, dropout=0.5, rng=3)
    np.testing.assert_allclose(out[..., 0], keep.sum(-1) / 100, rtol=1e-12)
    shorter, _ = sdpa(q[:, :, :270], k[:, :, :130], v[:, :, :130], dropout=0.5, rng=3)
    np.testing.assert_allclose(shorter[..., 0], keep[:, :, :270, :130].sum(-1) / 65, rtol=1e-12)


# --------------------------------------------------------------------------------- weights, axes, inputs
def test_weights_are_per_head():
    _, weights = hw.MultiHeadSelfAttention(6, 3)(np.ones((2, 5, 6)))
    assert weights.shape == (2, 3, 5, 5)


def test_empty_axes():
    out, weights = sdpa(np.ones((3, 2)), np.ones((0, 2)), np.ones((0, 5)))
    assert (out == np.zeros((3, 5))).all()
    assert weights.shape == (3, 0)
    assert sdpa(np.ones((0, 2)), np.ones((3, 2)), np.ones((3, 5)), causal=True)[0].shape == (0, 5)
    assert sdpa(*qkv(0, 2), masks.lengths(np.zeros(0, int)))[0].shape == (0, 2, 5, 2)


@pytest.mark.parametrize("layout", ["fortran", "strided", "reversed", "transposed", "read-only", "mapped"])
def test_inputs_of_any_layout_are_read_and_never_written(layout, tmp_path):
    arrays = qkv(2, 3)
    expected, _ = sdpa(*arrays, causal=True)

    def laid(array, name):
        if layout == "fortran":
            return np.asfortranarray(array)
        if layout == "strided":
            return np.repeat(np.repeat(array, 2, axis=-1), 3, axis=1)[:, ::3, :, ::2]
        if layout == "reversed":
            return np.ascontiguousarray(array[:, ::-1, ::-1])[:, ::-1, ::-1]
        if layout == "transposed":
            return np.ascontiguousarray(array.swapaxes(1, 2)).swapaxes(1, 2)
        if layout == "mapped":
            np.save(tmp_path / f"{name}.npy", array)
            return np.load(tmp_path / f"{name}.npy", mmap_mode="r")
        array.flags.writeable = False
        return array

    given = [laid(array.copy(), name) for name, array in zip("qkv", arrays, strict=True)]
    before = [array.copy() for array in given]
    out, _ = sdpa(*given, causal=True)
    np.testing.assert_allclose(out, expected, rtol=1e-13)
    for array, copied in zip(given, before, strict=True):
        np.testing.assert_array_equal(array, copied)


def test_alibi_is_a_distance_times_a_slope():
    bias = hw.alibi([0.5, 0.25])
    expected = -np.array([0.5, 0.25])[:, None, None] * np.abs(np.arange(2)[:, None] + 3 - np.arange(5))
    np.testing.assert_array_equal(bias.dense((7, 2, 2, 5)), np.broadcast_to(expected, (7, 2, 2, 5)))
    np.testing.assert_allclose(hw.alibi_slopes(6), [2**-2, 2**-4, 2**-6, 2**-8, 2**-1, 2**-3])


def test_relative_positions_are_buckets_with_exact_borders():
    table = np.arange(10.0)[:, None]
    row = hw.relative_position_bias(table, 1, 3126, bidirectional=False, max_distance=5**6)[0, 0, ::-1]
    assert row[[0, 4, 5, 24, 25, 124, 125, 3124, 3125]].tolist() == [0, 4, 5, 5, 6, 6, 7, 8, 9]
    assert hw.relative_position_bias(table[:2], 2, 3)[0].tolist() == [[0, 0, 1], [0, 0, 0]]
    with pytest.raises(ValueError, match="table: expected an even number of buckets with bidirectional, got 3"):
        hw.relative_position_bias(table[:3], 2, 3)


def test_errors_say_where_which_expected_got_and_what_to_do():
    q, k, v = qkv()
    with pytest.raises(ValueError, match=r"^scaled_dot_product_attention: k: expected .*d_k = 3.*got \(7, 2\); "):
        sdpa(q, k[:, :2], v)
    with pytest.raises(TypeError, match=r"(?s)4 arguments do not fit\n  k: .*\n  v: .*\n  mask: .*\n  softcap: "):
        sdpa(q, k[:, :2], v[:5], mask=np.ones((5, 7)), softcap=0)


def test_the_callers_error_state_never_makes_a_right_call_fail():
    q, k, v = column(1, 1e300), column(0, -1e5, 1e300), column(6, 12, np.inf)
    with np.errstate(all="raise"):
        steps = hw.attention_steps(q, k, v, [[True, True, False]], softcap=1e300, sinks=[-1e9])
        hw.softmax([0.0, -1e4])
        hw.logsumexp([0.0, -1e4])
        hw.merge_attention([[1.0], [2.0]], [-1e4, 0.0])
        hw.MultiHeadSelfAttention(2, 1)(np.array([[1e200, 0], [1e-200, 0]]))
    assert np.isfinite(steps.out[0]).all()


def test_the_callers_error_state_does_not_reach_the_last_rounding():
    small, large = np.full((2, 2), 1e-3, np.float16), np.full((2, 2), 6e4, np.float16)
    with np.errstate(all="raise"):
        hw.merge_attention([np.float16([[1e-4]]), np.float16([[0.0]])], [[0.0], [9.0]])
        hw.multi_head_attention(small, small, small, small, small, 1)
        assert np.isinf(hw.multi_head_attention(large, large, large, large, large, 1)).all()
        sdpa(small, small, small, scale=1e30, bias=np.full((2, 2), -1e300))
        assert hw.alibi([1e308]).dense((1, 3)).tolist() == [[-np.inf, -1e308, 0]]


@pytest.mark.parametrize(("size", "scale"), [(1e25, 1e-50), (1e22, 1e-44), (1e-20, 1e40)])
def test_scale_is_taken_literally_beyond_float32(size, scale):
    q, k = np.float32([[size]]), np.float32([[size], [0]])
    _, weights = sdpa(q, k, np.float32([[1], [2]]), scale=scale)
    np.testing.assert_allclose(weights, [[1 / (1 + np.exp(-1)), 1 / (1 + np.exp(1))]], rtol=1e-6)


def test_merging_the_largest_values_does_not_overflow():
    for dtype in (np.float64, np.float32):
        top = dtype(np.finfo(dtype).max * 0.9)
        out, lse = hw.merge_attention([dtype([[top]])] * 5, [dtype([0])] * 5)
        np.testing.assert_allclose(out, [[top]], rtol=1e-6)
        np.testing.assert_allclose(lse, [np.log(5)], rtol=1e-6)


def test_a_bias_below_the_computing_type_masks():
    q, k, v = (array.astype(np.float32) for array in stock())
    bias = np.array([[0, 0, np.finfo(np.float64).min]])
    np.testing.assert_allclose(sdpa(q, k, v, bias=bias)[0], [[10]], rtol=1e-6)


@pytest.mark.parametrize("ndim", [25, 36, 50])
def test_more_axes_than_numpy_has_are_refused(ndim):
    most = 32 if np.lib.NumpyVersion(np.__version__) < "2.0.0" else 64  # what NumPy itself can make
    ndim = min(ndim, most)
    many = np.ones((1,) * ndim)
    with pytest.raises(ValueError, match=rf"q: expected at most 24 axes, got {ndim}"):
        sdpa(many, many, many)
    with pytest.raises(ValueError, match=rf"outs\[0\]: expected at most 24 axes, got {ndim}"):
        hw.merge_attention([many], [many[0]])


def test_axes_up_to_the_limit_work():
    many = np.ones((2, *(1,) * 20, 3, 4, 5))
    grouped = np.ones((2, *(1,) * 20, 1, 4, 5))
    assert sdpa(many, grouped, grouped, masks.causal())[0].shape == many.shape


# ------------------------------------------------------------------------------------------------ layers
def test_weights_of_a_layer_multiply_from_the_right():
    x, w = np.array([[1.0, 2.0]]), np.array([[0.0, 1.0], [0.0, 0.0]])
    out = hw.multi_head_attention(x, np.eye(2), np.eye(2), w, np.eye(2), heads=1)
    assert out.tolist() == [[0, 1]]  # x @ w; its transpose would give [2, 0]


def test_the_layer_draws_its_weights_in_order():
    layer, rng = hw.MultiHeadSelfAttention(6, 2, seed=11), np.random.default_rng(11)
    for name in ("w_q", "w_k", "w_v", "w_o"):
        np.testing.assert_array_equal(getattr(layer, name), rng.normal(scale=1 / np.sqrt(6), size=(6, 6)))
    same = hw.MultiHeadSelfAttention(6, 2, seed=np.random.default_rng(11))
    np.testing.assert_array_equal(same.w_o, layer.w_o)
    assert not np.array_equal(hw.MultiHeadSelfAttention(6, 2).w_q, layer.w_q)


def test_gradients_of_a_layer_have_shape_and_type_of_their_arguments_and_belong_to_their_call():
    layer, x = hw.MultiHeadSelfAttention(6, 2), np.random.default_rng(0).standard_normal((2, 5, 6), dtype=np.float32)
    out, vjp = layer.vjp(x)
    d_x, d_weights = vjp(np.ones_like(out))
    assert (out.dtype, d_x.dtype, d_x.shape) == (np.float64, np.float32, x.shape)
    assert {name: (d.dtype, d.shape) for name, d in d_weights.items()} == dict.fromkeys(
        ("w_q", "w_k", "w_v", "w_o"), (np.float64, (6, 6))
    )
    for name, gradient in d_weights.items():
        weight = getattr(layer, name)
        weight -= gradient
    again, _ = vjp(np.ones_like(out))
    np.testing.assert_array_equal(again, d_x)
    with pytest.raises(
        ValueError, match=r"d_out: expected \(b, n, d_model\) = \(2, 5, 6\) as out, got \(5, 6\); pass np"
    ):
        vjp(np.ones((5, 6)))


def test_the_layer_of_attention_attends_to_itself_or_to_others():
    layer, rng = hw.MultiHeadAttention(6, 4, d_head=2, n_kv_heads=2), np.random.default_rng(0)
    x, key = rng.standard_normal((2, 5, 6), dtype=np.float32), rng.standard_normal((2, 3, 6), dtype=np.float32)
    np.testing.assert_array_equal(layer(x), layer(x, x, x))
    np.testing.assert_array_equal(layer(x, key), layer(x, key, key))
    np.testing.assert_allclose(layer(x, key)[1], layer(x[1], key[1]), rtol=1e-13)
    assert layer(x).dtype == np.float64  # as the weights are
    out, weights = layer(x, key, return_weights=True)
    np.testing.assert_allclose(out, layer(x, key), rtol=1e-12, atol=1e-12)
    assert weights.shape == (2, 4, 5, 3)
    with pytest.raises(ValueError, match=r"^MultiHeadAttention: sinks: expected one number per head"):
        layer(x, sinks=[0.0])


def test_the_scale_of_a_call_comes_before_the_layer_s():
    x = np.array([[1.0], [0.0]])
    layer = hw.MultiHeadAttention.from_arrays([[L2]], [[1.0]], [[6.0]], [[1.0]], 1, scale=2.0)
    np.testing.assert_allclose(layer(x), [[6 * 4 / 5], [3]])
    np.testing.assert_allclose(layer(x, scale=1.0), [[4], [3]])
    layer.scale = None
    np.testing.assert_allclose(layer(x), [[4], [3]])


def test_learned_keys_are_seen_by_every_query_after_all_others():
    ones, rows = [[1.0]], {"bias_k": [[[L2]]], "bias_v": [[[9.0]]]}
    layer = hw.MultiHeadAttention.from_arrays(ones, ones, ones, ones, 1, **rows, transform=lambda q, k, *_: (q, k))
    out, weights = layer([[1.0]], [[0.0]], return_weights=True)
    np.testing.assert_allclose(weights, [[[1 / 3, 2 / 3]]])
    np.testing.assert_allclose(out, [[6]])
    cache = hw.KVCache(1, 1, 3, 1, dtype=float)
    layer([[1.0]], cache=cache)
    assert cache.k.ravel().tolist() == [1]
    for options in ({"mask": [[False]]}, {"bias": [[-np.inf]]}):
        np.testing.assert_allclose(layer([[1.0]], [[0.0]], **options), [[9]])
    np.testing.assert_allclose(layer([[0.0]], [[0.0]], sinks=[0.0]), [[3]])


def test_a_transform_stands_between_the_heads_and_attention():
    def swap_columns(q, k, q_positions, k_positions):
        assert q.shape == (2, 4, 5, 2)
        assert k.shape == (2, 2, 3, 2)
        assert (q_positions.tolist(), k_positions.tolist()) == ([0, 1, 2, 3, 4], [0, 1, 2])
        return q[..., ::-1], k

    layer, rng = hw.MultiHeadAttention(6, 4, d_head=2, n_kv_heads=2), np.random.default_rng(0)
    x, key = rng.standard_normal((2, 5, 6)), rng.standard_normal((2, 3, 6))
    layer.transform = swap_columns
    turned = layer(x, key)
    layer.w_q, layer.transform = layer.w_q.reshape(6, 4, 2)[..., ::-1].reshape(6, 8), None
    np.testing.assert_allclose(turned, layer(x, key), rtol=1e-13)


def test_a_layer_with_a_cache_goes_by_each_items_own_positions():
    layer = hw.MultiHeadAttention(6, 4, d_head=2, n_kv_heads=2, transform=transforms.rotary(style="half"))
    x, cache = np.random.default_rng(0).standard_normal((2, 5, 6)), ListCache(2, 2, 2)
    options = {"causal": True, "bias": hw.alibi([0.5, 1, 2, 3])}
    layer(x[:, :4], cache=cache, **options)
    cache.truncate([4, 2])
    out = layer(x[:, 4:], cache=cache, **options)
    for item, own in enumerate((x[0], x[1, [0, 1, 4]])):
        np.testing.assert_allclose(out[item], layer(own, **options)[-1:], rtol=1e-12, atol=1e-12)
    with pytest.raises(ValueError, match="key: expected None with a cache"):
        layer(x, x, cache=cache)


def test_gradients_of_the_layer_of_attention_go_where_tokens_came_from():
    layer, x = hw.MultiHeadAttention(6, 2, use_bias=True), np.random.default_rng(0).standard_normal((2, 5, 6))
    out, vjp = layer.vjp(x)
    one, three = vjp(out), layer.vjp(x, x, x)[1](out)
    assert one.key is None
    assert one.value is None
    np.testing.assert_allclose(one.query, three.query + three.key + three.value, rtol=1e-12, atol=1e-12)
    assert list(one.weights) == ["w_q", "w_k", "w_v", "w_o", "b_q", "b_k", "b_v", "b_o"]
    assert one.transform == {}


def test_a_layer_is_copied_and_pickled():
    layer, x = hw.MultiHeadSelfAttention(6, 2), np.random.default_rng(0).standard_normal((2, 5, 6))
    out, _ = layer(x)
    for again in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        np.testing.assert_array_equal(again(x)[0], out)


# -------------------------------------------------------------------------------------------------- segments
def test_packed_segments_are_what_they_are_alone():
    v = np.array([6.0, 12.0, 18.0, 1.0, 3.0])[:, None, None]
    q, k, q_starts, k_starts = np.zeros((3, 1, 1)), np.zeros((5, 1, 1)), [0, 2, 3], [0, 3, 5]
    out = hw.attention_varlen(q, k, v, q_starts, k_starts, causal=True)
    assert out.ravel().tolist() == [9, 12, 2]  # lower-right: a segment's last query sees all of its keys
    out = hw.attention_varlen(q, k, v, q_starts, k_starts, window=(1, 0))
    assert out.ravel().tolist() == [9, 15, 2]  # counts besides the own
    out, lse = hw.attention_varlen(q, k, v, [0, 2, 3], [0, 0, 5], return_lse=True)
    assert out.ravel().tolist() == [0, 0, 8]
    assert lse.ravel()[:2].tolist() == [-np.inf, -np.inf]
    with pytest.raises(
        ValueError, match=r"window\[0\]: expected None \(unlimited\) or a number of keys of at least 0, got -1"
    ):
        hw.attention_varlen(q, k, v, q_starts, k_starts, window=(-1, 0))


def test_pages_are_blocks_of_a_pool_and_have_no_gradients():
    q, k = np.zeros((2, 1, 1)), np.zeros((3, 2, 1, 1))
    v = np.array([6.0, 12.0, 18.0, np.nan, 1.0, 3.0]).reshape(3, 2, 1, 1)
    pages = [[0, 1], [2, -1]], [3, 1]  # what lies beyond a length is not looked at
    assert hw.attention_varlen(q, k, v, [0, 1, 2], None, paged=pages).ravel().tolist() == [12, 1]
    with pytest.raises(ValueError, match=r"ids from 0 to 2 of the 3 blocks where k_lengths reaches them, got -1"):
        hw.attention_varlen(q, k, v, [0, 1, 2], None, paged=(pages[0], [3, 3]))
    with pytest.raises(ValueError, match=r"k_starts: expected None with paged"):
        hw.attention_varlen(q, k, v, [0, 1, 2], [0, 3, 4], paged=pages)
    with pytest.raises(ValueError, match="blocks of a pool have no gradients"):
        hw.attention_varlen_vjp(q, k, v, [0, 1, 2], None, paged=pages)
