"""What a response is to be like: its form, its reasoning, what it includes, and its labels.

Each reader gives what the answer needs, and how the response tells it. Knows JSON values alone.
"""

from __future__ import annotations

from typing import Any

import orjson

from services.streamer.openai.conversation import read_template_kwargs
from services.streamer.openai.errors import bad_value, unsupported
from services.streamer.openai.fields import BodyFields, check_list, shown
from services.streamer.openai.structured import FORMATS, AskedForm, any_object, check_size, named_schema
from services.streamer.openai.tools import as_json

LOGPROBS = "message.output_text.logprobs"
# Asked for by clients that keep no responses here: reasoning comes as plain text, which they can send back.
ENCRYPTED = "reasoning.encrypted_content"
INCLUDED = (LOGPROBS, ENCRYPTED)
EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
MAX_LABELS = 16
LONGEST_LABEL, LONGEST_LABEL_VALUE = 64, 512


def read_text(fields: BodyFields) -> tuple[AskedForm, dict[str, Any]]:
    """The form that is asked for, and how the response tells it."""
    value = fields.get("text")
    plain = {"format": {"type": "text"}}
    if value is None:
        return AskedForm(), plain
    wish = BodyFields(value, "text")
    format = wish.get("format")
    wish.only("verbosity", "medium")
    wish.nothing_else()
    if format is None:
        return AskedForm(), plain
    asked = check_size(_format(BodyFields(format, wish.at("format"))))
    return asked, {"format": written(format, wish.at("format"))}


def _format(wish: BodyFields) -> AskedForm:
    kind = wish.get("type")
    if kind not in FORMATS:
        raise bad_value(wish.at("type"), f"must be one of {', '.join(FORMATS)}; not {shown(kind)}")
    if kind == "json_schema":
        # The fields of a schema stand beside the type.
        return named_schema(wish)
    wish.nothing_else()
    return any_object(wish.path) if kind == "json_object" else AskedForm()


def read_reasoning(fields: BodyFields) -> tuple[dict[str, Any], dict[str, Any]]:
    """How the response tells it, and the variables of the chat template with those that it stands for."""
    given = read_template_kwargs(fields)
    kwargs: dict[str, Any] = orjson.loads(given) if given else {}
    value = fields.get("reasoning")
    told = {"effort": None, "summary": None}
    if value is None:
        return told, kwargs
    wish = BodyFields(value, "reasoning")
    effort = wish.choice("effort", EFFORTS)
    # Which summary is the server's choice, and that is none.
    wish.only("summary", "auto")
    wish.only("generate_summary", "auto")
    wish.nothing_else()
    if effort is None:
        return told, kwargs
    meant = {"reasoning_effort": effort, **({"enable_thinking": False} if effort == "none" else {})}
    for name, each in meant.items():
        if kwargs.get(name, each) != each:
            raise bad_value(wish.at("effort"), f"contradicts chat_template_kwargs.{name}: give one of them")
    return told | {"effort": effort}, kwargs | meant


def read_include(fields: BodyFields) -> list[Any]:
    value = fields.get("include")
    asked = [] if value is None else check_list(value, "include", MAX_LABELS)
    for index, each in enumerate(asked):
        if each not in INCLUDED:
            raise unsupported(f"include[{index}]", f"{shown(each)} is not supported: taken are {', '.join(INCLUDED)}")
    return asked


def read_metadata(fields: BodyFields) -> dict[str, str]:
    """Labels, which the response has, too."""
    value = fields.get("metadata")
    if value is None:
        return {}
    labels = BodyFields(value, "metadata")
    if len(labels.values) > MAX_LABELS:
        raise bad_value("metadata", f"has {len(labels.values)} keys, at most {MAX_LABELS} are taken")
    for name in labels.values:
        if len(name) > LONGEST_LABEL:
            raise bad_value("metadata", f"has a key that is longer than {LONGEST_LABEL} characters")
    return {name: labels.text(name, LONGEST_LABEL_VALUE) or "" for name in labels.values}


def written(value: Any, where: str) -> orjson.Fragment:
    """As it stands in every event of the response. Inside of that it may be deeper than what can be written."""
    return orjson.Fragment(as_json(value, where))
