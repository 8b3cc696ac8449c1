"""The cases of the benchmark as rows: shapes, options, peers and targets; and their inputs, from a seed."""

import math
import operator
from collections.abc import Collection, Mapping, Sequence
from functools import reduce
from typing import Any, NamedTuple

import numpy as np

from headwise.core import masks
from headwise.core.positions import alibi, alibi_slopes
from headwise.core.shapes import Array

Shape = tuple[int, int, int, int]


class Case(NamedTuple):
    """One thing to measure; a new one, or a new group, is a new row of CASES."""

    name: str
    group: str
    shape: Shape  # (B, H, n_q, d_k)
    peers: Mapping[str, float | None]  # whom it is compared with -> the ratio peer / ours that is aimed at
    causal: bool = False
    dtype: str = "float32"
    n_k: int | None = None  # None: n_q
    kv_heads: int | None = None  # G; None: H
    d_v: int | None = None  # None: d_k
    factor: float = 1.0  # multiplies q: scores as large as trained models can have them
    padded: bool = False  # the second half of the keys of every item is padding
    window: tuple[int, int] | None = None  # keys to the left and right besides the own one
    random: bool = False  # a mask of random bits, half of them True
    alibi: bool = False
    dropout: float = 0.0
    most_repeats: int | None = None
    by_default: bool = True

    @property
    def keys(self) -> int:
        """The number of keys, n_k."""
        return self.shape[2] if self.n_k is None else self.n_k

    @property
    def part(self) -> str:
        """The part of its group that it belongs to."""
        return "causal" if self.causal else "full"

    @property
    def words(self) -> str:
        """What is computed, in words."""
        b, _, n, d = self.shape
        shape_k = (b, self.kv_heads or self.shape[1], self.keys, d)
        said = [
            str(self.shape),
            f"keys {shape_k}" if shape_k != self.shape else "",
            self.part,
            self.dtype,
            f"d_v {self.d_v}" if self.d_v else "",
            f"q times {self.factor:g}" if self.factor != 1 else "",
            f"the last {self.keys - self.keys // 2} of {self.keys} keys are padding" if self.padded else "",
            f"window({self.window[0]}, {self.window[1]})" if self.window else "",
            f"random bool mask ({n}, {self.keys}), half True" if self.random else "",
            "alibi" if self.alibi else "",
            f"dropout {self.dropout:g}" if self.dropout else "",
        ]
        return ", ".join(filter(None, said))


class Goal(NamedTuple):
    """A target for the geometric mean of the ratios of a group, or of its full or causal part."""

    group: str
    part: str  # "all", "full" or "causal"
    peer: str
    at_least: float


GOALS = (
    Goal("forward", "all", "torch", 1.3),
    Goal("forward", "full", "onnxruntime", 0.98),
    Goal("forward", "causal", "onnxruntime", 1.9),
    Goal("forward", "all", "naive", 5.5),
    Goal("large", "all", "torch", 0.95),
)

_SHAPES: tuple[Shape, ...] = (
    (8, 8, 512, 64),
    (8, 8, 512, 8),
    (32, 12, 128, 64),
    (1, 8, 2048, 64),
    (1, 8, 8192, 64),
    (1, 16, 4096, 128),
)
_FULL = {"torch": 1.0, "onnxruntime": 0.9, "jax": 2.0, "openvino": 0.85}
_CAUSAL = {"torch": 1.0, "onnxruntime": 1.5, "jax": 2.0, "openvino": 1.3}
_DENSE: Mapping[str, float | None] = {"naive": 3.5, "onnx": None}  # they hold all scores: up to 2048 tokens only
_LONGEST_DENSE = 2048


def _both(
    prefix: str, group: str, shape: Shape, peers: Sequence[Mapping[str, float | None]], **more: Any
) -> list[Case]:
    """A full case and a causal one of the same shape."""
    size = "x".join(map(str, shape))
    return [
        Case(f"{prefix}{part}-{size}", group, shape, peers[causal], causal=bool(causal), **more)
        for causal, part in enumerate(("full", "causal"))
    ]


def _forward(shape: Shape) -> list[Case]:
    dense = _DENSE if shape[2] <= _LONGEST_DENSE else {}
    return _both("", "forward", shape, ({**_FULL, **dense}, {**_CAUSAL, **dense}))


CASES: tuple[Case, ...] = (
    *(case for shape in _SHAPES for case in _forward(shape)),
    *(
        case
        for shape in _SHAPES
        if shape[2] >= 512
        for case in _both("large-", "large", shape, [{"torch": 0.85}] * 2, factor=8.0)
    ),
    *(
        case
        for shape in ((8, 8, 512, 64), (1, 8, 2048, 64))
        for case in _both("float64-", "float64", shape, [{"torch": 1.0}] * 2, dtype="float64")
    ),
    Case("padding", "masked", (8, 8, 1024, 64), {"torch": 1.7}, padded=True),
    Case("window", "masked", (1, 8, 8192, 64), {"torch": 18.0}, window=(256, 0)),
    Case("random", "masked", (1, 8, 2048, 64), {"torch": 1.0}, random=True),
    Case("alibi", "masked", (1, 8, 4096, 64), {"torch": 1.8}, causal=True, alibi=True),
    Case("narrow", "other", (1, 8, 2048, 64), {"torch": 5.0}, causal=True, d_v=32),
    Case("dropout", "other", (1, 8, 2048, 64), {"torch": 6.0}, causal=True, dropout=0.1),
    Case("tiny", "other", (1, 1, 16, 16), {"naive": 0.6}),
    Case("long-100000", "long", (1, 1, 100_000, 64), {}, causal=True, most_repeats=3, by_default=False),
)


def select(names: Sequence[str] | None) -> list[Case]:
    """Return the cases of these names or groups, in the order of the table; None is those that are run by default.

    Raises
    ------
    ValueError
        If there is no case and no group of a name.

    Examples
    --------
    >>> [case.name for case in select(["float64", "tiny"])][-2:]
    ['float64-causal-1x8x2048x64', 'tiny']
    """
    if names is None:
        return [case for case in CASES if case.by_default]
    unknown = [name for name in names if not any(name in (case.name, case.group) for case in CASES)]
    if unknown or not names:
        groups = ", ".join(dict.fromkeys(case.group for case in CASES))
        raise ValueError(f"expected names of cases or groups ({groups}), got '{','.join(unknown)}'")
    return [case for case in CASES if case.name in names or case.group in names]


def compared(cases: Collection[Case]) -> list[str]:
    """Return the peers that any of the cases is compared with.

    >>> compared(select(["tiny", "float64"]))
    ['torch', 'naive']
    """
    return list(dict.fromkeys(peer for case in cases for peer in case.peers))


def whole_groups(cases: Collection[Case]) -> list[str]:
    """Return the groups all of whose cases are here.

    >>> whole_groups(select(["float64", "tiny"]))
    ['float64']
    """
    absent = {case.group for case in CASES if case not in cases}
    return [group for group in dict.fromkeys(case.group for case in cases) if group not in absent]


class Inputs(NamedTuple):
    """The arrays of a case."""

    q: Array  # (B, H, n_q, d_k)
    k: Array  # (B, G, n_k, d_k)
    v: Array  # (B, G, n_k, d_v)
    seen: Array | None = None  # (n_q, n_k), the random mask


def make(case: Case, seed: int = 0) -> Inputs:
    """Return the inputs of a case: standard normal, from a seed, without larger arrays on the way."""
    rng = np.random.default_rng(seed)
    b, h, n, d = case.shape
    g, dtype = case.kv_heads or h, np.dtype(case.dtype).type
    q, k, v = (
        rng.standard_normal(shape, dtype=dtype)
        for shape in (case.shape, (b, g, case.keys, d), (b, g, case.keys, case.d_v or d))
    )
    q *= dtype(case.factor)
    return Inputs(q, k, v, rng.integers(0, 2, (n, case.keys), dtype=np.bool_) if case.random else None)


def options(case: Case, inputs: Inputs) -> dict[str, Any]:
    """Return what our functions are called with besides q, k and v; dropout needs an `rng` as well."""
    b, h, _, _ = case.shape
    rules: list[Any] = [] if case.window is None else [masks.window(*case.window)]
    rules += [masks.lengths([case.keys // 2] * b)] if case.padded else []
    rules += [inputs.seen] if inputs.seen is not None else []
    return {
        "mask": reduce(operator.and_, rules) if rules else None,
        "bias": alibi(alibi_slopes(h)) if case.alibi else None,
        "causal": case.causal,
        "dropout": case.dropout,
    }


def dense_mask(case: Case, inputs: Inputs, causal: bool) -> Array | None:
    """Return where a query may attend, for those who take a bool array: (n_q, n_k) or (B, 1, n_q, n_k); None is all.

    `causal` says whether the array has the causal rule in it, or the peer has a flag for it.
    """
    shape = (case.shape[0], 1, case.shape[2], case.keys)[0 if case.padded else 2 :]
    rules = [masks.causal()] if causal and case.causal else []
    given = options(case, inputs)["mask"]
    rules += [] if given is None else [given]
    if not rules:
        return None
    return reduce(np.logical_and, (r if isinstance(r, np.ndarray) else r.dense(shape) for r in rules)).copy()


def dense_bias(case: Case, inputs: Inputs) -> Array | None:
    """Return alibi, and -inf where masked, as one array to add: ([B,] H, n_q, n_k), of the case's dtype.

    None where there is no alibi.
    """
    if not case.alibi:
        return None
    _, h, n, _ = case.shape
    bias = np.empty((h, n, case.keys), case.dtype)
    for head, slope in zip(bias, alibi_slopes(h), strict=True):
        head[:] = alibi([slope]).dense((n, case.keys))
    seen = dense_mask(case, inputs, causal=True)
    return bias if seen is None else np.where(seen, bias, -np.inf).astype(case.dtype, copy=False)


def pairs(case: Case, inputs: Inputs) -> int:
    """Return how many pairs of query and key are visible, over all items and heads.

    >>> case = CASES[1]
    >>> case.causal, pairs(case, make(case)) == 8 * 8 * 512 * 513 // 2
    (True, True)
    """
    b, h, n, _ = case.shape
    if inputs.seen is not None:
        seen = np.asarray(dense_mask(case, inputs, causal=True))
        return h * int(np.count_nonzero(np.broadcast_to(seen, (b, 1, n, case.keys))))
    own = np.arange(n) + case.keys - n  # the key that stands where the query does
    left, right = case.window or (case.keys, case.keys)
    last = np.minimum(own + (0 if case.causal else right), (case.keys // 2 if case.padded else case.keys) - 1)
    return b * h * int(np.maximum(0, last - np.maximum(own - left, 0) + 1).sum())


def operations(case: Case, inputs: Inputs) -> int:
    """Return the additions and multiplications of the two products over visible pairs."""
    return 2 * pairs(case, inputs) * (case.shape[3] + (case.d_v or case.shape[3]))


def scores_bytes(case: Case) -> int:
    """Return what the matrix of all scores would take.

    >>> scores_bytes(select(["long"])[0]) / 2**30
    37.25290298461914
    """
    b, h, n, _ = case.shape
    return math.prod((b, h, n, case.keys)) * np.dtype(case.dtype).itemsize


def rows() -> list[list[str]]:
    """Return name, group, what is computed and the peers with their targets, of every case."""
    return [[case.name, case.group, case.words, _aims(case)] for case in CASES]


def _aims(case: Case) -> str:
    aims = (peer if aim is None else f"{peer} {aim:g}" for peer, aim in case.peers.items())
    return ", ".join(aims) or "nobody"
