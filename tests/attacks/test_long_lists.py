"""Bodies of 4 MB that are cheap to send and would keep the event loop busy for up to a second."""

from __future__ import annotations

from collections.abc import Callable

import aiohttp
import orjson
import pytest
from fake_mesh import FakeMesh, says

from services.api.settings import ROWS

LIMIT = ROWS["max_body_bytes"].default


def filled(before: bytes, item: bytes, after: bytes) -> bytes:
    """As many items as fit into a body."""
    count = (LIMIT - len(before) - len(after)) // (len(item) + 1)
    return before + b",".join([item] * count) + after


CHAT, TEXT, IDS = "/v1/chat/completions", "/v1/completions", "/detokenize"
BODIES: dict[str, Callable[[], tuple[str, bytes, str]]] = {
    "two million token ids": lambda: (
        TEXT, filled(b'{"model":"tiny","prompt":[', b"1", b"]}"), "array_above_max_length",
    ),
    "two million token ids to decode": lambda: (IDS, filled(b'{"tokens":[', b"1", b"]}"), "array_above_max_length"),
    "parts": lambda: (
        CHAT,
        filled(
            b'{"model":"tiny","messages":[{"role":"user","content":[', b'{"type":"text","text":""}', b"]}]}"
        ),
        "too_many_items",
    ),
    "empty lists": lambda: (TEXT, filled(b'{"model":"tiny","prompt":[', b"[]", b"]}"), "too_many_items"),
    "nested objects": lambda: (TEXT, filled(b'{"a":[', b'{"a":[{"b":[]}]}', b"]}"), "too_many_items"),
    "fields": lambda: (TEXT, filled(b"{", b'"a":1', b"}"), "too_many_items"),
}  # fmt: skip


@pytest.mark.parametrize("name", BODIES)
async def test_lists_beyond_their_limit_are_refused_before_their_items_are_looked_at(name: str) -> None:
    path, body, code = BODIES[name]()
    mesh = FakeMesh()
    try:
        await mesh.start_tokenizer()
        await mesh.start_target(says("hello"))
        await mesh.start_door()
        async with (
            aiohttp.ClientSession() as http,
            http.post(mesh.url + path, data=body, headers={"Content-Type": "application/json"}) as response,
        ):
            answer = orjson.loads(await response.read())
        assert (response.status, answer["error"]["code"]) == (400, code)
    finally:
        await mesh.close()
