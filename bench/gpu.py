"""A step on a GPU beside what the GPU can do at best, with random weights in the shape of Llama 3.1 8B.

What is compared with what is measured in the same run: bytes that must be read against the rate at which the device
copies (bytes read and written). Wall times are of whole steps, arg-max read back; row counts take turns.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from models.batch import Stretch, make_batch
from models.config import Fields
from models.executor import Options
from models.llama import network
from models.quantized.stored import StoredLinear, StoredPart
from models.spec import Linear, Network

HELP = "a GPU's steps against its copy bandwidth: one row, eight, 64 sequences at 4k; strict against fast"
LLAMA_8B: dict[str, Any] = {
    "vocab_size": 128256, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 8, "rms_norm_eps": 1e-5, "max_position_embeddings": 131072,
    "tie_word_embeddings": False, "torch_dtype": "bfloat16", "rope_theta": 500000.0,
}  # fmt: skip
PAGE_TOKENS = 32
SEQUENCES, CONTEXT = 64, 4096
ROWS = (1, 2, 4, 8, 16)
# Must-show 5 of the target engine.
BARS = {"one_row_times_floor": 1.2, "eight_rows_times_one": 1.1, "attention_of_bandwidth": 0.75, "host_us": 150.0}


def flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float32", "int8"))
    parser.add_argument("--turns", type=int, default=30, help="steps of each kind")


def measure(options: argparse.Namespace) -> dict[str, Any]:
    if not torch.cuda.is_available():
        raise SystemExit("bench gpu: torch sees no GPU on this machine, and nothing else can stand in for one")
    import triton

    shape = network(Fields(LLAMA_8B))
    figures: dict[str, Any] = {
        "gpu": torch.cuda.get_device_name(),
        "triton": triton.__version__,
        "dtype": options.dtype,
        "copy_gb_s": round(copy_gb_s(torch.device("cuda")), 1),
    }
    for strict in (True, False):
        figures["strict" if strict else "fast"] = measure_executor(
            shape, options.dtype, strict, figures["copy_gb_s"], options.turns, torch.device("cuda"), CONTEXT, SEQUENCES
        )
        gc.collect()
        torch.cuda.empty_cache()
    figures["missed"] = missed(figures["strict"], "strict") + missed(figures["fast"], "fast")
    return figures


def measure_executor(
    shape: Network, dtype: str, strict: bool, copy_rate: float, turns: int, device: torch.device,
    context: int, sequences: int,
) -> dict[str, Any]:  # fmt: skip
    from models.gpu.executor import GpuExecutor

    per_sequence = -(-(context + max(ROWS)) // PAGE_TOKENS)
    options = Options(dtype, sequences * per_sequence, PAGE_TOKENS, shape.max_context, strict=strict)
    executor = GpuExecutor(shape, RandomWeights(shape, device), options, device=device.type)  # type: ignore[arg-type]
    tables = [list(range(i * per_sequence, (i + 1) * per_sequence)) for i in range(sequences)]
    step_ms = _steps(executor, tables, turns, device, context)
    weight_bytes = _weight_bytes(executor, shape, dtype)
    floor_ms = weight_bytes / copy_rate / 1e6
    attention_ms = _attention_ms(executor, tables, turns, device, context)
    kv_bytes = executor.page_bytes(shape, options) * sequences * context / PAGE_TOKENS
    return {
        "path": executor.path,
        "step_ms": step_ms,
        "weights_gb": round(weight_bytes / 1e9, 3),
        "floor_ms": round(floor_ms, 3),
        "one_row_times_floor": round(step_ms["rows 1"] / floor_ms, 3),
        "eight_rows_times_one": round(step_ms["rows 8"] / step_ms["rows 1"], 3),
        "attention_ms": round(attention_ms, 3),
        "attention_of_bandwidth": round(kv_bytes / attention_ms / 1e6 / copy_rate, 3),
        "host_us": round(_host_us(executor, tables, turns, device, context), 1),
        "prefill_tokens_per_second": round(_prefill(executor, tables[0], device, context), 1),
        "steps": dict(executor.steps),
    }


def missed(figures: dict[str, Any], name: str) -> list[str]:
    """Bars that the figures are on the wrong side of."""
    wrong = []
    for bar, value in BARS.items():
        bad = figures[bar] < value if bar == "attention_of_bandwidth" else figures[bar] > value
        if bad:
            wrong.append(f"{name}: {bar} is {figures[bar]}, the bar is {value}")
    return wrong


class RandomWeights:
    """As models/weights.py's Weights, made where they are used: norms of ones, matrices that keep sizes of order 1."""

    def __init__(self, shape: Network, device: torch.device) -> None:
        self._random = torch.Generator(device).manual_seed(0)
        self._device = device
        self._embedding = shape.embedding

    def take(self, name: str, *shape: int) -> torch.Tensor:
        if name != self._embedding:
            return torch.ones(shape, device=self._device)
        return self._matrix(*shape)

    def linear(self, linear: Linear) -> StoredLinear:
        codes = self._matrix(linear.outputs, linear.inputs)
        return StoredLinear((StoredPart(linear.parts[0].name, "plain", linear.outputs, linear.inputs, codes),))

    def _matrix(self, rows: int, columns: int) -> torch.Tensor:
        made = torch.empty(rows, columns, dtype=torch.bfloat16, device=self._device)
        # Random: a device multiplies zeros faster than numbers.
        return made.normal_(0.0, columns**-0.5, generator=self._random)


def copy_gb_s(device: torch.device, size: int = 1 << 32) -> float:
    """Bytes read and written by copies of memory that no cache holds."""
    source = torch.ones(size // 4, dtype=torch.int32, device=device)
    target = torch.empty_like(source)
    times = device_ms(lambda: target.copy_(source), 10, device)
    return 2 * size / min(times) / 1e6


def _weight_bytes(executor: Any, shape: Network, dtype: str) -> int:
    """What a step reads of the weights: all but the embedding, of which it reads rows. The head is never int8."""
    head = shape.head.outputs * shape.head.inputs
    others = executor.parameters - head - shape.vocab_size * shape.hidden_size
    size = {"bfloat16": 2, "float32": 4, "int8": 1}[dtype]
    return others * size + head * max(size, 2)


def _steps(executor: Any, tables: list[list[int]], turns: int, device: torch.device, context: int) -> dict[str, float]:
    """Median wall milliseconds, from the batch to the arg-max on the host."""
    short = min(300, context)
    work = {f"rows {n}": [Stretch([7] * n, short, tables[0], 0)] for n in ROWS}
    work[f"sequences {len(tables)} at {context}"] = [Stretch([7], context - 1, table, 0) for table in tables]
    found: dict[str, list[float]] = {name: [] for name in work}
    for turn in range(turns + 3):
        for name, stretches in work.items():
            start = time.perf_counter()
            executor.forward(make_batch(stretches, PAGE_TOKENS)).logits.argmax(-1).cpu()
            if turn >= 3:
                found[name].append((time.perf_counter() - start) * 1e3)
    return {name: round(statistics.median(times), 3) for name, times in found.items()}


def _attention_ms(executor: Any, tables: list[list[int]], turns: int, device: torch.device, context: int) -> float:
    """All layers' attention alone, one after the other, each over its own pages: no cache holds what they read."""
    from kernels.paged_attention.fused import attend_planned

    batch = make_batch([Stretch([7], context - 1, table, 0) for table in tables], PAGE_TOKENS)
    step = executor._small.put(batch, len(tables))
    rows = len(tables)

    def run() -> None:
        for layer in executor._layers:
            own = layer.attention
            spec = own._spec
            attend_planned(
                queries, own._keys, own._values, step.tables, step.positions, spec.scale, step.plans[own._kind],
                own._scratch.partials(spec.heads, spec.head_dim), out, spec.window,
            )  # fmt: skip

    spec = executor._layers[0].attention._spec
    queries = torch.randn(rows, spec.heads, spec.head_dim, device=device).to(executor._dtype)
    out = torch.empty_like(queries)
    with torch.inference_mode():
        return statistics.median(device_ms(captured(run, device), turns, device))


def captured(run: Callable[[], None], device: torch.device) -> Callable[[], Any]:
    """Launches cost the host more than the device: replayed, they don't."""
    if device.type != "cuda":
        return run
    run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph.replay


def _host_us(executor: Any, tables: list[list[int]], turns: int, device: torch.device, context: int) -> float:
    """What the host does for a step of all sequences, when it waits for nothing."""
    stretches = [Stretch([7], context - 1, table, 0) for table in tables]
    times = []
    for _ in range(turns):
        _wait(device)
        start = time.perf_counter()
        executor.forward(make_batch(stretches, PAGE_TOKENS))
        times.append((time.perf_counter() - start) * 1e6)
    _wait(device)
    return statistics.median(times)


def _prefill(executor: Any, table: list[int], device: torch.device, context: int) -> float:
    count = min(2048, context)
    stretch = [Stretch([7] * count, 0, table, count - 1)]
    times = []
    for _ in range(4):
        _wait(device)
        start = time.perf_counter()
        executor.forward(make_batch(stretch, PAGE_TOKENS)).logits.argmax(-1).cpu()
        times.append(time.perf_counter() - start)
    return count / statistics.median(times[1:])


def device_ms(call: Callable[[], Any], turns: int, device: torch.device) -> list[float]:
    if device.type != "cuda":
        times = []
        for _ in range(turns):
            start = time.perf_counter()
            call()
            times.append((time.perf_counter() - start) * 1e3)
        return times
    call()
    torch.cuda.synchronize()
    pairs = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(turns)]
    for begin, end in pairs:
        begin.record()
        call()
        end.record()
    torch.cuda.synchronize()
    return [begin.elapsed_time(end) for begin, end in pairs]


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()
