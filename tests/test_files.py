"""files: what is read, what is refused before it is allocated, and that writing is whole or not at all."""

import io
import os
import re
import signal
import socket
import struct
import sys
import tracemalloc
import zipfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from bits import bits

from headwise.files import (
    FileError,
    array_names,
    check_target,
    npz_writing,
    read_arrays,
    read_bytes,
    shown,
    write_arrays,
    write_bytes,
    write_safetensors,
    writing,
)
from headwise.files import npy as npy_files

ARRAYS = {
    "half": np.arange(6, dtype=np.float16).reshape(2, 3),
    "single": np.linspace(-1, 1, 30, dtype=np.float32).reshape(2, 3, 5),
    "double": np.array([np.nan, np.inf, -0.0, 5e-324]),
    "big_endian": np.arange(7, dtype=">f4"),
    "bool": np.array([[True, False, True]]),
    "small_int": np.arange(-5, 6, dtype=np.int8),
    "complex": np.array([1 + 2j, 3j]),
    "words": np.array(["[CLS]", "注意", ""]),
    "dates": np.array(["2017-06-12"], "datetime64[D]"),
    "fortran": np.asfortranarray(np.arange(35.0).reshape(5, 7)),
    "view": np.arange(35.0).reshape(5, 7)[::-2, 1::3],
    "single_value": np.array(7.5),
    "no_rows": np.empty((0, 3)),
    "no_columns": np.empty((3, 0, 5), np.float32),
    "record": np.array([(1, 2.5)], dtype=[("a", "i4"), ("b", "f8")]),
}


@contextmanager
def allocating_at_most(limit: int) -> Iterator[None]:
    tracemalloc.start()
    try:
        yield
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < limit


@contextmanager
def seconds_at_most(limit: int) -> Iterator[None]:
    def stop(*_: Any) -> None:
        raise TimeoutError("it waits for ever")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(limit)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def npy(array: Any = (1.0, 2.0), **save: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, np.asarray(array), **save)
    return file.getvalue()


def raw_npy(header: str, values: bytes = b"", version: tuple[int, int] = (1, 0), length: int | None = None) -> bytes:
    """A .npy file whose header says whatever it likes."""
    text = header.encode("latin-1")
    size = len(text) if length is None else length
    return b"\x93NUMPY" + bytes(version) + struct.pack("<H" if version == (1, 0) else "<I", size) + text + values


def header(shape: str = "(2,)", descr: str = "'<f8'", order: str = "False") -> str:
    return f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}, }}\n"


def zipped(*members: tuple[str, bytes], method: int = zipfile.ZIP_STORED) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as archive:
        for name, data in members:
            archive.writestr(name, data)
    return file.getvalue()


def patched(data: bytes, record: bytes, at: int, form: str, value: int) -> bytes:
    """Change a field of the first zip record of a kind: PK12 is the directory's, PK34 the member's own."""
    place = data.index(record) + at
    new = struct.pack(form, value)
    return data[:place] + new + data[place + len(new) :]


DIRECTORY, LOCAL = b"PK\x01\x02", b"PK\x03\x04"


# ------------------------------------------------------------------------------------------- reading
@pytest.mark.parametrize("kind", ["savez", "savez_compressed", "write_arrays", "folder"])
def test_arrays_come_back_as_they_were_saved(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "in.npz"
    if kind == "folder":
        path.mkdir()
        for name, array in ARRAYS.items():
            np.save(path / f"{name}.npy", array)
    elif kind == "write_arrays":
        write_arrays(path, ARRAYS)
    else:
        getattr(np, kind)(path, **ARRAYS)
    read = read_arrays(path)
    assert sorted(read) == sorted(array_names(path)) == sorted(ARRAYS)
    for name, array in ARRAYS.items():
        assert read[name].dtype == array.dtype
        assert read[name].shape == array.shape
        assert read[name].flags.writeable
        assert read[name].flags.f_contiguous == array.flags.f_contiguous or name == "view"
        assert bits(read[name]) == bits(array)


@pytest.mark.parametrize("size", [1 << 18, (1 << 18) + 1, 3 << 18])
@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_arrays_around_the_size_of_a_chunk(tmp_path: Path, size: int, method: int) -> None:
    array = np.random.default_rng(0).integers(0, 255, size, dtype=np.uint8)
    path = tmp_path / "in.npz"
    path.write_bytes(zipped(("x.npy", npy(array)), method=method))
    assert np.array_equal(read_arrays(path)["x"], array)


def test_only_what_is_asked_for_is_looked_at(tmp_path: Path) -> None:
    path = tmp_path / "in.npz"
    bad = npy(np.array([{}], dtype=object), allow_pickle=True)
    path.write_bytes(zipped(("q.npy", npy()), ("other.npy", bad), ("a/b.npy", b""), ("note.txt", b"hello")))
    assert list(read_arrays(path, ["q"])) == ["q"]
    assert list(read_arrays(path, ["q"], optional=["mask", "q2"])) == ["q"]
    assert array_names(path) == ["q", "other", "a/b"]
    with pytest.raises(FileError, match=r"other: expected numbers, got dtype object"):
        read_arrays(path, ["q"], optional=["other"])


def test_version_2_and_python_2_headers_are_read_without_a_warning(tmp_path: Path) -> None:
    file = io.BytesIO()
    np.lib.format.write_array(file, np.arange(3.0), version=(2, 0))
    (tmp_path / "two.npy").write_bytes(file.getvalue())
    (tmp_path / "old.npy").write_bytes(raw_npy(header("(3L,)"), np.arange(3.0).tobytes()))
    assert all(np.array_equal(array, np.arange(3.0)) for array in read_arrays(tmp_path).values())


# ----------------------------------------------------------------------------------------- refusing
OBJECTS = np.array([{}, None], dtype=object)
NESTED = np.zeros(2, dtype=[("a", "f8"), ("b", [("c", object)])])
STORED = zipped(("q.npy", npy(np.arange(100.0))))
DEFLATED = zipped(("q.npy", npy(np.zeros(1000))), method=zipfile.ZIP_DEFLATED)

ZIPS: dict[str, tuple[bytes, str]] = {
    "nothing in it": (b"", r"in\.npz: expected an undamaged file, got 'File is not a zip file'"),
    "text": (b"q = [1, 2]\n" * 50, r"in\.npz: expected an undamaged file, got 'File is not a zip file'"),
    "one npy": (npy(), r"in\.npz: expected an \.npz file or a folder of \.npy files, got one \.npy array"),
    "empty zip": (zipped(), r"in\.npz: expected arrays q; missing q; found nothing"),
    "other names": (zipped(("k.npy", npy()), ("w.npy", npy())), r"missing q; found k, w"),
    "no .npy": (zipped(("q", npy())), r"missing q; found nothing"),
    "zipped folder": (zipped(("in/q.npy", npy())), r"missing q; found in/q"),
    "cut": (STORED[:-40], r"expected an undamaged file"),
    "cut in front": (STORED[200:], r"in\.npz: expected (an undamaged file|members that fit)"),
    "one byte changed": (STORED.replace(np.float64(37).tobytes(), np.float64(36).tobytes()), r"q: .*Bad CRC-32"),
    "deflate damaged": (DEFLATED[:60] + b"\xff\xff\xff" + DEFLATED[63:], r"q: expected an undamaged file"),
    "encrypted": (patched(STORED, DIRECTORY, 8, "<H", 1), r"q: expected a plain member, got an encrypted one"),
    "bzip2": (patched(STORED, DIRECTORY, 10, "<H", 12), r"q: .* got compression method 12"),
    "lzma": (patched(STORED, DIRECTORY, 10, "<H", 14), r"q: .* got compression method 14"),
    "unknown method": (patched(STORED, DIRECTORY, 10, "<H", 99), r"q: .* got compression method 99"),
    "deflate promises": (patched(DEFLATED, DIRECTORY, 24, "<I", 2**32 - 2), r"q: expected at most \d+ bytes"),
    "stored promises": (patched(STORED, DIRECTORY, 24, "<I", 2**31), r"q: expected at most 928 bytes from 928"),
    "overlapping": (patched(STORED, DIRECTORY, 20, "<I", 2**31), r"in\.npz: expected members that fit its \d+ bytes"),
    "elsewhere": (patched(STORED, DIRECTORY, 42, "<I", 500), r"q: expected an undamaged file"),
    "shorter inside": (patched(DEFLATED, DIRECTORY, 24, "<I", 8000), r"expected the 8000 bytes .*, got 7872"),
    "object": (zipped(("q.npy", npy(OBJECTS, allow_pickle=True))), r"q: .* got dtype object; .* never unpickled"),
}  # name -> file, what its error says

NPYS: dict[str, tuple[bytes, str]] = {
    "nothing in it": (b"", r"q: expected the \.npy format, got bytes that begin b''"),
    "text": (b"1, 2, 3\n" * 10, r"q: expected the \.npy format, got bytes that begin b'1, 2, '"),
    "magic alone": (b"\x93NUMPY", r"q: expected a header of at most 6 bytes"),
    "half a header": (npy()[:40], r"q: expected a header of at most 40 bytes, got a promise of 128"),
    "object": (npy(OBJECTS, allow_pickle=True), r"q: expected numbers, got dtype object"),
    "nested object": (npy(NESTED, allow_pickle=True), r"q: expected numbers, got dtype \[\('a'.*'O'"),
    "promises a petabyte": (raw_npy(header("(10, 12500000000000)"), b"x" * 50), r"q: .* 10{15} bytes .*, got 50"),
    "promises one more": (raw_npy(header("(3,)"), b"x" * 16), r"q: expected the 24 bytes .*, got 16; it is cut"),
    "holds one more": (npy() + npy(), r"q: expected the 16 bytes .*, got 160"),
    "beyond int64": (raw_npy(header(f"({2**40}, {2**40})")), rf"q: expected the {2**83} bytes"),
    "beyond int64 and none": (raw_npy(header(f"(0, {10**30})")), r"q: expected an undamaged file"),
    "negative size": (raw_npy(header("(-2, -1)"), b"x" * 16), r"q: expected a shape of sizes >= 0, got \(-2, -1\)"),
    "100 axes": (raw_npy(header(f"({'1, ' * 100})"), b"x" * 8), r"q: expected an undamaged file"),
    "size of text": (raw_npy(header("('2',)"), b"x" * 16), r"q: expected a \.npy header that NumPy can read"),
    "long header": (raw_npy("{", length=65535), r"q: expected a header of at most 11 bytes, got a promise of 65545"),
    "4 GB header": (
        raw_npy("{" * 20000, version=(2, 0), length=2**32 - 1),
        r"at most 2048 bytes, got a promise of 42",
    ),
    "a header of 3000": (raw_npy(header(f"(2,{' ' * 3000})"), b"x" * 16), r"at most 2048 bytes, got a promise of 30"),
    "version 3": (raw_npy(header(), b"x" * 16, (3, 0)), r"q: expected \.npy version 1\.0 or 2\.0, got 3\.0"),
    "version 9.7": (raw_npy(header(), b"x" * 16, (9, 7)), r"q: expected \.npy version 1\.0 or 2\.0, got 9\.7"),
    "no header": (raw_npy("", b"x" * 16), r"q: expected a \.npy header that NumPy can read"),
    "header of 1": (raw_npy("x", b"x" * 16), r"q: expected a \.npy header that NumPy can read"),
    "nested brackets": (raw_npy("(" * 2000, b"x" * 16), r"q: expected a \.npy header that NumPy can read"),
    "code": (raw_npy("__import__('os').abort()\n"), r"q: expected a \.npy header that NumPy can read"),
    "odd escape": (raw_npy("'\\d'\n"), r"q: expected a \.npy header that NumPy can read"),
    "unknown dtype": (raw_npy(header(descr="'<q7'"), b"x" * 16), r"q: expected a \.npy header that NumPy can read"),
    "no width": (raw_npy(header(f"({10**12},)", "'|S0'")), r"q: expected numbers, got dtype"),
    "subarray": (raw_npy(header("(1,)", "('<f8', (2,))"), b"x" * 16), r"q: expected numbers, got dtype"),
    "bool of 2": (raw_npy(header("(3,)", "'|b1'"), b"\x00\x02\x01"), r"q: expected bool values of 0 or 1, got 2"),
}


def refused(path: Path, says: str) -> None:
    with allocating_at_most(1_000_000), pytest.raises(FileError, match=says) as caught:
        read_arrays(path, ["q"])
    text = str(caught.value)
    assert text.isprintable()  # one line
    assert text.startswith(f"{path}: ")
    assert len(text) < len(str(path)) + 400


@pytest.mark.parametrize("name", ZIPS)
def test_bad_zip_files_are_refused(tmp_path: Path, name: str) -> None:
    data, says = ZIPS[name]
    (tmp_path / "in.npz").write_bytes(data)
    refused(tmp_path / "in.npz", says)


@pytest.mark.parametrize("name", NPYS)
@pytest.mark.parametrize("kind", ["folder", "stored", "deflated"])
def test_bad_arrays_are_refused(tmp_path: Path, name: str, kind: str) -> None:
    data, says = NPYS[name]
    if kind == "folder":
        path = tmp_path / "in"
        path.mkdir()
        (path / "q.npy").write_bytes(data)
    else:
        path = tmp_path / "in.npz"
        method = zipfile.ZIP_STORED if kind == "stored" else zipfile.ZIP_DEFLATED
        path.write_bytes(zipped(("q.npy", data), method=method))
    refused(path, says)


@pytest.mark.filterwarnings("ignore:Duplicate name")  # zipfile's own, about what is made here on purpose
def test_two_members_of_one_name(tmp_path: Path) -> None:
    (tmp_path / "in.npz").write_bytes(zipped(("q.npy", npy()), ("q.npy", npy())))
    refused(tmp_path / "in.npz", r"q: expected one member of that name, got 2")


def test_a_member_in_a_folder_is_no_array_of_ours(tmp_path: Path) -> None:
    path = tmp_path / "in.npz"
    for name in ("../q", "/q", "a/q"):
        path.write_bytes(zipped((f"{name}.npy", npy())))
        with pytest.raises(FileError, match=rf"{name}: expected a member without a folder, got {name}\.npy"):
            read_arrays(path)


def test_names_that_do_not_print_are_escaped(tmp_path: Path) -> None:
    path = tmp_path / "a\nb\x1b[2J.npz"
    path.write_bytes(zipped(("x\x07\n.npy", b"no")))
    with pytest.raises(FileError) as caught:
        read_arrays(path, ["q"])
    assert str(caught.value) == rf"{tmp_path}/a\nb\x1b[2J.npz: expected arrays q; missing q; found x\x07\n"
    assert shown("\ud800\u202e") == r"\ud800\u202e"
    assert shown("x" * 300).endswith("x...")
    assert len(shown("x" * 300)) == 200


def test_many_names_are_cut_with_a_count(tmp_path: Path) -> None:
    (tmp_path / "in.npz").write_bytes(zipped(*((f"a{i}.npy", b"") for i in range(17))))
    refused(tmp_path / "in.npz", r"found a0, a1, .*, a11 and 5 more$")


def test_paths_that_are_no_files(tmp_path: Path) -> None:
    refused(tmp_path / "none.npz", r"none\.npz: expected a file that can be read, got 'No such file or directory'")
    (tmp_path / "loop.npz").symlink_to(tmp_path / "loop.npz")
    refused(tmp_path / "loop.npz", r"got 'Too many levels of symbolic links'")
    (tmp_path / "in").mkdir()
    refused(tmp_path / "in", r"in: expected arrays q; missing q; found nothing")
    (tmp_path / "in" / "q.npy").mkdir()
    refused(tmp_path / "in", r"in: q: expected a file, got a folder; name a regular file")
    with pytest.raises(FileError, match=r"expected a path, got one with an embedded null"):
        read_arrays("a\0b.npz")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
def test_pipes_devices_and_sockets_are_not_even_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(tmp_path / "in.npz")
    os.mkfifo(tmp_path / "q.npy")
    with seconds_at_most(5):
        refused(tmp_path / "in.npz", r"in\.npz: expected a file, got a named pipe")
        refused(tmp_path, r"q: expected a file, got a named pipe")
        refused(Path("/dev/zero"), r"/dev/zero: expected a file, got a device")
        monkeypatch.chdir(tmp_path)  # the name of a socket must be short
        with socket.socket(socket.AF_UNIX) as server:
            server.bind("s.npz")
            refused(Path("s.npz"), r"s\.npz: expected a file, got a socket")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
def test_a_pipe_that_takes_the_name_after_the_check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(tmp_path / "in.npz")
    regular = os.stat(__file__)
    with seconds_at_most(5), monkeypatch.context() as patch:
        patch.setattr(os, "stat", lambda path: regular)
        patch.setattr(os.path, "isdir", lambda path: False)
        with pytest.raises(FileError, match=r"expected a file, got a named pipe"):
            read_arrays(tmp_path / "in.npz")


@pytest.mark.parametrize(
    ("change", "says"), [(8, "values end after 800 of 808 bytes"), (-8, "values go on after 792 bytes")]
)
def test_a_file_that_changes_while_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: int, says: str
) -> None:
    text = header(f"({(800 + change) // 8},)")
    (tmp_path / "q.npy").write_bytes(raw_npy(text, bytes(800)))
    status = os.stat(tmp_path / "q.npy")
    before = SimpleNamespace(st_mode=status.st_mode, st_size=status.st_size + change)
    monkeypatch.setattr(os, "fstat", lambda number: before)
    with pytest.raises(FileError, match=rf"q: expected an undamaged file, got '(the )?{says}'"):
        read_arrays(tmp_path)


@pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="root may read everything: run as another user")
def test_a_file_without_leave_to_read(tmp_path: Path) -> None:
    (tmp_path / "in.npz").write_bytes(STORED)
    (tmp_path / "in.npz").chmod(0)
    refused(tmp_path / "in.npz", r"got 'Permission denied'")


def test_more_than_the_memory_of_the_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "in.npz").write_bytes(STORED)
    monkeypatch.setattr(npy_files, "physical_memory", lambda: 799)
    refused(tmp_path / "in.npz", r"q: expected at most the 799 bytes of memory here, got 800")
    monkeypatch.setattr(npy_files, "physical_memory", lambda: None)
    assert read_arrays(tmp_path / "in.npz")["q"].shape == (100,)


def test_memory_is_unknown_where_the_system_does_not_say(monkeypatch: pytest.MonkeyPatch) -> None:
    assert npy_files.physical_memory() or os.name == "nt"

    def unknown(name: str) -> int:
        raise ValueError(name)

    monkeypatch.setattr(os, "sysconf", unknown)
    assert npy_files.physical_memory() is None


@pytest.mark.parametrize("data", [STORED, DEFLATED], ids=["stored", "deflated"])
def test_any_damage_is_a_file_error_or_nothing(tmp_path: Path, data: bytes) -> None:
    rng = np.random.default_rng(7)
    path = tmp_path / "in.npz"
    outcomes = set()
    for _ in range(400):
        damaged = bytearray(data)
        for place in rng.integers(0, len(data), rng.integers(1, 4)):
            damaged[place] = rng.integers(256)
        path.write_bytes(bytes(damaged)[: rng.integers(len(data) // 2, 2 * len(data))])
        try:
            outcomes.add(read_arrays(path, ["q"])["q"].dtype)
        except FileError as error:
            outcomes.add(str(error).isprintable())
    assert True in outcomes
    assert False not in outcomes


# ------------------------------------------------------------------------------------------- writing
Q = {"q": np.arange(35.0).reshape(5, 7), "k": np.zeros((2, 0), np.float32)}


def only(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


def test_numpy_reads_what_is_written_and_equal_arrays_give_equal_bytes(tmp_path: Path) -> None:
    write_arrays(tmp_path / "a.npz", Q)
    write_arrays(str(tmp_path / "b.NPZ"), Q)
    with np.load(tmp_path / "a.npz", allow_pickle=False) as loaded:
        assert {name: loaded[name].tolist() for name in loaded} == {name: a.tolist() for name, a in Q.items()}
    assert (tmp_path / "a.npz").read_bytes() == (tmp_path / "b.NPZ").read_bytes()
    assert only(tmp_path) == ["a.npz", "b.NPZ"]


def test_a_relative_name_is_written_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_arrays("out.npz", Q)
    assert only(tmp_path) == ["out.npz"]


def test_an_existing_file_is_replaced_only_by_force(tmp_path: Path) -> None:
    path = tmp_path / "out.npz"
    path.write_bytes(b"precious")
    path.chmod(0o604)
    for refuses in (check_target, lambda path: write_arrays(path, Q)):
        with pytest.raises(FileError, match=r"out\.npz: expected a new name, got one that exists; .* --force"):
            refuses(path)
    assert path.read_bytes() == b"precious"
    write_arrays(path, Q, force=True)
    assert np.array_equal(read_arrays(path)["q"], Q["q"])
    assert path.stat().st_mode & 0o777 == 0o604
    assert only(tmp_path) == ["out.npz"]


def test_a_new_file_has_the_permissions_of_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_arrays(tmp_path / "out.npz", Q)
    finally:
        os.umask(before)
    assert (tmp_path / "out.npz").stat().st_mode & 0o777 == 0o640


def test_a_symbolic_link_is_replaced_itself(tmp_path: Path) -> None:
    (tmp_path / "real.npz").write_bytes(b"precious")
    (tmp_path / "link.npz").symlink_to("real.npz")
    (tmp_path / "dangling.npz").symlink_to("nowhere.npz")
    for name in ("link.npz", "dangling.npz"):
        with pytest.raises(FileError, match=rf"{name}: expected a new name"):
            write_arrays(tmp_path / name, Q)
        write_arrays(tmp_path / name, Q, force=True)
        assert not (tmp_path / name).is_symlink()
        assert not (tmp_path / name).stat().st_mode & 0o111  # a link's own permissions are everything
    assert (tmp_path / "real.npz").read_bytes() == b"precious"
    assert only(tmp_path) == ["dangling.npz", "link.npz", "real.npz"]


@pytest.mark.parametrize("write", [check_target, lambda path, force: write_arrays(path, Q, force=force)])
def test_targets_that_cannot_be_written(tmp_path: Path, write: Callable[..., None]) -> None:
    (tmp_path / "folder.npz").mkdir()
    os.mkfifo(tmp_path / "pipe.npz")
    cases = {
        "out.bin": r"out\.bin: expected a name that ends in \.npz",
        "": r"expected a name that ends in \.npz",
        "none/out.npz": r"expected an existing folder, got '.*none', which is none; make it first",
        "folder.npz": r"folder\.npz: expected a file, got a folder",
        "pipe.npz": r"pipe\.npz: expected a file, got a named pipe",
    }
    for name, says in cases.items():
        with pytest.raises(FileError, match=says):
            write(f"{tmp_path}/{name}" if name else "", force=True)
    assert only(tmp_path) == ["folder.npz", "pipe.npz"]


def test_a_folder_without_leave_to_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tmp_path.chmod(0o500)
    if os.access(tmp_path, os.W_OK):  # root may do everything
        monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(FileError, match=r"out\.npz: expected a folder that may be written to, got '"):
        write_arrays(tmp_path / "out.npz", Q)
    tmp_path.chmod(0o700)
    assert only(tmp_path) == []


@pytest.mark.parametrize("name", ["", "a/b", "a\\b", "a\0"])
def test_names_that_could_not_be_read_again_are_not_written(tmp_path: Path, name: str) -> None:
    with pytest.raises(FileError, match=r"out\.npz: .*: expected a plain name"):
        write_arrays(tmp_path / "out.npz", {name: Q["q"]})
    assert only(tmp_path) == []


def test_objects_are_not_written(tmp_path: Path) -> None:
    for array in (OBJECTS, NESTED):
        with pytest.raises(FileError, match=r"out\.npz: q: expected numbers, got dtype .*; objects are never pickled"):
            write_arrays(tmp_path / "out.npz", {"q": array})
    assert only(tmp_path) == []


def failing(error: BaseException) -> Callable[..., Any]:
    def fail(*_: Any, **__: Any) -> Any:
        raise error

    return fail


FAULTS = {
    "fsync": OSError(28, "No space left on device"),
    "chmod": OSError(1, "Operation not permitted"),
    "replace": OSError(18, "Invalid cross-device link"),
}


@pytest.mark.parametrize("step", FAULTS)
def test_a_fault_at_any_step_leaves_the_target_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    path = tmp_path / "out.npz"
    path.write_bytes(b"precious")
    monkeypatch.setattr(os, step, failing(FAULTS[step]))
    with pytest.raises(FileError, match=rf"out\.npz: expected to write 280 bytes, got '{FAULTS[step].strerror}'"):
        write_arrays(path, Q, force=True)
    assert path.read_bytes() == b"precious"
    assert only(tmp_path) == ["out.npz"]


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(28, "No space left on device"), MemoryError()])
def test_an_interrupt_between_two_arrays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    write, written = np.lib.format.write_array, []

    def second_fails(file: Any, array: Any, **options: Any) -> None:
        if written:
            raise error
        written.append(array)
        write(file, array, **options)

    monkeypatch.setattr(np.lib.format, "write_array", second_fails)
    with pytest.raises((KeyboardInterrupt, FileError, MemoryError), match=r"^$|No space left on device"):
        write_arrays(tmp_path / "out.npz", Q)
    assert written
    assert only(tmp_path) == []


def appearing(path: Path) -> Callable[..., None]:
    """Writes as usual, and then somebody else takes the target's name."""
    write = npz_writing._write_npz

    def write_late(temporary: str, *rest: Any) -> None:
        write(temporary, *rest)
        path.write_bytes(b"precious")

    return write_late


@pytest.mark.parametrize("links", [True, False])
def test_a_file_that_appears_meanwhile_is_not_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, links: bool
) -> None:
    path = tmp_path / "out.npz"
    monkeypatch.setattr(npz_writing, "_write_npz", appearing(path))
    if not links:
        monkeypatch.setattr(os, "link", failing(OSError(95, "Operation not supported")))
    with pytest.raises(FileError, match=r"out\.npz: expected a new name, got one that exists"):
        write_arrays(path, Q)
    assert path.read_bytes() == b"precious"
    assert only(tmp_path) == ["out.npz"]


def test_a_file_system_without_hard_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "link", failing(OSError(1, "Operation not permitted")))
    write_arrays(tmp_path / "out.npz", Q)
    assert np.array_equal(read_arrays(tmp_path / "out.npz")["q"], Q["q"])
    monkeypatch.setattr(os, "replace", failing(KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt, match=r"^$"):
        write_arrays(tmp_path / "other.npz", Q)
    assert only(tmp_path) == ["out.npz"]


class Interrupt:
    """Raises KeyboardInterrupt at the nth line of what writes files, as a key may at any."""

    def __init__(self, nth: int) -> None:
        self.left = nth
        self.function = ""

    def trace(self, frame: Any, event: str, _: Any) -> Any:
        if Path(frame.f_code.co_filename).name not in ("writing.py", "npz_writing.py", "safetensors.py"):
            return None
        if event == "line":
            self.left -= 1
            if self.left == 0:
                self.function = frame.f_code.co_name
                raise KeyboardInterrupt
        return self.trace


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # a file that an interrupt left open
@pytest.mark.parametrize("links", [True, False])
@pytest.mark.parametrize("force", [True, False])
@pytest.mark.parametrize("kind", ["npz", "safetensors"])
def test_an_interrupt_at_any_line_leaves_all_or_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, force: bool, links: bool
) -> None:
    """But for a temporary file, where it comes in the very line that removes that."""
    path, write = tmp_path / f"out.{kind}", write_arrays if kind == "npz" else write_safetensors
    if not links:
        monkeypatch.setattr(os, "link", failing(OSError(1, "Operation not permitted")))
    write(path, Q, force=True)
    whole = path.read_bytes()

    def interrupted(nth: int) -> bool:
        path.unlink(missing_ok=True)
        if force:
            path.write_bytes(b"precious")
        interrupt = Interrupt(nth)
        sys.settrace(interrupt.trace)
        try:
            write(path, Q, force=force)
        except KeyboardInterrupt:
            held = path.read_bytes() if path.exists() else None
            assert held in (whole, b"precious" if force else None), interrupt.function
            for name in set(only(tmp_path)) - {path.name}:
                assert interrupt.function in ("write_whole", "_try_folder")
                (tmp_path / name).unlink()
            return True
        finally:
            sys.settrace(None)
        return False

    # In a thread of its own: an exception out of a trace function stays where the thread keeps the one it handles.
    with ThreadPoolExecutor(1) as thread:
        ended = thread.submit(lambda: next(n for n in range(1, 1000) if not interrupted(n))).result()
    assert path.read_bytes() == whole
    assert ended > 50


def test_windows_renames_which_there_replaces_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "new").write_bytes(b"new")
    renamed: list[tuple[str, str]] = []
    monkeypatch.setattr(os, "rename", lambda old, new: renamed.append((old, new)))
    with monkeypatch.context() as patch:
        patch.setattr(os, "name", "nt")
        writing._publish("new", "out.npz", force=False)
    assert renamed == [("new", "out.npz")]


def test_bytes_are_written_as_arrays_are(tmp_path: Path) -> None:
    path = tmp_path / "out.png"
    with pytest.raises(
        FileError, match=r"out\.npz: expected a name that ends in \.png, got another; name the output so"
    ):
        write_bytes(tmp_path / "out.npz", b"1", ending=".png")
    write_bytes(path, b"1", ending=".png")
    with pytest.raises(FileError, match=r"out\.png: expected a new name, got one that exists; .* --force"):
        write_bytes(path, b"2", ending=".png")
    assert path.read_bytes() == b"1"
    path.chmod(0o604)
    write_bytes(path, b"2", ending=".png", force=True)
    assert (path.read_bytes(), path.stat().st_mode & 0o777) == (b"2", 0o604)
    assert only(tmp_path) == ["out.png"]


def test_bytes_are_read_up_to_a_most(tmp_path: Path) -> None:
    path = tmp_path / "in.py"
    path.write_bytes(b"\xff\r\n")
    assert read_bytes(path, most=3) == b"\xff\r\n"
    with pytest.raises(FileError, match=r"in\.py: expected at most 2 bytes, got 3; name a smaller file"):
        read_bytes(path, most=2)
    with pytest.raises(FileError, match=r"expected a file, got a folder; name a regular file"):
        read_bytes(tmp_path, most=2)
    with pytest.raises(FileError, match=r"none: expected a file that can be read, got 'No such file or directory'"):
        read_bytes(tmp_path / "none", most=2)


def test_no_error_says_more_than_its_file(tmp_path: Path) -> None:
    """A refused file never names the temporary one."""
    with pytest.raises(FileError, match=re.escape(f"{tmp_path}/none/out.npz: expected an existing folder")) as caught:
        write_arrays(tmp_path / "none" / "out.npz", Q)
    assert ".tmp" not in str(caught.value)
