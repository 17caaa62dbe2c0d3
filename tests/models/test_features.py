"""Features: what each executor keeps at its taps is what transformers computes there, and nothing else changes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import parity
import pytest
import torch
from transformers import LlamaConfig, Qwen3MoeConfig

from models.batch import Stretch, make_batch
from models.cpu.executor import CpuExecutor
from models.executor import Output
from models.passes import forward
from models.plain import PlainExecutor
from models.taps import FINAL, check_taps

PAGE = parity.PAGE_TOKENS
TAPS = (2, FINAL, 0, 1)
FAMILIES: dict[str, tuple[type, dict[str, Any]]] = {
    "llama": (LlamaConfig, {}),
    "experts": (Qwen3MoeConfig, {"head_dim": 16, "num_experts": 8, "num_experts_per_tok": 2}),
    "a width that is no whole vector": (
        LlamaConfig, {"hidden_size": 72, "num_attention_heads": 3, "num_key_value_heads": 1},
    ),
}  # fmt: skip


def run(executor: Any, *stretches: Stretch) -> Output:
    made = executor.forward(make_batch(stretches, PAGE))
    return Output(made.logits.clone(), None if made.features is None else made.features.clone())


@parity.every_executor
@pytest.mark.parametrize("name", FAMILIES)
def test_features_are_those_of_transformers_for_every_row(
    name: str, make: parity.MakeExecutor, tmp_path: Path
) -> None:
    """A chunk of a prompt without wanted rows; then the rest of it beside another prompt."""
    family, changes = FAMILIES[name]
    theirs = parity.save_tiny(family, tmp_path, **changes)
    executor, pages = parity.load(tmp_path, make, taps=TAPS), parity.Pages()
    first, second = parity.random_tokens(50, 1), parity.random_tokens(9, 2)
    tables = pages.take(50), pages.take(9)
    expected = [parity.features_of(theirs, tokens, TAPS) for tokens in (first, second)]

    alone = run(executor, Stretch(first[:33], 0, tables[0], 33))
    parity.assert_close(alone.features, expected[0][:33], "features of a chunk")
    both = run(executor, Stretch(second, 0, tables[1], 8), Stretch(first[33:], 33, tables[0], 16))
    parity.assert_close(both.features, torch.cat([expected[1], expected[0][33:]]), "features of a mixed batch")


@parity.every_executor
@pytest.mark.parametrize("name", FAMILIES)
def test_what_the_head_reads_is_kept_of_the_wanted_rows_alone(
    name: str, make: parity.MakeExecutor, tmp_path: Path
) -> None:
    """Beside taps or not; and in as many calls as an executor needs for the rows."""
    family, changes = FAMILIES[name]
    theirs = parity.save_tiny(family, tmp_path, **changes)
    texts = [parity.random_tokens(count, count) for count in (9, 50, 30)]
    wanted = (8, 20, 30)
    expected = [parity.features_of(theirs, text, (FINAL,))[first:] for text, first in zip(texts, wanted, strict=True)]
    for taps in ((), TAPS):
        executor, pages = parity.load(tmp_path, make, taps=taps), parity.Pages()
        stretches = [
            Stretch(text, 0, pages.take(len(text)), first) for text, first in zip(texts, wanted, strict=True)
        ]
        whole = forward(executor, stretches, PAGE).final
        assert whole is not None
        parity.assert_close(whole, torch.cat(expected), "what the head reads")
        whole = whole.clone()
        executor.max_rows = 32
        parts = forward(executor, stretches, PAGE).final
        assert parts is not None
        parity.assert_close(parts, whole, "in parts")


def test_taps_are_the_hidden_states_of_transformers(tmp_path: Path) -> None:
    """The numbering that models/executor.py states."""
    theirs, tokens = parity.save_tiny(LlamaConfig, tmp_path), parity.random_tokens(20, 1)
    with torch.inference_mode():
        states = theirs(torch.tensor([tokens]), output_hidden_states=True).hidden_states
    expected = torch.cat([states[1][0], states[2][0], states[-1][0]], dim=1)
    executor = parity.load(tmp_path, PlainExecutor, taps=(0, 1, FINAL))
    parity.assert_close(run(executor, Stretch(tokens, 0, [3, 1], 20)).features, expected, "hidden states")


@pytest.mark.parametrize(
    ("make", "dtype"),
    [*((make, dtype) for make in (PlainExecutor, CpuExecutor) for dtype in ("float32", "bfloat16")),
     (CpuExecutor, "int8")],
)  # fmt: skip
def test_logits_have_the_same_bits_with_and_without_taps(make: Any, dtype: str, tmp_path: Path) -> None:
    parity.save_tiny(LlamaConfig, tmp_path)
    tokens, outputs = parity.random_tokens(40, 3), []
    for taps in ((), TAPS):
        executor = parity.load(tmp_path, make, dtype, taps=taps)
        outputs.append(run(executor, Stretch(tokens, 0, [5, 2, 9], 4)))
    without, tapped = outputs
    assert without.features is None and torch.equal(without.logits, tapped.logits)
    assert tapped.features is not None and tapped.features.shape == (40, 4 * 64)


@pytest.mark.parametrize(("dtype", "share"), [("bfloat16", 0.03), ("int8", 0.08)])
def test_features_of_fewer_bits_stay_close(dtype: str, share: float, tmp_path: Path) -> None:
    theirs, tokens = parity.save_tiny(LlamaConfig, tmp_path), parity.random_tokens(60, 3)
    expected = parity.features_of(theirs, tokens, TAPS)
    executor = parity.load(tmp_path, CpuExecutor, dtype, taps=TAPS)
    features = run(executor, Stretch(tokens, 0, [5, 2, 9, 1], 60)).features
    assert features is not None and features.dtype == executor._features.dtype
    assert (features.float() - expected).abs().mean() <= share * expected.abs().mean()


@pytest.mark.parametrize("make", [PlainExecutor, CpuExecutor])
def test_features_of_a_tree_come_in_the_order_of_its_tokens(make: Any, tmp_path: Path) -> None:
    """A row has the bits that it has at the end of a chain, beside others whose rows are elsewhere in the batch."""
    parity.save_tiny(LlamaConfig, tmp_path)
    executor, pages = parity.load(tmp_path, make, branch_pages=8, taps=TAPS), parity.Pages()
    text, draft, parents = parity.random_tokens(18, 1), [3, 4, 5, 6, 7], [-1, -1, 0, 1, 1]
    table, spare = pages.take(32), list(range(parity.PAGES, parity.PAGES + 8))
    run(executor, Stretch(text[:-1], 0, table, 17))
    before, after = (Stretch(parity.random_tokens(5, seed), 0, pages.take(5), 5) for seed in (2, 3))
    tree = Stretch([text[-1], *draft], 17, table, 0, parents, spare)
    found = run(executor, before, tree, after).features
    assert found is not None and len(found) == 5 + 6 + 5
    for row, path in ((0, []), (1, [3]), (2, [4]), (3, [3, 5]), (4, [4, 6]), (5, [4, 7])):
        chain = [*text, *path]
        alone = run(executor, Stretch(chain, 0, parity.Pages().take(32), len(chain))).features
        assert alone is not None and torch.equal(found[5 + row], alone[-1])
    for stretch, rows in ((before, found[:5]), (after, found[11:])):
        beside = run(executor, stretch).features
        assert beside is not None and torch.equal(rows, beside)


@pytest.mark.parametrize("taps", [(3,), (-1,), ("last",), (1.0,), (0, 0), (FINAL, FINAL)])
def test_a_tap_that_the_network_lacks_is_refused(taps: tuple[Any, ...]) -> None:
    with pytest.raises(ValueError, match=r"tap.*layer, 0 to 2|twice"):
        check_taps(taps, 3)
