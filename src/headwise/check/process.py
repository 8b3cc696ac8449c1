"""One child process within limits: its folder, its time, what it prints, what it leaves behind, what it wrote.

Nothing that a child does is believed: its results are a regular file of bounded size or none. Knows neither calls nor
solutions.
"""

import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from headwise.check.remains import last_line, place, records_of, why
from headwise.check.wire import Record, packed

CHILD = Path(__file__).with_name("child.py")
_TOKEN = "HEADWISE_CHECK"
_KEPT = ("PATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "SYSTEMROOT")  # what an interpreter may need to start
_THREADS = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")
_LAST_WORDS = 0.3  # seconds in which a child that is out of time may say where it was
_ROUNDS = 50  # of looking for processes left behind

_RUNNING: set["subprocess.Popen[bytes]"] = set()  # children that are not reaped: their numbers are still theirs
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
    off = [] if sys.platform.startswith("linux") else ["memory", "processes left behind"]
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
    folder = tempfile.mkdtemp(prefix="headwise-check-")
    try:
        return _run(os.path.realpath(folder), fields, calls, source, limits)._replace(
            seconds=time.perf_counter() - start
        )
    finally:
        _remove(folder)


def _run(folder: str, fields: dict[str, Any], calls: list[Record], source: bytes, limits: Limits) -> Ended:
    token, mark = secrets.token_hex(16), secrets.token_hex(16)
    request = {**fields, "token": token, "limits": limits._asdict()}
    Path(folder, "request").write_bytes(packed(request, {}) + b"".join(packed(*call) for call in calls))
    Path(folder, "solution.py").write_bytes(source)
    os.mkdir(os.path.join(folder, "work"))
    process, printed = _started(folder, mark, limits)
    in_time = False
    try:
        in_time = _wait(process, printed, limits.seconds)
    finally:
        marks = _Marks(f"{_TOKEN}={mark}".encode(), os.fsencode(folder + os.sep), printed.mark)
        code = _end(process, marks)
    printed.join(_LAST_WORDS)
    text = printed.text(folder)
    records, damaged = records_of(os.path.join(folder, "results"), token, limits.output)
    if any(record.fields.get("done") for record in records):
        return Ended(records, "", text, 0.0)
    if in_time and os.path.lexists(os.path.join(folder, "request")):  # which the child takes away first
        return Ended([], f"the interpreter did not start: {last_line(text)}", text, 0.0)
    where = place(folder, str(fields["label"]))
    reason = why(code, text) if in_time else f"did not end within {limits.seconds:g} s"
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


def _started(folder: str, mark: str, limits: Limits) -> tuple["subprocess.Popen[bytes]", _Printed]:
    packages = os.path.dirname(os.path.dirname(os.path.abspath(np.__file__)))  # which -I may hide
    command = [sys.executable, "-I", "-B", "-u", "-X", "utf8", str(CHILD), folder, packages]
    reading, writing = os.pipe()
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=writing,
            stderr=writing,
            cwd=folder,
            env=_environment(folder, mark),
            start_new_session=True,
        )
    except BaseException:
        os.close(reading)
        raise
    finally:
        os.close(writing)
    with _GUARD:
        _RUNNING.add(process)
    printed = _Printed(reading, limits.printed)
    printed.start()
    return process, printed


def _has_ended(process: "subprocess.Popen[bytes]") -> bool:
    """Whether it has ended, leaving its number taken: it is also its group's, which is still to be killed."""
    if not hasattr(os, "waitid"):
        return process.poll() is not None
    try:
        return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return True


def _wait(process: "subprocess.Popen[bytes]", printed: _Printed, seconds: float) -> bool:
    """Wait for a child's end; one that is out of time is asked where it is. Return whether it was in time."""
    if _ends_within(process, printed, seconds):
        return True
    if os.name == "posix":
        os.kill(process.pid, signal.SIGABRT)  # at which its faulthandler writes a trace
        _ends_within(process, printed, _LAST_WORDS)
    return False


def _ends_within(process: "subprocess.Popen[bytes]", printed: _Printed, seconds: float) -> bool:
    deadline, step = time.monotonic() + seconds, 0.0005
    while not _has_ended(process):
        left = deadline - time.monotonic()
        if left <= 0:
            return False
        if printed.is_alive():
            printed.join(min(left, 0.02))  # its pipe closes when the child ends
        else:
            time.sleep(min(left, step))
            step = min(2 * step, 0.02)
    return True


def _end(process: "subprocess.Popen[bytes]", marks: _Marks) -> int:
    """Kill a child, its group and whatever else carries its marks; return its exit code."""
    with _GUARD:
        _RUNNING.discard(process)
    _kill_group(process)
    _kill_marked(marks)
    return process.wait()


def _kill_group(process: "subprocess.Popen[bytes]") -> None:
    if hasattr(os, "killpg"):
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
    elif process.poll() is None:
        process.kill()


def end_running() -> None:
    """Kill the children of all threads, whose runs then end at once: for an interrupt, which one thread alone sees."""
    with _GUARD:
        for process in _RUNNING:
            _kill_group(process)


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


def _remove(folder: str) -> None:
    """Remove a folder, also where a child took away its own rights to it, or nested it beyond what can be walked."""
    with suppress(RecursionError):
        shutil.rmtree(folder, ignore_errors=True)
    if os.path.isdir(folder):
        _flatten(folder)
        shutil.rmtree(folder, ignore_errors=True)


def _flatten(folder: str) -> None:
    """Bring all folders inside to its own level: a path of thousands of them is too long for any call."""
    waiting = [folder]
    for inside in waiting:  # which grows meanwhile
        with suppress(OSError):
            os.chmod(inside, 0o700)
            for entry in list(os.scandir(inside)):
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(os.path.join(folder, f"-{len(waiting)}"))
                    os.rename(entry.path, waiting[-1])
