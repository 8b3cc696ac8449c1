"""Where a configuration contradicts itself, or the arrays of a layer; and numbers of its scores that no layer does.

Knows keys and widths; reads no array.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from headwise.core.shapes import Faults, shown
from headwise.layers.configs import all_said, unheld
from headwise.layers.families import PLAIN_TYPES, TYPE_KEYS, has_one_key_head
from headwise.layers.fitting import Fitting
from headwise.layers.patterns import OWN, printed

_PLAIN = (str, int, float, np.generic)
_NUMBERS = ("n_heads", "n_kv_heads", "d_head", "d_model")
_EPS = ("rms_norm_eps", "norm_eps")
_ROPES = ("rope_scaling", "rope_parameters")
_TOP = ("rope_theta", "partial_rotary_factor", "max_position_embeddings", "original_max_position_embeddings")
_OTHER_WIDTHS = ("kv_channels", "d_head", "attention_head_size")  # of a head, by names that are not read
_NO_ROPE = {"use_rope", "rope", "rotary", "use_rotary", "use_rotary_emb", "use_rotary_embedding"}
_OF_SCORES = {"attn", "attention", "softmax", "qk", "query", "key"}  # words of keys, and what may be said of them
_CHANGES = {"scale", "scaling", "multiplier", "softcap", "softcapping", "cap", "temperature", "clip", "mup", "logn"}
_KEYS_AND_VALUES = (
    "an array of keys and values alone, as c_attn of GPT-2's cross attention, cut in two and describe them and q_attn "
    "by pattern={'w_q': ..., 'w_k': ..., 'w_v': ..., 'w_o': ...}"
)
_KNOWN = {  # keys of such words that are read elsewhere, or change no result
    "scale_attn_weights",
    "scale_attn_by_inverse_layer_idx",
    "attention_multiplier",
    "attn_logit_softcapping",
    "apply_query_key_layer_scaling",
}


# ------------------------------------------------------------------------------------- a configuration against itself
def _check_numbers(faults: Faults, config: Mapping[str, Any], given: Mapping[str, Any]) -> None:
    """Note two keys that say one number otherwise, but for numbers that are given as arguments."""
    for field in _NUMBERS:
        if given.get(field) is None:
            _check_one(faults, {f"config['{key}']": value for key, value in all_said(config, field).items()})
    _check_one(faults, {f"config['{key}']": config[key] for key in _EPS if config.get(key) is not None})


def _check_one(faults: Faults, said: Mapping[str, Any]) -> None:
    """Note the first value that is another than the first."""
    if not said:
        return
    (first, value), *others = said.items()
    if len(said) == 2 and all("coder_attention_heads" in name for name in said):
        return  # of two stacks, of which each has its own
    for name, other in others:
        if not _equal(other, value):
            faults.value(name, f"{shown(value)}, as {first} says", shown(other), "leave out the one that does not hold")
            return


def _equal(a: Any, b: Any) -> bool:
    return isinstance(a, _PLAIN) and isinstance(b, _PLAIN) and bool(a == b)


def _check_rope(faults: Faults, config: Mapping[str, Any]) -> None:
    """Note what a configuration says of its rope twice, half, or not at all."""
    parts = {key: config[key] for key in _ROPES if isinstance(config.get(key), Mapping)}
    names = dict.fromkeys(name for part in parts.values() for name in part if isinstance(name, str))
    for name in names:
        said = {f"config['{name}']": config[name]} if name in _TOP and config.get(name) is not None else {}
        said |= {
            f"config['{key}']['{printed(name)}']": part[name]
            for key, part in parts.items()
            if not isinstance(part.get(name), Mapping | list | tuple) and part.get(name) is not None
        }
        if name not in ("type", "rope_type"):
            _check_one(faults, said)
    _check_type(faults, config, parts)
    _check_no_rope(faults, config)


def _check_type(faults: Faults, config: Mapping[str, Any], parts: Mapping[str, Mapping[str, Any]]) -> None:
    kinds = {
        f"config['{key}']['{name}']": part[name]
        for key, part in parts.items()
        for name in ("rope_type", "type")
        if part.get(name) is not None
    }
    if config.get("use_scaled_rope") is True:
        kinds = {"config['use_scaled_rope']": "llama3"} | kinds
    _check_one(faults, kinds)
    factors = [(f"config['{key}']", part["factor"]) for key, part in parts.items() if part.get("factor") is not None]
    for name, factor in factors:
        if not kinds:
            expected = "a type, which says what its factor does"
            faults.value(name, expected, "none", "add its 'rope_type': 'linear', 'dynamic', 'yarn' or 'llama3'")
        elif set(map(str, kinds.values())) == {"default"} and not _equal(factor, 1):
            expected = "no factor, as the rope of type 'default' is not stretched"
            faults.value(f"{name}['factor']", expected, shown(factor), "leave it out, or say the type that has it")


def _check_no_rope(faults: Faults, config: Mapping[str, Any]) -> None:
    remedy = "pass transform=transforms.compose(), which is none, or leave the key out"
    said = {f"config['{key}']": (key, value) for key, value in config.items() if isinstance(key, str)}
    said |= {f"config['attn_config']['{key}']": (key, value) for key, value in _inner(config)}
    for name, (key, value) in said.items():
        plain = key in TYPE_KEYS and isinstance(value, str) and value in PLAIN_TYPES
        if plain or (key in _NO_ROPE and value is False):
            faults.value(name, "rope, as the pattern's models have it", shown(value), remedy)


# ------------------------------------------------------------------------------------------------------------- scores
def _check_scores(faults: Faults, config: Mapping[str, Any]) -> None:
    """Note keys that scale, cap or clip scores, queries or keys, and that nothing here goes by."""
    noted = unheld(config)
    said = {f"config['{printed(key)}']": (key, value) for key, value in config.items() if isinstance(key, str)}
    said |= {f"config['attn_config']['{printed(key)}']": (key, value) for key, value in _inner(config)}
    for name, (key, value) in said.items():
        if _of_scores(key) and key not in noted:
            _check_score(faults, name, key, value)


def _check_score(faults: Faults, name: str, key: str, value: Any) -> None:
    if value is None or value is False or ("multiplier" in key and _equal(value, 1) and value is not True):
        return
    remedy = "leave it out of config=, and give each call of the layer its scale= or softcap="
    if value is True or "clip" in key or "temperature" in key:
        remedy = "no layer here does it: take its projections, and headwise.attention between them"
    faults.value(name, "None or nothing", shown(value), remedy)


def _of_scores(key: str) -> bool:
    """Whether the words of a key say that scores are changed."""
    words = set(re.findall("[a-z0-9]+", key.lower()))
    if key in _KNOWN or "fp32" in words:
        return False
    return bool(words & _OF_SCORES and words & _CHANGES)


def _inner(config: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """What MPT's configuration says of attention in a part of its own."""
    inner = config.get("attn_config")
    return [(key, value) for key, value in inner.items() if isinstance(key, str)] if isinstance(inner, Mapping) else []


# ------------------------------------------------------------------------------------------------- against the arrays
def _check_widths(fit: Fitting, config: Mapping[str, Any], n_heads: int | None) -> None:
    """Note heads of another width than a configuration means: of a part of a model, or of one that was pruned."""
    if n_heads is not None:
        return
    pruned, own = config.get("pruned_heads"), "pass n_heads= (and n_kv_heads=) of this layer"
    if pruned and (not isinstance(pruned, Mapping) or any(pruned.values())):
        fit.faults.value("config['pruned_heads']", "none, as their number differs by layer", shown(pruned), own)
        return
    heads, _, known, hidden = fit.settings
    if known is not None or not heads or fit.widths is None or fit.place.name == "t5":
        return
    source = all_said(config, "n_heads")
    other = next((key for key in _OTHER_WIDTHS if isinstance(config.get(key), int)), None)
    if not source or (other is None and (hidden is None or hidden != fit.widths.d_model)):
        return
    wanted = heads * config[other] if other else hidden
    if fit.widths.d_q == wanted:
        return
    said = [f"config['{key}']" for key in (other or next(iter(all_said(config, "d_model"))), next(iter(source)))]
    remedy = f"one part of a model, or pruned heads: {own}; heads of another width: add config['head_dim']"
    expected = f"{wanted}, as {' and '.join(said)} mean"
    fit.faults.value("d_q, the width of all heads", expected, str(fit.widths.d_q), remedy)


def _check_groups(fit: Fitting, config: Mapping[str, Any], sizes: tuple[int, int, int]) -> None:
    """Note fewer heads of keys than a pattern's models have, or more than one where a configuration says one."""
    n_heads, n_kv_heads, _ = sizes
    name, pattern = fit.place.name, fit.place.pattern
    if not n_kv_heads:
        return
    if n_kv_heads != n_heads and not pattern.grouped:
        own = "grouped=True in your pattern" if name == OWN else f"pattern=PATTERNS['{name}']._replace(grouped=True)"
        remedy = f"a model that has them: {own}"
        if fit.widths is not None and fit.shapes.get("w_qkv", (0, 0))[1] == 2 * fit.widths.d_q:
            remedy = f"{_KEYS_AND_VALUES}; {remedy}"
        expected = f"{n_heads} = n_heads, as the pattern's models have no grouped heads"
        fit.faults.value("n_kv_heads", expected, str(n_kv_heads), remedy)
    if n_kv_heads != 1 and "w_qkv" in fit.shapes and name != "torch" and has_one_key_head(config):
        remedy = "'multi_query': False in config= says that each has its own"
        fit.faults.value("n_kv_heads", "1, as config['multi_query'] says or means", str(n_kv_heads), remedy)


# ----------------------------------------------------------------------------------------------------------- all of it
def check_contradictions(
    fit: Fitting,
    config: Mapping[str, Any],
    sizes: tuple[int, int, int],
    given: Mapping[str, int | None],
    transformed: bool,
) -> None:
    """Note where a configuration contradicts itself or a layer's arrays, but for what arguments say in its place."""
    _check_numbers(fit.faults, config, given)
    _check_scores(fit.faults, config)
    if not transformed and fit.place.pattern.rope is not None:
        _check_rope(fit.faults, config)
    _check_widths(fit, config, given["n_heads"])
    _check_groups(fit, config, sizes)
