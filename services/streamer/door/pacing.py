"""Streams whose packets reveal nothing: one frame of fixed size every `pace` seconds.

A step that accepts five draft tokens makes a larger chunk than one that accepts none, and the steps that accept
many are those of a text that repeats itself. So sizes and times of encrypted packets are a fingerprint of the text.
Here events wait for the next tick, and a frame is filled up:

    tick      |   tick      |   tick      |
    events …… | ▶ [rest of an event | padding | events, the last perhaps in part] ▶ size bytes, exactly

Rule 1: a frame's size is chosen before the first token, from the request and the pace, never from the text.
Rule 2: it changes only when more than LATE frames are waiting: to the next class, for good. So a size changes
        once or twice in an answer at most, and the delay of text is bounded.
Rule 3: padding is a comment, which SSE clients discard. Its characters are random, so that a proxy that compresses
        in spite of no-transform doesn't shrink it more than text.

How long an answer takes still shows. Knows bytes of events and a clock; knows no tokens and no mesh.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from collections.abc import Callable

from aiohttp import web

from mesh.clock import Clock, SystemClock, Timer
from services.streamer.door.connections import WRITE_BUFFER
from services.streamer.door.sse import HEADERS, EventStream, around_text
from services.streamer.openai.request import Request

SMALLEST = 512  # bytes of the smallest class; each is the double of the one before
LARGEST = WRITE_BUFFER
LATE = 8  # frames that may wait
# What a frame has room for, for every choice and message of tokens.
ENVELOPE = 256  # bytes around a text
TEXT_AT_LEAST = 128  # bytes
TEXT_A_SECOND = 2000  # bytes: more than any reader reads
TOKENS_AT_LEAST = 8
TOKENS_A_SECOND = 300
TOKEN_ID_BYTES = 8
LOGPROB_BYTES = 110  # of one token: its text, its number, its bytes
ORIGIN_BYTES = 110  # of a run, which may be of one token
USAGE_BYTES = 80  # of a choice so far
DRAFT_BYTES = 90  # of a run: the offsets of its tokens, and some rejected ones

COMMENT_LEAST = 3  # bytes of an empty comment and the line behind it


def frame_size(request: Request, pace: float) -> int:
    """The size class of a request. It doesn't depend on the answer."""
    text = max(TEXT_AT_LEAST, int(TEXT_A_SECOND * pace))
    tokens = max(TOKENS_AT_LEAST, int(TOKENS_A_SECOND * pace))
    a_token = TOKEN_ID_BYTES * request.return_token_ids + ORIGIN_BYTES * request.return_provenance
    a_token += DRAFT_BYTES * request.speculation.return_drafts
    if request.sampling.logprobs >= 0:
        a_token += LOGPROB_BYTES * (1 + request.sampling.logprobs)
    envelope = ENVELOPE + len(request.model) + USAGE_BYTES * request.continuous_usage
    return size_class(request.choices * (envelope + text + tokens * a_token))


def size_class(wanted: int) -> int:
    size = SMALLEST
    while size < min(wanted, LARGEST):
        size *= 2
    return size


def padding(length: int) -> bytes:
    """Padding of this number of bytes between two events."""
    if length < COMMENT_LEAST:
        return b"\n" * length
    inside = length - COMMENT_LEAST
    return b":" + secrets.token_urlsafe(inside)[:inside].encode() + b"\n\n"


class _Waiting:
    """An event, or several text chunks of one choice that have become one."""

    __slots__ = ("after", "before", "middle", "size")

    def __init__(self, before: bytes, middle: bytes = b"", after: bytes = b"") -> None:
        self.before = before
        self.middle = [middle]
        self.after = after
        self.size = len(before) + len(middle) + len(after)

    def take_in(self, text: bytes) -> None:
        self.middle.append(text)
        self.size += len(text)

    def whole(self) -> bytes:
        return b"".join([self.before, *self.middle, self.after])


class Backlog:
    """Waiting events, and the frames made of them."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._begun = b""  # the rest of an event of which a part was sent
        self._events: deque[_Waiting] = deque()
        # Text chunks that may still grow, by the bytes before and behind their text.
        self._open: dict[tuple[bytes, bytes], _Waiting] = {}
        self.waiting = 0  # bytes

    def add(self, events: bytes) -> None:
        for each in events.split(b"\n\n")[:-1]:
            self._add_one(each + b"\n\n")

    def _add_one(self, event: bytes) -> None:
        parts = around_text(event)
        if parts is None:
            # Anything else stays behind the text that came before it, and before the text that comes after it.
            self._open.clear()
            self._append(_Waiting(event))
            return
        before, text, after = parts
        if (grown := self._open.get((before, after))) is not None:
            grown.take_in(text)
            self.waiting += len(text)
            return
        self._open[before, after] = each = _Waiting(before, text, after)
        self._append(each)

    def _append(self, each: _Waiting) -> None:
        self._events.append(each)
        self.waiting += each.size

    def frame(self) -> bytes:
        """The next `size` bytes."""
        if self.waiting > LATE * self.size:
            self.size = min(2 * self.size, LARGEST)
        parts = [self._begun[: self.size]]
        self._begun = self._begun[self.size :]
        room = self.size - len(parts[0])
        while room and self._events:
            each = self._events.popleft()
            self._open.pop((each.before, each.after), None)
            whole = each.whole()
            parts.append(whole[:room])
            self._begun = whole[room:]
            room -= len(parts[-1])
        self.waiting -= self.size - room
        # Behind what was begun, before what is whole: an event that fits is not held up.
        parts.insert(1, padding(room))
        return b"".join(parts)


class PacedStream(EventStream):
    """An event stream that writes at ticks only, from its first event to its end."""

    def __init__(
        self, http: web.BaseRequest, *, pace: float, size: int, clock: Clock | None = None
    ) -> None:
        # Compression would tell padding from text.
        super().__init__(http, {**HEADERS, "Cache-Control": "no-cache, no-transform"})
        self._pace = pace
        self._clock = clock or SystemClock()
        self._backlog = Backlog(size)
        self._due = 0.0  # the time of the next tick
        self._timer: Timer | None = None
        self._ending = False
        self._closed = False
        self._ticked = asyncio.Event()

    def write(self, events: bytes) -> None:
        self._backlog.add(events)
        if self._timer is None and not self._closed:
            # The first tick: at the end of this turn of the loop.
            self._due = self._clock.now()
            self._timer = self._clock.call_later(0.0, self._tick)

    @property
    def full(self) -> bool:
        return self._backlog.waiting > WRITE_BUFFER or super().full

    async def writable(self) -> None:
        await self._until(lambda: self._backlog.waiting <= WRITE_BUFFER)
        await super().writable()

    async def _written(self) -> None:
        self._ending = True
        await self._until(lambda: self._backlog.waiting == 0)

    def close(self) -> None:
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._wake()

    async def _until(self, reached: Callable[[], bool]) -> None:
        while not reached():
            if self._closed:
                raise ConnectionResetError("the client is gone")
            await self._ticked.wait()

    def _wake(self) -> None:
        self._ticked.set()
        self._ticked = asyncio.Event()

    def _tick(self) -> None:
        if self._transport is None or self._transport.is_closing():
            self.close()
            return
        # A slow network shows its own pattern, not ours; and unread data doesn't accumulate.
        if not super().full:
            super().write(self._backlog.frame())
        if self._ending and not self._backlog.waiting:
            self.close()
            return
        # A tick that came late does not move the others, and those that were missed are not made up for.
        late = max(0.0, self._clock.now() - self._due)
        self._due += self._pace * (1 + int(late // self._pace))
        self._timer = self._clock.call_later(self._due - self._clock.now(), self._tick)
        self._wake()
