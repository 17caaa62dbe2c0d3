"""The message object of an answer, and what an answer's end says. Pure: values in, dicts out."""

from __future__ import annotations

import re
from typing import Any

import orjson

from services.streamer.agents import json_text
from services.streamer.agents.reader import Said
from services.streamer.choice import chat_shapes, responses
from services.streamer.choice.generation import Choice, Ending
from services.streamer.openai.request import Request

# Strings, of which the last may lack its end, and what stands between values.
MARKS = re.compile(r'"(?:[^"\\]|\\.|\\\Z)*(?:"|\Z)|[\[\]{},]', re.DOTALL)


def message(request: Request, answer_id: str, choice: Choice, said: Said, ending: Ending) -> dict[str, Any]:
    content = {"content": blocks(said)}
    return _head(request, answer_id) | content | ended(request, choice, ending) | told(choice, ending)


def begun(request: Request, answer_id: str, choice: Choice) -> dict[str, Any]:
    """Before its first token. How much of the prompt was cached is told at the end."""
    counted = {**usage(choice, None), "output_tokens": 0}
    empty: dict[str, Any] = {"content": [], "stop_reason": None, "stop_sequence": None}
    return _head(request, answer_id) | empty | {"usage": counted}


def _head(request: Request, answer_id: str) -> dict[str, Any]:
    return {"id": answer_id, "type": "message", "role": "assistant", "model": request.model}


def blocks(said: Said) -> list[dict[str, Any]]:
    """Of an answer that is whole."""
    found: list[dict[str, Any]] = []
    if said.reasoning:
        found.append({"type": "thinking", "thinking": said.reasoning, "signature": ""})
    if said.content:
        found.append({"type": "text", "text": said.content})
    for call in said.calls:
        found.append({"type": "tool_use", "id": call.id, "name": call.name, "input": tool_input(call.arguments)})
    return found


def ended(request: Request, choice: Choice, ending: Ending) -> dict[str, Any]:
    """Why the answer ended."""
    stop = ending.stop if isinstance(ending.stop, str) else None
    reason = chat_shapes.reason(choice, ending)
    if reason == "length":
        cut = request.max_tokens is not None and choice.sampling.max_tokens < request.max_tokens
        reason = "model_context_window_exceeded" if cut else "max_tokens"
    elif reason == chat_shapes.TOOL_CALLS:
        reason = "tool_use"
    else:
        reason = "end_turn" if stop is None else "stop_sequence"
    return {"stop_reason": reason, "stop_sequence": stop}


def told(choice: Choice, ending: Ending) -> dict[str, Any]:
    """The usage, and figures of drafts in the shape that chats have."""
    return {"usage": usage(choice, ending), **responses.metrics([choice])}


def usage(choice: Choice, ending: Ending | None) -> dict[str, Any]:
    """That API counts cached tokens of the prompt apart from its others."""
    cached = 0 if ending is None else ending.cached_tokens or 0
    counted: dict[str, Any] = {
        "input_tokens": len(choice.prompt) - cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
    }
    if ending is not None:
        counted["output_tokens"] = ending.completion_tokens
    if choice.reasoning_tokens is not None:
        counted["output_tokens_details"] = {"thinking_tokens": choice.reasoning_tokens}
    return counted


def tool_input(arguments: str) -> Any:
    """The object of a call's arguments. Of those that max_tokens cut off, or that the model wrote wrong, what can be
    read; clients that join a stream read as much."""
    for text in (arguments, *_closed(arguments)):
        if (found := _object(text)) is not None:
            return found
    return {}


def _object(text: str) -> Any:
    """As the model wrote it, where every client can read that."""
    try:
        return orjson.Fragment(text) if isinstance(orjson.loads(text), dict) else None
    except orjson.JSONDecodeError:
        pass
    try:
        value = json_text.read(text)
    except ValueError:
        return None
    sent = json_text.written(value) if isinstance(value, dict) else None
    return None if sent is None else orjson.Fragment(sent)


def _closed(text: str) -> tuple[str, str]:
    """The text with its open brackets closed: all of it, and up to the last comma or bracket.

        {"a": [1, 2, "x ──▶ {"a": [1, 2]}
    """
    closers: list[str] = []
    end, at_end = 0, ""
    for mark in MARKS.finditer(text):
        sign = mark[0]
        if sign[0] == '"':
            continue
        if sign in "[{":
            closers.append("]" if sign == "[" else "}")
        elif sign in "]}" and closers:
            closers.pop()
        end, at_end = mark.start() if sign == "," else mark.end(), "".join(reversed(closers))
    return text + at_end, text[:end] + at_end
