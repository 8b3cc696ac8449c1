"""What a file says of an array before it is read, types of numbers that NumPy lacks, and views of a file's bytes."""

import math
import mmap
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from headwise.files.errors import AGAIN, file_error, shown

MOST_AXES = 32  # NumPy 1 has no more
_INSTALL = "pip install 'headwise[weights]'"
_BYTES = {"bfloat16": 2, "float8_e4m3fn": 1, "float8_e5m2": 1}
_LACKING = "lacking"


class Tensor(NamedTuple):
    """What a checkpoint says of an array, of which nothing was read.

    Attributes
    ----------
    shape : tuple of int
        Its sizes.
    dtype : dtype
        Its type of numbers; bfloat16 and the types of 8 bits are those of `ml_dtypes`, without which they are void and
        reading the array says so.
    file : str
        The file, or the file in a folder, that holds it.
    type : str
        The name of its type of numbers.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    file: str

    @property
    def type(self) -> str:
        return name_of(self.dtype)


class Entry(NamedTuple):
    """An array of a checkpoint: what is known of it, and how it is read."""

    tensor: Tensor
    read: Callable[[], NDArray[Any]]


def extra_dtype(name: str) -> np.dtype[Any]:
    """Return a type of numbers that `ml_dtypes` brings, such as bfloat16.

    Where that is not installed, or too old, it is one of as many bytes that knows the name, and arrays of it are not
    read: what a file holds can be told all the same.
    """
    try:
        import ml_dtypes

        found: type[np.generic] | None = getattr(ml_dtypes, name, None)
        got = f"version {ml_dtypes.__version__}"
    except ImportError:
        found, got = None, "none"
    if found is None:
        return np.dtype(f"V{_BYTES[name]}", metadata={_LACKING: (name, got)})
    return np.dtype(found)


def name_of(dtype: np.dtype[Any]) -> str:
    """Return the name of a type, also of one that is lacking here."""
    name, _ = _lacking(dtype)
    return name or str(dtype)


def _lacking(dtype: np.dtype[Any]) -> tuple[str, str]:
    """The name of a type that is lacking here and what is there instead; two empty texts of any other."""
    said: Mapping[str, tuple[str, str]] = dtype.metadata or {}
    return said.get(_LACKING, ("", ""))


def check_axes(axes: int, where: str, remedy: str = AGAIN) -> None:
    """Refuse more axes than every version of NumPy has."""
    if axes > MOST_AXES:
        raise file_error(where, f"at most {MOST_AXES} axes", axes, remedy)


def count(shape: Sequence[int], itemsize: int, where: str) -> int:
    """Return how many numbers an array of a shape has; a shape that NumPy cannot have is refused."""
    check_axes(len(shape), where)
    if any(size < 0 for size in shape):
        raise file_error(where, "a shape of sizes >= 0", tuple(shape), AGAIN)
    if math.prod(max(size, 1) for size in shape) * itemsize > sys.maxsize:
        raise file_error(where, "a shape that an array can have", tuple(shape), AGAIN)
    return math.prod(shape)


def view(
    data: mmap.mmap,
    begin: int,
    shape: Sequence[int],
    dtype: np.dtype[Any],
    where: str,
    order: Literal["C", "F"] = "C",
) -> NDArray[Any]:
    """Return an array over bytes of a mapped file, which cannot be written to."""
    offset = begin if math.prod(shape) else 0  # NumPy lets no array begin at a file's end, not even one of nothing
    return checked(np.ndarray(tuple(shape), dtype, data, offset, order=order), where)


def checked(array: NDArray[Any], where: str) -> NDArray[Any]:
    """Return an array, if its type is here and its bytes are values of that: for bool, 0 and 1 alone are."""
    name, got = _lacking(array.dtype)
    if name and got == "none":
        raise file_error(where, f"the package ml_dtypes, for {name}", got, _INSTALL)
    if name:
        raise file_error(where, f"a version of ml_dtypes with {name}", got, f"{_INSTALL} --upgrade")
    if array.dtype == np.bool_ and array.size and (most := int(array.view(np.uint8).max())) > 1:
        raise file_error(where, "bool values of 0 or 1", shown(most), "save it with dtype bool again")
    return array
