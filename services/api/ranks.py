"""Over how many processes a worker's model is split. A phase may have a number of its own."""

from __future__ import annotations

from services.api.phases import ALL, DECODE, PREFILL
from services.api.settings import Settings


def ranks_of(settings: Settings, phase: str = "") -> int:
    """Of a worker with this phase (its own, if none is given): how many processes its model is split over."""
    own = {PREFILL: settings.prefill_tensor_parallel_size, DECODE: settings.decode_tensor_parallel_size}
    return int(own.get(phase or settings.phase, 0) or settings.tensor_parallel_size)


def ranks_by_phase(settings: Settings) -> str:
    """For a worker whose number of ranks depends on its phase: the numbers; "" where it doesn't."""
    prefill, decode = ranks_of(settings, PREFILL), ranks_of(settings, DECODE)
    return "" if settings.phase == ALL or prefill == decode else f"{prefill} and {decode} ranks: "
