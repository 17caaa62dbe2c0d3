"""Law 3: the same tokens with any proposer, any draft length, any batch mates, after preemption and from the cache.

Here with the real model; through the whole mesh: tests/flow/test_same_text_as_transformers.py.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import pytest
from engine_room import Ask, EngineRoom, Guess, draft, proposed_by

from services.api.drafts import PlacedDraft
from services.api.settings import Settings, cache_dir

pytestmark = pytest.mark.model

PROMPT_TOKENS = (5, 17, 33, 64, 90, 130)
# In the fast tests half of a batch is greedy and half is sampled. In other dtypes than int8, the fastest, they are
# tests/services/worker/running/test_torch_runner.py and test_torch_model.py.
SAMPLED = {"greedy": (), "sampled": range(6), "bfloat16": (0, 2, 5), "int8": (1, 3, 4), "float32": (0, 2, 5)}


@pytest.fixture(
    scope="module", params=["int8", *(pytest.param(each, marks=pytest.mark.slow) for each in ("bfloat16", "float32"))]
)
def dtype(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def model(dtype: str) -> Any:
    from models.sources import ensure_model
    from services.worker.running.load_torch_model import Wanted, load_torch_model

    folder = ensure_model("smollm2-135m-instruct", cache_dir(Settings.for_tests()))
    return load_torch_model(
        folder,
        Wanted(dtype=dtype, threads=os.cpu_count() or 1, page_tokens=16, kv_cache_mb=256, max_context=1024),
    )


def room_for(model: Any, guess: Guess | None = None, **limits: Any) -> EngineRoom:
    from services.worker.running.torch_runner import TorchRunner

    return EngineRoom(TorchRunner(model), guess, **limits)


@pytest.fixture
def engine(model: Any) -> Callable[..., EngineRoom]:
    return partial(room_for, model)


@pytest.fixture(scope="module")
def alone(model: Any) -> Callable[[str], list[list[int]]]:
    """Of each kind of requests: what naive decoding says to each by itself."""
    return cache(lambda kind: run(room_for(model, prefix_cache=False), requests(kind), together=False))


@pytest.fixture(params=["both", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("greedy", "sampled"))])
def kind(request: pytest.FixtureRequest, dtype: str) -> str:
    return dtype if request.param == "both" else str(request.param)


def requests(kind: str) -> list[dict[str, Any]]:
    chance = random.Random(11)
    found = []
    for k, length in enumerate(PROMPT_TOKENS):
        half = [chance.randrange(200, 40000) for _ in range(max(2, length // 2))]
        sampling: dict[str, Any] = {"max_tokens": 40}
        if k in SAMPLED[kind]:
            sampling |= {"temperature": 0.8, "seed": 1000 + k, "top_p": (1.0, 0.9)[k % 2], "top_k": (0, 40)[k // 2 % 2]}
            sampling |= {"repetition_penalty": 1.1, "presence_penalty": 0.3} if k % 3 == 0 else {}
        found.append({"prompt": (half + half)[:length], **sampling})
    return found


def run(room: EngineRoom, wanted: list[dict[str, Any]], together: bool) -> list[list[int]]:
    with room:
        sequence_ids = []
        for each in wanted:
            sequence_ids.append(room.send(**each))
            if not together:
                room.run(sequence_ids)
        room.run(sequence_ids)
        assert not room.failures and not room.drafts.failed
        room.settle()
        return [room.tokens[sequence_id] for sequence_id in sequence_ids]


def random_length_guess(ask: Ask) -> PlacedDraft:
    """Tokens copied from a random earlier place: sometimes right, mostly wrong, of every length."""
    chance = random.Random(len(ask.text) * 7919 + ask.id)
    text = ask.text
    at = chance.randrange(len(text))
    return draft(ask, text[at : at + chance.randint(1, 8)] or [5])


def oracle(answers: dict[tuple[int, ...], list[int]]) -> Guess:
    """Knows what the target will say."""

    def guess(ask: Ask) -> PlacedDraft | None:
        known = answers[tuple(ask.text[: ask.prompt_tokens])]
        begin = ask.generated + len(ask.ahead)
        following = known[begin : begin + ask.budget]
        return draft(ask, following) if following else None

    return guess


def random_tree_guess(ask: Ask) -> PlacedDraft:
    """Tokens of the text, in trees of every shape: mostly wrong."""
    chance = random.Random(len(ask.text) * 104729 + ask.id)
    text = ask.text
    tokens: list[int] = []
    parents: list[int] = []
    bushy = chance.random()
    for _ in range(chance.randint(1, 12)):
        parent = len(tokens) - 1 if chance.random() > bushy else chance.randrange(-1, len(tokens))
        token = chance.choice(text)
        if (parent, token) not in zip(parents, tokens, strict=True):
            tokens.append(token)
            parents.append(parent)
    return draft(ask, tokens, parents=parents, confidence=[chance.random() for _ in tokens])


def oracle_tree(answers: dict[tuple[int, ...], list[int]]) -> Guess:
    """What the target will say, on ways that branch off at every token and come after wrong ones."""
    right = oracle(answers)

    def guess(ask: Ask) -> PlacedDraft | None:
        item = right(ask)
        if item is None:
            return None
        tokens, parents, chances, above = [], [], [], -1
        for place, token in enumerate(item.draft.tokens[:5]):
            wrong = ask.text[place % len(ask.text)]
            wrong_first = wrong != token and place % 2 == 1
            tokens += [wrong, token] if wrong_first else [token, token ^ 1]
            parents += [above, above]
            chances += [0.9, 0.8]
            above = len(tokens) - (1 if wrong_first else 2)
        return draft(ask, tokens, parents=parents, confidence=chances)

    return guess


def test_text_with_trees_is_that_of_naive_decoding_alone(
    engine: Callable[..., EngineRoom], alone: Callable[[str], list[list[int]]], kind: str
) -> None:
    wanted, plain = requests(kind), alone(kind)
    for together in (False, True):
        assert run(engine(random_tree_guess), wanted, together=together) == plain, "random trees"

    answers = {tuple(each["prompt"]): text for each, text in zip(wanted, plain, strict=True)}
    for limits in ({}, {"num_speculative_tokens": 16}, {"branch_pages": 3}, {"branch_pages": 0}, {"pages": 22}):
        believing = engine(oracle_tree(answers), **limits)
        assert run(believing, wanted, together=True) == plain, f"the right way among wrong ones, {limits}"
        accepted = sum(tally.accepted for tally in believing.scheduler.tallies.values())
        assert accepted > (0 if limits.get("branch_pages") == 0 else 60)

    fed = engine(oracle_tree(answers), method="auto")
    assert run(fed, wanted, together=True) == plain, "chosen by their chances"


def test_text_is_that_of_naive_decoding_alone(
    engine: Callable[..., EngineRoom], alone: Callable[[str], list[list[int]]], kind: str
) -> None:
    wanted, plain = requests(kind), alone(kind)
    assert all(len(text) == 40 for text in plain)

    assert run(engine(), wanted, together=True) == plain, "batch mates"
    assert run(engine(random_length_guess), wanted, together=True) == plain, "random drafts"
    assert run(engine(proposed_by("suffix")), wanted, together=True) == plain, "suffix drafts"
    assert run(engine(max_step_tokens=24), wanted, together=True) == plain, "small prefill chunks"

    siblings = engine(random_length_guess)
    assert run(siblings, wanted * 2, together=True) == plain * 2, "shared pages and copied ones"
    assert siblings.scheduler.planner.sharing.found_tokens == sum(len(each["prompt"]) - 1 for each in wanted)
    turns = [{**each, "prompt": each["prompt"] + text[:35]} for each, text in zip(wanted, plain, strict=True)]
    fresh = run(engine(prefix_cache=False), turns, together=True)
    with engine() as room:
        for batch, texts in ((wanted, plain), (turns, fresh)):
            sequence_ids = [room.send(**each) for each in batch]
            room.run(sequence_ids)
            assert [room.tokens[each] for each in sequence_ids] == texts, "pages of earlier requests and their answers"

    answers = {tuple(each["prompt"]): text for each, text in zip(wanted, plain, strict=True)}
    believing = engine(oracle(answers))
    assert run(believing, wanted, together=True) == plain, "drafts that are always right"
    tally = (
        sum(t.accepted for t in believing.scheduler.tallies.values()),
        sum(t.drafted for t in believing.scheduler.tallies.values()),
    )
    assert tally[0] == tally[1] > 0

    starved = engine(random_length_guess, pages=22)
    assert run(starved, wanted, together=True) == plain, "preempted"
    assert starved.scheduler.preemptions > 0
