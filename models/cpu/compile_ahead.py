"""Compiles the loops of the CPU executor with a model of one small layer, and with a head of one, before the real model
is there: which code is compiled depends on the dtype and the kinds of layers, not on their sizes. What is on disk isn't
compiled again.

    python -m models.cpu.compile_ahead [DTYPE]
"""

from __future__ import annotations

import json
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from models.batch import Stretch, make_batch
from models.choose import ExecutorChoice
from models.config import read_network
from models.cpu.executor import CpuExecutor
from models.executor import Options
from models.heads.folder import read_head
from models.heads.head import Head
from models.heads.weights import HeadWeights
from models.spec import Network
from models.taps import FINAL
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
HEAD_CONFIG: dict[str, Any] = CONFIG | {
    "architectures": ["LlamaForCausalLMEagle3"],
    "tie_word_embeddings": False,
    "draft_vocab_size": VOCABULARY,
    "eagle_aux_hidden_state_layer_ids": [1],
}


def compile_all(dtype: str) -> None:
    with tempfile.TemporaryDirectory() as name:
        model, head = Path(name) / "model", Path(name) / "head"
        options = Options(dtype=dtype, pages=4, page_tokens=16, max_context=64, threads=2, taps=(0, FINAL))
        _write(model, CONFIG, _model_shapes())
        network = read_network(model)
        _run(network, Weights(model), options)
        _write(head, HEAD_CONFIG, _head_shapes())
        made = read_head("eagle3", head, network)
        assert isinstance(made, Head) and made.combine is not None and made.follows is not None
        dtype = ExecutorChoice("compiled", CpuExecutor, "").drafting_dtype(dtype)
        drafting = replace(options, dtype=dtype, taps=(made.follows,))
        weights = HeadWeights(Weights(head), Weights(model), made.shared, None, network.vocab_size)
        CpuExecutor.projection(made.combine, weights, drafting, torch.device("cpu"))(torch.ones(2, HIDDEN))
        _run(made.network, weights, drafting)


def _write(folder: Path, config: dict[str, Any], shapes: dict[str, tuple[int, ...]]) -> None:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config), "utf-8")
    tensors = {f"{part}.weight": torch.full(shape, 0.01) for part, shape in shapes.items()}
    save_file(tensors, folder / "model.safetensors")


def _run(network: Network, weights: Any, options: Options) -> None:
    executor = CpuExecutor(network, weights, options)
    hidden = torch.zeros(3, HIDDEN) if network.entry else None
    with torch.inference_mode():
        executor.forward(make_batch([Stretch([1, 2, 3], 0, [0], 2)], options.page_tokens), hidden)
    executor.close()


def _layer_shapes(prefix: str, read: int) -> dict[str, tuple[int, ...]]:
    """`read`: how wide what the attention reads is."""
    head = HIDDEN // HEADS
    parts: dict[str, tuple[int, ...]] = {
        "input_layernorm": (HIDDEN,), "post_attention_layernorm": (HIDDEN,),
        "self_attn.q_proj": (HIDDEN, read), "self_attn.k_proj": (head, read),
        "self_attn.v_proj": (head, read), "self_attn.o_proj": (HIDDEN, HIDDEN),
        "mlp.gate_proj": (WIDE, HIDDEN), "mlp.up_proj": (WIDE, HIDDEN), "mlp.down_proj": (HIDDEN, WIDE),
    }  # fmt: skip
    return {f"{prefix}{part}": shape for part, shape in parts.items()}


def _model_shapes() -> dict[str, tuple[int, ...]]:
    return _layer_shapes("model.layers.0.", HIDDEN) | {
        "model.embed_tokens": (VOCABULARY, HIDDEN), "model.norm": (HIDDEN,),
    }  # fmt: skip


def _head_shapes() -> dict[str, tuple[int, ...]]:
    return _layer_shapes("midlayer.", 2 * HIDDEN) | {
        "midlayer.hidden_norm": (HIDDEN,), "fc": (HIDDEN, HIDDEN), "norm": (HIDDEN,), "lm_head": (VOCABULARY, HIDDEN),
    }  # fmt: skip


if __name__ == "__main__":
    compile_all(sys.argv[1] if len(sys.argv) > 1 else "bfloat16")
