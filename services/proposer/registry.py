"""The proposers of the proposer process: one file and one line each."""

from __future__ import annotations

from collections.abc import Callable

from services.config import Settings
from services.proposer.naive import NaiveProposer
from services.proposer.ngram import NgramProposer
from services.proposer.proposer import Proposer
from services.proposer.suffix import SuffixProposer

PROPOSERS: dict[str, Callable[[Settings], Proposer]] = {
    "naive": lambda settings: NaiveProposer(),
    "ngram": lambda settings: NgramProposer(settings.min_ngram_size, settings.max_ngram_size),
    "suffix": SuffixProposer.of,
}


def make_proposers(settings: Settings) -> dict[str, Proposer]:
    return {name: make(settings) for name, make in PROPOSERS.items()}
