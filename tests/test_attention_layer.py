"""The layer of attention: numbers by hand and by loops, options, transforms, types, its state."""

import copy
import pickle
import threading

import ml_dtypes
import numpy as np
import pytest
from layer_by_hand import (
    ASYMMETRIC,
    EACH,
    LAYERS,
    MASK,
    ListCache,
    X,
    assert_close,
    assert_right,
    layer_of,
    names_of,
    normal,
    turned,
)

import headwise as hw
from headwise import masks, transforms
from headwise.core import workers

L2 = np.log(2.0)


# ------------------------------------------------------------------------------------------- the numbers
@EACH
def test_self_attention(layer):
    x = normal(2, 5, 6)
    assert_right(layer, x, call={})
    assert_right(layer, x, call={"causal": True}, sees=lambda b, h, i, j: j <= i)


@EACH
def test_cross_attention(layer):
    query, key, value = normal(2, 3, 6), normal(2, 5, 6, seed=1), normal(2, 5, 6, seed=2)
    assert_right(layer, query, key, call={})
    assert_right(layer, query, key, value, call={})
    assert_right(layer, query, key, value, call={"causal": True}, sees=lambda b, h, i, j: j <= i + 2)


def test_keys_and_values_of_other_widths():
    assert_right(ASYMMETRIC, normal(2, 3, 6), normal(2, 4, 5, seed=1), normal(2, 4, 3, seed=2), call={})


@EACH
@pytest.mark.parametrize("return_weights", [False, True])
def test_without_a_batch_axis(layer, return_weights):
    def out_of(*tokens, **options):
        got = layer(*tokens, return_weights=return_weights, **options)
        return got if return_weights else (got,)

    x, key, mask = normal(2, 5, 6), normal(2, 4, 6, seed=1), normal(2, 4, 5, 5, seed=2) > 0
    for item in range(2):
        for alone, among in zip(out_of(x[item], causal=True), out_of(x, causal=True), strict=True):
            assert alone.shape == among.shape[1:]
            assert_close(alone, among[item])
        for alone, among in zip(out_of(x[item], key[item]), out_of(x, key), strict=True):
            assert_close(alone, among[item])
        for alone, among in zip(out_of(x[item], mask=mask[item]), out_of(x, mask=mask), strict=True):
            assert_close(alone, among[item])


def test_equal_scores_are_a_mean_by_hand():
    eye, none = np.eye(4), np.zeros((4, 4))
    layer = hw.MultiHeadAttention.from_arrays(none, none, eye, eye, 2, b_v=[0, 0, 0, 1.0], b_o=[10.0, 0, 0, 0])
    assert_close(layer([[1.0, 2, 3, 4], [5, 6, 7, 8]]), [[13, 4, 5, 7]] * 2)


def test_query_heads_read_the_key_heads_of_their_group_by_hand():
    """Two key heads with values 1 and 10; of four query heads the first two read the first one."""
    layer = hw.MultiHeadAttention.from_arrays(
        np.zeros((1, 4)), np.zeros((1, 2)), np.array([[1.0, 10.0]]), np.array([[1.0], [2.0], [4.0], [8.0]]), n_heads=4
    )
    assert_close(layer([[1.0]]), [[1 + 2 + 40 + 80]])


def test_scores_by_hand():
    """Scores ln 2, 0 and 0, 0; weights 2/3, 1/3 and 1/2, 1/2; values 6, 0."""
    layer = hw.MultiHeadAttention.from_arrays([[L2]], [[1.0]], [[6.0]], [[1.0]], 1)
    out, weights = layer([[1.0], [0.0]], return_weights=True)
    assert_close(out, [[4], [3]])
    assert_close(weights, [[[2 / 3, 1 / 3], [1 / 2, 1 / 2]]])


def test_with_the_same_seed_it_is_the_plain_layer():
    plain, layer, x = hw.MultiHeadSelfAttention(6, 3, seed=5), hw.MultiHeadAttention(6, 3, seed=5), normal(2, 5, 6)
    for name in ("w_q", "w_k", "w_v", "w_o"):
        np.testing.assert_array_equal(getattr(layer, name), getattr(plain, name))
    out, weights = layer(x, causal=True, return_weights=True)
    wanted, wanted_weights = plain(x, causal=True)
    assert_close(out, wanted)
    assert_close(weights, wanted_weights)


# ------------------------------------------------------------------------------------------- options
@EACH
@pytest.mark.parametrize(
    ("mask", "sees"),
    [
        (MASK, lambda b, h, i, j: MASK[b, h, i, j]),
        (MASK[:, :1], lambda b, h, i, j: MASK[b, 0, i, j]),
        (MASK[0, 0], lambda b, h, i, j: MASK[0, 0, i, j]),
        (MASK[0], lambda b, h, i, j: MASK[0, h, i, j]),
        (MASK[0, 0].tolist(), lambda b, h, i, j: MASK[0, 0, i, j]),
        (masks.window(1, 1), lambda b, h, i, j: abs(i - j) <= 1),
        (masks.lengths([3, 5]), lambda b, h, i, j: j < (3, 5)[b]),
        (masks.keys(MASK[:, 0, 0]), lambda b, h, i, j: MASK[b, 0, 0, j]),
    ],
    ids=lambda x: "" if callable(x) else None,
)
def test_masks(layer, mask, sees):
    assert_right(layer, X, call={"mask": mask}, sees=sees)
    both = {"mask": mask, "causal": True}
    assert_right(layer, X, call=both, sees=lambda b, h, i, j: sees(b, h, i, j) and j <= i)


@EACH
def test_numbers(layer):
    bias, sinks, slopes = normal(2, 4, 5, 5, seed=4), normal(4, seed=5), [0.5, 0.25, 0.125, 1.0]
    assert_right(layer, X, call={"bias": bias}, bias=lambda b, h, i, j: bias[b, h, i, j])
    assert_right(layer, X, call={"bias": bias[0, 0].tolist()}, bias=lambda b, h, i, j: bias[0, 0, i, j])
    assert_right(layer, X, call={"bias": hw.alibi(slopes)}, bias=lambda b, h, i, j: -slopes[h] * abs(i - j))
    assert_right(layer, X, call={"sinks": sinks}, sinks=sinks)
    assert_right(layer, X, call={"scale": -0.3}, scale=-0.3)
    assert_right(layer, X, call={"softcap": 0.7}, softcap=0.7)
    call = {"bias": bias, "sinks": sinks.tolist(), "scale": 2.0, "softcap": 3.0, "mask": MASK}
    wanted = {"sinks": sinks, "scale": 2.0, "softcap": 3.0}
    assert_right(
        layer,
        X,
        call=call,
        **wanted,
        bias=lambda b, h, i, j: bias[b, h, i, j],
        sees=lambda b, h, i, j: MASK[b, h, i, j],
    )


def test_nan_behind_a_mask_stays_there():
    x = X.copy()
    x[0, 3:] = np.nan
    layer, mask = LAYERS["grouped"], masks.lengths([3, 5])
    for out in (layer(x, mask=mask), layer(x, mask=mask, return_weights=True)[0]):
        assert_close(out[0, :3], layer(X, mask=mask)[0, :3])
        assert np.isnan(out[0, 3:]).all()


@pytest.mark.parametrize("shape", [(0, 5, 6), (2, 0, 6), (0, 6), (1, 1, 6)])
def test_small_and_empty_inputs(shape):
    for layer in LAYERS.values():
        out, weights = layer(np.ones(shape), causal=True, return_weights=True)
        assert out.shape == layer(np.ones(shape)).shape == shape
        n_learned = 0 if layer.bias_k is None else layer.bias_k.shape[1]
        assert weights.shape == (*shape[:-2], 4, shape[-2], shape[-2] + n_learned)
    out = LAYERS["biases"](np.ones((3, 6)), np.ones((0, 6)))
    assert_close(out, [LAYERS["biases"].b_o] * 3)


# ------------------------------------------------------------------------------------------- transforms
@pytest.mark.parametrize("style", ["half", "interleaved"])
def test_rope_between_projection_and_attention(style):
    layer = layer_of(n_kv_heads=2, d_head=4, use_bias=True, transform=transforms.rotary(style=style, base=10.0))

    def turn(x, item, place):
        return turned(x, place, style, 10.0)

    key = normal(2, 3, 6, seed=1)
    assert_right(layer, X, call={}, turn_q=turn, turn_k=turn)
    assert_right(layer, X, key, call={}, turn_q=turn, turn_k=turn)


def test_rope_styles_by_hand():
    """Pairs of half: columns 0 and 2. One turns by a quarter a position: the key at 1 goes from column 0 to 2."""
    eye = np.eye(4)
    turn = {style: transforms.rotary(style=style, frequencies=[np.pi / 2, 0.0]) for style in ("half", "interleaved")}
    layer = hw.MultiHeadAttention.from_arrays(eye, eye, eye, eye, 1, transform=turn["half"])
    query, key = np.array([[0.0, 0, 2, 0]]), np.array([[0.0, 0, 0, 0], [L2, 0, 0, 0]])
    assert_close(layer(query, key, return_weights=True)[1], [[[1 / 3, 2 / 3]]])
    layer.transform = turn["interleaved"]
    assert_close(layer(query, key, return_weights=True)[1], [[[1 / 2, 1 / 2]]])
    assert_close(layer(query[:, [0, 2, 1, 3]], key, return_weights=True)[1], [[[1 / 3, 2 / 3]]])


def test_what_a_transform_is_given():
    seen = []

    def note(q, k, q_positions, k_positions):
        seen.append((q.shape, k.shape, q_positions.tolist(), k_positions.tolist()))
        return q, k

    layer = layer_of(n_kv_heads=2, transform=note)
    layer(X)
    layer(X, normal(2, 3, 6))
    layer(X[0])
    cache = ListCache(2, 2, 2)
    layer(X[:, :3], cache=cache)
    cache.truncate([3, 1])
    layer(X[:, 3:], cache=cache)
    assert seen == [
        ((2, 4, 5, 2), (2, 2, 5, 2), [0, 1, 2, 3, 4], [0, 1, 2, 3, 4]),
        ((2, 4, 5, 2), (2, 2, 3, 2), [0, 1, 2, 3, 4], [0, 1, 2]),
        ((1, 4, 5, 2), (1, 2, 5, 2), [0, 1, 2, 3, 4], [0, 1, 2, 3, 4]),
        ((2, 4, 3, 2), (2, 2, 3, 2), [[0, 1, 2]] * 2, [[0, 1, 2]] * 2),
        ((2, 4, 2, 2), (2, 2, 2, 2), [[3, 4], [1, 2]], [[3, 4], [1, 2]]),
    ]


@pytest.mark.parametrize(
    ("transform", "error", "text"),
    [
        (lambda q, k, *_: q, TypeError, r"transform: expected a transform that returns \(q, k\)"),
        (
            lambda q, k, *_: (k, q),
            ValueError,
            r"\(2, 4, 5, 2\) and \(2, 2, 5, 2\), got \(2, 2, 5, 2\) and \(2, 4, 5, 2\)",
        ),
        (lambda q, k, *_: (q * 1j, k), TypeError, "got dtype complex128 and dtype float64"),
    ],
)
def test_a_transform_that_returns_something_else(transform, error, text):
    layer = layer_of(n_kv_heads=2, transform=transform)
    with pytest.raises(error, match=f"^MultiHeadAttention: .*{text}"):
        layer(X)


# ------------------------------------------------------------------------------------------- types, and bits
@pytest.mark.parametrize(
    ("x", "w", "result"),
    [
        ("f4", "f4", "f4"),
        ("f2", "f2", "f2"),
        ("f2", "f8", "f8"),
        ("f4", "f8", "f8"),
        ("i8", "f4", "f8"),
        ("bf", "bf", "bf"),
    ],
)
def test_dtypes(x, w, result):
    x, w, result = (np.dtype(ml_dtypes.bfloat16) if name == "bf" else np.dtype(name) for name in (x, w, result))
    layer, given = layer_of(n_kv_heads=2, use_bias=True), (4 * X).astype(x)
    for name in names_of(layer):
        setattr(layer, name, getattr(layer, name).astype(w))
    exact = copy.copy(layer)
    for name in names_of(layer):
        setattr(exact, name, getattr(layer, name).astype(float))
    out, weights = layer(given, causal=True, return_weights=True)
    assert out.dtype == weights.dtype == layer(given).dtype == layer.vjp(given)[0].dtype == result
    wanted = exact(given.astype(float), causal=True)
    eps = float(ml_dtypes.finfo(result).eps)
    for ours in (out, layer(given, causal=True)):
        np.testing.assert_allclose(ours.astype(float), wanted, rtol=0, atol=eps * 30 * np.abs(wanted).max())


def test_the_same_bits_for_any_number_of_threads(monkeypatch):
    layer, x = hw.MultiHeadAttention(96, 4, n_kv_heads=2, use_bias=True), normal(3, 300, 96)
    found = []
    for threads in (1, 2, 3):
        monkeypatch.setattr(workers, "default_threads", lambda threads=threads: threads)
        out, vjp = layer.vjp(x, causal=True)
        gradients = vjp(x)
        whole, weights = layer(x, causal=True, return_weights=True)
        found.append([layer(x, causal=True), out, whole, weights, gradients.query, *gradients.weights.values()])
    for other in found[1:]:
        for ours, first in zip(other, found[0], strict=True):
            np.testing.assert_array_equal(ours, first)


# ------------------------------------------------------------------------------------------- its state
def test_calling_changes_nothing_and_copies_compute_the_same():
    layer = layer_of(n_kv_heads=2, use_bias=True, transform=transforms.rotary(style="half"))
    for name in names_of(layer):
        getattr(layer, name).flags.writeable = False
    x = X.copy()
    x.flags.writeable = False
    before = pickle.dumps(layer)
    out, vjp = layer.vjp(x)
    vjp(out)
    layer(x, causal=True, return_weights=True)
    assert pickle.dumps(layer) == before
    for other in (copy.deepcopy(layer), copy.copy(layer), pickle.loads(before)):
        np.testing.assert_array_equal(other(x), layer(x))


def test_many_threads_on_one_layer():
    layer, wrong = layer_of(n_kv_heads=2, transform=transforms.rotary(style="half")), []
    xs = [normal(1, 1 + i % 9, 6, seed=i) for i in range(60)]
    wanted = [layer(x, causal=True) for x in xs]

    def work():
        for x, right in zip(xs, wanted, strict=True):
            if not np.array_equal(layer(x, causal=True), right):
                wrong.append(x.shape)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_from_arrays_keeps_arrays_as_they_are():
    w = normal(6, 6)
    layer = hw.MultiHeadAttention.from_arrays(w, w.T, w, w, 3)
    assert layer.w_q is w
    assert np.shares_memory(layer.w_k, w)


def test_biases_may_be_some():
    layer = layer_of(use_bias=True)
    layer.b_k = None
    assert_right(layer, X, call={})
    made = hw.MultiHeadAttention.from_arrays(layer.w_q, layer.w_k, layer.w_v, layer.w_o, 4, b_o=layer.b_o)
    assert made.b_q is None
    assert_right(made, X, call={})


def test_the_caller_s_error_state_does_not_matter():
    with np.errstate(all="raise"):
        layer = LAYERS["biases"]
        out, vjp = layer.vjp(1e200 * X)
        vjp(1e200 * out)
        layer(1e200 * X, return_weights=True)


def test_summary_and_repr():
    layer = hw.MultiHeadAttention(
        6, 4, n_kv_heads=2, d_head=3, d_key=5, use_bias=True, transform=transforms.rotary(style="half", dims=2)
    )
    assert repr(layer) == (
        "MultiHeadAttention(d_model=6, n_heads=4, n_kv_heads=2, d_head=3, d_key=5, use_bias=True, "
        "transform=rotary(style='half', base=10000.0, dims=2))"
    )
    assert layer.summary().splitlines() == [
        f"MultiHeadAttention: 4 heads of d_head 3, 2 key/value heads, transform {layer.transform}",
        "w_q  (d_model, H d_head) = (6, 12)  72  float64",
        "w_k  (d_key, G d_head) = (5, 6)     30  float64",
        "w_v  (d_model, G d_head) = (6, 6)   36  float64",
        "w_o  (H d_head, d_model) = (12, 6)  72  float64",
        "b_q  (H d_head,) = (12,)            12  float64",
        "b_k  (G d_head,) = (6,)              6  float64",
        "b_v  (G d_head,) = (6,)              6  float64",
        "b_o  (d_model,) = (6,)               6  float64",
        "240 parameters, 1,920 bytes",
    ]
    assert repr(hw.MultiHeadAttention(6, 3)) == "MultiHeadAttention(d_model=6, n_heads=3)"
