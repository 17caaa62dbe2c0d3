"""Items of a response's input, as the turns of a conversation that the tokenizer gets.

    message                        a turn
    reasoning, message, calls      of the assistant: one turn, as long as they follow each other in this order
    function_call_output           a turn of the role tool

The items of an answer are read in the same way. Knows neither templates nor what a model writes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from services.api.messages import ChatTurn, ToolCall
from services.streamer.openai.errors import bad_value, unsupported
from services.streamer.openai.fields import MAX_PARTS, MAX_TEXT, BodyFields, check_list, shown
from services.streamer.openai.tools import LONGEST_ID, read_arguments

ROLES = ("system", "developer", "user", "assistant")
STATUSES = ("in_progress", "completed", "incomplete")
TEXTS = ("input_text", "output_text", "text")
SUMMARY = "summary_text"
_TEXT_PART = {"type", "text"}


def read_items(items: Sequence[Any], where: str, before: Sequence[ChatTurn] = ()) -> list[ChatTurn]:
    """`before`: the conversation so far, whose calls may be answered."""
    turns = Turns(before)
    for index, each in enumerate(items):
        item = BodyFields(each, f"{where}[{index}]")
        kind = item.get("type")
        # Messages of the short form have no type.
        reader = READERS.get("message" if kind is None else kind) if kind is None or isinstance(kind, str) else None
        if reader is None:
            raise unsupported(item.at("type"), f"{shown(kind)} is not supported: items are {', '.join(READERS)}")
        item.text("id", LONGEST_ID)
        item.choice("status", STATUSES)
        reader(item, turns)
        item.nothing_else()
    return turns.ended()


class Turns:
    """The turns so far, the last of which may be the assistant's and grow."""

    def __init__(self, before: Sequence[ChatTurn]) -> None:
        self._calls_made = {call.id for turn in before for call in turn.tool_calls}
        self._turns: list[ChatTurn] = []
        self._reasoning: list[str] = []
        self._content: str | None = None
        self._calls: list[ToolCall] = []

    def reasoned(self, text: str) -> None:
        if self._content is not None or self._calls:
            self._close()
        self._reasoning.append(text)

    def said(self, text: str) -> None:
        """By the assistant."""
        if self._content is not None or self._calls:
            self._close()
        self._content = text

    def called(self, call: ToolCall) -> None:
        self._calls_made.add(call.id)
        self._calls.append(call)

    def has_called(self, call_id: str) -> bool:
        return call_id in self._calls_made

    def add(self, turn: ChatTurn) -> None:
        self._close()
        self._turns.append(turn)

    def ended(self) -> list[ChatTurn]:
        self._close()
        return self._turns

    def _close(self) -> None:
        """The assistant's turn is over."""
        if not (self._reasoning or self._content is not None or self._calls):
            return
        reasoning = "\n".join(self._reasoning) if self._reasoning else None
        # What calls a tool needs no content.
        content = "" if self._content is None and not self._calls else self._content
        self._turns.append(ChatTurn(role="assistant", content=content, tool_calls=self._calls, reasoning=reasoning))
        self._reasoning, self._content, self._calls = [], None, []


def _message(item: BodyFields, turns: Turns) -> None:
    role = item.choice("role", ROLES)
    if role is None:
        raise bad_value(item.at("role"), "is missing", "missing_required_parameter")
    text = read_texts(item, "content")
    if role == "assistant":
        # Which of several messages is the answer, which templates don't tell.
        item.text("phase", 64)
        turns.said(text)
    else:
        turns.add(ChatTurn(role="system" if role == "developer" else role, content=text))


def _function_call(item: BodyFields, turns: Turns) -> None:
    call_id, name = item.needed("call_id", LONGEST_ID), item.needed("name", MAX_TEXT)
    turns.called(ToolCall(id=call_id, name=name, arguments=read_arguments(item)))
    # What OpenAI's clients send of calls that a program makes.
    for each in ("namespace", "caller"):
        item.only(each)
    item.only("async", False)


def _function_call_output(item: BodyFields, turns: Turns) -> None:
    call_id = item.needed("call_id", LONGEST_ID)
    if not turns.has_called(call_id):
        raise bad_value(item.at("call_id"), f"{shown(call_id)} is the call_id of no function_call before it")
    content, name = read_texts(item, "output"), item.text("name", 256)
    turns.add(ChatTurn(role="tool", content=content, name=name, tool_call_id=call_id))
    for each in ("namespace", "caller"):
        item.only(each)


def _reasoning(item: BodyFields, turns: Turns) -> None:
    """Its text, or where there is none its summary."""
    item.only("encrypted_content", "")
    summary = _parts(item, "summary", (SUMMARY,))
    texts = _parts(item, "content", ("reasoning_text",)) or summary
    if texts:
        turns.reasoned("\n".join(texts))


READERS: dict[str, Callable[[BodyFields, Turns], None]] = {
    "message": _message,
    "function_call": _function_call,
    "function_call_output": _function_call_output,
    "reasoning": _reasoning,
}


def read_texts(item: BodyFields, name: str) -> str:
    """A text, or text parts, which are joined."""
    value = item.get(name)
    if value is None:
        raise bad_value(item.at(name), "is missing", "missing_required_parameter")
    if isinstance(value, str):
        return value
    return "".join(_parts(item, name, TEXTS))


def _parts(item: BodyFields, name: str, kinds: tuple[str, ...]) -> list[str]:
    if (value := item.get(name)) is None:
        return []
    parts = check_list(value, item.at(name), MAX_PARTS)
    return [_part(each, f"{item.at(name)}[{index}]", kinds) for index, each in enumerate(parts)]


def _part(value: Any, where: str, kinds: tuple[str, ...]) -> str:
    # As nearly all are: a request may have ten thousand, and the way field by field takes longer.
    if isinstance(value, dict) and value.keys() == _TEXT_PART and value["type"] in kinds:
        text = value["text"]
        if isinstance(text, str):
            return text
    part = BodyFields(value, where)
    kind = part.get("type")
    if kind == "refusal" and "output_text" in kinds:
        text = part.needed("refusal", MAX_TEXT)
    elif kind in kinds:
        text = part.needed("text", MAX_TEXT)
        # Clients send parts of this API's answers back.
        part.only("annotations", [])
        part.get("logprobs")
    else:
        raise unsupported(part.at("type"), f"{shown(kind)} is not supported: it must be {' or '.join(kinds)}")
    part.nothing_else()
    return text
