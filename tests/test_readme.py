"""What the README says is so: the tree, the example and its print, the errors, the commands."""

import re
import shlex
from pathlib import Path

import numpy as np
import pytest

import headwise as hw
from headwise import cli
from headwise.check.checks import EXERCISES

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
PACKAGE = ROOT / "src" / "headwise"


def blocks(language=""):
    fenced = re.findall(r"^```(\w*)\n(.*?)^```$", README, re.S | re.M)
    return [text for named, text in fenced if named == language]


def lines(example):
    return len([line for line in example.splitlines() if line])


@pytest.mark.parametrize("example", blocks("python"))
def test_an_example_prints_what_is_shown(capsys, example):
    assert lines(example) <= 15
    exec(compile(example, "README.md", "exec"), {})
    assert capsys.readouterr().out in blocks()


def test_ten_lines_are_ten():
    said = re.findall(r"(?<!\[)Ten lines.*?^```python\n(.*?)^```$", README, re.S | re.M)  # not where it is a link
    assert len(said) == len(re.findall(r"(?<!\[)Ten lines", README)) == 3
    assert all(lines(example) <= 10 for example in said)


@pytest.mark.parametrize(
    "call", ["hw.attention_steps(", "hw.attention(", "open_checkpoint(", "layer.vjp(", "check_vjp(", "grade("]
)
def test_there_is_an_example_of(call):
    assert any(call in example for example in blocks("python"))


def test_every_exercise_that_is_graded_is_named():
    (said,) = re.findall(r"^Graded are .*?;", README, re.S | re.M)
    for name, asked in EXERCISES.items():
        assert f"`{name if name == 'single_sequence' else asked.split('(')[0]}`" in said, name


def test_no_example_says_how_long_it_takes():
    assert not re.search(r"\d m?s\b", "".join(blocks())), "how long something takes is not the same everywhere"


def test_the_error_is_what_is_shown():
    q, k = np.zeros((2, 2)), np.zeros((2, 3))
    with pytest.raises(TypeError, match="2 arguments do not fit") as caught:
        hw.scaled_dot_product_attention(q, k, np.zeros((3, 1)), np.ones((2, 3)))
    assert f"{caught.value}\n" in blocks()


def test_the_tree_is_the_folder():
    (tree,) = [block for block in blocks() if block.startswith("src/headwise/")]
    shown, folder = set(), []
    for line in tree.splitlines()[1:]:
        if not line.startswith(" "):
            break
        depth = (len(line) - len(line.lstrip())) // 2 - 1
        name = line.split()[0]
        folder = [*folder[:depth], name]
        shown.add("".join(folder))
        assert len(line.split(maxsplit=1)[1]) > 4, f"{name} is not explained"
    held = {
        str(path.relative_to(PACKAGE))
        for path in PACKAGE.rglob("*.py")
        if path.parent == PACKAGE or "__init__" not in path.name
    }
    held |= {f"{path.name}/" for path in PACKAGE.iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert shown == held


@pytest.mark.parametrize("line", re.findall(r"^headwise .*$", README, re.M))
def test_the_commands_are_understood(line):
    words = shlex.split(line, comments=True)[1:]
    parsed = cli._parser().parse_args(words)
    assert parsed is not None


def test_the_make_targets_exist():
    targets = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.M)
    assert set(re.findall(r"make (\w+)", README)) <= set(targets)


def test_every_name_in_the_readme_exists():
    for name in set(re.findall(r"\bhw\.(\w+)", README)):
        assert hasattr(hw, name), name
    for name in set(re.findall(r"\bmasks\.(\w+)", README)) - {"py"}:
        assert hasattr(hw.masks, name), name


@pytest.mark.parametrize("page", ["README.md", "DESIGN.md", "CONTRIBUTING.md", "CHANGELOG.md"])
def test_links_lead_somewhere(page):
    prose = re.sub(
        r"^```.*?^```$", "", (ROOT / page).read_text(), flags=re.S | re.M
    )  # blocks have brackets of their own
    for target in re.findall(r"\]\(([^)#]+)", prose):
        assert target.startswith("http") or (ROOT / target).exists(), target


def test_files_named_in_the_pages_exist_or_are_said_to_come():
    for page in ("DESIGN.md", "CONTRIBUTING.md"):
        text = (ROOT / page).read_text()
        for name in set(re.findall(r"`((?:core|layers|tests|tools|data)/[\w/]+\.\w+)`", text)):
            assert (ROOT / name).exists() or (PACKAGE / name).exists(), f"{page}: {name}"
