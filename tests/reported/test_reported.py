"""Every reported case, put to headwise. `pytest tests/reported -q -rs` lists what waits, by reason."""

from collections import defaultdict
from functools import cache

import numpy as np
import pytest

from reported.adapter import Adapter, EngineAdapter
from reported.case import Case, fresh
from reported.cases import BY_ID, CASES
from reported.decided import DECIDED
from reported.runner import ERRORS, Outcome, mismatch, run_case

WAITING = {}


LINEAR = ["B153"]  # asks for less memory than the definition takes
BOTH = ("attention", "mha", "scenario", "kv_decode")
RUNS = [(name, Adapter) for name in BY_ID if name not in LINEAR]
RUNS += [(name, EngineAdapter) for name, case in BY_ID.items() if case.op in BOTH]


@cache
def outcome(name: str, adapter: type[Adapter]) -> Outcome:
    return run_case(BY_ID[name], adapter())


@pytest.mark.parametrize(("name", "adapter"), RUNS, ids=lambda x: getattr(x, "__name__", x))
def test_reported_case(name, adapter):
    status, message = outcome(name, adapter)
    if status == "waits":
        pytest.skip(f"waits for {message}")
    case = BY_ID[name]
    assert status == "pass", f"{case.symptom}. {message}. Right: {case.right}. {case.url}"


def test_exactly_the_listed_cases_wait():
    waiting = defaultdict(list)
    for name, adapter in RUNS:
        status, message = outcome(name, adapter)
        if status == "waits" and name not in waiting[message]:
            waiting[message].append(name)
    assert waiting == WAITING


def test_every_case_runs_and_those_of_attention_by_definition_and_engine():
    assert {name for name, _ in RUNS} == set(BY_ID)
    assert {name for name, adapter in RUNS if adapter is EngineAdapter} >= {x.id for x in CASES if x.op == "attention"}
    assert not set(LINEAR) & {x.id for x in CASES if x.op == "attention"}


def test_every_case_is_here_once():
    assert len(CASES) == len(BY_ID) == 93


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_a_case_asks_for_something(case):
    assert case.url.startswith("https://")
    assert (case.run is not None) == (case.op == "scenario") == (not case.inputs)
    assert case.run or case.expected or case.check or case.raises


def test_every_choice_is_decided():
    def leaves_a_choice(case: Case) -> bool:
        contested_scenario = bool(case.run and case.contested)
        return case.raises or case.may_raise or bool(case.alternatives) or contested_scenario

    assert list(DECIDED) == sorted(case.id for case in CASES if leaves_a_choice(case))


@pytest.mark.parametrize("name", DECIDED)
def test_a_decision_is_one_that_the_case_allows(name):
    case, (answer, _) = BY_ID[name], DECIDED[name]
    if answer in ERRORS:
        assert case.raises or case.may_raise or case.run
    else:
        assert not case.raises
        assert answer == "value" or answer in case.alternatives


@pytest.mark.parametrize("case", [case for case in CASES if case.wrong], ids=lambda case: case.id)
def test_the_wrong_value_is_not_what_is_expected(case):
    assert case.wrong.keys() <= case.expected.keys()
    for right in (case.expected, *case.alternatives.values()):
        assert mismatch(case, right | case.wrong, right)


def test_fresh_inputs_are_new_read_only_and_keep_their_strides():
    case = BY_ID["B063"]
    for name, x in fresh(case).items():
        given = case.inputs[name]
        assert x.strides == given.strides
        assert x.strides[0] < 0
        assert not x.flags.writeable
        assert not np.shares_memory(x, given)
        np.testing.assert_array_equal(x, given)
