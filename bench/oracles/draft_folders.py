"""Folders of heads and models that both sides of bench/oracles/same_drafts.py read: a trained head as floats, with the
rows of the model's head that it leaves out; or random weights, from a seed, in the published layout.

MTP blocks belong to families of models:

    mimo         the model itself under MiMo's names, whose q, k and v have biases of 0; its block is trained or random
    deepseek_v3  a small random model with latent attention and experts, and a random block; vLLM's CPU kernels need the
                 latent sizes of the published models
    glm4_moe     a small random model with experts, of whose heads half is rotated, and a random block
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from models import spec
from models.check import parts_of
from models.config import Fields, network_of, read_network
from models.heads.dflash import read as read_dflash
from models.heads.eagle import read as read_eagle
from models.heads.folder import read_head
from models.heads.head import Head
from models.heads.mtp import MIMO
from models.heads.mtp import read as read_mtp
from models.heads.residual import ResidualHeads
from models.heads.table import DRAFT_MODEL
from models.heads.weights import HeadWeights, target_ids
from models.sources import read_json
from models.weights import Weights, embedding_of

Tensors = dict[str, torch.Tensor]
# Of what a model's folder has beside config.json and weights.
TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "generation_config.json")


def write(folder: Path, config: dict[str, Any], tensors: Tensors, model: Path | None = None) -> Path:
    """`model`: the folder whose tokenizer it gets."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")
    if model is not None:
        for name in TOKENIZER:
            if (model / name).is_file():
                shutil.copy(model / name, folder)
    return folder


def stored(declared: Any, weights: Weights | HeadWeights) -> Tensors:
    """All its linears and norms, the linears dense."""
    found: Tensors = {}
    for item in parts_of(declared):
        if isinstance(item, spec.Norm):
            found[f"{item.name}.weight"] = weights.take(f"{item.name}.weight", item.width)
        elif isinstance(item, spec.Linear):
            linear = weights.linear(item)
            for index, part in enumerate(linear.parts):
                found[f"{part.name}.weight"] = part.codes if part.kind == "plain" else part.dense(torch.float32)
                if linear.biases:
                    found[f"{part.name}.bias"] = linear.biases[index]
    return found


def drawn(declared: Any, seed: int) -> Tensors:
    """All its linears, norms and routers' biases, random: values keep their size from layer to layer."""
    source = torch.Generator().manual_seed(seed)

    def noise(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=source)

    found: Tensors = {}
    for item in parts_of(declared):
        if isinstance(item, spec.Norm):
            found[f"{item.name}.weight"] = 1 + 0.1 * noise(item.width)
        elif isinstance(item, spec.ExpertRouter) and item.bias:
            found[item.bias] = 0.1 * noise(item.experts)
        elif isinstance(item, spec.Linear):
            for part in item.parts:
                found[f"{part.name}.weight"] = noise(part.outputs, item.inputs) * item.inputs**-0.5
                if item.bias:
                    found[f"{part.name}.bias"] = 0.1 * noise(part.outputs)
    return found


def mostly_hidden(linear: torch.Tensor, hidden_first: bool = False) -> None:
    """Of what joins embedding and hidden value: the hidden value goes through, so that drafts are as different from
    each other as the model's tokens are."""
    size = len(linear)
    half = linear[:, :size] if hidden_first else linear[:, size:]
    half += torch.eye(size)


# Heads --------------------------------------------------------------------------------------------------


def in_floats(method: str, folder: Path, model: Path, out: Path, seed: int | None = None) -> Path:
    """A trained head, with everything that is not simply the model's; with a seed, random weights in their place."""
    network, own = read_network(model), Weights(folder)
    head = read_head(method, folder, network)
    ids = target_ids(head, own, network.vocab_size)
    weights = HeadWeights(own, Weights(model), head.shared, ids, network.vocab_size)
    tensors = stored(head, weights) if seed is None else drawn(head, seed)
    if ids is None:
        tensors = {name: tensor for name, tensor in tensors.items() if name not in head.shared}
    name = head.token_ids if isinstance(head, ResidualHeads) else head.id_offsets
    if ids is not None:
        tensors[name] = own.take_ids(name, len(ids))
    if isinstance(head, Head) and head.mask is not None and head.mask.features:
        tensors[head.mask.features] = own.take(head.mask.features, 1, len(head.taps) * network.hidden_size)
    config = {name: value for name, value in read_json(folder / "config.json").items() if name != "quantization_config"}
    return write(out, config, tensors)


def random_eagle(model: Path, out: Path, seed: int) -> Path:
    """EAGLE of the first generation, in the authors' layout."""
    config = read_json(model / "config.json") | {"num_hidden_layers": 1}
    head = read_eagle(Fields(config), (), read_network(model))
    tensors = {name: tensor for name, tensor in drawn(head, seed).items() if name not in head.shared}
    mostly_hidden(tensors["fc.weight"])
    return write(out, config, tensors)


def random_dflash(model: Path, out: Path, seed: int) -> Path:
    """In the authors' layout: two layers in the model's sizes, over values of its first three, because a few numbers of
    later ones outweigh what tells tokens apart. So that drafts are different, each row sees a few others more than the
    rest, attention counts more than the masks, and the output head is random, too."""
    network, config = read_network(model), read_json(model / "config.json")
    count = len(network.layers)
    config |= {
        "architectures": ["DFlashDraftModel"], "model_type": "qwen3", "num_hidden_layers": 2, "block_size": 8,
        "head_dim": config["hidden_size"] // config["num_attention_heads"], "attention_bias": False,
        "num_target_layers": count, "layer_types": ["full_attention"] * 2, "max_window_layers": 2,
        "use_sliding_window": False,
        "dflash_config": {"mask_token_id": 3, "target_layer_ids": [*range(min(3, count))]},
    }  # fmt: skip
    head = read_dflash(Fields(config), ["lm_head.weight"], network)
    tensors = {name: tensor for name, tensor in drawn(head, seed).items() if name not in head.shared}
    for layer in range(2):
        tensors[f"layers.{layer}.self_attn.q_norm.weight"] *= 6
        # vLLM norms the text's keys of all layers with the first one's weights on CPUs.
        tensors[f"layers.{layer}.self_attn.k_norm.weight"] = tensors["layers.0.self_attn.k_norm.weight"].clone()
        tensors[f"layers.{layer}.self_attn.o_proj.weight"] *= 8
    return write(out, config, tensors)


# MTP blocks ---------------------------------------------------------------------------------------------


def mimo(model: Path, out: Path, seed: int, trained: Path | None) -> Path:
    """`trained`: an MTP block that specmesh made for the model, in DeepSeek's layout."""
    network, config = read_network(model), read_json(model / "config.json")
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
    return _with_random_block(config, "self_attn.kv_a_proj_with_mqa", model, out, seed)


def random_glm(model: Path, out: Path, seed: int, trained: Path | None) -> Path:
    if trained is not None:
        raise SystemExit("glm4_moe: there is no trained block; leave --draft-model out")
    config = {
        "architectures": ["Glm4MoeForCausalLM"], "model_type": "glm4_moe",
        "vocab_size": read_network(model).vocab_size, "hidden_size": 256, "intermediate_size": 512,
        "moe_intermediate_size": 128, "num_hidden_layers": 3, "first_k_dense_replace": 1,
        "num_nextn_predict_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64,
        "partial_rotary_factor": 0.5, "use_qk_norm": True, "n_routed_experts": 8, "num_experts_per_tok": 2,
        "n_shared_experts": 1, "n_group": 1, "topk_group": 1, "norm_topk_prob": True, "routed_scaling_factor": 1.5,
        "hidden_act": "silu", "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "max_position_embeddings": 4096,
        "tie_word_embeddings": False, "attention_bias": True, "bos_token_id": 1, "eos_token_id": 2,
        "dtype": "float32",
    }  # fmt: skip
    return _with_random_block(config, "mlp.gate", model, out, seed)


def _with_random_block(config: dict[str, Any], mark: str, model: Path, out: Path, seed: int) -> Path:
    """`mark`: the tensor of a block by which its family is known. `model`: the folder whose tokenizer it gets."""
    network, name = network_of(Fields(config)), f"model.layers.{config['num_hidden_layers']}."
    head = read_mtp(Fields(config), [f"{name}eh_proj.weight", f"{name}{mark}.weight"], network)
    block = {name: tensor for name, tensor in drawn(head, seed + 1).items() if name not in head.shared}
    mostly_hidden(block[f"{name}eh_proj.weight"])
    shape = network.vocab_size, network.hidden_size
    embedding = torch.randn(shape, generator=torch.Generator().manual_seed(seed + 2))
    return write(out, config, drawn(network, seed) | block | {network.embedding: embedding}, model)


FAMILIES: dict[str, Callable[[Path, Path, int, Path | None], Path]] = {
    "mimo": mimo, "deepseek_v3": random_deepseek, "glm4_moe": random_glm,
}  # fmt: skip


RANDOM: dict[str, Callable[[Path, Path, int], Path]] = {"eagle": random_eagle, "dflash": random_dflash}


def made(
    method: str, family: str, model: Path, folder: Path | None, out: Path, seed: int, random: bool = False
) -> tuple[Path, Path]:
    """The folders of the model and of the head. `random`: with the layout of `folder`, but not with its weights."""
    if family:
        whole = FAMILIES[family](model, out / family, seed, None if random else folder)
        return whole, whole
    if folder is None:
        if method not in RANDOM:
            made = " and ".join(RANDOM)
            raise SystemExit(f"{method}: give --draft-model; only {made} and the families of mtp are made without one")
        return model, RANDOM[method](model, out / method, seed)
    if method != DRAFT_MODEL:
        return model, in_floats(method, folder, model, out / method, seed if random else None)
    return model, folder
