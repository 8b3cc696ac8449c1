"""Results as rows, means and verdicts, and as a Markdown table between two markers of a page; draws nothing."""

import math
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from headwise.bench.cases import GOALS, Case
from headwise.bench.measure import BenchError, Outcome, Result, Spread, Versus
from headwise.files import FileError, PathLike, read_text, shown, write_text

TARGET_HEADS = ("cases", "peer", "target", "result")
BEGIN, END = "<!-- bench:begin -->", "<!-- bench:end -->"
LEGEND = (
    "ratios: time of the peer / ours, median [quartiles] of the rounds; above 1 headwise is faster",
    "of roof: our operations a second on visible pairs, of those of one large A @ B in NumPy with as many threads",
    "extra: our peak beyond inputs and output; scores: what a matrix of all scores would take",
)


class Mean(NamedTuple):
    """The geometric mean of a peer's ratios over a group, or a part of it."""

    group: str
    part: str
    peer: str
    ratio: float
    cases: int


class Verdict(NamedTuple):
    """A target, and whether it was reached."""

    what: str
    peer: str
    target: str
    reached: bool
    found: str


# ----------------------------------------------------------------------------------------------- rows
def peers_of(results: Sequence[Result]) -> list[str]:
    """Return the peers of any result, in order."""
    return list(dict.fromkeys(versus.peer for result in results for versus in result.peers))


def columns(results: Sequence[Result]) -> list[str]:
    """Return the heads of `rows`."""
    return ["case", "ours, ms", *peers_of(results), "of roof", "extra, MiB", "scores, MiB"]


def rows(results: Sequence[Result]) -> list[list[str]]:
    """Return a row of texts for each result."""
    names = peers_of(results)
    return [_row(result, names) for result in results]


def _row(result: Result, names: Sequence[str]) -> list[str]:
    met = {versus.peer: versus for versus in result.peers}
    cells = [_ratio(met[name]) if name in met else "" for name in names]
    extra = "unknown" if result.extra_bytes is None else _mib(result.extra_bytes)
    taken = _digits(result.seconds.median * 1e3)
    return [result.case.name, taken, *cells, f"{result.share:.0%}", extra, _mib(result.scores_bytes)]


def _ratio(versus: Versus) -> str:
    if versus.ratio is None:
        return "failed"
    missed = versus.target is not None and not reaches(versus.ratio.median, versus.target)
    return in_words(versus.ratio) + (f" missed {versus.target:g}" if missed else "")


def in_words(ratio: Spread) -> str:
    """Return a ratio as it is shown.

    >>> in_words(Spread(1.234, 1.2, 1.26))
    '1.23 [1.20-1.26]'
    """
    return f"{ratio.median:.2f} [{ratio.low:.2f}-{ratio.high:.2f}]"


def reaches(ratio: float, target: float) -> bool:
    """Whether a ratio reaches a target: as measured, not as shown."""
    return ratio >= target


def _digits(value: float) -> str:
    return f"{value:.3g}" if value < 1000 else f"{value:.0f}"


def _mib(size: int) -> str:
    return _digits(size / 2**20)


# -------------------------------------------------------------------------------------------- verdicts
def _ratios(results: Sequence[Result], group: str, part: str, peer: str) -> list[float]:
    inside = [result for result in results if result.case.group == group and part in ("all", result.case.part)]
    return [v.ratio.median for result in inside for v in result.peers if v.peer == peer and v.ratio is not None]


def means(results: Sequence[Result]) -> list[Mean]:
    """Return geometric means of every group and, where it has both, of its full and causal parts, for each peer."""
    made = []
    for group in dict.fromkeys(result.case.group for result in results):
        for part in ("all", "full", "causal"):
            for peer in peers_of(results):
                found, of_all = (_ratios(results, group, which, peer) for which in (part, "all"))
                if len(found) > 1 and (part == "all" or len(found) < len(of_all)):
                    mean = math.exp(sum(map(math.log, found)) / len(found))
                    made.append(Mean(group, part, peer, mean, len(found)))
    return made


def mean_table(results: Sequence[Result]) -> tuple[list[str], list[list[str]]]:
    """Return heads and rows: a row for each group and part, a column for each peer."""
    table: dict[tuple[str, str], dict[str, str]] = {}
    for mean in means(results):
        table.setdefault((mean.group, mean.part), {})[mean.peer] = f"{mean.ratio:.2f} ({mean.cases})"
    names = [name for name in peers_of(results) if any(name in cells for cells in table.values())]
    rows = [[group, part, *(cells.get(name, "") for name in names)] for (group, part), cells in table.items()]
    return ["group", "part", *names], rows


def verdicts(results: Sequence[Result], whole: Sequence[str]) -> list[Verdict]:
    """Return every target of what was measured: those of the cases, summed up by group, then those of the means.

    Parameters
    ----------
    results : sequence of Result
        What was measured.
    whole : sequence of str
        The groups of which every case was selected: a mean over some of them is not held against its target.
    """
    made: dict[tuple[str, str, float], list[tuple[Case, float]]] = {}
    for result in results:
        for v in result.peers:
            if v.target is not None and v.ratio is not None:
                made.setdefault((result.case.group, v.peer, v.target), []).append((result.case, v.ratio.median))
    each = [_each(group, peer, target, found) for (group, peer, target), found in made.items()]
    return each + _mean_verdicts(results, whole)


def _each(group: str, peer: str, target: float, found: Sequence[tuple[Case, float]]) -> Verdict:
    missed = [f"{case.name} {ratio:.3g}" for case, ratio in found if not reaches(ratio, target)]
    if len(found) == 1:
        case, ratio = found[0]
        return Verdict(case.name, peer, f">= {target:g}", not missed, _judged(ratio, not missed))
    text = f"{len(found) - len(missed)} of {len(found)} reached"
    text += f"; missed: {', '.join(missed)}" if missed else ""
    parts = {case.part for case, _ in found}
    what = group if len(parts) > 1 else f"{group}, {found[0][0].part}"
    return Verdict(what, peer, f"each >= {target:g}", not missed, text)


def _judged(ratio: float, reached: bool) -> str:
    return f"{ratio:.3g}, {'reached' if reached else 'missed'}"


def _mean_verdicts(results: Sequence[Result], whole: Sequence[str]) -> list[Verdict]:
    found = {(mean.group, mean.part, mean.peer): mean for mean in means(results)}
    made = []
    for goal in GOALS:
        mean = found.get((goal.group, goal.part, goal.peer))
        if mean is not None and goal.group in whole:
            what = goal.group if goal.part == "all" else f"{goal.group}, {goal.part}"
            reached = reaches(mean.ratio, goal.at_least)
            target = f"geometric mean >= {goal.at_least:g}"
            made.append(Verdict(what, goal.peer, target, reached, _judged(mean.ratio, reached)))
    return made


def target_rows(judged: Sequence[Verdict]) -> list[list[str]]:
    """Return a row for each verdict: cases, peer, target, result."""
    return [[one.what, one.peer, one.target, one.found] for one in judged]


def failures(outcome: Outcome) -> list[tuple[str, str]]:
    """Return "case, peer" and why, of each that was to be measured and was not."""
    return [
        (f"{result.case.name}, {versus.peer}", versus.error)
        for result in outcome.results
        for versus in result.peers
        if versus.ratio is None
    ]


def facts(outcome: Outcome, whole: Sequence[str]) -> dict[str, Any]:
    """Return everything as one object."""
    return {
        "conditions": outcome.conditions,
        "results": [result._asdict() | {"share": result.share} for result in outcome.results],
        "means": means(outcome.results),
        "targets": verdicts(outcome.results, whole),
        "peers": outcome.notes,
        "absent": outcome.absent,
    }


# -------------------------------------------------------------------------------------------- Markdown
def _markdown_table(heads: Sequence[str], lines: Sequence[Sequence[str]], side: str = "---:") -> list[str]:
    """A table whose columns after the first stand to a side: the right one unless told otherwise."""
    texts = [[shown(cell, 1000).replace("|", "\\|") for cell in line] for line in lines]
    rule = ["---", *[side] * (len(heads) - 1)]
    return [f"| {' | '.join(line)} |" for line in (heads, rule, *texts)]


def markdown(outcome: Outcome, whole: Sequence[str]) -> list[str]:
    """Return the lines that stand between the markers."""
    results = outcome.results
    lines = [*_markdown_table(columns(results), rows(results)), ""]
    heads, table = mean_table(results)
    if table:
        lines += ["Geometric means (of so many cases):", "", *_markdown_table(heads, table), ""]
    if judged := verdicts(results, whole):
        lines += ["Targets:", "", *_markdown_table(TARGET_HEADS, target_rows(judged), "---"), ""]
    lines += [f"- {text}" for text in LEGEND]
    lines += [f"- {name}: {value}" for name, value in outcome.conditions.facts()]
    lines += [f"- {name}: {note}" for name, note in outcome.notes.items() if note]
    return lines + [f"- {name}: not installed, {install}" for name, install in outcome.absent.items()]


def splice(text: str, lines: Sequence[str], where: str) -> str:
    """Return a page with lines between its markers, all else as it was, and its own line ends.

    Raises
    ------
    FileError
        If the markers are not there, once each, in order, each on a line of its own.

    Examples
    --------
    >>> splice("a\\n<!-- bench:begin -->\\nold\\n<!-- bench:end -->\\nb", ["new"], "page.md").splitlines()
    ['a', '<!-- bench:begin -->', 'new', '<!-- bench:end -->', 'b']
    """
    begins, ends = ([*re.finditer(rf"^{re.escape(mark)}(?=\r?$)", text, re.MULTILINE)] for mark in (BEGIN, END))
    if len(begins) != 1 or len(ends) != 1 or begins[0].end() > ends[0].start():
        got = f"{len(begins)} and {len(ends)} of them" if len(begins) + len(ends) != 2 else "another order"
        raise FileError(
            f"{where}: expected the lines {BEGIN} and {END}, once each, got {got}; put them where the table is to be"
        )
    newline = "\r\n" if text[begins[0].end() :].startswith("\r\n") else "\n"
    inside = "".join(f"{newline}{line}" for line in lines)
    return text[: begins[0].end()] + inside + newline + text[ends[0].start() :]


def check_page(path: PathLike) -> None:
    """Raise a FileError where `write_page` could not write, before the work whose result it is to write."""
    splice(read_text(path), [], shown(path, 1000))


def write_page(path: PathLike, outcome: Outcome, whole: Sequence[str]) -> None:
    """Write the tables between the markers of a page, whole or not at all.

    Raises
    ------
    BenchError
        If a peer was not measured on a case on which it was to be.
    FileError
        If the page has no markers, or cannot be read or replaced.
    """
    for which, why in failures(outcome):
        expected = f"every case measured, got none for {which}: {why}"
        raise BenchError(f"{shown(path, 1000)}: expected {expected}; nothing is written")
    write_text(path, splice(read_text(path), markdown(outcome, whole), shown(path, 1000)))
