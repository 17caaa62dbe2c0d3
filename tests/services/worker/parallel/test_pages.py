"""Pages of a split model, handed over: bytes of the whole model, which any number of ranks can go on with."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import parity
import pytest
import ranks
import routing
import torch
from test_quantized import LATENT
from transformers import DeepseekV3Config, LlamaConfig, PreTrainedConfig, Qwen3Config

from models.batch import Stretch
from models.executor import Executor, PageTensor
from models.group import Group, RankLost
from models.plain import PlainExecutor
from services.worker.parallel import calls
from services.worker.parallel.executor import ParallelExecutor, serve
from services.worker.running.page_memory import TorchPages

TOKENS = parity.random_tokens(70, 5)
# Full pages of the text, in no order, and where they land.
PAGES, LANDED = [9, 2, 5, 1], [3, 8, 0, 6]


@contextmanager
def worker(folder: Path, count: int, make: parity.MakeExecutor) -> Iterator[Executor]:
    """Rank 0's executor, while the others serve."""
    if count == 1:
        yield parity.load(folder, make)
        return
    with ranks.split(folder, count, make) as split:
        others = zip(split.executors[1:], split.groups[1:], strict=True)
        serving = [split.pool.submit(serve, executor, group) for executor, group in others]
        try:
            yield ParallelExecutor(split.executors[0], split.groups[0], print)
        finally:
            calls.tell(split.groups[0], calls.call(-1))
            assert all("no call -1" in str(each.exception(60)) for each in serving)


def pages_of(executor: Executor) -> TorchPages:
    return TorchPages(
        executor.page_memory(), "m", executor.other_ranks() if isinstance(executor, ParallelExecutor) else None
    )


def last_logits(executor: Executor, start: int, pages: list[int]) -> torch.Tensor:
    return parity.run(executor, [Stretch(TOKENS[start:], start, [*pages, 11], 69 - start)])


Family = tuple[type[PreTrainedConfig], dict[str, Any]]
LLAMA: Family = (LlamaConfig, {})
LATENTS: Family = (DeepseekV3Config, LATENT)
THREE: Family = (LlamaConfig, {"num_attention_heads": 9, "num_key_value_heads": 3, "hidden_size": 72})
CASES: dict[str, tuple[Family, int]] = {
    "even shares": (LLAMA, 2),
    "three key heads over two ranks": (THREE, 2),
    "three key heads over four ranks": (THREE, 4),
    "two key heads over four ranks": ((Qwen3Config, {"head_dim": 16}), 4),
    "one key head that all ranks have": ((LlamaConfig, {"num_key_value_heads": 1}), 4),
    "latents": (LATENTS, 2),
}


def save(family: Family, folder: Path) -> None:
    config_class, changes = family
    routing.save_sparse(config_class, folder, 0, **changes)


# How heads are shared out is the same for both; latents are kept in another place by each. Plain torch keeps a row's
# bits only where each is computed alone.
WITH_PLAIN = ("three key heads over two ranks", "latents")
EXECUTORS = [
    *(pytest.param(name, parity.EXECUTORS["compiled"], id=f"{name}, compiled") for name in CASES),
    *(pytest.param(name, PlainExecutor, id=f"{name}, plain") for name in WITH_PLAIN),
]


@pytest.mark.parametrize(("name", "make"), EXECUTORS)
def test_pages_keep_their_bytes_from_ranks_to_one_process_and_back(
    name: str, make: parity.MakeExecutor, tmp_path: Path
) -> None:
    family, count = CASES[name]
    save(family, tmp_path)
    with torch.inference_mode(), worker(tmp_path, count, make) as split:
        last_logits(split, 0, PAGES)
        expected = last_logits(split, 64, PAGES)
        ours = pages_of(split)
        lent = ours.read(PAGES)
        with worker(tmp_path, 1, make) as whole:
            theirs = pages_of(whole)
            assert (theirs.layout, theirs.frame_bytes) == (ours.layout, ours.frame_bytes)
            for page, frames in zip(LANDED, lent, strict=True):
                theirs.write(page, frames)
            assert theirs.read(LANDED) == lent
            assert (last_logits(whole, 64, LANDED) - expected).abs().max() <= parity.TOLERANCE
        with worker(tmp_path, count, make) as other:
            landed = pages_of(other)
            for page, frames in zip(LANDED, lent, strict=True):
                landed.write(page, frames)
            assert landed.read(LANDED) == lent
            assert torch.equal(last_logits(other, 64, LANDED), expected)


@pytest.mark.parametrize(("family", "exchanges"), [(LLAMA, 1), (LATENTS, 0)], ids=["heads", "latents"])
def test_a_batch_of_pages_is_one_exchange_and_latents_are_none(
    family: Family, exchanges: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(family, tmp_path)
    told: list[list[int]] = []

    def tell(group: Group, words: np.ndarray) -> None:
        told.append(words[1:].tolist())
        real(group, words)

    real = calls.tell
    with torch.inference_mode(), worker(tmp_path, 2, parity.EXECUTORS["plain"]) as split:
        last_logits(split, 0, PAGES)
        monkeypatch.setattr(calls, "tell", tell)
        read = pages_of(split).read(PAGES)
        assert told == [[calls.READ, *PAGES]] * exchanges
        told.clear()
        pages_of(split).write(7, read[0])
        assert told == [[calls.WRITE, 7]]
        told.clear()
        last_logits(split, 0, PAGES)
        # A worker that hands nothing over says nothing of pages.
        assert [call[0] for call in told] == [calls.FORWARD]
        monkeypatch.undo()


def test_layers_of_a_drafter_are_rank_0s_alone(tmp_path: Path) -> None:
    save(LLAMA, tmp_path)
    # As of an executor without ranks: it has all heads of a model that has as many as the split one.
    drafter = PageTensor(torch.randn(12, 16, 2, 16), 2, 2)
    with torch.inference_mode(), worker(tmp_path, 2, parity.EXECUTORS["plain"]) as split:
        assert isinstance(split, ParallelExecutor)
        last_logits(split, 0, PAGES)
        pages = TorchPages([*split.page_memory(), drafter], "m", split.other_ranks())
        read = pages.read([2])
        assert read[0][0].endswith(drafter.memory[2].numpy().tobytes())
        pages.write(10, read[0])
        assert torch.equal(drafter.memory[10], drafter.memory[2]) and pages.read([10]) == read


def test_a_rank_that_is_lost_while_pages_are_read_ends_the_worker(tmp_path: Path) -> None:
    save(LLAMA, tmp_path)
    lost: list[str] = []
    with torch.inference_mode(), ranks.split(tmp_path, 2, parity.EXECUTORS["plain"]) as split:
        # It has heard the call, and sends nothing.
        heard = split.pool.submit(calls.hear, split.groups[1])
        split.groups[0].timeout = 0.5
        executor = ParallelExecutor(split.executors[0], split.groups[0], lost.append)
        with pytest.raises(RankLost, match="rank 0 of 2"):
            pages_of(executor).read([3])
        assert heard.result(60).tolist() == [calls.READ, 3]
    assert len(lost) == 1
