"""A batch in, drafts out: what a target sees of the proposer process."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from types import SimpleNamespace
from typing import Any, ClassVar, NamedTuple

import pytest
from msgspec.structs import replace
from prometheus_client import CollectorRegistry, generate_latest

from mesh.actor import Call
from mesh.clock import FakeClock
from mesh.errors import Refuse
from services.api.drafts import DraftItem, unpacked
from services.api.messages import (
    AddCorpus,
    CorpusCard,
    Ended,
    ListCorpora,
    Propose,
    Proposed,
    ProposeItem,
    RemoveCorpus,
)
from services.api.settings import Settings
from services.proposer.actor import ProposerActor
from services.proposer.draft import Draft
from services.proposer.proposer import Ask, Needs
from services.proposer.suffix_store import compiling
from services.worker.speculation.practice import Practice

CALL: Any = None


@pytest.fixture(scope="module", autouse=True)
def compiled() -> None:
    compiling.start().join()

TEXT = [1, 2, 3, 4, 5, 9, 1, 2]


class Directory:
    """Who is there, as the directory's client tells it."""

    def __init__(self) -> None:
        self.changed: Callable[[], None] = lambda: None
        self.targets = ["t"]

    def on_change(self, callback: Callable[[], None]) -> None:
        self.changed = callback

    def members(self, role: str) -> list[Any]:
        assert role == "worker"
        return [SimpleNamespace(instance=name, state="ready") for name in self.targets]


class Failing:
    """A proposer that trips over token 13."""

    needs: ClassVar[Needs] = Needs.TOKENS
    gives_probs: ClassVar[bool] = False

    def __init__(self) -> None:
        self.forgotten: list[int] = []

    def propose(self, asks: Sequence[Ask]) -> list[Draft]:
        if any(13 in ask.view.tokens for ask in asks):
            raise RuntimeError("13")
        return [Draft([7] * ask.budget, "failing") for ask in asks]

    def observe(self, outcomes: Sequence[Any]) -> None:
        pass

    def forget(self, sequence_id: int) -> None:
        self.forgotten.append(sequence_id)

    def held_bytes(self) -> int:
        return 0


def make(proposers: Any = None, **settings: Any) -> tuple[ProposerActor, Directory, CollectorRegistry]:
    directory, registry = Directory(), CollectorRegistry()
    chosen = Settings.for_tests(**{"method": "ngram", **settings})
    context: Any = SimpleNamespace(settings=chosen, registry=registry, clock=FakeClock(), directory=directory)
    return ProposerActor(context, proposers), directory, registry


def whole(sequence_id: int, tokens: list[int], budget: int = 4, method: str = "") -> ProposeItem:
    return ProposeItem(
        sequence_id=sequence_id, committed=len(tokens), tokens=tokens, first=True, budget=budget, method=method
    )


class Answer(NamedTuple):
    step: int
    drafts: list[DraftItem]
    unknown: list[int]


def answered(actor: ProposerActor, message: Propose, call: Call | None = None) -> Proposed:
    """Also what is done when the answer has left."""
    call = call or Call("t", 1, None, "", FakeClock())
    call.afterwards = None
    answer = actor.propose(message, call)
    assert call.afterwards is not None
    call.afterwards()
    return answer


async def ask(actor: ProposerActor, *items: ProposeItem, epoch: int = 1, **more: Any) -> Answer:
    message = Propose(step=7, epoch=epoch, target=more.pop("worker", "t"), items=list(items), **more)
    answer = answered(actor, message)
    return Answer(answer.step, unpacked(answer.drafts), answer.unknown)


async def test_a_draft_says_where_it_belongs_and_where_it_comes_from() -> None:
    actor, _, _ = make()
    answer = await ask(actor, whole(3, TEXT))
    assert answer.step == 7 and answer.unknown == []
    [draft] = answer.drafts
    assert (draft.sequence_id, draft.committed, draft.tokens) == (3, 8, [3, 4, 5, 9])
    assert (draft.source, draft.match_length, draft.parents) == ("ngram", 2, [])


async def test_what_is_counted_is_counted_when_the_answer_has_left_and_once() -> None:
    actor, _, registry = make()
    call = Call("t", 1, None, "", FakeClock())
    begun = _counts(registry, but=())

    def question(step: int) -> Propose:
        items = [whole(3, TEXT), ProposeItem(sequence_id=9, committed=4, tokens=[])]
        return Propose(step=step, epoch=1, target="t", items=items)

    actor.propose(question(1), call)
    assert call.afterwards is not None
    first = call.afterwards
    assert actor.figures().totals == {"batches": 0, "drafts": 0, "drafted": 0}
    # Of two that are read together, the first one is counted before the second is dealt with.
    actor.propose(question(2), call)
    assert actor.figures().totals == {"batches": 1, "drafts": 1, "drafted": 4}
    first()
    call.afterwards()
    assert actor.figures().totals == {"batches": 2, "drafts": 2, "drafted": 8}
    counted = _counts(registry, but=())
    more = {name.split(" ")[0]: value - begun[name] for name, value in counted.items() if value != begun[name]}
    assert more["specmesh:proposer_batch_seconds_count"] == more["specmesh:proposer_unknown_sequences_total"] == 2
    assert more["specmesh:proposer_draft_tokens_total"] == 8


async def test_the_next_step_sends_only_what_is_new() -> None:
    actor, _, _ = make()
    await ask(actor, whole(3, TEXT))
    answer = await ask(actor, ProposeItem(sequence_id=3, committed=10, tokens=[3, 4], budget=2))
    assert [draft.tokens for draft in answer.drafts] == [[5, 9]]
    assert answer.drafts[0].committed == 10


async def test_sequences_without_a_guess_are_left_out() -> None:
    actor, _, _ = make()
    answer = await ask(actor, whole(1, [1, 2, 3]), whole(2, TEXT), whole(3, TEXT, budget=0))
    assert [draft.sequence_id for draft in answer.drafts] == [2]


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
    await ask(actor, whole(3, TEXT), target="u")
    assert actor.load() == 2
    directory.targets = ["u"]
    directory.changed()
    assert actor.load() == 1
    assert (await ask(actor, ProposeItem(sequence_id=3, committed=8, tokens=[]))).unknown == [3]


async def test_a_request_may_name_its_method() -> None:
    actor, _, _ = make(method="naive")
    answer = await ask(actor, whole(1, TEXT), whole(2, TEXT, method="ngram"), whole(3, TEXT, method="magic"))
    assert [draft.sequence_id for draft in answer.drafts] == [2]
    assert answer.unknown == []


async def test_a_proposer_that_fails_costs_its_drafts_and_nothing_else() -> None:
    failing = Failing()
    actor, _, registry = make({"ngram": failing})
    assert len((await ask(actor, whole(1, [5]))).drafts) == 1
    answer = await ask(actor, whole(2, [13]))
    assert (answer.drafts, answer.unknown) == ([], [])
    assert failing.forgotten
    assert len((await ask(actor, ProposeItem(sequence_id=1, committed=2, tokens=[6], budget=2))).drafts) == 1
    assert 'specmesh:proposer_failures_total{reason="proposer_error"} 1.0' in generate_latest(registry).decode()


async def test_budgets_are_kept_whatever_is_asked() -> None:
    actor, _, _ = make()
    answer = await ask(actor, whole(1, TEXT, budget=10**9), whole(2, TEXT, budget=-5))
    assert [(draft.sequence_id, len(draft.tokens)) for draft in answer.drafts] == [(1, 64)]


async def test_impossible_tokens_are_answered_not_crashed_on() -> None:
    actor, _, _ = make()
    answer = await ask(actor, whole(1, [2**62]), whole(2, [-5, -5, -5]), whole(3, TEXT))
    assert answer.unknown == [1]
    assert 3 in [draft.sequence_id for draft in answer.drafts]


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
    assert [draft.tokens for draft in fresh.drafts] == [[2, 3]]


async def test_what_was_done_is_counted() -> None:
    actor, _, registry = make()
    await ask(actor, whole(1, TEXT), whole(2, TEXT), ProposeItem(sequence_id=3, committed=5, tokens=[1]))
    text = generate_latest(registry).decode()
    assert 'specmesh:proposer_drafts_total{proposer="ngram"} 2.0' in text
    assert 'specmesh:proposer_draft_tokens_total{proposer="ngram"} 8.0' in text
    assert "specmesh:proposer_unknown_sequences_total 1.0" in text
    assert "specmesh:proposer_batch_seconds_count 1.0" in text
    assert 'specmesh:proposer_bytes{proposer="naive"} 0.0' in text


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
    drafts = {draft.sequence_id: draft for draft in (await ask(actor, mine, theirs, foreign, vocabulary="v")).drafts}
    assert set(drafts) == {3}
    assert drafts[3].tokens == SAID[36:40] and drafts[3].source == "shared" and len(drafts[3].chances) == 4
    assert (await ask(actor, replace(mine, sequence_id=6), vocabulary="other")).drafts == []


async def test_a_draft_behind_what_is_being_verified_says_so(learning: tuple[ProposerActor, FakeClock]) -> None:
    actor, _ = learning
    [draft] = (await ask(actor, replace(whole(1, TEXT), ahead=[3, 4]))).drafts
    assert (draft.committed, draft.tokens[0]) == (len(TEXT) + 2, 5)


async def test_corpora_come_are_listed_and_go(learning: tuple[ProposerActor, FakeClock]) -> None:
    actor, clock = learning
    assert (await actor.add_corpus(AddCorpus(namespace="mine", name="c", vocabulary="v", part=0, texts=[SAID]), CALL))
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
    assert (drafts[0].source, drafts[0].tokens) == ("corpus:c", SAID[10:14])
    gone = await actor.remove_corpus(RemoveCorpus(namespace="mine", name="c", vocabulary="v"), CALL)
    assert gone.corpora == []


async def test_a_corpus_that_cannot_be_taken_is_refused_in_words(learning: tuple[ProposerActor, FakeClock]) -> None:
    actor, _ = learning
    with pytest.raises(Refuse) as caught:
        await actor.add_corpus(AddCorpus(namespace="mine", name="../c", vocabulary="v", part=0, texts=[SAID]), CALL)
    assert caught.value.reason == "invalid" and "name" in str(caught.value)


async def test_a_successor_is_a_candidate_until_its_drafts_are_used() -> None:
    actor, _, _ = make(successor=True)
    assert actor.candidate()
    assert (await ask(actor, whole(1, TEXT), shadow=True)).drafts
    assert actor.candidate()
    await ask(actor, whole(2, TEXT))
    assert not actor.candidate()


async def test_a_question_that_is_waited_for_is_answered_before_the_text_is_learned() -> None:
    actor, _, _ = make(method="auto")
    call = Call("t", 1, None, "", FakeClock())
    text, known = [*range(20), *range(12)], []
    for step, (length, ahead) in enumerate([(20, []), (24, []), (26, [26 % 20]), (28, [])]):
        item = ProposeItem(
            sequence_id=1, committed=length, tokens=text[len(known) : length], first=not known, budget=4, ahead=ahead
        )
        known = text[:length]
        actor.propose(Propose(step=step, epoch=1, target="t", items=[item], vocabulary="v"), call)
        [view] = actor._said.grown if actor._said is not None else []
        # The first time it is new; nobody waits for what is asked ahead.
        assert actor._knowledge.is_followed(view) == (step in (0, 2))
        assert call.afterwards is not None
        call.afterwards()
        assert actor._knowledge.is_followed(view)


@pytest.mark.parametrize("method", ["auto", "suffix", "ngram"])
async def test_a_rehearsed_question_changes_no_draft_and_counts_nowhere(method: str) -> None:
    """Two proposers are asked the same, one of them each question three times more. Each text has a namespace of its
    own: a later question knows what others of its namespace said in between."""
    chance = random.Random(method)
    (asked, _, books), (rehearsed, _, other_books) = make(method=method), make(method=method)
    texts = {number: chance.choices(range(9), k=40) for number in (1, 2)}
    known: dict[int, int] = {}
    practice, call, drafts = Practice(), Call("t", 1, None, "", FakeClock()), 0
    for step in range(60):
        items = []
        for number, text in texts.items():
            begin = known.get(number, 0)
            guess = chance.choices(range(9), k=chance.randrange(3))
            items.append(
                ProposeItem(
                    sequence_id=number, committed=len(text), tokens=text[begin:], first=not begin, budget=12,
                    prompt_tokens=40, ahead=guess, namespace=f"of {number}",
                )
            )  # fmt: skip
            known[number] = len(text)
        question = Propose(step=step, epoch=1, target="t", items=items, vocabulary="v")
        answer = answered(asked, question, call)
        assert unpacked(answered(rehearsed, question, call).drafts) == unpacked(answer.drafts)
        drafts += len(answer.drafts.lengths)
        assert call.awaited == 0.0
        for _ in range(3):
            again = answered(rehearsed, practice.question(question, items), call)
            assert again.unknown == [] and len(again.drafts.lengths) >= len(answer.drafts.lengths)
        assert call.awaited > 0.0, "a real question will follow"
        call.awaited = 0.0
        for text in texts.values():
            # Most of it was said before.
            at = chance.randrange(30)
            text += text[at : at + chance.randint(1, 5)]
    assert drafts > 60
    # One text more is followed, which is the target's to end. The rest of what is counted is the same.
    own = ("specmesh:proposer_sequences", "specmesh:proposer_text_tokens", "specmesh:proposer_bytes")
    assert _counts(books, but=own) == _counts(other_books, but=own) != {}
    assert asked.figures().totals == rehearsed.figures().totals
    leaving = Propose(step=61, epoch=1, target="t", items=[], forget=practice.leave(), vocabulary="v")
    answered(rehearsed, leaving, call)
    assert rehearsed.load() == asked.load() == 2


def _counts(books: CollectorRegistry, but: tuple[str, ...]) -> dict[str, float]:
    """Samples by name and labels, without those that say when something was or how long it took."""
    samples = [sample for family in books.collect() if family.name not in but for sample in family.samples]
    return {
        f"{sample.name} {sample.labels}": sample.value
        for sample in samples
        if not sample.name.endswith(("_created", "_bucket", "_sum"))
    }
