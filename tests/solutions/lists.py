"""Works on nested Python lists as well as arrays, gives nested lists back."""

import numpy as np


def softmax(x, axis=-1):
    x = np.asarray(x, dtype=np.float64)
    top = x.max(axis=axis, keepdims=True)
    e = np.exp(x - top)
    return (e / e.sum(axis=axis, keepdims=True)).tolist()


def scaled_dot_product_attention(q, k, v, mask=None):
    q = np.asarray(q, dtype=np.float64)
    k = np.asarray(k, dtype=np.float64)
    v = np.asarray(v, dtype=np.float64)
    s = np.matmul(q, np.swapaxes(k, -1, -2)) / np.sqrt(q.shape[-1])
    if mask is not None:
        s = np.where(np.asarray(mask, dtype=bool), s, -1e9)
    w = softmax(s, axis=-1)
    o = np.matmul(np.asarray(w), v)
    return o.tolist(), w


def causal_mask(n):
    return [[j <= i for j in range(n)] for i in range(n)]


def multi_head_attention(x, w_q, w_k, w_v, w_o, heads, causal=False):
    x, w_q, w_k, w_v, w_o = (np.asarray(a, dtype=np.float64) for a in (x, w_q, w_k, w_v, w_o))
    b, n, d = x.shape
    dh = d // heads
    q = np.matmul(x, w_q).reshape(b, n, heads, dh).transpose(0, 2, 1, 3)
    k = np.matmul(x, w_k).reshape(b, n, heads, dh).transpose(0, 2, 1, 3)
    v = np.matmul(x, w_v).reshape(b, n, heads, dh).transpose(0, 2, 1, 3)
    o, _ = scaled_dot_product_attention(q, k, v, causal_mask(n) if causal else None)
    o = np.asarray(o).transpose(0, 2, 1, 3).reshape(b, n, d)
    return np.matmul(o, w_o).tolist()


class MultiHeadSelfAttention:
    def __init__(self, d_model, n_heads, seed=0):
        rng = np.random.default_rng(seed)
        self.n_heads = n_heads
        self.w_q = rng.normal(size=(d_model, d_model)).tolist()
        self.w_k = rng.normal(size=(d_model, d_model)).tolist()
        self.w_v = rng.normal(size=(d_model, d_model)).tolist()
        self.w_o = rng.normal(size=(d_model, d_model)).tolist()

    def __call__(self, x, causal=False):
        x = np.asarray(x, dtype=np.float64)
        b, n, d = x.shape
        dh = d // self.n_heads
        parts = []
        for w in (self.w_q, self.w_k, self.w_v):
            p = np.matmul(x, np.asarray(w)).reshape(b, n, self.n_heads, dh)
            parts.append(p.transpose(0, 2, 1, 3))
        o, a = scaled_dot_product_attention(*parts, mask=causal_mask(n) if causal else None)
        o = np.asarray(o).transpose(0, 2, 1, 3).reshape(b, n, d)
        return np.matmul(o, np.asarray(self.w_o)).tolist(), a
