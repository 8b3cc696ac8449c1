"""How the vjps are called: errors, types, progress, memory, what is left alone."""

import re
import threading
import tracemalloc
from typing import Any

import numpy as np
import pytest
from bits import bits
from definition import normal, qkv

import headwise as hw
from headwise import masks

REAL = "real numbers (float16, bfloat16, float32, float64, integers or bool)"
OF_REAL = "the gradient of something real is real: pass "
MASKED = "a numpy.ma masked array, whose hidden data would be used"


def test_what_does_not_fit_is_named_before_any_work() -> None:
    q, k, v = qkv(0, 2, 5, 4)
    with pytest.raises(
        ValueError, match=r"^attention_vjp: 2 arguments .*\n  threads: .*\n  k: expected .* got \(2, 5, 3\)"
    ):
        hw.attention_vjp(q, k[..., :3], v, threads=0)
    with pytest.raises(TypeError, match=r"^attention_vjp: progress: expected None or a function"):
        hw.attention_vjp(q, k, v, progress=3)
    with pytest.raises(TypeError, match=r"^attention_vjp: mask: "):
        hw.attention_vjp(q, k, v, np.ones((5, 5)))


@pytest.mark.parametrize(
    ("given", "kind", "text"),
    [
        (
            np.ones((5, 4)),
            ValueError,
            "d_out: expected (H, n_q, d_v) = (2, 5, 4) as out, got (5, 4); pass np.broadcast_to(d_out, out.shape)",
        ),
        (
            1.0,
            ValueError,
            "d_out: expected (H, n_q, d_v) = (2, 5, 4) as out, got (); pass np.broadcast_to(d_out, out.shape)",
        ),
        (np.ones((2, 4, 5)), ValueError, "d_out: expected (H, n_q, d_v) = (2, 5, 4) as out, got (2, 4, 5)"),
        (np.ones((2, 5, 4), complex), TypeError, f"d_out: expected {REAL}, got dtype complex128; {OF_REAL}d_out.real"),
        (np.ma.ones((2, 5, 4)), TypeError, f"d_out: expected a plain array, got {MASKED}; pass d_out.filled(0)"),
        (None, TypeError, "d_out: expected"),
        ("one", TypeError, "d_out: expected"),
    ],
    ids=str,
)
def test_a_gradient_that_does_not_fit(given: Any, kind: Any, text: str) -> None:
    _, vjp = hw.attention_vjp(*qkv(0, 2, 5, 4))
    with pytest.raises(kind, match="^" + re.escape(f"attention_vjp's vjp: {text}")):
        vjp(given)


def test_both_gradients_are_named_at_once() -> None:
    *_, vjp = hw.attention_vjp(*qkv(0, 2, 5, 4), return_lse=True)
    with pytest.raises(
        ValueError, match=r"d_out: .*(?s:.)*d_lse: expected \(H, n_q\) = \(2, 5\) as lse, got \(2, 5, 4\)"
    ):
        vjp(np.ones((2, 5)), np.ones((2, 5, 4)))


def test_softmax_vjp_names_what_does_not_fit() -> None:
    _, vjp = hw.softmax_vjp([1.0, 2.0])
    with pytest.raises(ValueError, match=r"^softmax_vjp's vjp: d_y: expected \(2,\) as y, got \(3,\)"):
        vjp([1.0, 2.0, 3.0])
    with pytest.raises(ValueError, match=r"^softmax_vjp: axis: expected an axis of x"):
        hw.softmax_vjp([1.0, 2.0], axis=1)


def test_softmax_vjp_in_other_types() -> None:
    y, vjp = hw.softmax_vjp(np.array([0, 1, 2]))
    assert y.dtype == vjp([1, 0, 0]).dtype == np.float64
    y, vjp = hw.softmax_vjp(np.array([0, 1, 2], np.float16))
    assert y.dtype == vjp(np.array([1.0, 0, 0])).dtype == np.float16
    assert hw.softmax_vjp(np.zeros((3, 0)))[1](np.zeros((3, 0))).shape == (3, 0)


@pytest.mark.parametrize(
    ("q_shape", "k_shape"),
    [((2, 0, 3, 2), (2, 2, 3, 2)), ((0, 2, 3, 2), (1, 2, 3, 2)), ((0, 3, 2), (1, 3, 2)), ((2, 0, 2), (2, 3, 2))],
    ids=str,
)
def test_without_queries_gradients_of_keys_are_zeros(q_shape: Any, k_shape: Any) -> None:
    q, k = np.ones(q_shape), np.ones(k_shape)
    out, vjp = hw.attention_vjp(q, k, k, bias=np.ones(3))
    got = vjp(out)
    assert [x.shape for x in got[:4]] == [q_shape, k_shape, k_shape, (3,)]
    assert not any(x.any() for x in got[:4])


def test_nothing_given_is_written_to_and_the_callers_error_state_does_no_harm() -> None:
    q, k, v, d_out = (x.copy() for x in normal(0, 4, 2, 40, 4))
    before = [x.copy() for x in (q, k, v, d_out)]
    for x in (q, k, v, d_out):
        x.flags.writeable = False
    half = [x.astype(np.float16) for x in (q, k, 1e-5 * v)]
    with np.errstate(all="raise"):
        out, vjp = hw.attention_vjp(1e-30 * q, k, 1e30 * v, masks.lengths([0, 30]))
        vjp(d_out)
        hw.softmax_vjp([-1e5, 0.0])[1]([1.0, 1.0])
        hw.softmax_vjp(np.array([-9.0, 9.0], np.float16))[1]([1e-5, 1.0])
        hw.attention_vjp(*half)[1](1e-6 * d_out)
    assert out.flags.writeable
    for x, was in zip((q, k, v, d_out), before, strict=True):
        np.testing.assert_array_equal(x, was)


def test_a_changed_output_changes_no_gradient() -> None:
    """The caller may do with it what they like; and the log-sum-exp too."""
    q, k, v = qkv(0, 1, 2, 40, 4)
    d_out, d_lse = normal(1, 1, 2, 40, 4), normal(2, 1, 2, 40)
    out, lse, vjp = hw.attention_vjp(q, k, v, return_lse=True, sinks=[0.0, 1.0])
    before = vjp(d_out, d_lse)
    out[...], lse[...] = 7, 7
    assert bits(vjp(d_out, d_lse)) == bits(before)


def test_one_number_is_drawn() -> None:
    rng, other = np.random.default_rng(0), np.random.default_rng(0)
    other.integers(2**63)
    _, vjp = hw.attention_vjp(*qkv(0, 1, 2, 40, 4), dropout=0.5, rng=rng)
    vjp(np.ones((1, 2, 40, 4)))
    vjp(np.ones((1, 2, 40, 4)))
    assert rng.bit_generator.state == other.bit_generator.state


def test_progress_counts_pairs_in_both_passes() -> None:
    seen: list[tuple[int, int]] = []
    q, k, v = qkv(0, 1, 2, 300, 4)
    _, vjp = hw.attention_vjp(q, k, v, threads=1, progress=lambda done, total: seen.append((done, total)))
    assert seen[-1] == (2 * 300 * 300,) * 2
    del seen[:]
    vjp(np.ones((1, 2, 300, 4)))
    assert seen[-1] == (2 * 300 * 300,) * 2
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)


def test_progress_counts_the_pass_of_a_bias_too() -> None:
    seen: list[tuple[int, int]] = []
    q, k, v = qkv(0, 1, 2, 300, 4)
    for bias in (np.zeros((300, 300)), np.zeros((2, 1, 300))):
        _, vjp = hw.attention_vjp(q, k, v, bias=bias, threads=1, progress=lambda *counts: seen.append(counts))
        del seen[:]
        vjp(np.ones((1, 2, 300, 4)))
        total = 2 * 2 * 300 * 300
        assert {each for _, each in seen} == {total}
        assert [done for done, _ in seen] == sorted(done for done, _ in seen)
        assert (total // 2, total) in seen
        assert seen[-1] == (total, total)


def test_what_progress_raises_ends_the_call() -> None:
    class StopError(Exception):
        pass

    calls: list[int] = []

    def stop(done: int, total: int) -> None:
        calls.append(done)
        if len(calls) > 1:
            raise StopError

    _, vjp = hw.attention_vjp(*qkv(0, 1, 1, 40, 4), threads=1, progress=stop)
    with pytest.raises(StopError):
        vjp(np.ones((1, 1, 40, 4)))


def test_a_vjp_may_be_called_from_many_threads_at_once() -> None:
    _, vjp = hw.attention_vjp(*qkv(0, 2, 4, 200, 8), causal=True, dropout=0.2, rng=1)
    d_out = normal(1, 2, 4, 200, 8)
    wanted, got = vjp(d_out), [None] * 4

    def call(i: int) -> None:
        got[i] = vjp(d_out)

    threads = [threading.Thread(target=call, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for each in got:
        assert each is not None
        assert bits(each[:3]) == bits(wanted[:3])


@pytest.mark.parametrize(
    "options",
    [{}, {"causal": True, "softcap": 5.0, "dropout": 0.1, "rng": 0}, {"bias": "row"}, {"scale": 300.0}],
    ids=str,
)
def test_memory_is_linear(options: dict[str, Any]) -> None:
    """Twice as long takes twice as much, far below what scores would take (64 and 256 MiB)."""
    extra = []
    for n in (4096, 8192):
        q, k, v = qkv(0, n, 8)
        if "bias" in options:
            options = {"bias": np.zeros((1, n))}
        tracemalloc.start()
        out, vjp = hw.attention_vjp(q, k, v, threads=2, **options)
        gradients = vjp(out)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        extra.append(peak - sum(x.nbytes for x in (out, *gradients[:3])))
    assert extra[1] < 2.2 * extra[0]
    assert extra[1] < 16 * 2**20
