"""Tiny random models of the families that the seeds name, with the heads that their commands ask for."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from transformers import DeepseekV3Config, DeepseekV3ForCausalLM

TESTS = Path(__file__).parent
sys.path[:0] = [str(TESTS), str(TESTS / "models" / "heads")]

import reference  # noqa: E402
from tiny_folder import write_tiny_model  # noqa: E402

# Of the settings files of seeds/.
LONG = 32768
WORDS = 304
SIZES: dict[str, Any] = {"intermediate_size": reference.WIDE, "head_dim": 16, "max_position_embeddings": LONG}
DEEPSEEK: dict[str, Any] = {
    "vocab_size": WORDS, "hidden_size": 64, "intermediate_size": 96, "moe_intermediate_size": 96,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 4, "n_routed_experts": 2,
    "n_shared_experts": 0, "num_experts_per_tok": 1, "n_group": 1, "topk_group": 1, "q_lora_rank": 24,
    "kv_lora_rank": 32, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8, "first_k_dense_replace": 1,
    "max_position_embeddings": LONG,
}  # fmt: skip


def write_families(folder: Path) -> dict[str, str]:
    """The folders, by the names that the seeds have."""
    ernie = write_tiny_model(
        folder / "ernie", architectures=["Ernie4_5ForCausalLM"], model_type="ernie4_5", **SIZES
    )
    block = folder / "ernie-mtp"
    reference.write_ernie_mtp(block)
    _change(block, vocab_size=WORDS, max_position_embeddings=LONG)
    _into(block, ernie)
    llama = write_tiny_model(folder / "llama", num_hidden_layers=4, **SIZES)
    deepseek = _write_deepseek(folder / "deepseek")
    return {
        "./ernie-mtp": str(block), "./ernie/mtp": str(block), "${mtp_model_path}": str(block), "./ernie": str(ernie),
        "yuhuili/EAGLE3-LLaMA3.1-Instruct-8B": str(_write_eagle3(folder / "eagle3")),
        "meta-llama/Llama-3.1-8B-Instruct": str(llama), "meta-llama/Llama-2-7b-chat": str(llama),
        "deepseek-ai/DeepSeek-R1-MTP": str(folder / "deepseek-mtp"), "deepseek-ai/DeepSeek-R1": str(deepseek),
        "deepseek-ai/DeepSeek-V3": str(deepseek),
    }  # fmt: skip


def _write_deepseek(folder: Path) -> Path:
    """With its MTP block, which is also in a folder of its own."""
    write_tiny_model(folder)
    torch.manual_seed(0)
    DeepseekV3ForCausalLM(DeepseekV3Config(**DEEPSEEK)).save_pretrained(folder)
    block = folder.with_name("deepseek-mtp")
    reference.write_deepseek_mtp(block, DEEPSEEK["num_hidden_layers"])
    _change(block, vocab_size=WORDS, max_position_embeddings=LONG, model_type="deepseek_v3")
    _into(block, folder)
    return folder


def _write_eagle3(folder: Path) -> Path:
    """reference.write_eagle3 for another vocabulary."""
    small = reference.DRAFT_VOCABULARY
    shapes = reference.layer_shapes("midlayer.", 2 * reference.HIDDEN) | {
        "midlayer.hidden_norm.weight": (reference.HIDDEN,), "fc.weight": (reference.HIDDEN, 3 * reference.HIDDEN),
        "norm.weight": (reference.HIDDEN,), "lm_head.weight": (small, reference.HIDDEN),
    }  # fmt: skip
    ids = torch.arange(small) * 2 + 1
    used = torch.zeros(WORDS, dtype=torch.bool).index_fill(0, ids, True)
    config = {"vocab_size": WORDS, "draft_vocab_size": small, "eagle_aux_hidden_state_layer_ids": [1, 2, 3]}
    reference.write(folder, shapes, config, d2t=ids - torch.arange(small), t2d=used)
    return folder


def _change(folder: Path, **fields: Any) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | fields))


def _into(block: Path, model: Path) -> None:
    """A block's tensors beside those of its model, as they are published."""
    tensors = load_file(model / "model.safetensors") | load_file(block / "model.safetensors")
    save_file(tensors, model / "model.safetensors", {"format": "pt"})
    _change(model, num_nextn_predict_layers=1)
