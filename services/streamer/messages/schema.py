"""The bodies of the Messages API as JSON schemas, for /openapi.json. Tests check them against what request.py reads."""

from __future__ import annotations

from typing import Any

from services.streamer.messages.conversation import ROLES
from services.streamer.messages.request import DISPLAYS, EFFORTS, THINKING_TYPES
from services.streamer.messages.tools import CHOICES, CUSTOM
from services.streamer.openai.request import MAX_STOP_CHARACTERS, OF_CHAT
from services.streamer.openai.tools import MAX_TOOLS, TOOL_NAME

Schema = dict[str, Any]

TEXT: Schema = {"type": "string"}
CACHE_CONTROL: Schema = {"type": "object", "description": "Without effect: every full page of a prompt is cached"}


def _block(kind: str, help: str, required: list[str], **properties: Schema) -> Schema:
    told = {"type": {"const": kind}, **properties, "cache_control": CACHE_CONTROL}
    return {"type": "object", "description": help, "required": ["type", *required], "properties": told}


def _text_or(help: str, *blocks: Schema) -> Schema:
    return {"description": help, "oneOf": [TEXT, {"type": "array", "items": {"oneOf": list(blocks)}}]}


TEXT_BLOCK = _block("text", "A text; those of one turn are joined by an empty line", ["text"], text=TEXT)
THINKING_BLOCK = _block("thinking", "Of the assistant: for templates that read it", ["thinking"], thinking=TEXT,
                        signature=TEXT)  # fmt: skip
REDACTED_BLOCK = _block("redacted_thinking", "Of the assistant: left out", [], data=TEXT)
TOOL_USE_BLOCK = _block("tool_use", "Of the assistant: a call", ["id", "name", "input"], id=TEXT, name=TEXT,
                        input={"type": "object"})  # fmt: skip
TOOL_RESULT_BLOCK = _block(
    "tool_result", "Of the user: the result of a call", ["tool_use_id"], tool_use_id=TEXT,
    content=_text_or("Text, or text blocks", TEXT_BLOCK),
    is_error={"type": "boolean", "description": "true: the result begins with the word Error"},
)  # fmt: skip
MESSAGE: Schema = {
    "type": "object",
    "required": ["role", "content"],
    "additionalProperties": False,
    "properties": {
        "role": {"type": "string", "enum": list(ROLES)},
        "content": _text_or(
            "Text, or blocks", TEXT_BLOCK, THINKING_BLOCK, REDACTED_BLOCK, TOOL_USE_BLOCK, TOOL_RESULT_BLOCK
        ),
    },
}
TOOL: Schema = {
    "type": "object",
    "required": ["name", "input_schema"],
    "properties": {
        "type": {"const": CUSTOM},
        "name": {"type": "string", "pattern": f"^{TOOL_NAME.pattern}$"},
        "description": TEXT,
        "input_schema": {"type": "object", "description": "JSON schema of the input"},
        "cache_control": CACHE_CONTROL,
    },
}
PROMPT: dict[str, Schema] = {
    "model": {"type": "string", "description": "A name that /v1/models gives"},
    "messages": {
        "type": "array", "items": MESSAGE, "minItems": 1,
        "description": "The conversation so far; messages of one role that follow each other are one",
    },
    "system": _text_or("The system prompt", TEXT_BLOCK),
    "tools": {"type": "array", "items": TOOL, "maxItems": MAX_TOOLS, "description": "Tools of the client"},
    "tool_choice": {
        "type": "object",
        "description": "auto (the default): the model decides; none: it is told of no tools; any, or tool with a name: "
        "it calls one, with an input of its schema",
        "required": ["type"],
        "additionalProperties": False,
        "properties": {
            "type": {"enum": list(CHOICES)},
            "name": TEXT,
            "disable_parallel_tool_use": {"type": "boolean", "description": "true: one call at most"},
        },
    },
    "thinking": {
        "type": "object",
        "description": "enabled and disabled set enable_thinking and thinking for the chat template, which otherwise "
        "decides. What a model thinks that was told not to is left out of the answer",
        "required": ["type"],
        "additionalProperties": False,
        "properties": {
            "type": {"enum": list(THINKING_TYPES)},
            "budget_tokens": {"type": "integer", "minimum": 1, "description": "Needed for enabled"},
            "display": {"enum": list(DISPLAYS), "description": "omitted: thinking is left out of the answer"},
        },
    },
    "output_config": {
        "type": "object",
        "additionalProperties": False,
        "properties": {
            "effort": {"enum": list(EFFORTS), "description": "reasoning_effort for chat templates that read it"},
            "format": {
                "type": "object",
                "description": "The answer is JSON of this schema, or calls of tools",
                "required": ["type", "schema"],
                "additionalProperties": False,
                "properties": {"type": {"const": "json_schema"}, "schema": {"type": "object"}},
            },
        },
    },
    "cache_control": CACHE_CONTROL,
}  # fmt: skip


def create(chat: dict[str, Schema]) -> dict[str, Schema]:
    """`chat`: the described fields of chats, of which some are taken here."""
    return {
        **PROMPT,
        "max_tokens": {
            **OF_CHAT["max_tokens"].described(),
            "description": "Maximum answer length, in tokens. The answer ends earlier where the context does",
        },
        "stop_sequences": {
            "type": "array", "items": {"type": "string", "minLength": 1, "maxLength": MAX_STOP_CHARACTERS},
            "description": "The answer ends before the one that is completed first",
        },
        **chat,
    }  # fmt: skip


ERROR: Schema = {
    "type": "object",
    "required": ["type", "error"],
    "properties": {
        "type": {"const": "error"},
        "error": {"type": "object", "required": ["type", "message"], "properties": {"type": TEXT, "message": TEXT}},
    },
}
