from __future__ import annotations

from collections.abc import Iterator

import pytest

from specmesh import LLM

MOCK = {"engine": "mock", "mock_profile": {"step_ms": 1, "acceptance": 0.6, "vocab_size": 49152}}


@pytest.fixture(scope="package")
def llm() -> Iterator[LLM]:
    """SmolLM2 in float32, with all processes."""
    with LLM(dtype="float32") as made:
        yield made


@pytest.fixture(scope="package")
def mock_llm() -> Iterator[LLM]:
    with LLM(**MOCK) as made:
        yield made
