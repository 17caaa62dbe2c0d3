"""MTP blocks of which each drafts one token further than the one before it. A single block is read as other heads are.

    text        t0 .. tn         tn: the last token, not computed by the target yet
    block k     its row i reads token i + k beside what block k - 1 made of row i; the first one, the target's value

                row    n-3    n-2    n-1
    block 1    token   n-2    n-1    n      ─▶ a, token n+1
    block 2            n-1    n      a      ─▶ b
    block 3            n      a      b      ─▶ c

Rows behind the last that reads a token of the text are computed again when these tokens are known.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch

from services.api.drafter import Committed, Draft, DraftRequest
from services.worker.running.head import HeadModel, HeadRows
from services.worker.speculation.heads.choice import DraftChain, choose
from services.worker.speculation.heads.head_drafter import HeadDrafter, read_now

if TYPE_CHECKING:
    from services.api.settings import Settings
    from services.worker.running.torch_model import TorchModel


class _Ends(NamedTuple):
    """Of a text read up to `position`: what each block but the last made of its last row that reads only text."""

    position: int
    values: list[torch.Tensor]


class MtpDrafter(HeadDrafter):
    def __init__(self, name: str, settings: Settings | None, model: TorchModel) -> None:
        super().__init__(name, settings, model)
        self._blocks = [self._model, *self._model.more]
        self._ends: dict[int, _Ends] = {}

    def forget(self, text_ids: Sequence[int]) -> None:
        super().forget(text_ids)
        for text_id in text_ids:
            self._ends.pop(text_id, None)

    def commit(self, results: Sequence[Committed]) -> None:
        if len(self._blocks) == 1:
            super().commit(results)
            return
        rows, features = read_now(self._known, results, self._wait)
        if rows:
            self._read(rows, self._model.hidden(torch.cat(features)))

    def _read(self, rows: dict[int, HeadRows], hidden: torch.Tensor) -> None:
        """By all blocks, as far as they read text alone."""
        before = {text_id: self._ends_before(text_id, row.start) for text_id, row in rows.items()}
        for text_id, row in rows.items():
            self._ends[text_id] = _Ends(row.start + len(row.tokens), [])
        for depth, block in enumerate(self._blocks):
            output = block.forward_all([*rows.values()], hidden)
            assert output.features is not None
            if depth == 0:
                logits = iter(output.logits)
                for text_id, row in rows.items():
                    self._known[text_id].logits = next(logits) if row.wanted else None
            further: dict[int, HeadRows] = {}
            parts: list[torch.Tensor] = []
            made = torch.split(output.features, [len(row.tokens) for row in rows.values()])
            for (text_id, row), values in zip(rows.items(), made, strict=True):
                self._ends[text_id].values.append(values[-1:].clone())
                ends = before[text_id][depth : depth + 1]
                # The first row of a text that is new has nothing before it.
                tokens = row.tokens[1 - len(ends) :]
                if tokens:
                    further[text_id] = HeadRows(tokens, row.start - len(ends), row.pages, 0)
                    parts += [*ends, values[:-1]]
            if not further:
                break
            rows, hidden = further, torch.cat(parts)

    def _ends_before(self, text_id: int, start: int) -> list[torch.Tensor]:
        ends = self._ends.get(text_id)
        return ends.values if ends is not None and ends.position == start else []

    def draft(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        if len(self._blocks) == 1:
            return super().draft(requests)
        chains = [DraftChain(each) for each in requests]
        going = [chain for chain in chains if not chain.full]
        if not going:
            return [chain.made(self.name) for chain in chains]
        logits = torch.stack([self._known[chain.request.text.text_id].last_logits() for chain in going])
        made: dict[int, torch.Tensor] = {}
        for depth, block in enumerate([*self._blocks[1:], None]):
            choose(going, logits, self._model.ids, self._vocab_size)
            going = [
                chain for chain in going
                if not chain.full and len(self._ends[chain.request.text.text_id].values) > depth
            ]  # fmt: skip
            if block is None or not going:
                break
            logits, made = self._further(block, depth, going, made)
        return [chain.made(self.name) for chain in chains]

    def _further(
        self, block: HeadModel, depth: int, chains: Sequence[DraftChain], made: dict[int, torch.Tensor]
    ) -> tuple[torch.Tensor, dict[int, torch.Tensor]]:
        """Of the rows that read the chains' tokens: the last one's logits, and what the block makes of all. `made`:
        what the block before it did."""
        rows: list[HeadRows] = []
        hidden: list[torch.Tensor] = []
        ids = [chain.request.text.text_id for chain in chains]
        for chain, text_id in zip(chains, ids, strict=True):
            following, ends = self._known[text_id], self._ends[text_id].values
            rows.append(HeadRows([*chain.tokens], following.position - depth - 1, following.pages, 1))
            hidden += [ends[depth], *([made[text_id]] if depth else [])]
        output = block.forward_all(rows, torch.cat(hidden))
        assert output.features is not None
        values = torch.split(output.features, [len(row.tokens) for row in rows])
        return output.logits, dict(zip(ids, values, strict=True))
