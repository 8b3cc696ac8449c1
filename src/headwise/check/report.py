"""What grading found; it prints itself, and `formats` writes it in other ways. Knows no check and no solution."""

from dataclasses import dataclass, field
from typing import NamedTuple

from headwise.check.calls import FUNCTIONS

PASSED, FAILED, UNTAKEN = "passed", "failed", "not taken"


class Named(NamedTuple):
    """A mistake that explains what a solution returned."""

    name: str
    explanation: str
    fix: str


class Verdict(NamedTuple):
    """What one check found.

    Attributes
    ----------
    check, exercise, claim : str
        The check's name, the exercise it belongs to, and what it claims, in one sentence.
    weight : float
        What it counts; 0 for a check that can only remark.
    status : str
        ``"passed"``, ``"failed"``, or ``"not taken"`` where the solution has no argument for what is asked, as a mask.
    hints : tuple of three str
        After a failure what failed, with the numbers; where to look; the formula. Else empty.
    mistakes : tuple of Named
        The known mistakes that give what the solution gave; several are twins on these inputs.
    remarks : tuple of str
        What is no fault, and worth knowing.
    printed : str
        What the solution printed during this check.
    seconds : float
        Wall time.
    unwritten : bool
        Whether there is nothing to judge yet: the function is not defined, or raises NotImplementedError.
    """

    check: str
    exercise: str
    claim: str
    weight: float
    status: str
    hints: tuple[str, ...] = ()
    mistakes: tuple[Named, ...] = ()
    remarks: tuple[str, ...] = ()
    printed: str = ""
    seconds: float = 0.0
    unwritten: bool = False


@dataclass(frozen=True)
class Report:
    """What grading a solution found. Print it; in a notebook it shows itself.

    Attributes
    ----------
    target : str
        What was graded: a file's name, or what the object calls itself.
    seed : int
        From which the inputs were drawn.
    verdicts : tuple of Verdict
        One for each check, in the order of the exercises.
    found : dict of str to str
        Function -> the name under which the solution defines it.
    missing : dict of str to str
        Exercise that was asked for -> the names that were looked for; that could have been -> nothing.
    remarks : tuple of str
        On the solution as a whole: what it imports, cells that failed.
    limits_off : tuple of str
        Limits that do not hold here: all of them for an object in this process.
    broken : str
        Empty, or why the solution could not be loaded: then every check has failed.
    seconds : float
        Wall time in all.
    asked : tuple of str
        The exercises that were asked for; empty where all that the solution defines are graded.
    alike : dict of str to tuple of str
        Function that was not found -> names that the solution defines, and which may be meant by it.
    """

    target: str
    seed: int
    verdicts: tuple[Verdict, ...]
    found: dict[str, str]
    missing: dict[str, str]
    remarks: tuple[str, ...] = ()
    limits_off: tuple[str, ...] = ()
    broken: str = ""
    seconds: float = 0.0
    asked: tuple[str, ...] = ()
    alike: dict[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def passed(self) -> bool:
        """Whether there was something to check, and nothing failed."""
        return bool(self.verdicts) and not self.broken and all(v.status != FAILED for v in self.verdicts)

    @property
    def score(self) -> float:
        """The weights of the checks that passed."""
        return sum(v.weight for v in self.verdicts if v.status == PASSED)

    @property
    def maximum(self) -> float:
        """The weights of the checks that count: see `counts`."""
        return sum(v.weight for v in self.verdicts if self.counts(v))

    @property
    def unwritten(self) -> tuple[str, ...]:
        """The exercises in which no check that counts, and was taken, found anything to judge; in a starter's order."""
        exercises = {v.exercise for v in self.verdicts if v.unwritten}
        left = {v.exercise for v in self.verdicts if v.weight and v.status != UNTAKEN and not v.unwritten}
        return tuple(name for name in FUNCTIONS if name in exercises - left)

    def counts(self, verdict: Verdict) -> bool:
        """Whether a check counts: all that were asked for do, and of the others those that were taken.

        So the maximum is the same for every solution where exercises were asked for.
        """
        return bool(self.asked) or verdict.status != UNTAKEN

    def text(self, hints: int = 1) -> str:
        """Return it as plain text, with 0 to 3 hints for each failure."""
        return self._as("text", hints)

    def markdown(self, hints: int = 1) -> str:
        """Return it as Markdown, with 0 to 3 hints for each failure."""
        return self._as("markdown", hints)

    def html(self, hints: int = 1) -> str:
        """Return it as a page of HTML, with 0 to 3 hints for each failure."""
        return self._as("html", hints)

    def __str__(self) -> str:
        """Return it as plain text, with the first hint for each failure."""
        return self.text()

    def _repr_html_(self) -> str:
        """Return it as a notebook shows it: all hints are there, folded in."""
        from headwise.check import formats

        return formats.fragment(self)

    def _as(self, name: str, hints: int) -> str:
        from headwise.check import formats  # which imports this module

        return formats.FORMATS[name](self, hints)
