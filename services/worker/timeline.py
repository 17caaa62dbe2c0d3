"""Timelines: when a request was queued, prefilled, drafted for and verified. Sent with its tokens, if it asked for
them.

    Arrived ──queue──▶ first step ─ prefill ─ … ─ verify ─┬─ verify ─ …      spans, in seconds since Arrived
                                        propose ──────────┘ asked ahead: beside the step

All times are of the engine thread's clock. It isn't known when the answer to a request sent ahead arrived, so its span
is as long as the proposer says, at most until the answer was read.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from services.api.messages import Span
from services.worker.running.work import Result, Work
from services.worker.scheduling.events import Answer, Arrived, Cancelled, Emit, Finish
from services.worker.speculation.remote.client import Answer as Drafts

# Spans of a request that haven't been sent yet, such as chunks of a long prompt. Beyond it the last span grows.
MOST_SPANS = 64


@dataclass(slots=True)
class _Record:
    arrived: float
    stepped: bool = False
    # Whether the last step gave a token.
    verifying: bool = False
    steps: int = 0
    spans: list[Span] = field(default_factory=list)

    def add(self, what: str, begin: float, end: float, tokens: int = 0) -> None:
        begin, end = max(0.0, begin - self.arrived), max(0.0, end - self.arrived)
        if len(self.spans) >= MOST_SPANS and self.spans[-1].what == what:
            last = self.spans.pop()
            begin, tokens = last.begin, last.tokens + tokens
        step = self.steps if what == "verify" else 0
        self.spans.append(Span(what=what, begin=begin, end=end, tokens=tokens, step=step))


class Timelines:
    def __init__(self) -> None:
        # By sequence, for requests that asked for a timeline. If empty, the engine skips all calls.
        self.records: dict[int, _Record] = {}

    def hear(self, mail: object) -> None:
        """A request has arrived, or was cancelled. If it was refused, `told` is next."""
        if isinstance(mail, Arrived):
            if mail.generate.timeline:
                self.records[mail.sequence_id] = _Record(mail.at)
        elif isinstance(mail, Cancelled):
            self.records.pop(mail.sequence_id, None)

    def proposed(self, answer: Drafts, tokens: dict[int, int], now: float) -> None:
        """A request for drafts was answered or given up. `tokens`: drafted tokens by sequence."""
        took = now - answer.sent_at
        if answer.ahead and answer.answered:
            took = min(took, max(0.0, answer.worked))
        for sequence_id, count in tokens.items():
            record = self.records.get(sequence_id)
            if record is not None:
                record.add("propose", answer.sent_at, answer.sent_at + took, count)

    def stepped(self, work: Work, result: Result, began: float, ended: float) -> None:
        """A step was computed. Called before the scheduler takes its result."""
        for item, verdict in zip(work.items, result.verdicts, strict=True):
            record = self.records.get(item.sequence_id)
            if record is None:
                continue
            if not record.stepped:
                record.stepped = True
                record.add("queue", record.arrived, began)
            # A verify step computes one token of the text and the draft; more tokens are a prompt, or a preempted text.
            if record.verifying and verdict is not None and len(item.tokens) == 1:
                record.steps += 1
                record.add("verify", began, ended, len(verdict.tokens))
            else:
                record.add("prefill", began, ended, item.rows)
            record.verifying = verdict is not None

    def told(self, answer: Answer) -> Answer:
        """The answer with its new spans."""
        record = self.records.get(answer.sequence_id)
        if record is None:
            return answer
        spans, record.spans = record.spans, []
        if isinstance(answer, Emit):
            return Emit(answer.sequence_id, msgspec.structs.replace(answer.tokens, spans=spans))
        del self.records[answer.sequence_id]
        if isinstance(answer, Finish):
            return Finish(answer.sequence_id, msgspec.structs.replace(answer.finished, spans=spans))
        return answer
