"""Threads that share out tasks, each with the BLAS held to one thread of its own; knows nothing of attention.

A library that runs tasks in threads must keep the BLAS from starting as many again in each of them. That limit belongs
to the whole process, and so to the user too: it is taken when the first worker comes in, and what was there before is
put back when the last one has left.

Ctrl-C may land between any two bytecodes of the main thread. Everything here that outlives a call is therefore changed
by single steps which may be repeated, and the main thread touches no lock that is written in Python: an interrupt
inside ``Condition.__enter__`` would leave it locked for ever. This is why there is no ThreadPoolExecutor here, whose
``submit`` is full of them.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from queue import SimpleQueue
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
from threadpoolctl import ThreadpoolController  # type: ignore[import-untyped]

Task = TypeVar("Task")
Result = TypeVar("Result")
Progress = Callable[[int, int], object]
PATIENCE = 0.1  # seconds between two looks at the others, and two reports of progress, while the caller waits


class _Lock:
    """A lock, in C, that no interrupt leaves locked.

    Some Pythons can skip the end of a ``with`` when a signal comes at a bad moment: 3.14 right after its beginning
    (python/cpython issue 148874), 3.13.0 when it jumps back in a loop (issue 130279). Its own thread may take the lock
    again: a signal handler or a finalizer that computes.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()

    def hold(self, function: Callable[..., Result], *args: object) -> Result:
        """Call a function while nobody else does."""
        try:
            with self._lock:
                return function(*args)
        except BaseException:
            self._let_go()
            raise

    def _let_go(self) -> None:
        try:
            while True:
                self._lock.release()
        except RuntimeError:  # it is not ours: as it should be
            pass


# ----------------------------------------------------------------------------------- the BLAS and its threads
class _Library(NamedTuple):
    """One BLAS, and how it is asked and told its number of threads."""

    name: str
    version: str
    ask: Callable[[], int]
    tell: Callable[[int], object]
    per_thread: bool  # whether what it is told holds for the telling thread alone, as with MKL


_Numbers = list[tuple[_Library, int]]


def _give_back(numbers: _Numbers) -> None:
    """Tell each library its number, and strike it out."""
    while numbers:
        library, threads = numbers[-1]
        library.tell(threads)
        numbers.pop()


def _find_libraries() -> tuple[_Library, ...]:
    """Every BLAS that can be limited: NumPy's own where it has one, else all that are loaded."""
    try:
        controls = [control for control in ThreadpoolController().lib_controllers if control.user_api == "blas"]
    except Exception:  # a system whose libraries cannot be listed
        return ()
    home = os.path.dirname(os.path.realpath(np.__file__))
    roots = (home + os.sep, home + ".libs" + os.sep)
    own = [control for control in controls if os.path.realpath(control.filepath).startswith(roots)]
    return tuple(library for control in own or controls if (library := _library(control)) is not None)


def _library(control: Any) -> _Library | None:
    """What threadpoolctl knows of one BLAS, or None if it does not obey."""
    ask = control.get_num_threads
    # From 3.8 on, set_num_threads of OpenBLAS obeys one thread and silently ignores all others. Here the last to leave
    # is often not the one that came first, so that the BLAS would stay at one thread.
    tell = getattr(control, "_real_set_num_threads", control.set_num_threads)
    try:
        threads = ask()
        tell(threads)
        if not isinstance(threads, int) or threads < 1:
            return None
        shared = control.internal_api == "openblas" and control.threading_layer != "openmp"
        per_thread = not shared and _holds_per_thread(ask, tell)
    except Exception:
        return None
    return _Library(control.internal_api, control.version or "", ask, tell, per_thread)


def _holds_per_thread(ask: Callable[[], int], tell: Callable[[int], object]) -> bool:
    """Tell this thread another number, and see whether a new thread hears of it."""
    before = ask()
    other = 1 if before != 1 else 2
    heard: list[int] = []
    try:
        tell(other)
        thread = threading.Thread(target=lambda: heard.append(ask()), daemon=True)
        thread.start()
        thread.join()
    except RuntimeError:  # no thread can start: then there will be no workers either
        return False
    finally:
        tell(before)
    return heard != [other]


class _Limit:
    """Who holds the BLAS to one thread, and what it was before.

    ``before`` is None exactly as long as no number of ours is set. It outlives the holders where an interrupt keeps the
    last one from restoring; the next to come in then keeps it, and the next to leave restores it.
    """

    def __init__(self, libraries: tuple[_Library, ...] | None = None) -> None:
        self.lock = _Lock()
        self.holders: dict[int, weakref.ref[_Guard]] = {}  # by id; weak, so that a lost guard can be noticed
        self.before: _Numbers | None = None
        self._libraries = libraries

    @property
    def libraries(self) -> tuple[_Library, ...]:
        """Looked for once, at first use: it takes half a millisecond."""
        if self._libraries is None:
            self._libraries = _find_libraries()
        return self._libraries

    def take(self, guard: _Guard) -> None:
        first = not self.holders
        self.holders[id(guard)] = weakref.ref(guard, partial(self.lost, guard.own))
        if not first:
            return
        if self.before is None:
            self.before = [(library, library.ask()) for library in self.libraries]
        for library, _ in self.before:
            if not library.per_thread:
                library.tell(1)

    def drop(self, holder: int) -> None:
        self.holders.pop(holder, None)
        if not self.holders and self.before is not None:
            self.restore()

    def lost(self, own: _Numbers, guard: weakref.ref[_Guard]) -> None:
        """A guard has died that was never released. (One that was has taken its weak reference along.)"""
        _give_back(own)
        for holder, held in list(self.holders.items()):
            if held is guard:
                self.lock.hold(self.drop, holder)

    def counts(self) -> list[int]:
        if self.before is not None:
            return [threads for _, threads in self.before]
        return [library.ask() for library in self.libraries]

    def restore(self) -> None:
        """Put back what was there before, unless somebody else has changed it since."""
        for library, threads in self.before or ():
            if threads != 1 and not library.per_thread and library.ask() == 1:
                library.tell(threads)
        self.before = None


_limit = _Limit()


class _Guard:
    """Holds the BLAS to one thread; for one ``with`` at a time. Releasing twice is releasing once.

    What remains: an interrupt on the first bytecode of ``__exit__`` skips it, and then the limit lasts until the
    traceback is freed that holds the guard; `run` does not wait for that but releases again. It takes further
    interrupts during both to leave the BLAS at one thread. And a user's own limit that is taken while ours holds reads
    1 as what was there before, as the inner one of two that are not left in order always does.
    """

    # Not __del__: it would run at the end of every guard, and an interrupt in it is printed and forgotten.
    __slots__ = ("__weakref__", "own")

    def __init__(self) -> None:
        self.own: _Numbers = []  # what holds for this thread alone

    def __enter__(self) -> None:
        try:
            limit = _limit
            limit.lock.hold(limit.take, self)
            for library in limit.libraries:
                if library.per_thread:
                    self.own.append((library, library.ask()))
                    library.tell(1)
        except BaseException:
            self.release()
            raise

    def __exit__(self, *_: object) -> None:
        try:
            self.release()
        except BaseException:
            self.release()
            raise

    def release(self) -> None:
        if self.own:
            _give_back(self.own)
        limit = _limit
        limit.lock.hold(limit.drop, id(self))


def one_blas_thread() -> _Guard:
    """A context manager that holds the BLAS to one thread.

    Any number of threads may be inside at once: the first one in sets the limit, the last one out puts back what was
    there before. Where the BLAS cannot be limited it does nothing.
    """
    return _Guard()


def default_threads() -> int:
    """How many threads the BLAS would use without us; the CPUs of this process where there is no BLAS to ask."""
    limit = _limit
    return max(limit.lock.hold(limit.counts), default=0) or _cpus()


def _cpus() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


# ------------------------------------------------------------------------------------------------ one run
class _Here(threading.local):
    busy = False  # whether this thread is at work in a run


_here = _Here()


class _Seat:
    """A place for one helper, which may come late or never.

    Either the helper takes it or the caller closes it, whichever is first. All of it may be asked again after an
    interrupt: what was true stays true.
    """

    def __init__(self) -> None:
        self._first: dict[str, str] = {}
        self._over = False
        self._rest = threading.Lock()
        self._rest.acquire()

    def taken_by(self, who: str) -> bool:
        return self._first.setdefault("first", who) == who  # one step of C: two cannot both be first

    def leave(self) -> None:
        self._over = True  # before the lock is free: who wakes up, or gave up waiting, sees it
        self._rest.release()

    def free(self) -> bool:
        """Whether no helper sits here, nor ever will. Waits a little if one does."""
        if self.taken_by("caller") or self._over:
            return True
        if self._rest.acquire(timeout=PATIENCE):
            self._rest.release()
        return self._over


class _Job(Generic[Task]):
    """One run: the tasks that are left, what is done, and what went wrong."""

    def __init__(
        self,
        start: Callable[[], Callable[[Task], object]],
        tasks: Sequence[Task],
        workers: int,
        size: Callable[[Task], int] | None,
    ) -> None:
        self.start, self.size = start, size
        self.queue = deque(tasks)
        self.total = len(tasks) if size is None else sum(map(size, tasks))
        self.done = [0] * workers  # each worker counts for itself: no lock, and sums never fall
        self.seats = [_Seat() for _ in range(workers - 1)]
        self.errors: list[BaseException] = []

    def work(self, me: int, progress: Progress | None = None) -> None:
        """Be a worker until no task is left."""
        guard, outer, errors = one_blas_thread(), _here.busy, np.geterr()
        try:
            _here.busy = True
            with guard, np.errstate(all="ignore"):
                self._take_tasks(me, progress)
        except BaseException:
            np.seterr(**errors)  # an interrupt may have skipped the end of errstate, as that of the guard
            raise
        finally:
            _here.busy = outer
            guard.release()

    def _take_tasks(self, me: int, progress: Progress | None) -> None:
        if not self.queue:
            return
        do, size = self.start(), self.size
        for task in _taken(self.queue):
            do(task)
            self.done[me] += 1 if size is None else size(task)
            if progress is not None:
                self._report(progress)

    def _report(self, progress: Progress) -> None:
        done = sum(self.done)
        if done < self.total:  # the end is reported once, when it has come
            progress(done, self.total)

    def help(self, me: int, seat: _Seat) -> None:
        """Be a worker other than the caller, if there is still a seat."""
        if not seat.taken_by("helper"):
            return
        try:
            self.work(me)
        except BaseException as error:
            self.fail(error)
        finally:
            seat.leave()

    def fail(self, error: BaseException) -> None:
        self.errors.append(error)
        self.queue.clear()

    def wait(self, progress: Progress | None = None) -> None:
        """Let no more helpers come, and wait for those that came."""
        for seat in self.seats:
            while not seat.free():
                if progress is not None:
                    self._report(progress)

    def end(self) -> None:
        """Wait, even if interrupted; a second interrupt while waiting leaves the helpers to themselves."""
        try:
            self.wait()
        except BaseException:
            self.wait()
            raise

    def raise_first(self) -> None:
        try:
            if self.errors:
                raise self.errors[0]
        finally:
            self.errors.clear()  # else error, traceback, frame and job would hold each other, and all arrays


def _taken(queue: deque[Task]) -> Iterator[Task]:
    """The tasks one by one, whoever else takes some."""
    while True:
        try:
            task = queue.popleft()
        except IndexError:
            return
        yield task


# ---------------------------------------------------------------------------------------------- the pool
class _Pool:
    """Threads that wait for calls. There are none until they are needed, and as many as were ever needed at once.

    They are daemons: asleep in C when the interpreter ends, and nobody has to wake them up.
    """

    def __init__(self) -> None:
        self.refused = ""  # why a thread could not start the last time
        self._lock = _Lock()
        self._calls: SimpleQueue[Callable[[], object]] = SimpleQueue()
        self._threads = 0

    def help(self, job: _Job[Any]) -> None:
        """Send helpers to a job: one to each seat, or as many as there are threads."""
        self._lock.hold(self._grow, len(job.seats))
        for me, seat in enumerate(job.seats[: self._threads], 1):
            self._calls.put(partial(job.help, me, seat))

    def _grow(self, threads: int) -> None:
        try:
            while self._threads < threads:
                threading.Thread(target=_serve, args=(self._calls,), name="headwise", daemon=True).start()
                self._threads += 1  # an interrupt before this line makes for one idle thread more
            self.refused = ""
        except RuntimeError as error:  # of the system's limit, or the interpreter is about to end
            self.refused = str(error)


def _serve(calls: SimpleQueue[Callable[[], object]]) -> None:
    """Answer calls until one returns something true: a job never does, a test that tidies up may."""
    while not calls.get()():  # without a name for the call: what it holds must go before the next one comes
        pass


_pool = _Pool()


def _in_child() -> None:
    """After a fork: no other thread is here, so nobody holds or serves anything."""
    global _limit, _pool
    parents = _limit
    _limit, _pool = _Limit(parents._libraries), _Pool()
    _here.busy = False
    _limit.before = parents.before
    _limit.restore()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)


def run(
    start: Callable[[], Callable[[Task], object]],
    tasks: Sequence[Task],
    threads: int,
    progress: Progress | None = None,
    size: Callable[[Task], int] | None = None,
) -> None:
    """Do every task once, in at most so many threads, the caller's among them.

    Tasks are begun in their order, under `one_blas_thread` and with NumPy's warnings off. Within a task of ours all
    tasks are done by the worker that asks. The first error of any worker stops all of them, and is raised when they
    have stopped.

    Parameters
    ----------
    start : callable
        Called once in each worker that finds a task. It returns what does one task, with scratch space of its own.
    tasks : sequence
        What there is to do.
    threads : int
        How many workers at most.
    progress : callable, optional
        Called as ``progress(done, total)`` in the caller's thread alone: after its own tasks, every now and then while
        it waits for others, and at the end with ``(total, total)``.
    size : callable, optional
        What a task counts for in ``done`` and ``total``; 1 without it.
    """
    workers = 1 if _here.busy else max(1, min(threads, len(tasks)))
    job = _Job(start, tasks, workers, None if progress is None else size)
    try:
        if job.seats:
            _pool.help(job)
        job.work(0, progress)
        job.wait(progress)
    except Exception as error:
        job.fail(error)
    finally:
        job.queue.clear()
        job.end()
    job.raise_first()
    if progress is not None:
        progress(job.total, job.total)


# ------------------------------------------------------------------------------------------------- state
class WorkersState(NamedTuple):
    """What a user may want to know: `default_threads`, each BLAS that is limited, and what does not work."""

    threads: int
    blas: tuple[tuple[str, str], ...]  # (name, version)
    note: str


def state() -> WorkersState:
    """How many threads there would be, and what is in the way of them."""
    blas = tuple((library.name, library.version) for library in _limit.libraries)
    notes = []
    if not blas:
        notes.append(
            f"the BLAS of this NumPy ({_blas_name()}) cannot be told its number of threads; "
            "it may start its own in every worker"
        )
    if _pool.refused:
        notes.append(f"threads could not be started the last time ({_pool.refused}); the caller worked without them")
    return WorkersState(default_threads(), blas, "; ".join(notes))


def _blas_name() -> str:
    try:
        config: Any = np.show_config(mode="dicts")
        return str(config["Build Dependencies"]["blas"]["name"])
    except Exception:  # a NumPy that was built in some other way
        return "of unknown name"
