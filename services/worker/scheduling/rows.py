"""How the rows of a step are shared: one for each sequence, then drafts, then prompt chunks.

While prompts have to be computed, a quarter of the rows is kept from drafts. Three quarters of the rows for chunks go
to the prompts in order; the last quarter goes to the shortest of the rest. So a short prompt passes a very long one,
which still makes progress.
"""

from __future__ import annotations

from services.worker.scheduling.sequence import Sequence


def most_for_drafts(rows: int, running: int) -> int:
    """Most rows for drafts while prompts are computed."""
    return max(0, rows - running - rows // 4)


def share_chunks(prompts: list[Sequence], rows: int) -> dict[int, int]:
    """Rows beyond the first one, by sequence. `prompts` are in scheduling order."""
    left = rows
    aside = rows // 4 if len(prompts) > 1 else 0
    given: dict[int, int] = {}
    for sequence in prompts:
        given[sequence.id] = min(sequence.missing - 1, max(0, left - aside))
        left -= given[sequence.id]
    if left:
        for sequence in sorted(prompts, key=lambda prompt: prompt.missing - given[prompt.id]):
            more = min(sequence.missing - 1 - given[sequence.id], left)
            given[sequence.id] += more
            left -= more
    return given
