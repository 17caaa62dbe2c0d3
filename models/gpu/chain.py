"""Passes of a drafter's network that read what the last one chose: the tokens and hidden values stay on the device, and
the host looks at all of them at the end. A pass is one launch of a graph.

    start ─▶ token, hidden ─▶ step: network ─▶ logits ─▶ likeliest token, its probability ─▶ step ... ─▶ fetch
                                  └─▶ hidden

Each sequence has one row. A later pass may have fewer rows: the first ones.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

# Passes of a draft that are kept, the first token's included.
MOST_PASSES = 64


def likeliest(logits: torch.Tensor, ids: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
    """Of each row the most probable token, as its id in `ids`, and its probability. Waits for nothing."""
    sure, places = logits.float().softmax(-1).max(-1)
    return places if ids is None else ids[places], sure


class Chain:
    def __init__(
        self,
        compute: Callable[[int, torch.Tensor, torch.Tensor | None], tuple[torch.Tensor, torch.Tensor | None]],
        rows: int,
        hidden_size: int,
        ids: torch.Tensor | None,
        device: torch.device,
    ) -> None:
        """`compute(rows, tokens, hidden)` starts a pass whose other inputs are in place, and gives logits and features
        of its rows. `hidden_size` 0: the network reads none. `ids`: the target's of the network's tokens."""
        self._compute, self._ids = compute, ids
        self._tokens = torch.zeros(rows, dtype=torch.int32, device=device)
        self._hidden = torch.zeros(rows, hidden_size, device=device) if hidden_size else None
        # By pass: tokens, and the bits of their probabilities.
        self._kept = torch.zeros(MOST_PASSES, 2, rows, dtype=torch.int32, device=device)
        self._place = torch.zeros(1, dtype=torch.int64, device=device)

    @torch.inference_mode()
    def start(self, logits: torch.Tensor, hidden: torch.Tensor | None) -> None:
        """From the logits [n, V] behind each text, and the values [n, H] that are hidden in the first pass."""
        self._place.zero_()
        self._choose(logits)
        if self._hidden is not None and hidden is not None:
            self._hidden[: len(hidden)].copy_(hidden)

    @torch.inference_mode()
    def run(self, rows: int) -> None:
        hidden = None if self._hidden is None else self._hidden[:rows]
        logits, features = self._compute(rows, self._tokens[:rows], hidden)
        self._choose(logits)
        if hidden is not None and features is not None:
            hidden.copy_(features)

    def fetched(self, passes: int, rows: int) -> list[list[tuple[int, float]]]:
        """Of each row, the tokens of all passes and their probabilities, with one wait for the device."""
        words = self._kept[:passes, :, :rows].cpu()
        tokens, sure = words[:, 0], words[:, 1].contiguous().view(torch.float32)
        return [list(zip(*row, strict=True)) for row in zip(tokens.T.tolist(), sure.T.tolist(), strict=True)]

    def _choose(self, logits: torch.Tensor) -> None:
        chosen, sure = likeliest(logits, self._ids)
        tokens = chosen.int()
        self._tokens[: len(tokens)].copy_(tokens)
        words = torch.stack([tokens, sure.view(torch.int32)])
        self._kept[:, :, : len(tokens)].index_copy_(0, self._place, words[None])
        # Graphs are tried before they are captured: more often than there are passes.
        self._place.add_(1).remainder_(MOST_PASSES)
