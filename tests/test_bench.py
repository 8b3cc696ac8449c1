"""bench: the table of cases is sound, timing is paired as promised, peers are checked, pages are written whole."""

import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headwise as hw
from headwise import files
from headwise.bench import cases, measure, memory, peers, report
from headwise.bench.cases import CASES, GOALS, Case
from headwise.bench.conditions import Conditions, conditions
from headwise.bench.measure import BenchError, Clock, Contestant, Outcome, Result, Spread, Versus
from headwise.bench.peers import PEERS, Peer
from headwise.files import FileError


def shrunk(case: Case) -> Case:
    """The same kind of case on a few numbers."""
    heads = 4 if case.kv_heads is None else 2 * case.kv_heads
    window = None if case.window is None else (5, 0)
    d_v = None if case.d_v is None else 4
    return case._replace(shape=(2, heads, 24, 8), d_v=d_v, window=window)


def kinds() -> list[Case]:
    """One small case of every kind in the table, and some that later rows may ask for."""
    found = {shrunk(case)._replace(name="", group="", peers=(), most_repeats=None, by_default=True) for case in CASES}
    some = [case._replace(peers={}, name=case.words) for case in sorted(found, key=lambda case: case.words)]
    plain = next(case for case in some if case.part == "full" and case.dtype == "float32" and case.factor == 1)
    more = [
        plain._replace(kv_heads=2),
        plain._replace(n_k=40, causal=True),
        plain._replace(shape=(2, 4, 1, 8), n_k=40, kv_heads=2, causal=True),
        plain._replace(random=True, padded=True),
        plain._replace(window=(30, 2), padded=True, alibi=True),
    ]
    return some + [case._replace(name=case.words) for case in more]


KINDS = kinds()
EACH_KIND = pytest.mark.parametrize("case", KINDS, ids=[case.name for case in KINDS])


def definition(case: Case, inputs: cases.Inputs) -> Any:
    rng = np.random.default_rng(0) if case.dropout else None
    return hw.scaled_dot_product_attention(*inputs[:3], **cases.options(case, inputs), rng=rng)[0]


# -------------------------------------------------------------------------------------------- cases
def test_the_table_is_sound() -> None:
    names = [case.name for case in CASES]
    groups = {case.group for case in CASES}
    assert len(set(names)) == len(names)
    assert not groups & set(names)
    assert "list" not in groups | set(names)
    assert not any("," in name or " " in name for name in [*names, *groups])
    for case in CASES:
        assert set(case.peers) <= set(PEERS), case.name
        assert all(aim is None or 0 < aim < 100 for aim in case.peers.values()), case.name
        assert case.group == "long" or any(aim is not None for aim in case.peers.values()), (
            f"{case.name} aims at nothing"
        )
    for goal in GOALS:
        parts = {case.part for case in CASES if case.group == goal.group and goal.peer in case.peers}
        assert goal.part == "all" or goal.part in parts, goal


def test_the_cases_are_those_that_were_promised() -> None:
    forward = [case for case in CASES if case.group == "forward"]
    assert len(forward) == 12
    assert {case.shape for case in forward} >= {(8, 8, 512, 8), (32, 12, 128, 64), (1, 16, 4096, 128)}
    assert all(("naive" in case.peers) == (case.shape[2] <= 2048) == ("onnx" in case.peers) for case in forward)
    assert {case.group for case in CASES if not case.by_default} == {"long"}
    large = [case for case in CASES if case.group == "large"]
    assert all((case.factor, case.shape[2] >= 512) == (8, True) for case in large)
    assert len(large) == 10


def test_cases_are_chosen_by_name_and_by_group_in_the_order_of_the_table() -> None:
    assert cases.select(None) == [case for case in CASES if case.group != "long"]
    found = cases.select(["tiny", "masked"])
    assert [case.name for case in found] == ["padding", "window", "random", "alibi", "tiny"]
    assert cases.whole_groups(found) == ["masked"]
    for names in (["nonsense"], ["tiny", ""], []):
        with pytest.raises(ValueError, match=r"expected names of cases or groups \(forward, large, .*\), got '"):
            cases.select(names)


def test_every_case_says_what_it_is() -> None:
    said = {case.name: case.words for case in CASES}
    assert len(set(said.values())) == len(said)
    assert said["window"] == "(1, 8, 8192, 64), full, float32, window(256, 0)"
    assert said["padding"].endswith("the last 512 of 1024 keys are padding")
    assert {len(row) for row in cases.rows()} == {4}


@EACH_KIND
def test_inputs_are_made_from_a_seed(case: Case) -> None:
    inputs, again, other = cases.make(case), cases.make(case), cases.make(case, seed=1)
    for array, same, differs in zip(inputs[:3], again[:3], other[:3], strict=True):
        assert array.dtype == case.dtype
        assert np.array_equal(array, same)
        assert not np.array_equal(array, differs)
    assert inputs.q.std() == pytest.approx(case.factor, rel=0.2)
    assert inputs.v.shape[-1] == (case.d_v or case.shape[-1])
    assert (inputs.seen is not None) == case.random


@EACH_KIND
def test_visible_pairs_are_counted_right(case: Case) -> None:
    inputs = cases.make(case)
    b, h, n, _ = case.shape
    seen = cases.dense_mask(case, inputs, causal=True)
    whole = np.broadcast_to(True if seen is None else seen, (b, h, n, case.keys))
    assert cases.pairs(case, inputs) == np.count_nonzero(whole)


@EACH_KIND
def test_the_naive_peer_is_the_definition(case: Case) -> None:
    inputs = cases.make(case)
    got, expected = PEERS["naive"].prepare(case, inputs, 1)(), definition(case, inputs)
    assert got.shape == expected.shape
    if case.dropout:
        assert np.isfinite(got).all()
    else:
        np.testing.assert_allclose(got, expected, atol=measure.tolerance(case, inputs) / 8, rtol=0)


@pytest.mark.parametrize("peer", [peer for peer in PEERS.values() if peer.name != "naive"], ids=lambda peer: peer.name)
def test_an_installed_peer_is_the_definition_or_says_that_it_has_no_such_thing(peer: Peer) -> None:
    if not peers.is_installed(peer):
        pytest.skip(f"{peer.name} is not installed: {peer.install}")
    done = 0
    for case in KINDS:
        inputs = cases.make(case)
        with suppress(peers.UnsupportedError):
            got = peer.prepare(case, inputs, 1)()
            done += 1
            if not case.dropout:
                most = measure.tolerance(case, inputs)
                np.testing.assert_allclose(got, definition(case, inputs), atol=most, rtol=0, err_msg=case.words)
    assert done >= 4  # full and causal, q as it is and large


@EACH_KIND
def test_our_own_result_is_compared_with_the_definition(case: Case) -> None:
    inputs = cases.make(case)
    out = definition(case, inputs)
    measure.check_ours(case, inputs, out)
    if not case.dropout:
        with pytest.raises(BenchError, match=r"expected the definition within .* from it"):
            measure.check_ours(case, inputs, out + np.asarray(0.1, out.dtype) * case.factor)
        with pytest.raises(BenchError, match="got nan from it"):
            measure.check_ours(case, inputs, out * np.nan)
        with pytest.raises(BenchError, match=r"expected the definition of shape"):
            measure.check_ours(case, inputs, out[..., :-1])


# -------------------------------------------------------------------------------------------- timing
class Studio:
    """A clock of ours, and contestants that take what they are told to and note that they ran."""

    def __init__(self) -> None:
        self.time = 0.0
        self.log: list[str | float] = []
        self.clock = Clock(lambda: self.time, self.log.append)

    def contestant(self, name: str, durations: Sequence[float], spins: bool = False) -> Contestant:
        left = list(durations)

        def run() -> None:
            self.log.append(name)
            self.time += left.pop(0) if len(left) > 1 else left[0]

        return Contestant(name, run, spins)


def test_all_alternate_every_other_round_in_reversed_order_after_their_pauses() -> None:
    studio = Studio()
    runners = [studio.contestant("a", [1.0]), studio.contestant("b", [2.0], spins=True), studio.contestant("c", [0.5])]
    seconds = measure.alternate(runners, 2, studio.clock, spinning=True)
    first = [0.15, "a", 0.005, "b", 0.15, "c"]
    second = [0.005, "c", 0.005, "b", 0.15, "a"]
    third = [0.005, "a", 0.005, "b", 0.15, "c"]
    assert studio.log == first + second + third
    assert seconds == {"a": [1.0, 1.0], "b": [2.0, 2.0], "c": [0.5, 0.5]}


def test_what_is_short_runs_once_untimed_before_it_is_timed() -> None:
    studio = Studio()
    seconds = measure.alternate([studio.contestant("a", [0.05, 7.0, 0.06, 7.0, 0.08])], 2, studio.clock)
    assert studio.log == [0.005, "a", 0.005, "a", "a", 0.005, "a", "a"]
    assert seconds["a"] == pytest.approx([0.06, 0.08])
    assert len(measure.alternate([studio.contestant("b", [0.1])], 1, Studio().clock)["b"]) == 1


def test_what_is_tiny_is_called_in_a_loop() -> None:
    studio = Studio()
    seconds = measure.alternate([studio.contestant("a", [5e-4])], 1, studio.clock)
    assert studio.log.count("a") == 1 + 1 + 10
    assert seconds["a"] == pytest.approx([5e-4])


def test_the_roof_is_that_of_a_product() -> None:
    times = iter([0.0, 4.0, 10.0, 12.0, 20.0, 23.0])
    assert measure.roof("float64", Clock(lambda: next(times), print), size=8, times=3) == 2 * 8**3 / 2.0


def stand_in(name: str, run: Callable[[Case, cases.Inputs], Any], **more: Any) -> Peer:
    return Peer(name, ("numpy",), ("numpy",), lambda case, inputs, threads: lambda: run(case, inputs), **more)


def fails(case: Case, inputs: cases.Inputs) -> Any:
    raise RuntimeError("no such\nkernel")


STAND_INS = [
    stand_in("good", definition, note="ours again"),
    stand_in("off", lambda case, inputs: definition(case, inputs) + np.float32(0.1)),
    stand_in("turned", lambda case, inputs: definition(case, inputs).swapaxes(1, 2)),
    stand_in("broken", fails),
    stand_in("elsewhere", fails),
    Peer("absent", ("no_such_module",), ("no-such-package",), lambda *_: fails),
]


@pytest.fixture
def no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "extra_bytes", lambda case, threads: 3 * 2**20)
    monkeypatch.setattr(measure, "roof", lambda dtype, clock: 1e12)


SMALL = KINDS[0]._replace(name="small", group="some", peers=dict.fromkeys(("good", "off", "turned", "broken"), 0.5))


@pytest.mark.usefixtures("no_memory")
def test_a_peer_that_computes_something_else_is_reported_and_not_timed() -> None:
    said: list[str] = []
    outcome = measure.bench([SMALL], STAND_INS, 1, 1, said.append)
    (result,) = outcome.results
    found = {versus.peer: versus for versus in result.peers}
    assert list(found) == ["good", "off", "turned", "broken"]
    assert found["good"].error == ""
    assert found["good"].ratio is not None
    assert found["off"].error.startswith("expected the result of headwise within ")
    assert found["turned"].error.startswith("expected the result of headwise of shape (2, 4, 24, 8), got (2, 24, 4, 8)")
    assert found["broken"].error == "RuntimeError: no such\\nkernel"
    assert all(found[name].seconds is None and found[name].ratio is None for name in ("off", "turned", "broken"))
    assert outcome.absent == {"absent": "pip install no-such-package"}
    assert outcome.notes["good"] == "ours again"
    assert [which for which, _ in report.failures(outcome)] == ["small, off", "small, turned", "small, broken"]
    assert said[0] == "1 of 1: small: preparing good"
    assert result.extra_bytes == 3 * 2**20
    assert result.scores_bytes == 2 * 4 * 24 * 24 * np.dtype(SMALL.dtype).itemsize


@pytest.mark.usefixtures("no_memory")
def test_ratios_are_those_of_each_round(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = {"headwise": [2.0, 1.0, 4.0], "good": [4.0, 3.0, 4.0]}
    given: list[Any] = []

    def fake(contestants: Sequence[Contestant], repeat: int, clock: Clock, spinning: bool) -> dict[str, list[float]]:
        given.extend([[one.name for one in contestants], repeat, spinning])
        return taken

    monkeypatch.setattr(measure, "alternate", fake)
    case = SMALL._replace(peers={"good": 1.5}, most_repeats=3)
    result = measure.measure_case(case, STAND_INS, 9, 1, lambda text: None)
    assert given == [["headwise", "good"], 3, True]
    assert result.seconds == Spread(2.0, 1.5, 3.0)
    assert result.peers == [Versus("good", 1.5, 4.0, Spread(2.0, 1.5, 2.5))]
    assert result.rate == cases.operations(case, cases.make(case)) / 2.0
    assert result.share == result.rate / 1e12


@pytest.mark.usefixtures("no_memory")
def test_a_bug_of_ours_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "ours", lambda case, inputs, threads: lambda: definition(case, inputs) + 1)
    with pytest.raises(
        BenchError, match=r"^small: headwise: expected the definition within .*; this is a bug of headwise$"
    ):
        measure.bench([SMALL], [], 1, 1, print)


# -------------------------------------------------------------------------------------------- peers
def test_absent_peers_come_with_the_command_that_installs_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object() if name == "numpy" else None)
    outcome = measure.bench([], peers.chosen(None), 1, 1, print)
    assert list(outcome.notes) == ["naive"]
    assert outcome.absent == {
        "torch": "pip install torch",
        "onnxruntime": "pip install onnxruntime onnx",
        "onnx": "pip install onnx",
        "jax": "pip install jax",
        "openvino": "pip install openvino",
    }


def test_the_bench_extra_brings_every_peer() -> None:
    text = (Path(__file__).parents[1] / "pyproject.toml").read_text()
    (extra,) = [line for line in text.splitlines() if line.startswith("bench = ")]
    for package in {package for peer in PEERS.values() for package in peer.packages} - {"numpy"}:
        assert f'"{package}>=' in extra, package


def test_peers_are_chosen_by_name() -> None:
    assert [peer.name for peer in peers.chosen(["jax", "naive"])] == ["naive", "jax"]
    for names in (["numpy"], [""], []):
        with pytest.raises(ValueError, match=r"expected names of peers \(naive, torch, .*\), got '"):
            peers.chosen(names)


# ------------------------------------------------------------------------------------------- memory
def test_memory_is_that_of_a_call_beyond_what_it_gives() -> None:
    code = (
        "import numpy as np; from headwise.bench.memory import growth; kept = np.ones(2**21)\n"
        "def run(): return np.ones(2**23)[: 2**22].copy()\n"
        "print(growth(run))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    if done.stdout.strip() == "None":
        pytest.skip("the system does not say")
    assert 60 * 2**20 < int(done.stdout) < 80 * 2**20  # one array of 64 MiB beside the result, which is one of 32


def test_the_memory_of_a_case_is_measured_in_another_process(monkeypatch: pytest.MonkeyPatch) -> None:
    (tiny,) = cases.select(["tiny"])
    found = memory.extra_bytes(tiny, 1)
    assert found is None or 0 <= found < 2**28
    failed = subprocess.CompletedProcess([], 1, "", "killed")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: failed)
    assert memory.extra_bytes(tiny, 1) is None


def test_the_conditions_are_collected() -> None:
    here = conditions(3, 5, ["pytest", "no-such-package"])
    assert here.versions["headwise"] == hw.__version__
    assert here.versions["pytest"] == pytest.__version__
    assert here.versions["no-such-package"] == "not installed"
    assert (here.threads, here.repeat) == (3, 5)
    assert here.cores >= 1
    assert dict(here.facts()).keys() == {"CPU", "CPU features", "BLAS of NumPy", "versions", "threads", "rounds"}


# ------------------------------------------------------------------------------------------- report
def result_of(name: str, ratios: dict[str, float | None], extra: int | None = 2**20) -> Result:
    (case,) = cases.select([name])
    versus = [
        Versus(peer, case.peers[peer], error="it | broke")
        if ratio is None
        else Versus(peer, case.peers[peer], 0.1 * ratio, Spread(ratio, ratio - 0.125, ratio + 0.125))
        for peer, ratio in ratios.items()
    ]
    return Result(case, case.words, Spread(0.1, 0.09, 0.11), 3e11, 4e11, extra, 2**20, 2**27, versus)


HERE = Conditions("a processor", 2, 2, 9, ["AVX2"], ["openblas 0.3"], {"headwise": "1"})


def outcome_of(*results: Result, **absent: str) -> Outcome:
    return Outcome(HERE, list(results), {"torch": "a note"}, absent)


def outcome() -> Outcome:
    full = result_of("float64-full-8x8x512x64", {"torch": 2.0})
    return outcome_of(full, result_of("float64-causal-8x8x512x64", {"torch": 0.5}), jax="pip install jax")


def test_rows_have_ratios_shares_and_memory() -> None:
    results = [result_of("padding", {"torch": 1.75}), result_of("tiny", {"naive": 0.5}, extra=None)]
    assert report.columns(results) == ["case", "ours, ms", "torch", "naive", "of roof", "extra, MiB", "scores, MiB"]
    assert report.rows(results) == [
        ["padding", "100", "1.75 [1.62-1.88]", "", "75%", "1", "128"],
        ["tiny", "100", "", "0.50 [0.38-0.62] missed 0.6", "75%", "unknown", "128"],
    ]
    assert report.rows([result_of("padding", {"torch": None})])[0][2] == "failed"


def test_a_target_is_reached_as_measured_not_as_shown() -> None:
    assert report.rows([result_of("padding", {"torch": 1.6999})])[0][2] == "1.70 [1.57-1.82] missed 1.7"
    assert "missed" not in report.rows([result_of("padding", {"torch": 1.7})])[0][2]


def test_means_are_geometric_and_by_part() -> None:
    names = ["full-8x8x512x64", "causal-8x8x512x64", "full-8x8x512x8", "causal-8x8x512x8"]
    results = [result_of(name, {"torch": ratio}) for name, ratio in zip(names, (0.5, 4.0, 2.0, 1.0), strict=True)]
    found = {
        (mean.group, mean.part): (mean.peer, pytest.approx(mean.ratio), mean.cases) for mean in report.means(results)
    }
    assert found == {
        ("forward", "all"): ("torch", 2**0.5, 4),
        ("forward", "full"): ("torch", 1.0, 2),
        ("forward", "causal"): ("torch", 2.0, 2),
    }
    assert report.mean_table(results)[1][0] == ["forward", "all", "1.41 (4)"]
    assert report.mean_table(results[:1]) == (["group", "part"], [])


def test_verdicts_name_what_was_missed_and_judge_means_of_whole_groups_only() -> None:
    names = ["full-8x8x512x64", "causal-8x8x512x64", "padding"]
    results = [result_of(name, {"torch": ratio}) for name, ratio in zip(names, (0.75, 3.0, 1.75), strict=True)]
    partly = report.target_rows(report.verdicts(results, []))
    assert partly == [
        ["forward", "torch", "each >= 1", "1 of 2 reached; missed: full-8x8x512x64 0.75"],
        ["padding", "torch", ">= 1.7", "1.75, reached"],
    ]
    (mean,) = [row for row in report.verdicts(results, ["forward"]) if row.target.startswith("geometric")]
    assert mean == ("forward", "torch", "geometric mean >= 1.3", True, "1.5, reached")


PAGE = f"# Title\n\nbefore {report.BEGIN}\n{report.BEGIN}\nold\n{report.END}\nafter ü\n"


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_a_page_is_written_between_its_markers_and_nowhere_else(tmp_path: Path, newline: str) -> None:
    page, before = tmp_path / "page.md", PAGE.replace("\n", newline).encode()
    page.write_bytes(before)
    report.check_page(page)
    report.write_page(page, outcome(), ["float64"])
    written = page.read_bytes()
    lead, _, rest = before.partition(f"{newline}old{newline}".encode())
    assert written.startswith(lead)
    assert written.endswith(newline.encode() + rest)
    text = written.decode()
    assert text.count("\r\n") == (text.count("\n") if newline == "\r\n" else 0)
    assert "| float64-causal-8x8x512x64 | 100 | 0.50 [0.38-0.62] missed 1 | 75% | 1 | 128 |" in text
    assert "| float64 | torch | each >= 1 | 1 of 2 reached; missed: float64-causal-8x8x512x64 0.5 |" in text
    assert "| float64 | all | 1.00 (2) |" in text
    assert "- CPU: a processor, 2 cores to use" in text
    assert "- jax: not installed, pip install jax" in text
    report.write_page(page, outcome(), ["float64"])
    assert page.read_bytes() == written
    assert [path.name for path in tmp_path.iterdir()] == ["page.md"]


@pytest.mark.parametrize(
    ("text", "got"),
    [
        ("nothing", "0 and 0 of them"),
        (f"{report.BEGIN}\n", "1 and 0 of them"),
        (f"{report.END}\n{report.BEGIN}\n", "another order"),
        (PAGE + PAGE, "2 and 2 of them"),
        (f" {report.BEGIN}\n{report.END} \n", "0 and 0 of them"),
    ],
)
def test_a_page_without_its_markers_is_refused_unchanged(tmp_path: Path, text: str, got: str) -> None:
    page = tmp_path / "page.md"
    page.write_text(text)
    for act in (lambda: report.check_page(page), lambda: report.write_page(page, outcome(), [])):
        with pytest.raises(FileError, match=rf"page\.md: expected the lines .* once each, got {got}; put them where"):
            act()
    assert page.read_text() == text


def test_a_page_is_not_written_where_something_was_not_measured(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(PAGE)
    part = outcome_of(result_of("padding", {"torch": None}))
    with pytest.raises(BenchError, match=r"expected every case measured, got none for padding, torch: it \| broke"):
        report.write_page(page, part, [])
    assert page.read_text() == PAGE


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(28, "No space left on device")])
def test_an_interrupt_leaves_the_page_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    def fail(*_: Any) -> None:
        raise error

    page = tmp_path / "page.md"
    page.write_text(PAGE)
    page.chmod(0o640)
    with monkeypatch.context() as patch:
        patch.setattr(files.os, "fsync", fail)
        with pytest.raises((KeyboardInterrupt, FileError), match=r"^$|No space left on device"):
            report.write_page(page, outcome(), [])
    assert page.read_text() == PAGE
    assert [path.name for path in tmp_path.iterdir()] == ["page.md"]
    report.write_page(page, outcome(), [])
    assert page.stat().st_mode & 0o777 == 0o640


def test_texts_that_cannot_be_read_or_replaced(tmp_path: Path) -> None:
    (tmp_path / "latin.md").write_bytes(b"\xff")
    with pytest.raises(FileError, match=r"latin\.md: expected an undamaged file, got .*utf-8"):
        files.read_text(tmp_path / "latin.md")
    with pytest.raises(FileError, match=r"none\.md: expected a file that can be read"):
        report.check_page(tmp_path / "none.md")
    with pytest.raises(FileError, match=r"expected a file, got a folder"):
        files.write_text(tmp_path, "text")
    with pytest.raises(FileError, match=r"expected an existing folder"):
        files.write_text(tmp_path / "none" / "page.md", "text")


def test_facts_are_one_object_with_everything() -> None:
    found = report.facts(outcome(), ["float64"])
    assert list(found) == ["conditions", "results", "means", "targets", "peers", "absent"]
    assert found["results"][0]["share"] == 0.75
    assert json.dumps(found)
