"""A deep model, made of our layers: a prompt in chunks, then token by token, is what one run over all of it gives."""

from itertools import pairwise

import numpy as np
import pytest

import headwise as hw
from headwise import transforms
from headwise.core.shapes import Array

N_LAYERS, D_MODEL, N_HEADS, N_KV_HEADS, D_HEAD = 12, 48, 6, 2, 8
PROMPT, STEPS = 70, 200


def layers(window: int | None, dtype: type) -> list[hw.MultiHeadAttention]:
    rotary = transforms.rotary(style="half")
    made = []
    for seed in range(N_LAYERS):
        layer = hw.MultiHeadAttention(
            D_MODEL, N_HEADS, n_kv_heads=N_KV_HEADS, d_head=D_HEAD, transform=rotary, use_bias=True, seed=seed
        )
        arrays = {name: getattr(layer, name).astype(dtype) for name in ("w_q", "w_k", "w_v", "w_o")}
        biases = {name: getattr(layer, name).astype(dtype) for name in ("b_q", "b_k", "b_v", "b_o")}
        made.append(hw.MultiHeadAttention.from_arrays(**arrays, n_heads=N_HEADS, **biases, transform=rotary))
    return made


def norm(x: Array) -> Array:
    scaled: Array = x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + x.dtype.type(1e-6))
    return scaled


def run(model: list[hw.MultiHeadAttention], x: Array, caches: list[hw.KVCache] | None, window: int | None) -> Array:
    rule = None if window is None or caches is not None else hw.masks.window(window, 0)
    for i, layer in enumerate(model):
        cache = None if caches is None else caches[i]
        x = x + layer(norm(x), mask=rule, causal=True, cache=cache)
    return x


@pytest.mark.parametrize("window", [None, 40])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_prompt_in_chunks_and_200_steps_are_one_run(window: int | None, dtype: type) -> None:
    model = layers(window, dtype)
    x = np.random.default_rng(1).standard_normal((2, PROMPT + STEPS, D_MODEL)).astype(dtype)
    capacity = PROMPT + STEPS if window is None else 90
    caches = [hw.KVCache(2, N_KV_HEADS, capacity, D_HEAD, dtype=dtype, window=window) for _ in model]
    edges = [0, 32, 64, *range(PROMPT, PROMPT + STEPS + 1)]
    outs = [run(model, x[:, a:b], caches, window) for a, b in pairwise(edges)]
    whole = run(model, x, None, window)
    # each of twelve layers adds its bound, 8 eps (1 + |q| |k| scale + log n) max|v| sqrt(widths), to what it was given
    bound = N_LAYERS * 8 * np.finfo(dtype).eps * 32 * np.abs(whole).max()
    np.testing.assert_allclose(np.concatenate(outs, axis=1), whole, rtol=0, atol=bound)
    assert (caches[0].lengths == PROMPT + STEPS).all()
