"""What a worker's ranks hold of its model, for the plan of its memory."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from models.choose import ExecutorChoice
from models.errors import ModelError
from models.memory import numbers_of
from models.shards import shard
from models.spec import DeltaNet, Experts, LatentAttention, Network


def shares_of(network: Network, ranks: int, here: int, choice: ExecutorChoice, dtype: str) -> list[Network]:
    """By rank; `here` of them are on this machine. Raises `ModelError` where the network can't be split so, or the
    executor can't run a share."""
    shares = [shard(network, rank, ranks) for rank in range(ranks)]
    if choice.name == "triton" and torch.cuda.is_available() and torch.cuda.device_count() < here:
        raise ModelError(
            f"tensor_parallel_size is {ranks}, {here} of them here, and the worker sees"
            f" {torch.cuda.device_count()} GPUs",
            "give it as many, or a smaller tensor_parallel_size",
        )
    for rank, share in enumerate(shares):
        if why := choice.executor.why_not(share, dtype):
            raise ModelError(f"tensor_parallel_size is {ranks}, and rank {rank}: {why}", "use another number, or dtype")
    return shares


def shares_in_memory(shares: Sequence[Network], here: int, choice: ExecutorChoice) -> list[Network]:
    """Those that are in the memory that rank 0 plans: on a CPU the `here` of a machine, on GPUs one each. What the
    largest takes goes for all."""
    together = 1 if choice.name == "triton" else here
    machines = [shares[first : first + together] for first in range(0, len(shares), together)]
    return list(max(machines, key=lambda some: sum(map(_numbers, some))))


def _numbers(share: Network) -> int:
    total = 0
    for layer in share.layers:
        one, mlp = layer.attention, layer.mlp
        first = one.mixed if isinstance(one, DeltaNet) else one.q if isinstance(one, LatentAttention) else one.qkv
        total += numbers_of(one.output) + numbers_of(first)
        for each in mlp.experts if isinstance(mlp, Experts) else (mlp,):
            total += numbers_of(each.gate_up) + numbers_of(each.down)
    return total
