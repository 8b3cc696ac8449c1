"""check/folder, table: which files are graded, that nothing is lost or graded twice, and what stands in the CSV."""

import csv
import hashlib
import os
import re
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from standins import HOSTILE, REPORT, TWINS, WEIGHTS, WRONG, Marker

from headwise.check import folder, table
from headwise.check.folder import Settings, grade_folder, solutions
from headwise.check.grade import weights
from headwise.check.report import Report
from headwise.check.table import Row
from headwise.files import FileError


@pytest.fixture
def grade(monkeypatch: pytest.MonkeyPatch) -> Marker:
    """The stand-in for grading."""
    marker = Marker()
    monkeypatch.setattr(folder, "grade", marker)
    monkeypatch.setattr(folder, "weights", lambda exercise: WEIGHTS)
    return marker


def write(top: Path, **held: str) -> Path:
    """Files by name, where __ is a folder; what has no ending is a .py."""
    for name, text in held.items():
        path = top / name.replace("__", "/")
        path = path if path.suffix else path.with_suffix(".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return top


def read(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file, strict=True))


# ------------------------------------------------------------------------------------------------ which
def test_files_and_student_folders_are_found_sorted(tmp_path: Path) -> None:
    write(tmp_path, b="", a="", carl__mine="", dora__solution="", dora__old="", _private="", eve__one="", eve__two="")
    (tmp_path / "notes.txt").write_text("")
    (tmp_path / "n.IPYNB").write_text("")
    (tmp_path / "data").mkdir()
    write(tmp_path / ".git", x="")
    write(tmp_path / "__pycache__", x="")
    found = {one.name: one.why for one in solutions(tmp_path)}
    several = "expected one .py or .ipynb file, or a solution.py, got one.py, two.py"
    assert found == {"a.py": "", "b.py": "", "carl/mine.py": "", "dora/solution.py": "", "eve/": several, "n.IPYNB": ""}
    assert list(found) == sorted(found)


def test_a_student_without_a_solution_is_a_row_where_all_have_folders(tmp_path: Path, grade: Marker) -> None:
    write(tmp_path, anna__a="right")
    (tmp_path / "bert").mkdir()
    rows = grade_folder(tmp_path)
    assert [(row.file, row.passed, row.remarks) for row in rows] == [
        ("anna/a.py", "yes", ""),
        ("bert/", "", "no .py or .ipynb file in it"),
    ]


@pytest.mark.parametrize("make", [lambda p: None, lambda p: write(p, x__a="", x__b="")])
def test_a_folder_without_solutions_is_one_line(tmp_path: Path, make: Any) -> None:
    make(tmp_path)
    with pytest.raises(
        FileError, match=r"expected \.py or \.ipynb files, or sub-folders that hold one each, got none; "
    ):
        solutions(tmp_path)


def test_a_folder_that_is_none_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(FileError, match=r"none: expected a folder that can be read, got 'No such file or directory'"):
        solutions(tmp_path / "none")


# ---------------------------------------------------------------------------------------------- grading
def test_one_bad_file_stops_no_other(tmp_path: Path, grade: Marker) -> None:
    write(tmp_path, a="right", b="crash", c="refuse", d="broken", e="wrong", f="twins")
    (tmp_path / "h.py").symlink_to("nowhere.py")
    rows = grade_folder(tmp_path, jobs=3)
    assert [(row.file, row.passed, row.score, row.maximum) for row in rows] == [
        ("a.py", "yes", "8", "8"),
        ("b.py", "", "", ""),
        ("c.py", "", "", ""),
        ("d.py", "no", "0", "8"),
        ("e.py", "no", "2", "8"),
        ("f.py", "no", "2", "8"),
        ("h.py", "", "", ""),
    ]
    said = [row.remarks for row in rows]
    assert said[1] == r"RuntimeError: \x1b[2J\x1b]0;owned\x07red"
    assert said[2].endswith("c.py: expected Python, got 'nothing'; write some")
    assert said[3] == "SyntaxError: line 1"
    assert "No such file or directory" in said[6]
    assert (rows[4].failed, rows[4].mistakes) == ("large-scores", "no-max")
    assert (rows[5].failed, rows[5].mistakes) == ("large-scores; scaled", "no-max; a or d")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
def test_a_pipe_is_not_waited_for(tmp_path: Path, grade: Marker) -> None:
    write(tmp_path, a="right")
    os.mkfifo(tmp_path / "b.py")
    rows = grade_folder(tmp_path)
    assert [row.passed for row in rows] == ["yes", ""]
    assert "expected a file, got a named pipe" in rows[1].remarks


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path, grade: Marker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder, "MOST_BYTES", 10)
    write(tmp_path, a="right", b="right and long")
    rows = grade_folder(tmp_path)
    assert [call[0] for call in grade.calls] == ["a.py"]
    assert "expected at most 10 bytes, got 14" in rows[1].remarks


def test_settings_reach_the_grading_and_the_row(tmp_path: Path, grade: Marker) -> None:
    write(tmp_path, a="right")
    settings = Settings(["softmax", "layer"], 5, {"time_limit": 2.5, "numpy_only": True})
    (row,) = grade_folder(tmp_path, settings)
    assert grade.calls == [("a.py", ["softmax", "layer"], 5, {"jobs": 1, "time_limit": 2.5, "numpy_only": True})]
    assert row.sha256 == hashlib.sha256(b"right").hexdigest()
    assert (row.seed, row.exercises, row.options) == ("5", "softmax; layer", "time_limit=2.5; numpy_only=True")
    assert Settings().start("a").exercises == "all"


def test_as_many_are_graded_at_a_time_as_are_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, **{f"s{i}": "" for i in range(6)})
    meeting = threading.Barrier(3, timeout=20)

    def grade(*_: Any, **__: Any) -> Report:
        meeting.wait()
        return Report("s", 0, (), {}, {})

    monkeypatch.setattr(folder, "grade", grade)
    rows = grade_folder(tmp_path, jobs=3)
    assert [row.remarks for row in rows] == [""] * 6


def test_progress_is_told(tmp_path: Path, grade: Marker) -> None:
    write(tmp_path, a="right", b="crash", c__x="", c__y="")
    told: list[tuple[int, int]] = []
    grade_folder(tmp_path, progress=lambda done, total: told.append((done, total)))
    assert told == [(2, 3), (3, 3)]


# -------------------------------------------------------------------------------------------------- CSV
def test_the_csv_holds_the_rows(tmp_path: Path, grade: Marker) -> None:
    write(tmp_path / "class", a="right", b="wrong")
    rows = grade_folder(tmp_path / "class", output=tmp_path / "marks.csv")
    assert [Row(**row) for row in read(tmp_path / "marks.csv")] == rows
    assert table.read_rows(tmp_path / "marks.csv") == rows
    assert sorted(os.listdir(tmp_path)) == ["class", "marks.csv"]


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_no_cell_is_a_formula_or_more_than_a_line(tmp_path: Path, text: str) -> None:
    row = table.refused(Row(*map(table.cell, (text, text, text, text, text, text))), text)
    for sign in "=+-@'":
        row = table.refused(row, f"{sign}{text}")
        made = table.as_csv([row])
        assert made.count("\n") == 2
        assert [c for c in made if not c.isprintable() and c != "\n"] == []
        path = tmp_path / "x.csv"
        path.write_text(made)
        (again,) = table.read_rows(path)
        assert again == row
        assert again.remarks.startswith(f"'{sign}")
        assert not [cell for cell in again if cell[:1] in tuple("=+-@\t\r")]
        assert not any(part[:1] in tuple("=+-@") for part in made.split(";")[1:])
        assert max(map(len, again)) <= 1010


def test_a_file_named_as_a_formula_is_graded_and_kept(tmp_path: Path, grade: Marker) -> None:
    write(tmp_path / "class", **{"=1+1": "right", "-x": "right"})
    for resume in (False, True):
        rows = grade_folder(tmp_path / "class", output=tmp_path / "m.csv", resume=resume)
        assert [row.file for row in rows] == ["'-x.py", "'=1+1.py"]
    assert len(grade.calls) == 2


@pytest.mark.parametrize("text", ["", "a,b\n1,2\n", 'file,"', "\x00", "file\n", "#" * 200_000])
def test_another_table_is_refused_and_left_alone(tmp_path: Path, grade: Marker, text: str) -> None:
    write(tmp_path, a="right")
    path = tmp_path / "m.csv"
    path.write_text(text)
    with pytest.raises(FileError, match=r"m\.csv: expected a table that headwise check wrote, with the columns file, "):
        grade_folder(tmp_path, output=path, resume=True)
    assert (path.read_text(), grade.calls) == (text, [])


def test_rows_of_other_lengths_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.csv"
    path.write_text(table.as_csv([Row("a")]) + "b,c\n")
    with pytest.raises(FileError, match="got lines of other lengths; name another"):
        table.read_rows(path)
    path.write_text(table.as_csv([Row("a")]) + '"b"c,d\n')
    with pytest.raises(
        FileError, match=r"m\.csv: expected a table that headwise check wrote, .*; got '.*'; name another"
    ):
        table.read_rows(path)


def test_an_existing_table_is_replaced_by_force_alone(tmp_path: Path, grade: Marker) -> None:
    write(tmp_path, a="right")
    path = tmp_path / "m.csv"
    path.write_text("precious")
    with pytest.raises(FileError, match=r"expected a new name, got one that exists"):
        grade_folder(tmp_path, output=path)
    assert (path.read_text(), grade.calls) == ("precious", [])
    grade_folder(tmp_path, output=path, force=True)
    assert len(table.read_rows(path)) == 1
    with pytest.raises(FileError, match=r"expected a name that ends in \.csv"):
        grade_folder(tmp_path, output=tmp_path / "a.py", force=True)


# ------------------------------------------------------------------------------------------------ resume
def test_what_is_unchanged_is_not_graded_again(tmp_path: Path, grade: Marker) -> None:
    write(tmp_path / "class", a="right", b="wrong", c="crash", d="right")
    path = tmp_path / "m.csv"
    first = grade_folder(tmp_path / "class", output=path)
    write(tmp_path / "class", b="twins", e="right")
    (tmp_path / "class" / "d.py").unlink()
    grade.calls.clear()
    rows = grade_folder(tmp_path / "class", output=path, resume=True)
    assert sorted(call[0] for call in grade.calls) == ["b.py", "c.py", "e.py"]  # changed, not graded, new
    assert [row.file for row in rows] == ["a.py", "b.py", "c.py", "e.py"]
    assert rows[0] == first[0]
    assert table.read_rows(path) == rows


@pytest.mark.parametrize(
    "settings", [Settings(seed=1), Settings(["softmax"]), Settings(options={"time_limit": 1.0}), "version"]
)
def test_what_is_graded_otherwise_is_graded_again(
    tmp_path: Path, grade: Marker, monkeypatch: pytest.MonkeyPatch, settings: Any
) -> None:
    write(tmp_path, a="right", b="right")
    path = tmp_path / "m.csv"
    before = grade_folder(tmp_path, output=path)
    if settings == "version":
        monkeypatch.setattr(folder, "__version__", "9.9.9")
        settings = Settings()
    now = grade_folder(tmp_path, settings, output=path, force=True)
    path.write_text(table.as_csv([before[0], now[1]]))
    grade.calls.clear()
    assert grade_folder(tmp_path, settings, output=path, resume=True) == now
    assert [call[0] for call in grade.calls] == ["a.py"]


FIRST = Settings(options={"time_limit": 10.0, "numpy_only": False})


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (FIRST._replace(seed=5), "seed 0, now 5"),
        (FIRST._replace(exercise=["softmax"]), "exercises all, now softmax"),
        (FIRST._replace(options={**FIRST.options, "time_limit": 3.0}), "time_limit=10.0, now time_limit=3.0"),
        (FIRST._replace(seed=1, options={"time_limit": 10.0}), "seed 0, now 1, numpy_only=False, now without"),
        ("version", "version .*, now 9.9.9"),
    ],
)
def test_a_table_of_other_settings_is_not_graded_again_silently(
    tmp_path: Path, grade: Marker, monkeypatch: pytest.MonkeyPatch, settings: Any, said: str
) -> None:
    write(tmp_path, a="right", b="wrong")
    path = tmp_path / "m.csv"
    grade_folder(tmp_path, FIRST, output=path)
    before = path.read_text()
    if settings == "version":
        monkeypatch.setattr(folder, "__version__", "9.9.9")
        settings = FIRST
    remedy = "set them as they were, or grade all again by --force"
    with pytest.raises(FileError, match=rf"expected rows of these settings, got others: {said}; {remedy}$"):
        grade_folder(tmp_path, settings, output=path, resume=True)
    assert path.read_text() == before
    assert len(grade.calls) == 2


def test_a_table_that_is_there_is_gone_on_with_or_replaced(tmp_path: Path, grade: Marker) -> None:
    write(tmp_path, a="right")
    path = tmp_path / "m.csv"
    grade_folder(tmp_path, output=path)
    remedy = "go on with it by --resume, replace it by --force, or name another"
    with pytest.raises(FileError, match=rf"expected a new name, got one that exists; {remedy}$"):
        grade_folder(tmp_path, output=path)
    assert len(grade.calls) == 1


def test_points_that_a_hand_has_spoilt_are_not_kept(tmp_path: Path, grade: Marker) -> None:
    write(tmp_path, a="right")
    path = tmp_path / "m.csv"
    (row,) = grade_folder(tmp_path, output=path)
    path.write_text(table.as_csv([row._replace(score="many")]))
    assert grade_folder(tmp_path, output=path, resume=True) == [row]
    path.write_text("\ufeff" + table.as_csv([row]))  # as a spreadsheet saves it
    assert grade_folder(tmp_path, output=path, resume=True) == [row]
    assert len(grade.calls) == 2


@pytest.mark.parametrize(
    "spoilt",
    [
        {"score": "9"},
        {"score": "5.5"},  # more than large-scores leaves
        {"maximum": "9"},
        {"passed": "yes"},
        {"failed": ""},
        {"failed": "", "mistakes": ""},
        {"failed": "", "mistakes": "", "passed": "yes"},
        {"failed": "nothing-of-ours"},
        {"score": ""},
    ],
    ids=str,
)
def test_points_that_do_not_fit_what_failed_are_not_kept(tmp_path: Path, grade: Marker, spoilt: dict[str, str]) -> None:
    write(tmp_path, a="wrong")
    path = tmp_path / "m.csv"
    (row,) = grade_folder(tmp_path, output=path)
    assert grade_folder(tmp_path, output=path, resume=True) == [row]
    assert len(grade.calls) == 1
    path.write_text(table.as_csv([row._replace(**spoilt)]))
    assert grade_folder(tmp_path, output=path, resume=True) == [row]
    assert len(grade.calls) == 2


def test_what_was_not_loaded_is_kept_too(tmp_path: Path, grade: Marker) -> None:
    write(tmp_path, a="broken")
    rows = [grade_folder(tmp_path, output=tmp_path / "m.csv", resume=True) for _ in range(2)]
    assert rows[0] == rows[1]
    assert (rows[0][0].score, rows[0][0].failed, rows[0][0].remarks) == ("0", "", "SyntaxError: line 1")
    assert len(grade.calls) == 1


def test_of_several_rows_of_a_file_the_last_is_kept(tmp_path: Path, grade: Marker) -> None:
    write(tmp_path, a="right")
    path = tmp_path / "m.csv"
    (row,) = grade_folder(tmp_path, output=path)
    other = row._replace(remarks="by hand")
    path.write_text(table.as_csv([row, other]))
    assert grade_folder(tmp_path, output=path, resume=True) == [other]
    path.write_text(table.as_csv([row, row._replace(sha256="0")]))  # the last is of another text: graded again
    grade.calls.clear()
    assert grade_folder(tmp_path, output=path, resume=True) == [row]
    assert len(grade.calls) == 1


def test_empty_lines_are_none(tmp_path: Path, grade: Marker) -> None:
    write(tmp_path, a="right", b="right")
    path = tmp_path / "m.csv"
    rows = grade_folder(tmp_path, output=path)
    path.write_text("\n" + path.read_text().replace("\n", "\n\n") + "," * (len(Row._fields) - 1) + "\n\n")
    assert table.read_rows(path) == rows
    assert grade_folder(tmp_path, output=path, resume=True) == rows
    assert len(grade.calls) == 2


def test_what_somebody_else_writes_meanwhile_is_left_alone(
    tmp_path: Path, grade: Marker, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "class", a="right", b="right")
    path = tmp_path / "m.csv"

    def edit(*arguments: Any, **options: Any) -> Report:
        path.write_text("notes of hours")
        return grade(*arguments, **options)

    monkeypatch.setattr(folder, "grade", edit)
    for options in ({}, {"force": True}):
        with pytest.raises(
            FileError, match=r"m\.csv: expected the table as this run left it, got one that was changed"
        ):
            grade_folder(tmp_path / "class", jobs=1, output=path, **options)
        assert path.read_text() == "notes of hours"
    path.unlink()
    monkeypatch.setattr(folder, "grade", grade)
    assert grade_folder(tmp_path / "class", output=path, resume=True) == table.read_rows(path)


def test_a_table_that_changes_while_it_is_read_is_left_alone(
    tmp_path: Path, grade: Marker, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, a="right")
    path = tmp_path / "m.csv"
    grade_folder(tmp_path, output=path)

    def edit(name: Path) -> list[Row]:
        rows = table.read_rows(name)
        path.write_text("notes of hours")
        return rows

    monkeypatch.setattr(folder, "read_rows", edit)
    with pytest.raises(FileError, match="was changed meanwhile, and is left alone; go on from it by --resume"):
        grade_folder(tmp_path, output=path, resume=True)
    assert path.read_text() == "notes of hours"


def test_a_table_of_another_folder_is_not_lost(tmp_path: Path, grade: Marker) -> None:
    write(tmp_path / "one", a="right")
    write(tmp_path / "two", b="right")
    path = tmp_path / "m.csv"
    grade_folder(tmp_path / "one", output=path)
    before = path.read_text()
    with pytest.raises(FileError, match=r"m\.csv: expected rows of this folder, got a\.py; name another"):
        grade_folder(tmp_path / "two", output=path, resume=True)
    assert path.read_text() == before


def test_an_interrupt_loses_no_result_and_begins_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "class", a="right", b="slow", c="right", d="right")
    path, begun, ended = tmp_path / "m.csv", threading.Event(), []
    marker = Marker()

    def grade(target: str, *rest: Any, progress: Any, **options: Any) -> Report:
        if Path(target).name != "b.py":
            return marker(target, *rest, progress=progress, **options)
        begun.set()
        try:
            while True:  # until progress says that nobody waits
                progress(0, 1)
                time.sleep(0.001)
        finally:
            ended.append(target)

    def interrupt(done: int, total: int) -> None:
        assert begun.wait(20)
        raise KeyboardInterrupt

    monkeypatch.setattr(folder, "grade", grade)
    monkeypatch.setattr(folder, "weights", lambda exercise: WEIGHTS)
    with pytest.raises(KeyboardInterrupt, match=r"^$"):
        grade_folder(tmp_path / "class", output=path, jobs=2, progress=interrupt)
    assert len(ended) == 1
    held = [row.file for row in table.read_rows(path)]
    assert "b.py" not in held
    assert held
    marker.calls.clear()
    monkeypatch.setattr(folder, "grade", marker)
    rows = grade_folder(tmp_path / "class", output=path, resume=True)
    assert [row.file for row in rows] == ["a.py", "b.py", "c.py", "d.py"]
    assert {call[0] for call in marker.calls} == {"a.py", "b.py", "c.py", "d.py"} - set(held)


def test_what_waits_is_not_begun_after_an_interrupt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, a="", b="", c="", d="")
    begun: list[str] = []

    def grade(target: str, *_: Any, progress: Any, **__: Any) -> Report:
        begun.append(Path(target).name)
        while begun != ["a.py"]:
            progress(0, 1)
            time.sleep(0.001)
        return Report("a", 0, (), {}, {})

    def interrupt(done: int, total: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(folder, "grade", grade)
    with pytest.raises(KeyboardInterrupt, match=r"^$"):
        grade_folder(tmp_path, jobs=1, progress=interrupt)
    assert len(begun) <= 2


def test_a_resumed_table_holds_what_is_kept_before_anything_is_graded(
    tmp_path: Path, grade: Marker, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "class", a="right", b="right", z="right")
    path = tmp_path / "m.csv"
    grade_folder(tmp_path / "class", output=path)
    write(tmp_path / "class", a="wrong")
    held: list[list[str]] = []

    def look(*_: Any, **__: Any) -> Report:
        held.append([row.file for row in table.read_rows(path)])
        return Report("a", 0, (), {}, {})

    monkeypatch.setattr(folder, "grade", look)
    grade_folder(tmp_path / "class", output=path, resume=True)
    assert held == [["b.py", "z.py"]]


# ----------------------------------------------------------------------------------------------- summary
def test_a_class_is_summed_up() -> None:
    rows = [
        Row("a", score="2", maximum="2", passed="yes"),
        Row("b", score="1", maximum="4", passed="no", mistakes="x; y"),
        Row("c", score="0.5", maximum="4", passed="no", mistakes="y"),
        Row("d", remarks="no"),
    ]
    made = table.summary(rows)
    assert (made.files, made.graded, made.passed) == (4, 3, 1)
    assert (made.score, made.maximum) == (pytest.approx(3.5 / 3), pytest.approx(10 / 3))
    assert list(made.mistakes.items()) == [("y", 2), ("x", 1)]
    assert table.summary([Row("d")]) == table.Summary(1, 0, 0, None, None, {})


def test_twins_are_one_mistake_and_none_where_one_of_them_is_sure() -> None:
    alone = WRONG._replace(mistakes=TWINS.mistakes[1:])
    for verdicts, made in (
        ((WRONG, TWINS, TWINS), "no-max; a or d"),
        ((TWINS, WRONG, alone), "no-max; d"),
        ((alone, TWINS), "d"),
    ):
        row = table.judged(Row("x"), Report("x", 0, verdicts, {}, {}), 8.0)
        assert row.mistakes == made
    rows = [table.judged(Row(name), REPORT, 12.0) for name in "xy"]
    assert table.summary(rows).mistakes == {"a or d": 2, "no-max": 2}


def test_one_maximum_holds_for_all_of_a_class(tmp_path: Path) -> None:
    write(
        tmp_path, a="def softmax(x, axis=-1:", b="def softmax(x):\n    raise NotImplementedError\n", c="import numpy\n"
    )
    rows = grade_folder(tmp_path, Settings(["causal_mask"]))
    one, all_of_them = (table.number(sum(weights(names).values())) for names in (["causal_mask"], None))
    assert [(row.score, row.maximum) for row in rows] == [("0", one)] * 3
    rows = grade_folder(tmp_path)
    assert [row.maximum for row in rows] == [all_of_them, all_of_them, ""]
    assert rows[1].remarks.startswith(
        "not found: attention, causal_mask, multi_head, layer; not implemented yet: softmax"
    )
    assert rows[2].remarks.startswith("expected a function or class to grade, got none in c.py, which has nothing; ")
    assert "functions=" not in rows[2].remarks  # one name for all would be nobody else's


# ---------------------------------------------------------------------------------------- what is missing
NEVER_MASKED = (
    "import numpy as np\n"
    "def softmax(x, axis=-1):\n"
    "    e = np.exp(x - x.max(axis=axis, keepdims=True))\n"
    "    return e / e.sum(axis=axis, keepdims=True)\n"
    "def {name}(q, k, v):\n"
    "    return softmax(q @ np.swapaxes(k, -1, -2) / np.sqrt(q.shape[-1])) @ v\n"
)


def test_only_all_points_are_passed_and_it_is_said_where_others_are(tmp_path: Path) -> None:
    write(tmp_path / "class", a=NEVER_MASKED.format(name="attention"), b=NEVER_MASKED.format(name="att_of"))
    path = tmp_path / "m.csv"
    rows = grade_folder(tmp_path / "class", Settings(["softmax", "attention"]), output=path)
    assert [(row.passed, row.failed) for row in rows] == [
        ("no", ""),
        ("no", "; ".join(name for name in weights(["attention"]) if weights()[name])),
    ]
    assert re.fullmatch(r"not taken: \d checks, attention has no argument for mask", rows[0].remarks)
    assert rows[1].remarks == "not found: attention; the file has att_of: --function attention=att_of"
    assert table.read_rows(path) == rows
    (row,) = [one for one in grade_folder(tmp_path / "class", Settings(["softmax"])) if one.file == "a.py"]
    assert (row.passed, row.score, row.remarks) == ("yes", row.maximum, "")
    row = grade_folder(tmp_path / "class")[1]
    assert (row.passed, row.failed) == ("no", "")
    assert row.remarks == (
        "not found: attention; the file has att_of: --function attention=att_of; "
        "not found: causal_mask, multi_head, layer"
    )


def test_rows_without_all_points_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "class", a=NEVER_MASKED.format(name="attention"))
    rows = grade_folder(tmp_path / "class", output=tmp_path / "m.csv")
    assert (rows[0].passed, rows[0].failed) == ("no", "")
    monkeypatch.setattr(folder, "grade", None)
    assert grade_folder(tmp_path / "class", output=tmp_path / "m.csv", resume=True) == rows


def test_a_name_that_is_given_for_a_class_is_one_more_name(tmp_path: Path) -> None:
    write(tmp_path, a=NEVER_MASKED.format(name="mine"), b=NEVER_MASKED.format(name="attention"), c="def f(): pass\n")
    both = NEVER_MASKED.format(name="attention") + "def mine(q, k, v):\n    return q\n"
    write(tmp_path, d=both)
    asked = Settings(["attention"], options={"functions": {"attention": "mine"}})
    rows = grade_folder(tmp_path, asked)
    assert rows[0].score == rows[1].score != "0"
    assert rows[2].remarks == "not found: attention"
    assert float(rows[3].score) < float(rows[1].score)  # its own name comes first
