"""The next step of sequences that only go on, made of the last step's verdicts alone: it is launched at once, and what
they mean for texts, messages and ends is worked out while it runs.

    verdicts ─▶ next ─▶ launch ─▶ StepDone of the step before

Each sequence has one row: the token that it was just given, perhaps behind its prompt. Those that end with it leave.
Sequences don't have the token yet, so positions are counted here. Where anything is to be decided (who is let in, who
loses pages, what is drafted), there is no next step: planning.py makes it once the verdicts are taken. That is the
reference: it makes the same step of the same verdicts.

If tokens can be read on the device, the next step is made without the verdicts. A sequence that has ended by them has
one row too many in it, whose result is dropped, and leaves one step later:

    step 1 runs ─▶ ahead ─▶ step 2 is launched ─▶ verdicts of step 1 ─▶ saw ─▶ ahead ─▶ step 3 is launched …

Sequences that are let in may `join` such a step, with their prompts.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Items
from functools import partial
from itertools import repeat
from operator import itemgetter
from typing import TypeVar

from services.api.drafter import NO_DRAFT
from services.worker.cache.pages import Pages
from services.worker.running.work import NO_TOKEN, NO_TOKENS, SequenceWork, Verdict
from services.worker.scheduling.planning import Planned
from services.worker.scheduling.sequence import Sequence, SequenceState

Value = TypeVar("Value")

# SequenceWork(*row) without a call of a Python function for each.
_work = partial(tuple.__new__, SequenceWork)
# What it has between `verify` and `state`.
_ALONE = (NO_DRAFT, 0, 0.0, NO_TOKENS, 0)


def only_go_on(items: list[Planned], placed: list[SequenceWork]) -> bool:
    """Whether each of them is given a token and nothing else, perhaps its first, so that it has one row next."""
    return all(item.verify and not item.sequence.forces_text for item in items) and all(
        work[5:-1] == _ALONE for work in placed
    )


class GoingOn:
    """`items` of a step that runs, and `placed`, its work. Sequences have columns, in the order of `items`."""

    def __init__(self, items: list[Planned], placed: list[SequenceWork], pages: Pages, page_tokens: int) -> None:
        self.items: list[Planned] = []
        self._ids: list[int] = []
        # Positions of their rows, of a prompt the last one's.
        self._starts: list[int] = []
        self._pages_of: list[Items[int]] = []
        self._states: list[int] = []
        self._pages, self._page_tokens = pages, page_tokens
        self._stop_ids: frozenset[int] = frozenset()
        self._step = 0
        # Places of those that have ended and have a row in the step that runs.
        self._ended: set[int] = set()
        # Of each place in the step that `ahead` has made, the place in the step before.
        self._fed: list[int] = []
        # Sequences that have no row in the last step and had one in the step before; their ends may not be taken yet.
        self.left: list[Sequence] = []
        # By step: those that come to the end of their pages or to their limit.
        self._due: dict[int, list[Sequence]] = {}
        self.join(items, placed)

    def join(self, items: list[Planned], placed: list[SequenceWork]) -> None:
        """They are in the last step, behind the others, and go on as those do."""
        self.items = self.items + items
        self._ids += [work.sequence_id for work in placed]
        self._starts += [work.position - 1 for work in placed]
        self._pages_of += [work.pages for work in placed]
        self._states += [work.state for work in placed]
        self._stop_ids = self._stop_ids.union(*(item.sequence.stop_ids for item in items))
        for item, work in zip(items, placed, strict=True):
            self._expect(item.sequence, work.position - 1)

    def next(self, verdicts: list[Verdict | None]) -> list[SequenceWork] | None:
        """None: plan it instead. Then this is of no use any more."""
        tokens = [[] if verdict is None else verdict.tokens for verdict in verdicts]
        if set(map(len, tokens)) != {1}:
            return None
        left = self._advance()
        left |= self._stopped(tokens)
        if not self._all_go_on(left):
            return None
        return self._rows(self._leave(left, tokens)) or None

    def ahead(self) -> tuple[list[SequenceWork], list[int]] | None:
        """The step after the last one, whose verdicts aren't known yet; and for each item the index of the last step's
        item whose token it gets. None: as `next`."""
        left = self._advance()
        if not self._all_go_on(left):
            return None
        self._fed = self._leave(left, list(range(len(self._ids))))
        return (self._rows(repeat(NO_TOKEN)), self._fed) if self._fed else None

    def saw(self, verdicts: list[Verdict | None]) -> None:
        """Verdicts have come, those of the step before the one that `ahead` has made."""
        given = [verdicts[place] for place in self._fed]
        tokens = [NO_TOKENS if verdict is None else verdict.tokens for verdict in given]
        failed = {place for place, each in enumerate(tokens) if not each}
        self._ended = failed | self._stopped([each or NO_TOKEN for each in tokens])

    def _advance(self) -> set[int]:
        """To the next step. The places of those that have no row there, as far as that is known."""
        self._step += 1
        self._starts = [start + 1 for start in self._starts]
        ended, self._ended = self._ended, set()
        return ended

    def _all_go_on(self, left: set[int]) -> bool:
        """Whether nobody lacks a page. Those that come to their limit join those that have left."""
        due = self._due.pop(self._step, ())
        return all(self._goes_on(each, left) for each in due if each.state is SequenceState.RUNNING)

    def _rows(self, tokens: Iterable[list[int]]) -> list[SequenceWork]:
        rows = zip(self._ids, tokens, self._starts, self._pages_of, repeat(True), *map(repeat, _ALONE), self._states)
        return list(map(_work, rows))

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
        # Those behind have joined, and had no row before.
        rows = enumerate(zip(self.items, tokens, self._starts, strict=False))
        return {
            place
            for place, (item, [token], start) in rows
            if token in item.sequence.stop_ids and start >= item.sequence.min_length
        }

    def _leave(self, left: set[int], values: list[Value]) -> list[Value]:
        """Returns the values of the others."""
        self.left = [self.items[place].sequence for place in left]
        if not left:
            return values
        stay = [place for place in range(len(self._ids)) if place not in left]
        self.items = [self.items[place] for place in stay]
        self._ids = [self._ids[place] for place in stay]
        self._starts = [self._starts[place] for place in stay]
        self._pages_of = [self._pages_of[place] for place in stay]
        self._states = [self._states[place] for place in stay]
        return [values[place] for place in stay]
