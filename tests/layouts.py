"""The same numbers in other layouts: strides, orders, directions, bytes."""

from collections.abc import Callable
from typing import Any

import numpy as np

LAYOUTS = ("writable", "read-only", "strided", "Fortran", "reversed", "stretched", "swapped")


def laid_out(array: Any, layout: str) -> Any:
    """The same numbers in another layout; all but one are read-only."""
    made = _LAYOUTS[layout](array)
    made.flags.writeable = layout == "writable"
    return made


def _strided(array: Any) -> Any:
    every_second = (*[slice(None, None, 2)] * array.ndim, ...)
    room = np.zeros([2 * size for size in array.shape], array.dtype)
    room[every_second] = array
    return room[every_second]


def _reversed(array: Any) -> Any:
    back = (*[slice(None, None, -1)] * array.ndim, ...)
    return np.ascontiguousarray(array[back])[back]


def _stretched(array: Any) -> Any:
    """With stride 0 along every axis on which all is equal."""
    small = array
    for axis in range(array.ndim):
        first = small.take([0], axis) if small.shape[axis] else small
        small = first if np.array_equal(np.broadcast_to(first, small.shape), small, equal_nan=False) else small
    return np.broadcast_to(small, array.shape)


def _swapped(array: Any) -> Any:
    return array.astype(array.dtype if array.dtype.kind in "Vb" else array.dtype.newbyteorder())


_LAYOUTS: dict[str, Callable[[Any], Any]] = {
    "writable": np.array,
    "read-only": np.array,
    "strided": _strided,
    "Fortran": lambda array: np.array(array, order="F"),
    "reversed": _reversed,
    "stretched": _stretched,
    "swapped": _swapped,
}
