"""Attention over the keys of a call and a few that a layer has learned, which every query sees; and its gradients.

No mask and no bias reaches the learned ones: they are a second set of keys, and the two results are merged.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from headwise.core.engine import attention
from headwise.core.gradients import AttentionGradients, attention_vjp
from headwise.core.shapes import Array, result_dtype
from headwise.core.softmax import merge_attention, shares
from headwise.layers.checking import Options


class Learned(NamedTuple):
    """Keys and values that every query sees besides those of a call."""

    k: Array  # (G, m, d_head)
    v: Array  # (G, m, d_head)

    def after(self, k: Array, v: Array) -> tuple[Array, Array]:
        """Keys and values (B, G, n_k + m, d_head): those of a call, then the learned ones."""
        k, v = (
            np.concatenate([x, np.broadcast_to(rows, (x.shape[0], *rows.shape))], axis=-2)
            for x, rows in ((k, self.k), (v, self.v))
        )
        return k, v

    def of_all(self, *others: Array) -> tuple[Array, Array]:
        """For a batch (1, G, m, d_head), in the float type that the result has: a cache may be wider."""
        dtype = result_dtype(*(x.dtype for x in others))
        return self.k[None].astype(dtype, copy=False), self.v[None].astype(dtype, copy=False)


def of_scores(options: Options) -> dict[str, Any]:
    """What holds for the learned keys: of the options only what makes scores of products."""
    return {"scale": options.scale, "softcap": options.softcap}


def attention_with(learned: Learned, q: Array, k: Array, v: Array, options: Options) -> Array:
    """The heads' output; sinks count once, beside the keys of the call."""
    first = attention(q, k, v, options.mask, **options.keywords(), return_lse=True)
    second = attention(q, *learned.of_all(q, k, v), **of_scores(options), return_lse=True)
    return merge_attention(*zip(first, second, strict=True))[0]


JointVjp = Callable[[Array], tuple[AttentionGradients, Learned]]


def attention_with_vjp(learned: Learned, q: Array, k: Array, v: Array, options: Options) -> tuple[Array, JointVjp]:
    """The same, and what leads from its gradient to those of q, k, v, bias and sinks, and of the learned rows.

    The output is ``a out_1 + b out_2`` with a + b = 1 and a / b = exp(lse_1 - lse_2): so ``lse_1`` has the gradient
    ``a b (out_1 - out_2) . d_out``, and ``lse_2`` the same with the other sign.
    """
    out_1, lse_1, vjp_1 = attention_vjp(q, k, v, options.mask, **options.keywords(), return_lse=True)
    out_2, lse_2, vjp_2 = attention_vjp(q, *learned.of_all(q, k, v), **of_scores(options), return_lse=True)
    out, _ = merge_attention([out_1, out_2], [lse_1, lse_2])
    a, b = shares(lse_1, lse_2)  # (B, H, n_q)

    def vjp(d_out: Array) -> tuple[AttentionGradients, Learned]:
        with np.errstate(all="ignore"):
            d_lse = a * b * ((out_1 - out_2) * d_out).sum(axis=-1)
            first = vjp_1(a[..., None] * d_out, d_lse)
            second = vjp_2(b[..., None] * d_out, -d_lse)
            return first._replace(q=first.q + second.q), Learned(second.k[0], second.v[0])

    return out, vjp
