"""Block drafter (models/heads/block.py): a draft of k tokens from one pass over k rows.

    text         . . . t u|                       u: the last token, not computed by the target yet
    the pass     (t, hidden of .) (u, hidden of t) (mask) (mask) ...     logits of the last k rows ─▶ k tokens

The rows of masks follow the text's last row, where draft tokens' rows would be, and the text's own rows overwrite them.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch

from services.api.drafter import Committed, Draft, DraftRequest
from services.worker.running.head import HeadRows
from services.worker.speculation.heads.choice import DraftChain, choose
from services.worker.speculation.heads.head_drafter import Following, HeadDrafter


class BlockDrafter(HeadDrafter):
    def commit(self, results: Sequence[Committed]) -> None:
        """Rows of texts that a draft is asked for wait for `draft`, which comes next: it adds the masks."""
        super().commit([each for each in results if not each.asked])
        for each in results:
            if each.asked:
                following = self._known.setdefault(each.text_id, Following())
                self._wait(each, following)
                following.pages = each.pages

    def draft(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        rows: list[HeadRows] = []
        hidden: list[torch.Tensor] = []
        for each in requests:
            following = self._known[each.text.text_id]
            hidden.append(self._model.hidden(torch.cat(following.features)))
            rows.append(self._with_masks(following, each.budget, hidden))
        logits, _ = self._model.forward(rows, torch.cat(hidden))
        return self._drafts(requests, rows, logits)

    def _drafts(
        self, requests: Sequence[DraftRequest], rows: Sequence[HeadRows], logits: torch.Tensor
    ) -> list[Draft]:
        """From the logits of the wanted rows."""
        chains = [DraftChain(each) for each in requests]
        counts = [row.wanted for row in rows]
        firsts = [end - count for end, count in zip(accumulate(counts), counts, strict=True)]
        for place in range(max(counts)):
            # However small its chance is: the pass that a token might not be worth is made.
            going = [index for index, count in enumerate(counts) if place < count]
            before = [[chains[index].request.text.tokens[-1], *chains[index].tokens][-1] for index in going]
            of_place = self._model.behind(logits[[firsts[index] + place for index in going]], before)
            choose([chains[index] for index in going], of_place, self._model.ids, self._vocab_size)
        return [chain.made(self.name) for chain in chains]

    def _with_masks(self, following: Following, budget: int, hidden: list[torch.Tensor]) -> HeadRows:
        """The rows of a text that waited, and those of its draft's masks, whose hidden values join `hidden`."""
        mask = self._model.head.mask
        assert mask is not None and self._model.mask_hidden is not None
        count = min(budget, mask.block or budget)
        text = following.rows(count)
        hidden.append(self._model.mask_hidden.expand(count - 1, -1))
        return HeadRows([*text.tokens, *[mask.token] * (count - 1)], text.start, text.pages, count)
