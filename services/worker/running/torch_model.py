"""TorchModel: a network, its KV pages and its facts, for the runner. Knows no scheduler and no sockets.

`forward` takes rows of any sequences at once: prefill chunks, drafts to verify and single decode steps are all
tokens at positions, whose keys and values go to given pages. Rejected drafts need no undoing: the next call
overwrites their positions, and no row looks past its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from models.batch import Bounds, Stretch, make_batch, tree_slots
from models.branches import own_pages
from models.executor import Executor, Fed, Output
from models.passes import forward
from services.worker.parallel.executor import ParallelExecutor
from services.worker.running.head import HeadModel, ResidualModel
from services.worker.running.page_memory import PageMemory, TorchPages
from services.worker.running.runner import Facts
from services.worker.running.verifier import Verifier


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
        self._fed = executor if isinstance(executor, Fed) and executor.feeds else None
        # Of a GPU's steps and of ranks, for metrics.
        self.counts: Callable[[], dict[str, int]] = dict
        self._bounds = Bounds(facts.vocab_size, facts.max_context, facts.pages + facts.branch_pages)
        # Of the last call.
        self._stretches: Sequence[Stretch] = ()

    @property
    def feeds(self) -> bool:
        """Whether `forward` may be given the last step's tokens on the device."""
        return self._fed is not None

    def forward(self, stretches: Sequence[Stretch], given: torch.Tensor | None = None, fed: int = 0) -> Output:
        """Logits of the wanted rows, float32 [wanted, vocab_size], and with taps the features of all rows, both in
        the given order. They are valid until the next call. Spare pages for trees are given here.

        `given`: the tokens of the first `fed` rows are places of ids there, on the device.
        With facts.strict a row's logits have the same bits in any batch and however its prompt was split.
        """
        if not stretches:
            return Output(torch.empty(0, self.facts.vocab_size))
        self._stretches = stretches
        self._give_spare_pages(stretches)
        if given is not None:
            assert self._fed is not None
            batch = make_batch(stretches, self.facts.page_tokens)
            self._bounds.check(batch)
            return self._fed.forward_fed(batch, given, fed)
        return forward(self.executor, stretches, self.facts.page_tokens, bounds=self._bounds)

    def _give_spare_pages(self, stretches: Sequence[Stretch]) -> None:
        spare = self.facts.pages
        for each in stretches:
            if each.parents:
                needed = own_pages(each.parents, each.start, self.facts.page_tokens)
                each.spare = range(spare, spare + needed)
                spare += needed

    def keep(self, paths: Sequence[tuple[int, list[int]]]) -> None:
        """For trees of the last call, by their index in it: the rows of the accepted path, in order. Their keys and
        values move to the sequence's own pages, where those of a chain would be."""
        size = self.facts.page_tokens
        moves: list[tuple[int, int]] = []
        for index, path in paths:
            tree = self._stretches[index]
            slots = tree_slots(tree, size)[path].tolist()
            places = range(tree.start + 1, tree.start + 1 + len(path))
            own = [tree.pages[place // size] * size + place % size for place in places]
            moves += [move for move in zip(slots, own, strict=True) if move[0] != move[1]]
        self.executor.move(moves)

    def copy_page(self, source: int, target: int) -> None:
        self.executor.copy_page(source, target)
        if self.head is not None:
            self.head.copy_page(source, target)

    def copy_state(self, source: int, target: int) -> None:
        self.executor.copy_state(source, target)

    def page_memory(self) -> PageMemory:
        """The pages' bytes, those of the drafter's layers among them, which rank 0 has alone."""
        facts, executor = self.facts, self.executor
        layers = [*executor.page_memory(), *(self.head.page_memory() if self.head is not None else ())]
        model = f"{facts.path_name} {executor.computed_by} {facts.dtype} {facts.parameters} {facts.vocabulary}"
        return TorchPages(layers, model, executor.other_ranks() if isinstance(executor, ParallelExecutor) else None)
