"""The peers: who they are, how they are installed, and each one's attention as a closure that only runs.

A `prepare` takes a case, its inputs and the number of threads, does everything that is not attention (layouts, dense
masks, sessions, compiling), and returns a function that runs once and gives the result as (B, H, n_q, d_v), or
gradients where the case asks for them.
"""

import importlib
import importlib.util
import math
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from headwise.bench import gradients, serving_peers
from headwise.bench.arrays import Inputs, Run, dense_bias, dense_mask, options
from headwise.bench.cases import Case
from headwise.core.engine import attention
from headwise.core.shapes import Array
from headwise.core.softmax import exponentials

Prepare = Callable[[Case, Any, int], Run]  # a case, the inputs of its workload, threads


class UnsupportedError(ValueError):
    """A peer has no such attention."""


class Peer(NamedTuple):
    """Another implementation of attention."""

    name: str
    modules: tuple[str, ...]  # that must be importable
    packages: tuple[str, ...]  # that bring them; the first one's version is reported
    prepare: Prepare
    spins: bool = False  # its workers keep cores busy for a while after it: OpenBLAS 110 ms, ONNX Runtime 20 to 50
    note: str = ""
    gradients: str = ""  # what its gradients are; empty: it has none
    serving: str = ""  # what it was where serving is measured
    workloads: Mapping[str, Prepare] = MappingProxyType({})  # besides attention

    def prepare_for(self, case: Case, inputs: Any, threads: int) -> Run:
        """Return a run of a case's workload, ready to be timed.

        Raises
        ------
        UnsupportedError
            It has no such workload, or not with these options.
        """
        prepare = self.prepare if case.what == "attention" else self.workloads.get(case.what)
        if prepare is None:
            raise UnsupportedError(f"it has no workload {case.what}")
        return prepare(case, inputs, threads)

    def stands_in(self, table: str) -> bool:
        """Whether it can be compared in a table."""
        return table == "forward" or bool({"backward": self.gradients, "serving": self.serving}[table])

    @property
    def install(self) -> str:
        """The command that installs it."""
        return f"pip install {' '.join(self.packages)}"


def ours(case: Case, inputs: Inputs, threads: int) -> Run:
    """Return a run of the engine, or of gradients, on at most the threads of NumPy's BLAS, which measuring sets."""
    if case.timed != "forward":
        return gradients.ours(case, inputs, threads)
    chosen = options(case, inputs)
    if not case.dropout:
        return lambda: attention(inputs.q, inputs.k, inputs.v, **chosen)
    return lambda: attention(inputs.q, inputs.k, inputs.v, **chosen, rng=np.random.default_rng(0))


def _plain(case: Case, double: bool = False, grouped: bool = False, any_width: bool = True, both: bool = False) -> None:
    """Refuse what a peer does not have, or is not asked for: most are compared on plain attention only.

    `both`: it has gradients, made by both passes together.
    """
    lacks = {
        "it is measured without masks, bias and dropout": bool(
            case.padded or case.window or case.random or case.alibi or case.dropout
        ),
        "it aligns a causal mask with the first key, not the last": case.causal and case.shape[2] != case.keys,
        "it does not compute in float64": case.dtype == "float64" and not double,
        "it has no grouped heads": case.kv_heads not in (None, case.shape[1]) and not grouped,
        "it wants d_v = d_k": case.d_v not in (None, case.shape[3]) and not any_width,
        "it has no gradients": case.timed != "forward" and not both,
        "it has no backward pass alone": case.timed == "backward" and both,
    }
    for what, lacking in lacks.items():
        if lacking:
            raise UnsupportedError(what)


# --------------------------------------------------------------------------------------------- NumPy
def _naive(case: Case, inputs: Inputs, threads: int) -> Run:
    """The formula as it is written everywhere: all scores at once, in NumPy, masked by a choice."""
    if case.timed != "forward" and case.dropout:
        raise UnsupportedError("its gradients are measured without dropout")
    q, k, v = inputs[:3]
    seen, bias, rng = dense_mask(case, inputs, causal=True), dense_bias(case, inputs), np.random.default_rng(0)
    scale, group, shape = 1 / math.sqrt(q.shape[-1]), q.shape[1] // k.shape[1], q.shape
    if group > 1 and seen is None and bias is None:  # its queries side by side: k and v need not be repeated
        q, group = q.reshape(*k.shape[:2], -1, shape[-1]), 1

    def attend() -> tuple[Array, Array]:
        keys, values = (np.repeat(x, group, axis=1) if group > 1 else x for x in (k, v))
        scores = q @ keys.swapaxes(-1, -2) * scale
        if bias is not None:
            scores = scores + bias
        elif seen is not None:
            scores = np.where(seen, scores, -np.inf)
        weights, _ = exponentials(scores)
        weights /= weights.sum(axis=-1, keepdims=True)
        if case.dropout:
            weights *= (rng.random(weights.shape, np.float32) >= case.dropout) / np.float32(1 - case.dropout)
        return weights, np.asarray(weights @ values).reshape(*shape[:-1], -1)

    return (lambda: attend()[1]) if case.timed == "forward" else gradients.naive(case, inputs, attend)


# --------------------------------------------------------------------------------------------- PyTorch
def _torch(case: Case, inputs: Inputs, threads: int) -> Run:
    torch: Any = importlib.import_module("torch")
    torch.set_num_threads(threads)
    flag = case.causal and dense_mask(case, inputs, causal=False) is None and not case.alibi
    flag = flag and case.shape[2] == case.keys  # its own flag aligns with the first key, and goes with no mask
    dense = dense_bias(case, inputs) if case.alibi else dense_mask(case, inputs, causal=not flag)
    mask = None if dense is None else torch.from_numpy(dense)
    more = {"enable_gqa": True} if case.kv_heads not in (None, case.shape[1]) else {}
    function = torch.nn.functional.scaled_dot_product_attention
    attend = partial(function, attn_mask=mask, dropout_p=case.dropout, is_causal=flag, **more)
    if case.timed != "forward":
        return gradients.autograd(case, inputs, torch, attend)
    q, k, v = (torch.from_numpy(x) for x in inputs[:3])

    def run() -> Array:
        with torch.inference_mode():
            made = attend(q, k, v)
        result: Array = made.numpy()
        return result

    return run


# --------------------------------------------------------------------------------------------- ONNX
def _model(case: Case, inputs: Inputs, operator: str, domain: str, shapes: Sequence[Any], **attributes: int) -> Any:
    """A model of one node: inputs q, k, v and output o of these shapes."""
    onnx: Any = importlib.import_module("onnx")
    helper: Any = importlib.import_module("onnx.helper")
    kind = helper.np_dtype_to_tensor_dtype(inputs.q.dtype)
    values = [helper.make_tensor_value_info(name, kind, shape) for name, shape in zip("qkvo", shapes, strict=True)]
    node = helper.make_node(operator, ["q", "k", "v"], ["o"], domain=domain, **attributes)
    sets = [helper.make_opsetid("", 23), *([helper.make_opsetid(domain, 1)] if domain else [])]
    model = helper.make_model(helper.make_graph([node], case.name, values[:3], values[3:]), opset_imports=sets)
    model.ir_version = min(model.ir_version, 10)  # a newer one than the runtime knows would be refused
    onnx.checker.check_model(model)
    return model


def _onnxruntime(case: Case, inputs: Inputs, threads: int) -> Run:
    """com.microsoft.MultiHeadAttention, which takes (B, n, H * d)."""
    _plain(case)
    runtime: Any = importlib.import_module("onnxruntime")
    b, h, n, _ = case.shape
    flat = [np.ascontiguousarray(x.swapaxes(1, 2)).reshape(b, x.shape[2], -1) for x in inputs[:3]]
    shapes = [*(x.shape for x in flat), (b, n, flat[2].shape[2])]
    model = _model(
        case, inputs, "MultiHeadAttention", "com.microsoft", shapes, num_heads=h, unidirectional=int(case.causal)
    )
    chosen = runtime.SessionOptions()
    chosen.intra_op_num_threads = threads
    session = runtime.InferenceSession(model.SerializeToString(), chosen, providers=["CPUExecutionProvider"])
    feed = dict(zip("qkv", flat, strict=True))

    def run() -> Array:
        made: Array = session.run(None, feed)[0]
        return made.reshape(b, n, h, -1).swapaxes(1, 2)

    return run


def _onnx(case: Case, inputs: Inputs, threads: int) -> Run:
    """The Attention operator in ONNX's own evaluator, which is NumPy."""
    _plain(case, double=True, grouped=True)
    reference: Any = importlib.import_module("onnx.reference")
    shapes = [*(x.shape for x in inputs[:3]), (*case.shape[:3], inputs.v.shape[3])]
    evaluator = reference.ReferenceEvaluator(_model(case, inputs, "Attention", "", shapes, is_causal=int(case.causal)))
    feed = dict(zip("qkv", inputs[:3], strict=True))
    return lambda: np.asarray(evaluator.run(None, feed)[0])


# --------------------------------------------------------------------------------------------- JAX
def _jax(case: Case, inputs: Inputs, threads: int) -> Run:
    """jax.nn.dot_product_attention, jitted, which takes (B, n, H, d)."""
    _plain(case, grouped=True, any_width=False, both=True)
    os.environ["PJRT_NPROC"] = str(threads)  # read once, when XLA makes its pool: the first case decides
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    jax: Any = importlib.import_module("jax")
    given = [*inputs[:3], *([] if inputs.d_out is None else [inputs.d_out])]
    q, k, v, *d_out = (jax.numpy.asarray(np.ascontiguousarray(x.swapaxes(1, 2))) for x in given)
    plain = partial(jax.nn.dot_product_attention, is_causal=case.causal)
    if d_out:
        return gradients.jitted(jax, plain, (q, k, v), *d_out)
    attend = jax.jit(plain)
    return lambda: np.asarray(attend(q, k, v).block_until_ready()).swapaxes(1, 2)


# --------------------------------------------------------------------------------------------- OpenVINO
def _openvino(case: Case, inputs: Inputs, threads: int) -> Run:
    """Its scaled dot-product attention, compiled for the CPU, held to float32."""
    _plain(case)
    sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]  # it would report home, from a fork
    openvino: Any = importlib.import_module("openvino")
    made: Any = importlib.import_module("openvino.opset13")
    arrays = list(inputs[:3])
    parameters = [made.parameter(list(x.shape), x.dtype.type) for x in arrays]
    node = made.scaled_dot_product_attention(*parameters, causal=case.causal)
    how = {"INFERENCE_NUM_THREADS": threads, "NUM_STREAMS": 1, "INFERENCE_PRECISION_HINT": "f32"}
    compiled = openvino.Core().compile_model(openvino.Model([node], parameters, "attention"), "CPU", how)
    request = compiled.create_infer_request()

    def run() -> Array:
        request.infer(arrays, share_inputs=True, share_outputs=True)
        result: Array = request.get_output_tensor(0).data
        return result

    return run


PEERS: dict[str, Peer] = {
    peer.name: peer
    for peer in (
        Peer(
            "naive",
            ("numpy",),
            ("numpy",),
            _naive,
            spins=True,
            note="all scores at once in NumPy",
            gradients="the formulas in NumPy; the backward pass takes the weights that the forward pass kept",
        ),
        Peer(
            "torch",
            ("torch",),
            ("torch",),
            _torch,
            note="F.scaled_dot_product_attention, inference mode",
            gradients="torch.autograd.grad of F.scaled_dot_product_attention",
            serving=serving_peers.TORCH_NOTE,
            workloads=serving_peers.TORCH,
        ),
        Peer(
            "onnxruntime",
            ("onnxruntime", "onnx"),
            ("onnxruntime", "onnx"),
            _onnxruntime,
            spins=True,
            note="com.microsoft.MultiHeadAttention; its layout (B, n, H d) is made before timing",
        ),
        Peer("onnx", ("onnx",), ("onnx",), _onnx, spins=True, note="Attention in the reference evaluator"),
        Peer(
            "jax",
            ("jax",),
            ("jax",),
            _jax,
            note="jax.nn.dot_product_attention, jitted; its layout (B, n, H, d) is made before timing; "
            "threads by PJRT_NPROC",
            gradients="jax.grad of sum(out * d_out), jitted: both passes; its layout and threads as without gradients",
        ),
        Peer("openvino", ("openvino",), ("openvino",), _openvino, note="scaled_dot_product_attention, held to float32"),
    )
}


def is_installed(peer: Peer) -> bool:
    """Whether all that a peer needs could be imported; nothing is."""
    return all(importlib.util.find_spec(name) is not None for name in peer.modules)


def stands_in(name: str, table: str) -> bool:
    """Whether a peer of this name can be compared in a table."""
    return name in PEERS and PEERS[name].stands_in(table)


def chosen(names: Sequence[str] | None) -> list[Peer]:
    """Return the peers of these names; None is all of them, installed or not.

    Raises
    ------
    ValueError
        If there is no peer of a name.

    Examples
    --------
    >>> [peer.name for peer in chosen(["torch", "naive"])], chosen(["torch"])[0].install
    (['naive', 'torch'], 'pip install torch')
    """
    if names is None:
        return list(PEERS.values())
    unknown = [name for name in names if name not in PEERS]
    if unknown or not names:
        raise ValueError(f"expected names of peers ({', '.join(PEERS)}), got '{','.join(unknown)}'")
    return [peer for peer in PEERS.values() if peer.name in names]
