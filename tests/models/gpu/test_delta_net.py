"""States of sequences through the GPU executor, in Triton's interpreter or on a GPU: as rows are drafted, accepted and
taken back, in steps that are graphs and in steps that aren't."""

from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Qwen3_5TextConfig

from models.batch import Stretch, make_batch
from models.gpu.delta_net import GpuDeltaNet
from models.gpu.executor import GpuExecutor
from models.memory import state_bytes
from tests.models.gpu.interpreted import anywhere

sys.path.insert(0, str(Path(__file__).parents[1]))
import parity

pytestmark = pytest.mark.shows("hybrid models (Qwen3-Next, Qwen3.5) on a GPU", "interpreted")

LONGEST, TOKENS = 3, 128
SMALL: dict[str, Any] = {
    "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2, "head_dim": 16, "num_attention_heads": 1,
    "num_key_value_heads": 1, "linear_num_key_heads": 1, "linear_num_value_heads": 2, "linear_key_head_dim": 8,
    "linear_value_head_dim": 12, "layer_types": ["linear_attention", "full_attention"],
}  # fmt: skip


@pytest.fixture(scope="module")
def executor(tmp_path_factory: pytest.TempPathFactory) -> GpuExecutor:
    folder = tmp_path_factory.mktemp("hybrid")
    parity.save_tiny(Qwen3_5TextConfig, folder, **SMALL)
    sizes = {"pages": 3, "page_tokens": TOKENS, "states": 3, "longest_draft": LONGEST, "graph_rows": 4}
    return parity.load(folder, anywhere, **sizes)


def run(executor: GpuExecutor, *parts: tuple[int, int, list[int], int]) -> torch.Tensor:
    """Logits of the rows of texts: text, position of the first row, tokens, settled up to. A text's state isn't its
    page."""
    stretches = [
        Stretch(tokens, start, [text], 0, state=2 - text, settled=settled) for text, start, tokens, settled in parts
    ]
    return executor.forward(make_batch(stretches, TOKENS)).logits.clone()


def states(executor: GpuExecutor, text: int) -> torch.Tensor:
    (net,) = (each.attention for each in executor._layers if isinstance(each.attention, GpuDeltaNet))
    return net._memory.states[2 - text].clone()


def test_rows_and_states_have_the_bits_of_plain_decoding_whatever_was_taken_back_before(executor: GpuExecutor) -> None:
    source, at = random.Random(4), 9
    text = parity.random_tokens(70, 4)
    whole = run(executor, (0, 0, text[:at], at))
    first, second = run(executor, (1, 0, text[:4], 4)), run(executor, (1, 4, text[4:at], at))
    assert torch.equal(torch.cat([first, second]), whole) and torch.equal(states(executor, 0), states(executor, 1))
    executor.steps.clear()
    rejected = 0
    for _ in range(24):
        length = source.randrange(LONGEST + 1)
        accepted = source.randint(0, length)
        wrong = [(token + 1) % parity.VOCABULARY for token in text[at + 1 + accepted : at + 1 + length]]
        # The same text is decoded beside it, row by row.
        found, plain = [], []
        for row in range(accepted + 1):
            parts = [(1, at + row, [text[at + row]], at + row + 1)]
            if row == 0:
                parts.append((0, at, text[at : at + 1 + accepted] + wrong, at + 1))
            logits = run(executor, *parts)
            if row == 0:
                found = logits[1 : accepted + 2]
                assert torch.equal(states(executor, 0), states(executor, 1))
            plain.append(logits[:1])
        assert torch.equal(torch.cat(plain), found)
        at, rejected = at + accepted + 1, rejected + length - accepted
    assert at > 40 and rejected > 10
    assert executor.steps["graph"] > 10 and executor.steps["eager"] > 3


def test_a_copied_state_goes_on_as_the_one_it_was_copied_from(executor: GpuExecutor) -> None:
    run(executor, (0, 0, [5, 6, 7, 8, 9], 4))
    executor.copy_page(0, 1)
    executor.copy_state(2, 1)
    # Text 0 goes another way, which the copy doesn't notice; its draft of one token can be taken back, too.
    run(executor, (0, 5, [1, 1, 1], 8))
    found = run(executor, (1, 4, [2, 4], 6))
    assert torch.equal(found, run(executor, (2, 0, [5, 6, 7, 8, 2, 4], 6))[4:])


def test_a_text_that_begins_again_forgets_the_state_of_the_last_one(executor: GpuExecutor) -> None:
    fresh = run(executor, (2, 0, [5, 6], 2))
    run(executor, (2, 0, [9, 9, 9], 3))
    assert torch.equal(run(executor, (2, 0, [5, 6], 2)), fresh)


def test_a_sequence_that_goes_on_where_nothing_is_kept_is_an_error(executor: GpuExecutor) -> None:
    run(executor, (2, 0, [5, 6, 7, 8], 2))
    with pytest.raises(AssertionError, match="within what is kept"):
        run(executor, (2, 1, [9], -1))


def test_memory_is_what_the_plan_counts(executor: GpuExecutor) -> None:
    (net,) = (each.attention for each in executor._layers if isinstance(each.attention, GpuDeltaNet))
    kept = net._memory.states.nbytes + net._memory.inputs.nbytes
    assert kept == 3 * state_bytes(executor._network, 4, LONGEST)
