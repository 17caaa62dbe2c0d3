"""Namespaces in memory: the text that the requests of one namespace have produced, and its acceptance rates.

A namespace has an automaton. When it is full an empty one replaces it, and its text becomes a segment. A namespace has
segments, corpora and rates of its own, and nothing of it is used for another.

The number of namespaces and their bytes are bounded: the least recently used are dropped, or emptied while they have
running requests. Knows nothing of where segments come from. fast/namespaces.py has them in flat memory.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, Generic, Self, TypeVar

from services.api.drafter import Text
from services.api.settings import Settings
from services.proposer.names import names_to_drop, owner_of
from services.proposer.plain.automaton import BYTES_A_TOKEN, MAX_TOKENS, Automaton
from services.proposer.plain.rates import SourceRates
from services.proposer.segments.segment import Segment

MAX_NAMESPACES = 1024
# Tokens of an automaton. More is better kept in segments, which take an eighth of the memory.
MAX_AUTOMATON_TOKENS = 1 << 20


class Namespace:
    def __init__(self, name: str) -> None:
        self.name = name
        self.rates = SourceRates()
        # None: nothing is learned.
        self.automaton: Any = None
        self.segments: list[Segment] = []
        self.corpora: dict[str, list[Segment]] = {}
        # Running ones.
        self.requests = 0

    def set_segments(self, segments: Sequence[Segment]) -> None:
        """Replaces the segments of the namespace's learned text."""
        self.segments = list(segments)

    def set_corpus(self, name: str, segments: Sequence[Segment]) -> None:
        """Replaces the corpus of that name; without segments it is removed."""
        self.corpora.pop(name, None)
        if segments:
            self.corpora[name] = list(segments)

    def corpora_of(self, text: Text) -> list[tuple[str, Segment]]:
        """(corpus, segment) of the corpora that the request names; of all, when it names none."""
        names = self.corpora if text.corpora is None else [name for name in text.corpora if name in self.corpora]
        return [(name, segment) for name in names for segment in self.corpora[name]]

    def tokens(self) -> int:
        return self.automaton.tokens if self.automaton else 0

    def held_bytes(self) -> int:
        return self.tokens() * BYTES_A_TOKEN


Kind = TypeVar("Kind", bound=Namespace)


class Namespaces(Generic[Kind]):
    """An automaton has at most `max_tokens`, all together about `max_bytes`."""

    def __init__(
        self, depth: int, max_tokens: int, learns: bool = True, max_bytes: int = 1 << 40, most: int = MAX_NAMESPACES
    ) -> None:
        self.learns, self.depth, self._max_bytes, self._most = learns, depth, max_bytes, most
        self._max_tokens = min(max_tokens, MAX_TOKENS)
        # Least recently used first.
        self._by_use: OrderedDict[str, Kind] = OrderedDict()
        # Called with each new namespace, to set its segments and corpora.
        self.met: Callable[[Kind], None] = lambda namespace: None
        # Called with a namespace whose automaton is full, and with one that is dropped.
        self.filled: Callable[[Kind], None] = lambda namespace: None
        self.left: Callable[[Kind], None] = lambda namespace: None

    @classmethod
    def of(cls, settings: Settings) -> Self:
        return cls(
            settings.suffix_decoding_max_tree_depth,
            min(settings.store_tokens // 2, MAX_AUTOMATON_TOKENS),
            settings.suffix_decoding_max_cached_requests != 0,
            settings.store_mb << 20,
        )

    def __len__(self) -> int:
        return len(self._by_use)

    def get(self, name: str) -> Kind | None:
        """The namespace, a new one if the name is unknown; None if the name is "", or if there are too many and all
        have running requests."""
        if not name:
            return None
        namespace = self._by_use.get(name) or self._begin(name)
        if namespace is not None:
            self._by_use.move_to_end(name)
        return namespace

    def known(self) -> list[Kind]:
        return list(self._by_use.values())

    def held_bytes(self) -> int:
        return sum(namespace.held_bytes() for namespace in self._by_use.values())

    def tokens(self) -> int:
        return sum(namespace.tokens() for namespace in self._by_use.values())

    # Learning ---------------------------------------------------------------------------------------------

    def make_room(self, namespace: Kind, more: int = 0) -> None:
        """Other namespaces are emptied where all hold too much, the least recently used first."""
        self._by_use.move_to_end(namespace.name)
        held = self.held_bytes() + more
        for other in self.known():
            if held <= self._max_bytes or other is namespace:
                break
            held -= other.held_bytes()
            self._empty(other)

    def renew(self, namespace: Kind) -> None:
        """An empty automaton replaces the full one."""
        self._empty(namespace)
        self.filled(namespace)

    # How they come and go -----------------------------------------------------------------------------------

    def _begin(self, name: str) -> Kind | None:
        if len(self._by_use) >= self._most:
            names = list(self._by_use)
            unused = names_to_drop(names, len(names) - 1, owner_of, lambda name: not self._by_use[name].requests)
            if not unused:
                return None
            self._end(self._by_use[unused[0]])
        namespace: Kind = self._new(name)
        self._by_use[name] = namespace
        if self.learns:
            self._empty(namespace)
        self.met(namespace)
        return namespace

    def _end(self, namespace: Kind) -> None:
        del self._by_use[namespace.name]
        self.left(namespace)

    def _empty(self, namespace: Kind) -> None:
        namespace.automaton = self._automaton()

    def _new(self, name: str) -> Any:
        return Namespace(name)

    def _automaton(self) -> Any:
        return Automaton(self.depth, self._max_tokens)
