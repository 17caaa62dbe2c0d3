"""The drafters of the proposer process, made from the table of methods. The text drafters share one
index."""

from __future__ import annotations

from services.api.drafter import Drafter
from services.api.methods import METHODS
from services.api.settings import Settings
from services.proposer.index import SuffixIndex


def make_drafters(settings: Settings, index: SuffixIndex) -> dict[str, Drafter]:
    """By name. Methods that combine others are made last, because `of` gets the drafters made so far."""
    made: dict[str, Drafter] = {}
    for row in sorted(METHODS.values(), key=lambda row: row.combines):
        if row.runs == "proposer":
            made[row.name] = row.load().of(settings, index, made)
    return made
