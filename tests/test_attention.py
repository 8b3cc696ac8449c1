"""The definition's page: what it shows of its steps, and the corners that the tables of DESIGN.md do not name."""

import inspect
import re

import numpy as np
import pytest

import headwise as hw
from headwise import masks
from headwise.core import attention, softmax


def qkv(*lead, n_q=2, n_k=3, d_k=5, d_v=7, seed=0):
    rng = np.random.default_rng(seed)
    return tuple(rng.standard_normal((*lead, *size)) for size in ((n_q, d_k), (n_k, d_k), (n_k, d_v)))


# --------------------------------------------------------------------------------------------- the print
def lines(steps):
    return {line.split()[0]: line for line in str(steps).splitlines() if not line.startswith(" ")}


@pytest.mark.parametrize(
    ("lead", "letters"),
    [
        ((), "(n_q, n_k) = (2, 3)"),
        ((11,), "(H, n_q, n_k) = (11, 2, 3)"),
        ((13, 11), "(B, H, n_q, n_k) = (13, 11, 2, 3)"),
    ],
)
def test_the_print_names_letters_and_shapes(lead, letters):
    shown = lines(hw.attention_steps(*qkv(*lead)))
    names = ["scores", "capped", "biased", "masked", "weights", "out", "lse"]
    assert list(shown) == [*names, *(["numbers:"] if lead else [])]
    assert all(f"{name:8} {letters}  " in shown[name] for name in list(shown)[:5])
    assert letters.replace("n_k", "d_v").replace("3)", "7)") in shown["out"]
    assert letters.replace(", n_k", "").replace(", 3)", "" if lead else ",") in shown["lse"].replace("(2,)", "(2,")
    assert "(..., H, n_q, n_k) = (2, 1, 1, 2, 3)" in str(hw.attention_steps(*qkv(2, 1, 1)))


def test_the_print_says_which_steps_were_not_asked_for():
    shown = lines(hw.attention_steps(*qkv()))
    assert shown["capped"].endswith("as scores: no softcap")
    assert shown["biased"].endswith("as capped: no bias")
    assert shown["masked"].endswith("as biased: no mask")
    asked = lines(hw.attention_steps(*qkv(), causal=True, softcap=3, bias=np.zeros((2, 3))))
    assert "c tanh(scores / c)" in asked["capped"]
    assert "capped + bias" in asked["biased"]
    assert "-inf where masked" in asked["masked"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "rows sum to 1$"),
        (
            {"mask": np.array([[True, True, True], [False, False, False]])},
            "rows sum to 1, or to 0 where no key is seen$",
        ),
        ({"sinks": [50.0]}, r"rows sum to \d\.\d+e-\d+ to \d\.\d+e-\d+, the rest is the sinks'$"),
    ],
)
def test_the_print_says_what_rows_sum_to(options, said):
    assert re.search(said, lines(hw.attention_steps(*qkv(), **options))["weights"])


def test_the_print_of_nan_empty_half_and_large():
    q, k, v = qkv()
    assert "some rows NaN" in str(hw.attention_steps(q * np.nan, k, v))
    assert "no rows" in str(hw.attention_steps(q[:0], k, v))
    assert "(empty)" in str(hw.attention_steps(q[:0], k, v))
    assert "rows sum to 1\n" in str(hw.attention_steps(*(x.astype(np.float16) for x in qkv(n_k=400))))
    assert ", ..., " in str(hw.attention_steps(*qkv(n_q=11, n_k=13)))
    assert "e-11" in str(hw.attention_steps(q, k, v * 1e-10)).split("\nout ")[1].split("\nlse")[0]
    assert max(map(len, str(hw.attention_steps(*qkv(2, 3, n_q=11, n_k=13), causal=True)).splitlines())) <= 90


def test_bias_without_minus_inf_masks_nothing():
    shown = lines(hw.attention_steps(*qkv(), bias=np.ones((2, 3))))
    assert shown["masked"].endswith("as biased: no mask")
    shown = lines(hw.attention_steps(*qkv(), bias=[[0.0, 0.0, -np.inf]]))
    assert shown["masked"].endswith("-inf where masked")


def test_a_print_and_its_repr_are_one():
    q, k, v = qkv()
    assert repr(hw.attention_steps(q, k, v)) == str(hw.attention_steps(q, k, v))


def test_steps_hold_what_the_definition_returns():
    arguments = (*qkv(2, 3), masks.causal())
    steps = hw.attention_steps(*arguments, softcap=2.0)
    out, weights = hw.scaled_dot_product_attention(*arguments, softcap=2.0)
    np.testing.assert_array_equal(steps.out, out)
    np.testing.assert_array_equal(steps.weights, weights)
    assert steps._fields == ("scores", "capped", "biased", "masked", "weights", "out", "lse")


# ------------------------------------------------------------------------------------------- the corners
def test_values_alone_may_have_a_batch():
    q, k, _ = qkv()
    v = np.random.default_rng(1).standard_normal((11, 3, 7))
    out, weights = hw.scaled_dot_product_attention(q, k, v)
    assert weights.shape == (11, 2, 3)
    assert out.shape == (11, 2, 7)
    np.testing.assert_allclose(out[4], hw.scaled_dot_product_attention(q, k, v[4])[0])


def test_a_visible_zero_weight_times_inf_is_the_plain_formula():
    q, k, v = np.ones((1, 1)), np.array([[0.0], [-1e5]]), np.array([[1.0], [np.inf]])
    assert np.isnan(hw.scaled_dot_product_attention(q, k, v)[0]).all()
    assert np.isnan(hw.scaled_dot_product_attention(q, k, v, causal=True)[0]).all()


def test_one_bad_item_leaves_the_others_as_they_are():
    q, k, v = qkv(2, 3, n_q=3)
    clean, _ = hw.scaled_dot_product_attention(q, k, v, causal=True)
    v[1, 2, 2] = np.nan
    out, _ = hw.scaled_dot_product_attention(q, k, v, causal=True)
    np.testing.assert_array_equal(out[0], clean[0])
    np.testing.assert_array_equal(out[1, :2], clean[1, :2])
    np.testing.assert_array_equal(out[1, 2, :2], clean[1, 2, :2])
    assert np.isnan(out[1, 2, 2]).all()


def test_grouped_heads_with_a_wild_value_behind_a_mask():
    q, _, _ = qkv(2, 6, n_q=3)
    _, k, v = qkv(2, 2, n_q=3)
    v[1, 1, 2, 0] = np.inf
    out, _ = hw.scaled_dot_product_attention(q, k, v, causal=True)
    assert np.isfinite(np.delete(out.ravel(), np.flatnonzero(~np.isfinite(out)))).all()
    np.testing.assert_array_equal(np.argwhere(~np.isfinite(out)), [[1, h, 2, 0] for h in (3, 4, 5)])


def test_bias_of_every_broadcast_shape():
    q, k, v = qkv(2, 3)
    for shape in [(), (3,), (2, 1), (1, 1, 1), (3, 1, 3), (2, 1, 2, 3), (2, 3, 2, 3)]:
        bias = np.random.default_rng(1).standard_normal(shape)
        steps = hw.attention_steps(q, k, v, bias=bias)
        np.testing.assert_array_equal(steps.biased, steps.scores + bias)


def test_alibi_with_causal_equals_its_dense_bias():
    q, k, v = qkv(2, 4)
    bias = hw.alibi(hw.alibi_slopes(4))
    out, _ = hw.scaled_dot_product_attention(q, k, v, causal=True, bias=bias)
    dense, _ = hw.scaled_dot_product_attention(q, k, v, causal=True, bias=bias.dense((2, 4, 2, 3)))
    np.testing.assert_array_equal(out, dense)


# For each: q, k and their scale where the scores are moderate and one way to get there is not.
SCALES = [
    pytest.param(np.float32, 1e30, 1e30, 1e-58, id="q k overflows, scale below float32"),
    pytest.param(np.float32, 1e25, 1e20, 1e-17, id="q k overflows"),
    pytest.param(np.float32, 1e25, 1e-35, 1e15, id="q scale overflows"),
    pytest.param(np.float32, 1e-6, 1e38, 1.2e-38, id="q scale is subnormal"),
    pytest.param(np.float32, 1e-21, 1e-21, 3e38, id="q k is subnormal"),
    pytest.param(np.float32, 1e-25, 1e-15, 1e40, id="scale above float32"),
    pytest.param(np.float64, 1e200, 1e150, 1e-300, id="float64, q k overflows"),
    pytest.param(np.float64, 1e200, 1e-300, 1e200, id="float64, q scale overflows"),
]


@pytest.mark.parametrize(("dtype", "q_size", "k_size", "scale"), SCALES)
@pytest.mark.parametrize("sign", [1, -1])
def test_a_scale_of_any_size_gives_the_scores(dtype, q_size, k_size, scale, sign):
    q, k, v = (x.astype(dtype) for x in qkv())
    q, k = q * dtype(q_size), k * dtype(k_size)
    scores = hw.attention_steps(q, k, v, scale=sign * scale).scores
    wide = np.longdouble if np.finfo(np.longdouble).maxexp > 1024 else np.float64
    with np.errstate(all="ignore"):
        exact = np.einsum("id,jd->ij", q.astype(wide), k.astype(wide)) * wide(sign * scale)
    assert scores.dtype == dtype
    if np.isfinite(exact).all():  # where long double is no wider, float64 cannot be checked this way
        np.testing.assert_allclose(scores.astype(wide), exact, rtol=100 * np.finfo(dtype).eps)
    assert np.isfinite(scores).all()


@pytest.mark.parametrize(
    ("options", "match"),
    [
        (
            {"mask": masks.causal},
            r"mask: expected a bool .*, got function .*; call it: mask=masks\.causal\(\.\.\.\)",
        ),
        ({"mask": hw.Mask}, r"mask: expected a bool array or a Mask, got type .*; pass a bool array, or a mask"),
        ({"mask": [masks.causal()]}, r"mask: expected .*, got list \[causal\(\)\]; masks are combined by & and \|"),
        ({"mask": np.array([[0, 0, -np.inf]])}, r"got dtype float64; it holds -inf, .* pass bias=mask"),
        (
            {"bias": hw.alibi},
            r"bias: expected a float .*, got function .*; pass a float array or hw\.alibi\(slopes\)",
        ),
        ({"bias": masks.causal()}, r"bias: expected a bias, got the mask causal\(\); pass it as mask="),
    ],
)
def test_remedies_fit_the_mistake(options, match):
    with pytest.raises(TypeError, match=match):
        hw.scaled_dot_product_attention(*qkv(), **options)


@pytest.mark.parametrize(
    ("shapes", "match"),
    [
        (((2, 5), (3, 5), (7, 3)), r"v: .*; v comes as \(n_k, d_v\), not transposed: pass np\.swapaxes\(v, -1, -2\)"),
        (((2, 6, 8, 5), (2, 11, 4, 5), (2, 11, 4, 5)), r"if yours are \(B, n, H, d\), pass np\.swapaxes\(q, 1, 2\)"),
        (((2, 5, 3), (3, 7, 3), (3, 7, 2)), r"k and v: expected a first axis of 2 as in q, or 1, got k .*\(3, 7, 2\)$"),
    ],
)
def test_remedies_fit_the_shapes(shapes, match):
    with pytest.raises(ValueError, match=match):
        hw.scaled_dot_product_attention(*map(np.ones, shapes))


def test_strong_sinks_are_not_taken_for_missing_keys():
    assert "the rest is the sinks'" in str(hw.attention_steps(*qkv(), sinks=[1e3]))
    assert "where no key is seen" in str(hw.attention_steps(*qkv(n_q=4), causal=True))


@pytest.mark.parametrize("sink", [np.nan, np.inf])
def test_sinks_are_numbers(sink):
    with pytest.raises(ValueError, match=rf"sinks: expected numbers that are finite in float64, or -inf, got {sink}"):
        hw.scaled_dot_product_attention(*qkv(), sinks=[sink])


def test_the_print_is_its_own_whatever_the_callers_options():
    expected = str(hw.attention_steps(*qkv()))
    with np.printoptions(linewidth=400, sign="+", formatter={"all": lambda x: "?"}, precision=1, threshold=2):
        assert str(hw.attention_steps(*qkv())) == expected


# ------------------------------------------------------------------------------------------- the page
def test_the_arithmetic_stays_one_page():
    pieces = (attention._attention, attention._per_head, attention._visible, softmax.weighted_sum)
    assert sum(len(inspect.getsource(piece).splitlines()) for piece in pieces) <= 75


def test_every_step_says_its_shape():
    source = inspect.getsource(attention.AttentionSteps)
    for field in attention.AttentionSteps._fields:
        assert re.search(rf"^    {field}: Array  # \(\.\.\., H, n_q", source, re.M)
