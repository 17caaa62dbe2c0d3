"""The ranks of a split model as threads of a test: each with its share, joined by gloo as the processes of a worker."""

from __future__ import annotations

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


class Split:
    """An executor that is one on each rank; called as one, it gives what rank 0 gives."""

    branches = True

    def __init__(self, pool: ThreadPoolExecutor, executors: Sequence[Executor]) -> None:
        self._pool, self.executors = pool, executors
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
        return list(self._pool.map(call, self.executors))


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
    folder: Path, ranks: int, make: parity.MakeExecutor, dtype: str = "float32", weights: Any = Weights, **changes: Any
) -> Iterator[Split]:
    network = read_network(folder)
    with groups(ranks) as (pool, made):

        def one(group: Group) -> Executor:
            share: Network = shard(network, group.rank, ranks)
            sizes: dict[str, Any] = {"pages": parity.PAGES, "page_tokens": parity.PAGE_TOKENS, "max_context": 256}
            options = Options(dtype=dtype, **(sizes | changes), group=group)
            return make(share, weights(folder), options)

        yield Split(pool, list(pool.map(one, made)))
