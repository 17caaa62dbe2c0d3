"""Which class runs which architecture: one line each. Imports no torch until a class is asked for."""

from __future__ import annotations

from importlib import import_module
from typing import Any

FAMILIES: dict[str, str] = {
    "LlamaForCausalLM": "models.llama:Llama",
}

# What GGUF files call the same families.
GGUF_ARCHITECTURES: dict[str, str] = {
    "llama": "LlamaForCausalLM",
}


def family(architecture: str) -> Any:
    """The class that runs an architecture of `FAMILIES`."""
    module, name = FAMILIES[architecture].split(":")
    return getattr(import_module(module), name)
