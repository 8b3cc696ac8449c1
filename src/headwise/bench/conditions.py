"""The conditions of a measurement: processor, vector instructions, BLAS, versions."""

import importlib.metadata
import os
import platform
import re
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
from threadpoolctl import threadpool_info  # type: ignore[import-untyped]

import headwise


class Conditions(NamedTuple):
    """What a measurement was made on and with."""

    cpu: str
    cores: int  # that this process may use
    threads: int  # of every contestant
    repeat: int
    simd: list[str]  # vector instructions that NumPy uses
    blas: list[str]  # name, version, threads, kernels
    versions: dict[str, str]

    def facts(self) -> list[tuple[str, str]]:
        """Return names and values to be shown."""
        return [
            ("CPU", f"{self.cpu}, {self.cores} cores to use"),
            ("CPU features", " ".join(self.simd) or "not told by NumPy"),
            ("BLAS of NumPy", "; ".join(self.blas) or "not found"),
            ("versions", ", ".join(f"{name} {version}" for name, version in self.versions.items())),
            ("threads", f"{self.threads} for every contestant"),
            ("rounds", str(self.repeat)),
        ]


def conditions(threads: int, repeat: int, packages: Sequence[str]) -> Conditions:
    """Return the conditions here and now.

    Parameters
    ----------
    threads, repeat : int
        What was asked for.
    packages : sequence of str
        Distributions whose versions matter besides our own and NumPy's.

    Examples
    --------
    >>> here = conditions(2, 9, [])
    >>> here.threads, list(here.versions)
    (2, ['headwise', 'Python', 'numpy'])
    """
    versions = {"headwise": headwise.__version__, "Python": platform.python_version()}
    versions |= {name: _version(name) for name in ("numpy", *packages)}
    return Conditions(_cpu(), usable_cores(), threads, repeat, simd(), _blas(), versions)


def usable_cores() -> int:
    """Return how many cores this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on this system
        return os.cpu_count() or 1


def simd() -> list[str]:
    """Return the vector instructions that NumPy uses here; nothing where it does not say."""
    try:
        config: Any = np.show_config(mode="dicts")
        sets = config["SIMD Extensions"]
        return [*sets.get("baseline", []), *sets.get("found", [])]
    except (TypeError, KeyError, AttributeError):
        return []


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _blas() -> list[str]:
    found = (library for library in threadpool_info() if library.get("user_api") == "blas")
    return [
        f"{one.get('internal_api')} {one.get('version')}, {one.get('num_threads')} threads, "
        f"{one.get('architecture') or 'unnamed'} kernels"
        for one in found
    ]


def _cpu() -> str:
    """The name of the processor, from wherever this system keeps it."""
    with suppress(OSError), open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
        named = re.search(r"^model name\s*:\s*(.+)$", file.read(), re.MULTILINE)
        if named:
            return named[1].strip()
    if platform.system() == "Darwin":
        with suppress(OSError, subprocess.SubprocessError):
            asked = ["/usr/sbin/sysctl", "-n", "machdep.cpu.brand_string"]
            return subprocess.run(asked, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
    return platform.processor() or platform.machine() or "unknown"
