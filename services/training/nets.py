"""Heads as they are trained, in torch: parameters under the published names, and the loss of a text.

    position          t           t + 1          t + 2
    token             x_t         x_t+1          x_t+2
    the model says    p_t: of x_t+1   p_t+1: of x_t+2   ...

A head drafts x_t+2 from what the model computed up to t and from x_t+1. It learns the whole distribution p_t+1 over its
vocabulary, which tells more of a position than the token that was chosen.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, ClassVar

import torch
from safetensors.torch import save_file
from torch import nn
from torch.nn.functional import kl_div, linear, log_softmax, scaled_dot_product_attention, silu

from models.layers.rope import rope_tables
from models.spec import Attention, Mlp, Network
from models.taps import FINAL, Tap


class Net(nn.Module):
    method: ClassVar[str]

    def __init__(self, network: Network, embedding: torch.Tensor, head: torch.Tensor, tokens: torch.Tensor) -> None:
        """`tokens` [V'] are the ids of the draft vocabulary, rising."""
        super().__init__()
        self.network = network
        # They are the model's and aren't trained.
        self.embedding, self.draft_head, self.tokens = embedding, head[tokens].clone(), tokens

    def says(self, final: torch.Tensor) -> torch.Tensor:
        """What the model says over the draft vocabulary, of its final values [T, H]: probabilities [T, V']."""
        return linear(final, self.draft_head).softmax(-1)

    def loss(self, ids: torch.Tensor, features: torch.Tensor, final: torch.Tensor) -> tuple[torch.Tensor, list[float]]:
        """Of one text: the mean over positions, and by draft position the share where the most probable token is the
        model's."""
        raise NotImplementedError

    def save(self, folder: Path) -> None:
        """In the published layout."""
        raise NotImplementedError


def _compared(logits: torch.Tensor, wanted: torch.Tensor) -> tuple[torch.Tensor, float]:
    divergence = kl_div(log_softmax(logits, -1), wanted, reduction="batchmean")
    return divergence, float((logits.argmax(-1) == wanted.argmax(-1)).float().mean())


def write(folder: Path, config: dict[str, Any], tensors: dict[str, torch.Tensor]) -> None:
    """bfloat16, and whole: a head is there or it isn't."""
    folder.mkdir(parents=True, exist_ok=True)
    kept = {name: (t.to(torch.bfloat16) if t.is_floating_point() else t).contiguous() for name, t in tensors.items()}
    fresh = folder / "model.safetensors.new"
    save_file(kept, fresh)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    fresh.replace(folder / "model.safetensors")


class MedusaNet(Net):
    """A block for each of the next tokens, in front of the model's own head: only blocks are trained."""

    method = "medusa"
    HEADS = 4

    def __init__(self, network: Network, embedding: torch.Tensor, head: torch.Tensor, tokens: torch.Tensor) -> None:
        super().__init__(network, embedding, head, tokens)
        hidden = network.hidden_size
        self.blocks = nn.ParameterList(torch.zeros(hidden, hidden) for _ in range(self.HEADS))

    @staticmethod
    def taps(network: Network) -> tuple[Tap, ...]:
        return (FINAL,)

    def loss(self, ids: torch.Tensor, features: torch.Tensor, final: torch.Tensor) -> tuple[torch.Tensor, list[float]]:
        says = self.says(final)
        total, hits = features.new_zeros(()), []
        for place, block in enumerate(self.blocks):
            ahead = place + 1
            x = features[: len(ids) - ahead]
            divergence, hit = _compared(linear(x + silu(linear(x, block)), self.draft_head), says[ahead:])
            total = total + 0.8**place * divergence
            hits.append(hit)
        return total, hits

    def save(self, folder: Path) -> None:
        tensors = {f"blocks.{place}.layers.0.weight": block.detach() for place, block in enumerate(self.blocks)}
        tensors |= {"lm_heads.0.weight": self.draft_head, "token_map": self.tokens}
        config = {
            "architectures": ["MedusaModel"], "model_type": "medusa", "hidden_size": self.network.hidden_size,
            "num_heads": self.HEADS, "num_hidden_layers": 1, "vocab_size": self.network.vocab_size,
            "truncated_vocab_size": len(self.tokens), "original_lm_head": True,
        }  # fmt: skip
        write(folder, config, tensors)


class Eagle3Net(Net):
    """EAGLE-3's layer, trained on its own output as it will be used: in round r a position reads what the head itself
    computed r - 1 positions before, not what the model did.

    The row of position t in round r drafts x_t+r+2. It attends to the rows of round 0 up to t, and to its own rows of
    the rounds before.
    """

    method = "eagle3"
    ROUNDS = 3

    def __init__(self, network: Network, embedding: torch.Tensor, head: torch.Tensor, tokens: torch.Tensor) -> None:
        super().__init__(network, embedding, head, tokens)
        layer, hidden = network.layers[0], network.hidden_size
        assert isinstance(layer.attention, Attention) and isinstance(layer.mlp, Mlp)
        self._attention, self._epsilon = layer.attention, layer.mlp_norm.epsilon
        one, wide = layer.attention, layer.mlp.down.inputs
        q, kv = one.heads * one.head_dim, one.kv_heads * one.head_dim
        shapes: dict[str, tuple[int, ...]] = {
            "fc": (hidden, len(self.taps(network)) * hidden), "midlayer.self_attn.q_proj": (q, 2 * hidden),
            "midlayer.self_attn.k_proj": (kv, 2 * hidden), "midlayer.self_attn.v_proj": (kv, 2 * hidden),
            "midlayer.self_attn.o_proj": (hidden, q), "midlayer.mlp.gate_proj": (wide, hidden),
            "midlayer.mlp.up_proj": (wide, hidden), "midlayer.mlp.down_proj": (hidden, wide),
        }  # fmt: skip
        norms = ("midlayer.input_layernorm", "midlayer.hidden_norm", "midlayer.post_attention_layernorm", "norm")
        self.parts = nn.ParameterDict()
        for name, shape in shapes.items():
            self.parts[_key(name)] = nn.Parameter(torch.randn(shape) * shape[1] ** -0.5)
        for name in norms:
            self.parts[_key(name)] = nn.Parameter(torch.ones(hidden))
        self.lm_head = nn.Parameter(head[tokens].clone())
        self._cos, self._sin = rope_tables(one.rope, network.max_context)

    @staticmethod
    def taps(network: Network) -> tuple[Tap, ...]:
        count = len(network.layers)
        return tuple(dict.fromkeys((min(1, count - 1), count // 2 - 1, max(0, count - 4))))

    def _part(self, name: str) -> torch.Tensor:
        part: torch.Tensor = self.parts[_key(name)]
        return part

    def _norm(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self._epsilon) * self._part(name)

    def loss(self, ids: torch.Tensor, features: torch.Tensor, final: torch.Tensor) -> tuple[torch.Tensor, list[float]]:
        says = self.says(final)
        total, hits = features.new_zeros(()), []
        for turn, logits in enumerate(self.logits(ids, features)):
            divergence, hit = _compared(logits, says[1 + turn :])
            total = total + 0.8**turn * divergence
            hits.append(hit)
        return total, hits

    def logits(self, ids: torch.Tensor, features: torch.Tensor) -> list[torch.Tensor]:
        """By round, of all positions that have a row in it."""
        embedded, hidden = self.embedding[ids], linear(features, self._part("fc"))
        found: list[torch.Tensor] = []
        keys: list[torch.Tensor] = []
        values: list[torch.Tensor] = []
        for turn in range(min(self.ROUNDS, len(ids) - 1)):
            rows = len(ids) - 1 - turn
            hidden = self._layer(embedded[1 + turn :], hidden[:rows], keys, values, turn)
            found.append(linear(self._norm(hidden, "norm"), self.lm_head))
        return found

    def _layer(
        self,
        embedded: torch.Tensor,
        hidden: torch.Tensor,
        keys: list[torch.Tensor],
        values: list[torch.Tensor],
        turn: int,
    ) -> torch.Tensor:
        one, rows = self._attention, len(hidden)
        pair = [self._norm(embedded, "midlayer.input_layernorm"), self._norm(hidden, "midlayer.hidden_norm")]
        x = torch.cat(pair, -1)
        q, k, v = (
            linear(x, self._part(f"midlayer.self_attn.{name}_proj")).view(rows, -1, one.head_dim).transpose(0, 1)
            for name in "qkv"
        )  # [heads, rows, D]
        at = torch.arange(rows) + turn
        q, k = self._rotated(q, at), self._rotated(k, at)
        group = one.heads // one.kv_heads
        keys.append(k.repeat_interleave(group, 0))
        values.append(v.repeat_interleave(group, 0))
        # Rows of round 0 up to the own position, then the own row of each later round.
        all_keys = torch.cat([keys[0][:, :rows], *(each[:, :rows] for each in keys[1:])], 1)
        all_values = torch.cat([values[0][:, :rows], *(each[:, :rows] for each in values[1:])], 1)
        place = torch.arange(rows)
        mask = torch.cat([place[None] <= place[:, None], *([place[None] == place[:, None]] * (len(keys) - 1))], 1)
        out = scaled_dot_product_attention(q, all_keys, all_values, attn_mask=mask, scale=one.scale)
        hidden = hidden + linear(out.transpose(0, 1).flatten(1), self._part("midlayer.self_attn.o_proj"))
        x = self._norm(hidden, "midlayer.post_attention_layernorm")
        gate, up = (linear(x, self._part(f"midlayer.mlp.{name}_proj")) for name in ("gate", "up"))
        return hidden + linear(silu(gate) * up, self._part("midlayer.mlp.down_proj"))

    def _rotated(self, x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        cos, sin = self._cos[at], self._sin[at]
        first, second = x.chunk(2, -1)
        return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)

    def save(self, folder: Path) -> None:
        one, hidden = self._attention, self.network.hidden_size
        tensors = {f"{name.replace('/', '.')}.weight": part.detach() for name, part in self.parts.items()}
        used = torch.zeros(self.network.vocab_size, dtype=torch.bool)
        used[self.tokens] = True
        offsets = self.tokens - torch.arange(len(self.tokens))
        tensors |= {"lm_head.weight": self.lm_head.detach(), "d2t": offsets, "t2d": used}
        rope = one.rope
        config = {
            "architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "hidden_size": hidden,
            "intermediate_size": self._part("midlayer.mlp.down_proj").shape[1], "num_hidden_layers": 1,
            "num_attention_heads": one.heads, "num_key_value_heads": one.kv_heads, "head_dim": one.head_dim,
            "hidden_act": "silu", "rms_norm_eps": self._epsilon, "rope_theta": rope.theta, "attention_bias": False,
            "max_position_embeddings": self.network.max_context, "vocab_size": self.network.vocab_size,
            "draft_vocab_size": len(self.tokens), "tie_word_embeddings": False,
            "eagle_aux_hidden_state_layer_ids": [tap + 1 for tap in self.taps(self.network) if isinstance(tap, int)],
        }  # fmt: skip
        write(folder, config, tensors)


def _key(name: str) -> str:
    """A ParameterDict takes no dots."""
    return name.replace(".", "/")


NETS: dict[str, type[MedusaNet] | type[Eagle3Net]] = {"eagle3": Eagle3Net, "medusa": MedusaNet}
