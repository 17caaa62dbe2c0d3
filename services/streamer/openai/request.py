"""Parses a body into a typed `Request`, or raises a 400 that names the field.

Two checks: `parse_chat` and `parse_completion` need only the settings' limits; `check_against` needs what the
model card has. Nothing is silently ignored: a field is used, listed in WITHOUT_EFFECT, or refused.
Knows neither sockets nor the mesh.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import orjson
from msgspec import structs

from services.api.messages import LONGEST_SALT, MOST_PRIORITY, Encode, ModelCard, Speculation
from services.api.parameters import SEEDS, boolean, integer, parameters, text
from services.api.sampling import MAX_LOGPROBS, Sampling
from services.api.sampling_defaults import SamplingDefaults
from services.streamer.openai import not_served
from services.streamer.openai.conversation import read_conversation
from services.streamer.openai.errors import ApiError, bad_value, unsupported
from services.streamer.openai.fields import MAX_TEXT, BodyFields, check_list, wrong_type
from services.streamer.openai.not_served import check_metadata, check_not_asked
from services.streamer.openai.prompts import Prompt, read_prompts
from services.streamer.openai.sampling import (
    check_ids,
    check_sampling,
    read_bad_words,
    read_ids,
    read_sampling,
)
from services.streamer.openai.speculation import check_speculation, read_prediction, read_speculation
from services.streamer.openai.structured import read_grammar
from services.streamer.openai.tools import Tools, read_tools

# Accepted because by definition they change nothing about the answer.
WITHOUT_EFFECT = ("user", "metadata", "safety_identifier")

MAX_PROMPTS = 64
MAX_CHOICES_IN_ALL = 128
MAX_STOP_CHARACTERS = 256
MODEL_NAME_LENGTH = 512
# Strings, lists and objects of a body (bodies.py): of a message, and of everything else.
ITEMS_OF_MESSAGE = 16
OTHER_ITEMS = 65536


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """Limits of a request, from the settings, and the sampling of one that sets none."""

    max_choices: int = 8
    max_messages: int = 1024
    max_stop_strings: int = 16
    sampling: SamplingDefaults = field(default_factory=SamplingDefaults)

    @property
    def max_items(self) -> int:
        return OTHER_ITEMS + ITEMS_OF_MESSAGE * self.max_messages


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """Fields of both routes that are used as they are sent."""

    stream: bool = boolean("Answer with server-sent events")
    seed: int | None = integer(
        None, "The same request gives the same text in any batch. Answer i of n has a seed of its own", *SEEDS
    )
    priority: int = integer(
        0, "Requests of lower value run first; a level equals priority_seconds of waiting, so none waits forever",
        -MOST_PRIORITY, MOST_PRIORITY,
    )  # fmt: skip
    cache_salt: str = text(
        "The prefix cache is shared with requests of the same salt only; empty: with those without", LONGEST_SALT
    )
    # In vLLM's form, with -1 for none.
    prompt_logprobs: int = integer(
        -1, "Return the log-probability and rank of each token of the prompt, and of this number of most probable "
        "tokens there, by token id; not with stream", 0, MAX_LOGPROBS,
    )  # fmt: skip
    session: str = text(
        "Requests of one key go to the same worker while it has room; empty: by the prompt's beginning", LONGEST_SALT,
        name="prompt_cache_key",
    )  # fmt: skip
    return_token_ids: bool = boolean("Adds token_ids and prompt_token_ids to the answer")
    return_tokens_as_token_ids: bool = boolean("Names tokens in logprobs token_id:ID: two tokens may have one text")
    return_provenance: bool = boolean(
        "Adds runs to every choice and chunk: for each step's tokens their number, how many were drafted and "
        "accepted, source and match_length"
    )
    return_speculation_steps: bool = boolean(
        "Adds per_step_accepted and per_step_drafted to metrics.speculative_decoding"
    )
    return_speculate_metrics: bool = boolean("Adds FastDeploy's speculate_metrics to every finished choice")
    return_timeline: bool = boolean(
        "Adds metrics.timeline to the body or the stream's last chunk: the phases of the request, in ms"
    )


@dataclass(frozen=True, slots=True)
class OfChat:
    """Fields of chats alone."""

    max_tokens: int | None = integer(
        None, "Maximum answer length, in tokens. Default: 16 for completions, the rest of the context for chat", 1
    )
    max_completion_tokens: int | None = integer(None, "The newer name of max_tokens", 1)
    logprobs: bool = boolean("Return the log-probability of each token")
    top_logprobs: int | None = integer(
        None, "Also return this number of most probable tokens; needs logprobs: true", 0, MAX_LOGPROBS
    )
    thinking_token_budget: int = integer(
        -1, "Maximum number of tokens of the reasoning, which is then closed. -1: no limit", -1
    )


@dataclass(frozen=True, slots=True)
class OfCompletion:
    """Fields of completions alone."""

    max_tokens: int = integer(
        16, "Maximum answer length, in tokens. 0: the prompt alone, only with echo. Default: 16"
    )
    logprobs: int = integer(
        -1, "Return the log-probability of each token and of this number of most probable tokens", 0, MAX_LOGPROBS
    )
    echo: bool = boolean("The answer's text begins with the prompt, and so do its logprobs; max_tokens may then be 0")


SHARED, OF_CHAT, OF_COMPLETION = parameters(Shared), parameters(OfChat), parameters(OfCompletion)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request(Shared):
    """One parsed body. `sampling.seed` and `sampling.max_tokens` are filled in per choice, and what `bad_words`
    are in tokens is added to `sampling.bad_words` (encoding.py). `namespace` is the name asked for, "" none."""

    chat: bool
    model: str
    prompts: list[Prompt]
    n: int
    include_usage: bool
    continuous_usage: bool
    stops: tuple[str, ...]
    bad_words: tuple[str, ...]
    sampling: Sampling
    max_tokens: int | None  # None: the rest of the context
    echo: bool
    # The field that sampling.grammar came from; "": there is none.
    grammar_field: str
    speculation: Speculation
    namespace: str
    prediction: str | None
    tools: Tools | None = None
    include_reasoning: bool = True
    # max_tokens may be more than the context has room for; it then ends where the context does.
    up_to_context: bool = False
    thinking_token_budget: int = -1

    @property
    def choices(self) -> int:
        return self.n * len(self.prompts)

    @property
    def prompt_field(self) -> str:
        """The field that errors of the prompt name, and below it that of the answer's length."""
        return "messages" if self.chat else "prompt"

    @property
    def length_field(self) -> str:
        return "max_tokens"

    @property
    def scored(self) -> int:
        """As sampling.logprobs: what is wanted of the tokens of the prompts."""
        return max(self.prompt_logprobs, self.sampling.logprobs if self.echo else -1)


def parse_json(body: bytes | bytearray) -> dict[str, Any]:
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise ApiError(400, f"The body is not JSON: {error}", code="invalid_json") from None
    if not isinstance(value, dict):
        raise ApiError(400, "The body must be a JSON object", code="invalid_json")
    return value


def parse_chat(values: dict[str, Any], limits: RequestLimits) -> Request:
    fields = BodyFields(values)
    model = read_model(fields)
    tools = read_tools(fields)
    prompt = _conversation(fields, limits, tools)
    own = OfChat(**fields.read_all(OF_CHAT))
    if own.top_logprobs and not own.logprobs:
        raise bad_value("top_logprobs", "needs logprobs: true")
    check_not_asked(fields, not_served.CHAT)
    # A missing one is true.
    include_reasoning = fields.boolean("include_reasoning") if fields.get("include_reasoning") is not None else True
    newer, older = own.max_completion_tokens, own.max_tokens
    if newer is not None and older is not None and newer != older:
        raise bad_value("max_tokens", "contradicts max_completion_tokens")
    return read_request(
        fields,
        limits,
        chat=True,
        model=model,
        prompts=[prompt],
        tools=tools,
        include_reasoning=include_reasoning,
        thinking_token_budget=own.thinking_token_budget,
        max_tokens=newer if newer is not None else older,
        logprobs=(own.top_logprobs or 0) if own.logprobs else -1,
    )


def parse_completion(values: dict[str, Any], limits: RequestLimits) -> Request:
    fields = BodyFields(values)
    model = read_model(fields)
    own = OfCompletion(**fields.read_all(OF_COMPLETION))
    check_not_asked(fields, not_served.COMPLETION)
    best_of = fields.integer("best_of", 1, MAX_CHOICES_IN_ALL)
    if best_of is not None and best_of > (fields.integer("n", 1, limits.max_choices) or 1):
        raise unsupported("best_of", "greater than n is not supported by this server")
    if own.max_tokens == 0 and not own.echo:
        raise bad_value("max_tokens", "may be 0 only with echo: true", "out_of_range")
    return read_request(
        fields,
        limits,
        echo=own.echo,
        chat=False,
        model=model,
        prompts=_prompts(fields),
        max_tokens=own.max_tokens,
        logprobs=own.logprobs,
    )


def check_against(request: Request, card: ModelCard) -> None:
    """The checks that need the model card."""
    for index, prompt in enumerate(request.prompts):
        if isinstance(prompt, list):
            where = f"prompt[{index}]" if len(request.prompts) > 1 else "prompt"
            check_ids(prompt, where, card.vocab_size)
    check_sampling(request.sampling, card)
    check_speculation(request.speculation, card)


def answer_length(request: Request, prompt_tokens: int, max_context: int) -> int:
    """How many tokens may follow a prompt of this length; a 400 when they do not fit."""
    if prompt_tokens == 0:
        raise bad_value(request.prompt_field, "is empty")
    room = max_context - prompt_tokens
    if room < 1:
        raise too_long(request, f"The prompt has {prompt_tokens} tokens", max_context)
    if request.max_tokens is None:
        return room
    if request.max_tokens > room and request.up_to_context:
        return room
    if request.max_tokens > room:
        length = f"{request.length_field} {request.max_tokens}"
        asked = f"{prompt_tokens} prompt tokens and {length} were asked, at most {room} fit"
        # The prompt alone would fit: the requested length is at fault.
        raise too_long(request, asked, max_context, param=request.length_field)
    return request.max_tokens


def too_long(request: Request, asked: str, max_context: int, param: str | None = None) -> ApiError:
    return ApiError(
        400,
        f"{asked}; the context holds {max_context} tokens, of which at least one is the answer",
        param=param or request.prompt_field,
        code="context_length_exceeded",
    )


def parse_tokenize(values: dict[str, Any], limits: RequestLimits) -> tuple[str | None, Encode]:
    """The model named, if any, and what to encode: `messages` or `prompt`."""
    fields = BodyFields(values)
    model = fields.text("model", MODEL_NAME_LENGTH)
    if fields.get("messages") is not None:
        fields.only("prompt")
        generation = fields.get("add_generation_prompt")
        prompt = fields.boolean("add_generation_prompt") if generation is not None else True
        conversation = _conversation(fields, limits, read_tools(fields))
        message = structs.replace(conversation, add_generation_prompt=prompt)
    else:
        special = fields.get("add_special_tokens")
        text = fields.text("prompt", MAX_TEXT)
        if text is None:
            raise bad_value("prompt", "is missing", "missing_required_parameter")
        add = fields.boolean("add_special_tokens") if special is not None else True
        message = Encode(text=text, add_special_tokens=add)
    fields.nothing_else()
    return model, message


def parse_detokenize(values: dict[str, Any]) -> tuple[str | None, list[int]]:
    fields = BodyFields(values)
    model = fields.text("model", MODEL_NAME_LENGTH)
    value = fields.get("tokens")
    if not isinstance(value, list):
        raise wrong_type("tokens", "a list of token ids", value)
    fields.nothing_else()
    return model, read_ids(value, "tokens") if value else []


# The parts of a body, in the order in which read_request reads them ---------------------------------------


def read_request(
    fields: BodyFields,
    limits: RequestLimits,
    *,
    chat: bool,
    model: str,
    prompts: list[Prompt],
    max_tokens: int | None,
    logprobs: int,
    echo: bool = False,
    tools: Tools | None = None,
    include_reasoning: bool = True,
    thinking_token_budget: int = -1,
) -> Request:
    n = fields.integer("n", 1, limits.max_choices) or 1
    if n * len(prompts) > MAX_CHOICES_IN_ALL:
        raise bad_value("n", f"times the number of prompts may be at most {MAX_CHOICES_IN_ALL}", "out_of_range")
    shared = fields.read_all(SHARED)
    speculation, namespace = read_speculation(fields)
    include_usage, continuous_usage = _stream_options(fields, shared["stream"])
    if shared["stream"] and "prompt_logprobs" in shared:
        raise bad_value("prompt_logprobs", "is not available with stream: true; echo with logprobs is")
    shared["return_provenance"] |= speculation.return_drafts
    asked = read_grammar(fields)
    if asked.free and tools is not None and not tools.must:
        raise unsupported(asked.field, "beside tools is not supported: send it with tool_choice none")
    request = Request(
        **shared,
        chat=chat,
        model=model,
        prompts=prompts,
        n=n,
        include_usage=include_usage,
        continuous_usage=continuous_usage,
        stops=read_stops(fields, limits, "stop"),
        bad_words=read_bad_words(fields),
        sampling=replace(read_sampling(fields, max_tokens, logprobs, limits.sampling), grammar=asked.grammar),
        max_tokens=max_tokens,
        echo=echo,
        grammar_field=asked.field,
        speculation=speculation,
        namespace=namespace,
        prediction=read_prediction(fields),
        tools=tools,
        include_reasoning=include_reasoning,
        thinking_token_budget=thinking_token_budget,
    )
    check_metadata(fields.values.get("metadata"), fields.wanted)
    check_not_asked(fields, not_served.BOTH)
    for name in WITHOUT_EFFECT:
        fields.get(name)
    fields.nothing_else()
    return request


def read_model(fields: BodyFields) -> str:
    model = fields.text("model", MODEL_NAME_LENGTH)
    if model is None:
        raise bad_value("model", "is missing; GET /v1/models names those served", "missing_required_parameter")
    return model


def _stream_options(fields: BodyFields, stream: bool) -> tuple[bool, bool]:
    """Whether the usage is wanted at the end, and whether with every chunk."""
    value = fields.get("stream_options")
    if value is None:
        return False, False
    if not stream:
        raise bad_value("stream_options", "needs stream: true")
    options = BodyFields(value, "stream_options")
    include_usage = options.boolean("include_usage")
    options.only("include_obfuscation", False)
    continuous = options.boolean("continuous_usage_stats")
    options.nothing_else()
    # As with other servers the field has options of usage, and doesn't turn it on.
    return include_usage, include_usage and continuous


def read_stops(fields: BodyFields, limits: RequestLimits, name: str) -> tuple[str, ...]:
    value = fields.get(name)
    if value is None:
        return ()
    stops = [value] if isinstance(value, str) else check_list(value, name, limits.max_stop_strings)
    for index, stop in enumerate(stops):
        where = name if isinstance(value, str) else f"{name}[{index}]"
        if not isinstance(stop, str):
            raise wrong_type(where, "a string", stop)
        if not 1 <= len(stop) <= MAX_STOP_CHARACTERS:
            raise bad_value(where, f"must have 1..{MAX_STOP_CHARACTERS} characters")
    return tuple(dict.fromkeys(stops))


def _conversation(fields: BodyFields, limits: RequestLimits, tools: Tools | None) -> Encode:
    if fields.get("messages") is None:
        raise _missing("messages", fields, others=("prompt", "text"), path="/v1/completions")
    return read_conversation(fields, limits.max_messages, "" if tools is None else tools.text)


def _missing(name: str, fields: BodyFields, *, others: tuple[str, ...], path: str) -> ApiError:
    """`others` are fields that the route `path` reads instead."""
    other = next((each for each in others if fields.values.get(each) is not None), "")
    hint = f"; {other} is a field of {path}" if other else ""
    return bad_value(name, f"is missing{hint}", "missing_required_parameter")


def _prompts(fields: BodyFields) -> list[Prompt]:
    value, text = fields.get("prompt"), fields.text("text", MAX_TEXT)
    if value is not None and text is not None:
        raise bad_value("text", "is PaddleNLP's name of prompt: send one of them")
    value = text if value is None else value
    if value is None:
        raise _missing("prompt", fields, others=("messages",), path="/v1/chat/completions")
    return read_prompts(value, "prompt", MAX_PROMPTS)
