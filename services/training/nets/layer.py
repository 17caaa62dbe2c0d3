"""The attention of a head's layer as it is trained. A text's rows go through a layer several times, in rounds: row t
drafts x_t+2 in round 0, x_t+3 in round 1, and so on.

    round 0     rows of the text
    round r     row t is at position t + r. It attends to the rows 0 .. t of round 0, and to row t of rounds 1 .. r:
                as a drafter does that has read the text up to t + 1 and has drafted r tokens
"""

from __future__ import annotations

import torch

from models.layers.rope import rope_tables
from models.spec import Attention


class Rounds:
    """Keys and values of a text, by round."""

    def __init__(self) -> None:
        self.keys: list[torch.Tensor] = []
        self.values: list[torch.Tensor] = []

    def __len__(self) -> int:
        return len(self.keys)


def attended(
    one: Attention, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, rounds: Rounds
) -> torch.Tensor:
    """What the rows of a new round gather, [rows, heads · D], before the output linear; q, k and v are [rows, ...]."""
    rows, turn = len(q), len(rounds)
    q, k, v = (part.float().view(rows, -1, one.head_dim).transpose(0, 1) for part in (q, k, v))  # [heads, rows, D]
    cos, sin = (table[turn:] for table in rope_tables(one.rope, rows + turn))
    q, k = _rotated(q, cos, sin), _rotated(k, cos, sin)
    group = one.heads // one.kv_heads
    rounds.keys.append(k.repeat_interleave(group, 0))
    rounds.values.append(v.repeat_interleave(group, 0))
    return _mixed(q * one.scale, rounds).transpose(0, 1).flatten(1)


def _mixed(q: torch.Tensor, rounds: Rounds) -> torch.Tensor:
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
