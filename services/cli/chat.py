"""`specmesh chat`: a conversation in the terminal, over the same HTTP API that every client uses.

How drafts are marked: services/cli/chat_drafts.py.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import shutil
import ssl
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from typing import Any, TextIO

import aiohttp

from services.api.own_door import own_context, own_url
from services.api.settings import Settings
from services.cli.chat_drafts import SHOWN, DraftView, in_one_line, printable

HELP = (
    "/reset starts a new conversation, /quit or Ctrl-D ends, Ctrl-C stops an answer."
    " /drafts accepted, all or off: which draft tokens are marked."
)
CONNECT_TIMEOUT = 5.0
ANSWER_TIMEOUT = 2.0  # s, of a short question


class ChatError(Exception):
    """The server can't be reached or refuses; the message is for the user's terminal."""

    def __init__(self, message: str) -> None:
        super().__init__(printable(message))


@dataclass(slots=True)
class Conversation:
    """The messages so far, and the options of requests."""

    url: str
    model: str = ""
    api_key: str = ""
    options: dict[str, Any] = field(default_factory=dict)
    messages: list[dict[str, str]] = field(default_factory=list)
    usage: dict[str, Any] = field(default_factory=dict)
    # Of drafts: "": nothing is marked; "accepted": accepted draft tokens; "all": rejected ones, too.
    show: str = ""
    # Whom an https server is trusted by; None: whom this machine trusts.
    tls: ssl.SSLContext | None = None

    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.api_key}"} if self.api_key else {}

    def body(self) -> dict[str, Any]:
        stream = {"stream": True, "stream_options": {"include_usage": True}}
        drafts = {"return_drafts": True} if self.show else {}
        return {"model": self.model, "messages": self.messages, **stream, **drafts, **self.options}


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


def server_url(given: str | None, settings: Settings) -> str:
    """The server's URL, without a / at its end."""
    return (given or own_url(settings)).rstrip("/").removesuffix("/v1")


def server_of(given: str | None, settings: Settings) -> Conversation:
    """For a command that asks the server: the one of --url, or this machine's."""
    return Conversation(
        url=server_url(given, settings),
        api_key=settings.api_keys.partition(",")[0].strip(),
        tls=None if given else own_context(settings),
    )


def _conversation(options: argparse.Namespace, settings: Settings) -> Conversation:
    asked = {"temperature": options.temperature, "max_tokens": options.max_tokens, "seed": options.seed}
    drafting = {"speculation": {"method": options.method}} if options.method else {}
    return replace(
        server_of(options.url, settings),
        model=options.name or "",
        options={name: value for name, value in asked.items() if value is not None} | drafting,
        messages=[{"role": "system", "content": options.system}] if options.system else [],
        show=options.show_draft or "",
    )


def _prompt(given: str | None) -> str | None:
    """The single prompt to answer; None for a conversation."""
    if given == "-" or (given is None and not sys.stdin.isatty()):
        return sys.stdin.read().strip()
    return given


def _talk(conversation: Conversation, stats: bool) -> int:
    print(f"{in_one_line(conversation.model)} at {conversation.url}. {HELP}")
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
        elif said.split()[:1] == ["/drafts"]:
            _show_drafts(conversation, said.removeprefix("/drafts").strip())
        elif said.startswith("/"):
            print(HELP)
        elif said:
            try:
                _answer(conversation, said, stats)
            except ChatError as error:
                print(f"specmesh: {error}", file=sys.stderr)


def _show_drafts(conversation: Conversation, wanted: str) -> None:
    if wanted in (*SHOWN, "off", ""):
        conversation.show = "" if wanted == "off" else wanted or SHOWN[0]
        print("draft tokens are " + (f"marked: {conversation.show}" if conversation.show else "not marked"))
    else:
        print(HELP)


def _answer(conversation: Conversation, prompt: str, stats: bool) -> int:
    before = list(conversation.messages)
    conversation.messages.append({"role": "user", "content": prompt})
    pieces: list[str] = []
    view = DraftView(colours(sys.stdout), rejected=conversation.show == "all") if conversation.show else None
    shown = ShownAnswer(view)
    try:
        asyncio.run(_print_answer(conversation, pieces, shown))
    except KeyboardInterrupt:
        # The answer so far is kept. Closing the connection cancels the rest at the server.
        print((view.close() if view is not None else "") + " …")
    except ChatError:
        # The server may be back for the next try; what wasn't answered isn't part of the conversation.
        conversation.messages = before
        raise
    if pieces:
        conversation.messages.append({"role": "assistant", "content": "".join(pieces)})
    else:
        conversation.messages = before
    if view is not None:
        _print_summary(conversation, shown, view)
    elif stats:
        _print_stats(conversation, shown.seconds)
    return 0


class ShownAnswer:
    """Prints an answer, with marks if wanted, and measures its times."""

    def __init__(self, view: DraftView | None) -> None:
        self._view = view
        self._began = time.monotonic()
        self._on_terminal = sys.stdout.isatty()
        self.first: float | None = None

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began

    def put(self, text: str, runs: list[dict[str, Any]]) -> None:
        if self.first is None:
            self.first = self.seconds
        if self._view is not None:
            text = self._view.paint(text, runs)
        elif self._on_terminal:
            text = printable(text)
        print(text, end="", flush=True)

    def close(self) -> None:
        print(self._view.close() if self._view is not None else "", flush=True)


async def _print_answer(conversation: Conversation, pieces: list[str], shown: ShownAnswer) -> None:
    async for text, runs in said(conversation):
        pieces.append(text)
        shown.put(text, runs)
    shown.close()


def colours(out: TextIO) -> bool:
    """Whether the output may have colours (https://no-color.org)."""
    return out.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def _print_stats(conversation: Conversation, seconds: float) -> None:
    tokens = conversation.usage.get("completion_tokens", 0)
    print(f"[{tokens} tokens, {seconds:.2f} s, {tokens / seconds:.1f} tokens/s]", file=sys.stderr)


def _print_summary(conversation: Conversation, shown: ShownAnswer, view: DraftView) -> None:
    tokens = conversation.usage.get("completion_tokens", view.tokens)
    view.colours = view.colours and colours(sys.stderr)
    width = shutil.get_terminal_size().columns
    print("\n".join(view.summary(tokens, shown.seconds, shown.first, width)), file=sys.stderr)


# HTTP ---------------------------------------------------------------------------------------------------


async def first_model(conversation: Conversation) -> str:
    url = f"{conversation.url}/v1/models"
    async with session(conversation) as opened, reached(conversation), opened.get(url) as response:
        await raise_for_error(response)
        models = (await response.json())["data"]
    if not models:
        raise ChatError(f"{conversation.url} serves no model")
    return str(models[0]["id"])


async def answer(conversation: Conversation) -> AsyncIterator[str]:
    """Pieces of text as they come; `usage` is set at the end."""
    async for text, _ in said(conversation):
        yield text


async def said(conversation: Conversation) -> AsyncIterator[tuple[str, list[dict[str, Any]]]]:
    """The same, each with its runs if the request asks for them and the server sends them."""
    conversation.usage = {}
    url = f"{conversation.url}/v1/chat/completions"
    body = conversation.body()
    async with session(conversation) as opened, reached(conversation), opened.post(url, json=body) as response:
        await raise_for_error(response)
        async for line in response.content:
            event = line.decode("utf-8").strip().removeprefix("data:").strip()
            if event == "[DONE]":
                return
            if event.startswith("{"):
                chunk = json.loads(event)
                _raise_for_event(chunk)
                conversation.usage = chunk.get("usage") or conversation.usage
                for choice in chunk.get("choices", ()):
                    text, runs = choice.get("delta", {}).get("content"), choice.get("runs")
                    if text or runs:
                        yield text or "", runs or []
    raise ChatError("the answer was cut off: the server closed the stream before its end")


def session(conversation: Conversation) -> aiohttp.ClientSession:
    # No total limit: an answer may take minutes, and Ctrl-C stops it.
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT)
    return aiohttp.ClientSession(
        headers=conversation.headers(),
        timeout=timeout,
        read_bufsize=1 << 20,
        connector=aiohttp.TCPConnector(ssl=conversation.tls or True),
    )


def untrusted(url: str, error: aiohttp.ClientSSLError) -> str:
    reason = getattr(error.__cause__, "verify_message", "") or type(error).__name__
    return f"TLS with {url} failed ({reason}); SSL_CERT_FILE=FILE names a certificate or its issuer that you trust"


class reached:
    """Network errors as messages that a user can act on."""

    def __init__(self, conversation: Conversation) -> None:
        self._url = conversation.url

    async def __aenter__(self) -> None:
        pass

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, aiohttp.InvalidURL):
            raise ChatError(f"{self._url} is not a URL") from None
        if isinstance(error, aiohttp.ClientSSLError):
            raise ChatError(untrusted(self._url, error)) from None
        if isinstance(error, aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError):
            raise ChatError(f"nothing answers at {self._url}; start a server with `specmesh up`") from None
        if isinstance(error, aiohttp.ClientError):
            raise ChatError(f"the connection to {self._url} broke ({type(error).__name__})") from None


@contextlib.asynccontextmanager
async def answer_of(server: Conversation, path: str) -> AsyncIterator[aiohttp.ClientResponse]:
    """What a short question is answered. Raises ChatError where nothing or nobody answers in time."""
    try:
        async with (
            asyncio.timeout(ANSWER_TIMEOUT),
            session(server) as opened,
            reached(server),
            opened.get(server.url + path) as response,
        ):
            yield response
    except TimeoutError:
        raise ChatError(f"no answer within {ANSWER_TIMEOUT:g} s") from None


async def raise_for_error(response: aiohttp.ClientResponse) -> None:
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
