"""Models that a caller describes by names, with rope by their config.json; what a known type does besides is said."""

import ast
import json

import numpy as np
import pytest

from headwise import transforms, weights
from headwise.files import open_checkpoint, write_safetensors
from headwise.layers import families
from headwise.layers.describing import description_of

H, D, WIDE = 3, 24, 8  # heads, tokens, columns of a head
RNG = np.random.default_rng(7)
X = RNG.standard_normal((5, D))
NEOX = {"w_qkv": "query_key_value.weight", "w_o": "dense.weight"}
NEOX |= {"b_qkv": "query_key_value.bias", "b_o": "dense.bias", "fused": "heads"}
NEOX_STATE = {
    f"attention.{name}": RNG.standard_normal(shape)
    for name, shape in (
        ("query_key_value.weight", (3 * D, D)),
        ("query_key_value.bias", (3 * D,)),
        ("dense.weight", (D, D)),
        ("dense.bias", (D,)),
    )
}
GPTJ_STATE = {f"attn.{name}_proj.weight": RNG.standard_normal((D, D)) for name in ("q", "k", "v", "out")}
LLAMA_STATE = {f"self_attn.{name}_proj.weight": RNG.standard_normal((D, D)) for name in "qkvo"}
NORMS = {f"self_attn.{name}_norm.weight": RNG.standard_normal(WIDE) for name in "qk"}


def turned(y, dims, base, style):
    """Rope of the first columns of heads (H, n, d), one pair at a time."""
    y = y.copy()
    for i in range(dims // 2):
        a, b = (i, i + dims // 2) if style == "half" else (2 * i, 2 * i + 1)
        angle = np.arange(y.shape[-2]) * base ** (-2 * i / dims)
        first, second = y[..., a].copy(), y[..., b].copy()
        y[..., a] = first * np.cos(angle) - second * np.sin(angle)
        y[..., b] = first * np.sin(angle) + second * np.cos(angle)
    return y


def attended(q, k, v, scale=WIDE**-0.5):
    scores = q @ np.swapaxes(k, -1, -2) * scale
    scores = np.where(np.tri(len(X), dtype=bool), scores, -np.inf)
    made = np.exp(scores - scores.max(-1, keepdims=True))
    return np.concatenate(list(made / made.sum(-1, keepdims=True) @ v), axis=-1)


def of_neox(dims, base):
    s = {name.removeprefix("attention."): x for name, x in NEOX_STATE.items()}
    y = X @ s["query_key_value.weight"].T + s["query_key_value.bias"]
    q, k, v = y.reshape(len(X), H, 3, WIDE).transpose(2, 1, 0, 3)  # as GPTNeoXAttention views it
    out = attended(turned(q, dims, base, "half"), turned(k, dims, base, "half"), v)
    return out @ s["dense.weight"].T + s["dense.bias"]


def of_gptj(dims, base):
    q, k, v = ((X @ GPTJ_STATE[f"attn.{n}_proj.weight"].T).reshape(len(X), H, WIDE).swapaxes(0, 1) for n in "qkv")
    out = attended(turned(q, dims, base, "interleaved"), turned(k, dims, base, "interleaved"), v)
    return out @ GPTJ_STATE["attn.out_proj.weight"].T


def refused(state, prefix, config, **options):
    with pytest.raises(ValueError, match="from_state_dict") as caught:
        weights.from_state_dict(state, prefix, config=config, **options)
    return str(caught.value)


# ------------------------------------------------------------------------------------------- rope that is described
NEOX_CONFIG = {"model_type": "gpt_neox", "num_attention_heads": H, "hidden_size": D}
SAID = [
    ({}, 2, 1e4),  # a quarter, where nothing is said
    ({"rotary_pct": 0.25, "rotary_emb_base": 10_000}, 2, 1e4),
    ({"rotary_pct": 0.5, "rotary_emb_base": 50.0}, 4, 50.0),
    ({"rotary_pct": 1.0}, WIDE, 1e4),
    ({"rope_parameters": {"partial_rotary_factor": 0.25, "rope_theta": 50.0}}, 2, 50.0),
    ({"partial_rotary_factor": 0.5, "rotary_pct": 0.5, "rope_theta": 50.0, "rotary_emb_base": 50.0}, 4, 50.0),
]


@pytest.mark.parametrize(("more", "dims", "base"), SAID)
@pytest.mark.parametrize("typed", [True, False])
def test_neox_described_with_rope_is_neox(more, dims, base, typed):
    config = NEOX_CONFIG | {"rotary_pct": 0.25, "rotary_emb_base": 10_000} | more if not typed else NEOX_CONFIG | more
    if not typed:
        config = {key: value for key, value in config.items() if key != "model_type"}
        if (
            "rope_parameters" in more or "partial_rotary_factor" in more
        ):  # of which the older keys say the same, or none
            config = {"num_attention_heads": H} | more
    layer = weights.from_state_dict(NEOX_STATE, "attention", config=config, pattern=NEOX | {"rope": "half"})
    np.testing.assert_allclose(layer(X, causal=True), of_neox(dims, base), rtol=1e-10, atol=1e-10)
    back = weights.to_state_dict(layer, NEOX | {"rope": "half"}, "attention")
    assert all(np.array_equal(back[name], x) for name, x in NEOX_STATE.items())


@pytest.mark.parametrize(
    ("more", "dims"), [({"rotary_dim": 4}, 4), ({"rotary_dim": 4, "rotary": True}, 4), ({"rotary_dim": None}, WIDE)]
)
def test_gptj_is_the_pattern_with_rope_of_neighbours(more, dims):
    config = {"model_type": "gptj", "n_head": H, "n_embd": D} | more
    pattern = weights.PATTERNS["bart"]._replace(rope="interleaved")
    layer = weights.from_state_dict(GPTJ_STATE, "attn", config=config, pattern=pattern)
    np.testing.assert_allclose(layer(X, causal=True), of_gptj(dims, 1e4), rtol=1e-10, atol=1e-10)


def test_the_errors_lead_to_the_right_layer():
    """From nothing to the numbers of the model, by what is said each time."""
    config = NEOX_CONFIG | {"rotary_pct": 0.5, "rotary_emb_base": 50}
    said = refused(NEOX_STATE, "attention", config)
    names = ast.literal_eval(said.partition("pattern=")[2].partition("}")[0] + "}")
    assert names == NEOX
    said = refused(NEOX_STATE, "attention", config, pattern=names)
    assert "or 'rope': 'half' in the pattern, which reads config; by hand transform=" in said
    by_hand = said.partition("by hand transform=")[2]
    turn = eval(by_hand, {"transforms": transforms})  # as it would be typed
    typed = weights.from_state_dict(NEOX_STATE, "attention", config=config, pattern=names, transform=turn)
    layer = weights.from_state_dict(NEOX_STATE, "attention", config=config, pattern=names | {"rope": "half"})
    for each in (typed, layer):
        np.testing.assert_allclose(each(X, causal=True), of_neox(4, 50.0), rtol=1e-10, atol=1e-10)


def test_two_that_differ_are_not_chosen_from():
    both = {"rotary_pct": 0.5, "partial_rotary_factor": 0.25}
    own = NEOX | {"rope": "half"}
    said = refused(NEOX_STATE, "attention", NEOX_CONFIG | both, pattern=own)
    assert "config: expected one width of rope, got partial_rotary_factor 2 and rotary_pct 4; leave out all but" in said
    bases = {"rope_theta": 5.0, "rotary_emb_base": 6.0}
    said = refused(NEOX_STATE, "attention", NEOX_CONFIG | bases, pattern=own)
    assert "config: expected one base of rope, got rope_theta 5.0 and rotary_emb_base 6.0" in said
    for key, odd in (("rotary_pct", "x"), ("rotary_pct", float("nan")), ("rotary_dim", 3), ("rotary_dim", "4")):
        assert "expected" in str(refused_any(NEOX_CONFIG | {key: odd}, own))


def refused_any(config, pattern):
    with pytest.raises((TypeError, ValueError), match="from_state_dict") as caught:
        weights.from_state_dict(NEOX_STATE, "attention", config=config, pattern=pattern)
    return caught.value


def test_a_description_that_is_not_the_types_is_refused():
    said = refused(NEOX_STATE, "attention", NEOX_CONFIG, pattern=NEOX | {"rope": "interleaved"})
    assert "expected one whose rope is interleaved, as the pattern says, got 'gpt_neox'; 'rope': 'half' in the" in said
    plain = transforms.compose()
    own = {"config": NEOX_CONFIG, "pattern": NEOX | {"rope": "interleaved"}, "transform": plain}
    assert weights.from_state_dict(NEOX_STATE, "attention", **own).transform is plain  # the caller's word
    for more in ({"model_type": "internlm2"}, {"model_type": "falcon", "new_decoder_architecture": True}):
        own = {"rope": "half", "fused": "blocks"}
        said = refused(NEOX_STATE, "attention", NEOX_CONFIG | more | {"rope_theta": 5.0}, pattern=NEOX | own)
        assert "'fused': 'groups' in the pattern says that theirs holds the queries of each key head, its key" in said
    said = refused(NEOX_STATE, "attention", NEOX_CONFIG | {"model_type": "codegen"}, pattern=NEOX)
    assert "take it apart into w_q, w_k and w_v in the state" in said
    blocks = {key: name for key, name in NEOX.items() if key != "fused"} | {"rope": "half"}
    more = {"model_type": "falcon", "multi_query": False, "rope_theta": 5.0}
    assert "'fused': 'heads' in the pattern" in refused(NEOX_STATE, "attention", NEOX_CONFIG | more, pattern=blocks)


@pytest.mark.parametrize("flag", ["rope_interleaved", "rotary_emb_interleaved"])
def test_a_flag_of_the_style_is_held_to_the_description(flag):
    config = {"n_head": H, "rotary_dim": 4, "rope_theta": 1e4, flag: True}
    bart = weights.PATTERNS["bart"]
    layer = weights.from_state_dict(GPTJ_STATE, "attn", config=config, pattern=bart._replace(rope="interleaved"))
    np.testing.assert_allclose(layer(X, causal=True), of_gptj(4, 1e4), rtol=1e-10, atol=1e-10)
    said = refused(GPTJ_STATE, "attn", config, pattern=bart._replace(rope="half"))
    assert f"config['{flag}']: expected none, as the rope of the pattern 'yours' does not go by it" in said


@pytest.mark.parametrize("key", ["use_Rope2d", "use_mrope", "rope_ratio", "no_rope_layers"])
def test_what_no_rope_here_goes_by_stays_refused(key):
    said = refused(NEOX_STATE, "attention", NEOX_CONFIG | {key: True}, pattern=NEOX | {"rope": "half"})
    assert f"config['{key}']: expected none, as the rope of the pattern 'yours' does not go by it" in said


@pytest.mark.parametrize(
    "key", ["attn_logit_softcapping", "clip_qkv", "qk_layernorm", "use_qk_norm", "qk_ln", "softmax_scale"]
)
def test_what_no_layer_does_stays_refused_of_a_description(key):
    said = refused(NEOX_STATE, "attention", NEOX_CONFIG | {key: 8.0}, pattern=NEOX | {"rope": "half"})
    assert f"config['{key}']: expected " in said
    said = refused(NEOX_STATE, "attention", NEOX_CONFIG | {"attn_config": {key: 8.0}}, pattern=NEOX | {"rope": "half"})
    assert f"config['{key}']: expected " in said


def test_names_beside_the_layers_are_said_in_the_dictionary():
    state = NEOX_STATE | {"attention.masked_bias": np.ones(()), "attention.bias": np.ones((1, 1, 4, 4), bool)}
    own = NEOX | {"rope": "half"}
    said = refused(state, "attention", NEOX_CONFIG, pattern=own)
    assert "or name it in 'beside' of your pattern" in said
    layer = weights.from_state_dict(
        state, "attention", config=NEOX_CONFIG, pattern=own | {"beside": ["bias", "masked_bias"]}
    )
    np.testing.assert_allclose(layer(X, causal=True), of_neox(2, 1e4), rtol=1e-10, atol=1e-10)


# --------------------------------------------------------------------------------------- what known types do besides
GEMMA3 = {"model_type": "gemma3_text", "num_attention_heads": H, "head_dim": WIDE, "rms_norm_eps": 1e-5}
GEMMA3 |= {"query_pre_attn_scalar": 16}
OLD = {"rope_theta": 1e6, "rope_local_base_freq": 1e4, "rope_scaling": {"rope_type": "linear", "factor": 8.0}}
NEW = {"sliding_attention": {"rope_type": "default", "rope_theta": 1e4}}
NEW |= {"full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0}}


@pytest.mark.parametrize("more", [OLD, {"rope_parameters": NEW}], ids=["old", "new"])
@pytest.mark.parametrize("pattern", [None, weights.PATTERNS["llama"]._replace(layout="linear")])
def test_gemma3_is_told_of_its_norms_and_its_two_bases(more, pattern):
    said = refused(LLAMA_STATE | NORMS, "self_attn", GEMMA3 | more, pattern=pattern)
    assert (
        "; add 1 to q_norm.weight and k_norm.weight, as its norms multiply by 1 + w; in place of config= pass" in said
    )
    first = "transform=transforms.rotary(style='half', base=10000.0) in layers of sliding_attention, "
    assert f"pass config={{'rms_norm_eps': 1e-05}}, n_heads=3, {first}" in said
    stretched = "frequencies=headwise.frequencies.linear(d_head, 8.0, base=1000000.0)) in layers of full_attention"
    assert f"transforms.rotary(style='half', {stretched}" in said


BESIDES = {
    "gemma2": ("add 1 to q_norm.weight and k_norm.weight", "style='half', base=7.0)"),
    "qwen3_next": ("q_proj holds each head's queries and then its gate", "style='half', base=7.0)"),
    "olmo2": ("are norms over all heads together", "style='half', base=7.0)"),
    "gpt_oss": ("its sinks are sinks=", "style='half', base=7.0)"),
    "cohere": ("", "style='interleaved', base=7.0)"),
    "cohere2": ("its layers of full_attention have no rope", "style='interleaved', base=7.0)"),
    "llama4_text": ("its norms come after rope", "style='interleaved', base=7.0)"),
    "stablelm": ("", "style='half', base=7.0, dims=2)"),
    "phi": ("", "style='half', base=7.0, dims=4)"),
    "glm4": ("", "style='interleaved', base=7.0, dims=4)"),
    "granite": ("", "style='half', base=7.0)"),
}


@pytest.mark.parametrize("model", BESIDES)
def test_what_a_type_does_is_told_where_it_is_refused(model):
    aside, rope = BESIDES[model]
    config = {"model_type": model, "num_attention_heads": H, "hidden_size": D, "rope_theta": 7.0}
    config |= {"attention_multiplier": 0.3} if model == "granite" else {}
    said = refused(LLAMA_STATE | NORMS, "self_attn", config)
    assert aside in said
    assert f"transform=transforms.rotary({rope} or another" in said
    assert ("scale=0.3 (attention_multiplier)" in said) == (model == "granite")
    own = weights.PATTERNS["llama"]._replace(rope="interleaved" if "interleaved" in rope else "half")
    if aside:
        assert aside in refused(LLAMA_STATE | NORMS, "self_attn", config, pattern=own)
    else:
        layer = weights.from_state_dict(LLAMA_STATE | NORMS, "self_attn", config=config, pattern=own)
        assert f"rotary({rope.replace('base=7.0)', 'base=7.0, dims=8)')}" in repr(layer.transform)


def test_gemmas_without_norms_of_queries_are_not_told_of_them():
    config = {"model_type": "gemma", "num_attention_heads": H, "rope_theta": 7.0}
    assert "add 1 to" not in refused(LLAMA_STATE, "self_attn", config)
    own = weights.PATTERNS["llama"]._replace(layout="linear")
    layer = weights.from_state_dict(LLAMA_STATE, "self_attn", config=config, pattern=own)
    assert layer.transform.options["base"] == 7.0


# ------------------------------------------------------------------------------------------------------------ names
@pytest.mark.parametrize(
    ("name", "pattern"),
    [
        *(("mistral", "llama"), ("qwen2", "llama"), ("gemma", "llama"), ("Qwen3", "llama"), ("roberta", "bert")),
        *(
            ("clip", "bart"),
            ("whisper", "bart"),
            ("opt", "bart"),
            ("dinov2", "vit"),
            ("flan-t5", "t5"),
            ("timm", "fused"),
        ),
    ],
)
def test_the_name_of_a_model_is_told_which_pattern_it_is(name, pattern):
    with pytest.raises(ValueError, match=rf"got '{name}'; its names are those of '{pattern}'$"):
        weights.from_state_dict({}, pattern=name)
    with pytest.raises(ValueError, match=rf"got '{name}'; its names are those of '{pattern}'$"):
        weights.attention_layers({}, pattern=name)


def test_a_model_of_a_known_dictionary_is_told_it():
    for name, state, prefix, config in (
        ("neox", NEOX_STATE, "attention", NEOX_CONFIG),
        ("gptj", GPTJ_STATE, "attn", {"model_type": "gptj", "n_head": H, "rotary_dim": 4}),
    ):
        with pytest.raises(ValueError, match=r"; describe it by \{'w_q") as caught:
            weights.from_state_dict(state, pattern=name)
        own = ast.literal_eval(str(caught.value).partition("; describe it by ")[2])
        layer = weights.from_state_dict(state, prefix, config=config, pattern=own)
        right = of_neox(2, 1e4) if name == "neox" else of_gptj(4, 1e4)
        np.testing.assert_allclose(layer(X, causal=True), right, rtol=1e-10, atol=1e-10)
    with pytest.raises(ValueError, match=r"got 'mine'; or a dictionary of names$"):
        weights.from_state_dict({}, pattern="mine")
    known = {alias for aliases in families._ALIASES.values() for alias in aliases.split()}
    assert not known & set(weights.PATTERNS)


DESCRIBED = [
    ("attn.Wqkv attn.out_proj norm", {"w_qkv": "attn.Wqkv.weight", "w_o": "attn.out_proj.weight", "fused": "blocks"}),
    ("attn.in_proj attn.out_proj", {"w_qkv": "attn.in_proj.weight", "w_o": "attn.out_proj.weight", "fused": "blocks"}),
    ("a.qkv a.proj", {"w_qkv": "a.qkv.weight", "w_o": "a.proj.weight", "fused": "blocks"}),
    (
        "a.to_q a.to_k a.to_v a.to_out.0",
        {f"w_{k}": f"a.to_{n}.weight" for k, n in zip("qkvo", ("q", "k", "v", "out.0"), strict=True)},
    ),
    (
        "a.self.query a.self.key a.self.value a.output.dense",
        {
            "w_q": "a.self.query.weight",
            "w_k": "a.self.key.weight",
            "w_v": "a.self.value.weight",
            "w_o": "a.output.dense.weight",
        },
    ),
    ("a.query a.key b.value a.dense", None),
    ("mlp.dense mlp.out", None),
]


@pytest.mark.parametrize(("names", "expected"), DESCRIBED, ids=[names for names, _ in DESCRIBED])
def test_a_dictionary_of_the_names_that_are_there(names, expected):
    shapes = {f"h.0.{name}.weight": (4, 4) for name in names.split()}
    assert description_of(shapes, "h.0") == expected


def test_a_dictionary_has_biases_layout_and_buffers_that_are_there():
    shapes = {"h.0.attn.c_attn.weight": (4, 12), "h.0.attn.c_attn.bias": (12,), "h.0.attn.out.weight": (4, 4)}
    expected = {
        "w_qkv": "c_attn.weight",
        "w_o": "out.weight",
        "b_qkv": "c_attn.bias",
        "fused": "blocks",
        "layout": "conv1d",
    }
    assert description_of(shapes | {"h.0.attn.bias": (1, 1, 9, 9)}) == expected | {"beside": ["bias"]}
    json.dumps(description_of(shapes))


# ------------------------------------------------------------------------------------------------- one file of several
@pytest.mark.parametrize(("file", "said"), [("model-00002-of-00003.safetensors", True), ("model.safetensors", False)])
def test_a_layer_of_another_part_of_a_model(tmp_path, file, said):
    write_safetensors(tmp_path / file, {f"h.1.{name}": x for name, x in LLAMA_STATE.items()})
    part = "; its file is part 2 of 3 of a model: open the folder or the .index.json"
    for prefix in ("h.0", "h.1.mlp"):
        text = refused(open_checkpoint(tmp_path / file), prefix, {})
        assert text.endswith(part) == said


@pytest.mark.parametrize(
    ("config", "order"),
    [
        ({"model_type": "gpt_bigcode", "multi_query": False}, "heads"),
        ({"model_type": "falcon", "new_decoder_architecture": True}, "groups"),
        ({"model_type": "falcon", "multi_query": True}, "blocks"),
        ({"model_type": "codegen"}, "..."),
        ({"model_type": "mine"}, "heads"),
        (None, "heads"),
    ],
)
def test_the_order_of_a_known_type_comes_before_a_guess(config, order):
    shapes = {"h.0.query_key_value.weight": (12, 4), "h.0.dense.weight": (4, 4)}
    assert description_of(shapes, "h.0", config)["fused"] == order
