"""The names of benchmarks and commands, as one types them behind `python -m bench`, and their modules."""

from __future__ import annotations

import importlib
from types import ModuleType

# In the order in which docs/results.md shows them.
BENCHMARKS = {
    "never_slower": "never_slower", "peers": "oracles.peers", "offline": "oracles.offline", "serving": "serving",
    "compare": "compare", "engine": "engine", "with_amx": "with_amx", "verify": "verify", "proposer": "proposer",
    "acceptance": "acceptance", "same_drafts": "oracles.same_drafts", "mesh": "mesh", "sizing": "sizing",
    "step_overhead": "step_overhead", "witnesses": "oracles.witnesses", "vllm_drafter": "oracles.vllm_drafter",
    "faults": "failures.faults", "soak": "failures.soak", "overload": "failures.overload",
    "outages": "failures.outages", "failover": "failures.failover", "on_ray": "failures.on_ray", "split": "split",
    "gpu_environment": "gpu.environment", "parity": "gpu.parity", "gpu_law3": "gpu.law3", "gpu_steps": "gpu.steps",
    "gpu_verify": "gpu.verify", "gpu_decode": "gpu.decode", "gpu_attention": "gpu.attention",
    "gpu_runner": "gpu.runner", "gpu_prefill": "gpu.prefill", "gpu_http": "gpu.http", "gpu_layers": "gpu.layers",
    "gpu_peer": "gpu.peer",
}  # fmt: skip
# They leave no row.
COMMANDS = {"results": "results_page", "step": "step"}
MODULES = BENCHMARKS | COMMANDS


def load(name: str) -> ModuleType:
    return importlib.import_module(f"bench.{MODULES[name]}")
