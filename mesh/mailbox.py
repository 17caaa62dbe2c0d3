"""An actor's letter box, bounded in letters and in bytes, and the calls that lie in it."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from mesh.actor import Call
from mesh.clock import Timer
from mesh.errors import MeshError
from mesh.stream import StreamWriter
from mesh.transport import Frame


class CallOwner(Protocol):
    """Where the answer goes: the peer a call came from."""

    def reply(self, id: int, result: Any) -> None: ...

    def fail_call(self, id: int, error: BaseException) -> None: ...

    def forget_call(self, id: int) -> None: ...


@dataclass(slots=True, eq=False)
class Mail:
    """A call on its way through an actor."""

    owner: CallOwner
    id: int
    kind: str
    body: bytes
    raw: Sequence[Frame]
    call: Call
    box: Mailbox | None = None
    writer: StreamWriter | None = None
    task: asyncio.Task[None] | None = None
    timer: Timer | None = None
    ended_by: MeshError | None = None

    def end(self, error: MeshError) -> None:
        """The caller waits no longer (cancel, deadline, lost): a running handler is cancelled."""
        if self.ended_by is None:
            self.ended_by = error
            if self.task is not None:
                self.task.cancel()

    def revoke(self, error: MeshError) -> None:
        """As `end`, and out of the mailbox if it still lies there."""
        if self.task is None and self.box is not None:
            self.box.discard(self)
        self.end(error)


class Mailbox:
    """First in, first out. What does not fit is not taken."""

    def __init__(self, letters: int, weight: int) -> None:
        self._letters = letters
        self._weight = weight
        self._box: deque[Mail] = deque()
        self.weight = 0

    def __len__(self) -> int:
        return len(self._box)

    def put(self, mail: Mail) -> bool:
        """False when full. One letter always fits an empty box, however heavy."""
        if self._box and (len(self._box) >= self._letters or self.weight + len(mail.body) > self._weight):
            return False
        mail.box = self
        self._box.append(mail)
        self.weight += len(mail.body)
        return True

    def take(self) -> Mail | None:
        if not self._box:
            return None
        mail = self._box.popleft()
        self.weight -= len(mail.body)
        return mail

    def discard(self, mail: Mail) -> bool:
        """Take out one letter from wherever it lies; False when it is not here."""
        try:
            self._box.remove(mail)
        except ValueError:
            return False
        self.weight -= len(mail.body)
        return True
