"""What an encoder has between its layers of attention, by the names of a checkpoint: norms, products, GELU."""

import math
from collections.abc import Mapping

import numpy as np

from headwise.core.shapes import Array

EPSILON = 1e-12  # of the norms of BERT and ALBERT

State = Mapping[str, Array]


def layer_norm(x: Array, state: State, name: str) -> Array:
    x = x - x.mean(axis=-1, keepdims=True)
    x = x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + EPSILON)
    return x * state[f"{name}.weight"] + state[f"{name}.bias"]


def linear(x: Array, state: State, name: str) -> Array:
    return x @ state[f"{name}.weight"].T + state[f"{name}.bias"]


def gelu(x: Array) -> Array:
    """x times the normal distribution function, exactly: NumPy has no erf, the standard library has."""
    erf = np.fromiter(map(math.erf, (x / math.sqrt(2)).ravel().tolist()), x.dtype, x.size).reshape(x.shape)
    return np.asarray(x * (1 + erf) / 2)
