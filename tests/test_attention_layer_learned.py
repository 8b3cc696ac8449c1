"""Learned keys and values of a layer, and its own scale: by hand, against PyTorch's recipe, their types and errors.

What test_attention_layer.py asks of every layer it asks of layers with these too.
"""

import copy
import pickle

import ml_dtypes
import numpy as np
import pytest
from layer_by_hand import X, assert_close, assert_right, layer_of, normal

import headwise as hw
from headwise import masks, transforms
from headwise.core import workers
from headwise.testing import check_vjp

L2 = np.log(2.0)


def made(bias_k=None, bias_v=None, **options):
    """Queries and keys are the token, values 6 times it, heads and tokens of width 1."""
    return hw.MultiHeadAttention.from_arrays(
        [[1.0]], [[1.0]], [[6.0]], [[1.0]], 1, bias_k=bias_k, bias_v=bias_v, **options
    )


# ------------------------------------------------------------------------------------------- learned rows
def test_a_learned_key_by_hand():
    """The query 1 scores its own key 0 + ln 2 and the learned one ln 4: weights 1/3, 2/3; values 6 ln 2 and 9."""
    layer = made([[[2 * L2]]], [[[9.0]]])
    out, weights = layer([[1.0]], [[L2]], return_weights=True)
    assert_close(weights, [[[1 / 3, 2 / 3]]])
    assert_close(out, [[2 * L2 + 6]])
    assert_close(layer([[1.0]], [[L2]]), out)


def test_a_row_of_zeros_is_what_add_zero_attn_does_by_hand():
    """Scores ln 3 and 0: a quarter of the weight goes to a value of 0."""
    out, weights = made([[[0.0]]], [[[0.0]]])([[1.0]], [[np.log(3)]], return_weights=True)
    assert_close(weights, [[[3 / 4, 1 / 4]]])
    assert_close(out, [[0.75 * 6 * np.log(3)]])


def test_their_gradients_by_hand():
    """Weights a = 1/3 and b = 2/3, values 6 ln 2 and 9: the learned score has ab (9 - 6 ln 2), its value b."""
    layer = made([[[2 * L2]]], [[[9.0]]])
    gradients = layer.vjp([[1.0]], [[L2]])[1]([[1.0]])
    score = 2 / 9 * (9 - 6 * L2)
    assert list(gradients.weights) == ["w_q", "w_k", "w_v", "w_o", "bias_k", "bias_v"]
    assert_close(gradients.weights["bias_k"], [[[score]]])
    assert_close(gradients.weights["bias_v"], [[[2 / 3]]])
    assert_close(gradients.query, [[score * 2 * L2 - score * L2]])


@pytest.mark.parametrize("add_zero_attn", [False, True])
def test_as_pytorch_s_recipe_has_it(add_zero_attn):
    """nn.MultiheadAttention with add_bias_kv: rows after the projected keys, masks filled up with what is visible."""
    rng, (n_items, n, width, n_heads) = np.random.default_rng(0), (2, 5, 6, 3)
    w_q, w_k, w_v, w_o = rng.standard_normal((4, width, width))
    bias_k, bias_v = rng.standard_normal((2, 1, 1, width))
    attn_mask = np.triu(np.full((n, n), -np.inf), 1)  # added to the scores
    key_padding_mask = np.array([[False] * 5, [True, True, False, False, False]])  # True hides: query 0, 1 see no token
    x = rng.standard_normal((n_items, n, width))

    def heads(rows):
        return rows.reshape(n_items, -1, n_heads, width // n_heads).swapaxes(1, 2)

    k = heads(np.concatenate([x @ w_k, np.repeat(bias_k, n_items, axis=0)], axis=1))
    v = heads(np.concatenate([x @ w_v, np.repeat(bias_v, n_items, axis=0)], axis=1))
    zeros = np.zeros((n_items, n_heads, int(add_zero_attn), width // n_heads))
    k, v = np.concatenate([k, zeros], axis=2), np.concatenate([v, zeros], axis=2)
    scores = heads(x @ w_q) @ k.swapaxes(-1, -2) / np.sqrt(width // n_heads)
    scores[..., :n] += attn_mask + np.where(key_padding_mask, -np.inf, 0)[:, None, None]
    exps = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights = exps / exps.sum(axis=-1, keepdims=True)
    out = (weights @ v).swapaxes(1, 2).reshape(n_items, n, width) @ w_o

    rows = [b.reshape(n_heads, 1, width // n_heads) for b in (bias_k, bias_v)]
    if add_zero_attn:
        rows = [np.concatenate([b, np.zeros_like(b)], axis=1) for b in rows]
    layer = hw.MultiHeadAttention.from_arrays(w_q, w_k, w_v, w_o, n_heads, bias_k=rows[0], bias_v=rows[1])
    seen = masks.causal() & masks.keys(~key_padding_mask)
    assert_close(layer(x, mask=seen), out)
    got, got_weights = layer(x, mask=seen, return_weights=True)
    assert_close(got, out)
    assert_close(got_weights, weights)


GROUPED = layer_of(n_kv_heads=2, learned=3, scale=0.5, transform=transforms.rotary(style="half", base=10.0))


@pytest.mark.parametrize("return_weights", [False, True])
@pytest.mark.parametrize(
    "options",
    [{"mask": np.zeros((5, 5), bool)}, {"bias": np.full((5, 5), -np.inf)}, {"mask": masks.lengths([0, 0])}],
    ids=["mask", "bias", "lengths"],
)
def test_no_mask_and_no_bias_reaches_them(options, return_weights):
    """A query that sees nothing else gives all its weight to them; as a call without keys does."""
    alone = GROUPED(X, X[:, :0])
    got = GROUPED(X, **options, return_weights=return_weights)
    if return_weights:
        got, weights = got
        assert (weights[..., :5] == 0).all()
        assert_close(weights.sum(axis=-1), np.ones((2, 4, 5)))
    assert_close(got, alone)
    assert np.abs(alone).max() > 0.1


def test_a_transform_does_not_move_them():
    """Turned by its position 1 as a key is, the learned row would have another score."""
    eye = np.eye(2)
    layer = hw.MultiHeadAttention.from_arrays(
        eye, eye, eye, eye, 1, bias_k=[[[L2, 0.0]]], bias_v=[[[9.0, 9.0]]], scale=1.0
    )
    layer.transform = transforms.rotary(style="half", frequencies=[np.pi / 2])
    _, weights = layer([[1.0, 0.0]], [[0.0, 0.0]], return_weights=True)
    assert_close(weights, [[[1 / 3, 2 / 3]]])


def test_sinks_count_once():
    """Three equal scores of 0 with the sink: a third each."""
    layer = made([[[0.0]]], [[[9.0]]])
    for out in (layer([[0.0]], [[1.0]], sinks=[0.0]), layer.vjp([[0.0]], [[1.0]], sinks=[0.0])[0]):
        assert_close(out, [[2 + 3]])
    assert_close(layer([[0.0]], [[1.0]], sinks=[0.0], return_weights=True)[1], [[[1 / 3, 1 / 3]]])


def test_gradients_of_all_options_at_once():
    bias, sinks, mask = normal(4, 5, 5, seed=3), normal(4, seed=4), normal(2, 1, 5, 5, seed=5) > -1
    mask[0, 0, 2] = False  # sees the learned keys alone

    def f(x, bias, sinks, w_v, bias_k, bias_v):
        layer = copy.copy(GROUPED)
        layer.w_v, layer.bias_k, layer.bias_v = w_v, bias_k, bias_v
        out, vjp = layer.vjp(x, mask=mask, bias=bias, sinks=sinks, softcap=2.0)

        def back(d_out):
            g = vjp(d_out)
            return g.query, g.bias, g.sinks, *(g.weights[name] for name in ("w_v", "bias_k", "bias_v"))

        return out, back

    assert check_vjp(f, (X, bias, sinks, GROUPED.w_v, GROUPED.bias_k, GROUPED.bias_v)) < 1e-8


@pytest.mark.parametrize("size", [-1e3, 1e3])
def test_where_one_side_has_all_the_weight(size):
    """Scores of the learned key 1000 above or below: out, and gradients, are those of one side alone, and finite."""
    layer = made([[[size]]], [[[9.0]]])
    out, vjp = layer.vjp([[1.0]], [[L2]])
    gradients = vjp([[1.0]])
    assert_close(out, [[9.0 if size > 0 else 6 * L2]])
    assert_close(gradients.weights["bias_v"], [[[1.0 if size > 0 else 0.0]]])
    assert_close(gradients.key, [[0.0 if size > 0 else 6.0]])
    assert_close([gradients.query[0, 0], gradients.weights["bias_k"][0, 0, 0]], [0, 0])


def test_nan_behind_a_mask_reaches_nothing():
    key, mask = normal(2, 4, 6, seed=1), masks.lengths([3, 0])
    wanted, wanted_gradients = GROUPED(X, key, mask=mask), GROUPED.vjp(X, key, mask=mask)[1](X)
    key[0, 3], key[1] = np.nan, np.inf
    out, vjp = GROUPED.vjp(X, key, mask=mask)
    for ours in (out, GROUPED(X, key, mask=mask), GROUPED(X, key, mask=mask, return_weights=True)[0]):
        assert_close(ours, wanted)
    gradients = vjp(X)
    assert_close(gradients.query, wanted_gradients.query)
    for name, gradient in gradients.weights.items():
        assert_close(gradient, wanted_gradients.weights[name])


# ------------------------------------------------------------------------------------------- types, bits, a cache
@pytest.mark.parametrize("dtype", ["f2", "f4", ml_dtypes.bfloat16])
@pytest.mark.parametrize("return_weights", [False, True])
def test_results_lie_within_the_bound_of_their_type(dtype, return_weights):
    """8 eps (1 + d |q| |k| scale + log n_k) max|v| of the heads; the projection back is the identity."""
    rng, d = np.random.default_rng(7), 4
    eye = np.eye(2 * d)
    arrays = [x.astype(dtype) for x in (eye, eye[:, :d], eye[:, :d], eye)]
    rows = [(3 * rng.standard_normal((1, 2, d))).astype(dtype) for _ in range(2)]
    layer = hw.MultiHeadAttention.from_arrays(*arrays, 2, bias_k=rows[0], bias_v=rows[1])
    exact = hw.MultiHeadAttention.from_arrays(
        *(x.astype(float) for x in arrays), 2, bias_k=rows[0].astype(float), bias_v=rows[1].astype(float)
    )
    x = (3 * rng.standard_normal((2, 300, 2 * d))).astype(dtype)
    got = layer(x, return_weights=return_weights)
    got = got[0] if return_weights else got
    assert got.dtype == np.dtype(dtype)
    wanted = exact(x.astype(float))
    largest = np.sqrt((x.astype(float) ** 2).sum(axis=-1)).max()
    values = max(np.abs(x.astype(float)).max(), np.abs(rows[1].astype(float)).max())
    allowed = 8 * 2.0**-23 * (1 + d**0.5 * largest**2 + np.log(302)) * values
    rounding = 0 if dtype == "f4" else float(ml_dtypes.finfo(dtype).eps)
    assert (np.abs(got.astype(float) - wanted) <= allowed + rounding * np.abs(wanted)).all()


@pytest.mark.parametrize(("ours", "theirs"), [("f4", "f8"), ("f8", "f4"), ("f4", "f2")])
@pytest.mark.parametrize("return_weights", [False, True])
def test_with_a_cache_of_another_type(ours, theirs, return_weights):
    layer = copy.copy(GROUPED)
    for name in ("w_q", "w_k", "w_v", "w_o", "bias_k", "bias_v"):
        setattr(layer, name, getattr(layer, name).astype(ours))
    cache = hw.KVCache(2, 2, 8, 2, dtype=theirs)
    out = [layer(X[:, at].astype(ours), causal=True, cache=cache, return_weights=return_weights) for at in CHUNKS]
    out = [each[0] for each in out] if return_weights else out
    assert out[0].dtype == np.dtype(ours)
    assert cache.k.shape[2] == 5  # the learned rows are not in it
    coarsest = max(np.finfo(ours).eps, np.finfo(theirs).eps)
    np.testing.assert_allclose(np.concatenate(out, axis=1), GROUPED(X, causal=True), rtol=0, atol=50 * coarsest)


CHUNKS = (slice(0, 3), slice(3, 4), slice(4, 5))


def test_with_a_window_that_has_dropped_keys():
    layer, x, cache = GROUPED, normal(2, 9, 6), hw.KVCache(2, 2, 3, 2, dtype=float, window=2)
    steps = [layer(x[:, [i]], causal=True, cache=cache) for i in range(9)]
    assert_close(np.concatenate(steps, axis=1), layer(x, mask=masks.window(2, 0)))


def test_the_same_bits_for_any_number_of_threads(monkeypatch):
    layer, x, found = layer_of(96, 4, n_kv_heads=2, d_head=24, learned=2), normal(3, 300, 96), []
    for threads in (1, 2, 3):
        monkeypatch.setattr(workers, "default_threads", lambda threads=threads: threads)
        out, vjp = layer.vjp(x, causal=True)
        gradients = vjp(x)
        whole = layer(x, causal=True, return_weights=True)
        found.append([layer(x, causal=True), out, *whole, gradients.query, *gradients.weights.values()])
    for other in found[1:]:
        for ours, first in zip(other, found[0], strict=True):
            np.testing.assert_array_equal(ours, first)


# ------------------------------------------------------------------------------------------- what a layer holds
def test_copies_and_pickles_and_a_vjp_keep_them():
    layer = copy.deepcopy(GROUPED)
    for other in (copy.copy(layer), copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert other.scale == 0.5
        np.testing.assert_array_equal(other(X), layer(X))
    out, vjp = layer.vjp(X)
    before = vjp(X)
    layer.bias_k[...] = layer.bias_v[...] = out[...] = 0
    after = vjp(X)
    for name in ("bias_k", "bias_v", "w_q"):
        np.testing.assert_array_equal(after.weights[name], before.weights[name])


def test_gradients_have_their_types():
    layer = copy.copy(GROUPED)
    layer.bias_k, layer.bias_v = layer.bias_k.astype("f4"), layer.bias_v.astype("f2")
    weights = layer.vjp(X)[1](X).weights
    assert [weights[name].dtype.str[1:] for name in ("bias_k", "bias_v")] == ["f4", "f2"]
    assert weights["bias_k"].shape == (2, 3, 2)


def test_no_rows_at_all_change_nothing():
    layer, plain = copy.copy(GROUPED), copy.copy(GROUPED)
    plain.bias_k = plain.bias_v = None
    layer.bias_k = layer.bias_v = np.zeros((2, 0, 2))
    mask = masks.lengths([3, 0])  # queries of item 1 see nothing
    assert_close(layer(X, mask=mask), plain(X, mask=mask))
    ours, wanted = (each.vjp(X, mask=mask)[1](X) for each in (layer, plain))
    assert_close(ours.query, wanted.query)
    assert ours.weights["bias_k"].shape == (2, 0, 2)


def test_from_arrays_keeps_them_as_they_are_and_summary_prints_them():
    rows, eye = np.ones((1, 3, 2), np.float32), np.eye(4)
    layer = hw.MultiHeadAttention.from_arrays(eye, eye[:, :2], eye[:, :2], eye, 2, bias_k=rows, bias_v=rows, scale=1)
    assert layer.bias_k is rows
    assert repr(layer) == "MultiHeadAttention(d_model=4, n_heads=2, n_kv_heads=1, scale=1.0)"
    assert layer.summary().splitlines() == [
        "MultiHeadAttention: 2 heads of d_head 2, 1 key/value heads, transform None, scale 1.0",
        "w_q     (d_model, H d_head) = (4, 4)  16  float64",
        "w_k     (d_model, G d_head) = (4, 2)   8  float64",
        "w_v     (d_model, G d_head) = (4, 2)   8  float64",
        "w_o     (H d_head, d_model) = (4, 4)  16  float64",
        "bias_k  (G, m, d_head) = (1, 3, 2)     6  float32",
        "bias_v  (G, m, d_head) = (1, 3, 2)     6  float32",
        "60 parameters, 432 bytes",
    ]


def test_a_layer_s_own_scale_and_that_of_a_call():
    layer = layer_of(n_kv_heads=2, scale=0.25)
    assert_right(layer, X, call={}, scale=0.25)
    assert_right(layer, X, call={"scale": 2.0}, scale=2.0)
    assert_right(layer, X, call={"scale": 0}, scale=0.0)
    layer.scale = None
    assert_right(layer, X, call={}, scale=1 / np.sqrt(2))
    layer.scale = 0
    out, vjp = layer.vjp(X)
    assert_close(out, layer(X, scale=0.0))
    assert not vjp(X).weights["w_q"].any()
    assert hw.MultiHeadAttention(6, 3).scale is None
    assert repr(hw.MultiHeadAttention(6, 3, scale=0)) == "MultiHeadAttention(d_model=6, n_heads=3, scale=0.0)"


# ------------------------------------------------------------------------------------------- what is refused
RIGHT = {"w_q": np.ones((6, 8)), "w_k": np.ones((6, 4)), "w_v": np.ones((6, 4)), "w_o": np.ones((8, 6)), "n_heads": 4}
ROWS = np.ones((2, 1, 2))


@pytest.mark.parametrize(
    ("changed", "error", "text"),
    [
        (
            {"bias_k": ROWS},
            ValueError,
            "bias_v: expected an array where bias_k is given, as every key has a value, got",
        ),
        ({"bias_v": ROWS}, ValueError, "bias_k: expected an array where bias_v is given"),
        (
            {"bias_k": ROWS, "bias_v": np.ones((2, 3, 2))},
            ValueError,
            r"bias_v: expected \(G, m, d_head\) = \(2, m, 2\) with m = 1 as in bias_k, got \(2, 3, 2\)",
        ),
        (
            {"bias_k": np.ones((1, 1, 4)), "bias_v": ROWS},
            ValueError,
            r"bias_k: expected \(G, m, d_head\) = \(2, m, 2\), got \(1, 1, 4\); pass bias_k.reshape\(2, 1, 2\)",
        ),
        ({"bias_k": ROWS, "bias_v": np.ones((4, 1, 2))}, ValueError, r"bias_v: expected .* got \(4, 1, 2\)$"),
        ({"bias_k": ROWS, "bias_v": np.ones(2)}, ValueError, r"bias_v: expected .* got \(2,\)$"),
        ({"bias_k": ROWS, "bias_v": "rows"}, TypeError, "bias_v: expected real numbers"),
        ({"scale": np.inf}, ValueError, r"scale: expected None \(1/sqrt\(d_k\)\) or a finite number, got inf"),
        ({"scale": "1"}, TypeError, r"scale: expected None \(1/sqrt\(d_k\)\) or a finite number, got str '1'"),
        ({"scale": True}, TypeError, "scale: expected None"),
    ],
)
def test_from_arrays_refuses(changed, error, text):
    hw.MultiHeadAttention.from_arrays(**RIGHT, bias_k=ROWS, bias_v=ROWS, scale=-1)
    with pytest.raises(error, match=rf"^MultiHeadAttention.from_arrays: {text}"):
        hw.MultiHeadAttention.from_arrays(**RIGHT | changed)


def test_the_constructor_refuses_a_scale_that_is_not_finite():
    with pytest.raises(ValueError, match=r"^MultiHeadAttention: scale: expected None .* got nan"):
        hw.MultiHeadAttention(6, 3, scale=np.nan)


def test_what_was_replaced_is_checked_in_a_call():
    layer = copy.copy(GROUPED)
    layer.bias_k = None
    for function in (layer, layer.vjp):
        with pytest.raises(ValueError, match=r"^MultiHeadAttention.*: bias_k: expected an array where bias_v is given"):
            function(X)
    with pytest.raises(ValueError, match=r"^MultiHeadAttention\.summary: bias_k: expected an array"):
        layer.summary()
    layer = copy.copy(GROUPED)
    layer.scale = np.inf
    with pytest.raises(ValueError, match=r"^MultiHeadAttention: scale: expected None"):
        layer(X)
    layer(X, scale=1.0)
