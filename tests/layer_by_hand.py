"""A layer of attention written out with loops, one number after the other; and a cache that is a list."""

import math
from typing import Any

import numpy as np
import pytest

import headwise as hw
from headwise import masks


def by_hand(
    layer: Any,
    query: Any,
    key: Any = None,
    value: Any = None,
    *,
    sees: Any = None,
    bias: Any = None,
    sinks: Any = None,
    scale: float | None = None,
    softcap: float | None = None,
    turn_q: Any = None,
    turn_k: Any = None,
) -> tuple[Any, Any]:
    """Output (b, n_q, d_model) and weights (b, H, n_q, n_k + m) of batched tokens; m keys are learned ones.

    ``sees(item, head, i, j)`` is a bool, ``bias`` likewise a number; ``turn_q(row, item, i)`` is what the transform
    makes of one query of one head.
    """
    key = query if key is None else key
    value = key if value is None else value
    d, together = layer.d_head, layer.n_heads // layer.n_kv_heads
    scale = layer.scale if scale is None else scale
    scale = 1 / math.sqrt(d) if scale is None else scale
    m = 0 if layer.bias_k is None else layer.bias_k.shape[1]
    out = np.zeros((len(query), query.shape[1], layer.d_model))
    weights = np.zeros((len(query), layer.n_heads, query.shape[1], key.shape[1] + m))
    for item in range(len(query)):
        for i in range(query.shape[1]):
            merged = []
            for h in range(layer.n_heads):
                g = h // together
                q = row(query[item, i], layer.w_q, layer.b_q, h, d)
                q = q if turn_q is None else turn_q(q, item, i)
                scores = []
                for j in range(key.shape[1]):
                    k = row(key[item, j], layer.w_k, layer.b_k, g, d)
                    k = k if turn_k is None else turn_k(k, item, j)
                    score = scale * sum(q[c] * k[c] for c in range(d))
                    score = score if softcap is None else softcap * math.tanh(score / softcap)
                    score += 0 if bias is None else bias(item, h, i, j)
                    scores.append(score if sees is None or sees(item, h, i, j) else -math.inf)
                for j in range(m):
                    score = scale * sum(q[c] * layer.bias_k[g, j, c] for c in range(d))
                    scores.append(score if softcap is None else softcap * math.tanh(score / softcap))
                exps = [math.exp(score) for score in scores]
                total = sum(exps) + (0 if sinks is None else math.exp(sinks[h]))
                share = [e / total if total else 0.0 for e in exps]
                weights[item, h, i] = share
                head = np.zeros(d)
                for j in range(key.shape[1]):
                    head += share[j] * row(value[item, j], layer.w_v, layer.b_v, g, d)
                for j in range(m):
                    head += share[key.shape[1] + j] * layer.bias_v[g, j]
                merged.append(head)
            token = np.concatenate(merged)
            out[item, i] = [sum(token * layer.w_o[:, c]) for c in range(layer.d_model)]
            out[item, i] += 0 if layer.b_o is None else layer.b_o
    return out, weights


def row(token: Any, w: Any, b: Any, head: int, d: int) -> Any:
    """The columns of one head, of one token's projection."""
    columns = range(head * d, (head + 1) * d)
    return np.array([sum(token * w[:, c]) + (0 if b is None else b[c]) for c in columns])


def turned(x: Any, position: int, style: str = "half", base: float = 10_000.0) -> Any:
    """One row turned by its position, pair by pair."""
    d, out = len(x), np.array(x, float)
    for pair in range(d // 2):
        a, b = (pair, pair + d // 2) if style == "half" else (2 * pair, 2 * pair + 1)
        angle = position * base ** (-2 * pair / d)
        out[a] = x[a] * math.cos(angle) - x[b] * math.sin(angle)
        out[b] = x[b] * math.cos(angle) + x[a] * math.sin(angle)
    return out


class ListCache:
    """A cache as a list of rows for each item; it may be shortened item by item."""

    window: int | None = None

    def __init__(self, batch: int, n_kv_heads: int, d_k: int, dtype: Any = float) -> None:
        self.rows = [[np.zeros((n_kv_heads, 0, d_k), dtype)] * 2 for _ in range(batch)]

    @property
    def lengths(self) -> Any:
        return np.array([k.shape[1] for k, _ in self.rows])

    def next_positions(self, n: int) -> Any:
        return self.lengths[:, None] + np.arange(n)

    def append(self, k: Any, v: Any) -> None:
        for item, held in enumerate(self.rows):
            self.rows[item] = [np.concatenate([x, new[item]], axis=1) for x, new in zip(held, (k, v), strict=True)]

    def truncate(self, lengths: Any) -> None:
        self.rows = [[x[:, :length] for x in held] for held, length in zip(self.rows, lengths, strict=True)]

    @property
    def k(self) -> Any:
        return self.padded(0)

    @property
    def v(self) -> Any:
        return self.padded(1)

    def padded(self, which: int) -> Any:
        """Nonsense in the slots that an item does not fill."""
        longest = int(self.lengths.max(initial=0))
        return np.stack(
            [
                np.pad(held[which], ((0, 0), (0, longest - held[which].shape[1]), (0, 0)), constant_values=7.0)
                for held in self.rows
            ]
        )

    def offset(self, n_q: int) -> Any:
        return self.lengths - n_q

    def mask(self, n_q: int, causal: bool = True) -> Any:
        valid = masks.lengths(self.lengths)
        return valid & masks.causal(self.offset(n_q)) if causal else valid


# ------------------------------------------------------------------------------------------- what tests share
BIASES = ("b_q", "b_k", "b_v", "b_o")
LEARNED = ("bias_k", "bias_v")


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape)


def layer_of(d_model=6, n_heads=4, learned=0, **options):
    """A layer with heads of width 2 unless said otherwise, biases that are not zeros, if any, and learned rows."""
    layer = hw.MultiHeadAttention(d_model, n_heads, **({"d_head": 2} | options))
    for seed, name in enumerate(BIASES):
        if options.get("use_bias"):
            setattr(layer, name, normal(*getattr(layer, name).shape, seed=seed + 50))
    for seed, name in enumerate(LEARNED):
        if learned:
            setattr(layer, name, normal(layer.n_kv_heads, learned, layer.d_head, seed=seed + 60))
    return layer


def assert_close(ours, wanted):
    np.testing.assert_allclose(ours, wanted, rtol=1e-12, atol=1e-12)


def names_of(layer):
    """The names of its weights, and of the biases and learned rows that it has."""
    return [name for name in ("w_q", "w_k", "w_v", "w_o", *BIASES, *LEARNED) if getattr(layer, name) is not None]


LAYERS = {
    "plain": layer_of(),
    "grouped": layer_of(n_kv_heads=2),
    "one key head": layer_of(n_kv_heads=1, d_head=3),
    "biases": layer_of(use_bias=True),
    "grouped, biases": layer_of(n_kv_heads=2, use_bias=True),
    "learned": layer_of(use_bias=True, learned=1),
    "grouped, learned, scaled": layer_of(n_kv_heads=2, learned=3, scale=0.25),
}
ASYMMETRIC = layer_of(n_kv_heads=2, d_key=5, d_value=3, use_bias=True)
EACH = pytest.mark.parametrize("layer", LAYERS.values(), ids=LAYERS)


X = normal(2, 5, 6)
MASK = normal(2, 4, 5, 5, seed=3) > -0.5
MASK[0, 1, 2] = False  # a query of one head that sees nothing


def assert_right(layer, *tokens, call, **wanted):
    """By the engine and by the definition, in a batch and alone."""
    out, weights = by_hand(layer, *tokens, **wanted)
    assert_close(layer(*tokens, **call), out)
    got, got_weights = layer(*tokens, **call, return_weights=True)
    assert_close(got, out)
    assert_close(got_weights, weights)
