from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING

import aiohttp
import pytest

if TYPE_CHECKING:
    from fake_mesh import FakeMesh

sys.path.insert(0, str(Path(__file__).parents[1] / "flow"))


@pytest.fixture
async def mesh() -> AsyncIterator[FakeMesh]:
    """A mesh with a tokenizer; the test adds targets and the door."""
    from fake_mesh import FakeMesh

    mesh = FakeMesh()
    await mesh.start_tokenizer()
    yield mesh
    await mesh.close()


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session
