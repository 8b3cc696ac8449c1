"""check/explain: what is taught of a check and a mistake, with numbers that come from `answer`."""

import re
from typing import Any

import numpy as np
import pytest
from standins import CHECKS, EXERCISES, HOSTILE, MISTAKES, answer, stand_in

from headwise.check import checks, explain, mistakes
from headwise.check.calls import FUNCTIONS, ROLES, Call, Result
from headwise.check.mistakes import Mistake


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """The small tables."""
    stand_in(monkeypatch)


def test_a_check_is_taught_with_its_claim_inputs_formula_and_an_example() -> None:
    said = explain.explain("rows-sum").splitlines()
    assert said[:6] == [
        "check rows-sum, of the exercise softmax, weight 2",
        "claim    each row sums to 1",
        "matters  solutions that make these mistakes give other numbers here: wrong-axis, writes",
        "look     the division",
        "formula  sum softmax(x) = 1",
        "inputs   softmax(x (2, 3) float64, axis=-1)",
    ]
    (call,) = CHECKS[0].calls(np.random.default_rng(0))
    out = answer(None, call).out
    drawn = ["  " + line for line in str(np.round(out, 4)).splitlines()]
    assert said[said.index("the right answer") :] == ["the right answer", "  out (2, 3) float64", *drawn]
    assert "  axis = -1" in said


def test_a_check_with_large_inputs_is_shown_by_a_tiny_one() -> None:
    said = explain.explain("large-scores")
    assert "inputs   softmax(x (40, 30) float64, axis=-1)" in said
    assert "no-max" in said.partition("\nlook")[0]
    assert "  x (2, 3) float64\n" in said
    assert len(said.splitlines()) < 25


def test_a_check_that_no_mistake_fails_says_what_its_exercise_asks_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mistakes, "MISTAKES", ())
    assert "\nmatters  weighted values\n" in explain.explain("mask-hides")


def test_a_mistake_is_taught_beside_the_right_numbers() -> None:
    said = explain.explain("wrong-axis").splitlines()
    assert said[:3] == ["mistake wrong-axis, made in softmax", "It sums over the first axis.", "fix: Sum over axis."]
    call = Call("softmax", {"x": np.array([[0.0, 1.0, 2.0], [3.0, 1.0, 1.0]]), "axis": -1})
    right, wrong = (np.round(np.asarray(answer(one, call).out), 4) for one in (None, MISTAKES[1]))
    table = said[next(i for i, line in enumerate(said) if line.startswith("  right")) :]
    at = table[0].index("with this mistake")
    left, beside = [line[:at].strip() for line in table], [line[at:].strip() for line in table]
    assert left == ["right", "out (2, 3) float64", *(line.strip() for line in str(right).splitlines())]
    assert beside == ["with this mistake", left[1], *(line.strip() for line in str(wrong).splitlines())]


def test_the_example_is_one_that_shows_the_mistake() -> None:
    said = explain.explain("no-mask")
    assert "  mask (2, 3) bool" in said  # without a mask there is nothing to see
    assert "x (2, 3) float64\n  [[   0. 1000. 2000.]\n" in explain.explain("no-max")
    assert "nan" in explain.explain("no-max")
    assert re.search(r"^ +\S.* {4,}writes to x$", explain.explain("writes"), re.MULTILINE)


def test_a_mistake_that_nothing_shows_says_so() -> None:
    assert explain.explain("nowhere").endswith("\n\nno example here is small enough to show it")


def test_what_an_implementation_raises_is_its_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    def raises(mistake: Mistake | None, call: Call, params: Any = None) -> Result:
        if mistake is None:
            return answer(None, call)
        raise ValueError(HOSTILE["escapes"] + "x" * 10_000)

    monkeypatch.setattr(mistakes, "answer", raises)
    said = explain.explain("no-max")
    assert re.search(r"raises ValueError: \\x1b\[2J", said)
    assert max(map(len, said.splitlines())) < 300
    assert said.replace("\n", "").isprintable()


def test_another_type_of_numbers_is_another_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    def halved(mistake: Mistake | None, call: Call, params: Any = None) -> Result:
        weights = np.zeros(2, np.float64 if mistake is None else np.float32)
        return Result(weights, weights)

    monkeypatch.setattr(mistakes, "answer", halved)
    assert re.search(r"out \(2,\) float64 +out \(2,\) float32", explain.explain("no-max"))


def test_arguments_are_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    def spoils(mistake: Mistake | None, call: Call, params: Any = None) -> Result:
        result = answer(mistake, call)
        call.args["x"][:] = 77
        return result

    monkeypatch.setattr(mistakes, "answer", spoils)
    assert "77" not in explain.explain("wrong-axis")


@pytest.mark.parametrize("name", HOSTILE.values(), ids=HOSTILE)
def test_an_unknown_name_is_one_line(name: str) -> None:
    with pytest.raises(ValueError, match=r"^expected the name of a check or a mistake, got '") as caught:
        explain.explain(name)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 400


def test_close_names_are_given() -> None:
    with pytest.raises(ValueError, match=r"got 'no-mx'; did you mean no-max or no-mask\? See headwise check --list"):
        explain.explain("no-mx")
    with pytest.raises(ValueError, match=r"got 'zzz'; there are rows-sum, large-scores, mask-hides, no-max, "):
        explain.explain("zzz")


def test_a_name_that_both_have_is_taught_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mistakes, "MISTAKES", (MISTAKES[1]._replace(name="rows-sum"),))
    said = explain.explain("rows-sum")
    assert said.startswith("check rows-sum")
    assert "\n\nmistake rows-sum" in said


def test_the_catalogue_has_all_of_the_tables() -> None:
    assert explain.exercise_rows() == list(EXERCISES.items())
    assert explain.check_rows()[0] == ("rows-sum", "softmax", 2.0, "each row sums to 1")
    assert [row[0] for row in explain.mistake_rows()] == [mistake.name for mistake in MISTAKES]
    assert len(explain.check_rows()) == len(checks.CHECKS)


@pytest.mark.parametrize("exercise", EXERCISES)
def test_tiny_calls_are_calls_of_the_exercise(exercise: str) -> None:
    tiny = explain._tiny(exercise)
    assert tiny
    for call in tiny:
        assert call.function in FUNCTIONS
        assert set(call.args) <= set(ROLES[call.function])
        assert explain._size(call) <= 100
    axes = {call.args["q"].ndim for call in tiny if call.function == "attention"}
    assert axes == {"attention": {3}, "single_sequence": {2}}.get(exercise, set())


def test_all_names_are_given_where_none_is_close() -> None:
    assert explain.close("zzz", ["softmax", "layer"]) == "there are softmax, layer."


@pytest.mark.parametrize("name", ["NO-MAX", "no_max", " No max "])
def test_capitals_hyphens_and_underscores_make_no_difference(name: str) -> None:
    assert explain.explain(name) == explain.explain("no-max")


@pytest.mark.parametrize("between", [" + ", " or "])
def test_names_as_reports_join_them_are_explained_one_after_the_other(between: str) -> None:
    both = f"{explain.explain('no-max')}\n\n{explain.explain('wrong-axis')}"
    assert explain.explain(f"no-max{between}wrong-axis") == both
    assert explain.explain(f"no-max{between}no-max") == explain.explain("no-max")
    with pytest.raises(ValueError, match="got 'nowt'"):
        explain.explain(f"no-max{between}nowt")


def test_texts_are_folded_at_a_width() -> None:
    said = explain.explain("large-scores", 40).partition("\n\n")[0].splitlines()
    assert max(map(len, said[1:])) <= 40
    assert explain.explain("large-scores", 40).split() == explain.explain("large-scores").split()


# ------------------------------------------------------------------------------------- the real tables
@pytest.fixture
def real(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tables as they are."""
    monkeypatch.undo()


@pytest.mark.usefixtures("real")
def test_no_name_holds_what_stands_between_names() -> None:
    names = [check.name for check in checks.CHECKS] + [mistake.name for mistake in mistakes.MISTAKES]
    assert not [name for name in names if " + " in name or " or " in name]
    assert len({explain._same(name) for name in names}) == len(set(names))


@pytest.mark.usefixtures("real")
def test_a_query_without_keys_is_shown_by_one() -> None:
    shown, right = explain.explain("no_key").split("the right answer")
    assert "[False False False]" in shown
    assert "[0.     0.    ]" in right


@pytest.mark.usefixtures("real")
def test_a_nan_behind_a_mask_is_shown_by_one() -> None:
    shown, right = explain.explain("nan_behind_mask").split("the right answer")
    assert "[nan nan]" in shown
    assert "nan" not in right
    assert "0.8044" in right


@pytest.mark.usefixtures("real")
@pytest.mark.parametrize("check", ["softmax_large", "softmax_rows_apart", "large", "heads_large", "layer_large"])
def test_large_numbers_are_shown_by_some(check: str) -> None:
    example = explain.explain(check).partition("\nexample")[2].partition("the right answer")[0]
    numbers = [abs(float(number)) for number in re.findall(r"(?<![\w(])-?\d+\.\d*", example)]
    assert max(numbers) >= 1000
    assert len(numbers) <= 100


@pytest.mark.usefixtures("real")
def test_ordinary_numbers_are_shown_by_ordinary_ones() -> None:
    for check in ("softmax_values", "hand_case", "heads_values", "layer_values"):
        calls = [call for one in checks.CHECKS if one.name == check for call in explain._calls(one)]
        call = explain._example(calls[0].function, calls) if calls else None
        assert call is None or "large numbers" not in explain._traits(call)
