"""A mesh in simulated time, for bench/simulated/simulate.py.

What is real: the keys, the ring and the bounded loads (services/streamer/choice/routing.py), the share of a caller
(admission.py), the budget of retries (retries.py), the age of the directory's table. What is not: the model, whose
workers are queues of requests, and sockets.

An event costs the same whatever the number of workers and of requests before it; tables cost a little for each worker.
"""

from __future__ import annotations

import heapq
import json
import random
import time
from array import array
from bisect import bisect
from collections import Counter, OrderedDict, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

from services.streamer.choice.admission import above_share
from services.streamer.choice.retries import RetryBudget
from services.streamer.choice.routing import Router, key_of

PAGE = 32
CALLERS = 16
# Pages of a shared beginning: none, a system prompt, a long one, a document.
SHARED = (0, 4, 16, 64)
# Every eighth question of Spec-Bench (first turns), answered by SmolLM2-135M-Instruct with max_tokens 512.
RECORDED = Path(__file__).parent / "recorded_lengths.jsonl"
# Of a worker: sequences at a time, prompt tokens/s, seconds of a step, what a step brings with drafts, and what 1 GiB
# holds of SmolLM2-135M.
SLOTS, PREFILL, STEP, TOKENS_A_STEP, PAGES = 32, 20_000, 0.02, 1.5, 1_400
# A streamer hears the loads this often, in seconds, and they are half as old then (services/streamer/choice/peers.py).
TABLE_EVERY = 0.5
# Until a lost worker is back, with an empty cache; and until a lost choice is sent again.
RESTART, RETRY_AFTER = 8.0, 0.02  # s
# One request of this many is timed: reading the clock costs as much as a part of what is measured.
TIMED = 16


class Lengths(NamedTuple):
    prompt: int
    answer: int


@dataclass(slots=True, eq=False)
class SimulatedRequest:
    arrived: float
    caller: int
    # The shared beginning, its pages, and pages of its own behind it.
    group: int
    shared: int
    own: int
    key: int | None
    tokens: int
    streamer: int = 0
    worker: int = -1
    ends: float = 0.0


def recorded(path: Path = RECORDED) -> list[Lengths]:
    """Also reads a server's log of requests as JSON, which calls them `prompt_tokens` and `tokens`."""
    lines = (json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip())
    found = [
        Lengths(int(line["prompt_tokens"]), int(line.get("completion_tokens", line.get("tokens", 0)))) for line in lines
    ]
    if not (kept := [each for each in found if each.prompt > 0 and each.answer > 0]):
        raise ValueError(f"{path} has no lengths of answers")
    return kept


def traffic(rate: float, groups: int, seed: int, lengths: Sequence[Lengths]) -> Iterator[SimulatedRequest]:
    """Requests of `groups` shared beginnings, popular by rank, each with text of its own behind it. Lengths are drawn
    from those that were recorded, so that they have their spread and belong together."""
    draw = random.Random(seed)
    shared = [draw.choice(SHARED) for _ in range(groups)]
    upto = list(accumulate(1 / (1 + rank) for rank in range(groups)))
    keys = [key_of([each, *range(1, pages * PAGE)], PAGE) if pages else None for each, pages in enumerate(shared)]
    now = 0.0
    while True:
        now += draw.expovariate(rate)
        group = bisect(upto, draw.random() * upto[-1])
        prompt, answer = lengths[int(draw.random() * len(lengths))]
        own = prompt // PAGE
        key = keys[group] or (draw.getrandbits(64) if own else None)
        yield SimulatedRequest(now, int(draw.random() * CALLERS), group, shared[group], own, key, answer)


class SimulatedWorker:
    """A queue, SLOTS places, and a prefix cache: beginnings with their pages, least recently used first. Prompts are
    computed one after the other; each running sequence gets a token a step, or more with drafts."""

    __slots__ = ("alive", "cache", "cached", "mesh", "name", "number", "prefill_free", "running", "serial", "waiting")

    def __init__(self, mesh: Mesh, number: int) -> None:
        self.mesh, self.number, self.name = mesh, number, f"worker-{number}"
        self.waiting: deque[SimulatedRequest] = deque()
        # In the order in which they began: a set's order is that of addresses, which no seed repeats.
        self.running: dict[SimulatedRequest, None] = {}
        self.cache: OrderedDict[int, int] = OrderedDict()
        self.cached = self.serial = 0
        self.prefill_free = 0.0
        self.alive = True

    @property
    def load(self) -> int:
        return len(self.waiting) + len(self.running)

    def take(self, request: SimulatedRequest) -> None:
        self.waiting.append(request)
        self._start()

    def wake(self, request: SimulatedRequest) -> None:
        """Its answer ends, unless it was lost meanwhile."""
        if request.ends == self.mesh.now and request in self.running:
            del self.running[request]
            self.mesh.ended_at(request)
            self._start()

    def lose(self) -> list[tuple[SimulatedRequest, bool]]:
        """Everything, each with whether it had begun; those go on where they were."""
        lost = [(request, True) for request in self.running] + [(request, False) for request in self.waiting]
        for request in self.running:
            left = int((request.ends - self.mesh.now) * TOKENS_A_STEP / STEP)
            request.tokens = max(1, min(left, request.tokens))
        for request, _ in lost:
            request.ends = -1.0
        self.running, self.waiting, self.cache = {}, deque(), OrderedDict()
        self.cached, self.prefill_free, self.alive = 0, 0.0, False
        return lost

    def _start(self) -> None:
        mesh = self.mesh
        while self.waiting and len(self.running) < SLOTS:
            request = self.waiting.popleft()
            hits, pages = self.hits(request), request.shared + request.own
            self.prefill_free = max(mesh.now, self.prefill_free) + (1 + pages - hits) * PAGE / PREFILL
            mesh.began(request, pages, hits, self.prefill_free)
            self.running[request] = None
            request.ends = self.prefill_free + request.tokens * STEP / TOKENS_A_STEP
            mesh.at(request.ends, "wake", (self, request))

    def hits(self, request: SimulatedRequest) -> int:
        """How many of its pages are cached; now all of them are. Pages of its own are nobody else's, but take room."""
        found = request.shared if request.group in self.cache else 0
        if found:
            self.cache.move_to_end(request.group)
        elif request.shared:
            self._keep(request.group, request.shared)
        if request.own:
            self.serial -= 1
            self._keep(self.serial, request.own)
        return found

    def _keep(self, name: int, pages: int) -> None:
        self.cache[name] = pages
        self.cached += pages
        while self.cached > PAGES:
            self.cached -= self.cache.popitem(last=False)[1]


class Mesh:
    """`policy`: ring, round_robin or least. `times`: queue times by the second in which they began."""

    def __init__(self, workers: int, streamers: int, policy: str, limit: int) -> None:
        self.workers = [SimulatedWorker(self, number) for number in range(workers)]
        self.by_name = {worker.name: worker for worker in self.workers}
        self.policy, self.limit = policy, limit
        self.routers = [Router() for _ in range(streamers)]
        self.budgets = [RetryBudget(limit // 4) for _ in range(streamers)]
        self.names = list(self.by_name)
        # What the members have announced, and the directory tells with its next table.
        self.announced: dict[str, int] = dict.fromkeys(self.names, 0)
        self.turn = self.total = self.serial = 0
        self.held: Counter[int] = Counter()
        self.now = 0.0
        self.events: list[tuple[float, int, str, Any]] = []
        self.times: dict[int, array[float]] = {}
        self.balance: list[float] = []
        self.pages = self.cached = self.refused = self.ended = self.retried = 0
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

    def choose(self, request: SimulatedRequest) -> str | None:
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

    def arrive(self, request: SimulatedRequest) -> None:
        held = self.held[request.caller] + 1
        if self.total >= self.limit or above_share(held, self.total + 1, len(self.held), self.limit):
            self.refused += 1
            return
        self.held[request.caller] = held
        self.total += 1
        request.streamer = self.serial % len(self.routers)
        self.budgets[request.streamer].first(self.now)
        self.send(request)

    def send(self, request: SimulatedRequest) -> None:
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

    def began(self, request: SimulatedRequest, pages: int, hits: int, at: float) -> None:
        """Its prompt has been computed at that time, but for the pages that were cached."""
        self.pages += pages
        self.cached += hits
        self.times.setdefault(int(self.now), array("d")).append(at - request.arrived)

    def ended_at(self, request: SimulatedRequest) -> None:
        self.leave(request)
        self._gone(request)
        self.ended += 1

    def _gone(self, request: SimulatedRequest) -> None:
        self.total -= 1
        self.held[request.caller] -= 1
        if not self.held[request.caller]:
            del self.held[request.caller]

    def leave(self, request: SimulatedRequest) -> None:
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

    # Time -----------------------------------------------------------------------------------------------------

    def run(self, requests: Iterator[SimulatedRequest], count: int, lost_at: float = 0.0) -> None:
        """Until that many have arrived and all have ended. `lost_at`: when a fifth of the workers is lost; 0: never."""
        coming, arrived = next(requests), 0
        self.at(0.0, "table")
        self.at(TABLE_EVERY / 2, "announce")
        if lost_at:
            self.at(lost_at, "lose")
        while arrived < count or self.total:
            if arrived < count and coming.arrived <= self.events[0][0]:
                self.now = coming.arrived
                self.serial += 1
                self.arrive(coming)
                coming, arrived = next(requests), arrived + 1
                continue
            self.now, _, what, about = heapq.heappop(self.events)
            match what:
                case "wake":
                    about[0].wake(about[1])
                case "send":
                    self.send(about)
                case "back":
                    about.alive = True
                case "lose":
                    self.lose(0.2, 1)
                case "announce":
                    self.announced = {name: worker.load for name, worker in self.by_name.items()}
                    self.at(self.now + TABLE_EVERY, "announce")
                case _:
                    loads = [worker.load for worker in self.workers if worker.alive]
                    if arrived < count and (mean := sum(loads) / len(loads)) >= 8:
                        self.balance.append(max(loads) / mean)
                    self.tables()
                    self.at(self.now + TABLE_EVERY, "table")
