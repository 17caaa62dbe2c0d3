"""Reads grammars in GBNF, as llama.cpp has it, and in the EBNF of xgrammar: `root ::= "a" [b-z]* other | ...`.

    text ─▶ read_rules ─▶ {name: node}

A string is the sequence of its characters. Nothing is known here of what a rule means.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass

LAST = sys.maxunicode
ROOT = "root"
MOST_CHARACTERS = 1 << 15
MOST_NESTED = 32
MOST_SIGNS = 4
MOST_REPEATED = 1 << 20


@dataclass(frozen=True, slots=True)
class Chars:
    """One character of these ranges, sorted and apart from each other."""

    ranges: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Name:
    name: str
    place: int


@dataclass(frozen=True, slots=True)
class Sequence:
    items: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Choice:
    options: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    item: Node
    least: int
    most: int | None  # None: any number


Node = Chars | Name | Sequence | Choice | Repeat
EMPTY = Sequence(())
ANY_CHARACTER = Chars(((0, LAST),))


class GrammarSyntaxError(Exception):
    """The message has line and column, where there is one."""


def read_rules(text: str) -> dict[str, Node]:
    """Raises GrammarSyntaxError."""
    if len(text) > MOST_CHARACTERS:
        raise GrammarSyntaxError(f"it is longer than {MOST_CHARACTERS} characters")
    return _Reader(text).rules()


_SPACE = re.compile(r"(?:\s+|#[^\n]*)*")
_NAME = re.compile(r"[A-Za-z_.][\w.-]*|[0-9][\w.-]*", re.ASCII)
_DEFINED = re.compile(r"([A-Za-z0-9_.][\w.-]*)[ \t]*::=", re.ASCII)
_COUNT = re.compile(r"\{\s*(\d*)\s*(?:(,)\s*(\d*)\s*)?\}")
_HEX = {"x": 2, "u": 4, "U": 8}
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", "f": "\f", "v": "\v", "b": "\b", "a": "\a", "0": "\0", "e": "\x1b"}
_THEMSELVES = "\\\"'[]-^/.()*+?|{}&$ "


class _Reader:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._depth = 0
        self._rules: dict[str, Node] = {}

    def rules(self) -> dict[str, Node]:
        self._skip()
        while self._at < len(self._text):
            found = _DEFINED.match(self._text, self._at)
            if found is None:
                raise self._error("a rule such as name ::= ... was expected")
            if found[1] in self._rules:
                raise self._error(f"the rule {found[1][:64]} is defined twice")
            self._at = found.end()
            self._rules[found[1]] = self._choice()
        if ROOT not in self._rules:
            raise self._error(f"there is no rule {ROOT}")
        for node in self._rules.values():
            for name in names_in(node):
                if name.name not in self._rules:
                    raise self._error(f"there is no rule {name.name[:64]}", name.place)
        return self._rules

    def _choice(self) -> Node:
        self._depth += 1
        if self._depth > MOST_NESTED:
            raise self._error("it is nested too deeply")
        options = [self._sequence()]
        while self._next() == "|":
            self._at += 1
            options.append(self._sequence())
        self._depth -= 1
        return options[0] if len(options) == 1 else Choice(tuple(options))

    def _sequence(self) -> Node:
        items: list[Node] = []
        while (begin := self._next()) and begin not in "|)" and not _DEFINED.match(self._text, self._at):
            items.append(self._repeated(self._item(begin)))
        return items[0] if len(items) == 1 else Sequence(tuple(items))

    def _item(self, begin: str) -> Node:
        if begin == '"':
            return self._string()
        if begin == "[":
            return self._class()
        if begin == "(":
            self._at += 1
            node = self._choice()
            if self._next() != ")":
                raise self._error(") was expected")
            self._at += 1
            return node
        if begin == ".":
            self._at += 1
            return ANY_CHARACTER
        if (found := _NAME.match(self._text, self._at)) is not None:
            name = Name(found[0], self._at)
            self._at = found.end()
            return name
        if begin in "<!":
            raise self._error("tokens are not supported: write text")
        raise self._error(f"{begin!r} was not expected")

    def _repeated(self, item: Node) -> Node:
        signs = 0
        while (sign := self._next()) and sign in "*+?{":
            signs += 1
            if signs > MOST_SIGNS:
                raise self._error("too many repetitions of repetitions")
            least, most = {"*": (0, None), "+": (1, None), "?": (0, 1)}.get(sign) or self._count()
            self._at += sign != "{"
            item = Repeat(item, least, most)
        return item

    def _count(self) -> tuple[int, int | None]:
        found = _COUNT.match(self._text, self._at)
        if found is None or not (found[1] or found[3]):
            raise self._error("{m}, {m,}, {,n} or {m,n} was expected")
        least = int(found[1] or 0)
        most = least if found[2] is None else int(found[3]) if found[3] else None
        if least > MOST_REPEATED or (most is not None and not least <= most <= MOST_REPEATED):
            raise self._error(f"the numbers of a repetition are in order, and at most {MOST_REPEATED}")
        self._at = found.end()
        return least, most

    def _string(self) -> Node:
        begin = self._at
        self._at += 1
        characters: list[Node] = []
        while (character := self._text[self._at : self._at + 1]) != '"':
            if not character:
                raise self._error("this string has no end", begin)
            code = self._character()
            characters.append(Chars(((code, code),)))
        self._at += 1
        return characters[0] if len(characters) == 1 else Sequence(tuple(characters))

    def _class(self) -> Node:
        begin = self._at
        self._at += 1
        negated = self._text.startswith("^", self._at)
        self._at += negated
        ranges = []
        while (character := self._text[self._at : self._at + 1]) != "]":
            if not character:
                raise self._error("this list of characters has no end", begin)
            low = high = self._character()
            if self._text.startswith("-", self._at) and self._text[self._at + 1 : self._at + 2] not in ("]", ""):
                self._at += 1
                high = self._character()
                if high < low:
                    raise self._error("this range of characters has its end before its begin", begin)
            ranges.append((low, high))
        self._at += 1
        return Chars(tuple(_inverted(_merged(ranges)) if negated else _merged(ranges)))

    def _character(self) -> int:
        character = self._text[self._at]
        self._at += 1
        if character != "\\":
            return ord(character)
        sign = self._text[self._at : self._at + 1]
        self._at += 1
        if sign in _HEX and sign:
            digits = self._text[self._at : self._at + _HEX[sign]]
            if re.fullmatch(f"[0-9a-fA-F]{{{_HEX[sign]}}}", digits) is None or int(digits, 16) > LAST:
                raise self._error(f"\\{sign} needs {_HEX[sign]} hexadecimal digits of a character", self._at - 2)
            self._at += _HEX[sign]
            return int(digits, 16)
        if sign in _ESCAPES and sign:
            return ord(_ESCAPES[sign])
        if sign in _THEMSELVES and sign:
            return ord(sign)
        raise self._error(f"\\{sign} is not known", self._at - 2)

    def _next(self) -> str:
        self._skip()
        return self._text[self._at : self._at + 1]

    def _skip(self) -> None:
        found = _SPACE.match(self._text, self._at)
        assert found is not None
        self._at = found.end()

    def _error(self, problem: str, place: int | None = None) -> GrammarSyntaxError:
        place = self._at if place is None else place
        before = self._text[:place]
        line, column = before.count("\n") + 1, place - before.rfind("\n")
        return GrammarSyntaxError(f"line {line}, column {column}: {problem}")


def names_in(node: Node) -> Iterator[Name]:
    if isinstance(node, Name):
        yield node
    for each in parts_of(node):
        yield from names_in(each)


def parts_of(node: Node) -> tuple[Node, ...]:
    if isinstance(node, Sequence):
        return node.items
    if isinstance(node, Choice):
        return node.options
    return (node.item,) if isinstance(node, Repeat) else ()


def _merged(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    merged: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if merged and low <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(high, merged[-1][1]))
        else:
            merged.append((low, high))
    return merged


def _inverted(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    inverted, begin = [], 0
    for low, high in ranges:
        if begin < low:
            inverted.append((begin, low - 1))
        begin = high + 1
    return [*inverted, (begin, LAST)] if begin <= LAST else inverted
