"""Reported cases: multi-head layers: splitting heads, projections, widths, state, threads."""

import copy
import pickle
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from reported.case import LN2, Case, close, col


def layer_params(width, seed):
    """Normal weights and biases of a self-attention layer, shaped as PyTorch's."""
    r = np.random.default_rng(seed)
    params = {f"w{name}": r.standard_normal((width, width)) for name in "qkvo"}
    return params | {f"b{name}": r.standard_normal(width) for name in "qkvo"}


def items_do_not_see_each_other(adapter):
    """Each item alone gives what it gives in the batch."""
    params, x = layer_params(4, seed=1), np.random.default_rng(2).standard_normal((2, 3, 4))

    def out(query):
        return np.asarray(adapter.mha(query=query, key=None, value=None, params=params, num_heads=2)["out"])

    batch = out(x)
    return all(close(batch[i], out(x[i : i + 1])[0]) for i in range(2))


def copies_compute_the_same(adapter):
    """A deep copy and a pickled copy of a layer that was used give the same bits."""
    params, x = layer_params(4, seed=3), np.random.default_rng(4).standard_normal((2, 3, 4))
    layer = adapter.make_mha(params=params, num_heads=2)
    out = np.asarray(layer(x))
    copied = np.asarray(copy.deepcopy(layer)(x))
    pickled = np.asarray(pickle.loads(pickle.dumps(layer))(x))
    return np.array_equal(out, copied) and np.array_equal(out, pickled)


def threads_compute_the_same(adapter):
    """Eight threads on one causal layer, lengths 1 to 9 mixed, give what the plain formula gives."""
    params, r = layer_params(4, seed=7), np.random.default_rng(8)
    layer = adapter.make_mha(params=params, num_heads=2, causal="lower_right")
    xs = [r.standard_normal((1, 1 + i % 9, 4)) for i in range(200)]
    expected = [plain_causal_layer(x, params, 2) for x in xs]
    with ThreadPoolExecutor(8) as pool:
        outs = list(pool.map(lambda x: np.asarray(layer(x)), xs))
    return all(close(out, e) for out, e in zip(outs, expected, strict=True))


def plain_causal_layer(x, params, n_heads):
    """The textbook formula, head by head, for inputs that need no care."""
    q, k, v = (x @ params[f"w{name}"].T + params[f"b{name}"] for name in "qkv")
    d_head, outs = q.shape[-1] // n_heads, []
    for h in range(n_heads):
        head = slice(h * d_head, (h + 1) * d_head)
        scores = q[..., head] @ np.swapaxes(k[..., head], -1, -2) / np.sqrt(d_head)
        scores = np.where(np.tril(np.ones(scores.shape[-2:], bool)), scores, -np.inf)
        e = np.exp(scores - scores.max(-1, keepdims=True))
        outs.append(e / e.sum(-1, keepdims=True) @ v[..., head])
    return np.concatenate(outs, -1) @ params["wo"].T + params["bo"]


CASES = [
    Case(
        id="B073",
        kind="scale-default",
        source="karpathy/ng-video-lecture#6; aladdinpersson/Machine-Learning-Collection#65",
        url="https://github.com/karpathy/ng-video-lecture/pull/6",
        symptom="Multi-head layer scales by the embedding width instead of the head width",
        op="mha",
        inputs={
            "query": np.array([[[1.0, 0.0], [1 + LN2, 0.0]]]),
            "key": None,
            "value": None,
            "num_heads": 2,
            "params": {"wq": np.eye(2), "wk": np.eye(2), "wv": np.eye(2), "wo": np.eye(2)},
        },
        right="E=2, 2 heads: column 0 = 1.46209812, 1.52942246; column 1 = 0",
        expected={"out": np.array([[[1.4620981203732968, 0], [1.5294224555651232, 0]]])},
        wrong={"out": np.array([[[1.4298461007336163, 0], [1.4826560331247176, 0]]])},
    ),
    Case(
        id="B088",
        kind="head-split-merge",
        source="reczoo/FuxiCTR#30; hyunwoongko/transformer#15",
        url="https://github.com/reczoo/FuxiCTR/issues/30",
        symptom="Heads split with a plain reshape: tokens and features mix",
        op="mha",
        inputs={
            "query": np.array([[[1.0, 2, 3, 4], [5, 6, 7, 8]]]),
            "key": None,
            "value": None,
            "num_heads": 2,
            "params": {"wq": np.zeros((4, 4)), "wk": np.zeros((4, 4)), "wv": np.eye(4), "wo": np.eye(4)},
        },
        right="zero q/k weights -> uniform attention -> token mean [3,4,5,6] twice",
        expected={"out": np.array([[[3.0, 4, 5, 6], [3, 4, 5, 6]]])},
        wrong={"out": np.array([[[2.0, 3, 6, 7], [2, 3, 6, 7]]])},
    ),
    Case(
        id="B090",
        kind="batch-isolation",
        source="aipixel/AEMatter#3",
        url="https://github.com/aipixel/AEMatter/issues/3",
        symptom="Batch axis taken for the sequence axis: items attend to each other",
        op="scenario",
        run=items_do_not_see_each_other,
        right="each item alone gives the same as in the batch",
    ),
    Case(
        id="B141",
        kind="weights-output",
        source="pytorch/pytorch#34537; pytorch/pytorch#47583; facebookresearch/fairseq#3365",
        url="https://github.com/pytorch/pytorch/issues/34537",
        symptom="Only head-averaged weights are available",
        op="mha",
        inputs={
            "query": np.array([[[1.0, 0.0]]]),
            "key": np.array([[[0.0, 0.0], [LN2, 0.0]]]),
            "value": np.array([[[0.0, 0], [0, 0]]]),
            "num_heads": 2,
            "want": ("weights",),
            "params": {"wq": np.eye(2), "wk": np.eye(2), "wv": np.eye(2), "wo": np.eye(2)},
        },
        right="weights (B, H, n_q, n_k): head 0 [1/3, 2/3], head 1 [.5, .5]",
        expected={"weights": np.array([[[[1 / 3, 2 / 3]], [[0.5, 0.5]]]])},
        wrong={"weights": np.array([[[[5 / 12, 7 / 12]], [[5 / 12, 7 / 12]]]])},
        contested="per head / averaged by default",
    ),
    Case(
        id="B160",
        kind="mha-packing",
        source="NVIDIA/apex#838; pytorch/pytorch#32764",
        url="https://github.com/NVIDIA/apex/issues/838",
        symptom="Packed in-projection read in another order than q, k, v",
        op="mha",
        inputs={
            "query": np.array([[[0.0], [LN2]]]),
            "key": None,
            "value": None,
            "num_heads": 1,
            "params": {
                "in_proj_weight": col(1, 1, 10),
                "in_proj_bias": np.array([1.0, 0, 0]),
                "wo": np.array([[1.0]]),
                "bo": np.array([0.0]),
            },
        },
        right="4.62098120, 5.29422446",
        expected={"out": np.array([[[4.620981203732969], [5.294224555651232]]])},
    ),
    Case(
        id="B162",
        kind="mha-dims",
        source="pytorch/pytorch#21288",
        url="https://github.com/pytorch/pytorch/pull/21288",
        symptom="Key and value widths that differ from the query width",
        op="mha",
        inputs={
            "query": np.array([[[1.0, 1.0]]]),
            "key": np.array([[[1.0, 2.0, 3.0]]]),
            "value": np.array([[[7.0]]]),
            "num_heads": 1,
            "params": {"wq": np.eye(2), "wk": np.ones((2, 3)), "wv": np.array([[1.0], [2.0]]), "wo": np.eye(2)},
        },
        right="[7, 14]",
        expected={"out": np.array([[[7.0, 14.0]]])},
        contested="kdim/vdim supported or not",
    ),
    Case(
        id="B164",
        kind="mha-config",
        source="pytorch/torchtitan#4276",
        url="https://github.com/pytorch/torchtitan/pull/4276",
        symptom="Width 5 with 2 heads rounds down silently",
        op="mha",
        inputs={
            "query": np.ones((1, 1, 5)),
            "key": None,
            "value": None,
            "num_heads": 2,
            "params": {"wq": np.eye(5), "wk": np.eye(5), "wv": np.eye(5), "wo": np.eye(5)},
        },
        right="error",
        raises=True,
    ),
    Case(
        id="B166",
        kind="layer-state",
        source="sktime/sktime#10928",
        url="https://github.com/sktime/sktime/issues/10928",
        symptom="Layer cannot be deep-copied after a forward pass",
        op="scenario",
        run=copies_compute_the_same,
        right="deepcopy and pickle after use give equal results",
    ),
    Case(
        id="B168",
        kind="thread-safety",
        source="unslothai/unsloth#4173",
        url="https://github.com/unslothai/unsloth/pull/4173",
        symptom="Shared mask cache updated in two steps: races between threads",
        op="scenario",
        run=threads_compute_the_same,
        right="8 threads, one causal layer, mixed lengths: equal to a plain reference",
    ),
]
