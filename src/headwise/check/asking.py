"""What the checks ask of a solution: their calls made, and what came of them kept together.

Knows neither what is right about it nor what a mistake is.
"""

import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from headwise.check.answers import as_taken
from headwise.check.calls import Call, Result, Run, hides
from headwise.check.checks import Check, rights
from headwise.check.process import end_running
from headwise.check.targets import Subject


def asked(check: Check, seed: int) -> list[Call]:
    """The calls of a check: its own stream of the seed, whatever else is checked."""
    return check.calls(np.random.default_rng([seed, zlib.crc32(check.name.encode())]))


class Ran:
    """One check's calls, and what came of them; of a divisible check those that a solution has arguments for."""

    def __init__(self, check: Check, calls: list[Call], run: Run) -> None:
        self.check, self.calls, self.run = check, calls, run
        self.results = list(run.results)
        self.left_out = ""  # why some calls were
        taken = [i for i, result in enumerate(self.results) if not result.untaken]
        if self.whole and self._tells([calls[i] for i in taken]):
            self.left_out = next((self.results[i].error for i in _missed(calls, taken)), "")
            self.calls, self.results = [calls[i] for i in taken], [self.results[i] for i in taken]
        if self.whole:
            self.calls = [as_taken(call, result) for call, result in zip(self.calls, self.results, strict=True)]
        self.rights = rights(self.calls, self.results) if self.whole else []

    def _tells(self, taken: list[Call]) -> bool:
        """Whether the check can be judged by the calls that a solution has arguments for."""
        if self.check.of_hiding:
            return any(map(hides, taken))
        return self.check.divisible and bool(taken)

    @property
    def evidence(self) -> tuple[list[Call], list[Result], list[Result]]:
        """The calls, what they gave, and what is right."""
        return self.calls, self.results, self.rights

    @property
    def whole(self) -> bool:
        """Whether every call came back with something to judge."""
        return not self.run.broken and len(self.results) == len(self.calls)


def _missed(calls: Sequence[Call], taken: Sequence[int]) -> list[int]:
    """The calls that were left out, but for those of ``causal`` where a mask was taken, which says the same."""
    masked = any("mask" in calls[i].args for i in taken)
    left = [i for i in range(len(calls)) if i not in taken]
    return [i for i in left if not (masked and calls[i].function == "attention" and "causal" in calls[i].args)]


def runs(
    solution: Subject,
    chosen: Sequence[Check],
    seed: int,
    patience: float,
    jobs: int,
    progress: Callable[[int, int], None] | None,
) -> dict[str, Ran]:
    """The runs of all checks whose function is there, by name."""
    there = [check for check in chosen if check.exercise in solution.found]
    end = time.monotonic() + patience

    def run(check: Check) -> Ran:
        calls = asked(check, seed)
        late = time.monotonic() > end
        return Ran(
            check, calls, Run([], "was not run: the time for this solution is used up") if late else solution.run(calls)
        )

    if solution.here:  # what is kept from call to call shows as long as nothing has been kept
        there.sort(key=lambda check: not check.name.endswith("calls_apart"))
    made = {}
    for done, ran in enumerate(_in_turn(run, there, 1 if solution.here else jobs)):
        made[ran.check.name] = ran
        if progress is not None:
            progress(done + 1, len(there))
    return made


def _in_turn(run: Callable[[Check], Ran], checks: Sequence[Check], jobs: int) -> Iterator[Ran]:
    """What runs in processes of its own, several at a time; an object of this process in this thread."""
    if jobs == 1:
        yield from map(run, checks)
        return
    pool = ThreadPoolExecutor(jobs)
    try:
        yield from pool.map(run, checks)
    except KeyboardInterrupt:  # it reaches this thread alone: the others would wait for their children
        end_running()
        raise
    finally:
        pool.shutdown(cancel_futures=True)
