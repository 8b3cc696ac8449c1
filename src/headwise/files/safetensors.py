"""The safetensors format: a header of JSON, checked before any array is made; arrays as views of the mapped file.

The format: 8 bytes of length, the header, then the values of all arrays, without holes. https://github.com/huggingface/safetensors
"""

import json
import mmap
from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from headwise.files.beginnings import check_beginning
from headwise.files.errors import AGAIN, PathLike, file_error, reading, shown
from headwise.files.json_parts import Reader
from headwise.files.opening import check_path, map_file, refuse_type
from headwise.files.tensors import MOST_AXES, Entry, Tensor, check_axes, checked, count, extra_dtype, name_of, view
from headwise.files.writing import check_arrays, check_target, mode_of, new_file, write_whole

LONGEST_HEADER = 100_000_000  # bytes, as in the format's library
METADATA = "__metadata__"
_PER_ARRAY = 1000  # bytes that are kept of an array, but for its name
_PER_TEXT = 400  # and of a text of the metadata

_DTYPES = {
    "U64": "<u8",
    "I64": "<i8",
    "F64": "<f8",
    "F32": "<f4",
    "U32": "<u4",
    "I32": "<i4",
    "BF16": "bfloat16",
    "F16": "<f2",
    "U16": "<u2",
    "I16": "<i2",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "I8": "i1",
    "U8": "u1",
    "BOOL": "?",
}
"""The format's name of a type of numbers -> NumPy's, or that of ml_dtypes; in the order in which the library writes."""

_EXTRA = {"BF16", "F8_E4M3", "F8_E5M2"}


class _Item(NamedTuple):
    """What a header says of an array."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    begin: int
    end: int


class Contents(NamedTuple):
    """A safetensors file, opened."""

    entries: dict[str, Entry]
    metadata: dict[str, str]


def open_safetensors(path: PathLike) -> Contents:
    """Return what a safetensors file holds, by its header alone, in its order; arrays are views of it."""
    where = shown(path, 1000)
    with reading(where):
        data, _ = map_file(path, where)
        start = _header_end(data, where)
        items, metadata = _read_header(Reader(data, 8, start, where, len(data)))
        _check_layout(items, len(data) - start, where)
    return Contents({name: _entry(data, start, item, name, where) for name, item in items.items()}, metadata)


def _entry(data: mmap.mmap, start: int, item: _Item, name: str, where: str) -> Entry:
    named = f"{where}: {shown(name, 60)}"
    read = partial(view, data, start + item.begin, item.shape, item.dtype, named)
    return Entry(Tensor(item.shape, item.dtype, where), read)


def _header_end(data: mmap.mmap, where: str) -> int:
    length, held = int.from_bytes(data[:8], "little"), len(data)
    most = min(held - 8, LONGEST_HEADER)
    if held < 8 or length > most:
        check_beginning(data, "a safetensors file", where)
        got = f"a promise of {length}" if held >= 8 else f"a file of {held}"
        raise file_error(where, f"a safetensors header of at most {max(most, 0)} bytes", got, AGAIN)
    return 8 + length


def _read_header(reader: Reader) -> tuple[dict[str, _Item], dict[str, str]]:
    items: dict[str, _Item] = {}
    metadata: dict[str, str] = {}
    where, dtypes = reader.where, dict[str, np.dtype[Any]]()
    for name in reader.object():
        reader.where = f"{where}: {shown(name, 60)}"
        if name == METADATA:
            for key in reader.object():
                metadata[key] = reader.string()
                reader.budget.take(_PER_TEXT + 4 * len(key) + 4 * len(metadata[key]))
        else:
            reader.budget.take(_PER_ARRAY + 4 * len(name))
            items[name] = _read_item(reader, dtypes)
        reader.where = where
    reader.finish()
    return items, metadata


def _read_item(reader: Reader, dtypes: dict[str, np.dtype[Any]]) -> _Item:
    where, dtype, shape, span = reader.where, None, None, None
    for key in reader.object():
        if key == "dtype":
            dtype = _dtype(reader.string(), dtypes, where)
        elif key == "shape":
            shape = reader.integers(MOST_AXES)
        elif key == "data_offsets":
            span = reader.integers(2)
        else:
            raise file_error(where, "dtype, shape and data_offsets", f"'{shown(key, 60)}'", AGAIN)
    if dtype is None or shape is None or span is None or len(span) != 2:
        raise file_error(where, "a dtype, a shape and two data_offsets", "less", AGAIN)
    promised, (begin, end) = count(shape, dtype.itemsize, where) * dtype.itemsize, span
    if end - begin != promised:
        expected = f"the {promised} bytes of {shown(f'{name_of(dtype)} {shape}', 80)}"
        raise file_error(where, expected, f"data_offsets {begin} to {end}", AGAIN)
    return _Item(dtype, shape, begin, end)


def _dtype(name: str, known: dict[str, np.dtype[Any]], where: str) -> np.dtype[Any]:
    if name not in _DTYPES:
        raise file_error(where, f"one of {', '.join(_DTYPES)}", f"dtype '{shown(name, 60)}'", "save it as another")
    if name not in known:
        known[name] = extra_dtype(_DTYPES[name]) if name in _EXTRA else np.dtype(_DTYPES[name])
    return known[name]


def _check_layout(items: Mapping[str, _Item], held: int, where: str) -> None:
    """Refuse arrays that overlap, leave holes, or do not end where the file does: the format allows no such file."""
    at = 0
    for name, item in sorted(items.items(), key=lambda pair: (pair[1].begin, pair[1].end)):
        if item.begin != at:
            fault = "overlap the array before" if item.begin < at else "leave a hole"
            got = f"data_offsets {item.begin} to {item.end}, which {fault}"
            raise file_error(f"{where}: {shown(name, 60)}", f"values that begin at {at}", got, AGAIN)
        at = item.end
    if at != held:
        fault = "it is cut" if held < at else f"it holds {held - at} more than its header says"
        raise file_error(where, f"the {at} bytes of values that its header promises", held, f"{fault}: {AGAIN}")


def _name_of(dtype: np.dtype[Any], where: str) -> str:
    for name, ours in _DTYPES.items():
        if dtype.name == ours or (name not in _EXTRA and dtype.newbyteorder("<") == np.dtype(ours)):
            return name
    raise file_error(where, f"one of {', '.join(_DTYPES)}", f"dtype {dtype}", "save it as another")


def _header(arrays: Mapping[str, NDArray[Any]], names: Mapping[str, str], metadata: Mapping[str, str]) -> bytes:
    header: dict[str, Any] = {METADATA: dict(sorted(metadata.items()))} if metadata else {}
    at = 0
    for name, dtype in names.items():
        array = arrays[name]
        header[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": [at, at + array.nbytes]}
        at += array.nbytes
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode("utf-8")
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def write_safetensors(
    path: PathLike,
    arrays: Mapping[str, NDArray[Any]],
    *,
    metadata: Mapping[str, str] | None = None,
    force: bool = False,
) -> None:
    """Write a .safetensors file whole or not at all, as `write_arrays` does.

    Arrays are written in the order of the format's own library: by the size of their numbers, then by name. Equal
    arrays and metadata give equal bytes.

    Parameters
    ----------
    path : str or path-like
        The file, which must end in .safetensors.
    arrays : mapping of str to ndarray
        What to write: float64 to float16, bfloat16, float8_e4m3fn, float8_e5m2, integers and bool.
    metadata : mapping of str to str, optional
        Texts that go with them.
    force : bool
        Replace an existing file, as in `write_arrays`.

    Raises
    ------
    TypeError
        The path is none, what it is given are not arrays by name, or the metadata no mapping.
    FileError
        An array is of another type, or the file could not be read again: of more than 32 axes, too long a text, or
        too many arrays for its size. Or the target exists, is a folder, cannot be written to, or the disk is full.

    Examples
    --------
    >>> import tempfile, os
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = os.path.join(folder, "model.safetensors")
    ...     write_safetensors(path, {"w_q": np.eye(2, dtype=np.float16)}, metadata={"n_heads": "1"})
    ...     checkpoint = open_safetensors(path)
    >>> checkpoint.metadata, checkpoint.entries["w_q"].read().dtype
    ({'n_heads': '1'}, dtype('float16'))
    """
    where = shown(check_path("write_safetensors", path), 1000)
    check_arrays("write_safetensors", arrays)
    if metadata is not None and not isinstance(metadata, Mapping):
        refuse_type("write_safetensors", "metadata", "a mapping of str to str", metadata, "give a dict")
    check_target(path, force=force, ending=".safetensors")
    kinds = {name: _check_array(array, f"{where}: {shown(name, 60)}") for name, array in arrays.items()}
    _check_texts(arrays, metadata or {}, where)
    order = list(_DTYPES)
    names = dict(sorted(kinds.items(), key=lambda pair: (order.index(pair[1]), pair[0].encode())))
    header = _header(arrays, names, metadata or {})
    total = len(header) + sum(array.nbytes for array in arrays.values())
    _check_readable(header, total, where)

    def write(temporary: str) -> None:
        with new_file(temporary, mode_of(path)) as file:
            file.write(header)
            for name, kind in names.items():
                file.write(_little(arrays[name], kind).data)

    write_whole(path, write, total, force)


def _little(array: NDArray[Any], kind: str) -> NDArray[np.uint8]:
    """Return the bytes of an array in C order, little-endian: the array's own memory where it has them so."""
    plain = np.ascontiguousarray(array)
    ordered = plain.astype(plain.dtype.newbyteorder("<") if kind in _EXTRA else _DTYPES[kind], copy=False)
    return ordered.reshape(-1).view(np.uint8)


def _check_array(array: NDArray[Any], where: str) -> str:
    """Return the format's name of an array's type, if what is written of it can be read again."""
    check_axes(array.ndim, where, "join some by reshape")
    return _name_of(checked(array, where).dtype, where)


def _check_readable(header: bytes, total: int, where: str) -> None:
    """Refuse a header that could not be read again: what reads it goes through it, in a file of `total` bytes."""
    if len(header) - 8 > LONGEST_HEADER:
        expected = f"a header of at most {LONGEST_HEADER} bytes"
        raise file_error(where, expected, len(header) - 8, "save fewer arrays, and shorter texts")
    _read_header(Reader(header, 8, len(header), where, total))


def _check_texts(arrays: Mapping[str, NDArray[Any]], metadata: Mapping[str, str], where: str) -> None:
    for text in (*arrays, *metadata, *metadata.values()):
        if not isinstance(text, str) or text == METADATA:
            raise file_error(where, f"texts, and names other than {METADATA}", repr(text), "give str")
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise file_error(where, "texts that UTF-8 can hold", repr(text), "name it otherwise") from error
