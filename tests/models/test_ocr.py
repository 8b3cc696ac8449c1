"""PP-OCRv6 small: both blocks of attention, fused q, k and v, 8 heads of 15, against the model's own graph.

The graph is that of the package, run by onnxruntime; what goes into a block, its weights after the softmax and what
comes out are made outputs of it. They are found by names, which are those of the file with the sha256 of `weights.py`.
"""

from typing import Any, NamedTuple

import numpy as np
import onnx
import pytest
from models import attention_operator
from models.weights import OCR
from onnx import numpy_helper

import headwise as hw

TOLERANCE = 2e-6
D_MODEL, N_HEADS, D_HEAD = 120, 8, 15
Record = Any  # of pytest's record_property


class Block(NamedTuple):
    """Names in the graph."""

    x: str  # (B, n, 120)
    fused: str  # of the projection to q, k and v: .w_0 (120, 360), .b_0
    weights: str  # (B, 8, n, n)
    projection: str
    y: str  # (B, n, 120)
    scale: str


BLOCKS = [
    Block("p2o.pd_op.layer_norm.0.0", "linear_0", "p2o.pd_op.softmax.0.0", "linear_1", "Add.167", "auto.cast.74"),
    Block("p2o.pd_op.layer_norm.2.0", "linear_4", "p2o.pd_op.softmax.1.0", "linear_5", "Add.189", "auto.cast.84"),
]
TAPPED = [name for block in BLOCKS for name in (block.x, block.weights, block.y, block.scale)]


@pytest.fixture(scope="module")
def graph() -> Any:
    model = onnx.load(OCR.path)
    have = {output.name for output in model.graph.output}
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in TAPPED if name not in have)
    return model


@pytest.fixture(scope="module")
def arrays(graph: Any) -> dict[str, Any]:
    """The initializers, and what was tapped for two pictures of noise, 48 x 320: 40 tokens each."""
    pictures = np.random.default_rng(0).uniform(-1, 1, (2, 3, 48, 320)).astype(np.float32)
    tapped = attention_operator.session(graph).run(TAPPED, {"x": pictures})
    named = {one.name: numpy_helper.to_array(one) for one in graph.graph.initializer}
    return named | dict(zip(TAPPED, tapped, strict=True))


def layer(arrays: dict[str, Any], block: Block) -> hw.MultiHeadAttention:
    weights = {"w_qkv": f"{block.fused}.w_0", "w_o": f"{block.projection}.w_0"}
    biases = {"b_qkv": f"{block.fused}.b_0", "b_o": f"{block.projection}.b_0"}
    state = {name: arrays[name] for name in (*weights.values(), *biases.values())}
    return hw.weights.from_state_dict(state, n_heads=N_HEADS, pattern=weights | biases | {"layout": "conv1d"})


@pytest.mark.parametrize("i", range(2))
def test_a_block_is_what_the_graph_computes(arrays: dict[str, Any], i: int, record_property: Record) -> None:
    block = BLOCKS[i]
    attention, x = layer(arrays, block), arrays[block.x]
    assert x.shape == (2, 40, D_MODEL)
    assert attention.d_head == D_HEAD
    assert np.float32(arrays[block.scale].item()) == pytest.approx(1 / np.sqrt(D_HEAD), rel=1e-6)
    defined, weights = attention(x, return_weights=True)  # the definition
    difference = max(np.abs(one - arrays[block.y]).max() for one in (attention(x), defined))
    record_property(
        f"PP-OCRv6 block {i}: largest difference from onnxruntime",
        f"y {difference:.1e}, weights {np.abs(weights - arrays[block.weights]).max():.1e}",
    )
    assert difference <= TOLERANCE
    assert np.abs(weights - arrays[block.weights]).max() <= TOLERANCE
    assert np.abs(arrays[block.y]).max() > 0.1  # so that the bound says something
    assert arrays[block.weights].std() > 0.01
