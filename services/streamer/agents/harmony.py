"""Answers of gpt-oss, in OpenAI's Harmony format: messages with a header each.

    <|channel|>analysis<|message|>…<|end|>                                                                    reasoning
    <|start|>assistant<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>{…}<|call|>         a call
    <|start|>assistant<|channel|>final<|message|>…<|return|>                                                  content

The prompt ends with `<|start|>assistant`. What precedes a call (commentary to nobody) is content, too. Markers are
tokens of their own, which no text of a message has, so a header is told apart wherever it stands.
"""

from __future__ import annotations

import re
from typing import ClassVar, Self

from services.streamer.agents.call_grammars import Spelling
from services.streamer.agents.marked import unfinished
from services.streamer.agents.parts import CallDelta, Part
from services.streamer.agents.reasoning import Marks, Reasoning

START, CHANNEL, CONSTRAIN, MESSAGE = "<|start|>", "<|channel|>", "<|constrain|>", "<|message|>"
END, CALL, RETURN = "<|end|>", "<|call|>", "<|return|>"
MARKERS = (START, CHANNEL, CONSTRAIN, MESSAGE, END, CALL, RETURN)
ANALYSIS = f"{CHANNEL}analysis{MESSAGE}"
NEXT = f"{END}{START}assistant"
SPELLING = Spelling(
    f"{CHANNEL}commentary to=functions.", f"{CHANNEL}commentary to=functions.", f" {CONSTRAIN}json{MESSAGE}", "", NEXT,
    in_messages=True,
)  # fmt: skip
# Characters of a header's text; what is longer is content.
LONGEST_HEAD = 1024
_MARKER = re.compile("(" + "|".join(map(re.escape, MARKERS)) + ")")
_ENDS = (END, CALL, RETURN, START, CHANNEL)
_END = re.compile("|".join(map(re.escape, _ENDS)))
_THOUGHT = re.compile(
    rf"{re.escape(ANALYSIS)}.*?(?:{'|'.join(map(re.escape, (END, CALL, RETURN)))}"
    rf"|(?={re.escape(START)}|{re.escape(CHANNEL)})|\Z)".encode(), re.DOTALL,
)  # fmt: skip
_CALLED = re.compile(r"\bto=functions\.([^\s<]{1,256})")


class Analysis(Reasoning):
    """Reasoning may come in several messages, between others. The answer is all others, with their headers."""

    __slots__ = ("_begun", "_inside", "_rest")
    marks: ClassVar = Marks(ANALYSIS, NEXT, f"{CHANNEL}final{MESSAGE}")

    def __init__(self, inside: bool) -> None:
        super().__init__(inside)
        self._inside = inside
        self._rest = ""  # what may be the beginning of a marker
        self._begun = False  # a message, of which nothing was shown

    @classmethod
    def behind(cls, end_of_prompt: str, inside: bool) -> Self:
        return cls(end_of_prompt.endswith(ANALYSIS))

    def feed(self, text: str) -> tuple[str, str]:
        text = self._rest + text
        thoughts: list[str] = []
        others: list[str] = []
        place = 0
        while True:
            if self._inside:
                if (end := _END.search(text, place)) is None:
                    break
                thoughts.append(self._thought(text[place : end.start()]))
                place = end.start() if end[0] in (START, CHANNEL) else end.end()
                self._inside = False
            else:
                if (begin := text.find(ANALYSIS, place)) < 0:
                    break
                others.append(text[place:begin])
                place = begin + len(ANALYSIS)
                self._inside = self._begun = True
        markers = _ENDS if self._inside else (ANALYSIS,)
        sure = len(text) - max(unfinished(text[place:], each) for each in markers)
        self._rest = text[sure:]
        if self._inside:
            thoughts.append(self._thought(text[place:sure]))
        else:
            others.append(text[place:sure])
        return "".join(thoughts), "".join(others)

    def flush(self) -> tuple[str, str]:
        rest, self._rest = self._rest, ""
        return (self._thought(rest), "") if self._inside else ("", rest)

    def parts_of(self, text: bytes) -> list[tuple[int, int]]:
        begin = ANALYSIS.encode() if self.inside else b""
        found = (each.span() for each in _THOUGHT.finditer(begin + text))
        return [(max(0, first - len(begin)), end - len(begin)) for first, end in found]

    def _thought(self, text: str) -> str:
        """Messages are lines."""
        if not text:
            return ""
        between = "\n" if self._begun and self._shown else ""
        self._begun, self._shown = False, True
        return between + text


class Messages:
    """A CallParser. Without `calls`, messages to functions are content."""

    def __init__(self, calls: bool = True) -> None:
        self._reads_calls = calls
        self._rest = ""  # what may be the beginning of a marker
        # Of the header at hand; None: in a message.
        self._head: str | None = ""
        # Whether the header has had a marker: without one it may be a text that has no header.
        self._marked = False
        self._calls = 0
        self._in_call = self._empty = False
        self._begun = self._shown = False  # a message with content, of which nothing was shown; any content

    def feed(self, text: str) -> list[Part]:
        text = self._rest + text
        sure = len(text) - max(unfinished(text, each) for each in MARKERS)
        self._rest = text[sure:]
        parts: list[Part] = []
        for each in _MARKER.split(text[:sure]):
            if each in MARKERS:
                self._at_marker(each, parts)
            elif each:
                self._text(each, parts)
        return parts

    def flush(self) -> list[Part]:
        rest, self._rest = self._rest, ""
        parts: list[Part] = []
        if rest and not (self._marked and self._head is not None):
            self._text(rest, parts)
        self._show_unmarked(parts)
        self._close(parts)
        return parts

    def _at_marker(self, marker: str, parts: list[Part]) -> None:
        if self._head is None:
            if marker not in _ENDS:
                self._text(marker, parts)
                return
            self._close(parts)
            self._head, self._marked = "", False
        if marker == MESSAGE:
            self._open(self._head, parts)
        elif marker in (START, END, CALL, RETURN):
            self._show_unmarked(parts)
            self._head, self._marked = "", marker == START
        else:
            self._head, self._marked = f"{self._head} ", True

    def _show_unmarked(self, parts: list[Part]) -> None:
        """What was held as a header, and is none."""
        if self._head and not self._marked and self._head.strip():
            self._show(self._head, parts)

    def _open(self, head: str, parts: list[Part]) -> None:
        """A message with this header."""
        self._head = None
        called = _CALLED.search(head) if self._reads_calls else None
        self._in_call = self._empty = called is not None
        if called is None:
            self._begun = True
        else:
            parts.append(CallDelta(self._calls, called[1]))
            self._calls += 1

    def _close(self, parts: list[Part]) -> None:
        if self._in_call and self._empty:
            parts.append(CallDelta(self._calls - 1, arguments="{}"))
        self._in_call = self._empty = False

    def _text(self, text: str, parts: list[Part]) -> None:
        if self._head is not None:
            self._head += text
            if not self._may_be_head(self._head):
                head, self._head = self._head, None
                self._begun = True
                self._show(head, parts)
        elif not self._in_call:
            self._show(text, parts)
        elif text := text.lstrip() if self._empty else text:
            self._empty = False
            parts.append(CallDelta(self._calls - 1, arguments=text))

    def _may_be_head(self, head: str) -> bool:
        if self._marked or not head.strip():
            return len(head) <= LONGEST_HEAD
        begin = head.lstrip()
        return len(head) <= LONGEST_HEAD and (begin.startswith("to=") or "to=".startswith(begin))

    def _show(self, text: str, parts: list[Part]) -> None:
        """Messages are lines."""
        parts.append(f"\n{text}" if self._begun and self._shown else text)
        self._begun, self._shown = False, True
