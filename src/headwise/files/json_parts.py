"""JSON of a known form, read piece by piece where it lies; nothing is built that was not asked for.

A header may promise anything and be of 100 MB: what does not have the form is refused where it begins, so that no
nesting is followed, no large integer is made, and nothing is held but names and numbers.
"""

import json
import mmap
import re
from collections.abc import Collection, Iterator
from typing import NoReturn

from headwise.files.budget import Budget
from headwise.files.errors import AGAIN, file_error, shown

_SPACE = re.compile(rb"[ \t\r\n]*+")
_STRING = re.compile(rb'"((?:[^"\\\x00-\x1f]++|\\.)*+)"')
_INTEGER = re.compile(rb"-?(?:0|[1-9][0-9]{0,19}+)(?![0-9.eE])")
_TOKEN = re.compile(rb"-?(?:0|[1-9][0-9]*+)(?:\.[0-9]++)?+(?:[eE][+-]?[0-9]++)?+|true|false|null")
_DEEPEST = 64
_MOST_SKIPPED = 1 << 16  # bytes of a value that nobody asked for
_LONGEST = 1 << 20  # bytes of a string
_COPIES = 13  # bytes that one of a string may take while it is read: three copies, four bytes a character


class Reader:
    """A place in the bytes of a JSON text, from `begin` to `end` of a mapped file.

    What is made of it may take `room` bytes, and a little.
    """

    def __init__(self, data: mmap.mmap | bytes, begin: int, end: int, where: str, room: int) -> None:
        self.data, self.at, self.end, self.where = data, begin, end, where
        self.budget = Budget(room, where, "save fewer or larger arrays in a file, and shorter texts")

    def object(self, only: Collection[str] | None = None) -> Iterator[str]:
        """Go through an object's names, no two alike; whoever asks reads each value before the next name.

        With `only`, members of other names are passed over, and nothing of them is kept.
        """
        seen: set[str] = set()
        self._expect(b"{", "an object")
        first = True
        while not self._takes(b"}"):
            if not first:
                self._expect(b",", "',' or '}'")
            first = False
            name = self.string()
            self._expect(b":", "':'")
            if only is not None and name not in only:
                self.skip()
                continue
            if name in seen:
                raise file_error(self.where, "each name once", f"'{shown(name, 60)}' twice", AGAIN)
            seen.add(name)
            yield name

    def integers(self, most: int) -> tuple[int, ...]:
        """Read a list of integers."""
        found: list[int] = []
        self._expect(b"[", "a list of integers")
        while not self._takes(b"]"):
            if len(found) == most:
                raise file_error(self.where, f"a list of at most {most} integers", "more", AGAIN)
            if found:
                self._expect(b",", "',' or ']'")
            found.append(self.integer())
        return tuple(found)

    def integer(self) -> int:
        """Read an integer of at most 20 digits."""
        self._space()
        match = _INTEGER.match(self.data, self.at, self.end)
        if match is None:
            self._refuse("an integer of at most 20 digits")
        self.at = match.end()
        return int(match[0])

    def string(self) -> str:
        """Read a string."""
        self._space()
        match = _STRING.match(self.data, self.at, self.end)
        if match is None:
            self._refuse("a string in double quotes")
        begin, end = match.span(1)
        if end - begin > _LONGEST:
            raise file_error(
                self.where, f"strings of at most {_LONGEST} bytes", end - begin, "save it with shorter ones"
            )
        self.budget.has(_COPIES * (end - begin))
        self.at = match.end()
        text = str(match[1], "utf-8")
        return str(json.loads(f'"{text}"')) if "\\" in text else text

    def skip(self) -> None:
        """Pass over a value whatever it is: brackets must match, and words be those of JSON; nothing is built."""
        closing, begin = bytearray(), self.at
        while True:
            self._space()
            if self.at - begin > _MOST_SKIPPED:
                raise file_error(self.where, f"other parts of at most {_MOST_SKIPPED} bytes", "more", AGAIN)
            sign = self.data[self.at : min(self.at + 1, self.end)]
            if sign in (b"{", b"["):
                closing += b"}" if sign == b"{" else b"]"
                self.at += 1
                if len(closing) > _DEEPEST:
                    raise file_error(self.where, f"JSON at most {_DEEPEST} deep", "more", AGAIN)
            elif closing and sign == closing[-1:]:
                closing.pop()
                self.at += 1
            elif closing and sign in (b",", b":"):
                self.at += 1
            else:
                self._word(sign)
            if not closing:
                return

    def finish(self) -> None:
        """Refuse whatever follows."""
        self._space()
        if self.at < self.end:
            self._refuse("nothing more")

    def _word(self, sign: bytes) -> None:
        match = (_STRING if sign == b'"' else _TOKEN).match(self.data, self.at, self.end)
        if match is None:
            self._refuse("a value")
        self.at = match.end()

    def _space(self) -> None:
        match = _SPACE.match(self.data, self.at, self.end)
        self.at = match.end() if match else self.at

    def _takes(self, sign: bytes) -> bool:
        self._space()
        found = self.data[self.at : min(self.at + 1, self.end)] == sign
        self.at += found
        return found

    def _expect(self, sign: bytes, words: str) -> None:
        if not self._takes(sign):
            self._refuse(words)

    def _refuse(self, expected: str) -> NoReturn:
        part = self.data[self.at : min(self.at + 20, self.end)]
        got = f"'{part.decode('utf-8', 'replace')}'" if part else "the end"
        raise file_error(self.where, f"JSON with {expected}", f"{got} at byte {self.at}", AGAIN)
