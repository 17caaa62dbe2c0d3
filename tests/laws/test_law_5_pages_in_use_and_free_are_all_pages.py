"""Law 5: pages in use + cached + free = all pages, at every step; when nothing runs, none is in use."""

from __future__ import annotations

import random

import pytest
from engine_room import Ask, EngineRoom, draft, some_prompt

from services.api.drafts import PlacedDraft
from services.worker.running.mock import MockRunner, Profile
from services.worker.running.work import Work


class CountingRunner(MockRunner):
    """Counts pages before each step, from inside the engine's thread."""

    room: EngineRoom
    looked = 0
    shared = 0

    def launch(self, work: Work) -> None:
        scheduler = self.room.scheduler
        scheduler.pages.check()
        pages = scheduler.pages
        assert not any(sequence.pages for sequence in scheduler.waiting)
        texts: dict[int, tuple[str, list[int]]] = {}
        for sequence in scheduler.running:
            for index, page in enumerate(sequence.pages):
                end = (index + 1) * self.facts.page_tokens
                # A page has several holders only where all their texts are the same to its end.
                mine = (sequence.generate.cache_salt, sequence.token_ids[:end])
                assert texts.setdefault(page, mine) == mine, "a page with two texts"
                type(self).shared += texts[page] is not mine
        assert len(texts) == pages.in_use and pages.in_use + pages.cached + pages.free == pages.total
        for item in work.items:
            assert item.start + item.rows <= len(item.pages) * self.facts.page_tokens
        type(self).looked += 1
        super().launch(work)


@pytest.mark.parametrize("seed", range(6))
def test_pages_add_up_at_every_step_under_scarcity_cancels_and_drafts(seed: int) -> None:
    chance = random.Random(seed)
    runner = CountingRunner(Profile(acceptance=0.7), page_tokens=16, pages=chance.choice([22, 40, 90]))

    def some_tokens(ask: Ask) -> PlacedDraft:
        return draft(ask, [100 + k % 32 for k in range(chance.randint(0, 12))])

    with EngineRoom(
        runner, some_tokens, max_sequences=16, max_step_tokens=chance.choice([16, 48, 200]), max_waiting=4000
    ) as room:
        runner.room = room
        sequence_ids, cancelled = [], set()
        beginnings = [some_prompt(chance, 100) for _ in range(4)]
        for _ in range(150):
            prompt = chance.choice(beginnings) + some_prompt(chance, 100) * chance.randint(0, 1)
            salt = chance.choice(["", "", "tenant"])
            sequence_ids.append(room.send(prompt, salt=salt, max_tokens=chance.randint(1, 60)))
            if chance.random() < 0.2:
                victim = chance.choice(sequence_ids)
                room.cancel(victim)
                cancelled.add(victim)
        room.run([s for s in sequence_ids if s not in cancelled])
        room.settle()
        assert not room.failures and not room.drafts.failed
        assert runner.looked > 50 and runner.shared > 50
