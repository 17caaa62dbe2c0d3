"""Drafters in the worker: what they are told, what becomes of their drafts, and what becomes of them when they fail."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import Any, ClassVar

import pytest
import torch
from driving import new_sequence, request
from fixed_model import FixedModel

from kernels.verify.questions import Answers, Questions
from services.api.drafter import NO_DRAFT, Committed, Draft, DraftRequest, Needs
from services.api.methods import METHODS, Method
from services.api.strategies import Verification
from services.worker.engine import Engine
from services.worker.running.torch_runner import TorchRunner
from services.worker.running.work import NewSequence, SequenceWork, Verdict, Work
from services.worker.scheduling.events import Answer, Arrived, Emit, Finish
from services.worker.scheduling.limits import limits_of
from services.worker.scheduling.scheduler import Scheduler
from services.worker.speculation.controller import Controller
from services.worker.speculation.guard import GuardedController
from services.worker.speculation.heads.drafters import FAULT_REST, FEW_TEXTS, HeadDrafters
from services.worker.speculation.heads.unread import MOST_ROWS, MOST_STEPS, YOUNG
from services.worker.speculation.remote.proposers import Proposers


class Toy:
    """Drafts 7, 8, 7, ... with the probabilities that it drew them from, and keeps what it is told."""

    name: ClassVar[str] = "toy"
    needs: ClassVar[Needs] = Needs.FEATURES
    gives_probs: ClassVar[bool] = True

    def __init__(self, fails: str = "") -> None:
        self.committed: list[Committed] = []
        self.requests: list[list[DraftRequest]] = []
        self.forgotten: list[int] = []
        self.fails = fails

    def draft(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        assert self.fails != "draft"
        self.requests.append(list(requests))
        found = [self._draft(each) for each in requests]
        return found[1:] if self.fails == "too few" else found

    def _draft(self, request: DraftRequest) -> Draft:
        begin = 0 if request.text.tokens[-1] == 8 else 1
        tokens = [(7, 8)[(begin + place) % 2] for place in range(request.budget)]
        probs = torch.full((len(tokens), 100), 0.001)
        probs[range(len(tokens)), tokens] = 0.901
        return Draft(tokens, "toy", probs=probs)

    def commit(self, results: Sequence[Committed]) -> None:
        assert self.fails != "commit"
        self.committed += results

    def forget(self, text_ids: Sequence[int]) -> None:
        assert self.fails != "forget"
        self.forgotten += text_ids


def new(
    sequence_id: int = 1, prompt: Sequence[int] = (1, 2, 3), drafter: str = "toy", rule: str = "greedy", **sampling: Any
) -> NewSequence:
    made = new_sequence(request(list(prompt), **sampling), Verification(strategy=rule), sequence_id)
    made.drafter = drafter
    return made


def joined(*news: NewSequence, fails: str = "") -> tuple[HeadDrafters, Toy]:
    toy = Toy(fails)
    drafters = HeadDrafters({"toy": toy})
    for each in news or (new(),):
        drafters.join(each)
    return drafters, toy


def features_of(items: list[SequenceWork]) -> torch.Tensor:
    """Of each row its place in the step."""
    return torch.arange(sum(item.rows for item in items), dtype=torch.float32)[:, None]


def step(
    drafters: HeadDrafters, *pairs: tuple[SequenceWork, Verdict | None]
) -> list[Draft]:
    """Told at once."""
    drafts = step_later(drafters, *pairs)
    drafters._catch_up(drafters._known, of_now=True)
    return drafts


def step_later(drafters: HeadDrafters, *pairs: tuple[SequenceWork, Verdict | None]) -> list[Draft]:
    items = [item for item, _ in pairs]
    return drafters.step(items, [verdict for _, verdict in pairs], features_of(items))


def item(tokens: list[int], start: int = 0, draft: Draft = NO_DRAFT, **more: Any) -> SequenceWork:
    fields = {"sequence_id": 1, "pages": [], "verify": True, **more}
    return SequenceWork(tokens=tokens, start=start, draft=draft, **fields)


def told(committed: Committed) -> tuple[int, list[int], int, int, list[int]]:
    rows = [] if committed.features is None else committed.features[:, 0].int().tolist()
    return committed.start, committed.tokens, committed.following, committed.accepted, rows


#    ─┬ 5 ┬ 6 ─ 7
#     │   └ 8
#     └ 9
TREE = Draft([5, 9, 6, 8, 7], parents=[-1, -1, 0, 0, 2])


@pytest.mark.parametrize(
    ("work", "verdict", "expected"),
    [
        (item([1, 2], verify=False), None, (0, [1, 2], 3, 0, [0, 1])),
        (item([3], 2), Verdict([4], 0), (2, [3], 4, 0, [0])),
        (item([1, 2, 3]), Verdict([4], 0), (0, [1, 2, 3], 4, 0, [0, 1, 2])),
        (item([4], 3, Draft([5, 6, 7])), Verdict([5, 6, 9], 2), (3, [4, 5, 6], 9, 2, [0, 1, 2])),
        (item([4], 3, Draft([5, 6, 7])), Verdict([9], 0), (3, [4], 9, 0, [0])),
        (item([4], 3, Draft([5, 6])), Verdict([5, 6, 1], 2), (3, [4, 5, 6], 1, 2, [0, 1, 2])),
        (item([4], 3, TREE), Verdict([5, 8, 1], 2), (3, [4, 5, 8], 1, 2, [0, 1, 4])),
        (item([4], 3, TREE), Verdict([9, 1], 1), (3, [4, 9], 1, 1, [0, 2])),
        (item([4], 3, TREE), Verdict([1], 0), (3, [4], 1, 0, [0])),
    ],
    ids=["chunk", "last chunk", "prompt", "draft", "rejected", "accepted", "tree", "its branch", "none of it"],
)
def test_commit_gets_the_committed_tokens_with_their_features(
    work: SequenceWork, verdict: Verdict | None, expected: tuple[Any, ...]
) -> None:
    drafters, toy = joined()
    step(drafters, (work, verdict))
    assert [told(each) for each in toy.committed] == [expected]
    # A batch is one call, and each has its own rows of it.
    drafters, toy = joined(new(1), new(2))
    beside = item([8, 9], 20, Draft([1, 2]), sequence_id=2)
    step(drafters, (item([1, 1, 1], sequence_id=3), None), (work, verdict), (beside, Verdict([1, 3], 1)))
    first, second = map(told, toy.committed)
    assert first == (*expected[:4], [3 + row for row in expected[4]])
    begin = 3 + work.rows
    assert second == (20, [8, 9, 1], 3, 1, [begin, begin + 1, begin + 2])


def test_items_with_a_budget_get_a_draft_behind_their_text_in_one_call() -> None:
    sampled = new(2, temperature=0.5, seed=9, rule="rejection")
    drafters, toy = joined(new(1, [1, 8]), sampled, new(3), new(4, drafter=""))
    drafts = step(
        drafters,
        (item([1, 8], next_budget=2), Verdict([7], 0)),
        (item([1, 2, 3], sequence_id=4, next_budget=3), Verdict([4], 0)),
        (item([1, 2, 3], sequence_id=2, next_budget=3), Verdict([7, 8], 1)),
        (item([1, 2, 3], sequence_id=3), Verdict([4], 0)),
    )
    assert [draft.tokens for draft in drafts] == [[8, 7], [], [7, 8, 7], []]
    [requests] = toy.requests
    assert [(each.text.text_id, list(each.text.tokens), each.budget) for each in requests] == [
        (1, [1, 8, 7], 2), (2, [1, 2, 3, 7, 8], 3),
    ]  # fmt: skip
    assert [(each.temperature, each.seed, each.text.prompt_tokens) for each in requests] == [(0.0, 0, 2), (0.5, 9, 3)]


def test_steps_behind_which_no_draft_is_asked_for_are_told_in_one_piece_for_each_text() -> None:
    drafters, toy = joined(new(1), new(2, [4, 5]), new(3, drafter=""))
    chunk, other = item([1, 2], verify=False), item([9], sequence_id=3)
    step_later(drafters, (chunk, None), (other, Verdict([9], 0)))
    step_later(drafters, (item([3], 2), Verdict([6], 0)), (item([4, 5], sequence_id=2), Verdict([7], 0)))
    # Drafts of text are verified meanwhile, a chain and a tree.
    chain, tree = item([6], 3, Draft([7, 8, 9])), item([7], 2, TREE, sequence_id=2)
    assert step_later(drafters, (chain, Verdict([7, 8, 1], 2)), (tree, Verdict([5, 8, 1], 2))) == []
    assert toy.committed == [] and toy.requests == []
    # The text that a draft is asked for is told, and the others wait, also for this step.
    asks, beside = item([1], 5, sequence_id=2, next_budget=3), item([1], 6)
    drafts = step_later(drafters, (beside, Verdict([2], 0)), (asks, Verdict([2], 0)))
    assert [len(each.tokens) for each in drafts] == [0, 3]
    asks, beside = item([2], 6, sequence_id=2, next_budget=3), item([2], 7)
    step_later(drafters, (asks, Verdict([3], 0)), (beside, Verdict([3], 0)))
    assert [(each.text_id, *told(each)[:4], each.asked) for each in toy.committed] == [
        (2, 0, [4, 5, 7, 5, 8], 1, 2, False), (2, 5, [1], 2, 0, True), (2, 6, [2], 3, 0, True),
    ]  # fmt: skip
    step_later(drafters, (item([3], 8, next_budget=3), Verdict([4], 0)))
    assert [(each.text_id, *told(each)[:4], each.asked) for each in toy.committed[3:]] == [
        (1, 0, [1, 2, 3, 6, 7, 8, 1, 2], 3, 0, False), (1, 8, [3], 4, 0, True),
    ]  # fmt: skip
    # What a text knows already it isn't told again with what others are told.
    step(drafters, (item([3], 7, sequence_id=2), Verdict([4], 0)))
    assert [(each.text_id, *told(each)[:4], each.asked) for each in toy.committed[5:]] == [(2, 7, [3], 4, 0, False)]
    # Each token's features are those of its row in its own step.
    assert [told(each)[4] for each in toy.committed] == [
        [1, 2, 4, 5, 8], [1], [0], [0, 1, 0, 0, 1, 2, 0, 1], [0], [0],
    ]  # fmt: skip
    texts = {each.text.text_id: list(each.text.tokens) for requests in toy.requests for each in requests}
    assert texts == {1: [1, 2, 3, 6, 7, 8, 1, 2, 3, 4], 2: [4, 5, 7, 5, 8, 1, 2, 3, 4]}


def test_a_text_whose_pages_were_taken_meanwhile_is_told_in_pieces_without_them() -> None:
    drafters, toy = joined(new(1), new(2))
    both = [(item([1, 2, 3], sequence_id=each, pages=[1]), Verdict([4], 0)) for each in (1, 2)]
    step_later(drafters, *both)
    step_later(drafters, (item([4], 3, sequence_id=2, pages=[3]), Verdict([5], 0)))
    step_later(drafters, (item([1, 2, 3, 4], pages=[2]), Verdict([5], 0)))
    step(drafters, (item([5], 4, pages=[2]), Verdict([6], 0)))
    assert [(each.text_id, each.start, each.tokens, each.pages) for each in toy.committed] == [
        (1, 0, [1, 2, 3], ()), (1, 0, [1, 2, 3, 4, 5], [2]), (2, 0, [1, 2, 3, 4], ()),
    ]  # fmt: skip


def test_steps_do_not_wait_longer_than_their_features_may_be_kept_and_not_for_a_lent_text() -> None:
    drafters, toy = joined(new(1))
    for place in range(MOST_STEPS):
        assert toy.committed == []
        step_later(drafters, (item([7], place), Verdict([7], 0)))
    assert [len(each.tokens) for each in toy.committed] == [MOST_STEPS]
    step_later(drafters, (item([7] * MOST_ROWS, MOST_STEPS), Verdict([7], 0)))
    assert [len(each.tokens) for each in toy.committed] == [MOST_STEPS, MOST_ROWS]
    lent = new(2)
    lent.lent = True
    drafters.join(lent)
    step_later(drafters, (item([1, 2, 3], sequence_id=2), Verdict([4], 0)))
    assert toy.committed[-1].lent
    drafters.forget([2])
    step_later(drafters, (item([7], MOST_STEPS + MOST_ROWS), Verdict([7], 0)))
    assert toy.committed[-1].text_id == 2


def test_of_many_texts_that_nobody_asks_for_the_oldest_steps_are_dropped_and_the_texts_in_them_are_lost() -> None:
    paused, count = 98, 64
    # By text, the step in which it joins.
    young = {99: MOST_ROWS // count - YOUNG, 97: MOST_ROWS // count - 8}
    drafters, toy = joined(*(new(each) for each in range(count)), new(paused))
    step_later(drafters, (item([1, 2, 3], sequence_id=paused, next_budget=1), Verdict([4], 0)))
    committed, place = len(toy.committed), 0
    while not drafters.lost:
        assert place * count <= MOST_ROWS
        for each in (each for each, joins in young.items() if joins == place):
            drafters.join(new(each, [7]))
        texts = [*range(count), *(each for each, joins in young.items() if joins <= place)]
        step_later(drafters, *((item([7], place, sequence_id=each), Verdict([7], 0)) for each in texts))
        place += 1
    assert sorted(drafters.lost) == sorted(toy.forgotten) == list(range(count))
    assert len(toy.committed) == committed, "none of it was read"
    # Those that miss nothing are drafted for as ever.
    asks = [item([7], place, sequence_id=each, next_budget=2) for each in young]
    asks.append(item([4], 3, sequence_id=paused, next_budget=2))
    drafts = step_later(drafters, *((each, Verdict([7], 0)) for each in asks))
    assert drafters.lost == [] and [each.tokens for each in drafts] == [[8, 7]] * 3
    for text, joined_at in young.items():
        own = [token for each in toy.committed if each.text_id == text for token in each.tokens]
        assert own == [7] * (place + 1 - joined_at)
    assert drafters.reads
    drafters.forget([paused, *young])
    assert not drafters.reads


def test_few_texts_are_read_and_not_lost() -> None:
    drafters, toy = joined(*(new(each) for each in range(FEW_TEXTS)))
    for place in range(MOST_STEPS):
        step_later(drafters, *((item([7], place, sequence_id=each), Verdict([7], 0)) for each in range(FEW_TEXTS)))
        assert drafters.lost == []
    assert len(toy.committed) == FEW_TEXTS and toy.forgotten == []


@pytest.mark.parametrize(("drafter", "copied"), [("toy", True), ("", False)])
def test_features_are_copied_only_if_a_drafter_reads_the_step(drafter: str, copied: bool) -> None:
    runner = TorchRunner(FixedModel(taps=True), HeadDrafters({"toy": Toy()}))
    runner.launch(Work([item([1, 7])], [new(1, [1, 7], drafter)]))
    runner.finish()
    assert runner._finished is not None and (runner._finished[1] is not None) == copied


def test_rules_that_read_no_probabilities_get_drafts_of_the_most_probable_tokens() -> None:
    drafters, toy = joined(new(1, temperature=0.5, rule="target_match"), new(2, temperature=0.5, rule="block"))
    pairs = [(item([1, 2, 3], sequence_id=each, next_budget=3), Verdict([7], 0)) for each in (1, 2)]
    step(drafters, *pairs)
    assert [each.temperature for each in toy.requests[0]] == [0.0, 0.5]


def test_nothing_is_sampled_where_tokens_may_be_dropped_for_what_they_are() -> None:
    weighed, fixed = new(1, temperature=0.5, rule="rejection"), new(2, temperature=0.5, rule="rejection")
    weighed.weighed = True
    drafters, toy = joined(weighed, fixed)
    step(drafters, *((item([1, 2, 3], sequence_id=each, next_budget=3), Verdict([7], 0)) for each in (1, 2)))
    assert [each.temperature for each in toy.requests[0]] == [0.0, 0.5]


def test_failed_sequences_are_not_committed_and_ended_ones_are_forgotten() -> None:
    drafters, toy = joined(new(1), new(2))
    failed = Verdict([], 0, failure="not finite")
    assert step(drafters, (item([1, 2, 3], next_budget=4), failed)) == [NO_DRAFT]
    assert toy.committed == [] and toy.requests == []
    drafters.forget([5, 2])
    assert toy.forgotten == [2]
    assert step(drafters, (item([4], 3, sequence_id=2, next_budget=4), Verdict([5], 0))) == [NO_DRAFT]
    drafters.forget([1])
    assert step(drafters, (item([4], 3), Verdict([5], 0))) == [] and toy.committed == []


def test_sequences_of_other_drafters_cost_nothing() -> None:
    drafters, toy = joined(new(1, drafter=""), new(2, drafter="another"))
    assert step(drafters, (item([1, 2, 3], next_budget=4), Verdict([4], 0))) == []
    drafters.forget([1, 2])
    assert toy.committed == [] and toy.forgotten == []


@pytest.mark.parametrize("fails", ["commit", "draft", "too few", "forget"])
def test_a_drafter_that_fails_rests_and_nothing_else_happens(fails: str, caplog: pytest.LogCaptureFixture) -> None:
    now, toy = [1e6], Toy(fails)
    drafters = HeadDrafters({"toy": toy}, lambda: now[0])
    for sequence_id in (1, 2):
        drafters.join(new(sequence_id))
    with caplog.at_level(logging.ERROR, "specmesh.worker"):
        drafts = step(drafters, (item([1, 2, 3], next_budget=4), Verdict([4], 0)))
        drafters.forget([2])
    assert bool(drafts) == (fails == "forget")
    assert len(caplog.records) == 1 and "without its own drafters" in caplog.text
    # What it keeps of the texts there are is dropped. Until it has rested it isn't called again, for no sequence.
    assert fails == "forget" or toy.forgotten == [1, 2]
    toy.fails, calls = "", (len(toy.committed), len(toy.requests), len(toy.forgotten))
    now[0] += FAULT_REST - 1
    drafters.join(new(3))
    assert step(drafters, (item([4], 3, next_budget=4, sequence_id=3), Verdict([5], 0))) == []
    drafters.forget([1, 3])
    assert (len(toy.committed), len(toy.requests), len(toy.forgotten)) == calls
    # Then it drafts for texts that come, and for none that it has missed a part of.
    now[0] += 1
    drafters.join(new(4))
    later = [item([1, 2, 3], next_budget=4, sequence_id=each) for each in (3, 4)]
    drafts = step(drafters, *((each, Verdict([4], 0)) for each in later))
    assert [bool(each.tokens) for each in drafts] == [False, True]


# In the worker -------------------------------------------------------------------------------------------


class Judged(FixedModel):
    """Keeps what its verifier was told that drafts were drawn from."""

    def __init__(self) -> None:
        super().__init__(taps=True)
        self.probs: list[list[float]] = []

    def verify(self, logits: torch.Tensor, questions: Questions) -> Answers:
        if questions.draft_probs is not None:
            self.probs.append(questions.draft_probs.probs.max(dim=1).values.tolist())
        return super().verify(logits, questions)


class World:
    """An engine over the toy, step by step, without its thread."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, toy: Toy) -> None:
        row = Method("toy", "", "", runs="worker")
        monkeypatch.setitem(METHODS, "toy", row)
        self.model = Judged()
        runner = TorchRunner(self.model, HeadDrafters({"toy": toy}))
        self.scheduler = Scheduler(limits_of(runner.facts, method="toy"))
        self.answers: list[Answer] = []
        self.engine = Engine(
            self.scheduler, runner, GuardedController(Controller(self.scheduler.limits, Proposers(_no_proposer))),
            deliver=self._deliver, failed=pytest.fail, now=time.monotonic,
        )  # fmt: skip

    def _deliver(self, answers: list[Answer]) -> None:
        self.answers += answers
        self.engine.answers.taken()

    def run(self, **sampling: Any) -> tuple[list[int], Finish]:
        self.answers.clear()
        self.scheduler.handle(Arrived(request([1, 7], max_tokens=20, **sampling), 1))
        while self.scheduler.has_work:
            self.engine.step()
        *emits, finish = self.answers
        assert isinstance(finish, Finish)
        return [token for each in emits if isinstance(each, Emit) for token in each.tokens.ids], finish


def _no_proposer() -> Any:
    raise AssertionError("a method of the worker's own asks no proposer")


@pytest.mark.parametrize(
    "sampling", [{}, {"temperature": 0.5, "strategy": "rejection", "seed": 3}], ids=["greedy", "sampled"]
)
def test_drafts_of_the_worker_are_verified_in_the_next_step_with_their_probabilities(
    sampling: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    toy = Toy()
    world = World(monkeypatch, toy)
    text, finish = world.run(**sampling)
    assert text == [8, 7] * 10
    stats = finish.finished.speculation
    # One token comes out of the prompt, then drafts of 8, 8 and what is left of 20; the last is the model's own.
    assert (stats.method, stats.steps, stats.drafted, stats.accepted) == ("toy", 3, 16, 16)
    assert [len(rows) for rows in world.model.probs] == [8, 8]
    assert all(top == pytest.approx(0.901) for rows in world.model.probs for top in rows)
    # All that a draft was asked behind was told, each token once, with the features of its own row.
    tokens = [1, 7, *text][: len([token for each in toy.committed for token in each.tokens])]
    assert len(tokens) > 10
    assert [token for each in toy.committed for token in each.tokens] == tokens
    features = torch.cat([each.features for each in toy.committed])
    assert features.tolist() == [[token, place] for place, token in enumerate(tokens)]
    # Its end is told with the next step.
    assert toy.forgotten == [] and world.run(**sampling)[0] == text and toy.forgotten == [1]


@pytest.mark.parametrize("fails", ["commit", "draft", "forget"])
def test_a_request_ends_with_its_text_whatever_its_drafter_does(fails: str, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, Toy(fails))
    for _ in range(2):
        text, finish = world.run()
        assert text == [8, 7] * 10 and finish.finished.reason == "length"
    # Since it has failed, nothing is drafted.
    assert finish.finished.speculation.drafted == 0
