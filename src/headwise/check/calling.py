"""The calls of a check, performed on functions of a solution: arguments in, what was returned or raised out.

Knows neither what is right nor where the functions come from. The child loads this file without the package.
"""

import os
from collections.abc import Callable
from copy import deepcopy
from types import TracebackType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from headwise.check.bind import Bound, UnfitError, UntakenError, bind, parameters, plain, reached
from headwise.check.returned import Asked, adapted, outcome, weights_of

_deepcopy, _ndarray = deepcopy, np.ndarray
_LONGEST = 500  # characters of an error
_HERE = os.path.dirname(os.path.abspath(__file__))
_MAKING = ("d_model", "n_heads", "seed")  # the arguments of a layer that make it; it is called with the others


RESULT = "the result of the call before"  # which a call should leave alone, as its arguments


class Answer(NamedTuple):
    """What came of one call, as it can be sent: texts, and arrays by name."""

    fields: dict[str, Any]
    arrays: dict[str, NDArray[Any]]


# ------------------------------------------------------------------------------------------- errors as text
def one_line(text: str) -> str:
    """Return text on one line, whatever does not print escaped, its end cut."""
    text = " ".join(text[: 4 * _LONGEST].split())
    escaped = "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
    return escaped if len(escaped) <= _LONGEST else escaped[: _LONGEST - 3] + "..."


def _said(error: BaseException) -> str:
    """What an error says of itself; its own code may raise anything."""
    try:
        text = error.msg if isinstance(error, SyntaxError) else str(error)
        return str.__add__("", text)  # a plain str, whatever class of it the message is
    except BaseException:
        return "(its message cannot be read)"


def _name_of(path: str, labels: dict[str, str] | None) -> str | None:
    """What a file of the solution is called, or None for others. Without labels all but this package's and NumPy's."""
    if labels is not None:
        return labels.get(path)
    foreign = os.path.dirname(path) in (_HERE, os.path.dirname(np.__file__)) or f"{os.sep}numpy{os.sep}" in path
    return None if foreign else "the cell" if path.startswith("<") or "ipykernel" in path else os.path.basename(path)


def line_of(error: BaseException, labels: dict[str, str] | None) -> str:
    """Return ``" (line 3 of solution.py)"``, the last line of the solution that an error passed, or nothing."""
    lines = [(str(error.filename), error.lineno)] if isinstance(error, SyntaxError) and error.filename else []
    trace: TracebackType | None = error.__traceback__ if not lines else None
    while trace is not None:
        lines.append((trace.tb_frame.f_code.co_filename, trace.tb_lineno))
        trace = trace.tb_next
    places = [(line, name) for path, line in lines if (name := _name_of(path, labels)) is not None]
    if not places:
        return ""
    line, name = places[-1]
    return f" (line {line} of {name})" if name else f" (line {line})"


def described(error: BaseException, labels: dict[str, str] | None) -> str:
    """Return an error as one line: ``"ValueError: axes don't match (line 7 of solution.py)"``."""
    kind = type.__dict__["__name__"].__get__(type(error))  # its own class may say anything
    try:
        place, said = line_of(error, labels), _said(error)
    except Exception:
        place, said = "", "(it cannot be read)"
    text = one_line(f"{kind}: {said}" if said else kind)
    return text[: _LONGEST - len(place)] + place


# ------------------------------------------------------------------------------------------- calls
class Caller:
    """Functions of a solution, ready to be called.

    Parameters
    ----------
    functions : dict of str to callable
        Those that were found.
    adapter : callable or None
        The solution's own function that hands out a layer's weights.
    tables : dict
        Names, as in names.TABLES.
    most : int
        Bytes that all results together may take.
    caught : tuple of type
        What a solution may raise; all else goes through.
    labels : dict of str to str, or None
        File name -> what it is called in a text.
    """

    def __init__(
        self,
        functions: dict[str, Callable[..., Any]],
        adapter: Callable[..., Any] | None,
        tables: dict[str, Any],
        most: int,
        caught: tuple[type[BaseException], ...],
        labels: dict[str, str] | None,
    ) -> None:
        self.functions, self.adapter, self.tables = functions, adapter, tables
        self.most, self.caught, self.labels = most, caught, labels
        self.last: dict[str, Any] = {}
        self.layers: dict[str, Any] = {}  # made for the last call, by what they were made with
        self.notes: list[str] = []
        self.held: dict[str, NDArray[Any]] = {}  # a layer's weights, which are known before it is called
        self.gave: list[NDArray[Any]] = []  # what the last call returned, itself

    def perform(self, function: str, args: dict[str, Any], again: bool, kept_layer: bool = False) -> Answer:
        """Make one call and return what came of it, errors included."""
        if not kept_layer:
            self.layers = {}
        self.notes, self.held = [], {}
        kept = self.last if again else {}
        values = {role: kept[role] if role in kept else _deepcopy(value) for role, value in args.items()}
        self.last = values
        before = {role: _bits(value) for role, value in values.items()}
        given = [(array, _bits(array)) for array in self.gave]
        self.gave = []
        arrays: dict[str, NDArray[Any]] = {}
        error, untaken = "", False
        try:
            arrays = self._called(function, dict(values))
        except UnfitError as unfit:
            error, untaken = one_line(f"{self._name(function)} {unfit}"), isinstance(unfit, UntakenError)
        except self.caught as raised:
            if self.labels is None and isinstance(raised, KeyboardInterrupt):
                raise  # in this process it is the user's
            error = described(raised, self.labels)
        arrays |= self.held
        self.most -= sum(array.nbytes for array in arrays.values())
        changed = [role for role, value in values.items() if _bits(value) != before[role]]
        changed += [RESULT] if any(_bits(array) != bits for array, bits in given) else []
        return Answer({"error": error, "untaken": untaken, "changed": changed, "notes": self.notes}, arrays)

    def _name(self, function: str) -> str:
        try:
            return str(getattr(self.functions.get(function), "__name__", function))
        except Exception:
            return function

    def _called(self, function: str, values: dict[str, Any]) -> dict[str, NDArray[Any]]:
        if function not in self.functions:
            raise UnfitError("is not defined")
        if function == "layer":
            return self._layer(values)
        target, order = self.functions[function], self.tables["order"][function]
        return self._outcome(self._call(target, function, order, values), _asked(function, values))

    def _outcome(self, value: Any, shapes: Asked) -> dict[str, NDArray[Any]]:
        self.gave = [
            array for array in (value if isinstance(value, (tuple, list)) else [value]) if type(array) is _ndarray
        ]
        arrays, notes = outcome(value, self.most, shapes)
        self.notes += notes
        return arrays

    def _call(self, target: Any, function: str, roles: list[str], values: dict[str, Any], read: Any = None) -> Any:
        """Call a function whose arguments are those of another, where one is given."""
        bound = self._bound(target if read is None else read, function, roles, values)
        self.notes += bound.notes
        return target(*bound.args, **bound.kwargs)

    def _bound(self, target: Any, function: str, roles: list[str], values: dict[str, Any]) -> Bound:
        names = self.tables["roles"][function]
        always = any(word in plain(self._name(function)) for word in ("causal", "masked"))
        if function in ("multi_head", "layer") and always and not _takes(target, names, "causal", "mask"):
            if not values.get("causal"):
                raise UntakenError("is always causal by its name, and has no argument for it")
            values = {role: value for role, value in values.items() if role != "causal"}
        return bind(target, roles, values, names, self._derived(function, values))

    def _derived(self, function: str, values: dict[str, Any]) -> dict[str, Any]:
        """Plain name -> what a parameter without a default is given, where it can be said."""
        derived = {"nothing": 0.0, "no": False, "yes": True, **_sizes(function, values)}
        known = self.tables["derived"]
        return {name: derived[what] for what, names in known.items() if what in derived for name in names}

    # ------------------------------------------------------------------------------------- the layer
    def _layer(self, values: dict[str, Any]) -> dict[str, NDArray[Any]]:
        layer, given = self._made(values)
        params = self._params(layer)
        self._hold(params)
        roles = [role for role in self.tables["order"]["layer"] if role not in _MAKING]
        returned = self._call(self._entry(layer), "layer", roles, given, self._read(layer))
        out = self._outcome(returned, _asked("layer", values))
        if isinstance(params, UnfitError):  # some make their weights at the first call
            params = self._params(layer)
            self._hold(params)
        if isinstance(params, UnfitError):
            raise params
        return out

    def _hold(self, params: dict[str, NDArray[Any]] | UnfitError) -> None:
        if not isinstance(params, UnfitError):
            self.held = {f"params.{role}": array for role, array in params.items()}

    def _made(self, values: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        """The layer, and what is left to call it with: some are told when they are made whether they are causal."""
        names = self.tables["roles"]["layer"]
        making = {role: value for role, value in values.items() if role in _MAKING}
        rest = {role: value for role, value in values.items() if role not in _MAKING}
        told = _takes(self.functions["layer"], names, "causal")
        layer = self._make({**making, "causal": False} if told else making, values)
        if told and not _takes(self._read(layer), names, "causal", "mask"):
            layer = self._make({**making, "causal": rest.pop("causal", False)}, values)
        return layer, rest

    def _make(self, making: dict[str, Any], values: dict[str, Any]) -> Any:
        cls, names = self.functions["layer"], self.tables["roles"]
        weights = _drawn(making["d_model"], making.get("seed", 0)) if _asks(cls, names["multi_head"]["w_q"]) else {}
        given = {name: weights[role] for role in weights for name in names["multi_head"][role]}
        derived = self._derived("layer", values) | given
        bound = bind(cls, [*_MAKING, *(["causal"] if "causal" in making else [])], making, names["layer"], derived)
        self.notes = bound.notes
        how = repr(sorted(making.items()))
        if how not in self.layers:
            self.layers[how] = cls(*bound.args, **bound.kwargs)
        return self.layers[how]

    def _entry(self, layer: Any) -> Any:
        """What is called: the layer, or its forward."""
        names = [name for name in self.tables["called"] if callable(getattr(layer, name, None))]
        if not callable(layer) and not names:
            raise UnfitError(f"cannot be called: define __call__ or {self.tables['called'][0]}")
        return layer if callable(layer) else getattr(layer, names[0])

    def _read(self, layer: Any) -> Any:
        """What says which arguments a layer takes: its forward, where __call__ hands on whatever it is given."""
        names = [name for name in self.tables["called"] if callable(getattr(layer, name, None))]
        params = parameters(layer)
        hands_on = params and all(p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in params)
        return getattr(layer, names[0]) if names and hands_on else self._entry(layer)

    def _params(self, layer: Any) -> dict[str, NDArray[Any]] | UnfitError:
        """The weights of a layer, or why they cannot be read."""
        try:
            if self.adapter is not None:
                return adapted(self.adapter(layer), self.tables, self.most)
            return weights_of(layer, self.tables, self.most)
        except UnfitError as unfit:
            return unfit


# ------------------------------------------------------------------------------------------- small questions
def member(holder: Any, path: str) -> Any:
    """Return what a name or a dotted path leads to, or None, also where asking for it raises."""
    try:
        return reached(holder, path)
    except Exception:
        return None


def asked(value: Any) -> Any:
    """Return a value that can be asked what it is: itself, or a function that raises what its own code raised."""
    try:
        isinstance(value, type), str(getattr(value, "__module__", "")), parameters(value)
    except Exception as raised:
        error = raised

        def unreadable(*args: Any, **kwargs: Any) -> Any:
            raise error

        return unreadable
    return value


def _bits(value: Any) -> Any:
    """What tells whether a value was written to; NaN equals NaN."""
    try:
        return (value.dtype.str, value.shape, value.tobytes()) if isinstance(value, _ndarray) else repr(value)
    except Exception:
        return None  # something else was put into a list


def _takes(target: Any, names: dict[str, list[str]], *roles: str) -> bool:
    """Whether a function has a parameter for one of these roles, or for whatever it is given by name."""
    params = parameters(target) or []
    known = {name for role in roles for name in names[role]}
    return any(plain(p.name) in known or p.kind is p.VAR_KEYWORD for p in params)


def _asks(target: Any, names: list[str]) -> bool:
    return any(plain(p.name) in names and p.default is p.empty for p in parameters(target) or [])


def _drawn(d_model: int, seed: int) -> dict[str, NDArray[Any]]:
    """Weights for a layer that is handed its weights."""
    rng = np.random.default_rng(seed)
    return {role: rng.normal(scale=d_model**-0.5, size=(d_model, d_model)) for role in ("w_q", "w_k", "w_v", "w_o")}


def _sizes(function: str, values: dict[str, Any]) -> dict[str, float]:
    """The sizes, and the scale, that follow from the arguments of a call."""
    shapes = {role: value.shape for role, value in values.items() if isinstance(value, _ndarray)}
    sizes: dict[str, float] = {}
    if function == "attention" and "q" in shapes:
        sizes |= {"d_head": shapes["q"][-1], "scale": float(shapes["q"][-1] or 1) ** -0.5}
    if function in ("multi_head", "layer") and len(shapes.get("x", ())) > 1:
        sizes["length"], width = shapes["x"][-2:]
        sizes |= {"width": width, "d_head": width // max(int(values.get("n_heads") or 1), 1)}
    return sizes


def _asked(function: str, values: dict[str, Any]) -> Asked:
    """What a call asks for, by the shapes of its arguments."""
    shapes = {role: value.shape for role, value in values.items() if isinstance(value, _ndarray)}
    if function == "attention" and {"q", "v"} <= set(shapes):
        return Asked((*shapes["q"][:-1], shapes["v"][-1]), True)
    if function in ("multi_head", "layer") and "x" in shapes:
        return Asked((*shapes["x"][:-1], shapes.get("w_o", shapes["x"])[-1]), True)
    return Asked(shapes.get("x"))
