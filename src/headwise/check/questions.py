"""What a solution is asked, and what must hold of what it gives: for each check its calls and its judge.

Knows what is right, and nothing of how a solution is run. A judge raises Wrong, or returns remarks.
"""

from typing import Any

import numpy as np

from headwise.check.answers import WEIGHTS, drawn
from headwise.check.calls import Call, Result, same
from headwise.check.judging import (
    Evidence,
    about,
    all_equal,
    check_equal,
    check_rows,
    check_still,
    equal,
    fail,
    given,
    is_right,
    number,
    numbers,
    values_of,
)
from headwise.core.masks import causal_mask
from headwise.core.shapes import Array

_Rng = np.random.Generator


# ------------------------------------------------------------------------------------------- data
def _qkv(rng: _Rng, n_q: int, n_k: int, d_k: int, d_v: int, *lead: int) -> dict[str, Any]:
    shapes = {"q": (n_q, d_k), "k": (n_k, d_k), "v": (n_k, d_v)}
    return {name: rng.standard_normal((*lead, *shape)) for name, shape in shapes.items()}


def _looked(rng: _Rng, n_q: int, n_k: int, d_k: int, *lead: int) -> dict[str, Any]:
    """With v the identity: out is the weights."""
    return {**_qkv(rng, n_q, n_k, d_k, 1, *lead), "v": np.broadcast_to(np.eye(n_k), (*lead, n_k, n_k)).copy()}


def _some(rng: _Rng, *shape: int) -> Array:
    """A random mask whose rows all see a key, and none sees all."""
    mask = rng.random(shape) < 0.5
    mask[..., 0], mask[..., -1] = True, False
    return np.asarray(rng.permuted(mask, axis=-1))


def _attention(**args: Any) -> Call:
    return Call("attention", args)


def _multi_head_args(rng: _Rng, b: int, n: int, d: int, n_heads: int) -> dict[str, Any]:
    args = {"x": rng.standard_normal((b, n, d))}
    args |= {name: rng.standard_normal((d, d)) / d**0.5 for name in WEIGHTS}
    return {**args, "n_heads": n_heads}


# ------------------------------------------------------------------------------------------- the classic eight
def shapes(rng: _Rng) -> list[Call]:
    whole, items = _qkv(rng, 3, 5, 7, 2, 2, 4), _qkv(rng, 3, 5, 7, 2, 2)
    grouped = {**_qkv(rng, 3, 5, 7, 2, 2, 3), "k": rng.standard_normal((2, 1, 5, 7))}
    one = _qkv(rng, 3, 5, 7, 2)
    return [
        _attention(**one),
        _attention(**one, mask=_some(rng, 3, 5)),
        _attention(**_qkv(rng, 3, 5, 7, 2, 11)),
        _attention(**_qkv(rng, 3, 5, 7, 2, 2, 1, 3)),
        _attention(**whole),
        _attention(**whole, mask=_some(rng, 5)),
        _attention(**whole, mask=_some(rng, 3, 5)),
        _attention(**whole, mask=_some(rng, 2, 1, 3, 5)),
        _attention(**whole, mask=_some(rng, 2, 1, 1, 5)),  # padding
        _attention(**whole, mask=_some(rng, 2, 4, 3, 5)),
        _attention(**items, mask=_some(rng, 2, 3, 5)),
        _attention(**items, mask=_some(rng, 1, 5)),
        _attention(**{name: array[:1] for name, array in items.items()}),
        _attention(**grouped),
    ]


def judge_shapes(e: Evidence) -> list[str]:
    """Every shape; and the numbers, unless those of one sequence, the first two calls, are wrong already."""
    plain, masked = (is_right(result, wanted) for result, wanted in zip(e.results[:2], e.rights[:2], strict=True))
    sound = [plain and (masked or "mask" not in call.args) for call in e.calls]
    for i, result in enumerate(e.results):
        with about(e.calls[i]):
            e.out(i)
            if result.weights is not None:
                e.weights(i)
            if sound[i]:
                equal(e, i)
    return []


_UNIT = {"q": np.array([[1.0, 0.0]]), "k": np.eye(2)}


def hand(rng: _Rng) -> list[Call]:
    return [
        _attention(**_UNIT, v=np.eye(2)),
        _attention(**_UNIT, v=np.array([[6.0], [12.0]])),
        _attention(**_qkv(rng, 1, 2, 3, 2)),
    ]


def judge_hand(e: Evidence) -> list[str]:
    got = e.weights(0)
    if not same(got, np.asarray(e.rights[0].weights)):
        fail(f"q = [1, 0] against k = [1, 0] and [0, 1]: {_two_weights(e)}")
    return all_equal(e)


def _two_weights(e: Evidence) -> str:
    """Expected and got, of the first call, whose weights are two."""
    wanted = np.asarray(e.rights[0].weights)
    a, b, c, d = numbers(*map(float, (*wanted.reshape(-1), *e.weights(0).reshape(-1))))
    return f"expected weights {a} and {b}, got {c} and {d}"


def masked_keys(rng: _Rng) -> list[Call]:
    mask = np.zeros(6, bool)
    mask[rng.permutation(6)[:3]] = True
    args = _qkv(rng, 4, 6, 5, 2)
    return [
        _attention(**_looked(rng, 4, 6, 5), mask=np.tile(mask, (4, 1))),
        _attention(**args, mask=_some(rng, 4, 6)),
        _attention(**args),
    ]


def judge_masked_keys(e: Evidence) -> list[str]:
    weights, mask = e.weights(0), e.calls[0].args["mask"]
    hidden = np.where(mask, 0, weights)
    if not (hidden == 0).all():
        at = np.unravel_index(np.argmax(np.where(np.isnan(hidden), np.inf, np.abs(hidden))), hidden.shape)
        keys = ", ".join(map(str, np.flatnonzero(~mask[0])))
        where = f"weights[{at[0]}, {at[1]}]"
        fail(
            f"keys {keys} of 6 are masked, so their weights must be exactly 0; {where} is {number(float(weights[at]))}"
        )
    check_rows(weights)
    if is_right(e.results[2], e.rights[2]):  # without a mask: what is wrong there is no fault of masking
        equal(e, 1)
    return []


def future(rng: _Rng) -> list[Call]:
    args, n = _qkv(rng, 7, 7, 5, 3), 7
    t = int(rng.integers(2, 5))
    later = {**args}
    for name in "kv":
        later[name] = args[name].copy()
        later[name][t + 1 :] += rng.standard_normal(later[name][t + 1 :].shape)
    return [_attention(**args, mask=causal_mask(n)), _attention(**later, mask=causal_mask(n))]


def judge_future(e: Evidence) -> list[str]:
    before, after = e.out(0), e.out(1)
    changed = (e.calls[0].args["k"] != e.calls[1].args["k"]).any(axis=-1)
    t = int(np.argmax(changed)) - 1
    moved = f"k and v were changed at positions {t + 1} to {len(changed) - 1} behind a causal mask"
    check_still(before[: t + 1], after[: t + 1], f"out[0] to out[{t}]", moved)
    return []


def triangles(rng: _Rng) -> list[Call]:
    return [Call("causal_mask", {"n": n}) for n in (1, 2, 5, int(rng.integers(6, 12)), int(rng.integers(33, 66)))]


def judge_triangle(e: Evidence) -> list[str]:
    remarks = []
    for call, result, wanted in zip(e.calls, e.results, e.rights, strict=True):
        n = call.args["n"]
        got = values_of(result.out, wanted.out, f"causal_mask({n})")
        check_equal(got, np.asarray(wanted.out, np.float64), f"causal_mask({n})")
        assert result.out is not None
        if result.out.dtype != bool:
            remarks = [
                f"the mask is right, as {result.out.dtype} of 0 and 1; bool says that it selects, and ~ turns it over"
            ]
    return remarks


def rows(rng: _Rng) -> list[Call]:
    alone = np.zeros((5, 7), bool)
    alone[np.arange(5), rng.integers(0, 7, 5)] = True
    return [
        _attention(**_looked(rng, 5, 7, 3)),
        _attention(**_looked(rng, 5, 7, 3), mask=_some(rng, 5, 7)),
        _attention(**_looked(rng, 5, 7, 3), mask=alone),
        _attention(**_qkv(rng, 5, 7, 3, 2), mask=alone),
    ]


def judge_rows(e: Evidence) -> list[str]:
    for i in range(3):
        check_rows(e.weights(i))
    if not same(e.weights(2), np.asarray(e.calls[2].args["mask"], np.float64)):
        fail(
            "with all keys but one masked, the one left must have weight 1: it has "
            + number(float(e.weights(2)[0].max()))
        )
    check_equal(
        e.out(3), np.asarray(e.rights[3].out), "with all keys but one masked, out is the value of that key; out"
    )
    return []


def loop(rng: _Rng) -> list[Call]:
    return [
        Call("multi_head", _multi_head_args(rng, 2, 5, 12, 3)),
        Call("multi_head", _multi_head_args(rng, 3, 7, 8, 2)),
        Call("multi_head", _multi_head_args(rng, 2, 1, 6, 1)),
    ]


def blocks(rng: _Rng) -> list[Call]:
    """Each head sees its own part of x alone, which w_o hands on."""
    n_heads, d_head, n = 3, 4, 5
    args = _multi_head_args(rng, 2, n, n_heads * d_head, n_heads)
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


# ------------------------------------------------------------------------------------------- softmax
def _x(*calls: tuple[Array, int]) -> list[Call]:
    return [Call("softmax", {"x": x, "axis": axis} if axis != -1 else {"x": x}) for x, axis in calls]


def softmax_values(rng: _Rng) -> list[Call]:
    holed = np.where(rng.permutation(5) < 2, -np.inf, rng.standard_normal(5))  # weights of 0
    return _x(
        (holed, -1),
        (rng.standard_normal(7), -1),
        (rng.standard_normal((3, 5)), -1),
        (rng.standard_normal((2, 3, 4)), -1),
    )


def softmax_axis(rng: _Rng) -> list[Call]:
    x = rng.standard_normal((2, 3, 5))
    return _x((x, 0), (x, 1), (x, 2), (x, -2))


def softmax_large(rng: _Rng) -> list[Call]:
    x = rng.standard_normal((3, 5))
    return _x((x, -1), (1e4 * x, -1), (x + 1e4, -1), (x - 1e4, -1))


def softmax_apart(rng: _Rng) -> list[Call]:
    x = rng.standard_normal((3, 5))
    far = x + np.array([[0.0], [1e4], [-1e4]])
    return _x((x, -1), (far, -1), (x.T.copy(), 0), (far.T.copy(), 0))


def softmax_twice(rng: _Rng) -> list[Call]:
    return _each_again(*(Call("softmax", {"x": rng.standard_normal(shape)}) for shape in ((3, 5), (7,), (2, 3, 4))))


def _each_again(*calls: Call) -> list[Call]:
    """Each call, and once more with the arrays as it left them."""
    return [call._replace(again=again) for call in calls for again in (False, True)]


def judge_large(e: Evidence) -> list[str]:
    """Large numbers give finite ones; the right ones, unless the ordinary call before them is wrong already."""
    sound = True
    for i, call in enumerate(e.calls):
        largest = max(float(np.abs(x).max()) for x in call.args.values() if isinstance(x, np.ndarray) and x.size)
        if largest < 30:
            sound = is_right(e.results[i], e.rights[i])
        elif not np.isfinite(e.out(i)).all():
            fail(f"with numbers as large as {largest:.3g} out holds {_odd(e.out(i))}")
        elif sound:
            with about(call):
                equal(e, i)
    return []


def _odd(x: Array) -> str:
    return f"{np.count_nonzero(np.isnan(x))} NaN and {np.count_nonzero(np.isinf(x))} infinite of {x.size} numbers"


def judge_untouched(e: Evidence) -> list[str]:
    for call, result in zip(e.calls, e.results, strict=True):
        if result.changed:
            fail(f"the call wrote to {' and '.join(result.changed)} of its caller, for {given(call)}")
    for i in range(0, len(e.calls), 2):
        check_still(e.out(i), e.out(i + 1), "out", "the same arrays were passed again")
    return []


# ------------------------------------------------------------------------------------------- attention in interviews
def values_of_one(rng: _Rng) -> list[Call]:
    zeros = {"q": np.eye(5), "k": np.eye(5), "v": rng.standard_normal((5, 5))}  # a score of 0 is a score
    return [
        _attention(**_qkv(rng, 3, 5, 7, 2)),
        _attention(**_qkv(rng, 5, 5, 5, 5), mask=_some(rng, 5, 5)),
        _attention(**zeros, mask=_some(rng, 5, 5)),
        _attention(**_qkv(rng, 5, 5, 5, 5)),  # whatever mask there was before
        _attention(**_qkv(rng, 9, 6, 3, 2), mask=_some(rng, 9, 6)),
        _attention(**_qkv(rng, 20, 23, 16, 11)),
    ]


def width_four(rng: _Rng) -> list[Call]:
    """d_k = 4: the scale is 1/2, by hand."""
    q, k = np.array([[2.0, 0, 0, 0]]), np.array([[1.0, 0, 0, 0], [0, 1, 0, 0]])
    return [_attention(q=q, k=k, v=np.eye(2)), _attention(**_looked(rng, 3, 5, 4))]


def judge_width_four(e: Evidence) -> list[str]:
    got = e.weights(0)
    if not same(got, np.asarray(e.rights[0].weights)):
        fail(f"d_k = 4, scores 2/2 = 1 and 0: {_two_weights(e)}")
    return all_equal(e)


def upper(rng: _Rng) -> list[Call]:
    return [_attention(**_looked(rng, n, n, 3), mask=causal_mask(n)) for n in (5, 8)]


def judge_upper(e: Evidence) -> list[str]:
    for i in range(len(e.calls)):
        upper = np.triu(e.weights(i), 1)
        if upper.any():
            at = np.unravel_index(np.argmax(np.abs(upper)), upper.shape)
            fail(f"weights[{at[0]}, {at[1]}] is {number(float(upper[at]))}: above the diagonal all must be exactly 0")
        check_rows(e.weights(i))
    return []


def permuted(rng: _Rng) -> list[Call]:
    args, order = _qkv(rng, 4, 6, 3, 2), rng.permutation(6)
    while (order == np.arange(6)).all():
        order = rng.permutation(6)
    return [_attention(**args), _attention(q=args["q"], k=args["k"][order], v=args["v"][order])]


def judge_permuted(e: Evidence) -> list[str]:
    check_still(e.out(0), e.out(1), "out", "the keys were put in another order, with their values")
    return []


def peaked(rng: _Rng) -> list[Call]:
    """Each query is a key, a hundred times as long: it takes that key's value."""
    order, k = rng.permutation(5), np.linalg.qr(rng.standard_normal((5, 5)))[0]
    return [_attention(q=200 * k[order], k=k, v=rng.standard_normal((5, 3)))]


def judge_peaked(e: Evidence) -> list[str]:
    wanted = np.asarray(e.rights[0].out)
    check_equal(e.out(0), wanted, "each query points along one key, so out is that key's value; out")
    return []


def large(rng: _Rng) -> list[Call]:
    args = _qkv(rng, 4, 6, 3, 2)
    far = {**args, "q": args["q"] * np.array([[1.0], [1e4], [1.0], [1e4]])}
    mask = _some(rng, 4, 6)
    low = {**args, "q": np.tile([-1e5, 0.0, 0.0], (4, 1)), "k": 1e-5 * args["k"]}
    low["k"][:, 0] += np.where(mask[0], 1.0, 0.0)  # visible scores of -6e4, hidden ones near 0
    return [
        _attention(**args),
        _attention(**{**args, "q": 1e4 * args["q"]}),
        _attention(**{**args, "k": 1e4 * args["k"]}),
        _attention(**far),
        _attention(**args, mask=mask),
        _attention(**far, mask=mask),
        _attention(**low, mask=np.tile(mask[0], (4, 1))),
    ]


def padding_and_causal(rng: _Rng) -> list[Call]:
    n = 5
    real = np.arange(n) < np.array([[5], [3]])  # (b, n)
    mask = (causal_mask(n) & real[:, None, :])[:, None]  # (b, 1, n, n)
    return [_attention(**_qkv(rng, n, n, 4, 3, 2, 3), mask=mask), _attention(**_looked(rng, n, n, 4, 2, 3), mask=mask)]


def judge_padding(e: Evidence) -> list[str]:
    weights, mask = e.weights(1), e.calls[1].args["mask"]
    if np.where(mask, 0, weights).any():
        fail("a key that is padding, or in the future, has a weight other than 0")
    check_rows(weights)
    return []


def alone(rng: _Rng) -> list[Call]:
    args = _qkv(rng, 4, 6, 3, 2, 3)
    other = {name: x.copy() for name, x in args.items()}
    for x in other.values():
        x[1:] += rng.standard_normal(x[1:].shape)
    return [_attention(**args), _attention(**other)]


def judge_alone(e: Evidence) -> list[str]:
    check_still(e.out(0)[0], e.out(1)[0], "out of item 0", "the other items of the batch were changed")
    return []


def attention_twice(rng: _Rng) -> list[Call]:
    masked, plain = _attention(**_qkv(rng, 4, 6, 3, 2), mask=_some(rng, 4, 6)), _attention(**_qkv(rng, 4, 6, 3, 2))
    return _each_again(masked, plain)


# ------------------------------------------------------------------------------------------- multi-head and the layer
def narrow(rng: _Rng) -> list[Call]:
    """Projections that are the identity, and large scores: the scale decides."""
    args = _multi_head_args(rng, 1, 4, 8, 4)
    return [Call("multi_head", {**args, **{name: np.eye(8) for name in WEIGHTS}, "x": 2 * args["x"]})]


def truncated(rng: _Rng) -> list[Call]:
    args, t = _multi_head_args(rng, 3, 7, 8, 2), int(rng.integers(3, 6))
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


def multi_head_alone(rng: _Rng) -> list[Call]:
    args = _multi_head_args(rng, 3, 5, 8, 2)
    x = args["x"].copy()
    x[1:] += rng.standard_normal(x[1:].shape)
    return [Call("multi_head", args), Call("multi_head", {**args, "x": x})]


def in_turn(rng: _Rng) -> list[Call]:
    """Causal and not, in both orders."""
    first, second = _multi_head_args(rng, 1, 5, 8, 4), _multi_head_args(rng, 1, 7, 8, 4)
    turns = [(first, True), (first, False), (first, True), (second, False), (second, True)]
    return [Call("multi_head", {**args, "causal": causal}) for args, causal in turns]


def judge_in_turn(e: Evidence) -> list[str]:
    """The same again gives the same; what is right first is right after the other."""
    check_still(e.out(0), e.out(2), "out", "the same call was made again, with another in between")
    for first, later in ((3, 1), (0, 4)):
        if is_right(e.results[first], e.rights[first]):
            with about(e.calls[later]):
                equal(e, later)
    return []


def large_heads(rng: _Rng) -> list[Call]:
    args = _multi_head_args(rng, 2, 5, 8, 2)
    return [Call("multi_head", {**args, **rule}) for rule in _far(args["x"])]


_BOTH: tuple[dict[str, Any], ...] = ({}, {"causal": True})


def _far(x: Array) -> list[dict[str, Any]]:
    """Tokens of ordinary size, all large, and two of them large; with a mask not so far that -1e9 hides no more."""
    sizes: tuple[tuple[dict[str, Any], float], ...] = (({}, 1e4), ({"causal": True}, 1e2))
    two = np.array([0.0, 1.0, 0.0, 1.0, 0.0])[:, None]
    return [{**rule, "x": x * by} for rule, size in sizes for by in (1.0, size, size**two)]


def multi_head_twice(rng: _Rng) -> list[Call]:
    args = _multi_head_args(rng, 2, 5, 8, 2)
    return _each_again(*(Call("multi_head", {**args, **rule}) for rule in _BOTH))


def _layer(rng: _Rng, b: int, n: int, d_model: int, n_heads: int, **more: Any) -> Call:
    seed = int(rng.integers(1, 1000))
    args = {"d_model": d_model, "n_heads": n_heads, "seed": seed, "x": rng.standard_normal((b, n, d_model)), **more}
    return Call("layer", args)


def layers(rng: _Rng) -> list[Call]:
    return [_layer(rng, 2, 5, 12, 3), _layer(rng, 3, 7, 8, 2)]


def large_layers(rng: _Rng) -> list[Call]:
    call = _layer(rng, 2, 5, 8, 2)
    return [call._replace(args={**call.args, **rule}) for rule in _far(call.args["x"])]


def layer_twice(rng: _Rng) -> list[Call]:
    call = _layer(rng, 2, 5, 8, 2)
    return _each_again(*(call._replace(args={**call.args, **rule}) for rule in _BOTH))


def layer_in_turn(rng: _Rng) -> list[Call]:
    """One layer, called several times: causal and not, shorter and longer."""
    call = _layer(rng, 2, 5, 8, 2)
    x, longer = call.args["x"], rng.standard_normal((1, 7, 8))
    turns = [(x, {}), (x, {"causal": True}), (x, {}), (longer, {}), (longer, {"causal": True})]
    calls = [call._replace(args={**call.args, "x": x, **rule}, kept=True) for x, rule in turns]
    return [calls[0]._replace(kept=False), *calls[1:]]


def judge_layer_in_turn(e: Evidence) -> list[str]:
    """The same again gives the same, by the same weights; what is right first is right later."""
    check_still(e.out(0), e.out(2), "out", "the same layer was called again with the same x")
    for i, result in enumerate(e.results[1:], 1):
        if not e.calls[i].args.get("causal") and not _same_weights(e.results[0], result):
            fail("a call changed the layer's own weights")
        if is_right(e.results[0], e.rights[0]):
            with about(e.calls[i]):
                equal(e, i)
    return []


def causal_layers(rng: _Rng) -> list[Call]:
    call = _layer(rng, 2, 6, 12, 3, causal=True)
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


def seeded(rng: _Rng) -> list[Call]:
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


# ------------------------------------------------------------------------------------------- where systems disagree
def no_key(rng: _Rng) -> list[Call]:
    args, mask = _qkv(rng, 4, 6, 3, 2), _some(rng, 4, 6)
    blind = mask.copy()
    blind[2] = False
    return [_attention(**args, mask=blind), _attention(**args, mask=mask)]


def remark_no_key(e: Evidence) -> list[str]:
    others = [0, 1, 3]
    if not same(e.out(0)[others], e.out(1)[others]):
        return ["a query that may attend to nothing changes what the others get"]
    if not is_right(e.results[1], e.rights[1]):
        return []
    out, v = e.out(0)[2], e.calls[0].args["v"]
    if np.isnan(out).any():
        return ["a query that may attend to nothing gives NaN (-inf minus -inf); headwise gives 0"]
    if not out.any():
        return []
    if same(out, v.mean(axis=0), 1e-6):
        return ["a query that may attend to nothing gives the mean of all values that it may not see; headwise gives 0"]
    return ["a query that may attend to nothing gives a mixture of values that it may not see; headwise gives 0"]


def sentinel(rng: _Rng) -> list[Call]:
    """A visible score far below -1e9, a masked one of 0; and both of ordinary size."""
    k, v = np.array([[-1e12], [0.0]]), np.array([[1.0], [0.0]])
    mask = np.array([[True, False]])
    return [_attention(q=np.array([[q]]), k=k, v=v, mask=mask) for q in (1.0, 1e-12)]


def remark_sentinel(e: Evidence) -> list[str]:
    if same(e.out(0), np.ones((1, 1))) or not is_right(e.results[1], e.rights[1]):
        return []
    return [
        "masked scores are set to a finite number such as -1e9: a visible score below it loses to them; -inf never does"
    ]


def integers(rng: _Rng) -> list[Call]:
    args, mask = _qkv(rng, 4, 6, 3, 2), _some(rng, 4, 6)
    return [_attention(**args, mask=mask), _attention(**args, mask=mask.astype(np.int64))]


def remark_integers(e: Evidence) -> list[str]:
    if same(e.out(0), e.out(1)):
        return []
    return [
        "a mask of 0 and 1 instead of booleans gives something else: ~ and indexing mean another thing for integers"
    ]


def whole(rng: _Rng) -> list[Call]:
    args = {name: rng.integers(-3, 4, x.shape) for name, x in _qkv(rng, 4, 6, 3, 2).items()}
    return [_attention(**{name: x.astype(np.float64) for name, x in args.items()}), _attention(**args)]


def remark_whole(e: Evidence) -> list[str]:
    if same(e.out(0), e.out(1)):
        return []
    return ["arrays of integers give other numbers than the same as floats: results are cut off to integers on the way"]


def softmax_whole(rng: _Rng) -> list[Call]:
    x = rng.integers(-3, 4, (3, 5))
    return _x((x.astype(np.float64), -1), (x, -1))


def wild(rng: _Rng) -> list[Call]:
    args, mask = _qkv(rng, 4, 6, 3, 2), _some(rng, 6)
    wild = np.where(mask[:, None], args["v"], np.nan)
    return [_attention(**{**args, "v": v}, mask=np.tile(mask, (4, 1))) for v in (wild, args["v"])]


def remark_wild(e: Evidence) -> list[str]:
    if np.isfinite(e.out(0)).all() or not is_right(e.results[1], e.rights[1]):
        return []
    return ["a NaN in the value of a masked key reaches out, since 0 * NaN is NaN; headwise keeps it away"]


def nothing(rng: _Rng) -> list[Call]:
    return [Call("softmax", {"x": np.array([[-np.inf, -np.inf], [0.0, -np.inf]])})]


def remark_nothing(e: Evidence) -> list[str]:
    if not np.isnan(e.out(0)[0]).any():
        return []
    return ["the softmax of a row of -inf is NaN; headwise gives 0 there, so that a query without keys gives 0"]
