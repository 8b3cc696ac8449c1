"""checkpoints, cli_info, cli_attend: the layers of a checkpoint listed, and one of them run, from the command line."""

import hashlib
import json
import re
import shutil
import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import checkpoints as fixtures
import numpy as np
import pytest

import headwise as hw
from headwise import checkpoints, console, demo, files, layer_runs, model_configs
from headwise.cli import main

Capture = pytest.CaptureFixture[str]
TOLERANCE = 2e-6  # of the largest output, as in test_checkpoints.py


def place(name: str, config: dict[str, Any] | None = None) -> fixtures.Fixture:
    """A fixture in the working folder: model.safetensors, its config.json, x.npy and what else a call takes."""
    fixture = fixtures.read(name)
    shutil.copy(fixtures.FOLDER / f"{name}.safetensors", "model.safetensors")
    Path("config.json").write_text(json.dumps(fixture.config if config is None else config))
    np.save("x.npy", fixture.seen["x"])
    if "valid" in fixture.seen:
        np.save("valid.npy", fixture.seen["valid"])
    return fixture


def arguments(row: fixtures.Row, fixture: fixtures.Fixture) -> list[str]:
    """How the layer of a fixture is called from the command line."""
    words = ["attend", "model.safetensors", "--layer", fixture.prefix, "--x", "x.npy", "-o", "out.npz"]
    words += ["--keys", "valid.npy"] if "valid" in fixture.seen else []
    words += ["--causal"] if row.causal else []
    words += ["--window", f"{row.window - 1},0"] if row.window else []
    if "bias" in fixture.seen:
        np.save("bias.npy", fixture.seen["bias"])
        words += ["--bias", "bias.npy"]
    return words


def state(folder: Path) -> dict[str, str]:
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.iterdir())}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


# ------------------------------------------------------------------------------------- one layer, run
SELF = [row for row in fixtures.ROWS if row.name not in ("t5-cross", "bart-cross", "torch-widths", "torch-bias-kv")]


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("row", SELF, ids=str)
def test_a_layer_gives_what_the_library_gave(row: fixtures.Row, capsys: Capture) -> None:
    fixture = place(row.name)
    assert main([*arguments(row, fixture), "--weights"]) == 0
    capsys.readouterr()
    found, right = files.read_arrays("out.npz"), fixture.seen
    assert found["out"].dtype == np.float32
    assert np.abs(found["out"] - right["out"]).max() < TOLERANCE * np.abs(right["out"]).max()
    assert found["weights"].shape == right["weights"].shape
    assert np.abs(found["weights"] - right["weights"]).max() < TOLERANCE


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("row", [row for row in SELF if row.name in ("bert", "llama", "t5-encoder")], ids=str)
def test_without_weights_the_engine_runs(row: fixtures.Row, capsys: Capture) -> None:
    fixture = place(row.name)
    assert main(arguments(row, fixture)) == 0
    text, found = capsys.readouterr().out, files.read_arrays("out.npz")
    assert list(found) == ["out"]
    assert np.abs(found["out"] - fixture.seen["out"]).max() < TOLERANCE * np.abs(fixture.seen["out"]).max()
    assert "\nwritten            out.npz: out\n" in text
    assert [line for line in text.splitlines() if console.width(line) > 80] == []
    assert re.search(r"^layer   MultiHeadAttention\(d_model=32, n_heads=4,", text, re.MULTILINE)
    assert re.search(r"^x +\(b, n, d_model\) +\(\d+, \d+, 32\) +float32$", text, re.MULTILINE)


@pytest.mark.usefixtures("folder")
def test_heads_are_given_where_no_config_says_them(capsys: Capture) -> None:
    fixture = place("gpt2")
    words = arguments(fixtures.BY_NAME["gpt2"], fixture)
    Path("config.json").unlink()
    assert main([*words, "--n-heads", "4"]) == 0
    assert "no config.json beside it" in capsys.readouterr().out
    right = fixture.seen["out"]
    assert np.abs(files.read_arrays("out.npz")["out"] - right).max() < TOLERANCE * np.abs(right).max()
    assert main([*words, "--n-heads", "2", "--force"]) == 0
    assert np.abs(files.read_arrays("out.npz")["out"] - right).max() > 1000 * TOLERANCE


@pytest.mark.usefixtures("folder")
def test_tokens_without_a_batch_axis_a_mask_and_the_only_layer(capsys: Capture) -> None:
    fixture = place("gpt2")
    x = fixture.seen["x"][0]
    allowed = np.tril(np.ones((len(x), len(x)), bool))
    np.save("x.npy", x)
    np.save("mask.npy", allowed & fixture.seen["valid"][0])
    words = ["attend", "model.safetensors", "--layer", "transformer", "--x", "x.npy", "--mask", "mask.npy", "--weights"]
    assert main([*words, "-o", "out.npz"]) == 0
    found = files.read_arrays("out.npz")
    assert found["out"].shape == x.shape
    assert np.abs(found["out"] - fixture.seen["out"][0]).max() < TOLERANCE * np.abs(fixture.seen["out"]).max()
    assert found["weights"].shape == (4, len(x), len(x))
    capsys.readouterr()
    assert main(words) == 0
    assert "The weights of the first head, queries down and keys across\n" in capsys.readouterr().out


@pytest.mark.usefixtures("folder")
def test_scale_and_softcap_reach_the_layer(capsys: Capture) -> None:
    fixture = place("bert")
    words = ["attend", "model.safetensors", "--layer", fixture.prefix, "--x", "x.npy", "-o", "out.npz"]
    assert main([*words, "--scale", "-0.5", "--softcap", "0.25"]) == 0
    layer = fixtures.by_hand(fixtures.BY_NAME["bert"], fixture)
    right = layer(fixture.seen["x"], scale=-0.5, softcap=0.25)
    np.testing.assert_allclose(files.read_arrays("out.npz")["out"], right, atol=TOLERANCE)
    assert np.abs(right - layer(fixture.seen["x"])).max() > 1000 * TOLERANCE


@pytest.mark.usefixtures("folder")
def test_a_run_as_json_is_one_object(capsys: Capture) -> None:
    fixture = place("mistral")
    words = ["attend", "model.safetensors", "--layer", fixture.prefix, "--x", "x.npy", "--json"]
    assert main(words) == 0
    value = json.loads(capsys.readouterr().out)
    assert value["prefix"] == "model.layers.1.self_attn"
    assert value["config"] == "config.json"
    assert value["arrays"]["out"] == {
        "letters": "(b, n, d_model)",
        "shape": [*fixture.seen["x"].shape],
        "dtype": "float32",
    }
    assert value["peak_extra_bytes"] > 0
    assert (value["peak_counted"], value["output"]) == ("traced", None)
    assert value["notes"] == [
        "config.json says MistralForCausalLM, whose tokens see no later one: pass --causal",
        "config.json says sliding_window 3: pass --window 2,0",
    ]
    assert main([*words, "--window", "2,0"]) == 0
    assert json.loads(capsys.readouterr().out)["notes"] == []


@pytest.mark.usefixtures("folder")
def test_layer_1_is_not_layer_10(capsys: Capture) -> None:
    arrays = many(["model.layers.1", "model.layers.10"])
    files.write_safetensors("model.safetensors", arrays)
    Path("config.json").write_text('{"num_attention_heads": 8, "rope_theta": 10000.0}')
    np.save("x.npy", np.ones((3, 48), np.float32))
    for prefix in ("model.layers.1", "model.layers.1.", "model.layers.1.self_attn"):
        assert main(["attend", "model.safetensors", "--layer", prefix, "--x", "x.npy", "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["prefix"] == "model.layers.1.self_attn"


@pytest.mark.usefixtures("folder")
def test_a_target_that_appears_meanwhile_is_not_replaced(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    fixture = place("bert")

    def run_layer(*given: Any, run: Any = layer_runs.run_layer, **options: Any) -> Any:
        Path("out.npz").write_bytes(b"precious")
        return run(*given, **options)

    monkeypatch.setattr(layer_runs, "run_layer", run_layer)
    assert main(arguments(fixtures.BY_NAME["bert"], fixture)) == 2
    assert "out.npz: expected a new name, got one that exists" in capsys.readouterr().err
    assert Path("out.npz").read_bytes() == b"precious"


# --------------------------------------------------------------------------- safetensors in place of .npz
@pytest.mark.usefixtures("folder")
def test_attend_takes_safetensors_as_it_takes_npz(capsys: Capture) -> None:
    rng = np.random.default_rng(3)
    arrays = {
        name: rng.standard_normal((2, 3, n, 7)).astype(np.float32) for name, n in (("q", 5), ("k", 11), ("v", 11))
    }
    arrays |= {"mask": rng.random((5, 11)) < 0.7, "lengths": np.array([4, 11]), "more": np.ones(3)}
    files.write_safetensors("in.safetensors", arrays)
    files.write_arrays("in.npz", arrays)
    for kind in ("npz", "safetensors"):
        assert main(["attend", f"in.{kind}", "-o", f"out-{kind}.npz", "--causal", "--lse"]) == 0
        assert "\nnot used           more\n" in capsys.readouterr().out
    first, second = (files.read_arrays(f"out-{kind}.npz") for kind in ("npz", "safetensors"))
    for name in ("out", "lse"):
        np.testing.assert_array_equal(first[name], second[name])
    assert list(demo.attend("in.safetensors").arrays) == ["q", "k", "v", "mask", "lengths"]


@pytest.mark.usefixtures("folder")
def test_bfloat16_in_is_written_as_the_float32_that_it_is() -> None:
    bfloat16 = pytest.importorskip("ml_dtypes").bfloat16
    arrays = {name: np.random.default_rng(3).standard_normal((2, 5, 7)).astype(bfloat16) for name in "qkv"}
    files.write_safetensors("in.safetensors", arrays)
    assert main(["attend", "in.safetensors", "-o", "out.npz"]) == 0
    out, right = files.read_arrays("out.npz")["out"], hw.attention(*arrays.values())
    assert right.dtype == bfloat16
    assert out.dtype == np.float32
    np.testing.assert_array_equal(out, right.astype(np.float32))


# --------------------------------------------------------------------------------------------- listing
@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("row", fixtures.ROWS, ids=str)
def test_info_lists_the_layer_of_every_fixture(row: fixtures.Row, capsys: Capture) -> None:
    fixture = place(row.name)
    assert main(["info", "model.safetensors", "--json"]) == 0
    value = json.loads(capsys.readouterr().out)
    [layer] = value["layers"]
    assert f"{layer['prefix']}.".startswith(fixture.prefix or ".")
    assert (layer["d_model"], layer["n_heads"]) == (32, 4)
    grouped = row.names == fixtures.SELF_ATTN
    assert (layer["grouped"], layer["n_kv_heads"]) == (grouped, 2 if grouped else 4)
    assert layer["rope"] == ("half" if grouped else None)
    assert layer["norms"] == (row.name == "qwen3")
    assert layer["d_head"] == {"qwen3": 16, "t5-encoder": 6, "t5-decoder": 6, "t5-cross": 6}.get(row.name, 8)
    assert value["arrays"] == len(fixture.state)
    assert value["numbers"] == sum(x.size for x in fixture.state.values())
    assert value["bytes"] == 4 * value["numbers"]
    assert value["config"] == "config.json"


BESIDES = [
    ("qwen3", "q/k norms"),
    ("qwen2", "biases"),
    ("llama", None),
    ("torch-widths", "biases, cross attention, keys of other tokens, kdim 24, vdim 20"),
    ("torch-bias-kv", "biases, bias_k and bias_v"),
    ("t5-decoder", "a table of relative positions"),
    ("t5-cross", "cross attention, keys of other tokens"),
]


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(("name", "besides"), BESIDES)
def test_info_says_what_a_layer_has_besides(capsys: Capture, name: str, besides: str | None) -> None:
    place(name)
    assert main(["info", "model.safetensors"]) == 0
    text = capsys.readouterr().out
    assert re.findall(r"^kind 1  (.*)$", text, re.MULTILINE) == ([] if besides is None else [besides])
    assert [line for line in text.splitlines() if console.width(line) > 80] == []


def many(prefixes: list[str], n_q: int = 8, n_kv: int = 2) -> dict[str, Any]:
    shapes = {"q_proj": (4 * n_q, 48), "k_proj": (4 * n_kv, 48), "v_proj": (4 * n_kv, 48), "o_proj": (48, 4 * n_q)}
    return {
        f"{prefix}.self_attn.{name}.weight": np.zeros(shape, np.float16)
        for prefix in prefixes
        for name, shape in shapes.items()
    }


@pytest.mark.usefixtures("folder")
def test_info_prints_kinds_and_prefixes_in_the_order_of_their_numbers(capsys: Capture) -> None:
    prefixes = [f"model.layers.{i}" for i in (0, 1, 2, 10, 11)]
    arrays = many(prefixes) | many(["other"], 8, 8) | {"embed": np.zeros((5, 48), np.float32)}
    files.write_safetensors("model.safetensors", arrays)
    assert main(["info", "model.safetensors", "--n-heads", "8"]) == 0
    text, errors = capsys.readouterr()
    assert errors == ""
    lines = text.splitlines()
    assert lines[0] == "file    model.safetensors"
    assert re.search(r"^arrays  25 of float16, float32, [\d,]+ numbers, [\d.]+ KiB$", text, re.MULTILINE)
    assert re.search(r"^config  no config\.json beside it$", text, re.MULTILINE)
    assert re.search(r"^layers  6 of attention, of 2 kinds$", text, re.MULTILINE)
    assert re.search(r"^ *1 +llama +48 +8 +2 +4 +yes +half$", text, re.MULTILINE)
    assert re.search(r"^ *2 +llama +48 +8 +8 +4 +no +half$", text, re.MULTILINE)
    rows = [line.split() for line in lines[lines.index("Layers, by prefix") + 3 :]]
    assert rows == [["1", f"{prefix}.self_attn"] for prefix in prefixes] + [["2", "other.self_attn"]]
    assert [line for line in lines if console.width(line) > 80] == []


@pytest.mark.usefixtures("folder")
def test_info_says_where_heads_are_not_known(capsys: Capture) -> None:
    files.write_safetensors("model.safetensors", many(["a"]))
    assert main(["info", "model.safetensors"]) == 0
    text = capsys.readouterr().out
    assert "\nheads   said by neither arrays nor config: pass --n-heads\n" in text
    assert re.search(r"^kind +pattern +d_model +heads +d_q +d_kv +grouped +rope$", text, re.MULTILINE)
    assert re.search(r"^ *1 +llama +48 +- +32 +8 +yes +half$", text, re.MULTILINE)


@pytest.mark.usefixtures("folder")
def test_a_folder_and_a_file_without_layers(capsys: Capture) -> None:
    place("bert")
    assert main(["info", "."]) == 0
    assert "\nlayers  1 of attention, of 1 kind\n" in capsys.readouterr().out
    np.savez("other.npz", q=np.ones(3))
    assert main(["info", "other.npz"]) == 0
    assert "\nlayers  none of attention by the names of torch, bert, " in capsys.readouterr().out


# The same without the import of NumPy and the command, which take more than the listing.
SPARSE = """
import io, re, sys, time
from contextlib import redirect_stdout
from headwise import cli
def high():
    return int(re.search(r"VmHWM:\\s*(\\d+) kB", open("/proc/self/status").read())[1]) * 1024
before, start = high(), time.perf_counter()
with redirect_stdout(io.StringIO()) as out:
    code = cli.main(["info", sys.argv[1], "--n-heads", "16", "--json"])
seconds = time.perf_counter() - start
print(code, high() - before, seconds, out.getvalue())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")
def test_a_file_of_a_gigabyte_is_listed_in_little_memory(folder: Path) -> None:
    """Its values are a hole in the file; memory is asserted, time printed (`pytest -s`)."""
    layers, width, header, at = 64, 2048, {}, 0
    for i in range(layers):
        for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
            size = 2 * width * width
            spot = {"dtype": "F16", "shape": [width, width], "data_offsets": [at, at + size]}
            header[f"model.layers.{i}.self_attn.{name}.weight"], at = spot, at + size
    text = json.dumps(header).encode()
    path = folder / "large.safetensors"
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + at)
    assert path.stat().st_size > 2**30
    done = subprocess.run([sys.executable, "-c", SPARSE, path], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    code, grown, seconds, told = done.stdout.split(" ", 3)
    assert code == "0"
    assert len(json.loads(told)["layers"]) == layers
    assert json.loads(told)["bytes"] == at
    print(f"\n{at / 2**30:.3g} GiB listed in {float(seconds):.3f} s, with {int(grown) / 2**20:.1f} MiB more")
    assert int(grown) < 50 * 2**20


# -------------------------------------------------------------------------------------------- mistakes
LAYER = ["attend", "model.safetensors", "--layer", "model.layers.1", "--x", "x.npy"]


def make_hostile() -> None:
    """Files that do not fit, beside those of the llama fixture."""
    for name, shape in (("wide", (2, 3, 33)), ("flat", (32,)), ("deep", (1, 2, 3, 32))):
        np.save(f"{name}.npy", np.ones(shape, np.float32))
    np.save("complex.npy", np.ones((3, 32), complex))
    np.save("ints.npy", np.ones((7, 7), int))
    np.save("short.npy", np.ones((2, 3), bool))
    np.save("floats.npy", np.ones((2, 7)))
    Path("list.json").write_text("[]")
    Path("half.json").write_text('{"w_q": "q"}')
    np.savez("x.npz", x=np.ones((3, 32)))
    np.savez("in.npz", q=np.ones((3, 2)), k=np.ones((3, 2)), v=np.ones((3, 2)))
    Path("cut.npy").write_bytes(Path("x.npy").read_bytes()[:-9])
    Path("cut.safetensors").write_bytes(Path("model.safetensors").read_bytes()[:-9])
    Path("old.npz").write_bytes(b"precious")
    files.write_safetensors("keys.safetensors", {"q": np.ones((3, 2)), "keys": np.ones(3)})
    files.write_safetensors("two.safetensors", many(["a", "b"]))
    arrays = many(["c"])
    arrays["c.self_attn.k_proj.weight"] = arrays["c.self_attn.k_proj.weight"].T
    files.write_safetensors("turned.safetensors", arrays)


MISTAKES: list[tuple[list[str], str]] = [
    (["info", "none.safetensors"], r"none\.safetensors: expected a file that can be read, got 'No such file"),
    (["info", "cut.safetensors"], r"cut\.safetensors: expected "),
    (["info", "x.txt"], r"x\.txt: expected a file that can be read, got 'No such file or directory'"),
    (["info", "x.npy"], r"x\.npy: expected a folder, or a name that ends in "),
    (["info", "--n-heads", "4"], r"--n-heads: expected FILE with it, got none; see headwise info -h$"),
    (["info", "model.safetensors", "--n-heads", "0"], r"argument --n-heads: expected an integer >= 1, got '0'"),
    (["info", "model.safetensors", "--n-heads", "-2"], r"argument --n-heads: expected an integer >= 1, got '-2'"),
    (["attend", "keys.safetensors"], r"keys\.safetensors: expected arrays q, k, v; missing k, v; found keys, q$"),
    (["attend", "cut.safetensors"], r"cut\.safetensors: expected "),
    (["attend", "in.npz", "--x", "x.npy"], r"--x: expected --layer PREFIX with it, got none; see"),
    (["attend", "in.npz", "--n-kv-heads", "2", "--mask", "m"], r"--n-kv-heads, --mask: expected --layer PREFIX with"),
    ([*LAYER[:4]], r"--layer: expected --x X\.npy with it, the tokens, got none; see headwise attend -h"),
    ([*LAYER, "--lse", "--threads", "2"], r"--layer: expected no --lse, --threads with it, got it; see"),
    (
        [*LAYER[:3], "nope", *LAYER[4:]],
        (
            r"model\.safetensors: --layer: expected the prefix of a layer \(model\.layers\.1\.self_attn\), got 'nope'; "
            r"headwise info model\.safetensors lists them$"
        ),
    ),
    ([*LAYER[:3], "model.layers.11", *LAYER[4:]], r"model\.safetensors: --layer: expected the prefix of a layer "),
    (
        ["attend", "two.safetensors", "--layer", "", *LAYER[4:]],
        (
            r"two\.safetensors: --layer: expected the prefix of one "
            r"layer, got '', where there are 2: a\.self_attn, b\.self_attn; headwise info"
        ),
    ),
    (["attend", "turned.safetensors", "--layer", "c", *LAYER[4:]], r"turned\.safetensors: .*k_proj\.weight"),
    ([*LAYER[:5], "wide.npy"], r"wide\.npy: expected shape \(b, n, 32\) or \(n, 32\), d_model .* got \(2, 3, 33\)$"),
    ([*LAYER[:5], "flat.npy"], r"flat\.npy: expected shape \(b, n, 32\) or \(n, 32\), d_model .* got \(32,\)$"),
    ([*LAYER[:5], "deep.npy"], r"deep\.npy: expected shape .* got \(1, 2, 3, 32\)$"),
    ([*LAYER[:5], "complex.npy"], r"complex\.npy: .*expected real numbers.* got dtype complex128"),
    ([*LAYER[:5], "cut.npy"], r"cut\.npy: expected the \d+ bytes that its header promises"),
    ([*LAYER[:5], "x.npz"], r"x\.npz: expected a name that ends in \.npy, got another; save one array by np\.save$"),
    (
        [*LAYER, "--mask", "ints.npy"],
        r"ints\.npy: --mask: expected bool, True = may attend, got dtype int64; save it with",
    ),
    ([*LAYER, "--keys", "short.npy"], r"short\.npy: --keys: expected shape \(2, 7\) or \(7,\), that .*, got \(2, 3\)$"),
    (
        [*LAYER, "--keys", "floats.npy"],
        r"floats\.npy: --keys: expected bool, True for real tokens, got dtype float64; save it with \.astype\(bool\)$",
    ),
    ([*LAYER, "--bias", "short.npy"], r"short\.npy: --bias: expected "),
    ([*LAYER, "--pattern", "nope"], r"--pattern: expected one of torch, .*, or a \.json file .*, got 'nope'$"),
    ([*LAYER, "--pattern", "none.json"], r"none\.json: expected a file that can be read"),
    ([*LAYER, "--pattern", "list.json"], r"list\.json: expected a JSON object, got a list; write \{\"w_q\": "),
    ([*LAYER, "--pattern", "half.json"], r"half\.json: pattern: expected names for w_q, w_k, w_v \(or w_qkv\) and w_o"),
    (["attend", "in.npz", "--pattern", "bert"], r"--pattern: expected --layer PREFIX with it, got none; see"),
    (["info", "--pattern", "bert"], r"--pattern: expected FILE with it, got none; see headwise info -h$"),
    ([*LAYER, "--keys", "none.npy"], r"none\.npy: expected a file that can be read"),
    ([*LAYER, "--n-heads", "5"], r"model\.safetensors: "),
    (
        [*LAYER[:5], "none.npy", "-o", "old.npz"],
        r"old\.npz: expected a new name, got one that exists",
    ),  # before any work
    (
        ["attend", "in.npz", *LAYER[2:], "-o", "in.npz", "--force"],
        r"in\.npz: expected another file than the input, got",
    ),
    ([*LAYER, "-o", "old.npz"], r"old\.npz: expected a new name, got one that exists"),
    ([*LAYER, "-o", "x.npy", "--force"], r"x\.npy: expected a name that ends in \.npz"),
    ([*LAYER, "--force"], r"--force: expected -o OUT with it, got none"),
]


@pytest.mark.parametrize(("words", "says"), MISTAKES, ids=[" ".join(words) for words, _ in MISTAKES])
def test_a_mistake_is_one_line_and_harms_no_file(folder: Path, capsys: Capture, words: list[str], says: str) -> None:
    place("llama")
    make_hostile()
    before = state(folder)
    tracemalloc.start()
    try:
        code = main(words)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    text, errors = capsys.readouterr()
    assert (code, text) == (2, "")
    assert re.match(rf"headwise {words[0]}: {says.removesuffix('$')}", errors), errors
    assert not says.endswith("$") or re.fullmatch(rf"headwise {words[0]}: {says[:-1]}\n", errors), errors
    assert errors[:-1].isprintable()
    assert state(folder) == before
    assert peak < model_configs.MOST + 1_000_000  # what a config.json may take, at once


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("name", "says"),
    [
        (
            "t5-encoder",
            r"encoder\.block\.0\.layer\.0\.SelfAttention: expected --bias FILE, T5's relative positions, got",
        ),
        ("t5-cross", r"decoder\.block\.0\.layer\.1\.EncDecAttention: expected self-attention, got a layer whose keys"),
        ("torch-widths", r"cross_attn: expected self-attention, got a layer whose keys are of other tokens; load it"),
    ],
)
def test_what_would_be_another_layer_is_refused(capsys: Capture, name: str, says: str) -> None:
    fixture = place(name)
    assert main(["attend", "model.safetensors", "--layer", fixture.prefix, "--x", "x.npy"]) == 2
    assert re.fullmatch(rf"headwise attend: model\.safetensors: {says}.*\n", capsys.readouterr().err)


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("llama", r"model\.layers\.1\.self_attn: expected a config\.json, which says its rope, got none; put the"),
        ("bert", r"bert\.encoder\.layer\.1\.attention: expected --n-heads, a number that divides d_q = 32, got none"),
    ],
)
def test_without_a_config_what_it_would_say_is_asked_for(capsys: Capture, name: str, says: str) -> None:
    fixture = place(name)
    Path("config.json").unlink()
    assert main(["attend", "model.safetensors", "--layer", fixture.prefix, "--x", "x.npy"]) == 2
    assert re.fullmatch(rf"headwise attend: model\.safetensors: {says}.*\n", capsys.readouterr().err)


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", r"config\.json: expected JSON, got 'Expecting property name"),
        ("[" * 100_000, r"config\.json: expected JSON, got "),
        ("[1]", r"config\.json: expected a JSON object, got a list; "),
        ('{"num_attention_heads": "4"}', r"config\.json: config\['num_attention_heads'\]: expected "),
        ('{"num_attention_heads": 0}', r"config\.json: config\['num_attention_heads'\]: expected "),
        (" " * 4_000_001, r"config\.json: expected at most 4000000 bytes, got 4000001"),
        ("\x00", r"config\.json: expected JSON, got "),
    ],
    ids=lambda text: text[:20],
)
@pytest.mark.parametrize("command", ["info", "attend"])
def test_a_damaged_config_is_one_line(capsys: Capture, command: str, text: str, says: str) -> None:
    place("bert")
    Path("config.json").write_text(text)
    words = ["--layer", "bert", "--x", "x.npy"] if command == "attend" else []
    assert main([command, "model.safetensors", *words]) == 2
    out, errors = capsys.readouterr()
    assert out == ""
    assert re.fullmatch(rf"headwise {command}: {says}.*\n", errors)


@pytest.mark.usefixtures("folder")
def test_scores_beyond_memory_are_refused_before_they_are_made(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    fixture = place("bert")
    monkeypatch.setattr(demo, "physical_memory", lambda: 1000)
    words = ["attend", "model.safetensors", "--layer", fixture.prefix, "--x", "x.npy"]
    assert main([*words, "--weights"]) == 2
    said = (
        r"headwise attend: x\.npy: x: expected scores that fit .* GiB; attend from fewer .*; without --weights no .*\n"
    )
    assert re.fullmatch(said, capsys.readouterr().err)
    assert main(words) == 0


@pytest.mark.usefixtures("folder")
def test_layers_need_no_rich(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    fixture = place("bert")
    monkeypatch.setitem(sys.modules, "rich", None)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    words = ["attend", "model.safetensors", "--layer", fixture.prefix, "--x", "x.npy", "--weights"]
    for one in (words, ["info", "model.safetensors"]):
        assert main(one) == 0
        text, errors = capsys.readouterr()
        assert text
        assert (errors, "\x1b" in text) == ("", False)


def test_numbers_in_prefixes_are_counted() -> None:
    names = ["h.10.attn", "h.9.attn", "h.2.attn", "h.2.aa", "g.11", f"h.{'9' * 5000}.attn", "h.009.attn"]
    ordered = ["g.11", "h.2.aa", "h.2.attn", "h.009.attn", "h.9.attn", "h.10.attn", f"h.{'9' * 5000}.attn"]
    assert sorted(names, key=checkpoints._counted) == ordered


@pytest.mark.usefixtures("folder")
def test_tokens_that_do_not_fit_are_refused_before_weights_are_read(capsys: Capture, monkeypatch: Any) -> None:
    fixture = place("gpt2")
    np.save("x.npy", np.ones((1, 5, 7)))
    monkeypatch.setattr(layer_runs, "from_state_dict", None)
    assert main(["attend", "model.safetensors", "--layer", fixture.prefix, "--x", "x.npy", "--causal"]) == 2
    assert "x.npy: expected shape (b, n, 32) or (n, 32), d_model of the layer, got (1, 5, 7)" in capsys.readouterr().err
