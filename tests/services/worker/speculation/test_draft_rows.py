"""How much of each prepared draft is verified."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest

from services.api.drafter import Draft
from services.worker.scheduling.planning import Plan
from services.worker.speculation.acceptance import AcceptanceTable, buckets_of
from services.worker.speculation.cost_model import StepTime
from services.worker.speculation.draft_rows import Candidate, Costs, candidate_of, choose, costs_of
from services.worker.speculation.prepared import Prepared


def model() -> StepTime:
    """A step takes 10 ms, and 1 ms a row."""
    known = StepTime()
    for rows in (1, 2, 4, 8, 16, 32, 64, 128, 256, 512):
        for _ in range(5):
            known.learn(rows, 100, 0.010 + 0.001 * rows)
    return known


def plan(deciding: int = 4, chunk: int = 0, draft_rows: int = 500) -> Plan:
    """So many sequences that give a token, and a chunk of a prompt."""
    items: list[Any] = [SimpleNamespace(count=1, start=24, verify=True) for _ in range(deciding)]
    if chunk:
        items.append(SimpleNamespace(count=chunk, start=0, verify=False))
    return Plan(items, draft_rows, [])


def candidate(chance: float, tokens: int = 8, longest: int = 8, parents: list[int] | None = None) -> Candidate:
    """One whose tokens are accepted as often as it tells."""
    prepared = Prepared(Draft([7] * tokens, "suffix", 4, parents or [], [chance] * tokens), "ahead")
    prepared.buckets = buckets_of(prepared.confidence)
    acceptance, drawn = AcceptanceTable().of(""), random.Random(1)
    for _ in range(400):
        acceptance.rates("suffix").learn([prepared.buckets[0]], drawn.random() < chance)
    return candidate_of(prepared, acceptance, longest)


def counts(candidates: list[Candidate], plan: Plan, known: StepTime | None = None) -> list[int]:
    wanted = sum(each.longest for each in candidates)
    costs = costs_of(plan, wanted, 0, known or model())
    return [len(places) for places in choose(candidates, sum(item.verify for item in plan.items), costs)]


def test_prompts_in_the_same_step_do_not_raise_the_cost_of_drafts() -> None:
    """The prompts' rows make the step long, and a token per second of it worth much; but they have to be computed
    anyway, and a draft's rows take as much longer there as elsewhere."""
    for chance in (0.25, 0.5, 0.75, 0.93):
        assert counts([candidate(chance)], plan()) == counts([candidate(chance)], plan(chunk=500))
    alone, beside = costs_of(plan(), 8, 0, model()), costs_of(plan(chunk=500), 8, 0, model())
    assert alone.token_seconds == pytest.approx(beside.token_seconds) and alone.token_seconds > 0.0
    assert beside.step_seconds > 10 * alone.step_seconds, "it does take longer"


def test_higher_probabilities_give_longer_drafts() -> None:
    found = [counts([candidate(chance)], plan())[0] for chance in (0.05, 0.5, 0.75, 0.93)]
    assert found == sorted(found) and found[0] == 0 and found[-1] > 4


def test_the_most_probable_tokens_of_all_drafts_get_the_rows() -> None:
    sure, doubtful = candidate(0.95), candidate(0.3)
    assert counts([doubtful, sure], plan()) == [0, counts([sure], plan())[0]]


def test_no_more_rows_than_there_are_and_none_while_nothing_is_known() -> None:
    drafts = [candidate(0.99) for _ in range(4)]
    assert sum(counts(drafts, plan(draft_rows=5))) <= 5
    assert counts(drafts, plan(), StepTime()) == [0] * 4
    assert counts([candidate(0.99, longest=0)], plan()) == [0]


def test_a_step_smaller_than_any_measured_has_no_drafts_so_that_it_is_measured() -> None:
    known = StepTime()
    for _ in range(5):
        known.learn(16, 100, 0.01)
    assert costs_of(plan(deciding=4), 8, 0, known).unknown and not costs_of(plan(deciding=16), 8, 0, known).unknown
    assert costs_of(plan(deciding=4), 8, 0, known).most == 0
    assert costs_of(plan(), 8, 0, StepTime()) == Costs(0, True, [])


def test_the_most_probable_tokens_of_a_tree_are_chosen_parents_first() -> None:
    #  two ways from the text: 0 ─ 2 ─ 3 and 1
    tree = candidate(0.6, tokens=4, parents=[-1, -1, 0, 2])
    [places] = choose([tree], 1, costs_of(plan(1), 4, 0, model()))
    assert places and all(tree.prepared.parents[place] in (-1, *places) for place in places)


def test_what_every_step_costs_besides_is_saved_by_an_accepted_token_too() -> None:
    alone, beside = costs_of(plan(1), 8, 0, model()), costs_of(plan(1), 8, 0, model(), 0.005)
    assert beside.token_seconds == pytest.approx(alone.token_seconds + 0.005)
    assert beside.step_seconds == alone.step_seconds
    rows = [b - a for a, b in zip(alone.seconds, beside.seconds, strict=True)]
    assert rows == pytest.approx([0.005] * 9), "a row costs what it did"
    one = candidate(0.45)
    assert sum(map(len, choose([one], 1, beside))) > sum(map(len, choose([one], 1, alone)))
