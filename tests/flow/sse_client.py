"""A plain client for tests: sends a completion, collects what came, as any HTTP client would see it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import aiohttp

Told = TypeVar("Told")


@dataclass
class Answer:
    status: int = 0
    text: str = ""
    chunks: int = 0
    finish_reason: str | None = None
    usage: dict[str, Any] | None = None
    speculation: dict[str, Any] | None = None
    error: dict[str, Any] | None = None
    done: bool = False
    ends: int = 0  # how many times a finish_reason or an error was seen: law 1 wants one
    logprobs: list[float] = field(default_factory=list)

    @property
    def completed(self) -> bool:
        return self.status == 200 and self.done and self.error is None and self.finish_reason is not None


MODEL = "smollm2-135m-instruct"


def body(prompt: str | list[int], **more: Any) -> dict[str, Any]:
    return {
        "model": MODEL,
        "prompt": prompt,
        "stream": True,
        "stream_options": {"include_usage": True},
        "temperature": 0,
        **more,
    }


async def complete(
    session: aiohttp.ClientSession,
    url: str,
    request: dict[str, Any],
    on_chunk: Any = None,
    path: str = "/v1/completions",
) -> Answer:
    answer = Answer()
    async with session.post(url + path, json=request) as response:
        answer.status = response.status
        if response.status != 200:
            answer.error = (await response.json())["error"]
            answer.ends += 1
            return answer
        async for event in events(response):
            _take(answer, event)
            if on_chunk is not None:
                on_chunk(answer)
    return answer


async def events(response: aiohttp.ClientResponse) -> AsyncIterator[dict[str, Any] | None]:
    """What a stream says, event by event; None for its last word."""
    async for raw in response.content:
        line = raw.strip()
        if line.startswith(b"data: "):
            yield None if line[6:] == b"[DONE]" else json.loads(line[6:])


def _take(answer: Answer, event: dict[str, Any] | None) -> None:
    if event is None:
        answer.done = True
        return
    if "error" in event:
        answer.error = event["error"]
        answer.ends += 1
        return
    if event.get("usage"):
        answer.usage = event["usage"]
    if event.get("metrics"):
        answer.speculation = event["metrics"].get("speculative_decoding")
    for choice in event["choices"]:
        piece = choice.get("text") or choice.get("delta", {}).get("content") or ""
        answer.text += piece
        answer.chunks += bool(piece)
        if choice.get("logprobs") and choice["logprobs"].get("token_logprobs"):
            answer.logprobs += choice["logprobs"]["token_logprobs"]
        if choice.get("finish_reason"):
            answer.finish_reason = choice["finish_reason"]
            answer.ends += 1


def all_told(
    tell: Callable[[aiohttp.ClientSession, str, dict[str, Any]], Awaitable[Told]],
    url: str,
    bodies: Sequence[dict[str, Any]],
    at_a_time: int,
    seconds: float = 900.0,
) -> list[Told]:
    """What `tell` makes of the answer to each body."""

    async def run() -> list[Told]:
        gate = asyncio.Semaphore(at_a_time)
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=seconds)) as session:

            async def one(body: dict[str, Any]) -> Told:
                async with gate:
                    return await tell(session, url, body)

            return await asyncio.gather(*map(one, bodies))

    return asyncio.run(run())
