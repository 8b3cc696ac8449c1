"""A report for machines: JSON, JUnit XML, Gradescope's results, texts escaped; knows no check, writes no file."""

import json
from collections.abc import Callable
from typing import Any
from xml.etree import ElementTree as Tree  # written only: nothing is ever parsed

from headwise.check.report import FAILED, PASSED, UNTAKEN, Report, Verdict
from headwise.check.words import about, check_level, details, line, lines, points, printed_of
from headwise.files import shown


def facts(report: Report, hints: int = 1) -> dict[str, Any]:
    """Return a report as plain values for JSON; parameters as of `text`."""
    check_level(hints)
    return {
        "target": line(report.target),
        "seed": report.seed,
        "passed": report.passed,
        "score": report.score,
        "maximum": report.maximum,
        "broken": line(report.broken),
        "asked": [shown(exercise) for exercise in report.asked],
        "found": {shown(function): shown(name) for function, name in report.found.items()},
        "missing": {shown(exercise): line(names) for exercise, names in report.missing.items()},
        "remarks": [line(remark) for remark in report.remarks],
        "limits_off": [line(limit) for limit in report.limits_off],
        "seconds": report.seconds,
        "checks": [_check_facts(verdict, hints) for verdict in report.verdicts],
    }


def _check_facts(verdict: Verdict, hints: int) -> dict[str, Any]:
    named = verdict.mistakes if hints and verdict.status == FAILED else ()
    return {
        "name": shown(verdict.check),
        "exercise": shown(verdict.exercise),
        "claim": line(verdict.claim),
        "weight": verdict.weight,
        "status": verdict.status,
        "unwritten": verdict.unwritten,
        "hints": ["\n".join(lines(hint)) for hint in verdict.hints[:hints]],
        "mistakes": [{field: line(value) for field, value in one._asdict().items()} for one in named],
        "remarks": [line(remark) for remark in verdict.remarks],
        "printed": "\n".join(printed_of(verdict)),
        "seconds": verdict.seconds,
    }


def as_json(report: Report, hints: int = 1) -> str:
    """Return `facts` as one JSON object."""
    return json.dumps(facts(report, hints), indent=2)


def gradescope(report: Report, hints: int = 1) -> str:
    """Return a report as Gradescope's ``results.json``; parameters as of `text`.

    A check that was not taken has neither points nor a status there: it is shown and does not count, but where
    exercises were asked for, whose checks all count.
    """
    check_level(hints)
    whole = "\n".join(f"{name}: {what}" for name, what in about(report))
    results = {
        "score": report.score,
        "execution_time": round(report.seconds, 3),
        "output": f"{line(report.target)}, seed {report.seed}\nscore: {points(report)}\n{whole}",
        "output_format": "text",
        "test_output_format": "text",
        "test_name_format": "text",
        "visibility": "visible",
        "tests": [_gradescope_test(report, verdict, hints) for verdict in report.verdicts],
    }
    return json.dumps(results, indent=2)


def _gradescope_test(report: Report, verdict: Verdict, hints: int) -> dict[str, Any]:
    printed = ["printed:", *printed_of(verdict)] if verdict.printed.strip("\n") else []
    counts = report.counts(verdict)
    untaken = "not taken: it earns nothing" if counts and verdict.weight else "not taken: it does not count"
    said = [line(verdict.claim), *[untaken] * (verdict.status == UNTAKEN)]
    test = {
        "name": f"{shown(verdict.exercise)}: {shown(verdict.check)}",
        "output": "\n".join(said + details(verdict, hints) + printed),
        "output_format": "text",
        "visibility": "visible",
    }
    if not counts:
        return test
    passed = verdict.status == PASSED or not verdict.weight
    got = verdict.weight if passed else 0.0
    return test | {"score": got, "max_score": verdict.weight, "status": PASSED if passed else FAILED}


def junit(report: Report, hints: int = 1) -> str:
    """Return a report as JUnit XML, as Surefire writes it and Jenkins reads it; parameters as of `text`.

    An exercise is a suite. A check that was not taken is skipped. A solution that could not be loaded is one error, in
    a suite of its own.
    """
    check_level(hints)
    verdicts = [] if report.broken else report.verdicts
    failed = sum(verdict.status == FAILED for verdict in verdicts)
    unloaded = bool(report.broken)
    attributes = {"tests": len(verdicts) + unloaded, "failures": failed, "errors": int(unloaded)}
    root = _element("testsuites", name="headwise check", **attributes, time=_seconds(report.seconds))
    for exercise in dict.fromkeys(verdict.exercise for verdict in verdicts):
        of_it = [verdict for verdict in verdicts if verdict.exercise == exercise]
        root.append(_suite(report, shown(exercise), of_it, hints))
    if unloaded:
        root.append(_unloaded(report))
    Tree.indent(root)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{Tree.tostring(root, encoding="unicode")}\n'


def _element(tag: str, inside: str | None = None, /, **attributes: object) -> Tree.Element:
    made = Tree.Element(tag, {key: str(value) for key, value in attributes.items()})
    made.text = inside
    return made


def _seconds(value: float) -> str:
    return f"{value:.3f}"


def _suite(report: Report, exercise: str, verdicts: list[Verdict], hints: int) -> Tree.Element:
    counts: dict[str, Callable[[Verdict], bool]] = {
        "failures": lambda verdict: verdict.status == FAILED,
        "skipped": lambda verdict: verdict.status == UNTAKEN,
    }
    counted = {name: sum(map(test, verdicts)) for name, test in counts.items()}
    taken = _seconds(sum(verdict.seconds for verdict in verdicts))
    suite = _element("testsuite", name=exercise, tests=len(verdicts), errors=0, **counted, time=taken)
    suite.append(_properties(report))
    suite.extend(_case(verdict, hints) for verdict in verdicts)
    return suite


def _properties(report: Report) -> Tree.Element:
    said = [("target", line(report.target)), ("seed", str(report.seed)), ("score", points(report)), *about(report)]
    made = _element("properties")
    made.extend(_element("property", name=name, value=value) for name, value in said)
    return made


def _case(verdict: Verdict, hints: int) -> Tree.Element:
    name, exercise = shown(verdict.check), shown(verdict.exercise)
    case = _element("testcase", name=name, classname=f"headwise.{exercise}", time=_seconds(verdict.seconds))
    said_of = details(verdict, hints)
    if verdict.status == FAILED:
        kind = verdict.mistakes[0].name if verdict.mistakes and hints else "failed"
        said = "\n".join([line(verdict.claim), *said_of])
        message = lines(verdict.hints[0])[:1] if hints and verdict.hints else said_of[:1]
        case.append(_element("failure", said, message=(message or [line(verdict.claim)])[0], type=shown(kind)))
    elif verdict.status == UNTAKEN:
        case.append(_element("skipped", f"not taken: {line(verdict.claim)}"))  # some schemas allow it no attribute
    output = ([] if verdict.status == FAILED else said_of) + printed_of(verdict)
    if output:
        case.append(_element("system-out", "\n".join(output)))
    return case


def _unloaded(report: Report) -> Tree.Element:
    suite = _element("testsuite", name="load", tests=1, failures=0, errors=1, skipped=0, time=_seconds(report.seconds))
    suite.append(_properties(report))
    case = _element("testcase", name="load", classname="headwise.load", time=_seconds(report.seconds))
    case.append(_element("error", line(report.broken), message=line(report.broken), type="not loaded"))
    suite.append(case)
    return suite
