import numpy as np

einsum = np.einsum


def softmax(x, axis=-1):
    x = np.exp(x - np.amax(x, axis, keepdims=True))
    return x / x.sum(axis, keepdims=True)


def scaled_dot_product_attention(q, k, v, mask=None):
    sim = einsum("...id,...jd->...ij", q, k) * q.shape[-1] ** -0.5
    if mask is not None:
        sim = np.where(mask, sim, np.finfo(sim.dtype).min)
    attn = softmax(sim)
    return einsum("...ij,...jd->...id", attn, v), attn


def causal_mask(n):
    i, j = np.ogrid[:n, :n]
    return j <= i


def _project(x, w, h):
    # (b n c) , (c, h*d) -> b h n d
    c = w.shape[0]
    return einsum("bnc,chd->bhnd", x, w.reshape(c, h, -1))


def multi_head_attention(x, w_q, w_k, w_v, w_o, heads, causal=False):
    mask = causal_mask(x.shape[1]) if causal else None
    out, _ = scaled_dot_product_attention(
        _project(x, w_q, heads), _project(x, w_k, heads), _project(x, w_v, heads), mask
    )
    d = out.shape[-1]
    return einsum("bhnd,hdc->bnc", out, w_o.reshape(heads, d, -1))


class MultiHeadSelfAttention:
    def __init__(self, d_model, n_heads, seed=0):
        g = np.random.default_rng(seed)
        for name in "qkvo":
            setattr(self, f"w_{name}", g.standard_normal((d_model, d_model)) * d_model**-0.5)
        self.h = n_heads

    def __call__(self, x, causal=False):
        q, k, v = [_project(x, w, self.h) for w in (self.w_q, self.w_k, self.w_v)]
        out, attn = scaled_dot_product_attention(q, k, v, causal_mask(x.shape[1]) if causal else None)
        return einsum("bhnd,hdc->bnc", out, self.w_o.reshape(self.h, q.shape[-1], -1)), attn
