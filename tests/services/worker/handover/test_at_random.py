"""Two workers as values, in random order, with few pages: requests whose pages come whole, in part or not at all,
beside others; preempted and cancelled. Every text is what it would be alone, and in use + cached + free = all pages."""

from __future__ import annotations

import dataclasses
import random

import msgspec
import pytest
from driving import one_step, request
from paged_fake import alone
from two_workers import HandingFake

from services.api.messages import Generate
from services.worker.handover.fetch import Landing
from services.worker.handover.lend import Lending
from services.worker.handover.transport import Lent
from services.worker.scheduling.events import Arrived, Cancelled, Emit, Fail, Finish, Output
from services.worker.scheduling.limits import limits_of
from services.worker.scheduling.scheduler import Scheduler

SECRET = bytes(range(32))
CONTEXT = 72


class Side:
    def __init__(self, pages: int, rows: int) -> None:
        self.runner = HandingFake(pages, CONTEXT)
        limits = limits_of(self.runner.facts, method="naive", max_step_tokens=rows, max_sequences=4, secret=SECRET)
        self.scheduler = Scheduler(limits)
        memory, planner = self.runner.page_memory(), self.scheduler.planner
        self.lending, self.landing = Lending(planner.sharing, memory), Landing(planner, memory)
        self.texts: dict[int, list[int]] = {}
        self.ended: set[int] = set()

    def arrive(self, generate: Generate, sequence_id: int, lent: bool = False) -> None:
        self.texts[sequence_id] = []
        self.hear(self.scheduler.handle(Arrived(generate, sequence_id, lent=lent)))

    def step(self) -> None:
        if self.scheduler.has_work:
            self.hear(one_step(self.scheduler, self.runner)[2])

    def hear(self, out: list[Output]) -> None:
        for item in out:
            assert not isinstance(item, Fail), item
            if isinstance(item, Emit):
                self.texts[item.sequence_id] += item.tokens.ids
            if isinstance(item, Finish):
                self.ended.add(item.sequence_id)
                self.lending.sequence_ended(item.sequence_id)
        self.lending.look()
        self.scheduler.planner.sharing.cache.check()


class Handing:
    """A request whose pages come from the lender to the receiver, as far as they do."""

    def __init__(self, generate: Generate, sequence_id: int, lender: Side, receiver: Side) -> None:
        self.generate, self.sequence_id, self.lender, self.receiver = generate, sequence_id, lender, receiver
        self.names = receiver.scheduler.planner.sharing.names(generate.token_ids, "", generate.cache_salt)
        here = receiver.landing.open(sequence_id, self.names)
        self.names = self.names[here:]
        if self.names:
            sampling = dataclasses.replace(generate.sampling, max_tokens=1)
            lender.lending.begin(sequence_id, self.names, True)
            lender.arrive(msgspec.structs.replace(generate, sampling=sampling), sequence_id, lent=True)
            self.ask()
        else:
            self.end()

    def ask(self) -> None:
        self.lender.lending.ask(self.sequence_id, 2, self.came)

    def came(self, lent: Lent) -> None:
        landing = self.receiver.landing
        for index, frames in enumerate(lent.pages, lent.first):
            if not landing.land(self.sequence_id, self.names[index], frames):
                self.end()
                return
        if lent.done:
            self.end()
        else:
            self.ask()

    def end(self) -> None:
        """However far it came."""
        if self.names:
            self.lender.lending.close(self.sequence_id)
            self.lender.hear(self.lender.scheduler.handle(Cancelled(self.sequence_id)))
        self.receiver.landing.arrived(self.sequence_id)
        self.receiver.arrive(self.generate, self.sequence_id)
        self.names = []

    def leave(self) -> None:
        """The client has gone."""
        self.lender.lending.close(self.sequence_id)
        self.lender.hear(self.lender.scheduler.handle(Cancelled(self.sequence_id)))
        self.receiver.landing.drop(self.sequence_id)
        self.names = []


@pytest.mark.parametrize("seed", range(60))
def test_texts_and_pages_are_right_however_handovers_go(seed: int) -> None:
    draw = random.Random(seed)
    lender, receiver = (Side(draw.randint(18, 40), draw.choice([6, 16, 40])) for _ in range(2))
    beginnings = [[draw.randint(1, 9) for _ in range(draw.randint(4, 40))] for _ in range(3)]
    handings: list[Handing] = []
    expected: dict[int, list[int]] = {}
    for sequence_id in range(1, 16):
        prompt = [*draw.choice(beginnings), *(draw.randint(1, 9) for _ in range(draw.randint(1, 14)))]
        count = draw.randint(1, 14)
        expected[sequence_id] = alone(prompt, count, CONTEXT)[0]
        generate = request(prompt, max_tokens=count)
        if draw.random() < 0.3:
            receiver.arrive(generate, sequence_id)
        else:
            handings.append(Handing(generate, sequence_id, lender, receiver))
        for _ in range(draw.randint(0, 6)):
            draw.choice([lender, receiver]).step()
            for each in handings:
                if each.names and draw.random() < 0.03:
                    each.end() if draw.random() < 0.7 else each.leave()
    while lender.scheduler.has_work or receiver.scheduler.has_work:
        draw.choice([lender, receiver]).step()
    assert {sequence_id: receiver.texts[sequence_id] for sequence_id in receiver.texts} == {
        sequence_id: expected[sequence_id] for sequence_id in receiver.texts
    }
    assert receiver.ended == {*receiver.texts}
    assert len(receiver.texts) + sum(each.sequence_id not in receiver.texts for each in handings) == 15
    for side in (lender, receiver):
        side.scheduler.check_idle()
        assert side.scheduler.pages.in_use == 0 and not side.lending
