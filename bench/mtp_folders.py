"""Models with MTP blocks that both sides of bench/same_drafts.py read, by family.

    mimo         the model itself under MiMo's names, whose q, k and v have biases of 0; its block is the trained one or
                 random
    deepseek_v3  a small random model with latent attention and experts, and a random block; vLLM's CPU kernels need the
                 latent sizes of the published models
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

from bench.declared_tensors import Tensors, config_of, drawn, mostly_hidden, stored, write
from models import spec
from models.config import Fields, read_network
from models.deepseek_v3 import network as deepseek_v3
from models.heads.folder import read_head
from models.heads.head import Head
from models.heads.mtp import MIMO
from models.heads.mtp import read as read_mtp
from models.weights import Weights, embedding_of


def mimo(model: Path, out: Path, seed: int, trained: Path | None) -> Path:
    """`trained`: an MTP block that specmesh made for the model, in DeepSeek's layout."""
    network, config = read_network(model), config_of(model)
    config |= {"architectures": ["MiMoForCausalLM"], "model_type": "qwen2", "num_nextn_predict_layers": 1}
    config |= {"tie_word_embeddings": False, "attention_bias": True}
    weights = Weights(model)
    tensors, embedding = stored(network, weights), embedding_of(network, weights)
    tensors[network.embedding] = embedding
    tensors.setdefault("lm_head.weight", embedding.clone())
    if trained is None:
        head = read_mtp(Fields(config), [f"{MIMO}input_proj.weight"], network)
        block = {name: tensor for name, tensor in drawn(head, seed).items() if name.startswith(MIMO)}
        mostly_hidden(block[f"{MIMO}input_proj.weight"], hidden_first=True)
    else:
        block = _as_mimo(trained, network, weights)
    tensors |= block
    for name in [name for name in tensors if name.endswith(("q_proj.weight", "k_proj.weight", "v_proj.weight"))]:
        tensors[f"{name.removesuffix('weight')}bias"] = torch.zeros(len(tensors[name]))
    return write(out, config, tensors, model)


def _as_mimo(folder: Path, network: spec.Network, weights: Weights) -> Tensors:
    """MiMo's linear has its halves the other way round, and its hidden value comes before the model's last norm, whose
    weight goes into the block's."""
    head, own = read_head("mtp", folder, network), Weights(folder)
    assert isinstance(head, Head) and network.norm is not None
    found = stored(head.network.layers, own) | stored(head.network.entry, own) | stored(head.network.norm, own)
    start = f"model.layers.{len(network.layers)}."
    block = {name.removeprefix(start): tensor for name, tensor in found.items()}
    last = weights.take(f"{network.norm.name}.weight", network.hidden_size).float()
    hidden = block.pop("hnorm.weight").float() * last / last.square().mean().sqrt()
    embedded, through = block.pop("eh_proj.weight").chunk(2, 1)
    block |= {"hidden_layernorm.weight": hidden, "token_layernorm.weight": block.pop("enorm.weight")}
    block |= {"input_proj.weight": torch.cat([through, embedded], 1)}
    block["final_layernorm.weight"] = block.pop("shared_head.norm.weight")
    return {f"{MIMO}{name}": tensor for name, tensor in block.items()}


def random_deepseek(model: Path, out: Path, seed: int, trained: Path | None) -> Path:
    if trained is not None:
        raise SystemExit("deepseek_v3: there is no trained block; leave --draft-model out")
    vocabulary = read_network(model).vocab_size
    layers, hidden = 3, 256
    config = {
        "architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", "vocab_size": vocabulary,
        "hidden_size": hidden, "intermediate_size": 512, "moe_intermediate_size": 128, "num_hidden_layers": layers,
        "first_k_dense_replace": 1, "moe_layer_freq": 1, "num_nextn_predict_layers": 1, "num_attention_heads": 4,
        "num_key_value_heads": 4, "q_lora_rank": 128, "kv_lora_rank": 512, "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64, "v_head_dim": 128, "n_routed_experts": 8, "num_experts_per_tok": 2,
        "n_shared_experts": 1, "n_group": 2, "topk_group": 1, "norm_topk_prob": True, "routed_scaling_factor": 1.5,
        "scoring_func": "sigmoid", "topk_method": "noaux_tc", "hidden_act": "silu", "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0, "max_position_embeddings": 163840, "tie_word_embeddings": False, "attention_bias": False,
        "bos_token_id": 1, "eos_token_id": 2, "dtype": "float32",
        # As published; rotations that aren't stretched are computed otherwise by vLLM on CPUs than by transformers.
        "rope_scaling": {
            "type": "yarn", "factor": 40, "original_max_position_embeddings": 4096, "beta_fast": 32, "beta_slow": 1,
            "mscale": 1.0, "mscale_all_dim": 1.0,
        },
    }  # fmt: skip
    network, name = deepseek_v3(Fields(config)), f"model.layers.{layers}."
    made = [f"{name}eh_proj.weight", f"{name}self_attn.kv_a_proj_with_mqa.weight"]
    head = read_mtp(Fields(config), made, network)
    block = {name: tensor for name, tensor in drawn(head, seed + 1).items() if name not in head.shared}
    mostly_hidden(block[f"{name}eh_proj.weight"])
    embedding = torch.randn(vocabulary, hidden, generator=torch.Generator().manual_seed(seed + 2))
    return write(out, config, drawn(network, seed) | block | {network.embedding: embedding}, model)


FAMILIES: dict[str, Callable[[Path, Path, int, Path | None], Path]] = {"mimo": mimo, "deepseek_v3": random_deepseek}
