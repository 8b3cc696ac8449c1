"""`headwise check`: arguments, what is printed, exit code; how to grade and what a report says it does not know.

Exit codes: 0 all passed, 1 something failed, 2 it could not be run.
"""

import argparse
import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from headwise import console
from headwise.arguments import UsageError, command, count, names, positive, seed
from headwise.check import checks, explain, folder, starter, table
from headwise.check.formats import FORMATS, text_lines
from headwise.check.grade import NothingFoundError, UnknownNameError, grade
from headwise.check.report import FAILED, PASSED, UNTAKEN, Report
from headwise.check.words import LEVELS
from headwise.files import FileError, check_target, listed, shown, write_bytes

_MIB = 2**20
_PATIENCE = 0.5  # seconds that a grading may take before a bar is drawn
_HELP = "see headwise check -h"
_OF_A_FOLDER = ("text", "json")
_SUFFIXES = {".xml": "junit", ".md": "markdown", ".json": "json", ".html": "html", ".txt": "text"}
_INSTEAD = ("list", "starter", "explain")  # of grading
_STDIN = _STDOUT = "-"
_COLOURS = {PASSED: "green", FAILED: "bold red", UNTAKEN: "dim", "remark": "yellow", "mistake": "bold magenta"}
_WIDEST = 100  # columns of what is to be read


class Answer(NamedTuple):
    """What is printed, the exit code, and whether that is true only where all could be printed."""

    text: str
    code: int
    needed: bool = False


# ------------------------------------------------------------------------------------------- parsing
def add(commands: Any) -> None:
    """Add the command to a parser's commands."""
    about = "grade an implementation of attention and name its mistake"
    parser = command(commands, "check", about, "solution.py --exercise softmax attention --hints 2")
    target = "solution.py, a notebook, - for standard input, or the folder of a class: a solution a file or sub-folder"
    parser.add_argument("target", metavar="TARGET", nargs="?", help=target)
    _add_grading(parser)
    _add_output(parser)
    parser.add_argument("--list", action="store_true", help="print the exercises, checks and known mistakes")
    parser.add_argument("--starter", metavar="DIR", help="write DIR/solution.py to begin with")
    parser.add_argument("--explain", metavar="NAME", help="teach one check or one mistake, with numbers")
    parser.set_defaults(run=_run)


def _add_grading(parser: argparse.ArgumentParser) -> None:
    exercises = "what to grade, several or between commas (default: all that the solution defines); --list names them"
    parser.add_argument("--exercise", metavar="NAME", nargs="+", action="extend", type=names, help=exercises)
    named = (
        "under which name the solution defines what, as layer=MyAttention; several between commas, or given again; "
        "in a folder, a file without that name goes by the known names"
    )
    parser.add_argument("--function", metavar="EXERCISE=NAME", action="extend", type=_pairs, default=[], help=named)
    parser.add_argument("--seed", type=seed, default=0, metavar="N", help="of the inputs (default 0)")
    parser.add_argument(
        "--time-limit",
        type=positive,
        default=10.0,
        metavar="S",
        help="seconds a check (default 10); six times that in all",
    )
    memory = "memory of the solution (default 2048)"
    parser.add_argument("--memory-limit", type=positive, default=2048.0, metavar="MIB", help=memory)
    parser.add_argument(
        "--numpy-only",
        action="store_true",
        help="refuse all imports but NumPy, Python's own modules and files beside the solution",
    )
    parser.add_argument("--jobs", type=count, default=2, metavar="N", help="how many run at a time (default 2)")


def _add_output(parser: argparse.ArgumentParser) -> None:
    suffixes = ", ".join(f"{suffix} {name}" for suffix, name in _SUFFIXES.items())
    formats = (
        f"of the report: {', '.join(FORMATS)}; of a folder {' or '.join(_OF_A_FOLDER)} "
        f"(default: what FILE's name ends in, {suffixes}; else text)"
    )
    parser.add_argument("--format", type=_format, metavar="NAME", help=formats)
    hints = (
        "how much is told of each failure: 0 only that it failed, 1 what failed and the known mistake with its fix, "
        "2 where to look as well, 3 the formula too (default 1)"
    )
    parser.add_argument("--hints", type=_level, default=1, metavar="0..3", help=hints)
    into = "write the report to FILE instead, - is standard output; of a folder, a table as .csv, after each result"
    parser.add_argument("-o", "--output", metavar="FILE", help=into)
    parser.add_argument("--force", action="store_true", help="replace FILE, or DIR/solution.py, where it exists")
    parser.add_argument("--resume", action="store_true", help="of a folder: keep the rows of FILE that are still so")


def _format(text: str) -> str:
    if text in FORMATS:
        return text
    raise argparse.ArgumentTypeError(f"expected one of {listed(FORMATS)}, got '{shown(text, 60)}'")


def _level(text: str) -> int:
    if text in map(str, LEVELS):
        return int(text)
    raise argparse.ArgumentTypeError(f"expected 0, 1, 2 or 3, got '{shown(text, 60)}'")


def _pairs(text: str) -> list[tuple[str, str]]:
    return [_pair(part) for part in names(text)]


def _pair(text: str) -> tuple[str, str]:
    exercise, equals, name = (part.strip() for part in text.partition("="))
    if equals and exercise and all(part.isidentifier() for part in name.split(".")):
        return exercise, name
    expected = "expected EXERCISE=NAME with a name of Python"
    raise argparse.ArgumentTypeError(f"{expected}, got '{shown(text, 60)}'; for example attention=my_attention")


# ------------------------------------------------------------------------------------------- checking
def _run(options: argparse.Namespace) -> Answer:
    _check_combination(options)
    options.exercise = _exercises(options)
    if options.list:
        return Answer(_list(options), 0)
    if options.explain is not None:
        return Answer(_explain(options), 0)
    if options.starter is not None:
        return Answer(_start(options), 0)
    return _grade_class(options) if os.path.isdir(options.target) else _grade_one(options)


def _check_combination(options: argparse.Namespace) -> None:
    instead = [f"--{name}" for name in _INSTEAD if getattr(options, name) not in (None, False)]
    given = [*["TARGET"] * (options.target is not None), *instead]
    if len(given) != 1:
        swallowed = "; put TARGET before --exercise" if not given and options.exercise else ""
        raise UsageError(f"expected TARGET, --list, --starter or --explain, got {listed(given)}{swallowed}; {_HELP}")
    _check_format(options)
    if options.output == "":
        raise UsageError(f"-o: expected the name of a file, or - for standard output, got nothing; {_HELP}")
    if options.output == _STDOUT and not _is_class(options):
        options.output = None
    if options.force and options.output is None and options.starter is None:
        raise UsageError(f"--force: expected -o FILE or --starter DIR with it, got none; {_HELP}")
    if options.output is not None and instead:
        raise UsageError(f"-o: expected TARGET with it, got {listed(instead)}; {_HELP}")
    if options.resume:
        _check_resume(options)


def _check_format(options: argparse.Namespace) -> None:
    if options.json and options.format not in (None, "json"):
        raise UsageError(f"--json: expected --format json or none with it, got {options.format}; {_HELP}")
    options.format = "json" if options.json else options.format or _format_of(options)
    if (_is_class(options) or options.target is None) and options.format not in _OF_A_FOLDER:
        expected = "expected text or json where no single solution is graded"
        raise UsageError(f"--format: {expected}, got {options.format}; {_HELP}")


def _format_of(options: argparse.Namespace) -> str:
    """The format that the name of the output asks for; a table of a class is CSV, whatever is printed."""
    if _is_class(options) or options.target is None or options.output is None:
        return "text"
    return _SUFFIXES.get(os.path.splitext(options.output)[1].lower(), "text")


def _is_class(options: argparse.Namespace) -> bool:
    return options.target is not None and os.path.isdir(options.target)


def _check_resume(options: argparse.Namespace) -> None:
    if options.output in (None, _STDOUT) or not _is_class(options):
        raise UsageError(f"--resume: expected a folder and -o FILE.csv with it, got no such; {_HELP}")
    if options.force:
        raise UsageError(f"--resume: expected no --force with it, which replaces all of FILE, got both; {_HELP}")


def _exercises(options: argparse.Namespace) -> list[str] | None:
    """The exercises that were asked for, each once."""
    asked = [name for part in options.exercise or () for name in part]
    for option, name in [("--exercise", one) for one in asked] + [("--function", one) for one, _ in options.function]:
        if name not in checks.EXERCISES:
            close = explain.close(name, list(checks.EXERCISES))
            raise UsageError(f"{option}: expected an exercise, got '{shown(name, 60)}'; {close} See --list")
    return list(dict.fromkeys(asked)) or None


def _settings(options: argparse.Namespace) -> dict[str, Any]:
    """The arguments of `grade` that hold for one solution and for a class."""
    return {
        "time_limit": options.time_limit,
        "memory_limit": int(options.memory_limit * _MIB),
        "numpy_only": options.numpy_only,
        "functions": dict(options.function) or None,
    }


# ----------------------------------------------------------------------------------------- one solution
def _grade_one(options: argparse.Namespace) -> Answer:
    if options.output is not None:
        source = None if options.target == _STDIN else options.target
        check_target(options.output, force=options.force, source=source, ending="")
    report = _graded(options)
    code = 0 if report.passed else 1
    if options.output is None:
        return Answer(_printed(report, options), code, needed=True)
    text = FORMATS[options.format](report, options.hints)
    data = f"{text.rstrip()}\n".encode()
    write_bytes(options.output, data, ending="", force=options.force)
    return Answer(_written(options, report), code)


def _printed(report: Report, options: argparse.Namespace) -> str:
    """The report; as text on a terminal, folded at its width and in colours."""
    most = console.columns(sys.stdout)
    if options.format != "text" or most is None:
        return FORMATS[options.format](report, options.hints).rstrip("\n")
    lines = [(one.text, one.hang, _COLOURS.get(one.kind, "")) for one in text_lines(report, options.hints)]
    return console.folded(lines, most, console.look(sys.stdout))


def _written(options: argparse.Namespace, report: Report) -> str:
    """One line, which is JSON where that is asked for, on what was found and where it stands."""
    said = {"written": shown(options.output, 1000), "score": report.score, "maximum": report.maximum}
    if options.format == "json":
        return console.as_json(said)
    verdict = "passed" if report.passed else "failed"
    score = f"{report.score:g} of {report.maximum:g}"
    return f"{shown(report.target)}: {verdict}, {score}; written to {said['written']}"


def _graded(options: argparse.Namespace) -> Report:
    if options.target == _STDIN:
        return _from_stdin(options)
    return _one(options.target, options)


def _one(path: str, options: argparse.Namespace) -> Report:
    try:
        with console.Progress(sys.stderr, after=_PATIENCE) as bar:
            told = partial(bar.count, "checking")
            chosen = _settings(options) | {"jobs": options.jobs, "progress": told}
            return grade(path, options.exercise, options.seed, **chosen)
    except FileError:
        raise
    except NothingFoundError as error:
        raise UsageError(f"{error.expected}; say which it is: --function {'='.join(error.example)}") from error
    except UnknownNameError as error:
        raise UsageError(f"--function: {error.expected}; {_HELP}") from error
    except ValueError as error:
        raise UsageError(str(error)) from error


def _from_stdin(options: argparse.Namespace) -> Report:
    """Grade what comes on standard input, by way of a file that is gone afterwards."""
    data = _stdin()
    ending = ".ipynb" if data.lstrip()[:1] == b"{" else ".py"
    with tempfile.TemporaryDirectory(prefix="headwise-") as held:
        path = os.path.join(held, f"solution{ending}")
        write_bytes(path, data, ending=ending)
        try:
            return replace(_one(path, options), target="standard input")
        except (UsageError, FileError) as error:
            raise UsageError(str(error).replace(path, "standard input")) from error


def _stdin() -> bytes:
    most = folder.MOST_BYTES
    data = b"" if sys.stdin is None else sys.stdin.buffer.read(most + 1)
    if not data.strip():
        raise UsageError(f"standard input: expected a solution, got nothing; {_HELP}")
    if len(data) > most:
        raise UsageError(f"standard input: expected at most {most} bytes, got more; name a file")
    return bytes(data)


# ---------------------------------------------------------------------------------------------- a class
def _grade_class(options: argparse.Namespace) -> Answer:
    settings = folder.Settings(options.exercise, options.seed, _settings(options))
    printed = options.output == _STDOUT
    with console.Progress(sys.stderr) as bar:
        rows = folder.grade_folder(
            options.target,
            settings,
            jobs=options.jobs,
            output=None if printed else options.output,
            resume=options.resume,
            force=options.force,
            progress=partial(bar.count, "grading"),
        )
    code, needed = 0 if all(row.passed == "yes" for row in rows) else 1, printed or options.output is None
    whole = table.summary(rows)
    if options.format == "json":
        return Answer(console.as_json({"solutions": rows, "summary": whole, "output": options.output}), code, needed)
    if printed:
        return Answer(table.as_csv(rows).rstrip("\n"), code, needed)
    return Answer(_class_text(rows, whole, options, console.look(sys.stdout)), code, needed)


def _class_text(
    rows: Sequence[table.Row], whole: table.Summary, options: argparse.Namespace, look: console.Look
) -> str:
    heads = ("solution", "score", "of", "passed", "mistakes", "remarks")
    drawn = [[row.file, row.score, row.maximum, row.passed, row.mistakes, shown(row.remarks, 100)] for row in rows]
    parts = [console.table(f"{options.target}, seed {options.seed}", heads, drawn, look)]
    if whole.mistakes:
        made = list(whole.mistakes.items())
        parts.append(console.table("Mistakes, by how many solutions make them", ("mistake", "solutions"), made, look))
    return "\n\n".join([*parts, console.facts(_class_facts(whole, options), look)])


def _class_facts(whole: table.Summary, options: argparse.Namespace) -> list[tuple[str, object]]:
    said: list[tuple[str, object]] = [("graded", f"{whole.graded} of {whole.files}"), ("passed", whole.passed)]
    if whole.score is not None:
        said.append(("mean score", f"{whole.score:.4g} of {whole.maximum:.4g}"))
        if options.exercise is None:
            said.append(("of", "all exercises; --exercise names those that a class was given"))
    return said + ([("written", options.output)] if options.output else [])


# ------------------------------------------------------------------------------------ instead of grading
def _list(options: argparse.Namespace) -> str:
    tables: dict[str, tuple[Sequence[str], Sequence[Sequence[object]]]] = {
        "exercises": (("exercise", "asks for"), explain.exercise_rows()),
        "checks": (("check", "exercise", "weight", "claim"), explain.check_rows()),
        "mistakes": (("mistake", "made in", "what it does"), explain.mistake_rows()),
    }
    if options.format == "json":
        return console.as_json(
            {name: [dict(zip(heads, row, strict=True)) for row in rows] for name, (heads, rows) in tables.items()}
        )
    look = console.look(sys.stdout)
    drawn = [console.table(name.capitalize(), heads, _short(rows), look) for name, (heads, rows) in tables.items()]
    return "\n\n".join([*drawn, "headwise check --explain NAME teaches a check or a mistake"])


def _short(rows: Sequence[Sequence[object]]) -> list[list[object]]:
    return [[f"{value:g}" if isinstance(value, float) else value for value in row] for row in rows]


def _explain(options: argparse.Namespace) -> str:
    try:
        text = explain.explain(options.explain, min(_WIDEST, console.columns(sys.stdout) or _WIDEST))
    except ValueError as error:
        raise UsageError(f"--explain: {error}") from error
    return console.as_json({"name": options.explain, "text": text}) if options.format == "json" else text


def _start(options: argparse.Namespace) -> str:
    try:
        path = starter.write_starter(options.starter, options.exercise, force=options.force)
    except FileError:
        raise
    except ValueError as error:
        raise UsageError(f"--starter: {error}") from error
    said = shown(path, 1000)
    return (
        console.as_json({"written": said})
        if options.format == "json"
        else f"written to {said}; headwise check {said} tells how far it is"
    )
