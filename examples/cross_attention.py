"""Cross attention: tokens of one sequence attend to those of another, of another width, which is padded.

    python examples/cross_attention.py

The layer has fewer key heads than query heads. Its output for a batch is that of each pair alone, without padding.
"""

import numpy as np

import headwise as hw
from headwise import masks

LENGTHS = np.array([7, 3])  # of the sequences that are attended to


def main() -> None:
    rng = np.random.default_rng(0)
    layer = hw.MultiHeadAttention(32, 4, n_kv_heads=2, d_key=24, d_value=24, use_bias=True)
    query = rng.standard_normal((2, 5, 32))  # (B, n_q, d_model)
    memory = rng.standard_normal((2, 7, 24))  # (B, n_k, d_key)
    out, weights = layer(query, memory, mask=masks.lengths(LENGTHS), return_weights=True)
    alone = [layer(query[i], memory[i, :n]) for i, n in enumerate(LENGTHS)]
    print(f"out {out.shape}, weights {weights.shape}")
    print(f"weights of padding      {weights[1, :, :, 3:].max()}")
    print(f"as each pair alone      {np.allclose(out, alone)}")
    print(layer)


if __name__ == "__main__":
    main()
