"""What the commands' parsers share: numbers and names out of words, mistakes in one sentence; knows no command."""

import argparse
import math
from contextlib import suppress
from typing import Any, NoReturn

from headwise import console
from headwise.demo import MOST_THREADS
from headwise.files import shown


class UsageError(Exception):
    """A mistake of the user; the text is one sentence."""


class Parser(argparse.ArgumentParser):
    """A parser that raises its mistakes and hides no failed write."""

    def error(self, message: str) -> NoReturn:
        """Raise what argparse would print."""
        raise UsageError(f"{message}; see {self.prog} -h")

    def _print_message(self, message: str, file: Any = None) -> None:  # argparse's own hides a failed write
        console.emit(message.rstrip("\n"), file)


def integer(text: str) -> int:
    """Return an integer, or let argparse refuse the word.

    >>> integer("-3")
    -3
    """
    with suppress(ValueError):
        if text.isascii() and "_" not in text:
            return int(text)
    raise argparse.ArgumentTypeError(f"expected an integer, got '{shown(text, 60)}'")


def count(text: str) -> int:
    """Return an integer from 1 on."""
    with suppress(argparse.ArgumentTypeError):
        if (number := integer(text)) >= 1:
            return number
    raise argparse.ArgumentTypeError(f"expected an integer >= 1, got '{shown(text, 60)}'")


def seed(text: str) -> int:
    """Return an integer from 0 on."""
    with suppress(argparse.ArgumentTypeError):
        if (number := integer(text)) >= 0:
            return number
    raise argparse.ArgumentTypeError(f"expected an integer >= 0, got '{shown(text, 60)}'")


def names(text: str) -> list[str]:
    """Return names that stand between commas.

    >>> names("a, b")
    ['a', 'b']
    """
    return [name.strip() for name in text.split(",")]


def finite(text: str) -> float:
    """Return a finite number."""
    with suppress(ValueError):
        number = float(text)
        if math.isfinite(number):
            return number
    raise argparse.ArgumentTypeError(f"expected a finite number, got '{shown(text, 60)}'")


def positive(text: str) -> float:
    """Return a finite number above 0."""
    with suppress(ValueError):
        number = float(text)
        if 0 < number < math.inf:
            return number
    raise argparse.ArgumentTypeError(f"expected a finite number above 0, got '{shown(text, 60)}'")


def threads(text: str) -> int:
    """Return a number of threads."""
    with suppress(argparse.ArgumentTypeError):
        if 1 <= (number := integer(text)) <= MOST_THREADS:
            return number
    raise argparse.ArgumentTypeError(f"expected an integer from 1 to {MOST_THREADS}, got '{shown(text, 60)}'")


def window(text: str) -> tuple[int | None, int | None]:
    """Return the keys to the left and right that a query sees, None for all.

    >>> window("-,0")
    (None, 0)
    """
    sides = [side.strip() for side in text.split(",")]
    if len(sides) == 2 and all(side == "-" or (side.isascii() and side.isdigit() and len(side) < 19) for side in sides):
        left, right = (None if side == "-" else int(side) for side in sides)
        return left, right
    expected = "L,R: keys to the left and right besides the own one, '-' for all"
    raise argparse.ArgumentTypeError(f"expected {expected}; got '{shown(text, 60)}'; for example 256,0")


def command(commands: Any, name: str, text: str, example: str) -> argparse.ArgumentParser:
    """Add a command, which all have --json, and return its parser."""
    epilog = f"example: headwise {name} {example}"
    parser: argparse.ArgumentParser = commands.add_parser(
        name, help=text, description=text[0].upper() + text[1:] + ".", epilog=epilog, allow_abbrev=False
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    return parser
