"""The engine in a few quick tests, which alone catch every planted fault: the definition on each path, and its bits."""

from typing import Any

import numpy as np
import pytest

from headwise import alibi, attention, attention_plan, attention_steps, masks
from headwise.core import workers

B, H, N_Q, N_K, D = 3, 4, 60, 200, 100  # several tiles each way, the last of them smaller
PATHS = {"raw": 1.0, "reference": 30.0, "running": 30.0}  # and how large queries are
RNG = np.random.default_rng(0)
PER_HEAD, DENSE = RNG.random((H, N_Q, N_K)) < 0.3, RNG.standard_normal((B, 1, N_Q, N_K))
OPTIONS: dict[str, dict[str, Any]] = {
    "dropout": {"dropout": 0.3, "rng": 5},
    "scale": {"scale": -1.7},
    "sinks": {"sinks": np.array([0.0, 3.0, -np.inf, 50.0]), "causal": True},
    "softcap before a dense bias": {"softcap": 2.0, "bias": 3 * DENSE},
    "softcap before bias": {"softcap": 2.0, "bias": alibi([0.5, 0.01, 2.0, 0.0])},
    "alibi": {"bias": alibi([0.5, 0.01, 2.0, 0.0], offset=[0, 50, 400]), "mask": masks.window(60, 0)},
    "bias": {"bias": np.where(PER_HEAD, -np.inf, DENSE)},
    "segments": {"mask": masks.segments(np.arange(N_Q) // 20, np.arange(N_K) // 70)},
    "per head": {"mask": PER_HEAD},
    "lengths": {"mask": masks.lengths([N_K, 0, 71])},  # the scratch of the first item is used again by the second
    "causal": {"causal": True},
    "plain": {},
}


def made(path: str = "raw", dtype: Any = np.float64, n_groups: int = H) -> Any:
    """q, k, v that take this path; with a visible NaN in the first column of one value it is the running one."""
    rng = np.random.default_rng(1)
    q, k, v = (rng.standard_normal((B, heads, n, D)) for heads, n in ((H, N_Q), (n_groups, N_K), (n_groups, N_K)))
    q *= PATHS[path]
    if path == "running":
        v[..., 20, 0] = np.nan
    return [x.astype(dtype) for x in (q, k, v)]


def assert_as_defined(q: Any, k: Any, v: Any, **options: Any) -> None:
    out, lse = attention(q, k, v, return_lse=True, **options)
    with workers.one_blas_thread():
        steps = attention_steps(*(x.astype(np.float64) for x in (q, k, v)), **options)
    seen = steps.masked[np.isfinite(steps.masked)]
    near = 32 * np.finfo(lse.dtype).eps * (1 + np.abs(seen).max(initial=0) + np.abs(steps.scores).max(initial=0))
    assert out.dtype == q.dtype
    np.testing.assert_allclose(lse, steps.lse, rtol=0, atol=near)
    np.testing.assert_allclose(out, steps.out, rtol=0, atol=near * np.nanmax(np.abs(v.astype(float))))


def test_the_blas_has_its_threads_back() -> None:
    libraries = workers._limit.libraries
    before = [library.ask() for library in libraries]
    for library in libraries:
        library.tell(3)
    wanted = [library.ask() for library in libraries]
    attention(*made(), threads=2)
    after = [library.ask() for library in libraries]
    for library, threads in zip(libraries, before, strict=True):
        library.tell(threads)
    assert after == wanted


# ------------------------------------------------------------------------------- against the definition
@pytest.mark.parametrize("options", [{}, {"mask": PER_HEAD}, {"mask": masks.lengths([5, N_K, 0])}], ids=str)
@pytest.mark.parametrize("n_groups", [1, 2])
def test_heads_that_share_keys(n_groups: int, options: dict[str, Any]) -> None:
    assert_as_defined(*made(n_groups=n_groups), **options)


def test_what_is_hidden_does_no_harm() -> None:
    """NaN and inf in keys and values behind a mask that cuts through tiles."""
    q, k, v = made(dtype=np.float32)
    good = attention(q, k, v, causal=True)
    k[:, 0, 170:], v[:, 1, 170:], v[:, 2, 190:] = np.nan, np.inf, np.nan
    out, seeing = attention(q, k, v, causal=True), N_K - N_Q + np.arange(N_Q) >= 170
    np.testing.assert_allclose(out[..., ~seeing, :], good[..., ~seeing, :], rtol=0, atol=1e-5)
    assert np.isnan(out[:, 0, seeing]).all()


def test_what_one_head_hides_does_no_harm() -> None:
    """A NaN in the values of the last head alone: it is looked for in all heads of a stack, not in the first."""
    x, v = np.ones((2, 3, 4, 6, 4), np.float32)
    v[2, 3, 5] = np.nan
    out = attention(x, x, v, causal=True, threads=1)
    np.testing.assert_allclose(out[..., :5, :], 1, rtol=1e-6)
    assert np.isnan(out[2, 3, 5]).all()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_scores_that_outgrow_what_was_taken_off(dtype: Any) -> None:
    """The last keys are looked at first; the first ones have far larger scores, which no longer fit."""
    q, k, v = made("reference", dtype)
    k[..., :9, :] = 20 * q[..., :1, :] / PATHS["reference"]
    k[..., 100:109, :] = 40 * q[..., 1:2, :] / PATHS["reference"]
    assert set(attention_plan(q, k, v).paths) == {"reference"}
    assert_as_defined(q, k, v)


@pytest.mark.parametrize("slope", [3.0, 100.0])
def test_a_query_that_is_far_from_all_that_it_sees(slope: float) -> None:
    """Its exponentials underflow unless something is taken off: a bound must count the bias."""
    assert_as_defined(*made(dtype=np.float32), mask=masks.lengths(100), bias=alibi([slope] * H))


def test_half_types_are_rounded_once() -> None:
    arrays = made(dtype=np.float16)
    exact, out = attention(*(x.astype(np.float64) for x in arrays)), attention(*arrays)
    assert out.dtype == np.float16
    np.testing.assert_allclose(out.astype(np.float64), exact, rtol=2.0**-11 * 1.05, atol=1e-6)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("name", OPTIONS)
def test_every_path_is_the_definition(name: str, path: str, dtype: Any) -> None:
    assert_as_defined(*made(path, dtype), **OPTIONS[name])


# ------------------------------------------------------------------------------------------- the same bits
@pytest.mark.parametrize("options", [{}, {"causal": True}, {"dropout": 0.5, "rng": 1}], ids=str)
@pytest.mark.parametrize("path", PATHS)
def test_threads_change_no_bit(path: str, options: dict[str, Any]) -> None:
    arrays = made(path, np.float32)
    one, *others = (attention(*arrays, threads=n, **options).tobytes() for n in (1, 2, 3))
    assert others == [one, one]


def test_company_changes_no_bit() -> None:
    """Ordinary items beside those with large scores and those with a NaN: each as it is alone."""
    plain, large, wild = (made(path, np.float32) for path in PATHS)
    q, k, v = (np.concatenate(arrays * 3) for arrays in zip(plain, large, wild, strict=True))
    out = attention(q, k, v, threads=1)
    for item in range(len(q)):
        alone = attention(*(x[item : item + 1] for x in (q, k, v)), threads=1)
        assert alone[0].tobytes() == out[item].tobytes()
    q[0, 1] *= 60  # heads of one item that take two paths, stacked
    out = attention(q, k, v, threads=1)
    alone = attention(q[:1, :1], k[:1, :1], v[:1, :1], threads=1)
    assert alone[0, 0].tobytes() == out[0, 0].tobytes()
    assert_as_defined(q[:3], k[:3], v[:3])


def test_workers_share_nothing_that_they_write_to() -> None:
    arrays = [np.concatenate([x] * 4) for x in made(dtype=np.float32)]
    alone = attention(*arrays, threads=1).tobytes()
    assert [attention(*arrays, threads=4).tobytes() for _ in range(4)] == [alone] * 4
