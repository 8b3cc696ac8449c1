"""What a solution gave, as plain arrays: what it returned, and the weights of its layer.

Knows neither calls nor what is right. The child loads this file without the package.
"""

from types import BuiltinFunctionType, FunctionType, MethodType, MethodWrapperType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from headwise.check.bind import UnfitError, plain

_ndarray, _generic, _array = np.ndarray, np.generic, np.array
_eye, _allclose = np.eye, np.allclose
_OUT = ("out", "output", "outputs", "context", "result", "attentionoutput", "attnoutput", "contextvector")
_WEIGHTS = ("weights", "attention", "attn", "attentionweights", "attnweights", "probs", "probabilities", "scores")
_NUMBERS = (bool, int, float, _generic)
_DICTS = ("params", "parameters", "weights", "w")  # those of a layer that hold its weights
_FUNCTIONS = (FunctionType, MethodType, BuiltinFunctionType, MethodWrapperType)
_MOST_NAMED = 8  # attributes, in a text


class Asked(NamedTuple):
    """What a call asks for: the shape of the output, where it is known, and whether there are weights to return."""

    out: tuple[int, ...] | None = None
    weighted: bool = False


_NOTHING = Asked()


# ------------------------------------------------------------------------------------------- arrays
def _called(value: Any) -> str:
    """What a value is, in words."""
    if value is None:
        return "None: is there a return?"
    kind = type(value).__name__
    return f"{'an' if kind[:1].lower() in 'aeiou' else 'a'} {kind}"


def array_of(value: Any, most: int, what: str = "returned") -> NDArray[Any]:
    """Return an array, a number or nested lists of numbers as a new plain array.

    Raises
    ------
    UnfitError
        It is something else, or takes more than `most` bytes.
    """
    kinds = {kind.__name__ for kind in type(value).__mro__ if str(kind.__module__).startswith("numpy")}
    if kinds & {"MaskedArray", "matrix"}:
        name = "masked array" if "MaskedArray" in kinds else "np.matrix"
        raise UnfitError(f"{what} a {name}, expected a plain ndarray: np.asarray or .filled() makes one")
    if not isinstance(value, (_ndarray, list, tuple, *_NUMBERS)):
        raise UnfitError(
            f"{what} {_called(value)}, expected an ndarray" if value is not None else f"{what} {_called(value)}"
        )
    if isinstance(value, _ndarray) and value.nbytes > most:
        raise UnfitError(f"{what} {value.nbytes} bytes in shape {value.shape}: more than the {most} that may be")
    try:
        array = _array(value, copy=True, order="C")
    except ValueError:
        raise UnfitError(
            f"{what} a {type(value).__name__} whose parts have different shapes, expected an ndarray"
        ) from None
    if array.dtype.kind not in "biuf":
        raise UnfitError(f"{what} an array of dtype {array.dtype}, expected real numbers")
    return array if array.nbytes <= most else array_of(array, most, what)


def _shape_of(value: Any, most: int) -> tuple[int, ...] | None:
    """The shape of what could be an array, or None."""
    try:
        return array_of(value, most).shape
    except UnfitError:
        return None


def _is_pair(value: tuple[Any, ...] | list[Any], most: int, asked: Asked) -> bool:
    """Whether these are out and something else, and not the rows of one array.

    The values of a tuple are, unless all are numbers. The first two of a list are if both are arrays, or lists of
    lists, and differ in shape. A list of exactly two of equal shape, with two axes or more, is a pair where there are
    weights to return, unless both together have the shape of the output.
    """
    if len(value) < 2 or all(isinstance(item, _NUMBERS) for item in value):
        return False
    if isinstance(value, tuple):
        return True
    first, second = (_shape_of(item, most) for item in value[:2])
    if not first or not second:
        return False
    if first == second:
        return len(value) == 2 and len(first) > 1 and asked.weighted and (2, *first) != asked.out
    return all(
        len(shape) > 1 or isinstance(item, _ndarray) for shape, item in zip((first, second), value[:2], strict=True)
    )


def _member(value: Any, names: tuple[str, ...]) -> Any:
    """What an object or a dict holds under one of these names, or None."""
    if isinstance(value, dict):
        keys = {plain(key): key for key in value if isinstance(key, str)}
        return next((value[keys[name]] for name in names if name in keys), None)
    keys = {plain(key): key for key in dir(value) if not key.startswith("__")}
    return next((getattr(value, keys[name]) for name in names if name in keys), None)


def _is_object(value: Any) -> bool:
    """Whether it may hold results by name: a dict, a named tuple, an object of a class of the solution's own."""
    if isinstance(value, tuple):
        return hasattr(value, "_fields")
    return isinstance(value, dict) or not isinstance(value, (_ndarray, list, str, bytes, type, *_NUMBERS, type(None)))


def outcome(value: Any, most: int, asked: Asked = _NOTHING) -> tuple[dict[str, NDArray[Any]], list[str]]:
    """Return what was returned as ``out`` and, if there are any, ``weights``; and what is worth saying.

    Parameters
    ----------
    value : object
        An array, out and weights as a tuple or list, or what holds them by name.
    most : int
        Bytes that they may take.
    asked : Asked
        What tells a list of out and weights from one of the rows of a single array.

    Raises
    ------
    UnfitError
        It is neither.
    """
    if _is_object(value) and (out := _member(value, _OUT)) is not None:
        weights = _member(value, _WEIGHTS)
        return _outcome(out, weights, most), []
    if isinstance(value, (tuple, list)) and _is_pair(value, most, asked):
        notes = [f"{len(value)} values were returned: the first two are taken"] if len(value) > 2 else []
        weights = _member(value[1], _WEIGHTS) if _is_object(value[1]) else value[1]
        masked = any(kind.__name__ == "MaskedArray" for kind in type(weights).__mro__)
        if value[1] is not None and not masked and not _shape_of(weights, most):
            notes.append(f"the second value returned is {_called(value[1])}, no array: it is not looked at")
            weights = None
        return _outcome(value[0], weights, most), notes
    return _outcome(value, None, most), []


def _outcome(out: Any, weights: Any, most: int) -> dict[str, NDArray[Any]]:
    arrays = {"out": array_of(out, most)}
    if weights is not None:
        arrays["weights"] = array_of(weights, most - arrays["out"].nbytes, "returned, as weights,")
    return arrays


# ------------------------------------------------------------------------------------------- a layer's weights
def _attribute(layer: Any, name: str) -> Any:
    try:
        return getattr(layer, name)
    except Exception:  # a property that does not work yet
        return None


def _attributes(layer: Any) -> dict[str, Any]:
    """Plain name -> what an object or a dict holds; what its dicts of parameters hold as well."""
    if isinstance(layer, dict):
        return {plain(key): value for key, value in layer.items() if isinstance(key, str)}
    held = {plain(name): _attribute(layer, name) for name in dir(layer) if not name.startswith("__")}
    inside = [_attributes(held[name]) for name in _DICTS if isinstance(held.get(name), dict)]
    return {key: value for one in [*inside, held] for key, value in one.items()}


def _as_named(layer: Any) -> dict[str, Any]:
    """What `_attributes` finds, by the names that a solution gives: those that differ in capitals are several."""
    if isinstance(layer, dict):
        return {name: value for name, value in layer.items() if isinstance(name, str)}
    held = {name: _attribute(layer, name) for name in dir(layer) if not name.startswith("__")}
    inside = [_as_named(value) for name, value in held.items() if plain(name) in _DICTS and isinstance(value, dict)]
    return {key: value for one in [*inside, held] for key, value in one.items()}


def _is_part(value: Any) -> bool:
    """Whether it may hold weights of its own, as a linear layer or a dict does."""
    return value is not None and not isinstance(value, (_ndarray, list, tuple, str, type, *_NUMBERS, *_FUNCTIONS))


def _at(attributes: dict[str, Any], path: str) -> Any:
    """What lies at a path, if it is an array or a list."""
    name, _, rest = path.partition(".")
    value = attributes.get(name)
    if rest:
        value = _attributes(value).get(rest) if _is_part(value) else None
    return value if isinstance(value, (_ndarray, list, tuple)) else None


def _first(attributes: dict[str, Any], paths: list[tuple[str, bool]], most: int, axes: int) -> NDArray[Any] | None:
    """The array at the first path that has one, turned to (d_in, d_out)."""
    for path, turned in paths:
        value = _at(attributes, path)
        if value is not None:
            array = array_of(value, most, f"keeps at {path}")
            if axes == 1 and array.ndim == 2 and array.shape[0] == 1:
                array = array[0]
            if array.ndim != axes:
                raise UnfitError(f"keeps at {path} an array of shape {array.shape}, expected {axes} axes")
            lies = _as_it_acts(attributes.get(path.partition(".")[0]), array) if "." in path and axes == 2 else None
            return lies if lies is not None else array.T.copy() if turned else array
    return None


def _as_it_acts(part: Any, array: NDArray[Any]) -> NDArray[Any] | None:
    """A linear layer's weight as (d_in, d_out), told by what the layer does to the unit matrix, or None.

    PyTorch's ``weight`` is (d_out, d_in), and so by their name those of others: but a layer of one's own may hold it
    either way, and is right.
    """
    if not callable(part):
        return None
    for way in (array, array.T):
        unit = _eye(way.shape[0])
        try:
            made = part(unit) - part(0 * unit)  # without the bias
        except Exception:  # it takes no matrices, or none of this width
            continue
        if isinstance(made, _ndarray) and made.shape == way.shape and _allclose(made, way, atol=1e-9):
            return way.copy()
    return None


def _packed(attributes: dict[str, Any], tables: dict[str, Any], most: int) -> dict[str, NDArray[Any]]:
    """The weights and biases of q, k and v that lie side by side."""
    found: dict[str, NDArray[Any]] = {}
    for table, letter, axes in (("packed weights", "w", 2), ("packed biases", "b", 1)):
        array = _first(attributes, tables[table], most, axes)
        if array is not None and array.shape[-1] % 3 == 0:
            third = array.shape[-1] // 3
            found |= {f"{letter}_{role}": array[..., i * third :][..., :third].copy() for i, role in enumerate("qkv")}
    return found


def weights_of(layer: Any, tables: dict[str, Any], most: int) -> dict[str, NDArray[Any]]:
    """Return the weights of a layer as ``(d_in, d_out)``, and its biases, by the names of the tables.

    Raises
    ------
    UnfitError
        A weight lies under no known name.
    """
    attributes = _attributes(layer)
    found = _packed(attributes, tables, most)
    for table, axes in (("weights", 2), ("biases", 1)):
        for role, paths in tables[table].items():
            array = None if role in found else _first(attributes, paths, most, axes)
            if array is not None:
                found[role] = array
    missing = [role for role in tables["weights"] if role not in found]
    if missing:
        none = " (the unit matrix if it has none)" if missing == ["w_o"] else ""
        raise UnfitError(
            f"keeps {', '.join(missing)}{none} under no known name: {_remedy(_as_named(layer), tables['adapter'])}"
        )
    return found


def _remedy(attributes: dict[str, Any], adapter: str) -> str:
    arrays = [f"{name} {value.shape}" for name, value in attributes.items() if isinstance(value, _ndarray)]
    parts = [name for name, value in attributes.items() if not callable(value) or hasattr(value, "weight")]
    shown = ", ".join((arrays or parts)[:_MOST_NAMED]) or "nothing"
    returns = '{"w_q": ..., "w_k": ..., "w_v": ..., "w_o": ...}'
    return f"it has {shown}; define a function {adapter}(layer) that returns {returns}, each (d_in, d_out)"


def adapted(given: Any, tables: dict[str, Any], most: int) -> dict[str, NDArray[Any]]:
    """Return what the solution's own function says that the weights are.

    Raises
    ------
    UnfitError
        It is no dict of them.
    """
    adapter = tables["adapter"]
    known = {**dict.fromkeys(tables["weights"], 2), **dict.fromkeys(tables["biases"], 1)}
    if not isinstance(given, dict) or not set(tables["weights"]) <= set(given) <= set(known):
        got = f"a dict of {', '.join(map(str, given))}" if isinstance(given, dict) else _called(given)
        raise UnfitError(
            f"{adapter} returned {got}, expected a dict of {', '.join(tables['weights'])}, with b_q ... or without"
        )
    arrays = {role: array_of(value, most, f"{adapter} returned, as {role},") for role, value in given.items()}
    wrong = [role for role, array in arrays.items() if array.ndim != known[role]]
    if wrong:
        raise UnfitError(
            f"{adapter} returned {wrong[0]} of shape {arrays[wrong[0]].shape}, expected {known[wrong[0]]} axes"
        )
    return arrays
