"""What holds of every problem that the definition accepts: the oracle's answer, and what follows from its meaning."""

import warnings
from typing import Any

import numpy as np
import pytest
from bits import bits
from closeness import (
    Expected,
    assert_lse,
    assert_out,
    assert_weights,
    assert_within,
    bounds,
    dropout_factors,
    expected,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from layouts import LAYOUTS
from strategies import Case, Ruled, problems, rules

from examples import fewer
from headwise import attention_steps, merge_attention, scaled_dot_product_attention
from headwise.core.softmax import Partial, empty_part, finish, merge, part


def out_only(*args: Any, **options: Any) -> Any:
    return scaled_dot_product_attention(*args, **options)[0]


def oracle_of(case: Case) -> Expected:
    if not case.recipe.dropout:
        return expected(case)
    return expected(case, dropout_factors(case.scores, case.recipe.dropout, case.recipe.seed, out_only))


# ------------------------------------------------------------------------------------ against the oracle
@settings(max_examples=fewer(600))
@given(problems())
def test_out_and_weights_equal_the_oracle(case: Case) -> None:
    wanted = oracle_of(case)
    out, weights = scaled_dot_product_attention(*case.args, **case.options)
    assert_out(out, case, wanted)
    assert_weights(weights, case, wanted)


@settings(max_examples=fewer(300))
@given(problems())
def test_steps_equal_the_oracle(case: Case) -> None:
    wanted, steps = oracle_of(case), attention_steps(*case.args, **case.options)
    assert_lse(steps.lse, case, wanted)
    assert_weights(steps.weights, case, wanted)
    assert_out(steps.out, case, wanted)


@settings(max_examples=fewer(150))
@given(problems())
def test_steps_are_the_definition_and_have_its_shapes(case: Case) -> None:
    steps = attention_steps(*case.args, **case.options)
    assert bits([steps.out, steps.weights]) == bits(scaled_dot_product_attention(*case.args, **case.options))
    for step in (steps.scores, steps.capped, steps.biased, steps.masked):
        assert (step.shape, step.dtype) == (case.scores, case.computing)
    assert (steps.weights.shape, steps.weights.dtype) == (case.scores, case.dtype)
    assert (steps.out.shape, steps.out.dtype) == (case.out_shape, case.dtype)
    assert (steps.lse.shape, steps.lse.dtype) == (case.scores[:-1], case.computing)
    assert (steps.masked[~case.visible] == -np.inf).all()
    np.testing.assert_array_equal(steps.masked[case.visible], steps.biased[case.visible])


@settings(max_examples=fewer(150))
@given(problems())
def test_rows_of_weights(case: Case) -> None:
    steps = attention_steps(*case.args, **case.options)
    lse, weights = steps.lse.astype(np.float64), steps.weights.astype(np.float64)
    poisoned = np.isnan(lse) | np.isposinf(lse)
    assert np.isnan(weights[poisoned]).all()
    assert (weights[~poisoned] >= 0).all()
    assert (weights[~case.visible & ~poisoned[..., None]] == 0).all()
    share = 1 - np.exp(sink_column(case) - np.where(np.isneginf(lse), 0, lse))  # what the sink leaves to the keys
    sums = np.where(np.isneginf(lse), 0, share)[~poisoned]
    spread = 1 + np.abs(lse[~poisoned & ~np.isneginf(lse)]).max(initial=0)
    half = case.dtype.itemsize == 2
    tolerance = case.scores[-1] * (1e-2 if half else 0) + 32 * float(np.finfo(case.computing).eps) * spread
    np.testing.assert_allclose(weights.sum(axis=-1)[~poisoned], sums, rtol=0, atol=tolerance)


def sink_column(case: Case) -> Any:
    sinks = np.asarray(case.options.get("sinks", -np.inf), np.float64)
    return sinks[:, None] if sinks.ndim and len(case.scores) > 2 else sinks


@settings(max_examples=fewer(150))
@given(problems(wild="hidden"))
def test_a_query_that_sees_nothing_gets_nothing(case: Case) -> None:
    steps = attention_steps(*case.args, **case.options)
    nothing = ~case.visible.any(axis=-1)
    assert not steps.out[nothing].any()
    assert not steps.weights[nothing].any()
    sinks = np.broadcast_to(sink_column(case), nothing.shape).astype(case.computing)
    np.testing.assert_allclose(steps.lse[nothing], sinks[nothing], rtol=1e-6, atol=0)


# ------------------------------------------------------------------------- nothing but the numbers counts
@settings(max_examples=fewer(150))
@given(problems(layouts=("writable", "writable", "writable")))
def test_inputs_are_never_written_to(case: Case) -> None:
    inputs = [*case.args, case.options.get("bias"), case.options.get("sinks")]
    arrays = [given for given in inputs if isinstance(given, np.ndarray)]
    for array in arrays:
        array.flags.writeable = True
    before = bits(arrays)
    attention_steps(*case.args, **case.options)
    assert bits(arrays) == before


@settings(max_examples=fewer(200))
@given(problems())
def test_error_state_and_warnings_of_the_caller_change_nothing(case: Case) -> None:
    usual = attention_steps(*case.args, **case.options)
    with np.errstate(all="raise"), warnings.catch_warnings():
        warnings.simplefilter("error")
        strict = attention_steps(*case.args, **case.options)
    assert bits(strict) == bits(usual)


@pytest.mark.parametrize("layout", LAYOUTS)
@settings(max_examples=fewer(30))
@given(data=st.data())
def test_layout_does_not_count(layout: str, data: st.DataObject) -> None:
    case = data.draw(problems(layouts=(layout,) * 3, wild="hidden", dropout=0.0, size_qk="normal"))
    copies = (array.astype(array.dtype.newbyteorder("="), order="C") for array in (case.q, case.k, case.v))
    plain, wanted = out_only(*copies, case.mask, **case.options), expected(case)
    got = out_only(*case.args, **case.options)
    assert_within(got, plain.astype(np.float64), 2 * bounds(case, wanted) * wanted.reach[..., None], case.dtype)


@settings(max_examples=fewer(100))
@given(problems(dropout=0.0))
def test_minus_infinity_in_a_bias_masks_as_a_mask_does(case: Case) -> None:
    options = {name: value for name, value in case.options.items() if name not in ("causal", "bias")}
    finite = np.where(case.visible, case.dense_bias, 0)
    # where nothing is hidden, no mask: with one, a NaN of v takes the guarded way, which adds in another order
    mask = None if case.visible.all() else case.visible
    masked = attention_steps(case.q, case.k, case.v, mask, bias=finite, **options)
    biased = attention_steps(case.q, case.k, case.v, bias=np.where(case.visible, finite, -np.inf), **options)
    for name in ("weights", "out", "lse"):
        assert bits(getattr(masked, name)) == bits(getattr(biased, name))
    wanted = expected(case)  # and both as the rules that the arrays were made from
    assert_out(masked.out, case, wanted)
    assert_lse(masked.lse, case, wanted)


# --------------------------------------------------------------------------------------------- symmetries
@settings(max_examples=fewer(100))
@given(problems(dropout=0.0))
def test_order_of_keys_does_not_count(case: Case) -> None:
    order = np.random.default_rng(case.recipe.seed).permutation(case.scores[-1])
    steps = dense_steps(case, slice(None), order)
    wanted = expected(case)
    assert_out(steps.out, case, wanted)
    assert_weights(steps.weights, case, wanted._replace(weights=wanted.weights[..., order]))
    assert_lse(steps.lse, case, wanted)


@settings(max_examples=fewer(100))
@given(problems(dropout=0.0))
def test_each_query_is_on_its_own(case: Case) -> None:
    order = np.random.default_rng(case.recipe.seed).permutation(case.scores[-2])[: case.scores[-2] // 2 + 1]
    steps, whole = dense_steps(case, order, slice(None)), expected(case)
    wanted = Expected(
        *(field[..., order] if field.ndim < len(case.scores) else field[..., order, :] for field in whole)
    )
    assert_out(steps.out, case, wanted)
    assert_lse(steps.lse, case, wanted)


def dense_steps(case: Case, queries: Any, keys: Any, **changed: Any) -> Any:
    """The steps with some queries and keys only, in this order; mask and bias as arrays."""
    options = {name: value for name, value in case.options.items() if name not in ("causal", "bias")} | changed
    visible, bias = (array[..., queries, :][..., keys] for array in (case.visible, case.dense_bias))
    if options.get("scale") is None and case.recipe.d_k:
        options["scale"] = 1 / np.sqrt(case.recipe.d_k)
    return attention_steps(
        case.q[..., queries, :], case.k[..., keys, :], case.v[..., keys, :], visible, bias=bias, **options
    )


@settings(max_examples=fewer(100))
@given(problems(causal=True, dropout=0.0, rule=None, bias=None))
def test_causal_decoding_step_by_step_equals_the_whole(case: Case) -> None:
    """Query i alone, with the keys up to its own position and no mask, is row i of the causal run."""
    *_, n_q, n_k = case.scores
    whole = expected(case)
    options = {name: value for name, value in case.options.items() if name != "causal"}
    for i in range(n_q):
        seen = max(i + 1 + n_k - n_q, 0)
        one = attention_steps(case.q[..., i : i + 1, :], case.k[..., :seen, :], case.v[..., :seen, :], **options)
        row = Expected(
            *(field[..., i : i + 1] if field.ndim < len(case.scores) else field[..., i : i + 1, :] for field in whole)
        )
        assert_out(one.out, case, row)
        assert_lse(one.lse, case, row)


# --------------------------------------------------------------------------------------------------- masks
@settings(max_examples=fewer(300))
@given(rules())
def test_dense_mask_equals_the_predicate(ruled: Ruled) -> None:
    mask, scores = ruled.mask, ruled.scores
    dense = mask.dense(scores)
    assert dense.dtype == np.bool_
    np.testing.assert_array_equal(dense, ruled.dense)


@settings(max_examples=fewer(150))
@given(rules(), st.integers(1, 6), st.integers(1, 6))
def test_every_tile_of_a_grid_equals_its_block(ruled: Ruled, height: int, width: int) -> None:
    mask, scores = ruled.mask, ruled.scores
    n_q, n_k = scores[-2:]
    for at in np.ndindex(scores[:-2]):
        for i in range(0, n_q, height):
            for j in range(0, n_k, width):
                rows, cols = (i, min(i + height, n_q)), (j, min(j + width, n_k))
                assert_tile(mask.tile(scores, at, rows, cols), ruled.dense[at][slice(*rows), slice(*cols)])


@settings(max_examples=fewer(200))
@given(rules(), st.data())
def test_any_tile_equals_its_block(ruled: Ruled, data: st.DataObject) -> None:
    mask, scores = ruled.mask, ruled.scores
    places = list(np.ndindex(scores[:-2]))
    if not places:
        return
    at = data.draw(st.sampled_from(places))
    rows, cols = (tuple(sorted(data.draw(st.tuples(*[st.integers(0, n)] * 2)))) for n in scores[-2:])
    block = ruled.dense[at][slice(*rows), slice(*cols)]
    assert_tile(mask.tile(scores, at, rows, cols), block)


def assert_tile(tile: Any, block: Any) -> None:
    """True or False exactly where all or none may attend; a tile without pairs is False."""
    if block.all() and block.size:
        assert tile is True
    elif not block.any():
        assert tile is False
    else:
        assert tile.dtype == np.bool_
        np.testing.assert_array_equal(tile, block)


# ------------------------------------------------------------------------------------------------- merging
def pieces(data: st.DataObject, n_k: int) -> list[slice]:
    """The keys cut into any number of pieces, empty ones too."""
    cuts = sorted(data.draw(st.lists(st.integers(0, n_k), max_size=5)))
    return [slice(first, last) for first, last in zip([0, *cuts], [*cuts, n_k], strict=True)]


def merged_at_random(data: st.DataObject, parts: list[Partial]) -> Partial:
    """Neighbours are joined in any order, until one is left."""
    parts = list(parts)
    while len(parts) > 1:
        i = data.draw(st.integers(0, len(parts) - 2))
        parts[i : i + 2] = [merge(parts[i], parts[i + 1])]
    return parts[0]


@settings(max_examples=fewer(150))
@given(problems(dropout=0.0, sinks=False, wild="none", dtypes=("float64",) * 3), st.data())
def test_merged_parts_are_the_whole(case: Case, data: st.DataObject) -> None:
    wanted, masked = expected(case), attention_steps(*case.args, **case.options).masked
    values = repeated(case.v, case.scores)
    with np.errstate(all="ignore"):
        parts = [part(masked[..., keys], values[..., keys, :]) for keys in pieces(data, case.scores[-1])]
        out, lse = finish(merged_at_random(data, parts))
    assert_out(out, case, wanted)
    assert_lse(lse, case, wanted)


@settings(max_examples=fewer(100))
@given(
    problems(dropout=0.0, sinks=False, wild="none", size_qk="normal", scale=None, dtypes=("float64",) * 3), st.data()
)
def test_any_reference_does(case: Case, data: st.DataObject) -> None:
    """Parts with another peak than the rows' maximum: a number for all rows, or one for each."""
    wanted, masked = expected(case), attention_steps(*case.args, **case.options).masked
    values, rows = repeated(case.v, case.scores), case.scores[:-1]
    rng, parts = np.random.default_rng(case.recipe.seed), []
    for keys in pieces(data, case.scores[-1]):
        peak = data.draw(st.sampled_from([None, 0.0, 7.0, rng.standard_normal(rows)]))
        parts.append(part(masked[..., keys], values[..., keys, :], peak))
    with np.errstate(all="ignore"):
        out, lse = finish(merged_at_random(data, parts))
    farther = wanted._replace(spread=wanted.spread + 7)  # the reference is one more number that is added
    assert_out(out, case, farther)
    assert_lse(lse, case, farther)


def repeated(v: Any, scores: tuple[int, ...]) -> Any:
    """Values with the scores' own leading axes: each head's group written out."""
    n_heads = scores[-3] if len(scores) > 2 else 1
    if len(scores) > 3 and v.ndim > 2 and v.shape[-3] > 1:
        v = np.repeat(v, n_heads // v.shape[-3], axis=-3)
    return np.broadcast_to(v, (*scores[:-2], *v.shape[-2:]))


@settings(max_examples=fewer(150))
@given(problems(dropout=0.0, wild="hidden"), st.data())
def test_merged_results_are_the_whole(case: Case, data: st.DataObject) -> None:
    """Each piece by a call of its own; the sinks, if any, go with one of them."""
    wanted, cuts = expected(case), pieces(data, case.scores[-1])
    carrier = data.draw(st.integers(0, len(cuts) - 1))
    results = [
        dense_steps(case, slice(None), keys, sinks=case.options.get("sinks") if number == carrier else None)
        for number, keys in enumerate(cuts)
    ]
    for result in results:
        result.out[np.isneginf(result.lse)] = np.nan  # where nothing was seen, out is not read
    out, lse = merge_attention([result.out for result in results], [result.lse for result in results])
    roundings = 0 if case.dtype.itemsize > 2 else len(cuts) * 2.0**-7  # each piece is rounded to the half type
    assert_within(out, wanted.out, (bounds(case, wanted) + roundings) * wanted.reach[..., None], case.dtype)
    assert_lse(lse, case, wanted)


@settings(max_examples=fewer(100))
@given(
    st.lists(st.sampled_from([0.0, 1.0, -30.0, 700.0, -700.0, -np.inf]), min_size=3, max_size=3),
    st.integers(0, 2**32 - 1),
)
def test_merge_is_associative_and_commutative(offsets: list[float], seed: int) -> None:
    rng = np.random.default_rng(seed)
    with np.errstate(all="ignore"):
        a, b, c = (part(rng.standard_normal((4, 3)) + offset, rng.standard_normal((3, 2))) for offset in offsets)
        groupings = [merge(merge(a, b), c), merge(a, merge(b, c)), merge(merge(c, a), b)]
        results = [finish(grouping) for grouping in groupings]
    for out, lse in results[1:]:
        np.testing.assert_allclose(out, results[0][0], rtol=0, atol=1e-14)
        np.testing.assert_allclose(lse, results[0][1], rtol=1e-15, atol=1e-15)


@settings(max_examples=fewer(50))
@given(st.sampled_from([0.0, 1e5, -1e5, -np.inf]), st.integers(0, 2**32 - 1))
def test_a_part_of_nothing_changes_no_bit(offset: float, seed: int) -> None:
    """Nor does one that was given keys, none of which may be attended to, and a reference of its own."""
    rng = np.random.default_rng(seed)
    with np.errstate(all="ignore"):
        some = part(rng.standard_normal((4, 3)) + offset, rng.standard_normal((3, 2)))
        for nothing in (empty_part((4,), 2), part(np.full((4, 3), -np.inf), np.ones((3, 2)), 0.0)):
            assert bits(merge(some, nothing)) == bits(merge(nothing, some)) == bits(some)


# ------------------------------------------------------------------------------------------------- dropout
@settings(max_examples=fewer(100))
@given(problems(dropout=st.sampled_from([0.0625, 0.5, 1.0])))
def test_dropout_leaves_the_returned_weights_alone(case: Case) -> None:
    without = {name: value for name, value in case.options.items() if name not in ("dropout", "rng")}
    usual, dropped = attention_steps(*case.args, **without), attention_steps(*case.args, **case.options)
    assert bits([dropped.weights, dropped.lse]) == bits([usual.weights, usual.lse])
    again = attention_steps(*case.args, **case.options | {"rng": np.random.default_rng(case.recipe.seed)})
    assert bits(again) == bits(dropped)  # a seed is the generator made from it
    if case.recipe.dropout == 1 and case.recipe.wild == "none":
        assert not dropped.out.any()


@settings(max_examples=fewer(60))
@given(problems(rule=None, d_k=1, d_v=1, wild="none", dropout=0.5), st.data())
def test_what_is_dropped_depends_on_the_place_alone(case: Case, data: st.DataObject) -> None:
    """Not on how many queries, keys or items there are."""
    lead, sizes, seed = case.scores[:-2], case.scores[-2:], case.recipe.seed
    fewer = tuple(data.draw(st.integers(0, n)) for n in (*lead[:1], *sizes))
    shape = (*fewer[: len(lead[:1])], *lead[1:], *fewer[-2:])
    whole, some = (dropout_factors(scores, 0.5, seed, out_only) for scores in (case.scores, shape))
    np.testing.assert_array_equal(some, whole[tuple(map(slice, shape))])


def test_what_is_dropped_depends_on_the_place_alone_in_a_large_problem() -> None:
    whole = dropout_factors((2, 600, 270), 0.25, 3, out_only)
    np.testing.assert_array_equal(dropout_factors((2, 259, 131), 0.25, 3, out_only), whole[:, :259, :131])
    np.testing.assert_array_equal(dropout_factors((1, 20, 270), 0.25, 3, out_only), whole[:1, :20])


def test_what_is_dropped_does_not_repeat() -> None:
    """Not from head to head, nor further on in the queries or keys."""
    kept = dropout_factors((2, 600, 270), 0.5, 3, out_only) > 0
    corner = kept[0, :40, :14]
    for step in (2**n for n in range(4, 9)):
        assert 0.3 < (kept[0, step : step + 40, :14] == corner).mean() < 0.7
        assert step + 14 > 270 or 0.3 < (kept[0, :40, step : step + 14] == corner).mean() < 0.7
    assert 0.45 < (kept[0] == kept[1]).mean() < 0.55


@pytest.mark.parametrize("dropout", [0.1, 0.5, 0.9])
def test_as_many_are_dropped_as_was_asked_for(dropout: float) -> None:
    n = 300
    ends = np.zeros((2, n, 0))
    factors = n * out_only(ends, ends, np.eye(n), dropout=dropout, rng=11)
    kept, deviation = (factors > 0).mean(), np.sqrt(dropout * (1 - dropout) / factors.size)
    assert abs(kept - (1 - dropout)) < 5 * deviation
    np.testing.assert_allclose(factors[factors > 0], 1 / (1 - dropout), rtol=1e-4)
    other = n * out_only(ends, ends, np.eye(n), dropout=dropout, rng=12)
    assert ((factors > 0) != (other > 0)).mean() > dropout * (1 - dropout)  # 2 p (1 - p) where independent
