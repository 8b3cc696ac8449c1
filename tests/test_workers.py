"""Workers: every task once, the BLAS as it was before, whatever is raised, interrupted, forked or refused."""

import dis
import gc
import os
import random
import signal
import subprocess
import sys
import textwrap
import threading
import time
import types
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headwise
from headwise.core import workers
from headwise.core.workers import one_blas_thread, run

FORKS = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
LONG = 60  # seconds after which something hangs


class Blas:
    """A BLAS of seven threads that is told its number, process-wide or by each thread for itself."""

    def __init__(self, per_thread: bool) -> None:
        self.common, self.local, self.per_thread = 7, threading.local(), per_thread
        self.library = workers._Library("fake", "1.0", self.ask, self.tell, per_thread)

    def ask(self) -> int:
        return getattr(self.local, "n", 7) if self.per_thread else self.common

    def tell(self, n: int) -> None:
        if self.per_thread:
            self.local.n = n
        else:
            self.common = n


@pytest.fixture(params=[False, True], ids=["process", "thread"])
def blas(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Blas:
    fake = Blas(request.param)
    monkeypatch.setattr(workers, "_limit", workers._Limit((fake.library,)))
    return fake


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch) -> Iterator[workers._Pool]:
    """A pool of which no other test knows, and which ends with its test."""
    fresh = workers._Pool()
    monkeypatch.setattr(workers, "_pool", fresh)
    yield fresh
    for _ in range(fresh._threads):
        fresh._calls.put(lambda: True)


def at_rest() -> bool:
    """Whether nobody holds a limit and none is left over."""
    return not workers._limit.holders and workers._limit.before is None and not workers._here.busy


def python(code: str, *options: str, timeout: float = LONG) -> str:
    """What a fresh interpreter prints; it must end by itself, and well."""
    ran = subprocess.run(
        [sys.executable, "-X", "faulthandler", *options, "-c", textwrap.dedent(code)],
        env={**os.environ, "PYTHONPATH": str(Path(headwise.__file__).parents[1])},
        capture_output=True,
        text=True,
        timeout=timeout,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout.strip()


def in_threads(function: Callable[[int], object], count: int) -> None:
    """Call it in so many threads at once; raise what one of them raises."""
    errors: list[BaseException] = []

    def call(i: int) -> None:
        try:
            function(i)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=call, args=(i,), daemon=True) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LONG)
    assert not any(thread.is_alive() for thread in threads), "a thread hangs"
    if errors:
        raise errors[0]


def squares(n: int, threads: int, **options: Any) -> Any:
    """The squares of 0..n-1, worked out by a run."""
    out = np.zeros(n, int)

    def start() -> Callable[[int], None]:
        def do(i: int) -> None:
            out[i] += i * i

        return do

    run(start, range(n), threads, **options)
    return out


def nothing() -> Callable[[object], None]:
    return lambda task: None


# ------------------------------------------------------------------------------------------------ the guard
def test_nothing_exists_after_import() -> None:
    code = """
        import threading, threadpoolctl
        made = []
        plain = threadpoolctl.ThreadpoolController.__init__
        threadpoolctl.ThreadpoolController.__init__ = lambda self: (made.append(1), plain(self))[1]
        from headwise.core import workers
        print(threading.active_count(), len(made))
        workers.default_threads(), workers.state()
        for _ in range(3):
            workers.run(lambda: print, [], 2)
            with workers.one_blas_thread():
                pass
        print(threading.active_count(), len(made))
    """
    assert python(code).split() == ["1", "0", "1", "1"]


def test_the_limit_holds_inside_and_ends_after(blas: Blas) -> None:
    with one_blas_thread():
        assert blas.ask() == 1
        with one_blas_thread():
            assert blas.ask() == 1
        assert blas.ask() == 1
    assert blas.ask() == 7
    assert at_rest()


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit, GeneratorExit])
def test_the_limit_ends_after_any_error(blas: Blas, error: type[BaseException]) -> None:
    with pytest.raises(error), one_blas_thread():
        raise error
    assert blas.ask() == 7
    assert at_rest()


def test_release_may_be_repeated(blas: Blas) -> None:
    inner = one_blas_thread()
    with one_blas_thread(), inner:
        inner.release()
        inner.release()
        assert len(workers._limit.holders) == 1
        assert blas.ask() == 1
    assert blas.ask() == 7
    assert at_rest()


def test_the_last_one_out_restores(blas: Blas) -> None:
    """A comes, B comes, A goes, B goes: each step is seen by both."""
    step = threading.Barrier(2, timeout=LONG)
    seen: dict[str, list[int]] = {"A": [], "B": []}

    def stay(name: str, enter_at: int, leave_at: int) -> None:
        guard = one_blas_thread()
        for moment in range(4):
            if moment == enter_at:
                guard.__enter__()
            if moment == leave_at:
                guard.__exit__()
            step.wait()
            seen[name].append(blas.ask())
            step.wait()

    in_threads(lambda i: stay("AB"[i], i, i + 2), 2)
    if blas.per_thread:
        assert seen == {"A": [1, 1, 7, 7], "B": [7, 1, 1, 7]}
    else:
        assert seen == {"A": [1, 1, 1, 7], "B": [1, 1, 1, 7]}
    assert at_rest()


def test_many_threads_in_and_out(blas: Blas) -> None:
    def visit(i: int) -> None:
        for _ in range(200):
            with one_blas_thread():
                assert blas.ask() == 1

    in_threads(visit, 12)
    assert blas.ask() == 7
    assert at_rest()


REAL = """
    import threading
    import numpy, threadpoolctl
    from headwise.core import workers
    controls = [c for c in threadpoolctl.ThreadpoolController().lib_controllers if c.user_api == "blas"]
    def ask():
        return [c.get_num_threads() for c in controls]
    def check(condition):
        if not condition:
            raise AssertionError((ask(), workers._limit.holders, workers._limit.before))
"""


def real(code: str, *options: str) -> str:
    return python(textwrap.dedent(REAL) + textwrap.dedent(code), *options)


def test_the_real_blas_is_limited_and_restored_by_another_thread() -> None:
    """threadpoolctl lets one thread alone set OpenBLAS: who comes first and who leaves last are two."""
    code = """
        with threadpoolctl.threadpool_limits(3, user_api="blas"):
            pass
        before, a, b = ask(), workers.one_blas_thread(), workers.one_blas_thread()
        a.__enter__()
        other = threading.Thread(target=b.__enter__); other.start(); other.join()
        shared = not any(library.per_thread for library in workers._limit.libraries)
        check(set(ask()) <= {1})
        a.__exit__()
        check(set(ask()) <= {1} or not shared)
        stay = threading.Event()
        other = threading.Thread(target=lambda: (b.__exit__(), stay.wait()), daemon=True); other.start()
        for _ in range(200):
            if ask() == before:
                break
            stay.wait(0.05)
        check(ask() == before)
        # and a limit of the user's in a third thread still obeys
        with threadpoolctl.threadpool_limits(1, user_api="blas"):
            check(set(ask()) <= {1})
        check(ask() == before)
        stay.set()
    """
    real(code)


def test_a_users_limit_is_respected_and_restored() -> None:
    code = """
        before = ask()
        for limit in (1, 2):
            with threadpoolctl.threadpool_limits(limit, user_api="blas"):
                within = ask()
                check(workers.default_threads() == max(within, default=workers._cpus()))
                with workers.one_blas_thread():
                    check(set(ask()) <= {1})
                    check(workers.default_threads() == max(within, default=workers._cpus()))
                check(ask() == within)
                workers.run(lambda: int, [1, 2, 3], 2)
                check(ask() == within)
            check(ask() == before)
    """
    real(code)


def test_what_somebody_else_sets_meanwhile_stays() -> None:
    fake = Blas(per_thread=False)
    limit = workers._limit
    workers._limit = workers._Limit((fake.library,))
    try:
        with one_blas_thread():
            fake.tell(4)
        assert fake.ask() == 4
    finally:
        workers._limit = limit


def test_numpys_own_blas_is_preferred(monkeypatch: pytest.MonkeyPatch) -> None:
    home = os.path.dirname(os.path.realpath(np.__file__))

    def control(path: str, **options: Any) -> Any:
        settings: dict[str, Any] = {
            "user_api": "blas",
            "internal_api": "openblas",
            "threading_layer": "pthreads",
            "version": None,
            "filepath": path,
            "get_num_threads": lambda: 2,
            "set_num_threads": lambda n: None,
        }
        return types.SimpleNamespace(**{**settings, **options})

    def found(*controls: Any) -> int:
        made = types.SimpleNamespace(lib_controllers=list(controls))
        monkeypatch.setattr(workers, "ThreadpoolController", lambda: made)
        return len(workers._find_libraries())

    def fails(*_: object) -> int:
        raise OSError

    ours = [control(f"{home}{rest}") for rest in (".libs/libopenblas.so", "/.dylibs/libopenblas.dylib")]
    other = control("/opt/lib/libopenblas.so")
    assert found(*ours, other, control("/opt/lib/libgomp.so", user_api="openmp")) == 2
    assert found(other, control("/opt/lib/libblis.so", internal_api="blis")) == 2
    assert found(control(f"{home}er/libopenblas.so"), other) == 2
    assert found(control("/opt/a", get_num_threads=lambda: None), control("/opt/b", set_num_threads=fails)) == 0
    monkeypatch.setattr(workers, "ThreadpoolController", fails)
    assert workers._find_libraries() == ()


def test_the_scope_of_a_limit_is_found_out() -> None:
    for per_thread in (False, True):
        fake = Blas(per_thread)
        for n in (1, 7):
            fake.tell(n)
            assert workers._holds_per_thread(fake.ask, fake.tell) is per_thread
            assert fake.ask() == n


def test_default_threads_is_that_before_the_limit(blas: Blas) -> None:
    assert workers.default_threads() == 7
    with one_blas_thread():
        assert workers.default_threads() == 7
        blas.tell(1)
    blas.tell(5)
    assert workers.default_threads() == 5


def test_without_a_blas_that_obeys_all_works(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "_limit", workers._Limit(()))
    assert workers.default_threads() == workers._cpus() >= 1
    with one_blas_thread():
        assert workers.default_threads() == workers._cpus()
    np.testing.assert_array_equal(squares(50, 3), np.arange(50) ** 2)
    state = workers.state()
    assert state.blas == ()
    assert "cannot be told its number of threads" in state.note


def test_state(blas: Blas, pool: workers._Pool) -> None:
    assert workers.state() == workers.WorkersState(7, (("fake", "1.0"),), "")


# ---------------------------------------------------------------------------------------------- interrupts
class Interrupt:
    """Raises KeyboardInterrupt at the n-th point of the code of workers.py where Python looks for signals.

    These points are the begin of a function, the return from a call, and a jump back. Errors are thrown from there into
    NumPy's errstate too, as a signal would be.
    """

    files = (workers.__file__, sys.modules[np.errstate.__module__].__file__, np.geterr.__code__.co_filename)
    looks = frozenset({"CALL", "CALL_FUNCTION_EX", "CALL_KW", "JUMP_BACKWARD"})

    def __init__(self, at: int) -> None:
        self.left, self.last = at, dict[int, str]()

    def __call__(self, frame: types.FrameType, event: str, arg: object) -> Any:
        if frame.f_code.co_filename not in self.files:
            return None
        if event == "call":
            frame.f_trace_opcodes, frame.f_trace_lines = True, False
            self.last[id(frame)] = ""
        else:
            if event != "opcode":
                return self
            before, self.last[id(frame)] = self.last[id(frame)], opcodes(frame.f_code)[frame.f_lasti]
            if before not in self.looks:
                return self
        self.left -= 1
        if self.left == -1:
            raise KeyboardInterrupt
        return self


CACHE: dict[types.CodeType, dict[int, str]] = {}


def opcodes(code: types.CodeType) -> dict[int, str]:
    if code not in CACHE:
        CACHE[code] = {instruction.offset: instruction.opname for instruction in dis.get_instructions(code)}
    return CACHE[code]


def interrupted(function: Callable[[], object], at: int) -> BaseException | None:
    """Call it with an interrupt at the n-th point; the interrupt, or None where it ended before that."""
    outer = sys.gettrace()
    sys._getframe().f_trace_opcodes = True  # Python 3.12 looks at this when tracing begins
    sys.settrace(Interrupt(at))
    try:
        function()
    except KeyboardInterrupt as error:
        return error
    finally:
        sys.settrace(outer)
    return None


def guarded() -> None:
    with one_blas_thread():
        pass


def test_no_interrupt_leaves_a_guard_behind(blas: Blas) -> None:
    interrupted(guarded, 10**9)  # Python 3.13 traces a function's opcodes from its second call on
    for at in range(10_000):
        hit = interrupted(guarded, at) is not None
        gc.collect(0)
        assert blas.ask() == 7, at
        assert at_rest(), at
        if not hit:
            break
    assert 10 < at < 1000


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_no_interrupt_leaves_a_run_behind(blas: Blas, pool: workers._Pool, threads: int) -> None:
    """Not even while its traceback is alive, as that of the last error is at a prompt."""
    settings = np.geterr()
    interrupted(lambda: squares(4, threads), 10**9)
    for at in range(10_000):
        error = interrupted(lambda: squares(4, threads), at)
        assert blas.ask() == 7, at
        assert not workers._here.busy, at
        assert np.geterr() == settings, at
        if workers._limit.holders:  # helpers that are still about
            run(nothing, range(4), threads)
        assert at_rest(), at
        if error is None:
            break
        del error
    assert 30 < at < 5000
    np.testing.assert_array_equal(squares(50, threads), np.arange(50) ** 2)


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs signal.setitimer")
def test_real_interrupts_at_random_moments() -> None:
    code = """
        import gc, random, signal, sys, time, faulthandler
        import numpy as np
        faulthandler.dump_traceback_later(50, exit=True)
        threadpoolctl.threadpool_limits(3, user_api="blas")
        before, settings, out = ask(), np.geterr(), np.zeros(40, int)
        def start():
            def do(i):
                out[i] = i * i
            return do
        def guards():
            for _ in range(40):
                with workers.one_blas_thread(), workers.one_blas_thread():
                    pass
        kinds = [guards, *(lambda n=n: workers.run(start, range(40), n, lambda *_: None) for n in (1, 2, 3))]
        for kind in kinds:
            kind()
        signal.signal(signal.SIGALRM, signal.default_int_handler)
        rng, hits, end = random.Random(0), 0, time.monotonic() + 4
        while time.monotonic() < end:
            try:
                try:
                    signal.setitimer(signal.ITIMER_REAL, rng.uniform(2e-5, 8e-4))
                    for _ in range(2000):  # no while: Python 3.13.0 may leave it past all handlers
                        rng.choice(kinds)()
                finally:
                    signal.setitimer(signal.ITIMER_REAL, 0)
            except KeyboardInterrupt:
                hits += 1
            check(ask() == before and not workers._limit.holders and workers._limit.before is None)
            check(np.geterr() == settings)
            out[:] = 0
            workers.run(start, range(40), 2)
            check((out == np.arange(40) ** 2).all() and ask() == before)
        print(hits)
    """
    assert int(real(code)) > 100


# --------------------------------------------------------------------------------------------------- runs
@pytest.mark.parametrize("threads", [1, 2, 3, 8, 99])
@pytest.mark.parametrize("n", [0, 1, 2, 7, 500])
def test_every_task_is_done_once(blas: Blas, threads: int, n: int) -> None:
    np.testing.assert_array_equal(squares(n, threads), np.arange(n) ** 2)
    assert blas.ask() == 7
    assert at_rest()


def together(n: int) -> Callable[[], Callable[[object], None]]:
    """A start whose workers wait for each other: only so many at once come through."""
    barrier = threading.Barrier(n, timeout=LONG)
    return lambda: lambda task: void(barrier.wait())


def void(_: object) -> None:
    return None


@pytest.mark.parametrize("n", [2, 3, 8])
def test_workers_are_at_work_at_once(blas: Blas, pool: workers._Pool, n: int) -> None:
    run(together(n), range(n), n)
    assert pool._threads == n - 1
    run(together(2), range(2), 2)  # a smaller one makes no more threads, a larger one the missing ones
    run(together(n + 1), range(n + 1), n + 1)
    assert pool._threads == n


def test_each_worker_starts_once_and_is_limited(blas: Blas, pool: workers._Pool) -> None:
    meet, workers_seen, seen = together(4)(), [], []

    def start() -> Callable[[int], None]:
        mine = threading.get_ident()
        workers_seen.append(mine)

        def do(i: int) -> None:
            seen.append((mine == threading.get_ident(), blas.ask(), np.geterr()["over"], i))
            meet(i)

        return do

    run(start, range(12), 4)
    assert len(workers_seen) == len(set(workers_seen)) == 4
    assert threading.get_ident() in workers_seen
    assert {entry[:3] for entry in seen} == {(True, 1, "ignore")}
    assert sorted(entry[3] for entry in seen) == list(range(12))


def test_one_thread_keeps_the_order_and_touches_no_pool(pool: workers._Pool) -> None:
    order: list[int] = []
    run(lambda: order.append, range(100), 1)
    run(lambda: order.append, [100], 8)
    assert order == list(range(101))
    assert pool._threads == 0


def test_a_run_inside_a_worker_stays_in_it(pool: workers._Pool) -> None:
    seen: list[tuple[bool, list[int]]] = []
    meet = together(2)()

    def outer(task: int) -> None:
        meet(task)
        mine, order, threads = threading.get_ident(), list[int](), set[int]()
        run(lambda: lambda i: (order.append(i), threads.add(threading.get_ident())), range(20), 8)
        seen.append((threads == {mine}, order))
        assert workers._here.busy

    run(lambda: outer, range(2), 2)
    assert seen == [(True, list(range(20)))] * 2
    assert pool._threads == 1
    assert at_rest()


def test_the_arrays_of_a_run_are_let_go(pool: workers._Pool) -> None:
    class Buffer:
        pass

    gc.disable()
    try:
        for fails in (False, True):
            buffer = Buffer()
            alive, meet = weakref.ref(buffer), together(2)()

            def do(task: int, buffer: Buffer = buffer, meet: Any = meet, fails: bool = fails) -> None:
                meet(task)
                if fails:
                    raise ValueError

            try:
                run(lambda do=do: do, range(2), 2)
            except ValueError:
                assert fails
            del do, buffer
            deadline = time.monotonic() + 10
            while alive() is not None and time.monotonic() < deadline:
                time.sleep(0.001)  # the helper is on its way back to the pool
            assert alive() is None
    finally:
        gc.enable()


# ------------------------------------------------------------------------------------------------- errors
@pytest.mark.parametrize("error", [ValueError, IndexError, KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("culprit", ["caller", "helper"])
def test_the_first_error_stops_all(blas: Blas, pool: workers._Pool, culprit: str, error: type[BaseException]) -> None:
    caller, meet, done = threading.get_ident(), together(2)(), []

    def do(task: int) -> None:
        if task < 2:
            meet(task)
            if (threading.get_ident() == caller) == (culprit == "caller"):
                raise error("here")
            time.sleep(0.05)
        done.append(task)
        time.sleep(0.002)

    with pytest.raises(error, match="here") as caught:
        run(lambda: do, range(1000), 2)
    assert [entry.name for entry in caught.traceback][-1] == "do"
    finished = len(done)
    assert finished < 500
    time.sleep(0.01)
    assert len(done) == finished, "a worker was not waited for"
    assert blas.ask() == 7
    assert at_rest()


def test_an_error_of_start_comes_out(blas: Blas) -> None:
    def start() -> Callable[[int], None]:
        raise ValueError("no memory for scratch")

    for threads in (1, 3):
        with pytest.raises(ValueError, match="scratch"):
            run(start, range(5), threads)
        assert at_rest()


@pytest.mark.parametrize("interrupts", [1, 2])
def test_an_interrupt_while_waiting_comes_when_the_helper_has_ended(
    monkeypatch: pytest.MonkeyPatch, pool: workers._Pool, interrupts: int
) -> None:
    caller, meet, done = threading.get_ident(), together(2)(), []
    plain, calls = workers._Seat.free, []

    def free(seat: workers._Seat) -> bool:
        calls.append(1)
        if len(calls) <= interrupts:
            raise KeyboardInterrupt
        return plain(seat)

    monkeypatch.setattr(workers._Seat, "free", free)

    def do(task: int) -> None:
        meet(task)
        if threading.get_ident() != caller:
            time.sleep(0.2)
            done.append(task)

    with pytest.raises(KeyboardInterrupt):
        run(lambda: do, range(2), 2)
    assert len(done) == 1


# ----------------------------------------------------------------------------------------------- progress
@pytest.mark.parametrize("size", [None, lambda task: task % 5])
@pytest.mark.parametrize("threads", [1, 2, 4])
def test_progress(threads: int, size: Callable[[int], int] | None) -> None:
    reports: list[tuple[int, int]] = []
    places = set()

    def progress(done: int, total: int) -> None:
        reports.append((done, total))
        places.add(threading.get_ident())

    np.testing.assert_array_equal(squares(60, threads, progress=progress, size=size), np.arange(60) ** 2)
    total = 60 if size is None else sum(i % 5 for i in range(60))
    counts = [done for done, _ in reports]
    assert places == {threading.get_ident()}
    assert counts == sorted(counts)
    assert {whole for _, whole in reports} == {total}
    assert counts.count(total) == 1 == reports.count((total, total))
    if threads == 1 and size is None:
        assert counts == list(range(1, 61))


def test_progress_goes_on_while_the_caller_waits(pool: workers._Pool) -> None:
    caller, meet, waited = threading.get_ident(), together(2)(), threading.Event()
    reports: list[int] = []

    def do(task: int) -> None:
        meet(task)
        if threading.get_ident() != caller:
            assert waited.wait(LONG)

    def progress(done: int, total: int) -> None:
        reports.append(done)
        if len(reports) == 4:
            waited.set()

    run(lambda: do, range(2), 2, progress)
    assert reports[:4] == [1] * 4
    assert reports[-1] == 2


def test_progress_of_nothing() -> None:
    reports: list[tuple[int, int]] = []
    run(nothing, [], 4, lambda *report: reports.append(report))  # type: ignore[arg-type]
    assert reports == [(0, 0)]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_an_error_of_progress_stops_all(blas: Blas, pool: workers._Pool, error: type[BaseException]) -> None:
    done: list[int] = []

    def do(task: int) -> None:
        done.append(task)
        time.sleep(0.001)

    def progress(_: int, __: int) -> None:
        raise error("enough")

    for threads in (1, 2):
        done.clear()
        with pytest.raises(error, match="enough"):
            run(lambda: do, range(1000), threads, progress)
        assert len(done) < 500
        assert at_rest()


# ---------------------------------------------------------------------------------------- crowds and limits
def test_threads_that_cannot_start(monkeypatch: pytest.MonkeyPatch, blas: Blas, pool: workers._Pool) -> None:
    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", start)
        np.testing.assert_array_equal(squares(50, 4), np.arange(50) ** 2)
        assert "can't start new thread" in workers.state().note
    run(together(4), range(4), 4)
    assert workers.state().note == ""


def test_sixteen_runs_at_once(blas: Blas, pool: workers._Pool) -> None:
    end = time.monotonic() + 1.0

    def keep_running(i: int) -> None:
        while time.monotonic() < end:
            np.testing.assert_array_equal(squares(20 + i, 1 + i % 5), np.arange(20 + i) ** 2)

    in_threads(keep_running, 16)
    assert blas.ask() == 7
    assert at_rest()


def test_a_pool_that_is_busy_holds_nobody_up(pool: workers._Pool) -> None:
    meet, leave = together(2)(), threading.Event()

    def occupy(task: int) -> None:
        meet(task)
        assert leave.wait(LONG)

    busy = threading.Thread(target=run, args=(lambda: occupy, range(2), 2), daemon=True)
    busy.start()
    deadline = time.monotonic() + LONG
    while len(workers._limit.holders) < 2 and time.monotonic() < deadline:
        time.sleep(0.001)
    np.testing.assert_array_equal(squares(50, 2), np.arange(50) ** 2)
    assert busy.is_alive()
    leave.set()
    busy.join(LONG)
    assert not busy.is_alive()


def test_random_tasks_of_random_length() -> None:
    rng = random.Random(0)
    for _ in range(20):
        waits = [rng.random() * 1e-3 for _ in range(rng.randrange(30))]
        done: list[int] = []

        def do(i: int, waits: list[float] = waits, done: list[int] = done) -> None:
            time.sleep(waits[i])
            done.append(i)

        run(lambda do=do: do, range(len(waits)), rng.randrange(1, 6))
        assert sorted(done) == list(range(len(waits)))


# -------------------------------------------------------------------------------------- forks and the end
FORK = """
    import os, signal
    signal.alarm(40)  # ends the process, if it hangs
    def all_done():
        done = []
        workers.run(lambda: done.append, range(50), 3)
        return sorted(done) == list(range(50))
    def child_is_well():
        child = os.fork()
        if not child:
            signal.alarm(20)  # its own: a fork clears alarms
            well = False
            try:
                well = ask() == before and all_done() and all_done() and ask() == before
            finally:
                os._exit(0 if well else 1)
        return os.waitpid(child, 0)[1] == 0
    threadpoolctl.threadpool_limits(3, user_api="blas")
    before = ask()
"""
QUIETLY = ("-W", "ignore::DeprecationWarning")


def forked(code: str) -> None:
    real(textwrap.dedent(FORK) + textwrap.dedent(code), *QUIETLY)


@FORKS
def test_forks_between_runs() -> None:
    forked("""
        check(child_is_well())
        for _ in range(3):
            check(all_done())
            check(child_is_well())
        check(ask() == before)
    """)


@FORKS
def test_a_fork_while_another_thread_is_inside() -> None:
    forked("""
        inside, leave = threading.Barrier(3), threading.Event()
        def do(task):
            inside.wait()
            leave.wait()
        other = threading.Thread(target=workers.run, args=(lambda: do, range(2), 2), daemon=True)
        other.start()
        inside.wait()
        check(ask() != before or not controls)
        for _ in range(3):
            check(child_is_well())
        leave.set()
        other.join()
        check(ask() == before and all_done())
    """)


@FORKS
def test_a_fork_in_a_task() -> None:
    forked("""
        well = []
        workers.run(lambda: lambda task: well.append(child_is_well()), range(2), 1)
        check(well == [True, True] and ask() == before and all_done())
    """)


@pytest.mark.parametrize("warm", [False, True])
def test_a_run_at_the_very_end(warm: bool) -> None:
    code = f"""
        import atexit
        from headwise.core import workers
        done = []
        def last():
            workers.run(lambda: done.append, range(50), 3)
            print(sorted(done) == list(range(50)))
        atexit.register(last)
        if {warm}:
            workers.run(lambda: int, range(50), 3)
    """
    assert python(code) == "True"


def test_the_interpreter_ends_while_a_daemon_runs() -> None:
    code = """
        import threading, time
        from headwise.core import workers
        def forever():
            while True:
                workers.run(lambda: lambda task: time.sleep(1e-4), range(50), 3)
        threading.Thread(target=forever, daemon=True).start()
        time.sleep(0.2)
        workers.run(lambda: int, range(50), 3)
        print("ended")
    """
    assert python(code) == "ended"
