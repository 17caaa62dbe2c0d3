"""Compiles the loops of the CPU executor with a model of one small layer, before the real model is there: which code is
compiled depends on the dtype and the kinds of layers, not on their sizes. What is on disk isn't compiled again.

    python -m models.cpu.compile_ahead [DTYPE]
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from kernels.cpu_vectors import HAS_BFLOAT16_DOT
from models.batch import Stretch, make_batch
from models.config import read_network
from models.cpu.executor import CpuExecutor
from models.executor import Options
from models.weights import Weights

HIDDEN, WIDE, HEADS, VOCABULARY = 64, 128, 2, 64
CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": VOCABULARY,
    "hidden_size": HIDDEN,
    "intermediate_size": WIDE,
    "num_hidden_layers": 1,
    "num_attention_heads": HEADS,
    "num_key_value_heads": 1,
    "max_position_embeddings": 64,
    "tie_word_embeddings": True,
    "eos_token_id": 0,
}


def compile_all(dtype: str) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "config.json").write_text(json.dumps(CONFIG))
        save_file(_weights(), folder / "model.safetensors")
        options = Options(dtype=dtype, pages=4, page_tokens=16, max_context=64, threads=2)
        executor = CpuExecutor(read_network(folder), Weights(folder), options)
        with torch.inference_mode():
            executor.forward(make_batch([Stretch([1, 2, 3], 0, [0], 2)], options.page_tokens))
        executor.close()


def _weights() -> dict[str, torch.Tensor]:
    head = HIDDEN // HEADS
    layer = {
        "input_layernorm": (HIDDEN,), "post_attention_layernorm": (HIDDEN,),
        "self_attn.q_proj": (HIDDEN, HIDDEN), "self_attn.k_proj": (head, HIDDEN),
        "self_attn.v_proj": (head, HIDDEN), "self_attn.o_proj": (HIDDEN, HIDDEN),
        "mlp.gate_proj": (WIDE, HIDDEN), "mlp.up_proj": (WIDE, HIDDEN), "mlp.down_proj": (HIDDEN, WIDE),
    }  # fmt: skip
    shapes = {f"model.layers.0.{part}.weight": shape for part, shape in layer.items()}
    shapes |= {"model.embed_tokens.weight": (VOCABULARY, HIDDEN), "model.norm.weight": (HIDDEN,)}
    return {part: torch.full(shape, 0.01) for part, shape in shapes.items()}


if __name__ == "__main__":
    compile_all(sys.argv[1] if len(sys.argv) > 1 else "bfloat16" if HAS_BFLOAT16_DOT else "float32")
