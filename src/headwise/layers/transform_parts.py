"""Transforms taken apart into texts, numbers and arrays, for files, and put together again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from headwise.core.frequencies import Frequencies
from headwise.core.shapes import Array, Faults, given_as, shown
from headwise.layers.rope_configs import DynamicRotary
from headwise.layers.transforms import Transform, _Composed, _QKNorm, _Rotary, compose, qk_norm, rotary

_KEYS = {  # what is said of each kind; arrays stand beside it
    "compose": ("parts",),
    "qk_norm": ("eps",),
    "rotary": ("style", "base", "dims", "magnitude"),
    "dynamic": ("style", "dims", "base", "factor", "trained_length"),
}
_DEEPEST = 32
_TOO_DEEP = f"expected at most {_DEEPEST} transforms one within another"


def norm_weights(transform: Any) -> dict[str, Array]:
    """The weights of the norms that come first in a transform, by the names that patterns have for them."""
    if isinstance(transform, _Composed) and transform.parts:
        return norm_weights(transform.parts[0])
    if not isinstance(transform, _QKNorm):
        return {}
    return {"q_norm": transform.q_norm.weight, "k_norm": transform.k_norm.weight}


def parts_of(transform: Any) -> list[Any]:
    """The transforms that one is made of, in their order."""
    if transform is None:
        return []
    if isinstance(transform, _Composed):
        return [own for part in transform.parts for own in parts_of(part)]
    return [transform]


def rope_styles(transform: Any) -> set[str]:
    """The styles of the rope in a transform; of a caller's own function nothing is known."""
    return {str(part.options["style"]) for part in parts_of(transform) if isinstance(part, _Rotary | DynamicRotary)}


def norm_is_late(transform: Any) -> bool:
    """Whether a norm comes after something else: models have theirs first."""
    return any(isinstance(part, _QKNorm) for part in parts_of(transform)[1:])


def taken_apart(faults: Faults, transform: Any, name: str = "transform") -> tuple[Any, dict[str, Array]]:
    """What JSON holds of a transform, and its arrays under names that begin with this one."""
    if transform is None:
        return None, {}
    if isinstance(transform, _Composed):
        if _depth(name) >= _DEEPEST:
            faults.value("transform", _TOO_DEEP.removeprefix("expected "), "more", "compose their parts directly")
            return None, {}
        parts = [taken_apart(faults, part, f"{name}.{i}") for i, part in enumerate(transform.parts)]
        return {"kind": "compose", "parts": [said for said, _ in parts]}, {
            k: x for _, own in parts for k, x in own.items()
        }
    if isinstance(transform, _QKNorm):
        arrays = {f"{name}.q_weight": transform.q_norm.weight, f"{name}.k_weight": transform.k_norm.weight}
        return {"kind": "qk_norm", "eps": transform.q_norm.eps}, arrays
    if isinstance(transform, DynamicRotary):
        return {"kind": "dynamic", **transform.options}, {}
    if isinstance(transform, _Rotary):
        known = transform.options["frequencies"]
        said = {"kind": "rotary", **{key: transform.options[key] for key in ("style", "base", "dims")}}
        said["magnitude"] = None if known is None else known.magnitude
        return said, {} if known is None else {f"{name}.angles": known.angles}
    faults.type(name, "None or one that headwise.transforms made", given_as(transform), "keep your own beside the file")
    return None, {}


def put_together(said: Any, arrays: Mapping[str, Array], name: str = "transform") -> Transform | None:
    """The transform again; a TypeError or ValueError where it was not taken apart here."""
    if said is None:
        return None
    if not isinstance(said, dict) or not isinstance(said.get("kind"), str) or said["kind"] not in _KEYS:
        raise ValueError(f"{name}: expected null or an object of kind {', '.join(_KEYS)}, got {shown(said)}")
    options = dict(said)
    kind = options.pop("kind")
    if set(options) != set(_KEYS[kind]):
        expected = f"{kind} with {', '.join(_KEYS[kind])}"
        raise ValueError(f"{name}: expected {expected}, got {shown(sorted(options))}")
    if kind == "compose":
        if not isinstance(options["parts"], list) or None in options["parts"]:
            raise ValueError(f"{name}: expected a list of parts, got {shown(options['parts'])}")
        if _depth(name) >= _DEEPEST:
            raise ValueError(f"{name[:20]}...: {_TOO_DEEP}, got more")
        return compose(*(_part(part, arrays, f"{name}.{i}") for i, part in enumerate(options["parts"])))
    if kind == "qk_norm":
        q_weight, k_weight = (_held(arrays, f"{name}.{key}_weight") for key in "qk")
        return qk_norm(q_weight, k_weight, eps=options["eps"])
    if kind == "dynamic":
        return DynamicRotary(**options)
    magnitude = options.pop("magnitude")
    known = None if magnitude is None else Frequencies(np.asarray(_held(arrays, f"{name}.angles")), magnitude)
    return rotary(**options, frequencies=known)


def _part(said: Any, arrays: Mapping[str, Array], name: str) -> Transform:
    part = put_together(said, arrays, name)
    assert part is not None  # null is no part
    return part


def _held(arrays: Mapping[str, Array], name: str) -> Array:
    if name not in arrays:
        raise ValueError(f"{name}: expected an array, got none")
    return arrays[name]


def _depth(name: str) -> int:
    """How many transforms one of this name is within: "transform.0.1" is within two."""
    return name.count(".")
