"""The gradients of the layer of attention: by differences, by hand; their types and errors."""

import copy

import numpy as np
import pytest
from layer_by_hand import (
    ASYMMETRIC,
    EACH,
    LAYERS,
    MASK,
    X,
    assert_close,
    layer_of,
    names_of,
    normal,
)

import headwise as hw
from headwise import masks, transforms
from headwise.testing import check_vjp

L2 = np.log(2.0)


def with_weights(layer, names):
    """The layer with other weights, by name."""

    def made(*weights):
        other = copy.copy(layer)
        for name, weight in zip(names, weights, strict=True):
            setattr(other, name, weight)
        return other

    return made


def check(layer, *tokens, **options):
    """Differences of tokens and weights, all at once."""
    names = names_of(layer)
    made = with_weights(layer, names)

    def f(*args):
        given, weights = args[: len(tokens)], args[len(tokens) :]
        out, vjp = made(*weights).vjp(*given, **options)

        def back(d_out):
            gradients = vjp(d_out)
            assert list(gradients.weights) == names
            inputs = [x for x in gradients[:3] if x is not None]
            assert len(inputs) == len(tokens)
            return *inputs, *gradients.weights.values()

        return out, back

    assert check_vjp(f, (*tokens, *(getattr(layer, name) for name in names))) < 1e-8
    assert_close(layer.vjp(*tokens, **options)[0], layer(*tokens, **options))


@EACH
@pytest.mark.parametrize(
    "options", [{}, {"causal": True}, {"mask": MASK, "softcap": 3.0, "scale": 0.4}], ids=["", "causal", "mask"]
)
def test_gradients_of_self_attention(layer, options):
    check(layer, X, **options)


@EACH
def test_gradients_of_cross_attention(layer):
    query, key, value = normal(2, 3, 6), normal(2, 5, 6, seed=1), normal(2, 5, 6, seed=2)
    check(layer, query, key)
    check(layer, query, key, value, causal=True)
    check(layer, query[0], key[0], value[0])


def test_gradients_of_keys_and_values_of_other_widths():
    check(ASYMMETRIC, normal(2, 3, 6), normal(2, 4, 5, seed=1), normal(2, 4, 3, seed=2))


def test_gradients_through_a_transform_and_of_its_weights():
    both = transforms.compose(
        transforms.qk_norm([1.0, 2, 0.5, 1], [1.0, -1, 1, 2]), transforms.rotary(style="half", base=10.0)
    )
    layer = layer_of(n_kv_heads=2, d_head=4, use_bias=True, transform=both)
    check(layer, X, causal=True)

    def f(q_weight, k_weight):
        layer.transform = transforms.compose(transforms.qk_norm(q_weight, k_weight), both.parts[1])
        out, vjp = layer.vjp(X)

        def back(d_out):
            gradients = vjp(d_out).transform
            assert list(gradients) == ["0.q_weight", "0.k_weight"]
            return tuple(gradients.values())

        return out, back

    assert check_vjp(f, (normal(4), normal(4, seed=1))) < 1e-8


def test_gradients_of_bias_and_sinks():
    layer, bias, sinks = LAYERS["grouped"], normal(4, 1, 5, seed=3), normal(4, seed=4)

    def f(bias, sinks):
        out, vjp = layer.vjp(X, bias=bias, sinks=sinks)
        return out, lambda d_out: vjp(d_out)[-2:]

    assert check_vjp(f, (bias, sinks)) < 1e-8
    alone = layer.vjp(X, bias=hw.alibi([1.0, 2, 3, 4]))[1](X)
    assert alone.bias is None
    assert alone.sinks is None


@pytest.mark.parametrize("transform", [None, transforms.qk_norm([1.0, 2], [2.0, 1]), transforms.rotary(style="half")])
def test_nan_behind_a_mask_reaches_no_gradient(transform):
    layer, key, mask = layer_of(use_bias=True, transform=transform), normal(2, 4, 6, seed=1), masks.lengths([3, 4])
    wanted = layer.vjp(X, key, mask=mask)[1](X)
    key[0, 3] = [np.nan, np.inf, 1, 1, 1, 1]
    gradients = layer.vjp(X, key, mask=mask)[1](X)
    assert_close(gradients.query, wanted.query)
    assert_close(gradients.key, wanted.key)
    for name, gradient in (gradients.weights | gradients.transform).items():
        assert_close(gradient, (wanted.weights | wanted.transform)[name])


def test_gradients_by_hand():
    """As in test_scores_by_hand, d_out = (1, 0): the formulas of the plain layer."""
    layer = hw.MultiHeadAttention.from_arrays([[L2]], [[1.0]], [[6.0]], [[1.0]], 1, b_o=[0.0], b_v=[0.0])
    gradients = layer.vjp([[1.0], [0.0]])[1]([[1.0], [0.0]])
    assert_close(gradients.query, [[8 / 3 * L2 + 4], [2 - 4 / 3 * L2]])
    for name, number in {"w_q": 4 / 3, "w_k": 4 / 3 * L2, "w_v": 2 / 3, "w_o": 4.0}.items():
        assert_close(gradients.weights[name], [[number]])
    assert_close(gradients.weights["b_o"], [1])
    assert_close(gradients.weights["b_v"], [1])
    assert gradients.key is None
    assert gradients.value is None


def test_a_vjp_belongs_to_the_arrays_as_they_were():
    layer, x, key = layer_of(use_bias=True), normal(2, 5, 6), normal(2, 5, 6, seed=1)
    mask, bias = MASK.copy(), normal(5, 5, seed=2)
    out, vjp = layer.vjp(x, key, mask=mask, bias=bias)
    before = vjp(out)
    given = out.copy()
    for array in (x, key, mask, bias, out, *(getattr(layer, name) for name in names_of(layer))):
        array[...] = 0
    after = vjp(given)
    assert_close(after.query, before.query)
    assert_close(after.key, before.key)
    assert_close(after.bias, before.bias)
    for name, gradient in before.weights.items():
        assert_close(after.weights[name], gradient)


def test_gradients_have_the_types_of_their_arrays():
    layer = layer_of(use_bias=True)
    layer.w_k, layer.b_v = layer.w_k.astype("f4"), layer.b_v.astype("f2")
    gradients = layer.vjp(X.astype("f4"), X)[1](np.ones((2, 5, 6), "f2"))
    assert gradients.query.dtype == np.float32
    assert gradients.key.dtype == np.float64
    assert {name: x.dtype.str[1:] for name, x in gradients.weights.items() if x.dtype != np.float64} == {
        "w_k": "f4",
        "b_v": "f2",
    }


def test_vjp_refuses():
    layer = layer_of(transform=lambda q, k, *_: (q, k))
    with pytest.raises(TypeError, match=r"^MultiHeadAttention.vjp: transform: expected one with a method vjp"):
        layer.vjp(X)
    _, vjp = LAYERS["plain"].vjp(X)
    with pytest.raises(
        ValueError, match=r"vjp's vjp: d_out: expected \(b, n_q, d_model\) = \(2, 5, 6\) as out, got \(5, 6\)"
    ):
        vjp(X[0])
    _, vjp = LAYERS["plain"].vjp(X[0])
    with pytest.raises(ValueError, match=r"vjp's vjp: d_out: expected \(n_q, d_model\) = \(5, 6\) as out"):
        vjp(X)
