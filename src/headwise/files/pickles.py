"""A pickle read by an interpreter of its own, which knows data and a table of names, and can do nothing else.

Python's `pickle` calls what a file names. Here a name is looked up in a table, what it stands for are functions of
ours, and whatever is not in the table is refused by its name. Strings, lists and whatever else is made are counted
against the size of the file before they are made. https://docs.python.org/3/library/pickletools.html
"""

import mmap
import pickle
import pickletools
import struct
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, NoReturn

from headwise.files.budget import Budget
from headwise.files.errors import AGAIN, file_error, shown

ALONE = "save the tensors alone: torch.save(model.state_dict(), path)"

_EMPTY = 64  # bytes that a container, a tuple or a string takes at most, empty
_PER_NAME = 100  # bytes that a name takes in a dictionary
_LONGEST_TEXT = 1 << 16  # bytes of a string
_LONGEST_NAME = 300  # bytes of a line with a module or a name
_LARGEST = 16  # bytes of an integer: PyTorch's magic number has 10
_MARK = object()


class Known(NamedTuple):
    """What a name in a pickle stands for: something that is called with plain arguments, or only passed on."""

    name: str
    call: Callable[..., Any] | None = None
    value: Any = None


class Machine:
    """One pickle in the bytes of a mapped file, from `begin` to `end` at most.

    Parameters
    ----------
    data : mmap
        The file.
    begin, end : int
        Where the pickle begins, and where it must have ended.
    known : mapping of str to Known
        The names that may occur, as 'module.name'.
    load : callable
        Gives what a persistent id stands for.
    budget : Budget
        What all objects of the file may take.
    """

    def __init__(
        self,
        data: mmap.mmap,
        begin: int,
        end: int,
        known: Mapping[str, Known],
        load: Callable[[Any], Any],
        budget: Budget,
    ) -> None:
        self.data, self.at, self.end, self.known, self.load = data, begin, end, known, load
        self.budget, self.where = budget, budget.where
        self.stack: list[Any] = []
        self.memo: list[Any] = []
        self.highest = 0  # objects that the stack had at once

    def run(self) -> Any:
        """Read the pickle and return its value; `at` is then behind it."""
        while True:
            code = self._bytes(1)
            if code == pickle.STOP:
                return self._pop()
            do = _OPCODES.get(code)
            if do is None:
                self._refuse(f"the opcode {_opcode_name(code)}")
            do(self)

    # --------------------------------------------------------------------------------------- the bytes
    def _bytes(self, size: int) -> bytes:
        if size > self.end - self.at:
            raise file_error(self.where, f"a pickle of at least {size} bytes more", self.end - self.at, AGAIN)
        self.at += size
        return self.data[self.at - size : self.at]

    def _number(self, form: str) -> int:
        return int(struct.unpack(form, self._bytes(struct.calcsize(form)))[0])

    def _line(self) -> str:
        end = self.data.find(b"\n", self.at, min(self.end, self.at + _LONGEST_NAME))
        if end < 0:
            raise file_error(self.where, f"a name of at most {_LONGEST_NAME} bytes", "a longer one", AGAIN)
        return self._bytes(end + 1 - self.at)[:-1].decode("utf-8")

    # --------------------------------------------------------------------------------------- the stack
    def _push(self, value: Any, size: int = 0) -> None:
        self.stack.append(value)
        self.budget.take(size + (8 if len(self.stack) > self.highest else 0))
        self.highest = max(self.highest, len(self.stack))

    def _pop(self) -> Any:
        if not self.stack or self.stack[-1] is _MARK:
            self._refuse("fewer objects than its opcodes take")
        return self.stack.pop()

    def _since_mark(self) -> list[Any]:
        place = next((n for n in range(len(self.stack) - 1, -1, -1) if self.stack[n] is _MARK), None)
        if place is None:
            self._refuse("no mark where an opcode takes one")
        items = self.stack[place + 1 :]
        del self.stack[place:]
        return items

    def _top(self, kind: type) -> Any:
        if not self.stack or not isinstance(self.stack[-1], kind):
            self._refuse(f"another object where its opcodes take a {kind.__name__}")
        return self.stack[-1]

    def _refuse(self, got: str) -> NoReturn:
        raise file_error(self.where, "a pickle of tensors", got, ALONE)

    # --------------------------------------------------------------------------------------- data
    def _text(self, form: str) -> None:
        size = self._number(form)
        if size > _LONGEST_TEXT:
            raise file_error(self.where, f"strings of at most {_LONGEST_TEXT} bytes", size, ALONE)
        raw = self._bytes(size)
        self._push(raw.decode("utf-8"), _EMPTY + size * (1 if raw.isascii() else 4))

    def _long(self, form: str) -> None:
        size = self._number(form)
        if size > _LARGEST:
            raise file_error(self.where, f"integers of at most {_LARGEST} bytes", size, AGAIN)
        self._push(int.from_bytes(self._bytes(size), "little", signed=True), 40)

    def _tuple(self, items: list[Any]) -> None:
        self._push(tuple(items), _EMPTY + 8 * len(items))

    def _last(self, n: int) -> None:
        self._tuple([self._pop() for _ in range(n)][::-1])

    def _extend(self, items: list[Any]) -> None:
        self.budget.take(16 * len(items))
        self._top(list).extend(items)

    def _set(self, items: list[Any]) -> None:
        target = self._top(dict)
        if len(items) % 2:
            self._refuse("a name without a value")
        for name, value in zip(items[::2], items[1::2], strict=True):
            if not isinstance(name, str | int):
                self._refuse(f"a {type(name).__name__} as a name")
            self.budget.take(_PER_NAME)
            target[name] = value

    def _set_one(self) -> None:
        value, name = self._pop(), self._pop()
        self._set([name, value])

    def _append_one(self) -> None:
        value = self._pop()
        self._extend([value])

    # --------------------------------------------------------------------------------------- memo
    def _remember(self, place: int) -> None:
        if place > len(self.memo):
            raise file_error(self.where, f"memo {len(self.memo)} next", place, AGAIN)
        value = self._pop()
        self._push(value)
        if place == len(self.memo):
            self.memo.append(value)
            self.budget.take(12)
        else:
            self.memo[place] = value

    def _recall(self, place: int) -> None:
        if place >= len(self.memo):
            raise file_error(self.where, f"one of {len(self.memo)} memos", place, AGAIN)
        self._push(self.memo[place])

    # --------------------------------------------------------------------------------------- names
    def _named(self, module: Any, name: Any) -> None:
        full = f"{module}.{name}"
        if full not in self.known:
            raise file_error(self.where, "tensors", f"the global '{shown(full, 120)}'", f"it is not loaded; {ALONE}")
        self._push(self.known[full])

    def _stack_global(self) -> None:
        name, module = self._pop(), self._pop()
        if not isinstance(name, str) or not isinstance(module, str):
            self._refuse("a global without a name")
        self._named(module, name)

    def _instance(self) -> None:
        self._named(self._line(), self._line())
        self._refuse(f"the opcode INST of '{self.stack[-1].name}'")

    def _extension(self, form: str) -> None:
        self._refuse(f"the extension code {self._number(form)}, which is not loaded")

    def _reduce(self) -> None:
        arguments, known = self._pop(), self._pop()
        if not isinstance(known, Known) or known.call is None or not isinstance(arguments, tuple):
            self._refuse(f"a call of '{known.name if isinstance(known, Known) else type(known).__name__}'")
        try:
            made = known.call(*arguments)
        except TypeError as error:
            raise file_error(self.where, f"the arguments of '{known.name}'", "others", AGAIN) from error
        self._push(made, 2 * _EMPTY)

    def _state(self) -> None:
        """Drop an object's state: the dictionary of a module has one, the versions of its parts; nothing is set."""
        self._pop()
        self._top(dict)

    def _persistent(self) -> None:
        self._push(self.load(self._pop()), 3 * _EMPTY)


def _opcode_name(code: bytes) -> str:
    names = (op.name for op in pickletools.opcodes if op.code.encode("latin-1") == code)
    return next(names, repr(code))


_OPCODES: dict[bytes, Callable[[Machine], Any]] = {
    pickle.PROTO: lambda m: m._bytes(1),
    pickle.FRAME: lambda m: m._bytes(8),
    pickle.MARK: lambda m: m._push(_MARK),
    pickle.NONE: lambda m: m._push(None),
    pickle.NEWTRUE: lambda m: m._push(True),
    pickle.NEWFALSE: lambda m: m._push(False),
    pickle.BININT: lambda m: m._push(m._number("<i"), 32),
    pickle.BININT1: lambda m: m._push(m._number("<B")),
    pickle.BININT2: lambda m: m._push(m._number("<H"), 32),
    pickle.LONG1: lambda m: m._long("<B"),
    pickle.LONG4: lambda m: m._long("<I"),
    pickle.BINFLOAT: lambda m: m._push(struct.unpack(">d", m._bytes(8))[0], 32),
    pickle.BINUNICODE: lambda m: m._text("<I"),
    pickle.BINUNICODE8: lambda m: m._text("<Q"),
    pickle.SHORT_BINUNICODE: lambda m: m._text("<B"),
    pickle.BINSTRING: lambda m: m._text("<I"),  # of Python 2
    pickle.SHORT_BINSTRING: lambda m: m._text("<B"),
    pickle.EMPTY_TUPLE: lambda m: m._push(()),
    pickle.TUPLE1: lambda m: m._last(1),
    pickle.TUPLE2: lambda m: m._last(2),
    pickle.TUPLE3: lambda m: m._last(3),
    pickle.TUPLE: lambda m: m._tuple(m._since_mark()),
    pickle.EMPTY_LIST: lambda m: m._push([], _EMPTY),
    pickle.APPEND: lambda m: m._append_one(),
    pickle.APPENDS: lambda m: m._extend(m._since_mark()),
    pickle.EMPTY_DICT: lambda m: m._push({}, _EMPTY),
    pickle.SETITEM: lambda m: m._set_one(),
    pickle.SETITEMS: lambda m: m._set(m._since_mark()),
    pickle.BINPUT: lambda m: m._remember(m._number("<B")),
    pickle.LONG_BINPUT: lambda m: m._remember(m._number("<I")),
    pickle.MEMOIZE: lambda m: m._remember(len(m.memo)),
    pickle.BINGET: lambda m: m._recall(m._number("<B")),
    pickle.LONG_BINGET: lambda m: m._recall(m._number("<I")),
    pickle.GLOBAL: lambda m: m._named(m._line(), m._line()),
    pickle.STACK_GLOBAL: lambda m: m._stack_global(),
    pickle.INST: lambda m: m._instance(),
    pickle.EXT1: lambda m: m._extension("<B"),
    pickle.EXT2: lambda m: m._extension("<H"),
    pickle.EXT4: lambda m: m._extension("<i"),
    pickle.REDUCE: lambda m: m._reduce(),
    pickle.BUILD: lambda m: m._state(),
    pickle.BINPERSID: lambda m: m._persistent(),
}
"""What can be done. What other opcodes make (OBJ, NEWOBJ, NEWOBJ_EX, sets, bytes, texts of protocol 0) is refused."""
