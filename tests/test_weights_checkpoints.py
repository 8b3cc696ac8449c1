"""Checkpoints that other libraries made, by name and configuration alone: what they gave, and back to the bit."""

import numpy as np
import pytest
from checkpoints import FOLDER, ROWS, call_of, read
from test_checkpoints import TOLERANCE, error

from headwise import weights
from headwise.files import open_checkpoint

EACH = pytest.mark.parametrize("row", ROWS, ids=str)
PATTERN = {"llama3": "llama", "yarn": "llama", "mistral": "llama", "qwen2": "llama", "qwen3": "llama"}


def loaded(fixture, **options):
    zeros = fixture.config.get("add_zero_attn", False)
    return weights.from_state_dict(fixture.state, fixture.prefix, config=fixture.config, add_zero_attn=zeros, **options)


def found(fixture):
    (layer,) = weights.attention_layers(fixture.state, fixture.config)
    return layer


@EACH
def test_a_layer_gives_what_the_library_gave(row):
    fixture = read(row.name)
    call = {name: value for name, value in call_of(row, fixture).items() if name != "scale"}  # the pattern's own
    assert error(fixture, loaded(fixture), call) < TOLERANCE


@EACH
def test_there_and_back_is_equal_to_the_bit(row):
    fixture = read(row.name)
    zeros = fixture.config.get("add_zero_attn", False)
    layer = found(fixture)
    back = weights.to_state_dict(loaded(fixture), layer.pattern, layer.prefix, add_zero_attn=zeros)
    beside = {name for name in fixture.state if "LayerNorm" in name or "relative_attention_bias" in name}
    assert set(back) == set(fixture.state) - beside
    for name, x in back.items():
        given = fixture.state[name]
        assert (x.dtype, x.shape, x.tobytes()) == (given.dtype, given.shape, given.tobytes())


@EACH
def test_it_is_found_by_its_shapes(row):
    fixture, layer = read(row.name), found(read(row.name))
    made = loaded(fixture)
    assert layer.pattern == PATTERN.get(row.name, row.name.partition("-")[0])
    assert (layer.n_heads, layer.n_kv_heads) == (made.n_heads, made.n_kv_heads)
    assert (layer.d_model, layer.d_q, layer.d_kv) == (made.d_model, made.w_q.shape[1], made.w_k.shape[1])
    assert (layer.rope is not None) == ("rope_parameters" in fixture.config)
    assert layer.prefix.startswith(fixture.prefix.rstrip("."))


@EACH
def test_from_its_file_arrays_stay_in_the_file(row):
    checkpoint, fixture = open_checkpoint(FOLDER / f"{row.name}.safetensors"), read(row.name)
    assert weights.attention_layers(checkpoint, fixture.config) == [found(fixture)]
    layer, made = loaded(fixture._replace(state=checkpoint)), loaded(fixture)
    for name in ("w_q", "w_k", "w_v", "w_o", "b_q", "b_k", "b_v", "b_o"):
        x, y = getattr(layer, name), getattr(made, name)
        assert (x is None) == (y is None)
        if x is not None:
            assert x.tobytes() == y.tobytes()
            assert not x.flags.writeable
            assert not x.flags.owndata


@EACH
def test_every_missing_name_is_named(row):
    fixture = read(row.name)
    alone = {"o_proj.bias", "qkv.bias"}  # may be missing by themselves
    alone |= {"k_proj.bias"} if row.name.startswith("bart") else set()
    beside = ("LayerNorm", "relative_attention_bias")
    for name in fixture.state:
        if any(word in name for word in beside) or any(name.endswith(each) for each in alone):
            continue
        state = {key: x for key, x in fixture.state.items() if key != name}
        with pytest.raises(ValueError, match=f"{name.replace('.', '[.]')}: expected an array"):
            loaded(fixture._replace(state=state))


@EACH
def test_every_wrong_transpose_is_named(row):
    fixture = read(row.name)
    for name, x in fixture.state.items():
        if x.ndim == 2 and x.shape[0] != x.shape[1] and "relative" not in name:
            if row.name == "fused":  # beside a square w_o in either layout
                continue
            with pytest.raises(ValueError, match=f"{name.replace('.', '[.]')}: .*; transposed it fits"):
                loaded(fixture._replace(state=fixture.state | {name: x.T}))


def test_another_scale_than_the_patterns_would_show():
    (row,) = (row for row in ROWS if row.name == "t5-encoder")
    fixture = read(row.name)
    layer = loaded(fixture)
    layer.scale = None
    call = {name: value for name, value in call_of(row, fixture).items() if name != "scale"}
    assert error(fixture, layer, call) > 100 * TOLERANCE


def test_the_arrays_of_the_fixtures_are_not_copied():
    fixture = read("llama")
    layer = loaded(fixture)
    assert all(any(np.shares_memory(getattr(layer, f"w_{x}"), y) for y in fixture.state.values()) for x in "qkvo")
