"""The arguments of calls, drawn from a generator.

Knows shapes; neither what is right nor what is judged.
"""

from typing import Any

import numpy as np

from headwise.check.answers import WEIGHTS
from headwise.check.calls import Call
from headwise.core.shapes import Array

Rng = np.random.Generator


def qkv(rng: Rng, n_q: int, n_k: int, d_k: int, d_v: int, *lead: int) -> dict[str, Any]:
    shapes = {"q": (n_q, d_k), "k": (n_k, d_k), "v": (n_k, d_v)}
    return {name: rng.standard_normal((*lead, *shape)) for name, shape in shapes.items()}


def looked(rng: Rng, n_q: int, n_k: int, d_k: int, *lead: int) -> dict[str, Any]:
    """With v the identity: out is the weights."""
    return {**qkv(rng, n_q, n_k, d_k, 1, *lead), "v": np.broadcast_to(np.eye(n_k), (*lead, n_k, n_k)).copy()}


def some(rng: Rng, *shape: int) -> Array:
    """A random mask whose rows all see a key, and none sees all."""
    mask = rng.random(shape) < 0.5
    mask[..., 0], mask[..., -1] = True, False
    return np.asarray(rng.permuted(mask, axis=-1))


def attention(**args: Any) -> Call:
    return Call("attention", args)


def heads(rng: Rng, b: int, n: int, d: int, n_heads: int) -> dict[str, Any]:
    args = {"x": rng.standard_normal((b, n, d))}
    args |= {name: rng.standard_normal((d, d)) / d**0.5 for name in WEIGHTS}
    return {**args, "n_heads": n_heads}


def each_again(*calls: Call) -> list[Call]:
    """Each call, and once more with the arrays as it left them."""
    return [call._replace(again=again) for call in calls for again in (False, True)]


def softmax_calls(*calls: tuple[Array, int]) -> list[Call]:
    return [Call("softmax", {"x": x, "axis": axis} if axis != -1 else {"x": x}) for x, axis in calls]
