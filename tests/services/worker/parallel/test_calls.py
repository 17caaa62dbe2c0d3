"""Calls of an executor as whole numbers, and back."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest
import ranks

from models.batch import Batch, Stretch, make_batch
from models.group import RankLost
from services.worker.parallel import calls


def equal(one: Batch, other: Batch) -> bool:
    pairs = [(getattr(one, field.name), getattr(other, field.name)) for field in fields(Batch)]
    return all(np.array_equal(a, b) and getattr(a, "dtype", 0) == getattr(b, "dtype", 0) for a, b in pairs)


TREE = Stretch([1, 2, 3, 4, 5], 37, range(4), 0, (-1, 0, -1, 2), range(90, 94))
BATCHES = {
    "one row": [Stretch([7], 0, [3], 0)],
    "chunks and steps": [Stretch(list(range(33)), 5, [9, 8, 7], 33), Stretch([1], 15, [2], 0)],
    "a tree": [TREE, Stretch([1, 2], 15, [10, 11], 1)],
    "more than one message": [Stretch(list(range(500)), 0, list(range(32)), 0)],
}


@pytest.mark.parametrize("name", BATCHES)
def test_a_batch_arrives_as_it_was_sent(name: str) -> None:
    batch = make_batch(BATCHES[name], 16)
    words = calls.forward_call(batch)
    assert (len(words) > calls.INLINE) == (name == "more than one message")
    with ranks.groups(2) as (pool, groups):
        heard = pool.submit(calls.hear, groups[1])
        calls.tell(groups[0], words)
        found = heard.result()
    assert int(found[0]) == calls.FORWARD and equal(calls.batch_of(found), batch)


def test_numbers_of_other_calls_arrive() -> None:
    with ranks.groups(3) as (pool, groups):
        for words in ([calls.COPY, 4, 9], [calls.MOVE], [calls.MOVE, *range(2000)]):
            heard = [pool.submit(calls.hear, group) for group in groups[1:]]
            calls.tell(groups[0], calls.call(*words))
            assert [each.result().tolist() for each in heard] == [words, words]


def test_a_rank_that_does_not_listen_is_lost() -> None:
    """One that is stopped between two calls, too, of which rank 0 sees nothing else."""
    with ranks.groups(2) as (_, groups):
        groups[0].timeout = 0.2
        with pytest.raises(RankLost, match="rank 0 of 2"):
            calls.tell(groups[0], calls.call(calls.COPY, 1, 2))
