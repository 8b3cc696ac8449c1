"""Files and configurations with a value replaced: one error of the house's form, or the layer that is meant."""

import itertools
import json
import math
import re

import numpy as np
import pytest
from checkpoints import ROWS, read
from states import AT, CONFIGS, H, state_of

import headwise as hw
from headwise import files, frequencies, transforms, weights

ODD = [None, True, False, -1, 0, 1, 3, 2**70, 0.5, -2.5, 1e300, math.nan, math.inf, -math.inf]
ODD += ["x", "", "\x1b[2J\u202e", [], [1], {}, {"x": 1}, [[[]]]]
RNG = np.random.default_rng(5)
X = RNG.standard_normal((3, 8))
NORM = transforms.qk_norm(np.ones(4), np.ones(4))
RAW = "Error: '|unsupported operand|not supported between|object is not|no attribute|NoneType' obj|division|positional"


def of_the_house(error, lines=20):
    """Whether an error has a function or a file, what was expected and what came, and nothing for a terminal to do."""
    text = str(error)
    assert text.count("\n") < lines
    assert "expected" in text
    assert "got" in text
    assert all(character.isprintable() or character == "\n" for character in text)
    assert not re.search(RAW, text), text


def paths_of(value, path=()):
    """The places of all values inside a value of JSON."""
    yield path
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in inner:
        yield from paths_of(part, (*path, key))


def replaced(value, path, other):
    if not path:
        return other
    made = dict(value) if isinstance(value, dict) else list(value)
    made[path[0]] = replaced(value[path[0]], path[1:], other)
    return made


# ------------------------------------------------------------------------------------------------------ layer.json
DYNAMIC = weights.from_state_dict(
    state_of("llama"),
    config=CONFIGS["llama"] | {"rope_scaling": {"type": "dynamic", "factor": 2.0}, "max_position_embeddings": 4},
).transform
TRANSFORMS = {
    "yarn": transforms.compose(NORM, transforms.rotary(style="half", frequencies=frequencies.yarn(4, 4.0, 32))),
    "rope": transforms.rotary(style="interleaved", base=7.0, dims=2),
    "dynamic": DYNAMIC,
}


def saved(tmp_path, transform):
    layer = hw.MultiHeadAttention(8, 6, n_kv_heads=2, d_head=4, transform=transform, seed=4)
    weights.save(layer, tmp_path / "layer.npz")
    arrays = files.read_arrays(tmp_path / "layer.npz")
    return layer, arrays, json.loads(arrays.pop("layer.json").tobytes())


def loaded(path, arrays, said):
    text = said if isinstance(said, str) else json.dumps(said)
    np.savez(path, **arrays, **{"layer.json": np.frombuffer(text.encode(), np.uint8)})
    return weights.load(path)


@pytest.mark.parametrize("name", TRANSFORMS)
def test_a_value_of_a_saved_layer_is_replaced(tmp_path, name):
    layer, arrays, said = saved(tmp_path, TRANSFORMS[name])
    refused = 0
    for path, odd in itertools.product(paths_of(said), ODD):
        try:
            again = loaded(tmp_path / "odd.npz", arrays, replaced(said, path, odd))
        except files.FileError as error:
            of_the_house(error, lines=1)
            refused += 1
        else:
            again(X)
            assert path != ("format",) or (odd == 1 and odd is not True)
    assert refused > 50
    np.testing.assert_array_equal(loaded(tmp_path / "odd.npz", arrays, said)(X), layer(X))


@pytest.mark.parametrize("name", TRANSFORMS)
def test_a_key_of_a_saved_layer_is_lost_or_added(tmp_path, name):
    _, arrays, said = saved(tmp_path, TRANSFORMS[name])
    for path in paths_of(said):
        if path and isinstance(path[-1], str):
            whole = said
            for key in path[:-1]:
                whole = whole[key]
            for other in ({key: x for key, x in whole.items() if key != path[-1]}, whole | {"other": 1}):
                with pytest.raises(files.FileError) as caught:
                    loaded(tmp_path / "odd.npz", arrays, replaced(said, path[:-1], other))
                of_the_house(caught.value)


@pytest.mark.parametrize("dims", [6, 2**40])
def test_rope_of_more_columns_than_a_head_has_is_refused_when_it_is_read(tmp_path, dims):
    _, arrays, said = saved(tmp_path, TRANSFORMS["rope"])
    said["transform"]["dims"] = dims
    with pytest.raises(files.FileError, match=r"expected a layer, got one that does not fit .*dims: expected"):
        loaded(tmp_path / "odd.npz", arrays, said)


@pytest.mark.parametrize("change", [np.ones(3), np.ones((2, 2)), np.ones(8) * 1j, np.array(["a"]), np.zeros(0)])
@pytest.mark.parametrize("name", ["transform.0.q_weight", "transform.1.angles", "w_q", "w_o"])
def test_an_array_of_a_saved_layer_is_replaced(tmp_path, name, change):
    _, arrays, said = saved(tmp_path, TRANSFORMS["yarn"])
    assert name in arrays
    with pytest.raises(files.FileError) as caught:
        loaded(tmp_path / "odd.npz", arrays | {name: change}, said)
    of_the_house(caught.value)


@pytest.mark.parametrize("deep", [30, 300, 3000, 30_000])
def test_transforms_within_transforms(tmp_path, deep):
    _, arrays, said = saved(tmp_path, None)
    text = json.dumps(said | {"transform": "HERE"})
    nested = '{"kind": "compose", "parts": [' * deep + "]}" * deep
    try:
        again = loaded(tmp_path / "odd.npz", arrays, text.replace('"HERE"', nested))
    except files.FileError as error:
        of_the_house(error)
        assert deep > 30
    else:
        repr(again)
        again(X)
        weights.save(again, tmp_path / "again.npz")
        np.testing.assert_array_equal(weights.load(tmp_path / "again.npz")(X), again(X))


def test_what_is_written_can_be_read(tmp_path):
    rope = transforms.rotary(style="half")
    deep = rope
    for _ in range(33):
        deep = transforms.compose(deep)
    with pytest.raises(
        ValueError, match="save: transform: expected at most 32 transforms one within another, got more"
    ):
        weights.save(hw.MultiHeadAttention(8, 2, transform=deep), tmp_path / "layer.npz")
    many = transforms.compose(*[rope] * 2000)
    with pytest.raises(ValueError, match="save: transform: expected one whose description has at most 100000 bytes"):
        weights.save(hw.MultiHeadAttention(8, 2, transform=many), tmp_path / "layer.npz")
    assert list(tmp_path.iterdir()) == []


def test_a_text_is_not_read_before_its_size_is_known(tmp_path, monkeypatch):
    path = tmp_path / "layer.npz"
    weights.save(hw.MultiHeadAttention(8, 2), path)
    arrays = files.read_arrays(path)
    np.savez_compressed(path, **(arrays | {"layer.json": np.full(3_000_000, ord(" "), np.uint8)}))
    assert path.stat().st_size < 10_000
    read = []
    monkeypatch.setattr(files, "read_arrays", lambda *given, **options: read.append(given))
    with pytest.raises(
        files.FileError, match=r"layer\.json: expected a text of at most 100000 bytes, got uint8 of sha"
    ):
        weights.load(path)
    assert read == []


@pytest.mark.parametrize("text", [np.zeros((2, 2), np.uint8), np.zeros(4), np.array(1, np.uint8)])
def test_a_text_of_another_kind(tmp_path, text):
    files.write_arrays(tmp_path / "layer.npz", {"w_q": np.eye(2), "layer.json": text})
    with pytest.raises(files.FileError, match=r"layer\.json: expected a text of at most 100000 bytes, got .* of shape"):
        weights.load(tmp_path / "layer.npz")


def test_a_long_text_among_metadata(tmp_path):
    metadata = {"layer.json": " " * 100_001}
    files.write_safetensors(tmp_path / "layer.safetensors", {"w_q": np.eye(2)}, metadata=metadata)
    with pytest.raises(files.FileError, match=r"layer\.json: expected a text of at most 100000 bytes, got 100001"):
        weights.load(tmp_path / "layer.safetensors")


def test_arrays_that_are_no_layers_are_not_read(tmp_path, monkeypatch):
    path = tmp_path / "layer.npz"
    weights.save(hw.MultiHeadAttention(8, 2), path)
    np.savez(path, **files.read_arrays(path), other=np.zeros(9))
    read, reads = [], files.read_arrays
    monkeypatch.setattr(files, "read_arrays", lambda path, names: read.extend(names) or reads(path, names))
    weights.load(path)
    assert sorted(read) == ["layer.json", "w_k", "w_o", "w_q", "w_v"]


@pytest.mark.parametrize("path", [None, 3, b"layer.npz", ["layer.npz"]])
def test_what_is_no_path(path):
    with pytest.raises(TypeError, match=r"^load: path: expected a str or a path, got "):
        weights.load(path)
    with pytest.raises(TypeError, match=r"^save: path: expected a str or a path, got "):
        weights.save(hw.MultiHeadAttention(8, 2), path)


# -------------------------------------------------------------------------------------------------- configurations
STRETCHED = {
    "linear": {"factor": 2.0},
    "dynamic": {"factor": 2.0, "original_max_position_embeddings": 8},
    "llama3": {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8},
    "yarn": {
        "factor": 4.0,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "attention_factor": 1.5,
        "mscale": 1.0,
        "mscale_all_dim": 0.5,
        "original_max_position_embeddings": 8,
        "truncate": True,
    },
}
MORE = {
    "gpt2": {"scale_attn_weights": True, "attention_multiplier": None, "position_embedding_type": "absolute"},
    "bert": {"num_attention_heads": H, "model_type": "bert", "position_embedding_type": "absolute", "alibi": False},
    "meta": {"use_scaled_rope": True, "norm_eps": 1e-5, "partial_rotary_factor": 1.0},
    "qwen3": {"query_pre_attn_scalar": 16, "attn_logit_softcapping": None, "clip_qkv": None},
}


def survives(state, prefix, config):
    """Whether a layer comes of a configuration and can be called; else its error is one of the house's."""
    try:
        layer = weights.from_state_dict(state, prefix, config=config)
    except (TypeError, ValueError) as error:
        of_the_house(error)
        return False
    assert layer(np.ones((2, layer.d_model))).shape == (2, layer.d_model)
    return True


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_a_value_of_a_real_configuration_is_replaced(row):
    fixture = read(row.name)
    if row.name == "torch-widths":  # takes tokens of other widths
        return
    assert survives(fixture.state, fixture.prefix, fixture.config)
    kept = sum(
        survives(fixture.state, fixture.prefix, replaced(fixture.config, path, odd))
        for path, odd in itertools.product(paths_of(fixture.config), ODD)
        if path
    )
    assert kept


@pytest.mark.parametrize("kind", [*STRETCHED, *MORE])
def test_a_value_of_a_rope_is_replaced(kind):
    name = kind if kind in MORE else "llama"
    config = CONFIGS.get(name, {}) | MORE.get(kind, {})
    if kind in STRETCHED:
        config |= {"max_position_embeddings": 32, "rope_scaling": STRETCHED[kind] | {"rope_type": kind}}
    assert survives(state_of(name), AT[name], config)
    for path, odd in itertools.product(paths_of(config), ODD):
        survives(state_of(name), AT[name], replaced(config, path, odd))


@pytest.mark.parametrize(
    "more",
    [
        {"mscale": 1.0, "mscale_all_dim": -10 / math.log(4.0)},  # a divisor of 0
        {"mscale": 1.0, "mscale_all_dim": -100.0},
        {"mscale": -100.0, "mscale_all_dim": 1.0},
        {"mscale": 1e308, "mscale_all_dim": 1e-308, "factor": 1e308},
        {"factor": -4.0, "mscale": 1.0, "mscale_all_dim": 1.0},
        {"factor": 0.0, "mscale": 1.0, "mscale_all_dim": 1.0},
        {"factor": "4", "mscale": 1.0, "mscale_all_dim": 1.0},
    ],
)
def test_magnitudes_of_yarn_that_mean_nothing(more):
    rope = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8} | more
    with pytest.raises((TypeError, ValueError), match="expected") as caught:
        weights.from_state_dict(state_of("llama"), config=CONFIGS["llama"] | {"rope_scaling": rope})
    of_the_house(caught.value)
