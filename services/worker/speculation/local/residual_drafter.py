"""Medusa and Hydra: a head for each of the next tokens, read off the target's last hidden value. Drafts are chains or
trees."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

import torch

from services.api.drafter import NO_DRAFT, Committed, Draft, DraftRequest, Needs
from services.api.tree_shape import Shape, read_shape
from services.worker.running.head import ResidualModel
from services.worker.speculation.local.choice import Chain, choose
from services.worker.speculation.local.draft_tree import DraftTree, apart, grow

if TYPE_CHECKING:
    from services.api.settings import Settings
    from services.worker.running.torch_model import TorchModel


class ResidualDrafter:
    name: ClassVar[str]
    needs: ClassVar[Needs] = Needs.FEATURES
    gives_probs: ClassVar[bool] = True

    def __init__(self, settings: Settings | None, model: TorchModel) -> None:
        assert isinstance(model.head, ResidualModel)
        self._model = model.head
        self._vocab_size = model.facts.vocab_size
        self._shape = read_shape(settings.draft_tree_shape) if settings else Shape()
        # The hidden value that the next draft is read off, by sequence.
        self._hidden: dict[int, torch.Tensor] = {}

    def commit(self, results: Sequence[Committed]) -> None:
        for each in results:
            self._hidden[each.sequence_id] = each.features[-1]

    def draft(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        return apart(requests, self._draft_trees, self._draft_chains)

    def _draft_trees(self, requests: list[DraftRequest]) -> list[Draft]:
        trees = [DraftTree(each, self._shape) for each in requests]
        for index in range(len(self._model)):
            going = [tree for tree in trees if tree.frontier]
            if not going:
                break
            nodes = [(tree, node) for tree in going for node in tree.frontier]
            hidden = torch.stack([self._hidden[tree.request.text.sequence_id] for tree, _ in nodes])
            read = [[tree.request.text.tokens[-1], *tree.path_to(node)] for tree, node in nodes]
            grow(going, self._model.logits(index, hidden, read), self._model.ids, self._shape)
        return [tree.made(self.name) for tree in trees]

    def _draft_chains(self, requests: list[DraftRequest]) -> list[Draft]:
        chains = [Chain(each) for each in requests]
        for index in range(len(self._model)):
            going = [chain for chain in chains if not chain.full]
            if not going:
                break
            hidden = torch.stack([self._hidden[chain.request.text.sequence_id] for chain in going])
            read = [[chain.request.text.tokens[-1], *chain.tokens] for chain in going]
            choose(going, self._model.logits(index, hidden, read), self._model.ids, self._vocab_size)
        return [chain.made(self.name) if chain.tokens else NO_DRAFT for chain in chains]

    def forget(self, sequence_ids: Sequence[int]) -> None:
        for sequence_id in sequence_ids:
            self._hidden.pop(sequence_id, None)
