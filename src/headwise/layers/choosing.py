"""Which layer of attention a prefix means in a state, and what to pass where it means none or several.

Knows names; reads no array, and not whether those of a layer fit.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from headwise.core.shapes import MOST_AXES, Faults, shown, words
from headwise.layers.describing import description_remedy
from headwise.layers.fitting import fits_well
from headwise.layers.found import Place, places
from headwise.layers.patterns import PATTERNS, Pattern, listed, printed

_SHARD = re.compile(r"-(\d{1,9})-of-(\d{1,9})\.[a-z]+$", re.ASCII)
_DESCRIBED = 64  # names of which a dictionary may be made: more are those of many layers
_DEEPEST = 16  # how many parts of a prefix may be too many


def names_under(faults: Faults, state: Mapping[str, Any], prefix: str) -> list[str]:
    """The names that begin with a prefix; an error where some exist and none does."""
    start, texts = prefix.rstrip("."), [name for name in state if isinstance(name, str)]
    names = [name for name in texts if not start or name.startswith(f"{start}.")]
    if start and texts and not names:
        got = f"{shown(prefix)}, with which none begins"
        faults.value("prefix", "the beginning of some names", got, _beginning(start, texts) + _part_of_a_model(state))
        faults.raise_any()
    return names


def _tensor(state: Mapping[str, Any], name: str) -> Any:
    """What says the shape of an array: of an open checkpoint, without its values being read."""
    return state.tensor(name) if hasattr(state, "tensor") else state[name]


def _part_of_a_model(state: Mapping[str, Any]) -> str:
    """What to add where a checkpoint is one file of several, by the name of its file."""
    if not hasattr(state, "tensor"):
        return ""
    files = {str(getattr(state.tensor(name), "file", "")) for name in state}
    found = _SHARD.search(next(iter(files))) if len(files) == 1 else None
    if found is None:
        return ""
    return f"; its file is part {int(found[1])} of {int(found[2])} of a model: open the folder or the .index.json"


def _beginning(start: str, names: list[str]) -> str:
    """What to pass in place of a prefix with which no name begins."""
    parts, inner = start.split("."), f".{start}."
    longer = list(dict.fromkeys(name.partition(inner)[0] + inner[:-1] for name in names if inner in name))
    if longer:
        return f"with a beginning it fits: pass {_quoted(longer, 3)}"
    for shorter in (".".join(parts[i:]) for i in range(1, min(len(parts), _DEEPEST))):
        if any(name.startswith(f"{shorter}.") for name in names):
            return f"without its beginning it fits: pass '{printed(shorter)}'"
    layers = [place.prefix or "'' (no prefix)" for place in places(names, PATTERNS) if place.whole]
    if layers:
        return f"layers are {listed(layers, 5)}; see attention_layers(state)"
    return f"names begin with {listed(dict.fromkeys(name.rpartition('.')[0] or name for name in names), 5)}"


def _quoted(names: list[str], most: int) -> str:
    return listed([f"'{printed(name)}'" for name in names], most)


def place_meant(
    faults: Faults, state: Mapping[str, Any], names: list[str], prefix: str, patterns: Mapping[str, Pattern]
) -> Place:
    """The one layer that is meant."""
    found = _meant(places(names, patterns), prefix.rstrip("."))
    if len(found) == 1 and (fits_well(found[0]) if len(patterns) > 1 else not _is_anothers(found[0], names)):
        return found[0]
    if len(found) > 1:
        held = f"that of {len(found)}: {listed((place.prefix for place in found), 12)}"
        faults.value("prefix", "the prefix of one layer", held, "name one of them")
    else:
        at = found[0].prefix if found and len(patterns) > 1 else prefix.rstrip(".")
        _refuse_names(faults, state, [name for name in names if not at or name.startswith(f"{at}.")], at, patterns)
    faults.raise_any()
    raise AssertionError("a fault was noted")


def _meant(found: list[Place], start: str) -> list[Place]:
    """The places that a prefix may mean: a whole one at it, else whole ones below it before a part of one at it."""
    here = max((place for place in found if place.prefix == start), key=lambda place: place.rank, default=None)
    below = [place for place in found if place.prefix != start and place.likely]
    if here and (here.whole or not below or (here.likely and not any(place.whole for place in below))):
        return [here]
    return below or [place for place in found if fits_well(place)] or found


def _is_anothers(place: Place, names: list[str]) -> bool:
    """Whether a part of one pattern of :data:`PATTERNS` that was named is the whole of another."""
    others = places(names, PATTERNS) if place.name in PATTERNS and not place.whole else []
    return any(other.whole and other.prefix == place.prefix for other in others)


def _refuse_names(
    faults: Faults, state: Mapping[str, Any], names: list[str], start: str, patterns: Mapping[str, Pattern]
) -> None:
    """Note that no pattern has these names, which are shown without the prefix, and what does."""
    known = "" if len(patterns) == 1 else f": {', '.join(patterns)}"
    expected = f"weights by the names of {'a' if known else 'the'} pattern{known}"
    order = sorted(names, key=lambda name: ("att" not in name.lower(), name.count(".")))  # of a whole model, these
    seen = [f"{shown(name.removeprefix(f'{start}.'))}{_shape_of(state, name)}" for name in order[:8]]
    held = ", ".join(seen) + (f" and {len(names) - 8} more" if len(names) > 8 else "") if names else "no name"
    held += f" at '{printed(start)}'" if start and names else ""
    fits = dict.fromkeys(place.name for place in places(names, PATTERNS) if place.whole)
    remedy = f"pass pattern='{next(iter(fits), '')}', whose names are there"
    if not fits:
        shapes = {name: getattr(_tensor(state, name), "shape", None) for name in order[:_DESCRIBED]}
        remedy = description_remedy(shapes, start) + _part_of_a_model(state)
    faults.value("pattern" if fits else "prefix", expected, held, remedy)


def _shape_of(state: Mapping[str, Any], name: str) -> str:
    """The shape of an array in an error, if it says one."""
    shape = getattr(_tensor(state, name), "shape", None)
    return f" {words(shape)}" if isinstance(shape, tuple) and len(shape) < MOST_AXES else ""
