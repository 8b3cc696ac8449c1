"""A temporary folder that is found again, and removed, wherever a solution has moved it. Knows nothing of solutions."""

import os
import shutil
import sys
import tempfile
from contextlib import suppress
from types import TracebackType

_GET_PATH = 50  # F_GETPATH of macOS


class Scratch:
    """A new folder, removed at the end of a ``with``.

    Attributes
    ----------
    path : str
        Where it was made, links resolved.
    """

    def __init__(self) -> None:
        self.path = os.path.realpath(tempfile.mkdtemp(prefix="headwise-check-"))
        self._held = [(self.path, _handle(self.path))]

    def __enter__(self) -> "Scratch":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for path, handle in reversed(self._held):
            now = _now(path, handle)
            if handle is not None:
                os.close(handle)
            for place in {now, path}:  # something else may lie where it was
                remove(place)

    def folder(self, name: str) -> str:
        """Make a folder in it, which is removed as well if it is moved out; return its path."""
        path = os.path.join(self.path, name)
        os.mkdir(path)
        self._held.append((path, _handle(path)))
        return path

    def now(self) -> str:
        """Return where it is now; where that cannot be told, where it was."""
        return _now(*self._held[0])


def _handle(path: str) -> int | None:
    return os.open(path, os.O_RDONLY) if os.open in os.supports_dir_fd else None


def _now(path: str, handle: int | None) -> str:
    if handle is None:
        return path
    found = _path_of(handle) or path
    with suppress(OSError):
        if os.path.samestat(os.lstat(found), os.fstat(handle)):
            return found
    return path


def _path_of(handle: int) -> str:
    with suppress(OSError, ImportError):
        if sys.platform == "darwin":
            import fcntl

            return os.fsdecode(fcntl.fcntl(handle, _GET_PATH, bytes(1024)).rstrip(b"\0"))
        return os.readlink(f"/proc/self/fd/{handle}")
    return ""


def remove(path: str) -> None:
    """Remove a folder, also one without rights, or nested beyond what can be walked; a link, and not what it names."""
    if os.path.islink(path) or os.path.isfile(path):
        with suppress(OSError):
            os.remove(path)
        return
    with suppress(RecursionError):
        shutil.rmtree(path, ignore_errors=True)
    if os.path.isdir(path):
        _flatten(path)
        shutil.rmtree(path, ignore_errors=True)


def _flatten(folder: str) -> None:
    """Bring all folders inside to its own level: a path of thousands of them is too long for any call."""
    waiting = [folder]
    for inside in waiting:  # which grows meanwhile
        with suppress(OSError):
            os.chmod(inside, 0o700)
            for entry in list(os.scandir(inside)):
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(os.path.join(folder, f"-{len(waiting)}"))
                    os.rename(entry.path, waiting[-1])
