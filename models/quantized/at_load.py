"""Weights of 8 or 4 bits made while a dense folder is loaded: FastDeploy's wint8 and wint4.

    wint8   codes -127..127, a scale for each output: max|w| / 127
    wint4   codes 0..15 with a scale and a zero for each group of an output's inputs: its values span the 16 codes

The linears of the layers are coded; embedding, head, norms and routers stay. What the codes stand for doesn't depend on
who multiplies: an executor without a kernel for them makes them dense (stored.py), and gives the same text.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from models.errors import ModelError
from models.quantized.stored import StoredLinear, StoredPart
from models.spec import Attention, DeltaNet, Experts, LatentAttention, Linear, Mlp, Network
from models.weights import Weights

WAYS = ("wint8", "wint4")
_GROUP = 128
# Rows coded at a time: their float32 values are the extra memory it takes.
_ROWS = 1024


class CodedWeights:
    """The weights of a dense folder, with the linears of its layers in codes: what executors use of Weights."""

    def __init__(self, weights: Weights, network: Network, way: str) -> None:
        assert way in WAYS
        if weights.format != "not quantised":
            raise ModelError(f"quantization is {way}, and the folder is {weights.format}", "leave --quantization out")
        self._weights, self._way = weights, way
        self._coded = {part.name for linear in _linears_of(network) for part in linear.parts}

    def __contains__(self, name: str) -> bool:
        return name in self._weights

    def take(self, name: str, *shape: int, rows: range | None = None) -> torch.Tensor:
        return self._weights.take(name, *shape, rows=rows)

    def linear(self, linear: Linear) -> StoredLinear:
        stored = self._weights.linear(linear)
        parts = tuple(coded(part, self._way) if part.name in self._coded else part for part in stored.parts)
        return StoredLinear(parts, stored.biases)

    def coded_bytes(self, linear: Linear) -> int:
        """As FolderHeaders."""
        if not all(part.name in self._coded for part in linear.parts):
            return 0
        if self._way == "wint8":
            return linear.outputs * (linear.inputs + 4)
        return linear.outputs * (-(-linear.inputs // 2) + 4 * (linear.inputs // group_of(linear.inputs)))

    def number_bytes(self, name: str) -> int:
        return self._weights.number_bytes(name)


def weights_of(folder: Path, network: Network, quantization: str) -> Weights | CodedWeights:
    """As they are stored, or coded: what every rank of a worker reads."""
    weights = Weights(folder)
    return weights if quantization == "none" else CodedWeights(weights, network, quantization)


def coded(part: StoredPart, way: str) -> StoredPart:
    """A plain matrix in codes."""
    n, k = part.outputs, part.inputs
    if way == "wint8":
        made = [_int8(rows.float()) for rows in part.codes.split(_ROWS)]
        codes, scales = (torch.cat(each) for each in zip(*made, strict=True))
        return StoredPart(part.name, "int8", n, k, codes, scales, group_size=k)
    group = group_of(k)
    four = [_int4(rows.float().view(len(rows), -1, group)) for rows in part.codes.split(_ROWS)]
    codes, scales, zeros = (torch.cat(each) for each in zip(*four, strict=True))
    return StoredPart(part.name, "int4", n, k, codes, scales, zeros, group_size=group)


def group_of(inputs: int) -> int:
    """How many inputs share a scale: 128, or the largest half of it, once or more, that divides them."""
    group = _GROUP
    while group > 16 and inputs % group:
        group //= 2
    return group if inputs % group == 0 else inputs


def _int8(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:  # [n, K] -> [n, K] int8, [n, 1] float32
    scales = rows.abs().amax(1, keepdim=True) / 127
    scales = torch.where(scales > 0, scales, torch.ones(()))
    return (rows / scales).round().clamp(-127, 127).to(torch.int8), scales


def _int4(groups: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """[n, G, group] -> codes [n, K/2 rounded up] uint8, scales [n, G] bfloat16, zeros [n, G] int16. Zero is a code of
    its own: what is 0 stays 0."""
    low, high = groups.amin(2).clamp(max=0), groups.amax(2).clamp(min=0)
    scales = ((high - low) / 15).to(torch.bfloat16)
    scales = torch.where(scales > 0, scales, torch.ones((), dtype=torch.bfloat16))
    step = scales.float()[..., None]
    zeros = (-low[..., None] / step).round().clamp(0, 15)
    codes = (groups / step + zeros).round().clamp(0, 15).to(torch.uint8).flatten(1)
    if codes.shape[1] % 2:
        codes = torch.nn.functional.pad(codes, (0, 1))
    return codes[:, 0::2] | (codes[:, 1::2] << 4), scales, zeros[..., 0].to(torch.int16)


def _linears_of(network: Network) -> Iterator[Linear]:
    for layer in network.layers:
        yield from _of_attention(layer.attention)
        yield from _of_mlp(layer.mlp)


def _of_attention(attention: Attention | LatentAttention | DeltaNet) -> Iterator[Linear]:
    if isinstance(attention, DeltaNet):
        yield from (attention.mixed, attention.output)
        return
    if isinstance(attention, Attention):
        yield from (attention.qkv, attention.output)
        return
    yield from (attention.q, attention.kv_down, attention.output)
    if attention.q_down:
        yield attention.q_down


def _of_mlp(mlp: Any) -> Iterator[Linear]:
    if isinstance(mlp, Mlp):
        yield from (mlp.gate_up, mlp.down)
    elif isinstance(mlp, Experts):
        for one in (*mlp.experts, *((mlp.shared,) if mlp.shared else ())):
            yield from (one.gate_up, one.down)
