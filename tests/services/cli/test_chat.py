"""`specmesh chat` against a server that speaks, refuses, breaks off or isn't there."""

from __future__ import annotations

import asyncio
import builtins
import contextlib
import json
import os
import pty
import re
import subprocess
import sys
import termios
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from services.api.settings import Settings
from services.cli.chat import ChatError, Conversation, answer, first_model, server_url
from services.cli.main import main


def chunk(**delta: str) -> dict[str, Any]:
    return {"choices": [{"delta": delta}]}


def test_the_server_is_found_at_the_address_that_it_binds() -> None:
    assert server_url(None, Settings.for_tests(host="::", port=81)) == "http://[::1]:81"
    assert server_url("http://other/v1/", Settings.for_tests()) == "http://other"


ANSWER = [
    chunk(role="assistant"),
    chunk(content="Hé"),
    chunk(content="llo\n🙂"),
    {"choices": [{"delta": {}, "finish_reason": "stop"}]},
    {"choices": [], "usage": {"completion_tokens": 3}},
    "[DONE]",
]


class Server:
    """An OpenAI-compatible door that says what the test wants and keeps what it was asked."""

    def __init__(self) -> None:
        self.events: list[Any] = list(ANSWER)
        self.refusal: tuple[int, Any] | None = None
        self.asked: list[dict[str, Any]] = []
        self.keys: list[str | None] = []
        self.models: list[dict[str, str]] = [{"id": "tiny"}]

    def app(self) -> web.Application:
        app = web.Application()
        app.router.add_get("/v1/models", self._models)
        app.router.add_post("/v1/chat/completions", self._chat)
        return app

    async def _models(self, request: web.Request) -> web.Response:
        return web.json_response({"data": self.models})

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        self.asked.append(await request.json())
        self.keys.append(request.headers.get("Authorization"))
        if self.refusal:
            return web.json_response(self.refusal[1], status=self.refusal[0])
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for event in self.events:
            text = event if isinstance(event, str) else json.dumps(event)
            await response.write(f"data: {text}\n\n".encode())
        return response


@asynccontextmanager
async def serving(server: Server) -> AsyncIterator[str]:
    runner = web.AppRunner(server.app())
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def say(url: str, **more: Any) -> tuple[str, Conversation]:
    conversation = Conversation(url, "tiny", messages=[{"role": "user", "content": "hi"}], **more)
    return "".join([piece async for piece in answer(conversation)]), conversation


# Over HTTP


async def test_an_answer_comes_in_pieces_and_ends_with_its_usage() -> None:
    server = Server()
    async with serving(server) as url:
        text, conversation = await say(url, options={"seed": 4}, api_key="k")
    assert text == "Héllo\n🙂"
    assert conversation.usage == {"completion_tokens": 3}
    [asked] = server.asked
    assert (asked["model"], asked["stream"], asked["seed"]) == ("tiny", True, 4)
    assert server.keys == ["Bearer k"]


async def test_a_refusal_is_told_in_the_servers_words() -> None:
    server = Server()
    server.refusal = (429, {"error": {"message": "too many requests", "type": "x"}})
    async with serving(server) as url:
        with pytest.raises(ChatError, match="the server answered 429: too many requests"):
            await say(url)
        server.refusal = (401, {"error": {"message": "no key"}})
        with pytest.raises(ChatError, match="SPECMESH_API_KEYS"):
            await say(url)
        server.refusal = (500, ["odd"])
        with pytest.raises(ChatError, match="500: Internal Server Error"):
            await say(url)


async def test_an_error_in_the_middle_of_the_stream_is_told() -> None:
    server = Server()
    server.events = [chunk(content="half"), {"error": {"message": "the model died"}}]
    async with serving(server) as url:
        with pytest.raises(ChatError, match="the model died"):
            await say(url)


async def test_a_stream_without_its_end_is_told_as_cut_off() -> None:
    server = Server()
    server.events = ANSWER[:2]
    async with serving(server) as url:
        with pytest.raises(ChatError, match="cut off"):
            await say(url)


async def test_the_first_model_of_the_server_is_asked_for() -> None:
    server = Server()
    async with serving(server) as url:
        assert await first_model(Conversation(url)) == "tiny"
        server.models = []
        with pytest.raises(ChatError, match="serves no model"):
            await first_model(Conversation(url))


async def test_where_nothing_listens_the_user_learns_how_to_start() -> None:
    with pytest.raises(ChatError, match="`specmesh up`"):
        await first_model(Conversation("http://127.0.0.1:9"))
    with pytest.raises(ChatError, match="is not a URL"):
        await first_model(Conversation("what"))


# As a command


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Server]:
    """In a thread of its own: the command runs its own event loop."""
    for name in [name for name in os.environ if name.startswith("SPECMESH_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("SPECMESH_CONFIG", "")
    server, started, loop = Server(), threading.Event(), asyncio.new_event_loop()
    end = asyncio.Event()

    async def serve() -> None:
        async with serving(server) as url:
            monkeypatch.setenv("SPECMESH_PORT", url.rpartition(":")[2])
            started.set()
            await end.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    assert started.wait(10)
    yield server
    loop.call_soon_threadsafe(end.set)
    thread.join()
    loop.close()


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """What the user types, line by line; then Ctrl-D."""

    def lines(*said: str | type[BaseException]) -> None:
        rest = iter(said)

        def read(prompt: str = "") -> str:
            line = next(rest, EOFError)
            if isinstance(line, str):
                return line
            raise line

        monkeypatch.setattr(builtins, "input", read)
        monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)

    return lines


def test_a_prompt_is_answered_once(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["chat", "hi", "--system", "Be brief.", "--max-tokens", "5", "--temperature", "0.5", "--stats"]) == 0
    out = capsys.readouterr()
    assert out.out == "Héllo\n🙂\n"
    assert out.err.startswith("[3 tokens, ")
    [asked] = server.asked
    assert asked["messages"] == [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"}]
    assert (asked["max_tokens"], asked["temperature"]) == (5, 0.5)


def test_a_prompt_may_come_through_a_pipe(
    server: Server, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import io

    monkeypatch.setattr("sys.stdin", io.StringIO("from a pipe\n"))
    assert main(["chat"]) == 0
    assert server.asked[0]["messages"] == [{"role": "user", "content": "from a pipe"}]


def test_a_conversation_remembers_until_it_is_reset(
    server: Server, typed: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    typed("one", "", "two", "/reset", "three", "/what", "/quit", "never said")
    assert main(["chat"]) == 0
    said = [[message["content"] for message in asked["messages"]] for asked in server.asked]
    assert said == [["one"], ["one", "Héllo\n🙂", "two"], ["three"]]
    assert "/reset starts a new conversation" in capsys.readouterr().out


def test_a_refusal_does_not_end_the_conversation_and_is_not_remembered(
    server: Server, typed: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    server.refusal = (503, {"error": {"message": "draining"}})
    typed("one", "two")
    assert main(["chat"]) == 0
    assert [len(asked["messages"]) for asked in server.asked] == [1, 1]
    assert capsys.readouterr().err.count("draining") == 2


def test_a_broken_answer_is_not_remembered_either(server: Server, typed: Callable[..., None]) -> None:
    server.events = [chunk(content="half")]
    typed("one", "two")
    assert main(["chat"]) == 0
    assert [len(asked["messages"]) for asked in server.asked] == [1, 1]


def test_ctrl_d_and_ctrl_c_at_the_prompt_end_it(server: Server, typed: Callable[..., None]) -> None:
    typed()
    assert main(["chat"]) == 0
    typed(KeyboardInterrupt)
    assert main(["chat"]) == 0
    assert server.asked == []


def test_without_a_server_the_command_fails_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SPECMESH_CONFIG", "")
    assert main(["chat", "hi", "--url", "http://127.0.0.1:9"]) == 1
    assert capsys.readouterr().err.count("\n") == 1


# What is shown of drafts

DRAFTED = [
    {"choices": [{"delta": {"content": "one two three"}, "runs": [
        {"source": "ngram", "match_length": 3, "drafted": 2, "accepted": 1, "tokens": 2, "step": 1, "offsets": [0, 7],
         "rejected": [" 2"]}]}]},
    {"choices": [], "usage": {"completion_tokens": 2}},
    "[DONE]",
]  # fmt: skip


def test_drafted_tokens_are_marked_and_told_of(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    server.events = DRAFTED
    assert main(["chat", "--show-draft", "hi"]) == 0
    out = capsys.readouterr()
    assert out.out == "[ngram|one two] three\n"
    assert "ngram: 1 of 2 draft tokens accepted" in out.err
    assert main(["chat", "hi", "--show-draft=all"]) == 0
    assert capsys.readouterr().out == "[ngram|one two]{ 2} three\n"
    assert [asked["return_drafts"] for asked in server.asked] == [True, True]
    assert [asked["messages"][0]["content"] for asked in server.asked] == ["hi", "hi"]


def test_marks_can_be_switched_in_a_conversation(
    server: Server, typed: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    server.events = DRAFTED
    typed("hi", "/drafts", "hi", "/drafts all", "hi", "/drafts off", "hi", "/drafts what")
    assert main(["chat"]) == 0
    assert [asked.get("return_drafts", False) for asked in server.asked] == [False, True, True, False]
    said = capsys.readouterr().out
    assert said.count("[ngram|one two] three") == 1 and said.count("[ngram|one two]{ 2} three") == 1
    # What is remembered is the text, not its marks.
    assert server.asked[-1]["messages"][1]["content"] == "one two three"


@pytest.mark.parametrize(
    ("environment", "coloured"), [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)]
)
def test_a_terminal_has_colours_unless_its_user_has_none(
    server: Server, environment: dict[str, str], coloured: bool
) -> None:
    server.events = DRAFTED
    shown = in_a_terminal(["chat", "--show-draft", "hi"], {"TERM": "xterm", **environment}, columns=40)
    assert ("\x1b[4;36mone two\x1b[0m three" in shown) == coloured
    assert ("[ngram|one two] three" in shown) != coloured
    plain = re.sub(r"\x1b\[[0-9;]*m", "", shown)
    assert max(len(line) for line in plain.splitlines()) <= 40


EVIL = "\x1b]0;title\x07\x9b2J"
COMMANDING = [
    {"choices": [{"delta": {"content": f"one{EVIL}"}, "runs": [
        {"source": f"ngram{EVIL}\n", "match_length": 3, "drafted": 1, "accepted": 1, "tokens": 1, "step": 1,
         "offsets": [0], "rejected": [EVIL]}]}]},
    {"choices": [{"delta": {}, "finish_reason": "stop"}]},
    "[DONE]",
]  # fmt: skip


@pytest.mark.parametrize("marked", [[], ["--show-draft=all"]])
def test_what_a_server_says_cannot_command_the_terminal(server: Server, marked: list[str]) -> None:
    """Its answers, the names of its sources, of its model, and its errors."""
    server.events = COMMANDING
    for environment in ({"TERM": "dumb"}, {"TERM": "xterm", "NO_COLOR": "1"}):
        shown = in_a_terminal(["chat", *marked, "hi"], environment, columns=80)
        assert "one\ufffd]0;title\ufffd\ufffd2J" in shown
        assert all(line.isprintable() for line in shown.splitlines())


def test_nor_can_the_name_of_its_model(
    server: Server, typed: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    server.models = [{"id": f"tiny{EVIL}"}]
    typed()
    assert main(["chat"]) == 0
    assert capsys.readouterr().out.splitlines()[0].isprintable()


def test_nor_can_its_errors(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    server.refusal = (400, {"error": {"message": f"no{EVIL}"}})
    assert main(["chat", "hi"]) == 1
    server.refusal, server.events = None, [{"error": {"message": f"died{EVIL}"}}]
    assert main(["chat", "hi"]) == 1
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(EVIL[1:6])[0] for line in lines] == [
        "specmesh: the server answered 400: no\ufffd",
        "specmesh: died\ufffd",
    ]
    assert all(line.isprintable() for line in lines)


def in_a_terminal(words: list[str], environment: dict[str, str], columns: int) -> str:
    """What the command writes to a terminal of its own."""
    own, its = pty.openpty()
    termios.tcsetwinsize(its, (20, columns))
    kept = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "COLUMNS", "LINES")}
    command = [sys.executable, "-m", "services.cli", *words]
    with subprocess.Popen(command, stdin=its, stdout=its, stderr=its, env=kept | environment) as process:
        os.close(its)
        shown = b""
        # The end of a terminal that nobody holds any more is an error.
        with contextlib.suppress(OSError):
            while part := os.read(own, 4096):
                shown += part
    os.close(own)
    assert process.returncode == 0, shown
    return shown.decode().replace("\r\n", "\n")


# Flags


def test_the_model_and_the_method_of_the_command_line_are_asked_for() -> None:
    from services.cli.chat import _conversation
    from services.cli.main import parser

    def body(*words: str) -> dict[str, Any]:
        return _conversation(parser().parse_args(["chat", *words, "hi"]), Settings.for_tests()).body()

    assert body("--model", "other", "--method", "suffix")["model"] == "other"
    assert body("--name", "other", "--method", "suffix")["speculation"] == {"method": "suffix"}
    assert "speculation" not in body("--temperature", "0")
