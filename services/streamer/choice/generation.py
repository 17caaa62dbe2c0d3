"""The life of one choice: Generate goes to a worker, tokens come back, text is sent, the choice ends.

    ┌▶ wait for a ready worker ─▶ Generate(attempt, prompt + tokens so far) ─▶ Tokens… ─▶ Finished: the end
    └──── the peer is lost, or it failed and says that another attempt may succeed ◀──┘
                                                  a stop string is completed: the end, the far side is cancelled

Every choice ends once: by returning an `Ending` or by raising. The caller's deadline bounds it all. What an
older attempt still sends, duplicates and gaps are recognised by `attempt` and `seq`. After a worker's death
quarantine.py says when a choice may be sent again, and which one killed it. Knows no HTTP.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from dataclasses import dataclass, field
from typing import Protocol

from mesh.directory.membership import Member
from mesh.errors import DeadlineExceeded, MeshError, NoPeer, NotReached, PeerLost, RemoteError, TooLarge, UnknownKind
from mesh.ref import Ref
from services.api.messages import Failed, Finished, FinishReason, Generate, Speculation, Tokens
from services.api.sampling import Sampling
from services.api.strategies import Verification
from services.streamer.agents.reader import AnswerReader
from services.streamer.choice.acceptance import ChoiceAcceptance, Predicted, runs_behind
from services.streamer.choice.admission import deadline_passed
from services.streamer.choice.delivery import Delivery, Piece
from services.streamer.choice.echo import Echo
from services.streamer.choice.peers import GRACE, RETRY_MISSING, Lender, Peers, life, missing
from services.streamer.choice.quarantine import Case, Life
from services.streamer.choice.timeline import Timeline
from services.streamer.choice.turns import NUMBERS_OF_A_UNIT
from services.streamer.openai.errors import ApiError, bad_value

log = logging.getLogger("specmesh.streamer")

# Maximum attempts in a row that end without a new token, deaths of workers not counted: quarantine.py counts those.
MAX_BARREN = 10
# Workers that a choice asks for before it waits until fewer suspects are tried.
MOST_REFUSED = 8
STREAM_WINDOW = 65536  # bytes a worker may send ahead of us


@dataclass(slots=True)
class Choice:
    """One of the answers of a request, and how far it has come."""

    index: int
    request_id: str
    prompt: list[int]
    sampling: Sampling
    speculation: Speculation
    # How the worker verifies it, computed here: the worker's own report comes only with a Finished.
    verification: Verification
    longest_draft: int
    delivery: Delivery
    # The request's field that its grammar, or the limit of its reasoning, is made of; "": it has neither.
    grammar_field: str = ""
    tokens: list[int] = field(default_factory=list)
    # The id that ended it at the worker, which isn't among the tokens.
    stop_token: int | None = None
    acceptance: ChoiceAcceptance = field(default_factory=ChoiceAcceptance)
    attempt: int = 0
    priority: int = 0
    cache_salt: str = ""
    # Choices with the same key go to the same worker (routing.py); None: to any.
    key: int | None = None
    namespace: str = ""
    caller: str = ""
    prediction: list[int] = field(default_factory=list)
    predicted: Predicted | None = None  # None: the request brought no prediction
    timeline: Timeline | None = None  # None: the request doesn't ask for it
    echo: Echo | None = None  # None: nothing is said of the prompt
    reader: AnswerReader | None = None  # None: its text is the answer
    reasoning_tokens: int | None = None  # once it has ended, if its reasoning is read
    # How its prompt becomes an embedding, which is then all that comes of it; "": it doesn't.
    pooling: str = ""
    embedding: bytes = b""

    @property
    def work_to_send(self) -> int:
        """To a worker, in the units of turns.py."""
        sampling = self.sampling
        numbers = len(self.prompt) + len(self.prediction) + len(sampling.allowed_token_ids or ())
        return numbers // NUMBERS_OF_A_UNIT

    @property
    def prompt_told(self) -> bool:
        return self.echo is None or self.echo.complete


@dataclass(frozen=True, slots=True)
class Ending:
    """The good end of a choice. `stop` is the stop string or token id that ended it."""

    reason: FinishReason
    completion_tokens: int
    cached_tokens: int | None  # None: it ended before the worker reported it
    stop: str | int | None


class Audience(Protocol):
    """Receives the pieces of a choice."""

    async def show(self, choice: Choice, piece: Piece) -> None:
        """Called in order, once for every part of the answer. May wait, which slows the worker down."""
        ...

    async def ended(self, choice: Choice, ending: Ending) -> None:
        """Called once, after the last piece of a choice that ended well."""
        ...


async def generate(choice: Choice, peers: Peers, audience: Audience, deadline: float) -> Ending:
    case = peers.quarantine.open()
    try:
        return await _attempts(_Run(choice, case, peers, audience, deadline))
    finally:
        peers.quarantine.close(case)


@dataclass(frozen=True, slots=True)
class _Run:
    """What all attempts of a choice share."""

    choice: Choice
    case: Case
    peers: Peers
    audience: Audience
    deadline: float


async def _attempts(run: _Run) -> Ending:
    choice, case, peers = run.choice, run.case, run.peers
    quarantine, now = peers.quarantine, asyncio.get_running_loop().time
    failures: list[Life] = []
    barren = 0
    peers.retries.first(now())
    while True:
        if choice.timeline is not None:
            choice.timeline.waits()
        member = await _worker(run, failures)
        known = len(choice.tokens)
        try:
            with peers.running(member), peers.lending(choice.key, member, bool(failures)) as lender:
                return await _attempt(run, peers.ref(member), lender)
        except (RemoteError, UnknownKind, TooLarge) as error:
            raise _refused(choice, error.reason, str(error)) from error
        except DeadlineExceeded:
            raise deadline_passed() from None
        except (MeshError, _TryAgain) as error:
            log.info("%s attempt %d: %s", choice.request_id, choice.attempt, error or type(error).__name__)
            if len(choice.tokens) > known:
                failures, barren = [], 0
            failures.append(life(member))
            lost = error.failed if isinstance(error, _TryAgain) else error
            if isinstance(lost, PeerLost):
                peers.lost(member)
            barren = 0 if is_death(lost) and quarantine.died(case) else barren + 1
            if case.guilty:
                raise _guilty(choice, case) from error
            if barren >= MAX_BARREN:
                raise _given_up(choice, error) from error
            if not choice.tokens and not peers.retries.again(now()):
                raise _not_again() from error
            quarantine.left(case)
        if len(choice.tokens) >= choice.sampling.max_tokens and choice.prompt_told and not choice.pooling:
            # It was lost between its last token and its Finished.
            return await _end_of_length(choice, run.audience)
        choice.attempt += 1
        await peers.pause(len(failures) - 1)


async def _worker(run: _Run, failures: list[Life]) -> Member:
    """A ready worker that this choice may be sent to now."""
    choice, case, peers, deadline = run.choice, run.case, run.peers, run.deadline
    now = asyncio.get_running_loop().time
    refused: list[Life] = []
    while True:
        # Before the first token the client can still send the request elsewhere, so it gets an error sooner.
        patience = deadline if choice.tokens else min(deadline, now() + GRACE)
        # The least loaded worker is likely to be empty: a suspect is tried alone there.
        key = None if case.suspect else choice.key
        try:
            member = await peers.worker(key, patience, [*failures, *refused])
        except NoPeer:
            raise missing("worker") from None
        there = life(member)
        if there not in refused and peers.quarantine.enter(case, there):
            return member
        if not case.suspect and there not in refused and len(refused) < MOST_REFUSED:
            refused.append(there)
            continue
        refused.clear()
        try:
            async with asyncio.timeout_at(deadline):
                await case.turn.wait()
        except TimeoutError:
            raise deadline_passed() from None


class _TryAgain(Exception):
    """The worker failed and says that another attempt may succeed."""

    def __init__(self, failed: Failed) -> None:
        super().__init__(f"{failed.reason}: {failed.message}")
        self.failed = failed


class _Broken(MeshError):
    """The worker did not keep to the protocol of Generate. It has not died."""


def is_death(lost: MeshError | Failed) -> bool:
    """Whether a worker that may have run it is gone or ends now."""
    if isinstance(lost, Failed):
        return lost.retryable and lost.reason == "engine"
    return isinstance(lost, PeerLost) and not isinstance(lost, NotReached)


def _guilty(choice: Choice, case: Case) -> ApiError:
    deaths = len(case.deaths)
    log.warning("%s: %d workers died while they ran it; it is not tried again", choice.request_id, deaths)
    message = f"{deaths} workers died while they ran this request; it is not tried again"
    return ApiError(500, message, code="worker_died", final=True)


def _not_again() -> ApiError:
    message = "Its worker was lost, and too many requests are being sent again already. Try again"
    return ApiError(503, message, code="too_many_retries", retry_after=RETRY_MISSING)


def _given_up(choice: Choice, error: MeshError | _TryAgain) -> ApiError:
    if isinstance(error, _TryAgain):
        return _refused(choice, error.failed.reason, error.failed.message)
    message = f"The worker was lost {MAX_BARREN} times before it generated a token"
    return ApiError(503, message, code="worker_lost", retry_after=RETRY_MISSING)


async def _attempt(run: _Run, ref: Ref, lender: Lender) -> Ending:
    choice, case = run.choice, run.case
    left = run.deadline - asyncio.get_running_loop().time()
    if left <= 0:
        raise deadline_passed()
    if choice.timeline is not None:
        choice.timeline.sent()
    held: list[Tokens | Finished | Failed] = []
    async with ref.stream(_message(choice, lender.instance), timeout=left, window=STREAM_WINDOW) as stream:
        async for item in stream:
            lender.done()
            if item.attempt != choice.attempt:
                continue
            held.append(item)
            if not isinstance(item, Failed):
                run.peers.quarantine.stepped(case, last=isinstance(item, Finished))
                if case.on_trial:
                    # Others wait for the end of the trial, and must not wait for this client to read.
                    continue
            for each in held:
                if (ending := await _take(choice, each, run.audience)) is not None:
                    return ending
            held.clear()
    raise _Broken("the stream ended without an end")


async def _take(choice: Choice, item: Tokens | Finished | Failed, audience: Audience) -> Ending | None:
    """The Ending if this message brings it."""
    if isinstance(item, Failed):
        if item.retryable:
            raise _TryAgain(item)
        raise _refused(choice, item.reason, item.message)
    if choice.timeline is not None:
        choice.timeline.came(item.spans)
    if choice.pooling:
        return _embedded(choice, item)
    if choice.echo is not None and not choice.echo.complete:
        await _show_prompt(choice, choice.echo, item, audience)
    if isinstance(item, Finished):
        return await _finish(choice, item, audience)
    return await _show(choice, item, audience)


def _embedded(choice: Choice, item: Tokens | Finished) -> Ending:
    if isinstance(item, Tokens) or not item.embedding:
        raise _Broken("the embedding is missing")
    choice.embedding = item.embedding
    return Ending(item.reason, 0, item.cached_tokens, None)


async def _show_prompt(choice: Choice, echo: Echo, item: Tokens | Finished, audience: Audience) -> None:
    """Its text needs no worker, but leaves when the worker has taken the request: until then it may be refused."""
    columns = item.prompt_logprobs if isinstance(item, Tokens) else None
    try:
        for piece in echo.take(columns):
            await audience.show(choice, piece)
    except ValueError as error:
        raise _Broken(str(error)) from error
    if echo.complete:
        choice.delivery.begin_behind(echo.characters)
    elif columns is None:
        raise _Broken("log-probabilities of the prompt are missing")


def _message(choice: Choice, pages_from: str = "") -> Generate:
    sampling = choice.sampling
    if choice.prompt_told and sampling.prompt_logprobs >= 0:
        sampling = dataclasses.replace(sampling, prompt_logprobs=-1)
    return Generate(
        request_id=choice.request_id,
        attempt=choice.attempt,
        token_ids=choice.prompt + choice.tokens,
        prompt_tokens=len(choice.prompt),
        sampling=sampling,
        speculation=choice.speculation,
        priority=choice.priority,
        cache_salt=choice.cache_salt,
        namespace=choice.namespace,
        prediction=choice.prediction,
        timeline=choice.timeline is not None,
        caller=choice.caller,
        pages_from=pages_from,
        pooling=choice.pooling,
    )


async def _show(choice: Choice, item: Tokens, audience: Audience) -> Ending | None:
    """New tokens are shown; an Ending when they complete a stop string."""
    known = len(choice.tokens) - item.seq
    if known < 0:
        raise _Broken(f"tokens {len(choice.tokens)}..{item.seq} are missing")
    ids, logprobs = item.ids, item.logprobs
    if known:
        ids, logprobs = ids[known:], logprobs[known:] if logprobs else None
    if not ids:
        return None
    choice.tokens += ids
    runs = runs_behind(item.runs, known)
    choice.acceptance.add(runs)
    before = choice.delivery.count
    piece = choice.delivery.push(ids, logprobs, runs)
    if choice.predicted is not None:
        choice.predicted.add(runs, choice.delivery.count - before)
    await audience.show(choice, piece)
    if choice.timeline is not None:
        choice.timeline.shown(len(ids))
    if (stop := choice.delivery.stopped_by) is None:
        return None
    return Ending("stop", choice.delivery.count, None, stop)


async def _finish(choice: Choice, item: Finished, audience: Audience) -> Ending:
    await audience.show(choice, choice.delivery.flush())
    stop = choice.delivery.stopped_by
    choice.stop_token = item.stop_token
    # The token that ended the answer was generated, though it isn't among those delivered.
    ended_by_token = item.stop_token is not None
    return Ending(
        "stop" if stop else item.reason,
        choice.delivery.count + ended_by_token,
        item.cached_tokens,
        stop or item.stop_token,
    )


async def _end_of_length(choice: Choice, audience: Audience) -> Ending:
    await audience.show(choice, choice.delivery.flush())
    stop = choice.delivery.stopped_by
    return Ending("stop" if stop else "length", choice.delivery.count, None, stop)


REFUSALS = {"too_long": 400, "invalid": 400, "overloaded": 429, "draining": 503, "deadline": 504}


def _refused(choice: Choice, reason: str, message: str) -> ApiError:
    if reason == "grammar":
        return bad_value(choice.grammar_field, message)
    status = REFUSALS.get(reason, 500)
    code = "context_length_exceeded" if reason == "too_long" else reason
    return ApiError(status, message, code=code, retry_after=1 if status in (429, 503) else None)
