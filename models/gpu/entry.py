"""How rows enter a drafter's network on a GPU: from embeddings and the hidden values that they come with."""

from __future__ import annotations

import torch

from kernels.gemm.ending import whole
from kernels.gemm.ranges import Product
from kernels.norm_rope_act.fused import add_norm
from models.gpu.linears import make_linear
from models.gpu.place import Place
from models.spec import Entry, Fused, Given, Norm


def add_norm_or_cast(
    residual: torch.Tensor, delta: Product | None, weight: torch.Tensor | None, epsilon: float, dtype: torch.dtype
) -> torch.Tensor:
    """residual += delta; its norm, or without a weight itself, in `dtype`."""
    if weight is not None:
        return add_norm(residual, delta, weight, epsilon, dtype)[1]
    if delta is not None:
        residual += whole(delta)
    return residual.to(dtype)


class GpuEntry:
    def __init__(self, spec: Entry, place: Place) -> None:
        self._dtype, self._given = place.dtype, isinstance(spec, Given)
        if isinstance(spec, Given):
            return
        self._linear = make_linear(spec.linear, place) if isinstance(spec, Fused) else None
        self._hidden_first = isinstance(spec, Fused) and spec.hidden_first
        self._embedding_norm = _Norm(spec.embedding_norm, place)
        self._hidden_norm = _Norm(spec.hidden_norm, place)

    def __call__(self, embedding: torch.Tensor, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Both [R, H] float32, this call's own. The residual stream, and what the first layer reads beside it."""
        if self._given:
            return hidden, None
        first = self._embedding_norm(embedding, self._dtype)
        if self._linear is None:
            # The residual is changed in place, so it is no view of what came with the rows.
            return self._hidden_norm(hidden, torch.float32), first
        pair = [first, self._hidden_norm(hidden, self._dtype)]
        return self._linear(torch.cat(pair[::-1] if self._hidden_first else pair, dim=1)).float(), None


class _Norm:
    def __init__(self, spec: Norm | None, place: Place) -> None:
        self._weight = None if spec is None else place.norm(spec)
        self._epsilon = 0.0 if spec is None else spec.epsilon

    def __call__(self, x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        return add_norm_or_cast(x, None, self._weight, self._epsilon, dtype)
