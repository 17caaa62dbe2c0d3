"""Bodies of answers in OpenAI's shapes. Pure: values in, dicts out."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import Any

from services.api.messages import TokenLogprob
from services.streamer import timeline
from services.streamer.acceptance import Acceptance
from services.streamer.delivery import Piece
from services.streamer.detokenize import Vocabulary
from services.streamer.generation import Choice, Ending
from services.streamer.request import Request

IMPOSSIBLE = -9999.0


def head(request: Request, answer_id: str, created: int) -> dict[str, Any]:
    """The fields every body and chunk of an answer begins with."""
    kind = "chat.completion" if request.chat else "text_completion"
    if request.chat and request.stream:
        kind = "chat.completion.chunk"
    return {"id": answer_id, "object": kind, "created": created, "model": request.model}


def whole(
    request: Request, opening: dict[str, Any], choices: Sequence[Choice], pieces: Sequence[Piece],
    endings: Sequence[Ending], vocabulary: Vocabulary,
) -> dict[str, Any]:  # fmt: skip
    """The body of an answer that wasn't streamed. `pieces` hold the whole of each choice."""
    bodies = [
        _choice(request, choice, piece, ending, vocabulary)
        for choice, piece, ending in zip(choices, pieces, endings, strict=True)
    ]
    body = {**opening, "choices": bodies, "usage": usage(choices, endings)}
    if request.return_token_ids and request.chat:
        body["prompt_token_ids"] = choices[0].prompt
    return body | metrics(choices)


def _choice(request: Request, choice: Choice, piece: Piece, ending: Ending, vocabulary: Vocabulary) -> dict[str, Any]:
    body: dict[str, Any] = {"index": choice.index}
    if request.chat:
        body["message"] = {"role": "assistant", "content": piece.text}
    else:
        body["text"] = piece.text
    body["logprobs"] = logprobs(request, piece, vocabulary)
    body["finish_reason"] = ending.reason
    body["stop_reason"] = ending.stop
    if request.return_token_ids and not request.chat:
        body["prompt_token_ids"] = choice.prompt
    return body | tokens(request, piece, vocabulary) | ended(request, choice)


def tokens(request: Request, piece: Piece, vocabulary: Vocabulary) -> dict[str, Any]:
    """Fields of a piece's tokens that the request asked for, besides log-probabilities."""
    body: dict[str, Any] = {}
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
    predicted = [choice.predicted for choice in choices if choice.predicted is not None]
    if predicted:
        body["completion_tokens_details"] = {
            "accepted_prediction_tokens": sum(each.accepted for each in predicted),
            "rejected_prediction_tokens": sum(each.rejected for each in predicted),
        }
    return body


def metrics(choices: Sequence[Choice]) -> dict[str, Any]:
    together = Acceptance()
    for choice in choices:
        together.merge(choice.acceptance)
    # Verification and maximum draft length are the same for every choice of a request.
    report = together.report(choices[0].verification, choices[0].longest_draft)
    parts = {"speculative_decoding": report, "timeline": timeline.told(choices)}
    known = {name: part for name, part in parts.items() if part is not None}
    return {"metrics": known} if known else {}


def logprobs(request: Request, piece: Piece, vocabulary: Vocabulary) -> dict[str, Any] | None:
    if request.sampling.logprobs < 0:
        return None
    return _chat_logprobs(piece, vocabulary) if request.chat else _text_logprobs(request, piece, vocabulary)


def _chat_logprobs(piece: Piece, vocabulary: Vocabulary) -> dict[str, Any]:
    return {
        "content": [
            {
                **_named(vocabulary, token, each.logprob),
                "top_logprobs": [_named(vocabulary, top.id, top.logprob) for top in each.top],
            }
            for token, each in zip(piece.ids, piece.logprobs, strict=True)
        ],
        "refusal": None,
    }


def _named(vocabulary: Vocabulary, token: int, logprob: float) -> dict[str, Any]:
    written = vocabulary.bytes_of(token)
    return {"token": written.decode(errors="replace"), "logprob": _finite(logprob), "bytes": list(written)}


def _finite(logprob: float) -> float:
    """JSON has no infinity; a token that cannot be is shown as one that hardly can."""
    return max(logprob, IMPOSSIBLE)


def _text_logprobs(request: Request, piece: Piece, vocabulary: Vocabulary) -> dict[str, Any]:
    return {
        "tokens": [vocabulary.text_of(token) for token in piece.ids],
        "token_logprobs": [_finite(each.logprob) for each in piece.logprobs],
        "top_logprobs": [_top(each, vocabulary) for each in piece.logprobs] if request.sampling.logprobs > 0 else None,
        "text_offset": piece.offsets,
    }


def _top(each: TokenLogprob, vocabulary: Vocabulary) -> dict[str, float]:
    """Tokens that look the same (parts of one character) share a name: the likeliest keeps it."""
    named: dict[str, float] = {}
    for top in each.top:
        named.setdefault(vocabulary.text_of(top.id), _finite(top.logprob))
    return named


def model(name: str, created: int, max_context: int | None) -> dict[str, Any]:
    body: dict[str, Any] = {"id": name, "object": "model", "created": created, "owned_by": "specmesh"}
    if max_context is not None:
        body["max_model_len"] = max_context
    return body
