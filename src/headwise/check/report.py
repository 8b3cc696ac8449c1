"""What grading found; it prints itself, and `formats` writes it in other ways. Knows no check and no solution."""

from dataclasses import dataclass
from typing import NamedTuple

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
        """The weights of all checks but those that were not taken."""
        return sum(v.weight for v in self.verdicts if v.status != UNTAKEN)

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
