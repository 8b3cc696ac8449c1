"""`bits` tells arrays apart as their bytes do."""

import numpy as np
from bits import bits


def test_what_differs_differs_and_what_is_equal_is_equal() -> None:
    x = np.array([1.0, -0.0, np.nan, np.inf])
    assert bits(x) == bits(x.copy()) == bits(np.array([1.0, -0.0, -np.nan, np.inf])) == bits(np.repeat(x, 2)[::2])
    others = [x[:3], x.astype(np.float32), np.array([1.0, 0.0, np.nan, np.inf]), np.array([1.0, -0.0, 0.0, np.inf])]
    others += [np.nextafter(x, 2), -x, x[::-1]]
    assert len({bits(x), *map(bits, others)}) == 1 + len(others)


def test_of_several_a_list() -> None:
    x = np.arange(3)
    assert bits((x, None, x[0])) == [bits(x), None, bits(x[0])]
