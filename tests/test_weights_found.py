"""Which layers of attention a checkpoint holds: by names and shapes, with no array read."""

import numpy as np
import pytest
from states import AT, CONFIGS, KINDS, SHAPES, D, G, H, pattern_of, state_of

from headwise import weights


class Shut:
    """An array of which nothing but its shape may be seen."""

    def __init__(self, shape):
        self.shape = shape

    def __array__(self, *_, **__):
        raise AssertionError("read")


class Checkpoint(dict):
    """As an open checkpoint: arrays are read by [], shapes are told by tensor()."""

    def __getitem__(self, name):
        raise AssertionError("read")

    def tensor(self, name):
        return dict.__getitem__(self, name)


def shapes_of(kind):
    return {f"{AT[kind]}.{name}": shape for name, shape in SHAPES[kind].items()}


@pytest.mark.parametrize("kind", KINDS)
def test_every_pattern_is_found(kind):
    shapes = shapes_of(kind)
    found = weights.attention_layers({name: (shape, "float32") for name, shape in shapes.items()}, CONFIGS.get(kind))
    (layer,) = found
    assert (layer.prefix, layer.pattern) == (AT[kind], pattern_of(kind))
    assert found == weights.attention_layers({name: Shut(shape) for name, shape in shapes.items()}, CONFIGS.get(kind))
    assert found == weights.attention_layers(
        Checkpoint({name: Shut(shape) for name, shape in shapes.items()}), CONFIGS.get(kind)
    )
    made = weights.from_state_dict(state_of(kind), layer.prefix, config=CONFIGS.get(kind), n_heads=H)
    assert layer.d_model == made.d_model
    assert (layer.d_q, layer.d_kv) == (made.w_q.shape[1], made.w_k.shape[1])
    assert layer.grouped == (made.n_kv_heads < made.n_heads)
    assert layer.biases == any(getattr(made, f"b_{key}") is not None for key in "qkvo")
    if kind in CONFIGS:
        assert (layer.n_heads, layer.n_kv_heads) == (made.n_heads, made.n_kv_heads)
    else:
        assert (layer.n_heads, layer.n_kv_heads) == (None, None)


def test_a_layer_is_one_line():
    lines = [str(found) for kind in KINDS for found in weights.attention_layers(state_of(kind), CONFIGS.get(kind))]
    assert not any("\n" in line for line in lines)
    assert lines[KINDS.index("qwen3")] == (
        "model.layers.2.self_attn: llama, d_model 12, 6 heads of 4, 2 of keys, d_q 24, d_kv 8, "
        "norms of q and k, rope half"
    )
    assert lines[KINDS.index("bert")] == f"{AT['bert']}: bert, d_model 12, heads not said, biases"
    bare = {name.removeprefix("mha."): x for name, x in state_of("torch, no bias").items()}
    assert str(*weights.attention_layers(bare)) == "(no prefix): torch, d_model 12, heads not said"


def test_a_line_hides_nothing_that_a_call_needs():
    def line(kind, more=()):
        (found,) = weights.attention_layers(state_of(kind) | {f"{AT[kind]}.{name}": x for name, x in more})
        return str(found)

    assert (
        line("torch, other widths")
        == f"{AT['torch, other widths']}: torch, d_model 12, heads not said, d_key 10, d_value 7, biases"
    )
    assert line("torch") == f"{AT['torch']}: torch, d_model 12, heads not said, biases, learned key and value"
    table = ("relative_attention_bias.weight", np.zeros((32, H)))
    assert line("t5", [table]).endswith("6 heads of 4, d_q 24, d_kv 24, table of relative positions")
    assert line("t5cross").endswith("d_q 24, d_kv 24, cross attention")
    assert line("whisper").endswith("heads not said, cross attention, biases")
    assert "cross" not in line("t5") + line("bart") + line("bert")


def test_a_layers_repr_is_short():
    (found,) = weights.attention_layers(
        {name.replace(AT["bert"], "x" * 10**6): x for name, x in state_of("bert").items()}
    )
    assert found.prefix == "x" * 10**6
    assert len(repr(found)) < 300
    assert repr(weights.Found("a", "t5", 4, 4, 4, cross=True)) == (
        "Found(prefix='a', pattern='t5', d_model=4, d_q=4, d_kv=4, cross=True)"
    )


def test_all_of_a_checkpoint_in_its_order():
    names = {
        f"encoder.layer.{i}.attention.{name}": (shape, None)
        for i in range(12)
        for name, shape in SHAPES["bert"].items()
    }
    others = {"embeddings.word_embeddings.weight": ((9, D), None), "pooler.dense.weight": ((D, D), None)}
    others |= {f"encoder.layer.{i}.output.dense.weight": ((D, D), None) for i in range(12)}
    found = weights.attention_layers(others | names)
    assert [layer.prefix for layer in found] == [f"encoder.layer.{i}.attention" for i in range(12)]


def test_numbers_in_names_are_ordered_by_their_size():
    shapes = {
        f"layers.{i}.{AT['torch, no bias']}.{name}": (shape, None)
        for i in (10, 2, 1, 0)
        for name, shape in SHAPES["torch, no bias"].items()
    }
    found = [layer.prefix for layer in weights.attention_layers(shapes)]
    assert found == [f"layers.{i}.mha" for i in (0, 1, 2, 10)]
    with pytest.raises(ValueError, match=r"that of 4: layers\.0\.mha, layers\.1\.mha, layers\.2\.mha, layers\.10\.mha"):
        weights.from_state_dict({name: np.zeros(shape) for name, (shape, _) in shapes.items()}, n_heads=H)
    long = {f"{'9' * 5000}.{name}": (shape, None) for name, shape in SHAPES["bert"].items()}
    assert len(weights.attention_layers(long)) == 1  # more digits than Python reads as a number


def test_heads_are_said_by_what_the_checkpoint_holds():
    table = {f"{AT['t5']}.relative_attention_bias.weight": ((32, H), None)}
    (t5,) = weights.attention_layers({name: (shape, None) for name, shape in shapes_of("t5").items()} | table)
    assert (t5.n_heads, t5.n_kv_heads) == (H, H)
    (qwen,) = weights.attention_layers({name: (shape, None) for name, shape in shapes_of("qwen3").items()})
    assert (qwen.n_heads, qwen.n_kv_heads, qwen.norms) == (H, G, True)


def test_fused_weights_are_found_in_either_layout():
    shapes = {"qkv.weight": ((D, 3 * 24), None), "proj.weight": ((24, D), None)}
    assert weights.attention_layers(shapes) == [weights.Found("", "fused", D, 24, 24)]


@pytest.mark.parametrize("layout", ["linear", "conv1d"])
def test_one_pattern_is_looked_for_alone(layout):
    names = {"w_q": "to_q", "w_k": "to_k", "w_v": "to_v", "w_o": "to_out", "layout": layout}
    stored = {"to_q": (24, D), "to_k": (24, 10), "to_v": (24, 11), "to_out": (D, 24)}  # (out, in)
    shapes = {f"mid.{name}": (shape if layout == "linear" else shape[::-1], None) for name, shape in stored.items()}
    others = {name: (shape, None) for name, shape in shapes_of("bert").items()}
    (found,) = weights.attention_layers(shapes | others, {"num_attention_heads": H}, pattern=names)
    expected = weights.Found("mid", "yours", D, 24, 24, H, H, d_key=10, d_value=11, described=found.described)
    assert found == expected
    assert {found: 1}[expected] == 1
    assert (found.described.names["w_o"], found.described.layout) == ("to_out", layout)
    assert [each.pattern for each in weights.attention_layers(shapes | others, pattern="bert")] == ["bert"]
    assert weights.attention_layers(shapes | others, pattern="vit") == []
    with pytest.raises(ValueError, match="attention_layers: pattern: expected one of torch, "):
        weights.attention_layers(shapes, pattern="diffusers")


@pytest.mark.parametrize(
    "change",
    [
        {"self.query.weight": (D, D, 1)},
        {"self.query.weight": (D, 9)},
        {"self.value.weight": (9, D)},
        {"self.key.weight": (0, D)},
        {"self.key.weight": (2 * D, D), "self.value.weight": (2 * D, D)},
        {"output.dense.weight": None},
    ],
)
def test_what_is_no_layer_is_not_listed(change):
    shapes = {name: shape for name, shape in (SHAPES["bert"] | change).items() if shape is not None}
    assert weights.attention_layers({name: (shape, None) for name, shape in shapes.items()}) == []


def test_names_that_are_no_attention():
    assert weights.attention_layers({}) == []
    convolutions = {"vae.q.weight": (4, 4), "vae.k.weight": (4, 4), "vae.v.weight": (4, 4), "vae.o.weight": (4, 4)}
    assert weights.attention_layers({name: (shape, None) for name, shape in convolutions.items()}) == []


def test_what_is_no_mapping_is_refused():
    with pytest.raises(TypeError, match="attention_layers: tensors: expected a mapping from names to arrays"):
        weights.attention_layers([np.zeros(3)])
    with pytest.raises(TypeError, match="attention_layers: config: expected None or a mapping"):
        weights.attention_layers({}, 3)
