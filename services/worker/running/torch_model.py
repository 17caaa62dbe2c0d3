"""TorchModel: a network, its KV pages and its facts, for the runner. Knows no scheduler and no sockets.

`forward` takes rows of any sequences at once: prefill chunks, drafts to verify and single decode steps are all
tokens at positions, whose keys and values go to given pages. Rejected drafts need no undoing: the next call
overwrites their positions, and no row looks past its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from models.batch import Stretch, tree_slots
from models.branches import own_pages
from models.executor import Executor, Output
from models.passes import forward
from services.api.draft_tree import depths
from services.worker.parallel.executor import ParallelExecutor
from services.worker.running.head import HeadModel, ResidualModel
from services.worker.running.page_memory import PageMemory, TorchPages
from services.worker.running.runner import Facts
from services.worker.running.verifier import Verifier


@dataclass(slots=True)
class ForwardRows:
    """Tokens of one sequence at positions start..start+len-1. `pages` covers all positions up to the last
    of them; logits are wanted for tokens logits_from.. (== len(tokens): none). With `parents` the first token is
    followed by a tree (models/batch.py), and `pages` covers as many positions as its longest path has."""

    tokens: list[int]
    start: int
    pages: list[int]
    logits_from: int
    parents: Sequence[int] = ()


class TorchModel:
    def __init__(
        self,
        executor: Executor,
        facts: Facts,
        verifier: Verifier,
        elsewhere: bool = False,
        head: HeadModel | ResidualModel | None = None,
    ) -> None:
        """`elsewhere`: whether `forward` returns before anything is computed. `head`: what a drafter computes with."""
        self.head = head
        self.facts = facts
        self.verifier = verifier
        self.elsewhere = elsewhere
        self.executor = executor
        # Of a GPU's steps and of ranks, for metrics.
        self.counts: Callable[[], dict[str, int]] = dict
        # The trees of the last call, by their index in it.
        self._trees: dict[int, Stretch] = {}

    def forward(self, rows: Sequence[ForwardRows]) -> Output:
        """Logits of the wanted rows, float32 [wanted, vocab_size], and with taps the features of all rows, both in
        the given order. They are valid until the next call.

        With facts.strict a row's logits have the same bits in any batch and however its prompt was split.
        """
        for item in rows:
            self._assert_covered(item)
        if not rows:
            return Output(torch.empty(0, self.facts.vocab_size))
        self._trees = self._with_branches(rows)
        stretches = [
            self._trees.get(index) or Stretch(item.tokens, item.start, item.pages, item.logits_from)
            for index, item in enumerate(rows)
        ]
        return forward(self.executor, stretches, self.facts.page_tokens)

    def _with_branches(self, rows: Sequence[ForwardRows]) -> dict[int, Stretch]:
        found: dict[int, Stretch] = {}
        spare = self.facts.pages
        for index, item in enumerate(rows):
            if item.parents:
                needed = own_pages(item.parents, item.start, self.facts.page_tokens)
                own = range(spare, spare + needed)
                found[index] = Stretch(item.tokens, item.start, item.pages, item.logits_from, item.parents, own)
                spare += needed
        assert spare <= self.facts.pages + self.facts.branch_pages
        return found

    def keep(self, paths: Sequence[tuple[int, list[int]]]) -> None:
        """For trees of the last call, by their index in it: the rows of the accepted path, in order. Their keys and
        values move to the sequence's own pages, where those of a chain would be."""
        size = self.facts.page_tokens
        moves: list[tuple[int, int]] = []
        for index, path in paths:
            tree = self._trees[index]
            slots = tree_slots(tree, size)[path].tolist()
            places = range(tree.start + 1, tree.start + 1 + len(path))
            own = [tree.pages[place // size] * size + place % size for place in places]
            moves += [move for move in zip(slots, own, strict=True) if move[0] != move[1]]
        self.executor.move(moves)

    def copy_page(self, source: int, target: int) -> None:
        self.executor.copy_page(source, target)
        if self.head is not None:
            self.head.copy_page(source, target)

    def page_memory(self) -> PageMemory:
        """The pages' bytes, those of the drafter's layers among them, which rank 0 has alone."""
        facts, executor = self.facts, self.executor
        layers = [*executor.page_memory(), *(self.head.page_memory() if self.head is not None else ())]
        model = f"{facts.path_name} {executor.computed_by} {facts.dtype} {facts.parameters} {facts.vocabulary}"
        return TorchPages(layers, model, executor.other_ranks() if isinstance(executor, ParallelExecutor) else None)

    def _assert_covered(self, item: ForwardRows) -> None:
        end = item.start + (1 + max(depths(len(item.parents), item.parents)) if item.parents else len(item.tokens))
        assert item.tokens and item.start >= 0 and end <= self.facts.max_context
        assert len(item.pages) * self.facts.page_tokens >= end
        assert min(item.pages) >= 0 and max(item.pages) < self.facts.pages
        assert min(item.tokens) >= 0 and max(item.tokens) < self.facts.vocab_size
        assert 0 <= item.logits_from <= len(item.tokens)
