"""A class as rows: what is noted of each solution, as CSV and back, with no formula in it; grades nothing."""

import csv
import io
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from headwise.check.report import FAILED, Report, Verdict
from headwise.check.words import meant, number, untaken
from headwise.files import FileError, PathLike, read_text, shown

_FORMULA = re.compile(r"['=+\-@]")  # what a spreadsheet takes for one begins so; the first is the mark against it
_INNER = re.compile(r";(?=[=+\-@])")  # and where semicolons part the cells, here
_POINTS = re.compile(r"\d+(\.\d+)?")


class Row(NamedTuple):
    """A row of the table, as it stands in the CSV file.

    Attributes
    ----------
    file : str
        The solution, from the folder on: the student's name first, where each has a folder.
    sha256 : str
        Of what the file held.
    seed, exercises, options, version : str
        What it was graded with. Where these and the file are the same, so is the result.
    score, maximum : str
        Points, and what all checks that were asked of the class count together; empty where it could not be graded.
    passed : str
        ``yes`` where the score is the maximum, ``no``, or empty where it could not be graded.
    failed, mistakes : str
        Names of the checks that failed and of the mistakes that explain them, between semicolons; twins are one
        mistake, ``a or b``.
    remarks : str
        On the solution: what is not found, not implemented or was not taken; or why it could not be graded.
    """

    file: str
    sha256: str = ""
    seed: str = ""
    exercises: str = ""
    options: str = ""
    version: str = ""
    score: str = ""
    maximum: str = ""
    passed: str = ""
    failed: str = ""
    mistakes: str = ""
    remarks: str = ""

    @property
    def key(self) -> tuple[str, ...]:
        """What a result depends on."""
        return self[:6]

    @property
    def graded(self) -> bool:
        """Whether there are points, which a hand may have spoilt."""
        return self.passed in ("yes", "no") and all(_POINTS.fullmatch(points) for points in (self.score, self.maximum))

    def agrees(self, weights: Mapping[str, float]) -> bool:
        """Whether the points can be those of checks with such weights, by name, of which these failed."""
        if not self.graded:
            return False
        failed, maximum = [name for name in self.failed.split("; ") if name], sum(weights.values())
        if not set(failed) <= set(weights) or float(self.maximum) != float(number(maximum)):
            return False
        if float(self.score) > maximum - sum(weights[name] for name in failed):
            return False
        if self.passed == "yes":
            return not failed and float(self.score) == float(self.maximum)
        return bool(failed) or (bool(self.remarks) and not self.mistakes)


class Summary(NamedTuple):
    """What a class did."""

    files: int
    graded: int
    passed: int
    score: float | None
    """The mean, of those that were graded."""
    maximum: float | None
    """The same for all."""
    mistakes: dict[str, int]
    """Name -> how many solutions make it, the most frequent first; twins are one, ``a or b``."""


def cell(value: object) -> str:
    """Return a text as a cell: one line, and no formula to a spreadsheet.

    >>> cell("=1+1"), cell("anna.py")
    ("'=1+1", 'anna.py')
    """
    text = _INNER.sub("; ", shown(value, 1000))
    return f"'{text}" if _FORMULA.match(text) else text


def refused(row: Row, why: object) -> Row:
    """Return the row of a solution that could not be graded."""
    return row._replace(remarks=cell(why))


def judged(row: Row, report: Report, maximum: float) -> Row:
    """Return the row of a solution with what was found; the maximum is that of the class."""
    failed = [] if report.broken else [verdict for verdict in report.verdicts if verdict.status == FAILED]
    mistakes = _mistakes(failed)
    left = [verdict for verdict in failed if verdict.exercise not in report.unwritten]
    unexplained = [verdict.hints[0] for verdict in left if not verdict.mistakes and verdict.hints]
    remarks = [report.broken] if report.broken else _left(report)
    remarks += report.remarks
    remarks += unexplained[:1] if not mistakes else []
    score = 0 if report.broken else report.score
    return row._replace(
        score=number(score),
        maximum=number(maximum),
        passed="yes" if report.passed and number(score) == number(maximum) else "no",
        failed=cell("; ".join(verdict.check for verdict in failed)),
        mistakes=cell("; ".join(mistakes)),
        remarks=cell("; ".join(remarks)),
    )


def _left(report: Report) -> list[str]:
    """Why points are missing where nothing failed: what is not there, not implemented, or was not taken."""
    near = [
        f"not found: {one}{meant(report, one).removeprefix('not found')}"
        for one in report.missing
        if meant(report, one)
    ]
    absent = [one for one in report.missing if not meant(report, one)]
    waiting = [one for one in report.unwritten if one in report.found]
    said = {"not found": ", ".join(absent), "not implemented yet": ", ".join(waiting), "not taken": untaken(report)}
    return near + [f"{name}: {what}" for name, what in said.items() if what]


def _mistakes(failed: Sequence[Verdict]) -> list[str]:
    """The mistakes of a solution, each once: twins as one, and not at all where one of them is sure."""
    groups = dict.fromkeys(tuple(one.name for one in verdict.mistakes) for verdict in failed if verdict.mistakes)
    sure = {group[0] for group in groups if len(group) == 1}
    return [" or ".join(group) for group in groups if len(group) == 1 or not sure & set(group)]


def summary(rows: Sequence[Row]) -> Summary:
    """Return what a class did."""
    graded = [row for row in rows if row.graded]
    made = Counter(name for row in graded for name in set(row.mistakes.split("; ")) if name)
    means = [
        sum(map(float, points)) / len(graded) for points in zip(*((r.score, r.maximum) for r in graded), strict=True)
    ]
    score, maximum = means or (None, None)
    passed = sum(row.passed == "yes" for row in graded)
    ordered = dict(sorted(made.items(), key=lambda item: (-item[1], item[0])))
    return Summary(len(rows), len(graded), passed, score, maximum, ordered)


def as_csv(rows: Sequence[Row]) -> str:
    """Return the rows as CSV with a head.

    >>> as_csv([Row("a.py", score="3")]).splitlines()[1]
    'a.py,,,,,,3,,,,,'
    """
    stream = io.StringIO()
    csv.writer(stream, lineterminator="\n").writerows([Row._fields, *rows])
    return stream.getvalue()


def read_rows(path: PathLike) -> list[Row]:
    """Return the rows of a CSV file that `as_csv` made; empty lines, which an editor may leave, are none.

    Raises
    ------
    FileError
        It cannot be read, or is another table.
    """
    try:
        text = io.StringIO(read_text(path).removeprefix("\ufeff"), newline="")
        found = [line for line in csv.reader(text, strict=True) if any(part.strip() for part in line)]
    except csv.Error as error:
        raise _no_table(path, f"'{shown(error, 100)}'") from error
    if not found or tuple(found[0]) != Row._fields:
        raise _no_table(path, "another first line" if found else "nothing")
    if any(len(line) != len(Row._fields) for line in found[1:]):
        raise _no_table(path, "lines of other lengths")
    return [Row(*line) for line in found[1:]]


def _no_table(path: PathLike, got: str) -> FileError:
    expected = f"a table that headwise check wrote, with the columns {', '.join(Row._fields)}"
    return FileError(f"{shown(path, 1000)}: expected {expected}; got {got}; name another, or write anew by --force")
