"""The fields of a response's body as JSON schemas, for /openapi.json: those that chats don't have in the same form."""

from __future__ import annotations

from typing import Any

from services.streamer.openai.structured import FORMATS
from services.streamer.openai.tools import ALLOWED, AUTO, MAX_TOOLS, NONE, REQUIRED, TOOL_NAME
from services.streamer.responses.items import READERS, ROLES, SUMMARY, TEXTS
from services.streamer.responses.wishes import EFFORTS, INCLUDED, LONGEST_LABEL_VALUE, MAX_LABELS

Schema = dict[str, Any]

TEXT: Schema = {"type": "string"}


def _text(help: str) -> Schema:
    return {"type": "string", "description": help}


def _parts(*kinds: str) -> Schema:
    properties = {"type": {"enum": list(kinds)}, "text": TEXT}
    return {"type": "array", "items": {"type": "object", "required": ["type", "text"], "properties": properties}}


_PARTS: Schema = {"description": "Text, or text parts that are joined", "oneOf": [TEXT, _parts(*TEXTS)]}
_ITEM: Schema = {
    "type": "object",
    "properties": {
        "type": {"type": "string", "enum": list(READERS), "default": "message"},
        "role": {"type": "string", "enum": list(ROLES), "description": "Of a message; developer: as system"},
        "content": {**_PARTS, "description": "Of a message: text, or text parts. Of reasoning: parts reasoning_text"},
        "call_id": _text("Of a call, and of the output that answers it"),
        "name": _text("Of a call: the function"),
        "arguments": _text("Of a call: a JSON object as text"),
        "output": {**_PARTS, "description": "What a function returned: text, or text parts"},
        "summary": {**_parts(SUMMARY), "description": "Of reasoning: read where it has no content"},
    },
}
_TOOL: Schema = {
    "type": "object",
    "required": ["type", "name"],
    "properties": {
        "type": {"const": "function"},
        "name": {"type": "string", "pattern": f"^{TOOL_NAME.pattern}$"},
        "description": TEXT,
        "parameters": {"type": "object", "description": "JSON schema of the arguments"},
        "strict": {"type": "boolean", "description": "Without effect on the answer"},
    },
}

FIELDS: dict[str, Schema] = {
    "input": {
        "description": "What the model answers: a text of the user, or items",
        "oneOf": [TEXT, {"type": "array", "minItems": 1, "items": _ITEM}],
    },
    "instructions": _text("The first system message. Those of a previous response aren't carried over"),
    "previous_response_id": _text("The response that this one continues: its input and output come before this input"),
    "store": {
        "type": "boolean",
        "default": True,
        "description": "Keep the response, for as long as the server's settings kept_responses say",
    },
    "metadata": {
        "type": "object",
        "maxProperties": MAX_LABELS,
        "additionalProperties": {"type": "string", "maxLength": LONGEST_LABEL_VALUE},
        "description": "Labels that the response has, too",
    },
    "tools": {
        "type": "array",
        "maxItems": MAX_TOOLS,
        "items": _TOOL,
        "description": "Functions that the answer may call",
    },
    "tool_choice": {
        "description": "auto: the model decides whether to call a tool; none: it is told of no tools; required, or an "
        f"object that names a function: it calls one, with arguments of the schema; {ALLOWED}: it is told of no others",
        "default": AUTO,
        "oneOf": [
            {"enum": [NONE, AUTO, REQUIRED]},
            {
                "type": "object",
                "required": ["type", "name"],
                "properties": {"type": {"const": "function"}, "name": TEXT},
            },
            {
                "type": "object",
                "required": ["type", "tools"],
                "properties": {
                    "type": {"const": ALLOWED},
                    "mode": {"enum": [AUTO, REQUIRED]},
                    "tools": {"type": "array", "items": {"type": "object"}},
                },
            },
        ],
    },
    "text": {
        "type": "object",
        "properties": {
            "format": {
                "type": "object",
                "required": ["type"],
                "properties": {
                    "type": {"enum": list(FORMATS)},
                    "name": TEXT,
                    "description": TEXT,
                    "schema": {"type": ["object", "boolean", "string"]},
                    "strict": {"type": "boolean", "description": "Without effect: the schema always holds"},
                },
            }
        },
        "description": "What the answer is: text, JSON, or JSON of a schema",
    },
    "reasoning": {
        "type": "object",
        "properties": {"effort": {"enum": list(EFFORTS)}, "summary": {"const": "auto"}},
        "description": "effort is the chat template's variable reasoning_effort; none also sets enable_thinking: false",
    },
    "include": {
        "type": "array",
        "items": {"enum": list(INCLUDED)},
        "description": f"{INCLUDED[0]}: the log-probability of each token. {INCLUDED[1]}: without effect",
    },
    "stream_options": {
        "type": "object",
        "properties": {"include_obfuscation": {"const": False}},
        "description": "Only with stream: true",
    },
}
