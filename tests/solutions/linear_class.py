import numpy as np


class Linear:
    """y = x W^T + b, weight stored as (out_features, in_features) like nn.Linear."""

    def __init__(self, in_features, out_features, bias=True, rng=None):
        rng = rng or np.random.default_rng()
        k = 1 / np.sqrt(in_features)
        self.weight = rng.uniform(-k, k, size=(out_features, in_features))
        self.bias = rng.uniform(-k, k, size=out_features) if bias else None

    def __call__(self, x):
        y = x @ self.weight.T
        if self.bias is not None:
            y = y + self.bias
        return y


class MultiHeadSelfAttention:
    def __init__(self, d_model, n_heads, seed=0, bias=True):
        assert d_model % n_heads == 0
        rng = np.random.default_rng(seed)
        self.n_heads = n_heads
        self.d_head = d_model // n_heads
        self.q_proj = Linear(d_model, d_model, bias, rng)
        self.k_proj = Linear(d_model, d_model, bias, rng)
        self.v_proj = Linear(d_model, d_model, bias, rng)
        self.out_proj = Linear(d_model, d_model, bias, rng)

    def _shape(self, t):
        b, n, _ = t.shape
        return t.reshape(b, n, self.n_heads, self.d_head).transpose(0, 2, 1, 3)

    def forward(self, x, causal=False):
        b, n, d = x.shape
        q = self._shape(self.q_proj(x)) * self.d_head**-0.5
        k = self._shape(self.k_proj(x))
        v = self._shape(self.v_proj(x))
        att = q @ k.transpose(0, 1, 3, 2)
        if causal:
            att = np.where(np.tril(np.ones((n, n), dtype=bool)), att, -np.inf)
        att = np.exp(att - att.max(axis=-1, keepdims=True))
        att = att / att.sum(axis=-1, keepdims=True)
        y = (att @ v).transpose(0, 2, 1, 3).reshape(b, n, d)
        return self.out_proj(y), att

    def __call__(self, x, causal=False):
        return self.forward(x, causal)
