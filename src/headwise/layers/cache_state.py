"""What a cache notes of its slots: how many rows each item holds, and which positions they have.

Knows no keys and values. A state is never changed: a method of the cache makes the next one and puts it in its place.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from headwise.core.shapes import Array


class State(NamedTuple):
    """What is noted of all items, in arrays (B,) that are never written to, so that copies may share them."""

    padding: Array  # announced left padding, whether or not its rows have come
    held: Array  # slots
    dropped: Array  # rows that left a window's slots
    unstored: Array  # rows given last that were not kept, at the end of their chunk
    rows: int  # how many rows, the last ones, stand side by side in all items, and see all that they may
    n: int  # slots of the fullest item
    level: bool  # whether all items are alike
    hides: bool  # whether slots hold padding

    @classmethod
    def of(cls, padding: Array, held: Array, dropped: Array, unstored: Array, rows: int) -> State:
        """The state with what follows from its first five: it is asked for with every token."""
        n = int(held.max())
        level = int(held.min()) == n and not unstored.any()
        return cls(padding, held, dropped, unstored, rows, n, level, bool((padding > dropped).any()))

    @classmethod
    def empty(cls, padding: Array) -> State:
        none = np.zeros(len(padding), np.int64)
        return cls.of(padding, none, none, none, 0)

    @property
    def next(self) -> Array:
        """The position of each item's next row, (B,): below 0 where padding is still to come."""
        position: Array = self.held + self.dropped - self.padding
        return position

    @property
    def tokens(self) -> Array:
        return np.maximum(self.next, 0)

    def before(self, n_q: int) -> Array:
        """How many slots of each item come before the first of the n_q rows that were given last."""
        before: Array = self.held + self.unstored - n_q
        return before

    def appended(self, n: int, own: Array | None) -> State:
        """After n rows more, of which each item kept its own; None: all."""
        if self.level and own is None:  # in decoding, once for each token
            p, held, dropped, unstored, rows, filled, level, hides = self
            return State(p, held + n, dropped, unstored, rows + n, filled + n, level, hides)
        kept = np.full(len(self.held), n) if own is None else own
        aligned = 0 if self.unstored.any() else self.rows
        return State.of(self.padding, self.held + kept, self.dropped, n - kept, aligned + n)

    def slid(self, gone: Array) -> State:
        """After the first ``gone`` rows of each item left their slots."""
        return State.of(self.padding, self.held - gone, self.dropped + gone, self.unstored, 0)

    def truncated(self, kept: Array, window: int | None) -> State:
        """After all but the first ``kept`` tokens were forgotten."""
        rows = np.minimum(self.held + self.dropped, self.padding + kept)
        dropped = np.minimum(self.dropped, rows)
        held = rows - dropped
        seen = np.where(dropped > self.padding, window or 0, 0)  # slots that the next token needs
        return State.of(self.padding, held, dropped, np.zeros_like(held), int((held - seen).min()))

    def reordered(self, source: Array) -> State:
        padding, held, dropped, unstored = (x[source] for x in (self.padding, self.held, self.dropped, self.unstored))
        return State.of(padding, held, dropped, unstored, self.rows)

    def taken_back(self, before: State) -> State:
        """The state before the last rows came; what a window dropped to make room for them stays dropped."""
        gone = self.dropped - before.dropped
        return before.slid(gone) if gone.any() else before


class Move(NamedTuple):
    """Rows on their way to other slots: copied before the first is written, so that the move can be done once more."""

    k: Array
    v: Array
    to: Any  # the index of their slots
    after: State
