"""The process that loads a solution, performs calls and writes what came of them: run as a script, never imported.

Knows neither what is right nor who asks. Of this package it loads the files beside it alone, so that the package and
what it needs are not there for a solution unless it imports them.
"""

import contextlib
import faulthandler
import importlib
import io
import math
import os
import sys
import types
import warnings
from collections.abc import Iterator
from typing import Any

_REQUEST, _RESULTS, _TRACE, _SOLUTION, _WORK = "request", "results", "trace", "solution.py", "work"
_FAILED = 70  # the exit code where results could not be written
_SLACK = 1 << 20  # bytes of texts beside arrays


def _beside(*names: str) -> list[Any]:
    """Modules beside this file: packages that hold nothing stand in for those around them, while they load."""
    here = os.path.dirname(os.path.abspath(__file__))
    for name, folder in (("headwise", os.path.dirname(here)), ("headwise.check", here)):
        sys.modules[name] = types.ModuleType(name)
        sys.modules[name].__path__ = [folder]
    modules = [importlib.import_module(f"headwise.check.{name}") for name in names]
    for name in [name for name in sys.modules if name.partition(".")[0] == "headwise"]:
        del sys.modules[name]
    return modules


class _Writer:
    """Appends records to a file, by functions taken before a solution could replace them."""

    def __init__(self, folder: str, token: str, packed: Any) -> None:
        self.path, self.token, self.packed = os.path.join(folder, _RESULTS), token, packed
        self.open, self.write, self.close = os.open, os.write, os.close
        self.pid, self.getpid, self.end = os.getpid(), os.getpid, os._exit
        flags = (os.O_NOFOLLOW | os.O_NONBLOCK) if hasattr(os, "O_NOFOLLOW") else getattr(os, "O_BINARY", 0)
        self.flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | flags
        self.folder = os.open(folder, os.O_RDONLY) if os.open in os.supports_dir_fd else None

    def __call__(self, fields: dict[str, Any], arrays: dict[str, Any]) -> None:
        if self.getpid() != self.pid:  # a fork of the solution's came back
            self.end(_FAILED)
        data = self.packed({**fields, "token": self.token}, arrays)
        file = self._opened()
        while data:
            data = data[self.write(file, data) :]
        self.close(file)

    def _opened(self) -> int:
        """The file, in its folder wherever that was moved; by its path if the solution closed all descriptors."""
        try:
            return self.open(_RESULTS, self.flags, 0o600, dir_fd=self.folder)
        except OSError:
            return self.open(self.path, self.flags, 0o600)


def _limit(limits: dict[str, Any]) -> None:
    """Set what the system limits; an end by the alarm is for a child whose parent was killed."""
    try:
        import resource
        import signal
    except ImportError:
        return
    seconds = math.ceil(limits["seconds"])
    wanted = {"RLIMIT_CPU": 2 * seconds + 1, "RLIMIT_FSIZE": 2 * limits["output"] + _SLACK, "RLIMIT_CORE": 0}
    for name, value in {**wanted, "RLIMIT_AS": limits["memory"]}.items():
        try:
            resource.setrlimit(getattr(resource, name), (value, value))
        except (ValueError, OSError, AttributeError):  # macOS has no limit on memory; one that is lower may hold
            continue
    signal.alarm(2 * seconds + 5)


def _prepare(request: dict[str, Any]) -> None:
    """Leave a solution in a folder of its own, with numbers drawn anew each time and no warnings in what it prints."""
    warnings.simplefilter("ignore")
    sys.argv = [request["label"]]
    sys.path += [folder for folder in request["path"] if folder not in sys.path]
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    if request["random"]:
        import random

        import numpy as np

        np.random.seed(0)  # noqa: NPY002 - what a solution uses without a seed
        random.seed(0)


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """Drop what is printed, as long as the descriptors are left alone."""
    duplicate, flush, close = os.dup2, sys.stdout.flush, os.close
    kept = {1: os.dup(1), 2: os.dup(2)}
    null = os.open(os.devnull, os.O_WRONLY)
    try:
        for number in kept:
            duplicate(null, number)
        yield
    finally:
        with contextlib.suppress(OSError, ValueError):
            flush()
        for number, copy in [*kept.items(), (null, null)]:
            with contextlib.suppress(OSError):
                duplicate(copy, number)
                close(copy)


def _own(value: Any) -> bool:
    """Whether the solution defined it itself, and did not import it."""
    return getattr(value, "__module__", None) == "solution" or type(value).__module__ == "solution"


def _found(bind: Any, calling: Any, module: types.ModuleType, request: dict[str, Any]) -> dict[str, str]:
    names = module.__dict__
    found: dict[str, str] = bind.find(list(names), lambda name: calling.asked(names[name]), request["tables"], _own)
    chosen = {name: path for name, path in request["functions"].items() if callable(calling.member(module, path))}
    return found | chosen


def main(folder: str) -> None:
    """Do what a folder's request says and write the results beside it."""
    bind, calling, loading, libraries, wire = _beside("bind", "calling", "loading", "libraries", "wire")
    path = os.path.join(folder, _REQUEST)
    with open(path, "rb") as file:
        records = list(wire.unpacked(file.read()))
    os.remove(path)
    request = records[0].fields
    trace = open(os.path.join(folder, _TRACE), "wb")  # noqa: SIM115 - open until the end, for a crash or an alarm
    faulthandler.enable(trace, all_threads=False)
    with open(os.path.join(folder, _SOLUTION), "rb") as file:
        source = file.read()
    write = _Writer(folder, request["token"], wire.packed)
    _limit(request["limits"])
    _prepare(request)
    os.chdir(os.path.join(folder, _WORK))
    libs = libraries.Libraries([folder, *request["path"]], request["frameworks"], watching=True)
    with _silent() if len(records) > 1 else contextlib.nullcontext():  # what loading prints, the first child has said
        loaded = loading.load(source, os.path.join(folder, _SOLUTION), request["label"], request["notebook"])
    found = {} if loaded.broken else _found(bind, calling, loaded.module, request)
    write({"found": found, "notes": loaded.notes, "broken": loaded.broken, "modules": libs.loaded()}, {})
    functions = {function: calling.member(loaded.module, name) for function, name in found.items()}
    adapter = calling.member(loaded.module, request["tables"]["adapter"])
    most = request["limits"]["output"]
    caller = calling.Caller(
        functions, adapter if callable(adapter) else None, request["tables"], most, (BaseException,), loaded.labels
    )
    for record in [] if loaded.broken else records[1:]:
        args = {**record.fields["args"], **record.arrays}
        args = {role: args[role] for role in record.fields["roles"]}
        fields, arrays = caller.perform(record.fields["function"], args, record.fields["again"], record.fields["kept"])
        write({**fields, "modules": libs.loaded()}, arrays)
    write({"done": True}, {})


if __name__ == "__main__":
    _beside("watch")[0].apart()
    sys.path += [folder for folder in sys.argv[2:] if folder not in sys.path]  # where NumPy lies
    _end, _code = os._exit, _FAILED
    try:
        main(sys.argv[1])
        _code = 0
    finally:
        try:
            if _code:
                sys.excepthook(*sys.exc_info())
            sys.stdout.flush()
        finally:
            _end(_code)  # threads that were left running, and what was registered for the end, are not waited for
