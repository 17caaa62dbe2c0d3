"""Pages that are read where the other worker has them (page_transport nixl): the texts and bytes are those of pages
that are sent, and what goes wrong with a read costs computing, never a text, a page or a request."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from agents import AGENTS, CopyingAgent, use_copies
from driving import request
from mesh_around import Answer, until
from tiny_folder import write_tiny_model
from two_workers import Split, Worker, split

from services.api.messages import FetchPages, Generate, LentMemory, LentPlace, PagesHeld, PagesRead
from services.api.settings import Settings
from services.worker.handover import fetch, nixl
from services.worker.handover.transport import LoanPages
from services.worker.loading import load_runner

TEXT = [5 + k % 90 for k in range(70)]
PAGES = 4


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("tiny") / "tiny")


@pytest.fixture(params=AGENTS)
def agent(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "copies":
        use_copies(monkeypatch)
    return str(request.param)


@pytest.fixture
def copies(monkeypatch: pytest.MonkeyPatch) -> None:
    for each in (fetch, nixl):
        monkeypatch.setattr(each, "PATIENCE", 0.02)
    use_copies(monkeypatch)


@asynccontextmanager
async def two(
    folder: Path, run: Path, prefill: str = "nixl", decode: str = "nixl", **more: Any
) -> AsyncIterator[Split]:
    """A prefill and a decode worker with their page_transport."""
    given: dict[str, Any] = {
        "engine": "torch", "model": str(folder), "executor": "compiled", "dtype": "float32", "page_tokens": 16,
        "kv_cache_mb": 4, "threads": 1, "max_step_tokens": 32, **more,
    }  # fmt: skip
    async with split(run, start=False) as mesh:
        for name, transport in (("prefill", prefill), ("decode", decode)):
            runner = load_runner(Settings.for_tests(**given))
            await mesh.start(name, name, runner, **given, page_transport=transport)
        yield mesh


def asked(text: list[int] = TEXT, salt: str = "", tokens: int = 30) -> Generate:
    made = request(text, max_tokens=tokens, ignore_eos=True)
    return msgspec.structs.replace(made, cache_salt=salt)


async def one_worker(mesh: Split, text: list[int] = TEXT) -> list[int]:
    return (await mesh.ask(asked(text, "alone"), pages_from="")).ids


async def checked(mesh: Split, answer: Answer, text: list[int] = TEXT) -> None:
    assert answer.ids == await one_worker(mesh, text) and answer.end.reason == "length"
    for worker in mesh.workers.values():
        await worker.until_idle()


def the_agent(worker: Worker) -> CopyingAgent:
    found = worker.handover.nixl.agent
    assert isinstance(found, CopyingAgent)
    return found


def bytes_of(worker: Worker, text: list[int], salt: str = "") -> list[list[bytes]]:
    """The pages that the prefix cache has of this text."""
    sharing, memory = worker.scheduler.planner.sharing, worker.runner.page_memory()
    return memory.read(sharing.cache.find(sharing.names([*text, 0], "", salt)))


@pytest.mark.parametrize("executor", ["compiled", "plain"])
async def test_pages_are_read_and_texts_and_bytes_are_the_same(
    agent: str, executor: str, folder: Path, tmp_path: Path
) -> None:
    async with two(folder, tmp_path, executor=executor) as mesh:
        answer = await mesh.ask(asked())
        counts = mesh.decode.counts
        assert counts.read_pages == counts.fetched_pages == mesh.prefill.counts.lent_pages == PAGES
        assert counts.ends == {"complete": 1} and counts.fetched_bytes == mesh.prefill.counts.lent_bytes > 0
        theirs, ours = (bytes_of(each, TEXT) for each in (mesh.prefill, mesh.decode))
        assert len(ours) == PAGES and ours == theirs
        await checked(mesh, answer)
        direct = mesh.decode.handover.nixl
        assert direct.free == len(direct.memory.slots)


@pytest.mark.parametrize(("prefill", "decode"), [("mesh", "nixl"), ("nixl", "mesh")])
async def test_a_worker_without_it_sends_its_pages(
    agent: str, prefill: str, decode: str, folder: Path, tmp_path: Path
) -> None:
    async with two(folder, tmp_path, prefill, decode) as mesh:
        answer = await mesh.ask(asked())
        assert mesh.decode.counts.fetched_pages == PAGES and mesh.decode.counts.read_pages == 0
        await checked(mesh, answer)


async def test_fetches_at_a_time(agent: str, folder: Path, tmp_path: Path) -> None:
    texts = [[first, *TEXT] for first in (5, 6, 7)]
    async with two(folder, tmp_path) as mesh:
        answers = await asyncio.gather(*(mesh.ask(asked(text)) for text in texts))
        assert mesh.decode.counts.read_pages == PAGES * len(texts) and mesh.decode.counts.ends == {"complete": 3}
        for text, answer in zip(texts, answers, strict=True):
            assert bytes_of(mesh.decode, text) == bytes_of(mesh.prefill, text) != []
            await checked(mesh, answer, text)


async def test_more_pages_than_slots(agent: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.worker.running.page_places.MOST_SLOTS", 2)
    text = [5 + k * k % 90 for k in range(200)]
    async with two(folder, tmp_path) as mesh:
        answer = await mesh.ask(asked(text))
        assert mesh.decode.counts.read_pages == 200 // 16
        await checked(mesh, answer, text)


async def test_what_a_drafter_keeps_in_pages_is_read_with_them(agent: str, folder: Path, tmp_path: Path) -> None:
    """The model drafts for itself: with its own keys and values of the prompt it is never wrong."""
    given = {"draft_dtype": "float32", "draft_model": str(folder), "method": "draft_model", "num_speculative_tokens": 4}
    async with two(folder, tmp_path, **given) as mesh:
        answer = await mesh.ask(asked(tokens=40))
        assert mesh.decode.counts.read_pages == PAGES
        stats = answer.end.speculation
        assert stats.drafted == stats.accepted > 20
        plain = msgspec.structs.replace(request(TEXT, max_tokens=40, ignore_eos=True, method="naive"), cache_salt="x")
        assert answer.ids == (await mesh.ask(plain, pages_from="")).ids


# What goes wrong ----------------------------------------------------------------------------------------------


async def reading_of(mesh: Split, generate: Generate) -> asyncio.Task[Answer]:
    """Asked, and in the middle of its first read."""
    the_agent(mesh.decode).holds = True
    task = asyncio.create_task(mesh.ask(generate))
    await until(lambda: bool(the_agent(mesh.decode).held))
    return task


async def in_engine(worker: Worker, what: Callable[[], Any]) -> None:
    done = asyncio.Event()
    worker.handover.in_engine(lambda: (what(), worker.handover.tell_loop(done.set)))  # type: ignore[func-returns-value]
    await done.wait()


async def test_pages_that_the_lender_needed_while_they_were_read_do_not_land(
    copies: None, folder: Path, tmp_path: Path
) -> None:
    async with two(folder, tmp_path) as mesh:
        lender = mesh.prefill
        task = await reading_of(mesh, asked())
        held = lender.scheduler.planner.held
        pages = lender.scheduler.planner.sharing.cache.find(
            lender.scheduler.planner.sharing.names([*TEXT, 0], "", "")
        )
        assert len(pages) >= 1 and all(held.holds(-1, page) for page in pages[:1])

        def another_text() -> None:
            """A sequence that runs takes them, and fills them."""
            assert held.release_all()
            memory = lender.runner.page_memory()
            lender.scheduler.planner.sharing.cache.forget(pages)
            for page in pages:
                memory.write(page, [b"\x7f" * size for size in memory.frame_bytes])

        await in_engine(lender, another_text)
        the_agent(mesh.decode).holds = False
        the_agent(mesh.decode).go_on()
        answer = await task
        assert mesh.decode.counts.read_pages == 0 and mesh.decode.counts.ends == {"partial": 1}
        assert b"\x7f" * 64 not in b"".join(b"".join(page) for page in bytes_of(mesh.decode, TEXT))
        await checked(mesh, answer)
        # The other worker is read from as before.
        await checked(mesh, await mesh.ask(asked([9, *TEXT])), [9, *TEXT])
        assert mesh.decode.counts.read_pages == PAGES


async def test_a_read_that_does_not_end_costs_its_slots_until_it_does(
    copies: None, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nixl, "LONGEST_READ", 0.1)
    async with two(folder, tmp_path) as mesh:
        direct = mesh.decode.handover.nixl
        whole, before = direct.free, [[frame.clone() for frame in slot] for slot in direct.memory.slots]
        answer = await (await reading_of(mesh, asked()))
        assert mesh.decode.counts.ends == {"partial": 1} and direct.free < whole
        # It isn't read from again: its pages come through the mesh.
        other = await mesh.ask(asked([9, *TEXT]))
        assert mesh.decode.counts.fetched_pages == PAGES and mesh.decode.counts.read_pages == 0
        # The bytes come late, into slots that nobody else had.
        ours = bytes_of(mesh.decode, TEXT)
        the_agent(mesh.decode).go_on()
        await until(lambda: direct.free == whole)
        assert any(not old.equal(new) for slot, kept in zip(direct.memory.slots, before, strict=True)
                   for new, old in zip(slot, kept, strict=True))  # fmt: skip
        assert bytes_of(mesh.decode, TEXT) == ours
        await checked(mesh, answer)
        await checked(mesh, other, [9, *TEXT])


async def test_a_slot_whose_read_failed_is_never_used_again(copies: None, folder: Path, tmp_path: Path) -> None:
    async with two(folder, tmp_path) as mesh:
        direct = mesh.decode.handover.nixl
        whole = direct.free
        the_agent(mesh.decode).fails = True
        await checked(mesh, await mesh.ask(asked()))
        lost = whole - direct.free
        assert 1 <= lost <= PAGES
        member = mesh.table.workers["prefill"]
        assert not direct.offered(member)
        # Its successor would be read from, as long as there are slots.
        successor = msgspec.structs.replace(member, epoch=member.epoch + 1)
        assert direct.offered(successor)
        slots = await direct.take(whole // 2 - lost)
        lender = mesh.prefill.handover.nixl
        lender.agent.lends(1)
        direct.read(lender.lent_memory(1), [0] * len(slots), slots, lambda outcome: True)
        lender.agent.lends(-1)
        await until(lambda: not direct.offered(successor))
        assert direct.free == whole - whole // 2


async def test_a_read_takes_a_part_of_the_slots_and_without_one_pages_are_sent(
    copies: None, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.worker.running.page_places.MOST_SLOTS", 2)
    async with two(folder, tmp_path) as mesh:
        direct = mesh.decode.handover.nixl
        first = await reading_of(mesh, asked())
        assert direct.share == 1 and direct.free == 1
        second = asyncio.create_task(mesh.ask(asked([8, *TEXT])))
        await until(lambda: len(the_agent(mesh.decode).held) == 2)
        # None is free: it isn't even offered, and pages are sent.
        third = await mesh.ask(asked([9, *TEXT]))
        assert mesh.decode.counts.fetched_pages == PAGES and mesh.decode.counts.read_pages == 0
        the_agent(mesh.decode).holds = False
        the_agent(mesh.decode).go_on()
        for text, answer in ((TEXT, await first), ([8, *TEXT], await second), ([9, *TEXT], third)):
            await checked(mesh, answer, text)


async def test_fetches_that_find_no_slot_are_computed(
    copies: None, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All were free when the pages were asked for; another fetch has them now, and its read doesn't end."""
    monkeypatch.setattr(nixl, "LONGEST_READ", 0.1)
    async with two(folder, tmp_path) as mesh:
        direct = mesh.decode.handover.nixl
        monkeypatch.setattr(direct, "offered", lambda lender: True)
        await direct.take(direct.free)
        await checked(mesh, await mesh.ask(asked()))
        assert mesh.decode.counts.ends == {"partial": 1} and the_agent(mesh.decode).reads == 0


@pytest.mark.parametrize("state", ["lost", "unready"])
async def test_a_lender_that_is_lost_while_it_is_read_from(
    copies: None, state: str, folder: Path, tmp_path: Path
) -> None:
    """Stopped: the directory says so, its connection stays, and the read doesn't end."""
    async with two(folder, tmp_path) as mesh:
        task = await reading_of(mesh, asked())
        mesh.say("prefill", state)
        answer = await task
        assert mesh.decode.counts.ends == {"partial": 1} and mesh.decode.counts.read_pages == 0
        the_agent(mesh.decode).go_on()
        await checked(mesh, answer)


async def test_a_lender_that_dies_while_it_is_read_from(copies: None, folder: Path, tmp_path: Path) -> None:
    async with two(folder, tmp_path) as mesh:
        task = await reading_of(mesh, asked())
        held, the_agent(mesh.decode).held = the_agent(mesh.decode).held, []
        prefill = mesh.workers.pop("prefill")
        await prefill.node.stop(0.1)
        answer = await task
        assert mesh.decode.counts.ends == {"partial": 1} and held
        await checked(mesh, answer)


async def test_a_client_that_leaves_while_pages_are_read(copies: None, folder: Path, tmp_path: Path) -> None:
    async with two(folder, tmp_path) as mesh:
        direct = mesh.decode.handover.nixl
        whole = direct.free
        task = await reading_of(mesh, asked())
        task.cancel()
        for worker in mesh.workers.values():
            await worker.until_idle()
        assert direct.free < whole
        the_agent(mesh.decode).holds = False
        the_agent(mesh.decode).go_on()
        await until(lambda: direct.free == whole)
        assert bytes_of(mesh.decode, TEXT) == []
        await checked(mesh, await mesh.ask(asked()))
        assert mesh.decode.counts.read_pages == PAGES


async def test_who_says_that_pages_were_read_of_another_loan_is_told_none(
    copies: None, folder: Path, tmp_path: Path
) -> None:
    async with two(folder, tmp_path) as mesh:
        task = await reading_of(mesh, asked())
        agent, ref = the_agent(mesh.prefill), mesh.prefill.ref
        for wrong in (
            PagesRead("another", 1, 0, 1), PagesRead(agent.name, 99, 0, 1), PagesRead(agent.name, 1, 0, -1),
            PagesRead(agent.name, 1, 1, 1),
        ):
            assert await ref.ask(wrong, timeout=10.0) == PagesHeld(0)
        # This says that all pages were read, so the loan ends. The worker that really reads them then hears that none
        # were held for it.
        assert (await ref.ask(PagesRead(agent.name, 1, 0, 1 << 40), timeout=10.0)).count >= 1
        the_agent(mesh.decode).holds = False
        the_agent(mesh.decode).go_on()
        answer = await task
        assert mesh.decode.counts.read_pages == 0 and mesh.decode.counts.ends == {"partial": 1}
        await checked(mesh, answer)


async def test_a_fault_of_our_own_while_pages_are_read_ends_the_fetch_alone(
    copies: None, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with two(folder, tmp_path) as mesh:
        monkeypatch.setattr(mesh.decode.handover.nixl.memory, "in_slot", lambda slot: 1 / 0)
        await checked(mesh, await mesh.ask(asked()))
        assert mesh.decode.counts.ends == {"partial": 1} and mesh.decode.counts.fetched_pages == 0


# A worker that lies -------------------------------------------------------------------------------------------


class Liar:
    """In place of a loan."""

    ended = False

    def __init__(self, lie: Lies, lent: LentMemory, message: FetchPages, out: Any) -> None:
        self.pages = LoanPages(lent.sequence_id, [], out, lambda: None)
        self._lie, self._lent, self._message, self._out = lie, lent, message, out

    def push(self, answer: Any) -> None: ...

    async def run(self) -> None:
        await self._lie(self._lent, self._message, self._out.send)


Send = Callable[[Any], Awaitable[None]]
Lies = Callable[[LentMemory, FetchPages, Send], Awaitable[None]]


async def other_parts(lent: LentMemory, message: FetchPages, send: Send) -> None:
    await send(msgspec.structs.replace(lent, addresses=lent.addresses[1:]))


async def an_address_below_zero(lent: LentMemory, message: FetchPages, send: Send) -> None:
    await send(msgspec.structs.replace(lent, addresses=[-each for each in lent.addresses]))


async def a_step_beyond_memory(lent: LentMemory, message: FetchPages, send: Send) -> None:
    await send(msgspec.structs.replace(lent, strides=[(1 << 63) - 1] * len(lent.strides)))


async def long_metadata(lent: LentMemory, message: FetchPages, send: Send) -> None:
    await send(msgspec.structs.replace(lent, metadata=bytes((1 << 20) + 1)))


async def memory_twice(lent: LentMemory, message: FetchPages, send: Send) -> None:
    await send(lent)
    await send(lent)


async def a_place_before_its_memory(lent: LentMemory, message: FetchPages, send: Send) -> None:
    await send(LentPlace(0, message.names[:16], 0))


async def another_place(lent: LentMemory, message: FetchPages, send: Send) -> None:
    await send(lent)
    await send(LentPlace(1, message.names[16:32], 0))


async def another_name(lent: LentMemory, message: FetchPages, send: Send) -> None:
    await send(lent)
    await send(LentPlace(0, bytes(16), 0))


async def a_page_below_zero(lent: LentMemory, message: FetchPages, send: Send) -> None:
    await send(lent)
    await send(LentPlace(0, message.names[:16], -1))


async def a_page_that_it_does_not_have(lent: LentMemory, message: FetchPages, send: Send) -> None:
    await send(lent)
    await send(LentPlace(0, message.names[:16], (1 << 31) - 1))


async def the_memory_of_another_process(lent: LentMemory, message: FetchPages, send: Send) -> None:
    await send(msgspec.structs.replace(lent, addresses=[4096] * len(lent.addresses)))
    await send(LentPlace(0, message.names[:16], 0))


async def metadata_of_nobody(lent: LentMemory, message: FetchPages, send: Send) -> None:
    await send(msgspec.structs.replace(lent, metadata=lent.metadata[: len(lent.metadata) // 2] + bytes(200)))
    await send(LentPlace(0, message.names[:16], 0))


async def another_agents_name(lent: LentMemory, message: FetchPages, send: Send) -> None:
    await send(msgspec.structs.replace(lent, agent="another"))
    await send(LentPlace(0, message.names[:16], 0))


@pytest.mark.parametrize(
    "lie",
    [
        other_parts, an_address_below_zero, a_step_beyond_memory, long_metadata, memory_twice,
        a_place_before_its_memory, another_place, another_name, a_page_below_zero, a_page_that_it_does_not_have,
        the_memory_of_another_process, metadata_of_nobody, another_agents_name,
    ],
)  # fmt: skip
async def test_what_a_worker_does_not_say_ends_the_fetch_alone(
    lie: Lies, agent: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with two(folder, tmp_path) as mesh:
        lender, direct = mesh.prefill.handover, mesh.decode.handover.nixl
        whole = direct.free

        def liar(message: FetchPages, sequence_id: int, out: Any) -> Liar:
            return Liar(lie, lender.nixl.lent_memory(sequence_id), message, out)

        monkeypatch.setattr(lender, "loan", liar)
        answer = await mesh.ask(asked())
        assert mesh.decode.counts.ends == {"partial": 1} and mesh.decode.counts.fetched_pages == 0
        await until(lambda: direct.free == whole)
        await checked(mesh, answer)


async def test_who_did_not_ask_for_places_gets_none(copies: None, folder: Path, tmp_path: Path) -> None:
    async with two(folder, tmp_path, decode="mesh") as mesh:
        lender = mesh.prefill.handover
        real = lender.loan
        lender.loan = lambda message, *rest: real(msgspec.structs.replace(message, transport="nixl"), *rest)  # type: ignore[method-assign]
        answer = await mesh.ask(asked())
        assert mesh.decode.counts.ends == {"partial": 1} and mesh.decode.counts.fetched_pages == 0
        await checked(mesh, answer)
