"""Pages of a model that is split over ranks, handed over as those of the whole model: rank 0 collects what it lends
from the others, and gives them their parts of what lands.

    rank 0   [keys: heads 0 1 | 2][values: heads 0 1 | 2][latents]     a page as another worker gets it
    rank 1                    [2]                   [2]                it sends, and is sent; it is sent latents, too

So a page's bytes say nothing of ranks. Where ranks have a key head together, the first of them sends it; what all of
them have (latents), rank 0 has. Only bytes of known number travel, behind a call that names the pages.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from models.executor import PageTensor
from models.group import Group
from models.shards import key_heads
from services.worker.parallel import calls


class OtherRanks:
    """On rank 0. Of each page it is given the layers of the whole model, as views: the executor's first."""

    def __init__(
        self, layers: Sequence[PageTensor], group: Group, on_all: Callable[[np.ndarray, Callable[[], None]], Any]
    ) -> None:
        """`on_all` sends a call to all ranks, and then does what it is given."""
        self._layers, self._group, self._on_all = layers, group, on_all
        self._ranks = range(1, group.ranks)
        # By rank, where it sends something.
        self._sent = {rank: found for rank in self._ranks if (found := _sent(layers, rank, group.ranks))}

    def read(self, pages: Sequence[int], wholes: Sequence[Sequence[torch.Tensor]]) -> None:
        """What the other ranks have of the pages goes to its places."""
        if self._sent:
            self._on_all(calls.call(calls.READ, *pages), lambda: self._collect(wholes))

    def write(self, page: int, whole: Sequence[torch.Tensor]) -> None:
        """The other ranks get what they have of the page."""
        self._on_all(calls.call(calls.WRITE, page), lambda: self._share_out(whole))

    def _collect(self, wholes: Sequence[Sequence[torch.Tensor]]) -> None:
        for rank, layers in self._sent.items():
            places = [self._of_rank(whole, layer, rank) for whole in wholes for layer in layers]
            data, views = _stretch(places)
            self._group.receive(data, rank)
            for view, place in zip(views, places, strict=True):
                place.copy_(view)

    def _share_out(self, whole: Sequence[torch.Tensor]) -> None:
        for rank in self._ranks:
            parts = [self._of_rank(whole, layer, rank) for layer in range(len(self._layers))]
            self._group.send(_together(parts), rank)

    def _of_rank(self, whole: Sequence[torch.Tensor], layer: int, rank: int) -> torch.Tensor:
        spec, place = self._layers[layer], whole[layer]
        if not spec.axis:
            return place
        return place.narrow(spec.axis - 1, *key_heads(spec.heads, rank, self._group.ranks))


def send_pages(layers: Sequence[PageTensor], group: Group, pages: Sequence[int]) -> None:
    """On another rank: what rank 0 collects."""
    if sent := [layers[layer].memory for layer in _sent(layers, group.rank, group.ranks)]:
        group.send(_together([memory[page] for page in pages for memory in sent]), 0)


def receive_page(layers: Sequence[PageTensor], group: Group, page: int) -> None:
    """On another rank: what rank 0 shares out."""
    places = [each.memory[page] for each in layers]
    data, views = _stretch(places)
    group.receive(data, 0)
    for view, place in zip(views, places, strict=True):
        place.copy_(view)


def _stretch(like: Sequence[torch.Tensor]) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Bytes on the host for numbers like these, one tensor's behind the other's, and views of them."""
    sizes = [each.numel() * each.itemsize for each in like]
    data = torch.empty(sum(sizes), dtype=torch.uint8)
    parts = zip(torch.split(data, sizes), like, strict=True)
    return data, [part.view(each.dtype).view(each.shape) for part, each in parts]


def _together(numbers: Sequence[torch.Tensor]) -> torch.Tensor:
    data, views = _stretch(numbers)
    for view, each in zip(views, numbers, strict=True):
        view.copy_(each)
    return data


def _sent(layers: Sequence[PageTensor], rank: int, ranks: int) -> list[int]:
    """The layers of which a rank has what no rank before it has. Ranks that have a head together are neighbours."""
    return [
        index
        for index, layer in enumerate(layers)
        if layer.axis and key_heads(layer.heads, rank, ranks) != key_heads(layer.heads, rank - 1, ranks)
    ]
