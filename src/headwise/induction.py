"""A small transformer in which induction heads form: its sequences, its forward pass, and what each of its heads does.

Two layers of attention on a residual stream, and nothing else. `examples/induction.py` trains it; how gradients and
steps come about is not known here.
"""

from __future__ import annotations  # numpy.random is loaded when it is used, not when it is named

import importlib.resources
import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from headwise.core.attention import scaled_dot_product_attention
from headwise.core.engine import attention
from headwise.core.shapes import Array
from headwise.core.softmax import logsumexp
from headwise.files import read_arrays

NAMES = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+-"  # of the tokens, to print them
N_TOKENS = len(NAMES)  # different ones
N_POSITIONS = 192
D_MODEL, N_HEADS, D_HEAD, N_LAYERS = 64, 4, 16, 2
WEIGHTS = ("embed", "position", "w_q", "w_k", "w_v", "w_o", "unembed")
_UNSEEN = 1  # with a seed, the stream of sequences to judge by; training draws from the seed alone

Weights = Mapping[str, Array]
Attend = Callable[[Array, Array, Array], Array]


class LayerSteps(NamedTuple):
    """What a layer reads from the residual stream, and its heads' output, which their `w_o` write back to it."""

    x: Array  # (B, n, d_model)
    q: Array  # (B, H, n, d_head)
    k: Array  # (B, H, n, d_head)
    v: Array  # (B, H, n, d_head)
    heads: Array  # (B, H, n, d_head)


class Steps(NamedTuple):
    """A forward pass."""

    layers: list[LayerSteps]
    x: Array  # (B, n, d_model), the residual stream at its end
    logits: Array  # (B, n, N_TOKENS), of the token that follows


class Judged(NamedTuple):
    """How well the second half of sequences is predicted."""

    loss: float  # cross-entropy in nats, mean over predictions
    accuracy: float  # share of predictions whose likeliest token is the right one


class HeadScore(NamedTuple):
    """What a head does: mean weights on what two kinds of head look at."""

    layer: int  # from 0
    head: int  # from 0
    previous: float  # on the token before
    induction: float  # from a token of the second half, on the one after its earlier occurrence
    without: float = math.nan  # accuracy of the model without it; NaN where that was not asked


class Examined(NamedTuple):
    """What a model can do, and which of its heads do it, on sequences that it was not trained on."""

    sequences: int
    half: int  # tokens of each half
    judged: Judged
    heads: list[HeadScore]


# ------------------------------------------------------------------------------------------- sequences
def repeated(rng: np.random.Generator, count: int, half: int) -> Array:
    """Return sequences of random tokens, and the same tokens again.

    Within a half every token is another: so where it occurred before is one place, and what follows it is certain.

    Parameters
    ----------
    rng : numpy.random.Generator
        Where they are drawn from.
    count : int
        How many sequences, B.
    half : int
        Tokens of a half, 2 to 64.

    Returns
    -------
    ndarray of int, shape (B, 2 half)

    Raises
    ------
    ValueError
        If there are not so many different tokens.

    Examples
    --------
    >>> tokens = repeated(np.random.default_rng(0), 5, 3)
    >>> tokens.shape, np.array_equal(tokens[:, :3], tokens[:, 3:])
    ((5, 6), True)
    """
    if not 2 <= half <= N_TOKENS:
        raise ValueError(f"repeated: half: expected 2 to {N_TOKENS}, since its tokens are different ones, got {half}")
    first = rng.permuted(np.tile(np.arange(N_TOKENS), (count, 1)), axis=1)[:, :half]
    return np.concatenate([first, first], axis=1)


def unseen(seed: int, count: int, half: int) -> Array:
    """Return `repeated` sequences from a stream of their own: none that training with this seed draws."""
    return repeated(np.random.default_rng((seed, _UNSEEN)), count, half)


def predictions(tokens: Array) -> tuple[slice, Array]:
    """Return the queries that can know what follows, and what does: all of the second half but its last token.

    >>> predictions(np.array([[7, 8, 9, 7, 8, 9]]))
    (slice(3, -1, None), array([[8, 9]]))
    """
    half = tokens.shape[-1] // 2
    return slice(half, -1), tokens[..., half + 1 :]


# --------------------------------------------------------------------------------------- the forward pass
def causal_attention(q: Array, k: Array, v: Array) -> Array:
    """The engine over (B, H, n, d_head): no token sees a later one."""
    out: Array = attention(q, k, v, causal=True)
    return out


def forward(weights: Weights, tokens: Array, start: int = 0, attend: Attend = causal_attention) -> Steps:
    """Run the transformer: each head reads the residual stream, attends, and adds what it found to the stream.

    Parameters
    ----------
    weights : mapping of str to ndarray
        ``embed``, shape (N_TOKENS, d_model); ``position``, shape (N_POSITIONS, d_model); ``w_q``, ``w_k``, ``w_v``,
        shape (layers, H, d_model, d_head); ``w_o``, shape (layers, H, d_head, d_model); ``unembed``, shape
        (d_model, N_TOKENS).
    tokens : ndarray of int, shape (B, n)
        Sequences.
    start : int
        The position of their first token.
    attend : callable
        ``attend(q, k, v) -> out``, another way to the same, such as one that remembers what its gradients need.

    Returns
    -------
    Steps

    Examples
    --------
    >>> steps = forward(load(), unseen(0, count=5, half=7))
    >>> steps.logits.shape, steps.layers[1].q.shape
    ((5, 14, 64), (5, 4, 14, 16))
    """
    x = weights["embed"][tokens] + weights["position"][start : start + tokens.shape[1]]  # (B, n, d_model)
    layers = []
    for w_q, w_k, w_v, w_o in zip(*(weights[name] for name in ("w_q", "w_k", "w_v", "w_o")), strict=True):
        q, k, v = (x[:, None] @ w for w in (w_q, w_k, w_v))  # (B, H, n, d_head)
        heads = attend(q, k, v)  # (B, H, n, d_head)
        layers.append(LayerSteps(x, q, k, v, heads))
        x = x + (heads @ w_o).sum(axis=1)  # each head writes (B, n, d_model)
    return Steps(layers, x, x @ weights["unembed"])


def judge(logits: Array, tokens: Array) -> Judged:
    """Return loss and accuracy over the second half of sequences.

    Parameters
    ----------
    logits : ndarray, shape (B, n, N_TOKENS)
        Of `forward`.
    tokens : ndarray of int, shape (B, n)
        What it was given.

    Examples
    --------
    >>> judged = judge(np.zeros((1, 6, 64)), np.array([[7, 8, 9, 7, 8, 9]]))  # no idea: log(64)
    >>> round(judged.loss, 3), judged.accuracy
    (4.159, 0.0)
    """
    queries, following = predictions(tokens)
    scores = logits[:, queries]
    right = np.take_along_axis(scores, following[..., None], axis=-1)[..., 0]
    hits = scores.argmax(axis=-1) == following
    return Judged(float((logsumexp(scores) - right).mean(dtype=np.float64)), float(hits.mean()))


def load() -> dict[str, Array]:
    """Return the trained weights that come with the package.

    Raises
    ------
    FileError
        If the file is damaged.

    Examples
    --------
    >>> sum(weight.size for weight in load().values())
    53248
    """
    packaged = importlib.resources.files("headwise") / "data" / "induction.npz"
    with importlib.resources.as_file(packaged) as path:
        return read_arrays(path, WEIGHTS)


# ---------------------------------------------------------------------------------------------- the heads
def attention_weights(steps: Steps) -> list[Array]:
    """Return what each token gives to each token, (B, H, n, n) for each layer: by the definition."""
    return [scaled_dot_product_attention(layer.q, layer.k, layer.v, causal=True)[1] for layer in steps.layers]


def on_previous(weights: Array) -> Array:
    """Return the mean weight of a head on the token before.

    Parameters
    ----------
    weights : ndarray, shape (..., n, n)
        Of sequences; n >= 2.

    Returns
    -------
    ndarray of float64, shape (...)

    Examples
    --------
    >>> print(on_previous(np.array([[1.0, 0.0, 0.0], [0.5, 0.5, 0.0], [0.0, 0.25, 0.75]])))
    0.375
    """
    mean: Array = np.diagonal(weights, -1, -2, -1).mean(axis=-1, dtype=np.float64)
    return mean


def on_successor(weights: Array) -> Array:
    """Return the mean weight of a head from a token of the second half on the one after its earlier occurrence.

    Parameters
    ----------
    weights : ndarray, shape (..., n, n)
        Of `repeated` sequences; n >= 4. The last token is left out, as nothing follows it that could be predicted.

    Returns
    -------
    ndarray, shape (...)

    Examples
    --------
    >>> a_b_a_b = np.zeros((4, 4))
    >>> a_b_a_b[2, 1] = 0.75  # from the second a to what came after the first
    >>> print(on_successor(a_b_a_b))
    0.75
    """
    half = weights.shape[-1] // 2
    mean: Array = np.diagonal(weights, 1 - half, -2, -1)[..., 1:-1].mean(axis=-1, dtype=np.float64)
    return mean


def head_scores(weights: Sequence[Array]) -> list[HeadScore]:
    """Return the scores of every head, means over sequences; `weights` as `attention_weights` returns them."""
    return [
        HeadScore(layer, head, float(on_previous(w[:, head]).mean()), float(on_successor(w[:, head]).mean()))
        for layer, w in enumerate(weights)
        for head in range(w.shape[1])
    ]


def without(weights: Weights, layer: int, head: int) -> dict[str, Array]:
    """Return the weights with a head silenced: it attends, and nothing of what it finds is written to the stream."""
    w_o = weights["w_o"].copy()
    w_o[layer, head] = 0
    return {**weights, "w_o": w_o}


def leading(scores: Sequence[HeadScore]) -> tuple[HeadScore, HeadScore]:
    """Return the head with the highest score as a previous-token head, and that with the highest as an induction head.

    >>> first, second = leading([HeadScore(0, 0, 0.9, 0.0), HeadScore(1, 0, 0.1, 0.8), HeadScore(1, 1, 0.0, 0.7)])
    >>> first[:2], second[:2]
    ((0, 0), (1, 0))
    """
    return max(scores, key=lambda score: score.previous), max(scores, key=lambda score: score.induction)


def examine(weights: Weights, seed: int, count: int = 64, half: int = N_TOKENS) -> Examined:
    """Judge a model on `unseen` sequences, whole and without each of its heads in turn.

    Parameters
    ----------
    weights : mapping of str to ndarray
        As for `forward`.
    seed : int
        Of the sequences.
    count, half : int
        How many, and how long their halves are.

    Returns
    -------
    Examined

    Examples
    --------
    >>> found = examine(load(), seed=0, count=5, half=16)
    >>> found.judged.accuracy > 0.97, len(found.heads)
    (True, 8)
    """
    tokens = unseen(seed, count, half)
    steps = forward(weights, tokens)
    heads = [
        score._replace(without=judge(forward(without(weights, *score[:2]), tokens).logits, tokens).accuracy)
        for score in head_scores(attention_weights(steps))
    ]
    return Examined(count, half, judge(steps.logits, tokens), heads)


# ------------------------------------------------------------------------------------------------ as texts
COLUMNS = ("layer", "head", "previous token", "induction", "accuracy without it")


def rows(heads: Sequence[HeadScore]) -> list[list[str]]:
    """Return a row of texts for each head, under COLUMNS.

    >>> rows([HeadScore(0, 1, 0.91, 0.005, 0.25)])
    [['0', '1', '0.91', '0.01', '25.0%']]
    """
    return [[str(h.layer), str(h.head), f"{h.previous:.2f}", f"{h.induction:.2f}", f"{h.without:.1%}"] for h in heads]
