"""Parses a body of /v1/responses into the request of a chat, or raises a 400 that names the field.

    instructions, previous_response_id, input ─▶ the conversation
    tools, text.format, reasoning, include    ─▶ fields that chats have under other names

Nothing is silently ignored: a field is used, listed in WITHOUT_EFFECT, or refused. Knows no mesh.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from services.api.messages import ChatTurn, Encode
from services.api.parameters import integer, parameters
from services.api.sampling import MAX_LOGPROBS
from services.streamer.openai.errors import bad_value
from services.streamer.openai.fields import MAX_TEXT, BodyFields, check_list, wrong_type
from services.streamer.openai.not_served import Values, check_not_asked
from services.streamer.openai.request import OF_CHAT, SHARED, Request, RequestLimits, read_model, read_stops
from services.streamer.openai.sampling import read_bad_words, read_sampling
from services.streamer.openai.speculation import read_prediction, read_speculation
from services.streamer.openai.tools import LONGEST_ID, as_json
from services.streamer.responses.items import read_items
from services.streamer.responses.kept import OwnResponses, no_previous_response
from services.streamer.responses.tools import read_tools
from services.streamer.responses.wishes import (
    LOGPROBS,
    read_include,
    read_metadata,
    read_reasoning,
    read_text,
    written,
)

# Accepted because by definition they change nothing about the answer.
WITHOUT_EFFECT = ("user", "safety_identifier")
# As in not_served.py.
NOT_SERVED: Values = {
    "background": (False,),
    "truncation": ("disabled",),
    "service_tier": ("auto", "default"),
    "prompt_cache_retention": ("in_memory", "in-memory"),
    "max_tool_calls": (),
    "conversation": (),
    "prompt": (),
    "context_management": ([],),
    "moderation": (),
}
# Of the fields of chats and completions, those whose answers have no place here.
OF_THEIR_ANSWERS = (
    "prompt_logprobs", "return_token_ids", "return_tokens_as_token_ids", "return_provenance",
    "return_speculate_metrics",
)  # fmt: skip
SHARED_HERE = {name: row for name, row in SHARED.items() if name not in OF_THEIR_ANSWERS}


@dataclass(frozen=True, slots=True)
class OfResponse:
    """Fields of responses alone."""

    max_output_tokens: int | None = integer(
        None, "Maximum answer length, reasoning and calls included, in tokens. Default: the rest of the context", 1
    )
    top_logprobs: int = integer(
        0, f"With {LOGPROBS} in include: also return this number of most probable tokens", 0, MAX_LOGPROBS
    )


OF_RESPONSE = parameters(OfResponse)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseRequest(Request):
    """`told`: what the response repeats of its request. `turns`: the conversation without its instructions."""

    told: dict[str, Any]
    turns: tuple[ChatTurn, ...]
    store: bool

    @property
    def prompt_field(self) -> str:
        return "input"

    @property
    def length_field(self) -> str:
        return "max_output_tokens"


def parse_response(values: dict[str, Any], limits: RequestLimits, kept: OwnResponses) -> ResponseRequest:
    """`kept`: the responses that this caller may continue."""
    fields = BodyFields(values)
    model = read_model(fields)
    instructions = fields.text("instructions", MAX_TEXT)
    turns = _conversation(fields, limits.max_messages, kept)
    asked = read_tools(fields)
    form, text = read_text(fields)
    reasoning, kwargs = read_reasoning(fields)
    own = OfResponse(**fields.read_all(OF_RESPONSE))
    logprobs = own.top_logprobs if LOGPROBS in read_include(fields) else -1
    if own.top_logprobs and logprobs < 0:
        raise bad_value("top_logprobs", f"needs {LOGPROBS} in include")
    budget = fields.read(OF_CHAT["thinking_token_budget"])
    shared = fields.read_all(SHARED_HERE)
    # What it adds to answers of chats has no place here.
    fields.only("return_drafts", False)
    speculation, namespace = read_speculation(fields)
    sampling = read_sampling(fields, own.max_output_tokens, logprobs, limits.sampling)
    store = kept.keeps and (fields.get("store") is None or fields.boolean("store"))
    request = ResponseRequest(
        **shared,
        chat=True,
        model=model,
        prompts=[_prompt(instructions, turns, "" if asked.tools is None else asked.tools.text, kwargs)],
        n=1,
        include_usage=True,
        continuous_usage=False,
        stops=read_stops(fields, limits, "stop"),
        bad_words=read_bad_words(fields),
        sampling=replace(sampling, grammar=form.grammar),
        max_tokens=own.max_output_tokens,
        echo=False,
        grammar_field=form.field,
        speculation=speculation,
        namespace=namespace,
        prediction=read_prediction(fields),
        tools=asked.tools,
        thinking_token_budget=-1 if budget is None else budget,
        told={
            "instructions": instructions,
            "max_output_tokens": own.max_output_tokens,
            "parallel_tool_calls": asked.parallel,
            "reasoning": reasoning,
            "store": store,
            "temperature": sampling.temperature,
            "text": text,
            "tool_choice": asked.choice,
            "tools": written(asked.told, "tools"),
            "top_logprobs": own.top_logprobs,
            "top_p": sampling.top_p,
            **_labels(fields),
        },
        turns=turns,
        store=store,
    )
    _check_stream_options(fields, request.stream)
    check_not_asked(fields, NOT_SERVED)
    fields.nothing_else()
    return request


# The parts of a body, in the order in which parse_response reads them ---------------------------------


def _conversation(fields: BodyFields, most: int, kept: OwnResponses) -> tuple[ChatTurn, ...]:
    before = _before(fields, kept)
    value = fields.get("input")
    if value is None:
        hint = "; messages is a field of /v1/chat/completions" if fields.values.get("messages") is not None else ""
        raise bad_value("input", f"is missing{hint}", "missing_required_parameter")
    if isinstance(value, str):
        value = [{"role": "user", "content": value}]
    elif not isinstance(value, list):
        raise wrong_type("input", "a string or a list of items", value)
    if not value:
        raise bad_value("input", "is empty")
    turns = (*before, *read_items(check_list(value, "input", most), "input", before))
    if len(turns) > most:
        message = f"has {len(turns)} messages with those before it, at most {most} are taken"
        raise bad_value("input", message, "array_above_max_length")
    if not turns:
        raise bad_value("input", "has no messages")
    return turns


def _before(fields: BodyFields, kept: OwnResponses) -> tuple[ChatTurn, ...]:
    """The conversation that is continued."""
    response_id = fields.text("previous_response_id", LONGEST_ID)
    if response_id is None:
        return ()
    found = kept.find(response_id)
    if found is None:
        raise no_previous_response(response_id)
    if found.problem:
        raise bad_value("previous_response_id", f"its answer can't be continued: {found.problem}")
    return found.turns


def _prompt(instructions: str | None, turns: Sequence[ChatTurn], tools: str, kwargs: dict[str, Any]) -> Encode:
    first = [] if instructions is None else [ChatTurn(role="system", content=instructions)]
    variables = as_json(kwargs, "chat_template_kwargs") if kwargs else ""
    return Encode(turns=[*first, *turns], tools=tools, template_kwargs=variables)


def _labels(fields: BodyFields) -> dict[str, Any]:
    """What the response repeats as it is."""
    labels = {name: fields.text(name, LONGEST_ID) for name in WITHOUT_EFFECT}
    named = {name: fields.get(name) for name in ("previous_response_id", "prompt_cache_key")}
    return {"metadata": read_metadata(fields), **labels, **named}


def _check_stream_options(fields: BodyFields, stream: bool) -> None:
    value = fields.get("stream_options")
    if value is None:
        return
    if not stream:
        raise bad_value("stream_options", "needs stream: true")
    options = BodyFields(value, "stream_options")
    options.only("include_obfuscation", False)
    options.nothing_else()
