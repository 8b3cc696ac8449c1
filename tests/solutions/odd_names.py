import numpy as np

ROLES = ("query", "key", "value", "output")


class MultiHeadSelfAttention:
    def __init__(self, d_model, n_heads, seed=0):
        gen = np.random.default_rng(seed)
        self.dims = dict(model=d_model, heads=n_heads, per_head=d_model // n_heads)
        self.proj = {r: gen.normal(scale=d_model**-0.5, size=(d_model, d_model)) for r in ROLES}

    def __call__(self, x, causal=False):
        n = x.shape[1]
        view = {r: self._heads(x @ self.proj[r]) for r in ROLES[:3]}
        energy = view["query"] @ view["key"].swapaxes(2, 3)
        energy = energy / np.sqrt(self.dims["per_head"])
        if causal:
            visible = np.arange(n)[:, None] >= np.arange(n)
            energy = np.where(visible, energy, -1e18)
        energy -= energy.max(axis=3, keepdims=True)
        belief = np.exp(energy)
        belief /= belief.sum(axis=3, keepdims=True)
        mixed = belief @ view["value"]
        glued = np.concatenate([mixed[:, h] for h in range(self.dims["heads"])], axis=-1)
        return glued @ self.proj["output"], belief

    def _heads(self, t):
        return np.stack(np.split(t, self.dims["heads"], axis=-1), axis=1)
