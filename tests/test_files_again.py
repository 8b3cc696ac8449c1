"""files: what is read late is the file that was opened, wherever one has gone since; how many may be open."""

import json
import mmap
import os
import resource
import zipfile
from contextlib import contextmanager

import numpy as np
import pytest
import torch_files as made
from test_files import npy
from test_files import zipped as npz

from headwise.files import FileError, open_checkpoint, read_arrays, write_arrays, write_bytes, write_safetensors

LATE = ["folder", "compressed.npz"]
ALL = [*LATE, "npz", "safetensors", "pt"]
OLD, NEW = np.arange(3.0), np.arange(3.0) + 7


def save(folder, kind, array=OLD):
    """Write an array w as a file or folder; return its path, and the file that holds the array."""
    if kind == "folder":
        (folder / "in").mkdir(exist_ok=True)
        np.save(folder / "in" / "w.npy", array)
        return folder / "in", folder / "in" / "w.npy"
    path = folder / f"a.{kind}"
    if kind == "compressed.npz":
        np.savez_compressed(path, w=array)
    elif kind == "pt":
        path.write_bytes(made.zipped(made.state(made.tensor())))
    else:
        (write_arrays if kind == "npz" else write_safetensors)(path, {"w": array}, force=True)
    return path, path


@pytest.mark.parametrize("kind", LATE)
def test_a_file_that_another_has_replaced_is_not_read(tmp_path, kind):
    path, file = save(tmp_path, kind)
    read = open_checkpoint(path)
    (tmp_path / "new").mkdir()
    _, other = save(tmp_path / "new", kind, NEW)
    times = file.stat().st_atime_ns, file.stat().st_mtime_ns
    os.replace(other, file)
    os.utime(file, ns=times)  # of the same size and time: another file all the same
    with pytest.raises(FileError, match=r"w: expected the file that was opened, got one that has changed since it was"):
        read["w"]
    assert open_checkpoint(path)["w"].tolist() == NEW.tolist()


@pytest.mark.parametrize("kind", LATE)
def test_a_file_that_was_written_to_is_not_read(tmp_path, kind):
    path, file = save(tmp_path, kind)
    read = open_checkpoint(path)
    os.utime(file, ns=(0, file.stat().st_mtime_ns + 1))
    with pytest.raises(FileError, match=r"got one that has changed since it was opened; open it again$"):
        read["w"]


@pytest.mark.parametrize("kind", LATE)
def test_a_file_that_grew_is_not_read(tmp_path, kind):
    path, file = save(tmp_path, kind)
    read, before = open_checkpoint(path), file.stat().st_mtime_ns
    with open(file, "ab") as more:
        more.write(b"0")
    os.utime(file, ns=(0, before))
    with pytest.raises(FileError, match=r"got one that has changed since it was opened; open it again$"):
        read["w"]


@pytest.mark.parametrize("kind", LATE)
def test_a_file_that_is_gone_or_a_pipe_now(tmp_path, kind):
    path, file = save(tmp_path, kind)
    read = open_checkpoint(path)
    file.unlink()
    with pytest.raises(FileError, match=r"w: expected a file that can be read, got 'No such file or directory'"):
        read["w"]
    os.mkfifo(file)
    with pytest.raises(FileError, match=r"w: expected a file, got a named pipe"):
        read["w"]


@pytest.mark.parametrize("kind", ALL)
def test_another_working_directory_makes_no_difference(tmp_path, monkeypatch, kind):
    for place, array in (("here", OLD), ("there", NEW)):
        (tmp_path / place).mkdir()
        path, _ = save(tmp_path / place, kind, array)
    monkeypatch.chdir(tmp_path / "here")
    read = open_checkpoint(path.name)
    name, before = next(iter(read)), open_checkpoint(path.name)
    before = before[name].tolist()
    monkeypatch.chdir(tmp_path / "there")
    assert read[name].tolist() == before
    assert read.path == path.name


def test_a_zip_file_that_is_replaced_while_it_is_opened(tmp_path, monkeypatch):
    path, _ = save(tmp_path, "compressed.npz")
    absolute = os.path.abspath

    def replaced(name):
        np.savez_compressed(tmp_path / "new.npz", w=NEW)
        os.replace(tmp_path / "new.npz", path)
        return absolute(name)

    monkeypatch.setattr(os.path, "abspath", replaced)
    with pytest.raises(FileError, match=r"got one that has changed since it was opened; open it again$"):
        open_checkpoint(path)


@pytest.mark.parametrize("read", [open_checkpoint, read_arrays])
@pytest.mark.parametrize("size", [3, 5000])  # read whole with its header, and when it is asked for
def test_the_checksum_of_a_compressed_member_is_compared(tmp_path, read, size):
    path = tmp_path / "a.npz"
    data = npz(("w.npy", npy(np.random.default_rng(2).random(size))), method=zipfile.ZIP_DEFLATED)
    place = data.index(b"PK\x01\x02") + 16
    path.write_bytes(data[:place] + bytes(4) + data[place + 4 :])
    with pytest.raises(FileError, match=r"a\.npz: w: expected an undamaged file, got 'Bad CRC-32"):
        read(path)["w"]


def test_the_checksum_of_a_mapped_member_is_not(tmp_path):
    """It would take reading the file: what copies the array compares it."""
    path, data = tmp_path / "a.npz", npz(("w.npy", npy(OLD)))
    place = data.index(b"PK\x01\x02") + 16
    path.write_bytes(data[:place] + bytes(4) + data[place + 4 :])
    assert open_checkpoint(path)["w"].tolist() == OLD.tolist()
    with pytest.raises(FileError, match=r"got 'Bad CRC-32 for file 'w\.npy''"):
        read_arrays(path)


# ------------------------------------------------------------------------------------------- many files
@contextmanager
def files_at_most(more):
    """Let this process open so many files more, and no others."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = (number for number in range(soft) if not os.path.exists(f"/proc/self/fd/{number}"))
    limit = next(number for n, number in enumerate(free) if n == more)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


linux = pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="counts the open files in /proc")
TOO_MANY = (
    r"expected no more open files and maps than the system allows, got .*'Too many open files'; keep fewer arrays"
)


@linux
def test_a_folder_of_more_files_than_can_be_open(tmp_path):
    for n in range(300):
        np.save(tmp_path / f"w{n}.npy", np.arange(n + 1.0))
    with files_at_most(50):
        read = open_checkpoint(tmp_path)
        assert [array.size for array in read.values()] == [read.tensor(name).shape[0] for name in read]
        with pytest.raises(FileError, match=rf"w\d+: {TOO_MANY} at once, since each keeps its file open") as caught:
            dict(read)
    assert len(str(caught.value).splitlines()) == 1


@linux
@pytest.mark.parametrize("kind", ["safetensors", "bin"])
def test_more_shards_than_can_be_open(tmp_path, kind):
    index = {}
    for n in range(60):
        index[f"w{n}"] = f"{n}.{kind}"
        if kind == "bin":
            program = made.state(made.tensor()).replace(made.text("w0"), made.text(f"w{n}"))
            (tmp_path / f"{n}.bin").write_bytes(made.zipped(program))
        else:
            write_safetensors(tmp_path / f"{n}.safetensors", {f"w{n}": OLD})
    (tmp_path / "a.index.json").write_text(json.dumps({"weight_map": index}))
    assert len(open_checkpoint(tmp_path / "a.index.json")) == 60
    with files_at_most(40), pytest.raises(FileError, match=rf"^.*/\d+\.{kind}: {TOO_MANY}"):
        open_checkpoint(tmp_path / "a.index.json")


@linux
@pytest.mark.parametrize("kind", ALL)
def test_no_file_can_be_opened(tmp_path, kind):
    path, _ = save(tmp_path, kind)
    read = open_checkpoint(path)
    with files_at_most(0):
        with pytest.raises(FileError, match=TOO_MANY):
            open_checkpoint(path)
        if kind in LATE:
            with pytest.raises(FileError, match=TOO_MANY):
                read["w"]
        if kind.endswith("npz"):
            with pytest.raises(FileError, match=TOO_MANY):
                read_arrays(path)
        with pytest.raises(FileError, match=TOO_MANY):
            write_bytes(tmp_path / "b.png", b"", ending=".png")


def test_a_map_for_which_there_is_no_memory(tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise OSError(12, "Cannot allocate memory")

    path, _ = save(tmp_path, "safetensors")
    monkeypatch.setattr(mmap, "mmap", refuse)
    with pytest.raises(FileError, match=r"no more open files and maps than .*, got 'Cannot allocate memory'; keep few"):
        open_checkpoint(path)
