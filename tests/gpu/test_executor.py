"""The GPU executor on a GPU: the embedded model says what it says on a CPU in float32, and what a graph, a batch or a
copied page may not change stays bit by bit. Everything is skipped where there is no GPU.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from models.batch import Stretch, make_batch, tree_slots
from models.config import read_network
from models.executor import Executor, Options
from models.plain import PlainExecutor
from models.sources import ensure_model
from models.taps import FINAL
from models.weights import Weights

pytestmark = [
    pytest.mark.model,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU"),
]
PAGES, PAGE_TOKENS, CONTEXT = 128, 32, 1024
PROMPT = [1, 9690, 198, 2683, 359, 253, 5356, 5646, 11173, 3365, 3511, 308, 34519, 28, 7018, 411, 407, 19712, 8182, 2]


@pytest.fixture(scope="module")
def folder() -> Path:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "specmesh"
    return ensure_model("smollm2-135m-instruct", cache)


def load(
    folder: Path, dtype: str = "bfloat16", strict: bool = True, graphs: bool = True, **changes: Any
) -> Executor:
    from models.gpu.executor import GpuExecutor

    options = Options(dtype, PAGES, PAGE_TOKENS, CONTEXT, strict=strict, **changes)
    return GpuExecutor(read_network(folder), Weights(folder), options, graphs=graphs)


@pytest.fixture(scope="module", params=["bfloat16", "float32", "int8"])
def executor(folder: Path, request: pytest.FixtureRequest) -> Iterator[Executor]:
    yield load(folder, request.param)
    torch.cuda.empty_cache()


def run(executor: Executor, *stretches: Stretch) -> torch.Tensor:
    return executor.forward(make_batch(stretches, PAGE_TOKENS)).logits.clone()


def text(count: int, seed: int) -> list[int]:
    return torch.randint(2, 40000, (count,), generator=torch.Generator().manual_seed(seed)).tolist()


def pages(first: int, tokens: int) -> list[int]:
    return list(range(first, first + -(-tokens // PAGE_TOKENS)))


def greedy(executor: Executor, prompt: list[int], count: int) -> list[int]:
    own, said, fresh, start = pages(0, len(prompt) + count), [], prompt, 0
    for _ in range(count):
        token = int(run(executor, Stretch(fresh, start, own, len(fresh) - 1))[0].argmax())
        start += len(fresh)
        fresh, said = [token], [*said, token]
    return said


def test_float32_text_is_that_of_plain_torch_on_a_cpu(folder: Path) -> None:
    options = Options("float32", PAGES, PAGE_TOKENS, CONTEXT, strict=False)
    expected = greedy(PlainExecutor(read_network(folder), Weights(folder), options), PROMPT, 64)
    for strict in (True, False):
        assert greedy(load(folder, "float32", strict), PROMPT, 64) == expected


def test_bfloat16_logits_are_near_those_of_float32(folder: Path) -> None:
    tokens = text(200, 1)
    options = Options("float32", PAGES, PAGE_TOKENS, CONTEXT, strict=False)
    plain = PlainExecutor(read_network(folder), Weights(folder), options)
    expected = run(plain, Stretch(tokens, 0, pages(0, 200), 0))
    for strict in (True, False):
        logits = run(load(folder, strict=strict), Stretch(tokens, 0, pages(0, 200), 0)).cpu()
        assert (logits - expected).abs().mean() <= 0.03 * expected.abs().mean()


def test_features_of_a_graph_are_those_of_the_same_step_without_one_and_logits_keep_their_bits(folder: Path) -> None:
    tokens, own, taps = text(300, 11), pages(0, 300), (1, 14, 26, FINAL)
    ways = [load(folder, graphs=graphs, taps=taps) for graphs in (True, False)]
    plain = load(folder)
    for rows in (1, 3, 40, 256, 300):
        batch = make_batch([Stretch(tokens[:rows], 0, own, rows - 1)], PAGE_TOKENS)
        graph, eager = (way.forward(batch) for way in ways)
        assert torch.equal(graph.features, eager.features) and torch.equal(graph.logits, eager.logits), rows
        assert torch.equal(plain.forward(batch).logits, graph.logits), rows
    options = Options("float32", PAGES, PAGE_TOKENS, CONTEXT, strict=False, taps=taps)
    expected = PlainExecutor(read_network(folder), Weights(folder), options).forward(
        make_batch([Stretch(tokens[:40], 0, own, 39)], PAGE_TOKENS)
    )
    found = ways[0].forward(make_batch([Stretch(tokens[:40], 0, own, 39)], PAGE_TOKENS)).features.cpu().float()
    assert (found - expected.features).abs().mean() <= 0.03 * expected.features.abs().mean()


def test_steps_of_few_rows_are_replayed_and_large_ones_run_as_they_are(executor: Executor) -> None:
    executor.steps.clear()
    run(executor, Stretch(text(300, 2), 0, pages(0, 300), 299))
    run(executor, Stretch([5], 300, pages(0, 301), 0))
    assert executor.steps == {"eager": 1, "graph": 1}
    assert "CUDA graphs up to 256 rows" in executor.path


def test_a_graph_gives_the_bits_of_the_same_step_without_one(folder: Path) -> None:
    """Every bucket, and row counts that are filled up to it."""
    ways, tokens = [load(folder, graphs=graphs) for graphs in (True, False)], text(300, 3)
    for rows in (1, 2, 3, 5, 12, 17, 40, 100, 200, 256):
        own = pages(0, 300)
        logits = []
        for way in ways:
            run(way, Stretch(tokens[:20], 0, own, 20))
            logits.append(run(way, Stretch(tokens[20 : 20 + rows], 20, own, 0)))
        assert torch.equal(*logits), rows
    assert ways[1].steps == {"eager": 20}


def test_a_row_has_the_same_bits_whatever_is_beside_it_and_however_its_prompt_was_cut(executor: Executor) -> None:
    """600 positions: two splits of attention. Chunks above and below the largest graph; batches of one to many."""
    assert executor.strict
    tokens, own = text(620, 4), pages(0, 620)
    run(executor, Stretch(tokens[:600], 0, own, 600))
    alone = torch.cat([run(executor, Stretch([tokens[at]], at, own, 0)) for at in range(600, 620)])
    for cut in (1, 7, 64, 255, 512):
        for start in range(0, 600, cut):
            run(executor, Stretch(tokens[start : min(start + cut, 600)], start, own, min(cut, 600 - start)))
        assert torch.equal(run(executor, Stretch(tokens[600:], 600, own, 0)), alone), cut
    others = [Stretch(text(30 + n, 5 + n), 0, pages(20 + 3 * n, 60), 30 + n) for n in range(20)]
    assert torch.equal(run(executor, *others[:7], Stretch(tokens[600:], 600, own, 0), *others[7:]), alone)


def tree_of(text: list[int], draft: list[int], parents: list[int], own: list[int], spare: list[int]) -> Stretch:
    return Stretch([text[-1], *draft], len(text) - 1, own, 0, parents, spare)


def test_a_row_of_a_tree_has_the_bits_it_has_in_a_chain_and_moved_rows_those_of_its_keys(folder: Path) -> None:
    """Random trees around the ends of pages, as graphs, as eager steps and beside others."""
    chance, spare = random.Random(3), list(range(PAGES, PAGES + 64))
    ways = [load(folder, graphs=graphs, branch_pages=64) for graphs in (True, False)]
    for turn in range(12):
        words = text(chance.choice([1, 30, 31, 32, 33, 63, 600]), turn)
        parents = [chance.randrange(-1, i) for i in range(chance.randint(1, 14))]
        draft, own = text(len(parents), 100 + turn), pages(0, len(words) + len(parents))
        tree, found = tree_of(words, draft, parents, own, spare), []
        for way in ways:
            if words[:-1]:
                run(way, Stretch(words[:-1], 0, own, len(words) - 1))
            beside = Stretch(text(9, turn), 0, [60], 8)
            for kept in way._pages._kept:
                kept[:, :, spare] = 50.0
            found.append(run(way, beside, tree)[1:] if turn % 2 else run(way, tree))
        assert torch.equal(*found)
        row = chance.randint(1, len(parents))
        path, slots = path_to(row, parents), tree_slots(tree, PAGE_TOKENS)
        places = range(len(words), len(words) + len(path))
        to = [own[place // PAGE_TOKENS] * PAGE_TOKENS + place % PAGE_TOKENS for place in places]
        pairs = zip(slots[path].tolist(), to, strict=True)
        ways[0].move([pair for pair in pairs if pair[0] != pair[1]])
        whole = [*words, *(draft[r - 1] for r in path)]
        # The last row of the path once more, over the keys of those before it.
        again = run(ways[0], Stretch(whole[-1:], len(whole) - 1, own, 0))
        assert torch.equal(again[0], found[0][row])
        for leaf in range(len(parents) + 1):
            chain = [*words, *(draft[r - 1] for r in path_to(leaf, parents))]
            fresh = pages(61, len(chain))
            assert torch.equal(run(ways[0], Stretch(chain, 0, fresh, len(chain) - 1))[0], found[0][leaf])


def path_to(row: int, parents: list[int]) -> list[int]:
    path = []
    while row:
        path.append(row)
        row = parents[row - 1] + 1
    return path[::-1]


def test_nothing_waits_for_the_device_within_a_step(executor: Executor) -> None:
    tokens, own = text(400, 6), pages(0, 400)
    steps = [make_batch([Stretch(tokens[:300], 0, own, 299)], PAGE_TOKENS)]
    steps += [make_batch([Stretch([tokens[at]], at, own, 0)], PAGE_TOKENS) for at in range(300, 310)]
    # Compiles what isn't compiled yet.
    executor.forward(steps[0])
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for step in steps:
            executor.forward(step)
        executor.copy_page(0, 100)
        executor.move([(300, 310), (301, 311)])
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_inputs_of_a_step_are_not_overwritten_by_those_of_the_next(executor: Executor) -> None:
    """Steps are put faster than the device takes them."""
    tokens, own = text(64, 7), pages(0, 64)
    slowly = [run(executor, Stretch([token], at, own, 0)) for at, token in enumerate(tokens)]
    torch.cuda.synchronize()
    torch.cuda._sleep(100_000_000)
    quickly = [run(executor, Stretch([token], at, own, 0)) for at, token in enumerate(tokens)]
    assert torch.equal(torch.cat(quickly), torch.cat(slowly))


def test_a_copied_page_holds_what_its_source_holds_and_goes_its_own_way(executor: Executor) -> None:
    tokens, first = text(40, 8), pages(0, 64)
    expected = run(executor, Stretch(tokens, 0, first, 38))
    executor.copy_page(first[1], 50)
    copied = [first[0], 50]
    assert torch.equal(run(executor, Stretch(tokens[38:], 38, copied, 0)), expected)
    run(executor, Stretch([3, 4], 38, copied, 0))
    assert torch.equal(run(executor, Stretch(tokens[38:], 38, first, 0)), expected)


def test_a_page_takes_what_is_said(folder: Path, executor: Executor) -> None:
    network = read_network(folder)
    size = 2 if executor._dtype == torch.bfloat16 else 4
    options = Options("float32" if size == 4 else "bfloat16", 0, PAGE_TOKENS, CONTEXT)
    kept = sum(layer.attention._keys.nbytes + layer.attention._values.nbytes for layer in executor._layers)
    assert type(executor).page_bytes(network, options) * PAGES == kept
