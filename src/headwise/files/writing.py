"""Files written whole or not at all: bytes that others have made, and texts."""

import os
import secrets
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import IO

import numpy as np

from headwise.core.shapes import Faults, given_as
from headwise.files.errors import FileError, PathLike, file_error, shown, system_error
from headwise.files.opening import check_path, check_regular, refuse_type


def check_target(path: PathLike, *, force: bool = False, source: PathLike | None = None, ending: str = ".npz") -> None:
    """Raise a FileError where `write_arrays` or `write_bytes` could not write, before the work whose result it is.

    Parameters
    ----------
    path : str or path-like
        The file to be.
    force : bool
        Whether an existing file may be replaced.
    source : str or path-like, optional
        The file that is read: it is never replaced by what is made of it.
    ending : str
        What its name must end in: .npz for `write_arrays`.
    """
    where = shown(check_path("check_target", path), 1000)
    if not os.fspath(path).lower().endswith(ending):
        raise file_error(where, f"a name that ends in {ending}", "another", "name the output so")
    check_folder(path)
    if source is not None and os.path.exists(path) and os.path.exists(source) and os.path.samefile(path, source):
        raise file_error(where, "another file than the input", "the input itself", "name another")
    if os.path.lexists(path):
        _check_replaceable(path, where, force)
    _try_folder(path, where)


def _try_folder(path: PathLike, where: str) -> None:
    """Make a file beside a path, which is gone afterwards: permissions say nothing of /proc, nor of a full disk."""
    folder = os.path.dirname(path) or "."
    temporary = os.path.join(folder, f".headwise-{secrets.token_hex(8)}.tmp")
    try:
        os.close(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    except OSError as error:
        expected, got = "a folder in which files can be made", f"'{shown(folder)}', which says "
        raise system_error(error, where, expected, "name another", got) from error
    finally:
        with suppress(OSError):
            os.unlink(temporary)


def check_folder(path: PathLike) -> None:
    """Raise a FileError where no file can be made beside a path."""
    where, folder = shown(check_path("check_folder", path), 1000), os.path.dirname(path) or "."
    if not os.path.isdir(folder):
        raise file_error(where, "an existing folder", f"'{shown(folder)}', which is none", "make it first")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise file_error(where, "a folder that may be written to", f"'{shown(folder)}'", "name another")


def _check_replaceable(path: PathLike, where: str, force: bool) -> None:
    mode = os.lstat(path).st_mode
    if not stat.S_ISLNK(mode):
        check_regular(mode, where)
    if not force:
        raise _exists(where)


def _exists(where: str) -> FileError:
    return file_error(where, "a new name", "one that exists", "name another, or replace it: force=True, --force")


def check_arrays(function: str, arrays: object) -> None:
    """Raise a TypeError for anything but names and arrays: what looks like one has no type of its own to be kept."""
    if not isinstance(arrays, Mapping):
        refuse_type(function, "arrays", "a mapping of names to arrays", arrays, "give a dict")
    faults = Faults(function)
    for name, array in arrays.items():
        argument = f"arrays['{shown(name, 60)}']"
        if isinstance(array, np.ma.MaskedArray):
            faults.type(argument, "an array without a mask", "a masked one", "fill it: x.filled(0)")
        elif not isinstance(array, np.ndarray | np.generic):
            faults.type(argument, "an array", given_as(array), "make it one by np.asarray")
    faults.raise_any()


def write_bytes(path: PathLike, data: bytes, *, ending: str, force: bool = False) -> None:
    """Write a file whole or not at all, as `write_arrays` does.

    Parameters
    ----------
    path : str or path-like
        The file.
    data : bytes
        All that it is to hold.
    ending : str
        What its name must end in, such as .png.
    force : bool
        Replace an existing file.

    Raises
    ------
    FileError
        The target has another ending, exists, is a folder, cannot be written to, or the disk is full.
    """
    check_path("write_bytes", path)
    if not isinstance(data, bytes | bytearray | memoryview):
        refuse_type("write_bytes", "data", "bytes", data, "encode it")
    check_target(path, force=force, ending=ending)
    write_whole(path, lambda temporary: _write_bytes(temporary, data, mode_of(path)), len(data), force)


def write_text(path: PathLike, text: str) -> None:
    """Replace a text file, or write a new one, in UTF-8, whole or not at all; line ends are written as they are.

    A replaced file hands on its permissions; a symbolic link is itself replaced.

    Raises
    ------
    FileError
        The target is no regular file, cannot be written to, or the disk is full.

    Examples
    --------
    >>> import tempfile, os
    >>> from headwise.files import read_text
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = os.path.join(folder, "page.md")
    ...     write_text(path, "one\\r\\ntwo")
    ...     read_text(path)
    'one\\r\\ntwo'
    """
    where = shown(check_path("write_text", path), 1000)
    if not isinstance(text, str):
        refuse_type("write_text", "text", "str", text, "decode it")
    try:
        data = text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise file_error(where, "a text that UTF-8 can hold", "one with lone surrogates", "replace them") from error
    check_folder(path)
    if os.path.lexists(path):
        _check_replaceable(path, where, force=True)
    write_whole(path, lambda temporary: _write_bytes(temporary, data, mode_of(path)), len(data), force=True)


def write_whole(path: PathLike, write: Callable[[str], None], size: int, force: bool) -> None:
    """Write under another name, and hand that over once all is on the disk; a fault leaves things as they were."""
    where = shown(path, 1000)
    temporary = os.path.join(os.path.dirname(path), f".headwise-{secrets.token_hex(8)}.tmp")
    try:
        write(temporary)
        _publish(temporary, path, force)
    except FileExistsError as error:
        raise _exists(where) from error
    except OSError as error:
        raise system_error(error, where, f"to write {size} bytes", "make room or name another folder") from error
    finally:
        with suppress(OSError):  # gone where it now has the name
            os.unlink(temporary)


def mode_of(path: PathLike) -> int | None:
    """Return the permissions that a replaced file hands on; None for a new one, which gets the default."""
    with suppress(FileNotFoundError):
        mode = os.lstat(path).st_mode
        return stat.S_IMODE(mode) & 0o777 if stat.S_ISREG(mode) else None
    return None


@contextmanager
def new_file(path: str, mode: int | None) -> Iterator[IO[bytes]]:
    """A file that nobody else has, on the disk once the block is left."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
    with os.fdopen(os.open(path, flags, 0o666), "wb") as file:
        if mode is not None:
            os.chmod(path, mode)
        yield file
        file.flush()
        os.fsync(file.fileno())


def _write_bytes(path: str, data: bytes, mode: int | None) -> None:
    with new_file(path, mode) as file:
        file.write(data)


def _publish(temporary: str, path: PathLike, force: bool) -> None:
    """Give the finished file its name, without force only if nobody has it."""
    if force:
        os.replace(temporary, path)
    elif os.name == "nt":
        os.rename(temporary, path)  # there, never over an existing file
    else:
        _link(temporary, path)


def _link(temporary: str, path: PathLike) -> None:
    try:
        os.link(temporary, path)
    except OSError:  # a file system without hard links, or a name that is taken: take the name, then the place
        try:
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL))
            os.replace(temporary, path)
        except FileExistsError:
            raise
        except (
            BaseException
        ):  # an interrupt may come before anything says that the name is taken: what is empty is ours
            with suppress(OSError):
                if os.path.lexists(temporary) and not os.lstat(path).st_size:
                    os.unlink(path)
            raise
