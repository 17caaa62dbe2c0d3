"""Several workers behind a streamer, and several streamers on a port."""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp
import pytest
from fake_mesh import MODEL, FakeMesh, FakeTarget, failed, ids_of, says, tokens, until
from sse_reading import streamed, text_of

from mesh.directory.membership import Member

WORDS = "hello the world"
SHARED = "one two three four five six seven eight nine ten "


async def ask(http: aiohttp.ClientSession, mesh: FakeMesh, prompt: str, **more: Any) -> str:
    body = {"model": MODEL, "prompt": prompt, "max_tokens": 20, **more}
    return text_of(await streamed(http, mesh.url + "/v1/completions", body))


async def two_workers(mesh: FakeMesh) -> list[FakeTarget]:
    targets = [await mesh.start_target(says(WORDS), f"worker-{number}") for number in (1, 2)]
    await mesh.start_door(page_tokens=8)
    return targets


def counts(targets: list[FakeTarget]) -> list[int]:
    return sorted(len(target.asked) for target in targets)


async def test_prompts_that_begin_alike_go_to_one_worker(mesh: FakeMesh, http: aiohttp.ClientSession) -> None:
    targets = await two_workers(mesh)
    for number in range(6):
        assert await ask(http, mesh, f"{SHARED}{number}") == WORDS
    assert counts(targets) == [0, 6]


async def test_a_session_stays_with_its_worker_whatever_its_prompts_are(
    mesh: FakeMesh, http: aiohttp.ClientSession
) -> None:
    targets = await two_workers(mesh)
    for number in range(6):
        await ask(http, mesh, f"{number} {SHARED}", prompt_cache_key="a session")
    assert counts(targets) == [0, 6]


async def test_short_prompts_go_to_the_workers_in_turn(mesh: FakeMesh, http: aiohttp.ClientSession) -> None:
    targets = await two_workers(mesh)
    for _ in range(6):
        await ask(http, mesh, "hi")
    assert counts(targets) == [3, 3]


async def test_a_prompt_that_is_popular_does_not_fill_one_worker_while_the_other_is_idle(
    mesh: FakeMesh, http: aiohttp.ClientSession
) -> None:
    async def waits(target: FakeTarget, message: Any, out: Any) -> None:
        await open_.wait()
        await says(WORDS)(target, message, out)

    open_ = asyncio.Event()
    targets = [await mesh.start_target(waits, f"worker-{number}") for number in (1, 2)]
    await mesh.start_door(page_tokens=8)
    running = [asyncio.create_task(ask(http, mesh, f"{SHARED}{number}")) for number in range(8)]
    await until(lambda: sum(counts(targets)) == 8)
    assert max(counts(targets)) <= 5
    open_.set()
    assert await asyncio.gather(*running) == [WORDS] * 8


async def test_a_worker_that_is_not_ready_gets_nothing(mesh: FakeMesh, http: aiohttp.ClientSession) -> None:
    targets = await two_workers(mesh)
    node = mesh.nodes["worker-2"]
    mesh.directory.change(Member("worker", "worker-2", node.endpoint, node.epoch, "draining"))
    for number in range(4):
        await ask(http, mesh, f"{number} {SHARED}")
    assert [len(target.asked) for target in targets] == [4, 0]


async def test_streamers_share_a_port_and_one_that_drains_leaves_new_connections_to_the_others(
    mesh: FakeMesh, http: aiohttp.ClientSession
) -> None:
    await mesh.start_target(says(WORDS))
    first = await mesh.start_door(streamers=2)
    other = FakeMesh()
    try:
        await other.start_tokenizer()
        await other.start_target(says(WORDS))
        second = await other.start_door(streamers=2, port=first.port)
        assert second.port == first.port
        await first.drain(1.0)
        for _ in range(5):
            async with aiohttp.ClientSession() as fresh:
                assert await ask(fresh, mesh, "hi") == WORDS
    finally:
        await other.close()


async def test_a_streamer_that_is_alone_shares_its_port_with_nobody(mesh: FakeMesh) -> None:
    door = await mesh.start_door()
    other = FakeMesh()
    try:
        with pytest.raises(OSError, match="address already in use"):
            await other.start_door(port=door.port)
    finally:
        await other.close()


async def test_a_new_request_goes_to_the_healthy_worker_while_a_suspect_is_tried_at_another(
    mesh: FakeMesh, http: aiohttp.ClientSession
) -> None:
    """The suspect is on trial at the least loaded worker, for as long as that says nothing."""

    async def hangs(target: FakeTarget, message: Any, out: Any) -> None:
        await asyncio.Event().wait()

    first = await mesh.start_target(hangs, "worker-1")
    await mesh.start_door(page_tokens=8)
    suspect = asyncio.create_task(ask(http, mesh, "a suspect"))
    await until(lambda: first.running == 1)
    mesh.network.cut("mem://worker-1")
    await mesh.stop("worker-1")
    court = await mesh.start_target(hangs, "worker-2")
    await until(lambda: court.running == 1)
    healthy = await mesh.start_target(says(WORDS), "worker-3")
    assert [await ask(http, mesh, "new") for _ in range(4)] == [WORDS] * 4
    assert (len(court.asked), len(healthy.asked)) == (1, 4)
    suspect.cancel()


async def test_a_request_beyond_the_retry_budget_ends_with_an_error_and_a_time_to_come_back(
    mesh: FakeMesh, http: aiohttp.ClientSession
) -> None:
    async def refuses(target: FakeTarget, message: Any, out: Any) -> None:
        await out.send(failed(message, "overloaded", retryable=True))

    target = await mesh.start_target(refuses)
    await mesh.start_door(max_waiting=8)
    body = {"model": MODEL, "prompt": "hi", "max_tokens": 4}
    async with http.post(mesh.url + "/v1/completions", json=body) as response:
        assert (response.status, response.headers["Retry-After"]) == (503, "5")
        assert (await response.json())["error"]["code"] == "too_many_retries"
    # A quarter of max_waiting, and a fifth of one request.
    assert len(target.asked) == 1 + 2
    value = mesh.registry.get_sample_value("specmesh:request_retries_refused_total", {"model_name": MODEL})
    assert value == 1


async def test_a_request_that_has_tokens_goes_on_beyond_the_retry_budget(
    mesh: FakeMesh, http: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def breaks_off(target: FakeTarget, message: Any, out: Any) -> None:
        if message.attempt < 5:
            await hangs_up(target, message, out)
        else:
            await says(WORDS)(target, message, out)

    async def hangs_up(target: FakeTarget, message: Any, out: Any) -> None:
        if message.attempt == 0:
            await out.send(tokens(message, 0, ids_of(WORDS)[:1]))

    monkeypatch.setattr("services.streamer.choice.peers.LONGEST_PAUSE", 0.001)
    target = await mesh.start_target(breaks_off)
    await mesh.start_door(max_waiting=8)
    assert await ask(http, mesh, "hi") == WORDS
    assert len(target.asked) == 6


async def test_workers_hear_which_key_a_request_is_of_and_nothing_of_the_key_itself(
    mesh: FakeMesh, http: aiohttp.ClientSession
) -> None:
    target = await mesh.start_target(says(WORDS))
    await mesh.start_door(api_keys="secret-a,secret-b")
    for key in ("secret-a", "secret-b", "secret-a"):
        headers = {"Authorization": f"Bearer {key}"}
        body = {"model": MODEL, "prompt": "hi", "max_tokens": 4}
        async with http.post(mesh.url + "/v1/completions", json=body, headers=headers) as response:
            assert response.status == 200
    first, second, again = (message.caller for message in target.asked)
    assert first == again != second and first and "secret" not in first + second


async def test_requests_to_a_server_without_keys_are_of_one_caller(mesh: FakeMesh, http: aiohttp.ClientSession) -> None:
    target = await mesh.start_target(says(WORDS))
    await mesh.start_door()
    await ask(http, mesh, "hi")
    assert target.asked[0].caller == ""


async def phased(mesh: FakeMesh, **phases: str) -> dict[str, FakeTarget]:
    found = {name: await mesh.start_target(says(WORDS), name, phase) for name, phase in phases.items()}
    await mesh.start_door(page_tokens=8)
    return found


async def test_a_request_goes_to_a_decode_worker_with_the_name_of_a_prefill_worker(
    mesh: FakeMesh, http: aiohttp.ClientSession
) -> None:
    targets = await phased(mesh, p1="prefill", p2="prefill", d1="decode", d2="decode")
    for number in range(4):
        assert await ask(http, mesh, f"{SHARED}{number}") == WORDS
    await ask(http, mesh, "hi")
    assert targets["p1"].asked == targets["p2"].asked == []
    asked = targets["d1"].asked + targets["d2"].asked
    lenders = [each.pages_from for each in asked if len(each.token_ids) > 8]
    assert len(lenders) == 4 and len({*lenders}) == 1 and lenders[0] in ("p1", "p2")
    assert [each.pages_from for each in asked if len(each.token_ids) <= 8] == [""], "nothing shorter than a page"


async def test_without_a_decode_worker_prefill_workers_answer(mesh: FakeMesh, http: aiohttp.ClientSession) -> None:
    targets = await phased(mesh, p1="prefill")
    assert await ask(http, mesh, f"{SHARED}") == WORDS
    assert [each.pages_from for each in targets["p1"].asked] == [""]


async def test_prompts_are_shared_out_among_prefill_workers(mesh: FakeMesh, http: aiohttp.ClientSession) -> None:
    """A prefill worker counts as busy until the first token."""

    async def waits(target: FakeTarget, message: Any, out: Any) -> None:
        await open_.wait()
        await says(WORDS)(target, message, out)

    open_ = asyncio.Event()
    targets = await phased(mesh, p1="prefill", p2="prefill", d1="decode")
    targets["d1"].script = waits
    running = [asyncio.create_task(ask(http, mesh, f"{SHARED}{number}")) for number in range(8)]
    await until(lambda: len(targets["d1"].asked) == 8)
    lenders = [each.pages_from for each in targets["d1"].asked]
    # At most 1.25 times the mean (routing.py).
    assert sorted(map(lenders.count, ("p1", "p2"))) in ([3, 5], [4, 4])
    open_.set()
    assert await asyncio.gather(*running) == [WORDS] * 8


async def test_a_prompt_whose_worker_died_is_computed_where_it_goes_on(
    mesh: FakeMesh, http: aiohttp.ClientSession
) -> None:
    async def fails_once(target: FakeTarget, message: Any, out: Any) -> None:
        if message.attempt == 0:
            await out.send(failed(message, "engine", retryable=True))
        else:
            await says(WORDS)(target, message, out)

    targets = await phased(mesh, p1="prefill", d1="decode")
    targets["d1"].script = fails_once
    assert await ask(http, mesh, SHARED) == WORDS
    assert [each.pages_from for each in targets["d1"].asked] == ["p1", ""]


async def test_without_phases_the_worker_that_has_the_pages_is_named_where_it_has_no_room(
    mesh: FakeMesh, http: aiohttp.ClientSession
) -> None:
    async def waits(target: FakeTarget, message: Any, out: Any) -> None:
        await open_.wait()
        await says(WORDS)(target, message, out)

    open_ = asyncio.Event()
    targets = {name: await mesh.start_target(waits, name) for name in ("worker-1", "worker-2")}
    await mesh.start_door(page_tokens=8)
    running = [asyncio.create_task(ask(http, mesh, f"{SHARED}{number}")) for number in range(8)]
    await until(lambda: sum(len(each.asked) for each in targets.values()) == 8)
    named = {name: {message.pages_from for message in each.asked} for name, each in targets.items()}
    assert named in ({"worker-1": {""}, "worker-2": {"worker-1"}}, {"worker-2": {""}, "worker-1": {"worker-2"}})
    open_.set()
    assert await asyncio.gather(*running) == [WORDS] * 8
