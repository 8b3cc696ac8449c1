"""The words of the cases turned into calls of headwise. It renames, transposes and selects; it computes nothing."""

from functools import reduce
from operator import and_
from typing import Any

import headwise as hw
from headwise import masks
from headwise.core.engine import run
from reported.case import Arrays


class Waiting(NotImplementedError):  # noqa: N818 - not an error of anyone
    """What a case asks for is not there yet; the text says what it waits for."""


PLAIN = ("wq", "wk", "wv", "wo")
CAUSAL = {"lower_right": masks.causal(), "upper_left": masks.causal(0)}


def _call(
    *,
    q: Any,
    k: Any,
    v: Any,
    mask: Any = None,
    bias: Any = None,
    key_mask: Any = None,
    key_lengths: Any = None,
    segments: Any = None,
    causal: str | None = None,
    window: tuple[int | None, int | None] | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    alibi_slopes: Any = None,
    sink: Any = None,
    dropout_p: float = 0.0,
    training: bool = True,
    seed: int | None = None,
) -> Arrays:
    """The arguments of attention, in our words."""
    if bias is not None and alibi_slopes is not None:
        raise Waiting("bias and ALiBi in one call")
    constraints = [] if mask is None else [mask]
    if key_mask is not None:
        constraints.append(masks.keys(key_mask))
    if key_lengths is not None:
        constraints.append(masks.lengths(key_lengths))
    if segments is not None:
        constraints.append(masks.segments(*segments))
    if causal is not None:
        constraints.append(CAUSAL[causal])
    if window is not None:
        constraints.append(masks.window(*window))
    return {
        "q": q,
        "k": k,
        "v": v,
        "mask": reduce(and_, constraints) if constraints else None,
        "bias": bias if alibi_slopes is None else hw.alibi(alibi_slopes),
        "scale": scale,
        "softcap": softcap,
        "sinks": sink,
        "dropout": dropout_p if training else 0.0,
        "rng": seed,
    }


class Adapter:
    """One method for each operation of `cases.py`; results are dicts of arrays."""

    def softmax(self, *, x: Any, axis: int) -> Arrays:
        return {"out": hw.softmax(x, axis=axis)}

    def attention(self, *, block: int | None = None, want: tuple[str, ...] = (), **given: Any) -> Arrays:
        return self.attend(_call(**given), block, want)

    def attend(self, call: Arrays, block: int | None, want: tuple[str, ...]) -> Arrays:
        """By the definition, which knows no blocks."""
        out, weights = hw.scaled_dot_product_attention(**call)
        got = {"out": out, "weights": weights}
        if "lse" in want:
            got["lse"] = hw.attention_steps(**call).lse
        return got

    def attention_grad(self, *, dout: Any, **given: Any) -> Arrays:
        _, vjp = hw.attention_vjp(**_call(**given))
        return {f"d{name}": gradient for name, gradient in vjp(dout)._asdict().items() if gradient is not None}

    def alibi_slopes(self, *, n: int) -> Arrays:
        return {"out": hw.alibi_slopes(n)}

    def rope(self, *, x: Any, positions: Any, style: str, rotary_dim: int | None = None) -> Arrays:
        return {"out": hw.rope(x, positions, style=style, dims=rotary_dim)}

    def merge(self, *, parts: list[tuple[Any, Any]]) -> Arrays:
        out, lse = hw.merge_attention([out for out, _ in parts], [lse for _, lse in parts])
        return {"out": out, "lse": lse}

    def mha(
        self,
        *,
        query: Any,
        key: Any,
        value: Any,
        params: Arrays,
        num_heads: int,
        causal: str | None = None,
        want: tuple[str, ...] = (),
        **options: Any,
    ) -> Arrays:
        if _is_plain(params, key, value, options):
            return self.plain_mha(query, params, num_heads, causal is not None, want)
        layer, call = _layer(params, num_heads), _layer_call(causal, **options)
        return self.layer_outputs(layer, (query, key, value), call, want)

    def plain_mha(self, query: Any, params: Arrays, num_heads: int, causal: bool, want: tuple[str, ...]) -> Arrays:
        if "weights" in want:
            out, weights = _self_attention(params, num_heads)(query, causal=causal)
            return {"out": out, "weights": weights}
        ours = [params[name].T for name in PLAIN]
        return {"out": hw.multi_head_attention(query, *ours, num_heads, causal=causal)}

    def layer_outputs(self, layer: Any, tokens: Any, call: Arrays, want: tuple[str, ...]) -> Arrays:
        """By the definition, which makes weights."""
        out, weights = layer(*tokens, **call, return_weights=True)
        return {"out": out, "weights": weights}

    def make_mha(self, *, params: Arrays, num_heads: int, causal: str | None = None, **options: Any) -> "Layer":
        if _is_plain(params, None, None, options):
            return Layer(_self_attention(params, num_heads), {"causal": causal is not None})
        return Layer(_layer(params, num_heads), _layer_call(causal, **options) | {"return_weights": True})

    def kv_decode(
        self, *, steps: list[Arrays], capacity: int | None = None, window: tuple[int, int] | None = None, **options: Any
    ) -> Arrays:
        """One sequence of one head, a chunk of tokens at a time."""
        rows = [len(step["k"]) for step in steps if "k" in step]
        first = next(step for step in steps if "k" in step)
        left = None if window is None else window[0]
        slots = sum(rows) if left is None else left + max(rows)
        widths = first["k"].shape[-1], first["v"].shape[-1]
        cache = hw.KVCache(1, 1, capacity or slots, *widths, dtype=first["k"].dtype, window=left)
        outs = []
        for step in steps:
            if "reset" in step:
                cache.reset()
                continue
            q, k, v = (step[name][None, None] for name in "qkv")  # (B, H, n, d)
            cache.append(k, v)
            call = _call(q=q, k=cache.k, v=cache.v, mask=cache.mask(q.shape[2]), **options)
            outs.append(self.attend(call, None, ())["out"][0, 0])
        return {"outs": outs}


class EngineAdapter(Adapter):
    """The same by the engine, which makes no weights: where they are wanted, they are the definition's."""

    def attend(self, call: Arrays, block: int | None, want: tuple[str, ...]) -> Arrays:
        if block is None:
            out, lse = hw.attention(**call, return_lse=True)
        else:
            arrays = [call[name] for name in "qkv"]
            options = {name: value for name, value in call.items() if name not in ("q", "k", "v", "rng")}
            plan = hw.attention_plan(*arrays, **options, tile=(block, block))
            out, lse = run(plan, *arrays, rng=call["rng"], return_lse=True)
        got = {"out": out, "lse": lse}
        return got | {"weights": super().attend(call, None, want)["weights"]} if "weights" in want else got

    def plain_mha(self, query: Any, params: Arrays, num_heads: int, causal: bool, want: tuple[str, ...]) -> Arrays:
        call = _layer_call("lower_right" if causal else None)
        return self.layer_outputs(_layer(params, num_heads), (query, None, None), call, want)

    def layer_outputs(self, layer: Any, tokens: Any, call: Arrays, want: tuple[str, ...]) -> Arrays:
        got = {"out": layer(*tokens, **call)}
        return got | super().layer_outputs(layer, tokens, call, want) if "weights" in want else got

    def make_mha(self, *, params: Arrays, num_heads: int, causal: str | None = None, **options: Any) -> "Layer":
        return Layer(_layer(params, num_heads), _layer_call(causal, **options))


class Layer:
    """A layer with the options of its calls, that returns its output alone."""

    def __init__(self, layer: Any, call: Arrays) -> None:
        self.layer, self.call = layer, call

    def __call__(self, x: Any) -> Any:
        got = self.layer(x, **self.call)
        return got[0] if isinstance(got, tuple) else got


def _is_plain(params: Arrays, key: Any, value: Any, options: Arrays) -> bool:
    """Whether the plain layer can do it: self attention by four weights."""
    return set(params) == set(PLAIN) and key is value is None and not options


def _self_attention(params: Arrays, num_heads: int) -> hw.MultiHeadSelfAttention:
    """The plain layer with these weights; PyTorch's (out, in) become ours, (in, out)."""
    layer = hw.MultiHeadSelfAttention(len(params["wq"]), num_heads)
    layer.w_q, layer.w_k, layer.w_v, layer.w_o = (params[name].T for name in PLAIN)
    return layer


def _layer(params: Arrays, num_heads: int) -> hw.MultiHeadAttention:
    """The layer with these weights; PyTorch's (out, in) become ours, (in, out), and what it packs is cut in three."""
    given = dict(params)
    for packed, names in (("in_proj_weight", ("wq", "wk", "wv")), ("in_proj_bias", ("bq", "bk", "bv"))):
        if packed in given:
            whole = given.pop(packed)
            third = len(whole) // 3
            given |= {name: whole[i * third : (i + 1) * third] for i, name in enumerate(names)}
    arrays = {f"{name[0]}_{name[1]}": x.T for name, x in given.items()}  # a bias is its own transpose
    return hw.MultiHeadAttention.from_arrays(**arrays, n_heads=num_heads)


def _layer_call(causal: str | None, **options: Any) -> Arrays:
    """The options of a layer's call: those of attention, without q, k, v and dropout."""
    call = _call(q=None, k=None, v=None, causal=causal, **options)
    if call["dropout"]:
        raise Waiting("layer with dropout")
    return {name: value for name, value in call.items() if name not in ("q", "k", "v", "dropout", "rng")}
