"""A report as text, Markdown and HTML, and the table of all formats.

Every text may have come from the solution, and is escaped for where it goes. Knows no check, and writes no file.
"""

import html as markup
import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

from headwise.check.machine import as_json, gradescope, junit
from headwise.check.report import FAILED, PASSED, UNTAKEN, Report, Verdict
from headwise.check.words import (
    WORDS,
    about,
    check_level,
    details,
    line,
    lines,
    mistakes_of,
    number,
    points,
    printed_of,
    remarks_of,
    shown_verdicts,
    to_do,
    untaken,
)
from headwise.files import shown

_LONG = 60  # characters of an error that need not be read twice
_ERROR = re.compile(r"(?<=: )\w+(: .*)? \(line \d+ of .*\)$")  # and where it was raised
_SHAPE = re.compile(r"\([\d, ]*\)")
HINTS = ("what failed", "where to look", "the formula")
_STYLE = (
    "body{max-width:60em;margin:2em auto;padding:0 1em;font-family:sans-serif;line-height:1.4}"
    ".hw-table{border-collapse:collapse}.hw-table td{padding:.2em .8em;text-align:left;vertical-align:top}"
    ".hw-table pre{white-space:pre-wrap;overflow-wrap:anywhere;margin:.2em 0}"
)


class Line(NamedTuple):
    """A line of the report as text.

    Attributes
    ----------
    text : str
        What stands there.
    hang : int
        By how many columns the rest is set in where the line is folded.
    kind : str
        ``"passed"``, ``"failed"``, ``"not taken"``, ``"remark"``, ``"mistake"``, or empty: what a colour may be for.
    """

    text: str
    hang: int = 4
    kind: str = ""


def text(report: Report, hints: int = 1) -> str:
    """Return a report as plain text, which is the same for the same findings: no times are in it.

    Parameters
    ----------
    report : Report
        What grading found.
    hints : int
        From 0 to 3: how much is given away of each failure. What failed, where to look, the formula; 0 gives
        neither hints nor the names of mistakes.

    Raises
    ------
    ValueError
        Another number of hints.
    """
    return "\n".join(one.text for one in text_lines(report, hints))


def text_lines(report: Report, hints: int = 1) -> list[Line]:
    """Return the lines of `text`, each with how it may be folded and coloured; parameters as of `text`."""
    check_level(hints)
    verdicts, waiting = shown_verdicts(report), to_do(report)
    size, wide = (
        max(map(len, names), default=0) for names in ([shown(v.check) for v in verdicts], [one for one, _ in waiting])
    )
    said = [Line(f"{line(report.target)}, seed {report.seed}")]
    said += [Line(f"{name}: {what}", kind=_KINDS.get(name, "")) for name, what in about(report)]
    told: set[str] = set()
    for verdict in verdicts:
        said += _verdict_lines(verdict, hints, size, told)
    said += [Line(f"{'to do':9}  {name:{wide}}  {what}", wide + 13, FAILED) for name, what in waiting]
    said += [Line(f"not taken: {why}", kind=UNTAKEN) for why in [untaken(report)] if why]
    said.append(Line(f"score: {points(report)}"))
    return said + [Line(f"next: implement {name}") for name, _ in waiting[:1]]


_KINDS = {"not loaded": FAILED, "refused": FAILED, "missing": FAILED, "remark": "remark"}


def _verdict_lines(verdict: Verdict, hints: int, size: int, told: set[str]) -> Iterator[Line]:
    first = f"{WORDS[verdict.status]:9}  {shown(verdict.check):{size}}  {line(verdict.claim)}".rstrip()
    if (again := _error_of(verdict, hints)) and again in told:
        yield Line(f"{first}: as above", size + 13, verdict.status)
        return
    told.add(again)
    yield Line(first, size + 13, verdict.status)
    for one in details(verdict, hints):
        kind = {"known mistake": "mistake", "remark": "remark"}.get(one.partition(":")[0], "")
        yield Line(f"    {_once(one, told)}", 8, kind)
    if verdict.status == FAILED:
        yield from (Line(f"    printed: {one}", 8) for one in printed_of(verdict)[:3])


def _error_of(verdict: Verdict, hints: int) -> str:
    """The error by which a check failed, with all else that is said of it; or nothing."""
    given = verdict.hints[:hints] if verdict.status == FAILED else ()
    error = _ERROR.search(line(given[0])) if given else None
    return "\n".join([_alike(error[0]), *mistakes_of(verdict, hints), *remarks_of(verdict)]) if error else ""


def _alike(error: str) -> str:
    """An error as it is compared: whatever shapes it names."""
    return _SHAPE.sub("()", error)


def _once(one: str, told: set[str]) -> str:
    """A known mistake, or what is in the way of all calls alike, is told where it comes first, and named again."""
    label, _, rest = one.partition(": ")
    if label == "failed" and rest.startswith("for "):
        where, _, why = rest.partition(": ")
        if len(why) > _LONG and why in told:
            return f"{label}: {where}: {why[:_LONG].rsplit(' ', 1)[0]} ..., as above"
        told.add(why)
        if error := _ERROR.search(rest):
            told.add(_alike(error[0]))
    elif label == "remark" and (error := _ERROR.search(one)) and _alike(error[0]) in told:
        return f"{one[: error.start()]}as above"
    elif label == "known mistake" and one in told:
        return f"{': '.join(one.split(': ')[:2])}, as above"
    told.add(one)
    return one


def markdown(report: Report, hints: int = 1) -> str:
    """Return a report as Markdown, for a comment on a pull request or a page; parameters as of `text`."""
    check_level(hints)
    head = [f"## {_plain(report.target)}: {points(report)}", ""]
    head += [f"- {name}: {_plain(what)}" for name, what in [("seed", str(report.seed)), *_whole(report)]]
    table = ["", "| check | result | points | claim |", "| --- | --- | ---: | --- |"]
    verdicts = shown_verdicts(report)
    table += [_markdown_row(report, verdict) for verdict in verdicts]
    parts = [part for verdict in verdicts for part in _markdown_part(verdict, hints)]
    return "\n".join(head + (table if verdicts else []) + parts) + "\n"


def _markdown_row(report: Report, verdict: Verdict) -> str:
    cells = (_plain(verdict.check), WORDS[verdict.status], _share(report, verdict), _plain(verdict.claim))
    return f"| {' | '.join(cells)} |"


def _markdown_part(verdict: Verdict, hints: int) -> list[str]:
    """What is said of one check, in a fence, where nothing is markup."""
    printed = ["printed:", *printed_of(verdict)] if verdict.status == FAILED and verdict.printed.strip("\n") else []
    held = details(verdict, hints) + printed
    if not held:
        return []
    longest = max((len(ticks) for ticks in re.findall("`+", "\n".join(held))), default=0)
    fence = "`" * max(3, longest + 1)
    return ["", f"### {_plain(verdict.check)}", "", f"{fence}text", *held, fence]


_MARKUP = re.compile(
    r"[\\`*\[\]|~$]"  # which act anywhere
    r"|(?<![^\W_])_|_(?![^\W_])"  # no emphasis begins or ends within a word
    r"|#(?=\w|\s*$)"  # an issue's number, and what would close a heading
    r"|:(?=//|\w)|(?<=www)\."  # a link without brackets, an emoji
)


def _plain(text: object) -> str:
    """A text within a line that Markdown takes as it is; a name after @ would call somebody."""
    signs = _MARKUP.sub(r"\\\g<0>", line(text))
    signs = re.sub(r"&(?=[#\w])", "&amp;", signs).replace("<", "&lt;").replace(">", "&gt;")
    return signs.replace("@", "@<!-- -->")


def _whole(report: Report) -> list[tuple[str, str]]:
    """What is said of the solution as a whole, and of what is not written yet."""
    waiting = to_do(report)
    said = [*about(report), *(("to do", f"{name}, {what}") for name, what in waiting)]
    said += [("not taken", why) for why in [untaken(report)] if why]
    return said + [("next", f"implement {name}") for name, _ in waiting[:1]]


def _share(report: Report, verdict: Verdict) -> str:
    """The points of a check, of those that it counts."""
    if not verdict.weight or not report.counts(verdict):
        return "-"
    return f"{number(verdict.weight if verdict.status == PASSED else 0)} of {number(verdict.weight)}"


def html(report: Report, hints: int = 1) -> str:
    """Return a report as a page of HTML that needs nothing else; parameters as of `text`. Hints are folded in."""
    title = markup.escape(line(report.target))
    head = f'<meta charset="utf-8"><title>{title}: {points(report)}</title><style>{_STYLE}</style>'
    return f"<!doctype html>\n<html lang=en><head>{head}</head>\n<body>\n{fragment(report, hints)}\n</body></html>\n"


def fragment(report: Report, hints: int = 3) -> str:
    """Return a report as HTML to be put into a page, such as a notebook; parameters as of `text`."""
    check_level(hints)
    whole = "".join(f"<li>{_safe(name)}: {_safe(what)}</li>" for name, what in _whole(report))
    rows = "\n".join(_html_row(report, verdict, hints) for verdict in shown_verdicts(report))
    return (  # the classes keep formulas between dollar signs from being typeset
        '<div class="hw-report tex2jax_ignore mathjax_ignore">\n'
        f"<p><strong>{_safe(report.target)}: {points(report)}</strong>, seed {report.seed}</p>\n"
        f'<ul>{whole}</ul>\n<table class="hw-table">\n{rows}\n</table>\n</div>'
    )


def _safe(text: object) -> str:
    return markup.escape(line(text))


def _html_row(report: Report, verdict: Verdict, hints: int) -> str:
    colour = {PASSED: "#1a7f37", FAILED: "#cf222e", UNTAKEN: "#6e7781"}[verdict.status]
    word = f'<td style="color:{colour}">{WORDS[verdict.status]}</td>'
    body = "".join(_html_folds(verdict, hints))
    share = f"<td>{_share(report, verdict)}</td>"
    return f"<tr>{word}<td><code>{_safe(verdict.check)}</code></td>{share}<td>{_safe(verdict.claim)}{body}</td></tr>"


def _html_folds(verdict: Verdict, hints: int) -> Iterator[str]:
    """Each hint in a fold of its own, of which the first is open."""
    given = verdict.hints[:hints] if verdict.status == FAILED else ()
    for i, (name, hint) in enumerate(zip(HINTS, given, strict=False)):
        yield _fold(name, lines(hint), opened=i == 0)
    if mistakes := mistakes_of(verdict, hints):
        yield _fold("known mistake", mistakes, opened=False)
    for remark in remarks_of(verdict):
        yield f"<p>{_safe(remark)}</p>"
    if verdict.printed.strip("\n"):
        yield _fold("printed", printed_of(verdict), opened=False)


def _fold(name: str, held: list[str], opened: bool) -> str:
    inside = "\n".join(markup.escape(one) for one in held)
    return f"<details{' open' * opened}><summary>{name}</summary><pre>{inside}</pre></details>"


FORMATS: dict[str, Callable[[Report, int], str]] = {
    "text": text,
    "json": as_json,
    "junit": junit,
    "gradescope": gradescope,
    "markdown": markdown,
    "html": html,
}
"""Name -> rendering."""
