"""Arrays that a pattern may lack and a configuration promises: where they are missing, a layer would be another.

Knows types and keys of configurations; reads no array.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headwise.core.shapes import Faults, shown
from headwise.layers.families import ROPE_MODELS
from headwise.layers.fitting import missing
from headwise.layers.found import Place, full_name
from headwise.layers.patterns import ROLES, Pattern, printed

_QKV, _ALL, _NORMS = ("b_q", "b_k", "b_v"), ("b_q", "b_k", "b_v", "b_o"), ("q_norm", "k_norm")
_KEYS = {  # what is there where a key is True
    **dict.fromkeys(("attention_bias", "qkv_bias", "qkv_proj_bias", "use_qkv_bias", "add_qkv_bias"), _QKV),
    **dict.fromkeys(("bias", "use_bias", "enable_bias"), _ALL),
    **dict.fromkeys(("qk_norm", "use_qk_layernorm"), _NORMS),
    "add_bias_kv": ("bias_k", "bias_v"),
    "query_bias": ("b_q",),
    "key_bias": ("b_k",),
    "value_bias": ("b_v",),
    "proj_bias": ("b_o",),
}
_OF_BIASES = ("attention_bias", "qkv_bias", "bias", "use_bias", "enable_bias")
_OUTWARD = ("llama", "qwen3", "qwen3_moe", "granite", "olmo", "gpt_oss", "smollm3", "cohere")  # attention_bias: b_o too
_GPT2 = "gpt2 gpt_bigcode decision_transformer imagegpt openai-gpt"
_BART = """
    bart biogpt blenderbot blenderbot-small m2m_100 marian mbart mvp nllb-moe opt pegasus plbart speech_to_text trocr
    xglm clip clip_text_model clip_vision_model siglip siglip_text_model siglip_vision_model
    data2vec-audio hubert sew unispeech unispeech-sat wav2vec2
"""
_TYPES = {  # what models of a type always have
    **dict.fromkeys(f"{_GPT2} {_BART}".split(), _ALL),
    "whisper": ("b_q", "b_v", "b_o"),
    **dict.fromkeys(("qwen2", "qwen2_moe"), _QKV),
    **dict.fromkeys(("qwen3", "qwen3_moe", "qwen3_next", "gemma3", "gemma3_text", "olmo2", "olmo3", "olmoe"), _NORMS),
    **dict.fromkeys(("exaone4", "qwen3_vl_text"), _NORMS),
}


def check_promises(faults: Faults, config: Mapping[str, Any], place: Place, transformed: bool) -> None:
    """Note the arrays that a configuration promises, that a place lacks, and that are not asked for anyway."""
    pattern, noted = place.pattern, [*place.held, *missing(place.pattern, place.held)]
    noted += _QKV if "b_qkv" in noted else ()
    if transformed and "q_norm" not in pattern.names:
        noted += _NORMS  # a transform that is given is its caller's word
    for key, roles in _promised(config, pattern):
        lost = [role for role in roles if role not in noted]
        if lost:
            names = ", ".join(dict.fromkeys(_name(place, role) for role in lost))
            expected = f"{names}, as config['{key}'] = {shown(config[key])} promises"
            remedy = "the state may be one part of a model, then open all its parts as one"
            faults.value("state", expected, "none", f"{remedy}; of a model without them leave {key} out of config=")
            noted += lost


def _promised(config: Mapping[str, Any], pattern: Pattern) -> list[tuple[str, tuple[str, ...]]]:
    """Keys of a configuration, and what each promises."""
    kind = config.get("model_type")
    keys = _KEYS | ({"attention_bias": _ALL} if kind in _OUTWARD else {})
    found = [(key, roles) for key, roles in keys.items() if config.get(key) is True]
    if pattern.rope is not None and kind not in ROPE_MODELS:
        return found  # such a model is refused anyway
    named = {*pattern.names, *(_QKV if "b_qkv" in pattern.names else ())}  # what else there is, its caller says
    roles = tuple(role for role in _TYPES.get(kind, ()) if role in named) if isinstance(kind, str) else ()
    without = any(config.get(key) is False for key in _OF_BIASES)
    return found + ([("model_type", roles)] if roles and not (without and roles != _NORMS) else [])


def _name(place: Place, role: str) -> str:
    """The name that an array would have, or what it is where the pattern has no name for it."""
    names = place.pattern.names
    own = names.get(role) or (names.get("b_qkv") if role in _QKV else None)
    return printed(full_name(place.prefix, own)) if own else ROLES[role]
