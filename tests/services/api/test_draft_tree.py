"""Drafts that are trees."""

from __future__ import annotations

import numpy as np
import pytest

from services.api import draft_tree as tree
from services.api.drafter import NO_DRAFT, Draft

#   ─┬ 5 ┬ 6 ─ 7
#    │   └ 8
#    └ 9 ─ 6
TOKENS, PARENTS = [5, 9, 6, 8, 6, 7], [-1, -1, 0, 0, 1, 2]
CONFIDENCE = [0.6, 0.3, 0.5, 0.4, 0.9, 1.0]
TREE = Draft(TOKENS, "t", parents=PARENTS, confidence=CONFIDENCE)
CHAIN = Draft([5, 6, 7], "t", 9, confidence=[0.9, 0.8, 0.7], probs=np.eye(3, 50, dtype=np.float32))


@pytest.mark.parametrize(
    ("tokens", "parents"),
    [
        ([1, 2], [-1]),
        ([1, 2], [-1, 1]),
        ([1, 2], [0, -1]),
        ([1, 2], [-1, -2]),
        ([1, 1], [-1, -1]),
        ([1, 2, 3, 3], [-1, 0, 1, 1]),
    ],
)
def test_what_is_no_tree_is_refused(tokens: list[int], parents: list[int]) -> None:
    assert not tree.possible(tokens, parents)


def test_a_tree_and_a_chain_are_possible() -> None:
    assert tree.possible(TOKENS, PARENTS) and tree.possible([1, 1, 1], []) and tree.possible([1, 1], [-1, 0])


def test_depths_reach_and_the_first_path() -> None:
    assert tree.depths(6, PARENTS) == [1, 1, 2, 2, 2, 3] and tree.depths(3, []) == [1, 2, 3]
    assert [tree.reach(each) for each in (TREE, CHAIN, NO_DRAFT)] == [3, 3, 0]
    assert tree.first_path(TOKENS, PARENTS) == [5, 6, 7] and tree.first_places(PARENTS) == [0, 2, 5]
    assert tree.first_path([4, 4], []) == [4, 4]
    assert tree.besides(PARENTS) == [False, True, False, True, False, False]
    assert tree.below(6, PARENTS, 0) == [2, 3, 5] and tree.below(6, PARENTS, 5) == []
    assert tree.simplified([-1, 0, 1]) == tree.CHAIN and tree.simplified([-1, -1]) == [-1, -1]


def test_a_walk_goes_as_far_as_the_text_agrees() -> None:
    assert tree.walk(TOKENS, PARENTS, [5, 8, 1]) == [0, 3]
    assert tree.walk(TOKENS, PARENTS, [9, 6, 7]) == [1, 4]
    assert tree.walk(TOKENS, PARENTS, [7]) == []


def test_chosen_tokens_keep_what_they_follow() -> None:
    assert tree.chosen(TOKENS, PARENTS, [0, 1, 2, 5]) == ([5, 9, 6, 7], [-1, -1, 0, 2])
    assert tree.chosen(TOKENS, PARENTS, [1, 4]) == ([9, 6], tree.CHAIN)


def test_a_cut_keeps_all_that_belongs_to_the_tokens() -> None:
    assert tree.cut(CHAIN, 3) is CHAIN and tree.cut(CHAIN, 0) is NO_DRAFT and tree.cut(CHAIN, -2) is NO_DRAFT
    two = tree.cut(CHAIN, 2)
    assert (two.tokens, two.confidence, two.source, two.match_length) == ([5, 6], [0.9, 0.8], "t", 9)
    assert two.probs is not None and two.probs.shape == (2, 50)
    assert tree.cut(TREE, 3) == Draft([5, 9, 6], "t", parents=[-1, -1, 0], confidence=CONFIDENCE[:3])


def test_what_lies_too_deep_is_left_out() -> None:
    assert tree.cut_to_reach(TREE, 3) is TREE and tree.cut_to_reach(TREE, 0) == NO_DRAFT
    assert tree.cut_to_reach(TREE, 1) == Draft([5, 9], "t", parents=[-1, -1], confidence=[0.6, 0.3])
    two = tree.cut_to_reach(TREE, 2)
    assert (two.tokens, two.parents, two.confidence) == (TOKENS[:5], PARENTS[:5], CONFIDENCE[:5])
    assert tree.cut_to_reach(CHAIN, 1).tokens == [5]


@pytest.mark.parametrize(
    ("pages", "tokens", "parents", "taken"),
    [(8, TOKENS, PARENTS, 2), (1, [5, 9, 6, 6, 7], [-1, -1, 0, 1, 2], 1), (0, [5, 6, 7], [], 0)],
)
def test_what_pages_do_not_allow_is_left_out_branch_by_branch(
    pages: int, tokens: list[int], parents: list[int], taken: int
) -> None:
    draft, needed = tree.fitting(TREE, 3, 16, pages)
    assert (draft.tokens, draft.parents, needed) == (tokens, parents, taken)
    assert len(draft.confidence) == len(tokens)
