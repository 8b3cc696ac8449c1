"""Wrong implementations of attention, a table: each replaces one step of the right one, and has a name.

Knows what each step is replaced by; not how a solution is run, nor which checks it fails.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from headwise.check import missteps as bad
from headwise.check import missteps_tiles as tiles
from headwise.check.answers import Parts, attend, composed, drawn, hide, right
from headwise.check.calls import Call, Result
from headwise.core.shapes import Array


class Mistake(NamedTuple):
    """A row.

    Attributes
    ----------
    name : str
        Its name.
    exercises : tuple of str
        Where it can be made.
    explanation, fix : str
        What was done, and what to do instead, one line each.
    parts : dict
        The steps that are other than they should be.
    detect : callable or None
        For what no values show: ``detect(call, result, right)``, whether a call shows this mistake.
    checks : tuple of str
        Where ``detect`` alone tells, the checks that are about it; by default all.
    where : callable
        ``where(call, result)``: whether a result could have come of it at all.
    variants : tuple of dict
        Other steps by which the same mistake is made.
    trace : callable or None
        For what shows in all that is computed, as rounding does: ``trace(call, result, right)``, whether it shows in a
        call, right or wrong; None where it could not. Of several such mistakes the first is meant.
    sure : callable or None
        With ``trace``, what proves it: ``sure(call, result, right)`` for any call. Without a proof it is told only if
        another exercise has one.
    alone : bool
        Whether it is not looked for together with a second one, as where it has very many variants.
    steps : callable or None
        ``steps(size)``: of a mistake with tiles, its variants for one size.
    """

    name: str
    exercises: tuple[str, ...]
    explanation: str
    fix: str
    parts: dict[str, Any]
    detect: Callable[[Call, Result, Result], bool] | None = None
    checks: tuple[str, ...] = ()
    where: Callable[[Call, Result], bool] = lambda call, result: True
    variants: tuple[dict[str, Any], ...] = ()
    trace: Callable[[Call, Result, Result], bool | None] | None = None
    sure: Callable[[Call, Result, Result], bool] | None = None
    alone: bool = False
    steps: Callable[[int], list[dict[str, Any]]] | None = None

    @property
    def of_causal(self) -> bool:
        """Whether it is made where ``causal`` is turned into a mask, and shows nowhere else."""
        return bool({"triangle", "rule", "heeds_causal"} & set(self.parts))


_S, _A, _C, _H = ("softmax",), ("attention", "multi_head", "layer"), ("causal_mask",), ("multi_head", "layer")
_EVERY = ("softmax", *_A)
_CAUSAL = (*_C, *_H, "attention")
_OPTION = (*_H, "attention")


_UNTOUCHED = ("softmax_untouched", "untouched", "heads_untouched", "layer_untouched")
_TOO_WEAK = (-1.0, -2.0, -3.0, -5.0, -15.0, -20.0, -25.0, -30.0, -50.0, -99.0, -100.0, -999.0, -1e3, -1e4)


def _weigh(change: Callable[[Parts, Array, Array | None], Array]) -> dict[str, Any]:
    return {"weigh": change}


def _tiled(
    name: str,
    exercises: tuple[str, ...],
    explanation: str,
    fix: str,
    steps: Callable[[int], list[dict[str, Any]]],
    *more: dict[str, Any],
) -> Mistake:
    """A mistake made with tiles of any size."""
    first, *others = [each for size in tiles.SIZES for each in steps(size)]
    return Mistake(name, exercises, explanation, fix, first, variants=(*others, *more), alone=True, steps=steps)


_TWO = tuple((queries, keys) for queries in (128, 64, 32, 16) for keys in (64, 128, 32, 16))
_UNEQUAL = tuple((queries, keys) for queries, keys in _TWO if queries != keys)
"""Sizes of a tile of queries and one of keys, the usual ones."""

MISTAKES: tuple[Mistake, ...] = (
    Mistake(
        "no max subtraction",
        _EVERY,
        "the exponentials overflow: exp(710) is infinite in float64, and inf / inf is NaN",
        "subtract the maximum of each row before exp: exp(x - x.max(axis, keepdims=True))",
        {"softmax": bad.no_max},
    ),
    Mistake(
        "max over the whole array",
        _EVERY,
        "one maximum is subtracted from all rows: in a row far below it every exponential is 0, and 0 / 0 is NaN",
        "take the maximum along the axis of the softmax: x.max(axis=axis, keepdims=True)",
        {"softmax": bad.one_max},
    ),
    Mistake(
        "maximum starts at 0",
        _EVERY,
        "the search for the maximum began with 0: of scores far below it every exponential is 0, and 0 / 0 is NaN",
        "begin with -np.inf, or take x.max(axis, keepdims=True)",
        {"softmax": bad.max_from_0},
        variants=({"softmax": bad.nan_as_0(bad.max_from_0)},),
    ),
    Mistake(
        "softmax not normalised",
        _EVERY,
        "the exponentials are not divided by their sum",
        "divide by e.sum(axis=axis, keepdims=True)",
        {"softmax": bad.not_normalised},
    ),
    Mistake(
        "epsilon in the denominator",
        _EVERY,
        "a small number was added to the sum, so that rows sum to less than 1",
        "leave it out: after the maximum was subtracted the sum is at least 1",
        {"softmax": bad.with_epsilon(1e-6)},
        variants=tuple({"softmax": bad.with_epsilon(eps)} for eps in (1e-4, 1e-5, 1e-7, 1e-8)),
    ),
    Mistake(
        "sum without keepdims",
        _EVERY,
        "the sums have lost their axis, so that they line up with other entries than those they were made of",
        "keep the axis: e.sum(axis=axis, keepdims=True)",
        {"softmax": bad.sum_of_last},
    ),
    Mistake(
        "axis ignored",
        _S,
        "the softmax always runs along the last axis, whatever axis= says",
        "pass axis on to max and to sum",
        {"softmax": lambda x, axis: Parts().softmax(x, -1)},
    ),
    Mistake(
        "axis counted from the front",
        _EVERY,
        "the sums run along a fixed axis, 0 or 1, whatever axis= says and however many axes there are",
        "pass axis on to max and to sum, with keepdims=True; the last axis is -1",
        {"softmax": bad.along(0)},
        variants=({"softmax": bad.along(1)},),
    ),
    Mistake(
        "axis 0 by default",
        _S,
        "without axis= the softmax runs along the first axis, not the last",
        "def softmax(x, axis=-1)",
        {"axis": 0},
    ),
    Mistake(
        "clipped instead of shifted",
        _EVERY,
        "scores were cut off at a limit, so that large ones become equal, where the maximum should be subtracted",
        "subtract the maximum of each row before exp: exp(x - x.max(axis, keepdims=True)); it changes nothing else",
        {"softmax": bad.clipped(700)},
        variants=(
            *({"softmax": bad.clipped(most)} for most in (10, 20, 30, 50, 80, 88, 100, 500, 709)),
            *({"weigh": how(most)} for how in (bad.clipped_scores, bad.clipped_below) for most in (5, 10, 20, 50, 100)),
        ),
    ),
    Mistake(
        "NaN turned into 0",
        _EVERY,
        "the exponentials overflow, inf / inf is NaN, and that was turned into 0: those weights are lost",
        "subtract the maximum of each row before exp, then nothing overflows",
        {"softmax": bad.nan_as_0(bad.no_max)},
        variants=({"softmax": bad.nan_as_0(bad.one_max)},),
    ),
    Mistake(
        "softmax over all",
        _EVERY,
        "all entries of the array together sum to 1, instead of each row",
        "give max and sum the axis of the softmax: axis=axis, keepdims=True",
        {"softmax": lambda x, axis: Parts().softmax(x, tuple(range(x.ndim)))},
        variants=({"softmax": bad.sum_of_all},),
    ),
    Mistake(
        "softmax over each matrix",
        _A,
        "the weights of all queries of an item together sum to 1, instead of each query's",
        "run the softmax along the keys alone: axis=-1",
        _weigh(bad.over((-2, -1))),
        variants=(_weigh(bad.sum_of_matrix),),
    ),
    Mistake(
        "softmax over queries",
        _A,
        "each column sums to 1 instead of each row: the queries compete for a key",
        "run the softmax along the keys, the last axis of the scores: axis=-1",
        _weigh(bad.over(-2)),
    ),
    Mistake(
        "softmax over heads",
        _A,
        "the softmax runs along the axis of the heads (or the batch), so that the heads compete",
        "run the softmax along the keys, the last axis of the scores: axis=-1",
        _weigh(bad.over(-3)),
    ),
    Mistake(
        "mask after softmax",
        _A,
        "weights were set to 0 after the softmax: what is left of a row does not sum to 1",
        "set the masked scores to -inf before the softmax",
        _weigh(lambda p, s, mask: bad.times(p.softmax(s, -1), mask)),
    ),
    Mistake(
        "mask times score",
        _A,
        "scores were multiplied by the mask: a masked score is 0, and exp(0) = 1 is no small weight",
        "select instead: np.where(mask, scores, -np.inf)",
        _weigh(lambda p, s, mask: p.softmax(bad.if_masked(s, mask, np.multiply), -1)),
    ),
    Mistake(
        "mask added as 0/1",
        _A,
        "the mask was added to the scores as 0 and 1: it only prefers some keys a little",
        "select instead: np.where(mask, scores, -np.inf)",
        _weigh(lambda p, s, mask: p.softmax(bad.if_masked(s, mask, np.add), -1)),
    ),
    Mistake(
        "polarity of the mask",
        _A,
        "the mask was read the other way round: True means 'may attend', and what it allows was hidden",
        "hide where the mask is False: np.where(mask, scores, -np.inf)",
        _weigh(lambda p, s, mask: p.softmax(hide(p, s, None if mask is None else mask == 0), -1)),
    ),
    Mistake(
        "mask ignored",
        _A,
        "the mask changes nothing; to add a number such as -1e-9 is nothing too",
        "set the scores to -inf where the mask is False, before the softmax",
        _weigh(lambda p, s, mask: p.softmax(s, -1)),
    ),
    Mistake(
        "masked by a small number",
        _A,
        "masked scores were set to about 0 (such as 1e-9, for -1e9): exp(0) = 1 is no small weight",
        "mind the sign of the exponent: -np.inf, or -1e9",
        {"hidden": 1e-9, "added": False},
        variants=({"hidden": -1e-9, "added": False},),
    ),
    Mistake(
        "masked by too weak a number",
        _A,
        "masked scores were set to a number such as -10: exp of it is small, not 0",
        "use -np.inf, or a number that no score comes near, such as -1e9",
        {"hidden": -10.0},
        variants=tuple({"hidden": fill} for fill in _TOO_WEAK),
    ),
    Mistake(
        "masked by plus infinity",
        _A,
        "masked scores were set to +inf: the softmax of such a row is NaN",
        "mind the sign: -np.inf",
        {"hidden": np.inf},
    ),
    Mistake(
        "score of 0 taken for masked",
        _A,
        "a score that is exactly 0 was taken for a masked one",
        "select by the mask itself: np.where(mask, scores, -np.inf)",
        _weigh(bad.zero_hidden),
    ),
    Mistake(
        "0 times infinity",
        _A,
        "-inf was multiplied by a mask of 0 and 1: 0 * inf is NaN, also where a score should stay",
        "select instead: np.where(mask, scores, -np.inf)",
        _weigh(lambda p, s, mask: p.softmax(bad.if_masked(s, mask, lambda s, m: s + (1 - m) * -np.inf), -1)),
    ),
    Mistake(
        "mask transposed",
        _A,
        "the mask was laid on the scores with queries and keys swapped",
        "mask[..., i, j] belongs to query i and key j: lay it on q @ k^T",
        _weigh(lambda p, s, mask: p.softmax(hide(p, s, None if mask is None else bad.turned(mask)), -1)),
    ),
    Mistake(
        "no softmax",
        _A,
        "the values were mixed by the scores themselves",
        "weights = softmax(scores), along the keys",
        {"softmax": lambda x, axis: x},
    ),
    Mistake(
        "softmax of minus the scores",
        _A,
        "the sign of the scores was turned: what fits a query least gets most weight",
        "softmax(scores), not softmax(-scores)",
        {"scale": lambda n: -(n.q[-1] ** -0.5)},
    ),
    Mistake(
        "softmax twice",
        _A,
        "the softmax was run on weights that had been through one: they come out nearly even",
        "run the softmax once, on the scores",
        _weigh(lambda p, s, mask: p.softmax(p.softmax(hide(p, s, mask), -1), -1)),
    ),
    Mistake(
        "no scale",
        _A,
        "the scores were not divided by sqrt(d_k)",
        "scores = q @ k^T / sqrt(d_k), with d_k the width of one query",
        {"scale": lambda n: 1.0},
    ),
    Mistake(
        "scale 1/d",
        _A,
        "the scores were divided by d_k, not by its square root",
        "divide by np.sqrt(d_k)",
        {"scale": lambda n: 1 / n.q[-1]},
    ),
    Mistake(
        "1/2 outside the power",
        _A,
        "d_k ** 1 / 2 is half of d_k, not its root: powers come before division",
        "d_k ** 0.5, or np.sqrt(d_k)",
        {"scale": lambda n: 2 / n.q[-1]},
        variants=({"scale": lambda n: 1 / (2 * n.q[-1])},),
    ),
    Mistake(
        "scale cut off to an integer",
        _A,
        "the root of d_k was cut off to an integer: int(...), or //",
        "divide by np.sqrt(d_k) as it is",
        {"scale": lambda n: 1 / max(1, int(n.q[-1] ** 0.5))},
    ),
    Mistake(
        "scale sqrt(d) multiplied",
        _A,
        "the scores were multiplied by sqrt(d_k) instead of divided",
        "divide by np.sqrt(d_k)",
        {"scale": lambda n: n.q[-1] ** 0.5},
    ),
    Mistake(
        "scale of d_model",
        _H,
        "the scores were divided by sqrt(d_model): each head's queries are d_head = d_model / n_heads wide",
        "divide by np.sqrt(d_head)",
        {"scale": lambda n: n.d_model**-0.5},
    ),
    Mistake(
        "scale of the length",
        _A,
        "the scores were divided by the root of the number of keys, or of queries, instead of the width",
        "divide by np.sqrt(q.shape[-1])",
        {"scale": lambda n: n.k[-2] ** -0.5},
        variants=({"scale": lambda n: n.q[-2] ** -0.5},),
    ),
    Mistake(
        "scale of an axis from the front",
        _A,
        "the scores were divided by the root of q.shape[0] or q.shape[1]: which axis that is depends on the batch axes",
        "count from the end: divide by np.sqrt(q.shape[-1])",
        {"scale": lambda n: n.q[1] ** -0.5},
        variants=(
            {"scale": lambda n: n.q[0] ** -0.5},
            {"scale": lambda n: n.k[0] ** -0.5},
            {"scale": lambda n: n.k[1] ** -0.5},
        ),
    ),
    Mistake(
        "scale of the number of heads",
        _H,
        "the scores were divided by the root of the number of heads instead of the width of one",
        "divide by np.sqrt(d_head), with d_head = d_model // n_heads",
        {"scale": lambda n: (n.d_model // n.q[-1]) ** -0.5},
    ),
    Mistake(
        "scale of the width of v",
        ("attention",),
        "the scores were divided by the root of the width of the values, instead of that of queries and keys",
        "divide by np.sqrt(q.shape[-1])",
        {"scale": lambda n: n.v[-1] ** -0.5},
    ),
    Mistake(
        "scale of a fixed width",
        _A,
        "the scores were divided by a constant such as 8, the root of 64, whatever the width",
        "divide by np.sqrt(q.shape[-1])",
        {"scale": lambda n: 1 / 8},
        variants=tuple({"scale": bad.fixed(d)} for d in (2, 4, 8, 16, 32, 128, 256, 512)),
    ),
    Mistake(
        "scaled after softmax",
        _A,
        "the weights were divided by sqrt(d_k), not the scores: rows sum to 1 / sqrt(d_k)",
        "divide the scores, before the softmax",
        {
            "scale": lambda n: 1.0,
            "attend": lambda p, q, k, v, mask, d_model: bad.shrunk(*attend(p, q, k, v, mask, d_model), q),
        },
    ),
    Mistake(
        "q and k swapped",
        _A,
        "the scores are k q^T, those of every key for every query turned over",
        "scores = q @ k^T: a row for each query, a column for each key",
        {"scores": lambda q, k: k @ np.swapaxes(q, -1, -2)},
    ),
    Mistake(
        "v used as k",
        _A,
        "the queries were compared with v instead of k",
        "scores = q @ k^T",
        {"inputs": lambda q, k, v: (q, v, v)},
    ),
    Mistake(
        "k used as v",
        _A,
        "the weights were multiplied by k instead of v",
        "out = weights @ v",
        {"inputs": lambda q, k, v: (q, k, k)},
    ),
    Mistake(
        "k and v swapped",
        _A,
        "the queries were compared with v, and the weights multiplied k",
        "scores = q @ k^T, out = weights @ v",
        {"inputs": lambda q, k, v: (q, v, k)},
    ),
    Mistake(
        "k not transposed for batches",
        _A,
        ".T turns all axes over, the batch too; with more than two axes it is not the transpose of the matrices",
        "swap the last two axes only: np.swapaxes(k, -1, -2)",
        {"scores": lambda q, k: q @ k.T},
    ),
    Mistake(
        "weights transposed before v",
        _A,
        "the values were gathered with the columns of the weights instead of their rows",
        "out = weights @ v",
        {"mix": lambda weights, v: np.swapaxes(weights, -1, -2) @ v},
    ),
    Mistake(
        "weights returned first",
        ("attention", "layer"),
        "the pair was returned as (weights, out)",
        "return (out, weights)",
        {"returned": lambda out, weights: (weights, out)},
        where=lambda call, result: result.weights is not None or bool(result.error),
    ),
    Mistake(
        "weights returned alone",
        ("attention", "layer"),
        "the weights were returned, and no output",
        "return weights @ v, or both: (out, weights)",
        {"returned": lambda out, weights: (weights, None)},
        where=lambda call, result: result.weights is None,
    ),
    Mistake(
        "scores returned as weights",
        ("attention", "layer"),
        "beside out the scores were returned, before the softmax",
        "return what multiplies v: softmax(scores)",
        {"attend": bad.with_scores},
    ),
    Mistake(
        "batch leak",
        _A,
        "the items of the batch were laid end to end: queries of one attend to keys of another",
        "keep the batch axis in front: matmul takes each item by itself",
        {"attend": bad.folded},
    ),
    _tiled(
        "earlier tiles not rescaled",
        _A,
        "at a tile with a larger maximum, what tiles before gave to out, to the sum or to both was left as it was",
        "at each tile multiply both by exp(old_max - new_max) before adding to them",
        lambda size: [
            _weigh(tiles.not_rescaled(size, **how)) for how in ({}, {"total": False}, {"out": False}, {"own": True})
        ],
    ),
    _tiled(
        "out divided by the sum at each tile",
        _A,
        "out was divided by the sum so far at each tile, and what comes after was added to it as if it had not been",
        "divide once, after the last tile",
        lambda size: [_weigh(tiles.normalised_each(size, again=again)) for again in (False, True)],
    ),
    _tiled(
        "last partial tile dropped",
        _A,
        "only whole tiles of keys were gone through: the keys after the last of them are lost",
        "for start in range(0, n_k, tile), and slice: k[start : start + tile] ends where the keys end",
        lambda size: [_weigh(tiles.last_dropped(size, guarded=guarded)) for guarded in (False, True)],
    ),
    _tiled(
        "last partial tile of queries dropped",
        _A,
        "only whole tiles of queries were gone through: the rows of out after the last of them are 0, or missing",
        "for start in range(0, n_q, tile), and slice: q[start : start + tile] ends where the queries end",
        lambda size: [
            _weigh(tiles.last_queries_dropped(size, missing=missing, guarded=guarded))
            for missing in (False, True)
            for guarded in (False, True)
        ],
    ),
    _tiled(
        "padding of the last tile attended",
        _A,
        "the last tile was filled up with keys of 0, and these took their share: exp(0) is no small weight",
        "set the scores of the filled-up keys to -inf, with a mask and without",
        lambda size: [_weigh(tiles.padding_seen(size, masked=masked)) for masked in (False, True)],
    ),
    _tiled(
        "offset of the tile forgotten in the mask",
        _A,
        "each tile was masked like the first: the mask, or causal's j <= i, was read with indices within the tile",
        "mask[..., i0 : i0 + tile, j0 : j0 + tile]; causal is j0 + j <= i0 + i",
        lambda size: [
            *(
                _weigh(tiles.offset_forgotten(size, queries=queries, keys=keys))
                for queries, keys in ((True, True), (False, True), (True, False))
            ),
            {"triangle": tiles.local_triangle(size)},
        ],
        *({"rule": tiles.local(*two, skips=skips)} for two in _UNEQUAL for skips in (False, True)),
    ),
    _tiled(
        "NaN from a tile without visible keys",
        _A,
        "where a query sees nothing in the first tile, -inf was subtracted from -inf: NaN, which stays in both sums",
        "subtract 0 where the maximum is still -inf: np.where(np.isneginf(new_max), 0, new_max)",
        lambda size: [_weigh(tiles.blind_at_first(size))],
    ),
    Mistake(
        "visible tiles skipped",
        _OPTION,
        "causal left out tiles of which a query sees a part: the test forgot the last queries of a tile, or n_k - n_q",
        "skip a tile of keys if its first key lies after the last query: j0 > i0 + tile - 1 + n_k - n_q",
        {"rule": tiles.skipped(128, 64)},
        variants=(
            *({"rule": tiles.skipped(*two)} for two in _UNEQUAL[1:] if two[0] > two[1]),
            *({"rule": tiles.skipped(*two, end=end, offset=False)} for two in _TWO for end in (True, False)),
        ),
        alone=True,
        steps=lambda size: [{"rule": tiles.skipped(size, size, end=end, offset=False)} for end in (True, False)],
    ),
    Mistake(
        "causal off by one (strict)",
        _CAUSAL,
        "a token may not attend to itself: the diagonal is hidden, and the first row has no key",
        "allow j <= i: np.tril(np.ones((n, n), bool))",
        {"triangle": bad.triangle(-1)},
    ),
    Mistake(
        "causal off by one (one ahead)",
        _CAUSAL,
        "each token also attends to the one after it",
        "allow j <= i: np.tril(np.ones((n, n), bool))",
        {"triangle": bad.triangle(1)},
    ),
    Mistake(
        "causal transposed",
        _CAUSAL,
        "the triangle is the upper one: tokens attend to the future, not to the past",
        "query i may attend to key j <= i: np.tril, not np.triu",
        {"triangle": lambda n: np.triu(np.ones((n, n), bool))},
    ),
    Mistake(
        "causal inverted",
        _CAUSAL,
        "True stands where a token may NOT attend (the strictly upper triangle)",
        "True = may attend: np.tril(np.ones((n, n), bool)), or ~ of this mask",
        {"triangle": lambda n: np.triu(np.ones((n, n), bool), 1)},
    ),
    Mistake(
        "causal mask of scores",
        _CAUSAL,
        "the mask holds 0 and -inf, to be added to scores, instead of True and False",
        "return the booleans: np.tril(np.ones((n, n), bool))",
        {"triangle": bad.additive(-np.inf)},
        variants=tuple({"triangle": bad.additive(fill)} for fill in (-1e9, -1e4, -1e10, -1e30)),
    ),
    Mistake(
        "length taken from the batch",
        _H,
        "the causal mask was made as long as the batch, not as the sequence: with one item it hides nothing",
        "n = x.shape[-2], not len(x)",
        {"tokens_axis": 0},
    ),
    Mistake(
        "always causal",
        _OPTION,
        "the causal mask is there with causal=False too",
        "mask = causal_mask(n) if causal else None",
        {"always_causal": True},
    ),
    Mistake(
        "causal ignored",
        _OPTION,
        "causal=True changes nothing",
        "pass causal_mask(n) on to attention",
        {"heeds_causal": False},
    ),
    Mistake(
        "reshaped straight to heads",
        _H,
        "(b, n, d_model) was reshaped straight to (b, n_heads, n, d_head): this cuts tokens apart and mixes them",
        "first (b, n, n_heads, d_head), then swap the two axes in the middle",
        {"split": bad.straight},
    ),
    Mistake(
        "reshaped straight, both ways",
        _H,
        "(b, n, d_model) was reshaped straight to (b, n_heads, n, d_head), and straight back: tokens are mixed",
        "first (b, n, n_heads, d_head), then swap the two axes in the middle; back the other way round",
        {"split": bad.straight, "merge": bad.straight_back},
    ),
    Mistake(
        "no transpose before attention",
        _H,
        "attention ran on (b, n, n_heads, d_head): the heads of a token attended to each other, tokens never met",
        "swap to (b, n_heads, n, d_head) before attention, so that tokens are the last axis but one",
        {"split": bad.tokens_first, "merge": bad.side_by_side},
    ),
    Mistake(
        "heads merged without transposing back",
        _H,
        "(b, n_heads, n, d_head) was reshaped to (b, n, d_model) without swapping the axes first: tokens are mixed",
        "swap back to (b, n, n_heads, d_head), then reshape",
        {"merge": bad.straight_back},
    ),
    Mistake(
        "heads interleaved",
        _H,
        "the width was split as (d_head, n_heads): a head got every n_heads-th column instead of a block of them",
        "reshape to (b, n, n_heads, d_head)",
        {"split": bad.every_nth, "merge": bad.woven},
        variants=({"split": bad.every_nth}, {"merge": bad.woven}),
    ),
    Mistake(
        "heads averaged",
        _H,
        "the outputs of the heads were averaged instead of laid side by side",
        "concatenate the heads along the width, then multiply by w_o",
        {"merge": bad.mean_of_heads},
    ),
    Mistake(
        "one head for all",
        _H,
        "n_heads changes nothing: one attention ran over the whole width",
        "split the width into n_heads heads, each with its own softmax",
        {"split": lambda x, n_heads: x[..., None, :, :], "merge": lambda heads: heads[..., 0, :, :]},
    ),
    Mistake(
        "weights averaged over heads",
        ("layer",),
        "the weights that were returned are the mean over the heads",
        "return the weights of every head: (b, n_heads, n, n)",
        {"shown": lambda weights: weights.mean(axis=-3)},
    ),
    Mistake(
        "w transposed",
        _H,
        "the weights were used as x @ w.T: that is right for weights that lie as (d_out, d_in), as PyTorch's do",
        "x @ w, with w (d_in, d_out)",
        {"project": lambda x, w: x @ w.T},
    ),
    Mistake(
        "one weight transposed",
        _H,
        "one of the four weights was used transposed: x @ w.T",
        "x @ w for each of the four, with w (d_in, d_out)",
        {"turned": ("w_o",)},
        variants=({"turned": ("w_q",)}, {"turned": ("w_k",)}, {"turned": ("w_v",)}),
    ),
    Mistake(
        "forgotten w_o",
        _H,
        "the heads were laid side by side, and not multiplied by w_o",
        "return merged @ w_o",
        {"finish": lambda merged, out, x: merged},
    ),
    Mistake(
        "w_o before attention",
        _H,
        "the values were multiplied by w_o before they were split into heads, which it mixes after they are merged",
        "v = x @ w_v; multiply by w_o once the heads are side by side again",
        {"early": True},
    ),
    Mistake(
        "w_q used for all",
        _H,
        "queries, keys and values were all made with w_q",
        "q = x @ w_q, k = x @ w_k, v = x @ w_v",
        {"roles": ("w_q", "w_q", "w_q", "w_o")},
    ),
    Mistake(
        "w_k and w_v swapped",
        _H,
        "keys were made with w_v and values with w_k",
        "k = x @ w_k, v = x @ w_v",
        {"roles": ("w_q", "w_v", "w_k", "w_o")},
    ),
    Mistake(
        "w_k used for values",
        _H,
        "the values were made with w_k; w_v is not used",
        "v = x @ w_v",
        {"roles": ("w_q", "w_k", "w_k", "w_o")},
    ),
    Mistake(
        "projections chained",
        _H,
        "x was overwritten: k was made from q, and v from k, instead of all three from x",
        "q = x @ w_q, k = x @ w_k, v = x @ w_v",
        {"chained": True},
    ),
    Mistake(
        "no projection of v",
        _H,
        "the values are x itself, not x @ w_v",
        "v = x @ w_v",
        {"roles": ("w_q", "w_k", "", "w_o")},
    ),
    Mistake(
        "input added to the output",
        _H,
        "x was added to the result: the residual belongs to the block around attention",
        "return merged @ w_o",
        {"finish": lambda merged, out, x: out + x},
    ),
    Mistake(
        "rounded to decimals",
        _EVERY,
        "results were rounded to a few decimals",
        "return them as they are, and round where you print them",
        {},
        bad.to_decimals,
        trace=bad.trace_of_decimals,
        sure=bad.to_decimals,
    ),
    Mistake(
        "float32 inside",
        _EVERY,
        "float64 inputs were computed in float32: the result is right to 7 digits only",
        "keep the dtype of the inputs: no astype(np.float32), no float32 constants or buffers",
        {},
        bad.rounded(np.float32),
        trace=bad.trace_of(np.float32),
        sure=bad.in_type(np.float32),
    ),
    Mistake(
        "float16 inside",
        _EVERY,
        "float64 inputs were computed in float16: the result is right to 3 digits only",
        "keep the dtype of the inputs: no astype(np.float16)",
        {},
        bad.rounded(np.float16),
        trace=bad.trace_of(np.float16),
        sure=bad.in_type(np.float16),
    ),
    Mistake(
        "truth value of the mask",
        _A,
        "`if mask:` asks for one truth value of a whole array, and NumPy refuses",
        "if mask is not None:",
        {},
        bad.asked_for_truth,
    ),
    Mistake(
        "one seed for all weights",
        ("layer",),
        "each weight was drawn from a new generator with the same seed: w_q, w_k, w_v and w_o are the same numbers",
        "make one generator, and draw all four weights from it",
        {},
        bad.one_seed,
        checks=("layer_seed",),
    ),
    Mistake(
        "input mutated",
        _EVERY,
        "an array of the caller was written to: += and out= change it in place",
        "work on a new array: x = x - x.max(...), not x -= x.max(...)",
        {},
        bad.wrote_to_input,
        checks=_UNTOUCHED,
    ),
    Mistake(
        "results share memory",
        _EVERY,
        "a call wrote to what the call before had returned: both are views of one buffer that is kept",
        "return a new array from each call",
        {},
        bad.wrote_to_result,
        checks=_UNTOUCHED,
    ),
    Mistake(
        "shared mask modified",
        ("attention",),
        "the mask of the caller was written to: the next call gets another mask",
        "work on a new array: mask = mask & ..., not mask &= ...",
        {},
        bad.wrote_to_mask,
        checks=_UNTOUCHED,
    ),
)


def answer(mistake: Mistake | None, call: Call, params: dict[str, Array] | None = None) -> Result:
    """What a wrong implementation gives for a call; the right one for None.

    Parameters
    ----------
    mistake : Mistake or None
        A row of MISTAKES.
    call : Call
        The call.
    params : dict of str to ndarray, optional
        The weights of a layer; by default those of its seed.

    Returns
    -------
    Result
        ``out``, and ``weights`` where the function has them; or ``error``.
    """
    if call.function == "layer" and not params:
        params = drawn(call.args["d_model"], call.args["seed"])
    if mistake is None:
        return right(call, params or {})
    given = composed(replace(Parts(), **mistake.parts), call, params or {})
    return given._replace(weights=None) if call.function == "multi_head" else given
