"""The experts of a layer, under the names that Hugging Face gives their tensors."""

from __future__ import annotations

from models.config import Fields
from models.layers.dense import mlp
from models.spec import ExpertRouter, Experts, Linear, Part


def router_linear(hidden: int, experts: int, name: str) -> Linear:
    """`name` is that of the MLP, with its point."""
    return Linear((Part(f"{name}gate", experts),), hidden)


def experts(router: ExpertRouter, wide: int, name: str, *, shared: int = 0) -> Experts:
    """Experts `wide` across; `shared`: how many more of that width all rows go through, as one MLP."""
    hidden = router.linear.inputs
    return Experts(
        router=router,
        experts=tuple(mlp(hidden, wide, f"{name}experts.{index}.") for index in range(router.experts)),
        shared=mlp(hidden, shared * wide, f"{name}shared_experts.") if shared else None,
    )


def chosen(fields: Fields, name: str, experts: int) -> int:
    """How many of `experts` a row goes to."""
    return fields.count(name, limit=experts)
