"""Sends the requests of a batch, a bounded number at a time; repeats those refused for lack of room; shows progress.

    lines ─▶ met before? ─▶ refused, or sent ─▶ OUT, as answers come

Knows how a connection is asked and OUT written to; starts no mesh.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TextIO

import aiohttp
import orjson

from services.cli.batch_lines import Asked, Line, Refused, answer_line, refused_line
from services.cli.batch_out import Ids, Out
from services.cli.chat_drafts import in_one_line
from specmesh.connection import FIRST_PAUSE, LONGEST_PAUSE, Connection

NO_ROOM = (429, 503)
# How long one request is tried for, and the longest wait that a server may ask for.
PATIENCE_S, LONGEST_WAIT_S = 600.0, 60.0
# Lines at fault that are named on the terminal; OUT has all.
NAMED = 20
ON_TERMINAL_S, IN_LOG_S = 0.2, 10.0


class ServerGone(Exception):
    """No server answers; the message is for the user."""


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    request_id: str
    body: Any


class Asking:
    """One request until its answer: 429 and 503 are tried again, and so is a connection that breaks."""

    def __init__(
        self, connection: Connection, check: Callable[[], None], patience: float = PATIENCE_S,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:  # fmt: skip
        """`check` raises what makes trying again useless."""
        self._connection = connection
        self._check = check
        self._patience = patience
        self._sleep = sleep

    async def ask(self, line: Asked) -> Answer:
        """Raises ServerGone."""
        end, pause = time.monotonic() + self._patience, FIRST_PAUSE
        while True:
            wait = pause
            try:
                status, headers, body = await self._connection.exchange(line.url, line.body)
            except aiohttp.ClientError as error:
                self._check()
                if time.monotonic() + wait > end:
                    raise ServerGone(f"{self._connection.url} doesn't answer: {error}") from None
            else:
                final = status not in NO_ROOM or headers.get("x-should-retry") == "false"
                wait = _asked_wait(headers) or pause
                if final or time.monotonic() + wait > end:
                    return Answer(status, headers.get("X-Request-Id", ""), _json(body))
            await self._sleep(wait)
            pause = min(2 * pause, LONGEST_PAUSE)


def _asked_wait(headers: Mapping[str, str]) -> float:
    """Retry-After in seconds; 0: there is none, or a date."""
    asked = headers.get("Retry-After", "")
    return min(float(asked), LONGEST_WAIT_S) if asked.isascii() and asked.isdigit() else 0.0


def _json(body: bytes) -> Any:
    """What isn't JSON comes from something between here and the server."""
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError:
        return {"error": {"message": body[:500].decode(errors="replace")}}


class Progress:
    """A line on the terminal, or one in a log from time to time."""

    def __init__(
        self, share: Callable[[], float], out: TextIO | None = None, *, every: float | None = None,
        rest: str = "only in OUT",
    ) -> None:  # fmt: skip
        """`share`: of IN that is done. `every`: seconds between two lines. `rest`: where lines at fault are that aren't
        named."""
        self._share = share
        self._rest = rest
        self._out = out or sys.stderr
        self._terminal = self._out.isatty()
        self._every = every or (ON_TERMINAL_S if self._terminal else IN_LOG_S)
        self._began = time.monotonic()
        self._show_at = self._began + self._every
        self.answers = self.wrong = self.before = self._tokens = self._drafted = self._accepted = 0

    def answered(self, body: Any) -> None:
        self.answers += 1
        usage, metrics = _object(body, "usage"), _object(_object(body, "metrics"), "speculative_decoding")
        self._tokens += usage.get("completion_tokens") or usage.get("output_tokens") or 0
        self._drafted += metrics.get("num_draft_tokens") or 0
        self._accepted += metrics.get("num_accepted_draft_tokens") or 0
        if time.monotonic() >= self._show_at:
            self._show_at = time.monotonic() + self._every
            self._show()

    def at_fault(self, number: int, why: str) -> None:
        self.wrong += 1
        if self.wrong <= NAMED:
            self.tell(f"line {number}: {in_one_line(why)}")
        elif self.wrong == NAMED + 1:
            self.tell(f"further lines at fault are {self._rest}")

    def tell(self, text: str) -> None:
        start = "\r\033[K" if self._terminal else ""
        print(f"{start}specmesh: {text}", file=self._out, flush=True)

    def _show(self) -> None:
        took = max(1e-9, time.monotonic() - self._began)
        rates = f"{self.answers / took:.1f} requests/s, {self._tokens / took:.0f} tokens/s"
        accepted = f", {self._accepted / self._drafted:.0%} of drafts accepted" if self._drafted else ""
        line = f"{self._share():4.0%} read, {self.answers} answers, {rates}{accepted}"
        start, end = ("\r", "\033[K") if self._terminal else ("specmesh: ", "\n")
        print(f"{start}{line}", end=end, file=self._out, flush=True)

    def end(self) -> None:
        self._show()
        if self._terminal:
            print(file=self._out)

    def summary(self) -> str:
        before = f", and {self.before} before" if self.before else ""
        return f"{self.answers} answered{before}; {self.wrong} at fault"


def _object(body: Any, name: str) -> dict[str, Any]:
    found = body.get(name) if isinstance(body, dict) else None
    return found if isinstance(found, dict) else {}


async def run(lines: Iterable[Line | None], asking: Asking, out: Out, progress: Progress, width: int) -> None:
    """Every line is in OUT afterwards. Raises what ends the whole batch: ServerGone, OSError."""
    left = iter(lines)

    async def worker() -> None:
        for line in left:
            if isinstance(line, Asked):
                _write_answer(line, await asking.ask(line), out, progress)
                continue
            if line is not None:
                out.write(refused_line(line))
                progress.at_fault(line.number, line.why)
            # There may be millions of these in a row.
            await asyncio.sleep(0)

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(width):
                group.create_task(worker())
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None


def _write_answer(line: Asked, answer: Answer, out: Out, progress: Progress) -> None:
    out.write(answer_line(line.custom_id, answer.status, answer.request_id, answer.body))
    if answer.status < 400:
        progress.answered(answer.body)
    else:
        why = _object(answer.body, "error").get("message", "")
        progress.at_fault(line.number, f"{answer.status} {why}")


def without_met(lines: Iterable[Line], ids: Ids, progress: Progress) -> Iterator[Line | None]:
    """None for a line that has its answer. A custom_id that another line had is refused."""
    for line in lines:
        # What is refused for something else doesn't take its custom_id from a line that can be sent.
        first = ids.meet(line.custom_id, line.number) if isinstance(line, Asked) else None
        if first == 0:
            progress.before += 1
            yield None
        elif first is not None:
            why = f"custom_id: line {first} has the same"
            yield Refused(line.number, line.custom_id, "duplicate_custom_id", why)
        else:
            yield line
