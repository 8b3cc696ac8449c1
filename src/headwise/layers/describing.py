"""How a model that no pattern knows may be described, by names that look like a layer's: a guess to begin with.

Knows names and shapes; reads no array.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import islice
from typing import Any

from headwise.layers.families import BUFFERS, STYLES, order_of_qkv
from headwise.layers.patterns import SEPARATE, printed

_FUSED = re.compile(r"query_key_value|(attn_|to_|in_proj_)?qkv(_proj|_lin|_w)?|c_attn|w_?qkv|in_proj|w_pack", re.I)
_ONE = r"(?:(?:to|in|w|c)_?)?(?:{})(?:_?(?:proj|lin|linear|w))?"
_ROLES = {
    "w_q": re.compile(_ONE.format("q|query"), re.I),
    "w_k": re.compile(_ONE.format("k|key"), re.I),
    "w_v": re.compile(_ONE.format("v|value"), re.I),
    "w_o": re.compile(r"dense|(?:(?:to|w|c)_?)?(?:o|out|output|proj)(?:_?(?:proj|lin|w))?|projection|proj_out", re.I),
}
_TRIED = 8  # of the names that may be those of queries
_LEAVES = ("weight", "bias")
_ORDER = (
    "'fused' is 'heads' where q, k and v of each head lie beside each other, 'groups' where those of each key head do, "
    "else 'blocks'"
)
_PLAIN = "{'w_q': its name after the prefix, ...}"


def description_of(
    shapes: Mapping[str, Any], start: str = "", config: Mapping[str, Any] | None = None
) -> dict[str, Any] | None:
    """A dictionary of the names of the first thing that looks like a layer, or None.

    Parameters
    ----------
    shapes : Mapping
        From names to shapes; a shape that is not known is None.
    start : str
        A prefix that names in the dictionary go without.
    config : Mapping, optional
        The model's ``config.json``, whose type may say the order of ``w_qkv`` and the style of rope.

    Examples
    --------
    >>> description_of({"h.0.attn.c_attn.weight": (4, 12), "h.0.attn.out.weight": (4, 4)}, "h.0")
    {'w_qkv': 'attn.c_attn.weight', 'w_o': 'attn.out.weight', 'fused': 'blocks', 'layout': 'conv1d'}
    """
    own = [name for name in shapes if not start or name.startswith(f"{start}.")]
    modules = {name: _module(name) for name in own if not name.endswith(".bias")}
    begin = (
        name for name, (_, module) in modules.items() if _FUSED.fullmatch(module) or _ROLES["w_q"].fullmatch(module)
    )
    for name in islice((name for name in begin if _may_be_weight(shapes[name])), _TRIED):
        folder, module = modules[name]
        found = {"w_qkv": name} if _FUSED.fullmatch(module) else _in_folder(modules, folder, SEPARATE)
        out = _in_folder(modules, folder, ("w_o",)) or _in_folder(
            modules, folder.rpartition(".")[0], ("w_o",), deeper=True
        )
        if out and ("w_qkv" in found or len(found) == 3):
            return _described(shapes, found | out, start or _common([*found.values(), *out.values()]), config or {})
    return None


def description_remedy(shapes: Mapping[str, Any], start: str = "") -> str:
    """What to do about a model that no pattern knows, for an error."""
    names = description_of(shapes, start)
    if names is None:
        return f"describe another model by pattern={_PLAIN}"
    order = f" ({_ORDER})" if "fused" in names else ""
    return f"describe another model by pattern={names}{order}"


def _module(name: str) -> tuple[str, str]:
    """The folder and the module of an array: of ``a.to_out.0.weight`` a and to_out."""
    parts = name.split(".")
    parts = parts[:-1] if parts[-1] in _LEAVES and len(parts) > 1 else parts
    parts = parts[:-1] if parts[-1].isdigit() and len(parts) > 1 else parts
    return ".".join(parts[:-1]), re.sub("_(weight|w)$", "", parts[-1]) or parts[-1]


def _may_be_weight(shape: Any) -> bool:
    return shape is None or len(shape) == 2


def _in_folder(
    modules: Mapping[str, tuple[str, str]], folder: str, roles: tuple[str, ...], deeper: bool = False
) -> dict[str, str]:
    """The first array of each role whose module stands in a folder, or one below it."""
    found: dict[str, str] = {}
    for name, (own, module) in modules.items():
        here = own == folder or (deeper and bool(folder) and own.startswith(f"{folder}."))
        for role in roles if here else ():
            if role not in found and _ROLES[role].fullmatch(module):
                found[role] = name
    return found


def _common(names: list[str]) -> str:
    """The folder that names have in common."""
    folders = [name.split(".")[:-1] for name in names]
    shared = []
    for parts in zip(*folders, strict=False):
        if len(set(parts)) > 1:
            break
        shared.append(parts[0])
    shared = shared[:-1] if len(names) > 1 and any(len(folder) == len(shared) for folder in folders) else shared
    return ".".join(shared)


def _described(
    shapes: Mapping[str, Any], found: Mapping[str, str], start: str, config: Mapping[str, Any]
) -> dict[str, Any]:
    cut = len(start) + 1 if start else 0
    biases = {f"b{role[1:]}": re.sub("weight$", "bias", name) for role, name in found.items()}
    held = {**found, **{role: name for role, name in biases.items() if name in shapes and name not in found.values()}}
    made: dict[str, Any] = {role: printed(name[cut:]) for role, name in held.items()}
    whole = found.get("w_qkv")
    if whole is not None:
        order = order_of_qkv(config) or ("heads" if "query_key_value" in whole else "blocks")
        made["fused"] = "..." if order == "others" else order
        shape = shapes[whole]
        made |= {"layout": "conv1d"} if shape is not None and shape[1] == 3 * shape[0] else {}
    kind = config.get("model_type")
    style = STYLES.get(kind) if isinstance(kind, str) else None
    made |= {} if style is None else {"rope": style}
    beside = [name for name in BUFFERS if (f"{start}.{name}" if start else name) in shapes]
    return made | ({"beside": beside} if beside else {})
