"""Many workers in simulated time: the streamers' own routing and admission, and workers as queues of requests.

What is real: the keys, the ring, the bounded loads (services/streamer/routing.py), the share of a caller
(admission.py), and the age of what streamers know of each other. What is not: tokens, sockets, and the batch of a
worker, which here computes prompts one after the other and gives each running sequence a token a step.

    python -m bench simulate                     a minute of 100 workers, by policy; then a fifth of them is lost
    python -m bench simulate --workers 1000 --requests 1000000
"""

from __future__ import annotations

import argparse
import heapq
import random
import statistics
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from services.streamer.admission import above_share
from services.streamer.routing import Router, key_of

HELP = "routing and admission of up to 1 000 workers in simulated time: balance, prefix hits, loss of a fifth"
PAGE = 32
# A streamer hears the loads this often, in seconds, and they are half as old then (services/streamer/peers.py).
TABLE_EVERY = 0.5
# Of a worker.
SLOTS = 32
PREFILL = 20_000  # tokens/s
STEP = 0.02  # s
CACHED_PAGES = 1_400  # what 1 GiB holds of SmolLM2-135M
RESTART = 8.0  # s until a lost worker is back, with an empty cache
# A server that is this busy on average has room for what a lost fifth of it did.
UTILISATION = 0.6
MEAN_ANSWER = 100
RECOVERED_WITHIN = 30.0  # s
QUIET = 5  # s
FLAT_US = 20.0
MOST_LOAD = 1.25
LEAST_HITS = 1.5


@dataclass(slots=True)
class Request:
    arrived: float
    caller: int
    # Names of its pages, those of a shared beginning first.
    pages: tuple[int, ...]
    key: int | None
    tokens: int
    attempts: int = 0


@dataclass(slots=True)
class SimulatedWorker:
    """A queue, SLOTS places, and a prefix cache of page names."""

    name: str
    waiting: deque[Request] = field(default_factory=deque)
    running: dict[int, Request] = field(default_factory=dict)
    cache: OrderedDict[int, None] = field(default_factory=OrderedDict)
    prefill_free: float = 0.0
    life: int = 0
    alive: bool = True

    @property
    def load(self) -> int:
        return len(self.waiting) + len(self.running)

    def hits(self, pages: tuple[int, ...]) -> int:
        """How many of these pages are cached; now all of them are."""
        found = 0
        for page in pages:
            if page not in self.cache:
                break
            found += 1
        for page in pages:
            self.cache[page] = None
            self.cache.move_to_end(page)
        while len(self.cache) > CACHED_PAGES:
            self.cache.popitem(last=False)
        return found


class Traffic:
    """Requests of `groups` shared beginnings, the popular ones often (1/rank), each with text of its own behind it."""

    def __init__(self, rate: float, groups: int, seed: int) -> None:
        self._draw = random.Random(seed)
        self._rate = rate
        shared = [self._draw.choice((0, 4, 16, 64)) for _ in range(groups)]
        self._groups = [(number, pages) for number, pages in enumerate(shared)]
        self._weights = [1 / (1 + number) for number in range(groups)]
        self._keys = {
            number: key_of([number, *range(pages * PAGE)], PAGE) for number, pages in self._groups if pages
        }

    def __iter__(self) -> Iterator[Request]:
        now, serial, draw = 0.0, 0, self._draw
        while True:
            now += draw.expovariate(self._rate)
            (number, pages), = draw.choices(self._groups, self._weights)
            serial += 1
            own = min(64, int(draw.lognormvariate(1.5, 1.0)))
            names = (*(number << 20 | page for page in range(pages)), *(serial << 40 | page for page in range(own)))
            key = self._keys.get(number) or (draw.getrandbits(64) if own else None)
            tokens = 1 + int(draw.expovariate(1 / MEAN_ANSWER))
            yield Request(now, draw.randrange(16), names, key, tokens)


class Mesh:
    """`policy`: ring, round_robin or least."""

    def __init__(self, workers: int, streamers: int, policy: str, limit: int) -> None:
        self.workers = {f"worker-{number}": SimulatedWorker(f"worker-{number}") for number in range(workers)}
        self.policy = policy
        self.limit = limit
        self.routers = [Router() for _ in range(streamers)]
        self.own = [Counter[str]() for _ in range(streamers)]
        self.names = list(self.workers)
        # What the members have announced, and the directory tells with its next table.
        self.announced: dict[str, int] = dict.fromkeys(self.names, 0)
        self.turn = self.total = 0
        self.held = Counter[int]()
        self.now = 0.0
        self.events: list[tuple[float, int, str, Any]] = []
        self.serial = 0
        self.queue_times: list[tuple[float, float]] = []
        self.balance: list[float] = []
        self.pages = self.hits = self.refused = self.ended = self.retried = 0
        self.routing_seconds, self.routed = 0.0, 0
        self.homes: dict[int, tuple[str, int]] = {}

    def at(self, when: float, what: str, about: Any = None) -> None:
        self.serial += 1
        heapq.heappush(self.events, (when, self.serial, what, about))

    # Streamers ------------------------------------------------------------------------------------------------

    def tables(self) -> None:
        """All streamers hear the loads. Between two tables each knows its own requests only."""
        told = {name: self.announced[name] for name, worker in self.workers.items() if worker.alive}
        alone = len(self.routers) == 1
        for router, own in zip(self.routers, self.own, strict=True):
            loads = {name: own[name] if alone else max(load, own[name]) for name, load in told.items()}
            router.set(loads, len(self.routers))
        self.names = list(told)

    def choose(self, request: Request, streamer: int) -> str | None:
        self.turn += 1
        if self.policy == "round_robin":
            return self.names[self.turn % len(self.names)]
        began = time.thread_time()
        found = self.routers[streamer].choose(request.key if self.policy == "ring" else None, self.turn)
        self.routing_seconds += time.thread_time() - began
        self.routed += 1
        return found

    def arrive(self, request: Request) -> None:
        held = self.held[request.caller] + 1
        if self.total >= self.limit or above_share(held, self.total + 1, len(self.held), self.limit):
            self.refused += 1
            return
        self.held[request.caller] += 1
        self.total += 1
        self.send(request)

    def send(self, request: Request) -> None:
        streamer = self.serial % len(self.routers)
        name = self.choose(request, streamer)
        worker = self.workers[name] if name is not None else None
        if worker is None or not worker.alive:
            # It has died since the last table: the connection says so, and the next attempt goes elsewhere.
            request.attempts += 1
            self.at(self.now + 0.02, "send", request)
            return
        self.routers[streamer].add(worker.name, 1)
        self.own[streamer][worker.name] += 1
        self.homes[id(request)] = worker.name, streamer
        worker.waiting.append(request)
        self.start(worker)

    # Workers --------------------------------------------------------------------------------------------------

    def start(self, worker: SimulatedWorker) -> None:
        while worker.waiting and len(worker.running) < SLOTS:
            request = worker.waiting.popleft()
            hits = worker.hits(request.pages)
            self.pages += len(request.pages)
            self.hits += hits
            begins = max(self.now, worker.prefill_free)
            worker.prefill_free = begins + (len(request.pages) - hits) * PAGE / PREFILL
            self.queue_times.append((self.now, worker.prefill_free - request.arrived))
            worker.running[id(request)] = request
            self.at(worker.prefill_free + request.tokens * STEP, "end", (worker, worker.life, request))

    def end(self, worker: SimulatedWorker, life: int, request: Request) -> None:
        if worker.life != life:
            return
        del worker.running[id(request)]
        self.leave(request)
        self.held[request.caller] -= 1
        self.total -= 1
        self.ended += 1
        self.start(worker)

    def leave(self, request: Request) -> None:
        name, streamer = self.homes.pop(id(request))
        self.own[streamer][name] -= 1
        self.routers[streamer].add(name, -1)

    def lose(self, share: float, seed: int) -> None:
        """Workers die at once; what they had is sent again, and they come back after a while."""
        for name in random.Random(seed).sample(self.names, int(share * len(self.names))):
            worker = self.workers[name]
            worker.alive, worker.life = False, worker.life + 1
            lost = [*worker.running.values(), *worker.waiting]
            worker.running.clear()
            worker.waiting.clear()
            worker.cache.clear()
            worker.prefill_free = 0.0
            for request in lost:
                self.leave(request)
                request.attempts += 1
                self.retried += 1
                self.at(self.now + 0.02, "send", request)
            self.at(self.now + RESTART, "back", worker)

    # Time -----------------------------------------------------------------------------------------------------

    def run(self, traffic: Iterator[Request], requests: int, lose_at: float | None = None) -> None:
        """Until that many have arrived and all have ended."""
        coming = next(traffic)
        arrived = 0
        self.at(0.0, "table")
        self.at(TABLE_EVERY / 2, "announce")
        if lose_at is not None:
            self.at(lose_at, "lose")
        while arrived < requests or self.total:
            if arrived < requests and (not self.events or coming.arrived <= self.events[0][0]):
                self.now = coming.arrived
                self.arrive(coming)
                arrived += 1
                coming = next(traffic)
                continue
            self.now, _, what, about = heapq.heappop(self.events)
            match what:
                case "send":
                    self.send(about)
                case "end":
                    self.end(*about)
                case "back":
                    about.alive = True
                case "lose":
                    self.lose(0.2, 1)
                case "announce":
                    self.announced = {name: worker.load for name, worker in self.workers.items()}
                    self.at(self.now + TABLE_EVERY, "announce")
                case _:
                    self.note_balance()
                    self.tables()
                    self.at(self.now + TABLE_EVERY, "table")

    def note_balance(self) -> None:
        loads = [worker.load for worker in self.workers.values() if worker.alive]
        if (mean := statistics.fmean(loads)) >= 8:
            self.balance.append(max(loads) / mean)


def flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--workers", type=int, default=100, metavar="N", help="workers, 2 to 1000 (default 100)")
    parser.add_argument("--streamers", type=int, default=4, metavar="N", help="streamers (default 4)")
    parser.add_argument("--requests", type=int, default=60_000, metavar="N", help="requests (default 60000)")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="of the traffic (default 1)")


def measure(options: argparse.Namespace) -> dict[str, Any]:
    figures: dict[str, Any] = {"workers": options.workers, "streamers": options.streamers}
    for policy in ("ring", "least", "round_robin"):
        figures[policy] = figures_of(simulated(options, policy))
    lose_at = 0.4 * options.requests / rate_of(options.workers)
    mesh = simulated(options, "ring", lose_at)
    figures["a fifth is lost"] = {**after_loss(mesh, lose_at), **figures_of(mesh)}
    figures["missed"] = list(missed(figures))
    return figures


def rate_of(workers: int) -> float:
    return UTILISATION * workers * SLOTS / (MEAN_ANSWER * STEP)


def simulated(options: argparse.Namespace, policy: str, lose_at: float | None = None) -> Mesh:
    mesh = Mesh(options.workers, options.streamers, policy, limit=options.workers * SLOTS * 4)
    traffic = Traffic(rate_of(options.workers), groups=20 * options.workers, seed=options.seed)
    mesh.run(iter(traffic), options.requests, lose_at)
    return mesh


def figures_of(mesh: Mesh) -> dict[str, Any]:
    waited = sorted(seconds for _, seconds in mesh.queue_times)
    settled = mesh.balance[len(mesh.balance) // 4 :] or [1.0]
    return {
        "prefix hits": round(mesh.hits / max(1, mesh.pages), 4),
        "max/mean load, median": round(statistics.median(settled), 3),
        "max/mean load, worst": round(max(settled), 3),
        "queue time p50, s": round(waited[len(waited) // 2], 4),
        "queue time p99, s": round(waited[len(waited) * 99 // 100], 4),
        "ended": mesh.ended,
        "refused": mesh.refused,
        "sent again": mesh.retried,
        "us a routed request": round(1e6 * mesh.routing_seconds / mesh.routed, 2) if mesh.routed else 0.0,
    }


def after_loss(mesh: Mesh, lost_at: float) -> dict[str, Any]:
    """Seconds until the p99 of the queue time of a second is again what it was before."""
    seconds: dict[int, list[float]] = {}
    for at, waited in mesh.queue_times:
        seconds.setdefault(int(at), []).append(waited)
    p99 = {second: sorted(each)[len(each) * 99 // 100] for second, each in seconds.items()}
    start = int(lost_at)
    before = [value for second, value in p99.items() if start // 4 <= second < start]
    # Small numbers scatter: what was usual before is the worst of many seconds, and a quiet stretch ends the storm.
    late = {second for second, value in p99.items() if second >= start and value > 1.5 * max(before)}
    back = start
    while any(second in late for second in range(back, back + QUIET)):
        back += 1
    return {"queue time p99 before, s": round(statistics.median(before), 4), "back after, s": back - start}


def missed(figures: dict[str, Any]) -> Iterator[str]:
    ring, turns, lost = figures["ring"], figures["round_robin"], figures["a fifth is lost"]
    if ring["max/mean load, median"] > MOST_LOAD:
        yield f"max/mean load is {ring['max/mean load, median']}, more than {MOST_LOAD}"
    if ring["prefix hits"] < LEAST_HITS * turns["prefix hits"]:
        yield f"prefix hits are {ring['prefix hits']}, less than {LEAST_HITS} times {turns['prefix hits']} by turns"
    if lost["back after, s"] > RECOVERED_WITHIN:
        yield f"the queue is back after {lost['back after, s']} s, more than {RECOVERED_WITHIN:g}"
    if ring["us a routed request"] > FLAT_US:
        yield f"a routed request takes {ring['us a routed request']} us, more than {FLAT_US:g}"
