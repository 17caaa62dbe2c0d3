"""The GPU executor split over two ranks, in Triton's interpreter, which the ranks use in turns."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from kernels import interpreter
from models.batch import Stretch
from tests.models.gpu.interpreted import FAMILIES, on_cpu, save

sys.path.insert(0, str(Path(__file__).parents[1]))
import parity
import ranks

from models.executor import Executor
from services.worker.parallel.pages import OtherRanks, receive_page, send_pages
from services.worker.running.page_memory import TorchPages

pytestmark = [
    pytest.mark.skipif(not interpreter.in_use(), reason="about the interpreter's device"),
    pytest.mark.shows("a model over several GPUs (NCCL)", "interpreted"),
]


@pytest.mark.parametrize("name", FAMILIES)
def test_two_ranks_give_the_logits_of_transformers_and_one_process_goes_on_with_their_pages(
    name: str, tmp_path: Path
) -> None:
    model = save(name, tmp_path)
    tokens, beside = parity.random_tokens(19, 1), parity.random_tokens(3, 2)
    with torch.inference_mode(), ranks.split(tmp_path, 2, on_cpu, meet=ranks.in_turns) as split:
        split.executors[0].prepare()
        assert all("no CUDA graphs" in each.path for each in split.executors)
        parity.run(split, [Stretch(tokens[:9], 0, [5, 2], 9)])
        logits = parity.run(split, [Stretch(tokens[9:], 9, [5, 2], 7), Stretch(beside, 0, [9], 0)])
        expected = torch.cat([parity.logits_of(model, tokens)[16:], parity.logits_of(model, beside)])
        parity.assert_close(logits, expected, "two ranks")
        own, (other,) = split.executors[0], split.executors[1:]

        def on_all(words: object, first: Callable[[], None]) -> None:
            run = split.pool.submit(torch.inference_mode()(theirs), other.page_memory(), split.groups[1], given)
            first()
            run.result(300)

        pages = TorchPages(own.page_memory(), "m", OtherRanks(own.page_memory(), split.groups[0], on_all))
        theirs, given = send_pages, [5]
        (read,) = pages.read([5])
        theirs, given = receive_page, 7
        pages.write(7, read)
        assert torch.equal(parity.run(split, [Stretch(tokens[16:], 16, [7, 3], 0)]),
                           parity.run(split, [Stretch(tokens[16:], 16, [5, 4], 0)]))  # fmt: skip
    whole: Executor = parity.load(tmp_path, on_cpu)
    landed = TorchPages(whole.page_memory(), "m")
    assert (landed.layout, landed.frame_bytes) == (pages.layout, pages.frame_bytes)
    landed.write(7, read)
    assert landed.read([7]) == [read]
    parity.assert_close(parity.run(whole, [Stretch(tokens[16:], 16, [7, 3], 0)]), logits[:3], "pages of two ranks")


def test_tokens_at_the_borders_of_shares_are_fed_and_scored_as_by_one_process(tmp_path: Path) -> None:
    model = save("llama", tmp_path)
    edges = ranks.borders(model.config.vocab_size, 2)
    expected = torch.cat([parity.logits_of(model, edges), *(parity.logits_of(model, [token]) for token in edges)])
    with torch.inference_mode(), ranks.split(tmp_path, 2, on_cpu, meet=ranks.in_turns) as split:
        alone = [Stretch([token], 0, [place], 0) for place, token in enumerate(edges)]
        logits = parity.run(split, [Stretch(edges, 0, [9], 0), *alone])
    parity.assert_close(logits, expected, "two ranks")
