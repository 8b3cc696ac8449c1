"""What the pages in docs/ say is so: their examples print what is shown, their names and links lead somewhere."""

import doctest
import re
from pathlib import Path

import pytest

import headwise as hw

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "headwise"
PAGES = sorted((ROOT / "docs").glob("*.md"))
EACH = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


def blocks(text):
    """The fenced blocks of Python of a page."""
    return re.findall(r"^```python\n(.*?)^```$", text, re.S | re.M)


def run(text, name):
    """Run the examples of a page, one after the other in one namespace; how many there were, and what went wrong."""
    runner, said, names = doctest.DocTestRunner(verbose=False), [], {}
    for i, block in enumerate(blocks(text), 1):
        test = doctest.DocTestParser().get_doctest(block, names, f"{name}, block {i}", name, 0)
        runner.run(test, out=said.append, clear_globs=False)
        names = test.globs  # a doctest copies what it is given
    return runner.summarize(verbose=False).attempted, "".join(said)


def test_the_pages_are_there():
    assert {"gradients.md", "grading.md", "serving.md", "weights.md"} <= {page.name for page in PAGES}


@EACH
def test_the_examples_print_what_is_shown(page):
    attempted, wrong = run(page.read_text(), page.name)
    assert not wrong, wrong
    assert attempted >= 3 * len(blocks(page.read_text())) > 0, "blocks of Python have prompts, and results"


@pytest.mark.parametrize("block", [">>> 1 + 1\n3\n", ">>> a = 1\n\n>>> b\n", ">>> a = 1\n>>> 1 / 0\n"])
def test_an_example_that_is_wrong_would_be_noticed(block):
    attempted, wrong = run(f"text\n\n```python\n{block}```\n\nmore\n", "page")
    assert attempted
    assert "page, block 1" in wrong


def test_a_later_block_knows_the_names_of_an_earlier_one():
    text = "```python\n>>> a = 1\n```\n\n```python\n>>> a + 1\n2\n```\n"
    assert run(text, "page") == (2, "")


@EACH
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)", page.read_text()):
        assert target.startswith("http") or (page.parent / target).exists(), target


@EACH
def test_names_exist(page):
    text = page.read_text()
    for name in set(re.findall(r"\bhw\.(\w+)", text)):
        assert hasattr(hw, name), name
    for name in set(re.findall(r"`((?:core|layers)/\w+\.py)`", text)):
        assert (PACKAGE / name).exists(), name


def test_every_source_of_the_gradients_is_used_and_given():
    text = (ROOT / "docs" / "gradients.md").read_text()
    said, _, sources = re.sub(r"^```.*?^```$", "", text, flags=re.S | re.M).partition("## Sources")
    used = {number for group in re.findall(r"\[(\d(?:, \d)*)\]", said) for number in group.split(", ")}
    assert used == set(re.findall(r"^(\d)\. ", sources, re.M))


def test_every_step_of_attention_has_its_gradient_on_the_page():
    text = (ROOT / "docs" / "gradients.md").read_text()
    inputs = hw.AttentionGradients._fields
    steps = [name for name in hw.AttentionSteps._fields if name not in ("out", "lse")]
    for name in (*inputs, *steps, "x", "w_q", "w_k", "w_v", "w_o", "merged"):
        assert re.search(rf"\bd_{name}\b", text), name
