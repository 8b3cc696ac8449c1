"""Gradients, ready to run: ours, NumPy's by the formulas, those of the peers; knows nothing of how a peer attends.

What is timed is a backward pass alone, for which the forward pass is done here, or one after the other. Every run gives
(d_q, d_k, d_v), behind the output where it made one.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from headwise.bench.arrays import Inputs, Run, options
from headwise.bench.cases import Case
from headwise.core.gradients import attention_vjp
from headwise.core.shapes import Array

Attend = Callable[[], tuple[Array, Array]]  # -> weights, out


def ours(case: Case, inputs: Inputs, threads: int) -> Run:
    """Return a run of `attention_vjp`."""
    chosen = options(case, inputs) | {"threads": threads}

    def forward() -> tuple[Array, Callable[..., Any]]:
        out, vjp = attention_vjp(inputs.q, inputs.k, inputs.v, **chosen, rng=0 if case.dropout else None)
        return out, vjp

    def both() -> tuple[Array, ...]:
        out, vjp = forward()
        return out, *vjp(inputs.d_out)[:3]

    if case.timed == "both":
        return both
    _, vjp = forward()
    return lambda: vjp(inputs.d_out)[:3]


def naive(case: Case, inputs: Inputs, attend: Attend) -> Run:
    """Return a run of NumPy's: the backward pass takes the weights that the forward pass made, as frameworks do."""
    q, k, v, _, d_out = inputs

    def both() -> tuple[Array, ...]:
        weights, out = attend()
        return out, *dense(q, k, v, weights, out, d_out)

    if case.timed == "both":
        return both
    weights, out = attend()
    return lambda: dense(q, k, v, weights, out, d_out)


def dense(q: Array, k: Array, v: Array, weights: Array, out: Array, d_out: Any) -> tuple[Array, Array, Array]:
    """Return the gradients of sum(out * d_out) with regard to q, k and v, by the formulas.

    Parameters
    ----------
    q : ndarray, shape (B, H, n_q, d_k)
    k : ndarray, shape (B, G, n_k, d_k)
    v : ndarray, shape (B, G, n_k, d_v)
    weights : ndarray, shape (B, H, n_q, n_k)
        The softmax of the scores, whose scale is 1 / sqrt(d_k); 0 where masked.
    out, d_out : ndarray, shape (B, H, n_q, d_v)

    Examples
    --------
    >>> q, k, v = np.ones((3, 1, 1, 2, 2))
    >>> d_q, d_k, d_v = dense(q, k, v, np.full((1, 1, 2, 2), 0.5), v, v)
    >>> d_v[0, 0].tolist(), bool(d_q.any())
    ([[1.0, 1.0], [1.0, 1.0]], False)
    """
    group = q.shape[1] // k.shape[1]
    keys, values = (np.repeat(x, group, axis=1) if group > 1 else x for x in (k, v))
    d_weights = d_out @ values.swapaxes(-1, -2)  # (B, H, n_q, n_k)
    delta = (d_out * out).sum(axis=-1, keepdims=True)  # (B, H, n_q, 1): what the softmax's normalisation takes back
    d_scores = weights * (d_weights - delta) / math.sqrt(q.shape[-1])
    d_k, d_v = d_scores.swapaxes(-1, -2) @ q, weights.swapaxes(-1, -2) @ d_out
    return d_scores @ keys, _of_key_heads(d_k, k.shape), _of_key_heads(d_v, v.shape)


def _of_key_heads(gradient: Array, shape: Sequence[int]) -> Array:
    """Summed over the query heads that share a key head: (B, H, n_k, d) to (B, G, n_k, d)."""
    b, g, n, d = shape
    summed: Array = gradient.reshape(b, g, -1, n, d).sum(axis=2) if gradient.shape[1] != g else gradient
    return summed


def autograd(case: Case, inputs: Inputs, torch: Any, attend: Callable[..., Any]) -> Run:
    """Return a run of torch.autograd.grad; `attend` takes the tensors q, k and v."""
    tensors = [torch.from_numpy(x).requires_grad_() for x in inputs[:3]]
    d_out = torch.from_numpy(inputs.d_out)

    def both() -> tuple[Array, ...]:
        made = attend(*tensors)
        return tuple(x.detach().numpy() for x in (made, *torch.autograd.grad(made, tensors, d_out)))

    if case.timed == "both":
        return both
    made = attend(*tensors)
    return lambda: tuple(x.numpy() for x in torch.autograd.grad(made, tensors, d_out, retain_graph=True))


def jitted(jax: Any, attend: Callable[..., Any], arrays: Sequence[Any], d_out: Any) -> Run:
    """Return a run of jax.grad of sum(out * d_out), jitted: both passes; all of (B, n, H, d)."""

    def total(q: Any, k: Any, v: Any, d_out: Any) -> Any:
        return (attend(q, k, v) * d_out).sum()

    compiled = jax.jit(jax.grad(total, argnums=(0, 1, 2)))
    return lambda: tuple(np.asarray(x).swapaxes(1, 2) for x in jax.block_until_ready(compiled(*arrays, d_out)))
