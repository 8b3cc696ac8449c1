"""How close is equal: what the oracle says of a problem, and the bound within which a result must lie.

A row's bound is ``8 eps (1 + d_k |q| |k| |scale| + max|bias| + log n_k)``, times ``max|v|`` for the output; ``eps`` of
the computing type. A result in a half type is allowed one rounding more.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import oracle
from strategies import Case


class Expected(NamedTuple):
    """What the oracle says, in float64, and what is needed to say how close is equal."""

    out: Any  # (..., H, n_q, d_v)
    weights: Any  # (..., H, n_q, n_k)
    lse: Any  # (..., H, n_q)
    spread: Any  # (..., H, n_q)
    reach: Any  # (..., H, n_q)


def expected(case: Case, kept: Any = None) -> Expected:
    """The oracle's answer. ``kept`` (..., H, n_q, n_k) is what dropout multiplies the weights by."""
    given, sinks = case.options, case.options.get("sinks")
    options = oracle.Options(
        bias=case.bias,
        scale=given.get("scale"),
        softcap=given.get("softcap"),
        sinks=None if sinks is None else sinks.tolist(),
        kept=None if kept is None else lambda at, i, j: float(kept[(*at, i, j)]),
    )
    rows = list(oracle.attention(*case.operands(), case.scores, case.sees, options))
    *lead, n_q, n_k = case.scores
    columns = ((case.out_shape[-1],), (n_k,), (), (), ())
    fields = zip(*rows, strict=True) if rows else [[]] * 5
    return Expected(
        *(
            np.array(field, np.float64).reshape(*lead, n_q, *column)
            for field, column in zip(fields, columns, strict=True)
        )
    )


def assert_out(out: Any, case: Case, wanted: Expected) -> None:
    assert_within(out, wanted.out, bounds(case, wanted) * wanted.reach[..., None], case.dtype)


def assert_weights(weights: Any, case: Case, wanted: Expected) -> None:
    assert_within(weights, wanted.weights, bounds(case, wanted), case.dtype)


def assert_lse(lse: Any, case: Case, wanted: Expected) -> None:
    assert_within(lse, wanted.lse, bounds(case, wanted)[..., 0], case.computing)


def bounds(case: Case, wanted: Expected) -> Any:
    """Of each row: (..., H, n_q, 1)."""
    return 8 * np.finfo(case.computing).eps * wanted.spread[..., None]


def assert_within(actual: Any, wanted: Any, bound: Any, dtype: np.dtype[Any]) -> None:
    """``actual`` has this dtype and, where finite is wanted, lies within the bound and one rounding to a half type.

    Where NaN is wanted, or an infinity, it is there; an infinity may be NaN, for a weight too small for the computing
    type times inf is 0 * inf.
    """
    assert actual.dtype == dtype
    assert actual.shape == wanted.shape
    got, finite = actual.astype(np.float64), np.isfinite(wanted)
    np.testing.assert_array_equal(np.isfinite(got), finite, "finite where finite is wanted, and only there")
    differ = ~finite & ~np.isnan(got)
    np.testing.assert_array_equal(got[differ], wanted[differ])
    error = np.abs(np.subtract(got, wanted, where=finite, out=np.zeros(wanted.shape)))
    allowed = np.broadcast_to(bound + _rounding(np.where(finite, np.abs(wanted), 0) + bound, dtype), wanted.shape)
    worst = np.flatnonzero((error > allowed).ravel())[:1]
    assert worst.size == 0, (
        f"{got.ravel()[worst]} where {wanted.ravel()[worst]} is wanted, within {allowed.ravel()[worst]}: "
        f"{np.unravel_index(worst, wanted.shape)}"
    )


def _rounding(size: Any, dtype: np.dtype[Any]) -> Any:
    """Half a unit in the last place where the result is of a half type."""
    if dtype.itemsize != 2:
        return 0
    limits = ml_dtypes.finfo(dtype)
    return size * float(limits.eps) / 2 + float(limits.smallest_subnormal) / 2


def dropout_factors(scores: tuple[int, ...], dropout: float, rng: int, attention: Callable[..., Any]) -> Any:
    """What dropout multiplies each weight by, read off from equal weights (d_k = 0) on a unit matrix of values."""
    *lead, n_q, n_k = scores
    ends = [np.zeros((*lead, n, 0)) for n in (n_q, n_k)]
    out = attention(*ends, np.eye(n_k), dropout=dropout, rng=rng)
    return (out > 0) / (1 - dropout) if dropout < 1 else np.zeros(scores)
