"""Bodies of answers in OpenAI's shapes. Pure: values in, dicts out, or the bytes of a whole answer."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from services.api.messages import ModelCard, TokenLogprob
from services.api.prompt_logprobs import PromptLogprob
from services.streamer.choice import chat_shapes, timeline
from services.streamer.choice.acceptance import ChoiceAcceptance
from services.streamer.choice.delivery import Piece, slices
from services.streamer.choice.detokenize import Vocabulary
from services.streamer.choice.generation import Choice, Ending
from services.streamer.choice.turns import A_SLICE
from services.streamer.openai.request import Request

IMPOSSIBLE = -9999.0
# What a token is called in log-probabilities.
Name = Callable[[int], str]
# Tokens whose ids and runs are a slice of work.
TOKENS_IN_SLICE = A_SLICE // 4


def head(request: Request, answer_id: str, created: int) -> dict[str, Any]:
    """The fields every body and chunk of an answer begins with."""
    kind = "chat.completion" if request.chat else "text_completion"
    if request.chat and request.stream:
        kind = "chat.completion.chunk"
    return {"id": answer_id, "object": kind, "created": created, "model": request.model}


class WrittenLists:
    """Fields of JSON whose lists are written slice by slice; other values are the same in every slice. `size`: bytes of
    the lists."""

    __slots__ = ("_others", "_written", "size")

    def __init__(self) -> None:
        self._written: dict[str, list[bytes]] = {}
        self._others: dict[str, Any] = {}
        self.size = 0

    def __bool__(self) -> bool:
        return bool(self._written or self._others)

    def add(self, fields: dict[str, Any]) -> None:
        for name, value in fields.items():
            if isinstance(value, list):
                written = self._written.setdefault(name, [])
                if value:
                    written.append(orjson.dumps(value)[1:-1])
                    self.size += len(written[-1])
            else:
                self._others[name] = value

    def parts(self) -> Iterator[bytes]:
        """The fields without the braces around them. What was given isn't kept any more."""
        before = b""
        for name, value in self._others.items():
            yield before + orjson.dumps(name) + b":" + orjson.dumps(value)
            before = b","
        for name, written in self._written.items():
            begin = before + orjson.dumps(name) + b":["
            written.reverse()
            while written:
                yield begin + written.pop()
                begin = b","
            yield (b"" if begin == b"," else begin) + b"]"
            before = b","


@dataclass(slots=True)
class WholeChoice:
    """One choice of an answer that isn't streamed. Its log-probabilities are written as they come: kept until the end,
    a million of them would be written, and freed, at once."""

    choice: Choice
    piece: Piece  # without its log-probabilities, and without the tokens of the prompt
    logprobs: WrittenLists = field(default_factory=WrittenLists)
    of_prompt: WrittenLists = field(default_factory=WrittenLists)
    work: int = 0  # to write all of it (turns.py)


def whole(
    request: Request, opening: dict[str, Any], wholes: Sequence[WholeChoice], endings: Sequence[Ending],
    vocabulary: Vocabulary,
) -> Iterator[bytes]:  # fmt: skip
    """The body of an answer that wasn't streamed. Each step of this takes a slice of work (turns.py), and may have
    nothing to send yet."""
    before = orjson.dumps(opening)[:-1] + b',"choices":['
    for each, ending in zip(wholes, endings, strict=True):
        for part in _choice(request, each, ending, vocabulary):
            yield before + part if part else b""
            before = b"" if part else before
        before = b","
    choices = [each.choice for each in wholes]
    closing: dict[str, Any] = {"usage": usage(choices, endings), **metrics(choices)}
    if request.return_token_ids and request.chat:
        closing["prompt_token_ids"] = choices[0].prompt
    yield b"]," + orjson.dumps(closing)[1:-1]
    if request.chat and wholes[0].of_prompt:
        yield b","
        yield from wholes[0].of_prompt.parts()
    yield b"}"


def _choice(request: Request, whole: WholeChoice, ending: Ending, vocabulary: Vocabulary) -> Iterator[bytes]:
    of_tokens = WrittenLists()
    if request.return_token_ids or request.return_provenance:
        for part in slices(whole.piece, TOKENS_IN_SLICE):
            of_tokens.add(tokens(request, part, vocabulary))
            yield b""
    body: dict[str, Any] = {"index": whole.choice.index}
    if request.chat:
        body["message"] = _message(whole)
    else:
        body["text"] = whole.piece.text
    body["finish_reason"] = chat_shapes.reason(whole.choice, ending)
    body["stop_reason"] = ending.stop
    if request.return_token_ids and not request.chat:
        body["prompt_token_ids"] = whole.choice.prompt
    yield orjson.dumps(body | ended(request, whole.choice))[:-1]
    yield from _fields(b',"logprobs":', whole.logprobs)
    for written in (of_tokens, whole.of_prompt) if not request.chat else (of_tokens,):
        if written:
            yield b","
            yield from written.parts()
    yield b"}"


def _fields(before: bytes, written: WrittenLists) -> Iterator[bytes]:
    """As an object, or null where there are none."""
    if not written:
        yield before + b"null"
        return
    yield before + b"{"
    yield from written.parts()
    yield b"}"


def _message(whole: WholeChoice) -> dict[str, Any]:
    if whole.choice.reader is None:
        return {"role": "assistant", "content": whole.piece.text}
    return chat_shapes.message(whole.choice.reader, whole.piece.text)


def work_of(request: Request, piece: Piece) -> int:
    """The work of writing this piece for the client, in the units of turns.py."""
    return len(piece.ids) * _work_of_token(request, piece.of_prompt)


def _work_of_token(request: Request, of_prompt: bool) -> int:
    top = request.sampling.logprobs
    written = 1 + top if top >= 0 else 0
    if of_prompt:
        # They were numbers in columns before.
        return 1 + 2 * (1 + request.scored) + written
    return 1 + request.return_provenance + 2 * request.speculation.return_drafts + written


def slices_of(request: Request, piece: Piece) -> Iterator[Piece]:
    return slices(piece, max(1, A_SLICE // _work_of_token(request, piece.of_prompt)))


def tokens(request: Request, piece: Piece, vocabulary: Vocabulary) -> dict[str, Any]:
    """Fields of a piece's tokens that the request asked for, besides log-probabilities. They tell of the answer, not
    of the prompt."""
    body: dict[str, Any] = {}
    if piece.of_prompt:
        return body
    if request.return_token_ids:
        body["token_ids"] = piece.ids
    if request.return_provenance:
        body["runs"] = [
            {
                "source": run.source,
                "match_length": run.match_length,
                "drafted": run.drafted,
                "accepted": run.accepted,
                "tokens": run.tokens,
            }
            for run in piece.runs
        ]
    if request.speculation.return_drafts:
        begin = 0
        for told, run in zip(body["runs"], piece.runs, strict=True):
            told["step"] = run.step
            told["offsets"] = piece.offsets[begin : begin + run.tokens]
            told["rejected"] = _texts(run.rejected, vocabulary)
            begin += run.tokens
    return body


def _texts(ids: Sequence[int], vocabulary: Vocabulary) -> list[str]:
    """Texts of consecutive tokens: a character that several tokens share belongs to the last."""
    decoder: Any = codecs.getincrementaldecoder("utf-8")("replace")
    return [decoder.decode(vocabulary.bytes_of(token), place == len(ids)) for place, token in enumerate(ids, 1)]


def ended(request: Request, choice: Choice) -> dict[str, Any]:
    """Fields beside finish_reason that the request asked for."""
    if not request.return_speculate_metrics:
        return {}
    return {"speculate_metrics": choice.acceptance.speculate_metrics(choice.longest_draft)}


def usage_so_far(choice: Choice, generated: int) -> dict[str, int]:
    prompt = len(choice.prompt)
    return {"prompt_tokens": prompt, "completion_tokens": generated, "total_tokens": prompt + generated}


def usage(choices: Sequence[Choice], endings: Sequence[Ending]) -> dict[str, Any]:
    """Prompts count once, however many answers were asked for."""
    prompts = {id(choice.prompt): len(choice.prompt) for choice in choices}
    prompt_tokens = sum(prompts.values())
    completion_tokens = sum(ending.completion_tokens for ending in endings)
    body: dict[str, Any] = {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
    }
    # Of several answers to one prompt the first computes what the others share: the one that found the least
    # says what was there before the request came.
    cached: dict[int, int] = {}
    for choice, ending in zip(choices, endings, strict=True):
        if ending.cached_tokens is not None:
            least = cached.get(id(choice.prompt), ending.cached_tokens)
            cached[id(choice.prompt)] = min(least, ending.cached_tokens)
    if cached:
        body["prompt_tokens_details"] = {"cached_tokens": sum(cached.values())}
    if details := _details(choices):
        body["completion_tokens_details"] = details
    return body


def _details(choices: Sequence[Choice]) -> dict[str, int]:
    details: dict[str, int] = {}
    predicted = [choice.predicted for choice in choices if choice.predicted is not None]
    if predicted:
        details["accepted_prediction_tokens"] = sum(each.accepted for each in predicted)
        details["rejected_prediction_tokens"] = sum(each.rejected for each in predicted)
    reasoned = [choice.reasoning_tokens for choice in choices if choice.reasoning_tokens is not None]
    if reasoned:
        details["reasoning_tokens"] = sum(reasoned)
    return details


def metrics(choices: Sequence[Choice]) -> dict[str, Any]:
    together = ChoiceAcceptance()
    for choice in choices:
        together.merge(choice.acceptance)
    # Verification and maximum draft length are the same for every choice of a request.
    report = together.report(choices[0].verification, choices[0].longest_draft)
    parts = {"speculative_decoding": report, "timeline": timeline.told(choices)}
    known = {name: part for name, part in parts.items() if part is not None}
    return {"metrics": known} if known else {}


def logprobs(request: Request, piece: Piece, vocabulary: Vocabulary) -> dict[str, Any] | None:
    if request.sampling.logprobs < 0 or (piece.of_prompt and not request.echo):
        return None
    by_id = request.return_tokens_as_token_ids
    if request.chat:
        return _chat_logprobs(piece, vocabulary, by_id)
    return _text_logprobs(request, piece, _by_id if by_id else vocabulary.text_of)


def _by_id(token: int) -> str:
    return f"token_id:{token}"


def _chat_logprobs(piece: Piece, vocabulary: Vocabulary, by_id: bool) -> dict[str, Any]:
    return {
        "content": [
            {
                **_named(vocabulary, by_id, token, each.logprob),
                "top_logprobs": [_named(vocabulary, by_id, top.id, top.logprob) for top in each.top],
            }
            for token, each in zip(piece.ids, piece.logprobs, strict=True)
            if each is not None
        ],
        "refusal": None,
    }


def _named(vocabulary: Vocabulary, by_id: bool, token: int, logprob: float) -> dict[str, Any]:
    written = vocabulary.bytes_of(token)
    name = _by_id(token) if by_id else written.decode(errors="replace")
    return {"token": name, "logprob": _finite(logprob), "bytes": list(written)}


def _finite(logprob: float) -> float:
    """JSON has no infinity; a token that cannot be is shown as one that hardly can."""
    return max(logprob, IMPOSSIBLE)


def _text_logprobs(request: Request, piece: Piece, name: Name) -> dict[str, Any]:
    top = request.sampling.logprobs
    return {
        "tokens": [name(token) for token in piece.ids],
        "token_logprobs": [None if each is None else _finite(each.logprob) for each in piece.logprobs],
        "top_logprobs": [_top(each, top, name) for each in piece.logprobs] if top > 0 else None,
        "text_offset": piece.offsets,
    }


def _top(each: TokenLogprob | None, count: int, name: Name) -> dict[str, float] | None:
    """Tokens that look the same (parts of one character) share a name: the likeliest keeps it."""
    if each is None:
        return None
    named: dict[str, float] = {}
    for top in each.top[:count]:
        named.setdefault(name(top.id), _finite(top.logprob))
    return named


def prompt_logprobs(request: Request, piece: Piece, vocabulary: Vocabulary) -> dict[str, Any]:
    """Of a piece of the prompt, as vLLM returns them: token ids to log-probability, rank and text."""
    if request.prompt_logprobs < 0:
        return {}
    entries = zip(piece.ids, piece.logprobs, strict=True)
    return {"prompt_logprobs": [_ranked(token, each, request.prompt_logprobs, vocabulary) for token, each in entries]}


def _ranked(token: int, each: TokenLogprob | None, count: int, vocabulary: Vocabulary) -> dict[str, Any] | None:
    """The prompt's token, then the most probable ones."""
    if not isinstance(each, PromptLogprob):
        return None
    told = [(token, each.logprob, each.rank)]
    told += [(top.id, top.logprob, rank) for rank, top in enumerate(each.top[:count], 1)]
    return {
        str(id): {"logprob": _finite(logprob), "rank": rank, "decoded_token": vocabulary.text_of(id)}
        for id, logprob, rank in told
    }


def model(name: str, created: int, card: ModelCard | None) -> dict[str, Any]:
    """`card`: None until a worker has answered."""
    body: dict[str, Any] = {"id": name, "object": "model", "created": created, "owned_by": "specmesh"}
    return body if card is None else {**body, "max_model_len": card.max_context, "methods": card.methods}
