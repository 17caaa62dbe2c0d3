"""Which implementation of the kernels runs: the references in plain torch, or the fused ones. Decided once, by
name; an implementation that can't run is refused, never replaced.

An operation is a folder of this package. Its implementations have the same functions with the same arguments.
"""

from __future__ import annotations

import importlib
import importlib.util
from dataclasses import dataclass
from types import ModuleType

import torch

from kernels import interpreter

# What the fused kernels are compiled for; older ones have no bfloat16 in their matrix units.
OLDEST_CAPABILITY = (8, 0)


class CannotRun(Exception):
    """The implementation asked for can't run here; the message says why."""


@dataclass(frozen=True, slots=True)
class Choice:
    implementation: str  # "reference" or "fused"
    # For people: where it runs, and why it was chosen.
    why: str

    def operation(self, name: str) -> ModuleType:
        """The module that implements an operation, e.g. operation("kv_store").rotate_and_store(…)."""
        return importlib.import_module(f"kernels.{name}.{self.implementation}")


def choose(device: torch.device | str, asked: str = "auto") -> Choice:
    """`asked`: fused, reference, or auto (fused on a GPU that can, else reference; never the interpreter)."""
    device = torch.device(device)
    if asked == "reference":
        return Choice("reference", f"plain torch on {device.type}, as asked")
    obstacle = _obstacle(device)
    if asked == "fused":
        if obstacle:
            raise CannotRun(f"fused kernels can't run: {obstacle}")
        return Choice("fused", f"Triton {_where(device)}, as asked")
    if asked != "auto":
        raise CannotRun(f"kernels={asked!r}: known are auto, fused and reference")
    if device.type == "cpu" and not obstacle:
        obstacle = "Triton's interpreter runs only when asked for"
    if obstacle:
        return Choice("reference", f"plain torch on {device.type}: {obstacle}")
    return Choice("fused", f"Triton {_where(device)}")


def _obstacle(device: torch.device) -> str:
    """Why the fused kernels can't run on this device; empty if they can."""
    if importlib.util.find_spec("triton") is None:
        return "triton is not installed"
    if interpreter.in_use():
        return "" if device.type == "cpu" else "Triton's interpreter is on, which runs on cpu only"
    if device.type != "cuda":
        return f"no GPU kernels for a {device.type} device"
    if not torch.cuda.is_available():
        return "torch sees no GPU"
    capability = torch.cuda.get_device_capability(device)
    if capability < OLDEST_CAPABILITY:
        return f"compute capability {capability[0]}.{capability[1]} is under {OLDEST_CAPABILITY[0]}.0"
    return ""


def _where(device: torch.device) -> str:
    if interpreter.in_use():
        return "interpreted on cpu"
    major, minor = torch.cuda.get_device_capability(device)
    return f"on {torch.cuda.get_device_name(device)} (sm_{major}{minor})"
