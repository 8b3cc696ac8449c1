"""Paired timing of all contestants in one process, and the roof of the BLAS beside them."""

import math
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from headwise.bench import workloads
from headwise.bench.agreement import BenchError
from headwise.bench.arrays import Made, Run, scores_bytes
from headwise.bench.cases import Case
from headwise.bench.conditions import Conditions, conditions
from headwise.bench.memory import extra_bytes
from headwise.bench.peers import Peer, is_installed
from headwise.files import shown

_AFTER_SPINNING = (
    0.150  # seconds: what follows workers that keep cores busy (OpenBLAS for 110 ms) would be slowed by them
)
_PAUSE = 0.005
_SHORT = 0.1  # what takes less is run once more, untimed, right before: caches and clocks are then its own
_LOOPED = 5e-3  # what takes less is called in a loop of about _LOOP seconds: a decoding step follows the one before
_LOOP = 20e-3


class Clock(NamedTuple):
    """Where time comes from."""

    now: Callable[[], float] = time.perf_counter
    sleep: Callable[[float], None] = time.sleep


_CLOCK = Clock()


class Contestant(NamedTuple):
    """Something to be timed."""

    name: str
    run: Callable[[], object]
    spins: bool = False  # leaves workers behind that keep cores busy


class Spread(NamedTuple):
    """A median and its quartiles."""

    median: float
    low: float
    high: float


class Versus(NamedTuple):
    """A peer on a case."""

    peer: str
    target: float | None
    seconds: float | None = None  # None where it was not measured
    ratio: Spread | None = None  # its time / ours, of the rounds
    error: str = ""  # why it was not measured


class Result(NamedTuple):
    """What was measured on one case."""

    case: Case
    words: str
    seconds: Spread  # ours
    rate: float  # ours: operations of the products over visible pairs, a second
    roof: float  # the same of one large product of NumPy
    extra_bytes: int | None  # ours: peak beyond inputs and results, None where it could not be told
    planned_bytes: int | None  # what attention_plan promised; None for what has no plan, such as gradients
    scores_bytes: int  # what the matrix of scores would take
    peers: list[Versus]

    @property
    def share(self) -> float:
        """Our share of the roof."""
        return self.rate / self.roof


class Outcome(NamedTuple):
    """Everything that was measured."""

    conditions: Conditions
    results: list[Result]
    notes: dict[str, str]  # peer -> what it was, as it was measured
    gradients: dict[str, str]  # the same of its gradients, of those that have them
    serving: dict[str, str]  # the same of what serves
    absent: dict[str, str]  # peer -> the command that installs it


def spread(values: Sequence[float]) -> Spread:
    """Return median and quartiles.

    >>> spread([3.0, 1.0, 2.0])
    Spread(median=2.0, low=1.5, high=2.5)
    """
    median, low, high = (float(np.quantile(values, at)) for at in (0.5, 0.25, 0.75))
    return Spread(median, low, high)


# -------------------------------------------------------------------------------------------- time
def _timed(run: Callable[[], object], calls: int, clock: Clock) -> float:
    start = clock.now()
    for _ in range(calls):
        run()
    return (clock.now() - start) / calls


def alternate(
    contestants: Sequence[Contestant], repeat: int, clock: Clock = _CLOCK, spinning: bool = False
) -> dict[str, list[float]]:
    """Return the seconds of one call of each contestant, in each round.

    Every round runs all of them, every other one in reversed order, so that what drifts (clock rates, heat, other
    processes) meets them alike. A first round, not returned, tells roughly how long each takes.

    Parameters
    ----------
    contestants : sequence of Contestant
        Whom to time.
    repeat : int
        Rounds.
    clock : Clock
        Where time comes from.
    spinning : bool
        Whether what ran before left workers that keep cores busy.

    Examples
    --------
    >>> sorted(alternate([Contestant("a", lambda: None), Contestant("b", lambda: None)], 2))
    ['a', 'b']
    """
    seconds: dict[str, list[float]] = {one.name: [] for one in contestants}
    for number in range(repeat + 1):
        for one in contestants if number % 2 == 0 else contestants[::-1]:
            clock.sleep(_AFTER_SPINNING if spinning else _PAUSE)
            rough = seconds[one.name][0] if number else math.inf
            if rough < _SHORT:
                one.run()
            calls = math.ceil(_LOOP / max(rough, 1e-7)) if rough < _LOOPED else 1
            seconds[one.name].append(_timed(one.run, calls, clock))
            spinning = one.spins
    return {name: taken[1:] for name, taken in seconds.items()}


def roof(dtype: str, clock: Clock = _CLOCK, size: int = 2048, times: int = 3) -> float:
    """Return the operations a second of the best of a few large products in NumPy, with the threads it now has.

    >>> roof("float32", size=64, times=1) > 0
    True
    """
    a, b = np.random.default_rng(0).standard_normal((2, size, size)).astype(dtype)
    a @ b
    return 2 * size**3 / min(_timed(lambda: a @ b, 1, clock) for _ in range(times))


# ------------------------------------------------------------------------------------------ results
def _prepared(peer: Peer, case: Case, inputs: Any, mine: Made, threads: int) -> Run | str:
    """A peer's run, if its result is ours; else why not. Whatever it raises is its error, not the end."""
    try:
        run = peer.prepare_for(case, inputs, threads)
        workloads.of(case).check_peer(case, inputs, run(), mine)
    except Exception as error:
        words = shown(str(error) or type(error).__name__, 200)
        return words if isinstance(error, ValueError) else f"{type(error).__name__}: {words}"
    return run


def measure_case(
    case: Case, peers: Sequence[Peer], repeat: int, threads: int, say: Callable[[str], None], clock: Clock = _CLOCK
) -> Result:
    """Time a case: ours and the peers that it is compared with, each checked once before.

    Raises
    ------
    BenchError
        Our own result is not that of the definition.
    """
    work = workloads.of(case)
    inputs = work.make(case)
    mine = work.ours(case, inputs, threads)
    made = mine()
    try:
        work.check_ours(case, inputs, made)
    except BenchError as error:
        raise BenchError(f"{case.name}: headwise: {error}; this is a bug of headwise") from error
    runs: dict[str, Run | str] = {}
    for peer in peers:
        if peer.name in case.peers:
            say(f"preparing {peer.name}")
            runs[peer.name] = _prepared(peer, case, inputs, made, threads)
    spins = {peer.name: peer.spins for peer in peers}
    contestants = [Contestant(name, run, spins[name]) for name, run in runs.items() if not isinstance(run, str)]
    say("timing")
    best = roof(case.dtype, clock)
    rounds = min(repeat, case.most_repeats or repeat)
    seconds = alternate([Contestant("headwise", mine), *contestants], rounds, clock, spinning=True)
    versus = [_versus(name, case, run, seconds) for name, run in runs.items()]
    taken = spread(seconds["headwise"])
    say("memory")
    planned = work.planned_bytes(case, inputs, threads)
    rate = work.operations(case, inputs) / taken.median
    extra = extra_bytes(case, threads)
    return Result(case, case.words, taken, rate, best, extra, planned, scores_bytes(case), versus)


def _versus(name: str, case: Case, run: Run | str, seconds: dict[str, list[float]]) -> Versus:
    if isinstance(run, str):
        return Versus(name, case.peers[name], error=run)
    theirs, mine = seconds[name], seconds["headwise"]
    ratios = [a / b for a, b in zip(theirs, mine, strict=True)]
    return Versus(name, case.peers[name], spread(theirs).median, spread(ratios))


def _numbered(say: Callable[[str], None], where: str, text: str) -> None:
    say(f"{where}: {text}")


def bench(
    cases: Sequence[Case],
    peers: Sequence[Peer],
    repeat: int,
    threads: int,
    say: Callable[[str], None],
    clock: Clock = _CLOCK,
) -> Outcome:
    """Measure cases against those of the peers that are installed."""
    present = [peer for peer in peers if is_installed(peer)]
    absent = {peer.name: peer.install for peer in peers if peer not in present}
    packages = list(dict.fromkeys(peer.packages[0] for peer in present))
    with threadpool_limits(threads, user_api="blas"):  # for NumPy peers and the roof; the engine sets its own
        here = conditions(threads, repeat, [name for name in packages if name != "numpy"])
        results = []
        for at, case in enumerate(cases, 1):
            numbered = partial(_numbered, say, f"{at} of {len(cases)}: {case.name}")
            results.append(measure_case(case, present, repeat, threads, numbered, clock))
    gradients = {peer.name: peer.gradients for peer in present if peer.gradients}
    serving = {peer.name: peer.serving for peer in present if peer.serving}
    return Outcome(here, results, {peer.name: peer.note for peer in present}, gradients, serving, absent)
