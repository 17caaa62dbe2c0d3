"""Namespaces in memory: the text that the requests of one namespace have produced, and its acceptance rates.

A namespace has up to two automata. When the newer one is full, or has text of enough requests, an empty one replaces
it; the full one is still read until the new one is half full, so that there is always something to read. A namespace
has segments, corpora and rates of its own, and nothing of it is used for another.

The number of namespaces and their bytes are bounded: the least recently used are dropped, or emptied while they have
running requests. Knows nothing of where segments come from.
"""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from services.api.settings import Settings
from services.proposer.fast import calibration
from services.proposer.fast.automaton.automaton import MOST_TOKENS, Automaton
from services.proposer.fast.drafting import layout
from services.proposer.fast.owners import names_to_drop, owner_of

MOST_NAMESPACES = 1024
# Tokens of an automaton. More is better kept in segments, which take an eighth of the memory.
MOST_MUTABLE = 1 << 20
# Estimated memory of a token to come.
_BYTES_A_TOKEN = 80


class Segment(Protocol):
    """Learned text that no longer changes; its address is valid as long as the object is alive."""

    @property
    def address(self) -> int: ...


class Namespace:
    def __init__(self, name: str, number: int, words: npt.NDArray[np.int64]) -> None:
        self.name = name
        self.number = number
        self.chances = calibration.new_table()
        # The one that is written to is first.
        self.automata: list[Automaton] = []
        self.segments: list[Segment] = []
        self.corpora: dict[str, list[Segment]] = {}
        # Called when its corpora have changed.
        self.corpora_changed: Callable[[], None] = lambda: None
        # Running requests.
        self.requests = 0
        self._segments_at = np.zeros(0, np.int64)
        self.words = words

    def set_segments(self, segments: Sequence[Segment]) -> None:
        """Replaces the segments of the namespace's learned text."""
        addresses = np.array([segment.address for segment in segments], np.int64)
        self.words[layout.SEGMENTS_AT], self.words[layout.SEGMENTS] = addresses.ctypes.data, len(addresses)
        self.segments, self._segments_at = list(segments), addresses

    def set_corpus(self, name: str, segments: Sequence[Segment]) -> None:
        """Replaces the corpus of that name; without segments it is removed."""
        before = self.corpora.pop(name, None)
        if segments:
            self.corpora[name] = list(segments)
        self.corpora_changed()
        # Rows held their addresses until here.
        del before

    def held_bytes(self) -> int:
        return self.chances.nbytes + sum(automaton.held_bytes() for automaton in self.automata)

    def tokens(self) -> int:
        return sum(automaton.tokens for automaton in self.automata)


class Namespaces:
    """A namespace keeps the text of `max_requests` requests; None: of any number, 0: nothing is learned. An automaton
    has at most `max_tokens`, all together `max_bytes`."""

    def __init__(
        self, depth: int, max_tokens: int, max_requests: int | None = None, max_bytes: int = 1 << 40,
        most: int = MOST_NAMESPACES,
    ) -> None:  # fmt: skip
        self.learns = max_requests != 0
        self._depth = depth
        self._max_tokens = min(max_tokens, MOST_TOKENS)
        # Of a full automaton, and of another that is nearly half full.
        self._requests_of_one = max(1, 2 * max_requests // 3) if max_requests else 0
        self._max_bytes = max_bytes
        self._words = np.zeros((most, layout.SPACE_WORDS), np.int64)
        # Least recently used first.
        self._by_use: OrderedDict[str, Namespace] = OrderedDict()
        self._by_number: dict[int, Namespace] = {}
        self._free = list(range(most - 1, -1, -1))
        self._serials = itertools.count(1)
        # Called with each new namespace, to set its segments and corpora.
        self.met: Callable[[Namespace], None] = lambda namespace: None
        # Called with a namespace whose automaton is full, and with one that is dropped.
        self.filled: Callable[[Namespace], None] = lambda namespace: None
        self.left: Callable[[Namespace], None] = lambda namespace: None

    @classmethod
    def of(cls, settings: Settings) -> Namespaces:
        most = settings.suffix_decoding_max_cached_requests
        return cls(
            settings.suffix_decoding_max_tree_depth,
            min(settings.store_tokens // 2, MOST_MUTABLE),
            None if most < 0 else most,
            settings.store_mb << 20,
        )

    def __len__(self) -> int:
        return len(self._by_use)

    @property
    def address(self) -> int:
        return int(self._words.ctypes.data)

    def get(self, name: str) -> Namespace | None:
        """The namespace, a new one if the name is unknown; None if the name is "", or if there are too many and all
        have running requests."""
        if not name:
            return None
        namespace = self._by_use.get(name) or self._begin(name)
        if namespace is not None:
            self._by_use.move_to_end(name)
        return namespace

    def known(self) -> list[Namespace]:
        return list(self._by_use.values())

    def held_bytes(self) -> int:
        return sum(namespace.held_bytes() for namespace in self._by_use.values())

    def tokens(self) -> int:
        return sum(namespace.tokens() for namespace in self._by_use.values())

    # What the compiled step asks for ----------------------------------------------------------------------

    def make_room(self, number: int) -> None:
        """The newer automaton needs more memory. Other namespaces are emptied for it, the least recently used first."""
        namespace = self._by_number[number]
        self._by_use.move_to_end(namespace.name)
        automaton = namespace.automata[0]
        automaton.grow()
        held = self.held_bytes() + automaton.tokens * _BYTES_A_TOKEN
        for other in self.known():
            if held <= self._max_bytes or other is namespace:
                break
            held -= other.held_bytes()
            self._empty(other)

    def take_over(self, number: int) -> None:
        """An empty automaton replaces the full one, which is still read; the one before it is closed."""
        namespace = self._by_number[number]
        namespace.automata.insert(0, self._automaton())
        self._tell(namespace, 2)
        self.filled(namespace)

    def drop_old(self, number: int) -> None:
        self._tell(self._by_number[number], 1)

    # How they come and go -----------------------------------------------------------------------------------

    def _begin(self, name: str) -> Namespace | None:
        if not self._free:
            names = list(self._by_use)
            unused = names_to_drop(names, len(names) - 1, owner_of, lambda name: not self._by_use[name].requests)
            if not unused:
                return None
            self._end(self._by_use[unused[0]])
        number = self._free.pop()
        words = self._words[number]
        namespace = self._by_use[name] = self._by_number[number] = Namespace(name, number, words)
        words[layout.MAX_REQUESTS] = self._requests_of_one
        if self.learns:
            self._empty(namespace)
        self.met(namespace)
        return namespace

    def _end(self, namespace: Namespace) -> None:
        for automaton in namespace.automata:
            automaton.close()
        del self._by_use[namespace.name], self._by_number[namespace.number]
        self._words[namespace.number] = 0
        self.left(namespace)
        self._free.append(namespace.number)

    def _empty(self, namespace: Namespace) -> None:
        namespace.automata.insert(0, self._automaton())
        self._tell(namespace, 1)

    def _automaton(self) -> Automaton:
        return Automaton(self._depth, self._max_tokens, self._max_bytes // 2)

    def _tell(self, namespace: Namespace, kept: int) -> None:
        """Keeps `kept` automata. New serials tell readers and writers to start again from the root."""
        words = self._words[namespace.number]
        while len(namespace.automata) > kept:
            namespace.automata.pop().close()
        newer = namespace.automata[0]
        if words[layout.NEW_AT] != newer.address:
            words[layout.OLD_AT], words[layout.OLD_SERIAL] = words[layout.NEW_AT], words[layout.NEW_SERIAL]
            words[layout.NEW_AT], words[layout.NEW_SERIAL] = newer.address, next(self._serials)
            words[layout.REQUESTS] = 0
        if len(namespace.automata) < 2:
            words[layout.OLD_AT] = words[layout.OLD_SERIAL] = 0
