"""Under which names models keep the weights of a layer of attention, and in which layout: a table.

Knows names and layouts; reads and computes nothing.
"""

from __future__ import annotations  # help() then shows types as they are written

import math
from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from headwise.core.shapes import Faults, given_as, real, shown
from headwise.layers.families import alias_of

LAYOUTS = ("linear", "conv1d", "either")
FUSED = ("blocks", "heads", "groups")
_LONGEST = 200  # characters of a name in an error
OWN = "yours"  # a pattern that the caller described
SEPARATE = ("w_q", "w_k", "w_v")
ROLES = {
    "w_q": "the queries' weight",
    "w_k": "the keys' weight",
    "w_v": "the values' weight",
    "w_qkv": "these three in one",
    "w_o": "the output's weight",
    "b_q": "the queries' bias",
    "b_k": "the keys' bias",
    "b_v": "the values' bias",
    "b_qkv": "these three in one",
    "b_o": "the output's bias",
    "bias_k": "a learned key",
    "bias_v": "a learned value",
    "q_norm": "the weight of the norm of each head's queries",
    "k_norm": "the weight of the norm of each head's keys",
}


class Pattern(NamedTuple):
    """How models of one kind keep the weights of a layer of attention.

    Attributes
    ----------
    names : Mapping
        From what an array is (``w_q``, ``w_k``, ``w_v``, or all three in one as ``w_qkv``; ``w_o``; ``b_q`` to ``b_o``,
        ``b_qkv``; ``bias_k``, ``bias_v``; ``q_norm``, ``k_norm``) to its name after the layer's prefix. Where both
        ``w_qkv`` and the three are named, a checkpoint has one or the other.
    layout : {"linear", "conv1d", "either"}
        Whether weights are stored (out, in), as ``nn.Linear`` has them, or (in, out), as GPT-2 has them; "either" where
        the shapes of ``w_qkv`` and ``w_o`` tell.
    optional : tuple of tuples
        Keys of ``names`` that a checkpoint may lack, all of a group together. Every other one is asked for.
    beside : tuple of str
        Names after the prefix that may be there and are not the layer's: norms around it, buffers, T5's table.
    folders : tuple of str
        Where given, how prefixes end that this pattern is found at without being named.
    rope : {"half", "interleaved"}, optional
        Which columns the models' rope pairs.
    scale : float, optional
        The models' scale; None is ``1/sqrt(d_head)``.
    other_tokens : bool
        Whether keys and values may come from tokens of another width.
    grouped : bool
        Whether there may be fewer heads of keys than of queries.
    fused : {"blocks", "heads", "groups"}
        In which order ``w_qkv`` and ``b_qkv`` hold their columns: "blocks", the queries' of all heads, then all keys',
        then all values', as GPT-2 and timm have them; "heads", those of the first head's query, key and value, then of
        the second's, as BLOOM and GPT-NeoX have them; "groups", those of all queries of the first key head, of its key
        and of its value, then of the second's, as InternLM 2 and Falcon 40B have them. Shapes do not tell which.
    """

    names: Mapping[str, str]
    layout: str = "linear"
    optional: tuple[tuple[str, ...], ...] = ()
    beside: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()
    rope: str | None = None
    scale: float | None = None
    other_tokens: bool = False
    grouped: bool = True
    fused: str = "blocks"

    @property
    def asked(self) -> list[str]:
        """The keys of ``names`` that every checkpoint has; of weights in one and in three, none."""
        left_out = {role for group in self.optional for role in group}
        left_out |= {"w_qkv", *SEPARATE} if "w_qkv" in self.names and "w_q" in self.names else set()
        return [role for role in self.names if role not in left_out]


def _named(module: Mapping[str, str], biases: str = "qkvo") -> dict[str, str]:
    """Weights and biases of modules: ``{"q": "q_proj"}`` has ``q_proj.weight`` as w_q and ``q_proj.bias`` as b_q."""
    weights = {f"w_{key}": f"{name}.weight" for key, name in module.items()}
    return weights | {f"b_{key}": f"{name}.bias" for key, name in module.items() if key in biases or key == "qkv"}


_QKV = ("b_q", "b_k", "b_v")
_NORMS = {"q_norm": "q_norm.weight", "k_norm": "k_norm.weight"}
_BERT = {"q": "self.query", "k": "self.key", "v": "self.value", "o": "output.dense"}
_VIT = {"q": "attention.query", "k": "attention.key", "v": "attention.value", "o": "output.dense"}
_DISTILBERT = {"q": "q_lin", "k": "k_lin", "v": "v_lin", "o": "out_lin"}
_ALBERT = {"q": "query", "k": "key", "v": "value", "o": "dense"}
_BART = {"q": "q_proj", "k": "k_proj", "v": "v_proj", "o": "out_proj"}
_LLAMA = {"q": "q_proj", "k": "k_proj", "v": "v_proj", "o": "o_proj"}
_TORCH = {
    "w_qkv": "in_proj_weight",
    "w_q": "q_proj_weight",
    "w_k": "k_proj_weight",
    "w_v": "v_proj_weight",
    "w_o": "out_proj.weight",
    "b_qkv": "in_proj_bias",
    "b_o": "out_proj.bias",
    "bias_k": "bias_k",
    "bias_v": "bias_v",
}

PATTERNS: Mapping[str, Pattern] = MappingProxyType(
    {
        "torch": Pattern(_TORCH, optional=(("b_qkv", "b_o"), ("bias_k", "bias_v")), other_tokens=True, grouped=False),
        "bert": Pattern(
            _named(_BERT),
            beside=("output.LayerNorm.weight", "output.LayerNorm.bias"),
            other_tokens=True,
            grouped=False,
        ),
        "distilbert": Pattern(_named(_DISTILBERT), grouped=False),
        "albert": Pattern(_named(_ALBERT), beside=("LayerNorm.weight", "LayerNorm.bias"), grouped=False),
        "vit": Pattern(_named(_VIT), optional=(_QKV,), grouped=False),
        "gpt2": Pattern(
            _named({"qkv": "c_attn", "o": "c_proj"}),
            layout="conv1d",
            optional=(("b_qkv", "b_o"),),
            beside=("bias", "masked_bias"),
            grouped=False,
        ),
        "bart": Pattern(
            _named(_BART),
            optional=(("b_q", "b_v", "b_o"), ("b_k",)),
            beside=("bias", "masked_bias"),
            other_tokens=True,
            grouped=False,
        ),
        "llama": Pattern(
            _named(_LLAMA) | _NORMS,
            optional=(_QKV, ("b_o",), ("q_norm", "k_norm")),
            beside=("rotary_emb.inv_freq",),
            rope="half",
        ),
        "meta": Pattern(_named({key: f"w{key}" for key in "qkvo"}, ""), beside=("rope.freqs",), rope="interleaved"),
        "t5": Pattern(
            _named({key: key for key in "qkvo"}, ""),
            beside=("relative_attention_bias.weight",),
            folders=("SelfAttention", "EncDecAttention"),
            scale=1.0,
            grouped=False,
        ),
        "fused": Pattern(_named({"qkv": "qkv", "o": "proj"}), layout="either", optional=(("b_qkv",),)),
    }
)
"""The models' ways to keep weights, by name; "llama" is Mistral's, Qwen 2's and Qwen 3's too, "meta" Llama's own,
"bart" that of OPT, CLIP, Whisper and wav2vec 2.0 too."""


def known_patterns(faults: Faults, pattern: Any) -> dict[str, Pattern]:
    """The patterns that may be meant: all where None is given; none where a fault is noted."""
    if pattern is None:
        return dict(PATTERNS)
    if isinstance(pattern, str):
        if pattern in PATTERNS:
            return {pattern: PATTERNS[pattern]}
        alias = alias_of(pattern)
        remedy = "or a dictionary of names" if alias is None else f"its names are those of '{alias}'"
        remedy = f"describe it by {alias}" if isinstance(alias, dict) else remedy
        faults.value("pattern", f"one of {', '.join(PATTERNS)}", shown(pattern), remedy)
        return {}
    if isinstance(pattern, Pattern):
        return {OWN: pattern} if _fits(faults, pattern) else {}
    if isinstance(pattern, Mapping):
        return known_patterns(faults, _of_names(pattern))
    faults.type("pattern", "None, a name, a Pattern or a dictionary of names", given_as(pattern))
    return {}


def _of_names(names: Mapping[str, Any]) -> Pattern:
    """The pattern of a model that is described by its names, and perhaps its layout, rope, scale and order of w_qkv."""
    said = {key: names[key] for key in ("layout", "rope", "scale", "fused", "beside") if key in names}
    return Pattern({role: name for role, name in names.items() if role not in said}, other_tokens=True, **said)


def _fits(faults: Faults, pattern: Pattern) -> bool:
    """Whether the parts of a pattern that somebody made mean something."""
    before, names = len(faults.found), pattern.names
    if not isinstance(names, Mapping):
        faults.type("pattern", "names in a dictionary, {'w_q': its name, ...}", given_as(names))
        return False
    unknown = [role for role in names if role not in ROLES]
    if unknown:
        faults.value("pattern", f"names for {', '.join(ROLES)}", f"one for {listed(map(shown, unknown), 12)}")
    texts = all(isinstance(name, str) and name for name in names.values())
    if not texts or len(set(names.values())) < len(names):
        faults.value("pattern", "a name of its own for each array", shown(dict(names)))
    whole = "w_o" in names and ("w_qkv" in names or all(role in names for role in SEPARATE))
    if not whole:
        faults.value("pattern", "names for w_q, w_k, w_v (or w_qkv) and w_o", listed(map(str, names), 12) or "none")
    if pattern.layout not in LAYOUTS:
        faults.value("pattern", f"a layout of {', '.join(LAYOUTS)}", shown(pattern.layout))
    if pattern.layout == "either" and "w_qkv" not in names:
        faults.value("pattern", "layout 'linear' or 'conv1d'", "'either'", "shapes tell where w_qkv is one array")
    if pattern.fused not in FUSED:
        faults.value("pattern", f"a fused of {', '.join(FUSED)}", shown(pattern.fused))
    elif pattern.fused != "blocks" and "w_qkv" not in names:
        faults.value(
            "pattern", f"a name for w_qkv, which fused='{pattern.fused}' is said of", "none", "leave fused out"
        )
    if pattern.rope not in (None, "half", "interleaved"):
        faults.value("pattern", "a rope of half, interleaved", shown(pattern.rope))
    if pattern.scale is not None:
        expected = "a scale that is a finite number above 0"
        scale = real(faults, "pattern", pattern.scale, expected)
        if scale is not None and not 0 < scale < math.inf:
            faults.value("pattern", expected, shown(pattern.scale))
    for field in ("other_tokens", "grouped"):
        if not isinstance(getattr(pattern, field), bool):
            faults.type("pattern", f"True or False for {field}", given_as(getattr(pattern, field)))
    for field in ("beside", "folders"):
        if not _are_texts(getattr(pattern, field)):
            faults.type("pattern", f"a tuple of names for {field}", given_as(getattr(pattern, field)))
    groups = pattern.optional
    if not _is_list(groups) or not all(_are_texts(group) and set(group) <= set(names) for group in groups):
        faults.type("pattern", "tuples of keys of its names for optional", given_as(groups))
    return len(faults.found) == before


def _is_list(value: Any) -> bool:
    return isinstance(value, Collection) and not isinstance(value, str | bytes | Mapping)


def _are_texts(value: Any) -> bool:
    return _is_list(value) and all(isinstance(text, str) for text in value)


def printed(name: str) -> str:
    """A name of a file or of a caller as an error has it: on one line that no terminal acts upon, the end cut."""
    if len(name) <= _LONGEST and name.isprintable():
        return name  # as nearly all are
    from headwise import files

    return files.shown(name, _LONGEST)


def listed(names: Iterable[str], most: int = 100) -> str:
    """Names on one line, as they are printed."""
    known = [*map(printed, names)]
    more = f" and {len(known) - most} more" if len(known) > most else ""
    return ", ".join(known[:most]) + more
