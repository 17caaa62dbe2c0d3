"""States of sequences through an executor: as rows are drafted, accepted and taken back."""

from __future__ import annotations

import random
from pathlib import Path

import parity
import pytest
import torch
from test_qwen3_5 import DENSE
from transformers import Qwen3_5TextConfig

from models.batch import Stretch, make_batch
from models.config import read_network
from models.cpu.executor import CpuExecutor
from models.executor import Executor, Options
from models.plain import PlainExecutor
from models.weights import Weights

LONGEST = 6
# Of a page that holds a whole text.
TOKENS = 1 << 10
# Both are strict, plain torch row by row.
EXECUTORS = {"plain": PlainExecutor, "compiled": CpuExecutor}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hybrid")
    small = {"hidden_size": 16, "num_hidden_layers": 2, "layer_types": ["linear_attention", "full_attention"]}
    parity.save_tiny(Qwen3_5TextConfig, folder, **(DENSE | small | {"max_position_embeddings": TOKENS}))
    return folder


class Texts:
    """An executor with a page and a state for each text."""

    def __init__(self, folder: Path, name: str) -> None:
        options = Options(
            "float32", pages=3, page_tokens=TOKENS, max_context=TOKENS, states=3, longest_draft=LONGEST
        )
        self._executor: Executor = EXECUTORS[name](read_network(folder), Weights(folder), options)

    def __call__(self, text: int, start: int, tokens: list[int], settled: int = -1) -> torch.Tensor:
        """Logits of the rows."""
        return self.beside([(text, start, tokens, settled)])

    def copy(self, source: int, target: int) -> None:
        """The whole text, with its page."""
        self._executor.copy_page(source, target)
        self._executor.copy_state(2 - source, 2 - target)

    def beside(self, parts: list[tuple[int, int, list[int], int]]) -> torch.Tensor:
        stretches = [
            Stretch(tokens, start, [text], 0, state=2 - text, settled=settled) for text, start, tokens, settled in parts
        ]
        return self._executor.forward(make_batch(stretches, TOKENS)).logits.clone()


@pytest.fixture(scope="module", params=EXECUTORS)
def texts(folder: Path, request: pytest.FixtureRequest) -> Texts:
    return Texts(folder, request.param)


def test_rows_have_the_bits_of_plain_decoding_whatever_was_taken_back_before(texts: Texts) -> None:
    source, text = random.Random(5), parity.random_tokens(70, 4)
    expected = torch.cat([texts(0, at, [token]) for at, token in enumerate(text)])
    assert torch.equal(texts(1, 0, text[:9]), expected[:9])
    at = 9
    while at < len(text) - LONGEST - 1:
        length = source.randrange(LONGEST + 1)
        accepted = source.randint(0, length)
        wrong = [(token + 1) % parity.VOCABULARY for token in text[at + 1 + accepted : at + 1 + length]]
        # A third text beside it begins again and again.
        found = texts.beside([(2, 0, [at, 5], -1), (1, at, text[at : at + 1 + accepted] + wrong, at + 1)])[2:]
        assert torch.equal(found[: accepted + 1], expected[at : at + 1 + accepted])
        at += accepted + 1


def test_a_text_that_begins_again_forgets_the_state_of_the_last_one(texts: Texts) -> None:
    fresh = texts(0, 0, [5, 6, 7])
    texts(1, 0, [9, 9, 9, 9])
    assert torch.equal(texts(1, 0, [5, 6, 7]), fresh)
    assert not torch.equal(texts(1, 3, [5]), texts(1, 0, [5]))


def test_a_copied_state_goes_on_as_the_one_it_was_copied_from(texts: Texts) -> None:
    texts(0, 0, [5, 6, 7, 8, 9], settled=4)
    texts(1, 0, [3] * 30)
    texts.copy(0, 1)
    # Text 0 goes another way, which the copy doesn't notice. Its draft of one token can be taken back, too.
    texts(0, 5, [1, 1, 1])
    found = texts(1, 4, [2, 4])
    assert torch.equal(found, texts(2, 0, [5, 6, 7, 8, 2, 4])[4:])


def test_a_sequence_that_goes_on_where_nothing_is_kept_is_an_error(texts: Texts) -> None:
    texts(0, 0, [5, 6, 7, 8], settled=2)
    for start in (1, 5):
        with pytest.raises(AssertionError, match="within what is kept"):
            texts(0, start, [9])
    with pytest.raises(AssertionError):
        texts(0, 4, [5] * (LONGEST + 2), settled=5)
