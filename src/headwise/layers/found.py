"""Where the layers of attention of a checkpoint are, by names and shapes alone: no array is read."""

from __future__ import annotations  # help() then shows types as they are written

import operator
import re
from collections.abc import Container, Iterable, Mapping
from typing import Any, NamedTuple

from headwise.core.shapes import Faults, Shape, given_as, shown
from headwise.layers.configs import read_settings
from headwise.layers.patterns import OWN, SEPARATE, Pattern, known_patterns, printed
from headwise.layers.positional import as_configured

_CROSS = ("EncDecAttention", "crossattention", "cross_attn", "cross_attention", "encoder_attn", "encoder_attention")


class Place(NamedTuple):
    """Names that look like a layer: of which pattern, after which prefix, and which arrays of it there are."""

    name: str
    pattern: Pattern
    prefix: str
    held: dict[str, str]  # from the pattern's keys to full names

    @property
    def whole(self) -> bool:
        """Whether all weights are there."""
        return "w_o" in self.held and ("w_qkv" in self.held or all(role in self.held for role in SEPARATE))

    @property
    def likely(self) -> bool:
        """Whether at least two of the weights are there: one alone may be that of anything."""
        return sum(role.startswith("w_") for role in self.held) >= 2

    @property
    def rank(self) -> tuple[bool, int, int]:
        """More where more is there, and where names say more."""
        return self.whole, len(self.held), sum(len(self.pattern.names[role]) for role in self.held)


def full_name(prefix: str, name: str) -> str:
    return f"{prefix}.{name}" if prefix else name


def places(names: Iterable[str], patterns: Mapping[str, Pattern]) -> list[Place]:
    """Every place with names of a layer, two where patterns are many; of those that claim the same names, the best."""
    known: dict[str, list[tuple[str, str]]] = {}
    for key, pattern in patterns.items():
        for role, name in pattern.names.items():
            known.setdefault(name, []).append((key, role))
    deepest = max((name.count(".") + 1 for name in known), default=0)
    found: dict[tuple[str, str], Place] = {}
    for name in names:
        parts = name.split(".")
        for depth in range(1, min(deepest, len(parts)) + 1):
            prefix = ".".join(parts[:-depth])
            for key, role in known.get(".".join(parts[-depth:]), ()):
                place = found.setdefault((key, prefix), Place(key, patterns[key], prefix, {}))
                place.held[role] = name
    return _best(place for place in found.values() if len(patterns) == 1 or _stands_out(place))


def _stands_out(place: Place) -> bool:
    """Whether more than one name is there, and at its folder, where others have such names too."""
    folders = place.pattern.folders
    return len(place.held) > 1 and (not folders or place.prefix.rpartition(".")[2] in folders)


def _best(found: Iterable[Place]) -> list[Place]:
    """Without the places all of whose names a better one has."""
    kept = list(found)
    owners: dict[str, Place] = {}
    for place in sorted(kept, key=lambda place: place.rank):
        owners |= dict.fromkeys(place.held.values(), place)
    kept = [place for place in kept if any(owners[name] is place for name in place.held.values())]
    return sorted(kept, key=lambda place: _in_order(place.prefix))


def _in_order(prefix: str) -> list[tuple[int, str]]:
    """A key that sorts digits as numbers: by their count, without leading zeros."""
    parts = re.split("([0-9]+)", prefix)  # text, digits, text, ...
    return [(len(part.lstrip("0")), part.lstrip("0")) if i % 2 else (0, part) for i, part in enumerate(parts)]


class Found(NamedTuple):
    """A layer of attention in a checkpoint. As text it is one line.

    Attributes
    ----------
    prefix, pattern : str
        What :func:`from_state_dict` takes.
    d_model : int
        Width of the queries' tokens.
    d_q, d_kv : int
        Width of all heads together, of queries and of keys: H d_head and G d_head.
    n_heads, n_kv_heads : int or None
        None where neither shapes nor the configuration say.
    rope : str or None
        The style of the models' rope.
    biases, norms : bool
        Whether there are biases, and norms of queries and keys.
    d_key, d_value : int or None
        Width of the keys' and of the values' tokens, where it is another than that of the queries'.
    learned : bool
        Whether there are a learned key and value: PyTorch's ``bias_k`` and ``bias_v``.
    table : bool
        Whether T5's table of relative positions stands here, from which ``bias=`` of all layers of a stack comes.
    cross : bool
        Whether the prefix says that keys and values come from other tokens, as ``EncDecAttention`` does.
    described : Pattern or None
        The pattern that the caller described, where it is none of :data:`PATTERNS`.
    """

    prefix: str
    pattern: str
    d_model: int
    d_q: int
    d_kv: int
    n_heads: int | None = None
    n_kv_heads: int | None = None
    rope: str | None = None
    biases: bool = False
    norms: bool = False
    d_key: int | None = None
    d_value: int | None = None
    learned: bool = False
    table: bool = False
    cross: bool = False
    described: Pattern | None = None

    def __hash__(self) -> int:
        return hash(self[:-1])  # a dictionary of names has none

    @property
    def grouped(self) -> bool:
        """Whether there are fewer heads of keys than of queries."""
        return self.d_kv < self.d_q

    def __str__(self) -> str:
        heads = "heads not said" if self.n_heads is None else f"{self.n_heads} heads of {self.d_q // self.n_heads}"
        if self.grouped:
            heads += ", grouped" if self.n_kv_heads is None else f", {self.n_kv_heads} of keys"
        said = [f"{printed(self.prefix) or '(no prefix)'}: {printed(self.pattern)}", f"d_model {self.d_model}", heads]
        said += [f"d_q {self.d_q}, d_kv {self.d_kv}"] if self.grouped or self.d_q != self.d_model else []
        others = {"d_key": self.d_key, "d_value": self.d_value}
        said += [f"{name} {width}" for name, width in others.items() if width is not None]
        kinds = {
            "cross attention": self.cross,
            "biases": self.biases,
            "learned key and value": self.learned,
            "norms of q and k": self.norms,
            f"rope {self.rope}": self.rope,
            "table of relative positions": self.table,
        }
        return ", ".join(said + [kind for kind, held in kinds.items() if held])

    def __repr__(self) -> str:
        parts = {
            field: value for field, value in self._asdict().items() if value != self._field_defaults.get(field, ())
        }
        return f"Found({', '.join(f'{field}={shown(value)}' for field, value in parts.items())})"


def attention_layers(
    tensors: Any,
    config: Mapping[str, Any] | None = None,
    *,
    pattern: str | Pattern | Mapping[str, Any] | None = None,
) -> list[Found]:
    """Find the layers of attention of a checkpoint, by names and shapes alone.

    Parameters
    ----------
    tensors : Mapping
        From names to arrays, to anything with a ``shape``, or to tuples ``(shape, dtype)``; or an open checkpoint, of
        which no array is read.
    config : Mapping, optional
        The model's ``config.json``, for the numbers of heads.
    pattern : str, Pattern or Mapping, optional
        What alone is looked for, as for :func:`from_state_dict`: a name of :data:`PATTERNS`, or the names of a model
        that is not among them. By default all patterns are.

    Returns
    -------
    list of Found
        Every prefix at which all weights of a pattern are, with shapes that fit; in alphabetical order, numbers in it
        by their size: ``layers.2`` comes before ``layers.10``.

    Raises
    ------
    TypeError, ValueError
        If ``tensors`` or ``config`` is no mapping, a number of ``config`` is none, something with the name of a
        layer's array has no shape, or ``pattern`` is none.

    Examples
    --------
    >>> shapes = {"q_proj": (64, 48), "k_proj": (16, 48), "v_proj": (16, 48), "o_proj": (48, 64)}
    >>> tensors = {f"layers.0.self_attn.{name}.weight": (shape, "float32") for name, shape in shapes.items()}
    >>> (found,) = attention_layers(tensors, {"num_attention_heads": 8})
    >>> print(found)
    layers.0.self_attn: llama, d_model 48, 8 heads of 8, 2 of keys, d_q 64, d_kv 16, rope half
    """
    faults = Faults("attention_layers")
    if not isinstance(tensors, Mapping):
        faults.type("tensors", "a mapping from names to arrays, or to their shapes", given_as(tensors))
        faults.raise_any()
    known, patterns = read_settings(faults, config), known_patterns(faults, pattern)
    faults.raise_any()
    whole = [place for place in places(filter(_is_text, tensors), patterns) if place.whole]
    here = [place._replace(pattern=as_configured(place.pattern, place.name, config)) for place in whole]
    shapes = {name: _shape(faults, tensors, name) for place in here for name in _looked_at(place, tensors)}
    faults.raise_any()
    layers = [_found(place, shapes, known.n_heads, known.d_head) for place in here]
    return [layer for layer in layers if layer is not None]


def _is_text(name: Any) -> bool:
    return isinstance(name, str)


def _looked_at(place: Place, names: Any) -> list[str]:
    """The names whose shapes tell what a layer is."""
    return [*place.held.values(), *tables_of(place, names)]


def _shape(faults: Faults, tensors: Any, name: str) -> Shape:
    """The shape of an array that is not read."""
    tensor = tensors.tensor(name) if hasattr(tensors, "tensor") else tensors[name]
    pair = isinstance(tensor, tuple) and len(tensor) == 2
    shape: Any = getattr(tensor, "shape", tensor[0] if pair else None)
    try:
        return tuple(operator.index(size) for size in shape)
    except TypeError:
        faults.type(printed(name), "an array, or a tuple (shape, dtype)", given_as(tensor))
        return ()


def _found(place: Place, tensors: Mapping[str, Shape], n_heads: int | None, d_head: int | None) -> Found | None:
    shapes = {role: tensors[name] for role, name in place.held.items()}
    weights = {role: shape for role, shape in shapes.items() if role.startswith("w_")}
    if any(len(shape) != 2 or 0 in shape for shape in weights.values()):
        return None
    layout = layout_of(place.pattern, weights)
    widths = _widths({role: shape if layout == "conv1d" else shape[::-1] for role, shape in weights.items()})
    if widths is None:
        return None
    d_model, d_q, d_kv = widths
    if d_kv != d_q and (place.pattern.fused == "heads" or not place.pattern.grouped):
        return None  # as the (D, 2D) of keys and values alone in GPT-2's cross attention
    held = heads_held(shapes, [tensors[name] for name in tables_of(place, tensors)])
    n_heads, d_head = _heads(held, d_q, n_heads, d_head)
    groups = d_kv // d_head if d_head and not d_kv % d_head else None
    inward = 0 if layout == "conv1d" else 1
    tokens = [shapes[role][inward] for role in ("w_k", "w_v") if "w_qkv" not in shapes]
    d_key, d_value = [None if width == d_model else width for width in tokens] or (None, None)
    return Found(
        place.prefix,
        place.name,
        d_model,
        d_q,
        d_kv,
        n_heads,
        groups,
        place.pattern.rope,
        biases=any(role.startswith("b_") for role in shapes),
        norms="q_norm" in shapes,
        d_key=d_key,
        d_value=d_value,
        learned="bias_k" in shapes,
        table=bool(tables_of(place, tensors)),
        cross=place.prefix.rpartition(".")[2] in _CROSS,
        described=place.pattern if place.name == OWN else None,
    )


def _widths(shapes: Mapping[str, Shape]) -> tuple[int, int, int] | None:
    """Width of tokens, of queries and of keys, of shapes (in, out); None where they fit no layer."""
    d_q, d_model = shapes["w_o"]
    if "w_qkv" in shapes:
        own, d_kv = (shapes["w_qkv"][0], d_q), (shapes["w_qkv"][1] - d_q) // 2
        fits = 2 * d_kv + d_q == shapes["w_qkv"][1]
    else:
        own, d_kv = (shapes["w_q"][0], shapes["w_q"][1]), shapes["w_k"][1]
        fits = d_kv == shapes["w_v"][1]
    return (d_model, d_q, d_kv) if fits and own == (d_model, d_q) and 0 < d_kv <= d_q else None


def _heads(
    held: tuple[int | None, int | None], d_q: int, n_heads: int | None, d_head: int | None
) -> tuple[int | None, int | None]:
    """Number and width of heads, where anything says it."""
    d_head = held[1] or d_head
    n_heads = held[0] or n_heads or (d_q // d_head if d_head else None)
    return (n_heads, d_q // n_heads) if n_heads and not d_q % n_heads else (None, None)


def tables_of(place: Place, names: Container[str]) -> list[str]:
    """The name of the table of relative positions, where one stands beside a layer of T5."""
    name = full_name(place.prefix, "relative_attention_bias.weight")
    return [name] if place.name == "t5" and name in names else []


def heads_held(shapes: Mapping[str, Shape], tables: Iterable[Shape]) -> tuple[int | None, int | None]:
    """Number and width of heads that a checkpoint's arrays say: T5's table has a column each, a norm is a head wide."""
    norm = shapes.get("q_norm", ())
    own = len(norm) == 1 and norm[0] not in shapes.get("w_q", ())  # else it is that of all heads together
    columns = [table[1] for table in tables if len(table) == 2]
    return columns[0] if columns else None, norm[0] if own else None


def layout_of(pattern: Pattern, shapes: Mapping[str, Shape]) -> str:
    """The layout of a pattern, told by the shapes where it may be either: w_qkv (3 H d, D) beside w_o (D, H d)."""
    if pattern.layout != "either":
        return pattern.layout
    fused, out = shapes.get("w_qkv", ()), shapes.get("w_o", ())
    turned = len(fused) == len(out) == 2 and fused[0] == out[1] and fused[1] > out[0]
    return "conv1d" if turned and fused[1] != out[0] else "linear"
