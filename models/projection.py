"""A linear outside of a network, such as the one that mixes what a drafter reads of the target model, and those of
Medusa's heads."""

from __future__ import annotations

from collections.abc import Callable

import torch

from models.executor import Options
from models.spec import Linear
from models.weights import Weights

# From rows [R, inputs] to rows [R, outputs].
Projection = Callable[[torch.Tensor], torch.Tensor]


def torch_projection(one: Linear, weights: Weights, options: Options, device: torch.device) -> Projection:
    dtype = torch.float32 if options.dtype == "float32" else torch.bfloat16
    stored = weights.linear(one)
    weight, bias = stored.dense(dtype).to(device), stored.bias(dtype)
    bias = None if bias is None else bias.to(device)
    return lambda rows: torch.nn.functional.linear(rows.to(dtype), weight, bias)
