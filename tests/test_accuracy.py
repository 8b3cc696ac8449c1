"""How accurate float64 is on hard data, and that one step in float32 would not pass for it.

The judge is the oracle's 50 decimal digits; the measure is ``8 eps (1 + d_k |q| |k| |scale| + max|bias| + log n_k)``,
times ``max|v|`` for the output.
"""

import math
from collections.abc import Callable
from decimal import Decimal
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import oracle
import pytest

from headwise import attention_steps, scaled_dot_product_attention
from headwise.core.softmax import finish, merge, part

EPS = float(np.finfo(np.float64).eps)
N_Q, N_K, D_K, D_V = 3, 211, 16, 5


class Hard(NamedTuple):
    """A problem of one head that is hard in its own way."""

    q: Any
    k: Any
    v: Any
    bias: Any
    softcap: float | None = None
    sinks: Any = None

    @property
    def options(self) -> dict[str, Any]:
        return {"bias": self.bias, "softcap": self.softcap, "sinks": self.sinks}


def _normal(rng: np.random.Generator) -> Hard:
    return Hard(
        rng.standard_normal((N_Q, D_K)),
        rng.standard_normal((N_K, D_K)),
        rng.standard_normal((N_K, D_V)),
        rng.standard_normal((N_Q, N_K)),
    )


def _sharp(rng: np.random.Generator) -> Hard:
    """Scores of several hundred: nearly all weight on a key or two."""
    base = _normal(rng)
    return base._replace(q=30 * base.q, k=10 * base.k)


def _nearly_equal(rng: np.random.Generator) -> Hard:
    """Scores that differ in late digits: every key weighs much the same."""
    base = _normal(rng)
    return base._replace(q=1e-9 * base.q, bias=1e-9 * base.bias)


def _cancelling(rng: np.random.Generator) -> Hard:
    """Large terms of a score that nearly cancel, and values that do."""
    base, sign = _normal(rng), np.where(np.arange(N_K) % 2, -1.0, 1.0)[:, None]
    halves = (np.concatenate([side[:, :8], turn * side[:, :8]], axis=-1) for side, turn in ((base.q, 1), (base.k, -1)))
    q, k = halves
    return base._replace(q=q + 1e-3 * base.q, k=k, v=1e6 * sign + base.v)


def _far(rng: np.random.Generator) -> Hard:
    """Every score far from 0, by the bias."""
    base = _normal(rng)
    return base._replace(bias=base.bias - 900)


def _wide(rng: np.random.Generator) -> Hard:
    """Values of every magnitude."""
    base = _normal(rng)
    return base._replace(v=base.v * 10.0 ** rng.integers(-12, 6, (N_K, 1)))


def _capped(rng: np.random.Generator) -> Hard:
    base = _normal(rng)
    return base._replace(q=8 * base.q, softcap=5.0)


def _sunk(rng: np.random.Generator) -> Hard:
    return _normal(rng)._replace(sinks=np.array([6.5]))


HARD = (_normal, _sharp, _nearly_equal, _cancelling, _far, _wide, _capped, _sunk)
NAMES = [make.__name__[1:] for make in HARD]


@cache
def problem_of(name: str) -> tuple[Hard, list[oracle.Row]]:
    hard = HARD[NAMES.index(name)](np.random.default_rng([NAMES.index(name), 5]))
    operands = (oracle.Operand((), array.shape[-1], {(): array.tolist()}) for array in (hard.q, hard.k, hard.v))
    bias, sinks = hard.bias.tolist(), None if hard.sinks is None else hard.sinks.tolist()
    options = oracle.Options(bias=lambda at, i, j: bias[i][j], softcap=hard.softcap, sinks=sinks)
    return hard, list(oracle.attention(*operands, (N_Q, N_K), lambda at, i, j: True, options))


def times_the_bound(out: Any, rows: list[oracle.Row], eps: float = EPS) -> float:
    """The largest error of an output, in units of what is allowed to its row."""
    return max(
        float(abs(Decimal(float(got)) - exact)) / (8 * eps * row.spread * row.reach)
        for line, row in zip(out, rows, strict=True)
        for got, exact in zip(line, row.out, strict=True)
    )


@pytest.mark.parametrize("name", NAMES)
def test_the_definition_lies_within_the_bound(name: str) -> None:
    hard, rows = problem_of(name)
    steps = attention_steps(hard.q, hard.k, hard.v, **hard.options)
    assert times_the_bound(steps.out, rows) < 1
    for lse, weights, row in zip(steps.lse, steps.weights, rows, strict=True):
        allowed = 8 * EPS * row.spread
        assert abs(Decimal(float(lse)) - row.lse) < allowed
        assert max(abs(Decimal(float(got)) - exact) for got, exact in zip(weights, row.weights, strict=True)) < allowed


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("n_pieces", [2, 13])
def test_merged_parts_lie_within_the_bound(name: str, n_pieces: int) -> None:
    hard, rows = problem_of(name)
    masked = attention_steps(hard.q, hard.k, hard.v, **hard.options).masked
    parts = [
        part(masked[:, keys], hard.v[keys])
        for keys in (slice(i * N_K // n_pieces, (i + 1) * N_K // n_pieces) for i in range(n_pieces))
    ]
    if hard.sinks is not None:
        parts.append(part(np.broadcast_to(hard.sinks, (N_Q, 1)), np.zeros((1, D_V))))
    whole = parts[0]
    for piece in parts[1:]:
        whole = merge(whole, piece)
    out, _ = finish(whole)
    assert times_the_bound(out, rows) < 1


# ----------------------------------------------------------------------- one step in float32 is caught
Step = Callable[[Any], Any]
STEPS = ("q", "k", "v", "scores", "capped", "biased", "shifted", "exponentials", "sum", "weights", "out")


def in_float32(step: str, hard: Hard) -> Any:
    """The formula in float64, but for the one step that is rounded to float32."""

    def kept(name: str, array: Any) -> Any:
        return np.asarray(array, np.float32).astype(np.float64) if name == step else array

    q, k, v = kept("q", hard.q), kept("k", hard.k), kept("v", hard.v)
    scores = kept("scores", q @ k.T / math.sqrt(D_K))
    cap = hard.softcap
    capped = kept("capped", scores if cap is None else cap * np.tanh(scores / cap))
    biased = kept("biased", capped + hard.bias)
    if hard.sinks is not None:
        biased, v = np.append(biased, np.tile(hard.sinks, (N_Q, 1)), axis=1), np.append(v, np.zeros((1, D_V)), axis=0)
    shifted = kept("shifted", biased - biased.max(axis=-1, keepdims=True))
    exponentials = kept("exponentials", np.exp(shifted))
    weights = kept("weights", exponentials / kept("sum", exponentials.sum(axis=-1, keepdims=True)))
    return kept("out", weights @ v)


@pytest.mark.parametrize("name", NAMES)
def test_the_formula_without_such_a_step_lies_within_the_bound(name: str) -> None:
    hard, rows = problem_of(name)
    assert times_the_bound(in_float32("none", hard), rows) < 1


@pytest.mark.parametrize("step", STEPS)
def test_one_step_in_float32_is_caught(step: str) -> None:
    """On plain data, a thousand times over; on most of the hard data too."""
    hard, rows = problem_of("normal")
    assert times_the_bound(in_float32(step, hard), rows) > 1000
    caught = [times_the_bound(in_float32(step, problem_of(name)[0]), problem_of(name)[1]) > 1 for name in NAMES]
    assert sum(caught) > len(NAMES) // 2


def test_float32_as_a_whole_is_caught_and_within_its_own_bound() -> None:
    hard, rows = problem_of("normal")
    rounded = [array.astype(np.float32) for array in (hard.q, hard.k, hard.v)]
    out, _ = scaled_dot_product_attention(*rounded, bias=hard.bias)
    assert times_the_bound(out, rows) > 1000
    assert times_the_bound(out, rows, float(np.finfo(np.float32).eps)) < 1
