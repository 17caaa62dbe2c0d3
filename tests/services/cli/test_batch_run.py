"""A batch against a server that answers, has no room, breaks off or is gone."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from services.cli.batch_lines import read_lines
from services.cli.batch_out import Ids, Out
from services.cli.batch_run import NAMED, Asking, Progress, ServerGone, run, without_met
from specmesh.connection import Connection
from specmesh.own_mesh import StartFailed

USED = {"usage": {"completion_tokens": 5}, "metrics": {"speculative_decoding": {"num_draft_tokens": 4}}}
Reply = tuple[int, dict[str, str], Any]


class Door:
    """A server that says what the test wants, by the prompt, and keeps what it was asked."""

    def __init__(self) -> None:
        self.replies: dict[str, list[Reply | None]] = {}
        self.asked: list[str] = []
        self.most = self._now = 0
        self.url = ""

    async def answer(self, http: web.Request) -> web.Response:
        prompt = (await http.json())["prompt"]
        self.asked.append(prompt)
        self._now += 1
        self.most = max(self.most, self._now)
        # Others that are under way get here, too.
        for _ in range(20):
            await asyncio.sleep(0)
        self._now -= 1
        left = self.replies.get(prompt)
        reply = left.pop(0) if left else (200, {}, {"text": f"of {prompt}", **USED})
        if reply is None:
            assert http.transport is not None
            http.transport.abort()
            return web.Response()
        status, headers, body = reply
        text = body if isinstance(body, str) else json.dumps(body)
        return web.Response(status=status, headers={"X-Request-Id": f"req-{prompt}", **headers}, text=text)


@pytest.fixture
async def door() -> AsyncIterator[Door]:
    door, app = Door(), web.Application()
    app.router.add_post("/v1/completions", door.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    door.url = site.name
    yield door
    await runner.cleanup()


def line(prompt: str, custom_id: str = "") -> str:
    asked = {"custom_id": custom_id or prompt, "method": "POST", "url": "/v1/completions", "body": {"prompt": prompt}}
    return json.dumps(asked) + "\n"


class Batch:
    """Of some text as IN, with the waits instead of waiting."""

    def __init__(self, folder: Path, url: str, check: Callable[[], None] = lambda: None, patience: float = 600) -> None:
        self.path = folder / "out.jsonl"
        self.said = io.StringIO()
        self.waits: list[float] = []
        self._url, self._check, self._patience = url, check, patience

    async def sleep(self, seconds: float) -> None:
        self.waits.append(seconds)

    async def run(self, text: str, width: int = 4) -> Progress:
        ids, connection = Ids(), Connection(self._url)
        out = Out(self.path, ids)
        progress = Progress(lambda: 1.0, self.said)
        lines = without_met(read_lines(io.BytesIO(text.encode())), ids, progress)
        asking = Asking(connection, self._check, self._patience, self.sleep)
        try:
            await connection.awaited(run(lines, asking, out, progress, width))
        finally:
            out.close()
            await asyncio.get_running_loop().run_in_executor(None, connection.close)
            progress.end()
        return progress

    def out(self) -> list[dict[str, Any]]:
        return [json.loads(each) for each in self.path.read_text().splitlines()]

    def by_id(self) -> dict[str, dict[str, Any]]:
        return {each["custom_id"]: each for each in self.out()}


async def test_every_line_has_its_answer_and_so_many_are_in_flight(door: Door, tmp_path: Path) -> None:
    names = [f"p{number}" for number in range(60)]
    batch = Batch(tmp_path, door.url)
    progress = await batch.run("".join(line(name, f"id-{name}") for name in names), width=7)
    assert sorted(each["custom_id"] for each in batch.out()) == sorted(f"id-{name}" for name in names)
    first = batch.by_id()["id-p0"]["response"]
    assert (first["status_code"], first["request_id"], first["body"]["text"]) == (200, "req-p0", "of p0")
    assert len({each["id"] for each in batch.out()}) == 60
    assert (progress.answers, progress.wrong, door.most) == (60, 0, 7)
    assert "60 answers" in batch.said.getvalue() and "0% of drafts accepted" in batch.said.getvalue()


async def test_a_second_run_asks_only_what_has_no_answer(door: Door, tmp_path: Path) -> None:
    batch = Batch(tmp_path, door.url)
    door.replies["b"] = [(400, {}, {"error": {"message": "no b today"}})]
    progress = await batch.run(line("a") + line("b") + "no json\n" + line("c"))
    assert (progress.answers, progress.wrong) == (2, 2)
    assert "line 2: 400 no b today" in batch.said.getvalue() and "line 3: no JSON" in batch.said.getvalue()
    assert len(batch.out()) == 4
    door.asked.clear()
    progress = await batch.run(line("a") + line("b") + line("d") + line("c"))
    assert sorted(door.asked) == ["b", "d"] and (progress.answers, progress.before, progress.wrong) == (2, 2, 0)
    assert sorted(batch.by_id()) == ["a", "b", "c", "d"] and len(batch.out()) == 4
    assert all(each["error"] is None and each["response"]["status_code"] == 200 for each in batch.out())


async def test_a_custom_id_is_answered_once(door: Door, tmp_path: Path) -> None:
    batch = Batch(tmp_path, door.url)
    text = line("x", "same") + line("y", "same").replace("POST", "GET") + line("y", "same") + line("z")
    await batch.run(text)
    assert sorted(door.asked) == ["x", "z"]
    wrong = {each["error"]["line"]: each["error"] for each in batch.out() if each["error"]}
    assert {number: each["code"] for number, each in wrong.items()} == {2: "invalid_method", 3: "duplicate_custom_id"}
    assert wrong[3]["message"] == "custom_id: line 1 has the same"
    await batch.run(text)
    assert sorted(door.asked) == ["x", "z"] and len(batch.out()) == 4, "and so it stays"


@pytest.mark.parametrize("status", [429, 503])
async def test_no_room_is_tried_again_when_the_server_says(door: Door, tmp_path: Path, status: int) -> None:
    busy: Reply = (status, {"Retry-After": "7"}, {"error": {"message": "no room"}})
    later: Reply = (status, {"Retry-After": "86400"}, {"error": {}})
    door.replies["a"] = [busy, later, (status, {}, {}), (status, {"Retry-After": "Fri, 31 Dec 1999 23:59:59 GMT"}, {})]
    batch = Batch(tmp_path, door.url)
    progress = await batch.run(line("a"))
    assert batch.by_id()["a"]["response"]["status_code"] == 200 and progress.wrong == 0
    assert batch.waits == [7, 60, 0.4, 0.8], "as it asks, at most a minute; else more and more"


async def test_what_the_server_calls_final_is_the_answer(door: Door, tmp_path: Path) -> None:
    door.replies["a"] = [(503, {"x-should-retry": "false"}, {"error": {"message": "this one kills workers"}})]
    batch = Batch(tmp_path, door.url)
    await batch.run(line("a"))
    assert door.asked == ["a"] and batch.by_id()["a"]["response"]["status_code"] == 503


async def test_no_room_for_too_long_is_the_answer_and_the_rest_goes_on(door: Door, tmp_path: Path) -> None:
    busy: Reply = (429, {"Retry-After": "60"}, {"error": {"message": "no room"}})
    door.replies["a"] = [busy]
    batch = Batch(tmp_path, door.url, patience=50)
    progress = await batch.run(line("a") + line("b"), width=1)
    assert [each["response"]["status_code"] for each in batch.out()] == [429, 200] and progress.wrong == 1


async def test_a_connection_that_breaks_is_tried_again(door: Door, tmp_path: Path) -> None:
    door.replies["a"] = [None, None]
    batch = Batch(tmp_path, door.url)
    await batch.run(line("a"))
    assert batch.by_id()["a"]["response"]["status_code"] == 200 and batch.waits == [0.1, 0.2]


async def test_a_server_that_is_gone_ends_the_batch_and_answers_stay(door: Door, tmp_path: Path) -> None:
    door.replies["b"] = [None]
    batch = Batch(tmp_path, door.url, patience=0.05)
    with pytest.raises(ServerGone, match="doesn't answer"):
        await batch.run(line("a") + line("b") + line("c"), width=1)
    assert list(batch.by_id()) == ["a"]


async def test_a_mesh_that_has_ended_ends_the_batch(door: Door, tmp_path: Path) -> None:
    def ended() -> None:
        raise StartFailed("the mesh has ended")

    door.replies["a"] = [None]
    with pytest.raises(StartFailed):
        await Batch(tmp_path, door.url, check=ended).run(line("a"))


async def test_a_full_disk_ends_the_batch(door: Door, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(out: Out, line: bytes) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Out, "write", full)
    with pytest.raises(OSError, match="No space left"):
        await Batch(tmp_path, door.url).run(line("a") + line("b"))


async def test_an_answer_that_is_no_json_is_kept_as_text(door: Door, tmp_path: Path) -> None:
    door.replies["a"] = [(502, {}, "<html>bad \x1b[31m gateway")]
    batch = Batch(tmp_path, door.url)
    await batch.run(line("a"))
    assert batch.by_id()["a"]["response"]["body"] == {"error": {"message": "<html>bad \x1b[31m gateway"}}
    assert "\x1b" not in batch.said.getvalue() and "line 1: 502 <html>" in batch.said.getvalue()


async def test_few_of_many_wrong_lines_are_named(door: Door, tmp_path: Path) -> None:
    batch = Batch(tmp_path, door.url)
    progress = await batch.run("no json\n" * 500 + line("a"))
    assert (progress.wrong, progress.answers, len(batch.out())) == (500, 1, 501)
    assert batch.said.getvalue().count("no JSON") == NAMED and "only in OUT" in batch.said.getvalue()
