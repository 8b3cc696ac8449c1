"""bench: the table of cases is sound, timing is paired as promised, peers are checked, pages are written whole."""

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dense_vjp import dense_vjp

import headwise as hw
from headwise import files
from headwise.bench import agreement, arrays, cases, gradients, measure, memory, peers, report, workloads
from headwise.bench.agreement import BenchError
from headwise.bench.arrays import Inputs
from headwise.bench.cases import CASES, GOALS, Case
from headwise.bench.conditions import Conditions, conditions
from headwise.bench.measure import Clock, Contestant, Outcome, Result, Spread, Versus
from headwise.bench.page import MARKS, check_page, write_page
from headwise.bench.peers import PEERS, Peer
from headwise.files import FileError


def shrunk(case: Case) -> Case:
    """The same kind of case on a few numbers."""
    kv_heads, n_k = None if case.kv_heads is None else 2, None if case.n_k is None else 40
    window = None if case.window is None else (5, 0)
    d_v = None if case.d_v is None else 4
    return case._replace(shape=(2, 4, 24, 8), n_k=n_k, kv_heads=kv_heads, d_v=d_v, window=window)


def kinds() -> list[Case]:
    """One small case of every kind of attention in the table, and some that later rows may ask for."""
    same = {"name": "", "group": "", "peers": (), "most_extra": None, "most_repeats": None, "by_default": True}
    found = {shrunk(case)._replace(**same) for case in CASES if case.what == "attention"}
    some = [case._replace(peers={}, name=case.words) for case in sorted(found, key=lambda case: case.words)]
    plain = Case("", "", (2, 4, 24, 8), {})
    more = [
        plain._replace(kv_heads=2),
        plain._replace(n_k=40, causal=True),
        plain._replace(shape=(2, 4, 1, 8), n_k=40, kv_heads=2, causal=True),
        plain._replace(random=True, padded=True),
        plain._replace(window=(30, 2), padded=True, alibi=True),
        plain._replace(timed="backward", kv_heads=2, n_k=40, causal=True, factor=8),
        plain._replace(timed="both", dtype="float64", d_v=4, random=True),
        plain._replace(timed="both", alibi=True, causal=True, padded=True),
    ]
    return some + [case._replace(name=case.words) for case in more]


KINDS = kinds()
EACH_KIND = pytest.mark.parametrize("case", KINDS, ids=[case.name for case in KINDS])


def definition(case: Case, inputs: Inputs) -> Any:
    rng = np.random.default_rng(0) if case.dropout else None
    return hw.scaled_dot_product_attention(*inputs[:3], **arrays.options(case, inputs), rng=rng)[0]


def right(case: Case, inputs: Inputs) -> arrays.Made:
    """What a run of a case is to give: an output, gradients or all of them."""
    if case.timed == "forward":
        out: Any = definition(case, inputs)
        return out
    rng = 0 if case.dropout else None  # and not a generator, of which every use draws anew
    found = dense_vjp(*inputs[:3], d_out=inputs.d_out, **arrays.options(case, inputs), rng=rng)
    made = tuple(found[name].astype(case.dtype) for name in "qkv")
    return (definition(case, inputs), *made) if case.timed == "both" else made


def assert_right(case: Case, inputs: Inputs, got: arrays.Made, share: float = 1.0) -> None:
    """Each array within a share of what the bench itself allows."""
    expected = right(case, inputs)
    assert isinstance(got, tuple) == isinstance(expected, tuple) == (case.timed != "forward")
    pairs = zip(got, expected, strict=True) if isinstance(got, tuple) else [(got, expected)]
    for one, (made, wanted) in enumerate(pairs):
        assert made.shape == wanted.shape
        output = case.timed == "forward" or (case.timed == "both" and one == 0)
        most = agreement.tolerance(case, inputs) if output else 4096 * np.finfo(case.dtype).eps * np.abs(wanted).max()
        np.testing.assert_allclose(made, wanted, atol=share * most, rtol=0, err_msg=case.words)


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
        aims = [case.most_extra, *case.peers.values()]
        assert case.group == "long" or any(aim is not None for aim in aims), f"{case.name} aims at nothing"
        assert case.timed == "forward" or all(peers.stands_in(name, "backward") for name in case.peers), case.name
        assert case.what == "attention" or all(case.what in PEERS[name].workloads for name in case.peers), case.name
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


def test_the_cases_of_gradients_are_those_that_were_promised() -> None:
    def aims(group: str) -> list[tuple[Any, ...]]:
        found = [case for case in CASES if case.group == group]
        assert {case.dtype for case in found} == {"float32"}
        return [(case.shape, case.part, case.timed, dict(case.peers)) for case in found]

    shapes = ((8, 8, 512, 64), (32, 12, 128, 64), (1, 8, 2048, 64), (1, 8, 4096, 64), (1, 16, 2048, 128))
    both_parts = [(shape, part) for shape in shapes for part in ("full", "causal")]
    dense: Any = [{"naive": None} if shape[2] <= 2048 else {} for shape, _ in both_parts]
    alone = zip(both_parts, dense, strict=True)
    assert aims("backward-alone") == [(*which, "backward", {"torch": 1.0} | naive) for which, naive in alone]
    assert aims("backward-padded") == [(*which, "backward", {"torch": 1.7}) for which in both_parts]
    assert all(case.padded for case in CASES if case.group == "backward-padded")
    assert aims("backward-window") == [((1, 8, 4096, 64), "full", "backward", {"torch": 7.0})]
    together = zip(both_parts, dense, strict=True)
    assert aims("backward-both") == [(*which, "both", {"torch": None, "jax": 2.0} | naive) for which, naive in together]
    assert aims("backward-dropout") == [((1, 8, 2048, 64), "causal", "both", {"torch": 3.0})]
    long = [case for case in CASES if case.most_extra is not None]
    assert {(case.shape, case.timed, case.most_extra) for case in long} == {((1, 8, 8192, 64), "both", 64)}
    assert [goal for goal in GOALS if "backward" in goal.group] == [("backward-alone", "all", "torch", 1.15)]


def test_cases_are_chosen_by_name_and_by_group_in_the_order_of_the_table() -> None:
    assert cases.select(None) == [case for case in CASES if case.group != "long"]
    assert cases.select(["all"]) == list(CASES)
    of_gradients = cases.select(["backward"])
    assert of_gradients == [case for case in CASES if case.timed != "forward"]
    assert {case.table for case in of_gradients} == {"backward"}
    assert cases.select(["backward-alone"]) == of_gradients[:10]
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
    assert said["backward-window-1x8x4096x64"] == "(1, 8, 4096, 64), full, float32, window(256, 0), backward alone"
    assert said["both-full-1x8x2048x64"] == "(1, 8, 2048, 64), full, float32, forward and backward"
    assert {len(row) for row in cases.rows()} == {4}
    assert {row[0]: row[3] for row in cases.rows()}["both-full-1x8x8192x64"] == "torch, 64 MiB"


@EACH_KIND
def test_inputs_are_made_from_a_seed(case: Case) -> None:
    inputs, again, other = arrays.make(case), arrays.make(case), arrays.make(case, seed=1)
    drawn = (0, 1, 2) if case.timed == "forward" else (0, 1, 2, 4)
    for array, same, differs in ([given[at] for given in (inputs, again, other)] for at in drawn):
        assert array.dtype == case.dtype
        assert np.array_equal(array, same)
        assert not np.array_equal(array, differs)
    assert inputs.q.std() == pytest.approx(case.factor, rel=0.2)
    assert inputs.v.shape[-1] == (case.d_v or case.shape[-1])
    assert (inputs.seen is not None) == case.random
    assert (inputs.d_out is None) == (case.timed == "forward")
    plain = arrays.make(case._replace(timed="forward"))
    assert all(np.array_equal(a, b) for a, b in zip(inputs[:3], plain[:3], strict=True))  # the same, whatever is timed


@EACH_KIND
def test_visible_pairs_are_counted_right(case: Case) -> None:
    inputs = arrays.make(case)
    b, h, n, _ = case.shape
    seen = arrays.dense_mask(case, inputs, causal=True)
    whole = np.broadcast_to(True if seen is None else seen, (b, h, n, case.keys))
    assert arrays.pairs(case, inputs) == np.count_nonzero(whole)


@pytest.mark.parametrize(("timed", "products"), [("forward", 2), ("backward", 5), ("both", 7)])
def test_operations_are_those_of_the_products_over_visible_pairs(timed: str, products: int) -> None:
    case = Case("", "", (2, 3, 16, 8), {}, timed=timed)
    inputs = arrays.make(case)
    assert arrays.operations(case, inputs) == products * 2 * 8 * (2 * 3 * 16 * 16)
    causal = case._replace(causal=True)
    assert arrays.operations(causal, inputs) == products * 2 * 8 * (2 * 3 * 16 * 17 // 2)


@EACH_KIND
def test_the_naive_peer_is_the_definition(case: Case) -> None:
    inputs = arrays.make(case)
    if case.dropout and case.timed != "forward":
        with pytest.raises(peers.UnsupportedError, match="its gradients are measured without dropout"):
            PEERS["naive"].prepare(case, inputs, 1)
        return
    run = PEERS["naive"].prepare(case, inputs, 1)
    if case.dropout:
        got: Any = run()
        assert got.shape == definition(case, inputs).shape
        assert np.isfinite(got).all()
    else:
        assert_right(case, inputs, run(), 1 / 8)
        assert_right(case, inputs, run(), 1 / 8)  # a run leaves everything as it was


@pytest.mark.parametrize("peer", [peer for peer in PEERS.values() if peer.name != "naive"], ids=lambda peer: peer.name)
def test_an_installed_peer_is_the_definition_or_says_that_it_has_no_such_thing(peer: Peer) -> None:
    if not peers.is_installed(peer):
        pytest.skip(f"{peer.name} is not installed: {peer.install}")
    done = dict.fromkeys(("forward", "backward", "both"), 0)
    for case in KINDS:
        inputs = arrays.make(case)
        with suppress(peers.UnsupportedError):
            got = peer.prepare(case, inputs, 1)()
            done[case.timed] += 1
            agreement.check_peer(case, inputs, got, right(case, inputs))
    assert done["forward"] >= 4  # full and causal, q as it is and large
    assert (done["both"] > 0) == bool(peer.gradients)


@EACH_KIND
def test_our_own_result_is_compared_with_the_definition(case: Case) -> None:
    inputs = arrays.make(case)
    made = right(case, inputs)
    agreement.check_ours(case, inputs, made)
    whole = made if isinstance(made, tuple) else (made,)
    for at, array in enumerate(whole if not case.dropout else ()):
        for wrong, says in (
            (array + np.asarray(0.1 * np.abs(array).max(), array.dtype) * case.factor, r"within .* from it"),
            (array * np.nan, "within .*, got nan from it"),
            (array[..., :-1], r"of shape"),
        ):
            faulty = (*whole[:at], wrong, *whole[at + 1 :])
            with pytest.raises(BenchError, match=rf"expected (d_[qkv] of )?the definition {says}"):
                agreement.check_ours(case, inputs, faulty if isinstance(made, tuple) else wrong)


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
    assert studio.log.count("a") == 1 + 1 + 40
    assert seconds["a"] == pytest.approx([5e-4])


def test_the_roof_is_that_of_a_product() -> None:
    times = iter([0.0, 4.0, 10.0, 12.0, 20.0, 23.0])
    assert measure.roof("float64", Clock(lambda: next(times), print), size=8, times=3) == 2 * 8**3 / 2.0


@EACH_KIND
def test_our_own_runs_are_right(monkeypatch: pytest.MonkeyPatch, case: Case) -> None:
    monkeypatch.setattr(agreement, "_BLOCK", 7)  # queries; several blocks, the last one shorter
    inputs = arrays.make(case)
    run = peers.ours(case, inputs, 1)
    for made in (run(), run()):
        assert_right(case, inputs, made)
        agreement.check_ours(case, inputs, made)


def stand_in(name: str, run: Callable[[Case, Inputs], Any], **more: Any) -> Peer:
    return Peer(name, ("numpy",), ("numpy",), lambda case, inputs, threads: lambda: run(case, inputs), **more)


def fails(case: Case, inputs: Inputs) -> Any:
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


def off(at: int) -> Callable[[Case, Inputs], Any]:
    """What is right, with one of its arrays a little larger."""

    def run(case: Case, inputs: Inputs) -> Any:
        made: Any = right(case, inputs)
        return tuple(array * np.float32(1 + 0.01 * (i == at)) for i, array in enumerate(made))

    return run


@pytest.mark.usefixtures("no_memory")
@pytest.mark.parametrize("timed", ["backward", "both"])
def test_a_peer_whose_gradients_are_others_is_reported_and_not_timed(timed: str) -> None:
    names = ["d_q", "d_k", "d_v"] if timed == "backward" else ["result", "d_q", "d_k", "d_v"]
    wrong = {f"off {name}": stand_in(f"off {name}", off(at)) for at, name in enumerate(names)}
    more = [
        stand_in("good", right),
        stand_in("no output", lambda case, inputs: right(case, inputs)[-3:]),
        stand_in("turned", lambda case, inputs: tuple(x.swapaxes(1, 2) for x in right(case, inputs))),
    ]
    whom = [*wrong.values(), *more]
    case = SMALL._replace(timed=timed, peers=dict.fromkeys([peer.name for peer in whom], 0.5))
    (result,) = measure.bench([case], whom, 1, 1, lambda text: None).results
    said = {versus.peer: versus.error for versus in result.peers}
    assert said.pop("good") == said.pop("no output") == ""  # jax.grad gives gradients alone
    assert said.pop("turned").startswith(f"expected the {names[0]} of headwise of shape (2, 4, 24, 8), got (2, 24, 4")
    for name in names:
        assert said[f"off {name}"].startswith(f"expected the {name} of headwise within "), name
    assert result.planned_bytes is None


@pytest.mark.usefixtures("no_memory")
def test_with_dropout_shapes_are_compared_and_that_there_is_no_nan() -> None:
    whom = [
        stand_in("other", lambda case, inputs: tuple(2 * x for x in right(case, inputs))),
        stand_in("none", lambda case, inputs: tuple(x * np.float32("nan") for x in right(case, inputs))),
        stand_in("narrow", lambda case, inputs: tuple(x[..., 1:] for x in right(case, inputs))),
    ]
    case = SMALL._replace(timed="both", dropout=0.25, peers=dict.fromkeys([peer.name for peer in whom], None))
    (result,) = measure.bench([case], whom, 1, 1, lambda text: None).results
    other, none, narrow = (versus.error for versus in result.peers)
    assert other == ""
    assert none.endswith("got nan from it")
    assert narrow.startswith("expected the result of headwise of shape")


def our_own(monkeypatch: pytest.MonkeyPatch, run: Callable[[Case, Inputs], Any]) -> None:
    """Let the measured run of ours be another one."""
    plain = workloads.WORKLOADS["attention"]._replace(ours=lambda case, inputs, threads: lambda: run(case, inputs))
    monkeypatch.setattr(workloads, "WORKLOADS", {"attention": plain})


@pytest.mark.usefixtures("no_memory")
def test_gradients_of_ours_that_are_wrong_end_it(monkeypatch: pytest.MonkeyPatch) -> None:
    our_own(monkeypatch, off(1))
    with pytest.raises(
        BenchError, match=r"^small: headwise: expected d_k of the definition within .* bug of headwise$"
    ):
        measure.bench([SMALL._replace(timed="backward")], [], 1, 1, print)


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
    assert result.rate == arrays.operations(case, arrays.make(case)) / 2.0
    assert result.share == result.rate / 1e12


@pytest.mark.usefixtures("no_memory")
def test_a_bug_of_ours_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    our_own(monkeypatch, lambda case, inputs: definition(case, inputs) + 1)
    with pytest.raises(
        BenchError, match=r"^small: headwise: expected the definition within .*; this is a bug of headwise$"
    ):
        measure.bench([SMALL], [], 1, 1, print)


# -------------------------------------------------------------------------------------------- peers
@pytest.mark.parametrize("timed", ["backward", "both"])
def test_a_peer_without_gradients_says_so(timed: str) -> None:
    case = SMALL._replace(timed=timed)
    for name in ("onnxruntime", "onnx", "openvino"):
        assert not peers.stands_in(name, "backward")
        with pytest.raises(peers.UnsupportedError, match="it has no gradients"):
            PEERS[name].prepare(case, arrays.make(case), 1)


def test_jax_has_no_backward_pass_alone() -> None:
    case = SMALL._replace(timed="backward")
    with pytest.raises(peers.UnsupportedError, match="it has no backward pass alone"):
        PEERS["jax"].prepare(case, arrays.make(case), 1)


def test_of_a_backward_pass_alone_the_forward_pass_is_done_before(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    whole = gradients.attention_vjp

    def noted(*given: Any, **more: Any) -> Any:
        done.append("forward")
        out, vjp = whole(*given, **more)
        return out, lambda d_out: [done.append("backward"), vjp(d_out)][1]

    monkeypatch.setattr(gradients, "attention_vjp", noted)
    for timed, expected in (("backward", ["backward"] * 2), ("both", ["forward", "backward"] * 2)):
        case = SMALL._replace(timed=timed)
        run = peers.ours(case, arrays.make(case), 1)
        del done[:]
        run(), run()
        assert done == expected


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


def test_what_is_given_together_counts_together() -> None:
    kept = [np.ones(2**19), np.ones(2**20)]
    peaks = iter([10 * 2**20, 25 * 2**20])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(memory, "_peak", lambda: next(peaks))
        assert memory.growth(lambda: tuple(kept)) == (15 - 4 - 8) * 2**20


@pytest.mark.parametrize(("timed", "run"), [("forward", "forward"), ("backward", "both"), ("both", "both")])
def test_the_memory_of_gradients_is_that_of_both_passes(monkeypatch: pytest.MonkeyPatch, timed: str, run: str) -> None:
    asked: list[tuple[str, int]] = []

    def noted(case: Case, inputs: Inputs, threads: int) -> Any:
        asked.append((case.timed, case.shape[2]))
        return lambda: np.zeros(1)

    plain = workloads.WORKLOADS["attention"]._replace(ours=noted)
    monkeypatch.setattr(workloads, "WORKLOADS", {"attention": plain})
    monkeypatch.setattr(memory, "select", lambda names: [SMALL._replace(shape=(1, 1, 300, 4), timed=timed)])
    memory._measure_memory("small", 1)
    assert asked == [(run, 256), (run, 300)]  # a small relative first


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


BEGIN, END = MARKS["forward"]
HERE = Conditions("a processor", 2, 2, 9, ["AVX2"], ["openblas 0.3"], {"headwise": "1"})


def outcome_of(*results: Result, **absent: str) -> Outcome:
    return Outcome(
        HERE,
        list(results),
        {"torch": "a note"},
        {"torch": "a note of gradients"},
        {"torch": "a note of serving"},
        absent,
    )


def outcome() -> Outcome:
    full = result_of("float64-full-8x8x512x64", {"torch": 2.0})  # the cases of CASES_OF_PAGE
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


def test_a_peer_that_has_no_gradients_has_a_sign_of_it() -> None:
    results = [result_of("full-8x8x512x64", {"onnxruntime": 1.0, "torch": 1.0})]
    results += [result_of("backward-full-8x8x512x64", {"torch": 2.0}), result_of("padding", {"torch": 2.0})]
    assert report.columns(results)[2:4] == ["onnxruntime", "torch"]
    assert [row[2] for row in report.rows(results)] == ["1.00 [0.88-1.12]", "-", ""]


@pytest.mark.parametrize(
    ("extra", "cell", "found", "reached"),
    [
        (63 * 2**20, "63", "63 MiB, reached", True),
        (64 * 2**20, "64", "64 MiB, reached", True),
        (64 * 2**20 + 1, "64 missed 64", "64 MiB, missed", False),
        (None, "unknown", "unknown", False),
    ],
)
def test_memory_has_a_target_where_the_case_has_one(extra: int | None, cell: str, found: str, reached: bool) -> None:
    results = [result_of("both-full-1x8x8192x64", {"torch": 2.0}, extra), result_of("padding", {}, extra)]
    assert [row[-2].partition(" missed")[0] for row in report.rows(results)] == [cell.partition(" missed")[0]] * 2
    assert report.rows(results)[0][-2] == cell
    assert report.verdicts(results, []) == [
        ("both-full-1x8x8192x64", "memory", "extra <= 64 MiB", reached, found),
    ]


def test_what_columns_mean_and_what_peers_were_is_told_of_what_was_measured() -> None:
    forward, backward = result_of("padding", {"torch": 2.0}), result_of("both-full-8x8x512x64", {"torch": 2.0})
    short, long = (report.legend(some) for some in ([forward], [backward]))
    assert long[: len(short)] == short == list(report.LEGENDS["forward"])  # nothing of passes
    assert any(line.startswith("backward: ") for line in long)
    assert report.legend([forward, backward]) == [*long, "-: a peer that has no such thing"]
    assert report.all_notes(outcome_of(forward)) == [("torch", "a note")]
    assert report.all_notes(outcome_of(backward)) == [("torch, gradients", "a note of gradients")]
    assert len(report.all_notes(outcome_of(backward, forward))) == 2


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


CASES_OF_PAGE = cases.select(["float64-full-8x8x512x64", "float64-causal-8x8x512x64"])
PAGE = f"# Title\n\nbefore {BEGIN}\n{BEGIN}\nold\n{END}\nafter ü\n"


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_a_page_is_written_between_its_markers_and_nowhere_else(tmp_path: Path, newline: str) -> None:
    page, before = tmp_path / "page.md", PAGE.replace("\n", newline).encode()
    page.write_bytes(before)
    check_page(page, CASES_OF_PAGE)
    write_page(page, outcome(), ["float64"])
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
    write_page(page, outcome(), ["float64"])
    assert page.read_bytes() == written
    assert [path.name for path in tmp_path.iterdir()] == ["page.md"]


OTHER_BEGIN, OTHER_END = MARKS["backward"]
TWO_TABLES = f"{PAGE}\n{OTHER_BEGIN}\n| both-full-8x8x512x64 | 7 |\n{OTHER_END}\n"


def backward() -> Outcome:
    return outcome_of(result_of("both-full-8x8x512x64", {"torch": 2.0, "jax": 1.5}), openvino="none", naive="some")


def test_a_run_of_one_table_leaves_the_other_as_it_is(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(TWO_TABLES)
    write_page(page, outcome(), ["float64"])
    text = page.read_text()
    assert text.partition("after")[2] == TWO_TABLES.partition("after")[2]
    write_page(page, backward(), [])
    assert page.read_text().partition("after")[0] == text.partition("after")[0]
    inside = page.read_text().partition(OTHER_BEGIN)[2].partition(OTHER_END)[0]
    assert "| both-full-8x8x512x64 | 100 | 2.00 [1.88-2.12] | 1.50 [1.38-1.62] missed 2 | 75% | 1 | 128 |" in inside
    assert "| both-full-8x8x512x64 | jax | >= 2 | 1.5, missed |" in inside
    assert "- torch: a note of gradients" in inside
    assert "- naive: not installed, some" in inside
    assert "openvino" not in inside
    assert "- backward: that pass alone, 10 d " in inside


def test_a_run_of_both_tables_writes_each_into_its_own_place(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(TWO_TABLES)
    write_page(page, outcome_of(*backward().results, *outcome().results), [])
    first, _, second = page.read_text().partition("after")
    assert "| float64-full-8x8x512x64 | 100 " in first
    assert "both-full" not in first
    assert "| both-full-8x8x512x64 | 100 " in second
    assert "float64" not in second
    page.write_text(PAGE)
    with pytest.raises(FileError, match=r"expected the lines <!-- bench-backward:begin --> and .* got 0 and 0 of them"):
        write_page(page, outcome_of(*backward().results, *outcome().results), [])
    assert page.read_text() == PAGE


def test_rows_of_what_was_not_measured_are_not_taken_out(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(PAGE)
    write_page(page, outcome(), ["float64"])
    before = page.read_text()
    (full, _) = outcome().results
    says = (
        r"page\.md: expected every case to be measured whose row stands there, got none for float64-causal-8x8x512x64; "
        "name them in --cases too, or take their rows out"
    )
    for act in (lambda: check_page(page, [full.case]), lambda: write_page(page, outcome_of(full), [])):
        with pytest.raises(FileError, match=says):
            act()
    assert page.read_text() == before
    page.write_text(before.replace("| float64-causal-8x8x512x64 |", "| a-case-of-another-time |"))
    write_page(page, outcome_of(full), [])
    assert "causal" not in page.read_text().partition("Targets")[0]


@pytest.mark.parametrize(
    ("text", "got"),
    [
        ("nothing", "0 and 0 of them"),
        (f"{BEGIN}\n", "1 and 0 of them"),
        (f"{END}\n{BEGIN}\n", "another order"),
        (PAGE + PAGE, "2 and 2 of them"),
        (f" {BEGIN}\n{END} \n", "0 and 0 of them"),
    ],
)
def test_a_page_without_its_markers_is_refused_unchanged(tmp_path: Path, text: str, got: str) -> None:
    page = tmp_path / "page.md"
    page.write_text(text)
    for act in (lambda: check_page(page, CASES_OF_PAGE), lambda: write_page(page, outcome(), [])):
        with pytest.raises(FileError, match=rf"page\.md: expected the lines .* once each, got {got}; put them where"):
            act()
    assert page.read_text() == text


def test_a_page_is_not_written_where_something_was_not_measured(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(PAGE)
    part = outcome_of(result_of("padding", {"torch": None}))
    with pytest.raises(BenchError, match=r"expected every case measured, got none for padding, torch: it \| broke"):
        write_page(page, part, [])
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
        patch.setattr(os, "fsync", fail)
        with pytest.raises((KeyboardInterrupt, FileError), match=r"^$|No space left on device"):
            write_page(page, outcome(), [])
    assert page.read_text() == PAGE
    assert [path.name for path in tmp_path.iterdir()] == ["page.md"]
    write_page(page, outcome(), [])
    assert page.stat().st_mode & 0o777 == 0o640


def test_texts_that_cannot_be_read_or_replaced(tmp_path: Path) -> None:
    (tmp_path / "latin.md").write_bytes(b"\xff")
    with pytest.raises(FileError, match=r"latin\.md: expected an undamaged file, got .*utf-8"):
        files.read_text(tmp_path / "latin.md")
    with pytest.raises(FileError, match=r"none\.md: expected a file that can be read"):
        check_page(tmp_path / "none.md", [])
    with pytest.raises(FileError, match=r"expected a file, got a folder"):
        files.write_text(tmp_path, "text")
    with pytest.raises(FileError, match=r"expected an existing folder"):
        files.write_text(tmp_path / "none" / "page.md", "text")


def test_facts_are_one_object_with_everything() -> None:
    found = report.facts(outcome(), ["float64"])
    assert list(found) == ["conditions", "results", "means", "targets", "peers", "gradients", "serving", "absent"]
    assert found["results"][0]["share"] == 0.75
    assert json.dumps(found)
