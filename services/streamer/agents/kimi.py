"""Calls of Kimi K2, whose ids are of its own writing: the function's name, and the call's number in the conversation.

    <|tool_calls_section_begin|><|tool_call_begin|>functions.NAME:0<|tool_call_argument_begin|>{...}<|tool_call_end|>…
"""

from __future__ import annotations

import re

from services.streamer.agents.call_grammars import Spelling
from services.streamer.agents.marked import Closed, MarkedCalls
from services.streamer.agents.named_call import NamedCall

ALL_BEGIN, ALL_END = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
OPENER, ARGUMENTS, CLOSER = "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"
MARKERS = (ALL_BEGIN, ALL_END, OPENER, ARGUMENTS, CLOSER)
SPELLING = Spelling(
    ALL_BEGIN, f"{OPENER}functions.", ARGUMENTS, CLOSER, "", ALL_BEGIN, ALL_END, also_read=(OPENER,), numbered=":",
)  # fmt: skip
_HEAD = re.compile(
    rf"\s*(?P<id>functions\.(?P<name>[^\s<:]{{1,256}}):\d{{1,9}})\s*{re.escape(ARGUMENTS)}\s*(?=\{{)", re.ASCII
)


def parser() -> MarkedCalls:
    return MarkedCalls({
        ALL_BEGIN: None, ALL_END: None,
        OPENER: lambda index, marker: Closed(NamedCall(index, marker, _HEAD), CLOSER),
    })  # fmt: skip
