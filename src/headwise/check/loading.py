"""A solution's text into a module: a .py file whole, a notebook cell by cell.

Knows neither checks nor limits. The child loads this file without the package.
"""

import json
import linecache
import re
import sys
import types
from typing import Any, NamedTuple

from headwise.check.calling import described

MODULE = "solution"
"""The name under which a solution is loaded: not ``__main__``, so that what it guards by that stays off."""

_MAGIC = re.compile(
    r"\s*%{1,2}[A-Za-z].*|\s*!{1,2}\s?\S.*|\s*\?{0,2}[\w.]+\?{1,2}\s*|\s*\?{1,2}[\w.]+\s*|\s*[\w, ]+=\s*[%!].*"
)
_OF_PYTHON = ("time", "timeit", "capture", "prun", "python", "python3", "debug", "memit", "pypy3", "py")


class Loaded(NamedTuple):
    """A module, what is worth saying about it, and why it could not be loaded, or an empty text."""

    module: types.ModuleType
    notes: list[str]
    broken: str
    labels: dict[str, str]


def code_cells(text: str) -> list[str]:
    """Return the code cells of a notebook.

    Raises
    ------
    ValueError
        It is no notebook.
    """
    notebook = json.loads(text)
    if not isinstance(notebook, dict):
        raise ValueError("a notebook is an object with cells")
    cells = notebook.get("cells")
    if cells is None:  # version 3
        sheets = notebook.get("worksheets") or [{}]
        cells = sheets[0].get("cells") if isinstance(sheets, list) and isinstance(sheets[0], dict) else None
    if not isinstance(cells, list):
        raise ValueError("a notebook is an object with cells")
    code = [cell for cell in cells if isinstance(cell, dict) and cell.get("cell_type") == "code"]
    return [_text_of(cell.get("source", cell.get("input", ""))) for cell in code]


def _text_of(source: Any) -> str:
    lines = source if isinstance(source, list) else [source]
    return "".join(line for line in lines if isinstance(line, str))


def python_of(cell: str) -> str:
    r"""Return a cell without IPython's magics, the lines where they were; nothing of a cell in another language.

    >>> python_of("%matplotlib inline\nx = 1\n!pip install numpy")
    'pass\nx = 1\npass'
    """
    first = next((line.strip() for line in cell.splitlines() if line.strip()), "")
    if first.startswith("%%"):
        if re.split(r"\W", first[2:])[0] not in _OF_PYTHON:
            return ""
        cell = cell.replace(first, "pass", 1)
    try:
        compile(cell, "cell", "exec", dont_inherit=True)  # a line may begin with % and go on with the one before
    except (SyntaxError, ValueError):
        return "\n".join(_pass_for(line) if _MAGIC.fullmatch(line) else line for line in cell.split("\n"))
    return cell


def _pass_for(line: str) -> str:
    return line[: len(line) - len(line.lstrip())] + "pass"


def _run(source: str | bytes, path: str, module: types.ModuleType) -> None:
    exec(compile(source, path, "exec", dont_inherit=True), module.__dict__)


def load(data: bytes, path: str, label: str, notebook: bool) -> Loaded:
    """Run a solution's text as a module.

    Parameters
    ----------
    data : bytes
        The text.
    path : str
        The file that the module is to say it comes from.
    label : str
        What it is called in texts.
    notebook : bool
        Whether it is one: a cell that raises is noted, and the next goes on.
    """
    module = types.ModuleType(MODULE)
    module.__file__ = path
    sys.modules[MODULE] = module
    loaded = Loaded(module, [], "", {path: label})
    if notebook:
        module.__dict__["display"] = print
        _load_cells(data, loaded)
        return loaded
    try:
        _run(data, path, module)
    except BaseException as error:
        return loaded._replace(broken=described(error, loaded.labels))
    return loaded


def _load_cells(data: bytes, loaded: Loaded) -> None:
    for number, cell in enumerate(code_cells(data.decode("utf-8-sig")), 1):
        path, name, source = f"<cell {number}>", f"cell {number}", python_of(cell)
        loaded.labels[path] = name
        linecache.cache[path] = (len(source), None, source.splitlines(True), path)  # for inspect.getsource
        try:
            _run(source, path, loaded.module)
        except BaseException as error:
            loaded.notes.append(f"{name} raised {described(error, {**loaded.labels, path: ''})}")
