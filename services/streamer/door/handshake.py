"""TLS of new connections: the certificate, read again when its files change, and the handshake before HTTP.

    accepted ─▶ handshake, at most body_timeout ─▶ Connection (connections.py)

A handshake has a place among the connections, so that silent clients can't take all descriptors: what asyncio's own
servers accept is unbounded until it is over. Running connections keep the keys that they have agreed on. Knows no HTTP.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import Callable
from typing import Protocol

from services.api.certificates import server_context
from services.streamer.door.file_watch import FileWatch

log = logging.getLogger("specmesh.streamer")

BACKLOG = 1024  # connections that the kernel accepts for us
ACCEPT_PAUSE = 1.0  # s, when there are no descriptors left


class Certificate:
    """Raises ValueError if the first cannot be used; later ones that cannot are logged, and the last good one stays."""

    def __init__(self, certfile: str, keyfile: str = "") -> None:
        self._certfile, self._keyfile = certfile, keyfile
        self._watch = FileWatch(certfile, keyfile or certfile)
        self._context = server_context(certfile, keyfile)

    def context(self) -> ssl.SSLContext:
        """For the next connection."""
        if self._watch.changed():
            try:
                self._context = server_context(self._certfile, self._keyfile)
            except (OSError, ValueError) as error:
                # Between the writing of two files they don't fit, or one is missing.
                log.error("the certificate in use stays: %s", error)
            else:
                log.info("the certificate was read again: %s", self._certfile)
        return self._context


class Places(Protocol):
    """Where handshakes are counted (connections.py)."""

    handshakes: set[asyncio.Task[None]]
    body_timeout: float

    def has_room_for_handshake(self) -> bool: ...


class TlsSite:
    """Listens, and hands every connection that has agreed on TLS to a protocol of `factory`."""

    def __init__(
        self, places: Places, certificate: Certificate, factory: Callable[[], asyncio.Protocol], *,
        host: str, port: int, reuse_port: bool,
    ) -> None:  # fmt: skip
        self._places = places
        self._certificate = certificate
        self._factory = factory
        self._host, self._port, self._reuse_port = host, port, reuse_port
        self._sockets: list[socket.socket] = []
        self._accepting: list[asyncio.Task[None]] = []

    @property
    def port(self) -> int:
        return int(self._sockets[0].getsockname()[1])

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        flags = socket.AI_PASSIVE
        found = await loop.getaddrinfo(self._host or None, self._port, type=socket.SOCK_STREAM, flags=flags)
        for family, address in dict.fromkeys((family, address[:2]) for family, _, _, _, address in found):
            listens = socket.create_server(address, family=family, backlog=BACKLOG, reuse_port=self._reuse_port)
            listens.setblocking(False)
            self._sockets.append(listens)
            self._accepting.append(loop.create_task(self._accept(listens), name="streamer-accept"))

    async def stop(self) -> None:
        """No new connections; those that there are go on."""
        for task in self._accepting:
            task.cancel()
        await asyncio.gather(*self._accepting, return_exceptions=True)
        for each in self._sockets:
            each.close()
        self._accepting.clear()
        self._sockets.clear()

    async def _accept(self, listens: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                opened, _ = await loop.sock_accept(listens)
            except OSError as error:
                log.warning("a connection was not accepted: %s", error)
                await asyncio.sleep(ACCEPT_PAUSE)
                continue
            if not self._places.has_room_for_handshake():
                opened.close()
                continue
            task = loop.create_task(self._agree(opened), name="streamer-handshake")
            self._places.handshakes.add(task)
            task.add_done_callback(self._places.handshakes.discard)

    async def _agree(self, opened: socket.socket) -> None:
        try:
            context = self._certificate.context()
        except BaseException:
            opened.close()
            raise
        # Of TLS, of time and of lost connections: the client's affair. The socket is the loop's from here on.
        with contextlib.suppress(OSError):
            await asyncio.get_running_loop().connect_accepted_socket(
                self._factory, opened, ssl=context, ssl_handshake_timeout=self._places.body_timeout
            )
