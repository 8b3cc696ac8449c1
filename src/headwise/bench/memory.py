"""Peak memory of one call of ours, beyond inputs and results: measured in a process of its own.

`python -m headwise.bench.memory CASE THREADS` prints it, in bytes; null where the system does not say.
"""

import json
import re
import subprocess
import sys

from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from headwise.bench import workloads
from headwise.bench.arrays import Run
from headwise.bench.cases import Case, select


# The peak is that of the resident set, in pages that were touched, so it has limits: memory that the allocator kept
# from before and hands out again is not seen; what the allocator or a library keeps for later is; the kernel's own
# count may lag by some hundred KiB. A process of its own, which does nothing else, keeps these small. The result counts
# as there from the beginning, so that what is allocated late leaves room for as much that is not seen. On Linux
# VmHWM is read instead of ru_maxrss, which a process inherits from the one that started it (ours, with torch and its
# arrays), and it is set back right before the run, so that what making the inputs took does not hide anything.
def _peak() -> int | None:
    """The most bytes that this process had resident since it began or was set back; None where nobody says."""
    try:
        with open("/proc/self/status", encoding="ascii", errors="replace") as file:
            found = re.search(r"^VmHWM:\s*(\d+) kB", file.read(), re.MULTILINE)
        if found:
            return int(found[1]) * 1024
    except OSError:
        pass
    try:
        import resource
    except ImportError:  # Windows
        return None
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def growth(run: Run) -> int | None:
    """Run once, and return how many bytes the process had at its peak beyond those before and the result."""
    try:
        with open("/proc/self/clear_refs", "w", encoding="ascii") as file:
            file.write("5")  # the peak is what there is now
    except OSError:  # not Linux, or not allowed: the peak so far is the bar
        pass
    before = _peak()
    made = run()
    after = _peak()
    held = sum(x.nbytes for x in (made if isinstance(made, tuple) else (made,)))
    return None if before is None or after is None else max(0, after - before - held)


def _measure_memory(name: str, threads: int) -> int | None:
    """Growth of one call of ours, in a process that has made the inputs and warmed up on a small relative of them.

    Of a backward pass, that of both passes: what the forward one leaves to the allocator would hide it.
    """
    case = select([name])[0]
    case = case._replace(timed="both") if case.timed == "backward" else case
    _, h, n, d = case.shape
    small = case._replace(shape=(1, h, min(n, 256), d), n_k=min(case.keys, 256))
    work = workloads.of(case)
    with threadpool_limits(threads, user_api="blas"):  # layers take as many threads as it has
        work.ours(small, work.make(small), threads)()
        return growth(work.ours(case, work.make(case), threads))


def extra_bytes(case: Case, threads: int) -> int | None:
    """Return the peak of our memory beyond inputs and results, measured in a fresh process; None: it could not be."""
    command = [sys.executable, "-m", "headwise.bench.memory", case.name, str(threads)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        return None
    found = json.loads(done.stdout)
    return None if found is None else int(found)


if __name__ == "__main__":
    print(json.dumps(_measure_memory(sys.argv[1], int(sys.argv[2]))))
