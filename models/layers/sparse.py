"""The experts of a layer, under the names that Hugging Face gives their tensors."""

from __future__ import annotations

from collections.abc import Callable

from models.config import Fields
from models.layers.dense import DenseSizes, decoder, mlp
from models.spec import ExpertRouter, Experts, Layer, Linear, Network, Part


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


def sparse_decoder(fields: Fields, sizes: DenseSizes, layer: Callable[[str, bool], Layer]) -> Network:
    """A network whose first layers are dense, as DeepSeek-V3's; `layer` makes one of its name, with its point, and of
    whether it has experts."""
    sparse = _is_sparse(fields, sizes.layers)
    return decoder(fields, sizes, lambda index, name: layer(name, sparse[index]))


def _is_sparse(fields: Fields, layers: int) -> list[bool]:
    """Of each layer, whether it has experts: mlp_layer_types says it layer by layer, first_k_dense_replace where they
    begin."""
    if not fields.given("mlp_layer_types"):
        first = fields.count("first_k_dense_replace", least=0)
        return [index >= first for index in range(layers)]
    kinds = fields.values["mlp_layer_types"]
    if not isinstance(kinds, list) or len(kinds) != layers or not all(kind in ("dense", "sparse") for kind in kinds):
        fields.refuse("mlp_layer_types", f"{layers} times dense or sparse")
    return [kind == "sparse" for kind in kinds]


def choose_experts(fields: Fields, sizes: DenseSizes, name: str) -> Experts:
    """As DeepSeek-V3: by the sigmoid of their scores, with a correction bias. `name` is that of the MLP."""
    fields.refuse_unless("scoring_func", "sigmoid")
    fields.refuse_unless("topk_method", "noaux_tc")
    count = fields.count("n_routed_experts")
    groups = fields.count("n_group", 1, limit=count)
    if count % groups:
        fields.refuse("n_group", f"a divisor of {count}")
    top_groups = fields.count("topk_group", 1, limit=groups)
    router = ExpertRouter(
        linear=router_linear(sizes.hidden, count, name),
        experts=count,
        top_k=chosen(fields, "num_experts_per_tok", count // groups * top_groups),
        scoring="sigmoid",
        bias=f"{name}gate.e_score_correction_bias",
        normalize=fields.flag("norm_topk_prob", True),
        epsilon=1e-20,
        scale=fields.number("routed_scaling_factor"),
        groups=groups,
        top_groups=top_groups,
    )
    shared = fields.count("n_shared_experts", 0, least=0)
    return experts(router, fields.count("moe_intermediate_size"), name, shared=shared)
