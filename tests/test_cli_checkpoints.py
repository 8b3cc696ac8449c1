"""info and attend on checkpoints that leave questions: unknown names, one file of several, several parts, T5."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_cli import on_a_terminal
from test_cli_layers import TOLERANCE, many, place

import headwise as hw
from headwise import checkpoint_names, console, files
from headwise.cli import main
from headwise.model_configs import ModelConfig

Capture = pytest.CaptureFixture[str]
NAMES = {"w_q": "mixer.query_w", "w_k": "mixer.key_w", "w_v": "mixer.value_w", "w_o": "mixer.out_w"}
OWN = ["attend", "own.safetensors", "--layer", "tower.1", "--x", "x.npy"]
D = 8


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def random(*shape: int) -> Any:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def make_own() -> dict[str, Any]:
    """A model that nobody knows: own.safetensors, names.json that describes it, and tokens."""
    rng = np.random.default_rng(5)
    arrays = {f"tower.{i}.{name}": rng.standard_normal((D, D)) for i in range(11) for name in NAMES.values()}
    arrays |= {f"tower.{i}.norm.scale": np.ones(D) for i in range(11)} | {"monkeys.convert": np.ones((3, D))}
    files.write_safetensors("own.safetensors", arrays)
    Path("names.json").write_text(json.dumps(NAMES))
    np.save("x.npy", rng.standard_normal((5, D)))
    return arrays


def told(capsys: Capture, *words: str) -> str:
    """What a command prints."""
    assert main(words) == 0
    text, errors = capsys.readouterr()
    assert errors == ""
    return text


def refused(capsys: Capture, *words: str) -> str:
    """The one line of a mistake, without the command's name."""
    assert main(words) == 2
    text, errors = capsys.readouterr()
    assert text == ""
    assert errors.count("\n") == 1
    return errors.removeprefix(f"headwise {words[0]}: ").removesuffix("\n")


def row(text: str, *cells: object) -> bool:
    """Whether a line of a table begins with these cells."""
    return re.search("^ *" + r" {2,}".join(re.escape(str(cell)) for cell in cells), text, re.MULTILINE) is not None


# ----------------------------------------------------------------------------------------------- unknown models
@pytest.mark.usefixtures("folder")
def test_an_unknown_model_shows_one_of_each_series_and_the_next_step(capsys: Capture) -> None:
    make_own()
    text = told(capsys, "info", "own.safetensors")
    assert "\nNames that look like attention, one of each series\n" in text
    for name in NAMES.values():
        assert row(text, f"tower.0.{name}", (D, D), 11), text
    assert "tower.1." not in text
    assert "norm.scale" not in text
    assert "monkeys" not in text
    assert "\n      headwise info own.safetensors --pattern FILE.json\n" in text
    assert "\n      from_state_dict(open_checkpoint(path), prefix, pattern={...}, n_heads=...)\n" in text
    assert [line for line in text.splitlines() if console.width(line) > 80] == []
    names = json.loads(told(capsys, "info", "own.safetensors", "--json"))["names"]
    assert (len(names["series"]), names["more"], names["alike"]) == (4, 0, True)


@pytest.mark.usefixtures("folder")
def test_where_nothing_looks_like_attention_the_first_dozen_names_are_shown(capsys: Capture) -> None:
    arrays = {f"layers.{i}.fc.weight": np.ones((3, 2)) for i in range(30)}
    files.write_safetensors("plain.safetensors", arrays | {f"n{c}.b": np.ones(3) for c in "abcdefghijklmnopqrst"})
    text = told(capsys, "info", "plain.safetensors")
    assert "\nThe first names; none looks like attention, one of each series\n" in text
    assert row(text, "layers.0.fc.weight", (3, 2), 30)
    assert row(text, "nk.b", (3,), 1)
    assert not row(text, "nl.b")
    assert "\nand 9 more\n" in text


ALIKE = [
    (["h.0.attn.c_q.weight", "h.0.attn.out.weight", "h.0.mlp.fc.weight"], [0, 1]),
    (["b.to_k.w", "b.to_out.w", "b.deep.er.still.w", "c.x"], [0, 1]),
    (["enc.W_Q", "enc.W_O", "dec.W_Z"], [0, 1]),
    (["m.in_proj_qkv", "m.proj", "conv.qx", "turkey.w", "valued.w"], [0, 1]),
    (["m.wq", "m.wo", "SelfAttention.o"], [0, 1, 2]),
    (["query", "dense"], [0]),
]


@pytest.mark.parametrize(("names", "alike"), ALIKE, ids=str)
def test_which_names_look_like_attention(names: list[str], alike: list[int]) -> None:
    found = checkpoint_names.looked_through(dict.fromkeys(names, (2, 2)))
    assert [series.name for series in found.series] == [names[i] for i in alike]
    assert found.alike


@pytest.mark.usefixtures("folder")
def test_a_layer_by_its_own_names_gives_what_python_gives(capsys: Capture) -> None:
    arrays = make_own()
    text = told(capsys, "info", "own.safetensors", "--pattern", "names.json", "--n-heads", "4")
    assert "\nlayers  11 of attention, of 1 kind\n" in text
    assert row(text, 1, "yours", D, 4, 4, 2, "no", "-")
    assert text.endswith("   1  tower.9\n   1  tower.10\n")
    Path("config.json").write_text('{"hidden_size": 99, "num_attention_heads": 2}')
    assert row(told(capsys, "info", "own.safetensors", "--pattern", "names.json"), 1, "yours", D, 2, 2, 4, "no", "-")
    Path("config.json").unlink()
    told(capsys, *OWN, "--pattern", "names.json", "--n-heads", "4", "-o", "out.npz")
    layer = hw.weights.from_state_dict(arrays, "tower.1", n_heads=4, pattern=NAMES)
    np.testing.assert_array_equal(files.read_arrays("out.npz")["out"], layer(np.load("x.npy")))


@pytest.mark.usefixtures("folder")
def test_a_pattern_by_name_and_one_stored_the_other_way(capsys: Capture) -> None:
    place("bert")
    assert row(told(capsys, "info", "model.safetensors", "--pattern", "bert"), 1, "bert", 32, 4, 4, 8)
    assert "by the names of llama\n" in told(capsys, "info", "model.safetensors", "--pattern", "llama")
    shapes = {"q": (12, 8), "k": (10, 4), "v": (10, 4), "o": (8, 12)}
    files.write_safetensors("turned.safetensors", {f"a.{name}": random(*shape) for name, shape in shapes.items()})
    Path("config.json").unlink()
    names = {f"w_{name}": name for name in shapes} | {"layout": "conv1d"}
    Path("turned.json").write_text(json.dumps(names))
    text = told(capsys, "info", "turned.safetensors", "--pattern", "turned.json", "--n-heads", "2")
    assert row(text, 1, "yours", 12, 2, 1, 4, "yes", "-")
    assert "\nkind 1  cross attention, keys of other tokens, kdim 10, vdim 10\n" in text


@pytest.mark.usefixtures("folder")
def test_a_pattern_that_fits_nowhere_says_why(capsys: Capture) -> None:
    make_own()
    Path("bad.json").write_text(json.dumps(NAMES | {"w_o": "norm.scale"}))
    text = told(capsys, "info", "own.safetensors", "--pattern", "bad.json")
    assert "\nlayers  none of attention by the names of bad.json\n" in text
    assert re.search(
        r"^note    tower\.0 does not fit: tower\.0\.mixer\.out_w: expected no array of", text, re.MULTILINE
    )
    said = refused(capsys, *OWN, "--pattern", "bad.json", "--n-heads", "4")
    assert "tower.1.norm.scale: expected (out, in) = " in said


DAMAGED = ["{", "[" * 9999, "3", "{}", '{"w_q": 3}', '{"w_q": {}}', json.dumps(NAMES | {"layout": ["x"]})]
DAMAGED += [json.dumps(NAMES | {key: value}) for key, value in (("rope", {}), ("scale", "x"), ("w_o", NAMES["w_q"]))]


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("text", DAMAGED, ids=lambda text: text[-20:])
def test_a_damaged_pattern_is_one_line(capsys: Capture, text: str) -> None:
    make_own()
    Path("names.json").write_text(text)
    for words in (["info", "own.safetensors"], OWN):
        assert refused(capsys, *words, "--pattern", "names.json").startswith("names.json: ")


@pytest.mark.usefixtures("folder")
def test_unknown_names_are_sent_to_a_pattern_or_to_python(capsys: Capture) -> None:
    make_own()
    next_step = (
        "; headwise info own.safetensors shows names; describe yours by --pattern FILE.json, "
        "or in Python by headwise.weights.from_state_dict(state, prefix, pattern={'w_q': ..., ...})"
    )
    held = "mixer.key_w, mixer.out_w, mixer.query_w, mixer.value_w and 1 more"
    said = f"own.safetensors: tower.1: expected weights by the names of a known pattern, got {held}"
    assert refused(capsys, *OWN) == said + next_step
    said = "own.safetensors: --layer: expected layers by the names of its patterns, got none"
    assert refused(capsys, *OWN[:3], "nope", *OWN[4:]) == said + next_step
    Path("other.json").write_text(json.dumps({key: f"x.{name}" for key, name in NAMES.items()}))
    said = "own.safetensors: tower.1: expected weights by the names of --pattern, got mixer.key_w, "
    assert refused(capsys, *OWN, "--pattern", "other.json").startswith(said)


# --------------------------------------------------------------------- forgotten layers, one file of several
def make_shards(index: bool = True) -> None:
    """GPT-2 in two files."""
    shapes = {"c_attn.weight": (D, 3 * D), "c_attn.bias": (3 * D,), "c_proj.weight": (D, D), "c_proj.bias": (D,)}
    layers = {f"h.{i}.attn.{name}": random(*shape) for i in range(2) for name, shape in shapes.items()}
    parts = {"model-00001-of-00002.safetensors": {"wte": random(3, D)}, "model-00002-of-00002.safetensors": layers}
    for file, arrays in parts.items():
        files.write_safetensors(file, arrays)
    if index:
        places = {name: file for file, arrays in parts.items() for name in arrays}
        Path("model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("index", [True, False])
def test_one_file_of_several_says_so(capsys: Capture, index: bool) -> None:
    make_shards(index)
    first, second = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
    said = "part 1 of the 2 of a model: name model.safetensors.index.json for all of them"
    if not index:
        said = "part 1 of the 2 of a model, whose model.safetensors.index.json is not beside it: put it there "
    text = told(capsys, "info", first)
    assert said in re.sub(r"\n +", " ", text)
    assert "FILE.json" not in text
    assert f"got none; this is {said}" in refused(capsys, "attend", first, "--layer", "h.0", "--x", "x.npy")
    text = told(capsys, "info", second)
    assert "\nlayers  2 of attention, of 1 kind\n" in text
    assert "\nnote    part 2 of the 2 of a model" in text
    assert json.loads(told(capsys, "info", second, "--json"))["shard"].startswith("part 2 of the 2")


@pytest.mark.usefixtures("folder")
def test_a_layer_of_which_another_file_has_the_rest(capsys: Capture) -> None:
    arrays = {f"h.0.attn.c_attn.{kind}": random(*shape) for kind, shape in (("weight", (D, 3 * D)), ("bias", (3 * D,)))}
    files.write_safetensors("model-00001-of-00002.safetensors", arrays)
    said = refused(capsys, "attend", "model-00001-of-00002.safetensors", "--layer", "h.0", "--x", "x.npy")
    assert "model-00001-of-00002.safetensors: h.0: " in said
    assert "; this is part 1 of the 2 of a model" in said


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("path", [".", "model.safetensors.index.json", "model-00002-of-00002.safetensors"])
def test_a_forgotten_layer_is_asked_for(capsys: Capture, path: str) -> None:
    make_shards()
    got = "got 2 layers of attention; pass --layer PREFIX and --x X.npy, the first is --layer h.0.attn"
    said = f"{path}: expected arrays q, k, v, {got}; headwise info {path} lists them"
    assert refused(capsys, "attend", path, "--causal") == said


@pytest.mark.usefixtures("folder")
def test_what_is_wrong_with_arrays_stays_said(capsys: Capture) -> None:
    arrays = many(["a"]) | {"q": np.ones((2, 3)), "k": np.ones((2, 3))}
    files.write_safetensors("in.safetensors", arrays | {"v": np.ones((4, 3))})
    assert "2 layers" not in (said := refused(capsys, "attend", "in.safetensors"))
    assert said.startswith("in.safetensors: v: expected ")


# --------------------------------------------------------------------------------------------------- T5
@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("name", ["t5-decoder", "t5-encoder"])
def test_the_command_for_t5s_bias_works_as_typed(capsys: Capture, name: str) -> None:
    fixture = place(name)
    words = ["attend", "model.safetensors", "--layer", fixture.prefix, "--x", "x.npy"]
    said = refused(capsys, *words)
    assert f"bidirectional={name == 't5-encoder'}, max_distance=10" in said
    found = re.fullmatch(r".*; make it by (python -c \"[^\"]*\") and pass --bias bias\.npy", said)
    assert found, said
    subprocess.run([sys.executable, *shlex.split(found[1])[1:]], check=True, timeout=60)
    np.testing.assert_allclose(np.load("bias.npy"), np.squeeze(fixture.seen["bias"]), atol=1e-6)
    causal = ["--causal"] if name == "t5-decoder" else []
    told(capsys, *words, "--bias", "bias.npy", "--keys", "valid.npy", *causal, "-o", "out.npz")
    right = fixture.seen["out"]
    assert np.abs(files.read_arrays("out.npz")["out"] - right).max() < TOLERANCE * np.abs(right).max()


@pytest.mark.usefixtures("folder")
def test_the_table_is_that_of_the_stacks_first_layer(capsys: Capture) -> None:
    shapes = dict.fromkeys("qkvo", (D, D)) | {"relative_attention_bias": (4, 2)}
    arrays = {
        f"{stack}.block.0.layer.0.SelfAttention.{n}.weight": random(*s)
        for stack in ("decoder", "encoder")
        for n, s in shapes.items()
    }
    arrays |= {f"decoder.block.3.layer.0.SelfAttention.{n}.weight": random(D, D) for n in "qkvo"}
    files.write_safetensors("model.safetensors", arrays)
    Path("config.json").write_text('{"model_type": "t5", "num_heads": 2, "d_kv": 4}')
    np.save("x.npy", random(3, D))
    words = ["attend", "model.safetensors", "--layer", "decoder.block.3.layer.0.SelfAttention", "--x", "x.npy"]
    said = refused(capsys, *words)
    assert "['decoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight'], 3, 3, bidirectional=False" in said
    files.write_safetensors("it's.safetensors", arrays)
    said = refused(capsys, "attend", "it's.safetensors", *words[2:])
    assert "python -c" not in said
    assert "; np.save what headwise.relative_position_bias(table, 3, 3, bidirectional=False, max_distance=128)" in said


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("name", "config", "causal", "noted"),
    [
        ("t5-decoder", {}, False, True),
        ("t5-decoder", {"is_encoder_decoder": None}, False, True),
        ("t5-decoder", {}, True, False),
        ("t5-encoder", {}, False, False),
        ("bert", {"is_encoder_decoder": True}, False, False),
    ],
)
def test_a_decoder_of_two_stacks_is_told_of_causal(
    capsys: Capture, name: str, config: dict[str, Any], causal: bool, noted: bool
) -> None:
    fixture = place(name)
    Path("config.json").write_text(json.dumps(fixture.config | config))
    words = ["attend", "model.safetensors", "--layer", fixture.prefix, "--x", "x.npy", "--json"]
    if "bias" in fixture.seen:
        np.save("bias.npy", fixture.seen["bias"])
        words += ["--bias", "bias.npy"]
    notes = json.loads(told(capsys, *words, *["--causal"] * causal))["notes"]
    said = "config.json says model_type t5, the tokens of whose decoder see no later one: pass --causal"
    assert notes == ([said] if noted else [])


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("word", ["encoder_attn", "crossattention", "cross_attn"])
def test_cross_attention_is_not_run_as_self_attention(capsys: Capture, word: str) -> None:
    names = [f"{name}.{kind}" for name in ("query", "key", "value", "dense") for kind in ("weight", "bias")]
    arrays = {f"decoder.0.{word}.{name}": random(D, D) if name.endswith("t") else random(D) for name in names}
    files.write_safetensors("model.safetensors", arrays)
    np.save("x.npy", random(3, D))
    words = ["attend", "model.safetensors", "--layer", "decoder.0", "--x", "x.npy", "--n-heads", "2"]
    assert "expected self-attention, got a layer whose keys are of other tokens" in refused(capsys, *words)
    assert "cross attention" in told(capsys, "info", "model.safetensors")


# ----------------------------------------------------------------------------------------- heads, short errors
@pytest.mark.usefixtures("folder")
def test_heads_that_do_not_fit_are_said_as_they_were_given(capsys: Capture) -> None:
    arrays = {"in_proj_weight": random(24, 8), "in_proj_bias": random(24)}
    arrays |= {"out_proj.weight": random(8, 8), "out_proj.bias": random(8)}
    files.write_safetensors("mha.safetensors", arrays)
    np.save("x.npy", random(5, 8))
    assert "\n   1  (none: --layer '')\n" in told(capsys, "info", "mha.safetensors")
    words = ["attend", "mha.safetensors", "--layer", "", "--x", "x.npy"]
    expected = "mha.safetensors: expected --n-heads, a number that divides d_q = 8, got"
    beside = "none; pass it, or put the model's config.json beside the file"
    assert refused(capsys, *words) == f"{expected} {beside}"
    assert refused(capsys, *words, "--n-heads", "3") == f"{expected} 3; pass another"
    told(capsys, *words, "--n-heads", "4")
    for config, got in ({}, "none; pass it"), ({"num_attention_heads": 5}, "5 of config.json; pass the layer's own"):
        Path("config.json").write_text(json.dumps(config))
        assert refused(capsys, *words) == f"{expected} {got}"


@pytest.mark.usefixtures("folder")
def test_many_faults_are_a_short_line(capsys: Capture) -> None:
    fixture = place("bert")
    arrays = {name: x[..., :-1] if x.ndim == 1 else x for name, x in fixture.state.items()}
    extra = {f"{fixture.prefix}attention.self.{'more' * 9}.{i}.weight": np.ones(3) for i in range(9)}
    files.write_safetensors("bad.safetensors", arrays | extra)
    said = refused(capsys, "attend", "bad.safetensors", "--layer", fixture.prefix, "--x", "x.npy")
    assert re.search(r"; and \d+ more; in Python headwise\.weights\.from_state_dict says all$", said), said
    assert said.count(": expected ") == 3
    assert len(said) < 700


# --------------------------------------------------------------------------------------- models of several parts
LLAMA = {"model_type": "llama", "hidden_size": 48, "num_attention_heads": 8, "head_dim": 4, "rope_theta": 10000.0}
VISION = {"model_type": "vit", "num_attention_heads": 2, "hidden_size": D}


def make_parts(config: dict[str, Any]) -> None:
    names = [f"{name}.{kind}" for name in ("query", "key", "value", "dense") for kind in ("weight", "bias")]
    arrays = {name: value.astype(np.float32) for name, value in many(["language_model.layers.0", "layers.0"]).items()}
    for prefix in ("vision_tower.0.attention", "other.0"):
        arrays |= {f"{prefix}.{name}": random(D, D) if name.endswith("t") else random(D) for name in names}
    files.write_safetensors("model.safetensors", arrays)
    Path("config.json").write_text(json.dumps(config))
    np.save("x.npy", random(3, 48))
    np.save("seen.npy", random(3, D))


@pytest.mark.usefixtures("folder")
def test_a_model_of_several_parts_has_each_parts_numbers(capsys: Capture) -> None:
    make_parts({"model_type": "llava", "text_config": LLAMA, "vision_config": VISION})
    layers = json.loads(told(capsys, "info", "model.safetensors", "--json"))["layers"]
    heads = {layer["prefix"]: layer["n_heads"] for layer in layers}
    assert heads == {
        "language_model.layers.0.self_attn": 8,
        "layers.0.self_attn": None,
        "other.0": None,
        "vision_tower.0.attention": 2,
    }
    text = re.sub(r"\n +", " ", told(capsys, "info", "model.safetensors"))
    assert "model_type llava, in parts: text_config, vision_config\n" in text
    note = "to which belongs layers.0.self_attn and 1 more is not known\n"
    assert f"note    config.json has numbers for parts of the model (text_config, vision_config); {note}" in text
    words = ["attend", "model.safetensors", "--json", "--layer"]
    run = json.loads(told(capsys, *words, "language_model", "--x", "x.npy"))
    assert run["layer"].startswith(
        "MultiHeadAttention(d_model=48, n_heads=8, n_kv_heads=2, d_head=4, transform=rotary("
    )
    run = json.loads(told(capsys, *words, "vision_tower", "--x", "seen.npy"))
    assert run["layer"] == f"MultiHeadAttention(d_model={D}, n_heads=2, use_bias=True)"
    said = refused(capsys, *words, "other", "--x", "seen.npy", "--n-heads", "2")
    expected = (
        "a prefix or a config.json that says which part of the model it is, got one with text_config, vision_config"
    )
    assert said.startswith(f"model.safetensors: other.0: expected {expected}; in Python ")


@pytest.mark.usefixtures("folder")
def test_a_part_without_a_type_has_the_models(capsys: Capture) -> None:
    """Qwen2-VL's eyes turn by rope, and only the whole model's type tells."""
    vision = {key: value for key, value in VISION.items() if key != "model_type"}
    make_parts({**LLAMA, "model_type": "qwen2_vl", "vision_config": vision})
    words = ["attend", "model.safetensors", "--layer", "vision_tower", "--x", "seen.npy"]
    assert "config.json says rope (model_type qwen2_vl), which pattern albert has not" in refused(capsys, *words)


@pytest.mark.usefixtures("folder")
def test_a_part_that_is_damaged_is_named(capsys: Capture) -> None:
    make_parts({"text_config": LLAMA, "vision_config": VISION | {"num_attention_heads": "2"}})
    said = "config.json: vision_config: config['num_attention_heads']: expected "
    assert refused(capsys, "info", "model.safetensors").startswith(said)


TEXT = {"num_attention_heads": 4}
PARTS: list[tuple[dict[str, Any], str, str | None]] = [
    ({"text_config": TEXT, "vision_config": {}}, "model.language_model.layers.0", "text_config"),
    ({"text_config": TEXT, "vision_config": {}}, "text_model.encoder.layers.0", "text_config"),
    ({"text_config": TEXT, "vision_config": {}}, "decoder.layers.0", "text_config"),
    ({"text_config": TEXT, "vision_config": {}}, "vision_tower.vision_model.encoder.0", "vision_config"),
    ({"text_config": TEXT, "vision_config": {}}, "visual.blocks.0.attn", "vision_config"),
    ({"text_config": TEXT, "vision_config": {}}, "model.layers.0", None),
    ({"text_config": TEXT}, "vision_model.0", None),
    ({**TEXT, "vision_config": {}}, "model.layers.0", ""),
    ({**TEXT, "vision_config": {}}, "language_model.layers.0", ""),
    ({**TEXT, "audio_config": {}}, "visual.0", None),
    ({"encoder": TEXT, "decoder": TEXT}, "decoder.layers.0", "decoder"),
    ({"encoder": TEXT, "decoder": TEXT}, "encoder.decoder.0", "encoder"),
    ({"quantization_config": {"bits": 4}}, "visual.0", ""),
    ({"text_config": None}, "model.layers.0", ""),
]


@pytest.mark.parametrize(("config", "prefix", "part"), PARTS, ids=str)
def test_which_part_a_prefix_names(config: dict[str, Any], prefix: str, part: str | None) -> None:
    assert ModelConfig("config.json", config).part(prefix)[0] == part


# --------------------------------------------------------------------------------------------- on a terminal
@pytest.mark.skipif(sys.platform == "win32", reason="no terminals to open")
@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("columns", [80, 100])
def test_no_line_is_wider_than_the_terminal(columns: int) -> None:
    make_own()
    make_parts({"model_type": "llava", "text_config": LLAMA, "vision_config": VISION})
    for file in ("own.safetensors", "model.safetensors"):
        shown = on_a_terminal("info", file, COLUMNS=str(columns))
        lines = re.sub(r"\x1b\[[0-9;]*m", "", shown).replace("\r", "").splitlines()
        assert len(lines) > 10
        assert [line for line in lines if console.width(line) > columns] == []
    assert "rope" in shown


def test_help_names_the_patterns(capsys: Capture) -> None:
    text = " ".join(told(capsys, "info", "-h").split())
    assert "--pattern NAME|FILE.json names of its layers: torch, bert, " in text
    assert "--pattern NAME|FILE.json names of the layer: " in " ".join(told(capsys, "attend", "-h").split())
