"""What `headwise attend --layer` computes: one layer of a checkpoint on tokens from a file; nothing is printed."""

import math
import operator
import re
from collections.abc import Mapping
from functools import reduce
from typing import Any, NamedTuple

import numpy as np

from headwise.checkpoints import below, find_layers, is_decoder
from headwise.core import masks, workers
from headwise.core.shapes import Array, computing_dtype, result_dtype
from headwise.demo import HELD, check_memory, measured
from headwise.files import Checkpoint, FileError, PathLike, open_checkpoint, read_array, shown
from headwise.layer_choice import Chosen, check_said, choose, of_others, shard_hint
from headwise.layer_options import Said, answered
from headwise.layers.attention_layer import MultiHeadAttention
from headwise.layers.families import looks_back
from headwise.layers.weights import PATTERNS, Found, Pattern, from_state_dict
from headwise.model_configs import CONFIG, brief, read_config, read_pattern

_ARRAYS = ("mask", "keys", "bias")  # of a call, besides x
_TABLE = "relative_attention_bias.weight"
_SAYS_ALL = "; in Python headwise.weights.from_state_dict says all"


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


def run_layer(
    path: PathLike,
    prefix: str,
    x: PathLike,
    *,
    n_heads: int | None = None,
    n_kv_heads: int | None = None,
    pattern: str | None = None,
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
    pattern : str, optional
        The name of a pattern, or a JSON file with a dictionary of names; by default the pattern whose names are there.
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
    named = None if pattern is None else read_pattern(pattern)
    checkpoint, config = open_checkpoint(path), read_config(path)
    layers = find_layers(path, checkpoint, config, n_heads, n_kv_heads, named)
    chosen = choose(path, checkpoint, layers, prefix, config, named)
    if chosen.found is not None:
        check_said(chosen, chosen.found, config, n_heads)
    given = {"bias": bias is not None, "softcap": softcap is not None, "scale": scale is not None}
    said = _said(chosen, named, checkpoint, given)
    heads: dict[str, Any] = {"n_heads": n_heads, "n_kv_heads": n_kv_heads}
    tokens = None if chosen.found is None else _tokens(x, chosen, chosen.found)  # before weights, which may be large
    try:
        layer = from_state_dict(
            checkpoint, chosen.prefix, **heads, pattern=named, config=said.config, transform=said.transform
        )
    except FileError:
        raise
    except (TypeError, ValueError) as error:
        raise FileError(f"{chosen.where}: {in_python(brief(error, _SAYS_ALL))}{shard_hint(path)}") from error
    arrays = {"x": _tokens(x, chosen, layer) if tokens is None else tokens}
    if bias is None and chosen.found is not None and chosen.found.pattern == "t5":
        raise _without_bias(path, chosen, checkpoint, arrays["x"].shape[-2])
    files = {name: file for name, file in zip(_ARRAYS, (mask, keys, bias), strict=True) if file is not None}
    arrays |= {name: read_array(file) for name, file in files.items()}
    _check_masks(files, arrays)
    options = {"causal": causal, "scale": scale, "softcap": softcap, "bias": arrays.get("bias")}
    (out, made), seconds, peak, counted = _called(x, layer, arrays, files, window, options, weights)
    notes = _notes(chosen, causal, window)
    return LayerRun(chosen.prefix, str(layer), config.file, arrays, out, made, seconds, peak, counted, notes)


# ------------------------------------------------------------------------------------------------ checking
def _said(chosen: Chosen, named: str | Pattern | None, checkpoint: Checkpoint, given: Mapping[str, bool]) -> Said:
    """What the config.json says, where the layer that is meant does it or an option that is given."""
    if chosen.found is None:
        return Said(chosen.config, None)
    name = chosen.found.pattern
    pattern = named if isinstance(named, Pattern) else PATTERNS[name]
    return answered(chosen.config, name, pattern, chosen.where, chosen.prefix, checkpoint, **given)


_FOR_PYTHON = (  # arguments of from_state_dict in its remedies, and what says the same on the command line
    (r"a model without it: pattern=", "a model without it: --pattern FILE.json without them, or in Python pattern="),
    (r"another model by pattern=", "another model by --pattern FILE.json, or in Python by pattern="),
    (r"in place of config= pass ", "in Python in place of config= pass "),
    (r"(?<!config= )pass (?=(or )?(transform|pattern|n_heads)=)", "in Python pass "),
    (
        r"; its file is part \d+ of \d+ of a model: open the folder or the \.index\.json",
        "",
    ),  # said here by the file's name
    (r"n_heads=(\d+), n_kv_heads=(\d+)$", r"--n-heads \1 --n-kv-heads \2"),
)


def in_python(text: str) -> str:
    """An error of from_state_dict, whose remedies are arguments, for somebody on the command line.

    >>> in_python("config['x']: expected 1, got 2; pass transform=...")
    "config['x']: expected 1, got 2; in Python pass transform=..."
    """
    for found, said in _FOR_PYTHON:
        text = re.sub(found, said, text)
    return text


def _tokens(x: PathLike, chosen: Chosen, layer: Found | MultiHeadAttention) -> Array:
    if {layer.d_key, layer.d_value} - {None, layer.d_model}:
        raise of_others(chosen.where)
    tokens = read_array(x)
    if tokens.ndim not in (2, 3) or tokens.shape[-1] != layer.d_model:
        expected = f"shape (b, n, {layer.d_model}) or (n, {layer.d_model})"
        raise FileError(f"{shown(x, 1000)}: expected {expected}, d_model of the layer, got {tokens.shape}")
    return tokens


def _check_masks(files: Mapping[str, PathLike], arrays: Mapping[str, Array]) -> None:
    """Word what does not fit as a fault of --mask and --keys: the mask of the call is made of both."""
    *batch, n = arrays["x"].shape[:-1]
    meanings = {"mask": "True = may attend", "keys": "True for real tokens"}
    for name in (name for name in meanings if name in files):
        where, array = f"{shown(files[name], 1000)}: --{name}: expected", arrays[name]
        if array.dtype != np.bool_:
            raise FileError(f"{where} bool, {meanings[name]}, got dtype {array.dtype}; save it with .astype(bool)")
        if name == "keys" and array.shape not in ((n,), (*batch, n)):
            shapes = f"shape {(*batch, n)} or ({n},)" if batch else f"shape ({n},)"
            raise FileError(f"{where} {shapes}, that of the tokens of x, got {array.shape}")


def _without_bias(path: PathLike, chosen: Chosen, checkpoint: Checkpoint, n: int) -> FileError:
    """T5's layer without its relative positions: with a command that makes them of the table of its stack."""
    text = f"{chosen.where}: expected --bias FILE, T5's relative positions, got none"
    stack = re.split(r"(?:^|\.)block\.", chosen.prefix)[0]
    tables = [f"{chosen.prefix}.{_TABLE}", *(name for name in below(stack, checkpoint) if name.endswith(_TABLE))]
    table = next((name for name in tables if name in checkpoint), None)
    both = not is_decoder(chosen.prefix)
    furthest = (chosen.config or {}).get("relative_attention_max_distance", 128)
    furthest = furthest if isinstance(furthest, int) else 128
    call = f"bidirectional={both}, max_distance={furthest}"
    if table is None or re.search(r"[\"'`$\\!%]", f"{path}{table}") or not f"{path}{table}".isprintable():
        made = f"headwise.relative_position_bias(table, {n}, {n}, {call})"
        return FileError(f"{text}; np.save what {made} makes of the {_TABLE} of its stack's first layer")
    read = f"open_checkpoint('{path}')['{table}']"
    code = "import numpy as np, headwise as hw; from headwise.files import open_checkpoint; "
    code += f"np.save('bias.npy', hw.relative_position_bias({read}, {n}, {n}, {call}))"
    return FileError(f'{text}; make it by python -c "{code}" and pass --bias bias.npy')


# ------------------------------------------------------------------------------------------------- running
def _called(
    x: PathLike,
    layer: MultiHeadAttention,
    arrays: Mapping[str, Array],
    files: Mapping[str, PathLike],
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
        text = brief(error)
        named = text.partition(": ")[0]
        said = f"{shown(files[named], 1000)}: --{text}" if named in files else f"{shown(x, 1000)}: {text}"
        raise FileError(said) from error


def _notes(chosen: Chosen, causal: bool, window: Any) -> list[str]:
    """What a model's config.json says of who sees whom, where the call does not do it."""
    config, notes = chosen.config or {}, []
    decoder = _decoder(config, chosen.prefix)
    if decoder and not causal and window is None:
        notes.append(f"{CONFIG} says {decoder} see no later one: pass --causal")
    width = config.get("sliding_window")
    if isinstance(width, int) and width > 0 and config.get("use_sliding_window", True) and window is None:
        notes.append(f"{CONFIG} says sliding_window {shown(width, 20)}: pass --window {shown(width - 1, 20)},0")
    return notes


def _decoder(config: Mapping[str, Any], prefix: str) -> str | None:
    """What a config.json says of tokens that see no later one; None where it says no such thing."""
    said = looks_back(config, prefix.split("."))
    kinds = config.get("architectures")
    told = [kind for kind in kinds if isinstance(kind, str)] if isinstance(kinds, list) else []
    causal = [kind for kind in told if kind.endswith(("ForCausalLM", "LMHeadModel"))]
    return f"{shown(causal[0], 60)}, whose tokens" if causal else None if said is None else shown(said, 160)
