"""Calls of Mistral: `[TOOL_CALLS] [{"name": ..., "arguments": {...}}, ...]`, and of its newer models
`[TOOL_CALLS]name[ARGS]{...}`, with the marker before each call."""

from __future__ import annotations

import re

from services.streamer.agents.call_grammars import Spelling
from services.streamer.agents.call_list import CallList
from services.streamer.agents.held import Held
from services.streamer.agents.marked import MarkedCalls
from services.streamer.agents.named_call import NamedCall
from services.streamer.agents.parts import CallBody, Part

MARKER = "[TOOL_CALLS]"
SPELLING = Spelling(MARKER, '{"name": "', '", "arguments": ', "}", ", ", f"{MARKER} [", "]")
# Of models that have this token.
ARGUMENTS = "[ARGS]"
NAMED_SPELLING = Spelling(MARKER, MARKER, ARGUMENTS, "", "")
MARKERS = (MARKER, ARGUMENTS, "[CALL_ID]")
_NAMED = re.compile(r"\s*(?P<name>[\w.:-]{1,256})(?:\[CALL_ID\]\w{1,64})?(?:\[ARGS\])?\s*(?=\{)")


def parser() -> MarkedCalls:
    return MarkedCalls({MARKER: lambda index, marker: _Either(index, marker)})


class _Either:
    """A list of calls, one object without a list, or one call with its name before the arguments. What is none of these
    is content without the marker, which is a token and no text of the model's."""

    def __init__(self, index: int, marker: str) -> None:
        self._index = index
        self._marker = marker
        self._held = Held()
        self._body: CallBody | None = None

    def feed(self, text: str) -> tuple[list[Part], str | None]:
        if self._body is None:
            self._held.add(text)
            if not self._held.begin:
                return [], None
            self._body = self._begun(self._held.begin[0])
            text = self._held.take()
        parts, behind = self._body.feed(text)
        return self._without_marker(parts), behind

    def _begun(self, first: str) -> CallBody:
        if first in "[{":
            return CallList(self._index, self._marker, opens="[", between=",", closes="]")
        return NamedCall(self._index, self._marker, _NAMED)

    def flush(self) -> list[Part]:
        if self._body is None:
            return [rest] if (rest := self._held.take()) else []
        return self._without_marker(self._body.flush())

    def _without_marker(self, parts: list[Part]) -> list[Part]:
        """Text before any call begins with it."""
        if self.calls or not parts or not isinstance(parts[0], str):
            return parts
        rest = parts[0].removeprefix(self._marker)
        return [rest, *parts[1:]] if rest else parts[1:]

    @property
    def calls(self) -> int:
        return 0 if self._body is None else self._body.calls
