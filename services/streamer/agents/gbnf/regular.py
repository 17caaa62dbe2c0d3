"""Parts of a grammar that are regular expressions, as positions: what character each reads, and which may follow which.

    "a" [0-9]* "b"      positions 0 1 2      first {0}      last {2}      after 0: {1, 2}, after 1: {1, 2}

Knows nothing of lexemes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from services.streamer.agents.gbnf.syntax import Chars, Choice, Name, Node, Repeat, Sequence, parts_of

Rules = Mapping[str, Node]
# Whether it may be empty, and the positions that it begins and ends with.
Ends = tuple[bool, frozenset[int], frozenset[int]]
_NONE: frozenset[int] = frozenset()
# Nodes within nodes of a regular expression, which is read and written by recursion.
MOST_DEEP = 150
MOST_RANGES = 4096


class TooLarge(Exception):
    """More than is computed for a request."""


@dataclass(slots=True)
class Work:
    """What may still be computed, in steps of about a microsecond."""

    left: int

    def spend(self, steps: int = 1) -> None:
        self.left -= steps
        if self.left < 0:
            raise TooLarge


class Alphabet:
    """Sets of characters as bits: one for each range that no set of the grammar divides."""

    def __init__(self, sets: Iterable[Chars]) -> None:
        wanted = set(sets)
        borders = sorted({border for chars in wanted for low, high in chars.ranges for border in (low, high + 1)})
        if len(borders) > MOST_RANGES:
            raise TooLarge
        bits = {border: place for place, border in enumerate(borders)}
        self._masks = {
            chars: sum((1 << bits[high + 1]) - (1 << bits[low]) for low, high in chars.ranges) for chars in wanted
        }

    def mask(self, chars: Chars) -> int:
        return self._masks[chars]


@dataclass(slots=True)
class Part:
    """A regular expression, by its positions."""

    nullable: bool
    first: frozenset[int]
    last: frozenset[int]
    all: range


@dataclass(slots=True)
class Positions:
    """Of all parts that were added: by position the characters that it reads, and the positions that follow."""

    rules: Rules
    alphabet: Alphabet
    work: Work
    reads: list[int] = field(default_factory=list)
    after: list[set[int]] = field(default_factory=list)

    def add(self, node: Node) -> Part:
        begin = len(self.reads)
        nullable, first, last = self._add(node)
        return Part(nullable, first, last, range(begin, len(self.reads)))

    def _add(self, node: Node) -> Ends:
        self.work.spend()
        if isinstance(node, Chars):
            place = len(self.reads)
            self.reads.append(self.alphabet.mask(node))
            self.after.append(set())
            return False, frozenset([place]), frozenset([place])
        if isinstance(node, Name):
            return self._add(self.rules[node.name])
        if isinstance(node, Repeat):
            return self._repeat(node)
        parts = [self._add(each) for each in parts_of(node)]
        if isinstance(node, Choice):
            nullables, firsts, lasts = zip(*parts, strict=True)
            return any(nullables), _NONE.union(*firsts), _NONE.union(*lasts)
        return self._sequence(parts)

    def _repeat(self, node: Repeat) -> Ends:
        """Counted ones as if any number might follow, which only adds texts."""
        nullable, first, last = self._add(node.item)
        if node.most == 0:
            return True, _NONE, _NONE
        if node.most != 1:
            self._join(last, first)
        return nullable or node.least == 0, first, last

    def _sequence(self, parts: list[Ends]) -> Ends:
        nullable, first, last = True, _NONE, _NONE
        for may_lack, begins, ends in parts:
            self._join(last, begins)
            first = first | begins if nullable else first
            last = last | ends if may_lack else ends
            nullable &= may_lack
        return nullable, first, last

    def _join(self, last: frozenset[int], first: frozenset[int]) -> None:
        self.work.spend(len(last) * (1 + len(first) // 16))
        for place in last:
            self.after[place] |= first


def sizes_of(rules: Rules) -> dict[str, int]:
    """Positions of the rules for which a regular expression can be written: what they are made of doesn't lead back to
    them."""
    uses = {name: _named(node) for name, node in rules.items()}
    users: dict[str, list[str]] = {name: [] for name in rules}
    for name, used in uses.items():
        for each in used:
            users[each].append(name)
    missing = {name: len(used) for name, used in uses.items()}
    ready = [name for name, count in missing.items() if not count]
    sizes: dict[str, int] = {}
    depths: dict[str, int] = {}
    while ready:
        name = ready.pop()
        depths[name] = _depth(rules[name], depths)
        if depths[name] > MOST_DEEP:
            continue
        size = size_of(rules[name], sizes)
        assert size is not None
        sizes[name] = size
        for user in users[name]:
            missing[user] -= 1
            if not missing[user]:
                ready.append(user)
    return sizes


def size_of(node: Node, sizes: Mapping[str, int]) -> int | None:
    """None: it leads to rules that have no size."""
    if isinstance(node, Chars):
        return 1
    if isinstance(node, Name):
        return sizes.get(node.name)
    whole = 0
    for each in parts_of(node):
        size = size_of(each, sizes)
        if size is None:
            return None
        whole += size
    return whole


def _depth(node: Node, depths: Mapping[str, int]) -> int:
    if isinstance(node, Name):
        return 1 + depths[node.name]
    return 1 + max((_depth(each, depths) for each in parts_of(node)), default=0)


def _named(node: Node) -> set[str]:
    if isinstance(node, Name):
        return {node.name}
    return set().union(*map(_named, parts_of(node)))


def sets_in(node: Node) -> set[Chars]:
    if isinstance(node, Chars):
        return {node}
    return set().union(*map(sets_in, parts_of(node)))


def written(node: Node, rules: Rules) -> str:
    """As a regular expression."""
    if isinstance(node, Chars):
        return _class(node)
    if isinstance(node, Name):
        return written(rules[node.name], rules)
    if isinstance(node, Sequence):
        return "".join(written(each, rules) for each in node.items)
    if isinstance(node, Choice):
        return f"(?:{'|'.join(written(each, rules) for each in node.options)})"
    return f"(?:{written(node.item, rules)}){counted(node)}"


def counted(node: Repeat) -> str:
    signs = {(0, None): "*", (1, None): "+", (0, 1): "?"}
    return signs.get((node.least, node.most)) or f"{{{node.least},{'' if node.most is None else node.most}}}"


# Half characters are none.
_HALVES = (0xD800, 0xDFFF)


def _class(chars: Chars) -> str:
    ranges = []
    for low, high in chars.ranges:
        for begin, end in ((low, min(high, _HALVES[0] - 1)), (max(low, _HALVES[1] + 1), high)):
            if begin <= end:
                ranges.append(_one(begin) if begin == end else f"{_one(begin)}-{_one(end)}")
    if not ranges:
        return r"[^\s\S]"
    single = len(chars.ranges) == 1 and chars.ranges[0][0] == chars.ranges[0][1]
    return ranges[0] if single else f"[{''.join(ranges)}]"


def _one(code: int) -> str:
    character = chr(code)
    return character if character.isascii() and character.isalnum() else f"\\x{{{code:x}}}"
