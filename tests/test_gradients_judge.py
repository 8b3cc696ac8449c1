"""Gradients in a few quick tests, which alone catch every planted fault: the formulas for each option, and the bits."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from bits import bits
from dense_vjp import NAMES, assert_as_wanted, in_tiles

from headwise import alibi, attention, attention_vjp, masks, softmax_vjp
from headwise.core import backward

B, H, N_Q, N_K = 2, 4, 30, 50  # several tiles each way
RNG = np.random.default_rng(0)
PER_HEAD, DENSE = RNG.random((H, N_Q, N_K)) < 0.3, RNG.standard_normal((B, H, N_Q, N_K))
SINKS = np.array([0.0, 3.0, -np.inf, 50.0])
SIZES = {"small": 1.0, "large": 30.0}  # of queries: raw, and not
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal": {"causal": True},
    "scale": {"scale": -1.7},
    "tiny scale": {"scale": 1e-40},
    "softcap": {"softcap": 2.0, "mask": PER_HEAD},
    "bias": {"bias": DENSE, "softcap": 3.0},
    "bias of items": {"bias": DENSE[:, :1, :1]},
    "bias of heads": {"bias": DENSE[0, :, :, :1] + DENSE[0, :, :1]},
    "bias for all": {"bias": np.where(PER_HEAD[0], DENSE[0, 0], -np.inf), "causal": True},
    "one bias": {"bias": DENSE[0, 0, 0, :1]},
    "alibi": {"bias": alibi([0.5, 0.01, 2.0, 0.0], offset=[0, 50]), "mask": masks.window(25, 0)},
    "dropout": {"dropout": 0.3, "rng": 5, "causal": True},
    "sinks": {"sinks": SINKS, "causal": True},
    "sinks and dropout": {"sinks": SINKS, "dropout": 0.5, "rng": 1},
    "lengths": {"mask": masks.lengths([N_K, 31])},
    "nothing to see": {"mask": masks.lengths([0, 31]), "sinks": SINKS},
    "segments": {"mask": masks.segments(np.arange(N_Q) // 9, np.arange(N_K) // 16)},
}


@pytest.fixture(autouse=True)
def small_tiles() -> Iterator[None]:
    with in_tiles(6, 20, height=2):
        yield


def made(size: str = "small", n_groups: int = 2, dtype: Any = np.float64, d_k: int = 5, d_v: int = 3) -> Any:
    """q, k, v, and gradients of out and lse."""
    rng = np.random.default_rng(1)
    shapes = (B, H, N_Q, d_k), (B, n_groups, N_K, d_k), (B, n_groups, N_K, d_v), (B, H, N_Q, d_v), (B, H, N_Q)
    q, k, v, d_out, d_lse = (rng.standard_normal(shape).astype(dtype) for shape in shapes)
    return [(q * SIZES[size]).astype(dtype), k, v], d_out, d_lse


def assert_right(arrays: Any, d_out: Any, d_lse: Any = None, mask: Any = None, **options: Any) -> Any:
    out, _, vjp = attention_vjp(*arrays, mask, return_lse=True, threads=1, **options)
    np.testing.assert_array_equal(out, attention(*arrays, mask, return_lse=True, **options)[0])
    got, again = vjp(d_out, d_lse), vjp(d_out, d_lse)
    assert_as_wanted(got, *arrays, mask, d_out=d_out, d_lse=d_lse, computing=out.dtype, **options)
    assert bits(again) == bits(got)
    return got


# ------------------------------------------------------------------------------------- each option
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", OPTIONS)
def test_each_option(name: str, size: str, dtype: Any) -> None:
    arrays, d_out, d_lse = made(size, dtype=dtype)
    assert_right(arrays, d_out, d_lse if dtype == np.float64 else None, **OPTIONS[name])


@pytest.mark.parametrize(
    "leads", [((2, 4), (2, 1), (1, 1)), ((4,), (4,), (1,)), ((), (), ()), ((1, 1), (3, 2), (2,))], ids=str
)
def test_what_is_shared_or_stretched_is_summed(leads: Any) -> None:
    rng = np.random.default_rng(2)
    q, k, v = (rng.standard_normal((*lead, n, 3)) for lead, n in zip(leads, (20, 30, 30), strict=True))
    d_out = rng.standard_normal(attention(q, k, v).shape)
    assert_right((q, k, v), d_out)


@pytest.mark.parametrize("dtype", [np.float16, np.int64])
def test_other_types(dtype: Any) -> None:
    arrays, d_out, _ = made(dtype=np.float32)
    got = assert_right([(4 * x).astype(dtype) for x in arrays], d_out, causal=True)
    assert {x.dtype for x in got[:3]} == {np.dtype(np.float64 if dtype == np.int64 else dtype)}


def test_keys_with_a_large_common_part() -> None:
    """Rows of weights that do not sum to 1 would give that part, times the error, to queries."""
    (q, k, v), d_out, _ = made(dtype=np.float32, n_groups=H, d_k=64, d_v=64)
    common = 300 * np.ones(64, np.float32)
    _, vjp = attention_vjp(q, k + common, v)
    wide = [x.astype(np.float64) for x in (q, k + common, v)]
    _, exact = attention_vjp(*wide)
    got, wanted = vjp(d_out).q, exact(d_out.astype(np.float64)).q
    assert np.abs(got - wanted).max() < 0.02 * np.abs(wanted).max()


@pytest.mark.parametrize(("n", "d", "size"), [(30, 64, 1e4), (30, 64, 1e6), (12, 128, 1e4), (1, 3, 1e8)])
@pytest.mark.parametrize("scale", [None, 3.0])
def test_rows_of_weights_sum_to_1_however_scores_are_rounded(n: int, d: int, size: float, scale: Any) -> None:
    """Scores so large that another order of adding up, in tiles of another shape, changes them by 1 or more."""
    q, k, v, d_out = RNG.standard_normal((4, n, d)).astype(np.float32)
    sinks = np.array([1e3])
    for options in ({}, {"sinks": sinks}, {"causal": True}):
        out, vjp = attention_vjp(size * q, k, v, scale=scale, **options)
        np.testing.assert_allclose(vjp(np.ones_like(d_out)).v.sum(), out.size - np.isclose(out, 0).sum(), rtol=1e-5)
    mask = np.arange(n) != np.arange(n)[:, None] * 0 + 1
    with in_tiles(1, 1):
        _, vjp = attention_vjp(size * q, k, v, mask & (np.arange(n) > 1)[:, None], scale=scale)
        got = vjp(d_out).v
    np.testing.assert_allclose(got.sum(axis=0), d_out[2:].sum(axis=0), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("power", [-20, -30, -60])
def test_small_gradients_of_large_scores(power: int) -> None:
    """Of a row whose reference was that of the last keys, which are far below the first."""
    (q, k, v), d_out, _ = made("large", dtype=np.float32, n_groups=H)
    k[..., :5, :] += 3 * np.sign(q[..., :1, :])
    for bias in (None, np.zeros(1)):
        _, vjp = attention_vjp(q, k, v, bias=bias)
        small, usual = vjp(np.float32(2.0**power) * d_out), vjp(d_out)
        for name in "qkv":
            near = 1e-6 * np.abs(getattr(usual, name)).max()
            np.testing.assert_allclose(getattr(small, name) * 2.0**-power, getattr(usual, name), rtol=1e-5, atol=near)


def test_a_weight_too_small_for_its_type_is_0() -> None:
    k, v = np.array([[0.0], [-500.0]], np.float32), np.ones((2, 1), np.float32)
    _, vjp = attention_vjp(np.ones((1, 1), np.float32), k, v)
    assert vjp([[1.0]]).v.ravel().tolist() == [1.0, 0.0]


@pytest.mark.parametrize(("size", "power"), [(-30.0, 95), (45.0, -66)])
def test_gradients_that_fit_until_they_are_divided_by_a_total(size: float, power: int) -> None:
    (q, k, v), d_out, _ = made(dtype=np.float32)
    q[..., 0], k[..., 0] = size, np.sqrt(5)
    _, vjp = attention_vjp(q, k, v)
    far, usual = vjp(d_out * np.float32(2.0**power)), vjp(d_out)
    for name in "qkv":
        np.testing.assert_array_equal(getattr(far, name) * np.float32(2.0**-power), getattr(usual, name))


def test_a_scale_below_its_type() -> None:
    (q, k, v), d_out, _ = made(dtype=np.float32)
    assert_right((np.float32(1e6) * q, np.float32(1e37) * k, v), d_out, scale=3e-44)


def test_softmax() -> None:
    x, d_y = RNG.standard_normal((2, 3, 4, 5))[0], RNG.standard_normal((3, 4, 5))
    x[:, 1] = -np.inf
    for axis in (0, 1, -1):
        y, vjp = softmax_vjp(x, axis)
        wanted = y * (d_y - (y * d_y).sum(axis=axis, keepdims=True))
        np.testing.assert_allclose(vjp(d_y), wanted, rtol=0, atol=1e-15)
    y, vjp = softmax_vjp(x)
    before = vjp(d_y)
    y[...] = 7  # the caller's own
    np.testing.assert_array_equal(vjp(d_y), before)
    half = np.linspace(-2, 2, 50).astype(np.float16)
    _, exact = softmax_vjp(half.astype(np.float64))
    far = 1000 + half.astype(np.float64)
    np.testing.assert_allclose(softmax_vjp(half)[1](far), exact(far), rtol=0.02, atol=2e-5)
    y, vjp = softmax_vjp([[-np.inf, -np.inf]])
    np.testing.assert_array_equal(vjp([[np.nan, np.inf]]), [[0, 0]])


# ---------------------------------------------------------------------------- what nobody sees, and wild numbers
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    "options", [{}, {"softcap": 2.0, "bias": DENSE}, {"sinks": SINKS}, {"dropout": 0.4, "rng": 2}], ids=str
)
def test_what_is_hidden_has_no_gradient_and_does_no_harm(options: dict[str, Any], size: str) -> None:
    """NaN and inf in dead queries, in what belongs to them, and in keys and values that no query may see."""
    arrays, d_out, d_lse = made(size, dtype=np.float32)
    mask = np.broadcast_to(PER_HEAD[0], (N_Q, N_K)).copy()
    mask[[3, 29]], mask[:, [7, 49]] = False, False
    clean = assert_right(arrays, d_out, d_lse, mask=mask, **options)
    q, k, v = arrays
    q[:, :, 3], d_out[:, :, 3] = np.nan, np.inf
    d_lse[:, :, 3] = d_lse[:, :, 3] if "sinks" in options else np.nan
    q[:, :, 29], d_out[:, :, 29] = np.inf, np.nan
    k[:, :, 7], v[:, :, 7], k[:, :, 49], v[:, :, 49] = np.nan, np.inf, -np.inf, np.nan
    wild = assert_right(arrays, d_out, d_lse, mask=mask, **options)
    for name in "qkv":
        np.testing.assert_allclose(getattr(wild, name), getattr(clean, name), rtol=0, atol=1e-4)
    assert not wild.q[:, :, [3, 29]].any()
    assert not wild.k[:, :, [7, 49]].any()


def test_a_visible_nan_stays_with_those_who_see_it() -> None:
    for which in range(3):
        arrays, d_out, _ = made(dtype=np.float32)
        arrays[which][1, 0, 20, 1] = np.nan
        assert_right(arrays, d_out, causal=True)
    arrays, d_out, _ = made(dtype=np.float32)
    d_out[1, 2, 20, 0] = np.nan
    got = assert_right(arrays, d_out, mask=PER_HEAD)
    assert np.isfinite(got.q[0]).all()
    assert np.isfinite(got.v[1, 0]).all()


def test_a_query_whose_scores_are_all_minus_infinity_sees_nothing() -> None:
    (q, k, v), d_out, _ = made(dtype=np.float32)
    k[..., 0] = np.abs(k[..., 0])
    q[0, 0, 5, 0], d_out[0, 0, 5] = -np.inf, np.nan
    got = assert_right((q, k, v), d_out)
    assert np.isfinite(got.k).all()


def test_products_that_overflow_behind_a_mask() -> None:
    """0 * inf."""
    arrays, d_out, _ = made(dtype=np.float32)
    mask = np.ones((N_Q, N_K), bool)
    mask[5, 9] = False
    d_out[0, 0, 5], arrays[2][0, 0, 9] = 3e20, 3e20
    d_out[0, 0, :5], d_out[0, 0, 6:], d_out[0, 1] = 0, 0, 0
    _, vjp = attention_vjp(*arrays, mask)
    assert np.isfinite(vjp(d_out).k).all()


# ------------------------------------------------------------------------------------------- the same bits
@pytest.mark.parametrize("name", ["plain", "dropout", "sinks", "bias for all", "bias of items", "lengths"])
@pytest.mark.parametrize("size", SIZES)
def test_threads_change_no_bit(size: str, name: str) -> None:
    arrays, d_out, _ = made(size, dtype=np.float32)
    one, *others = (attention_vjp(*arrays, threads=n, **OPTIONS[name])[1](d_out) for n in (1, 2, 5))
    for other in others:
        assert bits(other) == bits(one)


def test_shares_change_no_bit_whoever_ends_first(monkeypatch: pytest.MonkeyPatch) -> None:
    arrays, d_out, _ = made(dtype=np.float32, n_groups=1)
    arrays = [np.concatenate([x] * 16, axis=-2) for x in arrays]
    d_out = np.concatenate([d_out] * 16, axis=-2)
    monkeypatch.setattr(backward, "_shares", lambda p, grid: 3)
    one, *others = (attention_vjp(*arrays, causal=True, threads=n)[1](d_out) for n in (1, 2, 3, 4, 5))
    assert {bits(other.k) for other in others} == {bits(one.k)}
    assert_right([x[:1, :, ::4] for x in arrays], d_out[:1, :, ::4], causal=True)


@pytest.mark.parametrize("beside", ["larger scores", "large scores", "long keys", "all sorts"])
def test_company_changes_no_bit(beside: str) -> None:
    """Ordinary heads beside others, NaN too: each as it is alone."""
    (q, k, v), d_out, _ = made(dtype=np.float32, n_groups=H)
    q, k, v, d_out = (np.concatenate([x] * 4) for x in (q, k, v, d_out))
    if beside != "long keys":
        q[1, 1] *= 12 if beside == "larger scores" else 60
    if beside in ("long keys", "all sorts"):  # whose totals are made again, though what they have apart is small
        k[1, 2] += 1e4 * np.sign(k[1, 2, :1])
    if beside == "all sorts":
        v[2, 2, 5], q[3, 0, 3] = np.nan, np.inf
    _, vjp = attention_vjp(q, k, v, causal=True, threads=1)
    whole = vjp(d_out)
    for item, head in np.ndindex(*q.shape[:2]):
        some = slice(item, item + 1), slice(head, head + 1)
        _, vjp = attention_vjp(q[some], k[some], v[some], causal=True)
        for name, alone in zip(NAMES[:3], vjp(d_out[some])[:3], strict=True):
            assert bits(alone) == bits(getattr(whole, name)[some]), (item, head, name)
