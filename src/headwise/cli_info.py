"""`headwise info`: arguments and printing; what an installation is, and what a checkpoint holds, it does not know."""

import argparse
import json
import sys
from collections.abc import Sequence
from typing import Any

from headwise import checkpoints, console, demo
from headwise.arguments import UsageError, command, count
from headwise.checkpoint_names import Names
from headwise.files import listed
from headwise.layers.weights import PATTERNS

_WIDTH = 80  # columns, of lines that can be folded
_UNKNOWN = "-"
_ORDER = '"fused" is "heads" or "groups" where q, k, v of each head, or group, lie together, else "blocks"'


def add(commands: Any) -> None:
    """Add the command to a parser's commands."""
    about = "versions, CPU, BLAS, threads and extras of this installation, or the layers of attention of a checkpoint"
    parser = command(commands, "info", about, "model.safetensors")
    file = (
        "a checkpoint, of which only headers are read: .safetensors, .bin, .pt, .pth, .npz, .index.json or a folder; "
        "a config.json beside it says heads"
    )
    parser.add_argument("file", metavar="FILE", nargs="?", help=file)
    parser.add_argument("--n-heads", type=count, metavar="N", help="heads of its layers, where no config.json says it")
    names = (
        f"names of its layers: {', '.join(PATTERNS)}, or a JSON file with a dictionary of your own (default: all known)"
    )
    parser.add_argument("--pattern", metavar="NAME|FILE.json", help=names)
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> str:
    look = console.look(sys.stdout)
    if options.file is not None:
        held = checkpoints.describe(options.file, options.n_heads, pattern=options.pattern)
        return console.as_json(_held_facts(held)) if options.json else _held_text(held, look, options.pattern)
    for name in ("n_heads", "pattern"):
        if getattr(options, name) is not None:
            raise UsageError(f"--{name.replace('_', '-')}: expected FILE with it, got none; see headwise info -h")
    result = demo.info()
    return console.as_json(result) if options.json else _info_text(result, look)


# -------------------------------------------------------------------------------------- of a checkpoint
def _held_facts(held: checkpoints.Held) -> dict[str, Any]:
    layers = [{"prefix": prefix} | kind._asdict() for prefix, kind in held.layers.items()]
    return held._asdict() | {"layers": layers}


def _held_text(held: checkpoints.Held, look: console.Look, pattern: str | None) -> str:
    size = f"{held.arrays:,} of {listed(held.dtypes)}, {held.numbers:,} numbers, {console.bytes_in_words(held.bytes)}"
    model = f", model_type {held.model}" if held.model else ""
    model += f", in parts: {listed(held.parts)}" if held.parts else ""
    lines = [("file", held.path), ("arrays", size + (f", in {held.files} files" if held.files > 1 else ""))]
    lines += [("config", f"{held.config}{model}" if held.config else "no config.json beside it")]
    kinds = list(dict.fromkeys(held.layers.values()))
    lines += [("layers", _counted(held, kinds, pattern))]
    if any(kind.n_heads is None for kind in kinds):
        lines += [("heads", "said by neither arrays nor config: pass --n-heads")]
    lines += [("note", note) for note in [*([held.shard] if held.shard else []), *held.notes]]
    about = console.facts(lines, look, _WIDTH)
    if held.names is not None:
        return "\n\n".join([about, *_names_text(held, held.names, look)])
    prefixes = [[kinds.index(kind) + 1, prefix or "(none: --layer '')"] for prefix, kind in held.layers.items()]
    besides = [(f"kind {i}", _besides(kind)) for i, kind in enumerate(kinds, 1) if _besides(kind)]
    return "\n\n".join(
        [
            about,
            console.table("Kinds", *_kinds(kinds), look),
            *([console.facts(besides, look, _WIDTH)] if besides else []),
            console.table("Layers, by prefix", ("kind", "prefix"), prefixes, look),
        ]
    )


def _counted(held: checkpoints.Held, kinds: Sequence[checkpoints.Kind], pattern: str | None) -> str:
    if not held.layers:
        return f"none of attention by the names of {pattern or ', '.join(PATTERNS)}"
    return f"{len(held.layers)} of attention, of {len(kinds)} {'kind' if len(kinds) == 1 else 'kinds'}"


def _names_text(held: checkpoints.Held, names: Names, look: console.Look) -> list[str]:
    """What there is in place of known layers, and how a layer is described."""
    title = "Names that look like attention" if names.alike else "The first names; none looks like attention"
    rows = [[series.name, str(series.shape), series.arrays] for series in names.series]
    table = console.table(f"{title}, one of each series", ("name", "shape", "arrays"), rows, look)
    table += f"\nand {names.more} more" if names.more else ""
    parts = [table] if rows else []
    if held.shard:  # the layers are in the other files, if anywhere
        return parts
    told = held.described or {"w_q": "...", "w_k": "...", "w_v": "...", "w_o": "..."}
    numbers = "config" if held.config else "n_heads"
    how = [
        ("next", "describe a layer in a JSON file, by its names after a prefix:"),
        ("", json.dumps(told)),
        *([("", _ORDER)] if "fused" in told else []),
        ("", f"headwise info {held.path} --pattern FILE.json"),
        ("", "or in Python, by headwise.files and headwise.weights:"),
        ("", f"from_state_dict(open_checkpoint(path), prefix, pattern={{...}}, {numbers}=...)"),
    ]
    return [*parts, console.facts(how, look, _WIDTH)]


def _kinds(kinds: Sequence[checkpoints.Kind]) -> tuple[list[str], list[list[object]]]:
    """Columns and rows; where heads are not known, widths of all heads together."""
    known = all(kind.n_heads is not None for kind in kinds)
    widths = {"heads": "n_heads", "kv heads": "n_kv_heads", "d_head": "d_head"}
    columns = {"pattern": "pattern", "d_model": "d_model"}
    columns |= widths if known else {"heads": "n_heads", "d_q": "d_q", "d_kv": "d_kv"}
    rows = [
        [
            i,
            *(_value(getattr(kind, field)) for field in columns.values()),
            "yes" if kind.grouped else "no",
            _value(kind.rope),
        ]
        for i, kind in enumerate(kinds, 1)
    ]
    return ["kind", *columns, "grouped", "rope"], rows


def _value(value: object) -> object:
    return _UNKNOWN if value is None else value


def _besides(kind: checkpoints.Kind) -> str:
    """What a layer has besides its weights."""
    said = ["biases"] * kind.biases + ["q/k norms"] * kind.norms + ["bias_k and bias_v"] * kind.learned_keys
    said += ["a table of relative positions"] * kind.relative_positions
    said += ["cross attention, keys of other tokens"] * kind.cross
    other = (kind.d_key, kind.d_value) != (kind.d_model, kind.d_model)
    return ", ".join(said + [f"kdim {kind.d_key}, vdim {kind.d_value}"] * other)


# ------------------------------------------------------------------------------------ of the installation
def _info_text(result: demo.Info, look: console.Look) -> str:
    lines = [*result.versions.items(), ("CPU features", " ".join(result.simd) or "not told by NumPy")]
    blas = [
        [found.get(name) for name in ("internal_api", "version", "num_threads", "architecture")]
        for found in result.blas
    ]
    extras = [_extra_row(extra, versions) for extra, versions in result.extras.items()]
    engine = [("threads", f"{result.threads} by default, the caller's among them"), ("BLAS in each", _held(result))]
    engine += [("note", result.note)] if result.note else []
    return "\n\n".join(
        [
            console.facts(lines, look),
            console.table("BLAS and thread pools", ("library", "version", "threads", "kernels"), blas, look),
            f"Engine\n{console.facts(engine, look, _WIDTH)}",
            console.table("Extras", ("extra", "packages"), extras, look),
        ]
    )


def _held(result: demo.Info) -> str:
    return f"held to one thread: {listed(result.limited)}" if result.limited else "not held to one thread"


def _extra_row(extra: str, versions: dict[str, str | None]) -> list[str]:
    installed = ", ".join(f"{name} {version}" for name, version in versions.items() if version)
    missing = ", ".join(name for name, version in versions.items() if not version)
    to_do = f'missing {missing}: pip install "headwise[{extra}]"' if missing else ""
    return [extra, "; ".join(filter(None, (installed, to_do)))]
