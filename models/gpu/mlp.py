"""The second half of a layer on a GPU: a gated MLP, or a router and its experts."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kernels.gemm import fused as gemm
from kernels.gemm.ending import whole
from kernels.gemm.ranges import Product
from kernels.moe.fused import experts, route
from kernels.moe.reference import own_choices
from kernels.norm_rope_act.fused import sigmoid_gated
from models.gpu.experts import how, stack, stacked_biases
from models.gpu.linears import GpuLinear, make_gates, make_linear
from models.gpu.place import Place
from models.spec import Experts, Mlp


class GpuMlp:
    def __init__(self, spec: Mlp, place: Place) -> None:
        self._gates, self._down = make_gates(spec, place), make_linear(spec.down, place)
        self.linears: list[GpuLinear] = [self._gates, self._down]

    def __call__(self, x: torch.Tensor) -> Product:
        return self._down.product(self._gates(x))


@dataclass(frozen=True, slots=True)
class Told:
    """What the executor's path tells of a linear that isn't called by itself."""

    how: str


class GpuExperts:
    def __init__(self, spec: Experts, place: Place) -> None:
        router = spec.router
        # In float32 whatever the model's dtype: a rounded score changes which experts a row gets.
        self._router = place.dense(router.linear, torch.float32)
        added = place.weights.linear(router.linear).bias(torch.float32)
        self._router_bias = None if added is None else added.to(place.device)
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
        # A rank's own experts, of all that there are.
        self._own = None if len(spec.experts) == router.experts else (spec.first, len(spec.experts))
        self._gate_up = stack([mlp.gate_up for mlp in spec.experts], place, gates=True)
        self._down = stack([mlp.down for mlp in spec.experts], place)
        one = spec.experts[0]
        self._activation, self._limit = one.activation, one.limit
        self._biases: tuple[torch.Tensor, torch.Tensor] | None = None
        if one.down.bias:
            gate_ups, downs = [mlp.gate_up for mlp in spec.experts], [mlp.down for mlp in spec.experts]
            self._biases = stacked_biases(gate_ups, place, gates=True), stacked_biases(downs, place)
        self._shared = GpuMlp(spec.shared, place) if spec.shared else None
        self._shared_gate = make_linear(spec.shared_gate, place) if spec.shared_gate else None
        own = [Told(how(self._gate_up)), Told(how(self._down))]
        self.linears: list[Told | GpuLinear] = [*own, *(self._shared.linears if self._shared else ())]
        self.linears += [self._shared_gate] if self._shared_gate else []

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[R, hidden] -> [R, hidden] float32."""
        logits = gemm.product(x, self._router, self._router_bias, torch.float32)
        ids, weights = route(logits, self._bias, **self._facts)
        if self._own:
            ids, weights = own_choices(ids, weights, *self._own)
        shared = whole(self._shared(x)) if self._shared else None
        if shared is not None and self._shared_gate is not None:
            shared = sigmoid_gated(shared, self._shared_gate(x, torch.float32))
        return experts(
            x, self._gate_up, self._down, ids, weights, shared, self._activation, self._limit, self._biases
        )
