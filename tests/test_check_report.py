"""check/report, words, formats, machine: what each rendering says, and that no text of a solution acts anywhere."""

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from standins import HOSTILE, REPORT, RIGHT, SKIPPED, TWINS, WRONG, hostile

from headwise.check import formats, machine, words
from headwise.check.report import FAILED, Report, Verdict

SCHEMA = Path(__file__).with_name("junit.xsd")
EACH = pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
FORMAT = pytest.mark.parametrize("name", formats.FORMATS)
EMPTY = Report("empty.py", 0, (), {}, {})
BROKEN = Report("broken.py", 0, (), {}, {}, broken="SyntaxError: line 1 <&>", seconds=0.5)


# -------------------------------------------------------------------------------------------- every format
@EACH
@FORMAT
@pytest.mark.parametrize("hints", [0, 3])
def test_what_a_solution_says_is_printable_and_bounded_everywhere(name: str, text: str, hints: int) -> None:
    for broken in (False, True):
        made = formats.FORMATS[name](hostile(text, broken), hints)
        assert [c for c in made if not c.isprintable() and c != "\n"] == []
        assert max(map(len, made.splitlines())) < 30_000
        assert len(made) < 120_000
        made.encode("utf-8")


@FORMAT
def test_the_same_report_is_the_same_text_with_and_without_verdicts(name: str) -> None:
    for report in (REPORT, EMPTY, BROKEN):
        assert formats.FORMATS[name](report, 1) == formats.FORMATS[name](report, 1) != ""


@FORMAT
@pytest.mark.parametrize("hints", range(4))
def test_as_many_hints_are_given_as_are_asked_for(name: str, hints: int) -> None:
    made = formats.FORMATS[name](REPORT, hints)
    parts = ("expected 1, got nan", "look at what is given to exp", "softmax(x - max(x))")
    assert [part in made for part in parts] == [i < hints for i in range(3)]
    assert ("no-max" in made) == ("Take the maximum off" in made) == (hints > 0)


@FORMAT
@pytest.mark.parametrize("hints", [-1, 4, True, None, "1"])
def test_other_numbers_of_hints_are_refused(name: str, hints: Any) -> None:
    with pytest.raises(ValueError, match=r"hints: expected 0, 1, 2 or 3, got"):
        formats.FORMATS[name](REPORT, hints)


@FORMAT
def test_the_words_for_all_are_in_each_format(name: str) -> None:
    made = formats.FORMATS[name](REPORT, 1)
    for word in (
        "solution",
        "my_softmax",
        "MultiHeadSelfAttention",
        "cell 3 failed",
        "memory",
        "debug 1",
        "it is slow",
    ):
        assert word in made.replace("\\", ""), word


# ---------------------------------------------------------------------------------------------------- text
def test_the_text_is_what_a_learner_reads() -> None:
    assert (
        str(REPORT)
        == REPORT.text()
        == (
            "solution.py, seed 7\n"
            "found: softmax as my_softmax, attention as sdpa\n"
            "missing: layer: looked for MultiHeadSelfAttention, Layer\n"
            "remark: cell 3 failed\n"
            "limits off: memory\n"
            "passed     rows-sum      each row sums to 1\n"
            "FAILED     large-scores  large scores do not overflow\n"
            "    failed: out[0, 0]: expected 1, got nan\n"
            "    known mistake: no-max: Nothing is taken off before exp. fix: Take the maximum off.\n"
            "    remark: it is slow\n"
            "    printed: debug 1\n"
            "    printed: debug 2\n"
            "not taken  mask-hides    a mask hides keys\n"
            "FAILED     scaled        large scores do not overflow\n"
            "    failed: out[0, 0]: expected 1, got nan\n"
            "    known mistake: a: b. fix: c.\n"
            "    known mistake: d: e! fix: f.\n"
            "    these 2 are twins here: they give the same for these inputs; look for each\n"
            "not taken: 1 check\n"
            "score: 2 of 8"
        )
    )


def test_without_hints_the_text_tells_no_more_than_what_failed() -> None:
    said = [line for line in REPORT.text(0).splitlines() if line.startswith(" ")]
    assert said == ["    remark: it is slow", "    printed: debug 1", "    printed: debug 2"]


def test_each_hint_has_its_label() -> None:
    said = [line.strip() for line in REPORT.text(3).splitlines()]
    at = said.index("failed: out[0, 0]: expected 1, got nan")
    assert said[at + 1 : at + 3] == [
        "look: look at what is given to exp",
        "formula: softmax(x) = softmax(x - max(x))",
    ]


def test_a_solution_that_could_not_be_loaded_says_why() -> None:
    assert str(BROKEN) == "broken.py, seed 0\nnot loaded: SyntaxError: line 1 <&>\nscore: 0 of 0"


@FORMAT
def test_why_nothing_could_be_loaded_is_said_once(name: str) -> None:
    unread = tuple(verdict._replace(status=FAILED, mistakes=(), remarks=(), printed="") for verdict in (WRONG, TWINS))
    made = formats.FORMATS[name](replace(REPORT, verdicts=unread, broken="SyntaxError: '(' was never closed"), 3)
    said = made.replace("\\", "").replace("&#x27;", "'")
    assert said.count("was never closed") == {"junit": 3}.get(name, 1)  # an attribute, the text, and a property
    if name in ("text", "markdown", "html"):
        assert "large-scores" not in said
        assert "0 of 6" in said


def test_what_was_refused_after_loading_is_not_called_not_loaded() -> None:
    made = str(replace(REPORT, broken="imports torch; NumPy alone is allowed"))
    assert "\nrefused: imports torch; NumPy alone is allowed\nfound: softmax as my_softmax" in made
    assert "not loaded" not in made


TO_DO = WRONG._replace(
    hints=("for x (5,): NotImplementedError (line 20 of a.py)", "look", "formula"),
    mistakes=(),
    remarks=(),
    printed="",
    unwritten=True,
)
UNFILLED = Report(
    "a.py",
    0,
    (TO_DO._replace(check="z", exercise="attention"), TO_DO, TO_DO._replace(check="y"), RIGHT._replace(weight=0.0)),
    {"softmax": "softmax", "attention": "sdpa"},
    {},
)


def test_what_is_not_written_yet_is_a_line_for_each_exercise() -> None:
    assert UNFILLED.text(3).splitlines()[2:] == [
        "to do      softmax  not implemented yet: NotImplementedError (line 20 of a.py)",
        "to do      sdpa     not implemented yet: NotImplementedError (line 20 of a.py)",
        "score: 0 of 9",
        "next: implement softmax",
    ]


@pytest.mark.parametrize("name", ["markdown", "html"])
def test_what_is_not_written_yet_is_no_row_of_a_table(name: str) -> None:
    made = formats.FORMATS[name](UNFILLED, 3).replace("\\", "")
    assert made.count("not implemented yet") == 2
    assert "next: implement softmax" in made
    assert "large scores do not overflow" not in made


def test_an_exercise_of_which_something_is_written_is_judged() -> None:
    begun = replace(UNFILLED, verdicts=(*UNFILLED.verdicts, RIGHT))
    assert begun.unwritten == ("attention",)
    said = begun.text().splitlines()
    assert "FAILED     large-scores  large scores do not overflow" in said
    assert said[-1] == "next: implement sdpa"


BROADCAST = "ValueError: operands could not be broadcast together with shapes {0} (line {1} of a.py)"


def failing(check: str, error: str, **changes: Any) -> Verdict:
    return WRONG._replace(check=check, hints=(f"for x (2, 3), axis 1: {error}", "look", "formula"))._replace(**changes)


def test_one_broken_line_is_told_once() -> None:
    first = failing("a", BROADCAST.format("(3,5) (3,)", 4))
    again = failing("b", BROADCAST.format("(2,3,5) (2,5)", 4))  # other shapes, the same fault
    said = Report("a", 0, (first, again, RIGHT), {}, {}).text(3).splitlines()
    assert said[3:10] == [
        "    failed: for x (2, 3), axis 1: " + BROADCAST.format("(3,5) (3,)", 4),
        "    look: look",
        "    formula: formula",
        "    known mistake: no-max: Nothing is taken off before exp. fix: Take the maximum off.",
        "    remark: it is slow",
        "    printed: debug 1",
        "    printed: debug 2",
    ]
    assert said[10:12] == [
        "FAILED     b         large scores do not overflow: as above",
        "passed     rows-sum  each row sums to 1",
    ]


@pytest.mark.parametrize(
    "other",
    [
        failing("b", BROADCAST.format("(3,5) (3,)", 5)),
        failing("b", "NameError: name 'e' is not defined (line 4 of a.py)"),
        failing("b", BROADCAST.format("(3,5) (3,)", 4), mistakes=()),
        failing("b", BROADCAST.format("(3,5) (3,)", 4), remarks=("it is new",)),
        failing("b", "", hints=("out[0, 0]: expected 1, got nan",)),
    ],
    ids=["line", "error", "mistake", "remark", "numbers"],
)
def test_another_fault_is_told(other: Verdict) -> None:
    first = failing("a", BROADCAST.format("(3,5) (3,)", 4))
    assert "overflow: as above" not in Report("a", 0, (first, other), {}, {}).text()
    both = (WRONG, WRONG._replace(check="b"))  # numbers say of each check something else
    assert "overflow: as above" not in Report("a", 0, both, {}, {}).text()


def test_a_remark_on_an_error_that_was_told_is_short() -> None:
    error = "NameError: name 'e' is not defined (line 4 of a.py)"
    noted = RIGHT._replace(remarks=(f"what a mask of 0 and 1 gives: {error}",))
    assert (
        "    remark: what a mask of 0 and 1 gives: as above"
        in Report("a", 0, (failing("a", error), noted), {}, {}).text()
    )
    assert f"gives: {error}" in Report("a", 0, (noted,), {}, {}).text()


def test_why_checks_were_not_taken_is_a_line() -> None:
    why = "attention has no argument for mask; it takes q, k, v"
    left = [SKIPPED._replace(check=name, remarks=(why,)) for name in "ab"]
    other = SKIPPED._replace(check="c", remarks=("softmax has no argument for axis; it takes x",))
    free = SKIPPED._replace(check="d", weight=0.0, remarks=(why,))
    report = Report("a", 0, (RIGHT, *left, other, free), {}, {})
    line = "not taken: 2 checks, attention has no argument for mask, and 1 check, softmax has no argument for axis"
    assert report.text().splitlines()[-2:] == [line, "score: 2 of 2"]
    assert f"- {line}" in report.markdown()
    assert "not taken: " not in replace(report, verdicts=(RIGHT, free)).text()


def test_names_of_functions_to_do_do_not_widen_those_of_checks() -> None:
    long = replace(UNFILLED, verdicts=(*UNFILLED.verdicts, RIGHT), found={"attention": "scaled_dot_product_attention"})
    said = long.text().splitlines()
    assert "passed     rows-sum      each row sums to 1" in said
    assert "to do      scaled_dot_product_attention  not implemented yet" in "\n".join(said)


def test_only_what_was_asked_for_is_found() -> None:
    for asked, found in ((("softmax",), "softmax as my_softmax"), (("single_sequence",), "attention as sdpa")):
        assert replace(REPORT, asked=asked).text().splitlines()[1] == f"found: {found}"
    assert replace(REPORT, asked=("layer",)).text().splitlines()[1] == "found: nothing"


@EACH
def test_a_text_cannot_pass_for_a_line_of_ours(text: str) -> None:
    made = hostile(f"{text}\nscore: 9 of 9\npassed     everything").text(3).splitlines()
    assert [line for line in made if line.startswith("score: ")] == ["score: 1 of 2"]
    assert [line.split()[1] for line in made if line.startswith("passed ")] == ["two"]
    assert max(map(len, made)) < 1500
    assert len(made) < 100


# ------------------------------------------------------------------------------------------------ markdown
def test_markdown_has_a_table_and_a_fence_for_each_failure() -> None:
    made = REPORT.markdown(2)
    assert made.startswith("## solution.py: 2 of 8\n\n- seed: 7\n- found: softmax as my_softmax, attention as sdpa\n")
    assert "\n| check | result | points | claim |\n| --- | --- | ---: | --- |\n" in made
    assert "\n| large-scores | FAILED | 0 of 3 | large scores do not overflow |\n" in made
    assert "\n| mask-hides | not taken | - | a mask hides keys |\n" in made
    assert "\n### large-scores\n\n```text\nfailed: out[0, 0]: expected 1, got nan\nlook: look at what" in made
    assert made.count("```text") == 2
    assert "rows-sum" not in made.partition("###")[2]


def test_a_check_that_can_only_remark_has_no_points() -> None:
    made = Report("a", 0, (RIGHT._replace(weight=0.0),), {}, {}).markdown()
    assert "| rows-sum | passed | - | each row sums to 1 |" in made


def fences(made: str) -> tuple[str, list[str]]:
    """The text outside of fences, and what the fences hold, by the rule of CommonMark."""
    outside, inside, fence = [], [], ""
    for line in made.splitlines():
        if fence:
            if re.fullmatch(f" {{0,3}}{fence}`* *", line):
                fence = ""
            else:
                inside.append(line)
        elif opened := re.match("`{3,}", line):
            fence = opened[0]
        else:
            outside.append(line)
    assert not fence, "a fence is not closed"
    return "\n".join(outside), inside


@EACH
def test_markdown_of_a_solution_stays_text(text: str) -> None:
    outside, _ = fences(hostile(text).markdown(3))
    bare = re.sub(r"\\[!-/:-@\[-`{-~]|<!-- -->|&[lg]t;|(?<=[a-z])_(?=[a-z])", "", outside)
    assert not re.search(r"[`*_<>\[\]$~\\]", bare)
    assert not re.search(r"://|www\.", bare)
    rows = [line for line in bare.splitlines() if line.startswith("|")]
    assert {line.count("|") for line in rows} == {5}
    assert not re.search(r"@\w", outside)
    assert [line for line in bare.splitlines() if line.startswith("#")] == [
        line for line in bare.splitlines() if re.match(r"## |### (one|two|three)$", line)
    ]


def read_as_markdown(source: str) -> list[str]:
    """What a reader of GitHub's Markdown sees of a page: the text of its headings, items and cells."""
    from markdown_it import MarkdownIt

    tokens = MarkdownIt("commonmark").enable(["table", "strikethrough"]).parse(source)
    inline = [token.children or [] for token in tokens if token.type == "inline"]
    assert {child.type for children in inline for child in children} <= {"text", "text_special", "html_inline"}
    return ["".join(c.content for c in children if c.type != "html_inline") for children in inline]


@EACH
def test_a_reader_of_markdown_sees_the_very_text(text: str) -> None:
    seen = read_as_markdown(hostile(text).markdown(0))
    shown = words.line(text)
    assert seen[0] == f"{shown}: 1 of 2"
    assert seen.count(shown.strip()) == 3  # a claim for each row; the cells of a table are stripped
    assert f"remark: {shown}".strip() in seen


@pytest.mark.parametrize(
    ("text", "escaped"),
    [
        ("w_q (2, 3): exp(x - max(x)) = 0.5, 100 %; it's !", None),
        ("layer.proj-1 + a/b", None),
        ("_private", r"\_private"),
        ("a * b", r"a \* b"),
        ("http://x", r"http\://x"),
        ("AT&T; &amp;", "AT&amp;T; &amp;amp;"),
        ("a | b", r"a \| b"),
        ("$x$ ~~y~~", r"\$x\$ \~\~y\~\~"),
        ("C # and #1 #", r"C # and \#1 \#"),
        ("@me", "@<!-- -->me"),
    ],
)
def test_markdown_escapes_what_would_act_there_and_nothing_else(text: str, escaped: str | None) -> None:
    assert formats._plain(text) == (text if escaped is None else escaped)


# ---------------------------------------------------------------------------------------------------- HTML
class Tags(HTMLParser):
    """The tags of a page, their attributes, and the text between."""

    VOID = ("meta",)

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[tuple[str, tuple[str, ...]]] = []
        self.words: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, tuple(name for name, _ in attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def tags(page: str) -> Tags:
    parser = Tags()
    parser.feed(page)
    parser.close()
    assert parser.open == []
    return parser


PLAIN_TAGS = set(tags(hostile("plain").html(3)).seen)


@EACH
def test_html_of_a_solution_is_text_and_adds_no_tag(text: str) -> None:
    for page in (hostile(text).html(3), hostile(text)._repr_html_()):
        assert set(tags(page).seen) <= PLAIN_TAGS
    assert words.lines(text)[0][:100] in "".join(tags(hostile(text).html(3)).words)


def test_html_is_a_whole_page_that_needs_nothing_else() -> None:
    page = REPORT.html()
    assert page.startswith("<!doctype html>\n")
    assert '<meta charset="utf-8"><title>solution.py: 2 of 8</title>' in page
    assert not re.search(r"https?:|src=|href=|<script|url\(", page)
    assert page.count("<details open>") == 2


def test_a_notebook_shows_a_fragment_with_all_hints_folded_in() -> None:
    made = REPORT._repr_html_()
    assert made.startswith('<div class="hw-report tex2jax_ignore mathjax_ignore">')
    assert made.count("<summary>what failed</summary>") == made.count("<summary>the formula</summary>") == 2
    assert made.count("<details open>") == 2
    assert "<style" not in made  # it would be the notebook's too


# ---------------------------------------------------------------------------------------------------- JSON
def test_the_facts_are_plain_values() -> None:
    value = json.loads(machine.as_json(REPORT, 1))
    assert (value["target"], value["seed"], value["passed"]) == ("solution.py", 7, False)
    assert (value["score"], value["maximum"], value["seconds"]) == (2, 8, 1.25)
    assert value["found"] == {"softmax": "my_softmax", "attention": "sdpa"}
    assert value["missing"] == {"layer": "MultiHeadSelfAttention, Layer"}
    assert [check["status"] for check in value["checks"]] == ["passed", "failed", "not taken", "failed"]
    wrong = value["checks"][1]
    assert wrong["hints"] == ["out[0, 0]: expected 1, got nan"]
    assert wrong["mistakes"][0]["name"] == "no-max"
    assert wrong["printed"] == "debug 1\ndebug 2"
    assert json.loads(machine.as_json(REPORT, 0))["checks"][1]["mistakes"] == []


@EACH
@pytest.mark.parametrize("name", ["json", "gradescope"])
def test_what_is_in_json_is_printable_too(name: str, text: str) -> None:
    value = json.loads(formats.FORMATS[name](hostile(text), 3))
    held = json.dumps(value, ensure_ascii=False).replace("\\n", "")
    assert [c for c in held if not c.isprintable()] == []


# ------------------------------------------------------------------------------------------------- JUnit
def checked(made: str) -> Any:
    """The parsed XML, once it fits the schema."""
    from lxml import etree

    root = etree.fromstring(made.encode("utf-8"))
    etree.XMLSchema(etree.parse(str(SCHEMA))).assertValid(root)
    return root


@EACH
@pytest.mark.parametrize("hints", [0, 3])
def test_junit_of_a_solution_fits_the_schema(text: str, hints: int) -> None:
    root = checked(machine.junit(hostile(text), hints))
    assert [len(root.findall(f".//{tag}")) for tag in ("testcase", "failure", "skipped", "error")] == [3, 1, 1, 0]


@pytest.mark.parametrize("report", [REPORT, EMPTY, BROKEN])
def test_junit_fits_the_schema_whatever_was_found(report: Report) -> None:
    checked(machine.junit(report))


def test_a_solution_that_could_not_be_loaded_is_one_error_whatever_is_listed() -> None:
    root = checked(machine.junit(replace(REPORT, broken="SyntaxError: line 1")))
    assert dict(root.attrib) | {"time": ""} == {
        "name": "headwise check", "tests": "1", "failures": "0", "errors": "1", "time": ""
    }  # fmt: skip
    assert [suite.get("name") for suite in root] == ["load"]
    assert len(root.findall(".//failure")) == 0


def test_a_skipped_check_has_no_attribute_that_older_schemas_refuse() -> None:
    skipped = ElementTree.fromstring(machine.junit(REPORT)).find(".//skipped")
    assert skipped is not None
    assert (skipped.attrib, skipped.text) == ({}, "not taken: a mask hides keys")


def test_the_schema_would_notice() -> None:
    from lxml import etree

    for bad in (' tests="many"', ' colour="red"'):
        made = machine.junit(REPORT).replace("<testsuite ", f"<testsuite{bad} ", 1).replace(' tests="2"', "", 1)
        with pytest.raises(etree.DocumentInvalid, match="testsuite"):
            checked(made)
    with pytest.raises(etree.DocumentInvalid, match="skipped"):
        checked(machine.junit(REPORT).replace("<skipped>", '<skipped message="x">'))


def test_junit_counts_suites_and_cases() -> None:
    root = ElementTree.fromstring(machine.junit(REPORT))
    assert root.attrib == {"name": "headwise check", "tests": "4", "failures": "2", "errors": "0", "time": "1.250"}
    suites = [(suite.get("name"), suite.get("tests"), suite.get("failures"), suite.get("skipped")) for suite in root]
    assert suites == [("softmax", "2", "1", "0"), ("attention", "2", "1", "1")]
    case = root[0].findall("testcase")[1]
    failure = case.find("failure")
    assert case.attrib == {"name": "large-scores", "classname": "headwise.softmax", "time": "0.500"}
    assert failure is not None
    assert failure.attrib == {"message": "out[0, 0]: expected 1, got nan", "type": "no-max"}
    assert case.findtext("system-out") == "debug 1\ndebug 2"
    assert root[1].findall("testcase")[0].find("skipped") is not None
    score = root[0].find("properties/property[@name='score']")
    assert score is not None
    assert score.get("value") == "2 of 8"


def test_junit_without_hints_gives_the_claim() -> None:
    failure = ElementTree.fromstring(machine.junit(Report("a", 0, (WRONG._replace(remarks=()),), {}, {}), 0)).find(
        ".//failure"
    )
    assert failure is not None
    assert failure.attrib == {"message": "large scores do not overflow", "type": "failed"}


def test_a_solution_that_could_not_be_loaded_is_an_error_of_junit() -> None:
    root = ElementTree.fromstring(machine.junit(BROKEN))
    assert root.attrib["errors"] == root.attrib["tests"] == "1"
    error = root.find("testsuite/testcase/error")
    assert error is not None
    assert error.text == "SyntaxError: line 1 <&>"


@EACH
def test_a_reader_of_junit_finds_the_same(text: str) -> None:
    import junitparser

    read = junitparser.JUnitXml.fromstring(machine.junit(hostile(text), 3).encode("utf-8"))
    assert (read.tests, read.failures, read.errors) == (3, 1, 0)
    (suite,) = read
    cases = list(suite)
    assert [case.name for case in cases] == ["one", "two", "three"]
    assert [[type(result).__name__ for result in case.result] for case in cases] == [["Failure"], [], ["Skipped"]]
    assert [property.name for property in suite.properties()][:3] == ["target", "seed", "score"]


# --------------------------------------------------------------------------------------------- Gradescope
FORMATS_THERE = {"text", "html", "simple_format", "md", "ansi"}
VISIBLE = {"hidden", "after_due_date", "after_published", "visible"}
NUMBER = (int, float)
RESULTS: dict[str, Any] = {
    "score": NUMBER,
    "execution_time": NUMBER,
    "output": str,
    "output_format": FORMATS_THERE,
    "test_output_format": FORMATS_THERE,
    "test_name_format": FORMATS_THERE,
    "visibility": VISIBLE,
    "stdout_visibility": VISIBLE,
    "extra_data": dict,
    "tests": list,
    "leaderboard": list,
}
TEST: dict[str, Any] = {
    "score": NUMBER,
    "max_score": NUMBER,
    "status": {"passed", "failed"},
    "name": str,
    "name_format": FORMATS_THERE,
    "number": str,
    "output": str,
    "output_format": FORMATS_THERE,
    "tags": list,
    "visibility": VISIBLE,
    "extra_data": dict,
}


def fits(value: dict[str, Any], rules: dict[str, Any]) -> None:
    """Hold an object to the documented fields, which are all optional."""
    for name, held in value.items():
        assert name in rules, f"{name}: no such field"
        rule = rules[name]
        good = held in rule if isinstance(rule, set) else isinstance(held, rule) and not isinstance(held, bool)
        assert good, f"{name}: {held!r}"


def results(report: Report, hints: int = 1) -> dict[str, Any]:
    """Gradescope's results, once they are as documented."""
    value: dict[str, Any] = json.loads(machine.gradescope(report, hints))
    fits(value, RESULTS)
    assert "score" in value or all("score" in test for test in value["tests"])
    for test in value["tests"]:
        fits(test, TEST)
    return value


def test_gradescope_takes_the_results() -> None:
    value = results(REPORT)
    assert (value["score"], value["execution_time"]) == (2, 1.25)
    assert value["output"].startswith("solution.py, seed 7\nscore: 2 of 8\nfound: softmax as my_softmax")
    scores = [(test.get("score"), test.get("max_score"), test.get("status")) for test in value["tests"]]
    assert scores == [(2, 2, "passed"), (0, 3, "failed"), (None, None, None), (0, 3, "failed")]
    assert sum(score or 0 for score, _, _ in scores) == value["score"]
    assert value["tests"][1]["name"] == "softmax: large-scores"
    assert "not taken: it does not count" in value["tests"][2]["output"]


@EACH
def test_gradescope_takes_hostile_results_as_text(text: str) -> None:
    value = results(hostile(text), 3)
    assert {value[name] for name in ("output_format", "test_output_format", "test_name_format")} == {"text"}
    assert {test["output_format"] for test in value["tests"]} == {"text"}


@pytest.mark.parametrize("report", [EMPTY, BROKEN])
def test_gradescope_without_checks_has_a_score_and_a_reason(report: Report) -> None:
    value = results(report)
    assert (value["score"], value["tests"]) == (0, [])
    assert report.broken in value["output"]


def test_the_rules_would_notice() -> None:
    for bad in ({"score": "3"}, {"score": True}, {"visibility": "seen"}, {"colour": 1}):
        with pytest.raises(AssertionError, match=next(iter(bad))):
            fits(bad, RESULTS)


# ------------------------------------------------------------------------------------------------- Report
def test_a_report_tells_whether_it_passed_and_its_points() -> None:
    assert Report("a", 0, (RIGHT,), {}, {}).passed
    assert not Report("a", 0, (), {}, {}).passed
    assert not Report("a", 0, (RIGHT,), {}, {}, broken="x").passed
    assert (REPORT.passed, REPORT.score, REPORT.maximum) == (False, 2, 8)


def test_the_maximum_is_the_same_for_all_where_exercises_were_asked_for() -> None:
    asked = replace(REPORT, asked=("softmax", "attention"))
    assert (asked.score, asked.maximum, REPORT.maximum) == (2, 12, 8)
    assert "score: 2 of 12" in asked.text()
    assert "| mask-hides | not taken | 0 of 4 |" in asked.markdown()
    tests = results(asked)["tests"]
    assert [test["max_score"] for test in tests] == [2, 3, 4, 3]
    assert (tests[2]["score"], tests[2]["status"]) == (0, "failed")
    assert "not taken: it earns nothing" in tests[2]["output"]
    assert json.loads(machine.as_json(asked))["asked"] == ["softmax", "attention"]


def test_a_remark_that_was_not_taken_costs_nothing_where_exercises_were_asked_for() -> None:
    (test,) = results(Report("a", 0, (SKIPPED._replace(weight=0.0),), {}, {}, asked=("attention",)))["tests"]
    assert (test["score"], test["max_score"], test["status"]) == (0, 0, "passed")
