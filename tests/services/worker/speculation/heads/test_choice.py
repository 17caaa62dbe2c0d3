"""How a draft's tokens are chosen from logits, and which probabilities it says they were drawn from."""

from __future__ import annotations

import math
from array import array

import pytest
import torch

from services.api.drafter import Draft, DraftRequest, Text
from services.worker.speculation.heads.choice import DraftChain, choose

VOCABULARY = 12
LOGITS = torch.tensor([0.5, -1.0, 2.0, 1.0])
# The target's ids of a drafter's four tokens; two of them are one.
IDS = torch.tensor([3, 9, 3, 0])


def chain(budget: int = 4, length: int = 5, **more: float) -> DraftChain:
    return DraftChain(DraftRequest(Text(1, array("i", range(length))), budget, **more))  # type: ignore[arg-type]


def drafted(ids: torch.Tensor | None = None, vocab_size: int = 4, **more: float) -> Draft:
    made = chain(**more)  # type: ignore[arg-type]
    while not made.full:
        choose([made], LOGITS[None], ids, vocab_size)
    return made.made("test")


@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.3])
def test_a_sampled_draft_says_the_probabilities_at_its_temperature(temperature: float) -> None:
    draft = drafted(temperature=temperature, budget=3)
    torch.testing.assert_close(draft.probs, (LOGITS / temperature).softmax(-1).expand(3, 4))


def test_tokens_of_the_drafter_that_are_one_of_the_target_have_their_chances_together() -> None:
    draft = drafted(IDS, VOCABULARY, temperature=0.7, budget=2)
    own = (LOGITS / 0.7).softmax(-1).tolist()
    expected = torch.zeros(VOCABULARY)
    expected[[3, 9, 0]] = torch.tensor([own[0] + own[2], own[1], own[3]])
    torch.testing.assert_close(draft.probs, expected.expand(2, -1))
    assert set(draft.tokens) <= {3, 9, 0}


def test_the_noise_follows_from_the_seed_and_the_length_of_the_text() -> None:
    def tokens(**more: float) -> list[int]:
        return drafted(temperature=2.0, budget=40, **more).tokens

    assert tokens(seed=1) == tokens(seed=1)
    assert len({tuple(each) for each in (tokens(seed=1), tokens(seed=2), tokens(seed=1, length=6))}) == 3


@pytest.mark.parametrize("temperature", [0.0, 0.7])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_where_a_network_gives_no_numbers_that_draft_ends_and_no_other_one(bad: float, temperature: float) -> None:
    broken, whole = chain(temperature=temperature), chain(temperature=temperature)
    for row in (LOGITS, torch.full((4,), bad), LOGITS):
        choose([broken, whole], torch.stack([row, LOGITS]), None, 4)
    first, second = broken.made("test"), whole.made("test")
    assert (len(first.tokens), len(second.tokens)) == (1, 3)
    if temperature:
        assert [len(each.probs) for each in (first, second)] == [1, 3]
        torch.testing.assert_close(first.probs[0], (LOGITS / temperature).softmax(-1))
    assert broken.full and not whole.full


def test_a_temperature_that_leaves_no_numbers_ends_the_draft() -> None:
    assert drafted(temperature=1e-45, budget=3).tokens == []


def test_of_tokens_that_a_device_chose_those_are_taken_that_have_a_chance() -> None:
    made = chain()
    made.take([(5, 0.5), (6, math.nan), (7, 0.5)])
    assert made.made("test").tokens == [5]


def test_at_temperature_0_the_most_probable_token_is_drafted_and_is_certain() -> None:
    draft = drafted(IDS, VOCABULARY, budget=2)
    assert draft.tokens == [3, 3] and draft.probs is None
