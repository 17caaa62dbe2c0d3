"""Sends spans to a collector of OpenTelemetry: OTLP over HTTP, as JSON.

    add ──▶ queue, at most MOST spans ──▶ one POST with up to BATCH of them, at most one a second unless more wait

Rule 1: Adding never waits. When the queue is full, the spans of further requests are dropped, and counted.
Rule 2: Spans leave the queue when the collector has taken them, or refuses them for good. While it doesn't answer or
        is overloaded, they are sent again, less and less often.
Rule 3: A stop sends what is left, for a second at most.

Knows nothing of what spans tell.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import islice
from typing import Any

import aiohttp
import orjson

from mesh.clock import Clock

log = logging.getLogger("specmesh.traces")

MOST = 4096  # spans that wait, about 1 KB each
BATCH = 512
LINGER = 1.0  # seconds
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 30.0  # seconds until a batch is sent again
TIMEOUT = 10.0  # seconds for a POST
LAST = 1.0  # seconds that a stop may take
NO_ANSWER = 0
AGAIN = (NO_ANSWER, 429, 502, 503, 504)
SENT, DROPPED = "sent", "dropped"


class Collector:
    """The collector at `url`, which gets these headers, too. Needs a running event loop."""

    def __init__(self, url: str, headers: Mapping[str, str] | None = None) -> None:
        self._url = url
        self._session = aiohttp.ClientSession(
            headers=headers, timeout=aiohttp.ClientTimeout(total=TIMEOUT), cookie_jar=aiohttp.DummyCookieJar()
        )

    async def post(self, body: bytes) -> int:
        """The status of its answer."""
        headers = {"Content-Type": "application/json"}
        try:
            async with self._session.post(self._url, data=body, headers=headers, allow_redirects=False) as response:
                return response.status
        except (aiohttp.ClientError, OSError, TimeoutError):
            return NO_ANSWER

    async def close(self) -> None:
        await self._session.close()


def resource(service: str, instance: str) -> dict[str, Any]:
    """What sends the spans, in OTLP."""
    told = {"service.name": service, "service.instance.id": instance}
    return {"attributes": [{"key": key, "value": {"stringValue": value}} for key, value in told.items()]}


class SpanExporter:
    """`resource` describes this process, `counted` hears of spans sent and dropped."""

    def __init__(
        self,
        post: Callable[[bytes], Awaitable[int]],
        resource: dict[str, Any],
        clock: Clock,
        counted: Callable[[str, int], None],
    ) -> None:
        self._post = post
        self._head = b'{"resourceSpans":[{"resource":%s,"scopeSpans":[{"scope":{"name":"specmesh"},"spans":[' % (
            orjson.dumps(resource)
        )
        self._clock = clock
        self._counted = counted
        self._spans: deque[bytes] = deque()
        self._some = asyncio.Event()
        self._status = 200

    def add(self, spans: Sequence[bytes]) -> None:
        """All spans of a request, each an object of OTLP as JSON."""
        if len(self._spans) + len(spans) > MOST:
            self._counted(DROPPED, len(spans))
            return
        self._spans += spans
        self._some.set()

    async def run(self) -> None:
        pause = 0.0
        while True:
            await self._some.wait()
            if pause or len(self._spans) < BATCH:
                await self._clock.sleep(pause or LINGER)
            pause = 0.0 if await self._send_batch() else min(LONGEST_PAUSE, 2 * pause or FIRST_PAUSE)

    async def close(self) -> None:
        """After run() was cancelled."""
        try:
            async with asyncio.timeout(LAST):
                while self._spans and await self._send_batch():
                    pass
        except TimeoutError:
            pass
        self._counted(DROPPED, len(self._spans))
        self._spans.clear()

    async def _send_batch(self) -> bool:
        """Whether its spans have left the queue."""
        batch = list(islice(self._spans, BATCH))
        status = await self._post(b"%s%s]}]}]}" % (self._head, b",".join(batch)))
        self._tell(status)
        if status in AGAIN:
            return False
        for _ in batch:
            self._spans.popleft()
        self._counted(SENT if 200 <= status < 300 else DROPPED, len(batch))
        if not self._spans:
            self._some.clear()
        return True

    def _tell(self, status: int) -> None:
        """A line whenever the collector changes its mind."""
        if status == self._status:
            return
        self._status = status
        if 200 <= status < 300:
            log.info("the collector takes traces")
        else:
            said = f"answers {status}" if status else "doesn't answer"
            log.warning("the collector of otlp_traces_endpoint %s: traces may be dropped", said)
