"""Trees of draft tokens on the GPU executor: rows as plain torch computes them, with the bits that they have in chains,
and an accepted path stored as a chain's would be. In Triton's interpreter, so there are few rows.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from kernels import interpreter
from models.batch import Stretch, make_batch, tree_slots
from models.gpu.executor import GpuExecutor
from models.gpu.graphs import GraphSizes
from models.plain import PlainExecutor
from models.taps import FINAL
from tests.models.gpu.interpreted import FAMILIES, on_cpu, save

sys.path.insert(0, str(Path(__file__).parents[1]))
import parity

pytestmark = pytest.mark.skipif(not interpreter.in_use(), reason="tests/gpu has the same for a GPU")

PAGE = parity.PAGE_TOKENS
SPARE = list(range(parity.PAGES, parity.PAGES + 8))
#   14 ─ 3 ─ 5 ─ 8        two branches from the root, one from the first draft token; all reach into the next page
#      │   └ 6
#      └ 4 ─ 7
DRAFT, PARENTS = [3, 4, 5, 6, 7, 8], [-1, -1, 0, 0, 1, 2]
# To the leaves: each row is on one of them.
PATHS: dict[int, list[int]] = {4: [1, 4], 5: [2, 5], 6: [1, 3, 6]}
NAMES = list(FAMILIES)


def tree_after(text: list[int], pages: list[int]) -> Stretch:
    return Stretch([text[-1], *DRAFT], len(text) - 1, pages, 0, PARENTS, SPARE)


def spoiled(executor: GpuExecutor) -> None:
    """What the pages of branches hold before a step must not matter."""
    for kept in executor._pages._kept:
        kept[:, :, SPARE] = 50.0


@pytest.mark.parametrize("name", NAMES)
def test_rows_of_a_tree_beside_others_are_those_of_plain_torch(name: str, tmp_path: Path) -> None:
    """Twice in a batch, whose order is not that of the tokens; with features, which come in the order of the tokens."""
    save(name, tmp_path)
    text, other = parity.random_tokens(15, 1), parity.random_tokens(3, 2)
    tables = [[3, 9], [4, 5], [6]]
    batches = [
        make_batch([Stretch(text[:-1], 0, tables[0], 14), Stretch(text[:-2], 0, tables[1], 13)], PAGE),
        make_batch(
            [
                tree_after(text, tables[0]),
                Stretch(other, 0, tables[2], 2),
                Stretch([text[-2], 9, 10], 13, tables[1], 0, [-1, -1], SPARE[6:]),
            ],
            PAGE,
        ),
    ]
    plain = parity.load(tmp_path, PlainExecutor, branch_pages=8, strict=False, taps=(0, FINAL))
    ours = parity.load(tmp_path, on_cpu, branch_pages=8, taps=(0, FINAL))
    spoiled(ours)
    for batch in batches:
        expected, found = plain.forward(batch), ours.forward(batch)
    parity.assert_close(found.logits, expected.logits, "a tree beside others")
    assert found.features is not None and expected.features is not None
    parity.assert_close(found.features, expected.features, "features of a tree")


@pytest.mark.parametrize("name", [NAMES[1], NAMES[3]])
def test_every_row_of_a_tree_has_the_bits_it_has_in_a_chain(name: str, tmp_path: Path) -> None:
    """And, padded as for a graph, the same again; what is moved of an accepted path is what the chain stores."""
    save(name, tmp_path)
    executor = parity.load(tmp_path, on_cpu, branch_pages=8)
    assert executor.branches
    text, table = parity.random_tokens(15, 1), [3, 9]
    tree = tree_after(text, table)
    executor.forward(make_batch([Stretch(text[:-1], 0, table, 14)], PAGE))
    spoiled(executor)
    found = executor.forward(make_batch([tree], PAGE)).logits.clone()
    spoiled(executor)
    executor._fork(executor._small.put(make_batch([tree], PAGE), 8))
    executor._run_fixed(GraphSizes(8, 8))
    assert executor._logits[:7].tolist() == found.tolist()

    slots = tree_slots(tree, PAGE)
    accepted = PATHS[5]
    own = [table[p // PAGE] * PAGE + p % PAGE for p in range(15, 17)]
    executor.move([(int(slots[row]), to) for row, to in zip(accepted, own, strict=True)])
    moved = [kept[:, :, table].clone() for kept in executor._pages._kept]
    for leaf in (5, 4, 6):
        rows = [0, *PATHS[leaf]]
        chain = [text[-1], *(DRAFT[row - 1] for row in PATHS[leaf])]
        logits = executor.forward(make_batch([Stretch(chain, 14, table, 0)], PAGE)).logits
        assert logits.tolist() == found[rows].tolist(), leaf
        if leaf == 5:
            for kept, before in zip(executor._pages._kept, moved, strict=True):
                # The last page ends with what rows 3 and 6 left there.
                tokens, were = kept[:, :, table].movedim(-2, 0), before.movedim(-2, 0)
                assert torch.equal(tokens[:, :, :, 0], were[:, :, :, 0])
                assert torch.equal(tokens[0, :, :, 1], were[0, :, :, 1])


def test_large_steps_take_trees_as_small_ones_do(tmp_path: Path) -> None:
    """The inputs of steps that no graph replays."""
    save("llama", tmp_path)
    executor = parity.load(tmp_path, on_cpu, branch_pages=8)
    text, table = parity.random_tokens(15, 1), [3, 9]
    executor.forward(make_batch([Stretch(text[:-1], 0, table, 14)], PAGE))
    batch = make_batch([tree_after(text, table)], PAGE)
    expected = executor.forward(batch).logits.clone()
    spoiled(executor)
    step = executor._large.put(batch, 7)
    executor._fork(step)
    assert executor._run(step, 7, None, None).tolist() == expected.tolist()
