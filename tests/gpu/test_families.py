"""Every kind of network on a GPU: tiny random models say what transformers says in float32, however a text is cut.
Everything is skipped where there is no GPU; tests/models/gpu has the same in Triton's interpreter.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from tests.models.gpu import interpreted

sys.path.insert(0, str(Path(__file__).parents[1] / "models"))
import parity

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU"),
    pytest.mark.shows("hybrid models (Qwen3-Next, Qwen3.5) on a GPU", "tested"),
]


@pytest.mark.parametrize("name", [*interpreted.HYBRIDS, *interpreted.FAMILIES])
def test_logits_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    # transformers takes rows of a delta net together: of large weights its own roundings grow beyond the tolerance.
    more = {"initializer_range": 0.03} if name in interpreted.HYBRIDS else {}
    theirs = interpreted.save(name, tmp_path, **more)
    parity.check_parity(theirs, tmp_path, {"gpu": interpreted.anywhere})
