"""Medusa and Hydra: a head for each of the next tokens, read off the target's last hidden value. Drafts are chains or
trees."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

import torch

from models.gpu.chain import likeliest
from services.api.drafter import Committed, Draft, DraftRequest, Needs
from services.api.tree_shape import Shape, read_shape
from services.worker.running.head import ResidualModel
from services.worker.speculation.heads.choice import DraftChain, choose, fetched
from services.worker.speculation.heads.draft_tree import DraftTree, apart, grow

if TYPE_CHECKING:
    from services.api.settings import Settings
    from services.worker.running.torch_model import TorchModel


class ResidualDrafter:
    needs: ClassVar[Needs] = Needs.FEATURES
    gives_probs: ClassVar[bool] = True

    def __init__(self, name: str, settings: Settings | None, model: TorchModel) -> None:
        assert isinstance(model.head, ResidualModel)
        self.name = name
        self._model = model.head
        self._vocab_size = model.facts.vocab_size
        self._shape = read_shape(settings.draft_tree_shape) if settings else Shape()
        # The hidden value that the next draft is read off, by sequence.
        self._hidden: dict[int, torch.Tensor] = {}
        # Whether a look at a token waits for a device.
        self._waits = model.elsewhere

    def commit(self, results: Sequence[Committed]) -> None:
        for each in results:
            self._hidden[each.text_id] = each.features[-1]

    def draft(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        return apart(requests, self._draft_trees, self._draft_chains)

    def _draft_trees(self, requests: list[DraftRequest]) -> list[Draft]:
        trees = [DraftTree(each, self._shape) for each in requests]
        for index in range(len(self._model)):
            going = [tree for tree in trees if tree.frontier]
            if not going:
                break
            nodes = [(tree, node) for tree in going for node in tree.frontier]
            hidden = torch.stack([self._hidden[tree.request.text.text_id] for tree, _ in nodes])
            read = [[tree.request.text.tokens[-1], *tree.path_to(node)] for tree, node in nodes]
            grow(going, self._model.logits(index, hidden, torch.tensor(read)), self._model.ids, self._shape)
        return [tree.made(self.name) for tree in trees]

    def _draft_chains(self, requests: list[DraftRequest]) -> list[Draft]:
        chains = [DraftChain(each) for each in requests]
        if self._waits and not any(each.temperature for each in requests):
            return self._draft_without_waits(chains)
        for index in range(len(self._model)):
            going = [chain for chain in chains if not chain.full]
            if not going:
                break
            hidden = torch.stack([self._hidden[chain.request.text.text_id] for chain in going])
            read = [[chain.request.text.tokens[-1], *chain.tokens] for chain in going]
            logits = self._model.logits(index, hidden, torch.tensor(read))
            choose(going, logits, self._model.ids, self._vocab_size)
        return [chain.made(self.name) for chain in chains]

    def _draft_without_waits(self, chains: list[DraftChain]) -> list[Draft]:
        """All heads, and only then a look at their tokens: a look waits for the device."""
        hidden = torch.stack([self._hidden[chain.request.text.text_id] for chain in chains])
        read = torch.tensor([chain.request.text.tokens[-1:] for chain in chains]).to(hidden.device)
        passes = []
        for index in range(min(len(self._model), max(chain.request.budget for chain in chains))):
            passes.append(likeliest(self._model.logits(index, hidden, read), self._model.ids))
            read = torch.cat([read, passes[-1][0][:, None]], dim=1)
        for chain, tokens in zip(chains, fetched(passes) if passes else (), strict=False):
            chain.take(tokens)
        return [chain.made(self.name) for chain in chains]

    def forget(self, text_ids: Sequence[int]) -> None:
        for text_id in text_ids:
            self._hidden.pop(text_id, None)
