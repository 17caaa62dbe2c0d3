"""The GPU executor on tiny models of every kind of network, in Triton's interpreter: what it computes is what
transformers computes. The interpreter takes about a tenth of a second for a row, so there are few of them.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from kernels import interpreter
from models.batch import Stretch, make_batch
from models.executor import Executor, Options
from models.gpu.graphs import GraphSizes
from models.taps import FINAL
from tests.models.gpu.interpreted import FAMILIES, HYBRIDS, on_cpu, save

sys.path.insert(0, str(Path(__file__).parents[1]))
import parity

pytestmark = pytest.mark.skipif(not interpreter.in_use(), reason="tests/gpu has the same for a GPU")

@pytest.mark.parametrize("name", FAMILIES | HYBRIDS)
def test_logits_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    """A prompt; then, in one batch, a chunk that follows it, a draft of another text and a new prompt."""
    theirs = save(name, tmp_path)
    executor, pages = parity.load(tmp_path, on_cpu), parity.Pages()
    first, second, third = (parity.random_tokens(count, seed) for count, seed in ((20, 1), (5, 2), (2, 3)))
    tables = [pages.take(32), pages.take(32), pages.take(16)]
    parity.run(executor, [Stretch(first[:17], 0, tables[0], 17), Stretch(second[:3], 0, tables[1], 2)])
    mixed = [
        Stretch(first[17:], 17, tables[0], 1),
        Stretch(second[3:], 3, tables[1], 0),
        Stretch(third, 0, tables[2], 0),
    ]
    texts = ((first, 18), (second, 3), (third, 0))
    expected = torch.cat([parity.logits_of(theirs, text)[wanted:] for text, wanted in texts])
    parity.assert_close(parity.run(executor, mixed), expected, "a mixed batch")
    if name in FAMILIES:
        _check_copied_page(executor, pages, tables[2], third, theirs)


def _check_copied_page(
    executor: Executor, pages: parity.Pages, table: list[int], tokens: list[int], theirs: Any
) -> None:
    """What is written into a page's copy is not seen in the page."""
    (copy,) = pages.take(1)
    executor.copy_page(table[0], copy)
    parity.run(executor, [Stretch([tokens[0]], 1, [copy], 0)])
    for page, text in ((table[0], tokens), (copy, [tokens[0], tokens[0]])):
        logits = parity.run(executor, [Stretch([7], 2, [page], 0)])
        parity.assert_close(logits, parity.logits_of(theirs, [*text, 7])[2:], "beside a copied page, and on it")


@pytest.mark.parametrize(
    ("name", "dtype"),
    [("norms of heads, a window in one layer", "bfloat16"), ("latent attention, experts in groups", "float32")],
)
def test_a_row_has_the_same_bits_alone_and_beside_others(name: str, dtype: str, tmp_path: Path) -> None:
    save(name, tmp_path)
    executor, pages = parity.load(tmp_path, on_cpu, dtype), parity.Pages()
    assert executor.strict
    tokens, others = parity.random_tokens(5, 5), parity.random_tokens(3, 6)
    table, again, other = pages.take(16), pages.take(16), pages.take(16)
    whole = executor.forward(
        make_batch([Stretch(others, 0, other, 3), Stretch(tokens, 0, table, 3)], parity.PAGE_TOKENS)
    ).logits.clone()
    executor.forward(make_batch([Stretch(tokens[:3], 0, again, 3)], parity.PAGE_TOKENS))
    steps = [parity.run(executor, [Stretch([tokens[at]], at, again, 0)]) for at in (3, 4)]
    assert torch.cat(steps).tolist() == whole.tolist()


# Features are taken between layers, whatever these are: of all families among the slow tests.
@pytest.mark.parametrize(
    "name",
    [each if each in ("llama", "sinks, experts with biases") else pytest.param(each, marks=pytest.mark.slow)
     for each in FAMILIES | HYBRIDS],
)  # fmt: skip
def test_features_are_those_of_transformers_and_logits_keep_their_bits(name: str, tmp_path: Path) -> None:
    """Rows without logits among them; and the same for a step that is padded as a graph's is."""
    theirs, taps = save(name, tmp_path), (1, FINAL, 0)
    first, second = parity.random_tokens(3, 1), parity.random_tokens(2, 2)
    batch = make_batch([Stretch(first, 0, [3], 2), Stretch(second, 0, [8], 2)], parity.PAGE_TOKENS)
    expected = torch.cat([parity.features_of(theirs, tokens, taps) for tokens in (first, second)])
    without = parity.load(tmp_path, on_cpu).forward(batch)
    executor = parity.load(tmp_path, on_cpu, taps=taps)
    tapped = executor.forward(batch)
    parity.assert_close(tapped.features, expected, "features")
    last = parity.features_of(theirs, first, (FINAL,))[2:]
    parity.assert_close(without.final, last, "what the head reads")
    assert tapped.final.tolist() == without.final.tolist()
    assert without.features is None and tapped.logits.tolist() == without.logits.tolist()
    executor._small.put(batch, 8)
    executor._features.fill_(torch.nan)
    executor._final.fill_(torch.nan)
    executor._run_fixed(GraphSizes(8, 8))
    assert executor._features[:5].tolist() == tapped.features.tolist()
    assert executor._logits[:1].tolist() == tapped.logits.tolist()
    assert executor._final[:1].tolist() == tapped.final.tolist()


def test_int8_stays_close(tmp_path: Path) -> None:
    theirs = save("llama", tmp_path)
    executor, tokens = parity.load(tmp_path, on_cpu, "int8"), parity.random_tokens(6, 3)
    logits = parity.run(executor, [Stretch(tokens, 0, [3], 0)])
    expected = parity.logits_of(theirs, tokens)
    assert (logits - expected).abs().mean() <= 0.06 * expected.abs().mean()


def test_what_runs_is_told_and_counted(tmp_path: Path) -> None:
    save("llama", tmp_path)
    executor = parity.load(tmp_path, on_cpu, strict=False)
    assert executor.path == "Triton interpreted on cpu, CUDA graphs up to 256 rows, 8 linears float32 (torch)"
    assert not executor.strict
    executor.forward(make_batch([Stretch([1], 0, [0], 0)], parity.PAGE_TOKENS))
    assert executor.steps == {"graph": 1}
    assert executor.page_bytes(executor._network, Options("bfloat16", 0, 16, 256)) == 2 * 2 * 2 * 16 * 16 * 2


def test_a_step_filled_up_for_a_graph_gives_the_same_bits(tmp_path: Path) -> None:
    """What a graph replays is this call; only the replaying needs a GPU."""
    save("experts", tmp_path)
    executor, pages = parity.load(tmp_path, on_cpu), parity.Pages()
    tokens, table, again = parity.random_tokens(3, 5), pages.take(16), pages.take(16)
    expected = executor.forward(make_batch([Stretch(tokens, 0, table, 1)], parity.PAGE_TOKENS)).logits
    executor._small.put(make_batch([Stretch(tokens, 0, again, 1)], parity.PAGE_TOKENS), 4)
    executor._run_fixed(GraphSizes(4, 4))
    assert executor._logits[:2].tolist() == expected.tolist()
