"""Layers of checkpoints that other libraries made: what they give here is what those libraries gave."""

import copy

import numpy as np
import pytest
from checkpoints import BY_NAME, FOLDER, ROWS, by_hand, call_of, frequencies_of, position_bias, read

from headwise import masks, transforms
from headwise.layers.weights import from_state_dict

# Of the largest output, and of 1 for weights. The worst that was measured is 6.6e-7, from 32 and 24 products summed
# in float32 in another order; a mistake is off by 100 times as much as is tolerated, at least.
TOLERANCE = 2e-6


def loaded(row, fixture):
    zeros = fixture.config.get("add_zero_attn", False)
    return from_state_dict(fixture.state, fixture.prefix, config=fixture.config, add_zero_attn=zeros)


def tokens(fixture):
    return fixture.seen["x"], fixture.seen.get("key"), fixture.seen.get("value")


def output_error(fixture, out):
    """How far an output is off, of the largest."""
    right = fixture.seen["out"]
    assert out.shape == right.shape
    assert out.dtype == np.float32
    return np.abs(out - right).max() / np.abs(right).max()


def error(fixture, layer, call):
    """How far both outputs, by the engine and by the definition, and the weights are off."""
    out, weights = layer(*tokens(fixture), **call, return_weights=True)
    right = fixture.seen["weights"]
    assert weights.shape == right.shape
    return max(
        output_error(fixture, layer(*tokens(fixture), **call)),
        output_error(fixture, out),
        np.abs(weights - right).max(),
    )


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_a_layer_gives_what_the_library_gave(row):
    fixture = read(row.name)
    assert error(fixture, loaded(row, fixture), call_of(row, fixture)) < TOLERANCE


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_the_layer_is_the_one_made_by_hand(row):
    """To the bit: of what no output shows, a bias of all keys, too."""
    fixture = read(row.name)
    layer, expected = loaded(row, fixture), by_hand(row, fixture)
    assert (layer.n_heads, layer.n_kv_heads, layer.scale) == (expected.n_heads, expected.n_kv_heads, expected.scale)
    for name in ("w_q", "w_k", "w_v", "w_o", "b_q", "b_k", "b_v", "b_o", "bias_k", "bias_v"):
        np.testing.assert_array_equal(getattr(layer, name), getattr(expected, name), name)


@pytest.mark.parametrize("name", ["t5-encoder", "t5-decoder"])
def test_the_position_bias_is_the_librarys(name):
    fixture = read(name)
    np.testing.assert_array_equal(call_of(BY_NAME[name], fixture)["bias"], fixture.seen["bias"][0])


def test_every_file_is_in_the_table_and_small():
    files = sorted(FOLDER.iterdir())
    assert [path.name for path in files] == sorted(
        f"{row}.{end}" for row in ROWS for end in ("json", "npz", "safetensors")
    )
    assert max(path.stat().st_size for path in files) <= 100_000
    assert sum(path.stat().st_size for path in files) <= 600_000


# -------------------------------------------------------------------------------------------- mistakes, planted
def replaced(layer, **changes):
    """A copy of a layer with another transform, or with arrays replaced by what a function makes of them."""
    layer = copy.copy(layer)
    for name, change in changes.items():
        old = getattr(layer, name)
        setattr(layer, name, change if name == "transform" else None if old is None else change(old))
    return layer


def in_layer(**changes):
    return lambda row, fixture, layer, call: (replaced(layer, **changes), call)


def in_call(**changes):
    return lambda row, fixture, layer, call: (layer, call | changes)


def heads_inside(row, fixture, layer, call):
    """Columns read as (d_head, H), not (H, d_head)."""

    def otherwise(x):
        return x.reshape(*x.shape[:-1], layer.d_head, -1).swapaxes(-1, -2).reshape(x.shape)

    return replaced(layer, **dict.fromkeys(("w_q", "w_k", "w_v", "b_q", "b_k", "b_v"), otherwise)), call


def key_heads_swapped(row, fixture, layer, call):
    def swapped(x):
        return np.roll(x, x.shape[-1] // 2, axis=-1)

    return replaced(layer, **dict.fromkeys(("w_k", "w_v", "b_k", "b_v"), swapped)), call


def turned(**options):
    """Rope otherwise, and the norms as they were."""

    def plant(row, fixture, layer, call):
        known = {"style": "half", "base": fixture.config["rope_parameters"]["rope_theta"]} | options
        turn, parts = transforms.rotary(**known), getattr(layer.transform, "parts", ())
        return replaced(layer, transform=transforms.compose(*parts[:-1], turn)), call

    return plant


def without_magnitude(row, fixture, layer, call):
    angles, _ = frequencies_of(fixture.config["rope_parameters"], layer.d_head)
    return replaced(layer, transform=transforms.rotary(style="half", frequencies=angles)), call


def interleaved(row, fixture, layer, call):
    known = frequencies_of(fixture.config["rope_parameters"], layer.d_head)
    return turned(style="interleaved", frequencies=known)(row, fixture, layer, call)


def norms(make):
    """`make(rope, w_q, w_k, eps)` is the transform instead."""

    def plant(row, fixture, layer, call):
        weights = (fixture.state[f"{fixture.prefix}self_attn.{letter}_norm.weight"] for letter in "qk")
        rope = layer.transform.parts[-1]
        return replaced(layer, transform=make(rope, *weights, fixture.config["rms_norm_eps"])), call

    return plant


def window(left):
    return lambda row, fixture, layer, call: (
        layer,
        call | {"mask": masks.keys(fixture.seen["valid"]) & masks.window(left, 0)},
    )


def unpadded(row, fixture, layer, call):
    return layer, call | {"mask": masks.window(row.window - 1, 0) if row.window else np.ones((1, 1), bool)}


def buckets(bidirectional, max_distance):
    def plant(row, fixture, layer, call):
        table = fixture.state[f"{fixture.prefix}SelfAttention.relative_attention_bias.weight"]
        bias = position_bias(table, call["bias"].shape[-1], bidirectional=bidirectional, max_distance=max_distance)
        return layer, call | {"bias": bias}

    return plant


TORCH = "torch-packed torch-widths torch-bias-kv "
BARTS = "bart-encoder bart-cross bart-whisper "
BERTS = "bert distilbert albert vit " + BARTS
PLAIN_ROPE = "llama mistral qwen2 qwen3 "
ROPE = PLAIN_ROPE + "llama3 yarn "
T5S = "t5-encoder t5-decoder t5-cross "
ALL = TORCH + "gpt2 fused " + BERTS + ROPE + T5S
BIASED = TORCH + "gpt2 fused " + BERTS
SQUARE = BIASED + "llama llama3 yarn mistral qwen2 "
SQUARE_KEYS = BIASED.replace("torch-widths ", "")

# A bias of all keys adds one number to all scores of a query, which no softmax notices, unless rope turns it or there
# are keys without it: b_k shows in two rows.
MISTAKES = [
    ("w_q transposed", SQUARE, in_layer(w_q=np.transpose)),
    ("w_k transposed", SQUARE_KEYS, in_layer(w_k=np.transpose)),
    ("w_v transposed", SQUARE_KEYS, in_layer(w_v=np.transpose)),
    ("w_o transposed", SQUARE, in_layer(w_o=np.transpose)),
    ("no b_q", BIASED + "qwen2", in_layer(b_q=np.zeros_like)),
    ("no b_k", "torch-bias-kv qwen2", in_layer(b_k=np.zeros_like)),
    ("no b_v", BIASED + "qwen2", in_layer(b_v=np.zeros_like)),
    ("no b_o", BIASED, in_layer(b_o=np.zeros_like)),
    ("no bias_k", "torch-bias-kv", in_layer(bias_k=np.zeros_like)),
    ("no bias_v", "torch-bias-kv", in_layer(bias_v=np.zeros_like)),
    ("heads inside", ALL, heads_inside),
    ("query heads in another order", ALL, in_layer(w_q=lambda w: np.roll(w, w.shape[-1] // 4, axis=-1))),
    ("key heads swapped", ROPE, key_heads_swapped),
    ("scale 1", BIASED + ROPE, in_call(scale=1.0)),
    ("the usual scale", T5S, lambda row, fixture, layer, call: (layer, call | {"scale": layer.d_head**-0.5})),
    ("not causal", "torch-bias-kv gpt2 llama llama3 yarn qwen2 qwen3 t5-decoder bart-whisper", in_call(causal=False)),
    ("padding seen", ALL.replace("vit ", "").replace("fused ", ""), unpadded),
    ("window of W + 1", "mistral", window(3)),
    ("window of W - 1", "mistral", window(1)),
    ("rope interleaved", ROPE, interleaved),
    ("rope of the usual base", PLAIN_ROPE, turned(base=10_000.0)),
    ("rope not stretched", "llama3 yarn", turned()),
    ("no rope", ROPE.replace("qwen3 ", ""), in_layer(transform=None)),
    ("no magnitude", "yarn", without_magnitude),
    ("no norm", "qwen3", norms(lambda rope, q, k, eps: rope)),
    (
        "norm after rope",
        "qwen3",
        norms(lambda rope, q, k, eps: transforms.compose(rope, transforms.qk_norm(q, k, eps))),
    ),
    ("norms swapped", "qwen3", norms(lambda rope, q, k, eps: transforms.compose(transforms.qk_norm(k, q, eps), rope))),
    ("eps 1e-6", "qwen3", norms(lambda rope, q, k, eps: transforms.compose(transforms.qk_norm(q, k, 1e-6), rope))),
    ("no position bias", "t5-encoder t5-decoder", in_call(bias=None)),
    ("buckets of the other direction", "t5-encoder", buckets(False, 10)),
    ("buckets of the other direction", "t5-decoder", buckets(True, 10)),
    (
        "buckets of max_distance 128",
        "t5-encoder t5-decoder",
        lambda row, *rest: buckets("enc" in row.name, 128)(row, *rest),
    ),
]


@pytest.mark.parametrize(
    ("name", "plant"),
    [pytest.param(name, plant, id=f"{name}: {what}") for what, names, plant in MISTAKES for name in names.split()],
)
def test_a_mistake_shows(name, plant):
    row, fixture = BY_NAME[name], read(name)
    wrong = plant(row, fixture, loaded(row, fixture), call_of(row, fixture))
    assert error(fixture, *wrong) > 100 * TOLERANCE


@pytest.mark.parametrize("name", ALL.replace("qwen3 ", "").replace("t5-encoder t5-decoder ", "").split())
def test_half_the_heads_show(name):
    row, fixture = BY_NAME[name], read(name)
    config = {key: n // 2 if "head" in key and isinstance(n, int) else n for key, n in fixture.config.items()}
    config |= {key: 2 * fixture.config[key] for key in ("head_dim", "d_kv") if key in config}
    layer = loaded(row, fixture._replace(config=config))
    assert output_error(fixture, layer(*tokens(fixture), **call_of(row, fixture))) > 100 * TOLERANCE
