"""How the rows of a step are shared: one for each sequence, then drafts, then prompt chunks.

While prompts have to be computed, a quarter of the rows is kept from drafts. Three quarters of the rows for chunks go
to the prompts in order; the last quarter goes to the shortest of the rest. So a short prompt passes a very long one,
which still makes progress.

Where each row costs time, a step in which a prompt ends takes no more of others: they would delay its first token, and
are computed as fast in a step of their own.
"""

from __future__ import annotations

from collections.abc import Mapping

from services.worker.scheduling.sequence import Sequence

# Rows of prompts that make a step worth what it costs besides them, and more for each running sequence.
LEAST, LEAST_A_SEQUENCE = 64, 4


def most_for_drafts(rows: int, running: int) -> int:
    """Most rows for drafts while prompts are computed."""
    return max(0, rows - running - rows // 4)


def wanted_rows(prompts: list[Sequence], scored: int) -> dict[int, int]:
    """Rows beyond the first one that each could have. Rows of a prompt that are scored have logits, which take memory:
    at most `scored` of them."""
    wanted: dict[int, int] = {}
    for sequence in prompts:
        wanted[sequence.sequence_id] = sequence.longest_chunk - 1
        if sequence.scores:
            wanted[sequence.sequence_id] = min(wanted[sequence.sequence_id], scored)
            scored -= wanted[sequence.sequence_id]
    return wanted


def enough_for_a_step(running: int) -> int:
    return LEAST + LEAST_A_SEQUENCE * running


def share_chunks(wanted: Mapping[int, int], rows: int, enough: int | None = None) -> dict[int, int]:
    """Rows of each sequence beyond its first one. `wanted` holds the most that each can use, in scheduling order.
    With `enough`: once that many rows are given and a prompt ends with them, later prompts get none in this step."""
    left = rows
    aside = rows // 4 if len(wanted) > 1 else 0
    given: dict[int, int] = {}
    for id, most in wanted.items():
        given[id] = min(most, max(0, left - aside))
        left -= given[id]
        if enough is not None and given[id] == most and rows - left >= enough:
            return dict.fromkeys(wanted, 0) | given
    if left:
        for id in sorted(wanted, key=lambda id: wanted[id] - given[id]):
            more = min(wanted[id] - given[id], left)
            given[id] += more
            left -= more
    return given
