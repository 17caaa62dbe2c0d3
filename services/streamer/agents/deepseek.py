"""Calls of DeepSeek V3 and R1, with JSON in a fence, and of V3.1, without:

    <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>NAME ```json {...} ```<｜tool▁call▁end｜>…
    <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>NAME<｜tool▁sep｜>{...}<｜tool▁call▁end｜>…
"""

from __future__ import annotations

import re

from services.streamer.agents.call_grammars import Spelling
from services.streamer.agents.marked import Begin, Closed, MarkedCalls
from services.streamer.agents.named_call import NamedCall

ALL_BEGIN, ALL_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
OPENER, SEPARATOR, CLOSER = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"
# How its templates begin an answer.
ASSISTANT = "<｜Assistant｜>"
MARKERS = (ALL_BEGIN, ALL_END, OPENER, SEPARATOR, CLOSER)
V3_SPELLING = Spelling(
    ALL_BEGIN, f"{OPENER}function{SEPARATOR}", "\n```json\n", f"\n```{CLOSER}", "\n", ALL_BEGIN, ALL_END,
    also_read=(OPENER,),
)  # fmt: skip
V31_SPELLING = Spelling(ALL_BEGIN, OPENER, SEPARATOR, CLOSER, "", ALL_BEGIN, ALL_END, also_read=(OPENER,))
_V3 = re.compile(rf"\s*function{SEPARATOR}(?P<name>[^\s`<]{{1,256}})\s*```(?:json)?\s*(?=\{{)")
_V31 = re.compile(rf"\s*(?P<name>[^\s<]{{1,256}}){SEPARATOR}\s*(?=\{{)")


def v3() -> MarkedCalls:
    return _parser(lambda index, marker: Closed(Closed(NamedCall(index, marker, _V3), "```"), CLOSER))


def v31() -> MarkedCalls:
    return _parser(lambda index, marker: Closed(NamedCall(index, marker, _V31), CLOSER))


def _parser(begin: Begin) -> MarkedCalls:
    return MarkedCalls({ALL_BEGIN: None, ALL_END: None, OPENER: begin})
