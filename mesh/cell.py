"""What runs an actor on its node: a mailbox, a few worker tasks, and a task per stream. Knows no sockets.

Rule 1: every call that was taken is answered: with the handler's result, its refusal, or NotRunning when the actor
        stops first. A call that its caller has cancelled needs no answer.
Rule 2: a handler runs for as long as its caller waits: the deadline and the caller's cancel reach it as
        asyncio.CancelledError.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

from mesh.actor import Actor, Call, Home
from mesh.errors import Busy, DeadlineExceeded, MeshError, NotRunning, Refuse, UnknownKind, to_wire
from mesh.mailbox import Mail, Mailbox
from mesh.stream import StreamWriter
from mesh.transport import Frame

log = logging.getLogger("mesh")


class Cell:
    """One actor on its node."""

    def __init__(self, actor: Actor, name: str, node: Home) -> None:
        self.actor = actor
        self.name = name
        self._codec = node.codec
        self._clock = node.clock
        self._metrics = node.metrics
        self._handlers = self._table(actor.handlers)
        self.answers = self._table(actor.answers)
        self._streams = self._table(actor.streams)
        self.mailbox = Mailbox(actor.mailbox_size, actor.mailbox_bytes)
        self._workers: set[asyncio.Task[None]] = set()
        self._stream_tasks: set[asyncio.Task[None]] = set()
        self._stopping = False

    def _table(self, methods: dict[type[Any], str]) -> dict[str, Any]:
        return {self._codec.kind_of(kind): getattr(self.actor, method) for kind, method in methods.items()}

    def answer(self, kind: str, body: bytes, raw: Sequence[Frame], call: Call) -> Any:
        """The result of a handler of `answers`. Its exceptions are counted and raised."""
        try:
            if self._stopping:
                raise NotRunning(f"{self.name} is stopping")
            return self.answers[kind](self._codec.decode(kind, body, raw), call)
        except Exception as error:
            self._noted(error, kind)
            raise

    def deliver(self, mail: Mail) -> None:
        """Take an ask. Raises NotRunning, UnknownKind or Busy."""
        if self._stopping:
            raise NotRunning(f"{self.name} is stopping")
        if mail.kind not in self._handlers:
            raise UnknownKind(f"{self.name} has no handler for {mail.kind[:40]!r}")
        if not self.mailbox.put(mail):
            raise Busy(f"the mailbox of {self.name} is full")
        if len(self._workers) < self.actor.concurrency:
            self._start(self._work(), self._workers)

    def open(self, mail: Mail, writer: StreamWriter) -> None:
        """Start a stream's handler. Raises NotRunning, UnknownKind or Busy."""
        if self._stopping:
            raise NotRunning(f"{self.name} is stopping")
        if mail.kind not in self._streams:
            raise UnknownKind(f"{self.name} has no stream for {mail.kind[:40]!r}")
        if len(self._stream_tasks) >= self.actor.max_streams:
            raise Busy(f"{self.name} writes {self.actor.max_streams} streams already")
        mail.writer = writer
        mail.task = self._start(self._write(mail, writer), self._stream_tasks)
        # A task cancelled before its first step runs nothing of `_write`, so the end is written here.
        mail.task.add_done_callback(lambda _: self._written(mail, writer))
        self._watch_deadline(mail)

    async def stop(self) -> None:
        """Cancel what runs, answer what waits, then on_stop. Repeat-safe."""
        if self._stopping:
            return
        self._stopping = True
        while (mail := self.mailbox.take()) is not None:
            self._answer_error(mail, NotRunning(f"{self.name} stopped"))
        # An actor may stop itself: the handler that does so ends as it likes.
        tasks = (self._workers | self._stream_tasks) - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.actor.on_stop()

    def _start(self, work: Any, tasks: set[asyncio.Task[None]]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        return task

    async def _work(self) -> None:
        """A worker lives while there is mail."""
        task = asyncio.current_task()
        assert task is not None
        while (mail := self.mailbox.take()) is not None:
            await self._handle(mail, task)
        # At once, not when the loop gets to the callback: mail may come in between.
        self._workers.discard(task)

    async def _handle(self, mail: Mail, task: asyncio.Task[None]) -> None:
        if mail.call.deadline_left() <= 0:
            self._answer_error(mail, DeadlineExceeded("waited too long in the mailbox"))
            return
        try:
            message = self._codec.decode(mail.kind, mail.body, mail.raw)
            mail.task = task
            self._watch_deadline(mail)
            result = await self._handlers[mail.kind](message, mail.call)
        except asyncio.CancelledError:
            if mail.ended_by is None:
                self._answer_error(mail, NotRunning(f"{self.name} stopped"))
                raise
            self._answer_error(mail, mail.ended_by)
        except Exception as error:
            self._answer_error(mail, self._noted(error, mail.kind))
        else:
            mail.owner.reply(mail.id, result)
        finally:
            mail.task = None
            if mail.timer is not None:
                mail.timer.cancel()
            if mail.ended_by is not None and not self._stopping:
                # The cancel was for the call, not for the worker.
                while task.cancelling():
                    task.uncancel()

    async def _write(self, mail: Mail, writer: StreamWriter) -> None:
        try:
            request = self._codec.decode(mail.kind, mail.body, mail.raw)
            await self._streams[mail.kind](request, mail.call, writer)
        except Exception as error:
            writer.finish(*to_wire(self._noted(error, mail.kind)))
        else:
            writer.finish("", "")

    def _written(self, mail: Mail, writer: StreamWriter) -> None:
        if mail.timer is not None:
            mail.timer.cancel()
        mail.owner.forget_call(mail.id)
        # Cancelled by the caller, the deadline or our stop; after a proper end this does nothing.
        writer.finish(*to_wire(mail.ended_by or NotRunning(f"{self.name} stopped")))

    def _watch_deadline(self, mail: Mail) -> None:
        mail.timer = self._clock.call_later(mail.call.deadline_left(), self._expired, mail)

    def _expired(self, mail: Mail) -> None:
        mail.end(DeadlineExceeded("the time for the call has passed"))

    def _answer_error(self, mail: Mail, error: BaseException) -> None:
        if mail.writer is not None:
            mail.writer.finish(*to_wire(error))
        else:
            mail.owner.fail_call(mail.id, error)

    def _noted(self, error: Exception, kind: str) -> Exception:
        if isinstance(error, MeshError):
            self._metrics.refuse(error.reason)
        elif not isinstance(error, Refuse):
            self._metrics.handler_errors += 1
            log.exception("%s failed on %s", self.name, kind)
        return error
