"""Judges, each with results that are right, and with right ones of which a single number is off."""

import sys
from functools import partial

import numpy as np
import pytest
from solved import solution

from headwise.check import grade
from headwise.check.asking import asked
from headwise.check.calls import Call, Result, Run
from headwise.check.checks import CHECKS, rights
from headwise.check.judging import Evidence, Wrong
from headwise.check.report import FAILED
from headwise.check.targets import subject

BY_NAME = {check.name: check for check in CHECKS}
APART = ("layer_seed", "upper_triangle", "padding_and_causal")  # which look at weights alone
JUDGED = [check for check in CHECKS if check.weight and check.name not in APART]


def evidence(check):
    calls = asked(check, 0)
    space = solution("minus_infinity")
    attention = space["scaled_dot_product_attention"]

    def with_causal(q, k, v, mask=None, causal=False):
        return attention(q, k, v, np.tri(*(n := (q.shape[-2], k.shape[-2])), n[1] - n[0], bool) if causal else mask)

    results = subject({**space, "scaled_dot_product_attention": with_causal}).run(calls).results
    return Evidence(calls, results, rights(calls, results))


def changed(given, i, name, change):
    """Evidence in which one array of call i is other."""
    array = getattr(given.results[i], name).copy()
    change(array)
    results = list(given.results)
    results[i] = results[i]._replace(**{name: array})
    return given._replace(results=results)


CONTROLS = {  # calls that are only there to see whether a solution is wrong anyway, or whose numbers may differ
    "shapes": [0, 1],
    "masked_keys": [2],
    "softmax_large": [0],
    "softmax_rows_apart": [0, 2],
    "large": [0, 4],
    "many_keys": [0],
    "many_keys_masked": [0, 1, 2, 8],
    "many_tokens": [0, 1],
    "layer_many_tokens": [0, 1],
    "truncation": [2],
    "heads_large": [0, 3],
    "layer_causal": [2],
    "layer_large": [0, 3],
}
OUT_ALONE = ("future", "permutation", "peaked", "items_apart", "untouched", "layer_untouched")
HALF = {("layer_weights", "out"), *((check, "weights") for check in OUT_ALONE)}  # the half that is not judged
ONCE = {("masked_keys", "out", 0), ("layer_calls_apart", "weights", 0)}
ONCE |= {("rows", "out", 0), ("rows", "out", 1), ("rows", "out", 2), ("rows", "weights", 3)}


def nudge(array, at=0):
    flat = array.reshape(-1)
    flat[at] = not flat[at] if array.dtype == bool else flat[at] * (1 + 1e-6) + 1e-6


@pytest.mark.parametrize("check", JUDGED, ids=lambda check: check.name)
def test_one_number_that_is_off_is_noticed_in_whichever_call(check):
    given = evidence(check)
    check.judge(given)
    for i in range(len(given.calls)):
        for name in ("out", "weights") if given.results[i].weights is not None else ("out",):
            if (check.name, name) in HALF or (check.name, name, i) in ONCE:
                continue
            place = -1 if check.name == "block_diagonal" else 0  # the first columns are those that may change
            off = changed(given, i, name, partial(nudge, at=place))
            if i in CONTROLS.get(check.name, ()):
                check.judge(off)
                continue
            with pytest.raises(Wrong, match=r"expected|moved|sum|must|weight|holds"):
                check.judge(off)


@pytest.mark.parametrize("check", [BY_NAME[name] for name in CONTROLS], ids=lambda check: check.name)
def test_numbers_that_are_wrong_anyway_are_not_held_against_a_check_of_something_else(check):
    """All results twice as large: none of these checks is about that."""
    given = evidence(check)

    check.judge(given._replace(results=[result._replace(out=2 * result.out) for result in given.results]))


def test_a_head_whose_own_columns_change_nothing_is_wrong():
    given = evidence(BY_NAME["block_diagonal"])
    still = [result._replace(out=given.results[0].out) for result in given.results]
    with pytest.raises(Wrong, match="the columns of head 0 did not change"):
        BY_NAME["block_diagonal"].judge(given._replace(results=still))


def test_a_call_that_changes_the_layers_own_weights_is_wrong():
    given = evidence(BY_NAME["layer_calls_apart"])
    results = list(given.results)
    results[2] = results[2]._replace(params={**results[2].params, "w_v": 2 * results[2].params["w_v"]})
    with pytest.raises(Wrong, match="a call changed the layer's own weights"):
        BY_NAME["layer_calls_apart"].judge(given._replace(results=results))


def test_rows_that_sum_to_one_with_a_negative_weight_are_wrong():
    given = evidence(BY_NAME["rows"])

    def shift(weights):
        weights[0, 0] -= 2
        weights[0, 1] += 2

    with pytest.raises(Wrong, match="a weight is negative: -"):
        BY_NAME["rows"].judge(changed(given, 0, "weights", shift))


@pytest.mark.parametrize(
    ("check", "match"),
    [
        ("masked_keys", r"of 6 are masked, so their weights must be exactly 0"),
        ("upper_triangle", r"above the diagonal"),
    ],
)
def test_what_must_be_exactly_0_is_said_so(check, match):
    given = evidence(BY_NAME[check])

    def leak(weights):
        hidden = np.argwhere(~given.calls[0].args["mask"])[0]
        weights[tuple(hidden)] = 1e-13

    with pytest.raises(Wrong, match=match):
        BY_NAME[check].judge(changed(given, 0, "weights", leak))


def test_layers_of_one_seed_have_the_same_weights():
    given = evidence(BY_NAME["layer_seed"])
    assert BY_NAME["layer_seed"].judge(given) is not None
    other = given.results[1]._replace(params={**given.results[1].params, "w_v": np.ones((8, 8))})
    with pytest.raises(Wrong, match="two layers made with one seed have different weights"):
        BY_NAME["layer_seed"].judge(given._replace(results=[given.results[0], other, given.results[2]]))


def test_a_result_of_another_shape_is_said_to_be():
    given = evidence(BY_NAME["values"])
    results = [given.results[0]._replace(out=np.zeros((3, 3))), *given.results[1:]]
    with pytest.raises(Wrong, match=r"out: expected shape \(3, 2\), got \(3, 3\)"):
        BY_NAME["values"].judge(given._replace(results=results))


# ------------------------------------------------------------------------------------------- names
def names(report):
    return {mistake.name for verdict in report.verdicts for mistake in verdict.mistakes}


HIDE = "np.where(mask, scores, -1e9)"


@pytest.mark.parametrize("hide", ["np.where(mask, -np.inf, scores)", "scores + np.where(mask, -1e9, 0)"])
def test_a_mistake_is_named_however_a_score_is_hidden(hide):
    assert names(grade(solution("textbook", (HIDE, hide)), "attention")) == {"polarity of the mask"}


def test_right_values_beside_wrong_weights_are_not_rounding():
    other = ("return np.matmul(weights, v), weights", "return np.matmul(weights, v), weights**2")
    report = grade(solution("textbook", other), "attention")
    assert not report.passed
    assert names(report) == set()


def test_the_other_checks_decide_between_twins():
    """All heads of the first check are 4 wide, where 1/4 is 1/d_head."""
    assert names(grade(solution("textbook", (" / np.sqrt(d_k)", " / 4")), "multi_head")) == {"scale of a fixed width"}


def test_another_exercise_decides_between_twins():
    """Without attention beside it, a triangle that is turned over and a mask that is laid on turned over are one."""
    space = solution("textbook", ("np.tril(np.ones((n, n), dtype=bool))", "np.triu(np.ones((n, n), dtype=bool))"))
    alone = grade({"multi_head": space["multi_head_attention"]})
    assert names(alone) == {"mask transposed", "causal transposed"}
    both = grade({"multi_head": space["multi_head_attention"], "causal_mask": space["causal_mask"]})
    assert names(both) == {"causal transposed"}


# ------------------------------------------------------------------------------------------- runs that end early
def test_when_the_time_is_used_up_the_rest_is_not_run(monkeypatch):
    monkeypatch.setattr(sys.modules["headwise.check.grade"], "_PATIENCE", 0)
    report = grade(solution("textbook"), "softmax")
    assert {v.hints[0] for v in report.verdicts if v.status == FAILED} == {
        "the run was not run: the time for this solution is used up"
    }
    assert report.score == 0


@pytest.mark.parametrize("run", [Run([Result(np.zeros(7))]), Run([], "ended itself by os._exit(0)")])
def test_a_run_that_lacks_results_fails(monkeypatch, run):
    class Short:
        name, found, notes, limits_off, broken, here, frameworks = "it", {"softmax": "softmax"}, (), (), "", True, ()

        def run(self, calls):
            return run

        def missing(self, function):
            return function

    monkeypatch.setattr(sys.modules["headwise.check.grade"], "subject", lambda target, **options: Short())
    report = grade("it", "softmax")
    assert {v.status for v in report.verdicts if v.weight and v.check != "softmax_rows_apart"} == {FAILED}
    assert any("the run ended" in v.hints[0] for v in report.verdicts if v.status == FAILED)


def test_a_call_knows_nothing_of_the_right_answer():
    assert set(Call._fields) == {"function", "args", "again", "kept"}
