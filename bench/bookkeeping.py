"""What a worker does around steps that compute nothing: CPU microseconds of its two threads, in one process.

    engine     ── launch ─┤ the step ├─ between ─ launch ─┤
                          └ beside ┘                         answers of the last step, drafts asked ahead
    event loop            ── loop ──                         answers become messages, and one bundle

If the next step was launched before this one ended, `between` is 0.

Load of others moves CPU time little, so this can be run on a busy machine. Medians over steps in which every sequence
gets its next token; the mock engine's own time isn't counted. `drafted` (a fixed length) and `auto`: each sequence has
a draft, and all of it is accepted; `useless`: nothing of what `auto` asks for is. `periods` and `busy` are wall-clock
measurements while both threads run, and contain the mock engine's own time.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import statistics
import time
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from mesh.codec import Codec
from mesh.metrics import BusMetrics
from mesh.outbox import Outbox
from mesh.stream import StreamWriter
from mesh.transport import Sent
from services.api.drafter import Draft
from services.api.messages import KINDS, Generate, Speculation
from services.api.sampling import Sampling
from services.runtime.process import YOUNG_OBJECTS
from services.worker.engine import Engine
from services.worker.outlet import Outlet, push_all
from services.worker.running.mock import CYCLE, FIRST, MockRunner, Profile
from services.worker.running.work import Result, Work
from services.worker.scheduling.events import Answer, Arrived, Finish
from services.worker.scheduling.limits import limits_of
from services.worker.scheduling.scheduler import Scheduler
from services.worker.speculation.controller import Controller
from services.worker.speculation.guard import GuardedController
from services.worker.speculation.remote import client

SEQUENCES = (1, 16, 64, 256)
# The method of each case, and what its proposer drafts in place of each right token.
CASES: dict[str, tuple[str, Callable[[int], int]]] = {
    "naive": ("naive", lambda token: token),
    "drafted": ("suffix", lambda token: token),
    "auto": ("auto", lambda token: token),
    "useless": ("auto", lambda token: FIRST - 1),
}
PROMPT, LONGEST = 100, 4
# Steps that are not counted, and those that are.
WARM, STEPS = 40, 200
# Of a step of the device in `periods`: milliseconds.
STEP_MS = 1.0
# For `busy`: sequences, milliseconds of a step, tokens of an answer, warm-up steps and measured steps.
CLOSED_LOOP, BUSY_STEPS_MS, ANSWER, BEFORE, MEASURED = (16, 64), (1.0, 3.0), 200, 300, 1500


def measure() -> dict[str, dict[str, dict[str, float]]]:
    """By case and sequences: microseconds of CPU time a step."""
    # As in a worker.
    gc.set_threshold(YOUNG_OBJECTS, 20, 20)
    return {name: {str(count): asyncio.run(_steps(name, count)) for count in SEQUENCES} for name in CASES}


def periods() -> dict[str, float]:
    """By sequences: milliseconds from one step to the next without drafts, on a device that takes STEP_MS for each."""
    gc.set_threshold(YOUNG_OBJECTS, 20, 20)
    return {str(count): round(asyncio.run(_period(count)) * 1e3, 3) for count in SEQUENCES}


def busy() -> dict[str, dict[str, float]]:
    """By step of the device and sequences: the share of the time in which it computes, without drafts, if another
    request comes whenever one ends."""
    gc.set_threshold(YOUNG_OBJECTS, 20, 20)
    return {
        f"steps of {step_ms:g} ms": {str(each): round(asyncio.run(_busy(each, step_ms)), 3) for each in CLOSED_LOOP}
        for step_ms in BUSY_STEPS_MS
    }


class Proposer:
    """In place of the mesh's proposers: it has answered at once."""

    def __init__(self, next_of: Callable[[int], int]) -> None:
        self.clients: dict[str, Any] = {}
        self._next_of = next_of
        self._answers: list[client.Answer] = []

    def listens(self) -> bool:
        return True

    def ask(self, asks: list[client.Ask], wait: float = 0.0, ahead: bool = False) -> bool:
        drafts, asked = [], {}
        for each in asks:
            text, sequence_id = each.sequence.token_ids, each.sequence.sequence_id
            last = (each.ahead or text)[-1]
            tokens = [self._next_of(FIRST + (last - FIRST + 1 + at) % CYCLE) for at in range(each.budget)]
            drafts.append((sequence_id, len(text) + len(each.ahead), Draft(tokens, "bench", 8)))
            asked[sequence_id] = (len(text), each.ahead)
        self._answers.append(client.Answer(drafts, asked, ahead, True, 1e-4))
        return True

    def ask_ahead(self, asks: list[client.Ask]) -> bool:
        return self.ask(asks, ahead=True)

    def look(self) -> list[client.Answer]:
        answers, self._answers = self._answers, []
        return answers

    collect = look

    def forget(self, sequence: Any, learn: bool) -> None: ...
    def close(self) -> None: ...


class Marks(NamedTuple):
    """CPU time of the thread, in seconds, at both ends of a step's launch and of its finish."""

    launch: float
    launched: float
    finish: float
    finished: float


class MarkingRunner(MockRunner):
    def __init__(self) -> None:
        super().__init__(Profile(acceptance=1.0), pages=1 << 15)
        self.marks: list[Marks] = []
        self._launches: deque[tuple[float, float]] = deque()

    def launch(self, work: Work) -> None:
        began = time.thread_time()
        super().launch(work)
        self._launches.append((began, time.thread_time()))

    def finish(self) -> Result:
        began = time.thread_time()
        result = super().finish()
        # As if it had taken a millisecond: what pays depends on it.
        result.seconds = 1e-3
        self.marks.append(Marks(*self._launches.popleft(), began, time.thread_time()))
        return result


class EndsOfSteps(MockRunner):
    """Notes when each step ends, and calls `done` behind the last one that is measured."""

    done: Callable[[], Any]

    def __init__(self, profile: Profile, *, pages: int) -> None:
        super().__init__(profile, pages=pages)
        self.ends: list[float] = []

    def finish(self) -> Result:
        result = super().finish()
        self.ends.append(time.monotonic())
        if len(self.ends) == BEFORE + MEASURED + 1:
            self.done()
        return result


class Reader:
    """The worker's side of one connection, whose other end takes everything at once."""

    def __init__(self) -> None:
        self.outbox = Outbox(1, self._send, list, lambda: None)
        self.bytes = 0
        self.codec, self.metrics = Codec(KINDS), BusMetrics()

    def _send(self, frames: Any) -> Sent:
        self.bytes += sum(map(len, frames))
        return Sent.SENT

    def forget_writer(self, id: int) -> None: ...

    def put_last(self, record: Any) -> None: ...


async def _steps(case: str, sequences: int) -> dict[str, float]:
    runner, delivered = MarkingRunner(), list[list[Answer]]()
    engine, drafts = _engine(runner, case, sequences, delivered.append)
    reader, outlets = _outlets(sequences)
    engine._take_mail()
    loops = []
    for _ in range(WARM + STEPS):
        engine.step()
        began = time.thread_time()
        while delivered:
            engine.answers.taken()
            push_all(outlets, delivered.pop(0))
        reader.outbox.flush()
        loops.append(time.thread_time() - began)
    assert not drafts.failed
    return _told(runner.marks, loops)


async def _period(sequences: int) -> float:
    loop, runner = asyncio.get_running_loop(), MockRunner(Profile(acceptance=1.0, step_ms=STEP_MS), pages=1 << 15)
    ends: list[float] = []
    done = asyncio.Event()

    def take(answers: list[Answer]) -> None:
        ends.append(time.monotonic())
        engine.answers.taken()
        push_all(outlets, answers)
        reader.outbox.flush()
        if len(ends) > WARM + STEPS:
            done.set()

    engine, _ = _engine(runner, "naive", sequences, lambda answers: loop.call_soon_threadsafe(take, answers))
    reader, outlets = _outlets(sequences)
    engine.start()
    await done.wait()
    engine.stop()
    engine.join(10.0)
    return (ends[WARM + STEPS] - ends[WARM]) / STEPS


async def _busy(sequences: int, step_ms: float) -> float:
    loop, runner = asyncio.get_running_loop(), EndsOfSteps(Profile(acceptance=1.0, step_ms=step_ms), pages=1 << 15)
    runner.done = lambda: loop.call_soon_threadsafe(done.set)
    done = asyncio.Event()
    following = itertools.count(sequences)

    def take(answers: list[Answer]) -> None:
        engine.answers.taken()
        push_all(outlets, answers)
        reader.outbox.flush()
        for each in answers:
            if isinstance(each, Finish):
                del outlets[each.sequence_id]
                send(next(following), ANSWER)

    def send(sequence_id: int, tokens: int) -> None:
        outlets[sequence_id] = _outlet(reader, sequence_id)
        engine.post(Arrived(_request(sequence_id, "naive", tokens), sequence_id))

    engine, _ = _engine(runner, "naive", sequences, lambda answers: loop.call_soon_threadsafe(take, answers), sent=0)
    reader, outlets = _outlets(0)
    for each in range(sequences):
        # They end one after the other.
        send(each, 1 + (each + 1) * ANSWER // sequences)
    engine.start()
    await done.wait()
    engine.stop()
    engine.join(10.0)
    first, last = runner.ends[BEFORE], runner.ends[BEFORE + MEASURED]
    return MEASURED * step_ms / 1e3 / (last - first)


def _engine(
    runner: MockRunner, case: str, sequences: int, deliver: Callable[[list[Answer]], Any], sent: int | None = None
) -> tuple[Engine, GuardedController]:
    """An engine that runs up to `sequences` at a time. `sent`: how many requests wait for it; by default as many."""
    method, next_of = CASES[case]
    limits = limits_of(runner.facts, max_sequences=sequences, max_step_tokens=4096, method=method)
    drafts = GuardedController(Controller(limits, Proposer(next_of), now=lambda: 0.0))  # type: ignore[arg-type]
    engine = Engine(Scheduler(limits), runner, drafts, deliver=deliver, failed=print, now=time.monotonic)
    for each in range(sequences if sent is None else sent):
        engine.post(Arrived(_request(each, method), each))
    return engine, drafts


def _outlets(sequences: int) -> tuple[Reader, dict[int, Outlet]]:
    reader = Reader()
    return reader, {each: _outlet(reader, each) for each in range(sequences)}


def _outlet(reader: Reader, sequence_id: int) -> Outlet:
    return Outlet(StreamWriter(reader, sequence_id, 1 << 40, reader.codec, reader.metrics))


def _request(sequence_id: int, method: str, tokens: int = 8000) -> Generate:
    text = [FIRST + (sequence_id + at) % CYCLE for at in range(PROMPT)]
    return Generate(
        request_id=f"chatcmpl-{sequence_id:024x}", attempt=1, token_ids=text, prompt_tokens=len(text),
        sampling=Sampling(max_tokens=tokens), cache_salt=str(sequence_id),
        speculation=Speculation(method=method, num_speculative_tokens=LONGEST),
    )  # fmt: skip


def _told(marks: list[Marks], loops: list[float]) -> dict[str, float]:
    pairs = list(zip(marks, marks[1:], loops, strict=False))[WARM:]
    # The event loop's part is done in this thread between two steps.
    between, beside = [], []
    for before, after, loop in pairs:
        ahead = after.launch < before.finished
        between.append(0.0 if ahead else after.launch - before.finished - loop)
        beside.append(after.finish - (before.finished + loop if ahead else after.launched))
    parts = {"between": between, "beside": beside, "loop": loops[WARM:]}
    return {name: round(statistics.median(part) * 1e6, 1) for name, part in parts.items()}
