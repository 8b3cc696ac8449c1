"""Solutions of the exercises, from tests/solutions, whole or with lines changed; as dicts of what they define."""

from pathlib import Path

FOLDER = Path(__file__).parent / "solutions"


def source(name, *changes):
    """The text of a solution, in which every ``(old, new)`` was changed: each old text occurs once."""
    text = (FOLDER / f"{name}.py").read_text()
    for old, new in changes:
        assert text.count(old) == 1, f"{old!r} occurs {text.count(old)} times"
        text = text.replace(old, new)
    return text


def solution(name, *changes, more=""):
    """The namespace of a solution."""
    space = {"__name__": name}
    exec(source(name, *changes) + more, space)  # ours
    return space
