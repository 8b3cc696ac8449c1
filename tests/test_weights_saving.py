"""A layer in a file and back, equal to the bit, with whatever transform of ours; files that hold no layer."""

import json

import numpy as np
import pytest
from states import AT, CONFIGS, H, state_of

import headwise as hw
from headwise import files, frequencies, transforms, weights

RNG = np.random.default_rng(3)
NORM = transforms.qk_norm(RNG.standard_normal(4).astype(np.float32), RNG.standard_normal(4), eps=1e-5)
YARN = transforms.rotary(style="half", frequencies=frequencies.yarn(4, 4.0, 32))
DYNAMIC = weights.from_state_dict(
    state_of("llama"),
    config=CONFIGS["llama"] | {"rope_scaling": {"type": "dynamic", "factor": 2.0}, "max_position_embeddings": 4},
).transform
TRANSFORMS = {
    "none": None,
    "rope": transforms.rotary(style="interleaved", base=123.456789, dims=2),
    "yarn": YARN,
    "angles": transforms.rotary(style="half", frequencies=[0.1, 1 / 3]),
    "norm": NORM,
    "both": transforms.compose(NORM, YARN),
    "nested": transforms.compose(transforms.compose(NORM), transforms.compose(), YARN),
    "dynamic": DYNAMIC,
}
ENDINGS = [".npz", ".safetensors"]
ARRAYS = ("w_q", "w_k", "w_v", "w_o", "b_q", "b_k", "b_v", "b_o", "bias_k", "bias_v")


def equal(a, b):
    """Whether two layers hold the same bits and do the same."""
    for name in ARRAYS:
        x, y = getattr(a, name), getattr(b, name)
        assert (x is None) == (y is None), name
        if x is not None:
            assert (x.dtype, x.shape, x.tobytes()) == (y.dtype, y.shape, y.tobytes()), name
    numbers = ("d_model", "n_heads", "n_kv_heads", "d_head", "d_key", "d_value", "scale")
    assert [getattr(a, name) for name in numbers] == [getattr(b, name) for name in numbers]
    assert repr(a) == repr(b)
    tokens = [RNG.standard_normal((6, width)) for width in (a.d_model, a.d_key, a.d_value)]
    np.testing.assert_allclose(a(*tokens), b(*tokens), rtol=0, atol=1e-13)  # rows and columns may lie otherwise


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("name", TRANSFORMS)
def test_a_layer_comes_back_with_its_transform(tmp_path, name, ending):
    layer = hw.MultiHeadAttention(8, 6, n_kv_heads=2, d_head=4, transform=TRANSFORMS[name], use_bias=True, seed=4)
    path = tmp_path / f"layer{ending}"
    weights.save(layer, path)
    equal(layer, weights.load(path))


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16])
def test_a_layer_comes_back_with_scale_learned_rows_and_other_widths(tmp_path, dtype, ending):
    path = tmp_path / f"layer{ending}"
    for kind in ("torch", "t5", "torch, other widths"):
        layer = weights.from_state_dict(state_of(kind, dtype), AT[kind], n_heads=H, add_zero_attn=kind == "torch")
        weights.save(layer, path, force=True)
        equal(layer, weights.load(path))


def test_bfloat16_needs_a_file_that_knows_it(tmp_path):
    bfloat16 = pytest.importorskip("ml_dtypes").bfloat16
    eye = np.eye(4).astype(bfloat16)
    layer = hw.MultiHeadAttention.from_arrays(eye, eye, eye, eye, n_heads=2)
    with pytest.raises(TypeError, match=r"w_q: expected a type of NumPy's own in an \.npz file, got bfloat16; name it"):
        weights.save(layer, tmp_path / "layer.npz")
    weights.save(layer, tmp_path / "layer.safetensors")
    equal(layer, weights.load(tmp_path / "layer.safetensors"))


def test_weights_of_safetensors_stay_in_the_file(tmp_path):
    weights.save(hw.MultiHeadAttention(8, 2), tmp_path / "layer.safetensors")
    layer = weights.load(tmp_path / "layer.safetensors")
    assert not layer.w_q.flags.writeable
    assert not layer.w_q.flags.owndata


def test_a_file_is_replaced_only_by_force(tmp_path):
    path, layer = tmp_path / "layer.npz", hw.MultiHeadAttention(8, 2)
    weights.save(layer, path)
    before = path.read_bytes()
    with pytest.raises(
        files.FileError, match=r"expected a new name, got one that exists; name another, or replace it by force=True$"
    ):
        weights.save(hw.MultiHeadAttention(8, 2, seed=1), path)
    assert path.read_bytes() == before
    weights.save(hw.MultiHeadAttention(8, 2, seed=1), path, force=True)
    assert path.read_bytes() != before


def test_what_no_file_can_hold(tmp_path):
    own = transforms.compose(YARN, lambda q, k, *_: (q, k))
    with pytest.raises(TypeError, match=r"save: transform\.1: expected None or one that headwise\.transforms made"):
        weights.save(hw.MultiHeadAttention(8, 2, transform=own), tmp_path / "layer.npz")
    with pytest.raises(TypeError, match="save: layer: expected a MultiHeadAttention, got int 3"):
        weights.save(3, tmp_path / "layer.npz")
    with pytest.raises(files.FileError, match=r"layer\.bin: expected a name that ends in \.safetensors or \.npz"):
        weights.save(hw.MultiHeadAttention(8, 2), tmp_path / "layer.bin")
    assert list(tmp_path.iterdir()) == []


def broken(tmp_path, change):
    """The file of a layer, with something of it changed."""
    weights.save(hw.MultiHeadAttention(8, 2, transform=YARN), tmp_path / "layer.npz")
    arrays = files.read_arrays(tmp_path / "layer.npz")
    said = json.loads(arrays["layer.json"].tobytes())
    text = change(said, arrays)
    arrays["layer.json"] = np.frombuffer((json.dumps(said) if text is None else text).encode(), np.uint8)
    files.write_arrays(tmp_path / "layer.npz", arrays, force=True)
    return tmp_path / "layer.npz"


@pytest.mark.parametrize(
    "change",
    [
        lambda said, arrays: arrays.pop("w_o") is None or None,
        lambda said, arrays: arrays.pop("transform.angles") is None or None,
        lambda said, arrays: said.pop("n_heads") is None or None,
        lambda said, arrays: said.update(n_heads=3),
        lambda said, arrays: said.update(n_heads="2"),
        lambda said, arrays: said.update(format=2),
        lambda said, arrays: said.update(scale="wide"),
        lambda said, arrays: said.update(transform={"kind": "shout"}),
        lambda said, arrays: said.update(transform={"kind": "rotary", "loud": 1, "magnitude": None}),
        lambda said, arrays: said.update(transform=[1]),
        lambda said, arrays: arrays.update(w_q=np.zeros((3, 3))),
        lambda said, arrays: "[]",
        lambda said, arrays: "{",
        lambda said, arrays: "[" * 100_000,
        lambda said, arrays: "\x00",
    ],
)
def test_a_file_that_is_damaged_is_one_line(tmp_path, change):
    path = broken(tmp_path, change)
    with pytest.raises(files.FileError, match="expected a layer, got one that does not fit") as caught:
        weights.load(path)
    assert "\n" not in str(caught.value)


def test_a_file_of_something_else(tmp_path):
    files.write_arrays(tmp_path / "other.npz", {"q": np.eye(2)})
    with pytest.raises(files.FileError, match=r"other\.npz: expected a layer, got q; name a file that headwise\.weigh"):
        weights.load(tmp_path / "other.npz")
    files.write_safetensors(tmp_path / "other.safetensors", {"q": np.eye(2)})
    with pytest.raises(files.FileError, match=r"other\.safetensors: expected a layer, got q"):
        weights.load(tmp_path / "other.safetensors")


@pytest.mark.parametrize("ending", [".safetensors", ".npz"])
def test_numbers_of_numpy_are_kept(tmp_path, ending):
    turned = transforms.rotary(style="half", base=np.float32(7), dims=np.int64(4))
    layer = hw.MultiHeadAttention(16, 2, transform=turned)
    layer.scale = np.float32(0.5)
    weights.save(layer, tmp_path / f"layer{ending}")
    again, x = weights.load(tmp_path / f"layer{ending}"), np.random.default_rng(0).standard_normal((3, 16))
    np.testing.assert_allclose(again(x), layer(x), rtol=1e-12, atol=1e-12)


def test_what_npz_does_not_keep_is_refused_in_transforms_too(tmp_path):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    ones = np.ones(8, ml_dtypes.bfloat16)
    layer = hw.MultiHeadAttention(16, 2, transform=transforms.qk_norm(ones, ones))
    with pytest.raises(TypeError, match=r"a type of NumPy's own in an \.npz file, got bfloat16"):
        weights.save(layer, tmp_path / "layer.npz")
    assert not (tmp_path / "layer.npz").exists()
