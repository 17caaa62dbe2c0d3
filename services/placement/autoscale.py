"""How many workers there should be, from how long requests wait in their queues. A function of values: knows no worker,
message or clock.

A queue that is long for GROW_AFTER adds a worker; queues that stay empty for `shrink_after`, with room for the running
work on one worker less, take one away. Between LOW and HIGH nothing changes, nor while a worker is on its way: what it
will bring isn't seen yet.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

HIGH = 1.0  # s
LOW = 0.1  # s
GROW_AFTER = 3.0  # s
# Of the batches of the workers that would be left, the share that running sequences may take.
FULL = 0.7
# A queue that nothing leaves counts as this long.
STANDSTILL = 60.0  # s


@dataclass(frozen=True, slots=True)
class WorkerLoad:
    """One ready worker. `ended`: requests that ended in the last `span` seconds."""

    waiting: int
    running: int
    room: int  # sequences in a batch
    ended: float
    span: float  # s


@dataclass(frozen=True, slots=True)
class Since:
    """Since when queues have been long, or short; None: they aren't."""

    long: float | None = None
    short: float | None = None


def queue_seconds(load: WorkerLoad) -> float:
    """How long a request that arrives now waits: those before it, divided by how many end in a second (Little)."""
    if not load.waiting:
        return 0.0
    rate = load.ended / load.span if load.span > 0 else 0.0
    return min(STANDSTILL, load.waiting / rate) if rate > 0 else STANDSTILL


def mean_queue(loads: Sequence[WorkerLoad]) -> float:
    return sum(map(queue_seconds, loads)) / len(loads) if loads else 0.0


def autoscale(
    since: Since, loads: Sequence[WorkerLoad], wanted: int, bounds: tuple[int, int], now: float, shrink_after: float
) -> tuple[Since, int]:
    """The number of workers wanted from now on. `loads` are the ready ones, `wanted` is how many there should be."""
    least, most = bounds
    if not least <= wanted <= most:
        return Since(), min(max(wanted, least), most)
    if len(loads) != wanted:
        return Since(), wanted
    mean = mean_queue(loads)
    fits = wanted > 1 and sum(each.running for each in loads) <= FULL * sum(each.room for each in loads[1:])
    since = Since(
        _kept(since.long, mean > HIGH, now),
        _kept(since.short, mean < LOW and fits, now),
    )
    if since.long is not None and now - since.long >= GROW_AFTER and wanted < most:
        return Since(), wanted + 1
    if since.short is not None and now - since.short >= shrink_after and wanted > least:
        return Since(), wanted - 1
    return since, wanted


def _kept(since: float | None, holds: bool, now: float) -> float | None:
    return (now if since is None else since) if holds else None
