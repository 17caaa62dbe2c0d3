"""A step thread of one stream, seen between its steps; for bench/step_overhead.py, whose proposer is a real one.

And what the thread itself does there, in microseconds of processor time with warm caches: the steps take no time, they
move a clock, and the proposer is a line in the same thread that answers at once, with drafts of which most stand. So
nothing is waited for and nothing else runs meanwhile. What becomes of a processor's caches in the milliseconds of a
real step comes on top of that.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from mesh.address import new_epoch
from services.api.messages import Generate, Sampling, Speculation
from services.worker.engine import StepLoop
from services.worker.running.mock import MockRunner, Profile
from services.worker.scheduling.events import Arrived
from services.worker.scheduling.limits import Limits
from services.worker.scheduling.scheduler import Scheduler
from services.worker.speculation.remote.proposer_link import Link, ProposerLink
from services.worker.speculation.stage import AnswersAtOnce

# Rows are dear enough that drafts are short, and a continuation lasts for some steps.
PROFILE = {"step_ms": 5.0, "row_us": 400.0, "acceptance": 0.97, "vocab_size": 49152, "seed": 1}
STEPS, ROUNDS = 400, 6
# Of a text whose steps are counted, not its tokens.
MOST_TOKENS = 7800
# Of the proposer that answers at once.
LONGEST = 24


def added(methods: list[str]) -> dict[str, Any]:
    """Of steps without speculation, and by method and by how the draft came what it adds to them."""
    plain = float(np.median(_spent("naive")["none"]))
    told: dict[str, Any] = {"naive": round(plain, 1)}
    for method in methods:
        told[method] = {
            way: {"added_p50": round(float(np.median(spent)) - plain, 1), "steps": len(spent)}
            for way, spent in _spent(method).items()
        }
    return told


def _spent(method: str) -> dict[str, list[float]]:
    """Microseconds, by how the next step's draft came."""
    found: dict[str, list[float]] = {}
    gc.disable()
    try:
        for _ in range(ROUNDS):
            for way, spent in _in_one_thread(method).items():
                found.setdefault(way, []).extend(each * 1e6 for each in spent)
    finally:
        gc.enable()
    return found


def _in_one_thread(method: str) -> dict[str, list[float]]:
    moment = [0.0]

    def now() -> float:
        return moment[0]

    def passes(seconds: float) -> None:
        moment[0] += seconds

    runner = MockRunner(Profile.parse(PROFILE), sleep=passes, now=now)
    return between_steps(
        runner, lambda name, epoch: AnswersAtOnce("suffix", LONGEST), "inproc://bench", method, STEPS,
        now=now, sleep=passes, clock=time.thread_time,
    ).between  # fmt: skip


def between_steps(
    runner: MockRunner,
    connect: Callable[[str, int], Link],
    endpoint: str,
    method: str,
    steps: int,
    *,
    now: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.perf_counter,
    rehearsed: bool = True,
) -> Seen:
    """What `clock`, looked at from the step thread, says of so many steps of one stream. `connect(name, epoch)` makes
    the line to the proposer. `rehearsed`: whether the runner lets the loop wait for the ends of steps."""
    facts = runner.facts
    scheduler = Scheduler(
        Limits(facts.vocab_size, facts.max_context, facts.eos_token_ids, facts.page_tokens, facts.pages)
    )
    watched = _Watched(runner, scheduler.drafting.counts.ways, clock, rehearsed)
    epoch = new_epoch()
    name = f"bench-{method}-{epoch}"
    link = ProposerLink(
        lambda at: connect(name, epoch),
        target=name,
        epoch=epoch,
        deadline=0.02,
        now=now,
        vocabulary=facts.vocabulary,
    )
    loop = StepLoop(
        scheduler, watched, link,
        deliver=lambda delivery: loop.taken(), failed=print, observer=watched, now=now, sleep=sleep,
    )  # fmt: skip
    link.move_to(endpoint)
    # A socket connects.
    time.sleep(0.1)
    loop.post(Arrived(_request(name, method), 1))
    loop.start()
    while runner.steps < steps and not scheduler.ends:
        time.sleep(0.01)
    loop.stop()
    loop.join(5.0)
    return watched.seen


class Seen:
    """In seconds."""

    def __init__(self) -> None:
        # From the end of a step to the beginning of the next, by how the next one's draft came.
        self.between: dict[str, list[float]] = {}
        # What steps took longer than the runner's own time.
        self.longer: list[float] = []

    def add(self, other: Seen) -> None:
        for way, seconds in other.between.items():
            self.between.setdefault(way, []).extend(seconds)
        self.longer += other.longer


class _Watched:
    """The runner, with a look at the clock as steps begin and end; and the loop's observer."""

    def __init__(self, runner: MockRunner, ways: dict[str, int], clock: Callable[[], float], rehearsed: bool) -> None:
        self._runner = runner
        self._rehearsed = rehearsed
        self._ways, self._before = ways, dict(ways)
        self._clock = clock
        self._ended = 0.0
        self.seen = Seen()

    def step(self, work: Any, meanwhile: Any) -> Any:
        began, ended = self._clock(), self._ended

        def without_waiting(elsewhere: bool) -> None:
            meanwhile(elsewhere)

        verdicts = self._runner.step(work, meanwhile if self._rehearsed else without_waiting)
        # How a step's draft came is counted while it runs.
        way = next((name for name, count in self._ways.items() if count > self._before[name]), "none")
        self._before = dict(self._ways)
        if ended and len(work[0].tokens) - len(work[0].draft) == 1:
            self.seen.between.setdefault(way, []).append(began - ended)
        self._ended = self._clock()
        self.seen.longer.append(self._ended - began - self._runner.seconds(work))
        return verdicts

    def copy_page(self, source: int, target: int) -> None: ...

    def after_step(self, rows: int, seconds: float) -> None: ...


def _request(name: str, method: str) -> Generate:
    """Whose text repeats itself for the most part."""
    prompt = [100 + place % 32 for place in range(200)]
    return Generate(
        request_id=name, attempt=1, token_ids=prompt, prompt_tokens=len(prompt),
        sampling=Sampling(max_tokens=MOST_TOKENS, ignore_eos=True), speculation=Speculation(method=method),
    )  # fmt: skip
