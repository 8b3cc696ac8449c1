"""Checkpoints in several files, and the index beside them that says which array lies in which."""

import os
from collections.abc import Callable, Mapping

from headwise.files.errors import FileError, PathLike, file_error, listed, reading, shown
from headwise.files.json_parts import Reader
from headwise.files.opening import map_file
from headwise.files.tensors import Entry

_MOST = 100_000_000  # bytes of an index
_EXPANSION = 4  # the one file that is nothing but names: those of a large model take more as Python's texts
_PER_NAME = 200  # bytes that are kept of an array, but for its name


def open_shards(path: PathLike, endings: Mapping[str, Callable[[PathLike], dict[str, Entry]]]) -> dict[str, Entry]:
    """Return the arrays of all files that an index names, in its order; one error lists whatever does not fit.

    Parameters
    ----------
    path : str or path-like
        A file that ends in .index.json; its files lie beside it.
    endings : mapping of str to callable
        How a file is opened that ends so.
    """
    where = shown(path, 1000)
    index = _read_index(path, where)
    files = list(dict.fromkeys(index.values()))
    _check_names(files, tuple(endings), where)
    folder = os.path.dirname(path)
    absent = [file for file in files if not os.path.exists(os.path.join(folder, file))]
    opened = {file: _open(os.path.join(folder, file), endings) for file in files if file not in absent}
    _check_places(index, opened, absent, where)
    return {name: opened[file][name] for name, file in index.items()}


def _open(path: str, endings: Mapping[str, Callable[[PathLike], dict[str, Entry]]]) -> dict[str, Entry]:
    return next(opens for ending, opens in endings.items() if path.lower().endswith(ending))(path)


def _read_index(path: PathLike, where: str) -> dict[str, str]:
    with reading(where):
        data, _ = map_file(path, where)
        if len(data) > _MOST:
            raise file_error(where, f"an index of at most {_MOST} bytes", len(data), "name another file")
        reader = Reader(data, 0, len(data), where, _EXPANSION * len(data))
        index, files = dict[str, str](), dict[str, str]()
        for _ in reader.object(only=("weight_map",)):
            for name in reader.object():
                file = reader.string()
                new = 0 if file in files else _PER_NAME + 4 * len(file)  # thousands of arrays share one
                index[name] = files.setdefault(file, file)
                reader.budget.take(_PER_NAME + 4 * len(name) + new)
        reader.finish()
    if not index:
        raise file_error(where, "a weight_map that names files", "none", "name the index of a model's files")
    return index


def _check_names(files: list[str], endings: tuple[str, ...], where: str) -> None:
    """Refuse what is not the plain name of a file beside the index, or is the index itself."""
    bad = [
        file
        for file in files
        if any(sign in file for sign in "/\\:\0") or file in ("", ".", "..") or not file.lower().endswith(endings)
    ]
    if bad:
        expected = f"names of files beside it that end in {', '.join(endings)}"
        raise file_error(where, expected, f"'{listed(bad, 3)}'", "put them there, and name them so")


def _check_places(
    index: Mapping[str, str], opened: Mapping[str, Mapping[str, Entry]], absent: list[str], where: str
) -> None:
    lost = [f"{name} in {file}" for name, file in index.items() if file in opened and name not in opened[file]]
    twice = [
        f"{name} in {file}, too"
        for file, entries in opened.items()
        for name in entries
        if name in index and index[name] != file
    ]
    faults = [("missing files", absent), ("names not in their file", lost), ("names in two files", twice)]
    text = "; ".join(f"{words}: {listed(names)}" for words, names in faults if names)
    if text:
        raise FileError(f"{where}: expected each array in the file that the index names; {text}; download it again")
