"""`specmesh top`: the mesh behind a running server, live, from its /v1/mesh. The lines: services/cli/top_view.py.

Uses the terminal's alternate screen. If the server doesn't answer, the first line says so above the last figures, and
it is asked again until it is back or q is pressed. A server that is silent is told of after SILENT_AFTER; it may still
answer that question within ANSWER_TIMEOUT.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import shutil
import signal
import sys
import termios
import tty
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

from mesh.clock import Clock, SystemClock
from services.api.settings import Settings
from services.cli.chat import ChatError, Conversation, answer_of, colours, raise_for_error, server_of
from services.cli.top_view import Body, screen
from services.cli.top_window import Window

SILENT_AFTER = 0.5  # s
# Rates are measured from one sample to the next.
BETWEEN_LOOKS = 1.0  # s, of --once

OTHER_SCREEN, OWN_SCREEN = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
HOME, END_OF_LINE, END_OF_SCREEN = "\x1b[H", "\x1b[K", "\x1b[J"
QUIT = b"qQ"


def main(options: argparse.Namespace, settings: Settings) -> int:
    server = server_of(options.url, settings)
    if options.once or not sys.stdout.isatty():
        return asyncio.run(_once(server))
    with _other_screen():
        asyncio.run(Top(server, options.every).run())
    return 0


async def look(server: Conversation) -> Body:
    """The mesh as the server sees it. Raises ChatError."""
    async with answer_of(server, "/v1/mesh") as response:
        if response.status == 404:
            raise ChatError("this server doesn't tell of its mesh")
        await raise_for_error(response)
        body: Body = await response.json()
        return body


async def _once(server: Conversation) -> int:
    try:
        window, clock = Window(), SystemClock()
        window.add(await look(server), clock.now())
        await asyncio.sleep(BETWEEN_LOOKS)
        body = window.add(await look(server), clock.now())
    except ChatError as error:
        print(f"specmesh: {error}", file=sys.stderr)
        return 1
    width = shutil.get_terminal_size((120, 24)).columns
    print("\n".join(screen(body, server.url, width, sys.maxsize, colours=colours(sys.stdout))))
    return 0


class Top:
    """`ask`: how the server is looked at."""

    def __init__(
        self,
        server: Conversation,
        every: float,
        clock: Clock | None = None,
        ask: Callable[[Conversation], Awaitable[Body]] = look,
    ) -> None:
        self._server = server
        self._every = every
        self._clock = clock or SystemClock()
        self._ask = ask
        self._window = Window()
        self._body: Body | None = None
        self._trouble = "looking"
        self._quit = asyncio.Event()

    async def run(self) -> None:
        """Until q is pressed, or the process gets a signal."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self._quit.set)
        # The terminal has another size, or we were in the background.
        for number in (signal.SIGWINCH, signal.SIGCONT):
            loop.add_signal_handler(number, self._draw)
        if sys.stdin.isatty():
            loop.add_reader(sys.stdin.fileno(), self._key)
        looking = asyncio.create_task(self._look_for_ever())
        await self._quit.wait()
        looking.cancel()
        await asyncio.wait([looking])

    async def _look_for_ever(self) -> None:
        while True:
            silent = self._clock.call_later(SILENT_AFTER, self._say, f"no answer for {SILENT_AFTER:g} s; q ends")
            try:
                self._body = self._window.add(await self._ask(self._server), self._clock.now())
                said = ""
            except ChatError as error:
                said = f"{error}; trying again, q ends"
            finally:
                silent.cancel()
            self._say(said)
            await self._clock.sleep(self._every)

    def _say(self, trouble: str) -> None:
        self._trouble = trouble
        self._draw()

    def _key(self) -> None:
        pressed = os.read(sys.stdin.fileno(), 64)
        if not pressed or any(key in QUIT for key in pressed):
            self._quit.set()

    def _draw(self) -> None:
        width, height = shutil.get_terminal_size()
        lines = screen(
            self._body, self._server.url, width, height, colours=colours(sys.stdout), trouble=self._trouble
        )
        # Lines are overwritten one by one, without clearing the screen, so that nothing flickers.
        sys.stdout.write(HOME + f"{END_OF_LINE}\n".join(lines) + END_OF_LINE + END_OF_SCREEN)
        sys.stdout.flush()


@contextlib.contextmanager
def _other_screen() -> Iterator[None]:
    """Restores the terminal, however this ends."""
    keys: list[Any] | None = None
    if sys.stdin.isatty():
        keys = termios.tcgetattr(sys.stdin)
        tty.setcbreak(sys.stdin)
    try:
        print(OTHER_SCREEN, end="", flush=True)
        yield
    finally:
        print(OWN_SCREEN, end="", flush=True)
        if keys is not None:
            termios.tcsetattr(sys.stdin, termios.TCSADRAIN, keys)
