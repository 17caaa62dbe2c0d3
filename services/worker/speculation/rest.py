"""Steps in which nothing is drafted and nobody looks whether something could be: the look takes about a microsecond for
each sequence, and a step that needs none can be launched sooner (scheduling/going_on.py)."""

from __future__ import annotations

# Of fewer sequences the look costs nothing that could be measured; on a GPU also a step that could be launched without
# it is lost.
LEAST_SEQUENCES, LEAST_ON_GPU = 32, 8
# The length of a rest: at least STEPS; as many steps as SECONDS hold, where that is more; at most MOST_STEPS. A text
# that begins to repeat itself waits so long for its first draft. A look takes half a millisecond, perhaps half a step.
STEPS, SECONDS, MOST_STEPS = 8, 0.03, 64
# So long a sequence that has come to many others waits for it at most.
JOINED = 0.01
# Where no sequence may have a draft.
FOR_EVER = 1 << 62


class Rest:
    def __init__(self, least: int) -> None:
        """`least`: sequences."""
        self._least = least
        self._left = 0
        # Whether the last look found nothing to do.
        self._idle = False
        # Steps since the last look, and whether the one that begins is among them.
        self._steps = 0
        self._counted = False
        # Whether there is something to do, and it doesn't pay.
        self._forced = False

    @property
    def rests(self) -> bool:
        """Whether the running step has no look."""
        return self._left > 0

    def goes_on(self) -> bool:
        """Whether the step that begins needs no look."""
        if not self._counted:
            self._counted = True
            self._left -= 1
            self._steps += 1
        self._idle = True
        return self._left > 0

    def looked(self) -> int:
        """The step that begins has its look. How many steps this look is for."""
        self._forced = False
        steps, self._steps = self._steps, 0
        return steps

    def launched(self) -> None:
        """The step that began runs."""
        self._counted = False

    def prevent(self) -> None:
        """There is something to do."""
        self._idle = False

    def begin(self, sequences: int, drafting: bool, step_seconds: float = 0.0) -> None:
        """The look is over: rest, unless it found something or the rest goes on already. `drafting`: some of the
        sequences may have drafts. `step_seconds`: of a step; 0: not known."""
        if self._idle and self._left <= 0 and (sequences >= self._least or not drafting):
            steps = int(SECONDS / step_seconds) if step_seconds else STEPS
            self._left = min(MOST_STEPS, max(STEPS, steps)) if drafting else FOR_EVER

    def force(self, steps: int) -> None:
        """Rest, though there is something to do."""
        self._left, self._forced = steps, True

    def end(self) -> None:
        self._left = 0

    def join(self, sequences: int, step_seconds: float) -> None:
        """Another sequence has come, and may have a draft: among many it waits a moment for its first one, because
        another one follows it soon."""
        if sequences < self._least:
            self._left = 0
        elif not self._forced and step_seconds:
            self._left = min(self._left, int(JOINED / step_seconds))
        elif not self._forced:
            self._left = 0
