"""What a report says, piece by piece, in short lines that nothing acts upon; knows no format, no check."""

from collections import Counter

from headwise.check.report import FAILED, PASSED, UNTAKEN, Report, Verdict
from headwise.files import listed, shown

LEVELS = (0, 1, 2, 3)
"""How many hints may be given."""

WORDS = {PASSED: "passed", FAILED: "FAILED", UNTAKEN: "not taken"}
"""A status as it is shown."""

LABELS = ("failed", "look", "formula")
"""What stands before each hint: what failed, with the numbers; where to look; the formula."""

_MOST_LINES, _LONGEST = 12, 400  # of one text of the solution, and of a line of it


def lines(text: object) -> list[str]:
    r"""Return a text as a few short lines that no terminal acts upon.

    >>> lines("one\n\x1b[2Jtwo")
    ['one', '\\x1b[2Jtwo']
    """
    found = str(text).splitlines()
    more = len(found) - _MOST_LINES
    return [line(one) for one in found[:_MOST_LINES]] + [f"... and {more} more lines"] * (more > 0)


def line(text: object) -> str:
    """Return a text as one short line."""
    return shown(text, _LONGEST)


def number(value: float) -> str:
    """Return points without needless zeros.

    >>> number(17.0), number(2.5)
    ('17', '2.5')
    """
    return f"{value:g}"


def points(report: Report) -> str:
    """Return the score in words: ``17 of 20``."""
    return f"{number(report.score)} of {number(report.maximum)}"


def check_level(hints: int) -> None:
    """Raise a ValueError where a number of hints is not one of LEVELS."""
    if isinstance(hints, bool) or hints not in LEVELS:
        raise ValueError(f"hints: expected 0, 1, 2 or 3, got {shown(hints)}; 0 gives none, 3 all of them")


def about(report: Report) -> list[tuple[str, str]]:
    """Return what is said of the solution as a whole, by name."""
    asked = set(map(function_of, report.asked)) or set(report.found)
    named = {function: name for function, name in report.found.items() if function in asked}
    found = ", ".join(f"{shown(function)} as {shown(name, 60)}" for function, name in named.items())
    loaded = "refused" if report.found else "not loaded"
    said = [(loaded, line(report.broken))] if report.broken else []
    said += [("found", found or "nothing")] if found or not report.broken else []
    sought = {one: f"looked for {line(names)}" for one, names in report.missing.items() if names}
    said += [("missing", f"{shown(one)}: {meant(report, one) or names}") for one, names in sought.items()]
    unasked = [exercise for exercise, names in report.missing.items() if not names]
    said += [("not graded", f"{one}: {meant(report, one)}") for one in unasked if meant(report, one)]
    if others := [one for one in unasked if not meant(report, one)]:
        said.append(
            ("not graded", f"{listed(others)}: not found under a known name (--function or functions= names it)")
        )
    said += [("remark", line(remark)) for remark in report.remarks]
    said += [("limits off", listed(report.limits_off))] if report.limits_off else []
    return said


def function_of(exercise: str) -> str:
    """Return the function that an exercise is about."""
    return "attention" if exercise == "single_sequence" else exercise


def meant(report: Report, exercise: str) -> str:
    """Return what the solution defines that may be meant by an exercise, and how to say so; empty where nothing is."""
    function = function_of(exercise)
    names = [shown(name, 60) for name in report.alike.get(function, ())]
    return f"not found; the file has {listed(names)}: --function {function}={names[0]}" if names else ""


def untaken(report: Report) -> str:
    """Return how many checks that have points were not taken, and why; empty where all were.

    >>> untaken(Report("a.py", 0, (), {}, {}))
    ''
    """
    left = [v for v in report.verdicts if v.status == UNTAKEN and v.weight and not report.broken]
    whys = Counter(line(v.remarks[0]).partition(";")[0] if v.remarks else "" for v in left)
    return ", and ".join(f"{n} {'check' if n == 1 else 'checks'}{why and f', {why}'}" for why, n in whys.items())


def shown_verdicts(report: Report) -> list[Verdict]:
    """Return the verdicts that say something of their own: not those of what is not written yet, or not loaded."""
    unwritten = report.unwritten
    return [] if report.broken else [v for v in report.verdicts if v.exercise not in unwritten]


def to_do(report: Report) -> list[tuple[str, str]]:
    """Return the functions that are not implemented yet, each with where it stopped; in the order of a starter.

    >>> to_do(Report("a.py", 0, (), {}, {}))
    []
    """
    return [] if report.broken else [(_called(report, name), _waiting(report, name)) for name in report.unwritten]


def _called(report: Report, exercise: str) -> str:
    return shown(report.found.get(exercise, exercise), 60)


def _waiting(report: Report, exercise: str) -> str:
    if exercise not in report.found:
        return meant(report, exercise) or "not defined yet"
    stopped = next(v.hints[0] for v in report.verdicts if v.exercise == exercise and v.unwritten and v.hints)
    return f"not implemented yet: {line(stopped[max(stopped.rfind('NotImplementedError'), 0) :])}"


def hints_of(verdict: Verdict, hints: int) -> list[str]:
    """Return the lines of the first hints of a failure, each after its label; what is not written has but one."""
    given = verdict.hints[: min(hints, 1) if verdict.unwritten else hints] if verdict.status == FAILED else ()
    return [one for label, hint in zip(LABELS, given, strict=False) for one in _labelled(label, hint)]


def _labelled(label: str, hint: str) -> list[str]:
    first, *more = lines(hint) or [""]
    return [f"{label}: {first}", *more]


def mistakes_of(verdict: Verdict, hints: int) -> list[str]:
    """Return the mistakes that explain a failure; none where no hint is to be given, as each comes with its fix."""
    named = verdict.mistakes if hints and verdict.status == FAILED else ()
    said = [
        f"known mistake: {shown(one.name)}: {_sentence(one.explanation)} fix: {_sentence(one.fix)}" for one in named
    ]
    if len(named) > 1:
        said.append(f"these {len(named)} are twins here: they give the same for these inputs; look for each")
    return said


def _sentence(text: str) -> str:
    text = line(text)
    return text if text.endswith((".", "!", "?", ":")) else f"{text}."


def remarks_of(verdict: Verdict) -> list[str]:
    """Return a line for each remark."""
    return [f"remark: {line(remark)}" for remark in verdict.remarks]


def printed_of(verdict: Verdict) -> list[str]:
    """Return what the solution printed."""
    return lines(verdict.printed.strip("\n"))


def details(verdict: Verdict, hints: int) -> list[str]:
    """Return all that is said under a check, but what it printed."""
    return hints_of(verdict, hints) + mistakes_of(verdict, hints) + remarks_of(verdict)
