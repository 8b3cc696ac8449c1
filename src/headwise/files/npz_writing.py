"""Arrays written as an .npz file, if what reads them can read them again."""

import io
import warnings
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headwise.files.errors import PathLike, file_error, shown
from headwise.files.npy import LONGEST_HEADER
from headwise.files.opening import check_path
from headwise.files.tensors import check_axes, checked
from headwise.files.writing import check_arrays, check_target, mode_of, new_file, write_whole

_VERSION = (1, 0)
_LONGEST_NAME = (1 << 16) - 1 - len(".npy")  # bytes, in a zip file


def npz_keeps(dtype: np.dtype[Any]) -> bool:
    """Return whether a type is the same once it was written by NumPy: those of `ml_dtypes` are not, nor are objects.

    >>> import ml_dtypes
    >>> npz_keeps(np.dtype("float32")), npz_keeps(np.dtype(ml_dtypes.bfloat16))
    (True, False)
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # NumPy's about metadata of a type
            return dtype.itemsize > 0 and np.lib.format.descr_to_dtype(np.lib.format.dtype_to_descr(dtype)) == dtype
    except (TypeError, ValueError):
        return False


def _check_name(where: str, name: object) -> None:
    if not isinstance(name, str) or not name or any(sign in name for sign in "/\\\0"):
        raise file_error(where, "a plain name", "one with '/', '\\' or nothing", "name the array otherwise")
    try:
        size = len(name.encode("utf-8"))
    except UnicodeEncodeError as error:
        raise file_error(where, "a name that UTF-8 can hold", "another", "name the array otherwise") from error
    if size > _LONGEST_NAME:
        raise file_error(where, f"a name of at most {_LONGEST_NAME} bytes", size, "name the array otherwise")


def _check_array(where: str, array: NDArray[Any]) -> None:
    if array.dtype.hasobject:
        raise file_error(where, "numbers", f"dtype {array.dtype}", "objects are never pickled: save numbers")
    if not npz_keeps(array.dtype):
        remedy = "write_safetensors keeps bfloat16, float8_e4m3fn and float8_e5m2; or save it as float32"
        raise file_error(where, "a type that .npz files keep", f"dtype {array.dtype}", remedy)
    check_axes(array.ndim, where, "join some by reshape")
    if _header_bytes(array) > LONGEST_HEADER:
        raise file_error(where, f"a type described in {LONGEST_HEADER} bytes", "a longer one", "save it in parts")
    checked(array, where)


def _header_bytes(array: NDArray[Any]) -> int:
    """Return the length of an array's header; more than any may have where its version cannot hold it."""
    stream = io.BytesIO()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            header = np.lib.format.header_data_from_array_1_0(array)
            np.lib.format.write_array_header_1_0(stream, header)
    except ValueError:  # longer, or of names of fields beyond Latin-1
        return LONGEST_HEADER + 1
    return len(stream.getvalue())


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
        What to write, uncompressed, as `numpy.savez` would. Arrays of objects are refused, and those of types that
        NumPy's files do not keep: bfloat16 and float8, which `write_safetensors` writes.
    force : bool
        Replace an existing file, which hands on its permissions. Without it no existing file is replaced, not
        even one that appears in between. A symbolic link is itself replaced; what it points to is left alone.

    Raises
    ------
    TypeError
        The path is none, or what it is given are not arrays by name.
    FileError
        An array or a name could not be read again, or the target exists, is a folder, cannot be written to, or the
        disk is full.
    """
    where = shown(check_path("write_arrays", path), 1000)
    check_arrays("write_arrays", arrays)
    check_target(path, force=force)
    for name, array in arrays.items():
        named = f"{where}: {shown(name, 60)}"
        _check_name(named, name)
        _check_array(named, array)
    total = sum(array.nbytes for array in arrays.values())
    write_whole(path, lambda temporary: _write_npz(temporary, arrays, mode_of(path)), total, force)


def _write_npz(path: str, arrays: Mapping[str, NDArray[Any]], mode: int | None) -> None:
    with new_file(path, mode) as file, _closed(zipfile.ZipFile(file, "w")) as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, array, version=_VERSION, allow_pickle=False)


@contextmanager
def _closed(archive: zipfile.ZipFile) -> Iterator[zipfile.ZipFile]:
    """An archive that is closed at the end; what ends it before is not hidden by a member that it left open."""
    try:
        yield archive
        archive.close()
    except BaseException:
        with suppress(ValueError):
            archive.close()
        raise
