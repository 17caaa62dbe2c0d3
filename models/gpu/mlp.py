"""The second half of a layer on a GPU: a gated MLP, or a router and its experts."""

from __future__ import annotations

import torch

from kernels.gemm import fused as gemm
from kernels.moe.fused import experts, route
from kernels.norm_rope_act.fused import silu_gate
from models.gpu.linears import GpuLinear, make_linear
from models.gpu.place import Place
from models.spec import Experts, Linear, Mlp


class GpuMlp:
    def __init__(self, spec: Mlp, place: Place) -> None:
        self._gate_up, self._down = make_linear(spec.gate_up, place), make_linear(spec.down, place)
        self.linears: list[GpuLinear] = [self._gate_up, self._down]

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self._down(silu_gate(self._gate_up(x)))


class GpuExperts:
    """Experts' weights are kept dense, whatever they were stored as."""

    def __init__(self, spec: Experts, place: Place) -> None:
        router = spec.router
        # In float32 whatever the model's dtype: a rounded score changes which experts a row gets.
        self._router = place.dense(router.linear, torch.float32)
        assert not router.linear.bias
        self._bias: torch.Tensor | None = None
        if router.bias:
            shape = router.bias_shape or (router.experts,)
            self._bias = place.weights.take(router.bias, *shape).float().flatten().to(place.device)
        self._facts = {
            name: getattr(router, name)
            for name in (
                "top_k", "scoring", "normalize", "epsilon", "normalize_floor", "scale", "groups", "top_groups",
                "group_by_best",
            )
        }  # fmt: skip
        self._gate_up = _stacked([mlp.gate_up for mlp in spec.experts], place)
        self._down = _stacked([mlp.down for mlp in spec.experts], place)
        self._shared = GpuMlp(spec.shared, place) if spec.shared else None
        self.linears: list[GpuLinear] = self._shared.linears if self._shared else []

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[R, hidden] -> [R, hidden] float32."""
        logits = gemm.linear(x, self._router, out_dtype=torch.float32)
        ids, weights = route(logits, self._bias, **self._facts)
        return experts(x, self._gate_up, self._down, ids, weights, self._shared(x) if self._shared else None)


def _stacked(linears: list[Linear], place: Place) -> torch.Tensor:
    """[E, N, K], filled one by one: at no time are there two copies of all."""
    assert not any(linear.bias for linear in linears)
    shape = (len(linears), linears[0].outputs, linears[0].inputs)
    whole = torch.empty(shape, dtype=place.dtype, device=place.device)
    for part, linear in zip(whole, linears, strict=True):
        part.copy_(place.weights.linear(linear).dense(place.dtype))
    return whole
