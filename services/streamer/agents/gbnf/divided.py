"""Rules whose leaves are lexemes, and which characters may follow each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from services.streamer.agents.gbnf.regular import Part, Work
from services.streamer.agents.gbnf.syntax import Node, Repeat


@dataclass(eq=False, slots=True)
class Lexeme:
    """`node`: what it is made of; `span`: where that is, as lexemes.py counts."""

    node: Node
    span: tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Reference:
    name: str


@dataclass(frozen=True, slots=True)
class Row:
    items: tuple[Divided, ...]


@dataclass(frozen=True, slots=True)
class Either:
    options: tuple[Divided, ...]


@dataclass(frozen=True, slots=True)
class Counted:
    item: Divided
    count: Repeat


Divided = Lexeme | Reference | Row | Either | Counted
Parts = Mapping[Lexeme, Part]


def parts_of(rule: Divided) -> tuple[Divided, ...]:
    if isinstance(rule, Row):
        return rule.items
    if isinstance(rule, Either):
        return rule.options
    return (rule.item,) if isinstance(rule, Counted) else ()


@dataclass(frozen=True, slots=True)
class Begin:
    """Of a rule: characters that it begins with, and whether it may be empty."""

    characters: int = 0
    nullable: bool = False


class Follow:
    """`characters`: by lexeme those that may follow it. All sets are bits, and grow until nothing changes."""

    def __init__(self, rules: Mapping[str, Divided], parts: Parts, reads: list[int], work: Work) -> None:
        self._parts, self._reads, self._work = parts, reads, work
        self._begins = dict.fromkeys(rules, Begin())
        while (begins := {name: self._begin(rule) for name, rule in rules.items()}) != self._begins:
            self._begins = begins
        self.characters = dict.fromkeys(parts, 0)
        self._behind = dict.fromkeys(rules, 0)
        self._changed = True
        while self._changed:
            self._changed = False
            for name, rule in rules.items():
                self._walk(rule, self._behind[name])

    def _begin(self, rule: Divided) -> Begin:
        self._work.spend()
        if isinstance(rule, Lexeme):
            part = self._parts[rule]
            return Begin(union(self._reads[each] for each in part.first), part.nullable)
        if isinstance(rule, Reference):
            return self._begins[rule.name]
        if isinstance(rule, Counted):
            begin = self._begin(rule.item)
            return Begin(begin.characters, begin.nullable or rule.count.least == 0)
        if isinstance(rule, Either):
            begins = [self._begin(each) for each in rule.options]
            return Begin(union(each.characters for each in begins), any(each.nullable for each in begins))
        characters, nullable = 0, True
        for each in rule.items:
            begin = self._begin(each)
            characters |= begin.characters if nullable else 0
            nullable &= begin.nullable
        return Begin(characters, nullable)

    def _walk(self, rule: Divided, behind: int) -> None:
        """`behind`: characters that may follow the rule here."""
        self._work.spend()
        if isinstance(rule, Lexeme):
            self._changed |= bool(behind & ~self.characters[rule])
            self.characters[rule] |= behind
        elif isinstance(rule, Reference):
            self._changed |= bool(behind & ~self._behind[rule.name])
            self._behind[rule.name] |= behind
        elif isinstance(rule, Counted):
            self._walk(rule.item, behind if rule.count.most == 1 else behind | self._begin(rule.item).characters)
        elif isinstance(rule, Either):
            for each in rule.options:
                self._walk(each, behind)
        else:
            for each in reversed(rule.items):
                self._walk(each, behind)
                begin = self._begin(each)
                behind = begin.characters | (behind if begin.nullable else 0)


def union(sets: Iterable[int]) -> int:
    whole = 0
    for each in sets:
        whole |= each
    return whole
