"""The trace of a request: one span for all of it, and below it one a phase, made at its end from its timelines.

    POST /v1/chat/completions ├──────────────────────────────────────────────────────────────┤   the streamer
      queue                   ├──┤        ├────┤                  until it was sent, then the worker's
      tokenize                   ├────────┤
      prefill                                  ├───────┤
      decode                                           ├───────────────────────────────┤
      propose                                          ├──────────────────────────┤   the first to the last draft
      stream                                           ├─────────────────────────────────────┤

All of them are the streamer's to tell: the times of the other processes came with the tokens (choice/timeline.py). A
phase that was left and entered again has two spans. Attributes are counts, times and names, never text.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from services.streamer.choice.generation import Choice
from services.streamer.door.request_log import RequestRecord, drafts_of, tokens_of
from services.streamer.extras.trace_context import TraceContext, new_span_id

# Kinds and a status of OTLP.
INTERNAL, SERVER, FAILED = 1, 2, 2
# Flags of a span: its trace is recorded, and whether its parent is another program's is known, and so.
RECORDED, REMOTE = 0x101, 0x200
DECODE = "decode"
# The others are a worker's; the first wait is the streamer's.
ROLES = {"tokenize": "tokenizer", "propose": "proposer", "stream": "streamer"}
# Phases beside the others: one span each.
BESIDE = ("propose", "stream")
OPERATIONS = {
    "/v1/completions": "text_completion",
    "/v1/embeddings": "embeddings",
}


@dataclass(slots=True)
class Phase:
    """In seconds since the timeline began. `parts`: steps, chunks of a prompt, or drafts."""

    name: str
    role: str
    begin: float
    end: float
    tokens: int
    parts: int


def phases_of(told: Sequence[Mapping[str, Any]]) -> list[Phase]:
    """Of a timeline, which is in order: what follows in the same phase becomes one."""
    found: list[Phase] = []
    last: Phase | None = None
    beside: dict[str, Phase] = {}
    for each in told:
        name = DECODE if each["what"] == "verify" else each["what"]
        begin, end = each["from_ms"] / 1e3, each["to_ms"] / 1e3
        known = beside.get(name) if name in BESIDE else last
        if known is not None and known.name == name:
            known.end = max(known.end, end)
            known.tokens += each.get("tokens", 0)
            known.parts += each.get("spans", 1)
            continue
        role = "streamer" if last is None and name == "queue" else ROLES.get(name, "worker")
        phase = Phase(name, role, begin, end, each.get("tokens", 0), each.get("spans", 1))
        found.append(phase)
        if name in BESIDE:
            beside[name] = phase
        else:
            last = phase
    return found


@dataclass(frozen=True, slots=True)
class Moment:
    """Now, by the clock of a request's times and in ns since 1970."""

    now: float
    since_1970: int

    def times(self, begin: float, end: float) -> dict[str, str]:
        # A worker's clock is only known to within the time of a message.
        begin, end = min(begin, self.now), min(end, self.now)
        return {"startTimeUnixNano": self._since_1970(begin), "endTimeUnixNano": self._since_1970(end)}

    def _since_1970(self, moment: float) -> str:
        return str(self.since_1970 - round((self.now - moment) * 1e9))


def spans_of(record: RequestRecord, trace: TraceContext, model: str, ended: Moment) -> list[bytes]:
    """All spans of a request that has ended."""
    timelines = [(choice, choice.timeline) for choice in record.choices if choice.timeline is not None]
    phases = {choice.index: phases_of(timeline.told()) for choice, timeline in timelines}
    whole: dict[str, Any] = {
        "traceId": trace.trace_id,
        "spanId": trace.span_id,
        "name": f"{record.verb} {record.route}",
        "kind": SERVER,
        "flags": RECORDED,
        **ended.times(record.began, ended.now),
        "attributes": _attributes(_of_request(record, model, ended.now - record.began, phases)),
    }
    if trace.parent_id:
        whole |= {"parentSpanId": trace.parent_id, "flags": RECORDED | REMOTE}
    if _failed(record):
        whole["status"] = {"code": FAILED}
    below = [
        {
            "traceId": trace.trace_id,
            "spanId": new_span_id(),
            "parentSpanId": trace.span_id,
            "name": phase.name,
            "kind": INTERNAL,
            "flags": RECORDED,
            **ended.times(timeline.began + phase.begin, timeline.began + phase.end),
            "attributes": _attributes(_of_phase(record, choice, phase)),
        }
        for choice, timeline in timelines
        for phase in phases[choice.index]
    ]
    return [orjson.dumps(span) for span in (whole, *below)]


def _failed(record: RequestRecord) -> bool:
    """The server's fault, also where the stream had begun with a 200."""
    return record.status >= 500 or (record.status < 400 and bool(record.error))


def _of_request(
    record: RequestRecord, model: str, seconds: float, phases: Mapping[int, Sequence[Phase]]
) -> Iterator[tuple[str, Any]]:
    prompt_tokens, tokens = tokens_of(record.choices)
    drafted, accepted = drafts_of(record.choices)
    yield "gen_ai.operation.name", OPERATIONS.get(record.route, "chat")
    yield "gen_ai.provider.name", "specmesh"
    yield "gen_ai.request.model", model
    yield "gen_ai.response.model", model
    yield "gen_ai.request.id", record.id
    yield "gen_ai.response.id", record.answer_id
    yield "gen_ai.usage.input_tokens", prompt_tokens
    yield "gen_ai.usage.output_tokens", tokens
    yield "gen_ai.latency.e2e", seconds
    if record.first_token_s is not None:
        yield "gen_ai.latency.time_to_first_token", record.first_token_s
    if record.choices:
        sampling = record.choices[0].sampling
        yield "gen_ai.request.choice.count", len(record.choices)
        yield "gen_ai.request.max_tokens", sampling.max_tokens
        yield "gen_ai.request.temperature", float(sampling.temperature)
        yield "gen_ai.request.top_p", float(sampling.top_p)
    yield from _latencies(next(iter(phases.values()), ()))
    yield "specmesh.method", record.drafting
    yield "specmesh.drafted_tokens", drafted
    yield "specmesh.accepted_tokens", accepted
    yield "specmesh.retries", sum(choice.attempt for choice in record.choices)
    yield "http.request.method", record.verb
    yield "http.route", record.route
    yield "http.response.status_code", record.status
    if record.error:
        yield "error.type", record.error


def _latencies(phases: Sequence[Phase]) -> Iterator[tuple[str, float]]:
    """Of the first choice."""
    if not phases:
        return

    def spent(*names: str) -> float:
        return sum(phase.end - phase.begin for phase in phases if phase.name in names)

    yield "gen_ai.latency.time_in_queue", spent("queue")
    yield "gen_ai.latency.time_in_model_prefill", spent("prefill")
    yield "gen_ai.latency.time_in_model_decode", spent(DECODE)
    yield "gen_ai.latency.time_in_model_inference", spent("prefill", DECODE)


def _of_phase(record: RequestRecord, choice: Choice, phase: Phase) -> Iterator[tuple[str, Any]]:
    yield "gen_ai.request.id", record.id
    yield "specmesh.role", phase.role
    if len(record.choices) > 1:
        yield "specmesh.choice", choice.index
    if phase.tokens:
        yield "specmesh.tokens", phase.tokens
    if phase.parts > 1:
        yield "specmesh.parts", phase.parts


def _attributes(named: Iterable[tuple[str, str | int | float]]) -> list[dict[str, Any]]:
    """As OTLP has them: whole numbers are texts."""
    return [{"key": name, "value": _value(value)} for name, value in named]


def _value(value: str | int | float) -> dict[str, str | float]:
    if isinstance(value, str):
        return {"stringValue": value}
    return {"doubleValue": value} if isinstance(value, float) else {"intValue": str(value)}


class RequestTraces:
    """Makes the spans of requests that have ended, for `add`."""

    def __init__(self, model: str, add: Callable[[Sequence[bytes]], None]) -> None:
        self._model = model
        self._add = add

    def ended(self, record: RequestRecord) -> None:
        if record.trace is not None:
            self._add(spans_of(record, record.trace, self._model, Moment(time.perf_counter(), time.time_ns())))
