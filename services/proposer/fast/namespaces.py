"""Namespaces in the memory that the compiled step works on."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import numpy as np

from services.proposer.fast.automaton.automaton import FastAutomaton
from services.proposer.fast.drafting.chances import CELL_WORDS, CELLS
from services.proposer.fast.drafting.records import SPACE
from services.proposer.native import Record, Records
from services.proposer.plain.namespaces import MAX_NAMESPACES, Namespace, Namespaces
from services.proposer.segments.segment import Segment

# Estimated memory of a token to come.
_BYTES_A_TOKEN = 80


class FastNamespace(Namespace):
    def __init__(self, name: str, number: int, record: Record) -> None:
        super().__init__(name)
        self.number, self.record = number, record
        self.chances = np.zeros((CELLS, CELL_WORDS))
        # Called when its corpora have changed.
        self.corpora_changed: Callable[[], None] = lambda: None
        self._segments_at = np.zeros(0, np.int64)

    def set_segments(self, segments: Sequence[Segment]) -> None:
        addresses = np.array([segment.address for segment in segments], np.int64)
        self.record["segments_at"], self.record["segments"] = addresses.ctypes.data, len(addresses)
        super().set_segments(segments)
        self._segments_at = addresses

    def set_corpus(self, name: str, segments: Sequence[Segment]) -> None:
        before = self.corpora.get(name)
        super().set_corpus(name, segments)
        self.corpora_changed()
        # Rows held their addresses until here.
        del before

    def held_bytes(self) -> int:
        return int(self.chances.nbytes) + (self.automaton.held_bytes() if self.automaton else 0)


class FastNamespaces(Namespaces[FastNamespace]):
    def __init__(
        self, depth: int, max_tokens: int, learns: bool = True, max_bytes: int = 1 << 40, most: int = MAX_NAMESPACES
    ) -> None:
        super().__init__(depth, max_tokens, learns, max_bytes, most)
        self.records: Records = np.zeros(most, SPACE)
        self._by_number: dict[int, FastNamespace] = {}
        self._free = list(range(most - 1, -1, -1))
        self._serials = itertools.count(1)

    # What the compiled step asks for ----------------------------------------------------------------------

    def grow(self, number: int) -> None:
        """The automaton needs more memory."""
        namespace = self._by_number[number]
        namespace.automaton.grow()
        self.make_room(namespace, namespace.tokens() * _BYTES_A_TOKEN)

    def is_full(self, number: int) -> None:
        self.renew(self._by_number[number])

    # How they come and go -----------------------------------------------------------------------------------

    def _new(self, name: str) -> FastNamespace:
        number = self._free.pop()
        namespace = self._by_number[number] = FastNamespace(name, number, self.records[number])
        return namespace

    def _end(self, namespace: FastNamespace) -> None:
        super()._end(namespace)
        if namespace.automaton:
            namespace.automaton.close()
        del self._by_number[namespace.number]
        self.records[namespace.number] = np.zeros(1, SPACE)[0]
        self._free.append(namespace.number)

    def _automaton(self) -> FastAutomaton:
        return FastAutomaton(self.depth, self._max_tokens, self._max_bytes // 2)

    def _empty(self, namespace: FastNamespace) -> None:
        """A new serial tells readers and writers to start again from the root."""
        before, record = namespace.automaton, namespace.record
        super()._empty(namespace)
        record["automaton_at"], record["serial"] = namespace.automaton.address, next(self._serials)
        if before:
            before.close()
