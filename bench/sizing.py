"""What a mesh of one machine takes and gives for models of several sizes: memory of its processes at rest and under
load, tokens per second, and the time to the first token of a prompt of 400 tokens.

Weights are random and have the shapes of real models, with the default model's tokenizer. Nothing is drafted: of random
text no draft is accepted, and what drafts bring is measured elsewhere.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from bench.gpu.in_process import write_random
from bench.running_mesh import RunningMesh, resident_mb, running_mesh
from bench.shown import Shown
from models.sources import ensure_model
from services.api.settings import Settings, cache_dir
from services.cli.capacity.measure import Target
from services.runtime.process_tree import memory_mb
from specmesh.connection import Connection

HELP = "memory, tokens/s and first tokens by the size of the model (random weights)"
NAME = "measured"
STREAMS = 16
VOCABULARY = 49152

LLAMA = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": VOCABULARY, "hidden_act": "silu",
    "rms_norm_eps": 1e-5, "rope_theta": 100000.0, "max_position_embeddings": 8192, "tie_word_embeddings": True,
    "bos_token_id": 1, "eos_token_id": 2, "dtype": "bfloat16",
}  # fmt: skip


def _shape(hidden: int, wide: int, layers: int, heads: int, kv_heads: int) -> dict[str, Any]:
    return LLAMA | {
        "hidden_size": hidden, "intermediate_size": wide, "num_hidden_layers": layers, "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
    }  # fmt: skip


# Those of SmolLM2-135M, Llama-3.2-1B and -3B but for the vocabulary, and one that is done in seconds.
SHAPES = {
    "135m": _shape(576, 1536, 30, 9, 3), "1b": _shape(2048, 8192, 16, 32, 8), "3b": _shape(3072, 8192, 28, 24, 8),
    "toy": _shape(64, 128, 2, 4, 2),
}  # fmt: skip

SHOWN = (
    Shown("Sizes of models", "shapes>*",
          {"weights_gb": "weights, GB", "at_rest_mb>all": "memory at rest, MB", "under_load_mb>all": "at 16 streams",
           "under_load_mb>worker": "of it the worker", "tokens_per_s>1": "tokens/s, 1 stream",
           "tokens_per_s>16": "16 streams", "first_token_ms": "first token of 400, ms"},
          "Random weights, no drafts. Memory that processes share counts once.", by=("dtype",)),
)  # fmt: skip


def flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--shapes", default="135m,1b,3b", help=f"of {', '.join(SHAPES)}")
    parser.add_argument("--dtype", default="auto", choices=("auto", "bfloat16", "float32", "int8"))
    parser.add_argument("--tokens", type=int, default=64, help="length of each answer")
    parser.add_argument("--rounds", type=int, default=3, help="prompts of 400 tokens, after a first one")
    parser.add_argument("--folder", help="where the weights are written, 6 GB for 3b; default: that of temporary files")


def measure(options: argparse.Namespace) -> dict[str, Any]:
    tokenizer = ensure_model(Settings.for_tests().model, cache_dir(Settings.for_tests()))
    found = {}
    for name in options.shapes.split(","):
        with tempfile.TemporaryDirectory(prefix="sizing-", dir=options.folder) as folder:
            model = write_random(SHAPES[name], Path(folder) / name)
            for each in ("tokenizer.json", "tokenizer_config.json"):
                shutil.copy(tokenizer / each, model / each)
            found[name] = _sized(model, options)
            print(name, json.dumps(found[name]), flush=True)
    return {"dtype": options.dtype, "shapes": found}


def _sized(model: Path, options: argparse.Namespace) -> dict[str, Any]:
    weights = round((model / "model.safetensors").stat().st_size / 1e9, 2)
    settings = {"model": model, "served_model_name": NAME, "dtype": options.dtype, "method": "naive"}
    with running_mesh(**settings, draft_model="none") as mesh, closing(Connection(mesh.url)) as connection:
        target = Target(connection, NAME, lambda: memory_mb(mesh.process.pid))
        at_rest, first = _memory(mesh, target), target.first_token(options.rounds)
        target.speed(STREAMS, 2)  # warm
        speeds = {str(streams): round(target.speed(streams, options.tokens), 1) for streams in (1, STREAMS)}
        return {
            "weights_gb": weights, "at_rest_mb": at_rest, "under_load_mb": _memory(mesh, target),
            "tokens_per_s": speeds, "first_token_ms": round(first * 1e3, 1),
        }  # fmt: skip


def _memory(mesh: RunningMesh, target: Target) -> Mapping[str, float]:
    """By role what is resident; `all`: of every process of the mesh, with what they share counted once."""
    own = {role: round(resident_mb(pid), 1) for role, pid in mesh.processes().items()}
    return {**own, "all": round(target.memory(), 1)}
