"""What the stages of `bench on_gpu` share: the device (in a dry run Triton's interpreter, with toy sizes), how it is
timed, what it can do at best, and random weights in the shape of known models.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Callable, Iterable
from typing import Any

import torch

from kernels import interpreter
from kernels.device_times import milliseconds
from models.batch import Batch
from models.config import Fields
from models.llama import network
from models.quantized.stored import StoredLinear, StoredPart
from models.spec import Linear, Network

LLAMA_8B: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu",
    "vocab_size": 128256, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 8, "rms_norm_eps": 1e-5, "max_position_embeddings": 131072,
    "tie_word_embeddings": False, "torch_dtype": "bfloat16", "rope_theta": 500000.0, "eos_token_id": 2,
}  # fmt: skip
SMOLLM2: dict[str, Any] = LLAMA_8B | {
    "vocab_size": 49152, "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30,
    "num_attention_heads": 9, "num_key_value_heads": 3, "max_position_embeddings": 8192, "tie_word_embeddings": True,
    "rope_theta": 100000.0,
}  # fmt: skip
# What a dry run computes instead of any of them.
TOY: dict[str, Any] = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 128,
}  # fmt: skip
PAGE_TOKENS = 32
# Of a kernel's name: those of other libraries hold all their template's arguments.
NAME_LENGTH = 60
NO_GPU = "torch sees no GPU on this machine, and nothing else can stand in for one"


def flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--dry-run", action="store_true", help="toy sizes in the interpreter: figures mean nothing")
    parser.add_argument("--turns", type=int, default=30, help="how often each thing is timed")


def device(options: argparse.Namespace) -> torch.device:
    """Where the stage runs; ends it where there is nothing for it."""
    if options.dry_run:
        if not interpreter.in_use():
            raise SystemExit(f"a dry run needs {interpreter.SWITCH}=1, which `bench on_gpu --dry-run` sets")
        options.turns = 1
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise SystemExit(NO_GPU)
    return torch.device("cuda")


def shape_of(config: dict[str, Any], options: argparse.Namespace) -> Network:
    return network(Fields(config | TOY if options.dry_run else config))


def facts(where: torch.device) -> dict[str, Any]:
    """What every stage's figures begin with."""
    if where.type != "cuda":
        return {"dry_run": True}
    import triton

    return {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "triton": triton.__version__}


def begun(options: argparse.Namespace, where: torch.device) -> dict[str, Any]:
    """A stage's figures, to be filled as they are found: should the clock or an error end it, they become its row."""
    options.so_far = facts(where)
    return options.so_far


# Times ------------------------------------------------------------------------------------------------


def wait(where: torch.device) -> None:
    if where.type == "cuda":
        torch.cuda.synchronize()


def wall_ms(call: Callable[[], Any], turns: int, where: torch.device) -> list[float]:
    """Each begins when the device has nothing to do, and ends when it has done it."""
    times = []
    for _ in range(turns):
        wait(where)
        start = time.perf_counter()
        call()
        wait(where)
        times.append((time.perf_counter() - start) * 1e3)
    return times


def captured(run: Callable[[], None], where: torch.device) -> Callable[[], Any]:
    """Launches cost the host more than the device: replayed, they don't."""
    if where.type != "cuda":
        return run
    run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph.replay


def replayed_ms(replay: Callable[[], Any], count: int, turns: int, where: torch.device) -> float:
    """Milliseconds of the device for one of `count` replays back to back, the median of `turns`. The host is ahead of
    the device from the first one on, so its time isn't in it."""
    if where.type != "cuda":
        return statistics.median(milliseconds(replay, turns, where))
    torch.cuda.synchronize()
    pairs = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(turns)]
    # The device is busy with these when the clock is started behind them.
    for _ in range(2):
        replay()
    for begin, end in pairs:
        begin.record()
        for _ in range(count):
            replay()
        end.record()
    torch.cuda.synchronize()
    return statistics.median(begin.elapsed_time(end) for begin, end in pairs) / count


def ratios(ms: dict[str, float], of: dict[str, float]) -> dict[str, float]:
    return {name: round(each / of[name], 3) for name, each in ms.items()}


def step_replay(executor: Any, batch: Batch) -> Callable[[], Any]:
    """Starts the graph of this step again, whose inputs stay in their place: no host's work and no copy is in it."""
    executor.forward(batch)
    graphs = executor._graphs
    sizes = graphs.sizes_of(len(batch.tokens), len(batch.wanted)) if graphs else None
    assert sizes, f"there is no graph for {len(batch.tokens)} rows"
    return lambda: graphs.replay(sizes)


def kernel_us(call: Callable[[], Any], where: torch.device, most: int = 12, turns: int = 5) -> dict[str, list[float]]:
    """Of a call's kernels the slowest: name -> microseconds of all its launches, and how many there are. One that waits
    for the kernel in front of it (kernels/dependent.py) has that wait in its time."""
    if where.type != "cuda":
        return {}
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(turns):
            call()
        torch.cuda.synchronize()
    found: dict[str, list[float]] = {}
    for each in profile.events():
        if each.device_type == torch.autograd.DeviceType.CUDA:
            total = found.setdefault(each.name[:NAME_LENGTH], [0.0, 0])
            total[0] += (each.time_range.end - each.time_range.start) / turns
            total[1] += 1 / turns
    slowest = sorted(found.items(), key=lambda each: -each[1][0])[:most]
    return {name: [round(us, 2), round(count, 1)] for name, (us, count) in slowest}


def busy_ms(call: Callable[[], Any], turns: int, where: torch.device) -> float:
    """Milliseconds a call keeps the device busy, by torch's profiler: the time in which a kernel or copy runs. A kernel
    may start before the one in front of it ends (kernels/dependent.py), so their times can't be added."""
    if where.type != "cuda":
        return 0.0
    activities = [torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        for _ in range(turns):
            call()
        torch.cuda.synchronize()
    on_device = [each for each in profile.events() if each.device_type == torch.autograd.DeviceType.CUDA]
    return covered((each.time_range.start, each.time_range.end) for each in on_device) / turns / 1e3


def covered(intervals: Iterable[tuple[float, float]]) -> float:
    """How much of the time lies in one of them or more."""
    total, until = 0.0, -math.inf
    for begin, end in sorted(intervals):
        total += max(0.0, end - max(begin, until))
        until = max(until, end)
    return total


# Limits -----------------------------------------------------------------------------------------------


def copy_gb_s(where: torch.device, size: int = 1 << 32) -> float:
    """Bytes read and written by copies of memory that no cache holds."""
    source = torch.ones((size if where.type == "cuda" else 1 << 16) // 4, dtype=torch.int32, device=where)
    target = torch.empty_like(source)
    return 2 * source.nbytes / min(milliseconds(lambda: target.copy_(source), 10, where)) / 1e6


def read_gb_s(where: torch.device, size: int = 1 << 32) -> float:
    """Of a sum over memory that no cache holds."""
    data = torch.ones((size if where.type == "cuda" else 1 << 16) // 4, device=where)
    return data.nbytes / min(milliseconds(data.sum, 10, where)) / 1e6


def bandwidth(where: torch.device) -> float:
    return max(copy_gb_s(where), read_gb_s(where))


def matmul_tflops(where: torch.device) -> float:
    """A product of random bfloat16: a device multiplies zeros faster than numbers."""
    side = 8192 if where.type == "cuda" else 64
    one, other = (torch.randn(side, side, device=where).bfloat16() for _ in range(2))
    return 2 * side**3 / statistics.median(milliseconds(lambda: one @ other, 10, where)) / 1e9


# Weights ----------------------------------------------------------------------------------------------


class RandomWeights:
    """As models/weights.py's Weights, made where they are used: norms of ones, matrices that keep sizes of order 1."""

    def __init__(self, shape: Network, where: torch.device) -> None:
        self._random = torch.Generator(where).manual_seed(0)
        self._device = where
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
        return made.normal_(0.0, columns**-0.5, generator=self._random)


def weight_bytes(executor: Any, shape: Network, size: int = 2) -> int:
    """What a step reads of the weights: all but the embedding's table, of which it reads rows, and the head."""
    head = shape.head.outputs * shape.head.inputs
    table = shape.vocab_size * shape.hidden_size
    tied = [f"{part.name}.weight" for part in shape.head.parts] == [shape.embedding]
    # A tied head is the table, counted once.
    others = executor.parameters - table - (0 if tied else head)
    return (others + head) * size
