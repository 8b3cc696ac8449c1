"""Where good systems disagree: what a solution is asked, and what is remarked on, which is no fault.

A solution is compared with itself, so that what is wrong anyway is not remarked on.
"""

import numpy as np

from headwise.check.calls import Call, same
from headwise.check.drawing import Rng, attention, qkv, softmax_calls, some
from headwise.check.judging import (
    Evidence,
    is_right,
)


def no_key(rng: Rng) -> list[Call]:
    args, mask = qkv(rng, 4, 6, 3, 2), some(rng, 4, 6)
    blind = mask.copy()
    blind[2] = False
    return [attention(**args, mask=blind), attention(**args, mask=mask)]


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


def sentinel(rng: Rng) -> list[Call]:
    """A visible score far below -1e9, a masked one of 0; and both of ordinary size."""
    k, v = np.array([[-1e12], [0.0]]), np.array([[1.0], [0.0]])
    mask = np.array([[True, False]])
    return [attention(q=np.array([[q]]), k=k, v=v, mask=mask) for q in (1.0, 1e-12)]


def remark_sentinel(e: Evidence) -> list[str]:
    if same(e.out(0), np.ones((1, 1))) or not is_right(e.results[1], e.rights[1]):
        return []
    return [
        "masked scores are set to a finite number such as -1e9: a visible score below it loses to them; -inf never does"
    ]


def integers(rng: Rng) -> list[Call]:
    args, mask = qkv(rng, 4, 6, 3, 2), some(rng, 4, 6)
    return [attention(**args, mask=mask), attention(**args, mask=mask.astype(np.int64))]


def remark_integers(e: Evidence) -> list[str]:
    if same(e.results[0].out, e.results[1].out):
        return []
    return [
        "a mask of 0 and 1 instead of booleans gives something else: ~ and indexing mean another thing for integers"
    ]


def whole(rng: Rng) -> list[Call]:
    args = {name: rng.integers(-3, 4, x.shape) for name, x in qkv(rng, 4, 6, 3, 2).items()}
    return [attention(**{name: x.astype(np.float64) for name, x in args.items()}), attention(**args)]


def remark_whole(e: Evidence) -> list[str]:
    if same(e.results[0].out, e.results[1].out):
        return []
    return ["arrays of integers give other numbers than the same as floats: results are cut off to integers on the way"]


def softmax_whole(rng: Rng) -> list[Call]:
    x = rng.integers(-3, 4, (3, 5))
    return softmax_calls((x.astype(np.float64), -1), (x, -1))


def wild(rng: Rng) -> list[Call]:
    args, mask = qkv(rng, 4, 6, 3, 2), some(rng, 6)
    wild = np.where(mask[:, None], args["v"], np.nan)
    return [attention(**{**args, "v": v}, mask=np.tile(mask, (4, 1))) for v in (wild, args["v"])]


def remark_wild(e: Evidence) -> list[str]:
    if np.isfinite(e.out(0)).all() or not is_right(e.results[1], e.rights[1]):
        return []
    return ["a NaN in the value of a masked key reaches out, since 0 * NaN is NaN; headwise keeps it away"]


def nothing(rng: Rng) -> list[Call]:
    return [Call("softmax", {"x": np.array([[-np.inf, -np.inf], [0.0, -np.inf]])})]


def remark_nothing(e: Evidence) -> list[str]:
    if not np.isnan(e.out(0)[0]).any():
        return []
    return ["the softmax of a row of -inf is NaN; headwise gives 0 there, so that a query without keys gives 0"]
