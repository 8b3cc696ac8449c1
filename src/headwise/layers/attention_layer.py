"""A layer of attention as models have it: grouped heads, cross attention, biases, a transform of q and k, a cache.

Weights multiply from the right: ``x @ w``, ``w`` is ``(d_in, d_out)``. How a call is checked is in checking.py, what it
computes in forward.py.
"""

from __future__ import annotations  # numpy.random is loaded when it is used, not when it is named

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from headwise.core.masks import Mask
from headwise.core.positions import Alibi
from headwise.core.shapes import (
    Array,
    Faults,
    checked_scale,
    computing_dtype,
    flag,
    generator,
    given_as,
    gradient_of,
    result_dtype,
    words,
)
from headwise.layers.checking import (
    ARRAYS,
    Options,
    Sizes,
    check_cache,
    check_options,
    check_weights,
    checked_tokens,
    fitted,
    known_sizes,
    new_sizes,
)
from headwise.layers.forward import Backward, Call, cast, forward
from headwise.layers.transforms import Transform


class MultiHeadGradients(NamedTuple):
    """Gradients with regard to what a layer was given and what it holds, each of the shape of that array.

    Attributes
    ----------
    query, key, value : ndarray, shapes of query, key and value
        In the float type of each. None for a key or value that was not given: what it adds is in ``query``, or ``key``.
    weights : dict of ndarray
        ``w_q``, ``w_k``, ``w_v``, ``w_o``, the biases that the layer has, and its learned rows ``bias_k``, ``bias_v``.
    transform : dict of ndarray
        Of the transform's own weights, by the names that it gives them; empty where it has none.
    bias : ndarray, shape of bias, or None
        None where no array was given.
    sinks : ndarray, shape (H,), or None
        None where none were given.
    """

    query: Array
    key: Array | None
    value: Array | None
    weights: dict[str, Array]
    transform: dict[str, Array]
    bias: Array | None = None
    sinks: Array | None = None


MultiHeadVjp = Callable[[ArrayLike], MultiHeadGradients]


class MultiHeadAttention:
    """A layer of attention: projections into heads, a transform of queries and keys, attention, and a projection back.

    It holds its weights and nothing else. Calling it changes nothing in it: it may be used from many threads, pickled
    and copied. A call that fails or is interrupted takes the rows back that it appended to a ``KVCache``.

    Parameters
    ----------
    d_model : int
        Width of the queries' tokens, and of the output.
    n_heads : int
        Number of heads H.
    n_kv_heads : int, optional
        Number of key/value heads G, which divides ``n_heads``; by default ``n_heads``. Query head h reads key head
        ``h // (n_heads // n_kv_heads)``.
    d_head : int, optional
        Width of a head; by default ``d_model / n_heads``.
    d_key, d_value : int, optional
        Widths of the tokens of ``key`` and ``value``; by default ``d_model``.
    use_bias : bool
        Whether each projection adds a bias, zeros to begin with.
    transform : callable, optional
        ``transform(q, k, q_positions, k_positions) -> (q, k)``, between projection and attention:
        :mod:`headwise.transforms` has some.
    scale : float, optional
        Multiplies the scores; by default ``1/sqrt(d_head)``. T5 has 1. The ``scale`` of a call comes before it.
    seed : int or numpy.random.Generator
        The weights are drawn in the order w_q, w_k, w_v, w_o from ``default_rng(seed)``: normal, standard deviation
        ``1/sqrt(d_in)``.

    Attributes
    ----------
    w_q : ndarray, shape (d_model, H d_head)
    w_k : ndarray, shape (d_key, G d_head)
    w_v : ndarray, shape (d_value, G d_head)
    w_o : ndarray, shape (H d_head, d_model)
        Used as ``x @ w``. They may be replaced by arrays of the same shape.
    b_q, b_k, b_v, b_o : ndarray, shapes (H d_head,), (G d_head,), (G d_head,), (d_model,), or None
        Biases. They may be replaced likewise.
    bias_k, bias_v : ndarray, shape (G, m, d_head), or None
        Learned keys and values, which :meth:`from_arrays` takes. They may be replaced, both together.
    d_model, n_heads, n_kv_heads, d_head, d_key, d_value, transform, scale
        As given.

    Raises
    ------
    TypeError
        If an argument is of the wrong kind.
    ValueError
        If sizes do not fit.

    Examples
    --------
    >>> from headwise.layers.transforms import rotary
    >>> layer = MultiHeadAttention(d_model=8, n_heads=4, n_kv_heads=2, transform=rotary(style="half"))
    >>> out = layer(np.ones((3, 5, 8)), causal=True)
    >>> memory = np.ones((3, 7, 8))
    >>> out, weights = layer(out, memory, return_weights=True)
    >>> print(out.shape, weights.shape)
    (3, 5, 8) (3, 4, 5, 7)
    """

    def __init__(
        self,
        d_model: int,
        n_heads: int,
        *,
        n_kv_heads: int | None = None,
        d_head: int | None = None,
        d_key: int | None = None,
        d_value: int | None = None,
        use_bias: bool = False,
        transform: Callable[..., Any] | None = None,
        scale: float | None = None,
        seed: int | np.random.Generator = 0,
    ) -> None:
        faults = Faults("MultiHeadAttention")
        sizes = new_sizes(faults, d_model, n_heads, n_kv_heads, d_head, d_key, d_value)
        use_bias = flag(faults, "use_bias", use_bias)
        _check_transform(faults, transform)
        scale = _own_scale(faults, scale)
        rng = generator(faults, "seed", seed)
        faults.raise_any()
        assert rng is not None  # its absence is a fault
        arrays: dict[str, Any] = {}
        for name, (_, shape) in sizes.shapes().items():
            if len(shape) == 2:
                arrays[name] = rng.normal(scale=1 / np.sqrt(shape[0]), size=shape)
            else:
                arrays[name] = np.zeros(shape) if use_bias else None
        self._keep(sizes, arrays, transform, scale)

    def _keep(self, sizes: Sizes, arrays: dict[str, Any], transform: Any, scale: float | None) -> None:
        self.d_model, self.n_heads, self.n_kv_heads, self.d_head, self.d_key, self.d_value = sizes
        self.w_q, self.w_k, self.w_v, self.w_o = (arrays[name] for name in ("w_q", "w_k", "w_v", "w_o"))
        self.b_q, self.b_k, self.b_v, self.b_o = (arrays.get(name) for name in ("b_q", "b_k", "b_v", "b_o"))
        self.bias_k, self.bias_v = (arrays.get(name) for name in ("bias_k", "bias_v"))
        self.transform, self.scale = transform, scale

    @classmethod
    def from_arrays(
        cls,
        w_q: ArrayLike,
        w_k: ArrayLike,
        w_v: ArrayLike,
        w_o: ArrayLike,
        n_heads: int,
        *,
        n_kv_heads: int | None = None,
        b_q: ArrayLike | None = None,
        b_k: ArrayLike | None = None,
        b_v: ArrayLike | None = None,
        b_o: ArrayLike | None = None,
        bias_k: ArrayLike | None = None,
        bias_v: ArrayLike | None = None,
        transform: Callable[..., Any] | None = None,
        scale: float | None = None,
        d_model: int | None = None,
        d_head: int | None = None,
    ) -> MultiHeadAttention:
        """Make a layer of the weights of a model. They are kept as they are, not copied: a memory map stays one.

        Parameters
        ----------
        w_q : array_like, shape (d_model, H d_head)
            Weights are for ``x @ w``; PyTorch stores their transposes: pass ``weight.T``.
        w_k : array_like, shape (d_key, G d_head)
        w_v : array_like, shape (d_value, G d_head)
        w_o : array_like, shape (H d_head, d_model)
        n_heads : int
            Number of heads H.
        n_kv_heads : int, optional
            Number of key/value heads G; by default what the columns of ``w_k`` say.
        b_q : array_like, shape (H d_head,), optional
            Biases; any of them may be left out.
        b_k, b_v : array_like, shape (G d_head,), optional
        b_o : array_like, shape (d_model,), optional
        bias_k, bias_v : array_like, shape (G, m, d_head), optional
            Learned keys and values, both or neither: every query sees them besides the keys of a call, and after them.
            They are neither projected nor transformed, and no mask, causal or bias reaches them. PyTorch's
            ``bias_k`` is ``(1, 1, G d_head)``, here ``bias_k.reshape(G, 1, d_head)``; its ``add_zero_attn`` is one
            more row of zeros in both.
        transform : callable, optional
        scale : float, optional
            As for the class.
        d_model, d_head : int, optional
            Widths that the weights must have. Without them the weights alone say: some that are not transposed fit
            each other as those of another layer.

        Returns
        -------
        MultiHeadAttention

        Raises
        ------
        TypeError
            If an argument is of the wrong kind.
        ValueError
            If shapes do not fit each other. Everything that does not fit is named at once.

        Examples
        --------
        >>> eye = np.eye(4)
        >>> layer = MultiHeadAttention.from_arrays(eye, eye[:, :2], eye[:, :2], eye, n_heads=2, b_o=np.ones(4))
        >>> print(layer)
        MultiHeadAttention(d_model=4, n_heads=2, n_kv_heads=1, use_bias=True)
        """
        faults = Faults("MultiHeadAttention.from_arrays")
        known = known_sizes(faults, n_heads, n_kv_heads, d_model, d_head)
        _check_transform(faults, transform)
        scale = _own_scale(faults, scale)
        given = {"w_q": w_q, "w_k": w_k, "w_v": w_v, "w_o": w_o, "b_q": b_q, "b_k": b_k, "b_v": b_v, "b_o": b_o}
        given |= {"bias_k": bias_k, "bias_v": bias_v}
        sizes, arrays = fitted(faults, given, known)
        faults.raise_any()
        assert sizes is not None  # its absence is a fault
        layer = cls.__new__(cls)
        layer._keep(sizes, arrays, transform, scale)
        return layer

    def __call__(
        self,
        query: ArrayLike,
        key: ArrayLike | None = None,
        value: ArrayLike | None = None,
        mask: Mask | ArrayLike | None = None,
        *,
        causal: bool = False,
        bias: Alibi | ArrayLike | None = None,
        sinks: ArrayLike | None = None,
        scale: float | None = None,
        softcap: float | None = None,
        cache: Any = None,
        return_weights: bool = False,
    ) -> Any:
        """Apply the layer: by the engine, in linear memory, or with ``return_weights`` by the definition.

        Parameters
        ----------
        query : array_like, shape (b, n_q, d_model) or (n_q, d_model)
            Tokens that attend.
        key : array_like, shape (b, n_k, d_key) or (n_k, d_key), optional
            Tokens that are attended to; by default ``query``.
        value : array_like, shape (b, n_k, d_value) or (n_k, d_value), optional
            Tokens whose values are taken; by default ``key``.
        mask : array_like of bool, broadcasting to (b, H, n_q, n_k), or Mask, optional
            True = may attend. Without a batch axis, to (H, n_q, n_k).
        causal : bool
            Query i sees key j when ``j <= i + n_k - n_q``; with a cache, by each item's own positions.
        bias : array_like of float, broadcasting to (b, H, n_q, n_k), or :func:`headwise.alibi`, optional
            Added to the scores. With a cache, alibi without an offset goes by each item's own positions.
        sinks : array_like, shape (H,), optional
            Logits that count in the denominator only.
        scale : float, optional
            Multiplies the scores; by default the layer's own, which is ``1/sqrt(d_head)`` if none was given.
        softcap : float, optional
            ``c tanh(scores / c)``.
        cache : KVCache, optional
            Of keys and values, transformed, to which those of ``query`` are appended; ``query`` then sees all of them,
            and n_k counts the cache's slots, in mask and bias too. With ``key`` there is none, and with a window
            neither mask nor dense bias.
        return_weights : bool
            Whether to return the weights too.

        Returns
        -------
        out : ndarray, shape (b, n_q, d_model) or (n_q, d_model)
            In the float type of tokens and weights together.
        weights : ndarray, shape (b, H, n_q, n_k) or (H, n_q, n_k)
            What each query gives to each key, per head. Only with ``return_weights``. A layer with m learned keys has
            n_k + m of them, its own last.

        Raises
        ------
        TypeError
            If an argument is of the wrong kind.
        ValueError
            If shapes do not fit. Everything that does not fit is named at once, and the cache is as it was.

        Notes
        -----
        Positions for the transform are 0, 1, ... for queries and for keys, or what the cache says.

        Examples
        --------
        >>> eye, none = np.eye(2), np.zeros((2, 2))
        >>> layer = MultiHeadAttention.from_arrays(none, none, eye, eye, n_heads=1)  # equal scores: the mean
        >>> print(layer([[1.0, 2.0], [3.0, 4.0]], causal=True))
        [[1. 2.]
         [2. 3.]]
        """
        faults, options = Faults("MultiHeadAttention"), Options(mask, causal, bias, sinks, scale, softcap)
        return_weights = flag(faults, "return_weights", return_weights)
        return forward(self._checked(faults, (query, key, value), options, cache), return_weights)

    def vjp(
        self,
        query: ArrayLike,
        key: ArrayLike | None = None,
        value: ArrayLike | None = None,
        mask: Mask | ArrayLike | None = None,
        *,
        causal: bool = False,
        bias: Alibi | ArrayLike | None = None,
        sinks: ArrayLike | None = None,
        scale: float | None = None,
        softcap: float | None = None,
    ) -> tuple[Array, MultiHeadVjp]:
        """Apply the layer, and give the gradients of its output, in linear memory.

        Parameters
        ----------
        query, key, value, mask, causal, bias, sinks, scale, softcap
            As in a call.

        Returns
        -------
        out : ndarray, shape (b, n_q, d_model) or (n_q, d_model)
            As a call gives it.
        vjp : callable
            ``vjp(d_out) -> MultiHeadGradients``: of ``sum(out * d_out)`` with regard to ``query``, ``key``, ``value``,
            the layer's ``weights`` and biases, the weights of its ``transform``, ``bias`` and ``sinks``. It may be
            called more than once, and belongs to the arrays as they were: what is done to them later does not reach it.

        Raises
        ------
        TypeError
            If an argument, or ``d_out``, is of the wrong kind, or the transform has no vjp.
        ValueError
            If shapes do not fit.

        Notes
        -----
        There is no ``cache``: it holds keys and values as numbers, through which no gradient goes back. Give all tokens
        in one call.

        Examples
        --------
        >>> layer, x = MultiHeadAttention(d_model=4, n_heads=2, use_bias=True), np.eye(4)
        >>> out, vjp = layer.vjp(x, causal=True)
        >>> gradients = vjp(2 * out)  # of sum(out * out)
        >>> for name, gradient in gradients.weights.items():
        ...     setattr(layer, name, getattr(layer, name) - 0.01 * gradient)
        >>> print((layer(x, causal=True) ** 2).sum() < (out**2).sum())
        True
        """
        faults, options = Faults("MultiHeadAttention.vjp"), Options(mask, causal, bias, sinks, scale, softcap)
        if self.transform is not None and not isinstance(self.transform, Transform):
            faults.type("transform", "one with a method vjp, where gradients are asked for", given_as(self.transform))
        call = self._checked(faults, (query, key, value), options.copied(), None, copy=True)
        backward = Backward(call)
        types = {name: result_dtype(np.asarray(getattr(self, name)).dtype) for name in call.weights}
        kinds = [None if x is None else result_dtype(np.asarray(x).dtype) for x in (query, key, value)]
        out = call.given_back(backward.out)

        def vjp(d_out: ArrayLike) -> MultiHeadGradients:
            faults = Faults("MultiHeadAttention.vjp's vjp")
            axes = "(b, n_q, d_model)" if call.batched else "(n_q, d_model)"
            given = gradient_of(faults, "d_out", d_out, "out", out.shape, axes)
            faults.raise_any()
            assert given is not None  # its absence is a fault
            given = cast(given if call.batched else given[None], backward.out.dtype)
            inputs, weights, own, others = backward.gradients(given)
            tokens: list[Any] = [
                None if kind is None else cast(x if call.batched else x[0], kind)
                for x, kind in zip(_in_their_places(inputs, kinds), kinds, strict=True)
            ]
            weights = {name: cast(gradient, types[name]) for name, gradient in weights.items()}
            query, key, value = tokens
            return MultiHeadGradients(query, key, value, weights, own, others.bias, others.sinks)

        return out, vjp

    def _checked(self, faults: Faults, given: Any, options: Options, cache: Any, copy: bool = False) -> Call:
        """The call, with every array in the type in which all of them together are computed."""
        sizes = Sizes(self.d_model, self.n_heads, self.n_kv_heads, self.d_head, self.d_key, self.d_value)
        weights = check_weights(faults, sizes, {name: getattr(self, name) for name in ARRAYS})
        if options.scale is None:
            options = options._replace(scale=self.scale)
        tokens = checked_tokens(faults, sizes, *given)
        if cache is not None:
            check_cache(faults, cache, sizes, tokens, options)
        faults.raise_any()
        known = [x for x in tokens if x is not None]
        dtype = result_dtype(*(x.dtype for x in (*known, *weights.values())))
        options = check_options(faults, sizes, known, options, 0 if cache is None else cache.k.shape[2], dtype)
        computing = computing_dtype(dtype)
        batched = known[0].ndim == 3
        arrays = [(x if batched else x[None]).astype(computing, copy=copy) for x in known]
        query, key, value = (arrays[min(i, len(arrays) - 1)] for i in range(3))  # a key stands for its value, too
        weights = {name: x.astype(computing, copy=copy) for name, x in weights.items()}
        return Call(sizes, (query, key, value), weights, self.transform, options, cache, batched, dtype)

    def summary(self) -> str:
        """Tell the layer's shapes and how many parameters it has, as text to print.

        Returns
        -------
        str
            One line for each weight, one for all of them.

        Raises
        ------
        TypeError, ValueError
            If a weight was replaced by something that does not fit.

        Examples
        --------
        >>> print(MultiHeadAttention(d_model=8, n_heads=4, n_kv_heads=2).summary())
        MultiHeadAttention: 4 heads of d_head 2, 2 key/value heads, transform None
        w_q  (d_model, H d_head) = (8, 8)  64  float64
        w_k  (d_model, G d_head) = (8, 4)  32  float64
        w_v  (d_model, G d_head) = (8, 4)  32  float64
        w_o  (H d_head, d_model) = (8, 8)  64  float64
        192 parameters, 1,536 bytes
        """
        faults = Faults("MultiHeadAttention.summary")
        sizes = Sizes(self.d_model, self.n_heads, self.n_kv_heads, self.d_head, self.d_key, self.d_value)
        arrays = check_weights(faults, sizes, {name: getattr(self, name) for name in ARRAYS})
        faults.raise_any()
        letters = {name: axes for name, (axes, _) in sizes.shapes().items()}
        shapes = {name: f"{letters.get(name, '(G, m, d_head)')} = {words(x.shape)}" for name, x in arrays.items()}
        names = max(map(len, shapes))
        wide, long = max(map(len, shapes.values())), max(len(f"{x.size:,}") for x in arrays.values())
        lines = [f"{name:{names}}  {shapes[name]:{wide}}  {x.size:>{long},}  {x.dtype}" for name, x in arrays.items()]
        total, size = (sum(getattr(x, of) for x in arrays.values()) for of in ("size", "nbytes"))
        heads = f"{self.n_heads} heads of d_head {self.d_head}, {self.n_kv_heads} key/value heads"
        scale = "" if self.scale is None else f", scale {self.scale}"
        head = f"MultiHeadAttention: {heads}, transform {self.transform}{scale}"
        return "\n".join([head, *lines, f"{total:,} parameters, {size:,} bytes"])

    def __repr__(self) -> str:
        said: dict[str, Any] = {"d_model": self.d_model, "n_heads": self.n_heads}
        said |= {"n_kv_heads": self.n_kv_heads} if self.n_kv_heads != self.n_heads else {}
        said |= {"d_head": self.d_head} if self.d_head * self.n_heads != self.d_model else {}
        others = {"d_key": self.d_key, "d_value": self.d_value}
        said |= {name: width for name, width in others.items() if width != self.d_model}
        said |= {} if all(b is None for b in (self.b_q, self.b_k, self.b_v, self.b_o)) else {"use_bias": True}
        said |= {} if self.transform is None else {"transform": self.transform}
        said |= {} if self.scale is None else {"scale": self.scale}
        return f"MultiHeadAttention({', '.join(f'{name}={value!r}' for name, value in said.items())})"


def _check_transform(faults: Faults, transform: Any) -> None:
    if transform is not None and not callable(transform):
        expected = "None or a function (q, k, q_positions, k_positions) -> (q, k)"
        faults.type("transform", expected, given_as(transform))


def _own_scale(faults: Faults, scale: Any) -> float | None:
    return None if scale is None else checked_scale(faults, scale, 1)


def _in_their_places(inputs: list[Array], kinds: list[Any]) -> list[Array]:
    """What a key or value adds that was not given belongs to the query, or the key."""
    d_query, d_key, d_value = inputs
    with np.errstate(all="ignore"):
        if kinds[1] is None:
            return [d_query + d_key + d_value, d_key, d_value]
        return [d_query, d_key + d_value, d_value] if kinds[2] is None else inputs
