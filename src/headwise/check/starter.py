"""A file to begin a solution with: signatures, shapes and nothing else; knows no check."""

import os
from collections.abc import Sequence

from headwise.files import FileError, PathLike, listed, shown, write_bytes

NAME = "solution.py"
"""Of the file."""

_HEAD = '''"""Attention from scratch. Replace each NotImplementedError; `headwise check {name}` tells how far it is."""

import numpy as np
'''

_SOFTMAX = '''
def softmax(x, axis=-1):
    """Return positive weights that sum to 1 along an axis.

    Parameters
    ----------
    x : ndarray, any shape
        Scores, which may be large.
    axis : int
        The axis along which the weights sum to 1.

    Returns
    -------
    ndarray, the shape of x
    """
    raise NotImplementedError
'''

_ATTENTION = '''
def scaled_dot_product_attention(q, k, v, mask=None):
    """Return the values that each query attends to, weighted and summed.

    Parameters
    ----------
    q : ndarray, shape (..., n_q, d_k)
        Queries. Whatever stands before the last two axes is batch; there may be none.
    k : ndarray, shape (..., n_k, d_k)
        Keys.
    v : ndarray, shape (..., n_k, d_v)
        Values.
    mask : ndarray of bool, broadcasting to (..., n_q, n_k), optional
        True where a query may attend to a key.

    Returns
    -------
    out : ndarray, shape (..., n_q, d_v)
    weights : ndarray, shape (..., n_q, n_k)
    """
    raise NotImplementedError
'''

_MASK = '''
def causal_mask(n):
    """Return the mask with which no token sees a later one.

    Parameters
    ----------
    n : int
        Tokens.

    Returns
    -------
    ndarray of bool, shape (n, n)
        True where the query (row) may attend to the key (column).
    """
    raise NotImplementedError
'''

_MULTI_HEAD = '''
def multi_head_attention(x, w_q, w_k, w_v, w_o, heads, causal=False):
    """Return self-attention with several heads: project, split, attend, merge, project.

    Parameters
    ----------
    x : ndarray, shape (b, n, d_model)
        Tokens.
    w_q, w_k, w_v, w_o : ndarray, shape (d_model, d_model)
        Weights, which multiply from the right: x @ w_q.
    heads : int
        How many heads; divides d_model. Head 0 has the first d_model / heads columns.
    causal : bool
        Whether no token sees a later one.

    Returns
    -------
    ndarray, shape (b, n, d_model)
    """
    raise NotImplementedError
'''

_LAYER = '''
class MultiHeadSelfAttention:
    """Self-attention with weights of its own.

    Parameters
    ----------
    d_model : int
        Width of a token.
    n_heads : int
        How many heads; divides d_model.
    seed : int
        From which the weights are drawn.

    Attributes
    ----------
    w_q, w_k, w_v, w_o : ndarray, shape (d_model, d_model)
        Drawn in this order from np.random.default_rng(seed), normal with scale 1 / sqrt(d_model).
    """

    def __init__(self, d_model, n_heads, seed=0):
        raise NotImplementedError

    def __call__(self, x, causal=False):
        """Return self-attention over tokens.

        Parameters
        ----------
        x : ndarray, shape (b, n, d_model)
            Tokens.
        causal : bool
            Whether no token sees a later one.

        Returns
        -------
        output : ndarray, shape (b, n, d_model)
        weights : ndarray, shape (b, n_heads, n, n)
        """
        raise NotImplementedError
'''

PARTS = {
    "softmax": _SOFTMAX,
    "attention": _ATTENTION,
    "single_sequence": _ATTENTION,
    "causal_mask": _MASK,
    "multi_head": _MULTI_HEAD,
    "layer": _LAYER,
}
"""Exercise -> what is written for it."""


def starter(exercises: Sequence[str] | None = None) -> str:
    """Return the text of a file to begin with.

    Parameters
    ----------
    exercises : sequence of str, optional
        Those to write; None for all of them.

    Raises
    ------
    ValueError
        There is no exercise of a name.

    Examples
    --------
    >>> print(starter(["causal_mask"]).splitlines()[5])
    def causal_mask(n):
    """
    unknown = [name for name in exercises or () if name not in PARTS]
    if unknown:
        raise ValueError(f"starter: exercises: expected some of {listed(PARTS)}, got {listed(unknown)}")
    chosen = [part for name, part in PARTS.items() if exercises is None or name in exercises]
    return "\n".join([_HEAD.format(name=NAME), *dict.fromkeys(chosen)])


def write_starter(folder: PathLike, exercises: Sequence[str] | None = None, *, force: bool = False) -> str:
    """Write solution.py into a folder, which is made where there is none, and return its path.

    Parameters
    ----------
    folder : str or path-like
        Where to.
    exercises : sequence of str, optional
        See `starter`.
    force : bool
        Replace an existing file.

    Raises
    ------
    ValueError
        There is no exercise of a name.
    FileError
        The file exists, or cannot be written.
    """
    text = starter(exercises)
    try:
        os.makedirs(folder, exist_ok=True)
    except (OSError, ValueError) as error:  # of a NUL in its name
        got = f"'{getattr(error, 'strerror', None) or error}'"
        raise FileError(
            f"{shown(folder, 1000)}: expected a folder, or room for one, got {got}; name another"
        ) from error
    path = os.path.join(folder, NAME)
    write_bytes(path, text.encode("utf-8"), ending=".py", force=force)
    return path
