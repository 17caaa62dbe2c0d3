"""Reasoning before an answer, between <think> and </think>, apart from the answer.

    START ─<think>, or it begins inside─▶ REASONING ─</think>─▶ BEHIND ─▶ ANSWER
      └───────────────── anything else ─────────────────────────────────────▶

The opening marker may be the end of the prompt: then the text begins inside. Spaces beside the markers belong to
neither side. Knows no calls.
"""

from __future__ import annotations

from enum import Enum, auto

from services.streamer.agents.marked import unfinished

OPENER, CLOSER = "<think>", "</think>"


class _Phase(Enum):
    START = auto()
    REASONING = auto()
    BEHIND = auto()
    ANSWER = auto()


class Reasoning:
    """Of one answer. `inside`: the text begins with reasoning. A piece is divided into reasoning and answer; however
    the text is cut, both are the same in all."""

    __slots__ = ("_shown", "_state", "_text", "inside")

    def __init__(self, inside: bool) -> None:
        self.inside = inside
        self._state = _Phase.START
        self._text = ""
        self._shown = False  # some of the reasoning

    def feed(self, text: str) -> tuple[str, str]:
        self._text += text
        reasoning = ""
        if self._state is _Phase.START:
            self._start()
        if self._state is _Phase.REASONING:
            reasoning = self._reason()
        if self._state is _Phase.BEHIND:
            self._text = self._text.lstrip()
            if self._text:
                self._state = _Phase.ANSWER
        if self._state is not _Phase.ANSWER:
            return reasoning, ""
        answer, self._text = self._text, ""
        return reasoning, answer

    def flush(self) -> tuple[str, str]:
        """The text has ended."""
        rest, self._text = self._text, ""
        if self._state is _Phase.REASONING or (self.inside and self._state is _Phase.START):
            return rest.rstrip() if self._shown else rest.strip(), ""
        return "", rest

    def _start(self) -> None:
        begin = self._text.lstrip()
        if begin.startswith(OPENER):
            self._state, self._text = _Phase.REASONING, begin[len(OPENER) :]
        elif not OPENER.startswith(begin):
            self._state = _Phase.REASONING if self.inside else _Phase.ANSWER

    def _reason(self) -> str:
        if not self._shown:
            self._text = self._text.lstrip()
        end = self._text.find(CLOSER)
        if end >= 0:
            shown, self._text = self._text[:end].rstrip(), self._text[end + len(CLOSER) :]
            self._state = _Phase.BEHIND
            return shown
        shown = self._text[: len(self._text) - unfinished(self._text, CLOSER)].rstrip()
        self._text = self._text[len(shown) :]
        self._shown |= bool(shown)
        return shown
