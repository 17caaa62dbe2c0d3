"""A line of log every ten seconds while there is traffic: tokens per second, the batch, and what drafts brought.

The figures are the workers' own, asked through mesh_map.py; a worker counts from the second time it is asked. Knows no
HTTP.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

from services.api.messages import Seen
from services.runtime.log import fields
from services.streamer.extras.mesh_map import MeshMap

log = logging.getLogger("specmesh.throughput")

EVERY = 10.0  # s
# Instance and epoch of a worker, and what it told.
Told = Mapping[tuple[str, int], Seen]


async def watch(mesh_map: MeshMap, every: float = EVERY) -> None:
    """For ever."""
    clock = asyncio.get_running_loop().time
    before, at = await mesh_map.seen("worker"), clock()
    while True:
        await asyncio.sleep(every)
        now, then = await mesh_map.seen("worker"), clock()
        if (line := summary(before, now, then - at)) is not None:
            log.info("throughput", extra=fields(**line))
        before, at = now, then


def summary(before: Told, now: Told, seconds: float) -> dict[str, float] | None:
    """None if nothing was computed."""
    grown = {name: _grown(before, now, name) for name in ("prompt_tokens", "tokens", "steps", "drafted", "accepted")}
    if not (grown["prompt_tokens"] or grown["tokens"]) or seconds <= 0:
        return None
    line = {
        "prompt_tokens_per_s": round(grown["prompt_tokens"] / seconds, 1),
        "tokens_per_s": round(grown["tokens"] / seconds, 1),
        **{name: int(sum(seen.figures.get(name, 0.0) for seen in now.values())) for name in ("running", "waiting")},
        "kv_used": round(max(seen.figures.get("kv_used", 0.0) for seen in now.values()), 3),
    }
    if grown["drafted"]:
        line["drafted_per_s"] = round(grown["drafted"] / seconds, 1)
        line["acceptance_rate"] = round(grown["accepted"] / grown["drafted"], 3)
        line["accepted_per_step"] = round(grown["accepted"] / max(grown["steps"], 1.0), 3)
    return line


def _grown(before: Told, now: Told, name: str) -> float:
    """Of the workers seen both times: what another one did before isn't known."""
    both = now.keys() & before.keys()
    return sum(now[worker].totals.get(name, 0.0) - before[worker].totals.get(name, 0.0) for worker in both)
