"""NumPy re-implementation with the torch.nn.functional names I am used to."""

from typing import Optional, Tuple
import numpy as np

Tensor = np.ndarray


def softmax(input: Tensor, dim: int = -1) -> Tensor:
    shifted = input - input.max(axis=dim, keepdims=True)
    exp = np.exp(shifted)
    return exp / exp.sum(axis=dim, keepdims=True)


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Optional[Tensor] = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: Optional[float] = None,
) -> Tuple[Tensor, Tensor]:
    L, S = query.shape[-2], key.shape[-2]
    scale_factor = 1 / np.sqrt(query.shape[-1]) if scale is None else scale
    attn_bias = np.zeros((L, S), dtype=query.dtype)
    if is_causal:
        assert attn_mask is None
        temp_mask = np.tril(np.ones((L, S), dtype=bool))
        attn_bias = np.where(temp_mask, attn_bias, -np.inf)
    if attn_mask is not None:
        if attn_mask.dtype == np.bool_:
            attn_bias = np.where(attn_mask, 0.0, -np.inf)
        else:
            attn_bias = attn_mask + attn_bias
    attn_weight = query @ key.swapaxes(-2, -1) * scale_factor
    attn_weight = attn_weight + attn_bias
    attn_weight = softmax(attn_weight, dim=-1)
    return attn_weight @ value, attn_weight


class MultiheadAttention:
    def __init__(self, embed_dim: int, num_heads: int, seed: int = 0):
        self.embed_dim = embed_dim
        self.num_heads = num_heads
        self.head_dim = embed_dim // num_heads
        assert self.head_dim * num_heads == embed_dim, "embed_dim must be divisible by num_heads"
        rng = np.random.default_rng(seed)
        bound = np.sqrt(3.0 / embed_dim)
        self.w_q = rng.uniform(-bound, bound, (embed_dim, embed_dim))
        self.w_k = rng.uniform(-bound, bound, (embed_dim, embed_dim))
        self.w_v = rng.uniform(-bound, bound, (embed_dim, embed_dim))
        self.w_o = rng.uniform(-bound, bound, (embed_dim, embed_dim))

    def forward(self, query, key=None, value=None, attn_mask=None, is_causal=False):
        key = query if key is None else key
        value = key if value is None else value
        bsz, tgt_len, _ = query.shape
        src_len = key.shape[1]
        q = (query @ self.w_q).reshape(bsz, tgt_len, self.num_heads, self.head_dim).swapaxes(1, 2)
        k = (key @ self.w_k).reshape(bsz, src_len, self.num_heads, self.head_dim).swapaxes(1, 2)
        v = (value @ self.w_v).reshape(bsz, src_len, self.num_heads, self.head_dim).swapaxes(1, 2)
        attn_output, attn_weights = scaled_dot_product_attention(q, k, v, attn_mask, is_causal=is_causal)
        attn_output = attn_output.swapaxes(1, 2).reshape(bsz, tgt_len, self.embed_dim)
        return attn_output @ self.w_o, attn_weights

    def __call__(self, *args, **kwargs):
        return self.forward(*args, **kwargs)
