"""Drafts on their way: what comes out is what went in, and columns that don't fit each other are refused."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from services.api.drafts import DraftItem, packed, unpacked
from services.api.messages import DraftColumns
from services.proposer.draft import EMPTY, Draft, Guesses


def some_items(chance: random.Random) -> list[DraftItem]:
    items = []
    for _ in range(chance.randrange(5)):
        length = chance.choice([0, 1, 3, 64])
        items.append(
            DraftItem(
                sequence_id=chance.randrange(-5, 2**40),
                committed=chance.randrange(2**20),
                tokens=[chance.choice([0, -1, 2**31 - 1, -(2**31), 49_151]) for _ in range(length)],
                source=chance.choice(["", "suffix", "corpus:ä"]),
                match_length=chance.randrange(64),
                parents=[at - 1 for at in range(length)] if chance.random() < 0.3 else [],
                chances=[chance.random() for _ in range(length)] if chance.random() < 0.7 else [],
            )
        )
    return items


def test_what_is_packed_comes_out_again() -> None:
    chance = random.Random(5)
    for _ in range(300):
        items = some_items(chance)
        sent = msgspec.msgpack.decode(msgspec.msgpack.encode(packed(items)), type=DraftColumns)
        assert unpacked(sent) == items


def test_chances_of_some_tokens_are_none() -> None:
    [item] = unpacked(packed([DraftItem(1, 2, [3, 4], "s", chances=[0.5])]))
    assert item.tokens == [3, 4] and item.chances == []


GOOD = packed([DraftItem(1, 9, [5, 6], "s", chances=[0.5, 0.5]), DraftItem(2, 9, [7], "s", chances=[0.5])])


@pytest.mark.parametrize(
    "changed",
    [
        {"lengths": [2, 2]},
        {"lengths": [2, 0]},
        {"lengths": [4, -1]},
        {"lengths": [3]},
        {"lengths": [2**70, 1]},
        {"sequence_ids": [1]},
        {"committed": [1, 2, 3]},
        {"sources": []},
        {"match_lengths": [1]},
        {"parents": [[]]},
        {"tokens": b""},
        {"tokens": GOOD.tokens[:-1]},
        {"tokens": GOOD.tokens + b"1234"},
        {"chances": b""},
        {"chances": GOOD.chances[:-4]},
    ],
)
def test_columns_that_do_not_fit_are_refused(changed: dict[str, Any]) -> None:
    assert len(unpacked(GOOD)) == 2
    with pytest.raises(ValueError):
        unpacked(replace(GOOD, **changed))


def test_guesses_are_the_drafts_they_were_made_of() -> None:
    chance = random.Random(6)
    for _ in range(200):
        items = [item for item in some_items(chance) if item.tokens]
        drafts = [Draft(*(getattr(item, name) for name in ("tokens", "source", "match_length", "parents")), None,
                        item.chances) for item in items] + [EMPTY]  # fmt: skip
        chance.shuffle(drafts)
        guesses = Guesses.of(drafts)
        assert list(guesses) == drafts and guesses == drafts and len(guesses) == len(drafts)
        assert [guesses[at] for at in range(len(drafts))] == drafts
        assert Guesses.of(guesses) is guesses


def test_a_proposer_that_tells_chances_of_some_tokens_tells_none_and_others_keep_theirs() -> None:
    some, all_told = Draft([1, 2], "s", chances=[0.5]), Draft([3], "t", chances=[0.25])
    assert [draft.chances for draft in Guesses.of([some, all_told])] == [[], [0.25]]
