"""Draft trees as values: which nodes get children, and which are drafted."""

from __future__ import annotations

from array import array

import pytest
import torch

from services.api.draft_tree import possible
from services.api.drafter import DraftRequest, Text
from services.api.tree_shape import Shape, read_shape
from services.worker.speculation.heads import draft_tree
from services.worker.speculation.heads.draft_tree import DraftTree, grow


def tree_of(shape: Shape, budget: int = 3, floor: float = 0.0) -> DraftTree:
    return DraftTree(DraftRequest(Text(1, array("i", [5])), budget, tree=True, floor=floor), shape)


def test_the_most_probable_nodes_of_a_level_get_children() -> None:
    tree = tree_of(Shape())
    tree.grow([[10, 11, 12, 13]], [[0.5, 0.2, 0.2, 0.1]])
    assert tree.frontier == [0, 1, 2, 3]
    tree.grow([[20, 21], [22, 23], [24, 25], [26, 27]], [[0.6, 0.4], [0.9, 0.1], [0.5, 0.5], [1.0, 0.0]])
    # By the product along the path: 0.3, 0.2, 0.18, and 0.1 twice and thrice.
    assert [tree.tokens[node] for node in tree.frontier[:3]] == [20, 21, 22]
    assert len(tree.frontier) == 4
    assert tree.path_to(tree.frontier[0]) == [10, 20]


def test_a_tree_is_no_deeper_than_its_budget() -> None:
    tree = tree_of(Shape(), budget=1)
    tree.grow([[10, 11, 12, 13]], [[0.4, 0.3, 0.2, 0.1]])
    assert tree.frontier == []


def test_nodes_below_the_floor_get_no_children() -> None:
    tree = tree_of(Shape(), floor=0.25)
    tree.grow([[10, 11, 12, 13]], [[0.4, 0.3, 0.2, 0.1]])
    assert [tree.tokens[node] for node in tree.frontier] == [10, 11]


def test_nodes_whose_children_cannot_be_among_the_kept_ones_get_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draft_tree, "KEPT_A_LEVEL", 1)
    tree = tree_of(Shape(), budget=3)
    tree.grow([[10, 11, 12, 13]], [[0.4, 0.3, 0.2, 0.1]])
    assert [tree.tokens[node] for node in tree.frontier] == [10, 11]
    assert tree.made("x").tokens == [10, 11, 12]


def test_a_draft_has_its_most_probable_tokens_first_and_parents_before_children() -> None:
    tree = tree_of(Shape(), budget=2)
    tree.grow([[10, 11, 12, 13]], [[0.4, 0.3, 0.2, 0.1]])
    tree.grow([[20, 21, 22, 23]] * 4, [[1.0, 0.0, 0.0, 0.0]] * 4)
    draft = tree.made("eagle3")
    assert draft.source == "eagle3" and len(draft.tokens) == 8
    assert draft.tokens == [10, 20, 11, 20, 12, 20, 13, 20]
    assert draft.parents == [-1, 0, -1, 2, -1, 4, -1, 6]
    assert draft.confidence == [0.4, 1.0, 0.3, 1.0, 0.2, 1.0, 0.1, 1.0]
    assert possible(draft.tokens, draft.parents)


def test_a_fixed_shape_has_its_paths_whatever_their_probabilities() -> None:
    shape = read_shape("[[0], [2], [0, 0], [2, 1]]")
    tree = tree_of(shape, budget=8)
    tree.grow([[10, 11, 12]], [[0.9, 0.09, 0.01]])
    assert [tree.tokens[node] for node in tree.frontier] == [10, 12]
    tree.grow([[20, 21, 22], [23, 24, 25]], [[0.5, 0.3, 0.2]] * 2)
    assert tree.frontier == []
    draft = tree.made("medusa")
    assert sorted(draft.tokens) == [10, 12, 20, 24]
    assert possible(draft.tokens, draft.parents)


def test_a_tree_that_is_a_chain_is_drafted_as_one() -> None:
    tree = tree_of(read_shape("[[0], [0, 0]]"), budget=8)
    tree.grow([[10]], [[0.9]])
    tree.grow([[20]], [[0.5]])
    assert tree.made("x").tokens == [10, 20] and tree.made("x").parents == []


def test_without_a_budget_there_is_no_draft() -> None:
    tree = tree_of(Shape(), budget=0)
    assert tree.frontier == [] and not tree.made("x").tokens


@pytest.mark.parametrize("ids", [None, torch.tensor([3, 5, 7, 9, 11])])
def test_levels_of_a_batch_come_from_the_logits_of_its_frontiers(ids: torch.Tensor | None) -> None:
    trees = [tree_of(Shape()), tree_of(Shape(), budget=1)]
    logits = torch.tensor([[0.0, 4.0, 3.0, 2.0, 1.0], [9.0, 0.0, 1.0, 2.0, 3.0]])
    grow(trees, logits, ids, Shape())
    first, second = ([1, 2, 3, 4], [0, 4, 3, 2])
    expected = [first, second] if ids is None else [[int(ids[place]) for place in each] for each in (first, second)]
    assert [tree.tokens for tree in trees] == expected
    assert trees[0].confidence == pytest.approx(logits[0].softmax(-1)[[1, 2, 3, 4]].tolist())


@pytest.mark.parametrize("level", [0, 1])
def test_a_level_without_numbers_is_none(level: int) -> None:
    tree = tree_of(Shape())
    rows = [torch.tensor([[2.0, 1.0, 0.0, -1.0]]), torch.zeros(4, 4)]
    rows[level] = torch.full_like(rows[level], float("nan"))
    for each in rows:
        if tree.frontier:
            grow([tree], each[: len(tree.frontier)], None, Shape())
    assert tree.frontier == [] and len(tree.made("test").tokens) == 4 * level
