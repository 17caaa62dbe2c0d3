"""Calls of Llama 3.1 and 3.2: `{"name": ..., "parameters": {...}}`, several with `;` between them, as the whole answer
or behind `<|python_tag|>`."""

from __future__ import annotations

from services.streamer.agents.call_grammars import Spelling
from services.streamer.agents.call_list import CallList
from services.streamer.agents.marked import MarkedCalls

MARKER = "<|python_tag|>"
SPELLING = Spelling(MARKER, '{"name": "', '", "parameters": ', "}", "; ", at_start="{")


def parser() -> MarkedCalls:
    return MarkedCalls({MARKER: _calls}, at_start="{", begin=_calls)


def _calls(index: int, before: str) -> CallList:
    return CallList(index, before, between=";")
