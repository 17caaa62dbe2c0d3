"""From a request to its choices: prompts and prediction become token ids, each answer gets its seed and its length.

Seeds: answer i of a prompt samples with (seed + i × an odd 64-bit constant) mod 2^63, so answer 0 is the one
that the same seed gives alone, and no two answers of a request share their noise. A request without a seed
gets a random one. Knows no HTTP.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import msgspec

from mesh.errors import RemoteError
from services.api.messages import Encode, ModelCard
from services.api.sampling import LONGEST_BAD_WORD, MAX_BAD_WORDS, MAX_GRAMMAR, ReasoningLimit, Sampling
from services.api.strategies import Verification, verification_for
from services.streamer.agents.answer_grammars import ANY, calls_alone, calls_or_form, text_with_calls
from services.streamer.agents.grammars import lark
from services.streamer.agents.reader import AnswerReader
from services.streamer.choice.acceptance import ChoiceAcceptance, Predicted
from services.streamer.choice.delivery import Delivery
from services.streamer.choice.echo import Echo
from services.streamer.choice.exchange import Exchange
from services.streamer.choice.generation import Choice
from services.streamer.choice.peers import Peers
from services.streamer.choice.routing import key_of
from services.streamer.choice.stops import NO_STOPS, StopTable
from services.streamer.choice.turns import NUMBERS_OF_A_UNIT
from services.streamer.openai.errors import ApiError, bad_value, unsupported
from services.streamer.openai.prompts import Prompt
from services.streamer.openai.request import Request, answer_length, too_long
from services.streamer.openai.sampling import check_ids, check_something_is_left
from services.streamer.openai.speculation import longest_draft
from services.streamer.openai.tools import Tools

SEED_BITS = 63
SEED_MASK = (1 << SEED_BITS) - 1
SEED_STEP = 0x9E3779B97F4A7C15


# Bounds of a prediction, by what a context and a message can hold.
PREDICTION_BYTES_A_TOKEN = 8
MOST_PREDICTION_BYTES = 3 * 2**20
# Units of work (turns.py) to make a choice, besides those of its prompt.
TO_MAKE = 50
# Put before a text that must not be encoded as the beginning of one.
BEFORE = "\n"


async def encode(exchange: Exchange) -> None:
    """Fills in the choices."""
    request = exchange.request
    sampling = await _forbidding(exchange) if request.bad_words else request.sampling
    _, (prediction, *prompts) = await asyncio.gather(
        _check_grammar(exchange, request.sampling.grammar, request.grammar_field),
        asyncio.gather(_prediction(exchange), *(_encode(exchange, prompt) for prompt in request.prompts)),
    )
    if request.tools is not None and (request.tools.must or request.grammar_field or request.tools.strict):
        sampling = replace(sampling, grammar=await _with_calls(exchange, request.tools, prompts[0]))
    elif request.grammar_field and request.chat:
        sampling = replace(sampling, grammar=await _behind_reasoning(exchange, sampling.grammar, prompts[0]))
    if request.thinking_token_budget >= 0:
        sampling = replace(sampling, reasoning=_reasoning_limit(exchange, prompts[0]))
    base = secrets.randbits(SEED_BITS) if request.seed is None else request.seed
    await exchange.turns.take(sum(map(len, request.stops)))
    stops = StopTable(request.stops) if request.stops else NO_STOPS
    for number, ids in enumerate(prompts):
        for answer in range(request.n):
            await exchange.turns.take(TO_MAKE + len(ids) // NUMBERS_OF_A_UNIT)
            own = replace(sampling, seed=seed_of(base, answer))
            exchange.choices.append(_choice(exchange, number * request.n + answer, ids, own, prediction, stops))


async def _check_grammar(exchange: Exchange, grammar: str, field: str) -> None:
    if not grammar:
        return
    try:
        problem = await exchange.peers.check_grammar(grammar, exchange.caller.name)
    except RemoteError as error:
        raise encode_error(error, None, None) from error
    if problem:
        raise bad_value(field, problem)


async def _with_calls(exchange: Exchange, tools: Tools, prompt: list[int]) -> str:
    """The grammar of an answer with calls; "": what it calls is only read."""
    request, formats, vocabulary = exchange.request, exchange.formats, exchange.vocabulary
    special = vocabulary.special(formats.markers(tools=True))
    calls = formats.calls(_arguments(request, tools), vocabulary.end_of(prompt), special, several=not tools.one_call)
    if calls is None:
        _refuse_unheld(request, tools, "none" if formats.tools is None else formats.tools.name)
        return ""
    if tools.must:
        grammar = lark(calls_alone(calls))
    elif request.grammar_field:
        grammar = calls_or_form(calls, request.sampling.grammar)
    elif calls.spelling.in_messages:
        grammar = calls_or_form(calls, lark(f"start: {ANY}"))
    else:
        grammar = lark(text_with_calls(calls))
    if len(grammar) > MAX_GRAMMAR:
        raise bad_value("tools", f"make a grammar of {len(grammar)} characters, at most {MAX_GRAMMAR} are taken")
    await _check_grammar(exchange, grammar, "tools")
    return grammar


def _arguments(request: Request, tools: Tools) -> Mapping[str, Mapping[str, Any]]:
    """Of the tools that may be called the schemas that are held to."""
    if tools.must:
        return {name: tools.parameters[name] for name in tools.must}
    if request.grammar_field:
        return tools.parameters
    return {name: each if name in tools.strict else {} for name, each in tools.parameters.items()}


def _refuse_unheld(request: Request, tools: Tools, parser: str) -> None:
    if tools.must:
        raise unsupported("tool_choice", f"other than as auto or none is not supported with tool_call_parser {parser}")
    if request.grammar_field:
        raise unsupported(request.grammar_field, f"beside tools is not supported with tool_call_parser {parser}")


async def _behind_reasoning(exchange: Exchange, form: str, prompt: list[int]) -> str:
    """The grammar of an answer that may begin with reasoning, which has no form."""
    formats, vocabulary = exchange.formats, exchange.vocabulary
    if formats.reasoning is None:
        return form
    special = vocabulary.special(formats.markers(tools=False))
    grammar = formats.form_grammar(form, vocabulary.end_of(prompt), special)
    if grammar != form:
        await _check_grammar(exchange, grammar, exchange.request.grammar_field)
    return grammar


def _reasoning_limit(exchange: Exchange, prompt: list[int]) -> ReasoningLimit | None:
    formats, tokens = exchange.formats, exchange.request.thinking_token_budget
    if formats.reasoning is None and exchange.request.up_to_context:
        # Clients of the Messages API send a budget whatever model there is.
        return None
    if formats.reasoning is None:
        raise unsupported("thinking_token_budget", "needs reasoning: this model's answers have none (reasoning_parser)")
    return formats.reasoning_limit(tokens, exchange.vocabulary.end_of(prompt))


def seed_of(base: int, answer: int) -> int:
    return (base + answer * SEED_STEP) & SEED_MASK


async def _forbidding(exchange: Exchange) -> Sampling:
    """The request's sampling with its bad words as token ids."""
    request, card = exchange.request, exchange.card
    try:
        words = await exchange.peers.encode_words(request.bad_words)
    except RemoteError as error:
        raise encode_error(error, request, card) from error
    for index, spellings in enumerate(words):
        _check_spellings(spellings, f"bad_words[{index}]", card.vocab_size)
    forbidden = [*request.sampling.bad_words, *(ids for spellings in words for ids in spellings)]
    if len(forbidden) > MAX_BAD_WORDS:
        message = f"have {len(forbidden)} spellings in tokens, at most {MAX_BAD_WORDS} are taken"
        raise bad_value("bad_words", message, "array_above_max_length")
    sampling = replace(request.sampling, bad_words=forbidden)
    check_something_is_left(sampling, card)
    return sampling


def _check_spellings(spellings: list[list[int]], where: str, vocab_size: int) -> None:
    if not spellings:
        raise bad_value(where, "is nothing to the model: it has no tokens")
    longest = max(len(ids) for ids in spellings)
    if longest > LONGEST_BAD_WORD:
        raise bad_value(where, f"has {longest} tokens, at most {LONGEST_BAD_WORD} are taken", "out_of_range")
    for ids in spellings:
        check_ids(ids, where, vocab_size)


async def _encode(exchange: Exchange, prompt: Prompt) -> list[int]:
    if isinstance(prompt, list):
        return prompt
    try:
        return await exchange.peers.encode(msgspec.structs.replace(prompt, max_tokens=exchange.card.max_context - 1))
    except RemoteError as error:
        raise encode_error(error, exchange.request, exchange.card) from error


async def _prediction(exchange: Exchange) -> list[int]:
    """The expected answer as token ids behind the prompt, cut at the context's length."""
    request, card = exchange.request, exchange.card
    if not request.prediction:
        return []
    most = min(card.max_context * PREDICTION_BYTES_A_TOKEN, MOST_PREDICTION_BYTES)
    text = request.prediction.encode()[:most].decode(errors="ignore")
    try:
        byte_level = exchange.vocabulary.byte_level
        ids = await _continuation(text, exchange.peers, chat=request.chat, byte_level=byte_level)
    except RemoteError as error:
        raise encode_error(error, None, None) from error
    check_ids(ids, "prediction", card.vocab_size)
    return ids[: card.max_context]


async def _continuation(text: str, peers: Peers, *, chat: bool, byte_level: bool) -> list[int]:
    """A byte-level tokenizer spells a word the same wherever a text begins. Others write the first word of a text as
    if a space were before it, which is how a chat's answer begins, too; but the middle of a text doesn't."""
    alone = Encode(text=text, add_special_tokens=False)
    if byte_level or (chat and not text.startswith(" ")):
        return await peers.encode(alone)
    behind = Encode(text=BEFORE + text, add_special_tokens=False)
    before, both = await asyncio.gather(
        peers.encode(Encode(text=BEFORE, add_special_tokens=False)), peers.encode(behind)
    )
    if both[: len(before)] == before:
        return both[len(before) :]
    return await peers.encode(alone)


REFUSALS = {"invalid": 400, "no_template": 400, "too_long": 413, "deadline": 504}


def encode_error(error: RemoteError, request: Request | None, card: ModelCard | None) -> ApiError:
    """A tokenizer's refusal as the client's error."""
    if error.reason == "too_long" and request is not None and card is not None:
        return too_long(request, error.message, card.max_context)
    status = REFUSALS.get(error.reason, 500)
    code = "request_too_large" if status == 413 else error.reason
    return ApiError(status, error.message if status < 500 else "The tokenizer failed", code=code)


def _choice(
    exchange: Exchange, index: int, ids: list[int], sampling: Sampling, prediction: list[int], stops: StopTable
) -> Choice:
    request, card, caller = exchange.request, exchange.card, exchange.caller
    length = answer_length(request, len(ids), card.max_context)
    # A chat has one prompt, whose log-probabilities are returned once.
    scored = -1 if request.chat and index else request.scored
    sampling = replace(sampling, max_tokens=length, prompt_logprobs=scored)
    server = verification_for(card.speculation, Verification(), sampling)
    reader = _reader(exchange, ids)
    with_tools = request.tools is not None
    markers = exchange.formats.markers(tools=with_tools) if reader is not None else frozenset()
    return Choice(
        index=index,
        request_id=f"{exchange.answer_id}-{index}",
        prompt=ids,
        sampling=sampling,
        speculation=request.speculation,
        verification=verification_for(request.speculation, server, sampling),
        longest_draft=longest_draft(request.speculation, card),
        delivery=Delivery(
            exchange.vocabulary.detokenizer(ids, markers),
            stops,
            min_tokens=sampling.min_tokens,
            tokens_shown=request.return_token_ids or request.continuous_usage or sampling.logprobs >= 0,
            origins_shown=request.return_provenance,
        ),
        grammar_field=_grammar_field(request, sampling),
        acceptance=ChoiceAcceptance(in_order=request.return_speculation_steps),
        priority=request.priority,
        cache_salt=caller.cache_salt,
        key=key_of(ids, exchange.page_tokens, caller.cache_salt, request.session),
        namespace=caller.namespace,
        caller=caller.name,
        prediction=prediction,
        predicted=None if request.prediction is None else Predicted(),
        echo=_echo(exchange, index, ids) if request.echo or scored >= 0 else None,
        reader=reader,
    )


def _grammar_field(request: Request, sampling: Sampling) -> str:
    """The field to name where a worker refuses the grammar, or the limit of reasoning, that was made of it."""
    if sampling.grammar:
        return request.grammar_field or "tools"
    return "thinking_token_budget" if sampling.reasoning is not None else ""


def _reader(exchange: Exchange, ids: list[int]) -> AnswerReader | None:
    request, tools = exchange.request, exchange.request.tools
    if not request.chat:
        return None
    formats = exchange.formats
    return formats.reader(
        None if tools is None else tools.parameters,
        exchange.vocabulary.end_of(ids) if formats.reasoning is not None else "",
        one_call=tools is not None and tools.one_call,
        quiet=not request.include_reasoning,
        form=bool(request.grammar_field) and (tools is None or not tools.must),
    )


def _echo(exchange: Exchange, index: int, ids: list[int]) -> Echo:
    request, vocabulary = exchange.request, exchange.vocabulary
    scored = request.scored >= 0
    if not request.echo:
        return Echo(ids, None, scored=scored)
    text = Delivery(vocabulary.of_prompt(), min_tokens=0, tokens_shown=True)
    prompt = request.prompts[index // request.n]
    added = vocabulary.added_before(ids, prompt.text or "") if isinstance(prompt, Encode) else 0
    return Echo(ids, text, added=added, scored=scored)
