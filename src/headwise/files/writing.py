"""Files written whole or not at all: arrays as .npz, bytes that others have made, and texts."""

import os
import secrets
import stat
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from headwise.files.errors import FileError, PathLike, file_error, shown
from headwise.files.opening import check_regular


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
    where = shown(path, 1000)
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
        expected, got = "a folder in which files can be made", f"'{shown(folder)}', which says {error.strerror}"
        raise file_error(where, expected, got, "name another") from error
    finally:
        with suppress(OSError):
            os.unlink(temporary)


def check_folder(path: PathLike) -> None:
    """Raise a FileError where no file can be made beside a path."""
    where, folder = shown(path, 1000), os.path.dirname(path) or "."
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
    return file_error(where, "a new name", "one that exists", "name another, or replace it by --force")


def _check_writable(where: str, name: str, array: NDArray[Any]) -> None:
    if not name or any(sign in name for sign in "/\\\0"):
        raise file_error(where, "a plain name", "one with '/', '\\' or nothing", "name the array otherwise")
    if array.dtype.hasobject:
        raise file_error(where, "numbers", f"dtype {array.dtype}", "objects are never pickled: save numbers")


def write_arrays(path: PathLike, arrays: Mapping[str, NDArray[Any]], *, force: bool = False) -> None:
    """Write an .npz file whole or not at all.

    The bytes go to a temporary file in the same folder, are flushed to the disk, and only then get the name.
    On any error or interrupt the temporary file is removed and whatever had the name keeps it. Equal arrays
    give equal bytes.

    Parameters
    ----------
    path : str or path-like
        The file, which must end in .npz.
    arrays : mapping of str to ndarray
        What to write, uncompressed, as `numpy.savez` would. Arrays of objects are refused.
    force : bool
        Replace an existing file, which hands on its permissions. Without it no existing file is replaced, not
        even one that appears in between. A symbolic link is itself replaced; what it points to is left alone.

    Raises
    ------
    FileError
        The target exists, is a folder, cannot be written to, or the disk is full.
    """
    check_target(path, force=force)
    where = shown(path, 1000)
    for name, array in arrays.items():
        _check_writable(f"{where}: {shown(name, 60)}", name, array)
    total = sum(array.nbytes for array in arrays.values())
    write_whole(path, lambda temporary: _write_npz(temporary, arrays, mode_of(path)), total, force)


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
    check_folder(path)
    if os.path.lexists(path):
        _check_replaceable(path, shown(path, 1000), force=True)
    data = text.encode("utf-8")
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
        expected, got = f"to write {size} bytes", f"'{error.strerror or error}'"
        raise file_error(where, expected, got, "make room or name another folder") from error
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


def _write_npz(path: str, arrays: Mapping[str, NDArray[Any]], mode: int | None) -> None:
    with new_file(path, mode) as file, zipfile.ZipFile(file, "w") as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, array, allow_pickle=False)


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
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL))
        try:
            os.replace(temporary, path)
        except BaseException:
            os.unlink(path)
            raise
