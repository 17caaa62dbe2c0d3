"""The engine: a thread that computes one step after another.

    schedule ─▶ draft ─▶ run ─▶ commit ─▶ emit ─▶ head

schedule  choose the sequences, their prompt tokens, and the rows left for drafts (scheduling/)
draft     hand out prepared drafts; this alone may wait for more (speculation/)
run       the runner takes Work and returns Result, both plain values (running/); meanwhile the proposer is asked for
          the next drafts
commit    the scheduler and the controller of drafts take the result
emit      tokens and ends go out, for all sequences in one call, and costs are learned; on a GPU while the next step
          runs, because the event loop, which sends them, takes the interpreter from this thread
head      the worker's head drafts for the next step; meanwhile the proposer does

On a GPU the next step of a batch that only goes on, without drafts of text or of the head, is launched before the last
one is committed (scheduling/going_on.py):

    run ─▶ launch ─▶ commit, emit ─▶ run ─▶ launch …

If the runner can read that one's tokens on the device, the step is launched even before that one has ended, so that
the device doesn't wait for the host. Requests that have arrived join it:

    launch 2 ─▶ commit, emit 0 ─▶ end of 1 ─▶ launch 3 ─▶ commit, emit 1 ─▶ end of 2 …

Only this thread touches scheduler, runner and drafts, so none of them needs a lock; other threads post events.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
from collections.abc import Callable

from services.worker.deliveries import Deliveries
from services.worker.handover.lend import Lending
from services.worker.mail import CallBack, Mail, ProposersMoved
from services.worker.running.runner import Runner
from services.worker.running.work import Drafted, Result, Work, size_of
from services.worker.scheduling import events
from services.worker.scheduling.events import Answer, Emit, Output, SequenceEnded
from services.worker.scheduling.scheduler import Scheduler
from services.worker.speculation.guard import GuardedController
from services.worker.timeline import Timelines

log = logging.getLogger("specmesh.worker")

# Seconds between attempts to tell the proposer which sequences have ended, while there is no other work.
TELL_AGAIN = 0.5


class Engine:
    def __init__(
        self,
        scheduler: Scheduler,
        runner: Runner,
        drafts: GuardedController,
        *,
        deliver: Callable[[list[Answer]], None],
        failed: Callable[[str], None],
        now: Callable[[], float],
        timelines: Timelines | None = None,
        observe: Callable[[int, float], None] = lambda rows, seconds: None,
        record: Callable[[Work, Result], None] | None = None,
        lending: Lending | None = None,
        together: float = 0.0,
    ) -> None:
        """`deliver` and `failed` are called in the engine's thread; after each delivery `answers.taken` must be called.
        `observe` gets the rows and seconds of each step, `record` its work and result. `lending`: pages that other
        workers have asked for. `together`: as Deliveries has it."""
        self.scheduler = scheduler
        self.drafts = drafts
        self.answers = Deliveries(deliver, now, together)
        self._runner = runner
        self._failed = failed
        self._now = now
        self._timelines = timelines or Timelines()
        self._observe = observe
        self._record = record
        self._lending = lending
        self._mail: queue.SimpleQueue[Mail | None] = queue.SimpleQueue()
        self._stopping = False
        # Whether a step may be launched before the last one's result is taken, if no draft of the head comes between.
        self._overlaps = runner.elsewhere
        # The step behind the running one, if it was launched before that one's end.
        self._ahead: Work | None = None
        # The last step, as long as its result wasn't taken.
        self._untaken: tuple[Work, Result] | None = None
        # The last step, as long as nothing has been learned of it.
        self._unlearned: tuple[Work, Result] | None = None
        # When the last step was completed, or work began; None while there is none.
        self._progress_at: float | None = None
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    # From other threads ---------------------------------------------------------------------------------

    def start(self) -> None:
        self._thread.start()

    def post(self, event: Mail) -> None:
        self._mail.put(event)

    def stop(self) -> None:
        """End after the running step. Requests still running get no end from here: drain first."""
        self._stopping = True
        self.answers.close()
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
                    self.step()
        # What the engine computed is lost: fail every request, then tell the process.
        except Exception as error:
            log.exception("the engine failed")
            self._fail_all(f"the engine failed: {type(error).__name__}")
        finally:
            self.drafts.close()

    def step(self) -> None:
        """One step of the whole batch. Its result may be taken behind the launch of the next one."""
        work, self._ahead = self._ahead, None
        if work is None and (work := self._go_on()) is not None:
            self._runner.launch(work)
        goes_on = work is not None
        if work is None:
            self._take()
            if not self.scheduler.has_work:
                return
            work = self._planned()
            self._runner.launch(work)
        self._untaken = self._compute(work, goes_on)
        drafts_next = not goes_on and any(item.next_budget for item in work.items)
        if self._runner.drafters and not drafts_next:
            # They are only told of the step.
            self._told(self._runner.draft())
        if self._overlaps and not self._lending and not drafts_next:
            return
        self._take()
        if drafts_next:
            self._emit()
            self.drafts.ask_beside(work)
            drafted = self._runner.draft()
            self.drafts.take_head(work, drafted)
            self._told(drafted)
        if self._lending:
            # Behind the worker's head, whose layers are part of the pages.
            self._lending.look()

    def _told(self, drafted: Drafted) -> None:
        if drafted.lost:
            self.drafts.lose_head(drafted.lost)

    def _go_on(self) -> Work | None:
        """The next step, if nothing is to be decided for it."""
        if self._untaken is None or self._lending or not self.drafts.rest():
            return None
        return self.scheduler.go_on(self._untaken[1])

    def _planned(self) -> Work:
        plan = self.scheduler.schedule()
        drafts, budgets = self.drafts.draft(plan)
        if longest := plan.grammar_drafts:
            drafts |= self._runner.grammar_drafts(drafts, longest)
        return self.scheduler.place(drafts, budgets)

    def _compute(self, work: Work, goes_on: bool) -> tuple[Work, Result]:
        """A step that has been launched. `goes_on`: nothing was decided for it."""
        began = self._now()
        at_once = goes_on and self._mail.empty()
        if at_once:
            self._launch_ahead()
        self._take()
        self._emit(more_soon=not any(len(item.tokens) > 1 for item in work.items))
        self.drafts.ask_ahead(work)
        if not at_once and self._runner.feeds and not self._lending:
            # What has arrived may join it.
            self._hear_all()
            self._launch_ahead()
        result = self._runner.finish()
        self._progress_at = ended = self._now()
        if self._ahead is not None:
            self.scheduler.saw(result)
        if self._record is not None:
            self._record(work, result)
            self._ahead = None if self._ahead is None else self._ahead.known(result)
        if self._timelines.records:
            self._timelines.stepped(work, result, began, ended)
        return work, result

    def _launch_ahead(self) -> None:
        """The step behind the running one."""
        if self._runner.feeds and not self._lending and self.drafts.rest():
            self._ahead = self.scheduler.ahead()
            if self._ahead is not None:
                self._runner.launch(self._ahead)
                if joined := self.scheduler.joined:
                    self.drafts.joined(joined, len(self._ahead.items))

    def _take(self) -> None:
        """Take the last step's result, if that wasn't done."""
        if self._untaken is None:
            return
        (work, result), self._untaken = self._untaken, None
        out = self.scheduler.handle(events.StepDone(result))
        self.drafts.commit(work, result)
        self._collect(out)
        self._unlearned = work, result
        if not self._overlaps or not self.scheduler.has_work:
            self._emit()

    def _emit(self, more_soon: bool = False) -> None:
        """What the next step doesn't need of the last one."""
        self.answers.send(more_soon)
        if self._unlearned is not None:
            (work, result), self._unlearned = self._unlearned, None
            size = size_of(work.items)
            self._observe(size.rows, result.seconds)
            self.scheduler.took(size.rows, result.seconds)
            self.drafts.learn(work, result, size)

    def _take_mail(self) -> None:
        """Handle all waiting events; wait for one if there is nothing else to do."""
        if not self.scheduler.has_work:
            if self._ahead is not None:
                # It was launched before the end of all of its sequences was known.
                self._untaken, self._ahead = (self._ahead, self._runner.finish()), None
            self._take()
            self._rest()
        self._hear_all()
        if (deadline := self.scheduler.next_deadline) is not None and deadline <= self._now():
            self._take()
            self._pass_on(self.scheduler.handle(events.DeadlinePassed(self._now())))
        if self._progress_at is None and self.scheduler.has_work:
            self._progress_at = self._now()

    def _hear_all(self) -> None:
        while not self._mail.empty():
            self._take()
            self._hear(self._mail.get_nowait())

    def _rest(self) -> None:
        self.scheduler.check_idle()
        self.drafts.check_idle()
        self._progress_at = None
        # A request that has already arrived must not wait for the proposer.
        unheard = self._mail.empty() and self.drafts.tell()
        with contextlib.suppress(queue.Empty):
            self._hear(self._mail.get(timeout=TELL_AGAIN if unheard else None))

    def _hear(self, event: Mail | None) -> None:
        if isinstance(event, ProposersMoved):
            self.drafts.move_to(event.ready)
        elif isinstance(event, CallBack):
            event.function()
        elif event is not None:
            out = self.scheduler.handle(event)
            self._timelines.hear(event)
            self._pass_on(out)

    def _pass_on(self, out: list[Output]) -> None:
        self._collect(out)
        self.answers.send()
        if self._lending:
            self._lending.look()

    def _collect(self, out: list[Output]) -> None:
        for item in out:
            if isinstance(item, SequenceEnded):
                self.drafts.forget(item.sequence, item.learn)
            else:
                if self._lending and not isinstance(item, Emit):
                    self._lending.sequence_ended(item.sequence_id)
                self.answers.add(self._timelines.told(item) if self._timelines.records else item)

    def _fail_all(self, message: str) -> None:
        self._untaken = self._ahead = None
        self._pass_on(self.scheduler.handle(events.EngineFailed(message)))
        self._failed(message)
        # Requests that arrive until the process ends fail, too.
        while not self._stopping:
            event = self._mail.get()
            if event is not None:
                self._hear(event)
                self._pass_on(self.scheduler.handle(events.EngineFailed(message)))
