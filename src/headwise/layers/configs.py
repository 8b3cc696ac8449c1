"""What a model's config.json says of its attention: heads, widths, scale, and what no layer here does.

Knows the keys of Hugging Face's configurations and of Meta's params.json; reads no file.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from headwise.core.shapes import Faults, flag, given_as, integer, real, shown
from headwise.layers.families import KEYS, ORDER_FLAGS, ROPE_MODELS, STYLES, asides, order_of_qkv, style_of
from headwise.layers.patterns import OWN, Pattern, printed
from headwise.layers.rope_configs import real_between, rope_in_words

_SIDES = ("encoder_attention_heads", "decoder_attention_heads")  # of BART, where both are one number
_HELD = {  # what a w_qkv of each order holds
    "blocks": "all heads' queries, then all keys, then all values",
    "heads": "q, k and v of each head beside each other",
    "groups": "the queries of each key head, its key and its value beside each other",
}
_MANY = ("heads", "groups")  # the same where heads are not grouped, which the shape tells
_UNSCALED = ("gpt_neo",)  # models whose scores are not scaled, though no key says so
_FLAGS = ("scale_attn_weights", "use_scaled_rope")
_DIFFERENT = {  # what a layer does not hold: the key, the values that mean nothing
    "attn_logit_softcapping": (None,),
    "scale_attn_by_inverse_layer_idx": (None, False),
    "clip_qkv": (None,),
    "qk_layernorm": (None, False),  # of Phi, StableLM and Persimmon, with biases
    "qk_ln": (None, False),  # of MPT
    "softmax_scale": (None,),  # likewise
    "use_qk_norm": (None, False),  # of Cohere, over all heads' columns
}


class Settings(NamedTuple):
    """The numbers that a configuration says; None where it says nothing."""

    n_heads: int | None = None
    n_kv_heads: int | None = None
    d_head: int | None = None
    d_model: int | None = None


def read_settings(faults: Faults, config: Any) -> Settings:
    """Heads and widths of a configuration; what is no number is noted."""
    if config is None:
        return Settings()
    if not isinstance(config, Mapping):
        faults.type("config", "None or a mapping, as json.load gives config.json", given_as(config))
        return Settings()
    nested = [key for key, part in config.items() if str(key).endswith("_config") and _says_heads(part)]
    if nested and not _says_heads(config):
        own = " or ".join(f"config['{printed(str(key))}']" for key in nested)
        faults.value("config", "the attention's own numbers", "a model's of several parts", f"pass {own}")
        return Settings()
    return Settings(**{field: _number(faults, config, _keys(config, field)) for field in KEYS})


def source_of(config: Mapping[str, Any], field: str) -> str:
    """The key that says a number of :class:`Settings`, as errors name it; "" where none does."""
    return next((f"config['{key}']" for key in _keys(config, field) if config.get(key) is not None), "")


def all_said(config: Mapping[str, Any], field: str) -> dict[str, Any]:
    """What every key of a configuration says that may say a number of :class:`Settings`."""
    keys = KEYS[field] + (_SIDES if field == "n_heads" else ())
    return {key: config[key] for key in keys if config.get(key) is not None}


def _keys(config: Mapping[str, Any], field: str) -> tuple[str, ...]:
    sides = [key for key in _SIDES if config.get(key) is not None]
    alike = field == "n_heads" and len({str(config[key]) for key in sides}) == 1
    return KEYS[field] + (tuple(sides[:1]) if alike else ())


def _says_heads(config: Any) -> bool:
    return isinstance(config, Mapping) and any(config.get(key) is not None for key in (*KEYS["n_heads"], *_SIDES))


def _number(faults: Faults, config: Mapping[str, Any], keys: tuple[str, ...]) -> int | None:
    for key in keys:
        if config.get(key) is not None:
            return integer(faults, f"config['{key}']", config[key], 1, "a number") or None
    return None


def unheld(config: Mapping[str, Any]) -> list[str]:
    """The keys of a configuration that ask for what no layer here holds."""
    inner = config.get("attn_config")  # of MPT and DBRX
    parts = [config, *([inner] if isinstance(inner, Mapping) else [])]
    return [key for key, plain in _DIFFERENT.items() if any(part.get(key) not in plain for part in parts)]


def check_config(
    faults: Faults, config: Mapping[str, Any], name: str, pattern: Pattern, norms: Mapping[str, str], given: bool
) -> None:
    """Note what a configuration asks of attention that no layer here does.

    ``norms`` are the names of the norms that the state holds; ``given`` is whether the caller gave a transform, whose
    word that is where the model is one that he described.
    """
    for key in _FLAGS:
        if config.get(key) is not None:
            flag(faults, f"config['{key}']", config[key])
    before = len(faults.found)
    inner = config.get("attn_config")
    for key in unheld(config):
        value = config[key] if key in config or not isinstance(inner, Mapping) else inner[key]
        faults.value(f"config['{key}']", f"{_DIFFERENT[key][-1]} or nothing", shown(value))
    kind = config.get("model_type")
    others = asides(config, norms)
    if name == OWN and pattern.rope is not None and others and not given:
        expected = "one whose attention does no more than the pattern says"
        faults.value("config['model_type']", expected, shown(kind))
    elif name != OWN and pattern.rope is not None and kind is not None and kind not in ROPE_MODELS:
        expected = f"one of {', '.join(ROPE_MODELS)}, whose rope, norms and scale are known"
        faults.value("config['model_type']", expected, shown(kind))
    if len(faults.found) > before:
        last = faults.found[-1]
        faults.found[-1] = last._replace(remedy=_instead(config, pattern, norms))
    _check_order(faults, config, name, pattern)
    if name == OWN and not given:
        _check_style(faults, config, pattern)


def _check_order(faults: Faults, config: Mapping[str, Any], name: str, pattern: Pattern) -> None:
    """Note where the models of a configuration keep their w_qkv in another order than a pattern says."""
    if "w_qkv" not in pattern.names or name == "torch":  # PyTorch's module has one order, whatever it stands in
        return
    kind = config.get("model_type")
    for key in ORDER_FLAGS.get(kind, ()) if isinstance(kind, str) else ():
        if config.get(key) is not None:
            flag(faults, f"config['{key}']", config[key])
    order = order_of_qkv(config)
    if order in (None, pattern.fused) or (order in _MANY and pattern.fused in _MANY):
        return
    remedy = "take it apart into w_q, w_k and w_v in the state, as the model does"
    if order in _HELD:
        own = (
            f"'fused': '{order}' in the pattern"
            if name == OWN
            else f"pattern=PATTERNS['{name}']._replace(fused='{order}')"
        )
        remedy = f"{own} says that theirs holds {_HELD[order]}"
    faults.value("config['model_type']", f"one whose w_qkv holds {_HELD[pattern.fused]}", shown(kind), remedy)


def _check_style(faults: Faults, config: Mapping[str, Any], pattern: Pattern) -> None:
    """Note where rope of a described model is of another style than that of its type."""
    kind = config.get("model_type")
    style = STYLES.get(kind) if isinstance(kind, str) else None
    if style is not None and pattern.rope not in (None, style):
        expected = f"one whose rope is {pattern.rope}, as the pattern says"
        remedy = f"'rope': '{style}' in the pattern; columns that you put in another order are transform= of your own"
        faults.value("config['model_type']", expected, shown(kind), remedy)


def _instead(config: Mapping[str, Any], pattern: Pattern, norms: Mapping[str, str]) -> str:
    """What to pass where a configuration is refused: to the function, and in each call of the layer."""
    said = {
        field: next((config[key] for key in _keys(config, field) if config.get(key) is not None), None)
        for field in ("n_heads", "n_kv_heads")
    }
    heads = "".join(f"{field}={shown(number)}, " for field, number in said.items() if number is not None)
    rope = f"{rope_in_words(config, style_of(config, pattern.rope))} or another" if pattern.rope else ""
    given = f"{heads or 'n_heads=, '}{rope}".removesuffix(", ")
    eps = next((key for key in ("rms_norm_eps", "norm_eps") if config.get(key) is not None), None)
    if norms and eps is not None:
        given = f"config={{'{eps}': {shown(config[eps])}}}, {given}"
    calls = calls_in_words(config)
    each = f"; in each call {', '.join(calls)}" if calls else ", and what it scales or caps in each call"
    before = "".join(f"{aside}; " for aside in asides(config, norms))
    return f"{before}in place of config= pass {given}{each}"


def calls_in_words(config: Mapping[str, Any]) -> list[str]:
    """The options of each call that a configuration asks for and no layer holds."""
    calls = ["scale=d_head**-0.5 / (1 + layer)"] if config.get("scale_attn_by_inverse_layer_idx") else []
    scalar, cap = config.get("query_pre_attn_scalar"), config.get("attn_logit_softcapping")
    if scalar is not None:
        calls.append(f"scale={shown(scalar)}**-0.5 (query_pre_attn_scalar)")
    if config.get("attention_multiplier") is not None:
        calls.append(f"scale={shown(config['attention_multiplier'])} (attention_multiplier)")
    if cap is not None:
        calls.append(f"softcap={shown(cap)} (attn_logit_softcapping)")
    if config.get("sliding_window") is not None:
        where = "layer_types says" if config.get("layer_types") is not None else "layers slide"
        calls.append(f"mask=masks.window({shown(config['sliding_window'])} - 1, 0) where {where} so (sliding_window)")
    return calls


def scale_of(faults: Faults, config: Mapping[str, Any], pattern: Pattern) -> float | None:
    """The scale of a model: that of GPT-2, Gemma or Granite's configuration, else the pattern's."""
    said: dict[str, float] = {}
    if config.get("scale_attn_weights") is False:
        said["scale_attn_weights"] = 1.0
    for key, power in (("query_pre_attn_scalar", -0.5), ("attention_multiplier", 1.0)):
        if config.get(key) is None:
            continue
        expected = "a finite number above 0"
        number = real(faults, f"config['{key}']", config[key], expected)
        if number is not None and not 0 < number < math.inf:
            faults.value(f"config['{key}']", expected, str(number))
        elif number is not None:
            said[key] = number**power
    if not said and pattern.scale is None and config.get("model_type") in _UNSCALED:
        said["model_type"] = 1.0
    if len(said) > 1 or (said and pattern.scale is not None):
        others = [*said, *(["the pattern's scale"] if pattern.scale is not None else [])]
        faults.value("config", "one scale", " and ".join(others), "leave out all but one")
    return next(iter(said.values()), pattern.scale)


def eps_of(faults: Faults, config: Mapping[str, Any]) -> float:
    """What norms of queries and keys add."""
    key = "rms_norm_eps" if config.get("rms_norm_eps") is not None else "norm_eps"
    number = real_between(faults, f"config['{key}']", config.get(key), 0.0, math.inf)
    return 1e-6 if number is None else number
