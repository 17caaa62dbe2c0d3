"""Where there is no GPU, Triton's kernels run in its interpreter: slow, on CPU tensors, and good for checking
results. Triton reads the switch when a kernel is defined, so it is set before anything imports triton. No torch.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

SWITCH = "TRITON_INTERPRET"
# What the drivers of a GPU put there: Linux, and Linux inside of Windows.
DEVICES = ("/dev/nvidiactl", "/dev/dxg")


def has_gpu() -> bool:
    return any(Path(device).exists() for device in DEVICES)


def in_use() -> bool:
    return os.environ.get(SWITCH, "") not in ("", "0")


def use_without_gpu() -> None:
    """For tests and other programs that are about kernels; nothing that serves calls it."""
    if has_gpu() or in_use():
        return
    assert "triton" not in sys.modules, "triton was imported before its interpreter was chosen"
    os.environ[SWITCH] = "1"
