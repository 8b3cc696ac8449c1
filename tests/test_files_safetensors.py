"""files/safetensors: what is written is what the format's library writes, and what it writes is read."""

import json
import os
import sys

import ml_dtypes
import numpy as np
import pytest
from bits import bits
from safetensors import deserialize
from safetensors.numpy import save

from headwise.files import FileError, open_checkpoint, write_safetensors
from headwise.files import safetensors as ours

BFLOAT = np.dtype(ml_dtypes.bfloat16)
ARRAYS = {
    "double": np.array([np.nan, np.inf, -0.0, 5e-324]),
    "single": np.linspace(-1, 1, 30, dtype=np.float32).reshape(2, 3, 5),
    "half": np.arange(6, dtype=np.float16).reshape(2, 3),
    "bfloat": np.arange(7, dtype=np.float32).astype(BFLOAT),
    "e4m3": np.arange(5, dtype=np.float32).astype(ml_dtypes.float8_e4m3fn),
    "e5m2": np.arange(5, dtype=np.float32).astype(ml_dtypes.float8_e5m2),
    **{f"int{n}": np.arange(-3, 4).astype(f"i{n // 8}") for n in (8, 16, 32, 64)},
    **{f"uint{n}": np.arange(7).astype(f"u{n // 8}") for n in (8, 16, 32, 64)},
    "bool": np.array([[True, False, True]]),
    "none": np.empty((0, 3)),
    "one": np.array(7.5),
    "注意": np.arange(3.0),
    'quo"te\n': np.arange(2.0),
}


def saved(path, header, values=b"", length=None):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes((len(text) if length is None else length).to_bytes(8, "little") + text + values)
    return path


def test_the_bytes_are_those_of_the_library(tmp_path):
    path = tmp_path / "a.safetensors"
    for metadata in (None, {"n_heads": "2"}):
        write_safetensors(path, ARRAYS, metadata=metadata, force=True)
        assert path.read_bytes() == save(ARRAYS, metadata)


def test_the_library_reads_what_is_written(tmp_path):
    write_safetensors(tmp_path / "a.safetensors", ARRAYS)
    read = dict(deserialize((tmp_path / "a.safetensors").read_bytes()))
    assert {name: (tuple(part["shape"]), bytes(part["data"])) for name, part in read.items()} == {
        name: (array.shape, array.tobytes()) for name, array in ARRAYS.items()
    }


def test_what_the_library_writes_is_read(tmp_path):
    path = tmp_path / "a.safetensors"
    path.write_bytes(save(ARRAYS, {"format": "pt"}))
    read = open_checkpoint(path)
    assert read.metadata == {"format": "pt"}
    assert set(read) == set(ARRAYS)
    for name, array in ARRAYS.items():
        assert read.tensor(name) == (array.shape, array.dtype, str(path))
        assert bits(read[name]) == bits(array)
        assert not read[name].flags.writeable


@pytest.mark.parametrize(
    "array", [np.arange(7, dtype=">f4"), np.arange(35.0).reshape(5, 7)[::-2, 1::3], np.arange(6.0).reshape(2, 3).T]
)
def test_other_orders_are_written_in_the_format_s(tmp_path, array):
    write_safetensors(tmp_path / "a.safetensors", {"w": array})
    read = open_checkpoint(tmp_path / "a.safetensors")["w"]
    np.testing.assert_array_equal(read, array)
    assert read.dtype == array.dtype.newbyteorder("=")


def test_equal_arrays_and_metadata_give_equal_bytes_in_any_order(tmp_path):
    write_safetensors(tmp_path / "a.safetensors", ARRAYS, metadata={"a": "1", "b": "2"})
    backwards = dict(reversed(ARRAYS.items()))
    write_safetensors(tmp_path / "b.safetensors", backwards, metadata={"b": "2", "a": "1"})
    assert (tmp_path / "a.safetensors").read_bytes() == (tmp_path / "b.safetensors").read_bytes()


def test_what_cannot_be_written(tmp_path, monkeypatch):
    path = tmp_path / "a.safetensors"
    rows = [
        ({"w": np.array([1j])}, {}, r"a\.safetensors: w: expected one of .*, got dtype complex128"),
        ({"w": np.array(["a"])}, {}, r"w: expected one of .*, got dtype <U1"),
        ({"w": np.array([None])}, {}, r"w: expected one of .*, got dtype object"),
        ({"__metadata__": np.ones(1)}, {}, r"names other than __metadata__, got '__metadata__'"),
        ({3: np.ones(1)}, {}, r"expected texts, .* got 3; give str"),
        ({"w": np.ones(1)}, {"n": 3}, r"expected texts, .* got 3; give str"),
        ({"\ud800": np.ones(1)}, {}, r"expected texts that UTF-8 can hold"),
    ]
    for arrays, metadata, says in rows:
        with pytest.raises(FileError, match=says):
            write_safetensors(path, arrays, metadata=metadata)
    with pytest.raises(FileError, match=r"a\.npz: expected a name that ends in \.safetensors"):
        write_safetensors(tmp_path / "a.npz", ARRAYS)
    path.write_bytes(b"precious")
    with pytest.raises(FileError, match=r"expected a new name, got one that exists"):
        write_safetensors(path, ARRAYS)

    def full(number):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(FileError, match=r"expected to write \d+ bytes, got 'No space left on device'"):
        write_safetensors(path, ARRAYS, force=True)
    assert path.read_bytes() == b"precious"
    assert os.listdir(tmp_path) == ["a.safetensors"]


def test_any_json_of_the_form_is_read(tmp_path):
    entry = b'{ "data_offsets" : [ 0 ,4 ], "shape":[1],\t"dtype":"F32"}'
    header = b' \n{"__metadata__":{"\\u0061":"\\"\\u00e9\\n"}, "w\\u0030" :' + entry + b"}\r\n   "
    read = open_checkpoint(saved(tmp_path / "a.safetensors", header, np.float32(3).tobytes()))
    assert read.metadata == {"a": '"é\n'}
    assert {name: array.tolist() for name, array in read.items()} == {"w0": [3]}


def test_values_at_odd_places_are_views_all_the_same(tmp_path):
    for spaces in range(8):
        header = json.dumps({"w": {"dtype": "F32", "shape": [3], "data_offsets": [0, 12]}}).encode() + b" " * spaces
        path = saved(tmp_path / "a.safetensors", header, np.arange(3, dtype=np.float32).tobytes())
        read = open_checkpoint(path)["w"]
        assert read.tolist() == [0, 1, 2]
        assert not read.flags.owndata


@pytest.mark.parametrize("key", ARRAYS)
def test_the_order_of_an_arrays_bytes_does_not_matter(tmp_path, key):
    array = ARRAYS[key]
    swapped = array.astype(array.dtype.newbyteorder())
    assert swapped.dtype.itemsize == 1 or swapped.tobytes() != array.tobytes() or not array.size
    for name, x in (("one", array), ("other", swapped)):
        write_safetensors(tmp_path / f"{name}.safetensors", {"w": x})
    assert (tmp_path / "one.safetensors").read_bytes() == (tmp_path / "other.safetensors").read_bytes()
    assert bits(open_checkpoint(tmp_path / "other.safetensors")["w"]) == bits(array)


def test_a_file_of_no_arrays(tmp_path):
    assert dict(open_checkpoint(saved(tmp_path / "a.safetensors", {}))) == {}


@pytest.mark.parametrize("key", ["bfloat", "e4m3", "e5m2"])
def test_without_ml_dtypes_all_is_told_and_reading_gives_the_command(tmp_path, monkeypatch, key):
    write_safetensors(tmp_path / "a.safetensors", {"plain": np.ones(2), "w": ARRAYS[key]})
    known = open_checkpoint(tmp_path / "a.safetensors").tensor("w")
    old = type(sys)("ml_dtypes")
    old.__version__ = "0.1"
    for present, expected in (
        (None, f"w: expected the package ml_dtypes, for {known.type}, got none; pip install 'headwise[weights]'"),
        (old, f"w: expected a version of ml_dtypes with {known.type}, got version 0.1; pip install .* --upgrade"),
    ):
        monkeypatch.setitem(sys.modules, "ml_dtypes", present)
        checkpoint = open_checkpoint(tmp_path / "a.safetensors")
        told = checkpoint.tensor("w")
        assert (told.shape, told.type, told.dtype.itemsize) == (known.shape, known.type, known.dtype.itemsize)
        assert np.array_equal(checkpoint["plain"], np.ones(2))
        with pytest.raises(FileError, match=expected.replace("[", r"\[")):
            checkpoint["w"]


def test_every_type_of_the_table_is_tested():
    names = {ours._name_of(array.dtype, "here") for array in ARRAYS.values()}
    assert names == set(ours._DTYPES)
