"""Positions inside attention that a configuration says and a layer would lack are refused, never left out."""

import numpy as np
import pytest
from checkpoints import ROWS, read
from states import AT, CONFIGS, D, H, pattern_of, state_of

from headwise import transforms, weights

NO_ROPE = ["bert", "distilbert", "albert", "bart", "vit", "gpt2", "t5", "fused", "torch"]
OWN = {"w_q": "query.weight", "w_k": "key.weight", "w_v": "value.weight", "w_o": "dense.weight"}
OWN |= {"b_q": "query.bias", "b_k": "key.bias", "b_v": "value.bias", "b_o": "dense.bias"}
HEADS = {"num_attention_heads": H}


def made(kind, config, **options):
    return weights.from_state_dict(state_of(kind), AT[kind], config=HEADS | config, **options)


def refused(kind, config, **options):
    """The error's second line; a transform that is given is its caller's word."""
    with pytest.raises(ValueError, match=r"from_state_dict: pattern .*: 1 thing does not fit") as caught:
        made(kind, config, **options)
    plain = transforms.compose()
    assert made(kind, config, **options, transform=plain).transform is plain
    return str(caught.value).split("\n  ")[1]


# -------------------------------------------------------------------------------------------------- types of models
HAVE = {
    "rope": ["roformer", "qwen2_vl", "falcon", "gpt_neox", "gptj", "phi", "nomic_bert", "modernbert", "llama", "qwen3"],
    "alibi": ["bloom", "mpt", "jais"],
    "relative positions": ["deberta-v2", "mpnet", "nezha", "layoutlmv3", "beit", "swin", "wavlm"],
}


CASES = [(what, model) for what, models in HAVE.items() for model in models]
ORDERED = ("falcon", "gpt_neox", "bloom")  # which hold q, k and v in one array by heads, or one head of keys


@pytest.mark.parametrize(
    ("kind", "what", "model"),
    [(kind, *case) for kind in NO_ROPE for case in CASES if kind not in ("gpt2", "fused") or case[1] not in ORDERED],
)
def test_a_model_with_positions_inside_is_refused_under_other_names(kind, what, model):
    line = refused(kind, {"model_type": model})
    expected = f"expected none, as the pattern '{pattern_of(kind)}' has no {what}, got '{model}', which has it"
    assert line.startswith(f"config['model_type']: {expected}; pass transform= (transforms.compose() is none)")


@pytest.mark.parametrize("kind", [kind for kind in NO_ROPE if kind != "torch"])
@pytest.mark.parametrize("model", ["big_bird", "mine", "", 3, ["bert"], {}, True])
def test_a_model_of_which_nothing_is_known_is_refused(kind, model):
    line = refused(kind, {"model_type": model})
    assert line.startswith("config['model_type']: expected one whose attention is known to have no positions, as bert")
    assert line.endswith("; pass transform=transforms.compose() where it has none")


def test_the_module_of_pytorch_has_none_in_whatever_model():
    assert made("torch", {"model_type": "mine"}).transform is None


def test_a_model_described_by_its_caller_has_what_the_caller_says():
    for model in ("distilbert", "mine", "", 3):
        assert made("albert", {"model_type": model}, pattern=OWN).transform is None
    line = refused("albert", {"model_type": "phi"}, pattern=OWN)
    turned = "transforms.rotary(style='half', base=10000.0, dims=int(0.5 * d_head))"
    assert line.endswith(f" or 'rope': 'half' in the pattern, which reads config; by hand transform={turned}")
    line = refused("albert", {"rotary_dim": 4}, pattern=OWN)
    assert " or 'rope': 'half' or 'interleaved' in the pattern, which reads config" in line


ORDINARY = {
    "bert": ["bert", "roberta", "xlm-roberta", "camembert", "electra", "ernie", "esm", "layoutlm", "megatron-bert"],
    "albert": ["albert"],
    "distilbert": ["distilbert"],
    "bart": ["bart", "opt", "clip_text_model", "siglip_vision_model", "whisper", "wav2vec2", "hubert", "m2m_100"],
    "vit": ["vit", "deit", "vit_mae", "dinov2", "videomae", "audio-spectrogram-transformer", "yolos", "dpt", "vilt"],
    "gpt2": ["gpt2", "imagegpt", "openai-gpt", "decision_transformer"],
    "t5": ["t5", "mt5", "umt5"],
    "fused": ["mgp-str", "blip_vision_model", "timesformer"],
}


@pytest.mark.parametrize(("kind", "model"), [(kind, model) for kind, models in ORDINARY.items() for model in models])
def test_ordinary_models_are_read(kind, model):
    keys = {"position_embedding_type": "absolute", "max_position_embeddings": 512, "rope_theta": None, "alibi": False}
    keys |= {"relative_attention_num_buckets": 32, "relative_attention_max_distance": 128} if kind == "t5" else {}
    assert made(kind, keys | {"model_type": model}).transform is None


ROPE = {"rope_theta": 100.0}
KEYS = {  # as their config.json has them
    "llama": ROPE
    | {"rope_scaling": None, "pretraining_tp": 1, "rope_interleaved": False, "partial_rotary_factor": 1.0},
    "mistral": ROPE | {"sliding_window": 4096},
    "mixtral": ROPE | {"sliding_window": None, "rope_scaling": {}},
    "qwen2": ROPE | {"use_sliding_window": False, "use_mrope": False, "max_window_layers": 28},
    "qwen3": ROPE | {"rope_scaling": None},
}


@pytest.mark.parametrize("model", KEYS)
def test_ordinary_models_with_rope_are_read(model):
    kind = model if model in CONFIGS else "llama"  # the others' arrays are Llama's
    config = CONFIGS[kind] | KEYS[model] | {"model_type": model}
    layer = weights.from_state_dict(state_of(kind), config=config)
    assert "base=100.0" in repr(layer.transform)


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_checkpoints_of_other_libraries_are_read(row):
    fixture = read(row.name)
    layer = weights.from_state_dict(fixture.state, fixture.prefix, config=fixture.config)
    assert (layer.transform is None) == ("rope_parameters" not in fixture.config)


# -------------------------------------------------------------------------------------------------------------- keys
SAYING = {
    "rope": {
        "rope_theta": 1e4,
        "rotary_dim": 64,
        "rotary_pct": 0.25,
        "rotary_emb_base": 1e4,
        "rotary-dim": 64,
        "use_Rope2d": True,
    }
    | {"rotary_emb_fraction": 1.0, "global_rope_theta": 1e4, "no_rope_layers": [1, 0], "partial_rotary_factor": 0.5}
    | {"use_rotary_embedding": True, "position_embedding_type": "rotary", "rope_parameters": {"rope_theta": 1.0}},
    "alibi": {"alibi": True, "use_alibi": True, "alibi_bias_max": 8, "position_embedding_type": "alibi"},
    "relative positions": {
        "position_embedding_type": "relative_key_query",
        "position_embeddings_type": "relative",
        "relative_attention": True,
        "relative_attention_num_buckets": 32,
        "has_relative_attention_bias": True,
        "use_relative_position_bias": True,
        "max_relative_position": 64,
        "use_rel_pos": True,
    },
    "positions of that type": {"position_embedding_type": "sine"},
}


@pytest.mark.parametrize("kind", ["bert", "gpt2", "fused", "torch"])
@pytest.mark.parametrize(("what", "key"), [(what, key) for what, keys in SAYING.items() for key in keys])
def test_a_key_that_says_positions_inside_is_named(kind, what, key):
    value = SAYING[what][key]
    line = refused(kind, {key: value})
    assert line.startswith(
        f"config['{key}']: expected none, as the pattern '{kind}' has no {what}, got {value!r}; pass"
    )
    how = {
        "rope": f"or pattern=PATTERNS['{kind}']._replace(rope='half') or 'interleaved'",
        "alibi": "bias=headwise.alibi(...)",
    }
    assert how.get(what, "the positions as bias= in each call") in line


@pytest.mark.parametrize(
    ("key", "value"),
    [(key, value) for what in ("alibi", "relative positions") for key, value in SAYING[what].items()],
)
def test_a_type_does_not_excuse_a_key(key, value):
    assert line_of_bert(key, value).startswith(f"config['{key}']: expected none, as the pattern 'bert' has no ")


def line_of_bert(key, value):
    return refused("bert", {"model_type": "bert", key: value})


@pytest.mark.parametrize("kind", ["llama", "meta"])
@pytest.mark.parametrize(
    ("what", "key"),
    [(what, key) for what, keys in SAYING.items() for key in keys if key not in ("rope_theta", "rope_parameters")],
)
def test_what_rope_of_a_pattern_does_not_go_by_is_named_too(kind, what, key):
    if key == "partial_rotary_factor":  # it does
        return
    config = CONFIGS[kind] | {key: SAYING[what][key]}
    with pytest.raises(ValueError, match="1 thing does not fit") as caught:
        weights.from_state_dict(state_of(kind), config=config)
    expected = "the rope of the pattern '%s' does not go by it" if what == "rope" else f"the pattern '%s' has no {what}"
    assert str(caught.value).split("\n  ")[1].startswith(f"config['{key}']: expected none, as {expected % kind}, got")
    weights.from_state_dict(state_of(kind), config=config, transform=transforms.compose())


@pytest.mark.parametrize("value", [None, False, 0, 0.0, {}, [], ""])
@pytest.mark.parametrize("key", [key for keys in SAYING.values() for key in keys])
def test_a_key_that_says_nothing_is_passed_over(key, value):
    assert made("bert", {key: value}).transform is None


def test_positions_of_a_part_that_is_attentions_own():
    assert "'alibi'" in refused("bert", {"attn_config": {"alibi": True, "rope": False}})
    assert made("bert", {"attn_config": {"alibi": False}}).transform is None


@pytest.mark.parametrize("name", ["vit_base_patch16_rope_reg1_gap_256", "eva02_base_patch14_224", "eva_giant_patch14"])
def test_names_of_timm_with_rope(name):
    assert refused("fused", {"architecture": name}).startswith("config['architecture']: expected none, as the pattern")
    assert made("fused", {"architecture": "vit_base_patch16_224"}).transform is None


@pytest.mark.parametrize("more", [{"mrope_section": [1, 1, 2]}, {"full_attention": {"rope_theta": 1e6}}])
def test_rope_that_is_not_one_for_all(more):
    config = CONFIGS["llama"] | {"rope_parameters": {"rope_theta": 1.0} | more}
    with pytest.raises(ValueError, match="config's rope: expected one rope for all layers and columns, got one with '"):
        weights.from_state_dict(state_of("llama"), config=config)


def test_what_is_refused_would_have_been_other_numbers():
    """Roformer's rope, given as a transform, is not what its weights give without."""
    config, x = {"model_type": "roformer"}, np.random.default_rng(0).standard_normal((5, D))
    turned = made("bert", config, transform=transforms.rotary(style="interleaved"))
    assert np.abs(turned(x) - made("bert", {})(x)).max() > 1e-3


@pytest.mark.parametrize("model", ["vit", "deit", "vit_mae", "dinov2"])
def test_names_of_llama_without_its_rope(model):
    """In memory ViT has Llama's names; saved files have its own."""
    config = HEADS | {"model_type": model}
    state = {name: x for name, x in state_of("llama").items() if "norm" not in name}
    layer = weights.from_state_dict(state, AT["llama"], config=config)
    assert layer.transform is None
    (found,) = weights.attention_layers(state, config)
    assert (found.pattern, found.rope) == ("llama", None)
    assert weights.attention_layers(state)[0].rope == "half"


def test_no_style_is_guessed_for_a_type_that_is_not_known():
    state = state_of("llama")
    with pytest.raises(ValueError, match=r"rotary\(style='\.\.\.', base=5\.0\)"):
        weights.from_state_dict(state, AT["llama"], config=HEADS | {"model_type": "ernie4_5", "rope_theta": 5.0})
    with pytest.raises(ValueError, match=r"rotary\(style='interleaved', base=5\.0"):
        weights.from_state_dict(state, AT["llama"], config=HEADS | {"model_type": "cohere", "rope_theta": 5.0})


@pytest.mark.parametrize("key", ["attention_heads", "decoder_attention_heads", "encoder_attention_heads"])
def test_heads_are_read_by_the_keys_of_one_stack_too(key):
    config = {"model_type": "bart", key: H}
    assert weights.from_state_dict(state_of("bart"), AT["bart"], config=config).n_heads == H
