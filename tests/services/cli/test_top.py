"""`specmesh top` on a terminal of its own, against a server that tells, is gone, and is back."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pty
import re
import signal
import subprocess
import sys
import termios
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web
from mesh_doubles.clock import FakeClock
from mesh_seen import BODY

from services.cli.chat import ANSWER_TIMEOUT, ChatError, Conversation
from services.cli.top import SILENT_AFTER, Top, look

PATIENCE = 60.0  # seconds


class Server:
    """Answers /v1/mesh on a port that it keeps, as long as it is up."""

    def __init__(self) -> None:
        self.port = 0
        self.asked = 0
        self.status = 200
        self._runner: web.AppRunner | None = None

    async def _mesh(self, request: web.Request) -> web.Response:
        self.asked += 1
        if self.status != 200:
            return web.json_response({"error": {"message": "no"}}, status=self.status)
        return web.json_response(BODY)

    async def up(self) -> None:
        app = web.Application()
        app.router.add_get("/v1/mesh", self._mesh)
        self._runner = web.AppRunner(app)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self.port, reuse_address=True).start()
        self.port = self._runner.addresses[0][1]

    async def down(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    server = Server()
    await server.up()
    yield server
    await server.down()


class Terminal:
    """The other side of a terminal in which the command runs."""

    def __init__(self, own: int, its: int, process: asyncio.subprocess.Process) -> None:
        self.own, self.its = own, its
        self.process = process
        self.written = ""
        self._more = asyncio.Event()
        asyncio.get_running_loop().add_reader(own, self._read)

    def _read(self) -> None:
        try:
            part = os.read(self.own, 65536)
        except OSError:
            part = b""
        if part:
            self.written += part.decode(errors="replace")
        else:
            asyncio.get_running_loop().remove_reader(self.own)
        self._more.set()

    @property
    def screen(self) -> list[str]:
        """What was drawn last."""
        last = self.written.rpartition("\x1b[H")[2]
        return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", last).split("\r\n")

    async def until(self, seen: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE):
            while not seen():
                self._more.clear()
                await self._more.wait()

    def press(self, keys: bytes) -> None:
        os.write(self.own, keys)

    def resize(self, lines: int, columns: int) -> None:
        termios.tcsetwinsize(self.own, (lines, columns))
        self.process.send_signal(signal.SIGWINCH)


@asynccontextmanager
async def top(url: str, *words: str, lines: int = 30, columns: int = 100) -> AsyncIterator[Terminal]:
    own, its = pty.openpty()
    termios.tcsetwinsize(its, (lines, columns))
    kept = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "services.cli", "top", "--url", url, "--every", "0.2", *words,
        stdin=its, stdout=its, stderr=its, env=kept | {"TERM": "xterm", "SPECMESH_CONFIG": ""},
    )  # fmt: skip
    terminal = Terminal(own, its, process)
    try:
        yield terminal
    finally:
        asyncio.get_running_loop().remove_reader(own)
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        os.close(own)
        os.close(its)


async def test_it_shows_the_mesh_until_q_and_leaves_the_terminal_as_it_was(server: Server) -> None:
    async with top(server.url) as terminal:
        before = termios.tcgetattr(terminal.its)
        await terminal.until(lambda: any("all ready" in line for line in terminal.screen))
        assert terminal.written.startswith("\x1b[?1049h")
        asked = server.asked
        await terminal.until(lambda: server.asked > asked + 1)
        terminal.press(b"xyz")
        asked = server.asked
        await terminal.until(lambda: server.asked > asked + 1)
        terminal.press(b"q")
        assert await asyncio.wait_for(terminal.process.wait(), PATIENCE) == 0
        await terminal.until(lambda: "\x1b[?1049l" in terminal.written)
        assert termios.tcgetattr(terminal.its)[3] == before[3] | termios.ICANON | termios.ECHO


async def test_a_server_that_is_gone_is_said_and_when_it_is_back_it_goes_on(server: Server) -> None:
    async with top(server.url) as terminal:
        await terminal.until(lambda: "all ready" in terminal.screen[0])
        await server.down()
        await terminal.until(lambda: "nothing answers" in terminal.screen[0] or "broke" in terminal.screen[0])
        # What was seen last is still there, once all of it is drawn.
        await terminal.until(lambda: any(line.startswith("worker") for line in terminal.screen))
        await server.up()
        await terminal.until(lambda: "all ready" in terminal.screen[0])


async def test_a_window_of_another_size_is_drawn_anew(server: Server) -> None:
    async with top(server.url, columns=100) as terminal:
        await terminal.until(lambda: any("PID" in line for line in terminal.screen))
        terminal.resize(6, 40)
        await terminal.until(lambda: "more lines" in terminal.screen[-1])
        assert len(terminal.screen) == 6
        assert max(map(len, terminal.screen)) <= 40


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_told_to_end_it_leaves_the_terminal_as_it_was(server: Server, number: signal.Signals) -> None:
    async with top(server.url) as terminal:
        await terminal.until(lambda: "all ready" in terminal.screen[0])
        terminal.process.send_signal(number)
        assert await asyncio.wait_for(terminal.process.wait(), PATIENCE) == 0
        await terminal.until(lambda: "\x1b[?1049l" in terminal.written)


async def test_once_prints_a_table_and_ends(server: Server) -> None:
    async with top(server.url, "--once") as terminal:
        assert await asyncio.wait_for(terminal.process.wait(), PATIENCE) == 0
        await terminal.until(lambda: "all ready" in terminal.written)
        assert "\x1b[?1049h" not in terminal.written
        assert server.asked == 2


async def test_where_it_is_read_by_a_program_it_prints_once_and_without_colours(server: Server) -> None:
    command = [sys.executable, "-m", "services.cli", "top", "--url", server.url]
    ended = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=PATIENCE)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "worker-1" in ended.stdout and "\x1b" not in ended.stdout


async def test_what_is_wrong_is_said_in_words(server: Server) -> None:
    refused: list[tuple[int, Any]] = [(404, "doesn't tell of its mesh"), (401, "SPECMESH_API_KEYS"), (500, "500")]
    for server.status, said in refused:
        with pytest.raises(ChatError, match=said):
            await look(Conversation(server.url))
    await server.down()
    with pytest.raises(ChatError, match="nothing answers"):
        await look(Conversation(server.url))


async def test_a_silent_server_is_told_of_half_a_second_after_it_was_asked(capsys: pytest.CaptureFixture[str]) -> None:
    clock, answered = FakeClock(), asyncio.Event()

    async def ask(server: Conversation) -> dict[str, Any]:
        if asked:
            await answered.wait()
        asked.append(server.url)
        return BODY

    def first_line() -> str:
        drawn = capsys.readouterr().out.rpartition("\x1b[H")[2]
        return drawn.split("\n")[0]

    asked: list[str] = []
    top = Top(Conversation("http://here"), 1.0, clock, ask)
    looking = asyncio.create_task(top._look_for_ever())
    await clock.advance(0.0)
    assert "all ready" in first_line()
    await clock.advance(1.0)
    await clock.advance(SILENT_AFTER - 0.01)
    assert first_line() == ""
    await clock.advance(0.01)
    assert f"no answer for {SILENT_AFTER:g} s" in first_line()
    answered.set()
    await clock.advance(0.0)
    assert "all ready" in first_line()
    looking.cancel()
    assert SILENT_AFTER == 0.5 < ANSWER_TIMEOUT
