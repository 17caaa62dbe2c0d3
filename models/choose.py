"""Which executor runs a network, by name: what was asked for, or what this machine and the network allow.

Nothing falls back in silence: `Choice.because` says why a faster peer wasn't taken, and goes into what a
server says of itself. Imports an executor's module only when it is looked at.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Any

from kernels import interpreter
from models.sources import ModelError
from models.spec import LatentAttention, Network

# The fastest first.
EXECUTORS: dict[str, str] = {
    "triton": "models.gpu.executor:GpuExecutor",
    "compiled": "models.cpu.executor:CpuExecutor",
    "plain": "models.plain.decoder:PlainExecutor",
}


@dataclass(frozen=True, slots=True)
class ExecutorChoice:
    name: str
    executor: Any  # the class
    because: str  # "": the fastest there is

    def drafting_dtype(self, dtype: str) -> str:
        """Of a drafter beside a model in this dtype. Only its most probable tokens count, and int8 reads half the
        bytes; who asks for float32 gets it."""
        return "int8" if self.name == "compiled" and dtype == "bfloat16" else dtype


def check_kv_dtype(choice: ExecutorChoice, network: Network, kv_dtype: str) -> None:
    """Raises `ModelError` where the pages can't be kept so."""
    if not kv_dtype:
        return
    if choice.name == "compiled":
        raise ModelError("kv_cache_dtype fp8: compiled loops keep the model's dtype", "use auto, or a GPU")
    if any(isinstance(layer.attention, LatentAttention) for layer in network.layers):
        raise ModelError("kv_cache_dtype fp8: latents are kept in the model's dtype", "use kv_cache_dtype auto")


def choose(name: str, network: Network, dtype: str) -> ExecutorChoice:
    """`name` of EXECUTORS, or auto. Raises `ModelError` when what was asked for can't be had."""
    if name != "auto":
        if name == "triton" and interpreter.in_use():
            # For tests, which ask for it: the interpreter stands for a GPU.
            why = executor_class(name).why_not(network, dtype)
        else:
            why = _why_not(name, network, dtype)
        if why:
            raise ModelError(f"executor {name}: {why}", "use executor auto")
        return ExecutorChoice(name, executor_class(name), "")
    reasons: list[str] = []
    for candidate in EXECUTORS:
        why = _why_not(candidate, network, dtype)
        if not why:
            # A machine without a GPU lacks nothing that it could have.
            told = [reason for reason in reasons if not reason.startswith("triton: there is no GPU")]
            return ExecutorChoice(candidate, executor_class(candidate), "; ".join(told))
        reasons.append(f"{candidate}: {why}")
    raise ModelError(f"nothing here runs this model ({'; '.join(reasons)})", "use another dtype")


def _why_not(name: str, network: Network, dtype: str) -> str:
    if name == "triton" and (why := _no_gpu()):
        return why
    return str(executor_class(name).why_not(network, dtype))


def _no_gpu() -> str:
    import torch

    if not torch.cuda.is_available():
        return "there is no GPU that torch can use"
    try:
        import_module("triton")
    except ImportError:
        return "triton is not installed"
    return ""


def executor_class(name: str) -> Any:
    module, _, attribute = EXECUTORS[name].partition(":")
    return getattr(import_module(module), attribute)
