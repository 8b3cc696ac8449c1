"""Where a path ends and the next begins: sums that overflow, products that vanish, heads that tell on others."""

import copy
import pickle
from typing import Any

import numpy as np
import pytest

import headwise as hw
from headwise.core.engine import run

F = np.float32


def full(shape: tuple[int, ...], value: float) -> Any:
    return np.full(shape, value, F)


def test_a_total_that_overflows_after_the_first_keys_while_its_output_does_not() -> None:
    q, k = full((64, 1), 0), full((256, 1), 0)
    q[0], k[128:] = 85, 1  # 128 exponentials of 85: each fits float32, their sum does not
    out, lse = hw.attention(q, k, full((256, 1), 0.01), return_lse=True)
    np.testing.assert_allclose(out, 0.01, rtol=1e-6)
    np.testing.assert_allclose(lse[0], 85 + np.log(128), rtol=1e-6)


def test_a_total_that_overflows_without_any_value() -> None:
    q, k = full((64, 1), 0), full((256, 1), 0)
    q[0], k[128:] = 85, 1
    _, lse = hw.attention(q, k, np.zeros((256, 0), F), return_lse=True)
    np.testing.assert_allclose(lse[0], 85 + np.log(128), rtol=1e-6)


@pytest.mark.parametrize("threads", [1, 3, 16])
def test_values_of_one_head_that_are_not_finite_change_no_bit_of_another(threads: int) -> None:
    q = np.random.default_rng(0).standard_normal((64, 2, 1)).astype(F)
    v = np.random.default_rng(1).standard_normal((64, 2, 2)).astype(F)
    q[1], v[1] = [[10], [-10]], [[0, 0], [1, 1]]
    alone = hw.attention(q[1], q[1], v[1])
    v[0] = np.nan
    np.testing.assert_array_equal(hw.attention(q, q, v, threads=threads)[1], alone)


def test_a_small_call_has_the_bits_of_a_large_one() -> None:
    x, v = np.array([[10], [-10]], F), np.array([[0], [1]], F)
    alone = hw.attention(x, x, v)
    np.testing.assert_array_equal(hw.attention(x, x, v, progress=lambda done, total: None), alone)
    many = np.broadcast_to(x, (20_000, 2, 1))
    np.testing.assert_array_equal(hw.attention(many, many, np.broadcast_to(v, (20_000, 2, 1)))[7], alone)


@pytest.mark.parametrize("types", ["fdd", "dfd", "ddf", "ffd"])
def test_a_small_call_of_several_types_is_the_large_one(types: str) -> None:
    arrays = np.random.default_rng(5).standard_normal((3, 2, 6, 3))
    q, k, v = (x.astype(char) for x, char in zip(arrays, types, strict=True))
    alone = hw.attention(q, k, v)
    assert alone.dtype == np.float64
    np.testing.assert_array_equal(alone, hw.attention(q, k, v, progress=lambda done, total: None))


def test_a_query_that_overflows_when_it_is_scaled() -> None:
    q, k = full((64, 1), 1e30), full((64, 1), -2e-38)  # scores of -20, by way of 1e39
    np.testing.assert_allclose(hw.attention(q, k, full((64, 1), 1), scale=1e9), 1, rtol=1e-6)


@pytest.mark.parametrize("n", [2, 8, 33, 64, 300])
@pytest.mark.parametrize("value", [3e38, -3.3e38])
@pytest.mark.parametrize("options", [{}, {"causal": True}, {"bias": np.zeros((1, 1))}, {"sinks": [0.5]}], ids=str)
def test_the_largest_values(n: int, value: float, options: Any) -> None:
    z = full((n, 4), 0)
    v = full((n, 4), value)
    wanted = hw.scaled_dot_product_attention(z, z, v.astype(np.float64), **options)[0]
    got, lse = hw.attention(z, z, v, return_lse=True, **options)
    np.testing.assert_allclose(got, wanted, rtol=1e-5)
    np.testing.assert_allclose(lse, hw.attention_steps(z, z, v, **options).lse, rtol=1e-5)


@pytest.mark.parametrize("dropout", [0.25, 0.9])
def test_dropout_beside_a_reference_that_is_nearly_outgrown(dropout: float) -> None:
    """What is kept is divided by its probability: of a sum near the largest number too."""
    q, k = full((64, 1), 1), full((256, 1), 0)
    k[:128] = 87.5  # seen last, since the reference goes backwards: exp(87.5) fits, twice that does not
    bias, v = np.zeros((64, 256)), full((256, 1), 1)
    got = hw.attention(q, k, v, bias=bias, dropout=dropout, rng=0)
    wanted = hw.scaled_dot_product_attention(
        *(x.astype(np.float64) for x in (q, k, v)), bias=bias, dropout=dropout, rng=0
    )
    np.testing.assert_allclose(got, wanted[0], rtol=1e-4)


@pytest.mark.parametrize("size", [15, 40, 100, 1000])
@pytest.mark.parametrize("causal", [False, True])
def test_large_scores(size: float, causal: bool) -> None:
    q, k, v = np.random.default_rng(2).standard_normal((3, 3, 200, 32)).astype(F)
    got, lse = hw.attention(q * F(size), k, v, causal=causal, return_lse=True)
    steps = hw.attention_steps(
        *((x * s).astype(np.float64) for x, s in ((q, F(size)), (k, F(1)), (v, F(1)))), causal=causal
    )
    bound = 8 * np.finfo(F).eps * (1 + size * 32 * 3 + np.log(200)) * 5
    np.testing.assert_allclose(got, steps.out, rtol=0, atol=bound)
    np.testing.assert_allclose(lse, steps.lse, rtol=1e-5)


def test_blocks_that_are_done_again_are_put_where_they_belong() -> None:
    """Of any task: a long sequence has several, of several blocks each."""
    q, k, v = np.random.default_rng(3).standard_normal((3, 2, 700, 16)).astype(F)
    k[:, 30] = 40 * q[:, 600]  # far ahead of what is seen first, for queries of the last task
    got = hw.attention(q * F(5), k, v, scale=1.0)
    wanted, _ = hw.scaled_dot_product_attention((q * F(5)).astype(np.float64), k, v, scale=1.0)
    np.testing.assert_allclose(got, wanted, rtol=0, atol=0.05)


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize(("q_size", "scale", "cap"), [(1e38, 8.0, 30.0), (1e30, 2.0**59, 1e12), (1.0, 16.0, 30.0)])
def test_a_softcap_does_not_hide_what_overflowed_on_the_way(q_size: float, scale: float, cap: float, sign: int) -> None:
    n = 40
    q, v = full((n, 1), q_size), np.arange(n, dtype=F)[:, None]
    k = sign * np.linspace(1, 2, n, dtype=F)[:, None] * F(1e-38)
    options = {"scale": scale, "softcap": cap}
    wanted, _ = hw.scaled_dot_product_attention(*(x.astype(np.float64) for x in (q, k, v)), **options)
    np.testing.assert_allclose(hw.attention(q, k, v, **options), wanted, rtol=2e-5, atol=1e-20)


@pytest.mark.parametrize("sinks", [[1e-50, 0.0], [-1e39, 0.0]])
def test_sinks_beyond_the_type_under_any_error_state(sinks: list[float]) -> None:
    q = np.ones((2, 40, 4), F)
    wanted = hw.scaled_dot_product_attention(q, q, q, sinks=sinks)[0]
    with np.errstate(all="raise"):
        np.testing.assert_allclose(hw.attention(q, q, q, sinks=sinks), wanted, rtol=1e-6)
        hw.attention_plan(q, q, q, sinks=sinks)


def test_a_plan_keeps_what_it_was_made_from() -> None:
    q = np.ones((2, 3, 70, 4), F)
    mask, bias, sinks = np.ones((70, 70), bool), np.zeros((70, 70)), np.zeros(3)
    plan = hw.attention_plan(q, q, q, mask, bias=bias, sinks=sinks)
    before = run(plan, q, q, q)
    mask[:], bias[:], sinks[:] = False, 9, 9
    np.testing.assert_array_equal(run(plan, q, q, q), before)
    assert plan.skipped == 0


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda plan: pickle.loads(pickle.dumps(plan))])
def test_a_plan_is_copied_without_arrays(copied: Any) -> None:
    plan = hw.attention_plan((2, 200_000, 64), (2, 200_000, 64), (2, 200_000, 32), causal=True, threads=2)
    again = copied(plan)
    assert repr(again) == repr(plan)
    assert len(pickle.dumps(plan)) < 10_000
    q = np.ones((2, 3, 70, 4), F)
    plan = hw.attention_plan(q, q, q, causal=True, tile=(16, 32))
    np.testing.assert_array_equal(run(copied(plan), q, q, q), run(plan, q, q, q))
