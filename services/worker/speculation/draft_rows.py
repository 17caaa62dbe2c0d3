"""How much of each prepared draft a step verifies: the number of rows with the most expected tokens per second, from
the cost of the step (cost_model.py) and measured acceptance (acceptance.py). Pure functions.
"""

from __future__ import annotations

from collections.abc import Sequence as Items
from typing import NamedTuple

from services.worker.scheduling.planning import Plan
from services.worker.speculation.acceptance import Acceptance
from services.worker.speculation.cost_model import StepTime
from services.worker.speculation.draft_length import cumulated, lengths
from services.worker.speculation.prepared import Prepared

# The largest step allowed, as a multiple of the largest measured; and rows for drafts that are always allowed.
FURTHER, FEW_ROWS = 2, 4


class Candidate(NamedTuple):
    """A prepared draft of which at most `longest` tokens can be verified: their places in falling order of the
    probability that the token and all before it are accepted, and that probability."""

    prepared: Prepared
    longest: int
    places: Items[int]
    values: list[float]


class Costs(NamedTuple):
    """The cost of a step with up to `most` rows of drafts: seconds[k] with k rows, without the time of its prompt
    chunks; []: nothing was measured. `step_seconds`: the step without drafts; `token_seconds`: saved by an accepted
    token. `unknown`: no step as small as this has been measured."""

    most: int
    unknown: bool
    seconds: list[float]
    step_seconds: float = 0.0
    token_seconds: float = 0.0


def costs_of(plan: Plan, wanted: int, fixed: int, model: StepTime, beside: float = 0.0) -> Costs:
    """`wanted`: rows that could be verified; `fixed`: rows that drafts of fixed length take. `beside`: what every step
    costs besides, which an accepted token saves, too: the worker's head."""
    certain = counts = context = 0
    for item in plan.items:
        certain += item.verify
        counts += item.count
        context += item.start + item.count
    # Rows of prompt chunks give no token, and their time is no cost of drafts.
    rows, chunks = counts + fixed, counts - certain
    unknown = rows < model.least_rows or not model.steps
    # What a token saves isn't known then: measure the plain step first.
    known = 0 if unknown else max(FEW_ROWS, FURTHER * model.most_rows - rows)
    most = max(0, min(wanted, plan.draft_rows - fixed, known))
    curve = model.curve(rows, most, context)
    if not curve:
        return Costs(most, unknown, [])
    step_seconds = curve[0]
    if chunks or beside:
        alone = beside + (model.predict(rows - chunks, context) if chunks else step_seconds)
        curve = [alone + seconds - step_seconds for seconds in curve]
    return Costs(most, unknown, curve, step_seconds, curve[0] / max(1, certain))


def candidate_of(prepared: Prepared, acceptance: Acceptance, longest: int) -> Candidate:
    if not prepared.parents:
        chances = acceptance.chances(prepared, prepared.at, prepared.at + max(0, longest))
        return Candidate(prepared, longest, range(prepared.at, prepared.at + len(chances)), cumulated(chances))
    chances = acceptance.chances(prepared)
    found = prepared.cumulated([1.0] * prepared.certain + chances[prepared.certain :])
    places = prepared.best(found, len(found), longest)
    return Candidate(prepared, longest, places, [found[place] for place in places])


def choose(candidates: list[Candidate], certain: int, costs: Costs) -> list[Items[int]]:
    """By candidate, the places of the tokens to verify. `certain`: tokens that the step gives without drafts."""
    values = [each.values for each in candidates]
    counts = lengths(values, certain, costs.seconds) if costs.most else [0] * len(values)
    return [
        _best(each, count) if each.prepared.parents else each.places[:count]
        for each, count in zip(candidates, counts, strict=True)
    ]


def _best(candidate: Candidate, count: int) -> Items[int]:
    """With so few tokens of a tree, its first path alone may bring as much."""
    prepared, longest, places, values = candidate
    if count == len(places):
        return places
    by_place = dict(zip(places, values, strict=True))
    return prepared.best([by_place.get(place, 0.0) for place in range(len(prepared.tokens))], count, longest)
