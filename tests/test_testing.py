"""check_vjp: right gradients pass, each kind of wrong one is named, and where there is no verdict it says so."""

import re
from typing import NamedTuple

import numpy as np
import pytest

import headwise as hw
from headwise.testing import check_vjp

SEEDS = pytest.mark.parametrize("seed", range(10))


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape)


def dense(x, w, b):
    """tanh(x w + b): one argument before, one behind, one stretched."""
    out = np.tanh(x @ w + b)

    def vjp(d_out):
        d_sum = d_out * (1 - out**2)
        return d_sum @ w.T, x.T @ d_sum, d_sum.sum(axis=0)

    return out, vjp


def spoilt(f, i, change):
    """The same function, the gradient of whose argument i is changed."""

    def wrong(x, w, b):
        out, vjp = f(x, w, b)

        def wrong_vjp(d_out):
            gradients = list(vjp(d_out))
            gradients[i] = change(gradients[i])
            return tuple(gradients)

        return out, wrong_vjp

    return wrong


def arguments(n=5, width=4, seed=0):
    return normal(n, width, seed=seed), normal(width, width, seed=seed + 1) / 2, normal(width, seed=seed + 2)


def squared(x):
    return x * x, lambda d_out: 2 * d_out * x


# ------------------------------------------------------------------------------------- right gradients pass
@SEEDS
def test_right_gradients_pass_with_room_to_spare(seed):
    assert check_vjp(dense, arguments(seed=seed), seed=seed) < 1e-10


@pytest.mark.parametrize(
    ("f", "x"),
    [
        (lambda x: (np.log(x), lambda d_out: d_out / x), [1e-12, 3e-12]),
        (lambda x: (np.log(np.abs(x)), lambda d_out: d_out / x), normal(50)),
        (lambda x: (np.sqrt(x), lambda d_out: d_out / np.sqrt(x) / 2), [0.03, 2.0]),
        (lambda x: (np.sin(x + 1e4), lambda d_out: d_out * np.cos(x + 1e4)), normal(5)),
        (lambda x: (np.sin(x), lambda d_out: d_out * np.cos(x)), 1e4 * normal(5)),
        (lambda x: (np.sin(x), lambda d_out: d_out * np.cos(x)), 1e-14 * normal(5)),
        (lambda x: (np.sin(x + 1), lambda d_out: d_out * np.cos(x + 1)), 1e-14 * normal(5)),
        (lambda x: (np.sin(1e5 * x), lambda d_out: 1e5 * d_out * np.cos(1e5 * x)), 1e-5 * normal(5)),
        (lambda x: (np.exp(20 * x), lambda d_out: 20 * d_out * np.exp(20 * x)), normal(5)),
        (lambda x: (1e-200 * x, lambda d_out: 1e-200 * d_out), normal(5)),
        (lambda x: (np.abs(x), lambda d_out: d_out * np.sign(x)), normal(20)),
        (squared, 1e100 * normal(5)),
    ],
)
def test_steps_suit_functions_of_any_scale(f, x):
    assert check_vjp(f, [x]) < 1e-8


def test_a_function_that_does_not_depend_on_an_argument_has_gradient_0():
    def f(x, y):
        return np.tanh(x), lambda d_out: (d_out / np.cosh(x) ** 2, 0 * y)

    assert check_vjp(f, (normal(5), normal(3))) < 1e-10
    assert check_vjp(lambda x: (0 * x, lambda d_out: 0 * d_out), [normal(5)]) == 0
    with pytest.raises(AssertionError, match=r"expected a slope of 0 along .*, got .*, relative error inf above"):
        check_vjp(lambda x: (0 * x, lambda d_out: 1e-30 * d_out), [normal(5)])


@SEEDS
def test_noise_around_a_slope_of_0_is_not_judged(seed):
    """A softmax does not depend on what is added to all scores: its differences are rounding, and so is the sum."""

    def f(x, shift):
        y, vjp = hw.softmax_vjp(x + shift)
        return y, lambda d_y: (vjp(d_y), vjp(d_y).sum())

    assert check_vjp(f, (normal(9, seed=seed), 0.3), seed=seed) < 1e-8
    with pytest.raises(AssertionError, match=r"args\[1\] \(shift\): expected a slope"):
        check_vjp(lambda x, shift: (f(x, shift)[0], lambda d_y: (f(x, shift)[1](d_y)[0], 1e-9)), (normal(9), 0.3))


@pytest.mark.parametrize("shape", [(), (1,), (2, 1, 3)])
def test_any_shape(shape):
    assert check_vjp(squared, [np.full(shape, 0.5)]) < 1e-10
    assert check_vjp(lambda x: (x.sum(), lambda d_out: np.full(shape, d_out)), [np.full(shape, 0.5)]) < 1e-10


def power(n, scale=1.0, factor=1.0):
    return lambda x: ((x / scale) ** n, lambda d_out: factor * n * d_out * (x / scale) ** (n - 1) / scale)


def assert_by_a_thousandth(right, wrong, args):
    assert check_vjp(right, args) < 1e-8
    with pytest.raises(AssertionError, match=r"relative error .*; in every direction it is 1\.001 times"):
        check_vjp(wrong, args)


@pytest.mark.parametrize("x", 10.0 ** -np.arange(0, 100, 6.0))
@pytest.mark.parametrize("n", [1, 2, 3])
def test_arguments_that_are_lost_beside_a_long_step(n, x):
    """x^n at x and (y/x)^n at y = x: steps of 1/64 would differentiate at 0."""
    assert_by_a_thousandth(power(n), power(n, factor=1.001), [x])
    assert_by_a_thousandth(power(n, x), power(n, x, 1.001), [x * normal(4)])


@pytest.mark.parametrize("x", [1e-7, 1e-14, 1e-20, 1e-25])
def test_each_output_has_the_steps_that_suit_it(x):
    """The sine only moves over long steps, the square only over short ones."""

    def f(a, b):
        def inner(y):
            return np.sin(y + 1), (y / x) ** 2, lambda d, e: a * d * np.cos(y + 1) + b * 2 * e * y / x / x

        return inner

    assert check_vjp(f(1, 1), [x * normal(3)]) < 1e-8
    for factors in ((1.001, 1), (1, 1.001)):
        with pytest.raises(AssertionError, match=r"args\[0\] \(y\): expected a slope"):
            check_vjp(f(*factors), [x * normal(3)])


@pytest.mark.parametrize("n", [2, 3, 4, 5])
@pytest.mark.parametrize("x", [0.0, 1e-200])
def test_flat_functions_at_0_have_slope_0(n, x):
    def cubes(x):
        out, vjp = power(n)(x)
        return out, lambda d_out: vjp(d_out) + 1e-6 * d_out

    for point in (x, np.full(5, x)):
        assert check_vjp(power(n), [point]) < 1e-8
        with pytest.raises(AssertionError, match=r"args\[0\] \(x\): expected a slope of"):
            check_vjp(cubes, [point])


def test_steep_functions_keep_their_digits():
    """What a long step moves, far beyond what the slope says, is no measure of it."""

    def f(factor):
        return lambda x: (np.exp(3e3 * x), lambda d_out: factor * 3e3 * d_out * np.exp(3e3 * x))

    assert_by_a_thousandth(f(1), f(1.001), [np.zeros(3)])
    assert_by_a_thousandth(f(1), f(1.001), [1e-12 * normal(3)])


def test_lists_numbers_and_other_floats_are_taken_to_float64():
    seen = []

    def f(x, y, z):
        seen.extend((x.dtype, y.dtype, z.dtype))
        return x * y * z, lambda d_out: ((d_out * y * z).sum(), d_out * x * z, d_out * x * y)

    z = normal(2).astype("f2")
    z.flags.writeable = False
    assert check_vjp(f, [0.5, [1.0, 2.0], z]) < 1e-10
    assert set(seen) == {np.dtype(float)}


def test_f_may_write_to_what_it_is_given():
    def f(x):
        x *= x
        return x, lambda d_out: 2 * d_out * np.sqrt(x)

    x = np.array([1.0, 2.0])
    assert check_vjp(f, [x]) < 1e-10
    assert x.tolist() == [1, 2]


# ------------------------------------------------------------------------------------ what f and vjp return
def test_gradients_may_be_nested_and_named():
    class Gradients(NamedTuple):
        x: object
        w: object
        nothing: object
        b: object

    def named(x, w, b):
        out, vjp = dense(x, w, b)
        return out, lambda d_out: Gradients(*vjp(d_out)[:2], None, vjp(d_out)[2])

    def nested(x, w, b):
        out, vjp = dense(x, w, b)
        return out, lambda d_out: (vjp(d_out)[0], dict(zip("wb", vjp(d_out)[1:], strict=True)))

    for f in (named, nested):
        assert check_vjp(f, arguments()) < 1e-10
    with pytest.raises(AssertionError, match=r"args\[2\] \(b\)"):
        check_vjp(spoilt(named, 3, lambda d: 1.001 * d), arguments())


def test_none_is_not_checked():
    assert check_vjp(spoilt(dense, 1, lambda d: None), arguments()) < 1e-10
    with pytest.raises(ValueError, match=r"vjp: expected the gradient of at least one argument, got None for all"):
        check_vjp(lambda x: (x, lambda d_out: None), [normal(3)])


@pytest.mark.parametrize("factors", [(1, 1), (1.001, 1), (1, 1.001)])
def test_several_outputs_have_a_d_each(factors):
    def f(x):
        total = x.sum(axis=1)
        return x * x, total, lambda d_out, d_total: 2 * factors[0] * d_out * x + factors[1] * d_total[:, None]

    if factors == (1, 1):
        assert check_vjp(f, [normal(3, 5)]) < 1e-10
    else:
        with pytest.raises(AssertionError, match=r"args\[0\] \(x\): expected a slope"):
            check_vjp(f, [normal(3, 5)])


@pytest.mark.parametrize("size", [1e-14, 1e-8, 1.0, 1e8, 1e14])
@pytest.mark.parametrize("factors", [(1, 1, 1), (0, 1, 1), (1, 0, 1), (1, 1, 0), (1, 1.001, 1), (1, 1, -1)])
def test_outputs_of_unlike_sizes_count_alike(factors, size):
    a, b, c = factors

    def f(x):
        def vjp(d_out, d_sine, d_total):
            return a * size * d_out + b * np.cos(x) * d_sine + c * d_total / size

        return size * x, np.sin(x), x.sum() / size, vjp

    if factors == (1, 1, 1):
        assert check_vjp(f, [normal(5)]) < 1e-10
    else:
        with pytest.raises(AssertionError, match=r"args\[0\] \(x\): expected a slope"):
            check_vjp(f, [normal(5)])


def test_outputs_too_far_apart_to_count_alike_are_no_error():
    def f(x):
        return 1e200 * x, 1e-200 * x, lambda d, e: 1e200 * d + 1e-200 * e

    assert check_vjp(f, [normal(5)]) < 1e-10


def test_an_output_beside_others_may_be_empty_or_not_depend_on_the_argument():
    def f(x):
        return x * x, x[:0], 0 * x, np.full(3, 1e8), lambda d_out, *others: 2 * d_out * x + 0 * others[1]

    assert check_vjp(f, [normal(5)]) < 1e-10
    for i in (2, 3):
        with pytest.raises(AssertionError, match=r"args\[0\] \(x\): expected a slope"):
            check_vjp(lambda x, i=i: (*f(x)[:-1], lambda *d: f(x)[-1](*d) + d[i].sum()), [normal(5)])


def test_a_missing_gradient_of_lse_is_found_beside_large_values():
    q, k, v = normal(3, 4), normal(5, 4, seed=1), 1e9 * normal(5, 4, seed=2)

    def f(q, k, v):
        return hw.attention_vjp(q, k, v, return_lse=True)

    def without(q, k, v):
        *results, vjp = f(q, k, v)
        return *results, lambda d_out, d_lse: vjp(d_out, 0 * d_lse)[:3]

    assert check_vjp(f, (q, k, v)) < 1e-8
    with pytest.raises(AssertionError, match=r"args\[0\] \(q\): expected a slope"):
        check_vjp(without, (q, k, v))


def test_outputs_that_stay_infinite_have_no_slope():
    given = []

    def f(x):
        return np.where([True, False], x, -np.inf), lambda d_out: given.append(d_out) or d_out * [1, 0]

    assert check_vjp(f, [normal(2)]) < 1e-10
    assert (np.array(given)[:, 0] != 0).all()
    assert (np.array(given)[:, 1] == 0).all()


# ------------------------------------------------------------------------------------- wrong ones are named
@SEEDS
@pytest.mark.parametrize(("i", "name"), list(enumerate("xwb")))
def test_a_gradient_wrong_by_a_thousandth(i, name, seed):
    text = rf"^check_vjp: args\[{i}\] \({name}\): expected a slope of -?[\d.]+(e-\d+)? along direction \d of 3"
    text += r", by differences of f, got -?[\d.]+.*, relative error [\d.]+e-0[34] above tolerance = 1e-07; "
    with pytest.raises(AssertionError, match=text + r"in every direction it is 1\.001 times what it should be$"):
        check_vjp(spoilt(dense, i, lambda d: 1.001 * d), arguments(seed=seed), seed=seed)


@pytest.mark.parametrize("n", [1, 30, 3000, 300_000])
def test_an_error_of_the_whole_shows_alike_in_few_and_in_many_entries(n):
    with pytest.raises(AssertionError, match=r"relative error (8\.[6-9]e-04|9\.\de-04|1\.0e-03) above"):
        check_vjp(lambda x: (x * x, lambda d_out: 2.002 * d_out * x), [normal(n)])


@SEEDS
def test_an_error_of_one_number(seed):
    """Where noise could take away all of d_out, as it is one number too."""
    with pytest.raises(AssertionError, match=r"relative error 1\.0e-03 above .* it is 1\.001 times"):
        check_vjp(lambda x: ((x * x).sum(), lambda d_out: 2.002 * d_out * x), [normal(3)], seed=seed)


@SEEDS
@pytest.mark.parametrize("i", range(3))
def test_a_sign_error(i, seed):
    with pytest.raises(AssertionError, match=rf"args\[{i}\] .*; in every direction it is -1 times what it should be$"):
        check_vjp(spoilt(dense, i, np.negative), arguments(seed=seed), seed=seed)


@SEEDS
@pytest.mark.parametrize("i", range(3))
def test_zeros(i, seed):
    with pytest.raises(AssertionError, match=rf"args\[{i}\] .*, got 0, relative error .* it is 0 times"):
        check_vjp(spoilt(dense, i, lambda d: 0 * d), arguments(seed=seed), seed=seed)


@SEEDS
@pytest.mark.parametrize("i", range(2))
def test_a_forgotten_transpose(i, seed):
    with pytest.raises(AssertionError, match=rf"args\[{i}\].*expected a slope of .* above tolerance = 1e-07$"):
        check_vjp(spoilt(dense, i, np.transpose), arguments(n=4, seed=seed), seed=seed)
    if i == 0:
        with pytest.raises(
            AssertionError, match=r"a gradient of its shape \(5, 4\), got \(4, 5\); the right numbers in"
        ):
            check_vjp(spoilt(dense, i, np.transpose), arguments(seed=seed), seed=seed)


def test_a_missing_sum_over_a_stretched_axis():
    def f(x, gain):
        return x * gain, lambda d_out: (d_out * gain, d_out * x)

    text = r"^check_vjp: args\[1\] \(gain\): expected a gradient of its shape \(1, 3\), got \(5, 3\); sum over the axes"
    with pytest.raises(AssertionError, match=text + " along which the argument is stretched$"):
        check_vjp(f, (normal(5, 3), normal(1, 3)))
    with pytest.raises(AssertionError, match=r"expected a gradient of its shape \(3,\), got \(5, 3\)"):
        check_vjp(f, (normal(5, 3), normal(3)))
    with pytest.raises(AssertionError, match=r"expected a gradient of its shape \(\), got \(5, 3\); sum over"):
        check_vjp(f, (normal(5, 3), 0.5))
    with pytest.raises(AssertionError, match=r"expected a gradient of its shape \(5, 3\), got \(7,\)$"):
        check_vjp(lambda x: (x, lambda d_out: np.zeros(7)), [normal(5, 3)])


@SEEDS
def test_one_entry_among_few(seed):
    def change(gradient):
        gradient[1, 2] *= 1.001
        return gradient

    with pytest.raises(AssertionError, match=r"args\[1\] \(w\): expected a slope"):
        check_vjp(spoilt(dense, 1, change), arguments(seed=seed), seed=seed)


@pytest.mark.parametrize(("n", "factor", "found"), [(500, 1.001, True), (200_000, 1.001, False), (200_000, -1, True)])
def test_one_entry_among_many_shows_a_share_of_one_in_n(n, factor, found):
    """What the docstring says cannot be seen is not seen, and what it says can is."""
    x = np.full(n, 0.5)

    def f(x):
        def vjp(d_out):
            gradient = 2 * d_out * x
            gradient[7] *= factor
            return gradient

        return x * x, vjp

    if found:
        with pytest.raises(AssertionError, match=r"args\[0\] \(x\): expected a slope"):
            check_vjp(f, [x])
    else:
        assert 0 < check_vjp(f, [x]) < 1e-7


@SEEDS
@pytest.mark.parametrize("n", [1, 5, 500])
@pytest.mark.parametrize(
    "change",
    [
        lambda d: np.clip(d, -1, 1),
        lambda d: np.clip(d, -10, 10),
        lambda d: d * min(1, 30 / np.linalg.norm(d)),
        lambda d: np.where(np.abs(d) < 2e-3, 0, d),
        lambda d: np.round(d, 3),
        np.tanh,
        lambda d: d + 1e-4,
    ],
)
def test_a_vjp_that_is_not_linear(change, n, seed):
    with pytest.raises(AssertionError, match=r"args\[0\] \(x\): expected a slope"):
        check_vjp(lambda x: (1e3 * x, lambda d_out: 1e3 * change(d_out)), [normal(n)], seed=seed)


def test_a_vjp_that_clips_is_told_so():
    with pytest.raises(AssertionError, match=r"; with d_out of about 1 it fits, .* not: vjp must be linear$"):
        check_vjp(lambda x: (x, lambda d_out: np.clip(d_out, -10, 10)), [normal(9)])


@pytest.mark.parametrize("share", [0.5, 1e-3, 1e-6, 1.2e-9, 1e-11])
def test_a_small_error_can_be_read(share):
    """Expected and got differ as they are printed, and so does the factor from 1."""
    with pytest.raises(AssertionError, match="expected a slope") as caught:
        check_vjp(lambda x: (x * x, lambda d: (1 + share) * 2 * d * x), [normal(5)], tolerance=share / 10)
    expected, got = re.search(r"a slope of (\S+) along .* got (\S+), relative", str(caught.value)).groups()
    factor = re.search(r"it is (\S+) times", str(caught.value))[1]
    assert float(got) / float(expected) - 1 == pytest.approx(share, rel=0.2)
    assert float(factor) - 1 == pytest.approx(share, rel=0.05)


def test_gradients_that_are_swapped():
    def f(q, k):
        return q @ k.T, lambda d_out: (d_out.T @ q, d_out @ k)

    with pytest.raises(AssertionError, match=r"args\[0\] \(q\): expected a slope"):
        check_vjp(f, (normal(4, 3), normal(4, 3, seed=1)))


@SEEDS
def test_an_error_at_right_angles(seed):
    """What a turn by 90 degrees adds is 0 along the slope itself: d_out must hold more than that."""
    with pytest.raises(AssertionError, match=r"args\[0\] \(x\): expected a slope"):
        check_vjp(lambda x: (1 * x, lambda d_out: d_out + 0.01 * d_out[::-1] * [1, -1]), [normal(2)], seed=seed)


@pytest.mark.parametrize("size", [1e-14, 1e-5, 1.0, 1e5])
def test_an_error_shows_whatever_the_size_of_the_argument(size):
    def f(x):
        return np.sin(x + 1), lambda d_out: 1.001 * d_out * np.cos(x + 1)

    with pytest.raises(AssertionError, match=r"relative error 9\.\de-04 above .* it is 1\.001 times"):
        check_vjp(f, [size * normal(5)])


def test_a_smaller_tolerance_sees_more():
    def f(x):
        return x * x, lambda d_out: 2 * (1 + 3e-8) * d_out * x

    assert 1e-9 < check_vjp(f, [normal(5)]) < 1e-7
    with pytest.raises(AssertionError, match=r"above tolerance = 1e-10"):
        check_vjp(f, [normal(5)], tolerance=1e-10)


# -------------------------------------------------------------------------------- what is random or keeps state
def test_a_vjp_that_adds_up_over_calls():
    def f(x):
        kept = np.zeros_like(x)

        def vjp(d_out):
            kept[...] += 2 * d_out * x
            return kept.copy()

        return x * x, vjp

    text = r"^check_vjp: args\[0\] \(x\): expected the same gradient when vjp is called again with the same d_out, got "
    with pytest.raises(AssertionError, match=text):
        check_vjp(f, [normal(3)])


def test_a_vjp_that_gives_a_gradient_only_once():
    def f(x):
        kept = [2 * x]
        return x * x, lambda d_out: d_out * kept.pop() if kept else None

    with pytest.raises(AssertionError, match=r"the same gradient when vjp is called again with the same d_out"):
        check_vjp(f, [normal(3)])


def test_a_vjp_that_looks_at_the_last_call_of_f():
    kept = {}

    def f(x):
        kept["x"] = x
        return x * x, lambda d_out: 2 * d_out * kept["x"]

    with pytest.raises(AssertionError, match=r"args\[0\] \(x\): expected a slope"):
        check_vjp(f, [normal(3)])


def test_a_random_f():
    rng = np.random.default_rng(0)

    def f(x):
        keep = rng.random(x.shape) < 0.5
        return x * keep, lambda d_out: d_out * keep

    text = r"^check_vjp: f: expected the same output whenever the arguments are the same, got another one; a random f "
    with pytest.raises(ValueError, match=text + r"gets its seed inside: lambda q: f\(q, rng=0\)$"):
        check_vjp(f, [normal(9)])


def test_sums_in_another_order_are_not_random():
    signs = iter([1, -1] * 1000)

    def f(x):
        return x * x * (1 + next(signs) * 1e-15), lambda d_out: 2 * d_out * x

    assert check_vjp(f, [normal(9)]) < 1e-9


# ------------------------------------------------------------------------------------------- what is not finite
def hidden(bias):
    """exp(bias) over its sum: -inf weighs nothing."""
    exps = np.exp(bias)
    p = exps / exps.sum()
    return p, lambda d_out: p * (d_out - (d_out * p).sum())


def test_entries_of_minus_inf_get_no_direction():
    bias = np.array([0.5, -np.inf, -1.0, -np.inf, 0.0])
    assert check_vjp(hidden, [bias]) < 1e-10
    assert (
        check_vjp(lambda bias: (hidden(bias)[0], lambda d_out: hidden(bias)[1](d_out) + (bias == -np.inf)), [bias])
        < 1e-10
    )
    with pytest.raises(AssertionError, match=r"args\[0\] \(bias\): .* it is 1\.001 times"):
        check_vjp(lambda bias: (hidden(bias)[0], lambda d_out: 1.001 * hidden(bias)[1](d_out)), [bias])


def test_a_gradient_of_nan_beside_minus_inf_is_refused():
    def f(bias):
        p, vjp = hidden(bias)
        with np.errstate(all="ignore"):
            return p, lambda d_out: vjp(d_out) + 0 * np.where(bias == -np.inf, np.nan, 0)

    text = (
        r"args\[0\] \(bias\): expected a gradient of finite numbers, got nan at \[0, 2\], where the argument is -inf; "
    )
    with pytest.raises(AssertionError, match=text + r"what is masked has gradient 0, not 0 \* inf$"):
        check_vjp(f, [np.array([[0.5, 1.0, -np.inf]])])


def test_an_argument_of_minus_inf_alone_is_checked_in_shape_only():
    def f(x, bias):
        out = np.where(bias == -np.inf, 0, x)
        return out, lambda d_out: (0 * d_out, 0 * d_out[:1])

    assert check_vjp(f, (normal(2, 3), np.full((1, 3), -np.inf))) == 0
    with pytest.raises(
        AssertionError, match=r"args\[1\] \(bias\): expected a gradient of its shape \(3,\), got \(1, 3\)"
    ):
        check_vjp(f, (normal(2, 3), np.full(3, -np.inf)))


def test_a_gradient_that_is_not_finite_at_a_number_is_not_called_masked():
    with pytest.raises(AssertionError, match=r"got inf at \[1\], where the argument is 0$"):
        check_vjp(lambda x: (np.sqrt(x), lambda d_out: np.where(x > 0, d_out, np.inf)), [np.array([1.0, 0.0])])


# -------------------------------------------------------------------------------------------------- no verdict
@pytest.mark.parametrize("x", [np.zeros((0, 3)), np.zeros(0), np.full(3, np.nan), np.full((1, 2), -np.inf)])
def test_nothing_to_check(x):
    """Of one argument, of all, of the only one that has a gradient."""
    text = r"^check_vjp: args: expected a finite number to differentiate by, got none in args\[0\] \(x\) of shape "
    text += re.escape(str(x.shape))
    with pytest.raises(ValueError, match=text + "; pass arrays that are neither empty nor all NaN or infinite$"):
        check_vjp(lambda x: (x * 2, lambda d: np.full_like(x, 7)), [x])
    with pytest.raises(ValueError, match=text + r" and args\[1\] \(y\) of shape \(0,\); "):
        check_vjp(lambda x, y: (x * 2, lambda d: (np.zeros_like(x), y)), [x, np.zeros(0)])
    with pytest.raises(ValueError, match=text + "; "):
        check_vjp(lambda x, y: (y, lambda d: (np.zeros_like(x), None)), [x, np.zeros(3)])
    with pytest.raises(AssertionError, match=r"args\[0\] \(x\): expected a gradient of its shape"):
        check_vjp(lambda x: (x * 2, lambda d: np.zeros(7)), [x])


def test_nothing_that_comes_out_is_finite():
    for wild in (np.nan, np.inf, -np.inf):
        with pytest.raises(ValueError, match=r"^check_vjp: out: expected a finite number to differentiate, got 3 that"):
            check_vjp(lambda x, wild=wild: (x + wild, lambda d: 7 * d), [normal(3)])


def test_an_empty_argument_beside_others_is_checked_in_shape():
    def f(x, y):
        return 2 * y, lambda d: (np.zeros((0, 3)), 2 * d)

    assert check_vjp(f, [np.zeros((0, 3)), normal(3)]) < 1e-10
    with pytest.raises(
        AssertionError, match=r"args\[0\] \(x\): expected a gradient of its shape \(3, 0\), got \(0, 3\)"
    ):
        check_vjp(f, [np.zeros((3, 0)), normal(3)])


def test_nothing_that_comes_out_has_gradient_0():
    assert check_vjp(lambda x: (x[:0], x.sum() - np.inf, lambda d, e: 0 * x), [normal(3)]) == 0
    assert check_vjp(lambda x: (x[:0], lambda d: 0 * x), [normal(3)]) == 0
    with pytest.raises(AssertionError, match=r"args\[0\] \(x\): expected a slope of 0"):
        check_vjp(lambda x: (x[:0], lambda d: 0 * x + 1), [normal(3)])


def test_a_function_in_float32_gets_no_verdict_until_the_tolerance_allows_it():
    def f(x, factor=1.0):
        out = np.tanh(x.astype("f4"))
        return out, lambda d_out: factor * d_out * (1 - out**2)

    text = (
        r"^check_vjp: args\[0\] \(x\): expected differences that settle to tolerance / 4 = 2\.5e-08 of the slope, got "
    )
    with pytest.raises(ValueError, match=text + r"\d\.?\d*e-0\d; f must be smooth around args and compute in float64"):
        check_vjp(f, [normal(20)])
    assert check_vjp(f, [normal(20)], tolerance=1e-4) < 1e-4
    with pytest.raises(AssertionError, match=r"in every direction it is 1\.00(1|099\d|100\d) times"):
        check_vjp(lambda x: f(x, 1.001), [normal(20)], tolerance=1e-4)


def test_steps_too_short_to_move_anything_are_no_verdict():
    with pytest.raises(ValueError, match=r"args\[0\] \(x\): expected differences that settle"):
        check_vjp(lambda x: (np.tanh((x + 1).astype("f4")), lambda d_out: d_out), [1e-14 * normal(5)])


@SEEDS
@pytest.mark.parametrize("x", [1e-14, 3e-14])
def test_differences_of_few_roundings_are_no_verdict(x, seed):
    """Two units of the last place over a step, one over half of it: that is not a slope that settles."""
    with pytest.raises(ValueError, match=r"args\[0\] \(x\): expected differences that settle to"):
        check_vjp(lambda x: (np.log(x) + 1e12, lambda d: d / x), [x], seed=seed)


def test_steps_too_short_are_not_said_to_settle():
    """1 - cos(x) near 0 is coarse over long steps, and does not move over short ones."""
    with pytest.raises(ValueError, match=r"expected differences that settle to .*, got [1-9]\S*e-0\d;"):
        check_vjp(lambda x: (1 - np.cos(x), lambda d: d * np.sin(x)), [np.full(2, 1e-8)])


def test_steps_and_ends_get_no_verdict():
    with pytest.raises(ValueError, match=r"expected differences that settle to"):
        check_vjp(lambda x: (np.floor(1e6 * x), lambda d_out: 0 * d_out), [normal(20)])
    with pytest.raises(ValueError, match=r"expected differences that settle to .*, got NaN or inf; f must be smooth"):
        check_vjp(lambda x: (np.sqrt(x), lambda d_out: d_out), [np.zeros(3)])


# ------------------------------------------------------------------------------------------------------- usage
@pytest.mark.parametrize(
    ("change", "error", "match"),
    [
        (
            {"f": 3},
            TypeError,
            r"^check_vjp: f: expected a function that returns \(out, vjp\), got int 3; pass the func",
        ),
        ({"args": np.ones(3)}, TypeError, r"args: expected a tuple or list of arrays, got ndarray .*passed as \(x,\)"),
        ({"args": ()}, ValueError, r"args: expected at least one array, got none"),
        (
            {"args": [[1, 2]]},
            TypeError,
            r"args\[0\] \(x\): expected floats, got dtype int64; pass it as float64, or, if",
        ),
        ({"args": [[True]]}, TypeError, r"args\[0\] \(x\): expected floats, got dtype bool; .* inside f by a lambda"),
        (
            {"args": [np.ones(3, complex)]},
            TypeError,
            r"args\[0\] \(x\): expected real .* dtype complex128; pass a plain array of float64: real and imagi",
        ),
        ({"args": [np.ma.ones(3)]}, TypeError, r"args\[0\] \(x\): .* masked array, .*; pass a plain array of float64"),
        ({"args": [None]}, TypeError, r"args\[0\] \(x\): expected an array, got None"),
        ({"seed": "0"}, TypeError, r"seed: expected a seed \(integer\) or a numpy\.random\.Generator, got str '0'"),
        ({"tolerance": "0"}, TypeError, r"tolerance: expected a number above 0 and below 1, got str '0'"),
        ({"tolerance": 0}, ValueError, r"tolerance: expected a number above 0 and below 1, got 0\.0"),
        ({"tolerance": 1.0}, ValueError, r"tolerance: expected a number above 0 and below 1, got 1\.0"),
        ({"tolerance": float("nan")}, ValueError, r"tolerance: .* got nan"),
        ({"f": 3, "args": (), "seed": -1}, TypeError, r"(?s)3 arguments do not fit\n  f: .*\n  args: .*\n  seed: "),
        (
            {"f": lambda x: x},
            TypeError,
            r"f: expected a function that returns \(out, vjp\), vjp a function, got ndarray$",
        ),
        ({"f": lambda x: (x, x)}, TypeError, r"vjp a function, got a tuple of \(ndarray, ndarray\)$"),
        ({"f": lambda x: (squared,)}, TypeError, r"vjp a function, got a tuple of \(function\)$"),
        ({"f": lambda x: (1j * x, squared)}, TypeError, r"^check_vjp: out: expected real numbers"),
        ({"f": lambda x: (x, 1j * x, squared)}, TypeError, r"^check_vjp: out 1: expected real numbers"),
        (
            {"f": lambda x: (x, lambda d_out: (d_out, d_out))},
            ValueError,
            r"^check_vjp: vjp: expected one gradient for each of 1 arguments, in their order, got 2; None stands for",
        ),
        (
            {"f": lambda x, y: (x + y, lambda d_out: d_out), "args": (0.5, 0.5)},
            ValueError,
            r"of 2 arguments, .*, got 1;",
        ),
        *[
            ({"f": f}, TypeError, rf"^check_vjp: {name}: expected .*; {remedy}[^;]*$")
            for change in (lambda d: 1j * d, np.ma.array, lambda d: d.astype(str))
            for name, remedy, f in [
                ("out", "f must return plain arrays of float64: real", lambda x, change=change: (change(x), squared)),
                (
                    r"the gradient of args\[0\] \(x\)",
                    "vjp must return plain arrays of float64: what f is given and returns is real, so its gradients",
                    lambda x, change=change: (x, lambda d: change(d)),
                ),
            ]
        ],
    ],
)
def test_bad_usage(change, error, match):
    usage = {"f": squared, "args": [normal(3)], "seed": 0, "tolerance": 1e-7} | change
    with pytest.raises(error, match=match):
        check_vjp(usage["f"], usage["args"], seed=usage["seed"], tolerance=usage["tolerance"])


def test_what_f_raises_comes_through():
    with pytest.raises(ZeroDivisionError, match="by zero"):
        check_vjp(lambda x: 1 / 0, [normal(3)])


def needs_two(x, y):
    return x, y


def injected(x):
    """A decorated function that is given an argument more than its callers pass."""
    return needs_two(x, 0)[0], lambda d_out: d_out


injected.__wrapped__ = needs_two


def forwarded(*args):
    """A decorated function that finds out inside that there is one argument too few."""
    return needs_two(*args)


forwarded.__wrapped__ = needs_two


class Unreadable:
    """Takes one argument, and has no signature that says so."""

    __signature__ = "none"

    def __call__(self, x):
        return x, lambda d: d


def test_type_errors_from_within_come_through():
    for f in (lambda x: x + None, lambda x: needs_two(x), lambda x: (x, lambda d: d + None)):
        with pytest.raises(TypeError, match=r"^(unsupported operand|needs_two\(\) missing)"):
            check_vjp(f, [normal(3)])
    assert check_vjp(injected, [normal(3)]) < 1e-10


@pytest.mark.parametrize(
    ("f", "count", "reason"),
    [
        (lambda x: (x, lambda d: d), 2, "takes 1 positional argument but 2 were given"),
        (lambda x, y, z: (x, lambda d: d), 2, "missing 1 required positional argument: 'z'"),
        (lambda x, *, scale: (x, lambda d: d), 1, "missing 1 required keyword-only argument: 'scale'"),
        (forwarded, 1, "missing 1 required positional argument: 'y'"),
        (Unreadable(), 2, "takes 2 positional arguments but 3 were given"),
        (np.add, 1, "takes from 2 to 3 positional arguments but 1 "),
    ],
)
def test_f_of_another_number_of_arguments(f, count, reason):
    text = rf"^check_vjp: f: expected a function of {count} arguments?, one for each of args, got TypeError: .*{reason}"
    with pytest.raises(TypeError, match=text + ".*; args hold what is differentiated, all else belongs into f by a"):
        check_vjp(f, [normal(3)] * count)


@pytest.mark.parametrize(
    ("f", "count", "shapes"),
    [
        (lambda x: (x, x.sum(), lambda d: d), 2, r"\(3,\), \(\)"),
        (lambda x: (x, lambda d, e: d), 1, r"\(3,\)"),
        (lambda x: (x, lambda: x), 1, r"\(3,\)"),
    ],
)
def test_a_vjp_of_another_number_of_arguments(f, count, shapes):
    text = (
        rf"^check_vjp: vjp: expected a function of {count} arguments?, a d_out for each output of f: {shapes}, got Type"
    )
    with pytest.raises(TypeError, match=text + r"Error: .*; what f returns before vjp are its outputs$") as caught:
        check_vjp(f, [normal(3)])
    assert isinstance(caught.value.__cause__, TypeError)


def test_outputs_that_change_their_shape():
    calls = iter(range(1000))
    start = normal(9)

    def by_chance(x):
        return (x[: 9 - next(calls)], lambda d: np.zeros(9))

    def by_numbers(x):
        return (x[x > 0] if (x != start).any() else x), lambda d: d

    def by_count(x):
        return (x,) * (1 + (x != start).any()) + (lambda d: d,)

    for f, shape in [(by_chance, r"\(8,\)"), (by_numbers, r"\(\d,\)"), (by_count, r"\(9,\), \(9,\)")]:
        text = r"^check_vjp: f: expected outputs of the same shape in every call, as the first time: \(9,\), got "
        with pytest.raises(ValueError, match=text + shape + "; shapes must not depend on the numbers in args"):
            check_vjp(f, [start])


def test_arguments_are_named_where_f_names_them():
    def wrong(*args):
        return args[1] * 1, lambda d_out: (0 * args[0], 2 * d_out)

    for f, name in [
        (wrong, r"args\[1\]:"),
        (lambda a, *rest: wrong(a, *rest), r"args\[1\]:"),
        (lambda a, b, *, c=0: wrong(a, b), r"args\[1\] \(b\):"),
    ]:
        with pytest.raises(AssertionError, match=r"^check_vjp: " + name):
            check_vjp(f, [normal(3), normal(3)])

    class Unreadable:
        __signature__ = "none"

        def __call__(self, *args):
            return wrong(*args)

    with pytest.raises(AssertionError, match=r"^check_vjp: args\[1\]: "):
        check_vjp(Unreadable(), [normal(3), normal(3)])


def test_the_seed_decides_the_directions():
    def complaint(seed):
        with pytest.raises(AssertionError, match="expected a slope") as caught:
            check_vjp(spoilt(dense, 1, np.transpose), arguments(), seed=seed)
        return re.sub(r".*expected", "", str(caught.value))

    assert complaint(3) == complaint(3) == complaint(np.random.default_rng(3))
    assert complaint(3) != complaint(4)
