import numpy as np


class MultiHeadAttention(object):
    """Multi-head self attention, everything in one class."""

    def __init__(self, d_model, num_heads, seed=0):
        assert d_model % num_heads == 0
        self.d_model = d_model
        self.num_heads = num_heads
        self.head_dim = d_model // num_heads
        rng = np.random.RandomState(seed)
        self.W_q = rng.randn(d_model, d_model) / np.sqrt(d_model)
        self.W_k = rng.randn(d_model, d_model) / np.sqrt(d_model)
        self.W_v = rng.randn(d_model, d_model) / np.sqrt(d_model)
        self.W_o = rng.randn(d_model, d_model) / np.sqrt(d_model)

    @staticmethod
    def _softmax(z):
        z = z - z.max(axis=-1, keepdims=True)
        ez = np.exp(z)
        return ez / ez.sum(axis=-1, keepdims=True)

    def _split(self, t):
        batch, length, _ = t.shape
        t = t.reshape(batch, length, self.num_heads, self.head_dim)
        return t.transpose(0, 2, 1, 3)

    def _merge(self, t):
        batch, _, length, _ = t.shape
        return t.transpose(0, 2, 1, 3).reshape(batch, length, self.d_model)

    def _attend(self, Q, K, V, causal):
        S = Q @ K.transpose(0, 1, 3, 2)
        S /= np.sqrt(self.head_dim)
        if causal:
            L = S.shape[-1]
            future = np.triu(np.ones((L, L), dtype=bool), k=1)
            S[..., future] = -np.inf
        A = self._softmax(S)
        return A @ V, A

    def forward(self, x, causal=False):
        Q = self._split(x @ self.W_q)
        K = self._split(x @ self.W_k)
        V = self._split(x @ self.W_v)
        heads, A = self._attend(Q, K, V, causal)
        return self._merge(heads) @ self.W_o, A

    __call__ = forward
