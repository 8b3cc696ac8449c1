"""A kernel that knows causal= and no mask; tests/test_check_causal.py breaks one line of it at a time."""

import numpy as np

BM, BN = 64, 64


def flash(q, k, v, causal=False, bm=BM, bn=BN):
    n_q, n_k = q.shape[-2], k.shape[-2]
    offset = n_k - n_q
    lead = np.broadcast_shapes(q.shape[:-2], k.shape[:-2])
    whole = np.zeros(lead + (n_q, v.shape[-1]))
    for i0 in range(0, n_q, bm):
        rows = np.arange(i0, min(i0 + bm, n_q))
        largest = np.full(lead + (len(rows), 1), -np.inf)
        total = np.zeros(lead + (len(rows), 1))
        out = np.zeros(lead + (len(rows), v.shape[-1]))
        for j0 in range(0, n_k, bn):
            if causal and j0 > i0 + bm - 1 + offset:
                break
            keys = np.arange(j0, min(j0 + bn, n_k))
            scores = q[..., rows, :] @ np.swapaxes(k[..., keys, :], -1, -2) / np.sqrt(q.shape[-1])
            if causal:
                scores = np.where(keys <= rows[:, None] + offset, scores, -np.inf)
            now = np.maximum(largest, np.max(scores, axis=-1, keepdims=True))
            shift = np.where(np.isneginf(now), 0, now)
            e = np.exp(scores - shift)
            shrink = np.exp(largest - shift)
            total = total * shrink + np.sum(e, axis=-1, keepdims=True)
            out = out * shrink + e @ v[..., keys, :]
            largest = now
        whole[..., rows, :] = out / np.where(total == 0, 1, total)
    return whole
