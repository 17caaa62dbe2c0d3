"""The proposer process: one Propose for a whole batch in, drafts out.

All workers share it, and it may restart at any time. Faults here cost speed and nothing else. Knows no model and no
sampling.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from typing import TYPE_CHECKING

from mesh.actor import Actor, Call
from mesh.errors import Refuse
from services.api.drafter import MAX_DRAFT_TOKENS, Drafter, DraftRequest
from services.api.drafts import PlacedDraft, pack, unpack
from services.api.messages import (
    NO_DRAFTS,
    AddCorpus,
    Corpora,
    DraftColumns,
    Ended,
    ListCorpora,
    Propose,
    Proposed,
    ProposeItem,
    RemoveCorpus,
)
from services.proposer.index import SuffixIndex
from services.proposer.metrics import ProposerMetrics
from services.proposer.names import namespace_key
from services.proposer.registry import make_drafters
from services.proposer.sequences import FollowedSequence, Sequences
from services.proposer.store.library import Library
from services.proposer.store.uploads import CorpusRefused
from services.runtime.introspection import Figures

if TYPE_CHECKING:
    from services.runtime.process import Context

log = logging.getLogger(__name__)

# Interval of looking for new segments, corpora and opened libraries.
REFRESH_EVERY = 0.1  # s
# Seconds of silence after which another server's sequences are forgotten; it ends them itself when it is idle.
GUEST_SILENCE = 600.0
# Longest time that a thread of the library holds the interpreter while a Propose waits.
SWITCH_EVERY = 0.0005  # s

_Group = list[tuple[FollowedSequence, ProposeItem]]


class ProposerActor(Actor):
    answers = {Propose: "propose"}  # noqa: RUF012
    handlers = {  # noqa: RUF012
        AddCorpus: "add_corpus",
        RemoveCorpus: "remove_corpus",
        ListCorpora: "list_corpora",
    }
    mailbox_size = 256
    concurrency = 1

    def __init__(self, context: Context, drafters: dict[str, Drafter] | None = None) -> None:
        settings = context.settings
        self._method: str = settings.method
        self._index = SuffixIndex.open(settings)
        self._drafters = make_drafters(settings, self._index) if drafters is None else drafters
        self._sequences = Sequences(settings.proposer_tokens, self._forget)
        self._metrics = ProposerMetrics(context.registry, self._sequences, self._drafters, self._index)
        self._totals = {"batches": 0.0, "drafts": 0.0, "drafted": 0.0}
        self._clock = context.clock
        self._directory = context.directory
        self._draining = self._started = False

    async def on_start(self) -> None:
        sys.setswitchinterval(SWITCH_EVERY)
        self._directory.on_change(self._drop_lost_workers)
        self._started = True
        self._tend()

    async def on_stop(self) -> None:
        self._started = False
        # The last learned text is written to disk.
        await asyncio.to_thread(self._index.close)

    def propose(self, message: Propose, call: Call) -> Proposed:
        """Follow, draft, learn, answer, without waiting."""
        began = self._clock.now()
        if not self._sequences.meet(message.worker, message.epoch, message.guest, began):
            raise Refuse("stale", f"a newer epoch of {message.worker} is known")
        if message.guest and message.counts is not None:
            self._metrics.engines.tell(message.worker, message.counts)
        if len({item.sequence_id for item in message.items}) < len(message.items):
            raise Refuse("invalid", "two items for one sequence")
        for sequence_id in message.forget:
            self._sequences.forget(message.worker, sequence_id)
        for ended in message.ended:
            self._end(message, ended)
        groups, unknown = self._followed(message)
        drafts = _joined([self._drafts(method, group) for method, group in groups.items()])
        for group in groups.values():
            for sequence, _ in group:
                self._index.follow(sequence.text)
        self._index.work()
        seconds = self._clock.now() - began
        self._totals["batches"] += 1
        self._metrics.took(seconds)
        self._metrics.unknown(len(unknown))
        return Proposed(step=message.step, drafts=drafts, unknown=unknown, seconds=seconds)

    def _end(self, message: Propose, ended: Ended) -> None:
        text = self._sequences.end(message.worker, ended, message.vocabulary)
        if text is not None:
            self._index.end(text)

    def _followed(self, message: Propose) -> tuple[dict[str, _Group], list[int]]:
        """By method the sequences with their new tokens; and the ids whose text is unknown."""
        groups: dict[str, _Group] = {}
        unknown = []
        for item in message.items:
            sequence = self._sequences.follow(message.worker, item, message.vocabulary)
            if sequence is None:
                unknown.append(item.sequence_id)
            else:
                groups.setdefault(item.method or self._method, []).append((sequence, item))
        self._sequences.make_room()
        for method, group in groups.items():
            groups[method] = [(sequence, item) for sequence, item in group if not sequence.muted]
        return groups, unknown

    def _drafts(self, method: str, group: _Group) -> DraftColumns:
        """A drafter that fails costs its drafts, not the batch."""
        drafter = self._drafters.get(method)
        if drafter is None:
            self._metrics.failed("unknown_method")
            return NO_DRAFTS
        requests = [
            DraftRequest(sequence.text, min(item.budget, MAX_DRAFT_TOKENS), item.ahead) for sequence, item in group
        ]
        try:
            found = [
                PlacedDraft(item.sequence_id, sequence.committed + len(item.ahead), draft)
                for (sequence, item), draft in zip(group, drafter.draft(requests), strict=True)
                if draft.tokens
            ]
            columns = pack(found)
        except Exception:
            log.exception("drafter %s failed; it forgets these sequences", method)
            self._metrics.failed("drafter_error")
            drafter.forget([request.text.text_id for request in requests])
            return NO_DRAFTS
        drafted = sum(columns.lengths)
        self._metrics.drafted(method, len(found), drafted)
        self._totals["drafts"] += len(found)
        self._totals["drafted"] += drafted
        return columns

    # Forgetting -------------------------------------------------------------------------------------------

    def _forget(self, text_id: int) -> None:
        for drafter in self._drafters.values():
            drafter.forget([text_id])
        self._index.forget([text_id])

    def _drop_lost_workers(self, *_change: object) -> None:
        """Drop the sequences of workers that left the directory."""
        living = {member.instance for member in self._directory.members("worker") if member.state != "lost"}
        for worker in self._sequences.workers():
            if worker not in living:
                self._sequences.drop_worker(worker)

    # Background work --------------------------------------------------------------------------------------

    def _tend(self) -> None:
        if self._started:
            self._clock.call_later(REFRESH_EVERY, self._tend)
            for guest in self._sequences.silent_guests(self._clock.now() - GUEST_SILENCE):
                self._sequences.drop_worker(guest)
                self._metrics.engines.forget(guest)
            self._index.refresh()
            self._learn()

    def _learn(self) -> None:
        """Learn ended texts, a slice at a time, so that a Propose never waits long."""
        if self._started and self._index.work():
            self._clock.call_later(0.0, self._learn)

    # Corpora ----------------------------------------------------------------------------------------------

    async def add_corpus(self, message: AddCorpus, call: Call) -> Corpora:
        library, namespace = self._library(message)
        try:
            library.add_corpus(namespace, message.name, message.part, message.texts, message.last)
        except CorpusRefused as refused:
            self._metrics.corpus_refused(refused.reason)
            raise Refuse(refused.reason, str(refused)) from None
        return Corpora(corpora=library.corpora(namespace))

    async def remove_corpus(self, message: RemoveCorpus, call: Call) -> Corpora:
        library, namespace = self._library(message)
        library.remove_corpus(namespace, message.name)
        return Corpora(corpora=library.corpora(namespace))

    async def list_corpora(self, message: ListCorpora, call: Call) -> Corpora:
        library, namespace = self._library(message)
        return Corpora(corpora=library.corpora(namespace))

    def _library(self, message: AddCorpus | RemoveCorpus | ListCorpora) -> tuple[Library, str]:
        """The library that keeps the caller's corpora, and the name of its namespace there."""
        namespace = namespace_key(message.vocabulary, message.namespace)
        library = self._index.library(namespace) if namespace else None
        if library is None:
            raise Refuse("unavailable", "this proposer can't keep corpora")
        return library, namespace

    # What the process asks --------------------------------------------------------------------------------

    def ready(self) -> list[str]:
        return ["draining"] if self._draining else []

    def progress_age(self) -> float:
        # A batch is answered without waiting, so no work is ever pending.
        return 0.0

    def load(self) -> int:
        return len(self._sequences)

    def figures(self) -> Figures:
        stats = self._index.stats()
        now: dict[str, float] = {
            "running": len(self._sequences),
            "waiting": stats.waiting_texts,
            "text_tokens": self._sequences.tokens,
            "store_tokens": sum(each.tokens + each.learning_tokens for each in stats.libraries),
        }
        return Figures(now, dict(self._totals))

    async def drain(self, timeout: float) -> None:
        """Workers continue without a proposer; a running `propose` ends before this is called."""
        self._draining = True
        await asyncio.sleep(0)


def _joined(columns: list[DraftColumns]) -> DraftColumns:
    """The drafts of all methods in one message."""
    return columns[0] if len(columns) == 1 else pack(draft for each in columns for draft in unpack(each))
