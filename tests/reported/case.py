"""What a reported case is, and the helpers that its arrays are written with. `cases.py` has the words."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

LN2, LN3 = float(np.log(2.0)), float(np.log(3.0))

Arrays = dict[str, Any]


@dataclass(frozen=True, eq=False, kw_only=True)
class Case:
    """An input on which public code failed, and what is right. `cases.py` explains the fields."""

    id: str
    kind: str
    source: str
    url: str
    symptom: str
    op: str
    right: str
    inputs: Arrays = field(default_factory=dict)
    run: Callable[[Any], bool] | None = None
    expected: Arrays = field(default_factory=dict)
    alternatives: dict[str, Arrays] = field(default_factory=dict)
    wrong: Arrays = field(default_factory=dict)
    check: Callable[[Arrays, Arrays], bool] | None = None
    raises: bool = False
    may_raise: bool = False
    contested: str | None = None
    rtol: float = 1e-9
    atol: float = 1e-12


def col(*xs: float, dtype: Any = float) -> np.ndarray:
    """Numbers as one column: n tokens of width 1."""
    return np.array(xs, dtype=dtype)[:, None]


def by_head(*blocks: np.ndarray) -> np.ndarray:
    """Blocks (n, d) as the heads of one item: (1, H, n, d)."""
    return np.stack(blocks)[None]


def close(a: Any, b: Any, rtol: float = 1e-9, atol: float = 1e-12) -> bool:
    """Whether shapes agree and numbers nearly do; NaN equals NaN."""
    a, b = np.asarray(a, float), np.asarray(b, float)
    return a.shape == b.shape and np.allclose(a, b, rtol=rtol, atol=atol, equal_nan=True)


def fresh(case: Case) -> Arrays:
    """The inputs of a case as new read-only arrays, so that no call can write to them or spoil another."""
    return _copied(case.inputs)


def _copied(x: Any) -> Any:
    if isinstance(x, dict):
        return {name: _copied(part) for name, part in x.items()}
    if isinstance(x, (list, tuple)):
        return type(x)(_copied(part) for part in x)
    if not isinstance(x, np.ndarray):
        return x
    clone = _clone(x)
    clone.flags.writeable = False
    return clone


def _clone(x: np.ndarray) -> np.ndarray:
    """A copy with the strides of x: a view stays the same view, of a new buffer."""
    base = x.base
    if not isinstance(base, np.ndarray) or not base.flags.c_contiguous or x.flags.c_contiguous or x.size == 0:
        return x.copy(order="K")
    offset = x.__array_interface__["data"][0] - base.__array_interface__["data"][0]
    return np.ndarray(x.shape, x.dtype, buffer=base.copy(), offset=offset, strides=x.strides)
