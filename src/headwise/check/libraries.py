"""Which libraries have been loaded, besides Python's own, NumPy and what a solution brings itself.

Knows neither texts nor checks. The child loads this file without the package.
"""

import os
import sys
from collections.abc import Iterable
from typing import Any

_STANDARD, _INSTALLED = os.path.realpath(os.path.dirname(os.__file__)), "site-packages"
_WITH_NUMPY = (
    "numpy", "threadpoolctl", "psutil", "charset_normalizer", "chardet", "setuptools", "_distutils_hack", "mkl",
)  # fmt: skip
"""NumPy, and what parts of it load where it is there."""


class Libraries:
    """Libraries that are loaded from now on.

    Python's own record of loaded modules can be written to, so code that is run is watched as well: a module that is
    taken out of the record again counts all the same. What another process loads is not seen.

    Parameters
    ----------
    own : iterable of str
        Folders whose files belong to the solution.
    known : iterable of str
        Libraries that count by their name alone, wherever their files lie.
    watching : bool
        Whether to watch code that is run, until the process ends.
    """

    def __init__(self, own: Iterable[str], known: Iterable[str], watching: bool) -> None:
        self._own = tuple(os.path.realpath(folder) for folder in own)
        self._known = frozenset(known)
        self._before = {_root(name) for name in sys.modules}
        self._path: set[str] = set()  # all folders that modules were looked for in
        self._files: set[str] = set()
        self._library: dict[str, str] = {}  # by file
        if watching:
            sys.addaudithook(self._watch)

    def _watch(self, event: str, args: tuple[Any, ...]) -> None:
        if event == "exec":
            self._files.add(str(getattr(args[0], "co_filename", "")))
            self._note_path()
        elif event == "import" and args[1]:  # a module in machine code
            self._files.add(str(args[1]))
            self._note_path()

    def _note_path(self) -> None:
        self._path.update(folder for folder in sys.path if isinstance(folder, str) and folder)

    def loaded(self) -> list[str]:
        """Return their names, sorted."""
        self._note_path()
        files, names = set(self._files), set[str]()
        for name, module in list(sys.modules.items()):
            roots = {_root(name), _root(_spec_name(module))} - self._before - {""}
            if roots:
                names |= roots & self._known
                files.add(_file_of(module))
        for path in files - set(self._library):
            self._library[path] = self._at(path)
        names |= {self._library[path] for path in files}
        return sorted(names - self._before - {""})

    def _at(self, path: str) -> str:
        """The library that a file belongs to, by where it lies on Python's path, or nothing."""
        path = os.path.realpath(path) if os.path.isabs(path) else ""
        if not path or any(_within(path, folder, but=_INSTALLED) for folder in self._own):
            return ""
        around = max(
            (folder for folder in map(os.path.realpath, self._path) if _within(path, folder)), key=len, default=""
        )
        if not around:
            return ""
        name = os.path.relpath(path, around).split(os.sep)[0].partition(".")[0]
        foreign = name not in sys.stdlib_module_names and name not in _WITH_NUMPY
        return name if foreign and not _within(path, _STANDARD, but=_INSTALLED) else ""


def _within(path: str, folder: str, but: str = "") -> bool:
    """Whether a path lies in a folder, and not in one that is installed into it."""
    inside = path.startswith(folder.rstrip(os.sep) + os.sep)
    return inside and not (but and but in path[len(folder) :].split(os.sep))


def _root(name: Any) -> str:
    return str(name).partition(".")[0]


def _spec_name(module: Any) -> str:
    try:
        return str(module.__spec__.name)
    except Exception:  # anything may lie among the modules
        return ""


def _file_of(module: Any) -> str:
    try:
        return str(module.__file__ or next(iter(module.__path__)))
    except Exception:
        return ""
