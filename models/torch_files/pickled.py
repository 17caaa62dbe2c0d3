"""The pickle in a file of torch.save, read by a machine that knows what state dicts are written with and nothing else.

It builds dicts, lists, tuples, numbers and texts, and of the names in names.py what they stand for. It imports
nothing, calls nothing that the file names, and refuses every other opcode and name. It has no recursion, takes a
bounded number of steps, and each step makes at most one small value.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from models.errors import TorchFileError
from models.torch_files.names import READ, Name, called, storage_of

MAX_BYTES = 16 << 20
# A tensor takes about 28: the largest files have some ten thousand.
MAX_STEPS = 1 << 21
_LONGEST_NAME = 100
_LONGEST_INTEGER = 8
# For the message alone.
_REFUSED = {
    b"i": "INST", b"o": "OBJ", b"\x81": "NEWOBJ", b"\x92": "NEWOBJ_EX", b"\x93": "STACK_GLOBAL", b"\x82": "EXT1",
    b"\x83": "EXT2", b"\x84": "EXT4", b"P": "PERSID", b"\x95": "FRAME", b"\x94": "MEMOIZE", b"0": "POP", b"2": "DUP",
}  # fmt: skip


def read_pickle(raw: bytes) -> Any:
    """The value that is written. Raises `TorchFileError`."""
    if len(raw) > MAX_BYTES:
        raise TorchFileError(f"its pickle has {len(raw) >> 20} MB; at most {MAX_BYTES >> 20} are read")
    return _Machine(raw).run()


class _Machine:
    def __init__(self, raw: bytes) -> None:
        self._raw = raw
        self._at = 0
        self._stack: list[Any] = []
        # Lengths of the stack: what lies below the last one is out of reach until it is taken away.
        self._marks: list[int] = []
        self._memo: dict[int, Any] = {}

    def run(self) -> Any:
        for _ in range(MAX_STEPS):
            code = self._take(1)
            if code == b".":
                return self._end()
            if (step := _STEPS.get(code)) is None:
                raise TorchFileError(f"its pickle has the opcode {_REFUSED.get(code, hex(code[0]))}")
            step(self)
        raise TorchFileError(f"its pickle has more than {MAX_STEPS} opcodes")

    def _end(self) -> Any:
        value = self._pop()
        if self._stack or self._marks or self._at != len(self._raw):
            raise _damaged()
        return value

    # Bytes and stack ------------------------------------------------------------------------------------

    def _take(self, count: int) -> bytes:
        taken = self._raw[self._at : self._at + count]
        if len(taken) < count:
            raise TorchFileError("its pickle is cut short")
        self._at += count
        return taken

    def _number(self, form: str) -> Any:
        return struct.unpack(form, self._take(struct.calcsize(form)))[0]

    def _push(self, value: Any) -> None:
        self._stack.append(value)

    def _pop(self) -> Any:
        if len(self._stack) <= (self._marks[-1] if self._marks else 0):
            raise _damaged()
        return self._stack.pop()

    def _pop_many(self, count: int) -> tuple[Any, ...]:
        return tuple(self._pop() for _ in range(count))[::-1]

    def _pop_to_mark(self) -> list[Any]:
        if not self._marks:
            raise _damaged()
        mark = self._marks.pop()
        taken = self._stack[mark:]
        del self._stack[mark:]
        return taken

    def _top(self, kind: type) -> Any:
        """The container that is filled."""
        value = self._pop()
        if type(value) is not kind:
            raise TorchFileError(f"its pickle fills a {type(value).__name__} as a {kind.__name__}")
        self._push(value)
        return value

    # Steps ----------------------------------------------------------------------------------------------

    def protocol(self) -> None:
        if (found := self._take(1)[0]) != 2:
            raise TorchFileError(f"its pickle has protocol {found}; torch.save writes 2 unless it is told otherwise")

    def mark(self) -> None:
        self._marks.append(len(self._stack))

    def text(self) -> None:
        self._push(_decoded(self._take(self._number("<I"))))

    def long_integer(self) -> None:
        if (length := self._take(1)[0]) > _LONGEST_INTEGER:
            raise TorchFileError(f"its pickle has an integer of {length} bytes; at most {_LONGEST_INTEGER} are read")
        self._push(int.from_bytes(self._take(length), "little", signed=True))

    def name(self) -> None:
        found = Name(self._line(), self._line())
        if found not in READ:
            raise TorchFileError(f"its pickle names {found}, which state dicts of plain tensors don't")
        self._push(found)

    def _line(self) -> str:
        end = self._raw.find(b"\n", self._at, self._at + _LONGEST_NAME)
        if end < 0:
            raise _damaged()
        line = self._take(end + 1 - self._at)
        return _decoded(line[:-1])

    def put(self, form: str) -> None:
        at = self._number(form)
        value = self._pop()
        self._push(value)
        self._memo[at] = value

    def get(self, form: str) -> None:
        if (at := self._number(form)) not in self._memo:
            raise _damaged()
        self._push(self._memo[at])

    def append(self) -> None:
        value = self._pop()
        self._top(list).append(value)

    def appends(self) -> None:
        values = self._pop_to_mark()
        self._top(list).extend(values)

    def set_item(self) -> None:
        key, value = self._pop_many(2)
        self._fill(self._top(dict), key, value)

    def set_items(self) -> None:
        pairs = self._pop_to_mark()
        if len(pairs) % 2:
            raise _damaged()
        filled = self._top(dict)
        for key, value in zip(pairs[::2], pairs[1::2], strict=True):
            self._fill(filled, key, value)

    @staticmethod
    def _fill(filled: dict[Any, Any], key: Any, value: Any) -> None:
        # Others have a hash that the file decides on, and that may be deep.
        if type(key) not in (str, int):
            raise TorchFileError(f"its pickle has a {type(key).__name__} as the key of a dict")
        if key in filled:
            raise TorchFileError(f"its pickle has the key {key!r} twice")
        filled[key] = value

    def storage(self) -> None:
        self._push(storage_of(self._pop()))

    def call(self) -> None:
        """Of a name that is read, with what it means here."""
        name, given = self._pop_many(2)
        if type(given) is not tuple:
            raise _damaged()
        self._push(called(name, given))

    def build(self) -> None:
        """A module's state dict has an attribute beside its items, which says versions of its parts."""
        state = self._pop()
        self._top(dict)
        if type(state) is not dict or state.keys() - {"_metadata"}:
            raise TorchFileError("its pickle sets attributes that a state dict doesn't have")


def _decoded(raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise TorchFileError("its pickle has a text that is no UTF-8") from None


def _damaged() -> TorchFileError:
    return TorchFileError("its pickle is damaged")


_STEPS: dict[bytes, Callable[[_Machine], None]] = {
    b"\x80": _Machine.protocol,
    b"(": _Machine.mark,
    b"N": lambda machine: machine._push(None),
    b"\x88": lambda machine: machine._push(True),
    b"\x89": lambda machine: machine._push(False),
    b"K": lambda machine: machine._push(machine._number("<B")),
    b"M": lambda machine: machine._push(machine._number("<H")),
    b"J": lambda machine: machine._push(machine._number("<i")),
    b"\x8a": _Machine.long_integer,
    b"G": lambda machine: machine._push(machine._number(">d")),
    b"X": _Machine.text,
    b"}": lambda machine: machine._push({}),
    b"]": lambda machine: machine._push([]),
    b")": lambda machine: machine._push(()),
    b"t": lambda machine: machine._push(tuple(machine._pop_to_mark())),
    b"\x85": lambda machine: machine._push(machine._pop_many(1)),
    b"\x86": lambda machine: machine._push(machine._pop_many(2)),
    b"\x87": lambda machine: machine._push(machine._pop_many(3)),
    b"q": lambda machine: machine.put("<B"),
    b"r": lambda machine: machine.put("<I"),
    b"h": lambda machine: machine.get("<B"),
    b"j": lambda machine: machine.get("<I"),
    b"c": _Machine.name,
    b"R": _Machine.call,
    b"Q": _Machine.storage,
    b"a": _Machine.append,
    b"e": _Machine.appends,
    b"s": _Machine.set_item,
    b"u": _Machine.set_items,
    b"b": _Machine.build,
}
