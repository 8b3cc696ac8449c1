"""Results as rows, means and verdicts; draws nothing."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from headwise.bench.cases import GOALS, TABLES, Case
from headwise.bench.measure import Outcome, Result, Spread, Versus
from headwise.bench.peers import stands_in

TARGET_HEADS = ("cases", "peer", "target", "result")
_LEGEND = (
    "ratios: time of the peer / ours, median [quartiles] of the rounds; above 1 headwise is faster",
    "of roof: our operations a second on visible pairs, of those of one large A @ B in NumPy with as many threads",
    "extra: our peak beyond inputs and results; scores: what a matrix of all scores would take",
)
_PASSES = (
    "backward: that pass alone, 10 d operations a visible pair; both: forward and backward, 14 d",
    "extra, of gradients: that of both passes, whichever are timed",
)
_SERVING = (
    "of roof, of a layer: its products with weights count too; of packed sequences: padding does not",
    "extra, of prefill: the cache is there before; scores: those of the last chunk, of packed sequences as if padded",
)
LEGENDS = {"forward": _LEGEND, "backward": _LEGEND + _PASSES, "serving": _LEGEND + _SERVING}


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
    peer: str  # or "memory", which is ours
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
    cells = [_ratio(met[name]) if name in met else _nothing(result.case, name) for name in names]
    taken = _digits(result.seconds.median * 1e3)
    return [result.case.name, taken, *cells, f"{result.share:.0%}", _extra(result), _mib(result.scores_bytes)]


def _nothing(case: Case, peer: str) -> str:
    """What stands where a peer is not compared: a sign where it cannot be."""
    return "" if stands_in(peer, case.table) else "-"


def _extra(result: Result) -> str:
    if result.extra_bytes is None:
        return "unknown"
    missed = result.case.most_extra is not None and not _fits(result)
    return _mib(result.extra_bytes) + (f" missed {result.case.most_extra}" if missed else "")


def _fits(result: Result) -> bool:
    """Whether a case that has a target for its memory reached it; what is unknown did not."""
    aim, found = result.case.most_extra, result.extra_bytes
    return aim is not None and found is not None and found <= aim * 2**20


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
    """Return every target of what was measured: of the cases, summed up by group, then of the means, then of memory.

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
    return each + _mean_verdicts(results, whole) + _memory_verdicts(results)


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


def _memory_verdicts(results: Sequence[Result]) -> list[Verdict]:
    made = []
    for result in results:
        if (aim := result.case.most_extra) is not None:
            known, reached = result.extra_bytes is not None, _fits(result)
            found = f"{_extra(result).split()[0]} MiB, {'reached' if reached else 'missed'}" if known else "unknown"
            made.append(Verdict(result.case.name, "memory", f"extra <= {aim} MiB", reached, found))
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


def legend(results: Sequence[Result]) -> list[str]:
    """Return what the columns mean, of the tables in which any of these stands."""
    tables = _tables(results)
    lines = list(dict.fromkeys(line for table in tables for line in LEGENDS[table]))
    return lines + (["-: a peer that has no such thing"] if len(tables) > 1 else [])


def notes(outcome: Outcome, table: str) -> list[tuple[str, str]]:
    """Return peers and what each one was in a table."""
    said = {"forward": outcome.notes, "backward": outcome.gradients, "serving": outcome.serving}[table]
    return [(name, note) for name, note in said.items() if note]


def all_notes(outcome: Outcome) -> list[tuple[str, str]]:
    """Return the notes of the tables in which anything stands."""
    ends = {"forward": "", "backward": ", gradients", "serving": ", serving"}
    return [(name + ends[table], note) for table in _tables(outcome.results) for name, note in notes(outcome, table)]


def _tables(results: Sequence[Result]) -> list[str]:
    return [table for table in TABLES if any(result.case.table == table for result in results)]


def facts(outcome: Outcome, whole: Sequence[str]) -> dict[str, Any]:
    """Return everything as one object."""
    return {
        "conditions": outcome.conditions,
        "results": [result._asdict() | {"share": result.share} for result in outcome.results],
        "means": means(outcome.results),
        "targets": verdicts(outcome.results, whole),
        "peers": outcome.notes,
        "gradients": outcome.gradients,
        "serving": outcome.serving,
        "absent": outcome.absent,
    }
