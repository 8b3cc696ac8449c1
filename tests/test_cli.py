"""cli: what each command prints, and that every mistake is one line, exit 2, with no file harmed."""

import hashlib
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import tracemalloc
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headwise as hw
from headwise import cli, cli_attend, console, demo, files, induction, masks
from headwise.bench import cases, measure, peers
from headwise.cli import main
from headwise.core import workers

Capture = pytest.CaptureFixture[str]
COMMAND = (sys.executable, "-m", "headwise")
LONG = demo.LONG


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """The demo's long run, made short."""
    monkeypatch.setattr(demo, "LONG", 1500)


def run(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """A real process, as a user starts it."""
    return subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, timeout=60, **options)


def qkv() -> dict[str, Any]:
    rng = np.random.default_rng(3)
    shapes = {"q": (2, 3, 5, 7), "k": (2, 3, 11, 7), "v": (2, 3, 11, 13)}
    return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with in.npz and a precious old.npz."""
    monkeypatch.chdir(tmp_path)
    np.savez("in.npz", **qkv())
    Path("old.npz").write_bytes(b"precious")
    return tmp_path


def state(folder: Path) -> dict[str, str]:
    """Every file below a folder, by the hash of what it holds."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "no file"
        for path in sorted(folder.rglob("*"))
    }


# ------------------------------------------------------------------------------------------- demo
def test_demo_prints_tokens_heads_a_picture_and_the_difference(capsys: Capture) -> None:
    assert main(["demo", "--head", "9"]) == 0
    text, errors = capsys.readouterr()
    result = demo.demo(9)
    assert errors == ""
    assert f"tokens {len(result.tokens)}: {' '.join(result.tokens)} Heads:" in " ".join(text.split())
    for head in result.heads:
        query, key, weight = head.strongest
        pattern = rf"^ *{head.head} +{head.entropy:.2f} .*{re.escape(result.tokens[query])} -> "
        pattern += rf"{re.escape(result.tokens[key])} +{weight:.2f} +{head.on_itself:.1%} +{head.on_previous:.1%} +"
        assert re.search(pattern + f"{head.on_first:.1%}$", text, re.MULTILINE)
    assert f"Head 9: the weights of each query (row) on each key (column)\n{result.heads[9].note}\n" in text
    assert console.heatmap(result.weights, result.tokens, result.tokens) in text
    assert re.search(r"^largest difference from the reference weights  \d\.\de-0[67]$", text, re.MULTILINE)


def test_demo_ends_with_the_classic_line_a_long_run_and_its_plan(capsys: Capture) -> None:
    assert main(["demo"]) == 0
    text = capsys.readouterr().out
    classic = (
        r"^Batch 8 x 512 tokens x d_model 64, 8 heads, causal\ntime +[\d.]+ ms on \d+ threads, the best of three\n"
    )
    computed = r"computed +\d+ of \d+ tiles of scores; .*\ndefinition +at most \d\.\de-0\d away, in the first item$"
    assert re.search(classic + computed, text, re.MULTILINE)
    long = r"^1,500 tokens, one head of width 64, causal, as planned below\ntime +[\d.]+ ms on \d+ threads\n"
    assert re.search(long + r"memory +[\d.]+ MiB at its peak, .*; the scores would take 8\.583 MiB$", text, re.M)
    q = (1, 1500, 64)
    tiles = re.search(r"^tiles .*$", str(hw.attention_plan(q, q, q, causal=True)), re.MULTILINE)
    assert tiles
    assert tiles[0] in text
    assert text.endswith(" MiB besides inputs and results\n")


@pytest.mark.parametrize("arguments", [[], ["--causal"], ["--head", "11"]])
def test_demo_fits_eighty_columns(capsys: Capture, monkeypatch: pytest.MonkeyPatch, arguments: list[str]) -> None:
    if not arguments:
        monkeypatch.setattr(demo, "LONG", LONG)
    assert main(["demo", *arguments]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if console.width(line) > 80] == []
    assert f"{demo.LONG:,} tokens, one head of width 64, causal, as planned below" in lines


def test_demo_under_a_causal_mask_says_that_the_reference_has_none(capsys: Capture) -> None:
    assert main(["demo", "--causal"]) == 0
    text = capsys.readouterr().out
    assert "reference weights  none: it has no causal mask" in text
    assert "Head 3, causal mask:" in text


def test_demo_as_json_is_one_object(capsys: Capture) -> None:
    assert main(["demo", "--json", "--head", "0"]) == 0
    value = json.loads(capsys.readouterr().out)
    assert value["head"] == 0
    assert value["difference"] < 1e-5
    assert len(value["weights"]) == len(value["tokens"])
    assert len(value["heads"]) == value["shape"][0]
    assert value["heads"][3]["strongest"].keys() == {"query", "key", "weight"}
    assert value["about"]["model"]
    assert value["classic"]["shape"] == [8, 8, 512, 8]
    assert value["classic"].keys() == {"shape", "seconds", "difference", "plan"}
    assert value["long"].keys() == {"shape", "seconds", "peak", "scores", "plan"}
    assert value["long"]["plan"]["scores"] == [1, 1500, 1500]
    assert "grid" not in value["long"]["plan"]


def test_the_induction_demo_shows_a_sequence_its_heads_and_the_stripe(capsys: Capture) -> None:
    assert main(["demo", "--induction", "--seed", "5"]) == 0
    text, errors = capsys.readouterr()
    result = demo.induction_demo(5)
    assert errors == ""
    assert re.search(rf"^sequence +{re.escape(result.tokens)}  \(", text, re.MULTILINE)
    assert re.search(rf"^predicted +{re.escape(result.predicted)}  \(", text, re.MULTILINE)
    for score in result.found.heads:
        row = rf"^ +{score.layer} +{score.head} +{score.previous:.2f} +{score.induction:.2f} +{score.without:.1%}$"
        assert re.search(row, text, re.MULTILINE)
    assert f"\nLayer {result.head.layer}, head {result.head.head}: the weights of each query (row) on each key" in text
    picture = console.heatmap(result.weights, result.tokens, result.tokens)
    assert picture in text
    rows = [line.partition("|")[2] for line in picture.splitlines() if line.endswith("|")]
    assert sum(rows[i][2 * (i - 15) : 2 * (i - 14)] == "██" for i in range(16, 31)) >= 13  # the stripe
    assert f"loss      {result.found.judged.loss:.4f} nats\naccuracy  {result.found.judged.accuracy:.2%}\n" in text
    assert [line for line in text.splitlines() if console.width(line) > 80] == []


def test_the_induction_demo_comes_from_its_seed(capsys: Capture) -> None:
    sequences = []
    for more in ([], ["--seed", "0"], ["--seed", "1"]):
        assert main(["demo", "--induction", *more]) == 0
        sequences.append(capsys.readouterr().out.splitlines()[1])
    assert sequences[0] == sequences[1] != sequences[2]


def test_the_induction_demo_as_json_is_one_object(capsys: Capture) -> None:
    assert main(["demo", "--induction", "--json"]) == 0
    value = json.loads(capsys.readouterr().out)
    assert value.keys() == {"tokens", "predicted", "found", "head", "weights", "size", "seconds"}
    assert value["found"]["judged"]["accuracy"] > 0.97
    assert len(value["found"]["heads"]) == 8
    assert value["head"].keys() == {"layer", "head", "previous", "induction", "without"}
    assert len(value["weights"]) == len(value["tokens"]) == len(value["predicted"]) == 32


def test_a_damaged_model_is_one_line(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    def damaged(*_: Any) -> Any:
        raise files.FileError("induction.npz: w_q: expected an undamaged file, got 'half of it'; copy or save it again")

    monkeypatch.setattr(induction, "read_arrays", damaged)
    assert main(["demo", "--induction"]) == 2
    assert capsys.readouterr() == (
        "",
        "headwise demo: induction.npz: w_q: expected an undamaged file, got 'half of it'; copy or save it again\n",
    )


def test_a_damaged_sample_is_one_line(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    def damaged(*_: Any) -> Any:
        raise files.FileError("sample.npz: q: expected an undamaged file, got 'half of it'; copy or save it again")

    monkeypatch.setattr(demo, "read_arrays", damaged)
    assert main(["demo"]) == 2
    assert capsys.readouterr().err.startswith("headwise demo: sample.npz: q: expected an undamaged file")


# ------------------------------------------------------------------------------------------ attend
def test_attend_writes_the_definition_and_prints_shapes_time_and_memory(folder: Path, capsys: Capture) -> None:
    assert main(["attend", "in.npz", "-o", "out.npz", "--weights"]) == 0
    text = capsys.readouterr().out
    out, weights = hw.scaled_dot_product_attention(**qkv())
    with np.load("out.npz") as written:
        assert sorted(written) == ["out", "weights"]
        assert np.array_equal(written["out"], out)
        assert np.array_equal(written["weights"], weights)
    assert re.search(r"^k +\(B, G, n_k, d_k\)  \(2, 3, 11, 7\) +float32$", text, re.MULTILINE)
    assert re.search(r"^out +\(B, H, n_q, d_v\)  \(2, 3, 5, 13\) +float32$", text, re.MULTILINE)
    assert re.search(r"^time +[\d.e-]+ ms$", text, re.MULTILINE)
    assert re.search(r"^peak extra memory +[\d.]+ KiB, results included; every allocation traced$", text, re.MULTILINE)
    assert "skipped" not in text  # the definition has no plan
    assert re.search(rf"^out +all finite, from {out.min():.4g} to {out.max():.4g}, mean ", text, re.MULTILINE)
    assert re.search(r"^written +out\.npz: out, weights$", text, re.MULTILINE)
    assert sorted(os.listdir()) == ["in.npz", "old.npz", "out.npz"]


def test_attend_runs_the_engine_and_prints_its_plan(folder: Path, capsys: Capture) -> None:
    arguments = ["in.npz", "--causal", "--threads", "1"]
    assert main(["attend", *arguments, "-o", "out.npz", "--lse"]) == 0
    text = capsys.readouterr().out
    out, lse = hw.attention(**qkv(), causal=True, return_lse=True)
    steps = hw.attention_steps(**qkv(), causal=True)
    with np.load("out.npz") as written:
        assert sorted(written) == ["lse", "out"]
        assert np.array_equal(written["out"], out)
        assert np.array_equal(written["lse"], lse)
    np.testing.assert_allclose(out, steps.out, atol=1e-5)
    np.testing.assert_allclose(lse, steps.lse, atol=1e-5)
    assert str(hw.attention_plan(**qkv(), causal=True, threads=1)) in text
    assert re.search(r"^lse +\(B, H, n_q\) +\(2, 3, 5\) +float32$", text, re.MULTILINE)
    assert re.search(rf"^lse +all finite, from {lse.min():.4g} to {lse.max():.4g}, ", text, re.MULTILINE)
    assert re.search(r"^written +out\.npz: out, lse$", text, re.MULTILINE)


def test_lse_without_a_target_shows_its_figures(folder: Path, capsys: Capture) -> None:
    before = state(folder)
    for more in ([], ["--weights"]):
        assert main(["attend", "in.npz", "--lse", *more]) == 0
        assert re.search(r"^lse +all finite, from ", capsys.readouterr().out, re.MULTILINE)
    assert main(["attend", "in.npz"]) == 0
    assert not re.search(r"^lse ", capsys.readouterr().out, re.MULTILINE)
    assert state(folder) == before


def test_the_definition_and_its_lse_and_weights_are_written(folder: Path) -> None:
    assert main(["attend", "in.npz", "-o", "out.npz", "--lse", "--weights", "--threads", "1"]) == 0
    steps, written = hw.attention_steps(**qkv()), files.read_arrays("out.npz")
    assert sorted(written) == ["lse", "out", "weights"]
    for name, array in written.items():
        np.testing.assert_allclose(array, getattr(steps, name), rtol=1e-6)


def test_scores_beyond_memory_are_no_matter_without_weights(
    folder: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(0)
    np.savez("long.npz", **{name: rng.standard_normal((1500, 4), dtype=np.float32) for name in "qkv"})
    monkeypatch.setattr(demo, "physical_memory", lambda: 10_000_000)
    assert main(["attend", "long.npz", "-o", "out.npz", "--threads", "2"]) == 0
    assert files.read_arrays("out.npz")["out"].shape == (1500, 4)
    assert main(["attend", "long.npz", "--weights"]) == 2
    says = r"long\.npz: q and k: expected scores that fit the .* GiB of memory here, got \(1500, 1500\), .*"
    assert re.fullmatch(f"headwise attend: {says}; without --weights no scores are stored\n", capsys.readouterr().err)


def test_attend_without_a_target_is_a_summary_only(folder: Path, capsys: Capture) -> None:
    before = state(folder)
    assert main(["attend", "in.npz"]) == 0
    assert "written" not in capsys.readouterr().out
    assert main(["attend", "in.npz", "--weights"]) == 0
    text = capsys.readouterr().out
    assert "The weights of the first head, queries down and keys across\n" in text
    assert text.count("|\n") == 5
    assert state(folder) == before


def test_attend_reads_a_folder_and_says_what_it_does_not_use(folder: Path, capsys: Capture) -> None:
    Path("in").mkdir()
    for name, array in qkv().items():
        np.save(f"in/{name}.npy", array[0, 0])
    np.save("in/other.npy", np.array([None]), allow_pickle=True)
    assert main(["attend", "in/", "-o", "out.npz", "--weights"]) == 0
    assert re.search(r"^not used +other$", capsys.readouterr().out, re.MULTILINE)
    assert files.read_arrays("out.npz")["out"].shape == (5, 13)
    assert main(["attend", "in", "--weights"]) == 0
    assert "The weights, queries down and keys across\n" in capsys.readouterr().out


CHOICES: list[tuple[list[str], dict[str, Any]]] = [
    (["--causal"], {"causal": True}),
    (["--window", "2,1"], {"mask": masks.window(2, 1)}),
    (["--window", "-,0"], {"mask": masks.window(None, 0)}),
    (["--window", "3,-"], {"mask": masks.window(3, None)}),
    (["--window=-,-"], {}),
    (["--scale", "-1e-3"], {"scale": -1e-3}),
    (["--scale", "-.5", "--softcap", "2"], {"scale": -0.5, "softcap": 2.0}),
    (["--scale", "0"], {"scale": 0.0}),
    (["--window", "-,1", "--causal"], {"mask": masks.window(None, 1), "causal": True}),
]


@pytest.mark.parametrize(("arguments", "options"), CHOICES)
def test_attend_passes_its_options_on(folder: Path, arguments: list[str], options: dict[str, Any]) -> None:
    assert main(["attend", *arguments, "in.npz", "-o", "out.npz"]) == 0
    expected, _ = hw.scaled_dot_product_attention(**qkv(), **options)
    np.testing.assert_allclose(files.read_arrays("out.npz")["out"], expected, atol=1e-5)


def test_mask_and_bias_of_the_file_intersect_with_the_options(folder: Path) -> None:
    mask, bias = np.random.default_rng(1).random((5, 11)) < 0.6, np.linspace(-1, 1, 11)
    np.savez("masked.npz", **qkv(), mask=mask, bias=bias)
    assert main(["attend", "masked.npz", "-o", "out.npz", "--weights", "--causal", "--window", "4,-"]) == 0
    both = mask & masks.window(4, None).dense((5, 11))
    expected = hw.scaled_dot_product_attention(**qkv(), mask=both, bias=bias, causal=True)
    written = files.read_arrays("out.npz")
    assert np.array_equal(written["out"], expected[0])
    assert np.array_equal(written["weights"], expected[1])


def test_attend_as_json_is_one_object_without_nan(folder: Path, capsys: Capture) -> None:
    np.savez("nan.npz", **(qkv() | {"v": np.full((2, 3, 11, 13), np.nan)}), w=np.ones(3))
    assert main(["attend", "nan.npz", "--json", "--weights"]) == 0
    value = json.loads(capsys.readouterr().out)
    assert value["input"] == "nan.npz"
    assert value["arrays"]["q"] == {"letters": "(B, H, n_q, d_k)", "shape": [2, 3, 5, 7], "dtype": "float32"}
    assert value["figures"]["out"] == {"size": 390, "finite": 0, "low": None, "high": None, "mean": None, "norm": None}
    assert value["figures"]["weights"]["finite"] == 1
    assert value["ignored"] == ["w"]
    assert value["output"] is None
    assert value["seconds"] > 0
    assert value["peak_extra_bytes"] > 0
    assert value["plan"] is None


def test_the_engines_run_as_json_has_its_plan(folder: Path, capsys: Capture) -> None:
    assert main(["attend", "in.npz", "--json", "--lse", "--threads", "3"]) == 0
    value = json.loads(capsys.readouterr().out)
    assert value["arrays"].keys() == value["figures"].keys() | {"q", "k", "v"} == {"q", "k", "v", "out", "lse"}
    plan = hw.attention_plan(**qkv(), threads=3)
    assert value["plan"].keys() == {
        "scores", "tile", "tiles", "computed", "partial", "skipped", "heads_per_task", "tasks", "threads", "paths",
        "flops", "bytes",
    }  # fmt: skip
    assert (value["plan"]["scores"], value["plan"]["threads"]) == (list(plan.scores), plan.threads)
    assert value["plan"]["paths"] == plan.paths
    assert value["peak_counted"] == "traced"


def test_memory_that_nobody_tells_is_said_to_be_unknown(
    folder: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo, "_TRACED", -1)
    assert main(["attend", "in.npz"]) == 0
    known = r"^peak extra memory +([\d.]+ \w+, results included; resident memory of the process|unknown: .*)$"
    assert re.search(known, capsys.readouterr().out, re.MULTILINE)

    def untold(run: Callable[[], Any]) -> None:
        run()

    monkeypatch.setattr(demo, "growth", untold)
    assert main(["attend", "in.npz", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["peak_extra_bytes"] is None
    assert main(["attend", "in.npz"]) == 0
    assert re.search(r"^peak extra memory +unknown: ", capsys.readouterr().out, re.MULTILINE)


def test_values_that_are_not_finite_are_counted(folder: Path, capsys: Capture) -> None:
    arrays = qkv()
    arrays["v"][0, 0, :, 0] = np.inf
    np.savez("inf.npz", **arrays)
    assert main(["attend", "inf.npz"]) == 0
    assert re.search(r"^out +5 of 390 not finite, from ", capsys.readouterr().out, re.MULTILINE)


def test_force_replaces_the_target(folder: Path) -> None:
    assert main(["attend", "in.npz", "-o", "old.npz", "--force"]) == 0
    assert files.array_names("old.npz") == ["out"]


def test_lengths_and_sinks_of_the_file_are_used(folder: Path) -> None:
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((2, 3, 5, 7)) for _ in range(3))
    np.savez("more.npz", q=q, k=k, v=v, lengths=[3, 0], sinks=[0.5, 1.0, -1.0], mask=np.tri(5, dtype=bool))
    assert main(["attend", "more.npz", "-o", "out.npz", "--window", "2,-", "--weights"]) == 0
    mask = masks.lengths([3, 0]) & np.tri(5, dtype=bool) & masks.window(2, None)
    out, weights = hw.scaled_dot_product_attention(q, k, v, mask, sinks=[0.5, 1.0, -1.0])
    found = files.read_arrays("out.npz")
    np.testing.assert_array_equal(found["out"], out)
    np.testing.assert_array_equal(found["weights"], weights)


# -------------------------------------------------------------------------------------------- info
def test_info_prints_versions_blas_and_extras(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    extras = {
        "plot": {"matplotlib": None},
        "weights": {"ml_dtypes": "0.6.0", "safetensors": None},
        "cli": {"rich": "15"},
    }
    monkeypatch.setattr(demo, "_extras", lambda: extras)
    assert main(["info"]) == 0
    text = capsys.readouterr().out
    assert re.search(rf"^NumPy +{re.escape(np.__version__)}$", text, re.MULTILINE)
    assert re.search(r"^CPU features  \S+", text, re.MULTILINE)
    assert re.search(r"^plot +missing matplotlib: pip install \"headwise\[plot\]\"$", text, re.MULTILINE)
    assert "weights  ml_dtypes 0.6.0; missing safetensors: pip install" in text
    assert re.search(r"^cli +rich 15$", text, re.MULTILINE)
    assert main(["info", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["extras"] == extras


def test_info_tells_the_threads_of_the_engine(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "state", lambda: workers.WorkersState(3, (("openblas", "0.3"), ("blis", "")), ""))
    assert main(["info"]) == 0
    text = capsys.readouterr().out
    assert "\nEngine\nthreads       3 by default, the caller's among them\n" in text
    assert "\nBLAS in each  held to one thread: openblas 0.3, blis\n\n" in text
    assert main(["info", "--json"]) == 0
    value = json.loads(capsys.readouterr().out)
    assert (value["threads"], value["limited"], value["note"]) == (3, ["openblas 0.3", "blis"], "")


def test_info_tells_what_is_in_the_way(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(workers, "_limit", workers._Limit(()))
    monkeypatch.setattr(workers, "_pool", workers._Pool())
    monkeypatch.setattr(workers, "_cpus", lambda: 4)
    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert main(["info"]) == 0
    text = capsys.readouterr().out
    assert "\nBLAS in each  not held to one thread\n" in text
    note = " ".join(text.partition("\nnote ")[2].partition("\n\n")[0].split())
    assert re.fullmatch(
        r"the BLAS of this NumPy \(.*\) cannot be told its number .*; threads could not be started .*", note
    )
    assert main(["info", "--json"]) == 0
    value = json.loads(capsys.readouterr().out)
    assert (value["threads"], value["limited"], value["note"]) == (4, [], note)


def test_info_imports_no_extra() -> None:
    code = "import sys; from headwise.cli import main; main(['info']); print(set(sys.modules) & set(sys.argv[1:]))"
    heavy = ["rich", "matplotlib", "torch", "jax", "onnx", "onnxruntime", "dask", "safetensors", "ml_dtypes"]
    done = subprocess.run([sys.executable, "-c", code, *heavy], capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines()[-1] == "set()"


# ------------------------------------------------------------------------------------------- bench
PAGE = "before\r\n<!-- bench:begin -->\r\nold\r\n<!-- bench:end -->\r\nafter\r\n"


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """No other process, and a roof from a small product."""
    monkeypatch.setattr(measure, "extra_bytes", lambda case, threads: None)
    monkeypatch.setattr(measure, "roof", lambda dtype, clock: 1e12)


@pytest.mark.usefixtures("quick")
def test_bench_prints_conditions_ratios_and_targets(capsys: Capture) -> None:
    assert main(["bench", "--cases", "tiny", "--peers", "naive", "--repeat", "2", "--threads", "1"]) == 0
    text, errors = capsys.readouterr()
    assert errors == ""
    assert re.search(r"^threads +1 for every contestant$", text, re.MULTILINE)
    assert re.search(r"^case +ours, ms +naive +of roof +extra, MiB +scores, MiB$", text, re.MULTILINE)
    assert re.search(
        r"^tiny +[\d.]+ +\d+\.\d\d \[\d+\.\d\d-\d+\.\d\d\]( missed 0\.6)? +0% +unknown +0\.000977$", text, re.MULTILINE
    )
    assert re.search(r"^tiny +naive +>= 0\.6 +[\d.]+, (reached|missed)$", text, re.MULTILINE)


@pytest.mark.usefixtures("quick")
def test_bench_as_json_is_one_object(capsys: Capture) -> None:
    assert main(["bench", "--cases", "tiny", "--peers", "naive", "--repeat", "1", "--json"]) == 0
    value = json.loads(capsys.readouterr().out)
    assert value["results"][0]["peers"][0]["peer"] == "naive"
    assert value["results"][0]["seconds"]["median"] > 0
    assert value["targets"][0]["reached"] in (True, False)
    assert value["conditions"]["repeat"] == 1


def test_bench_lists_its_cases(capsys: Capture) -> None:
    assert main(["bench", "--cases", "list"]) == 0
    text = capsys.readouterr().out
    assert re.search(r"^long-100000 +long +\(1, 1, 100000, 64\), causal, float32 +nobody$", text, re.MULTILINE)
    assert re.search(r"^window +masked +.*window\(256, 0\) +torch 18$", text, re.MULTILINE)
    assert re.search(r"^both-full-1x8x8192x64 +backward-long +.*, forward and backward +torch, 64 MiB$", text, re.M)
    assert main(["bench", "--cases", "list", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["cases"][0]["group"] == "forward"


@pytest.mark.usefixtures("quick")
def test_bench_names_who_is_absent_and_how_to_install_them(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "is_installed", lambda peer: peer.name == "naive")
    monkeypatch.setattr(measure, "is_installed", lambda peer: peer.name == "naive")
    monkeypatch.setattr(cases, "CASES", (cases.CASES[2]._replace(name="small", shape=(1, 2, 8, 4)),))
    assert main(["bench", "--cases", "small", "--repeat", "1"]) == 0
    text = capsys.readouterr().out
    assert re.search(r"^torch +not installed: pip install torch$", text, re.MULTILINE)
    assert re.search(r"^onnxruntime +not installed: pip install onnxruntime onnx$", text, re.MULTILINE)


@pytest.mark.usefixtures("quick")
def test_bench_writes_between_the_markers_of_a_page(folder: Path, capsys: Capture) -> None:
    Path("page.md").write_bytes(PAGE.encode())
    assert main(["bench", "--cases", "tiny", "--peers", "naive", "--repeat", "1", "--write", "page.md"]) == 0
    assert re.search(r"^written +page\.md$", capsys.readouterr().out, re.MULTILINE)
    written = Path("page.md").read_bytes().decode()
    assert written.startswith(PAGE.partition("old")[0])
    assert written.endswith(PAGE.partition("old\r\n")[2])
    assert "\r\n| tiny | " in written
    assert sorted(os.listdir()) == ["in.npz", "old.npz", "page.md"]


@pytest.mark.usefixtures("quick")
def test_bench_measures_gradients_and_writes_their_own_table(
    folder: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = [case._replace(shape=(1, 2, 8, 4)) for case in cases.select(["backward-full-8x8x512x64", "backward-both"])]
    monkeypatch.setattr(cases, "CASES", tuple(small))
    page = f"{PAGE}<!-- bench-backward:begin -->\n| both-full-8x8x512x64 | 1 |\n<!-- bench-backward:end -->\n"
    Path("page.md").write_bytes(page.encode())
    command = ["bench", "--cases", "backward", "--peers", "naive", "--repeat", "1", "--write", "page.md"]
    assert main(command) == 0
    text = capsys.readouterr().out
    assert re.search(r"^both-causal-1x8x2048x64 +[\d.]+ +\d+\.\d\d \[", text, re.MULTILINE)
    assert re.search(r"^backward: that pass alone, 10 d operations ", text, re.MULTILINE)
    assert re.search(r"^naive, gradients +the formulas in NumPy", text, re.MULTILINE)
    written = Path("page.md").read_bytes().decode()
    assert written.startswith(page.partition("| both")[0])
    assert "| backward-full-8x8x512x64 | " in written


BENCH_MISTAKES: list[tuple[list[str], str]] = [
    (["--cases", "nonsense"], r"--cases: expected names of cases or groups \(forward, .*\), got 'nonsense'; see"),
    (["--cases", "tiny,"], r"--cases: expected names of cases or groups .*, got ''; see"),
    (["--cases", "tiny,list"], r"--cases: expected names of cases or groups .*, got 'list'; see"),
    (["--cases", "a\nb"], r"--cases: expected .*, got 'a\\nb'; see"),
    (["--peers", "keras"], r"--peers: expected names of peers \(naive, torch, .*\), got 'keras'; see"),
    (
        ["--cases", "tiny", "--peers", "naive,jax"],
        r"--peers: expected peers that any of .* \(naive\), got jax; see headwise",
    ),
    (
        ["--cases", "backward", "--peers", "onnxruntime"],
        r"--peers: expected peers that any of .* \(torch, naive, jax\), got onnxruntime; see headwise",
    ),
    (
        ["--cases", "backward-both", "--write", "page.md"],
        r"page\.md: expected the lines <!-- bench-backward:begin --> ",
    ),
    (
        ["--cases", "forward", "--write", "rows.md"],
        r"rows\.md: expected every case to be measured whose row stands there, got none for tiny, long-100000; name ",
    ),
    (["--repeat", "0"], r"argument --repeat: expected an integer >= 1, got '0'"),
    (["--repeat", "-3"], r"argument --repeat: expected "),
    (["--threads", "two"], r"argument --threads: expected an integer from 1 to 4096, got 'two'"),
    (["--threads", "5000"], r"argument --threads: expected an integer from 1 to 4096, got '5000'"),
    (["--cases", "tiny", "--write", "none.md"], r"none\.md: expected a file that can be read, got 'No such file"),
    (["--cases", "tiny", "--write", "old.md"], r"old\.md: expected the lines <!-- bench:begin --> and .*, once each"),
    (["--cases", "tiny", "--write", "."], r"\.: expected a file, got a folder"),
    (
        ["--peers", "naive,torch", "--write", "page.md"],
        r"--write: expected every named peer to be installed, got none ",
    ),
]


@pytest.mark.parametrize(("arguments", "says"), BENCH_MISTAKES)
def test_bench_refuses_mistakes_before_any_work(
    folder: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch, arguments: list[str], says: str
) -> None:
    monkeypatch.setattr(cli, "bench", None)
    monkeypatch.setattr(peers, "is_installed", lambda peer: peer.name == "naive")
    Path("old.md").write_text("precious")
    Path("rows.md").write_bytes(PAGE.replace("old", "| tiny | 1 |\r\n| long-100000 | 2 |").encode())
    Path("page.md").write_bytes(PAGE.encode())
    before = state(folder)
    assert main(["bench", *arguments]) == 2
    text, errors = capsys.readouterr()
    assert text == ""
    assert re.match(f"headwise bench: {says}", errors)
    assert errors.count("\n") == 1
    assert state(folder) == before


@pytest.mark.usefixtures("quick")
def test_bench_writes_nothing_where_a_peer_failed(
    folder: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> Any:
        raise RuntimeError("broken")

    monkeypatch.setitem(peers.PEERS, "naive", peers.PEERS["naive"]._replace(prepare=broken))
    Path("page.md").write_bytes(PAGE.encode())
    arguments = ["bench", "--cases", "tiny", "--peers", "naive", "--repeat", "1"]
    assert main([*arguments, "--write", "page.md"]) == 2
    says = "page.md: expected every case measured, got none for tiny, naive: RuntimeError: broken; nothing is written"
    assert capsys.readouterr().err == f"headwise bench: {says}\n"
    assert Path("page.md").read_bytes() == PAGE.encode()
    assert main(arguments) == 0
    assert re.search(r"^failed: tiny, naive +RuntimeError: broken$", capsys.readouterr().out, re.MULTILINE)


def test_bench_interrupted_leaves_the_page(folder: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "bench", interrupted)
    Path("page.md").write_bytes(PAGE.encode())
    assert main(["bench", "--cases", "tiny", "--write", "page.md"]) == 130
    assert capsys.readouterr().err == "headwise bench: interrupted\n"
    assert Path("page.md").read_bytes() == PAGE.encode()


# --------------------------------------------------------------------------------- help and usage
def test_headwise_alone_prints_its_help(capsys: Capture) -> None:
    assert main([]) == 0
    text = capsys.readouterr().out
    assert main(["-h"]) == 0
    assert capsys.readouterr().out == text
    assert re.findall(r"^    (\w+)  ", text, re.MULTILINE) == ["demo", "attend", "info", "bench", "check"]


@pytest.mark.parametrize("command", ["demo", "attend", "info", "bench"])
def test_each_command_explains_itself_with_an_example(command: str, capsys: Capture) -> None:
    assert main([command, "--help"]) == 0
    text, errors = capsys.readouterr()
    assert f"example: headwise {command} " in text
    assert errors == ""
    assert text.isascii()


def test_version(capsys: Capture) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"headwise {hw.__version__}\n"


def test_the_module_runs_as_a_program() -> None:
    done = run("--version")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"headwise {hw.__version__}\n", "")
    assert run("bogus").returncode == 2


# --------------------------------------------------------------------------------------- mistakes
def lying(shape: str, values: bytes = b"") -> bytes:
    text = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}".encode()
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + values


def make_hostile(folder: Path) -> None:
    """Files that are not what they seem, beside a good in.npz."""
    good = Path("in.npz").read_bytes()
    Path("text.npz").write_text("q, k, v\n")
    Path("empty.npz").write_bytes(b"")
    Path("cut.npz").write_bytes(good[: len(good) // 2])
    Path("flip.npz").write_bytes(good.replace(qkv()["k"].tobytes(), (-qkv()["k"]).tobytes()))
    np.savez("missing.npz", q=np.ones((5, 7)), keys=np.ones(3))
    np.savez("shape.npz", **(qkv() | {"k": np.ones((2, 3, 11, 8))}))
    np.savez("two.npz", **(qkv() | {"k": np.ones((2, 3, 11, 8)), "v": np.ones((2, 3, 12, 13))}))
    np.savez("object.npz", **(qkv() | {"v": np.array([{}])}), allow_pickle=True)
    np.savez("complex.npz", **(qkv() | {"q": np.ones((2, 3, 5, 7), complex)}))
    np.savez("mask.npz", **qkv(), mask=np.ones((5, 11), int))
    np.savez("lengths.npz", **qkv(), lengths=[3.0, 5.0])
    np.savez("longer.npz", **qkv(), lengths=[3, 1000])
    np.savez("sinks.npz", **qkv(), sinks=np.zeros(99))
    np.save("one.npy", np.ones(3))
    for name, data in (("liar", lying("(1000000, 1000000, 8)", b"1234")), ("negative", lying("(-1, -4)", b"1234"))):
        Path(name).mkdir()
        for array in ("q", "k", "v"):
            np.save(f"{name}/{array}.npy", qkv()[array])
        Path(f"{name}/k.npy").write_bytes(data)
    Path("a\nb.npz").write_bytes(b"")
    if hasattr(os, "mkfifo"):
        os.mkfifo("pipe.npz")


HOSTILE: list[tuple[list[str], str]] = [
    (["none.npz"], r"none\.npz: expected a file that can be read, got 'No such file or directory'"),
    (["text.npz"], r"text\.npz: expected an undamaged file"),
    (["empty.npz"], r"empty\.npz: expected an undamaged file"),
    (["cut.npz"], r"cut\.npz: expected an undamaged file"),
    (["flip.npz"], r"flip\.npz: k: expected an undamaged file, got 'Bad CRC-32"),
    (["missing.npz"], r"missing\.npz: expected arrays q, k, v; missing k, v; found q, keys"),
    (["shape.npz"], r"shape\.npz: k: expected .* got \(2, 3, 11, 8\)"),
    (["two.npz", "--window", "-,0"], r"two\.npz: 2 arguments do not fit: k: .*; v: "),
    (["object.npz"], r"object\.npz: v: expected numbers, got dtype object; objects are never unpickled"),
    (["complex.npz"], r"complex\.npz: q: expected real numbers .* got dtype complex128"),
    (["mask.npz"], r"mask\.npz: mask: expected bool, True = may attend, got dtype int64; .*mask\.astype\(bool\)"),
    (["one.npy"], r"one\.npy: expected an \.npz file or a folder of \.npy files, got one \.npy array"),
    (["liar"], r"liar: k: expected the 32000000000000 bytes that its header promises, .* got 4; it is cut"),
    (["negative"], r"negative: k: expected a shape of sizes >= 0, got \(-1, -4\)"),
    (["a\nb.npz"], r"a\\nb\.npz: expected an undamaged file"),
    (["."], r"\.: expected arrays q, k, v; missing q, k, v; found one$"),
    (["pipe.npz"], r"pipe\.npz: expected a file, got a named pipe"),
    (
        ["in.npz", "-o", "old.npz"],
        r"old\.npz: expected a new name, got one that exists; name another, or replace it: force=True, --force",
    ),
    (["cut.npz", "-o", "old.npz"], r"old\.npz: expected a new name, got one that exists"),  # before any work
    (["in.npz", "-o", "in.npz"], r"in\.npz: expected another file than the input, got the input itself; name another"),
    (["in.npz", "-o", "in.npz", "--force"], r"in\.npz: expected another file than the input, got the input itself"),
    (["in.npz", "--softcap", "1e300"], r"in\.npz: softcap: expected .* finite in float32, got 1e\+300"),
    (["lengths.npz"], r"lengths\.npz: lengths: expected integers, got dtype float64"),
    (["longer.npz"], r"longer\.npz: lengths: expected at most n_k = \d+, got 1000"),
    (["sinks.npz"], r"sinks\.npz: sinks: expected one number per head, shape \(H,\) = \(\d+,\), got \(99,\)"),
    (["in.npz", "-o", "liar", "--force"], r"liar: expected a name that ends in \.npz"),
    (["in.npz", "-o", "none/out.npz"], r"none/out\.npz: expected an existing folder, got 'none'"),
    (["in.npz", "-o", "pipe.npz", "--force"], r"pipe\.npz: expected a file, got a named pipe"),
    (["in.npz", "--force"], r"--force: expected -o OUT with it, got none"),
    (["in.npz", "--scale", "nan"], r"argument --scale: expected a finite number, got 'nan'"),
    (["in.npz", "--scale", "-inf"], r"argument --scale: expected a finite number, got '-inf'"),
    (["in.npz", "--scale", "two"], r"argument --scale: expected a finite number, got 'two'"),
    (["in.npz", "--softcap", "-1"], r"argument --softcap: expected a finite number above 0, got '-1'"),
    (["in.npz", "--softcap", "x"], r"argument --softcap: expected a finite number above 0, got 'x'"),
    (["in.npz", "--window", "3"], r"argument --window: expected L,R: .* got '3'; for example 256,0"),
    (["in.npz", "--window", "-3,0"], r"argument --window: expected L,R: .* got '-3,0'"),
    (["in.npz", "--window", "1,2,3"], r"argument --window: expected L,R: .* got '1,2,3'"),
    (["in.npz", "--window", "9" * 30 + ",0"], r"argument --window: expected L,R: "),
    (["in.npz", "--window", "\u0663,0"], r"argument --window: expected L,R: "),
    (["in.npz", "--window"], r"argument --window: expected one argument"),
    (["in.npz", "--window", "--causal"], r"argument --window: expected one argument"),
    (["in.npz", "--threads", "0"], r"argument --threads: expected an integer from 1 to 4096, got '0'"),
    (["in.npz", "--threads", "-1"], r"argument --threads: expected an integer from 1 to 4096, got '-1'"),
    (["in.npz", "--threads", "x"], r"argument --threads: expected an integer from 1 to 4096, got 'x'"),
    (["in.npz", "--threads", "1.5"], r"argument --threads: expected an integer from 1 to 4096, got '1\.5'"),
    (["in.npz", "--threads", "4097"], r"argument --threads: expected an integer from 1 to 4096, got '4097'"),
    (["in.npz", "--threads", "1", "--weights", "--caus"], r"unrecognized arguments: --caus"),
    (["in.npz", "--lse", "-o", "in.npz"], r"in\.npz: expected another file than the input, got the input itself"),
    (["in.npz", "--caus"], r"unrecognized arguments: --caus"),
    (["in.npz", "more\nnpz"], r"unrecognized arguments: more\\nnpz"),
    ([], r"the following arguments are required: IN"),
]


@pytest.mark.parametrize(
    ("arguments", "says"), HOSTILE, ids=lambda value: " ".join(value)[:40].encode("unicode_escape")
)
def test_a_mistake_is_one_line_and_harms_no_file(
    folder: Path, capsys: Capture, arguments: list[str], says: str
) -> None:
    make_hostile(folder)
    before = state(folder)
    tracemalloc.start()
    try:
        code = main(["attend", *arguments])
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    text, errors = capsys.readouterr()
    assert (code, text) == (2, "")
    assert re.fullmatch(rf"headwise attend: {says.removesuffix('$')}.*\n", errors)
    assert errors[:-1].isprintable()
    assert state(folder) == before
    assert peak < 1_000_000


@pytest.mark.parametrize(
    "arguments", [["liar"], ["missing.npz"], ["in.npz", "-o", "old.npz"], ["in.npz", "--scale", "nan"]]
)
def test_a_mistake_in_a_real_process(folder: Path, arguments: list[str]) -> None:
    make_hostile(folder)
    before = state(folder)
    done = run("attend", *arguments, "--json")
    assert (done.returncode, done.stdout) == (2, "")
    assert re.fullmatch(r"headwise attend: .*\n", done.stderr)
    assert state(folder) == before


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["demo", "--head", "12"], r"headwise demo: --head: expected 0 to 11, got 12; the sample has 12 heads"),
        (["demo", "--head", "-1"], r"headwise demo: --head: expected 0 to 11, got -1; .*"),
        (["demo", "--head", "three"], r"headwise demo: argument --head: expected an integer, got 'three'; .* -h"),
        (
            ["demo", "--induction", "--head", "0"],
            r"headwise demo: --induction: expected neither --head nor --causal with it, .*, got --head; .* demo -h",
        ),
        (["demo", "--causal", "--induction", "--head", "0"], r"headwise demo: .*, got --head, --causal; see .*"),
        (
            ["demo", "--seed", "0"],
            r"headwise demo: --seed: expected --induction with it, got none; see headwise demo -h",
        ),
        (["demo", "--induction", "--seed", "-1"], r"headwise demo: argument --seed: expected .* >= 0, got '-1'; .* -h"),
        (["demo", "--induction", "--seed", "x"], r"headwise demo: argument --seed: expected .* >= 0, got 'x'; .* -h"),
        (["demo", "more"], r"headwise demo: unrecognized arguments: more; see headwise -h"),
        (["info", "-x"], r"headwise info: unrecognized arguments: -x; see headwise -h"),
        (["bogus"], r"headwise: argument COMMAND: invalid choice: 'bogus' .*; see headwise -h"),
        (["--bogus"], r"headwise: unrecognized arguments: --bogus; see headwise -h"),
    ],
)
def test_mistakes_with_the_other_commands(capsys: Capture, arguments: list[str], says: str) -> None:
    assert main(arguments) == 2
    text, errors = capsys.readouterr()
    assert text == ""
    assert re.fullmatch(says + "\n", errors)


# ----------------------------------------------------------------------------------------- the world
def test_too_little_memory_is_one_line(folder: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    def too_large(*_: Any, **__: Any) -> Any:
        raise MemoryError("Unable to allocate 3 TiB")

    for name in ("scaled_dot_product_attention", "attention", "attention_steps"):
        monkeypatch.setattr(demo, name, too_large)
    for more in ([], ["--weights"]):
        assert main(["attend", "in.npz", *more]) == 2
        assert capsys.readouterr().err.startswith("headwise attend: in.npz: expected memory for its arrays and results")
    assert main(["demo"]) == 2
    assert capsys.readouterr().err.startswith("headwise demo: expected more memory")


def test_an_interrupt_leaves_nothing_behind(folder: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    before = state(folder)

    def interrupt(*_: Any, **__: Any) -> Any:
        assert list(folder.glob(".headwise-*.tmp"))  # it is there
        raise KeyboardInterrupt

    monkeypatch.setattr(np.lib.format, "write_array", interrupt)
    assert main(["attend", "in.npz", "-o", "out.npz"]) == 130
    assert capsys.readouterr() == ("", "headwise attend: interrupted\n")
    assert state(folder) == before


SLOW = """
import signal, sys, time
import numpy as np
from headwise import cli, cli_attend, demo
signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background begins with it ignored
def wait(*_, **__):
    print("ready", flush=True)
    time.sleep(60)
if sys.argv.pop(1) == "computing":
    demo.attention = demo.attention_steps = wait
else:
    np.lib.format.write_array = wait
sys.exit(cli.main(sys.argv[1:]))
"""


@pytest.mark.skipif(os.name == "nt", reason="no such signals there")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("when", ["computing", "writing"])
@pytest.mark.parametrize("times", [1, 3])
def test_a_signal_ends_a_real_process_and_leaves_nothing(folder: Path, number: int, when: str, times: int) -> None:
    before = state(folder)
    arguments = [sys.executable, "-c", SLOW, when, "attend", "in.npz", "-o", "old.npz", "--force"]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        for _ in range(times):  # an impatient user's second one does not stop the tidying up
            process.send_signal(number)
        _, errors = process.communicate(timeout=30)
    assert errors == "headwise attend: interrupted\n" or (times > 1 and errors.startswith("headwise attend: interr"))
    assert process.returncode == 128 + number or (times > 1 and process.returncode == -number)  # at the very end
    assert state(folder) == before


MIDDLE = """
import signal, sys, time
from functools import partial
from headwise import cli, cli_attend, demo
signal.signal(signal.SIGINT, signal.default_int_handler)
cli_attend._PATIENCE = 0
def told(progress, done, total):
    progress(done, total)
    print("ready", flush=True)
    time.sleep(60)
def attention(*arrays, progress, engine=demo.attention, **options):
    return engine(*arrays, progress=partial(told, progress), **options)
demo.attention = attention
sys.exit(cli.main(sys.argv[1:]))
"""


def save_long() -> None:
    rng = np.random.default_rng(0)
    np.savez("long.npz", **{name: rng.standard_normal((3000, 16), dtype=np.float32) for name in "qkv"})


@pytest.mark.skipif(os.name == "nt", reason="no such signals there")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_in_the_middle_of_the_engine(folder: Path, number: int) -> None:
    save_long()
    before = state(folder)
    arguments = [sys.executable, "-c", MIDDLE, "attend", "long.npz", "-o", "out.npz", "--threads", "2"]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(number)
        text, errors = process.communicate(timeout=30)
    assert (process.returncode, text, errors) == (128 + number, "", "headwise attend: interrupted\n")
    assert state(folder) == before


def test_main_leaves_the_signals_as_they_were(folder: Path) -> None:
    before = signal.getsignal(signal.SIGTERM)
    assert main(["attend", "in.npz"]) == 0
    assert signal.getsignal(signal.SIGTERM) == before
    with ThreadPoolExecutor(1) as pool:  # where no handler can be set
        assert pool.submit(main, ["attend", "in.npz"]).result(60) == 0


def limited_to(size: int) -> Callable[[], None]:
    import resource

    return lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


@pytest.mark.skipif(os.name == "nt", reason="no limits to set")
@pytest.mark.parametrize("limit", [0, 100, 1500, 1750])
@pytest.mark.parametrize("target", ["out.npz", "old.npz"])
def test_a_full_disk_is_one_line_and_leaves_the_target_as_it_was(folder: Path, limit: int, target: str) -> None:
    before = state(folder)
    done = run("attend", "in.npz", "-o", target, "--force", preexec_fn=limited_to(limit))
    assert (done.returncode, done.stdout) == (2, "")
    says = rf"headwise attend: {target}: expected to write 1560 bytes, got 'File too large'; make room or name another"
    assert re.fullmatch(says + " folder\n", done.stderr)
    assert state(folder) == before


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no full device here")
@pytest.mark.parametrize("arguments", [["demo"], ["-h"], ["--version"]])
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_an_output_that_is_full(arguments: list[str], unbuffered: str) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [*COMMAND, *arguments],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
        )
    assert done.returncode == 2
    assert re.fullmatch(
        r"headwise.*: standard output: expected to write all, got 'No space left on device'.*\n", done.stderr
    )


@pytest.mark.parametrize("arguments", [["demo"], ["attend", "-h"]])
def test_a_reader_that_has_seen_enough(arguments: Sequence[str]) -> None:
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as closed:
        done = subprocess.run([*COMMAND, *arguments], stdout=closed, stderr=subprocess.PIPE, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(os.name == "nt", reason="needs a shell")
def test_no_output_at_all() -> None:
    command = shlex.join([*COMMAND, "info"])
    done = subprocess.run(["sh", "-c", f"{command} >&- 2>&-"], timeout=60)
    assert done.returncode == 0
    assert subprocess.run(["sh", "-c", f"{command} --bogus >&- 2>&-"], timeout=60).returncode == 2


def test_an_output_that_holds_ascii_only(folder: Path) -> None:
    done = run("demo", env={**os.environ, "PYTHONIOENCODING": "ascii"})
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.isascii()
    assert "'@' above 0.5" in done.stdout
    Path("注.npz").write_bytes(Path("in.npz").read_bytes())
    done = run("attend", "注.npz", env={**os.environ, "PYTHONIOENCODING": "ascii"})
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("\\u6ce8.npz\n")
    done = run("attend", "注2.npz", env={**os.environ, "PYTHONIOENCODING": "ascii"})
    assert done.stderr.startswith("headwise attend: \\u6ce82.npz: expected a file")


def on_a_terminal(*arguments: str, program: Sequence[str] = COMMAND, stop: bytes = b"", **variables: str) -> str:
    """What a process writes to a terminal of 100 columns; it is interrupted once it has written `stop`."""
    import pty

    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "100", "PYTHONIOENCODING": "utf-8", **variables}
    environment.pop("NO_COLOR", None)
    with subprocess.Popen([*program, *arguments], stdout=theirs, stderr=theirs, env=environment) as process:
        os.close(theirs)
        written, stopped = b"", not stop
        while chunk := _read(ours):
            written += chunk
            if not stopped and stop in written:
                process.send_signal(signal.SIGINT)
                stopped = True
    os.close(ours)
    assert stopped
    assert process.returncode == (130 if stop else 0)
    return written.decode()


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 1 << 16)
    except OSError:  # how Linux ends a terminal that nobody writes to any more
        return b""


MEASURED = ("time", "memory  ")  # differs from run to run


@pytest.mark.skipif(os.name == "nt", reason="no terminals to open")
def test_a_terminal_gets_colours_and_the_same_words(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("rich")
    monkeypatch.setattr(demo, "LONG", LONG)
    shown = on_a_terminal("demo")
    assert "\x1b[" in shown
    assert main(["demo"]) == 0
    plain = capsys.readouterr().out
    lines = re.sub(r"\x1b\[[0-9;]*m", "", shown).replace("\r", "").splitlines()
    kept = [line.split() for line in lines if "─" not in line and not line.startswith(MEASURED)]
    expected = [line.split() for line in plain.splitlines() if not line.startswith(("----", *MEASURED))]
    assert kept == expected
    assert "\x1b[" not in on_a_terminal("demo", TERM="dumb")


@pytest.mark.skipif(os.name == "nt", reason="no terminals to open")
def test_the_stripe_is_coloured_on_a_terminal(capsys: Capture) -> None:
    pytest.importorskip("rich")
    shown = on_a_terminal("demo", "--induction")
    assert main(["demo", "--induction"]) == 0
    picture = [line for line in capsys.readouterr().out.splitlines() if line.endswith("|")]
    uncoloured = re.sub(r"\x1b\[[0-9;]*m", "", shown).replace("\r", "").splitlines()
    assert [line for line in uncoloured if line.endswith("|")] == picture
    assert shown.count("\x1b[91m██") > 13


WITHOUT_RICH = "import sys; sys.modules['rich'] = None\n"
CLEARED = {True: "\x1b[?25h\r\x1b[1A\x1b[2K", False: "\r" + " " * 99 + "\r"}
either = pytest.mark.parametrize("rich", [True, False])


def impatient(rich: bool, code: str) -> list[str]:
    """A program with these lines, with or without rich."""
    if rich:
        pytest.importorskip("rich")
    return [sys.executable, "-c", code if rich else WITHOUT_RICH + code]


@pytest.mark.skipif(os.name == "nt", reason="no terminals to open")
@either
def test_bench_tells_a_terminal_what_it_is_doing_and_clears_the_line(rich: bool) -> None:
    program = impatient(rich, "import sys; from headwise.cli import main; sys.exit(main(sys.argv[1:]))")
    arguments = ("bench", "--cases", "tiny", "--peers", "naive", "--repeat", "1")
    shown = on_a_terminal(*arguments, program=program, NO_COLOR="1")
    told, _, rest = shown.partition("CPU ")
    assert "\r1 of 1: tiny: preparing naive" in told or "1 of 1: tiny: preparing naive\r\x1b[2K" in told
    assert told.endswith(CLEARED[rich])
    assert "1 of 1" not in rest


AT_ONCE = "import sys; from headwise import cli, cli_attend; cli_attend._PATIENCE = 0; sys.exit(cli.main(sys.argv[1:]))"


@pytest.mark.skipif(os.name == "nt", reason="no terminals to open")
@either
def test_attend_draws_a_bar_on_a_terminal_and_removes_it(folder: Path, rich: bool) -> None:
    save_long()
    program = impatient(rich, AT_ONCE)
    told, found, rest = on_a_terminal("attend", "long.npz", "--threads", "1", program=program).partition("long.npz")
    assert found
    assert re.search(r"attending .* \d+%", told)
    assert re.search(re.escape(CLEARED[rich]) + r"(\x1b\[\d+m)*$", told)  # the title may be bold
    assert "attending" not in rest


@pytest.mark.parametrize("terminal", ["stdout", "stderr"])
def test_the_bar_is_for_standard_error(
    folder: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch, terminal: str
) -> None:
    save_long()
    monkeypatch.setitem(sys.modules, "rich", None)
    monkeypatch.setattr(cli_attend, "_PATIENCE", 0)
    monkeypatch.setattr(getattr(sys, terminal), "isatty", lambda: True)
    assert main(["attend", "long.npz", "--threads", "1"]) == 0
    text, errors = capsys.readouterr()
    assert "attending" not in text
    assert ("attending  [" in errors) == (terminal == "stderr")
    assert errors.endswith("\r") == (terminal == "stderr")


@pytest.mark.skipif(os.name == "nt", reason="no terminals to open")
def test_no_bar_where_none_belongs(folder: Path) -> None:
    save_long()
    program = impatient(False, AT_ONCE)
    arguments = ["attend", "long.npz", "--threads", "1"]
    assert json.loads(on_a_terminal(*arguments, "--json", program=program))["seconds"] > 0
    assert on_a_terminal("attend", "in.npz").startswith(("in.npz", "\x1b[1min.npz"))  # it is over too soon
    done = subprocess.run([*program, *arguments], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert "attending" not in done.stdout


@pytest.mark.skipif(os.name == "nt", reason="no terminals to open")
@either
def test_an_interrupt_takes_the_bar_away(folder: Path, rich: bool) -> None:
    save_long()
    before = state(folder)
    arguments = ("attend", "long.npz", "-o", "out.npz", "--threads", "2")
    shown = on_a_terminal(*arguments, program=impatient(rich, MIDDLE), stop=b"ready")
    assert re.search(r"attending .* \d+%", shown)
    assert shown.endswith(CLEARED[rich] + "headwise attend: interrupted\r\n")
    assert state(folder) == before


def test_the_commands_need_no_rich(folder: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rich", None)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    for arguments in (["demo"], ["demo", "--induction"], ["attend", "in.npz", "--weights"], ["info"]):
        assert main(arguments) == 0
        text, errors = capsys.readouterr()
        assert text
        assert (errors, "\x1b" in text) == ("", False)


def test_importing_headwise_loads_no_command() -> None:
    code = "import sys, headwise; print(*(f'headwise.{name}' in sys.modules for name in sys.argv[1:]))"
    arguments = [sys.executable, "-c", code, "core.attention", "cli", "console", "demo"]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=60)
    assert done.stdout == "True False False False\n"
