"""Pages, sequences and rows: by the card, or by the settings as on a CPU; a drafter's layers are counted, too."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from transformers import LlamaConfig, Qwen3_5TextConfig

from models.choose import ExecutorChoice
from models.config import read_network
from models.executor import Options
from models.gpu.executor import GpuExecutor
from models.memory import state_bytes
from models.plain import PlainExecutor
from models.sources import ModelError
from services.runtime.memory import CPU_KV_MB
from services.worker.cache.size import Card
from services.worker.running.memory_plan import _KEPT_FEATURES, MemoryPlan, MemorySizes, cut_context, plan_memory
from services.worker.speculation.heads.head_drafter import WAITING_ROWS
from services.worker.speculation.heads.unread import MOST_ROWS

sys.path.insert(0, str(Path(__file__).parents[3] / "models"))
import parity

GB = 1 << 30
BY_DEVICE = MemorySizes(kv_cache_mb=-1, gpu_memory_utilization=0.9, max_sequences=0, max_step_tokens=0)
OPTIONS = Options("bfloat16", pages=0, page_tokens=16, max_context=8192)


def plan(
    tmp_path: Path, card: Card | None, sizes: MemorySizes = BY_DEVICE, drafters: int = 0, **changes: Any
) -> MemoryPlan:
    parity.save_tiny(LlamaConfig, tmp_path, max_position_embeddings=8192)
    network = read_network(tmp_path)
    options = replace(OPTIONS, **changes)
    choice = ExecutorChoice("triton", GpuExecutor, "") if card else ExecutorChoice("plain", PlainExecutor, "")
    return plan_memory(sizes, [(network, options)] * (1 + drafters), GB, choice, card)


def test_a_gpu_gets_larger_batches_than_a_cpu_and_pages_for_long_texts(tmp_path: Path) -> None:
    gpu, cpu = plan(tmp_path, Card(24 * GB, 24 * GB)), plan(tmp_path, None)
    assert (gpu.max_sequences, gpu.max_step_tokens, gpu.context) == (256, 2048, 8192)
    assert (cpu.max_sequences, cpu.max_step_tokens, cpu.context) == (64, 512, 8192)
    page = PlainExecutor.page_bytes(read_network(tmp_path), OPTIONS)
    assert cpu.pages + cpu.branch_pages == (CPU_KV_MB << 20) // page
    assert gpu.pages > cpu.pages


def test_a_drafters_layers_take_their_share_of_every_page(tmp_path: Path) -> None:
    card = Card(3 * GB, 3 * GB)
    alone, beside = plan(tmp_path, card), plan(tmp_path, card, drafters=1)
    assert 0.45 < (beside.pages + beside.branch_pages) / (alone.pages + alone.branch_pages) < 0.5


def test_features_that_wait_for_a_drafter_are_counted(tmp_path: Path) -> None:
    assert _KEPT_FEATURES == WAITING_ROWS + MOST_ROWS
    card = Card(3 * GB, 3 * GB)
    none, some = (plan(tmp_path, card, drafters=1, taps=taps) for taps in ((), (0, 1, 2)))
    network = read_network(tmp_path)
    page = 2 * GpuExecutor.page_bytes(network, OPTIONS)
    fewer = (none.pages + none.branch_pages - some.pages - some.branch_pages) * page
    assert fewer > 3 * _KEPT_FEATURES * network.hidden_size * 2


def test_states_of_a_hybrid_bound_how_many_sequences_a_gpu_gets(tmp_path: Path) -> None:
    parity.save_tiny(
        Qwen3_5TextConfig, tmp_path, num_hidden_layers=2, layer_types=["linear_attention", "full_attention"],
        max_position_embeddings=8192, head_dim=16, linear_num_value_heads=32,
    )  # fmt: skip
    network, card = read_network(tmp_path), Card(4 * GB, 4 * GB)
    state = state_bytes(network, 2, OPTIONS.longest_draft)
    made = plan_memory(BY_DEVICE, [(network, OPTIONS)], GB, ExecutorChoice("triton", GpuExecutor, ""), card)
    assert made.max_sequences == 128 and 128 * state <= card.total / 8 < 256 * state
    assert made.branch_pages == 0 < made.snapshots
    for card_or_none in (card, None):
        # Without a prefix cache no state is kept for prefixes, and pages get the memory.
        sizes = BY_DEVICE if card_or_none else replace(BY_DEVICE, kv_cache_mb=64, max_sequences=4)
        choice = ExecutorChoice("triton", GpuExecutor, "")
        with_it = plan_memory(sizes, [(network, OPTIONS)], GB, choice, card_or_none)
        without = plan_memory(replace(sizes, prefix_cache=False), [(network, OPTIONS)], GB, choice, card_or_none)
        assert without.snapshots == 0 < with_it.snapshots and without.pages >= with_it.pages


def test_sizes_that_are_set_are_kept_on_a_gpu(tmp_path: Path) -> None:
    sizes = MemorySizes(kv_cache_mb=64, gpu_memory_utilization=0.9, max_sequences=5, max_step_tokens=100)
    made = plan(tmp_path, Card(24 * GB, 24 * GB), sizes)
    page = GpuExecutor.page_bytes(read_network(tmp_path), OPTIONS)
    assert made.pages + made.branch_pages == (64 << 20) // page
    assert (made.max_sequences, made.max_step_tokens) == (5, 100)
    # 60 % of what weights and the step leave of what is free.
    most = plan(tmp_path, Card(24 * GB, 3 * GB), replace(sizes, kv_cache_mb=0, max_sequences=1000))
    assert 0.5 * 2 * GB < (most.pages + most.branch_pages) * page <= 0.6 * 2 * GB


def test_a_card_without_room_is_refused_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"hold no KV page beside 1\.1 GB of weights") as caught:
        plan(tmp_path, Card(2 * GB, 2 * GB))
    assert "quantised" in caught.value.fix


def test_a_cut_context_is_told_with_what_would_be_enough() -> None:
    assert "--kv-cache-mb 2048 is enough" in cut_context(100, 50, -1)
    assert "more free memory is enough" in cut_context(100, 50, -1, gpu=True)
