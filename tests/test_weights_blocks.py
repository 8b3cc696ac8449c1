"""The attention in a whole block, as libraries name all of it; models near a pattern, and those that are none."""

import numpy as np
import pytest
from states import D, G, H

from headwise import transforms, weights

WIDE = 20  # of the feed-forward


def block(*lines):
    """Shapes by name: each line is names, then their shape as letters; "n" is a norm, "l" a linear with its bias."""
    sizes, shapes = {"D": D, "W": WIDE, "3": 3 * D, "G": G * D // H, "H": D // H}, {}
    for names, kind, *letters in map(str.split, lines):
        shape = tuple(sizes[letter] for letter in letters)
        for name in names.split(","):
            shapes[f"{name}.weight"] = shape
            if kind != "w":
                shapes[f"{name}.bias"] = shape[-1:] if kind == "c" else shape[:1]
    return shapes


BERT = block(
    "attention.self.query,attention.self.key,attention.self.value,attention.output.dense l D D",
    "attention.output.LayerNorm,output.LayerNorm l D",
    "intermediate.dense l W D",
    "output.dense l D W",
)
VIT = block(
    "attention.attention.query,attention.attention.key,attention.attention.value,attention.output.dense l D D",
    "intermediate.dense l W D",
    "output.dense l D W",
    "layernorm_before,layernorm_after l D",
)
ALBERT = block(
    "attention.query,attention.key,attention.value,attention.dense l D D",
    "attention.LayerNorm,full_layer_layer_norm l D",
    "ffn l W D",
    "ffn_output l D W",
)
DISTILBERT = block(
    "attention.q_lin,attention.k_lin,attention.v_lin,attention.out_lin l D D",
    "sa_layer_norm,output_layer_norm l D",
    "ffn.lin1 l W D",
    "ffn.lin2 l D W",
)
GPT2 = block("attn.c_attn c D 3", "attn.c_proj c D D", "mlp.c_fc c D W", "mlp.c_proj c W D", "ln_1,ln_2 l D")
LLAMA = block(
    "self_attn.q_proj,self_attn.o_proj w D D",
    "self_attn.k_proj,self_attn.v_proj w G D",
    "mlp.gate_proj,mlp.up_proj w W D",
    "mlp.down_proj w D W",
    "input_layernorm,post_attention_layernorm w D",
)
QWEN3 = LLAMA | block("self_attn.q_norm,self_attn.k_norm w H")
META = block(
    "attention.wq,attention.wo w D D",
    "attention.wk,attention.wv w G D",
    "feed_forward.w1,feed_forward.w3 w W D",
    "feed_forward.w2 w D W",
    "attention_norm,ffn_norm w D",
)
T5 = block(
    "layer.0.SelfAttention.q,layer.0.SelfAttention.k,layer.0.SelfAttention.v,layer.0.SelfAttention.o w D D",
    "layer.1.DenseReluDense.wi w W D",
    "layer.1.DenseReluDense.wo w D W",
    "layer.0.layer_norm,layer.1.layer_norm w D",
)
BART = block(
    "self_attn.q_proj,self_attn.k_proj,self_attn.v_proj,self_attn.out_proj l D D",
    "fc1 l W D",
    "fc2 l D W",
    "self_attn_layer_norm,final_layer_norm l D",
)
TORCH = block("self_attn.out_proj l D D", "linear1 l W D", "linear2 l D W", "norm1,norm2 l D")
TORCH |= {"self_attn.in_proj_weight": (3 * D, D), "self_attn.in_proj_bias": (3 * D,)}
TIMM = block("attn.qkv l 3 D", "attn.proj l D D", "mlp.fc1 l W D", "mlp.fc2 l D W", "norm1,norm2 l D")
ROPE = {"num_attention_heads": H, "num_key_value_heads": G, "rope_theta": 100.0}
BLOCKS = {  # where a block is, its names, where its attention is, and by which pattern
    "bert": ("bert.encoder.layer.1", BERT, "attention", "bert"),
    "roberta": ("roberta.encoder.layer.1", BERT, "attention", "bert"),
    "vit": ("vit.encoder.layer.1", VIT, "attention", "vit"),
    "deit": ("deit.encoder.layer.1", VIT, "attention", "vit"),
    "albert": ("albert.encoder.albert_layer_groups.0.albert_layers.1", ALBERT, "attention", "albert"),
    "distilbert": ("distilbert.transformer.layer.1", DISTILBERT, "attention", "distilbert"),
    "gpt2": ("transformer.h.1", GPT2, "attn", "gpt2"),
    "llama": ("model.layers.1", LLAMA, "self_attn", "llama"),
    "qwen3": ("model.layers.1", QWEN3, "self_attn", "llama"),
    "meta": ("layers.1", META, "attention", "meta"),
    "t5": ("encoder.block.1", T5, "layer.0.SelfAttention", "t5"),
    "bart": ("model.encoder.layers.1", BART, "self_attn", "bart"),
    "opt": ("model.decoder.layers.1", BART, "self_attn", "bart"),
    "torch": ("layers.1", TORCH, "self_attn", "torch"),
    "timm": ("blocks.1", TIMM, "attn", "fused"),
}
MODELS = pytest.mark.parametrize("model", BLOCKS)


def state_of(shapes, *starts):
    rng = np.random.default_rng(3)
    return {f"{start}.{name}": rng.standard_normal(shape) for start in starts for name, shape in shapes.items()}


def config_of(pattern):
    return ROPE if pattern in ("llama", "meta") else {"num_attention_heads": H}


@MODELS
@pytest.mark.parametrize("named", [False, True])
def test_the_attention_of_a_block_is_found_by_the_blocks_prefix(model, named):
    start, shapes, inner, pattern = BLOCKS[model]
    state = state_of(shapes, start, start.replace("1", "2"))
    options = {"config": config_of(pattern), "pattern": pattern if named else None}
    layer = weights.from_state_dict(state, start, **options)
    back = weights.to_state_dict(layer, pattern, f"{start}.{inner}")
    norm = {name for name in state if name.startswith(f"{start}.{inner}.") and "LayerNorm" in name}
    assert set(back) == {name for name in state if name.startswith(f"{start}.{inner}.")} - norm
    assert all(back[name].tobytes() == state[name].tobytes() for name in back)
    found = [layer.prefix for layer in weights.attention_layers(state)]
    assert found == [f"{start}.{inner}", f"{start.replace('1', '2')}.{inner}"]


@MODELS
def test_a_damaged_attention_of_a_block_is_named(model):
    """What else is in the block is not taken for it."""
    start, shapes, inner, pattern = BLOCKS[model]
    last = {"llama": "o_proj", "bart": "out_proj", "gpt2": "c_attn", "fused": "qkv"}.get(pattern)
    lost = next(name for name in shapes if name.startswith(f"{inner}.") and (last is None or last in name))
    state = state_of(shapes, start)
    del state[f"{start}.{lost}"]
    with pytest.raises(ValueError, match=f"{lost.replace('.', '[.]')}: expected an array") as caught:
        weights.from_state_dict(state, start, config=config_of(pattern), pattern=pattern)
    assert len(str(caught.value)) < 1500
    with pytest.raises(ValueError, match=f"pattern '{pattern}' at '{start}.{inner}'"):
        weights.from_state_dict(state, start, config=config_of(pattern))


TWO = {  # blocks with two attentions
    "torch decoder": (
        "layers.0",
        {**TORCH, **{name.replace("self", "multihead"): x for name, x in TORCH.items()}},
        ["layers.0.multihead_attn", "layers.0.self_attn"],
    ),
    "t5 decoder": (
        "decoder.block.0",
        T5
        | block(
            "layer.1.EncDecAttention.q,layer.1.EncDecAttention.k w D D",
            "layer.1.EncDecAttention.v,layer.1.EncDecAttention.o w D D",
        ),
        ["decoder.block.0.layer.0.SelfAttention", "decoder.block.0.layer.1.EncDecAttention"],
    ),
    "bart decoder": (
        "decoder.layers.0",
        BART | {name.replace("self", "encoder"): x for name, x in BART.items()},
        ["decoder.layers.0.encoder_attn", "decoder.layers.0.self_attn"],
    ),
    "bert decoder": (
        "layer.0",
        BERT
        | {
            name.replace("attention.", "crossattention."): x
            for name, x in BERT.items()
            if name.startswith("attention.")
        },
        ["layer.0.attention", "layer.0.crossattention"],
    ),
}


@pytest.mark.parametrize("model", TWO)
def test_a_block_of_two_attentions_names_both(model):
    start, shapes, both = TWO[model]
    with pytest.raises(ValueError, match=f"that of 2: {', '.join(both)}; name one of them$"):
        weights.from_state_dict(state_of(shapes, start), start, n_heads=H)
    for inner in both:
        assert weights.from_state_dict(state_of(shapes, start), inner, n_heads=H).d_model == D


def test_a_part_of_a_layer_does_not_hide_the_whole_one_below():
    part = {"q_proj.weight": (D, D), "k_proj.weight": (D, D)}
    state = state_of(part, "a") | state_of(BART, "a.b")
    layer = weights.from_state_dict(state, "a", n_heads=H)
    assert np.shares_memory(layer.w_q, state["a.b.self_attn.q_proj.weight"])
    with pytest.raises(ValueError, match=r"a\.v_proj\.weight: expected an array"):
        weights.from_state_dict(state_of(part, "a"), "a", n_heads=H, pattern="bart")


def test_heads_of_two_sides_that_differ_are_not_guessed():
    config = {"encoder_attention_heads": H, "decoder_attention_heads": G}
    state = state_of(BART, "model.encoder.layers.0")
    with pytest.raises(ValueError, match="n_heads: expected the number of heads"):
        weights.from_state_dict(state, config=config)
    assert weights.from_state_dict(state, config=config | {"decoder_attention_heads": H}).n_heads == H
    (found,) = weights.attention_layers(state, config)
    assert found.n_heads is None


# ------------------------------------------------------------------------------------------- models near a pattern
def test_pytorchs_module_of_separate_weights_is_not_taken_for_barts():
    shapes = block("attn.out_proj l D D") | {f"attn.{key}_proj_weight": (D, D) for key in "qkv"}
    state = state_of(shapes | {"attn.in_proj_bias": (3 * D,)}, "x")
    (found,) = weights.attention_layers(state)
    assert found.pattern == "torch"
    assert weights.from_state_dict(state, "x", n_heads=H).d_model == D


def test_what_bart_and_llama_share_goes_to_the_one_whose_output_is_there():
    kinds = {"bart": BART, "llama": LLAMA}
    for pattern, shapes in kinds.items():
        assert [found.pattern for found in weights.attention_layers(state_of(shapes, "a"))] == [pattern]


NEAR = {  # models of other names, and what of them must be shown
    "gpt_neox": (
        block("attention.query_key_value l 3 D", "attention.dense l D D", "mlp.dense_h_to_4h l W D"),
        "'query_key_value.weight' (36, 12), 'dense.weight' (12, 12)",
    ),
    "bloom": (
        block("self_attention.query_key_value l 3 D", "self_attention.dense l D D", "mlp.dense_h_to_4h l W D"),
        "'query_key_value.weight' (36, 12), 'dense.weight' (12, 12)",
    ),
    "other": (block("ln l D", "att.a,att.b,att.c,att.d l D D"), "'att.a.weight' (12, 12), 'att.a.bias' (12,)"),
}


@pytest.mark.parametrize("model", NEAR)
def test_a_model_of_other_names_is_to_be_described(model):
    shapes, seen = NEAR[model]
    state = state_of(shapes, "h.0")
    for config in ({"model_type": model, "num_attention_heads": H}, None):
        with pytest.raises(ValueError, match="describe another model by pattern=") as caught:
            weights.from_state_dict(state, "h.0", config=config, n_heads=H)
        text = str(caught.value)
        assert all(part in text for part in seen.split(", '"))
        fused = "{'w_qkv': 'query_key_value.weight', 'w_o': 'dense.weight', 'b_qkv': 'query_key_value.bias', "
        fused += "'b_o': 'dense.bias', 'fused': 'heads'}"
        names = "{'w_q': its name after the prefix, ...}" if model == "other" else fused
        assert f"; describe another model by pattern={names}" in text
        assert "_replace" not in text
        assert len(text) < 1000


def test_another_name_of_one_weight_is_a_model_to_describe():
    """Phi's output is called dense."""
    state = {name.replace("o_proj", "dense"): x for name, x in state_of(LLAMA, "layers.0").items()}
    with pytest.raises(ValueError, match="2 things do not fit") as caught:
        weights.from_state_dict(state, "layers.0", config=ROPE)
    missing, extra = str(caught.value).split("\n  ")[1:]
    assert missing == "layers.0.self_attn.o_proj.weight: expected an array (12, 12), got none of that name"
    assert "dense.weight: expected no array of that name, got one; describe another model by pattern={'w_q'" in extra
    own = {
        f"w_{key}": f"{name}.weight" for key, name in zip("qkvo", ("q_proj", "k_proj", "v_proj", "dense"), strict=True)
    }
    assert weights.from_state_dict(state, "layers.0", config=ROPE, pattern=own | {"rope": "half"}).n_heads == H


def test_of_a_whole_model_names_of_attention_are_shown_and_few():
    state = state_of(block("ln,fc l D"), *(f"{i}.mlp" for i in range(30))) | state_of(NEAR["other"][0], "z")
    with pytest.raises(ValueError, match="describe another") as caught:
        weights.from_state_dict(state, n_heads=H)
    shown = str(caught.value).partition(", got ")[2]
    assert shown.startswith("'z.att.a.weight' (12, 12), 'z.att.a.bias' (12,), ")
    assert shown.partition(";")[0].endswith(f" and {len(state) - 8} more")
    assert shown.count("(12,") == 8


def test_only_shapes_are_asked_of_what_is_shown():
    class Lazy(dict):
        def __getitem__(self, name):
            raise AssertionError("read")

        def tensor(self, name):
            return dict.__getitem__(self, name)

    with pytest.raises(ValueError, match=r"'h\.att\.a\.weight' \(12, 12\)"):
        weights.from_state_dict(Lazy(state_of(NEAR["other"][0], "h")), n_heads=H)
    with pytest.raises(ValueError, match=r"got 'x'; describe"):
        weights.from_state_dict({"x": 3}, n_heads=H)


# --------------------------------------------------------------------------------------- q, k and v of each head
FUSED = {"w_qkv": "query_key_value.weight", "b_qkv": "query_key_value.bias", "w_o": "dense.weight", "b_o": "dense.bias"}
X = np.random.default_rng(5).standard_normal((7, D))


def neox():
    return state_of(block("query_key_value l 3 D", "dense l D D"), "attention")


def as_neox(state, x):
    """Its own steps: one product, viewed as (n, H, 3 d_head), and cut in three."""
    fused = x @ state["attention.query_key_value.weight"].T + state["attention.query_key_value.bias"]
    q, k, v = np.split(fused.reshape(len(x), H, -1), 3, axis=-1)  # (n, H, d) each
    scores = np.einsum("ihd,jhd->hij", q, k) / np.sqrt(D // H)
    p = np.exp(scores - scores.max(axis=-1, keepdims=True))
    out = np.einsum("hij,jhd->ihd", p / p.sum(axis=-1, keepdims=True), v).reshape(len(x), D)
    return out @ state["attention.dense.weight"].T + state["attention.dense.bias"]


@pytest.mark.parametrize("layout", ["linear", "conv1d"])
def test_queries_keys_and_values_of_each_head_beside_each_other(layout):
    state = neox()
    stored = {name: x.T if x.ndim == 2 and layout == "conv1d" else x for name, x in state.items()}
    own = FUSED | {"layout": layout, "fused": "heads"}
    layer = weights.from_state_dict(stored, "attention", n_heads=H, pattern=own)
    np.testing.assert_allclose(layer(X), as_neox(state, X), rtol=1e-12, atol=1e-12)
    blocks = weights.from_state_dict(stored, "attention", n_heads=H, pattern=FUSED | {"layout": layout})
    assert np.abs(blocks(X) - layer(X)).max() > 1e-3  # silent, which is why it must be said


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16])
@pytest.mark.parametrize("layout", ["linear", "conv1d"])
@pytest.mark.parametrize("fused", ["heads", "blocks"])
def test_either_order_there_and_back_is_equal_to_the_bit(fused, layout, dtype):
    own = FUSED | {"layout": layout, "fused": fused}
    state = {name: x.astype(dtype) for name, x in neox().items()}
    state = {name: x.T if x.ndim == 2 and layout == "conv1d" else x for name, x in state.items()}
    layer = weights.from_state_dict(state, "attention", n_heads=H, pattern=own)
    back = weights.to_state_dict(layer, own, "attention")
    assert set(back) == set(state)
    assert all(
        (back[name].dtype, back[name].shape, back[name].tobytes()) == (x.dtype, x.shape, x.tobytes())
        for name, x in state.items()
    )


def test_the_order_of_heads_is_one_of_two_and_not_of_grouped_heads():
    with pytest.raises(ValueError, match="pattern: expected a fused of blocks, heads, groups, got 'rows'"):
        weights.from_state_dict(neox(), n_heads=H, pattern=FUSED | {"fused": "rows"})
    separate = {f"w_{key}": key for key in "qkvo"} | {"fused": "heads"}
    with pytest.raises(
        ValueError, match="pattern: expected a name for w_qkv, which fused='heads' is said of, got none"
    ):
        weights.from_state_dict(neox(), n_heads=H, pattern=separate)
    grouped = state_of({"query_key_value.weight": (D + 2 * G * D // H, D), "dense.weight": (D, D)}, "a")
    own = {"w_qkv": "query_key_value.weight", "w_o": "dense.weight", "fused": "heads"}
    with pytest.raises(ValueError, match=f"n_kv_heads: expected {H} = n_heads, where q, k and v .*, got {G}"):
        weights.from_state_dict(grouped, "a", n_heads=H, pattern=own)
    layer = weights.from_state_dict(grouped, "a", n_heads=H, pattern=own | {"fused": "blocks"})
    assert layer.n_kv_heads == G
    with pytest.raises(
        ValueError, match=f"n_kv_heads: expected {H} = n_heads, as the pattern's models have no grouped"
    ):
        weights.to_state_dict(layer, own)


@pytest.mark.parametrize("model", ["bloom", "gpt_neox"])
def test_a_model_of_that_order_is_refused_in_the_other(model):
    plain, config = transforms.compose(), {"model_type": model, "num_attention_heads": H}
    expected = r"config\['model_type'\]: expected one whose w_qkv holds all heads' queries, .*; 'fused': 'heads' in the"
    with pytest.raises(ValueError, match=expected):
        weights.from_state_dict(neox(), "attention", config=config, pattern=FUSED, transform=plain)
    own = FUSED | {"fused": "heads"}
    layer = weights.from_state_dict(neox(), "attention", config=config, pattern=own, transform=plain)
    np.testing.assert_allclose(layer(X), as_neox(neox(), X), rtol=1e-12, atol=1e-12)
