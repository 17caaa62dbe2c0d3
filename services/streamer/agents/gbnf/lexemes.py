"""Divides a grammar into lexemes, as llguidance reads it: the longest parts that are regular expressions.

A lexer takes the longest text that is a lexeme, and doesn't come back to a shorter one. So a lexeme must end where it
can: if a text is a lexeme and the beginning of a longer one, what comes next in the longer one can't follow the first.

    "a" [a-z]* "b" x     one lexeme: a[a-z]*b, if x doesn't begin with a letter; otherwise "a", [a-z], "b"

Lexemes that break this are divided until none does. Those of one character never do.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import starmap

from services.streamer.agents.gbnf.divided import (
    Counted,
    Divided,
    Either,
    Follow,
    Lexeme,
    Parts,
    Reference,
    Row,
    parts_of,
    union,
)
from services.streamer.agents.gbnf.regular import Alphabet, Positions, Rules, Work, sets_in, size_of, sizes_of
from services.streamer.agents.gbnf.syntax import ROOT, Choice, Name, Node, Repeat, Sequence

# Positions of a lexeme.
MOST_POSITIONS = 1000
# Steps of computing.
MOST_WORK = 150_000

# A lexeme, and one of its positions.
Wrong = tuple[Lexeme, int]
# What a lexeme is made of: a node, and of a sequence the items from one to before another.
Span = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Division:
    """`rules`: those that are needed, by name, the first one first."""

    rules: Mapping[str, Divided]
    parts: Parts


def divide(rules: Rules) -> Division:
    """Raises TooLarge."""
    return _Divider(rules).division()


class _Divider:
    def __init__(self, grammar: Rules) -> None:
        self._grammar = grammar
        self._work = Work(MOST_WORK)
        self._sizes = sizes_of(grammar)
        self._alphabet = Alphabet(chars for node in grammar.values() for chars in sets_in(node))
        # What is no lexeme any more; of a sequence, which of its items stand alone.
        self._apart: defaultdict[Span, set[int]] = defaultdict(set)

    def division(self) -> Division:
        while True:
            rules = self._rules()
            positions = Positions(self._grammar, self._alphabet, self._work)
            parts = {each: positions.add(each.node) for rule in rules.values() for each in _lexemes(rule)}
            follow = Follow(rules, parts, positions.reads, self._work)
            wrong = self._ambiguous(parts, positions, follow.characters)
            if not wrong:
                return Division(rules, parts)
            for lexeme, place in wrong:
                self._apart[lexeme.span].add(self._item(lexeme, place - parts[lexeme].all.start))

    def _rules(self) -> dict[str, Divided]:
        """By name, from the first to those that it needs."""
        rules: dict[str, Divided] = {}
        wanted = [ROOT]
        while wanted:
            name = wanted.pop()
            if name not in rules:
                rules[name] = self._divided(self._grammar[name])
                wanted += _references(rules[name])
        return rules

    def _divided(self, node: Node) -> Divided:
        self._work.spend()
        if isinstance(node, Sequence):
            return self._divided_span(node, 0, len(node.items))
        span = (id(node), 0, 1)
        if span not in self._apart and self._size(node) <= MOST_POSITIONS:
            return Lexeme(node, span)
        if isinstance(node, Name):
            return Reference(node.name)
        if isinstance(node, Choice):
            return Either(tuple(map(self._divided, node.options)))
        assert isinstance(node, Repeat)
        return Counted(self._divided(node.item), node)

    def _divided_span(self, node: Sequence, begin: int, end: int) -> Divided:
        """Neighbours that are regular are one lexeme, unless it was taken apart."""
        if end - begin == 1:
            return self._divided(node.items[begin])
        span = (id(node), begin, end)
        items = node.items[begin:end]
        sizes = [self._size(each) for each in items]
        if span not in self._apart and sum(sizes) <= MOST_POSITIONS:
            return Lexeme(Sequence(items), span)
        return Row(tuple(starmap(partial(self._divided_span, node), _runs(sizes, begin, self._apart[span]))))

    def _size(self, node: Node) -> float:
        self._work.spend()
        size = size_of(node, self._sizes)
        return math.inf if size is None else size

    def _item(self, lexeme: Lexeme, offset: int) -> int:
        """Which item of a sequence has this position; 0 in other nodes."""
        node, (_, begin, _) = lexeme.node, lexeme.span
        for place, item in enumerate(node.items if isinstance(node, Sequence) else ()):
            offset -= size_of(item, self._sizes) or 0
            if offset < 0:
                return begin + place
        return 0

    def _ambiguous(self, parts: Parts, positions: Positions, characters: Mapping[Lexeme, int]) -> set[Wrong]:
        """The places at which a lexeme goes on where it, or another one, might have ended: one of the `characters`
        that may follow that one leads there. Walks along pairs of positions that the same text leads to, from the
        beginnings of all lexemes."""
        reads, after = positions.reads, positions.after
        owner = {place: lexeme for lexeme, part in parts.items() for place in part.all}
        ends = {place: characters[lexeme] for lexeme, part in parts.items() for place in part.last}
        nexts = [union(reads[each] for each in after[place]) for place in range(len(reads))]
        begins = [place for part in parts.values() for place in part.first]
        waiting = self._pairs(begins, begins, reads)
        seen, wrong = set(waiting), set[Wrong]()
        while waiting:
            one, other = waiting.pop()
            for end, longer in ((one, other), (other, one)):
                if (follow := ends.get(end, 0)) & nexts[longer]:
                    wrong |= {(owner[each], each) for each in after[longer] if reads[each] & follow}
            more = [pair for pair in self._pairs(after[one], after[other], reads) if pair not in seen]
            seen.update(more)
            waiting += more
        return wrong

    def _pairs(self, ones: Iterable[int], others: Collection[int], reads: list[int]) -> list[tuple[int, int]]:
        pairs = set()
        for one in ones:
            self._work.spend(1 + len(others) // 4)
            pairs |= {(min(one, other), max(one, other)) for other in others if reads[one] & reads[other]}
        return list(pairs)


def _runs(sizes: list[float], begin: int, alone: set[int]) -> Iterator[tuple[int, int]]:
    """From where to where items are taken together, which have these sizes and begin at `begin`."""
    start, whole = begin, 0.0
    for place, size in enumerate(sizes, begin):
        if place in alone or whole + size > MOST_POSITIONS:
            if start < place:
                yield start, place
            start, whole = place, 0.0
        whole += math.inf if place in alone else size
    yield start, begin + len(sizes)


def _lexemes(rule: Divided) -> Iterator[Lexeme]:
    if isinstance(rule, Lexeme):
        yield rule
    for each in parts_of(rule):
        yield from _lexemes(each)


def _references(rule: Divided) -> list[str]:
    own = [rule.name] if isinstance(rule, Reference) else []
    return own + [name for each in parts_of(rule) for name in _references(each)]
