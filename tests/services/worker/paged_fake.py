"""A runner that keeps what it is given in pages, as a model keeps keys and values, and reads it back.

What it keeps of a token depends on all tokens before it and on whose text it is, as far as its pages say so, and
its next token depends on that: a page given to two texts, a position never computed, a rejected draft left behind
or a page found under the wrong name changes the text. Besides, it looks before each answer whether its pages hold
the text that came of its own verdicts. The rest of a page is poison as soon as its first place is written.
"""

from __future__ import annotations

from array import array
from collections import deque

from models.branches import own_pages
from services.api.draft_tree import reach, walk
from services.api.pooling import LAST
from services.api.prompt_columns import PromptColumns
from services.api.prompt_logprobs import PromptLogprob, pack
from services.worker.running.runner import Facts
from services.worker.running.work import Drafted, Result, SequenceWork, Verdict, Work

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


def scores_of(prompt: list[int]) -> list[float]:
    """Log-probabilities of the tokens behind the first: of each a number that depends on all before it."""
    value, scores = START, []
    for token in prompt[:-1]:
        value = after(value, token)
        scores.append(-(value % 1024) / 8)
    return scores


def embedding_of(prompt: list[int], pooling: str) -> bytes:
    """What all tokens so far come to, at each pooled row: one too many, too few or in another order shows."""
    value, values = START, []
    for token in prompt:
        value = after(value, token)
        values.append(value)
    return array("q", values[-1:] if pooling == LAST else values).tobytes()


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
        self.facts = Facts(VOCABULARY, context, (EOS,), page_tokens, pages, branch_pages=BRANCH_PAGES)
        self.rows = 0
        self.copies = 0
        # By sequence: the salt of its request, which no work tells. Pages of one salt aren't another's.
        self.salts: dict[int, str] = {}
        self._texts: dict[int, list[int]] = {}
        self._pooled: dict[int, list[int]] = {}
        # Steps that aren't finished: as late as can be, they run when they are waited for.
        self._launched: deque[Work] = deque()
        self._last = Result([])
        self._eos_every = eos_every
        # Whether sequences have states: of each its sequence, and the positions from which that can go on.
        self.has_states = False
        self._states: dict[int, tuple[int, int, int]] = {}
        # By page and place: (salt, what all tokens so far come to, the token).
        self._pages: list[list[tuple[str, int, int] | None]] = [[None] * page_tokens for _ in range(pages)]

    def launch(self, work: Work) -> None:
        self._launched.append(work)
        for new in work.new:
            assert new.sequence_id not in self._texts, "a sequence is made known once"
            self._texts[new.sequence_id] = list(new.text)
        for sequence_id in work.ended:
            del self._texts[sequence_id]

    def finish(self) -> Result:
        work = self._launched.popleft()
        self._last = self._run(work.known(self._last) if work.fed else work)
        return self._last

    def _run(self, work: Work) -> Result:
        for source, target in work.copies:
            assert source != target
            self.copies += 1
            self._pages[target] = list(self._pages[source])
        assert len({item.state for item in work.items}) == len(work.items), "two sequences with one state"
        for item in work.items:
            self._follow_state(item)
            for offset, token in enumerate(_in_own_pages(item)):
                self._write(item, item.start + offset, token)
        # All has been written before anything is read: a page with two texts shows.
        items, size = work.items, self.facts.page_tokens
        trees = [(item.draft.parents, item.start) for item in items if item.draft.parents]
        assert sum(own_pages(parents, start, size) for parents, start in trees) <= BRANCH_PAGES
        scores = {item.sequence_id: self._score(item) for item in items if item.scored}
        embeddings = {item.sequence_id: made for item in items if item.pooled and (made := self._pool(item))}
        verdicts = [self._verdict(item) if item.verify else self._look(item) for item in items]
        return Result(verdicts, prompt_logprobs=scores, embeddings=embeddings)

    def draft(self) -> Drafted:
        return Drafted()

    def _follow_state(self, item: SequenceWork) -> None:
        if self.has_states and item.start:
            owner, first, last = self._states[item.state]
            assert owner == item.sequence_id and first <= item.start <= last, "its state is elsewhere"
        self._states[item.state] = item.sequence_id, item.position, item.start + item.rows

    def _write(self, item: SequenceWork, position: int, token: int) -> None:
        self.rows += 1
        before = self._at(item, position - 1)[1] if position else START
        place = position % self.facts.page_tokens
        page = item.pages[position // self.facts.page_tokens]
        if place == 0:
            self._pages[page] = [None] * self.facts.page_tokens
        self._pages[page][place] = (self.salts.get(item.sequence_id, ""), after(before, token), token)

    def _at(self, item: SequenceWork, position: int) -> tuple[str, int, int]:
        found = self._pages[item.pages[position // self.facts.page_tokens]][position % self.facts.page_tokens]
        assert found is not None, "this place was never computed"
        return found

    def _look(self, item: SequenceWork) -> None:
        """Do its pages hold its own text, under its own salt?"""
        text, value = self._texts[item.sequence_id], START
        assert item.tokens == text[item.start : item.position] and item.verify == (item.position == len(text))
        for position, token in enumerate(text[: item.start] + _in_own_pages(item)):
            value = after(value, token)
            salt = self.salts.get(item.sequence_id, "")
            assert self._at(item, position) == (salt, value, token), "somebody else's page"

    def _score(self, item: SequenceWork) -> PromptColumns:
        first = item.start + item.logits_from
        text = self._texts[item.sequence_id]
        assert item.scored == text[first + 1 : first + 1 + len(item.scored)]
        values = [self._at(item, first + place)[1] for place in range(len(item.scored))]
        return pack(first + 1, [PromptLogprob(logprob=-(value % 1024) / 8) for value in values])

    def _pool(self, item: SequenceWork) -> bytes:
        """The embedding, once its last row is there."""
        pooled = self._pooled.setdefault(item.sequence_id, [])
        pooled += [self._at(item, position)[1] for position in range(item.position - item.pooled, item.position)]
        return array("q", pooled).tobytes() if item.verify else b""

    def _verdict(self, item: SequenceWork) -> Verdict:
        self._look(item)
        if item.pooled:
            return Verdict([], 0)
        verdict = self._on_tree(item) if item.draft.parents else self._on_chain(item)
        self._texts[item.sequence_id] += verdict.tokens
        return verdict

    def _on_chain(self, item: SequenceWork) -> Verdict:
        tokens: list[int] = []
        for position, drafted in enumerate([*item.draft.tokens, None], item.position - 1):
            _, value, last = self._at(item, position)
            tokens.append(token_after(value, last, self._eos_every))
            if tokens[-1] != drafted:
                break
        return Verdict(tokens, len(tokens) - 1)

    def _on_tree(self, item: SequenceWork) -> Verdict:
        """What is accepted is written where a chain would be; there has to be room for the longest path."""
        draft, position = item.draft, item.position - 1
        assert item.position + reach(draft) <= len(item.pages) * self.facts.page_tokens
        tokens: list[int] = []
        while True:
            _, value, last = self._at(item, position)
            tokens.append(token_after(value, last, self._eos_every))
            if len(walk(draft.tokens, draft.parents, tokens)) < len(tokens):
                return Verdict(tokens, len(tokens) - 1)
            position += 1
            self._write(item, position, tokens[-1])


def _in_own_pages(item: SequenceWork) -> list[int]:
    """Trees have pages besides."""
    return item.tokens if item.draft.parents else item.tokens + item.draft.tokens
