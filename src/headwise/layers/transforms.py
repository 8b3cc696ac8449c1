"""What may happen to queries and keys between projection and attention: rope, a norm of each head, several in turn.

A transform is a function ``(q, k, q_positions, k_positions) -> (q, k)`` of q (B, H, n_q, d_head) and k (B, G, n_k,
d_head); positions are (n,), or (B, n) where a cache tells them. Those here have a ``vjp`` too, and calling them changes
nothing in them.
"""

from __future__ import annotations  # help() then shows types as they are written

import math
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike

from headwise.core.frequencies import Frequencies
from headwise.core.rope import check_rope_options, rope, rope_vjp
from headwise.core.shapes import (
    Array,
    Faults,
    array,
    as_dtype,
    brief,
    computing_dtype,
    given_as,
    gradient_of,
    real,
    result_dtype,
    words,
)

TransformVjp = Callable[[Array, Array], tuple[Array, Array, dict[str, Array]]]


@runtime_checkable
class Transform(Protocol):
    """A transform with gradients.

    Its ``vjp`` takes what the transform takes and returns ``(q, k, back)``; ``back(d_q, d_k)`` returns the gradients of
    the q and k that were given, and a dict with those of the transform's own weights (empty where it has none).
    """

    def __call__(self, q: Array, k: Array, q_positions: Array, k_positions: Array) -> tuple[Array, Array]: ...

    def vjp(self, q: Array, k: Array, q_positions: Array, k_positions: Array) -> tuple[Array, Array, TransformVjp]: ...


# ------------------------------------------------------------------------------------------------- rope
class _Rotary:
    """Rope of queries and keys. Made by :func:`rotary`."""

    def __init__(self, options: dict[str, Any]) -> None:
        self.options = options

    def __call__(self, q: Array, k: Array, q_positions: Array, k_positions: Array) -> tuple[Array, Array]:
        return rope(q, q_positions, **self.options), rope(k, k_positions, **self.options)

    def vjp(self, q: Array, k: Array, q_positions: Array, k_positions: Array) -> tuple[Array, Array, TransformVjp]:
        q, q_vjp = rope_vjp(q, q_positions, **self.options)
        k, k_vjp = rope_vjp(k, k_positions, **self.options)
        return q, k, lambda d_q, d_k: (q_vjp(d_q), k_vjp(d_k), {})

    def __repr__(self) -> str:
        said = {name: repr(value) for name, value in self.options.items() if value is not None}
        if "frequencies" in said:
            angles, magnitude = self.options["frequencies"]
            ends = " to ".join(dict.fromkeys(f"{angle:.3g}" for angle in (angles[0], angles[-1])))
            times = "" if magnitude == 1 else f", times {magnitude:.5g}"
            said["frequencies"] = f"<{len(angles)} {'pair' if len(angles) == 1 else 'pairs'}: {ends}{times}>"
            del said["base"]  # not looked at
        return f"rotary({', '.join(f'{name}={value}' for name, value in said.items())})"


def rotary(
    *,
    style: str,
    base: float = 10_000.0,
    dims: int | None = None,
    frequencies: Frequencies | ArrayLike | None = None,
) -> Transform:
    """Make the transform that turns queries and keys by their positions: :func:`headwise.rope` for a layer.

    Parameters
    ----------
    style, base, dims, frequencies
        As for :func:`headwise.rope`, and copied.

    Returns
    -------
    Transform
        For ``transform=`` of :class:`headwise.MultiHeadAttention`.

    Raises
    ------
    TypeError, ValueError
        If an option is of the wrong kind, unknown, odd, or not finite.

    Examples
    --------
    >>> q = np.array([[[[1.0, 0.0], [1.0, 0.0]]]])  # one item, one head, two tokens
    >>> turned, _ = rotary(style="half")(q, q, np.arange(2), np.arange(2))
    >>> print(turned[0, 0].round(4))
    [[1.     0.    ]
     [0.5403 0.8415]]
    """
    faults = Faults("rotary")
    known = check_rope_options(faults, style, base, dims, frequencies)
    faults.raise_any()
    if known is not None:
        known.angles.flags.writeable = False
    return _Rotary({"style": style, "base": base, "dims": dims, "frequencies": known})


# -------------------------------------------------------------------------------------- a norm of each head
class _Norm:
    """Root-mean-square norm over the last axis, times a weight."""

    def __init__(self, weight: Array, eps: float) -> None:
        self.weight, self.eps = weight, eps

    def __call__(self, x: Array) -> Array:
        x, dtype = self._computed(x)
        with np.errstate(all="ignore"):
            normed, _, _ = self._normed(x)
            normed *= self.weight.astype(x.dtype)  # of one more array it would take a third longer
            return as_dtype(normed, dtype)

    def vjp(self, x: Array) -> tuple[Array, Callable[[Array], tuple[Array, Array]]]:
        x, dtype = self._computed(x)
        own = result_dtype(self.weight.dtype)
        with np.errstate(all="ignore"):
            weight = self.weight.astype(x.dtype)
            normed, inverse, scale = self._normed(x)

        def back(d_out: Array) -> tuple[Array, Array]:
            with np.errstate(all="ignore"):
                given = d_out.astype(x.dtype, copy=False)
                d_normed = given * weight
                along = np.einsum("...d,...d->...", d_normed, normed)[..., None] / x.shape[-1]
                d_x, d_weight = inverse * (d_normed - normed * along), given * normed
                if scale is not None:
                    d_x = d_x / scale
                if not np.isfinite(normed).all():  # a row that nobody sees: not 0 * nan
                    seen = (given != 0).any(axis=-1, keepdims=True)
                    d_x, d_weight = np.where(seen, d_x, 0), np.where(seen, d_weight, 0)
                d_weight = d_weight.reshape(-1, x.shape[-1]).sum(axis=0)
                return as_dtype(d_x, dtype), as_dtype(d_weight, own)

        with np.errstate(all="ignore"):
            return as_dtype(normed * weight, dtype), back

    def _computed(self, x: Array) -> tuple[Array, Any]:
        """x in the computing type, and the type of the result."""
        dtype = result_dtype(x.dtype)
        return np.asarray(x, computing_dtype(dtype)), dtype

    def _normed(self, x: Array) -> tuple[Array, Array, Array | None]:
        """x without the weight; 1 / root mean square of each row of x / scale; that scale, None where all are 1."""
        squares = np.einsum("...d,...d->...", x, x)[..., None] / x.shape[-1] + x.dtype.type(self.eps)
        inverse, limits = 1 / np.sqrt(squares), np.finfo(x.dtype)
        odd = ~((squares >= limits.tiny) & (squares <= limits.max))[..., 0]  # digits lost, overflowed, 0 or NaN
        if not odd.any():
            return x * inverse, inverse, None
        scale = np.ones(inverse.shape)
        scale[odd], inverse[odd] = self._scaled(x[odd].astype(np.float64))
        return (x / scale * inverse).astype(x.dtype, copy=False), inverse, scale

    def _scaled(self, rows: Array) -> tuple[Array, Array]:
        """A power of two near the largest entry of each row (n, d), and 1 / root mean square of the row divided by it.

        Near sqrt(eps), where that is larger; 1 for a row with NaN or inf.
        """
        largest = np.maximum(np.abs(rows).max(axis=-1, keepdims=True, initial=0), math.sqrt(self.eps))
        largest = np.where(largest < np.inf, largest, 1)
        scale = np.ldexp(1.0, np.frexp(largest)[1] - 1)
        squares = np.square(rows / scale).mean(axis=-1, keepdims=True) + self.eps / scale / scale
        return scale, 1 / np.sqrt(squares)


class _QKNorm:
    """A norm of each query and each key. Made by :func:`qk_norm`."""

    def __init__(self, q_norm: _Norm, k_norm: _Norm) -> None:
        self.q_norm, self.k_norm = q_norm, k_norm

    def __call__(self, q: Array, k: Array, q_positions: Array, k_positions: Array) -> tuple[Array, Array]:
        q, k = self._checked(q, k)
        return self.q_norm(q), self.k_norm(k)

    def vjp(self, q: Array, k: Array, q_positions: Array, k_positions: Array) -> tuple[Array, Array, TransformVjp]:
        q, k = self._checked(q, k)
        shapes = q.shape, k.shape
        q, q_vjp = self.q_norm.vjp(q)
        k, k_vjp = self.k_norm.vjp(k)

        def back(d_q: Array, d_k: Array) -> tuple[Array, Array, dict[str, Array]]:
            faults = Faults("qk_norm's vjp")
            of_q = gradient_of(faults, "d_q", d_q, "q", shapes[0])
            of_k = gradient_of(faults, "d_k", d_k, "k", shapes[1])
            faults.raise_any()
            assert of_q is not None
            assert of_k is not None  # its absence is a fault
            (d_q, d_q_weight), (d_k, d_k_weight) = q_vjp(of_q), k_vjp(of_k)
            return d_q, d_k, {"q_weight": d_q_weight, "k_weight": d_k_weight}

        return q, k, back

    def _checked(self, q: Any, k: Any) -> tuple[Array, Array]:
        faults = Faults("qk_norm")
        of_q, of_k = array(faults, "q", q), array(faults, "k", k)
        for name, x, norm in (("q_weight", of_q, self.q_norm), ("k_weight", of_k, self.k_norm)):
            if x is not None and norm.weight.shape != x.shape[-1:]:
                faults.value(name, f"(d_head,) = {words(x.shape[-1:])}", words(norm.weight.shape))
        faults.raise_any()
        assert of_q is not None
        assert of_k is not None  # its absence is a fault
        return of_q, of_k

    def __repr__(self) -> str:
        weights = f"{brief(self.q_norm.weight)}, {brief(self.k_norm.weight)}"
        return f"qk_norm({weights}, eps={self.q_norm.eps})"


def qk_norm(q_weight: ArrayLike, k_weight: ArrayLike, eps: float = 1e-6) -> Transform:
    """Make the transform that divides each head's query and key by its root mean square, as Qwen 3 and Gemma 3 do.

    Parameters
    ----------
    q_weight, k_weight : array_like, shape (d_head,)
        What queries and keys are multiplied by afterwards, the same for all heads; copied.
    eps : float
        Added to the mean square, at least 0.

    Returns
    -------
    Transform
        ``x / sqrt(mean(x^2) + eps) * weight``, also where x^2 does not fit the float type. Its vjp gives the gradients
        of both weights, as ``q_weight`` and ``k_weight``.

    Raises
    ------
    TypeError, ValueError
        If a weight is not one row of real numbers, or ``eps`` no finite number of at least 0; the transform, if heads
        are not as wide as their weight, and its vjp, if gradients do not fit.

    References
    ----------
    .. [1] Zhang, Sennrich, "Root Mean Square Layer Normalization", NeurIPS 2019; Henry et al., "Query-Key
       Normalization for Transformers", EMNLP 2020, for the place.

    Examples
    --------
    >>> q = np.array([[[[3.0, 4.0]]]])  # mean square 12.5
    >>> normed, _ = qk_norm([1.0, 1.0], [1.0, 1.0], eps=0.0)(q, q, np.arange(1), np.arange(1))
    >>> print(normed.round(4))
    [[[[0.8485 1.1314]]]]
    """
    faults = Faults("qk_norm")
    weights = [array(faults, name, x) for name, x in (("q_weight", q_weight), ("k_weight", k_weight))]
    for name, weight in zip(("q_weight", "k_weight"), weights, strict=True):
        if weight is not None and weight.ndim != 1:
            faults.value(name, "(d_head,)", words(weight.shape))
    number = real(faults, "eps", eps, "a finite number of at least 0")
    if number is not None and not 0 <= number < np.inf:
        faults.value("eps", "a finite number of at least 0", str(number))
    faults.raise_any()
    assert number is not None  # its absence is a fault
    norms = [_Norm(np.array(weight), number) for weight in weights]
    for norm in norms:
        norm.weight.flags.writeable = False
    return _QKNorm(*norms)


# -------------------------------------------------------------------------------------------- one after another
class _Composed:
    """Several transforms, one after the other. Made by :func:`compose`."""

    def __init__(self, parts: tuple[Any, ...]) -> None:
        self.parts = parts

    def __call__(self, q: Array, k: Array, q_positions: Array, k_positions: Array) -> tuple[Array, Array]:
        for part in self.parts:
            q, k = part(q, k, q_positions, k_positions)
        return q, k

    def vjp(self, q: Array, k: Array, q_positions: Array, k_positions: Array) -> tuple[Array, Array, TransformVjp]:
        faults = Faults("compose")
        for i, part in enumerate(self.parts):
            if not isinstance(part, Transform):
                faults.type(f"transforms[{i}]", "one with a method vjp, where gradients are asked for", given_as(part))
        faults.raise_any()
        vjps = []
        for part in self.parts:
            q, k, vjp = part.vjp(q, k, q_positions, k_positions)
            vjps.append(vjp)

        def back(d_q: Array, d_k: Array) -> tuple[Array, Array, dict[str, Array]]:
            weights: dict[str, Array] = {}
            for i in reversed(range(len(vjps))):
                d_q, d_k, own = vjps[i](d_q, d_k)
                weights = {f"{i}.{name}": gradient for name, gradient in own.items()} | weights
            return d_q, d_k, weights

        return q, k, back

    def __repr__(self) -> str:
        return f"compose({', '.join(map(repr, self.parts))})"


def compose(*transforms: Callable[..., Any]) -> Transform:
    """Make one transform of several, the first one first: ``compose(qk_norm(...), rotary(...))``.

    Parameters
    ----------
    transforms : callable
        Functions ``(q, k, q_positions, k_positions) -> (q, k)``.

    Returns
    -------
    Transform
        Its vjp needs those of all parts; gradients of their weights are called ``"0.q_weight"``, by the part's place.

    Raises
    ------
    TypeError
        If one is not callable.

    Examples
    --------
    >>> both = compose(qk_norm([1.0, 1.0], [2.0, 2.0], eps=0.0), rotary(style="half"))
    >>> q, k = both(np.array([[[[3.0, 3.0]]]]), np.array([[[[5.0, 5.0]]]]), np.array([0]), np.array([0]))
    >>> print(q, k)
    [[[[1. 1.]]]] [[[[2. 2.]]]]
    """
    faults = Faults("compose")
    for i, transform in enumerate(transforms):
        if not callable(transform):
            faults.type(
                f"transforms[{i}]", "a function (q, k, q_positions, k_positions) -> (q, k)", given_as(transform)
            )
    faults.raise_any()
    return _Composed(transforms)
