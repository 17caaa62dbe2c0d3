"""What every layer is made of: linears, norms, the dense MLP. Each is what its formula says, in torch."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch

from kernels.norm_rope_act.reference import gated
from models.executor import Options
from models.group import Group
from models.layers.rope import rope_tables
from models.spec import Linear, Mlp, Network, Norm, Rope
from models.weights import Weights, embedding_of, norm_weight


def dtype_of(options: Options) -> torch.dtype:
    return {"bfloat16": torch.bfloat16, "float32": torch.float32}[options.dtype]


def kept_dtype(options: Options) -> torch.dtype:
    """Of keys and values in pages."""
    return torch.uint8 if options.kv_dtype == "fp8" else dtype_of(options)


def summed(group: Group | None, x: torch.Tensor) -> torch.Tensor:
    """Over the ranks, in float32."""
    return x if group is None else group.sum(x.float().contiguous())


class PlainEmbedding:
    """Float32 rows of tokens. A rank has some tokens' rows, and zeros for the others."""

    def __init__(self, network: Network, weights: Weights, options: Options, device: str) -> None:
        self._cut, self._group, self._scale = network.cut, options.group, network.embedding_scale
        # Rows are looked up one at a time, so the table stays as it is stored, and where it is mapped.
        self._table = embedding_of(network, weights).to(device)

    def __call__(self, tokens: torch.Tensor) -> torch.Tensor:
        if self._cut is None:
            return self._table[tokens].float() * self._scale
        own = tokens - self._cut.first
        inside = (own >= 0) & (own < len(self._table))
        found = self._table[own.clamp(0, len(self._table) - 1)].float() * self._scale
        return summed(self._group, found * inside[:, None])


class PlainLinear:
    def __init__(self, spec: Linear, weights: Weights, options: Options, device: str) -> None:
        stored, dtype = weights.linear(spec), dtype_of(options)
        bias = stored.bias(dtype)
        self.weight = stored.dense(dtype).to(device)  # [N, K]
        self._bias = None if bias is None else bias.to(device)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.linear(x, self.weight, self._bias)


class PlainNorm:
    """Computes in float32 whatever comes, and gives `dtype`."""

    def __init__(self, spec: Norm, weights: Weights, options: Options, device: str) -> None:
        self._dtype, self._epsilon = dtype_of(options), spec.epsilon
        self._weight = norm_weight(spec, weights).to(device)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        x = x.float()
        scale = torch.rsqrt(x.square().mean(-1, keepdim=True) + self._epsilon)
        return (x * scale * self._weight).to(self._dtype)


def norm_or_cast(
    spec: Norm | None, weights: Weights, options: Options, device: str
) -> Callable[[torch.Tensor], torch.Tensor]:
    """The norm, or where there is none a change of dtype."""
    if spec is not None:
        return PlainNorm(spec, weights, options, device)
    dtype = dtype_of(options)
    return lambda x: x.to(dtype)


class PlainMlp:
    def __init__(self, spec: Mlp, weights: Weights, options: Options, device: str) -> None:
        self._gate_up = PlainLinear(spec.gate_up, weights, options, device)
        self._down = PlainLinear(spec.down, weights, options, device)
        self._activation, self._limit = spec.activation, spec.limit

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self._down(gated(self._gate_up(x), self._activation, self._limit).to(x.dtype))


@functools.lru_cache(maxsize=4)
def shared_tables(rope: Rope, positions: int, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    """cos, sin [positions, width/2]. One pair serves all layers."""
    cos, sin = rope_tables(rope, positions)
    return cos.to(device), sin.to(device)


def rotated(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, rope: Rope) -> torch.Tensor:
    """x [R, heads, D] with its first `rope.width` dimensions turned; cos, sin [R, width/2]. Gives float32."""
    x = x.float()
    turning, rest = x[..., : rope.width], x[..., rope.width :]
    cos, sin = cos[:, None], sin[:, None]
    if rope.interleaved:
        first, second = turning[..., 0::2], turning[..., 1::2]
        pair = (first * cos - second * sin, second * cos + first * sin)
        turned = torch.stack(pair, dim=-1).flatten(-2)
    else:
        first, second = turning.chunk(2, dim=-1)
        turned = torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)
    return torch.cat([turned, rest], dim=-1)
