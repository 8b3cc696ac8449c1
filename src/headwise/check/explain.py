"""One check or one mistake, taught: what, why, and numbers of a small example, which are computed; draws no table."""

import re
import textwrap
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from itertools import chain, zip_longest
from typing import Any

import numpy as np

from headwise.check import checks, mistakes
from headwise.check.calls import ROLES, Call, Result, same
from headwise.check.checks import Check
from headwise.check.mistakes import Mistake
from headwise.core.shapes import Array
from headwise.files import listed, shown

_MOST_NUMBERS = 64  # of a call that is shown as it is
_FUNCTION = {"single_sequence": "attention"}  # exercise -> what it is about, where it is not called so
_FIELDS = ("out", "weights")
_LARGE = 30  # from which on exp of a number is nothing that is worked out by hand
_WIDTH = 100  # columns
_SEEN = (
    "It has no numbers of its own: the checks see it from how far a result is off, from what a call wrote to, from an "
    "error, or from the weights of a layer."
)


# ------------------------------------------------------------------------------------------- catalogue
def exercise_rows() -> list[tuple[str, str]]:
    """Return a row for each exercise: name, and what is asked for."""
    return list(checks.EXERCISES.items())


def check_rows() -> list[tuple[str, str, float, str]]:
    """Return a row for each check: name, exercise, weight, claim."""
    return [(check.name, check.exercise, check.weight, check.claim) for check in checks.CHECKS]


def mistake_rows() -> list[tuple[str, str, str]]:
    """Return a row for each mistake: name, exercises, explanation."""
    return [(mistake.name, ", ".join(mistake.exercises), mistake.explanation) for mistake in mistakes.MISTAKES]


def close(name: str, names: Sequence[str]) -> str:
    """Return a sentence on a name that is not among others: those that are close, else all of them.

    >>> close("sofmax", ["softmax", "layer"]), close("x", ["softmax", "layer"])
    ('did you mean softmax?', 'there are softmax, layer.')
    """
    found = get_close_matches(name, list(names), n=3, cutoff=0.5)
    return f"did you mean {' or '.join(found)}?" if found else f"there are {listed(names, 8)}."


# --------------------------------------------------------------------------------------------- teaching
def explain(name: str, width: int = _WIDTH) -> str:
    """Return what a check claims or a mistake does, with an example.

    Parameters
    ----------
    name : str
        Of a check, a mistake, or both; of several, with `` + `` or `` or `` between them, as reports name mistakes that
        are made together and twins. Capitals, hyphens, underscores and spaces make no difference.
    width : int
        Columns at which texts are folded.

    Raises
    ------
    ValueError
        There is neither; close names are given.
    """
    asked = dict.fromkeys(part for whole in _parts(name) for part in whole)
    return "\n\n".join(_taught(one, width) for one in asked)


def _parts(name: str) -> list[list[str]]:
    """The names in a name: no name has `` + `` or `` or `` in it."""
    return [[one.strip() for one in part.split(" + ")] for part in name.split(" or ")]


def _same(name: str) -> str:
    """A name as it is compared."""
    return " ".join(re.split(r"[\s_-]+", name.strip().casefold()))


def _taught(name: str, width: int) -> str:
    parts = [_check_text(check, width) for check in checks.CHECKS if _same(check.name) == _same(name)]
    parts += [_mistake_text(mistake, width) for mistake in mistakes.MISTAKES if _same(mistake.name) == _same(name)]
    if not parts:
        names = [*(check.name for check in checks.CHECKS), *(mistake.name for mistake in mistakes.MISTAKES)]
        expected = f"expected the name of a check or a mistake, got '{shown(name, 60)}'"
        raise ValueError(f"{expected}; {close(name, names)} See headwise check --list")
    return "\n\n".join(parts)


def _check_text(check: Check, width: int) -> str:
    calls = _calls(check)
    said = [
        f"check {shown(check.name)}, of the exercise {shown(check.exercise)}, weight {check.weight:g}",
        *_folded("claim    ", check.claim, width),
        *_folded("matters  ", _worth(check, calls), width),
        *_folded("look     ", check.look, width),
        *_folded("formula  ", check.formula, width),
        *_folded("inputs   ", _inputs(calls), width),
    ]
    call = _example(check.exercise, calls)
    if call is not None:
        right = _answer(None, call)
        said += [
            "",
            f"example of a call of {call.function}",
            *_arguments(call),
            "",
            "the right answer",
            *_indented(_result(right)),
        ]
    return "\n".join(said)


def _worth(check: Check, calls: Sequence[Call]) -> str:
    """Which mistakes a check sees: those that answer one of its calls otherwise."""
    of_it = [one for one in mistakes.MISTAKES if check.exercise in one.exercises and one.detect is None]
    seen = [one.name for one in of_it if any(_differ(_answer(None, call), _answer(one, call)) for call in calls)]
    return (
        f"solutions that make these mistakes give other numbers here: {listed(seen, 12)}"
        if seen
        else checks.EXERCISES.get(check.exercise, "")
    )


def _inputs(calls: Sequence[Call]) -> str:
    """The calls of a check, each by the shapes of its arguments."""
    words = [
        f"{call.function}({', '.join(_short(role, value) for role, value in call.args.items())})" for call in calls
    ]
    return "; ".join(dict.fromkeys(words)) or "none"


def _short(role: str, value: Any) -> str:
    return f"{role} {value.shape} {value.dtype}" if isinstance(value, np.ndarray) else f"{role}={shown(value, 60)}"


def _mistake_text(mistake: Mistake, width: int) -> str:
    said = [
        f"mistake {shown(mistake.name)}, made in {listed(mistake.exercises)}",
        *_folded("", mistake.explanation, width),
        *_folded("fix: ", mistake.fix, width),
    ]
    if mistake.detect is not None:
        return "\n".join([*said, "", *_folded("", _SEEN, width)])
    for numbers in (True, False):  # of numbers more is learnt than of an error
        for call in chain.from_iterable(map(_examples, mistake.exercises)):
            right, wrong = _answer(None, call), _answer(mistake, call)
            if _differ(right, wrong) and not (numbers and wrong.error):
                example = [f"example of a call of {call.function}", *_arguments(call)]
                return "\n".join([*said, "", *example, "", *_beside(right, wrong)])
    return "\n".join([*said, "", "no example here is small enough to show it"])


def _folded(name: str, text: str, width: int) -> list[str]:
    """A text after its name, on lines that a terminal shows whole."""
    hang = " " * len(name)
    return textwrap.wrap(
        text, max(width, 2 * len(name)), initial_indent=name, subsequent_indent=hang, break_on_hyphens=False
    )


# --------------------------------------------------------------------------------------------- examples
def _calls(check: Check) -> list[Call]:
    return list(check.calls(np.random.default_rng(0)))


def _size(call: Call) -> int:
    return sum(value.size for value in call.args.values() if isinstance(value, np.ndarray))


def _smallest(calls: Sequence[Call]) -> list[Call]:
    """The calls that are small enough to be shown, the smallest first."""
    return sorted((call for call in calls if not call.again and _size(call) <= _MOST_NUMBERS), key=_size)


def _example(exercise: str, calls: Sequence[Call]) -> Call | None:
    """A call to show a check by: of its own, or a tiny one that is most like them."""
    seen = set().union(*map(_traits, calls))
    own = [call for call in _smallest(calls) if _is_large(call) or "large numbers" not in seen]
    return next(chain(own, sorted(_tiny(exercise), key=lambda call: len(seen ^ _traits(call)))), None)


def _is_large(call: Call) -> bool:
    """Whether a call has large numbers, which others of the same check may be compared with."""
    return "large numbers" in _traits(call)


def _traits(call: Call) -> set[str]:
    """What is special about a call: its roles, a NaN, large numbers, a query without keys."""
    traits = set(call.args)
    arrays = [value for value in call.args.values() if isinstance(value, np.ndarray)]
    if any(array.dtype.kind == "f" and np.isnan(array).any() for array in arrays):
        traits.add("a NaN")
    if any(np.abs(array[np.isfinite(array)]).max(initial=0) > _LARGE for array in arrays if array.dtype.kind == "f"):
        traits.add("large numbers")
    mask = call.args.get("mask")
    if isinstance(mask, np.ndarray) and mask.size and not mask.any(axis=-1).all():
        traits.add("a query without keys")
    return traits


def _examples(exercise: str) -> Iterator[Call]:
    """Calls that may show a mistake: tiny ones, then those of the checks."""
    yield from _tiny(exercise)
    yield from _smallest([call for check in checks.CHECKS if check.exercise == exercise for call in _calls(check)])


def _tiny(exercise: str) -> list[Call]:
    """Small calls of an exercise's function, the simplest first, with numbers to follow by hand."""
    function = _FUNCTION.get(exercise, exercise)
    return [Call(function, args) for args in _tiny_args(function, batch=exercise != "single_sequence")]


def _tiny_args(function: str, batch: bool) -> list[dict[str, Any]]:
    if function == "softmax":
        rows = np.array([[0.0, 1.0, 2.0], [3.0, 1.0, 1.0]])
        return [{"x": rows, "axis": -1}, {"x": rows, "axis": 0}, {"x": rows * 1000, "axis": -1}]
    if function == "causal_mask":
        return [{"n": 3}]
    if function == "attention":
        return _tiny_attention(batch)
    if function in ("multi_head", "layer"):
        return _tiny_layers(function)
    return []


def _tiny_attention(batch: bool) -> list[dict[str, Any]]:
    q, k = np.array([[1.0, 0.0], [0.0, 2.0]]), np.array([[1.0, 1.0], [0.0, 2.0], [3.0, 0.0]])
    v, mask = np.array([[1.0, 0.0], [0.0, 1.0], [2.0, 2.0]]), np.array([[True, False, True], [True, True, False]])
    plain = {"q": q, "k": k, "v": v}
    if batch:
        plain = {name: array[None] for name, array in plain.items()}
    blind = np.array([[True, False, True], [False, False, False]])
    spoilt = np.where([[False], [True], [False]], np.nan, plain["v"])  # of a key that no query may see
    made = [plain, {**plain, "mask": mask}, {**plain, "q": plain["q"] * 1000}, {**plain, "mask": blind}]
    made.append({**plain, "v": spoilt, "mask": np.array([[True, False, True], [True, False, True]])})
    two = {name: np.concatenate([array, array[:, ::-1] + 1]) for name, array in plain.items()} if batch else plain
    return [*made, two]


def _tiny_layers(function: str) -> list[dict[str, Any]]:
    x = np.array([[[1.0, 0.0, 2.0, 0.0], [0.0, 1.0, 0.0, 1.0], [1.0, 1.0, 0.0, 0.0]]])
    draws = np.random.default_rng(0).integers(-1, 2, (4, 4, 4)).astype(np.float64)
    weights = dict(zip(ROLES["multi_head"][1:5], draws, strict=True))
    made = (
        {"x": x, **weights, "n_heads": 2}
        if function == "multi_head"
        else {"d_model": 4, "n_heads": 2, "seed": 0, "x": x}
    )
    large = {**made, "x": x * 1000, "causal": False}
    return [{**made, "causal": False}, {**made, "causal": True}, large, {**large, "causal": True}]


# ---------------------------------------------------------------------------------------------- answers
def _answer(mistake: Mistake | None, call: Call) -> Result:
    """What an implementation gives for a call, on copies; what it raises is its answer too."""
    args = {role: value.copy() if isinstance(value, np.ndarray) else value for role, value in call.args.items()}
    try:
        with np.errstate(all="ignore"):
            return mistakes.answer(mistake, call._replace(args=args))
    except Exception as error:  # a wrong implementation may raise whatever it likes
        return Result(error=f"{type(error).__name__}: {error}")


def _differ(right: Result, wrong: Result) -> bool:
    if (right.error, right.changed) != (wrong.error, wrong.changed):
        return True
    return not all(_alike(getattr(right, name), getattr(wrong, name)) for name in _FIELDS)


def _alike(a: Array | None, b: Array | None) -> bool:
    return same(a, b) and (a is None or b is None or a.dtype == b.dtype)


def _arguments(call: Call) -> list[str]:
    return _indented(line for role, value in call.args.items() for line in _value(role, value))


def _value(name: str, value: Any) -> list[str]:
    if not isinstance(value, np.ndarray):
        return [f"{name} = {shown(value)}"]
    drawn = np.array2string(value, precision=4, suppress_small=True, max_line_width=60, threshold=100)
    return [f"{name} {value.shape} {value.dtype}", *drawn.splitlines()]


def _result(result: Result) -> list[str]:
    said = [f"raises {shown(result.error)}"] if result.error else []
    said += [f"writes to {listed(result.changed)}"] if result.changed else []
    for name in _FIELDS:
        if (array := getattr(result, name)) is not None:
            said += _value(name, array)
    return said or ["nothing"]


def _beside(right: Result, wrong: Result) -> list[str]:
    """Both answers, side by side."""
    left = ["right", *_result(right)]
    size = max(map(len, left)) + 4
    both = zip_longest(left, ["with this mistake", *_result(wrong)], fillvalue="")
    return _indented(f"{one:{size}}{other}".rstrip() for one, other in both)


def _indented(texts: Iterator[str] | Sequence[str]) -> list[str]:
    return [f"  {text}" for text in texts]
