"""Weights of existing models as layers, and back.

Names are in patterns.py, where layers are in a checkpoint in found.py, which of them a prefix means in choosing.py,
what does not fit in fitting.py, promises.py and contradictions.py, the way back in exporting.py. Arrays stay what they
are: a weight stored as (out, in) is used as its transpose, without a copy, so a memory map stays one.
"""

from __future__ import annotations  # help() then shows types as they are written

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from headwise.core.shapes import Array, Faults, array, flag, given_as, integer
from headwise.layers.attention_layer import MultiHeadAttention
from headwise.layers.choosing import names_under, place_meant
from headwise.layers.configs import Settings, check_config, eps_of, read_settings, scale_of, source_of
from headwise.layers.contradictions import check_contradictions
from headwise.layers.exporting import to_state_dict
from headwise.layers.fitting import Fitting
from headwise.layers.found import Found, Place, attention_layers, heads_held, tables_of
from headwise.layers.patterns import OWN, PATTERNS, SEPARATE, Pattern, known_patterns, printed
from headwise.layers.positional import as_configured, check_positions
from headwise.layers.promises import check_promises
from headwise.layers.rope_configs import rope_of
from headwise.layers.saving import load, save
from headwise.layers.transforms import compose, qk_norm

__all__ = ["PATTERNS", "Found", "Pattern", "attention_layers", "from_state_dict", "load", "save", "to_state_dict"]


def from_state_dict(
    state: Mapping[str, Any],
    prefix: str | Found = "",
    *,
    n_heads: int | None = None,
    n_kv_heads: int | None = None,
    pattern: str | Pattern | Mapping[str, Any] | None = None,
    config: Mapping[str, Any] | None = None,
    transform: Callable[..., Any] | None = None,
    add_zero_attn: bool = False,
) -> MultiHeadAttention:
    """Make a layer of the weights of a model, by the names that they have there.

    Parameters
    ----------
    state : Mapping
        From names to arrays: an open checkpoint, or what ``state_dict()`` of PyTorch gives, as arrays.
    prefix : str or Found
        What stands before the layer's names, as :func:`attention_layers` tells it, or what it gave, whose pattern
        is then the default; or what stands before the names of everything around one layer of attention.
    n_heads, n_kv_heads : int, optional
        Numbers of heads; by default what ``config`` or the shapes say. Those of this layer, where ``state`` is one part
        of a model or heads were pruned.
    pattern : str, Pattern or Mapping, optional
        A name of :data:`PATTERNS`; by default the one whose names are there. A model that is not among them is
        described by a dictionary of its names after the prefix, ``{"w_q": "attn.query.weight", ...}``, with
        ``"layout": "conv1d"`` where weights are (in, out), ``"rope": "half"`` or ``"interleaved"`` where it has rope,
        and its ``"scale"`` where that is another, ``"beside"`` for arrays beside them that are not the layer's; or by a
        :class:`Pattern`. One array of all three, ``"w_qkv"``, is cut
        into the queries of all heads, then all keys, then all values; with ``"fused": "heads"`` into the query, key and
        value of each head, one head after the other, as BLOOM and GPT-NeoX keep them; with ``"fused": "groups"`` into
        the queries of each key head, its key and its value, as InternLM 2 keeps them. Its shape does not tell which.
    config : Mapping, optional
        The model's ``config.json``: heads, scale, and for models with rope all that it needs. Rope, alibi or relative
        positions that it says and the pattern does not have are an error, and so is a ``model_type`` of which it is
        not known that its attention has no positions, unless you describe the model yourself. Rope that you describe
        goes by what ``config`` says of it: base, stretching, and the part of each head that is turned.
        It must hold: two keys that say one number otherwise are an error, heads of another width than it means, which
        ``n_heads`` explains, arrays that it promises and ``state`` lacks, and keys of scores that no layer goes by.
    transform : callable, optional
        In place of what ``config`` says of positions; ``transforms.compose()`` does nothing. Norms of queries and keys
        that the state holds come before it.
    add_zero_attn : bool
        Whether a key and a value of zeros join the others, as in ``nn.MultiheadAttention``, which keeps no array for
        them.

    Returns
    -------
    MultiHeadAttention
        Its weights are views of the state's arrays; copies where q, k and v of each head lie beside each other.

    Raises
    ------
    TypeError
        If an argument is of the wrong kind.
    ValueError
        If names or shapes do not fit. All that are missing, extra or misshaped are named at once, with the transpose
        that would fit. A square weight fits both ways: compare one output with the model's.

    Notes
    -----
    Masks, causal or windows, are given in each call. So is T5's bias: ``relative_attention_bias.weight`` of the first
    layer goes, through :func:`headwise.relative_position_bias`, as ``bias=`` to every layer of its stack; in a
    decoder's stack with ``bidirectional=False``.

    Examples
    --------
    >>> names = [f"layer.0.attention.{name}" for name in ("self.query", "self.key", "self.value", "output.dense")]
    >>> state = {f"{name}.weight": np.eye(4) for name in names} | {f"{name}.bias": np.zeros(4) for name in names}
    >>> print(from_state_dict(state, "layer.0", n_heads=2))
    MultiHeadAttention(d_model=4, n_heads=2, use_bias=True)
    """
    faults = Faults("from_state_dict")
    if not isinstance(state, Mapping):
        faults.type("state", "a mapping from names to arrays", given_as(state))
    if isinstance(prefix, Found):
        pattern = (prefix.described or prefix.pattern) if pattern is None else pattern
        prefix = prefix.prefix
    if not isinstance(prefix, str):
        faults.type("prefix", "a text, or what attention_layers gave", given_as(prefix))
    if transform is not None and not callable(transform):
        faults.type("transform", "None or a function (q, k, q_positions, k_positions) -> (q, k)", given_as(transform))
    patterns, said = known_patterns(faults, pattern), read_settings(faults, config)
    for name, number in (("n_heads", n_heads), ("n_kv_heads", n_kv_heads)):
        if number is not None:
            said = said._replace(**{name: integer(faults, name, number, 1, "a number of heads")})
    add_zero_attn = flag(faults, "add_zero_attn", add_zero_attn)
    faults.raise_any()
    names = names_under(faults, state, prefix)
    place = place_meant(faults, state, names, prefix, patterns)
    config = config or {}
    place = place._replace(pattern=as_configured(place.pattern, place.name, config))
    check_config(faults, config, place.name, place.pattern, _norms(place), transform is not None)
    scale = scale_of(faults, config, place.pattern)
    given = {"n_heads": n_heads, "n_kv_heads": n_kv_heads}
    sources = {field: source_of(config, field) for field in said._fields if given.get(field) is None}
    fit, sizes = _fitted(faults, place, state, names, said, sources)
    turned = _transform(faults, fit, config, transform, sizes[2])
    check_contradictions(fit, config, sizes, given, transform is not None)
    check_promises(faults, config, place, transform is not None)
    fit.raise_any()
    return _layer(fit, sizes, turned, scale, add_zero_attn)


def _norms(place: Place) -> dict[str, str]:
    """The names of the norms of queries and keys that the state holds, after the prefix."""
    return {role: printed(place.pattern.names[role]) for role in ("q_norm", "k_norm") if role in place.held}


def _fitted(
    faults: Faults,
    place: Place,
    state: Mapping[str, Any],
    names: list[str],
    said: Settings,
    sources: Mapping[str, str],
) -> tuple[Fitting, tuple[int, int, int]]:
    """The arrays of a place and how they fit, with every fault noted; numbers and width of heads."""
    arrays = {}
    for role, name in place.held.items():
        known = _array(faults, name, state[name])
        if known is not None:
            arrays[role] = known
    tables = [_array(faults, name, state[name]) for name in tables_of(place, names)]
    shapes = {role: x.shape for role, x in arrays.items()}
    counted, width = heads_held(shapes, [table.shape for table in tables if table is not None])
    if counted and said.n_heads not in (None, counted):
        faults.value("n_heads", f"{counted}, as the table of relative positions has columns", str(said.n_heads))
    said = said._replace(n_heads=counted or said.n_heads, d_head=said.d_head or width)
    fit = Fitting(faults, place, arrays, said, sources)
    fit.check(names)
    return fit, fit.heads()


def _array(faults: Faults, name: str, given: Any) -> Array | None:
    name = printed(name)
    _check_tensor(faults, name, given)
    return array(faults, name, given)


def _check_tensor(faults: Faults, name: str, given: Any) -> None:
    """Raise at the first tensor of PyTorch that NumPy cannot read: what cures one cures all."""
    if not (hasattr(given, "detach") and hasattr(given, "numpy")):
        return
    needs = {
        ".detach()": ("needs its gradient", bool(getattr(given, "requires_grad", False))),
        ".cpu()": ("is on another device", str(getattr(given, "device", "cpu")) != "cpu"),
        ".float()": ("is bfloat16", str(getattr(given, "dtype", "")).endswith("bfloat16")),
    }
    held = [reason for reason, needed in needs.values() if needed]
    if held:
        cure = "".join(step for step, (_, needed) in needs.items() if needed)
        remedy = f"pass {{name: x{cure}.numpy() for name, x in state.items()}}"
        faults.type(name, "an array", f"a tensor that {' and '.join(held)}", remedy)
        raise TypeError(f"{faults.function}: {faults.found[-1]}")


def _transform(faults: Faults, fit: Fitting, config: Mapping[str, Any], transform: Any, d_head: int) -> Any:
    """Norms that the state holds, then rope."""
    style = fit.place.pattern.rope
    if transform is None:
        check_positions(faults, config, fit.place.name, fit.place.pattern)
    if transform is None and style is not None and not config:
        own = f"or pass transform=transforms.rotary(style='{style}', base=..., dims=...), dims of the columns of each "
        own += "head that are turned; transforms.compose() is none"
        faults.value("config", "the model's, for its rope", "None", own)
    elif transform is None and style is not None and not faults.found:
        transform = rope_of(faults, config, style, d_head, fit.place.name == OWN)
    eps = eps_of(faults, config)
    if faults.found or "q_norm" not in fit.arrays:
        return transform
    norm = qk_norm(fit.arrays["q_norm"], fit.arrays["k_norm"], eps=eps)
    return norm if transform is None else compose(norm, transform)


def _layer(
    fit: Fitting, sizes: tuple[int, int, int], transform: Any, scale: float | None, add_zero_attn: bool
) -> MultiHeadAttention:
    n_heads, n_kv_heads, d_head = sizes
    held = {role: x.T if fit.turned(role, (0, 1)) == (1, 0) else x for role, x in fit.arrays.items()}
    cuts, beside = (n_heads * d_head, (n_heads + n_kv_heads) * d_head), fit.place.pattern.fused != "blocks"
    for whole, parts in (("w_qkv", SEPARATE), ("b_qkv", ("b_q", "b_k", "b_v"))):
        if whole in held:
            fused = held[whole]
            cut = _of_groups(fused, n_heads, n_kv_heads) if beside else np.split(fused, cuts, axis=-1)
            held |= dict(zip(parts, cut, strict=True))
    given: dict[str, Any] = {
        role: held[role] for role in (*SEPARATE, "w_o", "b_q", "b_k", "b_v", "b_o") if role in held
    }
    others: dict[str, Any] = _learned(held, n_kv_heads, d_head, add_zero_attn)
    others |= {} if scale is None else {"scale": scale}
    return MultiHeadAttention.from_arrays(
        **given, n_heads=n_heads, n_kv_heads=n_kv_heads, d_head=d_head, transform=transform, **others
    )


def _of_groups(fused: Array, n_heads: int, n_kv_heads: int) -> list[Array]:
    """Columns (..., G (H/G + 2) d_head) as those of queries, (..., H d_head), keys and values, (..., G d_head)."""
    cut = fused.reshape(*fused.shape[:-1], n_kv_heads, n_heads // n_kv_heads + 2, -1)
    return [part.reshape(*fused.shape[:-1], -1) for part in (cut[..., :-2, :], cut[..., -2, :], cut[..., -1, :])]


def _learned(held: Mapping[str, Array], n_kv_heads: int, d_head: int, add_zero_attn: bool) -> dict[str, Array]:
    """Learned keys and values (G, m, d_head): a row each, and one of zeros."""
    learned = {}
    for role in ("bias_k", "bias_v"):
        rows = [held[role].reshape(n_kv_heads, 1, d_head)] if role in held else []
        dtype = held[role if role in held else "w_q"].dtype
        rows += [np.zeros((n_kv_heads, 1, d_head), dtype)] if add_zero_attn else []
        if rows:
            learned[role] = rows[0] if len(rows) == 1 else np.concatenate(rows, axis=1)
    return learned
