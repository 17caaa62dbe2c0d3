"""A decoder layer as heads are trained with it, of the sizes of the model's first layer. A text's rows go through it
several times, in rounds: row t drafts x_t+2 in round 0, x_t+3 in round 1, and so on.

    round 0     rows of the text
    round r     row t is at position t + r. It attends to the rows 0 .. t of round 0, and to row t of rounds 1 .. r:
                as a drafter does that has read the text up to t + 1 and has drafted r tokens
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.functional import silu

from models.layers.rope import rope_tables
from models.spec import Attention, Linear, Mlp, Network, Norm, Rope
from models.weights import Weights


def check_layer(network: Network) -> None:
    """Raises `ValueError` where the sizes of the model's layers aren't those of a plain layer."""
    layer = network.layers[0]
    if not isinstance(layer.attention, Attention):
        raise ValueError("heads with a layer can't be trained for models with latent attention; use medusa or hydra")
    if not isinstance(layer.mlp, Mlp):
        raise ValueError("heads with a layer can't be trained for models with experts; use medusa or hydra")


def sizes(network: Network) -> tuple[Attention, Mlp, float]:
    """Attention, MLP and epsilon of a model that `check_layer` lets through."""
    layer = network.layers[0]
    assert isinstance(layer.attention, Attention) and isinstance(layer.mlp, Mlp)
    return layer.attention, layer.mlp, layer.mlp_norm.epsilon


def layer_config(network: Network) -> dict[str, Any]:
    """What a head's config.json says of its layer. Its rope has no scaling, and its attention no norms of q and k."""
    attention, mlp, epsilon = sizes(network)
    return {
        "hidden_size": network.hidden_size, "intermediate_size": mlp.down.inputs, "num_hidden_layers": 1,
        "num_attention_heads": attention.heads, "num_key_value_heads": attention.kv_heads,
        "head_dim": attention.head_dim, "hidden_act": "silu", "rms_norm_eps": epsilon,
        "rope_theta": attention.rope.theta, "attention_bias": False, "max_position_embeddings": network.max_context,
        "vocab_size": network.vocab_size,
    }  # fmt: skip


class Rounds:
    """Keys and values of a text, by round."""

    def __init__(self) -> None:
        self.keys: list[torch.Tensor] = []
        self.values: list[torch.Tensor] = []

    def __len__(self) -> int:
        return len(self.keys)


class SelfAttention(nn.Module):
    def __init__(self, network: Network, inputs: int) -> None:
        super().__init__()
        one, _, _ = sizes(network)
        self._heads, self._kv_heads, self._dim = one.heads, one.kv_heads, one.head_dim
        # As readers of heads understand the config: without the scaling of the model's own rope.
        self._rope = Rope(one.head_dim, one.rope.theta)
        self.q_proj = nn.Linear(inputs, one.heads * one.head_dim, bias=False)
        self.k_proj = nn.Linear(inputs, one.kv_heads * one.head_dim, bias=False)
        self.v_proj = nn.Linear(inputs, one.kv_heads * one.head_dim, bias=False)
        self.o_proj = nn.Linear(one.heads * one.head_dim, network.hidden_size, bias=False)

    def forward(self, x: torch.Tensor, rounds: Rounds) -> torch.Tensor:
        rows, turn = len(x), len(rounds)
        q, k, v = (
            part(x).float().view(rows, -1, self._dim).transpose(0, 1)
            for part in (self.q_proj, self.k_proj, self.v_proj)
        )  # [heads, rows, D]
        cos, sin = (table[turn:] for table in rope_tables(self._rope, rows + turn))
        q, k = _rotated(q, cos, sin), _rotated(k, cos, sin)
        group = self._heads // self._kv_heads
        rounds.keys.append(k.repeat_interleave(group, 0))
        rounds.values.append(v.repeat_interleave(group, 0))
        out: torch.Tensor = self.o_proj(_attended(q * self._dim**-0.5, rounds).transpose(0, 1).flatten(1))
        return out


def _attended(q: torch.Tensor, rounds: Rounds) -> torch.Tensor:
    """[heads, rows, D], of the last round's rows."""
    rows = q.shape[1]
    keys, values = ([each[:, :rows] for each in kept] for kept in (rounds.keys, rounds.values))
    later = torch.full((rows, rows), float("-inf")).triu(1)
    text = (q @ keys[0].transpose(1, 2)).float() + later
    # In later rounds a row has one key each: products of pairs, not of all rows with all.
    own = [(q * key).sum(-1, keepdim=True) for key in keys[1:]]
    weights = torch.cat([text, *own], -1).softmax(-1)  # [heads, rows, rows + turns]
    out = weights[..., :rows] @ values[0]
    for place, value in enumerate(values[1:]):
        out = out + weights[..., rows + place, None] * value
    return out


def _rotated(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    first, second = x.chunk(2, -1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)


class GatedMlp(nn.Module):
    def __init__(self, hidden: int, wide: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(hidden, wide, bias=False)
        self.up_proj = nn.Linear(hidden, wide, bias=False)
        self.down_proj = nn.Linear(wide, hidden, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.down_proj(silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class DecoderLayer(nn.Module):
    """`inputs`: the width that its attention reads, where it isn't the hidden size."""

    def __init__(self, network: Network, inputs: int = 0) -> None:
        super().__init__()
        hidden = network.hidden_size
        _, mlp, epsilon = sizes(network)
        self.input_layernorm = nn.RMSNorm(hidden, epsilon)
        self.self_attn = SelfAttention(network, inputs or hidden)
        self.post_attention_layernorm = nn.RMSNorm(hidden, epsilon)
        self.mlp = GatedMlp(hidden, mlp.down.inputs)

    def through(self, x: torch.Tensor, normed: torch.Tensor, rounds: Rounds) -> torch.Tensor:
        """`normed` is what the attention reads."""
        x = x + self.self_attn(normed, rounds)
        after: torch.Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return after.float()

    @torch.no_grad()
    def start(self, network: Network, weights: Weights, hidden_norm: nn.RMSNorm, place: int = -1) -> None:
        """Begin as a layer of the model: the last one already knows how to make a hidden value that the model's head
        reads. What the attention reads before the hidden value begins at zero. `hidden_norm` is the norm of that
        value."""
        theirs = network.layers[place]
        if not isinstance(theirs.attention, Attention) or not isinstance(theirs.mlp, Mlp):
            return
        parts = (self.self_attn.q_proj, self.self_attn.k_proj, self.self_attn.v_proj)
        _start(parts, weights, theirs.attention.qkv)
        _start((self.self_attn.o_proj,), weights, theirs.attention.output)
        _start((self.mlp.gate_proj, self.mlp.up_proj), weights, theirs.mlp.gate_up)
        _start((self.mlp.down_proj,), weights, theirs.mlp.down)
        if theirs.attention_norm is not None:
            start_norm(hidden_norm, weights, theirs.attention_norm)
        start_norm(self.post_attention_layernorm, weights, theirs.mlp_norm)


@torch.no_grad()
def start_norm(norm: nn.RMSNorm, weights: Weights, theirs: Norm) -> None:
    norm.weight.copy_(weights.take(f"{theirs.name}.weight", theirs.width))


def _start(parts: Sequence[nn.Linear], weights: Weights, theirs: Linear) -> None:
    """The parts of a linear, side by side; a part that reads more has the model's weights at its end."""
    dense = weights.linear(theirs).dense(torch.float32)
    for part, rows in zip(parts, torch.split(dense, [part.out_features for part in parts]), strict=True):
        part.weight.zero_()
        part.weight[:, -theirs.inputs :] = rows
