"""Makes `tests/data/checkpoints`: one attention layer of each naming pattern, run by the library that it comes from.

Each is a tiny model with random weights from a seed, so there is no licence of a model to keep. Three files tell of it:

    NAME.safetensors   the attention's part of the state dict, under the names that the library gives it in a file
    NAME.npz           what went into the attention, what came out after its last projection, and its weights
    NAME.json          where it lies in the file, the model's config, and the versions of the libraries

Biases and the weights of norms are random too: libraries begin them with 0 and 1, which would hide their absence. This
file knows nothing of headwise, so what it makes can judge it.

    python -m venv checkpoints-env
    checkpoints-env/bin/pip install numpy==2.4.6 torch==2.14.1 transformers==5.24.0 safetensors==0.8.0
    checkpoints-env/bin/pip install timm==1.0.31 torchvision==0.29.1

    checkpoints-env/bin/python tools/make_checkpoints.py            # makes the files again
    checkpoints-env/bin/python tools/make_checkpoints.py --check    # only compares; exit status 1 if they differ

The same versions on the same machine make the same bytes. Another processor may round sums in float32 differently;
hence `--check` compares values, within 1e-5.
"""

import argparse
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

try:
    import safetensors.numpy  # type: ignore[import-not-found,unused-ignore]
    import timm  # type: ignore[import-not-found,import-untyped,unused-ignore]
    import timm.layers  # type: ignore[import-not-found,import-untyped,unused-ignore]
    import torch  # type: ignore[import-not-found,unused-ignore]
    import transformers  # type: ignore[import-not-found,import-untyped,unused-ignore]
except ImportError as error:
    raise SystemExit(f"make_checkpoints: no module {error.name!r}; the commands:\n\n{__doc__}") from None

Arrays = dict[str, NDArray[Any]]

FOLDER = Path(__file__).parents[1] / "tests" / "data" / "checkpoints"
SEED, SPREAD, TOLERANCE = 7, 0.2, 1e-5
D_MODEL, N_HEADS, N_TOKENS, LENGTHS = 32, 4, 7, (7, 5)
N_MEMORY, MEMORY_LENGTHS = 5, (5, 3)  # of cross attention

ROPE = {"rope_type": "default", "rope_theta": 500.0}
# Trained lengths so short that within 7 tokens a pair that is stretched differs from one that is not.
SHORT = {"rope_theta": 100.0, "original_max_position_embeddings": 64}
LLAMA3 = SHORT | {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
YARN = SHORT | {"rope_type": "yarn", "factor": 4.0}

TEXT = {"vocab_size": 11, "hidden_size": D_MODEL, "intermediate_size": 16, "num_hidden_layers": 2}
TEXT |= {"num_attention_heads": N_HEADS, "max_position_embeddings": 16}
GROUPED = TEXT | {"num_key_value_heads": 2, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
GPT2 = {"vocab_size": 11, "n_embd": D_MODEL, "n_head": N_HEADS, "n_layer": 2, "n_positions": 16, "n_inner": 16}
GPT2 |= {"bos_token_id": 1, "eos_token_id": 2}
IMAGE = {"image_size": [12, 8], "patch_size": 4, "num_channels": 1}  # 6 patches, and one token for all of them
VIT = IMAGE | {"hidden_size": D_MODEL, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": N_HEADS}
BART = {"vocab_size": 11, "d_model": D_MODEL, "max_position_embeddings": 16}
BART |= {f"{part}_{key}": n for part in ("encoder", "decoder") for key, n in (("layers", 1), ("ffn_dim", 16))}
BART |= {"encoder_attention_heads": N_HEADS, "decoder_attention_heads": N_HEADS}
SOUND = {"num_mel_bins": 3, "max_source_positions": N_MEMORY, "max_target_positions": 16, "decoder_start_token_id": 1}
WHISPER = BART | SOUND | {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "begin_suppress_tokens": None}
DISTILBERT = {"vocab_size": 11, "dim": D_MODEL, "n_layers": 2, "n_heads": N_HEADS, "hidden_dim": 16}
T5 = {"vocab_size": 11, "d_model": D_MODEL, "d_kv": 6, "d_ff": 16, "num_layers": 1, "num_heads": N_HEADS}
T5 |= {"relative_attention_num_buckets": 8, "relative_attention_max_distance": 10}  # 7 tokens reach the wide buckets


class Fixture(NamedTuple):
    """What is written of a layer."""

    name: str
    prefix: str  # before the names of the pattern
    state: Arrays
    seen: Arrays
    config: dict[str, Any]
    library: Any  # the module that made it, besides torch


class Model(NamedTuple):
    """A model of transformers, and where one of its attentions is."""

    name: str
    kind: str  # class in transformers
    options: dict[str, Any]
    prefix: str  # before the names of the pattern, in the file that the model saves
    module: str  # the attention, from there: all names that begin with it are kept
    projection: str  # its last projection, from there
    run: str = "text"  # which inputs it is given
    in_memory: str | None = None  # the prefix in memory, where it is another than in the file


IN_LLAMA = ("model.layers.1.", "self_attn", "o_proj")
IN_ALBERT = ("albert.encoder.albert_layer_groups.0.albert_layers.0.", "attention", "dense")
IN_DISTILBERT = ("distilbert.transformer.layer.1.", "attention", "out_lin")
IN_VIT = ("vit.encoder.layer.1.", "attention", "o_proj", "image", "vit.layers.1.")
OF_BART = ("BartForConditionalGeneration", BART)
OF_WHISPER = ("WhisperForConditionalGeneration", WHISPER)  # keys without a bias
OF_T5 = ("T5ForConditionalGeneration", T5)
QWEN3 = {"rope_parameters": ROPE, "head_dim": 16, "rms_norm_eps": 0.01}
MODELS = [
    Model("gpt2", "GPT2LMHeadModel", GPT2, "transformer.h.1.", "attn", "c_proj"),
    Model("bert", "BertForMaskedLM", TEXT, "bert.encoder.layer.1.", "attention", "output.dense"),
    Model("distilbert", "DistilBertForMaskedLM", DISTILBERT, *IN_DISTILBERT),
    Model("albert", "AlbertForMaskedLM", TEXT | {"embedding_size": 12}, *IN_ALBERT),
    Model("vit", "ViTForImageClassification", VIT, *IN_VIT),
    Model("llama", "LlamaForCausalLM", GROUPED | {"rope_parameters": ROPE}, *IN_LLAMA),
    Model(
        "llama3", "LlamaForCausalLM", GROUPED | {"rope_parameters": LLAMA3, "max_position_embeddings": 512}, *IN_LLAMA
    ),
    Model("yarn", "LlamaForCausalLM", GROUPED | {"rope_parameters": YARN, "max_position_embeddings": 256}, *IN_LLAMA),
    Model("mistral", "MistralForCausalLM", GROUPED | {"rope_parameters": ROPE, "sliding_window": 3}, *IN_LLAMA),
    Model("qwen2", "Qwen2ForCausalLM", GROUPED | {"rope_parameters": ROPE}, *IN_LLAMA),
    Model("qwen3", "Qwen3ForCausalLM", GROUPED | QWEN3, *IN_LLAMA),
    Model("t5-encoder", *OF_T5, "encoder.block.0.layer.0.", "SelfAttention", "o", "encoder"),
    Model("t5-decoder", *OF_T5, "decoder.block.0.layer.0.", "SelfAttention", "o", "decoder"),
    Model("t5-cross", *OF_T5, "decoder.block.0.layer.1.", "EncDecAttention", "o", "decoder"),
    Model("bart-encoder", *OF_BART, "model.encoder.layers.0.", "self_attn", "out_proj", "encoder"),
    Model("bart-cross", *OF_BART, "model.decoder.layers.0.", "encoder_attn", "out_proj", "decoder"),
    Model("bart-whisper", *OF_WHISPER, "model.decoder.layers.0.", "self_attn", "out_proj", "sound"),
]


# --------------------------------------------------------------------------------------- inputs and weights
def valid(lengths: tuple[int, ...], n: int) -> Any:
    """Which tokens are no padding: (items, n)."""
    return torch.arange(n) < torch.tensor(lengths)[:, None]


def text(n: int, lengths: tuple[int, ...], before: str = "") -> dict[str, Any]:
    ids = np.random.default_rng(SEED).integers(1, 11, (len(lengths), n))
    return {f"{before}input_ids": torch.from_numpy(ids), f"{before}attention_mask": valid(lengths, n).long()}


def normal(*shape: int, seed: int = SEED) -> Any:
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape).astype(np.float32))


def given(run: str) -> dict[str, Any]:
    """What a model is called with."""
    tokens = text(N_TOKENS, LENGTHS)
    if run == "image":
        return {"pixel_values": normal(2, 1, 12, 8)}
    if run == "sound":
        return {"input_features": normal(2, 3, 2 * N_MEMORY)} | text(N_TOKENS, LENGTHS, "decoder_")
    if run == "encoder":
        return tokens | text(N_MEMORY, MEMORY_LENGTHS, "decoder_")
    if run == "decoder":
        return text(N_MEMORY, MEMORY_LENGTHS) | text(N_TOKENS, LENGTHS, "decoder_")
    return tokens


def masked(name: str) -> Arrays:
    """Which keys are no padding, where a model is told."""
    if name.endswith("-cross"):
        return {"valid": valid(MEMORY_LENGTHS, N_MEMORY).numpy()}
    return {} if name in ("vit", "fused") else {"valid": valid(LENGTHS, N_TOKENS).numpy()}


def randomize(model: Any) -> None:
    """Draw every parameter: norms around 1, all others around 0."""
    rng = np.random.default_rng(SEED)
    for name, parameter in sorted(model.named_parameters()):
        centre = 1 if "norm" in name.lower() and name.endswith("weight") else 0
        drawn = centre + SPREAD * rng.standard_normal(tuple(parameter.shape))
        parameter.copy_(torch.from_numpy(drawn.astype(np.float32)))
    model.eval()


# ----------------------------------------------------------------------------------------------- recording
def record(attention: Any, projection: Any, weighing: Any) -> Arrays:
    """What these modules are going to see: filled when the model is called, by the last call of each."""
    seen: Arrays = {}

    def before(_: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
        x = arguments[0] if arguments else options["hidden_states"]
        seen["x"] = x.numpy().copy()
        if options.get("key_value_states") is not None:
            seen["key"] = options["key_value_states"].numpy().copy()

    def weighed(_: Any, __: Any, output: Any) -> None:
        seen["weights"] = (output[-1] if isinstance(output, tuple) else output).numpy().copy()
        if isinstance(output, tuple) and len(output) == 3:  # T5's
            seen["bias"] = output[1].numpy().copy()

    def projected(_: Any, __: Any, output: Any) -> None:
        seen["out"] = output.numpy().copy()

    attention.register_forward_pre_hook(before, with_kwargs=True)
    weighing.register_forward_hook(weighed)
    projection.register_forward_hook(projected)
    return seen


def of_transformers(of: Model) -> Fixture:
    kind = getattr(transformers, of.kind)
    config = kind.config_class(**of.options)
    config._attn_implementation = "eager"
    model = kind(config)
    randomize(model)
    attention = model.get_submodule((of.in_memory or of.prefix) + of.module)
    seen = record(attention, attention.get_submodule(of.projection), attention)
    model(**given(of.run))
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        saved = safetensors.numpy.load_file(Path(folder, "model.safetensors"))
        config = json.loads(Path(folder, "config.json").read_text())
    state = {name: x for name, x in saved.items() if name.startswith(f"{of.prefix}{of.module}.")}
    if not any("relative" in name for name in state):
        seen.pop("bias", None)  # zeros
    return Fixture(of.name, of.prefix, state, seen | masked(of.name), config, transformers)


def of_timm() -> Fixture:
    timm.layers.set_fused_attn(False)  # else there are no weights to see
    sizes = {"img_size": (12, 8), "patch_size": 4, "in_chans": 1, "embed_dim": D_MODEL, "depth": 2}
    model = timm.models.VisionTransformer(**sizes, num_heads=N_HEADS, mlp_ratio=0.5, num_classes=3)
    randomize(model)
    attention = model.blocks[1].attn
    seen = record(attention, attention.proj, attention.attn_drop)
    model(normal(2, 1, 12, 8))
    return Fixture("fused", "blocks.1.attn.", state_of(model, "blocks.1.attn."), seen, {"num_heads": N_HEADS}, timm)


def of_torch() -> Iterator[Fixture]:
    """`nn.MultiheadAttention`: packed, with keys and values of other widths, with learned keys and zeros."""
    layer = torch.nn.TransformerEncoderLayer(D_MODEL, N_HEADS, dim_feedforward=16, batch_first=True)
    encoder = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    padded, x = valid(LENGTHS, N_TOKENS), normal(2, N_TOKENS, D_MODEL)
    yield torch_layer("torch-packed", encoder, "layers.1.self_attn.", {}, (x, x, x), padded)

    options: dict[str, Any] = {"kdim": 24, "vdim": 20}
    cross = torch.nn.MultiheadAttention(D_MODEL, N_HEADS, batch_first=True, **options)
    key, value = normal(2, N_MEMORY, 24, seed=8), normal(2, N_MEMORY, 20, seed=9)
    model, memory = torch.nn.ModuleDict({"cross_attn": cross}), valid(MEMORY_LENGTHS, N_MEMORY)
    yield torch_layer("torch-widths", model, "cross_attn.", options, (x, key, value), memory)

    options = {"add_bias_kv": True, "add_zero_attn": True}
    alone = torch.nn.MultiheadAttention(D_MODEL, N_HEADS, batch_first=True, **options)
    yield torch_layer("torch-bias-kv", alone, "", options, (x, x, x), padded, causal=True)


def torch_layer(
    name: str, root: Any, prefix: str, options: dict[str, Any], tokens: Any, keys: Any, causal: bool = False
) -> Fixture:
    randomize(root)
    hidden = torch.ones(N_TOKENS, N_TOKENS, dtype=torch.bool).triu(1) if causal else None
    module = root.get_submodule(prefix.rstrip("."))
    out, weights = module(*tokens, key_padding_mask=~keys, attn_mask=hidden, average_attn_weights=False)
    seen = {"x": tokens[0], "out": out, "weights": weights, "valid": keys}
    seen |= {} if tokens[1] is tokens[0] else {"key": tokens[1], "value": tokens[2]}
    config = {"embed_dim": D_MODEL, "num_heads": N_HEADS} | options
    return Fixture(name, prefix, state_of(root, prefix), {n: a.numpy() for n, a in seen.items()}, config, None)


def state_of(model: Any, prefix: str) -> Arrays:
    return {name: x.numpy() for name, x in model.state_dict().items() if name.startswith(prefix)}


# ------------------------------------------------------------------------------------------------- writing
def about(fixture: Fixture) -> str:
    libraries = {
        module.__name__: module.__version__.split("+")[0] for module in (torch, fixture.library) if module is not None
    }
    notes = {
        "prefix": fixture.prefix,
        "libraries": libraries,
        "weights": f"random, seed {SEED}; made by tools/make_checkpoints.py",
        "config": fixture.config,
    }
    return json.dumps(notes, indent=1, sort_keys=True) + "\n"


def write(fixture: Fixture, folder: Path) -> None:
    state = {name: np.ascontiguousarray(x) for name, x in fixture.state.items()}
    path = folder / fixture.name
    path.with_suffix(".safetensors").write_bytes(safetensors.numpy.save(state, metadata={"format": "pt"}))
    np.savez(path.with_suffix(".npz"), **fixture.seen)  # type: ignore[arg-type,unused-ignore]
    path.with_suffix(".json").write_text(about(fixture))


def differs(made: Path, kept: Path) -> bool:
    """Whether a file that was made now differs from the one that is kept."""
    if made.suffix == ".json" or not kept.exists():
        return not kept.exists() or made.read_text() != kept.read_text()
    read = np.load if made.suffix == ".npz" else safetensors.numpy.load_file
    new, old = dict(read(made)), dict(read(kept))
    close = (new[name].shape == old[name].shape and np.allclose(new[name], old[name], 0, TOLERANCE) for name in old)
    return new.keys() != old.keys() or not all(close)


def main() -> int:
    parser = argparse.ArgumentParser(description="Make tests/data/checkpoints again.")
    parser.add_argument("--check", action="store_true", help="only compare; exit status 1 if a file differs")
    check = parser.parse_args().check
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    transformers.logging.disable_progress_bar()
    with torch.no_grad(), tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) if check else FOLDER
        folder.mkdir(parents=True, exist_ok=True)
        for fixture in (*of_torch(), of_timm(), *map(of_transformers, MODELS)):
            write(fixture, folder)
            print(f"{fixture.name}: {', '.join(f'{name} {x.shape}' for name, x in sorted(fixture.state.items()))}")
        wrong = [path.name for path in sorted(folder.iterdir()) if check and differs(path, FOLDER / path.name)]
    print("\n".join(f"differs: {name}" for name in wrong), end="\n" if wrong else "")
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
