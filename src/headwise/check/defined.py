"""What a solution's text defines on top level, and what of it may be meant by an exercise; runs nothing."""

import ast
from collections.abc import Mapping
from contextlib import suppress

from headwise.check.bind import plain
from headwise.check.loading import code_cells, python_of
from headwise.check.names import FUNCTION_NAMES, LIKE
from headwise.files import shown

_MOST = 6  # names that are offered


def defined(text: str, notebook: bool = False) -> tuple[list[str], list[str]]:
    """Return the names of the classes and of the functions on top level of a text; a cell that is no Python has none.

    >>> defined("class Net: pass\\ndef attn(q, k, v): pass")
    (['Net'], ['attn'])
    """
    classes: dict[str, None] = {}
    functions: dict[str, None] = {}
    for part in map(python_of, code_cells(text)) if notebook else [text]:
        with suppress(SyntaxError, ValueError, RecursionError, MemoryError):
            for node in ast.parse(part).body:
                if isinstance(node, ast.ClassDef):
                    classes[shown(node.name, 60)] = None
                elif isinstance(node, ast.FunctionDef):
                    functions[shown(node.name, 60)] = None
    return list(classes), list(functions)


def alike(text: str, found: Mapping[str, str], notebook: bool = False) -> dict[str, tuple[str, ...]]:
    """Return function -> public names of a text that may be meant by it, of those that it was not found under.

    Parameters
    ----------
    text : str
        The solution.
    found : mapping of str to str
        Function -> the name under which it was found.
    notebook : bool
        Whether the text is a notebook's.

    Examples
    --------
    >>> alike("def attn_of(q, k, v): pass", {"softmax": "softmax"})
    {'attention': ('attn_of',)}
    """
    classes, functions = defined(text, notebook)
    known = {plain(name) for names in FUNCTION_NAMES.values() for name in names}
    near = {}
    for function in FUNCTION_NAMES.keys() - found.keys():
        names = classes if function == "layer" else functions
        left = [one for one in names if not one.startswith("_") and one not in found.values()]
        near[function] = tuple(one for one in left if plain(one) not in known and _like(function, plain(one)))[:_MOST]
    return {function: near[function] for function in FUNCTION_NAMES if near.get(function)}


def _like(function: str, name: str) -> bool:
    wanted, unwanted = LIKE[function]
    return any(part in name for part in wanted) and not any(part in name for part in unwanted)
