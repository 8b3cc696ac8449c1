"""What a softmax, a mask and an attention are asked, and what must hold of what they give: calls and judges.

Knows what is right, and nothing of how a solution is run. A judge raises Wrong, or returns remarks.
"""

import numpy as np

from headwise.check.calls import Call, hides, is_oblong, same
from headwise.check.drawing import Rng, attention, each_again, looked, qkv, softmax_calls, some
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
    remarks_on_alignment,
    values_of,
)
from headwise.core.masks import causal_mask
from headwise.core.shapes import Array


# ------------------------------------------------------------------------------------------- the classic eight
def shapes(rng: Rng) -> list[Call]:
    whole, items = qkv(rng, 3, 5, 7, 2, 2, 4), qkv(rng, 3, 5, 7, 2, 2)
    grouped = {**qkv(rng, 3, 5, 7, 2, 2, 3), "k": rng.standard_normal((2, 1, 5, 7))}
    one = qkv(rng, 3, 5, 7, 2)
    return [
        attention(**one),
        attention(**one, mask=some(rng, 3, 5)),
        attention(**qkv(rng, 3, 5, 7, 2, 11)),
        attention(**qkv(rng, 3, 5, 7, 2, 2, 1, 3)),
        attention(**whole),
        attention(**whole, mask=some(rng, 5)),
        attention(**whole, mask=some(rng, 3, 5)),
        attention(**whole, mask=some(rng, 2, 1, 3, 5)),
        attention(**whole, mask=some(rng, 2, 1, 1, 5)),  # padding
        attention(**whole, mask=some(rng, 2, 4, 3, 5)),
        attention(**items, mask=some(rng, 2, 3, 5)),
        attention(**items, mask=some(rng, 1, 5)),
        attention(**{name: array[:1] for name, array in items.items()}),
        attention(**grouped),
    ]


def judge_shapes(e: Evidence) -> list[str]:
    """Every shape; and the numbers, unless those of one sequence are wrong already."""
    alone = [i for i, call in enumerate(e.calls) if call.args["q"].ndim == 2]
    right = {"mask" in e.calls[i].args: is_right(e.results[i], e.rights[i]) for i in alone}
    for i, call in enumerate(e.calls):
        with about(call):
            e.out(i)
            if e.results[i].weights is not None:
                e.weights(i)
            if all(right[masked] for masked in right if "mask" in call.args or not masked):
                equal(e, i)
    return []


_UNIT = {"q": np.array([[1.0, 0.0]]), "k": np.eye(2)}


def hand(rng: Rng) -> list[Call]:
    return [
        attention(**_UNIT, v=np.eye(2)),
        attention(**_UNIT, v=np.array([[6.0], [12.0]])),
        attention(**qkv(rng, 1, 2, 3, 2)),
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


def masked_keys(rng: Rng) -> list[Call]:
    mask = np.zeros(6, bool)
    mask[rng.permutation(6)[:3]] = True
    args = qkv(rng, 4, 6, 5, 2)
    return [
        attention(**looked(rng, 4, 6, 5), mask=np.tile(mask, (4, 1))),
        attention(**args, mask=some(rng, 4, 6)),
        attention(**args),
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


def future(rng: Rng) -> list[Call]:
    args, n = qkv(rng, 7, 7, 5, 3), 7
    t = int(rng.integers(2, 5))
    later = {**args}
    for name in "kv":
        later[name] = args[name].copy()
        later[name][t + 1 :] += rng.standard_normal(later[name][t + 1 :].shape)
    rules = ({"mask": causal_mask(n)}, {"causal": True})
    return [attention(**each, **rule) for rule in rules for each in (args, later)]


def judge_future(e: Evidence) -> list[str]:
    for i in range(0, len(e.calls), 2):  # by the mask, by causal=True, or by both
        changed = (e.calls[i].args["k"] != e.calls[i + 1].args["k"]).any(axis=-1)
        t = int(np.argmax(changed)) - 1
        how = "with causal=True" if "causal" in e.calls[i].args else "behind a causal mask"
        moved = f"k and v were changed at positions {t + 1} to {len(changed) - 1} {how}"
        check_still(e.out(i)[: t + 1], e.out(i + 1)[: t + 1], f"out[0] to out[{t}]", moved)
    return []


def triangles(rng: Rng) -> list[Call]:
    return [Call("causal_mask", {"n": n}) for n in (1, 2, 5, int(rng.integers(6, 12)), int(rng.integers(33, 66)))]


def judge_triangle(e: Evidence) -> list[str]:
    remarks = []
    for call, result, wanted in zip(e.calls, e.results, e.rights, strict=True):
        n = call.args["n"]
        if result.out is not None and result.out.dtype.kind == "f" and not np.isin(result.out, (0, 1)).all():
            odd = number(float(result.out[~np.isin(result.out, (0, 1))][0]))
            fail(f"causal_mask({n}) holds {odd}: expected True where query i may attend to key j, else False")
        got = values_of(result.out, wanted.out, f"causal_mask({n})")
        check_equal(got, np.asarray(wanted.out), f"causal_mask({n})")
        assert result.out is not None
        if result.out.dtype != bool:
            remarks = [
                f"the mask is right, as {result.out.dtype} of 0 and 1; bool says that it selects, and ~ turns it over"
            ]
    return remarks


def rows(rng: Rng) -> list[Call]:
    alone = np.zeros((5, 7), bool)
    alone[np.arange(5), rng.integers(0, 7, 5)] = True
    return [
        attention(**looked(rng, 5, 7, 3)),
        attention(**looked(rng, 5, 7, 3), mask=some(rng, 5, 7)),
        attention(**looked(rng, 5, 7, 3), mask=alone),
        attention(**qkv(rng, 5, 7, 3, 2), mask=alone),
    ]


def judge_rows(e: Evidence) -> list[str]:
    for i, call in enumerate(e.calls):
        mask, looked_at = call.args.get("mask"), call.args["v"].shape == (7, 7)
        if looked_at:
            check_rows(e.weights(i))
        if mask is None or not (mask.sum(axis=-1) == 1).all():
            continue
        if looked_at and not same(e.weights(i), np.asarray(mask, np.float64)):
            left = number(float(e.weights(i)[0].max()))
            fail(f"with all keys but one masked, the one left must have weight 1: it has {left}")
        if not looked_at:
            what = "with all keys but one masked, out is the value of that key; out"
            check_equal(e.out(i), np.asarray(e.rights[i].out), what)
    return []


# ------------------------------------------------------------------------------------------- softmax
def softmax_values(rng: Rng) -> list[Call]:
    holed = np.where(rng.permutation(5) < 2, -np.inf, rng.standard_normal(5))  # weights of 0
    return softmax_calls(
        (holed, -1),
        (rng.standard_normal(7), -1),
        (rng.standard_normal((3, 5)), -1),
        (rng.standard_normal((2, 3, 4)), -1),
    )


def softmax_axis(rng: Rng) -> list[Call]:
    x = rng.standard_normal((2, 3, 5))
    return softmax_calls((x, 0), (x, 1), (x, 2), (x, -2), (x, -3))


def softmax_large(rng: Rng) -> list[Call]:
    x = rng.standard_normal((3, 5))
    return softmax_calls((x, -1), (1e4 * x, -1), (x + 1e4, -1), (x - 1e4, -1))


def softmax_apart(rng: Rng) -> list[Call]:
    x = rng.standard_normal((3, 5))
    far = x + np.array([[0.0], [1e4], [-1e4]])
    return softmax_calls((x, -1), (far, -1), (x.T.copy(), 0), (far.T.copy(), 0))


def softmax_twice(rng: Rng) -> list[Call]:
    return each_again(
        *(Call("softmax", {"x": rng.standard_normal(shape)}) for shape in ((3, 5), (3, 5), (7,), (2, 3, 4)))
    )


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
            fail(f"the call wrote to {' and '.join(result.changed)}, for {given(call)}")
    for i in range(0, len(e.calls), 2):
        if all(
            same(w, e.results[i + 1].params.get(name)) for name, w in e.results[i].params.items()
        ):  # an unseeded layer
            check_still(e.out(i), e.out(i + 1), "out", "the same arrays were passed again")
    return []


# ------------------------------------------------------------------------------------------- attention in interviews
def values_of_one(rng: Rng) -> list[Call]:
    zeros = {"q": np.eye(5), "k": np.eye(5), "v": rng.standard_normal((5, 5))}  # a score of 0 is a score
    return [
        attention(**qkv(rng, 3, 5, 7, 2)),
        attention(**qkv(rng, 5, 5, 5, 5), mask=some(rng, 5, 5)),
        attention(**zeros, mask=some(rng, 5, 5)),
        attention(**qkv(rng, 5, 5, 5, 5)),  # whatever mask there was before
        attention(**qkv(rng, 9, 6, 3, 2), mask=some(rng, 9, 6)),
        attention(**qkv(rng, 20, 23, 16, 11)),
        attention(**qkv(rng, 4, 1, 3, 2)),
        attention(**qkv(rng, 3, 5, 1, 2)),
    ]


def width_four(rng: Rng) -> list[Call]:
    """d_k = 4: the scale is 1/2, by hand."""
    q, k = np.array([[2.0, 0, 0, 0]]), np.array([[1.0, 0, 0, 0], [0, 1, 0, 0]])
    return [attention(q=q, k=k, v=np.eye(2)), attention(**looked(rng, 3, 5, 4))]


def judge_width_four(e: Evidence) -> list[str]:
    got = e.weights(0)
    if not same(got, np.asarray(e.rights[0].weights)):
        fail(f"d_k = 4, scores 2/2 = 1 and 0: {_two_weights(e)}")
    return all_equal(e)


def upper(rng: Rng) -> list[Call]:
    masked = [attention(**looked(rng, n, n, 3), mask=causal_mask(n)) for n in (5, 8)]
    sizes = ((1, 1), (5, 5), (8, 8), (5, 8), (1, 8))
    causal = [attention(**looked(rng, n_q, n_k, 3), causal=True) for n_q, n_k in sizes]
    return [*masked, attention(**looked(rng, 5, 5, 3)), *causal]


def judge_upper(e: Evidence) -> list[str]:
    for i, call in enumerate(e.calls):
        if hides(call) and not is_oblong(call):
            with about(call):
                _check_triangle(e.weights(i))
    plain = next(i for i, call in enumerate(e.calls) if not hides(call))
    if is_right(e.results[plain], e.rights[plain]):
        for i, call in enumerate(e.calls):
            if "causal" in call.args:
                with about(call):
                    equal(e, i)
    return remarks_on_alignment(e)


def _check_triangle(weights: Array) -> None:
    upper = np.triu(weights, 1)
    if upper.any():
        at = np.unravel_index(np.argmax(np.abs(upper)), upper.shape)
        fail(f"weights[{at[0]}, {at[1]}] is {number(float(upper[at]))}: above the diagonal all must be exactly 0")
    check_rows(weights)


def permuted(rng: Rng) -> list[Call]:
    args, order = qkv(rng, 4, 6, 3, 2), rng.permutation(6)
    while (order == np.arange(6)).all():
        order = rng.permutation(6)
    return [attention(**args), attention(q=args["q"], k=args["k"][order], v=args["v"][order])]


def judge_permuted(e: Evidence) -> list[str]:
    check_still(e.out(0), e.out(1), "out", "the keys were put in another order, with their values")
    return []


def peaked(rng: Rng) -> list[Call]:
    """Each query is a key, a hundred times as long: it takes that key's value."""
    order, k = rng.permutation(5), np.linalg.qr(rng.standard_normal((5, 5)))[0]
    return [attention(q=200 * k[order], k=k, v=rng.standard_normal((5, 3)))]


def judge_peaked(e: Evidence) -> list[str]:
    wanted = np.asarray(e.rights[0].out)
    check_equal(e.out(0), wanted, "each query points along one key, so out is that key's value; out")
    return []


def large(rng: Rng) -> list[Call]:
    args = qkv(rng, 4, 6, 3, 2)
    far = {**args, "q": args["q"] * np.array([[1.0], [1e4], [1.0], [1e4]])}
    mask = some(rng, 4, 6)
    low = {**args, "q": np.tile([-1e5, 0.0, 0.0], (4, 1)), "k": 1e-5 * args["k"]}
    low["k"][:, 0] += np.where(mask[0], 1.0, 0.0)  # visible scores of -6e4, hidden ones near 0
    deep = {**low, "k": 1e-5 * args["k"] + np.array([1.0, 0.0, 0.0])}  # none of them near 0
    return [
        attention(**args),
        attention(**{**args, "q": 1e4 * args["q"]}),
        attention(**{**args, "k": 1e4 * args["k"]}),
        attention(**far),
        attention(**args, mask=mask),
        attention(**far, mask=mask),
        attention(**low, mask=np.tile(mask[0], (4, 1))),
        attention(**deep),
    ]


def padding_and_causal(rng: Rng) -> list[Call]:
    n = 5
    real = np.arange(n) < np.array([[5], [3]])  # (b, n)
    mask = (causal_mask(n) & real[:, None, :])[:, None]  # (b, 1, n, n)
    calls = [attention(**qkv(rng, n, n, 4, 3, 2, 3), mask=mask), attention(**looked(rng, n, n, 4, 2, 3), mask=mask)]
    return [*calls, attention(**looked(rng, n, n, 4, 2, 3), causal=True)]


def judge_padding(e: Evidence) -> list[str]:
    for i, call in enumerate(e.calls):
        if call.args["v"].shape[-1] == call.args["v"].shape[-2]:
            weights, mask = e.weights(i), call.args.get("mask", causal_mask(call.args["q"].shape[-2]))
            if np.where(mask, 0, weights).any():
                hidden = "is padding, or in the future," if "mask" in call.args else "is in the future (causal=True)"
                fail(f"a key that {hidden} has a weight other than 0")
            check_rows(weights)
    return []


def alone(rng: Rng) -> list[Call]:
    args = qkv(rng, 4, 6, 3, 2, 3)
    other = {name: x.copy() for name, x in args.items()}
    for x in other.values():
        x[1:] += rng.standard_normal(x[1:].shape)
    return [attention(**args), attention(**other)]


def judge_alone(e: Evidence) -> list[str]:
    check_still(e.out(0)[0], e.out(1)[0], "out of item 0", "the other items of the batch were changed")
    return []


def attention_twice(rng: Rng) -> list[Call]:
    masked, plain = attention(**qkv(rng, 4, 6, 3, 2), mask=some(rng, 4, 6)), attention(**qkv(rng, 4, 6, 3, 2))
    square = attention(**qkv(rng, 4, 4, 3, 3))  # where every array has the shape of the result
    return each_again(masked, plain, square)
