"""Serve a model of twelve layers of attention: a prompt in chunks, then token by token; and one run over all of it.

    python examples/deep_model.py

The weights are random: what it shows is that the numbers are those of the whole run, how long a step takes and how
much memory the caches do.
"""

import time
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

import headwise as hw
from headwise import transforms
from headwise.core.shapes import Array

N_LAYERS, D_MODEL, N_HEADS, N_KV_HEADS, D_HEAD = 12, 768, 12, 4, 64
PROMPT, CHUNK, STEPS = 512, 128, 200


def random_layers(seed: int = 0) -> list[hw.MultiHeadAttention]:
    """Layers of float32 weights, with rope."""
    rng, wide, narrow = np.random.default_rng(seed), N_HEADS * D_HEAD, N_KV_HEADS * D_HEAD
    layers = []
    for _ in range(N_LAYERS):
        shapes = (D_MODEL, wide), (D_MODEL, narrow), (D_MODEL, narrow), (wide, D_MODEL)
        w_q, w_k, w_v, w_o = (rng.standard_normal(shape, np.float32) / np.float32(shape[0] ** 0.5) for shape in shapes)
        rotary = transforms.rotary(style="half")
        layers.append(hw.MultiHeadAttention.from_arrays(w_q, w_k, w_v, w_o, N_HEADS, transform=rotary))
    return layers


def run(layers: Sequence[hw.MultiHeadAttention], x: Array, caches: Sequence[hw.KVCache] | None = None) -> Array:
    """Return what tokens x (B, n, d_model) become: each layer adds to them, with a norm before it."""
    for i, layer in enumerate(layers):
        normed = x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + np.float32(1e-6))
        x = x + layer(normed, causal=True, cache=None if caches is None else caches[i])
    return x


def serve(layers: Sequence[hw.MultiHeadAttention], x: Array) -> tuple[Array, list[float], list[hw.KVCache]]:
    """Return the same by caches, the seconds of each chunk of the prompt and each step, and the caches."""
    caches = [hw.KVCache(len(x), N_KV_HEADS, x.shape[1], D_HEAD) for _ in layers]
    outs, seconds = [], []
    for start, stop in pairwise([*range(0, PROMPT, CHUNK), *range(PROMPT, x.shape[1] + 1)]):
        began = time.perf_counter()
        outs.append(run(layers, x[:, start:stop], caches))
        seconds.append(time.perf_counter() - began)
    return np.concatenate(outs, axis=1), seconds, caches


def main() -> None:
    layers = random_layers()
    x = np.random.default_rng(1).standard_normal((1, PROMPT + STEPS, D_MODEL), np.float32)
    out, seconds, caches = serve(layers, x)
    whole, prompt, steps = run(layers, x), seconds[:-STEPS], seconds[-STEPS:]
    n_bytes = sum(cache.nbytes for cache in caches)
    print(f"prompt of {PROMPT} tokens in chunks of {CHUNK}: {1e3 * sum(prompt):.0f} ms")
    print(f"{STEPS} steps: {1e3 * np.median(steps):.2f} ms each (median)")
    print(f"caches: {n_bytes / 2**20:.1f} MiB, {n_bytes / x.shape[1] / 2**10:.0f} KiB a token")
    print(f"furthest from one run over all: {np.abs(out - whole).max():.1e} of {np.abs(whole).max():.1f}")


if __name__ == "__main__":
    main()
