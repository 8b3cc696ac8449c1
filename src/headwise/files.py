"""Arrays out of .npz files and folders of .npy files, safely, and into .npz files, whole or not at all; texts too.

Everything is checked before anything is allocated, nothing is ever unpickled, and nothing here knows what the
arrays mean. Bytes that others have made, such as a picture's, are written as arrays are.
"""

import io
import math
import os
import secrets
import stat
import warnings
import zipfile
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from typing import IO, Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

PathLike: TypeAlias = str | os.PathLike[str]
Members: TypeAlias = dict[str, Callable[[str], tuple[IO[bytes], int]]]
"""Name -> function that opens the array, given the words for messages: its stream, and the bytes it holds."""

_AGAIN = "copy or save it again"
_NUMERIC = "save a plain numeric array"
_LONGEST_HEADER = 2048  # bytes; NumPy writes 128 for a plain array, and its parser is greedy
_MOST_PER_BYTE = 1032  # deflate cannot expand one byte to more
_CHUNK = 1 << 18
_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


class FileError(ValueError):
    """A file that cannot be read or written as asked; one line of file, member, expected, got, remedy."""


def shown(text: object, longest: int = 200) -> str:
    r"""Return text on one line that no terminal acts upon: whatever does not print is escaped, the end cut.

    >>> shown("in\n\x1b[2J.npz")
    'in\\n\\x1b[2J.npz'
    """
    escaped = "".join(c if c.isprintable() else repr(c)[1:-1] for c in str(text)[: longest + 1])
    return escaped if len(escaped) <= longest else escaped[: longest - 3] + "..."


def listed(names: Collection[str], most: int = 12) -> str:
    """Return names as one readable line.

    >>> listed(["k", "v"]), listed([])
    ('k, v', 'nothing')
    """
    words = [shown(name, 60) for name in list(names)[:most]]
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(words) + more if words else "nothing"


def physical_memory() -> int | None:
    """Return the bytes of memory that this machine has, or None where the system does not say."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return None


def _error(where: str, expected: str, got: object, remedy: str) -> FileError:
    return FileError(f"{where}: expected {expected}, got {shown(got)}; {remedy}")


@contextmanager
def _reading(where: str) -> Iterator[None]:
    """Turn whatever a damaged file makes the libraries below raise into a FileError."""
    try:
        yield
    except (FileError, MemoryError):
        raise
    except OSError as error:
        reason = error.strerror or str(error)
        raise _error(where, "a file that can be read", f"'{reason}'", "check the path and its permissions") from error
    except Exception as error:  # zlib.error, BadZipFile, struct.error, EOFError, NotImplementedError and others
        got = f"'{shown(error, 100) or type(error).__name__}'"
        raise _error(where, "an undamaged file", got, _AGAIN) from error


class _Header(NamedTuple):
    shape: tuple[int, ...]
    fortran: bool
    dtype: np.dtype[Any]
    length: int  # bytes before the values


_PARSERS = {
    (1, 0): (10, np.lib.format.read_array_header_1_0),
    (2, 0): (12, np.lib.format.read_array_header_2_0),
}  # version -> bytes before the header's text, its parser


def _header_bytes(stream: IO[bytes], held: int, where: str) -> bytes:
    """Return magic, version, length and text of a header, whose stated length is not believed."""
    start = stream.read(12)
    if start[:6] != np.lib.format.MAGIC_PREFIX:
        raise _error(where, "the .npy format", f"bytes that begin {start[:6]!r}", "save it with np.save or np.savez")
    version = (start[6], start[7]) if len(start) == 12 else (1, 0)
    if version not in _PARSERS:
        raise _error(where, ".npy version 1.0 or 2.0", f"{start[6]}.{start[7]}", _NUMERIC)
    text_at = _PARSERS[version][0]
    length = text_at + int.from_bytes(start[8:text_at], "little")
    if length > min(held, _LONGEST_HEADER):
        expected = f"a header of at most {min(held, _LONGEST_HEADER)} bytes"
        raise _error(where, expected, f"a promise of {length}", _AGAIN)
    return start + stream.read(length - len(start)) if length > len(start) else start[:length]


def _parse_header(text: bytes, where: str) -> _Header:
    parse = _PARSERS[text[6], text[7]][1]
    stream = io.BytesIO(text[8:])
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # NumPy's about files of Python 2, the parser's about odd escapes
            shape, fortran, dtype = parse(stream)
    except Exception as error:  # SyntaxError, RecursionError, MemoryError of the parser, ValueError, TypeError, ...
        got = f"'{shown(error, 100)}'"
        raise _error(where, "a .npy header that NumPy can read", got, _AGAIN) from error
    return _Header(shape, fortran, dtype, len(text))


def _check_header(header: _Header, held: int, where: str) -> None:
    """Refuse what cannot be taken byte for byte, and promises that the file does not keep."""
    dtype, shape = header.dtype, header.shape
    if dtype.hasobject:
        raise _error(where, "numbers", f"dtype {dtype}", "objects are never unpickled: use .astype(float)")
    if dtype.itemsize == 0 or dtype.subdtype is not None:
        raise _error(where, "numbers", f"dtype {dtype}", _NUMERIC)
    if any(size < 0 for size in shape):
        raise _error(where, "a shape of sizes >= 0", shape, _AGAIN)
    promised = math.prod(shape) * dtype.itemsize
    if promised != held - header.length:
        expected = f"the {promised} bytes that its header promises, {shown(f'{dtype} {shape}', 80)}"
        raise _error(where, expected, held - header.length, f"it is cut or damaged: {_AGAIN}")
    memory = physical_memory()
    if memory is not None and promised > memory:
        raise _error(where, f"at most the {memory} bytes of memory here", promised, "save a part of it")


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


def _read_npy(stream: IO[bytes], held: int, where: str) -> NDArray[Any]:
    header = _parse_header(_header_bytes(stream, held, where), where)
    _check_header(header, held, where)
    raw = np.empty(held - header.length, np.uint8)
    _fill(stream, raw)
    if header.dtype == np.bool_ and raw.size and raw.max() > 1:
        raise _error(where, "bool values of 0 or 1", int(raw.max()), "save it with dtype bool again")
    return raw.view(header.dtype).reshape(header.shape, order="F" if header.fortran else "C")


def _check_regular(mode: int, where: str) -> None:
    if not stat.S_ISREG(mode):
        raise _error(where, "a file", _KINDS.get(stat.S_IFMT(mode), "something else"), "name a regular file")


def _open_regular(path: PathLike, where: str) -> tuple[IO[bytes], int]:
    """Open a regular file and nothing else: a pipe would wait for ever, a device may act on being opened."""
    _check_regular(os.stat(path).st_mode, where)
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    file = os.fdopen(os.open(path, flags), "rb")
    try:
        status = os.fstat(file.fileno())
        _check_regular(status.st_mode, where)  # once more: the name may have been given to something else since
    except BaseException:
        file.close()
        raise
    return file, status.st_size


def _folder_members(path: PathLike) -> Members:
    names = sorted(name for name in os.listdir(path) if name.endswith(".npy"))
    return {name[:-4]: partial(_open_regular, os.path.join(path, name)) for name in names}


def _open_zipped(archive: zipfile.ZipFile, infos: list[zipfile.ZipInfo], where: str) -> tuple[IO[bytes], int]:
    info = infos[0]
    if len(infos) > 1:
        raise _error(where, "one member of that name", len(infos), _AGAIN)
    if "/" in info.filename or "\\" in info.filename:
        raise _error(where, "a member without a folder", info.filename, "zip the files, not their folder")
    if info.flag_bits & 1:
        raise _error(where, "a plain member", "an encrypted one", _AGAIN)
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise _error(where, "a stored or deflated member", f"compression method {info.compress_type}", _AGAIN)
    most = info.compress_size * (1 if info.compress_type == zipfile.ZIP_STORED else _MOST_PER_BYTE)
    if info.file_size > most:
        raise _error(where, f"at most {most} bytes from {info.compress_size}", info.file_size, _AGAIN)
    return archive.open(info), info.file_size


def _zip_members(archive: zipfile.ZipFile, held: int, where: str) -> Members:
    found: dict[str, list[zipfile.ZipInfo]] = {}
    for info in archive.infolist():
        if info.filename.endswith(".npy"):
            found.setdefault(info.filename[:-4], []).append(info)
    claimed = sum(info.compress_size for infos in found.values() for info in infos)
    if claimed > held:  # members that overlap, or a directory that lies
        raise _error(where, f"members that fit its {held} bytes", f"{claimed} bytes", _AGAIN)
    return {name: partial(_open_zipped, archive, infos) for name, infos in found.items()}


@contextmanager
def _members(path: PathLike, where: str) -> Iterator[Members]:
    with _reading(where):
        if os.path.isdir(path):
            yield _folder_members(path)
            return
        file, held = _open_regular(path, where)
        with file:
            if file.read(6) == np.lib.format.MAGIC_PREFIX:
                remedy = "save all by name, np.savez(path, q=q, k=k, v=v)"
                raise _error(where, "an .npz file or a folder of .npy files", "one .npy array", remedy)
            with zipfile.ZipFile(file) as archive:
                yield _zip_members(archive, held, where)


def array_names(path: PathLike) -> list[str]:
    """Return the names of the arrays in an .npz file or a folder of .npy files, having read none of them."""
    with _members(path, shown(path, 1000)) as members:
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
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = os.path.join(folder, "in.npz")
    ...     write_arrays(path, {"q": np.eye(2), "k": np.ones(3)})
    ...     read_arrays(path, ["q"])
    {'q': array([[1., 0.],
           [0., 1.]])}
    """
    where = shown(path, 1000)
    with _members(path, where) as members:
        wanted = members if names is None else [*names, *(name for name in optional if name in members)]
        missing = [name for name in wanted if name not in members]
        if missing:
            text = f"expected arrays {listed(names or ())}; missing {listed(missing)}; found {listed(members)}"
            raise FileError(f"{where}: {text}")
        return {name: _read_member(f"{where}: {shown(name, 60)}", members[name]) for name in wanted}


def _read_member(where: str, opened: Callable[[str], tuple[IO[bytes], int]]) -> NDArray[Any]:
    with _reading(where):
        stream, held = opened(where)
        with stream:
            return _read_npy(stream, held, where)


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
        raise _error(where, f"a name that ends in {ending}", "another", "name the output so")
    check_folder(path)
    if source is not None and os.path.exists(path) and os.path.exists(source) and os.path.samefile(path, source):
        raise _error(where, "another file than the input", "the input itself", "name another")
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
        raise _error(where, expected, got, "name another") from error
    finally:
        with suppress(OSError):
            os.unlink(temporary)


def check_folder(path: PathLike) -> None:
    """Raise a FileError where no file can be made beside a path."""
    where, folder = shown(path, 1000), os.path.dirname(path) or "."
    if not os.path.isdir(folder):
        raise _error(where, "an existing folder", f"'{shown(folder)}', which is none", "make it first")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise _error(where, "a folder that may be written to", f"'{shown(folder)}'", "name another")


def _check_replaceable(path: PathLike, where: str, force: bool) -> None:
    mode = os.lstat(path).st_mode
    if not stat.S_ISLNK(mode):
        _check_regular(mode, where)
    if not force:
        raise _exists(where)


def _exists(where: str) -> FileError:
    return _error(where, "a new name", "one that exists", "name another, or replace it by --force")


def _check_writable(where: str, name: str, array: NDArray[Any]) -> None:
    if not name or any(sign in name for sign in "/\\\0"):
        raise _error(where, "a plain name", "one with '/', '\\' or nothing", "name the array otherwise")
    if array.dtype.hasobject:
        raise _error(where, "numbers", f"dtype {array.dtype}", "objects are never pickled: save numbers")


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
    _write_whole(path, lambda temporary: _write_npz(temporary, arrays, _mode_of(path)), total, force)


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
    _write_whole(path, lambda temporary: _write_bytes(temporary, data, _mode_of(path)), len(data), force)


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
    where = shown(path, 1000)
    with _reading(where):
        file, held = _open_regular(path, where)
        with file:
            data = b"" if held > most else file.read(most + 1)
    if max(held, len(data)) > most:
        raise _error(where, f"at most {most} bytes", max(held, len(data)), "name a smaller file")
    return data


def read_text(path: PathLike) -> str:
    """Return the text of a file in UTF-8, its line ends as they are.

    Raises
    ------
    FileError
        It cannot be read, or is not UTF-8.
    """
    where = shown(path, 1000)
    with _reading(where):
        file, _ = _open_regular(path, where)
        with file:
            return file.read().decode("utf-8")


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
    _write_whole(path, lambda temporary: _write_bytes(temporary, data, _mode_of(path)), len(data), force=True)


def _write_whole(path: PathLike, write: Callable[[str], None], size: int, force: bool) -> None:
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
        raise _error(where, expected, got, "make room or name another folder") from error
    finally:
        with suppress(OSError):  # gone where it now has the name
            os.unlink(temporary)


def _mode_of(path: PathLike) -> int | None:
    """Return the permissions that a replaced file hands on; None for a new one, which gets the default."""
    with suppress(FileNotFoundError):
        mode = os.lstat(path).st_mode
        return stat.S_IMODE(mode) & 0o777 if stat.S_ISREG(mode) else None
    return None


@contextmanager
def _new_file(path: str, mode: int | None) -> Iterator[IO[bytes]]:
    """A file that nobody else has, on the disk once the block is left."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
    with os.fdopen(os.open(path, flags, 0o666), "wb") as file:
        if mode is not None:
            os.chmod(path, mode)
        yield file
        file.flush()
        os.fsync(file.fileno())


def _write_bytes(path: str, data: bytes, mode: int | None) -> None:
    with _new_file(path, mode) as file:
        file.write(data)


def _write_npz(path: str, arrays: Mapping[str, NDArray[Any]], mode: int | None) -> None:
    with _new_file(path, mode) as file, zipfile.ZipFile(file, "w") as archive:
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
