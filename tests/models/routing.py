"""Tiny models with experts whose choices are clear: no row is so near a tie that rounding could send it elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import parity
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import PreTrainedConfig, PreTrainedModel

from models.check import check_model
from models.config import read_network
from models.errors import ModelError
from models.spec import ExpertRouter, Experts

# In scores. Logits of a router differ by about 1e-6 between implementations, scores by a quarter of that.
MARGIN = 5e-6
# A DeepSeek-V3: latent attention, experts in groups.
DEEPSEEK: dict[str, Any] = {
    "num_key_value_heads": 4,
    "n_routed_experts": 16,
    "num_experts_per_tok": 4,
    "n_group": 4,
    "topk_group": 2,
    "moe_intermediate_size": 24,
    "first_k_dense_replace": 1,
    "kv_lora_rank": 32,
    "q_lora_rank": 24,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "v_head_dim": 24,
}


def save_sparse(config_class: type[PreTrainedConfig], folder: Path, seed: int, **changes: Any) -> PreTrainedModel:
    """parity.save_tiny with routers that tell experts apart, and correction biases that matter."""
    model = parity.save_tiny(config_class, folder, **changes)
    noise = torch.Generator().manual_seed(seed)
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if name.endswith(("mlp.gate.weight", "mlp.router.weight")):
            torch.nn.init.normal_(tensor, 0.0, 0.2, generator=noise)
        if name.endswith("e_score_correction_bias"):
            torch.nn.init.normal_(tensor, 0.0, 0.1, generator=noise)
    model.save_pretrained(folder)
    return model


@contextmanager
def clear_choices(theirs: PreTrainedModel, folder: Path) -> Iterator[None]:
    """Watches every choice that transformers makes meanwhile; in the end none may have been near a tie, and most
    experts must have been chosen."""
    network = read_network(folder)
    routers = [layer.mlp.router for layer in network.layers if isinstance(layer.mlp, Experts)]
    gates = [module for name, module in theirs.named_modules() if name.endswith(("mlp.gate", "mlp.router"))]
    smallest, chosen = [torch.inf], [set[int]() for _ in routers]

    def watch(router: ExpertRouter, ids: set[int]) -> Any:
        def hook(gate: torch.nn.Module, _: Any, output: tuple[torch.Tensor, ...]) -> None:
            logits, _, indices = output
            bias = next((t for name, t in gate.state_dict().items() if name.endswith("correction_bias")), None)
            smallest[0] = min(smallest[0], margin(logits, bias, router))
            ids.update(indices.flatten().tolist())

        return hook

    hooks = [
        gate.register_forward_hook(watch(router, ids)) for gate, router, ids in zip(gates, routers, chosen, strict=True)
    ]
    yield
    for hook in hooks:
        hook.remove()
    assert smallest[0] >= MARGIN, f"a choice was won by {smallest[0]:.1g}: take another seed"
    assert all(len(ids) > router.experts // 2 for ids, router in zip(chosen, routers, strict=True))


def margin(logits: torch.Tensor, bias: torch.Tensor | None, router: ExpertRouter) -> float:
    """By how much the last of the chosen beats the first of the others, in groups and in experts."""
    scores = logits.float().softmax(-1) if router.scoring == "softmax" else logits.float().sigmoid()
    by = scores if bias is None else scores + bias.float().flatten()
    gaps = []
    if router.top_groups < router.groups:
        in_groups = by.unflatten(-1, (router.groups, -1))
        worth = in_groups.sort(-1, descending=True).values[..., :2].sum(-1)
        gaps.append(_gap(worth, router.top_groups))
        barred = worth < worth.sort(-1, descending=True).values[:, router.top_groups - 1, None]
        by = in_groups.masked_fill(barred[..., None], -1e9).flatten(-2)
    if router.top_k < router.experts // router.groups * router.top_groups:
        gaps.append(_gap(by, router.top_k))
    return min(gaps, default=torch.inf)


def _gap(scores: torch.Tensor, count: int) -> float:
    best = scores.sort(-1, descending=True).values
    return float((best[:, count - 1] - best[:, count]).min())


def check(theirs: PreTrainedModel, folder: Path) -> None:
    with clear_choices(theirs, folder):
        parity.check_parity(theirs, folder)


def check_that_it_is_missed(tensor: str, saved: Path, folder: Path) -> None:
    """Without the tensor a model is refused, by the tensor's name."""
    (folder / "config.json").write_bytes((saved / "config.json").read_bytes())
    (folder / "tokenizer.json").write_text("{}")
    tensors = load_file(saved / "model.safetensors")
    del tensors[tensor]
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(ModelError, match=f"{tensor} is missing"):
        check_model(folder)
