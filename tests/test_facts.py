"""The facts that every correct attention shows: the classic exercise's eight checks and the interview's questions."""

import warnings
from itertools import pairwise

import numpy as np
import pytest

import headwise as hw
from headwise import masks


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape)


def textbook(q, k, v):
    scores = q @ np.swapaxes(k, -1, -2) / np.sqrt(q.shape[-1])
    exps = np.exp(scores)
    return exps / exps.sum(-1, keepdims=True) @ v


# ------------------------------------------------------------------------------------ the exercise, 1 to 8
@pytest.mark.parametrize(
    ("q_lead", "k_lead", "v_lead", "lead"),
    [
        ((), (), (), ()),
        ((3,), (3,), (3,), (3,)),
        ((2, 3), (2, 3), (2, 3), (2, 3)),
        ((2, 3), (1, 3), (2, 1), (2, 3)),
        ((3,), (), (1,), (3,)),
        ((), (2, 3), (3,), (2, 3)),
        ((5, 2, 3), (2, 3), (1, 1, 3), (5, 2, 3)),
        ((7, 1, 2, 3), (5, 1, 3), (3,), (7, 5, 2, 3)),
    ],
)
def test_exercise_1_shapes_and_broadcasting(q_lead, k_lead, v_lead, lead):
    q, k, v = normal(*q_lead, 5, 7), normal(*k_lead, 11, 7, seed=1), normal(*v_lead, 11, 13, seed=2)
    out, weights = hw.scaled_dot_product_attention(q, k, v)
    assert out.shape == (*lead, 5, 13)
    assert weights.shape == (*lead, 5, 11)
    np.testing.assert_allclose(out, textbook(q, k, v), rtol=1e-12, atol=1e-12)


def test_exercise_2_hand_case():
    q, k, v = [[1.0, 0.0]], [[1.0, 0.0], [0.0, 1.0]], [[1.0], [0.0]]
    _, weights = hw.scaled_dot_product_attention(q, k, v)
    _, unscaled = hw.scaled_dot_product_attention(q, k, v, scale=1.0)
    assert round(float(weights[0, 0]), 4) == 0.6698
    assert round(float(unscaled[0, 0]), 4) == 0.7311


def test_exercise_3_three_of_six_keys_masked():
    q, k, v = normal(2, 3, 5, 7), normal(2, 3, 6, 7, seed=1), normal(2, 3, 6, 2, seed=2)
    seen = np.array([True, False, True, False, False, True])
    out, weights = hw.scaled_dot_product_attention(q, k, v, seen)
    assert (weights[..., ~seen] == 0).all()
    np.testing.assert_allclose(weights.sum(-1), 1, rtol=0, atol=1e-9)
    np.testing.assert_allclose(out, textbook(q, k[..., seen, :], v[..., seen, :]), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("junk", [0.0, 1e6, np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("t", [0, 3, 6])
def test_exercise_4_a_changed_future_moves_nothing_before_it(junk, t):
    q, k, v = normal(2, 7, 5), normal(2, 7, 5, seed=1), normal(2, 7, 3, seed=2)
    before, _ = hw.scaled_dot_product_attention(q, k, v, causal=True)
    k, v = k.copy(), v.copy()
    k[:, t + 1 :] += junk
    v[:, t + 1 :] -= junk
    after, _ = hw.scaled_dot_product_attention(q, k, v, causal=True)
    np.testing.assert_allclose(after[:, : t + 1], before[:, : t + 1], rtol=0, atol=1e-12)


@pytest.mark.parametrize("n", [0, 1, 2, 5, 11])
def test_exercise_5_causal_mask(n):
    mask = hw.causal_mask(n)
    assert mask.dtype == np.bool_
    assert mask.tolist() == [[j <= i for j in range(n)] for i in range(n)]


def test_exercise_6_all_scores_but_one_are_minus_inf():
    x = np.full((3, 5), -np.inf)
    x[0, 2], x[1, 0], x[2, 4] = 0.0, 1e300, -1e300
    with warnings.catch_warnings(), np.errstate(all="raise"):
        warnings.simplefilter("error")
        got = hw.softmax(x)
        _, weights = hw.scaled_dot_product_attention(np.zeros((3, 2)), np.zeros((5, 2)), np.ones((5, 1)), bias=x)
    expected = np.zeros((3, 5))
    expected[[0, 1, 2], [2, 0, 4]] = 1
    np.testing.assert_array_equal(got, expected)
    np.testing.assert_array_equal(weights, expected)


@pytest.mark.parametrize("causal", [False, True])
def test_exercise_7_heads_equal_a_loop_over_column_slices(causal):
    b, n, d, h = 2, 5, 6, 3
    x, layer = normal(b, n, d), hw.MultiHeadSelfAttention(d, h, seed=7)
    out, weights = layer(x, causal=causal)
    heads = []
    for i in range(h):
        columns = slice(i * d // h, (i + 1) * d // h)
        q, k, v = (x @ w[:, columns] for w in (layer.w_q, layer.w_k, layer.w_v))
        scores = q @ k.transpose(0, 2, 1) / np.sqrt(d // h)
        if causal:
            scores[:, ~np.tri(n, dtype=bool)] = -np.inf
        exps = np.exp(scores - scores.max(-1, keepdims=True))
        alone = exps / exps.sum(-1, keepdims=True)
        np.testing.assert_allclose(weights[:, i], alone, rtol=0, atol=1e-12)
        heads.append(alone @ v)
    expected = np.concatenate(heads, axis=-1) @ layer.w_o
    np.testing.assert_allclose(out, expected, rtol=0, atol=1e-12)
    given = hw.multi_head_attention(x, layer.w_q, layer.w_k, layer.w_v, layer.w_o, h, causal)
    np.testing.assert_allclose(given, expected, rtol=0, atol=1e-12)


def test_exercise_8_block_diagonal_heads_do_not_mix():
    def block(seed):
        w = np.zeros((4, 4))
        w[:2, :2], w[2:, 2:] = normal(2, 2, seed=seed), normal(2, 2, seed=seed + 1)
        return w

    x, weights = normal(2, 5, 4), [block(1), block(3), block(5), np.eye(4)]
    zeroed = x.copy()
    zeroed[..., 2:] = 0
    out, other = (hw.multi_head_attention(given, *weights, heads=2) for given in (x, zeroed))
    np.testing.assert_array_equal(out[..., :2], other[..., :2])
    assert not np.allclose(out[..., 2:], other[..., 2:])


# ------------------------------------------------------------------------------------------ the interview
def test_interview_d_k_4_by_hand():
    q, k = [[1.0, 1.0, 1.0, 1.0]], [[0.5, 0.5, 0.5, 0.5], [0.0, 0.0, 0.0, 0.0]]  # q k^T = [2, 0], scaled [1, 0]
    v = np.eye(2)
    _, weights = hw.scaled_dot_product_attention(q, k, v)
    _, unscaled = hw.scaled_dot_product_attention(q, k, v, scale=1)
    assert weights.round(3).tolist() == [[0.731, 0.269]]
    assert unscaled.round(3).tolist() == [[0.881, 0.119]]


def test_interview_the_upper_triangle_is_exactly_0():
    q, k, v = (normal(3, 7, 5, seed=seed) for seed in range(3))
    _, weights = hw.scaled_dot_product_attention(q, k, v, causal=True)
    assert (np.triu(weights, 1) == 0).all()
    assert (np.tril(weights) > 0).sum() == 3 * 7 * 8 // 2


def test_interview_rows_sum_to_1():
    q, k, v = (normal(3, 7, 5, seed=seed) for seed in range(3))
    for causal in (False, True):
        _, weights = hw.scaled_dot_product_attention(q, k, v, causal=causal)
        np.testing.assert_allclose(weights.sum(-1), 1, rtol=0, atol=1e-12)
        assert (weights >= 0).all()


def test_interview_permuted_tokens_permute_the_output():
    x, order = normal(2, 7, 6), np.random.default_rng(1).permutation(7)
    layer = hw.MultiHeadSelfAttention(6, 2)
    out, _ = layer(x)
    permuted, _ = layer(x[:, order])
    np.testing.assert_allclose(permuted, out[:, order], rtol=0, atol=1e-9)


def test_interview_a_query_of_50_times_a_key_finds_it():
    k = np.eye(5)
    _, weights = hw.scaled_dot_product_attention(50 * k[[3]], k, k)
    assert weights[0, 3] > 0.999


def test_interview_inputs_of_1e4_stay_finite():
    q = k = np.full((3, 4), 1e4) * np.array([[1], [-1], [1]])  # scores up to 2e8
    out, weights = hw.scaled_dot_product_attention(q, k, normal(3, 2))
    assert np.isfinite(out).all()
    np.testing.assert_allclose(weights.sum(-1), 1, rtol=0, atol=1e-12)
    layer_out, _ = hw.MultiHeadSelfAttention(4, 2)(q)
    assert np.isfinite(layer_out).all()


def test_interview_scale_uses_d_head_not_d_model():
    x, eye = np.array([[1.0, 0, 0, 0], [0, 1.0, 0, 0]]), np.eye(4)
    layer = hw.MultiHeadSelfAttention(4, 2)
    layer.w_q = layer.w_k = layer.w_v = layer.w_o = eye
    steps = layer.steps(x)
    assert steps.attention.scores[0, 0, 0] == pytest.approx(1 / np.sqrt(2), abs=1e-15)


def test_interview_cutting_the_sequence_leaves_earlier_outputs():
    x, layer = normal(2, 7, 6), hw.MultiHeadSelfAttention(6, 3)
    full, _ = layer(x, causal=True)
    for n in range(1, 8):
        cut, _ = layer(x[:, :n], causal=True)
        np.testing.assert_allclose(cut, full[:, :n], rtol=0, atol=1e-12)


def test_interview_padding_and_causal_combine():
    q, k, v = (normal(2, 5, 3, seed=seed) for seed in range(3))
    both = masks.keys([[True] * 5, [True, True, False, True, False]])
    expected = np.tri(5, dtype=bool) & np.array([[[True] * 5], [[True, True, False, True, False]]])
    for mask, causal in ((both, True), (both & masks.causal(), False), (expected, False), (expected & both, True)):
        _, weights = hw.scaled_dot_product_attention(q, k, v, mask, causal=causal)
        np.testing.assert_array_equal(weights != 0, expected)
        np.testing.assert_allclose(weights.sum(-1), 1, rtol=0, atol=1e-12)


def test_interview_a_token_sees_more_as_the_sequence_goes_on():
    _, weights = hw.scaled_dot_product_attention(*(normal(5, 3, seed=seed) for seed in range(3)), causal=True)
    seen = (weights > 0).sum(-1)
    assert all(later == earlier + 1 for earlier, later in pairwise(seen))
