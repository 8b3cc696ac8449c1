"""Which known mistakes explain what a solution gave: those that give the same on the same inputs.

Knows the table of mistakes and how results are compared; neither how a solution is run nor what a failure says.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np

from headwise.check import missteps_tiles as tiles
from headwise.check.answers import Parts, composed, rule
from headwise.check.asking import Ran
from headwise.check.calls import Call, Result, hides, is_oblong, same
from headwise.check.judging import Evidence, Wrong, is_right
from headwise.check.missteps import is_far, plain_softmax
from headwise.check.mistakes import MISTAKES, Mistake
from headwise.check.report import FAILED, PASSED, Named, Verdict

_PIECES = ("softmax", "attention", "causal_mask")  # of which heads and layers are made

_ACCENTS: tuple[dict[str, Any], ...] = (
    {},
    {"softmax": plain_softmax},
    {"softmax": plain_softmax, "hidden": -1e9},
    {"softmax": plain_softmax, "hidden": -1e9, "added": True},
)
"""How a right solution may hide a score: they differ where a query sees no key."""

_RIGHT = [replace(Parts(), **accent) for accent in _ACCENTS]


class _Way(NamedTuple):
    """One way in which a mistake is made: its steps, or None where only its traces are looked for.

    ``plain`` are those with nothing to say of how a score is hidden, for calls that hide none.
    """

    mistake: Mistake
    parts: Parts | None = None
    plain: Parts | None = None

    @property
    def needs_causal(self) -> bool:
        """Whether it shows with ``causal`` alone."""
        return self.mistake.of_causal or (self.parts is not None and self.parts.rule is not rule)


_Evidence = tuple[Sequence[Call], Sequence[Result], Sequence[Result]]


def name_mistakes(runs: Sequence[Ran], verdicts: Sequence[Verdict]) -> dict[str, tuple[Named, ...]]:
    """Return the mistakes that explain each failed check, by its name; none where none is known."""
    passed = {verdict.check for verdict in verdicts if verdict.status == PASSED}
    failed = {verdict.check for verdict in verdicts if verdict.status == FAILED}
    naming = _Naming(runs, passed)
    found = naming.of(failed)
    short = _short(runs, {ran.check.exercise for ran in runs if found.get(ran.check.name)})
    if short:  # beside what float32 rounds another mistake shows, within what it rounds
        ordinary = [ran for ran in runs if ran.check.exercise in short and not any(map(is_far, ran.calls))]
        beside = _Naming(ordinary, passed, _SHORT).of(failed)
        found |= {check: tuple(_both(m, _FLOAT32) for m in ms if not m.trace) for check, ms in beside.items()}
    return {verdict.check: _told(verdict, verdicts, found, naming.weak) for verdict in verdicts}


def _short(runs: Sequence[Ran], named: set[str]) -> set[str]:
    """The exercises without a name whose results are all float32."""
    kinds: dict[str, set[Any]] = {}
    for ran in runs:
        kinds.setdefault(ran.check.exercise, set()).update(r.out.dtype for r in ran.results if r.out is not None)
    return {exercise for exercise, dtypes in kinds.items() if dtypes == {np.dtype(np.float32)}} - named


def _told(
    verdict: Verdict, made: Sequence[Verdict], found: Mapping[str, Sequence[Mistake]], weak: set[tuple[str, str]]
) -> tuple[Named, ...]:
    """The mistakes of one check; of twins those that other exercises speak for, or at least not against.

    Heads are made of attention, which is made of softmax: what alone explains a failure there explains it here, and
    what would have failed there is not it. What rests on the words of an error alone needs another exercise.
    """
    others = [other for other in made if other.exercise != verdict.exercise]
    known = [(other.exercise, found.get(other.check, ())) for other in others]
    strong = {m.name for exercise, mistakes in known for m in mistakes if (exercise, m.name) not in weak}
    alone = {mistakes[0].name for _, mistakes in known if len(mistakes) == 1} & strong
    sound = {other.exercise for other in others if other.exercise in _PIECES} - {
        other.exercise for other in others if other.status != PASSED and other.weight
    }
    twins = list(found.get(verdict.check, ()))
    if twins and all(m.trace for m in twins):  # of what is rounded in a piece, that piece tells more
        twins = [m for exercise, mistakes in known if exercise in _PIECES for m in mistakes if m.trace][:1] or twins
    twins = [m for m in twins if (verdict.exercise, m.name) not in weak or m.name in strong]
    kept = [m for m in twins if m.name in alone] or [m for m in twins if not sound & _shown_in(m)] or twins
    return tuple(Named(m.name, m.explanation, m.fix) for m in kept)


def _shown_in(mistake: Mistake) -> set[str]:
    """Where a mistake shows whatever a solution takes: attention need not take ``causal``."""
    return set(mistake.exercises) - ({"attention"} if mistake.of_causal else set())


class _Naming:
    """Which mistakes explain a failure.

    One that gives what the solution gave in this check; of these, if there are any, the ones that nothing which the
    function gave in other checks speaks against. Where no single one does, two at once; where no two do, one that at
    least the checks that passed do not speak against. It must be made in the same way each time.
    """

    def __init__(self, runs: Sequence[Ran], passed: set[str], tolerance: float = 1e-9) -> None:
        self._passed, self._tolerance = passed, tolerance
        self._runs = [ran for ran in runs if ran.whole and not any(result.untaken for result in ran.results)]
        told = [
            one for ran in self._runs if ran.check.exercise == "attention" for one in zip(*ran.evidence, strict=True)
        ]
        causal = [is_right(got, wanted) for call, got, wanted in told if call.args.get("causal")]
        self._causal, self._masked = bool(causal), any("mask" in call.args for call, _, _ in told)
        apart = self._masked and all(causal)  # then what is wrong with the mask is not wrong with causal
        self._heard = {ran.check.name: _heard(ran, apart) for ran in self._runs}
        self._steady: dict[str, list[_Way]] = {}  # by exercise: what already explains it is asked first
        self._tried: set[str] = set()  # exercises in which pairs have been tried
        self._in_tiles: dict[str, list[_Way]] = {}  # by exercise: the mistakes with tiles that long calls show
        self._right_passes: dict[str, bool] = {}
        self._given: dict[tuple[int, int], Result] = {}  # what a way gives for a call, by their ids
        self.weak: set[tuple[str, str]] = set()  # exercise and name of what rests on the words of an error alone

    def of(self, failed: set[str]) -> dict[str, tuple[Mistake, ...]]:
        """The mistakes that explain each failed check, by its name."""
        asked = [ran for ran in self._runs if ran.check.name in failed]
        found = {ran.check.name: self.named(ran) for ran in asked}
        return {ran.check.name: found[ran.check.name] or self.failing(ran) for ran in asked}

    def named(self, ran: Ran) -> tuple[Mistake, ...]:
        """The mistakes that explain one failed check."""
        exercise = ran.check.exercise
        known = self._explaining(self._steady.get(exercise, ()), ran)
        single = self._shown(_single(exercise), exercise) + self._tiled(exercise)
        found = known or self._explaining(single, ran)
        steady = known or self._unopposed(found, exercise)
        if not steady and exercise not in self._tried:
            self._tried.add(exercise)
            steady = self._unopposed(self._explaining(_pairs(exercise), ran), exercise)
        self._steady.setdefault(exercise, []).extend(way for way in steady if not known)
        halves = {name for way in steady for name in way.mistake.name.split(" + ")}
        simple = self._explaining([w for w in single if w.mistake.name in halves], ran)  # the one seen here
        loose = [way for way in found if way.parts is not None]
        sure = simple or steady or self._unopposed(loose, exercise, self._passed)
        mistakes = list({way.mistake.name: way.mistake for way in sure}.values())
        by_value = [m for m in mistakes if m.detect is None]  # says more than, say, that results are rounded
        if exercise == "attention" and not self._masked:  # what hides is causal
            by_value = [m for m in by_value if m.of_causal] or by_value
        shown = [m for m in mistakes if not m.trace] or mistakes[:1]
        return tuple(by_value or shown)

    def _shown(self, ways: Sequence[_Way], exercise: str) -> list[_Way]:
        """Without those that show with ``causal`` alone, where attention does not take it."""
        asked = exercise != "attention" or self._causal
        return [way for way in ways if asked or not way.needs_causal]

    def _tiled(self, exercise: str) -> list[_Way]:
        """The mistakes with tiles that explain long calls, usual sizes first; short ones cannot tell sizes apart."""
        if exercise not in self._in_tiles:
            self._in_tiles[exercise] = []
            for sizes in (_usual_sizes, _other_sizes):
                if not self._in_tiles[exercise]:
                    ways = self._shown(sizes(exercise), exercise)
                    self._in_tiles[exercise] = self._of_long_calls(ways, exercise)
        return self._in_tiles[exercise]

    def _of_long_calls(self, ways: Sequence[_Way], exercise: str) -> list[_Way]:
        for ran in self._runs:
            if ran.check.exercise != exercise or not any(map(_is_long, ran.calls)):
                continue
            told = list(zip(*self._evidence(ran), strict=True))
            first = next(((call, got) for call, got, wanted in told if _is_long(call) and not alike(got, wanted)), None)
            if first is not None:
                fitting = [way for way in ways if self._fits(self._made(way, *first), first[1])]
                return self._unopposed([way for way in fitting if self._explains(way, *self._evidence(ran))], exercise)
        return []

    def failing(self, ran: Ran) -> tuple[Mistake, ...]:
        """Those found elsewhere which fail this check too, by less than what numbers are told apart by."""
        ways = [way for way in self._steady.get(ran.check.exercise, ()) if way.parts is not None]
        agreeing = [way for way in ways if self._agrees(way, *self._evidence(ran)) and self._fails(way, ran)]
        return tuple({way.mistake.name: way.mistake for way in agreeing}.values())

    def _by_value(self, ran: Ran) -> bool:
        """Whether the right results in place of the solution's would pass: then what is wrong is in the results."""
        if ran.check.name not in self._right_passes:
            held = [wanted._replace(params=got.params) for wanted, got in zip(ran.rights, ran.results, strict=True)]
            self._right_passes[ran.check.name] = _passes(ran, held)
        return self._right_passes[ran.check.name]

    def _fails(self, way: _Way, ran: Ran) -> bool:
        made = list(self._all_made(way, ran.calls, ran.results))
        return any(result.error for result in made) or not _passes(ran, made)

    def _explaining(self, ways: Sequence[_Way], ran: Ran) -> list[_Way]:
        if not self._by_value(ran):
            ways = [way for way in ways if way.parts is None]
        fitting = [way for way in ways if not way.mistake.checks or ran.check.name in way.mistake.checks]
        return [way for way in fitting if self._explains(way, *self._evidence(ran))]

    def _evidence(self, ran: Ran) -> _Evidence:
        return self._heard[ran.check.name]

    def _unopposed(self, ways: Sequence[_Way], exercise: str, only: set[str] | None = None) -> list[_Way]:
        """Those that agree with all that the function gave, or gave in some checks, and that some of it proves."""
        runs = [ran for ran in self._runs if ran.check.exercise == exercise and ran.check.weight]
        heard = [ran for ran in runs if only is None or ran.check.name in only]
        left = [way for way in ways if all(self._agrees(way, *self._evidence(ran)) for ran in heard)]
        proofs = [max((self._proof(way, *self._evidence(ran)) for ran in runs), default=0) for way in left]
        if not any(proofs):
            return []
        best = [way for way, proof in zip(left, proofs, strict=True) if proof == max(proofs)]
        names = {way.mistake.name for way in best}
        heard_out = any(not result.error for ran in runs for result in ran.results)
        traces = any(way.mistake.trace for way in best)
        if max(proofs) == _WORDS and (len(names) > 1 or not heard_out or traces):
            self.weak |= {(exercise, name) for name in names}
        return best

    # ------------------------------------------------------------------------------------- one way, one run
    def _explains(self, way: _Way, calls: Sequence[Call], results: Sequence[Result], rights: Sequence[Result]) -> bool:
        """Whether it gives just what a solution gave, and the right answer does not."""
        if not all(map(way.mistake.where, calls, results)):
            return False
        if way.parts is None:
            shown = list(map(way.mistake.detect or _never, calls, results, rights))
            wrong = _wrong(results, rights)
            if way.mistake.checks:
                return any(shown)
            return all(s for s, w in zip(shown, wrong, strict=True) if w) if any(wrong) else any(shown)
        fits = all(map(self._fits, self._all_made(way, calls, results), results))
        return fits and not all(map(self._alike, self._all_made(way, calls, results), rights))

    def _agrees(self, way: _Way, calls: Sequence[Call], results: Sequence[Result], rights: Sequence[Result]) -> bool:
        """Whether nothing of what a solution gave speaks against it."""
        if way.mistake.checks:  # its traces prove it, whatever else is wrong
            return True
        if way.parts is None:
            shown = map(way.mistake.detect or _never, calls, results, rights)
            traces = list(map(way.mistake.trace, calls, results, rights)) if way.mistake.trace else []
            clean = False in traces and True not in traces
            return not clean and all(s for s, w in zip(shown, _wrong(results, rights), strict=True) if w)
        return all(map(self._fits, self._all_made(way, calls, results), results))

    def _proof(self, way: _Way, calls: Sequence[Call], results: Sequence[Result], rights: Sequence[Result]) -> int:
        """How much speaks for it: a wrong number, or the very words of an error, came out just so.

        Of two mistakes at once a number is asked for: NaN, and an error, may have come about in many ways.
        """
        if way.parts is None:
            sure = way.mistake.sure
            return _NUMBER if sure is None or any(map(sure, calls, results, rights)) else _WORDS
        most, pair = 0, " + " in way.mistake.name
        for call, got, wanted in zip(calls, results, rights, strict=True):
            made = self._made(way, call, got)
            if self._alike(made, got) and not self._alike(made, wanted) and not _is_an_accent(call, got):
                finite = got.out is not None and bool(np.isfinite(got.out).all())
                most = max(most, _NUMBER if finite or (got.out is not None and not pair) else 0 if pair else _WORDS)
        return most

    def _alike(self, a: Result, b: Result) -> bool:
        return alike(a, b, self._tolerance)

    def _fits(self, a: Result, b: Result) -> bool:
        """As alike; of errors the type alone, since the same mistake is refused in other words elsewhere."""
        by_type = bool(a.error or b.error)
        return _said(a).partition(":")[0] == _said(b).partition(":")[0] if by_type else self._alike(a, b)

    def _all_made(self, way: _Way, calls: Sequence[Call], results: Sequence[Result]) -> Iterator[Result]:
        return (self._made(way, call, got) for call, got in zip(calls, results, strict=True))

    def _made(self, way: _Way, call: Call, got: Result) -> Result:
        parts = way.parts if hides(call) or call.function == "softmax" else way.plain
        assert parts is not None
        key = id(parts), id(call)
        if key not in self._given:
            made = composed(parts, call, got.params)
            if got.weights is None:
                made = made._replace(weights=None)
            if made.weights is not None and made.weights.size > _MOST_KEPT:
                return made
            self._given[key] = made
        return self._given[key]


def _heard(ran: Ran, apart: bool) -> _Evidence:
    """What may speak for a mistake or against it: where causal calls are wrong anyway, how they align says nothing.

    ``apart``: nor do those of attention that are causal, beside others with a mask.
    """
    told = list(zip(*ran.evidence, strict=True))
    if apart and ran.check.exercise == "attention":
        return _evidence([one for one in told if not one[0].args.get("causal")])
    if not any(
        call.args.get("causal") and not is_oblong(call) and not is_right(got, wanted) for call, got, wanted in told
    ):
        return ran.evidence
    return _evidence([one for one in told if not is_oblong(one[0])])


def _evidence(told: Sequence[tuple[Call, Result, Result]]) -> _Evidence:
    return [one[0] for one in told], [one[1] for one in told], [one[2] for one in told]


def _is_long(call: Call) -> bool:
    return any(np.ndim(value) > 1 and value.shape[-2] > _LONG for value in call.args.values())


def _passes(ran: Ran, results: Sequence[Result]) -> bool:
    if any(wanted.error for wanted in ran.rights):  # nothing to judge by
        return True
    try:
        ran.check.judge(Evidence(ran.calls, results, ran.rights))
    except Wrong:
        return False
    return True


_WORDS, _NUMBER = 1, 2  # what proves a mistake
_SHORT = 1e-5  # what float32 costs in a few products
_FLOAT32 = next(mistake for mistake in MISTAKES if mistake.name == "float32 inside")
_LONG = 64  # tokens, beyond which the size of a tile shows
_TRIED = 3  # variants of each of two mistakes at once
_MOST_KEPT = 4096  # weights of one call by one way: those of many tokens are made again, there are thousands of ways


# ------------------------------------------------------------------------------------------- ways
@cache
def _single(exercise: str) -> list[_Way]:
    """All ways of all mistakes of an exercise, but for those with tiles."""
    return [way for m in MISTAKES if exercise in m.exercises and m.steps is None for way in _ways(m)]


def _with_tiles(exercise: str) -> list[Mistake]:
    return [mistake for mistake in MISTAKES if mistake.steps is not None and exercise in mistake.exercises]


@cache
def _usual_sizes(exercise: str) -> list[_Way]:
    return [way for mistake in _with_tiles(exercise) for way in _ways(mistake)]


@cache
def _other_sizes(exercise: str) -> list[_Way]:
    made = []
    for mistake in _with_tiles(exercise):
        for steps in [each for size in tiles.OTHERS for each in mistake.steps(size)] if mistake.steps else []:
            plain = replace(Parts(), **steps)
            made += [_Way(mistake, plain, plain), _Way(mistake, replace(plain, hidden=-1e9), plain)]
    return made


@cache
def _pairs(exercise: str) -> list[_Way]:
    """Two mistakes of an exercise made at once, in steps that do not exclude each other."""
    single = [m for m in MISTAKES if m.detect is None and exercise in m.exercises and not m.alone]
    if exercise == "attention":  # which seldom takes causal
        single = [m for m in single if not m.of_causal]
    both = [_both(a, b) for a, b in combinations(single, 2) if not set(a.parts) & set(b.parts)]
    return [way for pair in both for way in _ways(pair)]


def _both(a: Mistake, b: Mistake) -> Mistake:
    explanation, fix = f"{a.explanation}; and {b.explanation}", f"{a.fix}; and {b.fix}"
    steps = [{**one, **two} for one in (a.parts, *a.variants)[:_TRIED] for two in (b.parts, *b.variants)[:_TRIED]]
    exercises = tuple(name for name in a.exercises if name in b.exercises)
    return Mistake(f"{a.name} + {b.name}", exercises, explanation, fix, steps[0], variants=tuple(steps[1:]))


def _ways(mistake: Mistake) -> list[_Way]:
    if mistake.detect is not None:
        return [_Way(mistake)]
    made = []
    for steps in (mistake.parts, *mistake.variants):
        library, usual = replace(Parts(), **steps), replace(Parts(), **{"softmax": plain_softmax, **steps})
        for accent in _ACCENTS:
            plain = usual if "softmax" in accent else library
            made.append(_Way(mistake, replace(Parts(), **{**accent, **steps}), plain))
    return made


# ------------------------------------------------------------------------------------------- comparing
def alike(a: Result, b: Result, tolerance: float = 1e-9) -> bool:
    """Whether two results are the same: one error, or values within a tolerance; weights where both have them."""
    if a.error or b.error:
        return _said(a) == _said(b)
    weights = a.weights is None or b.weights is None or same(a.weights, b.weights, tolerance)
    return weights and same(a.out, b.out, tolerance)


def _said(result: Result) -> str:
    """An error on one line, without the place where it was raised."""
    return " ".join(result.error.partition(" (line ")[0].split())


def _is_an_accent(call: Call, got: Result) -> bool:
    """Whether a right solution may give this too, as where a query sees no key."""
    return any(alike(composed(parts, call, got.params), got) for parts in _RIGHT)


def _wrong(results: Sequence[Result], rights: Sequence[Result]) -> list[bool]:
    return [not alike(got, wanted) or bool(got.changed) for got, wanted in zip(results, rights, strict=True)]


def _never(call: Call, result: Result, expected: Result) -> bool:
    return False
