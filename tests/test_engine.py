"""The engine is the definition: the oracle's answer to all that is accepted, whatever the tiles and the path."""

from collections.abc import Callable
from itertools import pairwise, product
from math import log
from typing import Any

import numpy as np
import pytest
from bits import bits
from closeness import Expected, assert_lse, assert_out, dropout_factors, expected
from definition import Pass, assert_right, forced, gone_through, normal, path_of, qkv, taken, tiled
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from ml_dtypes import bfloat16
from predicates import FLOATS as FLOAT_TYPES
from strategies import Case, problems

import headwise as hw
from examples import fewer
from headwise import masks
from headwise.core import engine, paths
from headwise.core.paths import LOG2_E, PATHS, RAW

SIDE = st.integers(1, 12)
ALIBI = st.tuples(st.just("alibi"), st.sampled_from(["one", "items", "some"]), st.just("float64"))
FLOATS = [np.float32, np.float64]


# ------------------------------------------------------------------------------------ against the oracle
def definition(*args: Any, **options: Any) -> Any:
    return hw.scaled_dot_product_attention(*args, **options)[0]


def oracle_of(case: Case) -> Expected:
    """What the definition drops is dropped here."""
    if not case.recipe.dropout:
        return expected(case)
    return expected(case, dropout_factors(case.scores, case.recipe.dropout, case.recipe.seed, definition))


def assert_expected(got: Any, case: Case, wanted: Expected) -> None:
    out, lse = got
    assert_out(out, case, wanted)
    assert_lse(lse, case, wanted)


def with_tiles(case: Case, tile: tuple[int, int], threads: int = 1) -> Any:
    options = {name: value for name, value in case.options.items() if name != "rng"}
    plan = hw.attention_plan(*case.args, threads=threads, tile=tile, **options)
    return engine.run(plan, case.q, case.k, case.v, rng=case.options.get("rng"), return_lse=True)


@settings(max_examples=fewer(600))
@given(problems())
def test_out_and_lse_equal_the_oracle(case: Case) -> None:
    got = hw.attention(*case.args, **case.options, return_lse=True, threads=1)
    assert_expected(got, case, oracle_of(case))


@settings(max_examples=fewer(600))
@given(problems(), SIDE, SIDE)
def test_tiles_of_any_size_equal_the_oracle(case: Case, rows: int, cols: int) -> None:
    assert_expected(with_tiles(case, (rows, cols)), case, oracle_of(case))


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.name)
@settings(max_examples=fewer(250))
@given(case=problems(), rows=SIDE, cols=SIDE)
def test_whatever_is_tried_first_every_problem_equals_the_oracle(
    path: paths.Path, case: Case, rows: int, cols: int
) -> None:
    with forced(path):
        got = with_tiles(case, (rows, cols))
    assert_expected(got, case, oracle_of(case))


@settings(max_examples=fewer(250))
@given(
    problems(
        wild="none",
        dtypes=st.sampled_from(list(FLOAT_TYPES)).map(lambda name: (name, name, name)),
        size_qk=st.sampled_from(["normal", "tiny"]),
        size_v="normal",
        bias=st.none() | ALIBI,
        dropout=0.0,
    ),
    SIDE,
    SIDE,
)
def test_nothing_is_done_again_where_scores_are_small(case: Case, rows: int, cols: int) -> None:
    """Whatever the mask is, and also for queries and items that see nothing."""
    wanted = oracle_of(case)
    assume(wanted.spread.max(initial=0) < 40)
    with forced(RAW), gone_through() as passes:
        got = with_tiles(case, (rows, cols))
    assert taken(passes) in (["raw"], [])
    assert_expected(got, case, wanted)


def test_a_forced_path_is_taken() -> None:
    q, k, v = qkv(0, 9, 4)
    for path in PATHS:
        with forced(path), gone_through() as passes:
            assert path_of(q, k, v) == path.name
            hw.attention(q, k, v, return_lse=True)
        assert passes == [Pass(path.name, (0,), (0, 9))]


@settings(max_examples=fewer(100))
@given(problems(dropout=st.sampled_from([0.0625, 0.5])), SIDE, SIDE)
def test_one_number_is_drawn_and_only_for_dropout(case: Case, rows: int, cols: int) -> None:
    ours, theirs = (np.random.default_rng(case.recipe.seed) for _ in range(2))
    engine.run(
        hw.attention_plan(case.q, case.k, case.v, dropout=0.5, tile=(rows, cols)), case.q, case.k, case.v, rng=ours
    )
    definition(case.q, case.k, case.v, dropout=0.5, rng=theirs)
    assert ours.bit_generator.state == theirs.bit_generator.state
    hw.attention(case.q, case.k, case.v, rng=ours)
    assert ours.bit_generator.state == theirs.bit_generator.state


@pytest.mark.parametrize("tile", [None, (100, 50), (256, 128), (7, 200)])
def test_dropout_is_the_definitions_across_its_cells(tile: tuple[int, int] | None) -> None:
    """A cell holds 256 queries and 128 keys: tiles cut it, and hold several."""
    q, k, v = qkv(1, 2, 2, 600, 8)
    got = tiled(tile, q, k, v, causal=True, dropout=0.3, rng=5)
    assert_right(got, q, k, v, causal=True, dropout=0.3, rng=5)


# ------------------------------------------------------------------------------------- sizes of numbers
SIZES = {
    "v of 1e15": {"v": 1e15},
    "v of 1e-30": {"v": 1e-30},
    "v of 1e37": {"v": 1e37},
    "v whose squares underflow": {"v": 1e-23},
    "scores of hundreds": {"q": 100.0},
    "scores of millions": {"q": 1e6},
    "q large, k small": {"q": 1e25, "k": 1e-25},
    "q small, k large": {"q": 1e-25, "k": 1e25},
    "scale beyond 2**60": {"q": 1e-15, "k": 1e-15, "scale": 2.0**97},
    "scale below 2**-60": {"q": 1e15, "k": 1e15, "scale": -(2.0**-99)},
    "scale beyond float32": {"q": 1e-30, "k": 1e-30, "scale": 1e60},
    "scale below float32": {"q": 1e30, "k": 1e30, "scale": -1e-60},
    "scale that q would overflow with": {"q": 1e30, "k": 1e-37, "scale": 1e9},
    "sinks of 100": {"sinks": [100.0, -100.0]},
    "sinks of 1e35": {"sinks": [1e35, -1e35]},
    "a sink of -inf": {"sinks": [-np.inf, 2.0]},
    "large scores capped": {"q": 1e4, "k": 1e4, "softcap": 3.0},
    "large scores, large cap": {"q": 1e3, "softcap": 500.0},
    "steep slopes": {"bias": hw.alibi([300.0, -80.0])},
    "negative slopes": {"bias": hw.alibi([-0.5, 0.0], offset=-3)},
    "nothing but a bias": {"q": 0.0, "bias": normal(9, 2, 1, 300) * 50},
}


@pytest.mark.parametrize("rule", [None, masks.window(4, 0), masks.lengths(123) & masks.causal()], ids=str)
@pytest.mark.parametrize("name", SIZES)
def test_numbers_of_any_size(name: str, rule: Any) -> None:
    options = {"mask": rule, **SIZES[name]}
    q, k, v = (x * np.float32(options.pop(y, 1.0)) for x, y in zip(qkv(2, 2, 300, 5), "qkv", strict=True))
    for tile in (None, (64, 37)):
        assert_right(tiled(tile, q, k, v, **options), q, k, v, **options)


def test_slopes_that_overflow_float32_mask() -> None:
    q, k, v = qkv(2, 2, 300, 5)
    slopes = hw.alibi([3e37, 0.5])
    with np.errstate(over="ignore"):
        dense = slopes.dense((2, 300, 300)).astype(np.float32)
    assert np.isneginf(dense).any()
    for tile in (None, (64, 37)):
        assert_right(tiled(tile, q, k, v, bias=slopes), q, k, v, bias=dense)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("size", [1.0, 50.0])
def test_many_keys_for_few_queries(dtype: Any, size: float) -> None:
    q, (k, v) = normal(3, 3, 4, dtype=dtype) * dtype(size), normal(4, 2, 100_000, 4, dtype=dtype)
    for options in ({}, {"mask": masks.window(500, 0)}, {"mask": masks.lengths(70_001)}):
        assert_right(hw.attention(q, k, v, return_lse=True, **options), q, k, v, **options)


@pytest.mark.parametrize("dtype", [np.float16, bfloat16])
def test_half_types_over_many_tiles(dtype: Any) -> None:
    q, k, v = qkv(5, 2, 3, 500, 16, dtype=dtype)
    assert_right(hw.attention(q, k, v, causal=True, return_lse=True), q, k, v, causal=True)


def test_two_half_types_meet_in_float32() -> None:
    q, k, v = qkv(5, 300, 16)
    q, k, v = q.astype(np.float16), k.astype(bfloat16), v.astype(np.float16)
    out, lse = hw.attention(q, k, v, return_lse=True)
    assert out.dtype == lse.dtype == np.float32
    assert_right((out, lse), q, k, v)


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.name)
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("n", [3, 40, 300])
def test_values_whose_sum_overflows(n: int, dtype: Any, path: paths.Path) -> None:
    """An output is a mean of values, and so never overflows; other heads are ordinary, small or hold a NaN."""
    q, k, v = qkv(3, 16, n, 2, dtype=dtype)
    v[1], v[2, :, 0], v[5, 1, 1] = 0.9 * np.finfo(dtype).max, -0.9 * np.finfo(dtype).max, 0.9 * np.finfo(dtype).max
    v[3] *= dtype(1e-30)
    v[4, 1] = np.nan
    with forced(path):
        for options in ({}, {"causal": True, "sinks": np.zeros(16)}):
            got = tiled((16, 24), q, k, v, **options)
            assert_right(got, q, k, v, **options)
        together = hw.attention(q, k, v, return_lse=True)[0]
        for head in range(16):
            alone = hw.attention(q[head], k[head], v[head], return_lse=True)[0]
            assert bits(alone) == bits(together[head])


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.name)
def test_large_values_and_dropout(path: paths.Path) -> None:
    """Sums of values that fit, and no longer would if they were divided by the probability of being kept."""
    q, k, v = np.zeros((100, 2), np.float32), np.ones((40, 2), np.float32), np.full((40, 3), 9e36, np.float32)
    with forced(path):
        got = tiled((32, 16), q, k, v, dropout=0.25, rng=1)
    assert_right(got, q, k, v, dropout=0.25, rng=1)


# ------------------------------------------------------------------------------------ masks against tiles
@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.name)
def test_edges_of_windows_on_and_beside_edges_of_tiles(path: paths.Path) -> None:
    q, k, v = qkv(6, 40, 3, dtype=np.float64)
    for left, right, tile in product((None, 0, 1, 7, 8, 9, 39), (0, 1, 7, 8, 9, None), ((8, 8), (5, 16), (40, 1))):
        mask = masks.window(left, right)
        with forced(path):
            got = tiled(tile, q, k, v, mask=mask)
        assert_right(got, q, k, v, mask=mask)


@pytest.mark.parametrize(("n_q", "n_k"), [(300, 40), (40, 300), (257, 256), (1, 129), (129, 1)])
@pytest.mark.parametrize("size", [1.0, 40.0, np.inf], ids=["small", "large", "inf"])
def test_causal_with_more_queries_than_keys_and_fewer(n_q: int, n_k: int, size: float) -> None:
    """Infinite is a key that no query sees."""
    q, (k, v) = normal(7, n_q, 4), normal(8, 2, n_k, 4)
    mask: Any = None
    if np.isfinite(size):
        q *= np.float32(size)
    else:
        k[0], v[0], mask = np.inf, np.nan, masks.keys(np.arange(n_k) > 0)
    assert_right(hw.attention(q, k, v, mask, causal=True, return_lse=True), q, k, v, mask=mask, causal=True)


@pytest.mark.parametrize("size", [1.0, 40.0], ids=["raw", "reference"])
def test_first_tiles_in_which_a_query_sees_nothing(size: float) -> None:
    """From both ends: the nearest key of most queries is in a later tile."""
    q, k, v = qkv(8, 2, 400, 8)
    holes = np.random.default_rng(0).random((400, 400)) < 0.004
    for mask in (masks.window(2, 0), masks.window(0, 2), masks.causal(-200), masks.window(3, 3, offset=-150), holes):
        got = hw.attention(q * np.float32(size), k, v, mask, return_lse=True)
        assert_right(got, q * np.float32(size), k, v, mask=mask)


PER_ITEM = {
    "offsets": {"mask": masks.causal(offset=[0, 50, -100])},
    "offsets of alibi": {"bias": hw.alibi([0.5, 0.0625, 1.0, 2.0], offset=[0, 90, -7]), "causal": True},
    "lengths and a window": {"mask": masks.lengths([150, 1, 0]) & masks.window(20, 3)},
    "segments": {"mask": masks.segments(np.arange(150) // 40, np.arange(3)[:, None] + np.arange(150) // 37)},
    "arrays per item": {"mask": normal(10, 3, 1, 150, 150) > 0.5},
    "arrays per head": {"mask": normal(10, 4, 150, 150) > 0.5},
    "arrays per head and item": {"mask": normal(10, 3, 4, 1, 150) > 0.5},
    "arrays per query": {"mask": normal(10, 3, 4, 150, 1) > 0.5},
    "a bias per head": {"bias": normal(11, 4, 150, 150)},
    "a bias per item with -inf": {"bias": np.where(normal(11, 3, 1, 150, 150) > 1, -np.inf, 0.5)},
    "a bias per key": {"bias": np.where(normal(11, 3, 1, 1, 150) > 1, -np.inf, 0.5), "sinks": [0.0, 1.0, 2.0, -3.0]},
    "dropout": {"dropout": 0.25, "rng": 3, "mask": masks.lengths([150, 3, 80])},
    "all of it per head": {
        "mask": normal(10, 4, 150, 150) > 0.5,
        "bias": hw.alibi([0.5, 0.0625, 1.0, 2.0], offset=[0, 90, -7]),
        "sinks": [0.0, 1.0, 2.0, -3.0],
        "dropout": 0.25,
        "rng": 4,
    },
}


@pytest.mark.parametrize("groups", [4, 2, 1])
@pytest.mark.parametrize("name", PER_ITEM)
def test_masks_and_biases_that_differ_by_item_or_head(name: str, groups: int) -> None:
    options = PER_ITEM[name]
    q, (k, v) = normal(12, 3, 4, 150, 8), normal(13, 2, 3, groups, 150, 8)
    for size in (1.0, 60.0):
        got = tiled((48, 32), q * np.float32(size), k, v, **options)
        assert_right(got, q * np.float32(size), k, v, **options)


def test_values_that_are_not_finite_behind_a_mask_that_differs() -> None:
    """Those that some queries see spoil these queries, and no others."""
    q, (k, v) = normal(14, 3, 4, 150, 8), normal(15, 2, 3, 2, 150, 8)
    v[0, 0, 3], v[1, 1, 77, 2], v[2, :, -1], k[2, 0, -1] = np.nan, np.inf, -np.inf, np.nan
    for mask in (masks.causal(), masks.lengths([3, 80, 149]), normal(16, 3, 4, 150, 150) > 0):
        out, _ = got = tiled((48, 32), q, k, v, mask=mask)
        assert_right(got, q, k, v, mask=mask)
        assert np.isfinite(out).any()
        assert not np.isfinite(out).all() or isinstance(mask, masks.Mask)


# ------------------------------------------------------------------------------------------ memory layouts
def swapped(x: Any) -> Any:
    return x.astype(x.dtype.newbyteorder())


def unaligned(x: Any) -> Any:
    room = np.zeros(x.nbytes + 1, np.uint8)[1:].view(x.dtype).reshape(x.shape)
    room[...] = x
    return room


LAYOUTS: dict[str, Callable[[Any], Any]] = {
    "other bytes": swapped,
    "unaligned": unaligned,
    "columns apart": lambda x: np.repeat(x, 2, axis=-1)[..., ::2],
    "turned": lambda x: np.ascontiguousarray(x.swapaxes(-1, -2)).swapaxes(-1, -2),
    "rows reversed": lambda x: np.ascontiguousarray(x[..., ::-1, :])[..., ::-1, :],
    "columns reversed": lambda x: np.ascontiguousarray(x[..., ::-1])[..., ::-1],
    "float64": lambda x: x.astype(np.float64),
    "float16": lambda x: x.astype(np.float16),
    "tokens before heads": lambda x: np.ascontiguousarray(x.swapaxes(1, 2)).swapaxes(1, 2),
    "batch last": lambda x: np.ascontiguousarray(np.moveaxis(x, 0, -1)).transpose(3, 0, 1, 2),
    "one row for all": lambda x: np.broadcast_to(x[..., :1, :], x.shape),
    "one item for all": lambda x: np.broadcast_to(x[:1], x.shape),
    "one head for all": lambda x: np.broadcast_to(x[:, :1], x.shape),
    "one number for all": lambda x: np.broadcast_to(x[0, 0, 0, 0], x.shape),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_arrays_that_lie_otherwise(name: str) -> None:
    """All three, and k and v alone; as they are, and where each item has a mask of its own."""
    lie, (q, k, v) = LAYOUTS[name], normal(17, 3, 2, 4, 130, 8)
    for arrays in ((lie(q), lie(k), lie(v)), (q, lie(k), v), (q, k, lie(v))):
        for options in ({}, {"mask": masks.lengths([70, 130])}, {"bias": hw.alibi([1.0, 0.5, 0.25, 0.125])}):
            assert_right(tiled((32, 48), *arrays, **options), *arrays, **options)


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2), (1, 2, 0)])
def test_several_batch_axes_in_any_order(order: tuple[int, ...]) -> None:
    """Whether or not they can be taken as one without a copy."""
    back = np.argsort(order)
    q, k, v = (
        np.ascontiguousarray(x.transpose(*order, 3, 4)).transpose(*back, 3, 4) for x in normal(18, 3, 2, 3, 4, 70, 4)
    )
    k, v = k[:, :, ::2], v[:, :1, ::2]
    for mask in (None, masks.causal(offset=np.arange(6).reshape(2, 3)), normal(19, 3, 1, 70, 70) > 0):
        assert_right(tiled((16, 32), q, k, v, mask=mask), q, k, v, mask=mask)


# -------------------------------------------------------------------------------------------- paths and their limits
LN2, N = log(2), 40  # tokens: more scores than those of a tiny head
LEAST, MOST = {np.float32: -60, np.float64: -500}, {np.float32: 100, np.float64: 900}
EARLY, VALUE = {np.float32: 80, np.float64: 600}, {np.float32: -40, np.float64: -400}
Given = tuple[Any, Any, Any]


def one_row(dtype: Any, row: float, k: Any) -> Given:
    """Scores ``row * k`` in one of the queries, and 0 in all others."""
    q, v = np.zeros((N, 1)), (2 + np.cos(np.arange(N)))[:, None] / 3
    q[17] = row
    return q.astype(dtype), k.astype(dtype), v.astype(dtype)


def of_least(dtype: Any, off: float) -> Given:
    """The total of a row."""
    return one_row(dtype, (LEAST[dtype] + off) * LN2 - log(N), np.ones((N, 1)))


def of_most(dtype: Any, off: float) -> Given:
    """The total of a row; that of its first 8 keys is 8."""
    k = (np.arange(N) >= 8)[:, None]
    return one_row(dtype, (MOST[dtype] - off) * LN2 - log(N - 8), k)


def of_early(dtype: Any, off: float) -> Given:
    """The total of a row over its first 8 keys."""
    k = (np.arange(N) < 8)[:, None]
    return one_row(dtype, (EARLY[dtype] - off) * LN2 - log(8), k)


def of_values(dtype: Any, off: float) -> Given:
    """All values, and so all outputs."""
    q, k, _ = one_row(dtype, 0.0, np.ones((N, 1)))
    return q, k, np.full((N, 3), -(2.0 ** (VALUE[dtype] + off)), dtype)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("make", [of_least, of_most, of_early, of_values])
def test_right_on_both_sides_of_every_limit(make: Callable[[Any, float], Given], dtype: Any) -> None:
    for off, wanted in ((0.05, ["raw"]), (-0.05, ["raw", "reference"]), (-40.0, ["raw", "reference"])):
        q, k, v = make(dtype, off)
        with gone_through() as passes:
            got = tiled((16, 8), q, k, v, scale=1.0)
        assert taken(passes) == wanted
        assert_right(got, q, k, v, scale=1.0)
        for mask in (masks.window(0, 0), masks.causal(), np.eye(N, dtype=bool)[::-1], masks.lengths(11)):
            for tile in (None, (5, 3)):
                got = tiled(tile, q, k, v, mask=mask, scale=1.0)
                assert_right(got, q, k, v, mask=mask, scale=1.0)


def test_a_steep_alibi_begins_with_a_reference() -> None:
    q, k, v = qkv(20, N, 4)
    edge = 60 / LOG2_E / (N - 1)
    for slope, name in ((0.99999 * edge, "raw"), (1.00001 * edge, "reference")):
        for sign in (1, -1):
            bias = hw.alibi([sign * slope])
            assert path_of(q, k, v, bias=bias) == name
            for mask in (None, masks.causal(), masks.lengths(3)):
                got = hw.attention(q, k, v, mask, bias=bias, return_lse=True)
                assert_right(got, q, k, v, mask=mask, bias=bias)


def test_few_scores_begin_with_the_running_maximum() -> None:
    for n_q, n_k, name in ((32, 32, "running"), (25, 41, "raw"), (1024, 1, "running"), (40, 26, "raw")):
        q, (k, v) = normal(20, n_q, 4), normal(21, 2, n_k, 4)
        with gone_through() as passes:
            got = hw.attention(q, k, v, return_lse=True)
        assert taken(passes) == [path_of(q, k, v)] == [name]
        assert_right(got, q, k, v)


@pytest.mark.parametrize("dtype", FLOATS)
def test_more_keys_than_a_total_bears(dtype: Any) -> None:
    """Each score alone is well within; a sum of so many powers is not."""
    size = (EARLY[dtype] - 5) * LN2
    for n_k, wanted in ((16, ["raw"]), (4096, ["raw", "reference"])):
        q, k, v = np.full((100, 1), size, dtype), np.ones((n_k, 1), dtype), normal(3, n_k, 2, dtype=dtype)
        with gone_through() as passes:
            got = tiled((100, 4096), q, k, v, scale=1.0)
        assert taken(passes) == wanted
        assert_right(got, q, k, v, scale=1.0)


@pytest.mark.parametrize("factor", [15, 40, 100, 1000])
@pytest.mark.parametrize("dtype", FLOATS)
def test_huge_scores(dtype: Any, factor: int) -> None:
    q, k, v = qkv(20, 3, 200, 16, dtype=dtype)
    q *= dtype(factor)
    for options in ({}, {"causal": True}, {"bias": hw.alibi([0.1, 0.01, 2.0])}, {"mask": masks.window(20, 0)}):
        assert_right(hw.attention(q, k, v, return_lse=True, **options), q, k, v, **options)


# ----------------------------------------------------------------------------------------------- what is done again
def dead(*rows: int) -> Any:
    mask = np.random.default_rng(1).random((N, N)) < 0.3
    mask[:, 3], mask[list(rows)] = True, False
    return mask


DEAD = {
    "a row": dead(5),
    "a block": dead(*range(16, 24)),
    "the first and the last": dead(0, N - 1),
    "all": masks.lengths(0),
    "a few queries": masks.causal(-9),
    "all but a few": masks.window(0, 0, offset=35),
}


@pytest.mark.parametrize("tile", [None, (8, 8), (7, 11)])
@pytest.mark.parametrize("name", DEAD)
def test_rows_that_see_nothing_are_no_reason_to_do_it_again(name: str, tile: Any) -> None:
    q, k, v = qkv(20, 2, N, 4)
    with gone_through() as passes:
        got = tiled(tile, q, k, v, mask=DEAD[name])
    assert taken(passes) == ["raw"]
    assert_right(got, q, k, v, mask=DEAD[name])


@pytest.mark.parametrize("tile", [None, (8, 8), (7, 11)])
def test_rows_that_see_keys_and_sum_to_nothing_are(tile: Any) -> None:
    q, k, v = qkv(20, 2, N, 4)
    q[1, 5], k[..., 0] = 0, 1
    q[1, 5, 0] = -1000
    for mask, wanted in ((dead(7), ["raw", "reference"]), (dead(5), ["raw"])):
        with gone_through() as passes:
            got = tiled(tile, q, k, v, mask=mask)
        assert taken(passes) == wanted
        assert {head for each in passes if each.path == "reference" for head in each.heads} <= {1}
        assert_right(got, q, k, v, mask=mask)


def test_sinks_do_not_hide_that_a_row_summed_to_nothing() -> None:
    q, k, v = qkv(20, 2, N, 4)
    q[1, 5], k[..., 0] = 0, 1
    q[1, 5, 0] = -1000
    for sinks in ([0.0, -500.0], [0.0, 0.0], [0.0, -np.inf]):
        assert_right(hw.attention(q, k, v, sinks=sinks, return_lse=True), q, k, v, sinks=sinks)


@pytest.mark.parametrize("wild", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("tile", [None, (8, 16)])
def test_hidden_values_that_are_not_finite_go_through_all_three(tile: Any, wild: float) -> None:
    q, k, v = qkv(20, 3, 90, 4)
    v[1, 70:] = wild
    for mask in (masks.lengths(70), masks.causal(), masks.window(20, 0)):
        with gone_through() as passes:
            got = tiled(tile, q, k, v, mask=mask)
        seen = [] if mask.words().startswith("keys before") else ["last"]  # by some queries, whose rows stay NaN
        assert taken(passes) == ["raw", "reference", "running", *seen]
        assert {head for each in passes if each.path != "raw" for head in each.heads} == {1}
        assert_right(got, q, k, v, mask=mask)


def mixed() -> Given:
    """Sixteen heads, of which eleven are ordinary."""
    q, k, v = qkv(20, 4, 4, 90, 8)
    q[0, 1] *= 100  # scores of hundreds
    v[0, 2, 5] = np.inf
    v[0, 3] *= np.float32(1e-30)
    q[1, 0, 40] *= 1000  # in one query alone
    k[1, 2, -1] = 50 * q[1, 2, -1]  # in the last key alone
    return q, k, v


@pytest.mark.parametrize("options", [{}, {"causal": True}, {"softcap": 200.0}], ids=str)
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_a_head_that_is_done_again_changes_no_bit_beside_it(threads: int, options: dict[str, Any]) -> None:
    q, k, v = mixed()
    assert hw.attention_plan(q, k, v, **options).paths == {"raw": 16}
    with gone_through() as passes:
        out, lse = hw.attention(q, k, v, return_lse=True, threads=threads, **options)
    again = {head for each in passes if each.path == "reference" for head in each.heads}
    assert again == {1, 2, 3, 4, 6}
    for at in np.ndindex(4, 4):
        alone = hw.attention(q[at][None], k[at][None], v[at][None], return_lse=True, threads=1, **options)
        assert (bits(out[at]), bits(lse[at])) == (bits(alone[0]), bits(alone[1])), at
    assert_right((out, lse), q, k, v, **options)


def test_heads_that_begin_differently_are_what_they_are_alone() -> None:
    q, k, v = qkv(20, 4, 90, 8)
    slopes = [0.1, 5.0, 0.01, -3.0]
    assert hw.attention_plan(q, k, v, bias=hw.alibi(slopes)).paths == {"raw": 2, "reference": 2}
    for threads in (1, 2, 3):
        out = hw.attention(q, k, v, bias=hw.alibi(slopes), threads=threads)
        for head, slope in enumerate(slopes):
            alone = hw.attention(*(x[head][None] for x in (q, k, v)), bias=hw.alibi([slope]))
            assert bits(out[head]) == bits(alone)


# --------------------------------------------------------------------------------------- references that are outgrown
def rising(n: int, dtype: Any, factor: float) -> tuple[Any, Any, Any]:
    """The last half of the queries score ever more the further back a key is; the first half score next to nothing."""
    q = np.where(np.arange(n) < n // 2, 0.0, factor)[:, None]
    return q.astype(dtype), np.linspace(1, 0, n)[:, None].astype(dtype), normal(21, n, 3, dtype=dtype)


@pytest.mark.parametrize(("dtype", "factor"), [(np.float32, 200.0), (np.float64, 2000.0)])
@pytest.mark.parametrize("option", ["none", "causal", "sinks", "dropout", "capped", "bias"])
def test_blocks_whose_reference_is_outgrown_are_done_again(dtype: Any, factor: float, option: str) -> None:
    n = 320
    q, k, v = rising(n, dtype, factor)
    options: dict[str, Any] = {
        "none": {},
        "causal": {"causal": True},
        "sinks": {"sinks": [3.0]},
        "dropout": {"dropout": 0.25, "rng": 7},
        "capped": {"softcap": 10 * factor},
        "bias": {"bias": np.linspace(1, 0, n)[None, :].astype(dtype)},
    }[option]
    with gone_through() as passes:
        got = tiled((32, 32), q, k, v, **options)
    again = sorted(each.rows for each in passes if each.path == "running")
    assert again == [(i, i + 32) for i in range(n // 2, n, 32)]  # those blocks alone
    assert_right(got, q, k, v, **options)


def test_values_may_outgrow_a_reference_too() -> None:
    """The totals stay finite, the sums of values do not."""
    q, k, v = rising(320, np.float32, 80.0)
    v *= np.float32(1e15)
    with gone_through() as passes:
        got = tiled((32, 32), q, k, v)
    assert set(taken(passes)) == {"raw", "reference", "running"}
    assert_right(got, q, k, v)


def test_a_reference_that_stays_above_is_never_done_again() -> None:
    q, k, v = rising(320, np.float32, 200.0)
    with gone_through() as passes:
        got = tiled((32, 32), q, k[::-1], v)
    assert set(taken(passes)) == {"raw", "reference"}
    assert_right(got, q, k[::-1], v)


def test_a_score_that_falls_far_below_its_reference_weighs_nothing() -> None:
    q, k, v = (np.array(x, np.float32)[:, None] for x in ([1.0], [-500.0, 0.0, -300.0, 500.0], [np.pi, 1.0, 2.0, 3.0]))
    for visible in ([1, 1, 1, 1], [1, 1, 1, 0], [1, 0, 1, 0], [1, 0, 0, 0]):
        mask = np.array(visible, bool)
        for path in PATHS:
            with forced(path):
                got = tiled((1, 1), q, k, v, mask=mask)
            assert_right(got, q, k, v, mask=mask)


# ------------------------------------------------------------------------------------------------------ empty axes
AXES = ("B", "H", "G", "n_q", "n_k", "d_k", "d_v")
SIZES_OF_AXES = dict(zip(AXES, (2, 4, 2, 5, 6, 3, 2), strict=True))


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("empty", [(), *((axis,) for axis in AXES), *pairwise((*AXES, "B"))], ids=" ".join)
def test_empty_axes_are_the_definitions(empty: tuple[str, ...], threads: int) -> None:
    sizes = SIZES_OF_AXES | dict.fromkeys(empty, 0)
    if not sizes["G"]:
        sizes["H"] = 0
    B, H, G, n_q, n_k, d_k, d_v = (sizes[axis] for axis in AXES)
    q, k, v = normal(22, B, H, n_q, d_k), normal(23, B, G, n_k, d_k), normal(24, B, G, n_k, d_v)
    slopes = np.ones(H)
    every = [
        {},
        {"causal": True, "sinks": slopes},
        {"mask": masks.lengths(np.full(B, n_k)) & masks.window(2, 1), "bias": hw.alibi(slopes)},
        {"mask": np.ones((B, H, n_q, n_k), bool), "bias": np.zeros((B, 1, n_q, n_k)), "dropout": 0.5, "rng": 1},
    ]
    for options in every:
        steps = hw.attention_steps(q, k, v, **options)
        out, lse = hw.attention(q, k, v, return_lse=True, threads=threads, **options)
        assert (out.shape, out.dtype, lse.shape, lse.dtype) == (steps.out.shape, q.dtype, steps.lse.shape, q.dtype)
        np.testing.assert_allclose(out, steps.out, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(lse, steps.lse, rtol=1e-5, atol=1e-6)
        plan = hw.attention_plan(q, k, v, **{name: x for name, x in options.items() if name != "rng"})
        assert (plan.computed > 0) == (0 not in (B, H, n_q, n_k))
        assert repr(plan).startswith("scores")
