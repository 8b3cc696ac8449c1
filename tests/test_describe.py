"""Intermediates as text: what a line says, what is left out of large arrays, and that the caller's options stay out."""

import numpy as np
import pytest

from headwise.core.describe import Line, describe


def shown(array, own_axes=2, what="tokens"):
    return describe([Line("x", "(...)", np.asarray(array), what, own_axes)]).splitlines()


def test_a_line_is_name_letters_shape_and_words_above_its_numbers():
    assert shown([[1.0, -0.25]]) == ["x  (...) = (1, 2)  tokens", "     [[ 1.000, -0.250]]"]


def test_columns_are_aligned():
    text = describe([Line("x", "(n)", np.ones(2), "a", 1), Line("long", "(n, d)", np.ones((2, 3)), "b")])
    head, _, other, *_ = text.splitlines()
    assert head.index("(n)") == other.index("(n, d)")
    assert head.index("a", 20) == other.index("b", 20)


def test_what_was_skipped_has_no_numbers():
    assert shown([[1.0]], what="as y: no change") == ["x  (...) = (1, 1)  as y: no change"]


def test_the_first_item_and_head_are_shown_and_that_is_said():
    array = np.arange(2 * 3 * 1 * 2.0).reshape(2, 3, 1, 2)
    assert shown(array) == [
        "x  (...) = (2, 3, 1, 2)  tokens",
        "     [[0.000, 1.000]]",
        "numbers: of the first item and head",
    ]
    assert shown(array[0, 0, 0], own_axes=1) == ["x  (...) = (2,)  tokens", "     [0.000, 1.000]"]


def test_the_middle_of_a_large_array_is_left_out():
    assert len(shown(np.ones((6, 6)))) == 7
    large = shown(np.ones((7, 100)))
    assert len(large) == 1 + 5
    assert large[1] == "     [[1.000, 1.000, ..., 1.000, 1.000],"


def test_an_empty_array_says_so():
    assert shown(np.ones((0, 3)))[1] == "     (empty)"
    assert shown(np.ones((0, 2, 3)))[1] == "     (empty)"


@pytest.mark.parametrize(
    ("numbers", "text"),
    [
        ([0.0, 0.0], "[0.000, 0.000]"),
        ([0.01, 0.0001], "[0.010, 0.000]"),
        ([1e-3, 2e-7], "[1.00e-03, 2.00e-07]"),
        ([99999.0, 1.0], "[99999.000,     1.000]"),
        ([1e5, 1.0], "[1.00e+05, 1.00e+00]"),
        ([-np.inf, np.nan, 1.0], "[ -inf,   nan, 1.000]"),
        ([-np.inf, np.nan], "[-inf,  nan]"),
    ],
)
def test_numbers_are_calm_or_in_powers_of_ten(numbers, text):
    assert shown(numbers, own_axes=1)[1].strip() == text


def test_half_types_are_shown_as_numbers():
    assert shown(np.array([1.5, 2.0], np.float16), own_axes=1)[1].strip() == "[1.500, 2.000]"
