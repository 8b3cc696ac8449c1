"""Every refusal of a call of attention, word for word, and the rules of dtypes, heads, batches and per-item arrays."""

import re
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import headwise as hw
from headwise import masks
from headwise.core import shapes
from headwise.core.shapes import Fault, Faults, PerItem

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
SDPA = "scaled_dot_product_attention: "
REAL = "real numbers (float16, bfloat16, float32, float64, integers or bool)"
LONGDOUBLE_IS_WIDER = np.dtype(np.longdouble).itemsize > 8


def ones(*shape: int, dtype: Any = np.float64) -> Any:
    """A read-only array: nothing here may write to its inputs."""
    array = np.ones(shape, dtype)
    array.flags.writeable = False
    return array


Q, K, V = ones(2, 3), ones(5, 3), ones(5, 7)  # n_q 2, n_k 5, d_k 3, d_v 7


def attend(q: Any = Q, k: Any = K, v: Any = V, mask: Any = None, **options: Any) -> Any:
    return hw.scaled_dot_product_attention(q, k, v, mask, **options)


def attend_heads(n_q_heads: int, n_k_heads: int, n_v_heads: int | None = None, batch: tuple[int, ...] = (1,)) -> Any:
    n_v_heads = n_k_heads if n_v_heads is None else n_v_heads
    return attend(ones(*batch, n_q_heads, 2, 3), ones(*batch, n_k_heads, 5, 3), ones(*batch, n_v_heads, 5, 7))


def exactly(text: str) -> str:
    return f"^{re.escape(text)}$"


# ------------------------------------------------------------------------------------- the words themselves
def test_one_fault_is_one_sentence() -> None:
    faults = Faults("f")
    faults.value("x", "2 axes", "3", "drop one")
    with pytest.raises(ValueError, match=exactly("f: x: expected 2 axes, got 3; drop one")):
        faults.raise_any()


def test_several_faults_are_listed_and_one_type_makes_it_a_type_error() -> None:
    faults = Faults("f")
    faults.value("x", "2 axes", "3")
    faults.type("y", "an int", "str")
    with pytest.raises(
        TypeError,
        match=exactly("f: 2 arguments do not fit\n  x: expected 2 axes, got 3\n  y: expected an int, got str"),
    ):
        faults.raise_any()


def test_several_values_make_a_value_error() -> None:
    faults = Faults("f")
    faults.value("x", "a", "b")
    faults.value("y", "c", "d")
    with pytest.raises(
        ValueError, match=exactly("f: 2 arguments do not fit\n  x: expected a, got b\n  y: expected c, got d")
    ):
        faults.raise_any()


def test_no_fault_raises_nothing() -> None:
    Faults("f").raise_any()


@pytest.mark.parametrize(
    ("shape", "text"), [((), "()"), ((4,), "(4,)"), ((2, 3), "(2, 3)"), ((np.int64(2), np.int64(3)), "(2, 3)")]
)
def test_words(shape: tuple[int, ...], text: str) -> None:
    assert shapes.words(shape) == text


@pytest.mark.parametrize(
    ("shape", "text"),
    [
        ((2, 3), "(n_q, n_k)"),
        ((5, 2, 3), "(H, n_q, n_k)"),
        ((7, 5, 2, 3), "(B, H, n_q, n_k)"),
        ((11, 7, 5, 2, 3), "(..., H, n_q, n_k)"),
    ],
)
def test_letters(shape: tuple[int, ...], text: str) -> None:
    assert shapes.letters(shape) == text


@pytest.mark.parametrize(
    ("scores", "batch"),
    [((2, 3), ()), ((5, 2, 3), (5,)), ((7, 5, 2, 3), (7,)), ((11, 7, 5, 2, 3), (11, 7))],
)
def test_batch_axes_leave_out_the_heads_where_there_is_a_batch(scores: tuple[int, ...], batch: tuple[int, ...]) -> None:
    assert shapes.batch_axes(scores) == batch


@pytest.mark.parametrize(
    ("shape", "target", "fits"),
    [
        ((), (2, 3), True),
        ((3,), (2, 3), True),
        ((1, 3), (2, 3), True),
        ((2, 1), (2, 3), True),
        ((2,), (2, 3), False),
        ((2, 3), (1, 3), False),  # NumPy would enlarge the target
        ((1, 2, 3), (2, 3), False),  # more axes than the target
        ((1,), (0,), True),
        ((0,), (1,), False),
    ],
)
def test_broadcasts_never_enlarges(shape: tuple[int, ...], target: tuple[int, ...], fits: bool) -> None:
    assert shapes.broadcasts(shape, target) is fits


def test_broadcast_all() -> None:
    assert shapes.broadcast_all((2, 1), (3,)) == (2, 3)
    assert shapes.broadcast_all((2,), (3,)) is None


# --------------------------------------------------------------------------------------------- q, k and v
SHAPE_ERRORS: dict[str, tuple[tuple[Any, ...], str]] = {
    "q is one token": (
        (ones(3), K, V),
        "q: expected (..., n_q, d_k), two axes or more, got (3,); one token alone is q[None, :]",
    ),
    "k is a number": ((Q, 1.0, V), "k: expected (..., n_k, d_k), two axes or more, got ()"),
    "v is one token": (
        (Q, K, ones(5)),
        "v: expected (..., n_k, d_v), two axes or more, got (5,); one token alone is v[None, :]",
    ),
    "d_k differs": (
        (Q, ones(5, 7), V),
        (
            "k: expected (..., n_k, d_k) with d_k = 3 as in q (2, 3), got (5, 7); "
            "queries and keys are compared by a dot product"
        ),
    ),
    "d_k differs, four axes": (
        (ones(13, 11, 2, 3), ones(13, 11, 5, 7), ones(13, 11, 5, 7)),
        (
            "k: expected (..., n_k, d_k) with d_k = 3 as in q (13, 11, 2, 3), got (13, 11, 5, 7); "
            "queries and keys are compared by a dot product"
        ),
    ),
    "n_k differs, three axes": (
        (ones(13, 2, 3), ones(13, 5, 3), ones(13, 11, 7)),
        ("v: expected (..., n_k, d_v) with n_k = 5 as in k (13, 5, 3), got (13, 11, 7); every key has one value"),
    ),
    "n_k differs": (
        (Q, K, ones(11, 7)),
        "v: expected (..., n_k, d_v) with n_k = 5 as in k (5, 3), got (11, 7); every key has one value",
    ),
    "three axes, heads differ": (
        (ones(11, 2, 3), ones(2, 5, 3), ones(2, 5, 7)),
        ("k and v: expected a first axis of 11 as in q, or 1, got k (2, 5, 3), v (2, 5, 7)"),
    ),
    "three axes, grouped heads": (
        (ones(4, 2, 3), ones(2, 5, 3), ones(2, 5, 7)),
        (
            "k and v: expected a first axis of 4 as in q, or 1, got k (2, 5, 3), v (2, 5, 7); "
            "grouped heads need a batch axis: q[None], k[None], v[None]"
        ),
    ),
    "batch differs": (
        (ones(11, 1, 2, 3), ones(13, 1, 5, 3), ones(13, 1, 5, 7)),
        (
            "k and v: expected batch axes that broadcast with those of q (11, 1, 2, 3), "
            "got k (13, 1, 5, 3), v (13, 1, 5, 7); equal sizes, or 1"
        ),
    ),
    "G does not divide H": (
        (ones(1, 5, 2, 3), ones(1, 3, 5, 3), ones(1, 3, 5, 7)),
        (
            "k and v: expected a number of key/value heads (G) that divides the 5 heads (H) of q (1, 5, 2, 3), "
            "got k (1, 3, 5, 3), v (1, 3, 5, 7); query head h reads key head h // (H // G)"
        ),
    ),
    "G above H": (
        (ones(1, 3, 2, 3), ones(1, 6, 5, 3), ones(1, 6, 5, 7)),
        (
            "k and v: expected a number of key/value heads (G) that divides the 3 heads (H) of q (1, 3, 2, 3), "
            "got k (1, 6, 5, 3), v (1, 6, 5, 7); query head h reads key head h // (H // G)"
        ),
    ),
    "no key heads": (
        (ones(1, 3, 2, 3), ones(1, 0, 5, 3), ones(1, 0, 5, 7)),
        (
            "k and v: expected a number of key/value heads (G) that divides the 3 heads (H) of q (1, 3, 2, 3), "
            "got k (1, 0, 5, 3), v (1, 0, 5, 7); query head h reads key head h // (H // G)"
        ),
    ),
    "v has other heads than k": (
        (ones(1, 6, 2, 3), ones(1, 3, 5, 3), ones(1, 2, 5, 7)),
        "v: expected 3 key/value heads (G) as in k (1, 3, 5, 3), or 1, got (1, 2, 5, 7)",
    ),
    "five axes, batch differs": (
        (ones(11, 2, 1, 2, 3), ones(11, 3, 1, 5, 3), ones(11, 3, 1, 5, 7)),
        (
            "k and v: expected batch axes that broadcast with those of q (11, 2, 1, 2, 3), "
            "got k (11, 3, 1, 5, 3), v (11, 3, 1, 5, 7); equal sizes, or 1"
        ),
    ),
    "mask too large": (
        (Q, K, V, ones(1, 2, 5, dtype=bool)),
        (
            "mask: expected a shape that broadcasts to (n_q, n_k) = (2, 5), got (1, 2, 5); "
            "size 1 or the full size on every axis; a mask never enlarges the scores"
        ),
    ),
    "mask is transposed": (
        (Q, K, V, ones(5, 2, dtype=bool)),
        (
            "mask: expected a shape that broadcasts to (n_q, n_k) = (2, 5), got (5, 2); "
            "size 1 or the full size on every axis; a mask never enlarges the scores"
        ),
    ),
    "mask of keys per item, three axes": (
        (ones(11, 2, 3), ones(11, 5, 3), ones(11, 5, 7), ones(11, 5, dtype=bool)),
        (
            "mask: expected a shape that broadcasts to (H, n_q, n_k) = (11, 2, 5), got (11, 5); "
            "one row of keys per item is masks.keys(valid), or as an array mask[..., None, :]"
        ),
    ),
    "mask of keys per item, four axes": (
        (ones(11, 1, 2, 3), ones(11, 1, 5, 3), ones(11, 1, 5, 7), ones(11, 5, dtype=bool)),
        (
            "mask: expected a shape that broadcasts to (B, H, n_q, n_k) = (11, 1, 2, 5), got (11, 5); "
            "one row of keys per item is masks.keys(valid), or as an array mask[..., None, None, :]"
        ),
    ),
    "mask without an axis for heads, five axes": (
        (ones(2, 11, 3, 2, 3), ones(2, 11, 3, 5, 3), ones(2, 11, 3, 5, 7), ones(2, 11, 2, 5, dtype=bool)),
        (
            "mask: expected a shape that broadcasts to (..., H, n_q, n_k) = (2, 11, 3, 2, 5), got (2, 11, 2, 5); "
            "give it an axis for the heads: mask[..., None, :, :]"
        ),
    ),
    "mask of another number of keys": (
        (ones(11, 3, 2, 3), ones(11, 3, 5, 3), ones(11, 3, 5, 7), ones(2, 7, dtype=bool)),
        (
            "mask: expected a shape that broadcasts to (B, H, n_q, n_k) = (11, 3, 2, 5), got (2, 7); "
            "size 1 or the full size on every axis; a mask never enlarges the scores"
        ),
    ),
    "mask without an axis for heads": (
        (ones(11, 3, 2, 3), ones(11, 3, 5, 3), ones(11, 3, 5, 7), ones(11, 2, 5, dtype=bool)),
        (
            "mask: expected a shape that broadcasts to (B, H, n_q, n_k) = (11, 3, 2, 5), got (11, 2, 5); "
            "give it an axis for the heads: mask[..., None, :, :]"
        ),
    ),
}


@pytest.mark.parametrize(("args", "text"), SHAPE_ERRORS.values(), ids=SHAPE_ERRORS)
def test_shapes_that_do_not_fit(args: tuple[Any, ...], text: str) -> None:
    with pytest.raises(ValueError, match=exactly(SDPA + text)):
        attend(*args)


@pytest.mark.parametrize("lead", [(), (11,), (13, 11)], ids=str)
def test_transposed_keys_are_recognised_and_the_values_not_blamed(lead: tuple[int, ...]) -> None:
    q, k, v = ones(*lead, 2, 3), ones(*lead, 3, 5), ones(*lead, 5, 7)
    remedy = "k comes as (n_k, d_k), not transposed: pass np.swapaxes(k, -1, -2)"
    text = f"k: expected (..., n_k, d_k) with d_k = 3 as in q {q.shape}, got {k.shape}; {remedy}"
    with pytest.raises(ValueError, match=exactly(SDPA + text)):
        attend(q, k, v)


@pytest.mark.parametrize("q", [ones(2, 3), ones(1, 2, 3)])
def test_keys_and_values_that_do_not_fit_each_other_are_not_told_to_follow_q(q: Any) -> None:
    text = "k and v: expected one size on their first axes, or 1, got k (11, 5, 3), v (13, 5, 7)"
    with pytest.raises(ValueError, match=exactly(SDPA + text)):
        attend(q, ones(11, 5, 3), ones(13, 5, 7))


@pytest.mark.parametrize("function", [hw.scaled_dot_product_attention, hw.attention_steps])
def test_the_function_called_is_the_one_named(function: Callable[..., Any]) -> None:
    with pytest.raises(ValueError, match=f"^{function.__name__}: k: expected "):
        function(Q, ones(5, 7), V)


# ------------------------------------------------------------------------------------ several at once
def test_everything_wrong_is_named_at_once() -> None:
    text = """scaled_dot_product_attention: 8 arguments do not fit
  k: expected (..., n_k, d_k) with d_k = 3 as in q (2, 3), got (5, 2); queries and keys are compared by a dot product
  v: expected (..., n_k, d_v) with n_k = 5 as in k (5, 2), got (11, 7); every key has one value
  mask: expected bool, True = may attend, got dtype float64; \
pass mask.astype(bool) if nonzero means may attend, or bias=mask if it is to be added to the scores
  causal: expected True or False, got int 1; masks.causal(offset) aligns otherwise
  scale: expected None (1/sqrt(d_k)) or a finite number, got nan
  softcap: expected None (no cap) or a number above 0 that is finite in float64, got -1.0
  dropout: expected a probability from 0 to 1, got 1.5
  rng: expected a seed or a numpy.random.Generator where dropout > 0, got None; \
pass rng=0 (a seed) or rng=np.random.default_rng()"""
    with pytest.raises(TypeError, match=exactly(text)):
        attend(Q, ones(5, 2), ones(11, 7), ones(2, 5), causal=1, scale=np.nan, softcap=-1.0, dropout=1.5)


def test_several_values_are_one_value_error() -> None:
    text = """scaled_dot_product_attention: 3 arguments do not fit
  mask: expected a shape that broadcasts to (n_q, n_k) = (2, 5), got (3,); \
size 1 or the full size on every axis; a mask never enlarges the scores
  bias: expected a shape that broadcasts to (n_q, n_k) = (2, 5), got (2,); a bias never enlarges the scores
  sinks: expected one number per head, shape (H,) = (1,), got (2,)"""
    with pytest.raises(ValueError, match=exactly(text)):
        attend(mask=ones(3, dtype=bool), bias=ones(2), sinks=ones(2))


def test_too_few_axes_are_named_together() -> None:
    text = """scaled_dot_product_attention: 2 arguments do not fit
  q: expected (..., n_q, d_k), two axes or more, got (3,); one token alone is q[None, :]
  v: expected (..., n_k, d_v), two axes or more, got ()"""
    with pytest.raises(ValueError, match=exactly(text)):
        attend(ones(3), K, 1.0)


def test_what_depends_on_an_unknown_score_shape_is_still_checked_for_its_kind() -> None:
    text = """scaled_dot_product_attention: 2 arguments do not fit
  q: expected an array, got """
    with pytest.raises(TypeError, match=f"^{re.escape(text)}"):
        attend(Unreadable(), bias=ones(2, 5, dtype=bool), sinks=ones(11), mask=ones(11, dtype=bool))


# ----------------------------------------------------------------------------------------------- dtypes
class Unreadable:
    """Like a tensor that needs its gradient detached."""

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("Can't call numpy() on me. Use something else.\nSecond line")


def assert_dtypes(given: tuple[Any, ...], result: Any, computing: Any) -> None:
    arrays = [ones(*shape, dtype=dtype) for shape, dtype in zip([(2, 3), (5, 3), (5, 7)], given, strict=True)]
    out, weights = attend(*arrays)
    assert out.dtype == weights.dtype == np.dtype(result)
    assert out.dtype.isnative
    assert hw.attention_steps(*arrays).lse.dtype == np.dtype(computing)
    assert (out == 1).all()  # values of 1 average to 1 in every type


F16, F32, F64 = np.float16, np.float32, np.float64


@pytest.mark.parametrize(
    ("given", "result", "computing"),
    [
        ((F64, F64, F64), F64, F64),
        ((F32, F32, F32), F32, F32),
        ((F16, F16, F16), F16, F32),
        ((BFLOAT16, BFLOAT16, BFLOAT16), BFLOAT16, F32),
        ((np.int64, np.int64, np.int64), F64, F64),
        ((np.uint8, np.uint8, np.uint8), F64, F64),
        ((bool, bool, bool), F64, F64),
        ((F32, F32, F64), F64, F64),
        ((F16, F32, F16), F32, F32),
        ((BFLOAT16, F32, F32), F32, F32),
        ((F16, BFLOAT16, F16), F32, F32),
        ((BFLOAT16, BFLOAT16, F16), F32, F32),
        ((F16, np.int8, F16), F64, F64),
        ((F32, F32, bool), F64, F64),
        ((BFLOAT16, np.uint8, BFLOAT16), F64, F64),
        ((">f4", "<f4", ">f4"), F32, F32),
        ((">f8", ">f8", ">f8"), F64, F64),
        ((">f2", "<f2", "<f2"), F16, F32),
        ((">f4", ">f2", ">f4"), F32, F32),
        ((">i2", ">i2", ">i2"), F64, F64),
    ],
)
def test_dtype_of_the_result(given: tuple[Any, ...], result: Any, computing: Any) -> None:
    assert_dtypes(given, result, computing)


def test_mask_bias_and_sinks_never_change_the_dtype() -> None:
    q, k, v = (array.astype(F16) for array in (Q, K, V))
    out, weights = attend(q, k, v, ones(2, 5, dtype=bool), bias=ones(2, 5, dtype=F64), sinks=ones(1, dtype=F64))
    assert out.dtype == weights.dtype == F16


def unreal(dtype: str) -> str:
    return f"q: expected {REAL}, got dtype {dtype}; pass np.asarray(q, dtype=np.float64)"


NOT_REAL: dict[str, tuple[Any, str]] = {
    "complex": (
        ones(2, 3, dtype=complex),
        (
            f"q: expected {REAL}, got dtype complex128; complex attention has no agreed meaning: "
            "pass q.real, or parts of it as more features"
        ),
    ),
    "object": (ones(2, 3, dtype=object), unreal("object")),
    "generator": ((row for row in Q), unreal("object")),
    "strings": ([["a", "bc"]], unreal("<U2")),
    "string": ("abc", unreal("<U3")),
    "bytes": (b"abc", unreal("|S3")),
    "None": (None, "q: expected an array, got None"),
    "datetime": (np.zeros((2, 3), "M8[D]"), unreal("datetime64[D]")),
    "timedelta": (np.zeros((2, 3), "m8[s]"), unreal("timedelta64[s]")),
    "structured": (np.zeros((2, 3), [("a", "f8")]), unreal("[('a', '<f8')]")),
    "masked": (
        np.ma.masked_invalid(np.ones((2, 3))),
        (
            "q: expected a plain array, got a numpy.ma masked array, whose hidden data would be used; "
            "pass q.filled(0), and say which keys count by mask=masks.keys(valid)"
        ),
    ),
}


@pytest.mark.parametrize(("q", "text"), NOT_REAL.values(), ids=NOT_REAL)
def test_what_holds_no_real_numbers(q: Any, text: str) -> None:
    with pytest.raises(TypeError, match=exactly(SDPA + text)):
        attend(q)


@pytest.mark.skipif(not LONGDOUBLE_IS_WIDER, reason="longdouble is float64 here")
def test_longdouble() -> None:
    name = np.dtype(np.longdouble)
    with pytest.raises(
        TypeError, match=exactly(f"{SDPA}v: expected {REAL}, got dtype {name}; pass v.astype(np.float64)")
    ):
        attend(v=ones(5, 7, dtype=np.longdouble))


@pytest.mark.parametrize("dtype", [ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2], ids=["e4m3fn", "e5m2"])
def test_floats_of_eight_bits_are_not_among_the_types(dtype: Any) -> None:
    with pytest.raises(TypeError, match=f"{SDPA}q: expected real numbers .*, got dtype float8_"):
        attend(ones(2, 3, dtype=dtype))


READABLE = "pass a NumPy array: rows of one length, in this computer's memory"


@pytest.mark.parametrize("name", ["q", "k", "v"])
@pytest.mark.parametrize(
    ("value", "kind", "reason"),
    [
        ([[1.0, 2.0, 3.0], [1.0]], "list", r"setting an array element with a sequence"),
        (Unreadable(), "Unreadable", r"Can't call numpy\(\) on me"),
    ],
    ids=["ragged", "raises"],
)
def test_what_numpy_cannot_read(name: str, value: Any, kind: str, reason: str) -> None:
    text = rf"^{SDPA}{name}: expected an array, got {kind} that NumPy cannot read \({reason}\); {READABLE}$"
    with pytest.raises(TypeError, match=text) as caught:
        attend(**{name: value})
    assert caught.value.__context__ is None  # ours alone, without NumPy's traceback


def test_what_does_not_fit_into_memory_is_no_fault_of_kind() -> None:
    class TooLarge:
        def __array__(self, *args: Any, **kwargs: Any) -> Any:
            raise MemoryError("Unable to allocate 7 TiB")

    with pytest.raises(MemoryError, match=r"^Unable to allocate 7 TiB$"):
        attend(TooLarge())


def test_subclasses_and_nested_lists_are_arrays() -> None:
    class Sub(np.ndarray):
        pass

    out, _ = attend(Q.view(Sub), K.tolist(), tuple(map(tuple, V)))
    assert type(out) is np.ndarray
    assert (out == 1).all()


# --------------------------------------------------------------------------------- grouped heads and batches
@pytest.mark.parametrize(
    ("q", "k", "v", "scores"),
    [
        ((2, 3), (5, 3), (5, 7), (2, 5)),
        ((11, 2, 3), (5, 3), (5, 7), (11, 2, 5)),
        ((2, 3), (11, 5, 3), (11, 5, 7), (11, 2, 5)),
        ((11, 2, 3), (1, 5, 3), (11, 5, 7), (11, 2, 5)),
        ((13, 6, 2, 3), (13, 3, 5, 3), (13, 3, 5, 7), (13, 6, 2, 5)),
        ((13, 6, 2, 3), (1, 3, 5, 3), (5, 7), (13, 6, 2, 5)),
        ((13, 6, 2, 3), (13, 1, 5, 3), (13, 1, 5, 7), (13, 6, 2, 5)),
        ((6, 2, 3), (13, 3, 5, 3), (13, 3, 5, 7), (13, 6, 2, 5)),
        ((13, 1, 2, 3), (13, 3, 5, 3), (13, 3, 5, 7), (13, 3, 2, 5)),
        ((13, 6, 2, 3), (13, 3, 5, 3), (13, 1, 5, 7), (13, 6, 2, 5)),
        ((13, 6, 2, 3), (13, 1, 5, 3), (13, 3, 5, 7), (13, 6, 2, 5)),
        ((2, 3), (13, 3, 5, 3), (5, 7), (13, 3, 2, 5)),
        ((11, 1, 6, 2, 3), (13, 2, 5, 3), (1, 13, 2, 5, 7), (11, 13, 6, 2, 5)),
        ((11, 13, 6, 2, 3), (5, 3), (5, 7), (11, 13, 6, 2, 5)),
        ((13, 0, 2, 3), (13, 0, 5, 3), (13, 0, 5, 7), (13, 0, 2, 5)),
        ((0, 6, 2, 3), (0, 3, 5, 3), (0, 3, 5, 7), (0, 6, 2, 5)),
        ((0, 3), (5, 3), (5, 7), (0, 5)),
        ((2, 3), (0, 3), (0, 7), (2, 0)),
        ((2, 0), (5, 0), (5, 0), (2, 5)),
    ],
)
def test_score_shapes(q: tuple[int, ...], k: tuple[int, ...], v: tuple[int, ...], scores: tuple[int, ...]) -> None:
    out, weights = attend(ones(*q), ones(*k), ones(*v))
    assert weights.shape == scores
    assert out.shape == (*scores[:-1], v[-1])


@pytest.mark.parametrize("batch", [(1,), (2,), (2, 3)], ids=str)
@pytest.mark.parametrize(("n_heads", "n_kv_heads"), [(6, 3), (6, 2), (6, 1), (6, 6), (5, 5), (5, 1), (1, 5)])
def test_query_head_h_reads_key_head_h_by_groups(n_heads: int, n_kv_heads: int, batch: tuple[int, ...]) -> None:
    q, k = ones(*batch, n_heads, 2, 3), ones(*batch, n_kv_heads, 5, 3)
    v = np.broadcast_to(np.arange(n_kv_heads, dtype=float)[:, None, None], (*batch, n_kv_heads, 5, 7))
    out, _ = attend(q, k, v)
    heads = max(n_heads, n_kv_heads)
    for h in range(heads):
        np.testing.assert_allclose(out[..., h, :, :], h // (heads // n_kv_heads), rtol=1e-15)


@pytest.mark.parametrize(("n_heads", "n_kv_heads"), [(5, 2), (5, 3), (3, 5), (2, 4), (7, 0)])
@pytest.mark.parametrize("batch", [(1,), (2,), (2, 3)], ids=str)
def test_groups_that_do_not_divide(n_heads: int, n_kv_heads: int, batch: tuple[int, ...]) -> None:
    text = rf"^{SDPA}k and v: expected a number of key/value heads \(G\) that divides the {n_heads} heads \(H\) of q "
    with pytest.raises(ValueError, match=text):
        attend_heads(n_heads, n_kv_heads, batch=batch)


def test_a_batch_and_a_head_that_do_not_fit_are_both_named() -> None:
    with pytest.raises(ValueError, match=r"(?s)2 arguments do not fit.*batch axes that broadcast.*that divides the 5 "):
        attend(ones(11, 5, 2, 3), ones(13, 3, 5, 3), ones(13, 3, 5, 7))


# ---------------------------------------------------------------------------------------------- mask and bias
MASK_TYPES: dict[str, tuple[Any, str]] = {
    "True": (True, "mask: expected a bool array or a Mask, got True; causal=True is the causal mask; None is no mask"),
    "np.False_": (
        np.False_,
        "mask: expected a bool array or a Mask, got False; causal=True is the causal mask; None is no mask",
    ),
    "ints": (
        np.ones((2, 5), np.int64),
        (
            "mask: expected bool, True = may attend, got dtype int64; "
            "pass mask.astype(bool) if nonzero means may attend, or bias=mask if it is to be added to the scores"
        ),
    ),
    "string": (
        "causal",
        ("mask: expected a bool array or a Mask, got str 'causal'; causal=True, or a mask of headwise.masks"),
    ),
    "masked": (
        np.ma.array(np.ones((2, 5), bool)),
        (
            "mask: expected a plain array, got a numpy.ma masked array, whose hidden data would be used; "
            "pass mask.filled(0), and say which keys count by mask=masks.keys(valid)"
        ),
    ),
}


@pytest.mark.parametrize(("mask", "text"), MASK_TYPES.values(), ids=MASK_TYPES)
def test_masks_of_the_wrong_kind(mask: Any, text: str) -> None:
    with pytest.raises(TypeError, match=exactly(SDPA + text)):
        attend(mask=mask)


@pytest.mark.parametrize("shape", [(), (1,), (5,), (1, 5), (2, 1), (2, 5)], ids=str)
def test_masks_that_broadcast(shape: tuple[int, ...]) -> None:
    _, weights = attend(mask=ones(*shape, dtype=bool))
    np.testing.assert_allclose(weights, 0.2, rtol=1e-15)


def test_a_nested_list_of_bools_is_a_mask() -> None:
    _, weights = attend(mask=[[True, False, False, False, True]])
    np.testing.assert_allclose(weights, [[0.5, 0, 0, 0, 0.5]] * 2, rtol=1e-15)


def test_a_mask_object_that_does_not_fit() -> None:
    text = (
        "lengths: expected (B) against the batch axes of the scores (2, 5): (), got (3,); "
        "it holds for items, never for heads; size 1 on a batch axis, or none, holds for all items"
    )
    with pytest.raises(ValueError, match=exactly(SDPA + text)):
        attend(mask=masks.lengths([1, 2, 3]))


BOOLEAN_BIAS = (
    "bias: expected a float array that is added to the scores, got dtype bool; a bool array is a mask: pass mask=bias"
)
ADD_OR_MASK = "pass bias.astype(float) to add it, or mask=bias.astype(bool) if it says who may attend"
BIAS_TYPES: dict[str, tuple[Any, str]] = {
    "bools": (np.ones((2, 5), bool), BOOLEAN_BIAS),
    "True": (True, BOOLEAN_BIAS),
    "ints": (
        np.ones((2, 5), np.int64),
        f"bias: expected a float array that is added to the scores, got dtype int64; {ADD_OR_MASK}",
    ),
    "complex": (
        np.ones((2, 5), complex),
        f"bias: expected a float array that is added to the scores, got dtype complex128; {ADD_OR_MASK}",
    ),
    "strings": ("alibi", f"bias: expected a float array that is added to the scores, got dtype <U5; {ADD_OR_MASK}"),
    "masked": (
        np.ma.array(np.ones((2, 5))),
        (
            "bias: expected a plain array, got a numpy.ma masked array, whose hidden data would be used; "
            "pass bias.filled(0), and say which keys count by mask=masks.keys(valid)"
        ),
    ),
}


@pytest.mark.parametrize(("bias", "text"), BIAS_TYPES.values(), ids=BIAS_TYPES)
def test_biases_of_the_wrong_kind(bias: Any, text: str) -> None:
    with pytest.raises(TypeError, match=exactly(SDPA + text)):
        attend(bias=bias)


@pytest.mark.parametrize("dtype", [F16, BFLOAT16, F32, F64, ">f4"], ids=str)
@pytest.mark.parametrize("shape", [(), (5,), (2, 1), (2, 5)], ids=str)
def test_biases_that_broadcast(shape: tuple[int, ...], dtype: Any) -> None:
    _, weights = attend(bias=ones(*shape, dtype=dtype))
    np.testing.assert_allclose(weights, 0.2, rtol=1e-15)


def test_a_bias_never_enlarges_the_scores() -> None:
    text = (
        "bias: expected a shape that broadcasts to (n_q, n_k) = (2, 5), got (3, 2, 5); a bias never enlarges the scores"
    )
    with pytest.raises(ValueError, match=exactly(SDPA + text)):
        attend(bias=ones(3, 2, 5))


def test_a_bias_object_that_does_not_fit() -> None:
    with pytest.raises(
        ValueError, match=exactly(f"{SDPA}slopes: expected one number per head, shape (H,) = (1,), got (3,)")
    ):
        attend(bias=hw.alibi(ones(3)))


def test_a_mask_given_as_bias_is_refused() -> None:
    text = "bias: expected a bias, got the mask causal() & lengths(3); pass it as mask="
    with pytest.raises(TypeError, match=exactly(SDPA + text)):
        attend(bias=masks.causal() & masks.lengths(3))


def test_a_bias_object_given_as_mask_is_refused() -> None:
    with pytest.raises(
        TypeError, match=exactly(f"{SDPA}mask: expected a mask, got the bias alibi([0.5]); pass it as bias=")
    ):
        attend(mask=hw.alibi([0.5]))


def test_objects_are_not_held_against_an_unknown_score_shape() -> None:
    with pytest.raises(ValueError, match=r"^scaled_dot_product_attention: k: expected [^\n]*$"):
        attend(k=ones(5, 7), mask=masks.lengths([1, 2]), bias=hw.alibi([1.0, 2.0]))


@pytest.mark.parametrize(
    ("q", "sinks", "text"),
    [
        (Q, ones(2), "sinks: expected one number per head, shape (H,) = (1,), got (2,)"),
        (Q, 1.0, "sinks: expected one number per head, shape (H,) = (1,), got ()"),
        (ones(3, 2, 3), ones(1), "sinks: expected one number per head, shape (H,) = (3,), got (1,)"),
        (ones(3, 2, 3), ones(3, 1), "sinks: expected one number per head, shape (H,) = (3,), got (3, 1)"),
        (ones(11, 3, 2, 3), ones(11), "sinks: expected one number per head, shape (H,) = (3,), got (11,)"),
    ],
)
def test_sinks_that_do_not_fit(q: Any, sinks: Any, text: str) -> None:
    with pytest.raises(ValueError, match=exactly(SDPA + text)):
        attend(q, sinks=sinks)


def test_sinks_are_real_numbers() -> None:
    text = f"sinks: expected {REAL}, got dtype <U1; pass np.asarray(sinks, dtype=np.float64)"
    with pytest.raises(TypeError, match=exactly(SDPA + text)):
        attend(sinks=["a"])


# ----------------------------------------------------------------------------------------------- options
@pytest.mark.parametrize("scale", [0, -2, 0.25, np.float32(2), np.int8(-3), Fraction(1, 2), np.array(0.5), np.array(3)])
def test_a_finite_scale_is_taken_literally(scale: Any) -> None:
    steps = hw.attention_steps([[2.0]], [[3.0]], [[1.0]], scale=scale)
    assert steps.scores.item() == 6 * float(scale)


def test_no_scale_is_one_over_the_root_of_d_k() -> None:
    assert hw.attention_steps(ones(1, 4), ones(1, 4), ones(1, 1)).scores.item() == 2.0
    assert hw.attention_steps(ones(5, 7, 1, 4), ones(5, 7, 2, 4), ones(5, 7, 2, 3)).scores[0, 0, 0, 0] == 2.0
    assert hw.attention_steps(ones(1, 0), ones(1, 0), ones(1, 1)).scores.item() == 0.0


NUMBER = "scale: expected None (1/sqrt(d_k)) or a finite number"
FINITE = "scale: expected None (1/sqrt(d_k)) or a finite number"
CAP = "softcap: expected None (no cap) or a number above 0 that is finite in"
PROBABILITY = "dropout: expected a probability from 0 to 1"
SEED = "rng: expected a seed (integer) or a numpy.random.Generator"
CAUSAL = "causal: expected True or False"
OTHERWISE = "masks.causal(offset) aligns otherwise"

OPTION_VALUES: list[tuple[dict[str, Any], str]] = [
    ({"scale": np.nan}, f"{FINITE}, got nan"),
    ({"scale": np.inf}, f"{FINITE}, got inf"),
    ({"scale": np.array(-np.inf)}, f"{FINITE}, got -inf"),
    ({"scale": 10**400}, f"{NUMBER}, got an integer beyond the range of float"),
    ({"softcap": 0}, f"{CAP} float64, got 0.0; leave it out for no cap"),
    ({"softcap": -3}, f"{CAP} float64, got -3.0"),
    ({"softcap": np.nan}, f"{CAP} float64, got nan"),
    ({"softcap": np.inf}, f"{CAP} float64, got inf"),
    ({"softcap": 10**400}, f"{CAP} float64, got an integer beyond the range of float"),
    ({"dropout": -0.5, "rng": 0}, f"{PROBABILITY}, got -0.5"),
    ({"dropout": 1.5, "rng": 0}, f"{PROBABILITY}, got 1.5"),
    ({"dropout": np.nan}, f"{PROBABILITY}, got nan"),
    (
        {"dropout": 0.5},
        (
            "rng: expected a seed or a numpy.random.Generator where dropout > 0, got None; "
            "pass rng=0 (a seed) or rng=np.random.default_rng()"
        ),
    ),
    ({"rng": -1}, f"{SEED} of at least 0, got -1"),
]
OPTION_TYPES: list[tuple[dict[str, Any], str]] = [
    ({"scale": True}, f"{NUMBER}, got bool True"),
    ({"scale": np.True_}, f"{NUMBER}, got {type(np.True_).__name__} {np.True_!r}"),
    ({"scale": "0.5"}, f"{NUMBER}, got str '0.5'"),
    ({"scale": 1j}, f"{NUMBER}, got complex 1j"),
    ({"scale": [0.5]}, f"{NUMBER}, got list [0.5]"),
    ({"scale": np.ones(1)}, f"{NUMBER}, got ndarray array([1.])"),
    ({"softcap": True}, f"{CAP} float64, got bool True"),
    ({"softcap": "30"}, f"{CAP} float64, got str '30'"),
    ({"dropout": True, "rng": 0}, f"{PROBABILITY}, got bool True"),
    ({"dropout": "0.1", "rng": 0}, f"{PROBABILITY}, got str '0.1'"),
    ({"dropout": None}, f"{PROBABILITY}, got NoneType None"),
    ({"rng": True}, f"{SEED}, got bool True"),
    ({"rng": "x"}, f"{SEED}, got str 'x'"),
    ({"rng": 1.5}, f"{SEED}, got float 1.5"),
    ({"rng": [1, 2]}, f"{SEED}, got list [1, 2]"),
    ({"causal": 1}, f"{CAUSAL}, got int 1; {OTHERWISE}"),
    ({"causal": "lower_right"}, f"{CAUSAL}, got str 'lower_right'; {OTHERWISE}"),
    ({"causal": None}, f"{CAUSAL}, got NoneType None; {OTHERWISE}"),
]


@pytest.mark.parametrize(("options", "text"), OPTION_VALUES, ids=[str(options) for options, _ in OPTION_VALUES])
def test_options_out_of_range(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=exactly(SDPA + text)):
        attend(**options)


@pytest.mark.parametrize(("options", "text"), OPTION_TYPES, ids=[str(options) for options, _ in OPTION_TYPES])
def test_options_of_the_wrong_kind(options: dict[str, Any], text: str) -> None:
    with pytest.raises(TypeError, match=exactly(SDPA + text)):
        attend(**options)


@pytest.mark.parametrize("generator", [np.random.RandomState(0), np.random.PCG64(0)], ids=["RandomState", "PCG64"])
def test_other_sources_of_randomness(generator: Any) -> None:
    with pytest.raises(TypeError, match=f"^{re.escape(SDPA + SEED)}, got {type(generator).__name__} "):
        attend(dropout=0.5, rng=generator)


@pytest.mark.parametrize("dtype", [F32, F16, BFLOAT16], ids=["float32", "float16", "bfloat16"])
@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"softcap": 1e39}, f"{CAP} float32, got 1e+39"),
        ({"softcap": 1e-46}, f"{CAP} float32, got 1e-46; 1.2e-38 is the smallest that keeps its digits"),
        ({"sinks": [1e300]}, "sinks: expected numbers that are finite in float32, or -inf, got 1e+300"),
    ],
    ids=["softcap", "tiny softcap", "sinks"],
)
def test_options_beyond_the_computing_dtype(options: dict[str, Any], text: str, dtype: Any) -> None:
    with pytest.raises(ValueError, match=exactly(SDPA + text)):
        attend(*(array.astype(dtype) for array in (Q, K, V)), **options)


def test_options_that_only_the_wider_dtype_holds() -> None:
    _, weights = attend(scale=1e39, softcap=1e39)
    np.testing.assert_allclose(weights, 0.2, rtol=1e-15)


@pytest.mark.parametrize("seed", [0, 2**63, 2**128 + 1])
def test_seeds_are_those_of_numpy(seed: int) -> None:
    faults = Faults("f")
    rng = shapes.generator(faults, "rng", seed)
    assert faults.found == []
    assert rng is not None
    assert rng.random() == np.random.default_rng(seed).random()


def test_a_generator_is_taken_as_it_is() -> None:
    rng = np.random.default_rng(0)
    assert shapes.generator(Faults("f"), "rng", rng) is rng


@pytest.mark.parametrize("dtype", [F32, F64], ids=["float32", "float64"])
def test_the_limits_of_the_computing_dtype_are_within(dtype: Any) -> None:
    limits = np.finfo(dtype)
    arrays = [array.astype(dtype) for array in (Q * 0, K, V)]
    for options in ({"scale": float(limits.max)}, {"softcap": float(limits.max)}, {"softcap": float(limits.tiny)}):
        out, _ = attend(*arrays, **options)
        np.testing.assert_allclose(out, 1, rtol=1e-6)


def test_what_cannot_be_printed_is_refused_all_the_same() -> None:
    with pytest.raises(TypeError, match=r"scale: expected None .* or a finite number, got list \(not printable\)"):
        attend(scale=[10**5000])


def test_a_bfloat16_number_is_a_number() -> None:
    np.testing.assert_array_equal(attend(scale=ml_dtypes.bfloat16(0.5))[0], attend(scale=0.5)[0])


@pytest.mark.parametrize("dtype", [F16, F32, F64], ids=["float16", "float32", "float64"])
@pytest.mark.parametrize("scale", [1e-46, 5e-324, 0, -1e-46])
def test_a_tiny_scale_is_right_whatever_the_callers_error_state(scale: float, dtype: Any) -> None:
    arrays = [array.astype(dtype) for array in (Q, K, V)]
    with np.errstate(all="raise"):
        out, _ = attend(*arrays, scale=scale)
    np.testing.assert_allclose(np.asarray(out, F64), 1, rtol=1e-3)


@pytest.mark.parametrize("options", [{"sinks": [1e39]}, {"softcap": 1e39}, {"softcap": 1e-46}], ids=str)
def test_a_refusal_is_ours_whatever_the_callers_error_state(options: dict[str, float]) -> None:
    with np.errstate(all="raise"), pytest.raises(ValueError, match=f"^{SDPA}{next(iter(options))}: expected "):
        attend(*(array.astype(F32) for array in (Q, K, V)), **options)


@pytest.mark.parametrize("rng", [0, 3, np.int64(3), np.array(3), np.random.default_rng(5)], ids=str)
def test_sources_of_dropout(rng: Any) -> None:
    _, weights = attend(dropout=0.5, rng=rng)
    np.testing.assert_allclose(weights, 0.2, rtol=1e-15)


@pytest.mark.parametrize("dropout", [0, 0.0, np.float32(0), np.array(0.0), 1, 1.0, np.array(1)], ids=repr)
def test_the_ends_of_dropout(dropout: Any) -> None:
    out, _ = attend(dropout=dropout, rng=0)
    np.testing.assert_allclose(out, 1 - float(dropout), rtol=1e-15)


@pytest.mark.parametrize("causal", [True, np.True_], ids=repr)
def test_causal_is_a_bool(causal: Any) -> None:
    _, weights = attend(causal=causal)
    np.testing.assert_allclose(weights, [[0.25] * 4 + [0], [0.2] * 5], rtol=1e-15)


def test_long_values_are_cut_short() -> None:
    with pytest.raises(TypeError, match=r"got str '" + "x" * 56 + r"\.\.\.$"):
        attend(scale="x" * 1000)


def test_an_error_names_an_array_in_one_line() -> None:
    with pytest.raises(TypeError, match="scale: expected") as caught:
        attend(scale=np.ones((5, 5)))
    assert "\n" not in str(caught.value)


# ---------------------------------------------------------------------------------------------- integers
@pytest.mark.parametrize(
    ("value", "low", "text"),
    [
        (1.0, None, "f: n: expected a count, got float 1.0"),
        (True, None, "f: n: expected a count, got bool True"),
        ("3", 0, "f: n: expected a count, got str '3'"),
    ],
)
def test_integers_of_the_wrong_kind(value: Any, low: int | None, text: str) -> None:
    faults = Faults("f")
    assert shapes.integer(faults, "n", value, low, "a count") == 0
    with pytest.raises(TypeError, match=exactly(text)):
        faults.raise_any()


def test_integers_too_small() -> None:
    faults = Faults("f")
    assert shapes.integer(faults, "n", -1, 0, "a count") == 0
    with pytest.raises(ValueError, match=exactly("f: n: expected a count of at least 0, got -1")):
        faults.raise_any()


@pytest.mark.parametrize("value", [10**30, -(10**30), 2**62 + 1])
def test_integers_too_far_from_zero(value: int) -> None:
    faults = Faults("f")
    assert shapes.integer(faults, "n", value) == 0
    with pytest.raises(ValueError, match=f"^f: n: expected an integer.* 2\\*\\*62, got {value}$"):
        faults.raise_any()


@pytest.mark.parametrize("value", [10**5000, -(10**5000)], ids=["above", "below"])
@pytest.mark.parametrize("low", [None, 0], ids=["any", "low"])
def test_integers_too_long_to_print(value: int, low: int | None) -> None:
    faults = Faults("f")
    assert shapes.integer(faults, "n", value, low) == 0
    with pytest.raises(ValueError, match=r"^f: n: expected an integer .*, got "):
        faults.raise_any()
    assert len(str(faults.found[0])) < 200


def test_a_number_far_below_zero_is_not_called_too_large() -> None:
    faults = Faults("f")
    shapes.integer(faults, "n", -(10**30))
    assert "of at most" not in faults.found[0].expected


@pytest.mark.parametrize("value", [2**62, -(2**62), np.uint64(7), np.array(7), 0])
def test_integers_as_they_are(value: Any) -> None:
    faults = Faults("f")
    assert shapes.integer(faults, "n", value) == int(value)
    assert faults.found == []


# --------------------------------------------------------------------------------------- per-item arrays
def misfit(values: Any, scores: tuple[int, ...], axis: str = "") -> list[Fault]:
    return PerItem("x", np.asarray(values), axis).misfits(scores)


@pytest.mark.parametrize(
    ("shape", "scores", "axis"),
    [
        ((), (2, 3), ""),
        ((), (7, 5, 2, 3), ""),
        ((5,), (5, 2, 3), ""),
        ((1,), (5, 2, 3), ""),
        ((7,), (7, 5, 2, 3), ""),
        ((1,), (7, 5, 2, 3), ""),
        ((7,), (11, 7, 5, 2, 3), ""),
        ((11, 1), (11, 7, 5, 2, 3), ""),
        ((11, 7), (11, 7, 5, 2, 3), ""),
        ((3,), (2, 3), "n_k"),
        ((3,), (7, 5, 2, 3), "n_k"),
        ((7, 3), (7, 5, 2, 3), "n_k"),
        ((2,), (2, 3), "n_q"),
        ((11, 7, 2), (11, 7, 5, 2, 3), "n_q"),
    ],
)
def test_per_item_arrays_that_fit(shape: tuple[int, ...], scores: tuple[int, ...], axis: str) -> None:
    assert misfit(np.zeros(shape, int), scores, axis) == []


@pytest.mark.parametrize(
    ("shape", "scores", "axis", "expected"),
    [
        ((1,), (2, 3), "", "(B) against the batch axes of the scores (2, 3): ()"),
        ((2,), (5, 2, 3), "", "(B) against the batch axes of the scores (5, 2, 3): (5,)"),
        ((5,), (7, 5, 2, 3), "", "(B) against the batch axes of the scores (7, 5, 2, 3): (7,)"),  # per head
        ((7, 5), (7, 5, 2, 3), "", "(B) against the batch axes of the scores (7, 5, 2, 3): (7,)"),
        ((5, 3), (7, 5, 2, 3), "n_k", "(B, n_k) against the batch axes of the scores (7, 5, 2, 3): (7, 3)"),
        ((2,), (2, 3), "n_k", "(B, n_k) against the batch axes of the scores (2, 3): (3,)"),
        ((1,), (2, 3), "n_k", "(B, n_k) against the batch axes of the scores (2, 3): (3,)"),  # keys are never stretched
        ((3,), (2, 3), "n_q", "(B, n_q) against the batch axes of the scores (2, 3): (2,)"),
        ((11,), (11, 7, 5, 2, 3), "", "(B) against the batch axes of the scores (11, 7, 5, 2, 3): (11, 7)"),
    ],
)
def test_per_item_arrays_that_do_not_fit(
    shape: tuple[int, ...], scores: tuple[int, ...], axis: str, expected: str
) -> None:
    remedy = "it holds for items, never for heads; size 1 on a batch axis, or none, holds for all items"
    assert misfit(np.zeros(shape, int), scores, axis) == [Fault("x", expected, shapes.words(shape), remedy)]


def values_of(shape: tuple[int, ...], scores: tuple[int, ...], axis: str = "") -> Iterator[tuple[Any, Any]]:
    """For every item and head: what the array says of it alone, and the same place of what it says of all."""
    item = PerItem("x", np.arange(np.prod(shape, dtype=int)).reshape(shape), axis)
    rows, cols = slice(0, scores[-2]), slice(1, scores[-1])
    whole = item.of(scores, None, rows, cols)
    everywhere = np.broadcast_to(whole, (*scores[:-2], scores[-2], scores[-1] - 1))
    for lead in np.ndindex(*scores[:-2]):
        alone = np.broadcast_to(item.of(scores, lead, rows, cols), everywhere.shape[-2:])
        yield alone, everywhere[lead]


@pytest.mark.parametrize(
    ("shape", "scores", "axis"),
    [
        ((), (2, 3), ""),
        ((5,), (5, 2, 3), ""),
        ((7,), (7, 5, 2, 3), ""),
        ((7,), (2, 7, 5, 2, 3), ""),
        ((2, 1), (2, 7, 5, 2, 3), ""),
        ((7, 3), (7, 5, 2, 3), "n_k"),
        ((3,), (7, 5, 2, 3), "n_k"),
        ((7, 2), (7, 5, 2, 3), "n_q"),
        ((2,), (5, 2, 3), "n_q"),
    ],
)
def test_one_item_is_a_part_of_all(shape: tuple[int, ...], scores: tuple[int, ...], axis: str) -> None:
    for alone, part in values_of(shape, scores, axis):
        np.testing.assert_array_equal(alone, part)


def test_per_item_values_by_hand() -> None:
    keys = PerItem("x", np.array([[1, 2, 3], [4, 5, 6]]), "n_k")
    assert keys.lead == (2,)
    assert keys.of((2, 5, 7, 3), (1, 4), slice(0, 7), slice(1, 3)).tolist() == [[5, 6]]
    assert keys.of((2, 5, 7, 3), None, slice(0, 7), slice(0, 1)).tolist() == [[[[1]]], [[[4]]]]
    queries = PerItem("x", np.array([[1, 2, 3], [4, 5, 6]]), "n_q")
    assert queries.of((2, 3, 7), (0,), slice(1, 3), slice(0, 7)).tolist() == [[2], [3]]
    single = PerItem("x", np.array([8, 9]))
    assert single.lead == (2,)
    assert single.of((2, 5, 7, 3), (1, 0), slice(0, 7), slice(0, 3)).tolist() == [[9]]


def test_per_item_values_are_our_own() -> None:
    given = np.array([1, 2])
    item = PerItem("x", given)
    given[:] = 7
    assert item.values.tolist() == [1, 2]
    assert not item.values.flags.writeable


def items(values: Any, axis: str = "", low: int | None = None) -> PerItem:
    faults = Faults("f")
    item = shapes.item_integers(faults, "x", values, axis, low)
    faults.raise_any()
    return item


@pytest.mark.parametrize("values", [[1, 2], (1, 2), np.array([1, 2], np.uint8), np.array([1, 2], ">i4")], ids=repr)
def test_item_integers_are_int64(values: Any) -> None:
    item = items(values)
    assert item.values.dtype == np.int64
    assert item.values.tolist() == [1, 2]


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ([1.0], "f: x: expected integers, got dtype float64; pass np.asarray(x, dtype=np.int64)"),
        ([True], "f: x: expected integers, got dtype bool"),
        (["1"], "f: x: expected integers, got dtype <U1; pass np.asarray(x, dtype=np.int64)"),
        (
            np.ma.array([1]),
            (
                "f: x: expected a plain array, got a numpy.ma masked array, whose hidden data would be used; "
                "pass x.filled(0), and say which keys count by mask=masks.keys(valid)"
            ),
        ),
    ],
    ids=["float", "bool", "str", "masked"],
)
def test_item_integers_of_the_wrong_kind(values: Any, text: str) -> None:
    with pytest.raises(TypeError, match=exactly(text)):
        items(values)


@pytest.mark.parametrize(
    ("values", "axis", "low", "text"),
    [
        (5, "n_k", None, "f: x: expected (B, n_k) or (n_k,), got a single number"),
        ([3, -1], "", 0, "f: x: expected integers of at least 0, got -1 to 3"),
        ([3, 2**62 + 1], "", None, f"f: x: expected integers within 62 bits, got 3 to {2**62 + 1}"),
        ([3, -(2**62) - 1], "", None, f"f: x: expected integers within 62 bits, got {-(2**62) - 1} to 3"),
    ],
)
def test_item_integers_out_of_range(values: Any, axis: str, low: int | None, text: str) -> None:
    with pytest.raises(ValueError, match=exactly(text)):
        items(values, axis, low)


def test_item_integers_too_large_are_not_called_too_small() -> None:
    text = f"f: x: expected integers within 62 bits, got {2**64 - 1} to {2**64 - 1}"
    with pytest.raises(ValueError, match=exactly(text)):
        items(np.array([2**64 - 1], np.uint64), low=0)


def test_item_integers_of_no_items() -> None:
    assert items(np.zeros(0, int), low=0).values.shape == (0,)


# ------------------------------------------------------------------------------------------- diagonals of a tile
SIZES = [(1, 1), (1, 5), (5, 1), (2, 3), (4, 4), (3, 7)]


def per_item(values: Any) -> PerItem:
    return PerItem("offset", np.asarray(values, np.int64))


def distances_by_hand(rows: slice, cols: slice, own: int) -> list[list[int]]:
    return [[j - (i + own) for j in range(cols.start, cols.stop)] for i in range(rows.start, rows.stop)]


@pytest.mark.parametrize("corner", [(0, 0), (3, 1), (1, 6)], ids=str)
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_diagonals_and_their_spread_are_the_distances(size: tuple[int, int], corner: tuple[int, int]) -> None:
    rows, cols = (slice(first, first + n) for first, n in zip(corner, size, strict=True))
    for offset, own in ((None, 20 - 10), (per_item(4), 4), (per_item(-3), -3)):
        line = shapes.diagonals(offset, (10, 20), (), rows, cols)
        wanted = distances_by_hand(rows, cols, own)
        assert line.ravel().tolist() == [*wanted[0][::-1], *(row[0] for row in wanted[1:])]
        assert shapes.spread(line, *size).tolist() == wanted
        assert shapes.distances(offset, (10, 20), (), rows, cols).tolist() == wanted


@pytest.mark.parametrize(
    ("scores", "offsets"),
    [
        ((2, 3, 10, 20), [1, 7]),
        ((2, 3, 10, 20), [5]),
        ((2, 10, 20), [1, 7]),
        ((2, 3, 4, 10, 20), [[1, 2, 3], [4, 5, 6]]),
        ((2, 3, 4, 10, 20), [[1], [4]]),
    ],
    ids=str,
)
def test_distances_go_with_the_item(scores: tuple[int, ...], offsets: Any) -> None:
    rows, cols, batch = slice(2, 5), slice(3, 8), shapes.batch_axes(scores)
    each = np.broadcast_to(np.array(offsets), batch)
    whole = shapes.distances(per_item(offsets), scores, None, rows, cols)
    whole = np.broadcast_to(whole, (*scores[:-2], 3, 5))
    for lead in np.ndindex(scores[:-2]):
        wanted = distances_by_hand(rows, cols, int(each[lead[: len(batch)]]))
        assert shapes.distances(per_item(offsets), scores, lead, rows, cols).tolist() == wanted
        assert whole[lead].tolist() == wanted


@pytest.mark.parametrize("size", [(0, 3), (3, 0), (0, 0)], ids=str)
def test_no_distances_in_an_empty_tile(size: tuple[int, int]) -> None:
    empty = shapes.distances(None, (5, 5), (), slice(0, size[0]), slice(0, size[1]))
    assert empty.shape == size
    assert empty.dtype == np.int64


@pytest.mark.parametrize("lead", [(), (2,), (2, 3)], ids=str)
@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("dtype", [np.int64, np.float32, np.uint32], ids=lambda dtype: dtype.__name__)
def test_spread_is_a_read_only_view(dtype: Any, size: tuple[int, int], lead: tuple[int, ...]) -> None:
    n_rows, n_cols = size
    line = ones(*lead, n_rows + n_cols - 1, dtype=dtype).copy()
    line[...] = np.arange(line.size).reshape(line.shape)
    for values in (line, np.repeat(line, 2, axis=-1)[..., ::2], line[..., ::-1].copy()[..., ::-1]):
        tile = shapes.spread(values, *size)
        assert tile.shape == (*lead, *size)
        assert tile.dtype == dtype
        assert np.shares_memory(tile, values)
        assert not tile.flags.writeable
        for at in np.ndindex(*lead, *size):
            *where, i, j = at
            assert tile[at] == line[(*where, n_cols - 1 - j + i)]


def test_spread_of_stretched_lines() -> None:
    line = np.broadcast_to(np.arange(4), (3, 4))
    np.testing.assert_array_equal(shapes.spread(line, 2, 3), np.broadcast_to([[2, 1, 0], [3, 2, 1]], (3, 2, 3)))
