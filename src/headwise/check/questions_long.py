"""What attention, heads and layers are asked over so many keys that kernels cut them into tiles: calls and judges.

Knows what is right, and nothing of how a solution is run. A judge raises Wrong, or returns remarks.
"""

from typing import Any

import numpy as np

from headwise.check.calls import Call, hides
from headwise.check.drawing import Rng, attention, heads, qkv, some
from headwise.check.judging import Evidence, about, equal, is_right, remarks_on_alignment
from headwise.core.masks import causal_mask
from headwise.core.shapes import Array

_LONG = 601  # keys: more than two tiles of 256, and no whole number of tiles of any usual size
_EVEN = 512  # keys: a whole number of tiles of all usual sizes
_SQUARE = 131  # tokens, with weights for each pair: more than one tile of 128
_TOKENS = 261  # more than one tile of 256


def _growing(rng: Rng, n_q: int, n_k: int) -> dict[str, Any]:
    """Scores that grow along the keys, so that each tile has a larger maximum than those before."""
    args = qkv(rng, n_q, n_k, 2, 2)
    args["q"][:, 0] = 1 + rng.random(n_q)
    args["k"][:, 0] += np.linspace(-3, 3, n_k)
    return args


def _falling(rng: Rng, n_q: int, n_k: int) -> dict[str, Any]:
    args = _growing(rng, n_q, n_k)
    return {**args, "k": args["k"][::-1].copy()}


def many_keys(rng: Rng) -> list[Call]:
    return [
        attention(**qkv(rng, 3, 5, 2, 2)),
        attention(**_growing(rng, 3, _LONG)),
        attention(**_falling(rng, 3, _LONG)),
        attention(**_growing(rng, 2, _EVEN)),
        attention(**qkv(rng, _TOKENS, 3, 2, 2)),
    ]


def judge_many_keys(e: Evidence) -> list[str]:
    return _right_after(e, 1)


def many_keys_masked(rng: Rng) -> list[Call]:
    n = np.arange(_LONG)
    first, middle, last = n >= 300, (n < 200) | (n >= 520), n < 505  # a whole tile hidden, and a part of another
    reach = n <= np.array([[40], [300], [595]])  # the last rows of a causal mask: the diagonal in several tiles
    return [
        attention(**qkv(rng, 3, 5, 2, 2)),
        attention(**qkv(rng, 3, 5, 2, 2), mask=some(rng, 3, 5)),
        attention(**_growing(rng, 3, _LONG)),
        attention(**_growing(rng, 3, _LONG), mask=np.stack([first, middle, last])),
        attention(**_falling(rng, 3, _LONG), mask=some(rng, 3, _LONG)),
        attention(**_growing(rng, 3, _LONG), mask=reach),
        attention(**_growing(rng, _SQUARE, _SQUARE), mask=causal_mask(_SQUARE)),
        attention(**qkv(rng, _TOKENS, 3, 2, 2), mask=some(rng, _TOKENS, 3)),
        attention(**qkv(rng, 5, 5, 2, 2), causal=True),
        attention(**_growing(rng, _SQUARE, _SQUARE), causal=True),
        attention(**_growing(rng, _TOKENS, _TOKENS), causal=True),
        attention(**_growing(rng, 67, _LONG), causal=True),
    ]


def judge_many_keys_masked(e: Evidence) -> list[str]:
    """Long calls with a mask, and with causal=True: either unless what is not long, or hides nothing, is wrong."""
    plain = [i for i, call in enumerate(e.calls) if not hides(call)]
    for role in ("mask", "causal"):
        those = [i for i, call in enumerate(e.calls) if role in call.args]
        controls = plain + those[:1]
        if all(is_right(e.results[i], e.rights[i]) for i in controls):
            for i in those:
                with about(e.calls[i]):
                    equal(e, i)
    return remarks_on_alignment(e)


def _drawn_out(rng: Rng, n: int, d: int) -> Array:
    """Tokens that grow along the sequence, and with them the scores."""
    return rng.standard_normal((1, n, d)) * np.linspace(0.5, 2, n)[:, None]


def _tokens(rng: Rng, n: int, d: int, n_heads: int, causal: bool) -> Call:
    args = {**heads(rng, 1, n, d, n_heads), "x": _drawn_out(rng, n, d), "causal": causal}
    return Call("multi_head", args)


def many_tokens(rng: Rng) -> list[Call]:
    return [
        _tokens(rng, 5, 4, 2, causal=False),
        _tokens(rng, 5, 4, 2, causal=True),
        _tokens(rng, 67, 4, 2, causal=False),
        _tokens(rng, _TOKENS, 2, 1, causal=True),
    ]


def judge_many_tokens(e: Evidence) -> list[str]:
    """Of multi-head attention, and of a layer."""
    return _right_after(e, 2)


def many_in_layers(rng: Rng) -> list[Call]:
    made = {"d_model": 4, "n_heads": 2, "seed": int(rng.integers(1, 1000))}
    sizes = ((5, False), (5, True), (67, False), (_SQUARE, True))
    return [Call("layer", {**made, "x": _drawn_out(rng, n, 4), "causal": causal}) for n, causal in sizes]


def _right_after(e: Evidence, controls: int) -> list[str]:
    """Whether all calls are right, unless one of the first few, which are of something else, is wrong already."""
    if all(is_right(e.results[i], e.rights[i]) for i in range(controls)):
        for i in range(controls, len(e.calls)):
            with about(e.calls[i]):
                equal(e, i)
    return []
