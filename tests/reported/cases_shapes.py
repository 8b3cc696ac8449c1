"""Reported cases: shapes, strides and containers: empty axes, views, broadcasting, grouped heads."""

import numpy as np

from reported.case import LN2, LN3, Case, close, col


def transposed_views_equal_copies(adapter):
    """Views with the head axis moved give what contiguous copies give, and what the plain formula gives."""
    shape = (2, 5, 3, 4)
    q, k, v = (np.swapaxes(np.random.default_rng(i).standard_normal(shape), 1, 2) for i in range(3))
    copies = {"q": q.copy(order="C"), "k": k.copy(order="C"), "v": v.copy(order="C")}
    from_views = adapter.attention(q=q, k=k, v=v)["out"]
    from_copies = adapter.attention(**copies)["out"]
    return close(from_views, from_copies, rtol=1e-12) and close(from_views, plain_attention(**copies))


def plain_attention(q, k, v):
    """The textbook formula, for inputs that need no care."""
    scores = q @ np.swapaxes(k, -1, -2) / np.sqrt(q.shape[-1])
    e = np.exp(scores - scores.max(-1, keepdims=True))
    return (e / e.sum(-1, keepdims=True)) @ v


def inputs_are_not_written_to(adapter):
    """Nothing is changed, read-only arrays are accepted, and a second call gives the same bits."""
    mask = np.array([[True, True, False], [False, False, False]])
    given = {"q": col(1, 2), "k": col(0, LN2, LN3), "v": col(6, 12, 18), "mask": mask}
    before = {name: x.copy() for name, x in given.items()}
    first = np.array(adapter.attention(**given)["out"])
    unchanged = all(np.array_equal(given[name], before[name]) for name in given)
    for x in given.values():
        x.flags.writeable = False
    second = np.array(adapter.attention(**given)["out"])
    return unchanged and np.array_equal(first, second)


def hidden_values_have_no_influence(adapter):
    """A masked array is refused, or the value under its mask changes nothing. A refusal is raised on."""
    outs, refusals = [], []
    for hidden in (3.0, 3e10):
        k = np.ma.masked_array(col(0, LN2, hidden), mask=col(0, 0, 1).astype(bool))
        try:
            out = adapter.attention(q=col(1), k=k, v=col(6, 12, 18))["out"]
        except (TypeError, ValueError) as refusal:
            refusals.append(refusal)
        else:
            outs.append(np.ma.filled(out, np.nan).astype(float))
    if len(refusals) == 2:
        raise refusals[0]
    return not refusals and close(outs[0], outs[1])


CASES = [
    Case(
        id="B053",
        kind="empty-batch-or-heads",
        source="Dao-AILab/flash-attention#1159",
        url="https://github.com/Dao-AILab/flash-attention/issues/1159",
        symptom="Batch size 0 is refused",
        op="attention",
        inputs={"q": np.zeros((0, 2, 3, 4)), "k": np.zeros((0, 2, 5, 4)), "v": np.zeros((0, 2, 5, 6))},
        right="shape (0,2,3,6), no error",
        expected={"out": np.zeros((0, 2, 3, 6))},
    ),
    Case(
        id="B055",
        kind="empty-sequence",
        source="flashinfer-ai/flashinfer#4484",
        url="https://github.com/flashinfer-ai/flashinfer/issues/4484",
        symptom="No keys at all: output and log-sum-exp undefined across kernels",
        op="attention",
        inputs={"q": np.ones((3, 4)), "k": np.zeros((0, 4)), "v": np.zeros((0, 2)), "want": ("lse",)},
        right="out zeros (3,2), lse -inf",
        expected={"out": np.zeros((3, 2)), "lse": np.full(3, -np.inf)},
        contested="zeros / NaN / error for n_k = 0",
    ),
    Case(
        id="B057",
        kind="zero-feature-dim",
        source="pytorch/pytorch#184914",
        url="https://github.com/pytorch/pytorch/pull/184914",
        symptom="d_k = 0 with real values gives zeros (early exit on numel() == 0), or NaN from 1/sqrt(0)",
        op="attention",
        inputs={"q": np.zeros((2, 0)), "k": np.zeros((3, 0)), "v": col(6, 12, 18)},
        right="all scores are 0, so the mean of V: 12 per row",
        expected={"out": col(12, 12)},
        wrong={"out": col(0, 0)},
        may_raise=True,
        contested="mean of V / error",
    ),
    Case(
        id="B060",
        kind="empty-sequence",
        source="open-edge-platform/geti#1507 (second report)",
        url="https://github.com/open-edge-platform/geti/pull/1507",
        symptom="max() of an empty axis has no identity",
        op="softmax",
        inputs={"x": np.zeros((2, 0)), "axis": -1},
        right="shape (2,0), no exception",
        expected={"out": np.zeros((2, 0))},
        contested="empty result / error",
    ),
    Case(
        id="B061",
        kind="noncontiguous",
        source="torch-spyre/torch-spyre#4331; pytorch/pytorch#112577; pytorch/pytorch#181133",
        url="https://github.com/torch-spyre/torch-spyre/issues/4331",
        symptom="Views made by transposing (B, n, H, d) to (B, H, n, d) give wrong numbers",
        op="scenario",
        run=transposed_views_equal_copies,
        right="same as for contiguous copies",
    ),
    Case(
        id="B063",
        kind="negative-stride",
        source="solvcon/solvcon#1173; numpy/numpy#29164",
        url="https://github.com/solvcon/solvcon/pull/1173",
        symptom="Reversed views read as if they were forward",
        op="attention",
        inputs={"q": col(1, 2)[::-1], "k": col(LN3, LN2, 0)[::-1], "v": col(18, 12, 6)[::-1]},
        right="q reversed: 216/14 then 14; keys reversed together with values change nothing",
        expected={"out": col(216 / 14, 14)},
    ),
    Case(
        id="B066",
        kind="broadcast-leading",
        source="facebookresearch/xformers#87",
        url="https://github.com/facebookresearch/xformers/issues/87",
        symptom="Key/value batch of 1 against a larger query batch",
        op="attention",
        inputs={"q": np.ones((2, 2, 1, 1)), "k": col(0, LN2, LN3)[None, None], "v": col(6, 12, 18)[None, None]},
        right="(2,2,1,1) all 14",
        expected={"out": np.full((2, 2, 1, 1), 14.0)},
        may_raise=True,
        contested="leading dims broadcast / must match",
    ),
    Case(
        id="B069",
        kind="input-mutation",
        source="Shujun-He/RibonanzaNet#7",
        url="https://github.com/Shujun-He/RibonanzaNet/issues/7",
        symptom="The mask is edited in place, so the second layer sees another mask",
        op="scenario",
        run=inputs_are_not_written_to,
        right="inputs unchanged, read-only inputs work, second call identical",
    ),
    Case(
        id="B075",
        kind="value-dim",
        source="apple/coreai-torch#117",
        url="https://github.com/apple/coreai-torch/pull/117",
        symptom="Output width taken from q instead of v; scale must use d_k, not d_v",
        op="attention",
        inputs={
            "q": np.array([[2.0, 0, 0, 0]]),
            "k": np.array([[0.0, 0, 0, 0], [LN2, 0, 0, 0]]),
            "v": np.repeat(col(6, 12), 9, 1),
        },
        right="(1,9), all 10",
        expected={"out": np.full((1, 9), 10.0)},
    ),
    Case(
        id="B175",
        kind="batched-transpose",
        source="theorempath.com attention shape-trace page",
        url="https://theorempath.com/labs/proof-tasks/attention-shape-trace",
        symptom="K.T on a 3-D array reverses all axes: shape error",
        op="attention",
        inputs={
            "q": np.array([col(1), col(2)]),
            "k": np.array([col(0, LN2, LN3)] * 2),
            "v": np.array([col(6, 12, 18)] * 2),
        },
        right="(2,1,1): 14 and 15.428571",
        expected={"out": np.array([col(14), col(216 / 14)])},
    ),
    Case(
        id="B185",
        kind="shape-validation",
        source="pytorch/pytorch#64888",
        url="https://github.com/pytorch/pytorch/issues/64888",
        symptom="Inputs that do not belong together return a tensor instead of an error",
        op="attention",
        inputs={"q": np.ones((2, 4)), "k": np.ones((3, 4)), "v": np.ones((2, 4))},
        right="error: 3 keys but 2 values",
        raises=True,
    ),
    Case(
        id="B172",
        kind="subclass-input",
        source="numpy/numpy#5185; numpy/numpy#3219; cta-observatory/ctapipe#601",
        url="https://github.com/numpy/numpy/issues/5185",
        symptom="np.ma inputs: the products silently use the hidden data under the mask",
        op="scenario",
        run=hidden_values_have_no_influence,
        right="TypeError/ValueError, or the hidden value has no influence; never a result that depends on it",
        contested="refuse / convert and ignore the np.ma mask (data used) / honour it",
    ),
    Case(
        id="B092",
        kind="gqa-mapping",
        source="onnx/onnx#7274",
        url="https://github.com/onnx/onnx/pull/7274",
        symptom="KV heads tiled (0,1,0,1) where repeat (0,0,1,1) is meant",
        op="attention",
        inputs={"q": np.zeros((1, 4, 1, 1)), "k": np.zeros((1, 2, 1, 1)), "v": np.array([[[[10.0]], [[20.0]]]])},
        right="10, 10, 20, 20",
        expected={"out": np.array([[[[10.0]], [[10.0]], [[20.0]], [[20.0]]]])},
        wrong={"out": np.array([[[[10.0]], [[20.0]], [[10.0]], [[20.0]]]])},
        contested="repeat_interleave (torch, HF, now ONNX) / tile",
    ),
    Case(
        id="B094",
        kind="gqa-divisibility",
        source="fla-org/flash-linear-attention#1029",
        url="https://github.com/fla-org/flash-linear-attention/issues/1029",
        symptom="3 query heads over 2 kv heads: floor division leaves a head unwritten",
        op="attention",
        inputs={"q": np.ones((1, 3, 1, 1)), "k": np.ones((1, 2, 1, 1)), "v": np.ones((1, 2, 1, 1))},
        right="error",
        raises=True,
    ),
]
