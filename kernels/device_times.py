"""How long a call takes, by the device's own clock where it has one."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch


def milliseconds(call: Callable[[], object], turns: int, device: torch.device) -> list[float]:
    """Of each of `turns` calls, after one that isn't timed: it may compile."""
    call()
    if device.type != "cuda":
        return [_on_the_host(call) for _ in range(turns)]
    torch.cuda.synchronize()
    pairs = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(turns)]
    for begin, end in pairs:
        begin.record()
        call()
        end.record()
    torch.cuda.synchronize()
    return [begin.elapsed_time(end) for begin, end in pairs]


def _on_the_host(call: Callable[[], object]) -> float:
    begin = time.perf_counter()
    call()
    return (time.perf_counter() - begin) * 1e3
