"""Checkpoints that other libraries made, and layers made of them by hand.

tools/make_checkpoints.py ran the libraries and wrote the files; their configs say how a layer is called.
"""

import json
import math
import struct
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from headwise import MultiHeadAttention, frequencies, masks, transforms

FOLDER = Path(__file__).parent / "data" / "checkpoints"


class Row(NamedTuple):
    """A fixture, how its weights are named, its scale, and how it is called besides the mask of its padding."""

    name: str
    names: str  # of the projections to queries, keys, values and back; or of all three together and back
    causal: bool = False
    window: int | None = None  # how many keys a query sees, its own among them
    scale: float | None = None

    def __str__(self):
        return self.name


SELF_ATTN = "self_attn.q_proj self_attn.k_proj self_attn.v_proj self_attn.o_proj"
BERT = "attention.{0}query attention.{0}key attention.{0}value "
BART = "{0}.q_proj {0}.k_proj {0}.v_proj {0}.out_proj"
T5 = "{0}.q {0}.k {0}.v {0}.o"
ROWS = [
    Row("torch-packed", "in_proj_ out_proj."),
    Row("torch-widths", "q_proj_ k_proj_ v_proj_ out_proj."),
    Row("torch-bias-kv", "in_proj_ out_proj.", causal=True),
    Row("gpt2", "attn.c_attn attn.c_proj", causal=True),
    Row("bert", BERT.format("self.") + "attention.output.dense"),
    Row("distilbert", "attention.q_lin attention.k_lin attention.v_lin attention.out_lin"),
    Row("albert", BERT.format("") + "attention.dense"),
    Row("vit", BERT.format("attention.") + "attention.output.dense"),
    Row("llama", SELF_ATTN, causal=True),
    Row("llama3", SELF_ATTN, causal=True),
    Row("yarn", SELF_ATTN, causal=True),
    Row("mistral", SELF_ATTN, window=3),
    Row("qwen2", SELF_ATTN, causal=True),
    Row("qwen3", SELF_ATTN, causal=True),
    Row("t5-encoder", T5.format("SelfAttention"), scale=1.0),
    Row("t5-decoder", T5.format("SelfAttention"), causal=True, scale=1.0),
    Row("t5-cross", T5.format("EncDecAttention"), scale=1.0),
    Row("bart-encoder", BART.format("self_attn")),
    Row("bart-cross", BART.format("encoder_attn")),
    Row("bart-whisper", BART.format("self_attn"), causal=True),
    Row("fused", "qkv proj"),
]
BY_NAME = {row.name: row for row in ROWS}


# ------------------------------------------------------------------------------------------- reading, by hand
class Fixture(NamedTuple):
    state: dict[str, Any]
    seen: dict[str, Any]  # x, key and value where they are others, valid keys, bias; out, weights
    prefix: str
    config: dict[str, Any]

    @property
    def n_heads(self):
        names = ("num_attention_heads", "n_head", "num_heads", "n_heads", "encoder_attention_heads")
        return next(self.config[name] for name in names if name in self.config)


def read(name):
    about = json.loads((FOLDER / f"{name}.json").read_text())
    with np.load(FOLDER / f"{name}.npz") as seen:
        return Fixture(read_safetensors(FOLDER / f"{name}.safetensors"), dict(seen), about["prefix"], about["config"])


def read_safetensors(path):
    data = path.read_bytes()
    (length,) = struct.unpack_from("<Q", data)
    header = json.loads(data[8 : 8 + length])
    header.pop("__metadata__")
    arrays = {}
    for name, tensor in header.items():
        assert tensor["dtype"] == "F32"
        start, end = (8 + length + at for at in tensor["data_offsets"])
        arrays[name] = np.frombuffer(data[start:end], "<f4").reshape(tensor["shape"])
    return arrays


# ----------------------------------------------------------------------------------------- the layer, by hand
def by_hand(row, fixture):
    """The layer, from arrays that are split and transposed here."""
    state = {name.removeprefix(fixture.prefix): x for name, x in fixture.state.items()}
    *sources, back = row.names.split()
    weights = [state[name + ("weight" if name[-1] in "_." else ".weight")] for name in (*sources, back)]
    biases = [state.get(name + ("bias" if name[-1] in "_." else ".bias")) for name in (*sources, back)]
    if row.name != "gpt2":
        weights = [w.T for w in weights]  # (in, out) from here on
    if row.name == "torch-widths":
        biases[:-1] = np.split(state["in_proj_bias"], 3)
    if len(sources) == 1:
        weights[:-1] = np.split(weights[0], 3, axis=1)
        biases[:-1] = np.split(biases[0], 3)
    named = {f"b_{letter}": b for letter, b in zip("qkvo", biases, strict=True)}
    n_heads = fixture.n_heads
    transform = transform_of(state, fixture.config, weights[0].shape[1] // n_heads)
    named |= learned(state, n_heads)
    return MultiHeadAttention.from_arrays(*weights, n_heads=n_heads, transform=transform, scale=row.scale, **named)


def learned(state, n_heads):
    """PyTorch's `bias_k` and `bias_v`, and the zeros that its `add_zero_attn` puts behind each."""
    rows = {name: state[name].reshape(n_heads, 1, -1) for name in ("bias_k", "bias_v") if name in state}
    return {name: np.concatenate([row, np.zeros_like(row)], axis=1) for name, row in rows.items()}


def transform_of(state, config, d_head):
    rope = config.get("rope_parameters")
    if rope is None:
        return None
    norms = [state[f"self_attn.{letter}_norm.weight"] for letter in "qk" if f"self_attn.{letter}_norm.weight" in state]
    turn = transforms.rotary(style="half", frequencies=frequencies_of(rope, d_head))
    return transforms.compose(transforms.qk_norm(*norms, eps=config["rms_norm_eps"]), turn) if norms else turn


def frequencies_of(rope, d_head):
    base = rope["rope_theta"]
    if rope["rope_type"] == "default":
        return frequencies.plain(d_head, base=base)
    factor, trained = rope["factor"], rope["original_max_position_embeddings"]
    if rope["rope_type"] == "yarn":
        return frequencies.yarn(d_head, factor, trained, base=base)
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]
    return frequencies.llama3(d_head, factor, base=base, low=low, high=high, trained_length=trained)


def position_bias(table, n, *, bidirectional, max_distance):
    """T5's bias, (H, n, n), one pair after another: buckets of one distance each, then of ever more."""
    n_buckets = len(table) // 2 if bidirectional else len(table)
    bias, exact = np.empty((table.shape[1], n, n), table.dtype), n_buckets // 2
    for i in range(n):
        for j in range(n):
            distance = abs(i - j) if bidirectional else max(i - j, 0)
            bucket = distance
            if distance >= exact:
                wide = math.log(distance / exact) / math.log(max_distance / exact) * (n_buckets - exact)
                bucket = min(exact + int(wide), n_buckets - 1)
            bias[:, i, j] = table[bucket + (n_buckets if bidirectional and j > i else 0)]
    return bias


def call_of(row, fixture):
    """The options of the call."""
    seen, call = fixture.seen, {"causal": row.causal}
    mask = masks.keys(seen["valid"]) if "valid" in seen else None
    if row.window is not None:
        mask &= masks.window(row.window - 1, 0)
    table = fixture.state.get(f"{fixture.prefix}SelfAttention.relative_attention_bias.weight")
    if table is not None:
        furthest = fixture.config["relative_attention_max_distance"]
        both = row.name == "t5-encoder"
        call["bias"] = position_bias(table, seen["x"].shape[1], bidirectional=both, max_distance=furthest)
    return call | {"mask": mask}
