import numpy as np


def _softmax(a):
    a = a - a.max(-1, keepdims=True)
    np.exp(a, out=a)
    return a / a.sum(-1, keepdims=True)


def split_heads(t, num_heads):
    b, n, d = t.shape
    return t.reshape(b, n, num_heads, d // num_heads).transpose(0, 2, 1, 3)


def multi_head_attention(q, k, v, Wq, Wk, Wv, Wo, num_heads, mask=None):
    """
    General multi head attention (self attention if q is k is v).

    q : (b, n_q, d_model);  k, v : (b, n_k, d_model)
    mask : bool, broadcastable to (b, num_heads, n_q, n_k), True = attend
    """
    Q = split_heads(q @ Wq, num_heads)
    K = split_heads(k @ Wk, num_heads)
    V = split_heads(v @ Wv, num_heads)

    logits = np.einsum("bhqd,bhkd->bhqk", Q, K) / np.sqrt(Q.shape[-1])
    if mask is not None:
        logits = np.where(mask, logits, -1e9)
    alpha = _softmax(logits)

    ctx = np.einsum("bhqk,bhkd->bqhd", alpha, V)
    ctx = ctx.reshape(q.shape[0], q.shape[1], -1)
    return ctx @ Wo
