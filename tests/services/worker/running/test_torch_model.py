"""Law 3 where it begins: a row's logits have the same bits in any batch and however its prompt was cut."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from models.batch import Stretch
from models.sources import ensure_model
from services.worker.running.load_torch_model import Wanted, load_torch_model
from services.worker.running.torch_model import TorchModel

pytestmark = pytest.mark.model

PAGE = 32


def slow(*values: Any) -> list[Any]:
    """Values of a parameter for `make test-all` only."""
    return [pytest.param(value, marks=pytest.mark.slow) for value in values]


@pytest.fixture(scope="module", params=["bfloat16", "int8", *slow("float32")])
def model(request: pytest.FixtureRequest) -> Iterator[TorchModel]:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "specmesh"
    folder = ensure_model("smollm2-135m-instruct", cache)
    yield load_torch_model(folder, Wanted(dtype=request.param, threads=2, page_tokens=PAGE, kv_cache_mb=512))


def forward(model: TorchModel, rows: list[Stretch]) -> torch.Tensor:
    """What is compared must not be the memory that the next call writes."""
    return model.forward(rows).logits.clone()


class Sequence:
    """Text, the pages it has, and how much of it has been computed."""

    def __init__(self, source: random.Random, length: int, pages: list[int]) -> None:
        self.tokens = [source.randrange(49152) for _ in range(length)]
        self.pages = pages
        self.done = 0

    def rows(self, count: int, drafts: list[int] | None = None, logits: bool = True) -> Stretch:
        tokens = self.tokens[self.done : self.done + count] + (drafts or [])
        return Stretch(tokens, self.done, self.pages, 0 if logits else len(tokens))


def one_by_one(model: TorchModel, sequence: Sequence, first: int = 0) -> torch.Tensor:
    """Logits of tokens first.., each computed alone, in pages of its own."""
    rows = (Stretch([t], i, sequence.pages, 0) for i, t in enumerate(sequence.tokens) if i >= first)
    return torch.cat([forward(model, [row]) for row in rows])


def fresh_pages(source: random.Random, model: TorchModel, lengths: list[int]) -> list[list[int]]:
    """Scattered pages, as a running allocator gives them."""
    free = list(range(model.facts.pages))
    source.shuffle(free)
    return [[free.pop() for _ in range(-(-length // PAGE))] for length in lengths]


@pytest.mark.parametrize("chunks", [(64, 200), *slow((1, 7, 512))])
def test_a_prompt_in_chunks_of_any_size_gives_the_same_bits(model: TorchModel, chunks: tuple[int, ...]) -> None:
    source = random.Random(chunks[0])
    # More rows than one pass takes, so that the whole prompt is cut inside, too.
    whole_pages, *cut_pages = fresh_pages(source, model, [270] * (1 + len(chunks)))
    whole = Sequence(source, 270, whole_pages)
    expected = forward(model, [whole.rows(270)])
    for chunk, pages in zip(chunks, cut_pages, strict=True):
        cut = Sequence(source, 0, pages)
        cut.tokens = whole.tokens
        parts = []
        while cut.done < 270:
            parts.append(forward(model, [cut.rows(min(chunk, 270 - cut.done))]))
            cut.done += len(parts[-1])
        assert torch.equal(torch.cat(parts), expected), chunk


def test_rows_in_random_batches_have_the_bits_of_rows_alone(model: TorchModel) -> None:
    """Chunks of prefill, single steps, drafts accepted and refused, all in one call."""
    source = random.Random(11)
    # Over the end of a page.
    lengths = [source.randint(8, 36) for _ in range(4)]
    pages = fresh_pages(source, model, [length + 16 for length in lengths] * 2)
    sequences = [Sequence(source, n, p) for n, p in zip(lengths, pages[:4], strict=True)]
    seen: list[list[torch.Tensor]] = [[] for _ in sequences]
    while running := [s for s in sequences if s.done < len(s.tokens)]:
        batch = source.sample(running, source.randint(1, len(running)))
        counts = [min(source.choice([1, 1, 2, 5, 9, 33]), len(s.tokens) - s.done) for s in batch]
        drafts = [[source.randrange(49152) for _ in range(source.choice([0, 0, 1, 4, 8]))] for _ in batch]
        logits = forward(model, [s.rows(n, d) for s, n, d in zip(batch, counts, drafts, strict=True)])
        at = 0
        for sequence, count, draft in zip(batch, counts, drafts, strict=True):
            # The drafts are refused: their rows are dropped, the next call writes over them.
            seen[sequences.index(sequence)].append(logits[at : at + count])
            at += count + len(draft)
            sequence.done += count
    for sequence, parts, others in zip(sequences, seen, pages[4:], strict=True):
        sequence.pages = others
        assert torch.equal(torch.cat(parts), one_by_one(model, sequence))


@pytest.mark.parametrize("mates", [1, 7, 31, *slow(2, 6, 14, 15, 30, 63)])
def test_a_row_has_the_same_bits_in_any_batch(model: TorchModel, mates: int) -> None:
    source = random.Random(mates)
    lengths = [57] + [source.randint(1, 40) for _ in range(mates)]
    sequences = [Sequence(source, n, p) for n, p in zip(lengths, fresh_pages(source, model, lengths), strict=True)]
    for sequence in sequences:
        sequence.done = len(sequence.tokens) - 1
        forward(model, [Stretch(sequence.tokens, 0, sequence.pages, len(sequence.tokens))])
    alone = forward(model, [sequences[0].rows(1)])
    source.shuffle(sequences)
    together = forward(model, [sequence.rows(1) for sequence in sequences])
    me = next(i for i, s in enumerate(sequences) if len(s.tokens) == 57 and s.done == 56)
    assert torch.equal(together[me], alone[0])


def test_deep_in_a_text_rows_alone_have_the_bits_of_a_batch(model: TorchModel) -> None:
    """Long contexts are cut into parts for the threads: where must not depend on the rest of the batch."""
    source = random.Random(5)
    pages = fresh_pages(source, model, [610, 610, 40])
    long, mate = Sequence(source, 605, pages[0]), Sequence(source, 40, pages[2])
    first = forward(model, [Stretch(long.tokens[:600], 0, pages[0], 599)])
    for start in range(0, 600, 64):
        cut = forward(model, [Stretch(long.tokens[start : min(start + 64, 600)], start, pages[1], 0)])
    assert torch.equal(cut[-1], first[0])
    long.done = 600
    verified = forward(model, [long.rows(5), mate.rows(40)])
    assert torch.equal(verified[:5], one_by_one(model, long, first=600))


@pytest.mark.parametrize("drafts", [2, 3, 8, *slow(1, 7, 15, 16, 32)])
def test_verified_rows_have_the_bits_of_steps_of_one(model: TorchModel, drafts: int) -> None:
    source = random.Random(drafts)
    pages = fresh_pages(source, model, [100])[0]
    sequence = Sequence(source, 40 + drafts, pages)
    forward(model, [Stretch(sequence.tokens[:40], 0, pages, 40)])
    sequence.done = 40
    verified = forward(model, [sequence.rows(drafts)])
    assert torch.equal(verified, one_by_one(model, sequence, first=40))


def test_refused_drafts_leave_no_trace(model: TorchModel) -> None:
    source = random.Random(3)
    pages, clean_pages = fresh_pages(source, model, [64, 64])
    sequence, clean = Sequence(source, 34, pages), Sequence(source, 34, clean_pages)
    clean.tokens = sequence.tokens
    # Drafts reach into the next page, then the text goes on over them.
    forward(model, [Stretch(sequence.tokens[:30] + [9] * 12, 0, pages, 42)])
    after = forward(model, [Stretch(sequence.tokens[30:], 30, pages, 0)])
    assert torch.equal(after, forward(model, [Stretch(clean.tokens, 0, clean_pages, 30)]))


def test_only_wanted_rows_come_back_in_the_order_of_the_call(model: TorchModel) -> None:
    source = random.Random(4)
    # Together more rows than one pass takes.
    lengths = [200, 5, 330, 1]
    sequences = [Sequence(source, n, p) for n, p in zip(lengths, fresh_pages(source, model, lengths), strict=True)]
    wanted_from = [198, 5, 230, 0]
    rows = [Stretch(s.tokens, 0, s.pages, w) for s, w in zip(sequences, wanted_from, strict=True)]
    logits = forward(model, rows)
    assert logits.shape == (2 + 0 + 100 + 1, 49152) and logits.dtype == torch.float32
    assert torch.equal(logits[:2], forward(model, rows[:1]))
    assert torch.equal(logits[2:102], forward(model, rows[2:3]))
    assert torch.equal(logits[102:], forward(model, rows[3:]))


def test_a_call_without_rows_has_no_logits(model: TorchModel) -> None:
    assert forward(model, []).shape == (0, 49152)


@pytest.mark.parametrize(
    "rows",
    [
        Stretch([], 0, [0], 0),
        Stretch([1], 32, [0], 0),
        Stretch([1], -1, [0], 0),
        Stretch([49152], 0, [0], 0),
        Stretch([1], 0, [1 << 20], 0),
        Stretch([1], 0, [-1], 0),
        Stretch([1], 8192, [0] * 300, 0),
        Stretch([1], 0, [0], 2),
    ],
)
def test_rows_outside_the_guaranteed_range_are_a_bug(model: TorchModel, rows: Stretch) -> None:
    with pytest.raises(AssertionError):
        forward(model, [rows])
