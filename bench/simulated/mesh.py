"""A mesh in simulated time, for bench/simulated/simulate.py: the streamers' own routing, admission and retry budget.
Workers are queues of requests, or have the worker's own scheduler (bench/simulated/workers.py).

What is real: the keys, the ring and the bounded loads (services/streamer/choice/routing.py), the share of a caller
(admission.py), the budget of retries (retries.py), who owns a namespace (mesh/directory), the age of the directory's
table. What is not: the model and sockets.

An event costs the same whatever the number of workers and of requests before it; tables cost a little for each worker.
"""

from __future__ import annotations

import heapq
import random
import time
from collections import Counter
from collections.abc import Iterator
from math import log
from typing import Any

from bench.simulated.traffic import CALLERS, Request
from bench.simulated.workers import WITHOUT_DRAFTS, QueueWorker, ScheduledWorker
from mesh.directory.membership import chosen
from services.streamer.choice.admission import above_share
from services.streamer.choice.retries import RetryBudget
from services.streamer.choice.routing import Router

# A streamer hears the loads this often, in seconds, and they are half as old then (services/streamer/choice/peers.py).
TABLE_EVERY = 0.5
RESTART = 8.0  # s until a lost worker is back, with an empty cache
RETRY_AFTER = 0.02  # s, until a lost choice is sent again
# One request of this many is timed: reading the clock costs as much as a part of what is measured.
TIMED = 16
RESOLUTION = 1.08  # between two buckets of queue times
LEAST_TIME = 1e-4  # s


class Times:
    """Queue times in buckets by second, so that ten million take no more room than the seconds."""

    def __init__(self) -> None:
        self.seconds: dict[int, Counter[int]] = {}

    def add(self, at: float, seconds: float) -> None:
        bucket = 0
        if seconds > LEAST_TIME:
            bucket = 1 + int(log(seconds / LEAST_TIME, RESOLUTION))
        of = self.seconds.get(int(at))
        if of is None:
            of = self.seconds[int(at)] = Counter()
        of[bucket] += 1

    def p(self, share: float, second: int | None = None) -> float:
        """The upper end of the bucket; of all, or of those that began in that second."""
        found = self.seconds[second] if second is not None else sum(self.seconds.values(), Counter[int]())
        left = share * sum(found.values())
        for bucket in sorted(found):
            left -= found[bucket]
            if left <= 0:
                return LEAST_TIME * RESOLUTION**bucket
        return 0.0


class Mesh:
    """`policy`: ring, round_robin or least. `kind`: what its workers are (bench/simulated/workers.py)."""

    def __init__(
        self,
        workers: int,
        streamers: int,
        policy: str,
        limit: int,
        proposers: int = 4,
        kind: type[QueueWorker] | type[ScheduledWorker] = QueueWorker,
    ) -> None:
        self.workers = [kind(self, number) for number in range(workers)]
        self.by_name = {worker.name: worker for worker in self.workers}
        self.policy, self.limit = policy, limit
        self.routers = [Router() for _ in range(streamers)]
        self.budgets = [RetryBudget(limit // 4) for _ in range(streamers)]
        self.names = list(self.by_name)
        # What the members have announced, and the directory tells with its next table.
        self.announced: dict[str, int] = dict.fromkeys(self.names, 0)
        self.proposers = [f"proposer-{number}" for number in range(proposers)]
        self.silent_until = 0.0
        self.silent: set[int] = set()
        self.turn = self.total = 0
        self.held: Counter[int] = Counter()
        self.now = 0.0
        self.events: list[tuple[float, int, str, Any]] = []
        self.serial = 0
        self.times = Times()
        self.balance: list[tuple[float, float]] = []
        self.pages = self.hits = self.refused = self.ended = self.retried = self.slowed = 0
        self.routing_seconds, self.routed = 0.0, 0

    def at(self, when: float, what: str, about: Any = None) -> None:
        self.serial += 1
        heapq.heappush(self.events, (when, self.serial, what, about))

    # Streamers ------------------------------------------------------------------------------------------------

    def tables(self) -> None:
        """All streamers hear who is ready, and the loads. Its own requests each of them knows."""
        told = {name: self.announced[name] for name, worker in self.by_name.items() if worker.alive}
        for router in self.routers:
            router.set(told)
        self.names = list(told)

    def choose(self, request: Request) -> str | None:
        self.turn += 1
        if self.policy == "round_robin":
            return self.names[self.turn % len(self.names)]
        router, key = self.routers[request.streamer], request.key if self.policy == "ring" else None
        if self.turn % TIMED:
            return router.choose(key, self.turn)
        began = time.thread_time_ns()
        found = router.choose(key, self.turn)
        self.routing_seconds += (time.thread_time_ns() - began) / 1e9
        self.routed += 1
        return found

    def arrive(self, request: Request) -> None:
        held = self.held[request.caller] + 1
        if self.total >= self.limit or above_share(held, self.total + 1, len(self.held), self.limit):
            self.refused += 1
            return
        self.held[request.caller] = held
        self.total += 1
        request.streamer = self.serial % len(self.routers)
        self.budgets[request.streamer].first(self.now)
        self.send(request)

    def send(self, request: Request) -> None:
        name = self.choose(request)
        worker = self.by_name[name] if name is not None else None
        if worker is None or not worker.alive:
            # It has died since the last table: the connection says so, and the next attempt goes elsewhere.
            self.at(self.now + RETRY_AFTER, "send", request)
            return
        self.routers[request.streamer].add(worker.name, 1)
        request.worker = worker.number
        worker.take(request)

    # Workers --------------------------------------------------------------------------------------------------

    def began(self, request: Request, pages: int, hits: int, at: float) -> None:
        """Its prompt has been computed at that time, but for the pages that were cached."""
        self.pages += pages
        self.hits += hits
        self.times.add(self.now, at - request.arrived)

    def ended_at(self, request: Request) -> None:
        self.leave(request)
        self._gone(request)
        self.ended += 1

    def has_no_drafts(self, request: Request) -> bool:
        return self.now < self.silent_until and request.caller in self.silent

    def _gone(self, request: Request) -> None:
        self.total -= 1
        self.held[request.caller] -= 1
        if not self.held[request.caller]:
            del self.held[request.caller]

    def leave(self, request: Request) -> None:
        self.routers[request.streamer].add(self.workers[request.worker].name, -1)

    def lose(self, share: float, seed: int) -> None:
        """Workers die at once; what they had is sent again, and they come back after a while."""
        for worker in random.Random(seed).sample(self.workers, int(share * len(self.workers))):
            for request, begun in worker.lose():
                self.leave(request)
                if begun:
                    # It goes on where it was: its queue time counts from now.
                    request.arrived = self.now
                elif not self.budgets[request.streamer].again(self.now):
                    self.refused += 1
                    self._gone(request)
                    continue
                self.retried += 1
                self.at(self.now + RETRY_AFTER, "send", request)
            self.at(self.now + RESTART, "back", worker)

    def lose_proposer(self) -> None:
        """Namespaces of one get no drafts until their workers ask its successors."""
        lost, self.silent_until = self.proposers[0], self.now + WITHOUT_DRAFTS
        self.silent = {caller for caller in range(CALLERS) if chosen(self.proposers, str(caller)) == lost}
        self.slowed += sum(worker.without_drafts() for worker in self.workers)

    # Time -----------------------------------------------------------------------------------------------------

    def run(self, traffic: Iterator[Request], requests: int, fault: str = "", fault_at: float = 0.0) -> None:
        """Until that many have arrived and all have ended. `fault`: lose or lose_proposer."""
        coming = next(traffic)
        arrived = 0
        self.at(0.0, "table")
        self.at(TABLE_EVERY / 2, "announce")
        if fault:
            self.at(fault_at, fault)
        events = self.events
        while arrived < requests or self.total:
            if arrived < requests and coming.arrived <= events[0][0]:
                self.now = coming.arrived
                self.serial += 1
                self.arrive(coming)
                arrived += 1
                coming = next(traffic)
                continue
            self.now, _, what, about = heapq.heappop(events)
            match what:
                case "wake":
                    worker, what_of = about
                    worker.wake(what_of)
                case "send":
                    self.send(about)
                case "back":
                    about.alive = True
                case "lose":
                    self.lose(0.2, 1)
                case "lose_proposer":
                    self.lose_proposer()
                case "announce":
                    self.announced = {name: worker.load for name, worker in self.by_name.items()}
                    self.at(self.now + TABLE_EVERY, "announce")
                case _:
                    if arrived < requests:
                        self.note_balance()
                    self.tables()
                    self.at(self.now + TABLE_EVERY, "table")

    def note_balance(self) -> None:
        loads = [worker.load for worker in self.workers if worker.alive]
        if (mean := sum(loads) / len(loads)) >= 8:
            self.balance.append((self.now, max(loads) / mean))
