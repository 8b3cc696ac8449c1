"""Random masks and biases, each beside what it says in plain Python.

The predicate is made from the same numbers and never asks ``headwise.masks``: the oracle must not lean on what it is to
judge.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from layouts import LAYOUTS, laid_out
from ml_dtypes import bfloat16
from oracle import Index, Number, Sees

from headwise import alibi, masks

FLOATS = {
    "float64": np.dtype(np.float64),
    "float32": np.dtype(np.float32),
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(bfloat16),
}
RULES = ("array", "causal", "window", "lengths", "keys", "segments", "positions")


# ------------------------------------------------------------------------------------ numbers per item
def _batch(scores: Index) -> Index:
    """The axes of items: all before the heads, where there are heads beside items."""
    return scores[:-3] if len(scores) > 3 else scores[:-2]


def _item(at: Index) -> Index:
    return at[:-1] if len(at) > 1 else at


def _shared(share: str, axes: Index, rng: np.random.Generator) -> Index:
    """A shape that broadcasts to these axes: none of them, all of them, or some as 1 and leading ones left out."""
    if share != "some":
        return axes if share == "items" else ()
    kept = axes[int(rng.integers(0, len(axes) + 1)) :]
    return tuple(1 if rng.random() < 0.5 else size for size in kept)


def _per_item(
    share: str, scores: Index, rng: np.random.Generator, low: int, high: int
) -> tuple[Any, Callable[[Index], int]]:
    values = rng.integers(low, high, _shared(share, _batch(scores), rng))
    return (int(values) if np.ndim(values) == 0 else values), lambda at: int(_pick(values, _item(at)))


def _row_of_integers(share: str, scores: Index, rng: np.random.Generator, low: int, high: int) -> tuple[Any, Any]:
    q_row, k_row = (rng.integers(low, high, (*_shared(share, _batch(scores), rng), n)) for n in scores[-2:])
    return q_row, k_row


def _pick(values: Any, index: Index) -> Any:
    """The number that an array, broadcast, has at this index."""
    own = np.shape(values)
    last = index[len(index) - len(own) :]
    return np.asarray(values)[tuple(0 if size == 1 else i for size, i in zip(own, last, strict=True))]


# ---------------------------------------------------------------------------------------- kinds of masks
def _given(share: str, scores: Index, rng: np.random.Generator) -> tuple[Any, Sees]:
    shape = scores[-2:] if share == "one" else _shared(share, scores, rng)
    shape = shape or (1,)  # bool arrays without axes turn into NumPy scalars when they are combined
    values = rng.random(shape) < 0.7
    return laid_out(values, str(rng.choice(LAYOUTS[:-2]))), lambda at, i, j: bool(_pick(values, (*at, i, j)))


def _causal(share: str, scores: Index, rng: np.random.Generator) -> tuple[Any, Sees]:
    offset, at_offset = _offset(share, scores, rng)
    return masks.causal(offset), lambda at, i, j: j <= i + at_offset(at)


def _window(share: str, scores: Index, rng: np.random.Generator) -> tuple[Any, Sees]:
    offset, at_offset = _offset(share, scores, rng)
    left, right = (None if rng.random() < 0.2 else int(rng.integers(0, 4)) for _ in range(2))

    def sees(at: Index, i: int, j: int) -> bool:
        own = i + at_offset(at)
        return (left is None or j >= own - left) and (right is None or j <= own + right)

    return masks.window(left, right, offset), sees


def _offset(share: str, scores: Index, rng: np.random.Generator) -> tuple[Any, Callable[[Index], int]]:
    n_q, n_k = scores[-2:]
    if rng.random() < 0.3:
        return None, lambda at: n_k - n_q
    return _per_item(share, scores, rng, -n_q - 1, n_k + 2)


def _lengths(share: str, scores: Index, rng: np.random.Generator) -> tuple[Any, Sees]:
    lengths, length = _per_item(share, scores, rng, 0, scores[-1] + 1)
    return masks.lengths(lengths), lambda at, i, j: j < length(at)


def _keys(share: str, scores: Index, rng: np.random.Generator) -> tuple[Any, Sees]:
    valid = rng.random((*_shared(share, _batch(scores), rng), scores[-1])) < 0.7
    return masks.keys(valid), lambda at, i, j: bool(_pick(valid, (*_item(at), j)))


def _segments(share: str, scores: Index, rng: np.random.Generator) -> tuple[Any, Sees]:
    q_ids, k_ids = _row_of_integers(share, scores, rng, 0, 3)
    return masks.segments(q_ids, k_ids), lambda at, i, j: bool(
        _pick(q_ids, (*_item(at), i)) == _pick(k_ids, (*_item(at), j))
    )


def _positions(share: str, scores: Index, rng: np.random.Generator) -> tuple[Any, Sees]:
    q_pos, k_pos = _row_of_integers(share, scores, rng, -3, 9)
    return masks.positions(q_pos, k_pos), lambda at, i, j: bool(
        _pick(k_pos, (*_item(at), j)) <= _pick(q_pos, (*_item(at), i))
    )


_LEAVES = dict(zip(RULES, (_given, _causal, _window, _lengths, _keys, _segments, _positions), strict=True))


def make_rule(rule: Any, scores: Index, rng: np.random.Generator) -> tuple[Any, Sees]:
    """A mask and its predicate, of (name, share), ("~", rule), ("&", rule, rule) or ("|", rule, rule)."""
    name, *parts = rule
    if name not in ("~", "&", "|"):
        return _LEAVES[name](parts[0], scores, rng)
    sides = [make_rule(part, scores, rng) for part in parts]
    left, sees = sides[0]
    if name == "~":
        return (~left if isinstance(left, masks.Mask) else np.logical_not(left)), lambda at, i, j: not sees(at, i, j)
    right, sees_too = sides[1]
    if name == "&":
        return left & right, lambda at, i, j: sees(at, i, j) and sees_too(at, i, j)
    return left | right, lambda at, i, j: sees(at, i, j) or sees_too(at, i, j)


# ---------------------------------------------------------------------------------------------- biases
def make_bias(
    recipe: tuple[str, str, str], scores: Index, rng: np.random.Generator, sees: Sees, wild: str
) -> tuple[Any, Number]:
    """A bias of (kind, share, dtype). Where it is wild, NaN and +inf stand behind the mask, or anywhere."""
    kind, share, dtype = recipe
    if kind == "alibi":
        slopes = np.exp2(-rng.integers(0, 8, scores[-3] if len(scores) > 2 else 1).astype(float))
        offset, at_offset = _offset(share, scores, rng)
        head = slopes.tolist()
        return alibi(slopes, offset), lambda at, i, j: -head[at[-1] if at else 0] * abs(i + at_offset(at) - j)
    shape = scores[-2:] if share == "one" else _shared(share, scores, rng)
    values = np.where(rng.random(shape) < 0.15, -np.inf, 3 * rng.standard_normal(shape)).astype(FLOATS[dtype])
    if wild != "none" and shape == scores:
        for place in np.ndindex(shape):
            *at, i, j = place
            if rng.random() < 0.3 and (not sees(tuple(at), i, j) or (wild == "anywhere" and rng.random() < 0.1)):
                values[place] = rng.choice([np.nan, np.inf])
    return laid_out(values, str(rng.choice(LAYOUTS[:-2]))), lambda at, i, j: float(_pick(values, (*at, i, j)))
