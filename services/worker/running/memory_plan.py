"""How many pages a model gets, and how large its steps may be, before it is loaded: by settings, or by what the device
has room for (cache/size.py has the arithmetic)."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from models.choose import ExecutorChoice
from models.executor import Options
from models.memory import NUMBER_BYTES, fixed_bytes, row_bytes, state_bytes
from models.sources import ModelError
from models.spec import Network
from services.runtime.memory import BY_DEVICE, CPU_KV_MB, available_bytes
from services.worker.cache.size import (
    CPU_SEQUENCES,
    CPU_STEP_TOKENS,
    GPU_SEQUENCES,
    GPU_STEP_TOKENS,
    Card,
    Demand,
    fit_card,
    kv_cache_bytes,
)

log = logging.getLogger("specmesh.worker")

# Pages for branches of a step's drafts: at most the first number, and at most one for this many other pages.
BRANCH_PAGES, PAGES_A_BRANCH_PAGE = 64, 16
# Rows whose features are kept for a drafter's network: of texts that wait for it, and of steps it isn't told of yet
# (speculation/heads/head_drafter.py, unread.py).
_KEPT_FEATURES = 8192 + 4096
# Splits of long contexts whose partial results attention on a GPU keeps.
_SLOTS = 1024


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """`snapshots`: states that are kept beside those of running sequences."""

    pages: int
    branch_pages: int
    # What the pages hold, at most what was asked for.
    context: int
    max_sequences: int
    max_step_tokens: int
    snapshots: int


@dataclass(frozen=True, slots=True)
class MemorySizes:
    """The settings (services/api/settings.py); 0 sequences or step tokens, and kv_cache_mb -1: by device."""

    kv_cache_mb: int
    gpu_memory_utilization: float
    max_sequences: int
    max_step_tokens: int
    prefix_cache: bool = True


def plan_memory(
    sizes: MemorySizes, networks: Sequence[tuple[Network, Options]], weights: int, choice: ExecutorChoice,
    card: Card | None,
) -> MemoryPlan:
    """`networks`: the target model first, then that of its drafter; `weights`: bytes of both. Without a `card` the
    pages are in the machine's memory. Raises `ModelError`."""
    options = networks[0][1]
    if options.page_tokens % 8:
        raise ModelError(f"page_tokens is {options.page_tokens}", "use a multiple of 8")
    page = sum(int(choice.executor.page_bytes(*each)) for each in networks)
    sequences = sizes.max_sequences or (GPU_SEQUENCES if card else CPU_SEQUENCES)
    rows = sizes.max_step_tokens or (GPU_STEP_TOKENS if card else CPU_STEP_TOKENS)
    state, snapshots = _state_bytes(networks), 0
    # Of what is kept for a prefix.
    kept_state = state if sizes.prefix_cache else 0
    try:
        if card and sizes.kv_cache_mb == BY_DEVICE:
            demand = _demand(networks, weights, page)
            fit = fit_card(card, demand, sizes.gpu_memory_utilization, sizes.max_sequences, sizes.max_step_tokens)
            size, sequences, rows = fit.kv_bytes, fit.max_sequences, fit.max_step_tokens
            snapshots = _snapshots(sequences, size, kept_state)
            size -= snapshots * state
        else:
            setting = CPU_KV_MB if sizes.kv_cache_mb == BY_DEVICE else sizes.kv_cache_mb
            free = card.free - _step_bytes(networks, rows) if card else available_bytes()
            weights += sequences * state
            needed = _needed_tokens(sequences, options, choice.executor)
            size = kv_cache_bytes(setting, max(0, free - weights), page, needed, options.page_tokens)
            if snapshots := _snapshots(sequences, size, kept_state):
                weights += snapshots * state
                size = kv_cache_bytes(setting, max(0, free - weights), page, needed, options.page_tokens)
    except ValueError as error:
        fix = "take a smaller or a quantised model, or another GPU" if card else "free memory, or give --kv-cache-mb"
        raise ModelError(str(error), fix) from error
    pages = size // page
    branches = choice.executor.branches and not networks[0][0].recurrent
    branch_pages = min(BRANCH_PAGES, pages // (PAGES_A_BRANCH_PAGE + 1)) if branches else 0
    pages -= branch_pages
    # A config may claim any context; tables of rotations need not be longer than the pages.
    context = min(options.max_context, pages * options.page_tokens)
    if context < options.max_context:
        log.warning("%s", cut_context(options.max_context, context, sizes.kv_cache_mb, card is not None))
    return MemoryPlan(pages, branch_pages, context, sequences, rows, snapshots)


def _snapshots(sequences: int, size: int, state: int) -> int:
    """States that are kept for prefixes: as many as there are sequences, in at most a quarter of the pages' memory."""
    return min(sequences, size // 4 // state) if state else 0


def _demand(networks: Sequence[tuple[Network, Options]], weights: int, page: int) -> Demand:
    options = networks[0][1]
    return Demand(
        weights=weights,
        page=page,
        row=max(row_bytes(one, NUMBER_BYTES[its.dtype], len(its.taps)) for one, its in networks),
        fixed=sum(fixed_bytes(one, its.max_context, _SLOTS) for one, its in networks) + _features_bytes(networks),
        page_tokens=options.page_tokens,
        context=options.max_context,
        state=_state_bytes(networks),
    )


def _features_bytes(networks: Sequence[tuple[Network, Options]]) -> int:
    target, options = networks[0]
    if len(networks) == 1:
        return 0
    return _KEPT_FEATURES * len(options.taps) * target.hidden_size * NUMBER_BYTES[options.dtype]


def _state_bytes(networks: Sequence[tuple[Network, Options]]) -> int:
    """Of a sequence, beside its pages."""
    return sum(state_bytes(one, NUMBER_BYTES[its.dtype], its.longest_draft) for one, its in networks)


def _step_bytes(networks: Sequence[tuple[Network, Options]], rows: int) -> int:
    demand = _demand(networks, 0, 1)
    return 2 * min(rows, GPU_STEP_TOKENS) * demand.row + demand.fixed


def _needed_tokens(sequences: int, options: Options, executor: Any) -> int:
    needed = sequences * options.max_context
    if executor.branches:
        needed += min(BRANCH_PAGES * options.page_tokens, needed // PAGES_A_BRANCH_PAGE)
    return needed


def card_of(choice: ExecutorChoice) -> Card | None:
    """The GPU that the executor runs on."""
    if choice.name != "triton" or not torch.cuda.is_available():
        return None
    free, total = torch.cuda.mem_get_info()
    return Card(total, free)


def cut_context(asked: int, context: int, kv_cache_mb: int, gpu: bool = False) -> str:
    """What a user should know whose pages don't hold one sequence of full length."""
    setting = CPU_KV_MB if kv_cache_mb == BY_DEVICE and not gpu else max(kv_cache_mb, 0)
    more = f"--kv-cache-mb {-(-setting * asked // context)}" if setting else "more free memory"
    return f"the context is cut from {asked} to {context} tokens, which is what the KV pages hold; {more} is enough"
