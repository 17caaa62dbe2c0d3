"""A batch in, drafts out: what a target sees of the proposer process."""

from __future__ import annotations

import asyncio
import re
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from types import SimpleNamespace
from typing import Any, ClassVar, NamedTuple

import pytest
from mesh_doubles.clock import FakeClock
from msgspec.structs import replace
from prometheus_client import CollectorRegistry, generate_latest

from mesh.errors import Refuse
from services.api.drafter import Committed, Draft, DraftRequest, Needs
from services.api.drafts import PlacedDraft, unpack
from services.api.messages import (
    AddCorpus,
    CorpusCard,
    Ended,
    EngineCounts,
    ListCorpora,
    Propose,
    ProposeItem,
    RemoveCorpus,
)
from services.api.settings import Settings
from services.proposer.actor import GUEST_SILENCE, ProposerActor
from services.proposer.fast import compiling
from services.proposer.fast import texts as fast
from services.proposer.plain import texts as plain

CALL: Any = None


@pytest.fixture(scope="module", autouse=True)
def compiled() -> None:
    compiling.start().join()


TEXT = [1, 2, 3, 4, 5, 9, 1, 2]


class Directory:
    """Who is there, as the directory's client tells it."""

    def __init__(self) -> None:
        self.changed: Callable[[], None] = lambda: None
        self.workers = ["t"]

    def on_change(self, callback: Callable[[], None]) -> None:
        self.changed = callback

    def members(self, role: str) -> list[Any]:
        assert role == "worker"
        return [SimpleNamespace(instance=name, state="ready") for name in self.workers]


class Failing:
    """A drafter that fails on token 13."""

    name: ClassVar[str] = "failing"
    needs: ClassVar[Needs] = Needs.TOKENS
    gives_probs: ClassVar[bool] = False

    def __init__(self, fails: Callable[[int], list[Draft]] | None = None) -> None:
        self.forgotten: list[int] = []
        self._fails = fails or self._raises

    def _raises(self, count: int) -> list[Draft]:
        raise RuntimeError("13")

    def draft(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        if any(13 in request.text.tokens for request in requests):
            return self._fails(len(requests))
        return [Draft([7] * request.budget, "failing") for request in requests]

    def commit(self, results: Sequence[Committed]) -> None:
        pass

    def forget(self, text_ids: Sequence[int]) -> None:
        self.forgotten += text_ids


def make(drafters: Any = None, **settings: Any) -> tuple[ProposerActor, Directory, CollectorRegistry]:
    directory, registry = Directory(), CollectorRegistry()
    chosen = Settings.for_tests(**{"method": "ngram", **settings})
    context: Any = SimpleNamespace(settings=chosen, registry=registry, clock=FakeClock(), directory=directory)
    return ProposerActor(context, drafters), directory, registry


def whole(sequence_id: int, tokens: list[int], budget: int = 4, method: str = "") -> ProposeItem:
    return ProposeItem(
        sequence_id=sequence_id, committed=len(tokens), tokens=tokens, first=True, budget=budget, method=method
    )


class Answer(NamedTuple):
    step: int
    drafts: list[PlacedDraft]
    unknown: list[int]

    @property
    def tokens(self) -> list[list[int]]:
        return [draft.tokens for _, _, draft in self.drafts]


async def ask(actor: ProposerActor, *items: ProposeItem, epoch: int = 1, **more: Any) -> Answer:
    message = Propose(step=7, epoch=epoch, worker=more.pop("worker", "t"), items=list(items), **more)
    answer = actor.propose(message, CALL)
    return Answer(answer.step, unpack(answer.drafts), answer.unknown)


@pytest.mark.parametrize("index", ["plain", "compiled"])
async def test_a_draft_says_where_it_belongs_and_where_it_comes_from(index: str) -> None:
    actor, _, _ = make(proposer_index=index)
    answer = await ask(actor, whole(3, TEXT))
    assert answer.step == 7 and answer.unknown == []
    [(sequence_id, length, draft)] = answer.drafts
    assert (sequence_id, length, draft.tokens) == (3, 8, [3, 4, 5, 9])
    assert (draft.source, draft.match_length, draft.parents) == ("ngram", 2, [])
    assert type(actor._index._texts) is {"plain": plain.Texts, "compiled": fast.FastTexts}[index]


async def test_the_next_step_sends_only_what_is_new() -> None:
    actor, _, _ = make()
    await ask(actor, whole(3, TEXT))
    answer = await ask(actor, ProposeItem(sequence_id=3, committed=10, tokens=[3, 4], budget=2))
    assert answer.tokens == [[5, 9]]
    assert answer.drafts[0].length == 10


async def test_sequences_without_a_guess_are_left_out() -> None:
    actor, _, _ = make()
    answer = await ask(actor, whole(1, [1, 2, 3]), whole(2, TEXT), whole(3, TEXT, budget=0))
    assert [each.sequence_id for each in answer.drafts] == [2]


async def test_after_a_restart_every_sequence_is_unknown_until_it_is_sent_whole() -> None:
    actor, _, _ = make()
    delta = ProposeItem(sequence_id=3, committed=9, tokens=[3], budget=4)
    assert (await ask(actor, delta, whole(4, TEXT))).unknown == [3]
    assert (await ask(actor, whole(3, [*TEXT, 3]))).unknown == []


async def test_forgotten_sequences_are_unknown() -> None:
    actor, _, _ = make()
    await ask(actor, whole(3, TEXT))
    assert actor.load() == 1
    answer = await ask(actor, ProposeItem(sequence_id=3, committed=8, tokens=[], budget=4), forget=[3, 99])
    assert answer.unknown == [3]
    assert actor.load() == 0


async def test_a_target_that_restarts_starts_with_nothing_and_its_ghost_is_refused() -> None:
    actor, _, _ = make()
    await ask(actor, whole(3, TEXT))
    assert (await ask(actor, ProposeItem(sequence_id=3, committed=8, tokens=[]), epoch=2)).unknown == [3]
    with pytest.raises(Refuse) as caught:
        await ask(actor, whole(3, TEXT), epoch=1)
    assert caught.value.reason == "stale"


async def test_targets_that_leave_the_directory_take_their_sequences_along() -> None:
    actor, directory, _ = make()
    await actor.on_start()
    await ask(actor, whole(3, TEXT))
    await ask(actor, whole(3, TEXT), worker="u")
    assert actor.load() == 2
    directory.workers = ["u"]
    directory.changed()
    assert actor.load() == 1
    assert (await ask(actor, ProposeItem(sequence_id=3, committed=8, tokens=[]))).unknown == [3]


async def test_a_guest_is_in_no_directory_and_is_forgotten_when_it_is_silent() -> None:
    actor, directory, _ = make()
    clock: Any = actor._clock
    await actor.on_start()
    await ask(actor, whole(3, TEXT), worker="vllm-1", guest=True)
    directory.changed()
    await clock.advance(GUEST_SILENCE / 2)
    assert actor.load() == 1
    known = ProposeItem(sequence_id=3, committed=8, tokens=[])
    assert (await ask(actor, known, worker="vllm-1", guest=True)).unknown == []
    await clock.advance(GUEST_SILENCE - 1)
    assert actor.load() == 1
    await clock.advance(2)
    assert actor.load() == 0


async def test_what_a_guest_counts_is_among_the_metrics_while_it_asks() -> None:
    actor, _, registry = make()
    clock: Any = actor._clock
    await actor.on_start()
    counts = EngineCounts(
        steps=9, drafted=8, accepted=7, answered=6, missed=5, gave_up=4, seconds=0.5, waited_seconds=0.25
    )
    await ask(actor, worker="vllm-1", guest=True, counts=counts)
    # A worker of the mesh has metrics of its own.
    await ask(actor, worker="t", counts=counts)
    told = {"steps": 9, "draft_tokens": 8, "accepted_tokens": 7, "answers": 6, "missed_answers": 5, "gave_up": 4,
            "seconds": 0.5, "waited_seconds": 0.25}  # fmt: skip

    def shown() -> dict[str, float | None]:
        labels = {"engine": "vllm-1"}
        return {name: registry.get_sample_value(f"specmesh:guest_{name}_total", labels) for name in told}

    assert shown() == told and 'engine="t"' not in generate_latest(registry).decode()
    await clock.advance(GUEST_SILENCE + 1)
    assert shown() == dict.fromkeys(told)


async def test_a_request_may_name_its_method() -> None:
    actor, _, _ = make(method="naive")
    answer = await ask(actor, whole(1, TEXT), whole(2, TEXT, method="ngram"), whole(3, TEXT, method="magic"))
    assert [each.sequence_id for each in answer.drafts] == [2]
    assert answer.unknown == []


@pytest.mark.parametrize(
    "fails",
    [None, lambda count: [], lambda count: [Draft([2**40])] * count, lambda count: [Draft([1], probs=[0.5])] * count],
    ids=["it raises", "too few drafts", "no token id", "no probabilities"],
)
async def test_a_drafter_that_fails_costs_its_drafts_and_nothing_else(fails: Any) -> None:
    failing = Failing(fails)
    actor, _, registry = make({"ngram": failing})
    assert len((await ask(actor, whole(1, [5]))).drafts) == 1
    answer = await ask(actor, whole(2, [13]))
    assert (answer.drafts, answer.unknown) == ([], [])
    assert failing.forgotten
    assert len((await ask(actor, ProposeItem(sequence_id=1, committed=2, tokens=[6], budget=2))).drafts) == 1
    assert 'specmesh:proposer_failures_total{reason="drafter_error"} 1.0' in generate_latest(registry).decode()


async def test_a_message_that_asks_about_a_sequence_twice_is_refused() -> None:
    """Both would read the same new tokens, the second beyond the text's end."""
    actor, _, _ = make()
    await ask(actor, whole(1, TEXT))
    item = ProposeItem(sequence_id=1, committed=28, tokens=[6] * 20, budget=4)
    with pytest.raises(Refuse) as caught:
        await ask(actor, item, item)
    assert caught.value.reason == "invalid"


async def test_the_drafts_of_several_methods_are_in_one_answer() -> None:
    actor, _, _ = make()
    answer = await ask(actor, whole(1, TEXT), whole(2, TEXT, method="suffix"), whole(3, TEXT, method="hybrid"))
    assert [(each.sequence_id, each.draft.source) for each in answer.drafts] == [
        (1, "ngram"), (2, "suffix"), (3, "suffix"),
    ]  # fmt: skip


async def test_budgets_are_kept_whatever_is_asked() -> None:
    actor, _, _ = make()
    answer = await ask(actor, whole(1, TEXT, budget=10**9), whole(2, TEXT, budget=-5))
    assert [(sequence_id, len(draft.tokens)) for sequence_id, _, draft in answer.drafts] == [(1, 64)]


async def test_impossible_tokens_are_answered_not_crashed_on() -> None:
    actor, _, _ = make()
    answer = await ask(actor, whole(1, [2**62]), whole(2, [-5, -5, -5]), whole(3, TEXT))
    assert answer.unknown == [1, 2]
    assert 3 in [each.sequence_id for each in answer.drafts]


async def test_text_is_bounded_over_all_sequences_and_those_without_text_get_no_drafts() -> None:
    actor, _, registry = make(proposer_tokens=1000)
    for n in range(100):
        await ask(actor, whole(n, list(range(100))))
    text = generate_latest(registry).decode()
    assert "specmesh:proposer_text_tokens 1000.0" in text
    assert "specmesh:proposer_sequences 100.0" in text
    old = await ask(actor, ProposeItem(sequence_id=0, committed=102, tokens=[0, 1], budget=4))
    assert (old.drafts, old.unknown) == ([], [])
    fresh = await ask(actor, ProposeItem(sequence_id=99, committed=102, tokens=[0, 1], budget=2))
    assert fresh.tokens == [[2, 3]]


async def test_what_was_done_is_counted() -> None:
    actor, _, registry = make()
    await ask(actor, whole(1, TEXT), whole(2, TEXT), ProposeItem(sequence_id=3, committed=5, tokens=[1]))
    text = generate_latest(registry).decode()
    assert 'specmesh:proposer_drafts_total{proposer="ngram"} 2.0' in text
    assert 'specmesh:proposer_draft_tokens_total{proposer="ngram"} 8.0' in text
    assert "specmesh:proposer_unknown_sequences_total 1.0" in text
    assert "specmesh:proposer_batch_seconds_count 1.0" in text
    assert re.search(r"specmesh:proposer_bytes [1-9]", text)


async def test_a_draining_proposer_is_not_ready() -> None:
    actor, _, _ = make()
    assert actor.ready() == []
    await actor.drain(1.0)
    assert actor.ready() == ["draining"]


# Beyond one request ------------------------------------------------------------------------------------------

SAID = [100 + at for at in range(40)]


@pytest.fixture
async def learning() -> AsyncIterator[tuple[ProposerActor, FakeClock]]:
    actor, _, _ = make(method="auto")
    await actor.on_start()
    clock: Any = actor._clock
    yield actor, clock
    stopping = asyncio.ensure_future(actor.on_stop())
    while not stopping.done():
        await clock.advance(0.1)


def last_words(sequence_id: int, said: list[int], namespace: str = "mine") -> Ended:
    tokens = [7, 8, *said]
    return Ended(
        sequence_id=sequence_id, committed=len(tokens), tokens=tokens, first=True, prompt_tokens=2, namespace=namespace
    )


async def test_a_text_is_learned_to_its_end_and_only_within_its_namespace(
    learning: tuple[ProposerActor, FakeClock],
) -> None:
    actor, clock = learning
    await ask(actor, replace(whole(1, [7, 8, *SAID[:30]]), prompt_tokens=2, namespace="mine"), vocabulary="v")
    rest = Ended(sequence_id=1, committed=42, tokens=SAID[30:])
    answer = await ask(actor, vocabulary="v", ended=[rest, last_words(2, SAID[:30], "theirs")])
    assert answer.unknown == [] and actor.load() == 0
    # It waits until the library is open.
    await actor.list_corpora(ListCorpora(namespace="mine", vocabulary="v"), CALL)
    await clock.advance(2.0)
    mine, theirs, foreign = (replace(whole(n, SAID[20:36], budget=4), namespace=name) for n, name in
                             ((3, "mine"), (4, "theirs"), (5, "")))  # fmt: skip
    drafts = {each.sequence_id: each.draft for each in (await ask(actor, mine, theirs, foreign, vocabulary="v")).drafts}
    assert set(drafts) == {3}
    assert drafts[3].tokens == SAID[36:40] and drafts[3].source == "shared" and len(drafts[3].confidence) == 4
    assert (await ask(actor, replace(mine, sequence_id=6), vocabulary="other")).drafts == []


async def test_a_draft_behind_what_is_being_verified_says_so(learning: tuple[ProposerActor, FakeClock]) -> None:
    actor, _ = learning
    [(_, length, draft)] = (await ask(actor, replace(whole(1, TEXT), ahead=[3, 4]))).drafts
    assert (length, draft.tokens[0]) == (len(TEXT) + 2, 5)


async def test_corpora_come_are_listed_and_go(learning: tuple[ProposerActor, FakeClock]) -> None:
    actor, clock = learning
    assert await actor.add_corpus(AddCorpus(namespace="mine", name="c", vocabulary="v", part=0, texts=[SAID]), CALL)
    listed = ListCorpora(namespace="mine", vocabulary="v")
    until = time.monotonic() + 30
    while (await actor.list_corpora(listed, CALL)).corpora[0].state != "ready":
        # The library's own threads build it.
        assert time.monotonic() < until
        await asyncio.to_thread(threading.Event().wait, 0.01)
    assert (await actor.list_corpora(listed, CALL)).corpora == [
        CorpusCard(name="c", state="ready", texts=1, tokens=len(SAID), progress=1.0)
    ]
    assert (await actor.list_corpora(replace(listed, namespace="theirs"), CALL)).corpora == []
    item = replace(whole(1, SAID[:10]), namespace="mine")
    await ask(actor, item, vocabulary="v")
    while not (drafts := (await ask(actor, replace(item, sequence_id=2), vocabulary="v")).drafts):
        assert time.monotonic() < until
        await clock.advance(1.0)
        await asyncio.to_thread(threading.Event().wait, 0.01)
    assert (drafts[0].draft.source, drafts[0].draft.tokens) == ("corpus:c", SAID[10:14])
    gone = await actor.remove_corpus(RemoveCorpus(namespace="mine", name="c", vocabulary="v"), CALL)
    assert gone.corpora == []


async def test_a_corpus_that_cannot_be_taken_is_refused_in_words(learning: tuple[ProposerActor, FakeClock]) -> None:
    actor, _ = learning
    with pytest.raises(Refuse) as caught:
        await actor.add_corpus(AddCorpus(namespace="mine", name="../c", vocabulary="v", part=0, texts=[SAID]), CALL)
    assert caught.value.reason == "invalid" and "name" in str(caught.value)
