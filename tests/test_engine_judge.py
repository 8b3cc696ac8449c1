"""The engine in a few quick tests, which alone catch every planted fault: the definition on each path, and its bits."""

from math import log
from typing import Any

import numpy as np
import pytest
from bits import bits

from headwise import alibi, attention, attention_plan, attention_steps, masks
from headwise.core import engine, workers

B, H, N_Q, N_K, D = 3, 4, 60, 200, 100  # several tiles each way, the last of them smaller
PATHS = {"raw": 1.0, "reference": 30.0, "running": 30.0}  # and how large queries are; ten times that in float64
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
    """q, k, v that end on this path; with a visible NaN in the first column of one value it is the running one."""
    rng = np.random.default_rng(1)
    q, k, v = (rng.standard_normal((B, heads, n, D)) for heads, n in ((H, N_Q), (n_groups, N_K), (n_groups, N_K)))
    q *= PATHS[path] * (1 if path == "raw" or dtype == np.float32 else 10)
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
    for cols, row, size in ((slice(0, 9), 0, 20), (slice(100, 109), 1, 40), (slice(30, 33), 50, 30)):
        k[..., cols, :] = size * q[..., row : row + 1, :] / np.abs(q).max() * 3
    assert_as_defined(q, k, v)


@pytest.mark.parametrize("slope", [3.0, 100.0])
def test_a_query_that_is_far_from_all_that_it_sees(slope: float) -> None:
    """Its exponentials underflow unless something is taken off."""
    assert_as_defined(*made(dtype=np.float32), mask=masks.lengths(100), bias=alibi([slope] * H))


@pytest.mark.parametrize("path", ["raw", "reference"])
def test_values_whose_sum_overflows(path: str) -> None:
    q, k, _ = made(path, np.float32)
    assert_as_defined(q, k, np.full((B, H, N_K, 2), 3e38, np.float32))
    assert_as_defined(q / 100, k, np.full((B, H, N_K, 2), 1.6e36, np.float32), dropout=0.25, rng=1)
    x, large = np.zeros((3, 2), np.float32), np.full((3, 2), 3e38, np.float32)
    assert np.isfinite(attention(x, x, large)).all()


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
    one, *others = (bits(attention(*arrays, threads=n, **options)) for n in (1, 2, 3))
    assert others == [one, one]


def test_company_changes_no_bit() -> None:
    """Ordinary items beside those with large scores and those with a NaN: each as it is alone."""
    plain, large, wild = (made(path, np.float32) for path in PATHS)
    q, k, v = (np.concatenate(arrays * 3) for arrays in zip(plain, large, wild, strict=True))
    out = attention(q, k, v, threads=1)
    for item in range(len(q)):
        alone = attention(*(x[item : item + 1] for x in (q, k, v)), threads=1)
        assert bits(alone[0]) == bits(out[item])
    q[0, 1] *= 60  # heads of one item that take two paths, stacked
    out = attention(q, k, v, threads=1)
    for head in range(H):
        alone = attention(*(x[:1, head : head + 1] for x in (q, k, v)), threads=1)
        assert bits(alone[0, 0]) == bits(out[0, head])
    assert_as_defined(q[:3], k[:3], v[:3])


def test_heads_that_begin_on_two_paths_change_no_bit() -> None:
    slopes, (q, k, v) = np.array([0.5, 0.01, 2.0, 0.0]), made(dtype=np.float32)
    assert attention_plan(q, k, v, bias=alibi(slopes)).paths == {"raw": 2 * B, "reference": 2 * B}
    assert attention_plan(q, k, v, bias=alibi(-slopes)).paths == {"raw": 2 * B, "reference": 2 * B}
    out = attention(q, k, v, bias=alibi(slopes), threads=1)
    for head in range(H):
        alone = attention(*(x[:, head : head + 1] for x in (q, k, v)), bias=alibi(slopes[head : head + 1]))
        assert bits(alone[:, 0]) == bits(out[:, head])


def test_few_scores_in_any_company() -> None:
    """A NaN, and values that show whether a key far below weighs nothing or next to nothing: alone it is the same."""
    x = np.ones((16, 4, 1), np.float32)
    k, v = x.copy(), x.copy()
    k[:, 3], v[:, 3], v[1, 0] = -200, 1e24, np.nan
    out = attention(x, k, v, return_lse=True, threads=1)[0]
    for item in range(16):
        assert bits(attention(x[item], k[item], v[item])) == bits(out[item])
        assert bits(attention(x[item], k[item], v[item], return_lse=True)[0]) == bits(out[item])


# --------------------------------------------------------------------------------------- what is done again
def done_again(*arrays: Any, **options: Any) -> set[tuple[str, int]]:
    """The paths that were taken besides raw, with the heads that took them."""
    found, gather = set(), engine._Stack.gather

    def noted(stack: Any) -> Any:
        task = stack.task
        heads = [stack.grid.flat(task.outer, i, 0) for i in range(task.shared.start, task.shared.stop)]
        found.update((stack.path.name, head) for head in heads)
        return gather(stack)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine._Stack, "gather", noted)
        engine.run(attention_plan(*arrays, threads=1, tile=(64, 32), **options), *arrays)
    raw = {("raw", head) for head in range(len(arrays[0]))}
    assert raw <= found
    return found - raw


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("end", ["least", "most", "values"])
def test_raw_results_are_looked_at(end: str, dtype: Any) -> None:
    """Of many heads one is just inside of a limit, or just outside: then it is done again, and no other."""
    single = dtype == np.float32
    power = {"least": -60 if single else -500, "most": 100 if single else 900, "values": -40 if single else -400}[end]
    for off, again in ((1, set()), (-1, {("reference", 1)}), (-20, {("reference", 1)})):
        q, k, v = np.zeros((24, 60, 1)), np.ones((24, 60, 1)), -np.ones((24, 60, 1))
        if end == "values":
            v[1] *= 2.0 ** (power + off)
        else:
            k[:, :32] = end == "least"  # else the first keys would be a reason to give up early
            q[1, 7] = (power + (off if end == "least" else -off)) * log(2) - log(60 if end == "least" else 28)
        arrays = [x.astype(dtype) for x in (q, k, v)]
        assert done_again(*arrays, scale=1.0) == again
        assert_as_defined(*(x[None] for x in arrays), scale=1.0)


def test_rows_that_sum_to_nothing_are_lost_unless_they_see_nothing() -> None:
    q, k, v = (x.reshape(B * H, *x.shape[2:]) for x in made(dtype=np.float32))
    q[1, 7], k[..., 0] = 0, 1
    q[1, 7, 0] = -5000
    mask = PER_HEAD[0].copy()
    mask[3] = False
    for sinks in (None, [-500.0] * (B * H)):
        assert_as_defined(q[None], k[None], v[None], mask=mask, sinks=sinks)
    assert done_again(q, k, v, mask=mask) == {("reference", 1)}
    mask[7] = False
    assert done_again(q, k, v, mask=mask) == set()
    assert done_again(q, k, v, mask=masks.lengths([0] * B * H)) == set()


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("mask", [masks.window(9, 0), masks.window(0, 9), masks.causal(-15)], ids=str)
def test_blocks_that_see_their_first_keys_beside_others_that_have_seen_some(mask: Any, path: str) -> None:
    """Whatever is left in the buffers: here that of the items before."""
    arrays = made(path, np.float32)
    plan = attention_plan(*arrays, mask, tile=(6, 8), threads=1)
    out, wanted = engine.run(plan, *arrays), attention_steps(*(x.astype(np.float64) for x in arrays), mask).out
    np.testing.assert_allclose(out, wanted, rtol=0, atol=0.01)


def test_workers_share_nothing_that_they_write_to() -> None:
    arrays = [np.concatenate([x] * 4) for x in made(dtype=np.float32)]
    alone = bits(attention(*arrays, threads=1))
    assert [bits(attention(*arrays, threads=4)) for _ in range(4)] == [alone] * 4
