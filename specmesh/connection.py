"""Requests of the HTTP API from plain Python and from coroutines: an event loop in a thread of its own.

A connection goes to a URL, or to the Unix socket of a mesh on this machine. The thread is started with the first
request, and by each process for itself: a forked child has none of its parent's.
"""

from __future__ import annotations

import asyncio
import json
import os
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping
from concurrent.futures import wait
from itertools import islice
from queue import SimpleQueue
from typing import Any, TypeVar

import aiohttp

from specmesh.certificates import trusting

# Between two attempts of a request that the server had no room for.
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 2.0
READY_EVERY = 0.05
NO_TIMEOUT = aiohttp.ClientTimeout(total=None)
LONGEST_EVENT = 1 << 24

T = TypeVar("T")
R = TypeVar("R")


class RequestFailed(RuntimeError):
    """The server refused a request, or couldn't answer it. `status`: of HTTP; `param`: the field at fault."""

    def __init__(self, status: int, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.param = param


class Connection:
    def __init__(self, url: str, socket: str = "", api_key: str = "", certificate: str = "") -> None:
        """`certificate`: the file of the server's own; this one is trusted, for whatever name it is."""
        self.url = url.rstrip("/").removesuffix("/v1")
        self._socket = socket
        self._certificate = certificate
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._session: aiohttp.ClientSession | None = None
        self._lock = threading.Lock()
        self._pid = os.getpid()

    # The thread -----------------------------------------------------------------------------------------

    def run(self, work: Coroutine[Any, Any, T], meanwhile: Callable[[], None] | None = None, every: float = 0.0) -> T:
        """From plain Python. Ctrl-C ends the work. `meanwhile` is called in this thread, every `every` seconds."""
        future = asyncio.run_coroutine_threadsafe(work, self._running())
        try:
            while meanwhile is not None and not wait([future], every).done:
                meanwhile()
            return future.result()
        except BaseException:
            future.cancel()
            raise

    async def awaited(self, work: Coroutine[Any, Any, T]) -> T:
        """From a coroutine of another loop."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._running()))

    def iterate(self, items: AsyncIterator[T]) -> Iterator[T]:
        """From plain Python, as they come. Leaving the iteration ends the work."""
        queue: SimpleQueue[tuple[T | None, BaseException | None, bool]] = SimpleQueue()
        future = asyncio.run_coroutine_threadsafe(_put_all(items, queue.put), self._running())
        try:
            while True:
                item, error, over = queue.get()
                if error is not None:
                    raise error
                if over:
                    return
                yield item  # type: ignore[misc]
        finally:
            future.cancel()

    def _running(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._pid != os.getpid():
                raise RuntimeError("this object was made before a fork: make another one in this process")
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(target=self._loop.run_forever, name="specmesh", daemon=True).start()
            return self._loop

    def close(self) -> None:
        """Repeat-safe."""
        with self._lock:
            loop, self._loop = self._loop, None
        if loop is None or self._pid != os.getpid():
            return
        asyncio.run_coroutine_threadsafe(self._close(), loop).result(5.0)
        loop.call_soon_threadsafe(loop.stop)

    async def _close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    # Requests, in the thread ----------------------------------------------------------------------------

    async def ready(self, seconds: float, check: Callable[[], None]) -> None:
        """Wait until the server can answer; `check` raises what makes waiting useless."""
        end = time.monotonic() + seconds
        while True:
            check()
            try:
                async with self._http().get(f"{self.url}/health/ready") as response:
                    if response.status == 200:
                        return
            except aiohttp.ClientError:
                pass
            if time.monotonic() > end:
                raise TimeoutError(f"the server isn't ready after {seconds:g} s")
            await asyncio.sleep(READY_EVERY)

    async def get(self, path: str) -> Any:
        async with self._http().get(self.url + path) as response:
            await _check(response)
            return await response.json() if "json" in response.content_type else await response.text()

    async def post(self, path: str, body: dict[str, Any]) -> Any:
        """Tried again while the server has no room."""
        pause = FIRST_PAUSE
        while True:
            async with self._http().post(self.url + path, json=body) as response:
                if response.status != 429:
                    await _check(response)
                    return json.loads(await response.read())
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    async def exchange(self, path: str, body: bytes) -> tuple[int, Mapping[str, str], bytes]:
        """Status, headers and body of the answer to one try, whatever it is."""
        headers = {"Content-Type": "application/json"}
        async with self._http().post(self.url + path, data=body, headers=headers) as response:
            return response.status, response.headers, await response.read()

    async def events(self, path: str, body: dict[str, Any]) -> AsyncIterator[Any]:
        """The events of a streamed answer."""
        async with self._http().post(self.url + path, json=body | {"stream": True}) as response:
            await _check(response)
            async for line in response.content:
                if not line.startswith(b"data: ") or line == b"data: [DONE]\n":
                    continue
                event = json.loads(line[6:])
                if "error" in event:
                    raise _failure(response.status, event)
                yield event

    def _http(self) -> aiohttp.ClientSession:
        if self._session is None:
            # As many connections as there are requests: the caller bounds those.
            connector: aiohttp.BaseConnector = (
                aiohttp.UnixConnector(self._socket, limit=0)
                if self._socket
                else aiohttp.TCPConnector(limit=0, ssl=trusting(self._certificate) if self._certificate else True)
            )
            self._session = aiohttp.ClientSession(
                connector=connector, headers=self._headers, timeout=NO_TIMEOUT, read_bufsize=LONGEST_EVENT
            )
        return self._session


async def _put_all(items: AsyncIterator[T], put: Callable[[tuple[T | None, BaseException | None, bool]], None]) -> None:
    try:
        async for item in items:
            put((item, None, False))
    except Exception as error:
        put((None, error, False))
    else:
        put((None, None, True))


async def in_parallel(items: Iterable[T], work: Callable[[T], Coroutine[Any, Any, R]], width: int) -> list[R]:
    """The results in the order of `items`, at most `width` of which are taken and worked on at a time. The first that
    fails ends all."""
    found: dict[int, R] = {}
    left = enumerate(items)

    async def worker(place: int, item: T) -> None:
        found[place] = await work(item)
        for place, item in left:
            found[place] = await work(item)

    async with asyncio.TaskGroup() as group:
        for place, item in islice(left, width):
            group.create_task(worker(place, item))
    return [found[place] for place in range(len(found))]


async def _check(response: aiohttp.ClientResponse) -> None:
    if response.status >= 400:
        text = await response.text()
        try:
            body = json.loads(text)
        except ValueError:
            body = {"error": {"message": text[:500]}}
        raise _failure(response.status, body)


def _failure(status: int, body: dict[str, Any]) -> RequestFailed:
    error = body["error"] if isinstance(body.get("error"), dict) else {"message": str(body)}
    return RequestFailed(status, str(error.get("message")), error.get("param"))
