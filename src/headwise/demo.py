"""What `headwise demo`, `headwise attend` and `headwise info` compute: values are returned, nothing is printed."""

import importlib.metadata
import importlib.resources
import json
import math
import operator
import os
import platform
import re
import time
import tracemalloc
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from functools import partial, reduce
from typing import Any, NamedTuple

import numpy as np
from threadpoolctl import threadpool_info, threadpool_limits  # type: ignore[import-untyped]

import headwise
from headwise import induction
from headwise.bench.conditions import simd
from headwise.bench.memory import growth
from headwise.core import masks, workers
from headwise.core.attention import AttentionSteps, attention_steps, scaled_dot_product_attention
from headwise.core.engine import attention
from headwise.core.plan import AttentionPlan, attention_plan
from headwise.core.shapes import Array, Problem, letters, problem
from headwise.files import (
    FileError,
    PathLike,
    array_names,
    listed,
    open_checkpoint,
    physical_memory,
    read_arrays,
    shown,
)

PRONOUNS = 3  # the head of the sample that is shown unasked: its pronouns look at the name they stand for
OPTIONAL = ("mask", "bias", "lengths", "sinks")  # what `attend` uses of a file besides q, k and v
MOST_THREADS = 4096  # as for the engine
LONG = 20_000  # tokens of the demo's long run
_DRAWN_HALF = 16  # tokens of each half of the sequence whose weights are drawn: its picture fits 80 columns
HELD = 6  # arrays of the size of the scores that the definition holds at once: 4 to 7 were measured
_TRACED = 1e9  # operations up to which the engine's memory is traced: tracing slows a long run by a third and more
_Made = tuple[Array, Array, Array | None, AttentionPlan | None, float, int | None, str]  # as in Attended


class Pair(NamedTuple):
    """A query, the key that it attends to, and how much."""

    query: int
    key: int
    weight: float


class HeadSummary(NamedTuple):
    """One head in a few numbers; the shares are means over queries."""

    head: int
    entropy: float  # bits, mean over queries: 0 is one key, log2(n) all alike
    strongest: Pair  # besides the first token and the query itself, whose shares follow
    on_itself: float
    on_previous: float  # over the queries that have a token before them
    on_first: float
    note: str  # what the head is known to do, from the sample's own notes


class Classic(NamedTuple):
    """The engine on the classic exercise: causal attention, batch 8 x 512 tokens x d_model 64, 8 heads."""

    shape: tuple[int, ...]  # of q, k and v once their heads are split: (B, H, n, d)
    seconds: float  # the best of a few
    difference: float  # largest, from the definition, in the first item
    plan: AttentionPlan


class LongRun(NamedTuple):
    """The engine on a sequence whose scores nobody would store."""

    shape: tuple[int, ...]  # of q, k and v: (H, n, d)
    seconds: float
    peak: int  # bytes allocated at the same time, result included; traced in a run of its own
    scores: int  # bytes that the matrix of scores would take
    plan: AttentionPlan


class Demo(NamedTuple):
    """The definition run on the sample, a real sentence in a real model; and the engine on more than that."""

    tokens: list[str]
    about: dict[str, Any]  # model, layer, sentence, licence, ...
    causal: bool
    shape: tuple[int, ...]  # of q, k and v: (H, n, d)
    heads: list[HeadSummary]
    head: int  # the one whose weights these are
    weights: Array  # (n, n)
    difference: float | None  # largest, from the reference weights; None under a causal mask, which it lacks
    seconds: float  # of the definition
    classic: Classic
    long: LongRun


def load_sample() -> tuple[dict[str, Array], dict[str, Any]]:
    """Return the arrays q, k, v, weights (H, n, ...) and tokens (n,) of the sample, and where they come from."""
    folder = importlib.resources.files("headwise") / "data"
    with importlib.resources.as_file(folder / "sample.npz") as path:
        arrays = read_arrays(path, ["q", "k", "v", "weights", "tokens"])
    return arrays, json.loads((folder / "sample.json").read_text(encoding="utf-8"))


def summarise(head: int, weights: Array, note: str = "") -> HeadSummary:
    """Return entropy, strongest pair and shares of one head.

    Parameters
    ----------
    head : int
        Its number.
    weights : ndarray, shape (n, n)
        Its weights; queries and keys are the same tokens. n >= 1.
    note : str
        What is known of it.

    Examples
    --------
    >>> summary = summarise(0, np.array([[1.0, 0, 0], [0.5, 0.5, 0], [0, 0.25, 0.75]]))
    >>> summary.strongest, summary.on_first
    (Pair(query=2, key=1, weight=0.25), 0.5)
    """
    w = weights.astype(np.float64)
    logs = np.log2(w, out=np.zeros_like(w), where=w > 0)
    return HeadSummary(
        head,
        float(-(w * logs).sum(axis=-1).mean()),
        _strongest(w),
        float(np.diagonal(w).mean()),
        float(np.diagonal(w, -1).mean()) if len(w) > 1 else 0.0,
        float(w[:, 0].mean()),
        note,
    )


def _strongest(weights: Array) -> Pair:
    """Return the largest weight on another token than the first, which many heads use as a resting place."""
    others = weights.copy()
    np.fill_diagonal(others, 0)
    others[:, 0] = 0
    query, key = (int(i) for i in np.unravel_index(np.argmax(others), others.shape))
    return Pair(query, key, float(others[query, key]))


def demo(head: int | None = None, causal: bool = False) -> Demo:
    """Run the definition on the sample that comes with the package, and the engine on random numbers.

    Parameters
    ----------
    head : int, optional
        The head whose weights are handed back, from 0.
    causal : bool
        Put a causal mask on a model that was trained without one.

    Returns
    -------
    Demo

    Raises
    ------
    ValueError
        If there is no such head.

    Examples
    --------
    >>> result = demo()
    >>> result.tokens[:3], result.shape, result.difference < 1e-5
    (['[CLS]', 'alice', 'was'], (12, 22, 32), True)
    """
    arrays, about = load_sample()
    q, k, v, reference = (arrays[name] for name in ("q", "k", "v", "weights"))
    chosen = PRONOUNS if head is None else head
    if not 0 <= chosen < len(q):
        raise ValueError(f"head: expected 0 to {len(q) - 1}, got {chosen}; the sample has {len(q)} heads")
    start = time.perf_counter()
    _, weights = scaled_dot_product_attention(q, k, v, causal=causal)
    seconds = time.perf_counter() - start
    notes = about.get("heads", {})
    return Demo(
        tokens=[str(token) for token in arrays["tokens"]],
        about=about,
        causal=causal,
        shape=q.shape,
        heads=[summarise(i, w, notes.get(str(i), "")) for i, w in enumerate(weights)],
        head=chosen,
        weights=weights[chosen],
        difference=None if causal else float(np.abs(weights - reference).max()),
        seconds=seconds,
        classic=_classic(),
        long=_long_run(LONG),
    )


def _classic() -> Classic:
    batch, n_tokens, d_model, n_heads = 8, 512, 64, 8
    whole = np.random.default_rng(0).standard_normal((3, batch, n_tokens, d_model), dtype=np.float32)
    q, k, v = whole.reshape(3, batch, n_tokens, n_heads, -1).swapaxes(2, 3)  # heads are a batch axis like any other
    run = partial(attention, q, k, v, causal=True)
    expected, _ = scaled_dot_product_attention(q[0], k[0], v[0], causal=True)
    difference = float(np.abs(run()[0] - expected).max())
    seconds = min(_timed(run)[1] for _ in range(3))
    return Classic(q.shape, seconds, difference, attention_plan(q, k, v, causal=True))


def _long_run(n_tokens: int) -> LongRun:
    q, k, v = np.random.default_rng(0).standard_normal((3, 1, n_tokens, 64), dtype=np.float32)
    run = partial(attention, q, k, v, causal=True)
    _, _, peak = _traced(run)
    _, seconds = _timed(run)
    return LongRun(q.shape, seconds, peak, n_tokens**2 * q.itemsize, attention_plan(q, k, v, causal=True))


class InductionDemo(NamedTuple):
    """The small transformer that comes with the package, on sequences that it was not trained on."""

    tokens: str  # one of them, a character for each token
    predicted: str  # what the model took each token for, before it saw it; '.' where nothing could tell
    found: induction.Examined  # on longer ones, and more of them
    head: induction.HeadScore  # the strongest induction head, there
    weights: Array  # (n, n), what that head does in the first sequence
    size: int  # of all weights of the model
    seconds: float


def induction_demo(seed: int = 0) -> InductionDemo:
    """Run a small transformer on sequences that repeat themselves, and find out which of its heads do what.

    Parameters
    ----------
    seed : int
        Of the sequences, at least 0.

    Returns
    -------
    InductionDemo

    Examples
    --------
    >>> result = induction_demo()
    >>> result.found.judged.accuracy > 0.97, result.head.induction > 0.5, result.weights.shape
    (True, True, (32, 32))
    """
    model = induction.load()
    start = time.perf_counter()
    found = induction.examine(model, seed)
    _, head = induction.leading(found.heads)
    tokens = induction.unseen(seed, 1, _DRAWN_HALF)
    steps = induction.forward(model, tokens)
    queries, _ = induction.predictions(tokens)
    likeliest = steps.logits[0, queries].argmax(axis=-1)
    return InductionDemo(
        tokens="".join(induction.NAMES[token] for token in tokens[0]),
        predicted="." * (queries.start + 1) + "".join(induction.NAMES[token] for token in likeliest),
        found=found,
        head=head,
        weights=induction.attention_weights(steps)[head.layer][0, head.head],
        size=sum(weight.size for weight in model.values()),
        seconds=time.perf_counter() - start,
    )


class Figures(NamedTuple):
    """An array in a few numbers; the last four are of its finite values, NaN where there are none."""

    size: int
    finite: float  # share of the values
    low: float
    high: float
    mean: float
    norm: float


class Attended(NamedTuple):
    """Attention run on arrays from a file."""

    arrays: dict[str, Array]  # those used, by name: q, k, v, and of OPTIONAL what the file has
    ignored: list[str]  # further arrays of the file
    out: Array  # (..., H, n_q, d_v)
    lse: Array  # (..., H, n_q)
    weights: Array | None  # (..., H, n_q, n_k); None where they were not asked for
    plan: AttentionPlan | None  # of the engine; None where the definition ran, for its weights
    seconds: float
    peak: int | None  # bytes in use at the same time while computing, results included; None if nobody says
    counted: str  # how: "traced", every allocation, or "resident", what the process took at its peak
    figures: Figures  # of out


def figures(array: Array) -> Figures:
    """Return an array in a few numbers.

    >>> figures(np.array([3.0, np.nan, 4.0, np.inf]))
    Figures(size=4, finite=0.5, low=3.0, high=4.0, mean=3.5, norm=5.0)
    """
    values = array[np.isfinite(array)].astype(np.float64)
    if values.size == 0:
        return Figures(array.size, 0.0 if array.size else 1.0, math.nan, math.nan, math.nan, math.nan)
    numbers = values.min(), values.max(), values.mean(), np.linalg.norm(values)
    return Figures(array.size, values.size / array.size, *map(float, numbers))


def attend(
    path: PathLike,
    *,
    causal: bool = False,
    window: tuple[int | None, int | None] | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    weights: bool = False,
    threads: int | None = None,
    progress: Callable[[int, int], object] | None = None,
) -> Attended:
    """Run attention on the arrays of a file: the engine, or for the weights the definition.

    Parameters
    ----------
    path : str or path-like
        An .npz or .safetensors file, or a folder of .npy files, with q, k, v and optionally mask (bool, True = may
        attend), bias, lengths (real keys of each item) and sinks. Arrays of other names are not used.
    causal : bool
        As for `attention`.
    window : (int or None, int or None), optional
        Keys to the left and to the right that a query sees besides its own; None is unlimited. Intersects with
        `causal` and with the file's mask.
    scale, softcap : float, optional
        As for `attention`.
    weights : bool
        Run the definition, which makes the weights and holds all scores at once.
    threads : int, optional
        Threads of the engine, or of the BLAS that the definition calls; by default as many as NumPy's BLAS uses.
    progress : callable, optional
        As for `attention`; the definition tells nothing.

    Returns
    -------
    Attended

    Raises
    ------
    FileError
        The file cannot be read, its arrays do not fit together or the options, or what is made of them (with
        `weights` the scores) does not fit in memory; one line, which begins with the file.
    ValueError
        The number of threads is none.
    """
    if threads is not None and not 1 <= threads <= MOST_THREADS:
        raise ValueError(f"threads: expected 1 to {MOST_THREADS}, got {threads}")
    arrays, ignored = _read(path)
    options: dict[str, Any] = {name: arrays.get(name) for name in ("mask", "bias", "sinks")}
    options |= {"causal": causal, "scale": scale, "softcap": softcap}
    _check(path, arrays, options)  # the file's own mask first, in its own words
    options["mask"] = _whole_mask(path, arrays, window)
    p = _check(path, arrays, options)
    inputs = [arrays[name] for name in ("q", "k", "v")]
    if weights:
        made = _by_definition(path, p, partial(attention_steps, *inputs, **options), threads)
    else:
        plan = attention_plan(*inputs, **options, threads=threads)
        engine = partial(attention, *inputs, **options, return_lse=True, threads=threads, progress=progress)
        made = _by_engine(path, p, engine, plan)
    return Attended(arrays, ignored, *made, figures(made[0]))


def _read(path: PathLike) -> tuple[dict[str, Array], list[str]]:
    """The arrays of a file that are used, and the names of the others."""
    wanted = ["q", "k", "v"]
    if not os.fspath(path).lower().endswith(".safetensors") or os.path.isdir(path):
        arrays = read_arrays(path, wanted, optional=OPTIONAL)
        return arrays, [name for name in array_names(path) if name not in arrays]
    held = open_checkpoint(path)
    missing = [name for name in wanted if name not in held]
    if missing:
        found = f"missing {listed(missing)}; found {listed(list(held))}"
        raise FileError(f"{shown(path, 1000)}: expected arrays {listed(wanted)}; {found}")
    arrays = {name: held[name] for name in (*wanted, *OPTIONAL) if name in held}
    return arrays, [name for name in held if name not in arrays]


def array_letters(name: str, shape: tuple[int, ...]) -> str:
    """Return the dimension letters of an array of `attend`.

    >>> array_letters("k", (2, 3, 5, 7)), array_letters("mask", (5,))
    ('(B, G, n_k, d_k)', '(n_k)')
    """
    if name == "lengths":
        return {0: "()", 1: "(B)"}.get(len(shape), "(..., B)")
    if name == "lse":
        return letters((*shape, 1)).replace(", n_k", "")
    if len(shape) < 2:
        return ("(H)" if name == "sinks" else "(n_k)") if shape else "()"
    tails = {"q": "n_q, d_k", "k": "n_k, d_k", "v": "n_k, d_v", "out": "n_q, d_v"}
    named = letters(shape).replace("n_q, n_k", tails.get(name, "n_q, n_k"))
    return named.replace("H", "G") if name in ("k", "v") and len(shape) > 3 else named


def _whole_mask(path: PathLike, arrays: Mapping[str, Array], window: tuple[int | None, int | None] | None) -> Any:
    """The file's mask and lengths and the window, intersected; None where there is none of them."""
    rules: list[Any] = [] if window is None else [masks.window(*window)]
    if "lengths" in arrays:
        try:
            rules.append(masks.lengths(arrays["lengths"]))
        except (TypeError, ValueError) as error:
            raise FileError(f"{shown(path, 1000)}: {str(error).partition(': ')[2]}") from error
    rules += [arrays["mask"]] if "mask" in arrays else []
    return reduce(operator.and_, rules) if rules else None


def _check(path: PathLike, arrays: Mapping[str, Array], options: Mapping[str, Any]) -> Problem:
    """Word what does not fit as a fault of the file."""
    try:
        return problem(shown(path, 1000), arrays["q"], arrays["k"], arrays["v"], **options, dropout=0.0, rng=None)
    except (TypeError, ValueError) as error:
        raise FileError(one_line(error)) from error


def one_line(error: Exception) -> str:
    """Return the text of an error, whose further lines are a list, as one line."""
    first, *rest = str(error).splitlines() or [type(error).__name__]
    return f"{first}: {'; '.join(map(str.strip, rest))}" if rest else first


def check_memory(path: PathLike, name: str, what: str, needed: int, got: tuple[int, ...], remedy: str) -> None:
    """Refuse what no memory here holds."""
    memory = physical_memory()
    if memory is not None and needed > memory:
        expected = f"{what} that fit the {memory / 2**30:.3g} GiB of memory here"
        text = f"{name}: expected {expected}, got {got}, which need about {needed / 2**30:.3g} GiB"
        raise FileError(f"{shown(path, 1000)}: {text}; attend from fewer queries at a time{remedy}")


def _by_definition(path: PathLike, p: Problem, run: Callable[[], AttentionSteps], threads: int | None) -> _Made:
    needed = HELD * math.prod(p.scores) * p.computing.itemsize
    check_memory(path, "q and k", "scores", needed, p.scores, "; without --weights no scores are stored")
    with nullcontext() if threads is None else threadpool_limits(threads, user_api="blas"):
        steps, seconds, peak = _traced(run)
    return steps.out, steps.lse, steps.weights, None, seconds, peak, "traced"


def _by_engine(path: PathLike, p: Problem, run: Callable[[], tuple[Array, Array]], plan: AttentionPlan) -> _Made:
    results = math.prod(p.scores[:-1]) * (p.v.shape[-1] * p.dtype.itemsize + p.computing.itemsize)
    check_memory(path, "q and k", "results and tiles", plan.bytes + results, p.scores, "")
    workers.default_threads()  # the BLAS is looked for once, and that is not what is measured here
    (out, lse), seconds, peak, counted = measured(run, plan.flops)
    return out, lse, None, plan, seconds, peak, counted


def measured(run: Callable[[], tuple[Array, Any]], flops: float) -> tuple[Any, float, int | None, str]:
    """Return what a run gives, its seconds, the bytes it took at its peak, and how they were counted."""
    if flops <= _TRACED:
        return *_traced(run), "traced"
    return *_resident(run), "resident"


def _timed(run: Callable[[], Any]) -> tuple[Any, float]:
    """Return what a run gives, and its seconds."""
    start = time.perf_counter()
    result = run()
    return result, time.perf_counter() - start


def _traced(run: Callable[[], Any]) -> tuple[Any, float, int]:
    """Return what a run gives, its seconds, and the bytes it had allocated at its peak, by tracing each allocation."""
    tracing = tracemalloc.is_tracing()
    if not tracing:
        tracemalloc.start()
    try:
        tracemalloc.reset_peak()
        before = tracemalloc.get_traced_memory()[0]
        result, seconds = _timed(run)
        return result, seconds, tracemalloc.get_traced_memory()[1] - before
    finally:
        if not tracing:
            tracemalloc.stop()


def _resident(run: Callable[[], tuple[Array, Any]]) -> tuple[Any, float, int | None]:
    """Return what a run gives, its seconds, and the bytes by which the process grew: as fast as without measuring."""
    made: list[tuple[tuple[Array, Any], float]] = []

    def once() -> Array:
        made.append(_timed(run))
        return made[0][0][0]  # out

    grown = growth(once)
    [(result, seconds)] = made
    return result, seconds, None if grown is None else grown + result[0].nbytes


class Info(NamedTuple):
    """What this installation is and runs on."""

    versions: dict[str, str]
    simd: list[str]
    blas: list[dict[str, Any]]  # as threadpoolctl tells it
    extras: dict[str, dict[str, str | None]]  # extra -> package -> version, None where it is not installed
    threads: int  # of the engine, by default
    limited: list[str]  # each BLAS that the engine holds to one thread in each of its own
    note: str  # what is in the way of threads, if anything is


def info() -> Info:
    """Return versions, CPU features, BLAS libraries, threads and extras of this installation; no extra is imported.

    As many threads are started as the engine would use, which tells whether they can be.

    Examples
    --------
    >>> list(info().versions)
    ['headwise', 'Python', 'NumPy', 'platform']
    """
    versions = {
        "headwise": headwise.__version__,
        "Python": platform.python_version(),
        "NumPy": np.__version__,
        "platform": platform.platform(),
    }
    blas = threadpool_info()
    n_threads = workers.default_threads()
    workers.run(lambda: _nothing, range(n_threads), n_threads)  # else nobody knows whether threads can start
    state = workers.state()
    limited = [" ".join(filter(None, library)) for library in state.blas]
    return Info(versions, simd(), blas, _extras(), state.threads, limited, state.note)


def _nothing(task: int) -> None:
    """A task for each thread."""


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _extras() -> dict[str, dict[str, str | None]]:
    """Return what each extra asks for, as the package's own metadata has it."""
    try:
        wanted = importlib.metadata.requires("headwise") or []
    except importlib.metadata.PackageNotFoundError:
        return {}
    found: dict[str, dict[str, str | None]] = {}
    for requirement in wanted:
        match = re.match(r"([\w.-]+).*;.*extra == ['\"]([\w-]+)['\"]", requirement)
        if match and match[2] != "all":  # the sum of others
            found.setdefault(match[2], {})[match[1]] = _version(match[1])
    return found
