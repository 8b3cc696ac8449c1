"""Tables, bars and pictures as text: through rich on a terminal that has it, plain and stable everywhere else.

Every function returns the text; `emit` and `Progress` alone write. Knows nothing of attention.
"""

import importlib.util
import io
import json
import math
import os
import re
import shutil
import textwrap
import time
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import fields, is_dataclass
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from headwise.files import shown

_LEVELS = (0.0, 0.05, 0.1, 0.25, 0.5)  # a cell's mark is the number of these that it exceeds
_SHADES, _SIGNS = " ·░▒▓█", " .:+#@"
_COLOURS = ("", "dim", "cyan", "green", "yellow", "bright_red")
_EIGHTHS = " ▏▎▍▌▋▊▉█"
_MOST_CELLS = 64
_EVERY = 0.1  # seconds from one drawing of a bar to the next
_BEGIN = re.compile(r":|  ")  # where the first words of a line end
_NUMBER = re.compile(r"[-+]?[\d.]+(e[-+]?\d+)?( ?%)?|nan|[-+]?inf")


class Look(NamedTuple):
    """How to write for one stream."""

    encoding: str = "utf-8"
    rich: bool = False
    width: int | None = None  # columns of the terminal; None: as wide as it needs

    @property
    def shades(self) -> bool:
        """Whether the stream can hold the shades of a picture."""
        return _held(_SHADES + _EIGHTHS, self.encoding)


PLAIN = Look()


def _held(text: str, encoding: str) -> bool:
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return False
    return True


def look(stream: IO[str] | None) -> Look:
    """Return how to write to a stream: rich only on a terminal, and only where it is installed."""
    plain = Look(getattr(stream, "encoding", None) or "utf-8")
    if stream is None or not stream.isatty() or os.environ.get("TERM") == "dumb" or not plain.shades:
        return plain
    width = shutil.get_terminal_size().columns
    return plain._replace(rich=importlib.util.find_spec("rich") is not None, width=width)


def emit(text: str, stream: IO[str] | None) -> None:
    """Write a text and a line end; what the stream's encoding cannot hold is written as an escape."""
    if stream is None:  # closed before Python started
        return
    encoding = getattr(stream, "encoding", None) or "utf-8"
    stream.write(text.encode(encoding, "backslashreplace").decode(encoding) + "\n")


class Progress:
    """One line on a terminal that tells how far something is, and is gone at the end; nothing on any other stream.

    Parameters
    ----------
    stream : text stream or None
        Where to.
    after : float
        Seconds in which nothing is drawn: what is over by then needs no line.
    now : callable
        The time in seconds.
    """

    def __init__(self, stream: IO[str] | None, after: float = 0.0, now: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream if stream is not None and stream.isatty() else None
        self._rich = look(self._stream).rich
        self._now, self._next = now, now() + after
        self._bars: Any = None  # of rich
        self._drawn = False

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, *_: object) -> None:
        """Remove the line, whatever ended the block."""
        if self._stream is None or not self._drawn:
            return
        with suppress(OSError):
            if self._bars is None:
                self._write("")
            else:
                self._bars.stop()

    def tell(self, text: str) -> None:
        """Show what is being done."""
        if self._stream is not None and self._now() >= self._next:
            self._draw(text, None)

    def count(self, text: str, done: int, total: int) -> None:
        """Show what is being done and how much of it is, with a bar; now and then, however often it is called."""
        if self._stream is not None and done < total and self._now() >= self._next:
            self._next = self._now() + _EVERY
            self._draw(text, done / total)

    def _draw(self, text: str, share: float | None) -> None:
        with suppress(OSError):  # a terminal that has gone is no reason to stop working
            self._drawn = True
            if self._rich:
                self._draw_rich(cell(text), share)
            else:
                done = "" if share is None else f"  [{bar(share, 20, Look('ascii'))}] {share:4.0%}"
                self._write(cell(text, Look("ascii")) + done)

    def _write(self, line: str) -> None:
        assert self._stream is not None
        room = shutil.get_terminal_size().columns - 1
        self._stream.write(f"\r{' ' * room}\r{line[:room]}")
        self._stream.flush()

    def _draw_rich(self, text: str, share: float | None) -> None:
        if self._bars is None:
            self._bars = _rich_bars(self._stream, share is not None)
            self._bars.add_task(text, total=1.0, completed=share or 0.0)
            self._bars.start()
        self._bars.update(self._bars.task_ids[0], description=text, completed=share or 0.0, refresh=True)


def _rich_bars(stream: IO[str] | None, counted: bool) -> Any:
    """rich's progress display, without its thread: it draws when it is told to, and so never into other output."""
    from rich.console import Console
    from rich.progress import BarColumn, ProgressColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars
    from rich.table import Column

    columns: list[ProgressColumn] = [
        TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True, overflow="ellipsis"))
    ]
    columns += [BarColumn(), TaskProgressColumn(), TimeRemainingColumn()] if counted else []
    return Bars(
        *columns,
        console=Console(file=stream),
        auto_refresh=False,
        transient=True,
        redirect_stdout=False,
        redirect_stderr=False,
    )


def cell(text: object, look: Look = PLAIN) -> str:
    """Return a text as it will stand on the stream: one line, nothing that a terminal acts upon."""
    return shown(text, 1000).encode(look.encoding, "backslashreplace").decode(look.encoding)


def width(text: str) -> int:
    """Return the columns that a text takes on a terminal.

    >>> width("abc"), width("注意"), width("e\u0301")
    (3, 4, 1)
    """
    return sum(2 if unicodedata.east_asian_width(c) in "WF" else not unicodedata.combining(c) for c in text)


def _pad(text: str, size: int, right: bool = False) -> str:
    space = " " * (size - width(text))
    return space + text if right else text + space


def bar(share: float, size: int = 10, look: Look = PLAIN) -> str:
    """Return a bar as long as a share of `size` columns; nothing for NaN.

    >>> bar(0.55), bar(0.55, look=Look("ascii"))
    ('█████▌    ', '######    ')
    """
    if math.isnan(share):
        return " " * size
    eighths = round(8 * size * min(max(share, 0.0), 1.0))
    if not look.shades:
        return ("#" * ((eighths + 4) // 8)).ljust(size)
    return ("█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()).ljust(size)


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]], look: Look = PLAIN) -> str:
    """Return a table with a title; columns of numbers stand to the right. Nothing is cut.

    >>> print(table("Sizes", ["name", "n"], [["q", 7], ["long name", 11]]))
    Sizes
    name        n
    ---------  --
    q           7
    long name  11
    """
    title, texts = cell(title, look), [[cell(value, look) for value in row] for row in rows]
    right = [all(_NUMBER.fullmatch(row[i]) for row in texts) and bool(texts) for i in range(len(columns))]
    if look.rich:
        return _rich_table(title, columns, texts, right, look)
    sizes = [max(map(width, (name, *(row[i] for row in texts)))) for i, name in enumerate(columns)]
    lines = [columns, ["-" * size for size in sizes], *texts]
    return "\n".join([title, *(_line(line, sizes, right) for line in lines)])


def _line(texts: Sequence[str], sizes: Sequence[int], right: Sequence[bool]) -> str:
    return "  ".join(map(_pad, texts, sizes, right)).rstrip()


def _rich_table(title: str, columns: Sequence[str], texts: list[list[str]], right: Sequence[bool], look: Look) -> str:
    from rich import box
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    made = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    for name, is_number in zip(columns, right, strict=True):
        made.add_column(Text(name), justify="right" if is_number else "left", overflow="fold")
    for row in texts:
        made.add_row(*map(Text, row))  # Text, so that a token such as [CLS] is not read as markup
    return _rendered(Group(Text(title, style="bold"), made), look)


def _rendered(thing: Any, look: Look) -> str:
    from rich.console import Console

    file = io.StringIO()
    Console(file=file, force_terminal=True, legacy_windows=False, width=look.width).print(thing, crop=False)
    return file.getvalue().rstrip("\n")


def columns(stream: IO[str] | None, unknown: int = 80) -> int | None:
    """Return how many columns a terminal has, where the stream is one; else None, as nothing need be folded."""
    if stream is None or not stream.isatty():
        return None
    return shutil.get_terminal_size((unknown, 24)).columns


def folded(lines: Sequence[tuple[str, int, str]], most: int, look: Look = PLAIN) -> str:
    """Return lines folded at a number of columns; on a terminal that takes colours, what they begin with has one.

    Parameters
    ----------
    lines : sequence of (str, int, str)
        A line that nothing acts upon, the columns by which its rest is set in, and the colour of its first words.
    most : int
        Columns.
    look : Look
        How the stream wants it.

    Examples
    --------
    >>> print(folded([("passed  the rows of the weights sum to 1", 8, "green")], 30))
    passed  the rows of the
            weights sum to 1
    """
    parts = [(part, colour if i == 0 else "") for line, hang, colour in lines for i, part in _fold(line, hang, most)]
    if not look.rich:
        return "\n".join(part for part, _ in parts)
    from rich.text import Text

    made = Text(no_wrap=True, overflow="ignore")
    for i, (part, colour) in enumerate(parts):
        begin = len(part) - len(part.lstrip())
        end = begin + (len(_BEGIN.split(part.lstrip(), maxsplit=1)[0]) if colour else 0)
        made.append("\n" * (i > 0) + part[:begin]).append(part[begin:end], style=colour).append(part[end:])
    return _rendered(made, look)


def _fold(line: str, hang: int, most: int) -> Iterator[tuple[int, str]]:
    most = max(most, 20)
    fold = textwrap.TextWrapper(most, subsequent_indent=" " * min(hang, most // 2), break_on_hyphens=False)
    return enumerate(fold.wrap(line) or [""])


def facts(pairs: Sequence[tuple[str, object]], look: Look = PLAIN, most: int | None = None) -> str:
    """Return one line for each name and value, the values aligned; they are folded where lines are to have a most.

    >>> print(facts([("time", "2 ms"), ("tokens", 7)]))
    time    2 ms
    tokens  7
    """
    size = max((width(name) for name, _ in pairs), default=0)
    lines = (f"{_pad(name, size)}  {cell(value, look)}" for name, value in pairs)
    if most is None:
        return "\n".join(lines)
    fold = textwrap.TextWrapper(
        most, subsequent_indent=" " * (size + 2), break_long_words=False, break_on_hyphens=False
    )
    return "\n".join(map(fold.fill, lines))


def heatmap(matrix: NDArray[Any], row_labels: Sequence[str], column_labels: Sequence[str], look: Look = PLAIN) -> str:
    """Return a picture of weights from 0 to 1: a row for each query, a column of two characters for each key.

    At most 64 rows and columns are drawn, fewer on a narrow terminal; a line says so where some are left out.

    Parameters
    ----------
    matrix : ndarray, shape (n_q, n_k)
        The weights.
    row_labels, column_labels : sequence of str
        Names of the queries and of the keys; the latter are read downwards.
    look : Look
        How the stream wants it.

    Examples
    --------
    >>> print(heatmap(np.array([[1.0, 0.0], [0.2, 0.8]]), ["he", "ran"], ["he", "ran"], Look("ascii")))
           r
         h a
         e n
     he |@@  |
    ran |++@@|
    marks: '.' above 0, ':' above 0.05, '+' above 0.1, '#' above 0.25, '@' above 0.5
    """
    names = [cell(label, look) for label in row_labels[:_MOST_CELLS]]
    size = max(map(width, names), default=0)
    room = _MOST_CELLS if look.width is None else max(1, (look.width - size - 3) // 2)
    keys = [cell(label, look) for label in column_labels[: min(room, _MOST_CELLS)]]
    drawn = matrix[: len(names), : len(keys)]
    lines = [" " * (size + 2) + line for line in _downwards(keys)]
    lines += [f"{_pad(name, size, right=True)} |{_cells(row, look)}|" for name, row in zip(names, drawn, strict=True)]
    lines.append(_legend(look, bool(np.isnan(drawn).any())))
    if drawn.shape != matrix.shape:
        lines.append(
            f"drawn: the first {drawn.shape[0]} of {matrix.shape[0]} queries and "
            f"{drawn.shape[1]} of {matrix.shape[1]} keys"
        )
    text = "\n".join(lines)
    return _coloured(text, look) if look.rich else text


def _downwards(labels: Sequence[str]) -> list[str]:
    """Write labels from top to bottom, two columns each, ending on one line."""
    height = max(map(len, labels), default=0)
    tall = [label.rjust(height) for label in labels]
    return ["".join(_pad(label[i], 2) for label in tall).rstrip() for i in range(height)]


def _cells(row: NDArray[Any], look: Look) -> str:
    marks = _SHADES if look.shades else _SIGNS
    levels = np.searchsorted(_LEVELS, row, side="left")
    return "".join("??" if math.isnan(value) else 2 * marks[level] for value, level in zip(row, levels, strict=True))


def _legend(look: Look, unknown: bool) -> str:
    marks = _SHADES if look.shades else _SIGNS
    said = [f"'{mark}' above {level:g}" for mark, level in zip(marks[1:], _LEVELS, strict=True)]
    return "marks: " + ", ".join(said + ["'?' NaN"] * unknown)


def _coloured(text: str, look: Look) -> str:
    from rich.text import Text

    made = Text(text, no_wrap=True, overflow="ignore")
    for mark, colour in zip(_SHADES[1:], _COLOURS[1:], strict=True):
        made.highlight_regex(f"{mark}+", colour)
    return _rendered(made, look)


def as_json(value: Any) -> str:
    """Return a value as one JSON object: named tuples and dataclasses become objects, NaN and infinities null.

    Of a dataclass, fields that are left out of its repr are left out here.

    >>> print(as_json({"x": np.array([1.0, np.nan])}).replace("\\n", ""))
    {  "x": [    1.0,    null  ]}
    """
    return json.dumps(_plain(value), indent=2, allow_nan=False)


def _plain(value: Any) -> Any:
    if hasattr(value, "_asdict"):
        value = value._asdict()
    if is_dataclass(value):
        value = {field.name: getattr(value, field.name) for field in fields(value) if field.repr}
    if isinstance(value, dict):
        return {str(name): _plain(item) for name, item in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        return _plain(value.tolist())
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def duration(seconds: float) -> str:
    """Return seconds in words.

    >>> duration(2.5), duration(0.0021)
    ('2.5 s', '2.1 ms')
    """
    return f"{seconds:.3g} s" if seconds >= 1 else f"{seconds * 1e3:.3g} ms"


def bytes_in_words(size: float) -> str:
    """Return a number of bytes in words.

    >>> bytes_in_words(100), bytes_in_words(3 * 2**40)
    ('100 bytes', '3072 GiB')
    """
    for unit in ("bytes", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.4g} {unit}"
        size /= 1024
    return f"{size:.4g} GiB"
