"""The conversation of a chat, as the tokenizer gets it: messages, and what else the chat template reads.

Knows the fields of a message; tools.py knows those of calls.
"""

from __future__ import annotations

import re
from typing import Any

from services.api.messages import ChatTurn, Encode
from services.streamer.openai.errors import bad_value, unsupported
from services.streamer.openai.fields import MAX_TEXT, BodyFields, check_list, read_content, shown, wrong_type
from services.streamer.openai.tools import LONGEST_ID, as_json, read_calls

ROLES = ("system", "developer", "user", "assistant", "tool")
MAX_KWARGS = 64
EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
# What the template is given by others.
NOT_KWARGS = frozenset(
    {"messages", "tools", "documents", "add_generation_prompt", "continue_final_message", "chat_template", "tokenize"}
)
_KWARG = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")


def read_conversation(fields: BodyFields, most: int, tools: str) -> Encode:
    """`most`: messages that are taken; `tools`: JSON, or nothing."""
    return Encode(turns=_turns(fields, most), tools=tools, template_kwargs=read_template_kwargs(fields))


def _turns(fields: BodyFields, most: int) -> list[ChatTurn]:
    messages = check_list(fields.get("messages"), "messages", most)
    if not messages:
        raise bad_value("messages", "is empty")
    return [_turn(BodyFields(each, f"messages[{index}]")) for index, each in enumerate(messages)]


def _turn(message: BodyFields) -> ChatTurn:
    role = _role(message)
    name = message.text("name", 256)
    calls = read_calls(message) if role == "assistant" else []
    reasoning = _reasoning(message) if role == "assistant" else None
    # What calls a tool needs no content.
    content = None if calls and message.get("content") is None else read_content(message)
    call_id = message.text("tool_call_id", LONGEST_ID) if role == "tool" else None
    # Clients send this API's answers back as messages: their empty fields are accepted.
    message.only("annotations", [])
    # The content once more: openai's client sends back what it has parsed.
    message.get("parsed")
    if role != "assistant":
        message.only("tool_calls", [])
    message.nothing_else()
    # Chat templates know "system"; "developer" is its newer name.
    role = "system" if role == "developer" else role
    return ChatTurn(
        role=role, content=content, name=name, tool_calls=calls, tool_call_id=call_id, reasoning=reasoning
    )


def _role(message: BodyFields) -> str:
    if message.get("role") == "function" or message.get("function_call") is not None:
        field = "role" if message.get("role") == "function" else "function_call"
        raise unsupported(message.at(field), "is not supported by this server: write tool_calls, and the role tool")
    role = message.choice("role", ROLES)
    if role is None:
        raise bad_value(message.at("role"), "is missing", "missing_required_parameter")
    return role


def _reasoning(message: BodyFields) -> str | None:
    """Of an earlier answer; both of its names are in use."""
    names = [message.text(name, MAX_TEXT) for name in ("reasoning_content", "reasoning")]
    return next((each for each in names if each is not None), None)


def read_template_kwargs(fields: BodyFields) -> str:
    """As JSON; empty: none."""
    kwargs = _effort(fields)
    if (value := fields.get("chat_template_kwargs")) is not None:
        if not isinstance(value, dict):
            raise wrong_type("chat_template_kwargs", "an object", value)
        _check_kwargs(value)
        kwargs |= value
    return as_json(kwargs, "chat_template_kwargs") if kwargs else ""


def _effort(fields: BodyFields) -> dict[str, Any]:
    """Templates know one of these, if any."""
    effort = fields.choice("reasoning_effort", EFFORTS)
    return {} if effort is None else {"reasoning_effort": effort, "enable_thinking": effort != "none"}


def _check_kwargs(kwargs: dict[str, Any]) -> None:
    if len(kwargs) > MAX_KWARGS:
        raise bad_value("chat_template_kwargs", f"has {len(kwargs)} keys, at most {MAX_KWARGS} are taken")
    for name in kwargs:
        if not _KWARG.fullmatch(name):
            raise bad_value("chat_template_kwargs", f"has the key {shown(name)}, which is no name in a template")
        if name in NOT_KWARGS or name.endswith(("_token", "_tokens")):
            raise unsupported(f"chat_template_kwargs.{name}", "is not taken from requests")
