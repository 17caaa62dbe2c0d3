"""`specmesh status` against a server that is well, that lacks parts, and that isn't there."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from mesh_seen import BODY, member

from services.cli.chat import Conversation
from services.cli.main import main
from services.cli.status import ask, screen
from services.cli.top_view import Body

MESH = {
    **BODY,
    "model": "tiny",
    "version": "1.2.3",
    "members": [member("worker", load=7, queue=3, restarts=2, serves="tiny@x"), member("streamer", load=9)],
}
REFUSED = member(
    "worker", instance="worker-2", state="stuck",
    reasons=["refused: it serves other@y, but worker-1 serves tiny@x"], serves="other@y",
)  # fmt: skip


class Server:
    def __init__(self) -> None:
        self.mesh: Any = MESH
        self.health: dict[str, Any] = {"status": "ready", "reasons": [], "degraded": []}
        self.url = ""

    async def start(self) -> web.AppRunner:
        async def mesh(request: web.Request) -> web.Response:
            return web.json_response(self.mesh)

        async def health(request: web.Request) -> web.Response:
            return web.json_response(self.health, status=200 if self.health["status"] != "unready" else 503)

        app = web.Application()
        app.router.add_get("/v1/mesh", mesh)
        app.router.add_get("/health/ready", health)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        return runner


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    made = Server()
    runner = await made.start()
    yield made
    await runner.cleanup()


def lines(found: Body, width: int = 120) -> list[str]:
    return [line.drawn(width, colours=False) for line in screen(found, width)]


async def test_a_mesh_that_is_well_is_a_line_and_a_table_in_the_order_of_a_request(server: Server) -> None:
    found = await ask(Conversation(server.url))
    assert found["ready"] and found["reasons"] == []
    said = lines(found)
    assert said[0] == f"{server.url}: serves requests (tiny, version 1.2.3)"
    assert [line.split()[0] for line in said[2:]] == ["ROLE", "streamer", "worker"]
    assert said[-1].split() == ["worker", "worker-1", "ready", "1m15s", "7", "3", "2", "4711", "tiny@x"]


async def test_a_refused_worker_is_named_with_the_reason(server: Server) -> None:
    server.mesh = {**MESH, "members": [*MESH["members"], REFUSED]}
    found = await ask(Conversation(server.url))
    assert found["members"][-1]["state"] == "refused"
    assert lines(found)[-1] == "worker-2 is refused: it serves other@y, but worker-1 serves tiny@x"


async def test_phases_are_shown_where_members_have_them(server: Server) -> None:
    assert not any("PHASE" in line for line in lines(await ask(Conversation(server.url))))
    server.mesh = {**MESH, "members": [member("worker", phase="decode")]}
    assert [line.split()[:3] for line in lines(await ask(Conversation(server.url)))[2:]] == [
        ["ROLE", "INSTANCE", "PHASE"],
        ["worker", "worker-1", "decode"],
    ]


async def test_a_mesh_without_workers_says_so_and_still_shows_the_rest(server: Server) -> None:
    server.health = {"status": "unready", "reasons": ["worker: none is there"], "degraded": ["proposer: none is there"]}
    server.mesh = {**MESH, "members": [member("streamer")]}
    found = await ask(Conversation(server.url))
    assert not found["ready"]
    said = lines(found)
    assert "doesn't serve requests" in said[0]
    assert said[1:3] == ["  worker: none is there", "  proposer: none is there"]
    assert any(line.startswith("streamer") for line in said)


async def test_one_that_only_lacks_proposers_serves(server: Server) -> None:
    server.health = {"status": "degraded", "reasons": [], "degraded": ["proposer: none is there"]}
    found = await ask(Conversation(server.url))
    assert found["ready"] and "more slowly" in lines(found)[0]


async def test_another_server_is_told_from_a_mesh(server: Server) -> None:
    found = await ask(Conversation(server.url + "/nothing"))
    assert not found["ready"] and "no specmesh server" in found["reasons"][0]


def test_a_server_that_is_down_is_exit_code_1_and_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["status", "--port", "9", "--run-dir", str(tmp_path)]) == 1
    said = capsys.readouterr().out
    assert "doesn't serve requests" in said and f"no mesh of `specmesh up` runs in {tmp_path}" in said


def test_an_up_that_runs_behind_a_closed_port_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with (tmp_path / "up.lock").open("w+") as file:
        file.write(str(os.getpid()))
        file.flush()
        fcntl.flock(file, fcntl.LOCK_EX)
        assert main(["status", "--json", "--port", "9", "--run-dir", str(tmp_path)]) == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["ready"], found["members"]) == (False, [])
    assert f"process {os.getpid()}" in found["reasons"][-1]
