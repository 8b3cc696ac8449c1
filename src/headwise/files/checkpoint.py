"""A checkpoint of whatever format as a mapping of names to arrays, of which none is read before it is asked for."""

import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from numpy.typing import NDArray

from headwise.files.errors import PathLike, file_error, listed, reading, shown
from headwise.files.npy_entries import open_folder, open_npz
from headwise.files.opening import check_path
from headwise.files.safetensors import open_safetensors
from headwise.files.shards import open_shards
from headwise.files.tensors import Entry, Tensor
from headwise.files.torch_pickle import open_torch

IN_FOLDERS = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)
"""What a folder of a model holds, one of them; the first that is there counts."""

_INDEX = ".index.json"


class Checkpoint(Mapping[str, NDArray[Any]]):
    """Arrays by name, in the order of the file; each is read when it is asked for, and cannot be written to.

    Arrays are views of the mapped file where the format allows: their bytes come from the disk as they are used. A file
    that is cut short by others while it is mapped ends the process, as with every memory map. Arrays of a folder of
    .npy files and compressed ones of an .npz file are looked for when they are asked for, and refused if their file
    has changed since it was opened.

    Attributes
    ----------
    path : str
        What was opened.
    metadata : dict of str to str
        The texts that a safetensors file holds beside its arrays; else empty.
    """

    def __init__(self, path: str, entries: Mapping[str, Entry], metadata: Mapping[str, str] | None = None) -> None:
        self.path, self.metadata, self._entries = path, dict(metadata or {}), dict(entries)

    def __getitem__(self, name: str) -> NDArray[Any]:
        entry = self._entry(name)
        with reading(f"{shown(self.path, 1000)}: {shown(name, 60)}"):
            return entry.read()

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __repr__(self) -> str:
        return f"Checkpoint('{shown(self.path)}', {len(self)} arrays)"

    def tensor(self, name: str) -> Tensor:
        """Return shape, type and file of an array, reading nothing."""
        return self._entry(name).tensor

    def _entry(self, name: str) -> Entry:
        if name not in self._entries:
            raise KeyError(f"{shown(self.path)} has no array '{shown(name, 60)}'; it has {listed(self._entries)}")
        return self._entries[name]


def _safetensors(path: PathLike) -> dict[str, Entry]:
    return open_safetensors(path).entries


_SHARDS: dict[str, Callable[[PathLike], dict[str, Entry]]] = {
    ".safetensors": _safetensors,
    ".bin": open_torch,
    ".pt": open_torch,
    ".pth": open_torch,
}


def _shards(path: PathLike) -> dict[str, Entry]:
    return open_shards(path, _SHARDS)


_ENDINGS = {**_SHARDS, ".npz": open_npz, _INDEX: _shards}


def _others(folder: PathLike) -> list[str]:
    """Files of a folder without .npy files that could be opened by themselves: indexes of parts first."""
    names = sorted(os.listdir(folder), key=lambda name: (not name.lower().endswith(_INDEX), name))
    if any(name.endswith(".npy") for name in names):
        return []
    return [name for name in names if name.lower().endswith((".safetensors", *_ENDINGS))]


def open_checkpoint(path: PathLike) -> Checkpoint:
    """Open a checkpoint, having checked all that its files say of their arrays, and read none of them.

    Parameters
    ----------
    path : str or path-like
        A .safetensors file; a .bin, .pt or .pth file of `torch.save`, of which only tensors are taken and nothing is
        unpickled; an .npz file or a folder of .npy files; an .index.json file with its parts beside it; or a folder
        that holds a model.safetensors or pytorch_model.bin, whole or in parts.

    Returns
    -------
    Checkpoint
        Names to arrays, which cannot be written to.

    Notes
    -----
    Sizes, shapes and types are checked, values are not: of the checksums in a zip file (.bin, .pt, .pth, .npz) only
    those of compressed members are compared, as these are read, since the others' would take reading the whole file.
    An array that is mapped keeps its file open: of a folder, those that are held; of other files, as long as the
    checkpoint or one of its arrays is.

    Raises
    ------
    TypeError
        The path is none.
    FileError
        Anything missing, damaged, or promised and not held by the file; anything but tensors in a file of `torch.save`.

    Examples
    --------
    >>> import tempfile, os
    >>> import numpy as np
    >>> from headwise.files import write_safetensors
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = os.path.join(folder, "model.safetensors")
    ...     write_safetensors(path, {"w_q": np.eye(2), "b_q": np.zeros(2)})
    ...     checkpoint = open_checkpoint(folder)
    >>> list(checkpoint), checkpoint.tensor("w_q").shape, checkpoint["b_q"]
    (['b_q', 'w_q'], (2, 2), array([0., 0.]))
    """
    where = shown(check_path("open_checkpoint", path), 1000)
    with reading(where):
        if os.path.isdir(path):
            inside = (os.path.join(path, name) for name in IN_FOLDERS)
            found = next((file for file in inside if os.path.lexists(file)), None)
            if found is None and (others := _others(path)):
                expected = "a folder of .npy files, or of a model under its usual names"
                raise file_error(where, expected, listed(others), f"name one of these, as {shown(others[0])}")
            return open_checkpoint(found) if found else Checkpoint(os.fspath(path), open_folder(path))
        name = os.fspath(path)
        if name.lower().endswith(".safetensors"):
            return Checkpoint(name, *open_safetensors(path))
        for ending, opens in _ENDINGS.items():
            if name.lower().endswith(ending):
                return Checkpoint(name, opens(path))
        os.stat(path)  # what is not there is said first
    expected = f"a folder, or a name that ends in {', '.join(_ENDINGS)}"
    raise file_error(where, expected, "another", "name a checkpoint")
