"""Compiles all that requests can need of a GPU's kernels, before the worker is ready. From the cache on disk that takes
seconds (docs/operating.md); under traffic it would stop all requests for as long as a compiler runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from kernels import launch
from kernels.verify.on_device import OnDevice
from models.gpu.executor import GpuExecutor
from services.worker.running.head import ResidualModel

if TYPE_CHECKING:
    from services.worker.running.torch_model import TorchModel


@torch.inference_mode()
def prepare(model: TorchModel) -> Callable[[], dict[str, int]]:
    """What is compiled afterwards is counted. Returns what reads the counts, for metrics."""
    target, verifier = model.executor, model.verifier
    assert isinstance(target, GpuExecutor) and isinstance(verifier, OnDevice)
    for executor in executors_of(model):
        executor.prepare()
    verifier.prepare(torch.zeros(2, model.facts.vocab_size, device=target.device))
    launch.seal()
    return lambda: {**target.steps, "compiled_late": launch.compiled_late()}


def executors_of(model: TorchModel) -> list[GpuExecutor]:
    """The target's, and that of a drafter with a network."""
    head = model.head.prefix if isinstance(model.head, ResidualModel) else model.head
    found = [model.executor, *([head.executor] if head is not None else [])]
    return [each for each in found if isinstance(each, GpuExecutor)]
