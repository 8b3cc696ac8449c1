"""One call of a layer of attention: tokens projected, heads attended, joined again; and the way back.

Knows nothing of how a call was checked. What attention computes is core's, and what a cache holds is the cache's.
"""

from __future__ import annotations

import operator
from functools import reduce
from typing import Any, NamedTuple

import numpy as np

from headwise.core import workers
from headwise.core.attention import scaled_dot_product_attention
from headwise.core.engine import attention
from headwise.core.gradients import AttentionGradients, attention_vjp
from headwise.core.masks import as_mask, causal
from headwise.core.positions import Alibi, alibi
from headwise.core.products import Product, column_sums, over_tokens, project, project_all
from headwise.core.shapes import Array, Faults, computing_dtype, given_as, result_dtype, words
from headwise.layers.cache import taking_back
from headwise.layers.checking import Options, Sizes
from headwise.layers.learned import Learned, attention_with, attention_with_vjp
from headwise.layers.multihead import merge_heads, split_heads

_TINY = 2**24  # multiplications below which a second worker costs more than it takes over


class Call(NamedTuple):
    """One call of a layer, checked: arrays in the computing type, a batch axis in front."""

    sizes: Sizes
    tokens: tuple[Array, Array, Array]  # query, key, value (B, n, width)
    weights: dict[str, Array]
    transform: Any
    options: Options
    cache: Any
    batched: bool
    dtype: np.dtype[Any]  # of the result

    def projected(self) -> tuple[Array, Array, Array]:
        """q (B, H, n_q, d_head), k and v (B, G, n_k, d_head), before the transform."""
        products = [
            Product(x, self.weights[f"w_{name}"], self.weights.get(f"b_{name}"))
            for x, name in zip(self.tokens, "qkv", strict=True)
        ]
        q, k, v = project_all(products)
        groups = self.sizes.n_kv_heads
        return split_heads(q, self.sizes.n_heads), split_heads(k, groups), split_heads(v, groups)

    @property
    def learned(self) -> Learned | None:
        return Learned(self.weights["bias_k"], self.weights["bias_v"]) if "bias_k" in self.weights else None

    def positions(self) -> tuple[Array, Array]:
        """Of queries and keys: (n,), or (B, n) as the cache counts them."""
        n_q, n_k = (x.shape[1] for x in self.tokens[:2])
        if self.cache is None:
            return np.arange(n_q), np.arange(n_k)
        positions = self.cache.next_positions(n_q)
        return positions, positions

    def transformed(self, q: Array, k: Array) -> tuple[Array, Array]:
        if self.transform is None:
            return q, k
        result = self.transform(q, k, *self.positions())
        return _checked_pair("MultiHeadAttention", result, q, k)

    def cached(self, k: Array, v: Array) -> tuple[Array, Array, Options]:
        """All keys and values, and the options that hold for them: those of the cache, where there is one."""
        if self.cache is None:
            return k, v, self.options
        n_q, (mask, causal, bias, *others) = k.shape[-2], self.options
        self.cache.append(k, v)
        k, v, own = self.cache.k, self.cache.v, self.cache.mask(n_q, causal)
        if isinstance(bias, Alibi) and bias.offset is None:
            bias = _alibi_in(self.cache, bias, n_q, k.shape[-2])
        return k, v, Options(own if mask is None else own & mask, False, bias, *others)

    def joined(self, heads: Array) -> Array:
        """The heads side by side, and their projection (B, n_q, d_model)."""
        w_o = self.weights["w_o"]
        return project(cast(merge_heads(heads), w_o.dtype), w_o, self.weights.get("b_o"))  # a cache may be wider

    def given_back(self, out: Array) -> Array:
        """A result in its type, without the batch axis where none was given."""
        return cast(out if self.batched else out[0], self.dtype)


def _alibi_in(cache: Any, bias: Alibi, n_q: int, n_k: int) -> Alibi:
    """Alibi by each item's own positions: items of a cache may hold more keys than others."""
    offset = np.asarray(cache.offset(n_q))
    if (offset == n_k - n_q).all():
        return bias  # what it means by default, and the engine knows it is the same for all items
    return alibi(bias.slopes, offset)


def _checked_pair(function: str, result: Any, q: Array, k: Array) -> tuple[Array, Array]:
    """What a transform returned: q and k of the shapes that it was given."""
    faults = Faults(function)
    expected = f"a transform that returns (q, k) of the shapes {words(q.shape)} and {words(k.shape)}"
    if not isinstance(result, tuple | list) or len(result) != 2:
        faults.type("transform", expected, given_as(result))
        faults.raise_any()
    turned = [np.asarray(x) for x in result]
    if [x.shape for x in turned] != [q.shape, k.shape]:
        faults.value("transform", expected, " and ".join(words(x.shape) for x in turned))
    if any(computing_dtype(x.dtype) is None for x in turned):
        faults.type("transform", expected, " and ".join(f"dtype {x.dtype}" for x in turned))
    faults.raise_any()
    return cast(turned[0], q.dtype), cast(turned[1], k.dtype)


def cast(x: Array, dtype: np.dtype[Any]) -> Array:
    with np.errstate(all="ignore"):  # a float16 that is too large is inf, one too small is 0
        return x.astype(dtype, copy=False)


# -------------------------------------------------------------------------------------- the heads, two ways
def _by_definition(q: Array, k: Array, v: Array, options: Options, learned: Learned | None) -> tuple[Array, Array]:
    """Output and weights of all heads, a key head with its queries at a time: on our workers, as projections are."""
    (n_items, n_heads, n_q, _), (n_groups, n_k) = q.shape, k.shape[1:3]
    scores, together = (n_items, n_heads, n_q, n_k), n_heads // n_groups
    rules = [] if options.mask is None else [as_mask(options.mask)]
    rules += [causal()] if options.causal else []  # made once, and not for every head
    mask = reduce(operator.and_, rules).dense(scores) if rules else None
    bias = options.bias
    if bias is not None:
        bias = np.broadcast_to(bias if isinstance(bias, np.ndarray) else bias.dense(scores), scores)
    sinks = None if options.sinks is None else np.broadcast_to(options.sinks, n_heads)
    n_learned = 0 if learned is None else learned.k.shape[-2]
    if learned is not None:
        k, v = learned.after(k, v)
    dtype = result_dtype(q.dtype, k.dtype, v.dtype)
    out, weights = np.empty((*scores[:-1], v.shape[-1]), dtype), np.empty((*scores[:-1], n_k + n_learned), dtype)

    def compute(task: tuple[int, int]) -> None:
        item, group = (slice(i, i + 1) for i in task)
        heads = slice(task[1] * together, (task[1] + 1) * together)
        here = (item, heads)
        out[here], weights[here] = scaled_dot_product_attention(
            q[here],
            k[item, group],
            v[item, group],
            None if mask is None else _widened(mask[here], n_learned, True),
            bias=None if bias is None else _widened(bias[here], n_learned, 0),
            sinks=None if sinks is None else sinks[heads],
            scale=options.scale,
            softcap=options.softcap,
        )

    threads = 1 if q.size * n_k < _TINY else workers.default_threads()
    workers.run(lambda: compute, list(np.ndindex(n_items, n_groups)), threads)
    return out, weights


def _widened(x: Array, n_more: int, value: float) -> Array:
    """A mask or bias (..., n_k) with this value for so many keys more."""
    return x if not n_more else np.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, n_more)], constant_values=value)


def forward(call: Call, return_weights: bool) -> Any:
    q, k, v = call.projected()
    q, k = call.transformed(q, k)
    take_back = taking_back(call.cache)
    try:
        return _attended(call, q, k, v, return_weights)
    except BaseException:  # an interrupt too: a call that is made again must not find its rows there
        take_back()
        raise


def _attended(call: Call, q: Array, k: Array, v: Array, return_weights: bool) -> Any:
    k, v, options = call.cached(k, v)
    if return_weights:
        heads, weights = _by_definition(q, k, v, options, call.learned)
        return call.given_back(call.joined(heads)), call.given_back(weights)
    if call.learned is not None:
        return call.given_back(call.joined(attention_with(call.learned, q, k, v, options)))
    return call.given_back(call.joined(attention(q, k, v, options.mask, **options.keywords())))


def _heads_vjp(call: Call, q: Array, k: Array, v: Array) -> tuple[Array, Any]:
    """Output of the heads, and what gives the gradients of attention's arguments, and of the learned rows or None."""
    if call.learned is not None:
        return attention_with_vjp(call.learned, q, k, v, call.options)
    heads, vjp = attention_vjp(q, k, v, call.options.mask, **call.options.keywords())
    return heads, lambda d_heads: (vjp(d_heads), None)


class Backward:
    """What the vjp of one call remembers, and what it does with the gradient of the output."""

    def __init__(self, call: Call) -> None:
        self.call = call
        q, k, v = call.projected()
        self.transform_vjp: Any = None
        if call.transform is not None:
            *turned, self.transform_vjp = call.transform.vjp(q, k, *call.positions())
            q, k = _checked_pair("MultiHeadAttention.vjp", turned, q, k)
        heads, self.heads_vjp = _heads_vjp(call, q, k, v)
        self.merged = merge_heads(heads)
        self.out = project(self.merged, call.weights["w_o"], call.weights.get("b_o"))

    def gradients(self, d_out: Array) -> tuple[list[Array], dict[str, Array], dict[str, Array], AttentionGradients]:
        """Those of query, key and value, of the weights by name, of the transform's weights, and of bias and sinks."""
        call, weights = self.call, self.call.weights
        d_merged = project(d_out, weights["w_o"].T)
        of_heads, learned = self.heads_vjp(split_heads(d_merged, call.sizes.n_heads))
        d_q, d_k, own = of_heads.q, of_heads.k, {}
        if self.transform_vjp is not None:
            d_q, d_k, own = self.transform_vjp(d_q, d_k)
        d_projected = [merge_heads(d) for d in (d_q, d_k, of_heads.v)]
        pairs = dict(zip("qkvo", zip((*call.tokens, self.merged), (*d_projected, d_out), strict=True), strict=True))
        products = {f"w_{name}": over_tokens(x, d) for name, (x, d) in pairs.items()}
        products |= {f"b_{name}": column_sums(d) for name, (_, d) in pairs.items() if f"b_{name}" in weights}
        inputs = [Product(d, weights[f"w_{name}"].T) for name, d in zip("qkv", d_projected, strict=True)]
        d_query, d_key, d_value, *others = project_all([*inputs, *products.values()])
        d_weights = {name: d.reshape(weights[name].shape) for name, d in zip(products, others, strict=True)}
        d_weights |= {} if learned is None else {"bias_k": learned.k, "bias_v": learned.v}
        return [d_query, d_key, d_value], d_weights, own, of_heads
