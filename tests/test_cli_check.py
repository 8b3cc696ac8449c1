"""cli_check: what `headwise check` prints, writes and refuses, and with which exit code."""

import io
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from standins import CHECKS, EXERCISES, HOSTILE, MISTAKES, REPORT, WEIGHTS, Marker, hostile, stand_in

from headwise import cli_check, console
from headwise.check import explain, folder, formats, starter, table
from headwise.check import grade as real_grade
from headwise.check.report import Report
from headwise.cli import main

Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def grade(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Marker:
    """The stand-ins, and a working folder with some solutions."""
    marker = Marker()
    stand_in(monkeypatch)
    monkeypatch.setattr(folder, "grade", marker)
    monkeypatch.setattr(folder, "weights", lambda exercise: WEIGHTS)
    monkeypatch.setattr(cli_check, "grade", marker)
    monkeypatch.chdir(tmp_path)
    for word in ("right", "wrong", "twins", "refuse", "broken"):
        Path(f"{word}.py").write_text(f"{word}\n")
    Path("class").mkdir()
    Path("class/anna.py").write_text("right")
    Path("class/bert.py").write_text("wrong")
    return marker


def refused(capsys: Capture, *arguments: str) -> str:
    """The one line of a command that exits 2, without its begin, having written nothing else."""
    before = sorted(os.listdir())
    assert main(["check", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("headwise check: ")
    assert err.count("\n") == 1
    assert err[:-1].isprintable()
    assert sorted(os.listdir()) == before
    return err[len("headwise check: ") : -1]


# ----------------------------------------------------------------------------------------- one solution
@pytest.mark.parametrize(("word", "code"), [("right", 0), ("wrong", 1), ("broken", 1)])
def test_the_exit_code_tells_whether_all_passed(capsys: Capture, grade: Marker, word: str, code: int) -> None:
    assert main(["check", f"{word}.py"]) == code
    out, err = capsys.readouterr()
    assert out == f"{grade.graded(Path(f'{word}.py'), word, 0)}\n"
    assert err == ""


def test_what_cannot_be_graded_is_one_line(capsys: Capture) -> None:
    assert refused(capsys, "refuse.py") == "refuse.py: expected Python, got 'nothing'; write some"
    assert "No such file or directory" in refused(capsys, "none.py")


def test_a_value_error_of_grading_is_one_line(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    def grade(*_: Any, **__: Any) -> Report:
        raise ValueError(f"grade: {HOSTILE['escapes']}")

    monkeypatch.setattr(cli_check, "grade", grade)
    assert refused(capsys, "right.py") == r"grade: \x1b[2J\x1b]0;owned\x07red"


def test_options_reach_the_grading(grade: Marker) -> None:
    words = "check right.py --exercise softmax attention,layer --exercise softmax --seed 4 --time-limit 2.5 --jobs 3"
    more = (
        "--memory-limit 512 --numpy-only --function attention=x,softmax=soft --function layer=Net.Layer,attention=att"
    )
    assert main([*words.split(), *more.split()]) == 0
    functions = {"attention": "att", "softmax": "soft", "layer": "Net.Layer"}
    options = {"time_limit": 2.5, "memory_limit": 512 * 2**20, "numpy_only": True, "functions": functions, "jobs": 3}
    assert grade.calls == [("right.py", ["softmax", "attention", "layer"], 4, options)]


def test_the_defaults_are_those_of_grade(grade: Marker) -> None:
    assert main(["check", "right.py"]) == 0
    options = {"time_limit": 10.0, "memory_limit": 2 * 2**30, "numpy_only": False, "functions": None, "jobs": 2}
    assert grade.calls == [("right.py", None, 0, options)]


@pytest.mark.parametrize("name", formats.FORMATS)
@pytest.mark.parametrize("hints", range(4))
def test_every_format_is_printed_and_written(capsys: Capture, grade: Marker, name: str, hints: int) -> None:
    expected = formats.FORMATS[name](grade.graded(Path("twins.py"), "twins", 0), hints).rstrip("\n") + "\n"
    arguments = ["check", "twins.py", "--format", name, "--hints", str(hints)]
    assert main(arguments) == 1
    assert capsys.readouterr() == (expected, "")
    assert main([*arguments, "-o", "report"]) == 1
    out, err = capsys.readouterr()
    assert Path("report").read_text(encoding="utf-8") == expected
    assert err == ""
    if name == "json":
        assert json.loads(out) == {"written": "report", "score": 2, "maximum": 8}
    else:
        assert out == "twins.py: failed, 2 of 8; written to report\n"


SUFFIXES = {"r.xml": "junit", "r.md": "markdown", "r.json": "json", "R.HTML": "html", "r.txt": "text", "r": "text"}


@pytest.mark.parametrize("output", SUFFIXES)
def test_the_name_of_the_output_tells_the_format(capsys: Capture, grade: Marker, output: str) -> None:
    assert main(["check", "wrong.py", "-o", output]) == 1
    report = grade.graded(Path("wrong.py"), "wrong", 0)
    assert Path(output).read_text() == formats.FORMATS[SUFFIXES[output]](report, 1).rstrip() + "\n"
    assert output in capsys.readouterr().out


def test_a_format_that_is_asked_for_comes_before_the_name(capsys: Capture) -> None:
    assert main(["check", "wrong.py", "-o", "results.json", "--format", "gradescope"]) == 1
    assert "tests" in json.loads(Path("results.json").read_text())
    assert main(["check", "wrong.py", "-o", "report.md", "--json"]) == 1
    assert "checks" in json.loads(Path("report.md").read_text())
    capsys.readouterr()
    assert "expected a name that ends in .csv" in refused(capsys, "class", "-o", "report.md")


def test_a_function_that_is_not_there_is_one_line(capsys: Capture) -> None:
    Path("own.py").write_text("def softmax(x, axis=-1):\n    return x\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cli_check, "grade", real_grade)
        said = refused(capsys, "own.py", "--function", "attention=nope")
    assert said == (
        "--function: expected names that own.py defines, got attention=nope; it has softmax; see headwise check -h"
    )


def test_json_is_an_alias(capsys: Capture) -> None:
    texts = []
    for arguments in (["--json"], ["--format", "json"], ["--json", "--format", "json"]):
        assert main(["check", "wrong.py", *arguments]) == 1
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1] == texts[2]
    assert json.loads(texts[0])["score"] == 2


def test_an_output_is_replaced_by_force_alone_and_never_the_solution(capsys: Capture, grade: Marker) -> None:
    assert refused(capsys, "right.py", "-o", "wrong.py").startswith(
        "wrong.py: expected a new name, got one that exists"
    )
    for force in ([], ["--force"]):
        said = refused(capsys, "right.py", "-o", "./right.py", *force)
        assert "expected another file than the input" in said
    assert "expected an existing folder" in refused(capsys, "right.py", "-o", "none/report")
    assert grade.calls == []
    assert main(["check", "right.py", "-o", "wrong.py", "--force"]) == 0
    assert Path("wrong.py").read_text().startswith("right.py, seed 0\n")


def test_nothing_is_written_where_grading_is_refused(capsys: Capture) -> None:
    Path("old").write_text("precious")
    refused(capsys, "refuse.py", "-o", "old", "--force")
    assert Path("old").read_text() == "precious"


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
@pytest.mark.parametrize("name", formats.FORMATS)
def test_no_text_of_a_solution_acts_on_the_terminal(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch, name: str, text: str
) -> None:
    monkeypatch.setattr(cli_check, "grade", lambda *_, **__: hostile(text))
    assert main(["check", "right.py", "--format", name, "--hints", "3"]) == 1
    out, err = capsys.readouterr()
    assert out.replace("\n", "").isprintable()
    assert err == ""
    assert main(["check", "right.py", "--format", name, "-o", "r"]) == 1
    assert capsys.readouterr().out.replace("\n", "").isprintable()


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


def on_a_terminal(monkeypatch: pytest.MonkeyPatch, columns: int, term: str = "xterm-256color") -> Terminal:
    """A terminal of so many columns as standard output."""
    terminal = Terminal()
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", term)
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setattr(sys, "stdout", terminal)
    return terminal


@pytest.mark.parametrize("columns", [40, 79])
def test_a_report_on_a_terminal_is_folded_and_coloured(monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    terminal = on_a_terminal(monkeypatch, columns)
    monkeypatch.setattr(cli_check, "grade", lambda *_, **__: REPORT)
    assert main(["check", "right.py", "--hints", "3"]) == 1
    bare = re.sub(r"\x1b\[[\d;]*m", "", terminal.getvalue())
    assert max(map(len, bare.splitlines())) <= columns < max(map(len, REPORT.text(3).splitlines()))
    assert bare.split() == REPORT.text(3).split()
    coloured = re.findall(r"\x1b\[([\d;]+)m([^\x1b]+)\x1b\[0m", terminal.getvalue())
    assert coloured == [
        ("1;31", "missing"), ("33", "remark"), ("32", "passed"),
        ("1;31", "FAILED"), ("1;35", "known mistake"), ("33", "remark"), ("2", "not taken"),
        ("1;31", "FAILED"), ("1;35", "known mistake"), ("1;35", "known mistake"), ("2", "not taken"),
    ]  # fmt: skip


def test_a_terminal_without_colours_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = on_a_terminal(monkeypatch, 60, term="dumb")
    monkeypatch.setattr(cli_check, "grade", lambda *_, **__: REPORT)
    assert main(["check", "right.py", "--hints", "3"]) == 1
    assert "\x1b" not in terminal.getvalue()
    assert max(map(len, terminal.getvalue().splitlines())) <= 60


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
@pytest.mark.parametrize("term", ["xterm", "dumb"])
def test_nothing_but_our_colours_reaches_a_terminal(monkeypatch: pytest.MonkeyPatch, term: str, text: str) -> None:
    terminal = on_a_terminal(monkeypatch, 80, term)
    monkeypatch.setattr(cli_check, "grade", lambda *_, **__: hostile(text))
    assert main(["check", "right.py", "--hints", "3"]) == 1
    bare = re.sub(r"\x1b\[(0|1;31|1;35|32|33|2)m", "", terminal.getvalue())
    assert bare.replace("\n", "").isprintable()
    assert "".join(bare.split()) == "".join(hostile(text).text(3).split())


def test_other_formats_are_whole_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = on_a_terminal(monkeypatch, 40)
    monkeypatch.setattr(cli_check, "grade", lambda *_, **__: REPORT)
    assert main(["check", "right.py", "--format", "markdown"]) == 1
    assert terminal.getvalue() == REPORT.markdown()


def test_an_explanation_is_folded_at_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = on_a_terminal(monkeypatch, 60)
    assert main(["check", "--explain", "large-scores"]) == 0
    assert terminal.getvalue() == f"{explain.explain('large-scores', 60)}\n"


# ------------------------------------------------------------------------------------------ -o, and nobody there
def test_a_dash_is_standard_output(capsys: Capture) -> None:
    said = []
    for output in ([], ["-o", "-"]):
        assert main(["check", "wrong.py", *output]) == 1
        said.append(capsys.readouterr().out)
    assert said[0] == said[1]
    assert main(["check", "class", "-o", "-"]) == 1
    out = capsys.readouterr().out
    assert out.splitlines()[0] == ",".join(table.Row._fields)
    assert [line.partition(",")[0] for line in out.splitlines()[1:]] == ["anna.py", "bert.py"]
    assert not Path("-").exists()


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="no /proc here")
@pytest.mark.parametrize(("target", "output"), [("right.py", "/proc/report"), ("class", "/proc/marks.csv")])
def test_where_nothing_can_be_written_nothing_is_graded(
    capsys: Capture, grade: Marker, target: str, output: str
) -> None:
    said = refused(capsys, target, "-o", output)
    assert said.startswith(f"{output}: expected a folder ")
    assert said.endswith("; name another")
    assert grade.calls == []


def test_a_report_that_nobody_gets_has_not_passed(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch, grade: Marker
) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    for arguments in (["right.py"], ["right.py", "--json"], ["class"], ["class", "-o", "-"]):
        assert main(["check", *arguments]) == 2
        assert "expected a reader of the whole report, got a closed one" in capsys.readouterr().err
    assert main(["check", "right.py", "-o", "report"]) == 0  # which has it
    assert main(["check", "--list"]) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(("arguments", "code"), [(["right.py"], 2), (["right.py", "-o", "report"], 0), (["--list"], 0)])
def test_a_pipe_without_a_reader_is_no_reader(arguments: list[str], code: int) -> None:
    script = (
        "import sys; from headwise import cli, cli_check; from headwise.check.report import *\n"
        "right = Verdict('a', 'softmax', 'b', 1, PASSED)\n"
        "cli_check.grade = lambda *a, **k: Report('x', 0, (right,), {}, {})\n"
        f"sys.exit(cli.main(['check', *{arguments!r}]))"
    )
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as closed:
        ran = subprocess.run(
            [sys.executable, "-c", script], stdout=closed, stderr=subprocess.PIPE, text=True, timeout=60
        )
    assert (ran.returncode, ran.stderr.count("\n")) == (code, 1 if code else 0)
    assert ("expected a reader of the whole report, got none" in ran.stderr) == (code == 2)


def test_where_nothing_is_found_the_option_is_named(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli_check, "grade", real_grade)
    Path("net.py").write_text("class Net:\n    pass\n")
    said = refused(capsys, "net.py")
    assert said.startswith(
        "expected a function or class to grade, got none in net.py, which has Net; looked for names "
    )
    assert "functions=" not in said
    assert said.endswith("; say which it is: --function layer=Net")


# ---------------------------------------------------------------------------------------- standard input
class Stdin:
    """Standard input with some bytes."""

    def __init__(self, data: bytes) -> None:
        self.buffer = io.BytesIO(data)


@pytest.mark.parametrize(("data", "name"), [(b"right\n", "solution.py"), (b' {"cells": []}', "solution.ipynb")])
def test_standard_input_is_graded(
    capsys: Capture, grade: Marker, monkeypatch: pytest.MonkeyPatch, data: bytes, name: str
) -> None:
    monkeypatch.setattr(sys, "stdin", Stdin(data))
    assert main(["check", "-"]) == 0
    assert [call[0] for call in grade.calls] == [name]
    assert capsys.readouterr().out.startswith("standard input, seed 0\n")
    assert sorted(os.listdir()) == sorted(
        [*(f"{w}.py" for w in ("right", "wrong", "twins", "refuse", "broken")), "class"]
    )


def test_what_is_wrong_with_standard_input_is_one_line(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder, "MOST_BYTES", 20)
    for data, said in (
        (b" \n", "standard input: expected a solution, got nothing; see headwise check -h"),
        (b"x" * 21, "standard input: expected at most 20 bytes, got more; name a file"),
        (b"refuse", "standard input: expected Python, got 'nothing'; write some"),
    ):
        monkeypatch.setattr(sys, "stdin", Stdin(data))
        assert refused(capsys, "-") == said
    monkeypatch.setattr(sys, "stdin", None)
    assert "got nothing" in refused(capsys, "-")


# --------------------------------------------------------------------------------------------- a class
def test_a_class_is_a_table_with_its_mean_and_mistakes(capsys: Capture) -> None:
    Path("class/carl.py").write_text("twins")
    Path("class/dora.py").write_text("refuse")
    assert main(["check", "class", "-o", "marks.csv"]) == 1
    out, err = capsys.readouterr()
    assert err == ""
    lines = out.splitlines()
    assert lines[0] == "class, seed 0"
    assert re.fullmatch(r"anna\.py   +8   +8  +yes", lines[3])
    assert re.fullmatch(r"bert\.py   +2   +8  +no      no-max", lines[4])
    assert re.fullmatch(r"carl\.py   +2   +8  +no      no-max; a or d", lines[5])
    assert re.fullmatch(r"dora\.py .*class/dora\.py: expected Python, got 'nothing'; write some", lines[6])
    mistakes = lines[lines.index("Mistakes, by how many solutions make them") + 3 :][:3]
    assert [line.split() for line in mistakes] == [["no-max", "2"], ["a", "or", "d", "1"], []]
    assert lines[-5:] == [
        "graded      3 of 4",
        "passed      1",
        "mean score  4 of 8",
        "of          all exercises; --exercise names those that a class was given",
        "written     marks.csv",
    ]
    assert len(table.read_rows("marks.csv")) == 4


def test_a_class_passes_where_each_was_graded_and_passed(capsys: Capture) -> None:
    Path("class/bert.py").write_text("right")
    assert main(["check", "class"]) == 0
    assert "mean score  8 of 8" in capsys.readouterr().out
    assert main(["check", "class", "--exercise", "softmax"]) == 0
    assert "all exercises" not in capsys.readouterr().out
    Path("class/carl.py").write_text("refuse")
    assert main(["check", "class"]) == 1
    assert sorted(os.listdir("class")) == ["anna.py", "bert.py", "carl.py"]


def test_a_class_as_json_is_one_object(capsys: Capture) -> None:
    assert main(["check", "class", "--json", "-o", "m.csv"]) == 1
    value = json.loads(capsys.readouterr().out)
    assert [row["file"] for row in value["solutions"]] == ["anna.py", "bert.py"]
    assert value["summary"] == {
        "files": 2, "graded": 2, "passed": 1, "score": 5, "maximum": 8, "mistakes": {"no-max": 1}
    }  # fmt: skip
    assert value["output"] == "m.csv"


def test_a_class_is_resumed(capsys: Capture, grade: Marker) -> None:
    assert main(["check", "class", "-o", "m.csv"]) == 1
    Path("class/bert.py").write_text("right")
    capsys.readouterr()
    assert refused(capsys, "class", "-o", "m.csv").startswith("m.csv: expected a new name")
    grade.calls.clear()
    assert main(["check", "class", "-o", "m.csv", "--resume"]) == 0
    assert [call[0] for call in grade.calls] == ["bert.py"]
    capsys.readouterr()
    assert "time_limit=10.0, now time_limit=3.0; set them as they were" in refused(
        capsys, "class", "-o", "m.csv", "--resume", "--time-limit", "3"
    )
    assert main(["check", "class", "-o", "m.csv", "--force"]) == 0
    assert len(grade.calls) == 3


def test_names_of_a_class_do_not_act_on_the_terminal(capsys: Capture) -> None:
    for i, text in enumerate(HOSTILE.values()):
        name = "".join(c for c in text if c not in "\0/" and not 0xD800 <= ord(c) < 0xE000)[:60]
        Path(f"class/{i}{name}.py").write_text("crash")
    Path(os.fsdecode(b"class/\xff.py")).write_text("right")
    assert main(["check", "class", "-o", "m.csv"]) == 1
    out = capsys.readouterr().out
    assert out.replace("\n", "").isprintable()
    assert Path("m.csv").read_text().replace("\n", "").isprintable()
    assert len(table.read_rows("m.csv")) == 3 + len(HOSTILE)


# ------------------------------------------------------------------------------------- instead of grading
def test_the_list_has_exercises_checks_and_mistakes(capsys: Capture) -> None:
    assert main(["check", "--list"]) == 0
    out = capsys.readouterr().out
    for name in [*EXERCISES, *(check.name for check in CHECKS), *(mistake.name for mistake in MISTAKES)]:
        assert re.search(rf"^{name} +\S", out, re.MULTILINE), name
    assert re.search(r"^mask-hides +attention +4 +a mask hides keys$", out, re.MULTILINE)
    assert main(["check", "--list", "--json"]) == 0
    value = json.loads(capsys.readouterr().out)
    assert [len(value[name]) for name in ("exercises", "checks", "mistakes")] == [6, 3, 5]
    assert value["checks"][0] == {
        "check": "rows-sum", "exercise": "softmax", "weight": 2.0, "claim": "each row sums to 1"
    }  # fmt: skip


def test_a_name_is_explained(capsys: Capture) -> None:
    assert main(["check", "--explain", "rows-sum"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("check rows-sum, of the exercise softmax, weight 2\n")
    assert main(["check", "--explain", "rows-sum", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"name": "rows-sum", "text": out[:-1]}
    assert refused(capsys, "--explain", "row-sum").startswith(
        "--explain: expected the name of a check or a mistake, got 'row-sum'; did you mean rows-sum?"
    )


@pytest.mark.parametrize("name", [text for text in HOSTILE.values() if "\0" not in text])
def test_hostile_words_are_one_printable_line(capsys: Capture, name: str) -> None:
    for option in ("--explain", "--exercise", "--function", "--hints", "--format", "--seed", "--time-limit"):
        target = [] if option == "--explain" else ["right.py"]
        assert len(refused(capsys, *target, f"{option}={name}")) < 1200


def test_a_starter_is_written_once(capsys: Capture) -> None:
    assert main(["check", "--starter", "new/here", "--exercise", "softmax"]) == 0
    path = os.path.join("new/here", "solution.py")
    assert capsys.readouterr().out == f"written to {path}; headwise check {path} tells how far it is\n"
    assert Path(path).read_text() == starter.starter(["softmax"])
    assert "expected a new name" in refused(capsys, "--starter", "new/here")
    assert main(["check", "--starter", "new/here", "--force", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"written": path}
    assert Path(path).read_text() == starter.starter()


# --------------------------------------------------------------------------------------- mistakes of users
USAGE = [
    ([], "expected TARGET, --list, --starter or --explain, got nothing; see headwise check -h"),
    (["--exercise", "softmax", "right.py"], "got nothing; put TARGET before --exercise; see headwise check -h"),
    (["right.py", "--list"], "got TARGET, --list; see"),
    (["--list", "--starter", "x", "--explain", "y"], "got --list, --starter, --explain; see"),
    (
        ["right.py", "--exercise", "sofmax"],
        "--exercise: expected an exercise, got 'sofmax'; did you mean softmax? See --l",
    ),
    (["right.py", "--exercise", "softmax,"], "--exercise: expected an exercise, got ''; there are softmax, attention,"),
    (["right.py", "--exercise", "xyz"], "multi_head, layer, single_sequence. See --list"),
    (["right.py", "--function", "softmax=f,"], "expected EXERCISE=NAME with a name of Python, got ''; for example "),
    (["right.py", "-o", ""], "-o: expected the name of a file, or - for standard output, got nothing; see"),
    (["class", "-o", ""], "-o: expected the name of a file, or - for standard output, got nothing; see"),
    (["class", "-o", "-", "--resume"], "--resume: expected a folder and -o FILE.csv with it, got no such; see"),
    (["right.py", "-o", "-", "--force"], "--force: expected -o FILE or --starter DIR with it, got none; see"),
    (["right.py", "--function", "sofmax=f"], "--function: expected an exercise, got 'sofmax'; did you mean softmax?"),
    (
        ["right.py", "--function", "softmax"],
        "expected EXERCISE=NAME with a name of Python, got 'softmax'; for example ",
    ),
    (["right.py", "--function", "softmax=2x"], "expected EXERCISE=NAME with a name of Python, got 'softmax=2x'"),
    (["right.py", "--json", "--format", "text"], "--json: expected --format json or none with it, got text; see"),
    (
        ["right.py", "--format", "pdf"],
        "argument --format: expected one of text, json, junit, gradescope, markdown, html, got 'pdf'",
    ),
    (["class", "--format", "junit"], "--format: expected text or json where no single solution is graded, got junit"),
    (["--list", "--format", "html"], "--format: expected text or json where no single solution is graded, got html"),
    (["right.py", "--force"], "--force: expected -o FILE or --starter DIR with it, got none; see"),
    (["--list", "-o", "x"], "-o: expected TARGET with it, got --list; see"),
    (["right.py", "-o", "x", "--resume"], "--resume: expected a folder and -o FILE.csv with it, got no such; see"),
    (["class", "--resume"], "--resume: expected a folder and -o FILE.csv with it, got no such; see"),
    (["class", "-o", "x.csv", "--resume", "--force"], "--resume: expected no --force with it, which replaces all of"),
    (["class", "-o", "marks.txt"], "marks.txt: expected a name that ends in .csv, got another"),
    (["right.py", "--hints", "4"], "argument --hints: expected 0, 1, 2 or 3, got '4'"),
    (["right.py", "--hints", "-1"], "argument --hints: expected 0, 1, 2 or 3, got '-1'"),
    (["right.py", "--time-limit", "0"], "argument --time-limit: expected a finite number above 0, got '0'"),
    (["right.py", "--time-limit", "-1"], "argument --time-limit: expected a finite number above 0, got '-1'"),
    (["right.py", "--memory-limit", "-5"], "argument --memory-limit: expected a finite number above 0, got '-5'"),
    (["right.py", "--jobs", "0"], "argument --jobs: expected an integer >= 1, got '0'"),
    (["right.py", "--jobs", "-x"], "argument --jobs: expected an integer >= 1, got '-x'"),
    (["right.py", "--hints", "-x"], "argument --hints: expected 0, 1, 2 or 3, got '-x'"),
    (["right.py", "--time-limit", "-1e3"], "argument --time-limit: expected a finite number above 0, got '-1e3'"),
    (["right.py", "--memory-limit", "-1e3"], "argument --memory-limit: expected a finite number above 0, got '-1e3'"),
    (["right.py", "--jobs", "-2"], "argument --jobs: expected an integer >= 1, got '-2'"),
    (["right.py", "--seed", "-2"], "argument --seed: expected an integer >= 0, got '-2'"),
    (["right.py", "wrong.py"], "unrecognized arguments: wrong.py"),
]


@pytest.mark.parametrize(("arguments", "said"), USAGE, ids=lambda value: " ".join(value) if value else None)
def test_a_mistake_of_the_user_is_one_line(capsys: Capture, grade: Marker, arguments: list[str], said: str) -> None:
    line = refused(capsys, *arguments)
    line = line if "unrecognized" not in said else f"unrecognized{line.partition('unrecognized')[2]}"
    assert said in line
    assert grade.calls == []


def test_the_help_names_every_option(capsys: Capture) -> None:
    assert main(["check", "-h"]) == 0
    out = capsys.readouterr().out
    options = (
        "--exercise --format --output --force --hints --time-limit --memory-limit --seed --numpy-only --function "
        "--jobs --resume layer=MyAttention 0..3 --list --starter --explain --json TARGET 0 1 2"
    )
    for option in options.split():
        assert option in out
    assert "grade an implementation of attention" in out.lower()


# ---------------------------------------------------------------------------------------------- running
@pytest.mark.parametrize("target", ["right.py", "class"])
def test_a_bar_is_drawn_on_terminals_alone(capsys: Capture, monkeypatch: pytest.MonkeyPatch, target: str) -> None:
    monkeypatch.setattr(cli_check, "_PATIENCE", 0.0)
    monkeypatch.setenv("TERM", "dumb")
    main(["check", target, "--jobs", "1"])
    assert capsys.readouterr().err == ""
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    main(["check", target, "--jobs", "1"])
    assert " 50%" in terminal.getvalue()
    assert terminal.getvalue().rpartition("\r")[2] == ""


def test_tables_go_through_the_console(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    plain = console.table

    def spy(title: str, *rest: Any) -> str:
        seen.append(title)
        return plain(title, *rest)

    monkeypatch.setattr(console, "table", spy)
    main(["check", "class"])
    main(["check", "--list"])
    assert seen == [
        "class, seed 0", "Mistakes, by how many solutions make them", "Exercises", "Checks", "Mistakes"
    ]  # fmt: skip


def test_an_interrupt_is_130(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    def grade(*_: Any, **__: Any) -> Report:
        os.kill(os.getpid(), signal.SIGINT)
        raise AssertionError("not reached")

    monkeypatch.setattr(cli_check, "grade", grade)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    try:
        assert main(["check", "right.py"]) == 130
    finally:
        signal.signal(signal.SIGINT, before)
    assert capsys.readouterr().err == "headwise check: interrupted\n"


def test_the_exit_code_is_that_of_the_process() -> None:
    code = (
        "import sys; from headwise import cli, cli_check; from headwise.check.report import *\n"
        "wrong = Verdict('a', 'softmax', 'b', 1, FAILED)\n"
        "cli_check.grade = lambda *a, **k: Report('x', 0, (wrong,), {}, {})\n"
        "sys.exit(cli.main(['check', 'right.py']))"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (ran.returncode, ran.stderr) == (1, "")
    assert ran.stdout.endswith("score: 0 of 1\n")
