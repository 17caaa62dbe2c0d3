"""Compiles all that requests can need of a GPU's kernels, before the worker is ready. From the cache on disk that takes
seconds (docs/operate/operating.md); under traffic it would stop all requests for as long as a compiler runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from kernels import launch
from kernels.verify.on_device import OnDevice
from models.gpu.executor import GpuExecutor
from services.worker.running.head import HeadModel, ResidualModel


@torch.inference_mode()
def prepare(
    target: Any, head: HeadModel | ResidualModel | None, verifier: Any, vocab_size: int
) -> Callable[[], dict[str, int]]:
    """What is compiled afterwards is counted. Returns what reads the counts, for metrics."""
    assert isinstance(target, GpuExecutor) and isinstance(verifier, OnDevice)
    for executor in _executors(target, head):
        executor.prepare()
    verifier.prepare(torch.zeros(2, vocab_size, device=target.device))
    logits, buckets = target.replayed_logits
    if buckets:
        verifier.follow(logits, buckets)
    launch.seal()
    return lambda: {**target.steps, "compiled_late": launch.compiled_late()}


def _executors(target: GpuExecutor, head: HeadModel | ResidualModel | None) -> list[GpuExecutor]:
    """The target's, and that of a drafter with a network."""
    network = head.prefix if isinstance(head, ResidualModel) else head
    found = [target, *([each.executor for each in (network, *network.more)] if network is not None else [])]
    return [each for each in found if isinstance(each, GpuExecutor)]
