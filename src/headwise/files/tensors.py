"""What a file says of an array before it is read, types of numbers that NumPy lacks, and views of a file's bytes."""

import math
import mmap
import sys
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from headwise.files.errors import AGAIN, file_error, shown

MOST_AXES = 32  # NumPy 1 has no more
_INSTALL = "pip install 'headwise[weights]'"


class Tensor(NamedTuple):
    """What a checkpoint says of an array, of which nothing was read.

    Attributes
    ----------
    shape : tuple of int
        Its sizes.
    dtype : dtype
        Its type of numbers; bfloat16 and the types of 8 bits are those of `ml_dtypes`.
    file : str
        The file, or the file in a folder, that holds it.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    file: str


class Entry(NamedTuple):
    """An array of a checkpoint: what is known of it, and how it is read."""

    tensor: Tensor
    read: Callable[[], NDArray[Any]]


def extra_dtype(name: str, where: str) -> np.dtype[Any]:
    """Return a type of numbers that `ml_dtypes` brings, such as bfloat16."""
    try:
        import ml_dtypes
    except ImportError as error:
        raise file_error(where, f"the package ml_dtypes, for {name}", "none", _INSTALL) from error
    found: type[np.generic] | None = getattr(ml_dtypes, name, None)
    if found is None:
        got = f"version {ml_dtypes.__version__}"
        raise file_error(where, f"a version of ml_dtypes with {name}", got, f"{_INSTALL} --upgrade")
    return np.dtype(found)


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
    """Return an array, if its bytes are values of its type: for bool, 0 and 1 alone are."""
    if array.dtype == np.bool_ and array.size and (most := int(array.view(np.uint8).max())) > 1:
        raise file_error(where, "bool values of 0 or 1", shown(most), "save it with dtype bool again")
    return array
