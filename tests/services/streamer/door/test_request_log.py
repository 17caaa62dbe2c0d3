from __future__ import annotations

import asyncio
import logging
from typing import Any

import aiohttp
import pytest
from fake_mesh import MODEL, FakeMesh, hangs_after, ids_of, says, until
from sse_reading import streamed

from services.runtime.log import FIELDS, JsonLines, TextLines
from services.streamer.door.request_log import open_record

TEXT = {"model": MODEL, "prompt": "a secret", "max_tokens": 5}
SAID = "hello the fox"


@pytest.fixture(autouse=True)
def at_info(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "specmesh.requests")


def lines(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    return [getattr(each, FIELDS) for each in caplog.records if each.name == "specmesh.requests"]


async def test_a_request_is_one_line_without_its_text(
    mesh: FakeMesh, http: aiohttp.ClientSession, caplog: pytest.LogCaptureFixture
) -> None:
    await mesh.start_target(says(SAID, group=2))
    await mesh.start_door()
    asked = {**TEXT, "n": 2, "speculation": {"method": "ngram"}}
    async with http.post(mesh.url + "/v1/completions", json=asked) as response:
        body = await response.json()
    (line,) = lines(caplog)
    assert line["id"] == body["id"] == response.headers["X-Request-Id"]
    assert (line["route"], line["status"], line["stream"]) == ("POST /v1/completions", 200, False)
    assert line["prompt_tokens"] == body["usage"]["prompt_tokens"]
    assert line["tokens"] == body["usage"]["completion_tokens"]
    spent = body["metrics"]["speculative_decoding"]
    assert (line["drafted"], line["accepted"]) == (spent["num_draft_tokens"], spent["num_accepted_draft_tokens"])
    assert line["drafted"] > line["accepted"] > 0
    assert 0 < line["ttft"] <= line["seconds"]
    assert line["method"] == "ngram" and "error" not in line and "answer" not in line
    assert not any(word in caplog.text for word in ("secret", *SAID.split()))


async def test_a_stream_is_logged_when_it_ends(
    mesh: FakeMesh, http: aiohttp.ClientSession, caplog: pytest.LogCaptureFixture
) -> None:
    await mesh.start_target(says(SAID))
    await mesh.start_door()
    await streamed(http, mesh.url + "/v1/completions", TEXT)
    await until(lambda: bool(lines(caplog)))
    (line,) = lines(caplog)
    assert (line["stream"], line["status"], line["tokens"]) == (True, 200, len(ids_of(SAID)) + 1)


async def test_a_client_names_its_request(
    mesh: FakeMesh, http: aiohttp.ClientSession, caplog: pytest.LogCaptureFixture
) -> None:
    target = await mesh.start_target(says(SAID))
    await mesh.start_door()
    for stream in (False, True, False):
        given = {"X-Request-Id": "trace/7:a@b"}
        async with http.post(mesh.url + "/v1/completions", json={**TEXT, "stream": stream}, headers=given) as response:
            assert response.headers["X-Request-Id"] == "trace/7:a@b"
            await response.read()
    await until(lambda: len(lines(caplog)) == 3)
    assert {line["id"] for line in lines(caplog)} == {"trace/7:a@b"}
    # Inside, ids are ours: two requests of one name must not be taken for one.
    assert len({line["answer"] for line in lines(caplog)}) == 3
    assert len({asked.request_id for asked in target.asked}) == 3


@pytest.mark.parametrize("bad", ["", "a b", "x" * 129, "é", "a\nb", "a\x1b[2J", '"', "a;b"])
def test_what_is_no_id_is_not_used(bad: str) -> None:
    record = open_record(bad, "GET", "/")
    assert not record.given and record.id.startswith("req-")
    assert open_record(None, "GET", "/").id != record.id


async def test_a_refusal_is_logged_with_its_code_and_a_probe_is_not(
    mesh: FakeMesh, http: aiohttp.ClientSession, caplog: pytest.LogCaptureFixture
) -> None:
    await mesh.start_door(api_keys="one")
    async with http.get(mesh.url + "/health/live") as response:
        assert response.headers["X-Request-Id"].startswith("req-")
    async with http.post(mesh.url + "/v1/completions", json=TEXT) as response:
        assert response.status == 401
    path = "/no%0Awhere%1b?key=secret"
    async with http.get(mesh.url + path) as response:
        assert response.status == 404
    first, second = lines(caplog)
    assert (first["status"], first["error"], first["route"]) == (401, "invalid_api_key", "POST /v1/completions")
    assert "tokens" not in first
    assert (second["status"], second["route"]) == (404, r"GET /no\nwhere\x1b")


async def test_a_client_that_leaves_is_logged_as_such(
    mesh: FakeMesh, http: aiohttp.ClientSession, caplog: pytest.LogCaptureFixture
) -> None:
    target = await mesh.start_target(hangs_after("hello"))
    await mesh.start_door()
    asking = asyncio.create_task(http.post(mesh.url + "/v1/completions", json=TEXT))
    await target.began.wait()
    asking.cancel()
    await until(lambda: bool(lines(caplog)))
    (line,) = lines(caplog)
    assert (line["status"], line["prompt_tokens"]) == (499, len(ids_of("a secret")))


@pytest.mark.parametrize("form", [TextLines("w"), JsonLines("w")])
def test_no_value_begins_a_line_of_its_own(form: logging.Formatter) -> None:
    record = logging.LogRecord("specmesh.requests", logging.INFO, "", 0, "request", (), None)
    setattr(record, FIELDS, {"route": "a\nb\x1b[31m\u2028" + "c" * 1000, "seconds": 0.5})
    line = form.format(record)
    assert line.isprintable() and len(line) < 500
