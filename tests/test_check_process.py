"""Solutions that mean harm, or do some: each ends as a report, within limits, and leaves nothing behind."""

import os
import re
import shutil
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from headwise.check import grade, process, scratch
from headwise.check.calls import Call, Run
from headwise.check.process import Limits
from headwise.check.targets import Subject, subject
from headwise.check.wire import packed, unpacked

X = np.array([[0.0, 1.0, 2.0]])
CALL = Call("softmax", {"x": X, "axis": -1})
AMPLE, SHORT, WHILE, LONG = Limits(), Limits(seconds=2.0), Limits(seconds=4.0), Limits(seconds=60.0)
STAYS = f"headwise-test-stays-{os.getpid()}"  # an argument of processes that solutions leave behind
SOFTMAX = "def softmax(x, axis=-1):\n    return x\n"
ONES = "import numpy as np\ndef softmax(x, axis=-1):\n    return x * 0 + 1\n"
SLEEPER = f"[sys.executable, '-c', 'import time; time.sleep(90)', '{STAYS}']"
DAEMON = f"""\
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.chdir('/')
        os.closerange(0, 99)
        os.execve(sys.executable, {SLEEPER}, {{}})
    os._exit(0)
os.wait()
"""
KILL_PARENT = "os.kill(os.getppid(), 9)\n"
LIAR = """\
import os
class Liar:
    @property
    def __class__(self):
        raise RuntimeError("no class")
    def __call__(self, x, axis=-1):
        return x
softmax = Liar()
"""
LINUX = sys.platform.startswith("linux")


class Case(NamedTuple):
    """A solution, and what must be said of it: why it is broken, or what its one call gave."""

    source: str
    broken: str = ""
    error: str = ""
    printed: str = ""
    limits: Limits = AMPLE


def calls(body: str, before: str = "import os, sys") -> str:
    """A solution whose function does something."""
    return f"{before}\ndef softmax(x, axis=-1):\n" + "".join(f"    {line}\n" for line in body.splitlines())


FINE = ""  # neither broken nor an error: the call gave its input back
CASES = {
    "endless loop": Case(calls("while 1:\n    pass"), r"did not end within 2 s \(line [34] of it\.py\)", limits=SHORT),
    "endless loop at import": Case(
        "x = 1\nwhile True:\n    x = 2\n", r"did not end within 2 s \(line [23] of it\.py\)", limits=SHORT
    ),
    "endless loop that catches everything": Case(
        calls("while True:\n    try:\n        time.sleep(9)\n    except BaseException:\n        pass", "import time"),
        r"did not end within 2 s \(line 5 of it\.py\)",
        limits=SHORT,
    ),
    "signals ignored": Case(
        calls(
            "for number in range(1, 32):\n    try:\n        signal.signal(number, signal.SIG_IGN)\n"
            "    except OSError:\n        pass\ntime.sleep(90)",
            "import signal, time",
        ),
        r"did not end within 2 s",
        limits=SHORT,
    ),
    "crash": Case(calls("os.kill(os.getpid(), 11)"), r"was ended by SIGSEGV \(Segm.* fault\) \(line 3 of it\.py\)"),
    "crash in C": Case(calls("ctypes.string_at(0)", "import ctypes"), r"was ended by SIGSEGV .*\(line 3 of it\.py\)"),
    "abort": Case("import os\nos.abort()\n", r"was ended by SIGABRT .*\(line 2 of it\.py\)"),
    "killed": Case(calls("os.kill(os.getpid(), 9)"), r"was ended by SIGKILL"),
    "sys.exit at import": Case("import sys\nsys.exit(3)\n", r"SystemExit: 3 \(line 2 of it\.py\)"),
    "sys.exit": Case(calls("sys.exit('enough')"), FINE, r"SystemExit: enough \(line 3 of it\.py\)"),
    "os._exit": Case(calls("os._exit(0)"), r"ended itself by os\._exit\(0\)"),
    "os._exit at import": Case("import os\nos._exit(5)\n", r"ended itself by os\._exit\(5\)"),
    "import error": Case("\nimport no_such_module\n", r"ModuleNotFoundError: No module named 'no_such_module' \("),
    "syntax error": Case("def f():\n  return (\n", r"SyntaxError: '\(' was never closed \(line 2 of it\.py\)"),
    "null bytes": Case("x = 1\0\n", r"(SyntaxError|ValueError): source code (string )?cannot contain null bytes"),
    "prints without end": Case(
        calls("while True:\n    print('y' * 1000)"), r"did not end within 4 s", printed="^y{1000}\n", limits=WHILE
    ),
    "prints much": Case(
        calls("os.write(1, b'z' * 10_000_000)\nreturn x"), printed=r"^z{65536}\n\.\.\. \(cut after 65536 bytes\)\n$"
    ),
    "prints what acts on terminals": Case(
        calls("os.write(2, bytes([27, 91, 50, 74, 255]))\nreturn x"), printed="^\x1b\\[2J\ufffd$"
    ),
    "returns much": Case(
        calls("return np.zeros((3000, 3000))", "import numpy as np"), FINE, r"softmax returned 72000000 bytes in shape"
    ),
    "returns more than there is": Case(
        calls("return np.broadcast_to(x, (10**9, 10**6, 3))", "import numpy as np"), FINE, r"returned \d+ bytes"
    ),
    "takes much memory": Case(
        calls("return np.ones((1 << 33,))", "import numpy as np"), FINE, r"MemoryError: Unable to allocate 64"
    ),
    "takes memory bit by bit": Case(
        calls("kept = []\nwhile True:\n    kept.append(bytearray(1 << 26))"),
        FINE,
        r"^MemoryError \(line 5 of it\.py\)$",
        limits=Limits(memory=1 << 29),
    ),
    "a process behind": Case(
        calls(f"subprocess.Popen({SLEEPER})\nreturn x", "import subprocess, sys"),
    ),
    "a daemon behind": Case(
        calls(f"subprocess.Popen({SLEEPER}, start_new_session=True)\nreturn x", "import subprocess, sys"),
    ),
    "a daemon behind, without environment": Case(
        calls(f"subprocess.Popen({SLEEPER}, start_new_session=True, env={{}})\nreturn x", "import subprocess, sys"),
    ),
    "a daemon twice removed": Case(
        calls(
            f"if os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n        os.chdir('/')\n"
            f"        os.execv(sys.executable, {SLEEPER})\n    os._exit(0)\nos.wait()\nreturn x"
        ),
    ),
    "a daemon without any mark": Case(calls(DAEMON + "return x")),
    "a daemon without any mark, of a crash": Case(calls(DAEMON + "os._exit(3)"), r"ended itself by os\._exit\(3\)"),
    "a daemon without any mark, and nobody who watches": Case(
        calls(DAEMON + KILL_PARENT + "time.sleep(90)", "import os, sys, time"), r"ended the process that watches it",
    ),
    "processes that start ever more": Case(
        calls(
            "if os.fork() == 0:\n    while True:\n        if os.fork() == 0:\n            os.setsid()\n"
            "            time.sleep(0.001)\n        else:\n            os._exit(0)\nreturn x", "import os, time"
        ),
    ),
    "an interrupt to its parent": Case(
        calls("os.kill(os.getppid(), 2)\ntime.sleep(0.3)\nreturn x", "import os, time")
    ),
    "all signals but two to its parent": Case(
        calls(
            "for number in set(range(1, 32)) - {9, 19}:\n    os.kill(os.getppid(), number)\ntime.sleep(0.3)\nreturn x",
            "import os, time",
        )
    ),
    "its parent killed": Case(
        calls(KILL_PARENT + "time.sleep(90)", "import os, time"), r"^ended the process that watches it$", limits=LONG
    ),
    "its parent stopped": Case(
        calls("os.kill(os.getppid(), signal.SIGSTOP)\ntime.sleep(90)", "import os, signal, time"),
        r"did not end within 2 s",
        limits=SHORT,
    ),
    "itself stopped": Case(
        calls("os.kill(os.getpid(), signal.SIGSTOP)", "import os, signal"),
        r"did not end within 2 s \(line 3 of it\.py\)",
        limits=SHORT,
    ),
    "its group killed": Case(calls("os.kill(0, 9)"), r"was ended by SIGKILL"),
    "its folder moved": Case(
        calls("folder = os.path.realpath('..')\nos.rename(folder, folder + '-moved')\nreturn x")
    ),
    "its folder moved, and a link in its place": Case(
        calls(
            "folder = os.path.realpath('..')\nos.rename(folder, folder + '-moved')\n"
            "os.symlink(os.path.dirname(folder) + '/kept', folder)\nreturn x"
        )
    ),
    "another root": Case(calls("os.chroot('.') if os.getuid() == 0 else None\nreturn x")),
    "an alarm": Case(calls("signal.alarm(1)\ntime.sleep(90)", "import signal, time"), r"was ended by SIGALRM"),
    "builtins replaced": Case(
        calls("builtins.isinstance = builtins.len = builtins.sum = None\nreturn x", "import builtins"),
        r"its results could not be written: TypeError: 'NoneType' object is not callable",
    ),
    "numpy taken away": Case(calls("sys.modules['numpy'] = None\nreturn x")),
    "a trace that raises": Case(
        calls("def trace(*_):\n    raise RuntimeError('traced')\nsys.settrace(trace)\nreturn x"),
        FINE,
        r"^RuntimeError: traced",
    ),
    "a trace left": Case(calls("def trace(*_):\n    return trace\nsys.settrace(trace)\nreturn x")),
    "hardly any recursion": Case(calls("sys.setrecursionlimit(60)\nreturn x")),
    "a generator": Case(calls("yield x"), FINE, r"softmax returned a generator, expected an ndarray"),
    "an array of objects": Case(calls("return x.astype(object)"), FINE, r"returned an array of dtype object"),
    "an array in a file": Case(
        calls(
            "kept = np.memmap('kept', float, 'w+', shape=x.shape)\nkept[:] = x\nreturn kept", "import numpy as np"
        ),
    ),
    "an array backwards": Case(calls("return x[:, ::-1].copy()[:, ::-1]")),
    "a list within itself": Case(calls("x = []\nx.append(x)\nreturn x"), FINE, r"softmax returned a list whose parts"),
    "an array that lies": Case(
        calls(
            "return x.view(Liar)",
            "import numpy as np\nclass Liar(np.ndarray):\n    def __array__(self, *_, **__):\n        raise KeyError\n"
            "    __array_function__ = __array_ufunc__ = __array__\n    nbytes = property(lambda self: -1)\n",
        ),
    ),
    "an array that raises": Case(
        calls(
            "return x.view(Liar)",
            "import numpy\nclass Liar(numpy.ndarray):\n    @property\n    def nbytes(self):\n        raise KeyError\n",
        ),
        FINE,
        r"^KeyError \(line 5 of it\.py\)$",
    ),
    "something that says it is an array": Case(
        calls("return Liar()", "class Liar:\n    def __array__(self, *_, **__):\n        return None\n"),
        FINE,
        r"softmax returned a Liar, expected an ndarray",
    ),
    "a function that does not say what it is": Case(LIAR, FINE),
    "a module that does not say what it has": Case("def __getattr__(name):\n    raise RuntimeError(name)\n" + SOFTMAX),
    "an exit in a thread": Case(
        calls("threading.Thread(target=os._exit, args=(4,)).start()\ntime.sleep(90)", "import os, threading, time"),
        r"ended itself by os\._exit\(4\)",
    ),
    "numpy patched": Case(
        "import numpy as np\n" + calls("return x", "")
        + "for name, value in list(vars(np).items()):\n    if callable(value) and not isinstance(value, type):\n"
        "        setattr(np, name, None)\n",
    ),
    "os and builtins patched": Case(
        calls("return x", "import os, json\nos.write = os.open = os.close = os._exit = json.dumps = None"),
    ),
    "a fork that goes on": Case(calls("os.fork()\nreturn x")),
    "None returned": Case(calls("pass"), FINE, r"softmax returned None: is there a return\?"),
    "a str returned": Case(calls("return 'abc'"), FINE, r"softmax returned a str, expected an ndarray"),
    "results written": Case(
        calls("open('../results', 'wb').write(b'x' * 99)\nreturn x"), r"its results were damaged"
    ),
    "results forged": Case(
        calls(
            "text = b'[{\"done\": true, \"token\": \"0\"}, []]'\n"
            "open('../results', 'wb').write(len(text).to_bytes(8, 'little') + text)\nos._exit(0)"
        ),
        r"its results were written by the solution",
    ),
    "results promised": Case(
        calls(
            "text = b'[{}, [[\"out\", \"<f8\", [1073741824, 1073741824]]]]'\n"
            "open('../results', 'wb').write(len(text).to_bytes(8, 'little') + text)\nos._exit(0)"
        ),
        r"its results were damaged",
    ),
    "results nested": Case(
        calls(
            "text = b'[' * 100000\nopen('../results', 'wb').write(len(text).to_bytes(8, 'little') + text)\nos._exit(0)"
        ),
        r"its results were damaged",
    ),
    "results a link": Case(
        calls("os.remove('../results')\nos.symlink('/dev/zero', '../results')\nreturn x"),
        r"its results were removed, replaced or too large",
    ),
    "results a link to a file": Case(
        calls("os.remove('../results')\nos.symlink('solution.py', '../results')\nreturn x"),
        r"its results were removed, replaced or too large",
    ),
    "results a pipe": Case(
        calls("os.remove('../results')\nos.mkfifo('../results')\nreturn x"),
        r"its results were removed, replaced or too large",
    ),
    "results too large": Case(
        calls("file = open('../results', 'wb')\nfile.truncate(30 << 20)\nos._exit(0)"),
        r"its results were removed, replaced or too large",
    ),
    "its folder removed": Case(calls("shutil.rmtree(os.getcwd())\nreturn x", "import os, shutil")),
    "all folders removed": Case(
        calls("shutil.rmtree(os.path.dirname(os.getcwd()))\nreturn x", "import os, shutil"),
        r"its results could not be written: FileNotFoundError",
    ),
    "its folder closed to itself": Case(calls("os.chmod(os.getcwd(), 0)\nreturn x")),
    "streams closed": Case(calls("os.closerange(0, 99)\nreturn x")),
    "streams None": Case(calls("sys.stdout = sys.stderr = sys.stdin = None\nreturn x")),
    "an error without words": Case(
        calls("raise Mute()", "class Mute(Exception):\n    def __str__(self):\n        raise KeyboardInterrupt\n"),
        FINE,
        r"^Mute: \(its message cannot be read\) \(line 6 of it\.py\)$",
    ),
    "an error of many words": Case(calls("raise ValueError('\\x1b' + 'a b\\n' * 10**6)"), "", r"^ValueError: \\x1ba b"),
    "KeyboardInterrupt": Case(calls("raise KeyboardInterrupt"), FINE, r"^KeyboardInterrupt \(line 3 of it\.py\)$"),
    "recursion": Case(calls("return sorted([x], key=softmax)"), FINE, r"^RecursionError: maximum recursion .*\(l"),
    "reads from the terminal": Case(calls("return float(input('? '))"), FINE, r"^EOFError: EOF when reading a line"),
    "threads left running": Case(
        calls("threading.Thread(target=time.sleep, args=(90,)).start()\nreturn x", "import threading, time"),
        limits=LONG,
    ),
    "an end that waits": Case(
        calls("atexit.register(time.sleep, 90)\nreturn x", "import atexit, time"),
        limits=LONG,
    ),
    "a large file": Case(
        calls("file = open('big', 'wb')\nfor _ in range(99):\n    file.write(bytes(1 << 20))\nreturn x"),
        FINE,
        r"^OSError: \[Errno 27\] File too large",
    ),
}  # fmt: skip


class Done(NamedTuple):
    """What came of a case, and how long it took."""

    subject: Subject
    run: Run
    seconds: float


def graded(folder: Path, case: Case) -> Done:
    path = folder / "it.py"
    path.write_text(case.source)
    start = time.monotonic()
    found = subject(path, limits=case.limits)
    run = found.run([CALL])
    return Done(found, run, time.monotonic() - start)


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """All cases, several at a time, with their temporary folders in one of ours, beside a folder that is not theirs."""
    folders = tmp_path_factory.mktemp("scratch")
    (folders / "kept" / "inside").mkdir(parents=True)
    before, tempfile.tempdir = tempfile.tempdir, str(folders)
    try:
        with ThreadPoolExecutor(6) as pool:
            started = {name: pool.submit(graded, tmp_path_factory.mktemp("case"), case) for name, case in CASES.items()}
            results = {name: future.result() for name, future in started.items()}
    finally:
        tempfile.tempdir = before
    return results, folders


def running(mark: str) -> list[str]:
    """The processes with a mark in their command; those that ended and are not reaped have no command."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            found += [path.parts[2]] if mark.encode() in path.read_bytes() else []
    return found


@pytest.fixture(scope="module", autouse=True)
def nothing_stays(tmp_path_factory):
    """After all tests of this file no process and no folder of it is left, of those that watch a solution neither.

    Those of another run of these tests stand in folders elsewhere.
    """
    own, before = tmp_path_factory.mktemp("own").resolve(), tempfile.tempdir
    tempfile.tempdir = str(own)
    yield
    tempfile.tempdir = before
    assert running(STAYS) == []
    assert running(str(own)) == []
    assert list(own.iterdir()) == []


@pytest.mark.parametrize("name", CASES)
def test_a_hostile_solution_ends_as_a_report(done, name):
    case, (found, run, seconds) = CASES[name], done[0][name]
    broken = found.broken or run.broken
    assert seconds < 30, "limits hold"
    assert re.search(case.broken, broken) if case.broken else not broken, broken
    assert re.search(case.printed, run.printed), run.printed[:200]
    assert broken or len(run.results) == 1
    for result in run.results:
        assert re.search(case.error, result.error) if case.error else not result.error, result.error
        assert len(result.error) <= 500
        assert result.error.isprintable()
        assert case.error or np.array_equal(result.out, X)


def test_nothing_is_left_behind(done):
    assert [str(path.relative_to(done[1])) for path in sorted(done[1].rglob("*"))] == ["kept", "kept/inside"]
    assert running(STAYS) == []


def test_calls_after_a_fork_that_comes_back_are_those_of_one_process(tmp_path):
    path = tmp_path / "it.py"
    path.write_text(
        calls("forked = os.fork()\nos.waitpid(forked, 0) if forked else None\nreturn x if forked else x + 9")
    )
    run = subject(path).run([CALL, Call("softmax", {"x": X + 1})])
    assert run.broken == ""
    np.testing.assert_array_equal([result.out for result in run.results], [X, X + 1])


def test_a_solution_that_is_broken_needs_no_more_children(done):
    found = done[0]["import error"].subject
    assert found.run([CALL]) == Run([], found.broken)
    assert found.found == {}


def test_calls_before_a_crash_are_kept(tmp_path):
    path = tmp_path / "it.py"
    path.write_text("import os\ndef softmax(x, axis=-1):\n    return x if x.ndim == 2 else os._exit(4)\n")
    run = subject(path).run([CALL, Call("softmax", {"x": X[0]}), CALL])
    assert run.broken == "ended itself by os._exit(4)"
    assert [result.error for result in run.results] == [""]


def test_an_interrupt_ends_the_child_and_removes_its_folder(tmp_path, monkeypatch):
    started = []

    def interrupted(child, _):
        started.append(child._process.pid)
        raise KeyboardInterrupt

    monkeypatch.setattr(process._Child, "ends_within", interrupted)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(KeyboardInterrupt, match=r"^$"):
        process.run_child({"label": "it.py"}, [], b"", AMPLE)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ProcessLookupError, match="No such process"):
        os.kill(started[0], 0)


@pytest.mark.skipif(not LINUX, reason="elsewhere orphans are not adopted")
def test_orphans_are_killed_without_marks_or_a_sweep(tmp_path, monkeypatch):
    monkeypatch.setattr(process, "_kill_marked", lambda marks: pytest.fail("the process that watches has done it"))
    path = tmp_path / "it.py"
    path.write_text(calls(DAEMON + "return x"))
    assert subject(path).run([CALL]).broken == ""
    assert running(STAYS) == []


@pytest.mark.skipif(not LINUX, reason="elsewhere orphans are not adopted")
def test_those_that_watch_go_on_after_they_were_stopped(tmp_path, monkeypatch):
    monkeypatch.setattr(process, "_kill_marked", lambda marks: pytest.fail("the process that watches has done it"))
    path = tmp_path / "it.py"
    path.write_text(calls("os.kill(os.getppid(), signal.SIGSTOP)\ntime.sleep(90)", "import os, signal, time"))
    assert subject(path, limits=SHORT).run([CALL]).broken.startswith("did not end within 2 s")


@pytest.mark.skipif(not LINUX, reason="elsewhere processes are not found by their marks")
def test_where_no_orphans_come_the_group_and_what_carries_marks_are_killed(tmp_path, monkeypatch):
    folder = tmp_path / "check"
    shutil.copytree(process.CHILD.parent, folder)
    watch = folder / "watch.py"
    watch.write_text(watch.read_text().replace("_ADOPTS, 1)", "_ADOPTS, 2**63) and False"))
    monkeypatch.setattr(process, "CHILD", folder / "child.py")
    path = tmp_path / "it.py"
    daemon = f"subprocess.Popen({SLEEPER}, start_new_session=True)\n"
    path.write_text(calls(daemon + f"subprocess.Popen({SLEEPER})\nreturn x", "import subprocess, sys"))
    assert subject(path).run([CALL]).broken == ""
    assert running(STAYS) == []


def test_children_of_other_threads_can_be_ended(tmp_path):
    path = tmp_path / "it.py"
    path.write_text(f"import time\nopen({str(tmp_path / 'there')!r}, 'w').close()\ntime.sleep(90)\n")
    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(subject, path, limits=Limits(seconds=60))
        while not (tmp_path / "there").exists():
            time.sleep(0.01)
        process.end_running()
        assert found.result().broken == "was ended by SIGKILL (Killed)"
    assert not process._RUNNING


def test_an_interpreter_that_does_not_start(monkeypatch, tmp_path):
    broken = tmp_path / "child.py"
    broken.write_text("raise ImportError('no numpy here')")
    monkeypatch.setattr(process, "CHILD", broken)
    ended = process.run_child({"label": "it.py"}, [], b"", AMPLE)
    assert ended.broken == "the interpreter did not start: ImportError: no numpy here"


def test_a_child_sees_little_of_its_surroundings(tmp_path, monkeypatch):
    monkeypatch.setenv("SECRET", "1")
    path = tmp_path / "it.py"
    path.write_text(
        "import os, sys\nprint(sorted(os.environ), os.listdir(), os.environ['HOME'] == os.getcwd())\n"
        "print(__name__, 'headwise' in sys.modules, sys.flags.isolated, sys.stdin.read())\n" + SOFTMAX
    )
    found = subject(path)
    assert "SECRET" not in found.printed
    assert "'OPENBLAS_NUM_THREADS'" in found.printed
    assert "[] True\nsolution False 1 \n" in found.printed
    assert tempfile.gettempdir() not in found.printed


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no alarm")
def test_a_child_whose_parent_is_gone_ends_by_an_alarm(tmp_path):
    path = tmp_path / "it.py"
    path.write_text(calls("return signal.alarm(0)", "import signal"))
    assert 0 < subject(path).run([CALL]).results[0].out <= 25


def test_what_loading_prints_is_said_once(tmp_path):
    path = tmp_path / "it.py"
    path.write_text("print('loaded')\ndef softmax(x, axis=-1):\n    print('called')\n    return x\n")
    found = subject(path)
    assert (found.printed, found.run([CALL]).printed) == ("loaded\n", "called\n")


def test_numbers_drawn_without_a_seed_are_the_same_each_time(tmp_path):
    path = tmp_path / "it.py"
    path.write_text("import numpy as np\ndef softmax(x, axis=-1):\n    return np.random.rand(3)\n")
    found = subject(path)
    first, second = (found.run([CALL]).results[0].out for _ in range(2))
    np.testing.assert_array_equal(first, second)


def test_limits_that_do_not_hold_are_named(monkeypatch):
    assert process.limits_off() == (() if sys.platform.startswith("linux") else ("memory", "processes left behind"))
    with monkeypatch.context() as patched:
        patched.setattr(process, "find_spec", lambda name: None)
        assert "processes left behind" in process.limits_off()
    monkeypatch.setitem(sys.modules, "resource", None)
    assert "memory" in process.limits_off()


# ------------------------------------------------------------------------------------------- records
@pytest.mark.parametrize("dtype", [np.bool_, np.int8, np.uint64, np.float16, ">f4", np.float64, np.longdouble])
@pytest.mark.parametrize("shape", [(), (3,), (2, 0, 4), (2, 3)])
def test_records_come_back_as_they_were(dtype, shape):
    array = np.ones(shape, dtype)
    (record,) = unpacked(packed({"a": [1, None, float("inf")]}, {"x": array, "y": array.T}))
    assert record.fields == {"a": [1, None, float("inf")]}
    np.testing.assert_array_equal(record.arrays["x"], array)
    assert record.arrays["y"].dtype == array.dtype
    assert record.arrays["y"].shape == array.T.shape
    assert record.arrays["x"].flags.writeable


def text_record(text: bytes, payload: bytes = b"") -> bytes:
    return len(text).to_bytes(8, "little") + text + payload


@pytest.mark.parametrize(
    "data",
    [
        b"123",
        b"\xff" * 8,
        text_record(b"\xff\xfe"),
        text_record(b"[1, []]"),
        text_record(b"{}"),
        text_record(b"null"),
        text_record(b"[" * 10**6),
        text_record(b"1" * 10000),
        text_record(b'[{}, [["x", "<f8", [2]]]]', bytes(15)),
        text_record(b'[{}, [["x", "|O8", [1]]]]', bytes(8)),
        text_record(b'[{}, [["x", "<f12", [1]]]]', bytes(16)),
        text_record(b'[{}, [["x", "<f8", [-1]]]]', bytes(16)),
        text_record(b'[{}, [["x", "<f8", [true]]]]', bytes(16)),
        text_record(b'[{}, [["x", "<f8", 1]]]', bytes(16)),
        text_record(b'[{}, [["x", ["<f8"], [1]]]]', bytes(16)),
        text_record(b'[{}, [["x", "<f8", [0, 9223372036854775807, 9223372036854775807]]]]'),
        text_record(b'[{}, [["x", "|b1", [2]]]]', b"\x01\x02"),
        text_record(b"[{}, [[1]]]"),
    ],
)  # fmt: skip
def test_bytes_that_are_no_records_are_refused(data):
    with pytest.raises(ValueError, match=r"record|array is too big|Maximum allowed|bool|Expecting|codec|int|unpack"):
        list(unpacked(data))


def test_folders_nested_beyond_what_can_be_walked_are_removed(tmp_path):
    top = tmp_path / "top"
    top.mkdir()
    here = os.getcwd()
    try:
        os.chdir(top)
        for _ in range(1500):
            os.mkdir("d" * 10)
            os.chdir("d" * 10)
        Path("file").touch()
    finally:
        os.chdir(here)
    scratch.remove(str(top))
    assert not top.exists()


def test_a_link_is_removed_and_not_what_it_names(tmp_path):
    (tmp_path / "kept" / "inside").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "kept")
    scratch.remove(str(tmp_path / "link"))
    assert [str(path.relative_to(tmp_path)) for path in sorted(tmp_path.rglob("*"))] == ["kept", "kept/inside"]


def test_a_folder_whose_parent_was_moved_is_found_and_removed(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "here"))
    (tmp_path / "here").mkdir()
    with scratch.Scratch() as made:
        (tmp_path / "here").rename(tmp_path / "there")
        assert made.now() == os.path.realpath(tmp_path / "there" / os.path.basename(made.path))
        Path(made.now(), "file").touch()
    assert list((tmp_path / "there").iterdir()) == []


def test_the_folder_that_a_solution_stands_in_is_removed_where_it_was_moved(tmp_path):
    moved = tmp_path / "moved"
    solution = tmp_path / "it.py"
    solution.write_text(f"import os\nos.rename(os.getcwd(), {str(moved)!r})\n" + SOFTMAX)
    report = grade(str(solution), "softmax")
    assert not report.broken
    assert sorted(path.name for path in tmp_path.iterdir()) == ["it.py"]
