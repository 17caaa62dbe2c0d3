"""Workers in simulated time, for bench/simulated/mesh.py: a queue of requests, or the scheduler of a real worker.

    take(request) ──▶ began, ended (told to the mesh)      lose() ──▶ what goes elsewhere

Both have the same places, pages, and speeds of a step. A queue costs a few microseconds a request; the scheduler
decides each step of each sequence, with real pages and prefix cache, and costs a few milliseconds a request.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from random import Random
from typing import Any, Protocol

from bench.simulated.traffic import PAGE, Request
from services.api.drafter import Draft
from services.api.messages import Generate
from services.api.sampling import Sampling
from services.worker.running.work import Result, SequenceWork, Verdict, Work
from services.worker.scheduling import events
from services.worker.scheduling.limits import Limits
from services.worker.scheduling.scheduler import Scheduler

SLOTS = 32
PREFILL = 20_000  # tokens/s
STEP = 0.02  # s
TOKENS_A_STEP = 1.5  # with drafts
PAGES = 1_400  # what 1 GiB holds of SmolLM2-135M
# Until what was sent to a lost proposer is asked of its successor.
WITHOUT_DRAFTS = 2.0  # s
VOCABULARY = 1 << 24


class Around(Protocol):
    """The mesh, to its workers."""

    now: float
    serial: int

    def at(self, when: float, what: str, about: Any = None) -> None: ...
    def began(self, request: Request, pages: int, hits: int, at: float) -> None: ...
    def ended_at(self, request: Request) -> None: ...
    def has_no_drafts(self, request: Request) -> bool: ...


class QueueWorker:
    """A queue, SLOTS places, and a prefix cache: beginnings with their pages, least recently used first. Prompts are
    computed one after the other; each running sequence gets a token a step, or more with drafts."""

    __slots__ = ("alive", "cache", "cached", "mesh", "name", "number", "prefill_free", "running", "serial", "waiting")

    def __init__(self, mesh: Around, number: int) -> None:
        self.mesh, self.number, self.name = mesh, number, f"worker-{number}"
        self.waiting: deque[Request] = deque()
        # In the order in which they began: a set's order is that of addresses, which no seed repeats.
        self.running: dict[Request, None] = {}
        self.cache: OrderedDict[int, int] = OrderedDict()
        self.cached = self.serial = 0
        self.prefill_free = 0.0
        self.alive = True

    @property
    def load(self) -> int:
        return len(self.waiting) + len(self.running)

    def take(self, request: Request) -> None:
        self.waiting.append(request)
        self._start()

    def wake(self, request: Request) -> None:
        """Its answer ends, unless it was lost meanwhile, or takes longer by now."""
        if request.ends != self.mesh.now or request not in self.running:
            return
        del self.running[request]
        self.mesh.ended_at(request)
        self._start()

    def without_drafts(self) -> int:
        """From now on, for some callers. Returns how many running answers take longer."""
        mesh, slowed = self.mesh, 0
        longer = WITHOUT_DRAFTS * (1 - 1 / TOKENS_A_STEP)
        for request in self.running:
            if mesh.has_no_drafts(request):
                request.ends += min(longer, (request.ends - mesh.now) * (TOKENS_A_STEP - 1))
                slowed += 1
                mesh.at(request.ends, "wake", (self, request))
        return slowed

    def lose(self) -> list[tuple[Request, bool]]:
        """Everything, each with whether it had begun; those go on where they were."""
        now = self.mesh.now
        lost = [(request, True) for request in self.running] + [(request, False) for request in self.waiting]
        for request in self.running:
            left = int((request.ends - now) * TOKENS_A_STEP / STEP)
            request.tokens = max(1, min(left, request.tokens))
        for request, _ in lost:
            request.ends = -1.0
        self.running.clear()
        self.waiting.clear()
        self.cache.clear()
        self.cached, self.prefill_free, self.alive = 0, 0.0, False
        return lost

    def _start(self) -> None:
        mesh = self.mesh
        while self.waiting and len(self.running) < SLOTS:
            request = self.waiting.popleft()
            hits, pages = self.hits(request), request.shared + request.own
            begins = max(mesh.now, self.prefill_free)
            self.prefill_free = begins + (1 + pages - hits) * PAGE / PREFILL
            mesh.began(request, pages, hits, self.prefill_free)
            self.running[request] = None
            request.ends = self.prefill_free + request.tokens * STEP / (
                1.0 if mesh.has_no_drafts(request) else TOKENS_A_STEP
            )
            mesh.at(request.ends, "wake", (self, request))

    def hits(self, request: Request) -> int:
        """How many of its pages are cached; now all of them are. Pages of its own are nobody else's, but take room."""
        found = 0
        if request.shared:
            if request.group in self.cache:
                self.cache.move_to_end(request.group)
                found = request.shared
            else:
                self._keep(request.group, request.shared)
        if request.own:
            self.serial -= 1
            self._keep(self.serial, request.own)
        return found

    def _keep(self, name: int, pages: int) -> None:
        self.cache[name] = pages
        self.cached += pages
        while self.cached > PAGES:
            self.cached -= self.cache.popitem(last=False)[1]


class ScheduledWorker:
    """A real worker's scheduler: admission in order and by caller, chunks of prompts, rows for drafts, pages, prefix
    cache, preemption. A step takes STEP and the time of its rows of prompts; a draft of one token is accepted as often
    as makes TOKENS_A_STEP."""

    __slots__ = ("_asked", "_draw", "_new", "_scheduler", "_steps", "_work", "alive", "mesh", "name", "number")

    def __init__(self, mesh: Around, number: int) -> None:
        self.mesh, self.number, self.name = mesh, number, f"worker-{number}"
        self._draw = Random(number)
        self.alive = True
        self._begin_anew()

    def _begin_anew(self) -> None:
        limits = Limits(
            vocab_size=VOCABULARY, max_context=1 << 20, eos_token_ids=(), page_tokens=PAGE, pages=PAGES,
            max_sequences=SLOTS, max_waiting=1 << 20, method="ngram",
        )  # fmt: skip
        self._scheduler = Scheduler(limits)
        self._asked: dict[int, Request] = {}
        # Of those asked, by stream: they have no token yet.
        self._new: set[int] = set()
        self._work: Work | None = None
        # The number of the step that is under way, of all lives.
        self._steps = getattr(self, "_steps", 0) + 1

    @property
    def load(self) -> int:
        return len(self._asked)

    @property
    def running(self) -> list[Request]:
        return [self._asked[sequence.stream] for sequence in self._scheduler.running]

    def take(self, request: Request) -> None:
        stream = self.mesh.serial
        generate = Generate(
            request_id=str(stream), attempt=0, token_ids=text_of(request, stream),
            prompt_tokens=prompt_tokens(request), caller=str(request.caller),
            sampling=Sampling(max_tokens=request.tokens, ignore_eos=True),
        )  # fmt: skip
        self._asked[stream] = request
        self._new.add(stream)
        self._scheduler.handle(events.Arrived(generate, stream, None, self.mesh.now))
        self.mesh.serial += 1
        if self._work is None:
            self._step()

    def wake(self, step: int) -> None:
        """The end of a step, unless the worker was lost meanwhile."""
        if step != self._steps or self._work is None:
            return
        work, self._work = self._work, None
        verdicts = [self._verdict(item) if item.verify else None for item in work.items]
        for out in self._scheduler.handle(events.StepDone(Result(verdicts, 0.0))):
            if isinstance(out, events.Emit) and out.stream in self._new:
                self._began(out.stream)
            elif isinstance(out, events.Finish):
                self.mesh.ended_at(self._asked.pop(out.stream))
        if self._scheduler.has_work:
            self._step()

    def without_drafts(self) -> int:
        return sum(map(self.mesh.has_no_drafts, self.running))

    def lose(self) -> list[tuple[Request, bool]]:
        lost = []
        for stream, request in self._asked.items():
            sequence = self._scheduler.sequence_of(stream)
            assert sequence is not None
            # What it has said is computed again elsewhere, as a part of its prompt.
            request.own += sequence.generated // PAGE
            request.tokens = max(1, request.tokens - sequence.generated)
            lost.append((request, stream not in self._new))
        self._begin_anew()
        self.alive = False
        return lost

    def _began(self, stream: int) -> None:
        self._new.remove(stream)
        sequence, request = self._scheduler.sequence_of(stream), self._asked[stream]
        cached = 0 if sequence is None else (sequence.cached_tokens or 0) // PAGE
        self.mesh.began(request, request.shared + request.own, cached, self.mesh.now)

    def _step(self) -> None:
        scheduler, mesh = self._scheduler, self.mesh
        plan = scheduler.schedule()
        drafts = {
            item.sequence.id: DRAFT for item in plan.items
            if item.drafts and not mesh.has_no_drafts(self._asked[item.sequence.stream])
        }  # fmt: skip
        self._work = scheduler.place(drafts)
        self._steps += 1
        prompt_rows = sum(len(item.tokens) for item in self._work.items if len(item.tokens) > 1)
        mesh.at(mesh.now + STEP + prompt_rows / PREFILL, "wake", (self, self._steps))

    def _verdict(self, item: SequenceWork) -> Verdict:
        if item.draft.tokens and self._draw.random() < TOKENS_A_STEP - 1:
            return Verdict([*item.draft.tokens, TOKEN], 1)
        return Verdict([TOKEN], 0)


TOKEN = 1
DRAFT = Draft([TOKEN], "simulated")


def prompt_tokens(request: Request) -> int:
    """Its whole pages, and half of one."""
    return (request.shared + request.own) * PAGE + PAGE // 2


def text_of(request: Request, serial: int) -> list[int]:
    """The beginning is that of its group, as in `Traffic`; the rest nobody else's."""
    shared = [request.group, *range(1, request.shared * PAGE)] if request.shared else []
    own = prompt_tokens(request) - len(shared)
    return [*shared, (serial + (1 << 20)) % VOCABULARY, *range(2, own + 1)]
