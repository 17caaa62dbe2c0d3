"""Reasoning before an answer, between <think> and </think>, apart from the answer.

    START ─<think>, or it begins inside─▶ REASONING ─</think>─▶ BEHIND ─▶ ANSWER
      └───────────────── anything else ─────────────────────────────────────▶

The opening marker may be the end of the prompt: then the text begins inside. Spaces beside the markers belong to
neither side. Knows no calls.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import ClassVar, NamedTuple, Self

from services.streamer.agents.held import Held
from services.streamer.agents.marked import unfinished

OPENER, CLOSER = "<think>", "</think>"


class Marks(NamedTuple):
    """What stands before and behind reasoning. `lead`: before an answer that is no call."""

    opener: str
    closer: str
    lead: str = ""


class _Phase(Enum):
    START = auto()
    REASONING = auto()
    BEHIND = auto()
    ANSWER = auto()


class Reasoning:
    """Of one answer. `inside`: the text begins with reasoning. A piece is divided into reasoning and answer; however
    the text is cut, both are the same in all."""

    __slots__ = ("_held", "_shown", "_state", "inside")
    marks: ClassVar = Marks(OPENER, CLOSER)

    def __init__(self, inside: bool) -> None:
        self.inside = inside
        self._state = _Phase.START
        self._held = Held()
        self._shown = False  # some of the reasoning

    @classmethod
    def behind(cls, end_of_prompt: str, inside: bool) -> Self | None:
        """Of an answer behind this prompt; None: it has none. A template may write the beginning of the reasoning, or
        all of it where there is to be none. `inside`: the model begins with it without its marker."""
        end = end_of_prompt.rstrip()
        return None if end.endswith(CLOSER) else cls(inside or end.endswith(OPENER))

    def feed(self, text: str) -> tuple[str, str]:
        self._held.add(text)
        reasoning = ""
        if self._state is _Phase.START:
            self._start(self._held.begin)
        if self._state is _Phase.REASONING:
            reasoning = self._reason(self._held.begin)
        if self._state is _Phase.BEHIND:
            self._held.take_spaces()
            if self._held.begin:
                self._state = _Phase.ANSWER
        return reasoning, self._held.take() if self._state is _Phase.ANSWER else ""

    def flush(self) -> tuple[str, str]:
        """The text has ended."""
        rest = self._held.take()
        if self._state is _Phase.REASONING or (self.inside and self._state is _Phase.START):
            return rest.rstrip() if self._shown else rest.strip(), ""
        return "", rest

    def parts_of(self, text: bytes) -> list[tuple[int, int]]:
        """Where the reasoning stands in a whole text, with its markers."""
        if not self.inside and not text.lstrip().startswith(OPENER.encode()):
            return []
        end = text.find(CLOSER.encode())
        return [(0, len(text) if end < 0 else end + len(CLOSER))]

    def _start(self, begin: str) -> None:
        if begin.startswith(OPENER):
            self._state, self._held = _Phase.REASONING, Held(begin[len(OPENER) :])
        elif not OPENER.startswith(begin):
            self._state = _Phase.REASONING if self.inside else _Phase.ANSWER

    def _reason(self, begin: str) -> str:
        end = begin.find(CLOSER)
        over = end >= 0
        shown = begin[: end if over else len(begin) - unfinished(begin, CLOSER)].rstrip()
        if not shown and not over:
            return ""
        spaces = self._held.take_spaces()
        self._held = Held(begin[end + len(CLOSER) :] if over else begin[len(shown) :])
        if over:
            self._state = _Phase.BEHIND
        if shown and not self._shown:
            spaces, self._shown = "", True
        return spaces + shown if shown else ""
