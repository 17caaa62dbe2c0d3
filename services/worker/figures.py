"""The figures of a worker: its batch, its memory, its tokens, its link to the proposer.

Another thread reads the counts of scheduler and controller, so the figures may differ by a step.
"""

from __future__ import annotations

from services.api.messages import LinkCard
from services.runtime.introspection import MOST_LINKS, Figures
from services.worker.scheduling.scheduler import Scheduler
from services.worker.speculation.controller import Controller


def figures_of(scheduler: Scheduler, drafts: Controller) -> Figures:
    pages = scheduler.pages
    now = {
        "running": len(scheduler.running),
        "waiting": len(scheduler.waiting),
        "max_sequences": scheduler.limits.max_sequences,
        "kv_used": pages.in_use / pages.total,
        "kv_cached": pages.cached / pages.total,
    }
    links = [
        LinkCard(endpoint=each.endpoint, role="proposer", round_trip=each.round_trip, open=not each.breaker.open)
        for each in list(drafts.client.clients.values())
    ]
    return Figures(now, _totals(scheduler, drafts), links[:MOST_LINKS])


def _totals(scheduler: Scheduler, drafts: Controller) -> dict[str, float]:
    totals: dict[str, float] = {
        "tokens": scheduler.generated_tokens,
        "prompt_tokens": scheduler.prompt_tokens,
        "ended": sum(list(scheduler.ends.values())),
        "steps": 0,
        "drafted": 0,
        "accepted": 0,
    }
    for tally in list(scheduler.tallies.values()):
        totals["steps"] += tally.steps
        totals["drafted"] += tally.drafted
        totals["accepted"] += tally.accepted
    for name, counts in list(drafts.counts.sources.items()):
        totals[f"drafts:{name}"] = counts.drafts
        totals[f"drafted:{name}"] = counts.drafted
        totals[f"accepted:{name}"] = counts.accepted
    return totals
