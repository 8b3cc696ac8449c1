"""PyTorch's .bin, .pt and .pth files: zip and the format before it; pickles that can name tensors and nothing else."""

import mmap
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from headwise.files.beginnings import check_beginning
from headwise.files.budget import Budget
from headwise.files.errors import AGAIN, PathLike, file_error, listed, reading, shown
from headwise.files.opening import Origin, map_file
from headwise.files.pickles import ALONE, Known, Machine
from headwise.files.tensors import Entry, Tensor, checked, count, extra_dtype
from headwise.files.zips import open_archive, stored_at

_ZIP = b"PK\x03\x04"
_MAGIC = 0x1950A86A20F9469CFC6C  # what the older format begins with
_PROTOCOL = 1001  # and then its only version
_WAYS = "take out the tensors that you need, and save them"

_TYPES = {
    "float64": ("DoubleStorage", "<f8"),
    "float32": ("FloatStorage", "<f4"),
    "float16": ("HalfStorage", "<f2"),
    "bfloat16": ("BFloat16Storage", None),
    "float8_e4m3fn": (None, None),
    "float8_e5m2": (None, None),
    "int64": ("LongStorage", "<i8"),
    "int32": ("IntStorage", "<i4"),
    "int16": ("ShortStorage", "<i2"),
    "int8": ("CharStorage", "i1"),
    "uint8": ("ByteStorage", "u1"),
    "uint16": (None, "<u2"),
    "uint32": (None, "<u4"),
    "uint64": (None, "<u8"),
    "bool": ("BoolStorage", "?"),
}
"""PyTorch's name of a type of numbers -> the class of its storages, and NumPy's name; None where ml_dtypes has it."""


class _Storage(NamedTuple):
    """A run of numbers that tensors are views of; `type` is None where each tensor gives its own, counted in bytes."""

    key: str
    type: str | None
    size: int


class _View(NamedTuple):
    """A tensor as the pickle describes it, checked by nobody yet."""

    storage: Any
    offset: Any
    shape: Any
    strides: Any
    type: str | None
    lazily: Any  # what is still to be done to its numbers, such as {"neg": True}


def _rebuild(
    storage: Any, offset: Any, shape: Any, strides: Any, grad: Any = None, hooks: Any = None, lazily: Any = None
) -> _View:
    return _View(storage, offset, shape, strides, storage.type if isinstance(storage, _Storage) else None, lazily)


def _rebuild_typed(
    storage: Any, offset: Any, shape: Any, strides: Any, grad: Any, hooks: Any, of: Any, lazily: Any = None
) -> _View:
    return _View(storage, offset, shape, strides, of.value if isinstance(of, Known) else None, lazily)


def _parameter(data: Any, *_: Any) -> Any:
    return data


def _ordered() -> dict[Any, Any]:
    """An empty one, as Python 3 makes it and then sets its items; with items in the call it is Python 2's."""
    return {}


def _size(items: Any = ()) -> Any:
    return items


def _known() -> dict[str, Known]:
    """Return the names that may occur in a pickle."""
    table = [
        Known("collections.OrderedDict", _ordered),
        Known("torch.Size", _size),
        Known("torch._utils._rebuild_tensor", _rebuild),
        Known("torch._utils._rebuild_tensor_v2", _rebuild),
        Known("torch._utils._rebuild_tensor_v3", _rebuild_typed),
        Known("torch._utils._rebuild_parameter", _parameter),
        Known("torch.storage.UntypedStorage"),
        Known("torch.UntypedStorage"),
    ]
    for name, (storage, _) in _TYPES.items():
        table.append(Known(f"torch.{name}", value=name))
        if storage:
            table += [Known(f"torch.{storage}", value=name), Known(f"torch.storage.{storage}", value=name)]
    return {known.name: known for known in table}


_KNOWN = _known()


def _load_storage(found: dict[str, _Storage], where: str, persistent: Any) -> _Storage:
    """Return the storage that a persistent id names: ('storage', class, key, where it was, how many numbers)."""
    kinds = (str, Known, str, object, int)
    plain = isinstance(persistent, tuple) and len(persistent) in (5, 6) and all(map(isinstance, persistent, kinds))
    if not plain or persistent[0] != "storage" or persistent[1].call is not None or persistent[4] < 0:
        raise file_error(where, "storages by class, key and size", "another persistent id", ALONE)
    if persistent[5:] not in ((), (None,)):
        raise file_error(where, "whole storages", "a view of one", ALONE)
    storage = _Storage(persistent[2], persistent[1].value, persistent[4])
    if found.setdefault(storage.key, storage) != storage:
        raise file_error(where, f"one storage '{shown(storage.key, 60)}'", "two that differ", AGAIN)
    return storage


def _dtype(name: str) -> np.dtype[Any]:
    ours = _TYPES[name][1]
    return np.dtype(ours) if ours else extra_dtype(name)


def _numbers(values: Any, words: str, where: str) -> tuple[int, ...]:
    if not isinstance(values, tuple) or not all(type(value) is int and value >= 0 for value in values):
        raise file_error(where, f"{words} of integers >= 0", "others", AGAIN)
    return values


def _entry(data: mmap.mmap, view: _View, place: Callable[[_Storage], int], name: str, where: str) -> Entry:
    """Return a tensor as an entry, once it is sure that all of it lies inside its storage."""
    named = f"{where}: {shown(name, 60)}"
    storage, shape = view.storage, _numbers(view.shape, "a shape", named)
    strides, (offset,) = _numbers(view.strides, "strides", named), _numbers((view.offset,), "an offset", named)
    if view.lazily:
        got = "ones still to be negated or conjugated"
        raise file_error(named, "numbers as they are", got, "save its .resolve_neg().resolve_conj()")
    if not isinstance(storage, _Storage) or view.type is None or len(strides) != len(shape):
        raise file_error(named, "a storage, its type, and a stride for each axis", "others", AGAIN)
    dtype = _dtype(view.type)
    held = storage.size * (1 if storage.type is None else _dtype(storage.type).itemsize) // dtype.itemsize
    size = count(shape, dtype.itemsize, named)
    last = offset + sum((n - 1) * stride for n, stride in zip(shape, strides, strict=True)) if size else offset
    if last >= held + (not size) or size > held:
        got = shown(f"{shape} by strides {strides} from {offset}", 120)
        raise file_error(named, f"a view of the {held} numbers of its storage", got, AGAIN)
    begin = place(storage) + offset * dtype.itemsize if size else 0
    steps = tuple(stride * dtype.itemsize if n > 1 else 0 for n, stride in zip(shape, strides, strict=True))
    return Entry(Tensor(shape, dtype, where), partial(_read, data, begin, shape, dtype, steps if size else None, named))


def _read(
    data: mmap.mmap,
    begin: int,
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    steps: tuple[int, ...] | None,
    where: str,
) -> NDArray[Any]:
    """Return a view of the file, or a copy where its numbers do not lie at multiples of their size."""
    array: NDArray[Any] = checked(np.ndarray(shape, dtype, data, begin, steps), where)
    if not array.flags.aligned:
        array = array.copy()
        array.flags.writeable = False
    return array


def _tensors(value: Any, where: str) -> dict[str, _View]:
    """Return the one dictionary of tensors in what was pickled: that itself, or one of its values."""
    if not isinstance(value, dict):
        raise file_error(where, "a dictionary of tensors", f"a {type(value).__name__}", ALONE)
    if _is_state(value):
        return value
    parts = {id(part): part for part in value.values()}  # the same one may stand under many names
    states = {which for which, part in parts.items() if _is_state(part)}
    found = [name for name, part in value.items() if id(part) in states]
    beside = [name for name, part in value.items() if isinstance(part, _View) and part.shape != ()]  # () as of a loss
    if len(found) != 1 or beside:
        expected = "one dictionary of tensors among what it holds"
        expected += ", and none beside it" if found and beside else ""
        names = [*beside, *found] if found else value
        raise file_error(where, expected, listed([_word(name) for name in names]), ALONE)
    return dict(value[found[0]])


def _word(name: Any) -> str:
    """A name that a pickle gives, in words: of anything but a text its kind, since it may hold itself many times."""
    return name if isinstance(name, str) else "a number" if isinstance(name, int) else f"a {type(name).__name__}"


def _is_state(value: Any) -> bool:
    if not isinstance(value, dict) or not value:
        return False
    return all(isinstance(name, str) and isinstance(part, _View) for name, part in value.items())


def open_torch(path: PathLike) -> dict[str, Entry]:
    """Return the tensors of a file of `torch.save`, in its order, each a view of the file; nothing is unpickled."""
    where = shown(path, 1000)
    with reading(where):
        data, origin = map_file(path, where)
        if data[:4] == _ZIP:
            return _open_zip(origin, data, where)
        return _open_legacy(data, where)


def _entries(
    data: mmap.mmap, value: Any, found: Mapping[str, _Storage], places: Mapping[str, tuple[int, int]], where: str
) -> dict[str, Entry]:
    def place(storage: _Storage) -> int:
        if storage.key not in places:
            raise file_error(where, f"storage '{shown(storage.key, 60)}'", "none", AGAIN)
        begin, held = places[storage.key]
        itemsize = 1 if storage.type is None else _dtype(storage.type).itemsize
        if storage.size * itemsize != held:
            expected = f"{storage.size * itemsize} bytes in storage '{shown(storage.key, 60)}'"
            raise file_error(where, expected, held, AGAIN)
        return begin

    return {name: _entry(data, view, place, name, where) for name, view in _tensors(value, where).items()}


# ------------------------------------------------------------------------------------------- zip
def _open_zip(origin: Origin, data: mmap.mmap, where: str) -> dict[str, Entry]:
    with open_archive(origin, data, where) as archive:
        names = archive.namelist()
        main = [name for name in names if name == "data.pkl" or name.endswith("/data.pkl")]
        if len(main) != 1:
            raise file_error(where, "one data.pkl, as torch.save writes it", listed(main or names), AGAIN)
        folder = main[0][: -len("data.pkl")]
        if len(set(names)) != len(names):
            raise file_error(where, "each member once", "some name twice", AGAIN)
        if f"{folder}byteorder" in names and archive.getinfo(f"{folder}byteorder").file_size == len("big"):
            raise file_error(where, "numbers in little-endian order", "big-endian ones", _WAYS)
        wanted = [name for name in names if name in main or name.startswith(f"{folder}data/")]
        members = {name: stored_at(data, archive.getinfo(name), where) for name in wanted}
    found: dict[str, _Storage] = {}
    begin, held = members.pop(main[0])
    load = partial(_load_storage, found, where)
    value = Machine(data, begin, begin + held, _KNOWN, load, Budget(len(data), where, ALONE)).run()
    places = {name[len(folder) + len("data/") :]: place for name, place in members.items()}
    return _entries(data, value, found, places, where)


# ------------------------------------------------------------------------------------------- before zip
def _open_legacy(data: mmap.mmap, where: str) -> dict[str, Entry]:
    """Read five pickles one behind the other: magic number, version, system, tensors, keys; then the storages."""
    found: dict[str, _Storage] = {}
    budget, load, at, parts = Budget(len(data), where, ALONE), partial(_load_storage, found, where), 0, []
    if data[:1] != b"\x80":
        check_beginning(data, "a file of torch.save", where)
        raise file_error(where, "a file of torch.save", f"bytes that begin {data[:6]!r}", "name it by its format")
    for expected in (_MAGIC, _PROTOCOL, None, None, None):
        machine = Machine(data, at, len(data), _KNOWN, load, budget)
        parts.append(machine.run())
        at = machine.at
        if expected is not None and parts[-1] != expected:
            raise file_error(where, "a file of torch.save", "another pickle", f"it is not loaded; {ALONE}")
    _, _, system, value, keys = parts
    if isinstance(system, dict) and system.get("little_endian") is False:
        raise file_error(where, "numbers in little-endian order", "big-endian ones", _WAYS)
    return _entries(data, value, found, _places(data, at, keys, found, where), where)


def _places(
    data: mmap.mmap, at: int, keys: Any, found: Mapping[str, _Storage], where: str
) -> dict[str, tuple[int, int]]:
    """Return where each storage begins and how many bytes it has: 8 bytes of how many numbers, then the numbers."""
    places: dict[str, tuple[int, int]] = {}
    for key in keys if isinstance(keys, list) else []:
        if not isinstance(key, str) or key not in found or key in places:
            raise file_error(where, "the keys of its storages, each once", f"'{shown(_word(key), 60)}'", AGAIN)
        kind = found[key].type
        size = int.from_bytes(data[at : at + 8], "little", signed=True)
        held = size * (1 if kind is None else _dtype(kind).itemsize)
        if len(data) - at < 8 or not 0 <= held <= len(data) - at - 8:
            got = len(data) - at
            raise file_error(where, f"storage '{shown(key, 60)}' of {size} numbers", f"{got} bytes", AGAIN)
        places[key] = (at + 8, held)
        at += 8 + held
    return places
