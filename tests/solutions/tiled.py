"""Attention a tile of keys at a time, as fast kernels have it; tests/test_check_tiles.py breaks one line of it at a time."""

import numpy as np

TILE = 64


def softmax(x, axis=-1):
    shifted = x - np.max(x, axis=axis, keepdims=True)
    exps = np.exp(shifted)
    return exps / np.sum(exps, axis=axis, keepdims=True)


def causal_mask(n):
    return np.tril(np.ones((n, n), dtype=bool))


def scaled_dot_product_attention(q, k, v, mask=None):
    n_q, n_k = q.shape[-2], k.shape[-2]
    lead = np.broadcast_shapes(q.shape[:-2], k.shape[:-2])
    if mask is not None:
        mask = np.broadcast_to(mask, lead + (n_q, n_k))
    parts = []
    for first in range(0, n_q, TILE):
        rows = slice(first, first + TILE)
        parts.append(tile_of_queries(q[..., rows, :], k, v, None if mask is None else mask[..., rows, :], lead))
    return np.concatenate(parts, axis=-2)


def tile_of_queries(q, k, v, mask, lead):
    q = q / np.sqrt(q.shape[-1])
    largest = np.full(lead + (q.shape[-2], 1), -np.inf)
    total = np.zeros(lead + (q.shape[-2], 1))
    out = np.zeros(lead + (q.shape[-2], v.shape[-1]))
    for start in range(0, k.shape[-2], TILE):
        keys = slice(start, start + TILE)
        k_tile, v_tile = k[..., keys, :], v[..., keys, :]
        scores = q @ np.swapaxes(k_tile, -1, -2)
        if mask is not None:
            scores = np.where(mask[..., keys], scores, -np.inf)
        now = np.maximum(largest, np.max(scores, axis=-1, keepdims=True))
        shift = np.where(np.isneginf(now), 0, now)
        e = np.exp(scores - shift)
        shrink = np.exp(largest - shift)
        total = total * shrink + np.sum(e, axis=-1, keepdims=True)
        out = out * shrink + e @ v_tile
        largest = now
    return out / np.where(total == 0, 1, total)


def split_heads(x, heads):
    b, n, d_model = x.shape
    return x.reshape(b, n, heads, d_model // heads).transpose(0, 2, 1, 3)


def merge_heads(x):
    b, heads, n, d_head = x.shape
    return x.transpose(0, 2, 1, 3).reshape(b, n, heads * d_head)


def multi_head_attention(x, w_q, w_k, w_v, w_o, heads, causal=False):
    q, k, v = (split_heads(x @ w, heads) for w in (w_q, w_k, w_v))
    mask = causal_mask(x.shape[1]) if causal else None
    return merge_heads(scaled_dot_product_attention(q, k, v, mask)) @ w_o


class MultiHeadSelfAttention:
    def __init__(self, d_model, n_heads, seed=0):
        rng = np.random.default_rng(seed)
        self.n_heads = n_heads
        self.w_q, self.w_k, self.w_v, self.w_o = (
            rng.standard_normal((d_model, d_model)) / np.sqrt(d_model) for _ in range(4)
        )

    def __call__(self, x, causal=False):
        return multi_head_attention(x, self.w_q, self.w_k, self.w_v, self.w_o, self.n_heads, causal)
