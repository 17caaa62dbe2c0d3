"""Runs a plan: sends a workload to one server or to the sides of a comparison, and keeps every outcome.

Points (rates or concurrencies) run one after the other. At each point the sides take turns in blocks of equal requests,
so that noise affects all of them alike. The order of the sides changes from block to block.
"""

from __future__ import annotations

import asyncio
import math
import random
import secrets
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import orjson

from loadtest.arrivals import Arrivals, Send, drive
from loadtest.ask import MAX_TOKENS, LoadRequest, Side
from loadtest.client import Client, ServerUnusable
from loadtest.comparison import Block, compare
from loadtest.measure import Figures, summarise
from loadtest.outcome import Outcome
from loadtest.plan import ALONE, BLOCK_SECONDS, LoadPlan
from loadtest.server_metrics import Sample, counted, merged, parse
from loadtest.token_times import tokens_of
from loadtest.watch import Watch
from loadtest.workloads.session import Body, extended

T = TypeVar("T")
# Pause of a closed-loop caller after a failed connection.
UNREACHABLE_PAUSE = 0.1
# Number of requests generated before a run without a limit.
MADE_BEFORE = 1000


@dataclass(slots=True)
class Load:
    """One side at one point, and its outcomes so far."""

    side: Side
    ask: LoadRequest
    client: Client
    watch: Watch
    outcomes: list[Outcome] = field(default_factory=list)
    blocks: list[Block] = field(default_factory=list)
    running: int = 0


@dataclass(slots=True)
class Progress:
    """The state that a live view shows."""

    arrivals: Arrivals
    point: int
    points: int
    loads: Sequence[Load]
    began: float
    now: float


@dataclass(frozen=True, slots=True)
class LoadResult:
    """`runs`: one for each side and point; `comparisons`: each other side with the first, at each point."""

    runs: list[Figures]
    comparisons: list[Figures]
    records: list[tuple[str, Outcome]]  # (title of the run, outcome) of every request


Show = Callable[[Progress], None]


async def run(
    plan: LoadPlan, show: Show | None = None, every: float = 1.0, stop: asyncio.Event | None = None
) -> LoadResult:
    """Warms up, runs and measures. `stop`: ends the run early; what was measured before is the result. Raises
    ServerUnusable without a usable server."""
    stop = stop or asyncio.Event()
    cold = plan.cold or (plan.workload.cold and not plan.shared_cache)
    salt = f"load {secrets.token_hex(4)}" if cold or (len(plan.sides) > 1 and not plan.shared_cache) else ""
    clients = [Client(side.url or plan.url, api_key=plan.api_key, timeout=plan.timeout) for side in plan.each_side]
    result = LoadResult([], [], [])
    try:
        asks = [await _named(side.ask(plan.ask, salt, cold), client) for side, client in _both(plan, clients)]
        for (_, client), ask in zip(_both(plan, clients), asks, strict=True):
            await _unless(stop, _warm_up(plan, ask, client))
        first = 0
        for number, arrivals in enumerate(plan.at()):
            if stop.is_set():
                break
            loads = [
                Load(side, ask, client, Watch(client.now))
                for (side, client), ask in zip(_both(plan, clients), asks, strict=True)
            ]
            before = await _scrape(plan.metrics_urls)
            reporter = asyncio.create_task(_report(plan, arrivals, number, loads, show, every)) if show else None
            try:
                first = await _unless(stop, _point(plan, arrivals, loads, first)) or first
            finally:
                if reporter:
                    reporter.cancel()
            if stop.is_set() and not any(load.outcomes for load in loads):
                break
            server = await _counted(plan.metrics_urls, before)
            _conclude(plan, arrivals, loads, server, result)
        return result
    finally:
        for client in clients:
            client.close()


async def _unless(stop: asyncio.Event, work: Coroutine[Any, Any, T]) -> T | None:
    """The work's result; None if it was stopped in the middle. Requests that still run are hung up."""
    working, stopped = asyncio.create_task(work), asyncio.create_task(stop.wait())
    try:
        await asyncio.wait((working, stopped), return_when=asyncio.FIRST_COMPLETED)
    finally:
        stopped.cancel()
        working.cancel()
        await asyncio.wait((working,))
    return None if working.cancelled() else working.result()


def _both(plan: LoadPlan, clients: Sequence[Client]) -> list[tuple[Side, Client]]:
    return list(zip(plan.each_side, clients, strict=True))


async def _named(ask: LoadRequest, client: Client) -> LoadRequest:
    return ask if ask.model or "model" in ask.extra else replace(ask, model=await first_model(client))


async def first_model(client: Client) -> str:
    body = await client.get("/v1/models")
    try:
        return str(orjson.loads(body)["data"][0]["id"])
    except (orjson.JSONDecodeError, KeyError, IndexError, TypeError):
        raise ServerUnusable(f"{client.url}: GET /v1/models: no model in the answer; name one with --model") from None


async def _warm_up(plan: LoadPlan, ask: LoadRequest, client: Client) -> None:
    """Sends requests that are not measured, to fill caches and open connections. Their indices are not used again."""
    if not plan.warmup:
        return
    load = Load(ALONE, ask, client, Watch(client.now))
    send = _sender(plan, load)
    most = 8 if plan.arrivals.open_loop else max(each.concurrency for each in plan.at())
    callers = min(plan.warmup, most)
    arrivals = Arrivals(concurrency=callers, requests=plan.warmup)
    await drive(arrivals, lambda index, scheduled: send(-1 - index, scheduled), now=client.now)


# One point ------------------------------------------------------------------------------------------------


async def _point(plan: LoadPlan, arrivals: Arrivals, loads: Sequence[Load], first: int) -> int:
    """Returns the first unused index."""
    # Generate listed prompts before the clock starts, so that this doesn't delay reading answers.
    plan.workload.session(first + (arrivals.requests or MADE_BEFORE) - 1)
    if len(loads) == 1:
        await _block(plan, arrivals, loads[0], first)
        return max((outcome.index for outcome in loads[0].outcomes), default=first - 1) + 1
    size, begin, number, done = block_size(plan, arrivals), time.perf_counter(), 0, 0
    while not (arrivals.requests and done >= arrivals.requests):
        if arrivals.duration and time.perf_counter() - begin >= arrivals.duration:
            break
        count = min(size, arrivals.requests - done) if arrivals.requests else size
        part = replace(arrivals, requests=count, duration=0.0, seed=f"{arrivals.seed}/{number}")
        turn = number % len(loads)
        for load in (*loads[turn:], *loads[:turn]):
            await asyncio.sleep(plan.pause)
            await _block(plan, part, load, first + done)
        done, number = done + count, number + 1
    return first + done


def block_size(plan: LoadPlan, arrivals: Arrivals) -> int:
    """One request with a single caller; otherwise enough requests to reach the load."""
    if plan.block or arrivals.process == "trace":
        return plan.block or len(arrivals.times)
    if arrivals.open_loop:
        return max(8, math.ceil(arrivals.rate * BLOCK_SECONDS))
    return 1 if arrivals.concurrency == 1 else 2 * arrivals.concurrency


async def _block(plan: LoadPlan, arrivals: Arrivals, load: Load, first: int) -> None:
    begin, before = load.client.now(), len(load.outcomes)
    async with load.watch:
        await drive(arrivals, _sender(plan, load), now=load.client.now, first=first)
    tokens = sum(tokens_of(each) for each in load.outcomes[before:] if each.ok)
    load.blocks.append(Block(tokens, load.client.now() - begin))


def _sender(plan: LoadPlan, load: Load) -> Send:
    """Sends a session turn by turn; each answer becomes part of the next request."""
    closed = not plan.arrivals.open_loop

    async def send(index: int, scheduled: float) -> None:
        session = plan.workload.session(index)
        turns = session.turns
        if closed:
            # The time for generating the request must not count as latency.
            scheduled = load.client.now()
        body: Body = {}
        outcome: Outcome | None = None
        for number, turn in enumerate(turns):
            asked = load.ask.shaped(turn.body)
            if outcome is not None:
                scheduled = outcome.ended + turn.think
                await asyncio.sleep(max(0.0, scheduled - load.client.now()))
                asked = asked if session.recorded else extended(body, outcome.text, asked)
            body = asked
            outcome = await _request(plan, load, body, index, scheduled, keep_text=plan.keep_text or len(turns) > 1)
            outcome.index, outcome.turn = index, number
            load.outcomes.append(outcome)
            if outcome.error in ("refused", "connect", "connect_timeout") and closed:
                await asyncio.sleep(UNREACHABLE_PAUSE)
            if not outcome.ok:
                return

    return send


async def _request(plan: LoadPlan, load: Load, body: Body, index: int, scheduled: float, *, keep_text: bool) -> Outcome:
    leave = leaves_after(plan.disconnect, index, plan.ask.seed, plan.ask.max_tokens or MAX_TOKENS)
    path, request = load.ask.request(body, index)
    load.running += 1
    try:
        return await load.client.stream(path, request, scheduled=scheduled, abandon_after=leave, keep_text=keep_text)
    finally:
        load.running -= 1


def leaves_after(share: float, index: int, seed: int, max_tokens: int) -> int | None:
    """The number of chunks after which request `index` is abandoned, or None. One sixteenth of the abandoned requests
    leave before the first chunk. The others leave early rather than late: chunks may hold many tokens, and a request
    with fewer chunks would not be abandoned at all."""
    draw = random.Random(f"disconnect/{seed}/{index}")
    if draw.random() >= share:
        return None
    return 0 if draw.random() < 1 / 16 else round(max(1, max_tokens) ** draw.random())


# Results --------------------------------------------------------------------------------------------------


def _conclude(
    plan: LoadPlan, arrivals: Arrivals, loads: Sequence[Load], server: Figures | None, result: LoadResult
) -> None:
    for load in loads:
        figures = summarise(load.outcomes, load.watch.wall, plan.limits)
        shape = {"open_loop": arrivals.open_loop, "process": arrivals.process if arrivals.open_loop else "closed"}
        point = {"rate": arrivals.rate} if arrivals.rate else {"concurrency": arrivals.concurrency}
        alone = {"server": server} if server is not None and len(loads) == 1 else {}
        title = _title(load.side, arrivals)
        about = {"title": title, "side": load.side.label, "load": shape | point}
        model = load.ask.extra.get("model", load.ask.model)
        result.records.extend((title, outcome) for outcome in load.outcomes)
        result.runs.append({**about, "model": model, **figures, "harness": load.watch.figures(), **alone})
    for load in loads[1:]:
        compared = compare(loads[0].outcomes, load.outcomes, (loads[0].blocks, load.blocks), plan.ask.seed)
        about = {"title": _title(load.side, arrivals), "first": loads[0].side.label, "other": load.side.label}
        counters = {"server": server} if server is not None else {}
        result.comparisons.append({**about, "load": result.runs[-1]["load"], **compared, **counters})


def _title(side: Side, arrivals: Arrivals) -> str:
    if arrivals.process == "trace":
        where = "trace"
    else:
        where = f"{arrivals.rate:g} requests/s" if arrivals.open_loop else f"{arrivals.concurrency} at a time"
    return f"{side.label}, {where}" if side.label else where


async def _scrape(urls: tuple[str, ...]) -> list[dict[Sample, float]]:
    pages: list[dict[Sample, float]] = []
    for url in urls:
        base, slash, path = url.rpartition("/metrics")
        client = Client(base if slash else url)
        pages.append(parse((await client.get(slash + path or "/metrics")).decode(errors="replace")))
    return pages


async def _counted(urls: tuple[str, ...], before: Sequence[dict[Sample, float]]) -> Figures | None:
    if not urls:
        return None
    after = await _scrape(urls)
    return merged(counted(old, new) for old, new in zip(before, after, strict=True))


async def _report(
    plan: LoadPlan, arrivals: Arrivals, number: int, loads: Sequence[Load], show: Show, every: float
) -> None:
    began = loads[0].client.now()
    while True:
        await asyncio.sleep(every)
        show(Progress(arrivals, number, max(1, len(plan.points)), loads, began, loads[0].client.now()))
