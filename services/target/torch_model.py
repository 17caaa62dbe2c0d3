"""TorchModel: a network, its KV pages and its facts, for the runner. Knows no scheduler and no sockets.

`forward` takes rows of any sequences at once: prefill chunks, drafts to verify and single decode steps are
the same thing, tokens at positions whose keys and values go to given pages. Rejected drafts need no undoing:
the next call overwrites their positions, and no row looks past its own.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from models.batch import Stretch, make_batch
from models.config import read_config
from models.layers.packed_linear import can_pack
from models.registry import family
from models.sources import ModelError, check_folder
from models.weights import Weights


@dataclass(slots=True)
class ForwardRows:
    """Tokens of one sequence at positions start..start+len-1. `pages` covers all positions up to the last
    of them; logits are wanted for tokens logits_from.. (== len(tokens): none)."""

    tokens: list[int]
    start: int
    pages: list[int]
    logits_from: int


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What is known of a model once it is loaded."""

    vocab_size: int
    max_context: int
    eos_token_ids: tuple[int, ...]
    page_tokens: int
    pages: int
    dtype: str
    parameters: int
    path_name: str
    # What really runs, in a few words, and whether its rows have the same bits in any batch.
    path: str = "packed linears"
    strict: bool = True


class TorchModel:
    def __init__(self, network: object, facts: ModelFacts) -> None:
        self.facts = facts
        self._network = network

    def forward(self, rows: Sequence[ForwardRows]) -> torch.Tensor:
        """Logits of the wanted rows, in the given order: float32 [wanted, vocab_size].

        A row's logits have the same bits whatever is computed beside it, and however its prompt was cut.
        """
        for item in rows:
            self._assert_covered(item)
        # OpenMP counts threads per calling thread; asking makes torch apply our number in this one.
        torch.get_num_threads()
        logits = [
            self._network.forward(make_batch(part, self.facts.page_tokens))  # type: ignore[attr-defined]
            for part in _parts(rows, self._network.max_rows)  # type: ignore[attr-defined]
        ]
        if not logits:
            return torch.empty(0, self.facts.vocab_size)
        return logits[0] if len(logits) == 1 else torch.cat(logits)

    def copy_page(self, source: int, target: int) -> None:
        assert 0 <= source < self.facts.pages and 0 <= target < self.facts.pages
        self._network.copy_page(source, target)  # type: ignore[attr-defined]

    def _assert_covered(self, item: ForwardRows) -> None:
        end = item.start + len(item.tokens)
        assert item.tokens and item.start >= 0 and end <= self.facts.max_context
        assert len(item.pages) * self.facts.page_tokens >= end
        assert min(item.pages) >= 0 and max(item.pages) < self.facts.pages
        assert min(item.tokens) >= 0 and max(item.tokens) < self.facts.vocab_size
        assert 0 <= item.logits_from <= len(item.tokens)


def _parts(rows: Sequence[ForwardRows], limit: int) -> list[list[Stretch]]:
    """Cut the rows into calls of at most `limit`; a sequence may go on in the next one."""
    parts: list[list[Stretch]] = []
    room = 0
    for item in rows:
        first = 0
        while first < len(item.tokens):
            if room == 0:
                parts.append([])
                room = limit
            tokens = item.tokens[first : first + room]
            wanted_from = min(max(item.logits_from - first, 0), len(tokens))
            parts[-1].append(Stretch(tokens, item.start + first, item.pages, wanted_from))
            first += len(tokens)
            room -= len(tokens)
    return parts


def load_torch_model(
    folder: Path, *, dtype: str, threads: int, page_tokens: int, kv_cache_bytes: int, max_context: int
) -> TorchModel:
    """Load a checked Hugging Face folder. Raises `ModelError`.

    dtype: bfloat16, float32, or auto (bfloat16 where the CPU has it in hardware). threads and max_context: 0
    for one per core, and for what the model was trained for.
    """
    check_folder(folder)
    config = read_config(folder)
    threads = threads or len(os.sched_getaffinity(0))
    torch.set_num_threads(threads)
    torch_dtype = _dtype(dtype)
    if page_tokens % 8:
        raise ModelError(f"page_tokens is {page_tokens}", "use a multiple of 8")
    page_bytes = page_tokens * 2 * config.layers * config.kv_heads * config.head_dim * torch_dtype.itemsize
    pages = kv_cache_bytes // page_bytes
    if pages < 1:
        raise ModelError(f"{kv_cache_bytes} bytes of KV cache hold no page", f"one page takes {page_bytes} bytes")
    context = min(max_context or config.max_context, config.max_context)
    network = family(config.architecture)(
        config,
        Weights(folder),
        dtype=torch_dtype,
        pages=pages,
        page_tokens=page_tokens,
        max_context=context,
        threads=threads,
    )
    facts = ModelFacts(
        vocab_size=config.vocab_size,
        max_context=context,
        eos_token_ids=config.eos_token_ids,
        page_tokens=page_tokens,
        pages=pages,
        dtype=str(torch_dtype).removeprefix("torch."),
        parameters=network.parameters,
        path_name=folder.name,
    )
    model = TorchModel(network, facts)
    # Compiles the loops, or reads them from disk: the first request shouldn't wait for that. Page 0 is free yet.
    model.forward([ForwardRows([0], 0, [0], 0)])
    return model


def _dtype(name: str) -> torch.dtype:
    if name == "auto":
        return torch.bfloat16 if can_pack(torch.bfloat16) else torch.float32
    if name not in ("bfloat16", "float32"):
        raise ModelError(f"dtype is {name!r}", "use auto, bfloat16 or float32")
    return torch.bfloat16 if name == "bfloat16" else torch.float32
