"""The fixtures of all tests that run a streamer in a mesh of fakes; a conftest.py imports them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import aiohttp
import pytest

if TYPE_CHECKING:
    from fake_mesh import FakeMesh


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
