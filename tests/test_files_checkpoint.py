"""files/checkpoint, shards, npy_entries: every format is one mapping, listed without being read."""

import json
import mmap
import os
import subprocess
import sys

import numpy as np
import pytest
import torch_files as made
from bits import bits

from headwise.files import Checkpoint, FileError, Tensor, open_checkpoint, shown, write_arrays, write_safetensors

ARRAYS = {
    "w_q": np.arange(6, dtype=np.float16).reshape(2, 3),
    "b_q": np.asfortranarray(np.arange(35.0).reshape(5, 7)),
    "mask": np.array([True, False]),
    "empty": np.empty((3, 0)),
}


def save(folder, kind):
    path = folder / f"a.{kind}"
    if kind == "folder":
        path.mkdir()
        for name, array in ARRAYS.items():
            np.save(path / f"{name}.npy", array)
    elif kind == "compressed.npz":
        np.savez_compressed(path, **ARRAYS)
    else:
        (write_arrays if kind == "npz" else write_safetensors)(path, ARRAYS)
    return path


@pytest.mark.parametrize("kind", ["npz", "compressed.npz", "folder", "safetensors"])
def test_formats_of_arrays(tmp_path, kind):
    read = open_checkpoint(save(tmp_path, kind))
    assert set(read) == set(ARRAYS)
    assert len(read) == 4
    for name, array in ARRAYS.items():
        assert read.tensor(name)[:2] == (array.shape, array.dtype)
        assert os.path.isfile(read.tensor(name).file)
        assert bits(read[name]) == bits(array)
        assert not read[name].flags.writeable
        assert read[name].flags.owndata == (kind == "compressed.npz" and read[name].base is None)


@pytest.mark.parametrize("kind", ["npz", "folder", "safetensors"])
def test_what_is_stored_is_mapped(tmp_path, kind):
    array = open_checkpoint(save(tmp_path, kind))["b_q"]
    while isinstance(array, np.ndarray):
        array = array.base
    assert isinstance(array.obj if isinstance(array, memoryview) else array, mmap.mmap)


def test_a_name_that_is_not_there(tmp_path):
    read = open_checkpoint(save(tmp_path, "npz"))
    assert "w_v" not in read
    assert read.get("w_v") is None
    for ask in (read.__getitem__, read.tensor):
        with pytest.raises(KeyError, match=r"a\.npz has no array 'w_v'; it has w_q, b_q, mask, empty"):
            ask("w_v")
    assert repr(read) == f"Checkpoint('{tmp_path}/a.npz', 4 arrays)"


def test_nothing_is_read_before_it_is_asked_for(tmp_path):
    path = tmp_path / "a.safetensors"
    write_safetensors(path, {"w": np.array([True])})
    data = path.read_bytes()
    path.write_bytes(data[:-1] + b"\7")
    read = open_checkpoint(path)
    assert read.tensor("w") == Tensor((1,), np.dtype(bool), str(path))
    with pytest.raises(FileError, match=r"a\.safetensors: w: expected bool values of 0 or 1, got 7"):
        read["w"]


def test_a_folder_of_a_model(tmp_path):
    with pytest.raises(FileError, match=r"expected a folder of \.npy files or of a model, got neither"):
        open_checkpoint(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(made.zipped(made.state(made.tensor())))
    assert list(open_checkpoint(tmp_path)) == ["w0"]
    write_safetensors(tmp_path / "model.safetensors", {"w": np.ones(2)})
    assert isinstance(open_checkpoint(tmp_path), Checkpoint)
    assert list(open_checkpoint(tmp_path)) == ["w"]
    assert open_checkpoint(tmp_path).path == str(tmp_path / "model.safetensors")


def test_what_is_not_there_is_said_before_its_name_is_judged(tmp_path):
    for name in ("model", "model.safetensor", "a.txt"):
        with pytest.raises(FileError, match="expected a file that can be read, got 'No such file or directory'"):
            open_checkpoint(tmp_path / name)
    (tmp_path / "a.txt").write_text("text")
    with pytest.raises(FileError, match=r"expected a folder, or a name that ends in .*\.safetensors, .*, got another"):
        open_checkpoint(tmp_path / "a.txt")


def test_a_folder_of_files_under_other_names_says_which_are_there(tmp_path):
    for name in ("mha.pt", "notes.txt", "a\x1b.safetensors", "Z.index.json"):
        (tmp_path / name).write_bytes(b"-")
    with pytest.raises(FileError) as refusal:
        open_checkpoint(tmp_path)
    expected = "expected a folder of .npy files, or of a model under its usual names"
    held = f"got Z.index.json, {shown('a' + chr(27) + '.safetensors')}, mha.pt; name one of these, as Z.index.json"
    assert str(refusal.value) == f"{tmp_path}: {expected}, {held}"
    np.save(tmp_path / "w.npy", np.ones(2))
    assert list(open_checkpoint(tmp_path)) == ["w"]


# ------------------------------------------------------------------------------------------- shards
PARTS = {"1.safetensors": {"b": np.ones(2), "a": np.zeros(3)}, "2.safetensors": {"c": np.arange(4)}}
MAP = {"c": "2.safetensors", "a": "1.safetensors", "b": "1.safetensors"}


def shards(folder, index=None):
    for name, arrays in PARTS.items():
        write_safetensors(folder / name, arrays, force=True)
    path = folder / "model.safetensors.index.json"
    head = {"metadata": {"total_size": 72, "of": [{}, [1.5e-3, None, True]]}}
    path.write_text(index if isinstance(index, str) else json.dumps({**head, "weight_map": index or MAP}))
    return path


def test_shards_are_one_checkpoint_in_the_order_of_the_index(tmp_path):
    read = open_checkpoint(shards(tmp_path))
    assert {name: array.tolist() for name, array in read.items()} == {"c": [0, 1, 2, 3], "a": [0, 0, 0], "b": [1, 1]}
    assert list(read) == ["c", "a", "b"]
    assert read.tensor("c").file == str(tmp_path / "2.safetensors")
    assert list(open_checkpoint(tmp_path)) == ["c", "a", "b"]


def test_shards_of_pytorch(tmp_path):
    (tmp_path / "1.bin").write_bytes(made.zipped(made.state(made.tensor())))
    path = tmp_path / "pytorch_model.bin.index.json"
    path.write_text(json.dumps({"weight_map": {"w0": "1.bin"}}))
    assert open_checkpoint(path)["w0"].shape == (2, 3)


def test_one_error_lists_all_that_does_not_fit(tmp_path):
    index = {**MAP, "d": "2.safetensors", "e": "3.safetensors", "a": "2.safetensors"}
    with pytest.raises(
        FileError,
        match=r"missing files: 3\.safetensors; names not in their file: a in 2\.safetensors, d in 2\.safetensors; "
        r"names in two files: a in 1\.safetensors, too; download it again$",
    ):
        open_checkpoint(shards(tmp_path, index))


def test_an_array_that_lies_in_two_shards(tmp_path):
    shards(tmp_path)
    write_safetensors(tmp_path / "2.safetensors", {"c": np.arange(4), "a": np.ones(3)}, force=True)
    with pytest.raises(FileError, match=r"names in two files: a in 2\.safetensors, too; download"):
        open_checkpoint(tmp_path)


# ------------------------------------------------------------------------------------------- size
LIST = """
import resource, sys
from headwise.files import open_checkpoint
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
read = open_checkpoint(sys.argv[1])
shapes = [read.tensor(name).shape for name in read]
first = read["w0"][0, :3].tolist()
print([len(shapes), first, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before])
"""


@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss is in other units elsewhere")
def test_a_sparse_file_of_a_gigabyte_is_listed_without_being_read(tmp_path):
    rows, path = 1 << 20, tmp_path / "large.safetensors"
    header = {f"w{n}": {"dtype": "F32", "shape": [rows, 16], "data_offsets": [n << 26, n + 1 << 26]} for n in range(16)}
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + (1 << 30))
    ran = subprocess.run([sys.executable, "-c", LIST, path], capture_output=True, text=True, check=True, timeout=60)
    count, first, kibibytes = json.loads(ran.stdout)
    assert (count, first) == (16, [0, 0, 0])
    assert kibibytes < 50 << 10


def test_an_index_of_a_large_model_is_read(tmp_path):
    """Of 48 layers of 128 experts: names are most of the file."""
    names = [
        f"model.layers.{i}.mlp.experts.{j}.{part}_proj.weight"
        for i in range(48)
        for j in range(128)
        for part in ("gate", "up", "down")
    ]
    index = {"metadata": {}, "weight_map": dict.fromkeys(names, "model-00001-of-00001.safetensors")}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index, indent=2))
    with pytest.raises(FileError, match=r"missing files: model-00001-of-00001\.safetensors"):
        open_checkpoint(tmp_path)
