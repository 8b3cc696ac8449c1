"""Arrays of an .npz file or a folder of .npy files, listed by their headers; views of the file where stored."""

import io
import mmap
import os
import zipfile
from functools import partial
from typing import Any, Literal

from numpy.typing import NDArray

from headwise.files.errors import PathLike, file_error, reading, shown
from headwise.files.npy import (
    LONGEST_HEADER,
    Header,
    check_header,
    check_member,
    header_bytes,
    member_infos,
    parse_header,
    read_arrays,
)
from headwise.files.opening import map_file
from headwise.files.tensors import Entry, Tensor, count, view
from headwise.files.zips import open_archive, stored_at


def _header(start: bytes, held: int, where: str) -> Header:
    header = parse_header(header_bytes(io.BytesIO(start), held, where), where)
    check_header(header, held, where)
    count(header.shape, header.dtype.itemsize, where)
    return header


def _stored(data: mmap.mmap, begin: int, held: int, file: str, where: str) -> Entry:
    header = _header(data[begin : begin + min(held, LONGEST_HEADER)], held, where)
    order: Literal["C", "F"] = "F" if header.fortran else "C"
    read = partial(view, data, begin + header.length, header.shape, header.dtype, where, order)
    return Entry(Tensor(header.shape, header.dtype, file), read)


def _deflated(path: PathLike, name: str) -> NDArray[Any]:
    array = read_arrays(path, [name])[name]
    array.flags.writeable = False
    return array


def open_npz(path: PathLike) -> dict[str, Entry]:
    """Return the arrays of an .npz file: stored ones as views of the file, compressed ones read when asked for."""
    where = shown(path, 1000)
    with reading(where):
        data = map_file(path, where)
        with open_archive(path, data, where) as archive:
            found = member_infos(archive, len(data), where)
            return {name: _member(path, data, archive, infos, name) for name, infos in found.items()}


def _member(
    path: PathLike, data: mmap.mmap, archive: zipfile.ZipFile, infos: list[zipfile.ZipInfo], name: str
) -> Entry:
    file = shown(path, 1000)
    where = f"{file}: {shown(name, 60)}"
    info = check_member(infos, where)
    if info.compress_type == zipfile.ZIP_STORED:
        return _stored(data, *stored_at(data, info, file), file, where)
    with archive.open(info) as stream:
        header = _header(stream.read(LONGEST_HEADER), info.file_size, where)
    return Entry(Tensor(header.shape, header.dtype, file), partial(_deflated, path, name))


def _whole(path: str, where: str) -> Entry:
    data = map_file(path, where)
    return _stored(data, 0, len(data), shown(path, 1000), where)


def _read_whole(path: str, where: str) -> NDArray[Any]:
    return _whole(path, where).read()  # mapped when it is asked for: a folder may have more files than can be open


def open_folder(path: PathLike) -> dict[str, Entry]:
    """Return the arrays of a folder that holds each as NAME.npy."""
    where = shown(path, 1000)
    entries: dict[str, Entry] = {}
    with reading(where):
        for name in sorted(name for name in os.listdir(path) if name.endswith(".npy")):
            file = os.path.join(path, name)
            named = f"{where}: {shown(name[:-4], 60)}"
            tensor = _whole(file, named).tensor
            entries[name[:-4]] = Entry(tensor, partial(_read_whole, file, named))
    if not entries:
        raise file_error(where, "a folder of .npy files or of a model", "neither", "name the file of its arrays")
    return entries
