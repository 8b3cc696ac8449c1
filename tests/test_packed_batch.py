"""The example of a packed batch prints what it says: the same results, padded, packed and from a pool."""

import runpy
from pathlib import Path

import numpy as np
import pytest

EXAMPLE = Path(__file__).parents[1] / "examples" / "packed_batch.py"
PRINTED = """\
tokens            326 packed, 1000 padded
pairs             46,876 packed, 200,000 padded, for each head
same results      True
gradients         d_q (326, 4, 16), d_k (326, 2, 16), d_v (326, 2, 16)
from a pool       23 blocks of 16 tokens; same results True
"""


def test_it_prints_that_results_are_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    assert capsys.readouterr().out == PRINTED


def test_a_pool_holds_the_tokens_of_each_sequence() -> None:
    example = runpy.run_path(str(EXAMPLE))
    lengths, block = example["LENGTHS"], example["BLOCK"]
    tokens, starts = np.arange(1, lengths.sum() + 1)[:, None, None], np.cumsum([0, *lengths])
    each = -(-lengths // block)
    table = np.arange(each.max())[None] + (np.cumsum(each) - each)[:, None]
    pool = example["in_blocks"](tokens, starts, table)
    for i, n in enumerate(lengths):
        assert pool[table[i, : each[i]]].ravel()[:n].tolist() == list(range(starts[i] + 1, starts[i] + n + 1))
