"""The thread that turns the scheduler's wheel: take mail, plan, run, apply, hand over.

Everything that touches the scheduler, the runner and the proposer's link happens here, so none of them needs
a lock. Others only post events. What comes out goes to `deliver` in one call a step, for all sequences.
Waits without spinning when there is nothing to do; what audit.py wants to have computed comes before that, one
replay at a time, and gives way as soon as a request arrives.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
import time
from collections.abc import Callable
from typing import Protocol

import msgspec

from kernels.waiting import Waiting
from services.worker.audit import Audit
from services.worker.running.runner import Runner, StepWork, Verdict, size_of
from services.worker.scheduling.events import (
    Arrived,
    AskAhead,
    AskDrafts,
    Cancelled,
    CopyPage,
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
    RunStep,
    StepDone,
    StepWanted,
    TimeToSpare,
    is_replay,
)
from services.worker.scheduling.scheduler import Scheduler
from services.worker.scheduling.sequence import Sequence
from services.worker.speculation.rehearsal import Play, Rehearsal, Stage
from services.worker.timeline import Timelines

log = logging.getLogger("specmesh.worker")

# Steps handed over and not yet taken. One would do; a few keep the thread from waiting for a busy loop.
HANDED_OVER = 4
# While there is nothing to do, a proposer that didn't hear what has ended is told again so often, in seconds.
TELL_AGAIN = 0.5
# An answer that is waited for is there within so many seconds, as a rule.
AT_ONCE = 2e-4

Delivery = list[Emit | Finish | Fail]
# What is said of a request. Made once: it is looked for in each step.
_SAID = (Emit, Finish, Fail)


class ProposerAt(msgspec.Struct, frozen=True):
    """Where drafts come from now on; "": from nowhere."""

    endpoint: str


class CandidateAt(msgspec.Struct, frozen=True):
    """Who may take over from the one above; "": nobody."""

    endpoint: str


class Drafts(Protocol):
    """What the loop needs of services/worker/speculation/remote/succession.py."""

    def move_to(self, endpoint: str) -> None: ...
    def try_out(self, endpoint: str) -> None: ...
    def forget(self, sequence_ids: list[int], learned: list[Sequence]) -> None: ...
    def listens(self) -> bool: ...
    def ask_ahead(self, asks: list[DraftAsk]) -> None: ...
    def hurry(self, asks: list[DraftAsk]) -> None: ...
    def look(self) -> DraftsReady | None: ...
    def wait_ahead(self, seconds: float) -> DraftsReady | None: ...
    def ask(self, asks: list[DraftAsk], wait: float) -> None: ...
    def collect(self, within: float | None = None) -> DraftsReady | None: ...
    def expects(self) -> bool: ...
    def rehearse(self) -> None: ...
    def rehearsed(self) -> bool: ...
    def rest(self) -> bool: ...
    def close(self) -> None: ...


class Observer(Protocol):
    """Told of each step, once, from the step thread."""

    def after_step(self, rows: int, seconds: float) -> None: ...


class StepLoop:
    def __init__(
        self,
        scheduler: Scheduler,
        runner: Runner,
        drafts: Drafts,
        *,
        deliver: Callable[[Delivery], None],
        failed: Callable[[str], None],
        observer: Observer,
        now: Callable[[], float],
        sleep: Callable[[float], None] = time.sleep,
        audit: Audit | None = None,
    ) -> None:
        """`deliver` and `failed` are called from the step thread; who delivers calls `taken` afterwards. `sleep` goes
        by the time that `now` tells."""
        self.scheduler = scheduler
        self._runner = runner
        self._drafts = drafts
        self._deliver = deliver
        self._failed = failed
        self._observer = observer
        self._now = now
        self._audit = audit or Audit()
        self._timelines = Timelines()
        self._rehearsal = Rehearsal(_stage, self._foresee, drafts, now, sleep)
        self._mail: queue.SimpleQueue[Event | ProposerAt | CandidateAt | None] = queue.SimpleQueue()
        self._room = threading.Semaphore(HANDED_OVER)
        self._out: Delivery = []
        self._stopping = False
        self._asked = False
        # What waits for time to spare: the last step, for the observer; and how long there is to wait for drafts.
        self._observed: tuple[list[StepWork], float] | None = None
        self._wait_ahead = 0.0
        # Whether there may be drafts to look for: what was asked ahead isn't answered yet, or a candidate is heard.
        self._unanswered = False
        self._trying = False
        self._began = 0.0
        self._work: list[StepWork] = []
        self._ran = False
        # When the last piece of work was completed, or work began; None while there is none.
        self._progress_at: float | None = None
        self._thread = threading.Thread(target=self._run, name="step-loop", daemon=True)

    # From other threads ---------------------------------------------------------------------------------

    def start(self) -> None:
        self._thread.start()

    def post(self, event: Event | ProposerAt | CandidateAt) -> None:
        self._mail.put(event)

    def taken(self) -> None:
        """A delivery has been dealt with: there is room for another one."""
        self._room.release()

    def stop(self) -> None:
        """End after the step at work. What runs is neither finished nor failed: do that first."""
        self._stopping = True
        self._mail.put(None)

    def join(self, timeout: float) -> bool:
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def progress_age(self) -> float:
        """Seconds since a step was completed while there is work."""
        at = self._progress_at
        return 0.0 if at is None else max(0.0, self._now() - at)

    # The thread -----------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._stopping:
                self._take_mail()
                if self.scheduler.has_work:
                    self._turn()
                if not self.scheduler.has_work:
                    self._spare(False)
            self._hand_over()
        # The engine is gone, and with it what it computed: say so to everyone, then to the process.
        except Exception as error:
            log.exception("the step loop failed")
            self._fail_all(f"the engine failed: {type(error).__name__}")
        finally:
            self._drafts.close()

    def _take_mail(self) -> None:
        """All events there are; waits for one when there is nothing else to do."""
        if not self.scheduler.has_work:
            self.scheduler.check_idle()
            self._progress_at = None
            self._wait(again=self._drafts.rest())
        # Nobody else takes from it.
        while not self._mail.empty():
            self._dispatch_mail(self._mail.get_nowait())
        if self._progress_at is None and self.scheduler.has_work:
            self._progress_at = self._now()

    def _wait(self, again: bool) -> None:
        """For mail. As long as there is none, the audit may have the machine. `again`: the proposer didn't hear all."""
        replay = self._audit.begin(self._now()) if self._mail.empty() else None
        if replay is not None:
            self._tell([replay])
            return
        with contextlib.suppress(queue.Empty):
            self._dispatch_mail(self._mail.get(timeout=TELL_AGAIN if again else None))

    def _dispatch_mail(self, event: Event | ProposerAt | CandidateAt | None) -> None:
        if isinstance(event, ProposerAt):
            self._drafts.move_to(event.endpoint)
        elif isinstance(event, CandidateAt):
            self._drafts.try_out(event.endpoint)
            self._trying = bool(event.endpoint)
        elif event is not None:
            self._tell(self._before(event))
            self._timelines.hear(event)
            self._tell([event])

    def _before(self, event: Event) -> list[Event]:
        """What the audit makes of mail, before the scheduler hears of it."""
        if isinstance(event, Arrived):
            return self._audit.interrupt()
        if isinstance(event, Drain):
            self._look_back()
            return self._audit.close()
        if isinstance(event, Cancelled) and (sequence := self.scheduler.sequence_of(event.stream)) is not None:
            self._audit.ended(sequence)
        return []

    def _tell(self, events: list[Event]) -> None:
        for event in events:
            self._route(self.scheduler.handle(event))

    def _turn(self) -> None:
        """One step of the whole batch. What the last one brought is handed over while it runs, or while it waits for
        drafts that aren't there by now."""
        self._pass_deadlines()
        if self._asked:
            self._asked = False
            self._route(self.scheduler.handle(DraftsAwaited()))
            drafts = self._drafts.collect(AT_ONCE)
            if drafts is None:
                self._hand_over()
                drafts = self._drafts.collect()
            self._take(drafts)
        self._ran = False
        self._route(self.scheduler.handle(StepWanted()))
        if not self._ran:
            self._hand_over()

    def _take(self, drafts: DraftsReady | None) -> None:
        if drafts is not None:
            self._unanswered = False
            if self._timelines.records:
                self._timelines.proposed(drafts, self._now())
            self._route(self.scheduler.handle(drafts))

    def _pass_deadlines(self) -> None:
        deadline = self.scheduler.next_deadline
        if deadline is not None and deadline <= self._now():
            self._route(self.scheduler.handle(DeadlinePassed(self._now())))

    def _route(self, instructions: list[Instruction]) -> None:
        for instruction in instructions:
            if isinstance(instruction, RunStep):
                self._run_step(instruction)
            elif isinstance(instruction, _SAID):
                if is_replay(instruction.stream):
                    self._tell(self._audit.hear(instruction))
                else:
                    self._out.append(self._timelines.told(instruction) if self._timelines.records else instruction)
            elif isinstance(instruction, CopyPage):
                self._runner.copy_page(instruction.source, instruction.target)
            elif isinstance(instruction, AskDrafts):
                self._drafts.ask(instruction.asks, instruction.wait)
                self._asked = True
                self._timelines.asked(instruction.asks)
            elif isinstance(instruction, AskAhead):
                self._drafts.ask_ahead(instruction.asks)
                self._wait_ahead = instruction.wait
                self._unanswered = True
                self._timelines.asked(instruction.asks)
            elif isinstance(instruction, Forget):
                self._drafts.forget(instruction.sequence_ids, instruction.learned)

    def _run_step(self, step: RunStep) -> None:
        self._ran = True
        self._work = step.work
        self._began = self._now()
        self._stepped(step.work, self._runner.step(step.work, self._spare))

    def _stepped(self, work: list[StepWork], verdicts: list[Verdict | None]) -> None:
        ended = self._now()
        seconds = ended - self._began
        self._progress_at = ended
        # What came meanwhile is there before the verdicts are: it follows the text from where it was asked for.
        if self._unanswered or self._trying:
            self._take(self._drafts.look())
        if not self._unanswered and _some_fell(work, verdicts):
            self._hurry(verdicts)
        listens = self._drafts.listens()
        if self._timelines.records:
            self._timelines.stepped(work, verdicts, self._began, ended)
        self._route(self.scheduler.handle(StepDone(verdicts, seconds, listens)))
        self._observed = work, seconds

    def _hurry(self, verdicts: list[Verdict | None]) -> None:
        """What the next step will wait for is on its way while this one is written down."""
        if asks := self.scheduler.fallen(verdicts):
            self._drafts.hurry(asks)
            self._unanswered = True

    def _spare(self, elsewhere: bool) -> Waiting | None:
        """There is time for what needn't be done between two steps: the next one is on its way, or there is none. What
        is to be done with the rest of it, where the step runs elsewhere."""
        self._route(self.scheduler.handle(TimeToSpare(self._drafts.listens())))
        self._hand_over()
        self._look_back()
        wait_ahead, self._wait_ahead = self._wait_ahead, 0.0
        if not elsewhere:
            self._began = self._now()
            return None
        if wait_ahead > 0:
            self._take(self._drafts.wait_ahead(wait_ahead))
        self._foresee()
        return self._rehearse()

    def _foresee(self) -> None:
        self._route(self.scheduler.handle(Foresee()))

    def _rehearse(self) -> Waiting | None:
        rows, context = size_of(self._work)
        model = self.scheduler.step_time
        # Of steps smaller than any seen it says nothing that could be waited for.
        predicted = model.predict(rows, context) if rows >= model.least_rows else 0.0
        drafts = any(item.sequence.draft_length for item in self._work)
        return self._rehearsal.prepare(self._began, predicted, drafts)

    def _look_back(self) -> None:
        """Those who want to know hear of the last step, and of who ended in it."""
        if self._observed is None:
            return
        work, seconds = self._observed
        self._observed = None
        self._rehearsal.learn(seconds)
        self._observer.after_step(sum(len(item.tokens) for item in work), seconds)
        for item in work:
            if item.sequence.end_reason is not None:
                self._audit.ended(item.sequence)

    def _hand_over(self) -> None:
        if not self._out:
            return
        while not self._room.acquire(timeout=0.1):
            if self._stopping:
                return
        out, self._out = self._out, []
        self._deliver(out)

    def _fail_all(self, message: str) -> None:
        self._look_back()
        self._audit.close()
        self._route(self.scheduler.handle(EngineFailed(message)))
        self._hand_over()
        self._failed(message)
        # Whoever comes while the process is on its way out is told, too.
        while not self._stopping:
            event = self._mail.get()
            if event is None:
                return
            self._dispatch_mail(event)
            if self.scheduler.has_work:
                self._route(self.scheduler.handle(EngineFailed(message)))
            self._hand_over()


def _some_fell(work: list[StepWork], verdicts: list[Verdict | None]) -> bool:
    for item, verdict in zip(work, verdicts, strict=True):
        if verdict is not None and verdict.accepted < len(item.draft):
            return True
    return False


def _stage(play: Play) -> Stage:
    # It is a step loop itself.
    from services.worker.speculation.stage import StepStage

    return StepStage(play)
