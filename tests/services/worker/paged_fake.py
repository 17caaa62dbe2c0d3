"""A runner that keeps what it is given in pages, as a model keeps keys and values, and reads it back.

What it keeps of a token depends on all tokens before it and on whose text it is, as far as its pages say so, and
its next token depends on that: a page given to two texts, a position never computed, a rejected draft left behind
or a page found under the wrong name changes the text. Besides, it looks before each answer whether its pages hold
what the scheduler thinks. The rest of a page is poison as soon as its first place is written.
"""

from __future__ import annotations

from collections.abc import Sequence as Items

from models.branches import own_pages
from services.worker.running.mock import MockFacts
from services.worker.running.runner import Meanwhile, StepWork, Verdict, nothing_meanwhile
from services.worker.speculation.tree import reach, walk

VOCABULARY = 50
EOS = 0
START = 7
BRANCH_PAGES = 6


def after(value: int, token: int) -> int:
    return (value * 31 + token + 1) % 1000003


def next_token(text: list[int], eos_every: int = 0) -> int:
    """What follows a text: mostly a cycle, so that drafts may be right."""
    value = START
    for token in text:
        value = after(value, token)
    return token_after(value, text[-1], eos_every)


def token_after(value: int, last: int, eos_every: int) -> int:
    if eos_every and value % eos_every == 0:
        return EOS
    return 1 + (value % 9 if value % 4 == 0 else (last + 1) % 9)


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
        self.rows = 0
        self.copies = 0
        self._eos_every = eos_every
        # By page and place: (salt, what all tokens so far come to, the token).
        self._pages: list[list[tuple[str, int, int] | None]] = [[None] * page_tokens for _ in range(pages)]

    def copy_page(self, source: int, target: int) -> None:
        assert source != target
        self.copies += 1
        self._pages[target] = list(self._pages[source])

    def step(self, work: Items[StepWork], meanwhile: Meanwhile = nothing_meanwhile) -> list[Verdict | None]:
        meanwhile(False)
        for item in work:
            for offset, token in enumerate(item.tokens[: -len(item.draft)] if item.parents else item.tokens):
                self._write(item, item.start + offset, token)
        # All has been written before anything is read: a page with two texts shows.
        assert sum(own_pages(item.parents, item.start, self.facts.page_tokens) for item in work) <= BRANCH_PAGES
        return [self._verdict(item) if item.verify else self._look(item) for item in work]

    def _write(self, item: StepWork, position: int, token: int) -> None:
        self.rows += 1
        before = self._at(item, position - 1)[1] if position else START
        place = position % self.facts.page_tokens
        page = item.sequence.pages[position // self.facts.page_tokens]
        if place == 0:
            self._pages[page] = [None] * self.facts.page_tokens
        self._pages[page][place] = (item.sequence.generate.cache_salt, after(before, token), token)

    def _at(self, item: StepWork, position: int) -> tuple[str, int, int]:
        found = self._pages[item.sequence.pages[position // self.facts.page_tokens]][position % self.facts.page_tokens]
        assert found is not None, "this place was never computed"
        return found

    def _look(self, item: StepWork) -> None:
        """Do its pages hold its own text, under its own salt?"""
        sequence, value = item.sequence, START
        text = sequence.token_ids[: item.start + len(item.tokens) - len(item.draft)]
        for position, token in enumerate(text if item.parents else [*text, *item.draft]):
            value = after(value, token)
            assert self._at(item, position) == (sequence.generate.cache_salt, value, token), "somebody else's page"

    def _verdict(self, item: StepWork) -> Verdict:
        self._look(item)
        position = item.start + len(item.tokens) - len(item.draft) - 1
        tokens: list[int] = []
        if item.parents:
            return self._verdict_on_tree(item, position)
        for drafted in [*item.draft, None]:
            _, value, last = self._at(item, position)
            tokens.append(token_after(value, last, self._eos_every))
            if tokens[-1] != drafted:
                break
            position += 1
        return Verdict(tokens, len(tokens) - 1)

    def _verdict_on_tree(self, item: StepWork, position: int) -> Verdict:
        """What stands is written where a chain would be; there has to be room for the longest way."""
        assert item.start + 1 + reach(item.draft, item.parents) <= len(item.sequence.pages) * self.facts.page_tokens
        tokens: list[int] = []
        while True:
            _, value, last = self._at(item, position)
            tokens.append(token_after(value, last, self._eos_every))
            if len(walk(item.draft, item.parents, tokens)) < len(tokens):
                return Verdict(tokens, len(tokens) - 1)
            position += 1
            self._write(item, position, tokens[-1])
