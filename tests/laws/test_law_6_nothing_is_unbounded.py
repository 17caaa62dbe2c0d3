"""Law 6: nothing is unbounded: mailboxes, sockets, caches, n, prompts, bodies, headers, queues.

What a client can pile up, against a real mesh. Mailboxes, outboxes, credits and windows: tests/mesh/;
the proposer's memory: tests/services/proposer/test_sequences.py.
"""

from __future__ import annotations

import asyncio
import json
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "flow"))

from running_mesh import RunningMesh, running_mesh
from sse_client import body, complete

SMALL = {
    "engine": "mock",
    "mock_profile": '{"step_ms": 20, "max_context": 2048}',
    "max_waiting": 8,
    "max_body_bytes": 65536,
    "max_choices": 4,
    "max_stop_strings": 4,
    "max_messages": 16,
    "body_timeout": 1.0,
}


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningMesh]:
    with running_mesh(tmp_path_factory.mktemp("mesh"), **SMALL) as running:
        yield running


async def answer_to(
    mesh: RunningMesh, payload: Any, path: str = "/v1/completions", **more: Any
) -> tuple[int, dict[str, Any]]:
    data = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
    async with (
        aiohttp.ClientSession() as session,
        session.post(mesh.url + path, data=data, headers={"Content-Type": "application/json", **more}) as response,
    ):
        return response.status, await response.json(content_type=None)


TURN = {"role": "user", "content": "x"}


@pytest.mark.parametrize(
    ("status", "param", "request_body"),
    [
        (400, "n", body("x", n=5)),
        (400, "stop", body("x", stop=["a", "b", "c", "d", "e"])),
        (400, "stop", body("x", stop="s" * 10000)),
        (400, "max_tokens", body("x", max_tokens=10**9)),
        (400, "logit_bias", body("x", logit_bias={str(k): 1 for k in range(5000)})),
        (400, "prompt", body("word " * 4000)),
        (400, "prompt", body(["x"] * 1000)),
        (400, "stop_token_ids", body("x", stop_token_ids=list(range(2000)))),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_a_value_beyond_its_limit_is_refused_by_name(
    mesh: RunningMesh, status: int, param: str, request_body: Any
) -> None:
    found, answer = await answer_to(mesh, request_body)
    assert (found, answer["error"]["param"]) == (status, param), answer


async def test_too_many_messages_are_refused(mesh: RunningMesh) -> None:
    chat = {"model": body("x")["model"], "messages": [TURN] * 17}
    found, answer = await answer_to(mesh, chat, "/v1/chat/completions")
    assert (found, answer["error"]["param"]) == (400, "messages")


async def test_a_body_beyond_the_limit_is_413_and_a_deep_one_400(mesh: RunningMesh) -> None:
    assert (await answer_to(mesh, body("y" * 70000)))[0] == 413
    assert (await answer_to(mesh, b"[" * 30000 + b"]" * 30000))[0] == 400


async def test_endless_headers_are_cut_off(mesh: RunningMesh) -> None:
    with socket.create_connection(("127.0.0.1", mesh.port), timeout=10) as client:
        client.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n")
        sent = 0
        try:
            while sent < 1 << 20:
                sent += client.send(b"X-Pad: " + b"p" * 4000 + b"\r\n")
            answer = client.recv(1000)
        except ConnectionError:
            answer = b""
    assert sent < 1 << 20 or answer == b"" or answer.split()[1] in (b"400", b"431")


def test_a_client_that_never_finishes_its_headers_is_cut_off(mesh: RunningMesh) -> None:
    with socket.create_connection(("127.0.0.1", mesh.port), timeout=10) as client:
        client.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n")
        # Closed by the server, with or without a 408 before; a time-out here would be an endless connection.
        while client.recv(1000):
            pass


async def test_more_requests_than_may_wait_are_answered_429_and_the_others_served(mesh: RunningMesh) -> None:
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        asked = [complete(session, mesh.url, body(f"q{k}", max_tokens=30, ignore_eos=True)) for k in range(24)]
        answers = await asyncio.gather(*asked)
    served = [a for a in answers if a.completed]
    refused = [a for a in answers if a.status == 429]
    assert len(served) + len(refused) == 24 and len(served) >= 8 and refused
    async with aiohttp.ClientSession() as session:
        assert (await complete(session, mesh.url, body("after", max_tokens=3, ignore_eos=True))).completed
