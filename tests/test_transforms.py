"""What stands between projection and attention: rope, norms, one after another; each with its gradients."""

import copy
import pickle

import numpy as np
import pytest
from layer_by_hand import turned

import headwise as hw
from headwise import frequencies, transforms
from headwise.testing import check_vjp


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape)


Q, K = normal(2, 4, 3, 6), normal(2, 2, 5, 6, seed=1)
AT_Q, AT_K = np.array([[0, 1, 2], [7, 8, 9]]), np.arange(5)
W_Q, W_K = np.array([1.0, 2, 0.5, -1, 3, 1]), np.array([2.0, 1, 1, 0, -2, 1])


def normed(x, weight, eps):
    return np.array([x[c] / (sum(x**2) / len(x) + eps) ** 0.5 * weight[c] for c in range(len(x))])


def row_by_row(x, change):
    out = np.zeros(x.shape)
    for place in np.ndindex(x.shape[:-1]):
        out[place] = change(x[place], place)
    return out


# ------------------------------------------------------------------------------------------- the numbers
@pytest.mark.parametrize("style", ["half", "interleaved"])
def test_rotary_turns_pairs_by_their_positions(style):
    q, k = transforms.rotary(style=style, base=100.0)(Q, K, AT_Q, AT_K)
    np.testing.assert_allclose(q, row_by_row(Q, lambda x, at: turned(x, AT_Q[at[0], at[2]], style, 100.0)), rtol=1e-12)
    np.testing.assert_allclose(k, row_by_row(K, lambda x, at: turned(x, at[2], style, 100.0)), rtol=1e-12)


def test_rotary_styles_by_hand():
    """By a quarter turn: the pair (1, 0) becomes (0, 1), the one that does not turn stays."""
    x, quarter = np.array([[[[1.0, 2.0, 0.0, 0.0]]]]), [np.pi / 2, 0.0]
    at = np.array([1])
    half, _ = transforms.rotary(style="half", frequencies=quarter)(x, x, at, at)
    np.testing.assert_allclose(half.ravel(), [0, 2, 1, 0], atol=1e-15)
    interleaved, _ = transforms.rotary(style="interleaved", frequencies=quarter)(x, x, at, at)
    np.testing.assert_allclose(interleaved.ravel(), [-2, 1, 0, 0], atol=1e-15)


def test_rotary_takes_the_options_of_rope():
    known = frequencies.yarn(4, 8.0, 64)
    q, k = transforms.rotary(style="half", dims=4, frequencies=known)(Q, K, AT_Q, AT_K)
    np.testing.assert_array_equal(q, hw.rope(Q, AT_Q, style="half", dims=4, frequencies=known))
    np.testing.assert_array_equal(k, hw.rope(K, AT_K, style="half", dims=4, frequencies=known))
    np.testing.assert_array_equal(q[..., 4:], Q[..., 4:])


def test_frequencies_are_copied():
    angles = np.array([1.0, 2.0, 3.0])
    turn = transforms.rotary(style="half", frequencies=angles)
    before, _ = turn(Q, K, AT_Q, AT_K)
    angles[:] = 0
    np.testing.assert_array_equal(turn(Q, K, AT_Q, AT_K)[0], before)


def test_qk_norm_row_by_row():
    q, k = transforms.qk_norm(W_Q, W_K, eps=0.1)(Q, K, AT_Q, AT_K)
    np.testing.assert_allclose(q, row_by_row(Q, lambda x, _: normed(x, W_Q, 0.1)), rtol=1e-12)
    np.testing.assert_allclose(k, row_by_row(K, lambda x, _: normed(x, W_K, 0.1)), rtol=1e-12)


def test_compose_begins_with_the_first():
    q, k = transforms.compose(transforms.qk_norm(W_Q, W_K), transforms.rotary(style="half"))(Q, K, AT_Q, AT_K)
    np.testing.assert_allclose(
        q, row_by_row(Q, lambda x, at: turned(normed(x, W_Q, 1e-6), AT_Q[at[0], at[2]])), rtol=1e-11, atol=1e-12
    )
    np.testing.assert_allclose(
        k, row_by_row(K, lambda x, at: turned(normed(x, W_K, 1e-6), at[2])), rtol=1e-11, atol=1e-12
    )


def test_compose_of_nothing_changes_nothing():
    q, k = transforms.compose()(Q, K, AT_Q, AT_K)
    assert q is Q
    assert k is K


# ------------------------------------------------------------------------------------------- gradients
ALL = {
    "half": transforms.rotary(style="half"),
    "interleaved, some columns": transforms.rotary(style="interleaved", dims=4, base=7.0),
    "yarn": transforms.rotary(style="half", frequencies=frequencies.yarn(6, 8.0, 64)),
    "norm": transforms.qk_norm(W_Q, W_K, eps=0.01),
    "both": transforms.compose(transforms.qk_norm(W_Q, W_K), transforms.rotary(style="half")),
    "the other way": transforms.compose(transforms.rotary(style="interleaved"), transforms.qk_norm(W_Q, W_K)),
}
EACH = pytest.mark.parametrize("transform", ALL.values(), ids=ALL)


@EACH
def test_gradients_of_q_and_k_by_differences(transform):
    def f(q, k):
        q, k, back = transform.vjp(q, k, AT_Q, AT_K)
        return q, k, lambda d_q, d_k: back(d_q, d_k)[:2]

    assert check_vjp(f, (Q, K)) < 1e-9


def test_gradients_of_the_weights_of_a_norm():
    def f(q, k, q_weight, k_weight):
        made = transforms.compose(transforms.rotary(style="half"), transforms.qk_norm(q_weight, k_weight, eps=0.1))
        q, k, back = made.vjp(q, k, AT_Q, AT_K)

        def vjp(d_q, d_k):
            d_q, d_k, weights = back(d_q, d_k)
            assert list(weights) == ["1.q_weight", "1.k_weight"]
            return d_q, d_k, *weights.values()

        return q, k, vjp

    assert check_vjp(f, (Q, K, W_Q, W_K)) < 1e-9


@EACH
def test_a_vjp_begins_with_what_a_call_gives(transform):
    q, k, _ = transform.vjp(Q, K, AT_Q, AT_K)
    for ours, called in zip((q, k), transform(Q, K, AT_Q, AT_K), strict=True):
        np.testing.assert_allclose(ours, called, rtol=1e-15, atol=1e-15)


# ------------------------------------------------------------------------------------------- the objects
@EACH
def test_calling_changes_nothing_and_copies_compute_the_same(transform):
    q, k = Q.copy(), K.copy()
    q.flags.writeable = k.flags.writeable = False
    before = pickle.dumps(transform)
    out = transform(q, k, AT_Q, AT_K)
    transform.vjp(q, k, AT_Q, AT_K)[2](*out)
    assert pickle.dumps(transform) == before
    for other in (copy.deepcopy(transform), pickle.loads(before)):
        for ours, theirs in zip(out, other(q, k, AT_Q, AT_K), strict=True):
            np.testing.assert_array_equal(ours, theirs)


@EACH
@pytest.mark.parametrize("dtype", ["f4", "f2"])
def test_dtypes(transform, dtype):
    q, k = transform(Q.astype(dtype), K.astype(dtype), AT_Q, AT_K)
    assert q.dtype == k.dtype == np.dtype(dtype)
    for ours, exact in zip((q, k), transform(Q, K, AT_Q, AT_K), strict=True):
        np.testing.assert_allclose(ours.astype(float), exact, rtol=0, atol=40 * np.finfo(dtype).eps)


def test_reprs():
    made = transforms.compose(
        transforms.qk_norm([1.0, 2.0], [1.0, 1.0]),
        transforms.rotary(style="half", dims=4),
        transforms.rotary(style="half", frequencies=[1.0, 0.5]),
    )
    assert repr(made) == (
        "compose(qk_norm([1.0, 2.0], [1.0, 1.0], eps=1e-06), rotary(style='half', base=10000.0, dims=4), "
        "rotary(style='half', frequencies=([1.0, 0.5], 1.0)))"
    )


# ------------------------------------------------------------------------------------------- refusals
@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"style": "neox"}, ValueError, "rotary: style: expected 'half' or 'interleaved', got 'neox'"),
        ({"style": None}, TypeError, "rotary: style: expected 'half' or 'interleaved', got NoneType None"),
        ({"style": "half", "dims": 3}, ValueError, "rotary: dims: expected an even number"),
        ({"style": "half", "base": 0}, ValueError, "rotary: base: expected a finite number above 0, got 0"),
        ({"style": "half", "frequencies": [np.nan]}, ValueError, "rotary: frequencies: expected finite numbers"),
        (
            {"style": "half", "frequencies": [[1.0, 2]]},
            ValueError,
            r"rotary: frequencies: expected \(dims / 2,\) = \(2,\)",
        ),
        ({"style": "half", "frequencies": [1j]}, TypeError, "rotary: frequencies: expected real numbers"),
        ({"style": "half", "dims": 4, "frequencies": [1.0]}, ValueError, r"rotary: frequencies: expected .* = \(2,\)"),
    ],
)
def test_rotary_refuses(options, error, text):
    with pytest.raises(error, match=text):
        transforms.rotary(**options)


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        (([[1.0]], [1.0]), ValueError, r"qk_norm: q_weight: expected \(d_head,\), got \(1, 1\)"),
        (([1.0], None), TypeError, "qk_norm: k_weight: expected an array, got None"),
        (([1.0], [1.0], -1), ValueError, "qk_norm: eps: expected a finite number of at least 0, got -1"),
        (([1.0], [1.0], "1"), TypeError, "qk_norm: eps: expected a finite number"),
    ],
)
def test_qk_norm_refuses(arguments, error, text):
    with pytest.raises(error, match=text):
        transforms.qk_norm(*arguments)


def test_qk_norm_refuses_heads_of_another_width():
    with pytest.raises(ValueError, match=r"qk_norm: q_weight: expected \(d_head,\) = \(6,\), got \(2,\)"):
        transforms.qk_norm([1.0, 1.0], W_K)(Q, K, AT_Q, AT_K)


def test_compose_refuses():
    with pytest.raises(TypeError, match=r"compose: transforms\[1\]: expected a function .*, got int 3"):
        transforms.compose(transforms.rotary(style="half"), 3)
    with pytest.raises(TypeError, match=r"compose: transforms\[0\]: expected one with a method vjp"):
        transforms.compose(lambda q, k, *_: (q, k)).vjp(Q, K, AT_Q, AT_K)
