"""Which steps are graphs, as values; and the executor's own graphs, on a device that checks them."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from kernels import interpreter
from kernels.device import device_of
from kernels.interpreted_device import OutOfOrder
from models.batch import Stretch, make_batch
from models.config import read_network
from models.gpu import executor as gpu
from models.gpu.graphs import BUCKETS, Graphs, GraphSizes, choose_buckets, row_bytes
from services.api.settings import Settings
from services.worker.loading import rows_a_sequence
from tests.models.gpu.interpreted import on_cpu, save
from tests.models.parity import load

interpreted = pytest.mark.skipif(not interpreter.in_use(), reason="about the interpreter's device")


def test_buckets_reach_over_the_rows_asked_for_as_far_as_there_is_memory() -> None:
    assert choose_buckets(256, 1, 1 << 30)[-1] == 256 == choose_buckets(200, 1, 1 << 30)[-1]
    assert choose_buckets(1280, 1, 1 << 30)[-1] == 1280
    assert choose_buckets(10**6, 1, 1 << 30) == BUCKETS
    assert choose_buckets(1280, 1 << 20, 1 << 30)[-1] == 1024
    assert choose_buckets(1280, 1 << 20, 0) == ()
    # Steps of more than 8 rows are filled up by half of their rows at most.
    assert all(after <= 1.5 * before for before, after in pairwise(BUCKETS) if before >= 8)


class Noting:
    """A device that notes what is captured, and what only runs before."""

    def __init__(self) -> None:
        self.compiled: list[GraphSizes] = []
        self.captured: list[GraphSizes] = []
        self._running = self.compiled

    def graphs(self, buckets: tuple[int, ...], few: int = 0) -> Graphs:
        return Graphs(lambda sizes: self._running.append(sizes), buckets, self, few)  # type: ignore[arg-type]

    def capture(self, run: Callable[[], None]) -> Callable[[], None]:
        self._running = self.captured
        run()
        return lambda: None


def test_rows_run_in_the_next_bucket_and_large_steps_in_none() -> None:
    device = Noting()
    graphs = device.graphs(choose_buckets(256, 1, 1 << 30))
    assert [sizes.rows for sizes in device.captured] == list(reversed(graphs.buckets))
    # All kernels are compiled before the first capture.
    assert device.compiled == device.captured
    found = [graphs.sizes_of(rows, 1) for rows in (1, 2, 3, 5, 17, 256, 257)]
    assert found == [(1, 1), (2, 2), (4, 4), (8, 8), (24, 24), (256, 256), None]


def test_a_step_of_many_rows_that_wants_logits_of_few_has_a_graph_of_its_own() -> None:
    device = Noting()
    graphs = device.graphs((4, 8, 16), few=8)
    assert device.captured == [(16, 16), (16, 8), (8, 8), (4, 4)]
    assert [graphs.sizes_of(rows, wanted) for rows, wanted in ((9, 8), (9, 9), (16, 1), (8, 1), (17, 1))] == [
        (16, 8), (16, 16), (16, 8), (8, 8), None,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("given", "rows"),
    [
        ({"method": "eagle3"}, 6),
        ({"method": "ngram", "num_speculative_tokens": 3}, 4),
        ({"method": "auto"}, 49),
        ({"method": "naive", "num_speculative_tokens": 0}, 1),
    ],
)
def test_graphs_are_asked_for_the_rows_that_a_draft_makes(given: dict, rows: int) -> None:
    assert rows_a_sequence(Settings.for_tests(**given)) == rows


@pytest.mark.parametrize("name", ["llama", "experts", "latent attention, experts in groups"])
def test_bytes_of_a_row_count_at_least_its_logits_and_what_its_widest_layer_writes(name: str, tmp_path: Path) -> None:
    save(name, tmp_path)
    network = read_network(tmp_path)
    assert row_bytes(network, 0, 16) > 4 * (network.vocab_size + 4 * network.hidden_size)
    assert row_bytes(network, 3, 16) - row_bytes(network, 0, 16) == 12 * network.hidden_size
    assert row_bytes(network, 0, 32) > row_bytes(network, 0, 16)


@interpreted
def test_steps_beyond_the_largest_graph_run_eagerly_and_both_ways_are_counted(tmp_path: Path) -> None:
    save("llama", tmp_path)
    executor = load(tmp_path, on_cpu, graph_rows=4)
    assert "graphs up to 4 rows" in executor.path
    for rows in (1, 4, 5):
        executor.forward(make_batch([Stretch([3] * rows, 0, [1], rows - 1)], 16))
    assert executor.steps == {"graph": 2, "eager": 1}


@interpreted
def test_logits_are_the_same_from_a_graph_that_makes_few_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save("llama", tmp_path)
    batch = make_batch([Stretch([3, 1, 4, 1, 5], 0, [1], 4), Stretch([9], 0, [2], 0)], 16)
    expected = load(tmp_path, on_cpu, graph_rows=8).forward(batch).logits.clone()
    monkeypatch.setattr(gpu, "FEW", 2)
    executor = load(tmp_path, on_cpu, graph_rows=8)
    executor._logits.fill_(7.0)
    assert torch.equal(executor.forward(batch).logits, expected) and expected.shape[0] == 2
    assert bool((executor._logits[2:] == 7.0).all()), "no other rows have logits"
    assert executor.steps == {"graph": 1}


@interpreted
def test_without_memory_for_a_graph_there_are_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save("llama", tmp_path)
    monkeypatch.setattr(gpu, "ROOM", 100)
    executor = load(tmp_path, on_cpu)
    executor.forward(make_batch([Stretch([3], 0, [1], 0)], 16))
    assert "no CUDA graphs" in executor.path and executor.steps == {"eager": 1}


@interpreted
@pytest.mark.parametrize("what", ["_logits", "inputs", "put without waiting"])
def test_a_mistake_in_the_executors_own_use_of_its_device_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """Logits or inputs that moved after the capture; and inputs written while the last ones travel."""
    save("llama", tmp_path)
    executor = load(tmp_path, on_cpu, graph_rows=2)
    batch = make_batch([Stretch([3], 0, [1], 0)], 16)
    executor.forward(batch)
    if what == "_logits":
        executor._logits = torch.empty_like(executor._logits)
    elif what == "inputs":
        executor._small._tables = torch.zeros_like(executor._small._tables)
    else:
        stage = executor._small._stage
        monkeypatch.setattr(stage, "wait", lambda: None)
    with pytest.raises(OutOfOrder):
        executor.forward(batch)


@interpreted
def test_the_interpreters_device_stands_where_there_is_no_other() -> None:
    assert type(device_of(torch.device("cpu"))).__name__ == "InterpretedDevice"
