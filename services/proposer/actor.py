"""The proposer process: one Propose for a whole batch in, drafts out.

It is shared by every target, may restart at any time, and owes nobody an answer in time: whatever goes
wrong here costs speed and nothing else. Knows no model and no sampling.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Iterable
from itertools import chain, compress
from typing import TYPE_CHECKING, TypeVar

from prometheus_client import CollectorRegistry

from mesh import processors
from mesh.actor import Actor, Call
from mesh.errors import Refuse
from services.api.messages import (
    AddCorpus,
    Corpora,
    CorpusCard,
    DraftColumns,
    Ended,
    ListCorpora,
    Propose,
    Proposed,
    ProposeItem,
    RemoveCorpus,
)
from services.proposer.draft import EMPTY, MAX_DRAFT_TOKENS, Guesses
from services.proposer.knowledge import Knowledge
from services.proposer.learning import Learning, joined
from services.proposer.metrics import ProposerMetrics
from services.proposer.proposer import Ask, Proposer, View
from services.proposer.registry import make_proposers
from services.proposer.sequences import Sequence, Sequences
from services.proposer.suffix_store import compiling
from services.proposer.suffix_store.library import CorpusRefused, Library
from services.proposer.suffix_store.memory import POOL
from services.runtime.introspection import Figures

if TYPE_CHECKING:
    from services.runtime.process import Context

log = logging.getLogger(__name__)
_T = TypeVar("_T")

# What a library holds of before is known so much later than it could be: a restarted proposer begins without it.
TEND_EVERY = 0.1  # s
# A text that has ended is learned when its message has been answered: who asks next may be drafted from it.
LEARN_AFTER = 0.002  # s
SWITCH_EVERY = 0.0005  # s
# After a rehearsed question a real one may come within so long.
AWAITED = 0.002  # s


class Books:
    """What is counted. A question that is only rehearsed goes the same way, and into books that nobody reads."""

    def __init__(self, metrics: ProposerMetrics) -> None:
        self.metrics = metrics
        self.totals = {"batches": 0.0, "drafts": 0.0, "drafted": 0.0}


class _Said:
    """An answer, as far as it is noted when it has left."""

    __slots__ = ("books", "grown", "guesses", "seconds", "unknown")

    def __init__(self, books: Books) -> None:
        self.books = books
        # Texts that were asked about, and those that aren't known here.
        self.grown: list[View] = []
        self.unknown: list[int] = []
        # By method.
        self.guesses: dict[str, Guesses] = {}
        self.seconds = 0.0


class _Group:
    """Whom one method is asked about. Columns, as they go into the answer."""

    __slots__ = ("asks", "committed", "sequence_ids", "sequences")

    def __init__(self) -> None:
        self.sequences: list[Sequence] = []
        self.sequence_ids: list[int] = []
        self.committed: list[int] = []
        self.asks: list[Ask] = []

    def add(self, sequence: Sequence, item: ProposeItem) -> None:
        if sequence.muted:
            return
        self.sequences.append(sequence)
        self.sequence_ids.append(item.sequence_id)
        self.committed.append(sequence.committed + len(item.ahead))
        trees = item.trees and compiling.can_branch()
        # What is asked ahead nobody waits for.
        self.asks.append(Ask(sequence.view, min(item.budget, MAX_DRAFT_TOKENS), item.ahead, trees, not item.ahead))

    def leave_out_muted(self) -> None:
        """Of some the text was given up meanwhile."""
        heard = [not sequence.muted for sequence in self.sequences]
        self.sequence_ids = list(compress(self.sequence_ids, heard))
        self.committed = list(compress(self.committed, heard))
        self.asks = list(compress(self.asks, heard))
        self.sequences = list(compress(self.sequences, heard))


class ProposerActor(Actor):
    answers = {Propose: "propose"}  # noqa: RUF012
    handlers = {  # noqa: RUF012
        AddCorpus: "add_corpus",
        RemoveCorpus: "remove_corpus",
        ListCorpora: "list_corpora",
    }
    mailbox_size = 256
    concurrency = 1

    def __init__(self, context: Context, proposers: dict[str, Proposer] | None = None) -> None:
        settings = context.settings
        self._method: str = settings.method
        self._knowledge = knowledge = Knowledge.of(settings)
        self._learning = Learning.of(settings, knowledge)
        self._proposers = make_proposers(settings, knowledge) if proposers is None else proposers
        self._sequences = Sequences(settings.proposer_tokens, self._forget_everywhere)
        self._books, self._unread = (
            Books(ProposerMetrics(registry, self._sequences, self._proposers, self._learning))
            for registry in (context.registry, CollectorRegistry())
        )
        self._said: _Said | None = None
        self._clock = context.clock
        self._directory = context.directory
        self._draining = False
        self._is_candidate: bool = settings.successor
        self._started = self._learns_soon = False

    async def on_start(self) -> None:
        # The library's threads would keep a question waiting for ten times as long.
        sys.setswitchinterval(SWITCH_EVERY)
        self._directory.on_change(self._drop_lost_targets)
        self._started = True
        self._tend()

    async def on_stop(self) -> None:
        self._started = False
        # It writes to disk what was learned last.
        await asyncio.to_thread(self._learning.close)

    def propose(self, message: Propose, call: Call) -> Proposed:
        """Follow, guess, answer; nothing in between waits, and nothing that can be done afterwards is done before."""
        began = self._clock.now()
        # Of an answer that was read together with this question.
        if self._said is not None:
            self._settle()
        if not message.shadow:
            self._is_candidate = False
        if message.rehearsed:
            call.awaited = AWAITED
        if not self._sequences.meet(message.target, message.epoch):
            raise Refuse("stale", f"a newer epoch of {message.target} is known")
        for sequence_id in message.forget:
            self._sequences.forget(message.target, sequence_id)
        for ended in message.ended:
            self._end(message, ended)
        said = _Said(self._unread if message.rehearsed else self._books)
        groups = self._followed(message, said)
        for method, group in groups.items():
            said.guesses[method] = self._guesses(method, group.asks, said)
        said.seconds = self._clock.now() - began
        self._said, call.afterwards = said, self._settle
        drafts = _columns(list(groups.values()), list(said.guesses.values()))
        return Proposed(step=message.step, drafts=drafts, unknown=said.unknown, seconds=said.seconds)

    def _followed(self, message: Propose, said: _Said) -> dict[str, _Group]:
        """Who is asked about, by method."""
        groups: dict[str, _Group] = {}
        for item in message.items:
            sequence = self._sequences.follow(message.target, item)
            if sequence is None:
                said.unknown.append(item.sequence_id)
                continue
            if item.first:
                sequence.view.namespace = joined(message.vocabulary, item.namespace)
            said.grown.append(sequence.view)
            method = item.method or self._method
            if (group := groups.get(method)) is None:
                group = groups[method] = _Group()
            group.add(sequence, item)
        if self._sequences.make_room():
            for group in groups.values():
                group.leave_out_muted()
        return groups

    def _settle(self) -> None:
        """What came of the last answer is counted, and what was new of its texts is kept."""
        said, self._said = self._said, None
        if said is None:
            return
        self._knowledge.settle()
        for view in said.grown:
            self._learning.grown(view)
        metrics, totals = said.books.metrics, said.books.totals
        metrics.took(said.seconds)
        metrics.unknown(len(said.unknown))
        totals["batches"] += 1
        for method, guesses in said.guesses.items():
            drafts, tokens = sum(map(bool, guesses.lengths)), sum(guesses.lengths)
            metrics.drafted(method, drafts, tokens)
            totals["drafts"] += drafts
            totals["drafted"] += tokens

    def _end(self, message: Propose, ended: Ended) -> None:
        view = self._sequences.end(message.target, ended)
        if view is None:
            return
        if ended.first:
            view.namespace = joined(message.vocabulary, ended.namespace)
        self._learning.ended(view)
        self._learn_soon(LEARN_AFTER)

    def _guesses(self, method: str, asks: list[Ask], said: _Said) -> Guesses:
        proposer = self._proposers.get(method)
        if proposer is None:
            said.books.metrics.failed("unknown_method")
            return Guesses.of([EMPTY] * len(asks))
        try:
            return Guesses.of(proposer.propose(asks))
        # A proposer that trips costs its drafts, not the batch: the target goes on without them.
        except Exception:
            log.exception("proposer %s failed; its sequences start anew", method)
            said.books.metrics.failed("proposer_error")
            for ask in asks:
                proposer.forget(ask.view.sequence_id)
            return Guesses.of([EMPTY] * len(asks))

    # Forgetting -----------------------------------------------------------------------------------------

    def _forget_everywhere(self, view_id: int) -> None:
        for proposer in self._proposers.values():
            proposer.forget(view_id)
        self._learning.forgotten(view_id)

    def _drop_lost_targets(self, *_change: object) -> None:
        """Targets that left the directory took their sequences with them."""
        living = {member.instance for member in self._directory.members("worker") if member.state != "lost"}
        for target in self._sequences.targets():
            if target not in living:
                self._sequences.drop_target(target)

    # What was learned -----------------------------------------------------------------------------------

    def _tend(self) -> None:
        """What the library has made since is looked for, and what waits to be learned."""
        if self._started:
            self._clock.call_later(TEND_EVERY, self._tend)
            self._learning.refresh()
            if not POOL.is_prepared():
                asyncio.get_running_loop().run_in_executor(None, _prepare_pool)
            self._learn_soon(0.0)

    def _learn_soon(self, delay: float) -> None:
        if self._learning.waiting and self._started and not self._learns_soon:
            self._learns_soon = True
            self._clock.call_later(delay, self._learn)

    def _learn(self) -> None:
        """Texts that wait, a slice of them: questions come in between."""
        self._learns_soon = False
        if self._started and compiling.is_compiled():
            self._learning.work()
            self._learn_soon(0.0)

    async def add_corpus(self, message: AddCorpus, call: Call) -> Corpora:
        library, namespace = self._library(message)
        try:
            library.add_corpus(namespace, message.name, message.part, message.texts, message.last)
        except CorpusRefused as refused:
            raise Refuse("invalid", str(refused)) from None
        return _corpora(library, namespace)

    async def remove_corpus(self, message: RemoveCorpus, call: Call) -> Corpora:
        library, namespace = self._library(message)
        library.remove_corpus(namespace, message.name)
        return _corpora(library, namespace)

    async def list_corpora(self, message: ListCorpora, call: Call) -> Corpora:
        return _corpora(*self._library(message))

    def _library(self, message: AddCorpus | RemoveCorpus | ListCorpora) -> tuple[Library, str]:
        namespace = joined(message.vocabulary, message.namespace)
        library = self._learning.library(message.vocabulary) if namespace else None
        if library is None:
            raise Refuse("unavailable", "this proposer can't keep corpora")
        return library, namespace

    # What the process around us asks -------------------------------------------------------------------

    def ready(self) -> list[str]:
        return ["draining"] if self._draining else []

    def candidate(self) -> bool:
        """Whether it was started to take over, and nobody has asked it for drafts to use yet."""
        return self._is_candidate

    def progress_age(self) -> float:
        # A batch is answered without waiting: whoever can ask finds nothing unfinished.
        return 0.0

    def load(self) -> int:
        return len(self._sequences)

    def figures(self) -> Figures:
        now: dict[str, float] = {
            "running": len(self._sequences),
            "waiting": self._learning.waiting,
            "text_tokens": self._sequences.tokens,
            "store_tokens": sum(each.tokens + each.learning_tokens for each in self._learning.stats()),
        }
        return Figures(now, dict(self._books.totals))

    async def drain(self, timeout: float) -> None:
        """Targets do without us; what is being answered is done before this line runs."""
        self._draining = True
        await asyncio.sleep(0)


def _columns(groups: list[_Group], found: list[Guesses]) -> DraftColumns:
    """As the drafts lie in memory; who gets none isn't spoken of."""
    if len(found) == 1 and found[0].parents is None and all(found[0].lengths):
        [group], [guesses] = groups, found
        return DraftColumns(
            group.sequence_ids, group.committed, guesses.lengths, guesses.sources, guesses.match_lengths, [],
            guesses.tokens, guesses.chances,
        )  # fmt: skip
    lengths = [length for guesses in found for length in guesses.lengths]

    def drafted(values: Iterable[Iterable[_T]]) -> list[_T]:
        return list(compress(chain.from_iterable(values), lengths))

    return DraftColumns(
        sequence_ids=drafted(group.sequence_ids for group in groups),
        committed=drafted(group.committed for group in groups),
        lengths=drafted(guesses.lengths for guesses in found),
        sources=drafted(guesses.sources for guesses in found),
        match_lengths=drafted(guesses.match_lengths for guesses in found),
        parents=drafted(guesses.all_parents() for guesses in found)
        if any(guesses.parents for guesses in found)
        else [],
        tokens=b"".join(guesses.tokens for guesses in found),
        chances=b"".join(guesses.chances for guesses in found),
    )


def _prepare_pool() -> None:
    processors.anywhere()
    POOL.prepare()


def _corpora(library: Library, namespace: str) -> Corpora:
    cards = library.corpora(namespace)
    return Corpora(
        corpora=[
            CorpusCard(
                name=card.name,
                state=card.state,
                texts=card.texts,
                tokens=card.tokens,
                progress=card.progress,
                message=card.message,
            )
            for card in cards
        ]
    )
