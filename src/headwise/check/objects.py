"""Solutions that are objects of this process: where their functions lie, and calls of them, without limits.

Knows neither files nor what is right.
"""

import contextlib
import inspect
import io
import random
import sys
import textwrap
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from headwise.check.bind import find, plain, reached
from headwise.check.calling import Caller
from headwise.check.calls import FUNCTIONS, Call, Result, Run
from headwise.check.names import ADAPTER, FUNCTION_NAMES, TABLES
from headwise.core.shapes import Faults
from headwise.files import listed, shown

LIMITS_OFF = ("time", "memory", "processor time", "size of files", "processes left behind")
_LOCK = threading.RLock()  # what is printed, warnings and standard input are the process's
_KNOWN = {plain(name) for names in FUNCTION_NAMES.values() for name in names} | {plain(name) for name in FUNCTIONS}
_EXPECTED = "a path, '-', a module, a dict of functions, or an object, class or function with a known name"


class Objects(NamedTuple):
    """What an object calls itself, its functions, its adapter, and its text where there is one."""

    name: str
    functions: dict[str, Callable[..., Any]]
    found: dict[str, str]
    adapter: Callable[..., Any] | None
    source: str | None


def objects(target: Any, chosen: Mapping[str, str]) -> Objects:
    """Return the functions of an object.

    Raises
    ------
    TypeError
        There are none in it, or it does not say which they are.
    """
    if isinstance(target, Mapping):
        return _of_dict(target, chosen)
    if isinstance(target, ModuleType):
        own = target.__name__
        return _of(target.__name__, target, chosen, lambda value: getattr(value, "__module__", None) == own, target)
    name = str(getattr(target, "__name__", type(target).__name__))
    if callable(target) and hasattr(target, "__name__"):
        single = _of_dict({name: target}, chosen, single=True)
        if single.found:
            return single
    holder = _instance(target) if isinstance(target, type) else target
    several = _of(name, holder, chosen, lambda value: True, target)
    if not several.found:
        _refuse(target, name)
    return several


def _instance(cls: type) -> Any:
    """An object of a class whose methods are functions of the solution, or the class where it cannot be made."""
    try:
        return cls()
    except Exception:
        return cls


def _of(name: str, holder: Any, chosen: Mapping[str, str], own: Callable[[Any], bool], target: Any) -> Objects:
    def get(attribute: str) -> Any:
        try:
            return getattr(holder, attribute, None)
        except Exception:
            return None

    found = find(dir(holder), get, TABLES, own)
    found = {function: path for function, path in found.items() if function not in chosen}
    found |= {function: path for function, path in chosen.items() if callable(reached(holder, path))}
    functions = {function: reached(holder, path) for function, path in found.items()}
    adapter = get(ADAPTER)
    return Objects(name, functions, found, adapter if callable(adapter) else None, _text(target))


def _of_dict(target: Mapping[Any, Any], chosen: Mapping[str, str], single: bool = False) -> Objects:
    if not single and "__name__" not in target:  # else it is a module's namespace
        _check_keys(target, chosen)
    names = [name for name in target if isinstance(name, str)]
    found = find(names, target.get, TABLES, lambda value: True)
    found |= {name: name for name in names if name in FUNCTIONS and callable(target[name])}
    found = {function: name for function, name in found.items() if function not in chosen}
    found |= {function: name for function, name in chosen.items() if callable(target.get(name))}
    adapter = target.get(ADAPTER)
    texts = [text for function in found if (text := _text(target[found[function]])) is not None]
    return Objects(
        next(iter(names), "nothing") if single else "a dict",
        {function: target[name] for function, name in found.items()},
        found,
        adapter if callable(adapter) else None,
        "\n".join(texts) or None,
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
    except (OSError, TypeError, SyntaxError, ValueError):
        return None


# ------------------------------------------------------------------------------------------- calls
class _Capped(io.StringIO):
    """Keeps the beginning of what is printed."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most = most

    def write(self, text: str) -> int:
        super().write(text[: max(self.most - self.tell(), 0)])
        return len(text)

    def close(self) -> None:
        """Stay open: a solution may close what it prints to."""


@contextlib.contextmanager
def _aside(printed: io.StringIO) -> Iterator[None]:
    """Leave the process as it was: its streams, its warnings and NumPy's handling of errors."""
    with (
        _LOCK,
        contextlib.redirect_stdout(printed),
        contextlib.redirect_stderr(printed),
        warnings.catch_warnings(),
        np.errstate(all="ignore"),
    ):
        warnings.simplefilter("ignore")
        stdin, sys.stdin = sys.stdin, io.StringIO()
        drawn, drawn_by_numpy = random.getstate(), np.random.get_state()  # noqa: NPY002 - the user's own
        try:
            yield
        finally:
            sys.stdin = stdin
            random.setstate(drawn)
            np.random.set_state(drawn_by_numpy)  # noqa: NPY002


def run_here(found: Objects, calls: Sequence[Call], output: int, printed: int) -> Run:
    """Perform calls on functions of this process. An interrupt from the keyboard goes through."""
    start = time.perf_counter()
    text = _Capped(printed)
    caller = Caller(found.functions, found.adapter, TABLES, output, (BaseException,), None)
    with _aside(text):
        answers = [caller.perform(call.function, call.args, call.again, call.kept) for call in calls]
    results = [result_of(fields, arrays) for fields, arrays in answers]
    return Run(results, "", text.getvalue(), time.perf_counter() - start)


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
