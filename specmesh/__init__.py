"""specmesh as it is installed: one package, with the rooms of the code inside it (specmesh/rooms.py), and what Python
programs import of it: `from specmesh import LLM, SamplingParams`."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from specmesh.connection import RequestFailed as RequestFailed
    from specmesh.llm import LLM as LLM
    from specmesh.lmdeploy import GenerationConfig as GenerationConfig
    from specmesh.lmdeploy import PytorchEngineConfig as PytorchEngineConfig
    from specmesh.lmdeploy import SpeculativeConfig as SpeculativeConfig
    from specmesh.lmdeploy import pipeline as pipeline
    from specmesh.outputs import CompletionOutput as CompletionOutput
    from specmesh.outputs import EmbeddingOutput as EmbeddingOutput
    from specmesh.outputs import EmbeddingRequestOutput as EmbeddingRequestOutput
    from specmesh.outputs import Logprob as Logprob
    from specmesh.outputs import RequestOutput as RequestOutput
    from specmesh.outputs import Streamed as Streamed
    from specmesh.own_mesh import StartFailed as StartFailed
    from specmesh.sampling_params import SamplingParams as SamplingParams
    from specmesh.sampling_params import StructuredOutputsParams as StructuredOutputsParams

# Imported when they are used: a process of the mesh needs none of them.
_FROM = {
    "LLM": "llm",
    "SamplingParams": "sampling_params",
    "StructuredOutputsParams": "sampling_params",
    "RequestOutput": "outputs",
    "CompletionOutput": "outputs",
    "EmbeddingRequestOutput": "outputs",
    "EmbeddingOutput": "outputs",
    "Logprob": "outputs",
    "Streamed": "outputs",
    "RequestFailed": "connection",
    "StartFailed": "own_mesh",
    "pipeline": "lmdeploy",
    "PytorchEngineConfig": "lmdeploy",
    "SpeculativeConfig": "lmdeploy",
    "GenerationConfig": "lmdeploy",
}
__all__ = list(_FROM)  # pyright: ignore


def __getattr__(name: str) -> Any:
    if name not in _FROM:
        raise AttributeError(f"module 'specmesh' has no attribute {name!r}")
    return getattr(import_module(f"specmesh.{_FROM[name]}"), name)
