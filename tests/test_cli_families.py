"""info and attend where a config.json says what a layer of known names has not: the option that does it is named."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headwise as hw
from headwise import files
from headwise.cli import main

Capture = pytest.CaptureFixture[str]
D, H, N = 24, 3, 5
NEOX = {"w_qkv": "query_key_value.weight", "w_o": "dense.weight", "b_qkv": "query_key_value.bias", "b_o": "dense.bias"}
NEOX |= {"fused": "heads"}
HELD = {
    "query_key_value.weight": (3 * D, D),
    "query_key_value.bias": (3 * D,),
    "dense.weight": (D, D),
    "dense.bias": (D,),
}
OF_NEOX = {"model_type": "gpt_neox", "num_attention_heads": H, "rotary_pct": 0.25, "rotary_emb_base": 10_000}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def make(shapes: dict[str, tuple[int, ...]], config: dict[str, Any] | None, prefix: str = "h.0.attn") -> dict[str, Any]:
    rng = np.random.default_rng(3)
    arrays = {f"{prefix}.{name}": rng.standard_normal(shape) for name, shape in shapes.items()}
    files.write_safetensors("m.safetensors", arrays, force=True)
    np.save("x.npy", rng.standard_normal((N, D)))
    if config is not None:
        Path("config.json").write_text(json.dumps(config))
    return arrays


def write(names: dict[str, Any]) -> list[str]:
    Path("names.json").write_text(json.dumps(names))
    return ["--pattern", "names.json"]


def attend(capsys: Capture, *words: str) -> tuple[int, str]:
    prefix = next(iter(files.open_checkpoint("m.safetensors"))).rpartition(".")[0].rpartition(".")[0]
    code = main(["attend", "m.safetensors", "--layer", prefix, "--x", "x.npy", "--json", *words])
    text, errors = capsys.readouterr()
    if code == 2:
        assert text == ""
        assert errors.count("\n") == 1
        return code, errors.removeprefix("headwise attend: m.safetensors: ").strip()
    return code, text


def info(capsys: Capture, *words: str) -> str:
    assert main(["info", "m.safetensors", *words]) == 0
    return " ".join(capsys.readouterr().out.split())


def notes(capsys: Capture, *words: str) -> list[str]:
    code, text = attend(capsys, *words)
    assert code == 0, text
    made: list[str] = json.loads(text)["notes"]
    return made


# ---------------------------------------------------------------------------------------------- alibi, by --bias
def test_bloom_is_run_with_the_bias_that_is_given(capsys: Capture) -> None:
    arrays = make(HELD, {"model_type": "bloom", "n_head": H})
    own = write(NEOX)
    code, said = attend(capsys, *own, "--causal")
    how = "pass --bias BIAS.npy, (H, n, n), as np.save keeps headwise.alibi(headwise.alibi_slopes(H)).dense((H, n, n))"
    assert (code, said) == (
        2,
        f"h.0.attn: config.json says alibi (model_type bloom), which --pattern has not: {how}",
    )
    assert (
        f"note for headwise attend: config.json says alibi (model_type bloom), which --pattern has not: {how}"
        in info(capsys, *own)
    )
    bias = hw.alibi(hw.alibi_slopes(H)).dense((H, N, N))  # as the error says
    np.save("alibi.npy", bias)
    code, said = attend(capsys, *own, "--causal", "--bias", "alibi.npy", "-o", "out.npz")
    assert code == 0, said
    layer = hw.weights.from_state_dict(arrays, "h.0.attn", n_heads=H, pattern=NEOX)
    right = layer(np.load("x.npy"), causal=True, bias=bias)
    np.testing.assert_allclose(files.read_arrays("out.npz")["out"], right, rtol=1e-12)
    code, said = attend(capsys, *write({key: n for key, n in NEOX.items() if key != "fused"}), "--bias", "alibi.npy")
    assert (code, "'fused': 'heads' in the pattern" in said) == (2, True)


def test_a_bias_is_no_word_about_rope(capsys: Capture) -> None:
    make(HELD, OF_NEOX)
    np.save("bias.npy", np.zeros((H, N, N)))
    code, said = attend(capsys, *write(NEOX), "--bias", "bias.npy")
    assert (code, "config.json says rope (rotary_pct 0.25)" in said) == (2, True)
    llama = {f"{name}_proj.weight": (D, D) for name in "qkvo"}
    make(llama, {"model_type": "llama", "num_attention_heads": H, "rope_theta": 1e4, "alibi": True})
    code, said = attend(capsys, "--bias", "bias.npy")
    assert (code, "alibi (alibi True), which pattern llama has not: in Python" in said) == (2, True)


# -------------------------------------------------------------------------------------- rope, by the dictionary
def test_neox_is_led_to_its_dictionary(capsys: Capture) -> None:
    arrays = make(HELD, OF_NEOX)
    own = write(NEOX)
    code, said = attend(capsys, *own)
    put = 'config.json says rope (rotary_pct 0.25), which --pattern has not: put "rope": "half" into its dictionary'
    assert (code, said) == (2, f"h.0.attn: {put}")
    assert f"note for headwise attend: {put}" in info(capsys, *own)
    names = NEOX | {"rope": "half"}
    assert notes(capsys, *write(names), "--causal", "-o", "out.npz") == []
    layer = hw.weights.from_state_dict(arrays, "h.0.attn", config=OF_NEOX, pattern=names)
    assert layer.transform.options["dims"] == 2  # type: ignore[union-attr]
    np.testing.assert_allclose(files.read_arrays("out.npz")["out"], layer(np.load("x.npy"), causal=True), rtol=1e-12)
    Path("config.json").unlink()
    said = attend(capsys, *write(names))[1]
    enough = '{"num_attention_heads": H, "rope_theta": 10000.0} with the numbers of the model is enough, with '
    assert f"or write one: {enough}" in said
    Path("config.json").write_text('{"num_attention_heads": 3, "rope_theta": 10000.0, "partial_rotary_factor": 0.25}')
    assert notes(capsys, *write(names), "--causal", "-o", "again.npz") == []
    np.testing.assert_array_equal(files.read_arrays("again.npz")["out"], files.read_arrays("out.npz")["out"])


def test_a_pattern_by_name_is_written_out_with_its_rope(capsys: Capture) -> None:
    arrays = make(
        {f"{n}_proj.weight": (D, D) for n in ("q", "k", "v", "out")},
        {"model_type": "gptj", "n_head": H, "rotary_dim": 4},
    )
    _code, said = attend(capsys)
    assert "rope (rotary_dim 4), which pattern bart has not: pass --pattern FILE.json with {" in said
    assert "transform" not in said
    names = json.loads(said[said.index("{") :])
    assert names["rope"] == "interleaved"
    assert json.dumps(names) in info(capsys)
    assert notes(capsys, *write(names), "--causal", "-o", "out.npz") == []
    pattern = hw.weights.PATTERNS["bart"]._replace(rope="interleaved")
    layer = hw.weights.from_state_dict(
        arrays, "h.0.attn", config={"n_head": H, "rotary_dim": 4, "rope_theta": 1e4}, pattern=pattern
    )
    np.testing.assert_allclose(files.read_arrays("out.npz")["out"], layer(np.load("x.npy"), causal=True), rtol=1e-12)


GEMMA2 = {"model_type": "gemma2", "num_attention_heads": H, "rope_theta": 1e4, "query_pre_attn_scalar": 16}
GEMMA2 |= {"attn_logit_softcapping": 50.0}


def test_gemma2_is_led_to_its_options(capsys: Capture) -> None:
    arrays = make({f"{name}_proj.weight": (D, D) for name in "qkvo"}, GEMMA2)
    code, said = attend(capsys)
    assert (code, said) == (2, "h.0.attn: config.json says attn_logit_softcapping 50.0: pass --softcap 50.0")
    code, said = attend(capsys, "--softcap", "50.0")
    assert "model_type gemma2, of which pattern llama does not know the rope: pass --pattern FILE.json with {" in said
    own = write(json.loads(said[said.index("{") :]))
    made = notes(capsys, *own, "--softcap", "50.0", "-o", "out.npz")
    assert made == ["config.json says model_type gemma2, whose tokens see no later one: pass --causal"]
    rope = hw.transforms.rotary(style="half", base=1e4)
    layer = hw.weights.from_state_dict(arrays, "h.0.attn", n_heads=H, transform=rope)
    right = layer(np.load("x.npy"), softcap=50.0, scale=0.25)
    np.testing.assert_allclose(files.read_arrays("out.npz")["out"], right, rtol=1e-12)


def test_what_no_option_does_is_sent_to_python(capsys: Capture) -> None:
    shapes = {f"{name}_proj.weight": (D, D) for name in "qkvo"} | {f"{name}_norm.weight": (8,) for name in "qk"}
    make(shapes, GEMMA2 | {"model_type": "gemma3_text", "attn_logit_softcapping": None})
    said = attend(capsys)[1]
    assert (
        "add 1 to q_norm.weight and k_norm.weight, as its norms multiply by 1 + w: no option does that; in Py" in said
    )
    make(shapes, {"model_type": "qwen3", "num_attention_heads": H, "clip_qkv": 8.0, "rope_theta": 1.0})
    assert "config.json says clip_qkv 8.0, which no option does; in Python " in attend(capsys)[1]


MINE = {
    f"{name}.{kind}": (D, D) if kind == "weight" else (D,)
    for name in ("query", "key", "value", "dense")
    for kind in ("weight", "bias")
}


def test_a_type_that_is_not_known_is_led_to_a_description(capsys: Capture) -> None:
    make(MINE, {"model_type": "mine", "num_attention_heads": H})
    said = attend(capsys)[1]
    assert "model_type mine, of which it is not known whether its attention has positions: where it has none" in said
    assert notes(capsys, *write(json.loads(said[said.index("{") :]))) == []


def test_remedies_of_python_are_called_that(capsys: Capture) -> None:
    make(
        {name: shape for name, shape in MINE.items() if name != "key.bias"},
        {"model_type": "bert", "num_attention_heads": H},
    )
    said = attend(capsys)[1]
    assert "a model without it: --pattern FILE.json without them, or in Python pattern=PATTERNS['albert']" in said


# ----------------------------------------------------------------------------------------------- who sees whom
CAUSAL: list[tuple[dict[str, Any], str, str | None]] = [
    ({"model_type": "gpt2"}, "h.0.attn", "gpt2, whose tokens"),
    ({"model_type": "opt", "architectures": ["OPTModel"]}, "decoder.layers.0.self_attn", "opt, whose tokens"),
    ({"model_type": "clip_text_model"}, "text_model.encoder.layers.0.self_attn", "clip_text_model, whose tokens"),
    ({"model_type": "clip"}, "text_model.encoder.layers.0.self_attn", "clip, the tokens of whose text"),
    ({"model_type": "clip"}, "vision_model.encoder.layers.0.self_attn", None),
    ({"model_type": "clip_vision_model"}, "vision_model.encoder.layers.0.self_attn", None),
    ({"model_type": "bart"}, "decoder.layers.0.self_attn", "bart, the tokens of whose decoder"),
    ({"model_type": "whisper"}, "model.decoder.layers.0.self_attn", "whisper, the tokens of whose decoder"),
    ({"model_type": "bart"}, "encoder.layers.0.self_attn", None),
    ({"model_type": "bert"}, "encoder.layer.0.attention", None),
    ({"model_type": "bert", "is_decoder": True}, "encoder.layer.0.attention", "bert, whose tokens then"),
    ({"model_type": "opt", "is_causal": False}, "decoder.layers.0.self_attn", None),
    ({"model_type": ["gpt2"]}, "h.0.attn", None),
]


@pytest.mark.parametrize(("config", "prefix", "who"), CAUSAL)
def test_causal_is_told_by_types(config: dict[str, Any], prefix: str, who: str | None) -> None:
    from headwise.layer_runs import _decoder

    said = _decoder(config, prefix)
    assert said is None if who is None else said is not None and said.endswith(f"model_type {who}")


@pytest.mark.parametrize(("kind", "noted"), [("gpt2", True), ("bert", False)])
def test_a_model_without_a_head_is_told_of_causal(capsys: Capture, kind: str, noted: bool) -> None:
    shapes = {"c_attn.weight": (D, 3 * D), "c_attn.bias": (3 * D,), "c_proj.weight": (D, D), "c_proj.bias": (D,)}
    make(shapes, {"model_type": kind, "n_head": H, "architectures": ["GPT2Model"]})
    said = "config.json says model_type gpt2, whose tokens see no later one: pass --causal"
    assert notes(capsys) == ([said] if noted else [])
    assert notes(capsys, "--causal") == []


# ------------------------------------------------------------------------------------------------------ names
def test_info_shows_a_dictionary_that_fits(capsys: Capture) -> None:
    make(HELD, OF_NEOX)
    text = info(capsys)
    names = json.loads(re.search(r"after a prefix: (\{.*?\})", text)[1])  # type: ignore[index]
    assert names == NEOX | {"rope": "half"}
    assert '"fused" is "heads" or "groups" where q, k, v of each head, or group, lie together, else "blocks"' in text
    assert notes(capsys, *write(names), "--causal") == []
    assert main(["info", "m.safetensors", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["described"] == names


def test_the_name_of_a_model_is_told_which_pattern_it_is(capsys: Capture) -> None:
    make(HELD, OF_NEOX)
    for words in (["info", "m.safetensors"], ["attend", "m.safetensors", "--layer", "h.0", "--x", "x.npy"]):
        assert main([*words, "--pattern", "mistral"]) == 2
        assert capsys.readouterr().err.endswith("got 'mistral'; its names are those of llama\n")
        assert main([*words, "--pattern", "neox"]) == 2
        assert '; write into a .json file {"w_qkv": "query_key_value.weight", ' in capsys.readouterr().err
