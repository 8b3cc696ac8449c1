import math
import numpy as np


def softmax(x, axis=-1):
    x = np.array(x, dtype=float)
    moved = np.moveaxis(x, axis, -1)
    result = np.empty(moved.shape)
    for index in np.ndindex(moved.shape[:-1]):
        row = moved[index]
        biggest = max(row)
        exps = [math.exp(value - biggest) for value in row]
        total = sum(exps)
        result[index] = [e / total for e in exps]
    return np.moveaxis(result, -1, axis)


def scaled_dot_product_attention(q, k, v, mask=None):
    n_q, d_k = q.shape[-2:]
    n_k = k.shape[-2]
    d_v = v.shape[-1]
    lead = np.broadcast_shapes(q.shape[:-2], k.shape[:-2], v.shape[:-2])
    q = np.broadcast_to(q, lead + (n_q, d_k))
    k = np.broadcast_to(k, lead + (n_k, d_k))
    v = np.broadcast_to(v, lead + (n_k, d_v))
    if mask is not None:
        mask = np.broadcast_to(mask, lead + (n_q, n_k))
    out = np.zeros(lead + (n_q, d_v))
    weights = np.zeros(lead + (n_q, n_k))
    for where in np.ndindex(*lead):
        for i in range(n_q):
            allowed = [j for j in range(n_k) if mask is None or mask[where][i, j]]
            if not allowed:
                continue
            scores = [float(np.dot(q[where][i], k[where][j])) / math.sqrt(d_k) for j in allowed]
            for j, w in zip(allowed, softmax(scores)):
                weights[where + (i, j)] = w
                out[where + (i,)] += w * v[where][j]
    return out, weights


def causal_mask(n):
    mask = np.zeros((n, n), dtype=bool)
    for i in range(n):
        for j in range(i + 1):
            mask[i, j] = True
    return mask


def multi_head_attention(x, w_q, w_k, w_v, w_o, heads, causal=False):
    return _heads_loop(x, w_q, w_k, w_v, w_o, heads, causal)[0]


def _heads_loop(x, w_q, w_k, w_v, w_o, heads, causal):
    batch, n, d_model = x.shape
    size = d_model // heads
    mask = causal_mask(n) if causal else None
    final = np.zeros((batch, n, d_model))
    all_weights = np.zeros((batch, heads, n, n))
    for b in range(batch):
        Q, K, V = x[b] @ w_q, x[b] @ w_k, x[b] @ w_v
        concat = np.zeros((n, d_model))
        for h in range(heads):
            a, z = h * size, (h + 1) * size
            concat[:, a:z], all_weights[b, h] = scaled_dot_product_attention(Q[:, a:z], K[:, a:z], V[:, a:z], mask)
        final[b] = concat @ w_o
    return final, all_weights


class MultiHeadSelfAttention:
    def __init__(self, d_model, n_heads, seed=0):
        rng = np.random.default_rng(seed)
        self.n_heads = n_heads
        self.w_q = rng.random((d_model, d_model)) - 0.5
        self.w_k = rng.random((d_model, d_model)) - 0.5
        self.w_v = rng.random((d_model, d_model)) - 0.5
        self.w_o = rng.random((d_model, d_model)) - 0.5

    def __call__(self, x, causal=False):
        return _heads_loop(x, self.w_q, self.w_k, self.w_v, self.w_o, self.n_heads, causal)
