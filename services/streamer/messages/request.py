"""Parses a body of the Messages API into the `Request` of a chat, or raises a 400 that names the field.

As in chats nothing is silently ignored: a field is used, listed in WITHOUT_EFFECT, or refused. Knows neither sockets
nor the mesh.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from services.api.messages import Encode
from services.api.sampling import MAX_GRAMMAR
from services.streamer.agents.grammars import json_schema
from services.streamer.messages.blocks import any_cache_control, missing
from services.streamer.messages.conversation import check_no_beginning, read_turns
from services.streamer.messages.tools import read_tools
from services.streamer.openai.errors import bad_value
from services.streamer.openai.fields import MAX_TEXT, BodyFields, shown, wrong_type
from services.streamer.openai.request import OF_CHAT, Request, RequestLimits, read_model, read_request, read_stops
from services.streamer.openai.tools import Tools, as_json

# Fields that mean what they mean in chats.
SAME = (
    "temperature", "top_p", "top_k", "stream", "metadata", "speculation", "seed", "priority", "cache_salt",
    "prompt_cache_key",
)  # fmt: skip
# Fields that aren't served, with the values that ask for nothing.
NOT_SERVED: dict[str, tuple[Any, ...]] = {
    "service_tier": ("auto", "standard_only"),
    "speed": ("standard",),
    "mcp_servers": ([],),
    "context_management": ({"edits": []}, {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}),
    "container": (),
    "inference_geo": (),
}
ENABLED, DISABLED, ADAPTIVE = THINKING_TYPES = ("enabled", "disabled", "adaptive")
SHOWN, LEFT_OUT = DISPLAYS = ("summarized", "omitted")
EFFORTS = ("low", "medium", "high", "xhigh", "max")


@dataclass(frozen=True, slots=True)
class Thinking:
    """`kwargs`: for the chat template. `budget`: of tokens; None: no bound. `told`: it is in the answer."""

    kwargs: dict[str, Any] = field(default_factory=dict)
    budget: int | None = None
    told: bool = True


@dataclass(frozen=True, slots=True)
class Asked:
    """What both routes read."""

    model: str
    prompt: Encode
    tools: Tools | None
    thinking: Thinking
    grammar: str


def parse_messages(values: dict[str, Any], limits: RequestLimits) -> Request:
    fields = BodyFields(values)
    asked = _asked(fields, limits)
    check_no_beginning(fields)
    max_tokens = fields.read(OF_CHAT["max_tokens"])
    if max_tokens is None:
        raise missing("max_tokens")
    for name, harmless in NOT_SERVED.items():
        fields.only(name, *harmless)
    request = read_request(
        BodyFields({name: fields.get(name) for name in SAME}),
        limits,
        chat=True,
        model=asked.model,
        prompts=[asked.prompt],
        max_tokens=max_tokens,
        logprobs=-1,
        tools=asked.tools,
        include_reasoning=asked.thinking.told,
    )
    stops = read_stops(fields, limits, "stop_sequences")
    fields.nothing_else()
    return replace(
        request,
        stops=stops,
        up_to_context=True,
        sampling=replace(request.sampling, grammar=asked.grammar),
        grammar_field="output_config.format" if asked.grammar else "",
        thinking_token_budget=-1 if asked.thinking.budget is None else asked.thinking.budget,
    )


def parse_count(values: dict[str, Any], limits: RequestLimits) -> tuple[str, Encode]:
    """The model named, and what to count."""
    fields = BodyFields(values)
    asked = _asked(fields, limits)
    for name in ("speed", "mcp_servers", "context_management"):
        fields.only(name, *NOT_SERVED[name])
    fields.nothing_else()
    return asked.model, asked.prompt


def _asked(fields: BodyFields, limits: RequestLimits) -> Asked:
    model = read_model(fields)
    any_cache_control(fields)
    tools = read_tools(fields)
    thinking = _thinking(fields)
    effort, grammar = _output(fields)
    kwargs = as_json(thinking.kwargs | effort, "thinking") if thinking.kwargs or effort else ""
    turns = read_turns(fields, limits.max_messages)
    prompt = Encode(turns=turns, tools="" if tools is None else tools.text, template_kwargs=kwargs)
    return Asked(model, prompt, tools, thinking, grammar)


def _thinking(fields: BodyFields) -> Thinking:
    """Without the field the chat template decides."""
    value = fields.get("thinking")
    if value is None:
        return Thinking()
    wish = BodyFields(value, "thinking")
    kind = wish.choice("type", THINKING_TYPES)
    if kind is None:
        raise missing(wish.at("type"))
    budget = wish.integer("budget_tokens", 1, MAX_TEXT) if kind == ENABLED else None
    if kind == ENABLED and budget is None:
        raise missing(wish.at("budget_tokens"))
    display = wish.choice("display", DISPLAYS) if kind != DISABLED else LEFT_OUT
    wish.nothing_else()
    # Templates have one of these names for it.
    kwargs = {} if kind == ADAPTIVE else dict.fromkeys(("enable_thinking", "thinking"), kind == ENABLED)
    return Thinking(kwargs, budget, display != LEFT_OUT)


def _output(fields: BodyFields) -> tuple[dict[str, str], str]:
    """The effort, for templates that read one, and the grammar of the answer."""
    value = fields.get("output_config")
    if value is None:
        return {}, ""
    wish = BodyFields(value, "output_config")
    effort = wish.choice("effort", EFFORTS)
    grammar = _grammar(BodyFields(each, wish.at("format"))) if (each := wish.get("format")) is not None else ""
    wish.nothing_else()
    return ({} if effort is None else {"reasoning_effort": effort}), grammar


def _grammar(form: BodyFields) -> str:
    if (kind := form.get("type")) != "json_schema":
        raise bad_value(form.at("type"), f"must be json_schema, not {shown(kind)}")
    schema, where = form.get("schema"), form.at("schema")
    if not isinstance(schema, dict):
        raise missing(where) if schema is None else wrong_type(where, "an object", schema)
    form.nothing_else()
    as_json(schema, where)
    grammar = json_schema(schema)
    if len(grammar) > MAX_GRAMMAR:
        raise bad_value(where, f"makes a grammar of {len(grammar)} characters, at most {MAX_GRAMMAR} are taken")
    return grammar
