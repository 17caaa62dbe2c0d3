"""The cost of the worker's head in seconds, learned from its runs: of a draft by number of sequences, of one
more draft token, and of a row of text that it hasn't read yet. It reads a whole text before its first draft for it, so
the first draft costs more than later ones.
"""

from __future__ import annotations

WINDOW = 16
# Assumed before anything was measured.
FIRST_DRAFT, FIRST_ROW = 1e-3, 5e-5
# Assumed cost of a sequence more, as a share of a draft for one: most of a pass is reading weights.
ONE_MORE = 0.15
# A measurement counts as no more than this multiple of the mean: a process's first run isn't like the others.
OUTLIER = 4.0


class HeadCosts:
    def __init__(self) -> None:
        # By number of sequences, in powers of two.
        self._drafts: dict[int, float] = {}
        self.pass_seconds = FIRST_DRAFT
        self.row_seconds = FIRST_ROW

    def draft(self, sequences: int) -> float:
        """Of sequences whose text was read before the step."""
        size = max(1, sequences).bit_length()
        known = self._drafts.get(size)
        if known is not None:
            return known
        near = min(self._drafts, key=lambda other: abs(other - size), default=1)
        a, b = 1 << (size - 1), 1 << (near - 1)
        return self._drafts.get(near, FIRST_DRAFT) * (1 + ONE_MORE * (a - 1)) / (1 + ONE_MORE * (b - 1))

    def learn(self, sequences: int, unread: int, longest: int, seconds: float, reading: float) -> None:
        """Add a run for this number of sequences. `seconds`: all of it; `reading`: the part before the first draft
        token; `longest`: tokens of the longest draft; `unread`: rows it read besides those of the step."""
        if longest:
            self.pass_seconds = _moved(self.pass_seconds, (seconds - reading) / longest)
        if unread:
            more = max(0.0, seconds - self.draft(sequences)) / unread
            self.row_seconds = _moved(self.row_seconds, more)
            return
        self._drafts[sequences.bit_length()] = _moved(self.draft(sequences), seconds)


def _moved(mean: float, seconds: float) -> float:
    return mean + (min(seconds, OUTLIER * mean) - mean) / WINDOW
