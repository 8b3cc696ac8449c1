"""The process between the one that grades and a solution: signals to the parent end here, and so does what is left.

What a solution leaves running becomes a child of the process that watches it, where the system allows it, and is
killed: nothing but its own children ever is. One more stands behind that one, should the solution end it. Knows neither
calls nor results. The child loads this file first, without NumPy.
"""

import os
import select
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress

CONTROL = 0
"""The descriptor of a socket to the process that grades: a byte asks where the solution is, its end ends all."""

_ADOPTS, _DIES_WITH_PARENT = 36, 1  # PR_SET_CHILD_SUBREAPER and PR_SET_PDEATHSIG of Linux
_PATIENCE = 5.0  # seconds of killing what starts ever more processes


def apart() -> None:
    """Return in a new process, which goes on; this one, and another between both, see to its end and never return."""
    if not hasattr(os, "fork"):
        return
    _forked(_stand_behind)
    _forked(_watch)
    os.setsid()  # what it sends to its own group does not come here
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, CONTROL)
    os.close(null)


def _forked(parent: Callable[[int, bool], None]) -> None:
    """Fork; return in the child. What happens to the child, and whether orphans come to it, is the parent's."""
    adopts = _control(_ADOPTS, 1)
    child = os.fork()
    if child:
        try:
            parent(child, adopts)
        finally:
            os._exit(0)
    _control(_DIES_WITH_PARENT, signal.SIGKILL)


def _stand_behind(child: int, adopts: bool) -> None:
    os.close(CONTROL)
    _ignore_signals()
    _code(child, 0)
    if adopts:
        _end_children()


def _control(option: int, value: int) -> bool:
    """Set an option of this process; return whether the system knows it."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        import ctypes

        return bool(ctypes.CDLL(None).prctl(option, ctypes.c_ulong(value), *[ctypes.c_ulong(0)] * 3) == 0)
    except (ImportError, OSError, AttributeError):
        return False


def _watch(child: int, adopts: bool) -> None:
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    _ignore_signals()
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    while (code := _code(child, os.WNOHANG)) is None:
        ready = select.select([CONTROL, reading], [], [])[0]
        if reading in ready:
            os.read(reading, 1 << 12)
        if CONTROL in ready and not _asked():
            _kill(child)
            code = _code(child, 0)
            break
        if CONTROL in ready:
            os.kill(child, signal.SIGABRT)  # at which its faulthandler writes a trace
            os.kill(child, signal.SIGCONT)  # it may have stopped itself
    clean = adopts and _end_children()
    if not clean:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(child, signal.SIGKILL)
    with suppress(OSError):
        os.write(CONTROL, f"{code} {clean:d}".encode())


def _ignore_signals() -> None:
    """Ignore every signal that can be ignored, and let go of what the solution prints to."""
    others = signal.valid_signals() - {signal.SIGCHLD, signal.SIGCONT}
    for number in others:
        with suppress(OSError, ValueError):  # two of them, and those of the C library, cannot be
            signal.signal(number, signal.SIG_IGN)
    null = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(null, stream)


def _asked() -> bytes:
    try:
        return os.read(CONTROL, 1)
    except OSError:
        return b""


def _code(child: int, options: int) -> int | None:
    """A child's exit code, or None as long as it runs."""
    pid, status = os.waitpid(child, options)
    return os.waitstatus_to_exitcode(status) if pid else None


def _kill(child: int) -> None:
    """Kill a child and its group, in which there is nothing but what it started or was started with."""
    with suppress(ProcessLookupError, PermissionError):
        group = os.getpgid(child)
        os.kill(child, signal.SIGKILL)
        if group != os.getpgrp():
            os.killpg(group, signal.SIGKILL)


def _end_children() -> bool:
    """Kill children until there are none: those of a child that is killed come here next. Return whether all went."""
    deadline = time.monotonic() + _PATIENCE
    while time.monotonic() < deadline:
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                continue
        except ChildProcessError:
            return True
        for pid in _children():
            _kill(pid)  # not waited for yet: its number is its own
        time.sleep(0.001)
    return False


def _children() -> list[int]:
    here, found = str(os.getpid()).encode(), []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError), open(f"/proc/{pid}/stat", "rb") as file:
            if file.read().rpartition(b")")[2].split()[1] == here:  # after the name, which may hold anything
                found.append(int(pid))
    return found
