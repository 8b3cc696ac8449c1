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


# --------------------------------------------------------------------- squares that a float type does not hold
AT = np.arange(1)
FAR = [
    ("f4", [1e30, 1e-30, 3e38, 1e-20, 1e-45]),
    ("f8", [1e300, 1e-300, 1.7e308, 1e-160, 5e-324]),
    ("f2", [6e4, 6e-8]),
]
SIZES = [(dtype, size) for dtype, sizes in FAR for size in sizes]


def norm_of(rows, dtype, eps=0.0):
    x = np.array(rows, dtype)[None, None]
    out, _, back = transforms.qk_norm([1.0, 1.0], [1.0, 1.0], eps=eps).vjp(x, x, AT, AT)
    called, _ = transforms.qk_norm([1.0, 1.0], [1.0, 1.0], eps=eps)(x, x, AT, AT)
    np.testing.assert_array_equal(called, out)
    assert out.dtype == x.dtype
    return out[0, 0], lambda d_out: back(np.array(d_out, dtype)[None, None], x)[0][0, 0]


@pytest.mark.parametrize(("dtype", "size"), SIZES)
def test_a_norm_of_any_size(dtype, size):
    out, _ = norm_of([[size, size], [1.0, 7.0], [-size, 0.0]], dtype)
    np.testing.assert_allclose(out[0], [1, 1], rtol=2 * np.finfo(dtype).eps)
    np.testing.assert_allclose(out[2], [-(2**0.5), 0], rtol=2 * np.finfo(dtype).eps)
    np.testing.assert_array_equal(out[1], norm_of([[1.0, 7.0]], dtype)[0][0])  # the bits are a row's own


@pytest.mark.parametrize(
    ("dtype", "size"), [("f4", 1e30), ("f4", 1e-30), ("f4", 3e38), ("f8", 1e300), ("f8", 1e-300), ("f8", 1.7e308)]
)
def test_gradients_of_a_norm_of_any_size(dtype, size):
    """The gradient of a row times s is that of the row, over s: by hand of (1, 3), whose mean square is 5."""
    size = float(np.array(size, dtype)) / 3
    _, back = norm_of([[size, 3 * size], [1.0, 3.0]], dtype)
    by_hand = (np.array([1.0, 0.0]) - np.array([1.0, 3.0]) * 1 / 10) / np.sqrt(5)
    d_x = back([[1.0, 0.0], [1.0, 0.0]])
    np.testing.assert_allclose(d_x[1], by_hand, rtol=1e-6)
    np.testing.assert_allclose(d_x[0].astype(float), by_hand / size, rtol=1e-6)
    np.testing.assert_array_equal(d_x[1], norm_of([[1.0, 3.0]], dtype)[1]([[1.0, 0.0]])[0])


@pytest.mark.parametrize(
    ("dtype", "size", "eps"),
    [
        ("f4", 1e-30, 1e-6),
        ("f4", 1e-25, 1e-50),
        ("f4", 1e-23, 1e-45),
        ("f4", 1e-38, 1e-60),
        ("f4", 1e30, 1e60),
        ("f8", 1e-160, 1e-320),
        ("f8", 1e-300, 1e-310),
        ("f8", 1e160, 1e308),
        ("f8", 5e-324, 1e-310),
    ],
)
def test_eps_counts_as_much_beside_squares_of_any_size(dtype, size, eps):
    size = float(np.array(size, dtype))
    ratio = np.sqrt(eps) / size
    out, back = norm_of([[size, size]], dtype, eps)
    np.testing.assert_allclose(out[0].astype(float), 1 / np.hypot(1, ratio), rtol=1e-6)
    along = np.array([0.5, 0.5]) * np.hypot(1, ratio) ** -2
    by_hand = (np.array([1.0, 0.0]) - along) / np.hypot(1, ratio) / size
    np.testing.assert_allclose(back([[1.0, 0.0]])[0].astype(float), by_hand, rtol=0, atol=1e-6 * by_hand[0])


def test_rows_that_have_no_norm_stay_without_one():
    for dtype in ("f4", "f8"):
        out, back = norm_of([[0.0, 0.0], [np.inf, 1.0], [np.nan, 1.0], [3.0, 3.0]], dtype)
        np.testing.assert_array_equal(out, [[np.nan] * 2, [np.nan, 0], [np.nan] * 2, [1, 1]])
        d_x = back([[0.0, 0.0], [0.0, 0.0], [0.0, 0.0], [1.0, 0.0]])
        np.testing.assert_array_equal(d_x[:3], np.zeros((3, 2)))
        np.testing.assert_allclose(d_x[3], [1 / 6, -1 / 6], rtol=1e-6)
        np.testing.assert_array_equal(norm_of([[0.0, 0.0]], dtype, 1e-6)[0], [[0.0, 0.0]])


def test_usual_rows_are_not_computed_again(monkeypatch):
    monkeypatch.setattr(transforms._Norm, "_scaled", None)
    norm_of([[1.0, 2.0], [1e-15, 1e15]], "f4")
    norm_of([[0.0, 0.0]], "f4", 1e-6)


def test_a_weight_beyond_the_type_of_heads_warns_of_nothing():
    x = np.ones((1, 1, 1, 2), np.float32)
    out, _, _ = transforms.qk_norm([1e300, 1.0], [1.0, 1.0]).vjp(x, x, AT, AT)
    assert out[0, 0, 0, 0] == np.inf


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
        transforms.rotary(style="half", frequencies=frequencies.yarn(64, 4.0, 4096)),
    )
    assert repr(made) == (
        "compose(qk_norm([1.0, 2.0], [1.0, 1.0], eps=1e-06), rotary(style='half', base=10000.0, dims=4), "
        "rotary(style='half', frequencies=<2 pairs: 1 to 0.5>), "
        "rotary(style='half', frequencies=<32 pairs: 1 to 3.33e-05, times 1.1386>))"
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
        (
            {"style": "half", "frequencies": [[1], [2, 3]]},
            TypeError,
            "rotary: frequencies: expected an array, got list",
        ),
        (
            {"style": "half", "frequencies": frequencies.Frequencies([1.0], "a")},
            TypeError,
            r"rotary: frequencies\.magnitude: expected a finite number, got str 'a'",
        ),
        (
            {"style": "half", "frequencies": frequencies.Frequencies([1.0], 10**400)},
            ValueError,
            r"rotary: frequencies\.magnitude: expected a finite number, got an integer beyond",
        ),
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
        (([1.0], [1.0], 10**400), ValueError, "qk_norm: eps: expected a finite number of at least 0, got an integer"),
        (([[1], [2, 3]], [1.0]), TypeError, "qk_norm: q_weight: expected an array, got list that NumPy cannot read"),
    ],
)
def test_qk_norm_refuses(arguments, error, text):
    with pytest.raises(error, match=text):
        transforms.qk_norm(*arguments)


def test_qk_norm_refuses_heads_of_another_width():
    with pytest.raises(ValueError, match=r"qk_norm: q_weight: expected \(d_head,\) = \(6,\), got \(2,\)"):
        transforms.qk_norm([1.0, 1.0], W_K)(Q, K, AT_Q, AT_K)


@pytest.mark.parametrize(
    ("heads", "text"),
    [
        ([[1.0], [2.0, 3.0]], "expected an array, got list that NumPy cannot read"),
        (None, "expected an array, got None"),
        ("heads", "expected real numbers"),
        (np.ones((2, 4, 3, 6), complex), "expected real numbers"),
        ([[10**400] * 6], "expected real numbers"),
    ],
    ids=["ragged", "None", "text", "complex", "huge"],
)
def test_qk_norm_refuses_what_are_no_heads(heads, text):
    norm = transforms.qk_norm(W_Q, W_K)
    for call in (norm, norm.vjp):
        with pytest.raises(TypeError, match=f"qk_norm: q: {text}"):
            call(heads, K, AT_Q, AT_K)
        with pytest.raises(TypeError, match=f"qk_norm: k: {text}"):
            call(Q, heads, AT_Q, AT_K)
    _, _, back = norm.vjp(Q, K, AT_Q, AT_K)
    with pytest.raises(TypeError, match=f"qk_norm's vjp: d_q: {text}"):
        back(heads, K)


def test_the_gradient_of_a_norm_belongs_to_the_call():
    _, _, back = transforms.qk_norm(W_Q, W_K).vjp(Q, K, AT_Q, AT_K)
    with pytest.raises(ValueError, match=r"qk_norm's vjp: d_k: expected \(2, 2, 5, 6\) as k, got \(2, 4, 3, 6\)"):
        back(Q, Q)


def test_compose_refuses():
    with pytest.raises(TypeError, match=r"compose: transforms\[1\]: expected a function .*, got int 3"):
        transforms.compose(transforms.rotary(style="half"), 3)
    with pytest.raises(TypeError, match=r"compose: transforms\[0\]: expected one with a method vjp"):
        transforms.compose(lambda q, k, *_: (q, k)).vjp(Q, K, AT_Q, AT_K)
