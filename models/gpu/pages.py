"""The pages of all layers: layers alike share one tensor, so that a page is copied with one call for all of them."""

from __future__ import annotations

import torch


class Pages:
    def __init__(self, shapes: list[tuple[int, ...]], pages: int, dtype: torch.dtype, device: torch.device) -> None:
        """`shapes`: what a layer keeps of one page, e.g. (2, kv_heads, page_tokens, D); kept [2, pages, …]."""
        alike: dict[tuple[int, ...], list[int]] = {}
        for layer, shape in enumerate(shapes):
            alike.setdefault(shape, []).append(layer)
        self._kept: list[torch.Tensor] = []
        self.of_layer: dict[int, torch.Tensor] = {}
        for shape, layers in alike.items():
            # Zeros, not whatever lies there: a number that is none would survive a weight of 0.
            kept = torch.zeros(len(layers), shape[0], pages, *shape[1:], dtype=dtype, device=device)
            self._kept.append(kept)
            self.of_layer.update(zip(layers, kept, strict=True))

    def copy(self, source: int, target: int) -> None:
        for kept in self._kept:
            kept[:, :, target].copy_(kept[:, :, source])
