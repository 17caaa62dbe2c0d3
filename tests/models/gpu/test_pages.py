"""Pages of layers of several shapes: copied, forked and moved in all of them."""

from __future__ import annotations

import torch

from kernels.testing import device
from models.gpu.pages import GpuPages

GROUPED, LATENT = (2, 3, 4, 5), (1, 4, 7)  # parts, (kv heads,) 4 tokens, numbers


def filled(*shapes: tuple[int, ...]) -> GpuPages:
    pages = GpuPages(shapes, [3 if len(shape) == 4 else 0 for shape in shapes], 6, torch.float32, device())
    for layer in pages.of_layer.values():
        layer.copy_(torch.rand(layer.shape, generator=torch.Generator().manual_seed(layer.numel())))
    return pages


def test_forked_pages_hold_what_their_sources_hold_and_others_do_not_change() -> None:
    pages = filled(GROUPED, LATENT, GROUPED)
    before = {layer: kept.clone() for layer, kept in pages.of_layer.items()}
    pages.fork(torch.tensor([0, 0, 4], device=device()), torch.tensor([2, 5, 1], device=device()))
    for layer, kept in pages.of_layer.items():
        assert torch.equal(kept, before[layer][:, [0, 4, 0, 3, 4, 0]])


def test_moved_slots_hold_what_their_sources_hold_and_others_do_not_change() -> None:
    pages = filled(GROUPED, LATENT)
    before = {layer: kept.clone() for layer, kept in pages.of_layer.items()}
    sources, targets = [9, 17], [3, 0]
    pages.move(torch.tensor(sources, device=device()), torch.tensor(targets, device=device()))
    for layer, kept in pages.of_layer.items():
        expected = before[layer]
        for source, target in zip(sources, targets, strict=True):
            expected[:, target // 4, ..., target % 4, :] = expected[:, source // 4, ..., source % 4, :]
        assert torch.equal(kept, expected)


def test_views_by_page_are_those_of_all_layers() -> None:
    pages = filled(GROUPED, LATENT, GROUPED)
    assert [(each.axis, each.heads) for each in pages.by_page()] == [(3, 3), (0, 0)]
    views = [each.memory for each in pages.by_page()]
    assert [view.shape[0] for view in views] == [6, 6] and sum(view[3].numel() for view in views) == 2 * 120 + 28
    for view in views:
        view[3].fill_(5)
    for kept in pages.of_layer.values():
        assert (kept[:, 3] == 5).all() and not (kept[:, 2] == 5).any()
