"""What came back from a solution, and how to say in numbers what is wrong with it.

Knows how results are compared; not what is asked.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple, NoReturn

import numpy as np

from headwise.check.calls import Call, Result, is_oblong, same
from headwise.core.shapes import Array, words


class Wrong(Exception):  # noqa: N818 - it is what a judge says, not an error of ours
    """What failed, with the numbers."""


class Evidence(NamedTuple):
    """The calls of a check, what the solution gave, and what is right."""

    calls: Sequence[Call]
    results: Sequence[Result]
    rights: Sequence[Result]

    def out(self, i: int) -> Array:
        """``out`` of call i, of the right shape, as float64."""
        return values_of(self.results[i].out, self.rights[i].out, "out")

    def weights(self, i: int) -> Array:
        """``weights`` of call i: as returned, or read from ``out`` where v is the identity."""
        result, wanted = self.results[i], self.rights[i].weights
        if result.weights is not None:
            return values_of(result.weights, wanted, "weights")
        v = self.calls[i].args.get("v")
        assert v is not None
        assert np.array_equal(v, np.broadcast_to(np.eye(v.shape[-1]), v.shape)), "a judge of weights needs v = 1"
        return values_of(result.out, wanted, "out, which is the weights as v is the identity")


# ------------------------------------------------------------------------------------------- saying what is wrong
def fail(text: str) -> NoReturn:
    raise Wrong(text)


def values_of(got: Array | None, wanted: Array | None, name: str) -> Array:
    assert wanted is not None
    if got is None:
        fail(f"{name}: expected an array of shape {words(wanted.shape)}, got none")
    if got.shape != wanted.shape:
        fail(f"{name}: expected shape {words(wanted.shape)}, got {words(got.shape)}")
    if got.size > 1 and (got == got.flat[0]).all() and not (wanted == wanted.flat[0]).all():
        value = bool(got.flat[0]) if got.dtype == bool else number(float(got.flat[0]))
        fail(f"{name} holds {value} in every place")
    return got.astype(np.float64)


def number(x: float) -> str:
    """Four digits after the point, as the exercise prints them; more where these say nothing."""
    return f"{x:.4f}" if x == 0 or 1e-3 <= abs(x) < 1e5 else f"{x:.4g}"


def numbers(*values: float) -> list[str]:
    """Several numbers, with as many digits as it takes to tell them apart."""
    short, long = [number(x) for x in values], [f"{x:.12g}" for x in values]
    return short if len(set(short)) == len(set(values)) else long


def check_equal(got: Array, wanted: Array, name: str, tolerance: float = 1e-9) -> None:
    """Say the first place that differs most."""
    if same(got, wanted, tolerance):
        return
    with np.errstate(all="ignore"):
        off = np.abs(got - wanted.astype(np.float64))
    off[np.isnan(got) & np.isnan(wanted)] = 0
    off[np.isnan(off)] = np.inf
    at = np.unravel_index(np.argmax(off), off.shape)
    place = f"{name}[{', '.join(map(str, at))}]" if at else name
    share = f"{np.count_nonzero(off > tolerance)} of {off.size} numbers differ"
    a, b = numbers(float(wanted[at]), float(got[at]))
    if wanted.dtype == bool and got[at] in (0, 1):
        a, b = str(bool(wanted[at])), str(bool(got[at]))
    fail(f"{place}: expected {a}, got {b} ({share})")


def is_right(result: Result, wanted: Result) -> bool:
    """Whether out, and weights where there are any, are the right ones."""
    weights = result.weights is None or wanted.weights is None or same(result.weights, wanted.weights)
    return weights and same(result.out, wanted.out)


def equal(e: Evidence, i: int, tolerance: float = 1e-9) -> None:
    """Fail unless out, and weights where there are any, of call i are right."""
    result, wanted = e.results[i], e.rights[i]
    assert wanted.out is not None
    check_equal(e.out(i), wanted.out, "out", tolerance)
    if result.weights is not None and wanted.weights is not None:
        check_equal(e.weights(i), wanted.weights, "weights", tolerance)


@contextmanager
def about(call: Call) -> Iterator[None]:
    """Say of which call it is that something is wrong."""
    try:
        yield
    except Wrong as wrong:
        raise Wrong(f"for {given(call)}: {wrong}") from None


def all_equal(e: Evidence, tolerance: float = 1e-9) -> list[str]:
    """Fail unless every call is right."""
    for i, call in enumerate(e.calls):
        with about(call):
            equal(e, i, tolerance)
    return []


def remarks_on_alignment(e: Evidence) -> list[str]:
    """What to say where ``causal`` was taken to align the first query with the first key."""
    sides = {"aligned" in call.args for call in e.calls if is_oblong(call)}
    if len(sides) > 1:
        fail("with fewer queries than keys causal=True aligns some calls lower right and others upper left")
    if True not in sides:
        return []
    said = (
        "causal=True aligns the first query with the first key, as PyTorch's is_causal; headwise and Flash-Attention "
        "(from 2.1) align the last ones: j <= i + n_k - n_q"
    )
    return [said]


def given(call: Call) -> str:
    """The arguments of a call in words: arrays by their shape."""
    said = []
    for name, value in call.args.items():
        shape = np.shape(value)
        said.append(f"{name} {words(shape)}" if shape else f"{name} {value}")
    return ", ".join(said)


def check_rows(weights: Array) -> None:
    sums = weights.sum(axis=-1)
    off = np.abs(sums - 1)
    if not (off <= 1e-9).all():
        at = np.unravel_index(np.argmax(np.where(np.isnan(off), np.inf, off)), off.shape)
        total = numbers(1.0, float(sums[at]))[1]
        fail(f"the weights of row {', '.join(map(str, at))} sum to {total} instead of 1")
    if not (weights >= 0).all():
        fail(f"a weight is negative: {number(float(weights.min()))}")


def check_still(before: Array, after: Array, what: str, moved: str) -> None:
    off = np.abs(after - before)
    if not (off <= 1e-12).all():
        at = np.unravel_index(np.argmax(np.where(np.isnan(off), np.inf, off)), off.shape)
        change = number(float(off[at]))
        fail(f"{what} moved by {change} when {moved}; at most 1e-12 is allowed")
