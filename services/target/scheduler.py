"""What the target does next: events in, instructions out. Knows no torch, no sockets and no clock.

Rule 1: each request that arrives ends exactly once, with Finish or Fail; a cancelled one ends without a word.
Rule 2: the oldest sequence always gets its rows and its pages; when pages run out the youngest gives up its
        own and is computed again later, with the same text. So everyone's turn comes.
Rule 3: pages in use + free = all; when no sequence is left, all are free (`check_idle`).

    Arrived ─▶ waiting ─▶ running ──▶ StepWanted → RunStep ──▶ StepDone → Emit, Finish, AskDrafts ─┐
                              ▲                                                                   │
                              └────────────────────── DraftsReady ◀───────────────────────────────┘

Prompt chunks, plain decoding and drafts to verify are one kind of work: the tokens of the text that aren't
computed yet, then the draft.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from services.messages import DraftItem, Failed, Finished, Generate
from services.target.cache.pages import Pages
from services.target.events import (
    Arrived,
    AskDrafts,
    Cancelled,
    DeadlinePassed,
    DraftAsk,
    DraftsReady,
    Drain,
    Emit,
    EngineFailed,
    Event,
    Fail,
    Finish,
    Forget,
    Instruction,
    PagesLost,
    RunStep,
    StepDone,
    StepWanted,
)
from services.target.runner import StepWork
from services.target.sampling import problem, stop_ids
from services.target.sequence import NO_DRAFT, Sequence, State, Tally
from services.target.verify.policy import strategy_for
from services.target.verify.registry import STRATEGIES

NAIVE = "naive"


@dataclass(frozen=True, slots=True)
class Limits:
    """What the machine, the model and the settings allow. Never changes."""

    vocab_size: int
    max_context: int
    eos_token_ids: tuple[int, ...]
    page_tokens: int
    pages: int
    max_sequences: int = 64
    max_step_tokens: int = 512
    max_waiting: int = 256
    method: str = NAIVE
    methods: tuple[str, ...] = (NAIVE, "ngram")
    num_speculative_tokens: int = 8
    verify_strategy: str = "auto"


class Scheduler:
    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.pages = Pages(limits.pages)
        # What one sequence alone can have in pages bounds a text as the model does.
        self.max_length = min(limits.max_context, limits.pages * limits.page_tokens)
        # One row for each, whatever comes.
        self.max_running = min(limits.max_sequences, limits.max_step_tokens)
        self.waiting: list[Sequence] = []  # by order
        self.running: list[Sequence] = []  # by order: the oldest first
        self.draining = False
        self.tallies: dict[tuple[str, str], Tally] = {}
        self.preemptions = 0
        self.refused_drafts = 0
        self.prompt_tokens = 0
        self.generated_tokens = 0
        # How requests ended: stop, length, cancelled, or the reason of the failure.
        self.ends: dict[str, int] = {}
        self._streams: dict[int, Sequence] = {}
        self._by_id: dict[int, Sequence] = {}
        self._next_id = 1
        self._in_flight: list[StepWork] = []
        self._instructions: list[Instruction] = []
        self._forgotten: list[int] = []

    # What others may ask -------------------------------------------------------------------------------

    @property
    def has_work(self) -> bool:
        return bool(self._streams)

    @property
    def next_deadline(self) -> float | None:
        """The first moment at which DeadlinePassed would end something."""
        return min((s.deadline for s in self._streams.values() if s.deadline is not None), default=None)

    def check_idle(self) -> None:
        """Nothing is left of anything once no request is left. Raises AssertionError."""
        assert not self._streams and not self._by_id and not self.waiting and not self.running
        assert not self._in_flight
        self.pages.check()
        assert self.pages.free == self.pages.total, "all pages are free when idle"

    # Events --------------------------------------------------------------------------------------------

    def handle(self, event: Event) -> list[Instruction]:
        self._HANDLERS[type(event)](self, event)
        if self._forgotten:
            self._instructions.append(Forget(self._forgotten))
            self._forgotten = []
        instructions, self._instructions = self._instructions, []
        return instructions

    def _arrived(self, event: Arrived) -> None:
        generate = event.generate
        refusal = self._refusal(generate)
        if refusal is not None:
            self._count_end(refusal.reason)
            self._instructions.append(Fail(event.stream, refusal))
            return
        sequence = self._make_sequence(event)
        if sequence.length >= sequence.limit:
            # All that was asked for is there already (max_tokens 0, or an attempt that only missed its end).
            sequence.end_reason = "length"
            self._instructions.append(Finish(event.stream, self._finished(sequence)))
            return
        self._next_id += 1
        self._streams[event.stream] = sequence
        self._by_id[sequence.id] = sequence
        bisect.insort(self.waiting, sequence, key=_by_order)
        self.prompt_tokens += sequence.prompt_tokens

    def _refusal(self, generate: Generate) -> Failed | None:
        limits = self.limits
        if self.draining:
            return _failed(generate, "draining", "this target is stopping", retryable=True)
        if len(self.waiting) >= limits.max_waiting:
            return _failed(generate, "overloaded", "too many requests wait for this target", retryable=True)
        wrong = problem(generate, limits.vocab_size)
        if not wrong and generate.speculation.method not in ("", *limits.methods):
            wrong = f"speculation method {generate.speculation.method[:40]!r} is not known here"
        if not wrong and generate.speculation.verify_strategy not in ("", "auto", *STRATEGIES):
            wrong = f"verify strategy {generate.speculation.verify_strategy[:40]!r} is not known here"
        if wrong:
            return _failed(generate, "invalid", wrong)
        if generate.prompt_tokens >= self.max_length:
            return _failed(
                generate,
                "too_long",
                f"{generate.prompt_tokens} prompt tokens leave no room in a context of {self.max_length}",
            )
        return None

    def _make_sequence(self, event: Arrived) -> Sequence:
        generate, limits = event.generate, self.limits
        asked = generate.speculation
        method = asked.method or limits.method
        longest = limits.num_speculative_tokens
        if asked.num_speculative_tokens >= 0:
            longest = min(asked.num_speculative_tokens, longest)
        default = limits.verify_strategy
        strategy = strategy_for(asked.verify_strategy.removeprefix("auto"), default, generate.sampling)
        return Sequence(
            id=self._next_id,
            stream=event.stream,
            generate=generate,
            deadline=event.deadline,
            max_length=self.max_length,
            stop_ids=stop_ids(generate.sampling, limits.eos_token_ids),
            method=method,
            strategy=strategy,
            draft_length=0 if method == NAIVE else longest,
            tally=self.tallies.setdefault((method, strategy), Tally()),
        )

    def _cancelled(self, event: Cancelled) -> None:
        sequence = self._streams.get(event.stream)
        if sequence is not None:
            self._count_end("cancelled")
            self._end(sequence)

    def _drafts_ready(self, event: DraftsReady) -> None:
        for draft in event.drafts:
            sequence = self._by_id.get(draft.sequence_id)
            if sequence is None or sequence.length != draft.committed or not sequence.wants_draft:
                # Too late, or about nobody.
                continue
            if not _is_chain(draft) or not self._in_vocabulary(draft.tokens):
                self.refused_drafts += 1
                continue
            sequence.draft = draft.tokens[: sequence.longest_draft]
            sequence.source = draft.source[:64]
            sequence.match_length = draft.match_length

    def _in_vocabulary(self, tokens: list[int]) -> bool:
        return bool(tokens) and min(tokens) >= 0 and max(tokens) < self.limits.vocab_size

    def _deadline_passed(self, event: DeadlinePassed) -> None:
        for sequence in list(self._streams.values()):
            if sequence.deadline is not None and sequence.deadline <= event.now:
                self._fail(sequence, "deadline", "the time for this request has passed")

    def _drain(self, event: Drain) -> None:
        self.draining = True

    def _pages_lost(self, event: PagesLost) -> None:
        self._in_flight = []
        for sequence in list(self.running):
            self._preempt(sequence)

    def _engine_failed(self, event: EngineFailed) -> None:
        self._in_flight = []
        for sequence in list(self._streams.values()):
            self._fail(sequence, "engine", event.message, retryable=True)

    # Planning a step -----------------------------------------------------------------------------------

    def _step_wanted(self, event: StepWanted) -> None:
        assert not self._in_flight, "one step at a time"
        self._admit()
        self._in_flight = self._plan()
        if self._in_flight:
            self._instructions.append(RunStep(self._in_flight))

    def _admit(self) -> None:
        """Let the waiting run, in order; none passes another, so the large ones' turn comes, too."""
        while self.waiting and len(self.running) < self.max_running:
            sequence = self.waiting[0]
            # The whole text and the next token. Pages that runners need soon stay free, or the newcomer
            # would be preempted at once.
            need = -(-(sequence.length + 1) // self.limits.page_tokens)
            need = min(need, self.pages.total)
            if self.running and self.pages.free - need < len(self.running):
                return
            pages = self.pages.take(need)
            if pages is None:
                return
            self.waiting.pop(0)
            sequence.waiting_to_running(pages, self.limits.page_tokens)
            bisect.insort(self.running, sequence, key=_by_order)

    def _plan(self) -> list[StepWork]:
        wanted = [len(s.draft) for s in self.running if s.draft]
        rows = _Rows(self.running, wanted, self.limits.max_step_tokens)
        work: list[StepWork] = []
        # The oldest first; only those behind it may lose their pages to it, and they aren't planned yet.
        index = 0
        while index < len(self.running):
            sequence = self.running[index]
            index += 1
            item = self._plan_one(sequence, rows)
            if item is not None:
                work.append(item)
        return work

    def _plan_one(self, sequence: Sequence, rows: _Rows) -> StepWork | None:
        text = sequence.token_ids
        start = sequence.computed
        missing = len(text) - start
        draft = sequence.draft
        sequence.draft = NO_DRAFT
        if missing > 1:
            draft = NO_DRAFT
            chunk = rows.for_chunk(missing)
        else:
            chunk = 1
            if draft:
                draft = draft[: rows.for_draft(len(draft))]
        end = start + chunk + len(draft)
        if end > sequence.room:
            end = self._make_room(sequence, start + chunk, end)
            if sequence.state is not State.RUNNING:
                return None
            draft = draft[: end - start - chunk]
        tokens = text[start : start + chunk]
        return StepWork(sequence, tokens + draft if draft else tokens, start, draft, chunk == missing)

    def _make_room(self, sequence: Sequence, least: int, wanted: int) -> int:
        """Pages for `wanted` tokens if they are free, for `least` whoever must go for it; how many fit."""
        page_tokens = self.limits.page_tokens
        needed = -(-wanted // page_tokens) - len(sequence.pages)
        if needed > self.pages.free:
            # A draft isn't worth anyone's pages.
            wanted = max(least, min(wanted, sequence.room + self.pages.free * page_tokens))
            needed = max(0, -(-wanted // page_tokens) - len(sequence.pages))
        while (pages := self.pages.take(needed)) is None:
            youngest = self.running[-1]
            self._preempt(youngest)
            if youngest is sequence:
                return 0
        sequence.give_pages(pages, page_tokens)
        return wanted

    def _preempt(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        self.pages.release(sequence.running_to_waiting())
        bisect.insort(self.waiting, sequence, key=_by_order)
        self.preemptions += 1

    # Applying a step -----------------------------------------------------------------------------------

    def _step_done(self, event: StepDone) -> None:
        work, self._in_flight = self._in_flight, []
        if not work:
            # The step was given up while it ran (PagesLost, EngineFailed).
            return
        assert len(event.verdicts) == len(work), "one verdict for each work"
        instructions = self._instructions
        for item, verdict in zip(work, event.verdicts, strict=True):
            sequence = item.sequence
            if sequence.state is not State.RUNNING:
                continue
            if verdict is None:
                sequence.computed_chunk(len(item.tokens))
                continue
            if not verdict.tokens:
                self._fail(sequence, "engine", verdict.failure or "the engine gave no token")
                continue
            tokens = sequence.commit(verdict, len(item.draft))
            if tokens is not None:
                self.generated_tokens += len(tokens.ids)
                instructions.append(Emit(sequence.stream, tokens))
            if sequence.end_reason is not None:
                instructions.append(Finish(sequence.stream, self._finished(sequence)))
                self._end(sequence)
        self._ask_drafts()

    def _ask_drafts(self) -> None:
        asks = [DraftAsk(s, s.longest_draft) for s in self.running if s.draft_length and s.wants_draft]
        if asks:
            share = _Rows(self.running, [ask.budget for ask in asks], self.limits.max_step_tokens).share
            if share == 0:
                return
            if share < self.limits.num_speculative_tokens:
                asks = [DraftAsk(ask.sequence, min(ask.budget, share)) for ask in asks]
            self._instructions.append(AskDrafts(asks))

    # Ends ----------------------------------------------------------------------------------------------

    def _finished(self, sequence: Sequence) -> Finished:
        assert sequence.end_reason is not None
        self._count_end(sequence.end_reason)
        return Finished(
            request_id=sequence.request_id,
            attempt=sequence.attempt,
            reason=sequence.end_reason,
            prompt_tokens=sequence.prompt_tokens,
            cached_tokens=0,
            completion_tokens=sequence.generated,
            stop_token=sequence.stop_token,
            speculation=sequence.stats(),
        )

    def _fail(self, sequence: Sequence, reason: str, message: str, retryable: bool = False) -> None:
        self._count_end(reason)
        failed = _failed(sequence.generate, reason, message, retryable)
        self._instructions.append(Fail(sequence.stream, failed))
        self._end(sequence)

    def _count_end(self, how: str) -> None:
        self.ends[how] = self.ends.get(how, 0) + 1

    def _end(self, sequence: Sequence) -> None:
        (self.waiting if sequence.state is State.WAITING else self.running).remove(sequence)
        del self._streams[sequence.stream]
        del self._by_id[sequence.id]
        self.pages.release(sequence.to_ended())
        self._forgotten.append(sequence.id)

    _HANDLERS: ClassVar[dict[type[Event], Callable[[Scheduler, Any], None]]] = {
        Arrived: _arrived,
        Cancelled: _cancelled,
        DraftsReady: _drafts_ready,
        StepWanted: _step_wanted,
        StepDone: _step_done,
        DeadlinePassed: _deadline_passed,
        Drain: _drain,
        PagesLost: _pages_lost,
        EngineFailed: _engine_failed,
    }


class _Rows:
    """How the rows of a step are shared out: one for each sequence, then drafts, then chunks of prompts.

    `wanted` lists the draft lengths asked for. While prompts wait to be computed, a quarter of the rows isn't
    given to drafts. A draft that uses less than its share leaves the rest to those behind it.
    """

    __slots__ = ("_chunk_rows", "_draft_rows", "_drafting")

    def __init__(self, running: list[Sequence], wanted: list[int], rows: int) -> None:
        free = rows - len(running)
        self._drafting = len(wanted)
        self._draft_rows = min(free, sum(wanted))
        if any(len(s.token_ids) - s.computed > 1 for s in running):
            self._draft_rows = min(self._draft_rows, max(0, free - rows // 4))
        self._chunk_rows = free - self._draft_rows

    @property
    def share(self) -> int:
        return -(-self._draft_rows // self._drafting) if self._drafting else 0

    def for_draft(self, wanted: int) -> int:
        given = min(wanted, self.share)
        self._drafting -= 1
        self._draft_rows -= given
        return given

    def for_chunk(self, missing: int) -> int:
        given = 1 + min(missing - 1, self._chunk_rows)
        self._chunk_rows -= given - 1
        return given


def _by_order(sequence: Sequence) -> tuple[int, int]:
    return sequence.order


def _is_chain(draft: DraftItem) -> bool:
    return not draft.parents or draft.parents == list(range(-1, len(draft.tokens) - 1))


def _failed(generate: Generate, reason: str, message: str, retryable: bool = False) -> Failed:
    return Failed(
        request_id=generate.request_id,
        attempt=generate.attempt,
        reason=reason,
        message=message,
        retryable=retryable,
    )
