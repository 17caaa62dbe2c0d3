"""Whether Triton's kernels run on a device, and where they run, for people."""

from __future__ import annotations

import importlib.util

import torch

from kernels import interpreter
from models.errors import ModelError

# What the kernels are compiled for; older ones have no bfloat16 in their matrix units.
OLDEST_CAPABILITY = (8, 0)


def can_run(device: torch.device) -> str:
    """Where. Raises `ModelError`."""
    if why := _obstacle(device):
        raise ModelError(f"fused kernels can't run: {why}", "use executor compiled or plain")
    if interpreter.in_use():
        return "interpreted on cpu"
    major, minor = torch.cuda.get_device_capability(device)
    return f"on {torch.cuda.get_device_name(device)} (sm_{major}{minor})"


def _obstacle(device: torch.device) -> str:
    """Empty if there is none."""
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
