"""The other nodes of a split worker, as node 0 sees them: they come, are checked, and are told what their ranks need.

While one is missing, whoever can't belong is refused by name and the wait goes on. Once all are told, the end of any is
the end of the worker (ranks.py). other_node.py is the other side.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
from collections.abc import Callable
from dataclasses import astuple
from typing import Any

from models.errors import ModelError
from models.fingerprint import Fingerprint
from services.runtime.version import own_version
from services.worker.parallel.line import Beats, Hello, Line, LineLost, Lost, Message, Refused
from services.worker.parallel.meeting import Meeting

log = logging.getLogger("specmesh.worker")

# Connections that haven't said what they are.
MOST_STRANGERS = 64


class Nodes:
    def __init__(self, meeting: Meeting, ranks: int, model: Fingerprint, lost: Callable[[str], Any]) -> None:
        """`lost` is called in any thread, after `tell`. Raises `ModelError` where the address can't be had."""
        self._meeting, self._ranks, self._model, self._lost = meeting, ranks, model, lost
        self._changed = threading.Condition()
        self._there: dict[int, tuple[Line, Beats]] = {}
        self._told = self._closed = False
        self._last_said = ""
        self._strangers = threading.Semaphore(MOST_STRANGERS)
        self._listener = _listening(meeting)
        # Without a name that has to be looked up.
        self.host: str = self._listener.getsockname()[0]
        threading.Thread(target=self._accept, name="nodes", daemon=True).start()

    def gather(self) -> None:
        """Returns when all are there, however long that takes."""
        at = f"{self._meeting.host}:{self._meeting.port}"
        with self._changed:
            while missing := [node for node in range(1, self._meeting.nodes) if node not in self._there]:
                which = f"node {missing[0]}" if len(missing) == 1 else f"nodes {', '.join(map(str, missing))}"
                log.warning("waiting at %s for %s of %d", at, which, self._meeting.nodes)
                self._changed.wait()
            self._told = True
        # Whoever comes now waits for the next worker.
        self._close_listener()

    def tell(self, message: Message) -> None:
        for node, (line, _) in sorted(self._there.items()):
            try:
                line.say(message)
            except LineLost as error:
                self._lost(f"node {node}: {error}")

    def close(self) -> None:
        with self._changed:
            self._closed = True
        self._close_listener()
        for line, beats in list(self._there.values()):
            beats.close()
            line.close()

    def _close_listener(self) -> None:
        # A thread that accepts is woken by it, which a close alone doesn't do.
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, address = self._listener.accept()
            except OSError:
                return
            if self._strangers.acquire(blocking=False):
                arguments = connection, str(address[0])
                threading.Thread(target=self._meet, args=arguments, name="node", daemon=True).start()
            else:
                connection.close()

    def _meet(self, connection: socket.socket, address: str) -> None:
        try:
            line = Line(connection, self._meeting.secret, first=True)
            hello = line.hear()
        except LineLost as error:
            connection.close()
            self._say_once(f"{address} is refused: {error}")
            return
        finally:
            self._strangers.release()
        refused = self._welcome(hello, line)
        if refused is None:
            assert isinstance(hello, Hello)
            self._live_with(hello.node, line, address)
            return
        self._say_once(f"{address} is refused: {refused.why}")
        with contextlib.suppress(LineLost):
            line.say(refused)
        line.close()

    def _say_once(self, text: str) -> None:
        """Who is refused may come again and again."""
        if text != self._last_said:
            self._last_said = text
            log.warning("%s", text)

    def _welcome(self, hello: object, line: Line) -> Refused | None:
        """None: it belongs here."""
        if not isinstance(hello, Hello):
            return Refused("it didn't say what it has", False)
        if why := self._unfit(hello):
            return Refused(f"node {hello.node} {why}", False)
        with self._changed:
            if hello.node in self._there or self._told:
                return Refused(f"node {hello.node} is there already", True)
            self._there[hello.node] = line, Beats(line)
            self._changed.notify_all()
        return None

    def _unfit(self, hello: Hello) -> str:
        version, nodes = own_version(), self._meeting.nodes
        if hello.version != version:
            return f"runs specmesh {hello.version}, and node 0 {version}"
        if hello.nodes != nodes:
            return f"was started with nnodes {hello.nodes}, and node 0 with {nodes}"
        if hello.ranks != self._ranks:
            return f"was started with tensor_parallel_size {hello.ranks}, and node 0 with {self._ranks}"
        if not 0 < hello.node < nodes:
            return f"is none of 1 to {nodes - 1}"
        model = Fingerprint(*hello.model)
        if difference := self._model.difference(model):
            return f"has another model: {model.name} beside {self._model.name}, with {difference}"
        return ""

    def _live_with(self, node: int, line: Line, address: str) -> None:
        log.info("node %d is there: %s", node, address)
        try:
            while not isinstance(message := line.hear(), Lost):
                pass
            why = message.why
        except LineLost as error:
            why = str(error)
        with self._changed:
            told, closed = self._told, self._closed
            if not told:
                self._there.pop(node)[1].close()
                self._changed.notify_all()
        line.close()
        if told and not closed:
            self._lost(f"node {node} ({address}): {why}")


def _listening(meeting: Meeting) -> socket.socket:
    at = f"{meeting.host}:{meeting.port}"
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(meeting.host, meeting.port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen(MOST_STRANGERS)
        except OSError:
            listener.close()
            raise
    except OSError as error:
        fix = "set master_addr to an address of this machine that the other nodes reach, and master_port to a free port"
        raise ModelError(f"{at}, where the nodes are to meet, can't be had: {error.strerror or error}", fix) from error
    return listener


def hello_of(model: Fingerprint, node: int, nodes: int, ranks: int) -> Hello:
    return Hello(own_version(), nodes, node, ranks, astuple(model))
