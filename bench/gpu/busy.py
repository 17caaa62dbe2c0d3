"""The share of time in which the GPU computes, as the driver counts it: NVML's utilization is the share of its last
sample period (a sixth of a second to one) in which a kernel ran, of any process. It is read twenty times a second; a
share is the mean of what was read between two times. Through the driver's own library, which needs no package.
"""

from __future__ import annotations

import contextlib
import ctypes
import statistics
import threading
import time

# The second is where containers have the driver's libraries.
LIBRARIES = ("libnvidia-ml.so.1", "/usr/local/nvidia/lib64/libnvidia-ml.so.1")
EVERY = 0.05
# What is read in the first second may be of the time before.
LEAD = 1.0


class _Utilization(ctypes.Structure):
    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


class Busy:
    """Reads on while the block runs. Without the library it knows nothing."""

    def __init__(self) -> None:
        self._read: list[tuple[float, int]] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Busy:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def share(self, begin: float, end: float) -> float | None:
        """Between two times of time.perf_counter(); None where nothing was read."""
        found = [percent for at, percent in list(self._read) if min(begin + LEAD, (begin + end) / 2) <= at <= end]
        return round(statistics.fmean(found) / 100, 3) if found else None

    def _run(self) -> None:
        nvml, device, told = _library(), ctypes.c_void_p(), _Utilization()
        if nvml is None or nvml.nvmlInit_v2() or nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(device)):
            return
        while not self._ended.wait(EVERY):
            if not nvml.nvmlDeviceGetUtilizationRates(device, ctypes.byref(told)):
                self._read.append((time.perf_counter(), int(told.gpu)))
        nvml.nvmlShutdown()


def _library() -> ctypes.CDLL | None:
    for name in LIBRARIES:
        with contextlib.suppress(OSError):
            return ctypes.CDLL(name)
    return None
