"""The layer of attention with a cache: in chunks as at once, each item by its own positions."""

import copy

import numpy as np
import pytest
from layer_by_hand import (
    LAYERS,
    ListCache,
    X,
    assert_close,
    layer_of,
    normal,
)

import headwise as hw
from headwise import masks, transforms

L2 = np.log(2.0)


CACHED = {
    "plain": (layer_of(n_kv_heads=2), {}),
    "rope": (layer_of(n_kv_heads=2, transform=transforms.rotary(style="half", base=10.0)), {}),
    "norm and rope": (
        layer_of(
            transform=transforms.compose(
                transforms.qk_norm([1.0, 2.0], [0.5, 1.0]), transforms.rotary(style="interleaved", base=10.0)
            )
        ),
        {},
    ),
    "alibi, sinks, softcap": (
        layer_of(n_kv_heads=2, use_bias=True),
        {"bias": hw.alibi([0.5, 0.25, 0.125, 1.0]), "sinks": [0.0, 1.0, -1.0, 2.0], "softcap": 2.0},
    ),
    "learned keys, alibi, sinks, rope": (
        layer_of(n_kv_heads=2, learned=2, scale=0.5, transform=transforms.rotary(style="half", base=10.0)),
        {"bias": hw.alibi([0.5, 0.25, 0.125, 1.0]), "sinks": [0.0, 1.0, -1.0, 2.0]},
    ),
}
EACH_CACHED = pytest.mark.parametrize(("layer", "options"), CACHED.values(), ids=CACHED)


@EACH_CACHED
@pytest.mark.parametrize("chunks", [[7], [1] * 7, [3, 1, 2, 1], [2, 5]], ids=str)
@pytest.mark.parametrize("return_weights", [False, True])
def test_cached_chunks_are_the_whole_causal_run(layer, options, chunks, return_weights):
    x, outs, at = normal(2, 7, 6), [], 0
    cache = ListCache(2, layer.n_kv_heads, 2)
    for n in chunks:
        out = layer(x[:, at : at + n], causal=True, cache=cache, return_weights=return_weights, **options)
        if return_weights:
            out, weights = out
            whole = layer(x, causal=True, return_weights=True, **options)[1]
            seen = [*range(at + n), *range(7, whole.shape[-1])]  # learned keys come last
            assert_close(weights, whole[:, :, at : at + n, seen])
        outs.append(out)
        at += n
    assert_close(np.concatenate(outs, axis=1), layer(x, causal=True, **options))


@EACH_CACHED
def test_items_of_unequal_lengths_go_by_their_own_positions(layer, options):
    x, cache, lengths = normal(3, 6, 6), ListCache(3, layer.n_kv_heads, 2), (4, 1, 3)
    layer(x[:, :4], causal=True, cache=cache, **options)
    cache.truncate(lengths)
    more = normal(3, 2, 6, seed=1)
    first, second = (layer(more[:, [i]], causal=True, cache=cache, **options) for i in range(2))
    for item, length in enumerate(lengths):
        whole = np.concatenate([x[item, :length], more[item]])
        assert_close([first[item, 0], second[item, 0]], layer(whole, causal=True, **options)[length:])


def test_not_causal_sees_all_that_is_cached():
    layer, cache = LAYERS["plain"], ListCache(2, 4, 2)
    layer(X[:, :3], cache=cache)
    assert_close(layer(X[:, 3:], cache=cache), layer(X[:, 3:], X))


def test_a_mask_speaks_of_slots():
    layer, cache = LAYERS["plain"], ListCache(2, 4, 2)
    layer(X[:, :3], causal=True, cache=cache)
    seen = np.array([True, False, True, True, True])
    wanted = layer(X, mask=masks.causal() & seen)[:, 3:]
    for mask in (seen, masks.keys(seen), seen.tolist()):
        assert_close(layer(X[:, 3:], causal=True, cache=copy.deepcopy(cache), mask=mask), wanted)


@pytest.mark.parametrize(("ours", "theirs"), [("f4", "f8"), ("f8", "f4"), ("f4", "f2")])
def test_a_cache_of_another_type(ours, theirs):
    layer = layer_of(n_kv_heads=2)
    for name in ("w_q", "w_k", "w_v", "w_o"):
        setattr(layer, name, getattr(layer, name).astype(ours))

    class Narrow(ListCache):
        def append(self, k, v):
            super().append(k.astype(theirs), v.astype(theirs))

    out = layer(X.astype(ours), causal=True, cache=Narrow(2, 2, 2, theirs))
    assert out.dtype == np.dtype(ours)
    coarsest = max(np.finfo(ours).eps, np.finfo(theirs).eps)
    np.testing.assert_allclose(out, layer(X, causal=True), rtol=0, atol=50 * coarsest)


class Windowed(ListCache):
    window = 3


@pytest.mark.parametrize(
    ("cache", "call", "error", "text"),
    [
        (
            ListCache(3, 2, 2),
            {},
            ValueError,
            r"cache: expected one whose k is \(B, G, n, d_head\) = \(2, 2, n, 2\), got \(3, 2, 0",
        ),
        (ListCache(2, 4, 2), {}, ValueError, r"cache: expected one whose k is .* got \(2, 4, 0, 2\)"),
        (ListCache(2, 2, 3), {}, ValueError, r"cache: expected one whose k is .* got \(2, 2, 0, 3\)"),
        ([], {}, TypeError, r"cache: expected None or a KVCache, got list \[\]"),
        (ListCache(2, 2, 2), {"key": X}, ValueError, "key: expected None with a cache"),
        (ListCache(2, 2, 2), {"mask": np.ones((5, 6), bool)}, ValueError, r"mask: expected .* got \(5, 6\)"),
        (ListCache(2, 2, 2), {"sinks": [1.0]}, ValueError, r"sinks: expected one number per head"),
        (ListCache(2, 2, 2), {"softcap": -1}, ValueError, "softcap: expected"),
        (ListCache(2, 2, 2), {"causal": 1}, TypeError, "causal: expected True or False"),
        (Windowed(2, 2, 2), {"mask": masks.causal()}, ValueError, "mask: expected None with a cache that has a window"),
        (
            Windowed(2, 2, 2),
            {"bias": np.zeros(5)},
            ValueError,
            "bias: expected None or alibi with a cache that has a win",
        ),
    ],
)
def test_a_call_that_is_refused_leaves_the_cache_alone(cache, call, error, text):
    with pytest.raises(error, match=f"^MultiHeadAttention: {text}"):
        LAYERS["grouped"](X, **call, cache=cache)
    assert not isinstance(cache, ListCache) or (cache.lengths == 0).all()
