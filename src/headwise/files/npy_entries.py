"""Arrays of an .npz file or a folder of .npy files, listed by their headers; views of the file where stored."""

import io
import mmap
import os
import zipfile
from functools import partial
from typing import IO, Any, Literal, cast

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
    read_npy,
)
from headwise.files.opening import Origin, map_again, map_file, open_again
from headwise.files.tensors import Entry, Tensor, count, view
from headwise.files.zips import member_at, open_archive, stored_at


def _header(start: bytes, held: int, where: str) -> Header:
    header = parse_header(header_bytes(io.BytesIO(start), held, where), where)
    check_header(header, held, where)
    count(header.shape, header.dtype.itemsize, where)
    return header


def _stored_header(data: mmap.mmap, begin: int, held: int, where: str) -> Header:
    return _header(data[begin : begin + min(held, LONGEST_HEADER)], held, where)


def _stored(data: mmap.mmap, begin: int, header: Header, where: str) -> NDArray[Any]:
    order: Literal["C", "F"] = "F" if header.fortran else "C"
    return view(data, begin + header.length, header.shape, header.dtype, where, order)


def _deflated(origin: Origin, begin: int, info: zipfile.ZipInfo, where: str) -> NDArray[Any]:
    """Read a compressed member of the file that was opened, and compare its checksum."""
    with open_again(origin, where) as file:
        file.seek(begin)
        with zipfile.ZipExtFile(file, "r", info) as stream:
            array = read_npy(cast("IO[bytes]", stream), info.file_size, where)
    array.flags.writeable = False
    return array


def open_npz(path: PathLike) -> dict[str, Entry]:
    """Return the arrays of an .npz file: stored ones as views of the file, compressed ones read when asked for."""
    where = shown(path, 1000)
    with reading(where):
        data, origin = map_file(path, where)
        with open_archive(origin, data, where) as archive:
            found = member_infos(archive, len(data), where)
            return {name: _member(origin, data, archive, infos, name, where) for name, infos in found.items()}


def _member(
    origin: Origin, data: mmap.mmap, archive: zipfile.ZipFile, infos: list[zipfile.ZipInfo], name: str, file: str
) -> Entry:
    where = f"{file}: {shown(name, 60)}"
    info = check_member(infos, where)
    if info.compress_type == zipfile.ZIP_STORED:
        begin, held = stored_at(data, info, file)
        header = _stored_header(data, begin, held, where)
        return Entry(Tensor(header.shape, header.dtype, file), partial(_stored, data, begin, header, where))
    with reading(where), archive.open(info) as stream:
        header = _header(stream.read(LONGEST_HEADER), info.file_size, where)
    read = partial(_deflated, origin, member_at(data, info, file), info, where)
    return Entry(Tensor(header.shape, header.dtype, file), read)


def _whole(path: str, where: str) -> Entry:
    data, origin = map_file(path, where)
    header = _stored_header(data, 0, len(data), where)
    return Entry(Tensor(header.shape, header.dtype, shown(path, 1000)), partial(_read_whole, origin, header, where))


def _read_whole(origin: Origin, header: Header, where: str) -> NDArray[Any]:
    """Map a file when it is asked for: a folder may have more than can be open at once."""
    return _stored(map_again(origin, where), 0, header, where)


def open_folder(path: PathLike) -> dict[str, Entry]:
    """Return the arrays of a folder that holds each as NAME.npy."""
    where = shown(path, 1000)
    entries: dict[str, Entry] = {}
    with reading(where):
        for name in sorted(name for name in os.listdir(path) if name.endswith(".npy")):
            file = os.path.join(path, name)
            named = f"{where}: {shown(name[:-4], 60)}"
            entries[name[:-4]] = _whole(file, named)
    if not entries:
        raise file_error(where, "a folder of .npy files or of a model", "neither", "name the file of its arrays")
    return entries
