"""The suffix index: the text that drafts are made from, of running requests and learned earlier.

    open                      the index of a process
    follow ─▶ draft ─▶ end    a text while its request runs, and when it has ended
    work, refresh             index ended texts; pick up new segments and corpora
    stats                     figures for metrics

    new output of a text    ─▶ library of its namespace
    a text has ended        ─▶ indexed to its last token, a slice at a time, then forgotten
    a namespace begins      ◀─ its segments and corpora; what is in no segment yet becomes one
    an automaton is full    ─▶ what was learned becomes a segment
    the library has changed ─▶ segments and corpora are exchanged between two calls

Not thread-safe; the library's threads do slow work. Knows no messages.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass

from services.api.drafter import Draft, DraftRequest, Text
from services.api.methods import COMPILED, NAIVE
from services.api.names import MODEL_ANSWERS
from services.api.settings import Settings, store_dir
from services.proposer.fast import compiling
from services.proposer.fast import texts as fast
from services.proposer.libraries import Libraries
from services.proposer.names import vocabulary_of
from services.proposer.plain import texts as plain
from services.proposer.plain.namespaces import Namespace
from services.proposer.plain.texts import PlainMethod
from services.proposer.segments.segment import Segment
from services.proposer.shipped import ShippedAnswers
from services.proposer.store.library import Bounds, Library, Stats

# Ended texts that wait to be indexed; further ones are in the library only.
MAX_WAITING = 4096
_BATCH = 32

Texts = plain.Texts | fast.FastTexts


@dataclass(frozen=True, slots=True)
class IndexStats:
    # Memory of automata, tables and their requests.
    memory_bytes: int
    # Ended texts that are not indexed yet.
    waiting_texts: int
    # Figures of the libraries, one for each vocabulary.
    libraries: list[Stats]


class SuffixIndex:
    """`texts` serves until the loops of `then` are compiled; without `then`, always."""

    def __init__(
        self,
        texts: Texts,
        open_library: Callable[[str], Library],
        learns_prompts: bool = False,
        opener: Executor | None = None,
        shipped: ShippedAnswers | None = None,
        then: fast.FastTexts | None = None,
    ) -> None:
        self._learns_prompts, self._shipped, self._then = learns_prompts, shipped, then
        self._open_library = open_library
        self._libraries = Libraries(self._open, opener)
        # Texts that ended while their library was being opened.
        self._early: list[Text] = []
        # By text in the library: its namespace, and the number of its tokens there.
        self._stored: dict[int, tuple[str, int]] = {}
        # Ended texts, not yet indexed to their end; and those that are, for the texts that serve next.
        self._waiting: deque[Text] = deque()
        self._done: list[Text] = []
        # By namespace: its segments, and the library's version when it got them.
        self._held: dict[str, list[Segment]] = {}
        self._versions: dict[str, int] = {}
        # Namespaces of whose earlier text a segment was asked for.
        self._sealed: set[str] = set()
        self._serve(texts)

    @classmethod
    def open(cls, settings: Settings) -> SuffixIndex:
        """Compiling begins, unless no method needs it."""
        compiles = settings.proposer_index == COMPILED
        if compiles and settings.method != NAIVE:
            compiling.start()
        folder = store_dir(settings)
        bounds = Bounds(max_bytes=settings.store_mb << 20, max_tokens=settings.store_tokens)
        return cls(
            plain.Texts.of(settings),
            lambda vocabulary: Library(folder, vocabulary, bounds),
            settings.suffix_decoding_learn_prompts,
            ThreadPoolExecutor(1, "library-opens"),
            ShippedAnswers() if settings.model_answers else None,
            fast.FastTexts.of(settings) if compiles else None,
        )

    def _serve(self, texts: Texts) -> None:
        self._texts = texts
        texts.namespaces.met = self._met
        texts.namespaces.filled = self._filled
        texts.namespaces.left = self._left

    def _change_when_compiled(self) -> None:
        """What was learned is learned again, from memory."""
        if self._then is None or not compiling.is_compiled():
            return
        sealed = set(self._sealed)
        for namespace in self._texts.namespaces.known():
            self._left(namespace)
        self._sealed = sealed
        self._serve(self._then)
        self._then = None
        self._waiting.extendleft(reversed(self._done))
        self._done.clear()

    def _open(self, vocabulary: str) -> Library:
        """In the opener's thread."""
        if self._shipped is not None:
            self._shipped.prepare(vocabulary)
        return self._open_library(vocabulary)

    # Texts ------------------------------------------------------------------------------------------------

    def follow(self, text: Text) -> None:
        """The text's new output is stored, if its namespace learns from it."""
        if not self._learns_from(text):
            return
        _, begin = self._stored.get(text.text_id, ("", 0 if self._learns_prompts else text.prompt_tokens))
        if begin < len(text.tokens) and (library := self._libraries.of(text.namespace)) is not None:
            library.learn(text.namespace, text.text_id, text.tokens[begin:])
            self._stored[text.text_id] = text.namespace, len(text.tokens)

    def draft(self, requests: Sequence[DraftRequest], method: PlainMethod) -> list[Draft]:
        """Index each text's new tokens, then return the method's draft, or NO_DRAFT until a long prompt is indexed."""
        self._change_when_compiled()
        return self._texts.draft(requests, method)

    def end(self, text: Text) -> None:
        """The text is complete: it is learned to its end, and forgotten."""
        self.follow(text)
        if text.text_id in self._stored:
            self._stop_storing(text.text_id)
            self._take_in(text)
        elif self._learns_from(text) and self._libraries.is_opening(text.namespace) and self._has_room():
            self._early.append(text)
        else:
            self._texts.forget(text.text_id)

    def forget(self, text_ids: Sequence[int]) -> None:
        """Texts whose end is not known; unknown ids are fine."""
        for text_id in text_ids:
            self._texts.forget(text_id)
            self._stop_storing(text_id)

    def _stop_storing(self, text_id: int) -> None:
        namespace, _ = self._stored.pop(text_id, ("", 0))
        if namespace and (library := self._libraries.of(namespace)) is not None:
            library.end(namespace, text_id)

    def _learns_from(self, text: Text) -> bool:
        return bool(text.namespace and text.learn and self._texts.namespaces.learns)

    def _take_in(self, text: Text) -> None:
        if self._has_room():
            self._waiting.append(text)
        else:
            self._texts.forget(text.text_id)

    def _has_room(self) -> bool:
        return len(self._waiting) + len(self._early) + len(self._done) < MAX_WAITING

    # Background work --------------------------------------------------------------------------------------

    def work(self) -> bool:
        """Index a slice of the ended texts, for about a millisecond; returns whether more of them wait."""
        self._change_when_compiled()
        batch = [self._waiting.popleft() for _ in range(min(_BATCH, len(self._waiting)))]
        self._texts.take_in(batch)
        left = []
        for text in batch:
            if self._texts.is_taken_in(text):
                self._texts.forget(text.text_id)
                self._done += [text] if self._then is not None else []
            else:
                left.append(text)
        self._waiting.extendleft(reversed(left))
        return bool(self._waiting)

    def refresh(self) -> None:
        """Pick up opened libraries and their new segments and corpora."""
        self._opened()
        for namespace in self._texts.namespaces.known():
            library = self._libraries.of(namespace.name)
            if library is not None and library.version(namespace.name) != self._versions.get(namespace.name, 0):
                self._exchange(library, namespace)

    def _opened(self) -> None:
        """Pick up what the library holds, then the texts that ended before it was open."""
        finished = self._libraries.finished()
        if not finished:
            return
        for namespace in self._texts.namespaces.known():
            if vocabulary_of(namespace.name) in finished:
                self._met(namespace)
        early, self._early = self._early, []
        for text in early:
            self.end(text)

    # Namespaces -------------------------------------------------------------------------------------------

    def _met(self, namespace: Namespace) -> None:
        """A namespace begins: its text of before becomes a segment, that of now is in its automaton."""
        library = self._libraries.of(namespace.name)
        if self._shipped is not None and (shipped := self._shipped.of(vocabulary_of(namespace.name))):
            namespace.set_corpus(MODEL_ANSWERS, shipped)
        if library is None:
            return
        if namespace.name not in self._sealed:
            self._sealed.add(namespace.name)
            library.seal(namespace.name)
        self._exchange(library, namespace)

    def _filled(self, namespace: Namespace) -> None:
        if (library := self._libraries.of(namespace.name)) is not None:
            library.seal(namespace.name)

    def _left(self, namespace: Namespace) -> None:
        """Its segments are not read any more."""
        self._versions.pop(namespace.name, None)
        self._sealed.discard(namespace.name)
        self._release(namespace.name, self._held.pop(namespace.name, []))

    def _exchange(self, library: Library, namespace: Namespace) -> None:
        name = namespace.name
        # Read first: a change meanwhile is found the next time.
        self._versions[name] = library.version(name)
        before, held = self._held.get(name, []), library.segments(name)
        namespace.set_segments(held)
        ready = {card.name for card in library.corpora(name) if card.state == "ready"}
        for corpus in ready | namespace.corpora.keys() - {MODEL_ANSWERS}:
            segments = library.corpus_segments(name, corpus) if corpus in ready else []
            namespace.set_corpus(corpus, segments)
            held += segments
        self._held[name] = held
        self._release(name, before)

    def _release(self, name: str, segments: list[Segment]) -> None:
        if (library := self._libraries.of(name)) is not None:
            for segment in segments:
                library.release(segment)

    # Around it --------------------------------------------------------------------------------------------

    def library(self, namespace: str) -> Library | None:
        """The library of a namespace, for its corpora; None: there is none. One that is being opened is waited for."""
        library = self._libraries.of(namespace)
        if self._libraries.is_opening(namespace):
            self._libraries.wait()
            self._opened()
            library = self._libraries.of(namespace)
        return library

    def stats(self) -> IndexStats:
        return IndexStats(self._texts.held_bytes(), len(self._waiting), list(self._libraries.stats()))

    def close(self) -> None:
        self._libraries.wait()
        self._opened()
        self._libraries.close()
        if self._shipped is not None:
            self._shipped.close()
