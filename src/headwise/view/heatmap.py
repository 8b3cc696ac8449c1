"""Weights of attention as a picture in a PNG file, by matplotlib."""

from __future__ import annotations

import io
from typing import Any

import numpy as np

from headwise.core.shapes import Array
from headwise.files import PathLike, check_target, write_bytes

INSTALL = 'pip install "headwise[plot]"'
_PANEL, _DPI = 4.0, 150  # inches that a panel is wide, dots to an inch
_COLOURS = "magma"  # dark is 0; as light grows it tells the same to every eye, and in print


def check_picture(path: PathLike, *, force: bool = False) -> None:
    """Raise what `heatmap` would for this file, before the work whose result it is to show.

    Raises
    ------
    FileError
        The file cannot be written.
    ModuleNotFoundError
        matplotlib is not installed.
    """
    check_target(path, force=force, ending=".png")
    _figure_class()


def _figure_class() -> Any:
    """matplotlib's Figure; pyplot, which asks for a display and remembers every figure, is not needed."""
    try:
        from matplotlib.figure import Figure  # type: ignore[import-not-found,unused-ignore]
    except ModuleNotFoundError as error:
        text = f"heatmap: expected matplotlib, got no module '{error.name}'; {INSTALL}"
        raise ModuleNotFoundError(text, name=error.name) from error
    return Figure


def heatmap(weights: Array, path: PathLike, *titles: str, force: bool = False) -> None:
    """Draw what each query gives to each key, a panel for each head.

    Parameters
    ----------
    weights : ndarray, shape (n_q, n_k) or (H, n_q, n_k)
        Numbers from 0 to 1; NaN is left white.
    path : str or path-like
        The .png file, written whole or not at all.
    *titles : str
        One for each head; or none.
    force : bool
        Replace an existing file.

    Raises
    ------
    ValueError
        If weights are not of these shapes, or there are as many titles as neither heads nor none.
    FileError
        The file exists, or cannot be written.
    ModuleNotFoundError
        matplotlib is not installed; the text has the command that installs it.

    Examples
    --------
    >>> heatmap(np.eye(3), "weights.jpg")
    Traceback (most recent call last):
    headwise.files.FileError: weights.jpg: expected a name that ends in .png, got another; name the output so
    """
    heads = weights[None] if weights.ndim == 2 else weights
    if heads.ndim != 3 or heads.size == 0:
        raise ValueError(f"heatmap: weights: expected (n_q, n_k) or (H, n_q, n_k), none of them 0, got {weights.shape}")
    if titles and len(titles) != len(heads):
        raise ValueError(f"heatmap: titles: expected one for each of {len(heads)} heads, or none, got {len(titles)}")
    check_picture(path, force=force)
    write_bytes(path, _png(heads, titles or ("",) * len(heads)), ending=".png", force=force)


def _png(heads: Array, titles: tuple[str, ...]) -> bytes:
    figure = _figure_class()(figsize=(_PANEL * len(heads) + 0.8, _PANEL + 0.6), dpi=_DPI, layout="constrained")
    panels = np.ravel(figure.subplots(1, len(heads)))
    for panel, weights, title in zip(panels, heads, titles, strict=True):
        image = panel.imshow(weights, vmin=0, vmax=1, cmap=_COLOURS, interpolation="nearest", aspect="auto")
        panel.set(title=title, xlabel="key", ylabel="query")
    figure.colorbar(image, ax=list(panels), label="weight")
    file = io.BytesIO()
    figure.savefig(
        file, format="png", metadata={"Software": None}
    )  # else its version: other bytes for the same picture
    return file.getvalue()
