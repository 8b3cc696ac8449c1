"""Reported cases: log-sum-exp, merging, blocks of keys, memory, processes."""

import multiprocessing
import os
import tracemalloc
import warnings

import numpy as np

from reported.case import LN2, LN3, Case, close, col


def key_mask_takes_linear_memory(adapter):
    """4096 tokens with a key mask in blocks of 256: far less than the 134 MB of the full scores."""
    x, real = np.ones((1, 4096, 8)), np.ones((1, 4096), bool)
    tracemalloc.start()
    try:
        adapter.attention(q=x, k=x.copy(), v=x.copy(), key_mask=real, block=256)
        return tracemalloc.get_traced_memory()[1] < 40e6
    finally:
        tracemalloc.stop()


def forked_child_finishes(adapter):
    """A child forked after the parent used the threads of its BLAS computes the same, within 60 s."""
    if not hasattr(os, "fork"):
        return True
    r = np.random.default_rng(10)
    given = {name: r.standard_normal((300, 64)) for name in "qkv"}
    reference = np.asarray(adapter.attention(**given)["out"])
    big = r.standard_normal((600, 600))
    (big @ big).sum()
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)

    def child():
        sender.send(close(adapter.attention(**given)["out"], reference))
        sender.close()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python 3.12 warns of a fork where threads exist: that is the case here
        process = context.Process(target=child)
        process.start()
    sender.close()  # so that a child that dies ends the wait
    try:
        same = receiver.poll(60) and receiver.recv()
    except EOFError:
        same = False
    process.join(10)
    if process.is_alive():
        process.kill()
        process.join(10)
        return False
    return bool(same)


CASES = [
    Case(
        id="B145",
        kind="lse",
        source="Dao-AILab/flash-attention#404",
        url="https://github.com/Dao-AILab/flash-attention/issues/404",
        symptom="Is the returned log-sum-exp with or without the maximum taken off?",
        op="attention",
        inputs={"q": col(1), "k": col(0, LN2, LN3), "v": col(6, 12, 18), "want": ("lse",)},
        right="ln 6",
        expected={"out": col(14), "lse": np.array([np.log(6.0)])},
        wrong={"lse": np.array([LN2])},
    ),
    Case(
        id="B147",
        kind="merge-states",
        source="vllm-project/vllm#39148",
        url="https://github.com/vllm-project/vllm/pull/39148",
        symptom="Merging a real part with an empty part",
        op="merge",
        inputs={
            "parts": [
                (np.array([[10.0], [10.0]]), np.array([LN3, LN3])),
                (np.array([[0.0], [18.0]]), np.array([-np.inf, LN3])),
            ]
        },
        right="(10, ln3); and {10,ln3}+{18,ln3} -> (14, ln6)",
        expected={"out": np.array([[10.0], [14.0]]), "lse": np.array([LN3, np.log(6.0)])},
    ),
    Case(
        id="B149",
        kind="blockwise-rowmax",
        source="Dao-AILab/flash-attention#2082",
        url="https://github.com/Dao-AILab/flash-attention/issues/2082",
        symptom="First processed block fully masked resets the row maximum to 0; very negative rows become 0",
        op="attention",
        inputs={
            "q": col(1, 1, 1, 1),
            "k": col(-1000, -1000 + LN2, -1000 + LN3, -1000),
            "v": col(6, 12, 18, 6),
            "causal": "lower_right",
            "block": 2,
        },
        right="scores near -1000: 6, 10, 14, 90/7",
        expected={"out": col(6, 10, 14, 90 / 7)},
        wrong={"out": col(0, 0, 0, 0)},
    ),
    Case(
        id="B151",
        kind="blockwise-remainder",
        source="jax-ml/jax#27224",
        url="https://github.com/jax-ml/jax/issues/27224",
        symptom="Length not a multiple of the block: padded keys are counted",
        op="attention",
        inputs={"q": col(0), "k": col(0, 0, 0, 0, 0), "v": col(1, 2, 3, 4, 5), "block": 4},
        right="mean of 1..5 = 3",
        expected={"out": col(3)},
        wrong={"out": col(15 / 8)},
    ),
    Case(
        id="B153",
        kind="linear-memory",
        source="lucidrains/x-transformers#261",
        url="https://github.com/lucidrains/x-transformers/issues/261",
        symptom="Giving a key mask makes memory quadratic",
        op="scenario",
        run=key_mask_takes_linear_memory,
        right="4096 tokens, d=8, key mask, blocks of 256: peak < 40 MB (the full scores: 134 MB)",
    ),
    Case(
        id="B170",
        kind="fork-hang",
        source="numpy/numpy#15973; OpenMathLib/OpenBLAS#294",
        url="https://github.com/numpy/numpy/issues/15973",
        symptom="matmul in a forked child hangs after the parent used threaded BLAS",
        op="scenario",
        run=forked_child_finishes,
        right="child finishes within 60 s with the same numbers",
        contested="library's duty / BLAS's duty (document it)",
    ),
]
