"""The texts being followed, in plain Python: a text's own automaton, its place in its namespace's text and in its
prediction. fast/texts.py has them in the memory of the compiled step, and gives the same drafts.

New tokens of all texts are taken in first, then a drafter guesses for each, so that all read the newest state. The
tokens taken in by one call are bounded, and the shortest texts go first: a long prompt gets no drafts until all of it
is taken in. Not thread-safe.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from services.api.drafter import MAX_DRAFT_TOKENS, NO_DRAFT, Draft, DraftRequest, Text
from services.api.methods import PLAIN
from services.api.settings import Settings
from services.proposer.plain.automaton import BYTES_A_TOKEN, Automaton, Reader, Writer, reader_of, writer_of
from services.proposer.plain.guess import DraftRule, Guess
from services.proposer.plain.namespaces import Namespace, Namespaces
from services.proposer.plain.rates import SourceRates
from services.proposer.segments.segment import Segment

# The most tokens that one call takes in: some milliseconds.
SLICE = 256
# Seconds that a batch's drafts may take while the compiled loops aren't there: workers wait no longer than some
# milliseconds, and the compiler needs the processor, too.
WHILE_COMPILING = 0.01


@dataclass(frozen=True, slots=True)
class TextOptions:
    # The longest context, and the shortest and longest n-gram.
    depth: int = 64
    least_ngram: int = 2
    most_ngram: int = 5
    learns_prompts: bool = False

    @classmethod
    def of(cls, settings: Settings) -> TextOptions:
        return cls(
            settings.suffix_decoding_max_tree_depth,
            settings.min_ngram_size,
            settings.max_ngram_size,
            settings.suffix_decoding_learn_prompts,
        )

    def begins_to_learn(self, text: Text) -> int:
        """How many of the text's tokens its namespace doesn't learn."""
        return 0 if self.learns_prompts else max(0, text.prompt_tokens)


class PlainMethod(Protocol):
    """What is asked for drafts: a text drafter, in plain Python and by what the compiled step knows it."""

    # In order of preference.
    @property
    def sources(self) -> tuple[str, ...]: ...

    # All sources together, token by token.
    @property
    def is_blended(self) -> bool: ...

    @property
    def rule(self) -> DraftRule: ...

    def compare(self, followed: Followed) -> None: ...

    def guess(self, followed: Followed, ahead: Sequence[int], longest: int) -> Guess: ...


@dataclass(slots=True)
class Followed:
    text: Text
    options: TextOptions
    namespace: Namespace | None
    writer: Writer
    rates: SourceRates
    # Tokens in its own automaton, and the place up to which its namespace has learned it, with what it writes there.
    taken: int = 0
    learned: int = 0
    learner: Writer | None = None
    # A reader of the namespace's automaton, and how far it has read.
    reader: Reader | None = None
    read: int = 0
    # What a method keeps of the text, by its name.
    kept: dict[str, Any] = field(default_factory=dict)

    def own(self, ahead: Sequence[int]) -> Reader:
        """A reader of the text's own automaton, behind the text and what is ahead of it."""
        return self.writer.behind(ahead)

    def shared(self) -> Reader | None:
        """A reader of the namespace's automaton, behind the text. One that is far behind reads only as many tokens as
        a context has."""
        automaton = self.namespace.automaton if self.namespace else None
        tokens, late = self.text.tokens, max(0, len(self.text.tokens) - self.options.depth)
        if automaton is None:
            self.reader = None
        elif self.reader is None or self.reader.automaton is not automaton or self.read < late:
            self.reader = reader_of(automaton).read(tokens[late:])
        else:
            self.reader.read(tokens[self.read :])
        self.read = len(tokens)
        return self.reader

    def context(self, ahead: Sequence[int]) -> list[int]:
        return [*self.text.tokens[-self.options.depth :], *ahead][-self.options.depth :]

    def segments(self) -> list[Segment]:
        return self.namespace.segments if self.namespace else []

    def corpora(self) -> list[tuple[str, Segment]]:
        return self.namespace.corpora_of(self.text) if self.namespace else []


class Texts:
    """A batch gets drafts for `within` seconds; the rest of it gets none."""

    def __init__(
        self,
        namespaces: Namespaces[Namespace],
        options: TextOptions,
        taken_in_a_call: int = SLICE,
        within: float = math.inf,
    ) -> None:
        self.namespaces, self.options, self._within = namespaces, options, within
        self._slice = taken_in_a_call
        self._followed: dict[int, Followed] = {}

    @classmethod
    def of(cls, settings: Settings) -> Texts:
        within = math.inf if settings.proposer_index == PLAIN else WHILE_COMPILING
        return cls(Namespaces.of(settings), TextOptions.of(settings), within=within)

    def __len__(self) -> int:
        return len(self._followed)

    def draft(self, requests: Sequence[DraftRequest], method: PlainMethod) -> list[Draft]:
        """Take in the texts' new tokens, then return the method's draft for each. A text may appear only once in a
        call."""
        ends = time.perf_counter() + self._within
        self.take_in([request.text for request in requests])
        return [self._draft(request, method) if time.perf_counter() < ends else NO_DRAFT for request in requests]

    def _draft(self, request: DraftRequest, method: PlainMethod) -> Draft:
        followed, longest = self._followed[request.text.text_id], min(request.budget, MAX_DRAFT_TOKENS)
        method.compare(followed)
        if longest <= 0 or followed.taken < len(request.text.tokens):
            return NO_DRAFT
        guess = method.guess(followed, request.ahead, longest)
        if not guess.tokens:
            return NO_DRAFT
        return Draft(guess.tokens, guess.source, guess.matched, [], list(guess.shares))

    def take_in(self, texts: Sequence[Text]) -> None:
        """New tokens, of long texts a slice. All are learned by their namespaces before any goes on."""
        batch = [self._followed.get(text.text_id) or self._start(text) for text in texts]
        slices = shared_out([len(each.text.tokens) - each.taken for each in batch], self._slice)
        for followed, count in zip(batch, slices, strict=True):
            self._learn(followed, followed.taken + count)
        for followed, count in zip(batch, slices, strict=True):
            for token in followed.text.tokens[followed.taken : followed.taken + count]:
                followed.writer.write(token)
            followed.taken += count

    def is_taken_in(self, text: Text) -> bool:
        followed = self._followed.get(text.text_id)
        return followed is not None and followed.taken >= len(text.tokens)

    def forget(self, text_id: int) -> None:
        followed = self._followed.pop(text_id, None)
        if followed is not None and followed.namespace is not None:
            followed.namespace.requests -= 1

    def held_bytes(self) -> int:
        taken = sum(each.taken for each in self._followed.values())
        return taken * BYTES_A_TOKEN + self.namespaces.held_bytes()

    def _start(self, text: Text) -> Followed:
        options, namespace = self.options, self.namespaces.get(text.namespace)
        own = writer_of(Automaton(max(options.depth, options.most_ngram)))
        rates = namespace.rates if namespace is not None else SourceRates()
        followed = Followed(text, options, namespace, own, rates, learned=options.begins_to_learn(text))
        if namespace is not None:
            namespace.requests += 1
        self._followed[text.text_id] = followed
        return followed

    def _learn(self, followed: Followed, upto: int) -> None:
        namespace, text = followed.namespace, followed.text
        if namespace is None or not (text.learn and self.namespaces.learns) or followed.learned >= upto:
            return
        learner = followed.learner
        for token in text.tokens[followed.learned : upto]:
            if namespace.automaton.is_full:
                self.namespaces.renew(namespace)
            if learner is None or learner.automaton is not namespace.automaton:
                self.namespaces.make_room(namespace)
                learner = followed.learner = writer_of(namespace.automaton)
            learner.write(token)
        followed.learned = upto


def shared_out(new: Sequence[int], most: int) -> list[int]:
    """How many of each text's new tokens are taken in, `most` in all: the shortest go first."""
    if sum(new) <= most:
        return list(new)
    slices = [0] * len(new)
    for at in sorted(range(len(new)), key=new.__getitem__):
        slices[at] = min(new[at], most)
        most -= slices[at]
    return slices


