"""Solutions that mean harm, or do some: each ends as a report, within limits, and leaves nothing behind."""

import os
import re
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from headwise.check import process
from headwise.check.calls import Call, Run
from headwise.check.process import Limits
from headwise.check.targets import Subject, subject
from headwise.check.wire import packed, unpacked

X = np.array([[0.0, 1.0, 2.0]])
CALL = Call("softmax", {"x": X, "axis": -1})
AMPLE, SHORT, LONG = Limits(), Limits(seconds=1.0), Limits(seconds=60.0)
STAYS = f"headwise-test-stays-{os.getpid()}"  # an argument of processes that solutions leave behind
SOFTMAX = "def softmax(x, axis=-1):\n    return x\n"
ONES = "import numpy as np\ndef softmax(x, axis=-1):\n    return x * 0 + 1\n"
SLEEPER = f"[sys.executable, '-c', 'import time; time.sleep(90)', '{STAYS}']"


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
    "endless loop": Case(calls("while 1:\n    pass"), r"did not end within 1 s \(line [34] of it\.py\)", limits=SHORT),
    "endless loop at import": Case(
        "x = 1\nwhile True:\n    x = 2\n", r"did not end within 1 s \(line [23] of it\.py\)", limits=SHORT
    ),
    "endless loop that catches everything": Case(
        calls("while True:\n    try:\n        time.sleep(9)\n    except BaseException:\n        pass", "import time"),
        r"did not end within 1 s \(line 5 of it\.py\)",
        limits=SHORT,
    ),
    "signals ignored": Case(
        calls(
            "for number in range(1, 32):\n    try:\n        signal.signal(number, signal.SIG_IGN)\n"
            "    except OSError:\n        pass\ntime.sleep(90)",
            "import signal, time",
        ),
        r"did not end within 1 s",
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
        calls("while True:\n    print('y' * 1000)"), r"did not end within 1 s", printed="^y{1000}\n", limits=SHORT
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
    """All cases, several at a time, with their temporary folders in one of ours."""
    scratch = tmp_path_factory.mktemp("scratch")
    before, tempfile.tempdir = tempfile.tempdir, str(scratch)
    try:
        with ThreadPoolExecutor(6) as pool:
            started = {name: pool.submit(graded, tmp_path_factory.mktemp("case"), case) for name, case in CASES.items()}
            results = {name: future.result() for name, future in started.items()}
    finally:
        tempfile.tempdir = before
    return results, sorted(scratch.iterdir())


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
    assert done[1] == [], "temporary folders"
    commands = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if os.access(path, os.R_OK)]
    assert not [command for command in commands if STAYS.encode() in command], "processes"


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

    def interrupted(child, *_):
        started.append(child.pid)
        raise KeyboardInterrupt

    monkeypatch.setattr(process, "_ends_within", interrupted)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(KeyboardInterrupt, match=r"^$"):
        process.run_child({"label": "it.py"}, [], b"", AMPLE)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ProcessLookupError, match="No such process"):
        os.kill(started[0], 0)


def test_without_proc_the_group_is_killed_all_the_same(tmp_path, monkeypatch):
    monkeypatch.setattr(process, "_kill_marked", lambda marks: None)
    path = tmp_path / "it.py"
    path.write_text(calls(f"print(subprocess.Popen({SLEEPER}).pid)\nreturn x", "import subprocess, sys"))
    command = Path("/proc", subject(path).run([CALL]).printed.strip(), "cmdline")
    for _ in range(500):  # it is killed, and takes a moment to go
        if not command.exists() or not command.read_bytes():
            return
        time.sleep(0.01)
    pytest.fail("it is still there")


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
    process._remove(str(top))
    assert not top.exists()
