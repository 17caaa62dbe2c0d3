"""A mixture of experts: the router, the experts it chose for each row, and what all rows share."""

from __future__ import annotations

from dataclasses import replace

import torch

from kernels.moe.reference import experts, own_choices, route
from models.executor import Options
from models.plain.parts import PlainLinear, PlainMlp
from models.spec import Experts, Linear
from models.weights import Weights


class PlainExperts:
    def __init__(self, spec: Experts, weights: Weights, options: Options, device: str) -> None:
        router = spec.router
        # In float32 whatever the model's dtype: a rounded score changes which experts a row gets.
        self._router = PlainLinear(router.linear, weights, replace(options, dtype="float32"), device)
        self._bias: torch.Tensor | None = None
        if router.bias:
            self._bias = weights.take(router.bias, *(router.bias_shape or (router.experts,))).flatten().to(device)
        self._facts = {
            "top_k": router.top_k,
            "scoring": router.scoring,
            "normalize": router.normalize,
            "epsilon": router.epsilon,
            "normalize_floor": router.normalize_floor,
            "scale": router.scale,
            "groups": router.groups,
            "top_groups": router.top_groups,
            "group_by_best": router.group_by_best,
        }
        # A rank's own experts, of all that there are.
        self._own = None if len(spec.experts) == router.experts else (spec.first, len(spec.experts))
        self._gate_up = _stacked([mlp.gate_up for mlp in spec.experts], weights, options, device)
        self._down = _stacked([mlp.down for mlp in spec.experts], weights, options, device)
        self._activation, self._limit = spec.experts[0].activation, spec.experts[0].limit
        self._biases: tuple[torch.Tensor, torch.Tensor] | None = None
        if spec.experts[0].down.bias:
            gate_ups, downs = ([getattr(mlp, part) for mlp in spec.experts] for part in ("gate_up", "down"))
            self._biases = _biases(gate_ups, weights, device), _biases(downs, weights, device)
        self._shared = PlainMlp(spec.shared, weights, options, device) if spec.shared else None
        self._shared_gate = PlainLinear(spec.shared_gate, weights, options, device) if spec.shared_gate else None

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """x [R, hidden] -> [R, hidden] float32."""
        ids, shares = route(self._router(x.float()), self._bias, **self._facts)
        if self._own:
            ids, shares = own_choices(ids, shares, *self._own)
        out = experts(x, self._gate_up, self._down, ids, shares, self._activation, self._limit, self._biases)
        if self._shared is None:
            return out
        shared = self._shared(x)
        if self._shared_gate is not None:
            shared = shared.float() * self._shared_gate(x).float().sigmoid()
        return out + shared


def _stacked(linears: list[Linear], weights: Weights, options: Options, device: str) -> torch.Tensor:
    """[E, N, K], filled one by one: at no time are there two copies of all."""
    first = PlainLinear(linears[0], weights, options, device).weight
    whole = torch.empty(len(linears), *first.shape, dtype=first.dtype, device=device)
    for place, linear in zip(whole, linears, strict=True):
        place.copy_(PlainLinear(linear, weights, options, device).weight)
    return whole


def _biases(linears: list[Linear], weights: Weights, device: str) -> torch.Tensor:
    """[E, N] float32."""
    return torch.stack([weights.linear(linear).bias(torch.float32) for linear in linears]).to(device)  # type: ignore
