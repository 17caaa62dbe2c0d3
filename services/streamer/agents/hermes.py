"""Calls of Hermes, Qwen2.5 and Qwen3: `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, once for each."""

from __future__ import annotations

from services.streamer.agents.call_grammars import Spelling
from services.streamer.agents.call_object import CallObject
from services.streamer.agents.marked import Closed, MarkedCalls

OPENER, CLOSER = "<tool_call>", "</tool_call>"
SPELLING = Spelling(OPENER, f'{OPENER}\n{{"name": "', '", "arguments": ', f"}}\n{CLOSER}", "\n")


def parser() -> MarkedCalls:
    return MarkedCalls({OPENER: lambda index, marker: Closed(CallObject(index, marker), CLOSER)})
