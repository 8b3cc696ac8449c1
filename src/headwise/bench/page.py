"""The tables of the benchmark as Markdown, each between two markers of a page; knows nothing of how they come about."""

import re
from collections.abc import Sequence

from headwise.bench.agreement import BenchError
from headwise.bench.cases import CASES, TABLES, Case
from headwise.bench.measure import Outcome
from headwise.bench.peers import stands_in
from headwise.bench.report import (
    LEGENDS,
    TARGET_HEADS,
    columns,
    failures,
    mean_table,
    notes,
    rows,
    target_rows,
    verdicts,
)
from headwise.files import FileError, PathLike, listed, read_text, shown, write_text

MARKS = {
    "forward": ("<!-- bench:begin -->", "<!-- bench:end -->"),
    "backward": ("<!-- bench-backward:begin -->", "<!-- bench-backward:end -->"),
    "serving": ("<!-- bench-serving:begin -->", "<!-- bench-serving:end -->"),
}


def _markdown_table(heads: Sequence[str], lines: Sequence[Sequence[str]], side: str = "---:") -> list[str]:
    """A table whose columns after the first stand to a side: the right one unless told otherwise."""
    texts = [[shown(cell, 1000).replace("|", "\\|") for cell in line] for line in lines]
    rule = ["---", *[side] * (len(heads) - 1)]
    return [f"| {' | '.join(line)} |" for line in (heads, rule, *texts)]


def markdown(outcome: Outcome, whole: Sequence[str], table: str) -> list[str]:
    """Return the lines that stand between the markers of a table."""
    results = [result for result in outcome.results if result.case.table == table]
    lines = [*_markdown_table(columns(results), rows(results)), ""]
    heads, means = mean_table(results)
    if means:
        lines += ["Geometric means (of so many cases):", "", *_markdown_table(heads, means), ""]
    if judged := verdicts(results, whole):
        lines += ["Targets:", "", *_markdown_table(TARGET_HEADS, target_rows(judged), "---"), ""]
    lines += [f"- {text}" for text in LEGENDS[table]]
    lines += [f"- {name}: {value}" for name, value in (*outcome.conditions.facts(), *notes(outcome, table))]
    absent = {name: install for name, install in outcome.absent.items() if stands_in(name, table)}
    return lines + [f"- {name}: not installed, {install}" for name, install in absent.items()]


def splice(text: str, lines: Sequence[str], where: str, table: str = "forward") -> str:
    """Return a page with lines between the markers of a table, all else as it was, and its own line ends.

    Raises
    ------
    FileError
        If the markers are not there, once each, in order, each on a line of its own.

    Examples
    --------
    >>> splice("a\\n<!-- bench:begin -->\\nold\\n<!-- bench:end -->\\nb", ["new"], "page.md").splitlines()
    ['a', '<!-- bench:begin -->', 'new', '<!-- bench:end -->', 'b']
    """
    begin, end = _inside(text, where, table)
    newline = "\r\n" if text[begin:].startswith("\r\n") else "\n"
    inside = "".join(f"{newline}{line}" for line in lines)
    return text[:begin] + inside + newline + text[end:]


def _inside(text: str, where: str, table: str) -> tuple[int, int]:
    """Where what stands between the markers of a table begins and ends."""
    begin, end = MARKS[table]
    begins, ends = ([*re.finditer(rf"^{re.escape(mark)}(?=\r?$)", text, re.MULTILINE)] for mark in (begin, end))
    if len(begins) != 1 or len(ends) != 1 or begins[0].end() > ends[0].start():
        got = f"{len(begins)} and {len(ends)} of them" if len(begins) + len(ends) != 2 else "another order"
        raise FileError(
            f"{where}: expected the lines {begin} and {end}, once each, got {got}; put them where the table is to be"
        )
    return begins[0].end(), ends[0].start()


def _check_rows(text: str, cases: Sequence[Case], where: str, table: str) -> None:
    """Refuse to take rows out of a table whose cases are not measured: what stands there may have taken an hour."""
    begin, end = _inside(text, where, table)
    held = re.findall(r"^\| ([^ |]+) \|", text[begin:end], re.MULTILINE)
    measured = {case.name for case in cases}
    lost = [case.name for case in CASES if case.name in held and case.name not in measured]
    if lost:
        raise FileError(
            f"{where}: expected every case to be measured whose row stands there, got none for {listed(lost)}; "
            f"name them in --cases too, or take their rows out"
        )


def check_page(path: PathLike, cases: Sequence[Case]) -> None:
    """Raise a FileError where `write_page` could not write, before the work whose result it is to write."""
    text, where = read_text(path), shown(path, 1000)
    for table in _tables(cases):
        _check_rows(text, cases, where, table)


def write_page(path: PathLike, outcome: Outcome, whole: Sequence[str]) -> None:
    """Write the tables of what was measured between their markers in a page, whole or not at all.

    A table of which nothing was measured stays as it is.

    Raises
    ------
    BenchError
        If a peer was not measured on a case on which it was to be.
    FileError
        If the page has no markers, or rows of cases that were not measured, or cannot be read or replaced.
    """
    where = shown(path, 1000)
    for which, why in failures(outcome):
        expected = f"every case measured, got none for {which}: {why}"
        raise BenchError(f"{where}: expected {expected}; nothing is written")
    text, cases = read_text(path), [result.case for result in outcome.results]
    for table in _tables(cases):
        _check_rows(text, cases, where, table)
        text = splice(text, markdown(outcome, whole, table), where, table)
    write_text(path, text)


def _tables(cases: Sequence[Case]) -> list[str]:
    """The tables in which any of the cases stands."""
    return [table for table in TABLES if any(case.table == table for case in cases)]
