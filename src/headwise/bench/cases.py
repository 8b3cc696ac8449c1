"""The cases of the benchmark as rows: workloads, shapes, options, what is timed, peers and targets."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

Shape = tuple[int, int, int, int]
TABLES = ("forward", "backward", "serving")  # of a page
_SERVING = ("decode", "prefill", "layer", "packed")  # groups, in a table of their own
_WHAT = {
    "attention": "",
    "prefill": "chunk by chunk through a cache",
    "layer": "a layer of width {width}",
    "layer-weights": "a layer of width {width}, with its weights",
    "packed": "sequences of {shortest} to {n} tokens without padding",
}  # by the name of a workload


class Case(NamedTuple):
    """One thing to measure; a new one, or a new group, is a new row of CASES."""

    name: str
    group: str
    shape: Shape  # (B, H, n_q, d_k)
    peers: Mapping[str, float | None]  # whom it is compared with -> the ratio peer / ours that is aimed at
    what: str = "attention"  # the workload: its name in WORKLOADS
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
    timed: str = (
        "forward"  # or "backward" alone, after a forward pass that is not timed; or "both", one after the other
    )
    most_extra: int | None = None  # MiB, of memory beyond inputs and results: what is aimed at
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
    def table(self) -> str:
        """The table that it stands in: that of the forward pass, of gradients, or of what serves."""
        if self.timed != "forward":
            return "backward"
        return "serving" if self.group in _SERVING else "forward"

    @property
    def family(self) -> str:
        """The group of its group: all groups of gradients are one, and all of what serves."""
        return self.group if self.table == "forward" else self.table

    @property
    def words(self) -> str:
        """What is computed, in words."""
        b, h, n, d = self.shape
        shape_k = (b, self.kv_heads or h, self.keys, d)
        said = [
            str(self.shape),
            f"keys {shape_k}" if shape_k != self.shape else "",
            _WHAT[self.what].format(width=h * d, shortest=shortest(n), n=n),
            self.part,
            self.dtype,
            f"d_v {self.d_v}" if self.d_v else "",
            f"q times {self.factor:g}" if self.factor != 1 else "",
            f"the last {self.keys - self.keys // 2} of {self.keys} keys are padding" if self.padded else "",
            f"window({self.window[0]}, {self.window[1]})" if self.window else "",
            f"random bool mask ({n}, {self.keys}), half True" if self.random else "",
            "alibi" if self.alibi else "",
            f"dropout {self.dropout:g}" if self.dropout else "",
            {"forward": "", "backward": "backward alone", "both": "forward and backward"}[self.timed],
        ]
        return ", ".join(filter(None, said))


def shortest(longest: int) -> int:
    """Return the length of the shortest of packed sequences.

    >>> shortest(1024)
    16
    """
    return max(1, longest // 64)


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
    Goal("backward-alone", "all", "torch", 1.15),
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

_GRADIENT_SHAPES: tuple[Shape, ...] = (
    (8, 8, 512, 64),
    (32, 12, 128, 64),
    (1, 8, 2048, 64),
    (1, 8, 4096, 64),
    (1, 16, 2048, 128),
)


def _full_and_causal(
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
    return _full_and_causal("", "forward", shape, ({**_FULL, **dense}, {**_CAUSAL, **dense}))


def _gradients(
    prefix: str, group: str, peers: Mapping[str, float | None], dense: bool = False, **more: Any
) -> list[Case]:
    """Full and causal cases of every shape; `dense` compares with plain NumPy too where all scores fit."""
    naive: Mapping[str, float | None] = {"naive": None}
    made = []
    for shape in _GRADIENT_SHAPES:
        whom = {**peers, **(naive if dense and shape[2] <= _LONGEST_DENSE else {})}
        made += _full_and_causal(prefix, group, shape, [whom] * 2, **more)
    return made


CASES: tuple[Case, ...] = (
    *(case for shape in _SHAPES for case in _forward(shape)),
    *(
        case
        for shape in _SHAPES
        if shape[2] >= 512
        for case in _full_and_causal("large-", "large", shape, [{"torch": 0.85}] * 2, factor=8.0)
    ),
    *(
        case
        for shape in ((8, 8, 512, 64), (1, 8, 2048, 64))
        for case in _full_and_causal("float64-", "float64", shape, [{"torch": 1.0}] * 2, dtype="float64")
    ),
    Case("padding", "masked", (8, 8, 1024, 64), {"torch": 1.7}, padded=True),
    Case("window", "masked", (1, 8, 8192, 64), {"torch": 18.0}, window=(256, 0)),
    Case("random", "masked", (1, 8, 2048, 64), {"torch": 1.0}, random=True),
    Case("alibi", "masked", (1, 8, 4096, 64), {"torch": 1.8}, causal=True, alibi=True),
    Case("narrow", "other", (1, 8, 2048, 64), {"torch": 5.0}, causal=True, d_v=32),
    Case("dropout", "other", (1, 8, 2048, 64), {"torch": 6.0}, causal=True, dropout=0.1),
    Case("tiny", "other", (1, 1, 16, 16), {"naive": 0.6}),
    Case("decode-512", "decode", (1, 32, 1, 128), {"torch": None, "naive": 0.9}, n_k=512, kv_heads=8),
    Case("decode-4096", "decode", (1, 32, 1, 128), {"torch": 2.0, "naive": None}, n_k=4096, kv_heads=8),
    Case("decode-32768", "decode", (1, 32, 1, 128), {"torch": 2.5}, n_k=32_768, kv_heads=8),
    Case("decode-8x4096", "decode", (8, 32, 1, 128), {"torch": 1.6}, n_k=4096, kv_heads=8),
    Case("prefill-2048", "prefill", (1, 32, 256, 128), {"torch": 0.95}, "prefill", causal=True, n_k=2048, kv_heads=8),
    Case("layer-8x512x768", "layer", (8, 12, 512, 64), {"torch": 1.3}, "layer", causal=True),
    Case("layer-weights-8x512x768", "layer", (8, 12, 512, 64), {"torch": 1.3}, "layer-weights", causal=True),
    Case("packed-64x1024", "packed", (64, 8, 1024, 64), {"torch": 1.5}, "packed", causal=True),
    Case("long-100000", "long", (1, 1, 100_000, 64), {}, causal=True, most_repeats=3, by_default=False),
    *_gradients("backward-", "backward-alone", {"torch": 1.0}, dense=True, timed="backward"),
    *_gradients("backward-padded-", "backward-padded", {"torch": 1.7}, timed="backward", padded=True),
    Case(
        "backward-window-1x8x4096x64",
        "backward-window",
        (1, 8, 4096, 64),
        {"torch": 7.0},
        window=(256, 0),
        timed="backward",
    ),
    *_gradients("both-", "backward-both", {"torch": None, "jax": 2.0}, dense=True, timed="both"),
    Case(
        "both-dropout-causal-1x8x2048x64",
        "backward-dropout",
        (1, 8, 2048, 64),
        {"torch": 3.0},
        causal=True,
        dropout=0.1,
        timed="both",
    ),
    *_full_and_causal(
        "both-", "backward-long", (1, 8, 8192, 64), [{"torch": None}] * 2, timed="both", most_extra=64, most_repeats=3
    ),
)


def select(names: Sequence[str] | None) -> list[Case]:
    """Return the cases of these names, groups or families of groups, in the order of the table.

    None is those that are run by default, and "all" is all of them.

    Raises
    ------
    ValueError
        If there is no case and no group of a name.

    Examples
    --------
    >>> [case.name for case in select(["float64", "tiny"])][-2:]
    ['float64-causal-1x8x2048x64', 'tiny']
    >>> {case.timed for case in select(["backward"])} == {"backward", "both"}
    True
    """
    if names is None:
        return [case for case in CASES if case.by_default]
    unknown = [name for name in names if not any(name in _called(case) for case in CASES)]
    if unknown or not names:
        groups = ", ".join(dict.fromkeys(name for case in CASES for name in (case.family, case.group)))
        raise ValueError(f"expected names of cases or groups ({groups}, all), got '{','.join(unknown)}'")
    return [case for case in CASES if not _called(case).isdisjoint(names)]


def _called(case: Case) -> set[str]:
    return {"all", case.name, case.group, case.family}


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


def rows() -> list[list[str]]:
    """Return name, group, what is computed and the peers with their targets, of every case."""
    return [[case.name, case.group, case.words, _aims(case)] for case in CASES]


def _aims(case: Case) -> str:
    aims = [peer if aim is None else f"{peer} {aim:g}" for peer, aim in case.peers.items()]
    aims += [] if case.most_extra is None else [f"{case.most_extra} MiB"]
    return ", ".join(aims) or "nobody"
