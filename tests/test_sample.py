"""The packaged sample is small, whole, well described, and right by a formula written here."""

import json
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

DATA = Path(str(files("headwise"))) / "data"
H, N, D = 12, 22, 32

Arrays = dict[str, NDArray[Any]]


@pytest.fixture(scope="module")
def sample() -> Arrays:
    with np.load(DATA / "sample.npz", allow_pickle=False) as file:
        arrays = dict(file)
    for array in arrays.values():
        array.flags.writeable = False
    return arrays


@pytest.fixture(scope="module")
def metadata() -> dict[str, Any]:
    text = (DATA / "sample.json").read_text(encoding="utf-8")
    loaded: dict[str, Any] = json.loads(text)
    return loaded


def test_it_is_small() -> None:
    assert (DATA / "sample.npz").stat().st_size <= 300_000


def test_members_shapes_and_dtypes(sample: Arrays) -> None:
    shapes = {name: array.shape for name, array in sample.items()}
    pieces = dict.fromkeys("qkv", (H, N, D))
    assert shapes == {**pieces, "weights": (H, N, N), "tokens": (N,)}
    assert {sample[name].dtype for name in ("q", "k", "v", "weights")} == {np.dtype(np.float32)}
    assert sample["tokens"].dtype.kind == "U"


def test_everything_is_finite(sample: Arrays) -> None:
    for name in ("q", "k", "v", "weights"):
        assert np.isfinite(sample[name]).all(), name


def test_tokens_spell_the_sentence(sample: Arrays, metadata: dict[str, Any]) -> None:
    tokens = sample["tokens"].tolist()
    assert (tokens[0], tokens[-1]) == ("[CLS]", "[SEP]")
    spelled = " ".join(tokens[1:-1]).replace(" ##", "").replace(" .", ".")
    assert spelled == metadata["sentence"].lower()


def test_rows_of_weights_are_distributions(sample: Arrays) -> None:
    weights = sample["weights"].astype(np.float64)
    assert (weights >= 0).all()
    np.testing.assert_allclose(weights.sum(axis=-1), 1, rtol=0, atol=1e-5)


def test_reference_weights_equal_the_formula(sample: Arrays) -> None:
    q, k = (sample[name].astype(np.float64) for name in "qk")
    powers = np.exp(q @ k.transpose(0, 2, 1) / np.sqrt(D))
    expected = powers / powers.sum(axis=-1, keepdims=True)
    np.testing.assert_allclose(sample["weights"], expected, rtol=0, atol=1e-5)


def test_metadata_says_what_and_whence(metadata: dict[str, Any]) -> None:
    assert list(metadata) == [
        *("model", "layer", "layers", "layer_counted_from", "sentence", "sentence_source", "heads"),
        *("weights_licence", "weights_licence_requires", "package", "package_version", "weights_file"),
        *("weights_sha256", "reference", "versions", "made_by"),
    ]
    assert metadata["weights_licence"] == "Apache-2.0"
    assert metadata["weights_sha256"].startswith("53aa5117")
    assert set(metadata["versions"]) == {"onnx", "onnxruntime"}


def test_the_licences_are_there() -> None:
    licence = (DATA / "LICENSE-APACHE-2.0.txt").read_text(encoding="utf-8")
    assert "Version 2.0, January 2004" in licence
    assert "END OF TERMS AND CONDITIONS" in licence
    assert "all-MiniLM-L6-v2" in (DATA / "LICENSES.md").read_text(encoding="utf-8")


def test_heads_do_what_the_metadata_says(sample: Arrays, metadata: dict[str, Any]) -> None:
    tokens, weights = sample["tokens"].tolist(), sample["weights"]
    alice, she, her = (tokens.index(word) for word in ("alice", "she", "her"))
    previous, following = (np.diagonal(weights, offset, 1, 2).mean(axis=-1) for offset in (-1, 1))
    first = weights[:, 1:, 0].mean(axis=-1)
    assert set(metadata["heads"]) == {"1", "3", "8", "9", "10"}
    assert weights[1, her, she] > 0.5
    assert weights[3, she, alice] > 0.8
    assert weights[3, her, alice] > 0.6
    assert following.argmax() == 8
    assert following[8] > 0.6
    assert previous.argmax() == 9
    assert previous[9] + first[9] > 0.9
    assert first.argmax() == 10
    assert first[10] > 0.75
