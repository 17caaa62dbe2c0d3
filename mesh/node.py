"""One process's end of the mesh: its socket, its actors and its peers. Knows no sockets and no message types."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence

from mesh.accepted import AcceptedPeer
from mesh.actor import Actor
from mesh.address import check_name, routing_id
from mesh.cell import Cell
from mesh.clock import Clock, SystemClock, Timer
from mesh.codec import Codec
from mesh.dialled import DialledPeer
from mesh.envelope import Farewell, Hello, MeshRecord, Welcome, decode_for_acceptor, encode_bundle
from mesh.epoch import MAX_EPOCH, new_epoch
from mesh.errors import Draining, Malformed, MeshError, NotRunning, PeerLost, Stale
from mesh.metrics import BusMetrics, Gauges
from mesh.ref import Ref
from mesh.timing import Timing
from mesh.transport import DialledLine, Frame, LineOwner, Sent, Transport

log = logging.getLogger("mesh")

MAX_PEERS = 1024
MAX_KNOWN_NAMES = 4096
# Sweeps that look for the dialler whose connection has ended: the news may be ahead of the socket, which for a moment
# still takes what can no longer arrive.
PROBES = 3


class Node:
    """Implements mesh.transport.Listener. Use it from one event loop."""

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
        self._cells: dict[str, Cell] = {}
        self._dialled: dict[str, DialledPeer] = {}
        self._accepted: dict[bytes, AcceptedPeer] = {}
        self._newest: OrderedDict[str, int] = OrderedDict()  # name -> its newest epoch
        self._stale: list[Callable[[int], None]] = []
        # Actors whose on_start hasn't ended.
        self._starting: set[str] = set()
        self._numbers = 0
        self._probes = 0
        self._sweep_timer: Timer | None = None
        self._swept_at = -math.inf
        # At the last sweep: this process stood still, and mail may wait to be read.
        self.overslept = False
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
        """Run an actor under a name. It gets calls once its on_start has ended; what that raises is raised here."""
        if name in self._cells:
            raise ValueError(f"an actor {name!r} is running already")
        actor.node = self
        actor.ref = self.ref(self.endpoint, name)
        self._cells[name] = Cell(actor, name, self)
        self._starting.add(name)
        try:
            await actor.on_start()
        except BaseException:
            del self._cells[name]
            raise
        finally:
            self._starting.discard(name)
        return actor.ref

    def ref(self, endpoint: str, actor: str) -> Ref:
        return Ref(self, endpoint, actor)

    @property
    def actors(self) -> list[str]:
        return list(self._cells)

    def on_stale(self, callback: Callable[[int], None]) -> None:
        """Called with the newest epoch a peer knows of this node when that isn't ours."""
        self._stale.append(callback)

    def take_epoch(self, epoch: int) -> None:
        """Go on as a new epoch: all calls, made and taken, end with PeerLost; actors, socket and endpoint stay."""
        if epoch <= self.epoch:
            raise ValueError(f"epoch {epoch} is not above {self.epoch}")
        dialled, self._dialled = self._dialled, {}
        for peer in dialled.values():
            peer.close()
        for accepted in list(self._accepted.values()):
            self.lose(accepted, PeerLost("this node has taken a new epoch"))
            self._say(accepted.routing_id, epoch, accepted.epoch, Welcome(self.name, epoch, 0))
        self.epoch = epoch

    async def stop_actor(self, name: str) -> None:
        """Repeat-safe; mail left in the box is answered NotRunning."""
        cell = self._cells.get(name)
        if cell is not None:
            try:
                await cell.stop()
            finally:
                self._cells.pop(name, None)

    async def stop(self, timeout: float = 5.0) -> None:
        """Stop the actors, let what was sent last arrive (at most `timeout`), close everything."""
        self.draining = True
        began = time.monotonic()
        for name in reversed(list(self._cells)):
            left = max(0.05, timeout - (time.monotonic() - began))
            stopping = asyncio.get_running_loop().create_task(self.stop_actor(name))
            # Not wait_for: that would wait for a handler that does not let itself be cancelled.
            done, _ = await asyncio.wait({stopping}, timeout=left)
            if not done:
                log.error("%s did not stop within %g s", name, timeout)
                stopping.cancel()
            elif (error := stopping.exception()) is not None:
                log.error("%s failed to stop", name, exc_info=error)
        # A moment is left for this even when the actors have used up the time, so that peers need not wait in vain.
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
        await self._transport.close(min(timeout, self.timing.linger))

    async def _say_farewell(self, timeout: float) -> None:
        """A peer's Farewell says that it has read everything we sent before ours: ipc loses what is in flight when its
        sender closes."""
        self._leaving = True
        told: list[DialledPeer | AcceptedPeer] = [peer for peer in self._dialled.values() if peer.reachable]
        told += self._accepted.values()
        for peer in told:
            peer.farewell()
        # Real time, whatever clock the node has: the sockets live by it.
        started = time.monotonic()
        while (elapsed := time.monotonic() - started) < timeout:
            waiting = [peer for peer in told if not peer.left and not peer.outbox.closed]
            if not waiting or (elapsed > self.timing.farewell and not any(len(p.outbox) for p in waiting)):
                return
            await asyncio.sleep(0.002)

    # For refs and peers ------------------------------------------------------------------------------------

    def peer(self, endpoint: str) -> DialledPeer:
        """The connection to the node behind an endpoint; dialled when it is first used."""
        peer = self._dialled.get(endpoint)
        if peer is None:
            if self._leaving:
                raise NotRunning("this node has stopped")
            peer = self._dialled[endpoint] = DialledPeer(self, endpoint)
        return peer

    def dial(self, endpoint: str, owner: LineOwner) -> DialledLine:
        self._numbers += 1
        return self._transport.dial(endpoint, routing_id(self.name, self.epoch, self._numbers), owner)

    def reply(self, identity: bytes, frames: Sequence[Frame]) -> Sent:
        sent = self._transport.reply(identity, frames)
        if sent is Sent.SENT:
            self.metrics.bundles["sent"] += 1
        return sent

    def cell(self, name: str) -> Cell:
        """Raises NotRunning or Draining."""
        if self.draining:
            raise Draining(f"{self.name} takes no new work")
        cell = self._cells.get(name)
        if cell is None or name in self._starting:
            raise NotRunning(f"no actor {name[:80]!r} here{', yet' if cell else ''}")
        return cell

    def farewell_from(self, peer: AcceptedPeer) -> None:
        if not self._leaving:
            peer.farewell()
            self.lose(peer, PeerLost(f"{peer.name} has left"))

    def lose(self, peer: AcceptedPeer, error: MeshError) -> None:
        if self._accepted.pop(peer.routing_id, None) is not None:
            self.metrics.peers_lost += peer.busy
            peer.lost(error)

    def is_stale(self, newest: int) -> None:
        for callback in self._stale:
            callback(newest)

    # The listener's events -----------------------------------------------------------------------------------

    def received(self, identity: bytes, frames: Sequence[bytes]) -> None:
        self.metrics.bundles["received"] += 1
        try:
            bundle = decode_for_acceptor(frames)
            peer = self._accepted.get(identity)
            if bundle.records and isinstance(first := bundle.records[0], Hello):
                peer = self._greet(identity, peer, first)
            if peer is None:
                self.metrics.refuse("stranger")
            elif bundle.epoch != peer.epoch or bundle.to_epoch not in (0, self.epoch):
                self.metrics.drop("stale_epoch")
            else:
                peer.received(bundle, frames)
        except Malformed:
            self.metrics.refuse("malformed")

    def refused(self, reason: str) -> None:
        self.metrics.refuse(reason)

    def writable(self) -> None:
        for peer in list(self._accepted.values()):
            if len(peer.outbox):
                peer.outbox.flush()

    def disconnected(self) -> None:
        self._probes = PROBES

    def _greet(self, identity: bytes, peer: AcceptedPeer | None, hello: Hello) -> AcceptedPeer | None:
        """The session that this Hello opens or keeps alive; None when it is refused."""
        if not identity.startswith(f"{hello.name}|{hello.epoch:x}|".encode()):
            self.metrics.refuse("identity")
            return None
        if not 0 <= hello.epoch <= MAX_EPOCH:
            raise Malformed(f"epoch {hello.epoch}")
        newest = self._newest.get(hello.name, 0)
        if hello.epoch < newest:
            self.metrics.drop("stale_epoch")
            self._say(identity, self.epoch, hello.epoch, Farewell(Stale.reason, newest))
            return None
        if hello.epoch > newest:
            self._succeeded(hello.name, hello.epoch)
        if peer is None:
            if len(self._accepted) >= MAX_PEERS:
                self.metrics.refuse("too_many_peers")
                return None
            self._numbers += 1
            peer = self._accepted[identity] = AcceptedPeer(self, identity, hello, self._numbers)
        peer.welcome()
        return peer

    def _succeeded(self, name: str, epoch: int) -> None:
        """A newer epoch of a known node: the sessions of the old one are over."""
        self._newest[name] = epoch
        self._newest.move_to_end(name)
        if len(self._newest) > MAX_KNOWN_NAMES:
            self._newest.popitem(last=False)
        for peer in list(self._accepted.values()):
            if peer.name == name and peer.epoch < epoch:
                self.lose(peer, PeerLost(f"{name} has restarted"))

    def _say(self, identity: bytes, epoch: int, to_epoch: int, record: MeshRecord) -> None:
        self.reply(identity, encode_bundle(epoch, to_epoch, [record]))

    # Time ------------------------------------------------------------------------------------------------

    def _sweep(self) -> None:
        now = self.clock.now()
        timing = self.timing
        # If this process was suspended, read the mail before blaming anyone for silence.
        self.overslept = now - self._swept_at > timing.ping
        self._swept_at = now
        self._sweep_timer = self.clock.call_later(timing.sweep, self._sweep)
        if self.overslept:
            return
        for dialled in list(self._dialled.values()):
            dialled.sweep(now)
            if dialled.forgettable:
                del self._dialled[dialled.endpoint]
        for accepted in list(self._accepted.values()):
            if accepted.busy and now - accepted.heard > timing.silence:
                self.lose(accepted, PeerLost(f"nothing heard from {accepted.name}"))
            elif self._probes:
                accepted.welcome()
        self._probes = max(0, self._probes - 1)

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
