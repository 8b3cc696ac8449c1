"""How many examples are drawn: all of them, or, where the same tests run once more, fewer."""

import os

SHARE = int(os.environ.get("HEADWISE_FEWER_EXAMPLES", "1"))


def fewer(n: int) -> int:
    """A share of n, and never less than 20."""
    return max(min(n, 20), n // SHARE)
