"""Multi-head attention: project, split into heads, attend, merge, project.

Functions first, the class last. Weights multiply from the right: ``x @ w``, ``w`` is ``(d_in, d_out)``.
"""

from __future__ import annotations  # numpy.random is loaded when it is used, not when it is named

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from headwise.core.attention import AttentionSteps, attention_steps
from headwise.core.describe import Line, describe
from headwise.core.gradients import attention_vjp
from headwise.core.products import Product, over_tokens, project, project_all
from headwise.core.shapes import (
    Array,
    Faults,
    Shape,
    array,
    computing_dtype,
    flag,
    generator,
    gradient_of,
    integer,
    result_dtype,
    words,
)


class MultiHeadSteps(NamedTuple):
    """Every intermediate of a multi-head layer, in the order in which it is computed. Print it.

    Attributes
    ----------
    x, q, k, v : ndarray, shape (B, n, d_model)
        The tokens, and their three projections.
    q_heads, k_heads, v_heads : ndarray, shape (B, H, n, d_head)
        The projections, split into heads.
    attention : AttentionSteps
        Every step of the heads' attention.
    scores, masked, weights : ndarray, shape (B, H, n, n)
        Of these, the ones that are printed.
    heads : ndarray, shape (B, H, n, d_head)
        The heads' output.
    merged, out : ndarray, shape (B, n, d_model)
        The heads side by side again, and their projection.
    """

    x: Array  # (B, n, d_model)
    q: Array  # (B, n, d_model)  x w_q
    k: Array  # (B, n, d_model)  x w_k
    v: Array  # (B, n, d_model)  x w_v
    q_heads: Array  # (B, H, n, d_head)  q split into heads
    k_heads: Array  # (B, H, n, d_head)
    v_heads: Array  # (B, H, n, d_head)
    attention: AttentionSteps  # of the heads
    merged: Array  # (B, n, d_model)  the heads side by side again
    out: Array  # (B, n, d_model)  merged w_o

    @property
    def scores(self) -> Array:
        """``q_heads k_heads^T / sqrt(d_head)``."""
        return self.attention.scores

    @property
    def masked(self) -> Array:
        """The scores, ``-inf`` where a token may not attend."""
        return self.attention.masked

    @property
    def weights(self) -> Array:
        """What each token gives to each token, per head."""
        return self.attention.weights

    @property
    def heads(self) -> Array:
        """The output of the heads."""
        return self.attention.out

    def __repr__(self) -> str:
        return _describe(self)


# ------------------------------------------------------------------------------------------- the pieces
def split_heads(x: Array, n_heads: int) -> Array:
    """(..., n, d_model) to (..., H, n, d_head): head h takes columns h * d_head to (h + 1) * d_head of every token.

    Reshape, *then* transpose. A reshape straight to (..., H, n, d_head) would deal out pieces of neighbouring tokens.

    Examples
    --------
    >>> x = np.array([[1, 2, 3, 4], [5, 6, 7, 8]])  # two tokens, d_model 4
    >>> print(split_heads(x, 2).tolist())
    [[[1, 2], [5, 6]], [[3, 4], [7, 8]]]
    """
    *lead, n, d_model = x.shape
    apart = x.reshape(*lead, n, n_heads, d_model // n_heads)  # (..., n, H, d_head)
    return np.swapaxes(apart, -3, -2)  # (..., H, n, d_head)


def merge_heads(heads: Array) -> Array:
    """(..., H, n, d_head) to (..., n, d_model): the inverse of :func:`split_heads`.

    Examples
    --------
    >>> print(merge_heads(np.array([[[1, 2], [5, 6]], [[3, 4], [7, 8]]])).tolist())
    [[1, 2, 3, 4], [5, 6, 7, 8]]
    """
    together = np.swapaxes(heads, -3, -2)  # (..., n, H, d_head)
    *lead, n, n_heads, d_head = together.shape
    return together.reshape(*lead, n, n_heads * d_head)  # (..., n, d_model)


def _multi_head(arrays: list[Array], n_heads: int, causal: bool) -> MultiHeadSteps:
    """The layer over x, w_q, w_k, w_v, w_o, already checked."""
    x, w_q, w_k, w_v, w_o = _computed(arrays)
    (q, k, v), (q_heads, k_heads, v_heads) = _projected(x, w_q, w_k, w_v, n_heads)
    steps = attention_steps(q_heads, k_heads, v_heads, causal=causal)  # weights (..., H, n, n), out (..., H, n, d_head)
    merged, out = _joined(steps.out, w_o)
    return MultiHeadSteps(x, q, k, v, q_heads, k_heads, v_heads, steps, merged, out)


def _projected(x: Array, w_q: Array, w_k: Array, w_v: Array, n_heads: int) -> tuple[list[Array], list[Array]]:
    """q, k and v, and the same three split into heads."""
    q, k, v = project_all([Product(x, w) for w in (w_q, w_k, w_v)])  # (..., n, d_model) each
    return [q, k, v], [split_heads(projected, n_heads) for projected in (q, k, v)]  # (..., H, n, d_head)


def _joined(heads: Array, w_o: Array) -> tuple[Array, Array]:
    """The heads side by side again, and their projection."""
    merged = merge_heads(heads)  # (..., n, d_model)
    return merged, project(merged, w_o)  # (..., n, d_model)


def _multi_head_vjp(arrays: list[Array], n_heads: int, causal: bool) -> tuple[Array, Callable[[Array], list[Array]]]:
    """The output of the layer, and what leads from its gradient to those of x, w_q, w_k, w_v, w_o."""
    x, w_q, w_k, w_v, w_o = _computed(arrays, copy=True)  # ours: a step in place on the weights does not reach vjp
    _, (q_heads, k_heads, v_heads) = _projected(x, w_q, w_k, w_v, n_heads)
    heads, heads_vjp = attention_vjp(q_heads, k_heads, v_heads, causal=causal)
    merged, out = _joined(heads, w_o)

    def vjp(d_out: Array) -> list[Array]:
        d_heads = heads_vjp(split_heads(project(d_out, w_o.T), n_heads))  # (..., H, n, d_head) each
        d_q, d_k, d_v = (merge_heads(gradient) for gradient in (d_heads.q, d_heads.k, d_heads.v))
        inputs = [Product(d, w.T) for d, w in ((d_q, w_q), (d_k, w_k), (d_v, w_v))]
        weights = [over_tokens(*pair) for pair in ((x, d_q), (x, d_k), (x, d_v), (merged, d_out))]
        by_q, by_k, by_v, *d_weights = project_all([*inputs, *weights])
        with np.errstate(all="ignore"):
            return [by_q + by_k + by_v, *d_weights]  # x comes in by three ways

    return out, vjp


def _computed(arrays: list[Array], copy: bool = False) -> list[Array]:
    """The arrays in the type in which all of them together are computed."""
    computing = computing_dtype(result_dtype(*(each.dtype for each in arrays)))
    return [each.astype(computing, copy=copy) for each in arrays]


def _cast(array: Array, dtype: np.dtype[Any]) -> Array:
    with np.errstate(all="ignore"):  # a float16 that is too large is inf, one too small is 0
        return array.astype(dtype, copy=False)


# -------------------------------------------------------------------------------------------- checking
def _checked(
    faults: Faults, x: Any, weights: dict[str, Any], heads_name: str, heads: Any, causal: Any
) -> tuple[list[Array], int, bool, np.dtype[Any]]:
    """The arguments of :func:`_multi_head`, and the dtype of the result."""
    n_heads = integer(faults, heads_name, heads, 1, "a number of heads")
    causal = flag(faults, "causal", causal, "other masks: scaled_dot_product_attention on the split heads")
    arrays = {name: array(faults, name, value) for name, value in {"x": x, **weights}.items()}
    given = arrays.pop("x")
    if given is not None and given.ndim not in (2, 3):
        faults.value("x", "(b, n, d_model) or (n, d_model)", words(given.shape))
    elif given is not None and all(weight is not None for weight in arrays.values()):
        d_model = _width(faults, given, {name: weight.shape for name, weight in arrays.items() if weight is not None})
        if n_heads and d_model % n_heads:
            expected = f"a number that divides d_model = {d_model}"
            faults.value(heads_name, expected, str(n_heads), f"d_head = d_model / {heads_name}")
    faults.raise_any()
    known = [value for value in (given, *arrays.values()) if value is not None]
    return known, n_heads, causal, result_dtype(*(value.dtype for value in known))


def _width(faults: Faults, x: Array, weights: dict[str, Shape]) -> int:
    """d_model: the width of x, or of the weights where all of them agree that it is x that does not fit."""
    d_model: int = x.shape[-1]
    first: Shape = next(iter(weights.values()))
    if first != (d_model, d_model) and len(first) == 2 and first[0] == first[1] and set(weights.values()) == {first}:
        expected = f"(..., n, d_model) with d_model = {first[0]} as the weights are {words(first)}"
        faults.value("x", expected, words(x.shape))
        return first[0]
    for name, shape in weights.items():
        if shape != (d_model, d_model):
            expected = f"(d_model, d_model) = {words((d_model, d_model))} as x is {words(x.shape)}"
            faults.value(name, expected, words(shape))
    return d_model


def _like_out(function: str, d_out: Any, shape: Shape, computing: np.dtype[Any]) -> Array:
    """d_out in the computing type, checked: of the shape of the output, which is never stretched to."""
    faults = Faults(function)
    axes = "(b, n, d_model)" if len(shape) == 3 else "(n, d_model)"
    given = gradient_of(faults, "d_out", d_out, "out", shape, axes)
    faults.raise_any()
    assert given is not None  # its absence is a fault
    return _cast(given, computing)


# -------------------------------------------------------------------------------------- public functions
LayerVjp = Callable[[ArrayLike], tuple[Array, dict[str, Array]]]


def multi_head_attention(
    x: ArrayLike,
    w_q: ArrayLike,
    w_k: ArrayLike,
    w_v: ArrayLike,
    w_o: ArrayLike,
    heads: int,
    causal: bool = False,
) -> Array:
    """Multi-head self-attention with given weights.

    Parameters
    ----------
    x : array_like, shape (b, n, d_model) or (n, d_model)
        Tokens.
    w_q, w_k, w_v, w_o : array_like, shape (d_model, d_model)
        Projections, used as ``x @ w``; PyTorch stores their transposes. Head h owns columns ``h d_head`` to
        ``(h + 1) d_head`` of the first three.
    heads : int
        Number of heads; divides ``d_model``. Each has ``d_head = d_model / heads``, and its scores are scaled by
        ``1/sqrt(d_head)``.
    causal : bool
        Token i attends to tokens 0 to i.

    Returns
    -------
    ndarray, shape of x
        In the float type of all arguments together.

    Raises
    ------
    TypeError
        If an argument is of the wrong kind.
    ValueError
        If shapes do not fit or ``heads`` does not divide ``d_model``.

    References
    ----------
    .. [1] Vaswani et al., "Attention Is All You Need", NeurIPS 2017, section 3.2.2.

    Examples
    --------
    >>> x, eye, none = np.array([[1.0, 2, 3, 4], [5, 6, 7, 8]]), np.eye(4), np.zeros((4, 4))
    >>> print(multi_head_attention(x, none, none, eye, eye, heads=2))  # equal scores: the mean over tokens
    [[3. 4. 5. 6.]
     [3. 4. 5. 6.]]
    """
    faults = Faults("multi_head_attention")
    weights = {"w_q": w_q, "w_k": w_k, "w_v": w_v, "w_o": w_o}
    arrays, n_heads, causal, dtype = _checked(faults, x, weights, "heads", heads, causal)
    return _cast(_multi_head(arrays, n_heads, causal).out, dtype)


def multi_head_attention_vjp(
    x: ArrayLike,
    w_q: ArrayLike,
    w_k: ArrayLike,
    w_v: ArrayLike,
    w_o: ArrayLike,
    heads: int,
    causal: bool = False,
) -> tuple[Array, LayerVjp]:
    """Multi-head self-attention with given weights, and the gradients of its output, in linear memory.

    Parameters
    ----------
    x : array_like, shape (b, n, d_model) or (n, d_model)
        Tokens.
    w_q, w_k, w_v, w_o : array_like, shape (d_model, d_model)
        Projections, used as ``x @ w``.
    heads : int
        Number of heads; divides ``d_model``.
    causal : bool
        Token i attends to tokens 0 to i.

    Returns
    -------
    out : ndarray, shape of x
        As :func:`multi_head_attention` gives it, up to rounding.
    vjp : callable
        ``vjp(d_out)`` returns ``(d_x, {"w_q": d_w_q, "w_k": d_w_k, "w_v": d_w_v, "w_o": d_w_o})``, the gradients of
        ``sum(out * d_out)``, each of the shape and the float type of its argument; those of the weights are summed
        over batch and tokens. ``d_out`` has the shape of ``out``. It may be called more than once, and belongs to the
        arguments as they were: what is done to the arrays later does not reach it.

    Raises
    ------
    TypeError
        If an argument, or ``d_out``, is of the wrong kind.
    ValueError
        If shapes do not fit or ``heads`` does not divide ``d_model``.

    Notes
    -----
    ``d_w_o = merged^T d_out``; ``d_out w_o^T``, split into heads, goes through :func:`attention_vjp`; of what comes
    back, merged again, ``d_w_q = x^T d_q`` and likewise for k and v, and ``d_x = d_q w_q^T + d_k w_k^T + d_v w_v^T``.

    Examples
    --------
    >>> x, eye, none = np.array([[1.0, 2, 3, 4], [5, 6, 7, 8]]), np.eye(4), np.zeros((4, 4))
    >>> out, vjp = multi_head_attention_vjp(x, none, none, eye, eye, heads=2)  # equal scores: the mean over tokens
    >>> d_x, d_weights = vjp([[1.0, 0, 0, 0], [0, 0, 0, 0]])
    >>> print(d_x)  # half of out[0, 0] comes from each token
    [[0.5 0.  0.  0. ]
     [0.5 0.  0.  0. ]]
    >>> print(d_weights["w_o"][:, 0])  # what w_o found to project: the first row of out
    [3. 4. 5. 6.]
    """
    weights = {"w_q": w_q, "w_k": w_k, "w_v": w_v, "w_o": w_o}
    return _with_vjp("multi_head_attention_vjp", x, weights, "heads", heads, causal)


def _with_vjp(
    function: str, x: Any, weights: dict[str, Any], heads_name: str, heads: Any, causal: Any
) -> tuple[Array, LayerVjp]:
    """Check, compute, and dress the vjp: d_out is checked, and every gradient gets the type of its argument."""
    arrays, n_heads, causal, dtype = _checked(Faults(function), x, weights, heads_name, heads, causal)
    out, gradients = _multi_head_vjp(arrays, n_heads, causal)
    types, shape, computing = [result_dtype(each.dtype) for each in arrays], out.shape, out.dtype

    def vjp(d_out: ArrayLike) -> tuple[Array, dict[str, Array]]:
        given = _like_out(f"{function}'s vjp", d_out, shape, computing)
        d_x, *d_weights = (_cast(each, own) for each, own in zip(gradients(given), types, strict=True))
        return d_x, dict(zip(weights, d_weights, strict=True))

    return _cast(out, dtype), vjp


class MultiHeadSelfAttention:
    """A multi-head self-attention layer that holds its four weights and nothing else.

    Calling it changes nothing in it: it may be used from many threads, pickled and copied.

    Parameters
    ----------
    d_model : int
        Width of the tokens.
    n_heads : int
        Number of heads; divides ``d_model``.
    seed : int or numpy.random.Generator
        The weights are drawn in the order w_q, w_k, w_v, w_o from ``default_rng(seed)``: normal, standard deviation
        ``1/sqrt(d_model)``.

    Attributes
    ----------
    w_q, w_k, w_v, w_o : ndarray of float64, shape (d_model, d_model)
        Used as ``x @ w``. They may be replaced by arrays of the same shape.

    Raises
    ------
    TypeError
        If an argument is not an integer.
    ValueError
        If ``n_heads`` does not divide ``d_model``.

    Examples
    --------
    >>> layer = MultiHeadSelfAttention(d_model=8, n_heads=2, seed=0)
    >>> out, weights = layer(np.ones((3, 5, 8)), causal=True)
    >>> print(out.shape, weights.shape)
    (3, 5, 8) (3, 2, 5, 5)
    """

    def __init__(self, d_model: int, n_heads: int, seed: int | np.random.Generator = 0) -> None:
        faults = Faults("MultiHeadSelfAttention")
        self.d_model = integer(faults, "d_model", d_model, 1, "the width of the tokens", most=2**20)
        self.n_heads = integer(faults, "n_heads", n_heads, 1, "a number of heads")
        if not faults.found and self.d_model % self.n_heads:
            expected = f"a number that divides d_model = {self.d_model}"
            faults.value("n_heads", expected, str(self.n_heads), "d_head = d_model / n_heads")
        rng = generator(faults, "seed", seed)
        faults.raise_any()
        assert rng is not None  # its absence is a fault
        size = (self.d_model, self.d_model)
        deviation = 1 / np.sqrt(self.d_model)
        self.w_q, self.w_k, self.w_v, self.w_o = (rng.normal(scale=deviation, size=size) for _ in range(4))

    def __call__(self, x: ArrayLike, causal: bool = False) -> tuple[Array, Array]:
        """Apply the layer.

        Parameters
        ----------
        x : array_like, shape (b, n, d_model) or (n, d_model)
            Tokens.
        causal : bool
            Token i attends to tokens 0 to i.

        Returns
        -------
        out : ndarray, shape of x
            In the float type of ``x`` and the weights together: float64, unless the weights are replaced by others.
        weights : ndarray, shape (b, n_heads, n, n) or (n_heads, n, n)
            What each token gives to each token, per head; the same type.

        Raises
        ------
        TypeError, ValueError
            If ``x`` is of the wrong kind or shape.
        """
        steps, dtype = self._steps("MultiHeadSelfAttention", x, causal)
        return _cast(steps.out, dtype), _cast(steps.weights, dtype)

    def vjp(self, x: ArrayLike, causal: bool = False) -> tuple[Array, LayerVjp]:
        """Apply the layer, without its weights of attention, and give the gradients of its output, in linear memory.

        Parameters
        ----------
        x : array_like, shape (b, n, d_model) or (n, d_model)
            Tokens.
        causal : bool
            Token i attends to tokens 0 to i.

        Returns
        -------
        out : ndarray, shape of x
            As a call gives it, up to rounding.
        vjp : callable
            ``vjp(d_out)`` returns ``(d_x, {"w_q": d_w_q, "w_k": d_w_k, "w_v": d_w_v, "w_o": d_w_o})``, as that of
            :func:`multi_head_attention_vjp` does.

        Raises
        ------
        TypeError, ValueError
            If ``x``, or ``d_out``, is of the wrong kind or shape.

        Examples
        --------
        >>> layer, x = MultiHeadSelfAttention(d_model=4, n_heads=2), np.eye(4)
        >>> out, vjp = layer.vjp(x)
        >>> d_x, d_weights = vjp(2 * out)  # the gradient of sum(out * out)
        >>> for name, gradient in d_weights.items():
        ...     setattr(layer, name, getattr(layer, name) - 0.01 * gradient)
        >>> print((layer(x)[0] ** 2).sum() < (out**2).sum())
        True
        """
        return _with_vjp("MultiHeadSelfAttention.vjp", x, self._weights(), "n_heads", self.n_heads, causal)

    def steps(self, x: ArrayLike, causal: bool = False) -> MultiHeadSteps:
        """Apply the layer and keep every intermediate, the split into heads and their merge included; print the result.

        Parameters
        ----------
        x, causal
            As in a call.

        Returns
        -------
        MultiHeadSteps
            ``x``, ``q``, ``k``, ``v`` (b, n, d_model); ``q_heads``, ``k_heads``, ``v_heads`` (b, H, n, d_head);
            ``attention``, the steps of the heads; ``merged`` and ``out`` (b, n, d_model), all in the computing type.

        Raises
        ------
        TypeError, ValueError
            As a call does.

        Examples
        --------
        >>> steps = MultiHeadSelfAttention(4, 2).steps(np.ones((3, 4)))
        >>> print(steps.q.shape, steps.q_heads.shape, steps.merged.shape)
        (3, 4) (2, 3, 2) (3, 4)
        """
        return self._steps("MultiHeadSelfAttention.steps", x, causal)[0]

    def _steps(self, function: str, x: Any, causal: Any) -> tuple[MultiHeadSteps, np.dtype[Any]]:
        faults = Faults(function)
        arrays, n_heads, causal, dtype = _checked(faults, x, self._weights(), "n_heads", self.n_heads, causal)
        return _multi_head(arrays, n_heads, causal), dtype

    def _weights(self) -> dict[str, Array]:
        return {"w_q": self.w_q, "w_k": self.w_k, "w_v": self.w_v, "w_o": self.w_o}

    def __repr__(self) -> str:
        return f"MultiHeadSelfAttention(d_model={self.d_model}, n_heads={self.n_heads})"


# ------------------------------------------------------------------------------------------- the print
def _describe(steps: MultiHeadSteps) -> str:
    batch = "B, " if steps.x.ndim == 3 else ""
    whole, split, square = f"({batch}n, d_model)", f"({batch}H, n, d_head)", f"({batch}H, n, n)"
    causal = steps.masked is not steps.attention.biased
    return describe(
        [
            Line("x", whole, steps.x, "the tokens"),
            Line("q", whole, steps.q, "x w_q"),
            Line("k", whole, steps.k, "x w_k"),
            Line("v", whole, steps.v, "x w_v"),
            Line("q_heads", split, steps.q_heads, "q split: reshape, then transpose"),
            Line("k_heads", split, steps.k_heads, "k split"),
            Line("v_heads", split, steps.v_heads, "v split"),
            Line("scores", square, steps.scores, "q_heads k_heads^T / sqrt(d_head)"),
            Line("masked", square, steps.masked, "-inf above the diagonal" if causal else "as scores: no mask"),
            Line("weights", square, steps.weights, "softmax over the keys"),
            Line("heads", split, steps.heads, "weights v_heads"),
            Line("merged", whole, steps.merged, "heads merged: transpose, then reshape"),
            Line("out", whole, steps.out, "merged w_o"),
        ]
    )
