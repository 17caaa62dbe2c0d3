"""Messages of one answer that wait for the same reader leave, or are read, as one."""

from __future__ import annotations

from services.api.messages import Failed, Finished, Tokens

Answer = Tokens | Finished | Failed


def next_of(held: list[Answer]) -> Answer:
    """Takes the first message from the list, with all tokens that follow it if it has tokens. Those with
    log-probabilities of the prompt stay alone: together they could be too large for a message."""
    first = held.pop(0)
    if not held or not isinstance(first, Tokens) or first.prompt_logprobs is not None:
        return first
    parts, end = [first], first.seq + len(first.ids)
    for each in held:
        if not isinstance(each, Tokens) or each.prompt_logprobs is not None or each.seq != end:
            break
        parts.append(each)
        end += len(each.ids)
    del held[: len(parts) - 1]
    return joined(parts) if len(parts) > 1 else first


def joined(parts: list[Tokens]) -> Tokens:
    """Consecutive Tokens messages as one."""
    first = parts[0]
    logprobs = None
    if first.logprobs is not None:
        logprobs = [value for part in parts for value in part.logprobs or ()]
    return Tokens(
        request_id=first.request_id,
        attempt=first.attempt,
        seq=first.seq,
        ids=[token for part in parts for token in part.ids],
        runs=[run for part in parts for run in part.runs],
        logprobs=logprobs,
        spans=[span for part in parts for span in part.spans],
    )
