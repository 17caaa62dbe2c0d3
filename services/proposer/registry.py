"""The proposers of the proposer process: one file and one line each. All that guess from text share one knowledge."""

from __future__ import annotations

from services.api.settings import Settings
from services.proposer.auto import AutoProposer
from services.proposer.from_text import FromText
from services.proposer.hybrid import HybridProposer
from services.proposer.knowledge import Knowledge, Rule
from services.proposer.naive import NaiveProposer
from services.proposer.ngram import NgramProposer
from services.proposer.prediction import PredictionProposer
from services.proposer.proposer import Proposer
from services.proposer.suffix import SuffixProposer
from services.proposer.suffix_store import compiling


def make_proposers(settings: Settings, knowledge: Knowledge | None = None) -> dict[str, Proposer]:
    if settings.method != "naive":
        # Else at the first request that asks for another.
        compiling.start()
    if knowledge is None:
        knowledge = Knowledge.of(settings)
    alone: dict[str, FromText] = {
        "ngram": NgramProposer(knowledge),
        "suffix": SuffixProposer(knowledge, Rule.of(settings)),
        "prediction": PredictionProposer(knowledge),
    }
    return {
        "naive": NaiveProposer(),
        **alone,
        "hybrid": HybridProposer(alone[settings.hybrid_first], alone[settings.hybrid_then], settings.hybrid_rule),
        "auto": AutoProposer(knowledge),
    }
