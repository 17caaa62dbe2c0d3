"""Namespaces in the memory that the compiled step works on."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from services.proposer.fast.automaton.automaton import Automaton
from services.proposer.fast.drafting import layout
from services.proposer.fast.drafting.chances import CELL_WORDS, CELLS
from services.proposer.fast.segments.segment import Segment
from services.proposer.namespaces import MOST_NAMESPACES
from services.proposer.namespaces import Namespace as PlainNamespace
from services.proposer.namespaces import Namespaces as PlainNamespaces

# Estimated memory of a token to come.
_BYTES_A_TOKEN = 80


class Namespace(PlainNamespace):
    def __init__(self, name: str, number: int, words: npt.NDArray[np.int64]) -> None:
        super().__init__(name)
        self.number, self.words = number, words
        self.chances = np.zeros((CELLS, CELL_WORDS))
        # Called when its corpora have changed.
        self.corpora_changed: Callable[[], None] = lambda: None
        self._segments_at = np.zeros(0, np.int64)

    def set_segments(self, segments: Sequence[Segment]) -> None:
        addresses = np.array([segment.address for segment in segments], np.int64)
        self.words[layout.SEGMENTS_AT], self.words[layout.SEGMENTS] = addresses.ctypes.data, len(addresses)
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


class Namespaces(PlainNamespaces[Namespace]):
    def __init__(
        self, depth: int, max_tokens: int, max_requests: int | None = None, max_bytes: int = 1 << 40,
        most: int = MOST_NAMESPACES,
    ) -> None:  # fmt: skip
        super().__init__(depth, max_tokens, max_requests, max_bytes, most)
        self._words = np.zeros((most, layout.SPACE_WORDS), np.int64)
        self._by_number: dict[int, Namespace] = {}
        self._free = list(range(most - 1, -1, -1))
        self._serials = itertools.count(1)

    @property
    def address(self) -> int:
        return int(self._words.ctypes.data)

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

    def _new(self, name: str) -> Namespace:
        number = self._free.pop()
        words = self._words[number]
        words[layout.MAX_REQUESTS] = self._requests_of_one
        namespace = self._by_number[number] = Namespace(name, number, words)
        return namespace

    def _end(self, namespace: Namespace) -> None:
        super()._end(namespace)
        del self._by_number[namespace.number]
        self._words[namespace.number] = 0
        self._free.append(namespace.number)

    def _automaton(self) -> Automaton:
        return Automaton(self.depth, self._max_tokens, self._max_bytes // 2)

    def _add(self, namespace: Namespace) -> None:
        """New serials tell readers and writers to start again from the root."""
        super()._add(namespace)
        words = namespace.words
        words[layout.OLD_AT], words[layout.OLD_SERIAL] = words[layout.NEW_AT], words[layout.NEW_SERIAL]
        words[layout.NEW_AT], words[layout.NEW_SERIAL] = namespace.automata[0].address, next(self._serials)
        words[layout.REQUESTS] = 0

    def _keep(self, namespace: Namespace, count: int) -> None:
        for automaton in namespace.automata[count:]:
            automaton.close()
        super()._keep(namespace, count)
        if count < 2:
            namespace.words[layout.OLD_AT] = namespace.words[layout.OLD_SERIAL] = 0
