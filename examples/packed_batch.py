"""A batch of sequences of many lengths, padded and packed: the same results, for less work.

    python examples/packed_batch.py

Padding makes every sequence as long as the longest and hides what was added by a mask. Packing puts the tokens of all
sequences one after the other, without any between, and says where each begins. Then a new token comes to each sequence,
and finds its keys in blocks of a pool, as servers keep them.
"""

import numpy as np

import headwise as hw
from headwise import masks
from headwise.core.shapes import Array

H, G, D = 4, 2, 16  # query heads, key heads, width of a head
LENGTHS = np.array([9, 200, 33, 75, 9])
BLOCK = 16  # tokens of a block


def padded(x: Array, starts: Array) -> Array:
    """(tokens, H, d) as (B, H, longest, d), with zeros at the end."""
    batch = np.zeros((len(LENGTHS), x.shape[1], LENGTHS.max(), x.shape[2]), x.dtype)
    for i, n in enumerate(LENGTHS):
        batch[i, :, :n] = x[starts[i] : starts[i] + n].swapaxes(0, 1)
    return batch


def in_blocks(x: Array, starts: Array, table: Array) -> Array:
    """(tokens, G, d) as a pool (n_blocks, BLOCK, G, d) with the blocks of each sequence where its table says."""
    pool = np.zeros((table.max() + 1, BLOCK, *x.shape[1:]), x.dtype)
    for i, n in enumerate(LENGTHS):
        for j in range(0, n, BLOCK):
            some = x[starts[i] + j : starts[i] + min(n, j + BLOCK)]
            pool[table[i, j // BLOCK], : len(some)] = some
    return pool


def main() -> None:
    rng = np.random.default_rng(0)
    starts = np.cumsum([0, *LENGTHS])
    q = rng.standard_normal((starts[-1], H, D), dtype=np.float32)
    k, v = rng.standard_normal((2, starts[-1], G, D), dtype=np.float32)

    packed = hw.attention_varlen(q, k, v, starts, starts, causal=True)
    mask = masks.lengths(LENGTHS) & masks.causal(0)
    batch = hw.attention(padded(q, starts), padded(k, starts), padded(v, starts), mask)
    real = (np.arange(LENGTHS.max()) < LENGTHS[:, None])[:, None, :, None]
    same = np.allclose(padded(packed, starts), batch * real, atol=1e-5)
    rows = len(LENGTHS) * LENGTHS.max()
    print(f"tokens            {starts[-1]} packed, {rows} padded")
    print(f"pairs             {(LENGTHS**2).sum():,} packed, {rows * LENGTHS.max():,} padded, for each head")
    print(f"same results      {same}")

    out, vjp = hw.attention_varlen_vjp(q, k, v, starts, starts, causal=True)
    d_q, d_k, d_v, *_ = vjp(out)  # of sum(out**2) / 2
    print(f"gradients         d_q {d_q.shape}, d_k {d_k.shape}, d_v {d_v.shape}")

    blocks = -(-LENGTHS // BLOCK)
    free = rng.permutation(blocks.sum())  # any block will do
    table = np.zeros((len(LENGTHS), blocks.max()), int)
    for i, (n, first) in enumerate(zip(blocks, np.cumsum(blocks) - blocks, strict=True)):
        table[i, :n] = free[first : first + n]
    last = starts[1:] - 1
    k_pool, v_pool = (in_blocks(x, starts, table) for x in (k, v))
    one_each = np.arange(len(LENGTHS) + 1)
    new = hw.attention_varlen(q[last], k_pool, v_pool, one_each, None, causal=True, paged=(table, LENGTHS))
    same = np.allclose(new, packed[last], atol=1e-5)
    print(f"from a pool       {len(free)} blocks of {BLOCK} tokens; same results {same}")


if __name__ == "__main__":
    main()
