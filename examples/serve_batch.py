"""Serve a batch of unequal prompts: chunks, steps, a roll back, beams, a window; beside each item alone.

python examples/serve_batch.py    # prints the largest differences; docs/serving.md explains
"""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

import headwise as hw
from headwise.core.shapes import Array

LENGTHS, CHUNK, STEPS, WINDOW, BEAMS = np.array([11, 4, 7]), 4, 5, 3, np.array([2, 0, 0])
PADDING = LENGTHS.max() - LENGTHS
D_MODEL, N_HEADS, N_KV_HEADS, D_HEAD, ROPE = 32, 4, 2, 8, hw.transforms.rotary(style="half")
LAYERS = [hw.MultiHeadAttention(D_MODEL, N_HEADS, n_kv_heads=N_KV_HEADS, transform=ROPE, seed=i) for i in range(2)]


def run(x: Array, caches: Sequence[hw.KVCache | None] = (None, None), window: int | None = None) -> Array:
    """Return what tokens x (B, n, d_model) become; ``window`` is for runs without caches, which have their own."""
    for layer, cache in zip(LAYERS, caches, strict=True):
        x = x + layer(x, causal=True, cache=cache, mask=None if window is None else hw.masks.window(window, 0))
    return x


def furthest(out: Array, sequences: Sequence[Array], window: int | None = None) -> str:
    """Tell how far out (B, n, d_model) is from the last rows of each sequence (tokens, d_model) alone."""
    pairs = [(ours, run(x[None], window=window)[0]) for ours, x in zip(out, sequences, strict=True)]
    return f"{max(np.abs(ours[-len(alone) :] - alone[-len(ours) :]).max() for ours, alone in pairs):.1e}"


def serve(x: Array, caches: Sequence[hw.KVCache]) -> Array:
    """Return what tokens x (B, n, d_model), padded on the left, become: prompts in chunks, then step by step."""
    for cache in caches:
        cache.reset(padding=PADDING)
    cuts = [*range(0, LENGTHS.max(), CHUNK), *range(LENGTHS.max(), x.shape[1] + 1)]
    return np.concatenate([run(x[:, start:stop], caches) for start, stop in pairwise(cuts)], axis=1)


def main() -> None:
    rng, n = np.random.default_rng(0), LENGTHS.max() + STEPS
    x, others, last = (rng.standard_normal((3, m, D_MODEL)) for m in (n, 2, 1))
    alone = [tokens[padding:] for tokens, padding in zip(x, PADDING, strict=True)]
    caches = [hw.KVCache(3, N_KV_HEADS, n + 1, D_HEAD, dtype=np.float64) for _ in LAYERS]
    print(f"chunks and steps  {furthest(serve(x, caches), alone)}")
    for cache in caches:
        cache.truncate(cache.lengths - 2)
    changed = [np.concatenate([tokens[:-2], other]) for tokens, other in zip(alone, others, strict=True)]
    print(f"two tokens anew   {furthest(run(others, caches), changed)}")
    for cache in caches:
        cache.reorder(BEAMS)
    beams = [np.concatenate([changed[i], token]) for i, token in zip(BEAMS, last, strict=True)]
    print(f"other beams       {furthest(run(last, caches), beams)}")
    slides = [hw.KVCache(3, N_KV_HEADS, WINDOW + CHUNK, D_HEAD, dtype=np.float64, window=WINDOW) for _ in LAYERS]
    print(f"in a window       {furthest(serve(x, slides), alone, WINDOW)}")


if __name__ == "__main__":
    main()
