"""A child process that answers one question at a time, each within a limit of time and memory: for work that depends on
foreign text and can't be stopped from a thread.

    parent ──setup──▶ child: prepares      parent ◀──answer── child
           ──question──▶     works                ◀──answer──

A frame is four bytes of length, then the body. The child has a limit on its memory, holds no secrets in its
environment, and ends when its input closes or its parent dies. Its own timers kill it in the kernel. Knows nothing of
what is asked.
"""

from __future__ import annotations

import asyncio
import contextlib
import resource
import signal
import sys
from collections.abc import Callable
from typing import IO

from services.runtime.children import tied
from services.runtime.environment import harmless_environment
from specmesh.rooms import command

_HEADER = 4
# For a child to start in, however busy the machine is; what it computes then is bounded by its own timer.
_START_TIMEOUT = 30.0  # s


class ChildDied(Exception):
    """In the middle of a question. `status`: its return code, negative for a signal."""

    def __init__(self, status: int | None) -> None:
        super().__init__(f"the child ended with {status}")
        self.status = status


class ChildLate(Exception):
    """It didn't answer in time, and was ended."""


class BoundedChild:
    """One child, one question at a time. A child that dies is replaced at the next question."""

    def __init__(
        self, module: str, setup: Callable[[], bytes], accept: Callable[[bytes], None] = lambda answer: None
    ) -> None:
        """`module` is run as the child and told `setup()` first. `accept` gets the answer to that; if it raises, the
        child is ended and the question that started it fails so."""
        self._module = module
        self._setup = setup
        self._accept = accept
        self.process: asyncio.subprocess.Process | None = None
        self._one_at_a_time = asyncio.Lock()

    async def start(self) -> None:
        async with self._one_at_a_time:
            await self._living()

    async def ask(self, question: bytes, timeout: float) -> bytes:
        """Raises ChildDied or ChildLate, and whatever `accept` does. The question of a caller that goes away before its
        turn is never asked. After that the exchange ends by itself, because half an exchange would give the next caller
        this one's answer."""
        await self._one_at_a_time.acquire()
        exchange = asyncio.ensure_future(self._ask(question, timeout))
        exchange.add_done_callback(self._asked)
        return await asyncio.shield(exchange)

    async def close(self) -> None:
        async with self._one_at_a_time:
            await self._end()

    async def _ask(self, question: bytes, timeout: float) -> bytes:
        return await self._exchange(await self._living(), question, timeout)

    def _asked(self, exchange: asyncio.Future[bytes]) -> None:
        self._one_at_a_time.release()
        if not exchange.cancelled():
            # Nobody hears of its failure where the caller went away.
            exchange.exception()

    async def _living(self) -> asyncio.subprocess.Process:
        if self.process is not None and self.process.returncode is None:
            return self.process
        await self._end()
        child = self.process = await asyncio.create_subprocess_exec(
            # Our death ends it at once, also while it starts or works and reads nothing.
            *tied(command(self._module)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env=harmless_environment(),
        )
        answer = await self._exchange(child, self._setup(), _START_TIMEOUT)
        try:
            self._accept(answer)
        except Exception:
            await self._end()
            raise
        return child

    async def _exchange(self, child: asyncio.subprocess.Process, question: bytes, timeout: float) -> bytes:
        assert child.stdin is not None and child.stdout is not None
        try:
            async with asyncio.timeout(timeout):
                child.stdin.write(_frame(question))
                await child.stdin.drain()
                header = await child.stdout.readexactly(_HEADER)
                return await child.stdout.readexactly(int.from_bytes(header, "big"))
        except TimeoutError:
            await self._end()
            raise ChildLate from None
        except (asyncio.IncompleteReadError, ConnectionError):
            raise ChildDied(await self._end()) from None

    async def _end(self) -> int | None:
        child, self.process = self.process, None
        if child is None:
            return None
        assert child.stdin is not None
        child.stdin.close()
        try:
            async with asyncio.timeout(0.5):
                await child.wait()
        except TimeoutError:
            child.kill()
        status = await child.wait()
        # Unsent input of a dead child doesn't matter; unless it is awaited, some Pythons warn of it at exit.
        with contextlib.suppress(OSError):
            await child.stdin.wait_closed()
        return status


def _frame(body: bytes) -> bytes:
    return len(body).to_bytes(_HEADER, "big") + body


# The child's side ---------------------------------------------------------------------------------------


class ChildPipe:
    """The questions that the child reads, and its answers."""

    def __init__(self, most_memory: int) -> None:
        """`most_memory` in bytes, of addresses."""
        # Ctrl-C reaches the whole foreground group: the parent drains, and we end when it closes our input.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_AS, (most_memory, most_memory))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        self._asked: IO[bytes] = sys.stdin.buffer
        self._told: IO[bytes] = sys.stdout.buffer

    def read(self) -> bytes | None:
        """None: there will be no more."""
        header = self._asked.read(_HEADER)
        if len(header) < _HEADER:
            return None
        body = self._asked.read(int.from_bytes(header, "big"))
        return body if len(body) == int.from_bytes(header, "big") else None

    def answer(self, body: bytes) -> None:
        self._told.write(_frame(body))
        self._told.flush()
