"""The audit in a mesh: when a replay is sent, when it is cancelled, and what the streamer does about differences."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import msgspec
import pytest
from fake_mesh import MODEL, FakeMesh, FakeTarget, Script, failed, ids_of, says, tokens, until

from mesh.stream import StreamWriter
from services.api.messages import MOST_PRIORITY, Generate
from services.api.sampling_defaults import SamplingDefaults
from services.streamer.extras import replays

BODY = {"model": MODEL, "prompt": "hi", "max_tokens": 100, "temperature": 0}
STORY = "hello the quick fox"


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replays.Replays.__init__, "__defaults__", (0.01,))


def audited(mesh: FakeMesh, result: str, method: str = "ngram") -> float:
    labels = {"model_name": MODEL, "proposer": method, "result": result}
    return mesh.registry.get_sample_value("specmesh:audit_replays_total", labels) or 0.0


async def ask(http: aiohttp.ClientSession, mesh: FakeMesh, **more: Any) -> Any:
    body = {**BODY, "speculation": {"method": "ngram"}, **more}
    async with http.post(mesh.url + "/v1/completions", json=body) as response:
        assert response.status == 200, await response.text()
        return await response.json()


def is_replay(message: Generate) -> bool:
    return message.request_id.endswith("-audit")


def replayed_by(script: Script) -> Script:
    """Requests get the story; their replays go to `script`."""

    async def either(target: FakeTarget, message: Generate, out: StreamWriter) -> None:
        await (script if is_replay(message) else says(STORY, group=2))(target, message, out)

    return either


@pytest.fixture
async def door(mesh: FakeMesh) -> AsyncIterator[FakeMesh]:
    await mesh.start_door(audit_share=1.0, audit_threshold=2)
    yield mesh


async def test_a_request_with_drafts_is_sent_again_without_and_found_to_be_the_same(
    door: FakeMesh, http: aiohttp.ClientSession
) -> None:
    target = await door.start_target(says(STORY, group=2))
    assert audited(door, "same") == 0
    await ask(http, door, seed=5)
    await until(lambda: audited(door, "same") == 1)
    live, replay = target.asked
    assert replay.token_ids == live.token_ids == ids_of("hi")
    assert (live.speculation.method, replay.speculation.method) == ("ngram", "naive")
    assert (replay.priority, replay.sampling.seed) == (MOST_PRIORITY, 5)
    assert replay.cache_salt and replay.cache_salt != live.cache_salt
    assert door.door is not None and door.door._audit.compared_tokens == len(ids_of(STORY))
    # The counts of requests know nothing of it.
    ended = {"model_name": MODEL, "finished_reason": "stop"}
    assert door.registry.get_sample_value("specmesh:request_success_total", ended) == 1


async def test_a_replay_has_the_models_own_sampling_where_the_request_set_none(
    mesh: FakeMesh, http: aiohttp.ClientSession
) -> None:
    mesh.sampling = SamplingDefaults(temperature=0.6, top_p=0.9, top_k=20, min_p=0.1, repetition_penalty=1.2)
    await mesh.start_door(audit_share=1.0)
    target = await mesh.start_target(says(STORY, group=2))
    await ask(http, mesh, temperature=None, top_p=0.5)
    await until(lambda: audited(mesh, "same") == 1)
    assert len(target.asked) == 2
    for asked in target.asked:
        found = asked.sampling
        assert (found.temperature, found.top_p, found.top_k) == (0.6, 0.5, 20)
        assert (found.min_p, found.repetition_penalty) == (0.1, 1.2)


async def test_a_request_without_drafts_or_outside_the_share_is_not_sent_again(
    mesh: FakeMesh, http: aiohttp.ClientSession
) -> None:
    target = await mesh.start_target(says(STORY, group=2))
    door = await mesh.start_door(audit_share=0.0)
    await ask(http, mesh)
    assert door._audit.waiting == 0 and len(target.asked) == 1


async def test_a_live_request_cancels_the_replay_which_goes_on_behind_the_tokens_it_compared(
    door: FakeMesh, http: aiohttp.ClientSession
) -> None:
    said = asyncio.Event()

    async def two_tokens_then_silence(target: FakeTarget, message: Generate, out: StreamWriter) -> None:
        if len(message.token_ids) > message.prompt_tokens:
            return await says(STORY)(target, message, out)
        await out.send(tokens(message, 0, ids_of(STORY)[:2]))
        said.set()
        await asyncio.Event().wait()

    target = await door.start_target(replayed_by(two_tokens_then_silence))
    await ask(http, door)
    await said.wait()
    door_of = door.door
    assert door_of is not None
    await until(lambda: door_of._audit.compared_tokens == 2)
    await ask(http, door, speculation={"off": True}, max_tokens=1)
    await until(lambda: audited(door, "same") == 1)
    assert [name for name in target.cancelled if name.endswith("-audit")]
    first, again = [message for message in target.asked if is_replay(message)][:2]
    assert first.request_id == again.request_id and again.attempt == 2
    assert again.token_ids == [*first.token_ids, *ids_of(STORY)[:2]]


async def test_none_begins_while_a_request_runs_or_the_worker_has_other_work(
    door: FakeMesh, http: aiohttp.ClientSession
) -> None:
    target = await door.start_target(says(STORY, group=2))
    [member] = [each for each in door.directory.members_ if each.role == "worker"]
    door.directory.change(msgspec.structs.replace(member, load=3))
    await ask(http, door)
    streamer = door.door
    assert streamer is not None and streamer._audit.waiting == 1
    assert streamer._peers is not None and streamer._peers.idle_worker() is None
    door.directory.change(member)
    await until(lambda: audited(door, "same") == 1)
    assert len(target.asked) == 2


async def test_a_method_whose_answers_differ_is_switched_off_and_requests_are_sent_without_drafts(
    door: FakeMesh, http: aiohttp.ClientSession
) -> None:
    target = await door.start_target(replayed_by(says("another text", group=2)))
    off = {"model_name": MODEL, "proposer": "ngram"}
    for count in (1, 2):
        assert door.registry.get_sample_value("specmesh:proposer_switched_off", off) == 0
        await ask(http, door)
        await until(lambda count=count: audited(door, "different") == count)  # type: ignore[misc]
    assert door.registry.get_sample_value("specmesh:proposer_switched_off", off) == 1
    answer = await ask(http, door)
    assert answer["choices"][0]["text"] == STORY
    live = [message for message in target.asked if not is_replay(message)]
    assert [message.speculation.method for message in live] == ["ngram", "ngram", "naive"]


@pytest.mark.parametrize(("retryable", "results"), [(False, (1, 0)), (True, (0, 1))])
async def test_a_replay_that_the_worker_refuses_is_given_up_or_tried_again(
    door: FakeMesh, http: aiohttp.ClientSession, retryable: bool, results: tuple[int, int]
) -> None:
    async def refuses_once(target: FakeTarget, message: Generate, out: StreamWriter) -> None:
        if message.attempt == 1:
            await out.send(failed(message, "engine", retryable=retryable))
        else:
            await says(STORY)(target, message, out)

    await door.start_target(replayed_by(refuses_once))
    await ask(http, door)
    await until(lambda: (audited(door, "given_up"), audited(door, "same")) == results)


async def test_a_replay_that_kills_the_worker_is_sent_twice(door: FakeMesh, http: aiohttp.ClientSession) -> None:
    async def kills(target: FakeTarget, message: Generate, out: StreamWriter) -> None:
        await out.send(failed(message, "engine", retryable=True))

    target = await door.start_target(replayed_by(kills))
    await ask(http, door)
    await until(lambda: audited(door, "given_up") == 1)
    assert len([message for message in target.asked if is_replay(message)]) == 2


async def test_a_draining_streamer_ends_its_replay_and_drops_what_waits(
    door: FakeMesh, http: aiohttp.ClientSession
) -> None:
    async def hangs(target: FakeTarget, message: Generate, out: StreamWriter) -> None:
        await asyncio.Event().wait()

    target = await door.start_target(replayed_by(hangs))
    await ask(http, door)
    await until(lambda: any(is_replay(message) for message in target.asked))
    assert door.door is not None
    await door.door.drain(1.0)
    await until(lambda: audited(door, "dropped") == 1)
    await until(lambda: target.running == 0)
