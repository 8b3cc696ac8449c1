"""What a layer of attention holds and is given, checked: sizes, weights, tokens, options and a cache that fit together.

Knows shapes and types; computes nothing.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike

from headwise.core.masks import Mask
from headwise.core.positions import Alibi
from headwise.core.shapes import (
    Array,
    Faults,
    Shape,
    array,
    given_as,
    integer,
    problem,
    words,
)

_BIASES = ("b_q", "b_k", "b_v", "b_o")
_WEIGHTS = ("w_q", "w_k", "w_v", "w_o")
_LEARNED = ("bias_k", "bias_v")
ARRAYS = (*_WEIGHTS, *_BIASES, *_LEARNED)  # all that a layer may hold, by name
_WIDEST = 2**20
_ALL_TRANSPOSED = "these fit transposed: pass w_q.T, w_k.T, w_v.T and w_o.T; PyTorch stores (d_out, d_in)"
_IF_ADDED = "pass what is to be added to the scores as bias="
_TRANSPOSED = "x @ w has w as (d_in, d_out), PyTorch the transpose: pass {}.T"


class Sizes(NamedTuple):
    """The widths and counts of a layer."""

    d_model: int
    n_heads: int
    n_kv_heads: int
    d_head: int
    d_key: int
    d_value: int

    def shapes(self) -> dict[str, tuple[str, Shape]]:
        """Of each weight and bias of a projection: its shape in letters, and in numbers."""
        whole, grouped = self.n_heads * self.d_head, self.n_kv_heads * self.d_head
        key = "d_model" if self.d_key == self.d_model else "d_key"
        value = "d_model" if self.d_value == self.d_model else "d_value"
        return {
            "w_q": ("(d_model, H d_head)", (self.d_model, whole)),
            "w_k": (f"({key}, G d_head)", (self.d_key, grouped)),
            "w_v": (f"({value}, G d_head)", (self.d_value, grouped)),
            "w_o": ("(H d_head, d_model)", (whole, self.d_model)),
            "b_q": ("(H d_head,)", (whole,)),
            "b_k": ("(G d_head,)", (grouped,)),
            "b_v": ("(G d_head,)", (grouped,)),
            "b_o": ("(d_model,)", (self.d_model,)),
        }


def _check_grouped(faults: Faults, n_heads: int, n_kv_heads: int) -> None:
    if n_heads and n_kv_heads and n_heads % n_kv_heads:
        remedy = "query head h reads key head h // (n_heads // n_kv_heads)"
        faults.value("n_kv_heads", f"a number that divides n_heads = {n_heads}", str(n_kv_heads), remedy)


def new_sizes(
    faults: Faults, d_model: Any, n_heads: Any, n_kv_heads: Any, d_head: Any, d_key: Any, d_value: Any
) -> Sizes:
    """The sizes of a layer that is to be drawn."""
    width = integer(faults, "d_model", d_model, 1, "the width of the tokens", most=_WIDEST)
    heads = integer(faults, "n_heads", n_heads, 1, "a number of heads", most=_WIDEST)
    groups = heads if n_kv_heads is None else integer(faults, "n_kv_heads", n_kv_heads, 1, "a number of heads")
    _check_grouped(faults, heads, groups)
    if d_head is not None:
        each = integer(faults, "d_head", d_head, 1, "the width of a head", most=_WIDEST)
    else:
        each = width // heads if heads else 0
        if width and heads and width % heads:
            remedy = "d_head = d_model / n_heads, or give d_head"
            faults.value("n_heads", f"a number that divides d_model = {width}", str(heads), remedy)
    others = [
        width if value is None else integer(faults, name, value, 1, f"the width of {whose}", most=_WIDEST)
        for name, value, whose in (("d_key", d_key, "the keys' tokens"), ("d_value", d_value, "the values' tokens"))
    ]
    return Sizes(width, heads, groups, each, *others)


class Known(NamedTuple):
    """What a caller says of the sizes of weights; the rest is what the weights say."""

    n_heads: int
    n_kv_heads: int | None
    d_model: int | None
    d_head: int | None


def known_sizes(faults: Faults, n_heads: Any, n_kv_heads: Any, d_model: Any, d_head: Any) -> Known:
    """What a caller says, checked; 0 where a number is wrong."""
    heads = integer(faults, "n_heads", n_heads, 1, "a number of heads")
    others = [
        None if value is None else integer(faults, name, value, 1, what)
        for name, value, what in (
            ("n_kv_heads", n_kv_heads, "a number of heads"),
            ("d_model", d_model, "the width of the tokens"),
            ("d_head", d_head, "the width of a head"),
        )
    ]
    return Known(heads, *others)


def fitted(faults: Faults, given: dict[str, Any], known: Known) -> tuple[Sizes | None, dict[str, Array]]:
    """The sizes of a layer of these weights, and the arrays; where all would fit transposed, the faults say so."""
    sizes, arrays = _fitted(faults, given, known)
    if faults.found and _fit_transposed(given, known):
        faults.advise(given, _ALL_TRANSPOSED)
    return sizes, arrays


def _fitted(faults: Faults, given: dict[str, Any], known: Known) -> tuple[Sizes | None, dict[str, Array]]:
    sizes = None if 0 in known else _sizes_of(faults, given, known)
    return sizes, check_weights(faults, sizes, given) if sizes else {}


def _fit_transposed(given: dict[str, Any], known: Known) -> bool:
    faults = Faults("")
    arrays = {name: array(faults, name, given[name]) for name in _WEIGHTS}
    sizes, _ = _fitted(faults, given | {name: x.T for name, x in arrays.items() if x is not None}, known)
    return sizes is not None and not faults.found


def _sizes_of(faults: Faults, given: dict[str, Any], known: Known) -> Sizes | None:
    """The sizes that the weights speak of, or None with what does not fit noted."""
    n_heads, n_kv_heads, width, d_head = known
    before, arrays = len(faults.found), []
    for name in ("w_q", "w_k", "w_v"):
        weight = array(faults, name, given[name])
        if weight is not None and weight.ndim != 2:
            faults.value(name, "(d_in, d_out)", words(weight.shape))
        arrays.append(weight)
    if len(faults.found) > before:
        return None
    (d_model, whole), (d_key, grouped), (d_value, _) = (weight.shape for weight in arrays if weight is not None)
    if d_head is None and (whole < n_heads or whole % n_heads):
        expected = f"(d_model, H d_head), with columns that n_heads = {n_heads} divides"
        faults.value("w_q", expected, words((d_model, whole)), _TRANSPOSED.format("w_q"))
        return None
    d_head = d_head or whole // n_heads
    groups = grouped // d_head if n_kv_heads is None else n_kv_heads
    if n_kv_heads is not None:
        _check_grouped(faults, n_heads, groups)
    elif not groups or grouped % d_head or n_heads % groups:
        expected = f"(d_key, G d_head), with d_head = {d_head} as w_q has it, and G dividing n_heads = {n_heads}"
        faults.value("w_k", expected, words((d_key, grouped)), _TRANSPOSED.format("w_k"))
        return None
    return Sizes(width or d_model, n_heads, groups, d_head, d_key, d_value)


def check_weights(faults: Faults, sizes: Sizes, given: dict[str, Any]) -> dict[str, Array]:
    """Every weight, and what there is of the rest, as arrays of the shapes that these sizes ask for."""
    known = {}
    for name, (letters, shape) in sizes.shapes().items():
        if given[name] is None and name in _BIASES:
            continue
        weight = array(faults, name, given[name])
        if weight is not None and weight.shape != shape:
            turned = weight.shape == shape[::-1] and len(shape) == 2
            remedy = _TRANSPOSED.format(name) if turned else ""
            faults.value(name, f"{letters} = {words(shape)}", words(weight.shape), remedy)
        elif weight is not None:
            known[name] = weight
    return known | _check_learned(faults, sizes, {name: given[name] for name in _LEARNED})


def _check_learned(faults: Faults, sizes: Sizes, given: dict[str, Any]) -> dict[str, Array]:
    """Learned keys and values, (G, m, d_head) each, or none of them."""
    missing = [name for name, rows in given.items() if rows is None]
    if len(missing) == len(given):
        return {}
    if missing:
        other = next(name for name in given if name not in missing)
        faults.value(missing[0], f"an array where {other} is given, as every key has a value", "None")
    known: dict[str, Array] = {}
    for name, rows in given.items():
        x = None if rows is None else array(faults, name, rows)
        if x is None:
            continue
        expected = f"(G, m, d_head) = ({sizes.n_kv_heads}, m, {sizes.d_head})"
        if x.ndim != 3 or (x.shape[0], x.shape[2]) != (sizes.n_kv_heads, sizes.d_head):
            flat = x.shape == (1, 1, sizes.n_kv_heads * sizes.d_head)
            remedy = f"pass {name}.reshape({sizes.n_kv_heads}, 1, {sizes.d_head})" if flat else ""
            faults.value(name, expected, words(x.shape), remedy)
            continue
        if known and x.shape != known["bias_k"].shape:
            m = known["bias_k"].shape[1]
            faults.value(name, f"{expected} with m = {m} as in bias_k", words(x.shape), "every key has one value")
        known[name] = x
    return known


# -------------------------------------------------------------------------------------------- what it is given
@runtime_checkable
class Cache(Protocol):
    """What a layer asks of a cache."""

    @property
    def k(self) -> Array: ...  # (B, G, n, d_head)

    @property
    def v(self) -> Array: ...

    def next_positions(self, n: int) -> Array: ...  # (B, n)

    def append(self, k: ArrayLike, v: ArrayLike) -> None: ...

    def mask(self, n_q: int, causal: bool = True) -> Mask: ...

    def offset(self, n_q: int) -> Array: ...  # (B,)


class Options(NamedTuple):
    """What goes on to attention as it is."""

    mask: Any
    causal: bool
    bias: Any
    sinks: Any
    scale: Any
    softcap: Any

    def keywords(self) -> dict[str, Any]:
        """All but the mask."""
        return {name: value for name, value in self._asdict().items() if name != "mask"}

    def copied(self) -> Options:
        """The same, with arrays that nobody changes later."""
        return Options._make(x.copy() if isinstance(x, np.ndarray) else x for x in self)


def checked_tokens(faults: Faults, sizes: Sizes, query: Any, key: Any, value: Any) -> list[Array | None]:
    """Query, key and value as arrays that fit each other and the weights; None where one is not given, or no array."""
    if key is None and value is not None:
        faults.value("key", "an array where value is given", "None", "self attention takes query alone")
    named = (("query", query), ("key", key), ("value", value))
    given = [None if x is None and name != "query" else _tokens(faults, name, x) for name, x in named]
    widths = (("d_model", sizes.d_model), ("d_key", sizes.d_key), ("d_value", sizes.d_value))
    if key is None:
        _check_width_of_all(faults, sizes)
    elif value is None and sizes.d_key != sizes.d_value:
        faults.value("value", f"an array, as d_value = {sizes.d_value} and d_key = {sizes.d_key} differ", "None")
    for name, x, (letter, width) in zip(("query", "key", "value"), given, widths, strict=True):
        axes = f"(b, n, {letter}) or (n, {letter}) with {letter} = {width}"
        if x is not None and (x.ndim not in (2, 3) or x.shape[-1] != width):
            n = given[0].shape[-2] if name == "key" and given[0] is not None and given[0].ndim > 1 else None
            faults.value(name, axes, words(x.shape), _IF_ADDED if x.shape[-2:] == (n, n) else "")
    if not faults.found:
        _check_alike(faults, [x for x in given if x is not None])
    return given


def _tokens(faults: Faults, name: str, x: Any) -> Array | None:
    """Tokens as an array; a mask, which other functions take in their fourth place, is told from them."""
    is_mask = isinstance(x, Mask) or getattr(x, "dtype", None) == np.bool_
    if is_mask and name != "query":
        faults.type(name, "real numbers, the tokens of another sequence", "a mask", "pass it as mask=")
        return None
    return array(faults, name, x)


def _check_width_of_all(faults: Faults, sizes: Sizes) -> None:
    widths = sizes.d_model, sizes.d_key, sizes.d_value
    if len(set(widths)) > 1:
        expected = "key and value of their own, as d_model, d_key, d_value = {}, {}, {} differ".format(*widths)
        faults.value("key", expected, "None")


def _check_alike(faults: Faults, given: list[Array]) -> None:
    """As many axes and items in all, and a value for each key."""
    query, *others = given
    for name, x in zip(("key", "value"), others, strict=False):
        if x.shape[:-2] != query.shape[:-2]:
            expected = f"the batch axis of query {words(query.shape)}: {words(query.shape[:-2])}"
            faults.value(name, expected, words(x.shape))
    if len(others) == 2 and others[0].shape[-2] != others[1].shape[-2]:
        expected = f"(..., n_k, d_value) with n_k = {others[0].shape[-2]} as in key {words(others[0].shape)}"
        faults.value("value", expected, words(others[1].shape), "every key has one value")


def check_cache(faults: Faults, cache: Any, sizes: Sizes, given: list[Array | None], options: Options) -> None:
    if not isinstance(cache, Cache):
        faults.type("cache", "None or a KVCache", given_as(cache))
        return
    if given[1] is not None:
        remedy = "attention over a memory that does not grow takes key alone"
        faults.value("key", "None with a cache, which keeps the keys of query", "an array", remedy)
    if getattr(cache, "window", None) is not None:  # rows slide: nobody can say which slot holds which key
        if options.mask is not None:
            remedy = "the window is a mask, and left padding is the cache's own"
            faults.value("mask", "None with a cache that has a window", type(options.mask).__name__, remedy)
        if options.bias is not None and not isinstance(options.bias, Alibi):
            faults.value("bias", "None or alibi with a cache that has a window", type(options.bias).__name__)
    query = given[0]
    if query is None:
        return
    items = query.shape[0] if query.ndim == 3 else 1
    for name, x in (("k", cache.k), ("v", cache.v)):
        expected = (items, sizes.n_kv_heads, x.shape[2], sizes.d_head)
        if x.shape != expected:
            axes = f"one whose {name} is (B, G, n, d_head) = ({items}, {sizes.n_kv_heads}, n, {sizes.d_head})"
            faults.value("cache", axes, words(x.shape))
            return


def check_options(
    faults: Faults, sizes: Sizes, tokens: list[Array], options: Options, held: int, dtype: np.dtype[Any]
) -> Options:
    """Mask, bias, sinks and numbers held to the scores that there are going to be, before any work; lists as arrays."""
    query, key = tokens[0], tokens[min(1, len(tokens) - 1)]
    items = query.shape[0] if query.ndim == 3 else 1
    heads = (sizes.n_heads, query.shape[-2]), (sizes.n_kv_heads, held + key.shape[-2])
    q, k = (np.broadcast_to(np.zeros((), dtype), (items, *each, sizes.d_head)) for each in heads)
    o = options
    p = problem(faults.function, q, k, k, o.mask, o.causal, o.bias, o.scale, o.softcap, o.sinks, 0.0, None, faults)
    return Options(p.mask, p.causal, p.bias, p.sinks, o.scale, o.softcap)
