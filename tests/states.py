"""States as models keep them, of random numbers, and what their attention computes, written out by hand.

Nothing here calls the package: names, splits and formulas are those of the models' own code.
"""

import numpy as np


def softmax(x):
    weights = np.exp(x - x.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)


def heads_of(x, n):
    """(tokens, n d) -> (n, tokens, d)."""
    return np.stack([x[:, i * (x.shape[1] // n) : (i + 1) * (x.shape[1] // n)] for i in range(n)])


def attended(q, k, v, scale=None, causal=False, bias=0.0):
    """Heads one by one: q (H, n, d), k and v (G, m, d) -> (n, H d)."""
    outs = []
    for h in range(len(q)):
        g = h * len(k) // len(q)
        scores = q[h] @ k[g].T * (q.shape[-1] ** -0.5 if scale is None else scale)
        scores = scores + (bias if np.isscalar(bias) else bias[h])
        if causal:
            scores = np.where(np.tril(np.ones(scores.shape, bool)), scores, -np.inf)
        outs.append(softmax(scores) @ v[g])
    return np.concatenate(outs, axis=1)


def drawn(seed, shapes, dtype=np.float64):
    rng = np.random.default_rng(seed)
    return {name: rng.standard_normal(shape).astype(dtype) / 2 for name, shape in shapes.items()}


def linear(state, name, x):
    bias = state.get(f"{name}.bias")
    return x @ state[f"{name}.weight"].T + (0 if bias is None else bias)


def modules(prefix, names, shapes, biases=True):
    """Shapes of nn.Linear modules: (out, in), and biases."""
    found = {}
    for name, shape in zip(names, shapes, strict=True):
        found[f"{prefix}{name}.weight"] = shape
        if biases is True or name in (biases or ()):
            found[f"{prefix}{name}.bias"] = shape[:1]
    return found


BERT = ("self.query", "self.key", "self.value", "output.dense")
VIT = ("attention.query", "attention.key", "attention.value", "output.dense")
ALBERT = ("query", "key", "value", "dense")
LLAMA = ("q_proj", "k_proj", "v_proj", "o_proj")
BART = ("q_proj", "k_proj", "v_proj", "out_proj")
DISTILBERT = ("q_lin", "k_lin", "v_lin", "out_lin")
META = ("wq", "wk", "wv", "wo")
T5 = ("q", "k", "v", "o")
D, H, G, WIDE = 12, 6, 2, 4  # tokens, heads, key heads; heads of 4 where models say so: H * WIDE = 24
GROUPED = [(H * WIDE, D), (G * WIDE, D), (G * WIDE, D), (D, H * WIDE)]
SQUARE = [(D, D)] * 4
AT = {
    "bert": "bert.encoder.layer.0.attention",
    "albert": "albert.encoder.albert_layer_groups.0.albert_layers.0.attention",
    "vit": "vit.encoder.layer.0.attention",
    "bart": "model.encoder.layers.0.self_attn",
    "whisper": "model.decoder.layers.0.encoder_attn",
    "distilbert": "distilbert.transformer.layer.0.attention",
    "gpt2": "h.0.attn",
    "llama": "model.layers.0.self_attn",
    "qwen2": "model.layers.1.self_attn",
    "qwen3": "model.layers.2.self_attn",
    "meta": "layers.0.attention",
    "t5": "encoder.block.0.layer.0.SelfAttention",
    "t5cross": "decoder.block.0.layer.1.EncDecAttention",
    "fused": "blocks.0.attn",
    "fused, no bias": "blocks.1.attn",
    "torch": "layers.0.self_attn",
    "torch, other widths": "layers.0.multihead_attn",
    "torch, no bias": "mha",
}
SHAPES = {
    "bert": modules("", BERT, SQUARE),
    "albert": modules("", ALBERT, SQUARE),
    "vit": modules("", VIT, SQUARE),
    "bart": modules("", BART, SQUARE),
    "whisper": modules("", BART, SQUARE, (BART[0], *BART[2:])),
    "distilbert": modules("", DISTILBERT, SQUARE),
    "gpt2": {"c_attn.weight": (D, 3 * D), "c_attn.bias": (3 * D,), "c_proj.weight": (D, D), "c_proj.bias": (D,)},
    "llama": modules("", LLAMA, GROUPED, False),
    "qwen2": modules("", LLAMA, GROUPED, LLAMA[:3]),
    "qwen3": modules("", LLAMA, GROUPED, False) | {"q_norm.weight": (WIDE,), "k_norm.weight": (WIDE,)},
    "meta": modules("", META, GROUPED, False),
    "t5": modules("", T5, [(H * WIDE, D)] * 3 + [(D, H * WIDE)], False),
    "t5cross": modules("", T5, [(H * WIDE, D)] * 3 + [(D, H * WIDE)], False),
    "fused": modules("", ("qkv", "proj"), [(3 * H * WIDE, D), (D, H * WIDE)]),
    "fused, no bias": {"qkv.weight": (3 * D, D), "proj.weight": (D, D), "proj.bias": (D,)},
    "torch": {
        "in_proj_weight": (3 * D, D),
        "in_proj_bias": (3 * D,),
        "out_proj.weight": (D, D),
        "out_proj.bias": (D,),
        "bias_k": (1, 1, D),
        "bias_v": (1, 1, D),
    },
    "torch, other widths": {
        "q_proj_weight": (D, D),
        "k_proj_weight": (D, 10),
        "v_proj_weight": (D, 7),
        "in_proj_bias": (3 * D,),
        "out_proj.weight": (D, D),
        "out_proj.bias": (D,),
    },
    "torch, no bias": {"in_proj_weight": (3 * D, D), "out_proj.weight": (D, D)},
}
PATTERN = {
    "whisper": "bart",
    "qwen2": "llama",
    "qwen3": "llama",
    "t5cross": "t5",
}  # of each kind; else what stands before the comma
CONFIGS = {
    "llama": {"model_type": "llama", "num_attention_heads": H, "num_key_value_heads": G, "rope_theta": 100.0},
    "qwen2": {"model_type": "qwen2", "num_attention_heads": H, "num_key_value_heads": G, "rope_theta": 50.0},
    "qwen3": {"num_attention_heads": H, "head_dim": WIDE, "rope_theta": 200.0, "rms_norm_eps": 1e-3},
    "meta": {"n_heads": H, "n_kv_heads": G, "rope_theta": 100.0},
    "bart": {"model_type": "bart", "d_model": D, "encoder_attention_heads": H, "decoder_attention_heads": H},
    "distilbert": {"model_type": "distilbert", "dim": D, "n_heads": H},
    "gpt2": {"n_head": H, "n_embd": D},
    "t5": {"num_heads": H, "d_kv": WIDE, "d_model": D},
}
NAMES = {"bert": BERT, "albert": ALBERT, "vit": VIT, "bart": BART, "distilbert": DISTILBERT}
KINDS = list(SHAPES)


def pattern_of(kind):
    return PATTERN.get(kind, kind.partition(",")[0])


def state_of(kind, dtype=np.float64):
    """The state of one layer, under its prefix."""
    return drawn(
        sorted(SHAPES).index(kind), {f"{AT[kind]}.{name}": shape for name, shape in SHAPES[kind].items()}, dtype
    )


def bare(state, kind):
    return {name.removeprefix(f"{AT[kind]}."): x for name, x in state.items()}


# ---------------------------------------------------------------------------------------------- what models compute
def turned_half(x, base):
    """Hugging Face: x cos + rotate_half(x) sin, of x (heads, n, d)."""
    d = x.shape[-1]
    angles = np.arange(x.shape[1])[:, None] / base ** (np.arange(0, d, 2) / d)
    cos, sin = (np.concatenate([f(angles)] * 2, axis=-1) for f in (np.cos, np.sin))
    return x * cos + np.concatenate([-x[..., d // 2 :], x[..., : d // 2]], axis=-1) * sin


def turned_pairs(x, base):
    """Meta: neighbours as complex numbers, multiplied by exp(i angle)."""
    d = x.shape[-1]
    angles = np.arange(x.shape[1])[:, None] / base ** (np.arange(0, d, 2) / d)
    y = (x[..., ::2] + 1j * x[..., 1::2]) * (np.cos(angles) + 1j * np.sin(angles))
    return np.stack([y.real, y.imag], axis=-1).reshape(x.shape)


def by_hand(kind, state, x, memory=None, bias=0.0):
    """What the model's own layer gives for tokens x (n, D); causal where the model is."""
    s = bare(state, kind)
    if pattern_of(kind) in NAMES:
        names = NAMES[pattern_of(kind)]
        q, k, v = (heads_of(linear(s, name, x), H) for name in names[:3])
        return linear(s, names[3], attended(q, k, v))
    if kind == "gpt2":
        q, k, v = np.split(x @ s["c_attn.weight"] + s["c_attn.bias"], 3, axis=1)
        out = attended(heads_of(q, H), heads_of(k, H), heads_of(v, H), causal=True)
        return out @ s["c_proj.weight"] + s["c_proj.bias"]
    if pattern_of(kind) in ("llama", "meta"):
        names = META if kind == "meta" else LLAMA
        q, k, v = (heads_of(linear(s, name, x), n) for name, n in zip(names[:3], (H, G, G), strict=True))
        if kind == "qwen3":
            q, k = (
                y / np.sqrt((y**2).mean(-1, keepdims=True) + 1e-3) * s[f"{name}_norm.weight"]
                for y, name in ((q, "q"), (k, "k"))
            )
        turn = turned_pairs if kind == "meta" else turned_half
        q, k = (turn(y, CONFIGS[kind]["rope_theta"]) for y in (q, k))
        return linear(s, names[3], attended(q, k, v, causal=True))
    if pattern_of(kind) == "t5":
        tokens = x if memory is None else memory
        q, k, v = (heads_of(linear(s, name, y), H) for name, y in zip("qkv", (x, tokens, tokens), strict=True))
        return linear(s, "o", attended(q, k, v, scale=1.0, bias=bias))
    if pattern_of(kind) == "fused":  # timm: reshape(n, 3, heads, d)
        fused = linear(s, "qkv", x)
        q, k, v = fused.reshape(len(x), 3, H, -1).transpose(1, 2, 0, 3)
        return linear(s, "proj", attended(q, k, v))
    raise AssertionError(kind)


def torch_by_hand(state, kind, x, key, value, zeros=False):
    """nn.MultiheadAttention's own steps."""
    s = bare(state, kind)
    packed = "in_proj_weight" in s
    weights = np.split(s["in_proj_weight"], 3) if packed else [s[f"{name}_proj_weight"] for name in "qkv"]
    biases = np.split(s["in_proj_bias"], 3) if "in_proj_bias" in s else [0, 0, 0]
    q, k, v = (y @ w.T + b for y, w, b in zip((x, key, value), weights, biases, strict=True))
    if "bias_k" in s:
        k, v = np.concatenate([k, s["bias_k"][0]]), np.concatenate([v, s["bias_v"][0]])
    if zeros:
        k, v = np.concatenate([k, np.zeros((1, D))]), np.concatenate([v, np.zeros((1, D))])
    out = attended(*(heads_of(y, H) for y in (q, k, v)))
    return linear(s, "out_proj", out)
