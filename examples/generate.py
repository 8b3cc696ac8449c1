"""Generate with a cache: a small transformer goes on with sequences of which it has seen the first half.

    python examples/generate.py

Its weights ship with headwise. Each token is computed once; its keys and values wait in a cache for those that follow.
"""

from collections.abc import Sequence

import numpy as np

import headwise as hw
from headwise import induction
from headwise.core.shapes import Array

WEIGHTS, HALF, BATCH = induction.load(), 20, 4
N_LAYERS, N_HEADS, _, D_HEAD = WEIGHTS["w_q"].shape


def generate(prompt: Array, count: int, caches: Sequence[hw.KVCache]) -> tuple[Array, Array]:
    """Return so many tokens after a prompt (B, n), (B, count), and the logits of each step."""

    def step(tokens: Array, position: int) -> Array:
        layers = iter(caches)

        def attend(q: Array, k: Array, v: Array) -> Array:  # (B, H, n, d_head) each
            cache = next(layers)
            cache.append(k, v)
            out: Array = hw.attention(q, cache.k, cache.v, cache.mask(q.shape[-2]))
            return out

        return induction.forward(WEIGHTS, tokens, position, attend).logits[:, -1]  # (B, N_TOKENS)

    logits = [step(prompt, 0)]
    for i in range(count - 1):
        logits.append(step(logits[-1].argmax(axis=-1)[:, None], prompt.shape[1] + i))
    return np.stack([each.argmax(axis=-1) for each in logits], axis=1), np.stack(logits, axis=1)


def main() -> None:
    tokens = induction.unseen(0, BATCH, HALF)  # (B, 2 HALF): the second half repeats the first
    caches = [hw.KVCache(BATCH, N_HEADS, 2 * HALF, D_HEAD) for _ in range(N_LAYERS)]
    said, _ = generate(tokens[:, : HALF + 1], HALF - 1, caches)
    for right, answer in zip(tokens[:, HALF + 1 :], said, strict=True):
        print(f"to come {right}\nsaid    {answer}\n")
    print(f"{(said == tokens[:, HALF + 1 :]).mean():.0%} right")
    print(caches[0])


if __name__ == "__main__":
    main()
