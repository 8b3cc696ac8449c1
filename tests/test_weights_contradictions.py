"""Configurations that contradict themselves or a layer's arrays, and numbers of scores that no layer goes by."""

import ml_dtypes
import numpy as np
import pytest
from checkpoints import ROWS, read
from states import AT, CONFIGS, D, H, drawn, modules, state_of

from headwise import transforms, weights

WIDE, HEADS, TOKENS = 6, 4, 24  # a model of 4 heads of 6
LLAMA = CONFIGS["llama"]
PLAIN = transforms.compose()


def lines_of(state, prefix="", **options):
    with pytest.raises(ValueError, match="not fit") as caught:
        weights.from_state_dict(state, prefix, **options)
    return str(caught.value).split("\n  ")[1:]


# --------------------------------------------------------------------------------------------------- width of a head
def part_of(kind, heads):
    """Some heads of a layer, as tensor parallel parts and pruned models have them."""
    names = {"meta": ("wq", "wk", "wv", "wo"), "llama": ("q_proj", "k_proj", "v_proj", "o_proj")}
    bert = ("self.query", "self.key", "self.value", "output.dense")
    whole = [(heads * WIDE, TOKENS)] * 3 + [(TOKENS, heads * WIDE)]
    return drawn(7, modules("a.", names.get(kind, bert), whole, kind == "bert"))


SAID = [
    ("meta", {"dim": TOKENS, "n_heads": HEADS, "n_kv_heads": HEADS, "rope_theta": 10.0}, "dim", "n_heads"),
    (
        "llama",
        {"hidden_size": TOKENS, "num_attention_heads": HEADS, "rope_theta": 1.0},
        "hidden_size",
        "num_attention_heads",
    ),
    ("bert", {"hidden_size": TOKENS, "num_attention_heads": HEADS}, "hidden_size", "num_attention_heads"),
    ("bert", {"d_model": TOKENS, "n_head": HEADS}, "d_model", "n_head"),
    ("bert", {"n_embd": TOKENS, "num_heads": HEADS}, "n_embd", "num_heads"),
]


@pytest.mark.parametrize(("kind", "config", "width", "heads"), SAID)
def test_a_part_of_the_heads_is_not_all_of_them_narrower(kind, config, width, heads):
    some = part_of(kind, 2)
    lines = [line for line in lines_of(some, "a", config=config) if line.startswith("d_q")]
    expected = (
        f"d_q, the width of all heads: expected {TOKENS}, as config['{width}'] and config['{heads}'] mean, got 12; "
        "one part of a model, or pruned heads: pass n_heads= (and n_kv_heads=) of this layer; heads of another width: "
        "add config['head_dim']"
    )
    assert lines == [expected]
    layer = weights.from_state_dict(some, "a", config=config, n_heads=2, n_kv_heads=2)
    assert (layer.n_heads, layer.d_head) == (2, WIDE)
    assert weights.from_state_dict(part_of(kind, HEADS), "a", config=config).d_head == WIDE


def test_a_width_of_heads_that_is_said_is_not_made_of_others():
    wide = {"hidden_size": D, "num_attention_heads": H, "rope_theta": 100.0}  # 6 heads of 4 before 12: as Mistral Nemo
    state = state_of("llama")
    assert weights.from_state_dict(state, config=wide | {"head_dim": 4}).d_head == 4
    (line,) = lines_of(state, config=wide)
    assert line.startswith("d_q, the width of all heads: expected 12, as config['hidden_size'] and config['num_att")
    assert weights.from_state_dict(state, config=wide | {"kv_channels": 4}).d_head == 4
    (line,) = lines_of(state, config=wide | {"kv_channels": 2})
    assert line.startswith("d_q, the width of all heads: expected 12, as config['kv_channels'] and config['num_att")
    norms = weights.from_state_dict(state_of("qwen3"), config=CONFIGS["qwen3"] | wide)
    assert norms.d_head == 4


def test_a_model_whose_heads_were_pruned():
    config = {"model_type": "bert", "hidden_size": TOKENS, "num_attention_heads": HEADS, "pruned_heads": {"0": [1, 3]}}
    (line,) = lines_of(part_of("bert", 2), "a", config=config)
    assert line.startswith(
        "config['pruned_heads']: expected none, as their number differs by layer, got {'0': [1, 3]};"
    )
    layer = weights.from_state_dict(part_of("bert", 2), "a", config=config, n_heads=2)
    assert layer.d_head == WIDE
    for none in ({}, None, {"0": []}):
        assert (
            weights.from_state_dict(part_of("bert", HEADS), "a", config=config | {"pruned_heads": none}).d_head == WIDE
        )


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_no_configuration_of_other_libraries_contradicts_itself(row):
    fixture = read(row.name)
    assert weights.from_state_dict(fixture.state, fixture.prefix, config=fixture.config).n_heads == fixture.n_heads


REAL = [  # numbers of models as they are published: (out, in) of q, k, v, and what their config.json says
    ("llama", (4096, 1024, 4096), {"model_type": "llama", "hidden_size": 4096, "num_attention_heads": 32}),
    (
        "llama",
        (2048, 512, 2048),
        {"model_type": "llama", "hidden_size": 2048, "num_attention_heads": 32, "head_dim": 64},
    ),
    (
        "llama",
        (4096, 1024, 5120),
        {"model_type": "mistral", "hidden_size": 5120, "num_attention_heads": 32, "head_dim": 128},
    ),
    ("llama", (2048, 1024, 1024), {"hidden_size": 1024, "num_attention_heads": 16, "head_dim": 128}),  # Qwen3 0.6B's
    ("meta", (8192, 1024, 8192), {"dim": 8192, "n_heads": 64, "n_kv_heads": 8, "ffn_dim_multiplier": 1.3}),
    (
        "bert",
        (768, 768, 768),
        {"model_type": "roberta", "hidden_size": 768, "num_attention_heads": 12, "pruned_heads": {}},
    ),
    ("t5", (384, 384, 512), {"model_type": "mt5", "d_model": 512, "num_heads": 6, "d_kv": 64}),
    ("t5", (4096, 4096, 1024), {"model_type": "t5", "d_model": 1024, "num_heads": 32, "d_kv": 128}),
]


@pytest.mark.parametrize(("kind", "sizes", "config"), REAL)
def test_ordinary_models_are_read(kind, sizes, config):
    d_q, d_kv, d_model = sizes
    pattern, shapes = weights.PATTERNS[kind], [(d_q, d_model), (d_kv, d_model), (d_kv, d_model), (d_model, d_q)]
    state = {}
    for letter, shape in zip("qkvo", shapes, strict=True):
        state[pattern.names[f"w_{letter}"]] = np.broadcast_to(np.float32(0), shape)
        if kind == "bert":
            state[pattern.names[f"b_{letter}"]] = np.broadcast_to(np.float32(0), shape[:1])
    config = config | ({"rope_theta": 1e6} if pattern.rope else {})
    layer = weights.from_state_dict(state, config=config, pattern=kind)
    assert layer.d_head in (64, 128)
    assert layer.n_heads * layer.d_head == d_q


def test_gemma_by_a_description():
    own = {f"w_{key}": f"{key}_proj.weight" for key in "qkvo"}
    shapes = {"q": (4096, 3072), "k": (4096, 3072), "v": (4096, 3072), "o": (3072, 4096)}
    state = {f"{key}_proj.weight": np.broadcast_to(np.float32(0), shape) for key, shape in shapes.items()}
    config = {"model_type": "gemma", "hidden_size": 3072, "num_attention_heads": 16, "head_dim": 256}
    rope = transforms.rotary(style="half", base=10_000.0)
    assert weights.from_state_dict(state, config=config, pattern=own, transform=rope).d_head == 256


# ----------------------------------------------------------------------------------------------- one number, two keys
@pytest.mark.parametrize(
    ("more", "named"),
    [
        ({"n_head": 4}, "config['n_head']: expected 6, as config['num_attention_heads'] says, got 4"),
        ({"encoder_attention_heads": 2, "decoder_attention_heads": 2}, "config['encoder_attention_heads']: expected 6"),
        ({"encoder_attention_heads": 2}, "config['encoder_attention_heads']: expected 6, as config['num_attention_he"),
        ({"n_kv_heads": 3}, "config['n_kv_heads']: expected 2, as config['num_key_value_heads'] says, got 3"),
        (
            {"hidden_size": D, "dim": 8, "head_dim": 4},
            "config['dim']: expected 12, as config['hidden_size'] says, got 8",
        ),
        ({"head_dim": 4, "d_kv": 8}, "config['d_kv']: expected 4, as config['head_dim'] says, got 8"),
        (
            {"rms_norm_eps": 1e-6, "norm_eps": 1e-5},
            "config['norm_eps']: expected 1e-06, as config['rms_norm_eps'] says",
        ),
        (
            {"rope_parameters": {"rope_theta": 5.0, "rope_type": "default"}},
            "config['rope_parameters']['rope_theta']: expected 100.0, as config['rope_theta'] says, got 5.0",
        ),
        (
            {"partial_rotary_factor": 1.0, "rope_parameters": {"partial_rotary_factor": 0.5}},
            "config['rope_parameters']['partial_rotary_factor']: expected 1.0, as config['partial_rotary_factor'] says",
        ),
        (
            {"rope_scaling": {"type": "linear", "factor": 4.0}, "rope_parameters": {"rope_type": "default"}},
            "config['rope_parameters']['rope_type']: expected 'linear', as config['rope_scaling']['type'] says, got ",
        ),
        (
            {
                "rope_scaling": {"type": "linear", "factor": 4.0},
                "rope_parameters": {"rope_type": "linear", "factor": 2.0},
            },
            "config['rope_parameters']['factor']: expected 4.0, as config['rope_scaling']['factor'] says, got 2.0",
        ),
        (
            {"rope_scaling": {"rope_type": "default", "type": "linear", "factor": 4.0}},
            "config['rope_scaling']['type']: expected 'default', as config['rope_scaling']['rope_type'] says, got 'lin",
        ),
        (
            {"use_scaled_rope": True, "rope_scaling": {"type": "linear", "factor": 4.0}},
            "config['rope_scaling']['type']: expected 'llama3', as config['use_scaled_rope'] says, got 'linear'",
        ),
        ({"rope_scaling": {"factor": 4.0}}, "config['rope_scaling']: expected a type, which says what its factor does"),
        (
            {"rope_scaling": {"type": "default", "factor": 4.0}},
            "config['rope_scaling']['factor']: expected no factor, as the rope of type 'default' is not stretched, got",
        ),
        (
            {"use_rope": False},
            "config['use_rope']: expected rope, as the pattern's models have it, got False; pass tran",
        ),
        (
            {"position_embedding_type": "absolute"},
            "config['position_embedding_type']: expected rope, as the pattern's m",
        ),
        (
            {"attn_config": {"rope": False}},
            "config['attn_config']['rope']: expected rope, as the pattern's models have it, got F",
        ),
    ],
)
def test_what_is_said_twice_or_half_is_named(more, named):
    lines = lines_of(state_of("llama"), config=LLAMA | more)
    assert any(line.startswith(named) for line in lines), lines


@pytest.mark.parametrize(
    "more",
    [
        {"n_head": 6, "hidden_size": D, "d_model": D, "head_dim": 4, "d_kv": 4},
        {"rope_parameters": {"rope_theta": 100, "rope_type": "default", "factor": 1.0}},
        {"rope_scaling": {"type": "linear", "rope_type": "linear", "factor": 4.0}, "rope_parameters": {"factor": 4}},
        {"rope_scaling": {}, "rope_parameters": None, "use_rope": None},
    ],
)
def test_what_is_said_twice_alike_is_read(more):
    assert weights.from_state_dict(state_of("llama"), config=LLAMA | more).n_heads == H


def test_what_arguments_say_in_its_place_is_not_looked_at():
    config = LLAMA | {"n_head": 4, "n_kv_heads": 3, "use_rope": False, "rope_scaling": {"factor": 2.0}}
    layer = weights.from_state_dict(state_of("llama"), config=config, n_heads=H, n_kv_heads=2, transform=PLAIN)
    assert layer.n_heads == H


def test_stacks_of_their_own_numbers_leave_the_heads_open():
    config = {"model_type": "bart", "encoder_attention_heads": 2, "decoder_attention_heads": 4}
    (line,) = lines_of(state_of("bart"), config=config)
    assert line.startswith("n_heads: expected the number of heads, which no shape says, got None")
    assert weights.from_state_dict(state_of("bart"), config=config, n_heads=H).n_heads == H


# ------------------------------------------------------------------------------------------------------------- scores
@pytest.mark.parametrize(
    "more",
    [
        {"softmax_scale": 0.5},
        {"attention_scale": 0.5},
        {"attn_scale": 2.0},
        {"qk_scale": 0.25},
        {"query_scale": 3},
        {"scale_attention": True},
        {"key_multiplier": 0.5},
        {"attn_logit_softcap": 30.0},
        {"attn_temperature_tuning": True},
        {"mup_attn": True},
        {"use_logn_attn": True},
        {"attn_config": {"softmax_scale": 0.3}},
        {"attn_config": {"clip_qkv": 8.0}},
        {"attn_config": {"qk_scale": 8.0}},
    ],
)
@pytest.mark.parametrize("kind", ["llama", "gpt2", "bert"])
def test_a_key_that_changes_scores_is_named(kind, more):
    ((key, value),) = more.items()
    if isinstance(value, dict):
        ((inner, value),) = value.items()
        key = inner if inner in ("softmax_scale", "clip_qkv") else f"{key}']['{inner}"
    (line,) = lines_of(state_of(kind), config=CONFIGS.get(kind, {"num_attention_heads": H}) | more)
    assert line.startswith(f"config['{key}']: expected None or nothing, got {value}; ")


@pytest.mark.parametrize(
    "more",
    [
        {"softmax_scale": None, "qk_scale": None, "scale_attention": False, "attn_temperature_tuning": False},
        {"attn_config": {"softmax_scale": None, "clip_qkv": None, "attn_type": "multihead_attention"}},
        {"key_multiplier": 1.0, "attention_in_multiplier": 1},
        {"scale_attention_softmax_in_fp32": True, "attention_softmax_in_fp32": True},
        {"apply_query_key_layer_scaling": True, "scale_attn_weights": True, "attn_implementation": "eager"},
        {"logits_scaling": 8.0, "embedding_multiplier": 12.0, "final_logit_softcapping": 30.0, "attn_pdrop": 0.1},
        {"layer_scale_init_value": 0.1, "attention_probs_dropout_prob": 0.1, "scale_embedding": True},
    ],
)
def test_keys_that_change_no_scores_are_passed_over(more):
    assert weights.from_state_dict(state_of("bert"), config={"num_attention_heads": H} | more).scale is None


# ------------------------------------------------------------------------------------------------------ grouped heads
TORCH = drawn(2, {"in_proj_weight": (16, 8), "out_proj.weight": (8, 8)})


def test_models_without_grouped_heads_have_none_on_the_way_in():
    (line,) = lines_of(TORCH, n_heads=2)
    expected = (
        "n_kv_heads: expected 2 = n_heads, as the pattern's models have no grouped heads, got 1; a model that has "
    )
    assert line.startswith(expected.removesuffix("a model that has "))
    assert line.endswith("; a model that has them: pattern=PATTERNS['torch']._replace(grouped=True)")
    own = weights.PATTERNS["torch"]._replace(grouped=True)
    layer = weights.from_state_dict(TORCH, n_heads=2, pattern=own)
    assert set(weights.to_state_dict(layer, own)) == set(TORCH)
    own = weights.PATTERNS["bart"]._replace(optional=(("b_q", "b_k", "b_v", "b_o"),))
    shapes = modules("a.", ("q_proj", "k_proj", "v_proj", "out_proj"), [(8, 8), (4, 8), (4, 8), (8, 8)])
    (line,) = lines_of(drawn(2, shapes), "a", n_heads=2, pattern=own)
    assert line.endswith("got 1; a model that has them: grouped=True in your pattern")


def test_layers_that_a_pattern_cannot_mean_are_not_listed():
    assert weights.attention_layers(TORCH, {"num_heads": 2}) == []
    own = weights.PATTERNS["torch"]._replace(grouped=True)
    (found,) = weights.attention_layers(TORCH, {"num_heads": 2}, pattern=own)
    assert (found.n_heads, found.n_kv_heads) == (2, 1)


def test_an_order_of_ungrouped_heads_is_not_listed_with_grouped_ones():
    own = {"w_qkv": "W", "w_o": "O"}
    shapes = {"a.W": ((16, 8), None), "a.O": ((8, 8), None)}
    for fused, count in (("heads", 0), ("blocks", 1), ("groups", 1)):
        assert len(weights.attention_layers(shapes, {"n_head": 2}, pattern=own | {"fused": fused})) == count


def test_cross_attention_of_gpt2_is_no_grouped_layer():
    shapes = {"c_attn.weight": (8, 16), "c_attn.bias": (16,), "q_attn.weight": (8, 8), "q_attn.bias": (8,)}
    shapes |= {"c_proj.weight": (8, 8), "c_proj.bias": (8,)}
    state = drawn(4, {f"h.0.crossattention.{name}": shape for name, shape in shapes.items()})
    assert weights.attention_layers(state, {"n_head": 2}) == []
    lines = lines_of(state, "h.0.crossattention", n_heads=2)
    assert any("q_attn" in line for line in lines), lines
    bare = {name: x for name, x in state.items() if "q_attn" not in name}
    lines = lines_of(bare, "h.0.crossattention", n_heads=2)
    (line,) = lines
    assert line.startswith(
        "n_kv_heads: expected 2 = n_heads, as the pattern's models have no grouped heads, got 1; an arr"
    )
    k, v = np.split(state["h.0.crossattention.c_attn.weight"], 2, axis=1)
    parts = {"q": state["h.0.crossattention.q_attn.weight"], "k": k, "v": v, "o": k}
    own = {f"w_{key}": key for key in "qkvo"} | {"layout": "conv1d"}
    assert weights.from_state_dict(parts, n_heads=2, pattern=own).n_kv_heads == 2


# ------------------------------------------------------------------------------------------- what was found, and types
def test_what_was_found_by_a_pattern_of_the_callers_is_made_by_it():
    own = {"w_q": "q", "w_k": "k", "w_v": "v", "w_o": "o", "layout": "conv1d"}
    state = drawn(5, {f"{at}.{name}": (8, 8) for at in "ab" for name in "qkvo"})
    for pattern in (own, weights.PATTERNS["t5"]._replace(names={key: own[key] for key in list(own)[:4]})):
        layers = weights.attention_layers(state, {"n_head": 2}, pattern=pattern)
        assert [layer.prefix for layer in layers] == ["a", "b"]
        for found in layers:
            layer = weights.from_state_dict(state, found, n_heads=2)
            expected = weights.from_state_dict(state, found.prefix, n_heads=2, pattern=pattern)
            np.testing.assert_array_equal(layer.w_q, expected.w_q)
            assert layer.scale == expected.scale
    (found,) = weights.attention_layers(state_of("bert"), {"num_heads": H})
    assert found.described is None
    assert weights.from_state_dict(state_of("bert"), found, n_heads=H).n_heads == H


@pytest.mark.parametrize("other", [np.float32, ml_dtypes.bfloat16])
@pytest.mark.parametrize("pattern", ["gpt2", "fused", "torch"])
def test_arrays_of_several_types_do_not_become_one(pattern, other):
    state = drawn(6, modules("l.", ("q_proj", "k_proj", "v_proj", "out_proj"), [(8, 8)] * 4), np.float16)
    state["l.k_proj.weight"] = state["l.k_proj.weight"].astype(other)
    layer = weights.from_state_dict(state, "l", n_heads=2)
    expected = (
        rf"1 thing does not fit\n  w_qkv: expected w_q, w_k, w_v of one type, .* w_k of {np.dtype(other)}, w_v of f"
    )
    with pytest.raises(ValueError, match=expected):
        weights.to_state_dict(layer, pattern)
    back = weights.to_state_dict(layer, "bart", "l")
    assert all((back[name].dtype, back[name].tobytes()) == (x.dtype, x.tobytes()) for name, x in state.items())


def test_biases_of_another_type_than_weights_stay_what_they_are():
    state = drawn(6, {"c_attn.weight": (8, 24), "c_proj.weight": (8, 8)}, np.float16)
    state |= drawn(7, {"c_attn.bias": (24,), "c_proj.bias": (8,)}, np.float32)
    back = weights.to_state_dict(weights.from_state_dict(state, n_heads=2), "gpt2")
    assert all((back[name].dtype, back[name].tobytes()) == (x.dtype, x.tobytes()) for name, x in state.items())


def test_a_key_of_zeros_has_the_type_of_the_learned_one():
    state = drawn(8, {"in_proj_weight": (24, 8), "out_proj.weight": (8, 8)}, np.float16)
    state |= {name: np.ones((1, 1, 8), ml_dtypes.bfloat16) for name in ("bias_k", "bias_v")}
    layer = weights.from_state_dict(state, n_heads=2, add_zero_attn=True)
    back = weights.to_state_dict(layer, "torch", add_zero_attn=True)
    assert all((back[name].dtype, back[name].tobytes()) == (x.dtype, x.tobytes()) for name, x in state.items())


def test_every_contradiction_is_in_one_error():
    config = LLAMA | {"n_head": 4, "softmax_scale": 0.5, "use_rope": False, "attention_bias": True, "hidden_size": 12}
    assert len(lines_of(state_of("llama"), AT["llama"], config=config)) == 5


ODD = [None, "", "x", "\x1b[31m", 0, -1, 10**400, float("nan"), True, [], [1], {}, {"a": [1]}, {3: None}]
KEYS = ["pruned_heads", "kv_channels", "num_attention_heads", "n_head", "hidden_size", "dim", "head_dim", "d_kv"]
KEYS += ["encoder_attention_heads", "n_kv_heads", "rope_theta", "rope_scaling", "rope_parameters", "use_scaled_rope"]
KEYS += ["use_rope", "position_embedding_type", "attn_config", "softmax_scale", "key_multiplier", "attn_temperature"]
KEYS += [
    "multi_query",
    "new_decoder_architecture",
    "attention_bias",
    "qk_norm",
    "norm_eps",
    "model_type",
    "rope\x1b[31m",
]


def said_of(kind, config):
    """What the error says, or nothing where there is none."""
    try:
        weights.from_state_dict(state_of(kind), config=config)
    except (TypeError, ValueError) as error:
        return str(error)
    return ""


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
@pytest.mark.parametrize("key", KEYS)
def test_values_of_any_kind_are_read_or_refused_on_lines_that_harm_no_terminal(kind, key):
    parts = [dict.fromkeys(("type", "factor", "softmax_scale", "clip_qkv"), odd) for odd in ODD]
    for value in (*ODD, *parts):
        said = said_of(kind, CONFIGS[kind] | {key: value})
        assert said.startswith("from_state_dict: ") or not said, value
        assert said.replace("\n  ", "").isprintable(), value
