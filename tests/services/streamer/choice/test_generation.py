"""What becomes of a choice when targets die, stutter or lie. Law 1: it ends, once."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import aiohttp
import msgspec
import pytest
from fake_mesh import MODEL, FakeMesh, FakeTarget, failed, finished, ids_of, says, tokens
from in_memory_wire import chat, choice_of
from mesh_doubles.messages import until
from sse_reading import streamed, text_of

from mesh.errors import Busy, MeshError, NotReached, PeerLost
from mesh.stream import StreamWriter
from services.api.messages import Failed, Generate
from services.streamer.choice.delivery import Piece
from services.streamer.choice.generation import MAX_BARREN, Choice, Ending, generate, is_death
from services.streamer.choice.peers import Peers

STORY = "hello the quick fox hello the world and on and on"
BODY = {"model": MODEL, "prompt": "hi", "max_tokens": 100, "seed": 3}


async def story(http: aiohttp.ClientSession, mesh: FakeMesh, **more: Any) -> list[Any]:
    return await streamed(http, mesh.url + "/v1/completions", {**BODY, **more})


def breaks_after(count: int, how: Any) -> Any:
    """The first attempt says `count` tokens, then `how` happens; later attempts say the rest."""

    async def script(target: FakeTarget, message: Generate, out: StreamWriter) -> None:
        if message.attempt == 0:
            ids = ids_of(STORY)
            for seq in range(count):
                await out.send(tokens(message, seq, [ids[seq]]))
            await how(target, message, out)
        else:
            await says(STORY, group=2)(target, message, out)

    return script


async def test_a_lost_target_is_followed_by_another_without_duplicate_or_gap(
    mesh: FakeMesh, http: aiohttp.ClientSession
) -> None:
    said = asyncio.Event()

    async def waits(target: FakeTarget, message: Generate, out: StreamWriter) -> None:
        said.set()
        await asyncio.Event().wait()

    first = await mesh.start_target(breaks_after(3, waits), "worker-1")
    await mesh.start_door()
    running = asyncio.create_task(story(http, mesh))
    await said.wait()
    mesh.network.cut("mem://worker-1")
    second = await mesh.start_target(says(STORY), "worker-2")
    await mesh.stop("worker-1")
    chunks = await running
    assert chunks[-1] == "[DONE]"
    assert text_of(chunks) == STORY
    (again,) = second.asked
    assert again.attempt == 1
    assert again.prompt_tokens == len(ids_of("hi"))
    delivered = again.token_ids[again.prompt_tokens :]
    assert delivered == ids_of(STORY)[: len(delivered)]
    assert again.sampling == first.asked[0].sampling


async def test_another_target_is_preferred_while_the_directory_still_lists_the_lost_one(
    mesh: FakeMesh, http: aiohttp.ClientSession
) -> None:
    async def simply_returns(target: FakeTarget, message: Generate, out: StreamWriter) -> None:
        return

    first = await mesh.start_target(simply_returns, "worker-1")
    second = await mesh.start_target(says(STORY), "worker-2")
    await mesh.start_door()
    # Which of two idle ones is first is a matter of turns.
    for _ in range(2):
        assert text_of(await story(http, mesh)) == STORY
    assert first.asked and len(second.asked) == 2


async def test_a_request_waits_for_a_target_that_restarts(mesh: FakeMesh, http: aiohttp.ClientSession) -> None:
    said = asyncio.Event()

    async def waits(target: FakeTarget, message: Generate, out: StreamWriter) -> None:
        said.set()
        await asyncio.Event().wait()

    await mesh.start_target(breaks_after(2, waits), "worker-1")
    await mesh.start_door()
    running = asyncio.create_task(story(http, mesh))
    await said.wait()
    await mesh.stop("worker-1")
    await asyncio.sleep(0.05)
    assert not running.done()
    await mesh.start_target(says(STORY), "worker-2")
    assert text_of(await running) == STORY


async def test_a_new_request_waits_for_its_first_target(mesh: FakeMesh, http: aiohttp.ClientSession) -> None:
    await mesh.start_door()
    running = asyncio.create_task(story(http, mesh))
    await asyncio.sleep(0.05)
    assert not running.done()
    await mesh.start_target(says(STORY))
    assert text_of(await running) == STORY


async def test_a_new_request_does_not_wait_for_ever(
    mesh: FakeMesh, http: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.streamer.choice.peers.GRACE", 0.05)
    await mesh.start_door()
    async with http.post(mesh.url + "/v1/completions", json=BODY) as response:
        assert response.status == 503
        assert int(response.headers["Retry-After"]) >= 1
        assert (await response.json())["error"]["code"] == "no_worker"


async def test_a_retryable_failure_is_tried_again(mesh: FakeMesh, http: aiohttp.ClientSession) -> None:
    async def fails(target: FakeTarget, message: Generate, out: StreamWriter) -> None:
        await out.send(failed(message, "draining", retryable=True))

    target = await mesh.start_target(breaks_after(4, fails))
    await mesh.start_door()
    assert text_of(await story(http, mesh)) == STORY
    assert [asked.attempt for asked in target.asked] == [0, 1]
    assert len(target.asked[1].token_ids) == len(ids_of("hi")) + 4


async def test_a_stream_that_ends_without_an_end_is_tried_again(mesh: FakeMesh, http: aiohttp.ClientSession) -> None:
    async def simply_returns(target: FakeTarget, message: Generate, out: StreamWriter) -> None:
        return

    await mesh.start_target(breaks_after(4, simply_returns))
    await mesh.start_door()
    assert text_of(await story(http, mesh)) == STORY


async def test_a_request_that_kills_every_target_is_given_up(
    mesh: FakeMesh, http: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def simply_returns(target: FakeTarget, message: Generate, out: StreamWriter) -> None:
        return

    monkeypatch.setattr("services.streamer.choice.peers.LONGEST_PAUSE", 0.001)
    target = await mesh.start_target(simply_returns)
    await mesh.start_door()
    async with http.post(mesh.url + "/v1/completions", json=BODY) as response:
        assert response.status == 503
        assert (await response.json())["error"]["code"] == "worker_lost"
    assert len(target.asked) == MAX_BARREN


class Mortal:
    """A target that dies with all it runs when it has said `after` tokens of the request POISON; another takes its
    place. It dies as by a signal, or (`says_so`) its engine fails and it tells everyone."""

    POISON = "poison"

    def __init__(self, mesh: FakeMesh, after: int, *, says_so: bool) -> None:
        self.mesh, self.after, self.says_so = mesh, after, says_so
        self.deaths = 0
        self.died = asyncio.Event()
        self.successor: asyncio.Task[None] | None = None

    async def start(self) -> FakeTarget:
        return await self.mesh.start_target(self.script, f"worker-{self.deaths + 1}")

    async def script(self, target: FakeTarget, message: Generate, out: StreamWriter) -> None:
        begin = len(message.token_ids) - message.prompt_tokens
        if message.token_ids[: message.prompt_tokens] == ids_of(self.POISON):
            await self.say(message, out, begin, begin + self.after)
            self.die()
            await self.last_word(message, out)
        elif message.attempt == 0:
            await self.say(message, out, 0, 2)
            await self.died.wait()
            await self.last_word(message, out)
        else:
            await says(STORY)(target, message, out)

    async def say(self, message: Generate, out: StreamWriter, begin: int, end: int) -> None:
        for seq in range(begin, end):
            await out.send(tokens(message, seq, [ids_of(STORY)[seq]]))

    async def last_word(self, message: Generate, out: StreamWriter) -> None:
        if self.says_so:
            await out.send(failed(message, "engine", retryable=True))
        await asyncio.Event().wait()

    def die(self) -> None:
        self.deaths += 1
        self.died.set()
        if not self.says_so:
            self.mesh.network.cut(f"mem://worker-{self.deaths}")
        self.successor = asyncio.create_task(self.replace())

    async def replace(self) -> None:
        self.mesh.directory.members_ = [each for each in self.mesh.directory.members_ if each.role != "worker"]
        await self.start()


@pytest.mark.parametrize("after", [0, 1])
@pytest.mark.parametrize("says_so", [False, True])
async def test_a_request_that_kills_its_workers_ends_after_two_and_its_mates_keep_their_text(
    mesh: FakeMesh, http: aiohttp.ClientSession, after: int, says_so: bool
) -> None:
    mortal = Mortal(mesh, after, says_so=says_so)
    target = await mortal.start()
    await mesh.start_door()
    mates = [asyncio.create_task(story(http, mesh)) for _ in range(4)]
    await until(lambda: target.running == len(mates))
    poison = {**BODY, "prompt": Mortal.POISON}
    async with http.post(mesh.url + "/v1/completions", json=poison) as response:
        assert (response.status, (await response.json())["error"]["code"]) == (500, "worker_died")
        assert "Retry-After" not in response.headers
        assert response.headers["x-should-retry"] == "false"
    assert [text_of(await mate) for mate in mates] == [STORY] * len(mates)
    assert mortal.deaths == 2


async def test_connections_that_break_while_the_worker_lives_are_one_death(
    mesh: FakeMesh, http: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    breaks = 5

    async def script(target: FakeTarget, message: Generate, out: StreamWriter) -> None:
        if message.attempt < breaks:
            await asyncio.Event().wait()
        await says(STORY)(target, message, out)

    monkeypatch.setattr("services.streamer.choice.peers.LONGEST_PAUSE", 0.001)
    target = await mesh.start_target(script)
    await mesh.start_door()
    running = asyncio.create_task(story(http, mesh))
    for attempt in range(breaks):
        await until(lambda attempt=attempt: len(target.asked) > attempt)
        mesh.network.cut("mem://worker-1")
        mesh.network.mend("mem://worker-1")
    assert text_of(await running) == STORY


@pytest.mark.parametrize(
    ("lost", "death"),
    [
        (PeerLost("the connection has ended"), True),
        (NotReached("no connection within 1 s"), False),
        (Busy("the outbox is full"), False),
        (Failed(request_id="r", attempt=0, reason="engine", message="", retryable=True), True),
        (Failed(request_id="r", attempt=0, reason="engine", message="", retryable=False), False),
        (Failed(request_id="r", attempt=0, reason="overloaded", message="", retryable=True), False),
    ],
)
def test_only_what_a_worker_may_have_run_counts_as_its_death(lost: MeshError | Failed, death: bool) -> None:
    assert is_death(lost) is death


class Heard:
    """An audience that keeps the text; or one that never reads."""

    def __init__(self, *, reads: bool = True) -> None:
        self.reads = reads
        self.text = ""

    async def show(self, choice: Choice, piece: Piece) -> None:
        if not self.reads:
            await asyncio.Event().wait()
        self.text += piece.text

    async def ended(self, choice: Choice, ending: Ending) -> None: ...


async def test_a_client_that_does_not_read_holds_up_no_other_after_a_death(mesh: FakeMesh) -> None:
    async def hangs(target: FakeTarget, message: Generate, out: StreamWriter) -> None:
        await asyncio.Event().wait()

    first = await mesh.start_target(hangs, "worker-1")
    await mesh.node.start("mem://streamer-1")
    peers = Peers(mesh.directory, mesh.node)
    stalled, reader = Heard(reads=False), Heard()
    deadline = asyncio.get_running_loop().time() + 60
    tasks = [
        asyncio.create_task(generate(choice_of(chat(), index), peers, audience, deadline))
        for index, audience in enumerate((stalled, reader))
    ]
    await until(lambda: first.running == 2)
    mesh.network.cut("mem://worker-1")
    await mesh.stop("worker-1")
    second = await mesh.start_target(says("hello"), "worker-2")
    await tasks[1]
    assert reader.text == "hello"
    assert [asked.request_id for asked in second.asked] == ["r-0", "r-1"], "the stalled one was sent first"
    tasks[0].cancel()


async def test_a_target_that_stays_overloaded_is_a_429(
    mesh: FakeMesh, http: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fails(target: FakeTarget, message: Generate, out: StreamWriter) -> None:
        await out.send(failed(message, "overloaded", retryable=True))

    monkeypatch.setattr("services.streamer.choice.peers.LONGEST_PAUSE", 0.001)
    await mesh.start_target(fails)
    await mesh.start_door()
    async with http.post(mesh.url + "/v1/completions", json=BODY) as response:
        assert response.status == 429
        assert int(response.headers["Retry-After"]) >= 1


async def test_targets_that_die_after_every_token_only_cost_time(mesh: FakeMesh, http: aiohttp.ClientSession) -> None:
    async def one_token(target: FakeTarget, message: Generate, out: StreamWriter) -> None:
        ids = ids_of(STORY)
        seq = len(message.token_ids) - message.prompt_tokens
        if seq == len(ids):
            await out.send(finished(message, len(ids)))
        else:
            await out.send(tokens(message, seq, [ids[seq]]))

    target = await mesh.start_target(one_token)
    await mesh.start_door()
    assert text_of(await story(http, mesh)) == STORY
    assert len(target.asked) > MAX_BARREN


async def test_overlapping_tokens_are_taken_once(mesh: FakeMesh, http: aiohttp.ClientSession) -> None:
    async def repeats(target: FakeTarget, message: Generate, out: StreamWriter) -> None:
        ids = ids_of(STORY)
        await out.send(tokens(message, 0, ids[:3]))
        await out.send(tokens(message, 0, ids[:3]))
        await out.send(tokens(message, 1, ids[1:5]))
        await out.send(tokens(message, 5, ids[5:]))
        await out.send(finished(message, len(ids)))

    await mesh.start_target(repeats)
    await mesh.start_door()
    chunks = await story(http, mesh, logprobs=0)
    assert text_of(chunks) == STORY
    parts = [chunk["choices"][0]["logprobs"] for chunk in chunks[:-1]]
    values = [each for part in parts if part for each in part["token_logprobs"]]
    assert values == [-each / 100 for each in ids_of(STORY)]


async def test_a_gap_is_never_shown(mesh: FakeMesh, http: aiohttp.ClientSession) -> None:
    async def skips(target: FakeTarget, message: Generate, out: StreamWriter) -> None:
        await out.send(tokens(message, 5, ids_of(STORY)[5:]))
        await out.send(finished(message, len(ids_of(STORY))))

    await mesh.start_target(breaks_after(3, skips))
    await mesh.start_door()
    assert text_of(await story(http, mesh)) == STORY


async def test_what_an_older_attempt_still_says_is_dropped(mesh: FakeMesh, http: aiohttp.ClientSession) -> None:
    async def confused(target: FakeTarget, message: Generate, out: StreamWriter) -> None:
        ghost = msgspec.structs.replace(message, attempt=message.attempt + 7)
        await out.send(tokens(ghost, 0, ids_of("ghost")))
        await out.send(finished(ghost, 5))
        await says(STORY)(target, message, out)

    await mesh.start_target(confused)
    await mesh.start_door()
    assert text_of(await story(http, mesh)) == STORY


async def test_a_target_lost_after_its_last_token_is_not_asked_for_more(
    mesh: FakeMesh, http: aiohttp.ClientSession
) -> None:
    async def simply_returns(target: FakeTarget, message: Generate, out: StreamWriter) -> None:
        return

    target = await mesh.start_target(breaks_after(3, simply_returns))
    await mesh.start_door()
    chunks = await story(http, mesh, max_tokens=3)
    assert chunks[-2]["choices"][0]["finish_reason"] == "length"
    assert len(target.asked) == 1


async def test_text_held_back_survives_the_change_of_target(mesh: FakeMesh, http: aiohttp.ClientSession) -> None:
    """Half a character and half a stop string were in hand when the first attempt broke off."""
    whole = list("a🦊STb".encode())

    async def half(target: FakeTarget, message: Generate, out: StreamWriter) -> None:
        if message.attempt == 0:
            await out.send(tokens(message, 0, whole[:3]))
        elif message.attempt == 1:
            await out.send(tokens(message, 3, whole[3:6]))
        else:
            await says(whole)(target, message, out)

    await mesh.start_target(half)
    await mesh.start_door()
    assert text_of(await story(http, mesh, stop=["STOP"])) == "a🦊STb"


@pytest.mark.parametrize("seed", range(3))
async def test_connections_that_break_change_no_text(mesh: FakeMesh, http: aiohttp.ClientSession, seed: int) -> None:
    """They break at any moment of a stream, for tokenizer and worker alike."""
    chance = random.Random(seed)
    ids = ids_of(STORY)

    async def hangs_at_first(target: FakeTarget, message: Generate, out: StreamWriter) -> None:
        if message.attempt > 1:
            await says(STORY)(target, message, out)
            return
        done = len(message.token_ids) - message.prompt_tokens
        await out.send(tokens(message, done, ids[done : done + 1 + chance.randrange(3)]))
        await asyncio.Event().wait()

    target = await mesh.start_target(hangs_at_first)
    await mesh.start_door()
    running = [asyncio.create_task(story(http, mesh)) for _ in range(8)]
    while not all(each.done() for each in running):
        # Each time with an attempt under way.
        await until(lambda: target.running > 0 or all(each.done() for each in running))
        for _ in range(chance.randrange(6)):
            await asyncio.sleep(0)
        for endpoint in ("mem://worker-1", "mem://tokenizer-1"):
            mesh.network.cut(endpoint)
            mesh.network.mend(endpoint)
    assert {text_of(chunks) for chunks in await asyncio.gather(*running)} == {STORY}
    assert len(target.asked) > 8, "some needed another attempt"


async def test_the_tokenizer_may_restart_too(mesh: FakeMesh, http: aiohttp.ClientSession) -> None:
    await mesh.start_target(says(STORY))
    await mesh.start_door()
    await mesh.stop("tokenizer-1")
    running = asyncio.create_task(story(http, mesh))
    await asyncio.sleep(0.05)
    await mesh.start_tokenizer()
    assert text_of(await running) == STORY
