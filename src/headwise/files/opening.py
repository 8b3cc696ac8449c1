"""Opening a regular file and nothing else; its bytes, its text, or a map of it."""

import mmap
import os
import stat
from typing import IO, NamedTuple, NoReturn

from headwise.core.shapes import Fault, given_as
from headwise.files.errors import AGAIN, PathLike, file_error, reading, shown

KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


class Origin(NamedTuple):
    """Which file was opened: its absolute path, and what tells it from another of that path or from itself, changed."""

    path: str
    mark: tuple[int, int, int, int]  # device, inode, size, time of the last change


def refuse_type(function: str, argument: str, expected: str, got: object, remedy: str) -> NoReturn:
    """Raise the TypeError of one argument."""
    raise TypeError(f"{function}: {Fault(argument, expected, given_as(got), remedy)}")


def check_path(function: str, path: object) -> str:
    """Return a path as text; a TypeError or FileError where no file can have it."""
    try:
        text = os.fspath(path)  # type: ignore[call-overload]
    except TypeError:
        text = None
    if not isinstance(text, str):
        refuse_type(function, "path", "a str or path-like", path, "name a file")
    try:
        encoded = os.fsencode(text)
    except UnicodeEncodeError as error:
        raise file_error(shown(text, 1000), "a path that the system can encode", "another", "name a file") from error
    if b"\0" in encoded:
        raise file_error(shown(text, 1000), "a path", "one with an embedded null character", "name a file")
    return text


def physical_memory() -> int | None:
    """Return the bytes of memory that this machine has, or None where the system does not say."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return None


def check_regular(mode: int, where: str) -> None:
    if not stat.S_ISREG(mode):
        raise file_error(where, "a file", KINDS.get(stat.S_IFMT(mode), "something else"), "name a regular file")


def open_regular(path: PathLike, where: str) -> tuple[IO[bytes], int]:
    """Open a regular file and nothing else: a pipe would wait for ever, a device may act on being opened."""
    check_regular(os.stat(path).st_mode, where)
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    file = os.fdopen(os.open(path, flags), "rb")
    try:
        status = os.fstat(file.fileno())
        check_regular(status.st_mode, where)  # once more: the name may have been given to something else since
    except BaseException:
        file.close()
        raise
    return file, status.st_size


def read_bytes(path: PathLike, *, most: int) -> bytes:
    """Return all bytes of a file.

    Parameters
    ----------
    path : str or path-like
        A regular file: a pipe or a device is refused.
    most : int
        How many bytes it may hold.

    Raises
    ------
    FileError
        It cannot be read, or holds more.
    """
    where = shown(check_path("read_bytes", path), 1000)
    with reading(where):
        file, held = open_regular(path, where)
        with file:
            data = b"" if held > most else file.read(most + 1)
    if max(held, len(data)) > most:
        raise file_error(where, f"at most {most} bytes", max(held, len(data)), "name a smaller file")
    return data


def read_text(path: PathLike) -> str:
    """Return the text of a file in UTF-8, its line ends as they are.

    Raises
    ------
    FileError
        It cannot be read, or is not UTF-8.
    """
    where = shown(check_path("read_text", path), 1000)
    with reading(where):
        file, _ = open_regular(path, where)
        with file:
            return file.read().decode("utf-8")


def map_file(path: PathLike, where: str) -> tuple[mmap.mmap, Origin]:
    """Map a regular file that holds something, for reading alone: only what is looked at is read."""
    file, held = open_regular(path, where)
    with file:
        if not held:
            raise file_error(where, "a file that holds arrays", "an empty one", AGAIN)
        return _map(file), Origin(os.path.abspath(path), _mark(file))


def open_again(origin: Origin, where: str) -> IO[bytes]:
    """Open the file that was mapped before; one that has been replaced or changed since is refused."""
    file, _ = open_regular(origin.path, where)
    if _mark(file) != origin.mark:
        file.close()
        raise file_error(where, "the file that was opened", "one that has changed since it was opened", "open it again")
    return file


def map_again(origin: Origin, where: str) -> mmap.mmap:
    """Map the file that was mapped before, and no other."""
    with open_again(origin, where) as file:
        return _map(file)


def _map(file: IO[bytes]) -> mmap.mmap:
    return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


def _mark(file: IO[bytes]) -> tuple[int, int, int, int]:
    status = os.fstat(file.fileno())
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns
