"""What goes wrong on the way costs computing, never a text, a request or a page."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from driving import request
from mesh_around import Answer, until
from paged_fake import alone
from two_workers import HandingFake, Split, split

from services.api.messages import Failed, FetchPages, LentPage, Tokens
from services.worker.handover import fetch
from services.worker.handover.transport import LoanPages, lent_page

PROMPT = [1 + i % 9 for i in range(100)]
EXPECTED = alone(PROMPT, 12, 200)[0]


async def checked(mesh: Split, answer: Answer) -> None:
    assert answer.ids == EXPECTED and answer.end.reason == "length"
    for worker in mesh.workers.values():
        await worker.until_idle()


@pytest.fixture
def stuck(monkeypatch: pytest.MonkeyPatch) -> Callable[[Split, int], Callable[[], None]]:
    """Makes the prefill worker stop lending after so many pages. Returns what lets it go on."""

    def make(mesh: Split, pages: int) -> Callable[[], None]:
        monkeypatch.setattr(mesh.prefill.handover.transports[""], "batch", 1)  # a page at a time
        monkeypatch.setattr(fetch, "PATIENCE", 0.02)
        lending = mesh.prefill.handover.lending
        ask, left, waiting = lending.ask, iter(range(pages)), []

        def asked(*how: Any) -> None:
            if next(left, None) is None:
                waiting.append(how)
            else:
                ask(*how)

        def go_on() -> None:
            monkeypatch.setattr(lending, "ask", ask)
            for how in waiting:
                mesh.prefill.handover.in_engine(functools.partial(ask, *how))

        monkeypatch.setattr(lending, "ask", asked)
        return go_on

    return make


Stuck = Callable[[Split, int], Callable[[], None]]


async def begun(mesh: Split, pages: int) -> asyncio.Task[Answer]:
    asked = asyncio.create_task(mesh.ask(request(PROMPT, max_tokens=12)))
    await until(lambda: mesh.decode.counts.fetched_pages == pages)
    return asked


async def test_a_prefill_worker_that_dies_in_the_middle(stuck: Stuck, tmp_path: Path) -> None:
    async with split(tmp_path) as mesh:
        stuck(mesh, 8)
        asked = await begun(mesh, 8)
        await mesh.workers.pop("prefill").node.stop(0.1)
        await checked(mesh, await asked)
        assert mesh.decode.counts.ends == {"partial": 1} and mesh.decode.counts.recomputed_pages == 25 - 8
        assert mesh.decode.runner.rows == 100 - 4 * 8 + 11


@pytest.mark.parametrize("state", ["lost", "unready"])
async def test_a_prefill_worker_that_is_stuck(state: str, stuck: Stuck, tmp_path: Path) -> None:
    """The directory says so; its connection stays."""
    async with split(tmp_path) as mesh:
        stuck(mesh, 3)
        asked = await begun(mesh, 3)
        mesh.say("prefill", state)
        await checked(mesh, await asked)
        assert mesh.decode.counts.ends == {"partial": 1}


async def test_a_prefill_worker_that_was_replaced(stuck: Stuck, tmp_path: Path) -> None:
    """The same name with another epoch isn't who was asked."""
    async with split(tmp_path) as mesh:
        stuck(mesh, 3)
        asked = await begun(mesh, 3)
        mesh.say("prefill", "ready", epoch=mesh.prefill.node.epoch + 1)
        await checked(mesh, await asked)


async def test_a_prefill_worker_that_is_only_slow_is_waited_for(stuck: Stuck, tmp_path: Path) -> None:
    async with split(tmp_path) as mesh:
        go_on = stuck(mesh, 3)
        asked = await begun(mesh, 3)
        go_on()
        await checked(mesh, await asked)
        assert mesh.decode.counts.ends == {"complete": 1}


async def test_a_client_that_leaves_in_the_middle(stuck: Stuck, tmp_path: Path) -> None:
    async with split(tmp_path) as mesh:
        go_on = stuck(mesh, 8)
        asked = await begun(mesh, 8)
        assert mesh.decode.scheduler.pages.in_use == 8
        asked.cancel()
        for worker in mesh.workers.values():
            await worker.until_idle()
        go_on()
        await checked(mesh, await mesh.ask(request(PROMPT, max_tokens=12)))
        assert mesh.decode.runner.landed == 25


@pytest.mark.parametrize("instance", ["prefill", "other", "", "decode"])
async def test_a_worker_that_is_not_there(instance: str, tmp_path: Path) -> None:
    async with split(tmp_path) as mesh:
        mesh.say("prefill", "lost")
        await checked(mesh, await mesh.ask(request(PROMPT, max_tokens=12), pages_from=instance))
        assert mesh.prefill.runner.rows == 0


async def test_a_prefill_worker_that_drains(tmp_path: Path) -> None:
    async with split(tmp_path) as mesh:
        await mesh.prefill.actor.drain(1.0)
        await checked(mesh, await mesh.ask(request(PROMPT, max_tokens=12)))
        assert mesh.prefill.runner.rows == 0 and mesh.decode.counts.ends == {"partial": 1}


async def test_a_receiver_without_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has room for 5 pages (test_lend.py: when it has), and computes the rest."""
    async with split(tmp_path) as mesh:
        landing, room = mesh.decode.handover.fetcher.landing, iter([True] * 5)
        land = landing.land
        monkeypatch.setattr(landing, "land", lambda *page: next(room, False) and land(*page))
        await checked(mesh, await mesh.ask(request(PROMPT, max_tokens=12)))
        assert mesh.decode.counts.ends == {"full": 1} and mesh.decode.counts.fetched_pages == 5
        assert mesh.decode.runner.landed == 5 and mesh.decode.runner.rows >= 80 + 11


async def test_sequences_that_run_take_the_pages_that_wait_for_a_request(stuck: Stuck, tmp_path: Path) -> None:
    """The prefill worker stops with the request half handed over; meanwhile the others need all pages."""
    async with split(tmp_path, start=False) as mesh:
        await mesh.start("prefill", "prefill")
        await mesh.start("decode", "decode", HandingFake(pages=32, context=120))
        go_on = stuck(mesh, 12)
        handed = await begun(mesh, 12)
        others = [mesh.ask(request([k] * 40, max_tokens=70), pages_from="") for k in (3, 4)]
        answers = await asyncio.gather(*others)
        assert [each.ids for each in answers] == [alone([k] * 40, 70, 120)[0] for k in (3, 4)]
        assert mesh.decode.scheduler.planner.held.releases > 0
        go_on()
        await checked(mesh, await handed)


async def test_workers_with_other_pages_or_another_secret_hand_nothing_over(tmp_path: Path) -> None:
    async with split(tmp_path) as mesh:
        mesh.decode.runner.landed = 0
        mesh.prefill.handover.memory.layout = "another"
        await checked(mesh, await mesh.ask(request(PROMPT, max_tokens=12)))
        mesh.prefill.handover.memory.layout = mesh.decode.runner.page_memory().layout
        mesh.prefill.handover.secret = "another"
        await checked(mesh, await ask(mesh))
        assert mesh.decode.runner.landed == 0 and mesh.prefill.runner.rows == 0


async def ask(mesh: Split) -> Answer:
    """With another salt: nothing of it is in a cache."""
    return await mesh.ask(msgspec.structs.replace(request(PROMPT, max_tokens=12), cache_salt="other"))


# A worker that lies -------------------------------------------------------------------------------------------

class Liar:
    """In place of a loan."""

    ended = False

    def __init__(self, lie: Lies, message: FetchPages, sequence_id: int, out: Any) -> None:
        self._lie, self._message, self._out = lie, message, out
        self.pages = LoanPages(sequence_id, [], out, lambda: None)

    def push(self, answer: Any) -> None: ...

    async def run(self) -> None:
        await self._lie(self._message, self._out)


Lies = Callable[[FetchPages, Any], Awaitable[None]]


def page(index: int, name: bytes, sizes: tuple[int, ...]) -> LentPage:
    return lent_page(index, name, [b"\xff" * size for size in sizes])


async def another_page(message: FetchPages, out: Any) -> None:
    await out.send(page(1, message.names[16:32], (51, 17)))


async def another_name(message: FetchPages, out: Any) -> None:
    await out.send(page(0, bytes(16), (51, 17)))


async def other_sizes(message: FetchPages, out: Any) -> None:
    await out.send(page(0, message.names[:16], (51, 18)))


async def a_token_that_does_not_exist(message: FetchPages, out: Any) -> None:
    await out.send(Tokens(request_id="r", attempt=1, seq=0, ids=[1 << 20]))


async def more_tokens_than_one(message: FetchPages, out: Any) -> None:
    await out.send(Tokens(request_id="r", attempt=1, seq=0, ids=EXPECTED[:2]))


async def a_token_of_another_place(message: FetchPages, out: Any) -> None:
    await out.send(Tokens(request_id="r", attempt=1, seq=3, ids=EXPECTED[:1]))


async def a_failure(message: FetchPages, out: Any) -> None:
    await out.send(Failed(request_id="r", attempt=1, reason="engine", message="it fails"))


async def nothing(message: FetchPages, out: Any) -> None: ...


@pytest.mark.parametrize(
    "lie",
    [
        another_page, another_name, other_sizes, a_token_that_does_not_exist, more_tokens_than_one,
        a_token_of_another_place, a_failure, nothing,
    ],
)  # fmt: skip
async def test_what_a_worker_does_not_send_ends_the_fetch_alone(
    lie: Lies, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with split(tmp_path) as mesh:
        monkeypatch.setattr(mesh.prefill.handover, "loan", functools.partial(Liar, lie))
        await checked(mesh, await mesh.ask(request(PROMPT, max_tokens=12)))
        assert mesh.decode.counts.ends == {"partial": 1} and mesh.decode.runner.landed == 0
