"""The other nodes of a split worker, as node 0 sees them: members of the mesh, found in the directory (node_actor.py is
the other side).

    directory ─▶ members with the role worker-node
    JoinWorker ─▶ each of them, repeated until all have joined; a node that doesn't fit is refused, with the reason
    RunRanks   ─▶ all of them at once: a stream each, open as long as both sides live

The end of a stream is the end of that node's ranks, and so of the worker (ranks.py). The connections live in the event
loop; `gather` and `run` are called from the thread that loads the model.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine
from dataclasses import astuple
from typing import TYPE_CHECKING, Any, Protocol

from mesh.actor import Home
from mesh.directory.membership import Member
from mesh.errors import MeshError, RemoteError
from mesh.ref import Ref
from mesh.stream import StreamReader
from models.fingerprint import Fingerprint
from services.api.messages import JoinWorker, NodeJoined, RunRanks
from services.api.nodes import ANOTHER_WORKER, WORKER_NODE, meeting_address, own_address
from services.runtime.version import own_version

if TYPE_CHECKING:
    from services.runtime.process import Context

log = logging.getLogger("specmesh.worker")

# Seconds between two looks at the nodes that are missing, and for one answer.
RETRY, ANSWER = 0.5, 2.0
# A stream has a deadline, and a worker none: another stream takes over now and then.
RENEW = 7 * 86400.0  # s


class Directory(Protocol):
    def ready(self, role: str) -> list[Member]: ...

    def on_change(self, callback: Callable[[], None]) -> None: ...


class Nodes:
    def __init__(
        self, home: Home, directory: Directory, host: str, port: int, nodes: int, ranks: int, renew: float = RENEW
    ) -> None:
        """`host`: where ranks of other nodes meet those of this one. `port` tells this worker from others. To be made
        in the event loop."""
        self.host, self.count = host, nodes
        self._home, self._directory, self._port, self._ranks, self._renew = home, directory, port, ranks, renew
        self._loop = asyncio.get_running_loop()
        self._changed = asyncio.Event()
        directory.on_change(self._changed.set)
        self._joined: dict[int, Member] = {}
        self._held: set[asyncio.Task[None]] = set()
        # What was said of a node last: one that is refused may come again and again.
        self._said: dict[str, str] = {}

    def gather(self, model: Fingerprint) -> None:
        """Returns when all have joined, however long that takes."""
        join = JoinWorker(
            port=self._port, version=own_version(), nodes=self.count, ranks=self._ranks, model=astuple(model)
        )
        self._in_loop(self._gather(join))

    def run(self, told: RunRanks, lost: Callable[[str], Any]) -> None:
        """On all nodes. `lost` is called in the event loop when the ranks of one have ended, or can't be begun."""
        self._in_loop(self._run(told, lost))

    def close(self) -> None:
        """In the event loop. Nothing is lost after this."""
        for task in self._held:
            task.cancel()

    def _in_loop(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def _gather(self, join: JoinWorker) -> None:
        while True:
            members = self._directory.ready(WORKER_NODE)
            numbers = await asyncio.gather(*(self._ask(member, join) for member in members))
            self._joined = {number: member for number, member in zip(numbers, members, strict=True) if number}
            missing = [number for number in range(1, self.count) if number not in self._joined]
            if not missing:
                return
            which = f"node {missing[0]}" if len(missing) == 1 else f"nodes {', '.join(map(str, missing))}"
            self._say_once("", f"waiting for {which} of {self.count}")
            self._changed.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(RETRY):
                    await self._changed.wait()

    async def _ask(self, member: Member, join: JoinWorker) -> int:
        """The node's number; 0: it is none of this worker's."""
        try:
            answer = await self._ref(member).ask(join, timeout=ANSWER)
        except RemoteError as error:
            if error.reason != ANOTHER_WORKER:
                self._say_once(member.instance, f"{_place(member)} is refused: {error.message}")
        except MeshError as error:
            self._say_once(member.instance, f"{_place(member)} doesn't join yet: {error}")
        else:
            if isinstance(answer, NodeJoined) and 0 < answer.node < self.count:
                return answer.node
        return 0

    async def _run(self, told: RunRanks, lost: Callable[[str], Any]) -> None:
        for number, member in self._joined.items():
            log.info("node %d is there: %s", number, _place(member))
            name = f"node {number} ({_place(member)})"
            task = self._loop.create_task(self._live_with(self._ref(member), name, told, lost))
            self._held.add(task)
            task.add_done_callback(self._held.discard)

    async def _live_with(self, node: Ref, name: str, told: RunRanks, lost: Callable[[str], Any]) -> None:
        try:
            await self._hold(node, told)
        except RemoteError as error:
            lost(f"{name}: {error.message}")
        except MeshError as error:
            lost(f"{name}: {error}")

    async def _hold(self, node: Ref, told: RunRanks) -> None:
        """Until the node's ranks have ended. Raises MeshError, which says why."""
        held: list[StreamReader] = []
        try:
            while True:
                items = await node.stream(told, timeout=2 * self._renew).__aenter__()
                held.append(items)
                # It holds the ranks, too, from its first item on.
                await anext(items)
                while len(held) > 1:
                    held.pop(0).close()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._renew):
                        await anext(items)
        finally:
            for items in held:
                items.close()

    def _ref(self, member: Member) -> Ref:
        return self._home.ref(member.endpoint, WORKER_NODE)

    def _say_once(self, about: str, text: str) -> None:
        if self._said.get(about) != text:
            self._said[about] = text
            log.warning("%s", text)


def nodes_of(context: Context) -> Nodes:
    """By the settings. Raises ValueError."""
    settings = context.settings
    host, port = meeting_address(settings.master_addr, settings.master_port)
    ranks = settings.tensor_parallel_size
    return Nodes(context.node, context.directory, own_address(host), port, settings.nnodes, ranks)


def _place(member: Member) -> str:
    return member.endpoint.removeprefix("tcp://").rpartition(":")[0]
