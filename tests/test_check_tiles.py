"""Kernels that take their keys in tiles: right ones pass, and what is classically wrong with them is named."""

import numpy as np
import pytest
from solved import solution

from headwise.check import grade
from headwise.check.report import FAILED
from headwise.testing import assert_attention

SIZES = (1, 8, 16, 32, 64, 128, 256)
OTHERS = (48, 100)  # less usual ones
TOTAL, OUT = "total * shrink + np.sum", "out * shrink + e"
NOW = "np.maximum(largest, np.max(scores, axis=-1, keepdims=True))"
SLICES = "        k_tile, v_tile = k[..., keys, :], v[..., keys, :]\n"
STEPS = "range(0, k.shape[-2], TILE)"
MASKED = "mask[..., keys], scores"
FILLED = """\
        bare = -k_tile.shape[-2] % TILE
        filled = lambda x: np.concatenate([x, np.zeros((*x.shape[:-2], bare, x.shape[-1]))], axis=-2)
        k_tile, v_tile = filled(k_tile), filled(v_tile)
"""
HIDDEN, OPEN = (
    f"np.concatenate([mask[..., keys], np.{f}((*mask.shape[:-1], bare), bool)], -1)" for f in ("zeros", "ones")
)
TRIANGLE = "np.tril(np.ones((n, n), dtype=bool))"
LOCAL = "np.arange(n)[:, None] % TILE >= np.arange(n) % TILE"
BEGINNING = "largest = np.full(lead + (q.shape[-2], 1), -np.inf)"
ZEROS = "largest = np.zeros(lead + (q.shape[-2], 1))"

NEXT, FINAL = "        largest = now\n", "return out / np.where(total == 0, 1, total)"
DIVIDE = "        out = out / np.where(total == 0, 1, total)\n"
WHOLE = "({n} // TILE * TILE if {n} >= TILE else {n})"
JOINED = "    return np.concatenate(parts, axis=-2)"
ZERO = "    parts = [np.where(np.arange(n_q)[:, None] < {whole}, np.concatenate(parts, axis=-2), 0)]\n"
MISSING = f"{JOINED}[..., : {{whole}}, :]"

RESCALED, DROPPED, PADDED = (
    "earlier tiles not rescaled",
    "last partial tile dropped",
    "padding of the last tile attended",
)
DIVIDED, QUERIES = "out divided by the sum at each tile", "last partial tile of queries dropped"
FORGOTTEN, BLIND, FROM_0 = (
    "offset of the tile forgotten in the mask",
    "NaN from a tile without visible keys",
    "maximum starts at 0",
)

WRONG = {  # how it is made -> its name, the smallest tile that shows it, the lines that are changed
    "neither": (RESCALED, 1, [(TOTAL, "total + np.sum"), (OUT, "out + e")]),
    "sum alone": (RESCALED, 1, [(OUT, "out + e")]),
    "out alone": (RESCALED, 1, [(TOTAL, "total + np.sum")]),
    "each by its own maximum": (
        RESCALED,
        1,
        [(NOW, "np.max(scores, axis=-1, keepdims=True)"), (TOTAL, "total + np.sum"), (OUT, "out + e")],
    ),
    "divided at each tile": (DIVIDED, 8, [(NEXT, f"{NEXT}{DIVIDE}"), (FINAL, "return out")]),
    "divided at each tile and again": (DIVIDED, 8, [(NEXT, f"{NEXT}{DIVIDE}")]),
    "whole tiles alone, or one": (DROPPED, 8, [(STEPS, f"range(0, {WHOLE.format(n='k.shape[-2]')}, TILE)")]),
    "whole tiles of queries alone, 0": (QUERIES, 8, [(JOINED, f"{ZERO.format(whole='n_q // TILE * TILE')}{JOINED}")]),
    "whole tiles of queries alone, or one, 0": (
        QUERIES,
        8,
        [(JOINED, f"{ZERO.format(whole=WHOLE.format(n='n_q'))}{JOINED}")],
    ),
    "whole tiles of queries alone, missing": (QUERIES, 8, [(JOINED, MISSING.format(whole="n_q // TILE * TILE"))]),
    "whole tiles of queries alone, or one, missing": (
        QUERIES,
        8,
        [(JOINED, MISSING.format(whole=WHOLE.format(n="n_q")))],
    ),
    "whole tiles alone": (DROPPED, 8, [(STEPS, "range(0, k.shape[-2] // TILE * TILE, TILE)")]),
    "padding, hidden by a mask": (PADDED, 8, [(SLICES, SLICES + FILLED), (MASKED, f"{HIDDEN}, scores")]),
    "padding, open in a mask": (PADDED, 8, [(SLICES, SLICES + FILLED), (MASKED, f"{OPEN}, scores")]),
    "keys of the first tile": (FORGOTTEN, 1, [(MASKED, "mask[..., : k_tile.shape[-2]], scores")]),
    "queries of the first tile": (
        FORGOTTEN,
        1,
        [("else mask[..., rows, :]", "else mask[..., : min(TILE, n_q - first), :]")],
    ),
    "NaN": (BLIND, 1, [("np.where(np.isneginf(now), 0, now)", "now")]),
    "0": (FROM_0, 1, [(BEGINNING, ZEROS), ("np.where(total == 0, 1, total)", "total")]),
    "0, guarded": (FROM_0, 1, [(BEGINNING, ZEROS)]),
}
ROWS = [(how, size) for how, (name, *_) in WRONG.items() for size in OTHERS if name != FROM_0]
ROWS += [(how, size) for how, (_, least, _) in WRONG.items() for size in (2, 64, 256) if size >= least]


def kernel(size, *changes):
    return solution("tiled", ("TILE = 64", f"TILE = {size}"), *changes)


def named(report):
    return {
        verdict.check: {m.name for m in verdict.mistakes} for verdict in report.verdicts if verdict.status == FAILED
    }


@pytest.mark.parametrize("size", SIZES)
def test_a_right_kernel_passes_whatever_its_tile(size):
    report = grade(kernel(size))
    assert report.passed, str(report)


@pytest.mark.parametrize(("how", "size"), ROWS)
def test_what_is_wrong_with_a_kernel_is_named_whatever_its_tile(how, size):
    name, _, changes = WRONG[how]
    found = named(grade(kernel(size, *changes)["scaled_dot_product_attention"]))
    assert found
    assert set().union(*found.values()) == {name}, found
    assert all(found.values()), found


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("size", [64, 256])
def test_a_missing_rescale_fails_assert_attention_by_name(size, seed):
    fn = kernel(size, *WRONG["neither"][2])["scaled_dot_product_attention"]
    with pytest.raises(AssertionError, match=r"^1 of \d+ checks failed, known mistakes: earlier tiles not rescaled\n"):
        assert_attention(fn, seed=seed)


@pytest.mark.parametrize("exercise", ["multi_head", "layer"])
def test_a_missing_rescale_fails_heads_and_layers_by_name(exercise):
    report = grade(kernel(64, *WRONG["neither"][2]), exercise)
    assert set().union(*named(report).values()) == {RESCALED}


@pytest.mark.parametrize("size", SIZES[1:])  # of one key each: what is left out is right, what is not is no mask
@pytest.mark.parametrize("skips", [False, True])
def test_a_triangle_in_each_tile_is_named(size, skips):
    """Every tile is masked as if it lay on the diagonal; those above it may be left out."""
    below = " & (np.arange(n)[:, None] // TILE >= np.arange(n) // TILE)" * skips
    report = grade(kernel(size, (TRIANGLE, f"({LOCAL}){below}")), "multi_head")
    assert set().union(*named(report).values()) == {FORGOTTEN}


def test_queries_beyond_a_tile_of_256_are_looked_at():
    """A kernel that leaves what comes after its first tile of queries 0 gives what one does that drops the last."""
    space = kernel(256)
    right = space["scaled_dot_product_attention"]

    def short(q, k, v, mask=None):
        out = np.array(right(q, k, v, mask))
        out[256:] = 0
        return out

    report = grade(short, "single_sequence")
    assert named(report) == {"many_keys": {QUERIES}, "many_keys_masked": {QUERIES}}
