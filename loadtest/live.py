"""What a run says while it goes on: a live view in a terminal, a line now and then where there is none.

Each update reads only the last second's requests, so its cost doesn't grow with the run.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TextIO

from loadtest.arrivals import Arrivals
from loadtest.measure import spread
from loadtest.outcome import Outcome
from loadtest.run import Progress
from loadtest.token_times import tokens_of

BARS = " ▁▂▃▄▅▆▇█"
WIDTH, HISTORY, RECENT = 30, 40, 500


class LiveCounts:
    """What was seen of a point at each look."""

    def __init__(self) -> None:
        self.history: list[float] = []  # tokens/s
        self.failed = 0
        self._point = -1
        self._seen: list[int] = []
        self._at = 0.0

    def add(self, progress: Progress) -> None:
        if progress.point != self._point:
            self._point, self._seen, self.history = progress.point, [0] * len(progress.loads), []
            self.failed, self._at = 0, progress.began
        fresh = [each for load, seen in zip(progress.loads, self._seen, strict=True) for each in load.outcomes[seen:]]
        self._seen = [len(load.outcomes) for load in progress.loads]
        self.failed += sum(1 for each in fresh if each.error)
        self.history.append(sum(map(tokens_of, fresh)) / max(progress.now - self._at, 1e-3))
        self.history, self._at = self.history[-HISTORY:], progress.now

    @property
    def rate(self) -> float:
        return self.history[-1] if self.history else 0.0

    def said(self, progress: Progress) -> str:
        ended, running = sum(len(one.outcomes) for one in progress.loads), sum(one.running for one in progress.loads)
        return f"{ended} ended, {running} running, {self.failed} failed"


class Lines:
    """A line for each look: for a log, a pipe or a file."""

    def __init__(self, out: TextIO = sys.stderr) -> None:
        self._out = out
        self._counts = LiveCounts()

    def __call__(self, progress: Progress) -> None:
        self._counts.add(progress)
        seconds, share = progress.now - progress.began, share_done(progress)
        done = f" {share:.0%}," if share else ""
        said = f"{self._counts.said(progress)}, {self._counts.rate:,.0f} tokens/s"
        self._out.write(f"{seconds:.0f} s,{done} {described(progress.arrivals)}{point_of(progress)}: {said}\n")
        self._out.flush()

    def done(self) -> None:
        """There is nothing to clear."""


class Live:
    """Called with a Progress at intervals; `done` clears the view."""

    def __init__(self, out: TextIO = sys.stderr) -> None:
        self._out = out
        self._lines = 0
        self._counts = LiveCounts()

    def __call__(self, progress: Progress) -> None:
        self._counts.add(progress)
        lines = self.lines(progress)
        self._clear()
        self._out.write("\n".join(lines) + "\n")
        self._out.flush()
        self._lines = len(lines)

    def done(self) -> None:
        self._clear()
        self._out.flush()

    def lines(self, progress: Progress) -> list[str]:
        where = described(progress.arrivals)
        head = f"{progress.now - progress.began:5.0f} s  {_bar(share_done(progress))}  {where}{point_of(progress)}"
        counts = f"        {self._counts.said(progress)}"
        tokens = f"        {self._counts.rate:,.0f} tokens/s  {sparks(self._counts.history)}"
        return [head, counts, tokens, *(_recent(load.side.label, load.outcomes) for load in progress.loads)]

    def _clear(self) -> None:
        if self._lines:
            # Move the cursor up over the last view and clear everything below.
            self._out.write(f"\x1b[{self._lines}F\x1b[J")
        self._lines = 0


def share_done(progress: Progress) -> float:
    arrivals, ended = progress.arrivals, sum(len(load.outcomes) for load in progress.loads)
    planned = arrivals.requests * len(progress.loads)
    by_count = ended / planned if planned else 0.0
    by_time = (progress.now - progress.began) / arrivals.duration if arrivals.duration else 0.0
    return min(1.0, max(by_count, by_time))


def point_of(progress: Progress) -> str:
    return f"  point {progress.point + 1} of {progress.points}" if progress.points > 1 else ""


def described(arrivals: Arrivals) -> str:
    if arrivals.process == "trace":
        return "along the trace"
    return f"{arrivals.rate:g} requests/s" if arrivals.open_loop else f"{arrivals.concurrency} at a time"


def sparks(values: Sequence[float]) -> str:
    most = max(values, default=0.0)
    if not most:
        return ""
    return "".join(BARS[round(each / most * (len(BARS) - 1))] for each in values)


def _bar(share: float) -> str:
    full = round(share * WIDTH)
    return f"[{'█' * full}{'·' * (WIDTH - full)}] {share:4.0%}"


def _recent(label: str, outcomes: Sequence[Outcome]) -> str:
    seen = spread(each.first - each.scheduled for each in outcomes[-RECENT:] if each.first is not None)
    shown = f"{label}: " if label else ""
    if seen is None:
        return f"        {shown}no token yet"
    return f"        {shown}first token p50 {seen['p50'] * 1e3:,.0f} ms, p99 {seen['p99'] * 1e3:,.0f} ms"
