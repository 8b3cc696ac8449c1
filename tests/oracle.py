"""Attention by definition, row by row, in plain Python and 50 decimal digits; knows nothing of NumPy or of headwise.

Every row is computed from the keys that its query may attend to: what is hidden is never read. Decimals follow IEEE
rules (0 * inf and inf - inf are NaN), so a visible score of NaN or +inf makes its row NaN, one of -inf weighs nothing.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal, localcontext
from itertools import product
from typing import NamedTuple

INF, NAN, ZERO = Decimal("inf"), Decimal("nan"), Decimal(0)

Index = tuple[int, ...]
Vector = list[float]
Sees = Callable[[Index, int, int], bool]  # of (place in the leading axes, query, key)
Number = Callable[[Index, int, int], float]  # of the same


class Operand(NamedTuple):
    """q, k or v: a matrix, n rows of ``width`` numbers, for every place in its own leading axes."""

    lead: Index
    width: int
    at: Mapping[Index, list[Vector]]


class Row(NamedTuple):
    """What one query gets, and the two numbers that say how close is equal."""

    out: list[Decimal]  # d_v numbers
    weights: list[Decimal]  # n_k numbers, before dropout
    lse: Decimal
    spread: float  # 1 + d_k |q| |k| |scale| + max|bias| + log n_k, over the keys that are seen; a sink is a bias
    reach: float  # max|v| over the keys that are seen


class Options(NamedTuple):
    """What else the definition takes."""

    bias: Number | None = None
    scale: float | None = None
    softcap: float | None = None
    sinks: Vector | None = None
    kept: Number | None = None  # what dropout multiplies a weight by


def attention(q: Operand, k: Operand, v: Operand, scores: Index, sees: Sees, options: Options) -> Iterator[Row]:
    """The rows of a problem with this score shape (..., H, n_q, n_k), in C order."""
    *lead, n_q, n_k = scores
    for at in product(*map(range, lead)):
        queries, keys, values = (operand.at[place(operand.lead, at, tuple(lead))] for operand in (q, k, v))
        sink = None if options.sinks is None else options.sinks[at[-1] if at else 0]
        for i in range(n_q):
            bias = [options.bias(at, i, j) if options.bias else 0.0 for j in range(n_k)]
            kept = [options.kept(at, i, j) if options.kept else 1.0 for j in range(n_k)]
            seen = [j for j in range(n_k) if sees(at, i, j) and bias[j] != -math.inf]
            with localcontext(prec=50, traps=[]):
                row = _row(queries[i], keys, values, v.width, seen, bias, sink, kept, options)
            yield row


def place(own: Index, at: Index, lead: Index) -> Index:
    """Where in its own leading axes an operand is read by the item and head ``at`` of the scores' leading axes."""
    index = [0 if size == 1 else i for size, i in zip(reversed(own), reversed(at), strict=False)][::-1]
    if len(lead) >= 2 and own and own[-1] > 1:  # with a batch axis, H // G neighbouring heads share a key head
        index[-1] = at[-1] // (lead[-1] // own[-1])
    return tuple(index)


def _row(
    query: Vector,
    keys: list[Vector],
    values: list[Vector],
    d_v: int,
    seen: list[int],
    bias: Vector,
    sink: float | None,
    kept: Vector,
    options: Options,
) -> Row:
    d_k, n_k = len(query), len(keys)
    scale = 1 / Decimal(max(d_k, 1)).sqrt() if options.scale is None else Decimal(options.scale)
    scores = {j: _capped(_dot(query, keys[j], scale), options.softcap) + Decimal(bias[j]) for j in seen}
    given, lse = _softmax(scores, sink)
    poisoned = lse.is_nan() or lse == INF
    weights = [NAN if poisoned else given.get(j, ZERO) for j in range(n_k)]  # 0 / nan, where hidden, is NaN
    out = [sum((weights[j] * Decimal(kept[j]) * Decimal(values[j][c]) for j in seen), ZERO) for c in range(d_v)]
    norms = [math.hypot(*query) * math.hypot(*keys[j]) for j in seen]
    capped = options.softcap or 0.0 if not all(map(math.isfinite, norms)) else 0.0  # a score of inf, capped
    added = _largest([*(bias[j] for j in seen), 0.0 if sink is None else sink])
    spread = 1 + d_k * abs(float(scale)) * _largest(norms) + capped + added + math.log(max(n_k, 1))
    reach = _largest([x for j in seen for x in values[j]])
    return Row([NAN] * d_v if poisoned else out, weights, lse, spread, reach)


def _dot(query: Vector, key: Vector, scale: Decimal) -> Decimal:
    return sum((scale * Decimal(a) * Decimal(b) for a, b in zip(query, key, strict=True)), ZERO)


def _capped(score: Decimal, softcap: float | None) -> Decimal:
    if softcap is None or score.is_nan():
        return score
    cap = Decimal(softcap)
    ratio = score / cap
    if abs(ratio) > 100:
        return cap.copy_sign(score)
    grown = (2 * ratio).exp()
    return cap * (grown - 1) / (grown + 1)


def _softmax(scores: Mapping[int, Decimal], sink: float | None) -> tuple[dict[int, Decimal], Decimal]:
    """The weight of each key, and the log of the denominator, in which the sink counts too."""
    terms = [*scores.values(), *([] if sink is None else [Decimal(sink)])]
    if any(term.is_nan() for term in terms):
        return {}, NAN
    if INF in terms:  # inf - inf poisons every weight; the logarithm of an infinite sum is inf
        return {}, INF
    peak = max(terms, default=-INF)
    if peak == -INF:
        return {}, -INF
    powers = {j: _power(score - peak) for j, score in scores.items()}
    total = sum(powers.values(), ZERO) + (ZERO if sink is None else _power(Decimal(sink) - peak))
    return {j: power / total for j, power in powers.items()}, peak + total.ln()


def _power(exponent: Decimal) -> Decimal:
    return exponent.exp() if exponent > -2000 else ZERO  # far below the last digit


def _largest(numbers: Vector) -> float:
    return max((abs(x) for x in numbers if math.isfinite(x)), default=0.0)
