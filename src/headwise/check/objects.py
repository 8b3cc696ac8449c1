"""Solutions that are objects of this process: where their functions lie, and calls of them, without limits.

Knows neither files nor what is right.
"""

import contextlib
import gc
import inspect
import io
import os
import random
import sys
import textwrap
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from headwise.check.bind import find, plain
from headwise.check.calling import Answer, Caller, asked, described, member
from headwise.check.calls import FUNCTIONS, Call, Result, Run
from headwise.check.names import ADAPTER, FUNCTION_NAMES, TABLES
from headwise.core.shapes import Faults
from headwise.files import listed, shown

LIMITS_OFF = ("time", "memory", "processor time", "size of files", "processes left behind")
_LOCK = threading.RLock()  # what is printed, warnings and standard input are the process's
_KNOWN = {plain(name) for names in FUNCTION_NAMES.values() for name in names} | {plain(name) for name in FUNCTIONS}
_EXPECTED = "a path, '-', a module, a dict of functions, or an object, class or function with a known name"


class Objects(NamedTuple):
    """What an object calls itself, its functions, its adapter, and its text where there is one; where its files lie."""

    name: str
    functions: dict[str, Callable[..., Any]]
    found: dict[str, str]
    adapter: Callable[..., Any] | None
    source: str | None
    folders: tuple[str, ...]


def objects(target: Any, chosen: Mapping[str, str]) -> Objects:
    """Return the functions of an object.

    Raises
    ------
    TypeError
        There are none in it, or it does not say which they are.
    """
    kind = type(target)  # isinstance asks the object itself, whose own code may raise anything
    if issubclass(kind, Mapping):
        return _of_dict(target, chosen)
    called = _name_of(target)
    name = kind.__name__ if called is None else called
    if issubclass(kind, ModuleType):
        return _of(name, target, chosen, lambda value: getattr(value, "__module__", None) == name, target)
    if callable(target) and called is not None:
        single = _of_dict({name: target}, chosen, single=True)
        if single.found:
            return single
    holder = _instance(target) if issubclass(kind, type) else target
    several = _of(name, holder, chosen, lambda value: True, target)
    if not several.found and not chosen:
        _refuse(target, name)
    return several


def _name_of(target: Any) -> str | None:
    """What an object calls itself, if it does."""
    try:
        return str(target.__name__)
    except Exception:
        return None


def _instance(cls: type) -> Any:
    """An object of a class whose methods are functions of the solution, or the class where it cannot be made."""
    try:
        return cls()
    except Exception:
        return cls


def _of(name: str, holder: Any, chosen: Mapping[str, str], own: Callable[[Any], bool], target: Any) -> Objects:
    found = find(_names(holder), lambda attribute: asked(member(holder, attribute)), TABLES, own)
    found |= {function: path for function, path in chosen.items() if callable(member(holder, path))}
    functions = {function: member(holder, path) for function, path in found.items()}
    adapter = member(holder, ADAPTER)
    return Objects(
        name,
        functions,
        found,
        adapter if callable(adapter) else None,
        _text(target),
        _folders([target, *functions.values()]),
    )


def _names(holder: Any) -> list[str]:
    try:
        return dir(holder)
    except Exception:
        return []


def _folders(parts: Iterable[Any]) -> tuple[str, ...]:
    """Where the files of a solution lie."""
    files = set()
    for part in parts:
        with contextlib.suppress(Exception):  # most objects come from no file
            files.add(inspect.getfile(part))
    return tuple(sorted({os.path.dirname(os.path.abspath(file)) for file in files}))


def _of_dict(target: Mapping[Any, Any], chosen: Mapping[str, str], single: bool = False) -> Objects:
    if not single and "__name__" not in target:  # else it is a module's namespace
        _check_keys(target, chosen)
    names = [name for name in target if isinstance(name, str)]
    found = find(names, lambda name: asked(target[name]), TABLES, lambda value: True)
    found |= {name: name for name in names if name in FUNCTIONS and callable(target[name])}
    found |= {function: name for function, name in chosen.items() if callable(target.get(name))}
    adapter = target.get(ADAPTER)
    texts = [text for function in found if (text := _text(target[found[function]])) is not None]
    return Objects(
        next(iter(names), "nothing") if single else "a dict",
        {function: target[name] for function, name in found.items()},
        found,
        adapter if callable(adapter) else None,
        "\n".join(texts) or None,
        _folders(target[name] for name in found.values()),
    )


def _check_keys(target: Mapping[Any, Any], chosen: Mapping[str, str]) -> None:
    faults = Faults("grade")
    known = _KNOWN | {plain(ADAPTER)} | {plain(name) for name in chosen.values()}
    for key, value in target.items():
        if not isinstance(key, str) or plain(key) not in known:
            faults.value("target", f"keys of {listed(FUNCTIONS)}", f"'{shown(key, 60)}'", "rename it")
        elif not callable(value):
            faults.type("target", f"a function as '{shown(key, 60)}'", type(value).__name__, "give the function itself")
    faults.raise_any()


def _refuse(target: Any, name: str) -> None:
    faults = Faults("grade")
    if plain(type(target).__name__) in TABLES["functions"]["layer"]:
        faults.type("target", "the class of a layer", "an object of it", f"give {shown(type(target).__name__, 60)}")
    elif callable(target):
        remedy = 'say which it is, as {"attention": f}'
        faults.type("target", "a function or class whose name is known", f"'{shown(name, 60)}'", remedy)
    else:
        faults.type("target", _EXPECTED, shown(type(target).__name__, 60), "see headwise.check.names for what is known")
    faults.raise_any()


def _text(target: Any) -> str | None:
    try:
        return textwrap.dedent(inspect.getsource(target))
    except Exception:  # an object's own code may raise anything
        return None


# ------------------------------------------------------------------------------------------- calls
class _Capped(io.BytesIO):
    """Keeps the beginning of what is printed."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most = most

    def write(self, data: Any) -> int:
        super().write(memoryview(data)[: max(self.most - self.tell(), 0)])
        return len(data)

    def close(self) -> None:
        """Stay open: a solution may close what it prints to."""


@contextlib.contextmanager
def _aside(printed: io.BytesIO) -> Iterator[None]:
    """Take the place of the process's streams. They are no files: ``fileno`` raises io.UnsupportedOperation."""
    stream = io.TextIOWrapper(printed, "utf-8", "backslashreplace", "", write_through=True)
    with _LOCK, contextlib.redirect_stdout(stream), contextlib.redirect_stderr(stream):
        stdin, sys.stdin = sys.stdin, io.TextIOWrapper(io.BytesIO(), "utf-8")
        try:
            yield
        finally:
            sys.stdin = stdin


def _of_sys(name: str, holder: Any = sys) -> tuple[Callable[[], Any], Callable[[Any], Any]]:
    return lambda: getattr(holder, name), lambda value: setattr(holder, name, value)


def _set_environment(variables: dict[str, str]) -> None:
    os.environ.clear()
    os.environ.update(variables)


_STATE: tuple[tuple[Callable[[], Any], Callable[[Any], Any]], ...] = (
    (sys.getrecursionlimit, sys.setrecursionlimit),  # first: the others may need it
    (os.getcwd, os.chdir),
    (os.environ.copy, _set_environment),
    _of_sys("excepthook"),
    _of_sys("unraisablehook"),
    _of_sys("displayhook"),
    _of_sys("excepthook", threading),
    (lambda: [*sys.path], lambda folders: sys.path.__setitem__(slice(None), folders)),
    (gc.isenabled, lambda on: gc.enable() if on else gc.disable()),
    (random.getstate, random.setstate),
    (np.random.get_state, np.random.set_state),
)
"""What belongs to the process, and how it is read and set. Modules that a solution patches, its threads and handlers of
signals stay as it left them."""


@contextlib.contextmanager
def _restored() -> Iterator[None]:
    """Leave the process as it was: _STATE, what traces it, warnings, and NumPy's handling of errors and printing."""
    trace, profile = sys.gettrace(), sys.getprofile()
    kept = []
    for read, write in _STATE:
        with contextlib.suppress(OSError):  # the folder of the process may be gone
            kept.append((write, read()))
    with warnings.catch_warnings(), np.errstate(all="ignore"), np.printoptions():
        warnings.simplefilter("ignore")
        try:
            yield
        finally:
            for write, value in kept:
                with contextlib.suppress(Exception):  # a solution may have patched it
                    write(value)
            if sys.gettrace() is not trace:
                sys.settrace(trace)
            if sys.getprofile() is not profile:
                sys.setprofile(profile)


def run_here(found: Objects, calls: Sequence[Call], output: int, printed: int) -> Run:
    """Perform calls on functions of this process. An interrupt from the keyboard goes through."""
    start = time.perf_counter()
    text = _Capped(printed)
    caller = Caller(found.functions, found.adapter, TABLES, output, (BaseException,), None)
    with _aside(text):
        answers = [_performed(caller, call) for call in calls]
    results = [result_of(fields, arrays) for fields, arrays in answers]
    return Run(results, "", text.getvalue().decode("utf-8", "ignore"), time.perf_counter() - start)


def _performed(caller: Caller, call: Call) -> Answer:
    try:
        with _restored():
            return caller.perform(call.function, call.args, call.again, call.kept)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # what a solution changed made our own code fail
        return Answer({"error": described(error, None)}, {})


def texts(value: Any, most: int = 100) -> tuple[str, ...]:
    """Return those of a list that are texts, on one line each."""
    return tuple(shown(text, 600) for text in value[:most] if isinstance(text, str)) if isinstance(value, list) else ()


def result_of(fields: dict[str, Any], arrays: dict[str, Any]) -> Result:
    """Return a call's result from what was sent of it."""
    params = {name.removeprefix("params."): array for name, array in arrays.items() if name.startswith("params.")}
    error = fields.get("error")
    return Result(
        arrays.get("out"),
        arrays.get("weights"),
        params,
        shown(error, 600) if isinstance(error, str) else "an unreadable result",
        fields.get("untaken") is True,
        texts(fields.get("changed")),
        texts(fields.get("notes")),
    )
