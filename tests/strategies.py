"""Random problems over everything that the definition accepts, each with its own answer to who may attend to whom.

A recipe is a handful of drawn choices and a seed; ``build`` makes the arrays, the mask and the options from it. What
hypothesis prints of a failing example is ``build(Recipe(...))``, which makes the same problem again.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from typing import Any

import numpy as np
from hypothesis import strategies as st
from layouts import LAYOUTS, laid_out
from oracle import Index, Number, Operand, Sees, place
from predicates import FLOATS, RULES, make_bias, make_rule

from headwise import masks

DTYPES = FLOATS | {"int": np.dtype(np.int64), "bool": np.dtype(np.bool_)}
SIZES = {"tiny": 1e-6, "normal": 1.0, "sharp": 30.0, "large": 1e4}


# ---------------------------------------------------------------------------------------------- recipes
@dataclass(frozen=True)
class Recipe:
    """What was drawn. A rule is (name, share), ("~", rule), ("&", rule, rule) or ("|", rule, rule)."""

    lead_q: Index = ()
    lead_k: Index = ()
    lead_v: Index = ()
    n_q: int = 3
    n_k: int = 5
    d_k: int = 2
    d_v: int = 2
    dtypes: tuple[str, str, str] = ("float64", "float64", "float64")
    layouts: tuple[str, str, str] = ("read-only", "read-only", "read-only")
    size_qk: str = "normal"
    size_v: str = "normal"
    rule: Any = None
    causal: bool = False
    bias: tuple[str, str, str] | None = None  # (array or alibi, share, dtype)
    scale: float | None = None
    softcap: float | None = None
    sinks: bool = False
    dropout: float = 0.0
    wild: str = "none"  # NaN and inf: none, hidden (behind every mask), anywhere
    seed: int = 0


SIZE_OF_AXIS = st.sampled_from([2, 1, 3] * 6 + [0])
LENGTH = st.sampled_from([3, 1, 2, 4, 5, 6, 7, 11, 13, 0])
SHORT = st.sampled_from([3, 1, 2, 4])  # where there are many items and heads
WIDTH = st.sampled_from([2, 1, 3, 4, 5] * 3 + [0])
SHARES = st.sampled_from(["one", "items", "some"])


def _leaves() -> st.SearchStrategy[Any]:
    return st.tuples(st.sampled_from(RULES), SHARES)


def _branches(rules: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.tuples(st.just("~"), rules) | st.tuples(st.sampled_from(["&", "|"]), rules, rules)


RULE = st.recursive(_leaves(), _branches, max_leaves=4)
OPTIONS: dict[str, st.SearchStrategy[Any]] = {
    "d_k": WIDTH,
    "d_v": WIDTH,
    "dtypes": st.one_of(
        st.sampled_from([*FLOATS, *DTYPES]).map(lambda name: (name, name, name)),
        st.tuples(*[st.sampled_from(list(DTYPES))] * 3),
    ),
    "layouts": st.tuples(*[st.sampled_from(LAYOUTS)] * 3),
    "size_qk": st.sampled_from(["normal", "tiny", "sharp", "large"]),
    "size_v": st.sampled_from(["normal", "tiny", "large"]),
    "rule": st.none() | RULE,
    "causal": st.booleans(),
    "bias": st.none() | st.tuples(st.sampled_from(["array", "alibi"]), SHARES, st.sampled_from(list(FLOATS))),
    "scale": st.sampled_from([None, None, None, 0.0, -0.7, 1.0, 2, 40.0]),
    "softcap": st.sampled_from([None, None, 0.5, 20.0, 1e4]),
    "sinks": st.booleans(),
    "dropout": st.sampled_from([0.0, 0.0, 0.0, 0.0625, 0.25, 0.5, 1.0]),
    "wild": st.sampled_from(["none", "hidden", "anywhere"]),
    "seed": st.integers(0, 2**32 - 1),
}


@st.composite
def problems(draw: st.DrawFn, **fixed: Any) -> "Case":
    """A problem. Name a field of the recipe to fix it: to a value, or to a strategy of its own."""
    lead_q, lead_k, lead_v = draw(leads())
    length = LENGTH if math.prod(score_lead(lead_q, lead_k, lead_v)) <= 6 else SHORT
    drawn = {"lead_q": lead_q, "lead_k": lead_k, "lead_v": lead_v, "n_q": draw(length), "n_k": draw(length)}
    drawn |= {name: draw(strategy) for name, strategy in OPTIONS.items() if name not in fixed}
    drawn |= {name: draw(value) if isinstance(value, st.SearchStrategy) else value for name, value in fixed.items()}
    return build(Recipe(**drawn))


@st.composite
def leads(draw: st.DrawFn) -> tuple[Index, Index, Index]:
    """Leading axes of q, k and v: none to three, broadcasting; with two or more, the last may be grouped heads."""
    axes = draw(st.lists(SIZE_OF_AXIS, max_size=3).map(tuple))
    if len(axes) < 2:
        return _narrowed(draw, axes), _narrowed(draw, axes), _narrowed(draw, axes)
    *batch, n_groups = axes
    n_heads = n_groups * draw(st.sampled_from([1, 2, 3] * 4 + [0]))
    q, k, v = (_narrowed(draw, (*batch, heads)) for heads in (n_heads, n_groups, n_groups))
    return (q if max(map(len, (q, k, v))) > 1 else (*batch, n_heads)), k, v  # no groups without a batch axis


def _narrowed(draw: st.DrawFn, axes: Index) -> Index:
    """Some axes as size 1, which broadcasts, and leading ones left out."""
    kind = draw(st.sampled_from(["whole", "whole", "ones", "fewer"]))
    if kind == "ones":
        return tuple(1 if draw(st.booleans()) else size for size in axes)
    return axes[draw(st.integers(0, len(axes))) :] if kind == "fewer" else axes


def score_lead(*leads: Index) -> Index:
    """The scores' leading axes: size 1 broadcasts; the heads are q's, or where q has one, those of k and v."""
    length = max(map(len, leads))
    padded = [(1,) * (length - len(lead)) + lead for lead in leads]
    shape = [next((size for size in sizes if size != 1), 1) for sizes in zip(*padded, strict=True)]
    return tuple(shape)


# ----------------------------------------------------------------------------------------------- cases
@dataclass(frozen=True, eq=False, repr=False)
class Case:
    """A call of attention, and what it means: ``attention(q, k, v, mask, **options)``."""

    recipe: Recipe
    q: Any
    k: Any
    v: Any
    mask: Any
    options: dict[str, Any]
    scores: Index  # (..., H, n_q, n_k)
    sees: Sees  # what mask and causal allow
    bias: Number | None

    def __repr__(self) -> str:
        return f"build({self.recipe})"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(repr(self))  # what hypothesis prints of a failing example

    @property
    def args(self) -> tuple[Any, Any, Any, Any]:
        return self.q, self.k, self.v, self.mask

    @property
    def out_shape(self) -> Index:
        return (*self.scores[:-1], self.recipe.d_v)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of the result."""
        names = set(self.recipe.dtypes)
        if names & {"float64", "int", "bool"}:
            return DTYPES["float64"]
        return DTYPES[names.pop()] if len(names) == 1 else DTYPES["float32"]

    @property
    def computing(self) -> np.dtype[Any]:
        return DTYPES["float64" if self.dtype == np.float64 else "float32"]

    @cached_property
    def visible(self) -> Any:
        """Where mask, causal and ``-inf`` in the bias all let a query attend: bool, of the score shape."""
        return from_function(
            self.scores, bool, lambda at, i, j: self.sees(at, i, j) and self.added(at, i, j) != -np.inf
        )

    @cached_property
    def dense_bias(self) -> Any:
        return from_function(self.scores, np.float64, self.added)

    def added(self, at: Index, i: int, j: int) -> float:
        return self.bias(at, i, j) if self.bias else 0.0

    def operands(self) -> tuple[Operand, Operand, Operand]:
        return operand(self.q), operand(self.k), operand(self.v)


def operand(array: Any) -> Operand:
    lead = array.shape[:-2]
    return Operand(lead, array.shape[-1], {at: array[at].astype(np.float64).tolist() for at in np.ndindex(lead)})


def from_function(scores: Index, dtype: Any, of: Callable[[Index, int, int], Any]) -> Any:
    *lead, n_q, n_k = scores
    places = product(np.ndindex(*lead), range(n_q), range(n_k))
    return np.array([of(at, i, j) for at, i, j in places], dtype).reshape(scores)


def build(recipe: Recipe) -> Case:
    """The problem of a recipe: the same one every time."""
    r, rng = recipe, np.random.default_rng(recipe.seed)
    scores = (*score_lead(r.lead_q, r.lead_k, r.lead_v), r.n_q, r.n_k)
    mask, rule = make_rule(r.rule, scores, rng) if r.rule else (None, _everything)
    offset = r.n_k - r.n_q
    sees: Sees = (lambda at, i, j: rule(at, i, j) and j <= i + offset) if r.causal else rule
    added, bias = make_bias(r.bias, scores, rng, sees, r.wild) if r.bias else (None, None)
    shapes = ((*r.lead_q, r.n_q, r.d_k), (*r.lead_k, r.n_k, r.d_k), (*r.lead_v, r.n_k, r.d_v))
    sizes = (r.size_qk, r.size_qk, r.size_v)
    arrays = [_numbers(rng, *drawn) for drawn in zip(shapes, r.dtypes, sizes, r.layouts, strict=True)]
    options = _options(r, scores, rng) | ({} if added is None else {"bias": added})
    case = Case(r, *arrays, mask, options, scores, sees, bias)
    if r.wild != "none":
        arrays = _planted(case, arrays, rng)
    q, k, v = (laid_out(array, layout) for array, layout in zip(arrays, r.layouts, strict=True))
    return replace(case, q=q, k=k, v=v)


def _everything(at: Index, i: int, j: int) -> bool:
    return True


def _options(r: Recipe, scores: Index, rng: np.random.Generator) -> dict[str, Any]:
    options: dict[str, Any] = {"causal": True} if r.causal else {}
    options |= {} if r.scale is None else {"scale": r.scale}
    options |= {} if r.softcap is None else {"softcap": r.softcap}
    options |= {"dropout": r.dropout, "rng": r.seed} if r.dropout else {}
    if r.sinks:
        sinks = 2 * rng.standard_normal(scores[-3] if len(scores) > 2 else 1)
        options["sinks"] = laid_out(np.where(rng.random(sinks.shape) < 0.2, -np.inf, sinks), "read-only")
    return options


# ---------------------------------------------------------------------------------- numbers and layouts
def _numbers(rng: np.random.Generator, shape: Index, dtype: str, size: str, layout: str) -> Any:
    values = rng.standard_normal(shape).clip(-3, 3)
    if layout == "stretched":  # one row, or one item, for all
        axis = int(rng.integers(0, len(shape)))
        values = np.broadcast_to(values.take([0] if shape[axis] else [], axis), shape)
    if dtype == "bool":
        return values > 0
    return np.round(3 * values).astype(np.int64) if dtype == "int" else (SIZES[size] * values).astype(DTYPES[dtype])


def _planted(case: Case, arrays: list[Any], rng: np.random.Generator) -> list[Any]:
    """NaN and inf: where no query sees them, or anywhere."""
    planted = [array.copy() for array in arrays]
    for which, array in enumerate(planted):
        if array.dtype.kind in "bi" or array.size == 0:
            continue
        for at in np.ndindex(array.shape[:-1]):
            if rng.random() < 0.5 and not _is_read(case, "qkv"[which], array.shape[:-2], at):
                array[at] = rng.choice([np.nan, np.inf, -np.inf])
            elif case.recipe.wild == "anywhere" and rng.random() < 0.05:
                array[at][rng.integers(array.shape[-1])] = rng.choice([np.nan, np.inf, -np.inf])
    return planted


def _is_read(case: Case, name: str, lead: Index, at: Index) -> bool:
    """Whether this query sees any key, or this key or value is seen by any query."""
    readers = [to for to in np.ndindex(case.scores[:-2]) if place(lead, to, case.scores[:-2]) == at[:-1]]
    pairs = (case.visible[to] if name == "q" else case.visible[to].T for to in readers)
    return any(pair[at[-1]].any() for pair in pairs)


# ------------------------------------------------------------------------------------------- masks alone
@dataclass(frozen=True, repr=False)
class Ruled:
    """A mask for a score shape, and what it says."""

    made_from: tuple[Any, Index, int]
    mask: masks.Mask
    sees: Sees
    scores: Index

    @cached_property
    def dense(self) -> Any:
        return from_function(self.scores, bool, self.sees)

    def __repr__(self) -> str:
        return f"build_rule{self.made_from}: {self.mask}"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(repr(self))


@st.composite
def rules(draw: st.DrawFn) -> Ruled:
    """A mask of any kind or combination, and a score shape."""
    lead = score_lead(*draw(leads()))
    return build_rule(draw(RULE), (*lead, draw(LENGTH), draw(LENGTH)), draw(OPTIONS["seed"]))


def build_rule(rule: Any, scores: Index, seed: int) -> Ruled:
    mask, sees = make_rule(rule, scores, np.random.default_rng(seed))
    return Ruled((rule, scores, seed), masks.as_mask(mask), sees, scores)
