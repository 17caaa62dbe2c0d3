"""Drafters with a network of their own: draft model, MTP, EAGLE, EAGLE-3. A draft is a chain, a pass for each token.

    text         . . . t u|                       u: the last token, not computed by the target yet
    commit       (t, hidden of .) (u, hidden of t)   ─▶ first draft token a, hidden
    draft        (a, that hidden) ─▶ b, hidden ─▶ ...

A network that reads hidden values has its row for a token where the value comes from, one position before the token.
What it computed for its own draft is computed again for accepted tokens, now with the target's values. A draft model
reads tokens alone: a token has its own position, and what it has read of accepted tokens stays.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

import torch

from services.api.drafter import Committed, Draft, DraftRequest, Needs
from services.worker.running.head import HeadModel, HeadRows
from services.worker.speculation.local.choice import Chain, choose

if TYPE_CHECKING:
    from services.api.settings import Settings
    from services.worker.running.torch_model import TorchModel

# Rows of a text that no draft is asked for wait until there are this many: `auto` asks only now and then.
WAITING_ROWS = 32


class _Following:
    """A text that the network has read."""

    __slots__ = ("hidden", "logits", "pages", "position", "read", "waiting")

    def __init__(self) -> None:
        self.pages: list[int] = []
        # Position of the next row; logits and hidden value of the last one.
        self.position = 0
        self.logits: torch.Tensor | None = None
        self.hidden: torch.Tensor | None = None
        # The last tokens that it has read: the text's last one, then those of its own draft.
        self.read: list[int] = []
        # Rows of the text that no draft needed yet.
        self.waiting: HeadRows | None = None

    def with_waiting(self, row: HeadRows) -> HeadRows:
        """The rows that wait, then these."""
        before, self.waiting = self.waiting, None
        if before is None or before.start + len(before.tokens) != row.start:
            return row
        hidden = None if before.hidden is None or row.hidden is None else torch.cat([before.hidden, row.hidden])
        return HeadRows([*before.tokens, *row.tokens], before.start, row.pages, hidden, row.wanted)

    def next_row(self, token: int) -> HeadRows:
        """The row of a draft token."""
        hidden = None if self.hidden is None else self.hidden[None]
        row = HeadRows([token], self.position, self.pages, hidden, True)
        self.position += 1
        self.read.append(token)
        return row

    def last_logits(self) -> torch.Tensor:
        assert self.logits is not None, "a draft is asked for behind the whole text"
        return self.logits

    def already_read(self, each: Committed, tokens: list[int]) -> int:
        """How many of these tokens of the text a draft model need not read again; the last one it always reads, for
        its logits."""
        if each.start != self.position - len(self.read) or each.pages[: len(self.pages)] != self.pages:
            return 0
        same = 0
        while same < min(len(self.read), len(tokens) - 1) and tokens[same] == self.read[same]:
            same += 1
        return same


class HeadDrafter:
    name: ClassVar[str]
    needs: ClassVar[Needs] = Needs.FEATURES
    gives_probs: ClassVar[bool] = True

    def __init__(self, settings: Settings, model: TorchModel) -> None:
        assert isinstance(model.head, HeadModel)
        self._model = model.head
        self._reads_hidden = self._model.head.network.entry is not None
        self._vocab_size = model.facts.vocab_size
        self._known: dict[int, _Following] = {}

    def forget(self, sequence_ids: Sequence[int]) -> None:
        for sequence_id in sequence_ids:
            self._known.pop(sequence_id, None)

    # Text ------------------------------------------------------------------------------------------------

    def commit(self, results: Sequence[Committed]) -> None:
        rows: list[HeadRows] = []
        known: list[_Following] = []
        for each in results:
            following = self._known.setdefault(each.sequence_id, _Following())
            row = following.with_waiting(self._rows(each, following))
            if each.asked or len(row.tokens) >= WAITING_ROWS:
                rows.append(row)
                known.append(following)
            else:
                following.waiting = row
        if not rows:
            return
        logits, values = self._model.forward(rows)
        wanted = 0
        for index, (row, following) in enumerate(zip(rows, known, strict=True)):
            following.pages, following.read = row.pages, row.tokens[-1:]
            following.position = row.start + len(row.tokens)
            following.hidden = None if values is None else values[index]
            following.logits = None
            if row.wanted:
                following.logits = logits[wanted]
                wanted += 1

    def _rows(self, each: Committed, following: _Following) -> HeadRows:
        if self._reads_hidden:
            tokens = [*each.tokens[1:], each.following]
            # A copy where it waits: features are valid until the next step.
            hidden = self._model.hidden(each.features)
            hidden = hidden if each.asked or hidden is not each.features else hidden.clone()
            return HeadRows(tokens, each.start, each.pages, hidden, each.asked)
        # There is room for the row of the next token only if a draft is asked for.
        tokens = [*each.tokens, each.following] if each.asked else each.tokens
        same = following.already_read(each, tokens)
        return HeadRows(tokens[same:], each.start + same, each.pages, None, each.asked)

    # Drafts ----------------------------------------------------------------------------------------------

    def draft(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        chains = [Chain(each) for each in requests]
        known = [self._known[each.text.sequence_id] for each in requests]
        going = [pair for pair in zip(chains, known, strict=True) if not pair[0].full]
        logits = torch.stack([following.last_logits() for _, following in going]) if going else None
        while going:
            assert logits is not None
            choose([chain for chain, _ in going], logits, self._model.ids, self._vocab_size)
            going = [pair for pair in going if not pair[0].full]
            if going:
                rows = [following.next_row(chain.tokens[-1]) for chain, following in going]
                logits, values = self._model.forward(rows)
                for index, (_, following) in enumerate(going):
                    following.hidden = None if values is None else values[index]
        return [chain.made(self.name) for chain in chains]
