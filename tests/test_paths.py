"""The choice of a softmax: bounds are bounds, a head's path is its own, and the limits lie where they should."""

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headwise as hw
from headwise import attention, attention_plan, attention_steps
from headwise.core import paths
from headwise.core.paths import PATHS, RAW, REFERENCE, RUNNING, Bounds, choose, largest_squares, paths_of
from headwise.core.shapes import Problem, problem

SEEDS = st.integers(0, 2**32 - 1)
NAN, INF = np.nan, np.inf
FLOATS = {"float32": np.float32, "float64": np.float64, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}


def checked(q: Any, k: Any, v: Any, **options: Any) -> Problem:
    given = {"causal": False, "bias": None, "scale": None, "softcap": None, "sinks": None, "dropout": 0.0, "rng": None}
    return problem("test", q, k, v, None, **(given | options))


def path_of(q: Any, k: Any, v: Any, **options: Any) -> str:
    """The path of a problem with one head, by its name."""
    found: dict[str, int] = attention_plan(q, k, v, **options).paths
    (name,) = found
    assert found[name] == 1
    return name


def known(query: float = 1.0, score: float = 1.0, least: float = 1.0, most: float = 1.0) -> Bounds:
    return Bounds(query, score, least, most)


# ---------------------------------------------------------------------------------------- bounds are bounds
class Seen:
    """Stands in for ``choose`` and keeps what it was told of each head."""

    def __init__(self) -> None:
        self.told: list[Bounds] = []

    def __call__(self, p: Problem, bounds: Bounds) -> Any:
        self.told.append(bounds)
        return RUNNING


def bounds_of(p: Problem, steep: Any, sinks: Any) -> list[Bounds]:
    """Of each of the heads of q (H, n_q, d), k and v, in their order."""
    seen, usual = Seen(), paths.choose
    paths.choose = seen
    try:
        paths_of(p, p.q[:, None], p.k[:, None], p.v[:, None], steep, sinks)
    finally:
        paths.choose = usual
    return seen.told[1:]  # the first is the worst of all


def exact_scores(p: Problem) -> Any:
    q, k = p.q.astype(np.float64), p.k.astype(np.float64)
    scores = np.einsum("hid,hjd->hij", q, k) * p.scale
    return scores if p.softcap is None else p.softcap * np.tanh(scores / p.softcap)


@settings(max_examples=300)
@given(
    st.sampled_from(list(FLOATS)),
    st.tuples(*[st.sampled_from([1, 2, 5, 17])] * 3),
    st.sampled_from([1e-30, 1e-20, 1e-6, 1.0, 1e3, 1e12]),
    st.sampled_from([None, 0.0, -3.0, 1e-9, 1e9]),
    st.sampled_from([None, 0.5, 50.0]),
    st.booleans(),
    st.booleans(),
    st.booleans(),
    SEEDS,
)
def test_no_score_exceeds_its_bound(
    dtype: str,
    sizes: tuple[int, int, int],
    size: float,
    scale: float | None,
    softcap: float | None,
    aligned: bool,
    with_alibi: bool,
    with_sinks: bool,
    seed: int,
) -> None:
    n_q, n_k, d = sizes
    rng, H = np.random.default_rng(seed), 3
    size = min(size, 1e3) if dtype == "float16" else size
    made = [np.clip(size * rng.standard_normal((H, n, d)), -6e4 * size, 6e4 * size) for n in (n_q, n_k, n_k)]
    if aligned:  # the bound is reached where a key lies along a query
        made[1][:, 0] = made[0][:, 0]
    q, k, v = (x.astype(FLOATS[dtype]) for x in made)
    slopes, sinks = 4 * rng.standard_normal(H), 100 * rng.standard_normal(H)
    p = checked(q, k, v, scale=scale, softcap=softcap)
    bias = hw.alibi(slopes).dense(p.scores) if with_alibi else np.zeros(p.scores)
    steep = np.abs(bias).max(axis=(1, 2))[:, None] if with_alibi else 0.0
    told = bounds_of(p, steep, sinks[:, None] if with_sinks else 0.0)
    scores = np.abs(exact_scores(p) + bias).max(axis=(1, 2))
    norms = [np.sqrt((x.astype(np.float64) ** 2).sum(axis=-1)).max(axis=-1) for x in (q, k, v)]
    assert len(told) == H
    for h, bounds in enumerate(told):
        assert scores[h] <= bounds.score * (1 + 1e-12)
        assert norms[0][h] * abs(p.scale) <= bounds.query * (1 + 1e-12)
        assert not with_sinks or abs(sinks[h]) <= bounds.score
        tiny = math.sqrt(float(np.finfo(p.computing).tiny) * d) * 2
        assert bounds.least == bounds.most
        assert abs(bounds.most - norms[2][h]) <= 1e-3 * norms[2][h] + tiny
        if size == 1.0 and not (with_alibi or with_sinks or softcap or aligned):  # and it is no wild guess
            assert bounds.score <= 1.01 * norms[0][h] * norms[1][h] * abs(p.scale) + 1e-9


def test_bounds_by_hand() -> None:
    """One query (3, 4), one key (5, 12), one value (8, 15): norms 5, 13, 17."""
    q, k, v = np.array([[[3.0, 4.0]]]), np.array([[[5.0, 12.0]]]), np.array([[[8.0, 15.0]]])
    plain = bounds_of(checked(q, k, v, scale=-2.0), 0.0, 0.0)[0]
    np.testing.assert_allclose(plain, [10, 130, 17, 17], rtol=3e-3)
    assert bounds_of(checked(q, k, v, scale=1.0, softcap=7.0), 0.0, 0.0)[0].score == 7
    steep = bounds_of(checked(q, k, v, scale=1.0), np.array([[100.0]]), 0.0)[0]
    np.testing.assert_allclose(steep.score, 165, rtol=3e-3)
    assert bounds_of(checked(q, k, v, scale=1.0), 0.0, np.array([[-400.0]]))[0].score == 400
    sinks = bounds_of(checked(q, k, v, scale=1.0), 0.0, np.array([[-INF]]))[0]
    np.testing.assert_allclose(sinks.score, 65, rtol=3e-3)


@pytest.mark.parametrize(("dtype", "size"), [(np.float32, 1e-25), (np.float64, 1e-170)])
def test_squares_that_underflow_make_no_bound_too_small(dtype: Any, size: float) -> None:
    """The norm of 1e-25 is no longer 0 once it meets a scale of 1e25."""
    x = np.full((1, 3, 4), size, dtype)
    assert not largest_squares(x, np.dtype(dtype)).any()  # in the computing type they are lost
    for scale in (1.0, 1 / size, 1 / size**1.5):
        p = checked(x, np.ones((1, 3, 4), dtype), x, scale=scale)
        assert bounds_of(p, 0.0, 0.0)[0].score >= np.abs(exact_scores(p)).max()
    q = np.full((1, 4), size, dtype)
    k = np.stack([np.full(4, 300.0), np.zeros(4)]).astype(dtype)
    v = np.array([[1.0], [2.0]], dtype)
    scale = 1 / size  # scores 1200 and 0: not for the raw path
    assert path_of(q, k, v, scale=scale) != "raw"
    np.testing.assert_allclose(attention(q, k, v, scale=scale), [[1.0]], rtol=1e-6)


# --------------------------------------------------------------------------------------------- rows with NaN
def test_rows_that_hold_nan_do_not_count_but_in_v() -> None:
    x = np.ones((2, 4, 3))
    x[0, 1] = 7, 7, NAN
    x[1, 2] = 0, 5, 0
    assert largest_squares(x, x.dtype).tolist() == [3, 25]
    np.testing.assert_array_equal(largest_squares(x, x.dtype, np.maximum), [NAN, 25])
    assert largest_squares(np.full((2, 3), NAN), x.dtype) == 0
    x[0, 3, 0] = INF
    assert largest_squares(x, x.dtype).tolist() == [INF, 25]


def test_a_row_of_nan_leaves_the_path_of_the_others() -> None:
    for dtype in (np.float32, np.float64):
        q, k, v = (np.ones((4, 3), dtype) for _ in range(3))
        assert path_of(q, k, v) == "raw"
        for array, name in ((q, "raw"), (k, "raw"), (v, "running")):
            array[2, 1] = NAN
            assert path_of(q, k, v) == name
            array[2] = np.finfo(dtype).max ** 0.6  # and rows that are large count, whatever else is NaN
            assert path_of(q, k, v) != "raw"
            array[2] = 1


@pytest.mark.parametrize("which", [0, 1, 2])
def test_an_infinity_is_for_the_running_path(which: int) -> None:
    arrays = [np.ones((4, 3)) for _ in range(3)]
    arrays[which][2, 1] = INF
    assert path_of(*arrays) == "running"


def test_long_arrays_are_looked_at_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.random.default_rng(0).standard_normal((2, 3, 50, 4))
    whole = largest_squares(x, x.dtype)
    for chunk in (1, 7, 24, 100, 10**6):
        monkeypatch.setattr(paths, "_CHUNK", chunk)
        np.testing.assert_array_equal(largest_squares(x, x.dtype), whole)
    np.testing.assert_allclose(whole, (x**2).sum(-1).max(-1), rtol=1e-12)
    assert largest_squares(np.ones((2, 0, 4)), x.dtype).tolist() == [0, 0]
    assert largest_squares(np.ones((2, 4, 0)), x.dtype).tolist() == [0, 0]


# --------------------------------------------------------------------------------------- alone and in company
@settings(max_examples=200)
@given(
    st.tuples(st.integers(1, 4), st.integers(1, 3)),
    st.lists(st.sampled_from([1.0, 1.0, 30.0, 1e4, 1e-20, 1e20, NAN, INF, 0.0]), min_size=12, max_size=12),
    st.sampled_from([np.float32, np.float64]),
    st.booleans(),
    SEEDS,
)
def test_a_head_goes_its_way_whatever_its_company(
    stack: tuple[int, int], sizes: list[float], dtype: Any, extras: bool, seed: int
) -> None:
    rng, (n_shared, n_grouped) = np.random.default_rng(seed), stack
    q = rng.standard_normal((n_shared, n_grouped, 5, 3)).astype(dtype)
    k, v = (rng.standard_normal((n_shared, 1, 7, 3)).astype(dtype) for _ in range(2))
    for at, size in zip(np.ndindex(n_shared, n_grouped), sizes, strict=False):
        target = (q, k[:, 0:1], v)[seed % 3]
        with np.errstate(all="ignore"):
            target[at[0], at[1] if target is q else 0, 1] *= dtype(size)
    steep: Any = 200 * rng.random((n_shared, n_grouped)) if extras else 0.0
    sinks: Any = (
        np.where(rng.random((n_shared, n_grouped)) < 0.3, -INF, 90 * rng.standard_normal(stack)) if extras else 0.0
    )
    p = checked(q[0], np.broadcast_to(k[0], (n_grouped, 7, 3)), np.broadcast_to(v[0], (n_grouped, 7, 3)))
    together = paths_of(p, q, k, v, steep, sinks)
    if len(together) == 1:
        together = together * (n_shared * n_grouped)
    for number, (i, j) in enumerate(np.ndindex(n_shared, n_grouped)):
        own = [x[i : i + 1, j : j + 1] if extras else x for x in (steep, sinks)]
        (alone,) = paths_of(p, q[i : i + 1, j : j + 1], k[i : i + 1], v[i : i + 1], *own)
        assert together[number] == alone


def test_only_one_path_is_given_where_all_are_alike() -> None:
    x = np.ones((2, 3, 4, 5))
    p = checked(x, x, x)
    assert paths_of(p, x, x[:, :1], x[:, :1], 0.0, 0.0) == [(RAW, True)]
    y = x.copy()
    y[1, 2] *= 1e3
    mixed = paths_of(p, y, x[:, :1], x[:, :1], 0.0, 0.0)
    assert mixed == [(RAW, True)] * 5 + [(REFERENCE, True)]
    y[...] = 1e3
    assert paths_of(p, y, x[:, :1], x[:, :1], 0.0, 0.0) == [(REFERENCE, True)]


def test_values_that_are_not_finite_are_told() -> None:
    x = np.ones((2, 1, 4, 5))
    v = x.copy()
    v[1, 0, 2, 3] = NAN
    assert paths_of(checked(x, x, x), x, x, v, 0.0, 0.0) == [(RAW, True), (RUNNING, False)]


# ------------------------------------------------------------------------------------------------- the limits
@pytest.mark.parametrize(("dtype", "limit"), [(np.float32, 120), (np.float64, 1000)])
def test_the_limit_of_raw(dtype: Any, limit: int) -> None:
    """b + log2 n_k + the size of v's exponent, in powers of two."""
    one = np.ones((1, 1), dtype)
    p = checked(one, one, one)
    log2_e = math.log2(math.e)
    assert choose(p, known(score=0.9999 * limit / log2_e)) is RAW
    assert choose(p, known(score=1.0001 * limit / log2_e)) is REFERENCE
    eight = checked(one, np.ones((8, 1), dtype), np.ones((8, 1), dtype))  # 3 more
    assert choose(eight, known(score=0.9999 * (limit - 3) / log2_e)) is RAW
    assert choose(eight, known(score=1.0001 * (limit - 3) / log2_e)) is REFERENCE
    for norm in (2.0**10, 2.0**-10):  # 10 more, on either side of 1
        assert choose(p, known(0.0, 0.9999 * (limit - 10) / log2_e, norm, norm)) is RAW
        assert choose(p, known(0.0, 1.0001 * (limit - 10) / log2_e, norm, norm)) is REFERENCE
    for least, most in ((2.0**-10, 8.0), (0.125, 2.0**10)):  # of several heads the worse one counts
        assert choose(p, known(0.0, 0.9999 * (limit - 10) / log2_e, least, most)) is RAW
        assert choose(p, known(0.0, 1.0001 * (limit - 10) / log2_e, least, most)) is REFERENCE
    wide = checked(one, one, np.ones((1, 4), dtype))  # log2(d_v) / 2 = 1 more
    assert choose(wide, known(score=0.9999 * (limit - 1) / log2_e)) is RAW
    assert choose(wide, known(score=1.0001 * (limit - 1) / log2_e)) is REFERENCE


@pytest.mark.parametrize(("dtype", "finite"), [(np.float32, 1e30), (np.float64, 1e290)])
def test_the_limits_of_reference(dtype: Any, finite: float) -> None:
    one = np.ones((1, 1), dtype)
    p = checked(one, one, one)
    assert choose(p, known(query=0.999 * finite, score=0.999 * finite)) is REFERENCE
    for wrong in (finite, 1.001 * finite, INF, NAN):
        assert choose(p, known(score=wrong)) is RUNNING
        assert choose(p, known(query=wrong)) is RUNNING
    for wrong in (INF, NAN):
        assert choose(p, known(most=wrong)) is RUNNING


@pytest.mark.parametrize(("dtype", "small"), [(np.float32, 1e-15), (np.float64, 1e-140)])
def test_values_too_small_to_be_measured_are_not_raw(dtype: Any, small: float) -> None:
    one = np.ones((1, 1), dtype)
    p = checked(one, one, one)
    assert choose(p, known(0.0, 0.0, small, small)) is RAW
    assert choose(p, known(0.0, 0.0, 0.99 * small, small)) is REFERENCE
    assert choose(p, known(0.0, 0.0, 0.0, 0.0)) is REFERENCE


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_at_the_edge_of_raw_nothing_overflows_and_no_row_vanishes(dtype: Any) -> None:
    """Scores of the largest size that goes raw, all of one sign."""
    edge = (119 if dtype is np.float32 else 999) - 3
    d = 4
    for sign in (1.0, -1.0):
        size = math.sqrt(edge / math.log2(math.e) / 1.003)
        q, k = np.full((2, d), size / 2, dtype), np.full((4, d), sign * size / 2, dtype)
        v = np.arange(4, dtype=dtype)[:, None] / 2 - 0.7
        v /= np.abs(v).max()
        assert path_of(q, k, v, scale=1.0) == "raw"
        out, lse = attention(q, k, v, scale=1.0, return_lse=True)
        np.testing.assert_allclose(out, np.full((2, 1), v.mean()), rtol=1e-5)
        np.testing.assert_allclose(lse, attention_steps(q, k, v, scale=1.0).lse, rtol=1e-5)


# ------------------------------------------------------------------------------------------------- what is said
@pytest.mark.parametrize(
    "bias", [np.zeros((4, 4)), np.zeros(1), np.zeros((4, 1), np.float16)], ids=["whole", "one", "half"]
)
def test_a_dense_bias_is_never_raw(bias: Any) -> None:
    x = np.ones((4, 2))
    assert path_of(x, x, x) == "raw"
    assert path_of(x, x, x, bias=bias) == "reference"
    assert path_of(x, x, x, bias=hw.alibi([0.0])) == "raw"


def test_no_keys_no_queries_no_width() -> None:
    for n_q, n_k, d_k, d_v in ((0, 3, 2, 2), (3, 0, 2, 2), (3, 3, 0, 2), (3, 3, 2, 0), (0, 0, 0, 0)):
        q, k, v = np.ones((n_q, d_k)), np.ones((n_k, d_k)), np.ones((n_k, d_v))
        p = checked(q, k, v)
        ((path, finite),) = paths_of(p, q[None, None], k[None, None], v[None, None], 0.0, 0.0)
        assert path in PATHS
        assert finite


def test_what_the_three_paths_are() -> None:
    assert [path.name for path in PATHS] == ["raw", "reference", "running"]
    assert RAW.reference == 0
    assert not RAW.rescaled
    assert REFERENCE.backwards
    assert not REFERENCE.rescaled
    assert RUNNING.rescaled
    for path in PATHS:  # the unit belongs to the base
        assert path.exp(path.unit) == pytest.approx(math.e, rel=1e-15)
