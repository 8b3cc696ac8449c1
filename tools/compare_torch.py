"""Compares `headwise.attention_vjp` with PyTorch's autograd, in float32, on random configurations from a seed.

    pip install torch
    python tools/compare_torch.py                       # 200 configurations from seed 0
    python tools/compare_torch.py --seed 7 --count 1000

Prints a line, and the configuration that agrees least; exit status 1 if any disagrees, 2 if PyTorch cannot be imported.

Plain attention is PyTorch's `scaled_dot_product_attention`; softcap, sinks and the gradient of lse, which it lacks, are
composed of its elementary operations. Axes along which an input is broadcast, and heads that share keys, are
expanded and repeated there, so that autograd sums over them.

A query that may attend to nothing is compared with zero: PyTorch is given a mask that lets it see everything, but 0 for
the gradient of its output, so that nothing comes of it; headwise is given the mask and the gradient as they are.

An error is the largest difference of two entries, over the largest entry of PyTorch's gradient. Where more than 15/16
of that cancels, it is over a 16th of what the largest entry would be if nothing did: a query that sees one key has a
gradient of 0, of which each implementation leaves other roundings.
"""

import argparse
import importlib
import sys
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

import headwise as hw
from headwise.core.shapes import Array

TOLERANCE = 1e-5
SHARE = 16
INSTALL = "pip install torch"
REINSTALL = "pip install --force-reinstall torch"

Shape = tuple[int, ...]


class Configuration(NamedTuple):
    """What is computed: shapes and options; None where something is not given."""

    q: Shape  # (..., H, n_q, d_k)
    k: Shape  # (..., G, n_k, d_k)
    v: Shape  # (..., G, n_k, d_v)
    mask: Shape | None
    density: float  # share of the mask that is True
    causal: bool
    bias: Shape | None
    scale: float | None
    softcap: float | None
    sinks: bool
    lse: bool  # whether it has a gradient, too
    seed: int

    @property
    def lead(self) -> Shape:
        """The axes of the scores before the last two: (..., H)."""
        heads = max((x[-3] if len(x) > 2 else 1 for x in (self.q, self.k, self.v)), default=1)
        batch = np.broadcast_shapes(*(x[:-3] for x in (self.q, self.k, self.v)))
        return (*batch, heads) if max(map(len, (self.q, self.k, self.v))) > 2 else ()

    @property
    def scores(self) -> Shape:
        """The shape of the scores: (..., H, n_q, n_k)."""
        return (*self.lead, self.q[-2], self.k[-2])

    @property
    def words(self) -> str:
        """What is given, as text."""
        given = {
            name: value
            for name, value in self._asdict().items()
            if value not in (None, False) and name not in ("density", "seed")
        }
        return ", ".join(name if value is True else f"{name} {value}" for name, value in given.items())


class Problem(NamedTuple):
    """The arrays of a configuration, in float32."""

    inputs: dict[str, Array]  # q, k, v and, where given, bias and sinks
    mask: Array | None
    d_out: Array  # (..., H, n_q, d_v)
    d_lse: Array | None  # (..., H, n_q)
    seen: Array  # (..., H, n_q, n_k): mask and causal


class Compared(NamedTuple):
    """The worst of a configuration's results."""

    error: float
    name: str
    number: int
    configuration: Configuration


# ---------------------------------------------------------------------------------------- configurations
def draw(rng: np.random.Generator) -> Configuration:
    """Return a random configuration."""
    axes = int(rng.integers(0, 4))
    batch = tuple(rng.integers(1, 4, max(0, axes - 1)).tolist())
    groups = int(rng.integers(1, 4))
    heads = groups * int(rng.integers(1, 4) if batch else 1)  # with no batch axis, each head has its own keys
    n_q, n_k = rng.integers(1, 50 if rng.random() < 0.8 else 400, 2).tolist()  # several tiles, now and then
    n_k = n_q if rng.random() < 0.3 else n_k
    d_k, d_v = rng.choice([1, 2, 3, 5, 8, 16, 32, 64], 2).tolist()
    lead_q, lead_k, lead_v = (_narrowed(rng, (*batch, h) if axes else ()) for h in (heads, groups, groups))
    if batch and max(map(len, (lead_q, lead_k, lead_v))) < 2:
        lead_q = (*batch, heads)  # without a batch axis there would be no groups
    found = Configuration(
        q=(*lead_q, n_q, d_k),
        k=(*lead_k, n_k, d_k),
        v=(*lead_v, n_k, d_v if rng.random() < 0.5 else d_k),
        mask=None,
        density=float(rng.choice([0.05, 0.3, 0.8])),
        causal=bool(rng.random() < 0.4),
        bias=None,
        scale=None if rng.random() < 0.6 else round(float(rng.uniform(-2, 2)) * d_k**-0.5, 3),
        softcap=None if rng.random() < 0.8 else float(rng.choice([0.5, 2, 20])),
        sinks=bool(rng.random() < 0.2),
        lse=bool(rng.random() < 0.2),
        seed=int(rng.integers(2**32)),
    )
    if rng.random() < 0.4:
        found = found._replace(mask=_narrowed(rng, found.scores))
    return found._replace(bias=_narrowed(rng, found.scores)) if rng.random() < 0.4 else found


def _narrowed(rng: np.random.Generator, shape: Shape) -> Shape:
    """The shape, often with axes of size 1, which are broadcast, or without its first axes."""
    kind = rng.choice(["whole", "ones", "fewer"], p=[0.6, 0.25, 0.15])
    if kind == "ones":
        return tuple(1 if rng.random() < 0.4 else size for size in shape)
    return shape[int(rng.integers(0, len(shape) + 1)) :] if kind == "fewer" else shape


def make(c: Configuration) -> Problem:
    """Return the arrays of a configuration: standard normal, from its seed."""
    rng = np.random.default_rng(c.seed)
    shapes = {"q": c.q, "k": c.k, "v": c.v, "bias": c.bias, "sinks": (c.lead or (1,))[-1:] if c.sinks else None}
    inputs = {name: rng.standard_normal(shape, dtype=np.float32) for name, shape in shapes.items() if shape is not None}
    mask = None if c.mask is None else np.asarray(rng.random(c.mask) < c.density)
    seen = np.broadcast_to(True if mask is None else mask, c.scores)
    if c.causal:
        n_q, n_k = c.scores[-2:]
        seen = seen & np.tri(n_q, n_k, n_k - n_q, dtype=np.bool_)
    d_out = rng.standard_normal((*c.scores[:-1], c.v[-1]), dtype=np.float32)
    d_lse = rng.standard_normal(c.scores[:-1], dtype=np.float32) if c.lse else None
    if d_lse is not None and c.sinks:
        d_lse *= seen.any(axis=-1)  # lse without a key is the sink: zero is not what it is compared with
    return Problem(inputs, mask, d_out, d_lse, seen)


# ------------------------------------------------------------------------------------------------- ours
def ours(c: Configuration, problem: Problem) -> dict[str, Array]:
    """Return our output and gradients, by name."""
    q, k, v = (problem.inputs[name] for name in "qkv")
    options: dict[str, Any] = {name: problem.inputs.get(name) for name in ("bias", "sinks")}
    options |= {"causal": c.causal, "scale": c.scale, "softcap": c.softcap}
    if problem.d_lse is None:
        out, vjp = hw.attention_vjp(q, k, v, problem.mask, **options)
        gradients = vjp(problem.d_out)
    else:
        out, _, vjp = hw.attention_vjp(q, k, v, problem.mask, **options, return_lse=True)
        gradients = vjp(problem.d_out, problem.d_lse)
    return {"out": out} | {f"d_{name}": np.asarray(getattr(gradients, name)) for name in problem.inputs}


# ---------------------------------------------------------------------------------------------- PyTorch
def theirs(torch: Any, c: Configuration, problem: Problem) -> tuple[dict[str, Array], dict[str, Array]]:
    """Return PyTorch's output and gradients by name, and what they would be if nothing cancelled."""
    dead = torch.from_numpy(~problem.seen.any(axis=-1))
    seen = torch.from_numpy(problem.seen.copy()) | dead[..., None]
    ups = [torch.from_numpy(x).masked_fill(gone, 0) for x, gone in _ups(problem, dead)]
    inputs = {name: torch.from_numpy(x.copy()).requires_grad_() for name, x in problem.inputs.items()}
    wide = {name: _widened(c, name, x) for name, x in inputs.items()}
    if c.softcap is None and not c.sinks and not c.lse:
        made = [_attention(torch, c, wide, seen)]
    else:
        made = [_composed(torch, c, wide, seen)[name] for name in ("out", "lse")[: len(ups)]]
    gradients = torch.autograd.grad(made, list(inputs.values()), ups, retain_graph=True)
    out = made[0].detach().masked_fill(dead[..., None], 0)
    found = {"out": out} | {f"d_{name}": x for name, x in zip(inputs, gradients, strict=True)}
    largest = _uncancelled(torch, c, {name: x.detach().double() for name, x in wide.items()}, seen, ups)
    summed = torch.autograd.grad(  # as autograd sums over what was stretched
        list(wide.values()), list(inputs.values()), [largest[name].float() for name in wide]
    )
    sizes = {"out": largest["out"]} | {f"d_{name}": x for name, x in zip(inputs, summed, strict=True)}
    return {name: x.numpy() for name, x in found.items()}, {name: x.numpy() for name, x in sizes.items()}


def _ups(problem: Problem, dead: Any) -> list[tuple[Array, Any]]:
    ups = [(problem.d_out, dead[..., None])]
    return ups if problem.d_lse is None else [*ups, (problem.d_lse, dead)]


def _widened(c: Configuration, name: str, x: Any) -> Any:
    """An input with all axes of the scores, (..., H, n, d): views of it, and repeated heads."""
    if name == "sinks":
        return (x[:, None, None] if c.lead else x[None]).expand(*c.scores[:-1], 1)
    if name == "bias":
        return x.expand(c.scores)
    heads = (c.lead or (1,))[-1]
    if x.dim() > 2 and x.shape[-3] not in (1, heads):
        x = x.repeat_interleave(heads // x.shape[-3], dim=-3)
    return x.expand(*c.lead, *x.shape[-2:])


def _attention(torch: Any, c: Configuration, wide: dict[str, Any], seen: Any) -> Any:
    """Its scaled_dot_product_attention, of four axes, as its kernels want them."""
    flat = {name: x.reshape(-1, *((1,) * (3 - x.dim())), *x.shape[-3:]) for name, x in wide.items()}
    visible = seen.reshape(-1, *((1,) * (3 - seen.dim())), *seen.shape[-3:])
    flag = c.causal and c.mask is None and c.bias is None and c.scores[-1] == c.scores[-2]  # it aligns with the first
    flag = flag and _scale(c) > 0  # its kernel multiplies -inf by the scale: torch 2.14 gives NaN otherwise
    mask: Any = None
    if c.bias is not None:
        mask = flat["bias"].masked_fill(~visible, float("-inf"))
    elif not (flag or bool(visible.all())):
        mask = visible
    function = torch.nn.functional.scaled_dot_product_attention
    made = function(flat["q"], flat["k"], flat["v"], attn_mask=mask, is_causal=flag, scale=c.scale)
    return made.reshape(*c.scores[:-1], c.v[-1])


def _composed(torch: Any, c: Configuration, wide: dict[str, Any], seen: Any) -> dict[str, Any]:
    """Attention of elementary operations, and what it goes through on its way."""
    scores = wide["q"] @ wide["k"].transpose(-1, -2) * _scale(c)
    capped = scores if c.softcap is None else c.softcap * torch.tanh(scores / c.softcap)
    biased = capped + wide["bias"] if "bias" in wide else capped
    masked = biased.masked_fill(~seen, float("-inf"))
    if c.sinks:
        masked = torch.cat([masked, wide["sinks"]], dim=-1)
    lse = torch.logsumexp(masked, dim=-1)
    weights = torch.softmax(masked, dim=-1)
    kept = weights[..., : c.scores[-1]]
    return {"capped": capped, "weights": weights, "kept": kept, "out": kept @ wide["v"], "lse": lse}


def _scale(c: Configuration) -> float:
    return c.q[-1] ** -0.5 if c.scale is None else c.scale


def _uncancelled(torch: Any, c: Configuration, wide: dict[str, Any], seen: Any, ups: Sequence[Any]) -> dict[str, Any]:
    """Output and gradients, if every number that is summed were positive."""
    steps = _composed(torch, c, wide, seen)
    size = {name: x.abs() for name, x in wide.items()}
    d_out, *d_lse = (x.double().abs() for x in ups)
    out = steps["kept"] @ size["v"]
    delta = (d_out * out).sum(dim=-1, keepdim=True) + sum(x[..., None] for x in d_lse)
    d_biased = steps["kept"] * (d_out @ size["v"].transpose(-1, -2) + delta)
    d_scores = d_biased if c.softcap is None else d_biased * (1 - (steps["capped"] / c.softcap) ** 2)
    d_scores = d_scores * abs(_scale(c))
    return {
        "out": out,
        "q": d_scores @ size["k"],
        "k": d_scores.transpose(-1, -2) @ size["q"],
        "v": steps["kept"].transpose(-1, -2) @ d_out,
        "bias": d_biased,
        "sinks": steps["weights"][..., -1:] * delta,
    }


# ------------------------------------------------------------------------------------------- comparison
def distance(got: Array, expected: Array, uncancelled: Array) -> float:
    """Return the largest difference, relative as the head of this file says; infinity where it cannot be told."""
    if got.shape != expected.shape:
        return float("inf")
    apart = float(np.abs(got - expected).max(initial=0))
    size = max(float(np.abs(expected).max(initial=0)), float(uncancelled.max(initial=0)) / SHARE)
    if apart == 0:
        return 0.0
    return apart / size if size > 0 and np.isfinite(apart) else float("inf")


def compare(torch: Any, number: int, c: Configuration) -> Compared:
    """Return the worst of what is compared in a configuration."""
    problem = make(c)
    mine, (right, sizes) = ours(c, problem), theirs(torch, c, problem)
    errors = {name: distance(mine[name], right[name], sizes[name]) for name in right}
    worst = max(errors, key=errors.__getitem__)
    return Compared(errors[worst], worst, number, c)


def report(found: Sequence[Compared], seed: int, versions: str) -> str:
    """Return a line that sums up, and the configuration that agrees least."""
    wrong = sum(not one.error <= TOLERANCE for one in found)
    worst = max(found, key=lambda one: one.error)
    said = f"{wrong} disagree by more than" if wrong else "all agree within"
    return (
        f"compare_torch: {len(found)} configurations from seed {seed}, {versions}: {said} {TOLERANCE:g}\n"
        f"worst: {worst.error:.2g}, {worst.name} of number {worst.number}: {worst.configuration.words}"
    )


def _at_least(least: int, text: str) -> int:
    if not (text.isascii() and text.isdecimal() and int(text) >= least):
        raise argparse.ArgumentTypeError(f"expected an integer >= {least}, got '{text}'")
    return int(text)


def imported() -> tuple[Any, str]:
    """Return PyTorch and an empty text, or None, what was there instead, and what to do."""
    try:
        torch = importlib.import_module("torch")
        return (torch, "") if hasattr(torch, "autograd") else (None, f"a module 'torch' that is another one; {INSTALL}")
    except Exception as error:  # what is installed in part raises anything: a library that is missing, another ABI, ...
        if isinstance(error, ModuleNotFoundError) and error.name == "torch":
            return None, f"no module 'torch'; {INSTALL}"
        reason = " ".join(str(error).split())
        return None, f"one that cannot be imported ({type(error).__name__}: {reason}); {REINSTALL}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare and print; return the exit status."""
    parser = argparse.ArgumentParser(prog="compare_torch", description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--seed", type=partial(_at_least, 0), default=0, metavar="N", help="of the configurations (default 0)"
    )
    parser.add_argument(
        "--count", type=partial(_at_least, 1), default=200, metavar="N", help="how many of them (default 200)"
    )
    options = parser.parse_args(arguments)
    torch, missing = imported()
    if missing:
        print(f"compare_torch: expected PyTorch, got {missing}", file=sys.stderr)
        return 2
    rng = np.random.default_rng(options.seed)
    found = [compare(torch, number, draw(rng)) for number in range(options.count)]
    print(report(found, options.seed, f"headwise {hw.__version__}, torch {torch.__version__}"))
    return int(any(not one.error <= TOLERANCE for one in found))


if __name__ == "__main__":
    sys.exit(main())
