"""The form in which train-drafter makes a head: what its folder says. Its reader makes of it what is trained."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from models.spec import Attention, Mlp, Network


@dataclass(frozen=True, slots=True)
class Form:
    # config.json.
    config: dict[str, Any]
    # Of the folder's tensors: those by which the reader knows the layout, or which it would take from the target's.
    # d2t, t2d and token_map are written if they are named here.
    names: tuple[str, ...] = ()
    # Whether the output head is trained, too; else it is the target's.
    trains_output: bool = False
    # Files of the target's folder that it needs, too.
    files: tuple[str, ...] = ()


def plain_layers(network: Network, count: int = 1) -> dict[str, Any]:
    """What config.json says of layers in the sizes of the model's first one. Their rope has no scaling, and their
    attention no norms of q and k. Raises `ValueError` where the model's layers aren't plain ones."""
    layer = network.layers[0]
    if not isinstance(layer.attention, Attention):
        raise ValueError("heads with a layer can't be trained for models with latent attention; use medusa or hydra")
    if not isinstance(layer.mlp, Mlp):
        raise ValueError("heads with a layer can't be trained for models with experts; use medusa or hydra")
    return {
        "hidden_size": network.hidden_size, "intermediate_size": layer.mlp.down.inputs, "num_hidden_layers": count,
        "num_attention_heads": layer.attention.heads, "num_key_value_heads": layer.attention.kv_heads,
        "head_dim": layer.attention.head_dim, "hidden_act": "silu", "rms_norm_eps": layer.mlp_norm.epsilon,
        "rope_theta": layer.attention.rope.theta, "attention_bias": False,
        "max_position_embeddings": network.max_context, "vocab_size": network.vocab_size,
    }  # fmt: skip
