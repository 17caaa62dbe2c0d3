"""The proposer process: one Propose for a whole batch in, drafts out.

It is shared by every target, may restart at any time, and owes nobody an answer in time: whatever goes
wrong here costs speed and nothing else. Knows no model and no sampling.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from mesh.actor import Actor, Call
from mesh.errors import Refuse
from services.messages import DraftItem, Propose, Proposed
from services.proposer.draft import EMPTY, MAX_DRAFT_TOKENS, Draft
from services.proposer.metrics import ProposerMetrics
from services.proposer.proposer import Ask, Proposer
from services.proposer.registry import make_proposers
from services.proposer.sequences import Sequence, Sequences

if TYPE_CHECKING:
    from services.process import Context

log = logging.getLogger(__name__)


class ProposerActor(Actor):
    handlers = {Propose: "propose"}  # noqa: RUF012
    # A target has one question open at a time; what doesn't fit here would be too late anyway.
    mailbox_size = 256
    concurrency = 1

    def __init__(self, context: Context, proposers: dict[str, Proposer] | None = None) -> None:
        settings = context.settings
        self._method: str = settings.method
        self._proposers = make_proposers(settings) if proposers is None else proposers
        self._sequences = Sequences(settings.proposer_tokens, self._forget_everywhere)
        self._metrics = ProposerMetrics(context.registry, context.clock, self._sequences, self._proposers)
        self._directory = context.directory
        self._draining = False

    async def on_start(self) -> None:
        self._directory.on_change(self._drop_lost_targets)

    async def propose(self, message: Propose, call: Call) -> Proposed:
        with self._metrics.timed():
            return self._answer(message)

    def _answer(self, message: Propose) -> Proposed:
        """Follow, guess, answer; nothing in between waits."""
        if not self._sequences.meet(message.target, message.epoch):
            raise Refuse("stale", f"a newer epoch of {message.target} is known")
        for sequence_id in message.forget:
            self._sequences.forget(message.target, sequence_id)
        unknown: list[int] = []
        asked: dict[str, list[tuple[Sequence, int]]] = {}
        for item in message.items:
            sequence = self._sequences.follow(message.target, item)
            if sequence is None:
                unknown.append(item.sequence_id)
            else:
                asked.setdefault(item.method or self._method, []).append((sequence, item.budget))
        self._sequences.make_room()
        self._metrics.unknown(len(unknown))
        drafts = [item for method, group in asked.items() for item in self._drafts(method, group)]
        return Proposed(step=message.step, drafts=drafts, unknown=unknown)

    def _drafts(self, method: str, group: list[tuple[Sequence, int]]) -> list[DraftItem]:
        sequences = [sequence for sequence, _ in group if not sequence.muted]
        budgets = [min(budget, MAX_DRAFT_TOKENS) for sequence, budget in group if not sequence.muted]
        asks = [Ask(sequence.view, budget) for sequence, budget in zip(sequences, budgets, strict=True)]
        drafts = self._guess(method, asks)
        answers = [
            DraftItem(
                sequence_id=sequence.target_sequence_id,
                committed=sequence.committed,
                tokens=draft.tokens,
                source=draft.source,
                match_length=draft.match_length,
                parents=draft.parents,
                chances=draft.chances,
            )
            for sequence, draft in zip(sequences, drafts, strict=True)
            if draft.tokens
        ]
        self._metrics.drafted(method, len(answers), sum(len(answer.tokens) for answer in answers))
        return answers

    def _guess(self, method: str, asks: list[Ask]) -> list[Draft]:
        proposer = self._proposers.get(method)
        if proposer is None:
            self._metrics.failed("unknown_method")
            return [EMPTY] * len(asks)
        try:
            return proposer.propose(asks)
        # A proposer that trips costs its drafts, not the batch: the target goes on without them.
        except Exception:
            log.exception("proposer %s failed; its sequences start anew", method)
            self._metrics.failed("proposer_error")
            for ask in asks:
                proposer.forget(ask.view.sequence_id)
            return [EMPTY] * len(asks)

    # Forgetting -----------------------------------------------------------------------------------------

    def _forget_everywhere(self, view_id: int) -> None:
        for proposer in self._proposers.values():
            proposer.forget(view_id)

    def _drop_lost_targets(self, *_change: object) -> None:
        """Targets that left the directory took their sequences with them."""
        living = {member.instance for member in self._directory.members("target") if member.state != "lost"}
        for target in self._sequences.targets():
            if target not in living:
                self._sequences.drop_target(target)

    # What the process around us asks -------------------------------------------------------------------

    def ready(self) -> list[str]:
        return ["draining"] if self._draining else []

    def progress_age(self) -> float:
        # A batch is answered without waiting: whoever can ask finds nothing unfinished.
        return 0.0

    def load(self) -> int:
        return len(self._sequences)

    async def drain(self, timeout: float) -> None:
        """Targets do without us; what is being answered is done before this line runs."""
        self._draining = True
        await asyncio.sleep(0)
