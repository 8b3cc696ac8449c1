"""The arrays of a case: inputs from a seed, masks and biases as whole arrays; and what is counted of them."""

import math
import operator
from collections.abc import Callable
from functools import reduce
from typing import Any, NamedTuple

import numpy as np

from headwise.bench.cases import Case
from headwise.core import masks
from headwise.core.positions import alibi, alibi_slopes
from headwise.core.shapes import Array

Made = Array | tuple[Array, ...]  # out; or d_q, d_k, d_v, behind out where both passes ran
Run = Callable[[], Made]


class Inputs(NamedTuple):
    """The arrays of a case."""

    q: Array  # (B, H, n_q, d_k)
    k: Array  # (B, G, n_k, d_k)
    v: Array  # (B, G, n_k, d_v)
    seen: Array | None = None  # (n_q, n_k), the random mask
    d_out: Array | None = None  # (B, H, n_q, d_v), the gradient with regard to the output


def make(case: Case, seed: int = 0) -> Inputs:
    """Return the inputs of a case: standard normal, from a seed, without larger arrays on the way."""
    rng = np.random.default_rng(seed)
    b, h, n, d = case.shape
    g, dtype = case.kv_heads or h, np.dtype(case.dtype).type
    q, k, v = (
        rng.standard_normal(shape, dtype=dtype)
        for shape in (case.shape, (b, g, case.keys, d), (b, g, case.keys, case.d_v or d))
    )
    q *= dtype(case.factor)
    seen = rng.integers(0, 2, (n, case.keys), dtype=np.bool_) if case.random else None
    d_out = None if case.timed == "forward" else rng.standard_normal((b, h, n, v.shape[-1]), dtype=dtype)
    return Inputs(q, k, v, seen, d_out)


def options(case: Case, inputs: Inputs) -> dict[str, Any]:
    """Return what our functions are called with besides q, k and v; dropout needs an `rng` as well."""
    b, h, _, _ = case.shape
    rules: list[Any] = [] if case.window is None else [masks.window(*case.window)]
    rules += [masks.lengths([case.keys // 2] * b)] if case.padded else []
    rules += [inputs.seen] if inputs.seen is not None else []
    return {
        "mask": reduce(operator.and_, rules) if rules else None,
        "bias": alibi(alibi_slopes(h)) if case.alibi else None,
        "causal": case.causal,
        "dropout": case.dropout,
    }


def dense_mask(case: Case, inputs: Inputs, causal: bool) -> Array | None:
    """Return where a query may attend, for those who take a bool array: (n_q, n_k) or (B, 1, n_q, n_k); None is all.

    `causal` says whether the array has the causal rule in it, or the peer has a flag for it.
    """
    shape = (case.shape[0], 1, case.shape[2], case.keys)[0 if case.padded else 2 :]
    rules = [masks.causal()] if causal and case.causal else []
    given = options(case, inputs)["mask"]
    rules += [] if given is None else [given]
    if not rules:
        return None
    return reduce(np.logical_and, (r if isinstance(r, np.ndarray) else r.dense(shape) for r in rules)).copy()


def dense_bias(case: Case, inputs: Inputs) -> Array | None:
    """Return alibi, and -inf where masked, as one array to add: ([B,] H, n_q, n_k), of the case's dtype.

    None where there is no alibi.
    """
    if not case.alibi:
        return None
    _, h, n, _ = case.shape
    bias = np.empty((h, n, case.keys), case.dtype)
    for head, slope in zip(bias, alibi_slopes(h), strict=True):
        head[:] = alibi([slope]).dense((n, case.keys))
    seen = dense_mask(case, inputs, causal=True)
    return bias if seen is None else np.where(seen, bias, -np.inf).astype(case.dtype, copy=False)


def pairs(case: Case, inputs: Inputs) -> int:
    """Return how many pairs of query and key are visible, over all items and heads.

    >>> case = Case("small", "some", (8, 8, 512, 64), {}, causal=True)
    >>> pairs(case, make(case)) == 8 * 8 * 512 * 513 // 2
    True
    """
    b, h, n, _ = case.shape
    if inputs.seen is not None:
        seen = np.asarray(dense_mask(case, inputs, causal=True))
        return h * int(np.count_nonzero(np.broadcast_to(seen, (b, 1, n, case.keys))))
    own = np.arange(n) + case.keys - n  # the key that stands where the query does
    left, right = case.window or (case.keys, case.keys)
    last = np.minimum(own + (0 if case.causal else right), (case.keys // 2 if case.padded else case.keys) - 1)
    return b * h * int(np.maximum(0, last - np.maximum(own - left, 0) + 1).sum())


def operations(case: Case, inputs: Inputs) -> int:
    """Return the additions and multiplications of the products over visible pairs.

    The forward pass has two products, for scores and output. The backward pass has five: the scores again, the
    gradients of the weights, of v, of q and of k.
    """
    d_k = case.shape[3]
    d_v = case.d_v or d_k
    widths = {"forward": d_k + d_v, "backward": 3 * d_k + 2 * d_v, "both": 4 * d_k + 3 * d_v}
    return 2 * pairs(case, inputs) * widths[case.timed]


def scores_bytes(case: Case) -> int:
    """Return what the matrix of all scores would take.

    >>> scores_bytes(Case("small", "some", (8, 8, 512, 64), {})) / 2**20
    64.0
    """
    b, h, n, _ = case.shape
    return math.prod((b, h, n, case.keys)) * np.dtype(case.dtype).itemsize
