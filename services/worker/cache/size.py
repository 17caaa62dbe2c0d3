"""The memory for pages, and how many sequences and rows a step may have: as set, or by the device. No torch.

On a CPU the pages get a fixed amount, because the memory is shared with other programs. A GPU is the worker's alone:
its pages get what `gpu_memory_utilization` leaves beside the weights and the largest step.
"""

from __future__ import annotations

from dataclasses import dataclass

# Share of free memory with kv_cache_mb 0. The rest is for the step's buffers, other processes and the file cache.
SHARE = 0.6
MEBIBYTE = 1 << 20

# Where nothing is set: on a CPU, and the most on a GPU.
CPU_SEQUENCES, CPU_STEP_TOKENS = 64, 512
GPU_SEQUENCES, GPU_STEP_TOKENS = 256, 2048
# Fewer rows make prompts slow without saving much.
_LEAST_STEP_TOKENS = 256
# Share of a GPU that a step's rows may take: as many rows as that holds, halved until they fit.
_STEP_SHARE = 1 / 16
# And that the states of sequences may take: as many sequences as that holds, halved until they fit.
_STATE_SHARE = 1 / 8
# For the code of kernels, captured graphs, and freed blocks that torch's allocator keeps.
_GPU_ROOM = 1 << 30


@dataclass(frozen=True, slots=True)
class Card:
    """Bytes of a GPU, before the model is loaded."""

    total: int
    free: int


@dataclass(frozen=True, slots=True)
class Demand:
    """Bytes that a model and its drafter take (models/memory.py)."""

    weights: int
    page: int  # of one page, in all layers of both
    row: int  # of a row of a step
    fixed: int
    page_tokens: int
    # The longest text, in tokens.
    context: int
    # What a sequence has beside its pages.
    state: int = 0


@dataclass(frozen=True, slots=True)
class Fit:
    kv_bytes: int  # a whole number of pages
    max_sequences: int
    max_step_tokens: int
    # What a step takes beside weights and pages.
    step_bytes: int


def fit_card(card: Card, demand: Demand, share: float, max_sequences: int = 0, max_step_tokens: int = 0) -> Fit:
    """What a GPU has room for. `share` is that of its memory which the worker may use; 0 sequences or step tokens: by
    the device. Raises ValueError if not one page fits."""
    rows = max_step_tokens or _rows_that_fit(card.total, demand)
    sequences = max_sequences or _sequences_that_fit(card.total, demand, rows)
    # Twice: captured graphs and steps that run as they are keep memory of their own.
    step = 2 * min(rows, GPU_STEP_TOKENS) * demand.row + demand.fixed + _GPU_ROOM
    allowed = min(int(card.total * share), card.free)
    # No more than these sequences can use, and as much again for kept prompts.
    most = 2 * sequences * -(-demand.context // demand.page_tokens)
    states = sequences * demand.state
    pages = min((allowed - demand.weights - step - states) // demand.page, most)
    if pages < 1:
        raise ValueError(
            f"{_gb(allowed)} GB of GPU memory (gpu_memory_utilization {share:g} of {_gb(card.total)} GB, of which "
            f"{_gb(card.free)} GB are free) hold no KV page beside {_gb(demand.weights)} GB of weights and "
            f"{_gb(step)} GB for the largest step"
            + (f" and {_gb(states)} GB of states for {sequences} sequences" if states else "")
        )
    return Fit(pages * demand.page, sequences, rows, step)


def _rows_that_fit(total: int, demand: Demand) -> int:
    rows = GPU_STEP_TOKENS
    while rows > _LEAST_STEP_TOKENS and 2 * rows * demand.row > total * _STEP_SHARE:
        rows //= 2
    return rows


def _sequences_that_fit(total: int, demand: Demand, rows: int) -> int:
    sequences = min(GPU_SEQUENCES, rows)
    while sequences > 1 and sequences * demand.state > total * _STATE_SHARE:
        sequences //= 2
    return sequences


def _gb(size: int) -> str:
    return f"{size / 1e9:.1f}"


def kv_cache_bytes(
    setting_mb: int, available: int, page_bytes: int, needed_tokens: int = 0, page_tokens: int = 1
) -> int:
    """Bytes for a whole number of pages.

    `setting_mb` 0: a share of `available`, at most enough for `needed_tokens` (running sequences times context; 0: no
    such bound). Raises ValueError if not one page fits.
    """
    if setting_mb:
        wanted = setting_mb * MEBIBYTE
    else:
        wanted = int(available * SHARE)
        if needed_tokens:
            wanted = min(wanted, -(-needed_tokens // page_tokens) * page_bytes)
    pages = wanted // page_bytes
    if pages < 1:
        said = f"kv_cache_mb {setting_mb}" if setting_mb else f"{available // MEBIBYTE} MB of free memory"
        raise ValueError(f"{said} holds no KV page: one takes {page_bytes} bytes")
    return pages * page_bytes
