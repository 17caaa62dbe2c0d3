"""Who reads and who writes which automaton, and the one compiled call in which a whole batch takes its turns."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from services.proposer.draft import MAX_DRAFT_TOKENS
from services.proposer.suffix_store import loops
from services.proposer.suffix_store.automaton import Automaton


@dataclass(frozen=True, slots=True)
class Rule:
    """A context of n tokens is worth a draft of n * factor + offset tokens, as long as their probability is at least
    `least`."""

    factor: float = 1.0
    offset: float = 0.0
    least: float = 0.1


class Turn(NamedTuple):
    """A follower takes tokens, and then guesses up to `longest`."""

    follower: int
    tokens: array[int]
    longest: int = 0


class Told(NamedTuple):
    """`taken` is less than was given when the automaton is full. `score` is what the draft is expected to bring."""

    taken: int
    tokens: list[int]
    score: float
    match_length: int


class Followers:
    """Numbers for followers; each stays where it is until it is released. The root is where everyone begins."""

    def __init__(self) -> None:
        self._table: npt.NDArray[np.int64] = np.zeros((64, loops.FOLLOWER_WORDS), np.int64)
        self._of: dict[int, Automaton] = {}
        self._writes: dict[int, Automaton] = {}
        self._free = list(range(64))

    def __len__(self) -> int:
        return len(self._of)

    def write(self, automaton: Automaton) -> int:
        follower = self._join(automaton, 0)
        self._writes[follower] = automaton
        return follower

    def read(self, automaton: Automaton) -> int:
        return self._join(automaton, loops.READER)

    def release(self, follower: int) -> None:
        del self._of[follower]
        self._writes.pop(follower, None)
        self._free.append(follower)

    def context(self, follower: int) -> int:
        """How many of the last tokens the automaton knows in a row."""
        return int(self._table[follower, loops.LENGTH])

    def run(self, turns: Sequence[Turn], rule: Rule) -> list[Told]:
        """One after the other: what one writes, the next one reads."""
        if not turns:
            return []
        packed = self.pack(turns, rule)
        loops.run(*packed)
        drafts, told, scores = packed[-3:]
        found = [
            Told(taken, drafts[at, :drafted].tolist() if drafted else [], score, matched)
            for at, ((taken, drafted, matched), score) in enumerate(zip(told.tolist(), scores.tolist(), strict=True))
        ]
        for turn, each in zip(turns, found, strict=True):
            if each.taken < len(turn.tokens):
                self._writes[turn.follower].refused(len(turn.tokens) - each.taken)
        return found

    def pack(self, turns: Sequence[Turn], rule: Rule) -> tuple[Any, ...]:
        """The arguments of the compiled call, and room for what it does."""
        tokens, begins = array("i"), [0]
        for follower, new, _ in turns:
            if new:
                tokens.extend(new)
                if follower in self._writes:
                    self._writes[follower].make_room(len(new))
            begins.append(len(tokens))
        count = len(turns)
        return (
            self._table,
            np.array([(follower, min(longest, MAX_DRAFT_TOKENS)) for follower, _, longest in turns], np.int64),
            np.array(begins, np.int64),
            np.array(tokens, np.int32),
            rule.factor,
            rule.offset,
            rule.least,
            np.empty((count, MAX_DRAFT_TOKENS), np.int32),
            np.empty((count, loops.TOLD_WORDS), np.int64),
            np.empty(count),
        )

    def _join(self, automaton: Automaton, end: int) -> int:
        if not self._free:
            size = len(self._table)
            self._table = np.concatenate([self._table, np.zeros_like(self._table)])
            self._free.extend(range(size, 2 * size))
        follower = self._free.pop()
        self._table[follower] = (automaton.address, end, 0, 0)
        self._of[follower] = automaton
        return follower
