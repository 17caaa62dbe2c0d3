"""Admission of requests: counts those admitted and not ended, refuses further ones at the limit and while draining.

The limit is of the mesh: what other streamers hold counts, as the directory told it last. It tells it up to a second
late, and meanwhile each may hold more: they are taken to have grown as much as this one (growth.py). So the limit is
kept by streamers that grow alike, as those do whose connections the kernel shares out; and whatever comes, all together
never hold twice of it but for a request each. Where there are several API keys, the last quarter of the room is for
keys that hold less than an equal share, so that one caller can't keep the others out.

Every admitted request holds a `AdmissionTicket` until its end, whatever the end is: admitted = ended + running.
Knows no HTTP parsing and no mesh.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from types import TracebackType

from services.streamer.choice.growth import Growth
from services.streamer.openai.errors import ApiError

# Of the limit, for callers that hold less than an equal share.
KEPT_FOR_OTHERS = 0.25
RETRY_BUSY = 1  # seconds: a slot is free as soon as any request ends
RETRY_DRAINING = 5  # seconds: about the time of a restart


class AdmissionTicket:
    """One admitted request. Works like asyncio.timeout_at, and can be ended early with a reason."""

    __slots__ = ("_admission", "_ended_by", "_timeout", "caller", "weight")

    def __init__(self, admission: Admission, weight: int, deadline: float, caller: bytes = b"") -> None:
        self._admission = admission
        self._timeout = asyncio.timeout_at(deadline)
        self._ended_by: ApiError | None = None
        self.weight = weight
        self.caller = caller

    @property
    def deadline(self) -> float:
        when = self._timeout.when()
        assert when is not None
        return when

    def end(self, error: ApiError) -> None:
        """The request ends now, with `error`."""
        if self._ended_by is None and not self._timeout.expired():
            self._ended_by = error
            self._timeout.reschedule(0.0)

    async def __aenter__(self) -> AdmissionTicket:
        self._admission.enter(self)
        try:
            await self._timeout.__aenter__()
        except BaseException:
            self._admission.leave(self)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._admission.leave(self)
        try:
            await self._timeout.__aexit__(kind, error, trace)
        except TimeoutError:
            raise self._ended_by or deadline_passed() from None


class Admission:
    """Bounded by `max_waiting` choices: a request for three answers weighs three. `elsewhere`: the number of other
    streamers, and the choices that they hold. `callers`: how many API keys there are."""

    def __init__(
        self,
        max_waiting: int,
        request_timeout: float,
        elsewhere: Callable[[], tuple[int, int]] = lambda: (0, 0),
        callers: Callable[[], int] = lambda: 1,
    ) -> None:
        self._max_waiting = max_waiting
        self._elsewhere = elsewhere
        self._callers = callers
        # Choices by API key, of those that have any.
        self._held: Counter[bytes] = Counter()
        self._request_timeout = request_timeout
        self._growth = Growth()
        self._tickets: set[AdmissionTicket] = set()
        # One of the two is set: requests are running, or none is.
        self.busy, self.idle = asyncio.Event(), asyncio.Event()
        self.idle.set()
        self.running = 0
        self.draining = False

    @property
    def most(self) -> int:
        """The most choices of one request."""
        return self._max_waiting

    def admit(self, weight: int, caller: bytes = b"") -> AdmissionTicket:
        """A ticket to enter (`async with`), or the reason why not. Nothing is counted before it is entered. `caller`:
        the API key."""
        if self.draining:
            raise draining()
        if weight > self._max_waiting:
            message = f"{weight} answers at once are more than the {self._max_waiting} this server takes"
            raise ApiError(400, message, param="n", code="out_of_range")
        others, held = self._elsewhere()
        total = self.running + held + others * self._grown()
        if total + weight > self._max_waiting:
            raise too_many("The server has as many requests as it can hold; try again")
        active = len(self._held) + (caller not in self._held)
        if self._callers() > 1 and above_share(self._held[caller] + weight, total + weight, active, self._max_waiting):
            raise too_many("The server is nearly full, and this key has its share of it; try again")
        return AdmissionTicket(self, weight, asyncio.get_running_loop().time() + self._request_timeout, caller)

    def _grown(self) -> int:
        return self._growth.note(self.running, asyncio.get_running_loop().time())

    def enter(self, ticket: AdmissionTicket) -> None:
        self._grown()
        self._tickets.add(ticket)
        self.running += ticket.weight
        self._held[ticket.caller] += ticket.weight
        self.busy.set()
        self.idle.clear()

    def leave(self, ticket: AdmissionTicket) -> None:
        self._grown()
        self._tickets.remove(ticket)
        self.running -= ticket.weight
        self._grown()
        self._held[ticket.caller] -= ticket.weight
        if not self._held[ticket.caller]:
            del self._held[ticket.caller]
        if not self._tickets:
            self.busy.clear()
            self.idle.set()

    async def drain(self, timeout: float) -> None:
        """Refuse new requests; wait for the running ones, then end them with a reason."""
        self.draining = True
        try:
            async with asyncio.timeout(timeout):
                await self.idle.wait()
        except TimeoutError:
            for ticket in list(self._tickets):
                ticket.end(draining())
            await self.idle.wait()


def above_share(held: int, total: int, active: int, limit: int) -> bool:
    """Whether a caller that would hold `held` of `total` choices has to leave the rest to others. `active`: callers
    that hold any, itself included."""
    return total > limit * (1 - KEPT_FOR_OTHERS) and held * max(2, active) > limit


def too_many(message: str) -> ApiError:
    return ApiError(429, message, code="too_many_requests", retry_after=RETRY_BUSY)


def draining() -> ApiError:
    message = "The server is shutting down; try again"
    return ApiError(503, message, code="draining", retry_after=RETRY_DRAINING)


def deadline_passed() -> ApiError:
    return ApiError(504, "The request took longer than the server allows", code="request_timeout")
