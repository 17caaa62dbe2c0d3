"""One layer of other families on the GPU, with random weights: the device's time at 1, 16 and 64 sequences against the
bytes that a layer must read. Experts (Qwen3 30B-A3B's shape), latent attention (DeepSeek-V3's, with a dense MLP), and
Llama 3.1 8B's layer dense, in fp8, in int8 and in int4.

A layer's time is the difference of two networks that differ by some layers, per layer: what stands around them is in
both. Experts that rows of random weights choose are about evenly spread, and those that nobody chose needn't be read.
"""

from __future__ import annotations

import argparse
import gc
from typing import Any

import torch

from bench.gpu import stage
from bench.gpu.stage import PAGE_TOKENS, RandomWeights
from bench.shown import Shown
from models.batch import Stretch, make_batch
from models.config import Fields, network_of
from models.executor import Options
from models.quantized.at_load import coded
from models.quantized.stored import StoredLinear, StoredPart
from models.spec import Experts, Linear, Network

HELP = "one layer of experts, latent attention, fp8, int8 and int4 against the bytes it must read"
SEQUENCES, CONTEXT, REPLAYS = (1, 16, 64), 1024, 20
# Layers of the two networks: already the smaller one's weights don't stay in a cache.
FEW, MANY = 2, 5
_SMALL_HEAD = {"vocab_size": 1024}
EXPERTS: dict[str, Any] = stage.LLAMA_8B | _SMALL_HEAD | {
    "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "hidden_size": 2048, "head_dim": 128,
    "num_key_value_heads": 4, "intermediate_size": 6144, "moe_intermediate_size": 768, "num_experts": 128,
    "num_experts_per_tok": 8, "norm_topk_prob": True,
}  # fmt: skip
LATENT: dict[str, Any] = stage.LLAMA_8B | _SMALL_HEAD | {
    "architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", "hidden_size": 7168,
    "intermediate_size": 18432, "num_attention_heads": 128, "num_key_value_heads": 128, "q_lora_rank": 1536,
    "kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128,
    "first_k_dense_replace": MANY,
}  # fmt: skip
DENSE: dict[str, Any] = stage.LLAMA_8B | _SMALL_HEAD
# Name -> shape, how its linears are coded, and the dtype of the options.
LAYERS: dict[str, tuple[dict[str, Any], str, str]] = {
    "8B, bfloat16": (DENSE, "", "bfloat16"),
    "8B, fp8 x fp8": (DENSE, "fp8", "bfloat16"),
    "8B, int4": (DENSE, "wint4", "bfloat16"),
    "8B, int8 x int8": (DENSE, "", "int8"),
    "experts": (EXPERTS, "", "bfloat16"),
    "latent attention": (LATENT, "", "bfloat16"),
    "8B, int8 codes": (DENSE, "wint8", "bfloat16"),
}
TOYS: dict[str, dict[str, Any]] = {
    "qwen3_moe": {"head_dim": 8, "moe_intermediate_size": 32, "num_experts": 4, "num_experts_per_tok": 2},
    "deepseek_v3": {
        "num_key_value_heads": 4, "q_lora_rank": 16, "kv_lora_rank": 32, "qk_rope_head_dim": 16,
        "qk_nope_head_dim": 16, "v_head_dim": 16,
    },
}  # fmt: skip
FP8_BLOCK, TOY_BLOCK = 128, 32
SHOWN = (
    Shown("One layer of other families on the GPU", "layers>*>layer_us|of_bytes",
          say="Random weights. of_bytes: the device's time over the time to read what a layer must."),
)  # fmt: skip


def flags(parser: argparse.ArgumentParser) -> None:
    stage.flags(parser)
    parser.add_argument("--layers", default="", help=f"these alone, separated by semicolons: {'; '.join(LAYERS)}")


def measure(options: argparse.Namespace) -> dict[str, Any]:
    where = stage.device(options)
    figures = stage.begun(options, where)
    figures |= {"read_gb_s": round(rate := stage.bandwidth(where), 1), "layers": {}, "missed": []}
    for name in options.layers.split(";") if options.layers else LAYERS:
        config, way, dtype = LAYERS[name.strip()]
        try:
            found = measured(config, way, dtype, rate, options, where)
        except Exception as problem:
            # One family that can't be run says nothing of the others.
            figures["missed"].append(f"{name}: {type(problem).__name__}: {problem}"[:300])
            continue
        figures["layers"][name] = found
        print(f"-- {name}: {found}", flush=True)
    return figures


def measured(
    config: dict[str, Any], way: str, dtype: str, rate: float, options: argparse.Namespace, where: torch.device
) -> dict[str, Any]:
    sequences, context = ((1, 2), 40) if options.dry_run else (SEQUENCES, CONTEXT)
    toy = stage.TOY | TOYS.get(config["model_type"], {}) if options.dry_run else {}
    ms: list[dict[int, float]] = []
    for layers in (FEW, MANY):
        network = network_of(Fields(config | toy | {"num_hidden_layers": layers}))
        weights = LayerWeights(network, where, way, TOY_BLOCK if options.dry_run else FP8_BLOCK, dtype)
        times, page_bytes, path = steps(network, weights, dtype, sequences, context, options.turns, where)
        ms.append(times)
        gc.collect()
        if where.type == "cuda":
            torch.cuda.empty_cache()
    found: dict[str, Any] = {"path": path, "layer_us": {}, "of_bytes": {}, "read_mb": {}}
    for count in sequences:
        us = (ms[1][count] - ms[0][count]) / (MANY - FEW) * 1e3
        read = weights.layer_bytes(network, count) + count * page_bytes / MANY * -(-context // PAGE_TOKENS)
        name = f"batch {count}"
        found["layer_us"][name], found["read_mb"][name] = round(us, 2), round(read / 1e6, 2)
        found["of_bytes"][name] = round(us / (read / rate / 1e3), 3)
    return found


def steps(
    network: Network, weights: Any, dtype: str, sequences: tuple[int, ...], context: int, turns: int,
    where: torch.device,
) -> tuple[dict[int, float], int, str]:  # fmt: skip
    """Milliseconds of the device by sequences, the bytes of a page, and how it is computed."""
    from models.gpu.executor import GpuExecutor

    each = -(-context // PAGE_TOKENS)
    options = Options(dtype, max(sequences) * each, PAGE_TOKENS, context, graph_rows=max(sequences))
    executor = GpuExecutor(network, weights, options, device=where.type)
    times = {}
    for count in sequences:
        # Other tokens choose other experts.
        stretches = [Stretch([7 + n % 50], context - 1, range(n * each, (n + 1) * each), 0) for n in range(count)]
        replay = stage.step_replay(executor, make_batch(stretches, PAGE_TOKENS))
        times[count] = stage.replayed_ms(replay, REPLAYS, max(1, turns // 4), where)
    return times, executor.page_bytes(network, options), executor.path


class LayerWeights(RandomWeights):
    """Counts what it makes, and codes what layers multiply with: "fp8", or as models/quantized/at_load.py."""

    def __init__(self, network: Network, where: torch.device, way: str, block: int, dtype: str) -> None:
        super().__init__(network, where)
        self._way, self._block, self._dtype = way, block, dtype
        # By the first part's name.
        self._bytes: dict[str, float] = {}

    def linear(self, linear: Linear) -> StoredLinear:
        made = super().linear(linear)
        [part] = made.parts
        if self._way and ".layers." in part.name:
            part = self._fp8(part) if self._way == "fp8" else coded(part, self._way)
            made = StoredLinear((part,))
        tensors = [each for each in (part.codes, part.scales, part.zeros) if each is not None]
        size = sum(each.nbytes for each in tensors)
        # Made int8 by who takes it.
        self._bytes[part.name] = part.codes.numel() if self._dtype == "int8" else size
        return made

    def layer_bytes(self, network: Network, rows: int) -> float:
        """Bytes that a step of this many rows reads of the second layer's weights."""
        mlp, share = network.layers[1].mlp, 1.0
        if isinstance(mlp, Experts):
            share = 1 - (1 - mlp.router.top_k / mlp.router.experts) ** rows
        own = {name: size for name, size in self._bytes.items() if ".layers.1." in name}
        return sum(size * (share if ".experts." in name else 1.0) for name, size in own.items())

    def _fp8(self, part: StoredPart) -> StoredPart:
        n, k, block = part.outputs, part.inputs, self._block
        scales = torch.full((-(-n // block), -(-k // block)), k**-0.5, device=self._device)
        codes = (part.codes.float() * k**0.5).to(torch.float8_e4m3fn)
        return StoredPart(
            part.name, "fp8", n, k, codes, scales, group_size=block, block_rows=block, activations="row"
        )
