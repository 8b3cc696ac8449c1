"""What passes between checks and a solution: calls go in, results come back.

Knows neither what is right nor how a solution is run.
"""

from typing import Any, NamedTuple

import numpy as np

from headwise.core.shapes import Array

FUNCTIONS = ("softmax", "attention", "causal_mask", "multi_head", "layer")
"""What a solution may define. An exercise is about one of them."""

ROLES = {
    "softmax": ("x", "axis"),
    "attention": ("q", "k", "v", "mask", "causal"),
    "causal_mask": ("n",),
    "multi_head": ("x", "w_q", "w_k", "w_v", "w_o", "n_heads", "causal"),
    "layer": ("d_model", "n_heads", "seed", "x", "causal"),
}
"""The arguments of each, in the order in which they are passed where a solution's names say nothing. Of `layer` the
first three make the object, which is then called with the others; its weights are read from it."""


class Call(NamedTuple):
    """One call of a function of the solution.

    Attributes
    ----------
    function : str
        One of FUNCTIONS.
    args : dict of str to ndarray, list, int or bool
        By role. What is not there is not passed.
    again : bool
        Whether the arrays are those that the call before was given, as it left them; else each call has copies of its
        own. The roles of both calls must hold the same shapes.
    kept : bool
        Whether a layer is the one that the call before made, called once more; else it is made anew.
    """

    function: str
    args: dict[str, Any]
    again: bool = False
    kept: bool = False


class Result(NamedTuple):
    """What came of a call.

    Attributes
    ----------
    out, weights : ndarray or None
        What was returned, or None: ``weights`` where only ``out`` was, both after an error. Arrays of bool, integer or
        float as the solution made them.
    params : dict of str to ndarray
        ``w_q``, ``w_k``, ``w_v``, ``w_o``, and biases ``b_q`` ... where there are any, of a layer: read from it under
        the names of a table, as ``(d_in, d_out)``.
    error : str
        Empty, or what was raised or wrong with what was returned, in one line: ``"ValueError: matmul: ..."``.
    untaken : bool
        Whether the error is that the function has no argument for a role, as a mask: it cannot be judged.
    changed : tuple of str
        The roles whose arrays the call wrote to.
    notes : tuple of str
        How the call was understood where that was not plain: arguments by position, the first two of three values.
    """

    out: Array | None = None
    weights: Array | None = None
    params: dict[str, Array] = {}  # noqa: RUF012 - never written to
    error: str = ""
    untaken: bool = False
    changed: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


class Run(NamedTuple):
    """What came of the calls of one check.

    Attributes
    ----------
    results : list of Result
        As many as there were calls; fewer where the run was broken.
    broken : str
        Empty, or why the run ended: ``"did not end within 10 s"``, ``"ended itself by os._exit(0)"``.
    printed : str
        What the solution wrote to its standard output and error, capped.
    seconds : float
        Wall time.
    """

    results: list[Result]
    broken: str = ""
    printed: str = ""
    seconds: float = 0.0


def hides(call: Call) -> bool:
    """Whether a call says which keys a query may see, by a mask or by causal=True."""
    return "mask" in call.args or bool(call.args.get("causal"))


def is_oblong(call: Call) -> bool:
    """Whether it is a causal call of attention over more or fewer keys than queries, where systems disagree."""
    oblong = call.function == "attention" and call.args["q"].shape[-2] != call.args["k"].shape[-2]
    return oblong and bool(call.args.get("causal"))


def same(a: Array | None, b: Array | None, tolerance: float = 1e-9) -> bool:
    """Whether two arrays have the same shape and agree within a tolerance, relative above 1; NaN equals NaN.

    >>> same(np.array([1.0, np.nan]), np.array([1.0 + 1e-12, np.nan])), same(np.zeros(2), np.zeros((2, 1)))
    (True, False)
    """
    if a is None or b is None:
        return a is b
    if a.shape != b.shape:
        return False
    a, b = a.astype(np.float64, copy=False), b.astype(np.float64, copy=False)
    with np.errstate(all="ignore"):
        if (np.abs(a - b) <= tolerance + tolerance * np.abs(b)).all() and np.isfinite(b).all():
            return True
    finite = np.isfinite(a).all() and np.isfinite(b).all()  # of these there is no more to say
    return not finite and np.allclose(a, b, rtol=tolerance, atol=tolerance, equal_nan=True)
