"""Right solutions in many styles pass, what is not asked for is not held against anybody, and names are deserved."""

import random
import sys
import threading
from types import SimpleNamespace

import numpy as np
import pytest
from solved import FOLDER, solution

import headwise
from headwise.check import grade
from headwise.check.answers import Parts, composed
from headwise.check.asking import asked
from headwise.check.calls import Call
from headwise.check.checks import CHECKS, EXERCISES, rights
from headwise.check.naming import alike
from headwise.check.report import FAILED, PASSED, UNTAKEN
from headwise.testing import assert_attention

STYLES = {  # solution -> the exercises in it
    "textbook": "softmax attention causal_mask multi_head layer",
    "minus_infinity": "softmax attention causal_mask multi_head layer",
    "einsum": "softmax attention causal_mask multi_head layer",
    "loops": "softmax attention causal_mask multi_head layer",
    "lists": "softmax attention causal_mask multi_head layer",
    "out_only": "softmax attention causal_mask multi_head layer",
    "after_exp": "softmax attention causal_mask",
    "torch_names": "softmax attention layer",
    "query_key_value": "softmax multi_head",
    "own_class": "layer",
    "linear_class": "layer",
    "interview": "attention",
    "keras_names": "attention layer",
    "tiled": "softmax attention causal_mask multi_head layer",
}
QUIET = {"q": np.eye(3), "k": np.eye(3), "v": np.eye(3)}


def verdicts(report, status):
    return [verdict.check for verdict in report.verdicts if verdict.status == status]


def remarks(report):
    return [remark for verdict in report.verdicts for remark in verdict.remarks]


# ------------------------------------------------------------------------------------------- the table
def test_the_table_is_whole():
    assert len({check.name for check in CHECKS}) == len(CHECKS)
    assert {check.exercise for check in CHECKS} | {"single_sequence"} == set(EXERCISES)
    for check in CHECKS:
        assert check.weight >= 0
        assert check.look
        assert check.formula
        assert not check.claim.endswith(".")


def test_the_classic_eight_come_first_and_in_their_order():
    first = [check.name for check in CHECKS[:8]]
    assert first == [
        "shapes",
        "hand_case",
        "masked_keys",
        "future",
        "causal_mask",
        "rows",
        "heads_against_loop",
        "block_diagonal",
    ]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.name)
def test_a_check_draws_its_data_from_the_seed_alone(check):
    def drawn(seed):
        return repr([(call.function, sorted(call.args.items())) for call in asked(check, seed)])

    assert drawn(3) == drawn(3)
    fixed = {"softmax_of_nothing", "sentinel"}  # one row of -inf, one score of -1e12
    assert (len({drawn(seed) for seed in range(6)}) == 1) == (check.name in fixed)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.name)
def test_the_steps_that_mistakes_replace_give_the_right_answer_as_they_are(check):
    layer = {f"w_{name}": np.random.default_rng(0).standard_normal((12, 12)) for name in "qkvo"}
    for call in asked(check, 0):
        params = layer if call.function == "layer" and call.args["d_model"] == 12 else {}
        if call.function == "layer" and not params:
            continue
        wanted = rights([call], [SimpleNamespace(params=params)])[0]
        if check.name not in ("nan_behind_mask",):  # the library keeps a NaN away, the steps do not
            assert alike(composed(Parts(), call, params), wanted), call.function


# ------------------------------------------------------------------------------------------- right solutions
@pytest.mark.parametrize("style", STYLES)
def test_a_right_solution_passes_whatever_its_style(style):
    report = grade(solution(style))
    assert report.passed, str(report)
    assert set(report.found) == set(STYLES[style].split())
    assert report.score == report.maximum > 0


@pytest.mark.parametrize("seed", range(1, 6))
def test_a_right_solution_passes_from_every_seed(seed):
    assert grade(solution("textbook"), seed=seed).passed


def test_the_library_passes_its_own_checks_without_a_remark():
    ours = {name: getattr(headwise, name) for name in ("softmax", "scaled_dot_product_attention", "causal_mask")}
    ours |= {name: getattr(headwise, name) for name in ("multi_head_attention", "MultiHeadSelfAttention")}
    report = grade(ours)
    assert report.passed, str(report)
    assert len(report.found) == 5
    assert [text for text in remarks(report) if "integers" not in text and "0 and 1" not in text] == []


def test_what_hides_a_score_is_a_remark_and_no_fault():
    sentinel, infinite = grade(solution("textbook"), "attention"), grade(solution("minus_infinity"), "attention")
    assert sentinel.passed
    assert infinite.passed
    assert [text for text in remarks(sentinel) if "-1e9" in text]
    assert [text for text in remarks(infinite) if "-1e9" in text] == []
    assert [text for text in remarks(sentinel) if "mean of all values" in text]


def test_one_sequence_is_an_exercise_of_its_own():
    assert grade(solution("single_sequence"), "single_sequence").passed
    whole = grade(solution("single_sequence"), "attention")
    assert verdicts(whole, FAILED) == ["shapes", "padding_and_causal", "items_apart"]
    assert any("single_sequence asks for no more" in remark for remark in whole.remarks)


def test_an_object_and_a_function_by_its_exercise():
    assert grade(SimpleNamespace(**solution("textbook"))).passed
    assert grade(solution("textbook")["scaled_dot_product_attention"], "attention").passed
    assert grade(lambda n: np.tri(n, dtype=bool), "causal_mask").passed


# ------------------------------------------------------------------------------------------- what is not there
def test_a_function_without_a_mask_is_not_asked_for_one():
    report = grade({"attention": lambda q, k, v: solution("textbook")["scaled_dot_product_attention"](q, k, v)})
    assert "masked_keys" in verdicts(report, UNTAKEN)
    assert "hand_case" in verdicts(report, PASSED)
    assert report.passed
    assert report.maximum < grade(solution("textbook"), "attention").maximum


def test_what_was_asked_for_and_is_missing_fails():
    report = grade({"softmax": solution("textbook")["softmax"]}, ["softmax", "attention"])
    assert not report.passed
    assert {v.status for v in report.verdicts if v.exercise == "attention" and v.weight} == {FAILED}
    assert "scaled_dot_product_attention" in report.missing["attention"]


def test_nothing_that_is_known_cannot_be_graded():
    with pytest.raises(TypeError, match=r"grade: target: expected a path, .* with a known name, got SimpleNamespace"):
        grade(SimpleNamespace(helper=len))


def test_unknown_names_and_senseless_limits_are_refused_at_once():
    with pytest.raises(ValueError, match=r"grade: exercise: expected one of softmax, .*got 'sofmax'"):
        grade({}, "sofmax")
    with pytest.raises(TypeError, match="grade: exercise"):
        grade({}, 3)
    with pytest.raises(ValueError, match="grade: seed"):
        grade({}, seed=-1)
    with pytest.raises(ValueError, match="grade: time_limit"):
        grade({}, time_limit=0)
    with pytest.raises(ValueError, match="grade: jobs"):
        grade({}, jobs=0)


def test_weights_under_unknown_names_ask_for_an_adapter():
    report = grade(solution("odd_names"))
    assert not report.passed
    assert all("weights_of" in v.hints[0] for v in report.verdicts if v.status == FAILED)
    adapter = "\n\ndef weights_of(layer):\n    return {f'w_{name[0]}': layer.proj[name] for name in layer.proj}\n"
    assert grade(solution("odd_names", more=adapter)).passed


# ------------------------------------------------------------------------------------------- names
def test_the_hand_case_shows_the_numbers_of_the_exercise():
    report = grade(solution("textbook", (" / np.sqrt(d_k)", "")), "attention")
    hand = next(verdict for verdict in report.verdicts if verdict.check == "hand_case")
    assert "expected weights 0.6698 and 0.3302, got 0.7311 and 0.2689" in hand.hints[0]
    assert [mistake.name for mistake in hand.mistakes] == ["no scale"]


def test_two_mistakes_at_once_are_both_named():
    changes = [(" / np.sqrt(d_k)", " / d_k"), ("merge_heads(out) @ w_o", "merge_heads(out)")]
    report = grade(solution("textbook", *changes), "multi_head")
    names = {mistake.name for verdict in report.verdicts for mistake in verdict.mistakes}
    assert "scale 1/d + forgotten w_o" in names


def test_twins_are_told_together():
    report = grade(
        solution("textbook", ("        scores = np.where(mask, scores, -1e9)\n", "        scores = scores * mask\n")),
        "attention",
    )
    masked = next(verdict for verdict in report.verdicts if verdict.check == "masked_keys")
    assert {mistake.name for mistake in masked.mistakes} == {"mask times score", "masked by a small number"}


def test_twins_are_told_apart_by_other_exercises():
    """Behind a causal mask, masking the wrong way round and a mask that is the wrong way round are the same."""
    masked = ("np.where(mask, scores, -1e9)", "np.where(mask, -1e9, scores)")
    report = grade(solution("textbook", masked))
    assert {m.name for v in report.verdicts for m in v.mistakes} == {"polarity of the mask"}
    ignored = ("causal_mask(x.shape[1]) if causal else None", "None")
    report = grade(solution("textbook", ignored))
    assert {m.name for v in report.verdicts for m in v.mistakes} == {"causal ignored"}


def test_what_fits_one_check_but_not_the_others_is_not_named():
    """With d_k = 4 a scale of 1/4 is as good as 1/d: the other widths tell them apart."""
    report = grade(solution("textbook", (" / np.sqrt(d_k)", " / 4")), "attention")
    names = [{mistake.name for mistake in v.mistakes} for v in report.verdicts if v.status == FAILED]
    assert names
    assert set.union(*names) == {"scale of a fixed width"}


def test_an_unknown_mistake_gets_hints_and_no_name():
    report = grade(solution("textbook", ("return exps / np.sum", "return exps**1.1 / np.sum")), "softmax")
    failed = [verdict for verdict in report.verdicts if verdict.status == FAILED]
    assert failed
    assert all(len(verdict.hints) == 3 and not verdict.mistakes for verdict in failed)


def test_an_error_alone_is_no_proof():
    """A ValueError in every batch, for a reason of its own: nothing is named for it."""
    raising = ("    d_k = q.shape[-1]\n", "    d_k = q.shape[-1]\n    if q.ndim > 2:\n        raise ValueError('no')\n")
    report = grade(solution("textbook", raising), "attention")
    assert verdicts(report, FAILED) == ["shapes", "padding_and_causal", "items_apart"]
    assert not any(verdict.mistakes for verdict in report.verdicts)


# ------------------------------------------------------------------------------------------- assert_attention
def test_assert_attention_is_silent_or_says_what_is_wrong(capfd):
    def loud(q, k, v, mask=None):
        print("hello")
        return solution("minus_infinity")["scaled_dot_product_attention"](q, k, v, mask)

    assert assert_attention(loud) is None
    assert capfd.readouterr() == ("", "")
    with pytest.raises(AssertionError, match=r"\A\d+ of \d+ checks failed, known mistakes: no scale\n"):
        assert_attention(solution("textbook", (" / np.sqrt(d_k)", ""))["scaled_dot_product_attention"])


def test_assert_attention_fails_for_what_is_no_function():
    with pytest.raises(AssertionError, match=r"assert_attention: fn: expected a function or class, got None"):
        assert_attention(None)


def test_assert_attention_outlives_an_exit():
    def leaving(q, k, v, mask=None):
        raise SystemExit(3)

    with pytest.raises(AssertionError, match="SystemExit"):
        assert_attention(leaving)


def test_assert_attention_wants_a_mask_unless_told_otherwise():
    def maskless(q, k, v):
        return solution("textbook")["scaled_dot_product_attention"](q, k, v)

    with pytest.raises(
        AssertionError, match=r"\A\d+ of \d+ checks could not be made: .*mask.*; add it, or pass partial"
    ):
        assert_attention(maskless)
    assert_attention(maskless, partial=True)


def test_assert_attention_takes_other_exercises():
    assert_attention(solution("textbook")["softmax"], exercise="softmax")
    with pytest.raises(AssertionError, match=r"strict(.|\n)*expected True, got False \(1 of 1 numbers differ\)"):
        assert_attention(lambda n: np.tri(n, k=-1, dtype=bool), exercise="causal_mask")


# ------------------------------------------------------------------------------------------- files
def test_files_and_notebooks_get_the_verdict_of_their_functions():
    for name in ("textbook.py", "notebook.ipynb"):
        report = grade(FOLDER / name, ["softmax", "causal_mask"])
        assert report.passed, str(report)
        assert report.limits_off == () or "resource" in str(report.limits_off)


def test_what_a_file_imports_is_told_and_can_be_forbidden(tmp_path):
    path = tmp_path / "solution.py"
    path.write_text("from headwise import softmax\n")
    report = grade(path)
    assert report.passed
    assert any("imports headwise" in remark for remark in report.remarks)
    forbidden = grade(path, numpy_only=True)
    assert not forbidden.passed
    assert forbidden.score == 0
    assert "NumPy alone" in forbidden.broken


def test_progress_is_told_from_the_calling_thread():
    told = []
    grade(solution("textbook"), "softmax", progress=lambda done, total: told.append((done, total)))
    assert told == [(i + 1, len(told)) for i in range(len(told))]


def test_a_call_that_is_not_understood_is_a_plain_failure():
    report = grade({"attention": lambda q, k, v, mask, flavour: q})
    assert not report.passed
    assert all("flavour" in v.hints[0] for v in report.verdicts if v.status == FAILED)


def test_calls_are_what_the_contract_says():
    for check in CHECKS:
        for call in asked(check, 0):
            assert isinstance(call, Call)
            assert call.function == check.exercise


# ------------------------------------------------------------------------------------------- odd ones
def textbook_attention(q, k, v, mask=None):
    return solution("textbook")["scaled_dot_product_attention"](q, k, v, mask)


def closing(q, k, v, mask=None):
    sys.stdout.close()
    return textbook_attention(q, k, v, mask)


ODD = {
    "names that nobody knows": lambda xq, xk, xv, mask=None: textbook_attention(xq, xk, xv, mask),
    "a dict": lambda q, k, v, mask=None: dict(
        zip(("attn_output", "attn_weights"), textbook_attention(q, k, v, mask), strict=True)
    ),
    "a closed stream": closing,
}


@pytest.mark.parametrize("name", ODD)
def test_odd_and_right(name):
    report = grade(ODD[name], "attention")
    assert report.passed, str(report)


def test_a_mask_that_is_kept_from_the_call_before_is_noticed():
    kept = []

    def attention(q, k, v, mask=None):
        kept[:] = [mask] if mask is not None else kept
        fits = kept and np.shape(kept[0]) == (q.shape[-2], k.shape[-2])
        return textbook_attention(q, k, v, kept[0] if mask is None and fits else mask)

    assert "values" in verdicts(grade(attention, "attention"), FAILED)


def test_writing_is_noticed_without_a_mask_too():
    def attention(q, k, v, mask=None):
        if mask is None:
            k *= 2
            return textbook_attention(q, k / 2, v)
        return textbook_attention(q, k, v, mask)

    assert "untouched" in verdicts(grade(attention, "attention"), FAILED)


def test_a_softmax_that_spoils_minus_infinity_or_another_axis_is_noticed():
    right = solution("textbook")["softmax"]

    def one_maximum(x, axis=-1):
        exps = np.exp(x - x.max())
        return right(x) if axis == -1 else exps / exps.sum(axis, keepdims=True)

    spoilt = grade(lambda x, axis=-1: right(x, axis) + np.isneginf(x) * 1e-3, "softmax")
    assert "softmax_values" in verdicts(spoilt, FAILED)
    assert "softmax_rows_apart" in verdicts(grade(one_maximum, "softmax"), FAILED)


def test_an_epsilon_within_the_tolerance_is_no_fault():
    changes = [("np.sum(exps, axis=axis, keepdims=True)", "(np.sum(exps, axis=axis, keepdims=True) + 1e-11)")]
    assert grade(solution("textbook", *changes), "attention").passed


def test_skipping_a_test_from_within_a_solution_is_a_failure():
    def attention(q, k, v, mask=None):
        pytest.skip("not today")

    with pytest.raises(AssertionError, match="not today"):
        assert_attention(attention)


def test_an_interrupt_of_the_user_goes_through():
    def attention(q, k, v, mask=None):
        raise KeyboardInterrupt("stop")

    with pytest.raises(KeyboardInterrupt, match="stop"):
        grade(attention, "attention")


def test_a_time_limit_beyond_a_day_is_refused():
    with pytest.raises(ValueError, match="grade: time_limit: expected at most 86400 s"):
        grade({}, time_limit=1e308)


def test_a_function_of_this_process_runs_in_the_calling_thread():
    """There an interrupt reaches it, whether or not its text can be read."""
    threads = set()

    def attention(q, k, v, mask=None):
        threads.add(threading.current_thread())
        return textbook_attention(q, k, v, mask)

    assert grade(attention, "attention").passed
    assert threads == {threading.current_thread()}


def test_infinite_results_are_a_failure_and_no_warning_of_ours():
    """Warnings are errors in tests, and cost a learner all points in some graders."""
    report = grade(lambda q, k, v, mask=None: np.full((*q.shape[:-1], v.shape[-1]), np.inf), "attention")
    assert not report.passed


def test_random_numbers_of_the_user_go_on_as_they_were():
    def attention(q, k, v, mask=None):
        random.seed(0)
        np.random.seed(0)  # noqa: NPY002
        return textbook_attention(q, k, v, mask)

    before = random.getstate(), np.random.get_state()[1].tolist()  # noqa: NPY002
    assert grade(attention, "attention").passed
    assert before == (random.getstate(), np.random.get_state()[1].tolist())  # noqa: NPY002


def test_the_one_argument_that_is_left_is_taken_for_the_mask():
    report = grade(lambda q, k, v, sieve=None: textbook_attention(q, k, v, sieve), "attention")
    assert report.passed
    assert not verdicts(report, UNTAKEN)
    assert "'sieve' is taken for the mask" in remarks(report)
    ignored = grade(lambda q, k, v, sieve=None: textbook_attention(q, k, v), "attention")
    assert "masked_keys" in verdicts(ignored, FAILED)
    additive = grade(lambda q, k, v, attn_bias=None: textbook_attention(q, k, v), "attention")
    assert "masked_keys" in verdicts(additive, UNTAKEN)


def test_a_layer_whose_weights_are_0_is_not_believed():
    held = "\n    w_o = property(lambda self: self.w_q * 0, lambda self, w: None)\n"
    zero = ("        return out, weights\n", f"        return out, weights\n{held}")
    report = grade(solution("textbook", zero), "layer")
    assert "layer_seed" in verdicts(report, FAILED)
    assert any("w_o of a new layer is 0 everywhere" in v.hints[0] for v in report.verdicts if v.status == FAILED)


def test_float32_and_an_epsilon_are_told_apart():
    cast = ("    shifted = x", "    x = x.astype(np.float32)\n    shifted = x")
    inside = grade(solution("textbook", cast), "softmax")
    assert {m.name for v in inside.verdicts for m in v.mistakes} == {"float32 inside"}
    added = ("np.sum(exps, axis=axis, keepdims=True)", "(np.sum(exps, axis=axis, keepdims=True) + 1e-7)")
    report = grade(solution("textbook", added), "attention")
    assert {m.name for v in report.verdicts for m in v.mistakes} == {"epsilon in the denominator"}


SUBTLE = {  # what is changed -> the exercise, and the check that notices
    "a layer that keeps its mask": (
        (
            "        out, weights = attend",
            "        causal = self.__dict__.setdefault('first', causal)\n        out, weights = attend",
        ),
        "layer",
        "layer_calls_apart",
    ),
    "a layer that changes its weights": (
        ("        return out, weights\n", "        self.w_v = self.w_v * 2\n        return out, weights\n"),
        "layer",
        "layer_calls_apart",
    ),
    "heads that write to x when causal": (
        (
            "    return merge_heads(out) @ w_o, weights",
            "    x[0] += causal\n    return merge_heads(out) @ w_o, weights",
        ),
        "multi_head",
        "heads_untouched",
    ),
    "a long mask that is wrong": (
        ("np.tril(np.ones((n, n), dtype=bool))", "np.tril(np.ones((n, n), dtype=bool)) & (np.arange(n) < 30)"),
        "causal_mask",
        "causal_mask",
    ),
    "keys that overflow": (
        ("    d_k = q.shape[-1]\n", "    d_k = q.shape[-1]\n    k = np.clip(k, -100, 100)\n"),
        "attention",
        "large",
    ),
    "-1e4 for no": (("-1e9)", "-1e4)"), "attention", "large"),
    "five axes": (
        (
            "    d_k = q.shape[-1]\n",
            "    d_k = q.shape[-1]\n    if q.ndim > 4:\n        raise ValueError('at most 4 axes')\n",
        ),
        "attention",
        "shapes",
    ),
}


@pytest.mark.parametrize("name", SUBTLE)
def test_subtle_faults_fail_the_check_that_is_about_them_and_no_other(name):
    change, exercise, check = SUBTLE[name]
    assert verdicts(grade(solution("textbook", change), exercise), FAILED) == [check]


def test_remarks_are_about_right_solutions():
    """One that is wrong anyway is not told that integers, NaN or -1e9 are its trouble."""
    report = grade(solution("textbook", ("np.where(mask, scores, -1e9)", "np.where(mask, -1e9, scores)")), "attention")
    assert not report.passed
    assert remarks(report) == []


def test_a_softmax_that_cuts_off_integers_is_remarked_on():
    buffered = grade(
        lambda x, axis=-1: np.zeros_like(x) + solution("textbook")["softmax"](x, axis).astype(x.dtype), "softmax"
    )
    assert any("integers give other numbers" in text for text in remarks(buffered))
    assert buffered.passed


# ------------------------------------------------------------------------------------------- names that are deserved
SMALL = {  # faults of about the size that float32 rounds, which are something else
    "a leak behind the mask": (
        "weights = softmax(scores, axis=-1)",
        "weights = softmax(scores, axis=-1) + 1e-7 * (mask is not None)",
    ),
    "a little of everything": (
        "weights = softmax(scores, axis=-1)",
        "weights = 0.999999 * softmax(scores, axis=-1) + 1e-6 / k.shape[-2]",
    ),
    "a scale a little off": (" / np.sqrt(d_k)", " / np.sqrt(d_k) * (1 + 2e-8)"),
    "a scale off by what float16 rounds": (" / np.sqrt(d_k)", " / np.sqrt(d_k + 1e-3)"),
}


@pytest.mark.parametrize("name", SMALL)
def test_small_faults_are_not_told_as_rounding(name):
    assert names(grade(solution("textbook", SMALL[name]), "attention")) == set()


@pytest.mark.parametrize("decimals", [3, 6])
def test_rounding_to_decimals_is_told_from_a_precision(decimals):
    rounds = ("return np.matmul(weights, v), weights", f"return np.round(np.matmul(weights, v), {decimals}), weights")
    report = grade(solution("textbook", rounds))
    assert names(report) == {"rounded to decimals"}


def test_an_error_in_every_call_names_nothing_by_its_words_alone():
    """The same words, size for size, as those of k.T, which would not have raised them for one sequence."""
    raising = ("    d_k = q.shape[-1]\n", "    d_k = q.shape[-1]\n    v @ q\n")
    assert names(grade(solution("textbook", raising))) == set()


def test_a_constant_passes_nothing_but_what_it_computes():
    constant = ("return np.matmul(weights, v), weights", "return np.zeros_like(np.matmul(weights, v))")
    report = grade(solution("textbook", constant), "attention")
    assert report.score <= 2
    assert any("out holds 0.0000 in every place" in v.hints[0] for v in report.verdicts if v.status == FAILED)


def test_a_mistake_is_one_and_the_same_in_all_checks():
    """A width of 4 here and of 9 there is not one fixed width."""
    varying = (" / np.sqrt(d_k)", " / {4: 4.0, 2: 2.0}.get(d_k, np.sqrt(d_k))")
    assert "scale of a fixed width" not in names(grade(solution("textbook", varying), "multi_head"))


def test_what_hides_too_little_for_the_tolerance_is_named_by_what_it_does_elsewhere():
    """exp(-50) is no wrong number within 1e-9, but it is not 0."""
    clipped = ("weights = softmax(scores, axis=-1)", "weights = softmax(np.clip(scores, -50, 50), axis=-1)")
    report = grade(solution("textbook", clipped), "attention")
    masked = next(v for v in report.verdicts if v.check == "masked_keys")
    assert [m.name for m in masked.mistakes] == ["clipped instead of shifted"]


def names(report):
    return {mistake.name for verdict in report.verdicts for mistake in verdict.mistakes}


def test_float32_beside_another_mistake_is_told_as_both():
    cast = (
        "    d_k = q.shape[-1]\n",
        "    d_k = q.shape[-1]\n    q, k, v = (np.asarray(x, np.float32) for x in (q, k, v))\n",
    )
    report = grade(solution("textbook", cast, (" / np.sqrt(d_k)", "")), "attention")
    assert names(report) == {"no scale + float32 inside"}


def test_an_overflow_in_float32_is_not_told_as_rounding():
    cast = (
        "    d_k = q.shape[-1]\n",
        "    d_k = q.shape[-1]\n    q, k, v = (np.asarray(x, np.float32) for x in (q, k, v))\n",
    )
    report = grade(solution("textbook", cast, ("x - np.max(x, axis=axis, keepdims=True)", "x")), "attention")
    large = next(v for v in report.verdicts if v.check == "large")
    assert "NaN" in large.hints[0]
    assert "float32 inside" not in {m.name for m in large.mistakes}


@pytest.mark.parametrize("divide", ["q /= np.sqrt(d_k)", "q /= 2.0"])
def test_writing_to_an_input_explains_no_wrong_numbers(divide):
    wrote = ("    d_k = q.shape[-1]\n", f"    d_k = q.shape[-1]\n    {divide}\n")
    report = grade(solution("textbook", wrote), "attention")
    told = {v.check for v in report.verdicts for m in v.mistakes if m.name == "input mutated"}
    assert told == {"untouched"}


def test_the_truth_value_of_something_else_is_not_that_of_the_mask():
    asked = ("    d_k = q.shape[-1]\n", "    d_k = q.shape[-1]\n    if q == k:\n        pass\n")
    assert "truth value of the mask" not in names(grade(solution("textbook", asked), "attention"))


def test_the_forward_pass_does_not_explain_the_seed():
    changes = [("rng.standard_normal(", "np.random.default_rng(seed).standard_normal("), (" / np.sqrt(d_k)", "")]
    report = grade(solution("textbook", *changes), "layer")
    told = {v.check: {m.name for m in v.mistakes} for v in report.verdicts}
    assert told["layer_seed"] == {"one seed for all weights"}
    assert told["layer_values"] == {"no scale"}
    report = grade(
        solution(
            "textbook",
            more="\n_wk = property(lambda self: self.w_q, lambda self, w: None)\nMultiHeadSelfAttention.w_k = _wk\n",
        ),
        "layer",
    )
    seed = next(v for v in report.verdicts if v.check == "layer_seed")
    assert "w_k and w_q of a new layer hold the same numbers" in seed.hints[0]
    assert seed.mistakes == ()


KEPT = {  # what a solution keeps, or writes where it may not: source to add -> exercise, check
    "causal once, causal ever": (
        "multi_head_attention",
        "causal = KEPT.setdefault('c', causal) or causal; KEPT['c'] = causal",
        "calls_apart",
    ),
    "one head is another": ("multi_head_attention", "x = x * (1 + (heads == 1))", "heads_against_loop"),
    "one number per head": ("multi_head_attention", "x = x * (1 + (x.shape[-1] == heads))", "heads_against_loop"),
    "one key": ("scaled_dot_product_attention", "v = v * (1 + (k.shape[-2] == 1))", "values"),
    "one number per key": ("scaled_dot_product_attention", "q = q * (1 + (q.shape[-1] == 1))", "values"),
    "values of the shape of out": ("scaled_dot_product_attention", "v.shape == q.shape and v.sort()", "untouched"),
    "a late axis": ("softmax", "axis = -1 if axis == -3 else axis", "softmax_axis"),
}


@pytest.mark.parametrize("name", KEPT)
def test_what_shows_in_few_calls_is_noticed(name):
    function, line, check = KEPT[name]
    head = next(
        text for text in (FOLDER / "textbook.py").read_text().splitlines() if text.startswith(f"def {function}(")
    )
    space = solution("textbook", (f"{head}\n", f"{head}\n    {line}\n"), more="\nKEPT = {}\n")
    exercise = next(row.exercise for row in CHECKS if row.name == check)
    assert check in verdicts(grade(space, exercise), FAILED)


def test_checks_are_made_by_the_calls_that_a_solution_has_arguments_for():
    """Without a mask too, what overflows fails."""

    def naive(q, k, v):
        e = np.exp(q @ np.swapaxes(k, -1, -2) / np.sqrt(q.shape[-1]))
        return e / e.sum(axis=-1, keepdims=True) @ v

    report = grade(naive, "attention")
    assert verdicts(report, FAILED) == ["large"]
    assert any("judged by 4 of its calls" in text for text in remarks(report))
    stable = grade(lambda q, k, v: textbook_attention(q, k, v), "attention")
    assert stable.passed
    assert {"shapes", "rows", "values", "large", "untouched"} <= set(verdicts(stable, PASSED))
    assert {"masked_keys", "upper_triangle"} <= set(verdicts(stable, UNTAKEN))


def test_masked_arrays_beside_out_are_a_failure():
    def attention(q, k, v, mask=None):
        out, weights = textbook_attention(q, k, v, mask)
        return out, np.ma.masked_array(weights * 7)

    assert "values" in verdicts(grade(attention, "attention"), FAILED)


def test_a_layer_that_is_causal_by_default_is_told_not_to_be():
    change = [
        (
            "def __init__(self, d_model, n_heads, seed=0):\n",
            "def __init__(self, d_model, n_heads, seed=0, causal=True):\n        self.causal = causal\n",
        ),
        ("def __call__(self, x, causal=False):\n", "def __call__(self, x):\n        causal = self.causal\n"),
    ]
    assert grade(solution("textbook", *change), "layer").passed


def test_a_layer_without_a_seed_fails_the_check_of_the_seed_alone():
    assert verdicts(
        grade(solution("textbook", ("np.random.default_rng(seed)", "np.random.default_rng()")), "layer"), FAILED
    ) == ["layer_seed"]


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"progress": 5}, "progress: expected None or a function"),
        ({"functions": ["f"]}, "functions: expected a dict"),
        ({"exercise": []}, "exercise: expected one of softmax"),
    ],
)
def test_senseless_arguments_are_named(given, text):
    with pytest.raises((TypeError, ValueError), match=f"grade: {text}"):
        grade(solution("textbook"), **given)


def test_hints_are_looked_at_before_anything_runs():
    with pytest.raises(ValueError, match="assert_attention: hints"):
        assert_attention(textbook_attention, hints=9)
