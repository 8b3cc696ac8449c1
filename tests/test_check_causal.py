"""Attention that takes causal=: right kernels pass without a mask, wrong ones fail, and how they align is a remark."""

import re

import numpy as np
import pytest
from solved import solution

from headwise.check import grade
from headwise.check.report import FAILED, UNTAKEN
from headwise.testing import assert_attention

OF_HIDING = {"future", "upper_triangle", "padding_and_causal", "many_keys_masked"}
SKIP, RULE = "j0 > i0 + bm - 1 + offset", "keys <= rows[:, None] + offset"
OFFSET = "offset = n_k - n_q"
LOCAL = "(keys - j0) <= (rows - i0)[:, None]"
NEVER = "j0 > n_k"
IGNORED, SKIPPED, FORGOTTEN = "causal ignored", "visible tiles skipped", "offset of the tile forgotten in the mask"
SIZES = [(64, 64), (128, 64), (64, 32), (32, 128), (16, 16)]


def kernel(*changes, bm=64, bn=64):
    return solution("causal_kernel", ("BM, BN = 64, 64", f"BM, BN = {bm}, {bn}"), *changes)["flash"]


def verdicts(report, status):
    return {verdict.check for verdict in report.verdicts if verdict.status == status}


def names(report):
    return {mistake.name for verdict in report.verdicts for mistake in verdict.mistakes}


def remarks(report):
    return [remark for verdict in report.verdicts for remark in verdict.remarks]


def dense(q, k, v, mask=None, causal=False, upper=False, diagonal=0):
    n_q, n_k = q.shape[-2], k.shape[-2]
    scores = q @ np.swapaxes(k, -1, -2) / np.sqrt(q.shape[-1])
    if causal:
        scores = np.where(np.tri(n_q, n_k, diagonal + (0 if upper else n_k - n_q), dtype=bool), scores, -np.inf)
    if mask is not None:
        scores = np.where(mask, scores, -np.inf)
    most = scores.max(axis=-1, keepdims=True)
    e = np.exp(scores - np.where(np.isneginf(most), 0, most))
    total = e.sum(axis=-1, keepdims=True)
    return e @ v / np.where(total == 0, 1, total)


# ------------------------------------------------------------------------------------------- right ones
@pytest.mark.parametrize("sizes", SIZES)
def test_a_right_kernel_is_asked_through_causal_and_passes(sizes):
    report = grade(kernel(bm=sizes[0], bn=sizes[1]), "attention")
    assert report.passed, str(report)
    assert {v.check for v in report.verdicts if v.status == UNTAKEN and v.weight} == {"masked_keys"}
    assert not [remark for remark in remarks(report) if "align" in remark]


@pytest.mark.parametrize("seed", range(1, 4))
def test_a_right_kernel_passes_from_every_seed(seed):
    assert_attention(kernel(), seed=seed, partial=True)


def test_without_mask_and_without_causal_nothing_of_hiding_is_asked():
    report = grade(lambda q, k, v: dense(q, k, v), "attention")
    assert {v.check for v in report.verdicts if v.status == UNTAKEN and v.weight} == {*OF_HIDING, "masked_keys"}


def test_with_a_mask_and_without_causal_nothing_is_said_of_it():
    report = grade(lambda q, k, v, mask=None: dense(q, k, v, mask), "attention")
    assert report.passed
    assert not [remark for remark in remarks(report) if "causal" in remark]


def test_what_takes_causal_alone_is_said_to_be_judged_by_some_calls():
    report = grade(kernel(), "attention")
    said = {v.check for v in report.verdicts if any("no argument for mask" in remark for remark in v.remarks)}
    assert said >= OF_HIDING


# ------------------------------------------------------------------------------------------- how it is asked
NAMED = {
    "causal": lambda q, k, v, causal=False: dense(q, k, v, causal=causal),
    "is_causal": lambda query, key, value, is_causal=False: dense(query, key, value, causal=is_causal),
    "IS_CAUSAL": lambda q, k, v, IS_CAUSAL=0: dense(q, k, v, causal=IS_CAUSAL),
    "use_causal_mask": lambda q, k, v, use_causal_mask=None: dense(q, k, v, causal=use_causal_mask),
    "autoregressive": lambda q, k, v, *, autoregressive=False: dense(q, k, v, causal=autoregressive),
    "no default": lambda q, k, v, causal, sm_scale: dense(q * sm_scale * q.shape[-1] ** 0.5, k, v, causal=causal),
    "True by default": lambda q, k, v, causal=True: dense(q, k, v, causal=causal),
    "Flash-Attention": lambda q, k, v, dropout_p=0.0, softmax_scale=None, causal=False, window_size=(-1, -1): dense(
        q, k, v, causal=causal
    ),
    "names of one's own": lambda a, b, c, causal=False: dense(a, b, c, causal=causal),
    "between": lambda q, k, v, causal=False, mask=None: dense(q, k, v, mask, causal),
}


@pytest.mark.parametrize("name", NAMED)
def test_causal_is_asked_under_its_usual_names(name):
    report = grade(NAMED[name], "attention")
    assert report.passed, str(report)
    assert not verdicts(report, UNTAKEN) & OF_HIDING


UNASKED = {
    "any names": lambda q, k, v, **options: dense(q, k, v, options.get("mask")),
    "any values": lambda *arrays: dense(*arrays),
    "by position": lambda a, b, c, d=None: dense(a, b, c, d),
    "another option": lambda q, k, v, masked=False: dense(q, k, v),
}


@pytest.mark.parametrize("name", UNASKED)
def test_causal_is_not_passed_where_no_name_says_it(name):
    report = grade(UNASKED[name], "attention")
    said = [hint for verdict in report.verdicts for hint in verdict.hints[:1]]
    assert not [hint for hint in said if "causal True" in hint or "causal=True" in hint]
    assert not [remark for remark in remarks(report) if "causal" in remark]


# ------------------------------------------------------------------------------------------- wrong ones
WRONG = {  # how it is made -> its name, or none, and the lines that are changed
    "ignored": (IGNORED, [("if causal and", "if False and"), ("            if causal:", "            if False:")]),
    "strict": ("causal off by one (strict)", [(RULE, "keys < rows[:, None] + offset")]),
    "one ahead": ("causal off by one (one ahead)", [(RULE, f"{RULE} + 1"), (SKIP, f"{SKIP} + 1")]),
    "always": ("always causal", [("if causal and", "if"), ("            if causal:", "            if True:")]),
    "turned over": ("causal transposed", [(RULE, "keys >= rows[:, None] + offset"), (SKIP, NEVER)]),
    "skip without the offset": (SKIPPED, [(SKIP, "j0 > i0 + bm - 1")]),
    "skip without both": (SKIPPED, [(SKIP, "j0 > i0")]),
    "local": (FORGOTTEN, [(RULE, LOCAL), (SKIP, NEVER)]),
    "local, and skipped": (FORGOTTEN, [(RULE, LOCAL)]),
    "offset of the wrong sign": (None, [(OFFSET, "offset = n_q - n_k")]),
}


@pytest.mark.parametrize("sizes", [(64, 64), (32, 128)])
@pytest.mark.parametrize("how", WRONG)
def test_a_wrong_causal_fails_and_is_named(how, sizes):
    name, changes = WRONG[how]
    report = grade(kernel(*changes, bm=sizes[0], bn=sizes[1]), "attention")
    assert verdicts(report, FAILED)
    assert names(report) == ({name} if name else set()), str(report)
    with pytest.raises(
        AssertionError, match=rf"checks failed, known mistakes: {re.escape(name)}\n" if name else "checks failed"
    ):
        assert_attention(kernel(*changes, bm=sizes[0], bn=sizes[1]), partial=True)


@pytest.mark.parametrize("sizes", [(128, 64), (64, 16)])
def test_a_skip_that_forgets_where_a_tile_of_queries_ends_is_named(sizes):
    report = grade(kernel((SKIP, "j0 > i0 + offset"), bm=sizes[0], bn=sizes[1]), "attention")
    assert verdicts(report, FAILED) == {"many_keys_masked"}
    assert names(report) == {SKIPPED}


def test_causal_that_is_ignored_beside_a_right_mask_fails():
    report = grade(lambda q, k, v, mask=None, causal=False: dense(q, k, v, mask), "attention")
    assert verdicts(report, FAILED) == {"future", "upper_triangle", "padding_and_causal"}
    assert names(report) == {IGNORED}


def test_a_wrong_mask_beside_a_right_causal_fails():
    report = grade(lambda q, k, v, mask=None, causal=False: dense(q, k, v, None, causal), "attention")
    assert {"future", "upper_triangle", "padding_and_causal"} <= verdicts(report, FAILED)
    assert names(report) == {"mask ignored"}


def test_another_mistake_is_named_whatever_causal_does():
    for upper in (False, True):
        report = grade(
            lambda q, k, v, causal=False, u=upper: dense(q * q.shape[-1] ** 0.5, k, v, None, causal, u), "attention"
        )
        assert names(report) == {"no scale"}


# ------------------------------------------------------------------------------------------- how it is aligned
@pytest.mark.parametrize(
    "fn",
    [kernel((OFFSET, "offset = 0")), lambda q, k, v, mask=None, causal=False: dense(q, k, v, mask, causal, upper=True)],
)
def test_the_other_alignment_is_a_remark_and_no_fault(fn):
    report = grade(fn, "attention")
    assert report.passed, str(report)
    said = {v.check for v in report.verdicts if any("first query with the first key" in text for text in v.remarks)}
    assert said == {"upper_triangle", "many_keys_masked"}
    assert_attention(fn, partial=True)


def test_an_alignment_that_is_neither_fails():
    for diagonal in (1, 2):

        def between(q, k, v, causal=False, shift=diagonal):
            return dense(q, k, v, causal=causal, diagonal=shift if q.shape[-2] < k.shape[-2] else 0, upper=True)

        assert verdicts(grade(between, "attention"), FAILED) == {"upper_triangle", "many_keys_masked"}


def test_an_alignment_that_changes_with_the_shapes_fails():
    def either(q, k, v, causal=False):
        return dense(q, k, v, causal=causal, upper=q.shape[-2] > 1)

    report = grade(either, "attention")
    assert verdicts(report, FAILED) == {"upper_triangle"}
    assert any("some calls lower right and others upper left" in v.hints[0] for v in report.verdicts if v.hints)
