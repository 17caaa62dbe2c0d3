"""A call whose name stands before its arguments: what matches a pattern, then a JSON object."""

from __future__ import annotations

import re

from services.streamer.agents.json_scan import JsonScan
from services.streamer.agents.parts import CallDelta, Part

# Characters within which the arguments must begin.
LONGEST_HEAD = 1024


class NamedCall:
    """`head`: its groups are the `name` and, if the model writes one, the `id`; its end is where the arguments begin.
    `before`: what is content, too, if this is no call."""

    def __init__(self, index: int, before: str, head: re.Pattern[str]) -> None:
        self._index = index
        self._before = before
        self._head = head
        self._held = ""
        self._scan = JsonScan()
        self.calls = 0

    def feed(self, text: str) -> tuple[list[Part], str | None]:
        if self.calls:
            return self._arguments(text)
        self._held += text
        found = self._head.match(self._held[:LONGEST_HEAD])
        if found is not None:
            self.calls = 1
            parts, behind = self._arguments(self._held[found.end() :])
            groups = found.groupdict()
            return [CallDelta(self._index, groups["name"], written_id=groups.get("id", "")), *parts], behind
        if len(self._held) < LONGEST_HEAD:
            return [], None
        return [self._before], self._held

    def flush(self) -> list[Part]:
        return [] if self.calls else [self._before + self._held]

    def _arguments(self, text: str) -> tuple[list[Part], str | None]:
        end = self._scan.end(text)
        if end < 0:
            return [CallDelta(self._index, arguments=text)] if text else [], None
        return [CallDelta(self._index, arguments=text[:end])], text[end:]
