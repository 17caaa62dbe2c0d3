"""The conversation of a Messages request, as the tokenizer gets it.

    system ──────────────────────────────────▶ a turn of the system
    user: text ──────────────────────────────▶ a turn of the user
          tool_result ───────────────────────▶ a turn of the tool, in their order
    assistant: thinking, text and tool_use ──▶ one turn

Messages of one role that follow each other are one, as that API has it. Knows no templates.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby

from services.api.messages import ChatTurn, ToolCall
from services.streamer.messages.blocks import any_cache_control, missing, read_blocks, read_text
from services.streamer.openai.errors import bad_value, unsupported
from services.streamer.openai.fields import MAX_TEXT, BodyFields, check_list, wrong_type
from services.streamer.openai.tools import LONGEST_ID, as_json

ROLES = ("user", "assistant", "system")
OF_USER = ("text", "tool_result")
OF_ASSISTANT = ("text", "thinking", "redacted_thinking", "tool_use")
TEXT = ("text",)
# Between the texts of two blocks of a turn.
BETWEEN = "\n\n"
# Chat templates have no field that says so.
ERROR = "Error: "


def read_turns(fields: BodyFields, most: int) -> list[ChatTurn]:
    """`most`: messages that are taken."""
    turns = _system(fields)
    if fields.get("messages") is None:
        raise missing("messages")
    told = check_list(fields.get("messages"), "messages", most)
    if not told:
        raise bad_value("messages", "is empty")
    messages = [_message(BodyFields(each, f"messages[{index}]")) for index, each in enumerate(told)]
    names: dict[str, str] = {}  # of the tools, by the ids of the calls
    for role, group in groupby(messages, key=lambda each: each[0]):
        blocks = [block for _, of_message in group for block in of_message]
        if role == "user":
            turns += _of_user(blocks, names)
        elif role == "assistant":
            turns.append(_of_assistant(blocks))
            names |= {call.id: call.name for call in turns[-1].tool_calls if call.id is not None}
        else:
            turns.append(ChatTurn(role=role, content=BETWEEN.join(map(read_text, blocks))))
    return turns


def check_no_beginning(fields: BodyFields) -> None:
    """After read_turns: the answer is a new turn."""
    messages = fields.get("messages")
    if messages[-1]["role"] == "assistant":
        where = f"messages[{len(messages) - 1}].role"
        raise unsupported(where, "assistant is not supported for the last message: an answer can't be begun for it")


def _system(fields: BodyFields) -> list[ChatTurn]:
    if fields.get("system") is None:
        return []
    text = BETWEEN.join(map(read_text, read_blocks(fields, "system", TEXT)))
    return [ChatTurn(role="system", content=text)] if text else []


def _message(message: BodyFields) -> tuple[str, list[BodyFields]]:
    role = message.choice("role", ROLES)
    if role is None:
        raise missing(message.at("role"))
    taken = {"user": OF_USER, "assistant": OF_ASSISTANT, "system": TEXT}[role]
    if message.get("content") is None:
        raise missing(message.at("content"))
    blocks = read_blocks(message, "content", taken)
    message.nothing_else()
    return role, blocks


def _of_user(blocks: list[BodyFields], names: Mapping[str, str]) -> list[ChatTurn]:
    turns: list[ChatTurn] = []
    for results, group in groupby(blocks, key=lambda block: block.get("type") == "tool_result"):
        if results:
            turns += [_result(block, names) for block in group]
        else:
            turns.append(ChatTurn(role="user", content=BETWEEN.join(map(read_text, group))))
    return turns or [ChatTurn(role="user", content="")]


def _result(block: BodyFields, names: Mapping[str, str]) -> ChatTurn:
    call_id = block.text("tool_use_id", LONGEST_ID)
    if call_id is None:
        raise missing(block.at("tool_use_id"))
    content = read_blocks(block, "content", TEXT) if block.get("content") is not None else []
    text = BETWEEN.join(map(read_text, content))
    if block.boolean("is_error"):
        text = ERROR + text
    any_cache_control(block)
    block.nothing_else()
    return ChatTurn(role="tool", content=text, name=names.get(call_id), tool_call_id=call_id)


def _of_assistant(blocks: list[BodyFields]) -> ChatTurn:
    texts, thoughts, calls = list[str](), list[str](), list[ToolCall]()
    for block in blocks:
        kind = block.get("type")
        if kind == "text":
            texts.append(read_text(block))
        elif kind == "thinking":
            thoughts.append(_thought(block))
        elif kind == "tool_use":
            calls.append(_call(block))
        else:
            _redacted(block)
    content = BETWEEN.join(texts)
    return ChatTurn(
        role="assistant",
        content=None if calls and not content else content,
        tool_calls=calls,
        reasoning=BETWEEN.join(thoughts) if thoughts else None,
    )


def _thought(block: BodyFields) -> str:
    text = block.text("thinking", MAX_TEXT)
    if text is None:
        raise missing(block.at("thinking"))
    block.text("signature", MAX_TEXT)
    any_cache_control(block)
    block.nothing_else()
    return text


def _redacted(block: BodyFields) -> None:
    """Only who made it can read it."""
    block.text("data", MAX_TEXT)
    any_cache_control(block)
    block.nothing_else()


def _call(block: BodyFields) -> ToolCall:
    given, name = block.text("id", LONGEST_ID), block.text("name", MAX_TEXT)
    if given is None or name is None:
        raise missing(block.at("id" if given is None else "name"))
    value, where = block.get("input"), block.at("input")
    if not isinstance(value, dict):
        raise missing(where) if value is None else wrong_type(where, "an object", value)
    block.only("caller", {"type": "direct"})
    any_cache_control(block)
    block.nothing_else()
    return ToolCall(id=given, name=name, arguments=as_json(value, where))
