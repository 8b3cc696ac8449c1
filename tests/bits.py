"""Arrays compared bit for bit, by a short text.

Where two long bytes differ, pytest looks for a way to show how, and on a machine with `CI` set, where it shows
everything, it looks for minutes. Two of these texts differ at a glance.
"""

import hashlib
from typing import Any

import numpy as np


def bits(of: Any) -> Any:
    """Type, length and a digest of the bytes: equal if and only if the arrays are, to the sign of a zero.

    One NaN is as good as another: which sign it has depends on how a product was blocked. Of several arrays, among
    which may be None, a list.
    """
    if of is None:
        return None
    if not isinstance(of, (np.ndarray, np.generic)):
        return [bits(one) for one in of]
    unlike = of != of
    plain = np.where(unlike, np.zeros_like(of), of)
    digest = hashlib.sha256(plain.tobytes() + np.packbits(unlike).tobytes())
    return f"{of.dtype}[{of.size}]:{digest.hexdigest()[:16]}"
