"""One child process within limits: its folder, its time, what it prints, what it leaves behind, what it wrote.

Nothing that a child does is believed: its results are a regular file of bounded size or none. Knows neither calls nor
solutions.
"""

import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from headwise.check.remains import last_line, place, records_of, why
from headwise.check.scratch import Scratch
from headwise.check.wire import Record, packed

CHILD = Path(__file__).with_name("child.py")
_TOKEN = "HEADWISE_CHECK"
_KEPT = ("PATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "SYSTEMROOT")  # what an interpreter may need to start
_THREADS = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")
_LAST_WORDS = 0.3  # seconds in which a child that is out of time may say where it was
_CLEARING = 10.0  # seconds for killing what a solution left, before it is done from here
_ROUNDS = 50  # of looking for processes left behind

_RUNNING: set["_Child"] = set()
_GUARD = threading.Lock()  # of it


class Limits(NamedTuple):
    """What one child may take.

    Attributes
    ----------
    seconds : float
        Wall time; processor time is twice that.
    memory : int
        Bytes of address space.
    output : int
        Bytes of all results together.
    printed : int
        Bytes of what it prints that are kept.
    """

    seconds: float = 10.0
    memory: int = 2 << 30
    output: int = 16 << 20
    printed: int = 1 << 16


class Ended(NamedTuple):
    """What is left of a child: its records, why it ended before it was done or nothing, what it printed, wall time."""

    records: list[Record]
    broken: str
    printed: str
    seconds: float


def limits_off() -> tuple[str, ...]:
    """Return the limits that this system does not keep."""
    off = ["processes left behind"] if find_spec("_ctypes") is None else []
    off = off if sys.platform.startswith("linux") else ["memory", "processes left behind"]
    with suppress(ImportError):
        import resource

        return tuple(off if hasattr(resource, "setrlimit") else [])
    return ("memory", "processor time", "size of files", "processes left behind")


class _Printed(threading.Thread):
    """Reads a pipe to its end and keeps the beginning. A process that holds it open holds up this thread alone."""

    def __init__(self, pipe: int, most: int) -> None:
        super().__init__(name="headwise-check-printed", daemon=True)
        self.pipe, self.most, self.kept, self.cut = pipe, most, bytearray(), False
        self.mark = f"pipe:[{os.fstat(pipe).st_ino}]".encode()  # as /proc names it

    def run(self) -> None:
        with suppress(OSError):
            while data := os.read(self.pipe, 1 << 16):
                room = self.most - len(self.kept)
                self.kept += data[:room]
                self.cut = self.cut or len(data) > room
        os.close(self.pipe)

    def text(self, folder: str) -> str:
        """What was printed, without the name of the folder, which is another each time."""
        text = bytes(self.kept).decode("utf-8", errors="replace").replace(folder + os.sep, "")
        return f"{text}\n... (cut after {self.most} bytes)\n" if self.cut else text


class _Marks(NamedTuple):
    """By which a process is known as a child's: its environment, where it stands, where it writes."""

    variable: bytes
    folder: bytes
    pipe: bytes

    def are_on(self, pid: str) -> bool:
        for link, begins in (("cwd", self.folder), ("fd/1", self.pipe), ("fd/2", self.pipe)):
            with suppress(OSError):
                if os.readlink(f"/proc/{pid}/{link}".encode()).startswith(begins):
                    return True
        with suppress(OSError), open(f"/proc/{pid}/environ", "rb") as file:
            return self.variable in file.read().split(b"\0")
        return False


def run_child(fields: dict[str, Any], calls: list[Record], source: bytes, limits: Limits) -> Ended:
    """Run one child on a request and return what came of it, when nothing of it is left.

    Parameters
    ----------
    fields : dict
        What the child is told besides calls; a "label" is what the solution is called.
    calls : list of Record
        What it is to call.
    source : bytes
        The solution's text.
    limits : Limits
        What it may take.
    """
    start = time.perf_counter()
    with Scratch() as scratch:
        ended = _run(scratch, fields, calls, source, limits)
    return ended._replace(seconds=time.perf_counter() - start)


def _run(scratch: Scratch, fields: dict[str, Any], calls: list[Record], source: bytes, limits: Limits) -> Ended:
    folder, token = scratch.path, secrets.token_hex(16)
    request = {**fields, "token": token, "limits": limits._asdict()}
    Path(folder, "request").write_bytes(packed(request, {}) + b"".join(packed(*call) for call in calls))
    Path(folder, "solution.py").write_bytes(source)
    scratch.folder("work")
    child = _Child(folder, limits)
    in_time = False
    try:
        in_time = child.ends_within(limits.seconds)
    finally:
        code = child.end()
    child.printed.join(_LAST_WORDS)
    text = child.printed.text(folder)
    records, damaged = records_of(os.path.join(scratch.now(), "results"), token, limits.output)
    if any(record.fields.get("done") for record in records):
        return Ended(records, "", text, 0.0)
    if in_time and os.path.lexists(os.path.join(folder, "request")):  # which the child takes away first
        return Ended([], f"the interpreter did not start: {last_line(text)}", text, 0.0)
    where = place(scratch.now(), str(fields["label"]))
    reason = why(code, text, watched=child.reported) if in_time else f"did not end within {limits.seconds:g} s"
    return Ended(records, damaged or reason + where, text, 0.0)


# ------------------------------------------------------------------------------------------- its life
def _environment(folder: str, mark: str) -> dict[str, str]:
    work = os.path.join(folder, "work")
    kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
    own = {
        "HOME": work,
        "TMPDIR": work,
        "TEMP": work,
        "TMP": work,
        "LANG": "C.UTF-8",
        "MPLBACKEND": "Agg",
        _TOKEN: mark,
    }
    return kept | own | dict.fromkeys(_THREADS, "1")


class _Child:
    """A child and, where the system has forks, the process that watches it and reports its end through a socket."""

    def __init__(self, folder: str, limits: Limits) -> None:
        packages = os.path.dirname(os.path.dirname(os.path.abspath(np.__file__)))  # which -I may hide
        command = [sys.executable, "-I", "-B", "-u", "-X", "utf8", str(CHILD), folder, packages]
        mark, (reading, writing) = secrets.token_hex(16), os.pipe()
        self._control, theirs = socket.socketpair()
        try:
            self._process = subprocess.Popen(
                command,
                stdin=theirs.fileno() if hasattr(os, "fork") else subprocess.DEVNULL,
                stdout=writing,
                stderr=writing,
                cwd=folder,
                env=_environment(folder, mark),
                start_new_session=True,
            )
        except BaseException:
            os.close(reading)
            self._control.close()
            raise
        finally:
            os.close(writing)
            theirs.close()
        with _GUARD:
            _RUNNING.add(self)
        self.printed = _Printed(reading, limits.printed)
        self.printed.start()
        self._marks = _Marks(f"{_TOKEN}={mark}".encode(), os.fsencode(folder + os.sep), self.printed.mark)
        self._report: bytes | None = None  # its end as the watching process says it; empty if that one has ended

    @property
    def reported(self) -> bool:
        """Whether the process that watches it was there to say how it ended."""
        return bool(self._report) or not hasattr(os, "fork")

    def ends_within(self, seconds: float) -> bool:
        """Wait for its end; one that is out of time is asked where it is. Return whether it was in time."""
        if self._waits(seconds):
            return True
        with suppress(OSError):
            self._control.send(b"?", getattr(socket, "MSG_NOSIGNAL", 0))
            self._waits(_LAST_WORDS)
        return False

    def _waits(self, seconds: float) -> bool:
        if not hasattr(os, "fork"):
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(seconds)
            return self._process.returncode is not None
        with suppress(TimeoutError):
            self._control.settimeout(max(seconds, 1e-3))
            try:
                self._report = self._report or self._control.recv(64)
            except ConnectionError:
                self._report = b""
        return self._report is not None

    def stop(self) -> None:
        """Have it ended, from any thread."""
        with suppress(OSError):
            self._control.shutdown(socket.SHUT_WR)
        self._signal("SIGCONT")  # those that watch it may have been stopped
        if not hasattr(os, "fork"):
            self._process.kill()

    def end(self) -> int:
        """Leave nothing of it behind; return its exit code."""
        self.stop()
        with _GUARD:
            _RUNNING.discard(self)
        self._waits(_CLEARING)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_CLEARING)
        code, _, clean = (self._report or b"").partition(b" ")
        if clean != b"1":
            self._signal("SIGKILL")
            _kill_marked(self._marks)
        self._control.close()
        ended = self._process.wait()
        return int(code) if clean else ended

    def _signal(self, name: str) -> None:
        """Signal those that watch: a group of their own, whose number is taken until the first of them is reaped."""
        if hasattr(signal, name) and self._process.returncode is None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, getattr(signal, name))


def end_running() -> None:
    """End the children of all threads, whose runs then end at once: for an interrupt, which one thread alone sees."""
    with _GUARD:
        for child in _RUNNING:
            child.stop()


def _kill_marked(marks: _Marks) -> None:
    """Kill what left the group. Twice nobody is to be found: who starts a program has no environment for a moment."""
    if not os.path.isdir("/proc/self"):
        return
    found_none = 0
    for _ in range(_ROUNDS):
        here = str(os.getpid())
        left = [pid for pid in os.listdir("/proc") if pid.isdigit() and pid != here and marks.are_on(pid)]
        for pid in left:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(int(pid), signal.SIGKILL)
        found_none = 0 if left else found_none + 1
        if found_none == 2:
            return
        time.sleep(0.002)
