"""What a solution is asked, a table: what is claimed, what it counts, and where to look when it does not hold.

The calls and the judges stand in questions.py, questions_heads.py, questions_long.py and remarks.py. A check for other
languages and kernels is another row.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from headwise.check import judging, remarks
from headwise.check import questions as ask
from headwise.check import questions_heads as of_heads
from headwise.check import questions_long as of_many
from headwise.check.answers import right
from headwise.check.calls import Call, Result
from headwise.check.judging import Evidence

EXERCISES = {
    "softmax": "softmax(x, axis=-1): the weights of each row, stable",
    "attention": "scaled_dot_product_attention(q, k, v, mask=None) -> (out, weights), with any batch axes",
    "single_sequence": "the same function on one sequence: q (n_q, d_k), k (n_k, d_k), v (n_k, d_v), no batch axes",
    "causal_mask": "causal_mask(n) -> (n, n) of bool, True where query i may attend to key j",
    "multi_head": "multi_head_attention(x, w_q, w_k, w_v, w_o, heads, causal=False) -> (b, n, d_model)",
    "layer": "MultiHeadSelfAttention(d_model, n_heads, seed=0); layer(x, causal=False) -> (out, weights)",
}
"""What can be asked for; `single_sequence` is a part of `attention`."""

_Rng = np.random.Generator


class Check(NamedTuple):
    """A row.

    Attributes
    ----------
    name, exercise, claim : str
        Its name, the exercise it belongs to, and what it claims, in one sentence.
    weight : float
        What it counts; 0: it can only remark.
    look, formula : str
        Where to look after a failure, and the formula.
    calls : callable
        ``calls(rng)``: what the solution is asked, drawn from a generator.
    judge : callable
        ``judge(evidence)``: raises Wrong, or returns remarks.
    batched : bool
        Whether it needs batch axes, which ``single_sequence`` does without.
    divisible : bool
        Whether it can be judged by some of its calls, where a solution has no argument for the others.
    of_hiding : bool
        Whether it asks what is hidden, by a mask and by ``causal``: one of the two will do.
    """

    name: str
    exercise: str
    claim: str
    weight: float
    look: str
    formula: str
    calls: Callable[[_Rng], list[Call]]
    judge: Callable[[Evidence], list[str]]
    batched: bool = False
    divisible: bool = False
    of_hiding: bool = False


def rights(calls: Sequence[Call], results: Sequence[Result]) -> list[Result]:
    """The right results of calls; a layer's from its own weights."""
    return [right(call, result.params) for call, result in zip(calls, results, strict=True)]


_SOFTMAX = "softmax(x)_i = exp(x_i - max x) / sum_j exp(x_j - max x), along one axis"
_ATTENTION = "out = softmax(q k^T / sqrt(d_k), -inf where masked) v, softmax along the keys"
_HEADS = (
    "head_h = attention(x w_q, x w_k, x w_v), each on columns h d_head to (h + 1) d_head; out = [head_0 ... head_H] w_o"
)
_TRIANGLE = "mask[i, j] = (j <= i)"
_TILES = (
    "for each tile: new = max(old, max of its scores); shrink = exp(old - new); e = exp(scores - new); "
    "sum = shrink * sum + e.sum(); out = shrink * out + e v; at the end out / sum"
)

CHECKS: tuple[Check, ...] = (
    Check(
        "shapes",
        "attention",
        "Leading axes are batch: out is (..., n_q, d_v), weights are (..., n_q, n_k), and the mask broadcasts",
        2,
        "which axes are swapped or summed: count them from the end (-1, -2), so that any number may stand before",
        "q (..., n_q, d_k), k (..., n_k, d_k), v (..., n_k, d_v): scores = q @ swapaxes(k, -1, -2)",
        ask.shapes,
        ask.judge_shapes,
        batched=True,
        divisible=True,
    ),
    Check(
        "hand_case",
        "attention",
        "One query against two keys gives what can be worked out by hand: weight 0.6698 (0.7311 is unscaled)",
        2,
        "what the scores are divided by, and along which axis the softmax runs",
        "scores 1/sqrt(2) and 0; exp(0.7071) / (exp(0.7071) + 1) = 0.6698; without the scale e / (e + 1) = 0.7311",
        ask.hand,
        ask.judge_hand,
    ),
    Check(
        "masked_keys",
        "attention",
        "With 3 of 6 keys masked, their weights are exactly 0 and the others sum to 1",
        2,
        "where the mask comes in: before the softmax or after it, and which of its values hides",
        "scores = where(mask, scores, -inf), then softmax; True = may attend",
        ask.masked_keys,
        ask.judge_masked_keys,
    ),
    Check(
        "future",
        "attention",
        "Behind a causal mask, or with causal=True, what comes after position t moves out[t] by at most 1e-12",
        2,
        "whether every path from k[t + 1:] and v[t + 1:] to out[t] is cut by the mask",
        _ATTENTION,
        ask.future,
        ask.judge_future,
        of_hiding=True,
    ),
    Check(
        "causal_mask",
        "causal_mask",
        "causal_mask(n) lets query i attend to key j exactly where j <= i",
        2,
        "the diagonal, which is allowed, and on which side of it True stands",
        _TRIANGLE,
        ask.triangles,
        ask.judge_triangle,
    ),
    Check(
        "rows",
        "attention",
        "Every row of weights sums to 1, and with all keys but one masked that one has weight 1",
        2,
        "the axis of the softmax, and whether masked scores still count in its denominator",
        _ATTENTION,
        ask.rows,
        ask.judge_rows,
        divisible=True,
    ),
    Check(
        "heads_against_loop",
        "multi_head",
        "All heads at once give what a loop over the heads gives",
        2,
        "how (b, n, d_model) becomes (b, n_heads, n, d_head) and back, and what each weight multiplies",
        _HEADS,
        of_heads.loop,
        judging.all_equal,
    ),
    Check(
        "block_diagonal",
        "multi_head",
        "With block-diagonal weights a head depends on its own columns of x alone",
        2,
        "whether a head's columns stay together when the width is split, and when heads are merged",
        _HEADS,
        of_heads.blocks,
        of_heads.judge_blocks,
    ),
    Check(
        "softmax_values",
        "softmax",
        "Along the last axis, numbers of ordinary size give the right weights, and -inf gives 0",
        2,
        "exp, and the sum that it is divided by",
        _SOFTMAX,
        ask.softmax_values,
        judging.all_equal,
    ),
    Check(
        "softmax_axis",
        "softmax",
        "axis= says along which axis the weights sum to 1",
        1,
        "whether axis reaches both max and sum, with keepdims=True",
        _SOFTMAX,
        ask.softmax_axis,
        judging.all_equal,
    ),
    Check(
        "softmax_large",
        "softmax",
        "Numbers of 1e4 neither overflow nor vanish",
        2,
        "what is subtracted before exp",
        _SOFTMAX,
        ask.softmax_large,
        ask.judge_large,
        divisible=True,
    ),
    Check(
        "softmax_rows_apart",
        "softmax",
        "A row is not spoiled by another one that is 1e4 larger",
        1,
        "whose maximum is subtracted from which row",
        _SOFTMAX,
        ask.softmax_apart,
        ask.judge_large,
        divisible=True,
    ),
    Check(
        "softmax_untouched",
        "softmax",
        "The array that was passed is not written to",
        1,
        "-=, /=, out= and functions that work in place",
        _SOFTMAX,
        ask.softmax_twice,
        ask.judge_untouched,
        divisible=True,
    ),
    Check(
        "softmax_integers",
        "softmax",
        "What an array of integers gives",
        0,
        "buffers made with the dtype of an input",
        _SOFTMAX,
        remarks.softmax_whole,
        remarks.remark_whole,
        divisible=True,
    ),
    Check(
        "softmax_of_nothing",
        "softmax",
        "What a row of -inf gives",
        0,
        "-inf minus -inf is NaN",
        _SOFTMAX,
        remarks.nothing,
        remarks.remark_nothing,
    ),
    Check(
        "values",
        "attention",
        "On one sequence, out and weights are right, with a mask and without",
        2,
        "each line of the formula in turn: scores, scale, mask, softmax, product",
        _ATTENTION,
        ask.values_of_one,
        judging.all_equal,
        divisible=True,
    ),
    Check(
        "width_four",
        "attention",
        "With d_k = 4 the scores are halved",
        1,
        "what the scores are divided by: sqrt(4) = 2",
        "scores = q @ k^T / sqrt(d_k)",
        ask.width_four,
        ask.judge_width_four,
    ),
    Check(
        "upper_triangle",
        "attention",
        "With a causal mask, or causal=True, every weight above the diagonal is exactly 0",
        1,
        "how a score is hidden: exp of it must be 0, and not about 0",
        "scores = where(mask, scores, -inf)",
        ask.upper,
        ask.judge_upper,
        of_hiding=True,
    ),
    Check(
        "permutation",
        "attention",
        "Keys in another order, with their values, give the same out",
        1,
        "whether anything depends on where a key stands",
        "out = sum_j w_j v_j",
        ask.permuted,
        ask.judge_permuted,
    ),
    Check(
        "peaked",
        "attention",
        "A query that points along one key takes that key's value",
        1,
        "which array the weights multiply, and from which side",
        "out = weights @ v",
        ask.peaked,
        ask.judge_peaked,
    ),
    Check(
        "large",
        "attention",
        "Queries of 1e4 give no NaN, and do not spoil the other rows",
        1,
        "what is subtracted before exp, and along which axis",
        _SOFTMAX,
        ask.large,
        ask.judge_large,
        divisible=True,
    ),
    Check(
        "padding_and_causal",
        "attention",
        "A mask (b, 1, n, n) of padding and causal together reaches every head",
        1,
        "how the mask broadcasts to the scores (b, n_heads, n, n)",
        "mask = causal & padding[:, None, None, :]",
        ask.padding_and_causal,
        ask.judge_padding,
        batched=True,
        of_hiding=True,
    ),
    Check(
        "items_apart",
        "attention",
        "An item of a batch does not depend on the others",
        1,
        "whether the batch axis is reshaped away or summed over",
        "each item by itself: scores (b, n_q, n_k)",
        ask.alone,
        ask.judge_alone,
        batched=True,
    ),
    Check(
        "untouched",
        "attention",
        "q, k, v and the mask are not written to",
        1,
        "-=, &=, out= and functions that work in place",
        _ATTENTION,
        ask.attention_twice,
        ask.judge_untouched,
        divisible=True,
    ),
    Check(
        "many_keys",
        "attention",
        "With hundreds of keys, and a maximum that grows or falls along them, out is right",
        1,
        "what is carried from one tile of keys to the next, and the last tile, which is not full",
        _TILES,
        of_many.many_keys,
        of_many.judge_many_keys,
    ),
    Check(
        "many_keys_masked",
        "attention",
        "With hundreds of keys out is right where a mask hides whole tiles, a part of the last, or the future",
        1,
        "which part of the mask belongs to a tile, and what a tile gives of which nothing is seen",
        _TILES,
        of_many.many_keys_masked,
        of_many.judge_many_keys_masked,
        of_hiding=True,
    ),
    Check(
        "no_key",
        "attention",
        "What a query gives that may attend to nothing",
        0,
        "all its scores are hidden",
        _ATTENTION,
        remarks.no_key,
        remarks.remark_no_key,
    ),
    Check(
        "sentinel",
        "attention",
        "What a visible score of -1e12 gives beside a masked one",
        0,
        "what hides a score",
        _ATTENTION,
        remarks.sentinel,
        remarks.remark_sentinel,
    ),
    Check(
        "integer_mask",
        "attention",
        "What a mask of 0 and 1 gives",
        0,
        "how the mask selects",
        _ATTENTION,
        remarks.integers,
        remarks.remark_integers,
    ),
    Check(
        "integers",
        "attention",
        "What arrays of integers give",
        0,
        "buffers made with the dtype of an input",
        _ATTENTION,
        remarks.whole,
        remarks.remark_whole,
        divisible=True,
    ),
    Check(
        "nan_behind_mask",
        "attention",
        "What a NaN gives in the value of a masked key",
        0,
        "0 * NaN is NaN",
        _ATTENTION,
        remarks.wild,
        remarks.remark_wild,
    ),
    Check(
        "head_scale",
        "multi_head",
        "Scores are divided by sqrt(d_head), the width of one head",
        1,
        "whether sqrt(d_model) stands where sqrt(d_head) belongs",
        "scores_h = q_h k_h^T / sqrt(d_model / n_heads)",
        of_heads.narrow,
        judging.all_equal,
    ),
    Check(
        "truncation",
        "multi_head",
        "With causal=True the first t tokens give what they give without those after them",
        2,
        "whether the causal mask reaches every head",
        _HEADS + "; " + _TRIANGLE,
        of_heads.truncated,
        of_heads.judge_truncated,
    ),
    Check(
        "heads_items_apart",
        "multi_head",
        "An item of a batch does not depend on the others",
        1,
        "whether reshapes keep the batch axis in front",
        "(b, n, d_model) -> (b, n_heads, n, d_head)",
        of_heads.multi_head_alone,
        ask.judge_alone,
    ),
    Check(
        "heads_untouched",
        "multi_head",
        "x and the weights are not written to",
        1,
        "-=, +=, out= and functions that work in place",
        _HEADS,
        of_heads.multi_head_twice,
        ask.judge_untouched,
        divisible=True,
    ),
    Check(
        "calls_apart",
        "multi_head",
        "A call does not depend on the calls before it",
        1,
        "what is kept from one call to the next, as a mask under a key that does not say all",
        _HEADS,
        of_heads.in_turn,
        of_heads.judge_in_turn,
        divisible=True,
    ),
    Check(
        "heads_large",
        "multi_head",
        "Tokens of 1e4 give no NaN, and do not spoil the others",
        1,
        "what is subtracted before exp, and along which axis",
        _SOFTMAX,
        of_heads.large_heads,
        ask.judge_large,
        divisible=True,
    ),
    Check(
        "many_tokens",
        "multi_head",
        "With hundreds of tokens, causal or not, the result is right",
        1,
        "what is carried from one tile of keys to the next, and where the diagonal runs in a tile",
        _TILES,
        of_many.many_tokens,
        of_many.judge_many_tokens,
        divisible=True,
    ),
    Check(
        "layer_values",
        "layer",
        "layer(x) is multi-head attention with the layer's own weights",
        2,
        "which attribute multiplies what, and from which side",
        _HEADS,
        of_heads.layers,
        judging.all_equal,
    ),
    Check(
        "layer_weights",
        "layer",
        "The weights that come with out are (b, n_heads, n, n), and their rows sum to 1",
        1,
        "what is returned beside out: the weights of every head, as they multiply v",
        "weights_h = softmax(q_h k_h^T / sqrt(d_head))",
        of_heads.layers,
        of_heads.judge_layer_weights,
    ),
    Check(
        "layer_causal",
        "layer",
        "With causal=True no token depends on those after it",
        2,
        "whether the causal mask reaches every head",
        _HEADS + "; " + _TRIANGLE,
        of_heads.causal_layers,
        of_heads.judge_causal_layers,
    ),
    Check(
        "layer_large",
        "layer",
        "Tokens of 1e4 give no NaN, and do not spoil the others",
        1,
        "what is subtracted before exp, and along which axis",
        _SOFTMAX,
        of_heads.large_layers,
        ask.judge_large,
        divisible=True,
    ),
    Check(
        "layer_many_tokens",
        "layer",
        "With a hundred tokens and more, causal or not, the result is right",
        1,
        "what is carried from one tile of keys to the next, and where the diagonal runs in a tile",
        _TILES,
        of_many.many_in_layers,
        of_many.judge_many_tokens,
        divisible=True,
    ),
    Check(
        "layer_untouched",
        "layer",
        "x is not written to",
        1,
        "-=, +=, out= and functions that work in place",
        _HEADS,
        of_heads.layer_twice,
        ask.judge_untouched,
        divisible=True,
    ),
    Check(
        "layer_calls_apart",
        "layer",
        "A call leaves the layer as it was, and does not depend on the calls before it",
        1,
        "what is kept in self from one call to the next: a mask, x, changed weights",
        _HEADS,
        of_heads.layer_in_turn,
        of_heads.judge_layer_in_turn,
        divisible=True,
    ),
    Check(
        "layer_seed",
        "layer",
        "One seed gives one layer",
        1,
        "where the weights are drawn from",
        "w = default_rng(seed).standard_normal((d_model, d_model)) / sqrt(d_model), for w_q, w_k, w_v, w_o in turn",
        of_heads.seeded,
        of_heads.judge_seeded,
    ),
)
