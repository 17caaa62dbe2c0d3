"""Steps in which nothing is drafted and nobody looks whether something could be: the look takes about a microsecond for
each sequence, and a step that needs none can be launched sooner (scheduling/going_on.py)."""

from __future__ import annotations

# Of fewer sequences the look costs nothing that could be measured.
LEAST_SEQUENCES = 32
# A text that begins to repeat itself waits so long for its first draft.
STEPS = 8
# Where no sequence may have a draft.
FOR_EVER = 1 << 62


class Rest:
    def __init__(self) -> None:
        self._left = 0
        # Whether the last look found nothing to do.
        self._idle = False

    @property
    def rests(self) -> bool:
        """Whether the running step has no look."""
        return self._left > 0

    def goes_on(self) -> bool:
        """Whether the step that begins needs no look."""
        self._left -= 1
        self._idle = True
        return self._left > 0

    def prevent(self) -> None:
        """There is something to do."""
        self._idle = False

    def begin(self, sequences: int, drafting: bool) -> None:
        """The look is over: rest, unless it found something or the rest goes on already. `drafting`: some of the
        sequences may have drafts."""
        if self._idle and self._left <= 0 and (sequences >= LEAST_SEQUENCES or not drafting):
            self._left = STEPS if drafting else FOR_EVER

    def end(self) -> None:
        """Another sequence has come."""
        self._left = 0
