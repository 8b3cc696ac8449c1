"""The gradients of the multi-head layer: by differences, by hand, by formulas written out; their types and errors."""

import copy
import pickle
import threading

import ml_dtypes
import numpy as np
import pytest

import headwise as hw
from headwise.layers import multihead
from headwise.testing import check_vjp

NAMES = ("w_q", "w_k", "w_v", "w_o")
BF16 = np.dtype(ml_dtypes.bfloat16)
L2 = np.log(2.0)


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape)


def given(*shape, dtype=float):
    """Tokens and four weights."""
    width = shape[-1]
    arrays = [normal(*shape), *(normal(width, width, seed=seed) / np.sqrt(width) for seed in range(1, 5))]
    return [array.astype(dtype) for array in arrays]


def layer_of(n_heads, *weights):
    layer = hw.MultiHeadSelfAttention(len(weights[0]), n_heads)
    layer.w_q, layer.w_k, layer.w_v, layer.w_o = weights
    return layer


def by_function(n_heads, causal):
    return lambda x, w_q, w_k, w_v, w_o: hw.multi_head_attention_vjp(x, w_q, w_k, w_v, w_o, n_heads, causal)


def by_layer(n_heads, causal):
    return lambda x, w_q, w_k, w_v, w_o: layer_of(n_heads, w_q, w_k, w_v, w_o).vjp(x, causal)


WAYS = pytest.mark.parametrize("way", [by_function, by_layer])


def gradients(way, arrays, d_out, n_heads=2, causal=False):
    """d_x and the gradients of the four weights, in one list."""
    _, vjp = way(n_heads, causal)(*arrays)
    d_x, d_weights = vjp(d_out)
    assert tuple(d_weights) == NAMES
    return [d_x, *d_weights.values()]


# ------------------------------------------------------------------------------------------- the numbers
@WAYS
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    ("shape", "n_heads"), [((5, 6), 3), ((2, 5, 6), 2), ((3, 1, 6), 6), ((1, 7, 6), 1), ((2, 5, 1), 1)]
)
def test_by_differences(way, causal, shape, n_heads):
    assert check_vjp(way(n_heads, causal), given(*shape), tolerance=1e-7) < 1e-9


@WAYS
def test_by_hand(way):
    """Scores ln 2, 0 and 0, 0; weights 2/3, 1/3 and 1/2, 1/2; values 6, 0: out 4, 3."""
    arrays = [np.array([[1.0], [0.0]]), *(np.array([[w]]) for w in (L2, 1.0, 6.0, 1.0))]
    out, _ = way(1, False)(*arrays)
    np.testing.assert_allclose(out, [[4], [3]])
    got = gradients(way, arrays, [[1.0], [0.0]], n_heads=1)
    expected = [[[8 / 3 * L2 + 4], [2 - 4 / 3 * L2]], [[4 / 3]], [[4 / 3 * L2]], [[2 / 3]], [[4]]]
    for gradient, numbers in zip(got, expected, strict=True):
        np.testing.assert_allclose(gradient, numbers, rtol=1e-13)


def plain(x, w_q, w_k, w_v, w_o, d_out, n_heads, causal):
    """One item after the other, one head after the other."""
    totals = [np.zeros_like(array, float) for array in (x, w_q, w_k, w_v, w_o)]
    d_x, d_w_q, d_w_k, d_w_v, d_w_o = totals
    d_head = x.shape[-1] // n_heads
    for item in range(len(x)):
        for h in range(n_heads):
            columns = slice(h * d_head, (h + 1) * d_head)
            q, k, v = (x[item] @ w[:, columns] for w in (w_q, w_k, w_v))
            scores = q @ k.T / np.sqrt(d_head)
            exps = np.exp(scores) * (np.tri(len(scores)) if causal else 1)
            p = exps / exps.sum(axis=1, keepdims=True)
            d_w_o[columns] += (p @ v).T @ d_out[item]
            d_heads = d_out[item] @ w_o[columns].T
            jacobian = np.einsum("ij,jl->ijl", p, np.eye(len(p))) - np.einsum("ij,il->ijl", p, p)
            d_scores = np.einsum("ijl,il->ij", jacobian, d_heads @ v.T) / np.sqrt(d_head)
            for w, d_w, d in ((w_q, d_w_q, d_scores @ k), (w_k, d_w_k, d_scores.T @ q), (w_v, d_w_v, p.T @ d_heads)):
                d_w[:, columns] += x[item].T @ d
                d_x[item] += d @ w[:, columns].T
    return totals


@WAYS
@pytest.mark.parametrize("causal", [False, True])
def test_by_the_formulas_written_out(way, causal):
    arrays, d_out = given(3, 5, 6), normal(3, 5, 6, seed=9)
    out, _ = way(2, causal)(*arrays)
    np.testing.assert_allclose(out, hw.multi_head_attention(*arrays, 2, causal), rtol=1e-12, atol=1e-12)
    for got, expected in zip(gradients(way, arrays, d_out, 2, causal), plain(*arrays, d_out, 2, causal), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-11, atol=1e-11)


@WAYS
def test_gradients_of_weights_are_sums_over_items(way):
    (x, *weights), d_out = given(3, 5, 6), normal(3, 5, 6, seed=9)
    d_x, *whole = gradients(way, [x, *weights], d_out)
    alone = [gradients(way, [x[item], *weights], d_out[item]) for item in range(3)]
    np.testing.assert_allclose(d_x, [each[0] for each in alone], rtol=1e-12, atol=1e-12)
    for i, gradient in enumerate(whole, 1):
        np.testing.assert_allclose(gradient, sum(each[i] for each in alone), rtol=1e-12, atol=1e-12)


@WAYS
def test_causal_tokens_get_nothing_from_the_past(way):
    d_out = np.zeros((5, 6))
    d_out[2] = 1
    d_x = gradients(way, given(5, 6), d_out, causal=True)[0]
    assert (d_x[3:] == 0).all()
    assert (d_x[:3] != 0).all()


# --------------------------------------------------------------------------------------------- the types
@WAYS
@pytest.mark.parametrize(
    ("x", "w", "d", "out", "d_x", "d_w"),
    [
        ("f8", "f8", "f8", "f8", "f8", "f8"),
        ("f4", "f4", "f8", "f4", "f4", "f4"),
        ("f2", "f2", "f4", "f2", "f2", "f2"),
        (BF16, BF16, BF16, BF16, BF16, BF16),
        ("f2", BF16, "f4", "f4", "f2", BF16),
        ("f2", "f8", "f2", "f8", "f2", "f8"),
        ("i8", "f4", "i8", "f8", "f8", "f4"),
        ("?", "f8", "?", "f8", "f8", "f8"),
        (">f4", ">f4", ">f4", "f4", "f4", "f4"),
    ],
)
def test_every_gradient_has_the_float_type_of_its_argument(way, x, w, d, out, d_x, d_w):
    tokens, *weights = given(2, 5, 6)
    arrays = [(3 * tokens).astype(x), *(weight.astype(w) for weight in weights)]
    got_out, _ = way(2, True)(*arrays)
    assert got_out.dtype == np.dtype(out)
    got = gradients(way, arrays, normal(2, 5, 6, seed=9).astype(d), causal=True)
    assert [gradient.dtype for gradient in got] == [np.dtype(d_x), *[np.dtype(d_w)] * 4]
    assert all(gradient.dtype.isnative for gradient in got)


@WAYS
@pytest.mark.parametrize("half", [np.dtype("f2"), BF16])
def test_half_types_are_computed_in_float32(way, half):
    arrays, d_out = given(2, 5, 6, dtype=half), normal(2, 5, 6, seed=9).astype(half)
    single = [array.astype("f4") for array in arrays]
    for got, wide in zip(gradients(way, arrays, d_out), gradients(way, single, d_out.astype("f4")), strict=True):
        np.testing.assert_array_equal(got.astype("f4"), wide.astype(half).astype("f4"))


@WAYS
def test_float32_is_computed_in_float32(way, monkeypatch):
    seen = []

    def spy(*heads, **options):
        seen.extend(array.dtype for array in heads)
        return hw.attention_vjp(*heads, **options)

    monkeypatch.setattr(multihead, "attention_vjp", spy)
    arrays, d_out = given(2, 5, 6, dtype="f4"), normal(2, 5, 6, seed=9)
    got = gradients(way, arrays, d_out)
    assert seen == [np.float32] * 3
    for gradient, exact in zip(got, gradients(way, [array.astype(float) for array in arrays], d_out), strict=True):
        np.testing.assert_allclose(gradient, exact, rtol=0, atol=1e-5)
        assert not np.array_equal(gradient, exact)


@WAYS
@pytest.mark.parametrize("shape", [(0, 5, 6), (2, 0, 6), (0, 6), (0, 0, 6)])
def test_no_tokens_give_empty_and_zero_gradients(way, shape):
    arrays = given(*shape)
    out, _ = way(2, True)(*arrays)
    d_x, *d_weights = gradients(way, arrays, np.ones(shape), causal=True)
    assert out.shape == d_x.shape == shape
    for gradient in d_weights:
        np.testing.assert_array_equal(gradient, np.zeros((6, 6)))


# --------------------------------------------------------------------------------------------- the vjp
@WAYS
def test_it_makes_no_weights_of_attention(way, monkeypatch):
    monkeypatch.setattr(multihead, "attention_steps", None)
    gradients(way, given(5, 6), np.ones((5, 6)))


@WAYS
def test_it_may_be_called_again_and_is_linear(way):
    one, other = normal(2, 5, 6, seed=8), normal(2, 5, 6, seed=9)
    _, vjp = way(3, True)(*given(2, 5, 6))
    (d_x, d_w), (e_x, e_w), (both_x, both_w), (again_x, again_w) = map(vjp, (one, other, one + 2 * other, one))
    np.testing.assert_array_equal(d_x, again_x)
    np.testing.assert_allclose(both_x, d_x + 2 * e_x, rtol=1e-12, atol=1e-12)
    for name in NAMES:
        np.testing.assert_array_equal(d_w[name], again_w[name])
        np.testing.assert_allclose(both_w[name], d_w[name] + 2 * e_w[name], rtol=1e-12, atol=1e-12)


@WAYS
def test_it_belongs_to_the_numbers_of_its_call(way):
    arrays, d_out = given(2, 5, 6), normal(2, 5, 6, seed=9)
    expected = gradients(way, arrays, d_out)
    out, vjp = way(2, False)(*arrays)
    for array in (*arrays, out):  # as a step on the weights in place would
        array -= 1.0
    d_x, d_weights = vjp(d_out)
    for got, right in zip([d_x, *d_weights.values()], expected, strict=True):
        np.testing.assert_array_equal(got, right)


@WAYS
def test_inputs_are_never_written_to(way):
    arrays, d_out = given(2, 5, 6), normal(2, 5, 6, seed=9)
    expected, before = gradients(way, arrays, d_out), [array.copy() for array in (*arrays, d_out)]
    for array in (*arrays, d_out):
        array.flags.writeable = False
    for got, right in zip(gradients(way, arrays, d_out), expected, strict=True):
        np.testing.assert_array_equal(got, right)
    assert all(np.array_equal(array, old) for array, old in zip((*arrays, d_out), before, strict=True))


@WAYS
def test_no_error_state_makes_it_fail(way):
    arrays = [60 * array for array in given(5, 6, dtype="f2")]
    with np.errstate(all="raise"):
        gradients(way, arrays, 60 * normal(5, 6).astype("f8"))
        gradients(way, given(5, 6, dtype="f4"), np.full((5, 6), 1e300))


def test_it_changes_nothing_in_a_layer_and_many_threads_may():
    layer, d_out = hw.MultiHeadSelfAttention(6, 2), normal(2, 7, 6, seed=99)
    xs = [normal(2, 7, 6, seed=seed) for seed in range(16)]
    before = {name: np.copy(value) for name, value in vars(layer).items()}
    expected = [layer.vjp(x, causal=True)[1](d_out)[0] for x in xs]
    wrong = []

    def work(start):
        mine = range(start, len(xs), 4)
        wrong.extend(i for i in mine if not np.array_equal(layer.vjp(xs[i], causal=True)[1](d_out)[0], expected[i]))

    threads = [threading.Thread(target=work, args=(start,)) for start in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert not wrong
    assert vars(layer).keys() == before.keys()
    assert all(np.array_equal(value, before[name]) for name, value in vars(layer).items())


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda layer: pickle.loads(pickle.dumps(layer))])
def test_it_works_on_a_copied_or_pickled_layer(copied):
    layer, x, d_out = hw.MultiHeadSelfAttention(6, 2, seed=3), normal(2, 5, 6), normal(2, 5, 6, seed=9)
    d_x, d_weights = layer.vjp(x)[1](d_out)
    layer_again = copied(layer)
    again_x, again = layer_again.vjp(x)[1](d_out)
    np.testing.assert_array_equal(again_x, d_x)
    assert all(np.array_equal(again[name], d_weights[name]) for name in NAMES)
    pickle.dumps(layer_again)  # still: nothing of the call is kept in it


# -------------------------------------------------------------------------------------------- the errors
@pytest.mark.parametrize(
    ("change", "error", "match"),
    [
        (
            {"heads": 4},
            ValueError,
            r"^multi_head_attention_vjp: heads: expected a number that divides d_model = 6, got 4",
        ),
        ({"causal": 1}, TypeError, r"causal: expected True or False, got int 1"),
        ({"x": np.ones(6)}, ValueError, r"x: expected \(b, n, d_model\) or \(n, d_model\), got \(6,\)"),
        ({"w_v": np.ones((6, 5))}, ValueError, r"w_v: expected \(d_model, d_model\) = \(6, 6\) .*, got \(6, 5\)"),
        ({"w_k": np.ones((6, 6), complex)}, TypeError, r"w_k: expected real numbers .* got dtype complex128"),
    ],
)
def test_errors_of_the_function(change, error, match):
    arguments = {"x": np.ones((2, 5, 6)), **{name: np.eye(6) for name in NAMES}, "heads": 2}
    with pytest.raises(error, match=match):
        hw.multi_head_attention_vjp(**(arguments | change))


def test_errors_of_the_method():
    layer = hw.MultiHeadSelfAttention(6, 2)
    with pytest.raises(
        ValueError, match=r"^MultiHeadSelfAttention\.vjp: x: expected .* d_model = 6 as .*, got \(3, 5\)"
    ):
        layer.vjp(np.ones((3, 5)))
    layer.w_o = np.eye(5)
    with pytest.raises(
        ValueError, match=r"^MultiHeadSelfAttention\.vjp: w_o: expected \(d_model, d_model\) = \(6, 6\)"
    ):
        layer.vjp(np.ones((3, 6)))


@pytest.mark.parametrize(
    ("way", "name"), [(by_function, "multi_head_attention_vjp"), (by_layer, r"MultiHeadSelfAttention\.vjp")]
)
def test_errors_of_d_out_come_before_any_work(way, name, monkeypatch):
    def none(*arrays, **options):
        return np.zeros(arrays[0].shape), lambda d_out: pytest.fail("d_out was used")

    monkeypatch.setattr(multihead, "attention_vjp", none)
    _, vjp = way(2, False)(*given(2, 5, 6))
    _, flat_vjp = way(2, False)(*given(5, 6))
    start = rf"^{name}'s vjp: d_out: expected "
    with pytest.raises(ValueError, match=start + r"\(b, n, d_model\) = \(2, 5, 6\) as out, got \(2, 5, 7\)$"):
        vjp(np.ones((2, 5, 7)))
    with pytest.raises(ValueError, match=start + r".*, got \(5, 6\); pass np\.broadcast_to\(d_out, out\.shape\)$"):
        vjp(np.ones((5, 6)))
    with pytest.raises(ValueError, match=start + r"\(n, d_model\) = \(5, 6\) as out, got \(1, 5, 6\)$"):
        flat_vjp(np.ones((1, 5, 6)))
    with pytest.raises(TypeError, match=start + r"real numbers .*, got dtype complex128; .* pass d_out\.real"):
        vjp(np.ones((2, 5, 6), complex))
    with pytest.raises(TypeError, match=start + r"an array, got None$"):
        vjp(None)
    with pytest.raises(TypeError, match=start + r"an array, got list that NumPy cannot read"):
        vjp([[1.0], [1.0, 2.0]])
