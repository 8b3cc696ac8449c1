"""Weights of models: each pattern's numbers against formulas written out in states.py, and round trips to the bit."""

import numpy as np
import pytest
from states import AT, CONFIGS, GROUPED, KINDS, SHAPES, WIDE, D, G, H, by_hand, pattern_of, state_of, torch_by_hand

import headwise as hw
from headwise import frequencies, transforms, weights

X = np.random.default_rng(5).standard_normal((7, D))
MEMORY = np.random.default_rng(6).standard_normal((5, D))
SELF = [kind for kind in KINDS if pattern_of(kind) != "torch" and kind != "t5cross"]
CAUSAL = ("gpt2", "llama", "qwen2", "qwen3", "meta")


def made(kind, state=None, **options):
    config = CONFIGS.get(kind)
    heads = {} if config else {"n_heads": H}
    return weights.from_state_dict(state or state_of(kind), AT[kind], config=config, **(heads | options))


@pytest.mark.parametrize("kind", SELF)
def test_a_layer_gives_what_the_model_gives(kind):
    out = made(kind)(X, causal=kind in CAUSAL)
    np.testing.assert_allclose(out, by_hand(kind, state_of(kind), X), rtol=1e-12, atol=1e-12)


def test_cross_attention_of_t5():
    state = state_of("t5cross")
    out = made("t5cross", state)(X, MEMORY)
    np.testing.assert_allclose(out, by_hand("t5cross", state, X, MEMORY), rtol=1e-12, atol=1e-12)


def test_cross_attention_of_bert_to_tokens_of_another_width():
    state = {name.replace(".attention.", ".crossattention."): x for name, x in state_of("bert").items()}
    for name in ("key", "value"):
        full = f"bert.encoder.layer.0.crossattention.self.{name}.weight"
        state[full] = np.concatenate([state[full], np.zeros((D, 8))], axis=1)
    (found,) = weights.attention_layers(state)
    assert found.prefix == "bert.encoder.layer.0.crossattention"
    memory = np.concatenate([MEMORY, np.ones((5, 8))], axis=1)  # of which only D columns count
    out = weights.from_state_dict(state, "bert.encoder.layer.0", n_heads=H)(X, memory)
    np.testing.assert_allclose(out, made("bert")(X, MEMORY), rtol=1e-12, atol=1e-12)


def test_the_bias_of_t5_is_given_in_each_call():
    state, bias = state_of("t5"), np.random.default_rng(1).standard_normal((H, 7, 7))
    table = {f"{AT['t5']}.relative_attention_bias.weight": np.zeros((32, H))}
    layer = weights.from_state_dict(state | table, AT["t5"])  # its columns say how many heads
    np.testing.assert_allclose(layer(X, bias=bias), by_hand("t5", state, X, bias=bias), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("kind", ["torch", "torch, no bias"])
def test_torch_in_one_piece(kind, zeros):
    state = state_of(kind)
    out = made(kind, state, add_zero_attn=zeros)(X, MEMORY)
    np.testing.assert_allclose(out, torch_by_hand(state, kind, X, MEMORY, MEMORY, zeros), rtol=1e-12, atol=1e-12)


def test_torch_with_keys_and_values_of_other_widths():
    kind, rng = "torch, other widths", np.random.default_rng(8)
    key, value = rng.standard_normal((5, 10)), rng.standard_normal((5, 7))
    out = made(kind)(X, key, value)
    np.testing.assert_allclose(out, torch_by_hand(state_of(kind), kind, X, key, value), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16])
@pytest.mark.parametrize("kind", KINDS)
def test_there_and_back_is_equal_to_the_bit(kind, dtype):
    state = state_of(kind, dtype)
    back = weights.to_state_dict(made(kind, state), pattern_of(kind), AT[kind])
    assert set(back) == set(state)
    for name, x in state.items():
        assert back[name].dtype == x.dtype
        assert back[name].shape == x.shape
        assert back[name].tobytes() == x.tobytes(), name


def test_there_and_back_with_a_key_of_zeros():
    for kind in ("torch", "torch, no bias"):
        state = state_of(kind)
        layer = made(kind, state, add_zero_attn=True)
        back = weights.to_state_dict(layer, "torch", AT[kind], add_zero_attn=True)
        assert {name: x.tobytes() for name, x in back.items()} == {name: x.tobytes() for name, x in state.items()}
        with pytest.raises(ValueError, match="bias_k"):
            weights.to_state_dict(layer, pattern_of("bert"), AT[kind])
    with pytest.raises(ValueError, match="bias_k: expected one learned row, got 2; add_zero_attn=True"):
        weights.to_state_dict(made("torch", add_zero_attn=True), "torch")


@pytest.mark.parametrize("kind", [kind for kind in KINDS if pattern_of(kind) != "gpt2"])
def test_weights_are_views_of_the_states_arrays(kind):
    state = state_of(kind)
    layer = made(kind, state)
    for name in ("w_q", "w_k", "w_v", "w_o", "b_q", "b_k", "b_v", "b_o"):
        x = getattr(layer, name)
        assert x is None or any(np.shares_memory(x, held) for held in state.values()), name


def test_a_memory_map_stays_one(tmp_path):
    state = state_of("llama")
    for name, x in state.items():
        np.save(tmp_path / f"{name}.npy", x)
    mapped = {name: np.load(tmp_path / f"{name}.npy", mmap_mode="r") for name in state}
    layer = made("llama", mapped)
    assert all(np.shares_memory(getattr(layer, f"w_{x}"), mapped[f"{AT['llama']}.{x}_proj.weight"]) for x in "qkvo")


def test_only_the_arrays_of_the_layer_are_read():
    read = []

    class Lazy(dict):
        def __getitem__(self, name):
            read.append(name)
            return super().__getitem__(name)

    state = Lazy(state_of("bert") | {"other.weight": np.zeros(3)})
    made("bert", state)
    assert sorted(read) == sorted(state_of("bert"))


# ------------------------------------------------------------------------------------------------ fused, either way
def test_fused_weights_tell_their_layout_by_their_shapes():
    state = state_of("fused")
    turned = {name: x.T if x.ndim == 2 else x for name, x in state.items()}  # as exported (D, 3 H d)
    assert turned[f"{AT['fused']}.qkv.weight"].shape == (D, 3 * H * WIDE)
    np.testing.assert_array_equal(made("fused", turned)(X), made("fused", state)(X))
    known = weights.PATTERNS["fused"]._replace(layout="conv1d")
    back = weights.to_state_dict(made("fused", turned), known, AT["fused"])
    assert {name: x.tobytes() for name, x in back.items()} == {name: x.tobytes() for name, x in turned.items()}


# ------------------------------------------------------------------------------------------------- heads and names
def test_numbers_of_heads_follow_from_what_is_known():
    rope = transforms.rotary(style="half")
    assert weights.from_state_dict(state_of("llama"), AT["llama"], n_heads=H, transform=rope).n_kv_heads == G
    qwen = weights.from_state_dict(state_of("qwen3"), AT["qwen3"], transform=rope)  # a norm is one head wide
    assert (qwen.n_heads, qwen.n_kv_heads, qwen.d_head) == (H, G, WIDE)


@pytest.mark.parametrize("kind", KINDS)
def test_the_prefix_may_be_that_of_everything_around_one_layer(kind):
    state = state_of(kind)
    for prefix in (AT[kind], f"{AT[kind]}.", AT[kind].rpartition(".")[0], ""):
        layer = weights.from_state_dict(state, prefix, config=CONFIGS.get(kind), n_heads=H)
        np.testing.assert_array_equal(layer.w_o, made(kind).w_o)


def test_names_beside_the_layer_are_left_alone():
    beside = {"bias": np.ones((1, 1, 9, 9)), "masked_bias": np.array(-1e4)}  # buffers of older GPT-2
    state = state_of("gpt2") | {f"{AT['gpt2']}.{name}": x for name, x in beside.items()}
    state |= {"h.0.mlp.c_fc.weight": np.zeros((D, D)), "h.0.ln_1.bias": np.zeros(D)}
    np.testing.assert_array_equal(made("gpt2", state)(X), made("gpt2")(X))
    state = state_of("llama") | {f"{AT['llama']}.rotary_emb.inv_freq": np.ones(2)}  # a buffer of older Llama
    np.testing.assert_array_equal(made("llama", state)(X), made("llama")(X))


def test_an_unknown_model_is_described_by_its_names():
    names = {"w_q": "attention.q_lin.weight", "w_k": "attention.k_lin.weight", "w_v": "attention.v_lin.weight"}
    names |= {"w_o": "attention.out_lin.weight", "b_o": "attention.out_lin.bias"}
    rng = np.random.default_rng(2)
    state = {f"layer.0.{name}": rng.standard_normal((D, D)[: 1 + (role[0] == "w")]) for role, name in names.items()}
    layer = weights.from_state_dict(state, "layer.0", n_heads=H, pattern=names)
    np.testing.assert_array_equal(layer.w_q, state["layer.0.attention.q_lin.weight"].T)
    np.testing.assert_array_equal(layer.b_o, state["layer.0.attention.out_lin.bias"])
    assert layer.b_q is None
    other = weights.from_state_dict(state, "layer.0", n_heads=H, pattern=names | {"layout": "conv1d"})
    np.testing.assert_array_equal(other.w_q, state["layer.0.attention.q_lin.weight"])
    assert list(weights.to_state_dict(layer, names, "layer.0")) == list(state)


# --------------------------------------------------------------------------------------------------------- config
ROPES = {
    "default": ({}, None, frequencies.plain(WIDE, base=100.0)),
    "linear": ({"type": "linear", "factor": 4.0}, None, frequencies.linear(WIDE, 4.0, base=100.0)),
    "llama3": (
        {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
        | {"original_max_position_embeddings": 64},
        None,
        frequencies.llama3(WIDE, 8.0, base=100.0, trained_length=64),
    ),
    "yarn": (
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32, "beta_fast": 16.0},
        None,
        frequencies.yarn(WIDE, 4.0, 32, base=100.0, fast=16.0),
    ),
    "yarn, of the longest": (
        {"rope_type": "yarn", "factor": 4.0, "attention_factor": 1.5},
        16,
        frequencies.yarn(WIDE, 4.0, 16, base=100.0, magnitude=1.5),
    ),
    "yarn, of two scales": (
        {"rope_type": "yarn", "factor": 4.0, "mscale": 1.0, "mscale_all_dim": 0.5},
        16,
        frequencies.yarn(WIDE, 4.0, 16, base=100.0, magnitude=(0.1 * np.log(4) + 1) / (0.05 * np.log(4) + 1)),
    ),
    "yarn, of a scale that is 0": (
        {"rope_type": "yarn", "factor": 4.0, "mscale": 0.707, "mscale_all_dim": 0},
        16,
        frequencies.yarn(WIDE, 4.0, 16, base=100.0),
    ),
    "yarn, of two lengths": (
        {"rope_type": "yarn", "original_max_position_embeddings": 16},
        64,
        frequencies.yarn(WIDE, 4.0, 16, base=100.0),
    ),
    "dynamic": (
        {"type": "dynamic", "factor": 2.0},
        4,
        frequencies.ntk(WIDE, 2.0, base=100.0, length=7, trained_length=4),
    ),
}


@pytest.mark.parametrize("kind", ROPES)
def test_rope_of_a_configuration(kind):
    scaling, longest, known = ROPES[kind]
    config = {**CONFIGS["llama"], "rope_scaling": scaling or None, "max_position_embeddings": longest}
    newer = {key: value for key, value in config.items() if key not in ("rope_theta", "rope_scaling")}
    newer["rope_parameters"] = scaling | {"rope_theta": 100.0}
    expected = made("llama", transform=transforms.rotary(style="half", frequencies=known))
    for each in (config, newer):
        layer = weights.from_state_dict(state_of("llama"), AT["llama"], config=each)
        np.testing.assert_array_equal(layer(X, causal=True), expected(X, causal=True))
        out, vjp = layer.vjp(X, causal=True)
        np.testing.assert_array_equal(vjp(out).query, expected.vjp(X, causal=True)[1](out).query)


def test_dynamic_rope_is_plain_up_to_the_trained_length():
    config = {**CONFIGS["llama"], "rope_scaling": {"type": "dynamic", "factor": 2.0}, "max_position_embeddings": 7}
    layer = weights.from_state_dict(state_of("llama"), AT["llama"], config=config)
    np.testing.assert_allclose(layer(X, causal=True), made("llama")(X, causal=True), rtol=1e-13)
    longer = np.concatenate([X, X])
    assert np.abs(layer(longer, causal=True) - made("llama")(longer, causal=True)).max() > 1e-6


def test_a_part_of_the_columns_turns_where_the_configuration_says_so():
    config = CONFIGS["llama"] | {"partial_rotary_factor": 0.5}
    layer = weights.from_state_dict(state_of("llama"), AT["llama"], config=config)
    expected = made("llama", transform=transforms.rotary(style="half", base=100.0, dims=2))
    np.testing.assert_array_equal(layer(X), expected(X))


def test_meta_scales_its_rope_as_it_says():
    config = CONFIGS["meta"] | {"use_scaled_rope": True, "rope_theta": 500_000.0}
    layer = weights.from_state_dict(state_of("meta"), config=config)
    known = frequencies.llama3(WIDE)
    assert known.angles[1] < frequencies.plain(WIDE, base=500_000.0).angles[1]
    expected = made("meta", transform=transforms.rotary(style="interleaved", frequencies=known))
    np.testing.assert_array_equal(layer(X), expected(X))


def test_a_transform_of_the_callers_comes_after_the_norms():
    layer = made("qwen3", transform=transforms.rotary(style="half", base=200.0))
    np.testing.assert_array_equal(layer(X, causal=True), made("qwen3")(X, causal=True))
    plain = weights.from_state_dict(state_of("llama"), n_heads=H, transform=transforms.compose())
    arrays = {name[-13]: x.T for name, x in state_of("llama").items()}
    expected = hw.MultiHeadAttention.from_arrays(*(arrays[key] for key in "qkvo"), n_heads=H)
    np.testing.assert_array_equal(plain(X), expected(X))


def test_gpt2_may_have_no_scale():
    layer = weights.from_state_dict(state_of("gpt2"), config=CONFIGS["gpt2"] | {"scale_attn_weights": False})
    np.testing.assert_array_equal(layer(X), made("gpt2")(X, scale=1.0))


def test_every_pattern_is_tried_here():
    assert set(weights.PATTERNS) == {pattern_of(kind) for kind in SHAPES}
    assert list(SHAPES["llama"].values()) == GROUPED
