"""A layer's weights by the names that a model has for them: the way back.

Knows what a pattern's models cannot mean; reads no state.
"""

from __future__ import annotations  # help() then shows types as they are written

from collections.abc import Mapping
from typing import Any

import numpy as np

from headwise.core.shapes import Array, Faults, flag, given_as
from headwise.layers.attention_layer import MultiHeadAttention
from headwise.layers.fitting import missing, raise_all
from headwise.layers.found import full_name
from headwise.layers.patterns import SEPARATE, Pattern, known_patterns, printed
from headwise.layers.transform_parts import norm_is_late, norm_weights, rope_styles


def to_state_dict(
    layer: MultiHeadAttention,
    pattern: str | Pattern | Mapping[str, Any],
    prefix: str = "",
    *,
    add_zero_attn: bool = False,
) -> dict[str, Array]:
    """Give a layer's weights the names and the layout that a model has them in.

    Parameters
    ----------
    layer : MultiHeadAttention
        The layer.
    pattern : str, Pattern or Mapping
        As for :func:`from_state_dict`; "either" is written as "linear".
    prefix : str
        What stands before the names.
    add_zero_attn : bool
        Whether the last learned key and value are the zeros of ``add_zero_attn``, for which there is no array.

    Returns
    -------
    dict of ndarray
        What :func:`from_state_dict` took, equal to the bit. What a transform does besides norms has no name in a state.

    Raises
    ------
    TypeError
        If an argument is of the wrong kind.
    ValueError
        If the layer has what the pattern has no name for, lacks what it asks for, or has what the pattern's models have
        not: another scale, rope of another style or where they have none, grouped heads; or if one array would hold
        several of different types, as float16 and float32.

    Examples
    --------
    >>> layer = MultiHeadAttention(d_model=4, n_heads=2, use_bias=True)
    >>> for name, x in to_state_dict(layer, "gpt2", "h.0.attn").items():
    ...     print(name, x.shape)
    h.0.attn.c_attn.weight (4, 12)
    h.0.attn.c_proj.weight (4, 4)
    h.0.attn.c_attn.bias (12,)
    h.0.attn.c_proj.bias (4,)
    """
    faults = Faults("to_state_dict")
    if not isinstance(layer, MultiHeadAttention):
        faults.type("layer", "a MultiHeadAttention", given_as(layer))
    if pattern is None:
        faults.type("pattern", "a name, a Pattern or a dictionary of names", "None")
    if not isinstance(prefix, str):
        faults.type("prefix", "a text", given_as(prefix))
    patterns = known_patterns(faults, pattern)
    add_zero_attn = flag(faults, "add_zero_attn", add_zero_attn)
    faults.raise_any()
    ((name, known),) = patterns.items()
    if add_zero_attn:
        _check_zeros(faults, layer)
        faults.raise_any()
    held = _held(faults, layer, known, add_zero_attn)
    _check_back(faults, known, layer, held)
    if faults.found:
        raise_all(faults, f"pattern '{name}'")
    turn, start = known.layout != "conv1d", prefix.rstrip(".")
    return {
        full_name(start, own): held[role].T if turn and role.startswith("w_") else held[role]
        for role, own in known.names.items()
        if role in held
    }


def _held(faults: Faults, layer: MultiHeadAttention, pattern: Pattern, add_zero_attn: bool) -> dict[str, Array]:
    """What a layer holds, by the pattern's keys."""
    roles = (*SEPARATE, "w_o", "b_q", "b_k", "b_v", "b_o")
    held = {role: np.asarray(getattr(layer, role)) for role in roles if getattr(layer, role) is not None}
    for whole, parts in (("w_qkv", SEPARATE), ("b_qkv", ("b_q", "b_k", "b_v"))):
        widths = {held[part].shape[:-1] for part in parts if part in held}
        if whole in pattern.names and all(part in held for part in parts) and len(widths) == 1:
            beside = 1 if pattern.fused == "blocks" else layer.n_kv_heads
            own = {part: held.pop(part) for part in parts}
            _check_types(faults, whole, own)
            held[whole] = own[parts[0]] if faults.found else joined([*own.values()], beside)
    for role in ("bias_k", "bias_v"):
        rows = getattr(layer, role, None)  # (G, m, d_head)
        if rows is not None and rows.shape[1] > add_zero_attn:
            rows = rows[:, : rows.shape[1] - add_zero_attn]
            held[role] = rows.reshape(1, 1, -1) if rows.shape[1] == 1 else rows
    return held | norm_weights(layer.transform)


def _check_types(faults: Faults, whole: str, parts: Mapping[str, Array]) -> None:
    """Note where arrays of several types would become one, in which some would not be what they were."""
    types = {name: str(part.dtype) for name, part in parts.items()}
    if len(set(types.values())) > 1:
        remedy = "cast them to one, or export by a pattern that names them apart"
        got = ", ".join(f"{name} of {dtype}" for name, dtype in types.items())
        faults.value(whole, f"{', '.join(parts)} of one type, for one array", got, remedy)


def joined(parts: list[Array], n_kv_heads: int) -> Array:
    """Columns of queries, keys and values in one array: those of each key head beside each other; blocks, of one."""
    if n_kv_heads == 1:
        return np.concatenate(parts, axis=-1)
    cut = [
        part.reshape(*part.shape[:-1], n_kv_heads, -1) for part in parts
    ]  # (..., G, H/G d_head) and (..., G, d_head)
    return np.concatenate(cut, axis=-1).reshape(*parts[0].shape[:-1], -1)


def _check_zeros(faults: Faults, layer: MultiHeadAttention) -> None:
    """Note where the last learned row is not that of zeros, which would be lost without a word."""
    for role in ("bias_k", "bias_v"):
        rows = getattr(layer, role, None)
        if rows is None or not rows.shape[1] or np.asarray(rows)[:, -1].any():
            got = "none" if rows is None or not rows.shape[1] else "others"
            faults.value(role, "a last row of zeros, for add_zero_attn=True", got, "leave add_zero_attn out")


def _check_back(faults: Faults, pattern: Pattern, layer: MultiHeadAttention, held: dict[str, Array]) -> None:
    """Note what the pattern has no name for, what it asks for, and another scale."""
    for role in held:
        if role not in pattern.names:
            faults.value(role, "None, as the pattern has no name for it", "an array")
    for role in missing(pattern, held):
        faults.value(role, f"an array, for {printed(pattern.names[role])}", "None")
    scale, plain = getattr(layer, "scale", None), layer.d_head**-0.5
    if (plain if scale is None else scale) != (plain if pattern.scale is None else pattern.scale):
        faults.value("scale", f"{pattern.scale}, as the pattern's models have it", str(scale))
    if layer.n_kv_heads != layer.n_heads and (pattern.fused == "heads" or not pattern.grouped):
        expected = f"{layer.n_heads} = n_heads, as the pattern's models have no grouped heads"
        faults.value("n_kv_heads", expected, str(layer.n_kv_heads))
    if norm_is_late(layer.transform):
        faults.value("transform", "norms of queries and keys before all else", "one after another transform")
    for style in sorted(rope_styles(layer.transform) - {pattern.rope}):
        order = f"headwise.rope_permutation(d_head, to='{pattern.rope}', n_heads=...)"
        remedy = f"put the columns of queries and keys in the order of {order}, and give the layer the other style"
        expected = f"rope of style '{pattern.rope}'"
        if pattern.rope is None:
            expected, remedy = "no rope", f"a model of yours is a pattern with 'rope': '{style}'"
        faults.value("transform", f"{expected}, as the pattern's models have it", f"rope of style '{style}'", remedy)
    for role in ("bias_k", "bias_v"):
        if role in held and held[role].shape[1] != 1:
            remedy = "add_zero_attn=True where the last is that of zeros"
            faults.value(role, "one learned row", str(held[role].shape[1]), remedy)
