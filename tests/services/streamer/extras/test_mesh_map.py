from __future__ import annotations

import asyncio
from typing import Any, ClassVar

import aiohttp
import msgspec
import pytest
from fake_mesh import FakeMesh, says, until
from mesh_doubles.clock import FakeClock

from mesh.actor import Actor, Call
from mesh.directory.membership import Member
from mesh.errors import Refuse
from services.api.messages import Dying, Kill, LinkCard, Look, Seen
from services.runtime.introspection import INTROSPECTION
from services.streamer.extras.mesh_map import (
    FRESH,
    KEEP_GONE,
    MOST_GONE,
    PATIENCE,
    STUCK_AFTER,
    MeshMap,
    figures_of,
    sources_of,
    state_of,
)


class FakeWindow(Actor):
    """Shows `seen`; while `shut`, nothing at all."""

    handlers: ClassVar = {Look: "look", Kill: "kill"}
    concurrency = 16

    def __init__(self, seen: Seen, *, demo: bool = True) -> None:
        self.seen = seen
        self.demo = demo
        self.looks = 0
        self.killed = 0
        self.open = asyncio.Event()
        self.open.set()

    async def look(self, message: Look, call: Call) -> Seen:
        self.looks += 1
        await self.open.wait()
        return self.seen

    async def kill(self, message: Kill, call: Call) -> Dying:
        if not self.demo:
            raise Refuse("no_demo", "not me")
        self.killed += 1
        return Dying(pid=77)


BUSY = Seen(
    figures={"running": 2, "waiting": 5, "kv_used": 0.25},
    totals={"tokens": 300, "steps": 100, "accepted": 180}
    | {"drafts:suffix": 9, "drafted:suffix": 40, "accepted:suffix": 30},
    earlier={"tokens": 100, "steps": 20, "accepted": 20}
    | {"drafts:suffix": 4, "drafted:suffix": 20, "accepted:suffix": 15},
    span=2.0,
)


async def shown(http: aiohttp.ClientSession, mesh: FakeMesh, **headers: str) -> dict[str, Any]:
    async with http.get(f"{mesh.url}/v1/mesh", headers=headers) as response:
        assert response.status == 200, await response.text()
        body: dict[str, Any] = await response.json()
        return body


def member_of(body: dict[str, Any], instance: str) -> dict[str, Any]:
    (found,) = [each for each in body["members"] if each["instance"] == instance]
    return dict(found)


async def with_windows(mesh: FakeMesh, **settings: Any) -> dict[str, FakeWindow]:
    """A target and a proposer with windows, a tokenizer without, and the door."""
    windows = await without_door(mesh)
    await mesh.start_door(**settings)
    return windows


async def mapped(mesh: FakeMesh, clock: FakeClock) -> tuple[dict[str, FakeWindow], MeshMap]:
    """The same without the door, and a map that nobody else reads."""
    windows = await without_door(mesh)
    await mesh.node.start("mem://streamer-1")
    return windows, MeshMap(mesh.directory, mesh.node, instance="streamer-1", stale_after=2.0, clock=clock)


async def without_door(mesh: FakeMesh) -> dict[str, FakeWindow]:
    await mesh.start_target(says("hello"))
    await mesh.start("proposer", "proposer-1", Actor())
    proposer = mesh.nodes["proposer-1"].endpoint
    link = LinkCard(endpoint=proposer, role="proposer", round_trip=0.0002)
    windows = {
        "worker-1": FakeWindow(msgspec.structs.replace(BUSY, links=[link])),
        "proposer-1": FakeWindow(Seen(figures={"store_tokens": 12})),
    }
    for name, window in windows.items():
        await mesh.nodes[name].spawn(window, INTROSPECTION)
    return windows


async def test_members_are_shown_with_their_figures_and_lines(mesh: FakeMesh, http: aiohttp.ClientSession) -> None:
    await with_windows(mesh)
    body = await shown(http, mesh)
    assert [each["instance"] for each in body["members"]] == ["proposer-1", "tokenizer-1", "worker-1"]
    target = member_of(body, "worker-1")
    assert (target["role"], target["state"], target["queue"], target["restarts"]) == ("worker", "ready", 5, 0)
    assert target["figures"]["tokens_per_s"] == 100.0
    assert target["figures"]["accepted_per_step"] == 2.0
    assert target["sources"][0]["name"] == "suffix"
    # A process without a window lives, and shows nothing.
    assert (member_of(body, "tokenizer-1")["state"], member_of(body, "tokenizer-1")["figures"]) == ("ready", {})
    lines = {(each["from"], each["to"]): each for each in body["links"]}
    assert set(lines) == {
        ("streamer-1", "proposer-1"), ("streamer-1", "worker-1"), ("streamer-1", "tokenizer-1"),
        ("worker-1", "proposer-1"),
    }  # fmt: skip
    assert lines["worker-1", "proposer-1"]["round_trip_ms"] == 0.2
    assert not body["demo"]


async def test_who_does_not_answer_is_shown_stuck_with_what_he_said_last(
    mesh: FakeMesh, http: aiohttp.ClientSession
) -> None:
    windows = await with_windows(mesh)
    await shown(http, mesh)
    windows["worker-1"].open.clear()
    async with asyncio.timeout(10):
        while member_of(body := await shown(http, mesh), "worker-1")["state"] != "stuck":
            pass
    target = member_of(body, "worker-1")
    assert target["queue"] == 5
    assert target["heard_ago_s"] > STUCK_AFTER
    assert {each["to"]: each["open"] for each in body["links"] if each["from"] == "streamer-1"}["worker-1"] is False
    assert member_of(body, "proposer-1")["state"] == "ready"
    windows["worker-1"].open.set()
    async with asyncio.timeout(10):
        while member_of(await shown(http, mesh), "worker-1")["state"] != "ready":
            pass


async def test_nobody_waits_longer_than_that_for_those_who_do_not_answer(mesh: FakeMesh) -> None:
    windows, view = await mapped(mesh, FakeClock())
    for window in windows.values():
        window.open.clear()
    waits: list[float] = []
    wait = asyncio.wait

    async def waited(tasks: Any, *, timeout: float) -> Any:
        waits.append(timeout)
        return await wait(tasks, timeout=timeout)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("services.streamer.extras.mesh_map.asyncio.wait", waited)
        await view.look()
    assert waits == [PATIENCE]


async def test_many_pages_cost_one_look(mesh: FakeMesh) -> None:
    windows, view = await mapped(mesh, clock := FakeClock())
    await asyncio.gather(*(view.look() for _ in range(20)))
    assert windows["worker-1"].looks == 1
    await clock.advance(FRESH)
    await asyncio.gather(*(view.look() for _ in range(20)))
    assert windows["worker-1"].looks == 2


async def test_a_reader_who_leaves_does_not_end_the_look_of_others(mesh: FakeMesh) -> None:
    windows, view = await mapped(mesh, FakeClock())
    windows["worker-1"].open.clear()
    leaving, staying = (asyncio.ensure_future(view.look()) for _ in range(2))
    await until(lambda: windows["worker-1"].looks == 1)
    leaving.cancel()
    windows["worker-1"].open.set()
    assert member_of(await staying, "worker-1")["queue"] == 5


async def test_who_leaves_is_gone_for_a_while_and_who_comes_back_has_restarted(mesh: FakeMesh) -> None:
    _, view = await mapped(mesh, clock := FakeClock())
    await view.look()
    await mesh.stop("proposer-1")
    await clock.advance(FRESH)
    body = await view.look()
    assert member_of(body, "proposer-1")["state"] == "gone"
    assert "proposer-1" not in {each["to"] for each in body["links"]}
    await mesh.start("proposer", "proposer-1", Actor())
    await clock.advance(FRESH)
    assert member_of(await view.look(), "proposer-1")["restarts"] == 1


async def test_gone_ones_are_forgotten(mesh: FakeMesh) -> None:
    clock = FakeClock()
    view = MeshMap(mesh.directory, mesh.node, instance="streamer-1", stale_after=2.0, clock=clock)
    for number in range(200):
        here = Member(role="worker", instance=f"t{number}", endpoint="mem://nobody", epoch=1, state="ready")
        mesh.directory.change(here)
        mesh.directory.members_ = []
        mesh.directory.change()
    assert len((await view.look())["members"]) == MOST_GONE
    await clock.advance(KEEP_GONE + 1.0)
    assert (await view.look())["members"] == []


async def test_the_kill_is_for_demos_alone(mesh: FakeMesh, http: aiohttp.ClientSession) -> None:
    windows = await with_windows(mesh)
    async with http.post(f"{mesh.url}/v1/mesh/kill", json={"role": "proposer"}) as response:
        assert response.status == 404
    assert windows["proposer-1"].killed == 0


async def test_in_a_demo_the_proposer_is_killed_and_nobody_else(mesh: FakeMesh, http: aiohttp.ClientSession) -> None:
    windows = await with_windows(mesh, demo=True)
    url = f"{mesh.url}/v1/mesh/kill"
    async with http.post(url, json={"role": "proposer"}) as response:
        assert response.status == 202
        assert await response.json() == {"role": "proposer", "instance": "proposer-1", "pid": 77}
    for role in ("worker", "streamer", None):
        async with http.post(url, json={"role": role}) as response:
            assert response.status == 400
    # A page of another origin can't say this without asking.
    async with http.post(url, data='{"role": "proposer"}', headers={"Content-Type": "text/plain"}) as response:
        assert response.status == 415
    assert (windows["proposer-1"].killed, windows["worker-1"].killed) == (1, 0)
    windows["proposer-1"].demo = False
    async with http.post(url, json={"role": "proposer"}) as response:
        assert response.status == 409
    await mesh.stop("proposer-1")
    async with http.post(url, json={"role": "proposer"}) as response:
        assert response.status == 503


async def test_keys_are_asked_for_and_several_callers_learn_nothing_of_each_others_drafts(
    mesh: FakeMesh, http: aiohttp.ClientSession
) -> None:
    await with_windows(mesh, api_keys="one,two")
    async with http.get(f"{mesh.url}/v1/mesh") as response:
        assert response.status == 401
    body = await shown(http, mesh, Authorization="Bearer one")
    assert member_of(body, "worker-1")["figures"] == {"running": 2, "waiting": 5}
    assert member_of(body, "worker-1")["sources"] == []
    assert member_of(body, "proposer-1")["figures"] == {}


async def test_one_key_is_one_caller(mesh: FakeMesh, http: aiohttp.ClientSession) -> None:
    await with_windows(mesh, api_keys="one")
    body = await shown(http, mesh, Authorization="Bearer one")
    assert member_of(body, "worker-1")["figures"]["tokens_per_s"] == 100.0


def member(**more: Any) -> Member:
    return Member(role="worker", instance="t", endpoint="mem://t", epoch=1, **more)


@pytest.mark.parametrize(
    ("given", "silence", "state"),
    [
        (member(state="ready"), 0.0, "ready"),
        (member(state="ready"), STUCK_AFTER + 0.01, "stuck"),
        (member(state="ready", progress_age=2.5), 0.0, "stuck"),
        (member(state="unready", reasons=["nobody to talk to"]), 0.0, "stuck"),
        (member(state="starting"), 9.0, "starting"),
        (member(state="draining"), 9.0, "draining"),
    ],
)
def test_states(given: Member, silence: float, state: str) -> None:
    assert state_of(given, silence, stale_after=2.0) == state


def test_figures_are_what_was_shown_and_how_fast_it_grew() -> None:
    assert figures_of(BUSY) == {
        "running": 2, "waiting": 5, "kv_used": 0.25, "tokens_per_s": 100.0, "steps_per_s": 40.0, "accepted_per_s": 80.0,
        "accepted_per_step": 2.0,
    }  # fmt: skip
    assert sources_of(BUSY) == [
        {"name": "suffix", "drafts": 9, "drafted": 40, "accepted": 30,
         "drafts_lately": 5, "drafted_lately": 20, "accepted_lately": 15}
    ]  # fmt: skip


def test_where_nobody_looked_before_nothing_is_said_of_speed() -> None:
    assert figures_of(Seen(figures={"running": 1}, totals={"tokens": 5})) == {"running": 1}
    # A step that gave nothing yet is no division by zero.
    idle = Seen(totals={"steps": 5, "accepted": 3}, earlier={"steps": 5, "accepted": 3}, span=1.0)
    assert "accepted_per_step" not in figures_of(idle)
