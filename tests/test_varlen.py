"""Packed segments: the definition on each alone, its alignment, company, threads, pages, gradients, refusals."""

import re
import tracemalloc
from typing import Any

import numpy as np
import pytest
from bits import bits

import headwise as hw
from headwise import attention_varlen, attention_varlen_vjp, masks
from headwise.core import engine, grid
from headwise.testing import check_vjp

# one token, no queries, neighbours of one size, several tiles, no keys, fewer keys
N_Q, N_K = (5, 1, 0, 7, 7, 7, 70, 3, 4), (5, 9, 6, 8, 8, 8, 130, 0, 2)
H, G, D_K, D_V = 4, 2, 8, 5
SLOPES, SINKS = np.array([0.5, 0.01, 2.0, 0.0]), np.array([0.0, 3.0, -np.inf, 5.0])
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal": {"causal": True},
    "window": {"window": (3, 1)},
    "open window": {"window": (None, 2)},
    "causal window": {"window": (4, None), "causal": True},
    "scale": {"scale": -1.7},
    "softcap": {"softcap": 2.0, "causal": True},
    "slopes": {"slopes": SLOPES, "window": (9, 9)},
    "sinks": {"sinks": SINKS, "causal": True},
}


def starts(lengths: Any) -> Any:
    return np.cumsum([0, *lengths])


def packed(n_q: Any = N_Q, n_k: Any = N_K, dtype: Any = np.float64, seed: int = 0) -> tuple[Any, ...]:
    rng, n_q, n_k = np.random.default_rng(seed), starts(n_q), starts(n_k)
    shapes = (n_q[-1], H, D_K), (n_k[-1], G, D_K), (n_k[-1], G, D_V)
    arrays = [rng.standard_normal(shape).astype(dtype) for shape in shapes]
    for x in arrays:
        x.flags.writeable = False
    return (*arrays, n_q, n_k)


def of_definition(call: dict[str, Any]) -> dict[str, Any]:
    """The options of the definition that say the same of one segment."""
    given = dict(call)
    window, slopes = given.pop("window", None), given.pop("slopes", None)
    given["mask"] = None if window is None else masks.window(*window)
    given["bias"] = None if slopes is None else hw.alibi(slopes)
    return given


def segments(q: Any, k: Any, v: Any, n_q: Any, n_k: Any) -> Any:
    """Each segment as (rows, keys, (q, k, v)), heads first, in plain slices."""
    for i in range(len(n_q) - 1):
        rows, keys = slice(n_q[i], n_q[i + 1]), slice(n_k[i], n_k[i + 1])
        yield rows, keys, tuple(x.transpose(1, 0, 2)[None] for x in (q[rows], k[keys], v[keys]))


def by_definition(args: Any, call: dict[str, Any]) -> tuple[Any, Any]:
    q, _, v = args[:3]
    out, lse = np.full((len(q), H, v.shape[-1]), np.nan), np.full((len(q), H), np.nan)
    for rows, _, alone in segments(*args):
        steps = hw.attention_steps(*alone, **of_definition(call))
        out[rows], lse[rows] = steps.out[0].transpose(1, 0, 2), steps.lse[0].T
    return out, lse


# ------------------------------------------------------------------------------------------ what it means
@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_each_segment_is_the_definition(name: str, dtype: Any) -> None:
    args = packed(dtype=dtype)
    wanted, wanted_lse = by_definition(args, OPTIONS[name])
    out, lse = attention_varlen(*args, **OPTIONS[name], return_lse=True)
    assert out.dtype == lse.dtype == dtype
    atol = 1e-13 if dtype == np.float64 else 2e-5
    np.testing.assert_allclose(out, wanted, rtol=0, atol=atol)
    np.testing.assert_allclose(lse, wanted_lse, rtol=0, atol=atol)
    assert np.array_equal(attention_varlen(*args, **OPTIONS[name]), out)


def test_causal_is_lower_right_in_each_segment() -> None:
    """Equal scores: each query averages the keys up to its own position, and the last one of a segment sees all."""
    v = np.array([6.0, 12.0, 18.0, 1.0, 3.0])[:, None, None]
    q, k = np.zeros((3, 1, 1)), np.zeros((5, 1, 1))
    out = attention_varlen(q, k, v, [0, 2, 3], [0, 3, 5], causal=True)
    assert out.ravel().tolist() == [9, 12, 2]
    near = attention_varlen(q, k, v, [0, 2, 3], [0, 3, 5], window=(0, 0))
    assert near.ravel().tolist() == [12, 18, 3]


def test_more_queries_than_keys_leave_the_first_without_any() -> None:
    out, lse = attention_varlen(*packed([4], [2]), causal=True, return_lse=True)
    assert (out[:2] == 0).all()
    assert (lse[:2] == -np.inf).all()
    assert np.isfinite(lse[2:]).all()


def test_a_segment_without_keys_is_zeros_even_of_nan() -> None:
    q, k, v, n_q, n_k = packed([2, 3], [0, 3])
    q = q.copy()
    q[:2] = np.nan
    out, lse = attention_varlen(q, k, v, n_q, n_k, return_lse=True)
    assert (out[:2] == 0).all()
    assert (lse[:2] == -np.inf).all()
    _, lse = attention_varlen(q, k, v, n_q, n_k, sinks=SINKS, return_lse=True)
    assert np.array_equal(lse[:2], [SINKS, SINKS])


@pytest.mark.parametrize("lengths", [(), (0,), (0, 0)])
def test_nothing_at_all(lengths: Any) -> None:
    args = packed(lengths, lengths)
    out, lse, vjp = attention_varlen_vjp(*args, return_lse=True)
    assert out.shape == (0, H, D_V)
    assert lse.shape == (0, H)
    assert [x.shape for x in vjp(out)[:3]] == [(0, H, D_K), (0, G, D_K), (0, G, D_V)]
    assert attention_varlen(*args).shape == out.shape


def test_types_are_those_of_attention() -> None:
    q, k, v, n_q, n_k = packed()
    half = [x.astype(np.float16) for x in (q, k, v)]
    out, lse = attention_varlen(*half, n_q, n_k, return_lse=True)
    assert (out.dtype, lse.dtype) == (np.float16, np.float32)
    wanted = by_definition((*(x.astype(np.float32) for x in half), n_q, n_k), {})[0]
    np.testing.assert_allclose(out, wanted, rtol=1e-3, atol=1e-4)
    assert attention_varlen(q.astype(int), k, v, n_q.tolist(), n_k.astype(np.uint32)).dtype == np.float64


def test_any_layout_is_read() -> None:
    q, k, v, n_q, n_k = packed()
    odd = [np.asfortranarray(q), k[::-1].copy()[::-1], np.repeat(v, 2, axis=-1)[..., ::2]]
    np.testing.assert_allclose(
        attention_varlen(*odd, n_q, n_k), attention_varlen(q, k, v, n_q, n_k), rtol=0, atol=1e-13
    )


# ------------------------------------------------------------------------------------ company and threads
LONG_Q, LONG_K = (300, 20, 20, 0, 90, 33), (280, 31, 31, 5, 90, 64)  # the first is shared out by threads


@pytest.mark.parametrize("name", OPTIONS)
def test_the_bits_of_a_segment_are_its_own(name: str) -> None:
    args, call = packed(LONG_Q, LONG_K, np.float32), OPTIONS[name]
    out, lse, vjp = attention_varlen_vjp(*args, **call, return_lse=True, threads=1)
    two = attention_varlen_vjp(*args, **call, return_lse=True, threads=2)
    plain = attention_varlen(*args, **call, return_lse=True, threads=2)
    d_out, d_lse = np.cos(out), np.where(np.isfinite(lse), lse, 0)
    gradients, again = vjp(d_out, d_lse), two[2](d_out, d_lse)
    assert bits(plain) == bits((out, lse)) == bits(two[:2])
    assert bits(gradients) == bits(again)
    for rows, keys, _ in segments(*args):
        alone = (args[0][rows], args[1][keys], args[2][keys], [0, rows.stop - rows.start], [0, keys.stop - keys.start])
        one, one_lse, one_vjp = attention_varlen_vjp(*alone, **call, return_lse=True, threads=2)
        assert bits((one, one_lse)) == bits((out[rows], lse[rows]))
        mine = one_vjp(d_out[rows], d_lse[rows])
        assert bits(mine[:3]) == bits((gradients.q[rows], gradients.k[keys], gradients.v[keys]))


@pytest.mark.parametrize("call", [{}, {"causal": True}, {"window": (2, 2)}])
def test_nan_in_a_segment_stays_there(call: dict[str, Any]) -> None:
    q, k, v, n_q, n_k = packed(LONG_Q, LONG_K)
    clean, vjp = attention_varlen_vjp(q, k, v, n_q, n_k, **call)
    rows, keys = slice(n_q[1], n_q[2]), slice(n_k[1], n_k[2])
    bad = [x.copy() for x in (q, k, v)]
    bad[0][rows], bad[1][keys], bad[2][keys] = np.nan, np.inf, np.nan
    out, bad_vjp = attention_varlen_vjp(*bad, n_q, n_k, **call, threads=2)
    d_out = np.ones_like(out)
    d_out[rows] = np.nan
    others = [np.delete(x, span, axis=0) for x, span in ((clean, rows), (out, rows))]
    assert bits(others[0]) == bits(others[1])
    assert np.isnan(out[rows]).all()
    for one, two, span in zip(vjp(np.ones_like(out)), bad_vjp(d_out), (rows, keys, keys), strict=False):
        assert bits(np.delete(one, span, axis=0)) == bits(np.delete(two, span, axis=0))


def test_packed_arrays_are_read_as_they_lie(monkeypatch: pytest.MonkeyPatch) -> None:
    """No copy: what the engine is given are views of the arrays, tiles of which the BLAS reads."""
    seen: list[Any] = []
    engines = engine._attend

    def watched(g: Any, p: Any, *rest: Any) -> Any:
        seen.append((g.readable, p, rest[1]))
        return engines(g, p, *rest)

    monkeypatch.setattr(engine, "_attend", watched)
    args = packed(dtype=np.float32)
    out = attention_varlen(*args, threads=1)
    assert len(seen) == sum(n > 0 for n in N_Q) - 2  # neighbours of one size together
    for readable, p, results in seen:
        assert readable == (True, True) or p.scores[-1] == 0
        assert np.may_share_memory(p.q, args[0])
        assert all(np.shares_memory(x, y) for x, y in ((p.k, args[1]), (p.v, args[2])) if x.size)
        assert results.out.base is not None
        assert np.shares_memory(results.out, out)


def test_nothing_between_segments_is_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    shapes: list[Any] = []
    made = grid.grid_of
    monkeypatch.setattr("headwise.core.varlen.grid_of", lambda p, *_, **__: (shapes.append(p.scores), made(p, 1))[1])
    attention_varlen(*packed(), threads=1)
    assert sum(b * m * n for b, _, m, n in shapes) == sum(m * n for m, n in zip(N_Q, N_K, strict=True))


# -------------------------------------------------------------------------------------------------- pages
def in_blocks(k: Any, v: Any, n_k: Any, block_size: int, seed: int = 1) -> tuple[Any, ...]:
    """Pools, block table and lengths that hold the same keys, in blocks strewn about; NaN where there is no key."""
    counts = np.diff(n_k)
    each = -(-counts // block_size)
    n_blocks, rng = int(each.sum()) + 3, np.random.default_rng(seed)
    free = rng.permutation(n_blocks).tolist()
    pools = [np.full((n_blocks, block_size, *x.shape[1:]), np.nan, x.dtype) for x in (k, v)]
    table = np.full((len(counts), int(each.max(initial=0)) + 1), -1)
    for i, (start, count) in enumerate(zip(n_k[:-1], counts, strict=True)):
        for j in range(each[i]):
            table[i, j] = free.pop()
            some = slice(start + j * block_size, min(start + count, start + (j + 1) * block_size))
            for pool, x in zip(pools, (k, v), strict=True):
                pool[table[i, j], : some.stop - some.start] = x[some]
    return (*pools, table, counts)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("block_size", [1, 7, 16])
@pytest.mark.parametrize("name", ["plain", "causal window", "slopes", "sinks"])
def test_pages_are_the_same_to_the_bit(name: str, block_size: int, threads: int) -> None:
    q, k, v, n_q, n_k = packed(LONG_Q, LONG_K, np.float32)
    k_pool, v_pool, table, lengths = in_blocks(k, v, n_k, block_size)
    call = {**OPTIONS[name], "return_lse": True, "threads": threads}
    wanted = attention_varlen(q, k, v, n_q, n_k, **call)
    assert bits(attention_varlen(q, k_pool, v_pool, n_q, None, paged=(table, lengths), **call)) == bits(wanted)


def test_segments_may_share_blocks() -> None:
    q, k, v, _, _ = packed([2], [8])
    pools = [x.reshape(2, 4, *x.shape[1:]) for x in (k, v)]
    out = attention_varlen(q, *pools, [0, 1, 2], None, paged=([[0, 1], [0, -7]], [8, 3]))
    wanted = [attention_varlen(q[i : i + 1], k[:n], v[:n], [0, 1], [0, n]) for i, n in ((0, 8), (1, 3))]
    assert bits(out) == bits(np.concatenate(wanted))


def test_a_pool_that_lies_oddly_is_not_copied_whole() -> None:
    both = np.zeros((4000, 2, 16, G, D_K), np.float32)  # keys and values side by side: 8 MB of each
    both[3999, 1] = 5
    k_pool, v_pool = both[:, 0], both[:, 1]
    tracemalloc.start()
    try:
        out = attention_varlen(np.zeros((1, H, D_K), np.float32), k_pool, v_pool, [0, 1], None, paged=([[3999]], [9]))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (out == 5).all()
    assert peak < 2**21


# ---------------------------------------------------------------------------------------------- gradients
@pytest.mark.parametrize("name", OPTIONS)
def test_gradients_are_those_of_differences(name: str) -> None:
    n_q, n_k = starts((3, 1, 0, 4, 2)), starts((3, 4, 2, 2, 0))
    q, k, v, *_ = packed((3, 1, 0, 4, 2), (3, 4, 2, 2, 0))
    call = dict(OPTIONS[name])

    def f(q: Any, k: Any, v: Any) -> Any:
        out, lse, vjp = attention_varlen_vjp(q, k, v, n_q, n_k, **call, return_lse=True)
        seen = np.isfinite(lse)
        return out, np.where(seen, lse, 0), lambda d_out, d_lse: vjp(d_out, np.where(seen, d_lse, 0))[:3]

    assert check_vjp(f, (q, k, v)) < 1e-8


def test_gradients_of_sinks_are_those_of_differences() -> None:
    args = packed((3, 1, 4, 2), (3, 4, 2, 0))

    def f(sinks: Any) -> Any:
        out, lse, vjp = attention_varlen_vjp(*args, causal=True, sinks=sinks, return_lse=True)
        return out, lse, lambda d_out, d_lse: vjp(d_out, d_lse).sinks

    assert check_vjp(f, (np.array([0.0, 1.0, -2.0, 0.5]),)) < 1e-8


def test_gradients_have_the_types_of_their_arguments() -> None:
    q, k, v, n_q, n_k = packed()
    out, vjp = attention_varlen_vjp(q.astype(np.float16), k.astype(np.float32), v, n_q, n_k, sinks=[1, 2, 3, 4])
    found = vjp(out)
    assert isinstance(found, hw.AttentionGradients)
    assert [found.q.dtype, found.k.dtype, found.v.dtype] == [np.float16, np.float32, np.float64]
    assert (found.bias, found.sinks.dtype, found.sinks.shape) == (None, np.float64, (H,))
    assert [x.shape for x in found[:3]] == [x.shape for x in (q, k, v)]
    assert bits(vjp(out)) == bits(found)
    out[...] = 7  # the caller's own
    assert bits(vjp(np.ones_like(out)).v) == bits(vjp(out / 7).v)


# ----------------------------------------------------------------------------------------------- refusals
GOOD = dict(zip(("q", "k", "v", "q_starts", "k_starts"), packed([2, 3], [4, 3]), strict=True))
POOL, PAGES = np.zeros((6, 4, G, D_K)), ([[0, 1], [5, 9]], [7, 4])
BAD: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "starts that fall": (
        {"q_starts": [0, 6, 5]},
        ValueError,
        r"q_starts: expected numbers that never fall, got 6 before 5 at q_starts\[2\]; from lengths: np.cumsum",
    ),
    "starts past the end": ({"k_starts": [0, 4, 8]}, ValueError, r"k_starts: expected tokens_k = 7 as .*, got 8$"),
    "starts before the end": ({"q_starts": [0, 2, 4]}, ValueError, r"q_starts: expected tokens_q = 5 as .*, got 4$"),
    "one end of keys, and wrong": ({"k_starts": [0, 8]}, ValueError, r": k_starts: expected tokens_k = 7 .*, got 8$"),
    "starts that begin late": ({"q_starts": [2, 5]}, ValueError, r"numbers that begin with 0, got 2 first"),
    "no starts": ({"q_starts": np.zeros(0, int)}, ValueError, r"numbers that begin with 0, got no number"),
    "lengths for starts": ({"q_starts": [2, 3]}, ValueError, r"q_starts: expected numbers that begin with 0"),
    "starts beyond int64": (
        {"q_starts": np.array([0, 2, 2**64 - 1], np.uint64)},
        ValueError,
        r"q_starts: expected tokens_q = 5 as .*, got 18446744073709551615$",
    ),
    "starts that fall from beyond int64": (
        {"q_starts": np.array([0, 2**63, 5], np.uint64)},
        ValueError,
        r"numbers that never fall, got 9223372036854775808 before 5 at q_starts\[2\]",
    ),
    "starts that begin beyond int64": (
        {"k_starts": np.array([2**64 - 1, 7, 7], np.uint64)},
        ValueError,
        r"k_starts: expected numbers that begin with 0, got 18446744073709551615 first",
    ),
    "starts of huge numbers": (
        {"q_starts": [0, 2, 10**400]},
        TypeError,
        r"q_starts: expected integers, got dtype object",
    ),
    "starts of unequal rows": ({"k_starts": [[0, 4], [7]]}, TypeError, r"k_starts: expected an array, got list that"),
    "unlike numbers of segments": (
        {"k_starts": [0, 7]},
        ValueError,
        r"\(segments \+ 1,\) = \(3,\) as q_starts, got \(2,\)",
    ),
    "starts of floats": ({"q_starts": [0.0, 2.0, 5.0]}, TypeError, r"q_starts: expected integers, got dtype float64"),
    "starts in rows": ({"q_starts": [[0, 5]]}, ValueError, r"q_starts: expected \(segments \+ 1,\), got \(1, 2\)"),
    "no starts of keys": ({"k_starts": None}, TypeError, r"k_starts: expected an array, got None"),
    "a batch": ({"q": np.zeros((1, H, 5, D_K))}, ValueError, r"q: expected \(tokens_q, H, d_k\), got \(1, 4, 5, 8\)"),
    "widths": ({"k": np.zeros((7, G, 3))}, ValueError, r"k: expected \(tokens_k, G, d_k\) with d_k = 8 as in q"),
    "values": ({"v": np.zeros((6, G, D_V))}, ValueError, r"v: expected \(tokens_k, G, d_v\) = \(7, 2, 5\) as k"),
    "heads": (
        {"k": np.zeros((7, 3, D_K)), "v": np.zeros((7, 3, D_V))},
        ValueError,
        r"k: expected a number of key/value heads \(G\) that divides the 4 heads",
    ),
    "a window of one": ({"window": 3}, TypeError, r"window: expected None or \(left, right\), got int 3"),
    "a negative window": (
        {"window": (-1, 0)},
        ValueError,
        r"window\[0\]: expected None \(unlimited\) or a number of keys",
    ),
    "slopes": ({"slopes": [1.0, 2.0]}, ValueError, r"slopes: expected one number per head, shape \(H,\) = \(4,\)"),
    "slopes of nan": ({"slopes": [np.nan] * H}, ValueError, r"slopes: expected finite numbers"),
    "sinks": ({"sinks": [1.0]}, ValueError, r"sinks: expected one number per head, shape \(H,\) = \(4,\), got \(1,\)"),
    "scale": ({"scale": np.nan}, ValueError, r"scale: expected None .* or a finite number"),
    "threads": ({"threads": 0}, ValueError, r"threads: expected"),
    "causal": ({"causal": 1}, TypeError, r"causal: expected True or False"),
    "return_lse": ({"return_lse": None}, TypeError, r"return_lse: expected True or False"),
    "two at once": ({"q_starts": [0, 1], "softcap": -1.0, "window": (0, 0.5)}, TypeError, "3 arguments do not fit"),
}
BAD_PAGES: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "an id too large": ({"paged": ([[0, 6], [5, 0]], [7, 4])}, ValueError, r"ids from 0 to 5 of the 6 blocks .* got 6"),
    "an id beyond int64": (
        {"paged": (np.array([[0, 2**64 - 1], [5, 0]], np.uint64), [7, 4])},
        ValueError,
        r"ids from 0 to 5 of the 6 blocks .* got 18446744073709551615",
    ),
    "a length beyond int64": (
        {"paged": (PAGES[0], np.array([2**64 - 1, 4], np.uint64))},
        ValueError,
        r"0 to 2 blocks of 4 = 8 keys, got 18446744073709551615",
    ),
    "a ragged table": (
        {"paged": ([[0, 1], [5]], [7, 4])},
        TypeError,
        r"block_table\): expected an array, got list that",
    ),
    "a negative id": ({"paged": ([[0, 1], [-1, 0]], [7, 4])}, ValueError, r"block_table\): expected ids .* got -1"),
    "a length too large": ({"paged": (PAGES[0], [9, 4])}, ValueError, r"0 to 2 blocks of 4 = 8 keys, got 9"),
    "a negative length": ({"paged": (PAGES[0], [7, -1])}, ValueError, r"0 to 2 blocks of 4 = 8 keys, got -1"),
    "a row too many": (
        {"paged": ([[0]] * 3, [4, 4])},
        ValueError,
        r"block_table\): expected \(segments, max_blocks\) with",
    ),
    "a length too few": (
        {"paged": (PAGES[0], [4])},
        ValueError,
        r"k_lengths\): expected \(segments,\) with segments = 2",
    ),
    "a table of floats": (
        {"paged": ([[0.0], [1.0]], [4, 4])},
        TypeError,
        r"block_table\): expected integers.*np.asarray\(block_table, dt",
    ),
    "no lengths": ({"paged": np.zeros((3, 1), int)}, TypeError, r"paged: expected None or \(block_table, k_lengths\)"),
    "an end of queries": ({"q_starts": [0, 4]}, ValueError, r": q_starts: expected tokens_q = 5 as .*, got 4$"),
    "starts of keys": ({"k_starts": [0, 7, 11]}, ValueError, r"k_starts: expected None with paged"),
    "packed keys": ({"k": GOOD["k"]}, ValueError, r"k: expected \(n_blocks, block_size, G, d_k\), got \(7, 2, 8\)"),
}


@pytest.mark.parametrize("function", [attention_varlen, attention_varlen_vjp])
@pytest.mark.parametrize("name", BAD)
def test_what_does_not_fit_is_named(name: str, function: Any) -> None:
    call, error, text = BAD[name]
    with pytest.raises(error, match=text) as caught:
        function(**{**GOOD, **call})
    assert str(caught.value).startswith(f"{function.__name__}: ")


@pytest.mark.parametrize("name", BAD_PAGES)
def test_pages_that_do_not_fit_are_named(name: str) -> None:
    call, error, text = BAD_PAGES[name]
    good = {"q": GOOD["q"], "k": POOL, "v": POOL, "q_starts": [0, 2, 5], "k_starts": None, "paged": PAGES}
    assert attention_varlen(**good).shape == (5, H, D_K)  # the 9 is beyond a length
    with pytest.raises(error, match=text):
        attention_varlen(**{**good, **call})


SWAPS = {"q": "np.swapaxes(q, 0, 1)", "k": "np.swapaxes(k, 0, 1)", "v": "np.swapaxes(v, 0, 1)"}


@pytest.mark.parametrize("turned", ["q", "k", "v", "qk", "kv", "qkv"])
def test_tokens_that_do_not_come_first_are_said_to(turned: str) -> None:
    call = {**GOOD, **{name: np.swapaxes(GOOD[name], 0, 1) for name in turned}}
    remedy = "; tokens come first, then heads: pass " + " and ".join(SWAPS[name] for name in turned)
    with pytest.raises(ValueError, match=re.escape(remedy)) as caught:
        attention_varlen(**call)
    lines = str(caught.value).splitlines()
    assert sum("swapaxes" in line for line in lines) == 1
    assert all(line.endswith(remedy) for line in lines if "swapaxes" in line)


def test_each_of_the_starts_has_its_own_remedy() -> None:
    with pytest.raises(ValueError, match="3 arguments do not fit") as caught:
        attention_varlen(**{**GOOD, "q": np.swapaxes(GOOD["q"], 0, 1), "k_starts": [4, 3]})
    assert [line.split("; ")[-1] for line in str(caught.value).splitlines()[1:]] == [
        "query head h reads key head h // (H // G)",
        "tokens come first, then heads: pass np.swapaxes(q, 0, 1)",
        "these are lengths: pass np.cumsum([0, *lengths])",
    ]


def test_an_end_that_is_wrong_is_no_order_of_axes() -> None:
    with pytest.raises(ValueError, match=r"q_starts: expected tokens_q = 5 as its last number, got 4$"):
        attention_varlen(**{**GOOD, "q_starts": [0, 2, H]})  # 5 heads would not fit 2 of keys
    turned = {**GOOD, "k": np.swapaxes(GOOD["k"], 0, 1), "v": GOOD["v"][:6]}
    with pytest.raises(ValueError, match=r"k_starts: expected tokens_k = 2 as its last number, got 7$"):
        attention_varlen(**turned)  # values of 6 tokens fit in no order


@pytest.mark.parametrize(("name", "lengths"), [("q_starts", [2, 3]), ("k_starts", [4, 3])])
def test_lengths_for_starts_are_recognized(name: str, lengths: list[int]) -> None:
    with pytest.raises(ValueError, match=r"got \d first; these are lengths: pass np\.cumsum\(\[0, \*lengths\]\)$"):
        attention_varlen(**{**GOOD, name: lengths})
    with pytest.raises(ValueError, match=r"got 1 first; give where each segment begins, and the end of the last$"):
        attention_varlen(**{**GOOD, name: [1, *lengths[1:]]})
    assert attention_varlen(**{**GOOD, name: np.cumsum([0, *lengths])}).shape[0] == 5


POOL_SWAPPED = (
    "; a block is (block_size, G, d): of (G, block_size, d), pass np.swapaxes(k, 1, 2) and np.swapaxes(v, 1, 2)"
)


@pytest.mark.parametrize(
    ("block_size", "n_groups", "lengths", "text"),
    [
        (8, 2, [1, 2], "k: expected a number of key/value heads (G) that divides the 4 heads (H) of q"),
        (4, 2, [7, 4], "k_lengths): expected 0 to 2 blocks of 2 = 4 keys, got 7"),
    ],
)
def test_blocks_whose_heads_come_first_are_recognized(
    block_size: int, n_groups: int, lengths: list[int], text: str
) -> None:
    pool, paged = np.zeros((6, block_size, n_groups, D_K)), ([[0, 1], [5, 4]], lengths)
    call: dict[str, Any] = {"q": GOOD["q"], "q_starts": [0, 2, 5], "k_starts": None, "paged": paged}
    assert attention_varlen(k=pool, v=pool, **call).shape == (5, H, D_K)
    swapped = np.swapaxes(pool, 1, 2)
    with pytest.raises(ValueError, match=re.escape(text)) as caught:
        attention_varlen(k=swapped, v=swapped, **call)
    assert str(caught.value).endswith(POOL_SWAPPED)


@pytest.mark.parametrize(
    ("block_size", "n_groups", "lengths"), [(2, 4, [9, 4]), (2, 4, [-1, 4]), (3, 4, [7, 4]), (4, 2, [9, 4])]
)
def test_lengths_that_would_not_fit_swapped_blocks_count_keys(
    block_size: int, n_groups: int, lengths: list[int]
) -> None:
    pool, paged = np.zeros((6, block_size, n_groups, D_K)), ([[0, 1], [5, 4]], lengths)
    with pytest.raises(ValueError, match=r"; k_lengths counts keys, not blocks$"):
        attention_varlen(GOOD["q"], pool, pool, [0, 2, 5], None, paged=paged)


def test_what_is_beyond_a_length_may_be_beyond_int64() -> None:
    rng = np.random.default_rng(9)
    q, pool = rng.standard_normal((5, H, D_K)), rng.standard_normal(POOL.shape)
    table, lengths = np.array([[0, 1], [5, 2**64 - 1]], np.uint64), np.array([7, 4], np.uint64)
    starts = np.array([0, 2, 5], np.uint64)
    wanted = attention_varlen(q, pool, pool, [0, 2, 5], None, paged=PAGES)
    assert bits(attention_varlen(q, pool, pool, starts, None, paged=(table, lengths))) == bits(wanted)


def test_pages_have_no_gradients() -> None:
    with pytest.raises(
        ValueError, match=r"attention_varlen_vjp: paged: expected None: blocks .* have no gradients here"
    ):
        attention_varlen_vjp(GOOD["q"], POOL, POOL, [0, 2, 5], None, paged=PAGES)


def test_gradients_of_another_shape_are_refused() -> None:
    out, lse, vjp = attention_varlen_vjp(**GOOD, return_lse=True)
    with pytest.raises(ValueError, match=re.escape("d_out: expected (tokens_q, H, d_v) = (5, 4, 5) as out")):
        vjp(out[:1])
    with pytest.raises(ValueError, match=re.escape("d_lse: expected (tokens_q, H) = (5, 4) as lse")):
        vjp(out, lse[:1])
