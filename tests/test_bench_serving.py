"""bench of what serves: inputs from a seed, runs that are right, checks that find what is wrong, a table of its own."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_bench import HERE, result_of

import headwise as hw
from headwise.bench import cases, measure, memory, peers, report, serving, serving_peers, workloads
from headwise.bench.agreement import BenchError
from headwise.bench.cases import CASES, Case
from headwise.bench.measure import Outcome
from headwise.bench.page import MARKS, write_page
from headwise.bench.peers import PEERS, Peer
from headwise.bench.workloads import WORKLOADS
from headwise.core.shapes import Array
from headwise.layers.multihead import merge_heads, split_heads

PREFILL = Case("prefill", "", (2, 4, 24, 8), {}, "prefill", causal=True, n_k=80, kv_heads=2)
LAYER = Case("layer", "", (3, 4, 40, 8), {}, "layer", causal=True)
WEIGHTS = LAYER._replace(name="layer-weights", what="layer-weights")
PACKED = Case("packed", "", (5, 4, 64, 8), {}, "packed", causal=True)
SMALL = [PREFILL, LAYER, WEIGHTS, PACKED]
EACH = pytest.mark.parametrize("case", SMALL, ids=[case.name for case in SMALL])
SERVING = ["decode", "prefill", "layer", "packed"]


def parts(made: Any) -> tuple[Array, ...]:
    return made if isinstance(made, tuple) else (made,)


def given(case: Case, seed: int = 0) -> list[Array]:
    """All arrays among the inputs of a case."""
    inputs = WORKLOADS[case.what].make(case, seed)
    if isinstance(inputs, serving.Tokens):
        return [inputs.x, *(getattr(inputs.layer, name) for name in ("w_q", "w_k", "w_v", "w_o"))]
    return list(inputs[:3])


def right(case: Case, inputs: Any) -> Any:
    """What a run gives, by the definition over whole sequences."""
    if case.what == "prefill":
        out, _ = hw.scaled_dot_product_attention(*inputs[:3], causal=True)
        return tuple(out[:, :, at : at + 24] for at in (0, 24, 48, 72))
    if case.what == "packed":
        rows = [tuple(x[span].swapaxes(0, 1) for x in inputs[:3]) for span in inputs.spans]
        outs = [hw.scaled_dot_product_attention(*qkv, causal=case.causal)[0] for qkv in rows]
        return np.concatenate([out.swapaxes(0, 1) for out in outs])
    x, layer = inputs
    steps = [split_heads(x @ w, 4) for w in (layer.w_q, layer.w_k, layer.w_v)]
    heads, weights = hw.scaled_dot_product_attention(*steps, causal=case.causal)
    out = merge_heads(heads) @ layer.w_o
    return (out, weights) if case.what == "layer-weights" else out


# -------------------------------------------------------------------------------------------- cases
def test_the_cases_of_serving_are_those_that_were_promised() -> None:
    found = cases.select(["serving"])
    assert found == cases.select(SERVING) == [case for case in CASES if case.table == "serving"]
    assert cases.whole_groups(found) == SERVING
    assert {case.family for case in found} == {"serving"}
    decode, others = ([case for case in found if (case.group == "decode") == decoding] for decoding in (True, False))
    aims = [(case.shape[0], case.keys, case.kv_heads, case.peers.get("torch")) for case in decode]
    assert aims == [(1, 512, 8, None), (1, 4096, 8, 2.0), (1, 32_768, 8, 2.5), (8, 4096, 8, 1.6)]
    assert {case.name: (case.what, case.shape, dict(case.peers)) for case in others} == {
        "prefill-2048": ("prefill", (1, 32, 256, 128), {"torch": 0.95}),
        "layer-8x512x768": ("layer", (8, 12, 512, 64), {"torch": 1.3}),
        "layer-weights-8x512x768": ("layer-weights", (8, 12, 512, 64), {"torch": 1.3}),
        "packed-64x1024": ("packed", (64, 8, 1024, 64), {"torch": 1.5}),
    }
    assert all((case.causal, case.dtype, case.timed) == (True, "float32", "forward") for case in others)
    assert (others[0].keys, others[0].kv_heads) == (2048, 8)


def test_every_workload_is_a_row_and_is_said_in_words() -> None:
    assert set(WORKLOADS) == {case.what for case in CASES} == set(cases._WHAT)
    said = {row[0]: row[2] for row in cases.rows()}
    assert said["prefill-2048"] == (
        "(1, 32, 256, 128), keys (1, 8, 2048, 128), chunk by chunk through a cache, causal, float32"
    )
    assert said["layer-weights-8x512x768"].startswith(
        "(8, 12, 512, 64), a layer of width 768, with its weights, causal"
    )
    assert said["packed-64x1024"].startswith(
        "(64, 8, 1024, 64), sequences of 16 to 1024 tokens without padding, causal"
    )


# -------------------------------------------------------------------------------------------- inputs
@EACH
def test_inputs_come_from_the_seed(case: Case) -> None:
    for array, same, other in zip(given(case), given(case), given(case, seed=1), strict=True):
        assert array.dtype == case.dtype
        assert np.array_equal(array, same)
        assert array.shape != other.shape or not np.array_equal(array, other)


def test_shapes_are_those_of_the_case() -> None:
    prompt = serving.make_prompt(PREFILL)
    assert [x.shape for x in prompt[:3]] == [(2, 4, 80, 8), (2, 2, 80, 8), (2, 2, 80, 8)]
    assert [(rows.start, rows.stop) for rows in prompt.chunks] == [(0, 24), (24, 48), (48, 72), (72, 80)]
    x, layer = serving.make_tokens(LAYER)
    assert x.shape == (3, 40, 32)
    assert (layer.d_model, layer.n_heads, layer.b_q) == (32, 4, None)


def test_lengths_of_packed_sequences_are_evenly_spaced_in_random_order() -> None:
    (case,) = cases.select(["packed"])
    starts = serving.make_packed(case._replace(shape=(64, 1, 1024, 1))).starts
    lengths = np.diff(starts)
    assert sorted(lengths) == [16 * i for i in range(1, 65)]
    assert list(lengths) not in (sorted(lengths), sorted(lengths, reverse=True))
    assert starts[0] == 0
    assert np.array_equal(starts, serving.make_packed(case._replace(shape=(64, 1, 1024, 1))).starts)


@pytest.mark.parametrize("causal", [True, False])
def test_operations_are_those_of_visible_pairs_and_of_a_layers_weights(causal: bool) -> None:
    def pairs(n: int) -> int:
        return int(np.tri(n).sum()) if causal else n * n

    def counted(case: Case) -> int:
        work, case = WORKLOADS[case.what], case._replace(causal=causal)
        return work.operations(case, work.make(case))

    lengths = np.diff(serving.make_packed(PACKED).starts)
    assert counted(PREFILL) == 2 * 2 * 8 * 2 * 4 * pairs(80)
    assert counted(PACKED) == 2 * 2 * 8 * 4 * sum(pairs(n) for n in lengths)
    assert counted(LAYER) == counted(WEIGHTS) == 2 * 2 * 8 * 3 * 4 * pairs(40) + 4 * 2 * (3 * 40) * 32 * 32


# -------------------------------------------------------------------------------------------- runs and checks
@EACH
@pytest.mark.parametrize("causal", [True, False])
def test_our_runs_are_right_every_time(case: Case, causal: bool) -> None:
    case, work = case._replace(causal=causal or case.what == "prefill"), WORKLOADS[case.what]
    inputs = work.make(case)
    run = work.ours(case, inputs, 1)
    for made in (run(), run()):
        work.check_ours(case, inputs, made)
        for got, expected in zip(parts(made), parts(right(case, inputs)), strict=True):
            np.testing.assert_allclose(got, expected, atol=1e-5, rtol=0)


def test_a_timed_prompt_goes_through_the_cache_chunk_by_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[Any] = []

    class Noted(hw.KVCache):
        def reset(self, **more: Any) -> None:
            done.append("reset")
            super().reset(**more)

        def append(self, k: Any, v: Any, **more: Any) -> None:
            done.append(k.shape[2])
            super().append(k, v, **more)

    monkeypatch.setattr(serving, "KVCache", Noted)
    run = serving.prefill(PREFILL, serving.make_prompt(PREFILL), 1)
    del done[:]
    run()
    assert done == ["reset", 24, 24, 24, 8]


FAULTS: dict[str, Callable[[Array], Array]] = {
    "larger": lambda x: x * np.float32(1.05),
    "nan": lambda x: x * np.float32("nan"),
    "narrow": lambda x: x[..., :-1],
}


@EACH
@pytest.mark.parametrize("fault", FAULTS)
def test_a_wrong_part_of_ours_is_not_the_definition(case: Case, fault: str) -> None:
    work = WORKLOADS[case.what]
    inputs = work.make(case)
    made = parts(right(case, inputs))
    for at, part in enumerate(made):
        wrong = (*made[:at], FAULTS[fault](part), *made[at + 1 :])
        with pytest.raises(BenchError, match=r"^expected (the weights of )?the definition "):
            work.check_ours(case, inputs, wrong if len(wrong) > 1 else wrong[0])


@EACH
def test_a_wrong_item_or_sequence_of_ours_is_found(case: Case) -> None:
    work = WORKLOADS[case.what]
    inputs = work.make(case)
    for at in range(case.shape[0]):
        rows: Any = inputs.spans[at] if isinstance(inputs, serving.Sequences) else at
        made = tuple(part.copy() for part in parts(right(case, inputs)))
        made[-1][rows] *= np.float32(1.05)
        with pytest.raises(BenchError, match="the definition within"):
            work.check_ours(case, inputs, made if len(made) > 1 else made[0])


def test_attention_to_the_future_or_to_another_sequence_is_found() -> None:
    prompt = serving.make_prompt(PREFILL)
    blind = hw.attention(*prompt[:3])  # no mask
    with pytest.raises(BenchError, match="the definition within"):
        serving.check_prefill(PREFILL, prompt, tuple(blind[:, :, rows] for rows in prompt.chunks))
    packed = serving.make_packed(PACKED)
    q, k, v = (x.swapaxes(0, 1) for x in packed[:3])
    with pytest.raises(BenchError, match="the definition within"):
        serving.check_packed(PACKED, packed, hw.attention(q, k, v, causal=True).swapaxes(0, 1))
    tokens = serving.make_tokens(WEIGHTS)
    with pytest.raises(BenchError, match="the definition within"):
        serving.check_layer(WEIGHTS, tokens, tokens.layer(tokens.x, return_weights=True))


def padded(case: Case, inputs: Any, made: Any) -> Any:
    """A result of ours in the layout of peers."""
    return serving_peers.pad(case, inputs, made) if case.what == "packed" else made


@EACH
def test_a_peers_result_is_compared_with_ours_whole(case: Case) -> None:
    work = WORKLOADS[case.what]
    inputs = work.make(case)
    ours = right(case, inputs)
    theirs = parts(padded(case, inputs, ours))
    work.check_peer(case, inputs, padded(case, inputs, ours), ours)
    for at, part in enumerate(theirs):
        first = part.copy()
        first[(0,) * part.ndim] += np.float32(0.1)  # one entry
        for wrong, says in ((first, "within"), (part * np.float32("nan"), "within"), (part[:1], "of shape")):
            made = (*theirs[:at], wrong, *theirs[at + 1 :])
            with pytest.raises(BenchError, match=rf"^expected the (padded )?result.* of headwise {says}"):
                work.check_peer(case, inputs, made if len(made) > 1 else made[0], ours)
    if len(theirs) > 1:
        with pytest.raises(BenchError, match=rf"expected {len(theirs)} results as of headwise, got 1"):
            work.check_peer(case, inputs, theirs[0], ours)


def test_padding_is_not_looked_at() -> None:
    inputs = serving.make_packed(PACKED)
    ours = right(PACKED, inputs)
    theirs = serving_peers.pad(PACKED, inputs, ours)
    for item, span in zip(theirs, inputs.spans, strict=True):
        item[:, span.stop - span.start :] = np.nan
    serving.check_padded(PACKED, inputs, theirs, ours)


# -------------------------------------------------------------------------------------------- measuring
@pytest.fixture
def no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "extra_bytes", lambda case, threads: 3 * 2**20)
    monkeypatch.setattr(measure, "roof", lambda dtype, clock: 1e12)


def scaled(made: Any, factor: float) -> Any:
    found = tuple(part * np.float32(factor) for part in parts(made))
    return found if len(found) > 1 else found[0]


def stand_in(name: str, case: Case, factor: float) -> Peer:
    """A peer whose result is ours times a factor."""

    def prepare(case: Case, inputs: Any, threads: int) -> Any:
        made = scaled(padded(case, inputs, right(case, inputs)), factor)
        return lambda: made

    return Peer(name, ("numpy",), ("numpy",), prepare, workloads={case.what: prepare}, serving="a note")


@EACH
@pytest.mark.usefixtures("no_memory")
def test_a_peer_that_is_wrong_or_has_no_such_workload_is_reported_and_not_timed(case: Case) -> None:
    none = stand_in("none", case, 1)._replace(workloads={})
    whom = [stand_in("good", case, 1), stand_in("off", case, 1.05), none]
    outcome = measure.bench([case._replace(peers=dict.fromkeys(("good", "off", "none"), 0.5))], whom, 1, 1, str)
    (result,) = outcome.results
    good, off, lacking = result.peers
    assert (good.error, good.ratio is None) == ("", False)
    assert off.error.startswith("expected the result")
    assert off.ratio is None
    assert lacking.error == f"it has no workload {case.what}"
    assert result.planned_bytes is None
    assert outcome.serving == {"good": "a note", "off": "a note", "none": "a note"}


@EACH
@pytest.mark.usefixtures("no_memory")
def test_a_bug_of_ours_ends_it(monkeypatch: pytest.MonkeyPatch, case: Case) -> None:
    def faulty(case: Case, inputs: Any, threads: int) -> Any:
        return lambda: scaled(right(case, inputs), 1.05)

    monkeypatch.setattr(workloads, "WORKLOADS", {case.what: WORKLOADS[case.what]._replace(ours=faulty)})
    with pytest.raises(
        BenchError, match=rf"^{case.name}: headwise: expected .*definition .*this is a bug of headwise$"
    ):
        measure.bench([case], [], 1, 1, str)


@EACH
def test_the_memory_of_a_run_is_measured_after_a_small_relative(monkeypatch: pytest.MonkeyPatch, case: Case) -> None:
    monkeypatch.setattr(memory, "select", lambda names: [case])
    found = memory._measure_memory(case.name, 1)
    assert found is None or 0 <= found < 2**26


@pytest.mark.parametrize("causal", [True, False])
@EACH
def test_an_installed_torch_gives_what_we_give(case: Case, causal: bool) -> None:
    if not peers.is_installed(PEERS["torch"]):
        pytest.skip(f"torch is not installed: {PEERS['torch'].install}")
    case, work = case._replace(causal=causal or case.what == "prefill"), WORKLOADS[case.what]
    inputs = work.make(case)
    run = PEERS["torch"].prepare_for(case, inputs, 1)
    for made in (run(), run()):
        work.check_peer(case, inputs, made, right(case, inputs))


# -------------------------------------------------------------------------------------------- tables
def test_what_serves_has_a_table_of_its_own(tmp_path: Path) -> None:
    begin, end = MARKS["serving"]
    assert (begin, end) == ("<!-- bench-serving:begin -->", "<!-- bench-serving:end -->")
    page = tmp_path / "page.md"
    page.write_text(f"before\n{begin}\n{end}\nafter\n")
    results = [result_of("decode-4096", {"torch": 2.5}), result_of("prefill-2048", {"torch": 0.75})]
    absent = {"torch": "pip install torch", "jax": "pip install jax"}
    outcome = Outcome(HERE, results, {"torch": "a note"}, {}, {"torch": "a note of serving"}, absent)
    write_page(page, outcome, [])
    text = page.read_text()
    assert text.startswith(f"before\n{begin}\n| case | ours, ms | torch |")
    assert text.endswith(f"{end}\nafter\n")
    assert "| decode-4096 | 100 | 2.50 [2.38-2.62] | 75% | 1 | 128 |" in text
    assert "| prefill-2048 | torch | >= 0.95 | 0.75, missed |" in text
    assert "- torch: a note of serving\n" in text
    assert "- torch: not installed, pip install torch\n" in text
    assert "jax" not in text
    assert "- of roof, of a layer: its products with weights count too" in text
    assert report.all_notes(outcome) == [("torch, serving", "a note of serving")]


def test_who_is_not_compared_where_something_serves_has_a_sign_of_it() -> None:
    results = [result_of("full-8x8x512x64", {"onnxruntime": 1.0}), result_of("packed-64x1024", {"torch": 2.0})]
    assert report.columns(results)[2:4] == ["onnxruntime", "torch"]
    assert [row[2:4] for row in report.rows(results)] == [
        ["1.00 [0.88-1.12]", ""],
        ["-", "2.00 [1.88-2.12]"],
    ]
    assert report.legend(results)[-1] == "-: a peer that has no such thing"
