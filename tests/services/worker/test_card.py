"""What a worker says of its embeddings."""

from __future__ import annotations

import pytest

from services.api.settings import Settings
from services.worker.card import card_of
from services.worker.running.runner import Facts
from services.worker.scheduling.limits import limits_of


@pytest.mark.parametrize(
    ("set_to", "of_model", "told", "warned"),
    [
        ("auto", "", "last", False),
        ("auto", "mean", "mean", False),
        ("last", "mean", "last", False),
        ("auto", "cls_token", "last", True),
        ("mean", "cls_token", "mean", False),
    ],
)
def test_pooling_is_the_setting_else_the_models_own(
    set_to: str, of_model: str, told: str, warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    facts = Facts(100, 64, (0,), 4, 32, hidden_size=48, pooling=of_model)
    card = card_of(Settings.for_tests(pooling=set_to), limits_of(facts), facts)
    assert (card.embedding_size, card.pooling) == (48, told)
    assert bool([each for each in caplog.records if of_model and of_model in each.getMessage()]) == warned
