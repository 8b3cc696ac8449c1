"""What a model's config.json says of its attention: heads, widths, scale, and by how much rope turns.

Knows the keys of Hugging Face's configurations and of Meta's params.json; reads no file.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from headwise.core import frequencies
from headwise.core.frequencies import Frequencies
from headwise.core.shapes import Array, Faults, flag, given_as, integer, real, shown
from headwise.layers.patterns import OWN, Pattern, printed
from headwise.layers.positional import ROPE_MODELS
from headwise.layers.transforms import Transform, TransformVjp, rotary

_KEYS = {
    "n_heads": ("num_attention_heads", "n_head", "num_heads", "n_heads"),
    "n_kv_heads": ("num_key_value_heads", "n_kv_heads"),
    "d_head": ("head_dim", "d_kv"),
    "d_model": ("hidden_size", "n_embd", "d_model", "dim"),
}
_BASES = dict.fromkeys(("llama", "mistral", "qwen2", "qwen3"), 10_000.0)  # where config.json says none
_SIDES = ("encoder_attention_heads", "decoder_attention_heads")  # of BART, where both are one number
_UNSCALED = ("gpt_neo",)  # models whose scores are not scaled, though no key says so
_PER_HEAD = ("bloom", "gpt_neox", "gpt_neox_japanese", "persimmon")  # q, k, v of each head beside each other
_LENGTHS = ("max_position_embeddings", "original_max_position_embeddings")
_OF_YARN = ("beta_fast", "beta_slow", "attention_factor", "mscale", "mscale_all_dim")
_NUMBERS = ("factor", "low_freq_factor", "high_freq_factor", *_OF_YARN)
_FLAGS = ("scale_attn_weights", "use_scaled_rope")
_DIFFERENT = {  # what a layer does not hold: the key, the values that mean nothing
    "attn_logit_softcapping": (None,),
    "scale_attn_by_inverse_layer_idx": (None, False),
    "clip_qkv": (None,),
}
_LLAMA3_OF_META = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
_LLAMA3_OF_META |= {"original_max_position_embeddings": 8192}  # its params.json has none of these


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
    return Settings(**{field: _number(faults, config, _keys(config, field)) for field in _KEYS})


def source_of(config: Mapping[str, Any], field: str) -> str:
    """The key that says a number of :class:`Settings`, as errors name it; "" where none does."""
    return next((f"config['{key}']" for key in _keys(config, field) if config.get(key) is not None), "")


def _keys(config: Mapping[str, Any], field: str) -> tuple[str, ...]:
    sides = [config.get(key) for key in _SIDES]
    return _KEYS[field] + (_SIDES[:1] if field == "n_heads" and sides[0] == sides[1] else ())


def _says_heads(config: Any) -> bool:
    return isinstance(config, Mapping) and any(config.get(key) is not None for key in (*_KEYS["n_heads"], *_SIDES))


def _number(faults: Faults, config: Mapping[str, Any], keys: tuple[str, ...]) -> int | None:
    for key in keys:
        if config.get(key) is not None:
            return integer(faults, f"config['{key}']", config[key], 1, "a number") or None
    return None


def check_config(faults: Faults, config: Mapping[str, Any], name: str, pattern: Pattern) -> None:
    """Note what a configuration asks of attention that no layer here does."""
    for key in _FLAGS:
        if config.get(key) is not None:
            flag(faults, f"config['{key}']", config[key])
    before = len(faults.found)
    for key, plain in _DIFFERENT.items():
        if config.get(key) not in plain:
            faults.value(f"config['{key}']", f"{plain[-1]} or nothing", shown(config[key]))
    kind = config.get("model_type")
    if pattern.rope is not None and kind is not None and kind not in ROPE_MODELS:
        expected = f"one of {', '.join(ROPE_MODELS)}, whose rope, norms and scale are known"
        faults.value("config['model_type']", expected, shown(kind))
    if len(faults.found) > before:
        last = faults.found[-1]
        faults.found[-1] = last._replace(remedy=_instead(config, pattern))
    if name == OWN and kind in _PER_HEAD and "w_qkv" in pattern.names and pattern.fused != "heads":
        expected = "one whose w_qkv holds all heads' queries, then all keys, then all values"
        remedy = "'fused': 'heads' in the pattern says that q, k and v of each head lie beside each other"
        faults.value("config['model_type']", expected, shown(kind), remedy)


def _instead(config: Mapping[str, Any], pattern: Pattern) -> str:
    """What to pass where a configuration is refused: to the function, and in each call of the layer."""
    said = {
        field: next((config[key] for key in _keys(config, field) if config.get(key) is not None), None)
        for field in ("n_heads", "n_kv_heads")
    }
    heads = "".join(f"{field}={shown(number)}, " for field, number in said.items() if number is not None)
    of_rope = config.get("rope_parameters")
    base = config.get("rope_theta", of_rope.get("rope_theta") if isinstance(of_rope, Mapping) else None)
    said_base = "..." if base is None else shown(base)
    rope = f"transform=transforms.rotary(style='{pattern.rope}', base={said_base}) or another" if pattern.rope else ""
    given = f"{heads or 'n_heads=, '}{rope}".removesuffix(", ")
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
    each = f"; in each call {', '.join(calls)}" if calls else ", and what it scales or caps in each call"
    return f"in place of config= pass {given}{each}"


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
    number = _real(faults, f"config['{key}']", config.get(key), 0.0, math.inf)
    return 1e-6 if number is None else number


def _real(faults: Faults, name: str, value: Any, low: float, high: float) -> float | None:
    """A number between two, or None: with the fault noted where it is another."""
    expected = "a finite number" + ("" if low == -math.inf else f" from {low:g}")
    expected += "" if high == math.inf else f" to {high:g}"
    number = None if value is None else real(faults, name, value, expected)
    if number is not None and not (low <= number <= high and abs(number) < math.inf):
        faults.value(name, expected, str(number))
    return number


# ---------------------------------------------------------------------------------------------------- rope
def rope_of(faults: Faults, config: Mapping[str, Any], style: str, d_head: int) -> Transform | None:
    """The rope of a configuration, or None with the fault noted."""
    said = _said_of_rope(faults, config)
    if said is None:
        return None
    kind = said.get("rope_type", said.get("type", "default"))
    base = said.get("rope_theta", config.get("rope_theta"))
    base = _BASES.get(str(config.get("model_type"))) if base is None else base
    if base is None:
        remedy = "add it; Meta's Llama and Llama 2 have 10000.0"
        faults.value("config['rope_theta']", "the base of the model's rope", "None", remedy)
    part = said.get("partial_rotary_factor", config.get("partial_rotary_factor"))
    if not isinstance(kind, str) or kind not in _KINDS:
        remedy = f"pass transform=headwise.transforms.rotary(style='{style}', frequencies=...)"
        faults.value("config's rope type", f"one of {', '.join(_KINDS)}", shown(kind), remedy)
        return None
    turning = _real(faults, "config's partial_rotary_factor", part, 0.0, 1.0)
    if faults.found or base is None:
        return None
    dims = d_head if turning is None else int(d_head * turning)
    try:
        return _KINDS[kind](style, dims, base, said)
    except KeyError as error:
        faults.value(f"config's rope of type '{kind}'", f"a number {error}", "none")
    except (TypeError, ValueError) as error:
        text = "; ".join(map(str.strip, str(error).splitlines()))
        faults.value(f"config's rope of type '{kind}'", "numbers that fit", f"an error: {text}")
    return None


def _said_of_rope(faults: Faults, config: Mapping[str, Any]) -> dict[str, Any] | None:
    """What a configuration says of its rope, its numbers checked; None with the fault noted."""
    said: dict[str, Any] = {}
    for key in ("rope_scaling", "rope_parameters"):
        given = config.get(key)
        if given is not None and not isinstance(given, Mapping):
            faults.type(f"config['{key}']", "a mapping", given_as(given))
            return None
        said |= {name: value for name, value in (given or {}).items() if value is not None}
    other = [name for name, value in said.items() if name == "mrope_section" or isinstance(value, Mapping)]
    if other:
        expected = "one rope for all layers and columns"
        faults.value("config's rope", expected, f"one with {shown(other[0])}", "pass transform= of this layer")
        return None
    meta = _LLAMA3_OF_META if config.get("use_scaled_rope") else {}
    said = meta | {key: config[key] for key in _LENGTHS if config.get(key) is not None} | said
    before = len(faults.found)
    for key in _NUMBERS:
        if key in said:
            said[key] = _real(faults, f"config's {key} of rope", said[key], -math.inf, math.inf)
    for key in _LENGTHS:
        if key in said:
            said[key] = integer(faults, f"config's {key}", said[key], 1, "a number of tokens")
    if "truncate" in said:
        said["truncate"] = flag(faults, "config's truncate of rope", said["truncate"])
    return said if len(faults.found) == before else None


def _turning(style: str, dims: int, known: Frequencies) -> Transform:
    return rotary(style=style, dims=dims, frequencies=known)


def _plain(style: str, dims: int, base: float, said: dict[str, Any]) -> Transform:
    return rotary(style=style, base=base, dims=dims)


def _linear(style: str, dims: int, base: float, said: dict[str, Any]) -> Transform:
    return _turning(style, dims, frequencies.linear(dims, said["factor"], base=base))


def _dynamic(style: str, dims: int, base: float, said: dict[str, Any]) -> Transform:
    return DynamicRotary(style, dims, base, said["factor"], said["max_position_embeddings"])


def _llama3(style: str, dims: int, base: float, said: dict[str, Any]) -> Transform:
    names = {"low": "low_freq_factor", "high": "high_freq_factor", "trained_length": "original_max_position_embeddings"}
    given = {name: said[key] for name, key in names.items()}
    return _turning(style, dims, frequencies.llama3(dims, said["factor"], base=base, **given))


def _yarn(style: str, dims: int, base: float, said: dict[str, Any]) -> Transform:
    if not said.get("truncate", True):
        raise ValueError("truncate = False, borders of pairs that are not rounded, is not known here")
    if said.get("mscale") and said.get("mscale_all_dim") and said.get("attention_factor") is None:  # 0 is unset
        whole, part = _magnitude(said, "mscale_all_dim"), _magnitude(said, "mscale")
        if not whole > 0 or not part > 0:
            raise ValueError(f"mscale and mscale_all_dim give magnitudes of {part:g} and {whole:g}, not above 0")
        said |= {"attention_factor": part / whole}
    trained = said.get("original_max_position_embeddings") or said["max_position_embeddings"]
    factor = said["factor"] if "factor" in said else said["max_position_embeddings"] / trained
    names = {"fast": "beta_fast", "slow": "beta_slow", "magnitude": "attention_factor"}
    given = {name: said[key] for name, key in names.items() if said.get(key) is not None}
    return _turning(style, dims, frequencies.yarn(dims, factor, trained, base=base, **given))


def _magnitude(said: dict[str, Any], key: str) -> float:
    factor: float = said["factor"]
    return 1.0 if factor <= 1 else 0.1 * float(said[key]) * math.log(factor) + 1.0


_KINDS: dict[str, Callable[[str, int, float, dict[str, Any]], Transform]] = {
    "default": _plain,
    "linear": _linear,
    "dynamic": _dynamic,
    "yarn": _yarn,
    "llama3": _llama3,
}


class DynamicRotary:
    """Rope whose base grows with the largest position of a call, beyond the length of sequences in training.

    As Hugging Face's "dynamic": keys that a cache holds stay as they were turned.
    """

    def __init__(self, style: str, dims: int, base: float, factor: float, trained_length: int) -> None:
        frequencies.ntk(dims, factor, base=base, length=trained_length, trained_length=trained_length)  # or an error
        self.options = {"style": style, "dims": dims, "base": base, "factor": factor, "trained_length": trained_length}
        rotary(style=style, dims=dims, base=base)  # or an error

    def _now(self, q_positions: Array, k_positions: Array) -> Transform:
        o: dict[str, Any] = self.options
        length = 1 + max((int(np.max(x)) for x in (q_positions, k_positions) if np.size(x)), default=0)
        trained, length = o["trained_length"], max(length, 1)
        known = frequencies.ntk(o["dims"], o["factor"], base=o["base"], length=length, trained_length=trained)
        return _turning(o["style"], o["dims"], known)

    def __call__(self, q: Array, k: Array, q_positions: Array, k_positions: Array) -> tuple[Array, Array]:
        return self._now(q_positions, k_positions)(q, k, q_positions, k_positions)

    def vjp(self, q: Array, k: Array, q_positions: Array, k_positions: Array) -> tuple[Array, Array, TransformVjp]:
        return self._now(q_positions, k_positions).vjp(q, k, q_positions, k_positions)

    def __repr__(self) -> str:
        return f"DynamicRotary({', '.join(f'{name}={value!r}' for name, value in self.options.items())})"
