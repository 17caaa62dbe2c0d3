"""The default model as a runner, for tests that say what its answers are."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from services.api.settings import Settings, cache_dir
from services.worker.grammar.compiled import Grammars
from services.worker.running.load_torch_model import Wanted, load_torch_model
from services.worker.running.torch_runner import TorchRunner


@pytest.fixture(scope="module")
def folder() -> Path:
    from models.sources import ensure_model

    settings = Settings.for_tests()
    return ensure_model(settings.model, cache_dir(settings))


@pytest.fixture(scope="module")
def runner(folder: Path) -> Iterator[TorchRunner]:
    """In 8 bits, as that is the fastest."""
    model = load_torch_model(folder, Wanted(dtype="int8", threads=2, page_tokens=16, kv_cache_mb=128))
    grammars = Grammars(folder / "tokenizer.json", model.facts.vocab_size, model.facts.eos_token_ids)
    yield TorchRunner(model, grammars=grammars)


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Tokenizer:
    return Tokenizer.from_file(str(folder / "tokenizer.json"))
