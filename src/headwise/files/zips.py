"""Zip files: their directory, and where the bytes of a stored member lie, so that they need not be copied."""

import mmap
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager

from headwise.files.beginnings import check_beginning
from headwise.files.errors import AGAIN, file_error, shown
from headwise.files.opening import Origin, open_again

_LOCAL = b"PK\x03\x04"
_FIXED = 30  # bytes of a member's own header, before its name and extras
_END, _END_64 = b"PK\x05\x06", b"PK\x06\x06"
_END_SIZE, _END_64_SIZE, _LOCATOR_SIZE = 22, 56, 20
_PER_BYTE = 16  # bytes that Python makes of one of the directory
_SLACK = 1 << 20


@contextmanager
def open_archive(origin: Origin, data: mmap.mmap, where: str) -> Iterator[zipfile.ZipFile]:
    """Open a zip file, which is also mapped as `data`, if the objects made of its directory do not outgrow it."""
    end = _end_of(data)
    if end < 0:
        if data[:4] != _LOCAL:
            check_beginning(data, "a zip file", where)
            raise file_error(where, "a zip file", f"bytes that begin {data[:6]!r}", "name it by its format")
        raise file_error(where, "a zip file with its directory at the end", "no end of a zip", f"it is cut: {AGAIN}")
    size = _directory_size(data, end)
    most = (len(data) + _SLACK) // _PER_BYTE
    if size > most:
        raise file_error(where, f"a directory of at most {most} bytes", size, "save fewer or larger arrays in it")
    with open_again(origin, where) as file, zipfile.ZipFile(file) as archive:
        yield archive


def _end_of(data: mmap.mmap) -> int:
    """Return where the record lies that ends a zip file, as `zipfile` will find it; -1 if not all of it is there."""
    end = len(data) - _END_SIZE
    if data[max(end, 0) :][:4] != _END or data[-2:] != b"\0\0":
        end = data.rfind(_END, max(end - (1 << 16), 0))
    return end if 0 <= end <= len(data) - _END_SIZE else -1


def _directory_size(data: mmap.mmap, end: int) -> int:
    """Return how long a zip file that ends there says that its directory is, as `zipfile` will read it."""
    size_64 = data[max(end - _LOCATOR_SIZE - _END_64_SIZE, 0) : end]
    large = int.from_bytes(size_64[40:48], "little") if size_64[:4] == _END_64 else 0
    return max(large, int.from_bytes(data[end + 12 : end + 16], "little"))


def stored_at(data: mmap.mmap, info: zipfile.ZipInfo, where: str) -> tuple[int, int]:
    """Return where a member begins and how many bytes it has; one that is compressed or encrypted is refused."""
    named = f"{where}: {shown(info.filename, 60)}"
    if info.compress_type != zipfile.ZIP_STORED or info.flag_bits & 1 or info.compress_size != info.file_size:
        raise file_error(named, "a member stored as it is", "a compressed or encrypted one", AGAIN)
    return member_at(data, info, where), info.file_size


def member_at(data: mmap.mmap, info: zipfile.ZipInfo, where: str) -> int:
    """Return where the bytes of a member begin, all of which the file holds."""
    named = f"{where}: {shown(info.filename, 60)}"
    head = data[info.header_offset : info.header_offset + _FIXED]
    if len(head) < _FIXED or head[:4] != _LOCAL:
        raise file_error(named, f"a member at byte {info.header_offset}", "none", AGAIN)
    skipped = int.from_bytes(head[26:28], "little") + int.from_bytes(head[28:30], "little")
    begin = info.header_offset + _FIXED + skipped
    if begin + info.compress_size > len(data):
        raise file_error(named, f"{info.compress_size} bytes", f"{max(len(data) - begin, 0)}", AGAIN)
    return begin
