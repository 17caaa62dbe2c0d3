"""Which child processes should run: a state machine that takes events and returns instructions.

It knows names, exit codes and times. It knows no process, signal handler, socket or clock:
`mesh/supervisor/processes.py` carries the instructions out and reports what happened.

    waiting ──(all of `after` ready or failed)──▶ running ──exit──▶ backing_off ──delay──▶ running
                                                     │                   │ more than `max_crashes` in `within`,
                                                     │                   │ or at once when it says EXIT_CONFIG
                                                     │ stop              ▼
                                                     ▼                 failed (with its reason), and running
                                                  stopping ─▶ stopped  again after `retry_failed_after`

Children are replaced one at a time when that is asked: the next is drained once all others of them are ready again.
"""

from __future__ import annotations

import signal
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

# A role whose epoch was fenced ends with this code: it is to be started again at once, and nothing is wrong
# with it. 75 is EX_TEMPFAIL, which other supervisors (systemd, compose) restart, too.
EXIT_FENCED = 75
# What a child was given (a model, a setting) is wrong, and another try would end the same: it is failed at once.
# 78 is EX_CONFIG.
EXIT_CONFIG = 78

ChildState = Literal["waiting", "running", "backing_off", "failed", "stopping", "stopped"]


@dataclass(frozen=True, slots=True)
class Child:
    """What is to run. Children of a higher stage are drained before those of a lower one. `env` is the whole
    environment; empty: the supervisor's."""

    name: str
    command: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    after: tuple[str, ...] = ()
    stage: int = 0


@dataclass(frozen=True, slots=True)
class Policy:
    first_delay: float = 0.1  # s
    growth: float = 2.0
    longest_delay: float = 5.0  # s
    # A child that ran this long is forgiven its earlier crashes when it next ends.
    calm: float = 10.0  # s
    max_crashes: int = 3
    within: float = 10.0  # s
    # A failed child is tried again after this (0: never): a proposer killed often must not be gone for good.
    retry_failed_after: float = 10.0  # s
    # How long a child that was ready may be without progress before it is killed and restarted; 0: for ever.
    kill_stuck_after: float = 0.0  # s
    # How long a stage may take to end after SIGTERM before it is killed.
    drain_timeout: float = 30.0  # s


# Events -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Begin:
    pass


@dataclass(frozen=True, slots=True)
class Readiness:
    name: str
    ready: bool


@dataclass(frozen=True, slots=True)
class Fenced:
    """Others have taken its work: whatever it still does is dropped."""

    name: str


@dataclass(frozen=True, slots=True)
class Exited:
    name: str
    code: int  # negative: killed by that signal
    last_lines: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Tick:
    pass


@dataclass(frozen=True, slots=True)
class StopAsked:
    """The first asks for a drain, the second for an end at once."""


@dataclass(frozen=True, slots=True)
class RollAsked:
    """These are to be replaced, one after the other: drained, and started again."""

    names: tuple[str, ...]


Event = Begin | Readiness | Fenced | Exited | Tick | StopAsked | RollAsked

# Instructions -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Launch:
    name: str


@dataclass(frozen=True, slots=True)
class Send:
    name: str
    signal: signal.Signals


@dataclass(frozen=True, slots=True)
class Report:
    """Something a person should read."""

    name: str
    text: str


@dataclass(frozen=True, slots=True)
class GaveUp:
    """The child crashed too often and is left alone for a while; the reason is what it said last."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class Ended:
    """Asked to stop, and no child is left."""


Instruction = Launch | Send | Report | GaveUp | Ended


@dataclass(slots=True)
class _Record:
    child: Child
    state: ChildState = "waiting"
    ready: bool = False
    was_ready: bool = False
    unready_since: float | None = None
    launched_at: float = 0.0
    launch_at: float | None = None
    delay: float = 0.0
    crashes: deque[float] = field(default_factory=deque)
    killed: bool = False  # as stuck or fenced
    leaving: bool = False  # told to drain, and to be started again


class Supervisor:
    """`handle` is the whole of it; `next_wake` says when the next Tick can change something."""

    def __init__(self, children: Iterable[Child], policy: Policy | None = None) -> None:
        self.policy = policy or Policy()
        self._records = {child.name: _Record(child) for child in children}
        for record in self._records.values():
            unknown = [name for name in record.child.after if name not in self._records]
            if unknown:
                raise ValueError(f"{record.child.name} waits for unknown children: {', '.join(unknown)}")
        self._stopping = False
        self._killing = False
        self._ended = False
        self._stage_deadline: float | None = None
        # Those that are replaced together, who is still to come, whose turn it is, and when it is killed.
        self._rolled: tuple[str, ...] = ()
        self._to_roll: deque[str] = deque()
        self._rolling: str | None = None
        self._leave_deadline: float | None = None

    def state(self, name: str) -> ChildState:
        return self._records[name].state

    def children(self) -> Sequence[Child]:
        return [record.child for record in self._records.values()]

    def handle(self, event: Event, now: float) -> list[Instruction]:
        match event:
            case Begin() | Tick():
                pass
            case Readiness(name, ready):
                self._note_readiness(self._records[name], ready, now)
            case Fenced(name):
                return self._kill_fenced(self._records[name]) + self._advance(now)
            case Exited():
                return self._exited(self._records[event.name], event, now) + self._advance(now)
            case StopAsked():
                return self._stop_asked(now) + self._advance(now)
            case RollAsked(names):
                self._rolled = names
                self._to_roll = deque(names)
        return self._advance(now)

    def next_wake(self, now: float) -> float | None:
        """Seconds until a Tick is worth sending; None: only events matter."""
        times = [record.launch_at for record in self._records.values() if record.launch_at is not None]
        if self._stage_deadline is not None:
            times.append(self._stage_deadline)
        if self._leave_deadline is not None:
            times.append(self._leave_deadline)
        if self.policy.kill_stuck_after and not self._stopping:
            times += [
                record.unready_since + self.policy.kill_stuck_after
                for record in self._records.values()
                if record.unready_since is not None and record.state == "running" and not record.killed
            ]
        return max(0.0, min(times) - now) if times else None

    # What time and readiness allow, in the order a mesh lives through it --------------------------------

    def _advance(self, now: float) -> list[Instruction]:
        if self._ended:
            return []
        if self._stopping:
            return self._drain_further(now)
        return self._launch_due(now) + self._kill_stuck(now) + self._roll(now)

    def _launch_due(self, now: float) -> list[Instruction]:
        out: list[Instruction] = []
        for record in self._records.values():
            waiting_over = record.state == "waiting" and all(map(self._settled, record.child.after))
            delay_over = (
                record.state in ("backing_off", "failed") and record.launch_at is not None and now >= record.launch_at
            )
            if waiting_over or delay_over:
                self._to_running(record, now)
                out.append(Launch(record.child.name))
        return out

    def _settled(self, name: str) -> bool:
        # A failed child isn't waited for: those after it start and say themselves what they miss.
        record = self._records[name]
        return record.was_ready or record.state == "failed"

    def _kill_stuck(self, now: float) -> list[Instruction]:
        limit = self.policy.kill_stuck_after
        out: list[Instruction] = []
        if not limit:
            return out
        for record in self._records.values():
            since = record.unready_since
            if record.state == "running" and since is not None and now - since >= limit and not record.killed:
                record.killed = True
                out.append(
                    Report(record.child.name, f"no progress for {now - since:.1f} s: killed, to be started again")
                )
                out.append(Send(record.child.name, signal.SIGKILL))
        return out

    # Replacing, one at a time -----------------------------------------------------------------------------

    def _roll(self, now: float) -> list[Instruction]:
        if self._rolling is None:
            return self._roll_next(now)
        record = self._records[self._rolling]
        name = record.child.name
        if record.leaving:
            if self._leave_deadline is None or now < self._leave_deadline:
                return []
            # Sent again should it not have been heard.
            self._leave_deadline = now + 1.0
            return [Send(name, signal.SIGKILL)]
        if record.state == "failed":
            self._rolling = None
            self._to_roll.clear()
            return [Report(name, "was not replaced, and those after it stay as they are: it doesn't start again")]
        if not record.ready:
            return []
        self._rolling = None
        return [Report(name, "was replaced"), *self._roll_next(now)]

    def _roll_next(self, now: float) -> list[Instruction]:
        """The next is drained when all the others can do its work."""
        if not self._to_roll:
            return []
        name = self._to_roll[0]
        record = self._records[name]
        if record.state != "running" or not all(self._records[each].ready for each in self._rolled if each != name):
            return []
        self._rolling = self._to_roll.popleft()
        record.leaving = True
        self._leave_deadline = now + self.policy.drain_timeout
        return [Report(name, "is being replaced: draining"), Send(name, signal.SIGTERM)]

    def _kill_fenced(self, record: _Record) -> list[Instruction]:
        """When it wakes it ends by itself: there is nothing to wait for."""
        if record.state != "running" or record.killed or self._stopping:
            return []
        record.killed = True
        name = record.child.name
        return [Report(name, "fenced: killed, to be started again"), Send(name, signal.SIGKILL)]

    def _note_readiness(self, record: _Record, ready: bool, now: float) -> None:
        if record.state != "running":
            return
        record.ready = ready
        if ready:
            record.was_ready = True
            record.unready_since = None
        elif record.was_ready and record.unready_since is None and record.launched_at < now:
            record.unready_since = now

    # Ends and restarts ----------------------------------------------------------------------------------

    def _exited(self, record: _Record, event: Exited, now: float) -> list[Instruction]:
        if record.state != "running" or self._stopping:
            self._to_stopped(record)
            return []
        if record.leaving:
            record.leaving = False
            self._leave_deadline = None
            self._running_to_backing_off(record, now, delay=0.0)
            return []
        ran = now - record.launched_at
        name = record.child.name
        # The guard on `ran` keeps two processes of one name, which fence each other, from spinning.
        if event.code == EXIT_FENCED and ran >= 1.0:
            self._running_to_backing_off(record, now, delay=0.0)
            return [Report(name, "was taken for lost and woke up: starting again")]
        if event.code == EXIT_CONFIG:
            return [self._running_to_failed(record, event, now)]
        if ran >= self.policy.calm:
            record.crashes.clear()
            record.delay = 0.0
        record.crashes.append(now)
        while now - record.crashes[0] > self.policy.within:
            record.crashes.popleft()
        if len(record.crashes) > self.policy.max_crashes:
            return [self._running_to_failed(record, event, now)]
        record.delay = min(max(self.policy.first_delay, record.delay * self.policy.growth), self.policy.longest_delay)
        self._running_to_backing_off(record, now, record.delay)
        return [Report(name, f"{describe_exit(event.code)} after {ran:.1f} s: starting again in {record.delay:.1f} s")]

    # Stopping: one stage after the other, the highest first ---------------------------------------------

    def _stop_asked(self, now: float) -> list[Instruction]:
        if self._stopping:
            self._killing = True
            self._stage_deadline = now
            return []
        self._stopping = True
        self._leave_deadline = None
        for record in self._records.values():
            record.launch_at = None
            if record.state in ("waiting", "backing_off"):
                self._to_stopped(record)
        return []

    def _drain_further(self, now: float) -> list[Instruction]:
        out: list[Instruction] = []
        live = [record for record in self._records.values() if record.state in ("running", "stopping")]
        if not live:
            self._ended = True
            self._stage_deadline = None
            return [Ended()]
        stage = max(record.child.stage for record in live)
        for record in live:
            if record.state == "running" and record.child.stage == stage:
                self._running_to_stopping(record)
                out.append(Send(record.child.name, signal.SIGTERM))
                if not self._killing:
                    self._stage_deadline = now + self.policy.drain_timeout
        if self._stage_deadline is not None and now >= self._stage_deadline:
            doomed = live if self._killing else [record for record in live if record.state == "stopping"]
            out += [Send(record.child.name, signal.SIGKILL) for record in doomed]
            for record in doomed:
                record.state = "stopping"
            # Sent again should the first SIGKILL have raced with the launch.
            self._stage_deadline = now + 1.0
        return out

    # Transitions ----------------------------------------------------------------------------------------

    def _to_running(self, record: _Record, now: float) -> None:
        record.state = "running"
        record.launched_at = now
        record.launch_at = None
        record.killed = False

    def _running_to_backing_off(self, record: _Record, now: float, delay: float) -> None:
        record.state = "backing_off"
        record.launch_at = now + delay
        self._forget_readiness(record)

    def _running_to_failed(self, record: _Record, event: Exited, now: float) -> GaveUp:
        record.state = "failed"
        if self.policy.retry_failed_after:
            record.launch_at = now + self.policy.retry_failed_after
        self._forget_readiness(record)
        said = "\n".join(event.last_lines[-5:]).strip()
        how = f"{describe_exit(event.code)}, more than {self.policy.max_crashes} times in {self.policy.within:g} s"
        if event.code == EXIT_CONFIG:
            how = "what it was given is wrong"
        return GaveUp(record.child.name, f"{how}\n{said}" if said else how)

    def _running_to_stopping(self, record: _Record) -> None:
        record.state = "stopping"

    def _to_stopped(self, record: _Record) -> None:
        record.state = "stopped"
        self._forget_readiness(record)

    def _forget_readiness(self, record: _Record) -> None:
        record.ready = record.was_ready = False
        record.unready_since = None


def describe_exit(code: int) -> str:
    """An exit status in words."""
    if code >= 0:
        return f"ended with code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"
