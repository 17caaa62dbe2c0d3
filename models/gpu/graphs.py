"""Steps of few rows as CUDA graphs: one for each bucket of row counts, captured once, replayed with one call.

Rows are filled up to the next bucket. A graph reads inputs that stay in their place (inputs.py) and writes logits to
a place that stays. Knows nothing of layers: what is captured is a function of the number of rows.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable

import torch

BUCKETS = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 160, 192, 256)


def bucket_of(rows: int) -> int:
    """The rows of the smallest graph for `rows` rows; 0: no graph is large enough."""
    place = bisect_left(BUCKETS, rows)
    return BUCKETS[place] if place < len(BUCKETS) else 0


class Graphs:
    def __init__(self, run: Callable[[int], None], device: torch.device) -> None:
        """`run(rows)` starts the kernels of a step of so many rows, whose inputs are in place; it must not wait for
        the device. Inputs must be such that running does no harm."""
        self._graphs: dict[int, torch.cuda.CUDAGraph] = {}
        pool = torch.cuda.graph_pool_handle()
        stream = torch.cuda.Stream(device)
        stream.wait_stream(torch.cuda.current_stream(device))
        # The largest first: smaller ones fit into the memory it took.
        for rows in reversed(BUCKETS):
            with torch.cuda.stream(stream):
                # Compiles and loads kernels, which a capture can't.
                run(rows)
            torch.cuda.synchronize(device)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=pool, stream=stream):
                run(rows)
            self._graphs[rows] = graph
        torch.cuda.synchronize(device)

    def replay(self, rows: int) -> None:
        self._graphs[rows].replay()
