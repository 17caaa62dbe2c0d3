"""`specmesh chat`: a conversation in the terminal, over the same HTTP door every client uses."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from services.config import Settings

HELP = "/reset starts anew, /quit or Ctrl-D ends, Ctrl-C stops an answer."
CONNECT_TIMEOUT = 5.0


class ChatError(Exception):
    """The server can't be reached or refuses; the text is for the user."""


@dataclass(slots=True)
class Conversation:
    """What has been said, and how to ask for more."""

    url: str
    model: str = ""
    api_key: str = ""
    options: dict[str, Any] = field(default_factory=dict)
    messages: list[dict[str, str]] = field(default_factory=list)
    usage: dict[str, Any] = field(default_factory=dict)

    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.api_key}"} if self.api_key else {}

    def body(self) -> dict[str, Any]:
        stream = {"stream": True, "stream_options": {"include_usage": True}}
        return {"model": self.model, "messages": self.messages, **stream, **self.options}


def main(options: argparse.Namespace, settings: Settings) -> int:
    conversation = _conversation(options, settings)
    prompt = _prompt(options.prompt)
    try:
        if not conversation.model:
            conversation.model = asyncio.run(first_model(conversation))
        if prompt is not None:
            return _answer(conversation, prompt, options.stats)
        return _talk(conversation, options.stats)
    except ChatError as error:
        print(f"specmesh: {error}", file=sys.stderr)
        return 1


def _conversation(options: argparse.Namespace, settings: Settings) -> Conversation:
    host = "127.0.0.1" if settings.host in ("0.0.0.0", "::") else settings.host
    asked = {"temperature": options.temperature, "max_tokens": options.max_tokens, "seed": options.seed}
    return Conversation(
        url=(options.url or f"http://{host}:{settings.port}").rstrip("/").removesuffix("/v1"),
        model=options.name or "",
        api_key=settings.api_keys.partition(",")[0].strip(),
        options={name: value for name, value in asked.items() if value is not None},
        messages=[{"role": "system", "content": options.system}] if options.system else [],
    )


def _prompt(given: str | None) -> str | None:
    """The one thing to answer; None for a conversation."""
    if given == "-" or (given is None and not sys.stdin.isatty()):
        return sys.stdin.read().strip()
    return given


def _talk(conversation: Conversation, stats: bool) -> int:
    print(f"{conversation.model} at {conversation.url}. {HELP}")
    beginning = list(conversation.messages)
    while True:
        try:
            said = input("\n> ").strip()
        except (EOFError, KeyboardInterrupt):
            print()
            return 0
        if said in ("/quit", "/exit"):
            return 0
        if said == "/reset":
            conversation.messages = list(beginning)
        elif said.startswith("/"):
            print(HELP)
        elif said:
            try:
                _answer(conversation, said, stats)
            except ChatError as error:
                print(f"specmesh: {error}", file=sys.stderr)


def _answer(conversation: Conversation, prompt: str, stats: bool) -> int:
    before = list(conversation.messages)
    conversation.messages.append({"role": "user", "content": prompt})
    pieces: list[str] = []
    started = time.monotonic()
    try:
        asyncio.run(_print_answer(conversation, pieces))
    except KeyboardInterrupt:
        # What was said so far stands. Leaving the connection cancels the rest at the server.
        print(" …")
    except ChatError:
        # The server may be back for the next try; what wasn't answered isn't part of the conversation.
        conversation.messages = before
        raise
    if pieces:
        conversation.messages.append({"role": "assistant", "content": "".join(pieces)})
    else:
        conversation.messages = before
    if stats:
        _print_stats(conversation, time.monotonic() - started)
    return 0


async def _print_answer(conversation: Conversation, pieces: list[str]) -> None:
    async for piece in answer(conversation):
        pieces.append(piece)
        print(piece, end="", flush=True)
    print()


def _print_stats(conversation: Conversation, seconds: float) -> None:
    tokens = conversation.usage.get("completion_tokens", 0)
    print(f"[{tokens} tokens, {seconds:.2f} s, {tokens / seconds:.1f} tokens/s]", file=sys.stderr)


# HTTP ---------------------------------------------------------------------------------------------------


async def first_model(conversation: Conversation) -> str:
    url = f"{conversation.url}/v1/models"
    async with _session(conversation) as session, _reached(conversation), session.get(url) as response:
        await _raise_for_error(response)
        models = (await response.json())["data"]
    if not models:
        raise ChatError(f"{conversation.url} serves no model")
    return str(models[0]["id"])


async def answer(conversation: Conversation) -> AsyncIterator[str]:
    """Pieces of text as they come; `usage` is set at the end."""
    conversation.usage = {}
    url = f"{conversation.url}/v1/chat/completions"
    body = conversation.body()
    async with _session(conversation) as session, _reached(conversation), session.post(url, json=body) as response:
        await _raise_for_error(response)
        async for line in response.content:
            event = line.decode("utf-8").strip().removeprefix("data:").strip()
            if event == "[DONE]":
                return
            if event.startswith("{"):
                chunk = json.loads(event)
                _raise_for_event(chunk)
                conversation.usage = chunk.get("usage") or conversation.usage
                for choice in chunk.get("choices", ()):
                    if text := choice.get("delta", {}).get("content"):
                        yield text
    raise ChatError("the answer was cut off: the server closed the stream before its end")


def _session(conversation: Conversation) -> aiohttp.ClientSession:
    # No total limit: an answer may take minutes, and Ctrl-C stops it.
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT)
    return aiohttp.ClientSession(headers=conversation.headers(), timeout=timeout, read_bufsize=1 << 20)


class _reached:
    """Network errors in words a user can act on."""

    def __init__(self, conversation: Conversation) -> None:
        self._url = conversation.url

    async def __aenter__(self) -> None:
        pass

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, aiohttp.InvalidURL):
            raise ChatError(f"{self._url} is not a URL") from None
        if isinstance(error, aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError):
            raise ChatError(f"nothing answers at {self._url}; start a server with `specmesh up`") from None
        if isinstance(error, aiohttp.ClientError):
            raise ChatError(f"the connection to {self._url} broke ({type(error).__name__})") from None


async def _raise_for_error(response: aiohttp.ClientResponse) -> None:
    if response.status < 400:
        return
    try:
        said = json.loads(await response.text())["error"]["message"]
    except (ValueError, KeyError, TypeError):
        said = response.reason
    hint = "; set api_keys (SPECMESH_API_KEYS)" if response.status == 401 else ""
    raise ChatError(f"the server answered {response.status}: {said}{hint}")


def _raise_for_event(chunk: dict[str, Any]) -> None:
    if "error" in chunk:
        error = chunk["error"]
        raise ChatError(str(error.get("message", error)) if isinstance(error, dict) else str(error))
