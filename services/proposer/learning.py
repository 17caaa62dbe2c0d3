"""Where the knowledge of running texts and the library of what was learned meet.

    new output of a text  ─▶ journal of its namespace                                  (learned)
    a text has ended      ─▶ taken in to its last token, a slice at a time, then forgotten
    a namespace begins    ◀─ what the library holds of it: segments, corpora, and texts that are in no segment yet
    an automaton is full  ─▶ what was learned becomes a segment
    the library changed   ─▶ segments and corpora are exchanged between two batches

Namespaces of two vocabularies never meet: ids mean something else there. Knows no messages and no guesses. Called from
one thread; whatever takes long the library does in its own, and it is opened in one: until then texts are guessed from
what they say themselves, and those that end wait.
"""

from __future__ import annotations

import itertools
import logging
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from itertools import accumulate
from operator import mul
from pathlib import Path

from mesh import processors
from services.api.settings import Settings, cache_dir
from services.proposer.knowledge import Knowledge
from services.proposer.namespaces import Namespace
from services.proposer.proposer import View
from services.proposer.suffix_store.library import Bounds, Library, Stats
from services.proposer.suffix_store.segment import Segment

log = logging.getLogger(__name__)

IN_MEMORY = "none"
# One is what a mesh has; a few let its model be exchanged.
MOST_VOCABULARIES = 4
# Texts that wait to be taken in; those that come then are in the journal only.
MOST_WAITING = 4096
_BATCH = 32
_BETWEEN = "\n"


def joined(vocabulary: str, namespace: str) -> str:
    """The name under which a namespace is known here; "": nobody's."""
    return f"{vocabulary}{_BETWEEN}{namespace}" if namespace else ""


class Learning:
    """`open_library` makes the library of a vocabulary, in `opener`; without that, while who needs one waits."""

    def __init__(
        self,
        knowledge: Knowledge,
        open_library: Callable[[str], Library],
        learns_prompts: bool = False,
        opener: Executor | None = None,
    ) -> None:
        self._knowledge = knowledge
        self._open_library = open_library
        self._learns_prompts = learns_prompts
        self._opener = opener
        self._libraries: dict[str, Library | None] = {}
        self._opening: dict[str, Future[Library]] = {}
        # They ended while their library was being opened.
        self._early: list[View] = []
        # Of each text that is in the journal: its namespace, and how much of it.
        self._journaled: dict[int, tuple[str, int]] = {}
        # To be taken in, and then forgotten.
        self._waiting: deque[View] = deque()
        # Of texts from a library: nobody else numbers them.
        self._numbers = itertools.count(-1, -1)
        # Of each namespace: what it was given, and when that was all there was.
        self._held: dict[str, list[Segment]] = {}
        self._versions: dict[str, int] = {}
        knowledge.used = self._used
        knowledge.namespaces.met = self._met
        knowledge.namespaces.filled = self._filled
        knowledge.namespaces.left = self._left

    @classmethod
    def of(cls, settings: Settings, knowledge: Knowledge) -> Learning:
        folder = None if settings.store_dir == IN_MEMORY else store_dir(settings)
        bounds = Bounds(max_bytes=settings.store_mb << 20, max_tokens=settings.store_tokens)
        return cls(
            knowledge,
            lambda name: Library(folder, name, bounds),
            settings.suffix_decoding_learn_prompts,
            ThreadPoolExecutor(1, "library-opens", processors.anywhere),
        )

    # Texts --------------------------------------------------------------------------------------------------

    def grown(self, view: View) -> None:
        """What is new of an output is learned."""
        if not self._learns_from(view):
            return
        _, begin = self._journaled.get(view.sequence_id, ("", 0 if self._learns_prompts else view.prompt_tokens))
        if begin < len(view.tokens) and (library := self._library_of(view.namespace)) is not None:
            library.learn(view.namespace, view.sequence_id, view.tokens[begin:])
            self._journaled[view.sequence_id] = view.namespace, len(view.tokens)

    def ended(self, view: View) -> None:
        """The whole of a text that doesn't go on."""
        self.grown(view)
        if view.sequence_id in self._journaled:
            self.forgotten(view.sequence_id)
            self._take_in(view)
        elif self._learns_from(view) and _vocabulary(view.namespace) in self._opening and self._has_room():
            self._early.append(view)
        else:
            self._knowledge.forget(view.sequence_id)

    def forgotten(self, sequence_id: int) -> None:
        """It doesn't go on; nobody says that it has come to its end."""
        namespace, _ = self._journaled.pop(sequence_id, ("", 0))
        if namespace and (library := self._library_of(namespace)) is not None:
            library.end(namespace, sequence_id)

    def _learns_from(self, view: View) -> bool:
        return bool(view.namespace and view.learn and self._knowledge.namespaces.learns)

    def _take_in(self, view: View) -> None:
        if self._has_room():
            self._waiting.append(view)
        else:
            self._knowledge.forget(view.sequence_id)

    def _has_room(self) -> bool:
        return len(self._waiting) + len(self._early) < MOST_WAITING

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def work(self) -> None:
        """A slice of the texts that wait. To be called only when the loops are compiled."""
        batch = [self._waiting.popleft() for _ in range(min(_BATCH, len(self._waiting)))]
        self._knowledge.follow(batch)
        left = []
        for view in batch:
            if self._knowledge.is_followed(view):
                self._knowledge.forget(view.sequence_id)
            else:
                left.append(view)
        self._waiting.extendleft(reversed(left))

    # Namespaces ---------------------------------------------------------------------------------------------

    def _met(self, namespace: Namespace) -> None:
        """The library is asked what there is before anything more is learned, or it would be learned twice."""
        library = self._library_of(namespace.name)
        if library is None:
            return
        if self._knowledge.namespaces.learns:
            for text in library.recent(namespace.name):
                self._take_in(View(next(self._numbers), text, namespace=namespace.name))
        self._exchange(library, namespace)

    def _filled(self, namespace: Namespace) -> None:
        if (library := self._library_of(namespace.name)) is not None:
            library.seal(namespace.name)

    def _left(self, namespace: Namespace) -> None:
        """Nobody reads its segments any more."""
        self._versions.pop(namespace.name, None)
        self._release(namespace.name, self._held.pop(namespace.name, []))

    def _used(self, namespace: Namespace, segment: object, likely: list[float]) -> None:
        """A draft came of the segment: it stays longer, by the tokens that the draft should bring."""
        library = self._library_of(namespace.name)
        if library is not None and isinstance(segment, Segment):
            library.used(namespace.name, segment, sum(accumulate(likely, mul)))

    def refresh(self) -> None:
        """What libraries have made since, and those that have been opened: to be called now and then."""
        for vocabulary in [name for name, opening in self._opening.items() if opening.done()]:
            self._opened(vocabulary)
        for namespace in self._knowledge.namespaces.known():
            library = self._library_of(namespace.name)
            if library is not None and library.version(namespace.name) != self._versions.get(namespace.name, 0):
                self._exchange(library, namespace)

    def _exchange(self, library: Library, namespace: Namespace) -> None:
        name = namespace.name
        # Asked for first: what changes meanwhile is found the next time.
        self._versions[name] = library.version(name)
        before, held = self._held.get(name, []), library.segments(name)
        namespace.set_segments(held)
        ready = {card.name for card in library.corpora(name) if card.state == "ready"}
        for corpus in ready | namespace.corpora.keys():
            segments = library.corpus_segments(name, corpus) if corpus in ready else []
            namespace.set_corpus(corpus, segments)
            held += segments
        self._held[name] = held
        self._release(name, before)

    def _release(self, name: str, segments: list[Segment]) -> None:
        if (library := self._library_of(name)) is not None:
            for segment in segments:
                library.release(segment)

    # Libraries ----------------------------------------------------------------------------------------------

    def library(self, vocabulary: str) -> Library | None:
        """None: it can't be opened, or there are too many; what is learned there is gone with this process. One that is
        being opened is waited for."""
        self._begin_to_open(vocabulary)
        if vocabulary in self._opening:
            self._opened(vocabulary)
        return self._libraries.get(vocabulary)

    def _library_of(self, name: str) -> Library | None:
        """Of a namespace; None also while it is being opened."""
        vocabulary = _vocabulary(name)
        self._begin_to_open(vocabulary)
        return self._libraries.get(vocabulary)

    def _begin_to_open(self, vocabulary: str) -> None:
        known = self._libraries.keys() | self._opening.keys()
        if vocabulary in known or len(known) >= MOST_VOCABULARIES:
            return
        if self._opener is None:
            self._libraries[vocabulary] = _unless_refused(lambda: self._open_library(vocabulary))
        else:
            self._opening[vocabulary] = self._opener.submit(self._open_library, vocabulary)

    def _opened(self, vocabulary: str) -> None:
        """What has happened meanwhile is made up for: first what the library holds, then what has come to it."""
        self._libraries[vocabulary] = _unless_refused(self._opening.pop(vocabulary).result)
        for namespace in self._knowledge.namespaces.known():
            if _vocabulary(namespace.name) == vocabulary:
                self._met(namespace)
        early, self._early = self._early, []
        for view in early:
            self.ended(view)

    def stats(self) -> Iterator[Stats]:
        return (library.stats() for library in self._libraries.values() if library is not None)

    def close(self) -> None:
        for vocabulary in list(self._opening):
            self._opened(vocabulary)
        if self._opener is not None:
            self._opener.shutdown()
        for library in self._libraries.values():
            if library is not None:
                library.close()


def _unless_refused(opened: Callable[[], Library]) -> Library | None:
    try:
        return opened()
    except OSError as error:
        log.error("what is learned can't be kept: %s (see --store-dir)", error)
        return None


def _vocabulary(namespace: str) -> str:
    return namespace.partition(_BETWEEN)[0]


def store_dir(settings: Settings) -> Path:
    return Path(settings.store_dir) if settings.store_dir else cache_dir(settings) / "store"
