"""What a call does besides computing: memory, progress, interrupts, threads, forks, and errors before any work."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bits import bits
from definition import assert_right, normal, qkv
from threadpoolctl import threadpool_info

import headwise as hw
from headwise import masks
from headwise.core import engine, workers

LONG = 60  # seconds after which something hangs
FORKS = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
POSIX = pytest.mark.skipif(os.name != "posix", reason="needs signals")


def started(*code: str, options: tuple[str, ...] = ()) -> subprocess.Popen[str]:
    """A fresh interpreter that runs this, with the tests' own modules beside it."""
    text = "".join(map(textwrap.dedent, code))
    paths = [Path(hw.__file__).parents[1], Path(__file__).parent]
    return subprocess.Popen(
        [sys.executable, "-X", "faulthandler", "-W", "error", *options, "-c", text],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths))},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ended(process: subprocess.Popen[str]) -> str:
    """What it prints; it must end by itself, and well."""
    try:
        out, err = process.communicate(timeout=LONG)
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
        pytest.fail(f"it hangs: {out}{err}")
    assert process.returncode == 0, out + err
    return out.strip()


def blas_threads() -> list[int]:
    return [library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"]


# ------------------------------------------------------------------------------------------------------ memory
MEASURED = """
    import tracemalloc
    import ml_dtypes
    import numpy as np
    import headwise as hw
    from headwise import masks

    def arrays(lead, n_q, n_k, d, dtype=np.float32, groups=None):
        rng = np.random.default_rng(0)
        k_lead = lead if groups is None else (*lead[:-1], groups)
        shapes = (*lead, n_q, d), (*k_lead, n_k, d), (*k_lead, n_k, d)
        return [rng.standard_normal(shape).astype(dtype) for shape in shapes]

    def measured(q, k, v, threads=2, **options):
        rng = {"rng": 0} if "dropout" in options else {}
        planned = hw.attention_plan(q, k, v, threads=threads, **options).bytes
        hw.attention(q[..., :1, :], k, v, threads=threads)  # the pool, and what is made once
        tracemalloc.start()
        before = tracemalloc.get_traced_memory()[0]
        tracemalloc.reset_peak()
        results = hw.attention(q, k, v, threads=threads, return_lse=True, **options, **rng)
        peak = tracemalloc.get_traced_memory()[1] - before - sum(result.nbytes for result in results)
        tracemalloc.stop()
        return peak, planned

    def check(name, most, *given, **options):
        peak, planned = measured(*given, **options)
        print(f"{name}: {peak} bytes, {planned} planned")
        assert peak <= planned, "more than was planned"
        assert peak <= most, f"more than {most}"
        return peak / planned
"""


def test_memory_is_linear_in_the_sequence() -> None:
    """The scores of 32,768 tokens take 4 GiB; here 16 MiB do, besides inputs and results."""
    code = """
        check("causal", 2**24, *arrays((1,), 32768, 32768, 16), causal=True)
        few = arrays((2, 1), 8192, 8192, 16)
        check("mask of items", 2**24, *few, mask=masks.lengths([8192, 3000]) & masks.window(600, 0))
        check("segments of items", 2**24, *few, mask=masks.segments(*[np.arange(8192) // 700] * 2))
        check("alibi", 2**24, *few, causal=True, bias=hw.alibi([0.5]))
        check("dropout", 2**24, *(x[:1] for x in few), causal=True, dropout=0.1)
        for dtype in (np.float16, ml_dtypes.bfloat16):
            check("half types", 2**24, *arrays((1,), 16384, 16384, 16, dtype), mask=masks.window(500, 0))
        long = arrays((1,), 64, 500_000, 16, np.float16)
        check("half types are converted tile by tile", 2**24, *long)
        check("a mask that is an array", 2**24, *arrays((1,), 4096, 4096, 16), mask=np.tri(4096, dtype=bool))
        check("a bias that is an array", 2**24, *arrays((1,), 4096, 4096, 16), bias=np.zeros((1, 1, 4096), np.float16))
    """
    assert ended(started(MEASURED, code)).count("planned") == 10


def test_no_more_memory_than_was_planned() -> None:
    code = """
        shares = []
        for n_q, n_k, d in ((1, 3000, 64), (400, 700, 64), (1500, 200, 16), (70, 5000, 128)):
            for lead, groups in (((8,), None), ((2, 8), 2)):
                for dtype in (np.float32, np.float64, np.float16):
                    given = arrays(lead, n_q, n_k, d, dtype, groups)
                    n_heads, batch = lead[-1], lead[:-1]
                    kinds = [
                        {},
                        {"causal": True, "softcap": 20.0},
                        {"mask": masks.lengths(np.full(batch, n_k // 2)), "sinks": np.zeros(n_heads)},
                        {"mask": np.random.default_rng(1).random((n_heads, n_q, n_k)) < 0.5},
                        {"bias": hw.alibi(np.ones(n_heads)), "causal": True},
                        {"bias": np.zeros((n_heads, n_q, n_k), np.float32)},
                        {"dropout": 0.2},
                        {"scale": 1e-30, "mask": masks.window(100, 100)},
                    ]
                    kind = len(shares) // 2 % 8
                    for options, threads in ((kinds[kind], 1), (kinds[(kind + 3) % 8], 3)):
                        name = f"{n_q} {n_k} {d} {lead} {np.dtype(dtype)} {list(options)} {threads}"
                        shares.append(check(name, np.inf, *given, threads=threads, **options))
        print(f"{len(shares)} problems, from {min(shares):.2f} to {max(shares):.2f} of what was planned")
        assert max(shares) > 0.3, "the plan is far too high"
    """
    assert "48 problems" in ended(started(MEASURED, code))


# ---------------------------------------------------------------------------------------------------- progress
@pytest.mark.parametrize("threads", [1, 3])
def test_progress_comes_from_the_caller_and_ends_at_the_total(threads: int) -> None:
    q, k, v = qkv(1, 4, 700, 8)
    plan = hw.attention_plan(q, k, v, threads=threads, causal=True)
    calls: list[Callable[[Any], Any]] = [
        lambda progress: hw.attention(q, k, v, causal=True, threads=threads, progress=progress),
        lambda progress: engine.run(plan, q, k, v, progress=progress),
    ]
    for call in calls:
        seen: list[tuple[int, int]] = []
        callers = set()

        def progress(done: int, total: int, seen: Any = seen, callers: Any = callers) -> None:
            seen.append((done, total))
            callers.add(threading.get_ident())

        out = call(progress)
        counts, totals = zip(*seen, strict=True)
        assert callers == {threading.get_ident()}
        assert list(counts) == sorted(counts)
        assert set(totals) == {4 * 700 * 700}
        assert counts[-1] == totals[-1]
        assert counts.count(totals[-1]) == 1
        assert len(seen) > (3 if threads == 1 else 0)  # else others may have been faster
        assert bits(out) == bits(hw.attention(q, k, v, causal=True, threads=1))


def test_progress_of_nothing() -> None:
    seen: list[tuple[int, int]] = []
    q, k, v = qkv(1, 2, 0, 8)
    hw.attention(q, k, v, progress=lambda *counts: seen.append(counts))
    assert seen == [(0, 0)]


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize(
    "error", [RuntimeError("enough"), KeyboardInterrupt("enough")], ids=lambda error: type(error).__name__
)
def test_what_progress_raises_ends_the_call(error: BaseException, threads: int) -> None:
    q, k, v = qkv(2, 4, 700, 8)
    before, seen = blas_threads(), []

    def progress(done: int, total: int) -> None:
        seen.append(done)
        raise error

    with pytest.raises(type(error), match=r"^enough$") as caught:
        hw.attention(q, k, v, threads=threads, progress=progress)
    assert caught.value is error
    assert len(seen) == 1
    assert threads > 1 or seen[0] < 4 * 700 * 700  # else others may have been faster
    assert blas_threads() == before
    assert_right(hw.attention(q, k, v, return_lse=True, threads=threads), q, k, v)


# -------------------------------------------------------------------------------------------------- interrupts
@POSIX
@pytest.mark.parametrize("threads", [1, 3])
def test_an_interrupt_ends_a_long_run_and_leaves_everything_in_order(threads: int) -> None:
    code = f"""
        import signal
        import numpy as np
        from threadpoolctl import threadpool_info
        import headwise as hw
        from definition import assert_right, qkv

        signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job begins with it ignored
        q, k, v = (np.broadcast_to(x, (100, 60_000, 16)) for x in qkv(0, 60_000, 16))  # many minutes
        before = threadpool_info()
        try:
            hw.attention(q, k, v, threads={threads}, progress=lambda *_: print("running", flush=True))
        except KeyboardInterrupt:
            print("interrupted")
        assert threadpool_info() == before
        q, k, v = qkv(1, 4, 300, 16)
        assert_right(hw.attention(q, k, v, return_lse=True, threads={threads}), q, k, v)
        print("right")
    """
    process = started(code)
    assert process.stdout is not None
    assert process.stdout.readline() == "running\n", ended(process)
    process.send_signal(signal.SIGINT)
    out = ended(process).split()
    assert [word for word in out if word != "running"] == ["interrupted", "right"]


# ------------------------------------------------------------------------------------------- threads and forks
def test_many_callers_at_once() -> None:
    """Each with problems of its own, checked against the definition."""
    before, wrong = blas_threads(), []
    barrier = threading.Barrier(16)

    def calls(me: int) -> None:
        try:
            q, k, v = qkv(me, 2, 3, 60 + 17 * me, 8)
            options: dict[str, Any] = [
                {},
                {"causal": True, "bias": hw.alibi([1.0, 0.5, 0.25])},
                {"mask": masks.lengths([5, 60]), "sinks": [1.0, 2.0, 3.0]},
                {"mask": normal(me, 3, 1, q.shape[-2]) > 0, "scale": 30.0},
            ][me % 4]
            first = hw.attention(q, k, v, return_lse=True, threads=1, **options)
            assert_right(first, q, k, v, **options)
            barrier.wait(LONG)
            for turn in range(15):
                out, lse = hw.attention(q, k, v, return_lse=True, threads=1 + (me + turn) % 4, **options)
                assert bits(out) == bits(first[0])
                assert bits(lse) == bits(first[1])
        except BaseException as error:
            wrong.append(error)
            barrier.abort()

    callers = [threading.Thread(target=calls, args=(me,), daemon=True) for me in range(16)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join(LONG)
    assert not any(caller.is_alive() for caller in callers)
    assert wrong == []
    assert blas_threads() == before


def test_a_call_within_a_call_runs_in_its_worker() -> None:
    q, k, v = qkv(3, 4, 300, 8)
    inner: list[Any] = []
    hw.attention(
        q, k, v, threads=3, progress=lambda *_: inner.append(hw.attention(q, k, v, threads=3, return_lse=True))
    )
    assert_right(inner[0], q, k, v)
    assert all(bits(out) == bits(inner[0][0]) for out, _ in inner)


@FORKS
def test_a_child_of_a_fork_computes_as_its_parent_does() -> None:
    """Between calls, in a child, in the child of a child, and in the parent again."""
    code = """
        import os, signal
        import numpy as np
        from threadpoolctl import threadpool_info
        import headwise as hw
        from definition import assert_right, qkv

        def compute(seed):
            q, k, v = qkv(seed, 4, 400, 8)
            assert_right(hw.attention(q, k, v, causal=True, threads=3, return_lse=True), q, k, v, causal=True)

        def fork(then):
            child = os.fork()
            if not child:
                signal.alarm(30)  # what hangs is killed
                code = 1
                try:
                    then()
                    code = 0
                finally:
                    os._exit(code)
            _, status = os.waitpid(child, 0)
            assert status == 0, status

        before = [library["num_threads"] for library in threadpool_info()]
        compute(0)
        fork(lambda: (compute(1), fork(lambda: compute(2)), compute(3)))
        compute(4)
        fork(lambda: compute(5))
        compute(6)
        assert [library["num_threads"] for library in threadpool_info()] == before
        print("right")
    """
    assert ended(started(code, options=("-W", "ignore::DeprecationWarning"))) == "right"


@FORKS
def test_a_child_whose_parent_never_computed() -> None:
    code = """
        import os, signal
        import headwise as hw
        from definition import assert_right, qkv

        child = os.fork()
        signal.alarm(30)
        q, k, v = qkv(0, 4, 400, 8)
        assert_right(hw.attention(q, k, v, threads=3, return_lse=True), q, k, v)
        if not child:
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        print("right")
    """
    assert ended(started(code, options=("-W", "ignore::DeprecationWarning"))).split()[-1] == "right"


def test_nothing_is_started_for_a_small_call_or_by_import() -> None:
    code = """
        import threading
        import numpy as np
        import headwise as hw
        q = np.ones((2, 8, 4))
        hw.attention(q, q, q), hw.attention(q, q, q, threads=1), hw.attention_plan(q, q, q, threads=8)
        hw.attention(q, q, q, causal=True), hw.attention(q, q, q, return_lse=True)
        assert threading.active_count() == 1
        hw.attention(q, q, q, causal=True, threads=2)
        print(threading.active_count())
    """
    assert ended(started(code)) == "2"


@pytest.mark.parametrize(("system", "exp"), [("Darwin", "exp"), ("Linux", "exp2")])
def test_either_base_of_powers(system: str, exp: str) -> None:
    """Which one is the raw path's depends on the machine."""
    code = f"""
        import platform
        import numpy as np
        platform.system, platform.machine = lambda: "{system}", lambda: "x86_64"
        np.show_config = lambda mode: {{"SIMD Extensions": {{"found": ["AVX512_SKX"]}}}}
        import headwise as hw
        from definition import assert_right, path_of, qkv
        from headwise.core.paths import RAW

        q, k, v = qkv(0, 1, 300, 8)
        for options in ({{}}, {{"sinks": [1.0]}}, {{"bias": hw.alibi([0.1])}}, {{"softcap": 3.0}}, {{"scale": -2.0}}):
            assert path_of(q, k, v, **options) == "raw"
            options["causal"] = True
            assert_right(hw.attention(q, k, v, return_lse=True, **options), q, k, v, **options)
        print(RAW.exp.__name__)
    """
    assert ended(started(code)) == exp


# ------------------------------------------------------------------------------------------------------- errors
Q, K, V = np.zeros((2, 4, 5, 3)), np.zeros((2, 2, 6, 3)), np.zeros((2, 2, 6, 7))
WRONG: dict[str, tuple[str, type[Exception], dict[str, Any]]] = {
    "a complex q": ("q", TypeError, {"q": Q * 1j}),
    "no q": ("q", TypeError, {"q": None}),
    "a masked k": ("k", TypeError, {"k": np.ma.array(K)}),
    "objects in v": ("v", TypeError, {"v": V.astype(object)}),
    "a q of one axis": ("q", ValueError, {"q": Q[0, 0, 0]}),
    "another d_k": ("k", ValueError, {"k": K[..., :2]}),
    "another n_k": ("v", ValueError, {"v": V[..., :5, :]}),
    "another batch": ("k and v", ValueError, {"k": K[[0, 1, 1]], "v": V[[0, 1, 1]]}),
    "groups that do not divide": ("k and v", ValueError, {"k": K[:, [0, 1, 1]], "v": V[:, [0, 1, 1]]}),
    "a mask of numbers": ("mask", TypeError, {"mask": np.ones((5, 6))}),
    "a mask in words": ("mask", TypeError, {"mask": "causal"}),
    "a mask that enlarges": ("mask", ValueError, {"mask": np.ones((3, 2, 4, 5, 6), bool)}),
    "lengths of more items": ("lengths", ValueError, {"mask": masks.lengths([1, 2, 3])}),
    "lengths above n_k": ("lengths", ValueError, {"mask": masks.lengths([1, 7])}),
    "causal in words": ("causal", TypeError, {"causal": "yes"}),
    "a bias of bools": ("bias", TypeError, {"bias": np.ones((5, 6), bool)}),
    "a bias that enlarges": ("bias", ValueError, {"bias": np.ones((5, 7))}),
    "slopes of fewer heads": ("slopes", ValueError, {"bias": hw.alibi([1.0])}),
    "an infinite scale": ("scale", ValueError, {"scale": np.inf}),
    "a scale in words": ("scale", TypeError, {"scale": "1"}),
    "a softcap of 0": ("softcap", ValueError, {"softcap": 0}),
    "sinks of fewer heads": ("sinks", ValueError, {"sinks": [1.0]}),
    "a sink of inf": ("sinks", ValueError, {"sinks": [0.0, 0.0, 0.0, np.inf]}),
    "dropout above 1": ("dropout", ValueError, {"dropout": 1.5, "rng": 0}),
}
OF_THE_CALL: dict[str, tuple[str, type[Exception], dict[str, Any]]] = {
    "dropout without rng": ("rng", ValueError, {"dropout": 0.5}),
    "an rng in words": ("rng", TypeError, {"rng": "0"}),
    "a negative seed": ("rng", ValueError, {"rng": -1}),
    "return_lse of 1": ("return_lse", TypeError, {"return_lse": 1}),
    "return_lse of None": ("return_lse", TypeError, {"return_lse": None}),
    "progress of 3": ("progress", TypeError, {"progress": 3}),
}
OF_THREADS: dict[str, tuple[str, type[Exception], dict[str, Any]]] = {
    "threads of 0": ("threads", ValueError, {"threads": 0}),
    "threads of -1": ("threads", ValueError, {"threads": -1}),
    "threads of True": ("threads", TypeError, {"threads": True}),
    "threads of 2.0": ("threads", TypeError, {"threads": 2.0}),
    "threads of 10**6": ("threads", ValueError, {"threads": 10**6}),
}
OF_THE_PLAN: dict[str, tuple[str, type[Exception], dict[str, Any]]] = {
    "other queries": ("q", ValueError, {"q": Q[:, :, :4]}),
    "fewer items": ("q", ValueError, {"q": Q[:1]}),
    "q of another type": ("q", ValueError, {"q": Q.astype(np.float32)}),
    "v of another type": ("v", ValueError, {"v": V.astype(np.float16)}),
    "other values": ("v", ValueError, {"v": V[..., :6]}),
}


@pytest.fixture
def idle(monkeypatch: pytest.MonkeyPatch) -> Any:
    """No work may begin, no thread start, no number be drawn."""
    monkeypatch.setattr(workers, "run", lambda *_, **__: pytest.fail("work has begun"))
    monkeypatch.setattr(threading.Thread, "start", lambda _: pytest.fail("a thread is started"))
    rng = np.random.default_rng(0)
    before = rng.bit_generator.state
    yield rng
    assert rng.bit_generator.state == before


@pytest.mark.parametrize("fault", WRONG | OF_THE_CALL | OF_THREADS)
def test_faults_of_attention(fault: str, idle: np.random.Generator) -> None:
    argument, error, given = (WRONG | OF_THE_CALL | OF_THREADS)[fault]
    call = {"q": Q, "k": K, "v": V, "rng": None if given.get("dropout") else idle} | given
    with pytest.raises(error, match=rf"^attention: {argument}: expected .+, got .+") as caught:
        hw.attention(**call)
    assert type(caught.value) is error


@pytest.mark.parametrize("fault", OF_THREADS)
def test_faults_of_threads_where_a_call_is_small(fault: str, idle: np.random.Generator) -> None:
    """However little there is to do."""
    _, error, given = OF_THREADS[fault]
    with pytest.raises(error, match=r"^attention: threads: expected .+, got .+"):
        hw.attention(Q, Q, Q, **given)


@pytest.mark.parametrize("fault", WRONG | OF_THREADS)
def test_faults_of_attention_plan(fault: str, idle: np.random.Generator) -> None:
    argument, error, given = (WRONG | OF_THREADS)[fault]
    call = {"q": Q, "k": K, "v": V} | {name: x for name, x in given.items() if name != "rng"}
    with pytest.raises(error, match=rf"^attention_plan: {argument}: expected .+, got .+"):
        hw.attention_plan(**call)


@pytest.mark.parametrize("fault", OF_THE_CALL | OF_THE_PLAN)
def test_faults_of_run(fault: str, idle: np.random.Generator) -> None:
    argument, error, given = (OF_THE_CALL | OF_THE_PLAN)[fault]
    call = {"q": Q, "k": K, "v": V} | {name: x for name, x in given.items() if name != "dropout"}
    plan = hw.attention_plan(Q, K, V, dropout=given.get("dropout", 0.0))
    if len(call["q"]) == 1:
        call |= {"k": K[:1], "v": V[:1]}
    with pytest.raises(error, match=rf"(^run: |\n  ){argument}: expected .+, got .+") as caught:
        engine.run(plan, **call)
    assert str(caught.value).startswith("run: ")
    if fault in OF_THE_PLAN:
        assert "as planned" in str(caught.value)
        assert str(caught.value).endswith("make a plan for these arrays")


@pytest.mark.parametrize("plan", [None, 3, (5, 3), "plan", Q, hw.attention_plan], ids=lambda x: type(x).__name__)
def test_what_is_no_plan_is_not_run(plan: Any, idle: np.random.Generator) -> None:
    with pytest.raises(TypeError, match=r"^run: plan: expected a plan of hw\.attention_plan\(\.\.\.\), got "):
        engine.run(plan, Q, K, V)


def test_everything_that_does_not_fit_is_named_at_once(idle: np.random.Generator) -> None:
    with pytest.raises(TypeError, match=r"^attention: 6 arguments do not fit\n") as caught:
        hw.attention(Q, K[..., :2], V, causal=1, scale="x", threads=0, progress=3, return_lse=0)  # type: ignore[arg-type]
    named = [line.split(":")[0].strip() for line in str(caught.value).splitlines()[1:]]
    assert sorted(named) == ["causal", "k", "progress", "return_lse", "scale", "threads"]


def test_a_plan_of_shapes_runs_arrays_of_these() -> None:
    q, k, v = normal(4, 2, 4, 50, 8), normal(5, 2, 2, 60, 8), normal(6, 2, 2, 60, 3)
    plan = hw.attention_plan(q.shape, k.shape, v.shape, masks.lengths([9, 60]), causal=True, tile=(16, 32))
    got = engine.run(plan, q, k, v, return_lse=True)
    assert_right(got, q, k, v, mask=masks.lengths([9, 60]), causal=True)
