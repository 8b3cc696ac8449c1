"""What the layer of attention refuses, and in which words."""

import numpy as np
import pytest
from layer_by_hand import ASYMMETRIC, LAYERS, X, layer_of

import headwise as hw

L2 = np.log(2.0)


@pytest.mark.parametrize(
    ("arguments", "options", "error", "text"),
    [
        (
            (6, 4),
            {},
            ValueError,
            "n_heads: expected a number that divides d_model = 6, got 4; d_head = d_model / n_heads",
        ),
        ((6, 3), {"n_kv_heads": 2}, ValueError, "n_kv_heads: expected a number that divides n_heads = 3, got 2"),
        ((6, 0), {}, ValueError, "n_heads: expected a number of heads of at least 1, got 0"),
        ((6, 3), {"d_head": 0}, ValueError, "d_head: expected the width of a head of at least 1"),
        ((6.0, 3), {}, TypeError, "d_model: expected the width of the tokens, got float 6.0"),
        ((6, 3), {"d_value": "3"}, TypeError, "d_value: expected"),
        ((6, 3), {"use_bias": 1}, TypeError, "use_bias: expected True or False, got int 1"),
        ((6, 3), {"transform": "rope"}, TypeError, "transform: expected None or a function"),
        ((6, 3), {"seed": -1}, ValueError, "seed: expected"),
    ],
)
def test_the_constructor_refuses(arguments, options, error, text):
    with pytest.raises(error, match=f"^MultiHeadAttention: {text}"):
        hw.MultiHeadAttention(*arguments, **options)


def test_from_arrays_names_everything_that_does_not_fit():
    with pytest.raises(ValueError, match="5 arguments do not fit") as caught:
        hw.MultiHeadAttention.from_arrays(
            np.ones((6, 8)),
            np.ones((6, 4)),
            np.ones((6, 8)),
            np.ones((6, 8)),
            4,
            b_q=np.ones(4),
            b_k=np.ones((1, 4)),
            b_o=[1],
        )
    turned = "x @ w has w as (d_in, d_out), PyTorch the transpose"
    assert str(caught.value).splitlines() == [
        "MultiHeadAttention.from_arrays: 5 arguments do not fit",
        "  w_v: expected (d_model, G d_head) = (6, 4), got (6, 8)",
        f"  w_o: expected (H d_head, d_model) = (8, 6), got (6, 8); {turned}: pass w_o.T",
        "  b_q: expected (H d_head,) = (8,), got (4,)",
        "  b_k: expected (G d_head,) = (4,), got (1, 4)",
        "  b_o: expected (d_model,) = (6,), got (1,)",
    ]


@pytest.mark.parametrize(
    ("changed", "error", "text"),
    [
        (
            {"w_q": np.ones((8, 6))},
            ValueError,
            r"w_q: expected \(d_model, H d_head\), with columns that n_heads = 4 divides, got \(8",
        ),
        (
            {"w_k": np.ones((6, 6))},
            ValueError,
            "w_k: expected .* with d_head = 2 as w_q has it, and G dividing n_heads = 4",
        ),
        ({"w_k": np.ones((6, 1))}, ValueError, "w_k: expected"),
        ({"n_kv_heads": 4}, ValueError, r"w_k: expected \(d_model, G d_head\) = \(6, 8\), got \(6, 4\)"),
        ({"n_kv_heads": 3}, ValueError, "n_kv_heads: expected a number that divides n_heads = 4, got 3"),
        ({"n_heads": 0}, ValueError, "n_heads: expected a number of heads"),
        ({"w_v": np.ones(6)}, ValueError, r"w_v: expected \(d_in, d_out\), got \(6,\)"),
        ({"w_o": None}, TypeError, "w_o: expected an array, got None"),
        ({"w_o": np.ones((8, 6), complex)}, TypeError, "w_o: expected real numbers"),
        ({"b_q": "b"}, TypeError, "b_q: expected real numbers"),
        ({"transform": 1}, TypeError, "transform: expected None or a function"),
    ],
)
def test_from_arrays_refuses(changed, error, text):
    right = {
        "w_q": np.ones((6, 8)),
        "w_k": np.ones((6, 4)),
        "w_v": np.ones((6, 4)),
        "w_o": np.ones((8, 6)),
        "n_heads": 4,
    }
    assert hw.MultiHeadAttention.from_arrays(**right).n_kv_heads == 2
    with pytest.raises(error, match=rf"MultiHeadAttention.from_arrays: .*{text}|\n  {text}"):
        hw.MultiHeadAttention.from_arrays(**right | changed)


def of_pytorch(d_model=64, n_heads=8, n_kv_heads=8, d_head=16, d_key=None):
    """Weights as a model of PyTorch holds them, (d_out, d_in)."""
    whole, grouped = n_heads * d_head, n_kv_heads * d_head
    shapes = (whole, d_model), (grouped, d_key or d_model), (grouped, d_model), (d_model, whole)
    return [np.zeros(shape) for shape in shapes]


ALL_TRANSPOSED = "these fit transposed: pass w_q.T, w_k.T, w_v.T and w_o.T; PyTorch stores (d_out, d_in)"


@pytest.mark.parametrize(
    ("sizes", "options", "lines"),
    [
        (
            {"n_kv_heads": 2},
            {"n_kv_heads": 2},
            [
                f"  w_k: expected (d_key, G d_head) = (32, 16), got (32, 64); {ALL_TRANSPOSED}",
                "  w_v: expected (d_value, G d_head) = (32, 16), got (32, 64)",
            ],
        ),
        (
            {},
            {"d_model": 64},
            [
                f"  w_q: expected (d_model, H d_head) = (64, 64), got (128, 64); {ALL_TRANSPOSED}",
                "  w_o: expected (H d_head, d_model) = (64, 64), got (64, 128)",
            ],
        ),
        (
            {},
            {"d_head": 16},
            [
                f"  w_q: expected (d_model, H d_head) = (128, 128), got (128, 64); {ALL_TRANSPOSED}",
                "  w_o: expected (H d_head, d_model) = (128, 128), got (64, 128)",
            ],
        ),
        (
            {},
            {"d_head": 16, "d_model": 64},  # each alone of the other's shape: still all of them
            [
                f"  w_q: expected (d_model, H d_head) = (64, 128), got (128, 64); {ALL_TRANSPOSED}",
                "  w_o: expected (H d_head, d_model) = (128, 64), got (64, 128)",
            ],
        ),
        ({}, {"b_q": np.zeros(128)}, [f"b_q: expected (H d_head,) = (64,), got (128,); {ALL_TRANSPOSED}"]),
        (
            {"d_model": 60},
            {},
            [
                "w_q: expected (d_model, H d_head), with columns that n_heads = 8 divides, got (128, 60); "
                + ALL_TRANSPOSED
            ],
        ),
    ],
    ids=["grouped heads", "d_model", "d_head", "both", "a bias", "columns"],
)
def test_weights_that_all_fit_transposed_are_said_to(sizes, options, lines):
    weights = of_pytorch(**sizes)
    layer = hw.MultiHeadAttention.from_arrays(*(w.T for w in weights), 8, **options)
    assert (layer.w_q.shape, layer.d_head) == (weights[0].T.shape, 16)
    with pytest.raises(ValueError, match=r"^MultiHeadAttention\.from_arrays: ") as caught:
        hw.MultiHeadAttention.from_arrays(*weights, 8, **options)
    said = str(caught.value).removeprefix("MultiHeadAttention.from_arrays: ").splitlines()
    assert said[-len(lines) :] == lines
    assert len(said) == len(lines) + (len(lines) > 1)


def test_weights_that_do_not_all_fit_transposed_are_not_said_to():
    for weights, options in ((of_pytorch(d_head=15), {"d_head": 16}), (of_pytorch(), {"d_model": 62})):
        with pytest.raises(ValueError, match="w_q: expected") as caught:
            hw.MultiHeadAttention.from_arrays(*weights, 8, **options)
        assert "these fit" not in str(caught.value)


def test_without_widths_the_weights_alone_say():
    layer = hw.MultiHeadAttention.from_arrays(*of_pytorch(), 8)
    assert (layer.d_model, layer.d_head) == (128, 8)


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"d_model": 0}, ValueError, "d_model: expected the width of the tokens of at least 1, got 0$"),
        ({"d_model": "64"}, TypeError, "d_model: expected the width of the tokens, got str '64'$"),
        ({"d_head": 0}, ValueError, "d_head: expected the width of a head of at least 1, got 0$"),
        ({"d_head": 2.0}, TypeError, "d_head: expected the width of a head, got float 2.0$"),
    ],
)
def test_widths_of_from_arrays_are_numbers(options, error, text):
    with pytest.raises(error, match=f"^MultiHeadAttention.from_arrays: {text}"):
        hw.MultiHeadAttention.from_arrays(*of_pytorch(), 8, **options)


def test_gradients_take_no_cache_and_say_why():
    assert "There is no ``cache``" in hw.MultiHeadAttention.vjp.__doc__
    with pytest.raises(TypeError, match="cache"):
        LAYERS["plain"].vjp(X, cache=None)


@pytest.mark.parametrize("method", ["__call__", "vjp"])
@pytest.mark.parametrize(
    ("tokens", "options", "error", "text"),
    [
        (
            [np.ones((5, 7))],
            {},
            ValueError,
            r"query: expected \(b, n, d_model\) or \(n, d_model\) with d_model = 6, got \(5, 7\)",
        ),
        ([np.ones(6)], {}, ValueError, r"query: expected .* got \(6,\)"),
        ([None], {}, TypeError, "query: expected an array, got None"),
        ([X, np.ones((2, 3, 5))], {}, ValueError, r"key: expected .* with d_key = 6, got \(2, 3, 5\)"),
        ([X, X[0]], {}, ValueError, r"key: expected the batch axis of query \(2, 5, 6\): \(2,\), got \(5, 6\)"),
        ([X, X[:1]], {}, ValueError, r"key: expected the batch axis of query"),
        ([X, hw.masks.causal()], {}, TypeError, "key: expected real numbers, .*, got a mask; pass it as mask="),
        ([X, np.ones((5, 5), bool)], {}, TypeError, "key: expected real numbers, .*, got a mask; pass it as mask="),
        (
            [X, X, np.ones((5, 5), bool)],
            {},
            TypeError,
            "value: expected real numbers, .*; pass it as mask=",
        ),
        ([X, np.zeros((5, 5))], {}, ValueError, r"key: .* got \(5, 5\); pass what is to be added .* as bias="),
        ([X, X, X[:, 1:]], {}, ValueError, r"value: expected \(..., n_k, d_value\) with n_k = 5 as in key"),
        ([X, None, X], {}, ValueError, "key: expected an array where value is given, got None"),
        (
            [X],
            {"mask": np.ones((5, 4), bool)},
            ValueError,
            r"mask: expected a shape that broadcasts to .* = \(2, 4, 5, 5\)",
        ),
        ([X], {"mask": np.ones((5, 5))}, TypeError, "mask: expected bool, True = may attend, got dtype float64"),
        ([X], {"bias": np.ones((3, 5, 5))}, ValueError, "bias: expected a shape that broadcasts"),
        ([X], {"sinks": [1.0]}, ValueError, r"sinks: expected one number per head, shape \(H,\) = \(4,\)"),
        ([X], {"scale": np.inf}, ValueError, "scale: expected None"),
        ([X], {"softcap": 0}, ValueError, "softcap: expected None"),
        ([X], {"causal": None}, TypeError, "causal: expected True or False"),
    ],
)
def test_a_call_refuses(method, tokens, options, error, text):
    function = "MultiHeadAttention" if method == "__call__" else "MultiHeadAttention.vjp"
    with pytest.raises(error, match=f"^{function}: {text}"):
        getattr(LAYERS["plain"], method)(*tokens, **options)


def test_return_weights_is_a_flag():
    with pytest.raises(TypeError, match=r"^MultiHeadAttention: return_weights: expected True or False, got int 1"):
        LAYERS["plain"](X, return_weights=1)


def test_widths_that_differ_ask_for_what_was_left_out():
    with pytest.raises(
        ValueError, match="key: expected key and value of their own, as d_model, d_key, d_value = 6, 5, 3"
    ):
        ASYMMETRIC(X)
    with pytest.raises(ValueError, match=r"value: expected an array, as d_value = 3 and d_key = 5 differ, got None"):
        ASYMMETRIC(X, np.ones((2, 4, 5)))


def test_a_weight_that_was_replaced_by_another_shape():
    layer = layer_of()
    layer.w_q, layer.b_o = np.ones((8, 6)), np.ones(5)
    with pytest.raises(ValueError, match=r"2 arguments do not fit\n  w_q: .* pass w_q\.T\n  b_o: "):
        layer(X)
    with pytest.raises(ValueError, match=r"^MultiHeadAttention\.summary: 2 arguments do not fit"):
        layer.summary()
