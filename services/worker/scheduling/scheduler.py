"""Chooses the sequences of the next step with their rows and pages, and applies a step's result to each request. Events
in, values out: no torch, no sockets, no clock.

Rule 1: each request ends exactly once, with Finish or Fail; a cancelled one ends without output.
Rule 2: requests are ordered by due time (arrival, moved by priority), then by arrival. Of those that run, the first in
        order always gets its rows and pages; those that wait are admitted in that order within an API key, and keys
        have equal shares (shares.py). A key whose requests have all places gives way (planning.py). So no request
        starves.
Rule 3: pages in use + cached + free = all; when no sequence is left, none is in use (`check_idle`).

    Arrived ─▶ waiting ─▶ running ─▶ schedule ─▶ (drafts) ─▶ place ─▶ (the step) ─▶ StepDone ─▶ Emit, Finish, Fail

Prompt chunks, plain decoding and drafts to verify are one kind of work: the tokens of the text that aren't computed
yet, then the draft. arrival.py refuses requests, waiting.py and planning.py choose what runs, prefix.py finds what need
not be computed. Drafts are speculation/'s.

Where all sequences only go on, `go_on` makes the next step of a result that hasn't been taken yet (going_on.py):

    (a step) ─▶ go_on ─▶ (the next step) ─▶ StepDone of the first, while the next one runs

or, without its result, `ahead` makes the next step of one that has been launched. Those that wait may join it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NamedTuple

from services.api.drafter import Draft
from services.api.messages import Finished
from services.api.methods import AUTO
from services.worker.running.work import DraftBudget, NewSequence, Result, SequenceWork, Verdict, Work
from services.worker.scheduling.arrival import failed, make_sequence, refusal
from services.worker.scheduling.events import (
    Arrived,
    Cancelled,
    DeadlinePassed,
    DrainBegan,
    Emit,
    EngineFailed,
    Event,
    Fail,
    Finish,
    Output,
    SequenceEnded,
    StepDone,
)
from services.worker.scheduling.going_on import GoingOn, only_go_on
from services.worker.scheduling.limits import Limits
from services.worker.scheduling.planning import NO_BUDGETS, Plan, Planned, Planner
from services.worker.scheduling.queues import Queue
from services.worker.scheduling.sequence import Sequence, SequenceState, Tally

NO_DRAFTS: Mapping[int, Draft] = {}


class Underway(NamedTuple):
    """A step whose result hasn't been taken."""

    items: list[Planned]
    placed: list[SequenceWork]
    # Made before the result of the step before it was known: some of its sequences may have ended.
    ahead: bool = False


class Scheduler:
    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.planner = Planner(limits)
        self.pages = self.planner.pages
        self.waiting = self.planner.waiting
        self.running = self.planner.running
        self.draining = False
        self.tallies: dict[tuple[str, str], Tally] = {}
        self.prompt_tokens = 0
        self.generated_tokens = 0
        # How requests ended: stop, length, lent (to another worker), cancelled, or the reason of the failure.
        self.ends: dict[str, int] = {}
        self._sequences: dict[int, Sequence] = {}
        self._deadlines: Queue[Sequence] = Queue()
        self._plan: Plan | None = None
        # None, one, or some of which each goes on with the one before.
        self._underway: deque[Underway] = deque()
        self._going_on: GoingOn | None = None
        # The items of sequences that have joined the last step made by `ahead`.
        self.joined: list[Planned] = []
        # Sequences that the runner knows and that have ended: since the last step was made, and before that. It is told
        # of them once no step that runs can have their rows.
        self._ended: list[int] = []
        self._ended_before: list[int] = []
        self._out: list[Output] = []

    # Queries ------------------------------------------------------------------------------------------

    @property
    def has_work(self) -> bool:
        return bool(self._sequences)

    @property
    def max_length(self) -> int:
        return self.limits.max_length

    @property
    def preemptions(self) -> int:
        return self.planner.preemptions

    @property
    def next_deadline(self) -> float | None:
        """The earliest deadline of a request."""
        first = self._deadlines.first()
        return None if first is None else float(first[0])

    def check_idle(self) -> None:
        """Assert that nothing is left once no request is left."""
        assert not self._sequences and not self._deadlines and self._plan is None and not self._underway
        self.planner.check_idle()

    # Events --------------------------------------------------------------------------------------------

    def handle(self, event: Event) -> list[Output]:
        if not isinstance(event, StepDone | Arrived):
            # What comes next is planned.
            self._going_on = None
        self._HANDLERS[type(event)](self, event)
        out, self._out = self._out, []
        return out

    def _arrived(self, event: Arrived) -> None:
        generate = event.generate
        refused = refusal(generate, self.limits, len(self.waiting), self.draining)
        if refused is not None:
            self._count_end(refused.reason)
            self._out.append(Fail(event.sequence_id, refused))
            self.planner.held.release(event.sequence_id)
            return
        sequence = make_sequence(event, self.limits, self.tallies)
        if sequence.length >= sequence.limit and not (sequence.scores or sequence.pooling):
            # Nothing to generate (max_tokens 0, or an earlier attempt lost only its Finished).
            sequence.end_reason = "length"
            self._out.append(Finish(event.sequence_id, self._finished(sequence)))
            self.planner.held.release(event.sequence_id)
            return
        self._sequences[event.sequence_id] = sequence
        if sequence.deadline is not None:
            self._deadlines.put(sequence.deadline, sequence)
        self.waiting.put(sequence)
        if not sequence.lent:
            # The worker that goes on with it counts it.
            self.prompt_tokens += sequence.prompt_tokens

    def _cancelled(self, event: Cancelled) -> None:
        sequence = self._sequences.get(event.sequence_id)
        if sequence is not None:
            self._count_end("cancelled")
            self._end(sequence, learn=True)

    def _deadline_passed(self, event: DeadlinePassed) -> None:
        while (first := self._deadlines.first()) is not None and first[0] <= event.now:
            self._fail(first[1], "deadline", "the time for this request has passed")

    def _drain_began(self, event: DrainBegan) -> None:
        self.draining = True

    def _engine_failed(self, event: EngineFailed) -> None:
        self._plan = None
        self._underway.clear()
        for sequence in list(self._sequences.values()):
            self._fail(sequence, "engine", event.message, retryable=True)
        self.planner.sharing.forget_all()

    # A step --------------------------------------------------------------------------------------------

    def schedule(self) -> Plan:
        """The next step, before its drafts."""
        assert self._plan is None and not self._underway, "one step at a time"
        self._going_on = None
        self._plan = self.planner.plan(self.planner.admit() if self.waiting else [])
        return self._plan

    def place(self, drafts: Mapping[int, Draft] = NO_DRAFTS, budgets: Mapping[int, DraftBudget] = NO_BUDGETS) -> Work:
        """The scheduled step with these drafts, by sequence. `budgets`: tokens that the worker's head is to
        draft after it, by sequence."""
        assert self._plan is not None
        plan, self._plan = self._plan, None
        items = self.planner.place(plan, drafts, budgets)
        self._underway.append(Underway(plan.items, items))
        return Work(items, self._new(plan), self._all_ended(), plan.copies, self.planner.sharing.take_state_copies())

    def go_on(self, result: Result) -> Work | None:
        """The step after the one that has this result, if nothing is to be decided for it. StepDone, with the result,
        comes behind; all other events behind that. None: first take the result, then schedule."""
        assert len(self._underway) == 1
        going_on = None if self.planner.may_admit() else self._goes_on()
        following = None if going_on is None else going_on.next(result.verdicts)
        if going_on is None or following is None:
            self._going_on = None
            return None
        self._underway.append(Underway(going_on.items, following))
        return Work(following, ended=self._all_ended())

    def ahead(self) -> Work | None:
        """The step after the last one, whose result isn't known: its tokens are fed to it. Once that is known, `saw` is
        told, and its StepDone comes behind. Those that wait join it, if nobody must give way to them. None: wait for
        the last step."""
        self.joined = []
        going_on = None if self.planner.may_replace() else self._goes_on()
        found = None if going_on is None else going_on.ahead()
        if going_on is None or found is None:
            self._going_on = None
            return None
        following, fed = found
        work = Work(following, fed=fed)
        items = going_on.items
        if self.waiting:
            plan = self.planner.plan_beside()
            self.joined = plan.items
            placed = self.planner.place_beside(plan)
            items, work.items = items + plan.items, following + placed
            work.new, work.copies = self._new(plan), plan.copies
            if only_go_on(plan.items, placed):
                going_on.join(plan.items, placed)
            else:
                self._going_on = None
        self._underway.append(Underway(items, work.items, ahead=True))
        # Those that have ended since may be in the step before.
        work.ended, self._ended_before, self._ended = self._ended_before, self._ended, []
        return work

    def saw(self, result: Result) -> None:
        """That of the step before one that was made ahead."""
        if self._going_on is not None:
            self._going_on.saw(result.verdicts)

    def _goes_on(self) -> GoingOn | None:
        """None: something is to be decided for the next step, as far as the last one shows."""
        items, placed, ahead = self._underway[-1]
        left = () if self._going_on is None else self._going_on.left
        if len(items) + sum(each.state is SequenceState.RUNNING for each in left) < len(self.running):
            return None
        if self._going_on is None and not ahead and all(map(_runs, items)) and only_go_on(items, placed):
            self._going_on = GoingOn(items, placed, self.pages, self.limits.page_tokens)
        return self._going_on

    def took(self, rows: int, seconds: float) -> None:
        """The time of a step of so many rows."""
        if self.planner.pace is not None:
            self.planner.pace.took(rows, seconds)

    def _all_ended(self) -> list[int]:
        ended, self._ended_before, self._ended = self._ended_before + self._ended, [], []
        return ended

    def _new(self, plan: Plan) -> list[NewSequence]:
        """Those that the runner doesn't know."""
        return [self._introduced(item.sequence) for item in plan.items if not item.sequence.introduced]

    def _introduced(self, sequence: Sequence) -> NewSequence:
        sequence.introduced = True
        return NewSequence(
            sequence.sequence_id, sequence.sampling, sequence.verification, sequence.prompt_tokens,
            sequence.token_ids[:], sequence.drafter, sequence.trees, sequence.lent, sequence.method == AUTO,
            sequence.pooling,
        )  # fmt: skip

    def _step_done(self, event: StepDone) -> None:
        items, placed, _ = self._underway.popleft()
        result = event.result
        assert len(result.verdicts) == len(items), "one verdict for each item"
        if result.prompt_logprobs or result.embeddings:
            self._take_of_prompts(items, result)
        for item, verdict, work in zip(items, result.verdicts, placed, strict=True):
            # Others have ended since.
            if _runs(item):
                self._commit(item, verdict, work.draft)

    def _take_of_prompts(self, items: list[Planned], result: Result) -> None:
        """What the step computed of prompts beside keys and values."""
        for sequence in (item.sequence for item in items if _runs(item)):
            if (scored := result.prompt_logprobs.get(sequence.sequence_id)) is not None:
                self._out += [Emit(sequence.sequence_id, tokens) for tokens in sequence.told_of_prompt(scored)]
            sequence.embedding = result.embeddings.get(sequence.sequence_id, sequence.embedding)

    def _commit(self, item: Planned, verdict: Verdict | None, draft: Draft) -> None:
        sequence = item.sequence
        if verdict is None:
            sequence.computed_chunk(item.count)
            self.planner.advanced(sequence)
            return
        if not verdict.tokens and not sequence.embedding:
            if verdict.reason == "engine":
                self.planner.sharing.distrust(sequence)
            self._fail(sequence, verdict.reason, verdict.failure or "the engine gave no token")
            return
        tokens = sequence.commit(verdict, draft)
        self.planner.advanced(sequence)
        if tokens is not None:
            self.generated_tokens += len(tokens.ids)
            self._out.append(Emit(sequence.sequence_id, tokens))
        if sequence.end_reason is not None:
            self._out.append(Finish(sequence.sequence_id, self._finished(sequence)))
            self._end(sequence, learn=True)

    # Ends ----------------------------------------------------------------------------------------------

    def _finished(self, sequence: Sequence) -> Finished:
        assert sequence.end_reason is not None
        self._count_end("lent" if sequence.lent else sequence.end_reason)
        return Finished(
            request_id=sequence.request_id,
            attempt=sequence.attempt,
            reason=sequence.end_reason,
            prompt_tokens=sequence.prompt_tokens,
            cached_tokens=sequence.cached_tokens or 0,
            completion_tokens=sequence.generated,
            stop_token=sequence.stop_token,
            speculation=sequence.stats(),
            embedding=sequence.embedding,
        )

    def _fail(self, sequence: Sequence, reason: str, message: str, retryable: bool = False) -> None:
        self._count_end(reason)
        self._out.append(Fail(sequence.sequence_id, failed(sequence.generate, reason, message, retryable)))
        self._end(sequence)

    def _count_end(self, how: str) -> None:
        self.ends[how] = self.ends.get(how, 0) + 1

    def _end(self, sequence: Sequence, learn: bool = False) -> None:
        """`learn`: drafters may learn from the text so far, if the request allows it."""
        del self._sequences[sequence.sequence_id]
        if sequence.deadline is not None:
            self._deadlines.remove(sequence)
        self.planner.end(sequence)
        if sequence.introduced:
            self._ended.append(sequence.sequence_id)
        generate = sequence.generate
        may_learn = bool(generate.namespace) and generate.speculation.learn and sequence.generated > 0
        self._out.append(SequenceEnded(sequence, learn and may_learn))

    _HANDLERS: ClassVar[dict[type[Event], Callable[[Scheduler, Any], None]]] = {
        Arrived: _arrived,
        Cancelled: _cancelled,
        DeadlinePassed: _deadline_passed,
        DrainBegan: _drain_began,
        StepDone: _step_done,
        EngineFailed: _engine_failed,
    }


def _runs(item: Planned) -> bool:
    return item.sequence.state is SequenceState.RUNNING
