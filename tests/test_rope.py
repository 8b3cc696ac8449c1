"""Rope: pairs turned by hand, styles, widths, positions of items, stretched frequencies, gradients, refusals."""

import math
import re

import ml_dtypes
import numpy as np
import pytest

import headwise as hw
from headwise import frequencies
from headwise.testing import check_vjp

STYLES = ("half", "interleaved")


def pairs_of(dims, style):
    half = dims // 2
    return [(i, i + half) if style == "half" else (2 * i, 2 * i + 1) for i in range(half)]


def by_hand(x, positions, style, dims, angles, magnitude=1.0):
    """One row after the other, one pair after the other, with Python's own cos and sin."""
    out, positions = np.array(x, np.float64), np.asarray(positions)
    for at in np.ndindex(x.shape[:-1]):
        for (a, b), angle in zip(pairs_of(dims, style), angles, strict=True):
            turn = float(positions[at]) * angle
            c, s = magnitude * math.cos(turn), magnitude * math.sin(turn)
            out[(*at, a)], out[(*at, b)] = x[(*at, a)] * c - x[(*at, b)] * s, x[(*at, b)] * c + x[(*at, a)] * s
    return out


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("dims", [None, 0, 2, 6])
@pytest.mark.parametrize("lead", [(), (3,), (2, 3), (2, 1, 3)])
def test_pairs_turn_by_their_angle(style, dims, lead):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((*lead, 5, 8))
    batch = lead[:-1] if len(lead) > 1 else lead
    positions = rng.integers(0, 100, (*batch, 5))
    width = 8 if dims is None else dims
    angles = [50.0 ** (-2 * i / width) for i in range(width // 2)]
    spread = positions[..., None, :] if len(lead) > 1 else positions
    wanted = by_hand(x, np.broadcast_to(spread, x.shape[:-1]), style, width, angles)
    got = hw.rope(x, positions, style=style, dims=dims, base=50.0)
    np.testing.assert_allclose(got, wanted, rtol=0, atol=1e-12)
    np.testing.assert_array_equal(got[..., width:], x[..., width:])
    same = hw.rope(x, positions[(0,) * len(batch)], style=style, dims=dims, base=50.0)
    first = (0,) * len(batch)
    np.testing.assert_array_equal(same[first], got[first])


@pytest.mark.parametrize("style", STYLES)
def test_a_product_depends_on_the_distance_alone(style):
    rng = np.random.default_rng(1)
    q, k = rng.standard_normal((1, 16)), rng.standard_normal((1, 16))

    def product(m, n):
        return (hw.rope(q, [m], style=style) @ hw.rope(k, [n], style=style).T).item()

    assert product(7, 3) == pytest.approx(product(1004, 1000), abs=1e-12)
    assert product(0, 0) == pytest.approx((q @ k.T).item(), abs=1e-12)
    assert abs(product(7, 3) - product(3, 7)) > 1e-3


def test_far_positions_are_exact_to_float32():
    x = np.eye(2, dtype=np.float32)[:1]
    for position in (1_000_000, 16_777_217):  # the second is no float32
        got = hw.rope(x, [position], style="half")
        assert got.dtype == np.float32
        np.testing.assert_allclose(got[0], [math.cos(position), math.sin(position)], rtol=0, atol=1e-7)


@pytest.mark.parametrize("style", STYLES)
def test_weights_change_their_style_by_a_permutation(style):
    rng = np.random.default_rng(2)
    other = STYLES[1 - STYLES.index(style)]
    n_heads, d_head, dims = 3, 10, 6
    x, w = rng.standard_normal((4, 7)), rng.standard_normal((7, n_heads * d_head))
    order = hw.rope_permutation(d_head, to=style, n_heads=n_heads, dims=dims)
    assert sorted(order) == list(range(n_heads * d_head))

    def turned(w, style):
        heads = np.swapaxes((x @ w).reshape(4, n_heads, d_head), 0, 1)
        return hw.rope(heads, np.arange(4), style=style, dims=dims)

    within = hw.rope_permutation(d_head, to=style, dims=dims)
    np.testing.assert_allclose(turned(w[:, order], style), turned(w, other)[..., within], rtol=0, atol=1e-14)
    back = hw.rope_permutation(d_head, to=other, n_heads=n_heads, dims=dims)
    np.testing.assert_array_equal(w[:, order][:, back], w)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32, np.float64, np.int32, bool])
def test_the_result_has_the_float_type_of_x(dtype):
    x = np.array([[1, 0, 1, 1]], dtype)
    out = hw.rope(x, [3], style="half")
    assert out.dtype == (dtype if np.dtype(dtype).kind in "fV" else np.float64)
    exact = by_hand(x.astype(np.float64), [3], "half", 4, [1.0, 0.01])
    assert np.abs(out.astype(np.float64) - exact).max() < 0.01


def test_inputs_are_not_written_to_and_need_not_be_contiguous():
    x = np.asfortranarray(np.random.default_rng(3).standard_normal((6, 4)))[::2]
    x.flags.writeable = False
    before = x.copy()
    np.testing.assert_array_equal(hw.rope(x, [0, 5, 9], style="half"), hw.rope(before, [0, 5, 9], style="half"))
    np.testing.assert_array_equal(x, before)
    assert hw.rope(np.zeros((2, 0, 4)), [], style="half").shape == (2, 0, 4)


def test_infinite_numbers_warn_of_nothing():
    assert np.isnan(hw.rope([[np.inf, 1.0]], [0], style="half")).any()


# ------------------------------------------------------------------------------------------- gradients
@pytest.mark.parametrize("style", STYLES)
def test_the_gradient_is_the_turn_backwards(style):
    rng = np.random.default_rng(4)
    x = rng.standard_normal((2, 3, 4, 6))
    stretched = frequencies.yarn(4, 4.0, 64)
    check_vjp(lambda x: hw.rope_vjp(x, [[1, 5, 9, 2], [0, 0, 3, 4]], style=style, dims=4, frequencies=stretched), [x])
    out, vjp = hw.rope_vjp(x.astype(np.float32), np.arange(4), style=style)
    assert vjp(out).dtype == np.float32
    np.testing.assert_array_equal(out, hw.rope(x.astype(np.float32), np.arange(4), style=style))


def test_the_gradient_belongs_to_the_call():
    _, vjp = hw.rope_vjp(np.ones((2, 4)), np.array([0, 1]), style="half")
    with pytest.raises(
        ValueError, match=r"rope_vjp's vjp: d_out: expected \(\.\.\., n, d\) = \(2, 4\) as out, got \(4,\)"
    ):
        vjp(np.ones(4))


# ------------------------------------------------------------------------------------------- frequencies
def rotations(dims, base):
    return [base ** (-2 * i / dims) for i in range(dims // 2)]


def test_plain_linear_and_ntk():
    np.testing.assert_allclose(frequencies.plain(64).angles, rotations(64, 1e4), rtol=1e-14)
    np.testing.assert_allclose(frequencies.linear(64, 4.0).angles, [a / 4 for a in rotations(64, 1e4)], rtol=1e-14)
    np.testing.assert_allclose(frequencies.ntk(64, 4.0).angles, rotations(64, 1e4 * 4 ** (64 / 62)), rtol=1e-14)
    assert frequencies.ntk(64, 4.0).angles[0] == 1
    np.testing.assert_allclose(frequencies.ntk(64, 4.0).angles[-1], rotations(64, 1e4)[-1] / 4, rtol=1e-12)


def test_dynamic_ntk_begins_beyond_the_trained_length():
    short = frequencies.ntk(64, 2.0, length=100, trained_length=2048)
    np.testing.assert_allclose(short.angles, rotations(64, 1e4), rtol=1e-14)
    long = frequencies.ntk(64, 2.0, length=4096, trained_length=2048)
    np.testing.assert_allclose(long.angles, rotations(64, 1e4 * 3 ** (64 / 62)), rtol=1e-14)


def test_llama3_by_its_three_cases():
    wanted = []
    for angle in rotations(128, 5e5):
        wavelength = 2 * math.pi / angle
        mix = (8192 / wavelength - 1) / 3
        slow, fast = wavelength > 8192, wavelength < 2048
        wanted.append(angle / 8 if slow else angle if fast else (1 - mix) * angle / 8 + mix * angle)
    np.testing.assert_allclose(frequencies.llama3(128).angles, wanted, rtol=1e-12)
    assert frequencies.llama3(128).magnitude == 1


def test_yarn_keeps_fast_pairs_and_stretches_slow_ones():
    plain, given = frequencies.plain(128).angles, frequencies.yarn(128, 8.0, 4096)
    turns = 4096 * plain / (2 * math.pi)
    np.testing.assert_allclose(given.angles[turns > 40], plain[turns > 40], rtol=1e-14)
    np.testing.assert_allclose(given.angles[turns < 0.8], plain[turns < 0.8] / 8, rtol=1e-14)
    between = (turns < 30) & (turns > 1.1)
    assert ((given.angles[between] < plain[between]) & (given.angles[between] > plain[between] / 8)).all()
    assert given.magnitude == pytest.approx(0.1 * math.log(8) + 1)
    assert frequencies.yarn(128, 8.0, 4096, magnitude=0.5).magnitude == 0.5


def test_magnitude_multiplies_what_turns():
    x, known = np.ones((3, 8)), frequencies.yarn(8, 4.0, 64)
    got = hw.rope(x, [0, 1, 2], style="half", frequencies=known)
    np.testing.assert_allclose(got, by_hand(x, [0, 1, 2], "half", 8, known.angles, known.magnitude), rtol=1e-13)
    np.testing.assert_allclose(
        hw.rope(x, [0, 1, 2], style="half", frequencies=known.angles),
        by_hand(x, [0, 1, 2], "half", 8, known.angles),
        rtol=1e-13,
    )


# ------------------------------------------------------------------------------------------- refusals
X = np.ones((2, 3, 4, 6))
THREE = np.array([1.0, 2.0, 3.0])
REFUSED = [
    ({"x": np.ones(4)}, "rope: x: expected (..., n, d), got (4,)"),
    (
        {"x": np.ones((4, 5)), "positions": range(4)},
        "rope: dims: expected an even number, as the width of x = 5 is odd, got None",
    ),
    ({"dims": 3}, "rope: dims: expected an even number, as columns turn in pairs, got 3"),
    ({"dims": 8}, "rope: dims: expected at most the width of x = 6, got 8"),
    ({"style": "neox"}, "rope: style: expected 'half' or 'interleaved', got 'neox'"),
    ({"style": None}, "rope: style: expected 'half' or 'interleaved', got NoneType None"),
    ({"positions": range(5)}, "rope: positions: expected (n,) or (B, n) = (2, 4) as x is (2, 3, 4, 6), got (5,)"),
    ({"positions": np.zeros((3, 4), int)}, "got (3, 4); they hold for items, never for heads"),
    ({"positions": 3}, "rope: positions: expected (n,) or (B, n), got a single number"),
    (
        {"positions": np.zeros(4, np.float32)},
        "expected integers, got dtype float32; a short float does not hold every position",
    ),
    ({"positions": [0, 1, 2, 2**60]}, "rope: positions: expected numbers within 2**53"),
    ({"positions": [0, 1, 2, np.nan]}, "rope: positions: expected numbers within 2**53"),
    ({"positions": None}, "rope: positions: expected an array, got None"),
    ({"base": 0}, "rope: base: expected a finite number above 0, got 0"),
    ({"frequencies": [1.0, 0.1]}, "rope: frequencies: expected (dims / 2,) = (3,), got (2,)"),
    ({"frequencies": [1.0, np.inf, 0]}, "rope: frequencies: expected finite numbers, got NaN or inf"),
    ({"x": [[1, 2], [3]]}, "rope: x: expected an array, got list that NumPy cannot read"),
    ({"positions": [[0, 1], [2]]}, "rope: positions: expected an array, got list that NumPy cannot read"),
    ({"frequencies": [[1], [2, 3]]}, "rope: frequencies: expected an array, got list that NumPy cannot read"),
    ({"base": 10**400}, "rope: base: expected a finite number above 0, got an integer beyond the range of float"),
    ({"dims": 10**400}, "rope: dims: expected an even number of at most 2**62, got one of 1329 bits"),
    *(
        ({"frequencies": frequencies.Frequencies(THREE, magnitude)}, f"rope: frequencies.magnitude: expected {text}")
        for magnitude, text in [
            ("a", "a finite number, got str 'a'"),
            (None, "a finite number, got NoneType None"),
            (1j, "a finite number, got complex 1j"),
            ([1.0], "a finite number, got list [1.0]"),
            (np.ones(3), "a finite number, got ndarray array([1., 1., 1.])"),
            (10**400, "a finite number, got an integer beyond the range of float"),
            (np.nan, "a finite number, got nan"),
        ]
    ),
    ({"frequencies": frequencies.Frequencies("a")}, "rope: frequencies: expected real numbers"),
    (
        {"x": X.astype(np.float32), "frequencies": frequencies.Frequencies(THREE, 1e39)},
        "rope: frequencies.magnitude: expected a number that is finite in float32, got 1e+39",
    ),
    (
        {"positions": [0, 1, 2, -8], "frequencies": [1.0, -1e308, 0.0]},
        "positions and frequencies: expected angles (position times frequency) within float64, got position 8 at 1e+30",
    ),
    (
        {"positions": [0, 2**52], "base": 1e-300, "x": np.ones((2, 128))},
        "rope: positions and base: expected angles (position times frequency) within float64",
    ),
    (
        {"base": 5e-324, "x": np.ones((4, 64))},
        "rope: base: expected a number that gives angles above 0 and finite in float64, got 5e-324: angles",
    ),
]


@pytest.mark.parametrize(
    ("shape", "positions", "swap"),
    [((5, 4, 6), (5,), "0, 1"), ((2, 5, 4, 6), (5,), "1, 2"), ((2, 5, 4, 6), (2, 5), "1, 2")],
)
def test_rows_before_heads_are_recognized(shape, positions, swap):
    x, at = np.zeros(shape), np.zeros(positions, int)
    with pytest.raises(ValueError, match=rf"; rows stand second to last: pass np.swapaxes\(x, {swap}\)$"):
        hw.rope(x, at, style="half")
    assert hw.rope(x.swapaxes(-3, -2), at, style="half").shape == x.swapaxes(-3, -2).shape


@pytest.mark.parametrize(
    ("shape", "positions"), [((5, 6), (4,)), ((5, 4, 6), (3,)), ((5, 4, 6), (2, 5)), ((2, 5, 4, 6), (3, 5))]
)
def test_positions_that_no_order_fits_give_no_order(shape, positions):
    with pytest.raises(ValueError, match=r"positions: .*; they hold for items, never for heads$"):
        hw.rope(np.zeros(shape), np.zeros(positions, int), style="half")


@pytest.mark.parametrize(("changed", "text"), REFUSED, ids=lambda value: str(value)[:40])
def test_what_does_not_fit_is_refused(changed, text):
    given = {"x": X, "positions": range(4), "style": "half", **changed}
    with pytest.raises((ValueError, TypeError), match=re.escape(text)):
        hw.rope(**given)
    with pytest.raises((ValueError, TypeError), match=re.escape(text.replace("rope: ", "rope_vjp: "))):
        hw.rope_vjp(**given)


def test_an_angle_that_float64_just_holds_turns():
    assert np.isfinite(hw.rope(np.ones((1, 2)), [8], style="half", frequencies=[2.0**1020])).all()


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: frequencies.plain(3), "plain: dims: expected an even number"),
        (lambda: frequencies.linear(4, 0), "linear: factor: expected a finite number above 0"),
        (lambda: frequencies.ntk(2, 2.0), "ntk: dims: expected an even number of at least 4, got 2"),
        (lambda: frequencies.ntk(4, 2.0, length=7), "ntk: length, trained_length: expected both or none"),
        (lambda: frequencies.yarn(4, 0.5, 64), "yarn: factor: expected a finite number of at least 1, got 0.5"),
        (lambda: frequencies.yarn(4, 2, 64, fast=1, slow=2), "yarn: fast: expected at least slow = 2, got 1"),
        (lambda: frequencies.llama3(4, high=1), "llama3: high: expected above low = 1, got 1"),
        (
            lambda: hw.rope_permutation(5, to="half"),
            "rope_permutation: dims: expected an even number, as d_head = 5 is odd",
        ),
        (
            lambda: hw.rope_permutation(4, to="gptj"),
            "rope_permutation: to: expected 'half' or 'interleaved', got 'gptj'",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_senseless_frequencies_are_refused(call, text):
    with pytest.raises(ValueError, match=re.escape(text)):
        call()


HELD = "angles above 0 and finite in float64, got "


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: frequencies.plain(64, base=5e-324), f"plain: base: expected a number that gives {HELD}5e-324"),
        (lambda: frequencies.linear(64, 2.0, base=5e-324), "linear: base: expected a number that gives"),
        (lambda: frequencies.linear(4, 1e-320), "linear: base and factor: expected numbers that give"),
        (lambda: frequencies.linear(4, 1e308, base=1e300), f"{HELD}1e+300 and 1e+308: angles from 1e-308 to 0"),
        (
            lambda: frequencies.ntk(4, 1e300),
            f"ntk: base and factor: expected numbers that give {HELD}10000.0 and 1e+300",
        ),
        (lambda: frequencies.ntk(4, 1e-300), f"{HELD}10000.0 and 1e-300: angles from inf to 1"),
        (lambda: frequencies.ntk(4, 2.0, base=1e308), f"{HELD}1e+308 and 2.0: angles from 1 to 0"),
        (
            lambda: frequencies.ntk(4, 1e300, length=9, trained_length=3),
            f"ntk: base, factor, length and trained_length: expected numbers that give {HELD}10000.0, 1e+300, 9 and 3",
        ),
        (lambda: frequencies.yarn(6, 1e300, 64, base=1e300), "yarn: base and factor: expected numbers that give"),
        (lambda: frequencies.llama3(64, base=5e-324), "llama3: base: expected a number that gives"),
        (lambda: frequencies.llama3(6, 1e300, base=1e300), "llama3: base and factor: expected numbers that give"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_frequencies_that_float64_does_not_hold_are_refused(call, text):
    with pytest.raises(ValueError, match=re.escape(text)):
        call()


def test_dynamic_ntk_of_any_factor_begins_at_the_trained_length():
    for factor in (0.1, 3.7, 1e20, 1e300):
        same = frequencies.ntk(64, factor, length=2049, trained_length=2049)
        np.testing.assert_array_equal(same.angles, frequencies.plain(64).angles)


def test_borders_of_yarn_beyond_all_pairs():
    plain = frequencies.plain(8).angles
    every = {"fast": 1e308, "slow": 5e-324}
    ramp = np.array([0, 1, 2, 3]) / 7
    np.testing.assert_allclose(
        frequencies.yarn(8, 4.0, 64, **every).angles, plain * (1 - ramp) + plain / 4 * ramp, rtol=1e-14
    )
    np.testing.assert_array_equal(frequencies.yarn(8, 4.0, 64, fast=5e-324, slow=5e-324).angles, plain)
    stretched = frequencies.yarn(8, 4.0, 64, fast=1e308, slow=1e308).angles
    np.testing.assert_allclose(stretched, [plain[0], *plain[1:] / 4], rtol=1e-14)


def test_borders_of_llama3_beyond_float64():
    fast = frequencies.llama3(6, base=1e-300, trained_length=2**62)  # length times angle overflows
    np.testing.assert_array_equal(fast.angles, frequencies.plain(6, base=1e-300).angles)
    near = frequencies.llama3(6, low=5e-324, high=1e-323)  # above both
    np.testing.assert_array_equal(near.angles, frequencies.plain(6, base=500_000.0).angles)
