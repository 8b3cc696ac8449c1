"""The names under which solutions define functions, take arguments and keep weights: tables only.

Names are compared as bind.plain leaves them. Which way a weight lies is said by its name, never by its shape. Knows
neither a solution nor how it is called.
"""

from typing import Any

from headwise.check.bind import plain
from headwise.check.calls import ROLES

FUNCTION_NAMES = {
    "softmax": (
        "softmax", "stable_softmax", "my_softmax", "softmax_stable", "safe_softmax", "numpy_softmax", "np_softmax",
        "softmax_np", "softmax_numpy", "row_softmax", "softmax_rows", "softmax_function", "softmax_fn",
        "compute_softmax", "softmax_1d", "softmax_2d", "calc_softmax", "calculate_softmax", "softmax_func",
        "softmax_forward", "row_wise_softmax",
    ),
    "attention": (
        "scaled_dot_product_attention", "attention", "sdpa", "dot_product_attention", "scaled_dot_attention",
        "scaled_attention", "my_attention", "single_head_attention", "attention_head", "compute_attention",
        "calculate_attention", "attention_function", "attention_fn", "attend", "basic_attention", "simple_attention",
        "naive_attention", "masked_attention", "attention_forward", "numpy_attention", "attention_numpy",
        "attn", "my_attn", "attn_fn", "attn_func", "attention_func", "compute_attn", "calc_attention", "calc_attn",
        "calculate_attn", "get_attention", "dot_attention", "dot_product_attn", "scaled_dot_product_attn",
        "scaled_dot_product", "attention_layer", "single_head", "do_attention", "apply_attention", "my_sdpa",
        "self_attention", "scaled_dot_product_self_attention", "cross_attention", "self_attn",
    ),
    "causal_mask": (
        "causal_mask", "create_causal_mask", "make_causal_mask", "get_causal_mask", "build_causal_mask",
        "generate_causal_mask", "compute_causal_mask", "my_causal_mask", "causal_attention_mask",
        "create_look_ahead_mask", "look_ahead_mask", "make_look_ahead_mask", "subsequent_mask",
        "make_subsequent_mask", "create_subsequent_mask", "generate_square_subsequent_mask", "lower_triangular_mask",
        "triangular_mask", "tril_mask", "autoregressive_mask", "calc_causal_mask", "causal_mask_fn", "mask_causal",
        "causal", "future_mask", "get_mask", "build_mask", "create_mask", "make_mask",
    ),
    "multi_head": (
        "multi_head_attention", "multi_head_self_attention", "multi_head", "mha", "mhsa", "my_multi_head_attention",
        "multi_headed_attention", "multi_headed_self_attention", "multi_head_attention_forward",
        "compute_multi_head_attention", "multi_head_causal_attention", "causal_multi_head_attention",
        "masked_multi_head_attention", "causal_self_attention", "mha_forward", "my_mha", "multi_head_attn",
        "my_multi_head_attn", "multi_head_attention_fn", "multi_head_attention_func", "calc_multi_head_attention",
        "calculate_multi_head_attention", "multi_head_fn", "multi_head_forward", "compute_mha",
    ),
    "layer": (
        "MultiHeadSelfAttention", "MultiHeadAttention", "MultiHeadedAttention", "MultiHeadedSelfAttention",
        "MultiHeadAttentionLayer", "MultiHeadSelfAttentionLayer", "MHA", "MHSA", "MultiHead", "MyMultiHeadAttention",
        "NumpyMultiHeadAttention", "CausalMultiHeadAttention", "MultiHeadCausalAttention",
        "CausalMultiHeadSelfAttention", "MaskedMultiHeadAttention", "CausalSelfAttention", "CausalAttention",
        "SelfAttention", "SelfAttentionLayer", "AttentionLayer", "Attention", "MultiHeadAttn", "MultiHeadLayer",
        "MyMHA", "MHALayer", "MyMultiHead", "AttentionBlock", "MyAttention", "SelfAttn", "Attn",
    ),
}  # fmt: skip
"""Function -> names, of which the first that a solution defines wins. Those of `layer` are classes."""

LIKE = {
    "softmax": (("softm", "smax"), ("mask", "attn", "attention")),
    "attention": (("att", "sdpa", "dotprod", "scaleddot"), ("mask", "head", "mha", "soft")),
    "causal_mask": (("mask", "causal", "tril"), ("att", "head", "soft")),
    "multi_head": (("multi", "head", "mha"), ("split", "merge", "combine", "concat", "mask")),
    "layer": (("att", "multi", "head", "mha"), ("mask", "config")),
}
"""Function -> parts of which a plain name has one where it may mean it, and those of which it has none then."""

ONLY_OF_THREE = ("self_attention", "scaled_dot_product_self_attention", "cross_attention", "self_attn")
"""Names of attention that count only where the arguments can be q, k and v: others project x themselves."""

_QUERY = ("q", "query", "queries", "q_heads", "query_states", "qs")
_KEY = ("k", "key", "keys", "k_heads", "key_states", "ks")
_VALUE = ("v", "value", "values", "v_heads", "value_states", "vs")
_HEADS = (
    "n_heads", "num_heads", "n_head", "num_head", "heads", "head", "h", "nhead", "nheads", "number_of_heads",
    "no_heads", "no_of_heads", "head_count", "heads_count", "num_attention_heads", "n_attention_heads",
)  # fmt: skip
_WIDTH = (
    "d_model", "embed_dim", "dim", "hidden_size", "embedding_dim", "emb_dim", "model_dim", "dim_model", "hidden_dim",
    "embed_size", "emb_size", "embedding_size", "n_embd", "n_embed", "d_embed", "d_emb", "d_in", "d_out", "in_dim",
    "out_dim", "input_dim", "output_dim", "in_features", "out_features", "d_hidden", "width", "features", "d", "c",
    "dmod", "size", "model_size", "input_size", "dims",
)  # fmt: skip
_TOKENS = (
    "x", "inputs", "input", "tokens", "hidden_states", "hidden", "embeddings", "embedding", "embedded", "x_in", "inp",
    "inputs_x", "input_x", "input_embeddings", "token_embeddings", "sequence", "seq", "data", "src", "states", "emb",
)  # fmt: skip


def _weight(letter: str, words: tuple[str, ...]) -> tuple[str, ...]:
    """Names of an array that x is multiplied by from the right."""
    names = [f"w{letter}", f"weight_{letter}", f"weights_{letter}", f"{letter}_weight", f"{letter}_weights"]
    names += [f"{letter}_w", f"{letter}_matrix", f"{letter}_kernel", f"{letter}_proj_weight"]
    for word in words:
        names += [f"w_{word}", f"{word}_w", f"{word}_weight", f"{word}_weights", f"weight_{word}", f"weights_{word}"]
        names += [f"{word}_matrix", f"{word}_kernel", f"{word}_proj_weight", f"{word}_projection_weight"]
    return tuple(dict.fromkeys(names))


_WORDS = {
    "q": ("query", "queries"),
    "k": ("key", "keys"),
    "v": ("value", "values"),
    "o": ("output", "out", "proj", "projection"),
}
_W = {f"w_{letter}": _weight(letter, words) for letter, words in _WORDS.items()}
_LIKE_LINEAR = {f"w_{letter}": (f"{letter}_proj", f"proj_{letter}") for letter in "qkvo"}

ROLE_NAMES: dict[str, tuple[str, ...]] = {
    "x": _TOKENS,
    "axis": ("axis", "dim", "axes", "along"),
    "q": _QUERY,
    "k": _KEY,
    "v": _VALUE,
    "mask": (
        "mask", "attn_mask", "attention_mask", "masks", "causal_mask", "msk", "m", "bool_mask", "boolean_mask",
        "visible", "allowed", "src_mask", "tgt_mask", "input_mask",
    ),
    "n": (
        "n", "size", "seq_len", "n_tokens", "sequence_length", "seq_length", "length", "seqlen", "len", "num_tokens",
        "t", "l", "s", "sz", "context_length", "context_len", "context_size", "block_size", "max_len", "max_length",
        "n_positions", "n_q", "n_k", "rows", "cols", "columns", "tgt_len", "src_len", "query_len", "key_len",
    ),
    "w_q": _W["w_q"] + _LIKE_LINEAR["w_q"],
    "w_k": _W["w_k"] + _LIKE_LINEAR["w_k"],
    "w_v": _W["w_v"] + _LIKE_LINEAR["w_v"],
    "w_o": (*_W["w_o"], *_LIKE_LINEAR["w_o"], "out_proj", "proj_out"),
    "n_heads": _HEADS,
    "causal": (
        "causal", "is_causal", "use_causal_mask", "use_causal", "causal_masking", "apply_causal_mask", "masked",
        "use_mask", "autoregressive", "is_masked", "with_causal_mask",
    ),
    "d_model": _WIDTH,
    "seed": ("seed", "rng", "random_state", "random_seed", "generator", "rand_seed", "rs"),
}  # fmt: skip
"""Role -> names of the parameters that take it."""

SCORES = ("scores", "logits", "z", "a", "arr", "array", "values", "vector", "matrix", "score", "s", "v", "vec", "xs")
"""More names of x, of softmax alone."""

DERIVED = {
    "d_head": (
        "d_k", "d_head", "head_dim", "d_v", "head_size", "dim_head", "dim_k", "key_dim", "d_key", "d_q", "d", "dim",
    ),
    "length": (
        "context_length", "context_len", "context_size", "block_size", "max_len", "max_length", "max_seq_len",
        "seq_len", "seq_length", "sequence_length", "n", "t", "n_ctx",
    ),
    "width": _WIDTH,
    "scale": ("scale", "sm_scale", "softmax_scale", "scaling"),
    "nothing": ("dropout", "dropout_rate", "p_dropout", "dropout_p", "drop_rate", "attn_dropout", "drop", "p_drop"),
    "no": ("training", "is_training", "train", "bias", "use_bias", "qkv_bias", "verbose", "debug"),
    "yes": ("return_weights", "return_attention", "need_weights", "return_attention_weights", "output_attentions"),
}  # fmt: skip
"""What a parameter without a default is given besides roles: a size that follows from the others, no dropout."""

CALLED = ("forward", "call", "apply", "attend", "attention", "compute", "run")
"""The methods of a layer that cannot be called itself."""

ADAPTER = "weights_of"
"""A function of the solution that hands out a layer's weights, each (d_in, d_out), by the names of roles."""


def _linear(letter: str, words: tuple[str, ...]) -> tuple[str, ...]:
    """Names of a part that holds a weight of its own, as PyTorch's Linear does."""
    names = [f"{letter}_proj", f"w{letter}", f"to_{letter}", f"{letter}_linear", f"linear_{letter}", f"fc_{letter}"]
    names += [f"proj_{letter}", f"{letter}_projection", letter]
    for word in words:
        names += [word, f"{word}_proj", f"proj_{word}", f"w_{word}", f"{word}_linear", f"linear_{word}", f"to_{word}"]
        names += [f"{word}_projection", f"{word}_layer", f"fc_{word}"]
    return tuple(dict.fromkeys(names))


_PARTS = {f"{letter}": _linear(letter, words) for letter, words in _WORDS.items()}
_PARTS["o"] += ("c_proj", "dense", "fc")
_PACKED = ("qkv", "w_qkv", "qkv_proj", "to_qkv", "in_proj", "qkv_projection", "linear_qkv", "qkv_linear", "fc_qkv")


def _paths(flat: tuple[str, ...], parts: tuple[str, ...]) -> list[tuple[str, bool]]:
    """Attribute paths, and whether what lies there is (out, in): PyTorch's ``weight``."""
    inside = [(f"{part}.{leaf}", leaf == "weight") for part in parts for leaf in ("w", "kernel", "weight")]
    return [(path, False) for path in flat] + inside


def _bias_paths(letter: str) -> list[str]:
    words = (letter, *_WORDS[letter])
    flat = [name for word in words for name in (f"b_{word}", f"{word}_bias", f"bias_{word}", f"{word}_b")]
    return flat + [f"{part}.{leaf}" for part in _PARTS[letter] for leaf in ("bias", "b")]


WEIGHT_PATHS = {role: _paths(_W[role], _PARTS[role[2:]]) for role in _W}
"""Role -> where a layer keeps it, and whether it lies (out, in) there."""

PACKED_PATHS = [
    *_paths(("w_qkv", "qkv_w", "qkv_weight", "qkv_weights", "weight_qkv", "qkv_kernel", "qkv_matrix"), _PACKED),
    ("in_proj_weight", True),
]
"""Where a layer keeps the weights of q, k and v side by side in one array, (d_in, 3 d) or (3 d, d_in)."""

BIAS_PATHS = {f"b_{letter}": _bias_paths(letter) for letter in "qkvo"}
PACKED_BIAS_PATHS = [
    "b_qkv", "qkv_bias", "bias_qkv", "in_proj_bias", *(f"{part}.{leaf}" for part in _PACKED for leaf in ("bias", "b")),
]  # fmt: skip


def _roles_of(function: str) -> dict[str, list[str]]:
    """The roles that a function's parameters can have, besides those that it is given: a mask says causal as well."""
    roles = [*ROLES[function], *(["mask"] if function in ("multi_head", "layer") else [])]
    table = {role: [plain(name) for name in ROLE_NAMES[role]] for role in roles}
    if function == "attention":
        table["causal"] = [name for name in table["causal"] if "causal" in name or name == "autoregressive"]
    if function == "softmax":
        table["x"] += [plain(name) for name in SCORES]
    if function in ("multi_head", "layer"):  # each of which may be named as in attention, and is then given x
        table["q, k or v"] = [plain(name) for name in _QUERY + _KEY + _VALUE]
    return table


def _plain_paths(paths: list[tuple[str, bool]]) -> list[tuple[str, bool]]:
    return list(dict.fromkeys((plain(path), turned) for path, turned in paths))


TABLES: dict[str, Any] = {
    "functions": {function: list(dict.fromkeys(map(plain, names))) for function, names in FUNCTION_NAMES.items()},
    "only of three": [plain(name) for name in ONLY_OF_THREE],
    "order": {function: list(roles) for function, roles in ROLES.items()},
    "roles": {function: _roles_of(function) for function in ROLES},
    "derived": {what: [plain(name) for name in names] for what, names in DERIVED.items()},
    "called": list(CALLED),
    "adapter": ADAPTER,
    "weights": {role: _plain_paths(paths) for role, paths in WEIGHT_PATHS.items()},
    "packed weights": _plain_paths(PACKED_PATHS),
    "biases": {role: [(plain(path), False) for path in paths] for role, paths in BIAS_PATHS.items()},
    "packed biases": [(plain(path), False) for path in PACKED_BIAS_PATHS],
}
"""All of it as JSON can carry it: what a child is told."""
