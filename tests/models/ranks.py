"""The ranks of a split model as threads of a test: each with its share, joined by gloo as the processes of a worker."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import parity
import torch
import torch.distributed as dist

from models.batch import Batch
from models.config import read_network
from models.executor import Executor, Options, Output
from models.group import Group, join
from models.shards import shard
from models.spec import Network
from models.weights import Weights


def borders(vocab_size: int, ranks: int) -> list[int]:
    """The first and the last token of each rank's share of the vocabulary."""
    share = -(-vocab_size // ranks)
    firsts = range(0, vocab_size, share)
    return [token for first in firsts for token in (first, min(first + share, vocab_size) - 1)]


class InTurns(Group):
    """Computes while no other rank does: Triton's interpreter is one for the whole process."""

    def __init__(
        self, rank: int, ranks: int, turn: threading.Lock, met: threading.Barrier, parts: list[Any], boxes: list[Any]
    ) -> None:
        super().__init__(None, None, rank, ranks)
        self.turn, self._met, self._parts, self._boxes = turn, met, parts, boxes

    def send(self, x: torch.Tensor, rank: int) -> None:
        self._boxes[rank].put(x.clone())

    def receive(self, x: torch.Tensor, rank: int) -> None:
        """From the only rank that sends meanwhile."""
        sent = self._boxes[self.rank].get(timeout=300)
        assert sent.shape == x.shape
        x.copy_(sent)

    def sum(self, x: torch.Tensor) -> torch.Tensor:
        assert x.is_contiguous()
        return x.copy_(torch.stack(self._gathered(x)).sum(0))

    def _gathered(self, x: torch.Tensor) -> list[torch.Tensor]:
        self._parts[self.rank] = x.clone()
        self.turn.release()
        self._met.wait(300)
        parts = list(self._parts)
        self._met.wait(300)
        self.turn.acquire()
        return parts


@contextmanager
def in_turns(ranks: int) -> Iterator[tuple[ThreadPoolExecutor, list[Group]]]:
    shared = threading.Lock(), threading.Barrier(ranks), [None] * ranks, [queue.Queue() for _ in range(ranks)]
    with ThreadPoolExecutor(ranks) as pool:
        yield pool, [InTurns(rank, ranks, *shared) for rank in range(ranks)]


class Split:
    """An executor that is one on each rank; called as one, it gives what rank 0 gives."""

    branches = True

    def __init__(self, pool: ThreadPoolExecutor, executors: Sequence[Executor], groups: Sequence[Group]) -> None:
        self.pool, self.executors, self.groups = pool, executors, groups
        self._turns = [getattr(group, "turn", contextlib.nullcontext()) for group in groups]
        self.max_rows = executors[0].max_rows
        self.parameters = executors[0].parameters

    def forward(self, batch: Batch, hidden: torch.Tensor | None = None) -> Output:
        assert hidden is None
        return self._on_all(lambda executor: executor.forward(batch))[0]

    def copy_page(self, source: int, target: int) -> None:
        self._on_all(lambda executor: executor.copy_page(source, target))

    def move(self, slots: Sequence[tuple[int, int]]) -> None:
        self._on_all(lambda executor: executor.move(slots))

    def _on_all(self, call: Callable[[Executor], Any]) -> list[Any]:
        def one(rank: int) -> Any:
            with self._turns[rank]:
                return call(self.executors[rank])

        return list(self.pool.map(one, range(len(self.executors))))


@contextmanager
def groups(ranks: int, strict: bool = True) -> Iterator[tuple[ThreadPoolExecutor, list[Group]]]:
    store = dist.HashStore()
    with ThreadPoolExecutor(ranks) as pool:
        made = list(pool.map(lambda rank: join(dist.PrefixStore("test", store), rank, ranks, strict), range(ranks)))
        for group in made:
            group.timeout = 60.0
        yield pool, made


@contextmanager
def split(
    folder: Path,
    ranks: int,
    make: parity.MakeExecutor,
    dtype: str = "float32",
    weights: Any = Weights,
    meet: Any = groups,
    **changes: Any,
) -> Iterator[Split]:
    network = read_network(folder)
    with meet(ranks) as (pool, made):

        def one(group: Group) -> Executor:
            share: Network = shard(network, group.rank, ranks)
            sizes: dict[str, Any] = {"pages": parity.PAGES, "page_tokens": parity.PAGE_TOKENS, "max_context": 256}
            options = Options(dtype=dtype, **(sizes | changes), group=group)
            return make(share, weights(folder), options)

        yield Split(pool, [one(group) for group in made], made)
