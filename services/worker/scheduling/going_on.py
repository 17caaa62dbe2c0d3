"""The next step of sequences that only go on, made of the last step's verdicts alone: it is launched at once, and what
they mean for texts, messages and ends is worked out while it runs.

    verdicts ─▶ next ─▶ launch ─▶ StepDone of the step before

Each sequence has one row: the token that it was just given. Those that end with it leave. Sequences don't have the
token yet, so positions are counted here. Where anything is to be decided (who is let in, who loses pages, what is
drafted), there is no next step: planning.py makes it once the verdicts are taken. That is the reference: it makes the
same step of the same verdicts.
"""

from __future__ import annotations

from functools import partial
from itertools import repeat
from operator import itemgetter

from services.api.drafter import NO_DRAFT
from services.worker.cache.pages import Pages
from services.worker.running.work import NO_TOKENS, SequenceWork, Verdict
from services.worker.scheduling.planning import Planned
from services.worker.scheduling.sequence import Sequence, SequenceState

# SequenceWork(*row) without a call of a Python function for each.
_work = partial(tuple.__new__, SequenceWork)
# What it has between `verify` and `state`.
_ALONE = (NO_DRAFT, 0, 0.0, NO_TOKENS, 0)


def only_go_on(items: list[Planned], placed: list[SequenceWork]) -> bool:
    """Whether each of them has one row that gives a token, and nothing else, as its next one would."""
    return all(item.count == 1 and item.verify and not item.sequence.forces_text for item in items) and all(
        work[5:-1] == _ALONE for work in placed
    )


class GoingOn:
    """`items` of a step that runs, and `placed`, its work. Sequences have columns, in the order of `items`."""

    def __init__(self, items: list[Planned], placed: list[SequenceWork], pages: Pages, page_tokens: int) -> None:
        self.items = items
        self._ids = [work.sequence_id for work in placed]
        # Positions of their rows.
        self._starts = [work.start for work in placed]
        self._pages_of = [work.pages for work in placed]
        self._states = [work.state for work in placed]
        self._pages, self._page_tokens = pages, page_tokens
        self._stop_ids: frozenset[int] = frozenset().union(*(item.sequence.stop_ids for item in items))
        self._step = 0
        # By step: those that come to the end of their pages or to their limit.
        self._due: dict[int, list[Sequence]] = {}
        for item, start in zip(items, self._starts, strict=True):
            self._expect(item.sequence, start)

    def next(self, verdicts: list[Verdict | None]) -> list[SequenceWork] | None:
        """None: plan it instead. Then this is of no use any more."""
        tokens = [[] if verdict is None else verdict.tokens for verdict in verdicts]
        if set(map(len, tokens)) != {1}:
            return None
        self._step += 1
        self._starts = [start + 1 for start in self._starts]
        left = self._stopped(tokens)
        for sequence in self._due.pop(self._step, ()):
            if sequence.state is SequenceState.RUNNING and not self._goes_on(sequence, left):
                return None
        if left:
            tokens = self._leave(left, tokens)
        rows = zip(self._ids, tokens, self._starts, self._pages_of, repeat(True), *map(repeat, _ALONE), self._states)
        return list(map(_work, rows)) or None

    def _expect(self, sequence: Sequence, start: int) -> None:
        # One that only has its prompt scored is beyond its limit.
        steps = max(1, min(sequence.limit - 1, sequence.room) - start)
        self._due.setdefault(self._step + steps, []).append(sequence)

    def _goes_on(self, sequence: Sequence, left: set[int]) -> bool:
        """It leaves at its limit, or gets a page. False: there is none."""
        place = self._ids.index(sequence.sequence_id)
        start = self._starts[place]
        if place in left or start + 1 >= sequence.limit:
            left.add(place)
            return True
        page = self._pages.take(1)
        if page is None:
            return False
        sequence.give_pages(page, self._page_tokens)
        self._pages_of[place] = sequence.pages
        self._expect(sequence, start)
        return True

    def _stopped(self, tokens: list[list[int]]) -> set[int]:
        """The places of those that end with a stop id, as Sequence.commit will find."""
        if self._stop_ids.isdisjoint(map(itemgetter(0), tokens)):
            return set()
        rows = enumerate(zip(self.items, tokens, self._starts, strict=True))
        return {
            place
            for place, (item, [token], start) in rows
            if token in item.sequence.stop_ids and start >= item.sequence.min_length
        }

    def _leave(self, left: set[int], tokens: list[list[int]]) -> list[list[int]]:
        """Returns the tokens of the others."""
        stay = [place for place in range(len(self._ids)) if place not in left]
        self.items = [self.items[place] for place in stay]
        self._ids = [self._ids[place] for place in stay]
        self._starts = [self._starts[place] for place in stay]
        self._pages_of = [self._pages_of[place] for place in stay]
        self._states = [self._states[place] for place in stay]
        return [tokens[place] for place in stay]
