"""Drafts on the wire: what is packed comes out again, and columns that don't fit each other are refused."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import numpy as np
import pytest

from services.api.drafter import Draft
from services.api.drafts import PlacedDraft, pack, unpack
from services.api.messages import DraftColumns


def some_drafts(chance: random.Random) -> list[PlacedDraft]:
    drafts = []
    for _ in range(chance.randrange(5)):
        count = chance.choice([0, 1, 3, 64])
        probs = np.random.default_rng(count).random((count, chance.choice([1, 7])), np.float32)
        draft = Draft(
            tokens=[chance.choice([0, -1, 2**31 - 1, -(2**31), 49_151]) for _ in range(count)],
            source=chance.choice(["", "suffix", "corpus:ä"]),
            match_length=chance.randrange(64),
            parents=[at - 1 for at in range(count)] if chance.random() < 0.3 else [],
            confidence=[chance.random() for _ in range(count)] if chance.random() < 0.7 else [],
            probs=probs if chance.random() < 0.3 else None,
        )
        drafts.append(PlacedDraft(chance.randrange(-5, 2**40), chance.randrange(2**20), draft))
    return drafts


def sent(drafts: list[PlacedDraft]) -> list[PlacedDraft]:
    return unpack(msgspec.msgpack.decode(msgspec.msgpack.encode(pack(drafts)), type=DraftColumns))


def test_what_is_packed_comes_out_again() -> None:
    chance = random.Random(5)
    for _ in range(300):
        drafts = some_drafts(chance)
        received = sent(drafts)
        assert len(received) == len(drafts)
        for mine, theirs in zip(drafts, received, strict=True):
            assert theirs[:2] == mine[:2]
            assert theirs.draft._replace(probs=None) == mine.draft._replace(probs=None)
            if mine.draft.probs is None:
                assert theirs.draft.probs is None
            else:
                np.testing.assert_array_equal(theirs.draft.probs, mine.draft.probs)


def test_confidence_of_some_tokens_is_none_and_others_keep_theirs() -> None:
    drafts = [PlacedDraft(1, 2, Draft([1, 2], confidence=[0.5])), PlacedDraft(2, 2, Draft([3], confidence=[0.25]))]
    assert [each.draft.confidence for each in sent(drafts)] == [[], [0.25]]


def test_probabilities_come_as_float32_whatever_they_were() -> None:
    draft = Draft([1], probs=np.array([[0.25, 0.75]], np.float64).T.copy().T)
    [(_, _, received)] = sent([PlacedDraft(1, 2, draft)])
    assert received.probs.dtype == np.float32 and received.probs.tolist() == [[0.25, 0.75]]
    assert not received.probs.flags.writeable


@pytest.mark.parametrize("shape", [(2,), (1, 5), (3, 5), (2, 0), (2, 5, 1)])
def test_probabilities_of_another_shape_than_tokens_by_vocabulary_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError):
        pack([PlacedDraft(1, 2, Draft([1, 2], probs=np.zeros(shape)))])


def test_a_token_that_is_none_is_refused() -> None:
    with pytest.raises(OverflowError):
        pack([PlacedDraft(1, 2, Draft([2**31]))])


GOOD = pack([
    PlacedDraft(1, 9, Draft([5, 6], "s", confidence=[0.5, 0.5], probs=np.ones((2, 3)))),
    PlacedDraft(2, 9, Draft([7], "s", confidence=[0.5])),
])  # fmt: skip


@pytest.mark.parametrize(
    "changed",
    [
        {"lengths": [2, 2]},
        {"lengths": [2, 0]},
        {"lengths": [4, -1]},
        {"lengths": [3]},
        {"lengths": [2**70, 1]},
        {"committed": [1, 2, 3]},
        {"sources": []},
        {"match_lengths": [1]},
        {"parents": [[]]},
        {"tokens": b""},
        {"tokens": GOOD.tokens[:-1]},
        {"tokens": GOOD.tokens + b"1234"},
        {"chances": b""},
        {"chances": GOOD.chances[:-4]},
        {"sequence_ids": []},
        {"vocabularies": []},
        {"vocabularies": [3]},
        {"vocabularies": [3, 3]},
        {"vocabularies": [0, 3]},
        {"vocabularies": [6, -6]},
        {"vocabularies": [2**70, 0]},
        {"probs": b""},
        {"probs": GOOD.probs[:-1]},
        {"probs": GOOD.probs + b"1234"},
    ],
)
def test_columns_that_do_not_fit_are_refused(changed: dict[str, Any]) -> None:
    assert len(unpack(GOOD)) == 2
    with pytest.raises(ValueError):
        unpack(msgspec.structs.replace(GOOD, **changed))
