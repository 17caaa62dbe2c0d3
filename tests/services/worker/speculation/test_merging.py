"""A text draft and one of the worker's head as one tree."""

from __future__ import annotations

import random

from services.api import draft_tree as tree
from services.api.drafter import MAX_DRAFT_TOKENS, Draft
from services.worker.speculation.acceptance import AcceptanceTable, Rates, buckets_of
from services.worker.speculation.merging import can_be_merged, merge
from services.worker.speculation.prepared import HEAD, Prepared, Way, prepare

A, B, C, X, Y = 5, 6, 7, 8, 9


def prepared(way: Way, tokens: list[int], chances: list[float], parents: list[int] | None = None) -> Prepared:
    source = "eagle3" if way == "head" else "suffix"
    found = Prepared(Draft(tokens, source, 3, parents or [], chances), way)
    found.buckets = buckets_of(chances, tree.besides(parents) if parents else ())
    return found


def merged(text: Prepared, own: Prepared) -> Prepared:
    return merge(text, text.confidence, own, own.confidence)


def paths(one: Prepared) -> set[tuple[int, ...]]:
    """What is left of it, as the tokens from the text to each node."""
    parents = one.parents or list(range(-1, len(one.tokens) - 1))
    found: list[tuple[int, ...]] = []
    for place in range(len(one.tokens)):
        before = found[parents[place]] if parents[place] >= 0 else ()
        found.append((*before, one.tokens[place]))
    if one.parents:
        return set(found)
    return {path[one.at :] for path in found[one.at :]}


def test_what_both_have_is_kept_once_with_the_greater_chance() -> None:
    text = prepared("ahead", [A, B, C], [0.6, 0.9, 0.9])
    own = prepared("head", [A, Y, X], [0.7, 0.2, 0.5], [-1, -1, 0])
    found = merged(text, own)
    assert (found.tokens, found.parents) == ([A, B, C, X, Y], [-1, 0, 1, 0, -1])
    assert found.sources == [HEAD, "suffix", "suffix", HEAD, HEAD]
    assert found.confidence == [0.7, 0.9, 0.9, 0.5, 0.2] and found.way == "ahead"
    second_children = [False, False, False, True, True]
    assert found.buckets == buckets_of(found.confidence, second_children)


def test_a_draft_is_called_by_the_sources_of_its_tokens() -> None:
    text = prepared("ahead", [A, B, C], [0.6, 0.9, 0.9])
    found = merged(text, prepared("head", [A, Y], [0.7, 0.2], [-1, -1]))
    assert found.branched([0]).source == "eagle3"
    assert found.branched([0, 1]).source == "eagle3+suffix"
    assert found.follow([A]) and found.chain(9).source == "suffix"


def test_alike_chains_stay_a_chain_of_which_the_rest_follows_the_text() -> None:
    found = merged(prepared("waited", [A, B], [0.5, 0.5]), prepared("head", [A, B, C], [0.4, 0.6, 0.5]))
    assert (found.tokens, found.parents, found.sources) == ([A, B, C], [], ["suffix", HEAD, HEAD])
    assert found.follow([A]) and found.chain(9).tokens == [B, C] and found.chain(9).source == "eagle3"
    assert [list(each) for each in found.compared([B, X])] == [[1], [2]]


def test_every_path_of_either_is_one_of_the_merged_and_the_more_probable_sibling_comes_first() -> None:
    chance = random.Random(1)
    for _ in range(500):
        text = prepared("ahead", [chance.randrange(3) for _ in range(6)], [chance.random() for _ in range(6)])
        text.at = chance.randrange(3)
        tokens, parents = [], []
        for place in range(chance.randrange(1, 9)):
            parent, token = chance.randrange(-1, place), chance.randrange(3)
            if (parent, token) not in zip(parents, tokens, strict=True):
                tokens.append(token)
                parents.append(min(parent, len(tokens) - 2))
        if not tree.possible(tokens, parents):
            continue
        own = prepared("head", tokens, [chance.random() for _ in tokens], tree.simplified(parents))
        found = merged(text, own)
        assert paths(found) == paths(text) | paths(own)
        assert tree.possible(found.tokens, found.parents)
        if found.parents:
            first: dict[int, float] = {}
            for parent, confidence in zip(found.parents, found.confidence, strict=True):
                assert confidence <= first.get(parent, 1.0)
                first[parent] = confidence


def test_it_is_bounded() -> None:
    text = prepared("ahead", list(range(100, 160)), [0.9] * 60)
    own = prepared("head", list(range(60)), [0.5] * 60, [-1] * 60)
    assert len(merged(text, own).tokens) == MAX_DRAFT_TOKENS


def test_merged_again_it_keeps_the_text_that_is_left() -> None:
    first = merged(prepared("ahead", [A, B, C], [0.6, 0.9, 0.9]), prepared("head", [A, Y], [0.7, 0.2], [-1, -1]))
    assert first.follow([A])
    second = merge(first, first.confidence, own := prepared("head", [X, B], [0.8, 0.1], [-1, -1]), own.confidence)
    assert paths(second) == {(B,), (B, C), (X,)}
    assert dict(zip(second.tokens, second.sources, strict=True)) == {B: "suffix", C: "suffix", X: HEAD}


def test_what_is_only_assumed_is_not_merged() -> None:
    assert can_be_merged(prepared("ahead", [A, B], [0.5, 0.5]), prepared("head", [A], [0.5]))
    assumed = prepare(Draft([C], "suffix", confidence=[0.5]), 0, [A, B], [], "ahead")
    assert assumed is not None and not can_be_merged(assumed, prepared("head", [A], [0.5]))


def test_each_source_learns_of_its_own_tokens() -> None:
    acceptance = AcceptanceTable().of("")
    text = prepared("ahead", [A, B], [0.8, 0.8])
    own = prepared("head", [X], [0.6])
    fresh = Rates().values
    for _ in range(50):
        found = merged(text, own)
        acceptance.learn(found, *found.compared([A, C]))
    [likely], [least] = buckets_of([0.8]), buckets_of([0.6], [True])
    suffix, eagle = acceptance.rates("suffix").values, acceptance.of_all.rates.values
    # a was right, b behind it wrong; x, the sibling of a, never right.
    assert 0.4 < suffix[likely] < 0.6 and eagle[least] < 0.1
    assert [value for place, value in enumerate(eagle) if place != least] == [
        value for place, value in enumerate(fresh) if place != least
    ]
