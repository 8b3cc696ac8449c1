"""The engine held to the definition on plain arrays: what is wanted in float64, and how close is equal.

Everything here is of one call, ``attention(q, k, v, mask, **options)``; ``closeness`` does the same for drawn problems.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import pytest
from closeness import assert_within

import headwise as hw
from headwise.core import engine, grid, paths

EPS = {np.dtype(np.float64): 2.0**-52}


def normal(seed: int, *shape: int, dtype: Any = np.float32) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def qkv(seed: int, *shape: int, dtype: Any = np.float32) -> tuple[Any, Any, Any]:
    """Three arrays of this shape."""
    q, k, v = normal(seed, 3, *shape, dtype=dtype)
    return q, k, v


def tiled(tile: tuple[int, int] | None, *qkv: Any, rng: Any = None, threads: int = 1, **options: Any) -> Any:
    """Out and lse of the engine with tiles of this size."""
    plan = hw.attention_plan(*qkv, threads=threads, tile=tile, **options)
    return engine.run(plan, *qkv, rng=rng, return_lse=True)


def assert_right(got: Any, q: Any, k: Any, v: Any, rng: Any = None, **options: Any) -> None:
    """Out and lse lie as close to the definition in float64 as DESIGN says."""
    wide = [np.asarray(x).astype(np.float64) for x in (q, k, v)]
    steps = hw.attention_steps(*wide, rng=rng, **options)
    out, lse = got
    bound, reach = bounds(steps, *wide, eps=EPS.get(lse.dtype, 2.0**-23), **options)
    assert_within(out, steps.out, bound[..., None] * reach / max(2.0**-16, 1 - options.get("dropout", 0)), out.dtype)
    assert_within(lse, steps.lse, np.broadcast_to(bound, lse.shape), lse.dtype)


def bounds(steps: Any, q: Any, k: Any, v: Any, eps: float, **options: Any) -> tuple[Any, Any]:
    """Of each row, (..., H, n_q), and max|v| of each head, (..., H, 1, 1); by what some query may see."""
    seen = steps.masked > -np.inf
    norms = [norm(np.nan_to_num(x, posinf=0, neginf=0)) for x in (q, k)]
    some = np.nan_to_num(np.abs(per_head(v, steps.scores.shape)), nan=0, posinf=0).max(axis=(-1, -2), initial=0)
    longest = per_head(norms[1][..., None], steps.scores.shape)[..., 0].max(axis=-1, initial=0)[..., None]
    scale = options.get("scale")
    scale = 1 / np.sqrt(max(1, q.shape[-1])) if scale is None else abs(scale)
    with np.errstate(all="ignore"):
        added = np.nan_to_num(np.abs(np.where(seen, steps.biased - steps.capped, 0)), nan=0, posinf=0)
    bias = added.max(axis=-1, initial=0) + _size_of_sinks(options.get("sinks"), steps.scores.shape)
    n_k = steps.scores.shape[-1]
    spread = 1 + q.shape[-1] * norms[0] * scale * longest + bias + np.log(max(1, n_k))
    return 8 * eps * np.broadcast_to(spread, steps.lse.shape), some[..., None, None]


def norm(x: Any) -> Any:
    """Of each row, whose squares may be out of range."""
    most = np.maximum(np.abs(x).max(axis=-1, initial=0, keepdims=True), np.finfo(x.dtype).tiny)
    return most[..., 0] * np.sqrt(((x / most) ** 2).sum(axis=-1))


def _size_of_sinks(sinks: Any, scores: tuple[int, ...]) -> Any:
    if sinks is None:
        return 0.0
    sizes = np.abs(np.where(np.isneginf(sinks), 0, sinks))
    return sizes[:, None] if len(scores) > 2 else sizes


def per_head(x: Any, scores: tuple[int, ...]) -> Any:
    """Keys or values with the scores' own leading axes: each head's group written out."""
    if len(scores) > 3 and x.ndim > 2 and x.shape[-3] > 1:
        x = np.repeat(x, scores[-3] // x.shape[-3], axis=-3)
    return np.broadcast_to(x, (*scores[:-2], *x.shape[-2:]))


# ------------------------------------------------------------------------------------------- the three ways
@contextmanager
def forced(path: paths.Path) -> Iterator[None]:
    """Whatever the problem is, every head tries this path first; but raw has no unit for a dense bias."""
    dense = paths.REFERENCE if path is paths.RAW else path
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(grid, "first_path", lambda p, *_, **__: dense if isinstance(p.bias, np.ndarray) else path)
        yield


def path_of(*qkv: Any, **options: Any) -> str:
    """The path that a problem of one head, or of heads that are alike, tries first."""
    (name,) = hw.attention_plan(*qkv, **options).paths
    return name


class Pass(NamedTuple):
    """Some queries of some heads, taken through their keys once."""

    path: str
    heads: tuple[int, ...]  # flat indices of item and head
    rows: tuple[int, int]


@contextmanager
def gone_through() -> Iterator[list[Pass]]:
    """Every pass over keys that is made inside, in its order."""
    passes: list[Pass] = []
    gather = engine._Stack.gather

    def noted(stack: Any) -> Any:
        task = stack.task
        places = product(*(range(some.start, some.stop) for some in (task.shared, task.grouped)))
        heads = tuple(stack.grid.flat(task.outer, *place) for place in places)
        passes.append(Pass(stack.path.name, heads, (task.rows.start, task.rows.stop)))
        return gather(stack)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine._Stack, "gather", noted)
        yield passes


def taken(passes: list[Pass]) -> list[str]:
    """The paths of these passes, each once, in the order in which they were first taken."""
    return list(dict.fromkeys(each.path for each in passes))
