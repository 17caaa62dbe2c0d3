"""The GPU executor split over two ranks, in Triton's interpreter, which the ranks use in turns."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from kernels import interpreter
from models.batch import Stretch
from tests.models.gpu.interpreted import FAMILIES, on_cpu, save

sys.path.insert(0, str(Path(__file__).parents[1]))
import parity
import ranks

pytestmark = pytest.mark.skipif(not interpreter.in_use(), reason="about the interpreter's device")


@pytest.mark.parametrize("name", FAMILIES)
def test_two_ranks_give_the_logits_of_transformers(name: str, tmp_path: Path) -> None:
    theirs = save(name, tmp_path)
    tokens, other = parity.random_tokens(14, 1), parity.random_tokens(3, 2)
    pages = parity.Pages()
    first, second = pages.take(32), pages.take(16)
    with ranks.split(tmp_path, 2, on_cpu, meet=ranks.in_turns) as split:
        split.executors[0].prepare()
        parity.run(split, [Stretch(tokens[:9], 0, first, 9)])
        logits = parity.run(split, [Stretch(tokens[9:], 9, first, 1), Stretch(other, 0, second, 0)])
        assert all("no CUDA graphs" in each.path for each in split.executors)
    expected = torch.cat([parity.logits_of(theirs, tokens)[10:], parity.logits_of(theirs, other)])
    parity.assert_close(logits, expected, "two ranks")
