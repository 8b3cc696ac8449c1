"""What a child that has ended left: results that are believed to be nothing but bytes, its end, where it was.

Knows neither how it was run nor what it was asked.
"""

import os
import re
import signal
import stat
from collections.abc import Mapping

from headwise.check.wire import Record, unpacked
from headwise.files import shown

FAILED = 70
"""The child's exit code where its results could not be written."""

_SLACK = 1 << 20  # bytes of texts beside arrays
_CELL = re.compile(r"<(cell \d+)>")


def held(path: str, most: int) -> bytes | None:
    """Return the bytes of a regular file, or None where it is something else, is not there or is too large."""
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    try:
        file = os.fdopen(os.open(path, flags), "rb")
    except OSError:
        return None
    with file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode) or status.st_size > most:
            return None
        return file.read(most)


def records_of(path: str, token: str, most: int) -> tuple[list[Record], str]:
    """Return the child's own records, and what is wrong with them, or nothing."""
    data = held(path, most + _SLACK)
    if data is None:
        return [], "its results were removed, replaced or too large" if os.path.lexists(path) else ""
    records: list[Record] = []
    try:
        for record in unpacked(data):
            if record.fields.get("token") != token:
                return records, "its results were written by the solution"
            records.append(record)
    except ValueError:
        return records, "its results were damaged"
    return records, ""


def last_line(text: str) -> str:
    """Return the last line that was printed."""
    lines = [line for line in text.splitlines() if line.strip()]
    return shown(lines[-1].strip()) if lines else "it printed nothing"


def _signal_name(number: int) -> str:
    try:
        return f"{signal.Signals(number).name} ({signal.strsignal(number)})"
    except ValueError:
        return f"signal {number}"


def why(code: int, text: str, watched: bool = True) -> str:
    """Return why a child ended that was not done, from its exit code and what it printed.

    Parameters
    ----------
    code : int
        The exit code, which says something where it was watched.
    text : str
        What was printed.
    watched : bool
        Whether it was watched to its end.
    """
    if not watched:
        return "ended the process that watches it"
    if code == FAILED:
        return f"its results could not be written: {last_line(text)}"
    return f"was ended by {_signal_name(-code)}" if code < 0 else f"ended itself by os._exit({code})"


def place(folder: str, label: str) -> str:
    """Return where the child was when it crashed or ran out of time, from the trace that its faulthandler wrote."""
    trace = (held(os.path.join(folder, "trace"), _SLACK) or b"").decode("utf-8", errors="replace")
    names: Mapping[str, str] = {os.path.join(folder, "solution.py"): label}
    for path, line in re.findall(r'File "([^"\n]*)", line (\d+) in', trace):
        cell = _CELL.fullmatch(path)
        name = cell[1] if cell else names.get(path)
        if name:
            return f" (line {line} of {name})"
    return ""
