"""A layer as one file, and back, its arrays equal to the bit.

The arrays have the layer's own names; what is no array is a text in JSON: among the metadata of a .safetensors file,
and in an .npz file, which has none, an array of its bytes.
"""

from __future__ import annotations  # help() then shows types as they are written

import json
import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from headwise.core.shapes import Array, Faults, flag, given_as, shown
from headwise.layers.attention_layer import MultiHeadAttention
from headwise.layers.transform_parts import put_together, taken_apart

_TEXT = "layer.json"
_FORMAT = 1
_ARRAYS = ("w_q", "w_k", "w_v", "w_o", "b_q", "b_k", "b_v", "b_o", "bias_k", "bias_v")
_KEYS = ("format", "n_heads", "n_kv_heads", "d_head", "scale", "transform")
_MOST = 100_000  # bytes of the text; that of a layer with rope is 200
_NOT_OURS = "name a file that headwise.weights.save wrote; from_state_dict takes other checkpoints"


def save(layer: MultiHeadAttention, path: str | os.PathLike[str], *, force: bool = False) -> None:
    """Write a layer into a file, whole or not at all.

    Parameters
    ----------
    layer : MultiHeadAttention
        With a transform that :mod:`headwise.transforms` made, or none.
    path : str or path-like
        Its name ends in .safetensors or .npz.
    force : bool
        Whether an existing file may be replaced.

    Raises
    ------
    TypeError
        If an argument is of the wrong kind, or the transform a function of yours.
    ValueError
        If the file cannot be written, exists, or has another ending (``headwise.files.FileError``).

    Returns
    -------
    None

    Examples
    --------
    >>> import tempfile
    >>> layer = MultiHeadAttention(d_model=8, n_heads=4, n_kv_heads=2)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = os.path.join(folder, "layer.npz")
    ...     save(layer, path)
    ...     print((load(path).w_k == layer.w_k).all())
    True
    """
    from headwise import files  # where files are written: it is not needed to compute

    faults = Faults("save")
    if not isinstance(layer, MultiHeadAttention):
        faults.type("layer", "a MultiHeadAttention", given_as(layer))
        faults.raise_any()
    force = flag(faults, "force", force)
    _check_path(faults, path)
    faults.raise_any()
    _check_target(path, force)
    transform, arrays = taken_apart(faults, layer.transform)
    held = {name: np.asarray(getattr(layer, name)) for name in _ARRAYS if getattr(layer, name, None) is not None}
    if os.fspath(path).lower().endswith(".npz"):
        for name, x in (held | arrays).items():
            if not files.npz_keeps(x.dtype):  # bfloat16
                faults.type(name, "a type of NumPy's own in an .npz file", str(x.dtype), "name it .safetensors")
    faults.raise_any()
    numbers = {"n_heads": layer.n_heads, "n_kv_heads": layer.n_kv_heads, "d_head": layer.d_head}
    said = {"format": _FORMAT, **numbers, "scale": getattr(layer, "scale", None), "transform": transform}
    text = json.dumps(said, default=_plain)
    if len(text) > _MOST:
        got = f"one of {len(text)}"
        faults.value("transform", f"one whose description has at most {_MOST} bytes", got, "compose fewer parts")
        faults.raise_any()
    _write(path, held | arrays, text, force)


def _plain(value: Any) -> Any:
    """Numbers of NumPy's own kinds as Python's: a base or a scale may be one."""
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"save: expected numbers and texts in the transform, got {type(value).__name__}")


def load(path: str | os.PathLike[str]) -> MultiHeadAttention:
    """Read a layer that :func:`save` wrote.

    Parameters
    ----------
    path : str or path-like
        The file.

    Returns
    -------
    MultiHeadAttention
        Its arrays are equal to the bit. Those of a .safetensors file are memory maps, which nobody can write to.

    Raises
    ------
    TypeError
        If ``path`` is no path.
    ValueError
        If the file cannot be read or does not hold a layer (``headwise.files.FileError``).

    Examples
    --------
    >>> import tempfile
    >>> from headwise.layers.transforms import rotary
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = os.path.join(folder, "layer.npz")
    ...     save(MultiHeadAttention(d_model=8, n_heads=2, transform=rotary(style="half")), path)
    ...     print(load(path))
    MultiHeadAttention(d_model=8, n_heads=2, transform=rotary(style='half', base=10000.0))
    """
    from headwise import files  # where files are read: it is not needed to compute

    faults = Faults("load")
    _check_path(faults, path)
    faults.raise_any()
    checkpoint = files.open_checkpoint(path)
    text = _text(path, checkpoint)
    try:
        said = _said(text)
        return _layer(said, _arrays(path, checkpoint))
    except files.FileError:
        raise
    except (TypeError, ValueError, RecursionError) as error:
        reason = files.shown("; ".join(map(str.strip, str(error).splitlines())))
        raise files.FileError(
            f"{files.shown(path, 1000)}: expected a layer, got one that does not fit ({reason}); {_NOT_OURS}"
        ) from error


def _said(text: str | bytes) -> dict[str, Any]:
    """What the text of a layer says; a ValueError where it is none."""
    said = json.loads(text)
    if not isinstance(said, dict) or set(said) != set(_KEYS):
        raise ValueError(f"a text that is no object of {', '.join(_KEYS)}")
    if type(said["format"]) is not int or said["format"] != _FORMAT:
        raise ValueError(f"format {shown(said['format'])}, which this version does not know")
    return said


def _layer(said: Mapping[str, Any], arrays: Mapping[str, Array]) -> MultiHeadAttention:
    given: dict[str, Any] = dict.fromkeys(_ARRAYS) | {name: arrays[name] for name in _ARRAYS if name in arrays}
    given |= {} if said["scale"] is None else {"scale": said["scale"]}
    given |= {name: said[name] for name in ("n_heads", "n_kv_heads", "d_head")}
    transform = put_together(said["transform"], arrays)
    layer = MultiHeadAttention.from_arrays(**given, transform=transform)
    if transform is not None:  # one token tells whether it fits heads of that width
        token = np.zeros((1, 1, 1, layer.d_head), layer.w_q.dtype)
        transform(token, token, np.zeros(1, np.int64), np.zeros(1, np.int64))
    return layer


def _check_path(faults: Faults, path: Any) -> None:
    name = path if isinstance(path, str) else os.fspath(path) if isinstance(path, os.PathLike) else None
    if not isinstance(name, str):
        faults.type("path", "a str or a path", given_as(path))


def _check_target(path: str | os.PathLike[str], force: bool) -> None:
    from headwise import files

    where = files.shown(path, 1000)
    if not os.fspath(path).lower().endswith((".safetensors", ".npz")):
        raise files.FileError(f"{where}: expected a name that ends in .safetensors or .npz, got another")
    if not force and os.path.isfile(path):
        remedy = "name another, or replace it by force=True"
        raise files.FileError(f"{where}: expected a new name, got one that exists; {remedy}")


def _write(path: str | os.PathLike[str], arrays: dict[str, Array], text: str, force: bool) -> None:
    from headwise import files

    if os.fspath(path).lower().endswith(".safetensors"):
        files.write_safetensors(path, arrays, metadata={_TEXT: text}, force=force)
    else:
        files.write_arrays(path, arrays | {_TEXT: np.frombuffer(text.encode(), np.uint8)}, force=force)


def _text(path: str | os.PathLike[str], checkpoint: Any) -> str | bytes:
    """The text of a layer, whose size is looked at before it is read."""
    from headwise import files

    where, npz = files.shown(path, 1000), _is_npz(path)
    if _TEXT not in (checkpoint if npz else checkpoint.metadata):
        raise files.FileError(f"{where}: expected a layer, got {files.listed(list(checkpoint))}; {_NOT_OURS}")
    size = checkpoint.tensor(_TEXT).shape if npz else (len(checkpoint.metadata[_TEXT]),)
    if len(size) != 1 or size[0] > _MOST or (npz and checkpoint.tensor(_TEXT).dtype != np.uint8):
        got = f"{checkpoint.tensor(_TEXT).dtype} of shape {size}" if npz else f"{size[0]}"
        raise files.FileError(f"{where}: {_TEXT}: expected a text of at most {_MOST} bytes, got {got}; {_NOT_OURS}")
    return files.read_arrays(path, [_TEXT])[_TEXT].tobytes() if npz else checkpoint.metadata[_TEXT]


def _arrays(path: str | os.PathLike[str], checkpoint: Mapping[str, Array]) -> Mapping[str, Array]:
    """The arrays that may be a layer's: of an .npz file in memory, and no others of it are read."""
    from headwise import files

    if not _is_npz(path):
        return checkpoint
    return files.read_arrays(path, [name for name in checkpoint if name in _ARRAYS or name.startswith("transform.")])


def _is_npz(path: str | os.PathLike[str]) -> bool:
    return os.fspath(path).lower().endswith(".npz")
