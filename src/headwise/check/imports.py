"""Which libraries a text imports or a function uses, above all those that do the work themselves. Knows no checks."""

import ast
import warnings
from collections.abc import Iterable, Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any

from headwise.check.loading import code_cells, python_of

FRAMEWORKS = (
    "headwise", "torch", "tensorflow", "tf_keras", "jax", "jaxlib", "keras", "keras_core", "mlx", "flax", "haiku",
    "equinox", "cupy", "transformers", "diffusers", "onnx", "onnxruntime", "tinygrad", "paddle", "mxnet", "theano",
    "pytensor", "chainer", "openvino", "mindspore", "oneflow", "xformers", "flash_attn", "megengine", "candle", "ivy",
)  # fmt: skip
"""Libraries that hold attention or its parts ready: a solution that imports one may not be the learner's own."""


def frameworks_in(text: str, notebook: bool = False) -> set[str]:
    r"""Return those of FRAMEWORKS that a text imports anywhere, also by a literal name.

    >>> sorted(frameworks_in("def f():\n    import torch.nn as nn\n    return __import__('jax')"))
    ['jax', 'torch']
    """
    return libraries_in(text, notebook) & set(FRAMEWORKS)


def libraries_in(text: str, notebook: bool = False) -> set[str]:
    r"""Return all that a text imports anywhere, Python's own modules included.

    >>> sorted(libraries_in("import os.path, numpy as np\nfrom scipy.special import softmax"))
    ['numpy', 'os', 'scipy']
    """
    found: set[str] = set()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about the text's own escapes
        for part in map(python_of, code_cells(text)) if notebook else [text]:
            try:
                found |= set(_roots(ast.walk(ast.parse(part))))
            except (SyntaxError, ValueError, RecursionError, MemoryError):
                continue
    return found


def frameworks_used(value: Any) -> set[str]:
    """Return those of FRAMEWORKS that a function or class uses by names of its module, or in which it is defined."""
    held = type.__dict__["__dict__"].__get__(value).values() if issubclass(type(value), type) else ()
    roots = {_root_of(value)}
    for function in [part for part in (value, *held) if type(part) is FunctionType]:
        around = function.__globals__
        roots |= {_root_of(around[name]) for name in _names_used(function.__code__) if name in around}
    return roots & set(FRAMEWORKS)


def _names_used(code: Any) -> set[str]:
    if not isinstance(code, CodeType):
        return set()
    return set(code.co_names).union(*map(_names_used, code.co_consts))


def _root_of(value: Any) -> str:
    """The library that a module is, or in which something is defined."""
    try:
        name = value.__name__ if issubclass(type(value), ModuleType) else value.__module__
    except Exception:  # its own code may raise anything
        return ""
    return str(name).partition(".")[0]


def _roots(nodes: Iterable[ast.AST]) -> Iterator[str]:
    for node in nodes:
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names = [node.module or ""]
        elif isinstance(node, ast.Call) and _imports(node.func) and node.args:
            first = node.args[0]
            names = [first.value] if isinstance(first, ast.Constant) and isinstance(first.value, str) else []
        yield from (name.partition(".")[0] for name in names)


def _imports(function: ast.expr) -> bool:
    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    return name in ("__import__", "import_module")
