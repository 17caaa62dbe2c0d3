"""Admission of requests: counts those admitted and not ended, refuses further ones at the limit and while draining.

Every admitted request holds a `AdmissionTicket` until its end, whatever the end is: admitted = ended + running.
Knows no HTTP parsing and no mesh.
"""

from __future__ import annotations

import asyncio
from types import TracebackType

from services.streamer.errors import ApiError

RETRY_BUSY = 1  # seconds: a slot is free as soon as any request ends
RETRY_DRAINING = 5  # seconds: about the time of a restart


class AdmissionTicket:
    """One admitted request. Works like asyncio.timeout_at, and can be ended early with a reason."""

    __slots__ = ("_admission", "_ended_by", "_timeout", "weight")

    def __init__(self, admission: Admission, weight: int, deadline: float) -> None:
        self._admission = admission
        self._timeout = asyncio.timeout_at(deadline)
        self._ended_by: ApiError | None = None
        self.weight = weight

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
    """Bounded by `max_waiting` choices: a request for three answers weighs three."""

    def __init__(self, max_waiting: int, request_timeout: float) -> None:
        self._max_waiting = max_waiting
        self._request_timeout = request_timeout
        self._tickets: set[AdmissionTicket] = set()
        # One of the two is set: requests are running, or none is.
        self.busy, self.idle = asyncio.Event(), asyncio.Event()
        self.idle.set()
        self.running = 0
        self.draining = False

    def admit(self, weight: int) -> AdmissionTicket:
        """A ticket to enter (`async with`), or the reason why not. Nothing is counted before it is entered."""
        if self.draining:
            raise draining()
        if weight > self._max_waiting:
            message = f"{weight} answers at once are more than the {self._max_waiting} this server takes"
            raise ApiError(400, message, param="n", code="out_of_range")
        if self.running + weight > self._max_waiting:
            raise ApiError(
                429,
                "The server has as many requests as it can hold; try again",
                code="too_many_requests",
                retry_after=RETRY_BUSY,
            )
        return AdmissionTicket(self, weight, asyncio.get_running_loop().time() + self._request_timeout)

    def enter(self, ticket: AdmissionTicket) -> None:
        self._tickets.add(ticket)
        self.running += ticket.weight
        self.busy.set()
        self.idle.clear()

    def leave(self, ticket: AdmissionTicket) -> None:
        self._tickets.remove(ticket)
        self.running -= ticket.weight
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


def draining() -> ApiError:
    message = "The server is shutting down; try again"
    return ApiError(503, message, code="draining", retry_after=RETRY_DRAINING)


def deadline_passed() -> ApiError:
    return ApiError(504, "The request took longer than the server allows", code="request_timeout")
