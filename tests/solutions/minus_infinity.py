"""Attention exercise. Masked positions get -inf; a query with nothing to look
at gets an all-zero row of weights (and a zero output) instead of NaN."""

from __future__ import annotations

import math

import numpy as np

NEG_INF = -np.inf


def softmax(x: np.ndarray, axis: int = -1) -> np.ndarray:
    m = np.max(x, axis=axis, keepdims=True)
    m = np.where(np.isfinite(m), m, 0.0)  # whole row is -inf
    num = np.exp(x - m)
    den = np.sum(num, axis=axis, keepdims=True)
    return np.divide(num, den, out=np.zeros_like(num), where=den > 0)


def scaled_dot_product_attention(q, k, v, mask=None):
    logits = np.matmul(q, k.swapaxes(-2, -1)) * (1.0 / math.sqrt(q.shape[-1]))
    if mask is not None:
        blocked = ~np.asarray(mask, dtype=bool)
        logits = logits.copy()
        logits[np.broadcast_to(blocked, logits.shape)] = NEG_INF
    attn = softmax(logits, axis=-1)
    return np.matmul(attn, v), attn


def causal_mask(n: int) -> np.ndarray:
    idx = np.arange(n)
    return idx[None, :] <= idx[:, None]


def _to_heads(t: np.ndarray, heads: int) -> np.ndarray:
    *lead, n, d = t.shape
    assert d % heads == 0, f"{d} not divisible by {heads}"
    return np.moveaxis(t.reshape(*lead, n, heads, d // heads), -2, -3)


def _from_heads(t: np.ndarray) -> np.ndarray:
    t = np.moveaxis(t, -3, -2)
    return t.reshape(*t.shape[:-2], -1)


def _mha(x, w_q, w_k, w_v, w_o, heads, causal):
    q, k, v = (_to_heads(x @ w, heads) for w in (w_q, w_k, w_v))
    mask = causal_mask(x.shape[-2]) if causal else None
    ctx, attn = scaled_dot_product_attention(q, k, v, mask)
    return _from_heads(ctx) @ w_o, attn


def multi_head_attention(x, w_q, w_k, w_v, w_o, heads, causal=False):
    return _mha(x, w_q, w_k, w_v, w_o, heads, causal)[0]


class MultiHeadSelfAttention:
    def __init__(self, d_model: int, n_heads: int, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        lim = math.sqrt(6 / (2 * d_model))  # xavier
        self.n_heads = n_heads
        self.w_q, self.w_k, self.w_v, self.w_o = rng.uniform(-lim, lim, size=(4, d_model, d_model))

    def __call__(self, x, causal=False):
        return _mha(x, self.w_q, self.w_k, self.w_v, self.w_o, self.n_heads, causal)
