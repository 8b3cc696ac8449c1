"""Arrays that a pattern may lack and a configuration promises: without them a layer would be another, silently."""

import numpy as np
import pytest
from states import AT, CONFIGS, H, bare, state_of

from headwise import transforms, weights

QKV, ALL, NORMS = ("q", "k", "v"), ("q", "k", "v", "o"), ("q_norm.weight", "k_norm.weight")
LLAMA = [f"{key}_proj.bias" for key in QKV]
PROMISES = [  # arrays of which kind, what its configuration says, and the names that must then be there
    ("llama", {"model_type": "qwen2"}, LLAMA),
    ("llama", {"model_type": "qwen2_moe"}, LLAMA),
    ("llama", {"model_type": "llama", "attention_bias": True}, [*LLAMA, "o_proj.bias"]),
    ("qwen2", {"model_type": "llama", "attention_bias": True}, ["o_proj.bias"]),
    ("llama", {"attention_bias": True}, LLAMA),
    ("llama", {"bias": True}, [*LLAMA, "o_proj.bias"]),
    ("llama", {"use_bias": True}, [*LLAMA, "o_proj.bias"]),
    ("llama", {"model_type": "qwen3"}, NORMS),
    ("llama", {"model_type": "qwen3_moe"}, NORMS),
    ("llama", {"qk_norm": True}, NORMS),
    ("llama", {"query_bias": True, "key_bias": False, "value_bias": True, "proj_bias": True}, [LLAMA[0], LLAMA[2]]),
    ("vit", {"model_type": "vit", "qkv_bias": True}, [f"attention.{x}.bias" for x in ("query", "key", "value")]),
    ("fused", {"qkv_bias": True}, ["qkv.bias"]),
    ("gpt2", {"model_type": "gpt2"}, ["c_attn.bias", "c_proj.bias"]),
    ("gpt2", {"model_type": "decision_transformer"}, ["c_attn.bias", "c_proj.bias"]),
    ("bart", {"model_type": "bart"}, [*LLAMA, "out_proj.bias"]),
    ("bart", {"model_type": "whisper"}, [LLAMA[0], LLAMA[2], "out_proj.bias"]),
    ("torch", {"add_bias_kv": True}, ["bias_k", "bias_v"]),
]


def lacking(kind, names):
    """A state without arrays: those promised, and those that must then be absent too."""
    state, at = state_of(kind), AT[kind]
    optional = [name for name in bare(state, kind) if name in names]
    return {name: x for name, x in state.items() if name.removeprefix(f"{at}.") not in optional}


@pytest.mark.parametrize(("kind", "more", "names"), PROMISES)
def test_arrays_that_are_promised_and_not_there_are_named(kind, more, names):
    config = CONFIGS.get(kind, {"num_attention_heads": H}) | {"model_type": None} | more
    lost = [*names, "out_proj.bias", "q_norm.weight", "k_norm.weight"] if kind in ("bart", "llama") else names
    lost = [*lost, "k_proj.bias"] if kind == "bart" else lost
    with pytest.raises(
        ValueError, match=r"expected .* promises, got none; the state may be one part of a mo"
    ) as caught:
        weights.from_state_dict(lacking(kind, lost), AT[kind], config=config)
    text = str(caught.value)
    assert all(f"{AT[kind]}.{name}" in text for name in names)


def test_what_is_promised_and_there_is_read():
    for kind, more in (
        ("qwen2", {"model_type": "qwen2"}),
        ("qwen3", {"model_type": "qwen3", "attention_bias": False}),
        ("vit", {"qkv_bias": True, "model_type": "vit"}),
        ("fused", {"qkv_bias": True}),
        ("gpt2", {"model_type": "gpt2", "bias": True}),
        ("whisper", {"model_type": "whisper"}),
        ("torch", {"add_bias_kv": True}),
    ):
        config = CONFIGS.get(kind, {"num_attention_heads": H}) | more
        assert weights.from_state_dict(state_of(kind), AT[kind], config=config).n_heads == H


def test_a_key_that_promises_nothing():
    state = {name: x for name, x in state_of("bart").items() if not name.endswith("bias")}
    for more in (
        {"model_type": "opt", "enable_bias": False},
        {"model_type": None},
        {"bias": "none", "model_type": None},
    ):
        assert weights.from_state_dict(state, config=CONFIGS["bart"] | more).b_q is None
    for value in (False, None, "none"):
        config = CONFIGS["llama"] | {"attention_bias": value, "qk_norm": value}
        assert weights.from_state_dict(state_of("llama"), config=config).b_q is None


def test_a_transform_is_its_callers_word_for_norms_that_a_pattern_does_not_name():
    names = {f"w_{key}": f"{key}_proj.weight" for key in "qkvo"}
    config, state = {"num_attention_heads": H, "model_type": "qwen3", "qk_norm": True}, state_of("llama")
    own = transforms.compose(transforms.qk_norm(np.ones(4), np.ones(4)), transforms.rotary(style="half"))
    assert weights.from_state_dict(state, config=config, pattern=names, transform=own).transform is own
    with pytest.raises(ValueError, match=r"k_norm\.weight, as config"):
        weights.from_state_dict(state, config=config, transform=own)
    expected = "expected the weight of the norm of each head's queries, .*, as config"
    with pytest.raises(ValueError, match=expected):
        weights.from_state_dict(state, config=CONFIGS["llama"] | {"qk_norm": True}, pattern=names | {"rope": "half"})


def test_what_is_missing_anyway_is_named_once():
    state = state_of("qwen2")
    del state[f"{AT['qwen2']}.k_proj.bias"]
    with pytest.raises(ValueError, match="1 thing does not fit"):
        weights.from_state_dict(state, config=CONFIGS["qwen2"])


def test_a_part_of_a_model_without_its_norms_would_be_another_layer():
    whole, x = state_of("qwen3"), np.random.default_rng(0).standard_normal((5, 12))
    part = {name: array for name, array in whole.items() if "norm" not in name}
    full = weights.from_state_dict(whole, config=CONFIGS["qwen3"])
    without = weights.from_state_dict(part, config=CONFIGS["qwen3"])  # which does not say its type
    assert np.abs(full(x) - without(x)).max() > 1e-2
