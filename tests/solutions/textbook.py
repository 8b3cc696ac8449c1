"""Attention as a textbook has it; tests/test_check_mistakes.py breaks one line of it at a time."""

import numpy as np


def softmax(x, axis=-1):
    shifted = x - np.max(x, axis=axis, keepdims=True)
    exps = np.exp(shifted)
    return exps / np.sum(exps, axis=axis, keepdims=True)


def causal_mask(n):
    return np.tril(np.ones((n, n), dtype=bool))


def scaled_dot_product_attention(q, k, v, mask=None):
    d_k = q.shape[-1]
    scores = np.matmul(q, np.swapaxes(k, -1, -2)) / np.sqrt(d_k)
    if mask is not None:
        scores = np.where(mask, scores, -1e9)
    weights = softmax(scores, axis=-1)
    return np.matmul(weights, v), weights


def split_heads(x, heads):
    b, n, d_model = x.shape
    return x.reshape(b, n, heads, d_model // heads).transpose(0, 2, 1, 3)


def merge_heads(x):
    b, heads, n, d_head = x.shape
    return x.transpose(0, 2, 1, 3).reshape(b, n, heads * d_head)


def attend(x, w_q, w_k, w_v, w_o, heads, causal):
    q = split_heads(x @ w_q, heads)
    k = split_heads(x @ w_k, heads)
    v = split_heads(x @ w_v, heads)
    mask = causal_mask(x.shape[1]) if causal else None
    out, weights = scaled_dot_product_attention(q, k, v, mask)
    return merge_heads(out) @ w_o, weights


def multi_head_attention(x, w_q, w_k, w_v, w_o, heads, causal=False):
    return attend(x, w_q, w_k, w_v, w_o, heads, causal)[0]


class MultiHeadSelfAttention:
    def __init__(self, d_model, n_heads, seed=0):
        rng = np.random.default_rng(seed)
        self.n_heads = n_heads
        self.w_q, self.w_k, self.w_v, self.w_o = (
            rng.standard_normal((d_model, d_model)) / np.sqrt(d_model) for _ in range(4)
        )

    def __call__(self, x, causal=False):
        out, weights = attend(x, self.w_q, self.w_k, self.w_v, self.w_o, self.n_heads, causal)
        return out, weights
