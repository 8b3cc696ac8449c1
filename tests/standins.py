"""Stand-ins for grading: reports with hostile texts, small tables of checks and mistakes, a grade that reads marks."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headwise.check import checks, mistakes
from headwise.check.calls import Call, Result
from headwise.check.checks import Check
from headwise.check.mistakes import Mistake
from headwise.check.report import FAILED, PASSED, UNTAKEN, Named, Report, Verdict
from headwise.files import FileError, read_text, shown

HOSTILE = {
    "escapes": "\x1b[2J\x1b]0;owned\x07red",
    "script": "<script>alert('&amp;')</script>\"'",
    "cdata": "]]><failure/><![CDATA[",
    "nul": "a\x00b\x0bc\x7f\x85d",
    "surrogate": "half \ud800 pair",
    "noncharacter": "\ufffe\uffff",
    "table": "a | b `c` ``d`` \\ *e* _f_ [g](javascript:1) @someone #1",
    "fence": "```\n~~~\n````\n# head",
    "lines": "one\ntwo\r\nthree\u2028four",
    "long": "x" * 10_000,
    "many": "\n".join(map(str, range(10_000))),
    "bidi": "abc\u202edcba\u2066",
    "formula": '=HYPERLINK("http://x","y")',
    "inner": "a;=1+1;-2;@x;;+3",
    "dollars": "$x$ $$y$$ \\(z\\)",
}
"""Texts that a solution may print, raise or be called."""

RIGHT = Verdict("rows-sum", "softmax", "each row sums to 1", 2.0, PASSED, printed="fine\n", seconds=0.25)
WRONG = Verdict(
    "large-scores",
    "softmax",
    "large scores do not overflow",
    3.0,
    FAILED,
    ("out[0, 0]: expected 1, got nan", "look at what is given to exp", "softmax(x) = softmax(x - max(x))"),
    (Named("no-max", "Nothing is taken off before exp", "Take the maximum off."),),
    ("it is slow",),
    "debug 1\ndebug 2\n",
    0.5,
)
SKIPPED = Verdict("mask-hides", "attention", "a mask hides keys", 4.0, UNTAKEN)
TWINS = WRONG._replace(
    check="scaled", exercise="attention", mistakes=(Named("a", "b", "c"), Named("d", "e!", "f")), remarks=(), printed=""
)
REPORT = Report(
    "solution.py",
    7,
    (RIGHT, WRONG, SKIPPED, TWINS),
    {"softmax": "my_softmax", "attention": "sdpa"},
    {"layer": "MultiHeadSelfAttention, Layer"},
    ("cell 3 failed",),
    ("memory",),
    seconds=1.25,
)

ALL_RIGHT = (RIGHT, *(v._replace(status=PASSED, hints=(), mistakes=(), remarks=()) for v in (WRONG, TWINS)))
"""What a solution without a fault is told."""

WEIGHTS = {verdict.check: verdict.weight for verdict in (RIGHT, WRONG, TWINS)}
"""What the checks of these reports count, as `grade.weights` says it of the real ones."""


def hostile(text: str, broken: bool = False) -> Report:
    """A report in which everything that can come from a solution is this text; if broken, why it was not loaded too."""
    said = (f"expected 1, got {text}", text, text)
    wrong = Verdict("one", "softmax", text, 1.0, FAILED, said, (Named(text, text, text),), (text,), text, 0.1)
    verdicts = (wrong, wrong._replace(check="two", status=PASSED), wrong._replace(check="three", status=UNTAKEN))
    return Report(text, 0, verdicts, {"softmax": text}, {text: text}, (text,), (text,), text if broken else "", 0.1)


CALLS: dict[str, Callable[[Any], list[Call]]] = {
    "rows-sum": lambda rng: [Call("softmax", {"x": rng.normal(size=(2, 3)), "axis": -1})],
    "large": lambda rng: [Call("softmax", {"x": rng.normal(size=(40, 30)) * 1e4, "axis": -1})],
    "mask-hides": lambda rng: [
        Call("attention", {**{name: rng.normal(size=(1, 2, 2)) for name in "qkv"}, "mask": np.eye(2, dtype=bool)})
    ],
}


def judge(evidence: Any) -> list[str]:
    """Nothing to say."""
    return []


CHECKS = (
    Check(
        "rows-sum", "softmax", "each row sums to 1", 2.0, "the division", "sum softmax(x) = 1", CALLS["rows-sum"], judge
    ),
    Check("large-scores", "softmax", "large scores do not overflow", 3.0, "exp", "x - max(x)", CALLS["large"], judge),
    Check(
        "mask-hides",
        "attention",
        "a mask hides keys",
        4.0,
        "the mask",
        "softmax(where(...))",
        CALLS["mask-hides"],
        judge,
    ),
)
MISTAKES = (
    Mistake("no-max", ("softmax",), "Nothing is taken off before exp.", "Take the maximum off.", {}),
    Mistake("wrong-axis", ("softmax",), "It sums over the first axis.", "Sum over axis.", {}),
    Mistake("no-mask", ("attention",), "The mask is not used.", "Use it.", {}),
    Mistake("writes", ("softmax",), "It works in place.", "Work on a copy.", {}),
    Mistake("nowhere", ("causal_mask",), "It differs nowhere.", "Nothing.", {}),
)
EXERCISES = {
    "softmax": "positive weights that sum to 1",
    "attention": "weighted values",
    "causal_mask": "no token sees a later one",
    "multi_head": "heads",
    "layer": "heads with weights",
    "single_sequence": "attention without a batch",
}


def answer(mistake: Mistake | None, call: Call, params: Any = None) -> Result:
    """What a right implementation returns, or one that makes the mistake."""
    name = "" if mistake is None else mistake.name
    if call.function == "softmax":
        return _softmax(call.args["x"], 0 if name == "wrong-axis" else call.args["axis"], name)
    if call.function == "attention":
        return _attention(call.args, name)
    return Result(np.tril(np.ones((call.args["n"],) * 2, bool)))


def _softmax(x: Any, axis: int, name: str) -> Result:
    raised = np.exp(x if name == "no-max" else x - x.max(axis, keepdims=True))  # tests alone have a second softmax
    return Result(raised / raised.sum(axis, keepdims=True), changed=("x",) * (name == "writes"))


def _attention(args: dict[str, Any], name: str) -> Result:
    scores = args["q"] @ np.swapaxes(args["k"], -1, -2)
    if "mask" in args and name != "no-mask":
        scores = np.where(args["mask"], scores, -1e9)
    weights = _softmax(scores, -1, "").out
    assert weights is not None
    return Result(weights @ args["v"], weights)


def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put the small tables in place of the real ones."""
    monkeypatch.setattr(checks, "CHECKS", CHECKS)
    monkeypatch.setattr(checks, "EXERCISES", EXERCISES)
    monkeypatch.setattr(mistakes, "MISTAKES", MISTAKES)
    monkeypatch.setattr(mistakes, "answer", answer)


class Marker:
    """A grade that goes by the first word of a file, and remembers its calls."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, Any, int, dict[str, Any]]] = []

    def __call__(self, target: str, exercise: Any = None, seed: int = 0, **options: Any) -> Report:
        progress = options.pop("progress")
        self.calls.append((Path(target).name, exercise, seed, options))
        words = read_text(target).split()
        progress(1, 2)
        return self.graded(Path(target), words[0] if words else "", seed)

    def graded(self, path: Path, word: str, seed: int) -> Report:
        if word == "refuse":
            raise FileError(f"{shown(path, 1000)}: expected Python, got 'nothing'; write some")
        if word == "crash":
            raise RuntimeError(HOSTILE["escapes"])
        verdicts = {"right": ALL_RIGHT, "wrong": (RIGHT, WRONG), "twins": (RIGHT, WRONG, TWINS)}.get(word, (RIGHT,))
        broken = "SyntaxError: line 1" if word == "broken" else ""
        return Report(path.name, seed, verdicts, {"softmax": "softmax"}, {}, (), (), broken, 0.1)
