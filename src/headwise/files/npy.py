"""Arrays out of .npz files and folders of .npy files, safely.

Everything is checked before anything is allocated, nothing is ever unpickled, and nothing here knows what the
arrays mean.
"""

import io
import math
import os
import warnings
import zipfile
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from functools import partial
from typing import IO, Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from headwise.files.errors import AGAIN, FileError, PathLike, file_error, listed, reading, shown
from headwise.files.opening import check_path, open_regular, physical_memory

Members: TypeAlias = dict[str, Callable[[str], tuple[IO[bytes], int]]]
"""Name -> function that opens the array, given the words for messages: its stream, and the bytes it holds."""

_NUMERIC = "save a plain numeric array"
LONGEST_HEADER = 2048  # bytes; NumPy writes 128 for a plain array, and its parser is greedy
_MOST_PER_BYTE = 1032  # deflate cannot expand one byte to more
_CHUNK = 1 << 18


class Header(NamedTuple):
    shape: tuple[int, ...]
    fortran: bool
    dtype: np.dtype[Any]
    length: int  # bytes before the values


_PARSERS = {
    (1, 0): (10, np.lib.format.read_array_header_1_0),
    (2, 0): (12, np.lib.format.read_array_header_2_0),
}  # version -> bytes before the header's text, its parser


def header_bytes(stream: IO[bytes], held: int, where: str) -> bytes:
    """Return magic, version, length and text of a header, whose stated length is not believed."""
    start = stream.read(12)
    if start[:6] != np.lib.format.MAGIC_PREFIX:
        raise file_error(
            where, "the .npy format", f"bytes that begin {start[:6]!r}", "save it with np.save or np.savez"
        )
    version = (start[6], start[7]) if len(start) == 12 else (1, 0)
    if version not in _PARSERS:
        raise file_error(where, ".npy version 1.0 or 2.0", f"{start[6]}.{start[7]}", _NUMERIC)
    text_at = _PARSERS[version][0]
    length = text_at + int.from_bytes(start[8:text_at], "little")
    if length > min(held, LONGEST_HEADER):
        expected = f"a header of at most {min(held, LONGEST_HEADER)} bytes"
        raise file_error(where, expected, f"a promise of {length}", AGAIN)
    return start + stream.read(length - len(start)) if length > len(start) else start[:length]


def parse_header(text: bytes, where: str) -> Header:
    parse = _PARSERS[text[6], text[7]][1]
    stream = io.BytesIO(text[8:])
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # NumPy's about files of Python 2, the parser's about odd escapes
            shape, fortran, dtype = parse(stream)
    except Exception as error:  # SyntaxError, RecursionError, MemoryError of the parser, ValueError, TypeError, ...
        got = f"'{shown(error, 100)}'"
        raise file_error(where, "a .npy header that NumPy can read", got, AGAIN) from error
    return Header(shape, fortran, dtype, len(text))


def check_header(header: Header, held: int, where: str) -> None:
    """Refuse what cannot be taken byte for byte, and promises that the file does not keep."""
    dtype, shape = header.dtype, header.shape
    if dtype.hasobject:
        raise file_error(where, "numbers", f"dtype {dtype}", "objects are never unpickled: use .astype(float)")
    if dtype.itemsize == 0 or dtype.subdtype is not None:
        raise file_error(where, "numbers", f"dtype {dtype}", _NUMERIC)
    if any(size < 0 for size in shape):
        raise file_error(where, "a shape of sizes >= 0", shape, AGAIN)
    promised = math.prod(shape) * dtype.itemsize
    if promised != held - header.length:
        expected = f"the {promised} bytes that its header promises, {shown(f'{dtype} {shape}', 80)}"
        raise file_error(where, expected, held - header.length, f"it is cut or damaged: {AGAIN}")
    memory = physical_memory()
    if memory is not None and promised > memory:
        raise file_error(where, f"at most the {memory} bytes of memory here", promised, "save a part of it")


def _fill(stream: IO[bytes], raw: NDArray[np.uint8]) -> None:
    """Read exactly raw; the extra read makes a zip member compare its checksum."""
    for start in range(0, raw.size, _CHUNK):
        part = raw.data[start : start + _CHUNK]
        data = stream.read(len(part))
        if len(data) != len(part):
            raise EOFError(f"the values end after {start + len(data)} of {raw.size} bytes")
        part[:] = data
    if stream.read(1):
        raise EOFError(f"values go on after {raw.size} bytes")


def read_npy(stream: IO[bytes], held: int, where: str) -> NDArray[Any]:
    header = parse_header(header_bytes(stream, held, where), where)
    check_header(header, held, where)
    raw = np.empty(held - header.length, np.uint8)
    _fill(stream, raw)
    if header.dtype == np.bool_ and raw.size and raw.max() > 1:
        raise file_error(where, "bool values of 0 or 1", int(raw.max()), "save it with dtype bool again")
    return raw.view(header.dtype).reshape(header.shape, order="F" if header.fortran else "C")


def folder_members(path: PathLike) -> Members:
    names = sorted(name for name in os.listdir(path) if name.endswith(".npy"))
    return {name[:-4]: partial(open_regular, os.path.join(path, name)) for name in names}


def check_member(infos: list[zipfile.ZipInfo], where: str) -> zipfile.ZipInfo:
    """Return the one member of a name, if it can be read and does not promise more than its bytes can give."""
    info = infos[0]
    if len(infos) > 1:
        raise file_error(where, "one member of that name", len(infos), AGAIN)
    if "/" in info.filename or "\\" in info.filename:
        raise file_error(where, "a member without a folder", info.filename, "zip the files, not their folder")
    if info.flag_bits & 1:
        raise file_error(where, "a plain member", "an encrypted one", AGAIN)
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise file_error(where, "a stored or deflated member", f"compression method {info.compress_type}", AGAIN)
    most = info.compress_size * (1 if info.compress_type == zipfile.ZIP_STORED else _MOST_PER_BYTE)
    if info.file_size > most:
        raise file_error(where, f"at most {most} bytes from {info.compress_size}", info.file_size, AGAIN)
    return info


def _open_zipped(archive: zipfile.ZipFile, infos: list[zipfile.ZipInfo], where: str) -> tuple[IO[bytes], int]:
    info = check_member(infos, where)
    return archive.open(info), info.file_size


def member_infos(archive: zipfile.ZipFile, held: int, where: str) -> dict[str, list[zipfile.ZipInfo]]:
    """Return the members of an .npz file by the names of their arrays, if together they fit the file."""
    found: dict[str, list[zipfile.ZipInfo]] = {}
    for info in archive.infolist():
        if info.filename.endswith(".npy"):
            found.setdefault(info.filename[:-4], []).append(info)
    claimed = sum(info.compress_size for infos in found.values() for info in infos)
    if claimed > held:  # members that overlap, or a directory that lies
        raise file_error(where, f"members that fit its {held} bytes", f"{claimed} bytes", AGAIN)
    return found


@contextmanager
def _members(path: PathLike, where: str) -> Iterator[Members]:
    with reading(where):
        if os.path.isdir(path):
            yield folder_members(path)
            return
        file, held = open_regular(path, where)
        with file:
            if file.read(6) == np.lib.format.MAGIC_PREFIX:
                remedy = "save all by name, np.savez(path, q=q, k=k, v=v)"
                raise file_error(where, "an .npz file or a folder of .npy files", "one .npy array", remedy)
            with zipfile.ZipFile(file) as archive:
                found = member_infos(archive, held, where)
                yield {name: partial(_open_zipped, archive, infos) for name, infos in found.items()}


def array_names(path: PathLike) -> list[str]:
    """Return the names of the arrays in an .npz file or a folder of .npy files, having read none of them."""
    with _members(path, shown(check_path("array_names", path), 1000)) as members:
        return list(members)


def read_arrays(
    path: PathLike, names: Collection[str] | None = None, *, optional: Collection[str] = ()
) -> dict[str, NDArray[Any]]:
    """Read arrays from an .npz file, or from a folder that holds each as NAME.npy.

    Parameters
    ----------
    path : str or path-like
        The file or folder; a named pipe, a device or a single .npy file is refused.
    names : collection of str, optional
        The arrays that must be there; None reads all that are. Members of other names are not looked at.
    optional : collection of str
        Arrays that are read where they are there, besides `names`.

    Returns
    -------
    dict of str to ndarray
        New, writable arrays.

    Raises
    ------
    FileError
        Anything missing, damaged, of objects, or promised by a header and not held by the file.

    Examples
    --------
    >>> import tempfile, os
    >>> from headwise.files import write_arrays
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = os.path.join(folder, "in.npz")
    ...     write_arrays(path, {"q": np.eye(2), "k": np.ones(3)})
    ...     read_arrays(path, ["q"])
    {'q': array([[1., 0.],
           [0., 1.]])}
    """
    where = shown(check_path("read_arrays", path), 1000)
    with _members(path, where) as members:
        wanted = members if names is None else [*names, *(name for name in optional if name in members)]
        missing = [name for name in wanted if name not in members]
        if missing:
            text = f"expected arrays {listed(names or ())}; missing {listed(missing)}; found {listed(members)}"
            raise FileError(f"{where}: {text}")
        return {name: _read_member(f"{where}: {shown(name, 60)}", members[name]) for name in wanted}


def _read_member(where: str, opened: Callable[[str], tuple[IO[bytes], int]]) -> NDArray[Any]:
    with reading(where):
        stream, held = opened(where)
        with stream:
            return read_npy(stream, held, where)


def read_array(path: PathLike) -> NDArray[Any]:
    """Read the one array of an .npy file.

    Parameters
    ----------
    path : str or path-like
        The file; a named pipe, a device or another format is refused.

    Returns
    -------
    ndarray
        New and writable.

    Raises
    ------
    FileError
        Missing, damaged, of objects, or promised by a header and not held by the file.
    """
    where = shown(check_path("read_array", path), 1000)
    if not os.fspath(path).lower().endswith(".npy"):
        raise file_error(where, "a name that ends in .npy", "another", "save one array by np.save")
    return _read_member(where, lambda where: open_regular(path, where))
