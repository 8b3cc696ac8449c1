"""Every mistake of the table, made in the text of a solution, is caught and named; with this each row can fail."""

import pytest
from solved import solution

from headwise.check import grade
from headwise.check.checks import CHECKS
from headwise.check.explain import explain
from headwise.check.mistakes import MISTAKES
from headwise.check.report import FAILED

SCALE, SCORES = " / np.sqrt(d_k)", "np.matmul(q, np.swapaxes(k, -1, -2)) / np.sqrt(d_k)"
HIDE = "        scores = np.where(mask, scores, -1e9)\n"
SUM, SHIFT = "np.sum(exps, axis=axis, keepdims=True)", "x - np.max(x, axis=axis, keepdims=True)"
WEIGHTS, PRODUCT = "weights = softmax(scores, axis=-1)", "return np.matmul(weights, v), weights"
TRIANGLE, SPLIT = (
    "np.tril(np.ones((n, n), dtype=bool))",
    "x.reshape(b, n, heads, d_model // heads).transpose(0, 2, 1, 3)",
)
MERGE, FINAL = "x.transpose(0, 2, 1, 3).reshape(b, n, heads * d_head)", "return merge_heads(out) @ w_o, weights"
RULE, LAYER_OUT = "causal_mask(x.shape[1]) if causal else None", "        return out, weights\n"
IN_ATTENTION = "    d_k = q.shape[-1]\n"
FOLDED = """\
    if q.ndim > 2 and len(q) > 1:
        b, n_q, n_k = len(q), q.shape[-2], k.shape[-2]
        q, k, v = (np.concatenate(list(x), axis=-2)[None] for x in (q, k, v))
        if mask is not None:
            mask = np.tile(mask[0] if mask.ndim > 2 else np.broadcast_to(mask, (n_q, n_k)), (b, b))
        out, w = scaled_dot_product_attention(q, k, v, mask)
        return np.stack(np.split(out[0], b, axis=-2)), w[0]
"""

KEYS = "        k_tile, v_tile = k[..., keys, :], v[..., keys, :]\n"
TOTAL, OUT = "total * shrink + np.sum", "out * shrink + e"
FILLED = """\
        bare = -k_tile.shape[-2] % TILE
        filled = lambda x: np.concatenate([x, np.zeros((*x.shape[:-2], bare, x.shape[-1]))], axis=-2)
        k_tile, v_tile = filled(k_tile), filled(v_tile)
"""
NOW = "        largest = now\n"
RETURN = ("return out / np.where(total == 0, 1, total)", "return out")
ROWS = """\
    if n_q % TILE:
        parts[-1] = parts[-1] * 0
"""
SKIP = "(np.arange(x.shape[1]) // 64 * 64 <= np.arange(x.shape[1])[:, None] // 128 * 128)"
FILLED_MASK = "np.concatenate([mask[..., keys], np.zeros((*mask.shape[:-1], bare), bool)], -1)"

WRONG = {
    "no max subtraction": [(SHIFT, "x")],
    "max over the whole array": [(SHIFT, "x - np.max(x)")],
    "maximum starts at 0": [(SHIFT, "x - np.max(x, axis=axis, keepdims=True, initial=0)")],
    "softmax not normalised": [(f"exps / {SUM}", "exps")],
    "epsilon in the denominator": [(SUM, f"({SUM} + 1e-6)")],
    "sum without keepdims": [(SUM, "np.sum(exps, axis=axis)")],
    "axis ignored": [("softmax(x, axis=-1):\n", "softmax(x, axis=-1):\n    axis = -1\n")],
    "axis counted from the front": [("softmax(x, axis=-1):\n", "softmax(x, axis=-1):\n    axis = 0\n")],
    "axis 0 by default": [("softmax(x, axis=-1):", "softmax(x, axis=0):")],
    "clipped instead of shifted": [(SHIFT, "np.clip(x, -700, 700)")],
    "NaN turned into 0": [(SHIFT, "x"), (f"exps / {SUM}", f"np.nan_to_num(exps / {SUM})")],
    "softmax over all": [(SHIFT, "x - np.max(x)"), (SUM, "np.sum(exps)")],
    "softmax over each matrix": [
        (
            WEIGHTS,
            "e = np.exp(scores - scores.max((-1, -2), keepdims=True)); weights = e / e.sum((-1, -2), keepdims=True)",
        )
    ],
    "softmax over queries": [(WEIGHTS, "weights = softmax(scores, axis=-2)")],
    "softmax over heads": [(WEIGHTS, "weights = softmax(scores, axis=-3)")],
    "mask after softmax": [(HIDE, "        pass\n"), (WEIGHTS, f"{WEIGHTS} * (1 if mask is None else mask)")],
    "mask times score": [(HIDE, "        scores = scores * mask\n")],
    "mask added as 0/1": [(HIDE, "        scores = scores + mask\n")],
    "polarity of the mask": [(HIDE, "        scores = np.where(mask, -1e9, scores)\n")],
    "mask ignored": [(HIDE, "        pass\n")],
    "masked by a small number": [("-1e9)", "1e-9)")],
    "masked by too weak a number": [("-1e9)", "-20)")],
    "masked by plus infinity": [("-1e9)", "np.inf)")],
    "score of 0 taken for masked": [
        (HIDE, "        scores = scores * mask\n        scores = np.where(scores == 0, -1e9, scores)\n")
    ],
    "0 times infinity": [(HIDE, "        scores = scores + (1 - mask) * -np.inf\n")],
    "mask transposed": [
        (HIDE, "        scores = np.where(mask.swapaxes(-1, -2) if mask.ndim > 1 else mask, scores, -1e9)\n")
    ],
    "no softmax": [(WEIGHTS, "weights = scores")],
    "softmax of minus the scores": [(SCALE, " / -np.sqrt(d_k)")],
    "softmax twice": [(WEIGHTS, "weights = softmax(softmax(scores, axis=-1), axis=-1)")],
    "no scale": [(SCALE, "")],
    "scale 1/d": [(SCALE, " / d_k")],
    "1/2 outside the power": [(SCALE, " / (d_k ** 1 / 2)")],
    "scale cut off to an integer": [(SCALE, " / int(np.sqrt(d_k))")],
    "scale sqrt(d) multiplied": [(SCALE, " * np.sqrt(d_k)")],
    "scale of d_model": [(SCALE, " / np.sqrt(d_k * (q.shape[1] if q.ndim == 4 else 1))")],
    "scale of the length": [(SCALE, " / np.sqrt(k.shape[-2])")],
    "scale of an axis from the front": [(SCALE, " / np.sqrt(q.shape[1])")],
    "scale of the number of heads": [(SCALE, " / np.sqrt(q.shape[-3] if q.ndim == 4 else d_k)")],
    "scale of the width of v": [(SCALE, " / np.sqrt(v.shape[-1])")],
    "scale of a fixed width": [(SCALE, " / 4")],
    "scaled after softmax": [(SCALE, ""), (WEIGHTS, f"{WEIGHTS} / np.sqrt(d_k)")],
    "q and k swapped": [(SCORES, "np.matmul(k, np.swapaxes(q, -1, -2)) / np.sqrt(d_k)")],
    "v used as k": [(IN_ATTENTION, f"{IN_ATTENTION}    k = v\n")],
    "k used as v": [(PRODUCT, "return np.matmul(weights, k), weights")],
    "k and v swapped": [(IN_ATTENTION, f"{IN_ATTENTION}    k, v = v, k\n")],
    "k not transposed for batches": [(SCORES, "np.matmul(q, k.T) / np.sqrt(d_k)")],
    "weights transposed before v": [(PRODUCT, "return np.matmul(np.swapaxes(weights, -1, -2), v), weights")],
    "weights returned first": [
        (PRODUCT, "return weights, np.matmul(weights, v)"),
        ("out, weights = scaled", "weights, out = scaled"),
        (LAYER_OUT, "        return weights, out\n"),
    ],
    "weights returned alone": [
        (PRODUCT, "return weights"),
        ("out, weights = scaled", "weights = scaled"),
        ("merge_heads(out) @ w_o", "merge_heads(weights @ v) @ w_o"),
        (LAYER_OUT, "        return weights\n"),
    ],
    "scores returned as weights": [(PRODUCT, "return np.matmul(weights, v), scores")],
    "batch leak": [(IN_ATTENTION, IN_ATTENTION + FOLDED)],
    "earlier tiles not rescaled": [(TOTAL, "total + np.sum"), (OUT, "out + e")],
    "out divided by the sum at each tile": [
        (NOW, f"{NOW}        out = out / np.where(total == 0, 1, total)\n"),
        RETURN,
    ],
    "last partial tile dropped": [("range(0, k.shape[-2], TILE)", "range(0, k.shape[-2] // TILE * TILE, TILE)")],
    "last partial tile of queries dropped": [
        ("    return np.concatenate(parts, axis=-2)", f"{ROWS}    return np.concatenate(parts, axis=-2)")
    ],
    "padding of the last tile attended": [
        (KEYS, KEYS + FILLED),
        ("(mask[..., keys], scores", f"({FILLED_MASK}, scores"),
    ],
    "offset of the tile forgotten in the mask": [("mask[..., keys], s", "mask[..., : k_tile.shape[-2]], s")],
    "NaN from a tile without visible keys": [("np.where(np.isneginf(now), 0, now)", "now")],
    "visible tiles skipped": [(RULE, f"causal_mask(x.shape[1]) & {SKIP} if causal else None")],
    "causal off by one (strict)": [(TRIANGLE, "np.tril(np.ones((n, n), dtype=bool), -1)")],
    "causal off by one (one ahead)": [(TRIANGLE, "np.tril(np.ones((n, n), dtype=bool), k=1)")],
    "causal transposed": [(TRIANGLE, f"{TRIANGLE}.T")],
    "causal inverted": [(TRIANGLE, f"~{TRIANGLE}")],
    "causal mask of scores": [(TRIANGLE, f"np.where({TRIANGLE}, 0.0, -np.inf)")],
    "length taken from the batch": [("causal_mask(x.shape[1])", "causal_mask(len(x))")],
    "always causal": [(RULE, "causal_mask(x.shape[1])")],
    "causal ignored": [(RULE, "None")],
    "reshaped straight to heads": [(SPLIT, "x.reshape(b, heads, n, d_model // heads)")],
    "reshaped straight, both ways": [
        (SPLIT, "x.reshape(b, heads, n, d_model // heads)"),
        (MERGE, "x.reshape(b, n, heads * d_head)"),
    ],
    "no transpose before attention": [
        (SPLIT, "x.reshape(b, n, heads, d_model // heads)"),
        ("b, heads, n, d_head = x.shape", "b, n, heads, d_head = x.shape"),
        (MERGE, "x.reshape(b, n, heads * d_head)"),
    ],
    "heads merged without transposing back": [(MERGE, "x.reshape(b, n, heads * d_head)")],
    "heads interleaved": [
        (SPLIT, "x.reshape(b, n, d_model // heads, heads).transpose(0, 3, 1, 2)"),
        (MERGE, "x.transpose(0, 2, 3, 1).reshape(b, n, heads * d_head)"),
    ],
    "heads averaged": [(MERGE, "np.tile(x.mean(axis=1), (1, 1, heads))")],
    "one head for all": [("    q = split_heads", "    heads = 1\n    q = split_heads")],
    "weights averaged over heads": [(LAYER_OUT, "        return out, weights.mean(axis=1)\n")],
    "w transposed": [(f"x @ {w}", f"x @ {w}.T") for w in ("w_q", "w_k", "w_v")] + [("(out) @ w_o", "(out) @ w_o.T")],
    "one weight transposed": [("(out) @ w_o", "(out) @ w_o.T")],
    "forgotten w_o": [("merge_heads(out) @ w_o", "merge_heads(out)")],
    "w_o before attention": [("x @ w_v", "x @ w_v @ w_o"), ("merge_heads(out) @ w_o", "merge_heads(out)")],
    "w_q used for all": [("x @ w_k", "x @ w_q"), ("x @ w_v", "x @ w_q")],
    "w_k and w_v swapped": [("x @ w_k", "x @ w_tmp"), ("x @ w_v", "x @ w_k"), ("x @ w_tmp", "x @ w_v")],
    "w_k used for values": [("x @ w_v", "x @ w_k")],
    "projections chained": [("x @ w_k", "(x @ w_q) @ w_k"), ("x @ w_v", "((x @ w_q) @ w_k) @ w_v")],
    "no projection of v": [("x @ w_v", "x")],
    "input added to the output": [(FINAL, "return x + merge_heads(out) @ w_o, weights")],
    "rounded to decimals": [(f"exps / {SUM}", f"np.round(exps / {SUM}, 3)")],
    "float32 inside": [("exps = np.exp(shifted)", "exps = np.exp(shifted.astype(np.float32))")],
    "float16 inside": [("exps = np.exp(shifted)", "exps = np.exp(shifted.astype(np.float16))")],
    "truth value of the mask": [("if mask is not None", "if mask")],
    "one seed for all weights": [("rng.standard_normal(", "np.random.default_rng(seed).standard_normal(")],
    "input mutated": [
        (f"shifted = {SHIFT}", "x -= np.max(x, axis=axis, keepdims=True); shifted = x"),
        (
            IN_ATTENTION,
            IN_ATTENTION
            + "    if q.ndim < 4:\n        q *= 1.5; q /= 1.5; k += 1e-300; k[0] *= 2; k[0] *= 0.5 + 1e-16\n",
        ),
    ],
    "results share memory": [
        (
            "return exps / np.sum",
            "buffer = KEPT.setdefault(x.shape, np.empty(x.shape))\n    buffer[...] = exps / np.sum",
        ),
        ("\n\n\ndef causal_mask", "\n    return buffer\n\n\nKEPT = {}\n\n\ndef causal_mask"),
    ],
    "shared mask modified": [(HIDE, HIDE + "        mask &= mask.any()\n        mask[..., 0] = ~mask[..., 0]\n")],
}


TILED = list(WRONG)[list(WRONG).index("earlier tiles not rescaled") :][:8]  # made in tests/solutions/tiled.py


def made(name):
    return solution("tiled" if name in TILED else "textbook", *WRONG[name])


def graded(*changes):
    return grade(solution("textbook", *changes))


def named(report):
    return {(verdict.exercise, m.name) for verdict in report.verdicts for m in verdict.mistakes}


def test_the_table_of_this_test_is_whole():
    assert list(WRONG) == [mistake.name for mistake in MISTAKES]
    assert len({mistake.name for mistake in MISTAKES}) == len(MISTAKES) >= 24


def test_the_textbook_passes_with_remarks():
    report = graded()
    assert report.passed, str(report)
    assert report.score == report.maximum
    assert any("-1e9" in remark for verdict in report.verdicts for remark in verdict.remarks)


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.name)
def test_each_mistake_is_caught_and_named_wherever_it_can_be_made(mistake):
    report = grade(made(mistake.name))
    assert not report.passed
    assert report.score < report.maximum
    told = {exercise for exercise, name in named(report) if mistake.name in name.split(" + ")}
    reached = set(mistake.exercises) & {v.exercise for v in report.verdicts if v.status == FAILED}
    assert told == reached
    assert mistake.exercises[0] in told
    assert not [name for _, name in named(report) if " + " in name], "one mistake is no two"


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.name)
def test_each_known_mistake_has_an_example_with_numbers_or_says_how_it_is_seen(mistake):
    text = explain(mistake.name)
    assert max(map(len, text.splitlines())) <= 190, "an error of matmul is long"
    assert ("no numbers of its own" in text) == (mistake.detect is not None)
    assert ("with this mistake" in text) == (mistake.detect is None)
    assert "could not be read" not in text


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.name)
def test_each_check_has_an_example_with_numbers(check):
    text = explain(check.name)
    assert max(map(len, text.splitlines())) <= 100
    assert "the right answer\n  out " in text
