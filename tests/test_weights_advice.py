"""What would make a wrong layer without an error is refused, with advice that leads to the right one."""

import numpy as np
import pytest
from states import AT, CONFIGS, D, G, H, state_of

import headwise as hw
from headwise import transforms, weights

X = np.random.default_rng(4).standard_normal((5, D))
NAMES = {f"w_{key}": f"{key}_proj.weight" for key in "qkvo"}
LLAMA = CONFIGS["llama"]


def refused(match, state, *args, **options):
    with pytest.raises(ValueError, match=match):
        weights.from_state_dict(state, *args, **options)


# ------------------------------------------------------------------------------------------------------------ rope
ROPES = [{"rope_theta": 1e4}, {"rope_scaling": {"type": "linear"}}, {"rope_parameters": {"rope_theta": 1.0}}]
ROPES += [{"rotary_pct": 0.25}, {"rotary_dim": 4}, {"rotary_emb_base": 10_000}]


@pytest.mark.parametrize("more", ROPES)
def test_rope_of_a_configuration_is_not_passed_over(more):
    (key,) = more
    config, plain = {"num_heads": H} | more, transforms.compose()
    expected = rf"config\['{key}'\]: expected none, as the pattern '%s' has no rope, .*; pass transform= \(transforms\."
    own = NAMES | {"layout": "linear"}
    refused(expected % "yours" + ".* or 'rope': 'half' or", state_of("llama"), config=config, pattern=own)
    refused(expected % "fused" + r".* or pattern=PATTERNS\['fused'\]\._replace\(", state_of("fused"), config=config)
    assert weights.from_state_dict(state_of("fused"), config=config, transform=plain).transform is plain
    assert weights.from_state_dict(state_of("fused"), config={"num_heads": H, key: None}).transform is None


@pytest.mark.parametrize("kind", ["bert", "gpt2", "t5", "vit", "albert"])
def test_models_that_never_have_rope_may_say_so_by_their_type(kind):
    config = {"num_attention_heads": H, "rope_theta": 10_000.0}
    assert weights.from_state_dict(state_of(kind), config=config | {"model_type": kind}).transform is None
    refused("has no rope", state_of(kind), config=config)
    refused("has no rope", state_of(kind), config=config | {"model_type": "nomic_bert"})


@pytest.mark.parametrize("style", ["half", "interleaved"])
def test_a_pattern_of_names_may_have_rope_and_a_scale(style):
    own = NAMES | {"rope": style, "scale": 0.25}
    layer = weights.from_state_dict(state_of("llama"), config=LLAMA, pattern=own)
    rope = transforms.rotary(style=style, base=100.0)
    expected = weights.from_state_dict(state_of("llama"), n_heads=H, transform=rope)
    np.testing.assert_array_equal(layer(X), expected(X, scale=0.25))
    assert set(weights.to_state_dict(layer, own, AT["llama"])) == set(state_of("llama"))


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({"rope": "full"}, "pattern: expected a rope of half, interleaved, got 'full'"),
        ({"scale": -1.0}, "pattern: expected a scale that is a finite number above 0, got -1.0"),
        ({"scale": np.inf}, "pattern: expected a scale that is a finite number above 0, got inf"),
    ],
)
def test_rope_and_scale_that_mean_nothing(more, expected):
    refused(expected, state_of("llama"), config=LLAMA, pattern=NAMES | more)


def test_a_base_is_not_guessed():
    config = {"num_attention_heads": H, "rms_norm_eps": 1e-5}
    refused(
        r"config\['rope_theta'\]: expected the base of the model's rope, got None; add",
        state_of("llama"),
        config=config,
    )
    for more in ({"model_type": "qwen3_moe"}, {"rope_parameters": {"rope_type": "default"}}):
        refused(r"config\['rope_theta'\]: expected the base", state_of("llama"), config=config | more)
    layer = weights.from_state_dict(state_of("llama"), config=config | {"model_type": "mistral"})
    assert layer.transform.options["base"] == 10_000.0
    for key, value in (("rotary_pct", 0.25), ("rotary_dim", 2)):
        refused(rf"config\['{key}'\]: expected none", state_of("llama"), config=LLAMA | {key: value})


# ----------------------------------------------------------------------------------------------------------- scale
@pytest.mark.parametrize(
    ("more", "scale"), [({"query_pre_attn_scalar": 16}, 0.25), ({"attention_multiplier": 0.3}, 0.3)]
)
@pytest.mark.parametrize("kind", ["llama", "fused", "gpt2"])
def test_a_scale_of_the_configuration_is_the_layers(kind, more, scale):
    config = CONFIGS.get(kind, {"num_heads": H})
    layer = weights.from_state_dict(state_of(kind), config=config | more)
    assert layer.scale == scale
    np.testing.assert_array_equal(layer(X), weights.from_state_dict(state_of(kind), config=config)(X, scale=scale))


def test_scales_that_mean_nothing():
    for key in ("query_pre_attn_scalar", "attention_multiplier"):
        refused(
            rf"config\['{key}'\]: expected a finite number above 0, got 0", state_of("llama"), config=LLAMA | {key: 0}
        )
    both = {"query_pre_attn_scalar": 16, "attention_multiplier": 0.3}
    expected = "config: expected one scale, got query_pre_attn_scalar and attention_multiplier"
    refused(expected, state_of("llama"), config=LLAMA | both)
    refused(
        "expected one scale, got att.* and the pattern's",
        state_of("t5"),
        config={"num_heads": H, "attention_multiplier": 1},
    )


def test_a_scale_said_is_that_of_the_pattern_where_it_is_equal():
    layer = weights.from_state_dict(state_of("llama"), config=LLAMA | {"query_pre_attn_scalar": 4})
    assert set(weights.to_state_dict(layer, "llama", AT["llama"])) == set(state_of("llama"))


def test_the_configuration_of_a_part_is_pointed_to():
    refused(r"config: expected .*; pass config\['text_config'\]$", state_of("llama"), config={"text_config": LLAMA})
    both = {"text_config": LLAMA, "vision_config": {"num_heads": 2}, "quantization_config": {"bits": 4}}
    refused(r"pass config\['text_config'\] or config\['vision_config'\]$", state_of("llama"), config=both)
    assert weights.from_state_dict(state_of("llama"), config=both | LLAMA).n_heads == H


# ------------------------------------------------------------------------------------------------------- transposes
def of_square_and_others(turned):
    """A state of Llama's whose queries and output are square, with some of its weights transposed."""
    state = {
        f"{key}_proj.weight": np.arange(D * n, dtype=float).reshape(n, D)
        for key, n in zip("qkvo", (D, 4, 4, D), strict=True)
    }
    return {name: x.T if name[0] in turned else x for name, x in state.items()}


@pytest.mark.parametrize("turned", ["kv", "qkvo"])
def test_square_weights_do_not_tell_whether_they_are_transposed(turned):
    with pytest.raises(ValueError, match="2 things do not fit") as caught:
        weights.from_state_dict(of_square_and_others(turned), n_heads=3, transform=transforms.compose())
    lines = str(caught.value).split("\n  ")[1:]
    advice = "transposed it fits: put its .T in its place; or, where all weights are stored so, pass pattern="
    advice += (
        "PATTERNS['llama']._replace(layout='conv1d') (square ones are then read transposed too: compare one output)"
    )
    assert [line.partition("; ")[2] for line in lines] == [advice, advice]


def test_the_other_layout_of_a_pattern_of_names():
    turned = {name: x.T for name, x in state_of("llama").items()}
    refused("as do all: pass your pattern with layout='conv1d'", turned, n_heads=H, pattern=weights.Pattern(NAMES))
    layer = weights.from_state_dict(turned, n_heads=H, pattern=NAMES | {"layout": "conv1d"})
    np.testing.assert_array_equal(layer.w_q, turned[f"{AT['llama']}.q_proj.weight"])


def test_one_transpose_of_several_is_put_in_its_place():
    with pytest.raises(ValueError, match=r"k_proj.*; transposed it fits: put its \.T in its place$"):
        weights.from_state_dict(of_square_and_others("k"), n_heads=3, transform=transforms.compose())


# -------------------------------------------------------------------------------------------------------- prefixes
def test_a_prefix_of_nothing_names_the_layers_that_there_are():
    state = {f"layers.{i}.{name}": x for i in (10, 2, 1, 0, 3, 4, 5) for name, x in state_of("torch, no bias").items()}
    shown = ", ".join(f"layers.{i}.mha" for i in range(5))
    expected = "prefix: expected the beginning of some names, got 'layers.7', with which none begins; layers are "
    with pytest.raises(ValueError, match="from_state_dict") as caught:
        weights.from_state_dict(state, "layers.7", n_heads=H)
    assert str(caught.value) == f"from_state_dict: {expected}{shown} and 2 more; see attention_layers(state)"
    refused("with which none begins; names begin with a$", {"a.b": np.eye(2)}, "c", n_heads=H)


@pytest.mark.parametrize(
    ("prefix", "advice"),
    [
        ("layers.0", "with a beginning it fits: pass 'model.layers.0'"),
        ("0.self_attn", "with a beginning it fits: pass 'model.layers.0.self_attn'"),
        ("module.model.layers.0", "without its beginning it fits: pass 'model.layers.0'"),
        ("base_model.model.model.layers.0.", "without its beginning it fits: pass 'model.layers.0'"),
        ("ayers.0", "layers are model.layers.0.self_attn; see attention_layers(state)"),
        ("model.layer", "layers are model.layers.0.self_attn; see attention_layers(state)"),
    ],
)
def test_a_beginning_too_few_or_too_many_is_said(prefix, advice):
    with pytest.raises(ValueError, match="with which none begins") as caught:
        weights.from_state_dict(state_of("llama"), prefix, config=LLAMA)
    assert str(caught.value).endswith(f"got {prefix!r}, with which none begins; {advice}")


def test_of_many_beginnings_that_fit_three_are_said():
    many = {f"{i}.layers.0.x": np.zeros(1) for i in range(9)}
    refused(r"pass '0\.layers\.0', '1\.layers\.0', '2\.layers\.0' and 6 more$", many, "layers.0", n_heads=H)


GEMMA2 = {"model_type": "gemma2", "num_attention_heads": H, "num_key_value_heads": G, "head_dim": 4}
GEMMA2 |= {"attn_logit_softcapping": 50.0, "query_pre_attn_scalar": 16, "sliding_window": 4096, "rope_theta": 1e4}
GEMMA2 |= {"layer_types": ["sliding_attention", "full_attention"], "final_logit_softcapping": 30.0}


def test_all_that_gemma_asks_is_said_with_what_to_pass():
    with pytest.raises(ValueError, match="2 things do not fit") as caught:
        weights.from_state_dict(state_of("llama"), config=GEMMA2)
    text = str(caught.value)
    assert len(text) < 1500
    assert "config['attn_logit_softcapping']: expected None or nothing, got 50.0" in text
    assert text.endswith(
        f"in place of config= pass n_heads={H}, n_kv_heads={G}, transform=transforms.rotary(style='half', base=10000.0)"
        " or another; in each call scale=16**-0.5 (query_pre_attn_scalar), softcap=50.0 (attn_logit_softcapping), "
        "mask=masks.window(4096 - 1, 0) where layer_types says so (sliding_window)"
    )
    layer = weights.from_state_dict(
        state_of("llama"), n_heads=H, n_kv_heads=G, transform=transforms.rotary(style="half", base=1e4)
    )
    out = layer(X, causal=True, scale=16**-0.5, softcap=50.0, mask=hw.masks.window(4096 - 1, 0))
    assert out.shape == X.shape


def test_what_another_key_of_gpt2_asks_is_said_with_what_to_pass():
    expected = rf"in place of config= pass n_heads={H}; in each call scale=d_head\*\*-0.5 / \(1 \+ layer\)$"
    refused(expected, state_of("gpt2"), config=CONFIGS["gpt2"] | {"scale_attn_by_inverse_layer_idx": True})


def test_gpt_neo_scales_nothing_and_is_not_taken_for_one_that_does():
    state = {name: x for name, x in state_of("bart").items() if "proj.bias" not in name or "out" in name}
    pattern = weights.PATTERNS["bart"]._replace(optional=(("b_q", "b_k", "b_v"),))
    config = {"model_type": "gpt_neo", "num_heads": H}
    layer = weights.from_state_dict(state, config=config, pattern=pattern)
    assert layer.scale == 1.0
    assert weights.from_state_dict(state, config=config, pattern=pattern._replace(scale=0.5)).scale == 0.5


def test_the_pattern_that_fits_is_named():
    expected = (
        r"pattern: expected weights by the names of the pattern, got .*; pass pattern='llama', whose names are there"
    )
    refused(expected, state_of("llama"), config=LLAMA, pattern="gpt2")
    for kind, other in (("bart", "llama"), ("llama", "bart")):  # of which three names are the same
        expected = rf"^from_state_dict: pattern: expected weights by .*; pass pattern='{kind}', whose names are there$"
        refused(expected, state_of(kind), AT[kind], config=CONFIGS[kind], pattern=other)


def test_what_was_found_may_be_passed():
    state = state_of("llama") | {name.replace("layers.0", "layers.1"): 2 * x for name, x in state_of("llama").items()}
    for found in weights.attention_layers(state):
        layer = weights.from_state_dict(state, found, config=LLAMA)
        np.testing.assert_array_equal(layer.w_q, state[f"{found.prefix}.q_proj.weight"].T)
    own = weights.from_state_dict(state, found, pattern=NAMES, n_heads=H)  # what is said counts
    assert own.transform is None


# --------------------------------------------------------------------------------------------------------- tensors
class Tensor:
    """As PyTorch's, which NumPy cannot read as they are."""

    def __init__(self, x, dtype="torch.float32", requires_grad=False, device="cpu"):
        self.x, self.dtype, self.requires_grad, self.device = x, dtype, requires_grad, device

    def detach(self):
        return Tensor(self.x, self.dtype, False, self.device)

    def cpu(self):
        return Tensor(self.x, self.dtype, self.requires_grad, "cpu")

    def float(self):
        return Tensor(self.x, "torch.float32", self.requires_grad, self.device)

    def numpy(self):
        if self.requires_grad or self.dtype == "torch.bfloat16" or self.device != "cpu":
            raise TypeError("not so")
        return self.x

    def __array__(self, dtype=None, copy=None):
        return self.numpy()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"requires_grad": True}, "needs its gradient; pass {name: x.detach().numpy()"),
        ({"dtype": "torch.bfloat16"}, "is bfloat16; pass {name: x.float().numpy()"),
        (
            {"requires_grad": True, "dtype": "torch.bfloat16", "device": "cuda:0"},
            "needs its gradient and is on another device and is bfloat16; pass {name: x.detach().cpu().float().numpy()",
        ),
    ],
)
def test_tensors_that_numpy_cannot_read_are_one_line_with_the_cure(options, said):
    state = {name: Tensor(x, **options) for name, x in state_of("bert").items()}
    with pytest.raises(TypeError, match="from_state_dict") as caught:
        weights.from_state_dict(state, n_heads=H)
    first = (
        f"{AT['bert']}.self.query.weight: expected an array, got a tensor that {said} for name, x in state.items()}}"
    )
    assert str(caught.value) == f"from_state_dict: {first}"
    cured = {name: x.detach().cpu().float().numpy() for name, x in state.items()}
    plain = {name: Tensor(x) for name, x in state_of("bert").items()}
    expected = weights.from_state_dict(state_of("bert"), n_heads=H)(X)
    for each in (cured, plain):
        np.testing.assert_array_equal(weights.from_state_dict(each, n_heads=H)(X), expected)


# --------------------------------------------------------------------------------------------------------- way back
def written(match, layer, pattern):
    with pytest.raises(ValueError, match=match):
        weights.to_state_dict(layer, pattern)


def test_rope_of_another_style_is_not_written():
    llama = weights.from_state_dict(state_of("llama"), config=LLAMA)
    expected = "transform: expected rope of style 'interleaved', .* got rope of style 'half'; "
    written(expected + r".*rope_permutation\(d_head, to='interleaved', n_heads", llama, "meta")
    dynamic = LLAMA | {"rope_scaling": {"type": "dynamic", "factor": 2.0}, "max_position_embeddings": 4}
    written(expected, weights.from_state_dict(state_of("llama"), config=dynamic), "meta")
    meta = weights.from_state_dict(state_of("meta"), config=CONFIGS["meta"])
    written("transform: expected rope of style 'half', .* got rope of style 'interleaved'", meta, "llama")
    qwen = weights.from_state_dict(state_of("qwen3"), config=CONFIGS["qwen3"])
    own = weights.PATTERNS["llama"]._replace(rope="interleaved")
    written("transform: expected rope of style 'interleaved'", qwen, own)


def test_rope_is_not_written_for_models_that_have_none():
    rope = transforms.rotary(style="half")
    layer = hw.MultiHeadAttention(8, 2, use_bias=True, transform=rope)
    for pattern in ("bert", "gpt2", "torch", "fused"):
        written("transform: expected no rope, .*; a model of yours is a pattern with 'rope': 'half'", layer, pattern)
    layer = hw.MultiHeadAttention(8, 2, transform=rope)
    written("transform: expected no rope", layer, NAMES)
    assert len(weights.to_state_dict(layer, NAMES | {"rope": "half"})) == 4


def test_norms_after_rope_are_not_written():
    norm, rope = transforms.qk_norm(np.ones(4), np.ones(4)), transforms.rotary(style="half")
    layer = hw.MultiHeadAttention(8, 2, transform=transforms.compose(rope, norm))
    written("transform: expected norms of queries and keys before all else, got one after another", layer, "llama")
    layer.transform = transforms.compose(transforms.compose(norm), rope)
    assert len(weights.to_state_dict(layer, "llama")) == 6


def test_grouped_heads_are_not_written_for_models_that_have_none():
    for pattern in ("torch", "bert", "albert", "vit", "gpt2"):
        layer = hw.MultiHeadAttention(D, H, n_kv_heads=G, use_bias=True)
        written(
            "n_kv_heads: expected 6 = n_heads, as the pattern's models have no grouped heads, got 2", layer, pattern
        )
    t5 = hw.MultiHeadAttention(D, H, n_kv_heads=G)
    t5.scale = 1.0
    written("n_kv_heads: expected 6", t5, "t5")


# ------------------------------------------------------------------------------------------------------- rows of zeros
@pytest.mark.parametrize("rows", [0, 1, 2])
def test_a_learned_row_is_not_taken_for_zeros(rows):
    """With add_zero_attn the last row goes without a name: a row of anything else would be lost."""
    w = np.random.default_rng(0).standard_normal((4, 8, 8))
    learned = np.random.default_rng(1).standard_normal((2, 2, rows, 4))
    more = {"bias_k": learned[0], "bias_v": learned[1]} if rows else {}
    layer = hw.MultiHeadAttention.from_arrays(*w, n_heads=2, **more)
    with pytest.raises(ValueError, match=r"bias_k: expected a last row of zeros, for add_zero_attn=True, got"):
        weights.to_state_dict(layer, "torch", add_zero_attn=True)
    zeros = np.concatenate([learned[:, :, :1], np.zeros((2, 2, 1, 4))], axis=2)
    layer = hw.MultiHeadAttention.from_arrays(*w, n_heads=2, bias_k=zeros[0], bias_v=zeros[1])
    state = weights.to_state_dict(layer, "torch", add_zero_attn=True)
    again = weights.from_state_dict(state, n_heads=2, add_zero_attn=True)
    x = np.random.default_rng(2).standard_normal((3, 8))
    np.testing.assert_allclose(again(x), layer(x), rtol=1e-12, atol=1e-12)
