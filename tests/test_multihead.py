"""The multi-head layer: its pieces, its shapes, its errors and its print."""

import threading

import numpy as np
import pytest

import headwise as hw
from headwise.layers.multihead import merge_heads, split_heads


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape)


# ------------------------------------------------------------------------------------- split and merge
def test_a_head_takes_the_columns_of_every_token():
    x = np.arange(2 * 3 * 10).reshape(2, 3, 10)
    heads = split_heads(x, 5)
    assert heads.shape == (2, 5, 3, 2)
    for head in range(5):
        np.testing.assert_array_equal(heads[:, head], x[:, :, 2 * head : 2 * head + 2])


@pytest.mark.parametrize("shape", [(3, 10), (2, 3, 10), (0, 3, 10), (2, 0, 10), (2, 3, 7, 10)])
def test_merge_undoes_split(shape):
    x = normal(*shape)
    np.testing.assert_array_equal(merge_heads(split_heads(x, 5)), x)


def test_split_is_a_view():
    x = normal(3, 10)
    assert np.shares_memory(split_heads(x, 5), x)


# -------------------------------------------------------------------------------------------- the shapes
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("n_heads", [1, 2, 3, 6])
def test_two_axes_give_two_axes_back(n_heads, causal):
    x, layer = normal(2, 5, 6), hw.MultiHeadSelfAttention(6, n_heads)
    out, weights = layer(x, causal=causal)
    assert out.shape == (2, 5, 6)
    assert weights.shape == (2, n_heads, 5, 5)
    alone, alone_weights = layer(x[1], causal)
    assert alone.shape == (5, 6)
    assert alone_weights.shape == (n_heads, 5, 5)
    np.testing.assert_allclose(alone, out[1], rtol=1e-13, atol=1e-13)
    np.testing.assert_allclose(alone_weights, weights[1], rtol=1e-13, atol=1e-13)
    given = hw.multi_head_attention(x[1], layer.w_q, layer.w_k, layer.w_v, layer.w_o, n_heads, causal)
    np.testing.assert_allclose(given, alone, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("shape", [(0, 5, 6), (2, 0, 6), (0, 6), (1, 1, 6)])
def test_small_and_empty_inputs(shape):
    out, weights = hw.MultiHeadSelfAttention(6, 2)(np.ones(shape), causal=True)
    assert out.shape == shape
    assert weights.shape == (*shape[:-2], 2, shape[-2], shape[-2])


@pytest.mark.parametrize(
    ("x", "w", "result"), [("f4", "f4", "f4"), ("f2", "f2", "f2"), ("f2", "f8", "f8"), ("i8", "f4", "f8")]
)
def test_dtypes(x, w, result):
    weights = [(normal(6, 6, seed=seed) / 3).astype(w) for seed in range(4)]
    given = (4 * normal(2, 5, 6)).astype(x)
    out = hw.multi_head_attention(given, *weights, heads=2, causal=True)
    assert out.dtype == np.dtype(result)
    exact = hw.multi_head_attention(
        given.astype(float), *(weight.astype(float) for weight in weights), heads=2, causal=True
    )
    np.testing.assert_allclose(out.astype(float), exact, rtol=0, atol=np.finfo(result).eps * 30)


def test_lists_are_arrays():
    eye = np.eye(2).tolist()
    np.testing.assert_allclose(
        hw.multi_head_attention([[1, 2], [3, 4]], eye, eye, eye, eye, 2)[0, 0], 1 + 2 / (1 + np.exp(-2))
    )


# -------------------------------------------------------------------------------------------- the errors
@pytest.mark.parametrize(
    ("change", "error", "match"),
    [
        ({"heads": 4}, ValueError, r"^multi_head_attention: heads: expected a number that divides d_model = 6, got 4"),
        ({"heads": 0}, ValueError, r"heads: expected a number of heads of at least 1, got 0"),
        ({"heads": 2.0}, TypeError, r"heads: expected a number of heads, got float 2\.0"),
        ({"heads": True}, TypeError, r"heads: expected a number of heads, got bool True"),
        ({"causal": "yes"}, TypeError, r"causal: expected True or False, got str 'yes'"),
        ({"x": np.ones(6)}, ValueError, r"x: expected \(b, n, d_model\) or \(n, d_model\), got \(6,\)"),
        (
            {"x": np.ones((1, 2, 5, 6))},
            ValueError,
            r"x: expected \(b, n, d_model\) or \(n, d_model\), got \(1, 2, 5, 6\)",
        ),
        ({"w_v": np.ones((6, 5))}, ValueError, r"w_v: expected \(d_model, d_model\) = \(6, 6\) .*, got \(6, 5\)"),
        ({"w_o": np.ones(6)}, ValueError, r"w_o: expected .* got \(6,\)"),
        ({"w_k": np.ones((6, 6), complex)}, TypeError, r"w_k: expected real numbers .* got dtype complex128"),
        ({"x": np.ma.ones((5, 6))}, TypeError, r"x: expected a plain array, got a numpy\.ma masked array"),
        (
            {"w_q": np.ones((2, 2)), "w_k": np.ones((3, 3)), "heads": 5},
            ValueError,
            r"(?s)3 arguments do not fit\n  w_q: .*\n  w_k: .*\n  heads: ",
        ),
    ],
)
def test_errors_of_the_function(change, error, match):
    arguments = {"x": np.ones((2, 5, 6)), **{name: np.eye(6) for name in ("w_q", "w_k", "w_v", "w_o")}, "heads": 2}
    with pytest.raises(error, match=match):
        hw.multi_head_attention(**(arguments | change))


@pytest.mark.parametrize(
    ("arguments", "error", "match"),
    [
        ((6, 4), ValueError, r"^MultiHeadSelfAttention: n_heads: expected a number that divides d_model = 6, got 4"),
        ((6.0, 2), TypeError, r"d_model: expected the width of the tokens, got float 6\.0"),
        ((0, 1), ValueError, r"d_model: expected the width of the tokens of at least 1, got 0"),
        ((6, -2), ValueError, r"n_heads: expected a number of heads of at least 1, got -2"),
        ((6, 2, "0"), TypeError, r"seed: expected a seed \(integer\) or a numpy\.random\.Generator, got str '0'"),
        ((6, 2, -1), ValueError, r"seed: expected a seed .* of at least 0, got -1"),
        ((6, 2, None), TypeError, r"seed: expected a seed .* got NoneType None"),
    ],
)
def test_errors_of_the_class(arguments, error, match):
    with pytest.raises(error, match=match):
        hw.MultiHeadSelfAttention(*arguments)


def test_errors_of_a_call():
    layer = hw.MultiHeadSelfAttention(6, 2)
    with pytest.raises(ValueError, match=r"^MultiHeadSelfAttention: x: expected .* d_model = 6 as .*, got \(3, 5\)$"):
        layer(np.ones((3, 5)))
    with pytest.raises(ValueError, match=r"^MultiHeadSelfAttention\.steps: x: expected"):
        layer.steps(np.ones(6))
    layer.w_o = np.eye(5)
    with pytest.raises(
        ValueError, match=r"w_o: expected \(d_model, d_model\) = \(6, 6\) as x is \(3, 6\), got \(5, 5\)"
    ):
        layer(np.ones((3, 6)))


# --------------------------------------------------------------------------------------------- the steps
def test_steps_are_those_of_the_call():
    x, layer = normal(2, 5, 6), hw.MultiHeadSelfAttention(6, 3)
    steps = layer.steps(x, causal=True)
    out, weights = layer(x, causal=True)
    np.testing.assert_array_equal(steps.out, out)
    np.testing.assert_array_equal(steps.attention.weights, weights)
    np.testing.assert_array_equal(steps.q, x @ layer.w_q)
    np.testing.assert_array_equal(steps.q_heads, split_heads(steps.q, 3))
    np.testing.assert_array_equal(steps.k_heads, split_heads(x @ layer.w_k, 3))
    np.testing.assert_array_equal(steps.v_heads, split_heads(x @ layer.w_v, 3))
    np.testing.assert_array_equal(steps.merged, merge_heads(steps.heads))
    for printed, field in (("scores", "scores"), ("masked", "masked"), ("weights", "weights"), ("heads", "out")):
        assert getattr(steps, printed) is getattr(steps.attention, field)


def test_the_print_names_every_shape():
    layer = hw.MultiHeadSelfAttention(6, 3)
    text = str(layer.steps(normal(2, 5, 6), causal=True))
    names = [
        "x",
        "q",
        "k",
        "v",
        "q_heads",
        "k_heads",
        "v_heads",
        "scores",
        "masked",
        "weights",
        "heads",
        "merged",
        "out",
    ]
    assert [line.split()[0] for line in text.splitlines() if not line.startswith(" ")] == [*names, "numbers:"]
    assert text.endswith("numbers: of the first item and head")
    assert "(B, n, d_model) = (2, 5, 6)" in text
    assert "q_heads  (B, H, n, d_head) = (2, 3, 5, 2)  q split: reshape, then transpose" in text
    assert "(B, H, n, n) = (2, 3, 5, 5)" in text
    assert "-inf above the diagonal" in text
    plain = str(layer.steps(normal(5, 6)))
    assert "(n, d_model) = (5, 6)" in plain
    assert "as scores: no mask" in plain
    assert repr(layer) == "MultiHeadSelfAttention(d_model=6, n_heads=3)"


# --------------------------------------------------------------------------------------------- the state
def test_calling_a_layer_changes_nothing_in_it_and_many_threads_may():
    layer, xs = hw.MultiHeadSelfAttention(6, 2), [normal(2, 1 + seed % 7, 6, seed=seed) for seed in range(40)]
    before = {name: np.copy(value) for name, value in vars(layer).items()}
    expected = [layer(x, causal=True)[0] for x in xs]
    wrong = []

    def work(start):
        mine = range(start, len(xs), 4)
        wrong.extend(i for i in mine if not np.array_equal(layer(xs[i], causal=True)[0], expected[i]))

    threads = [threading.Thread(target=work, args=(start,)) for start in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not wrong
    assert vars(layer).keys() == before.keys()
    assert all(np.array_equal(value, before[name]) for name, value in vars(layer).items())
