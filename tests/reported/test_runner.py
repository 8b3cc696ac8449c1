"""The runner can fail: wrong results, wrong errors and broken adapters are caught by the cases made for them."""

import os

import numpy as np
import pytest

from reported.adapter import Adapter, EngineAdapter, Waiting
from reported.case import close
from reported.cases import BY_ID, CASES
from reported.runner import ERRORS, answer, judge_error, judge_result, names_a_function, run_case

VALUES = [case for case in CASES if case.expected and not case.check and answer(case) not in ERRORS]
by_id = pytest.mark.parametrize("case", VALUES, ids=lambda case: case.id)


@by_id
def test_only_the_right_result_passes(case):
    asked = answer(case)
    answers = {"value": case.expected, **case.alternatives}
    for label, result in answers.items():
        assert judge_result(case, result).status == ("pass" if label == asked else "fail")
    for other in (case.wrong and case.expected | case.wrong, {}):
        assert judge_result(case, other).status == "fail"


@by_id
def test_an_error_fails_where_a_result_is_asked_for(case):
    assert judge_error(case, ValueError("softmax: not today")).status == "fail"


ASK_FOR_ERRORS = [case for case in CASES if answer(case) in ERRORS]


@pytest.mark.parametrize("case", ASK_FOR_ERRORS, ids=lambda case: case.id)
def test_only_the_right_error_passes(case):
    right = {"ValueError": ValueError, "TypeError": TypeError}[answer(case)]
    assert judge_error(case, right("softmax: x: expected something else")).status == "pass"
    wrong_errors = [
        right("operands could not be broadcast together with shapes (2,4,3) (2,3)"),
        right("matmul: Input operand 1 has a mismatch in its core dimension 0"),
        right("no_such_function: x: expected something else"),
        right(""),
        IndexError("softmax: x: expected something else"),
        AttributeError("softmax: x: expected something else"),
        np.exceptions.AxisError("softmax: axis 2 is out of bounds"),
        ({ValueError, TypeError} - {right}).pop()("softmax: x: expected something else"),
    ]
    for error in wrong_errors:
        assert judge_error(case, error).status == "fail", repr(error)
    assert judge_result(case, True if case.run else {"out": np.zeros(1)}).status == "fail"


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("softmax: axis", True),
        ("masks.causal: offset", True),
        ("MultiHeadSelfAttention: n_heads", True),
        ("masks: not a function", False),
        ("softmax of nothing", False),
        ("float: a builtin", False),
        ("", False),
    ],
)
def test_names_of_functions(text, named):
    assert names_a_function(text) is named


class DropsTheMask(Adapter):
    uses = ("mask", "key_mask")

    def attention(self, *, mask=None, key_mask=None, **given):
        return super().attention(**given)


class FillsWithALargeNumber(Adapter):
    uses = ("mask",)

    def attention(self, *, mask=None, bias=None, **given):
        bias = bias if mask is None else np.where(mask, 0.0, -1e4)
        return super().attention(bias=bias, **given)


class StartsCausalAtTheCorner(Adapter):
    uses = ("causal",)

    def attention(self, *, causal=None, **given):
        return super().attention(causal=causal and "upper_left", **given)


class TakesZeroForNone(Adapter):
    uses = ("scale",)

    def attention(self, *, scale=None, **given):
        return super().attention(scale=scale or None, **given)


class CountsTheOwnPosition(Adapter):
    uses = ("window",)

    def attention(self, *, window=None, **given):
        return super().attention(window=window and (window[0] + 1, window[1]), **given)


class ReturnsNaN(Adapter):
    uses = ("q",)

    def attention(self, **given):
        return {name: np.full_like(x, np.nan) for name, x in super().attention(**given).items()}


class ReturnsFloat64(Adapter):
    uses = ("q",)

    def attention(self, **given):
        return {name: x.astype(np.float64) for name, x in super().attention(**given).items()}


class WritesToItsInput(Adapter):
    uses = ("q",)

    def attention(self, *, q, **given):
        q *= 1
        return super().attention(q=q, **given)


class AnswersAnything(Adapter):
    uses = ("q",)

    def attention(self, **given):
        try:
            return super().attention(**given)
        except ValueError:
            return {"out": np.zeros(1)}


class RaisesWhatNumPyRaises(Adapter):
    uses = ("q",)

    def attention(self, **given):
        try:
            return super().attention(**given)
        except ValueError as error:
            raise ValueError("operands could not be broadcast together") from error


ATTENTION = [case for case in CASES if case.op == "attention"]
WITH_VALUES = {case.id for case in ATTENTION if not case.raises}
RAISING = {case.id for case in ATTENTION if case.raises}
by_both = pytest.mark.parametrize("base", [Adapter, EngineAdapter])


def broken_as(broken, base):
    """The broken adapter, with another one below it."""
    return broken() if base is Adapter else type(broken.__name__, (broken, base), {})()


class PadsBlocks(EngineAdapter):
    """Blocks whose last one is filled up with keys that count."""

    def attention(self, *, k, v, block=None, **given):
        if block is not None:
            k, v = (np.concatenate([x, np.zeros((-len(x) % block, x.shape[-1]))]) for x in (k, v))
        return super().attention(k=k, v=v, block=block, **given)


@by_both
@pytest.mark.parametrize(
    ("broken", "caught"),
    [
        (DropsTheMask, {"B001", "B003", "B007", "B009", "B013", "B020", "B022", "B032", "B086", "B174"}),
        (FillsWithALargeNumber, {"B001", "B003", "B007", "B032", "B034"}),
        (StartsCausalAtTheCorner, {"B015", "B017", "B103", "B109"}),
        (TakesZeroForNone, {"B071"}),
        (CountsTheOwnPosition, {"B098", "B100", "B102", "B103", "B105"}),
        (ReturnsNaN, WITH_VALUES - {"B044", "B053"}),
        (ReturnsFloat64, {"B044", "B050"}),
        (WritesToItsInput, WITH_VALUES),
        (AnswersAnything, RAISING),
        (RaisesWhatNumPyRaises, RAISING),
    ],
)
def test_broken_adapters_are_caught(broken, caught, base):
    failed = {case.id for case in ATTENTION if run_case(case, broken_as(broken, base)).status == "fail"}
    assert caught <= failed
    assert all(set(broken.uses) & BY_ID[name].inputs.keys() for name in failed)


class Mutates(Adapter):
    def attention(self, *, mask=None, **given):
        result = super().attention(mask=mask, **given)
        if mask is not None and mask.flags.writeable:
            mask[:] = True
        return result


class SeesHiddenValues(Adapter):
    def attention(self, *, k, **given):
        return super().attention(k=np.asarray(k), **given)


class DropsOutAlways(Adapter):
    def attention(self, *, training=True, **given):
        return super().attention(**given)


class NeverScalesTheKept(Adapter):
    def attention(self, *, dropout_p=0.0, **given):
        result = super().attention(dropout_p=dropout_p, **given)
        return {"out": result["out"] * (1 - dropout_p)}


class LetsPaddingIn(Adapter):
    def attention(self, *, key_mask=None, **given):
        return super().attention(**given)


class DiesInAChild(Adapter):
    def __init__(self):
        self.parent = os.getpid()

    def attention(self, **given):
        if os.getpid() != self.parent:
            os._exit(1)
        return super().attention(**given)


@by_both
@pytest.mark.parametrize(
    ("broken", "name"),
    [
        (Mutates, "B069"),
        (SeesHiddenValues, "B172"),
        (DropsOutAlways, "B136"),
        (NeverScalesTheKept, "B138"),
        (LetsPaddingIn, "B177"),
        (ReturnsNaN, "B061"),
        (ReturnsNaN, "B084"),
        (DiesInAChild, "B170"),
    ],
)
def test_broken_adapters_are_caught_by_scenarios(broken, name, base):
    assert run_case(BY_ID[name], broken_as(broken, base)).status == "fail"


def test_an_engine_that_pads_its_blocks_is_caught():
    assert run_case(BY_ID["B151"], PadsBlocks()).status == "fail"


@pytest.mark.parametrize("adapter", [Adapter(), EngineAdapter()])
def test_the_layers_of_the_adapter_agree(adapter):
    case = BY_ID["B073"]
    got = adapter.mha(**case.inputs, want=("weights",))
    assert close(got["out"], case.expected["out"])
    assert got["weights"].shape == (1, 2, 2, 2)
    layer = adapter.make_mha(params=case.inputs["params"], num_heads=2)
    assert close(layer(case.inputs["query"]), case.expected["out"])


@pytest.mark.parametrize("adapter", [Adapter(), EngineAdapter()])
def test_options_of_attention_reach_the_layer(adapter):
    inputs = BY_ID["B073"].inputs | {"key_mask": np.array([[True, False]])}
    assert close(adapter.mha(**inputs)["out"], [[[1, 0], [1, 0]]])
    with pytest.raises(Waiting, match="layer with dropout"):
        adapter.mha(**inputs, dropout_p=0.5, seed=0)


def test_key_lengths_are_a_key_mask():
    x = np.random.default_rng(0).standard_normal((2, 3, 5))
    real = np.array([[True, True, False], [True, False, False]])
    by_length = Adapter().attention(q=x, k=x, v=x, key_lengths=np.array([2, 1]))
    by_key = Adapter().attention(q=x, k=x, v=x, key_mask=real)
    assert close(by_length["out"], by_key["out"])
