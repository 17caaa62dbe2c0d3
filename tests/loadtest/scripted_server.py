"""A small server whose answers are scripted by the test: chunks, errors, silence, resets, garbage."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web
from aiohttp.test_utils import TestServer

Script = Callable[[web.Request, dict[str, Any], web.StreamResponse], Awaitable[None]]


def chunk(text: str | None = None, *, finish: str | None = None, index: int = 0, **more: Any) -> bytes:
    delta = {} if text is None else {"content": text}
    return event({"choices": [{"index": index, "delta": delta, "finish_reason": finish}], **more})


def event(fields: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(fields).encode() + b"\n\n"


def usage(completion: int, prompt: int = 7, **more: Any) -> bytes:
    counted = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
    return event({"choices": [], "usage": counted, **more})


DONE = b"data: [DONE]\n\n"


def answer(tokens: int, **last: Any) -> list[bytes]:
    """A whole stream: role, one chunk a token, finish, usage, [DONE]."""
    words = [chunk(f"w{number} ") for number in range(tokens)]
    return [chunk(""), *words, chunk(finish="length"), usage(tokens, **last), DONE]


class ScriptedServer:
    """`script` writes the body of a stream; `asked` holds the bodies received, `left` is set by a hang-up."""

    def __init__(self) -> None:
        self.script: Script = self.whole_answer
        self.asked: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.at_once = self.most_at_once = 0
        self.left = asyncio.Event()
        self.connections: set[Any] = set()
        self.page = "specmesh:generation_tokens_total 0\n"
        app = web.Application()
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_post("/v1/chat/completions", self._completion)
        app.router.add_post("/v1/completions", self._completion)
        self._server = TestServer(app)

    async def start(self) -> None:
        await self._server.start_server()

    async def stop(self) -> None:
        await self._server.close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.port}"

    async def whole_answer(self, request: web.Request, body: dict[str, Any], out: web.StreamResponse) -> None:
        for piece in answer(body["max_tokens"]):
            await out.write(piece)

    async def _models(self, request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": "scripted", "object": "model"}]})

    async def _metrics(self, request: web.Request) -> web.Response:
        return web.Response(text=self.page)

    async def _completion(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.asked.append({"path": request.path, **body})
        self.headers.append(dict(request.headers))
        self.connections.add(request.transport)
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        out = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        try:
            await out.prepare(request)
            await self.script(request, body, out)
        except (asyncio.CancelledError, ConnectionError):
            self.left.set()
            raise
        except web.HTTPException as refusal:
            return refusal
        finally:
            self.at_once -= 1
        return out
