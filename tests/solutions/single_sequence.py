# one sequence at a time, no batch
import numpy as np


def softmax(x, axis=-1):
    x = x - np.max(x, axis=axis, keepdims=True)
    return np.exp(x) / np.sum(np.exp(x), axis=axis, keepdims=True)


def scaled_dot_product_attention(q, k, v, mask=None):
    # q (n_q, d), k (n_k, d), v (n_k, d_v)
    n_q, d = q.shape
    scores = q.dot(k.T) / np.sqrt(d)
    if mask is not None:
        scores = np.where(mask, scores, -1e9)
    w = softmax(scores)
    return w.dot(v), w


def causal_mask(n):
    return np.tril(np.ones((n, n))).astype(bool)


def multi_head_attention(x, w_q, w_k, w_v, w_o, heads, causal=False):
    # x (n, d_model)
    n, d_model = x.shape
    dh = d_model // heads
    q = x.dot(w_q)
    k = x.dot(w_k)
    v = x.dot(w_v)
    mask = causal_mask(n) if causal else None
    outs = []
    for h in range(heads):
        cols = slice(h * dh, (h + 1) * dh)
        o, _ = scaled_dot_product_attention(q[:, cols], k[:, cols], v[:, cols], mask)
        outs.append(o)
    return np.hstack(outs).dot(w_o)
