"""What `headwise info FILE` and `headwise attend --layer` compute: values are returned, nothing is printed."""

import json
import math
import operator
import os
import re
from collections.abc import Mapping
from functools import reduce
from typing import Any, NamedTuple

import numpy as np

from headwise.core import masks, workers
from headwise.core.shapes import Array, computing_dtype, result_dtype
from headwise.demo import HELD, check_memory, measured, one_line
from headwise.files import Checkpoint, FileError, PathLike, listed, open_checkpoint, read_array, read_bytes, shown
from headwise.layers.attention_layer import MultiHeadAttention
from headwise.layers.weights import Found, attention_layers, from_state_dict

_CONFIG = "config.json"
_MOST = 4_000_000  # bytes of a config.json; one with the names of 20,000 classes has 1 MB
_CROSS = "EncDecAttention"  # T5's
_ARRAYS = ("mask", "keys", "bias")  # of a call, besides x


class Kind(NamedTuple):
    """What layers of attention may have in common."""

    pattern: str
    d_model: int
    n_heads: int | None  # None where nothing says it
    n_kv_heads: int | None
    d_head: int | None
    d_q: int
    d_kv: int
    grouped: bool
    rope: str | None
    biases: bool
    norms: bool


class Held(NamedTuple):
    """What a checkpoint holds, of which only headers were read."""

    path: str
    config: str | None  # the config.json beside it
    model: str | None  # what that says it is
    arrays: int
    numbers: int
    bytes: int
    dtypes: list[str]
    files: int
    layers: dict[str, Kind]  # by prefix, counted numbers in their order


class LayerRun(NamedTuple):
    """One layer of a checkpoint run on tokens."""

    prefix: str
    layer: str  # in words
    config: str | None
    arrays: dict[str, Array]  # x, and what else was given
    out: Array  # as x
    weights: Array | None  # (b, H, n, n), or without b; a layer with m learned keys has m columns more
    seconds: float
    peak: int | None  # as in demo.Attended
    counted: str
    notes: list[str]  # what the model does and the call does not


# ----------------------------------------------------------------------------------------------- listing
def describe(path: PathLike, n_heads: int | None = None, n_kv_heads: int | None = None) -> Held:
    """Return what a checkpoint holds, and its layers of attention, by names and shapes alone.

    Parameters
    ----------
    path : str or path-like
        As for `open_checkpoint`. A config.json beside it is read.
    n_heads, n_kv_heads : int, optional
        Numbers of heads, in place of what that says.

    Returns
    -------
    Held

    Raises
    ------
    FileError
        The checkpoint or its config.json is damaged; one line.

    Examples
    --------
    >>> import tempfile
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
    checkpoint, (file, config) = open_checkpoint(path), read_config(path)
    tensors = [checkpoint.tensor(name) for name in checkpoint]
    sizes = [math.prod(tensor.shape) for tensor in tensors]
    kind = (config or {}).get("model_type")
    layers = _layers(path, checkpoint, file, config, n_heads, n_kv_heads)
    return Held(
        path=os.fspath(path),
        config=file,
        model=kind if isinstance(kind, str) else None,
        arrays=len(tensors),
        numbers=sum(sizes),
        bytes=sum(size * tensor.dtype.itemsize for size, tensor in zip(sizes, tensors, strict=True)),
        dtypes=sorted({tensor.type for tensor in tensors}),
        files=len({tensor.file for tensor in tensors}),
        layers={layer.prefix: _kind(layer) for layer in sorted(layers, key=lambda layer: _counted(layer.prefix))},
    )


def read_config(path: PathLike) -> tuple[str | None, dict[str, Any] | None]:
    """Return the name of the config.json in a checkpoint's folder, and what it says; None where there is none."""
    folder = os.fspath(path) if os.path.isdir(path) else os.path.dirname(path)
    file = os.path.join(folder, _CONFIG)
    if not os.path.lexists(file):
        return None, None
    where = shown(file, 1000)
    try:
        config = json.loads(read_bytes(file, most=_MOST))
    except FileError:
        raise
    except (ValueError, RecursionError) as error:
        got = f"'{shown(error, 100)}'"
        raise FileError(f"{where}: expected JSON, got {got}; copy it again, or move it away") from error
    if not isinstance(config, dict):
        got = type(config).__name__
        raise FileError(f"{where}: expected a JSON object, got a {got}; copy it again, or move it away")
    return file, config


def _layers(
    path: PathLike,
    checkpoint: Checkpoint,
    file: str | None,
    config: Mapping[str, Any] | None,
    n_heads: int | None,
    n_kv_heads: int | None,
) -> list[Found]:
    own = {"num_attention_heads": n_heads, "num_key_value_heads": n_kv_heads}
    said = {key: number for key, number in own.items() if number is not None}
    try:
        return attention_layers(checkpoint, dict(config or {}) | said)
    except (TypeError, ValueError) as error:
        raise FileError(f"{shown(file or path, 1000)}: {_without_function(error)}") from error


def _without_function(error: Exception) -> str:
    """The text of an error that a function raised, without the function's name."""
    text = one_line(error)
    return text.partition(": ")[2] or text


def _kind(layer: Found) -> Kind:
    heads = layer.n_heads
    d_head = layer.d_q // heads if heads else None
    return Kind(
        layer.pattern,
        layer.d_model,
        heads,
        layer.n_kv_heads,
        d_head,
        layer.d_q,
        layer.d_kv,
        layer.grouped,
        layer.rope,
        layer.biases,
        layer.norms,
    )


def _counted(prefix: str) -> list[tuple[int, str, str]]:
    """A key that sorts layer 2 before layer 10: numbers go by how long they are first."""
    parts = re.split("([0-9]+)", prefix)
    plain = [part.lstrip("0") if i % 2 else part for i, part in enumerate(parts)]
    return [(len(p) if i % 2 else 0, p, part) for i, (p, part) in enumerate(zip(plain, parts, strict=True))]


# ----------------------------------------------------------------------------------------------- running
def run_layer(
    path: PathLike,
    prefix: str,
    x: PathLike,
    *,
    n_heads: int | None = None,
    n_kv_heads: int | None = None,
    mask: PathLike | None = None,
    keys: PathLike | None = None,
    bias: PathLike | None = None,
    causal: bool = False,
    window: tuple[int | None, int | None] | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    weights: bool = False,
) -> LayerRun:
    """Run one layer of attention of a checkpoint on tokens.

    Parameters
    ----------
    path : str or path-like
        As for `open_checkpoint`. A config.json beside it says heads and rope.
    prefix : str
        What stands before the layer's names, as `describe` tells it, or before those of everything around it.
    x : str or path-like
        An .npy file of the tokens, shape (b, n, d_model) or (n, d_model).
    n_heads, n_kv_heads : int, optional
        Numbers of heads, in place of what config.json says.
    mask, keys, bias : str or path-like, optional
        .npy files: bool that broadcasts to (b, H, n, n), True = may attend; bool (b, n) or (n,), True for real tokens;
        float that broadcasts to (b, H, n, n), added to the scores.
    causal : bool
    window : (int or None, int or None), optional
    scale, softcap : float, optional
        As for `attention`.
    weights : bool
        Run the definition, which makes the weights and holds all scores at once.

    Returns
    -------
    LayerRun

    Raises
    ------
    FileError
        A file cannot be read, or what the files hold does not fit together; one line.
    """
    checkpoint, (file, config) = open_checkpoint(path), read_config(path)
    found = _chosen(path, checkpoint, _layers(path, checkpoint, file, config, n_heads, n_kv_heads), prefix)
    if found is not None:
        _check_said(path, found, config, bias)
    try:
        place = prefix if found is None else found.prefix
        layer = from_state_dict(checkpoint, place, n_heads=n_heads, n_kv_heads=n_kv_heads, config=config)
    except FileError:
        raise
    except (TypeError, ValueError) as error:
        raise FileError(f"{shown(path, 1000)}: {_without_function(error)}") from error
    arrays = {"x": _tokens(x, path, place, layer)}
    files = zip(_ARRAYS, (mask, keys, bias), strict=True)
    arrays |= {name: read_array(given) for name, given in files if given is not None}
    options = {"causal": causal, "scale": scale, "softcap": softcap, "bias": arrays.get("bias")}
    (out, made), seconds, peak, counted = _called(x, layer, arrays, window, options, weights)
    notes = _notes(config or {}, causal, window)
    return LayerRun(place, str(layer), file, arrays, out, made, seconds, peak, counted, notes)


def _chosen(path: PathLike, checkpoint: Checkpoint, layers: list[Found], prefix: str) -> Found | None:
    """The layer that is meant; None where there are names under the prefix, of which another may say what is wrong."""
    start = prefix.rstrip(".")
    below = f"{start}." if start else ""
    exact = [layer for layer in layers if layer.prefix == start]
    inside = exact or [layer for layer in layers if layer.prefix.startswith(below)]
    if len(inside) == 1:
        return inside[0]
    where, see = f"{shown(path, 1000)}: --layer", f"headwise info {shown(path)} lists them"
    if inside:
        held = f"'{shown(prefix)}', where there are {len(inside)}: {listed([layer.prefix for layer in inside])}"
        raise FileError(f"{where}: expected the prefix of one layer, got {held}; {see}")
    if start and any(name.startswith(below) for name in checkpoint):
        return None
    known = listed([layer.prefix for layer in layers])
    raise FileError(f"{where}: expected the prefix of a layer ({known}), got '{shown(prefix)}'; {see}")


def _check_said(path: PathLike, found: Found, config: Mapping[str, Any] | None, bias: PathLike | None) -> None:
    """Refuse a layer of which nothing says the heads or the rope, and what is more than self-attention."""
    where, beside = f"{shown(path, 1000)}: {shown(found.prefix)}", f"put the model's {_CONFIG} beside the file"
    if found.rope is not None and config is None:
        raise FileError(f"{where}: expected a {_CONFIG}, which says its rope, got none; {beside}")
    if found.n_heads is None:
        expected = f"--n-heads, a number that divides d_q = {found.d_q}"
        raise FileError(f"{where}: expected {expected}, got none that does; pass it, or {beside}")
    if found.pattern != "t5":
        return
    if found.prefix.rpartition(".")[2] == _CROSS:
        raise _of_others(where)
    if bias is None:
        how = "np.save what headwise.relative_position_bias makes of relative_attention_bias.weight of its first layer"
        raise FileError(f"{where}: expected --bias FILE, T5's relative positions, got none; {how}")


def _of_others(where: str) -> FileError:
    how = "load it in Python by headwise.weights.from_state_dict and call it with key="
    return FileError(f"{where}: expected self-attention, got a layer whose keys are of other tokens; {how}")


def _tokens(x: PathLike, path: PathLike, place: str, layer: MultiHeadAttention) -> Array:
    if (layer.d_key, layer.d_value) != (layer.d_model, layer.d_model):
        raise _of_others(f"{shown(path, 1000)}: {shown(place)}")
    tokens = read_array(x)
    if tokens.ndim not in (2, 3) or tokens.shape[-1] != layer.d_model:
        expected = f"shape (b, n, {layer.d_model}) or (n, {layer.d_model})"
        raise FileError(f"{shown(x, 1000)}: expected {expected}, d_model of the layer, got {tokens.shape}")
    return tokens


def _called(
    x: PathLike,
    layer: MultiHeadAttention,
    arrays: Mapping[str, Array],
    window: tuple[int | None, int | None] | None,
    options: Mapping[str, Any],
    weights: bool,
) -> tuple[tuple[Array, Array | None], float, int | None, str]:
    tokens = arrays["x"]
    b, n = (tokens.shape[0] if tokens.ndim == 3 else 1), tokens.shape[-2]
    scores = (b, layer.n_heads, n, n)
    if weights:
        dtype = computing_dtype(result_dtype(tokens.dtype, layer.w_q.dtype)) or np.dtype(float)
        needed = HELD * math.prod(scores) * dtype.itemsize
        check_memory(x, "x", "scores", needed, scores, "; without --weights no scores are stored")

    def run() -> tuple[Array, Array | None]:
        rules: list[Any] = [] if window is None else [masks.window(*window)]
        rules += [masks.keys(arrays["keys"])] if "keys" in arrays else []
        rules += [arrays["mask"]] if "mask" in arrays else []
        mask = reduce(operator.and_, rules) if rules else None
        if weights:
            out, made = layer(tokens, mask=mask, **options, return_weights=True)
            return out, made
        return layer(tokens, mask=mask, **options), None

    workers.default_threads()  # the BLAS is looked for once, and that is not what is measured here
    try:
        return measured(run, 4.0 * math.prod(scores) * layer.d_head)
    except (TypeError, ValueError) as error:
        raise FileError(f"{shown(x, 1000)}: {_without_function(error)}") from error


def _notes(config: Mapping[str, Any], causal: bool, window: Any) -> list[str]:
    """What a model's config.json says of who sees whom, where the call does not do it."""
    notes = []
    kinds = config.get("architectures")
    told = [kind for kind in kinds if isinstance(kind, str)] if isinstance(kinds, list) else []
    decoders = [kind for kind in told if kind.endswith(("ForCausalLM", "LMHeadModel"))]
    if decoders and not causal and window is None:
        notes.append(f"{_CONFIG} says {shown(decoders[0], 60)}, whose tokens see no later one: pass --causal")
    width = config.get("sliding_window")
    if isinstance(width, int) and width > 0 and config.get("use_sliding_window", True) and window is None:
        notes.append(f"{_CONFIG} says sliding_window {shown(width, 20)}: pass --window {shown(width - 1, 20)},0")
    return notes
