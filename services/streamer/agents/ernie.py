"""Calls of ERNIE 4.5 and X1: those of Hermes, in an answer that may stand between <response> and </response>."""

from __future__ import annotations

from services.streamer.agents.call_object import CallObject
from services.streamer.agents.hermes import CLOSER, OPENER
from services.streamer.agents.marked import Begin, Closed, MarkedCalls

RESPONSE: dict[str, Begin | None] = {"<response>": None, "</response>": None}
MARKERS = (OPENER, CLOSER, *RESPONSE)


def parser() -> MarkedCalls:
    return MarkedCalls({OPENER: lambda index, marker: Closed(CallObject(index, marker), CLOSER), **RESPONSE})


def answer() -> MarkedCalls:
    """The answer without its own markers."""
    return MarkedCalls(RESPONSE)
