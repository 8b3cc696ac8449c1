"""The public face: these names, these signatures, nothing else."""

import inspect
import subprocess
import sys
import types
from pathlib import Path

import headwise as hw
from headwise import masks, testing
from headwise.check import grade

NAMES = {
    "AttentionGradients",
    "AttentionPlan",
    "attention",
    "attention_plan",
    "AttentionSteps",
    "KVCache",
    "Mask",
    "MultiHeadAttention",
    "MultiHeadGradients",
    "MultiHeadSelfAttention",
    "alibi",
    "alibi_slopes",
    "attention_steps",
    "attention_varlen",
    "attention_varlen_vjp",
    "attention_vjp",
    "causal_mask",
    "frequencies",
    "logsumexp",
    "masks",
    "merge_attention",
    "relative_position_bias",
    "relative_position_bias_vjp",
    "multi_head_attention",
    "multi_head_attention_vjp",
    "rope",
    "rope_permutation",
    "rope_vjp",
    "scaled_dot_product_attention",
    "softmax",
    "softmax_vjp",
    "transforms",
    "weights",
}
MODULES = {"frequencies", "masks", "transforms", "weights"}
OPTIONS = ["causal", "bias", "scale", "softcap", "sinks", "dropout", "rng"]


def signature(function):
    """Parameters as (name, default), keyword-only ones behind a star."""
    text = []
    for parameter in inspect.signature(function).parameters.values():
        star = "*" if parameter.kind is parameter.KEYWORD_ONLY else ""
        default = "" if parameter.default is parameter.empty else f"={parameter.default!r}"
        text.append(f"{star}{parameter.name}{default}")
    return text


def test_the_names():
    assert set(hw.__all__) == NAMES
    assert hw.__all__ == sorted(hw.__all__)
    public = {name for name, value in vars(hw).items() if not name.startswith("_")}
    modules = {name for name, value in vars(hw).items() if isinstance(value, types.ModuleType)}
    assert public - modules == NAMES - MODULES


def test_the_checks():
    public = {name for name, value in vars(testing).items() if inspect.isfunction(value) and not name.startswith("_")}
    ours = {name for name in public if getattr(testing, name).__module__ == testing.__name__}
    assert ours == {"assert_attention", "check_vjp"}


def test_the_masks():
    makers = {name for name, value in vars(masks).items() if inspect.isfunction(value) and not name.startswith("_")}
    ours = {name for name in makers if getattr(masks, name).__module__ == masks.__name__}
    assert ours == {"causal", "window", "lengths", "keys", "segments", "positions", "causal_mask", "as_mask"}
    assert hw.Mask is masks.Mask


def test_fixed_signatures():
    options = [
        "*causal=False",
        "*bias=None",
        "*scale=None",
        "*softcap=None",
        "*sinks=None",
        "*dropout=0.0",
        "*rng=None",
    ]
    assert signature(hw.scaled_dot_product_attention) == ["q", "k", "v", "mask=None", *options]
    running = ["*return_lse=False", "*threads=None", "*progress=None"]
    assert signature(hw.attention) == ["q", "k", "v", "mask=None", *options, *running]
    assert signature(hw.attention_vjp) == signature(hw.attention)
    segments = ["q", "k", "v", "q_starts", "k_starts", "*causal=False", "*window=None", "*scale=None", "*softcap=None"]
    segments += ["*slopes=None", "*sinks=None", "*return_lse=False", "*threads=None", "*paged=None"]
    assert signature(hw.attention_varlen) == signature(hw.attention_varlen_vjp) == segments
    assert signature(hw.attention_steps) == signature(hw.scaled_dot_product_attention)
    assert signature(hw.causal_mask) == ["n"]
    assert signature(hw.softmax) == signature(hw.logsumexp) == signature(hw.softmax_vjp) == ["x", "axis=-1"]
    assert signature(hw.merge_attention) == ["outs", "lses"]
    assert signature(hw.alibi_slopes) == ["n_heads"]
    options = ["*bidirectional=True", "*max_distance=128", "*offset=None"]
    assert signature(hw.relative_position_bias) == ["table", "n_q", "n_k", *options]
    assert signature(hw.relative_position_bias_vjp) == ["d_bias", "n_buckets", *options]
    layer = ["x", "w_q", "w_k", "w_v", "w_o", "heads", "causal=False"]
    assert signature(hw.multi_head_attention) == signature(hw.multi_head_attention_vjp) == layer
    assert signature(hw.MultiHeadSelfAttention) == ["d_model", "n_heads", "seed=0"]
    assert signature(hw.MultiHeadSelfAttention(2, 1).__call__) == ["x", "causal=False"]
    assert signature(hw.MultiHeadSelfAttention(2, 1).steps) == ["x", "causal=False"]
    assert signature(hw.MultiHeadSelfAttention(2, 1).vjp) == ["x", "causal=False"]
    sizes = ["batch", "n_kv_heads", "capacity", "d_k", "d_v=None", "dtype=<class 'numpy.float32'>", "window=None"]
    assert signature(hw.KVCache) == sizes
    cache = hw.KVCache(1, 1, 1, 1)
    assert signature(cache.append) == ["k", "v", "*lengths=None", "*padding=None"]
    assert signature(cache.next_positions) == ["n", "*padding=None"]
    assert signature(cache.mask) == ["n_q", "causal=True"]
    assert signature(cache.offset) == ["n_q"]
    assert signature(cache.truncate) == ["lengths"]
    assert signature(cache.reorder) == ["index"]
    assert signature(cache.reset) == ["*padding=None"]
    assert signature(cache.copy) == []
    assert signature(testing.check_vjp) == ["f", "args", "*seed=0", "*tolerance=1e-07"]
    assert signature(testing.assert_attention) == [
        "fn",
        "*exercise='attention'",
        "*seed=0",
        "*hints=1",
        "*partial=False",
    ]
    assert signature(grade)[:3] == ["target", "exercise=None", "seed=0"]


def test_the_signatures_of_the_layer_of_attention():
    sizes = ["*n_kv_heads=None", "*d_head=None", "*d_key=None", "*d_value=None", "*use_bias=False"]
    further = ["*transform=None", "*scale=None"]
    assert signature(hw.MultiHeadAttention) == ["d_model", "n_heads", *sizes, *further, "*seed=0"]
    weights, biases = ["w_q", "w_k", "w_v", "w_o"], ["*b_q=None", "*b_k=None", "*b_v=None", "*b_o=None"]
    biases += ["*bias_k=None", "*bias_v=None"]
    made = [*weights, "n_heads", "*n_kv_heads=None", *biases, *further, "*d_model=None", "*d_head=None"]
    assert signature(hw.MultiHeadAttention.from_arrays) == made
    layer = hw.MultiHeadAttention(2, 1)
    tokens = ["query", "key=None", "value=None", "mask=None"]
    options = ["*causal=False", "*bias=None", "*sinks=None", "*scale=None", "*softcap=None"]
    assert signature(layer) == [*tokens, *options, "*cache=None", "*return_weights=False"]
    assert signature(layer.vjp) == [*tokens, *options]
    assert signature(layer.summary) == []


def test_the_signatures_of_the_transforms():
    assert signature(hw.transforms.rotary) == ["*style", "*base=10000.0", "*dims=None", "*frequencies=None"]
    assert signature(hw.transforms.qk_norm) == ["q_weight", "k_weight", "eps=1e-06"]
    assert [p.kind.name for p in inspect.signature(hw.transforms.compose).parameters.values()] == ["VAR_POSITIONAL"]
    makers = {name for name, value in vars(hw.transforms).items() if inspect.isfunction(value) and name[0] != "_"}
    assert {name for name in makers if getattr(hw.transforms, name).__module__ == hw.transforms.__name__} == {
        "rotary",
        "qk_norm",
        "compose",
    }


def test_the_signatures_of_the_weights():
    w = hw.weights
    heads, described = ["*n_heads=None", "*n_kv_heads=None"], ["*pattern=None", "*config=None", "*transform=None"]
    made = ["state", "prefix=''", *heads, *described, "*add_zero_attn=False"]
    assert signature(w.from_state_dict) == made
    assert signature(w.to_state_dict) == ["layer", "pattern", "prefix=''", "*add_zero_attn=False"]
    assert signature(w.attention_layers) == ["tensors", "config=None", "*pattern=None"]
    assert signature(w.save) == ["layer", "path", "*force=False"]
    assert signature(w.load) == ["path"]
    functions = {"attention_layers", "from_state_dict", "load", "save", "to_state_dict"}
    assert set(w.__all__) == functions | {"PATTERNS", "Found", "Pattern"}


def test_the_signatures_of_the_masks():
    assert signature(masks.causal) == ["offset=None"]
    assert signature(masks.window) == ["left", "right", "offset=None"]
    assert signature(masks.lengths) == ["lengths"]
    assert signature(masks.keys) == ["valid"]
    assert signature(masks.segments) == ["q_ids", "k_ids"]
    assert signature(masks.positions) == ["q_pos", "k_pos"]


def test_everything_public_is_annotated():
    for name in NAMES - MODULES - {"AttentionSteps", "Mask"}:
        function = getattr(hw, name)
        hints = inspect.signature(function)
        assert all(parameter.annotation is not parameter.empty for parameter in hints.parameters.values()), name


def test_the_package_is_typed_and_has_a_version():
    assert Path(hw.__file__).with_name("py.typed").is_file()
    assert hw.__version__.count(".") == 2


def test_python_m_headwise_is_the_command():
    ran = subprocess.run([sys.executable, "-m", "headwise", "--version"], capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0
    assert hw.__version__ in ran.stdout
