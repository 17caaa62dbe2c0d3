"""Reads an answer of the door as a client would, strictly: every line counts."""

from __future__ import annotations

from typing import Any

import aiohttp
import orjson


def events(body: bytes) -> list[Any]:
    """The events of a whole stream; "[DONE]" stays text."""
    blocks = body.split(b"\n\n")
    assert blocks.pop() == b"", "the last event must be closed"
    read: list[Any] = []
    for block in blocks:
        assert block.startswith(b"data: "), block
        data = block.removeprefix(b"data: ")
        assert b"\n" not in data
        read.append("[DONE]" if data == b"[DONE]" else orjson.loads(data))
    return read


async def streamed(http: aiohttp.ClientSession, url: str, body: dict[str, Any]) -> list[Any]:
    async with http.post(url, json={**body, "stream": True}) as response:
        assert response.status == 200, await response.text()
        assert response.content_type == "text/event-stream"
        return events(await response.read())


def text_of(chunks: list[Any], index: int = 0) -> str:
    """The text of one choice."""
    text = ""
    for chunk in chunks:
        for choice in [] if chunk == "[DONE]" or "choices" not in chunk else chunk["choices"]:
            if choice["index"] == index:
                text += choice["delta"].get("content", "") if "delta" in choice else choice["text"]
    return text
