"""view.heatmap: the picture shows the weights, and is written whole or not at all."""

import io
import os
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headwise.core.shapes import Array
from headwise.files import FileError
from headwise.view.heatmap import check_picture, heatmap


@pytest.fixture
def image() -> Any:
    """matplotlib's own reader of images; a test that asks for it needs matplotlib."""
    return pytest.importorskip("matplotlib.image", reason='matplotlib is not installed: pip install "headwise[plot]"')


def brightness(image: Any, path: Path) -> Array:
    """(height, width), from 0 to 1."""
    pixels: Array = image.imread(io.BytesIO(path.read_bytes()))[..., :3].mean(axis=-1)
    return pixels


def drawn(image: Any, folder: Path, weights: Array, *titles: str) -> Array:
    heatmap(weights, folder / "drawn.png", *titles, force=True)
    return brightness(image, folder / "drawn.png")


def panel(image: Any, folder: Path, shape: tuple[int, ...]) -> tuple[slice, slice]:
    """Where the picture of weights of this shape has its cells: what is light for ones and dark for zeros."""
    differ = drawn(image, folder, np.ones(shape)) - drawn(image, folder, np.zeros(shape)) > 0.8
    rows, cols = (np.flatnonzero(differ.any(axis=axis)) for axis in (1, 0))
    return slice(rows[0], rows[-1] + 1), slice(cols[0], cols[-1] + 1)


def cells(image: Any, folder: Path, weights: Array) -> Array:
    """The brightness of the middle of each cell of a picture, (n_q, n_k)."""
    pixels = drawn(image, folder, weights)[panel(image, folder, weights.shape)]
    rows, cols = ((np.arange(n) * 2 + 1) * size // (2 * n) for n, size in zip(weights.shape, pixels.shape, strict=True))
    return pixels[np.ix_(rows, cols)]


def test_rows_are_queries_from_the_top_and_columns_keys(image: Any, tmp_path: Path) -> None:
    weights = np.zeros((3, 5))
    weights[0, 3], weights[2, 1], weights[1, 4] = 1, 0.9, 0.5
    found = cells(image, tmp_path, weights)
    assert (found[0, 3], found[2, 1]) > (0.8, 0.7)
    assert 0.3 < found[1, 4] < 0.7
    assert (found[weights == 0] < 0.05).all()
    assert (tmp_path / "drawn.png").read_bytes().startswith(b"\x89PNG\r\n")


def test_weights_are_drawn_from_0_to_1_whatever_there_is(image: Any, tmp_path: Path) -> None:
    """A head that gives little to everything does not look like one that gives all to something."""
    faint, strong = (cells(image, tmp_path, np.full((3, 3), weight)) for weight in (0.1, 0.9))
    assert faint.max() < 0.2
    assert strong.min() > 0.7


def test_several_heads_stand_side_by_side(image: Any, tmp_path: Path) -> None:
    one, two = (drawn(image, tmp_path, np.zeros(shape)) for shape in ((5, 5), (2, 5, 5)))
    assert two.shape[0] == one.shape[0]
    assert two.shape[1] > 1.5 * one.shape[1]
    first = drawn(image, tmp_path, np.stack([np.ones((5, 5)), np.zeros((5, 5))]))
    _, columns = np.nonzero(first - two > 0.8)
    assert columns.max() < two.shape[1] / 2


def test_titles_stand_above_their_heads(image: Any, tmp_path: Path) -> None:
    for titles, halves in (((), []), (("first", ""), [0]), (("", "second"), [1]), (("first", "second"), [0, 1])):
        dark = drawn(image, tmp_path, np.zeros((2, 5, 5)), *titles)[:, :1200] < 0.5  # without the bar of colours
        above = dark[: int(np.flatnonzero(dark.mean(axis=1) > 0.5)[0]) - 2]
        assert np.flatnonzero(above.reshape(len(above), 2, -1).any(axis=(0, 2))).tolist() == halves


def test_equal_weights_are_equal_bytes(image: Any, tmp_path: Path) -> None:
    for name in ("a.png", "b.PNG"):
        heatmap(np.eye(3, dtype=np.float32), tmp_path / name, "title")
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.PNG").read_bytes()


def test_nan_is_white(image: Any, tmp_path: Path) -> None:
    found = cells(image, tmp_path, np.array([[0.0, 1.0], [0.0, np.nan]]))
    assert found[1, 1] == 1
    assert found[0, 1] < 1


def test_no_display_is_asked_for(image: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MPLBACKEND", "TkAgg")
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    heatmap(np.eye(2), tmp_path / "out.png")
    assert (tmp_path / "out.png").exists()


@pytest.mark.parametrize("shape", [(3,), (2, 2, 2, 2), (0, 3), (0, 2, 2)])
def test_weights_of_another_shape(tmp_path: Path, shape: tuple[int, ...]) -> None:
    says = r"^heatmap: weights: expected \(n_q, n_k\) or \(H, n_q, n_k\), none of them 0, got " + re.escape(str(shape))
    with pytest.raises(ValueError, match=says):
        heatmap(np.zeros(shape), tmp_path / "out.png")


def test_titles_for_some_heads_only(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^heatmap: titles: expected one for each of 3 heads, or none, got 2$"):
        heatmap(np.zeros((3, 2, 2)), tmp_path / "out.png", "a", "b")


def test_an_existing_file_is_kept_unless_forced(image: Any, tmp_path: Path) -> None:
    path = tmp_path / "old.png"
    path.write_bytes(b"precious")
    for refuses in (check_picture, lambda path: heatmap(np.eye(2), path)):
        with pytest.raises(FileError, match=r"old\.png: expected a new name, got one that exists"):
            refuses(path)
    assert path.read_bytes() == b"precious"
    check_picture(path, force=True)
    heatmap(np.eye(2), path, force=True)
    assert path.read_bytes() != b"precious"
    assert [entry.name for entry in tmp_path.iterdir()] == ["old.png"]


@pytest.mark.parametrize("name", ["out.jpg", "out", "png"])
def test_another_ending(tmp_path: Path, name: str) -> None:
    with pytest.raises(FileError, match=rf"{name}: expected a name that ends in \.png, got another"):
        heatmap(np.eye(2), tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_a_fault_while_writing_leaves_nothing(image: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> Any:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(FileError, match=r"out\.png: expected to write \d+ bytes, got 'No space left on device'"):
        heatmap(np.eye(2), tmp_path / "out.png")
    assert list(tmp_path.iterdir()) == []


def test_without_matplotlib_the_error_has_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("matplotlib", "matplotlib.figure"):
        monkeypatch.setitem(sys.modules, name, None)
    says = r"^heatmap: expected matplotlib, got no module 'matplotlib[.\w]*'; pip install \"headwise\[plot\]\"$"
    for call in (check_picture, lambda path: heatmap(np.eye(2), path)):
        with pytest.raises(ModuleNotFoundError, match=says):
            call(tmp_path / "out.png")
    assert list(tmp_path.iterdir()) == []
