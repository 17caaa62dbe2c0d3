"""Whatever is said, read and asked, in whatever order: every source says what looking everywhere says."""

from __future__ import annotations

import random
from array import array

import pytest
from asking import index
from automaton_problems import problems, rows_of, transitions
from brute_force import EveryContext, Guess, Reader, guess, recent
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from services.api.drafter import Draft, DraftRequest, Text
from services.proposer.fast.automaton.automaton import FastAutomaton
from services.proposer.fast.namespaces import FastNamespaces
from services.proposer.fast.texts import FastTexts
from services.proposer.index import SuffixIndex
from services.proposer.plain.guess import DraftRule
from services.proposer.plain.rates import NGRAM, OWN, SHARED
from services.proposer.plain.texts import TextOptions
from services.proposer.text_drafter import TextDrafter

pytestmark = pytest.mark.usefixtures("compiled")

TOKENS = (0, 1, -1, 70_000, 2**31 - 1)
RULES = (
    DraftRule(), DraftRule(4.0, 0.0, 0.1), DraftRule(0.5, 2.0, 0.3), DraftRule(1.0, -1.0, 0.0),
    DraftRule(0.0, 3.0, 0.05),
)  # fmt: skip


class Asked(TextDrafter):
    """One source alone."""

    def __init__(self, held: SuffixIndex, rule: DraftRule, source: str) -> None:
        super().__init__(held, rule)
        self.sources = (source,)  # type: ignore[misc]


class Followed:
    """One text, and what is looked up for it."""

    def __init__(self, number: int, learns: bool, own_depth: int, shared: EveryContext) -> None:
        self.text = Text(number, array("i"), namespace="all", learn=learns)
        self.own, self.shared = EveryContext(own_depth), shared
        self.own.begin()
        self.learned = shared.begin() if learns else -1
        self.reader, self.unread = Reader(shared), array("i")

    def say(self, tokens: list[int]) -> None:
        self.text.tokens.extend(tokens)
        self.unread.extend(tokens)
        for token in tokens:
            self.own.append(0, token)
            if self.learned >= 0:
                self.shared.append(self.learned, token)

    def catch_up(self) -> None:
        if len(self.unread) > self.shared.depth:
            self.reader, self.unread = Reader(self.shared), self.unread[-self.shared.depth :]
        for token in self.unread:
            self.reader.read(token)
        self.unread = array("i")


class Both:
    """Texts and the model beside it, and all texts that both follow."""

    def __init__(self, depth: int, sizes: tuple[int, int] = (2, 5)) -> None:
        self.namespaces = FastNamespaces(depth, 10**6)
        self.held = FastTexts(self.namespaces, TextOptions(depth, *sizes))
        self.depth, self.sizes = depth, sizes
        self.shared = EveryContext(depth)
        self.texts: dict[int, Followed] = {}
        self.begun = 0

    def say(self, which: int, learns: bool, tokens: list[int], longest: int, rule: DraftRule, ahead: list[int]) -> None:
        if which not in self.texts:
            self.begun += 1
            self.texts[which] = Followed(self.begun, learns, max(self.depth, self.sizes[1]), self.shared)
        text = self.texts[which]
        text.say(tokens)
        # Whatever is asked first takes in what is new.
        for source in random.Random(len(tokens)).sample((OWN, SHARED, NGRAM), 3):
            [draft] = self.held.draft([DraftRequest(text.text, longest, ahead)], Asked(index(), rule, source))
            self._same(draft, self._expected(text, source, longest, rule, ahead))

    def forget(self, which: int) -> None:
        text = self.texts.pop(which, None)
        if text is not None:
            self.held.forget(text.text.text_id)

    def _expected(self, text: Followed, source: str, longest: int, rule: DraftRule, ahead: list[int]) -> Guess:
        if longest <= 0:
            return [], [], 0
        said = text.text.tokens.tolist()
        if source == NGRAM:
            return recent(text.own, said, ahead, self.sizes, longest)
        if source == SHARED:
            text.catch_up()
            return guess(self.shared, text.reader.behind(ahead), longest, rule)
        whole = EveryContext(self.depth)
        whole.begin()
        for token in said:
            whole.append(0, token)
        return guess(whole, Reader(whole, tuple(said[-self.depth :])).behind(ahead), longest, rule)

    def _same(self, draft: Draft, expected: Guess) -> None:
        # Not nearly: the same steps in the same order.
        assert (draft.tokens, draft.confidence) == expected[:2]
        if draft.tokens:
            assert draft.match_length == expected[2]

    def check(self) -> None:
        for text in self.texts.values():
            if text.text.tokens:
                same_counts(self.held._row_of[text.text.text_id].automaton, text.own)
        if self.begun:
            [namespace] = self.namespaces.known()
            same_counts(namespace.automaton, self.shared)


def same_counts(automaton: FastAutomaton, model: EveryContext) -> None:
    assert problems(automaton) == []
    states, edges = transitions(automaton)
    rows = rows_of(states)
    for context, count in model.count.items():
        state = 0
        for token in context:
            state = edges[state][token]
        row = rows[state]
        assert row.count == count, context
        assert (row.best, row.best_count) == model.best.get(context, (row.best, 0)), context


ACTS = st.tuples(
    st.integers(0, 3),
    st.booleans(),
    st.lists(st.sampled_from(TOKENS[:3]) | st.sampled_from(TOKENS), max_size=12),
    st.integers(0, 8),
    st.sampled_from(RULES),
    st.just([]) | st.lists(st.sampled_from(TOKENS[:3]), max_size=6),
)


@given(
    depth=st.sampled_from((1, 2, 3, 5, 64)),
    sizes=st.sampled_from(((1, 1), (2, 5), (1, 3), (3, 4))),
    acts=st.lists(ACTS, max_size=30),
)
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_counts_matches_and_drafts_are_those_of_looking_everywhere(
    depth: int,
    sizes: tuple[int, int],
    acts: list[tuple[int, bool, list[int], int, DraftRule, list[int]]],
) -> None:
    both = Both(depth, sizes)
    for act in acts:
        both.say(*act)
    both.check()


@pytest.mark.parametrize(("depth", "alphabet"), [(1, 2), (4, 2), (8, 3), (64, 2), (16, 40)])
def test_long_texts_that_copy_from_each_other_agree_too(depth: int, alphabet: int) -> None:
    """Copies make deep chains, and with them clones under everyone's feet; texts end, others take their rows."""
    chance = random.Random(depth * 100 + alphabet)
    both = Both(depth)
    said: list[int] = [0]
    for _ in range(150):
        if chance.random() < 0.5:
            at = chance.randrange(len(said))
            tokens = said[at : at + chance.randint(1, 20)]
        else:
            tokens = [chance.randrange(alphabet) for _ in range(chance.randint(0, 6))]
        said += tokens
        if chance.random() < 0.1:
            both.forget(chance.randrange(6))
        ahead = said[-chance.randint(1, 8) :] if chance.random() < 0.3 else []
        longest, rule = chance.randint(0, 64), chance.choice(RULES)
        both.say(chance.randrange(6), chance.random() < 0.7, tokens, longest, rule, ahead)
    both.check()


def test_one_token_over_and_over_agrees_and_stays_small() -> None:
    both = Both(16)
    for tokens in (*[[7] * 20] * 20, [8], [7] * 30):
        both.say(0, True, tokens, 16, DraftRule(), [])
    both.check()
    automaton = both.namespaces.known()[0].automaton
    assert automaton.held_bytes() < 140 * automaton.tokens
