"""What the target does next: events in, instructions out. Knows no torch, no sockets and no clock.

Rule 1: each request that arrives ends exactly once, with Finish or Fail; a cancelled one ends without a word.
Rule 2: there is one order of all requests, by when they are due (arrival, moved by priority) and then by arrival.
        The first in order always gets its rows and its pages, whoever must go for it: everyone's turn comes.
Rule 3: pages in use + cached + free = all; when no sequence is left, none is in use (`check_idle`).

    Arrived ─▶ waiting ─▶ running ──▶ StepWanted → CopyPage…, RunStep ─▶ TimeToSpare → AskAhead ─▶ DraftsReady,
                              ▲                                          StepDone → Emit, Finish, AskDrafts ─┐
                              └──────────────────────────── DraftsReady ◀────────────────────────────────────┘

Prompt chunks, plain decoding and drafts to verify are one kind of work: the tokens of the text that aren't
computed yet, then the draft. arrival.py says what is refused, waiting.py and planning.py who runs and with what,
sharing.py what need not be computed, drafting.py what is guessed; advice.py keeps its faults from everyone else.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from services.api.messages import Finished
from services.worker.running.runner import StepWork, Verdict, size_of
from services.worker.scheduling.arrival import failed, make_sequence, refusal
from services.worker.scheduling.events import (
    Arrived,
    AskAhead,
    Cancelled,
    DeadlinePassed,
    DraftAsk,
    DraftsAwaited,
    DraftsReady,
    Drain,
    Emit,
    EngineFailed,
    Event,
    Fail,
    Finish,
    Foresee,
    Forget,
    Instruction,
    PagesLost,
    RunStep,
    StepDone,
    StepWanted,
    SwitchOff,
    TimeToSpare,
    is_replay,
)
from services.worker.scheduling.limits import Limits
from services.worker.scheduling.planning import Planner
from services.worker.scheduling.sequence import NO_DRAFT, Sequence, State, Tally
from services.worker.scheduling.waiting import Queue
from services.worker.speculation.advice import Advice
from services.worker.speculation.cost_model import StepTime
from services.worker.speculation.drafting import Drafting
from services.worker.speculation.tree import CHAIN

# Of the time that a step is expected to run elsewhere, so much may be waited for what was asked ahead.
SPARE_SHARE = 0.5


class Scheduler:
    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.planner = Planner(limits)
        self.pages = self.planner.pages
        self.waiting = self.planner.waiting
        self.running = self.planner.running
        self.step_time = StepTime()
        self.drafting = Drafting(limits, self.step_time)
        self.advice = Advice(self._draft_no_more)
        self.draining = False
        self.tallies: dict[tuple[str, str], Tally] = {}
        self.switched_off: set[str] = set()
        self.prompt_tokens = 0
        self.generated_tokens = 0
        # How requests ended: stop, length, cancelled, or the reason of the failure.
        self.ends: dict[str, int] = {}
        self._streams: dict[int, Sequence] = {}
        self._by_id: dict[int, Sequence] = {}
        self._deadlines: Queue[Sequence] = Queue()
        self._next_id = 1
        self._in_flight: list[StepWork] = []
        # The last step, until there is time to learn from it.
        self._took: tuple[StepDone, list[StepWork]] | None = None
        self._instructions: list[Instruction] = []
        self._forgotten: list[int] = []
        self._learned: list[Sequence] = []

    # What others may ask -------------------------------------------------------------------------------

    @property
    def has_work(self) -> bool:
        return bool(self._streams)

    @property
    def max_length(self) -> int:
        return self.limits.max_length

    @property
    def preemptions(self) -> int:
        return self.planner.preemptions

    @property
    def next_deadline(self) -> float | None:
        """The first moment at which DeadlinePassed would end something."""
        first = self._deadlines.first()
        return None if first is None else float(first[0])

    def sequence_of(self, stream: int) -> Sequence | None:
        """The request that is at work under this name."""
        return self._streams.get(stream)

    def check_idle(self) -> None:
        """Nothing is left of anything once no request is left. Raises AssertionError."""
        assert not self._streams and not self._by_id and not self._deadlines
        assert not self._in_flight
        self.advice(self.drafting.check_idle)
        self.planner.check_idle()

    def fallen(self, verdicts: list[Verdict | None]) -> list[DraftAsk]:
        """What is to be asked about the texts as they will be when StepDone has brought them these verdicts; it says
        the same again then. Asked before anything is done, it is on its way meanwhile."""
        return self.advice(
            self.drafting.fallen, self._in_flight, verdicts, self.running, self.planner.draft_share
        ) or []

    # Events --------------------------------------------------------------------------------------------

    def handle(self, event: Event) -> list[Instruction]:
        self._HANDLERS[type(event)](self, event)
        if self._forgotten:
            self._instructions.append(Forget(self._forgotten, self._learned))
            self._forgotten, self._learned = [], []
        instructions, self._instructions = self._instructions, []
        return instructions

    def _arrived(self, event: Arrived) -> None:
        generate = event.generate
        refused = refusal(generate, self.limits, len(self.waiting), self.draining)
        if refused is not None:
            self._count_end(event.stream, refused.reason)
            self._instructions.append(Fail(event.stream, refused))
            return
        replay = is_replay(event.stream)
        sequence = make_sequence(event, self._next_id, self.limits, {} if replay else self.tallies)
        if replay:
            # It looks for no computed text: it isn't counted among those who did.
            sequence.cached_tokens = 0
        if sequence.method in self.switched_off or self.advice.failed:
            sequence.draft_length = 0
        if sequence.length >= sequence.limit:
            # All that was asked for is there already (max_tokens 0, or an attempt that only missed its end).
            sequence.end_reason = "length"
            self._instructions.append(Finish(event.stream, self._finished(sequence)))
            return
        self._next_id += 1
        self._streams[event.stream] = sequence
        self._by_id[sequence.id] = sequence
        self.advice(self.drafting.joined, sequence)
        if sequence.deadline is not None:
            self._deadlines.put(sequence.deadline, sequence)
        self.waiting.put(sequence)
        if not replay:
            self.prompt_tokens += sequence.prompt_tokens

    def _cancelled(self, event: Cancelled) -> None:
        sequence = self._streams.get(event.stream)
        if sequence is not None:
            self._look_back()
            self._count_end(event.stream, "cancelled")
            self._end(sequence, learned=True)

    def _drafts_awaited(self, event: DraftsAwaited) -> None:
        self.advice(self.drafting.look_out, self.running)

    def _drafts_ready(self, event: DraftsReady) -> None:
        self.advice(self.drafting.take, event, self._by_id)

    def _deadline_passed(self, event: DeadlinePassed) -> None:
        self._look_back()
        while (first := self._deadlines.first()) is not None and first[0] <= event.now:
            self._fail(first[1], "deadline", "the time for this request has passed")

    def _drain(self, event: Drain) -> None:
        self.draining = True

    def _switch_off(self, event: SwitchOff) -> None:
        self.switched_off.add(event.method)
        for sequence in self._streams.values():
            if sequence.method == event.method:
                self.advice(self.drafting.switch_off, sequence)

    def _draft_no_more(self) -> None:
        for sequence in self._streams.values():
            sequence.draft_length = 0
            sequence.draft, sequence.draft_parents = NO_DRAFT, CHAIN
            sequence.lease = sequence.record = None

    def _pages_lost(self, event: PagesLost) -> None:
        self._look_back()
        self._in_flight = []
        self.planner.lose_pages()

    def _engine_failed(self, event: EngineFailed) -> None:
        self._look_back()
        self._in_flight = []
        for sequence in list(self._streams.values()):
            self._fail(sequence, "engine", event.message, retryable=True)
        self.planner.lose_pages()

    # A step --------------------------------------------------------------------------------------------

    def _step_wanted(self, event: StepWanted) -> None:
        assert not self._in_flight, "one step at a time"
        if self.waiting:
            self._look_back()
            self._instructions += self.planner.admit()
        self.advice(self.drafting.choose, self.running)
        self._in_flight = self.planner.plan()
        if self._in_flight:
            self._instructions.append(RunStep(self._in_flight))

    def _time_to_spare(self, event: TimeToSpare) -> None:
        self._look_back()
        if self._took is not None:
            done, work = self._took
            self._took = None
            if done.seconds > 0:
                self._learn_from(work, done)
        self.advice(self.drafting.settle)
        if event.listens and self._in_flight and (asks := self.advice(self.drafting.ahead, self._in_flight)):
            expected = self.step_time.predict(*size_of(self._in_flight))
            self._instructions.append(AskAhead(asks, SPARE_SHARE * expected))

    def _foresee(self, event: Foresee) -> None:
        self.advice(self.drafting.foresee, self._in_flight, self.running)
        self.planner.take_ahead(self._in_flight)

    def _look_back(self) -> None:
        """What needn't be known of the last step before the next one, unless somebody comes or goes: it is counted, and
        its full pages can be found."""
        if self._took is None:
            return
        for item in self._took[1]:
            sequence = item.sequence
            sequence.count()
            if sequence.state is State.RUNNING:
                self.planner.advanced(sequence)

    def _learn_from(self, work: list[StepWork], done: StepDone) -> None:
        self.step_time.learn(*size_of(work), done.seconds)
        self.advice(self.drafting.time_passed, done.seconds)
        self.advice(self.drafting.counts.took, work, done.verdicts, done.seconds, self.step_time)

    def _step_done(self, event: StepDone) -> None:
        work, self._in_flight = self._in_flight, []
        if not work:
            # The step was given up while it ran (PagesLost, EngineFailed).
            return
        assert len(event.verdicts) == len(work), "one verdict for each work"
        self._look_back()
        self._took = event, work
        instructions = self._instructions
        awaited = bool(self.waiting)
        self.advice(self.drafting.judged, work, event.verdicts)
        for item, verdict in zip(work, event.verdicts, strict=True):
            sequence = item.sequence
            if sequence.state is not State.RUNNING:
                continue
            if verdict is None:
                sequence.computed_chunk(len(item.tokens))
                self.planner.advanced(sequence)
                continue
            if not verdict.tokens:
                self.planner.sharing.distrust(sequence)
                self._fail(sequence, "engine", verdict.failure or "the engine gave no token")
                continue
            tokens = sequence.commit(verdict, item.draft, item.parents)
            if awaited or sequence.end_reason is not None:
                self.planner.advanced(sequence)
            if tokens is not None:
                if not is_replay(sequence.stream):
                    self.generated_tokens += len(tokens.ids)
                instructions.append(Emit(sequence.stream, tokens))
            if sequence.end_reason is not None:
                instructions.append(Finish(sequence.stream, self._finished(sequence)))
                self._end(sequence, learned=True)
        if event.listens:
            self._ask_drafts()

    def _ask_drafts(self) -> None:
        asked = self.advice(self.drafting.urgent, self.running, self.planner.draft_share)
        if asked is not None:
            self._instructions.append(asked)

    # Ends ----------------------------------------------------------------------------------------------

    def _finished(self, sequence: Sequence) -> Finished:
        assert sequence.end_reason is not None
        self._count_end(sequence.stream, sequence.end_reason)
        return Finished(
            request_id=sequence.request_id,
            attempt=sequence.attempt,
            reason=sequence.end_reason,
            prompt_tokens=sequence.prompt_tokens,
            cached_tokens=sequence.cached_tokens or 0,
            completion_tokens=sequence.generated,
            stop_token=sequence.stop_token,
            speculation=sequence.stats(),
        )

    def _fail(self, sequence: Sequence, reason: str, message: str, retryable: bool = False) -> None:
        self._count_end(sequence.stream, reason)
        self._instructions.append(Fail(sequence.stream, failed(sequence.generate, reason, message, retryable)))
        self._end(sequence)

    def _count_end(self, stream: int, how: str) -> None:
        if not is_replay(stream):
            self.ends[how] = self.ends.get(how, 0) + 1

    def _end(self, sequence: Sequence, learned: bool = False) -> None:
        """`learned`: whether others may be drafted from what it said, as far as it came, if the request allows it."""
        del self._streams[sequence.stream]
        del self._by_id[sequence.id]
        if sequence.deadline is not None:
            self._deadlines.remove(sequence)
        if is_replay(sequence.stream):
            # Nobody will look for its text: its pages are free, instead of pushing the text of others out.
            self.planner.sharing.distrust(sequence)
            learned = False
        self.planner.end(sequence)
        self.advice(self.drafting.left, sequence)
        self._forgotten.append(sequence.id)
        generate = sequence.generate
        if learned and generate.namespace and generate.speculation.learn and sequence.generated:
            self._learned.append(sequence)

    _HANDLERS: ClassVar[dict[type[Event], Callable[[Scheduler, Any], None]]] = {
        Arrived: _arrived,
        Cancelled: _cancelled,
        DraftsAwaited: _drafts_awaited,
        DraftsReady: _drafts_ready,
        StepWanted: _step_wanted,
        StepDone: _step_done,
        TimeToSpare: _time_to_spare,
        Foresee: _foresee,
        DeadlinePassed: _deadline_passed,
        Drain: _drain,
        PagesLost: _pages_lost,
        SwitchOff: _switch_off,
        EngineFailed: _engine_failed,
    }
