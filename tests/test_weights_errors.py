"""What does not fit is named, all in one error, with what was expected, what came, and the transpose that fits."""

import re

import numpy as np
import pytest
from states import AT, CONFIGS, KINDS, SHAPES, D, G, H, pattern_of, state_of

from headwise import MultiHeadAttention, transforms, weights

MISSHAPED = [  # a square fits both ways, and beside a square w_o so does what is fused in either layout
    (kind, name)
    for kind in KINDS
    for name, shape in SHAPES[kind].items()
    if len(shape) == 2 and shape[0] != shape[1] and kind != "fused, no bias"
]


LLAMA3 = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")  # none has a default


def message(state, kind, **options):
    """The error's lines after the first, which says where."""
    named = options.pop("named", pattern_of(kind))
    config = options.pop("config", None if "transform" in options else CONFIGS.get(kind))
    given = {"config": config} | ({} if config else {"n_heads": H}) | options
    with pytest.raises(ValueError, match="from_state_dict") as caught:
        weights.from_state_dict(state, AT[kind], **given)
    first, *lines = str(caught.value).split("\n  ")
    assert first.startswith(f"from_state_dict: pattern '{named}' at '{AT[kind]}': {len(lines)} thing")
    return lines


def changed(kind, **changes):
    """A state with some arrays other, or, as None, absent; dots in names are two underscores."""
    state = state_of(kind)
    for name, change in changes.items():
        full = f"{AT[kind]}.{name.replace('__', '.')}"
        x = state.pop(full, None)
        if change is not None:
            state[full] = change(x)
    return state


def transpose(x):
    return x.T


@pytest.mark.parametrize(("kind", "name"), MISSHAPED)
def test_a_wrong_transpose_is_named(kind, name):
    full, state = f"{AT[kind]}.{name}", state_of(kind)
    state[full] = state[full].T
    (line,) = message(state, kind)
    stored, given = ("(in, out)", "(out, in)")[pattern_of(kind) != "gpt2"], str(SHAPES[kind][name][::-1])
    assert line.startswith(f"{full}: expected {stored} = {SHAPES[kind][name]}, got {given}; transposed it fits")


def test_transposes_of_several_are_named_each():
    lines = message(changed("llama", k_proj__weight=transpose, v_proj__weight=transpose), "llama")
    assert [line.split(":")[0].split(".")[-2] for line in lines] == ["k_proj", "v_proj"]
    assert all(line.endswith("transposed it fits: put its .T in its place") for line in lines)


@pytest.mark.parametrize("known", [{}, {"transform": transforms.compose()}])
def test_all_transposed_is_another_layout(known):
    turned = {name: x.T for name, x in state_of("llama").items()}
    lines = message(turned, "llama", **known)
    assert len(lines) == 4
    other = "pass pattern=PATTERNS['llama']._replace(layout='conv1d')"
    assert all(line.endswith(f"transposed it fits, as do all: {other}") for line in lines)
    conv = weights.PATTERNS["llama"]._replace(layout="conv1d")
    layer = weights.from_state_dict(turned, config=CONFIGS["llama"], pattern=conv)
    np.testing.assert_array_equal(layer.w_q, turned[f"{AT['llama']}.q_proj.weight"])


@pytest.mark.parametrize("kind", KINDS)
def test_every_missing_name_is_named(kind):
    for name in SHAPES[kind]:
        pattern = weights.PATTERNS[pattern_of(kind)]
        alone = {pattern.names[group[0]] for group in pattern.optional if len(group) == 1}
        if name in alone:
            continue
        state = state_of(kind)
        del state[f"{AT[kind]}.{name}"]
        line = message(state, kind, pattern=pattern_of(kind))[0]
        assert re.match(rf"{re.escape(AT[kind])}\.{re.escape(name)}: expected an array.*, got none of that name", line)


def test_what_may_be_missing_is_missing_together():
    state = changed("vit", attention__query__bias=None, attention__key__bias=None, attention__value__bias=None)
    assert weights.from_state_dict(state, n_heads=H).b_q is None
    lines = message(changed("qwen2", k_proj__bias=None), "qwen2")
    assert len(lines) == 1
    assert lines[0].startswith(f"{AT['qwen2']}.k_proj.bias: expected an array ({G * 4},), got none of that name; a mo")
    lines = message(changed("qwen3", k_norm__weight=None), "qwen3")
    assert lines == [f"{AT['qwen3']}.k_norm.weight: expected an array (4,), got none of that name"]
    lines = message(changed("torch", bias_v=None, out_proj__bias=None), "torch")
    assert [line.split(":")[0] for line in lines] == [f"{AT['torch']}.out_proj.bias", f"{AT['torch']}.bias_v"]


@pytest.mark.parametrize("kind", KINDS)
def test_an_extra_name_is_named(kind):
    state = state_of(kind) | {f"{AT[kind]}.lora_a.weight": np.zeros((2, 2)), "elsewhere.weight": np.zeros(2)}
    (line,) = message(state, kind)
    assert line.startswith(
        f"{AT[kind]}.lora_a.weight: expected no array of that name, got one; merge LoRA's weights int"
    )
    names = ", ".join(weights.PATTERNS[pattern_of(kind)].names.values())
    assert line.endswith(f"; pattern '{pattern_of(kind)}' has {names}")
    state[f"{AT[kind]}.gate.weight"] = state.pop(f"{AT[kind]}.lora_a.weight")
    state[f"{AT[kind]}.gate.bias"] = np.zeros(2)
    first, second = message(state, kind)
    assert "; leave it out of the state if the layer computes nothing with it, or name it in beside= of P" in first
    assert second == f"{AT[kind]}.gate.bias: expected no array of that name, got one"  # what to do is said once
    own = weights.PATTERNS[pattern_of(kind)]._replace(beside=("gate.weight", "gate.bias"))
    assert weights.from_state_dict(state, config=CONFIGS.get(kind), n_heads=H, pattern=own).n_heads == H


def test_weights_in_one_and_in_three_are_too_many():
    state = state_of("torch") | {f"{AT['torch']}.k_proj_weight": np.zeros((D, D))}
    (line,) = message(state, "torch")
    assert line.startswith(f"{AT['torch']}.k_proj_weight: expected no array of that name")


def test_missing_extra_and_misshaped_are_one_error():
    state = changed("bert", self__query__bias=None, self__table=lambda _: np.zeros(3), output__dense__weight=np.ravel)
    lines = message(state, "bert")
    at = AT["bert"]
    assert [line.split(": expected")[0] for line in lines] == [
        f"{at}.self.query.bias",
        f"{at}.self.table",
        f"{at}.output.dense.weight",
    ]
    assert lines[2] == f"{at}.output.dense.weight: expected (out, in) = ({D}, {D}), got ({D * D},)"


def test_all_of_many_are_listed():
    extra = {f"{AT['bert']}.more.{i}": np.zeros(1) for i in range(40)}
    assert len(message(state_of("bert") | extra, "bert")) == 40


def test_all_transposed_may_fit_as_another_layer_which_a_configuration_rules_out():
    turned = {name: x.T for name, x in state_of("t5").items()}
    assert weights.from_state_dict(turned, n_heads=H).d_model == H * 4  # nothing says that it is D
    lines = message(turned, "t5")
    assert len(lines) == 4
    assert all("transposed it fits, as do all: pass pattern=PATTERNS['t5']" in line for line in lines)


# ----------------------------------------------------------------------------------------------------------- heads
@pytest.mark.parametrize("kind", ["llama", "qwen2", "meta"])
def test_swapped_heads_are_said(kind):
    (line,) = message(state_of(kind), kind, n_heads=G, n_kv_heads=H)
    assert line.startswith(f"n_kv_heads: expected one that n_heads = {G} and d_kv = 8 fit, got {H}")
    assert line.endswith(f"exchanged they fit: n_heads={H}, n_kv_heads={G}")


def test_swapped_heads_are_said_where_a_norm_tells_their_width():
    (line,) = message(state_of("qwen3"), "qwen3", n_heads=G, n_kv_heads=H)
    assert line == (
        f"n_heads: expected d_q / d_head = 24 / 4, d_head as config['head_dim'] says, got {G}; "
        f"exchanged they fit: n_heads={H}, n_kv_heads={G}"
    )


def test_where_a_number_of_heads_comes_from_is_said():
    config = CONFIGS["llama"] | {"head_dim": 3}
    (line,) = message(state_of("llama"), "llama", config=config)
    expected = "n_heads: expected d_q / d_head = 24 / 3, d_head as config['head_dim'] says, got 6, "
    assert line == f"{expected}as config['num_attention_heads'] says"
    (line,) = message(state_of("llama"), "llama", config=CONFIGS["llama"] | {"num_attention_heads": 5})
    assert line.endswith("the width of all heads, got 5, as config['num_attention_heads'] says")
    (line,) = message(state_of("llama"), "llama", config=CONFIGS["llama"] | {"num_key_value_heads": 3})
    assert line == "n_kv_heads: expected d_kv / d_head = 2, got 3, as config['num_key_value_heads'] says"
    (line,) = message(state_of("llama"), "llama", config=CONFIGS["llama"], n_kv_heads=3)
    assert line == "n_kv_heads: expected d_kv / d_head = 2, got 3"
    (line,) = message(state_of("llama"), "llama", config={"num_attention_heads": G, "rope_theta": 1.0})
    assert "got 2 heads of 12, as config['num_attention_heads'] says" in line


def test_the_way_out_of_biases_that_a_model_lacks():
    for kind, lost in (("bert", ("query", "key", "value")), ("vit", ("dense",)), ("fused", ("proj",))):
        state = {name: x for name, x in state_of(kind).items() if not name.endswith(tuple(f"{x}.bias" for x in lost))}
        lines = message(state, kind)
        hints = [line.partition("; a model without it: pattern=")[2] for line in lines]
        assert [bool(hint) for hint in hints] == [True] + [False] * (len(lost) - 1)
        pattern = eval(hints[0], {"PATTERNS": weights.PATTERNS})
        layer = weights.from_state_dict(state, n_heads=H, pattern=pattern)
        assert (layer.b_q is None) == (layer.b_o is not None)
    (line,) = message(changed("vit", attention__key__bias=None), "vit")  # of a group whose others are there
    assert line.endswith("pattern=PATTERNS['vit']._replace(optional=(('b_q', 'b_v'), ('b_k',)))")
    own = {f"w_{key}": f"self.{name}.weight" for key, name in zip("qkv", ("query", "key", "value"), strict=True)}
    own |= {"w_o": "output.dense.weight", "b_q": "query.bias"}
    state = {name: x for name, x in state_of("bert").items() if not name.endswith("bias")}
    (line,) = message(state, "bert", pattern=own | {"b_o": "o.bias"}, named="yours")[:1]
    assert line.endswith("; a model without it: leave 'b_q' and 'b_o' out of the pattern")


@pytest.mark.parametrize("kind", ["gpt2", "bart", "whisper"])
def test_models_that_may_have_no_biases(kind):
    state = {name: x for name, x in state_of(kind).items() if not name.endswith("bias")}
    config = CONFIGS.get(kind, {}) | {"model_type": None}  # by BART's own it has them
    layer = weights.from_state_dict(state, config=config, n_heads=H)
    assert (layer.b_q, layer.b_k, layer.b_v, layer.b_o) == (None,) * 4
    assert set(weights.to_state_dict(layer, pattern_of(kind), AT[kind])) == set(state)


def test_heads_are_as_many_as_t5s_table_has_columns():
    table = {f"{AT['t5']}.relative_attention_bias.weight": np.zeros((32, H))}
    (line,) = message(state_of("t5") | table, "t5", config=None, n_heads=3)
    assert line == "n_heads: expected 6, as the table of relative positions has columns, got 3"


def test_a_norm_of_all_heads_together_is_not_that_of_each():
    state = changed("qwen3", q_norm__weight=lambda _: np.ones(24), k_norm__weight=lambda _: np.ones(8))
    lines = message(state, "qwen3", config=None, n_heads=H, transform=transforms.compose())
    assert [line.partition(": ")[2] for line in lines] == ["expected (4,), got (24,)", "expected (4,), got (8,)"]
    lines = message(state, "qwen3", config=None, n_heads=None, transform=transforms.compose())
    assert lines == [
        "n_heads: expected the number of heads, which no shape says, got None; or pass a config= that does"
    ]


def test_heads_that_do_not_fit():
    rope = transforms.compose()
    assert message(state_of("llama"), "llama", n_heads=5, transform=rope) == [
        "n_heads: expected a number that divides d_q = 24, the width of all heads, got 5"
    ]
    (line,) = message(state_of("llama"), "llama", n_heads=G, transform=rope)
    assert line.startswith("n_heads: expected heads whose width divides d_kv = 8, the width of all key heads, got 2 he")
    assert line.endswith("got 2 heads of 12; n_kv_heads is d_kv / d_head")
    assert message(state_of("llama"), "llama", n_heads=H, n_kv_heads=3, transform=rope) == [
        "n_kv_heads: expected d_kv / d_head = 2, got 3"
    ]
    assert message(state_of("bert"), "bert", n_heads=None) == [
        "n_heads: expected the number of heads, which no shape says, got None; or pass a config= that does"
    ]


# ---------------------------------------------------------------------------------------------------------- config
def test_rope_is_not_guessed():
    (line,) = message(state_of("llama"), "llama", config=None, n_heads=H)
    assert line.startswith("config: expected the model's, for its rope, got None; or pass transform=transforms.rotary(")


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({"hidden_size": 16}, f"config: expected a width of tokens of {D}, as weights have it, got 16"),
        ({"model_type": "gemma3"}, "config['model_type']: expected one of llama, mistral"),
        ({"attn_logit_softcapping": 50.0}, "config['attn_logit_softcapping']: expected None or nothing, got 50.0"),
        (
            {"partial_rotary_factor": 1.5},
            "config's partial_rotary_factor: expected a finite number from 0 to 1, got 1.5",
        ),
        ({"rms_norm_eps": -1.0}, "config['rms_norm_eps']: expected a finite number from 0, got -1.0"),
        ({"rope_scaling": {"type": "longrope"}}, "config's rope type: expected one of default, linear, dynamic, yarn"),
        ({"rope_scaling": {"type": "linear"}}, "config's rope of type 'linear': expected a number 'factor', got none"),
        *(
            (
                {"rope_scaling": {key: 8 for key in LLAMA3 if key != lost} | {"rope_type": "llama3"}},
                f"config's rope of type 'llama3': expected a number '{lost}', got none",
            )
            for lost in LLAMA3
        ),
        ({"rope_scaling": {"type": "linear", "factor": -1}}, "config's rope of type 'linear': expected numbers that"),
        ({"rope_scaling": {"type": "yarn", "factor": 2, "truncate": False}}, "config's rope of type 'yarn': expected"),
        ({"rope_scaling": {"type": "dynamic", "factor": 2}}, "config's rope of type 'dynamic': expected a number 'max"),
    ],
)
def test_a_configuration_of_which_a_layer_knows_nothing_is_refused(more, expected):
    (line,) = message(state_of("llama"), "llama", config=CONFIGS["llama"] | more)
    assert line.startswith(expected)


def test_other_configurations_that_are_refused():
    (line,) = message(state_of("gpt2"), "gpt2", config=CONFIGS["gpt2"] | {"scale_attn_by_inverse_layer_idx": True})
    assert line.startswith("config['scale_attn_by_inverse_layer_idx']: expected False or nothing, got True")
    (line,) = message(state_of("bert"), "bert", config={"n_head": H, "position_embedding_type": "relative_key"})
    expected = "expected none, as the pattern 'bert' has no relative positions, got 'relative_key'; pass transform="
    assert line.startswith(f"config['position_embedding_type']: {expected}")


# --------------------------------------------------------------------------------------------------------- prefixes
def test_a_prefix_of_several_layers_lists_them():
    state = state_of("bert") | state_of("t5")
    with pytest.raises(ValueError, match=rf"prefix: .* got that of 2: {AT['bert']}, {AT['t5']}; name one"):
        weights.from_state_dict(state, n_heads=H)


def test_a_damaged_layer_is_not_passed_over_for_the_whole_one_beside_it():
    state = state_of("llama") | {
        f"model.layers.0.cross_attn.{name.rpartition('.self_attn.')[2]}": x for name, x in state_of("llama").items()
    }
    del state[f"{AT['llama']}.v_proj.weight"]
    with pytest.raises(ValueError, match="prefix: expected the prefix of one layer, got that of 2"):
        weights.from_state_dict(state, "model.layers.0", config=CONFIGS["llama"])


def test_a_weight_alone_elsewhere_is_no_layer():
    state = state_of("fused") | {"patch_embed.proj.weight": np.zeros((D, 3, 2, 2)), "patch_embed.proj.bias": np.ones(D)}
    assert weights.from_state_dict(state, n_heads=H).d_model == D


def test_a_prefix_with_nothing_known():
    with pytest.raises(ValueError, match=r"prefix: expected weights by the names of a pattern: torch, .* got no name"):
        weights.from_state_dict({}, "nowhere", n_heads=H)
    with pytest.raises(ValueError, match=r"names of a pattern: torch, .*, got 'pooler.*describe another model by patt"):
        weights.from_state_dict({"pooler.weight": np.eye(3)}, n_heads=H)


def test_t5_is_found_by_its_folders_only():
    state = {name.replace("SelfAttention", "mine"): x for name, x in state_of("t5").items()}
    with pytest.raises(ValueError, match="expected weights by the names of a pattern"):
        weights.from_state_dict(state, n_heads=H)
    assert weights.from_state_dict(state, n_heads=H, pattern="t5").scale == 1.0


# -------------------------------------------------------------------------------------------------------- arguments
def test_arguments_of_the_wrong_kind_are_named_together():
    with pytest.raises(TypeError, match="7 arguments do not fit") as caught:
        weights.from_state_dict([1], 3, n_heads=0, transform=3, config=3, pattern=3, add_zero_attn=3)
    names = re.findall(r"^  (\w+): expected", str(caught.value), re.M)
    assert names == ["state", "prefix", "transform", "pattern", "config", "n_heads", "add_zero_attn"]


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("berty", "pattern: expected one of torch, bert, .*got 'berty'; or a dictionary of names"),
        ({"w_q": "a", "w_x": "b"}, "got one for 'w_x'"),
        ({"w_q": "a", "w_k": "b"}, r"expected names for w_q, w_k, w_v \(or w_qkv\) and w_o, got w_q, w_k"),
        ({"w_q": "a", "w_k": "a", "w_v": "c", "w_o": "d"}, "a name of its own for each array"),
        ({"w_q": 1, "w_k": "a", "w_v": "c", "w_o": "d"}, "a name of its own for each array"),
        ({"w_qkv": "a", "w_o": "d", "layout": "rows"}, "a layout of linear, conv1d, either, got 'rows'"),
        ({"w_q": "a", "w_k": "b", "w_v": "c", "w_o": "d", "layout": "either"}, "layout 'linear' or 'conv1d'"),
    ],
)
def test_patterns_that_mean_nothing(pattern, expected):
    with pytest.raises(ValueError, match=expected):
        weights.from_state_dict(state_of("bert"), n_heads=H, pattern=pattern)


def test_weights_of_nothing():
    state = {name: np.zeros((0, 0)) for name in state_of("t5")}
    lines = message(state, "t5", config=None, n_heads=None)
    assert len(lines) == 4
    assert all(line.endswith("expected a weight of two axes, none of length 0, got (0, 0)") for line in lines)


def test_settings_of_the_wrong_kind():
    for more in ({"rope_scaling": 3}, {"num_attention_heads": "six"}, {"partial_rotary_factor": "half"}):
        with pytest.raises(TypeError, match=f"config.*{next(iter(more))}.*: expected a"):
            weights.from_state_dict(state_of("llama"), config=CONFIGS["llama"] | more)


def test_arrays_that_are_none():
    state = changed("llama", q_proj__weight=lambda x: x.astype(complex), o_proj__weight=lambda x: x[0])
    with pytest.raises(TypeError, match="2 things do not fit") as caught:
        weights.from_state_dict(state, config=CONFIGS["llama"])
    assert "q_proj.weight: expected real numbers" in str(caught.value)
    assert "o_proj.weight: expected a weight of two axes, none of length 0, got (24,)" in str(caught.value)


# --------------------------------------------------------------------------------------------------------- way back
def test_a_layer_that_a_pattern_does_not_fit():
    llama = weights.from_state_dict(state_of("llama"), config=CONFIGS["llama"])
    with pytest.raises(ValueError, match=r"to_state_dict: pattern 'bert': 6 things do not fit\n  b_q: expected an arr"):
        weights.to_state_dict(llama, "bert")
    qwen = weights.from_state_dict(state_of("qwen3"), config=CONFIGS["qwen3"])
    with pytest.raises(ValueError, match="q_norm: expected None, as the pattern has no name for it, got an array"):
        weights.to_state_dict(qwen, "meta")
    with pytest.raises(ValueError, match=r"scale: expected 1\.0, as the pattern's models have it, got None"):
        weights.to_state_dict(MultiHeadAttention(4, 2), "t5")
    some = MultiHeadAttention(4, 2, use_bias=True)
    some.b_k = None
    with pytest.raises(ValueError, match=r"b_k: expected an array, for k_proj\.bias, got None"):
        weights.to_state_dict(some, "llama")


def test_arguments_of_the_way_back():
    with pytest.raises(TypeError, match="4 arguments do not fit"):
        weights.to_state_dict(3, None, 3, add_zero_attn=3)
