"""Which function of a solution is meant, and which of its parameters takes which argument.

Names decide, those of a table that is handed in; where a function's say nothing, the order does. Knows neither what the
arguments hold nor what comes back. The child loads this file without the package.
"""

import inspect
from collections.abc import Callable, Iterable
from inspect import Parameter
from typing import Any, NamedTuple

import numpy as np

_arange = np.arange
_NEUTRAL: dict[str, Any] = {"mask": None, "causal": False, "axis": -1, "seed": 0, "n_heads": 1}
_OPTIONS = ("mask", "causal", "axis", "n_heads")  # what a solution may do without, and then is not asked for
_OMITTED = ("seed", "d_model")  # what may always be left out
_THRICE = "q, k or v"  # a role of the tables: what is given x where nothing is named after it
_VARIADIC = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)


class UnfitError(Exception):
    """What is wrong with a call or with what it returned, as text."""


class UntakenError(UnfitError):
    """A function has no argument for what is asked."""


class Bound(NamedTuple):
    """Arguments as a function takes them, and what is worth saying about that."""

    args: list[Any]
    kwargs: dict[str, Any]
    notes: list[str]


def plain(name: str) -> str:
    """Return a name as it is compared: in lower case, without underscores.

    >>> plain("_W_Q"), plain("MultiHeadAttention")
    ('wq', 'multiheadattention')
    """
    return name.replace("_", "").lower()


# ------------------------------------------------------------------------------------------- functions
def parameters(function: Any) -> list[Parameter] | None:
    """Return a function's parameters, or None where it does not say."""
    try:
        return list(inspect.signature(function).parameters.values())
    except Exception:  # what a solution's own __signature__ raises may be anything
        return None


def _takes_three(function: Any, roles: dict[str, list[str]]) -> bool:
    names = {plain(p.name) for p in parameters(function) or ()}
    return all(names & set(roles[role]) for role in "qkv")


def _suits(function: str, name: str, value: Any, tables: dict[str, Any]) -> bool:
    if not callable(value) or inspect.isclass(value) != (function == "layer"):
        return False
    other = function != "attention" or name not in tables["only of three"]
    return other or _takes_three(value, tables["roles"]["attention"])


def find(
    names: Iterable[str], get: Callable[[str], Any], tables: dict[str, Any], own: Callable[[Any], bool]
) -> dict[str, str]:
    """Return function -> the name under which it is found: the solution's own first, then by order of the table."""
    present = [(name, plain(name)) for name in names]
    found = {}
    for function, known in tables["functions"].items():
        values = [(get(name), name, short) for name, short in present if short in known]
        fit = [(value, name, short) for value, name, short in values if _suits(function, short, value, tables)]
        if fit:
            found[function] = min(fit, key=lambda one: (not own(one[0]), known.index(one[2])))[1]
    return found


def reached(holder: Any, path: str) -> Any:
    """Return what a name or a dotted path leads to, or None."""
    for name in path.split("."):
        holder = getattr(holder, name, None)
    return holder


# ------------------------------------------------------------------------------------------- arguments
def bind(
    function: Any, roles: list[str], values: dict[str, Any], names: dict[str, list[str]], derived: dict[str, Any]
) -> Bound:
    """Return values by role as arguments of a function.

    Parameters
    ----------
    function : callable
        What is to be called.
    roles : list of str
        Those that it may be given, in the order in which they are passed where names say nothing.
    values : dict of str to object
        What it is to be given, by role.
    names : dict of str to list of str
        Role -> the plain names of its parameters.
    derived : dict of str to object
        Plain name -> what is given to such a parameter if it has no default.

    Raises
    ------
    UntakenError
        It has no argument for an option.
    UnfitError
        It asks for what nothing is known of, or does not take what it must.
    """
    params = parameters(function)
    if params is None:
        return _by_position(None, roles, values)
    named = _named(params, roles, names)
    known = [p for p in params if p.name in named and p.kind not in _VARIADIC]
    by_name = known or not params
    return _by_name(params, named, roles, values, derived) if by_name else _by_position(params, roles, values)


def _named(params: list[Parameter], roles: list[str], names: dict[str, list[str]]) -> dict[str, str]:
    """Parameter -> its role; q, k and v stand for x where nothing else does."""
    asked = [*roles, *(role for role in ("mask",) if "causal" in roles and role in names)]
    named: dict[str, str] = {}
    for p in params:
        role = next((role for role in asked if plain(p.name) in names[role]), None)
        if role:
            named[p.name] = role
    if (
        named and "q" in roles and not {"q", "k", "v"} & set(named.values())
    ):  # the first three, whatever they are called
        first = [p.name for p in params if p.kind not in _VARIADIC][:3]
        named |= dict(zip(first, "qkv", strict=False)) if not set(first) & set(named) else {}
    if "x" in roles and "x" not in named.values():
        named |= {p.name: _THRICE for p in params if plain(p.name) in names.get(_THRICE, ())}
    return named


def _takers(params: list[Parameter], named: dict[str, str], role: str) -> list[Parameter]:
    """The parameters that are given a role: all without a default, or the first; of q, k and v for x all."""
    those = [p for p in params if named.get(p.name) == role and p.kind not in _VARIADIC]
    if role == "x" and not those:
        return [p for p in params if named.get(p.name) == _THRICE]
    return [p for p in those if p.default is Parameter.empty] or those[:1]


def _lower_triangle(values: dict[str, Any]) -> Any:
    """True where a token may attend: itself and those before it."""
    places = _arange(values["x"].shape[-2])
    return places[:, None] >= places


def _by_name(
    params: list[Parameter],
    named: dict[str, str],
    roles: list[str],
    values: dict[str, Any],
    derived: dict[str, Any],
) -> Bound:
    given: dict[str, Any] = {}
    more: dict[str, Any] = {}  # what no parameter is named after
    notes: list[str] = []
    for role, value in values.items():
        takers = _takers(params, named, role)
        given |= {p.name: _as_asked(p.name, role, value) for p in takers}
        if not takers:
            more[role] = value
    if more.get("mask") is not None and "q" in roles and (mask := _left_over(params, named)):
        given[mask] = more.pop("mask")
        notes.append(f"'{mask}' is taken for the mask")
    if more.get("causal") and "q" in roles:  # a name that says so is needed: what takes any may ignore it
        _refuse({"causal": True}, params)
    given |= {p.name: False for p in params if _must_be_told(p, given, named, roles)}
    if more.get("causal") and "x" in values and (masks := _takers(params, named, "mask")):
        given |= {p.name: _lower_triangle(values) for p in masks}
        del more["causal"]
    kinds = {p.kind for p in params}
    more = {role: value for role, value in more.items() if not _may_omit(role, value)}
    if Parameter.VAR_KEYWORD in kinds:
        extra: tuple[list[Any], dict[str, Any]] = ([], more)
    elif Parameter.VAR_POSITIONAL in kinds:
        extra = (list(more.values()), {})
    else:
        extra = ([], {})
        _refuse(more, params)
    for p in params:
        if p.name not in given and p.default is Parameter.empty and p.kind not in _VARIADIC:
            given[p.name] = _without_default(p.name, named.get(p.name, ""), roles, derived)
    return _arranged(params, given, *extra)._replace(notes=notes)


def _left_over(params: list[Parameter], named: dict[str, str]) -> str:
    """The one parameter whose name says nothing and which may be None: of q, k and v's company, it is the mask."""
    left = [p.name for p in params if p.name not in named and p.kind not in _VARIADIC and p.default is None]
    said = any(word in plain(name) for name in left for word in ("bias", "scale", "slope"))
    return left[0] if len(left) == 1 and not said else ""


def _must_be_told(p: Parameter, given: dict[str, Any], named: dict[str, str], roles: list[str]) -> bool:
    """Whether attention is causal unless told otherwise."""
    return "q" in roles and p.name not in given and named.get(p.name) == "causal" and p.default is True


def _as_asked(name: str, role: str, value: Any) -> Any:
    wants_generator = role == "seed" and plain(name) in ("rng", "generator")
    return np.random.default_rng(value) if wants_generator else value


def _may_omit(role: str, value: Any) -> bool:
    """Whether not to pass this says the same, as far as anybody knows."""
    if role in _OMITTED or value is None:
        return True
    return role in _NEUTRAL and not hasattr(value, "shape") and bool(value == _NEUTRAL[role])


def _refuse(more: dict[str, Any], params: list[Parameter] | None) -> None:
    """Raise for what could not be passed: what may be missing is not judged."""
    if not more:
        return
    takes = ", ".join(p.name for p in params or ()) or "nothing"
    missing = ", ".join(more)
    if all(role in _OPTIONS for role in more):
        raise UntakenError(f"has no argument for {missing}; it takes {takes}")
    raise UnfitError(f"has no argument for {missing}; it takes {takes}")


def _without_default(name: str, role: str, roles: list[str], derived: dict[str, Any]) -> Any:
    if role in _NEUTRAL and role != "n_heads":
        return _NEUTRAL[role]
    if plain(name) in derived:
        return derived[plain(name)]
    raise UnfitError(f"asks for '{name}', which is none of the known arguments ({', '.join(roles)})")


def _arranged(params: list[Parameter], given: dict[str, Any], last: list[Any], kwargs: dict[str, Any]) -> Bound:
    """Leading arguments without a default by position, as wrappers may take no names; the rest by name."""
    args: list[Any] = []
    leading = True
    for p in params:
        if p.kind is Parameter.POSITIONAL_ONLY or (p.kind is Parameter.POSITIONAL_OR_KEYWORD and last):
            args.append(given.get(p.name, p.default))
        elif p.name in given:
            leading = leading and p.kind is Parameter.POSITIONAL_OR_KEYWORD and p.default is Parameter.empty
            if leading:
                args.append(given[p.name])
            else:
                kwargs[p.name] = given[p.name]
        else:
            leading = False
    return Bound(args + last, kwargs, [])


def _by_position(params: list[Parameter] | None, roles: list[str], values: dict[str, Any]) -> Bound:
    """Arguments in the order of the roles, up to the last that says something."""
    if "q" in roles and values.get("causal"):
        _refuse({"causal": True}, params)
    placed = [
        role for role in roles if role != "causal" or "q" not in roles
    ]  # of q, k and v's company a name must say so
    wanted = [role for role in placed if role in values]
    while wanted and _may_omit(wanted[-1], values[wanted[-1]]):
        wanted.pop()
    if params and all(p.kind is Parameter.VAR_KEYWORD for p in params):
        return Bound([], {role: values[role] for role in wanted}, [])
    places = [p for p in params or () if p.kind in (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)]
    room = len(roles) if params is None or any(p.kind in _VARIADIC for p in params) else len(places)
    _refuse({role: values[role] for role in wanted[room:]}, params)
    args = [values[role] for role in wanted]
    for p in places[len(args) :]:
        if p.default is not Parameter.empty:
            break
        role = placed[len(args)] if len(args) < len(placed) else ""
        args.append(values[role] if role in values else _without_default(p.name, role, roles, {}))
    said = f"no argument has a known name: passed by position, as {', '.join(wanted)}"
    return Bound(args, {}, [said] if len(wanted) > 1 else [])
