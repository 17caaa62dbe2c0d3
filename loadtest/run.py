"""One run: a workload sent by a plan to a server, every outcome kept, the harness itself watched."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import orjson

from loadtest.arrivals import Arrivals, drive
from loadtest.client import Client, ServerUnusable, request_body
from loadtest.measure import Figures, spread, summarise
from loadtest.outcome import Outcome
from loadtest.server_metrics import Sample, counted, merged, parse
from loadtest.workloads import Prompt, Workload

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
LAG_INTERVAL = 0.02
# A caller of a closed loop whose server does not even accept connections asks again after this.
UNREACHABLE_PAUSE = 0.1


@dataclass(frozen=True, slots=True)
class Ask:
    """What all requests of a run have in common. `extra` goes into the body as it is."""

    path: str = CHAT
    model: str = ""
    max_tokens: int = 128
    temperature: float = 0.0
    seed: int = 0
    ignore_eos: bool = False
    speculation: Mapping[str, Any] | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)

    def body(self, prompt: Prompt, index: int) -> bytes:
        fields: dict[str, Any] = {
            "model": self.model,
            "stream": True,
            "stream_options": {"include_usage": True},
            "max_tokens": prompt.max_tokens or self.max_tokens,
            "temperature": self.temperature,
            "seed": self.seed + index,
        }
        if self.path == CHAT:
            fields["messages"] = prompt.messages
        else:
            fields["prompt"] = prompt.text()
        # Fields other servers do not know are sent only when asked for.
        if self.ignore_eos:
            fields["ignore_eos"] = True
        if self.speculation is not None:
            fields["speculation"] = self.speculation
        fields.update(self.extra)
        return request_body(fields)


@dataclass(frozen=True, slots=True)
class Plan:
    """A whole run: what, when, to where."""

    url: str
    ask: Ask
    workload: Workload
    arrivals: Arrivals
    api_key: str = ""
    timeout: float = 600.0
    warmup: int = 0
    disconnect: float = 0.0
    metrics_urls: tuple[str, ...] = ()


Progress = Callable[[list[Outcome], float], None]


async def run(plan: Plan, progress: Progress | None = None) -> Figures:
    """Warm up, load, measure. Raises ServerUnusable when there is no server to speak of."""
    client = Client(plan.url, api_key=plan.api_key, timeout=plan.timeout)
    try:
        ask = plan.ask if plan.ask.model else replace(plan.ask, model=await first_model(client))
        await _warm_up(plan, ask, client)
        before = await _scrape(plan.metrics_urls)
        outcomes: list[Outcome] = []
        begin, cpu = client.now(), time.process_time()
        async with _Watch(client.now) as watch:
            reporter = asyncio.create_task(_report(outcomes, begin, client, progress)) if progress else None
            await drive(plan.arrivals, _sender(plan, ask, client, outcomes), now=client.now)
            if reporter:
                reporter.cancel()
        wall, cpu = client.now() - begin, time.process_time() - cpu
        figures = summarise(outcomes, wall)
        figures["model"] = ask.model
        figures["harness"] = {"cpu_share": cpu / max(wall, 1e-9), "loop_lag_s": spread(watch.lags)}
        if plan.metrics_urls:
            after = await _scrape(plan.metrics_urls)
            figures["server"] = merged(counted(old, new) for old, new in zip(before, after, strict=True))
        return figures
    finally:
        client.close()


async def first_model(client: Client) -> str:
    body = await client.get("/v1/models")
    try:
        return str(orjson.loads(body)["data"][0]["id"])
    except (orjson.JSONDecodeError, KeyError, IndexError, TypeError):
        raise ServerUnusable("GET /v1/models: no model in the answer; name one with --model") from None


async def _warm_up(plan: Plan, ask: Ask, client: Client) -> None:
    """Requests that are not measured: caches filled, connections open. Their indices are not used again."""
    if not plan.warmup:
        return
    callers = min(plan.warmup, plan.arrivals.concurrency if not plan.arrivals.open_loop else 8)

    async def send(index: int, scheduled: float) -> None:
        number = -1 - index
        await client.stream(ask.path, ask.body(plan.workload(number), index), scheduled=scheduled)

    await drive(Arrivals(concurrency=callers, requests=plan.warmup), send, now=client.now)


def _sender(plan: Plan, ask: Ask, client: Client, outcomes: list[Outcome]) -> Callable[[int, float], Any]:
    async def send(index: int, scheduled: float) -> None:
        leave = leaves_after(plan.disconnect, index, plan.ask.seed, plan.ask.max_tokens)
        body = ask.body(plan.workload(index), index)
        outcome = await client.stream(ask.path, body, scheduled=scheduled, abandon_after=leave)
        outcomes.append(outcome)
        if outcome.error in ("refused", "connect", "connect_timeout") and not plan.arrivals.open_loop:
            await asyncio.sleep(UNREACHABLE_PAUSE)

    return send


def leaves_after(share: float, index: int, seed: int, max_tokens: int) -> int | None:
    """After how many chunks request `index` is abandoned; None: it stays. A sixteenth of those who leave
    do not even wait for the first chunk. The others leave early rather than late: a chunk may hold many
    tokens, and whoever would leave after more chunks than come has not left at all."""
    draw = random.Random(f"disconnect/{seed}/{index}")
    if draw.random() >= share:
        return None
    return 0 if draw.random() < 1 / 16 else round(max(1, max_tokens) ** draw.random())


async def _scrape(urls: tuple[str, ...]) -> list[dict[Sample, float]]:
    pages: list[dict[Sample, float]] = []
    for url in urls:
        base, slash, path = url.rpartition("/metrics")
        client = Client(base if slash else url)
        pages.append(parse((await client.get(slash + path or "/metrics")).decode(errors="replace")))
    return pages


async def _report(outcomes: list[Outcome], begin: float, client: Client, progress: Progress) -> None:
    while True:
        await asyncio.sleep(1.0)
        progress(outcomes, client.now() - begin)


class _Watch:
    """Measures how late the harness's own event loop is: what it adds to every latency."""

    def __init__(self, now: Callable[[], float]) -> None:
        self.lags: list[float] = []
        self._now = now
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> _Watch:
        self._task = asyncio.create_task(self._tick())
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._task is not None
        self._task.cancel()

    async def _tick(self) -> None:
        while True:
            due = self._now() + LAG_INTERVAL
            await asyncio.sleep(LAG_INTERVAL)
            # uvloop's timers count whole milliseconds and may fire up to one early.
            self.lags.append(max(0.0, self._now() - due))
