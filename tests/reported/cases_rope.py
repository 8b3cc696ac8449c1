"""Reported cases: rotary position embeddings."""

import numpy as np

from reported.case import Case, close

HALF = np.array([[-1.9841106485555495, 1.959900667496664, 2.4623779024123156, 4.019799668334994]])
INTERLEAVED = np.array([[-1.1426396637476532, 1.922075596544176, 2.9598506679133294, 4.029799501669161]])


def positions_are_not_remembered(adapter):
    """Rope at positions 5, 6 equals rows 5, 6 of a longer run, also after a call at positions 0, 1."""
    x = np.random.default_rng(3).standard_normal((7, 6))
    full = np.asarray(adapter.rope(x=x, positions=np.arange(7), style="half")["out"])
    start = np.asarray(adapter.rope(x=x[:2], positions=np.array([0, 1]), style="half")["out"])
    end = np.asarray(adapter.rope(x=x[5:], positions=np.array([5, 6]), style="half")["out"])
    return close(start, full[:2]) and close(end, full[5:]) and not close(end, x[5:], rtol=1e-3)


def far_positions_keep_their_distance(adapter):
    """Positions 2^31 + 4 and 2^31 - 4 give the dot product of positions 8 and 0."""
    r = np.random.default_rng(14)
    q, k = r.standard_normal((1, 8)), r.standard_normal((1, 8))

    def turned(x, position):
        return np.asarray(adapter.rope(x=x, positions=np.array([position], np.int64), style="half")["out"])

    near, far = (float((turned(q, m) @ turned(k, n).T)[0, 0]) for m, n in ((8, 0), (2**31 + 4, 2**31 - 4)))
    return abs(near - far) < 1e-5


CASES = [
    Case(
        id="B111",
        kind="rope-convention",
        source="huggingface/transformers#25199; EleutherAI/gpt-neox#834",
        url="https://github.com/huggingface/transformers/issues/25199",
        symptom="Half-split (NeoX, HF) or interleaved (GPT-J, Meta) pairs: one with weights of the other",
        op="rope",
        inputs={"x": np.array([[1.0, 2, 3, 4]]), "positions": np.array([1]), "style": "half"},
        right="half-split on [1,2,3,4] at position 1",
        expected={"out": HALF},
        wrong={"out": INTERLEAVED},
        contested="default style: half (HF) / interleaved (paper, Meta)",
    ),
    Case(
        id="B113",
        kind="rope-offset",
        source="lucidrains/rotary-embedding-torch#11",
        url="https://github.com/lucidrains/rotary-embedding-torch/issues/11",
        symptom="Cached table keyed by length only: a second call with another offset reuses the first",
        op="scenario",
        run=positions_are_not_remembered,
        right="rope at positions 5,6 equals rows 5,6 of a longer table, also after a call at 0,1",
    ),
    Case(
        id="B115",
        kind="rope-partial",
        source="pie-project/pie#603",
        url="https://github.com/pie-project/pie/pull/603",
        symptom="Partial rotary: frequencies and pair distance from the head width, not the rotary width",
        op="rope",
        inputs={"x": np.arange(1.0, 9)[None], "positions": np.array([1]), "style": "half", "rotary_dim": 4},
        right="x=1..8, rotary_dim 4, position 1",
        expected={
            "out": np.array(
                [[-1.9841106485555495, 1.959900667496664, 2.4623779024123156, 4.019799668334994, 5, 6, 7, 8]]
            )
        },
    ),
    Case(
        id="B117",
        kind="rope-precision",
        source="EleutherAI/gpt-neox#1003",
        url="https://github.com/EleutherAI/gpt-neox/issues/1003",
        symptom="float16 positions: 2049 is not representable, so two tokens share an angle",
        op="rope",
        inputs={"x": np.array([[1.0, 0.0]], np.float16), "positions": np.array([2049]), "style": "half"},
        right="cos/sin(2049) = .77657, .63003",
        expected={"out": np.array([[0.7765720439208864, 0.6300284601512355]])},
        wrong={"out": np.array([[0.9497343348236519, -0.31305701279012343]])},
        rtol=0,
        atol=0.002,
    ),
    Case(
        id="B119",
        kind="rope-shape",
        source="Jamie-Stirling/RetNet#31",
        url="https://github.com/Jamie-Stirling/RetNet/pull/31",
        symptom="Odd width fails deep inside with a shape error (or rotates wrongly)",
        op="rope",
        inputs={"x": np.array([[1.0, 2, 3]]), "positions": np.array([1]), "style": "half"},
        right="a clear error (or last channel left alone)",
        raises=True,
        contested="error / leave the odd channel",
    ),
    Case(
        id="B187",
        kind="rope-positions",
        source="huggingface/transformers#22161; unslothai/unsloth#4078",
        url="https://github.com/huggingface/transformers/issues/22161",
        symptom="Left-padded rows need their own positions",
        op="rope",
        inputs={"x": np.ones((2, 2, 2)), "positions": np.array([[0, 1], [1, 2]]), "style": "half"},
        right="positions per row (B, n): [[0,1],[1,2]] on ones (2,2,2)",
        expected={
            "out": np.array(
                [
                    [[1.0, 1.0], [-0.30116867893975674, 1.3817732906760363]],
                    [[-0.30116867893975674, 1.3817732906760363], [-1.325444263372824, 0.4931505902785393]],
                ]
            )
        },
        contested="per-row positions accepted or only one row for all",
    ),
    Case(
        id="B189",
        kind="index-overflow",
        source="thu-ml/SageAttention#386; ml-explore/mlx#2894",
        url="https://github.com/thu-ml/SageAttention/issues/386",
        symptom="Offsets computed in 32 bits wrap for large positions",
        op="scenario",
        run=far_positions_keep_their_distance,
        right="rope at 2^31+4 and 2^31-4 gives the same dot product as at 8 and 0 (to 1e-5)",
    ),
]
