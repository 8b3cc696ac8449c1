import numpy as np
from numpy import exp, sqrt, swapaxes


def softmax(x, axis=-1):
    z = exp(x - x.max(axis=axis, keepdims=True))
    z /= z.sum(axis=axis, keepdims=True)
    return z


def causal_mask(n):
    return np.tri(n, dtype=bool)


def scaled_dot_product_attention(q, k, v, mask=None):
    """Returns the attention output."""
    logits = q @ swapaxes(k, -1, -2) / sqrt(k.shape[-1])
    if mask is not None:
        logits = np.where(mask, logits, -1e30)
    return softmax(logits) @ v


def multi_head_attention(x, w_q, w_k, w_v, w_o, heads, causal=False):
    b, n, d = x.shape

    def f(w):
        return swapaxes((x @ w).reshape(b, n, heads, -1), 1, 2)

    y = scaled_dot_product_attention(f(w_q), f(w_k), f(w_v), causal_mask(n) if causal else None)
    return swapaxes(y, 1, 2).reshape(b, n, d) @ w_o


class MultiHeadSelfAttention:
    def __init__(self, d_model, n_heads, seed=0):
        rs = np.random.RandomState(seed)
        self.n_heads = n_heads
        self.w_q, self.w_k, self.w_v, self.w_o = (
            rs.normal(scale=d_model**-0.5, size=(d_model, d_model)) for _ in range(4)
        )

    def __call__(self, x, causal=False):
        return multi_head_attention(x, self.w_q, self.w_k, self.w_v, self.w_o, self.n_heads, causal)
