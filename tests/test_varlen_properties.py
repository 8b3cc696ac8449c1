"""Packed segments of random lengths and options: each is the definition alone, packed or in pages."""

from typing import Any

import numpy as np
from bits import bits
from hypothesis import given, settings
from hypothesis import strategies as st
from test_varlen import D_K, D_V, by_definition, in_blocks, starts

from examples import fewer
from headwise import attention_varlen, attention_varlen_vjp

H = 4
LENGTHS = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 90)), max_size=6)
SIDE = st.none() | st.integers(0, 50)
PER_HEAD = st.lists(st.floats(-4, 4, width=32), min_size=H, max_size=H)
CALLS = st.fixed_dictionaries(
    {"causal": st.booleans()},
    optional={
        "window": st.tuples(SIDE, SIDE),
        "scale": st.floats(-2, 2, width=32),
        "softcap": st.floats(0.5, 9, width=32),
        "slopes": PER_HEAD,
        "sinks": PER_HEAD,
    },
)


def drawn(lengths: Any, n_groups: int, seed: int) -> tuple[Any, ...]:
    rng, (n_q, n_k) = np.random.default_rng(seed), (starts(n) for n in zip(*lengths or [(0, 0)], strict=True))
    shapes = (n_q[-1], H, D_K), (n_k[-1], n_groups, D_K), (n_k[-1], n_groups, D_V)
    return (*(rng.standard_normal(shape) for shape in shapes), n_q, n_k)


@settings(max_examples=fewer(150))
@given(LENGTHS, st.sampled_from([1, 2, 4]), CALLS, st.integers(0, 99), st.sampled_from([1, 2]), st.integers(1, 20))
def test_each_segment_is_the_definition(
    lengths: Any, n_groups: int, call: Any, seed: int, threads: int, block_size: int
) -> None:
    args = q, k, v, n_q, n_k = drawn(lengths, n_groups, seed)
    wanted = by_definition(args, call)
    found = attention_varlen(*args, **call, return_lse=True, threads=threads)
    for got, expected in zip(found, wanted, strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-12, atol=1e-11)
    k_pool, v_pool, *pages = in_blocks(k, v, n_k, block_size, seed)
    assert bits(attention_varlen(q, k_pool, v_pool, n_q, None, **call, return_lse=True, paged=pages)) == bits(found)
    *forward, _ = attention_varlen_vjp(*args, **call, return_lse=True)
    for got, expected in zip(forward, found, strict=True):  # a few queries go another way where there are gradients
        np.testing.assert_allclose(got, expected, rtol=1e-12, atol=1e-11)
