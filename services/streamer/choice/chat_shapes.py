"""What a reader has read of an answer, in OpenAI's shapes: a message, or the deltas of a stream. Pure."""

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate
from typing import Any

from services.streamer.agents.reader import AnswerReader, Said, SaidCall
from services.streamer.choice.detokenize import Vocabulary
from services.streamer.choice.generation import Choice, Ending

TOOL_CALLS = "tool_calls"
# Characters of a whole text that a reader is given at once: it copies what is behind each call.
PIECE = 4096


def message(reader: AnswerReader, text: str) -> dict[str, Any]:
    """Of an answer whose text is whole."""
    said = read(reader, text)
    told: dict[str, Any] = {"role": "assistant", "content": said.content or (None if said.calls else "")}
    if said.reasoning:
        told |= _reasoning(said.reasoning)
    if said.calls:
        told[TOOL_CALLS] = [_begun(each) for each in said.calls]
    return told


def read(reader: AnswerReader, text: str) -> Said:
    """All that an answer says whose text is whole."""
    parts = [reader.feed(text[place : place + PIECE]) for place in range(0, len(text), PIECE)]
    parts.append(reader.flush())
    calls: list[SaidCall] = []
    for call in (each for part in parts for each in part.calls):
        if call.name:
            calls.append(call)
        else:
            calls[-1].arguments += call.arguments
    return Said("".join(each.reasoning for each in parts), "".join(each.content for each in parts), calls)


def delta(said: Said) -> dict[str, Any]:
    told: dict[str, Any] = {}
    if said.reasoning:
        told |= _reasoning(said.reasoning)
    if said.content:
        told["content"] = said.content
    if said.calls:
        told[TOOL_CALLS] = [
            {"index": each.index, **(_begun(each) if each.name else {"function": {"arguments": each.arguments}})}
            for each in said.calls
        ]
    return told


def _reasoning(text: str) -> dict[str, Any]:
    """Under both names that clients read: DeepSeek's, and the newer one of vLLM and others."""
    return {"reasoning_content": text, "reasoning": text}


def _begun(call: SaidCall) -> dict[str, Any]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def reason(choice: Choice, ending: Ending) -> str:
    """Why the answer ended, as clients are told: of half a call, the reason why it is half."""
    whole = choice.reader is not None and choice.reader.calls_are_whole
    return TOOL_CALLS if whole and ending.reason == "stop" else ending.reason


def count_reasoning(choice: Choice, vocabulary: Vocabulary) -> None:
    """Tokens that begin in the reasoning or its markers. They are counted in the ids: what comes at once depends on
    drafts."""
    if choice.reader is None or choice.reader.reasoning is None:
        return
    written = [vocabulary.bytes_of(token) for token in choice.tokens[: choice.delivery.count]]
    begins = list(accumulate(map(len, written), initial=0))[:-1]
    choice.reasoning_tokens = 0
    for first, end in choice.reader.reasoning.parts_of(b"".join(written)):
        choice.reasoning_tokens += bisect_left(begins, end) - bisect_left(begins, first)
