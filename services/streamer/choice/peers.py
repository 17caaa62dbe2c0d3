"""The other roles: finds a ready instance, waits for one, and asks what the model is.

Waiting is for changes of the directory, bounded by the caller's deadline. Knows no HTTP.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

from mesh.actor import Home
from mesh.directory.membership import Member
from mesh.errors import Busy, DeadlineExceeded, MeshError, NoPeer, NotReached, PeerLost, RemoteError, TooLarge
from mesh.ref import Ref
from services.api.messages import (
    AddCorpus,
    CheckGrammar,
    Corpora,
    CorpusCard,
    Decode,
    Decoded,
    Describe,
    Encode,
    Encoded,
    EncodedWords,
    EncodeWords,
    GrammarChecked,
    ListCorpora,
    ModelCard,
    RemoveCorpus,
)
from services.streamer.choice.admission import too_many
from services.streamer.choice.quarantine import Life, Quarantine
from services.streamer.choice.retries import RetryBudget
from services.streamer.choice.routing import Router, parted
from services.streamer.openai.errors import ApiError

ASK_TIMEOUT = 10.0  # seconds for one answer of a tokenizer or of Describe
# The tokenizer may have to start a process for it.
GRAMMAR_TIMEOUT = 45.0
PROBE_TIMEOUT = 3.0  # seconds for an answer of a worker that has nothing else to do
# How long a new request waits for a role that is missing: about the time of a worker's restart.
GRACE = 15.0
RETRY_MISSING = 5  # seconds, sent to the client
# How often the loads that the directory tells are taken into account. It hears each about twice a second.
LOADS_EVERY = 0.25  # seconds
# Tokenizers that may be lost while they have one text: it may be what kills them.
MOST_DEATHS = 2
# A worker whose connection broke gets nothing for so long where there is another: the directory learns of it later.
AVOIDED_FOR = 3.0  # seconds
FIRST_PAUSE = 0.02
LONGEST_PAUSE = 1.0


class DirectoryView(Protocol):
    """The part of the mesh's directory client that the streamer uses."""

    def members(self, role: str | None = None) -> list[Member]: ...

    def pick(self, role: str, key: str | None = None) -> Member | None: ...

    def on_change(self, callback: Callable[[], None]) -> None: ...


class Lender:
    """A worker that another one may get pages from; "": none. One that computes them is busy until the first token,
    which `count` is told."""

    def __init__(self, instance: str, count: Callable[[str, int], None] | None) -> None:
        self.instance = instance
        self._count = count
        if count is not None:
            count(instance, 1)

    def done(self) -> None:
        count, self._count = self._count, None
        if count is not None:
            count(self.instance, -1)


class Peers:
    """Members by role, and refs to them. One in a process."""

    def __init__(self, directory: DirectoryView, node: Home, retries: RetryBudget | None = None) -> None:
        self._directory = directory
        self._node = node
        self._changed = asyncio.Event()
        self._card: ModelCard | None = None
        self.quarantine = Quarantine()
        self.retries = retries or RetryBudget()
        self._router = Router()
        # Of prefill workers.
        self._lenders = Router()
        self._workers: dict[str, Member] = {}
        self._avoided: dict[Life, float] = {}
        self._turns = itertools.count(random.randrange(1 << 16))
        self._loads_until = 0.0
        directory.on_change(self._on_change)

    def _on_change(self) -> None:
        self._loads_until = 0.0
        self._changed.set()
        self._changed = asyncio.Event()

    async def ready(self, role: str, deadline: float, avoid: Collection[Life] = ()) -> Member:
        """The ready instance with the least to do, preferably none of `avoid`; waits for one until `deadline`,
        then raises NoPeer."""
        return await self._first(role, lambda: self._pick(role, avoid), deadline)

    async def _first(self, role: str, pick: Callable[[], Member | None], deadline: float) -> Member:
        while True:
            changed = self._changed
            if (member := pick()) is not None:
                return member
            try:
                async with asyncio.timeout_at(deadline):
                    await changed.wait()
            except TimeoutError:
                raise NoPeer(role) from None

    def _pick(self, role: str, avoid: Collection[Life]) -> Member | None:
        member = self._directory.pick(role)
        if member is None or life(member) not in avoid:
            return member
        # The directory may not know yet that this one is lost.
        ready = [each for each in self._directory.members(role) if each.state == "ready"]
        others = [each for each in ready if life(each) not in avoid]
        return min(others, key=lambda each: each.load, default=member)

    # Workers ----------------------------------------------------------------------------------------------

    async def worker(self, key: int | None, deadline: float, avoid: Collection[Life] = ()) -> Member:
        """The ready worker for a choice with this key (routing.py), preferably none of `avoid`; waits for one until
        `deadline`, then raises NoPeer."""
        return await self._first("worker", lambda: self._routed(key, avoid), deadline)

    def _routed(self, key: int | None, avoid: Collection[Life]) -> Member | None:
        now = asyncio.get_running_loop().time()
        if now >= self._loads_until:
            self._loads_until = now + LOADS_EVERY
            self._take_loads()
            self._avoided = {each: until for each, until in self._avoided.items() if until > now}
        lives = (*avoid, *self._avoided) if self._avoided else avoid
        avoided = [name for name, epoch in lives if name in self._workers and self._workers[name].epoch == epoch]
        name = self._router.choose(key, next(self._turns), avoided)
        return None if name is None else self._workers[name]

    def _take_loads(self) -> None:
        self._workers = {each.instance: each for each in self._directory.members("worker") if each.state == "ready"}
        generating, lenders = parted({name: each.phase for name, each in self._workers.items()})
        self._router.set({name: self._workers[name].load for name in generating})
        self._lenders.set({name: self._workers[name].load for name in lenders})

    def lost(self, worker: Member) -> None:
        """The connection to this worker broke."""
        self._avoided[life(worker)] = asyncio.get_running_loop().time() + AVOIDED_FOR

    @contextmanager
    def running(self, worker: Member) -> Iterator[None]:
        """A choice runs at this worker."""
        self._count(worker.instance, 1)
        try:
            yield
        finally:
            self._count(worker.instance, -1)

    @contextmanager
    def lending(self, key: int | None, worker: Member, fails: bool) -> Iterator[Lender]:
        """The other worker that this one may get pages from, for a choice with this key. None where attempts have
        failed: a prompt that kills workers must not kill two at once."""
        lender = Lender("", None) if key is None or fails else self._lender(key, worker.instance)
        try:
            yield lender
        finally:
            lender.done()

    def _lender(self, key: int, worker: str) -> Lender:
        if (prefill := self._lenders.choose(key)) is not None:
            return Lender(prefill, self._count)
        home = self._router.home(key)
        return Lender("" if home == worker else home, None)

    def _count(self, name: str, change: int) -> None:
        self._router.add(name, change)
        self._lenders.add(name, change)

    def idle_worker(self) -> Member | None:
        """A ready worker that had nothing to do when the directory last heard of it."""
        workers = self._directory.members("worker")
        return next((each for each in workers if each.state == "ready" and each.load == 0), None)

    async def unanswered(self) -> list[str]:
        """Why no ready worker answers. Empty when one does, or when none is ready, which the directory says."""
        workers = [each for each in self._directory.members("worker") if each.state == "ready"]
        problems = await asyncio.gather(*map(self._problem, workers))
        return problems if all(problems) else []

    async def _problem(self, worker: Member) -> str:
        try:
            await self.ref(worker).ask(Describe(), timeout=PROBE_TIMEOUT)
        except MeshError as error:
            return f"worker: {worker.instance} doesn't answer ({error.reason})"
        return ""

    def ref(self, member: Member) -> Ref:
        return self._node.ref(member.endpoint, member.role)

    async def pause(self, failures: int) -> None:
        """Before another try: until the directory changes, or a little longer each time."""
        longest = min(FIRST_PAUSE * 2**failures, LONGEST_PAUSE)
        try:
            async with asyncio.timeout(longest):
                await self._changed.wait()
        except TimeoutError:
            pass

    @property
    def known_card(self) -> ModelCard | None:
        return self._card

    async def card(self) -> ModelCard:
        """What the model is. Asked for once: it is the same for every worker of a mesh, and doesn't change."""
        if self._card is None:
            reply = await self._ask("worker", Describe())
            assert isinstance(reply, ModelCard)
            self._card = reply
        return self._card

    async def encode(self, message: Encode) -> list[int]:
        reply = await self._ask("tokenizer", message)
        assert isinstance(reply, Encoded)
        return reply.token_ids

    async def encode_words(self, words: Sequence[str]) -> list[list[list[int]]]:
        """Of each word its spellings."""
        reply = await self._ask("tokenizer", EncodeWords(words=list(words)))
        assert isinstance(reply, EncodedWords)
        return reply.spellings

    async def check_grammar(self, grammar: str, caller: str) -> str:
        """Why it can't be used; "": it can."""
        reply = await self._ask("tokenizer", CheckGrammar(grammar=grammar, caller=caller), GRAMMAR_TIMEOUT)
        assert isinstance(reply, GrammarChecked)
        return reply.problem

    async def decode(self, ids: list[int]) -> str:
        reply = await self._ask("tokenizer", Decode(token_ids=ids, skip_special_tokens=False))
        assert isinstance(reply, Decoded)
        return reply.text

    async def corpora(self, message: AddCorpus | RemoveCorpus | ListCorpora) -> list[CorpusCard]:
        """What there is after it, in the message's namespace. Proposers share a folder, so one of them is enough; it is
        the same one while it is there, as it keeps the parts of a corpus until the last. It doesn't wait for a
        proposer: a mesh may have none. Nor is another asked: the lost one may have done the work."""
        member = self._directory.pick("proposer", key=message.namespace)
        if member is None:
            raise missing("proposer")
        try:
            reply = await self.ref(member).ask(message, timeout=ASK_TIMEOUT)
        except RemoteError:
            raise
        except TooLarge as error:
            raise too_large() from error
        except MeshError as error:
            raise missing("proposer") from error
        assert isinstance(reply, Corpora)
        return reply.corpora

    async def _ask(
        self, role: str, message: Encode | EncodeWords | CheckGrammar | Decode | Describe, timeout: float = ASK_TIMEOUT
    ) -> object:
        """One answer; another instance, or the same one restarted, is tried while the grace lasts, unless each would
        say the same or take as long, or die of it."""
        deadline = asyncio.get_running_loop().time() + GRACE
        # A connection that breaks is no death: the same life may answer.
        lost: set[Life] = set()
        failures: list[Life] = []
        while True:
            try:
                member = await self.ready(role, deadline, failures)
            except NoPeer:
                raise missing(role) from None
            try:
                return await self.ref(member).ask(message, timeout=timeout)
            except RemoteError:
                raise
            except TooLarge as error:
                raise too_large() from error
            except DeadlineExceeded as error:
                said = f"The {role} did not answer within {timeout:g} s"
                raise ApiError(504, said, code="request_timeout") from error
            except MeshError as error:
                if isinstance(error, PeerLost) and not isinstance(error, NotReached):
                    lost.add(life(member))
                if len(lost) >= MOST_DEATHS and role == "tokenizer":
                    raise _killed(len(lost)) from error
                if asyncio.get_running_loop().time() >= deadline:
                    raise (_full(role) if isinstance(error, Busy) else missing(role)) from error
                failures.append(life(member))
                await self.pause(len(failures) - 1)


def life(member: Member) -> Life:
    return member.instance, member.epoch


def missing(role: str) -> ApiError:
    message = f"No {role} is ready; it may be restarting. Try again"
    return ApiError(503, message, code=f"no_{role}", retry_after=RETRY_MISSING)


def _killed(deaths: int) -> ApiError:
    message = f"{deaths} tokenizers died while they had this text; it is not tried again"
    return ApiError(500, message, code="tokenizer_died", final=True)


def _full(role: str) -> ApiError:
    return too_many(f"The {role} has as much to do as it can hold; try again")


def too_large() -> ApiError:
    return ApiError(413, "The text or its tokens are more than this server can read", code="request_too_large")
