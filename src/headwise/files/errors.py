"""What is wrong with a file, in one line, and text of others that no terminal acts upon."""

import errno
import os
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import TypeAlias

PathLike: TypeAlias = str | os.PathLike[str]

AGAIN = "copy or save it again"
_TOO_MANY = {errno.EMFILE, errno.ENFILE, errno.ENOMEM}  # files, or maps of files


class FileError(ValueError):
    """A file that cannot be read or written as asked; one line of file, member, expected, got, remedy."""

    __module__ = "headwise.files"  # where users import it from


def shown(text: object, longest: int = 200) -> str:
    r"""Return text on one line that no terminal acts upon: whatever does not print is escaped, the end cut.

    >>> shown("in\n\x1b[2J.npz")
    'in\\n\\x1b[2J.npz'
    """
    escaped = "".join(c if c.isprintable() else repr(c)[1:-1] for c in str(text)[: longest + 1])
    return escaped if len(escaped) <= longest else escaped[: longest - 3] + "..."


def listed(names: Collection[str], most: int = 12) -> str:
    """Return names as one readable line.

    >>> listed(["k", "v"]), listed([])
    ('k, v', 'nothing')
    """
    words = [shown(name, 60) for name in list(names)[:most]]
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(words) + more if words else "nothing"


def file_error(where: str, expected: str, got: object, remedy: str) -> FileError:
    return FileError(f"{shown(where, 1200)}: expected {shown(expected, 400)}, got {shown(got)}; {remedy}")


def system_error(error: OSError, where: str, expected: str, remedy: str, got: str = "") -> FileError:
    """Return what the system has refused, in its own words; that too much is open is never the fault of one file."""
    if error.errno in _TOO_MANY:
        expected = "no more open files and maps than the system allows"
        remedy = "keep fewer arrays at once, since each keeps its file open, or allow more (ulimit -n)"
    return file_error(where, expected, f"{got}'{error.strerror or error}'", remedy)


@contextmanager
def reading(where: str) -> Iterator[None]:
    """Turn whatever a damaged file makes the libraries below raise into a FileError."""
    try:
        yield
    except (FileError, MemoryError):
        raise
    except OSError as error:
        raise system_error(error, where, "a file that can be read", "check the path and its permissions") from error
    except Exception as error:  # zlib.error, BadZipFile, struct.error, EOFError, NotImplementedError and others
        got = f"'{shown(error, 100) or type(error).__name__}'"
        raise file_error(where, "an undamaged file", got, AGAIN) from error
