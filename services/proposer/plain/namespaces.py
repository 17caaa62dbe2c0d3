"""Namespaces in memory: the text that the requests of one namespace have produced, and its acceptance rates.

A namespace has up to two automata. When the newer one is full, or has text of enough requests, an empty one replaces
it; the full one is still read until the new one is half full, so that there is always something to read. A namespace
has segments, corpora and rates of its own, and nothing of it is used for another.

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
from services.proposer.plain.automaton import BYTES_A_TOKEN, MOST_TOKENS, Automaton
from services.proposer.plain.rates import SourceRates
from services.proposer.segments.segment import Segment

MOST_NAMESPACES = 1024
# Tokens of an automaton. More is better kept in segments, which take an eighth of the memory.
MOST_MUTABLE = 1 << 20


class Namespace:
    def __init__(self, name: str) -> None:
        self.name = name
        self.rates = SourceRates()
        # The one that is written to is first.
        self.automata: list[Any] = []
        self.segments: list[Segment] = []
        self.corpora: dict[str, list[Segment]] = {}
        # Running requests, and those that wrote to the newer automaton.
        self.requests = self.wrote = 0

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
        return sum(automaton.tokens for automaton in self.automata)

    def held_bytes(self) -> int:
        return self.tokens() * BYTES_A_TOKEN


Kind = TypeVar("Kind", bound=Namespace)


class Namespaces(Generic[Kind]):
    """A namespace keeps the text of `max_requests` requests; None: of any number, 0: nothing is learned. An automaton
    has at most `max_tokens`, all together about `max_bytes`."""

    def __init__(
        self, depth: int, max_tokens: int, max_requests: int | None = None, max_bytes: int = 1 << 40,
        most: int = MOST_NAMESPACES,
    ) -> None:  # fmt: skip
        self.learns = max_requests != 0
        self.depth, self._max_bytes, self._most = depth, max_bytes, most
        self._max_tokens = min(max_tokens, MOST_TOKENS)
        # Of a full automaton, and of another that is nearly half full.
        self._requests_of_one = max(1, 2 * max_requests // 3) if max_requests else 0
        # Least recently used first.
        self._by_use: OrderedDict[str, Kind] = OrderedDict()
        # Called with each new namespace, to set its segments and corpora.
        self.met: Callable[[Kind], None] = lambda namespace: None
        # Called with a namespace whose automaton is full, and with one that is dropped.
        self.filled: Callable[[Kind], None] = lambda namespace: None
        self.left: Callable[[Kind], None] = lambda namespace: None

    @classmethod
    def of(cls, settings: Settings) -> Self:
        most = settings.suffix_decoding_max_cached_requests
        return cls(
            settings.suffix_decoding_max_tree_depth,
            min(settings.store_tokens // 2, MOST_MUTABLE),
            None if most < 0 else most,
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

    def joined(self, namespace: Kind) -> Any:
        """One more request writes to the newer automaton: the one that it is to begin in."""
        if self._requests_of_one and namespace.wrote >= self._requests_of_one:
            self.take_over(namespace)
        namespace.wrote += 1
        self.make_room(namespace)
        return namespace.automata[0]

    def learned(self, namespace: Kind) -> None:
        """The older automaton isn't needed once the newer one is half full."""
        newer = namespace.automata[0]
        is_heard = self._requests_of_one and 2 * namespace.wrote >= self._requests_of_one
        if len(namespace.automata) > 1 and (is_heard or 2 * newer.tokens >= newer.max_tokens):
            self._keep(namespace, 1)

    def make_room(self, namespace: Kind, more: int = 0) -> None:
        """Other namespaces are emptied where all hold too much, the least recently used first."""
        self._by_use.move_to_end(namespace.name)
        held = self.held_bytes() + more
        for other in self.known():
            if held <= self._max_bytes or other is namespace:
                break
            held -= other.held_bytes()
            self._empty(other)

    def take_over(self, namespace: Kind) -> None:
        """An empty automaton replaces the full one, which is still read; the one before it is dropped."""
        self._add(namespace)
        self._keep(namespace, 2)
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
        self._keep(namespace, 0)
        self.left(namespace)

    def _empty(self, namespace: Kind) -> None:
        self._add(namespace)
        self._keep(namespace, 1)

    def _add(self, namespace: Kind) -> None:
        namespace.automata.insert(0, self._automaton())
        namespace.wrote = 0

    def _keep(self, namespace: Kind, count: int) -> None:
        del namespace.automata[count:]

    def _new(self, name: str) -> Any:
        return Namespace(name)

    def _automaton(self) -> Any:
        return Automaton(self.depth, self._max_tokens)
