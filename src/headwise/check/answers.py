"""What a call should give, and what it gives where one step of it is another.

The right answers are the library's own; the steps below, each replaceable, are there to make wrong ones.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from headwise.check.calls import Call, Result, is_oblong, same
from headwise.core.attention import scaled_dot_product_attention
from headwise.core.masks import causal_mask
from headwise.core.shapes import Array
from headwise.core.softmax import softmax
from headwise.layers.multihead import multi_head_attention

WEIGHTS = ("w_q", "w_k", "w_v", "w_o")


class Sizes(NamedTuple):
    """What a scale may depend on: the shapes of q, k and v, and the width before it was split."""

    q: tuple[int, ...]
    k: tuple[int, ...]
    v: tuple[int, ...]
    d_model: int


def _softmax(x: Array, axis: int | tuple[int, ...]) -> Array:
    """The library's, along one axis or several at once."""
    if isinstance(axis, int):
        return np.asarray(softmax(x, axis))
    axes = tuple(i % x.ndim for i in axis)
    rest = [i for i in range(x.ndim) if i not in axes]
    flat = x.transpose(*rest, *axes).reshape(*(x.shape[i] for i in rest), -1)
    whole = np.asarray(softmax(flat, -1)).reshape(*(x.shape[i] for i in (*rest, *axes)))
    return whole.transpose(*np.argsort((*rest, *axes)))


def attend(p: "Parts", q: Array, k: Array, v: Array, mask: Array | None, d_model: int) -> tuple[Array, Array]:
    """(out, weights) by the steps of p."""
    q, k, v = p.inputs(q, k, v)
    weights = p.weigh(p, p.scores(q, k) * p.scale(Sizes(q.shape, k.shape, v.shape, d_model)), mask)
    return p.mix(weights, v), weights


def hide(p: "Parts", scores: Array, mask: Array | None) -> Array:
    """The scores, with what stands for 'no' where the mask is False, set there or added."""
    if mask is None:
        return scores
    return scores + np.where(mask, 0, p.hidden) if p.added else np.where(mask, scores, p.hidden)


def rule(p: "Parts", n_q: int, n_k: int) -> Array:
    """The causal mask (n_q, n_k): the last query may see all keys."""
    n = max(n_q, n_k)
    return p.triangle(n)[n - n_q :, n - n_k :]


def split(x: Array, n_heads: int) -> Array:
    """(..., n, d_model) -> (..., H, n, d_head)."""
    return x.reshape(*x.shape[:-1], n_heads, -1).swapaxes(-3, -2)


def merge(heads: Array) -> Array:
    """(..., H, n, d_head) -> (..., n, d_model)."""
    merged = heads.swapaxes(-3, -2)
    return merged.reshape(*merged.shape[:-2], -1)


@dataclass(frozen=True)
class Parts:
    """The steps of softmax, attention and multi-head attention, in their order; a mistake replaces some."""

    softmax: Callable[[Array, Any], Array] = _softmax
    axis: int = -1  # of a softmax that is not told which
    inputs: Callable[..., tuple[Array, Array, Array]] = lambda q, k, v: (q, k, v)
    scores: Callable[[Array, Array], Array] = lambda q, k: q @ np.swapaxes(k, -1, -2)
    scale: Callable[["Sizes"], float] = lambda n: n.q[-1] ** -0.5
    hidden: float = -np.inf
    added: bool = False
    weigh: Callable[["Parts", Array, Array | None], Array] = lambda p, s, mask: p.softmax(hide(p, s, mask), -1)
    mix: Callable[[Array, Array], Array] = lambda weights, v: weights @ v
    attend: Callable[..., tuple[Array, Array]] = attend
    returned: Callable[[Array, Array], tuple[Array, Array]] = lambda out, weights: (out, weights)
    triangle: Callable[[int], Array] = causal_mask
    rule: Callable[["Parts", int, int], Array] = rule
    heeds_causal: bool = True
    always_causal: bool = False
    tokens_axis: int = -2  # of x, whose length the triangle has
    roles: tuple[str, ...] = WEIGHTS  # which weight is used as w_q ... w_o; '' for none
    turned: tuple[str, ...] = ()  # weights that are used transposed
    project: Callable[[Array, Array], Array] = lambda x, w: x @ w
    split: Callable[[Array, int], Array] = split
    merge: Callable[[Array], Array] = merge
    early: bool = False  # whether w_o multiplies the values, before attention
    chained: bool = False  # whether k is made from q, and v from k
    finish: Callable[[Array, Array, Array], Array] = lambda merged, out, x: out
    shown: Callable[[Array], Array] = lambda weights: weights  # the weights that a layer returns


def drawn(d_model: int, seed: int) -> dict[str, Array]:
    """The weights of a layer as the exercise draws them."""
    rng = np.random.default_rng(seed)
    return {name: rng.normal(scale=d_model**-0.5, size=(d_model, d_model)) for name in WEIGHTS}


def right(call: Call, params: dict[str, Array]) -> Result:
    """What a call should give; ``params`` are the weights of a layer, and may not fit: that is its fault, an error."""
    if call.function != "layer":
        with np.errstate(all="ignore"):
            return _right(call, {})
    if not params:
        return Result(error="the layer's weights could not be read")
    try:
        with np.errstate(all="ignore"):
            return _right(call, params)._replace(params=params)
    except (ValueError, TypeError, KeyError) as error:
        return Result(error=f"the layer's weights do not fit: {error}")


def _right(call: Call, params: dict[str, Array]) -> Result:
    args = call.args
    if call.function == "softmax":
        return Result(np.asarray(softmax(np.asarray(args["x"], np.float64), args.get("axis", -1))))
    if call.function == "causal_mask":
        return Result(causal_mask(args["n"]))
    if call.function == "attention":
        mask = None if "mask" not in args else np.asarray(args["mask"]) != 0
        causal = bool(args.get("causal"))
        if "aligned" in args:
            mask, causal = _upper_left(args), False
        return Result(*scaled_dot_product_attention(args["q"], args["k"], args["v"], mask, causal=causal))
    if call.function == "multi_head":
        w_q, w_k, w_v, w_o = (args[name] for name in WEIGHTS)
        causal = args.get("causal", False)
        return Result(multi_head_attention(args["x"], w_q, w_k, w_v, w_o, args["n_heads"], causal=causal))
    return _composed(Parts(), call, params)


def _upper_left(args: dict[str, Any]) -> Array:
    return np.tri(args["q"].shape[-2], args["k"].shape[-2], dtype=bool)


def as_taken(call: Call, result: Result) -> Call:
    """The call, which says so if the solution took ``causal`` to align the first query with the first key."""
    if not is_oblong(call) or same(result.out, right(call, {}).out):
        return call
    other = call._replace(args={**call.args, "aligned": "upper left"})
    return other if same(result.out, right(other, {}).out) else call


def composed(p: Parts, call: Call, params: dict[str, Array]) -> Result:
    """What a call gives with these parts; an error is a result."""
    try:
        with np.errstate(all="ignore"):
            return _composed(p, call, params)
    except Exception as error:  # a wrong step may fail in any way, as a wrong solution does
        return Result(error=f"{type(error).__name__}: {error}")


def _composed(p: Parts, call: Call, params: dict[str, Array]) -> Result:
    args = call.args
    if call.function == "softmax":
        return Result(p.softmax(np.asarray(args["x"], np.float64), args.get("axis", p.axis)))
    if call.function == "causal_mask":
        return Result(p.triangle(args["n"]))
    if call.function == "attention":
        q, k, v = (np.asarray(args[name]) for name in "qkv")
        return Result(*p.returned(*p.attend(p, q, k, v, _mask(p, args), q.shape[-1])))
    return _multi_head(p, np.asarray(args["x"]), params or args, args["n_heads"], args.get("causal", False))


def _mask(p: Parts, args: dict[str, Any]) -> Array | None:
    mask = None if args.get("mask") is None else np.asarray(args["mask"])
    if "aligned" in args and p.heeds_causal:
        return _upper_left(args)
    if not ((args.get("causal") and p.heeds_causal) or p.always_causal):
        return mask
    causal = p.rule(p, args["q"].shape[-2], args["k"].shape[-2])
    return causal if mask is None else causal & mask


def _multi_head(p: Parts, x: Array, params: dict[str, Any], n_heads: int, causal: bool) -> Result:
    w_q, w_k, w_v, w_o = (_weight(p, params, name, x.shape[-1]) for name in p.roles)
    b_q, b_k, b_v, b_o = (params.get(name.replace("w_", "b_"), 0.0) for name in WEIGHTS)
    q = p.project(x, w_q) + b_q  # (..., n, d_model)
    k = p.project(q if p.chained else x, w_k) + b_k
    v = p.project(k if p.chained else x, w_v) + b_v
    if p.early:
        v, w_o, b_o = p.project(v, w_o) + b_o, np.eye(len(w_o)), 0.0
    q, k, v = (p.split(each, n_heads) for each in (q, k, v))  # (..., H, n, d_head)
    n = x.shape[p.tokens_axis]
    mask = p.rule(p, n, n) if (causal and p.heeds_causal) or p.always_causal else None
    out, weights = p.attend(p, q, k, v, mask, x.shape[-1])
    merged = p.merge(out)  # (..., n, d_model)
    final = p.finish(merged, p.project(merged, w_o) + b_o, x)
    return Result(*p.returned(final, p.shown(weights)))


def _weight(p: Parts, params: dict[str, Any], name: str, width: int) -> Array:
    w = np.asarray(params[name]) if name else np.eye(width)
    return w.T if name in p.turned else w
