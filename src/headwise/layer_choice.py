"""Which layer of a checkpoint a prefix means, and what is wrong where that is none, or no self-attention."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from headwise.checkpoint_names import first_of, shard_note
from headwise.checkpoints import below, find_layers, patterns_of
from headwise.files import Checkpoint, FileError, PathLike, open_checkpoint, shown
from headwise.layer_options import keys_asked
from headwise.layers.found import places
from headwise.layers.weights import Found, Pattern
from headwise.model_configs import CONFIG, ModelConfig, heads_of


class Chosen(NamedTuple):
    """The layer that is meant, and what is known of it."""

    prefix: str
    where: str  # the file and the prefix, as errors begin
    found: Found | None  # None where names are there and no whole layer
    config: Mapping[str, Any] | None  # of its part of the model


def without_layer(path: PathLike) -> str | None:
    """What is wrong where a file holds layers of attention and none of them is named; None where it holds none."""
    try:
        checkpoint = open_checkpoint(path)
        if all(name in checkpoint for name in "qkv"):
            return None
        layers = find_layers(path, checkpoint, ModelConfig(None, None))
    except FileError:
        return None
    if not layers:
        return None
    held = f"{len(layers)} {'layer' if len(layers) == 1 else 'layers'} of attention"
    how = f"pass --layer PREFIX and --x X.npy, the first is --layer {_typed(layers[0].prefix)}"
    return f"{shown(path, 1000)}: expected arrays q, k, v, got {held}; {how}; headwise info {shown(path)} lists them"


def _typed(prefix: str) -> str:
    return shown(prefix) or "''"


def choose(
    path: PathLike,
    checkpoint: Checkpoint,
    layers: list[Found],
    prefix: str,
    config: ModelConfig,
    pattern: str | Pattern | None,
) -> Chosen:
    """The layer that is meant; without what was found where there are names of which another may say what is wrong."""
    start = prefix.rstrip(".")
    names = below(start, checkpoint)
    exact = [layer for layer in layers if layer.prefix == start]
    inside = exact or [layer for layer in layers if below(start, [f"{layer.prefix}."])]
    where, see = shown(path, 1000), f"headwise info {shown(path)} lists them"
    if len(inside) > 1:
        held = f"'{shown(prefix)}', where there are {len(inside)}: {first_of(layer.prefix for layer in inside)}"
        raise FileError(f"{where}: --layer: expected the prefix of one layer, got {held}; {see}")
    if inside or (start and names):
        place = inside[0].prefix if inside else prefix
        where += f": {shown(place)}" if place else ""
        if not inside and not places(names, patterns_of(pattern)):
            raise _unknown(path, where, names, prefix, pattern)
        return Chosen(place, where, inside[0] if inside else None, _config(config, where, place))
    if not layers:
        known = "by the names of its patterns" if pattern is None else "by the names of --pattern"
        raise FileError(f"{where}: --layer: expected layers {known}, got none; {_described(path)}")
    known = first_of(layer.prefix for layer in layers)
    held = f"expected the prefix of a layer ({known}), got '{shown(prefix)}'"
    raise FileError(f"{where}: --layer: {held}; {see}{shard_hint(path)}")


def _unknown(path: PathLike, where: str, names: list[str], prefix: str, pattern: str | Pattern | None) -> FileError:
    start = len(prefix.rstrip(".")) + 1
    whose = "a known pattern" if pattern is None else "--pattern"
    held = first_of(name[start:] for name in names)
    return FileError(f"{where}: expected weights by the names of {whose}, got {held}; {_described(path)}")


def _described(path: PathLike) -> str:
    """What to do about a layer that no pattern knows."""
    note = shard_note(path)
    if note is not None:
        return f"this is {note}"
    python = "in Python by headwise.weights.from_state_dict(state, prefix, pattern={'w_q': ..., ...})"
    return f"headwise info {shown(path)} shows names; describe yours by --pattern FILE.json, or {python}"


def shard_hint(path: PathLike) -> str:
    note = shard_note(path)
    return "" if note is None else f"; this is {note}"


def _config(config: ModelConfig, where: str, prefix: str) -> Mapping[str, Any] | None:
    key, said = config.part(prefix)
    if key is None:
        parts = ", ".join(shown(part, 60) for part in config.parts)
        expected = f"a prefix or a {CONFIG} that says which part of the model it is"
        how = "in Python pass the part to headwise.weights.from_state_dict as config="
        raise FileError(f"{where}: expected {expected}, got one with {parts}; {how}")
    return said


def check_said(chosen: Chosen, found: Found, config: ModelConfig, n_heads: int | None) -> None:
    """Refuse a layer of which nothing says the heads or the rope, and what its names call cross attention."""
    beside = f"put the model's {CONFIG} beside the file"
    if found.rope is not None and chosen.config is None:
        how = f"{beside}, or write one: {keys_asked()}"
        raise FileError(f"{chosen.where}: expected a {CONFIG}, which says its rope, got none; {how}")
    if found.n_heads is None:
        said, got, how = heads_of(chosen.config), "none", "pass it" if config.file else f"pass it, or {beside}"
        if n_heads is not None:
            got, how = str(n_heads), "pass another"
        elif said is not None:
            got, how = f"{said} of {CONFIG}", "pass the layer's own"
        expected = f"--n-heads, a number that divides d_q = {found.d_q}"
        raise FileError(f"{chosen.where}: expected {expected}, got {got}; {how}")
    if found.cross:
        raise of_others(chosen.where)


def of_others(where: str) -> FileError:
    how = "load it in Python by headwise.weights.from_state_dict and call it with key="
    return FileError(f"{where}: expected self-attention, got a layer whose keys are of other tokens; {how}")
