"""A folder of solutions, several at a time, and what came of each; knows no check, draws nothing."""

import hashlib
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any, NamedTuple

from headwise import __version__
from headwise.check.grade import NothingFoundError, UnknownNameError, grade, weights
from headwise.check.process import end_running
from headwise.check.report import Report
from headwise.check.table import Row, as_csv, cell, judged, read_rows, refused
from headwise.files import FileError, PathLike, check_target, listed, read_bytes, shown, write_text

ENDINGS = (".py", ".ipynb")
"""Of a solution's name."""

MOST_BYTES = 64 * 2**20
"""Of a solution: a larger one is not graded."""

_NONE = "no .py or .ipynb file in it"
_ASIDE = re.compile(r"[._]")  # so begin names that nobody hands in


class Settings(NamedTuple):
    """What all solutions are graded with: arguments of `grade`."""

    exercise: Sequence[str] | None = None
    seed: int = 0
    options: Mapping[str, Any] = {}

    def start(self, file: str, sha256: str = "") -> Row:
        """Return the begin of a row."""
        exercises = "all" if self.exercise is None else "; ".join(self.exercise)
        options = "; ".join(f"{name}={value}" for name, value in self.options.items())
        return Row(*map(cell, (file, sha256, self.seed, exercises, options, __version__)))


class Solution(NamedTuple):
    """A solution of a folder, or a sub-folder that has none and why."""

    name: str
    path: Path
    why: str = ""


class _StoppedError(Exception):
    """What ends a grading from within where nobody waits for it any more."""


# ----------------------------------------------------------------------------------------------- files
def solutions(folder: PathLike) -> list[Solution]:
    """Return the solutions of a folder, sorted: its .py and .ipynb files, and one of each sub-folder.

    A sub-folder has one if it holds a single such file, or one called solution.py. Of several none is chosen, which is
    said. A sub-folder without any is a student without a solution, unless files stand beside it. What begins with a
    dot or an underscore is passed over.

    Raises
    ------
    FileError
        There is none, or the folder cannot be read.
    """
    entries = _entries(Path(folder))
    direct = [Solution(path.name, path) for path in entries if _is_solution(path)]
    below = [_below(path) for path in entries if path.is_dir()]
    found = direct + [one for one in below if one.why != _NONE or not direct]
    if all(one.why for one in found):
        expected = "expected .py or .ipynb files, or sub-folders that hold one each, got none"
        raise FileError(f"{shown(folder, 1000)}: {expected}; name the folder of the solutions")
    return sorted(found)


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(path for path in folder.iterdir() if not _ASIDE.match(path.name))
    except OSError as error:
        text = (
            f"expected a folder that can be read, got '{error.strerror or error}'; check the path and its permissions"
        )
        raise FileError(f"{shown(folder, 1000)}: {text}") from error


def _is_solution(path: Path) -> bool:
    return path.suffix.lower() in ENDINGS and not path.is_dir()


def _below(folder: Path) -> Solution:
    """The one solution of a sub-folder, or why there is none."""
    name = f"{folder.name}/"
    try:
        held = [path for path in _entries(folder) if _is_solution(path)]
    except FileError as error:
        return Solution(name, folder, str(error))
    chosen = [path for path in held if path.name == "solution.py"] or held
    if len(chosen) == 1:
        return Solution(name + chosen[0].name, chosen[0])
    several = f"expected one .py or .ipynb file, or a solution.py, got {listed([path.name for path in held])}"
    return Solution(name, folder, several if held else _NONE)


# --------------------------------------------------------------------------------------------- grading
def grade_folder(
    folder: PathLike,
    settings: Settings = Settings(),  # noqa: B008 - never written to
    *,
    jobs: int = 2,
    output: PathLike | None = None,
    resume: bool = False,
    force: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> list[Row]:
    """Grade all solutions of a folder; what is wrong with one of them is said in its row and stops no other.

    The maximum is one for all: what the checks of the exercises that are asked for count together, or those of all
    exercises, whatever a solution defines.

    Parameters
    ----------
    folder : str or path-like
        See `solutions`.
    settings : Settings
        What they are graded with.
    jobs : int
        How many are graded at a time.
    output : str or path-like, optional
        A CSV file, which is written anew, whole, with each result: an interrupt loses none of those before.
    resume, force : bool
        Whether `output` may exist: rows whose file, seed, exercises, options and version are the same are kept, the
        last of each file, if their points fit what failed; or all of it is replaced.
    progress : callable, optional
        Called with how many are done and how many there are.

    Returns
    -------
    list of Row
        In the order of `solutions`.

    Raises
    ------
    FileError
        There is no solution; `output` exists, is another table or one of other settings, cannot be written, or was
        changed meanwhile.
    """
    found = solutions(folder)
    if output is not None:
        _check_output(output, force=force, resume=resume)
    written = _Output(output)
    kept = _kept(output, found, settings) if resume and output is not None and os.path.lexists(output) else {}
    rows, waiting = _begun(found, settings, kept)
    written.write(rows)
    with _pool(jobs) as (pool, stopped):
        running = {pool.submit(_graded, found[i], row, settings, stopped): i for i, row in waiting.items()}
        for future in as_completed(running):
            rows[running[future]] = future.result()
            written.write(rows)
            if progress is not None:
                progress(len(rows), len(found))
    return [rows[i] for i in sorted(rows)]


def _check_output(output: PathLike, *, force: bool, resume: bool) -> None:
    """Raise a FileError where the table cannot be written, or is there and nothing is said of that."""
    check_target(output, force=True, ending=".csv")
    if os.path.lexists(output) and not (force or resume):
        remedy = "go on with it by --resume, replace it by --force, or name another"
        raise FileError(f"{shown(output, 1000)}: expected a new name, got one that exists; {remedy}")


def _kept(output: PathLike, found: Sequence[Solution], settings: Settings) -> dict[tuple[str, ...], Row]:
    """The rows of an earlier run, by what they depend on; a table of another folder would be lost."""
    rows = read_rows(output)
    names = {cell(one.name) for one in found}
    if rows and not any(row.file in names for row in rows):
        text = f"expected rows of this folder, got {listed([row.file for row in rows])}"
        raise FileError(f"{shown(output, 1000)}: {text}; name another, or replace it by --force")
    _check_settings(output, rows, settings)
    counted = weights(settings.exercise)
    last = {row.file: row for row in rows}
    return {row.key: row for row in last.values() if row.agrees(counted)}


def _check_settings(output: PathLike, rows: Sequence[Row], settings: Settings) -> None:
    """Raise a FileError where no row was graded with these settings: all would be graded again."""
    now = settings.start("")
    if not rows or any(row.key[2:] == now.key[2:] for row in rows):
        return
    was = rows[-1]
    differing = [_change(name, getattr(was, name), getattr(now, name)) for name in Row._fields[2:6]]
    text = f"expected rows of these settings, got others: {', '.join(filter(None, differing))}"
    raise FileError(f"{shown(output, 1000)}: {text}; set them as they were, or grade all again by --force")


def _change(name: str, was: str, now: str) -> str:
    """What a setting was and is, or nothing where that is the same; of options, each that differs."""
    if was == now:
        return ""
    before, after = ([part for part in value.split("; ") if part] for value in (was, now))
    if name == "options":
        gone = ", ".join(part for part in before if part not in after)
        new = ", ".join(part for part in after if part not in before)
        return f"{gone or 'no such option'}, now {new or 'without'}"
    return f"{name} {was or 'none'}, now {now}"


def _begun(
    found: Sequence[Solution], settings: Settings, kept: Mapping[tuple[str, ...], Row]
) -> tuple[dict[int, Row], dict[int, Row]]:
    """By place, the rows that are done: kept, or of what cannot be read; and the begin of those to be graded."""
    done, waiting = {}, {}
    for i, one in enumerate(found):
        try:
            row = settings.start(one.name, _hash(one))
        except FileError as error:
            done[i] = refused(settings.start(one.name), error)
            continue
        if row.key in kept:
            done[i] = kept[row.key]
        else:
            waiting[i] = row
    return done, waiting


def _hash(solution: Solution) -> str:
    if solution.why:
        raise FileError(solution.why)
    return hashlib.sha256(read_bytes(solution.path, most=MOST_BYTES)).hexdigest()


def _graded(solution: Solution, row: Row, settings: Settings, stopped: Event) -> Row:
    def go_on(done: int, total: int) -> None:
        if stopped.is_set():
            raise _StoppedError

    try:
        report = _report(solution, settings, go_on)
    except _StoppedError:
        raise
    except NothingFoundError as error:
        return refused(row, error.expected)
    except ValueError as error:
        return refused(row, error)
    except Exception as error:  # of ours, or of the machine: it is this file's, and the others go on
        return refused(row, f"{type(error).__name__}: {error}")
    return judged(row, report, sum(weights(settings.exercise).values()))


def _report(solution: Solution, settings: Settings, progress: Callable[[int, int], None]) -> Report:
    """Grade one; a name that was given for a function and is not there is another's: it goes by known names."""
    exercise = None if settings.exercise is None else list(settings.exercise)
    graded = partial(grade, str(solution.path), exercise, settings.seed, jobs=1, progress=progress)
    try:
        return graded(**settings.options)
    except UnknownNameError as error:
        given = settings.options["functions"]
        own = {function: name for function, name in given.items() if function not in error.absent}
        return graded(**{**settings.options, "functions": own})


@contextmanager
def _pool(jobs: int) -> Iterator[tuple[ThreadPoolExecutor, Event]]:
    """Threads, and an event that is set where the block is left early: then nothing new is begun."""
    pool, stopped = ThreadPoolExecutor(jobs), Event()
    try:
        yield pool, stopped
    except KeyboardInterrupt:  # it reaches this thread alone: the others would wait for their children
        stopped.set()
        end_running()
        raise
    finally:
        stopped.set()
        pool.shutdown(cancel_futures=True)


class _Output:
    """The CSV file of a run, written whole, and only over what this run has seen.

    Parameters
    ----------
    path : str or path-like, optional
        The file, as it is now; None: there is none.
    """

    def __init__(self, path: PathLike | None) -> None:
        self._path = path
        self._seen = None if path is None else _state(path)

    def write(self, rows: Mapping[int, Row]) -> None:
        """Write all rows, unless somebody else has written to the file."""
        if self._path is None:
            return
        now = _state(self._path)
        if now is not None and now != self._seen:
            text = "expected the table as this run left it, got one that was changed meanwhile, and is left alone"
            raise FileError(f"{shown(self._path, 1000)}: {text}; go on from it by --resume, or name another")
        write_text(self._path, as_csv([rows[i] for i in sorted(rows)]))
        self._seen = _state(self._path)


def _state(path: PathLike) -> tuple[int, ...] | None:
    """What tells a file from a changed one, or None where there is none."""
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns
