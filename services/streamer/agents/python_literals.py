"""Reads a Python list of calls whose arguments are literals. Runs nothing and makes plain values."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

# How deep lists and maps may be inside each other.
DEEPEST = 64
_BLANK = re.compile(r"\s*")
_NAME = re.compile(r"[^\W\d][\w.-]{0,255}")
_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?")
_STRING = re.compile(r'"((?:[^"\\\n]|\\.)*)"|\'((?:[^\'\\\n]|\\.)*)\'', re.DOTALL)
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|x[0-9a-fA-F]{2}|.)", re.DOTALL)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "0": "\0", "\n": ""}
_WORDS = {"True": True, "False": False, "None": None, "true": True, "false": False, "null": None}
# Python refuses to read longer integers.
_LONGEST_NUMBER = 300

Call = tuple[str, dict[str, Any]]


class NoLiteral(Exception):
    """The text is something else."""


class Literals:
    def __init__(self, text: str) -> None:
        self._text = text
        self._place = 0

    def calls(self) -> Iterator[tuple[Call, int]]:
        """All of the text as a list of at least one call: each with the place behind it. Raises NoLiteral at the first
        that is none."""
        self._expect("[")
        yield self._call(), self._place
        while not self._next("]"):
            self._expect(",")
            if self._next("]"):
                break
            yield self._call(), self._place
        if self._skip() < len(self._text):
            raise NoLiteral

    def _call(self) -> Call:
        name = self._match(_NAME)[0]
        self._expect("(")
        return name, dict(self._until(")", self._argument))

    def _argument(self) -> tuple[str, Any]:
        name = self._match(_NAME)[0]
        self._expect("=")
        return name, self._value(0)

    def _value(self, depth: int) -> Any:
        if depth > DEEPEST:
            raise NoLiteral
        first = self._text[self._skip() : self._place + 1]
        if first and first in "[(":
            self._place += 1
            return self._until("]" if first == "[" else ")", lambda: self._value(depth + 1))
        if first == "{":
            self._place += 1
            return dict(self._until("}", lambda: self._pair(depth + 1)))
        if first and first in "\"'":
            found = self._match(_STRING)
            return _unescaped(found[1] if found[1] is not None else found[2])
        if first.isalpha():
            word = self._match(_NAME)[0]
            if word not in _WORDS:
                raise NoLiteral
            return _WORDS[word]
        return _number(self._match(_NUMBER)[0])

    def _pair(self, depth: int) -> tuple[str, Any]:
        key = self._value(depth)
        self._expect(":")
        if not isinstance(key, str):
            raise NoLiteral
        return key, self._value(depth)

    def _until(self, closer: str, read: Any) -> list[Any]:
        """What `read` reads, with commas between, to the closing bracket."""
        found: list[Any] = []
        while not self._next(closer):
            if found:
                self._expect(",")
                if self._next(closer):
                    break
            found.append(read())
        return found

    def _skip(self) -> int:
        blank = _BLANK.match(self._text, self._place)
        self._place = blank.end() if blank else self._place
        return self._place

    def _next(self, character: str) -> bool:
        found = self._text.startswith(character, self._skip())
        self._place += found
        return found

    def _expect(self, character: str) -> None:
        if not self._next(character):
            raise NoLiteral

    def _match(self, pattern: re.Pattern[str]) -> re.Match[str]:
        found = pattern.match(self._text, self._skip())
        if found is None:
            raise NoLiteral
        self._place = found.end()
        return found


def _number(text: str) -> int | float:
    if len(text) > _LONGEST_NUMBER:
        raise NoLiteral
    return float(text) if any(each in text for each in ".eE") else int(text)


def _unescaped(text: str) -> str:
    def one(found: re.Match[str]) -> str:
        code = found[1]
        if len(code) > 1:
            number = int(code[1:], 16)
            return chr(number) if number < 0x110000 and not 0xD800 <= number < 0xE000 else found[0]
        return _ESCAPES.get(code, code if code in "\\\"'" else found[0])

    return _ESCAPE.sub(one, text)
