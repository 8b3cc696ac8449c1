"""Put a case to an adapter and judge what comes back. `decided.py` has the last word where a case leaves a choice."""

import re
from typing import Any, NamedTuple

import numpy as np

import headwise as hw
from reported.adapter import Waiting
from reported.case import Arrays, Case, close, fresh
from reported.decided import DECIDED

ERRORS = ("ValueError", "TypeError")


class Outcome(NamedTuple):
    """How a case ended."""

    status: str  # "pass", "fail" or "waits"
    message: str = ""


def run_case(case: Case, adapter: Any) -> Outcome:
    """Run one case; whatever goes wrong is an outcome."""
    try:
        got = case.run(adapter) if case.run else getattr(adapter, case.op)(**fresh(case))
    except Waiting as reason:
        return Outcome("waits", str(reason))
    except Exception as error:
        return judge_error(case, error)
    return judge_result(case, got)


def answer(case: Case) -> str:
    """What is asked for: "value", the label of an alternative, or the name of an error."""
    return DECIDED[case.id][0] if case.id in DECIDED else "value"


def judge_error(case: Case, error: Exception) -> Outcome:
    """An error is right where it was asked for, is exactly of that class, and speaks for headwise."""
    asked = answer(case)
    if type(error).__name__ != asked:
        return Outcome("fail", f"raised {error!r}; asked for: {asked}")
    if not names_a_function(str(error)):
        return Outcome("fail", f"the text does not begin with a function of headwise: {error!r}")
    return Outcome("pass")


def names_a_function(text: str) -> bool:
    """Whether an error's text begins with a function (or class) of headwise and a colon."""
    name = re.match(r"(\w+(?:\.\w+)*): ", text)
    found: Any = hw
    for part in name[1].split(".") if name else ["no name"]:
        found = getattr(found, part, None)
    return callable(found)


def judge_result(case: Case, got: Any) -> Outcome:
    """A result is right where it was asked for, fits what is expected and passes the check."""
    asked = answer(case)
    if asked in ERRORS:
        return Outcome("fail", f"returned a result; asked for: {asked}")
    if case.op == "scenario":
        return Outcome("pass") if got else Outcome("fail", "the property does not hold")
    if case.check is not None and not case.check(got, case.inputs):
        return Outcome("fail", f"the check does not hold: {got}")
    difference = mismatch(case, got, case.expected if asked == "value" else case.alternatives[asked])
    return Outcome("fail", difference) if difference else Outcome("pass")


def mismatch(case: Case, got: Arrays, expected: Arrays) -> str:
    """The first output that differs from what is expected, in words; empty if none does."""
    for name, right in expected.items():
        if name not in got:
            return f"no output {name!r}"
        listed = isinstance(right, list)
        pairs = zip(got[name], right, strict=False) if listed else [(got[name], right)]
        if listed and len(got[name]) != len(right):
            return f"{name}: {len(got[name])} outputs, expected {len(right)}"
        for ours, theirs in pairs:
            if not close(ours, theirs, case.rtol, case.atol):
                return f"{name} = {np.asarray(ours).tolist()}, expected {np.asarray(theirs).tolist()}"
    return ""
