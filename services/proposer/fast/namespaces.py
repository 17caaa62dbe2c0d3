"""Namespaces in the memory that the compiled step works on."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import numpy as np

from services.proposer.fast.automaton.automaton import FastAutomaton
from services.proposer.fast.drafting.chances import CELL_WORDS, CELLS
from services.proposer.fast.drafting.records import SPACE
from services.proposer.native import Record, Records
from services.proposer.plain.namespaces import MOST_NAMESPACES, Namespace, Namespaces
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
        held: int = sum(automaton.held_bytes() for automaton in self.automata)
        return int(self.chances.nbytes) + held


class FastNamespaces(Namespaces[FastNamespace]):
    def __init__(
        self, depth: int, max_tokens: int, max_requests: int | None = None, max_bytes: int = 1 << 40,
        most: int = MOST_NAMESPACES,
    ) -> None:  # fmt: skip
        super().__init__(depth, max_tokens, max_requests, max_bytes, most)
        self.records: Records = np.zeros(most, SPACE)
        self._by_number: dict[int, FastNamespace] = {}
        self._free = list(range(most - 1, -1, -1))
        self._serials = itertools.count(1)

    # What the compiled step asks for ----------------------------------------------------------------------

    def grow(self, number: int) -> None:
        """The newer automaton needs more memory."""
        namespace = self._by_number[number]
        automaton = namespace.automata[0]
        automaton.grow()
        self.make_room(namespace, automaton.tokens * _BYTES_A_TOKEN)

    def is_full(self, number: int) -> None:
        self.take_over(self._by_number[number])

    def drop_old(self, number: int) -> None:
        self._keep(self._by_number[number], 1)

    # How they come and go -----------------------------------------------------------------------------------

    def _new(self, name: str) -> FastNamespace:
        number = self._free.pop()
        record = self.records[number]
        record["max_requests"] = self._requests_of_one
        namespace = self._by_number[number] = FastNamespace(name, number, record)
        return namespace

    def _end(self, namespace: FastNamespace) -> None:
        super()._end(namespace)
        del self._by_number[namespace.number]
        self.records[namespace.number] = np.zeros(1, SPACE)[0]
        self._free.append(namespace.number)

    def _automaton(self) -> FastAutomaton:
        return FastAutomaton(self.depth, self._max_tokens, self._max_bytes // 2)

    def _add(self, namespace: FastNamespace) -> None:
        """New serials tell readers and writers to start again from the root."""
        super()._add(namespace)
        record = namespace.record
        record["old_at"], record["old_serial"] = record["new_at"], record["new_serial"]
        record["new_at"], record["new_serial"] = namespace.automata[0].address, next(self._serials)
        record["requests"] = 0

    def _keep(self, namespace: FastNamespace, count: int) -> None:
        for automaton in namespace.automata[count:]:
            automaton.close()
        super()._keep(namespace, count)
        if count < 2:
            namespace.record["old_at"] = namespace.record["old_serial"] = 0
