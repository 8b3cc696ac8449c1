"""PyTorch where serving is measured: a prompt in chunks, a layer, padded sequences; each ready to run."""

import importlib
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from headwise.bench.arrays import Run
from headwise.bench.cases import Case
from headwise.bench.serving import Prompt, Sequences, Tokens
from headwise.core.shapes import Array

TORCH_NOTE = (
    "inference mode; decode: F.scaled_dot_product_attention, enable_gqa; prefill: the same, chunks copied into "
    "tensors that are there before, with a float mask made before timing, its fastest form here; layer: "
    "nn.MultiheadAttention, is_causal and attn_mask; packed: F.scaled_dot_product_attention over sequences that are "
    "padded before timing, is_causal"
)


def _torch(threads: int) -> Any:
    torch: Any = importlib.import_module("torch")
    torch.set_num_threads(threads)
    return torch


def _prefill(case: Case, prompt: Prompt, threads: int) -> Run:
    # A bool mask, causal_lower_right and heads that are repeated took 3 to 200 % longer in PyTorch 2.14 on a CPU.
    torch = _torch(threads)
    q, k, v = (torch.from_numpy(x) for x in prompt[:3])
    held_k, held_v = torch.zeros_like(k), torch.zeros_like(v)
    function = torch.nn.functional.scaled_dot_product_attention
    masks = [_future(torch, rows.stop - rows.start, rows.stop, q.dtype) for rows in prompt.chunks]

    def attend(rows: slice, mask: Any) -> Array:
        held_k[:, :, rows], held_v[:, :, rows] = k[:, :, rows], v[:, :, rows]
        seen_k, seen_v = held_k[:, :, : rows.stop], held_v[:, :, : rows.stop]
        out: Array = function(q[:, :, rows], seen_k, seen_v, attn_mask=mask, enable_gqa=True).numpy()
        return out

    def run() -> tuple[Array, ...]:
        with torch.inference_mode():
            return tuple(attend(rows, mask) for rows, mask in zip(prompt.chunks, masks, strict=True))

    return run


def _future(torch: Any, n_q: int, n_k: int, dtype: Any) -> Any:
    """What is added to the scores: -inf where a key lies after its query, which align at the end."""
    return torch.full((n_q, n_k), float("-inf"), dtype=dtype).triu(n_k - n_q + 1)


def _layer(with_weights: bool) -> Callable[[Case, Tokens, int], Run]:
    def prepare(case: Case, tokens: Tokens, threads: int) -> Run:
        torch = _torch(threads)
        _, h, n, d = case.shape
        x, ours = torch.from_numpy(tokens.x), tokens.layer
        layer = torch.nn.MultiheadAttention(h * d, h, bias=False, batch_first=True, dtype=x.dtype).eval()
        with torch.no_grad():
            joined = np.concatenate([w.T for w in (ours.w_q, ours.w_k, ours.w_v)])
            layer.in_proj_weight.copy_(torch.from_numpy(joined))
            layer.out_proj.weight.copy_(torch.from_numpy(ours.w_o.T))
        causal = {"attn_mask": _future(torch, n, n, x.dtype), "is_causal": True} if case.causal else {}
        options = {"need_weights": with_weights, "average_attn_weights": False, **causal}

        def run() -> Array | tuple[Array, ...]:
            with torch.inference_mode():
                out, weights = layer(x, x, x, **options)
            return (out.numpy(), weights.numpy()) if with_weights else out.numpy()

        return run

    return prepare


def _padded(case: Case, inputs: Sequences, threads: int) -> Run:
    torch = _torch(threads)
    q, k, v = (torch.from_numpy(pad(case, inputs, x)) for x in inputs[:3])
    function = torch.nn.functional.scaled_dot_product_attention
    seen = None if case.causal else torch.from_numpy(_real(case, inputs))  # of causal queries padding is the future

    def run() -> Array:
        with torch.inference_mode():
            out: Array = function(q, k, v, attn_mask=seen, is_causal=case.causal).numpy()
        return out

    return run


def _real(case: Case, inputs: Sequences) -> Array:
    """Which keys are no padding, (B, 1, 1, n)."""
    lengths = np.diff(inputs.starts)
    seen: Array = np.arange(case.shape[2]) < lengths[:, None, None, None]
    return seen


def pad(case: Case, inputs: Sequences, x: Array) -> Array:
    """Return packed rows (tokens, H, d) as (B, H, n, d), zeros behind each sequence."""
    whole = np.zeros(case.shape, x.dtype)
    for item, span in zip(whole, inputs.spans, strict=True):
        item[:, : span.stop - span.start] = x[span].swapaxes(0, 1)
    return whole


TORCH: Mapping[str, Callable[[Case, Any, int], Run]] = MappingProxyType(
    {"prefill": _prefill, "layer": _layer(False), "layer-weights": _layer(True), "packed": _padded}
)
