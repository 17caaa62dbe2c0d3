"""A completion's body as the door takes it or refuses it, checked against a model that serves little."""

from __future__ import annotations

from typing import Any

import pytest

from services.api.messages import ModelCard, Speculation
from services.streamer.openai.errors import ApiError
from services.streamer.openai.request import Request, RequestLimits, check_against, parse_completion

CARD = ModelCard(
    model="m", max_context=100, vocab_size=1000, eos_token_ids=[0], methods=["naive", "ngram"],
    verify_strategies=["greedy", "target_match", "rejection", "block"], accept_policies=["normal", "reject_all"],
    max_speculative_tokens=8, engine="mock", speculation=Speculation(method="ngram", num_speculative_tokens=8),
)  # fmt: skip


def asked(**fields: Any) -> Request:
    return parse_completion({"model": "m", "prompt": "hi", **fields}, RequestLimits())


def refusal(card: ModelCard = CARD, **fields: Any) -> ApiError:
    with pytest.raises(ApiError) as caught:
        check_against(asked(**fields), card)
    assert caught.value.status == 400
    return caught.value
