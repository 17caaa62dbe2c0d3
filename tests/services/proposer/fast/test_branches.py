"""Trees out of chains: the chain stays, and what stands beside it was said before behind the same words."""

from __future__ import annotations

import random
from array import array

import pytest

from services.api import draft_tree as tree
from services.api.drafter import Draft, Drafter, DraftRequest, Text
from services.api.settings import Settings
from services.proposer.fast import compiling
from services.proposer.index import SuffixIndex
from services.proposer.plain.branches import MAX_NODES
from services.proposer.registry import make_drafters


@pytest.fixture(scope="module", params=["suffix", "auto"])
def drafter(request: pytest.FixtureRequest) -> Drafter:
    compiling.start().join()
    settings = Settings.for_tests(method=request.param, suffix_decoding_max_cached_requests=-1)
    return make_drafters(settings, SuffixIndex.open(settings))[request.param]


def ask(drafter: Drafter, key: int, text: list[int], ahead: list[int], trees: bool = True, space: str = "") -> Draft:
    view = Text(key, array("i", text), 0, namespace=space)
    [draft] = drafter.draft([DraftRequest(view, 16, ahead, trees)])
    drafter.forget([key])
    return draft


def text_of(chance: random.Random, length: int = 300) -> list[int]:
    """Phrases, with something different in them now and then."""
    text: list[int] = []
    while len(text) < length:
        text += [1, 2, 3, chance.choice([4, 4, 5]), chance.choice([6, 7]), chance.choice([8, 8, 8, 9]), 10]
    return text


@pytest.mark.parametrize("seed", range(30))
def test_a_tree_is_the_chain_and_what_else_was_said_there(drafter: Drafter, seed: int) -> None:
    chance = random.Random(seed)
    text = text_of(chance)[: chance.randint(60, 300)]
    ahead = text[50 : 50 + chance.randint(0, 3)] if chance.random() < 0.5 else []
    key = 1 + seed * 4
    chain = ask(drafter, key, text, ahead, trees=False)
    grown = ask(drafter, key + 1, text, ahead)
    assert not chain.parents and chain.tokens
    count = len(chain.tokens)
    assert (grown.tokens[:count], grown.confidence[:count]) == (chain.tokens, chain.confidence)
    assert len(grown.tokens) <= MAX_NODES and len(grown.confidence) == len(grown.tokens)
    if not grown.parents:
        return
    assert grown.parents[:count] == list(range(-1, count - 1))
    assert tree.possible(grown.tokens, grown.parents) and all(0 < each <= 1 for each in grown.confidence)
    said = {tuple(text[at : at + 2]) for at in range(len(text) - 1)}
    before = [*text, *ahead][-1]
    for place in range(count, len(grown.tokens)):
        parent = grown.parents[place]
        pair = (before if parent < 0 else grown.tokens[parent], grown.tokens[place])
        assert pair in said or (ahead and parent < 0)
        if parent < count:
            # Of what stands at one place, no more than one can stand.
            assert grown.confidence[place] <= 1 - (grown.confidence[parent + 1] if parent + 1 < count else 0) + 1e-6


def test_a_text_that_went_on_in_two_ways_has_both(drafter: Drafter) -> None:
    text = [1, 2, 3, 1, 2, 4, 1, 2, 3, 9, 9, 9, 1, 2]
    grown = ask(drafter, 1000, text, [])
    first = [token for token, parent in zip(grown.tokens, grown.parents, strict=True) if parent == -1]
    assert set(first) >= {3, 4}


def test_what_is_ahead_is_followed_and_forgotten(drafter: Drafter) -> None:
    text = [1, 2, 3, 1, 2, 4, 1, 2, 3, 9, 9, 9, 1]
    for key in (1001, 1002):
        grown = ask(drafter, key, text, [2])
        first = [token for token, parent in zip(grown.tokens, grown.parents, strict=True) if parent == -1]
        assert set(first) >= {3, 4}


def test_what_others_said_is_another_namespaces_secret(drafter: Drafter) -> None:
    others = [5, 6, 7, 5, 6, 8] * 30
    ask(drafter, 2000, others, [], space="theirs")
    mine = [5, 6, 7, 1, 5, 6, 7, 2, 5, 6]
    assert 8 not in ask(drafter, 2001, mine, [], space="mine").tokens
    assert 8 in ask(drafter, 2002, mine, [], space="theirs").tokens
