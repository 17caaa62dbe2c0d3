"""Makes the runner that the settings ask for. Slow (it loads a model): called from a thread.

Torch is imported here and not before, so that a worker with the mock engine never does.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from services.api.methods import AUTO, METHODS
from services.api.phases import ALL
from services.api.ranks import ranks_of
from services.api.settings import Settings, cache_dir
from services.runtime.cpu_placement import threads_of
from services.runtime.memory import BY_DEVICE, CPU_KV_MB, available_bytes
from services.worker.cache.size import kv_cache_bytes
from services.worker.grammar.compiled import Grammars
from services.worker.running.runner import Runner
from services.worker.scheduling.limits import LONGEST_AUTO
from services.worker.speculation.heads.drafters import HeadDrafters

if TYPE_CHECKING:
    from services.worker.parallel.nodes import Nodes
    from services.worker.running.mock import MockRunner

# How many times the time after which a worker counts as stuck a rank may keep the others waiting.
STALE_TIMES = 5
# Bytes of a token's keys and values, for the mock.
MOCK_TOKEN_BYTES = 16384


def load_runner(settings: Settings, nodes: Nodes | None = None) -> Runner:
    """`nodes`: the other machines that the model is on. Raises ModelError or ValueError with a message for the user."""
    if settings.engine == "mock":
        return _mock(settings)
    return _torch(settings, nodes)


def model_name(settings: Settings) -> str:
    """The model's name in the API."""
    return str(settings.served_model_name or Path(settings.model).name)


def _mock(settings: Settings) -> MockRunner:
    from services.worker.running.mock import MockRunner, Profile

    given: Mapping[str, Any] | str = settings.mock_profile
    profile = Profile.parse(json.loads(given) if isinstance(given, str) else given)
    page_bytes = settings.page_tokens * MOCK_TOKEN_BYTES
    size = CPU_KV_MB if settings.kv_cache_mb == BY_DEVICE else settings.kv_cache_mb
    pages = kv_cache_bytes(size, available_bytes(), page_bytes) // page_bytes
    return MockRunner(profile, page_tokens=settings.page_tokens, pages=pages)


def _torch(settings: Settings, nodes: Nodes | None) -> Runner:
    from models.sources import ModelError, ensure_model
    from services.api.chosen_head import chosen_head
    from services.worker.running.load_torch_model import Wanted, load_torch_model
    from services.worker.running.torch_runner import TorchRunner

    # The model is loaded with the taps, or the network, of the drafter that runs in the worker.
    chosen = chosen_head(settings)
    drafter = METHODS[chosen.method].load() if chosen else None
    head = None
    wanted = Wanted(
        dtype=settings.dtype,
        draft_dtype=settings.draft_dtype,
        quantization=settings.quantization,
        kv_cache_dtype=settings.kv_cache_dtype,
        executor=settings.executor,
        strict=settings.determinism != "fast",
        same_bits=settings.determinism == "portable",
        amx=settings.amx,
        threads=threads_of("worker", settings.cores, settings.threads),
        page_tokens=settings.page_tokens,
        kv_cache_mb=settings.kv_cache_mb,
        gpu_memory_utilization=settings.gpu_memory_utilization,
        max_sequences=settings.max_sequences,
        max_step_tokens=settings.max_step_tokens,
        max_context=settings.max_context,
        prefix_cache=settings.prefix_cache,
        rows_a_sequence=rows_a_sequence(settings),
        longest_draft=longest_draft(settings.num_speculative_tokens),
        ranks=ranks_of(settings),
        rank_timeout=STALE_TIMES * settings.stale_after,
        nodes=nodes,
    )
    folder = ensure_model(settings.model, cache_dir(settings), dtype=settings.dtype)
    if chosen and METHODS[chosen.method].has_network:
        head = chosen.method, chosen.folder(settings, folder)
    model = load_torch_model(folder, wanted, getattr(drafter, "taps", ()), head)
    if model.facts.states and settings.phase != ALL:
        raise ModelError(f"phase is {settings.phase}, and this model's states aren't handed over", "leave phase out")
    drafters = {chosen.method: drafter(chosen.method, settings, model)} if chosen and drafter else {}
    grammars = Grammars(folder / "tokenizer.json", model.facts.vocab_size, model.facts.eos_token_ids)
    grammars.read_vocabulary()
    return TorchRunner(model, HeadDrafters(drafters), model.counts, grammars)


def rows_a_sequence(settings: Settings) -> int:
    """The most rows that a step verifies of one sequence: its draft and the token before it."""
    asked = settings.num_speculative_tokens
    return 1 + ((LONGEST_AUTO if settings.method == AUTO else METHODS[settings.method].length) if asked < 0 else asked)


def longest_draft(asked: int) -> int:
    """Of any request. `asked`: the setting num_speculative_tokens."""
    return max(LONGEST_AUTO, *(row.length for row in METHODS.values())) if asked < 0 else asked


def served_methods(own: tuple[str, ...]) -> tuple[str, ...]:
    """Methods a request may choose: all of the proposer's, and the worker's own."""
    return tuple(name for name, row in METHODS.items() if row.runs == "proposer" or name in own)
