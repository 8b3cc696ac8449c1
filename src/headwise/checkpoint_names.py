"""Names of a checkpoint for those who look for attention in it: a line for each series; knows no values."""

import os
import re
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from headwise.files import PathLike, listed, shown

_MOST = 12
_WHOLE = re.compile("attn|attention", re.I)
_LIKE = re.compile(
    "attn|attention|qkv|query|(?<![a-z])(keys?|values?)(?![a-z])|(?<![a-z])(w|in|to)?[qkv](w|lin|proj)?(?![a-z])", re.I
)
_COUNTED = re.compile(r"(?<![^._])\d+(?![^.])")  # a number alone between dots, or after a low line
_SHARD = re.compile(r"(.+)-0*(\d+)-of-0*(\d+)(\.[a-z]+)", re.I)


class Series(NamedTuple):
    """Arrays that differ in the numbers of their names alone."""

    name: str  # of the first
    shape: tuple[int, ...]
    arrays: int


class Names(NamedTuple):
    """What a checkpoint without known layers holds, in part."""

    series: list[Series]  # at most a dozen
    more: int  # series that are left out
    alike: bool  # whether these are the names that look like attention; else they are the first ones


def looked_through(shapes: Mapping[str, tuple[int, ...]]) -> Names:
    """Return the names that look like attention, or where none does the first ones; of a repeated series the first.

    Examples
    --------
    >>> shapes = {f"tower.{i}.{name}": (4, 4) for i in range(3) for name in ("mixer.q", "fc.weight")}
    >>> looked_through(shapes)
    Names(series=[Series(name='tower.0.mixer.q', shape=(4, 4), arrays=3)], more=0, alike=True)
    """
    alike = _alike(shapes)
    counts: dict[tuple[str, tuple[int, ...]], list[str]] = {}
    for name in alike or shapes:
        counts.setdefault((_COUNTED.sub("0", name), shapes[name]), []).append(name)
    series = [Series(names[0], shape, len(names)) for (_, shape), names in counts.items()]
    return Names(series[:_MOST], max(len(series) - _MOST, 0), bool(alike))


def _alike(names: Iterable[str]) -> list[str]:
    """Names that look like attention, and those beside queries, keys or values: one may be the output's weight."""
    folders: dict[str, int] = {}  # and how many parts a name in it has
    for name in names:
        parts = name.split(".")
        at = next((i for i in reversed(range(len(parts))) if _LIKE.search(parts[i])), None)
        if at is not None:
            at += bool(_WHOLE.search(parts[at]))
            folder = ".".join(parts[:at])
            folders[folder] = max(folders.get(folder, 0), len(parts))
    return [name for name in names if _LIKE.search(name) or _beside(name, folders)]


def _beside(name: str, folders: Mapping[str, int]) -> bool:
    parts = name.split(".")
    return any(len(parts) <= folders.get(".".join(parts[:at]), 0) for at in range(1, len(parts)))


def shard_note(path: PathLike, exists: Callable[[str], bool] = os.path.exists) -> str | None:
    """Return what to say of a file that is one part of a model, by its name; None of any other.

    >>> shard_note("m/model-00003-of-00006.safetensors", exists=lambda path: True)
    'part 3 of the 6 of a model: name m/model.safetensors.index.json for all of them'
    """
    folder, file = os.path.split(os.fspath(path))
    found = _SHARD.fullmatch(file)
    if not found:
        return None
    index = os.path.join(folder, f"{found[1]}{found[4]}.index.json")
    part = f"part {shown(found[2], 20)} of the {shown(found[3], 20)} of a model"
    if exists(index):
        return f"{part}: name {shown(index, 300)} for all of them"
    return f"{part}, whose {shown(os.path.basename(index))} is not beside it: put it there with all parts, and name it"


def first_of(names: Iterable[str]) -> str:
    """Return the first few names on one line.

    >>> first_of("abcdef")
    'a, b, c, d and 2 more'
    """
    return listed(list(names), 4)
