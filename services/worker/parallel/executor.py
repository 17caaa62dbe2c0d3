"""The executor of a worker that is split over ranks: each call goes to the other ranks, then to rank 0's own share.

The others are in `serve`, call for call with rank 0. Where a rank fails or hangs, the exchange of sums ends with
`RankLost` on all that wait for it, and with it the worker (ranks.py): what the others hold is of no use alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from models.batch import Batch
from models.executor import Executor, Output, PageTensor
from models.group import Group, RankLost
from services.worker.parallel import calls
from services.worker.parallel.pages import OtherRanks, receive_page, send_pages


class ParallelExecutor:
    """models/executor.py's Executor, on rank 0."""

    def __init__(self, own: Executor, group: Group, lost: Callable[[str], Any]) -> None:
        """`lost` is told why, once, before the call that found it out fails."""
        self.own, self._group, self._lost = own, group, lost
        self.max_rows, self.parameters, self.strict, self.branches, self.computed_by = (
            own.max_rows, own.parameters, own.strict, own.branches, own.computed_by,
        )  # fmt: skip
        self.path = f"{group.ranks} ranks: {own.path}"

    def forward(self, batch: Batch, hidden: torch.Tensor | None = None) -> Output:
        assert hidden is None
        output: Output = self._on_all(calls.forward_call(batch), lambda: self.own.forward(batch))
        return output

    def copy_page(self, source: int, target: int) -> None:
        self._on_all(calls.call(calls.COPY, source, target), lambda: self.own.copy_page(source, target))

    def copy_state(self, source: int, target: int) -> None:
        raise AssertionError("a network with states isn't split (models/shards.py)")

    def page_memory(self) -> Sequence[PageTensor]:
        """Rank 0's part of every page. `other_ranks` has the rest."""
        return self.own.page_memory()

    def other_ranks(self) -> OtherRanks:
        return OtherRanks(self.page_memory(), self._group, self._on_all)

    def move(self, slots: Sequence[tuple[int, int]]) -> None:
        numbers = [slot for pair in slots for slot in pair]
        self._on_all(calls.call(calls.MOVE, *numbers), lambda: self.own.move(slots))

    def prepare(self) -> None:
        """The others compile what a GPU's steps can need; rank 0's own share is its owner's to prepare."""
        self._on_all(calls.call(calls.PREPARE), lambda: None)

    def hurry(self, seconds: float) -> None:
        """All are loaded and compiled: from now on a rank that keeps the others waiting for longer is lost."""
        self._on_all(calls.call(calls.HURRY, round(seconds * 1000)), lambda: None)
        self._group.timeout = seconds

    def with_counts(self, counts: Callable[[], dict[str, int]]) -> Callable[[], dict[str, int]]:
        group = self._group
        return lambda: {**counts(), "ranks": group.ranks, "exchange_us": int(group.seconds * 1e6)}

    def _on_all(self, words: np.ndarray, own: Callable[[], Any]) -> Any:
        try:
            calls.tell(self._group, words)
            return own()
        except RankLost as error:
            self._lost(str(error))
            raise


def serve(executor: Executor, group: Group) -> None:
    """On the other ranks: calls as they come, until rank 0 or another is gone (`RankLost`)."""
    with torch.inference_mode():
        while True:
            words = calls.hear(group)
            match int(words[0]):
                case calls.FORWARD:
                    executor.forward(calls.batch_of(words))
                case calls.COPY:
                    executor.copy_page(int(words[1]), int(words[2]))
                case calls.MOVE:
                    slots = words[1:].tolist()
                    executor.move(list(zip(slots[::2], slots[1::2], strict=True)))
                case calls.PREPARE:
                    executor.prepare()  # type: ignore[attr-defined]
                case calls.HURRY:
                    group.timeout = int(words[1]) / 1000
                case calls.READ:
                    send_pages(executor.page_memory(), group, words[1:].tolist())
                case calls.WRITE:
                    receive_page(executor.page_memory(), group, int(words[1]))
                case other:
                    raise AssertionError(f"no call {other}")
