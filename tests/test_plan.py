"""Plans: counts against the dense mask, what they say of arrays and of shapes alone, what they print and refuse."""

import math
import re
from dataclasses import FrozenInstanceError, fields
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from bits import bits
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import Ruled, rules

import headwise as hw
from examples import fewer
from headwise import attention_plan, masks

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
RNG = np.random.default_rng(0)
LEAD, N_Q, N_K, D = (2, 3), 11, 17, 4
Q, K, V = ((*LEAD, n, D) for n in (N_Q, N_K, N_K))
SCORES = (*LEAD, N_Q, N_K)


def exactly(text: str) -> str:
    return f"^{re.escape(text)}$"


def counted(dense: Any, tile: tuple[int, int]) -> tuple[int, int, int, int, int]:
    """Tiles, computed, partial, skipped, and pairs in computed tiles: by looking at every block of the mask."""
    *_, n_q, n_k = dense.shape
    tiles = computed = partial = pairs = 0
    for at in np.ndindex(dense.shape[:-2]):
        for i in range(0, n_q, tile[0]):
            for j in range(0, n_k, tile[1]):
                block = dense[at][i : i + tile[0], j : j + tile[1]]
                tiles += 1
                computed += bool(block.any())
                partial += bool(block.any() and not block.all())
                pairs += block.size if block.any() else 0
    return tiles, computed, partial, tiles - computed, pairs


def assert_counts(plan: Any, dense: Any) -> None:
    *wanted, pairs = counted(dense, plan.tile)
    assert [plan.tiles, plan.computed, plan.partial, plan.skipped] == wanted
    assert plan.flops == 2 * pairs * (plan.grid.p.q.shape[-1] + plan.grid.p.v.shape[-1])


# ------------------------------------------------------------------------------------------------- counts
PER_HEAD, PER_ITEM = RNG.random((3, N_Q, N_K)) < 0.2, RNG.random((2, 1, N_Q, N_K)) < 0.2
IDS = RNG.integers(0, 3, (2, N_Q)), RNG.integers(0, 3, (2, N_K))
RULES = {
    "causal": masks.causal(),
    "causal per item": masks.causal([-3, 9]),
    "window": masks.window(2, 1),
    "window per item": masks.window(3, 0, [0, 6]),
    "lengths": masks.lengths([5, 17]),
    "no keys": masks.lengths([0, 4]),
    "keys": masks.keys(RNG.random((2, N_K)) < 0.3),
    "segments": masks.segments(*IDS),
    "positions": masks.positions(np.sort(IDS[0] * 5), np.arange(N_K)),
    "per head": PER_HEAD,
    "per item": PER_ITEM,
    "per item and head": RNG.random(SCORES) < 0.2,
    "one for all": RNG.random((N_Q, N_K)) < 0.2,
    "rows alone": RNG.random((N_Q, 1)) < 0.5,
    "and": masks.window(4, 4) & masks.lengths([9, 13]) & PER_HEAD,
    "or": masks.causal() | masks.keys(np.arange(N_K) < 2),
    "not": ~(masks.segments(*IDS) | masks.window(1, 1)),
}


@pytest.mark.parametrize("tile", [(1, 1), (3, 4), (4, 3), (11, 17), (5, 100), (2, 17), (11, 1), None], ids=str)
@pytest.mark.parametrize("name", RULES)
def test_counts_are_what_the_dense_mask_says(name: str, tile: Any) -> None:
    dense = masks.as_mask(RULES[name]).dense(SCORES)
    plan = attention_plan(Q, K, V, RULES[name], tile=tile)
    assert tile is None or plan.tile == (min(tile[0], N_Q), min(tile[1], N_K))
    assert_counts(plan, dense)
    both = attention_plan(Q, K, V, RULES[name], causal=True, tile=tile)
    assert_counts(both, dense & masks.causal().dense(SCORES))


@pytest.mark.parametrize("options", [{}, {"causal": True}, {"mask": masks.window(90, 10)}, {"dropout": 0.5}], ids=str)
@pytest.mark.parametrize("sizes", [(1, 1), (1, 700), (300, 1), (517, 513), (130, 900), (64, 64), (512, 128)], ids=str)
def test_counts_of_sizes_of_its_own_choice(sizes: tuple[int, int], options: dict[str, Any]) -> None:
    n_q, n_k = sizes
    plan = attention_plan((3, n_q, 32), (3, n_k, 32), (3, n_k, 8), **options)
    mask = masks.causal() if options.get("causal") else options.get("mask", masks.window(None, None))
    assert_counts(plan, mask.dense((3, n_q, n_k)))


@settings(max_examples=fewer(200))
@given(rules(), st.tuples(st.integers(1, 5), st.integers(1, 5)))
def test_counts_of_any_mask(ruled: Ruled, tile: tuple[int, int]) -> None:
    *lead, n_q, n_k = ruled.scores
    plan = attention_plan((*lead, n_q, 2), (*lead, n_k, 2), (*lead, n_k, 3), ruled.mask, tile=tile)
    assert_counts(plan, ruled.dense)


@pytest.mark.parametrize(
    "shapes", [((2, 6), (2, 2)), ((2, 6), (2, 1)), ((6,), (6,)), ((2, 1), (2, 4)), ((), ())], ids=str
)
def test_heads_are_counted_once_each(shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    lead, lead_kv = shapes
    plan = attention_plan((*lead, 7, 4), (*lead_kv, 9, 4), (*lead_kv, 9, 4), causal=True, tile=(3, 2))
    heads = math.prod(lead) if lead[-1:] != (1,) else math.prod(lead_kv)
    assert plan.scores[-2:] == (7, 9)
    assert math.prod(plan.scores[:-2]) == heads
    assert_counts(plan, masks.causal().dense(plan.scores))


@pytest.mark.parametrize(
    ("lead", "n_q", "n_k"), [((2, 3), 0, 5), ((2, 3), 5, 0), ((0, 3), 5, 5), ((2, 0), 5, 5), ((0,), 0, 0)], ids=str
)
def test_empty_problems_have_empty_plans(lead: tuple[int, ...], n_q: int, n_k: int) -> None:
    """Also under a mask that would differ from head to head, were there any."""
    per_head = np.ones((*lead, n_q, n_k), bool)
    for mask in (None, per_head, masks.causal(), per_head[..., :1, :, :]):
        plan = attention_plan((*lead, n_q, 2), (*lead, n_k, 2), (*lead, n_k, 2), mask)
        assert (plan.tiles, plan.computed, plan.partial, plan.skipped, plan.flops) == (0, 0, 0, 0, 0)
        assert plan.tasks == len(plan.grid.tasks())
        assert plan.threads == 1 or plan.tasks > 1
        assert "tiles    0: 0 computed (0 partly masked), 0 skipped (0%)" in repr(plan)


def test_flops_by_hand() -> None:
    """4 queries see 3, 4, 5 and 6 of 6 keys: of six tiles of 2 x 2, the last one above is empty, two are partial."""
    plan = attention_plan((4, 5), (6, 5), (6, 7), causal=True, tile=(2, 2))
    assert (plan.tiles, plan.computed, plan.partial, plan.skipped) == (6, 5, 2, 1)
    assert plan.flops == 5 * (2 * 2) * 2 * (5 + 7)


# ------------------------------------------------------------------------------------- arrays and shapes
def numbers(shape: tuple[int, ...], dtype: Any = np.float32, size: float = 1.0) -> Any:
    array = (size * np.random.default_rng(len(shape)).standard_normal(shape)).astype(dtype)
    array.flags.writeable = False
    return array


def told(plan: Any, *but: str) -> dict[str, Any]:
    return {f.name: getattr(plan, f.name) for f in fields(plan) if f.name not in ("grid", *but)}


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, BFLOAT16, np.int64, np.bool_, ">f4"], ids=str)
@pytest.mark.parametrize("options", [{}, {"causal": True, "threads": 2}, {"dropout": 0.5, "tile": (3, 5)}], ids=str)
def test_shapes_give_the_plan_of_arrays(dtype: Any, options: dict[str, Any]) -> None:
    arrays = [numbers(shape, dtype) for shape in (Q, K, V)]
    of_arrays, of_shapes = attention_plan(*arrays, **options), attention_plan(Q, K, V, dtype=dtype, **options)
    assert told(of_arrays, "bytes") == told(of_shapes, "bytes")
    assert of_shapes.paths == {"running": 6}
    assert of_arrays.grid.p.computing == of_shapes.grid.p.computing
    assert of_arrays.grid.p.dtype == of_shapes.grid.p.dtype


def test_a_shape_beside_arrays_is_a_shape() -> None:
    plan = attention_plan(numbers(Q), K, numbers(V))
    assert plan.scores == SCORES
    assert plan.paths == {"running": 6}


def test_sizes_may_be_of_numpy() -> None:
    assert attention_plan(tuple(np.array(Q)), tuple(np.int32(n) for n in K), V).scores == SCORES


def test_lists_and_tuples_of_arrays_are_arrays() -> None:
    rows = [[1.0, 2.0], [3.0, 4.0]]
    for x in (rows, tuple(rows), tuple(tuple(row) for row in rows), tuple(np.array(rows)), ((1, 2), (3, 4))):
        plan = attention_plan(x, x, x)
        assert plan.scores == (2, 2)
        assert plan.paths == {"running": 1}
        assert plan.grid.p.dtype == np.float64


def test_the_type_of_shapes_is_float32_unless_said_otherwise() -> None:
    assert attention_plan(Q, K, V).grid.p.dtype == np.float32
    assert attention_plan(Q, K, V, dtype="float64").grid.p.dtype == np.float64
    assert attention_plan(Q, K, V, dtype=int).grid.p.dtype == np.float64
    assert attention_plan(Q, K, V, dtype=BFLOAT16).grid.p.dtype == BFLOAT16


def test_arrays_keep_their_own_type() -> None:
    assert (
        attention_plan(*(numbers(shape, np.float64) for shape in (Q, K, V)), dtype=np.float16).grid.p.dtype
        == np.float64
    )


LONG = (*LEAD, 40, D)


def test_paths_are_counted_by_head() -> None:
    """Which one is tried first goes by shapes and biases, never by numbers."""
    q, k, v = (numbers(LONG).copy() for _ in range(3))
    q[:, 1] *= 1e4
    v[:, 2, 3, 1] = np.nan
    for arrays in ((q, k, v), (LONG, LONG, LONG)):
        assert attention_plan(*arrays).paths == {"raw": 6}
        assert attention_plan(*arrays, masks.lengths([40, 5])).paths == {"raw": 6}
        assert attention_plan(*arrays, np.ones((3, 1, 1), bool), threads=3, tile=(2, 2)).paths == {"raw": 6}
        assert attention_plan(*arrays, sinks=[0.0, 500.0, -np.inf], softcap=3.0, scale=1e9).paths == {"raw": 6}
    assert attention_plan(q[:, :1], k[:, :1], v[:, :1]).paths == {"raw": 2}


def test_biases_and_few_scores_begin_otherwise() -> None:
    for arrays in ((LONG, LONG, LONG), [numbers(LONG)] * 3):
        assert attention_plan(*arrays, bias=np.zeros(1)).paths == {"reference": 6}
        assert attention_plan(*arrays, bias=hw.alibi(np.ones(3))).paths == {"raw": 6}
        assert attention_plan(*arrays, bias=hw.alibi([1.0, 1e3, -1.0])).paths == {"raw": 4, "reference": 2}
        assert attention_plan(*arrays, bias=hw.alibi([-9.0, 2.0, 0.0])).paths == {"raw": 2, "reference": 4}
        far = hw.alibi([1.0, 0.1, 0.0], offset=[0, 300])  # 40 is not far, 300 is
        assert attention_plan(*arrays, bias=far).paths == {"raw": 5, "reference": 1}
    assert attention_plan(Q, K, V, bias=np.zeros(SCORES)).paths == {"running": 6}
    assert attention_plan(Q, K, V, bias=hw.alibi([1.0, 1e3, -1.0])).paths == {"running": 6}


def test_no_work_on_arrays_draws_from_a_generator_or_writes() -> None:
    arrays = [numbers(shape) for shape in (Q, K, V)]  # read-only
    before = bits(arrays)
    attention_plan(*arrays, dropout=0.5, causal=True)
    assert bits(arrays) == before
    rng = np.random.default_rng(3)
    state = rng.bit_generator.state
    attention_plan(*arrays, dropout=0.5, rng=rng)
    attention_plan(Q, K, V, dropout=0.5, rng=rng)
    assert rng.bit_generator.state == state


# --------------------------------------------------------------------------------------- tasks and threads
def test_tasks_and_threads() -> None:
    shape = (4, 8, 640, 64)
    for threads in (1, 2, 5):
        plan = attention_plan(shape, shape, shape, causal=True, threads=threads)
        assert plan.threads == threads
        assert plan.tasks == len(plan.grid.tasks())
        assert plan.tasks * plan.heads_per_task >= 32
    assert attention_plan((3, 2), (3, 2), (3, 2), threads=7).threads == 1  # there is but one task


def test_plans_differ_in_tasks_alone_where_threads_differ() -> None:
    shape = (4, 8, 640, 64)
    one, five = (attention_plan(shape, shape, shape, causal=True, threads=n) for n in (1, 5))
    but = ("threads", "tasks", "heads_per_task", "bytes")
    assert told(one, *but) == told(five, *but)


def test_a_small_problem_is_for_one_thread() -> None:
    assert attention_plan((2, 4, 8, 8), (2, 4, 8, 8), (2, 4, 8, 8)).threads == 1


# ------------------------------------------------------------------------------------------------ memory
@pytest.mark.parametrize("lead", [(1, 1), (1, 8), (4, 16)], ids=str)
@pytest.mark.parametrize("options", [{}, {"causal": True}, {"mask": masks.window(1000, 0)}, {"dropout": 0.1}], ids=str)
def test_memory_is_bounded_and_hardly_grows_with_the_sequence(lead: tuple[int, int], options: dict[str, Any]) -> None:
    """By 20 bytes a token: for lists of tiles, of a few spans of queries at a time."""
    found = []
    for n in (20_000, 100_000):
        shape = (*lead, n, 64)
        found.append(attention_plan(shape, shape, shape, threads=2, **options).bytes)
    assert 0 < found[-1] <= 17 * 2**20
    assert found[1] <= found[0] + 24 * 80_000


def test_memory_is_that_of_each_thread() -> None:
    shape = (1, 8, 4096, 64)
    one, four = (attention_plan(shape, shape, shape, threads=n, tile=(64, 64)).bytes for n in (1, 4))
    assert one < four <= 4 * one


# --------------------------------------------------------------------------------------- frozen and printed
def test_a_plan_cannot_be_changed() -> None:
    plan = attention_plan(Q, K, V)
    for name in ("tiles", "tile", "bytes"):
        with pytest.raises(FrozenInstanceError, match=f"cannot assign to field '{name}'"):
            setattr(plan, name, 3)


def test_what_a_plan_prints() -> None:
    plan = attention_plan((2, 8, 3, 16), (2, 2, 5, 16), (2, 2, 5, 16), causal=True, tile=(2, 2), threads=1)
    lines = repr(plan).splitlines()
    assert lines[:-1] == [
        "scores   (B, H, n_q, n_k) = (2, 8, 3, 5), 0.0009155 MiB if they were stored",
        "mask     causal()",
        "tile     2 queries x 2 keys",
        "tiles    96: 80 computed (16 partly masked), 16 skipped (16%)",
        f"tasks    {plan.tasks}, of up to {plan.heads_per_task} heads, on 1 thread",
        "softmax  running for 16 heads",
        "work     1.331e-05 GFLOP",
    ]
    assert lines[-1] == f"memory   {plan.bytes / 2**20:.3g} MiB besides inputs and results"


def test_what_a_plan_of_arrays_prints() -> None:
    q, k, v = (numbers((*LEAD, n, D)) for n in (110, 17, 17))
    plan = attention_plan(q, k, v, bias=hw.alibi([1.0, 0.01, 0.5]), tile=(40, 8), threads=2)
    lines = repr(plan).splitlines()
    assert lines[:4] == [
        "scores   (B, H, n_q, n_k) = (2, 3, 110, 17), 0.0428 MiB if they were stored",
        "mask     everything may be seen",
        "tile     40 queries x 8 keys",
        "tiles    54: 54 computed (0 partly masked), 0 skipped (0%)",
    ]
    assert lines[4] == "tasks    2, of up to 6 heads, on 2 threads"
    assert lines[5] == "softmax  reference for 4 heads, raw for 2 heads"
    assert len(lines) == 8


@pytest.mark.parametrize("options", [{}, {"causal": True}, {"mask": masks.window(300, 7), "threads": 2}], ids=str)
def test_the_numbers_that_are_printed_are_the_fields(options: dict[str, Any]) -> None:
    plan = attention_plan((5, 900, 32), (5, 1100, 32), (5, 1100, 16), **options)
    said = dict(line.split(None, 1) for line in repr(plan).splitlines())
    numbers_of = {name: [float(n) for n in re.findall(r"\d+\.?\d*(?:e[-+]\d+)?", text)] for name, text in said.items()}
    assert numbers_of["tile"] == [*plan.tile]
    assert numbers_of["tiles"][:-1] == [plan.tiles, plan.computed, plan.partial, plan.skipped]
    assert numbers_of["tiles"][-1] == 100 * plan.skipped // plan.tiles
    assert numbers_of["tasks"] == [plan.tasks, plan.heads_per_task, plan.threads]
    assert numbers_of["work"] == [pytest.approx(plan.flops / 1e9, rel=1e-3)]
    assert numbers_of["memory"] == [pytest.approx(plan.bytes / 2**20, rel=1e-2)]
    assert numbers_of["scores"][-1] == pytest.approx(math.prod(plan.scores) * 4 / 2**20, rel=1e-3)
    assert str(plan) == repr(plan)


def test_the_shape_of_scores_is_a_tuple_of_int() -> None:
    plan = attention_plan(tuple(np.array(Q)), K, V)
    assert all(type(n) is int for n in (*plan.scores, *plan.tile, plan.tiles, plan.computed, plan.flops, plan.bytes))


# ---------------------------------------------------------------------------------------------- refusals
REFUSED: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "negative size": ({"q": (-1, 4)}, ValueError, "q: expected sizes of at least 0, got (-1, 4)"),
    "tile of 0": ({"tile": (0, 1)}, ValueError, "tile[0]: expected a size of at least 1, got 0"),
    "one number": ({"tile": 3}, TypeError, "tile: expected None or (rows, cols), got int 3"),
    "three numbers": ({"tile": (1, 2, 3)}, TypeError, "tile: expected None or (rows, cols), got tuple (1, 2, 3)"),
    "half a tile": ({"tile": (1, 2.5)}, TypeError, "tile[1]: expected a size, got float 2.5"),
    "bool tile": ({"tile": (True, 2)}, TypeError, "tile[0]: expected a size, got bool True"),
    "no threads": ({"threads": 0}, ValueError, "threads: expected None or a number of threads of at least 1, got 0"),
    "many": ({"threads": 4097}, ValueError, "threads: expected None or a number of threads of at most 2**12, got 4097"),
    "bool threads": ({"threads": True}, TypeError, "threads: expected None or a number of threads, got bool True"),
    "no axes": ({"q": ()}, ValueError, "q: expected (..., n_q, d_k), two axes or more, got ()"),
    "one axis": (
        {"q": (4,)},
        ValueError,
        "q: expected (..., n_q, d_k), two axes or more, got (4,); one token alone is q[None, :]",
    ),
    "0-d": ({"q": np.float64(3)}, ValueError, "q: expected (..., n_q, d_k), two axes or more, got ()"),
    "None": ({"q": None}, TypeError, "q: expected an array, got None"),
    "d_k": (
        {"k": (3, 5)},
        ValueError,
        (
            "k: expected (..., n_k, d_k) with d_k = 4 as in q (2, 4), got (3, 5); "
            "queries and keys are compared by a dot product"
        ),
    ),
    "25 axes": ({"q": (1,) * 23 + (2, 4)}, ValueError, "q: expected at most 24 axes, got 25"),
    "int mask": (
        {"mask": np.ones((2, 3), int)},
        TypeError,
        (
            f"mask: expected bool, True = may attend, got dtype {np.dtype(int)}; pass mask.astype(bool) if nonzero "
            "means may attend, or bias=mask if it is to be added to the scores"
        ),
    ),
    "dropout": ({"dropout": 1.5}, ValueError, "dropout: expected a probability from 0 to 1, got 1.5"),
    "rng": (
        {"rng": -1},
        ValueError,
        "rng: expected a seed (integer) or a numpy.random.Generator of at least 0, got -1",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals(name: str) -> None:
    given, error, text = REFUSED[name]
    with pytest.raises(error, match=exactly(f"attention_plan: {text}")):
        attention_plan(**({"q": (2, 4), "k": (3, 4), "v": (3, 4)} | given))


@pytest.mark.parametrize("shape", [(True, 4), (2, False), (np.True_, 4), (2.0, 4)], ids=str)
def test_what_is_no_int_makes_no_shape(shape: Any) -> None:
    with pytest.raises((TypeError, ValueError), match=r"^attention_plan: q: expected .*, got .*"):
        attention_plan(shape, (3, 4), (3, 4))


@pytest.mark.parametrize("dtype", ["foo", 3.5, object(), "float33"], ids=["word", "number", "object", "typo"])
def test_a_type_that_is_none(dtype: Any) -> None:
    with pytest.raises(TypeError, match=r"^attention_plan: dtype: expected .*, got .*"):
        attention_plan(Q, K, V, dtype=dtype)


@pytest.mark.parametrize("dtype", [complex, object, "U3", "M8[s]", "i4,i4"], ids=str)
def test_a_type_that_is_not_of_real_numbers(dtype: Any) -> None:
    with pytest.raises(TypeError, match=r"^attention_plan: 3 arguments do not fit\n  q: expected real numbers"):
        attention_plan(Q, K, V, dtype=dtype)


@pytest.mark.parametrize("shape", [(2**40, 2**40), (2**70, 4), (1,) * 70 + (2, 4)], ids=["bytes", "int64", "axes"])
def test_a_shape_that_no_array_has(shape: Any) -> None:
    with pytest.raises(ValueError, match=r"^attention_plan: q: expected .*, got "):
        attention_plan(shape, (3, 4), (3, 4))


def test_all_is_named_at_once() -> None:
    text = (
        "attention_plan: 3 arguments do not fit\n"
        "  threads: expected None or a number of threads of at least 1, got -1\n"
        "  tile: expected None or (rows, cols), got str 'x'\n"
        "  scale: expected None (1/sqrt(d_k)) or a finite number, got nan"
    )
    with pytest.raises(TypeError, match=exactly(text)):
        attention_plan(Q, K, V, threads=-1, tile="x", scale=np.nan)


def test_every_negative_size_is_named() -> None:
    text = (
        "attention_plan: 2 arguments do not fit\n"
        "  k: expected sizes of at least 0, got (-2, 4)\n"
        "  v: expected sizes of at least 0, got (3, -4)"
    )
    with pytest.raises(ValueError, match=exactly(text)):
        attention_plan((2, 4), (-2, 4), (3, -4))
