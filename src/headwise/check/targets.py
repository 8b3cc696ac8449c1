"""What is graded: a file, a notebook, standard input or an object, each as functions that can be called.

Files run in children, objects here. Knows neither checks nor what is right.
"""

import io
import os
import sys
import tokenize
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from headwise.check.calls import FUNCTIONS, Call, Run
from headwise.check.defined import alike, defined
from headwise.check.imports import FRAMEWORKS, frameworks_used, libraries_in
from headwise.check.libraries import Libraries
from headwise.check.loading import code_cells
from headwise.check.names import FUNCTION_NAMES, TABLES
from headwise.check.objects import LIMITS_OFF, Objects, objects, result_of, run_here, texts
from headwise.check.process import Ended, Limits, limits_off, run_child
from headwise.check.wire import Record
from headwise.core.shapes import Faults
from headwise.files import FileError, listed, read_bytes, shown

MOST_SOURCE = 4 << 20
"""Bytes that a solution's file may have."""

_LIMITS = Limits()
_NAMED = 6  # names in a text of those that are looked for


@dataclass(frozen=True)
class Subject:
    """A solution, ready to be called.

    Attributes
    ----------
    name : str
        What it is called.
    found : dict of str to str
        Function -> the name under which it is defined.
    notes : tuple of str
        What is worth saying about loading it: cells that raised.
    limits_off : tuple of str
        Limits that do not hold.
    broken : str
        Empty, or why it cannot be loaded.
    source : str or None
        Its text, where there is one.
    named : frozenset of str
        Libraries that its text imports anywhere.
    seen : set of str
        Libraries that were loaded with it or in a call, Python's own and NumPy apart; grows with each run.
    printed : str
        What it printed while it was loaded.
    here : bool
        Whether it runs in this process: then in the calling thread, which an interrupt reaches.
    notebook : bool
        Whether its text is a notebook's.
    """

    name: str
    found: dict[str, str]
    notes: tuple[str, ...] = ()
    limits_off: tuple[str, ...] = ()
    broken: str = ""
    source: str | None = None
    named: frozenset[str] = frozenset()
    seen: set[str] = field(default_factory=set)
    printed: str = ""
    here: bool = False
    notebook: bool = False
    chosen: Mapping[str, str] = field(default_factory=dict, repr=False)
    calling: Callable[[Sequence[Call]], Run] = field(default=lambda calls: Run([]), repr=False)

    @property
    def frameworks(self) -> tuple[str, ...]:
        """Libraries with attention of their own that it imports, or that have been loaded so far."""
        return tuple(sorted((self.named | self.seen) & set(FRAMEWORKS)))

    @property
    def libraries(self) -> tuple[str, ...]:
        """The same, and what else was loaded so far besides NumPy: of that, the libraries that its text names."""
        direct = self.seen & self.named or self.seen
        return tuple(sorted({*direct, *self.frameworks}))

    @property
    def defined(self) -> tuple[list[str], list[str]]:
        """The names of the classes and of the functions that its text defines on top level; of an object, the found."""
        return ([], list(self.found.values())) if self.here else defined(self.source or "", self.notebook)

    @property
    def alike(self) -> dict[str, tuple[str, ...]]:
        """Function that is not found -> names that its text defines, and which may be meant by it."""
        return {} if self.here or self.broken else alike(self.source or "", self.found, self.notebook)

    @property
    def absent(self) -> dict[str, str]:
        """Function -> the name that was given for it and does not exist; unknown where nothing could be loaded."""
        given = {} if self.broken else self.chosen
        return {function: name for function, name in given.items() if self.found.get(function) != shown(name, 60)}

    def run(self, calls: Sequence[Call]) -> Run:
        """Make calls, one after another; of a file in a process of its own. Threads may do so at once."""
        return Run([], self.broken) if self.broken else self.calling(calls)

    def missing(self, function: str) -> str:
        """Return what is looked for as a function, in words."""
        kind = "a class" if function == "layer" else "a function"
        if function in self.chosen:
            return f"{kind} named {shown(self.chosen[function], 60)}"
        names = FUNCTION_NAMES[function]
        return f"{kind} named {', '.join(names[:_NAMED])} or one of {len(names) - _NAMED} other names"


def subject(target: Any, *, limits: Limits = _LIMITS, functions: Mapping[str, str] | None = None) -> Subject:
    """Return a solution, ready to be called.

    Parameters
    ----------
    target : str, path, module, dict, object, class or function
        A .py or .ipynb file, ``"-"`` for the text on standard input, or what holds functions under known names.
    limits : Limits
        What each process of a file may take.
    functions : mapping of str to str, optional
        Function -> the name under which the solution defines it, which comes before those that are known.

    Raises
    ------
    FileError
        The file is absent, no regular file, too large, not in UTF-8 or what it declares, or no notebook.
    TypeError, ValueError
        The target holds nothing that could be called, or `functions` has a key that is no function.

    Examples
    --------
    >>> def softmax(x):
    ...     return x
    >>> subject(softmax).found
    {'softmax': 'softmax'}
    """
    chosen = dict(functions or {})
    _check_chosen(chosen)
    if issubclass(type(target), (str, os.PathLike)):  # an object's own class may raise when it is asked
        return _of_file(target, limits, chosen)
    return _of_objects(objects(target, chosen), limits, chosen)


def _check_chosen(chosen: Mapping[str, str]) -> None:
    faults = Faults("grade")
    for function, name in chosen.items():
        if function not in FUNCTIONS:
            faults.value("functions", f"keys of {listed(FUNCTIONS)}", f"'{shown(function, 60)}'", "name one of these")
        elif not isinstance(name, str):
            faults.type("functions", f"a name for '{function}'", type(name).__name__, "give its name as a text")
    faults.raise_any()


def _of_objects(found: Objects, limits: Limits, chosen: Mapping[str, str]) -> Subject:
    used = map(frameworks_used, found.functions.values())
    named = (libraries_in(found.source) if found.source else set()).union(*used)
    seen: set[str] = set()

    def calling(calls: Sequence[Call]) -> Run:
        libraries = Libraries(found.folders, FRAMEWORKS, watching=False)
        run = run_here(found, calls, limits.output, limits.printed)
        seen.update(libraries.loaded())
        return run

    return Subject(
        name=shown(found.name, 60),
        found=found.found,
        limits_off=LIMITS_OFF,
        source=found.source,
        here=True,
        named=frozenset(named),
        seen=seen,
        chosen=chosen,
        calling=calling,
    )


# ------------------------------------------------------------------------------------------- files
@dataclass(frozen=True)
class _File:
    """A solution's text, and how a child is told to treat it."""

    data: bytes
    text: str
    label: str
    folder: str | None
    notebook: bool
    limits: Limits
    chosen: Mapping[str, str]
    seen: set[str] = field(default_factory=set)

    def child(self, calls: Sequence[Call]) -> Ended:
        fields = {
            "label": self.label,
            "notebook": self.notebook,
            "path": [self.folder] if self.folder else [],
            "random": "random" in self.text,
            "tables": TABLES,
            "functions": dict(self.chosen),
            "frameworks": FRAMEWORKS,
        }
        ended = run_child(fields, [_sent(call) for call in calls], self.data, self.limits)
        for record in ended.records:
            self.seen.update(texts(record.fields.get("modules")))
        return ended

    def run(self, calls: Sequence[Call]) -> Run:
        ended = self.child(calls)
        broken = ended.broken or str(_loaded(ended).get("broken") or "")
        results = [result_of(*record) for record in ended.records if "error" in record.fields]
        return Run(results[: len(calls)], broken, ended.printed, ended.seconds)


def _sent(call: Call) -> Record:
    """A call as a record: arrays apart from the rest."""
    arrays = {role: value for role, value in call.args.items() if hasattr(value, "tobytes") and value.ndim}
    rest = {role: _plain_value(value) for role, value in call.args.items() if role not in arrays}
    said = {"function": call.function, "args": rest, "roles": list(call.args), "again": call.again, "kept": call.kept}
    return Record(said, arrays)


def _plain_value(value: Any) -> Any:
    return value.item() if hasattr(value, "item") else value


def _loaded(ended: Ended) -> dict[str, Any]:
    """What the child said when it had loaded the solution."""
    return next((record.fields for record in ended.records if "found" in record.fields), {})


def _of_file(target: "str | os.PathLike[str]", limits: Limits, chosen: Mapping[str, str]) -> Subject:
    file = _read(target, limits, chosen)
    ended = file.child([])
    said = _loaded(ended)
    found = said.get("found")
    names = found.items() if isinstance(found, dict) else ()
    return Subject(
        name=file.label,
        found={key: shown(name, 60) for key, name in names if key in FUNCTIONS},
        notes=texts(said.get("notes")),
        limits_off=limits_off(),
        broken=shown(ended.broken or said.get("broken") or "", 600),
        source=file.text,
        named=frozenset(libraries_in(file.text, file.notebook)),
        seen=file.seen,
        printed=ended.printed,
        notebook=file.notebook,
        chosen=chosen,
        calling=file.run,
    )


def _read(target: "str | os.PathLike[str]", limits: Limits, chosen: Mapping[str, str]) -> _File:
    if target == "-":
        data, label, folder = sys.stdin.buffer.read(MOST_SOURCE + 1), "stdin.py", None
        if len(data) > MOST_SOURCE:
            raise FileError(f"stdin: expected at most {MOST_SOURCE} bytes, got more; give a smaller solution")
    else:
        path = os.path.abspath(os.fspath(target))
        data, label, folder = (
            read_bytes(target, most=MOST_SOURCE),
            shown(os.path.basename(path), 100),
            os.path.dirname(path),
        )
    where, ending = shown(os.fspath(target), 1000), os.path.splitext(label)[1].lower()
    if ending not in (".py", ".ipynb"):
        raise FileError(f"{where}: expected a name that ends in .py or .ipynb, got '{label}'; name the solution so")
    text = _decoded(data, where, notebook=ending == ".ipynb")
    return _File(data, text, label, folder, ending == ".ipynb", limits, chosen)


def _decoded(data: bytes, where: str, *, notebook: bool) -> str:
    try:
        encoding = "utf-8-sig" if notebook else tokenize.detect_encoding(io.BytesIO(data).readline)[0]
        text = data.decode(encoding)
    except (SyntaxError, UnicodeDecodeError, LookupError) as error:
        expected = "UTF-8" if notebook else "UTF-8, or the encoding that it declares"
        raise FileError(f"{where}: expected {expected}, got '{shown(error, 100)}'; save it as UTF-8") from error
    if notebook:
        try:
            code_cells(text)
        except (ValueError, RecursionError) as error:
            raise FileError(f"{where}: expected a notebook, got '{shown(error, 100)}'; save it again") from error
    return text
