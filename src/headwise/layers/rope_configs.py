"""By how much a model's rope turns, of what its config.json says: the transform, and in words what to pass for it.

Knows the keys of rope in Hugging Face's configurations and in Meta's params.json.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from headwise.core import frequencies
from headwise.core.frequencies import Frequencies
from headwise.core.shapes import Array, Faults, flag, given_as, integer, real, shown
from headwise.layers.families import BASES, FRACTIONS, KEYS, OWN_BASES, WIDTHS
from headwise.layers.patterns import printed
from headwise.layers.transforms import Transform, TransformVjp, rotary

_BASE_KEYS = ("rope_theta", "rotary_emb_base")
_FRACTION_KEYS = ("partial_rotary_factor", "rotary_pct", "rotary_emb_fraction")
OWN_KEYS = (*_BASE_KEYS, *_FRACTION_KEYS, "rotary_dim")  # of which patterns of :data:`PATTERNS` read the first of each
_MOST = 3  # kinds of layers that are told of
_LENGTHS = ("max_position_embeddings", "original_max_position_embeddings")
_OF_YARN = ("beta_fast", "beta_slow", "attention_factor", "mscale", "mscale_all_dim")
_NUMBERS = ("factor", "low_freq_factor", "high_freq_factor", *_OF_YARN)
_LLAMA3_OF_META = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
_LLAMA3_OF_META |= {"original_max_position_embeddings": 8192}  # its params.json has none of these


def real_between(faults: Faults, name: str, value: Any, low: float, high: float) -> float | None:
    """A number between two, or None: with the fault noted where it is another."""
    expected = "a finite number" + ("" if low == -math.inf else f" from {low:g}")
    expected += "" if high == math.inf else f" to {high:g}"
    number = None if value is None else real(faults, name, value, expected)
    if number is not None and not (low <= number <= high and abs(number) < math.inf):
        faults.value(name, expected, str(number))
    return number


def rope_of(faults: Faults, config: Mapping[str, Any], style: str, d_head: int, own: bool = False) -> Transform | None:
    """The rope of a configuration, or None with the fault noted.

    ``own`` is for a pattern that its caller described: the keys and the defaults of all models count then, else those
    of the models that the pattern knows.
    """
    said = _said_of_rope(faults, config, style)
    if said is None:
        return None
    kind = said.get("rope_type", said.get("type", "default"))
    base = _base(faults, config, said, own)
    if not isinstance(kind, str) or kind not in _KINDS:
        part = _dims_in_words(config, said)
        given = f"style='{style}', frequencies=..." + (f", dims={part}" if part else "")
        remedy = f"pass transform=headwise.transforms.rotary({given})"
        faults.value("config's rope type", f"one of {', '.join(_KINDS)}", shown(kind), remedy)
        return None
    dims = _dims(faults, config, said, d_head, own)
    if faults.found or base is None:
        return None
    try:
        return _KINDS[kind](style, dims, base, said)
    except KeyError as error:
        faults.value(f"config's rope of type '{kind}'", f"a number {error}", "none")
    except (TypeError, ValueError) as error:
        text = "; ".join(map(str.strip, str(error).splitlines()))
        faults.value(f"config's rope of type '{kind}'", "numbers that fit", f"an error: {text}")
    return None


def _base(faults: Faults, config: Mapping[str, Any], said: Mapping[str, Any], own: bool) -> Any:
    """The base of a rope; None with the fault noted."""
    known = _values(config, said, _BASE_KEYS if own else _BASE_KEYS[:1])
    if own and len(set(map(str, known.values()))) > 1:
        faults.value("config", "one base of rope", _pairs(known), "leave out all but one")
        return None
    kind = str(config.get("model_type"))
    base = next(iter(known.values()), BASES.get(kind, OWN_BASES.get(kind) if own else None))
    if base is None:
        remedy = "add it; Meta's Llama and Llama 2 have 10000.0"
        faults.value("config['rope_theta']", "the base of the model's rope", "None", remedy)
    return base


def _values(config: Mapping[str, Any], said: Mapping[str, Any], keys: tuple[str, ...]) -> dict[str, Any]:
    """What keys say, what stands in the part about rope first."""
    found = {key: said.get(key, config.get(key)) for key in keys}
    return {key: value for key, value in found.items() if value is not None}


def _pairs(known: Mapping[str, Any]) -> str:
    return " and ".join(f"{key} {shown(value)}" for key, value in known.items())


def _dims(faults: Faults, config: Mapping[str, Any], said: Mapping[str, Any], d_head: int, own: bool) -> int:
    """How many columns of each head are turned."""
    known: dict[str, int] = {}
    for key, value in _values(config, said, _FRACTION_KEYS if own else _FRACTION_KEYS[:1]).items():
        before = len(faults.found)
        part = real_between(faults, f"config's {key}", value, 0.0, 1.0)
        if part is not None and len(faults.found) == before:
            known[key] = int(d_head * part)
    width = config.get("rotary_dim") if own else None
    if width is not None:
        known["rotary_dim"] = integer(faults, "config['rotary_dim']", width, 2, "an even number of columns")
    if len(set(known.values())) > 1:
        faults.value("config", "one width of rope", _pairs(known), "leave out all but one")
    return next(iter(known.values()), _usual_dims(config, d_head) if own else d_head)


def _usual_dims(config: Mapping[str, Any], d_head: int) -> int:
    """The columns that a model turns where no key of its configuration says it; a key that is null says all."""
    kind = config.get("model_type")
    if not isinstance(kind, str) or any(key in config for key in ("rotary_dim", *_FRACTION_KEYS)):
        return d_head
    return WIDTHS[kind] if kind in WIDTHS else int(d_head * FRACTIONS.get(kind, 1.0))


# ---------------------------------------------------------------------------------------------------- in words
def rope_in_words(config: Mapping[str, Any], style: str) -> str:
    """The ``transform=`` of a configuration's rope, as a caller may type it."""
    by_layer = _by_layer(config)
    if not by_layer:
        return f"transform={_call(config, _part_of_rope(config), style)}"
    calls = [f"{_call(config, part, style)} in layers of {printed(str(kind))}" for kind, part in by_layer.items()]
    return f"transform={', '.join(calls[:_MOST])}"


def _part_of_rope(config: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key in ("rope_scaling", "rope_parameters"):
        part = config.get(key)
        found |= part if isinstance(part, Mapping) else {}
    return {key: value for key, value in found.items() if value is not None}


def _by_layer(config: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """What is said of the rope of each kind of layers, where kinds differ."""
    whole = _part_of_rope(config)
    nested = {key: part for key, part in whole.items() if isinstance(part, Mapping)}
    if nested:
        return nested
    local = config.get("rope_local_base_freq", config.get("local_rope_theta"))
    if local is None:
        return {}
    base = config.get("rope_theta", config.get("global_rope_theta"))
    return {"sliding_attention": {"rope_theta": local}, "full_attention": {"rope_theta": base} | whole}


def _call(config: Mapping[str, Any], said: Mapping[str, Any], style: str) -> str:
    kind = said.get("rope_type", said.get("type", "default"))
    model = str(config.get("model_type"))
    base = next(iter(_values(config, said, _BASE_KEYS).values()), BASES.get(model, OWN_BASES.get(model)))
    shown_base, dims = "..." if base is None else shown(base), _dims_in_words(config, said)
    if kind == "default":
        given = f"base={shown_base}" + (f", dims={dims}" if dims else "")
    elif kind == "linear":
        given = f"frequencies=headwise.frequencies.linear({dims or 'd_head'}, {shown(said.get('factor'))}, "
        given += f"base={shown_base})" + (f", dims={dims}" if dims else "")
    else:
        given = f"frequencies=...) stretched as rope_type {shown(kind)} says (base={shown_base}"
        given += f", dims={dims}" if dims else ""
    return f"transforms.rotary(style='{style}', {given})"


def _dims_in_words(config: Mapping[str, Any], said: Mapping[str, Any]) -> str:
    """The columns of each head that are turned; "" for all."""
    width = config.get("rotary_dim")
    if width is not None:
        return shown(width)
    part = next(iter(_values(config, said, _FRACTION_KEYS).values()), None)
    d_head, kind = _d_head(config), config.get("model_type")
    if part is None and isinstance(kind, str) and "rotary_dim" not in config:
        if kind in WIDTHS:
            return str(WIDTHS[kind])
        part = FRACTIONS.get(kind)
    if part is None or not isinstance(part, int | float) or part == 1:
        return ""
    return f"int({shown(part)} * d_head)" if d_head is None or not math.isfinite(part) else str(int(part * d_head))


def _d_head(config: Mapping[str, Any]) -> int | None:
    """The width of a head that a configuration says."""
    said = {
        field: next((config[key] for key in keys if config.get(key) is not None), None) for field, keys in KEYS.items()
    }
    d_head, d_model, heads = said["d_head"], said["d_model"], said["n_heads"]
    if isinstance(d_head, int):
        return d_head
    whole = isinstance(d_model, int) and isinstance(heads, int) and heads > 0
    return d_model // heads if whole and d_model is not None and heads is not None else None


# ---------------------------------------------------------------------------------------------- its keys
def _said_of_rope(faults: Faults, config: Mapping[str, Any], style: str) -> dict[str, Any] | None:
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
        remedy = "pass transform= of this layer"
        remedy += "" if other[0] == "mrope_section" else f": {rope_in_words(config, style).removeprefix('transform=')}"
        faults.value("config's rope", expected, f"one with {shown(other[0])}", remedy)
        return None
    meta = _LLAMA3_OF_META if config.get("use_scaled_rope") else {}
    said = meta | {key: config[key] for key in _LENGTHS if config.get(key) is not None} | said
    before = len(faults.found)
    for key in _NUMBERS:
        if key in said:
            said[key] = real_between(faults, f"config's {key} of rope", said[key], -math.inf, math.inf)
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
