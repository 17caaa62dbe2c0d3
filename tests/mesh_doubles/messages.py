"""What tests of the mesh and of things built on it share: a few messages and an actor that shows what it did."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Annotated, ClassVar

import msgspec

from mesh.actor import Actor, Call
from mesh.codec import Codec, RawFrame
from mesh.errors import Refuse
from mesh.stream import StreamWriter


class Echo(msgspec.Struct, frozen=True, array_like=True):
    """Answered with itself."""

    number: int = 0
    text: str = ""


class Note(msgspec.Struct, frozen=True, array_like=True):
    """Told, and written down."""

    number: int


class Hang(msgspec.Struct, frozen=True, array_like=True):
    """Never answered; as a stream, never ended."""

    number: int = 0


class Fail(msgspec.Struct, frozen=True, array_like=True):
    """Refused with this reason, or with an unforeseen exception when it is empty."""

    reason: str = ""


class Count(msgspec.Struct, frozen=True, array_like=True):
    """A stream of the numbers from `start` up to `stop`, each with `pad` bytes beside it."""

    stop: int
    start: int = 0
    pad: Annotated[int, msgspec.Meta(ge=0, le=1 << 20)] = 0
    fail: bool = False


class Number(msgspec.Struct, frozen=True, array_like=True):
    number: int
    pad: bytes = b""


class Blob(msgspec.Struct, frozen=True, array_like=True):
    """Answered with itself; `data` travels as a raw frame."""

    label: str
    data: RawFrame


KINDS: dict[str, type[msgspec.Struct]] = {
    "echo": Echo,
    "note": Note,
    "hang": Hang,
    "fail": Fail,
    "count": Count,
    "number": Number,
    "blob": Blob,
}
codec = Codec(KINDS)


class Witness(Actor):
    """Answers the messages above and remembers what happened to it."""

    handlers: ClassVar = {Echo: "echo", Note: "note", Hang: "hang", Fail: "fail", Blob: "blob"}
    streams: ClassVar = {Count: "count", Hang: "hang_stream", Fail: "fail_stream"}

    def __init__(self, concurrency: int = 8, mailbox_size: int = 1024, max_streams: int = 1024) -> None:
        self.concurrency = concurrency
        self.mailbox_size = mailbox_size
        self.max_streams = max_streams
        self.notes: list[int] = []
        self.calls: list[Call] = []
        self.started = 0  # handlers that hang
        self.cancelled = 0  # those of them that were cancelled
        self.offered = 0  # items a stream had credit for
        self.changed = asyncio.Event()
        self.stopped = False

    async def on_stop(self) -> None:
        self.stopped = True

    async def until(self, attribute: str, value: int) -> None:
        """Wait until a counter has reached a value."""
        while getattr(self, attribute) < value:
            self.changed.clear()
            await self.changed.wait()

    async def echo(self, message: Echo, call: Call) -> Echo:
        self.calls.append(call)
        return message

    async def note(self, message: Note, call: Call) -> None:
        self.notes.append(message.number)
        self.changed.set()

    async def hang(self, message: Hang, call: Call) -> None:
        self.started += 1
        self.changed.set()
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            self.cancelled += 1
            self.changed.set()
            raise

    async def fail(self, message: Fail, call: Call) -> None:
        if message.reason:
            raise Refuse(message.reason, "as asked")
        raise ZeroDivisionError("secret of this process")

    async def blob(self, message: Blob, call: Call) -> Blob:
        return message

    async def count(self, message: Count, call: Call, out: StreamWriter) -> None:
        pad = bytes(message.pad)
        for number in range(message.start, message.stop):
            await out.send(Number(number, pad))
            self.offered += 1
            self.changed.set()
        if message.fail:
            raise Refuse("counted_out", "as asked")

    async def hang_stream(self, message: Hang, call: Call, out: StreamWriter) -> None:
        await out.send(Number(message.number))
        await self.hang(message, call)

    async def fail_stream(self, message: Fail, call: Call, out: StreamWriter) -> None:
        await self.fail(message, call)


async def until(condition: Callable[[], object], timeout: float = 10.0) -> None:
    """Wait for something no event tells of. Raises TimeoutError."""
    async with asyncio.timeout(timeout):
        while not condition():  # noqa: ASYNC110 - that is the point
            await asyncio.sleep(0.001)


def mutate(rng: random.Random, frames: list[bytes]) -> list[bytes]:
    """A bundle as a broken or hostile peer would send it: the first frame damaged, sometimes frames too many."""
    frame = bytearray(frames[0])
    for _ in range(rng.randrange(1, 6)):
        at = rng.randrange(len(frame) + 1)
        match rng.randrange(6):
            case 0 if at < len(frame):
                frame[at] = rng.randrange(256)
            case 1:
                frame[at:at] = rng.randbytes(rng.randrange(1, 9))
            case 2:
                del frame[at : at + rng.randrange(1, 9)]
            case 3 if at < len(frame):
                frame[at] ^= 1 << rng.randrange(8)
            case 4:
                frame[at:at] = bytes([rng.choice([0xC1, 0xC7, 0xC9, 0xD4, 0xDD, 0xDF, 0xC6, 0xDB])])
            case _:
                frame = frame[:at]
    return [bytes(frame), *(rng.randbytes(rng.randrange(40)) for _ in range(rng.choice([0, 0, 0, 1, 3])))]
