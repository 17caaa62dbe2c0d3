"""A runner that keeps what it is given in pages, as a model keeps keys and values, and reads it back.

Its next token is a function of every token it finds in the sequence's pages: a page given to two sequences,
a position never computed, or a rejected draft left behind changes the text.
"""

from __future__ import annotations

from collections.abc import Sequence as Items

from services.target.mock_runner import MockFacts
from services.target.runner import StepWork, Verdict

VOCABULARY = 50
EOS = 0


def next_token(text: list[int], eos_every: int = 0) -> int:
    """What follows a text: mostly a cycle, so that drafts may be right."""
    value = 7
    for token in text:
        value = (value * 31 + token + 1) % 1000003
    if eos_every and value % eos_every == 0:
        return EOS
    return 1 + (value % 9 if value % 4 == 0 else (text[-1] + 1) % 9)


def alone(prompt: list[int], max_tokens: int, context: int, eos_every: int = 0) -> tuple[list[int], str]:
    """The text and the reason of its end, as naive decoding without any batch gives them."""
    text = list(prompt)
    while len(text) < min(len(prompt) + max_tokens, context):
        token = next_token(text, eos_every)
        if token == EOS:
            return text[len(prompt) :], "stop"
        text.append(token)
    return text[len(prompt) :], "length"


class PagedFake:
    def __init__(self, pages: int, page_tokens: int = 4, context: int = 64, eos_every: int = 0) -> None:
        self.facts = MockFacts(VOCABULARY, context, (EOS,), page_tokens, pages)
        self._eos_every = eos_every
        self._slots: dict[int, int] = {}

    def step(self, work: Items[StepWork]) -> list[Verdict | None]:
        for item in work:
            for offset, token in enumerate(item.tokens):
                self._slots[self._slot(item.sequence.pages, item.start + offset)] = token
        # All has been written before anything is read: a page with two owners shows.
        return [self._verdict(item) if item.verify else None for item in work]

    def _slot(self, pages: list[int], position: int) -> int:
        size = self.facts.page_tokens
        return pages[position // size] * size + position % size

    def _verdict(self, item: StepWork) -> Verdict:
        end = item.start + len(item.tokens) - len(item.draft)
        text = [self._slots[self._slot(item.sequence.pages, position)] for position in range(end)]
        tokens: list[int] = []
        for drafted in item.draft:
            own = next_token(text, self._eos_every)
            tokens.append(own)
            if own != drafted:
                return Verdict(tokens, len(tokens) - 1)
            # The draft's own place, not our copy of it.
            text.append(self._slots[self._slot(item.sequence.pages, len(text))])
        tokens.append(next_token(text, self._eos_every))
        return Verdict(tokens, len(tokens) - 1)
