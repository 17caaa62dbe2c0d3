"""When a request waited, was computed, was guessed for and verified: told with its tokens, to those who asked for it.

    Arrived ──queue──▶ first step ─ prefill ─ … ─ verify ─┬─ verify ─ …      spans, in seconds since Arrived
                                        propose ──────────┘ asked ahead: beside the step

Times are taken by the step thread's clock alone. Of a question that nobody waited for it isn't known when its answer
came: its span is as long as the proposer says it took, and ends when the answer was found at the latest. Knows no
messages but those it adds spans to.
"""

from __future__ import annotations

from collections.abc import Sequence as Items
from dataclasses import dataclass, field

import msgspec

from services.api.messages import Span
from services.worker.running.runner import StepWork, Verdict
from services.worker.scheduling.events import Arrived, Cancelled, DraftAsk, DraftsReady, Emit, Fail, Finish

# Spans of a request that no message has taken along yet: a long prompt's chunks. What is more grows the last one.
MOST_SPANS = 64


@dataclass(slots=True)
class _Record:
    arrived: float
    stepped: bool = False
    steps: int = 0
    # The sequence a question was about that is open; -1: none is.
    asked: int = -1
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
        # By stream, of those who asked for it: mostly there are none, and nobody need be told of anything.
        self.records: dict[int, _Record] = {}

    def hear(self, mail: object) -> None:
        """A request comes, or its reader is gone."""
        if isinstance(mail, Arrived):
            if mail.generate.timeline:
                self.records[mail.stream] = _Record(mail.at)
        elif isinstance(mail, Cancelled):
            self.records.pop(mail.stream, None)

    def asked(self, asks: Items[DraftAsk]) -> None:
        for ask in asks if self.records else ():
            record = self.records.get(ask.sequence.stream)
            if record is not None:
                record.asked = ask.sequence.id

    def proposed(self, ready: DraftsReady, now: float) -> None:
        """What was asked is answered, or given up."""
        took = now - ready.sent_at
        if ready.ahead and ready.answered:
            took = min(took, max(0.0, ready.worked))
        tokens = {draft.sequence_id: len(draft.tokens) for draft in ready.drafts}
        for record in self.records.values():
            if record.asked >= 0 and ready.sent_at > 0:
                record.add("propose", ready.sent_at, ready.sent_at + took, tokens.get(record.asked, 0))
            record.asked = -1

    def stepped(self, work: Items[StepWork], verdicts: Items[Verdict | None], began: float, ended: float) -> None:
        """A step was computed. Called before the scheduler hears of it."""
        for item, verdict in zip(work, verdicts, strict=True):
            record = self.records.get(item.sequence.stream)
            if record is None:
                continue
            if not record.stepped:
                record.stepped = True
                record.add("queue", record.arrived, began)
            # The text's last token is computed with each draft; more than that is a prompt, or a text once more.
            if item.sequence.verifying and verdict is not None and len(item.tokens) - len(item.draft) == 1:
                record.steps += 1
                record.add("verify", began, ended, len(verdict.tokens))
            else:
                record.add("prefill", began, ended, len(item.tokens))

    def told(self, answer: Emit | Finish | Fail) -> Emit | Finish | Fail:
        """The answer as it leaves, with the spans that are new."""
        record = self.records.get(answer.stream)
        if record is None:
            return answer
        spans, record.spans = record.spans, []
        if isinstance(answer, Emit):
            return Emit(answer.stream, msgspec.structs.replace(answer.tokens, spans=spans))
        del self.records[answer.stream]
        if isinstance(answer, Finish):
            return Finish(answer.stream, msgspec.structs.replace(answer.finished, spans=spans))
        return answer
