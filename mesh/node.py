"""One process's end of the mesh: its door, its actors and its peers. Knows no sockets and no message types."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

from mesh.accepted import AcceptedPeer, draining, no_actor
from mesh.actor import Actor, Cell
from mesh.address import check_name, new_epoch, routing_id
from mesh.clock import Clock, SystemClock, Timer
from mesh.codec import Codec
from mesh.dialled import DialledPeer
from mesh.envelope import Farewell, Hello, decode_for_acceptor, encode_bundle
from mesh.errors import Malformed, MeshError, NotRunning, PeerLost, Stale
from mesh.loopback import Loopback
from mesh.metrics import BusMetrics, Gauges
from mesh.ref import Ref
from mesh.session import Timing
from mesh.transport import Frame, Line, LineOwner, Sent, Transport

log = logging.getLogger("mesh")

MAX_PEERS = 1024
MAX_KNOWN_NAMES = 4096
PROBES = 3


class Node:
    """Implements mesh.transport.Door. Use it from one event loop."""

    def __init__(
        self,
        transport: Transport,
        codec: Codec,
        *,
        name: str,
        clock: Clock | None = None,
        metrics: BusMetrics | None = None,
        epoch: int | None = None,
        timing: Timing | None = None,
    ) -> None:
        self.name = check_name(name)
        self.codec = codec
        self.clock: Clock = clock or SystemClock()
        self.metrics = metrics or BusMetrics()
        self.epoch = new_epoch() if epoch is None else epoch
        self.timing = timing or Timing()
        self.endpoint = f"mem://{name}.{self.epoch:x}"  # until start() binds another
        self.draining = False
        self._transport = transport
        self._loopback = Loopback()
        self._cells: dict[str, Cell] = {}
        self._dialled: dict[str, DialledPeer] = {}
        self._accepted: dict[bytes, AcceptedPeer] = {}
        self._newest: OrderedDict[str, int] = OrderedDict()
        self._tasks: set[asyncio.Task[None]] = set()
        self._numbers = 0
        self._probes = 0  # sweeps that still look for the dialler whose connection ended
        self._sweep_timer: Timer | None = None
        self._swept_at = -math.inf
        self._leaving = False
        self.metrics.attach(self._gauges)

    # For its owner ---------------------------------------------------------------------------------------

    async def start(self, endpoint: str | None = None) -> None:
        """Bind, and start watching time. Without an endpoint the node only dials."""
        if endpoint is not None:
            self.endpoint = await self._transport.bind(endpoint, self)
        self._sweep_timer = self.clock.call_later(self.timing.sweep, self._sweep)
        self._swept_at = self.clock.now()

    async def spawn(self, actor: Actor, name: str) -> Ref:
        """Run an actor under a name. What its on_start raises is raised here."""
        if name in self._cells:
            raise ValueError(f"an actor {name!r} is running already")
        actor.node = self
        actor.ref = self.ref(self.endpoint, name)
        cell = Cell(actor, name, self)
        self._cells[name] = cell
        try:
            await actor.on_start()
        except BaseException:
            del self._cells[name]
            raise
        return actor.ref

    def ref(self, endpoint: str, actor: str) -> Ref:
        return Ref(self, endpoint, actor)

    @property
    def actors(self) -> list[str]:
        return list(self._cells)

    async def stop_actor(self, name: str) -> None:
        """Repeat-safe; mail left in the box is answered NotRunning."""
        cell = self._cells.get(name)
        if cell is not None:
            try:
                await cell.stop()
            finally:
                self._cells.pop(name, None)

    async def stop(self, timeout: float = 5.0) -> None:
        """Stop the actors, let what they said last arrive (at most `timeout`), close everything."""
        self.draining = True
        began = time.monotonic()
        for name in reversed(list(self._cells)):
            left = max(0.05, timeout - (time.monotonic() - began))
            stopping = asyncio.get_running_loop().create_task(self.stop_actor(name))
            # Not wait_for: that would wait on for a handler that does not let itself be cancelled.
            done, _ = await asyncio.wait({stopping}, timeout=left)
            if not done:
                log.error("%s did not stop within %g s", name, timeout)
                stopping.cancel()
            elif (error := stopping.exception()) is not None:
                log.error("%s failed to stop", name, exc_info=error)
        # A moment is left for it even when the actors have used up the time: the peers need not wait in vain.
        await self._say_farewell(max(min(timeout, 0.05), timeout - (time.monotonic() - began)))
        if self._sweep_timer is not None:
            self._sweep_timer.cancel()
            self._sweep_timer = None
        for dialled in self._dialled.values():
            dialled.close()
        for accepted in self._accepted.values():
            accepted.lost(PeerLost("this node has stopped"))
        self._dialled.clear()
        self._accepted.clear()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._transport.close(min(timeout, self.timing.linger))

    async def _say_farewell(self, timeout: float) -> None:
        """A peer's Farewell says that it has read everything we sent before ours."""
        self._leaving = True
        told: list[DialledPeer | AcceptedPeer] = [
            *(peer for peer in self._dialled.values() if peer.reachable),
            *(peer for peer in self._accepted.values() if peer.gone_since is None),
        ]
        for peer in told:
            peer.farewell()
            peer.outbox.flush()
        # Real time, whatever clock the node has: the sockets live by it.
        started = time.monotonic()
        while (elapsed := time.monotonic() - started) < timeout:
            # A blocking link reads when it asks: it will find the Farewell then.
            waiting = [peer for peer in told if not peer.left and not peer.blocking]
            if not waiting or (elapsed > self.timing.farewell and not any(len(p.outbox) for p in waiting)):
                return
            await asyncio.sleep(0.002)

    # For peers ---------------------------------------------------------------------------------------------

    def peer(self, endpoint: str) -> DialledPeer:
        """The session with the node behind an endpoint; dialled when it is first used."""
        peer = self._dialled.get(endpoint)
        if peer is None:
            if self._leaving:
                raise NotRunning("this node has stopped")
            peer = self._dialled[endpoint] = DialledPeer(self, endpoint)
        return peer

    def tell(self, endpoint: str, actor: str, message: Any, trace: str) -> None:
        if self._leaving:
            self.metrics.drop("tell_after_stop")
        else:
            self.peer(endpoint).tell(actor, message, trace)

    def dial(self, endpoint: str, owner: LineOwner) -> Line:
        self._numbers += 1
        identity = routing_id(self.name, self.epoch, self._numbers)
        if endpoint == self.endpoint:
            return self._loopback.dial(self, identity, owner)
        return self._transport.dial(endpoint, identity, owner)

    def reply(self, identity: bytes, frames: Sequence[Frame]) -> Sent:
        sent = (
            self._loopback.reply(frames)
            if self._loopback.routing_id == identity
            else self._transport.reply(identity, frames)
        )
        if sent is Sent.SENT:
            self.metrics.bundles["sent"] += 1
        return sent

    def stay_awake(self, identity: bytes, seconds: float) -> None:
        self._transport.stay_awake(identity, seconds)

    def cell(self, name: str) -> Cell:
        """Raises NotRunning or Draining."""
        if self.draining:
            raise draining(self.name)
        cell = self._cells.get(name)
        if cell is None:
            raise no_actor(name)
        return cell

    def stop_for(self, peer: AcceptedPeer, id: int, actor: str) -> None:
        """A far Ref.stop(): in a task of its own, for it may come from the very actor."""
        if actor not in self._cells:
            raise no_actor(actor)

        async def stop() -> None:
            await self.stop_actor(actor)
            peer.reply(id, None)

        task = asyncio.get_running_loop().create_task(stop())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def farewell_from(self, peer: AcceptedPeer) -> None:
        if not self._leaving:
            peer.farewell()
            peer.outbox.flush()
            self._lose(peer, PeerLost(f"{peer.name} has left"))

    # The door's events ---------------------------------------------------------------------------------------

    def received(self, identity: bytes, frames: Sequence[bytes]) -> None:
        self.metrics.bundles["received"] += 1
        peer = self._accepted.get(identity)
        try:
            bundle = decode_for_acceptor(frames)
            first = bundle.records[0] if bundle.records else None
            if peer is not None and first == peer.hello and self._newest.get(peer.name) == peer.epoch:
                # It says nothing new, as a blocking link does before each question.
                peer.welcome_due = True
            elif type(first) is Hello:
                peer = self._greet(identity, peer, first)
            if peer is None:
                self.metrics.refuse("stranger")
            elif bundle.epoch != peer.epoch or bundle.to_epoch not in (0, self.epoch):
                self.metrics.drop("stale_epoch")
            else:
                peer.received(bundle, frames)
        except Malformed:
            self.metrics.refuse("malformed")
        finally:
            # Unless an answer has taken it along.
            if peer is not None and peer.welcome_due:
                peer.outbox.schedule()

    def refused(self, reason: str) -> None:
        self.metrics.refuse(reason)

    def writable(self) -> None:
        for peer in list(self._accepted.values()):
            if len(peer.outbox):
                peer.outbox.flush()

    def disconnected(self) -> None:
        # The news may be ahead of the socket, which still takes what can no longer arrive: ask more than once.
        self._probes = PROBES

    def _greet(self, identity: bytes, peer: AcceptedPeer | None, hello: Hello) -> AcceptedPeer | None:
        """The session this Hello opens or continues; None when it is refused."""
        agrees = peer is not None and (peer.name, peer.epoch) == (hello.name, hello.epoch)
        if not agrees and not identity.startswith(f"{hello.name}|{hello.epoch:x}|".encode()):
            self.metrics.refuse("identity")
            return None
        newest = self._newest.get(hello.name, 0)
        if hello.epoch < newest:
            self.metrics.drop("stale_epoch")
            self._tell_ghost(identity, hello)
            return None
        if hello.epoch > newest:
            self._succeeded(hello.name, hello.epoch)
        if peer is None:
            if len(self._accepted) >= MAX_PEERS:
                self.metrics.refuse("too_many_peers")
                return None
            self._numbers += 1
            peer = AcceptedPeer(self, identity, hello, self._numbers)
            self._accepted[identity] = peer
        peer.greeted(hello)
        return peer

    def _succeeded(self, name: str, epoch: int) -> None:
        """A newer epoch of a known node: the old one is over, wherever it still has sessions."""
        self._newest[name] = epoch
        self._newest.move_to_end(name)
        if len(self._newest) > MAX_KNOWN_NAMES:
            self._newest.popitem(last=False)
        for peer in list(self._accepted.values()):
            if peer.name == name and peer.epoch < epoch:
                self._lose(peer, PeerLost(f"{name} has restarted"))

    def _tell_ghost(self, identity: bytes, hello: Hello) -> None:
        self.reply(identity, encode_bundle(self.epoch, hello.epoch, [Farewell(Stale.reason)]))

    def _lose(self, peer: AcceptedPeer, error: MeshError) -> None:
        self._accepted.pop(peer.routing_id, None)
        self.metrics.peers_lost += 1
        peer.lost(error)

    # Time ------------------------------------------------------------------------------------------------

    def _sweep(self) -> None:
        now = self.clock.now()
        timing = self.timing
        # When it was us who slept, nobody can be blamed for silence: look again after the mail is read.
        overslept = now - self._swept_at > timing.ping
        self._swept_at = now
        self._sweep_timer = self.clock.call_later(timing.sweep, self._sweep)
        if overslept:
            return
        if self._probes:
            self._probes -= 1
            for peer in self._accepted.values():
                peer.probe()
        for dialled in list(self._dialled.values()):
            dialled.sweep(now)
            if dialled.forgettable:
                del self._dialled[dialled.endpoint]
        for accepted in list(self._accepted.values()):
            if accepted.gone_since is not None and now - accepted.gone_since > timing.grace:
                self._lose(accepted, PeerLost(f"{accepted.name} is gone"))
            elif accepted.busy and not accepted.blocking and now - accepted.heard > timing.silence:
                self._lose(accepted, PeerLost(f"nothing heard from {accepted.name}"))
            else:
                accepted.sweep(now, timing.resend)

    def _gauges(self) -> Gauges:
        gauges = Gauges()
        gauges.mailboxes = {name: len(cell.mailbox) for name, cell in self._cells.items()}
        accepted = self._accepted.values()
        dialled = self._dialled.values()
        gauges.outbox_bytes = sum(p.outbox.bytes for p in accepted) + sum(p.outbox.bytes for p in dialled)
        gauges.outstanding_bytes = sum(w.outstanding for p in accepted for w in p.writers.values())
        gauges.streams_open = {
            "reading": sum(peer.streams_open for peer in dialled),
            "writing": sum(len(peer.writers) for peer in accepted),
        }
        gauges.peers = {"dialled": len(dialled), "accepted": len(accepted)}
        return gauges
