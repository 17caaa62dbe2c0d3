"""The scheduler under whatever may happen, over a runner that notices every mistake with pages.

Laws: each request ends once (1), drafts of any kind change no token, nor does what is shared (2, 3), no page is
lost (5), no sequence goes on from another one's state, and none waits for ever, whatever the priorities.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import pytest
from driving import request
from msgspec.structs import replace
from paged_fake import BRANCH_PAGES, EOS, VOCABULARY, PagedFake, alone, embedding_of, next_token, scores_of

from services.api.draft_tree import possible
from services.api.drafter import Draft
from services.api.messages import Failed, Finished
from services.api.pooling import POOLINGS
from services.api.prompt_logprobs import unpack
from services.worker.running.work import DraftBudget, Result, size_of
from services.worker.scheduling import limits
from services.worker.scheduling.events import Arrived, Cancelled, DeadlinePassed, Emit, Fail, Finish, Output, StepDone
from services.worker.scheduling.limits import Limits
from services.worker.scheduling.scheduler import Scheduler
from services.worker.scheduling.sequence import Sequence

# Of a step, beyond one of each sequence.
SCORED_ROWS = 9


@pytest.fixture(autouse=True)
def few_scored_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "PROMPT_LOGITS_BYTES", SCORED_ROWS * VOCABULARY * 4)


@dataclass
class Told:
    prompt: list[int]
    max_tokens: int
    deadline: float | None
    ids: list[int] = field(default_factory=list)
    ends: list[Any] = field(default_factory=list)
    cancelled: bool = False
    scored: bool = False
    scores: list[float] = field(default_factory=list)
    pooling: str = ""


class World:
    def __init__(self, seed: int) -> None:
        self.chance = chance = random.Random(seed)
        self.eos_every = chance.choice([0, 0, 40])
        page_tokens = chance.choice([2, 4, 8])
        pages = chance.choice([8, 12, 40, 200])
        self.runner = PagedFake(pages, page_tokens, context=64, eos_every=self.eos_every)
        self.scheduler = Scheduler(
            Limits(
                vocab_size=VOCABULARY,
                max_context=64,
                eos_token_ids=(EOS,),
                page_tokens=page_tokens,
                pages=pages,
                branch_pages=chance.choice([0, 1, BRANCH_PAGES]),
                max_sequences=chance.choice([1, 3, 32]),
                max_step_tokens=chance.choice([16, 33, 512]),
                max_waiting=1000,
                method=chance.choice(["naive", "ngram", "auto", "auto"]),
                num_speculative_tokens=chance.choice([-1, 1, 4, 16]),
                prefix_cache=chance.random() < 0.85,
                priority_seconds=chance.choice([0.0, 1.0, 5.0]),
                rows_cost=chance.random() < 0.5,
            )
        )
        # As a model with states: its prefix cache is off.
        self.runner.has_states = not self.scheduler.limits.prefix_cache
        self.context = self.scheduler.max_length
        # Without drafts: steps are launched before the last result is taken, or there.
        self.plain = chance.random() < 0.3
        self.aheads = self.joined = 0
        self.settling = False
        self.beginnings = [[chance.randrange(VOCABULARY) for _ in range(60)] for _ in range(3)]
        self.told: dict[int, Told] = {}
        self.now = 0.0

    def arrive(self) -> None:
        """One request or its several choices; many begin as others do."""
        chance = self.chance
        prompt = [chance.randrange(VOCABULARY) for _ in range(chance.choice([1, 5, 20, 60]))]
        if chance.random() < 0.6:
            same = chance.randint(1, 40)
            prompt = chance.choice(self.beginnings)[:same] + prompt[: chance.choice([0, 1, 20])]
        elif self.told and chance.random() < 0.5:
            # The next turn of a conversation.
            earlier = self.told[chance.randrange(len(self.told))]
            prompt = earlier.prompt + earlier.ids + prompt[:5]
        salt = chance.choice(["", "", "a", "b"])
        priority = chance.choice([0, 0, 0, -3, 5, 100])
        for _ in range(chance.choice([1, 1, 1, 2, 4])):
            sequence_id = len(self.told)
            deadline = self.now + chance.uniform(1, 60) if chance.random() < 0.1 else None
            told = self.told[sequence_id] = Told(prompt, chance.choice([1, 2, 10, 50]), deadline)
            if chance.random() < 0.2:
                told.scored, told.max_tokens = True, chance.choice([0, 1, 20])
            elif chance.random() < 0.2:
                told.pooling, told.max_tokens = chance.choice(POOLINGS), 0
            method = chance.choice(["", "", "ngram", "auto", "off"])
            generate = replace(
                request(prompt, max_tokens=told.max_tokens, method=method, prompt_logprobs=told.scored - 1),
                cache_salt=salt,
                caller=salt,
                priority=priority,
                pooling=told.pooling,
                namespace=chance.choice(["", "n", "m"]),
            )
            self.hear(self.scheduler.handle(Arrived(generate, sequence_id, deadline, self.now)))
            self.runner.salts[sequence_id] = salt

    def cancel(self) -> None:
        sequence_id = self.chance.randrange(len(self.told) or 1)
        if sequence_id in self.told and not self.told[sequence_id].ends:
            self.told[sequence_id].cancelled = True
        self.hear(self.scheduler.handle(Cancelled(sequence_id)))

    def hear(self, out: list[Output]) -> None:
        for item in out:
            if isinstance(item, Emit):
                told = self.told[item.sequence_id]
                assert not told.ends and not told.cancelled and item.tokens.seq == len(told.ids)
                if (scored := item.tokens.prompt_logprobs) is not None:
                    assert told.scored and not item.tokens.ids and scored.begin == len(told.scores) + 1
                    told.scores += [each.logprob for each in unpack(scored)]
                    continue
                assert item.tokens.ids and (not told.scored or len(told.scores) == len(told.prompt) - 1)
                assert sum(run.length for run in item.tokens.runs) == len(item.tokens.ids)
                told.ids += item.tokens.ids
            elif isinstance(item, Finish):
                self.told[item.sequence_id].ends.append(item.finished)
            elif isinstance(item, Fail):
                self.told[item.sequence_id].ends.append(item.failed)

    def step(self) -> None:
        chance, scheduler = self.chance, self.scheduler
        plan = scheduler.schedule()
        sequences = [item.sequence for item in plan.items]
        drafting = [] if self.plain else sequences
        drafts = {each.sequence_id: self.guess(each) for each in drafting if chance.random() < 0.9}
        work = scheduler.place(drafts, {each.sequence_id: DraftBudget(3) for each in drafting})
        assert size_of(work.items)[0] <= scheduler.limits.max_step_tokens
        assert sum(len(item.scored) for item in work.items) <= SCORED_ROWS + len(work.items)
        for item, sequence in zip(work.items, sequences, strict=True):
            assert possible(item.draft.tokens, item.draft.parents)
            assert not item.draft.tokens or sequence.wants_draft
        self.runner.launch(work)
        if self.plain:
            self.go_on()
        else:
            self.hear(scheduler.handle(StepDone(self.runner.finish())))

    def go_on(self) -> None:
        """From a step that has been launched, as long as nothing is to be decided; but something may happen."""
        chance, scheduler = self.chance, self.scheduler
        untaken: Result | None = None
        runs = True
        while runs:
            if untaken is None and not self.settling and chance.random() < 0.2:
                chance.choice([self.arrive, self.cancel])()
            ahead = scheduler.ahead() if chance.random() < 0.7 else None
            if ahead is not None:
                self.runner.launch(ahead)
                self.aheads += 1
                self.joined += len(scheduler.joined)
            if untaken is not None:
                self.hear(scheduler.handle(StepDone(untaken)))
            untaken = self.runner.finish()
            if ahead is not None:
                scheduler.saw(untaken)
                if chance.random() < 0.1:
                    self.hear(scheduler.handle(StepDone(untaken)))
                    untaken = None
                    chance.choice([self.arrive, self.cancel])()
                continue
            following = scheduler.go_on(untaken) if chance.random() < 0.9 else None
            runs = following is not None
            if following is not None:
                self.runner.launch(following)
        assert untaken is not None
        self.hear(scheduler.handle(StepDone(untaken)))

    def guess(self, sequence: Sequence) -> Draft:
        """Right for a while, then wrong; for any sequence, of any length, with branches or without."""
        chance, text = self.chance, list(sequence.token_ids)
        tokens: list[int] = []
        for _ in range(chance.choice([0, 3, 8, 30])):
            right = next_token(text, self.eos_every)
            tokens.append(right if chance.random() < 0.85 else chance.randrange(VOCABULARY))
            text.append(tokens[-1])
        parents: list[int] = []
        if tokens and chance.random() < 0.5:
            tokens, parents = self.branched(tokens)
        return Draft(tokens, "t", parents=parents)

    def branched(self, chain: list[int]) -> tuple[list[int], list[int]]:
        """With other tokens beside these, before and after them."""
        chance, above = self.chance, -1
        tokens: list[int] = []
        parents: list[int] = []
        for right in chain:
            others = [token for token in range(3) if token != right and chance.random() < 0.3]
            level = [*others, right] if chance.random() < 0.5 else [right, *others]
            below = len(tokens) + level.index(right)
            tokens += level
            parents += [above] * len(level)
            if others and chance.random() < 0.3:
                tokens.append(chance.randrange(VOCABULARY))
                parents.append(below - 1 if level[0] != right else below + 1)
            above = below
        return tokens, parents

    def preempt(self) -> None:
        """Any running sequence, not only the last in order."""
        if self.scheduler.running:
            self.scheduler.planner.preempt(self.chance.choice(self.scheduler.running))

    def turn(self) -> None:
        self.now += 1
        self.hear(self.scheduler.handle(DeadlinePassed(self.now)))
        if self.scheduler.has_work:
            self.step()
        self.scheduler.planner.sharing.cache.check()

    def settle(self) -> None:
        turns, self.settling = 0, True
        while self.scheduler.has_work:
            self.turn()
            turns += 1
            assert turns < 20_000, "a request waits for ever"
        self.scheduler.check_idle()

    def check(self) -> None:
        for told in self.told.values():
            text, reason = alone(told.prompt, told.max_tokens, self.context, self.eos_every)
            assert len(told.ends) == (0 if told.cancelled else 1)
            assert told.ids == text[: len(told.ids)]
            scores = scores_of(told.prompt) if told.scored else []
            assert told.scores == scores[: len(told.scores)]
            for end in told.ends:
                if isinstance(end, Finished):
                    assert (told.ids, end.reason, told.scores) == (text, reason, scores)
                    assert end.completion_tokens == len(text)
                    assert end.embedding == (embedding_of(told.prompt, told.pooling) if told.pooling else b"")
                    # The last token of a prompt is always computed.
                    assert end.cached_tokens < len(told.prompt)
                else:
                    assert isinstance(end, Failed) and end.reason in ("deadline", "too_long")


@pytest.mark.parametrize("seed", range(150))
def test_every_request_ends_once_with_its_own_text_and_no_page_is_lost(seed: int) -> None:
    busy(World(seed))


def test_in_such_worlds_steps_are_made_ahead() -> None:
    world = World(5)
    world.plain = True
    busy(world)
    assert world.aheads > 20 and world.joined > 5


def busy(world: World) -> None:
    for _ in range(120):
        act = world.chance.random()
        if act < 0.25:
            world.arrive()
        elif act < 0.28:
            world.cancel()
        elif act < 0.285:
            world.preempt()
        else:
            world.turn()
    world.settle()
    world.check()


def test_the_oldest_request_ends_while_new_ones_keep_arriving() -> None:
    """No starvation: with pages for little more than one text, arrivals never stop."""
    world = World(3)
    world.runner = PagedFake(17, 4)
    world.eos_every, world.plain = 0, False
    world.scheduler = Scheduler(
        Limits(VOCABULARY, 64, (EOS,), page_tokens=4, pages=17, max_waiting=10_000, method="naive", max_sequences=8)
    )
    world.context = 64
    for sequence_id in range(300):
        told = world.told[sequence_id] = Told([1 + sequence_id % 40] * 30, 30, None)
        world.hear(world.scheduler.handle(Arrived(request(told.prompt, max_tokens=30), sequence_id, None)))
        world.turn()
    ended = [sequence_id for sequence_id, told in world.told.items() if told.ends]
    # In the order of their arrival, whatever was preempted meanwhile.
    assert ended == list(range(len(ended))) and len(ended) >= 8
    for sequence_id in world.told:
        world.hear(world.scheduler.handle(Cancelled(sequence_id)))
    world.scheduler.check_idle()
