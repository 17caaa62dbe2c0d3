"""The pages of all layers. Layers that are alike share one tensor, so that one call copies a page of all of them."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from models.executor import PageTensor


class GpuPages:
    def __init__(
        self,
        shapes: Sequence[tuple[int, ...]],
        heads: Sequence[int],
        pages: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        """`shapes`: of one page of each layer, e.g. (2, kv_heads, page_tokens, D); kept [layers, 2, pages, …]. The
        last two dimensions are token and number. `heads`: key heads of each layer on all ranks; 0: it has none."""
        # Layers that are alike on one rank are so on all: their heads there don't decide it alone.
        alike: dict[tuple[tuple[int, ...], int], list[int]] = {}
        for layer, kind in enumerate(zip(shapes, heads, strict=True)):
            alike.setdefault(kind, []).append(layer)
        self._kept: list[torch.Tensor] = []
        self._heads = [each for _, each in alike]
        self.of_layer: dict[int, torch.Tensor] = {}
        for (shape, _), layers in alike.items():
            # Zeros: attention multiplies unused tokens by 0, and 0 · NaN is NaN.
            kept = torch.zeros(len(layers), shape[0], pages, *shape[1:], dtype=dtype, device=device)
            self._kept.append(kept)
            self.of_layer.update(zip(layers, kept, strict=True))

    def fork(self, sources: torch.Tensor, targets: torch.Tensor) -> None:
        """Pages [F] int64 on the device; no page is both a source and a target."""
        for kept in self._kept:
            kept.index_copy_(2, targets, kept.index_select(2, sources))

    def move(self, sources: torch.Tensor, targets: torch.Tensor) -> None:
        """Slots [N] int64 on the device; no slot is both a source and a target."""
        for kept in self._kept:
            tokens = kept.movedim(-2, 3)  # [layers, parts, pages, page_tokens, …]
            size = tokens.shape[3]
            tokens[:, :, targets // size, targets % size] = tokens[:, :, sources // size, sources % size]

    def by_page(self) -> list[PageTensor]:
        """Views [pages, layers, 2, kv_heads, …]."""
        return [
            PageTensor(kept.movedim(2, 0), 3 if heads else 0, heads)
            for kept, heads in zip(self._kept, self._heads, strict=True)
        ]

    def copy(self, source: int, target: int) -> None:
        for kept in self._kept:
            kept[:, :, target].copy_(kept[:, :, source])
