"""Block drafters whose text is values of the target model alone (models/heads/dflash.py).

    text         . . . t|u         u: the last token, not computed by the target yet, at position n
    stored       values of positions 0 .. n-1, made into keys and values of every layer
    the pass     u, mask, mask, ...     at n, n+1, ...: logits of the masks, or of all but the last row ─▶ k tokens

The rows of the pass are overwritten by the text's own.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from services.api.drafter import NO_DRAFT, Committed, Draft, DraftRequest
from services.worker.running.head import HeadRows
from services.worker.speculation.heads.block import BlockDrafter
from services.worker.speculation.heads.head_drafter import Following, read_now, wait_in_place


class ContextBlockDrafter(BlockDrafter):
    def commit(self, results: Sequence[Committed]) -> None:
        rows, features = read_now(self._known, results, wait_in_place, asks=False)
        if rows:
            self._model.store([*rows.values()], self._model.hidden(torch.cat(features)))

    def draft(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        rows = [self._block(self._known[each.text.text_id], each) for each in requests]
        going = [place for place, row in enumerate(rows) if row.wanted > 0]
        drafts = [NO_DRAFT] * len(requests)
        if going:
            rows, asked = [rows[place] for place in going], [requests[place] for place in going]
            logits, _ = self._model.forward(rows, None)
            for place, draft in zip(going, self._drafts(asked, rows, logits), strict=True):
                drafts[place] = draft
        return drafts

    def _block(self, following: Following, request: DraftRequest) -> HeadRows:
        mask = self._model.head.mask
        assert mask is not None
        # A draft may not end behind the context.
        count = min(request.budget, mask.block, self._max_context - following.position - 1)
        masks = max(count - mask.by_last_token, 0)
        tokens = [request.text.tokens[-1], *[mask.token] * masks]
        return HeadRows(tokens, following.position, following.pages, count)
