"""What a target shows in its window: its batch, its memory, its speed, its line to the proposer.

Read from the scheduler's and the line's own counts, from another thread: numbers of one moment, more or less.
"""

from __future__ import annotations

from services.api.messages import LinkCard
from services.runtime.introspection import Figures
from services.worker.scheduling.events import is_replay
from services.worker.scheduling.scheduler import Scheduler
from services.worker.speculation.remote.succession import Succession


def figures_of(scheduler: Scheduler, drafts: Succession) -> Figures:
    pages, link = scheduler.pages, drafts.link
    now = {
        "running": sum(not is_replay(sequence.stream) for sequence in list(scheduler.running)),
        "waiting": len(scheduler.waiting),
        "max_sequences": scheduler.limits.max_sequences,
        "kv_used": pages.in_use / pages.total,
        "kv_cached": pages.cached / pages.total,
    }
    links = [LinkCard(endpoint=link.endpoint, role="proposer", round_trip=link.round_trip, open=not link.gave_up)]
    return Figures(now, _totals(scheduler), links if link.endpoint else [])


def _totals(scheduler: Scheduler) -> dict[str, float]:
    totals: dict[str, float] = {
        "tokens": scheduler.generated_tokens,
        "prompt_tokens": scheduler.prompt_tokens,
        "steps": 0,
        "drafted": 0,
        "accepted": 0,
    }
    for tally in list(scheduler.tallies.values()):
        totals["steps"] += tally.steps
        totals["drafted"] += tally.drafted
        totals["accepted"] += tally.accepted
    for name, counts in list(scheduler.drafting.counts.sources.items()):
        totals[f"drafts:{name}"] = counts.drafts
        totals[f"drafted:{name}"] = counts.drafted
        totals[f"accepted:{name}"] = counts.accepted
    return totals
