import numpy as np


def attention(Q, K, V, mask=None):
    # Q: (..., nq, d)  K: (..., nk, d)  V: (..., nk, dv)
    d = Q.shape[-1]
    s = Q @ np.swapaxes(K, -1, -2) / np.sqrt(d)  # (..., nq, nk)
    if mask is not None:
        s = np.where(mask, s, -np.inf)  # mask: True = keep
    s = s - s.max(axis=-1, keepdims=True)  # stability
    p = np.exp(s)
    p = p / p.sum(axis=-1, keepdims=True)
    return p @ V
