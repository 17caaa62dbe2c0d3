"""Reads one answer of a chat: its text comes in pieces, reasoning, content and calls of tools go out.

    text ─▶ reasoning.py ─▶ answer of the format ─▶ calls ─▶ Said

Knows no JSON bodies and no tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from services.streamer.agents.json_scan import JsonScan
from services.streamer.agents.parts import CallDelta, CallParser, Part
from services.streamer.agents.reasoning import Reasoning


@dataclass(slots=True)
class SaidCall:
    """What is new of a call; `id` and `name` with its first part."""

    index: int
    id: str = ""
    name: str = ""
    arguments: str = ""


@dataclass(slots=True)
class Said:
    """`parts`: content and calls in the order of the text."""

    reasoning: str = ""
    content: str = ""
    calls: list[SaidCall] = field(default_factory=list)
    parts: list[str | SaidCall] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.reasoning or self.content or self.calls)


@dataclass(slots=True)
class AnswerReader:
    """Of one choice. With `one_call` calls after the first are left out; with `quiet` the reasoning is."""

    reasoning: Reasoning | None
    answer: CallParser | None
    calls: CallParser | None
    new_id: Callable[[], str]
    one_call: bool = False
    quiet: bool = False
    called: bool = False  # the answer calls a tool
    _last: JsonScan | None = None  # of the arguments of the last call; None: they are whole

    @property
    def calls_are_whole(self) -> bool:
        """The answer calls, and the arguments of its last call have come to their end."""
        return self.called and self._last is None

    def feed(self, text: str) -> Said:
        reasoning, text = ("", text) if self.reasoning is None else self.reasoning.feed(text)
        return self._said(reasoning, self._parsed(self._of_answer(text)))

    def flush(self) -> Said:
        """The answer has ended."""
        reasoning, text = ("", "") if self.reasoning is None else self.reasoning.flush()
        text = self._of_answer(text)
        if self.answer is not None:
            text += "".join(each for each in self.answer.flush() if isinstance(each, str))
        parts = self._parsed(text)
        return self._said(reasoning, parts + (self.calls.flush() if self.calls is not None else []))

    def _of_answer(self, text: str) -> str:
        if self.answer is None:
            return text
        return "".join(each for each in self.answer.feed(text) if isinstance(each, str))

    def _parsed(self, text: str) -> list[Part]:
        if self.calls is None:
            return [text] if text else []
        return self.calls.feed(text) if text else []

    def _said(self, reasoning: str, parts: list[Part]) -> Said:
        said = Said("" if self.quiet else reasoning)
        for part in parts:
            if isinstance(part, str):
                said.parts.append(part)
            elif not (self.one_call and part.index):
                self._add(part, said)
        said.content = "".join([each for each in said.parts if isinstance(each, str)])
        return said

    def _add(self, part: CallDelta, said: Said) -> None:
        """Parts of one call that come together are one."""
        calls = said.calls
        if not calls or calls[-1].index != part.index:
            calls.append(SaidCall(part.index))
            said.parts.append(calls[-1])
        if part.name:
            calls[-1].id, calls[-1].name = part.written_id or self.new_id(), part.name
            # What comes with its name was held until it was whole.
            self.called, self._last = True, None if part.arguments else JsonScan()
        if self._last is not None and self._last.end(part.arguments) >= 0:
            self._last = None
        calls[-1].arguments += part.arguments
