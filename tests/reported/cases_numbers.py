"""Reported cases: the arithmetic of a score: softmax, scale, softcap, sinks, dropout, dtypes."""

import warnings

import numpy as np

from reported.case import LN2, LN3, Case, close, col

E = float(np.e)


def stays_float32(got, inputs):
    """The result has the dtype of q, k and v."""
    return np.asarray(got["out"]).dtype == np.float32


def underflow_is_silent(adapter):
    """The caller's `np.errstate(all="raise")` does not make a right call fail."""
    with np.errstate(all="raise"), warnings.catch_warnings():
        warnings.simplefilter("error")
        out = adapter.attention(q=col(1), k=col(0, -10000), v=col(6, 12))["out"]
    return close(out, col(6))


def one_key_for_200_queries(adapter, **dropout):
    """Every weight is 1, and so is every output that is not dropped or scaled."""
    return adapter.attention(q=np.zeros((200, 1)), k=np.zeros((1, 1)), v=np.ones((1, 1)), **dropout)["out"]


def no_dropout_outside_training(adapter):
    """With training=False the result is the one without dropout."""
    out = one_key_for_200_queries(adapter, dropout_p=0.5, training=False, seed=0)
    return close(out, np.ones((200, 1)))


def kept_weights_are_scaled(adapter):
    """At p = 0.2 every output is 0 or 1.25, and about 80 % are kept."""
    out = np.asarray(one_key_for_200_queries(adapter, dropout_p=0.2, training=True, seed=1)).ravel()
    expected = np.isclose(out, 0) | np.isclose(out, 1.25)
    return bool(expected.all() and 0.65 < (out > 0).mean() < 0.93)


CASES = [
    Case(
        id="B077",
        kind="softmax-axis",
        source="labmlai/annotated_deep_learning_paper_implementations#146",
        url="https://github.com/labmlai/annotated_deep_learning_paper_implementations/issues/146",
        symptom="Normalised over queries instead of keys",
        op="softmax",
        inputs={"x": np.array([[0.0, LN2], [LN3, 0.0]]), "axis": -1},
        right="rows [1/3,2/3],[3/4,1/4]",
        expected={"out": np.array([[1 / 3, 2 / 3], [3 / 4, 1 / 4]])},
        wrong={"out": np.array([[1 / 4, 2 / 3], [3 / 4, 1 / 3]])},
    ),
    Case(
        id="B079",
        kind="softmax-overflow",
        source="scipy/scipy#23225",
        url="https://github.com/scipy/scipy/issues/23225",
        symptom="Very large finite score",
        op="softmax",
        inputs={"x": np.array([[0.0, 1e300], [0.0, -1e300]]), "axis": -1},
        right="[0, 1] and [1, 0], no NaN",
        expected={"out": np.array([[0.0, 1], [1, 0]])},
        wrong={"out": np.array([[0.0, np.nan], [1, 0]])},
    ),
    Case(
        id="B081",
        kind="softmax-inf",
        source="pytorch/pytorch#6864",
        url="https://github.com/pytorch/pytorch/issues/6864",
        symptom="Softmax with one +inf",
        op="softmax",
        inputs={"x": np.array([0.0, np.inf]), "axis": -1},
        right="[NaN, NaN] or the limit [0, 1]",
        expected={"out": np.array([0.0, 1.0])},
        alternatives={"NaN row": {"out": np.array([np.nan, np.nan])}},
        contested="limit (SciPy PR, NNlib) / NaN (torch, JAX documents NaN)",
    ),
    Case(
        id="B046",
        kind="int-input",
        source="StackOverflow softmax question (splunktool.com copy)",
        url="https://splunktool.com/in-python-calculate-the-softmax-of-an-array-columnwise-using-numpy",
        symptom="Softmax of an integer array is all zeros: the result buffer took the integer dtype",
        op="softmax",
        inputs={"x": np.array([[0, 1], [2, 2]]), "axis": -1},
        right="[[.26894142,.73105858],[.5,.5]] as float",
        expected={"out": np.array([[0.2689414213699951, 0.7310585786300049], [0.5, 0.5]])},
        wrong={"out": np.array([[0.0, 0.0], [0.0, 0.0]])},
    ),
    Case(
        id="B048",
        kind="int-input",
        source="rsokl/MyGrad#193",
        url="https://github.com/rsokl/MyGrad/issues/193",
        symptom="Integer q, k, v round the answer down to an integer",
        op="attention",
        inputs={"q": np.array([[1]]), "k": np.array([[0], [0]]), "v": np.array([[6], [13]])},
        right="9.5 as a float, not 9",
        expected={"out": col(9.5)},
        wrong={"out": col(9)},
        may_raise=True,
        contested="ints promoted to float64 / refused",
    ),
    Case(
        id="B044",
        kind="dtype-promotion",
        source="netket/netket#1218; numpy NEP 50",
        url="https://github.com/netket/netket/pull/1218",
        symptom="np.sqrt(d) is a float64 scalar and promotes float32 arrays under NumPy 2",
        op="attention",
        inputs={"q": np.ones((2, 4), np.float32), "k": np.ones((3, 4), np.float32), "v": np.ones((3, 4), np.float32)},
        right="float32 in -> float32 out",
        check=stays_float32,
    ),
    Case(
        id="B050",
        kind="mixed-dtype",
        source="pytorch/pytorch#161489",
        url="https://github.com/pytorch/pytorch/pull/161489",
        symptom="A float64 mask makes the scores float64 and the later matmul refuses or changes dtype",
        op="attention",
        inputs={
            "q": col(1, dtype=np.float32),
            "k": col(0, LN2, LN3, dtype=np.float32),
            "v": col(6, 12, 18, dtype=np.float32),
            "bias": np.array([[0.0, 0.0, -np.inf]]),
        },
        right="10; float32 result (or a clear error)",
        expected={"out": col(10)},
        check=stays_float32,
        may_raise=True,
        contested="follow q's dtype / promote / refuse",
        rtol=1e-6,
    ),
    Case(
        id="B040",
        kind="half-overflow",
        source="ultralytics/ultralytics#24990",
        url="https://github.com/ultralytics/ultralytics/pull/24990",
        symptom="float16 q.k exceeds 65504 before it is scaled: inf - inf = NaN",
        op="attention",
        inputs={
            "q": np.full((1, 4), 200, np.float16),
            "k": np.array([[200] * 4, [199] * 4], np.float16),
            "v": col(1, 2, dtype=np.float16),
        },
        right="1.0",
        expected={"out": col(1)},
        wrong={"out": col(np.nan)},
        rtol=0.002,
    ),
    Case(
        id="B042",
        kind="half-accumulation",
        source="sonos/tract#2586",
        url="https://github.com/sonos/tract/pull/2586",
        symptom="float16 softmax denominator sticks at 2048, so a long flat row no longer sums to 1",
        op="attention",
        inputs={
            "q": np.zeros((1, 1), np.float16),
            "k": np.zeros((4096, 1), np.float16),
            "v": np.ones((4096, 1), np.float16),
        },
        right="4096 equal keys, all values 1 -> 1.0",
        expected={"out": col(1)},
        wrong={"out": col(2)},
        rtol=0.004,
    ),
    Case(
        id="B071",
        kind="scale-explicit",
        source="ml-explore/mlx#4097; SKaiNET-developers/SKaiNET#860",
        url="https://github.com/ml-explore/mlx/issues/4097",
        symptom="scale=0.0 is falsy and gets replaced by the default",
        op="attention",
        inputs={"q": col(1), "k": col(0, LN2, LN3), "v": col(6, 12, 18), "scale": 0.0},
        right="uniform: 12",
        expected={"out": col(12)},
        wrong={"out": col(14)},
        contested="0.0 taken literally (torch) / treated as 'unset' (SKaiNET)",
    ),
    Case(
        id="B131",
        kind="softcap-order",
        source="onnx/onnx#7865",
        url="https://github.com/onnx/onnx/issues/7865",
        symptom="Softcap after the mask turns -inf into -cap: masked keys leak",
        op="attention",
        inputs={
            "q": col(1),
            "k": col(0, 0, 50),
            "v": col(6, 12, 999),
            "mask": np.array([[True, True, False]]),
            "softcap": 1.0,
            "want": ("weights",),
        },
        right="9, masked weight exactly 0",
        expected={"out": col(9), "weights": np.array([[0.5, 0.5, 0.0]])},
        wrong={"out": col((6 + 12 + 999 / E) / (2 + 1 / E))},
        contested="cap before mask/bias (Gemma, FlashAttention, ONNX since 7867) / after (older ONNX text)",
    ),
    Case(
        id="B133",
        kind="softcap-formula",
        source="sgl-project/sgl-kernel-xpu#491",
        url="https://github.com/sgl-project/sgl-kernel-xpu/pull/491",
        symptom="Softcap accepted but never applied",
        op="attention",
        inputs={"q": col(1), "k": col(0, 1000), "v": col(6, 12), "softcap": 1.0},
        right="score 1000 capped to 1: 10.3863515",
        expected={"out": col(10.38635147178003)},
        wrong={"out": col(12)},
    ),
    Case(
        id="B181",
        kind="sink",
        source="fla-org/flash-linear-attention#831",
        url="https://github.com/fla-org/flash-linear-attention/pull/831",
        symptom="Sink logit belongs in the denominator only",
        op="attention",
        inputs={
            "q": np.ones((1, 1, 1, 1)),
            "k": col(0, LN2)[None, None],
            "v": col(6, 12)[None, None],
            "sink": np.array([LN3]),
            "want": ("weights",),
        },
        right="weights 1/6, 2/6 (sum 1/2); out 5",
        expected={"out": np.full((1, 1, 1, 1), 5.0), "weights": np.array([[[[1 / 6, 2 / 6]]]])},
        wrong={"out": np.full((1, 1, 1, 1), 10.0)},
        contested="feature may be out of scope",
    ),
    Case(
        id="B136",
        kind="dropout-determinism",
        source="pytorch/pytorch#124464; huggingface/pytorch-image-models#1978",
        url="https://github.com/pytorch/pytorch/issues/124464",
        symptom="Dropout stays on outside training",
        op="scenario",
        run=no_dropout_outside_training,
        right="training=False: identical to dropout 0",
    ),
    Case(
        id="B138",
        kind="dropout-scaling",
        source="pytorch/pytorch#42929; facebookresearch/fairseq#351; pytorch/pytorch#90842",
        url="https://github.com/pytorch/pytorch/issues/42929",
        symptom="Kept weights must be scaled by 1/(1-p): outputs 0 or 1.25 for p=.2, about 80% kept",
        op="scenario",
        run=kept_weights_are_scaled,
        right="values in {0, 1.25}, mean near 1",
        contested="returned weights before or after dropout (sums other than 1)",
    ),
    Case(
        id="B084",
        kind="fp-warnings",
        source="scikit-optimize/scikit-optimize#903",
        url="https://github.com/scikit-optimize/scikit-optimize/pull/903",
        symptom="Harmless underflow in exp raises when the user runs with np.errstate(under='raise')",
        op="scenario",
        run=underflow_is_silent,
        right="no exception under errstate(all='raise'); value 6",
        contested="library isolates its own FP flags / not promised",
    ),
]
