"""What multi-head attention and a layer are asked, and what must hold of what they give: calls and judges.

Knows what is right, and nothing of how a solution is run. A judge raises Wrong, or returns remarks.
"""

from itertools import combinations
from typing import Any

import numpy as np

from headwise.check.answers import WEIGHTS, drawn
from headwise.check.calls import Call, Result, same
from headwise.check.drawing import Rng, each_again, heads
from headwise.check.judging import (
    Evidence,
    about,
    check_rows,
    check_still,
    equal,
    fail,
    is_right,
)
from headwise.core.shapes import Array


def loop(rng: Rng) -> list[Call]:
    return [
        Call("multi_head", heads(rng, 2, 5, 12, 3)),
        Call("multi_head", heads(rng, 3, 7, 8, 2)),
        Call("multi_head", heads(rng, 2, 1, 6, 1)),
        Call("multi_head", heads(rng, 2, 4, 6, 1)),
        Call("multi_head", heads(rng, 1, 4, 3, 3)),
        Call("multi_head", heads(rng, 1, 19, 8, 2)),
    ]


def blocks(rng: Rng) -> list[Call]:
    """Each head sees its own part of x alone, which w_o hands on."""
    n_heads, d_head, n = 3, 4, 5
    args = heads(rng, 2, n, n_heads * d_head, n_heads)
    within = np.kron(np.eye(n_heads), np.ones((d_head, d_head)))
    args |= {name: args[name] * within for name in WEIGHTS[:3]} | {"w_o": np.eye(n_heads * d_head)}
    x = args["x"].copy()
    x[..., :d_head] += rng.standard_normal((2, n, d_head))
    return [Call("multi_head", args), Call("multi_head", {**args, "x": x})]


def judge_blocks(e: Evidence) -> list[str]:
    before, after = e.out(0), e.out(1)
    d_head = before.shape[-1] // e.calls[0].args["n_heads"]
    moved = "only the columns of x that head 0 reads were changed (block-diagonal weights, w_o = 1)"
    check_still(before[..., d_head:], after[..., d_head:], "the columns of heads 1 and 2", moved)
    if same(before[..., :d_head], after[..., :d_head]):
        fail(f"the columns of head 0 did not change when {moved}")
    return []


def narrow(rng: Rng) -> list[Call]:
    """Projections that are the identity, and large scores: the scale decides."""
    args = heads(rng, 1, 4, 8, 4)
    return [Call("multi_head", {**args, **{name: np.eye(8) for name in WEIGHTS}, "x": 2 * args["x"]})]


def truncated(rng: Rng) -> list[Call]:
    args, t = heads(rng, 3, 19, 8, 2), int(rng.integers(9, 18))
    args["causal"] = True
    calls = [Call("multi_head", args), Call("multi_head", {**args, "x": args["x"][:, :t].copy()})]
    return [*calls, Call("multi_head", {**args, "causal": False})]


def judge_truncated(e: Evidence) -> list[str]:
    whole, short = e.out(0), e.out(1)
    t = short.shape[1]
    check_still(short, whole[:, :t], f"out of the first {t} tokens", "the tokens after them were cut off (causal)")
    if is_right(e.results[2], e.rights[2]):  # without the causal mask
        equal(e, 0)
    return []


def multi_head_alone(rng: Rng) -> list[Call]:
    args = heads(rng, 3, 5, 8, 2)
    x = args["x"].copy()
    x[1:] += rng.standard_normal(x[1:].shape)
    return [Call("multi_head", args), Call("multi_head", {**args, "x": x})]


def in_turn(rng: Rng) -> list[Call]:
    """Causal and not, in both orders."""
    first, second = heads(rng, 1, 5, 8, 4), heads(rng, 1, 7, 8, 4)
    turns = [(first, False), (first, True), (first, False), (second, True), (second, False), (second, True)]
    return [Call("multi_head", {**args, "causal": causal}) for args, causal in turns]


def judge_in_turn(e: Evidence) -> list[str]:
    """The same call again gives the same; and of causal calls, and of the others, none is wrong if another is right."""
    for i, j in combinations(range(len(e.calls)), 2):
        if _alike(e.calls[i], e.calls[j]) and _same_weights(e.results[i], e.results[j]):
            check_still(e.out(i), e.out(j), "out", "the same call was made again, with others in between")
    for causal in (False, True):
        some = [i for i, call in enumerate(e.calls) if bool(call.args.get("causal")) == causal]
        if any(is_right(e.results[i], e.rights[i]) for i in some):
            for i in some:
                with about(e.calls[i]):
                    equal(e, i)
    return []


def _alike(a: Call, b: Call) -> bool:
    return np.array_equal(a.args["x"], b.args["x"]) and a.args.get("causal") == b.args.get("causal")


def large_heads(rng: Rng) -> list[Call]:
    args = heads(rng, 2, 5, 8, 2)
    return [Call("multi_head", {**args, **rule}) for rule in _far(args["x"])]


_BOTH: tuple[dict[str, Any], ...] = ({}, {"causal": True})


def _far(x: Array) -> list[dict[str, Any]]:
    """Tokens of ordinary size, all large, and two of them large; with a mask not so far that -1e9 hides no more."""
    sizes: tuple[tuple[dict[str, Any], float], ...] = (({}, 1e4), ({"causal": True}, 1e2))
    two = np.array([0.0, 1.0, 0.0, 1.0, 0.0])[:, None]
    return [{**rule, "x": x * by} for rule, size in sizes for by in (1.0, size, size**two)]


def multi_head_twice(rng: Rng) -> list[Call]:
    args = heads(rng, 2, 5, 8, 2)
    return each_again(*(Call("multi_head", {**args, **rule}) for rule in _BOTH))


def _layer(rng: Rng, b: int, n: int, d_model: int, n_heads: int, **more: Any) -> Call:
    seed = int(rng.integers(1, 1000))
    args = {"d_model": d_model, "n_heads": n_heads, "seed": seed, "x": rng.standard_normal((b, n, d_model)), **more}
    return Call("layer", args)


def layers(rng: Rng) -> list[Call]:
    return [_layer(rng, 2, 5, 12, 3), _layer(rng, 3, 7, 10, 2), _layer(rng, 1, 4, 6, 1)]


def large_layers(rng: Rng) -> list[Call]:
    call = _layer(rng, 2, 5, 8, 2)
    return [call._replace(args={**call.args, **rule}) for rule in _far(call.args["x"])]


def layer_twice(rng: Rng) -> list[Call]:
    call = _layer(rng, 2, 5, 8, 2)
    return each_again(*(call._replace(args={**call.args, **rule}) for rule in _BOTH))


def layer_in_turn(rng: Rng) -> list[Call]:
    """One layer, called several times: causal and not, shorter and longer; and a new one, causal at once."""
    call = _layer(rng, 2, 5, 8, 2)
    x, longer = call.args["x"], rng.standard_normal((1, 7, 8))
    turns = [(x, {}), (x, {"causal": True}), (x, {}), (longer, {}), (longer, {"causal": True})]
    calls = [call._replace(args={**call.args, "x": x, **rule}, kept=True) for x, rule in turns]
    return [calls[0]._replace(kept=False), *calls[1:], calls[1]._replace(kept=False)]


def judge_layer_in_turn(e: Evidence) -> list[str]:
    for call, result in zip(e.calls, e.results, strict=True):
        if call.kept and not call.args.get("causal") and not _same_weights(e.results[0], result):
            fail("a call changed the layer's own weights")
    return judge_in_turn(e)


def causal_layers(rng: Rng) -> list[Call]:
    call = _layer(rng, 2, 19, 12, 3, causal=True)
    x = call.args["x"].copy()
    x[:, 4:] += rng.standard_normal(x[:, 4:].shape)
    return [call, call._replace(args={**call.args, "x": x}), call._replace(args={**call.args, "causal": False})]


def judge_causal_layers(e: Evidence) -> list[str]:
    if _same_weights(e.results[0], e.results[1]):
        check_still(
            e.out(0)[:, :4], e.out(1)[:, :4], "out of tokens 0 to 3", "the tokens after them were changed (causal)"
        )
    if is_right(e.results[2], e.rights[2]):  # without the causal mask
        equal(e, 0)
        equal(e, 1)
    return []


def _same_weights(a: Result, b: Result) -> bool:
    return all(same(a.params.get(name), b.params.get(name)) for name in WEIGHTS)


def judge_layer_weights(e: Evidence) -> list[str]:
    for i, result in enumerate(e.results):
        if result.weights is None:
            return [
                "the layer returns out alone; returning (out, weights) lets its reader see what each head attends to"
            ]
        check_rows(e.weights(i))
        if same(result.out, e.rights[i].out):
            with about(e.calls[i]):
                equal(e, i)
    return []


def seeded(rng: Rng) -> list[Call]:
    call = _layer(rng, 2, 5, 8, 2)
    return [call, call, call._replace(args={**call.args, "seed": call.args["seed"] + 1})]


def judge_seeded(e: Evidence) -> list[str]:
    first, again, other = e.results
    if not _same_weights(first, again):
        fail("two layers made with one seed have different weights")
    twins = [
        (a, b) for i, a in enumerate(WEIGHTS) for b in WEIGHTS[:i] if same(first.params.get(a), first.params.get(b))
    ]
    if twins:
        fail(f"{' and '.join(sorted(twins[0]))} of a new layer hold the same numbers")
    if empty := [name for name in WEIGHTS if name in first.params and not first.params[name].any()]:
        fail(f"{' and '.join(empty)} of a new layer is 0 everywhere, so that what it gives says nothing: draw it")
    remarks = []
    if _same_weights(first, other):
        remarks.append("layers made with different seeds have the same weights")
    usual = drawn(e.calls[0].args["d_model"], e.calls[0].args["seed"])
    if not all(same(first.params.get(name), usual[name]) for name in WEIGHTS):
        remarks.append(
            "the weights are not those of default_rng(seed), normal / sqrt(d_model), drawn as w_q, w_k, w_v, w_o"
        )
    return remarks
