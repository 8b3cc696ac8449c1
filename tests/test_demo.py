"""demo: the numbers behind the commands, against hand-computed values and the sample's reference."""

import importlib.metadata
import threading
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

import headwise as hw
from headwise import demo, induction, masks
from headwise.core import workers
from headwise.core.shapes import Array
from headwise.demo import array_letters, attend, figures, load_sample, summarise
from headwise.files import FileError


def saved(path: Path, **arrays: Any) -> Path:
    np.savez(path, **arrays)
    return path


def qkv(*lead: int, n_q: int = 5, n_k: int = 7, dtype: Any = np.float64) -> dict[str, Array]:
    rng = np.random.default_rng(11)
    shapes = {"q": (n_q, 3), "k": (n_k, 3), "v": (n_k, 2)}
    return {name: rng.standard_normal((*lead, *shape)).astype(dtype) for name, shape in shapes.items()}


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """The demo's long run, made short."""
    monkeypatch.setattr(demo, "LONG", 1500)


# ---------------------------------------------------------------------------------------------- demo
def test_the_sample_is_complete_and_from_a_real_model() -> None:
    arrays, about = load_sample()
    n_heads, n, _ = arrays["q"].shape
    assert arrays["k"].shape == arrays["v"].shape == arrays["q"].shape
    assert arrays["weights"].shape == (n_heads, n, n)
    assert arrays["tokens"].shape == (n,)
    assert {"model", "layer", "sentence", "weights_licence"} <= about.keys()


def test_the_demo_agrees_with_the_reference() -> None:
    result = demo.demo()
    arrays, _ = load_sample()
    assert result.difference is not None
    assert 0 < result.difference < 1e-5
    assert result.head == demo.PRONOUNS
    np.testing.assert_allclose(result.weights, arrays["weights"][demo.PRONOUNS], atol=1e-5)
    assert len(result.heads) == len(arrays["q"])
    assert len(result.tokens) == arrays["q"].shape[1]
    assert result.seconds > 0


def test_the_classic_run_is_the_definition_on_split_heads() -> None:
    classic = demo.demo().classic
    assert classic.shape == (8, 8, 512, 8)
    assert 0 < classic.difference < 1e-5
    assert classic.seconds > 0
    assert classic.plan.scores == (8, 8, 512, 512)
    assert 0 < classic.plan.skipped < classic.plan.computed  # causal


def test_a_difference_of_the_classic_run_would_show(monkeypatch: pytest.MonkeyPatch) -> None:
    def off(*arrays: Array, **options: Any) -> Array:
        out: Array = hw.attention(*arrays, **options)
        return out + np.float32(0.25)

    monkeypatch.setattr(demo, "attention", off)
    assert demo.demo().classic.difference == pytest.approx(0.25, abs=1e-5)


def test_the_long_run_takes_less_memory_than_its_scores() -> None:
    n = demo.LONG
    long = demo.demo().long
    assert long.shape == (1, n, 64)
    assert long.scores == n * n * 4
    assert n * 64 * 4 < long.peak < n * 64 * 4 + long.plan.bytes
    assert long.peak < long.scores
    assert long.plan.scores == (1, n, n)
    assert long.seconds > 0
    assert not tracemalloc.is_tracing()


def test_a_causal_demo_has_no_reference() -> None:
    result = demo.demo(head=0, causal=True)
    assert result.difference is None
    assert result.head == 0
    assert not np.triu(result.weights, 1).any()
    assert all(head.strongest.key <= head.strongest.query for head in result.heads)


@pytest.mark.parametrize("head", [-1, 12, 10**30])
def test_a_head_that_is_not_there(head: int) -> None:
    with pytest.raises(ValueError, match=rf"^head: expected 0 to 11, got {head}; the sample has 12 heads$"):
        demo.demo(head)


def test_a_head_in_numbers() -> None:
    weights = np.array([[1.0, 0, 0], [0.5, 0.5, 0], [0.25, 0.5, 0.25]])
    head = summarise(7, weights, "a note")
    assert head == demo.HeadSummary(
        head=7,
        entropy=pytest.approx((0 + 1 + 1.5) / 3),
        strongest=demo.Pair(2, 1, 0.5),
        on_itself=pytest.approx((1 + 0.5 + 0.25) / 3),
        on_previous=pytest.approx((0.5 + 0.5) / 2),
        on_first=pytest.approx((1 + 0.5 + 0.25) / 3),
        note="a note",
    )


def test_a_head_over_one_token() -> None:
    head = summarise(0, np.ones((1, 1)))
    assert (head.entropy, head.on_itself, head.on_previous, head.on_first) == (0, 1, 0, 1)


def test_even_weights_have_the_largest_entropy() -> None:
    assert summarise(0, np.full((8, 8), 1 / 8, np.float32)).entropy == pytest.approx(3)


# ----------------------------------------------------------------------------------------- induction
def test_the_small_model_at_work_on_one_new_sequence() -> None:
    result = demo.induction_demo(3)
    model = induction.load()
    tokens = induction.unseen(3, 1, 16)
    assert result.tokens == "".join(induction.NAMES[token] for token in tokens[0])
    assert result.tokens[:16] == result.tokens[16:]
    assert result.predicted[:17] == "." * 17
    right = sum(a == b for a, b in zip(result.predicted[17:], result.tokens[17:], strict=True))
    assert right / 15 == induction.judge(induction.forward(model, tokens).logits, tokens).accuracy
    assert right >= 14
    assert result.found == induction.examine(model, 3)
    assert result.head == max(result.found.heads, key=lambda score: score.induction)
    layer = induction.forward(model, tokens).layers[result.head.layer]
    q, k, v = (x[0, result.head.head] for x in (layer.q, layer.k, layer.v))
    _, weights = hw.scaled_dot_product_attention(q, k, v, causal=True)
    np.testing.assert_allclose(result.weights, weights, atol=1e-6)
    assert result.size == sum(weight.size for weight in model.values())
    assert result.seconds > 0


def test_a_model_that_cannot_do_it_is_not_said_to(monkeypatch: pytest.MonkeyPatch) -> None:
    random = {name: np.random.default_rng(0).permuted(weight) for name, weight in induction.load().items()}
    monkeypatch.setattr(induction, "load", lambda: random)
    result = demo.induction_demo()
    assert result.found.judged.accuracy < 0.2
    assert result.found.judged.loss > 2
    assert sum(a == b for a, b in zip(result.predicted[17:], result.tokens[17:], strict=True)) < 8


# -------------------------------------------------------------------------------------------- attend
def test_attend_is_the_engine_on_the_arrays_of_the_file(tmp_path: Path) -> None:
    arrays = qkv(2, 3, dtype=np.float32)
    path = saved(tmp_path / "in.npz", **arrays)
    result, exact = attend(path, causal=True, threads=3), attend(path, causal=True, weights=True)
    out, lse = hw.attention(**arrays, causal=True, return_lse=True)
    assert np.array_equal(result.out, out)
    assert np.array_equal(result.lse, lse)
    assert result.weights is None
    assert str(result.plan) == str(hw.attention_plan(**arrays, causal=True, threads=3))
    assert result.plan is not None
    assert result.plan.threads == 3
    assert (result.counted, exact.counted, exact.plan) == ("traced", "traced", None)
    np.testing.assert_allclose(result.out, exact.out, atol=1e-5)
    np.testing.assert_allclose(result.lse, exact.lse, atol=1e-5)


def test_attend_with_weights_is_the_definition_on_the_arrays_of_the_file(tmp_path: Path) -> None:
    arrays = qkv(2, 3)
    result = attend(saved(tmp_path / "in.npz", **arrays, extra=np.ones(3)), weights=True)
    out, weights = hw.scaled_dot_product_attention(**arrays)
    assert np.array_equal(result.out, out)
    assert np.array_equal(result.weights, weights)
    assert list(result.arrays) == ["q", "k", "v"]
    assert result.ignored == ["extra"]
    assert result.figures == figures(out)
    assert result.seconds > 0
    assert not tracemalloc.is_tracing()


def test_options_mask_and_bias_of_the_file_all_hold(tmp_path: Path) -> None:
    arrays = qkv()
    rng = np.random.default_rng(5)
    mask, bias = rng.random((5, 7)) < 0.7, rng.standard_normal((5, 7))
    path = saved(tmp_path / "in.npz", **arrays, mask=mask, bias=bias)
    result = attend(path, causal=True, window=(2, None), scale=-0.5, softcap=3.0, weights=True)
    engine = attend(path, causal=True, window=(2, None), scale=-0.5, softcap=3.0)
    dense = mask & masks.window(2, None).dense((5, 7))
    out, weights = hw.scaled_dot_product_attention(**arrays, mask=dense, causal=True, bias=bias, scale=-0.5, softcap=3)
    assert np.array_equal(result.out, out)
    assert np.array_equal(result.weights, weights)
    np.testing.assert_allclose(engine.out, out, atol=1e-12)
    assert list(result.arrays) == ["q", "k", "v", "mask", "bias"]
    for name in ("mask", "bias"):  # each of them counts
        others = {key: value for key, value in {**arrays, "mask": mask, "bias": bias}.items() if key != name}
        again = attend(saved(tmp_path / "less.npz", **others), causal=True, window=(2, None), scale=-0.5, softcap=3.0)
        assert not np.array_equal(again.out, engine.out)
        assert np.abs(again.out - engine.out).max() > 1e-3


def test_a_window_alone(tmp_path: Path) -> None:
    result = attend(saved(tmp_path / "in.npz", **qkv()), window=(None, 0), weights=True)
    assert result.weights is not None
    assert np.array_equal(result.weights > 0, masks.causal().dense((5, 7)))


def test_the_peak_counts_the_scores(tmp_path: Path) -> None:
    size = 2 * 211 * 307 * 4
    result = attend(saved(tmp_path / "in.npz", **qkv(2, n_q=211, n_k=307, dtype=np.float32)), weights=True)
    assert result.peak is not None
    assert 2 * size < result.peak < 8 * size


def test_the_peak_of_the_engine_does_not_grow_with_the_scores(tmp_path: Path) -> None:
    path = saved(tmp_path / "in.npz", **qkv(n_q=3000, n_k=3000, dtype=np.float32))
    result = attend(path, threads=2)
    assert result.plan is not None
    assert result.peak is not None
    results = result.out.nbytes + result.lse.nbytes
    assert results < result.peak < results + result.plan.bytes < 3000 * 3000 * 4 / 8


def test_a_long_run_is_not_traced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def told(*_: int) -> None:
        assert not tracemalloc.is_tracing()

    monkeypatch.setattr(demo, "_TRACED", 1e6)
    result = attend(saved(tmp_path / "in.npz", **qkv(n_q=500, n_k=500)), progress=told)
    assert result.counted == "resident"
    assert result.peak is None or result.peak >= result.out.nbytes
    assert result.seconds > 0
    monkeypatch.setattr(demo, "growth", lambda run: run().nbytes * 2)
    assert attend(tmp_path / "in.npz").peak == 3 * result.out.nbytes  # the result is part of it


@pytest.mark.parametrize("threads", [0, -1, 4097])
def test_a_number_of_threads_that_is_none(tmp_path: Path, threads: int) -> None:
    for weights in (False, True):
        with pytest.raises(ValueError, match=rf"^threads: expected 1 to 4096, got {threads}$"):
            attend(saved(tmp_path / "in.npz", **qkv()), threads=threads, weights=weights)


def test_threads_are_those_of_the_blas_for_the_definition(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def watched(*arrays: Array, **options: Any) -> hw.AttentionSteps:
        seen.append([found["num_threads"] for found in threadpool_info() if found["user_api"] == "blas"])
        return hw.attention_steps(*arrays, **options)

    monkeypatch.setattr(demo, "attention_steps", watched)
    path = saved(tmp_path / "in.npz", **qkv())
    with threadpool_limits(2, user_api="blas"):
        attend(path, weights=True, threads=1)
        attend(path, weights=True)
    if not seen[0]:
        pytest.skip("no BLAS that can be told its number of threads")
    assert set(seen[0]) == {1}
    assert set(seen[1]) == {2}


def test_progress_is_told_by_the_engine(tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    path = saved(tmp_path / "in.npz", **qkv(n_q=600, n_k=600))
    attend(path, progress=lambda *now: told.append(now))
    assert told[-1][0] == told[-1][1] > 0
    assert told == sorted(told)


def test_empty_arrays(tmp_path: Path) -> None:
    for n_q, n_k in ((0, 7), (5, 0), (0, 0)):
        path = saved(tmp_path / "in.npz", **qkv(n_q=n_q, n_k=n_k))
        for weights in (False, True):
            result = attend(path, weights=weights)
            assert result.out.shape == (n_q, 2)
            assert not result.out.any()
            assert np.isneginf(result.lse).all()


def test_tracing_that_was_on_stays_on(tmp_path: Path) -> None:
    path = saved(tmp_path / "in.npz", **qkv())
    tracemalloc.start()
    try:
        np.empty(1_000_000)  # gone at once, and not of attend's doing
        peak = attend(path).peak
        assert tracemalloc.is_tracing()
    finally:
        tracemalloc.stop()
    assert 0 < peak < 100_000


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"k": np.ones((7, 4))}, r"^PATH: k: expected .*, got \(7, 4\)"),
        ({"k": np.ones((7, 4)), "v": np.ones((6, 2))}, r"^PATH: 2 arguments do not fit: k: .*; v: "),
        ({"mask": np.ones((5, 7))}, r"^PATH: mask: expected bool, True = may attend, got dtype float64"),
        ({"mask": np.ones((5, 8), bool)}, r"^PATH: mask: .*, got \(5, 8\)"),
        ({"bias": np.ones((9, 5, 7))}, r"^PATH: bias: .*, got \(9, 5, 7\)"),
        ({"q": np.ones((5, 3), complex)}, r"^PATH: q: .* got dtype complex128"),
        ({"q": np.array(["a"])}, r"^PATH: q: .* got dtype <U1"),
        ({"q": np.array(1.0)}, r"^PATH: q: "),
    ],
)
@pytest.mark.parametrize("window", [None, (1, 1)])
def test_what_does_not_fit_is_a_fault_of_the_file(
    tmp_path: Path, changed: dict[str, Array], says: str, window: tuple[int, int] | None
) -> None:
    path = saved(tmp_path / "in.npz", **(qkv() | changed))
    with pytest.raises(FileError, match=says.replace("PATH", str(path))) as caught:
        attend(path, window=window)
    assert str(caught.value).isprintable()


def test_scores_that_fit_no_memory_are_refused_before_any_work(tmp_path: Path) -> None:
    n = 3_000_000
    arrays = {"q": np.zeros((n, 1), np.float16), "k": np.zeros((n, 1), np.float16), "v": np.zeros((n, 1), np.float16)}
    path = saved(tmp_path / "in.npz", **arrays)
    tracemalloc.start()
    try:
        with pytest.raises(FileError, match=r"in\.npz: q and k: expected scores that fit the .* GiB of memory here"):
            attend(path, weights=True)
        assert tracemalloc.get_traced_memory()[1] < 50_000_000  # the file itself
    finally:
        tracemalloc.stop()


def test_the_memory_check_is_left_out_where_the_memory_is_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = saved(tmp_path / "in.npz", **qkv())
    monkeypatch.setattr(demo, "physical_memory", lambda: 5 * 7 * 8 * 6 - 1)
    says = (
        r"got \(5, 7\), which need about 1\.56e-06 GiB; attend from fewer .*; without --weights no scores are stored$"
    )
    with pytest.raises(FileError, match=says):
        attend(path, weights=True)
    monkeypatch.setattr(demo, "physical_memory", lambda: None)
    for weights in (False, True):
        assert attend(path, weights=weights).out.shape == (5, 2)


def test_without_weights_only_tiles_and_results_must_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arrays = qkv(n_q=2000, n_k=2000)
    path, plan = saved(tmp_path / "in.npz", **arrays), hw.attention_plan(**arrays, threads=2)
    needed = plan.bytes + 2000 * (2 + 1) * 8
    assert needed < 2000 * 2000 * 8
    monkeypatch.setattr(demo, "physical_memory", lambda: needed)
    assert attend(path, threads=2).out.shape == (2000, 2)
    monkeypatch.setattr(demo, "physical_memory", lambda: needed - 1)
    says = (
        r"in\.npz: q and k: expected results and tiles that fit the .* GiB of memory here, got \(2000, 2000\), .* time$"
    )
    with pytest.raises(FileError, match=says):
        attend(path, threads=2)


def test_threads_that_find_no_task_need_no_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "physical_memory", lambda: 100_000_000)
    result = attend(saved(tmp_path / "in.npz", **qkv(n_q=2000, n_k=2000)), threads=demo.MOST_THREADS)
    assert result.plan is not None
    assert result.plan.threads == result.plan.tasks < 20


def test_figures_are_of_the_finite_values() -> None:
    found = figures(np.array([[3.0, np.nan], [-4.0, -np.inf]], np.float16))
    assert found == demo.Figures(size=4, finite=0.5, low=-4, high=3, mean=-0.5, norm=5)
    assert figures(np.full(3, 6e4, np.float16)).norm == pytest.approx(6e4 * 3**0.5, rel=1e-3)  # beyond float16
    for empty, finite in ((np.ones((0, 3)), 1.0), (np.full(2, np.nan), 0.0)):
        found = figures(empty)
        assert found.finite == finite
        assert np.isnan([found.low, found.high, found.mean, found.norm]).all()


@pytest.mark.parametrize(
    ("name", "shape", "letters"),
    [
        ("q", (2, 3), "(n_q, d_k)"),
        ("k", (2, 3, 4), "(H, n_k, d_k)"),
        ("k", (1, 2, 3, 4), "(B, G, n_k, d_k)"),
        ("v", (1, 1, 2, 3, 4), "(..., G, n_k, d_v)"),
        ("out", (1, 2, 3, 4), "(B, H, n_q, d_v)"),
        ("weights", (2, 3, 4), "(H, n_q, n_k)"),
        ("lse", (2, 3, 4), "(B, H, n_q)"),
        ("lse", (4,), "(n_q)"),
        ("mask", (3, 4), "(n_q, n_k)"),
        ("mask", (), "()"),
        ("bias", (4,), "(n_k)"),
    ],
)
def test_letters_of_arrays(name: str, shape: tuple[int, ...], letters: str) -> None:
    assert array_letters(name, shape) == letters


# ---------------------------------------------------------------------------------------------- info
def test_info_tells_versions_and_extras() -> None:
    found = demo.info()
    assert found.versions["headwise"] == hw.__version__
    assert found.versions["NumPy"] == np.__version__
    assert found.blas[0]["num_threads"] >= 1
    state = workers.state()
    assert (found.threads, found.note) == (state.threads, state.note)
    assert found.limited == [f"{name} {version}".strip() for name, version in state.blas]
    assert {"cli", "plot", "weights", "onnx", "dask"} <= found.extras.keys()
    assert "all" not in found.extras
    assert found.extras["dev"]["pytest"] == importlib.metadata.version("pytest")


def test_info_tries_whether_threads_start(monkeypatch: pytest.MonkeyPatch) -> None:
    started = []

    def refuse(thread: threading.Thread) -> None:
        started.append(thread.name)
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(workers, "_pool", workers._Pool())
    monkeypatch.setattr(workers, "default_threads", lambda: 3)
    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert "threads could not be started the last time (can't start new thread)" in demo.info().note
    assert started == ["headwise"]


def test_info_without_metadata_or_a_numpy_that_tells_its_features(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "requires", absent)
    monkeypatch.setattr(importlib.metadata, "version", absent)
    for answer in (None, {}, {"SIMD Extensions": {}}):
        monkeypatch.setattr(np, "show_config", lambda mode, answer=answer: answer)
        found = demo.info()
        assert (found.simd, found.extras) == ([], {})
    monkeypatch.setattr(np, "show_config", lambda: None)  # NumPy before mode=
    assert demo.info().simd == []


def test_an_extra_that_is_missing_has_no_version(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = [
        "numpy>=1.26",
        "pytest>=8; extra == 'cli'",
        'no.such_thing[x]>=2; extra == "plot"',
        "headwise[cli]; extra == 'all'",
    ]
    monkeypatch.setattr(importlib.metadata, "requires", lambda name: wanted)
    version = importlib.metadata.version("pytest")
    assert demo.info().extras == {"cli": {"pytest": version}, "plot": {"no.such_thing": None}}
