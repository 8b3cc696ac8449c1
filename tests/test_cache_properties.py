"""Through a cache, token by token, in chunks of any size or whole: the oracle's answer for each item on its own.

A plan is a few drawn choices and a seed. Sequences are as long as they like; items go their own ways through one cache.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from closeness import Expected, assert_within, bounds, expected
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import Index
from strategies import Case, Recipe

import headwise as hw
from examples import fewer


@dataclass(frozen=True)
class Plan:
    """What was drawn."""

    lengths: tuple[int, ...]  # tokens of each sequence
    padding: tuple[int, ...]  # of each item, at the left
    n_groups: int = 1
    shared: int = 2  # query heads for each key head
    d_k: int = 4
    d_v: int = 3
    dtype: str = "float64"
    window: int | None = None
    rope: tuple[str, int] | None = None  # style and dims
    alibi: bool = False
    sinks: bool = False
    uneven: bool = False  # whether items take as many rows of a chunk as they like
    going_back: bool = False  # guesses that are taken back, rows that come once more, items that change places
    longest: int = 4  # chunk
    spare: int = 0  # slots beyond those that are needed
    seed: int = 0


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    n_items = draw(st.integers(1, 3))
    one = st.integers(1, 8)
    even = draw(st.booleans())
    lengths = (draw(one),) * n_items if even else tuple(draw(one) for _ in range(n_items))
    padded = draw(st.sampled_from(["no", "to one length", "any"]))
    padding = (0,) * n_items
    if padded == "to one length":
        padding = tuple(max(lengths) - n for n in lengths)
    elif padded == "any":
        padding = tuple(draw(st.integers(0, 3)) for _ in range(n_items))
    d_k = draw(st.sampled_from([4, 2, 3, 5]))
    dims = draw(st.sampled_from([d_k // 2 * 2, 2]))
    return Plan(
        lengths,
        padding,
        n_groups=draw(st.sampled_from([2, 1, 3])),
        shared=draw(st.sampled_from([2, 1, 3])),
        d_k=d_k,
        d_v=draw(st.sampled_from([3, 1, 2])),
        dtype=draw(st.sampled_from(["float64", "float32"])),
        window=draw(st.none() | st.integers(0, 5)),
        rope=draw(st.none() | st.tuples(st.sampled_from(["half", "interleaved"]), st.just(dims))),
        alibi=draw(st.booleans()),
        sinks=draw(st.booleans()),
        uneven=draw(st.booleans()),
        going_back=draw(st.booleans()),
        longest=draw(st.integers(1, 5)),
        spare=draw(st.sampled_from([0, 1, 2, 5])),
        seed=draw(st.integers(0, 2**32 - 1)),
    )


class Sequence:
    """Queries, keys and values of one sequence, and what the oracle says of them without any cache."""

    def __init__(self, plan: Plan, length: int, sinks: Any, slopes: Any, rng: np.random.Generator) -> None:
        n_heads = plan.n_groups * plan.shared
        sizes = (n_heads, plan.d_k), (plan.n_groups, plan.d_k), (plan.n_groups, plan.d_v)
        self.q, self.k, self.v = (rng.standard_normal((1, h, length, d)).astype(plan.dtype) for h, d in sizes)
        q, k = (turned(plan, x, np.arange(length)) for x in (self.q, self.k))
        leads = [x.shape[:2] for x in (q, k, self.v)]
        recipe = Recipe(*leads, n_q=length, n_k=length, d_k=plan.d_k, d_v=plan.d_v, dtypes=(plan.dtype,) * 3)

        def sees(at: Index, i: int, j: int) -> bool:
            return j <= i and (plan.window is None or i - j <= plan.window)

        def bias(at: Index, i: int, j: int) -> float:
            return float(-slopes[at[-1]] * abs(i - j))

        options = {} if sinks is None else {"sinks": sinks}
        scores = (1, n_heads, length, length)
        self.case = Case(recipe, q, k, self.v, None, options, scores, sees, bias if plan.alibi else None)
        self.wanted: Expected = expected(self.case)

    def assert_rows(self, out: Any, rows: slice) -> None:
        """Of all heads, out (H, n, d_v)."""
        allowed = bounds(self.case, self.wanted) * self.wanted.reach[..., None]
        assert_within(out, self.wanted.out[0][:, rows], allowed[0][:, rows], self.case.dtype)


def turned(plan: Plan, x: Any, positions: Any) -> Any:
    return x if plan.rope is None else hw.rope(x, positions, style=plan.rope[0], dims=plan.rope[1], base=50.0)


class Walk:
    """Sequences on their way through one cache: which one each item is, and how many of its tokens it has."""

    def __init__(self, plan: Plan, sequences: list[Sequence], sinks: Any, slopes: Any, attend: Any) -> None:
        self.plan, self.sequences, self.sinks, self.slopes, self.attend = plan, sequences, sinks, slopes, attend
        self.rng = np.random.default_rng(plan.seed)
        self.padding = np.array(plan.padding)
        self.who = np.arange(len(sequences))
        self.given = np.zeros(len(sequences), int)  # rows, padding included

    @property
    def total(self) -> Any:
        """Rows of each item in the end."""
        return np.array([self.plan.lengths[s] for s in self.who]) + self.padding

    @property
    def left(self) -> Any:
        return self.total - self.given

    def begin(self, longest: int) -> None:
        window, most = self.plan.window, int(self.total.max())
        if self.plan.going_back:  # guesses need a place, and items that change places their paddings
            most += longest + int(self.padding.max())
        capacity = most if window is None else window + longest
        heads, widths = self.plan.n_groups, (self.plan.d_k, self.plan.d_v)
        self.cache = hw.KVCache(
            len(self.who), heads, capacity + self.plan.spare, *widths, dtype=self.plan.dtype, window=window
        )
        self.cache.reset(padding=self.padding)

    def whole(self) -> None:
        self.begin(int(self.total.max()))
        self.step(int(self.total.max()), self.total)

    def token_by_token(self) -> None:
        self.begin(1)
        while self.left.any():
            self.step(1, np.minimum(self.left, 1))

    def in_chunks(self) -> None:
        longest = self.plan.longest
        self.begin(longest)
        while self.left.any():
            n = int(self.rng.integers(1, longest + 1))
            own = np.minimum(self.left, n)
            if self.plan.uneven:
                own = self.rng.integers(0, own + 1)
            self.step(n, own)
            if self.plan.going_back:
                self.go_back(longest)

    def go_back(self, longest: int) -> None:
        """Guess some rows and take them back; forget a few that were right; change places."""
        tokens = np.maximum(self.given - self.padding, 0)
        if self.rng.random() < 0.5 and (self.given >= self.padding).all():
            self.append(*self.noise(int(self.rng.integers(1, longest + 1))))
            self.cache.truncate(tokens)
        if self.rng.random() < 0.3:
            kept = self.rng.integers(0, tokens + 1)
            if self.plan.window:  # what the next token sees may have left the slots, unless there is nothing to see
                kept = np.where(kept < tokens, 0, tokens)
            self.cache.truncate(kept)
            self.given = np.minimum(self.given, self.padding + kept)
        if self.rng.random() < 0.5:
            index = self.rng.integers(0, len(self.who), len(self.who))
            self.cache.reorder(index)
            self.who, self.given, self.padding = self.who[index], self.given[index], self.padding[index]

    def noise(self, n: int) -> tuple[Any, Any]:
        lead = (len(self.who), self.plan.n_groups, n)
        widths = self.plan.d_k, self.plan.d_v
        k, v = (self.rng.choice([np.nan, np.inf, 7.0], (*lead, d)).astype(self.plan.dtype) for d in widths)
        return k, v

    def append(self, k: Any, v: Any, **lengths: Any) -> None:
        self.cache.append(k, v, **lengths)

    def step(self, n: int, own: Any) -> None:
        """The next n rows of all items, of which each has its own number: into the cache, and their output judged."""
        k, v = self.noise(n)  # what is padding, or beyond an item's own
        q = np.ones((len(self.who), self.plan.n_groups * self.plan.shared, n, self.plan.d_k), self.plan.dtype)
        places: list[tuple[slice, slice]] = []  # of an item's tokens: in the chunk, in its sequence
        for b, s in enumerate(self.who):
            first = int(np.clip(self.padding[b] - self.given[b], 0, own[b]))
            at = int(self.given[b] - self.padding[b] + first)
            places.append((slice(first, int(own[b])), slice(at, at + int(own[b]) - first)))
            here, there = places[b]
            for rows, x in zip((q, k, v), (self.sequences[s].q, self.sequences[s].k, self.sequences[s].v), strict=True):
                rows[b, :, here] = x[0, :, there]
        positions = self.cache.next_positions(n)
        with np.errstate(all="ignore"):  # rows of inf turn too
            q, k = (turned(self.plan, x, positions) for x in (q, k))
        self.append(k, v, **({} if (own == n).all() else {"lengths": own}))
        self.given = self.given + own
        np.testing.assert_array_equal(self.cache.lengths, np.maximum(self.given - self.padding, 0))
        bias = hw.alibi(self.slopes, offset=self.cache.offset(n)) if self.plan.alibi else None
        out = self.attend(q, self.cache.k, self.cache.v, self.cache.mask(n), bias=bias, sinks=self.sinks)
        for b, (here, there) in enumerate(places):
            if here.stop > here.start:
                self.sequences[self.who[b]].assert_rows(out[b, :, here], there)


def by_definition(*args: Any, **options: Any) -> Any:
    return hw.scaled_dot_product_attention(*args, **options)[0]


WAYS: list[Callable[[Walk], None]] = [Walk.whole, Walk.token_by_token, Walk.in_chunks]


@settings(max_examples=fewer(300))
@given(plans())
def test_token_by_token_in_chunks_and_whole_equal_the_oracle(plan: Plan) -> None:
    rng = np.random.default_rng(plan.seed)
    n_heads = plan.n_groups * plan.shared
    sinks = rng.standard_normal(n_heads) if plan.sinks else None
    slopes = hw.alibi_slopes(n_heads)
    sequences = [Sequence(plan, length, sinks, slopes, rng) for length in plan.lengths]
    for attend in (by_definition, hw.attention):
        for way in WAYS:
            way(Walk(plan, sequences, sinks, slopes, attend))
