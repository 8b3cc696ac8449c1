"""Records of texts and plain arrays as bytes: how a request goes to a child, and results come back.

Nothing is unpickled or inflated, and nothing allocated that the bytes do not hold. Knows neither calls nor what the
arrays mean. The child loads this file without the package.
"""

import re
from collections.abc import Iterator
from json import dumps, loads
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

_DTYPE = re.compile(r"[<>|][biuf](1|2|4|8|12|16)")
_COUNT = 8  # bytes that say how long the text of a record is
_MOST_AXES = 32
_dtype, _empty, _frombuffer, _uint8 = (
    np.dtype,
    np.empty,
    np.frombuffer,
    np.uint8,
)  # as they are before a solution is loaded


class Record(NamedTuple):
    """Fields of JSON, and arrays of bool, integer or float by name."""

    fields: dict[str, Any]
    arrays: dict[str, NDArray[Any]]


def packed(fields: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> bytes:
    """Return a record as bytes: how long its text is, its text, its arrays one after another."""
    heads = [[name, array.dtype.str, list(array.shape)] for name, array in arrays.items()]
    text = dumps([fields, heads]).encode("ascii")
    return len(text).to_bytes(_COUNT, "little") + text + b"".join(array.tobytes() for array in arrays.values())


def unpacked(data: bytes) -> Iterator[Record]:
    """Yield the records that bytes hold.

    Raises
    ------
    ValueError
        They are not such records; those before it have been yielded.
    """
    at = 0
    while at < len(data):
        start = at + _COUNT
        end = start + int.from_bytes(data[at:start], "little")
        record, at = _record(data, start, end)
        yield record


def _record(data: bytes, start: int, end: int) -> tuple[Record, int]:
    """The record whose text lies from start to end, and where the next begins."""
    if end > len(data):
        raise ValueError("a record is cut")
    try:
        fields, heads = loads(data[start:end])
        arrays = {}
        for name, dtype, shape in heads:
            arrays[str(name)], end = _array(data, end, dtype, shape)
    except (TypeError, OverflowError, RecursionError, MemoryError) as error:
        raise ValueError("a record is damaged") from error
    if not isinstance(fields, dict):
        raise ValueError("a record has no fields")
    return Record(fields, arrays), end


def _array(data: bytes, at: int, name: str, shape: list[int]) -> tuple[NDArray[Any], int]:
    if not _DTYPE.fullmatch(name) or len(shape) > _MOST_AXES or any(type(n) is not int or n < 0 for n in shape):
        raise ValueError("a record's array has no plain dtype and shape")
    dtype = _dtype(name)
    size = prod(shape)
    if size * dtype.itemsize > len(data) - at:
        raise ValueError("a record promises more than it holds")
    if dtype.kind == "b" and size and _frombuffer(data, _uint8, size, at).max() > 1:
        raise ValueError("a bool is neither 0 nor 1")
    if not size:
        return _empty(shape, dtype), at
    return _frombuffer(data, dtype, size, at).reshape(shape).copy(), at + size * dtype.itemsize
