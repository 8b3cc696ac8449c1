"""Names that others gave reach no terminal as they are: escaped and cut, in texts, errors and commands."""

import json
import pathlib

import numpy as np
import pytest
from states import AT, CONFIGS, H, state_of

from headwise import cli, files, transforms, weights

HOSTILE = [
    "\x1b[2J\x1b]0;title\x07",
    "a\nb\r\x85\u2028c",
    "\u202egnp.exe\u202c",
    "\x00\x7f\x9b31m",
    "\ud800",
    "x" * 1_000_000,
]
IDS = ["escapes", "lines", "bidi", "controls", "surrogate", "megabyte"]
NAMES = {"w_q": "q.weight", "w_k": "k.weight", "w_v": "v.weight", "w_o": "o.weight"}


def plain(text, most=4000):
    """Whether a terminal can be given a text, whose lines are those of the house."""
    assert len(text) < most
    assert all(character.isprintable() or character == "\n" for character in text), text
    return text


def renamed(kind, prefix):
    return {name.replace(AT[kind], prefix): x for name, x in state_of(kind).items()}


@pytest.mark.parametrize("name", HOSTILE, ids=IDS)
def test_a_layer_as_text(name):
    (found,) = weights.attention_layers(renamed("bert", name), {"num_attention_heads": H})
    assert found.prefix == name  # as it is: from_state_dict takes it
    plain(str(found))
    made = weights.from_state_dict(renamed("bert", name), found, n_heads=H)
    plain(str(made))
    plain(str(weights.Found("", name, 1, 1, 1)))


def errors(name):
    """Calls that fail, with a name in their errors."""
    state, at = renamed("bert", name), f"{name}.self.query.weight"
    two = state | renamed("bert", "other")
    own = {role: f"{name}.{own}" for role, own in NAMES.items()}
    rope = {"model_type": "llama", "rope_theta": 1.0, "num_attention_heads": H}
    layer = weights.from_state_dict(state_of("bert"), n_heads=H)
    return {
        "prefix": lambda: weights.from_state_dict(state, "nowhere", n_heads=H),
        "of nothing": lambda: weights.from_state_dict(state, f"{name}!", n_heads=H),
        "several": lambda: weights.from_state_dict(two, n_heads=H),
        "missing": lambda: weights.from_state_dict({key: x for key, x in state.items() if key != at}, n_heads=H),
        "misshaped": lambda: weights.from_state_dict(state | {at: np.zeros((3, 5))}, n_heads=H),
        "complex": lambda: weights.from_state_dict(state | {at: np.zeros((3, 5)) * 1j}, n_heads=H),
        "unreadable": lambda: weights.from_state_dict(state | {at: [[1], [1, 2]]}, n_heads=H),
        "none": lambda: weights.from_state_dict(state | {at: None}, n_heads=H),
        "shape": lambda: weights.attention_layers(state | {at: None}),
        "extra": lambda: weights.from_state_dict(state | {f"{name}.self.{name}": np.zeros(1)}, name, n_heads=H),
        "unknown": lambda: weights.from_state_dict({f"{name}.x": np.zeros(1)}, n_heads=H),
        "pattern": lambda: weights.from_state_dict(state, n_heads=H, pattern=name),
        "names": lambda: weights.from_state_dict(state, n_heads=H, pattern=own),
        "role": lambda: weights.from_state_dict(state, n_heads=H, pattern=NAMES | {name: "a"}),
        "roles": lambda: weights.from_state_dict(state, n_heads=H, pattern={name: "a"}),
        "layout": lambda: weights.from_state_dict(state, n_heads=H, pattern=NAMES | {"layout": name}),
        "pattern's extra": lambda: weights.from_state_dict(
            {f"p.{own[role]}": np.zeros((4, 4)) for role in own} | {f"p.{name}.o": np.eye(2)},
            "p",
            n_heads=2,
            pattern=own,
        ),
        "back": lambda: weights.to_state_dict(layer, own | {"b_q": f"{name}.b", "bias_k": f"{name}.c"}),
        "type": lambda: weights.from_state_dict(state, n_heads=H, config={"model_type": name}),
        "part": lambda: weights.from_state_dict(state, config={f"{name}_config": {"n_head": 3}}),
        "key": lambda: weights.from_state_dict(state, n_heads=H, config={f"{name}_rope": 3}),
        "rope": lambda: weights.from_state_dict(
            state_of("llama"), config=rope | {"rope_scaling": {"rope_type": name, "factor": 2}}
        ),
        "inner rope": lambda: weights.from_state_dict(state_of("llama"), config=rope | {"rope_scaling": {name: {}}}),
        "number": lambda: weights.from_state_dict(state_of("llama"), config=rope | {"rope_theta": name}),
    }


@pytest.mark.parametrize("name", HOSTILE, ids=IDS)
@pytest.mark.parametrize("what", errors(""))
def test_an_error_with_a_name(what, name):
    with pytest.raises((TypeError, ValueError)) as caught:
        errors(name)[what]()
    plain(str(caught.value))


@pytest.mark.parametrize("name", HOSTILE[:-2], ids=IDS[:-2])
def test_a_layer_in_a_file_with_such_names(tmp_path, name):
    files.write_safetensors(tmp_path / "a.safetensors", {name: np.eye(2)})
    with pytest.raises(files.FileError) as caught:
        weights.load(tmp_path / "a.safetensors")
    plain(str(caught.value))


# ------------------------------------------------------------------------------------------------------ commands
@pytest.fixture
def ran(capsys):
    def run(*words):
        code = cli.main([str(word) for word in words])
        out, err = capsys.readouterr()
        return code, plain(out, 20_000), plain(err, 20_000)

    return run


@pytest.mark.parametrize("name", [*HOSTILE[:-2], "x" * 5_000], ids=[*IDS[:-2], "long"])
def test_commands_with_names_of_a_checkpoint(tmp_path, ran, name):
    file, x = tmp_path / "model.safetensors", tmp_path / "x.npy"
    files.write_safetensors(file, renamed("bert", name) | renamed("albert", f"{name}.other"))
    np.save(x, np.ones((2, 12)))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": name, "architectures": [f"{name}ForCausalLM"]}))
    for words in (["info", file], ["info", file, "--n-heads", H], ["info", file, "--json"]):
        code, out, _ = ran(*words)
        assert code == 0
        assert out
    wrong = [["--layer", name], ["--layer", f"{name}.nowhere"], ["--layer", name, "--n-heads", 5], ["--layer", ""]]
    for words in wrong:
        code, out, err = ran("attend", file, "--x", x, *words)
        assert (code, out) == (2, "")
        assert err.count("\n") == 1
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "bert", "architectures": [f"{name}ForCausalLM"]}))
    for more in ([], ["--json"]):
        code, out, _ = ran("attend", file, "--x", x, "--layer", f"{name}.other", "--n-heads", H, *more)
        assert code == 0


def test_a_command_refuses_positions_that_a_layer_would_lack(tmp_path, ran):
    file, x = tmp_path / "model.safetensors", tmp_path / "x.npy"
    files.write_safetensors(file, state_of("bert"))
    np.save(x, np.ones((2, 12)))
    config = {"model_type": "roformer", "num_attention_heads": H}
    pathlib.Path(tmp_path / "config.json").write_text(json.dumps(config))
    code, _, err = ran("attend", file, "--x", x, "--layer", AT["bert"])
    assert code == 2
    said = "config.json says rope (model_type roformer), which pattern bert has not: pass --pattern FILE.json with {"
    assert said in err
    assert err.count("\n") == 1


# ----------------------------------------------------------------------------------------------------- wrong kinds
PATTERNS = [
    {3: "x"},
    {"w_q": ["x"], "w_k": {}, "w_v": None, "w_o": 3},
    {None: None},
    {"layout": "linear"},
    weights.Pattern(["a"]),
    weights.Pattern(None),
    weights.Pattern("w_q"),
    *(
        weights.Pattern(NAMES, **{field: odd})
        for field in weights.Pattern._fields[1:]
        for odd in (3, "x", [1], (("w_z",),), ((3,),), {"a": 1}, float("nan"), object())
        if (field, odd) not in (("scale", 3), ("folders", "x"))
    ),
    weights.Pattern(NAMES, folders="x"),
]


@pytest.mark.parametrize("pattern", PATTERNS, ids=map(str, range(len(PATTERNS))))
def test_patterns_of_the_wrong_kind(pattern):
    state, layer = (
        {f"a.{name}": np.eye(4) for name in NAMES.values()},
        weights.from_state_dict(state_of("bert"), n_heads=H),
    )
    for call in (
        lambda: weights.from_state_dict(state, n_heads=2, pattern=pattern),
        lambda: weights.to_state_dict(layer, pattern),
    ):
        with pytest.raises((TypeError, ValueError), match=r"^(from|to)_state_dict: (\d arguments|pattern: expected)"):
            call()


def test_names_that_are_no_texts_are_no_layers():
    state = {3: np.eye(2), None: None, ("a", "b"): 3, b"q.weight": np.eye(2)}
    assert weights.attention_layers(state) == []
    assert len(weights.attention_layers(state | state_of("bert"))) == 1
    assert weights.from_state_dict(state | state_of("bert"), n_heads=H).n_heads == H


@pytest.mark.parametrize(
    "odd", [None, 3, "text", [1, 2], (), (3, 4), ((3, "x"), None), (None, None), (1, 2, 3), {}], ids=str
)
def test_what_has_no_shape_is_named(odd):
    name = f"{AT['bert']}.self.query.weight"
    with pytest.raises(TypeError, match=rf"^attention_layers: {name}: expected an array, or a tuple \(shape, dtype\)"):
        weights.attention_layers(state_of("bert") | {name: odd})
    assert len(weights.attention_layers(state_of("bert") | {"pooler.weight": odd})) == 1


def test_a_table_of_relative_positions_of_the_wrong_kind():
    table = f"{AT['t5']}.relative_attention_bias.weight"
    for odd in (None, "x", object()):
        with pytest.raises(TypeError, match=r"relative_attention_bias\.weight: expected"):
            weights.from_state_dict(state_of("t5") | {table: odd}, config=CONFIGS["t5"])
        with pytest.raises(TypeError, match=r"relative_attention_bias\.weight: expected"):
            weights.attention_layers(state_of("t5") | {table: odd})
    rows = {table: [[0.0] * H] * 32}
    assert weights.from_state_dict(state_of("t5") | rows).n_heads == H
    plain = transforms.compose()
    assert weights.from_state_dict(state_of("t5") | {table: np.zeros(3)}, n_heads=H, transform=plain).n_heads == H
