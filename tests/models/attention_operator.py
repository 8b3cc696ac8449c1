"""A layer of attention as an ONNX graph around the operator `Attention`, for onnxruntime; nothing of headwise in it."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

Array = NDArray[Any]
OPSET = 23  # the first with `Attention`
AFTER_SOFTMAX = 3  # qk_matmul_output_mode: what the fourth output is


def session(model: Any) -> Any:
    """A session of one thread that runs the graph as it is written."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.log_severity_level = 3  # it warns of the shape of the fourth output, which it infers wrongly
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def layer(weights: Mapping[str, Array], n_heads: int) -> Any:
    """The graph x (B, n, d), mask (B, 1, n, n) -> y, weights; ``weights``: w_q, ... (out, in), b_q, ..."""
    constants = [numpy_helper.from_array(np.ascontiguousarray(array), name) for name, array in weights.items()]
    nodes = []
    for letter in "qkv":
        nodes += _linear("x", letter)
    inputs, outputs = ["q", "k", "v", "mask"], ["attended", "", "", "weights"]
    heads = {"q_num_heads": n_heads, "kv_num_heads": n_heads, "qk_matmul_output_mode": AFTER_SOFTMAX}
    nodes += [helper.make_node("Attention", inputs, outputs, **heads), *_linear("attended", "o", to="y")]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["B", "n", weights["w_q"].shape[1]])
    mask = helper.make_tensor_value_info("mask", TensorProto.BOOL, ["B", 1, "n", "n"])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["B", "n", weights["w_o"].shape[0]])
    probabilities = helper.make_tensor_value_info("weights", TensorProto.FLOAT, ["B", n_heads, "n", "n"])
    opsets = [helper.make_opsetid("", OPSET)]
    body = helper.make_graph(nodes, "layer", [x, mask], [y, probabilities], constants)
    model = helper.make_model(body, opset_imports=opsets, ir_version=helper.find_min_ir_version_for(opsets))
    onnx.checker.check_model(model)
    return model


def _linear(x: str, letter: str, to: str | None = None) -> list[Any]:
    turned, product = f"w_{letter}_turned", f"{letter}_product"
    return [
        helper.make_node("Transpose", [f"w_{letter}"], [turned], perm=[1, 0]),
        helper.make_node("MatMul", [x, turned], [product]),
        helper.make_node("Add", [product, f"b_{letter}"], [to or letter]),
    ]
