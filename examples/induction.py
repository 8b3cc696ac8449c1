"""Trains a small transformer with nothing but headwise and NumPy, until induction heads form in it.

    python examples/induction.py
    python examples/induction.py --out weights.npz --picture induction.png    # pip install "headwise[plot]"

The task. A sequence is random tokens, then the same tokens again: `K7dR...K7dR...`. The first half cannot be predicted.
The second can, by two heads in two layers [1, 2]: a *previous-token head* writes, at each token, which one came before
it; an *induction head* looks, from a token, for the place that says "this one came before me", and copies what stands
there: `[A][B] ... [A] -> [B]`. Neither is told of; there is a loss, and its gradient.

What keeps the model from a cheaper answer:

- The length of the halves, 16 to 64, is drawn for every batch. Were it always 48, one head of layer 0 would attend to
  "47 tokens ago", by position alone. That is learned in 300 steps, looks like an induction head, and gets 1 % right
  where halves have 32 tokens.
- Sequences begin at a random position. Were it always 0, the previous-token head would work in the first half only
  (mean weight 0.99 there, 0.24 in the second), as nothing more is asked of it.
- Within a half no token occurs twice. So where it was before is one place, and what follows is certain.

The file reads from top to bottom: weights, backward beside a sketch of forward, Adam, training, and what the heads
have become. The forward pass itself is ten lines of `headwise/induction.py`, since `headwise demo --induction` runs it
too.

To try: other seeds; a single layer (`N_LAYERS = 1` below the imports), which cannot do it and stays at log 64 = 4.16
nats, the loss of guessing; two heads of width 32 (`N_HEADS, D_HEAD = 2, 32`); `induction.without(weights, 0, 3)`.

[1] Elhage et al., "A Mathematical Framework for Transformer Circuits", 2021.
[2] Olsson et al., "In-context Learning and Induction Heads", arXiv:2209.11895, 2022.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

import headwise as hw
from headwise import console, induction
from headwise.core.shapes import Array
from headwise.files import FileError, check_target, write_arrays
from headwise.induction import D_HEAD, D_MODEL, N_HEADS, N_LAYERS, N_POSITIONS, N_TOKENS
from headwise.view.heatmap import check_picture, heatmap

BATCH = 32  # sequences in a step
HALVES = 16, 64  # shortest and longest half
LEARNING_RATE, WARM_UP = 1e-2, 100  # the rate rises over so many steps, then falls to 0 at the last
MEAN_DECAY, SQUARE_DECAY = 0.9, 0.98  # of Adam
Arrays = dict[str, Array]


# ---------------------------------------------------------------------------------------------- the weights
def initial_weights(rng: np.random.Generator) -> Arrays:
    """Random weights in float32, and positions that are waves.

    Positions are trained like all weights, but begin as sines and cosines of evenly spaced frequencies: "one token
    earlier" is then one rotation at every position, which a head finds soon, instead of 192 facts to learn.
    """
    time = np.arange(N_POSITIONS)[:, None] * np.pi * (np.arange(D_MODEL // 2) + 0.5) / (D_MODEL // 2)
    per_head = N_LAYERS, N_HEADS, D_MODEL, D_HEAD
    weights = {
        "embed": rng.standard_normal((N_TOKENS, D_MODEL)),
        "position": np.stack([np.sin(time), np.cos(time)], axis=-1).reshape(N_POSITIONS, D_MODEL),
        "w_q": rng.standard_normal(per_head) / D_MODEL**0.5,
        "w_k": rng.standard_normal(per_head) / D_MODEL**0.5,
        "w_v": rng.standard_normal(per_head) / D_MODEL**0.5,
        "w_o": rng.standard_normal((N_LAYERS, N_HEADS, D_HEAD, D_MODEL)) / D_MODEL**0.5,
        "unembed": rng.standard_normal((D_MODEL, N_TOKENS)) / D_MODEL**0.5,
    }
    return {name: weight.astype(np.float32) for name, weight in weights.items()}


# ------------------------------------------------------------------------------------- forward and backward
def loss_and_gradients(weights: Arrays, tokens: Array, start: int = 0) -> tuple[float, Arrays]:
    """The loss of a batch (B, n), and its gradient with regard to every weight.

    Forward is `headwise.induction.forward`, which `headwise demo --induction` runs too. Here its attention is
    `attention_vjp`, which remembers how to go back:

        x = embed[tokens] + position[start : start + n]                       (B, n, d_model)
        twice:  q, k, v = x w_q, x w_k, x w_v        for each head            (B, H, n, d_head)
                x = x + sum over heads of attention(q, k, v) w_o              (B, n, d_model)
        logits = x unembed                                                    (B, n, N_TOKENS)
    """
    vjps: list[Callable[[Array], hw.AttentionGradients]] = []

    def attend(q: Array, k: Array, v: Array) -> Array:
        out: Array
        out, vjp = hw.attention_vjp(q, k, v, causal=True)
        vjps.append(vjp)
        return out

    steps = induction.forward(weights, tokens, start, attend)
    d_logits = cross_entropy_gradient(steps.logits, tokens)

    # Backward, from the last line to the first. Of y = x w: d_x = d_y w^T, and d_w = x^T d_y, summed over all tokens.
    gradients = {name: np.zeros_like(weight) for name, weight in weights.items()}
    gradients["unembed"] = transposed(flat(steps.x)) @ flat(d_logits)
    d_x = d_logits @ transposed(weights["unembed"])  # (B, n, d_model)
    for i in reversed(range(len(steps.layers))):
        layer = steps.layers[i]
        d_heads = d_x[:, None] @ transposed(weights["w_o"][i])  # (B, H, n, d_head)
        gradients["w_o"][i] = (transposed(layer.heads) @ d_x[:, None]).sum(axis=0)
        d_q, d_k, d_v, *_ = vjps[i](d_heads)
        for name, d in (("w_q", d_q), ("w_k", d_k), ("w_v", d_v)):
            gradients[name][i] = (transposed(layer.x)[:, None] @ d).sum(axis=0)
            d_x = d_x + (d @ transposed(weights[name][i])).sum(axis=1)  # beside what came straight down the stream
    np.add.at(gradients["embed"], tokens, d_x)  # a token that occurs twice gets both
    gradients["position"][start : start + tokens.shape[1]] = d_x.sum(axis=0)
    return induction.judge(steps.logits, tokens).loss, gradients


def cross_entropy_gradient(logits: Array, tokens: Array) -> Array:
    """`softmax(logits) - 1 at what follows`, over the number of predictions; 0 where nothing can be predicted.

    The loss is that of the second half alone. Over all tokens it is mostly the first half's, which is noise: in 1200
    steps nothing formed.
    """
    queries, following = induction.predictions(tokens)
    d_logits = np.zeros_like(logits)
    right = np.eye(logits.shape[-1], dtype=logits.dtype)[following]
    d_logits[:, queries] = (hw.softmax(logits[:, queries]) - right) / following.size
    return d_logits


def transposed(x: Array) -> Array:
    """(..., m, n) as (..., n, m)."""
    turned: Array = np.swapaxes(x, -1, -2)
    return turned


def flat(x: Array) -> Array:
    """(B, n, d) as (B n, d): all tokens of all sequences."""
    return x.reshape(-1, x.shape[-1])


# ------------------------------------------------------------------------------------------------------ Adam
class Adam:
    """Steps of about the learning rate in each weight, whatever the size of its gradient (Kingma, Ba, ICLR 2015)."""

    def __init__(self, weights: Arrays) -> None:
        self.mean = {name: np.zeros_like(weight) for name, weight in weights.items()}
        self.square = {name: np.zeros_like(weight) for name, weight in weights.items()}
        self.steps = 0

    def step(self, weights: Arrays, gradients: Arrays, rate: float) -> None:
        """Change the weights in place."""
        self.steps += 1
        for name, gradient in gradients.items():
            self.mean[name] += (1 - MEAN_DECAY) * (gradient - self.mean[name])
            self.square[name] += (1 - SQUARE_DECAY) * (gradient**2 - self.square[name])
            mean = self.mean[name] / (1 - MEAN_DECAY**self.steps)  # both began at 0, and are still too small
            square = self.square[name] / (1 - SQUARE_DECAY**self.steps)
            weights[name] -= rate * mean / (np.sqrt(square) + 1e-8)


# -------------------------------------------------------------------------------------------------- training
def train(seed: int, n_steps: int, tell: Callable[[int, float], None]) -> Arrays:
    """Train from a seed; `tell` hears of every step and its loss."""
    rng = np.random.default_rng(seed)
    weights = initial_weights(rng)
    adam = Adam(weights)
    for step in range(1, n_steps + 1):
        half = int(rng.integers(HALVES[0], HALVES[1] + 1))
        tokens = induction.repeated(rng, BATCH, half)
        start = int(rng.integers(N_POSITIONS - 2 * half + 1))
        loss, gradients = loss_and_gradients(weights, tokens, start)
        rate = LEARNING_RATE * min(1.0, step / WARM_UP) * (1 - (step - 1) / n_steps)
        adam.step(weights, gradients, rate)
        tell(step, loss)
    return weights


def watched(seed: int, n_steps: int) -> tuple[Arrays, list[tuple[int, float]]]:
    """Train, with a bar on a terminal and lines elsewhere; and return the mean loss of every 100 steps."""
    losses: list[float] = []
    means: list[tuple[int, float]] = []
    with console.Progress(sys.stderr) as line:

        def tell(step: int, loss: float) -> None:
            losses.append(loss)
            line.count(f"training, loss {loss:.3f}", step, n_steps)
            if step % 100 == 0 or step == n_steps:
                means.append((step, float(np.mean(losses[(step - 1) // 100 * 100 :]))))
                if not sys.stderr.isatty():
                    console.emit(f"step {step} of {n_steps}: loss {means[-1][1]:.3f}", sys.stderr)

        with threadpool_limits(1, user_api="blas"):  # of arrays so small, a second thread costs more than it saves
            return train(seed, n_steps, tell), means


# ------------------------------------------------------------------------------------ what the heads have become
def report(found: induction.Examined, means: Sequence[tuple[int, float]], look: console.Look) -> list[str]:
    """How the loss fell; and loss, accuracy and heads on sequences that were not trained on.

    A full bar is the loss of guessing, log 64 = 4.16 nats.

    A head's scores are mean weights of attention: on the token before, and from a token of the second half on the one
    after its earlier occurrence. The last column is what the model can do when nothing of the head reaches the stream.
    """
    course = [[step, f"{loss:.3f}", console.bar(loss / np.log(N_TOKENS), 20, look)] for step, loss in means]
    judged = [
        ("judged", f"the repeated half of {found.sequences} new sequences of 2 x {found.half} tokens"),
        ("loss", f"{found.judged.loss:.4f} nats"),
        ("accuracy", f"{found.judged.accuracy:.2%}"),
    ]
    return [
        console.table("Training", ("step", "mean loss, nats", ""), course, look),
        console.facts(judged, look),
        console.table("Heads", induction.COLUMNS, induction.rows(found.heads), look),
    ]


def at_work(
    weights: Arrays, heads: Sequence[induction.HeadScore], seed: int, half: int
) -> tuple[str, list[str], Array]:
    """A new sequence, the names of a previous-token and an induction head, and their weights (2, n, n)."""
    tokens = induction.unseen(seed, 1, half)
    maps = induction.attention_weights(induction.forward(weights, tokens))
    kinds = ("previous token", "induction")
    names = [f"{kind}: layer {head.layer}, head {head.head}" for kind, head in zip(kinds, heads, strict=True)]
    return (
        "".join(induction.NAMES[token] for token in tokens[0]),
        names,
        np.stack([maps[head.layer][0, head.head] for head in heads]),
    )


def stripe(weights: Arrays, heads: Sequence[induction.HeadScore], seed: int, look: console.Look) -> str:
    """The induction head in the terminal."""
    tokens, (_, name), (_, drawn) = at_work(weights, heads, seed, half=16)
    return f"{name}, from each query (row) to each key (column)\n{console.heatmap(drawn, tokens, tokens, look)}"


# -------------------------------------------------------------------------------------------- the command line
def at_least(least: int, text: str) -> int:
    if not (text.isascii() and text.isdecimal() and int(text) >= least):
        raise argparse.ArgumentTypeError(f"expected an integer >= {least}, got '{text}'")
    return int(text)


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="induction", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seed", type=partial(at_least, 0), default=0, metavar="N", help="of everything (default 0)")
    parser.add_argument("--steps", type=partial(at_least, 1), default=1000, metavar="N", help="(default 1000)")
    parser.add_argument("--out", metavar="OUT.npz", help="write the trained weights")
    parser.add_argument(
        "--picture", metavar="OUT.png", help="draw two heads, by matplotlib, instead of one in the terminal"
    )
    parser.add_argument("--force", action="store_true", help="replace files that exist")
    return parser.parse_args(arguments)


def run(options: argparse.Namespace) -> None:
    if options.out is not None:
        check_target(options.out, force=options.force)
    if options.picture is not None:
        check_picture(options.picture, force=options.force)
    weights, means = watched(options.seed, options.steps)
    if options.out is not None:
        write_arrays(options.out, weights, force=options.force)
    look = console.look(sys.stdout)
    found = induction.examine(weights, options.seed)
    heads, parts = induction.leading(found.heads), report(found, means, look)
    if options.picture is None:
        parts.append(stripe(weights, heads, options.seed, look))
    console.emit("\n\n".join(parts), sys.stdout)
    if options.picture is not None:  # last: were it to fail, all else is told
        _, names, drawn = at_work(weights, heads, options.seed, half=32)
        heatmap(drawn, options.picture, *names, force=options.force)


def main(arguments: Sequence[str] | None = None) -> int:
    """Train and report; return the exit status: 2 for a file that cannot be written, or a package that is missing."""
    try:
        run(parsed(arguments))
    except (FileError, ModuleNotFoundError) as error:
        console.emit(f"induction: {error}", sys.stderr)
        return 2
    except KeyboardInterrupt:
        console.emit("induction: interrupted", sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
