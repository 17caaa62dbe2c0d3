"""Whatever is written, read and asked, in whatever order: the automaton says what looking everywhere says."""

from __future__ import annotations

import random
from array import array

import pytest
from brute_force import EveryContext, Reader, guess
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from services.proposer.suffix_store import loops
from services.proposer.suffix_store.automaton import Automaton
from services.proposer.suffix_store.followers import Followers, Rule, Turn
from services.proposer.suffix_store.validate import problems, transitions

TOKENS = (0, 1, -1, 70_000, 2**31 - 1)
RULES = (Rule(), Rule(4.0, 0.0, 0.1), Rule(0.5, 2.0, 0.3), Rule(1.0, -1.0, 0.0), Rule(0.0, 3.0, 0.05))


class Both:
    """An automaton and the model beside it, and everyone who follows both."""

    def __init__(self, depth: int) -> None:
        self.automaton, self.followers = Automaton(depth), Followers()
        self.model = EveryContext(depth)
        self.writers: list[tuple[int, int, Reader]] = []
        self.readers: list[tuple[int, Reader]] = []

    def write(self, which: int, tokens: list[int], longest: int, rule: Rule) -> None:
        if which >= len(self.writers):
            self.writers.append((self.followers.write(self.automaton), self.model.begin(), Reader(self.model)))
        follower, text, reader = self.writers[which % len(self.writers)]
        for token in tokens:
            self.model.append(text, token)
            reader.read(token)
        assert reader.context == tuple(self.model.texts[text][-self.model.depth :])
        self._same(follower, tokens, longest, rule, reader)

    def read(self, which: int, tokens: list[int], longest: int, rule: Rule) -> None:
        if which >= len(self.readers):
            self.readers.append((self.followers.read(self.automaton), Reader(self.model)))
        follower, reader = self.readers[which % len(self.readers)]
        for token in tokens:
            reader.read(token)
        self._same(follower, tokens, longest, rule, reader)

    def _same(self, follower: int, tokens: list[int], longest: int, rule: Rule, reader: Reader) -> None:
        [told] = self.followers.run([Turn(follower, array("i", tokens), longest)], rule)
        assert told.taken == len(tokens)
        assert self.followers.context(follower) == len(reader.context)
        # Not nearly: the same steps in the same order.
        assert (told.tokens, told.score, told.match_length) == guess(self.model, reader.context, longest, rule)

    def check(self) -> None:
        assert problems(self.automaton) == []
        states, edges = transitions(self.automaton)
        for context, count in self.model.count.items():
            state = 0
            for token in context:
                state = edges[state][token]
            row = states[state].tolist()
            assert row[loops.COUNT] == count, context
            if context in self.model.best:
                assert (row[loops.BEST_TOKEN], row[loops.BEST_COUNT]) == self.model.best[context], context
            else:
                assert row[loops.BEST_COUNT] == 0


ACTS = st.tuples(
    st.sampled_from(("write", "write", "read")),
    st.integers(0, 3),
    st.lists(st.sampled_from(TOKENS[:3]) | st.sampled_from(TOKENS), max_size=12),
    st.integers(0, 8),
    st.sampled_from(RULES),
)


@given(depth=st.sampled_from((1, 2, 3, 5, 64)), acts=st.lists(ACTS, max_size=40))
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_counts_matches_and_drafts_are_those_of_looking_everywhere(
    depth: int, acts: list[tuple[str, int, list[int], int, Rule]]
) -> None:
    both = Both(depth)
    for act, which, tokens, longest, rule in acts:
        getattr(both, act)(which, tokens, longest, rule)
    both.check()


@pytest.mark.parametrize(("depth", "alphabet"), [(1, 2), (4, 2), (8, 3), (64, 2), (16, 40)])
def test_long_texts_that_copy_from_each_other_agree_too(depth: int, alphabet: int) -> None:
    """Copies make deep chains, and with them clones under everyone's feet."""
    chance = random.Random(depth * 100 + alphabet)
    both = Both(depth)
    said: list[int] = [0]
    for _ in range(400):
        if chance.random() < 0.5:
            at = chance.randrange(len(said))
            tokens = said[at : at + chance.randint(1, 20)]
        else:
            tokens = [chance.randrange(alphabet) for _ in range(chance.randint(0, 6))]
        said += tokens
        act = chance.choice((both.write, both.write, both.read))
        act(chance.randrange(6), tokens, chance.randint(0, 64), chance.choice(RULES))
    both.check()


def test_one_token_over_and_over_agrees_and_stays_small() -> None:
    both = Both(16)
    for _ in range(20):
        both.write(0, [7] * 20, 16, Rule())
    both.write(0, [8], 16, Rule())
    both.write(0, [7] * 30, 16, Rule())
    both.check()
    assert both.automaton.held_bytes() < 140 * both.automaton.tokens
