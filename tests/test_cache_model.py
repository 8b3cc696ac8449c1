"""A cache with a window beside lists of numbers, on random walks: what it refuses, what it shows, where it goes on."""

import numpy as np
import pytest

import headwise as hw


class Model:
    """For each item the numbers of all its rows, padding first, and how many of them have left the slots."""

    def __init__(self, batch, capacity, window):
        self.capacity, self.window, self.batch = capacity, window, batch
        self.begin([0] * batch)

    def begin(self, padding):
        self.padding = list(padding)
        self.rows, self.gone = [[] for _ in padding], [0] * len(padding)

    def tokens(self):
        return [max(len(rows) - padding, 0) for rows, padding in zip(self.rows, self.padding, strict=True)]

    def slots(self):
        return max(len(rows) - gone for rows, gone in zip(self.rows, self.gone, strict=True))

    def empty(self):
        return not self.slots() and not any(self.tokens())

    def append(self, numbers, own):
        n = numbers.shape[1]
        if self.slots() + n > self.capacity:
            self.gone = [max(gone, len(rows) - self.window) for rows, gone in zip(self.rows, self.gone, strict=True)]
        for b, rows in enumerate(self.rows):
            rows.extend(numbers[b, : own[b]].tolist())

    def seen(self, b, row):
        """The numbers that the row sees, by its place among all rows of an item."""
        return self.rows[b][max(row - self.window, self.padding[b]) : row + 1]

    def least(self):
        """The fewest tokens, besides none, that may be kept of each item: 0 where nothing is missing."""
        missing = [max(gone - padding, 0) for gone, padding in zip(self.gone, self.padding, strict=True)]
        return [first + self.window if first else 0 for first in missing]

    def may_keep(self, kept):
        for b, n in enumerate(kept):
            end = self.padding[b] + n
            if any(row < self.gone[b] for row in range(end - min(self.window, n), end)):
                return False
        return True

    def truncate(self, kept):
        self.rows = [rows[: p + n] for rows, p, n in zip(self.rows, self.padding, kept, strict=True)]
        self.gone = [min(gone, len(rows)) for rows, gone in zip(self.rows, self.gone, strict=True)]

    def reorder(self, index):
        self.rows, self.gone, self.padding = (
            [list(x[b]) if isinstance(x[b], list) else x[b] for b in index]
            for x in (self.rows, self.gone, self.padding)
        )


class Walk:
    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)
        batch, window, spare = self.rng.integers([1, 0, 1], [4, 4, 5]).tolist()
        self.model, self.longest, self.given = Model(batch, window + spare, window), spare, 0
        self.cache = hw.KVCache(batch, 1, window + spare, 1, dtype=float, window=window)

    def step(self):
        (self.append, self.append, self.append, self.truncate, self.reorder, self.reset, self.pad)[
            self.rng.choice(7, p=[0.2, 0.2, 0.2, 0.2, 0.08, 0.04, 0.08])
        ]()
        model, cache = self.model, self.cache
        assert cache.lengths.tolist() == model.tokens()
        assert len(cache) == model.slots()
        ends = [len(rows) - padding for rows, padding in zip(model.rows, model.padding, strict=True)]
        assert cache.next_positions(1).ravel().tolist() == np.maximum(ends, 0).tolist()

    def new(self):
        """Numbers of new rows (B, n), and how many of them are each item's own."""
        n = int(self.rng.integers(1, self.longest + 1))
        numbers = 1000.0 * np.arange(self.model.batch)[:, None] + self.given + np.arange(n)
        self.given += n
        own = self.rng.integers(0, n + 1, self.model.batch) if self.rng.random() < 0.4 else np.full(self.model.batch, n)
        return numbers, own

    def append(self, **options):
        numbers, own = self.new()
        n, starts = numbers.shape[1], [len(rows) for rows in self.model.rows]
        self.cache.append(numbers[:, None, :, None], -numbers[:, None, :, None], lengths=own, **options)
        self.model.append(numbers, own)
        shown = self.cache.mask(n).dense((self.model.batch, 1, n, len(self.cache)))[:, 0]
        for b, start in enumerate(starts):
            for row in range(own[b]):
                wanted = self.model.seen(b, start + row)
                assert self.cache.k[b, 0, shown[b, row], 0].tolist() == wanted
                assert (-self.cache.v[b, 0, shown[b, row], 0]).tolist() == wanted

    def truncate(self):
        have = np.array(self.model.tokens())
        near = self.rng.random() < 0.4
        kept = np.maximum(have - self.rng.integers(0, 3, len(have)), 0) if near else self.rng.integers(0, have + 1)
        if self.model.may_keep(kept):
            self.cache.truncate(kept)
            self.model.truncate(kept)
            return
        least = "[" + ", ".join(map(str, self.model.least())) + "]"
        with pytest.raises(ValueError, match="lengths: expected 0 or at least") as caught:
            self.cache.truncate(kept)
        assert f"0 or at least {least}, as the window dropped older keys" in str(caught.value)

    def reorder(self):
        index = self.rng.integers(0, self.model.batch, self.model.batch)
        self.cache.reorder(index)
        self.model.reorder(index)

    def reset(self):
        padding = self.rng.integers(0, 3, self.model.batch)
        self.cache.reset(padding=padding)
        self.model.begin(padding.tolist())

    def pad(self):
        """Padding for what may not be empty any more."""
        padding = self.rng.integers(0, 3, self.model.batch)
        if self.model.empty():
            assert self.cache.next_positions(1, padding=padding).tolist() == [[0]] * self.model.batch
            self.model.begin(padding.tolist())
            self.append(padding=padding)
            return
        row = np.zeros((self.model.batch, 1, 1, 1))
        for call in (
            lambda: self.cache.next_positions(1, padding=padding),
            lambda: self.cache.append(row, row, padding=padding),
        ):
            with pytest.raises(ValueError, match="padding: expected None where the cache is not empty"):
                call()


@pytest.mark.parametrize("seed", range(200))
def test_a_walk_is_that_of_the_lists(seed):
    walk = Walk(seed)
    for _ in range(30):
        walk.step()


def test_without_a_window_of_keys_one_may_go_back_anywhere():
    for kept in range(7):
        cache, row = hw.KVCache(1, 1, 2, 1, window=0), np.ones((1, 1, 1, 1))
        for _ in range(6):
            cache.append(row, row)
        cache.truncate(kept)
        assert cache.lengths.tolist() == [kept]
        assert cache.next_positions(1).tolist() == [[kept]]
        if kept:
            with pytest.raises(ValueError, match="padding: expected None where the cache is not empty, got list"):
                cache.append(row, row, padding=[1])
        cache.append(row, 5 * row)
        assert cache.v[0, 0, cache.mask(1).dense((1, 1, 1, len(cache)))[0, 0, 0], 0].tolist() == [5]


def test_a_window_goes_back_to_nothing_at_any_time():
    cache, row = hw.KVCache(2, 1, 4, 1, window=2), np.ones((2, 1, 1, 1))
    for _ in range(6):
        cache.append(row, row)
    with pytest.raises(
        ValueError, match=r"expected 0 or at least \[4, 4\], as the window dropped older keys, got \[0, 3\]"
    ):
        cache.truncate([0, 3])
    cache.truncate([0, 5])
    assert cache.lengths.tolist() == [0, 5]
    assert cache.next_positions(1).tolist() == [[0], [5]]
