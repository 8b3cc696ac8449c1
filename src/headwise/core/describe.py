"""Named intermediates as text: name, letters, shape, what each is, and its first numbers."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from headwise.core.shapes import Array, words


class Line(NamedTuple):
    """One intermediate to be shown."""

    name: str
    letters: str  # as "(B, H, n_q, n_k)"
    array: Array
    what: str  # the formula; "as ..." where the step was not asked for
    own_axes: int = 2  # how many of the last axes are shown; of those before, the first index

    @property
    def skipped(self) -> bool:
        """Whether it is another array over again, which need not be shown twice."""
        return self.what.startswith("as ")


def describe(lines: list[Line]) -> str:
    """The lines as text, at most some 90 characters wide: what each is, and below it the numbers.

    Examples
    --------
    >>> print(describe([Line("x", "(n, d)", np.eye(2), "tokens"), Line("y", "(n, d)", np.eye(2), "as x: no change")]))
    x  (n, d) = (2, 2)  tokens
         [[1.000, 0.000],
          [0.000, 1.000]]
    y  (n, d) = (2, 2)  as x: no change
    """
    shapes = [f"{line.letters} = {words(line.array.shape)}" for line in lines]
    name_width, shape_width = max(len(line.name) for line in lines), max(map(len, shapes))
    text = []
    for line, shape in zip(lines, shapes, strict=True):
        text.append(f"{line.name:{name_width}}  {shape:{shape_width}}  {line.what}")
        text += [] if line.skipped else [f"{'':{name_width + 4}}{row}" for row in _numbers(line)]
    if any(line.array.ndim > line.own_axes for line in lines):
        text.append("numbers: of the first item and head")
    return "\n".join(text)


def _numbers(line: Line) -> list[str]:
    """The first item and head, its middle left out where it is large."""
    array = line.array
    if array.size == 0:
        return ["(empty)"]
    first: Any = array[(0,) * (array.ndim - line.own_axes)].astype(np.float64)
    largest = np.abs(first[np.isfinite(first)]).max(initial=0.0)
    calm = largest == 0 or 1e-2 <= largest < 1e5  # else in powers of ten
    options: Any = {"floatmode": "fixed"} if calm else {"formatter": {"float_kind": "{:.2e}".format}}
    with np.printoptions(formatter=None, sign="-", linewidth=88, nanstr="nan", infstr="inf", legacy=False):
        text = np.array2string(
            first, precision=3, suppress_small=calm, separator=", ", threshold=36, edgeitems=2, **options
        )
    return [row for row in text.split("\n") if row]
