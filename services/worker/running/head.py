"""What drafters compute with (models/heads/), loaded beside the target model. Knows no requests.

The layers of a HeadModel have keys and values of their own in each page, under the same page numbers: what the
scheduler does with pages (prefix cache, preemption, copies) holds for both networks. A ResidualModel has no layers, but
for a prefix layer that its heads may read.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import torch

from models.batch import Stretch, make_batch
from models.executor import Chains, Contexts, Executor, Options, Output, PageTensor
from models.heads.folder import read_head
from models.heads.head import Head
from models.heads.residual import ResidualHeads
from models.heads.table import DRAFT_MODEL
from models.heads.twins import ALONE, Twins, twins_of
from models.heads.weights import HeadWeights, target_ids
from models.memory import NUMBER_BYTES, kept_by, numbers_of, weight_bytes
from models.passes import forward, store
from models.projection import Projection
from models.spec import Linear, Network
from models.weights import Weights


@dataclass(slots=True)
class HeadRows:
    """Tokens of one sequence at positions start.. . Logits are wanted for the last `wanted` tokens."""

    tokens: list[int]
    start: int
    pages: Sequence[int]
    wanted: int


@dataclass(slots=True)
class HeadTree:
    """The last token of a text and a tree of draft tokens behind it, as in models/batch.py: `parents` are those of the
    draft tokens, `spare` pages for branches. Logits are wanted for tokens logits_from.. ."""

    tokens: list[int]
    parents: list[int]
    start: int
    pages: Sequence[int]
    spare: range
    logits_from: int


class OpenedHead:
    """A network's folder, read and checked, before there are pages."""

    def __init__(self, head: Head, own: Weights, target: Weights, twins: Twins | None = None) -> None:
        self.head, self._own, self._twins = head, own, twins
        self._ids = target_ids(head, own, head.network.vocab_size)
        self._weights = HeadWeights(own, target, head.shared, self._ids, head.network.vocab_size)
        self.taps = head.taps
        self._more = [OpenedHead(each, own, target) for each in head.more]
        # With the layers of all blocks.
        blocks = (head, *head.more)
        layers = tuple(layer for each in blocks for layer in each.network.layers)
        self.network: Network | None = replace(head.network, layers=layers)

    def options(self, options: Options) -> Options:
        """Its network keeps what its next pass reads."""
        return replace(options, taps=() if self.head.follows is None else (self.head.follows,))

    def weight_bytes(self, options: Options, codes_stay: bool) -> int:
        """In memory; what is shared with the target's folder is there twice."""
        network, combine = self.head.network, self.head.combine
        mixed = 0 if combine is None else numbers_of(combine) * NUMBER_BYTES[options.dtype]
        if (markov := self.head.markov) is not None:
            table = network.vocab_size * markov.linear.inputs * self._own.number_bytes(markov.table)
            mixed += table + numbers_of(markov.linear) * NUMBER_BYTES[options.dtype]
        more = sum(each.weight_bytes(options, codes_stay) for each in self._more)
        return weight_bytes(network, kept_by(network, self._weights, options.dtype, codes_stay)) + mixed + more

    def load(self, executor: Any, options: Options, device: torch.device) -> HeadModel:
        """`executor`: one of the classes in models/choose.py."""
        options = self.options(options)
        combine = None
        if self.head.combine is not None:
            combine = executor.projection(self.head.combine, self._weights, options, device)
        ids = None if self._ids is None else self._ids.to(device)
        made: Executor = executor(self.head.network, self._weights, options)
        model = HeadModel(self.head, made, options.page_tokens, combine, ids, self._twins, device)
        model.more = [each.load(executor, options, device) for each in self._more]
        if (markov := self.head.markov) is not None:
            table = self._own.take(markov.table, self.head.network.vocab_size, markov.linear.inputs).to(device)
            model.markov = table, executor.projection(markov.linear, self._weights, options, device)
        if self.head.mask is not None and self.head.mask.features:
            width = len(self.head.taps) * self.head.network.hidden_size
            model.mask_hidden = model.hidden(self._own.take(self.head.mask.features, 1, width).to(device))
        return model


class OpenedResidual:
    """Medusa's or Hydra's folder. Its heads have no pages; a prefix layer has."""

    taps = ResidualHeads.taps

    def __init__(self, heads: ResidualHeads, own: Weights, target: Weights, network: Network) -> None:
        self._heads, self._own, self._target, self._network = heads, own, target, network
        self._ids = target_ids(heads, own, network.vocab_size)
        self._prefix = None if heads.prefix is None else OpenedHead(heads.prefix, own, target)
        self.network: Network | None = None if heads.prefix is None else heads.prefix.network

    def options(self, options: Options) -> Options:
        return options if self._prefix is None else self._prefix.options(options)

    def weight_bytes(self, options: Options, codes_stay: bool) -> int:
        """In memory: the heads' linears, and what `load` takes of the target's folder."""
        number = NUMBER_BYTES[options.dtype]
        total = sum(numbers_of(linear) * number for linear in self._heads.linears)
        if self._heads.reads_tokens:
            table = self._network.vocab_size * self._network.hidden_size
            total += table * self._target.number_bytes(self._network.embedding)
        return total + (0 if self._prefix is None else self._prefix.weight_bytes(options, codes_stay))

    def load(self, executor: Any, options: Options, device: torch.device) -> ResidualModel:
        embedding = None
        if self._heads.reads_tokens:
            network = self._network
            embedding = self._target.take(network.embedding, network.vocab_size, network.hidden_size).to(device)
        weights = HeadWeights(self._own, self._target, self._heads.shared, self._ids, self._network.vocab_size)
        prefix = None if self._prefix is None else self._prefix.load(executor, options, device)
        ids = None if self._ids is None else self._ids.to(device)

        def linear(one: Linear) -> Projection:
            made: Projection = executor.projection(one, weights, options, device)
            return made

        return ResidualModel(self._heads, linear, embedding, ids, prefix)


def open_head(method: str, folder: Path, target: Network, target_folder: Path) -> OpenedHead | OpenedResidual:
    """Raises `ModelError`."""
    head = read_head(method, folder, target)
    own, theirs = Weights(folder), Weights(target_folder)
    if isinstance(head, ResidualHeads):
        return OpenedResidual(head, own, theirs, target)
    twins = None
    if method == DRAFT_MODEL:
        twins = twins_of(folder, target_folder, head.network.vocab_size, target.vocab_size)
    return OpenedHead(head, own, theirs, twins)


class HeadModel:
    def __init__(
        self, head: Head, executor: Executor, page_tokens: int, combine: Projection | None, ids: torch.Tensor | None,
        twins: Twins | None = None, device: torch.device | None = None,
    ) -> None:  # fmt: skip
        """`combine` mixes the target's features; `ids` are the target's ids of its tokens (None: the same). `twins`: it
        has another tokenizer."""
        self.head, self.executor, self.ids = head, executor, ids
        # By the target's ids, what it reads; and what is added to its logits, so that tokens without a twin have no
        # chance.
        self._read: np.ndarray | None = None
        self._closed: torch.Tensor | None = None
        if twins is not None:
            drafted = torch.tensor(twins.drafted, device=device)
            self._read, self.ids = np.array(twins.read, np.int64), drafted.clamp_min(0)
            self._closed = torch.zeros(len(drafted), device=device).masked_fill_(drafted == ALONE, -torch.inf)
        self.page_tokens, self._combine = page_tokens, combine
        # The hidden value [1, H] of the rows of a mask.
        self.mask_hidden: torch.Tensor | None = None
        self.markov: tuple[torch.Tensor, Projection] | None = None
        # Blocks that draft the tokens after its own.
        self.more: list[HeadModel] = []
        # Makes the passes of a draft without a look at their tokens; None: each pass gives its tokens to the host.
        self.chains: Chains | None = None
        # A block is one pass, and a prefix layer makes no drafts.
        if isinstance(executor, Chains) and head.mask is None and head.network.head.parts and twins is None:
            self.chains = executor
            executor.prepare_chain(ids)

    def copy_page(self, source: int, target: int) -> None:
        for each in (self, *self.more):
            each.executor.copy_page(source, target)

    def page_memory(self) -> Sequence[PageTensor]:
        return [memory for each in (self, *self.more) for memory in each.executor.page_memory()]

    def hidden(self, features: torch.Tensor) -> torch.Tensor:
        """Of the target's features [n, taps · H]: the hidden values [n, H] that the network reads."""
        return features if self._combine is None else self._combine(features)

    def behind(self, logits: torch.Tensor, tokens: Sequence[int]) -> torch.Tensor:
        """Logits [B, its vocabulary] of rows whose draft has the target's `tokens` before them."""
        if self.markov is None:
            return logits
        table, linear = self.markov
        added = linear(table[torch.tensor(tokens, device=table.device)])
        return logits + added.to(logits.device)

    def store(self, rows: Sequence[HeadRows], hidden: torch.Tensor) -> None:
        """Keys and values of texts, for a network whose text is hidden values alone."""
        assert isinstance(self.executor, Contexts)
        stretches = [Stretch(each.tokens, each.start, each.pages, len(each.tokens)) for each in rows]
        store(self.executor, stretches, self.page_tokens, hidden)

    def forward(
        self, rows: Sequence[HeadRows], hidden: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Of all rows, with their hidden values [R, H] for a network with an entry: logits of the wanted rows [W, its
        vocabulary], and the last values of each sequence that are hidden in the next pass, [sequences, H]. Valid until
        the next call."""
        output = self.forward_all(rows, hidden)
        logits = output.logits if self._closed is None else output.logits + self._closed
        if output.features is None:
            return logits, None
        return logits, _of_rows(output.features, [end - 1 for end in accumulate(len(each.tokens) for each in rows)])

    def forward_all(self, rows: Sequence[HeadRows], hidden: torch.Tensor | None) -> Output:
        """`forward` with the values of all rows, and logits as the network gives them."""
        block = self.head.network.context is not None
        stretches = [
            Stretch(
                self._own_tokens(each.tokens), each.start, each.pages, len(each.tokens) - each.wanted, block=block
            )
            for each in rows
        ]  # fmt: skip
        return forward(self.executor, stretches, self.page_tokens, hidden)

    def _own_tokens(self, tokens: list[int]) -> list[int]:
        found: list[int] = tokens if self._read is None else self._read[tokens].tolist()
        return found

    def start_chain(self, logits: torch.Tensor, hidden: torch.Tensor | None) -> None:
        """Where `chains` is set: choose the likeliest token behind each text."""
        assert self.chains is not None
        self.chains.start_chain(logits, hidden)

    def follow_chain(self, rows: Sequence[HeadRows]) -> None:
        """A pass over the tokens that were chosen last, a row for each of the first sequences."""
        assert self.chains is not None
        stretches = [Stretch(each.tokens, each.start, each.pages, 0) for each in rows]
        self.chains.follow_chain(make_batch(stretches, self.page_tokens))

    def forward_trees(self, trees: Sequence[HeadTree], hidden: torch.Tensor | None) -> Output:
        """Logits of the wanted rows, and the values of all rows that are hidden in the next pass, in the order of the
        trees. Valid until the next call."""
        stretches = [
            Stretch(self._own_tokens(each.tokens), each.start, each.pages, each.logits_from, each.parents, each.spare)
            for each in trees
        ]
        output = forward(self.executor, stretches, self.page_tokens, hidden)
        return output if self._closed is None else replace(output, logits=output.logits + self._closed)


def _of_rows(features: torch.Tensor, rows: list[int]) -> torch.Tensor:
    if rows[-1] - rows[0] == len(rows) - 1:
        return features[rows[0] : rows[-1] + 1]
    if features.device.type == "cpu":
        return features[rows]
    # With a list torch would wait for the device.
    return features[torch.tensor(rows).pin_memory().to(features.device, non_blocking=True)]


class ResidualModel:
    def __init__(
        self,
        heads: ResidualHeads,
        linear: Callable[[Linear], Projection],
        embedding: torch.Tensor | None,
        ids: torch.Tensor | None,
        prefix: HeadModel | None = None,
    ) -> None:
        """`linear` makes one; heads may share them."""
        self.ids, self.reads_tokens, self.prefix = ids, heads.reads_tokens, prefix
        self._embedding = embedding
        make = functools.cache(linear)
        self._heads = [
            ([(make(block.linear), make(block.skip) if block.skip else None) for block in head.blocks], make(head.head))
            for head in heads.heads
        ]

    def __len__(self) -> int:
        """How many tokens it drafts."""
        return len(self._heads)

    def copy_page(self, source: int, target: int) -> None:
        """The heads have none."""
        if self.prefix is not None:
            self.prefix.copy_page(source, target)

    def page_memory(self) -> Sequence[PageTensor]:
        return [] if self.prefix is None else self.prefix.page_memory()

    def logits(self, index: int, hidden: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        """Of head `index` for each row of `hidden` [B, H], [B, its vocabulary]. `tokens` [B, index + 1], for heads that
        read them: the text's last token and the draft's so far."""
        x = hidden
        if self.reads_tokens:
            assert self._embedding is not None
            read = self._embedding[tokens.to(self._embedding.device)]  # [B, index + 1, H]
            x = torch.cat([x, read.flatten(1).to(x.dtype)], dim=1)
        blocks, head = self._heads[index]
        for linear, skip in blocks:
            x = (x if skip is None else skip(x)) + torch.nn.functional.silu(linear(x))
        return head(x)
