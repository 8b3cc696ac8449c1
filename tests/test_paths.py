"""The way to a softmax: what is tried first, and that a raw result which is accepted has lost nothing."""

import math
import platform
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import headwise as hw
from examples import fewer
from headwise.core import paths
from headwise.core.paths import (
    EXACT,
    LAST,
    LOG2_E,
    PATHS,
    RAW,
    REFERENCE,
    RUNNING,
    first_path,
    out_of_range,
    outgrown,
    overflowing,
    spoilt,
)
from headwise.core.shapes import Problem, problem
from headwise.core.softmax import Partial, divided, part

SEEDS = st.integers(0, 2**32 - 1)
NAN, INF = np.nan, np.inf
FLOATS = [np.float32, np.float64]
LEAST, MOST = {np.float32: -60, np.float64: -500}, {np.float32: 100, np.float64: 900}
EARLY, VALUE = {np.float32: 80, np.float64: 600}, {np.float32: -40, np.float64: -400}


def checked(q: Any, k: Any, v: Any, **options: Any) -> Problem:
    given = {"causal": False, "bias": None, "scale": None, "softcap": None, "sinks": None, "dropout": 0.0, "rng": None}
    return problem("test", q, k, v, None, **(given | options))


def of_size(n_q: int, n_k: int, **options: Any) -> Problem:
    return checked(np.ones((n_q, 2)), np.ones((n_k, 2)), np.ones((n_k, 2)), **options)


# ---------------------------------------------------------------------------------------- what is tried first
@pytest.mark.parametrize("dtype", [*FLOATS, np.float16, ml_dtypes.bfloat16])
def test_raw_is_tried_first_whatever_the_numbers_are(dtype: Any) -> None:
    for number in (1.0, 0.0, 6e4, NAN, INF):
        x = np.full((40, 2), number, dtype)
        assert first_path(checked(x, x, x, scale=3e9, softcap=2.0, sinks=[1e9])) is RAW


def test_few_scores_are_for_the_running_maximum() -> None:
    for n_q, n_k, path in ((32, 32, EXACT), (25, 41, RAW), (1, 1024, EXACT), (1, 1025, RAW), (0, 9, EXACT)):
        assert first_path(of_size(n_q, n_k)) is path
        steep = REFERENCE if path is RAW else EXACT
        assert first_path(of_size(n_q, n_k, bias=np.zeros(1))) is steep
        assert first_path(of_size(n_q, n_k, bias=hw.alibi([1.0])), 1e9) is steep


@pytest.mark.parametrize("bias", [np.zeros((40, 40)), np.zeros(1), np.zeros((40, 1), np.float16)], ids=str)
def test_a_dense_bias_is_never_raw(bias: Any) -> None:
    assert first_path(of_size(40, 40, bias=bias)) is REFERENCE


def test_steepness_is_counted_in_powers_of_two() -> None:
    p = of_size(40, 40, bias=hw.alibi([1.0]))
    for steepness, path in ((0.0, RAW), (59.999, RAW), (60.001, REFERENCE), (INF, REFERENCE), (NAN, REFERENCE)):
        assert first_path(p, steepness / LOG2_E) is path


# --------------------------------------------------------------------------------------- what is looked at afterwards
class Scored(NamedTuple):
    """Scores of some heads, and their raw result."""

    scores: Any  # (h, r, b, m, w)
    v: Any  # (h, 1, 1, w, d)
    seen: Any  # (b, m, w)
    raw: Partial

    def alive(self) -> Any:
        return self.seen.any(axis=-1)


def scored(scores: Any, v: Any, seen: Any = None) -> Scored:
    seen = np.ones(scores.shape[-3:], bool) if seen is None else seen
    bits = -seen.astype(f"u{scores.itemsize}")
    with np.errstate(all="ignore"):
        raw = part(scores * scores.dtype.type(RAW.unit), v, RAW.reference, bits=bits, exp=RAW.exp)
    return Scored(scores, v, seen, raw)


def unsound(raw: Partial, alive: Any) -> Any:
    """Heads of a raw result that one of both looks at it finds wrong: at its totals, and at what comes of it."""
    with np.errstate(all="ignore"):
        return out_of_range(raw.total, alive) | (spoilt(divided(raw)) & alive().any())


def looked_at(given: Scored, raw: Partial) -> Any:
    with np.errstate(all="ignore"):  # as in a worker
        return unsound(raw, given.alive)


@st.composite
def results(draw: st.DrawFn) -> Scored:
    """Heads whose scores lie anywhere, of which some are ordinary: so that all limits are crossed, and often not."""
    dtype = np.dtype(draw(st.sampled_from(FLOATS)))
    wide = 1 if dtype == np.float32 else 8
    h, r, b, m, w, d = (draw(st.integers(1, most)) for most in (2, 2, 2, 3, 12, 3))
    rng = np.random.default_rng(draw(SEEDS))
    centres = st.sampled_from([0.0, 0.0, 0.0, -30.0, -41.0, -50.0, -80.0, -100.0, 40.0, 60.0, 68.0, 75.0, 85.0])
    widths = st.sampled_from([1.0, 1.0, 5.0, 40.0])
    scores = np.empty((h, r, b, m, w))
    for at in np.ndindex(h, r, b, m):
        centre, width = (draw(centres), draw(widths)) if draw(st.booleans()) else (0.0, 1.0)
        scores[at] = wide * (centre + width * rng.standard_normal(w))
    exponents = st.sampled_from([0, 0, 0, 3, -5, -11, -12, -13, -20, -30, 10, 30, 36])
    v = rng.standard_normal((h, 1, 1, w, d)) * 10.0 ** (wide * np.array([draw(exponents) for _ in range(h)])).reshape(
        h, 1, 1, 1, 1
    )
    v = np.abs(v) if draw(st.booleans()) else v
    for array in (scores, v):
        if draw(st.integers(0, 9)) == 0:
            array.flat[rng.integers(array.size)] = draw(st.sampled_from([NAN, INF, -INF]))
    seen = rng.random((b, m, w)) < draw(st.sampled_from([1.0, 0.6, 0.2, 0.0]))
    with np.errstate(all="ignore"):
        return scored(scores.astype(dtype), v.astype(dtype), seen)


@settings(max_examples=fewer(1000))
@given(results())
def test_what_is_accepted_lies_within_the_bound(given: Scored) -> None:
    assume(given.seen.any())  # else no tile would have been computed
    accepted = ~looked_at(given, given.raw)
    eps = np.finfo(given.raw.total.dtype).eps
    scores, v = given.scores.astype(np.float64), given.v.astype(np.float64)
    for h, r, b, m in zip(*np.nonzero(np.broadcast_to(accepted[..., None, None], given.raw.total.shape)), strict=True):
        seen = given.seen[b, m]
        row, values = scores[h, r, b, m][seen], v[h, 0, 0][seen]
        acc, total = given.raw.acc[h, r, b, m].astype(np.float64), float(given.raw.total[h, r, b, m])
        if not seen.any():
            assert total == 0
            assert not acc.any()
            continue
        peak = row.max()
        weights = np.exp(row - peak)
        exact = weights @ values / weights.sum()
        finite = np.abs(row[row > -INF])
        spread = 8 * eps * (1 + finite.max(initial=0) + math.log(len(row)))
        np.testing.assert_allclose(acc / total, exact, rtol=0, atol=spread * np.abs(v[h]).max())
        assert abs(math.log(total) - peak - math.log(weights.sum())) <= spread


def refused(given: Scored) -> Any:
    """By the rules of DESIGN.md, one head after another."""
    dtype = given.raw.total.dtype.type
    found = np.zeros(given.raw.total.shape[:2], bool)
    alive = given.alive()
    with np.errstate(all="ignore"):
        out = divided(given.raw)
    for head in np.ndindex(found.shape):
        totals, outputs = (x[head].astype(np.float64) for x in (given.raw.total, out))
        low = all(total >= 2.0 ** LEAST[dtype] for total in totals[alive])
        high = all(total <= 2.0 ** MOST[dtype] for total in totals.ravel())
        finite = np.isfinite(outputs).all()
        largest = np.abs(outputs).max(initial=0) >= 2.0 ** VALUE[dtype]
        found[head] = not (low and high and finite and largest)
    return found


@settings(max_examples=fewer(1000))
@given(results())
def test_what_is_refused_is_what_the_rules_refuse(given: Scored) -> None:
    assume(given.seen.any())
    np.testing.assert_array_equal(looked_at(given, given.raw), refused(given))


@settings(max_examples=fewer(500))
@given(results())
def test_a_head_is_refused_for_itself_alone(given: Scored) -> None:
    """And so is a head whose first keys are too large, and a block that outgrew its reference."""
    raw = given.raw
    together = (looked_at(given, raw), overflowing(raw.total))
    blocks = outgrown(raw)
    for h, r in np.ndindex(raw.total.shape[:2]):
        own = Partial(*(np.array(np.broadcast_to(x, raw.total.shape + x.shape[4:])[h : h + 1, r : r + 1]) for x in raw))
        assert [bool(x[h, r]) for x in together] == [looked_at(given, own).item(), overflowing(own.total).item()]
        for b in range(raw.total.shape[2]):
            one = Partial(*(x[:, :, b : b + 1] for x in own))
            assert outgrown(one).item() == blocks[h, r, b]


def ordinary(dtype: Any) -> tuple[Any, Any]:
    """Scores (2, 3, 2, 4, 5) of 0, and values (2, 1, 1, 5, 2) of -1 and 1."""
    return np.zeros((2, 3, 2, 4, 5), dtype), np.where(np.arange(20).reshape(2, 1, 1, 5, 2) % 2, 1, -1).astype(dtype)


@pytest.mark.parametrize("dtype", FLOATS)
def test_each_reason_to_refuse_a_head(dtype: Any) -> None:
    scores, v = ordinary(dtype)
    given = scored(scores, v)
    assert not unsound(given.raw, given.alive).any()
    ln2, n = math.log(2), math.log(5)
    for power, off, wrong in (
        (LEAST, 0.05, False), (LEAST, -0.05, True), (LEAST, -90, True), (MOST, -0.05, False), (MOST, 0.05, True),
    ):  # fmt: skip
        changed = scores.copy()
        changed[1, 2, 0, 3] = (power[dtype] + off) * ln2 - n
        given = scored(changed, v)
        assert np.argwhere(unsound(given.raw, given.alive)).tolist() == [[1, 2]] * wrong, (power, off)
    for number in (NAN, INF):
        for array in ("total", "acc"):
            given = scored(scores, v)
            getattr(given.raw, array)[0, 1, 1, 2] = number
            assert np.argwhere(unsound(given.raw, given.alive)).tolist() == [[0, 1]]
    given.raw.acc[0, 1, 1, 2] = -INF
    assert np.argwhere(unsound(given.raw, given.alive)).tolist() == [[0, 1]]


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("sign", [1, -1])
def test_values_that_are_too_small(dtype: Any, sign: int) -> None:
    scores, v = ordinary(dtype)
    for off, wrong in ((0.05, False), (-0.05, True)):
        changed = v.copy()
        changed[1] = sign * 2.0 ** (VALUE[dtype] + off)
        given = scored(scores, changed)
        assert np.argwhere(unsound(given.raw, given.alive)).tolist() == [[1, 0], [1, 1], [1, 2]] * wrong
    none = scored(scores, v[..., :0])
    assert not unsound(none.raw, none.alive).any()  # no values are not too small


@pytest.mark.parametrize("dtype", FLOATS)
def test_rows_without_keys_are_not_counted(dtype: Any) -> None:
    scores, v = ordinary(dtype)
    seen = np.ones((2, 4, 5), bool)
    seen[0, 1] = False
    given = scored(scores, v, seen)
    assert not unsound(given.raw, given.alive).any()
    given.raw.total[1, 1, 1, 3] = 0  # but those that see some
    assert np.argwhere(unsound(given.raw, given.alive)).tolist() == [[1, 1]]
    nothing = scored(scores, v, np.zeros_like(seen))
    assert not unsound(nothing.raw, nothing.alive).any()


def test_who_is_alive_is_asked_only_if_some_total_is_small() -> None:
    given = scored(*ordinary(np.float32))
    assert not out_of_range(given.raw.total, lambda: pytest.fail("asked")).any()


@pytest.mark.parametrize("dtype", FLOATS)
def test_first_keys_that_bode_ill(dtype: Any) -> None:
    total = np.ones((2, 3, 2, 4), dtype)
    assert not overflowing(total).any()
    for number, wrong in ((2.0 ** EARLY[dtype], False), (2.0 ** EARLY[dtype] * 1.01, True), (INF, True), (NAN, True)):
        total[1, 0, 1, 2] = number
        assert np.argwhere(overflowing(total)).tolist() == [[1, 0]] * wrong
    total[...] = 0
    assert not overflowing(total).any()


@pytest.mark.parametrize("dtype", FLOATS)
def test_a_reference_is_outgrown_by_block(dtype: Any) -> None:
    given = scored(*ordinary(dtype)).raw
    assert outgrown(given).shape == (2, 3, 2)
    assert not outgrown(given).any()
    for number in (NAN, INF):
        for array in (given.total[1, 0, 1], given.acc[1, 0, 1, 3]):
            before, array[1] = array[1], number
            assert np.argwhere(outgrown(given)).tolist() == [[1, 0, 1]]
            array[1] = before
    given.acc[0, 2, 0, 0, 0] = -INF
    assert np.argwhere(outgrown(given)).tolist() == [[0, 2, 0]]


# ------------------------------------------------------------------------------------------------- what they are
def test_what_the_three_paths_are() -> None:
    assert PATHS == (RAW, REFERENCE, RUNNING, EXACT, LAST)
    assert [path.name for path in PATHS] == ["raw", "reference", "running", "running", "last"]
    assert RAW.reference == 0
    assert {path.reference for path in PATHS[1:]} == {None}
    assert [path.backwards for path in PATHS] == [False, True, False, False, False]
    assert [path.rescaled for path in PATHS] == [False, False, True, True, True]
    assert [path.shrunk for path in PATHS] == [False, False, False, False, True]
    for path in PATHS:  # the unit belongs to the base
        assert path.exp(np.array([path.unit]))[0] == pytest.approx(math.e, rel=1e-15)


def test_exp2_only_where_it_is_known_to_be_fast(monkeypatch: pytest.MonkeyPatch) -> None:
    def there(system: str, machine: str, config: Any) -> bool:
        monkeypatch.setattr(platform, "system", lambda: system)
        monkeypatch.setattr(platform, "machine", lambda: machine)
        monkeypatch.setattr(np, "show_config", lambda mode: config)
        return paths._fast_exp2()

    def found(*names: str) -> dict[str, Any]:
        return {"SIMD Extensions": {"found": list(names)}}

    assert there("Linux", "x86_64", found("AVX2", "AVX512_SKX"))
    assert there("Linux", "x86_64", found("X86_V4"))
    assert not there("Linux", "x86_64", found("AVX2"))
    assert not there("Windows", "x86_64", found("AVX512_SKX"))
    assert not there("Linux", "aarch64", found("AVX512_SKX"))
    for config in ({}, None, {"SIMD Extensions": {}}):
        assert not there("Linux", "x86_64", config)
