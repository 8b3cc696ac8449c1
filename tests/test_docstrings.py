"""Every public function and method says what it takes, gives and refuses, with shapes and an example."""

import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import headwise as hw
from headwise import masks, testing, transforms, weights

SECTIONS = re.compile(r"^(\w[\w ]*)\n-+$", re.MULTILINE)
OF_ANY_SHAPE = {"softmax", "softmax_vjp", "logsumexp"}  # their x has any axes, of which `axis` is one
FOR_OTHER_MODULES = {"as_mask", "misfits", "words"}  # of core: no section, since no user calls them


def functions_of(module: Any) -> Iterator[tuple[str, Callable[..., Any]]]:
    """The public functions that a module defines or, where it is the package, hands on; and methods of its classes."""
    names = getattr(module, "__all__", None) or [name for name in vars(module) if not name.startswith("_")]
    for name in names:
        value = getattr(module, name)
        if inspect.isfunction(value) and (module in (hw, weights) or value.__module__ == module.__name__):
            yield name, value
        if inspect.isclass(value) and module is hw:
            methods = inspect.getmembers(value, inspect.isfunction)
            yield from ((f"{name}.{key}", method) for key, method in methods if is_public_method(key, value))


def is_public_method(name: str, cls: type) -> bool:
    ours = any(name in vars(base) for base in cls.__mro__ if base.__module__.startswith("headwise"))
    return ours and (name == "__call__" or not name.startswith("_")) and not hasattr(tuple, name)


PUBLIC = {
    name: function
    for module in (hw, masks, testing, transforms, weights)
    for name, function in functions_of(module)
    if name.rpartition(".")[2] not in FOR_OTHER_MODULES
}
EACH = pytest.mark.parametrize("function", PUBLIC.values(), ids=PUBLIC)


def sections(function: Callable[..., Any]) -> dict[str, str]:
    """The text under each heading of its docstring."""
    pieces = SECTIONS.split(inspect.getdoc(function) or "")
    return dict(zip(pieces[1::2], pieces[2::2], strict=True))


def parameters(function: Callable[..., Any]) -> list[str]:
    return [name for name in inspect.signature(function).parameters if name != "self"]


def described(text: str) -> dict[str, str]:
    """What a section says of each name: its type field; several names may share one."""
    lines = re.findall(r"^([a-z]\w*(?:, \w+)*)(?: : (.*))?$", text, re.MULTILINE)
    return {name: kind for names, kind in lines for name in names.split(", ")}


def test_the_functions_are_found() -> None:
    assert {"scaled_dot_product_attention", "softmax", "causal", "window", "Mask.tile", "Mask.dense"} <= set(PUBLIC)


@EACH
def test_one_sentence_first(function: Callable[..., Any]) -> None:
    first = (inspect.getdoc(function) or "").split("\n")[0]
    assert re.search(r"[.:]$|``\.?$", first), f"no sentence: {first!r}"
    assert len(first) > 20


@EACH
def test_the_sections_are_there(function: Callable[..., Any]) -> None:
    expected = {"Returns", "Raises", "Examples"} | ({"Parameters"} if parameters(function) else set())
    assert expected - set(sections(function)) == set()


@EACH
def test_every_parameter_is_described_and_no_other(function: Callable[..., Any]) -> None:
    assert list(described(sections(function).get("Parameters", ""))) == parameters(function)


@EACH
def test_arrays_come_with_their_shapes(function: Callable[..., Any]) -> None:
    if function.__name__ in OF_ANY_SHAPE:
        return
    kinds = described(sections(function).get("Parameters", ""))
    bare = [
        name for name, kind in kinds.items() if "array" in kind and not re.search(r"shape \(|broadcasting to \(", kind)
    ]
    assert bare == []


@EACH
def test_an_example_is_executed(function: Callable[..., Any]) -> None:
    assert ">>> " in sections(function).get("Examples", "")


@EACH
def test_raises_names_errors(function: Callable[..., Any]) -> None:
    names = re.findall(r"^(\w+(?:, \w+)*)$", sections(function).get("Raises", ""), re.MULTILINE)
    assert names, "no error named"
    for name in ", ".join(names).split(", "):
        assert issubclass(getattr(__import__("builtins"), name), Exception)


def test_this_module_would_notice() -> None:
    def bad(x: Any) -> Any:
        """Short.

        Parameters
        ----------
        x : array_like
        """
        return np.asarray(x)

    for check in (test_the_sections_are_there, test_arrays_come_with_their_shapes, test_an_example_is_executed):
        with pytest.raises(AssertionError, match="assert"):
            check(bad)
