"""Steps of many sequences in which nothing is drafted and nobody looks whether something could be: the look takes about
a microsecond for each sequence."""

from __future__ import annotations

# Of fewer sequences the look costs nothing that could be measured.
LEAST_SEQUENCES = 32
# A text that begins to repeat itself waits so long for its first draft.
STEPS = 8


class Rest:
    def __init__(self) -> None:
        self._left = 0
        self._sequences = 0
        # Whether the last look found nothing to do.
        self._idle = False

    @property
    def rests(self) -> bool:
        """Whether the running step has no look."""
        return self._left > 0

    def goes_on(self, sequences: int) -> bool:
        """Whether the step that begins needs no look. With another number of sequences it does."""
        self._left = self._left - 1 if sequences == self._sequences else 0
        self._idle = True
        return self._left > 0

    def prevent(self) -> None:
        """There is something to do."""
        self._idle = False

    def begin(self, sequences: int) -> None:
        """The look is over: rest, unless it found something or the rest goes on already."""
        if self._idle and self._left <= 0 and sequences >= LEAST_SEQUENCES:
            self._left, self._sequences = STEPS, sequences

    def end(self) -> None:
        """A sequence has left: one that comes in its place is new."""
        self._left = 0
