"""What serves, as something to measure: a prompt in chunks through a cache, a layer, sequences packed without padding.

Of each: its inputs, our run, its operations, and whether a result is that of the definition or of ours. A case's shape
is (B, H, n_q, d) as everywhere: of a chunk, of a layer's heads, of the packed sequences if they were padded.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from headwise.bench.agreement import FEW, BenchError, check, roundings
from headwise.bench.arrays import Made, Run, make
from headwise.bench.cases import Case, shortest
from headwise.core.attention import scaled_dot_product_attention
from headwise.core.engine import attention
from headwise.core.shapes import Array
from headwise.core.varlen import attention_varlen
from headwise.layers.attention_layer import MultiHeadAttention
from headwise.layers.cache import KVCache

_DEFINITION = "the definition"


def check_result(case: Case, what: str, got: Array, expected: Array) -> None:
    """Compare within 4096 roundings of the largest expected value.

    Raises
    ------
    BenchError
        They differ by more, or in shape.
    """
    check(what, got, expected, roundings(case.dtype) * float(np.abs(expected).max()))


def check_alike(case: Case, inputs: Any, made: Made, ours: Made) -> None:
    """Compare a peer's result with ours: one array, or several one by one.

    Raises
    ------
    BenchError
        They differ by more than 4096 roundings of the largest value, or in shape or number.
    """
    theirs, mine = (x if isinstance(x, tuple) else (x,) for x in (made, ours))
    if len(theirs) != len(mine):
        raise BenchError(f"expected {len(mine)} results as of headwise, got {len(theirs)}")
    names = [f"result {i} of {len(mine)}" if len(mine) > 1 else "result" for i in range(1, len(mine) + 1)]
    for name, got, expected in zip(names, theirs, mine, strict=True):
        check_result(case, f"the {name} of headwise", got, expected)


def _attending(case: Case, heads: int, n: int, d: int) -> int:
    """The operations of both products, over the visible pairs of so many heads of n queries and n keys each."""
    return 4 * d * heads * (n * (n + 1) // 2 if case.causal else n * n)


def _doubles(*arrays: Array) -> list[Array]:
    return [x.astype(np.float64) for x in arrays]


# -------------------------------------------------------------------------------------------- a prompt in chunks
class Prompt(NamedTuple):
    """A prompt whose tokens come in chunks; the last chunk may be shorter."""

    q: Array  # (B, H, n, d)
    k: Array  # (B, G, n, d)
    v: Array  # (B, G, n, d)
    chunks: Sequence[slice]  # of the n tokens


def make_prompt(case: Case, seed: int = 0) -> Prompt:
    """Return `case.keys` tokens, in chunks of as many as the case has queries."""
    b, h, size, d = case.shape
    whole = make(case._replace(shape=(b, h, case.keys, d)), seed)
    return Prompt(*whole[:3], [slice(at, min(at + size, case.keys)) for at in range(0, case.keys, size)])


def prefill(case: Case, prompt: Prompt, threads: int) -> Run:
    """Return a run that empties a cache, appends each chunk, and lets its queries see what the cache holds.

    It gives an output (B, H, n_q, d) for each chunk. The memory of the cache is there before.
    """
    b, g, n, d = prompt.k.shape
    cache = KVCache(b, g, n, d, dtype=prompt.k.dtype)
    cache.append(prompt.k, prompt.v)  # touches all of its memory

    def attend(rows: slice) -> Array:
        cache.append(prompt.k[:, :, rows], prompt.v[:, :, rows])
        mask = cache.mask(rows.stop - rows.start)
        out: Array = attention(prompt.q[:, :, rows], cache.k, cache.v, mask)
        return out

    def run() -> tuple[Array, ...]:
        cache.reset()
        return tuple(attend(rows) for rows in prompt.chunks)

    return run


def prefill_operations(case: Case, prompt: Prompt) -> int:
    """Return the operations of causal attention over the prompt: chunks do not change them."""
    b, h, n, d = prompt.q.shape
    return _attending(case, b * h, n, d)


def check_prefill(case: Case, prompt: Prompt, made: Made) -> None:
    """Compare the last queries of each chunk with one causal run of the definition in float64.

    Raises
    ------
    BenchError
        They differ by more than 4096 roundings of the largest value.
    """
    for rows, out in zip(prompt.chunks, made, strict=True):
        few = slice(max(rows.start, rows.stop - FEW), rows.stop)
        q, k, v = _doubles(prompt.q[:, :, few], prompt.k[:, :, : rows.stop], prompt.v[:, :, : rows.stop])
        expected, _ = scaled_dot_product_attention(q, k, v, causal=True)
        check_result(case, _DEFINITION, out[:, :, few.start - rows.stop :], expected)


# -------------------------------------------------------------------------------------------- a layer
class Tokens(NamedTuple):
    """Tokens and the layer that they go through."""

    x: Array  # (B, n, H d)
    layer: MultiHeadAttention


def make_tokens(case: Case, seed: int = 0) -> Tokens:
    """Return tokens of width H d, and a layer with weights of the case's dtype."""
    b, h, n, d = case.shape
    rng, dtype = np.random.default_rng(seed), np.dtype(case.dtype).type
    x = rng.standard_normal((b, n, h * d), dtype=dtype)
    drawn = MultiHeadAttention(h * d, h, seed=rng)
    w_q, w_k, w_v, w_o = (w.astype(dtype) for w in (drawn.w_q, drawn.w_k, drawn.w_v, drawn.w_o))
    return Tokens(x, MultiHeadAttention.from_arrays(w_q, w_k, w_v, w_o, h))


def layer(case: Case, tokens: Tokens, threads: int) -> Run:
    """Return a run of the layer, on as many threads as NumPy's BLAS has, which measuring sets."""
    return lambda: tokens.layer(tokens.x, causal=case.causal)


def layer_with_weights(case: Case, tokens: Tokens, threads: int) -> Run:
    """Return a run of the layer that gives its weights too."""
    return lambda: tokens.layer(tokens.x, causal=case.causal, return_weights=True)


def layer_operations(case: Case, tokens: Tokens) -> int:
    """Return the operations of the four products with weights, and of attention over visible pairs."""
    b, h, n, d = case.shape
    return 4 * 2 * b * n * (h * d) ** 2 + _attending(case, b * h, n, d)


def check_layer(case: Case, tokens: Tokens, made: Made) -> None:
    """Compare the last queries of every item, and their weights if there are any, with the definition in float64.

    Raises
    ------
    BenchError
        They differ by more than 4096 roundings of the largest value.
    """
    b, h, _, d = case.shape
    x, w_q, w_k, w_v, w_o = _doubles(tokens.x, tokens.layer.w_q, tokens.layer.w_k, tokens.layer.w_v, tokens.layer.w_o)
    q, k, v = ((y @ w).reshape(b, -1, h, d).swapaxes(1, 2) for y, w in ((x[:, -FEW:], w_q), (x, w_k), (x, w_v)))
    heads, weights = scaled_dot_product_attention(q, k, v, causal=case.causal)
    out, *more = made if isinstance(made, tuple) else (made,)
    check_result(case, _DEFINITION, out[:, -FEW:], heads.swapaxes(1, 2).reshape(b, -1, h * d) @ w_o)
    for found in more:
        check_result(case, f"the weights of {_DEFINITION}", found[:, :, -FEW:], weights)


# -------------------------------------------------------------------------------------------- packed sequences
class Sequences(NamedTuple):
    """Sequences of many lengths, one after the other."""

    q: Array  # (tokens, H, d)
    k: Array  # (tokens, H, d)
    v: Array  # (tokens, H, d)
    starts: Array  # (B + 1,)

    @property
    def spans(self) -> list[slice]:
        """The tokens of each sequence."""
        return [slice(*map(int, ends)) for ends in zip(self.starts[:-1], self.starts[1:], strict=True)]


def make_packed(case: Case, seed: int = 0) -> Sequences:
    """Return B sequences in random order, their lengths evenly spaced from the shortest to n."""
    b, h, n, d = case.shape
    rng, dtype = np.random.default_rng(seed), np.dtype(case.dtype).type
    lengths = rng.permutation(np.linspace(n, shortest(n), b).round().astype(np.int64))
    starts = np.cumsum([0, *lengths])
    q, k, v = (rng.standard_normal((starts[-1], h, d), dtype=dtype) for _ in range(3))
    return Sequences(q, k, v, starts)


def packed(case: Case, inputs: Sequences, threads: int) -> Run:
    """Return a run of `attention_varlen`, which gives (tokens, H, d)."""
    q, k, v, starts = inputs
    return lambda: attention_varlen(q, k, v, starts, starts, causal=case.causal)


def packed_operations(case: Case, inputs: Sequences) -> int:
    """Return the operations of all sequences, of padding none."""
    _, h, _, d = case.shape
    return sum(_attending(case, h, span.stop - span.start, d) for span in inputs.spans)


def check_packed(case: Case, inputs: Sequences, made: Made) -> None:
    """Compare the last queries of every sequence with the definition in float64.

    Raises
    ------
    BenchError
        They differ by more than 4096 roundings of the largest value.
    """
    out = np.asarray(made)
    for span in inputs.spans:
        few = slice(max(span.start, span.stop - FEW), span.stop)
        q, k, v = (x.swapaxes(0, 1) for x in _doubles(inputs.q[few], inputs.k[span], inputs.v[span]))
        expected, _ = scaled_dot_product_attention(q, k, v, causal=case.causal)
        check_result(case, _DEFINITION, out[few].swapaxes(0, 1), expected)


def check_padded(case: Case, inputs: Sequences, made: Made, ours: Made) -> None:
    """Compare a peer's padded result (B, H, n, d) with ours, sequence by sequence; padding is not looked at.

    Raises
    ------
    BenchError
        They differ by more than 4096 roundings of the largest value, or in shape.
    """
    theirs, mine = np.asarray(made), np.asarray(ours)
    if theirs.shape != case.shape:
        check("the padded result of headwise", theirs, np.empty(case.shape), 0)
    unpadded = [item[:, : span.stop - span.start] for item, span in zip(theirs, inputs.spans, strict=True)]
    check_result(case, "the result of headwise", np.concatenate(unpadded, axis=1).swapaxes(0, 1), mine)
