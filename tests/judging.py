"""Judges of planted faults: pytest against a copy of the package, each in a process that has pytest imported already.

What all of them need is imported once, by a server that each is forked from: that is half of a judge's time.
"""

import multiprocessing
import os
import shutil
import sys
from pathlib import Path

PACKAGE_CACHE = "__pycache__"
SERVER = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload(["numpy", "pytest", "threadpoolctl"])


def copied(package, folder):
    """A copy of a package without its data; what is compiled of it is as old as its sources, and still counts."""
    return Path(shutil.copytree(package, folder / package.name, ignore=shutil.ignore_patterns("data")))


def plant(copy, name, right, wrong):
    """Replace a text that occurs once in a file of a copy."""
    path = copy / name
    source = path.read_text()
    assert source.count(right) == 1, f"{right!r} occurs {source.count(right)} times in {name}"
    path.write_text(source.replace(right, wrong))
    for compiled in (path.parent / PACKAGE_CACHE).glob(f"{path.stem}.*"):
        compiled.unlink()


def judge(package, arguments, output, patience):
    """Run pytest against a package; return its exit code, -1 if it never ended, and what it printed."""
    process = SERVER.Process(target=_judge, args=(str(package.parent), arguments, str(output)))
    process.start()
    process.join(patience)
    ended = process.exitcode is not None
    if not ended:
        process.kill()
        process.join()
    return process.exitcode if ended else -1, output.read_text(errors="replace")


def _judge(folder, arguments, output):
    with open(output, "wb") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    os.environ |= {"PYTHONPATH": folder, "PYTHONDONTWRITEBYTECODE": "1", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    sys.dont_write_bytecode = True
    sys.path.insert(0, folder)
    assert not any(name.partition(".")[0] == "headwise" for name in sys.modules), "the package is not imported yet"

    import pytest

    sys.exit(pytest.main(arguments))
