"""Grade an implementation of attention and name its mistake."""

from headwise.check.grade import grade

__all__ = ["grade"]
