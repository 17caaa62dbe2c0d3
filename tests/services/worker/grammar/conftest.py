from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from llguidance import LLTokenizer
from tokenizers import Tokenizer

from services.api.settings import Settings, cache_dir
from services.worker.grammar.compiled import Grammars

VOCABULARY = 49152
END = 2  # <|im_end|>


@pytest.fixture(scope="session")
def tokenizer_file() -> Path:
    from models.sources import ensure_model

    settings = Settings.for_tests()
    return ensure_model(settings.model, cache_dir(settings)) / "tokenizer.json"


@pytest.fixture(scope="session")
def vocabulary(tokenizer_file: Path) -> LLTokenizer:
    return Grammars(tokenizer_file, VOCABULARY, (END,)).vocabulary


@pytest.fixture
def grammars(tokenizer_file: Path, vocabulary: LLTokenizer) -> Grammars:
    made = Grammars(tokenizer_file, VOCABULARY, (END,))
    # Reading it takes half a second.
    made.vocabulary = vocabulary
    return made


@pytest.fixture(scope="session")
def ids_of(tokenizer_file: Path) -> Callable[[str], list[int]]:
    tokenizer = Tokenizer.from_file(str(tokenizer_file))
    return lambda text: list(tokenizer.encode(text, add_special_tokens=False).ids)
