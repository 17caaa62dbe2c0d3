"""Drafts that are trees, and leases of them."""

from __future__ import annotations

import random

import pytest

from services.api.drafts import DraftItem
from services.worker.speculation import tree
from services.worker.speculation.lease import LONGEST_LEASE, lease_of
from services.worker.speculation.trust import grades

#   ─┬ 5 ┬ 6 ─ 7
#    │   └ 8
#    └ 9 ─ 6
TOKENS, PARENTS = [5, 9, 6, 8, 6, 7], [-1, -1, 0, 0, 1, 2]
CHANCES = [0.6, 0.3, 0.5, 0.4, 0.9, 1.0]
TEXT = [1, 2, 3]


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


def test_depths_reach_and_the_first_way() -> None:
    assert tree.depths(6, PARENTS) == [1, 1, 2, 2, 2, 3]
    assert tree.reach(TOKENS, PARENTS) == 3 and tree.reach([4, 4], []) == 2 and tree.reach([], []) == 0
    assert tree.first_path(TOKENS, PARENTS) == [5, 6, 7]
    assert tree.simplified([-1, 0, 1]) == tree.CHAIN


def test_a_walk_goes_as_far_as_the_text_agrees() -> None:
    assert tree.walk(TOKENS, PARENTS, [5, 8, 1]) == [0, 3]
    assert tree.walk(TOKENS, PARENTS, [9, 6, 7]) == [1, 4]
    assert tree.walk(TOKENS, PARENTS, [7]) == []


def test_what_pages_do_not_allow_is_left_out_branch_by_branch() -> None:
    assert tree.fitting(TOKENS, PARENTS, 3, 16, 8) == (TOKENS, PARENTS, 2)
    assert tree.fitting(TOKENS, PARENTS, 3, 16, 1) == ([5, 9, 6, 6, 7], [-1, -1, 0, 1, 2], 1)
    assert tree.fitting(TOKENS, PARENTS, 3, 16, 0) == ([5, 6, 7], [], 0)


def item(committed: int = 3, **more: object) -> DraftItem:
    fields: dict[str, object] = {"tokens": TOKENS, "parents": PARENTS, "chances": CHANCES, **more}
    return DraftItem(sequence_id=1, committed=committed, source="s", **fields)  # type: ignore[arg-type]


def test_of_a_lease_the_likeliest_are_chosen_with_what_they_follow() -> None:
    lease = lease_of(item(), [], TEXT, "asked")
    assert lease is not None and lease.left == 3 and len(lease.tokens) - lease.at == 6
    values = lease.cumulated(lease.chances)
    assert [round(value, 2) for value in values] == [0.6, 0.3, 0.3, 0.24, 0.27, 0.3]
    assert tree.chosen(lease.tokens, lease.parents, lease.best(values, 4, 3)) == ([5, 9, 6, 7], [-1, -1, 0, 2])
    assert lease.best(values, 6, 1) == [0, 1]
    # Where what is beside it brings little, the first way has the rows to itself.
    values[1] = values[3] = values[4] = 0.005
    assert lease.best(values, 6, 3) == [0, 2, 5]


def test_a_lease_goes_on_below_what_was_said() -> None:
    lease = lease_of(item(), [], TEXT, "asked")
    assert lease is not None and lease.follow([5])
    assert (lease.tokens, lease.parents, lease.chances) == ([6, 8, 7], [-1, -1, 0], [0.5, 0.4, 1.0])
    assert lease.follow([6])
    # One that doesn't branch is a chain.
    assert (lease.tokens, lease.parents) == ([7], tree.CHAIN) and lease.next(3) == [7]
    assert not lease.follow([7])


def test_a_lease_ends_where_nothing_agrees() -> None:
    for said in ([4], [5, 7], [9, 6]):
        lease = lease_of(item(), [], TEXT, "asked")
        assert lease is not None and not lease.follow(said)


def test_what_was_ahead_is_walked_first() -> None:
    lease = lease_of(item(5), [4, 4], [*TEXT, 4], "ahead")
    assert lease is not None and lease.certain == 1 and lease.tokens == [4, *TOKENS]
    assert lease.follow([4, 9])
    assert (lease.tokens, lease.certain) == ([6], 0)
    assert lease_of(item(5), [4, 4], [*TEXT, 4, 5], "ahead") is None


def test_every_claim_that_was_put_to_the_test_is_told() -> None:
    lease = lease_of(item(), [], TEXT, "asked")
    assert lease is not None
    lease.grades = grades(lease.chances)
    grade = grades(CHANCES)
    # 9 is beside 5, 8 beside 6; what follows 7 isn't known.
    assert lease.judged([5, 6, 7]) == ([grade[0], grade[2], grade[5]], [grade[1], grade[3]])
    assert lease.judged([5, 1]) == ([grade[0]], [grade[1], grade[2], grade[3]])
    assert lease.judged([5]) == ([grade[0]], [grade[1]])
    assert lease.judged([1]) == ([], [grade[0], grade[1]])


@pytest.mark.parametrize("seed", range(60))
def test_a_lease_of_any_tree_follows_a_text_as_a_walk_in_it_does(seed: int) -> None:
    chance = random.Random(seed)
    parents = [chance.randrange(-1, place) for place in range(chance.randint(1, 90))]
    taken: set[tuple[int, int]] = set()
    tokens = []
    for parent in parents:
        token = next(t for t in range(200) if (parent, t) not in taken and chance.random() < 0.7)
        taken.add((parent, token))
        tokens.append(token)
    lease = lease_of(item(tokens=tokens, parents=parents, chances=[]), [], TEXT, "asked")
    assert lease is not None
    tokens, parents = tokens[:LONGEST_LEASE], parents[:LONGEST_LEASE]
    at, lives = -1, True
    while lives:
        below = [place for place, parent in enumerate(parents) if parent == at]
        assert below, "it lives on, so something follows"
        where = chance.choice([*below, -1])
        lives = lease.follow([tokens[where] if where >= 0 else 999])
        at = where if where >= 0 else -2
        assert lives == any(parent == at for parent in parents)
        if lives:
            assert len(lease.tokens) - lease.at == len(tree.below(len(tokens), parents, at))
