"""check/starter: a file that compiles, says all shapes, raises everywhere, and replaces nothing."""

import ast
import inspect
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from standins import EXERCISES

from headwise.check import starter
from headwise.check.defined import alike
from headwise.check.grade import NothingFoundError, UnknownNameError, grade, weights
from headwise.check.targets import subject
from headwise.files import FileError

NAMES = {
    "softmax": "softmax",
    "attention": "scaled_dot_product_attention",
    "single_sequence": "scaled_dot_product_attention",
    "causal_mask": "causal_mask",
    "multi_head": "multi_head_attention",
    "layer": "MultiHeadSelfAttention",
}
SIGNATURES = {
    "softmax": "(x, axis=-1)",
    "scaled_dot_product_attention": "(q, k, v, mask=None)",
    "causal_mask": "(n)",
    "multi_head_attention": "(x, w_q, w_k, w_v, w_o, heads, causal=False)",
    "MultiHeadSelfAttention": "(d_model, n_heads, seed=0)",
}


def loaded(text: str) -> dict[str, Any]:
    """What the file defines."""
    names: dict[str, Any] = {"__name__": "solution"}
    exec(compile(text, "solution.py", "exec"), names)
    return {name: value for name, value in names.items() if getattr(value, "__module__", "") == "solution"}


def test_there_is_a_part_for_each_exercise() -> None:
    assert set(starter.PARTS) == set(EXERCISES)


def test_all_is_defined_with_its_signature() -> None:
    made = loaded(starter.starter())
    assert {name: str(inspect.signature(value)) for name, value in made.items()} == SIGNATURES
    call = inspect.signature(made["MultiHeadSelfAttention"].__call__)
    assert str(call) == "(self, x, causal=False)"


@pytest.mark.parametrize("exercise", NAMES)
def test_one_exercise_is_one_definition(exercise: str) -> None:
    assert list(loaded(starter.starter([exercise]))) == [NAMES[exercise]]


def test_exercises_with_one_function_give_it_once() -> None:
    assert list(loaded(starter.starter(["single_sequence", "softmax", "attention"]))) == [
        "softmax",
        "scaled_dot_product_attention",
    ]


def test_every_call_raises_not_implemented() -> None:
    made, x = loaded(starter.starter()), np.ones((1, 2, 4))
    calls = {
        "softmax": (x,),
        "scaled_dot_product_attention": (x, x, x),
        "causal_mask": (2,),
        "multi_head_attention": (x, x, x, x, x, 2),
        "MultiHeadSelfAttention": (4, 2),
    }
    for name, args in calls.items():
        with pytest.raises(NotImplementedError, match=r"^$"):
            made[name](*args)
    layer = object.__new__(made["MultiHeadSelfAttention"])
    with pytest.raises(NotImplementedError, match=r"^$"):
        layer(x)


def test_each_docstring_gives_parameters_shapes_and_results() -> None:
    for name, value in loaded(starter.starter()).items():
        for one in (value, value.__call__) if inspect.isclass(value) else (value,):
            doc = inspect.getdoc(one) or ""
            assert "Parameters\n----------\n" in doc, name
            assert ("Returns\n-------\n" in doc) != inspect.isclass(one)
            for parameter in set(inspect.signature(one).parameters) - {"self"}:
                assert parameter in doc.partition("Parameters")[2], (name, parameter)
            assert one is value or doc.count("shape (") == 3
    assert "True where a query may attend" in starter.starter(["attention"])
    assert "scale 1 / sqrt(d_model)" in starter.starter(["layer"])


def test_the_text_is_laid_out_as_python_is() -> None:
    text = starter.starter()
    assert ast.get_docstring(ast.parse(text))
    assert max(map(len, text.splitlines())) <= 120
    assert text.count("\n\n\ndef ") == 4
    assert text.count("\n\n\nclass ") == 1
    assert text.endswith("NotImplementedError\n")
    assert "\n\n\n\n" not in text


def test_an_unknown_exercise_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match=r"starter: exercises: expected some of softmax, attention, .* got so\\x1bftmax"
    ):
        starter.write_starter(tmp_path / "new", ["so\x1bftmax", "layer"])
    assert os.listdir(tmp_path) == []


def test_the_file_is_written_into_a_folder_that_is_made(tmp_path: Path) -> None:
    path = starter.write_starter(tmp_path / "a" / "b", ["softmax"])
    assert path == str(tmp_path / "a" / "b" / "solution.py")
    assert Path(path).read_text() == starter.starter(["softmax"])


def test_an_existing_file_is_replaced_by_force_alone(tmp_path: Path) -> None:
    mine = tmp_path / "solution.py"
    mine.write_text("work of days")
    with pytest.raises(FileError, match=r"solution\.py: expected a new name, got one that exists"):
        starter.write_starter(tmp_path)
    assert mine.read_text() == "work of days"
    starter.write_starter(tmp_path, force=True)
    assert mine.read_text() == starter.starter()


@pytest.mark.parametrize("name", ["file", "file/below", "nul\x00"])
def test_a_folder_that_cannot_be_is_one_line(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(FileError, match=r"expected a folder, or room for one, got '.*'; name another") as caught:
        starter.write_starter(tmp_path / name)
    assert str(caught.value).isprintable()


def test_a_starter_that_nobody_filled_in_is_a_line_for_each_exercise(tmp_path: Path) -> None:
    report = grade(starter.write_starter(tmp_path))
    lines = starter.starter().splitlines()
    at = [i + 1 for i, line in enumerate(lines) if "raise NotImplementedError" in line][:5]
    assert report.text(3).splitlines()[2:] == [
        *(
            f"to do      {name:28}  not implemented yet: NotImplementedError (line {line} of solution.py)"
            for name, line in zip(SIGNATURES, at, strict=True)
        ),
        f"score: 0 of {report.maximum:g}",
        "next: implement softmax",
    ]


def test_the_next_to_implement_is_the_first_that_is_not(tmp_path: Path) -> None:
    path = Path(starter.write_starter(tmp_path, ["causal_mask", "softmax"]))
    done = "def softmax(x, axis=-1):\n    import headwise\n    return headwise.softmax(x, axis)\n"
    path.write_text(f"{starter.starter(['causal_mask'])}\n\n{done}")
    said = grade(path, ["softmax", "causal_mask"]).text().splitlines()
    assert said[-1] == "next: implement causal_mask"
    assert "passed     softmax_values" in "\n".join(said)
    assert "to do      softmax" not in "\n".join(said)


def test_what_is_asked_for_and_not_defined_is_a_line(tmp_path: Path) -> None:
    path = tmp_path / "a.py"
    path.write_text("def f(): pass\n")
    assert grade(path, ["softmax", "layer"]).text(3).splitlines()[1:] == [
        "found: nothing",
        f"missing: softmax: looked for {subject({'attention': print}).missing('softmax')}",
        f"missing: layer: looked for {subject({'softmax': print}).missing('layer')}",
        "to do      softmax  not defined yet",
        "to do      layer    not defined yet",
        f"score: 0 of {sum(weights(['softmax', 'layer']).values()):g}",
        "next: implement softmax",
    ]


def test_what_is_not_written_in_part_has_no_hints_that_do_not_help(tmp_path: Path) -> None:
    path = tmp_path / "a.py"
    path.write_text("def softmax(x, axis=-1):\n    if axis != -1: raise NotImplementedError\n")
    said = grade(path).text(3).splitlines()
    at = next(i for i, line in enumerate(said) if "softmax_axis" in line)
    assert said[at + 1] == "    failed: for x (2, 3, 5), axis 0: NotImplementedError (line 2 of a.py)"
    assert said[at + 2].startswith("FAILED")


def test_every_solution_has_the_same_maximum_where_exercises_are_asked_for(tmp_path: Path) -> None:
    texts = {
        "broken": "def attention(q, k, v:",
        "empty": "x = 1",
        "starter": starter.starter(["attention"]),
        "unmasked": "def attention(q, k, v):\n    return v\n",
    }
    found = {}
    for name, text in texts.items():
        path = tmp_path / f"{name}.py"
        path.write_text(text)
        found[name] = grade(path, "attention").maximum
    assert found == dict.fromkeys(texts, sum(weights(["attention"]).values()))
    assert grade(tmp_path / "unmasked.py").maximum < found["unmasked"]


def test_why_a_file_does_not_load_is_in_no_check(tmp_path: Path) -> None:
    path = tmp_path / "a.py"
    path.write_text("def softmax(x:")
    report = grade(path)
    most = sum(weights().values())
    assert (report.score, report.maximum, report.passed) == (0, most, False)
    assert str(report) == f"a.py, seed 0\nnot loaded: {report.broken}\nscore: 0 of {most:g}"
    assert {(verdict.hints, verdict.remarks) for verdict in report.verdicts} == {((), ())}


@pytest.mark.parametrize("exercise", [None, "layer", "softmax"])
def test_a_name_that_was_given_and_is_not_there_is_refused(tmp_path: Path, exercise: str | None) -> None:
    path = tmp_path / "a.py"
    path.write_text("def softmax(x, axis=-1):\n    raise NotImplementedError\ndef attn_of(q, k, v): pass\n")
    said = r"^grade: functions: expected names that a\.py defines, got layer=Net; it has softmax, attn_of$"
    with pytest.raises(UnknownNameError, match=said) as caught:
        grade(path, exercise, functions={"layer": "Net", "attention": "attn_of"})
    assert caught.value.absent == {"layer": "Net"}
    with pytest.raises(UnknownNameError, match=r"expected names that a dict defines, got layer=Net; it has softmax$"):
        grade({"softmax": print}, functions={"layer": "Net"})


def test_a_file_that_does_not_load_says_that_first(tmp_path: Path) -> None:
    path = tmp_path / "a.py"
    path.write_text("def softmax(x:")
    assert "SyntaxError" in grade(path, functions={"layer": "Net"}).broken


@pytest.mark.parametrize("notebook", [False, True])
def test_what_may_be_meant_is_said(tmp_path: Path, notebook: bool) -> None:
    path = tmp_path / ("a.ipynb" if notebook else "a.py")
    text = "def softmax(x, axis=-1):\n    return x\ndef att_of(q, k, v): return q\ndef helper(): pass\n"
    cell = {"cell_type": "code", "source": text, "metadata": {}, "outputs": []}
    path.write_text(
        json.dumps({"cells": [cell], "nbformat": 4, "nbformat_minor": 5, "metadata": {}}) if notebook else text
    )
    meant = "not found; the file has att_of: --function attention=att_of"
    said = grade(path).text().splitlines()
    assert f"not graded: attention: {meant}" in said
    assert "not graded: causal_mask, multi_head, layer: not found under a known name" in "\n".join(said)
    said = grade(path, ["softmax", "attention"]).text().splitlines()
    assert f"missing: attention: {meant}" in said
    assert f"to do      attention  {meant}" in said
    assert "not implemented" not in "\n".join(said)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("def attn_of(q): pass\nclass AttnNet: pass\n", {"attention": ("attn_of",), "layer": ("AttnNet",)}),
        (
            "def split_heads(x): pass\ndef _att(q): pass\ndef padding_mask(n): pass\n",
            {"causal_mask": ("padding_mask",)},
        ),
        (
            "def heads_att(x): pass\ndef own_softmax(x): pass\n",
            {"softmax": ("own_softmax",), "multi_head": ("heads_att",)},
        ),
        ("def self_attention(x): pass\n", {}),
        ("x = (", {}),
    ],
)
def test_names_are_alike_that_have_a_part_of_the_exercise(text: str, found: dict[str, tuple[str, ...]]) -> None:
    assert alike(text, {}) == found
    assert alike(text, {function: names[0] for function, names in found.items()}) == {}


@pytest.mark.parametrize(
    ("text", "exercise", "name"),
    [
        ("class Net: pass\ndef f(): pass\n", "layer", "Net"),
        ("def f(): pass\n", "attention", "f"),
        ("def rope(): pass\ndef grouped_attention(): pass\n", "attention", "grouped_attention"),
        ("def rope(): pass\ndef own_softmax(): pass\n", "softmax", "own_softmax"),
        ("class Config: pass\ndef f_mha(): pass\n", "multi_head", "f_mha"),
        ("class Config: pass\nclass OwnAttentionNet: pass\n", "layer", "OwnAttentionNet"),
        ("x = 1", "attention", "its_name"),
    ],
)
def test_where_nothing_is_found_it_is_said_how_to_name_it(tmp_path: Path, text: str, exercise: str, name: str) -> None:
    path = tmp_path / "a.py"
    path.write_text(text)
    with pytest.raises(NothingFoundError, match=rf"say which it is: functions={{'{exercise}': '{name}'}}$") as caught:
        grade(path)
    assert caught.value.example == (exercise, name)
    with pytest.raises(NothingFoundError, match="looked for a class named Other; say"):
        grade(path, functions={"layer": "Other"})


def test_what_was_asked_for_is_what_a_name_is_offered_for(tmp_path: Path) -> None:
    path = tmp_path / "a.py"
    path.write_text("def own_softmax(): pass\ndef grouped_attention(): pass\n")
    with pytest.raises(NothingFoundError, match=r"functions=\{'attention': 'grouped_attention'\}$"):
        grade(path, functions={"attention": "Other"})
