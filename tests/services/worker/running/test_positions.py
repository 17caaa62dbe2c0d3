"""services/worker/running/positions.py beside counting one by one."""

from __future__ import annotations

import random

from services.worker.running.positions import Positions


def test_counts_are_those_of_counting_one_by_one() -> None:
    chance = random.Random(3)
    positions, plain = Positions(), [0] * 70
    assert not positions and positions.counts() == []
    longest = 0
    for _ in range(2000):
        if chance.random() < 0.7:
            length = chance.randrange(65)
            positions.reach(length)
            for place in range(length):
                plain[place] += 1
        else:
            length = chance.randrange(1, 65)
            positions.add(length)
            plain[length - 1] += 1
        longest = max(longest, length)
        assert positions.counts() == plain[:longest]


def test_a_fully_rejected_draft_counts_at_no_position() -> None:
    positions = Positions()
    positions.reach(0)
    assert not positions and positions.counts() == []
