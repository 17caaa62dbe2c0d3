"""Keeps a mesh on a cluster as it should be: hosts the directory, has role processes placed, replaces what is lost, and
scales the workers. One for the mesh; when it dies and is started anew, elsewhere perhaps, the watchers tell it what
they were told, and it tells them where the directory is now.

Knows no Ray: `Cluster` places and reaches the watchers (ray_cluster.py). It decides nothing: what is to be done is said
by mesh/supervisor/decide.py, where by plan.py, and how many workers by autoscale.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from mesh.clock import Clock, SystemClock
from mesh.directory import DIRECTORY, DirectoryActor
from mesh.directory.membership import Member
from mesh.epoch import next_epoch
from mesh.errors import MeshError
from mesh.node import Node
from mesh.supervisor.decide import Action, Desired, Drain, KeepOld, Launch, Remove, Role, decide, number_of
from mesh.transport.zmq import ZmqTransport
from services.api.messages import Look, Seen
from services.api.settings import Settings
from services.placement.cluster import Cluster, WatcherGone
from services.placement.folder import OwnFolder, secrets_for
from services.placement.plan import Watcher, counts_of, is_dead, works
from services.placement.scaler import Scaler
from services.placement.watcher import Orders, Report
from services.runtime.introspection import INTROSPECTION
from services.runtime.process import mesh_codec, security_of
from services.runtime.roles import STAGE

log = logging.getLogger(__name__)

ROUND = 0.25  # s
# Of a round, the time for watchers to answer. Later answers are seen in the next.
ANSWERS_WITHIN = 0.1  # s
LOOK_TIMEOUT = 1.0  # s
# A watcher without a machine after this long waits for room.
PLACED_WITHIN = 30.0  # s
ALIVE = ("placed", "running")
MOST_EVENTS = 200


@dataclass(slots=True)
class _Kept(Watcher):
    """A watcher as the keeper knows it."""

    asked_at: float = 0.0
    address: str = ""
    pid: int = 0
    answered: bool = False
    # Since when a tick is unanswered.
    silent_since: float | None = None
    asking: asyncio.Task[None] | None = None


class Keeper:
    def __init__(
        self, settings: Settings, secrets: Mapping[str, str], address: str, cluster: Cluster, clock: Clock | None = None
    ) -> None:
        self._settings = settings
        self._cluster = cluster
        self._clock = clock or SystemClock()
        self._address = address
        self._folder = OwnFolder()
        self._folder.write_secrets(secrets_for(DIRECTORY, secrets))
        keys = settings.replaced(keys_dir=settings.keys_dir or str(self._folder.keys))
        # As of `up`: a key named directory where there is one, else the streamer's.
        security = security_of(keys, "streamer", DIRECTORY)
        epoch = next_epoch(self._folder.path)
        self._node = Node(ZmqTransport(security=security), mesh_codec(), name=DIRECTORY, epoch=epoch)
        self._directory = DirectoryActor(stale_after=settings.stale_after)
        self._watchers: dict[str, _Kept] = {}
        self._desired: dict[str, int] = {}
        self._numbers: dict[str, int] = {}
        self._events: deque[tuple[int, str]] = deque(maxlen=MOST_EVENTS)
        self._told = 0
        # Workers that are still to be replaced.
        self._old: set[str] = set()
        bounds = (settings.min_workers, settings.max_workers)
        self._scaler = Scaler(bounds, settings.scale_down_after, self._look, self._clock.now())
        self._stopping = False
        self.ended = False
        self._status: dict[str, object] = {}
        self._note_status()

    # Asked from outside ----------------------------------------------------------------------

    def status(self, after: int) -> dict[str, object]:
        """What runs where, as of the last round, and what happened since event `after`. From any thread."""
        return {**self._status, "events": [(number, text) for number, text in list(self._events) if number > after]}

    def _note_status(self) -> None:
        now = self._clock.now()
        self._status = {
            "watchers": [
                {
                    "role": each.role, "instance": each.name, "machine": each.machine, "address": each.address,
                    "state": "ready" if self._is_ready(each) else each.state, "pid": each.pid,
                    "waits_s": now - each.asked_at if each.state == "placed" else None,
                    "needs": self._cluster.shares[each.role].bundle() if self._is_homeless(each) else None,
                }
                for each in self._watchers.values()
            ],
            "desired": dict(self._desired), "directory": self._node.endpoint, "ended": self.ended,
            "keeper": self._node.epoch, "old": sorted(self._old), "autoscaling": self._scaler.status(now),
        }  # fmt: skip

    def scale(self, role: str, count: int) -> None:
        self.say(f"{role}: {self._desired.get(role, 0)} → {count}, as asked")
        self._desired[role] = count
        if role == "worker":
            self._scaler.widen(count)
        self._note_status()

    def roll(self) -> list[str]:
        """The workers that are replaced from now on, one by one."""
        self._old = {each.name for each in self._watchers.values() if each.role == "worker" and each.state in ALIVE}
        self.say(f"replacing {', '.join(sorted(self._old, key=number_of)) or 'no worker, as there is none'}")
        self._note_status()
        return sorted(self._old)

    def stop(self) -> None:
        if not self._stopping:
            self.say("draining")
        self._stopping = True

    # The loop ----------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Until all have drained after `stop`."""
        try:
            await self._node.start(f"tcp://{self._address}:0")
            await self._node.spawn(self._directory, DIRECTORY)
            await self._adopt()
            while not (self._stopping and not self._watchers):
                await self._round()
                self._note_status()
                await self._clock.sleep(ROUND)
        finally:
            await self._node.stop(0.2)
            self._folder.remove()
            self.ended = True
            self._note_status()

    async def _adopt(self) -> None:
        """The watchers of an earlier keeper. What it wanted is what the most of them were told."""
        now = self._clock.now()
        for instance in await asyncio.to_thread(self._cluster.known):
            self._watchers[instance] = self._asked_for(instance.rpartition("-")[0], instance, now)
        told: list[Report] = []
        for each in self._watchers.values():
            try:
                async with asyncio.timeout(LOOK_TIMEOUT):
                    told.append(await self._cluster.tick(each.name, self._told_to(each, directory="")))
            except (WatcherGone, TimeoutError):
                continue
            each.state, each.answered = "running", True
        newest = max(told, key=lambda report: sum(report["numbers"].values()), default=None)
        self._desired = dict(newest["desired"]) if newest and newest["desired"] else counts_of(self._settings)
        self._numbers = dict(newest["numbers"]) if newest else {}
        self._old = set(newest["old"]) & self._watchers.keys() if newest else set()
        for each in self._watchers.values():
            self._numbers[each.role] = max(self._numbers.get(each.role, 0), number_of(each.name))
        if self._watchers:
            self.say(f"the directory has moved to {self._node.endpoint}; {len(self._watchers)} processes go on")

    async def _round(self) -> None:
        for each in self._watchers.values():
            if each.asking is None or each.asking.done():
                each.silent_since = each.silent_since or self._clock.now()
                each.asking = asyncio.create_task(self._ask(each))
        # Those that answer at once are seen in this round.
        if asking := [each.asking for each in self._watchers.values() if each.asking]:
            await asyncio.wait(asking, timeout=ANSWERS_WITHIN)
        self._bury_silent()
        await self._scale_by_load()
        roles = {role: Role(count, STAGE[role]) for role, count in self._desired.items()}
        wanted = Desired(roles, self._old, self._stopping, self._numbers)
        for action in decide(wanted, self._seen(), self._clock.now()):
            await self._act(action)

    async def _act(self, action: Action) -> None:
        match action:
            case Launch(role, instance):
                await self._create(role, instance)
            case Drain(instance):
                await self._drain(instance)
            case Remove(instance):
                await self._remove(instance)
            case KeepOld():
                self._old.clear()
                needs = self._cluster.shares["worker"].told()
                self.say(f"the worker stays: no machine has {needs} free for another beside it")

    # In threads: the cluster may take its time, and this loop answers for the directory.

    async def _create(self, role: str, instance: str) -> None:
        self._numbers[role] = number_of(instance)
        kept = self._watchers[instance] = self._asked_for(role, instance, self._clock.now())
        # So that its process doesn't wait for our first tick.
        told = self._told_to(kept, self._node.endpoint)
        kept.machine = await asyncio.to_thread(self._cluster.create, role, instance, self._seen(), told)

    async def _drain(self, instance: str) -> None:
        kept = self._watchers[instance]
        if kept.state == "placed" and self._member(kept) is None:
            # Nothing runs there yet, or has just begun.
            kept.ends("ended")
            return
        kept.drains()
        with contextlib.suppress(WatcherGone):
            await asyncio.to_thread(self._cluster.drain, instance)

    async def _remove(self, instance: str) -> None:
        kept = self._watchers.pop(instance)
        if kept.pid:
            self._directory.bury(instance, kept.pid)
        await asyncio.to_thread(self._cluster.remove, instance)
        lost = f"is lost with its watcher on {kept.address or 'a machine'}"
        self.say(f"{instance} {'has ended' if kept.state == 'ended' else lost}")
        if instance in self._old:
            self._old.discard(instance)
            self.say(f"{len(self._old)} more to replace" if self._old else "all workers are replaced")

    # What is known of the watchers ------------------------------------------------------------------------------

    async def _ask(self, kept: _Kept) -> None:
        try:
            report = await self._cluster.tick(kept.name, self._told_to(kept, self._node.endpoint))
        except WatcherGone:
            kept.ends("dead")
            return
        except Exception:
            # It counts as silent.
            log.exception("%s didn't answer", kept.name)
            return
        kept.silent_since = None
        if kept.state == "placed":
            kept.starts()
            waited = self._clock.now() - kept.asked_at
            self.say(f"{kept.name} runs on {report['address']}, {waited:.1f} s after it was wanted")
        if kept.pid and report["pid"] != kept.pid:
            self._directory.bury(kept.name, kept.pid)
        kept.answered = True
        kept.machine, kept.address, kept.pid = report["machine"], report["address"], report["pid"]
        if report["ended"]:
            kept.ends("ended")
        for line in report["said"]:
            self.say(line)

    def _told_to(self, kept: _Kept, directory: str) -> Orders:
        member = self._member(kept)
        return Orders(
            directory=directory,
            pid=member.pid if member else 0,
            ready=member is not None and works(member, self._settings.stale_after),
            lost=member is not None and member.state == "lost",
            desired=dict(self._desired),
            numbers=dict(self._numbers),
            old=sorted(self._old),
        )

    def _member(self, kept: _Kept) -> Member | None:
        members = self._directory.members()
        return next((each for each in members if each.key == (kept.role, kept.name)), None)

    def _is_ready(self, kept: _Kept) -> bool:
        member = self._member(kept)
        return member is not None and member.state == "ready" and kept.state == "running"

    def _seen(self) -> list[Watcher]:
        """With what the directory knows of their processes now."""
        for each in self._watchers.values():
            member = self._member(each)
            each.load = member.load if member else 0
            each.ready, each.homeless = self._is_ready(each), self._is_homeless(each)
        return list(self._watchers.values())

    def _asked_for(self, role: str, instance: str, now: float) -> _Kept:
        return _Kept(role, instance, "placed", asked_at=now)

    def _is_homeless(self, kept: _Kept) -> bool:
        """Others may use the machine that had room by what we know."""
        late = self._clock.now() - kept.asked_at > PLACED_WITHIN
        return kept.state == "placed" and (late or not kept.machine)

    def _bury_silent(self) -> None:
        now = self._clock.now()
        for each in self._watchers.values():
            member = self._member(each)
            heard = member is not None and member.state != "lost"
            silent = now - each.silent_since if each.silent_since is not None else 0.0
            if is_dead(silent, each.answered, heard):
                each.ends("dead")
                if each.asking is not None:
                    each.asking.cancel()

    # Autoscaling -------------------------------------------------------------------------------------------------

    async def _scale_by_load(self) -> None:
        # While workers are replaced there may be one more than wanted.
        if self._stopping or self._old:
            return
        wanted = self._desired["worker"]
        count = await self._scaler.wanted(self._directory.members(), wanted, self._clock.now())
        if count != wanted:
            self.say(f"worker: {self._scaler.last}")
            self._desired["worker"] = count

    async def _look(self, member: Member) -> Seen | None:
        try:
            seen = await self._node.ref(member.endpoint, INTROSPECTION).ask(Look(), timeout=LOOK_TIMEOUT)
        except MeshError:
            return None
        return seen if isinstance(seen, Seen) else None

    def say(self, text: str) -> None:
        self._told += 1
        self._events.append((self._told, text))
        log.info("%s", text)
