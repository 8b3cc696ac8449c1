"""What a config.json says that no layer made of a pattern's names does, in the words of options of `headwise attend`.

Knows keys, names and options; reads no file.
"""

import json
from collections.abc import Container, Mapping
from typing import Any, NamedTuple

from headwise.files import FileError, shown
from headwise.layers.configs import unheld
from headwise.layers.families import ROPE_MODELS, asides, order_of_qkv, style_of
from headwise.layers.found import full_name
from headwise.layers.patterns import OWN, Pattern
from headwise.layers.positional import Lack, lacking, styles_in_words
from headwise.layers.rope_configs import rope_in_words
from headwise.layers.transforms import Transform, compose
from headwise.model_configs import CONFIG

_PYTHON = "in Python headwise.weights.from_state_dict takes"
_OPTIONS = {  # keys that no layer holds, and the option of a call that does what they ask
    "attn_logit_softcapping": "softcap",
    "scale_attn_by_inverse_layer_idx": "scale",
}
_BY_BIAS = ("alibi", "relative positions")


class Said(NamedTuple):
    """What is made of a config.json: what from_state_dict is given, or why nothing is."""

    config: Mapping[str, Any] | None
    transform: Transform | None  # one that does nothing, where options of the call do what the config.json says


def refusal(config: Mapping[str, Any], name: str, pattern: Pattern, prefix: str, names: Container[str]) -> str | None:
    """What a layer lacks that its config.json says, and the options with which it is run; None where it lacks nothing.

    ``names`` are those of the checkpoint.
    """
    for key in unheld(config):
        return _unheld(config, key)
    own = {role: known for role, known in pattern.names.items() if full_name(prefix, known) in names}
    kind, said = config.get("model_type"), _asides(config, own)
    if pattern.rope is not None and said and kind not in ROPE_MODELS:
        call = rope_in_words(config, style_of(config, pattern.rope))
        return f"model_type {shown(kind, 60)}: {'; '.join(said)}: no option does that; {_PYTHON} {call}"
    if pattern.rope is not None and kind is not None and kind not in ROPE_MODELS and name != OWN:
        what = f"model_type {shown(kind, 60)}, of which pattern {name} does not know the rope"
        return (
            f"{what}: pass --pattern FILE.json with {_described(config, pattern, own, style_of(config, pattern.rope))}"
        )
    lacks = lacking(config, name, pattern)
    return None if not lacks else _lack(config, lacks[0], name, pattern, own)


def _asides(config: Mapping[str, Any], own: Mapping[str, str]) -> list[str]:
    return asides(config, {role: shown(own[role], 60) for role in ("q_norm", "k_norm") if role in own})


def _unheld(config: Mapping[str, Any], key: str) -> str:
    value = shown(config.get(key, "true"), 60)
    if key == "attn_logit_softcapping":
        return f"{key} {value}: pass --softcap {value}"
    if key in _OPTIONS:
        return f"{key}: pass --scale X, d_head**-0.5 / (1 + the layer's number)"
    return f"{key} {value}, which no option does; {_PYTHON} a config without it, and a transform of yours"


def _described(config: Mapping[str, Any], pattern: Pattern, own: Mapping[str, str], rope: str | None) -> str:
    """A dictionary for --pattern: a pattern's names that are there, and what it says besides."""
    said: dict[str, Any] = dict(own)
    said |= {"layout": pattern.layout} if pattern.layout != "linear" else {}
    order = order_of_qkv(config)
    order = order if order in ("heads", "groups") else pattern.fused
    said |= {"fused": order} if order != "blocks" and "w_qkv" in own else {}
    said |= {"rope": rope} if rope else {}
    said |= {"scale": pattern.scale} if pattern.scale is not None else {}
    said |= {"beside": list(pattern.beside)} if pattern.beside else {}
    return json.dumps(said)


def _lack(config: Mapping[str, Any], lack: Lack, name: str, pattern: Pattern, own: Mapping[str, str]) -> str:
    said = f"{shown(lack.key, 60)} {shown(lack.value, 60)}"
    whose = "--pattern" if name == OWN else f"pattern {name}"
    if not lack.what:
        known = f"{said}, of which it is not known whether its attention has positions"
        return f"{known}: where it has none, pass --pattern FILE.json with {_described(config, pattern, own, None)}"
    if lack.what in _BY_BIAS and pattern.rope is None:
        made = "headwise.alibi(headwise.alibi_slopes(H)).dense((H, n, n))"
        how = f", as np.save keeps {made}" if lack.what == "alibi" else ""
        return f"{lack.what} ({said}), which {whose} has not: pass --bias BIAS.npy, (H, n, n){how}"
    if lack.what != "rope":  # those of a type that is not known, or others beside rope
        return f"{lack.what} ({said}), which {whose} has not: {_PYTHON} a transform of yours for them"
    if pattern.rope is not None:
        call = rope_in_words(config, pattern.rope)
        return f"rope by {said}, by which that of {whose} does not go: no option does; {_PYTHON} {call}"
    styles = [text.strip("'") for text in styles_in_words(config).split(" or ")]
    either = f' ("rope" is "{styles[0]}" or "{styles[1]}")' if len(styles) > 1 else ""
    if name == OWN:
        orders = " or ".join(f'"{style}"' for style in styles)
        return f'rope ({said}), which --pattern has not: put "rope": {orders} into its dictionary'
    how = f"pass --pattern FILE.json with {_described(config, pattern, own, styles[0])}{either}"
    return f"rope ({said}), which {whose} has not: {how}"


def answered(
    config: Mapping[str, Any] | None,
    name: str,
    pattern: Pattern,
    where: str,
    prefix: str,
    names: Container[str],
    *,
    bias: bool,
    softcap: bool,
    scale: bool,
) -> Said:
    """What from_state_dict is given, where the options of a call do what the config.json says; else an error.

    A cap, a scale and a bias that are given are the caller's word.
    """
    if config is None:
        return Said(None, None)
    given = {"softcap": softcap, "scale": scale}
    done = [key for key, option in _OPTIONS.items() if given[option]]
    config = {key: value for key, value in config.items() if key not in done}
    lacks = lacking(config, name, pattern)
    by_bias = bias and pattern.rope is None and bool(lacks) and all(lack.what in _BY_BIAS for lack in lacks)
    said = refusal(config, name, pattern, prefix, names)
    if said is not None and not (by_bias and not unheld(config)):
        raise FileError(f"{where}: {CONFIG} says {said}")
    return Said(config, compose() if by_bias else None)


def keys_asked() -> str:
    """The config.json that is enough for a layer with rope, where a model has none."""
    said = '{"num_attention_heads": H, "rope_theta": 10000.0} with the numbers of the model is enough'
    return f'{said}, with "partial_rotary_factor" too where only a part of each head is turned'
