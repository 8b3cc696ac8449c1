"""The dimension letters, and the words of every error about q, k, v, mask, bias and options.

Knows what fits together; does not know what attention computes.
"""

from __future__ import annotations  # numpy.random is loaded when it is used, not when it is named

import numbers
import operator
from collections.abc import Collection
from itertools import zip_longest
from math import prod
from typing import Any, NamedTuple, NoReturn, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Shape = tuple[int, ...]
Span = tuple[int, int] | slice | range  # of rows or columns of a tile

FLOAT32, FLOAT64 = np.dtype(np.float32), np.dtype(np.float64)
MOST_AXES = 24  # NumPy has 32 in some versions, and grouped heads take one more
WIDEST_INT = 2**62  # positions, offsets and their sums stay inside int64


# ------------------------------------------------------------------------------------------ errors
class Fault(NamedTuple):
    """One thing that is wrong with one argument."""

    argument: str
    expected: str
    got: str
    remedy: str = ""
    error: type[Exception] = ValueError

    def __str__(self) -> str:
        remedy = f"; {self.remedy}" if self.remedy else ""
        return f"{self.argument}: expected {self.expected}, got {self.got}{remedy}"


class Faults:
    """What is wrong with one call, gathered so that all of it is said at once."""

    def __init__(self, function: str) -> None:
        self.function = function
        self.found: list[Fault] = []

    def value(self, argument: str, expected: str, got: str, remedy: str = "") -> None:
        self.found.append(Fault(argument, expected, got, remedy))

    def type(self, argument: str, expected: str, got: str, remedy: str = "") -> None:
        self.found.append(Fault(argument, expected, got, remedy, TypeError))

    def advise(self, arguments: Collection[str], remedy: str) -> None:
        """Give this remedy with the first fault of these arguments, in place of what is said with all of theirs."""
        theirs = [i for i, fault in enumerate(self.found) if fault.argument in arguments]
        for i in theirs:
            self.found[i] = self.found[i]._replace(remedy=remedy if i == theirs[0] else "")

    def raise_any(self) -> None:
        """Raise what was gathered: TypeError where any of it is one, else ValueError."""
        if self.found:
            self._raise()

    def _raise(self) -> NoReturn:
        error = TypeError if any(fault.error is TypeError for fault in self.found) else ValueError
        if len(self.found) == 1:
            raise error(f"{self.function}: {self.found[0]}")
        lines = "".join(f"\n  {fault}" for fault in self.found[:12])
        lines += f"\n  and {len(self.found) - 12} more" if len(self.found) > 12 else ""
        raise error(f"{self.function}: {len(self.found)} arguments do not fit{lines}")


@runtime_checkable
class FitsScores(Protocol):
    """A mask or bias that is not an array: it knows which of both it is, and what keeps it from fitting the scores."""

    @property
    def role(self) -> str: ...

    def misfits(self, scores: Shape) -> list[Fault]: ...

    def dense(self, shape: Shape) -> Array: ...


# --------------------------------------------------------------------------------- shapes and letters
def words(shape: Shape) -> str:
    """The shape as it is written in an error: ``(2, 3)``, ``(4,)``, ``()``."""
    return str(tuple(int(size) for size in shape))


def shown(value: Any) -> str:
    """The beginning of a value's repr, on one line."""
    try:
        text = "".join(c if c.isprintable() else repr(c)[1:-1] for c in " ".join(repr(value).split())[:100])
        return text if len(text) <= 60 else f"{text[:57]}..."
    except Exception:  # a number of more digits than Python prints, a repr that fails
        return "(not printable)"


def given_as(value: Any) -> str:
    """The type and the beginning of a value as it is written in an error, on one line."""
    return f"{type(value).__name__} {shown(value)}"


def letters(scores: Shape) -> str:
    """The letters of a score shape: ``(n_q, n_k)``, ``(H, n_q, n_k)``, ``(B, H, n_q, n_k)``, ``(..., H, n_q, n_k)``."""
    lead = {2: "", 3: "H, ", 4: "B, H, "}.get(len(scores), "..., H, ")
    return f"({lead}n_q, n_k)"


def batch_axes(scores: Shape) -> Shape:
    """The axes that per-item arrays broadcast against: all but heads, where heads are told apart from the batch."""
    return scores[:-3] if len(scores) >= 4 else scores[:-2]


def broadcasts(shape: Shape, target: Shape) -> bool:
    """Whether NumPy stretches ``shape`` to exactly ``target``, without enlarging it."""
    if len(shape) > len(target):
        return False
    return all(a in (1, b) for a, b in zip(reversed(shape), reversed(target), strict=False))


def broadcast_all(*shapes: Shape) -> Shape | None:
    """The shape that all stretch to, or None where they do not."""
    whole = []
    for sizes in zip_longest(*(reversed(shape) for shape in shapes), fillvalue=1):
        others = {size for size in sizes if size != 1}
        if len(others) > 1:
            return None
        whole.append(others.pop() if others else 1)
    return tuple(reversed(whole))


# ------------------------------------------------------------------------------------------- dtypes
def computing_dtype(dtype: np.dtype[Any]) -> np.dtype[Any] | None:
    """float64 for float64, integers and bool; float32 for float32 and the half types; None for anything else."""
    if dtype.kind == "f" and dtype.itemsize in (2, 4, 8):
        return FLOAT64 if dtype.itemsize == 8 else FLOAT32
    if dtype.kind in "biu":
        return FLOAT64
    return FLOAT32 if dtype.name == "bfloat16" else None


def product_dtype(computing: np.dtype[Any], scale: float) -> np.dtype[Any]:
    """The type in which queries are scaled and multiplied: float64 where the scale would cost float32 its digits."""
    far = bool(scale) and not 2.0**-60 <= abs(scale) <= 2.0**60
    return FLOAT64 if far else computing


def as_dtype(x: Array, dtype: Any) -> Array:
    """x in a type; what that cannot hold is inf, without a warning."""
    with np.errstate(all="ignore"):
        return x.astype(dtype, copy=False)


def result_dtype(*dtypes: np.dtype[Any]) -> np.dtype[Any]:
    """The float type that holds all of them; two different half types meet in float32."""
    if any(computing_dtype(dtype) == FLOAT64 for dtype in dtypes):
        return FLOAT64
    first = dtypes[0].newbyteorder("=")
    return first if all(dtype.newbyteorder("=") == first for dtype in dtypes) else FLOAT32


def install_remedy(dtype: Any) -> str:
    """What makes NumPy know a dtype by its name, where another package brings it; empty for any other."""
    brought = isinstance(dtype, str) and dtype == "bfloat16"
    return "pip install ml-dtypes, and import ml_dtypes: NumPy knows the name then" if brought else ""


_REAL = "real numbers (float16, bfloat16, float32, float64, integers or bool)"


def _dtype_remedy(name: str, dtype: np.dtype[Any]) -> str:
    if dtype.kind == "c" and _is_gradient(name):
        return f"the gradient of something real is real: pass {name}.real"
    if dtype.kind == "c":
        return f"complex attention has no agreed meaning: pass {name}.real, or parts of it as more features"
    if dtype.kind == "f":
        return f"pass {name}.astype(np.float64)"
    if dtype.kind == "V" and dtype.names is None and dtype.itemsize == 2:
        return "bfloat16 loses its name in a file of NumPy: save it as float32"
    return f"pass np.asarray({name}, dtype=np.float64)"


def array(faults: Faults, name: str, value: Any) -> Array | None:
    """``value`` as an ndarray of real numbers, or None with the fault noted. Never a copy of an ndarray."""
    given = plain_array(faults, name, value)
    if given is not None and computing_dtype(given.dtype) is None:
        faults.type(name, _REAL, f"dtype {given.dtype}", _dtype_remedy(name, given.dtype))
        return None
    return given


def _is_gradient(name: str) -> bool:
    return name.startswith("d_")


def _few_axes(faults: Faults, name: str, given: Array) -> Array | None:
    if given.ndim <= MOST_AXES:
        return given
    faults.value(name, f"at most {MOST_AXES} axes", str(given.ndim))
    return None


def plain_array(faults: Faults, name: str, value: Any) -> Array | None:
    """``value`` as an ndarray of any dtype, or None with the fault noted."""
    if type(value) is np.ndarray:
        return _few_axes(faults, name, value)
    if isinstance(value, np.ma.MaskedArray):
        remedy = f"pass {name}.filled(0)"
        remedy += "" if _is_gradient(name) else ", and say which keys count by mask=masks.keys(valid)"
        faults.type(name, "a plain array", "a numpy.ma masked array, whose hidden data would be used", remedy)
        return None
    if value is None:
        faults.type(name, "an array", "None")
        return None
    try:
        return _few_axes(faults, name, np.asarray(value))
    except MemoryError:
        raise
    except Exception as error:  # a list of unequal rows, a tensor that needs its gradient detached, ...
        reason = str(error).partition(". ")[0].partition("\n")[0]
        remedy = "pass a NumPy array: rows of one length, in this computer's memory"
        faults.type(name, "an array", f"{type(value).__name__} that NumPy cannot read ({reason})", remedy)
        return None


# ------------------------------------------------------------------------------------------- options
def integer(
    faults: Faults, name: str, value: Any, low: int | None = None, what: str = "an integer", most: int = WIDEST_INT
) -> int:
    """``value`` as an int from ``low`` to ``most``; 0 with the fault noted otherwise."""
    try:
        if isinstance(value, bool | np.bool_):
            raise TypeError
        number = operator.index(value)
    except TypeError:
        faults.type(name, what, given_as(value))
        return 0
    least = -most if low is None else low
    if least <= number <= most:
        return number
    bound = f"at most 2**{most.bit_length() - 1}"
    if number < least:
        bound = f"at least {low}" if low is not None else f"size at most 2**{most.bit_length() - 1}"
    got = str(number) if number.bit_length() < 200 else f"one of {number.bit_length()} bits"
    faults.value(name, f"{what} of {bound}", got)
    return 0


def real(faults: Faults, name: str, value: Any, expected: str) -> float | None:
    """``value`` as a float, or None with the fault noted. An array of no axes counts as a number."""
    if isinstance(value, np.ndarray) and value.ndim == 0:
        value = value[()]
    if isinstance(value, np.generic) and value.dtype.name == "bfloat16":
        value = float(value)  # NumPy's own are numbers.Real, this one does not say so
    if isinstance(value, bool | np.bool_) or not isinstance(value, numbers.Real):
        faults.type(name, expected, given_as(value))
        return None
    try:
        return float(value)
    except OverflowError:
        faults.value(name, expected, "an integer beyond the range of float")
        return None


def flag(faults: Faults, name: str, value: Any, remedy: str = "") -> bool:
    """``value`` as a bool: True or False, nothing that merely counts as one."""
    if isinstance(value, bool | np.bool_):
        return bool(value)
    faults.type(name, "True or False", given_as(value), remedy)
    return False


def generator(faults: Faults, name: str, value: Any) -> np.random.Generator | None:
    """A Generator as it is, or one made from a seed; None with the fault noted."""
    if isinstance(value, np.random.Generator):
        return value
    seen = len(faults.found)
    seed = integer(faults, name, value, 0, "a seed (integer) or a numpy.random.Generator", most=2**4096)
    return np.random.default_rng(seed) if len(faults.found) == seen else None


def checked_scale(faults: Faults, scale: Any, d_k: int) -> float:
    """What multiplies the scores, for None that of heads of width d_k; 0 with the fault noted where it is no number."""
    if scale is None:
        return 1.0 / float(np.sqrt(d_k)) if d_k else 1.0
    expected = "None (1/sqrt(d_k)) or a finite number"
    number = real(faults, "scale", scale, expected)
    if number is not None and not np.isfinite(number):
        faults.value("scale", expected, str(number))
    return number or 0.0


def _softcap(faults: Faults, softcap: Any, dtype: np.dtype[Any]) -> float | None:
    if softcap is None:
        return None
    limits = np.finfo(dtype)
    low, high = float(limits.tiny), float(limits.max)
    expected = f"None (no cap) or a number above 0 that is finite in {dtype}"
    number = real(faults, "softcap", softcap, expected)
    if number is not None and not low <= number <= high:
        remedy = f"{low:.2g} is the smallest that keeps its digits" if 0 < number < low else ""
        faults.value("softcap", expected, str(number), "leave it out for no cap" if number == 0 else remedy)
    return number


def _dropout(faults: Faults, dropout: Any, rng: Any) -> tuple[float, np.random.Generator | None]:
    probability = real(faults, "dropout", dropout, "a probability from 0 to 1")
    if probability is not None and not 0 <= probability <= 1:
        faults.value("dropout", "a probability from 0 to 1", str(probability))
    source = None if rng is None else generator(faults, "rng", rng)
    if rng is None and probability is not None and probability > 0:
        remedy = "pass rng=0 (a seed) or rng=np.random.default_rng()"
        faults.value("rng", "a seed or a numpy.random.Generator where dropout > 0", "None", remedy)
    return probability or 0.0, source


# ---------------------------------------------------------------------- mask, bias, sinks against scores
def mask_misfits(name: str, mask: Array, scores: Shape) -> list[Fault]:
    """What keeps a bool array from masking these scores."""
    if broadcasts(mask.shape, scores):
        return []
    remedy = "size 1 or the full size on every axis; a mask never enlarges the scores"
    batch = batch_axes(scores)
    if batch and mask.shape == (*batch, scores[-1]):
        stretched = "None, " * (len(scores) - 1 - len(batch))
        remedy = f"one row of keys per item is masks.keys(valid), or as an array mask[..., {stretched}:]"
    elif len(scores) >= 4 and mask.shape == (*batch, *scores[-2:]):
        remedy = "give it an axis for the heads: mask[..., None, :, :]"
    return [Fault(name, f"a shape that broadcasts to {letters(scores)} = {words(scores)}", words(mask.shape), remedy)]


def _fitted(faults: Faults, name: str, given: FitsScores, scores: Shape | None) -> FitsScores:
    """A mask or bias object, checked: of the right kind, and fitting the scores where these are known."""
    if given.role != name:
        faults.type(name, f"a {name}", f"the {given.role} {given!r}", f"pass it as {given.role}=")
    elif scores is not None:
        faults.found += given.misfits(scores)
    return given


def score_shape(function: str, given: FitsScores, shape: Any, whole: bool = False) -> Shape:
    """A score shape as a tuple of ints, once a mask or bias is known to fit it; ``whole`` where all of it is built."""
    faults = Faults(function)
    try:
        scores = tuple(operator.index(size) for size in shape)
    except TypeError:
        faults.type("shape", "a score shape (..., n_q, n_k)", given_as(shape))
        faults.raise_any()
    if len(scores) < 2 or min(scores) < 0:
        faults.value("shape", "a score shape (..., n_q, n_k)", shown(scores))
    elif len(scores) > MOST_AXES or max(scores) > WIDEST_INT or (whole and prod(max(1, n) for n in scores) > 2**59):
        faults.value("shape", f"at most {MOST_AXES} axes and 2**59 scores", shown(scores))
    else:
        faults.found += given.misfits(scores)
    faults.raise_any()
    return scores


def _span(faults: Faults, name: str, span: Any, n: int) -> slice:
    """The rows or columns of a tile as a slice of ints."""
    ends = (span.start, span.stop) if isinstance(span, slice | range) else span
    if isinstance(span, slice):
        ends = (0 if span.start is None else span.start, n if span.stop is None else span.stop)
    try:
        first, stop = (operator.index(end) for end in ends)
    except (TypeError, ValueError):
        first, stop = 1, 0  # no pair of integers: no span either
    if getattr(span, "step", None) in (None, 1) and 0 <= first <= stop <= n:
        return slice(first, stop)
    faults.value(name, f"(first, stop) with 0 <= first <= stop <= {n}", shown(span))
    return slice(0, 0)


def _index(faults: Faults, lead: Any, axes: Shape) -> Shape:
    """The index of an item and head as a tuple of ints."""
    try:
        index = tuple(operator.index(i) for i in lead)
        got = shown(index)
    except TypeError:
        index, got = (-1,) * max(1, len(axes)), shown(lead)
    if len(index) != len(axes) or any(not 0 <= i < n for i, n in zip(index, axes, strict=True)):
        faults.value("lead", f"an index into the leading axes {words(axes)}", got)
    return index


def tile_of(
    function: str, given: FitsScores, shape: Any, lead: Any, rows: Any, cols: Any
) -> tuple[Shape, Shape, slice, slice]:
    """The score shape and the place of a tile of one item and head, once a mask or bias is known to fit the shape."""
    scores = score_shape(function, given, shape)
    faults = Faults(function)
    spans = _span(faults, "rows", rows, scores[-2]), _span(faults, "cols", cols, scores[-1])
    index = _index(faults, lead, scores[:-2])
    faults.raise_any()
    return scores, index, *spans


def _mask(faults: Faults, mask: Any, scores: Shape | None) -> Any:
    """The mask, checked: None, an object that fits, or a bool array."""
    if mask is None:
        return None
    if isinstance(mask, FitsScores) and not isinstance(mask, type):
        return _fitted(faults, "mask", mask, scores)
    if isinstance(mask, bool | np.bool_):
        faults.type("mask", "a bool array or a Mask", str(mask), "causal=True is the causal mask; None is no mask")
        return None
    given = _mask_array(faults, mask)
    if given is None:
        return None
    if given.dtype != np.bool_:
        remedy = "pass mask.astype(bool) if nonzero means may attend, or bias=mask if it is to be added to the scores"
        if given.dtype.kind == "f" and (given == -np.inf).any():
            remedy = "it holds -inf, so it is to be added to the scores: pass bias=mask"
        faults.type("mask", "bool, True = may attend", f"dtype {given.dtype}", remedy)
    elif scores is not None:
        faults.found += mask_misfits("mask", given, scores)
    return given


def _mask_array(faults: Faults, mask: Any) -> Array | None:
    """The mask as an array, or None with the fault noted: what is no array is often a mask in other words."""
    expected, remedy = "a bool array or a Mask", ""
    if callable(mask):
        name = getattr(mask, "__name__", "")
        made = name in ("causal", "window", "lengths", "keys", "segments", "positions")
        remedy = f"call it: mask=masks.{name}(...)" if made else "pass a bool array, or a mask of headwise.masks"
    elif isinstance(mask, str):
        remedy = "causal=True, or a mask of headwise.masks"
    elif isinstance(mask, list | tuple) and any(isinstance(part, FitsScores) for part in mask):
        remedy = "masks are combined by & and |"
    if not remedy:
        return plain_array(faults, "mask", mask)
    faults.type("mask", expected, given_as(mask), remedy)
    return None


def _bias(faults: Faults, bias: Any, scores: Shape | None) -> Any:
    """The bias, checked: None, an object that fits, or a float array."""
    if bias is None:
        return None
    if isinstance(bias, FitsScores) and not isinstance(bias, type):
        return _fitted(faults, "bias", bias, scores)
    given = None
    if callable(bias):
        faults.type("bias", "a float array or a bias object", given_as(bias), "pass a float array or hw.alibi(slopes)")
    else:
        given = plain_array(faults, "bias", bias)
    if given is None:
        return None
    if given.dtype.kind in "biu" or computing_dtype(given.dtype) is None:
        boolean = "a bool array is a mask: pass mask=bias"
        integers = "pass bias.astype(float) to add it, or mask=bias.astype(bool) if it says who may attend"
        remedy = boolean if given.dtype.kind == "b" else integers
        faults.type("bias", "a float array that is added to the scores", f"dtype {given.dtype}", remedy)
    elif scores is not None and not broadcasts(given.shape, scores):
        expected = f"a shape that broadcasts to {letters(scores)} = {words(scores)}"
        faults.value("bias", expected, words(given.shape), "a bias never enlarges the scores")
    return given


def per_head_misfits(name: str, given: Array, scores: Shape) -> list[Fault]:
    """What keeps one number per head from fitting these scores: exactly ``(H,)``, ``(1,)`` where there are no heads."""
    n_heads = scores[-3] if len(scores) >= 3 else 1
    if given.shape == (n_heads,):
        return []
    return [Fault(name, f"one number per head, shape (H,) = ({n_heads},)", words(given.shape))]


def _sinks(faults: Faults, sinks: Any, scores: Shape | None, dtype: np.dtype[Any]) -> Array | None:
    given = None if sinks is None else array(faults, "sinks", sinks)
    if given is None or scores is None:
        return given
    faults.found += per_head_misfits("sinks", given, scores)
    with np.errstate(all="ignore"):
        wrong = ~(given.astype(dtype) < np.inf)
    if wrong.any():
        faults.value("sinks", f"numbers that are finite in {dtype}, or -inf", str(given[wrong][0]))
    return given


# ------------------------------------------------------------------------------------------ q, k and v
def _score_shape(faults: Faults, q: Array, k: Array, v: Array) -> Shape | None:
    """The shape (..., H, n_q, n_k) of the scores, or None with what does not fit noted."""
    before = len(faults.found)
    for name, given, axes in (("q", q, "n_q, d_k"), ("k", k, "n_k, d_k"), ("v", v, "n_k, d_v")):
        if given.ndim < 2:
            remedy = f"one token alone is {name}[None, :]" if given.ndim == 1 else ""
            faults.value(name, f"(..., {axes}), two axes or more", words(given.shape), remedy)
    if len(faults.found) > before:
        return None
    n_k = k.shape[-2]
    if q.shape[-1] != k.shape[-1]:
        expected = f"(..., n_k, d_k) with d_k = {q.shape[-1]} as in q {words(q.shape)}"
        remedy = "queries and keys are compared by a dot product"
        if q.shape[-1] == n_k:
            remedy, n_k = "k comes as (n_k, d_k), not transposed: pass np.swapaxes(k, -1, -2)", k.shape[-1]
        faults.value("k", expected, words(k.shape), remedy)
    if n_k != v.shape[-2]:
        turned = "" if n_k == k.shape[-2] else " once it is turned"
        expected = f"(..., n_k, d_v) with n_k = {n_k} as in k {words(k.shape)}{turned}"
        remedy = "every key has one value"
        if n_k == v.shape[-1]:
            remedy = "v comes as (n_k, d_v), not transposed: pass np.swapaxes(v, -1, -2)"
        faults.value("v", expected, words(v.shape), remedy)
    lead = _lead_axes(faults, q, k, v)
    return None if len(faults.found) > before or lead is None else (*lead, q.shape[-2], k.shape[-2])


def _lead_axes(faults: Faults, q: Array, k: Array, v: Array) -> Shape | None:
    """Batch axes broadcast by NumPy's rule; heads, where there is a batch axis too, may be grouped."""
    leads = [given.shape[:-2] for given in (q, k, v)]
    grouped = max(map(len, leads)) >= 2
    if not grouped:
        shape = broadcast_all(*leads)
        if shape is None:
            size = leads[0][0] if leads[0] else 1
            divides = size > 1 and all(lead[0] and size % lead[0] == 0 for lead in leads[1:] if lead)
            remedy = "grouped heads need a batch axis: q[None], k[None], v[None]" if divides else ""
            expected = "one size on their first axes, or 1" if size == 1 else f"a first axis of {size} as in q, or 1"
            faults.value("k and v", expected, _leads(k, v), remedy)
        return shape
    batch = broadcast_all(*(lead[:-1] for lead in leads))
    if batch is None:
        expected = f"batch axes that broadcast with those of q {words(q.shape)}"
        faults.value("k and v", expected, _leads(k, v), "equal sizes, or 1")
    n_heads, n_k_heads, n_v_heads = (lead[-1] if lead else 1 for lead in leads)
    n_kv_heads = n_v_heads if n_k_heads == 1 else n_k_heads
    if n_v_heads not in (1, n_kv_heads):
        faults.value("v", f"{n_kv_heads} key/value heads (G) as in k {words(k.shape)}, or 1", words(v.shape))
    elif n_heads != 1 and n_kv_heads not in (1, n_heads) and (n_kv_heads == 0 or n_heads % n_kv_heads):
        expected = f"a number of key/value heads (G) that divides the {n_heads} heads (H) of q {words(q.shape)}"
        remedy = "query head h reads key head h // (H // G)"
        if min(q.ndim, k.ndim) >= 4 and k.shape[-2] and q.shape[-2] % k.shape[-2] == 0:
            remedy += "; if yours are (B, n, H, d), pass np.swapaxes(q, 1, 2) and so on"
        faults.value("k and v", expected, _leads(k, v), remedy)
    else:
        return None if batch is None else (*batch, n_kv_heads if n_heads == 1 else n_heads)
    return None


def _leads(k: Array, v: Array) -> str:
    return f"k {words(k.shape)}, v {words(v.shape)}"


class Problem(NamedTuple):
    """One call of attention, checked: what is computed, in which shape and which float type."""

    q: Array  # (..., H, n_q, d_k)
    k: Array  # (..., G, n_k, d_k)
    v: Array  # (..., G, n_k, d_v)
    mask: Any  # None, a bool array or a Mask
    causal: bool
    bias: Any  # None, a float array or a bias object
    scale: float
    softcap: float | None
    sinks: Array | None  # (H,)
    dropout: float
    rng: np.random.Generator | None
    scores: Shape  # (..., H, n_q, n_k)
    dtype: np.dtype[Any]  # of the result
    computing: np.dtype[Any]  # of the arithmetic


def problem(
    function: str,
    q: Any,
    k: Any,
    v: Any,
    mask: Any,
    causal: Any,
    bias: Any,
    scale: Any,
    softcap: Any,
    sinks: Any,
    dropout: Any,
    rng: Any,
    faults: Faults | None = None,
) -> Problem:
    """Check a call of attention before any work, and name everything about it that does not fit.

    ``faults`` are those of further arguments, which the caller has checked.
    """
    faults = Faults(function) if faults is None else faults
    arrays = [array(faults, name, value) for name, value in (("q", q), ("k", k), ("v", v))]
    known = [given for given in arrays if given is not None]
    whole = len(known) == 3
    dtype = result_dtype(*(given.dtype for given in known)) if whole else FLOAT64
    computing = computing_dtype(dtype) or FLOAT64
    scores = _score_shape(faults, *known) if whole else None
    mask, causal = _mask(faults, mask, scores), flag(faults, "causal", causal, "masks.causal(offset) aligns otherwise")
    bias, sinks = _bias(faults, bias, scores), _sinks(faults, sinks, scores, computing)
    scale = checked_scale(faults, scale, known[0].shape[-1] if scores else 1)
    softcap = _softcap(faults, softcap, computing)
    dropout, rng = _dropout(faults, dropout, rng)
    faults.raise_any()
    assert scores is not None  # where it is not known, a fault says why
    q, k, v = known
    return Problem(q, k, v, mask, causal, bias, scale, softcap, sinks, dropout, rng, scores, dtype, computing)


def gradient_of(faults: Faults, name: str, value: Any, result: str, shape: Shape, axes: str = "") -> Array | None:
    """The gradient of a result, of exactly that result's shape; ``axes`` are its letters."""
    given = array(faults, name, value)
    if given is not None and given.shape != shape:
        remedy = f"pass np.broadcast_to({name}, {result}.shape)" if broadcasts(given.shape, shape) else ""
        axes = f"{axes} = " if axes else ""
        faults.value(name, f"{axes}{words(shape)} as {result}", words(given.shape), remedy)
    return given


# ------------------------------------------------------------------------------------ per-item arrays
class PerItem:
    """An array with one entry, or one row of n_q or n_k entries, per batch item: never per head."""

    __slots__ = ("axis", "name", "values")

    def __init__(self, name: str, values: Array, axis: str = "") -> None:
        self.name, self.axis = name, axis
        self.values = np.array(values)  # ours: a caller who changes theirs later does not change the mask
        self.values.flags.writeable = False

    @property
    def lead(self) -> Shape:
        """Its own batch axes."""
        return self.values.shape[:-1] if self.axis else self.values.shape

    def misfits(self, scores: Shape) -> list[Fault]:
        """What keeps it from describing the items of these scores."""
        batch, size = batch_axes(scores), self._size(scores)
        if broadcasts(self.lead, batch) and self.values.shape[len(self.lead) :] == size:
            return []
        letter = f"B, {self.axis}" if self.axis else "B"
        expected = f"({letter}) against the batch axes of the scores {words(scores)}: {words((*batch, *size))}"
        remedy = "it holds for items, never for heads; size 1 on a batch axis, or none, holds for all items"
        return [Fault(self.name, expected, words(self.values.shape), remedy)]

    def of(self, scores: Shape, lead: Shape | None, rows: slice, cols: slice) -> Array:
        """Its values for one item, or (lead None) for all items, shaped to broadcast against those rows and columns."""
        batch, tail = batch_axes(scores), self._size(scores)
        values = np.broadcast_to(self.values, (*batch, *tail))
        if lead is None:
            heads = (1,) * (len(scores) - 2 - len(batch))
            values = values.reshape((*batch, *heads, *tail))
        else:
            values = values[lead[: len(batch)]]
        if self.axis == "n_q":
            return values[..., rows, None]
        return values[..., None, cols] if self.axis == "n_k" else values[..., None, None]

    def _size(self, scores: Shape) -> Shape:
        return {"": (), "n_q": scores[-2:-1], "n_k": scores[-1:]}[self.axis]


def diagonals(offset: PerItem | None, scores: Shape, lead: Shape | None, rows: slice, cols: slice) -> Array:
    """How far keys lie after queries' own positions, ``j - (i + offset)``: one number for each diagonal of a tile.

    From the tile's upper right corner to its lower left one, for one item and head or (lead None) for all. Without an
    offset the last query's position is that of the last key: lower-right.
    """
    own = scores[-1] - scores[-2] if offset is None else offset.of(scores, lead, slice(0, 1), slice(0, 1))[..., 0]
    distance: Array = np.arange(cols.stop - 1 - rows.start, cols.start - rows.stop, -1) - own
    return distance


def spread(values: Array, n_rows: int, n_cols: int) -> Array:
    """A tile with these values on its diagonals: a read-only view (..., n_rows, n_cols), nothing is copied.

    ``values`` (..., n_rows + n_cols - 1) go from the upper right corner to the lower left one.
    """
    *lead, step = values.strides
    corner = values[..., n_cols - 1 :]  # of the first query and the first key
    view: Array = np.lib.stride_tricks.as_strided(
        corner, (*values.shape[:-1], n_rows, n_cols), (*lead, step, -step), writeable=False
    )
    return view


def distances(offset: PerItem | None, scores: Shape, lead: Shape | None, rows: slice, cols: slice) -> Array:
    """How far each key lies after its query's own position: ``j - (i + offset)``, for each pair of a tile."""
    size = rows.stop - rows.start, cols.stop - cols.start
    if 0 in size:
        return np.zeros(size, np.int64)
    return spread(diagonals(offset, scores, lead, rows, cols), *size)


def brief(values: Array) -> str:
    """The numbers of a small array, the dtype and shape of a large one: for a repr."""
    return str(values.tolist()) if values.size <= 8 else f"<{values.dtype} {words(values.shape)}>"


def item_integers(faults: Faults, name: str, values: Any, axis: str = "", low: int | None = None) -> PerItem:
    """Integers per item (lengths, offsets, ids, positions), checked."""
    given = plain_array(faults, name, values)
    if given is None:
        return PerItem(name, np.zeros(1, np.int64), axis)
    if given.dtype.kind not in "iu" and given.size:
        remedy = "" if given.dtype.kind == "b" else f"pass np.asarray({name}, dtype=np.int64)"
        faults.type(name, "integers", f"dtype {given.dtype}", remedy)
        given = np.zeros(1, np.int64)
    elif axis and given.ndim == 0:
        faults.value(name, f"(B, {axis}) or ({axis},)", "a single number")
        given = np.zeros(1, np.int64)
    elif given.size:
        smallest, largest = int(given.min()), int(given.max())
        if low is not None and smallest < low:
            span = str(smallest) if smallest == largest else f"{smallest} to {largest}"
            faults.value(name, f"integers of at least {low}", span)
        elif max(-smallest, largest) > WIDEST_INT:
            faults.value(name, "integers within 62 bits", f"{smallest} to {largest}")
    return PerItem(name, given.astype(np.int64), axis)
