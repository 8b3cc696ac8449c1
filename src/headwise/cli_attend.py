"""`headwise attend`, of arrays and of one layer of a checkpoint: arguments and printing; others compute."""

import argparse
import math
import sys
from functools import partial
from typing import Any

import numpy as np

from headwise import console, demo, layer_choice, layer_runs
from headwise.arguments import UsageError, command, count, finite, positive, threads, window
from headwise.core.shapes import Array
from headwise.files import FileError, check_target, listed, npz_keeps, shown, write_arrays

_PATIENCE = 0.5  # seconds that a run may take before a bar is drawn
_HELP = "see headwise attend -h"
_OF_A_LAYER = ("x", "n_heads", "n_kv_heads", "pattern", "mask", "keys", "bias")  # options that --layer alone has
_OF_ARRAYS = ("lse", "threads")  # those that it has not
_WIDTH = 80  # columns, of lines that can be folded


# ------------------------------------------------------------------------------------------- parsing
def add(commands: Any) -> None:
    """Add the command to a parser's commands."""
    about = "attention over arrays from a file, of any length, or by one layer of a checkpoint"
    parser = command(commands, "attend", about, "in.npz -o out.npz --window -,0")
    arrays = f"q, k, v, optionally {', '.join(demo.OPTIONAL)}; other names are not used"
    file = f".npz or .safetensors file or folder of .npy files: {arrays}. With --layer, a checkpoint"
    parser.add_argument("input", metavar="IN", help=file)
    parser.add_argument("-o", "--output", metavar="OUT", help=".npz file to write out (and lse, weights) to")
    parser.add_argument("--causal", action="store_true", help="query i sees key j when j <= i + n_k - n_q")
    parser.add_argument(
        "--window", type=window, metavar="L,R", help="keys seen left and right of the own one; - is all"
    )
    parser.add_argument(
        "--scale", type=finite, metavar="X", help="multiplies the scores (default 1/sqrt(d_k), or the layer's own)"
    )
    parser.add_argument("--softcap", type=positive, metavar="C", help="caps the scores: C tanh(scores / C)")
    parser.add_argument("--lse", action="store_true", help="show and write the log-sum-exp of each query's scores too")
    weights = (
        "run the definition, in memory for all scores, and write its weights too; without -o, draw the first head's"
    )
    parser.add_argument("--weights", action="store_true", help=weights)
    parser.add_argument(
        "--threads", type=threads, metavar="N", help="threads to use (default: as many as NumPy's BLAS uses)"
    )
    parser.add_argument("--force", action="store_true", help="replace OUT where it exists")
    _add_layer(parser)
    parser.set_defaults(run=_run)


def _add_layer(parser: argparse.ArgumentParser) -> None:
    about = (
        "runs self-attention on the tokens of --x; what a config.json beside IN says of heads, rope and scale is used, "
        "and who sees whom is for the options to say"
    )
    group = parser.add_argument_group("one layer of a checkpoint", about)
    prefix = "the layer whose names begin so; headwise info IN lists them"
    group.add_argument("--layer", metavar="PREFIX", help=prefix)
    group.add_argument("--x", metavar="X.npy", help="its tokens, (b, n, d_model) or (n, d_model)")
    group.add_argument("--n-heads", type=count, metavar="N", help="heads, where no config.json says it")
    group.add_argument("--n-kv-heads", type=count, metavar="N", help="heads of keys and values")
    names = "names of the layer: one that headwise info knows, or a JSON file with a dictionary of your own"
    group.add_argument("--pattern", metavar="NAME|FILE.json", help=names)
    group.add_argument("--mask", metavar="MASK.npy", help="bool, broadcasts to (b, H, n, n), True = may attend")
    group.add_argument("--keys", metavar="VALID.npy", help="bool, (b, n): True for real tokens, False for padding")
    group.add_argument("--bias", metavar="BIAS.npy", help="float, broadcasts to (b, H, n, n), added to the scores")


# ------------------------------------------------------------------------------------------- both forms
def _run(options: argparse.Namespace) -> str:
    output = options.output
    if output is None and options.force:
        raise UsageError(f"--force: expected -o OUT with it, got none; {_HELP}")
    _check_forms(options)
    if output is not None:
        for source in (options.input, options.x, options.mask, options.keys, options.bias):
            check_target(output, force=options.force, source=source)
    return _run_arrays(options) if options.layer is None else _run_layer(options)


def _check_forms(options: argparse.Namespace) -> None:
    """Refuse options of the other form."""
    layer = options.layer is not None
    given = [name for name in (_OF_ARRAYS if layer else _OF_A_LAYER) if getattr(options, name) not in (None, False)]
    words = listed([f"--{name.replace('_', '-')}" for name in given])
    if given and layer:
        raise UsageError(f"--layer: expected no {words} with it, got it; {_HELP}")
    if given:
        raise UsageError(f"{words}: expected --layer PREFIX with it, got none; {_HELP}")
    if layer and options.x is None:
        raise UsageError(f"--layer: expected --x X.npy with it, the tokens, got none; {_HELP}")


def _write(options: argparse.Namespace, made: dict[str, Array]) -> None:
    """Write what was made; bfloat16, which NumPy's files cannot name, as the float32 that it is."""
    if options.output is None:
        return
    named = {name: a if npz_keeps(a.dtype) else a.astype(np.float32) for name, a in made.items()}
    write_arrays(options.output, named, force=options.force)


def _too_large(options: argparse.Namespace) -> UsageError:
    text = f"{shown(options.input)}: expected memory for its arrays and results, got too little"
    return UsageError(f"{text}; attend from fewer queries at a time")


# ------------------------------------------------------------------------------------ a layer of a checkpoint
def _run_layer(options: argparse.Namespace) -> str:
    names = (
        "n_heads",
        "n_kv_heads",
        "pattern",
        "mask",
        "keys",
        "bias",
        "causal",
        "window",
        "scale",
        "softcap",
        "weights",
    )
    chosen = {name: getattr(options, name) for name in names}
    try:
        result = layer_runs.run_layer(options.input, options.layer, options.x, **chosen)
    except MemoryError as error:
        raise _too_large(options) from error
    made = {"out": result.out} | ({} if result.weights is None else {"weights": result.weights})
    _write(options, made)
    if options.json:
        return console.as_json(_layer_facts(options, result, made))
    return _layer_text(options, result, made, console.look(sys.stdout))


def _layer_letters(name: str, array: Array) -> str:
    if name in ("x", "out"):
        return "(b, n, d_model)" if array.ndim == 3 else "(n, d_model)"
    if name == "keys":
        return "(b, n)" if array.ndim == 2 else "(n)"
    axes = ["b", "H", "n", "n_k" if name == "weights" else "n"]
    return f"({', '.join(axes[-array.ndim :] if array.ndim else [])})"


def _layer_facts(options: argparse.Namespace, result: layer_runs.LayerRun, made: dict[str, Array]) -> dict[str, Any]:
    arrays = result.arrays | made
    return {
        "input": options.input,
        "prefix": result.prefix,
        "layer": result.layer,
        "config": result.config,
        "arrays": {
            name: {"letters": _layer_letters(name, a), "shape": a.shape, "dtype": str(a.dtype)}
            for name, a in arrays.items()
        },
        "figures": {name: demo.figures(array) for name, array in made.items()},
        "seconds": result.seconds,
        "peak_extra_bytes": result.peak,
        "peak_counted": result.counted,
        "notes": result.notes,
        "output": options.output,
    }


def _layer_text(
    options: argparse.Namespace, result: layer_runs.LayerRun, made: dict[str, Array], look: console.Look
) -> str:
    rows = [[name, _layer_letters(name, a), str(a.shape), str(a.dtype)] for name, a in (result.arrays | made).items()]
    about = [("layer", result.layer), ("prefix", result.prefix or "none")]
    about += [("config", result.config or "no config.json beside it")]
    lines = [("time", console.duration(result.seconds)), ("peak extra memory", _peak(result.peak, result.counted))]
    lines += [(name, _in_words(demo.figures(array))) for name, array in made.items()]
    lines += [("note", note) for note in result.notes]
    lines += [("written", f"{options.output}: {listed(made)}")] if options.output else []
    parts = [
        console.facts(about, look, _WIDTH),
        console.table(options.input, ("array", "letters", "shape", "dtype"), rows, look),
        console.facts(lines, look, _WIDTH),
    ]
    if result.weights is not None and options.output is None and result.weights.size:
        parts.append(_picture(result.weights, look))
    return "\n\n".join(parts)


# --------------------------------------------------------------------------------------------- arrays
def _run_arrays(options: argparse.Namespace) -> str:
    result = _attended(options)
    made = {"out": result.out} | ({"lse": result.lse} if options.lse else {})
    made |= {} if result.weights is None else {"weights": result.weights}
    _write(options, made)
    if options.json:
        return console.as_json(_attend_facts(options, result, made))
    return _attend_text(options, result, made, console.look(sys.stdout))


def _attended(options: argparse.Namespace) -> demo.Attended:
    names = ("causal", "window", "scale", "softcap", "weights", "threads")
    chosen = {name: getattr(options, name) for name in names}
    try:
        with console.Progress(None if options.json else sys.stderr, after=_PATIENCE) as line:
            return demo.attend(options.input, **chosen, progress=partial(line.count, "attending"))
    except FileError as error:
        layers = layer_choice.without_layer(options.input)
        raise (error if layers is None else UsageError(layers)) from error
    except MemoryError as error:
        raise _too_large(options) from error


def _attend_facts(options: argparse.Namespace, result: demo.Attended, made: dict[str, Array]) -> dict[str, Any]:
    arrays = result.arrays | made
    return {
        "input": options.input,
        "arrays": {
            name: {"letters": demo.array_letters(name, a.shape), "shape": a.shape, "dtype": str(a.dtype)}
            for name, a in arrays.items()
        },
        "ignored": result.ignored,
        "figures": {name: demo.figures(array) for name, array in made.items()},
        "seconds": result.seconds,
        "peak_extra_bytes": result.peak,
        "peak_counted": result.counted,
        "plan": result.plan,
        "output": options.output,
    }


def _attend_text(options: argparse.Namespace, result: demo.Attended, made: dict[str, Array], look: console.Look) -> str:
    rows = [
        [name, demo.array_letters(name, a.shape), str(a.shape), str(a.dtype)]
        for name, a in (result.arrays | made).items()
    ]
    lines = [("time", console.duration(result.seconds)), ("peak extra memory", _peak(result.peak, result.counted))]
    lines += [(name, _in_words(demo.figures(array))) for name, array in made.items()]
    lines += [("not used", listed(result.ignored))] if result.ignored else []
    lines += [("written", f"{options.output}: {listed(made)}")] if options.output else []
    parts = [console.table(options.input, ("array", "letters", "shape", "dtype"), rows, look)]
    parts += [console.facts(lines, look)]
    parts += [] if result.plan is None else [str(result.plan)]
    if result.weights is not None and options.output is None and result.weights.size:
        parts.append(_picture(result.weights, look))
    return "\n\n".join(parts)


def _picture(weights: Array, look: console.Look) -> str:
    first = weights[(0,) * (weights.ndim - 2)]
    queries, keys = ([str(i) for i in range(n)] for n in first.shape)
    title = "The weights" if weights.ndim == 2 else "The weights of the first head"
    return f"{title}, queries down and keys across\n{console.heatmap(first, queries, keys, look)}"


def _peak(peak: int | None, counted: str) -> str:
    if peak is None:
        return "unknown: this system does not tell"
    how = {"traced": "every allocation traced", "resident": "resident memory of the process"}[counted]
    return f"{console.bytes_in_words(peak)}, results included; {how}"


def _in_words(found: demo.Figures) -> str:
    wild = round(found.size * (1 - found.finite))
    finite = f"{wild} of {found.size} not finite" if wild else "all finite"
    numbers = f", from {found.low:.4g} to {found.high:.4g}, mean {found.mean:.4g}, norm {found.norm:.6g}"
    return finite if math.isnan(found.low) else finite + numbers
