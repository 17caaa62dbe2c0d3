"""What a mixture of experts computes, in plain torch and float32: who goes where, then one expert after another.

Two choices are ours, so that a row's bits depend on the row alone: equal scores go to the lower id, and what a
row gets from its experts is summed in ascending order of their ids. Works on any device.
"""

from __future__ import annotations

import torch

from kernels.norm_rope_act.reference import gated


def route(
    logits: torch.Tensor,  # [R, E], what the router's linear gives
    bias: torch.Tensor | None,  # [E], added to the scores for the choice alone
    *,
    top_k: int,
    scoring: str,  # softmax or sigmoid
    normalize: bool,
    epsilon: float,
    normalize_floor: bool,
    scale: float,
    groups: int,
    top_groups: int,
    group_by_best: bool,
) -> tuple[torch.Tensor, torch.Tensor]:  # [R, top_k] int32, [R, top_k] float32
    """The experts of every row, ids ascending, and their weights. models/spec.py `Router` says what the facts mean."""
    logits = logits.float()
    scores = torch.softmax(logits, dim=-1) if scoring == "softmax" else torch.sigmoid(logits)
    by = scores if bias is None else scores + bias.float()
    if groups > 1:
        by = by.masked_fill(~_in_best_groups(by, groups, top_groups, group_by_best), float("-inf"))
    ids = best(by, top_k).sort(dim=-1).values
    weights = scores.gather(1, ids)
    if normalize:
        total = weights.sum(dim=-1, keepdim=True)
        weights = weights / (total.clamp(min=epsilon) if normalize_floor else total + epsilon)
    return ids.to(torch.int32), weights * scale


def best(scores: torch.Tensor, count: int) -> torch.Tensor:
    """Where the `count` highest of every row stand, best first; the lower place wins a tie. [R, N] -> [R, count]."""
    return torch.sort(scores, dim=-1, descending=True, stable=True).indices[:, :count]


def _in_best_groups(by: torch.Tensor, groups: int, top_groups: int, group_by_best: bool) -> torch.Tensor:
    """[R, E] -> [R, E] bool: experts of the best groups. A group is as good as its two best experts together,
    or as its best one."""
    rows, size = by.shape[0], by.shape[1] // groups
    in_groups = by.view(rows, groups, size).sort(dim=-1, descending=True).values
    worth = in_groups[..., : 1 if group_by_best else 2].sum(dim=-1)
    chosen = torch.zeros(rows, groups, dtype=torch.bool, device=by.device)
    chosen.scatter_(1, best(worth, top_groups), True)
    return chosen.repeat_interleave(size, dim=1)


def own_choices(
    ids: torch.Tensor, weights: torch.Tensor, first: int, count: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """What was chosen among `count` experts from `first` on, counted from there: -1 and weight 0 for all others."""
    own = (ids >= first) & (ids < first + count)
    return torch.where(own, ids - first, -1), torch.where(own, weights, weights * 0.0)


def experts(
    x: torch.Tensor,  # [R, H]
    gate_up: torch.Tensor,  # [E, 2·I, H]: gates, then ups
    down: torch.Tensor,  # [E, H, I]
    ids: torch.Tensor,  # [R, top_k] int32, ascending in a row; -1: an expert of another rank
    weights: torch.Tensor,  # [R, top_k] float32
    activation: str = "silu",
    limit: float = 0.0,
    biases: tuple[torch.Tensor, torch.Tensor] | None = None,  # [E, 2·I] and [E, H] float32
) -> torch.Tensor:  # [R, H] float32
    """Σ weight · down(f(gate) · up) over a row's experts."""
    x = x.float()
    out = torch.zeros(x.shape[0], down.shape[1], device=x.device)
    for expert in ids[ids >= 0].unique().tolist():  # ascending
        rows, place = torch.where(ids == expert)
        wide = x[rows] @ gate_up[expert].float().T
        inner = gated(wide if biases is None else wide + biases[0][expert], activation, limit)
        given = inner @ down[expert].float().T
        out[rows] += weights[rows, place, None] * (given if biases is None else given + biases[1][expert])
    return out
