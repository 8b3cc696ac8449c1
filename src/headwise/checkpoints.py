"""What `headwise info FILE` computes: what a checkpoint holds, and where its layers of attention are."""

import math
import os
import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from headwise.checkpoint_names import Names, looked_through, shard_note
from headwise.core.shapes import Faults
from headwise.files import Checkpoint, FileError, PathLike, open_checkpoint, shown
from headwise.layer_options import refusal
from headwise.layers.configs import Settings
from headwise.layers.describing import description_of
from headwise.layers.fitting import Fitting
from headwise.layers.found import places
from headwise.layers.patterns import OWN
from headwise.layers.weights import PATTERNS, Found, Pattern, attention_layers
from headwise.model_configs import CONFIG, ModelConfig, brief, read_config, read_pattern


class Kind(NamedTuple):
    """What layers of attention may have in common."""

    pattern: str
    d_model: int
    d_key: int  # width of the tokens that keys are made of
    d_value: int
    n_heads: int | None  # None where nothing says it
    n_kv_heads: int | None
    d_head: int | None
    d_q: int
    d_kv: int
    grouped: bool
    rope: str | None
    biases: bool
    norms: bool
    learned_keys: bool  # bias_k and bias_v
    relative_positions: bool  # whether a table of them is among the layer's arrays
    cross: bool  # whether its keys are of other tokens, by names or widths


class Held(NamedTuple):
    """What a checkpoint holds, of which only headers were read."""

    path: str
    config: str | None  # the config.json beside it
    model: str | None  # what that says it is
    parts: list[str]  # keys of a config.json of several parts
    arrays: int
    numbers: int
    bytes: int
    dtypes: list[str]
    files: int
    layers: dict[str, Kind]  # by prefix, counted numbers in their order
    names: Names | None  # where there is no layer
    described: dict[str, Any] | None  # then a guess at a dictionary of names, to begin with
    shard: str | None  # what to name, where this is one file of several
    notes: list[str]


def describe(
    path: PathLike, n_heads: int | None = None, n_kv_heads: int | None = None, pattern: str | None = None
) -> Held:
    """Return what a checkpoint holds, and its layers of attention, by names and shapes alone.

    Parameters
    ----------
    path : str or path-like
        As for `open_checkpoint`. A config.json beside it is read.
    n_heads, n_kv_heads : int, optional
        Numbers of heads, in place of what that says.
    pattern : str, optional
        The name of a pattern, or a JSON file with a dictionary of names; by default all patterns are looked for.

    Returns
    -------
    Held

    Raises
    ------
    FileError
        The checkpoint or a JSON file is damaged; one line.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> from headwise.files import write_arrays
    >>> names = [f"attn.{name}.weight" for name in ("query", "key", "value", "dense")]
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = os.path.join(folder, "model.npz")
    ...     weights = {name: np.eye(4) for name in names} | {name[:-6] + "bias": np.ones(4) for name in names}
    ...     write_arrays(path, weights)
    ...     held = describe(path, n_heads=2)
    >>> held.arrays, list(held.layers), held.layers["attn"].d_head
    (8, ['attn'], 2)
    """
    named = None if pattern is None else read_pattern(pattern)
    checkpoint, config = open_checkpoint(path), read_config(path)
    tensors = {name: checkpoint.tensor(name) for name in checkpoint}
    shapes = {name: tensor.shape for name, tensor in tensors.items()}
    sizes = [math.prod(shape) for shape in shapes.values()]
    kind = (config.said or {}).get("model_type")
    layers = find_layers(path, checkpoint, config, n_heads, n_kv_heads, named)
    layers.sort(key=lambda layer: _counted(layer.prefix))
    return Held(
        path=os.fspath(path),
        config=config.file,
        model=kind if isinstance(kind, str) else None,
        parts=config.parts,
        arrays=len(tensors),
        numbers=sum(sizes),
        bytes=sum(size * tensor.dtype.itemsize for size, tensor in zip(sizes, tensors.values(), strict=True)),
        dtypes=sorted({tensor.type for tensor in tensors.values()}),
        files=len({tensor.file for tensor in tensors.values()}),
        layers={layer.prefix: _kind(layer) for layer in layers},
        names=None if layers else looked_through(shapes),
        described=None if layers else description_of(shapes, config=config.said),
        shard=shard_note(path),
        notes=_notes(config, layers)
        + _lacks(config, layers, named, checkpoint)
        + ([] if layers or pattern is None else _misfits(checkpoint, named)),
    )


def _misfits(checkpoint: Checkpoint, pattern: str | Pattern | None) -> list[str]:
    """Why a pattern that was asked for is nowhere, at the first place that has some of its names."""
    place = next((place for place in places(checkpoint, patterns_of(pattern)) if place.likely), None)
    if place is None:
        return []
    tensors: dict[str, Any] = {role: checkpoint.tensor(name) for role, name in place.held.items()}  # shapes are enough
    fit = Fitting(Faults("info"), place, tensors, Settings())
    fit.check(below(place.prefix, checkpoint))
    found = [*map(str, fit.faults.found)]
    return [brief(ValueError("\n".join([f"info: {shown(place.prefix)} does not fit", *found])))] if found else []


def _notes(config: ModelConfig, layers: list[Found]) -> list[str]:
    notes = []
    unsaid = [layer.prefix for layer in layers if config.part(layer.prefix)[0] is None]
    if unsaid:
        parts = ", ".join(shown(key, 60) for key in config.parts)
        whose = f"{shown(unsaid[0]) or 'the layer without a prefix'}"
        whose += f" and {len(unsaid) - 1} more" if len(unsaid) > 1 else ""
        notes.append(f"{CONFIG} has numbers for parts of the model ({parts}); to which belongs {whose} is not known")
    return notes


def _lacks(config: ModelConfig, layers: list[Found], named: str | Pattern | None, checkpoint: Checkpoint) -> list[str]:
    """What config.json says that layers by their names lack, and what attend asks for then: once for each text."""
    notes: dict[str, None] = {}
    for layer in layers:
        said = config.part(layer.prefix)[1]
        pattern = named if isinstance(named, Pattern) else PATTERNS[layer.pattern]
        text = None if said is None else refusal(said, layer.pattern, pattern, layer.prefix, checkpoint)
        if text is not None:
            notes[f"for headwise attend: {CONFIG} says {text}"] = None
    return list(notes)


# ----------------------------------------------------------------------------------------------- finding
def find_layers(
    path: PathLike,
    checkpoint: Checkpoint,
    config: ModelConfig,
    n_heads: int | None = None,
    n_kv_heads: int | None = None,
    pattern: str | Pattern | None = None,
) -> list[Found]:
    """Return the layers of a checkpoint, each with the numbers of its part of the configuration."""
    given = n_heads, n_kv_heads
    if not config.parts:
        return _with(path, checkpoint, config, "", config.said, given, pattern)
    bare = _with(path, checkpoint, config, "", None, given, pattern)
    parts = {layer.prefix: config.part(layer.prefix) for layer in bare}
    by_part = {}
    for key, said in parts.values():
        if key not in by_part:
            found = _with(path, checkpoint, config, key or "", said, given, pattern)
            by_part[key] = {layer.prefix: layer for layer in found}
    return [by_part[parts[layer.prefix][0]][layer.prefix] for layer in bare]


def _with(
    path: PathLike,
    checkpoint: Checkpoint,
    config: ModelConfig,
    part: str,
    said: Mapping[str, Any] | None,
    given: tuple[int | None, int | None],
    pattern: str | Pattern | None,
) -> list[Found]:
    """All layers, with the numbers of one configuration."""
    own = dict(zip(("num_attention_heads", "num_key_value_heads"), given, strict=True))
    try:
        said = dict(said or {}) | {key: n for key, n in own.items() if n is not None}
        return attention_layers(checkpoint, said, pattern=pattern)
    except (TypeError, ValueError) as error:
        where = f"{shown(config.file or path, 1000)}: {part}{': ' if part else ''}"
        raise FileError(f"{where}{brief(error)}") from error


def patterns_of(pattern: str | Pattern | None) -> Mapping[str, Pattern]:
    """The patterns that may be meant, by name."""
    if pattern is None:
        return PATTERNS
    return {pattern: PATTERNS[pattern]} if isinstance(pattern, str) else {OWN: pattern}


# ------------------------------------------------------------------------------------------------ kinds
def _kind(layer: Found) -> Kind:
    d_key, d_value = layer.d_key or layer.d_model, layer.d_value or layer.d_model
    heads = layer.n_heads
    return Kind(
        pattern=layer.pattern,
        d_model=layer.d_model,
        d_key=d_key,
        d_value=d_value,
        n_heads=heads,
        n_kv_heads=layer.n_kv_heads,
        d_head=layer.d_q // heads if heads else None,
        d_q=layer.d_q,
        d_kv=layer.d_kv,
        grouped=layer.grouped,
        rope=layer.rope,
        biases=layer.biases,
        norms=layer.norms,
        learned_keys=layer.learned,
        relative_positions=layer.table,
        cross=layer.cross or (d_key, d_value) != (layer.d_model, layer.d_model),
    )


def is_decoder(prefix: str) -> bool:
    """Whether a prefix says a decoder."""
    return "decoder" in prefix.split(".")


def _counted(prefix: str) -> list[tuple[int, str, str]]:
    """A key that sorts layer 2 before layer 10: numbers go by how long they are first."""
    parts = re.split("([0-9]+)", prefix)
    plain = [part.lstrip("0") if i % 2 else part for i, part in enumerate(parts)]
    return [(len(p) if i % 2 else 0, p, part) for i, (p, part) in enumerate(zip(plain, parts, strict=True))]


def below(prefix: str, names: Iterable[str]) -> list[str]:
    """The names under a prefix, dots at its end aside."""
    start = prefix.rstrip(".")
    return [name for name in names if not start or name.startswith(f"{start}.")]
