"""How the rows of a step are shared out: one for each sequence, then drafts, then chunks of prompts.

While prompts wait to be computed, a quarter of the rows isn't given to drafts. Of the rows for chunks, three
quarters go to the prompts in order, whole ones first; the last quarter goes to the shortest of those left over, so
that a short prompt passes a huge one, and the huge one goes on all the same.
"""

from __future__ import annotations

from services.worker.scheduling.sequence import Sequence


class Rows:
    """`wanted` lists the draft lengths asked for. When not all fit, each gets its share; one that uses less leaves the
    rest to those behind it."""

    __slots__ = ("_chunks", "_draft_rows", "_drafting", "_longest")

    def __init__(self, running: list[Sequence], wanted: list[int], rows: int) -> None:
        free = rows - len(running)
        self._drafting = len(wanted)
        self._draft_rows = min(free, sum(wanted))
        prompts = [(s, missing) for s in running if (missing := len(s.token_ids) - s.computed) > 1]
        if prompts:
            self._draft_rows = min(self._draft_rows, max(0, most_for_sure(rows, len(running))))
        # Of drafts that all fit, none is cut.
        self._longest = max(wanted, default=0) if sum(wanted) <= self._draft_rows else 0
        self._chunks = _chunks(prompts, free - self._draft_rows)

    @property
    def share(self) -> int:
        return self._longest or (-(-self._draft_rows // self._drafting) if self._drafting else 0)

    def for_draft(self, wanted: int) -> int:
        given = min(wanted, self.share)
        self._drafting -= 1
        self._draft_rows -= given
        return given

    def for_chunk(self, sequence: Sequence) -> int:
        """The one that each has, and what else there is for it."""
        return 1 + self._chunks[sequence.id]


def most_for_sure(rows: int, running: int) -> int:
    """Rows that drafts may have together, whatever prompts there are."""
    return rows - running - rows // 4


def _chunks(prompts: list[tuple[Sequence, int]], rows: int) -> dict[int, int]:
    """Rows beyond the first one, by sequence; in order are `prompts`, with how many tokens each has to compute."""
    left = rows
    aside = rows // 4 if len(prompts) > 1 else 0
    given: dict[int, int] = {}
    for sequence, missing in prompts:
        given[sequence.id] = min(missing - 1, max(0, left - aside))
        left -= given[sequence.id]
    if left:
        for sequence, missing in sorted(prompts, key=lambda prompt: prompt[1] - given[prompt[0].id]):
            more = min(missing - 1 - given[sequence.id], left)
            given[sequence.id] += more
            left -= more
    return given
