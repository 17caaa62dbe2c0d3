"""One line of log a request: what a person or a program needs to find it and to see how it went. Never its text.

A client may give a request its id (X-Request-Id); the answer's header and the log have it. One that could be mistaken
for more than an id isn't used. Knows HTTP's header and nothing else of it.
"""

from __future__ import annotations

import logging
import re
import secrets
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from services.runtime.log import fields
from services.streamer.choice.generation import Choice
from services.streamer.door.paths import shown
from services.streamer.extras.trace_context import TraceContext

log = logging.getLogger("specmesh.requests")

REQUEST_ID = "X-Request-Id"
_ID = re.compile(r"[A-Za-z0-9._:/+=@-]{1,128}")
# The client has disconnected before its answer was complete: no status was sent, or it doesn't tell. As nginx has it.
DISCONNECTED = 499


@dataclass(slots=True)
class RequestRecord:
    """What is known of one request; `choices` and what follows only of one that runs the model."""

    id: str
    given: bool  # the client named it
    verb: str
    path: str
    route: str = ""  # of the table; empty: there is none
    status: int = 0
    error: str = ""  # code of the error, also of one that ended a stream
    began: float = field(default_factory=time.perf_counter)
    answer_id: str = ""
    stream: bool = False
    drafting: str = ""  # the method
    choices: Sequence[Choice] = ()
    first_token_s: float | None = None
    trace: TraceContext | None = None  # None: it isn't traced


def open_record(header: str | None, verb: str, path: str) -> RequestRecord:
    given = header is not None and _ID.fullmatch(header) is not None
    return RequestRecord(header if given and header else f"req-{secrets.token_hex(8)}", given, verb, path)


def write(record: RequestRecord) -> None:
    """What only looks (a probe, the page) is for debugging, unless it is refused."""
    looks = record.verb in ("GET", "HEAD", "OPTIONS") and record.status < 400
    level = logging.DEBUG if looks else logging.INFO
    if not log.isEnabledFor(level):
        return
    known = f"{record.verb} {record.route}" if record.route else f"{record.verb} {shown(record.path)}"
    seconds = round(time.perf_counter() - record.began, 4)
    more = _of_answer(record) if record.answer_id else {}
    told = fields(
        id=record.id, route=known, status=record.status, error=record.error or None, seconds=seconds, **more
    )
    log.log(level, "request", extra=told)


def tokens_of(choices: Sequence[Choice]) -> tuple[int, int]:
    """Of prompts, and of answers: as usage counts them, with the token that ended a choice."""
    # Choices of one prompt share it.
    prompts = {id(choice.prompt): len(choice.prompt) for choice in choices}
    answers = sum(choice.delivery.count + (choice.stop_token is not None) for choice in choices)
    return sum(prompts.values()), answers


def drafts_of(choices: Sequence[Choice]) -> tuple[int, int]:
    """Draft tokens verified, and accepted."""
    verified = sum((choice.acceptance.verified for choice in choices), Counter[tuple[int, int]]())
    drafted = sum(drafted * steps for (drafted, _), steps in verified.items())
    return drafted, sum(accepted * steps for (_, accepted), steps in verified.items())


def _of_answer(record: RequestRecord) -> dict[str, object]:
    choices = record.choices
    first = record.first_token_s
    prompt_tokens, tokens = tokens_of(choices)
    drafted, accepted = drafts_of(choices)
    return {
        "answer": None if record.answer_id == record.id else record.answer_id,
        "stream": record.stream,
        "method": record.drafting or None,
        "prompt_tokens": prompt_tokens,
        "tokens": tokens,
        "ttft": None if first is None else round(first, 4),
        "drafted": drafted,
        "accepted": accepted,
        "retries": sum(choice.attempt for choice in choices) or None,
        "trace": None if record.trace is None else record.trace.trace_id,
    }
