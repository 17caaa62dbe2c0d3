"""The table of docs/use/models.md: models × GPUs that fit. Shapes are those of the models' own config.json."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from models.check import kv_bytes_per_token
from models.config import Fields
from models.memory import Kept, fixed_bytes, numbers_of, row_bytes, weight_bytes
from models.registry import declaration
from models.spec import Linear, Network
from services.worker.cache.size import Card, Demand, fit_card

# MiB, as the driver tells them.
CARDS = {
    "A10, L4 24": 23_028,
    "A100 40": 40_960,
    "A100 80": 81_920,
    "H100 80": 81_559,
    "H200 141": 143_771,
    "B200 180": 183_359,
}
# Bytes of a number of a linear: fp8 with a float32 for 128 × 128, 4 bits with a scale and a zero of 16 bits for 128.
FORMATS = {"bf16": 2.0, "fp8": 1 + 4 / 128**2, "int4": 0.5 + 4 / 128}
# With fewer tokens for all texts together it doesn't fit.
_FEWEST = 2000
_SHARE, _PAGE_TOKENS, _SLOTS, _NUMBER = 0.9, 32, 1024, 2


def _llama(hidden: int, wide: int, layers: int, heads: int, kv_heads: int, **more: Any) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"], "hidden_size": hidden, "intermediate_size": wide,
        "num_hidden_layers": layers, "num_attention_heads": heads, "num_key_value_heads": kv_heads,
        "rms_norm_eps": 1e-5, "vocab_size": 128256, "max_position_embeddings": 131072, **more,
    }  # fmt: skip


def _qwen3(hidden: int, wide: int, layers: int, heads: int, **more: Any) -> dict[str, Any]:
    sizes = {"head_dim": 128, "vocab_size": 151936, "max_position_embeddings": 40960}
    return _llama(hidden, wide, layers, heads, 8, **sizes) | {"architectures": ["Qwen3ForCausalLM"], **more}


_EXPERTS = {
    "architectures": ["Qwen3MoeForCausalLM"], "num_key_value_heads": 4, "num_experts": 128, "num_experts_per_tok": 8,
    "moe_intermediate_size": 768, "norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": [],
}  # fmt: skip
MODELS: dict[str, dict[str, Any]] = {
    "Llama 3.1 8B": _llama(4096, 14336, 32, 32, 8),
    "Qwen3 14B": _qwen3(5120, 17408, 40, 40),
    "Qwen3 30B-A3B": _qwen3(2048, 6144, 48, 32, **_EXPERTS),
    "Qwen3 32B": _qwen3(5120, 25600, 64, 64),
    "Llama 3.3 70B": _llama(8192, 28672, 80, 64, 8),
}


def rows() -> Iterator[list[str]]:
    for name, config in MODELS.items():
        network = declaration(config["architectures"][0])(Fields(config))
        for form, number_bytes in FORMATS.items():
            weights = weight_of(network, number_bytes)
            cells = [_thousands(network, weights, mebibytes << 20) for mebibytes in CARDS.values()]
            yield [f"{name}, {form}", f"{weights / 1e9:.0f}", *cells]


def weight_of(network: Network, number_bytes: float) -> int:
    def linear(one: Linear) -> int:
        return int(numbers_of(one) * number_bytes)

    return weight_bytes(network, Kept(_NUMBER, _NUMBER, linear))


def _thousands(network: Network, weights: int, total: int) -> str:
    page = kv_bytes_per_token(network, _NUMBER) * _PAGE_TOKENS
    demand = Demand(
        weights, page, row_bytes(network, _NUMBER), fixed_bytes(network, network.max_context, _SLOTS), _PAGE_TOKENS,
        network.max_context,
    )  # fmt: skip
    try:
        fit = fit_card(Card(total, total), demand, _SHARE)
    except ValueError:
        return "-"
    tokens = fit.kv_bytes // page * _PAGE_TOKENS
    return f"{tokens / 1000:.0f}" if tokens >= _FEWEST else "-"
