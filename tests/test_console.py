"""console: plain text is aligned and stable, no text acts on the terminal, rich is used only where it may be."""

import importlib.util
import io
import itertools
import json
import re
import sys
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import pytest

from headwise import console
from headwise.console import PLAIN, Look, Progress, bar, cell, emit, facts, heatmap, look, table, width

ASCII = Look("ascii")
RICH = Look(rich=True, width=60)
needs_rich = pytest.mark.skipif(importlib.util.find_spec("rich") is None, reason="rich is not installed")
COLOUR = re.compile(r"\x1b\[[0-9;]*m")


class Terminal(io.StringIO):
    """A terminal in memory."""

    def __init__(self, encoding: str = "utf-8") -> None:
        super().__init__()
        self._encoding = encoding

    @property
    def encoding(self) -> str:
        return self._encoding

    def isatty(self) -> bool:
        return True


def uncoloured(text: str) -> list[str]:
    return [line.rstrip() for line in COLOUR.sub("", text).splitlines()]


# ---------------------------------------------------------------------------------------------- look
@needs_rich
def test_rich_is_for_terminals_that_have_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "71")
    monkeypatch.setenv("TERM", "xterm")
    assert look(Terminal()) == Look("utf-8", rich=True, width=71)
    assert look(io.StringIO()) == PLAIN
    assert look(None) == PLAIN
    assert look(Terminal("ascii")) == ASCII
    monkeypatch.setitem(sys.modules, "rich", None)
    assert look(Terminal()) == Look("utf-8", rich=False, width=71)


def test_a_dumb_terminal_is_written_to_plainly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    assert look(Terminal()) == PLAIN


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252", "utf-8"])
def test_every_encoding_is_written_without_an_error(encoding: str) -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding=encoding)
    emit("a█注ü", stream)
    stream.flush()
    assert raw.getvalue().decode(encoding).startswith("a")
    assert raw.getvalue().endswith(b"\n")
    assert (b"\\u2588" in raw.getvalue()) == (encoding != "utf-8")


def test_a_closed_stream_is_no_error() -> None:
    emit("text", None)


def test_progress_is_for_terminals_and_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "10")
    monkeypatch.setitem(sys.modules, "rich", None)
    terminal, pipe = Terminal(), io.StringIO()
    for stream in (terminal, pipe, None):
        with Progress(stream) as line:
            line.tell("1 of 2: \x1b[2J注")
    assert terminal.getvalue() == "\r" + " " * 9 + "\r" + r"1 of 2: \x1b"[:9] + "\r" + " " * 9 + "\r"
    assert pipe.getvalue() == ""


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal of 50 columns, and no rich."""
    monkeypatch.setenv("COLUMNS", "50")
    monkeypatch.setitem(sys.modules, "rich", None)


CLEARED = "\r" + " " * 49 + "\r"


@pytest.mark.usefixtures("plain")
def test_a_bar_begins_late_is_drawn_now_and_then_and_goes() -> None:
    times = iter([0.0, 0.4, 0.6, 0.6, 0.65, 0.9, 0.9, 1.5])
    terminal = Terminal()
    with Progress(terminal, after=0.5, now=lambda: next(times)) as line:
        line.count("attending", 1, 8)  # at 0.4: too early
        line.count("attending", 2, 8)
        line.count("attending", 3, 8)  # at 0.65: too soon after the last
        line.count("attending", 4, 8)
        line.count("attending", 8, 8)  # the end is nothing to wait for
    drawn = [f"attending  [#####{' ' * 15}]  25%", f"attending  [{'#' * 10}{' ' * 10}]  50%", ""]
    assert terminal.getvalue() == "".join(CLEARED + text for text in drawn)
    assert next(times) == 1.5


@pytest.mark.usefixtures("plain")
def test_what_is_over_soon_draws_nothing() -> None:
    terminal = Terminal()
    with Progress(terminal, after=0.5, now=lambda: 7.0) as line:
        line.count("attending", 1, 2)
        line.tell("attending")
    assert terminal.getvalue() == ""


@pytest.mark.usefixtures("plain")
def test_an_interrupt_takes_the_line_away() -> None:
    terminal = Terminal()
    with suppress(KeyboardInterrupt), Progress(terminal) as line:
        line.count("attending", 1, 2)
        raise KeyboardInterrupt
    assert terminal.getvalue().endswith("50%" + CLEARED)


@needs_rich
@pytest.mark.parametrize("error", [None, KeyboardInterrupt("now")])
def test_a_rich_bar_shows_the_cursor_again_and_erases_its_line(
    monkeypatch: pytest.MonkeyPatch, error: BaseException | None
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "70")
    threads = threading.active_count()
    terminal = Terminal()
    with suppress(KeyboardInterrupt), Progress(terminal, now=itertools.count().__next__) as line:
        line.count("at [red] \x1b[2J", 1, 4)
        assert threading.active_count() == threads
        line.count("at [red] \x1b[2J", 3, 4)
        if error is not None:
            raise error
    shown = COLOUR.sub("", terminal.getvalue())
    assert shown.startswith("\x1b[?25l")
    assert shown.endswith("\x1b[?25h\r\x1b[1A\x1b[2K")
    assert r"at [red] \x1b[2J ━" in shown
    assert re.search(r" 25%.*\r\x1b\[2K.* 75%", shown)


class Gone(Terminal):
    """A terminal that was closed."""

    def write(self, text: str) -> int:
        raise OSError(5, "Input/output error")


@pytest.mark.parametrize("rich", [pytest.param(True, marks=needs_rich), False])
def test_a_terminal_that_has_gone_ends_no_work(monkeypatch: pytest.MonkeyPatch, rich: bool) -> None:
    monkeypatch.setenv("TERM", "xterm")
    if not rich:
        monkeypatch.setitem(sys.modules, "rich", None)
    with Progress(Gone()) as line:
        line.tell("working")
        line.count("working", 1, 2)


# ---------------------------------------------------------------------------------------------- cells
def test_nothing_in_a_cell_acts_on_the_terminal() -> None:
    hostile = "\x1b[2J\r\n\t\x00\u202e\u2028\x9b"
    for text in (cell(hostile), cell(hostile, ASCII)):
        assert text == r"\x1b[2J\r\n\t\x00\u202e\u2028\x9b"
    for made in (
        table(hostile, ["a"], [[hostile]]),
        facts([("a", hostile)]),
        heatmap(np.ones((1, 1)), [hostile], [hostile]),
    ):
        assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e\u2028]", made)


def test_a_cell_that_the_encoding_cannot_hold_is_aligned_as_it_is_written() -> None:
    lines = table("t", ["token", "n"], [["注", 1], ["a", 2]], ASCII).splitlines()
    assert lines[3:] == [r"\u6ce8  1", "a       2"]


def test_wide_and_combining_characters_are_counted() -> None:
    lines = table("t", ["token", "n"], [["注意力", 1], ["e\u0301", 2], ["abc", 3]]).splitlines()
    assert [width(line) for line in lines[1:]] == [9] * 5


# ---------------------------------------------------------------------------------------------- table
def test_numbers_stand_to_the_right_and_nothing_is_cut() -> None:
    long = "x" * 500
    made = table("Title", ["name", "n", "share", "mixed"], [["q", 7, "3.1%", "1"], [long, 11, "23.7%", "-"]])
    title, head, rule, first, second = made.splitlines()
    assert title == "Title"
    assert head == "name".ljust(500) + "   n  share  mixed"
    assert rule == "-" * 500 + "  --  -----  -----"
    assert first == "q".ljust(500) + "   7   3.1%  1"
    assert second == long + "  11  23.7%  -"


def test_a_table_without_rows() -> None:
    assert table("None", ["a", "bc"], []) == "None\na  bc\n-  --"
    assert facts([]) == ""


def test_facts_are_folded_where_lines_have_a_most() -> None:
    pairs = [("name", "one two-three four"), ("b", "x" * 30), ("c", 1)]
    assert facts(pairs, most=16).splitlines() == [
        "name  one",
        "      two-three",
        "      four",
        "b",
        "      " + "x" * 30,
        "c     1",
    ]
    assert len(facts(pairs).splitlines()) == 3


def test_plain_text_has_neither_colours_nor_boxes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rich", None)  # would raise if it were imported
    texts = [
        table("t", ["a", "b"], [["x", 1]]),
        heatmap(np.eye(2), ["a", "b"], ["a", "b"]),
        facts([("a", 1)]),
    ]
    assert not any(re.search(r"[\x1b\u2500-\u257f]", text) for text in texts)


@needs_rich
def test_a_rich_table_has_the_same_words() -> None:
    made = table("The [b]title[/b]", ["token", "n"], [["[CLS]", 1], ["[red]", 12]], RICH)
    assert "\x1b[" in made
    lines = uncoloured(made)
    assert lines[0] == "The [b]title[/b]"
    assert lines[1].split() == ["token", "n"]
    assert set(lines[2]) == {"─"}
    assert [line.split() for line in lines[3:]] == [["[CLS]", "1"], ["[red]", "12"]]
    assert lines[3].endswith("  1")


@needs_rich
def test_a_narrow_rich_table_folds_and_loses_nothing() -> None:
    text = "".join(chr(97 + i % 26) for i in range(97))
    made = "".join(uncoloured(table("t", ["a"], [[text]], RICH._replace(width=23))))
    assert text in made


# ---------------------------------------------------------------------------------------------- bar
@pytest.mark.parametrize(
    ("share", "blocks", "signs"),
    [
        (0.0, "", ""),
        (1.0, "████████", "########"),
        (0.5, "████", "####"),
        (1 / 64, "▏", ""),
        (0.45, "███▋", "####"),
        (-3.0, "", ""),
        (7.0, "████████", "########"),
        (float("nan"), "", ""),
        (float("inf"), "████████", "########"),
    ],
)
def test_a_bar_is_as_long_as_its_share(share: float, blocks: str, signs: str) -> None:
    assert bar(share, 8) == blocks.ljust(8)
    assert bar(share, 8, ASCII) == signs.ljust(8)


# -------------------------------------------------------------------------------------------- heatmap
MATRIX = np.array([[0.0, 0.05, 0.06], [0.2, 0.3, 0.51], [1.0, np.nan, 1e-9]])


def test_each_mark_stands_for_its_range() -> None:
    rows = heatmap(MATRIX, ["a", "bb", "c"], ["x", "y", "z"], ASCII).splitlines()
    assert rows == [
        "    x y z",
        " a |  ..::|",
        "bb |++##@@|",
        " c |@@??..|",
        "marks: '.' above 0, ':' above 0.05, '+' above 0.1, '#' above 0.25, '@' above 0.5, '?' NaN",
    ]
    shaded = heatmap(MATRIX, ["a", "bb", "c"], ["x", "y", "z"]).splitlines()
    assert shaded[:4] == [row.translate(str.maketrans(".:+#@", "·░▒▓█")) for row in rows[:4]]
    assert shaded[4] == "marks: '·' above 0, '░' above 0.05, '▒' above 0.1, '▓' above 0.25, '█' above 0.5, '?' NaN"


def test_column_labels_are_read_downwards_and_end_together() -> None:
    lines = heatmap(np.zeros((1, 3)), ["q"], ["her", "注", ""]).splitlines()
    assert lines[:3] == ["   h", "   e", "   r 注"]


def test_large_pictures_are_cut_and_say_so() -> None:
    labels = [f"t{i}" for i in range(71)]
    lines = heatmap(np.full((67, 71), 0.3), labels[:67], labels).splitlines()
    assert lines[-1] == "drawn: the first 64 of 67 queries and 64 of 71 keys"
    assert lines[3] == " t0 |" + "▓" * 128 + "|"
    assert sum("|" in line for line in lines) == 64
    narrow = heatmap(np.full((2, 71), 0.3), labels[:2], labels, Look(width=20))
    assert max(map(len, narrow.splitlines()[:4])) <= 20
    assert narrow.splitlines()[-1] == "drawn: the first 2 of 2 queries and 7 of 71 keys"
    assert "1 of 71 keys" in heatmap(np.ones((2, 71)), labels[:2], labels, Look(width=1))


@needs_rich
def test_a_rich_picture_has_the_same_marks() -> None:
    made = heatmap(MATRIX, ["a", "bb", "c"], ["x", "y", "z"], RICH._replace(width=100))
    assert "\x1b[" in made
    assert uncoloured(made) == heatmap(MATRIX, ["a", "bb", "c"], ["x", "y", "z"]).splitlines()


def test_empty_pictures() -> None:
    assert heatmap(np.ones((0, 0)), [], []).splitlines()[0].startswith("marks: ")
    assert heatmap(np.ones((1, 0)), ["a"], []).splitlines()[0] == "a ||"


# ---------------------------------------------------------------------------------------------- words
class Point(NamedTuple):
    x: float
    y: object


@dataclass
class Plan:
    tiles: tuple[int, int]
    grid: object = field(repr=False)


def test_json_of_a_dataclass_is_what_its_repr_shows() -> None:
    assert json.loads(console.as_json({"plan": Plan((1, 2), object())})) == {"plan": {"tiles": [1, 2]}}


def test_json_has_no_nan_and_knows_arrays_and_named_tuples() -> None:
    value = {"p": Point(np.inf, (1, np.float32(0.5))), 3: np.array([[np.nan, 2]]), "n": None, "b": True, "s": "█"}
    text = console.as_json(value)
    assert text.isascii()
    assert json.loads(text) == {
        "p": {"x": None, "y": [1, 0.5]},
        "3": [[None, 2.0]],
        "n": None,
        "b": True,
        "s": "█",
    }


def test_durations_and_sizes_in_words() -> None:
    assert [console.duration(s) for s in (0.0, 1.5e-5, 0.25, 1, 75)] == ["0 ms", "0.015 ms", "250 ms", "1 s", "75 s"]
    sizes = [console.bytes_in_words(n) for n in (0, 1023, 1024, 3 * 2**20, 2**30, 5 * 2**40)]
    assert sizes == ["0 bytes", "1023 bytes", "1 KiB", "3 MiB", "1 GiB", "5120 GiB"]


def test_nan_has_its_mark_in_the_legend() -> None:
    picture = console.heatmap(np.array([[np.nan, 1.0]]), ["a"], ["b", "c"], console.Look("ascii"))
    assert "|??@@|" in picture
    assert picture.endswith("'@' above 0.5, '?' NaN")


# ------------------------------------------------------------------------------------------------ folded
LINES = [("    remark: three words and more", 8, "yellow"), ("passed  a", 8, "green"), ("", 4, ""), ("x" * 50, 4, "")]
FOLDED = (
    "    remark: three words\n        and more\npassed  a\n\n"
    + "x" * 23
    + "\n"
    + "    "
    + "x" * 19
    + "\n    "
    + "x" * 8
)


def test_lines_are_folded_and_set_in():
    assert console.folded(LINES, 23) == FOLDED
    assert console.folded(LINES, 80) == "\n".join(line for line, _, _ in LINES)


def test_a_narrow_terminal_keeps_room_for_words():
    lines = console.folded([("passed  " + "word " * 9, 30, "")], 4).splitlines()
    assert max(map(len, lines)) <= 20
    assert {len(line) - len(line.lstrip()) for line in lines[1:]} == {10}


@needs_rich
def test_the_first_words_of_a_line_are_coloured_on_a_terminal_alone(monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    made = console.folded(LINES, 23, Look(rich=True, width=23))
    assert COLOUR.sub("", made) == FOLDED
    assert re.findall(r"\x1b\[(\d+)m([^\x1b]*)\x1b\[0m", made) == [("33", "remark"), ("32", "passed")]
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[3" not in console.folded(LINES, 23, Look(rich=True, width=23))


@needs_rich
def test_markup_in_a_line_is_text():
    assert COLOUR.sub("", console.folded([("[red]x[/red] :smile:", 4, "green")], 40, RICH)) == ("[red]x[/red] :smile:")


def test_the_columns_are_those_of_a_terminal_and_80_where_it_does_not_say(monkeypatch):
    monkeypatch.setenv("COLUMNS", "57")
    assert (console.columns(Terminal()), console.columns(io.StringIO()), console.columns(None)) == (57, None, None)
    monkeypatch.delenv("COLUMNS")
    monkeypatch.setattr("os.get_terminal_size", lambda *_: (_ for _ in ()).throw(OSError()))
    assert console.columns(Terminal()) == 80
