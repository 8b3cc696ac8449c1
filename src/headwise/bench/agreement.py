"""Whether results agree before anything is timed: ours with the definition in float64, a peer's with ours."""

import math

import numpy as np

from headwise.bench.arrays import Inputs, Made, dense_bias, dense_mask, options
from headwise.bench.cases import Case
from headwise.bench.gradients import dense
from headwise.core.attention import scaled_dot_product_attention
from headwise.core.shapes import Array

FEW = 16  # queries whose result is compared with the definition
_BLOCK = 256  # queries whose weights are held at once for gradients
_ROUNDINGS = 4096  # another mask, scale or alignment is farther off by far; how exact each one is, is not asked here
_NAMES = ("result", "d_q", "d_k", "d_v")


class BenchError(ValueError):
    """Something that makes measuring pointless; one line."""


def tolerance(case: Case, inputs: Inputs) -> float:
    """Return how far outputs may lie apart: 4096 roundings of the largest value, times the factor of q."""
    return roundings(case.dtype) * case.factor * float(np.abs(inputs.v).max())


def roundings(dtype: str) -> float:
    """Return 4096 roundings, relative to the largest value: how far results may lie apart."""
    return float(_ROUNDINGS * np.finfo(dtype).eps)


def check(what: str, got: Array, expected: Array, most: float) -> None:
    """Compare two arrays entry by entry; `what` names the expected one.

    Raises
    ------
    BenchError
        They differ by more than `most`, or in shape.
    """
    if got.shape != expected.shape:
        raise BenchError(f"expected {what} of shape {expected.shape}, got {got.shape}")
    apart = float(np.abs(got - expected).max())
    if not apart <= most:  # NaN too
        raise BenchError(f"expected {what} within {most:.2g}, got {apart:.2g} from it")


def _check_gradient(what: str, case: Case, got: Array, expected: Array) -> None:
    """Within 4096 roundings of the gradient's largest entry, times the factor of q."""
    most = roundings(case.dtype) * case.factor * float(np.abs(expected).max())
    check(what, got, expected, most)


def check_ours(case: Case, inputs: Inputs, made: Made) -> None:
    """Compare with the definition in float64; what dropout was applied to is not asked.

    Of the output that is done for the last few queries of the last item, of gradients for its last head of keys.

    Raises
    ------
    BenchError
        They differ by more than the tolerance.
    """
    if case.dropout:
        return
    if isinstance(made, tuple):
        _check_our_gradients(case, inputs, made[-3:])
    if case.timed != "backward":
        _check_our_output(case, inputs, made[0] if isinstance(made, tuple) else made)


def _check_our_output(case: Case, inputs: Inputs, out: Array) -> None:
    _, h, n, d = case.shape
    few = min(FEW, n)
    part = case._replace(shape=(1, h, few, d), n_k=case.keys)  # causal and alibi align at the end
    seen = None if inputs.seen is None else inputs.seen[-few:]
    k, v = (x[-1:].astype(np.float64) for x in (inputs.k, inputs.v))
    cut = Inputs(inputs.q[-1:, :, -few:].astype(np.float64), k, v, seen)
    expected, _ = scaled_dot_product_attention(*cut[:3], **options(part, cut))
    check("the definition", out[-1:, :, -few:], expected, tolerance(case, inputs))


def _check_our_gradients(case: Case, inputs: Inputs, made: tuple[Array, ...]) -> None:
    group = inputs.q.shape[1] // inputs.k.shape[1]
    expected = _last_gradients(case, inputs, group)
    for name, got, right, heads in zip(_NAMES[1:], made, expected, (group, 1, 1), strict=True):
        _check_gradient(f"{name} of the definition", case, got[-1:, -heads:], right)


def _last_gradients(case: Case, inputs: Inputs, group: int) -> tuple[Array, Array, Array]:
    """d_q, d_k, d_v of the last item's last head of keys in float64, from the definition's weights, block by block."""
    q, d_out = (np.asarray(x)[-1:, -group:].astype(np.float64) for x in (inputs.q, inputs.d_out))
    k, v = (x[-1:, -1:].astype(np.float64) for x in (inputs.k, inputs.v))
    seen, bias = _last(dense_mask(case, inputs, causal=True)), _last(dense_bias(case, inputs))
    d_q, d_k, d_v = np.zeros_like(q), np.zeros_like(k), np.zeros_like(v)
    for start in range(0, q.shape[2], _BLOCK):
        rows = slice(start, start + _BLOCK)
        mask = None if seen is None else seen[..., rows, :]
        added = None if bias is None else bias[..., -group:, rows, :]
        out, weights = scaled_dot_product_attention(q[:, :, rows], k, v, mask, bias=added)
        d_q[:, :, rows], more_k, more_v = dense(q[:, :, rows], k, v, weights, out, d_out[:, :, rows])
        d_k += more_k
        d_v += more_v
    return d_q, d_k, d_v


def _last(x: Array | None) -> Array | None:
    """The last item of what may have an axis for items."""
    return x if x is None or x.ndim < 4 else x[-1:]


def check_peer(case: Case, inputs: Inputs, made: Made, ours: Made) -> None:
    """Compare a peer's output and gradients with ours; with dropout only their shapes, and that there is no NaN.

    Raises
    ------
    BenchError
        They differ by more than the tolerance, or a peer made something else.
    """
    theirs, mine = (_named(x) for x in (made, ours))
    for name, got in theirs.items():
        what = f"the {name} of headwise"
        if case.dropout:  # everybody drops other weights
            check(what, got, mine[name], math.inf)
        elif name == _NAMES[0]:
            check(what, got, mine[name], tolerance(case, inputs))
        else:
            _check_gradient(what, case, got, mine[name])


def _named(made: Made) -> dict[str, Array]:
    """By name: an output, three gradients, or all of them."""
    arrays = made if isinstance(made, tuple) else (made,)
    return dict(zip(_NAMES[:1] if len(arrays) == 1 else _NAMES[-len(arrays) :], arrays, strict=True))
