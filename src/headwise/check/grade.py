"""Grade a solution: ask it what the checks ask, judge what comes back, and name the mistakes that explain it."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from headwise.check import judging
from headwise.check.asking import Ran, runs
from headwise.check.calls import FUNCTIONS
from headwise.check.checks import CHECKS, EXERCISES, Check
from headwise.check.judging import Evidence, Wrong
from headwise.check.names import FUNCTION_NAMES
from headwise.check.naming import name_mistakes
from headwise.check.process import Limits
from headwise.check.report import FAILED, PASSED, UNTAKEN, Report, Verdict
from headwise.check.targets import Subject, subject
from headwise.core.shapes import Faults, given_as, integer, real
from headwise.files import listed, shown

_LONGEST = 86_400  # seconds
_PATIENCE = 6  # so many time limits for one solution: what hangs everywhere ends in a minute


class NothingFoundError(ValueError):
    """A solution in which nothing is found to grade: what it has instead, and how to say which is which.

    Attributes
    ----------
    expected : str
        What was expected and what is there.
    example : tuple of two str
        An exercise, and a name that the solution may mean by it.
    """

    def __init__(self, solution: Subject) -> None:
        known = ", ".join(FUNCTION_NAMES[name][0] for name in FUNCTIONS)
        classes, functions = solution.defined
        sought = [solution.missing(name) for name in solution.chosen] or [f"names such as {known}"]
        self.expected = (
            f"expected a function or class to grade, got none in {solution.name}, which has "
            f"{listed([*classes, *functions], 6)}; looked for {' and '.join(sought)}"
        )
        self.example = _likeliest(solution) or (
            ("layer", classes[0]) if classes else ("attention", functions[0] if functions else "its_name")
        )
        exercise, name = self.example
        super().__init__(f"grade: target: {self.expected}; say which it is: functions={{'{exercise}': '{name}'}}")


def _likeliest(solution: Subject) -> tuple[str, str] | None:
    """An exercise and the first name in the solution that sounds like it, if any does."""
    asked = solution.chosen or solution.alike
    return next(((exercise, names[0]) for exercise, names in solution.alike.items() if exercise in asked), None)


class UnknownNameError(ValueError):
    """A name that `functions` gives and the solution does not have.

    Attributes
    ----------
    expected : str
        What was expected and what is there.
    absent : dict of str to str
        Function -> its name, of those that do not exist.
    """

    def __init__(self, solution: Subject) -> None:
        self.absent = solution.absent
        named = listed([f"{function}={shown(name, 60)}" for function, name in self.absent.items()])
        classes, functions = solution.defined
        there = listed([*classes, *functions], 8)
        self.expected = f"expected names that {solution.name} defines, got {named}; it has {there}"
        super().__init__(f"grade: functions: {self.expected}")


def grade(
    target: Any,
    exercise: str | Sequence[str] | None = None,
    seed: int = 0,
    *,
    time_limit: float = 10.0,
    memory_limit: int = 2 * 2**30,
    numpy_only: bool = False,
    functions: Mapping[str, str] | None = None,
    jobs: int = 2,
    progress: Callable[[int, int], None] | None = None,
) -> Report:
    """Grade a solution of an attention exercise, and name what was done wrong.

    Parameters
    ----------
    target : path, module, dict, function or object
        A ``.py`` file, a notebook (``.ipynb``), ``"-"`` for standard input, a module, an object or dict of functions,
        or one function or class. Files run in processes of their own, under limits: a guard against accidents and lazy
        tricks, no sandbox. The rest runs in this process, without limits.
    exercise : str or list of str, optional
        Of ``softmax``, ``attention``, ``single_sequence``, ``causal_mask``, ``multi_head``, ``layer``. By default all
        that the solution defines; ``single_sequence``, a part of ``attention``, only when it is asked for.
    seed : int
        From which the inputs are drawn.
    time_limit : float
        Seconds of wall time for each check; six times as many for all.
    memory_limit : int
        Bytes of address space.
    numpy_only : bool
        Whether a solution fails that imports anything but NumPy, Python's own modules and files beside it.
    functions : dict of str to str, optional
        Under which name the solution defines what: ``{"attention": "my_attention"}``.
    jobs : int
        How many processes run at a time.
    progress : callable, optional
        ``progress(done, total)``, called from the calling thread.

    Returns
    -------
    Report
        Print it; ``report.passed``, ``report.score``, ``report.verdicts``.

    Raises
    ------
    ValueError
        For an unknown exercise, a file that cannot be read (FileError), a target in which nothing is found, or one
        that has no function or class of a name in `functions`.
    TypeError
        For a target of another kind.

    Examples
    --------
    >>> import numpy as np
    >>> from headwise import softmax
    >>> def attention(q, k, v, mask=None):
    ...     scores = q @ np.swapaxes(k, -1, -2)  # the scale is missing
    ...     weights = softmax(scores if mask is None else np.where(mask, scores, -np.inf))
    ...     return weights @ v, weights
    >>> report = grade(attention)
    >>> report.passed, {mistake.name for verdict in report.verdicts for mistake in verdict.mistakes}
    (False, {'no scale'})
    """
    start = time.monotonic()
    asked = _checked(exercise, seed, time_limit, memory_limit, functions, jobs, progress)
    called = ""
    if len(asked) == 1 and callable(target):  # what it is has been said, whatever it is called
        called, target = _called(target), {_function(asked[0]): target}
    solution = subject(target, limits=Limits(seconds=time_limit, memory=memory_limit), functions=functions)
    names = asked or [name for name in FUNCTIONS if name in solution.found]
    if not names and not solution.broken:
        raise NothingFoundError(solution)
    if functions and solution.absent:
        raise UnknownNameError(solution)
    broken = solution.broken
    chosen = [check for check in CHECKS if _belongs(check, names or FUNCTIONS)]
    if broken:
        verdicts = [_unheard(check) for check in chosen]
    else:
        ran = runs(solution, chosen, seed, _PATIENCE * time_limit, jobs, progress)
        with np.errstate(all="ignore"):  # what a solution returned may be infinite, and is compared
            verdicts = _verdicts(solution, chosen, ran)
    if numpy_only and not broken and (broken := _forbidden(solution)):  # known after the calls: some import in them
        verdicts = [_unheard(check) for check in chosen]
    absent = [] if solution.broken else [name for name in asked or FUNCTIONS if _function(name) not in solution.found]
    named = {name for name in absent if asked or _function(name) in solution.chosen}
    sought = {name: solution.missing(_function(name)) if name in named else "" for name in absent}
    return Report(
        target=called or solution.name,
        seed=seed,
        verdicts=tuple(verdicts),
        found=dict(solution.found),
        missing=sought,
        remarks=(*solution.notes, *_imports(solution), *_one_sequence(verdicts)),
        limits_off=tuple(solution.limits_off),
        broken=broken,
        seconds=time.monotonic() - start,
        asked=tuple(asked),
        alike=solution.alike if absent else {},
    )


# ------------------------------------------------------------------------------------------- what is asked
def _checked(
    exercise: Any, seed: Any, time_limit: Any, memory_limit: Any, functions: Any, jobs: Any, progress: Any
) -> list[str]:
    faults, known = Faults("grade"), ", ".join(EXERCISES)
    names = [] if exercise is None else [exercise] if isinstance(exercise, str) else exercise
    if exercise is not None and not names:
        faults.value("exercise", f"one of {known}, or a list of them", repr(exercise), "leave it out for all")
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        faults.type("exercise", f"one of {known}, or a list of them", given_as(exercise))
        names = []
    for name in names:
        if name not in EXERCISES:
            faults.value("exercise", f"one of {known}", repr(name))
    integer(faults, "seed", seed, 0)
    integer(faults, "memory_limit", memory_limit, 1)
    integer(faults, "jobs", jobs, 1)
    if progress is not None and not callable(progress):
        faults.type("progress", "None or a function of (done, total)", given_as(progress))
    if functions is not None and not isinstance(functions, Mapping):
        faults.type("functions", "a dict such as {'attention': 'my_attention'}", given_as(functions))
    if (limit := real(faults, "time_limit", time_limit, "a number above 0")) is not None and not 0 < limit < np.inf:
        faults.value("time_limit", "a number above 0", str(limit))
    elif limit is not None and limit > _LONGEST:
        faults.value("time_limit", f"at most {_LONGEST} s", str(limit))
    faults.raise_any()
    return list(dict.fromkeys(names))


def _called(target: Any) -> str:
    """What a function calls itself; some do not say."""
    try:
        return shown(target.__name__, 100)
    except Exception:
        return type(target).__name__


def _function(exercise: str) -> str:
    return "attention" if exercise == "single_sequence" else exercise


def _belongs(check: Check, names: Sequence[str]) -> bool:
    alone = "single_sequence" in names and check.exercise == "attention" and not check.batched
    return check.exercise in names or alone


def _imports(solution: Subject) -> list[str]:
    return [f"imports {', '.join(solution.frameworks)}: the point is NumPy alone"] if solution.frameworks else []


def _one_sequence(verdicts: Sequence[Verdict]) -> list[str]:
    """What to say of an attention that is right but for batches."""
    batched = {check.name for check in CHECKS if check.exercise == "attention" and check.batched}
    asked = [verdict for verdict in verdicts if verdict.exercise == "attention"]
    failed = {verdict.check for verdict in asked if verdict.status == FAILED}
    if "items_apart" in failed and failed <= batched and any(verdict.status == PASSED for verdict in asked):
        return ["attention is right for one sequence: the exercise single_sequence asks for no more"]
    return []


def _forbidden(solution: Subject) -> str:
    return f"imports {', '.join(solution.libraries)}; NumPy alone is allowed" if solution.libraries else ""


def weights(exercise: Sequence[str] | None = None) -> dict[str, float]:
    """Return what each check of some exercises counts, or of all of them, by its name.

    >>> weights(["causal_mask"])
    {'causal_mask': 2}
    """
    return {check.name: check.weight for check in CHECKS if _belongs(check, exercise or FUNCTIONS)}


# ------------------------------------------------------------------------------------------- judging
def _verdicts(solution: Subject, chosen: Sequence[Check], ran: dict[str, Ran]) -> list[Verdict]:
    made = [_verdict(solution, check, ran.get(check.name)) for check in chosen]
    names = name_mistakes(list(ran.values()), made)
    return [verdict._replace(mistakes=names.get(verdict.check, ())) for verdict in made]


def _verdict(solution: Subject, check: Check, ran: Ran | None) -> Verdict:
    if ran is None:
        missing = f"{check.exercise} is not defined: looked for {solution.missing(check.exercise)}"
        return _failed(check, missing)._replace(unwritten=True)
    verdict = _judged(check, ran)
    notes = dict.fromkeys(note for result in ran.results for note in result.notes)
    if ran.left_out:
        notes[f"judged by {len(ran.calls)} of its calls: {ran.left_out}"] = None
    verdict = verdict._replace(remarks=(*verdict.remarks, *notes))
    return verdict._replace(printed=ran.run.printed, seconds=ran.run.seconds)


def _judged(check: Check, ran: Ran) -> Verdict:
    if ran.run.broken or len(ran.results) < len(ran.calls):
        return _failed(check, f"the run {ran.run.broken or 'ended early'}")
    if untaken := [result.error for result in ran.results if result.untaken]:
        return _plain(check, UNTAKEN, (untaken[0],))
    errors = [result.error for result in ran.results if result.error]
    if errors and check.weight == 0:
        return _plain(check, PASSED, (f"{check.claim[0].lower()}{check.claim[1:]}: {errors[0]}",))
    if errors:
        at = next(i for i, result in enumerate(ran.results) if result.error)
        failed = _failed(check, f"for {judging.given(ran.calls[at])}: {errors[0]}")
        return failed._replace(unwritten=errors[0].startswith("NotImplementedError"))
    if unknown := [wanted.error for wanted in ran.rights if wanted.error]:
        return _failed(check, unknown[0])
    try:
        return _plain(check, PASSED, tuple(check.judge(Evidence(*ran.evidence))))
    except Wrong as wrong:
        return _failed(check, str(wrong))


def _plain(check: Check, status: str, remarks: tuple[str, ...]) -> Verdict:
    return Verdict(check.name, check.exercise, check.claim, check.weight, status, remarks=remarks)


def _unheard(check: Check) -> Verdict:
    """Of a solution that is broken as a whole, which is said once."""
    return _plain(check, FAILED if check.weight else UNTAKEN, ())


def _failed(check: Check, what: str) -> Verdict:
    if check.weight == 0:
        return _plain(check, UNTAKEN, (what,))
    hints = (what, check.look, check.formula)
    return Verdict(check.name, check.exercise, check.claim, check.weight, FAILED, hints)
