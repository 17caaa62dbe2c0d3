"""Draft trees: each row has the bits that it has in a chain, and an accepted path is stored as a chain's would be."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import parity
import pytest
import torch
from transformers import DeepseekV3Config, LlamaConfig

from models.batch import Stretch, make_batch, tree_slots
from models.branches import Branch, branches_of, own_pages
from models.cpu.executor import CpuExecutor
from models.executor import Executor
from models.plain import PlainExecutor

PAGE = parity.PAGE_TOKENS
SPARE = 64


def test_what_follows_first_goes_on_and_what_follows_besides_branches() -> None:
    #   t ─ a ─ c ─ e          rows 0 1 3 5
    #     └ b ─ d              rows 2 4
    assert branches_of([-1, -1, 0, 1, 2]) == [Branch([0, 1, 3, 5], 0, -1), Branch([2, 4], 1, 0)]
    assert branches_of([]) == [Branch([0], 0, -1)]
    assert branches_of([-1, 0, 1]) == [Branch([0, 1, 2, 3], 0, -1)]
    assert branches_of([-1, 0, 0, 2]) == [Branch([0, 1, 2], 0, -1), Branch([3, 4], 2, 0)]


def test_a_branch_has_pages_of_its_own_from_where_it_begins() -> None:
    assert own_pages([-1, 0, 1], 14, 16) == 0
    assert own_pages([-1, -1], 14, 16) == 1
    assert own_pages([-1, -1, 0, 1], 14, 16) == 2
    # It begins on a page: nothing of the text need be there again.
    assert own_pages([-1, -1], 15, 16) == 1


def random_tree(chance: random.Random, most: int) -> list[int]:
    """Some like bushes, some like chains."""
    bushy = chance.random()
    return [i - 1 if chance.random() > bushy else chance.randrange(-1, i) for i in range(chance.randint(1, most))]


def path_to(row: int, parents: list[int]) -> list[int]:
    path = []
    while row:
        path.append(row)
        row = parents[row - 1] + 1
    return path[::-1]


def kept(executor: Any) -> list[torch.Tensor]:
    if isinstance(executor, CpuExecutor):
        return list(executor._pages)
    parts = [layer.attention for layer in executor._layers]
    return [tensor for part in parts for name, tensor in vars(part).items() if name in ("_keys", "_values", "_latents")]


def forward(executor: Executor, *stretches: Stretch) -> torch.Tensor:
    return executor.forward(make_batch(stretches, PAGE)).logits.clone()


CASES = [
    pytest.param(CpuExecutor, LlamaConfig, "bfloat16", id="compiled bfloat16"),
    pytest.param(CpuExecutor, LlamaConfig, "float32", id="compiled float32"),
    pytest.param(CpuExecutor, LlamaConfig, "int8", id="compiled int8"),
    pytest.param(CpuExecutor, DeepseekV3Config, "bfloat16", id="compiled latent"),
    pytest.param(PlainExecutor, LlamaConfig, "float32", id="plain"),
    pytest.param(PlainExecutor, DeepseekV3Config, "float32", id="plain latent"),
]


def tiny(family: type, folder: Path) -> None:
    if family is DeepseekV3Config:
        parity.save_tiny(
            family, folder, q_lora_rank=24, kv_lora_rank=32, qk_nope_head_dim=16, qk_rope_head_dim=8, v_head_dim=16,
            num_key_value_heads=4, first_k_dense_replace=9,
        )  # fmt: skip
    else:
        parity.save_tiny(family, folder)


@pytest.mark.parametrize(("make", "family", "dtype"), CASES)
def test_every_row_of_a_tree_has_the_bits_it_has_in_a_chain(
    make: Any, family: type, dtype: str, tmp_path: Path
) -> None:
    tiny(family, tmp_path)
    executor = parity.load(tmp_path, make, dtype, branch_pages=SPARE)
    chance = random.Random(3)
    spare = list(range(parity.PAGES, parity.PAGES + SPARE))
    # Plain torch computes row by row.
    for turn in range(24 if make is CpuExecutor else 12):
        pages = parity.Pages()
        text = parity.random_tokens(chance.choice([1, 14, 15, 16, 17, 18, 31, 40, 90]), turn)
        parents = random_tree(chance, 14)
        guesses = [chance.randrange(parity.VOCABULARY) for _ in parents]
        table = pages.take(len(text) + len(guesses))
        beside = Stretch(parity.random_tokens(9, turn), 0, pages.take(9), 8)
        stale(executor, spare)
        if text[:-1]:
            forward(executor, Stretch(text[:-1], 0, table, len(text) - 1))
        tree = Stretch([text[-1], *guesses], len(text) - 1, table, 0, parents, spare)
        found = forward(executor, beside, tree)[1:] if turn % 2 else forward(executor, tree)
        row = chance.randint(0, len(guesses))
        path = path_to(row, parents)
        slots = tree_slots(tree, PAGE)
        main = [table[p // PAGE] * PAGE + p % PAGE for p in range(len(text), len(text) + len(path))]
        executor.move([(int(slots[r]), to) for r, to in zip(path, main, strict=True) if int(slots[r]) != to])
        moved = [tensor.clone() for tensor in kept(executor)]
        for leaf in range(len(guesses) + 1):
            chain = [text[-1], *(guesses[r - 1] for r in path_to(leaf, parents))]
            last = forward(executor, Stretch(chain, len(text) - 1, table, len(chain) - 1))
            assert torch.equal(last[0], found[leaf])
        for tensor in kept(executor):
            tensor.zero_()
        whole = text + [guesses[r - 1] for r in path]
        forward(executor, Stretch(whole, 0, table, len(whole)))
        for before, chain_kept in zip(moved, kept(executor), strict=True):
            written = chain_kept != 0
            assert written.any() and torch.equal(before[written], chain_kept[written])


def stale(executor: Any, pages: list[int]) -> None:
    """What is left of other trees."""
    for tensor in kept(executor):
        tensor[pages] = torch.randint(0, 60, tensor[pages].shape).to(tensor.dtype)


def test_a_tree_without_pages_for_its_branches_is_a_mistake_of_ours(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="pages for every branch"):
        make_batch([Stretch([1, 2, 3], 3, [0], 0, [-1, -1])], PAGE)
