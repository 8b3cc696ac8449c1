"""Reported cases: decoding with a cache of keys and values."""

import numpy as np

from reported.case import LN2, LN3, Case, close, col


def chunks_equal_one_shot(adapter):
    """Chunks of 3, 1, 1 and 4 tokens through a cache equal one causal run over all nine."""
    r = np.random.default_rng(5)
    q, k, v = (r.standard_normal((9, 4)) for _ in range(3))
    full = adapter.attention(q=q, k=k, v=v, causal="lower_right")["out"]
    steps = [{"q": q[i:j], "k": k[i:j], "v": v[i:j]} for i, j in ((0, 3), (3, 4), (4, 5), (5, 9))]
    outs = adapter.kv_decode(steps=steps)["outs"]
    return close(np.concatenate([np.asarray(out) for out in outs]), full)


CASES = [
    Case(
        id="B121",
        kind="cache-prefill",
        source="Mikyx-1/TinyLLM#18",
        url="https://github.com/Mikyx-1/TinyLLM/pull/18",
        symptom="Causal mask skipped whenever a cache exists, so the prompt sees its own future",
        op="kv_decode",
        inputs={"steps": [{"q": col(1, 2, 0), "k": col(0, LN2, LN3), "v": col(6, 12, 18)}]},
        right="one step of 3 tokens: 6, 10.8, 12",
        expected={"outs": [col(6, 10.8, 12)]},
        wrong={"outs": [col(14, 216 / 14, 12)]},
    ),
    Case(
        id="B123",
        kind="cache-prefill",
        source="time-series-foundation-models/lag-llama#81",
        url="https://github.com/time-series-foundation-models/lag-llama/issues/81",
        symptom="Cached and uncached forecasts differ",
        op="scenario",
        run=chunks_equal_one_shot,
        right="chunks 3,1,1,4 equal the one-shot result",
    ),
    Case(
        id="B124",
        kind="cache-window",
        source="huggingface/transformers#37574",
        url="https://github.com/huggingface/transformers/issues/37574",
        symptom="Sliding cache drops a key one step too early when it just becomes full",
        op="kv_decode",
        inputs={"steps": [{"q": col(0), "k": col(0), "v": col(x)} for x in (1, 2, 4, 8)], "window": (1, 0)},
        right="1, 1.5, 3, 6",
        expected={"outs": [col(1), col(1.5), col(3), col(6)]},
        wrong={"outs": [col(1), col(2), col(4), col(8)]},
    ),
    Case(
        id="B126",
        kind="cache-overflow",
        source="1bit-MONSTER/1bit-MONSTER#646",
        url="https://github.com/1bit-MONSTER/1bit-MONSTER/issues/646",
        symptom="Writing past the cache capacity",
        op="kv_decode",
        inputs={"steps": [{"q": col(0), "k": col(0), "v": col(x)} for x in (1, 2, 4)], "capacity": 2},
        right="an error, or the cache grows and gives 1, 1.5, 7/3; never overwritten slots",
        expected={"outs": [col(1), col(1.5), col(7 / 3)]},
        wrong={"outs": [col(1), col(1.5), col(3)]},
        may_raise=True,
        contested="error / grow / ring",
    ),
    Case(
        id="B129",
        kind="cache-batch-ops",
        source="time-series-foundation-models/lag-llama#81 (reset)",
        url="https://github.com/time-series-foundation-models/lag-llama/issues/81",
        symptom="Reset leaves old keys behind",
        op="kv_decode",
        inputs={
            "steps": [
                {"q": col(0), "k": col(0), "v": col(99)},
                {"reset": True},
                {"q": col(0), "k": col(0), "v": col(5)},
            ]
        },
        right="after reset a fresh start: 5",
        expected={"outs": [col(99), col(5)]},
        wrong={"outs": [col(99), col(52)]},
    ),
]
