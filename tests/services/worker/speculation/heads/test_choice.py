"""How a draft's tokens are chosen from logits, and which probabilities it says they were drawn from."""

from __future__ import annotations

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


def test_at_temperature_0_the_most_probable_token_is_drafted_and_is_certain() -> None:
    draft = drafted(IDS, VOCABULARY, budget=2)
    assert draft.tokens == [3, 3] and draft.probs is None
