"""The phases of one choice on one axis: ms since the request arrived at the streamer.

Two clocks measure it, the streamer's and the worker's, without being synchronised. The worker reports times in
seconds since its Generate arrived (`arrived`, unknown here); we know when we sent that, and when each message came:

    sent ≤ arrived          came(i) ≥ arrived + end(i), for every message i and the end of its last span

`arrived` is set in the middle of what these leave, for a whole attempt at once. So spans of one process keep their
lengths and their order, and nothing ends after its message came. The error is half of the fastest way there and back.

Long answers are shortened: as soon as there are MOST spans of a kind, every two neighbours become one.
Knows no HTTP.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from services.api.messages import Span

# Phases that a worker may report.
KINDS = ("queue", "prefill", "propose", "verify")
MOST = 96  # spans of a kind, of all answers of a request together
LEAST = 4  # of each


@dataclass(slots=True)
class _Spans:
    """Spans of one kind that follow each other, as one."""

    begin: float
    end: float
    tokens: int
    step: int
    parts: int = 1

    def grow(self, other: _Spans) -> None:
        self.begin, self.end = min(self.begin, other.begin), max(self.end, other.end)
        self.tokens += other.tokens
        self.parts += other.parts
        self.step = self.step or other.step


class _Runs:
    """Of one kind, `most` at most: each of `size` spans, the last one perhaps of fewer."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._size = 1
        self.runs: list[_Spans] = []

    def add(self, run: _Spans) -> None:
        last = self.runs[-1] if self.runs else None
        if last is not None and last.parts + run.parts <= self._size:
            last.grow(run)
            return
        self.runs.append(run)
        if len(self.runs) > self._most:
            self._size *= 2
            before, self.runs = self.runs, []
            for each in before:
                self.add(each)


@dataclass(slots=True)
class _Attempt:
    """The spans of one worker, by its clock."""

    sent: float
    kinds: dict[str, _Runs]
    # The latest moment at which Generate may have arrived there.
    latest: float = math.inf
    last: float = 0.0

    @property
    def arrived(self) -> float:
        return self.sent if self.latest == math.inf else max(self.sent, (self.sent + self.latest) / 2)


@dataclass(slots=True)
class Timeline:
    """Of one answer. `began`: when its request arrived, on the clock of `now`; `share`: answers of the request;
    `asked`: its client wants to see it."""

    began: float
    share: int = 1
    asked: bool = True
    now: Callable[[], float] = time.perf_counter
    _done: dict[str, _Runs] = field(default_factory=dict)
    _attempt: _Attempt | None = None
    _waits: float | None = None

    def spent(self, what: str, begin: float, end: float, tokens: int = 0) -> None:
        """By our own clock."""
        self._runs(self._done, what).add(_Spans(begin, end, tokens, 0))

    def waits(self) -> None:
        """Begins an attempt at a worker."""
        self._waits = self.now()

    def sent(self) -> None:
        """A Generate leaves."""
        self._close()
        sent = self.now()
        if self._waits is not None:
            self.spent("queue", self._waits, sent)
        self._attempt = _Attempt(sent, {})

    def came(self, spans: Sequence[Span]) -> None:
        """A message of the worker has arrived."""
        attempt = self._attempt
        if attempt is None or not spans:
            return
        for span in spans:
            if span.what in KINDS:
                run = _Spans(span.begin, span.end, span.tokens, span.step)
                self._runs(attempt.kinds, span.what).add(run)
                attempt.last = max(attempt.last, span.end)
        attempt.latest = min(attempt.latest, self.now() - attempt.last)

    def shown(self, tokens: int) -> None:
        """The tokens of that message have been written."""
        if self._attempt is not None:
            self._runs(self._attempt.kinds, "stream").add(_Spans(self._attempt.last, self.now(), tokens, 0))

    def _runs(self, kinds: dict[str, _Runs], what: str) -> _Runs:
        if what not in kinds:
            kinds[what] = _Runs(max(LEAST, MOST // self.share))
        return kinds[what]

    def _close(self) -> None:
        """Converts the attempt's spans to our clock."""
        attempt, self._attempt = self._attempt, None
        if attempt is None:
            return
        shift = attempt.arrived
        written = -math.inf
        for what, runs in attempt.kinds.items():
            for run in runs.runs:
                run.begin += shift
                if what != "stream":
                    run.end = max(run.begin, run.end + shift)
                else:
                    # A step may end before the text of the last one is written. Spans that overlap would count twice.
                    run.begin = max(run.begin, written)
                    written = run.end = max(run.begin, run.end)
                self._runs(self._done, what).add(run)

    def told(self) -> list[dict[str, Any]]:
        """All spans, in the order of their beginnings. Ends the running attempt."""
        self._close()
        spans = [self._body(what, run) for what, runs in self._done.items() for run in runs.runs]
        return sorted(spans, key=lambda span: (span["from_ms"], span["to_ms"]))

    def _body(self, what: str, run: _Spans) -> dict[str, Any]:
        body: dict[str, Any] = {"what": what, "from_ms": self._ms(run.begin), "to_ms": self._ms(run.end)}
        if run.step:
            body["step"] = run.step
        if run.tokens:
            body["tokens"] = run.tokens
        if run.parts > 1:
            body["spans"] = run.parts
        return body

    def _ms(self, moment: float) -> float:
        return round((moment - self.began) * 1e3, 3)


class TimedChoice(Protocol):
    """What a timeline needs of a choice (generation.py)."""

    index: int
    prompt: list[int]
    timeline: Timeline | None


def open_timelines(
    choices: Sequence[TimedChoice], began: float, encoded_from: float, *, asked: bool = True
) -> None:
    """Opens the timelines of choices after tokenizing. Spans before that are common and belong to the first choice."""
    for choice in choices:
        choice.timeline = Timeline(began, len(choices), asked)
    first = choices[0].timeline
    assert first is not None
    first.spent("queue", began, encoded_from)
    first.spent("tokenize", encoded_from, first.now(), sum(len(choice.prompt) for choice in choices))


def told(choices: Sequence[TimedChoice]) -> list[dict[str, Any]] | None:
    """`metrics.timeline`; None if the request doesn't ask for it. With several choices each span names its choice."""
    if choices[0].timeline is None or not choices[0].timeline.asked:
        return None
    if len(choices) == 1:
        return choices[0].timeline.told()
    spans = [
        {**span, "choice": choice.index} for choice in choices if choice.timeline for span in choice.timeline.told()
    ]
    return sorted(spans, key=lambda span: (span["from_ms"], span["to_ms"]))
